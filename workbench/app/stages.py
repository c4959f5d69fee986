"""What a command shows of its work on stderr, so that stdout holds the result alone: its stages, and how far it is."""

from __future__ import annotations

import contextlib
import os
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

    with watched(_bars() if _can_draw() else _lines()):
        yield lambda text: _say(f"  {text}")


def _say(text: str) -> None:
    if sys.stderr is not None:  # as it is where a program has no terminal at all
        print(text, file=sys.stderr, flush=True)


def _can_draw() -> bool:
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    with contextlib.suppress(OSError):
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0  # some pretended terminals have none
    return True


def _bars() -> Watch:
    """One bar a loop, gone when it ends."""
    drawn: list[tqdm] = []
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
            _say(f"    {done / total:.0%}, {minutes}:{seconds:02d} left")

    return tell
