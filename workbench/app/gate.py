"""The gate before a training: a task that a shortcut solves is refused, unless that is what is wanted."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench import audit
from workbench.analysis import Progress
from workbench.app import settings
from workbench.audit import Audit
from workbench.errors import CheckFailed
from workbench.subject import Subject
from workbench.task import Task


def passed(task: Task, *, allow_leaky: bool = False, plugins: Sequence[str | Path] = ()) -> dict[str, Any]:
    """The certificate of a task that may be trained on, as it is kept with the run; says on stderr what it found.

    Raises:
        CheckFailed: the task leaks and ``allow_leaky`` is off; names the file, the probe and what to do.
    """
    begun: list[str] = []

    def once(stage: str) -> None:
        if not begun:
            print(f"  auditing {task.name}, some seconds the first time", file=sys.stderr, flush=True)
        begun.append(stage)

    found = audit.cached(task, progress=once)
    if found.verdict == "leaks" and not allow_leaky:
        raise refusal(found, task, plugins)
    print(f"  audit: {audit.sentence(found)}", file=sys.stderr, flush=True)
    return audit.to_json(found)


def refusal(found: Audit, task: Task, plugins: Sequence[str | Path] = ()) -> CheckFailed:
    """The error for a task that leaks: file, probe, numbers, and the two ways on."""
    worst = found.leaking[0]
    settled = f", {worst.detail}" if worst.detail else ""
    others = f" (and {', '.join(p.title for p in found.leaking[1:])})" if len(found.leaking) > 1 else ""
    return CheckFailed(
        f"{found.file}: sample: the task {found.task} leaks through {worst.title}{others}: {worst.meaning}{settled}",
        expected=f"a leak share not above {audit.LEAK}",
        got=f"{worst.leak_share:.2f} [{worst.share_low:.2f}, {worst.share_high:.2f}], accuracy {worst.accuracy:.1%}",
        next_step=f"Every probe: {audit_command(task, plugins)}. To train on it all the same: --allow-leaky "
        "(allow_leaky=True in Python).",
    )


def certificate(subject: Subject, progress: Progress) -> Audit:
    """The certificate kept with the subject's run; where there is none, its task is audited now."""
    assert subject.run is not None
    assert subject.task is not None
    kept = subject.run.audit()
    if kept is not None:
        return audit.from_json(kept)
    return audit.cached(subject.task, progress=lambda stage: progress(f"audit: {stage}"))


def audit_command(task: Task, plugins: Sequence[str | Path] = ()) -> str:
    """The command that shows the audit of this task."""
    usual = settings.resolve(task.name, plugins=plugins).task.options
    changed = [f"task.{key}={value}" for key, value in task.options.items() if usual[key] != value]
    sets = [word for option in changed for word in ("--set", option)]
    return shlex.join(["workbench", "audit", task.name, *sets, *settings.plugin_words(plugins)])
