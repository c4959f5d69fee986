from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks._templates import FEWEST_NOUNS, Grammar, Situation, category_pairs, check, reversed_pairs
from workbench.errors import WorkbenchError
from workbench.rng import stream
from workbench.task import IGNORE

NOUNS = ("ant", "bee", "cat", "dog", "elk")
WANT = Situation("want", "the {first} saw {second} ; too {cue} said the {answer} .", ("sad", "old"), ("far", "dim"))
LONG = Situation("long", "a {first} and a {second} were so {cue} , and then the {answer} left us .", ("old",), ("dim",))


def sets(pairs) -> dict[str, set[tuple[int, int]]]:
    return {split: {tuple(p) for p in table.tolist()} for split, table in pairs.items()}


def test_pairs_of_five_nouns_by_hand():
    found = sets(reversed_pairs(5))
    one = {(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)}
    two = {(0, 2), (1, 3), (2, 4), (3, 0), (4, 1)}
    assert found["train"] == one | two
    assert found["test"] == {(b, a) for a, b in one}
    assert found["validation"] == {(b, a) for a, b in two}


@given(n=st.integers(FEWEST_NOUNS, 30))
def test_held_out_pairs_were_trained_in_the_other_order_only(n):
    pairs = reversed_pairs(n)
    found = sets(pairs)
    assert {split: len(s) for split, s in found.items()} == {split: len(t) for split, t in pairs.items()}
    assert not found["test"] & found["validation"]
    for split in ("test", "validation"):
        assert found[split]
        assert not found[split] & found["train"]
        assert {(b, a) for a, b in found[split]} <= found["train"]
    assert len(set().union(*found.values())) == n * (n - 1)


@given(n=st.integers(FEWEST_NOUNS, 30))
def test_no_split_favours_a_noun_in_a_slot(n):
    for table in reversed_pairs(n).values():
        first, second = (Counter(table[:, slot].tolist()) for slot in (0, 1))
        assert first == second
        assert len(first) == n
        assert len(set(first.values())) == 1


@given(half=st.integers(3, 15))
def test_categories_never_change_slots(half):
    found = sets(category_pairs(2 * half))
    assert len(set().union(*found.values())) == sum(map(len, found.values())) == half * half
    for pairs in found.values():
        assert all(a < half <= b for a, b in pairs)
        assert set(Counter(a for a, _ in pairs).values()) == set(Counter(b for _, b in pairs).values())


def test_a_sentence_by_hand():
    grammar = Grammar((WANT,), NOUNS)
    batch = grammar.sample(50, torch.tensor([[0, 1]]), [0], stream(0, "t"))
    expected = {}
    for cue, answer in (("sad", "ant"), ("old", "ant"), ("far", "bee"), ("dim", "bee")):
        expected[cue] = f"the ant saw bee ; too {cue} said the {answer} .".split()
    said = [grammar.vocabulary.decode(row) for row in batch.tokens]
    assert {tuple(s) for s in said} == {tuple(s) for s in expected.values()}
    assert {k: set(v.tolist()) for k, v in batch.positions.items()} == {
        "first": {1},
        "second": {3},
        "cue": {6},
        "answer": {8},
    }
    assert batch.scored.nonzero()[:, 1].unique().tolist() == [8]
    assert (batch.targets != IGNORE).sum() == 50
    assert [grammar.vocabulary.tokens[i] for i in batch.targets[batch.scored]] == [s[9] for s in said]


def test_lengths_differ_and_names_align():
    grammar = Grammar((WANT, LONG), NOUNS)
    batch = grammar.sample(200, reversed_pairs(5)["train"], [0, 1], stream(0, "t"))
    batch.check(len(grammar.vocabulary), "t")
    lengths = batch.mask.sum(1)
    assert set(lengths.tolist()) == {11, 16}
    assert grammar.n_ctx == 16
    assert ((batch.tokens == 0) == ~batch.mask).all()
    row = torch.arange(200)
    assert set(batch.positions["first"].tolist()) == {1}
    assert set(batch.positions["cue"].tolist()) == {6, 7}
    assert {grammar.vocabulary.tokens[i] for i in batch.tokens[row, batch.positions["answer"]]} == {"the"}
    cues = {grammar.vocabulary.tokens[i] for i in batch.tokens[row, batch.positions["cue"]]}
    assert cues == {"sad", "old", "far", "dim"}


