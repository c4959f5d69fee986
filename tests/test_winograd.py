from __future__ import annotations

import itertools
import sys
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks._templates import Situation
from tasks.winograd import TASK, Winograd
from workbench.errors import WorkbenchError
from workbench.registry import load_task
from workbench.rng import stream
from workbench.task import SPLITS

NAMES = [s.name for s in Winograd.SITUATIONS]
VARIANTS = [
    {},
    {"nouns": "by_category"},
    {"situations": "all"},
    {"situations": "all", "held_out": "lifting"},
    {"situations": "entering"},
    {"loss": "every_word"},
]


def words(task: Winograd, batch, slot: str) -> list[str]:
    place = batch.positions[slot] + (slot == "answer")
    return task.vocabulary.decode(batch.tokens[torch.arange(len(batch)), place])


def draw(task: Winograd, split: str, n: int = 4000):
    return task.sample(n, split, stream(3, "test of winograd", split))


def test_the_first_sentence_word_by_word():
    batch = TASK.sample(500, "train", stream(0, "sentence"))
    named = [words(TASK, batch, slot) for slot in ("first", "second", "cue", "answer")]
    for row, a, b, cue, answer in zip(batch.tokens, *named, strict=True):
        said = f"the {a} did not cross the {b} because it was too {cue} , so the {answer} waited ."
        assert " ".join(TASK.vocabulary.decode(row)) == said
    assert batch.positions["answer"].tolist() == [14] * 500  # fifteen visible words, the last of them "the"
    assert TASK.n_ctx == 18
    assert len(TASK.vocabulary) == 37


def test_six_situations_of_four_and_four_cues_and_sixteen_nouns():
    assert len(NAMES) == 6
    assert all(len(s.first) == len(s.second) == 4 for s in Winograd.SITUATIONS)
    assert len({*Winograd.BEINGS, *Winograd.PLACES}) == 16
    verbs = [set(s.fixed) for s in Winograd.SITUATIONS]
    assert all(a - b and b - a for a, b in itertools.combinations(verbs, 2))


@pytest.mark.parametrize("name", NAMES)
def test_a_held_out_situations_cues_are_known_from_the_others(name):
    held = next(s for s in Winograd.SITUATIONS if s.name == name)
    others = [s for s in Winograd.SITUATIONS if s.name != name]
    assert set(held.first) <= {w for s in others for w in s.first}
    assert set(held.second) <= {w for s in others for w in s.second}


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("split", SPLITS)
def test_the_cue_decides_and_nothing_else(options, split):
    task = load_task("winograd", options)
    batch = draw(task, split, 600)
    batch.check(len(task.vocabulary), "winograd")
    role = {w: "first" for s in task.SITUATIONS for w in s.first} | {
        w: "second" for s in task.SITUATIONS for w in s.second
    }
    named = {slot: words(task, batch, slot) for slot in ("first", "second", "cue", "answer")}
    for i, cue in enumerate(named["cue"]):
        assert named["answer"][i] == named[role[cue]][i]
    target = task.vocabulary.decode(batch.targets[batch.scored])
    assert target == named["answer"]


@pytest.mark.parametrize("options", VARIANTS)
def test_splits_are_disjoint_as_sentences_and_as_ordered_pairs(options):
    task = load_task("winograd", options)
    sentences, pairs = {}, {}
    for split in SPLITS:
        batch = draw(task, split)
        sentences[split] = {tuple(row) for row in batch.tokens.tolist()}
        pairs[split] = set(zip(words(task, batch, "first"), words(task, batch, "second"), strict=True))
    for a, b in itertools.combinations(SPLITS, 2):
        assert not sentences[a] & sentences[b]
        assert not pairs[a] & pairs[b]
    if task.nouns == "pool":
        for split in ("validation", "test"):
            assert {(b, a) for a, b in pairs[split]} <= pairs["train"]
    else:
        assert all(a in task.BEINGS and b in task.PLACES for found in pairs.values() for a, b in found)


