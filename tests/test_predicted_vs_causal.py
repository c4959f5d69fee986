"""Predictions beside effects: planted heads have the numbers of the paper, and contradictions are marked."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analyses._definitions import MEANINGS
from analyses._predicted_rules import EFFECT, change
from analyses._rank_agreement import agreement
from analyses.predicted_vs_causal import ANALYSIS, WORDS
from tests import hand_circuits, hand_models, small_models
from tests.asked_tasks import Choose, V
from workbench.analysis import Budget
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.findings import Claim, Finding
from workbench.findings_json import from_json, to_json
from workbench.model.transformer import Transformer
from workbench.registry import load_task
from workbench.statistics import Interval
from workbench.subject import Subject
from workbench.task import Ceiling, Floor

BUDGET = Budget(samples=128, selection_samples=32)
IDS = ("ov", "attention", "direct")
NAMES = [make.__name__ for make in hand_circuits.CIRCUITS]


def run(subject: Subject, budget: Budget = BUDGET) -> dict[str, Finding]:
    found = ANALYSIS.run(subject, budget, lambda stage: None)
    ids = [f.id for f in found]
    assert len(set(ids)) == len(ids)
    for finding in found:
        data = json.loads(json.dumps(to_json(finding), allow_nan=False))
        assert to_json(from_json(data)) == data
    return {id.removeprefix("predicted_vs_causal."): f for id, f in zip(ids, found, strict=True)}


def rows(found: dict[str, Finding]) -> dict[str, dict]:
    return {row["head"]: row for row in found["heads"].rows}


def marks(found: dict[str, Finding], kind: str = "contradiction") -> dict[str, list[str]]:
    said: dict[str, list[str]] = {row["head"]: [] for row in found["heads"].rows}
    for row in found["marks"].rows if "marks" in found else ():
        if row["kind"] == kind:
            assert row["mark"] in rows(found)[row["head"]]["marks"].split(", ")
            said[row["head"]].append(row["what"])
    return said


def verdicts(found: dict[str, Finding]) -> list[str]:
    assert tuple(name for name, f in found.items() if isinstance(f, Claim)) == IDS
    return [found[name].verdict for name in IDS]


@pytest.mark.parametrize("make", hand_circuits.CIRCUITS, ids=NAMES)
def test_the_table_holds_the_numbers_of_the_paper(make: Callable[[], hand_circuits.PlantedCircuit]) -> None:
    circuit = make()
    table = rows(run(circuit.subject()))
    assert list(table) == ["L0.H0", "L0.H1", "L1.H0", "L1.H1"]
    for head in circuit.circuit:
        row = table[str(head)]
        assert row["direct"] == pytest.approx(circuit.direct[head], abs=1e-5)
        for way, papers in (("zero", circuit.zeroed), ("frozen", circuit.frozen)):
            assert row[way] == pytest.approx(papers[(head,)].accuracy - circuit.clean.accuracy)
            assert row[f"{way}_low"] <= row[way] <= row[f"{way}_high"]
            assert row[f"{way}_low"] < row[f"{way}_high"]
    for name in {"L0.H0", "L0.H1", "L1.H0", "L1.H1"} - {str(head) for head in circuit.circuit}:
        row = table[name]
        assert [row[key] for key in ("ov", "direct", "zero", "mean", "resample", "frozen")] == [0] * 6
        assert row["loss"] == pytest.approx(0, abs=1e-6)
        assert row["marks"] == ""


SELF_REPAIR = "self-repair: zeroing it does nothing unless patterns are held"
# Another sequence's symbol is as loud as the other head's, so that it wins half the time; a mean is not.
RESAMPLED = "ablations disagree: zero none, mean none, resample hurts"
MARKS = {
    hand_circuits.redundant_pair: {
        "L0.H0": ["predicted (OV, direct write), no effect", RESAMPLED],
        "L1.H1": ["predicted (OV, direct write), no effect", RESAMPLED],
    },
    hand_circuits.backup: {
        "L0.H0": [SELF_REPAIR, "ablations disagree: zero none, mean hurts, resample hurts"],
        "L1.H0": ["predicted (OV), no effect"],
    },
    hand_circuits.negative_head: {
        "L0.H0": [],
        "L1.H0": ["predicted (OV, direct write against the answer), no effect"],
    },
    hand_circuits.through_values: {"L0.H1": ["an effect that nothing predicts"], "L1.H0": []},
}


@pytest.mark.parametrize("make", MARKS, ids=[make.__name__ for make in MARKS])
def test_contradictions_are_marked(make: Callable[[], hand_circuits.PlantedCircuit]) -> None:
    found = run(make().subject())
    said = marks(found)
    assert {name: those for name, those in said.items() if those} == {k: v for k, v in MARKS[make].items() if v}
    assert {found["heads"].rows[i]["head"] for i in found["heads"].marked} == {k for k, v in said.items() if v}
    for name, those in said.items():
        assert (f"**{name}**" in found["answer"].text) == bool(those)


def test_the_negative_head_is_better_gone_in_the_loss() -> None:
    """Its accuracy cannot rise above 1, but the loss falls: at the mean it takes g / 6 from every symbol alike."""
    g = hand_circuits.G
    table = rows(run(hand_circuits.negative_head().subject(), Budget(samples=512, selection_samples=32)))
    clean = hand_circuits.Paper(g).loss
    gone = np.log(np.exp(2 * g - g / 6) + 5 * np.exp(-g / 6) + np.e + 3) - (2 * g - g / 6)
    assert table["L1.H0"]["loss"] == pytest.approx(gone - clean, abs=5e-3)
    assert table["L0.H0"]["loss"] > 1


def test_a_head_that_acts_through_patterns_is_remarked_and_no_contradiction() -> None:
    task = load_task("repeated_tokens", {"n_ctx": 32, "d_vocab": 25, "period_min": 6, "period_max": 14})
    found = run(hand_models.induction().subject(task), Budget(samples=96, selection_samples=32))
    table = rows(found)
    assert table["L0.H0"]["marks"] == "via patterns"
    assert marks(found, "remark")["L0.H0"] == ["acts through later patterns alone"]
    assert table["L1.H0"]["marks"] == ""
    assert found["heads"].marked == ()
    assert "For none of the 4 heads" in found["answer"].text
    assert table["L0.H0"]["previous"] > 5
    assert table["L1.H0"]["match"] > 5
    assert table["L0.H1"]["previous"] == pytest.approx(1, abs=1e-4)  # uniform attention is chance
    assert verdicts(found)[1] == "supported"


def test_a_prediction_that_ranks_heads_otherwise_is_contradicted() -> None:
    found = run(hand_circuits.backup().subject())
    assert found["direct"].verdict == "supported"
    assert found["direct"].value == pytest.approx(1)
    assert found["attention"].verdict == "contradicted"
    # OV puts main and backup first alike, ablation main alone: ranks (3.5, 1.5, 3.5, 1.5) and (4, 2, 2, 2).
    assert found["ov"].value == pytest.approx(1 / 3**0.5)
    assert found["ov"].verdict == "inconclusive"
    by = {row["prediction"]: row for row in found["agreement"].rows}
    assert by["OV eigenvalue copying"]["mean_rho"] == found["ov"].value
    assert by["OV eigenvalue copying"]["zero_rho"] is None  # zeroing any one head changes nothing: all tie


# What is left out


class Easy(small_models.Random):
    """A random model's accuracy is a behaviour here, so that any model has one."""

    n_ctx = 4

    def floor(self) -> Floor:
        return Floor(0.0, "nothing")

    def ceiling(self) -> Ceiling:
        return Ceiling(0.0, 0.05)

    def sample(self, n: int, split: str, stream: object) -> object:
        batch = super().sample(n, split, stream)
        keep = batch.targets[:, :4].clone()
        keep[:, 3] = -100
        return type(batch)(batch.tokens[:, :4], batch.mask[:, :4], keep, keep != -100)


