"""The two patching analyses on planted circuits: what they find, what they refuse to say, how they can be wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from analyses._definitions import MEANINGS
from analyses._twins import draw
from analyses.activation_patching import ANALYSIS as ACTIVATION
from analyses.activation_patching import WORDS
from analyses.path_patching import ANALYSIS as PATHS
from tests import hand_circuits
from tests import small_models as small
from tests.asked_tasks import ASK, SYMBOLS, Choose, V
from tests.hand_circuits import MEMORY, OUTPUT, G, S, _copy, _look
from tests.test_logit_attribution import Shifting, louder
from workbench.analysis import Analysis, Budget
from workbench.components import Head
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.findings import Claim, Finding, Heatmap, Notice, Table
from workbench.findings_json import from_json, to_json
from workbench.model.transformer import Transformer
from workbench.registry import load_task
from workbench.subject import Subject

BUDGET = Budget(samples=64, selection_samples=32)


def run(analysis: Analysis, subject: Subject) -> dict[str, Finding]:
    """By the last part of the id; every run survives JSON and leaves no hook."""
    findings = analysis.run(subject, BUDGET, lambda stage: None)
    for finding in findings:
        data = json.loads(json.dumps(to_json(finding), allow_nan=False))
        assert to_json(from_json(data)) == data
    assert small.hooks_left(subject.model) == 0
    found = {f.id.rpartition(".")[2] if "patching." in f.id else f.id: f for f in findings}
    assert len(found) == len(findings)
    return found


def verdicts(found: dict[str, Finding]) -> dict[str, str]:
    return {name: f.verdict for name, f in found.items() if isinstance(f, Claim)}


def table(found: dict[str, Finding], name: str) -> list[dict[str, object]]:
    at = found[name]
    assert isinstance(at, Table)
    return [dict(row) for row in at.rows]


@pytest.fixture(scope="module")
def queries() -> dict[str, Finding]:
    """The director steers the reader's query; symbols are written with different gains, so that sequences differ."""
    circuit = hand_circuits.through_queries()
    louder(circuit, 1, [i + 3 for i in SYMBOLS])
    return run(ACTIVATION, circuit.subject())


def test_the_reader_brings_the_answer_and_the_gradient_misses_the_director(queries) -> None:
    assert verdicts(queries) == {"crosses": "supported", "one_head": "supported", "approximation": "contradicted"}
    crosses, head, approximation = (queries[name] for name in ("crosses", "one_head", "approximation"))
    # The director brings the cue to "?" in L0: that alone decides, so the answer is there when L1 is entered.
    assert crosses.statement == "What decides the answer reaches the position “ask” in L0"
    assert (crosses.value, crosses.threshold) == (pytest.approx(1), 0.5)
    assert head.value == pytest.approx(1)
    assert approximation.value == pytest.approx(3**-0.5)
    assert "cannot stand in for patching" in queries["answer"].text
    rows = {row["head"]: row for row in table(queries, "table")}
    assert rows["L0.H1"]["restored"] == rows["L0.H1"]["lost"] == pytest.approx(1)
    assert rows["L0.H1"]["approximated"] == pytest.approx(0, abs=1e-6)
    assert rows["L0.H1"]["disagreement"] == pytest.approx(-1)
    assert rows["L0.H1"]["disagreement_high"] < -0.8
    assert (rows["L1.H0"]["approximated"], rows["L1.H0"]["place"]) == (pytest.approx(1), "ask")
    assert queries["table"].marked == (1,)


def test_the_maps_hold_what_the_table_holds(queries) -> None:
    stream, heads = queries["residual"], queries["heads"]
    assert isinstance(stream, Heatmap)
    assert stream.row_labels == ("into L0", "into L1", "out")
    assert stream.column_labels == ("bos", "a", "b", "cue", "ask")
    for panel in stream.panels:
        assert np.array(panel.values) == pytest.approx(
            np.array([[0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1]]), abs=1e-5
        )
    assert isinstance(heads, Heatmap)
    rows = table(queries, "table")
    for panel, key in zip(heads.panels, ("restored", "lost", "approximated"), strict=True):
        assert np.array(panel.values).ravel() == pytest.approx([row[key] for row in rows], abs=1e-6)
        assert np.array(panel.low).ravel() == pytest.approx([row[f"{key}_low"] for row in rows], abs=1e-6)
    [(_, *marked)] = heads.marks
    assert str(Head(*marked)) == queries["one_head"].heads[0]
    text = queries["checks"].text
    assert "bitwise; the whole residual stream patched gives the other pass's logits (bitwise)" in text
    # 2 x 15 places of the stream, 4 heads at 5 places and everywhere, 4 noised everywhere; 64 sequences.
    assert f"{(30 + 24 + 4) * 64:,} of {(30 + 24 + 4) * 64:,} sequences" in text


