"""The logit attribution analysis on planted models: what it claims, where it chooses, what it leaves out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from analyses._definitions import MEANINGS
from analyses.logit_attribution import ANALYSIS, WORDS
from tests import hand_circuits, hand_models
from tests.asked_tasks import ASK, N_SYMBOLS, SYMBOLS, Choose, Recall, V
from tests.hand_circuits import OUTPUT
from tests.small_models import subject as random_subject
from workbench.analysis import Budget
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.findings import Claim, Curve, Finding, Heatmap, Notice, Table
from workbench.findings_json import from_json, to_json
from workbench.model.transformer import Transformer
from workbench.registry import load_task
from workbench.subject import Subject
from workbench.task import Batch

BUDGET = Budget(samples=64, selection_samples=32)
IDS = ("accuracy", "sums_up", "strongest_head", "last_block")
PRE = {"norm": "pre", "positions": "learned", "d_mlp": 12, "attention": "learned"}


def run(subject: Subject, budget: Budget = BUDGET) -> dict[str, Finding]:
    found = ANALYSIS.run(subject, budget, lambda stage: None)
    ids = [f.id for f in found]
    assert len(set(ids)) == len(ids)
    for finding in found:
        data = json.loads(json.dumps(to_json(finding), allow_nan=False))
        assert to_json(from_json(data)) == data
    return {id.removeprefix("logit_attribution."): f for id, f in zip(ids, found, strict=True)}


def claims(found: dict[str, Finding]) -> list[Claim]:
    return [f for f in found.values() if isinstance(f, Claim)]


def verdicts(found: dict[str, Finding]) -> list[str]:
    assert tuple(name for name, f in found.items() if isinstance(f, Claim)) == IDS
    return [claim.verdict for claim in claims(found)]


def louder(circuit: hand_circuits.PlantedCircuit, layer: int, gains: Sequence[float]) -> None:
    """The circuit's head of this layer writes each symbol with its own gain, so that sequences differ."""
    [head] = [h for h in circuit.circuit if h.layer == layer]
    with torch.no_grad():
        for symbol, gain in zip(SYMBOLS, gains, strict=True):
            circuit.model.blocks[layer].attn.W_O[head.head, symbol, OUTPUT.start + symbol] = gain


@pytest.fixture(scope="module")
def induction() -> dict[str, Finding]:
    task = load_task("repeated_tokens", {"n_ctx": 32, "d_vocab": 25, "period_min": 6, "period_max": 14})
    return run(hand_models.induction().subject(task))


def test_the_induction_head_is_found_and_everything_adds_up(induction) -> None:
    assert verdicts(induction) == ["supported"] * 4
    head = induction["strongest_head"]
    assert head.heads == ("L1.H0",)
    # It rests on the right key but for exp(-20) a key: gain x 1, minus that of one token in 25.
    assert head.value == pytest.approx(hand_models.GAIN * 24 / 25, abs=1e-3)
    assert head.low <= head.value <= head.high
    assert induction["sums_up"].value < 1e-12
    # Before that every ordinary token is alike, and the first of 24 is named.
    assert induction["last_block"].value == pytest.approx(1 / 24, abs=0.02)
    assert "the mean over the vocabulary" in head.reason
    assert "**L1.H0** writes towards the answer directly: 9.60 of 10.00" in induction["answer"].text


def test_the_table_lists_every_term_and_its_sum(induction) -> None:
    table = induction["terms"]
    names = [row["term"] for row in table.rows]
    layers = [f"L{layer}.{part}" for layer in range(2) for part in ("H0", "H1", "b_V", "b_O")]
    assert names == ["embed", "pos_embed", *layers, "sum"]
    values = [row["value"] for row in table.rows]
    assert sum(values[:-1]) == pytest.approx(values[-1])
    assert [names[i] for i in table.marked] == ["L1.H0", "sum"]
    meanings = [row["what"] for row in table.rows]
    assert meanings[2:6] == [
        *["L0: a head, without its value bias"] * 2,
        "L0: the value biases of all its heads",
        "L0: the attention's output bias",
    ]
    heads = induction["heads"]
    assert isinstance(heads, Heatmap)
    assert heads.marks == ((0, 1, 0),)
    assert heads.panels[0].values[1][0] == pytest.approx(values[names.index("L1.H0")])


def test_the_lens_rises_in_the_last_block(induction) -> None:
    curve = induction["lens_accuracy"]
    assert isinstance(curve, Curve)
    [line] = curve.series  # no final norm, so no other scale
    assert line.name == "no final norm"
    assert line.x == (0.0, 1.0, 2.0)
    assert line.y[0] == line.y[1] == induction["last_block"].value
    assert line.y[2] == 1
    assert line.low[2] < 1 == line.high[2]
    rows = induction["lens"].rows
    assert [row["stop"] for row in rows] == ["embed", "L0", "L1"]
    assert tuple(row["own_accuracy"] for row in rows) == line.y
    assert tuple(row["own_log_prob"] for row in rows) == pytest.approx(induction["lens_log_prob"].series[0].y)