def easy(**options: object) -> Subject:
    task = Easy(padded=False)
    config = ModelConfig(d_vocab=7, n_ctx=4, d_model=8, d_head=4, **{"n_layers": 2, "n_heads": 2, **options})
    return Subject(Transformer(config, 1), task.vocabulary, task)


def test_what_cannot_be_computed_is_left_out_with_the_reason() -> None:
    found = run(easy(norm="post"))
    assert "no varying periods fit" in found["left_out"].text
    assert "a post-norm model's residual stream is not a sum of writes" in found["left_out"].text
    keys = {column.key for column in found["heads"].columns}
    assert {"ov", "zero", "mean", "resample", "frozen"} <= keys
    assert not keys & {"previous", "match", "direct"}
    assert verdicts(found)[1:] == ["not_applicable"] * 2
    assert "no varying periods fit" in found["attention"].reason
    assert verdicts(found)[0] != "not_applicable"


def test_padded_sequences_are_not_resampled() -> None:
    task = small_models.Random()
    shape = {"norm": "pre", "positions": "learned", "d_mlp": 0, "attention": "learned"}
    found = run(Subject(small_models.model(shape), task.vocabulary, task))
    assert "resample" not in {column.key for column in found["heads"].columns}
    assert "Padded sequences are not resampled" in found["heads"].caption


