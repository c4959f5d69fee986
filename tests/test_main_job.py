"""The main job in one process: train, report, open the page; and one layer that only copies from a distance."""

from __future__ import annotations

import doctest
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pytest

import workbench
import workbench.app.face
from workbench.app.main import main
from workbench.errors import WorkbenchError
from workbench.registry import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def findings(run: Path) -> dict[str, Any]:
    return json.loads((run / "findings.json").read_text(encoding="utf-8"))


def sets(*options: str) -> list[str]:
    return [word for option in options for word in ("--set", option)]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The textbook circuit: one head a layer, 200 steps, with its report."""
    run = tmp_path_factory.mktemp("taught") / "run"
    words = ["train", "repeated_tokens", "--preset", "teaching", "--out", str(run), "--seed", "100"]
    assert main([*words, *sets("train.steps=200")]) == 0
    assert main(["report", str(run), "--samples", "128"]) == 0
    return run


@pytest.fixture(scope="module")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer on a fixed period, with its report."""
    run = tmp_path_factory.mktemp("stripes") / "run"
    options = sets("task.period=fixed", "model.n_layers=1", "train.steps=120")
    argv = ["train", "repeated_tokens", "--preset", "shared", "--out", str(run), "--seed", "100", *options]
    assert main(argv) == 3
    assert not run.exists()
    assert main([*argv, "--allow-leaky"]) == 0
    assert main(["report", str(run), "--samples", "128"]) == 0
    return run


def test_the_textbook_circuit_is_found_and_needed(taught: Path) -> None:
    record = findings(taught)
    jsonschema.validate(record, json.loads((ROOT / "workbench/schemas/findings.schema.json").read_text()))
    claims = {c["id"]: c for c in record["claims"]}
    assert claims["induction.previous_token_heads"]["heads"] == ["L0.H0"]
    assert claims["induction.induction_heads"]["heads"] == ["L1.H0"]
    for name in ("necessary_previous_token", "necessary_induction", "k_path"):
        assert claims[f"induction.{name}"]["verdict"] == "supported", claims[f"induction.{name}"]
    assert claims["induction.sufficient"]["verdict"] == "not_applicable"
    changes = {row["score"]: row for row in record["tables"]["induction.phase_changes"]}
    assert 0 < changes["accuracy"]["low"] < changes["accuracy"]["high"] <= 200
    assert record["run"] == workbench.open(taught).run.hash
    probes = {row["probe"]: row for row in record["tables"]["audit.probes"]}
    assert probes["offset copy"]["verdict"] == "clean"
    assert probes["offset copy"]["leak_share"] == pytest.approx(0.09, abs=0.03)


def test_a_layer_that_copies_from_a_distance_is_not_taken_for_induction(stripes: Path) -> None:
    record = findings(stripes)
    claims = {c["id"]: c for c in record["claims"]}
    heads = record["tables"]["induction.heads"]
    assert workbench.open(stripes).run.training_table()["accuracy"].iloc[-1] > 0.95
    assert claims["induction.induction_heads"]["verdict"] == "contradicted"
    # Every head that matches prefixes at three times chance on the fixed period is a stripe, and every stripe is named.
    stripe = [row["head"] for row in heads if row["fixed_ratio"] >= 3]
    assert stripe
    assert [row["head"] for row in heads if row["positional"]] == stripe
    page = (stripes / "report.html").read_text(encoding="utf-8")
    assert "trained on a task that a shortcut solves" in page
    assert "offset copy (13 tokens before the answer)" in page
    assert "copy from a fixed distance" in page
    assert "contradicted" in page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["taught", "stripes"])
def test_the_page_opens_with_the_network_off(
    which: str, scheme: str, browser: Browser, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(which) / "report.html"
    assert path.stat().st_size < 4_000_000
    context = browser.new_context(offline=True, color_scheme=scheme, viewport={"width": 360, "height": 800})
    page = context.new_page()
    troubles: list[str] = []
    page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: troubles.append(str(e)))
    page.on("request", lambda r: troubles.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None)
    page.goto(path.as_uri())
    page.locator("figure canvas").first.wait_for()
    page.locator("[data-agreement][aria-busy=false]").wait_for()
    page.locator("[data-score-after][aria-busy=false]").wait_for(state="attached")
    figures = page.locator("figure")
    assert figures.count() >= 8
    # In one go: a drawing that is renewed between being found and being measured would have no size.
    smaller_side = """all => Object.fromEntries(all.map(figure => {
        const { width, height } = figure.querySelector("svg, canvas, table").getBoundingClientRect();
        return [figure.id, Math.min(width, height)];
    }))"""
    assert {name: side for name, side in figures.evaluate_all(smaller_side).items() if side <= 20} == {}
    assert page.locator(".notice.error").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert troubles == []
    context.close()


def test_a_missing_checkpoint_costs_the_training_curves_and_nothing_else(taught: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(taught, tmp_path / "copy"))
    next((copy / "checkpoints").iterdir()).unlink()
    assert main(["report", str(copy), "--samples", "32"]) == 0
    record = findings(copy)
    assert len([claim for claim in record["claims"] if claim["id"].startswith("induction.")]) == 8
    assert "induction.phase_changes" not in record["tables"]
    assert "The training curves cannot be drawn" in (copy / "report.html").read_text(encoding="utf-8")


def test_the_python_face_does_what_its_examples_say(taught: Path) -> None:
    done = doctest.testmod(
        workbench.app.face, extraglobs={"folder": str(taught)}, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert done.failed == 0
    assert done.attempted >= 5


def test_the_faces_numbers_are_the_reports(taught: Path) -> None:
    subject = workbench.open(taught)
    accuracy = subject.ablate("L1.H0", n=128).set_index("metric").loc["accuracy"]
    row = next(r for r in findings(taught)["tables"]["induction.ablations"] if r["removed"] == "L1.H0")
    # Other test sequences, the same reference set: the effects agree within their intervals.
    assert accuracy["effect"] == pytest.approx(row["mean"], abs=0.05)
    assert accuracy["fired"] == "128/128"
    assert row["fired"] == "128/128"
    patterns = subject.patterns([["<bos>", "t1", "t2", "t1"]])
    assert patterns.shape == (1, 2, 1, 4, 4)
    assert np.allclose(patterns.sum(-1), 1, atol=1e-6)
    with pytest.raises(WorkbenchError, match=r"there is no head L7.H9.*2 layers x 1 heads"):
        subject.ablate("L7.H9")
    with pytest.raises(WorkbenchError, match=r"unknown way to remove heads 'meen'\. Did you mean mean"):
        subject.ablate("L1.H0", how="meen")


def test_training_again_from_python_reuses_the_run(taught: Path) -> None:
    before = (taught / "run.json").read_bytes()
    subject = workbench.train(
        "repeated_tokens", taught, preset="teaching", options={"train.steps": 200}, seed=100, threads=1
    )
    assert subject.run is not None
    assert (taught / "run.json").read_bytes() == before
    with pytest.raises(WorkbenchError, match=r"train.steps"):
        workbench.train("repeated_tokens", taught, preset="teaching", options={"train.steps": 201}, seed=100)
