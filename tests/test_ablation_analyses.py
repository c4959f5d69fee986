"""Head ablation and pairwise ablation on planted models: what they say is what was planted."""

from __future__ import annotations

import math
from functools import partial

import pytest

from analyses import head_ablation, pairwise_ablation
from tasks.repeated_tokens import RepeatedTokens
from tests import hand_circuits, hand_models
from tests.small_models import subject as small_subject
from workbench.analysis import Budget
from workbench.components import Head
from workbench.config import ModelConfig
from workbench.findings import Answer, Claim, Heatmap, Notice, Table
from workbench.model.transformer import Transformer
from workbench.subject import Subject

TASK = RepeatedTokens(n_ctx=32, d_vocab=25, period_min=6, period_max=14)
BUDGET = Budget(samples=192, selection_samples=48)


def run(analysis, subject):
    found = analysis.ANALYSIS.run(subject, BUDGET, lambda stage: None)
    claims = {f.id.rpartition(".")[2]: f for f in found if isinstance(f, Claim)}
    return found, claims, next(f for f in found if isinstance(f, Answer)).text


def one_head() -> Subject:
    shape = ModelConfig(d_vocab=TASK.d_vocab, n_ctx=TASK.n_ctx, n_layers=1, n_heads=1, d_model=8)
    return Subject(Transformer(shape), TASK.vocabulary, TASK)


heads, pairs = partial(run, head_ablation), partial(run, pairwise_ablation)


def test_planted_induction_each_head_matters_and_the_rest_is_idle():
    found, claims, text = heads(hand_models.induction().subject(TASK))
    assert claims["some_part"].verdict == "supported"
    assert claims["some_part"].heads[0] in ("L0.H0", "L1.H0")
    assert claims["some_part"].high < -0.5
    assert claims["idle"].verdict == "supported"
    assert claims["idle"].heads == ("L0.H1", "L1.H1")
    assert claims["idle"].value == 0.0
    assert claims["idle"].low < 0 < claims["idle"].high  # an interval, though no sequence differs
    assert "**L0.H0**, **L1.H0** each cost" in text
    table = next(f for f in found if isinstance(f, Table))
    assert [row["part"] for row in table.rows] == ["L0.H0", "L0.H1", "L1.H0", "L1.H1"]
    assert table.marked == (0, 2)
    assert all(row["fired"] == "192/192" for row in table.rows)
    heatmap = next(f for f in found if isinstance(f, Heatmap))
    assert [panel.title for panel in heatmap.panels] == ["zero", "mean", "resample", "zero, frozen"]
    # A previous-token head acts through patterns alone: frozen, its removal shows nothing.
    assert heatmap.panels[3].values[0][0] == pytest.approx(0.0, abs=1e-5)
    assert heatmap.panels[0].values[0][0] > 1.0


def test_redundant_heads_are_missed_alone_and_the_claim_that_the_rest_is_idle_is_contradicted():
    circuit = hand_circuits.redundant_pair()
    _, claims, text = heads(circuit.subject())
    assert claims["some_part"].verdict == "contradicted"
    assert claims["idle"].verdict == "contradicted"
    assert claims["idle"].value < -0.3
    assert "single removals miss them" in text
    _, claims, text = pairs(circuit.subject())
    assert claims["redundant"].verdict == "supported"
    assert set(claims["redundant"].heads) == {str(h) for h in circuit.roles.values()}
    assert claims["redundant"].high < -0.3
    assert str(claims["redundant"].heads[1]) in claims["redundant"].semantics
    assert "is missed by single removals" in text


def test_heads_in_series_are_overstated_by_their_sum():
    found, claims, text = pairs(hand_models.induction().subject(TASK))
    assert claims["redundant"].verdict == "contradicted"
    assert text.startswith("No pair does")
    heatmap = next(f for f in found if isinstance(f, Heatmap))
    [beyond] = (panel.values for panel in heatmap.panels)
    assert math.isnan(beyond[0][0])
    assert beyond[0][2] == beyond[2][0] > 0.5
    assert len(next(f for f in found if isinstance(f, Table)).rows) == 6


def test_a_model_without_the_behaviour_gets_no_verdict():
    subject = hand_models.inert().subject(TASK)
    for analyse in (heads, pairs):
        _, claims, text = analyse(subject)
        assert {claim.verdict for claim in claims.values()} == {"not_applicable"}
        assert all("the behaviour is not there" in claim.reason for claim in claims.values())
        assert text.startswith("Not applicable")


def test_mlps_are_parts_and_are_not_paired():
    subject = small_subject({"d_mlp": 12})
    found, _, _ = heads(subject)
    parts = [row["part"] for row in next(f for f in found if isinstance(f, Table)).rows]
    assert [part for part in parts if part.endswith("mlp")] == ["L0.mlp", "L1.mlp"]
    found, _, _ = pairs(subject)
    assert all("mlp" not in label for f in found if isinstance(f, Heatmap) for label in f.row_labels)


def test_many_heads_are_cut_to_those_that_do_most(monkeypatch):
    monkeypatch.setattr(pairwise_ablation, "MOST_HEADS", 3)
    found, _, _ = pairs(hand_models.induction().subject(TASK))
    heatmap = next(f for f in found if isinstance(f, Heatmap))
    assert {"L0.H0", "L1.H0"} < set(heatmap.row_labels)
    assert len(heatmap.row_labels) == 3
    left = {"L0.H1", "L1.H1"} - set(heatmap.row_labels)
    assert next(f for f in found if isinstance(f, Notice)).text.endswith(f": {left.pop()}.")


def test_one_head_has_no_pairs():
    planted = one_head()
    assert planted.heads == (Head(0, 0),)
    [notice] = pairwise_ablation.ANALYSIS.run(planted, BUDGET, lambda stage: None)
    assert isinstance(notice, Notice)
