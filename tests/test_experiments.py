"""``workbench experiment`` and what it leaves; experiments among the analyses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from workbench.app import experiments
from workbench.app.main import main
from workbench.registry import ROOT

EXPERIMENT = '''"""{name}: made up."""
from workbench.analysis import Experiment, Plan
from workbench.config import TrainConfig, model_config
from workbench.findings import Claim, Notice


class Made(Experiment):
    def run(self, budget, lab, progress):
        progress("thinking")
        {body}


EXPERIMENT = Made()
'''
TRAINS = """
        task = lab.task("repeated_tokens")
        shape = model_config({"n_heads": 1, "d_model": 8}, d_vocab=len(task.vocabulary), n_ctx=task.n_ctx)
        plans = [Plan("tiny", task, shape, TrainConfig(steps=2, batch_size=4), seed) for seed in range(budget.seeds)]
        subjects = lab.train(plans, progress)
        return [Claim(id="made.seeds", title="t", statement="They have seeds", verdict="supported", samples="seeds",
                      n=sum(s.seed + 1 for s in subjects), reason="made up")]
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Writes an experiment into a plugin folder; gives the words that run it into ``tmp_path/out``, on one core."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)

    def write(name: str, body: str) -> list[str]:
        folder = tmp_path / "own" / "analyses"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(EXPERIMENT.format(name=name, body=body.strip()))
        return ["experiment", name, "--plugins", str(folder.parent), "--out", str(tmp_path / "out")]

    return write


def claim(verdict: str) -> str:
    return f"return [Claim(id='m.c', title='t', statement='It is so.', verdict='{verdict}', reason='made up')]"


def test_it_leaves_runs_findings_and_a_page(tmp_path: Path, own: Callable[..., list[str]], capsys: Capture) -> None:
    argv = own("trains", TRAINS)
    assert main([*argv, "--seeds", "3"]) == 0
    printed = capsys.readouterr()
    out = tmp_path / "out"
    record = json.loads((out / "findings.json").read_text())
    jsonschema.validate(record, json.loads((ROOT / "workbench" / "schemas" / "findings.schema.json").read_text()))
    assert record["asked"] == {"only": ["trains"], "samples": 512, "seeds": 3}
    assert record["claims"][0]["n"] == 6
    assert sorted(p.name for p in (out / "runs").iterdir()) == ["tiny-seed-0", "tiny-seed-1", "tiny-seed-2"]
    html = (out / "report.html").read_text()
    hashes = [json.loads((run / "run.json").read_text())["hash"] for run in (out / "runs").iterdir()]
    for part in (*hashes, record["run"], record["hash"], f"workbench experiment trains --out {out} --seeds 3"):
        assert part in html
    assert "They have seeds" in printed.out
    assert printed.out.rstrip().endswith(f"page: {out / 'report.html'}")
    assert "(3 of 3)" in printed.err

    assert main([*argv, "--seeds", "3", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == record
    assert "3 of 3 models are there already" in printed.err
    assert main([*argv, "--seeds", "2", "--seconds", "9.5", "--json"]) == 0
    fewer = json.loads(capsys.readouterr().out)
    assert fewer["asked"] == {"only": ["trains"], "samples": 512, "seeds": 2, "seconds": 9.5}
    assert fewer["run"] != record["run"]


@pytest.mark.parametrize(("verdict", "code"), [("supported", 0), ("inconclusive", 0), ("contradicted", 3)])
def test_strict(verdict: str, code: int, own: Callable[..., list[str]]) -> None:
    argv = own("says", claim(verdict))
    assert main(argv) == 0
    assert main([*argv, "--strict"]) == code


@pytest.mark.parametrize("name", ["thesis.txt", "run.json", "findings.json"])
def test_other_peoples_folders_are_left_alone(
    name: str, tmp_path: Path, own: Callable[..., list[str]], capsys: Capture
) -> None:
    argv = own("says", claim("supported"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("years of work")
    assert main(argv) == 1
    assert f"holds files that are not an experiment's: expected an empty folder, or an experiment, got {name}" in (
        capsys.readouterr().err
    )
    assert [(p.name, p.read_text()) for p in (tmp_path / "out").iterdir()] == [(name, "years of work")]


def test_a_file_in_the_way(tmp_path: Path, own: Callable[..., list[str]], capsys: Capture) -> None:
    argv = own("says", claim("supported"))
    (tmp_path / "out").write_text("a file")
    assert main(argv) == 1
    assert "out is a file" in capsys.readouterr().err


def test_faults_are_one_line(own: Callable[..., list[str]], capsys: Capture) -> None:
    argv = own("says", claim("supported"))
    assert main([argv[0], "sayz", *argv[2:]]) == 1
    assert "unknown experiment 'sayz'. Did you mean says?" in capsys.readouterr().err
    assert main([*argv, "--seeds", "1"]) == 1
    assert "seeds is too small" in capsys.readouterr().err
    assert main(own("twice", claim("supported").replace("]", "] * 2"))) == 1
    assert "two findings have one id" in capsys.readouterr().err


def test_interrupted_says_what_is_kept(
    tmp_path: Path, own: Callable[..., list[str]], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    argv = own("says", claim("supported"))
    monkeypatch.setattr(experiments, "conduct", interrupt)
    (tmp_path / "out").mkdir()
    assert main(argv) == 130
    assert f"{tmp_path / 'out'} keeps the runs; the same command goes on from there." in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(argv[:-2]) == 130
    assert "nothing is in runs/says yet" in capsys.readouterr().err