def test_two_that_share_the_work_contradict_one_head_and_one_layer() -> None:
    """On validation symbols L0.H0 writes nearly all; on test symbols hardly any: the claims are judged there."""
    circuit = hand_circuits.redundant_pair()
    louder(circuit, 0, [9, 9, 9, 1, 1, 1])
    louder(circuit, 1, [1, 1, 1, 9, 9, 9])
    subject = Subject(circuit.model, circuit.task.vocabulary, Shifting())
    found = run(ACTIVATION, subject)
    # Test symbols 4, 5, 6 with twins 3, 6, 5: L0.H0 takes (9 + 1, 1 + 1, 1 + 1) of 20 each.
    share = draw(subject, subject.task, 64, "test", "activation patching").batch.targets[:, ASK]
    expected = float(torch.where(share == 4, 10.0, 2.0).mean()) / 20
    assert found["one_head"].heads == ("L0.H0",)
    assert found["one_head"].value == found["crosses"].value == pytest.approx(expected, abs=1e-5)
    assert verdicts(found)["one_head"] == verdicts(found)["crosses"] == "contradicted"
    assert found["crosses"].statement.endswith("in L0")
    assert "No single layer brings the answer" in found["answer"].text
    assert verdicts(found)["approximation"] == "supported"  # everything is linear here
    assert found["table"].marked == ()


def test_where_all_sequences_agree_a_rank_has_no_bound() -> None:
    found = run(ACTIVATION, hand_circuits.through_queries().subject())
    claim = found["approximation"]
    assert (claim.low, claim.high, claim.verdict) == (-1, 1, "inconclusive")
    assert "nothing bounds it" in claim.reason
    unseen = 1 - 0.025 ** (1 / 64)
    assert found["one_head"].low == pytest.approx(1 - unseen)


def test_without_the_behaviour_nothing_is_claimed() -> None:
    task = Choose()
    subject = Subject(Transformer(ModelConfig(d_vocab=V, n_ctx=5, n_heads=2, d_model=8)), task.vocabulary, task)
    for analysis in (ACTIVATION, PATHS):
        found = run(analysis, subject)
        assert set(verdicts(found).values()) == {"not_applicable"}
        assert all("the behaviour is not there" in f.reason for f in found.values() if isinstance(f, Claim))
        assert "Nothing is said about" in found["answer"].text


@pytest.mark.parametrize(
    ("make", "kind", "word"),
    [(hand_circuits.through_values, "V", "values"), (hand_circuits.through_queries, "Q", "queries")],
)
def test_the_planted_path_is_found_and_no_other(make, kind, word) -> None:
    found = run(PATHS, make().subject())
    assert verdicts(found) == {"strongest_path": "supported", "one_input": "supported"}
    claim = found["strongest_path"]
    assert claim.statement == f"L0.H1 acts on L1.H0 through its {word}"
    assert (claim.value, claim.heads) == (pytest.approx(1), ("L0.H1", "L1.H0"))
    assert found["one_input"].value == pytest.approx(0, abs=1e-6)
    rows = table(found, "strongest")
    assert (rows[0]["sender"], rows[0]["receiver"], rows[0]["input"], rows[0]["fired"]) == (
        *("L0.H1", "L1.H0", kind), "64/64",
    )  # fmt: skip
    assert [row["restored"] for row in rows[1:]] == pytest.approx([0] * 5, abs=1e-6)
    paths = found["paths"]
    assert isinstance(paths, Heatmap)
    assert (paths.row_labels, paths.column_labels) == (("L0.H0", "L0.H1"), ("L1.H0 Q", "L1.H0 K", "L1.H0 V"))
    for panel in paths.panels:
        expected = np.zeros((2, 3))
        expected[1, "QKV".index(kind)] = 1
        assert np.array(panel.values) == pytest.approx(expected, abs=1e-6)
    assert paths.marks == ((0, 1, "QKV".index(kind)),)
    assert found["strongest"].marked == (0,)


