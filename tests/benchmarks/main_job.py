"""The main job in a fresh process: seconds, peak memory and the size of the page; and how soon the command answers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.measure import Row, limit
from workbench.errors import WorkbenchError

COMMAND = Path(sys.executable).with_name("workbench")
GIB = 2**30


def _run(arguments: Sequence[str], log: Path) -> tuple[float, float]:
    """Wall seconds and peak GiB of one ``workbench`` command.

    Raises:
        WorkbenchError: the command failed; with the end of what it said.
    """
    start = time.perf_counter()
    with log.open("wb") as out:
        process = subprocess.Popen([COMMAND, *arguments], stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        said = log.read_text(errors="replace").strip()[-500:]
        raise WorkbenchError(
            f"workbench {' '.join(arguments)} ended with {process.returncode}", got=said or "no output"
        )
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, usage.ru_maxrss * unit / GIB


def rows() -> Iterator[Row]:
    """The rows against fixed limits."""
    with tempfile.TemporaryDirectory() as folder:
        log, out = Path(folder, "log"), Path(folder, "demo")
        for argument in ("--help", "list"):
            best = min(_run([argument], log)[0] for _ in range(5))
            yield limit(f"workbench {argument}, best of 5", best, 0.5, "s")
        seconds, memory = _run(["demo", "--out", str(out)], log)
        yield limit("workbench demo, from nothing to the page", seconds, 120, "s")
        yield limit("workbench demo, peak memory", memory, 1.5, "GiB")
        yield limit("workbench demo, size of the page", (out / "report.html").stat().st_size / 1e6, 4, "MB")
