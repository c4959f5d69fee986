"""The page and ``findings.json`` of findings, whether they come from a run or from an experiment of many."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.page import render_page
from workbench import depth, storage
from workbench.app import findings_file
from workbench.app.settings import plugin_words
from workbench.errors import WorkbenchError
from workbench.findings import Finding
from workbench.registry import load_task
from workbench.task import Task

PAGE = "report.html"


@dataclass(frozen=True)
class Report:
    """What a report leaves: the content of ``findings.json``, and where the page is."""

    record: Mapping[str, Any]
    page: Path


def depth_findings(task: Task, plugins: Sequence[str | Path] = ()) -> list[Finding]:
    """The depth certificate of a task where one is kept; else the command that makes it."""
    kept = depth.cached(task)
    return depth.findings(kept) if kept is not None else [depth.missing(depth_command(task, plugins))]


def depth_command(task: Task, plugins: Sequence[str | Path] = ()) -> str:
    """The command that certifies exactly this task: options that differ from the usual ones are written out."""
    usual = load_task(task.name, plugins=plugins).options
    sets = [f"task.{key}={value}" for key, value in task.options.items() if usual[key] != value]
    words = ["workbench", "depth", task.name, *(word for text in sets for word in ("--set", text))]
    return shlex.join([*words, *plugin_words(plugins)])


def check_ids(made: Sequence[Finding], before: Sequence[Finding] = ()) -> None:
    """Raise if an id stands twice among these findings and those before them."""
    seen = {finding.id for finding in before}
    for finding in made:
        if finding.id in seen:
            raise WorkbenchError("two findings have one id", expected="ids unique on a page", got=finding.id)
        seen.add(finding.id)


def publish(
    findings: Sequence[Finding],
    record: Mapping[str, Any],
    *,
    folder: Path,
    page: Path,
    identity: Mapping[str, Any],
    command: str,
    heading: str,
) -> Report:
    """Write the page, then ``findings.json`` into the folder: the record is there only if its page is.

    Args:
        record: of :func:`workbench.app.findings_file.make_record`. identity: what the page says about its origin; the
            record's own hashes are put after the first entry.

    Raises:
        WorkbenchError: a place that cannot be written.
    """
    html = render_page(findings, identity=identity, command=command, heading=heading)
    storage.make_folder(page.parent)
    storage.write_atomic(page, html.encode())
    storage.write_json(folder / findings_file.NAME, record)
    return Report(record, page)