def test_a_task_with_twins_is_judged_on_the_difference_to_the_twins_answer() -> None:
    """The reader writes symbol i with gain i + 2; the twin's answer gets nothing, the carrier writes nothing."""
    circuit = hand_circuits.through_values()
    louder(circuit, 1, [i + 2 for i in SYMBOLS])
    subject = circuit.subject()
    found = run(subject)
    answers = subject.sample(64, "test", "logit attribution").targets[:, ASK].float()
    assert verdicts(found) == ["supported"] * 4
    head = found["strongest_head"]
    assert head.heads == ("L1.H0",)
    assert head.value == pytest.approx(float(answers.mean()) + 2, abs=1e-6)
    assert "minus that of the other answer" in head.reason
    by_term = {row["term"]: row["value"] for row in found["terms"].rows}
    assert by_term["L0.H1"] == by_term["pos_embed"] == 0


def test_where_all_sequences_agree_no_interval_is_made_up() -> None:
    found = run(hand_circuits.through_values().subject())
    head = found["strongest_head"]
    assert (head.value, head.verdict) == (pytest.approx(hand_circuits.G), "inconclusive")
    assert head.low == -np.inf
    assert "all sequences agree" in head.reason


@dataclass(frozen=True)
class Shifting(Recall):
    """The validation split holds the first three symbols only, the test split the others."""

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        batch = super().sample(4 * n, split, stream)
        low = batch.targets[:, ASK] <= N_SYMBOLS // 2
        return batch[(low if split == "validation" else ~low).nonzero()[:n, 0]]


def test_the_head_is_chosen_on_validation_and_judged_on_test() -> None:
    """L0.H0 writes the first symbols loudly and takes the others away; L1.H1 writes those, and loudly enough."""
    circuit = hand_circuits.redundant_pair()
    louder(circuit, 0, [8, 8, 8, -1, -2, -3])
    louder(circuit, 1, [2, 2, 2, 9, 9, 10])
    found = run(Subject(circuit.model, circuit.task.vocabulary, Shifting()))
    head = found["strongest_head"]
    assert head.heads == ("L0.H0",)
    assert -3 < head.value < -1
    assert head.verdict == "contradicted"
    assert "does not write towards the answer directly" in found["answer"].text
    # L0.H0 writes before the last block, so its mistakes can be read there: never the answer.
    assert found["last_block"].verdict == "supported"


def test_an_answer_that_is_there_early_contradicts_the_last_block() -> None:
    circuit = hand_circuits.negative_head()
    louder(circuit, 0, [i + 8 for i in SYMBOLS])
    found = run(circuit.subject())
    assert found["last_block"].verdict == "contradicted"
    assert found["last_block"].value == 1
    assert "can be read from the residual stream before the last block" in found["answer"].text


def test_without_the_behaviour_nothing_is_said_about_heads() -> None:
    task = Choose()
    config = ModelConfig(d_vocab=V, n_ctx=task.n_ctx, n_heads=2, d_model=8)
    found = run(Subject(Transformer(config), task.vocabulary, task))
    assert verdicts(found) == ["contradicted", "supported", "not_applicable", "not_applicable"]
    assert "the behaviour is not there" in found["strongest_head"].reason
    assert found["strongest_head"].heads == ()
    assert "does not give the answers" in found["answer"].text
    assert isinstance(found["terms"], Table)


def test_a_post_norm_model_gets_the_lens_and_the_reason() -> None:
    found = run(random_subject({**PRE, "norm": "post"}))
    assert verdicts(found)[1:3] == ["not_applicable", "not_applicable"]
    assert found["sums_up"].reason == "a post-norm model's residual stream is not a sum of writes"
    assert isinstance(found["unfit"], Notice)
    assert {"heads", "terms", "no_frozen"} & set(found) == set()
    assert [row["stop"] for row in found["lens"].rows] == ["embed", "L0.mid", "L0", "L1.mid", "L1"]
    assert "a post-norm model" in found["answer"].text


def test_the_frozen_scale_stands_beside_the_own_one_and_is_left_out_for_time() -> None:
    found = run(random_subject(PRE))
    own, frozen = found["lens_log_prob"].series
    assert (own.name, frozen.name) == ("own scale", "final scale")
    assert own.y[-1] == pytest.approx(frozen.y[-1])
    assert own.y[0] != pytest.approx(frozen.y[0])
    assert found["lens"].rows[0]["final_log_prob"] == pytest.approx(frozen.y[0])
    assert "no_frozen" not in found
    late = run(random_subject(PRE), Budget(samples=64, selection_samples=32, seconds=0.0))
    assert [s.name for s in late["lens_log_prob"].series] == ["own scale"]
    assert late["no_frozen"].level == "warning"
    assert "final_log_prob" not in late["lens"].rows[0]


def test_it_needs_a_task_and_defines_its_words() -> None:
    circuit = hand_circuits.through_values()
    with pytest.raises(WorkbenchError, match="needs a task"):
        ANALYSIS.run(Subject(circuit.model, circuit.task.vocabulary), BUDGET, lambda stage: None)
    assert ANALYSIS.needs == ("task",)
    found = run(circuit.subject())
    assert [id.removeprefix("definition.") for id in found if id.startswith("definition.")] == list(WORDS)
    assert set(WORDS) <= set(MEANINGS)
