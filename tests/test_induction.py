"""The induction analysis on planted models: it names exactly what was planted, and its claims come out as they must."""

from __future__ import annotations

import json

import pytest

from analyses._induction_claims import combined
from analyses.induction import ANALYSIS
from tasks.repeated_tokens import RepeatedTokens
from tests import hand_models
from workbench.analysis import Budget
from workbench.components import head_names
from workbench.findings import Answer, Attention, Claim, Heatmap, Table

VARYING = RepeatedTokens(n_ctx=32, d_vocab=25, period_min=6, period_max=14)
FIXED = RepeatedTokens(n_ctx=32, d_vocab=25, period="fixed", period_min=12, period_max=14)
IDS = [
    "loss_vs_ceiling",
    "previous_token_heads",
    "induction_heads",
    "necessary_previous_token",
    "necessary_induction",
    "sufficient",
    "k_path",
    "sharing",
]
SET_CLAIMS = ("necessary_previous_token", "necessary_induction", "sufficient", "k_path", "sharing")


def analyse(planted: hand_models.Planted, task: RepeatedTokens):
    findings = ANALYSIS.run(planted.subject(task), Budget(samples=128, selection_samples=64), lambda stage: None)
    claims = {f.id.removeprefix("induction."): f for f in findings if isinstance(f, Claim)}
    tables = {f.id.removeprefix("induction."): f for f in findings if isinstance(f, Table)}
    return findings, claims, tables


@pytest.fixture(scope="module")
def planted():
    model = hand_models.induction()
    return model, *analyse(model, VARYING)


@pytest.fixture(scope="module")
def split():
    model = hand_models.split_induction()
    return model, *analyse(model, VARYING)


@pytest.fixture(scope="module")
def impostor():
    model = hand_models.positional_impostor()
    return model, *analyse(model, FIXED)


@pytest.fixture(scope="module")
def inert():
    model = hand_models.inert()
    return model, *analyse(model, VARYING)


@pytest.mark.parametrize("which", ["planted", "split"])
def test_planted_circuits_are_named_exactly_and_every_claim_is_supported(which, request):
    model, findings, claims, _ = request.getfixturevalue(which)
    assert list(claims) == IDS
    assert {id: c.verdict for id, c in claims.items()} == dict.fromkeys(IDS, "supported")
    assert claims["previous_token_heads"].heads == tuple(map(str, model.previous_token))
    assert claims["induction_heads"].heads == tuple(map(str, model.induction))
    assert claims["sufficient"].heads == tuple(map(str, (*model.previous_token, *model.induction)))
    answer = next(f for f in findings if isinstance(f, Answer))
    assert answer.text.startswith("Yes. **L0.H0**")
    assert "positional" not in answer.text


def test_sharing_is_one_and_two(planted, split):
    for (_, _, claims, tables), number in ((planted, 1.0), (split, 2.0)):
        assert claims["sharing"].value == pytest.approx(number, abs=1e-6)
        assert claims["sharing"].threshold is None
        assert [row["effective_number"] for row in tables["shares"].rows] == pytest.approx([number] * 2, abs=1e-6)


def test_planted_effects_are_numbers_worked_out_by_hand(planted):
    _, _, claims, tables = planted
    rows = {row["removed"]: row for row in tables["ablations"].rows}
    # Without the induction head nothing is written: the prediction is uniform, and its arg-max is always id 1.
    assert rows["L1.H0"]["zero"] < -0.9
    assert rows["L0.H0"]["zero"] < -0.9
    # The previous-token head acts through patterns alone; the induction head through what it writes alone.
    assert rows["L0.H0"]["frozen"] == 0
    assert rows["L1.H0"]["frozen"] == pytest.approx(rows["L1.H0"]["mean"], abs=1e-9)
    for inert_head in ("L0.H1", "L1.H1"):
        assert [rows[inert_head][how] for how in ("zero", "mean", "resample", "frozen")] == [0, 0, 0, 0]
        assert rows[inert_head]["p_corrected"] == 1
        assert rows[inert_head]["zero_low"] < 0 < rows[inert_head]["zero_high"]
    assert all(row["fired"] == "128/128" for row in rows.values())
    assert rows["all but S0 and S1"]["mean"] == 0
    paths = {row["path"]: row["effect"] for row in tables["paths"].rows}
    assert paths["Q cut"] == 0
    assert paths["V cut"] == 0
    assert paths["K cut"] < -0.9
    assert claims["k_path"].value == pytest.approx(1 + paths["K cut"])


