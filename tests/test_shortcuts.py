"""The probes one by one, on examples made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.planted_task import Planted
from workbench.audit.examples import PER_SEQUENCE, Examples, choose, draw, examples, twins
from workbench.audit.learned import (
    Regression,
    counts,
    fit_bag_of_words,
    fit_candidates_without_cue,
    fit_cue_without_candidates,
    fit_uniform_average,
)
from workbench.audit.lookups import (
    Table,
    accuracy,
    backed,
    fit_copies,
    fit_last_tokens,
    fit_majority,
    fit_offset_copy,
    fit_position_copy,
    fit_position_lookup,
)
from workbench.task import IGNORE, Batch


def made(tokens: list[list[int]], answers: list[int], query: list[int] | None = None, **places: list[int]) -> Examples:
    """One example a sequence, asked at its last position unless stated."""
    array = np.array(tokens)
    n = len(array)
    return Examples(
        tokens=array,
        mask=np.ones(array.shape, dtype=bool),
        row=np.arange(n),
        query=np.array(query) if query else np.full(n, array.shape[1] - 1),
        answer=np.array(answers),
        places={name: np.array(place) for name, place in places.items()},
        single=True,
    )


def batch(tokens: list[list[int]], targets: list[list[int]]) -> Batch:
    t = torch.tensor(tokens)
    asked = torch.tensor(targets)
    return Batch(t, torch.ones_like(t, dtype=torch.bool), asked, asked != IGNORE)


def test_visible_ends_at_the_query_and_leaves_padding_out() -> None:
    found = Examples(
        np.array([[5, 6, 7], [8, 9, 0]]),
        np.array([[True, True, True], [True, True, False]]),
        np.array([0, 0, 1]),
        np.array([0, 2, 2]),
        np.array([1, 2, 3]),
        {},
        False,
    )
    assert found.visible.tolist() == [[True, False, False], [True, True, True], [True, True, False]]
    assert found.at(np.array([0, 1, 1])).tolist() == [5, 6, 9]
    # Behind the query, on padding, before the sequence: nothing.
    assert found.at(np.array([1, -1, 2])).tolist() == [-1, -1, -1]
    assert counts(found, found.visible, 10)[2].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]


def test_a_table_gives_the_commonest_answer_and_the_smallest_of_equal_ones() -> None:
    keys = np.array([7, 7, 7, 9, 9, 4], dtype=np.uint64)
    table = Table.of(keys, np.array([3, 2, 3, 6, 5, 1]))
    assert table(np.array([4, 7, 9, 8, 99, 0], dtype=np.uint64)).tolist() == [1, 3, 5, -1, -1, -1]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=40))
def test_a_table_is_the_best_function_of_its_key(pairs: list[tuple[int, int]]) -> None:
    keys, answers = (np.array(column) for column in zip(*pairs, strict=True))
    right = (Table.of(keys.astype(np.uint64), answers)(keys.astype(np.uint64)) == answers).sum()
    best = sum(max(np.bincount(answers[keys == key])) for key in set(keys.tolist()))
    assert right == best


def test_majority_answer() -> None:
    fitted = fit_majority(made([[1], [1], [1]], [2, 2, 0]), ("a", "b", "c"))
    assert fitted.predict(made([[5], [6]], [0, 0])).tolist() == [2, 2]
    assert fitted.detail == "always 'c'"


def test_one_position_is_chosen_for_looking_up_and_for_copying() -> None:
    # Position 1 tells the answer (3 -> 5, 4 -> 6), position 2 is the answer where it is 5 alone.
    train = made([[0, 3, 5], [1, 3, 5], [0, 4, 5], [1, 4, 5]], [5, 5, 6, 6])
    looked, copied = fit_position_lookup(train), fit_position_copy(train)
    assert (looked.detail, copied.detail) == ("position 1", "position 2")
    new = made([[7, 4, 8], [7, 3, 9], [7, 7, 7]], [6, 5, 5])
    assert looked.predict(new).tolist() == [6, 5, 5]  # 7 was never seen there: the commonest answer
    assert copied.predict(new).tolist() == [8, 9, 7]


def test_a_position_behind_the_query_falls_back() -> None:
    train = made([[1, 2, 3], [1, 2, 4]], [3, 4])
    fitted = fit_position_copy(train)
    assert fitted.detail == "position 2"
    assert fitted.predict(made([[1, 2, 4]], [4], query=[1])).tolist() == [3]


def test_one_distance_is_chosen_for_copying() -> None:
    # x[q + 1] = x[q + 1 - 3]: three tokens before the answer.
    train = made([[4, 5, 6, 7], [7, 6, 5, 4], [1, 2, 3, 0]], [5, 6, 2])
    fitted = fit_offset_copy(train)
    assert fitted.detail == "3 tokens before the answer"
    assert fitted.predict(made([[9, 8, 1, 1], [9, 8, 1, 1]], [8, 9], query=[3, 2])).tolist() == [8, 9]
    assert fit_offset_copy(made([[1, 2], [3, 4]], [2, 4])).detail == "1 token before the answer"


def test_last_tokens_back_off() -> None:
    train = made([[1, 2, 3], [2, 2, 3], [2, 2, 3], [1, 1, 4]], [7, 8, 8, 9])
    two, three = fit_last_tokens(train, 2, 10), fit_last_tokens(train, 3, 10)
    assert two.predict(made([[1, 2, 3]], [7])).tolist() == [8]
    assert three.predict(made([[1, 2, 3], [2, 2, 3]], [7, 8])).tolist() == [7, 8]
    # Unseen triple, seen pair; unseen pair, seen token; nothing seen.
    assert three.predict(made([[5, 2, 3], [5, 5, 4], [5, 5, 5]], [0, 0, 0])).tolist() == [8, 9, 8]
    # The beginning of a sequence is a context of its own.
    start = fit_last_tokens(made([[3, 0], [1, 3]], [5, 6], query=[0, 1]), 2, 10)
    assert start.predict(made([[3, 9], [1, 3]], [5, 6], query=[0, 1])).tolist() == [5, 6]


def test_copies_word_for_word_and_up_to_order() -> None:
    seen = [batch([[1, 2, 3], [3, 2, 1]], [[IGNORE, IGNORE, 5], [IGNORE, 6, 7]])]
    exact, sorted_ = (fit_copies(seen, 3, 9, ordered=ordered) for ordered in (True, False))
    new = made([[1, 2, 3], [2, 1, 3], [3, 2, 8], [1, 2, 2]], [5, 5, 6, 0], query=[2, 2, 1, 2])
    assert exact.predict(new).tolist() == [5, -1, 6, -1]
    # {1, 2, 3} was followed by 5 and by 7, {2, 3} by 6; {1, 2, 2} never occurred.
    assert sorted_.predict(new).tolist() == [5, 5, 6, -1]
    assert (exact.different, sorted_.different, exact.drawn) == (2, 1, 2)


def test_copies_do_not_depend_on_padding() -> None:
    long = Batch(
        torch.tensor([[1, 2, 0, 0]]),
        torch.tensor([[True, True, False, False]]),
        torch.tensor([[IGNORE, 3, IGNORE, IGNORE]]),
        torch.tensor([[False, True, False, False]]),
    )
    fitted = fit_copies([long], 4, 9, ordered=True)
    assert fitted.predict(made([[1, 2]], [3])).tolist() == [3]


def test_backing_off_takes_the_first_answer() -> None:
    assert backed(np.array([-1, 4, -1]), np.array([2, 2, -1]), np.array([9, 9, 9])).tolist() == [2, 4, 9]


def test_regression_on_one_class_and_on_few_examples() -> None:
    assert Regression(np.ones((3, 2), dtype=np.float32), np.array([4, 4, 4]))(
        np.zeros((2, 2), dtype=np.float32)
    ).tolist() == [4, 4]
    features = np.eye(3, dtype=np.float32)[np.arange(60) % 3]
    assert Regression(features, np.arange(60) % 3 + 5)(np.eye(3, dtype=np.float32)).tolist() == [5, 6, 7]


def test_bag_of_words_sees_words_and_no_order() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 4, (400, 5))
    tokens[:, 2] = 4 + np.arange(400) % 2
    words = made(tokens.tolist(), (6 + np.arange(400) % 2).tolist())
    assert accuracy(fit_bag_of_words(words, 8).predict(words), words) == 1.0
    # Which of two words comes first is order alone.
    swapped = np.where(np.arange(400)[:, None] % 2 == 0, [1, 2], [2, 1])
    order = made(swapped.tolist(), (6 + np.arange(400) % 2).tolist())
    assert accuracy(fit_bag_of_words(order, 8).predict(order), order) == pytest.approx(0.5)


def of(task: Planted, split: str, n: int = 400) -> Examples:
    chunks = draw(task, n, split, 0, "probe")
    return examples(chunks, choose(chunks, 0, split), task.n_ctx)


ROLES = (("cue",), ("first", "second"))


@pytest.mark.parametrize(("leak", "shares"), [("none", (0.5, 0.1)), ("mark", (1.0, 0.1)), ("cue", (0.7, 1.0))])
def test_half_of_what_decides(leak: Any, shares: tuple[float, float]) -> None:
    task = Planted(leak)
    train, test = of(task, "train", 800), of(task, "test")
    d_vocab = len(task.vocabulary)
    for fit, share in zip((fit_candidates_without_cue, fit_cue_without_candidates), shares, strict=True):
        assert accuracy(fit(train, d_vocab, *ROLES).predict(test), test) == pytest.approx(share, abs=0.12)


def test_candidates_that_never_win() -> None:
    train = made([[1, 2, 3]], [5], first=[0], second=[1], cue=[2])
    fitted = fit_candidates_without_cue(train, 6, *ROLES)
    assert (fitted.predict(train).tolist(), fitted.detail) == ([-1], "no candidate is ever the answer")


def test_uniform_average_finds_what_words_tell_and_not_what_order_tells() -> None:
    leaky, clean = Planted("cue"), Planted()
    found = [accuracy(fit_uniform_average(t, 80, 0).predict(of(t, "test")), of(t, "test")) for t in (leaky, clean)]
    assert found[0] > 0.95
    assert found[1] < 0.65


# What they are fitted on


def test_at_most_a_few_scored_positions_a_sequence() -> None:
    scored = torch.tensor(
        [[True] * 6, [False, True, False, False, False, False], [True, False, True, False, False, False]]
    )
    tokens = torch.zeros(3, 6, dtype=torch.long)
    whole = Batch(tokens, torch.ones_like(scored), torch.where(scored, 1, IGNORE), scored)
    [chosen] = choose([whole], 0, "test")
    assert (chosen & ~scored).sum() == 0
    assert chosen.sum(dim=1).tolist() == [PER_SEQUENCE, 1, 2]
    assert torch.equal(chosen, choose([whole], 0, "test")[0])
    found = examples([whole], [chosen], 8)
    assert found.tokens.shape == (3, 8)
    assert not found.mask[:, 6:].any()
    assert not found.single
    assert found.row.tolist() == [0, 0, 1, 2, 2]


def test_twins_are_asked_at_the_same_places() -> None:
    task = Planted()
    chunks = draw(task, 20, "test", 0, "probe")
    chosen = choose(chunks, 0, "test")
    here, there = examples(chunks, chosen, task.n_ctx), twins(task, chunks, chosen, task.n_ctx)
    assert there is not None
    assert np.array_equal(here.row, there.row)
    assert (here.answer != there.answer).all()
    assert ((here.tokens != there.tokens).sum(axis=1) == 1).all()
