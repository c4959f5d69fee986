"""The induction analysis on planted models: it names exactly what was planted, and its claims come out as they must."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from analyses._induction_answer import answer
from analyses._induction_claims import claims as make_claims
from analyses._induction_claims import combined
from analyses._induction_study import Study, conduct
from analyses.induction import ANALYSIS
from tasks.repeated_tokens import RepeatedTokens
from tests import hand_models
from tests.small_models import subject
from workbench.analysis import Budget
from workbench.components import part_names
from workbench.findings import Answer, Attention, Claim, Heatmap, Table
from workbench.findings_json import public
from workbench.head_scores import KEYS, impostor_check
from workbench.model.transformer import Transformer
from workbench.probes import probe_periods
from workbench.subject import Subject
from workbench.task import Batch, Floor, Task, Vocabulary

VARYING = RepeatedTokens(n_ctx=32, d_vocab=25, period_min=6, period_max=14)
FIXED = RepeatedTokens(n_ctx=32, d_vocab=25, period="fixed", period_min=12, period_max=14)


@dataclass(frozen=True)
class OwnLines(Task):
    """The same sequences, of a task that names the induction keys and does not say that it repeats blocks."""

    n_ctx: int = VARYING.n_ctx

    @property
    def vocabulary(self) -> Vocabulary:
        return VARYING.vocabulary

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        return VARYING.sample(n, split, stream)

    def floor(self) -> Floor:
        return VARYING.floor()


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


def analyse(planted: hand_models.Planted, task: Task):
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
    assert rows["L1.H0"]["frozen"] == rows["L1.H0"]["zero"]
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
    assert "right at 100.0\u00a0%" in answer.text
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
    shown = public(planted[2]["necessary_induction"])
    keys = [
        "id",
        "statement",
        "heads",
        "value",
        "unit",
        "low",
        "high",
        "samples",
        "n",
        "semantics",
        "threshold",
        "direction",
        "verdict",
        "reason",
    ]
    assert list(shown) == keys
    assert "mean over 512 train sequences of repeated_tokens" in shown["semantics"]
    assert shown["samples"] == "sequences"
    assert shown["n"] == 128
    json.dumps(shown, allow_nan=False)


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
    assert part_names(planted[0].induction) == "L1.H0"


def test_conjunctions():
    assert combined(["supported", "supported"]) == "supported"
    assert combined(["supported", "inconclusive"]) == "inconclusive"
    assert combined(["inconclusive", "contradicted"]) == "contradicted"


@pytest.fixture(scope="module")
def study() -> Study:
    """What was measured on the planted circuit."""
    subject = hand_models.induction().subject(VARYING)
    return conduct(subject, VARYING, Budget(samples=128, selection_samples=32), lambda stage: None)


@pytest.fixture(scope="module")
def study_of_nothing() -> Study:
    subject = hand_models.inert().subject(VARYING)
    return conduct(subject, VARYING, Budget(samples=128, selection_samples=32), lambda stage: None)


def verdicts(study: Study) -> dict[str, str]:
    return {c.id.removeprefix("induction."): c.verdict for c in make_claims(study)}


def scaled(study: Study, score: str, head: tuple[int, int], ratio: float) -> Study:
    """The study with one head's test score set to ``ratio`` times chance, with a little spread."""
    values = {name: v.copy() for name, v in study.test.per_sequence.items()}
    noise = np.linspace(-0.002, 0.002, len(values[score]))
    values[score][:, head[0], head[1]] = ratio * study.test.chance[score] + noise
    return dataclasses.replace(study, test=dataclasses.replace(study.test, per_sequence=values))


def test_scores_are_judged_on_sequences_that_did_not_choose_the_heads(study, study_of_nothing):
    assert not np.array_equal(
        study.selection.per_sequence["prefix_matching_score"], study.test.per_sequence["prefix_matching_score"][:32]
    )
    # Chosen on one probe, gone on the other: the claim goes with the test scores, the set with the selection.
    gone = dataclasses.replace(study, test=study_of_nothing.test)
    assert verdicts(gone)["induction_heads"] == "contradicted"
    assert next(c for c in make_claims(gone) if c.id == "induction.induction_heads").heads == ("L1.H0",)
    only_selected = dataclasses.replace(study, selection=study_of_nothing.selection)
    assert verdicts(only_selected) == verdicts(study)