def test_redundant_heads_cost_nothing_alone_and_everything_together(split):
    rows = {row["removed"]: row for row in split[3]["ablations"].rows}
    assert [rows[f"L{layer}.H{h}"]["mean"] for layer in (0, 1) for h in (0, 1)] == pytest.approx([0] * 4, abs=0.01)
    assert rows["all of S0"]["mean"] < -0.9
    assert rows["all of S1"]["mean"] < -0.9


def test_impostor_is_flagged_and_its_accuracy_is_no_evidence(impostor):
    model, findings, claims, tables = impostor
    assert claims["induction_heads"].verdict == "contradicted"
    assert claims["induction_heads"].heads == ()
    assert {claims[id].verdict for id in SET_CLAIMS} == {"not_applicable"}
    assert all(claims[id].reason for id in SET_CLAIMS)
    flagged = {row["head"] for row in tables["heads"].rows if row["positional"]}
    assert flagged == set(map(str, model.stripes))
    answer = next(f for f in findings if isinstance(f, Answer))
    assert answer.text.startswith("No.")
    assert "right at 100.0 %" in answer.text
    assert "only copy from a fixed distance" in answer.text


def test_inert_heads_bear_no_claim(inert):
    _, _, claims, tables = inert
    assert claims["loss_vs_ceiling"].verdict == "contradicted"
    assert claims["induction_heads"].verdict == "contradicted"
    assert {claims[id].verdict for id in SET_CLAIMS} == {"not_applicable"}
    assert not any(row["positional"] for row in tables["heads"].rows)


def test_not_applicable_where_the_two_sets_are_the_whole_model():
    # One head a layer: cut the inert ones out of the planted model.
    full = hand_models.induction()
    config = full.model.config
    small = type(full.model)(type(config)(**{**vars(config), "n_heads": 1}))
    weights = {
        name: value[:1] if ".attn." in name and not name.endswith("b_O") else value
        for name, value in full.model.state_dict().items()
    }
    small.load_state_dict(weights)
    _, claims, _ = analyse(hand_models.Planted(small, full.vocabulary), VARYING)
    assert claims["sufficient"].verdict == "not_applicable"
    assert "nothing is left out" in claims["sufficient"].reason
    assert claims["necessary_induction"].verdict == "supported"


def test_claims_carry_the_contract_fields(planted):
    public = planted[2]["necessary_induction"].public()
    keys = (
        "id statement heads value unit low high samples n semantics threshold direction verdict reason".split()  # noqa: SIM905
    )
    assert list(public) == keys
    assert "mean over 512 train sequences of repeated_tokens" in public["semantics"]
    assert public["samples"] == "sequences"
    assert public["n"] == 128
    json.dumps(public, allow_nan=False)


def test_the_page_gets_its_figures(planted):
    findings = planted[1]
    heatmaps = {f.id for f in findings if isinstance(f, Heatmap)}
    assert heatmaps == {
        f"induction.{n}" for n in ("head_scores", "single_effects", "ov_circuit", "qk_circuit", "composition")
    }
    attention = [f for f in findings if isinstance(f, Attention)]
    assert len(attention) == 2
    assert attention[0].names == ("L0.H0", "L0.H1", "L1.H0", "L1.H1")
    chosen = next(f for f in findings if f.id == "induction.head_scores").marks
    assert chosen == ((0, 0, 0), (2, 1, 0))
    assert head_names(planted[0].induction) == "L1.H0"


def test_conjunctions():
    assert combined(["supported", "supported"]) == "supported"
    assert combined(["supported", "inconclusive"]) == "inconclusive"
    assert combined(["inconclusive", "contradicted"]) == "contradicted"
