"""Sweeps: every part, every pair, what they do beyond the sum, how many sequences it takes, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest

from tasks.repeated_tokens import RepeatedTokens
from tests import hand_circuits, hand_models
from tests.asked_tasks import Recall
from workbench import training
from workbench.ablation import KeepOnly, Mean, Resample, Zero
from workbench.app.main import main
from workbench.components import Head
from workbench.config import ModelConfig, TrainConfig
from workbench.errors import WorkbenchError
from workbench.metrics import incorrect_answers
from workbench.reference import build_reference
from workbench.statistics import clopper_pearson, smallest_visible
from workbench.sweep import COLUMNS, KINDS, Way, sample_sweep, sweep

SCHEMA = json.loads((Path(__file__).parent.parent / "workbench/schemas/sweep.schema.json").read_text())


@pytest.mark.parametrize("make", hand_circuits.CIRCUITS)
def test_singles_and_pairs_of_planted_circuits_as_on_paper(make):
    circuit = make()
    subject = circuit.subject()
    batch = subject.sample(32, "test")
    incorrect = incorrect_answers(subject.task, batch)
    swept = sweep(subject, batch, subject.heads, Way("zero"), pairs=True, incorrect=incorrect)
    known = {heads: paper for heads, paper in circuit.zeroed.items() if len(heads) <= 2}
    assert any(len(heads) == 1 for heads in known)
    for heads, paper in known.items():
        effect = swept.effects[tuple(heads)]
        assert effect.ablated[0].mean() == pytest.approx(paper.accuracy, abs=1e-4)
        assert effect.ablated[1].mean() == pytest.approx(paper.loss, abs=1e-3)
        assert effect.ablated[2].mean() == pytest.approx(paper.logit_difference, abs=1e-3)
        assert (effect.fired, effect.expected) == (32, 32)


def test_two_redundant_heads_have_no_effect_alone_and_all_together():
    circuit = hand_circuits.redundant_pair()
    subject = circuit.subject()
    swept = sweep(subject, subject.sample(64, "test"), subject.heads, Way("zero"), pairs=True)
    found = swept.synergy("accuracy").set_index(["first", "second"])
    pair = found["synergy"].idxmin()
    assert pair == (str(circuit.roles["first"]), str(circuit.roles["second"]))
    row = found.loc[pair]
    assert row["alone"] == pytest.approx(0.0, abs=1e-6)
    assert row["joint"] == row["synergy"] < -0.5
    assert row["high"] < 0
    assert row["p_corrected"] < 0.05


def test_heads_in_series_are_synergy():
    """On paper: without either head of the planted pair the prediction is uniform, so removing both does no more: the
    joint effect is one of the two, and synergy is minus the other."""
    subject = hand_models.induction().subject(RepeatedTokens(n_ctx=32, d_vocab=25, period_min=6, period_max=14))
    swept = sweep(subject, subject.sample(64, "test"), "L0.H0, L1.H0, L1.H1", Way("zero"), pairs=True)
    row = swept.synergy("accuracy").set_index(["first", "second"]).loc[("L0.H0", "L1.H0")]
    assert row["synergy"] == pytest.approx(-swept.change((Head(0, 0),), "accuracy").mean(), abs=1e-6)
    assert row["low"] > 0.5
    inert = swept.synergy("accuracy").set_index(["first", "second"]).loc[("L0.H0", "L1.H1")]
    assert inert["synergy"] == pytest.approx(0.0, abs=1e-6)


def test_the_frame_is_what_the_effects_say():
    subject = hand_models.induction().subject(RepeatedTokens(n_ctx=32, d_vocab=25, period_min=6, period_max=14))
    swept = sweep(subject, subject.sample(64, "test"), subject.heads, Way("mean"))
    frame = swept.frame()
    assert list(frame.columns) == COLUMNS
    assert list(frame["component"]) == [str(h) for h in subject.heads for _ in range(2)]
    assert set(frame["metric"]) == {"accuracy", "loss"}
    assert np.allclose(frame["effect"], frame["ablated"] - frame["clean"])
    assert (frame["fired"] == "64/64").all()
    inert = frame[(frame["component"] == "L1.H1") & (frame["metric"] == "accuracy")].iloc[0]
    assert inert["effect"] == 0.0
    assert inert["low"] == pytest.approx(-clopper_pearson(0, 64).high)
    assert inert["smallest_visible"] == pytest.approx(clopper_pearson(0, 64).high)
    assert inert["p_corrected"] == 1.0


def test_every_way_is_the_intervention_that_it_names():
    subject = hand_circuits.redundant_pair().subject()
    reference = build_reference(subject, size=16)
    one = subject.heads[:1]
    assert Way("zero").of(one, None, None) == Zero(one)
    assert Way("zero", frozen_patterns=True).of(one, None, None) == Zero(one, frozen_patterns=True)
    assert Way("mean", frozen_norm=True).of(one, reference, None) == Mean(one, reference, frozen_norm=True)
    assert Way("keep-only").of(one, reference, None) == KeepOnly(one, Mean((), reference))
    swept = sweep(subject, subject.sample(16, "test"), one, Way("resample"))
    assert isinstance(swept.effects[one].intervention, Resample)
    with pytest.raises(WorkbenchError, match=r"unknown way to remove parts 'zeros'. Did you mean zero"):
        Way("zeros")
    assert set(KINDS) == {"zero", "mean", "resample", "keep-only"}


def test_nothing_to_sweep_is_an_error():
    subject = hand_circuits.redundant_pair().subject()
    batch = subject.sample(16, "test")
    for parts, pairs, says in (((), False, "a sweep needs parts"), ("L0.H0", True, "pairs need two parts")):
        with pytest.raises(WorkbenchError, match=says):
            sweep(subject, batch, parts, pairs=pairs)
    with pytest.raises(WorkbenchError, match=r"there is no head L9\.H0"):
        sweep(subject, batch, "L9.H0")
    swept = sweep(subject, batch, subject.heads[:1])
    with pytest.raises(WorkbenchError, match="unknown metric 'logit difference'"):
        swept.change(subject.heads[:1], "logit difference")


def test_rounds_are_sampled_until_the_intervals_are_narrow():
    subject = hand_models.induction().subject(RepeatedTokens(n_ctx=32, d_vocab=25, period_min=6, period_max=14))
    said: list[str] = []
    parts = subject.heads
    once = sample_sweep(subject, parts, samples=16)
    wide = max(once.interval((h,), "accuracy").high - once.interval((h,), "accuracy").low for h in parts)
    made = sample_sweep(subject, parts, samples=16, until_width=0.5 * wide, progress=said.append)
    assert made.n > 16
    assert made.n == 16 * len(said)
    for h in parts:
        at = made.interval((h,), "accuracy")
        assert at.high - at.low <= 0.5 * wide
        assert made.effects[h,].fired == made.n
    # The first round is the sample that a plain sweep takes.
    assert np.array_equal(made.effects[parts[0],].clean[:, :16], once.effects[parts[0],].clean)
    for width in (0.0, 2.0, math.nan):
        with pytest.raises(WorkbenchError, match="--until-width cannot be used"):
            sample_sweep(subject, parts, until_width=width)
    with pytest.raises(WorkbenchError, match="--samples cannot be used"):
        sample_sweep(subject, parts, samples=7)


def test_the_logit_difference_is_there_where_the_task_has_twins():
    circuit = hand_circuits.negative_head()
    assert isinstance(circuit.task, Recall)
    swept = sample_sweep(circuit.subject(), circuit.subject().heads, samples=16)
    assert swept.metrics == ("accuracy", "loss", "logit difference")
    assert (swept.change((circuit.roles["negative"],), "logit difference") > 0).all()


def test_the_smallest_visible_effect_by_hand():
    """s of (0, 2, 0, 2, ...) with n = 64 is 1.0079; (1.96 + 0.8416) 1.0079 / 8 = 0.353."""
    assert smallest_visible(np.array([0.0, 2.0] * 32)) == pytest.approx(0.353, abs=5e-4)
    still = np.zeros(64)
    assert smallest_visible(still, bounds=(-1, 1)) == pytest.approx(1 - 0.025 ** (1 / 64))
    assert math.isnan(smallest_visible(still))
    assert smallest_visible(np.array([0.0] * 63 + [1.0]), bounds=(-1, 1)) == pytest.approx(clopper_pearson(1, 64).high)


# The command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "run"
    task = RepeatedTokens(n_ctx=12, d_vocab=8, period_min=3, period_max=5)
    shape = ModelConfig(d_vocab=8, n_ctx=12, n_layers=2, n_heads=2, d_model=8, d_mlp=8)
    training.train(task, shape, TrainConfig(steps=2, batch_size=4, warmup_steps=1), seed=3, folder=folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (kind, more)
        for kind in KINDS
        for more in ([], ["--pairs", "--heads", "L0.H0,L1.H1"])
        if not (more and kind == "keep-only")
    ],
)
def test_json_fits_its_schema(run: Path, kind: str, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(run), "--kind", kind, "--samples", "16", "--json", *more]) == 0
    record = json.loads(capsys.readouterr().out)
    jsonschema.validate(record, SCHEMA)
    assert (record["kind"], record["samples"]) == (kind, 16)
    names = [row["component"] for row in record["rows"] if row["metric"] == "accuracy"]
    every = ["L0.H0", "L0.H1", "L0.mlp", "L1.H0", "L1.H1", "L1.mlp"]
    heads = [name for name in every if "H" in name]
    assert names == (["L0.H0", "L1.H1", "L0.H0, L1.H1"] if more else heads if kind == "keep-only" else every)
    assert ("pairs" in record) == bool(more)


def test_csv_and_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(run), "--samples", "16", "--csv", "--frozen-norm", "--frozen-patterns"]) == 0
    out = capsys.readouterr().out
    frame = pd.read_csv(pd.io.common.StringIO(out))
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 12
    assert main(["sweep", str(run), "--samples", "16", "--heads", "L0.H0, L0.mlp", "--pairs"]) == 0
    text = capsys.readouterr().out
    assert "beyond the sum of each alone" in text
    assert "16 test sequences" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--heads", "L7.H9"], "there is no head L7.H9: expected L0 to L1 and H0 to H1"),
        (["--heads", "L7.mlp"], "there is no part L7.mlp: expected layers L0 to L1"),
        (["--heads", "first"], "a part's name cannot be read"),
        (["--heads", ","], "a sweep needs parts"),
        (["--kind", "keep-only", "--heads", "L0.mlp"], "keep-only keeps heads"),
        (["--kind", "keep-only", "--pairs"], "pairs that are kept have no synergy"),
        (["--samples", "1"], "--samples cannot be used"),
        (["--until-width", "-1"], "--until-width cannot be used"),
    ],
)
def test_bad_input_is_one_line(run: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(run), *words]) == 1
    err = capsys.readouterr().err.strip()
    assert says in err
    assert "\n" not in err
