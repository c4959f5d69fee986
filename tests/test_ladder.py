"""The Winograd ladder: how a model is read, what the claims say of planted readings, and the whole on tiny models."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from analyses import _ladder_figures, _ladder_rungs
from analyses._ladder_claims import answer, claims
from analyses._ladder_figures import figures
from analyses._ladder_rungs import RUNGS, Reading, other_noun
from workbench.analysis import Budget
from workbench.app.lab import ProcessLab
from workbench.app.main import main
from workbench.findings import Claim, Curve, Heatmap, Notice, Table
from workbench.findings_json import from_json, to_json
from workbench.registry import load_experiment, load_task
from workbench.rng import stream
from workbench.task import IGNORE, Batch, Floor

FLOOR = Floor(0.5, "a guess between the two nouns")
SOLVED = {"average": 0.3, "one-attention": 0.8, "one-block": 0.9, "two-attention": 1.0, "two-blocks": 1.0}


def readings(means: Mapping[str, float] = SOLVED, spread: float = 0.01) -> dict[str, list[Reading]]:
    """Five seeds a rung around these means (inside 0 and 1), 512 sentences each; the rest is the other noun."""
    made = {}
    for rung in RUNGS:
        mean = means.get(rung.name, 1.0)
        values = [min(1.0, mean + spread * offset) for offset in (-2, -1, 0, 1, 2)] if mean < 1 else [1.0] * 5
        made[rung.name] = [
            Reading(seed, value, 1 - value, 512, (50, 100), (0.5, value)) for seed, value in enumerate(values)
        ]
    return made


def verdicts(made: Mapping[str, list[Reading]]) -> dict[str, str]:
    return {c.id.removeprefix("ladder."): c.verdict for c in claims(made, FLOOR)}


def test_the_sources_reading_can_be_borne_out() -> None:
    assert set(verdicts(readings()).values()) == {"supported"}
    by_id = {c.id: c for c in claims(readings(), FLOOR)}
    one = by_id["ladder.one_block_is_not_enough"]
    # s = .01 sqrt(2.5), t(4) = 2.776445: half = 2.776445 * .0158114 / sqrt 5 = .0196324; one run tells .0263 or so
    assert (one.value, one.threshold, one.direction, one.samples, one.n) == (
        pytest.approx(0.9),
        0.99,
        "below",
        "seeds",
        5,
    )
    assert one.low is not None
    assert one.low < 0.9 - 0.0196
    assert "0 of 5 seeds reach 0.99; of all seeds between 0% and 52% do" in one.reason
    two = by_id["ladder.two_blocks_solve"]
    assert (two.low, two.high) == (pytest.approx(0.025 ** (1 / 512)), 1.0)
    assert by_id["ladder.average_cannot"].threshold == pytest.approx(0.625)
    assert answer(list(by_id.values())).text.startswith("Two blocks solve it and one does not.")


@pytest.mark.parametrize(
    ("change", "id", "verdict", "says"),
    [
        ({"one-block": 1.0}, "one_block_is_not_enough", "contradicted", "No: one block already solves it"),
        (
            {"one-block": 0.985},
            "one_block_is_not_enough",
            "inconclusive",
            "Not settled: two blocks solve it, and one",
        ),
        ({"one-attention": 1.0}, "one_attention_is_not_enough", "contradicted", "Two blocks solve it and one does not"),
        ({"average": 0.95}, "average_cannot", "contradicted", "Two blocks solve it"),
        ({"average": 0.625}, "average_cannot", "inconclusive", "Two blocks solve it"),
        ({"two-blocks": 0.9}, "two_blocks_solve", "contradicted", "No: two blocks do not solve it either"),
        ({"two-blocks": 0.985}, "two_blocks_solve", "inconclusive", "Not settled: whether two blocks solve it is open"),
    ],
)
def test_every_claim_can_be_contradicted(change: dict[str, float], id: str, verdict: str, says: str) -> None:
    made = readings({**SOLVED, **change})
    assert verdicts(made) == {**dict.fromkeys(verdicts(readings()), "supported"), id: verdict}
    assert says in answer(claims(made, FLOOR)).text


def test_the_other_noun_is_the_one_in_the_sentence_that_is_not_the_answer() -> None:
    # Sentences "A B x", asked for the first or the second noun; words 0..4, nouns 1 to 3.
    tokens = torch.tensor([[1, 2, 0], [1, 2, 0], [3, 1, 0], [2, 3, 0]])
    targets = torch.full_like(tokens, IGNORE)
    targets[:, 2] = torch.tensor([1, 2, 1, 2])
    ones = torch.ones(4, dtype=torch.long)
    batch = Batch(tokens, tokens >= 0, targets, targets != IGNORE, {"first": 0 * ones, "second": ones})
    said = torch.tensor([2, 1, 4, 2])  # the other, the other, a word that is in no sentence, the answer
    logits = torch.nn.functional.one_hot(said, 5)[:, None].expand(4, 3, 5).float()
    assert other_noun(logits, batch) == 0.5


def test_rungs_are_what_they_are_called() -> None:
    task = load_task("winograd")
    lab = ProcessLab(Path("nowhere"))
    shapes = {r.name: r.plan(lab, 0).model for r in RUNGS}
    assert [(s.n_layers, s.d_mlp > 0, s.attention) for s in shapes.values()] == [
        (1, False, "uniform"),
        (1, False, "learned"),
        (1, True, "learned"),
        (2, False, "learned"),
        (2, True, "learned"),
        (1, False, "uniform"),
        (1, True, "learned"),
    ]
    assert {r.plan(lab, 0).task.options["nouns"] for r in RUNGS if r.name.startswith("leaky")} == {"by_category"}
    assert all(r.plan(lab, 0).task == task for r in RUNGS if not r.task)
    assert {r.name: r.source for r in RUNGS if r.source is not None} == {
        "average": 0.279,
        "one-block": 0.927,
        "two-blocks": 1.0,
        "leaky-average": 1.0,
        "leaky-one-block": 0.917,
    }


def test_figures_hold_every_seed_and_the_source() -> None:
    table, seeds, curve = figures(readings(), FLOOR)
    assert isinstance(table, Table)
    assert isinstance(seeds, Heatmap)
    assert isinstance(curve, Curve)
    average = table.rows[0]
    assert (average["source"], average["source_other"], average["solved"]) == (0.279, 0.5, 0.0)
    assert (average["accuracy"], average["other"], average["worst"]) == pytest.approx((0.3, 0.7, 0.28))
    assert seeds.column_labels == ("seed 0", "seed 1", "seed 2", "seed 3", "seed 4", "mean", "source")
    assert seeds.panels[0].values[0] == pytest.approx((0.28, 0.29, 0.3, 0.31, 0.32, 0.3, 0.279))
    assert len(curve.series) == 5
    assert curve.series[2].y == pytest.approx((0.5, 0.9))
    assert (curve.series[2].low[1], curve.series[2].high[1]) == pytest.approx((0.88, 0.92))
    for finding in (table, seeds, curve):
        assert to_json(from_json(json.loads(json.dumps(to_json(finding))))) == to_json(finding)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of tiny models in this process."""
    train = dataclasses.replace(_ladder_rungs.TRAIN, steps=2, batch_size=4)
    for module in (_ladder_rungs, _ladder_figures):
        monkeypatch.setattr(module, "TRAIN", train)
        monkeypatch.setattr(module, "MODEL", {**_ladder_rungs.MODEL, "n_heads": 1, "d_model": 8})
    monkeypatch.setattr(_ladder_rungs, "EARLIEST", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)


