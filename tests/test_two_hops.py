"""The two-hops task: maps read back from the tokens, answers by hand, what one lookup leaves open, errors."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.two_hops import TASK, TwoHops
from workbench.errors import WorkbenchError
from workbench.rng import stream
from workbench.task import IGNORE, SPLITS


def read(task, tokens) -> tuple[dict[str, str], list[str]]:
    """The map that a sequence writes, and its questions, from the texts of the tokens."""
    texts = task.vocabulary.decode(tokens)
    assert texts[0] == "<bos>"
    pairs, questions = texts[1 : 1 + task.symbols], texts[1 + task.symbols :]
    return dict(pair.split(">") for pair in pairs), questions


@given(st.integers(5, 26), st.booleans(), st.sampled_from(SPLITS), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_answers_follow_the_map_that_is_written(symbols, one_hop, split, seed):
    task = TwoHops(symbols, one_hop)
    batch = task.sample(3, split, stream(seed, "property"))
    batch.check(len(task.vocabulary), task.name)
    for i in range(3):
        f, questions = read(task, batch.tokens[i])
        start, seen = "a", set()
        for _ in range(symbols):  # once around all symbols, and back
            start = f[start]
            seen.add(start)
        assert start == "a"
        assert len(seen) == symbols
        expected = {f"{a}??" for a in f} | ({f"{a}?" for a in f} if one_hop else set())
        assert len(questions) == len(expected)
        assert set(questions) == expected
        answers = [f[f[q[0]]] if q.endswith("??") else f[q[0]] for q in questions]
        before = 1 + symbols
        assert batch.targets[i, :before].tolist() == [IGNORE] * before
        assert task.vocabulary.decode(batch.targets[i, before:]) == answers
        assert batch.scored[i].tolist() == [False] * before + [q.endswith("??") for q in questions]


def test_the_key_masks_hold_the_pairs_that_answer():
    batch = TASK.sample(8, "test", stream(0, "keys"))
    for i in range(8):
        f, questions = read(TASK, batch.tokens[i])
        pairs = TASK.vocabulary.decode(batch.tokens[i])
        for q, question in enumerate(questions, start=1 + TASK.symbols):
            a = question[0]
            first = batch.key_masks["first_hop"][i, q].nonzero().flatten().tolist()
            assert [pairs[k] for k in first] == [f"{a}>{f[a]}"]
            second = batch.key_masks["second_hop"][i, q].nonzero().flatten().tolist()
            assert [pairs[k] for k in second] == ([f"{f[a]}>{f[f[a]]}"] if question.endswith("??") else [])
    assert not any(mask[:, : 1 + TASK.symbols].any() for mask in batch.key_masks.values())


def test_the_floor_is_what_the_pairs_of_the_query_leave_open():
    """Every map once around five symbols: given the pairs that name a, f(f(a)) is even over the k - 3 others."""
    left: dict[tuple[str, str], list[str]] = {}
    for rest in permutations("bcde"):
        around = ("a", *rest)
        f = dict(zip(around, (*rest, "a"), strict=True))
        before = next(x for x in f if f[x] == "a")
        left.setdefault((before, f["a"]), []).append(f[f["a"]])
    for (before, image), answers in left.items():
        others = sorted(set("bcde") - {before, image})
        assert sorted(answers) == others
        assert TwoHops(5).floor().accuracy == pytest.approx(1 / len(others))
    assert TASK.floor().accuracy == pytest.approx(1 / 17)


def test_counting_symbols_says_nothing():
    """Each symbol stands once on the left and once on the right of a pair, whatever the map."""
    for row in TASK.sample(16, "train", stream(1, "count")).tokens:
        f, _ = read(TASK, row)
        assert sorted(f) == sorted(f.values())
        assert len(f) == TASK.symbols


def test_answers_are_even_over_places_and_symbols():
    batch = TwoHops(6).sample(3000, "train", stream(2, "even"))
    counts = torch.bincount(batch.targets[batch.scored] - 1, minlength=6).double()
    assert counts.sum() == 3000 * 6
    assert counts.tolist() == [3000] * 6  # every symbol is f(f(a)) of exactly one a
    first = batch.targets[:, 7] - 1
    assert (torch.bincount(first, minlength=6) / 3000 - 1 / 6).abs().max() < 0.03


@pytest.mark.parametrize("symbols", [4, 27])
def test_impossible_options_are_one_clear_error(symbols):
    with pytest.raises(WorkbenchError, match=r"task.symbols cannot be used: expected 5 to 26"):
        TwoHops(symbols)


def test_unknown_split_is_an_error():
    with pytest.raises(WorkbenchError, match="train or validation or test"):
        TASK.sample(1, "tset", stream(0, "x"))