def test_the_order_of_two_heads_says_nothing() -> None:
    found = run(easy(n_heads=1))
    assert verdicts(found) == ["not_applicable"] * 3
    assert found["ov"].reason == "the order of 2 heads says nothing"


def test_without_the_behaviour_nothing_is_claimed() -> None:
    task = Choose()
    config = ModelConfig(d_vocab=V, n_ctx=task.n_ctx, n_heads=2, d_model=8)
    found = run(Subject(Transformer(config), task.vocabulary, task))
    assert verdicts(found) == ["not_applicable"] * 3
    assert "the behaviour is not there" in found["direct"].reason
    assert "does not show the behaviour" in found["answer"].text


def test_it_needs_a_task_and_defines_its_words() -> None:
    circuit = hand_circuits.through_values()
    with pytest.raises(WorkbenchError, match="needs a task"):
        ANALYSIS.run(Subject(circuit.model, circuit.task.vocabulary), BUDGET, lambda stage: None)
    assert ANALYSIS.needs == ("task",)
    assert set(WORDS) <= set(MEANINGS)


# Rules and ranks


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (-0.9, -0.06, "hurts"),
        (0.06, 0.2, "helps"),
        (-0.04, 0.04, "none"),
        (-0.06, 0.0, "unclear"),
        (-EFFECT, 0.0, "unclear"),
    ],
)
def test_changes_by_hand(low: float, high: float, word: str) -> None:
    assert change(Interval((low + high) / 2, low, high, 100)) == word


def test_agreement_by_hand() -> None:
    """Ranks 1 2 3 4 5 against 2 1 4 3 5: squared differences sum to 4; two of ten pairs are swapped."""
    found = agreement(np.array([[1.0, 2, 3, 4, 5]]), np.tile([20.0, 10, 40, 30, 50], (6, 1)))
    assert found is not None
    assert found.spearman.value == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert found.kendall.value == pytest.approx((8 - 2) / 10)
    # All sequences alike: one swap of neighbours to either side.
    assert found.spearman.low == pytest.approx(0.8 - 0.1)
    assert found.kendall.high == pytest.approx(0.6 + 0.2)
    assert found.spearman.n == 6


values = st.lists(st.integers(-3, 3), min_size=6, max_size=6)


@given(values, values)
def test_agreement_is_that_of_the_reference(x: list[int], y: list[int]) -> None:
    found = agreement(np.array([x], dtype=float), np.tile(np.array(y, dtype=float), (4, 1)))
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert found is None
        return
    assert found is not None
    assert found.spearman.value == pytest.approx(stats.spearmanr(x, y).statistic)
    assert found.kendall.value == pytest.approx(stats.kendalltau(x, y).statistic)
    for at in (found.spearman, found.kendall):
        assert -1 <= at.low <= at.value <= at.high <= 1
        assert at.low < at.high


def test_an_order_that_scatters_has_a_wide_interval() -> None:
    noise = np.random.default_rng(0).normal(size=(40, 6))
    order = np.arange(6.0)
    sure = agreement(order[None], order + 0.1 * noise)
    unsure = agreement(order[None], order + 20 * noise)
    assert sure is not None
    assert unsure is not None
    assert sure.spearman.low > 0.9
    assert unsure.spearman.high - unsure.spearman.low > 0.5


def test_few_heads_and_rounding_have_no_order() -> None:
    assert agreement(np.array([[1.0, 2, 3]]), np.ones((4, 3)) * [1, 2, 3]) is None
    assert agreement(np.array([[1.0, 2, 3, 4]]), 1e-8 * np.arange(16.0).reshape(4, 4)) is None