def test_the_whole_on_tiny_models(tmp_path: Path, tiny: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "winograd_ladder", "--out", str(tmp_path), "--seeds", "2", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(list((tmp_path / "runs").iterdir())) == 2 * len(RUNGS)
    assert [c["id"] for c in record["claims"]] == [
        "ladder.average_cannot",
        "ladder.one_attention_is_not_enough",
        "ladder.one_block_is_not_enough",
        "ladder.two_blocks_solve",
    ]
    assert {(c["samples"], c["n"]) for c in record["claims"]} == {("seeds", 2)}
    html = (tmp_path / "report.html").read_text()
    assert "Does telling the two nouns apart take two blocks?" in html
    assert "could not be drawn" not in html

    inside = record["tables"]["ladder.inside.two-blocks"]
    assert [row["seeds"] for row in inside] == [2] * len(inside)
    assert {row["claim"] for row in inside} >= {"winograd.two_hops", "winograd.cue_soaks_softmax"}
    assert len([name for name in record["tables"] if name.startswith("ladder.inside.")]) == 4

    # The table is what the runs give: one of them measured again here, by hand.
    task = load_task("winograd")
    lab = ProcessLab(tmp_path, workers=1)
    subjects = lab.train([RUNGS[4].plan(lab, seed) for seed in range(2)], lambda stage: None)
    right = []
    for subject in subjects:
        batch = task.sample(512, "test", stream(subject.seed, "ladder", "test"))
        with torch.no_grad():
            said = subject.model(batch.tokens, batch.mask).argmax(dim=-1)
        right.append(float((said == batch.targets)[batch.scored].double().mean()))
    assert record["tables"]["ladder.rungs"][4]["accuracy"] == pytest.approx(sum(right) / 2)
    assert record["tables"]["ladder.rungs"][4]["worst"] == pytest.approx(min(right))


def test_when_the_time_is_over_it_says_so(tmp_path: Path, tiny: None) -> None:
    experiment: Any = load_experiment("winograd_ladder")
    lab = ProcessLab(tmp_path, workers=1)
    found = experiment.run(Budget(samples=16, seconds=1e-9, seeds=4), lab, lambda stage: None)
    [notice] = [f for f in found if isinstance(f, Notice)]
    assert notice.title == "Only 2 of 4 seeds were trained"
    assert {f.n for f in found if isinstance(f, Claim)} == {2}