@pytest.mark.parametrize(("ratio", "verdict"), [(8.0, "supported"), (3.0, "inconclusive"), (2.0, "contradicted")])
def test_the_weakest_head_decides_about_a_set(split, ratio, verdict):
    subject = split[0].subject(VARYING)
    whole = conduct(subject, VARYING, Budget(samples=128, selection_samples=32), lambda stage: None)
    weak = scaled(whole, "prefix_matching_score", (1, 1), ratio)
    claim = next(c for c in make_claims(weak) if c.id == "induction.induction_heads")
    assert claim.verdict == verdict
    assert claim.value == pytest.approx(ratio, abs=1e-6)
    text = answer(weak, make_claims(weak)).text
    assert text.startswith("Yes." if verdict == "supported" else "In part.")
    assert "No head was found" not in text


def test_a_yes_needs_every_verdict_it_rests_on(study):
    assert answer(study, make_claims(study)).text.startswith("Yes.")
    weak = scaled(study, "previous_token_score", (0, 0), 2.0)
    text = answer(weak, make_claims(weak)).text
    assert text.startswith("In part.")
    assert "that the previous-token heads look back (inconclusive)" in text
    made = [
        dataclasses.replace(c, verdict="contradicted") if c.id == "induction.necessary_induction" else c
        for c in make_claims(study)
    ]
    text = answer(study, made).text
    assert "that it needs the induction heads (contradicted)" in text
    assert "Removing either set" not in text


def test_nothing_is_claimed_about_heads_where_the_behaviour_is_not_there(study, study_of_nothing):
    without = dataclasses.replace(study, behaviour=study_of_nothing.behaviour)
    assert {verdicts(without)[id] for id in SET_CLAIMS} == {"not_applicable"}
    assert "the behaviour is not there" in answer(without, make_claims(without)).text


def test_cutting_queries_or_values_must_keep_the_behaviour(study):
    for kind in "QV":
        joint = {**study.joint, (f"{kind} cut", "mean"): study.joint["K cut", "mean"]}
        assert verdicts(dataclasses.replace(study, joint=joint))["k_path"] == "contradicted"
    joint = {**study.joint, ("K cut", "mean"): study.joint["Q cut", "mean"]}
    assert verdicts(dataclasses.replace(study, joint=joint))["k_path"] == "contradicted"


def test_thresholds_stand_before_looking(study):
    by_id = {c.id.removeprefix("induction."): c for c in make_claims(study)}
    assert by_id["loss_vs_ceiling"].threshold == pytest.approx(0.05 * math.log(24))
    assert by_id["previous_token_heads"].threshold == 2
    assert by_id["induction_heads"].threshold == 3
    clean, floor = study.behaviour.value, VARYING.floor().accuracy
    assert by_id["necessary_induction"].threshold == pytest.approx(floor + 0.1 * (clean - floor))
    assert by_id["sufficient"].threshold == pytest.approx(0.95 * clean)


def test_the_runs_own_fixed_period_is_the_one_that_is_checked():
    """Period 9, not the usual 13: stripes at distance 8 are found only if the check knows it."""
    fixed = RepeatedTokens(n_ctx=32, d_vocab=25, period="fixed", period_min=9, period_max=9)
    planted = hand_models.positional_impostor(period=9)
    _, claims, tables = analyse(planted, fixed)
    assert {row["head"] for row in tables["heads"].rows if row["positional"]} == set(map(str, planted.stripes))
    assert claims["induction_heads"].verdict == "contradicted"


def test_a_narrow_range_of_periods_does_not_make_a_stripe_an_induction_head():
    """On periods 12 and 13 alone a head that looks 12 back scores half of what an induction head does."""
    narrow = RepeatedTokens(n_ctx=32, d_vocab=25, period_min=12, period_max=13)
    _, claims, _ = analyse(hand_models.positional_impostor(), narrow)
    assert claims["induction_heads"].verdict == "contradicted"
    assert claims["induction_heads"].heads == ()


def test_a_context_without_a_telling_period_is_said_and_nothing_fails():
    tiny = RepeatedTokens(n_ctx=5, d_vocab=9, period="fixed", period_min=2, period_max=2)
    findings, _, tables = analyse(hand_models.inert(8, 5), tiny)
    assert {row["positional"] for row in tables["heads"].rows} == {None}
    assert "does not apply" in next(f for f in findings if f.id == "induction.heads").caption


