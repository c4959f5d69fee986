"""What a command shows of its work on stderr, so that stdout holds the result alone: its stages, and how far it is."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from tqdm import tqdm

from workbench.analysis import Progress
from workbench.work import Watch, watched

BAR_AFTER = 0.5
"""Seconds before a bar appears: shorter work would make it flicker."""
LINE_EVERY = 15.0
"""Seconds between two lines about one piece of work, where no bar can be drawn (a log file)."""


@contextlib.contextmanager
def shown() -> Iterator[Progress]:
    """Show the stages that the yielded function is told of, and a bar (elsewhere than on a terminal, lines) for each
    counted loop that runs meanwhile."""

    def stage(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    with contextlib.ExitStack() as bars, watched(_bars(bars) if sys.stderr.isatty() else _lines()):
        yield stage


def _bars(kept: contextlib.ExitStack) -> Watch:
    """One bar a loop, gone when it ends; ``kept`` closes the one that an error left."""
    drawn: list[tqdm] = []
    kept.callback(lambda: [bar.close() for bar in drawn])
    layout = "    {percentage:3.0f}% |{bar}| {elapsed} gone, {remaining} left"
    look = {"bar_format": layout, "dynamic_ncols": True, "leave": False, "delay": BAR_AFTER}

    def tell(done: int, total: int) -> None:
        if not drawn:
            drawn.append(tqdm(total=total, file=sys.stderr, **look))
        drawn[0].update(done - drawn[0].n)
        if done == total:
            drawn.pop().close()

    return tell


def _lines() -> Watch:
    start = last = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal start, last
        now = time.monotonic()
        if not done:
            start = last = now
        elif done < total and now - last >= LINE_EVERY:
            last = now
            minutes, seconds = divmod(round((now - start) * (total - done) / done), 60)
            print(f"    {done / total:.0%}, {minutes}:{seconds:02d} left", file=sys.stderr, flush=True)

    return tell
