"""The identifiers task: lines read back by a parser of their own, what is scored, pools, floor, leaks, errors."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.identifiers import LETTERS, NAMES, TASK, Identifiers
from workbench.errors import WorkbenchError
from workbench.rng import stream
from workbench.task import IGNORE, SPLITS

MENTION = re.compile(r"(?P<letter>[A-Z])-(?P<digits>\d+)-(?P<name>[a-z]+);")


def text(task, tokens) -> str:
    """A line without its begin token; every token is one character, so places are positions minus one."""
    assert tokens[0] == task.vocabulary.bos
    return "".join(task.vocabulary.decode(tokens[1:]))


def mentions(line: str) -> list[re.Match[str]]:
    """The whole mentions of a line; only the last may be cut."""
    found = list(MENTION.finditer(line))
    assert found[0].start() == 0
    assert all(a.end() == b.start() for a, b in pairwise(found))
    return found


def foreseeable(line: str, digits: int) -> dict[int, str]:
    """By hand: place of each character that the line decides -> that character, in whole returning mentions."""
    named: dict[str, str] = {}
    answers = {}
    for m in mentions(line):
        identifier = f"{m['letter']}-{m['digits']}"
        if identifier in named:
            assert named[identifier] == m["name"]
            for j in range(digits):
                typed = identifier[: 2 + j]
                if sum(other.startswith(typed) for other in named) == 1:
                    answers[m.start() + 2 + j] = identifier[2 + j]
            answers[m.start("name")] = m["name"][0]
        named[identifier] = m["name"]
    return answers


@given(st.integers(2, 5), st.integers(2, 4), st.integers(0, 30), st.sampled_from(SPLITS), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_lines_read_back_and_scored_is_what_the_line_decides(entities, digits, more, split, seed):
    task = Identifiers(n_ctx=1 + entities * (digits + 9) + digits + 4 + more, entities=entities, digits=digits)
    batch = task.sample(4, split, stream(seed, "property"))
    batch.check(len(task.vocabulary), task.name)
    pool = set(map(tuple, task.pools[split].tolist()))
    for i in range(4):
        line = text(task, batch.tokens[i])
        assert len(line) == task.n_ctx - 1
        assert batch.targets[i].tolist() == [*batch.tokens[i, 1:].tolist(), IGNORE]
        whole = mentions(line)
        first = [(LETTERS.index(m["letter"]), *map(int, m["digits"])) for m in whole[:entities]]
        assert len(set(first)) == entities
        assert set(first) <= pool
        assert all(len({identifier[j] for identifier in first}) == entities for j in range(1, digits + 1))
        assert len({m["name"] for m in whole[:entities]}) == entities
        assert int(batch.positions["first_return"][i]) == whole[entities - 1].end() + 1
        # The query of the character at place c is position c: the begin token shifts by one, prediction back by one.
        scored = batch.scored[i].nonzero().flatten().tolist()
        expected = foreseeable(line, digits)
        end = whole[-1].end()
        assert [q for q in scored if q < end] == sorted(expected)
        assert all(line[q] == expected[q] for q in scored if q < end)
        assert len(scored) >= digits


def test_one_line_by_hand():
    """``B-123-fan;B-456-gate;B-123-...``: the letters coincide, so the first digit cannot be foreseen."""
    task = Identifiers(n_ctx=60, entities=2)
    batch = task.sample(400, "train", stream(0, "hand"))
    lines = [text(task, row) for row in batch.tokens]
    same = [i for i, line in enumerate(lines) if line[0] == mentions(line)[1]["letter"]]
    assert 20 < len(same) < 100  # one pair in eight shares its letter
    for i in same:
        start = int(batch.positions["first_return"][i])
        assert batch.scored[i, start : start + 7].tolist() == [False, False, True, True, False, True, False]
    other = next(i for i in range(400) if i not in same)
    start = int(batch.positions["first_return"][other])
    assert batch.scored[other, start : start + 7].tolist() == [False, True, True, True, False, True, False]


def test_the_key_masks_lead_to_the_answer_and_only_to_it():
    batch = TASK.sample(32, "test", stream(3, "oracle"))
    after, before = batch.key_masks["induction"], batch.key_masks["previous_occurrences"]
    for i, q in batch.scored.nonzero().tolist():
        keys = after[i, q].nonzero().flatten()
        assert len(keys) >= 1
        assert set(batch.tokens[i, keys].tolist()) == {int(batch.targets[i, q])}
        assert before[i, q].nonzero().flatten().tolist() == (keys - 1).tolist()
        # The same identifier up to here: as many characters back as it takes, they agree.
        length = len(MENTION.match(text(TASK, batch.tokens[i]))["digits"]) + 2
        start = max(p for p in range(q + 1) if text(TASK, batch.tokens[i])[p - 1] in LETTERS)
        assert q - start <= length
        for k in (keys - 1).tolist():
            assert torch.equal(batch.tokens[i, k - (q - start) : k + 1], batch.tokens[i, start : q + 1])
    assert not after[~batch.scored].any()
    assert not before[~batch.scored].any()


def test_the_pools_are_disjoint_and_hold_every_identifier():
    pools = {split: set(map(tuple, TASK.pools[split].tolist())) for split in SPLITS}
    assert {split: len(pool) for split, pool in pools.items()} == {"train": 6400, "validation": 800, "test": 800}
    assert len(set.union(*pools.values())) == 8 * 10**3
    drawn = {}
    for split in SPLITS:
        lines = [text(TASK, row) for row in TASK.sample(200, split, stream(0, "pools")).tokens]
        drawn[split] = {f"{m['letter']}-{m['digits']}" for line in lines for m in mentions(line)}
    assert not drawn["train"] & drawn["test"]
    assert not drawn["train"] & drawn["validation"]
    assert not drawn["validation"] & drawn["test"]


@pytest.mark.parametrize("task", [TASK, Identifiers(n_ctx=120, entities=5, digits=2)])
def test_copying_from_any_entity_reaches_the_floor_exactly(task):
    """Tried out: for every scored place, the character that each entity of the line has there; one in E is right."""
    batch = task.sample(40, "test", stream(1, "floor"))
    for i in range(40):
        line = text(task, batch.tokens[i])
        first = mentions(line)[: task.entities]
        for q in batch.scored[i].nonzero().flatten().tolist():
            start = max(p for p in range(q) if line[p] in LETTERS)
            place = q - start
            guesses = [m["name"][0] if place == task.digits + 3 else line[m.start() + place] for m in first]
            assert guesses.count(line[q]) / task.entities == pytest.approx(task.floor().accuracy)


def test_neither_habit_nor_the_last_characters_predict_what_is_scored():
    """Counted on the training split, tried on the test split: the last three characters and the last mention."""
    train, test = (TASK.sample(n, split, stream(2, split)) for n, split in ((1500, "train"), (500, "test")))
    counts = torch.zeros(*[len(TASK.vocabulary)] * 4)

    def places(batch):
        rows, at = batch.scored.nonzero(as_tuple=True)
        return [batch.tokens[rows, at - back] for back in (2, 1, 0)], batch.targets[rows, at], rows, at

    last, answer, _, _ = places(train)
    counts.index_put_((*last, answer), torch.ones(len(answer)), accumulate=True)
    last, answer, rows, at = places(test)
    assert (counts[tuple(last)].argmax(dim=-1) == answer).float().mean() < TASK.floor().accuracy
    # Copying from one fixed distance, the best of all of them.
    best = max((test.tokens[rows, (at + 1 - d).clamp(min=0)] == answer).float().mean() for d in range(1, 80))
    assert best < TASK.floor().accuracy


def test_names_are_told_apart_by_their_first_letter():
    assert len({name[0] for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_ctx": 43}, r"too short for an identifier to come back: expected at least 44 for 3 entities of 3 digits"),
        ({"entities": 1}, r"task.entities cannot be used: expected 2 to 5"),
        ({"entities": 6, "n_ctx": 400}, r"task.entities cannot be used"),
        ({"digits": 1}, r"task.digits cannot be used: expected 2 to 4"),
        ({"digits": 5}, r"task.digits cannot be used"),
    ],
)
def test_impossible_options_are_one_clear_error(options, message):
    with pytest.raises(WorkbenchError, match=message):
        Identifiers(**options)


def test_the_most_entities_fit_and_unknown_splits_do_not():
    batch = Identifiers(n_ctx=100, entities=5, digits=2).sample(8, "test", stream(0, "most"))
    assert (batch.scored.sum(dim=1) > 0).all()
    with pytest.raises(WorkbenchError, match="train or validation or test"):
        TASK.sample(1, "tset", stream(0, "x"))
