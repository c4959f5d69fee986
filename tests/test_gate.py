"""The gate at the command line: what audit prints, what train refuses, what a run and its report keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import workbench
from workbench import training
from workbench.app import gate, pipeline, settings
from workbench.app.commands import audit as audit_command
from workbench.app.main import main
from workbench.errors import CheckFailed
from workbench.registry import ROOT

EXAMPLES = str(ROOT / "examples")
TINY = ["model.n_heads=2", "model.d_model=16", "model.d_head=8", "train.steps=3", "train.batch_size=8"]
SETS = [word for option in TINY for word in ("--set", option)]
Capture = pytest.CaptureFixture[str]


def schema(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "workbench" / "schemas" / f"{name}.schema.json").read_text())


@pytest.fixture
def leaky(tmp_path: Path) -> str:
    """A plugin folder whose task leaks: the example, without what it allows."""
    folder = tmp_path / "own"
    (folder / "tasks").mkdir(parents=True)
    text = (ROOT / "examples" / "tasks" / "counting.py").read_text()
    (folder / "tasks" / "leaky.py").write_text(text.replace("allowed_probes", "forbidden_probes"))
    return str(folder)


def test_audit_prints_a_certificate(capsys: Capture) -> None:
    argv = ["audit", "counting", "--plugins", EXAMPLES]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    assert printed.rstrip().endswith("verdict: clean")
    assert "allowed: two neighbours show the stride" in printed
    assert "(100 different ones of" in printed
    assert main([*argv, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    jsonschema.validate(record, schema("audit"))
    assert (record["task"], record["options"]) == ("counting", {"n_ctx": 12, "d_vocab": 10})
    passing = {p["name"] for p in record["probes"] if p["share_low"] > 0.25}
    assert passing == {p["name"] for p in record["probes"] if p["allowed"]}


def test_an_audit_asked_for_again_is_found_without_the_task(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["audit", "counting", "--plugins", EXAMPLES, "--json"]
    assert main(argv) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr(audit_command, "load_task", None)
    assert main(argv) == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["repeated_tokens", "--set", "model.n_heads=2"], "task.KEY=VALUE, got an option of the group model"),
        (["repeated_tokns"], "Did you mean repeated_tokens?"),
        (["repeated_tokens", "--set", "task.perod=fixed"], "Did you mean period"),
    ],
)
def test_audit_refuses(words: list[str], says: str, capsys: Capture) -> None:
    assert main(["audit", *words]) == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    assert says in line


def test_a_leaking_task_is_refused_and_may_be_allowed(capsys: Capture, leaky: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["audit", "leaky", "--plugins", leaky]) == 3
    assert "verdict: leaks through" in capsys.readouterr().out
    argv = ["train", "leaky", "--plugins", leaky, "--out", str(out), *SETS]
    assert main(argv) == 3
    line = capsys.readouterr().err.splitlines()[-1]
    for part in ("error: ", "leaky.py: sample: ", "last 2 tokens", "workbench audit leaky", "--allow-leaky"):
        assert part in line
    with pytest.raises(CheckFailed, match="allow_leaky=True"):
        workbench.train("leaky", out, plugins=[leaky])
    assert not out.exists()

    assert main([*argv, "--allow-leaky"]) == 0
    record = json.loads((out / "run.json").read_text())
    jsonschema.validate(record, schema("run"))
    assert "audit.json" in record["artefacts"]
    kept = json.loads((out / "audit.json").read_text())
    jsonschema.validate(kept, schema("audit"))
    assert kept["verdict"] == "leaks"
    assert main(["report", str(out), "--plugins", leaky, "--only", "induction", "--samples", "8"]) == 0
    html = (out / "report.html").read_text()
    assert html.index("trained on a task that a shortcut solves") < html.index("Is the task sound?</h2>")
    assert main(["verify", str(out)]) == 0

    (out / "audit.json").write_text((out / "audit.json").read_text().replace('"leaks"', '"clean"', 1))
    capsys.readouterr()
    assert main(["verify", str(out)]) == 3
    assert "audit.json has changed" in capsys.readouterr().err


def test_what_train_refuses_anyway_is_refused_before_the_audit(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate.audit, "cached", None)
    (tmp_path / "thesis.txt").write_text("years of work")
    argv = ["train", "counting", "--plugins", EXAMPLES, "--out"]
    assert main([*argv, str(tmp_path)]) == 1
    assert main([*argv, str(tmp_path / "run"), "--threads", "0"]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 2


def test_every_report_carries_the_certificate(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", "counting", "--plugins", EXAMPLES, "--out", str(run), *SETS]) == 0
    assert main(["report", str(run), "--plugins", EXAMPLES, "--only", "distance", "--samples", "8"]) == 0
    html = (run / "report.html").read_text()
    assert "Is the task sound?" in html
    assert "a task that a shortcut solves" not in html
    rows = json.loads((run / "findings.json").read_text())["tables"]["audit.probes"]
    verdicts = {row["probe"]: row["verdict"] for row in rows}
    assert verdicts["last 2 tokens"] == "allowed: two neighbours show the stride"
    assert verdicts["bag of words"] == "clean"


def test_a_run_without_a_certificate_is_audited_for_its_report(tmp_path: Path) -> None:
    spec = settings.resolve("counting", "default", TINY, [EXAMPLES])
    made = training.train(spec.task, spec.model, spec.train, 4, tmp_path / "run")
    assert made.audit() is None
    found = gate.certificate(pipeline.open_subject(made, [EXAMPLES]), lambda stage: None)
    assert (found.task, found.verdict) == ("counting", "clean")