def test_a_path_that_test_sequences_do_not_take_is_contradicted() -> None:
    """On validation symbols the carrier hands everything to the reader; test symbols L0.H0 writes itself."""
    circuit = hand_circuits.through_values()
    model, direct = circuit.model, Head(0, 0)
    with torch.no_grad():
        for symbol in (4, 5, 6):
            model.blocks[0].attn.W_O[1, symbol, MEMORY.start + symbol] = 0.0
    _look(model, direct, ASK, 1)
    _copy(model, direct, slice(0, V), OUTPUT, G, ids=(4, 5, 6))
    found = run(PATHS, Subject(model, circuit.task.vocabulary, Shifting()))
    claim = found["strongest_path"]
    # Only the symbol 4, whose twin 3 is carried, gets half of its way on that path.
    assert claim.statement == "L0.H1 acts on L1.H0 through its values"
    assert 0.1 < claim.value < 0.25
    assert claim.verdict == "contradicted"
    assert "No single path carries a quarter" in found["answer"].text


def test_a_head_that_acts_through_two_inputs_contradicts_the_one() -> None:
    """The carrier notes the symbol at "?" too, where the reader's query asks for its token, which it says 3 times.

    The symbol's place says 7/2 (its token, and half a note of the carrier, which looks evenly from there), the note 1;
    half the weight on either: 9/4. Another query than the token's: all on the note, 1. Other notes: the place says 3
    for its own symbol and 1/2 for the other, the note 1 for the other: 3/2 - 3/4. From -9/4: 5/4 and 3/2 of 9/2.
    """
    circuit = hand_circuits.through_values()
    _look(circuit.model, Head(0, 1), ASK, 1)
    attn = circuit.model.blocks[1].attn
    with torch.no_grad():
        for symbol in SYMBOLS:
            attn.W_Q[0, MEMORY.start + symbol, symbol] = S
            attn.W_K[0, symbol, symbol] = 1.0
            attn.W_V[0, symbol, symbol] = 3.0
    found = run(PATHS, circuit.subject())
    assert {row["input"]: row["restored"] for row in table(found, "strongest")[:2]} == {
        "Q": pytest.approx(5 / 18, abs=1e-5),
        "V": pytest.approx(1 / 3, abs=1e-5),
    }
    assert verdicts(found)["one_input"] == "contradicted"
    assert "Another input of that head takes 0.28 from it as well" in found["answer"].text


def test_no_head_to_hand_anything_to() -> None:
    found = run(PATHS, hand_circuits.backup().subject())
    assert found["none"].text == "No path was looked at: no head above L0 carries 0.1 of the answer by itself."
    assert set(verdicts(found).values()) == {"not_applicable"}
    for shape, reason in (({"norm": "post"}, "not a sum of writes"), ({"n_layers": 1}, "one layer")):
        task = Choose()
        model = Transformer(ModelConfig(**{"d_vocab": V, "n_ctx": 5, "n_heads": 2, "d_model": 8, **shape}))
        [notice] = PATHS.run(Subject(model, task.vocabulary, task), BUDGET, lambda stage: None)
        assert isinstance(notice, Notice)
        assert reason in notice.text


def test_one_layer_of_heads_gets_its_activations_patched() -> None:
    task = load_task("winograd", {"situations": "crossing"})
    model = Transformer(ModelConfig(d_vocab=len(task.vocabulary), n_ctx=task.n_ctx, n_layers=1, n_heads=1, d_model=8))
    found = run(ACTIVATION, Subject(model, task.vocabulary, task))
    assert found["residual"].column_labels == ("first", "second", "cue", "answer")
    assert set(verdicts(found).values()) == {"not_applicable"}


def test_they_need_a_task_with_twins_and_define_their_words() -> None:
    circuit = hand_circuits.through_values()
    for analysis in (ACTIVATION, PATHS):
        assert analysis.needs == ("task", "counterfactual")
        with pytest.raises(WorkbenchError, match="needs a task"):
            analysis.run(Subject(circuit.model, circuit.task.vocabulary), BUDGET, lambda stage: None)
    assert set(WORDS) <= set(MEANINGS)
    repeated = load_task("repeated_tokens", {"n_ctx": 24, "d_vocab": 17, "period_min": 4, "period_max": 8})
    other = Subject(Transformer(ModelConfig(d_vocab=17, n_ctx=24, d_model=8)), repeated.vocabulary, repeated)
    with pytest.raises(WorkbenchError, match="needs a task with a counterfactual"):
        draw(other, repeated, 8, "test", "twins")
