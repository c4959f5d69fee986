"""From an experiment's name to its findings and page: ``OUT/report.html``, ``OUT/findings.json``, ``OUT/runs/``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from workbench import audit, runs, storage
from workbench.analysis import Budget, Progress
from workbench.app import findings_file
from workbench.app.lab import RUNS, ProcessLab
from workbench.app.pages import PAGE, Report, check_ids, publish
from workbench.app.settings import plugin_words
from workbench.errors import WorkbenchError
from workbench.findings import Finding, Notice
from workbench.registry import load_experiment
from workbench.training.execution import use_threads


def conduct(
    name: str, out: str | Path, budget: Budget, *, plugins: Sequence[str] = (), progress: Progress = print
) -> Report:
    """Run an experiment: train what is not there yet, then write its findings and page. Measures on one CPU thread.

    Raises:
        WorkbenchError: an unknown experiment, a folder that holds something else, or whatever goes wrong inside it.
    """
    experiment, folder = load_experiment(name, plugins), Path(out)
    _require_ours(folder)
    storage.make_folder(folder / RUNS)
    lab = ProcessLab(folder, tuple(plugins))
    with use_threads(1):
        findings = list(experiment.run(budget, lab, progress))
        findings += _certificates(lab, progress)
    check_ids(findings)
    asked = {**findings_file.asked([name], budget.samples), "seeds": budget.seeds}
    if budget.seconds is not None:
        asked["seconds"] = budget.seconds
    used = dict(sorted(lab.used.items()))
    run_hash = storage.sha256(storage.canonical_json(used))
    record = findings_file.make_record(run_hash, findings, asked, [])
    words = ["workbench", "experiment", name, "--out", str(out), "--seeds", str(budget.seeds)]
    words += [] if budget.seconds is None else ["--seconds", f"{budget.seconds:g}"]
    progress("page")
    return publish(
        findings,
        record,
        folder=folder,
        page=folder / PAGE,
        identity={"runs": run_hash, "findings": record["hash"], "code": record["code"], "asked": asked, "models": used},
        command=shlex.join([*words, *plugin_words(plugins)]),
        heading=f"{name.replace('_', ' ')} · experiment · {len(used)} models",
    )


def _certificates(lab: ProcessLab, progress: Progress) -> list[Finding]:
    """The certificate of the first task that models were trained on, and the verdict on each other one."""
    found: list[Finding] = []
    for index, task in enumerate(lab.tasks):
        certificate = audit.cached(task, progress=progress)
        if index == 0:
            found += audit.findings(certificate)
            continue
        options = ", ".join(f"{k}={v}" for k, v in task.options.items() if v != lab.tasks[0].options.get(k))
        found.append(
            Notice(
                id=f"audit.verdict_{index}",
                section=found[0].section,
                title=f"{task.name.replace('_', ' ')} with {options}",
                text=audit.sentence(certificate),
                level="info" if certificate.verdict == "clean" else "warning",
            )
        )
    return found


def _require_ours(folder: Path) -> None:
    """Before anything is touched: the folder is missing, empty, or an experiment's."""
    if folder.exists() and not folder.is_dir():
        raise WorkbenchError(
            f"{folder} is a file", expected="a folder for the experiment", next_step="Choose another name."
        )
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if names & {runs.RECORD, runs.RESUME} or (names and RUNS not in names):
        raise WorkbenchError(
            f"{folder} holds files that are not an experiment's", expected="an empty folder, or an experiment",
            got=min(names - {RUNS}), next_step="Choose another folder: nothing was touched.",
        )  # fmt: skip