@pytest.mark.parametrize("split", SPLITS)
def test_no_marginal_tells(split):
    """Every cue goes with every noun in either slot, and every noun is the answer as often as not."""
    batch = draw(TASK, split, 12000)
    cues, nouns = Counter(words(TASK, batch, "cue")), {*TASK.BEINGS, *TASK.PLACES}
    assert len(cues) == 8
    assert max(cues.values()) < 1.15 * min(cues.values())
    for slot in ("first", "second"):
        together = Counter(zip(words(TASK, batch, "cue"), words(TASK, batch, slot), strict=True))
        assert {noun for _, noun in together} == nouns
        assert len(together) == 8 * 16
        assert max(together.values()) < 2.5 * min(together.values())
    right = Counter(words(TASK, batch, "answer"))
    present = Counter(words(TASK, batch, "first")) + Counter(words(TASK, batch, "second"))
    assert all(0.42 < right[noun] / present[noun] < 0.58 for noun in nouns)
    first = [a == b for a, b in zip(words(TASK, batch, "answer"), words(TASK, batch, "first"), strict=True)]
    assert 0.48 < sum(first) / len(first) < 0.52


@settings(max_examples=25, deadline=None)
@given(options=st.sampled_from(VARIANTS), split=st.sampled_from(SPLITS), seed=st.integers(0, 10_000))
def test_twins_change_what_they_say_and_undo_themselves(options, split, seed):
    task = load_task("winograd", options)
    batch = task.sample(8, split, stream(seed, "twins"))
    row = torch.arange(8)
    for twin_of, changed in (
        (task.counterfactual, ("cue",)),
        (task.swap_nouns, ("first", "second")),
    ):
        twin = twin_of(batch)
        twin.check(len(task.vocabulary), "winograd")
        differ = torch.zeros_like(batch.mask)
        for slot in changed:
            differ[row, batch.positions[slot]] = True
        differ[row, batch.positions["answer"] + 1] = True
        assert torch.equal(twin.tokens != batch.tokens, differ)
        both = {(a, b) for a, b in zip(words(task, batch, "answer"), words(task, twin, "answer"), strict=True)}
        assert all(a != b for a, b in both)
        nouns = [{a, b} for a, b in zip(words(task, batch, "first"), words(task, batch, "second"), strict=True)]
        assert [set(p) for p in zip(words(task, batch, "answer"), words(task, twin, "answer"), strict=True)] == nouns
        back = twin_of(twin)
        assert torch.equal(back.tokens, batch.tokens)
        assert torch.equal(back.targets, batch.targets)


def test_a_held_out_situation_is_never_trained_on():
    task = load_task("winograd", {"situations": "all", "held_out": "lifting"})
    lift = task.vocabulary.encode(["lift"])[0]
    share = {split: (draw(task, split, 300).tokens == lift).any(1).float().mean().item() for split in SPLITS}
    assert share == {"train": 0.0, "validation": 1.0, "test": 1.0}


def test_floor_and_ceiling():
    assert TASK.floor().accuracy == 0.5
    assert (TASK.ceiling().loss, TASK.ceiling().accuracy) == (0.0, 1.0)
    assert load_task("winograd", {"loss": "every_word"}).ceiling() is None
    assert TASK.roles == {"cue": ("cue",), "candidates": ("first", "second")}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"situations": "crosing"}, "crossing"),
        ({"held_out": "lifing", "situations": "all"}, "lifting"),
        ({"held_out": "lifting"}, "situations=all"),
        ({"nouns": "by_kind"}, "by_category"),
        ({"loss": "all"}, "every_word"),
    ],
)
def test_impossible_options(options, text):
    with pytest.raises(WorkbenchError, match=text):
        load_task("winograd", options)


def test_an_unknown_split_is_an_error():
    with pytest.raises(WorkbenchError, match="unknown split"):
        TASK.sample(2, "dev", stream(0, "x"))


def test_templates_of_ones_own_name_their_own_file():
    @dataclass(frozen=True)
    class Mine(Winograd):
        situations: str = "mine"
        SITUATIONS: ClassVar = (Situation("mine", "{first} {second} {cue} so the {answer}", ("a",), ("b",)),)

    assert Mine().sample(3, "test", stream(0, "x")).tokens.shape == (3, 6)

    @dataclass(frozen=True)
    class Broken(Mine):
        SITUATIONS: ClassVar = (Situation("mine", "{first} {second} so the {answer}", ("a",), ("b",)),)

    @dataclass(frozen=True)
    class Poor(Mine):
        BEINGS: ClassVar = ("cat",)
        PLACES: ClassVar = ()

    for kind, field in ((Broken, "situation 'mine', field template"), (Poor, "the pool of nouns")):
        with pytest.raises(WorkbenchError) as caught:
            kind()
        assert str(caught.value).startswith(f"{sys.modules[__name__].__file__}: {field}")
