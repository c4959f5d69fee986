"""The page and ``findings.json`` of findings, whether they come from a run or from an experiment of many."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.page import MARK, render_page
from workbench import depth, runs, storage
from workbench.app import findings_file
from workbench.app.settings import plugin_words
from workbench.errors import CheckFailed, WorkbenchError
from workbench.findings import Finding
from workbench.registry import load_task
from workbench.task import Task

PAGE = "report.html"
_HEAD = 4096
"""Bytes in which the mark of a page stands."""


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
    """Write the page, then the record beside it: the record is there only if its page is.

    Args:
        folder: of the run or experiment. page: where the page goes; see :func:`record_place` for the record.
        record: of :func:`workbench.app.findings_file.make_record`. identity: what the page says about its origin; the
            record's own hashes are put after the first entry.

    Raises:
        WorkbenchError: a place that cannot be written.
    """
    html = render_page(findings, identity=identity, command=command, heading=heading)
    storage.make_folder(page.parent)
    storage.write_atomic(page, html.encode())
    storage.write_json(record_place(page, folder), record)
    return Report(record, page)


def record_place(page: Path, folder: Path) -> Path:
    """Where the record of a page stands: ``findings.json`` with the folder's own page, else ``STEM.findings.json``."""
    if page.resolve() == (folder / PAGE).resolve():
        return folder / findings_file.NAME
    return page.with_name(f"{page.stem}.{findings_file.NAME}")


def page_place(out: str | Path | None, folder: Path) -> Path:
    """Where the page goes: ``out``, by default the folder's own page. Writes nothing.

    Raises:
        WorkbenchError: nothing may be written there: no name, a folder, a file that is not ours, a file of the run, or
            a place that the system does not let us write.
    """
    if out is not None and not str(out):
        raise WorkbenchError("--out cannot be used", expected="a file for the page", got="an empty name")
    page = folder / PAGE if out is None else Path(out)
    try:
        if out is not None:  # without "..", which would stand for another place once folders are made
            page = page.parent.resolve() / page.name
        record = record_place(page, folder)
        for path in (page, record):
            if path.is_dir():
                raise WorkbenchError(f"{path} is a folder", expected="a file", next_step="Choose another name.")
        if record.name != findings_file.NAME:
            _require_free(page, record, folder)
        _require_writable(page, record)
    except OSError as error:
        raise storage.unwritable(page, error) from error
    return page


def _require_free(page: Path, record: Path, folder: Path) -> None:
    """Raise where a page that goes elsewhere would replace a file of the run, or one that we did not write."""
    keep = "Choose another name: nothing was touched."
    whole, place = folder.resolve(), page.resolve()
    inside = place.is_relative_to(whole)
    if inside and (place.suffix != ".html" or place.is_relative_to(whole / runs.CHECKPOINTS)):
        raise WorkbenchError(
            f"{page} belongs to the run", expected="a name that ends in .html, outside checkpoints/", next_step=keep
        )
    if page.exists() and not _is_page(page):
        raise WorkbenchError(f"{page} is not a page of the workbench", next_step=keep)
    if record.exists() and not _is_record(record):
        raise WorkbenchError(f"{record} would be replaced, and is not of the workbench", next_step=keep)


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return MARK.encode() in file.read(_HEAD)


def _is_record(path: Path) -> bool:
    try:
        return findings_file.is_ours(storage.read_json(path))
    except WorkbenchError:
        return False


def _require_writable(page: Path, record: Path) -> None:
    """OSError where the files could not be written: their names, and the nearest folder that is there."""
    for path in (page, record):
        path.with_name(f".{path.name}.tmp").exists()  # raises where the name is too long
    there = next(parent for parent in page.absolute().parents if parent.exists())
    if not there.is_dir():
        raise NotADirectoryError(0, f"{there} is a file")
    with tempfile.TemporaryFile(dir=there):
        pass


def carries(page: Path, record: Mapping[str, Any]) -> bool:
    """Whether the page shows this record: its identity holds the record's hash."""
    try:
        return record["hash"].encode() in page.read_bytes()
    except OSError:
        return False


def verify(folder: Path, run_hash: str) -> None:
    """Raise if ``findings.json`` is damaged or of another run, or if the page beside it shows other findings."""
    findings_file.verify(folder, run_hash)
    record, page = findings_file.read(folder), folder / PAGE
    if record is not None and page.exists() and not carries(page, record):
        raise CheckFailed(
            f"{page} and {findings_file.NAME} are of different reports",
            expected=f"findings {record['hash']} on the page",
            next_step=f"Make them again with: workbench report {folder}",
        )