def test_every_word_is_a_target_where_asked():
    grammar = Grammar((WANT, LONG), NOUNS, every_word=True)
    batch = grammar.sample(40, reversed_pairs(5)["train"], [0, 1], stream(0, "t"))
    batch.check(len(grammar.vocabulary), "t")
    assert ((batch.targets != IGNORE).sum(1) == batch.mask.sum(1) - 1).all()
    assert (batch.targets[:, :-1][batch.mask[:, 1:]] == batch.tokens[:, 1:][batch.mask[:, 1:]]).all()
    assert (batch.scored.sum(1) == 1).all()
    twin = grammar.swap_cue(batch)
    row, before = torch.arange(40), batch.positions["cue"] - 1
    assert torch.equal(twin.targets[row, before], twin.tokens[row, before + 1])


@pytest.mark.parametrize(
    ("situation", "nouns", "field", "why"),
    [
        (Situation("x", "the {first} saw {second} as the {answer}", ("a",), ("b",)), NOUNS, "template", "{cue} once"),
        (Situation("x", "{first} {second} {cue} {cue} the {answer}", ("a",), ("b",)), NOUNS, "template", "2 times"),
        (Situation("x", "{first} {second} {cue} {verb} {answer}", ("a",), ("b",)), NOUNS, "template", "{verb}"),
        (Situation("x", "{first} {second} the {answer} {cue}", ("a",), ("b",)), NOUNS, "template", "{answer} after"),
        (Situation("x", "{second} {first} {cue} the {answer}", ("a",), ("b",)), NOUNS, "template", "{first} before"),
        (Situation("x", "{first} cat {second} {cue} the {answer}", ("a",), ("b",)), NOUNS, "template", "cat"),
        (
            Situation("x", "{first} {second} {cue} the {answer}", ("a", "c"), ("b",)),
            NOUNS,
            "first and second",
            "2 and 1",
        ),
        (Situation("x", "{first} {second} {cue} the {answer}", (), ()), NOUNS, "first and second", "at least one"),
        (Situation("x", "{first} {second} {cue} the {answer}", ("cat",), ("b",)), NOUNS, "field first", "no nouns"),
        (Situation("x", "{first} {second} {cue} the {answer}", ("a",), ("a",)), NOUNS, "field second", "one role"),
        (Situation("x", "{first} {second} {cue} the {answer}", ("a", "a"), ("b", "c")), NOUNS, "first", "one partner"),
        (WANT, ("ant",), "the pool of nouns", "at least 5 nouns"),
        (WANT, (), "the pool of nouns", "got 0"),
        (WANT, (*NOUNS, "ant"), "the pool of nouns", "ant repeated"),
    ],
)
def test_bad_templates_name_the_file_and_the_field(situation, nouns, field, why):
    with pytest.raises(WorkbenchError) as caught:
        check((situation,), nouns, "my/tasks.py")
    text = str(caught.value)
    assert text.startswith("my/tasks.py: ")
    assert field in text
    assert why in text
    assert "\n" not in text
    if nouns is NOUNS:
        assert re.search(r"situation 'x'", text)


def test_a_cue_with_another_partner_elsewhere_is_refused():
    other = Situation("other", "{first} {second} {cue} the {answer}", ("old",), ("far",))
    with pytest.raises(WorkbenchError, match=r"'other', field first .*'old' with one role and one partner"):
        check((WANT, other), NOUNS, "f.py")
    check((WANT, LONG), NOUNS, "f.py")
