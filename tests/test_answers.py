"""What a served model answers, beside bare hooks and the library's own measurements; and what it refuses to answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests import small_models
from tests.live_reference import hooked
from workbench import live
from workbench.app import answers as answers_module
from workbench.app import samples as samples_module
from workbench.app.answers import Answers
from workbench.app.questions import FIELDS, Question, Unreadable, read
from workbench.errors import WorkbenchError
from workbench.measure import measure
from workbench.reference import build_reference
from workbench.statistics import mean_intervals
from workbench.subject import Subject
from workbench.task import IGNORE, Batch

WAYS = ("zero", "mean", "resample")
PARTS = ("L0.H0", "L0.H1", "L1.H0", "L1.H1")
NOTHING: dict[str, Any] = {"states": {}, "frozen": False, "at": []}


def lines(answers: Answers, kind: str, draw: int = 0, **fields: Any) -> list[dict[str, Any]]:
    with torch.no_grad():
        return [line for line in answers.lines(Question(7, kind, draw, fields)) if line is not None]


def result(answers: Answers, kind: str, draw: int = 0, **fields: Any) -> dict[str, Any]:
    found = lines(answers, kind, draw, **fields)
    assert all(line["id"] == 7 for line in found)
    assert all("progress" in line for line in found[:-1])
    return json.loads(json.dumps(found[-1], allow_nan=False))["result"]


def array(packed: Mapping[str, str], *shape: int) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(packed["f32"]), "<f4").copy()).reshape(shape)


def sequence(tokens: Sequence[int], donor: int | None = None, **more: Any) -> dict[str, Any]:
    return {"tokens": list(tokens), "mask": None, "places": {}, "donor": donor, **more}


def change(states: Mapping[str, str], frozen: bool = False, at: Sequence[int | str] = ()) -> dict[str, Any]:
    return {"states": dict(states), "frozen": frozen, "at": list(at)}


@pytest.fixture(scope="module")
def subject() -> Subject:
    return small_models.subject({"d_mlp": 12, "positions": "learned", "norm": "pre"}, padded=False)


@pytest.fixture(scope="module")
def answers(subject: Subject) -> Answers:
    return Answers(subject, 16)


changes = st.builds(
    change,
    st.dictionaries(st.sampled_from([*PARTS, "L0.mlp", "L1.mlp"]), st.sampled_from(WAYS), max_size=5),
    st.booleans(),
    st.lists(st.integers(0, 2), unique=True, max_size=2),
)


@settings(max_examples=20, deadline=None)
@given(
    made=changes,
    tokens=st.lists(st.integers(0, 6), min_size=3, max_size=6),
    donor=st.integers(0, 15),
    head=st.sampled_from(PARTS),
)
def test_a_sequence_is_what_bare_hooks_give(
    answers: Answers, made: dict[str, Any], tokens: list[int], donor: int, head: str
) -> None:
    t, model = len(tokens), answers.subject.model
    material = live.material(answers.subject, n=16)
    rows = torch.stack([torch.tensor(tokens), material.batch.tokens[donor, :t]])
    pair = Batch(rows, torch.ones_like(rows, dtype=torch.bool), torch.full_like(rows, IGNORE), rows < 0)
    whole = material.reference
    short = replace(
        whole, filled=whole.filled[:t], mean_z=tuple(m[:t] for m in whole.mean_z),
        mean_mlp=tuple(m[:t] for m in whole.mean_mlp),
    )  # fmt: skip
    found = result(answers, "sequence", sequence=sequence(tokens, donor), head=head, change=made)
    expected = {"before": hooked(model, pair, NOTHING)[0], "after": hooked(model, pair, made, short, [1, 0])[0]}
    for when, logits in expected.items():
        assert torch.allclose(array(found["logits"][when], t, 7), logits, atol=1e-5)
    layer, index = int(head[1]), int(head[4])
    before = answers.subject.patterns(rows[:1])[0, layer, index]
    assert np.allclose(array(found["pattern"]["before"], t, t), before, atol=1e-6)
    after = array(found["pattern"]["after"], t, t)
    assert torch.allclose(after.sum(1), torch.ones(t), atol=1e-5)
    earliest = min((int(part[1]) for part in made["states"]), default=9)
    if made["frozen"] or layer <= earliest:
        assert np.allclose(after, before, atol=1e-6)


def test_a_pattern_above_a_changed_part_changes(answers: Answers) -> None:
    states = {"L0.H0": "zero", "L0.H1": "zero", "L0.mlp": "zero"}
    found = result(answers, "sequence", sequence=sequence([1, 2, 3, 4]), head="L1.H0", change=change(states))
    assert (array(found["pattern"]["after"], 4, 4) - array(found["pattern"]["before"], 4, 4)).abs().max() > 1e-3


@settings(max_examples=20, deadline=None)
@given(made=changes)
def test_the_score_is_the_librarys(answers: Answers, made: dict[str, Any]) -> None:
    material = live.material(answers.subject, n=16)
    intervention = live.intervention(made, material)
    found = result(answers, "score", change=made)
    if intervention is None:
        assert found["before"] == found["after"]
        return
    [effect] = measure(answers.subject, material.batch, [intervention])
    for side, values in (("before", effect.clean), ("after", effect.ablated)):
        for name, row, bounds in (("accuracy", values[0], (0, 1)), ("loss", values[1], None)):
            low, high = mean_intervals(row, bounds=bounds)
            expected = {"value": row.mean(), "low": float(low), "high": float(high)}
            assert found[side][name] == pytest.approx(expected, abs=1e-5)
    assert (found["done"], found["total"]) == (16, 16)


def test_work_comes_in_pieces_that_report(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_module, "PIECE_TOKENS", 18)  # 3 sequences of 6
    monkeypatch.setattr(answers_module, "REPORT_SECONDS", -1)
    made, whole = change({"L0.H0": "mean", "L1.mlp": "resample"}), Answers(subject, 16)
    steps = list(whole.lines(Question(1, "score", 0, {"change": made})))
    assert [step["progress"]["done"] for step in steps if step and "progress" in step] == [3, 6, 9, 12, 15]
    assert steps[-1] is not None
    assert steps[-1]["result"]["after"] == result(Answers(subject, 16), "score", change=made)["after"]
    monkeypatch.setattr(answers_module, "REPORT_SECONDS", 60)
    assert list(whole.lines(Question(1, "score", 0, {"change": made}))) == [None] * 6 + [steps[-1]]


def test_a_larger_model_works_in_smaller_pieces(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    given = live.material(subject, 0, 16)
    assert samples_module.Samples(given).size == 1024 // 6
    monkeypatch.setattr(samples_module, "PIECE_WORK", 12 * live.parameters(subject))
    assert list(samples_module.Samples(given).starts) == list(range(0, 16, 2))
    monkeypatch.setattr(samples_module, "PIECE_WORK", 1)
    assert samples_module.Samples(given).size == 1


def test_what_is_not_kept_is_computed_again(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    made = change({"L0.H0": "resample"})
    kept = result(Answers(subject, 16), "score", change=made)
    monkeypatch.setattr(samples_module, "KEPT_BYTES", 0)
    forgets = Answers(subject, 16)
    assert [result(forgets, "score", change=made) for _ in range(2)] == [kept, kept]


def test_near_ties_are_counted() -> None:
    made = small_models.subject({"d_mlp": 0, "positions": "none", "norm": "none"}, padded=False)
    with torch.no_grad():
        made.model.unembed.W_U.zero_()
    found = result(Answers(made, 4), "score", change=NOTHING)
    assert found["ties"] == 4 * 5
    assert found["after"]["loss"]["value"] == pytest.approx(np.log(7), abs=1e-6)


def test_what_is_not_finite_is_null() -> None:
    made = small_models.subject({"d_mlp": 0, "positions": "none", "norm": "none"}, padded=False)
    with torch.no_grad():
        made.model.unembed.W_U.fill_(float("nan"))
    assert result(Answers(made, 4), "score", change=NOTHING)["before"]["loss"] == dict.fromkeys(
        ["value", "low", "high"]
    )
    with pytest.raises(WorkbenchError, match="logits are not finite"):
        lines(Answers(made, 4), "agreement")


def test_the_ways_to_an_answer_agree_and_a_disagreement_shows(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers(subject, 8)
    found = result(answers, "agreement")
    assert found["passes"] == 4
    assert found["difference"] < 1e-5
    right = Answers._restarted
    monkeypatch.setattr(Answers, "_restarted", lambda self, part, change: right(self, part, change) + 0.25)
    assert result(answers, "agreement")["difference"] == pytest.approx(0.25, abs=1e-4)


def test_another_draw_has_its_own_samples(subject: Subject) -> None:
    answers = Answers(subject, 8)
    found = result(answers, "draw", 3)["samples"]
    assert found == json.loads(json.dumps(live.samples(live.material(subject, 3, 8))))
    first, third = (result(answers, "score", draw, change=NOTHING) for draw in (0, 3))
    assert first["before"] != third["before"]
    assert result(answers, "score", change=NOTHING) == first
    for draw in range(4, 9):
        result(answers, "score", draw, change=NOTHING)
        result(answers, "sequence", draw, sequence=sequence([draw - 3]), head="L0.H0", change=NOTHING)
    assert len(answers._draws) == answers_module.KEPT_DRAWS
    assert len(answers._looks) == answers_module.KEPT_LOOKS


def test_padded_sequences_are_scored_and_not_resampled() -> None:
    answers = Answers(small_models.subject({"d_mlp": 12}, padded=True), 8)
    assert result(answers, "score", change=change({"L0.H0": "mean"}))["total"] == 8
    for kind, fields in (("score", {}), ("sequence", {"sequence": sequence([1, 2], 0), "head": "L0.H0"})):
        with pytest.raises(WorkbenchError, match="unknown state 'resample'"):
            lines(answers, kind, change=change({"L0.H0": "resample"}), **fields)


GOOD = {"sequence": sequence([1, 2, 3]), "head": "L0.H0", "change": NOTHING}
BAD = [
    ({"sequence": sequence([])}, "expected 1 to 6 tokens, got 0"),
    ({"sequence": sequence([1] * 7)}, "expected 1 to 6 tokens, got 7"),
    ({"sequence": sequence([1, 7])}, "outside the vocabulary: expected ids from 0 to 6, got 7"),
    ({"sequence": sequence([-1])}, "outside the vocabulary"),
    ({"sequence": sequence([True])}, "outside the vocabulary"),
    ({"sequence": sequence([1.5])}, "outside the vocabulary"),
    ({"sequence": sequence(["/etc/passwd"])}, "outside the vocabulary"),
    ({"sequence": "/etc/passwd"}, "sequence cannot be used: expected an object"),
    ({"sequence": {**sequence([1]), "file": "/etc/passwd"}}, "sequence has no field 'file'"),
    ({"sequence": {"tokens": "12"}}, "the sequence cannot be used"),
    ({"sequence": sequence([1, 2], mask=[1])}, "mask cannot be used"),
    ({"sequence": sequence([1, 2], mask=[0, 0])}, "mask cannot be used"),
    ({"sequence": sequence([1, 2], mask=[1, 2])}, "mask cannot be used"),
    ({"sequence": sequence([1, 2], places={"cue": 2})}, "places cannot be used: expected positions from 0 to 1"),
    ({"sequence": sequence([1, 2], donor=16)}, "paired sequence does not exist: expected 0 to 15, got 16"),
    ({"head": "L0.H2"}, "unknown head 'L0.H2'"),
    ({"head": "../../etc/passwd"}, "unknown head '../../etc/passwd'"),
    ({"head": None}, "unknown head"),
    ({"change": []}, "change cannot be used"),
    ({"change": {"states": ["L0.H0"]}}, "states cannot be used"),
    ({"change": change({"L0.H7": "zero"})}, "unknown part 'L0.H7'. Did you mean L0.H1"),
    ({"change": change({"L0": "zero"})}, "unknown part 'L0'"),
    ({"change": change({"L0.H0": "median"})}, "unknown state 'median'"),
    ({"change": change({"L0.H0": "resample"})}, "paired with no other one of its length. Use zero or mean"),
    ({"change": change({"L0.H0": "zero"}, at=[3])}, "a position does not exist: expected 0 to 2, got 3"),
    ({"change": change({"L0.H0": "zero"}, at=[-1])}, "a position does not exist"),
    ({"change": change({"L0.H0": "zero"}, at=["cue"])}, "unknown position 'cue'"),
    ({"change": change({"L0.H0": "zero"}, at=[[0]])}, "positions cannot be used"),
    ({"change": {**NOTHING, "frozen": 1}}, "frozen cannot be used: expected true or false, got 1"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[message for _, message in BAD])
def test_what_cannot_be_is_said(answers: Answers, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkbenchError) as caught:
        lines(answers, "sequence", **{**GOOD, **fields})
    assert message in str(caught.value)
    assert small_models.hooks_left(answers.subject.model) == 0
    assert lines(answers, "sequence", **GOOD)


def test_a_named_place_is_where_the_question_says(answers: Answers) -> None:
    at = [result(answers, "sequence", sequence=sequence([1, 2, 3], places={"cue": 1}), head="L0.H0",
                 change=change({"L0.H0": "zero"}, at=[place])) for place in ("cue", 1)]  # fmt: skip
    assert at[0] == at[1]


def test_a_mean_where_there_is_none_is_refused(subject: Subject) -> None:
    answers = Answers(subject, 8)
    reference = build_reference(subject)
    short = replace(reference, filled=torch.arange(6) < 4)
    samples = answers._samples(0)
    samples.given = replace(samples.given, reference=short)
    fields = {"head": "L0.H0", "change": change({"L0.H0": "mean"})}
    assert result(answers, "sequence", sequence=sequence([1, 2, 3, 4]), **fields)
    with pytest.raises(WorkbenchError, match="expected a mean at every position in use, got none at position 4"):
        lines(answers, "sequence", sequence=sequence([1, 2, 3, 4, 5]), **fields)


def test_a_change_that_reaches_no_token_is_an_error() -> None:
    subject = small_models.subject({"d_mlp": 0}, padded=True)
    answers = Answers(subject, 4)
    tokens = live.material(subject, 0, 4).batch.mask.sum(1)
    assert int(tokens.max()) < 6, "the drawn sequences reach the last position: draw others"
    with pytest.raises(WorkbenchError, match="never took place"):
        lines(answers, "score", change=change({"L0.H0": "zero"}, at=[5]))


UNREADABLE = [
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"\xff\xfe{}", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b"[]", "not a question: expected one JSON object, got list"),
    (b"{}", "no kind that is known: expected load, agreement, sequence, score, draw, got None"),
    (b'{"id": 1, "kind": "shell"}', "got 'shell'"),
    (b'{"id": 1, "kind": ["load"]}', "no kind that is known"),
    (b'{"kind": "load"}', "no id"),
    (b'{"id": "1", "kind": "load"}', "no id"),
    (b'{"id": true, "kind": "load"}', "no id"),
    (b'{"id": 1, "kind": "load", "run": "/etc/passwd"}', "load has no field 'run'"),
    (b'{"id": 1, "kind": "score"}', "score lacks its field 'change'"),
    (b'{"id": 1, "kind": "draw", "draw": -1}', "draw cannot be used"),
    (b'{"id": 1, "kind": "draw", "draw": 1e99}', "draw cannot be used"),
    (b'{"id": 1, "kind": "draw", "draw": "' + b"x" * 1000 + b'"}', "..."),
]


@pytest.mark.parametrize(("body", "message"), UNREADABLE, ids=[message for _, message in UNREADABLE])
def test_what_is_no_question_is_said(body: bytes, message: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(body)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_question_is_read() -> None:
    asked = {"id": 3, "kind": "score", "draw": 2, "change": NOTHING}
    assert read(json.dumps(asked).encode()) == Question(3, "score", 2, {"change": NOTHING})


def test_every_kind_has_an_answer() -> None:
    assert all(hasattr(Answers, f"_{kind}") for kind in FIELDS)
