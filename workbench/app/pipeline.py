"""From a run folder to findings to a page.

Each analysis stands for itself. One whose needs the subject does not meet is skipped with the reason on the page; one
that fails leaves its error in place, and the rest of the page stands.
"""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench import audit, storage
from workbench.analysis import Budget, Progress, missing_needs
from workbench.app import findings_file, gate, words
from workbench.app.pages import PAGE, Report, carries, check_ids, depth_findings, page_place, publish, record_place
from workbench.app.settings import Spec, plugin_words, train_command
from workbench.audit import Audit
from workbench.errors import WorkbenchError, unknown_name
from workbench.findings import Answer, Definition, Finding, Notice
from workbench.proof import prove
from workbench.registry import Entry, find, load, load_task
from workbench.runs import Run, open_run
from workbench.subject import Subject
from workbench.training.execution import use_threads

Plugins = Sequence[str | Path]


def report(
    folder: str | Path,
    *,
    only: Sequence[str] = (),
    out: str | Path | None = None,
    samples: int = Budget.samples,
    threads: int = 1,
    plugins: Plugins = (),
    progress: Progress = print,
) -> Report:
    """Analyse a run; write the page and ``findings.json`` into its folder, or ``out`` and its findings beside it.

    Args:
        threads: of the CPU. On one, the numbers are the same on every machine, to the last digit.

    Raises:
        WorkbenchError: an unfinished, damaged or missing run, an unknown analysis, threads that cannot be used, a place
            that cannot be written (all said before anything is computed), or every analysis failed where a good report
            is kept.
    """
    budget = Budget(samples=samples)
    names = chosen_analyses(only, plugins)
    run = open_run(Path(folder))
    page = page_place(out, run.folder)
    with use_threads(threads):
        subject = open_subject(run, plugins)
        progress("self-proof")
        proof = prove(subject)
        findings, failed = analyse(subject, names, budget, progress, plugins)
        if failed and not any(not isinstance(finding, Notice) for finding in findings):
            _keep_good(run, page, failed)
        findings = with_proof(findings, proof)
        findings = with_certificate(findings, gate.certificate(subject, progress))
        findings += depth_findings(subject.task, plugins) if subject.task is not None else []
    record = findings_file.make_record(run.hash, findings, findings_file.asked(only, samples, threads), failed)
    progress("page")
    return publish(
        findings,
        record,
        folder=Path(folder),
        page=page,
        identity=identity(run, record),
        command="\n".join(commands(run, folder, only, samples, plugins, threads)),
        heading=heading(run),
    )


def current_report(run: Run) -> Report | None:
    """The plain report that is there already, if it is about this run and was made by this code; else None."""
    page = run.folder / PAGE
    try:
        record = findings_file.read(run.folder)
    except WorkbenchError:
        return None
    wanted = {
        "run": run.hash,
        "code": findings_file.code_hash(),
        "asked": findings_file.asked((), Budget.samples),
        "failed": [],
    }
    if record is None or not carries(page, record) or any(record.get(key) != value for key, value in wanted.items()):
        return None
    return Report(record, page)


def _keep_good(run: Run, page: Path, failed: Sequence[str]) -> None:
    """Raise where a report in which every analysis failed would replace a good one of the same run."""
    place = record_place(page, run.folder)
    try:
        record = storage.read_json(place)
    except WorkbenchError:
        return
    good = findings_file.is_ours(record) and record.get("run") == run.hash and carries(page, record)
    if good and (record.get("claims") or not record.get("failed")):
        raise WorkbenchError(
            f"every analysis failed ({', '.join(failed)})", next_step=f"{page} and {place.name} are kept as they were."
        )


def open_subject(run: Run, plugins: Plugins = ()) -> Subject:
    """The run's model with the task that it was trained on; the run's seed addresses everything measured on it."""
    if run.task_name not in find("tasks", plugins):
        unknown = unknown_name("task", run.task_name, find("tasks", plugins))
        raise WorkbenchError(
            unknown.problem,
            next_step=f"{unknown.next_step} If it is a task of your own, name the folder that holds it: --plugins DIR "
            "(plugins=[DIR] in Python).",
        )
    task = load_task(run.task_name, run.task_options, plugins)
    return Subject(run.load_model(), task.vocabulary, task, run, run.seed)


def chosen_analyses(only: Sequence[str], plugins: Plugins = ()) -> list[str]:
    """The analyses named, or all that there are; an unknown name is an error with the nearest ones."""
    known = find("analyses", plugins)
    for name in only:
        if name not in known:
            raise unknown_name("analysis", name, known)
    return list(dict.fromkeys(only)) or list(known)