def test_a_padded_task_is_not_resampled_and_a_post_norm_model_has_no_paths():
    padded = subject({"norm": "post", "positions": "learned"}, 3, padded=True)
    findings = ANALYSIS.run(padded, Budget(samples=16, selection_samples=16), lambda stage: None)
    table = next(f for f in findings if f.id == "induction.ablations")
    assert "resample" not in {c.key for c in table.columns}
    assert "not resampled" in table.caption
    study = conduct(padded, padded.task, Budget(samples=16, selection_samples=16), lambda stage: None)
    both = dataclasses.replace(study.sets, s0=(padded.heads[0],), s1=(padded.heads[-1],))
    behaviour = dataclasses.replace(study.behaviour, verdict="supported")
    claim = next(
        c
        for c in make_claims(dataclasses.replace(study, sets=both, behaviour=behaviour, joint=JointOf(study)))
        if c.id == "induction.k_path"
    )
    assert claim.verdict == "not_applicable"
    assert "post-norm" in claim.reason


class JointOf(dict):
    """Joint effects by any name but a cut path: a single's stand in."""

    def __init__(self, study: Study) -> None:
        super().__init__()
        self.effect = study.singles[study.subject.heads[0], "mean"]

    def __missing__(self, key):
        return self.effect

    def __contains__(self, key) -> bool:
        return not key[0].endswith("cut")


def test_seconds_that_are_over_leave_out_the_optional_parts():
    findings = ANALYSIS.run(
        hand_models.induction().subject(VARYING),
        Budget(samples=16, selection_samples=16, seconds=0.0),
        lambda stage: None,
    )
    sharing = next(f for f in findings if f.id == "induction.sharing")
    assert sharing.verdict == "not_applicable"
    assert "seconds were over" in sharing.reason


def test_a_long_context_is_analysed_and_checked():
    task = RepeatedTokens(n_ctx=270, d_vocab=65)
    config = hand_models.inert(8, 8).model.config
    model = Transformer(dataclasses.replace(config, n_ctx=270, d_vocab=65, d_model=16, d_head=8, positions="rotary"))
    small = Subject(model, task.vocabulary, task)
    rows = impostor_check(model, task.vocabulary, torch.Generator().manual_seed(0), n=8)
    assert len(rows[0].periods) >= 5
    assert not any(m * 13 < 270 and (m * 13) % q == 0 for q in rows[0].periods for m in range(1, 21))
    assert probe_periods(small) == tuple(range(6, 21))
    assert (
        probe_periods(Subject(model, task.vocabulary, RepeatedTokens(n_ctx=270, d_vocab=65, period_max=40)))[-1] == 40
    )


def test_a_task_that_repeats_no_block_is_scored_on_its_own_lines(planted):
    """On paper: at a scored query the planted induction head attends only to the keys that the task names."""
    model, _, blocks, _ = planted
    findings, claims, tables = analyse(model, OwnLines())
    study = conduct(
        model.subject(OwnLines()), OwnLines(), Budget(samples=128, selection_samples=64), lambda stage: None
    )
    assert study.periods == ()
    assert study.match == KEYS
    assert (study.sets.s0, study.sets.s1) == (model.previous_token, model.induction)
    assert study.test.mean(KEYS)[1, 0] == pytest.approx(1.0, abs=1e-3)
    assert claims["induction_heads"].verdict == claims["necessary_induction"].verdict == "supported"
    assert "on its own sequences" in claims["induction_heads"].statement
    assert "varying periods" in blocks["induction_heads"].statement
    row = next(r for r in tables["heads"].rows if r["head"] == "L1.H0")
    assert row["induction_key"] == pytest.approx(1.0, abs=1e-3)
    heatmap = next(f for f in findings if f.id == "induction.head_scores")
    assert "own sequences" in heatmap.caption
    assert "induction keys" in [p.title for p in heatmap.panels]
    words = [f.title for f in findings if type(f).__name__ == "Definition"]
    assert "induction keys" in words


def test_no_induction_head_on_own_lines_is_said_as_that():
    findings, claims, _ = analyse(hand_models.inert(), OwnLines())
    assert claims["induction_heads"].verdict == "contradicted"
    assert "on the task's own sequences" in next(f for f in findings if isinstance(f, Answer)).text
