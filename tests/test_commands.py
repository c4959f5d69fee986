"""The command line, in process: what it prints, what it leaves, and with which code it ends."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from reports import page
from workbench import registry, storage, training
from workbench.app import commands as command_folder
from workbench.app import main as main_module
from workbench.app import pages, pipeline, settings, words
from workbench.app.commands import list_
from workbench.app.main import main
from workbench.config import PRESETS
from workbench.errors import WorkbenchError
from workbench.registry import ROOT

EXAMPLES = str(ROOT / "examples")
TINY = ["model.n_heads=2", "model.d_model=16", "model.d_head=8", "train.steps=3", "train.batch_size=8"]
SETS = [word for option in TINY for word in ("--set", option)]
Capture = pytest.CaptureFixture[str]

ANALYSIS = '''"""{name}: made up."""
from workbench.analysis import Analysis
from workbench.errors import WorkbenchError
from workbench.findings import Claim, Notice, Table, Column


class Made(Analysis):
    needs = {needs}

    def run(self, subject, budget, progress):
        progress("thinking")
        {body}


ANALYSIS = Made()
'''


def schema(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "workbench" / "schemas" / f"{name}.schema.json").read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps on the example task, never changed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "counting", "--plugins", EXAMPLES, "--out", str(folder), "--seed", "4", *SETS]) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., str]:
    """Writes an analysis into a plugin folder that also knows the example task; gives the folder."""

    def write(name: str, body: str, needs: str = "()") -> str:
        folder = tmp_path / "own"
        (folder / "analyses").mkdir(parents=True, exist_ok=True)
        (folder / "tasks").mkdir(exist_ok=True)
        shutil.copy(ROOT / "examples" / "tasks" / "counting.py", folder / "tasks")
        (folder / "analyses" / f"{name}.py").write_text(ANALYSIS.format(name=name, body=body, needs=needs))
        return str(folder)

    return write


def error_of(capsys: Capture) -> str:
    """The one line that the user reads: no traceback, nothing on stdout."""
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.strip().splitlines()
    assert line.startswith("error: ")
    return line


def claim(verdict: str, name: str = "made.up") -> str:
    return f"return [Claim(id='{name}', title='t', statement='It is so.', verdict='{verdict}', reason='made up')]"


# What there is


def test_every_file_in_the_folder_is_a_command() -> None:
    files = {p.stem for p in Path(command_folder.__path__[0]).glob("*.py") if not p.stem.startswith("_")}
    found = main_module.commands()
    assert {c.__name__.rpartition(".")[2] for c in found} == files
    assert {c.NAME for c in found} >= {"list", "train", "report", "verify", "demo", "experiment", "depth"}
    assert all(c.HELP and c.KEPT for c in found)


def test_help_and_usage(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    assert "report" in capsys.readouterr().out
    for argv in ([], ["trian"], ["train", "repeated_tokens"], ["report", "x", "--samples", "many"]):
        assert main(argv) == 2
    names = ", ".join(repr(command.NAME) for command in main_module.commands())
    assert f"choose from {names}" in capsys.readouterr().err


def test_list_for_a_reader(capsys: Capture) -> None:
    assert main(["list", "--plugins", EXAMPLES]) == 0
    printed = capsys.readouterr().out
    for name in ("repeated_tokens", "counting", "distance", "winograd_ladder", *PRESETS):
        assert f"\n  {name} " in printed
    assert printed.index("\nanalyses\n") < printed.index("\nexperiments\n") < printed.index("winograd_ladder")


def test_list_as_json_fits_its_schema(capsys: Capture, own: Callable[..., str]) -> None:
    assert main(["list", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    jsonschema.validate(plain, schema("list"))
    assert "broken" not in plain
    assert "winograd_ladder" in [row["name"] for row in plain["experiments"]]
    assert "winograd_ladder" not in [row["name"] for row in plain["analyses"]]
    folder = own("cracked", "return []\n  oops")
    assert main(["list", "--json", "--check", "--plugins", folder]) == 3
    checked = json.loads(capsys.readouterr().out)
    jsonschema.validate(checked, schema("list"))
    [row] = checked["broken"]
    assert (row["name"], row["kind"]) == ("cracked", "analyses")
    assert "IndentationError" in row["reason"]
    assert main(["list", "--check", "--plugins", folder]) == 3
    assert row["reason"] in capsys.readouterr().out


def test_list_check_with_nothing_broken(capsys: Capture) -> None:
    assert main(["list", "--check"]) == 0
    assert "every task, analysis and experiment loads" in capsys.readouterr().out
    assert list_.collect([], checked=True)["broken"] == []


# Settings


def test_sets_are_parsed() -> None:
    assert settings.parse_sets(["task.n_ctx=32", "train.lr = 1e-3", "train.lr=2e-3", "model.positions=a=b"]) == {
        "task": {"n_ctx": "32"},
        "model": {"positions": "a=b"},
        "train": {"lr": "2e-3"},
    }


def test_a_preset_first_then_the_sets() -> None:
    spec = settings.resolve("repeated_tokens", "large", ["model.n_heads=2", "task.n_ctx=300"], precision="bfloat16")
    assert (spec.model.n_heads, spec.model.n_layers, spec.model.n_ctx, spec.model.d_vocab) == (2, 4, 300, 513)
    assert (spec.train.batch_size, spec.train.precision) == (128, "bfloat16")
    assert spec.task.options["period_max"] == 96


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(
    "sets", [(), ("task.period=fixed", "model.scale_scores=no", "model.norm=post", "train.lr=1e-4")]
)
def test_the_command_of_a_spec_makes_the_spec_again(name: str, sets: tuple[str, ...]) -> None:
    spec = settings.resolve("repeated_tokens", name, sets)
    command = settings.train_command(spec, 7, "my run")
    arguments = main_module.build_parser().parse_args(command.replace("'my run'", "run").split()[1:])
    assert settings.resolve(arguments.task, arguments.preset, arguments.sets) == spec
    assert (arguments.seed, arguments.out) == (7, "run")


@pytest.mark.parametrize("task", registry.find("tasks"))
def test_a_task_starts_from_its_own_preset(task: str) -> None:
    own = settings.resolve(task)
    assert own == settings.resolve(task, own.task.preset)
    assert own.train.steps == PRESETS[own.task.preset].train["steps"]


# Bad input


@pytest.mark.parametrize(
    ("words_", "says"),
    [
        (["repeated_token"], "unknown task 'repeated_token'. Did you mean repeated_tokens?"),
        (["repeated_tokens", "--preset", "teachin"], "unknown preset 'teachin'. Did you mean teaching?"),
        (["repeated_tokens", "--set", "task.n_cxt=4"], "unknown task option 'n_cxt'. Did you mean n_ctx"),
        (["repeated_tokens", "--set", "model.head=4"], "unknown model option 'head'. Did you mean"),
        (["repeated_tokens", "--set", "train.step=4"], "unknown train option 'step'. Did you mean steps"),
        (["repeated_tokens", "--set", "modle.n_heads=4"], "unknown option group 'modle'. Did you mean model?"),
        (["repeated_tokens", "--set", "n_heads"], "--set cannot be read: expected GROUP.KEY=VALUE"),
        (["repeated_tokens", "--set", "n_heads=4"], "--set cannot be read: expected GROUP.KEY=VALUE"),
        (["repeated_tokens", "--set", "train.steps=many"], "train.steps cannot be used: expected a whole number"),
        (["repeated_tokens", "--set", "task.n_ctx=12"], "too long for the context"),
        (["repeated_tokens", "--set", "task.d_vocab=12"], "the vocabulary is too small"),
        (["repeated_tokens", "--set", "model.d_head=0", "--set", "model.n_heads=5"], "n_heads does not divide"),
        (["repeated_tokens", "--set", "model.d_vocab=5"], "Set task.d_vocab instead."),
        (["repeated_tokens", "--threads", "0"], "threads cannot be used: expected a whole number from 1, got 0"),
        (
            ["counting", "--plugins", EXAMPLES, "--preset", "large"],
            "the preset 'large' does not fit the task 'counting'",
        ),
        (["repeated_tokens", "--plugins", "nowhere"], "no such folder"),
    ],
)
def test_train_refuses(words_: list[str], says: str, capsys: Capture, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["train", *words_, "--out", str(out)]) == 1
    assert says in error_of(capsys)
    assert not out.exists()


def test_no_such_device(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["train", "repeated_tokens", "--device", "cuda", "--out", str(tmp_path / "run")]) == 1
    assert "cuda" in error_of(capsys).lower()


def test_somebodys_files_are_left_alone(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["train", "repeated_tokens", "--out", str(tmp_path)]) == 1
    assert str(tmp_path) in error_of(capsys)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("thesis.txt", "years of work")]


def test_another_run_is_in_the_way(capsys: Capture, run: Path) -> None:
    assert main(["train", "counting", "--plugins", EXAMPLES, "--out", str(run), "--seed", "5", *SETS]) == 1
    assert "seed: 4 there, 5 asked" in error_of(capsys)


@pytest.mark.parametrize("command", ["report", "verify"])
def test_no_such_run(command: str, capsys: Capture, tmp_path: Path) -> None:
    assert main([command, str(tmp_path / "nowhere")]) == 1
    assert "nowhere is not a run folder" in error_of(capsys)


def test_unknown_analysis(capsys: Capture, run: Path) -> None:
    assert main(["report", str(run), "--plugins", EXAMPLES, "--only", "distanse"]) == 1
    assert "unknown analysis 'distanse'. Did you mean distance?" in error_of(capsys)


def test_too_few_samples(capsys: Capture, run: Path) -> None:
    assert main(["report", str(run), "--plugins", EXAMPLES, "--samples", "2"]) == 1
    assert "expected at least 8, got 2" in error_of(capsys)


def test_a_run_of_a_task_that_is_not_here(capsys: Capture, run: Path) -> None:
    assert main(["report", str(run)]) == 1
    line = error_of(capsys)
    assert "unknown task 'counting'" in line
    assert "--plugins DIR" in line


def untouched(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("run/model.safetensors", "model.safetensors belongs to the run"),
        ("run/run.json", "run.json belongs to the run"),
        ("run/findings.json", "findings.json belongs to the run"),
        ("run/new.txt", "new.txt belongs to the run"),
        ("run/checkpoints/page.html", "page.html belongs to the run"),
        ("thesis.txt", "thesis.txt is not a page of the workbench"),
        ("thesis.html", "thesis.findings.json would be replaced"),
        ("", "--out cannot be used: expected a file for the page, got an empty name"),
        ("run", "is a folder"),
        ("thesis.txt/page.html", "page.html cannot be written"),
        ("nowhere/../thesis.txt/page.html", "page.html cannot be written"),
        ("nowhere/../run/run.json", "run.json belongs to the run"),
        ("a" * 300 + ".html", "File name too long"),
        ("a" * 245 + ".html", "File name too long"),
    ],
)
def test_a_report_replaces_nothing_that_is_not_a_page(
    out: str, says: str, capsys: Capture, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "thesis.findings.json").write_text('{"years": "of work"}')
    before = untouched(tmp_path)
    monkeypatch.setattr(pipeline, "analyse", lambda *_: pytest.fail("it computed before it looked"))
    monkeypatch.chdir(tmp_path)
    assert main(["report", "run", "--plugins", EXAMPLES, "--out", out]) == 1
    assert says in error_of(capsys)
    assert untouched(tmp_path) == before


def test_a_page_that_cannot_be_written(capsys: Capture, run: Path) -> None:
    argv = ["report", str(run), "--plugins", EXAMPLES, "--only", "distance", "--samples", "8"]
    assert main([*argv, "--out", str(run / "run.json" / "page.html")]) == 1
    assert "cannot be written" in error_of(capsys)
    assert not (run / "findings.json").exists()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(28, "No space left on device", "there/file"), "there/file cannot be used: got No space left"),
        (MemoryError(), "not enough memory for this model or batch. Take a smaller model"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"), "not enough memory"),
    ],
)
def test_what_the_machine_refuses_is_one_line(
    error: Exception, says: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise error

    monkeypatch.setattr(list_, "run", refuse)
    assert main(["list"]) == 1
    assert says in error_of(capsys)


def test_a_terminal_without_our_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(list_, "run", lambda _: print("2 × 4") or 0)
    assert main(["list"]) == 0
    assert written.getvalue() == b"2 ? 4\n"


# Interruptions


def interrupting(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def terminating(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("stop", [interrupting, terminating])
def test_interrupted_says_what_is_kept(
    stop: Callable[..., None], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(training, "train", stop)
    argv = ["train", "counting", "--plugins", EXAMPLES, "--out", str(tmp_path / "run")]
    assert main(argv) == 130
    assert (
        f"interrupted: nothing is in {tmp_path / 'run'} yet; the same command begins anew." in capsys.readouterr().err
    )
    (tmp_path / "run").mkdir()
    assert main(argv) == 130
    printed = capsys.readouterr().err
    assert f"interrupted: {tmp_path / 'run'} keeps what it holds; the same command goes on from there." in printed
    assert "Traceback" not in printed
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_report_interrupted_leaves_the_run_as_it_was(
    capsys: Capture, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(p.name for p in run.iterdir())
    monkeypatch.setattr(page, "render_page", interrupting)
    monkeypatch.setattr(pages, "render_page", interrupting)
    assert main(["report", str(run), "--plugins", EXAMPLES, "--only", "distance", "--samples", "8"]) == 130
    assert f"{run} is unchanged" in capsys.readouterr().err
    assert sorted(p.name for p in run.iterdir()) == before


def test_a_reader_that_leaves_is_no_error(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(list_, "run", gone)
    monkeypatch.setattr(main_module.os, "dup2", lambda *_: None)
    assert main(["list"]) == 1
    assert capsys.readouterr().err == ""


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any) -> int:
        raise RuntimeError("ours")

    monkeypatch.setattr(list_, "run", fault)
    with pytest.raises(RuntimeError, match="ours"):
        main(["list"])


# Reports


def test_report_leaves_findings_and_a_page(capsys: Capture, run: Path) -> None:
    argv = ["report", str(run), "--plugins", EXAMPLES, "--only", "distance", "--samples", "16"]
    assert main(argv) == 0
    printed = capsys.readouterr()
    record = json.loads((run / "findings.json").read_text())
    jsonschema.validate(record, schema("findings"))
    assert record["run"] == json.loads((run / "run.json").read_text())["hash"]
    assert record["asked"] == {"only": ["distance"], "samples": 16}
    assert [c["id"] for c in record["claims"]] == ["distance.far"]
    assert len(record["tables"]["distance.heads"]) == 4
    html = (run / "report.html").read_text()
    for part in (record["run"], record["hash"], "workbench train counting", "--only distance --samples 16", "seed 4"):
        assert part in html
    assert "looks more than one token back on average" in printed.out
    assert printed.out.rstrip().endswith(f"page: {run / 'report.html'}")
    assert "distance: patterns" in printed.err
    assert main([*argv, "--threads", "2"]) == 0
    again = json.loads((run / "findings.json").read_text())
    jsonschema.validate(again, schema("findings"))
    assert again["asked"] == {"only": ["distance"], "samples": 16, "threads": 2}
    assert "--samples 16 --threads 2" in (run / "report.html").read_text()
    capsys.readouterr()
    assert main([*argv, "--threads", "0"]) == 1
    assert "threads cannot be used" in capsys.readouterr().err
    assert main(["verify", str(run)]) == 0

    assert main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.removeprefix("ok\n")) == record


def test_the_page_may_go_elsewhere(run: Path, tmp_path: Path) -> None:
    there = tmp_path / "pages" / "one.html"
    argv = ["report", str(run), "--plugins", EXAMPLES, "--only", "distance", "--samples", "8", "--out", str(there)]
    assert main(argv) == 0
    assert there.read_text().startswith("<!doctype html>")
    assert not (run / "report.html").exists()
    assert not (run / "findings.json").exists()  # it stands beside its page
    record = json.loads((there.parent / "one.findings.json").read_text())
    assert record["hash"] in there.read_text()
    assert main(argv) == 0  # our own page may be replaced


def test_pages_and_findings_keep_step(capsys: Capture, run: Path, tmp_path: Path) -> None:
    argv = ["report", str(run), "--plugins", EXAMPLES, "--only", "distance", "--samples"]
    assert main([*argv, "8"]) == 0
    page_of_8 = (run / "report.html").read_text()
    assert main([*argv, "16", "--out", str(tmp_path / "x.html")]) == 0
    assert json.loads((run / "findings.json").read_text())["asked"]["samples"] == 8
    assert main(["verify", str(run)]) == 0
    assert main([*argv, "16"]) == 0
    (run / "report.html").write_text(page_of_8)
    capsys.readouterr()
    assert main(["verify", str(run)]) == 3
    assert "report.html and findings.json are of different reports" in error_of(capsys)


def test_a_good_report_outlives_a_failure(capsys: Capture, run: Path, own: Callable[..., str]) -> None:
    own("broken", "return 1 / 0")
    folder = own("sound", claim("supported"))
    argv = ["report", str(run), "--plugins", folder, "--samples", "8", "--only"]
    assert main([*argv, "sound"]) == 0
    before = untouched(run)
    capsys.readouterr()
    assert main([*argv, "broken"]) == 1
    assert "error: every analysis failed (broken)" in capsys.readouterr().err
    assert untouched(run) == before


@pytest.mark.parametrize("body", ["import sys; sys.exit(7)", "raise MemoryError"])
def test_an_analysis_ends_nothing_else(body: str, capsys: Capture, run: Path, own: Callable[..., str]) -> None:
    argv = ["report", str(run), "--plugins", own("ending", body), "--samples", "8", "--only", "ending"]
    assert main(argv) == 1
    assert json.loads((run / "findings.json").read_text())["failed"] == ["ending"]
    assert ("Traceback" in capsys.readouterr().err) == ("sys" in body)


def test_the_command_on_the_page_says_how_the_run_was_made(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pipeline.open_run(run)
    made.record["execution"].update(threads=2, device="cuda", compile=True)
    kept = {**made.audit(), "verdict": "leaks"}
    monkeypatch.setattr(pipeline.Run, "audit", lambda _: kept)
    [train, _] = pipeline.commands(made, run, (), 8, [EXAMPLES])
    assert f"--seed 4 --threads 2 --device cuda --compile --allow-leaky --plugins {EXAMPLES}" in train
    made.record["execution"].update(threads=1, device="cpu", compile=False)
    kept["verdict"] = "clean"
    [train, _] = pipeline.commands(made, run, (), 8, [EXAMPLES])
    assert train.endswith(f"--seed 4 --plugins {EXAMPLES}")


def test_a_failing_analysis_stands_in_place_and_the_rest_stands(
    capsys: Capture, run: Path, own: Callable[..., str]
) -> None:
    own("broken", "return 1 / 0")
    own("refusing", "raise WorkbenchError('the model is too odd')")
    folder = own("sound", claim("supported"))
    argv = ["report", str(run), "--plugins", folder, "--samples", "8", "--only"]
    assert main([*argv, "broken", "refusing", "sound"]) == 1
    printed = capsys.readouterr()
    record = json.loads((run / "findings.json").read_text())
    assert record["failed"] == ["broken", "refusing"]
    assert [c["id"] for c in record["claims"]] == ["made.up"]
    html = (run / "report.html").read_text()
    assert "ZeroDivisionError: division by zero" in html
    assert "the model is too odd" in html
    assert "It is so" in html
    assert "the analysis broken failed; the page says why" in printed.out
    assert "ZeroDivisionError" in printed.err  # a fault of the analysis: its author needs the place


def test_an_analysis_that_lacks_its_needs_is_skipped_with_the_reason(run: Path, own: Callable[..., str]) -> None:
    folder = own("demanding", claim("supported"), needs="('task', 'counterfactual', 'bayes_loss')")
    assert main(["report", str(run), "--plugins", folder, "--samples", "8", "--only", "demanding"]) == 0
    assert json.loads((run / "findings.json").read_text())["claims"] == []
    assert "counterfactual, bayes_loss" in (run / "report.html").read_text()


def test_ids_are_unique_on_a_page(run: Path, own: Callable[..., str]) -> None:
    own("first", claim("supported"))
    folder = own("second", claim("contradicted"))
    assert main(["report", str(run), "--plugins", folder, "--samples", "8", "--only", "first", "second"]) == 1
    record = json.loads((run / "findings.json").read_text())
    assert (record["failed"], [c["verdict"] for c in record["claims"]]) == (["second"], ["supported"])


@pytest.mark.parametrize(
    ("verdict", "code"), [("supported", 0), ("inconclusive", 0), ("not_applicable", 0), ("contradicted", 3)]
)
def test_strict(verdict: str, code: int, capsys: Capture, run: Path, own: Callable[..., str]) -> None:
    argv = ["report", str(run), "--plugins", own("made", claim(verdict)), "--samples", "8", "--only", "made"]
    assert main(argv) == 0
    assert main([*argv, "--strict"]) == code
    assert f"{verdict.replace('_', ' ')}  It is so: made up" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.81249, "0.812"), (-0.004, "-0.004"), (3.14159, "3.14"), (42.0, "42.0"), (1234.5, "1234")],
)
def test_numbers_in_words(value: float, text: str) -> None:
    assert words.number(value) == text


# Verify and demo


def test_verify_names_the_file_that_is_wrong(capsys: Capture, run: Path) -> None:
    assert main(["verify", str(run)]) == 0
    assert capsys.readouterr().out == "ok\n"
    weights = run / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    assert main(["verify", str(run)]) == 3
    assert "model.safetensors" in error_of(capsys)
    assert main(["report", str(run), "--plugins", EXAMPLES]) == 1  # to any other command it is a fault, not an answer
    assert "model.safetensors" in error_of(capsys)
    weights.write_bytes(whole)
    assert main(["verify", str(run)]) == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace('"samples": 8', '"samples": 9'), "findings.json was edited by hand or damaged"),
        (lambda text: text[: len(text) // 2], "findings.json cannot be read"),
        (lambda text: "[]", "findings.json was edited by hand or damaged"),
        (lambda text: json.dumps({"a": 1, "hash": storage.sha256(b'{"a":1}')}), "findings.json is not whole"),
        (lambda text: '{"a": 1e999, "hash": "0"}', "findings.json was edited by hand or damaged"),
    ],
)
def test_verify_looks_at_the_findings(change: Callable[[str], str], says: str, capsys: Capture, run: Path) -> None:
    assert main(["report", str(run), "--plugins", EXAMPLES, "--only", "distance", "--samples", "8"]) == 0
    capsys.readouterr()
    findings = run / "findings.json"
    findings.write_text(change(findings.read_text()))
    assert main(["verify", str(run)]) == 3
    assert says in error_of(capsys)


def test_findings_of_another_run(capsys: Capture, run: Path) -> None:
    assert main(["report", str(run), "--plugins", EXAMPLES, "--only", "distance", "--samples", "8"]) == 0
    capsys.readouterr()
    record = json.loads((run / "findings.json").read_text())
    other = pipeline.findings_file.make_record("0" * 64, [], record["asked"], [])
    (run / "findings.json").write_text(json.dumps(other))
    assert main(["verify", str(run)]) == 3
    assert "findings.json is about another run" in error_of(capsys)


def test_demo_again_reuses_what_is_there(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = settings.resolve("repeated_tokens", "teaching", [*TINY[1:], "model.n_heads=1"])
    as_asked = settings.resolve
    # The demo asks for a task and a preset alone; everything else asks as it always does.
    monkeypatch.setattr(
        settings, "resolve", lambda task, *preset, **more: tiny if preset else as_asked(task, *preset, **more)
    )
    rendered: list[str] = []

    def quick(subject: Any, names: Any, *_: Any) -> tuple[list[Any], list[str]]:
        rendered.append(subject.task.name)
        return [], []

    monkeypatch.setattr(pipeline, "analyse", quick)
    argv = ["demo", "--out", str(tmp_path / "demo"), "--preset", "teaching", "--seed", "3"]
    for _ in range(2):
        assert main(argv) == 0
        assert capsys.readouterr().out.rstrip().endswith(f"page: {tmp_path / 'demo' / 'report.html'}")
    assert rendered == ["repeated_tokens"]
    (tmp_path / "demo" / "report.html").unlink()
    assert main(argv) == 0
    assert len(rendered) == 2
    monkeypatch.setattr(pipeline.findings_file, "code_hash", lambda: "0" * 64)
    assert main(argv) == 0
    assert len(rendered) == 3
    stale = (tmp_path / "demo" / "report.html").read_text()
    assert main(["report", str(tmp_path / "demo"), "--samples", "16"]) == 0
    assert main(argv) == 0
    assert len(rendered) == 5
    page_now = tmp_path / "demo" / "report.html"
    page_now.write_text(
        page_now.read_text().replace(json.loads((tmp_path / "demo" / "findings.json").read_text())["hash"], "another")
    )
    assert main(argv) == 0
    assert len(rendered) == 6
    assert page_now.read_text() == stale
    (tmp_path / "demo" / "training.csv").write_text("made up")
    capsys.readouterr()
    assert main(argv) == 1
    assert "training.csv has changed" in capsys.readouterr().err


def test_styles_are_code_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    monkeypatch.setattr(pipeline.findings_file, "ROOT", tmp_path)
    seen = [pipeline.findings_file.code_hash()]
    for name in ("a.py", "b.css", "c.js"):
        (tmp_path / "reports" / name).write_text("x")
        seen.append(pipeline.findings_file.code_hash())
    assert len(set(seen)) == 4


def test_opening_a_run_gives_its_task_and_seed(run: Path) -> None:
    subject = pipeline.open_subject(pipeline.open_run(run), [EXAMPLES])
    assert subject.task is not None
    assert (subject.task.name, subject.seed, len(subject.heads)) == ("counting", 4, 4)
    with pytest.raises(WorkbenchError, match="unknown analysis"):
        pipeline.chosen_analyses(["nothing"])