def analyse(
    subject: Subject, names: Sequence[str], budget: Budget, progress: Progress, plugins: Plugins = ()
) -> tuple[list[Finding], list[str]]:
    """Run the analyses one after the other: all findings, and the names of the analyses that failed."""
    findings: list[Finding] = []
    skipped: list[Finding] = []
    failed: list[str] = []
    known = find("analyses", plugins)
    for name in sorted(names, key=lambda name: not _leads(known[name], plugins)):
        progress(name)
        try:
            analysis = load(known[name], plugins)
            missing = missing_needs(analysis, subject)
            if missing:
                skipped.append(_skipped(name, missing))
                continue
            made = list(analysis.run(subject, budget, lambda stage, name=name: progress(f"{name}: {stage}")))
            # A word that two analyses use is defined once.
            made = [f for f in made if not (isinstance(f, Definition) and f in findings)]
            check_ids(made, findings)
            findings += made
        except (Exception, SystemExit) as error:  # the page shows it in place, and the other analyses still run
            notice = _failed(name, error)
            findings.append(notice)
            failed.append(name)
            progress(f"{name} failed: {notice.text}")
    return [*findings, *skipped], failed


def _leads(entry: Entry, plugins: Plugins) -> bool:
    """Whether an analysis stands first; one that does not load is told of when its turn comes."""
    try:
        return bool(load(entry, plugins).leads)
    except (Exception, SystemExit):
        return False


def with_proof(findings: Sequence[Finding], proof: Sequence[Finding]) -> list[Finding]:
    """The findings with the badges under the first claims and the table at the end."""
    after = next((i + 1 for i, finding in enumerate(findings) if isinstance(finding, Answer)), 0)
    badges = [finding for finding in proof if isinstance(finding, Notice)]
    return [*findings[:after], *badges, *findings[after:], *(f for f in proof if f not in badges)]


def with_certificate(findings: Sequence[Finding], certificate: Audit) -> list[Finding]:
    """The findings with the task's certificate at their end, and if it leaks the banner under the first claims."""
    after = next((i + 1 for i, finding in enumerate(findings) if isinstance(finding, Answer)), 0)
    banner = audit.banner(certificate)
    return [*findings[:after], *([banner] if banner else []), *findings[after:], *audit.findings(certificate)]


def _skipped(name: str, missing: Sequence[str]) -> Notice:
    text = f"It needs what this model and its task do not have: {', '.join(missing)}."
    title = f"The analysis {name} was skipped"
    return Notice(id=f"{name}.skipped", section="What was not run", title=title, text=text)


def _failed(name: str, error: Exception | SystemExit) -> Notice:
    error = words.refused(error) or error
    text = str(error)
    if not isinstance(error, WorkbenchError):
        # A fault of the analysis, not of its user: whoever wrote it needs the place.
        traceback.print_exception(error)
        text = f"{type(error).__name__}: {error}"
    return Notice(id=f"{name}.failed", title=f"The analysis {name} failed", text=text, level="error")


def commands(
    run: Run, folder: str | Path, only: Sequence[str], samples: int, plugins: Plugins = (), threads: int = 1
) -> tuple[str, str]:
    """The command that trains the run again, and the one that reports on it."""
    spec = Spec(load_task(run.task_name, run.task_options, plugins), run.model_config, run.train_config)
    audited = run.audit()
    leaky = audited is not None and audit.from_json(audited).verdict == "leaks"
    again = train_command(spec, run.seed, folder, plugins, execution=run.record["execution"], allow_leaky=leaky)
    report_words = ["workbench", "report", str(folder), *(["--only", *only] if only else [])]
    report_words += ["--samples", str(samples), *(["--threads", str(threads)] if threads > 1 else [])]
    report_words += plugin_words(plugins)
    return again, shlex.join(report_words)


def heading(run: Run) -> str:
    """The line above a page's question: ``repeated tokens · 2 layers × 4 heads · seed 0 · run 1a2b3c4d``."""
    shape = run.model_config
    size = f"{_counted(shape.n_layers, 'layer')} × {_counted(shape.n_heads, 'head')}"
    return f"{run.task_name.replace('_', ' ')} · {size} · seed {run.seed} · run {run.hash[:8]}"


def _counted(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def identity(run: Run, record: Mapping[str, Any]) -> dict[str, Any]:
    """What the page says about where it comes from: hashes, spec, and how the run was executed."""
    hashes = {"run": run.hash, "findings": record["hash"], "code": record["code"]}
    return {**hashes, "spec": run.spec, "execution": run.record["execution"]}
