"""How far long work is: loops count their steps, and whoever waits for them may watch.

What measures takes no argument for it: a command says once that it watches, and every counted loop below it reports.
A counted loop within a counted loop is part of the outer one's step, and reports nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

Watch = Callable[[int, int], None]
"""Told, now and then, how many steps are done, and of how many."""


@dataclass
class _Watcher:
    tell: Watch
    busy: bool = False


_watcher: ContextVar[_Watcher | None] = ContextVar("watcher", default=None)


@contextlib.contextmanager
def watched(tell: Watch) -> Iterator[None]:
    """Have the loops within counted: ``tell(0, total)`` when one begins, ``tell(total, total)`` when it is over."""
    token = _watcher.set(_Watcher(tell))
    try:
        yield
    finally:
        _watcher.reset(token)


@contextlib.contextmanager
def counting(total: int) -> Iterator[Callable[[int], None]]:
    """The steps of a loop: yields what to call with the number of steps that have just been done."""
    watcher = _watcher.get()
    if watcher is None or watcher.busy or total < 1:
        yield lambda steps: None
        return
    done = 0

    def step(steps: int) -> None:
        nonlocal done
        done = min(done + steps, total)
        watcher.tell(done, total)

    watcher.busy = True
    try:
        watcher.tell(0, total)
        yield step
    finally:
        watcher.busy = False
        if done < total:
            watcher.tell(total, total)
