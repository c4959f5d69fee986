"""How a training's progress is shown: a bar on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from tqdm import tqdm

from workbench.training.loop import Progress

LINE_EVERY = 100


def describe(p: Progress) -> str:
    """The numbers of a report: ``loss 0.012 above the ceiling, accuracy 99.8 %, 41 steps/s, 0:07 left``."""
    loss = f"loss {p.loss:.3f}" if p.excess is None else f"loss {p.excess:.3f} above the ceiling"
    minutes, seconds = divmod(round(p.seconds_left), 60)
    return f"{loss}, accuracy {p.accuracy:.1%}, {p.steps_per_second:.0f} steps/s, {minutes}:{seconds:02d} left"


@contextlib.contextmanager
def bar(total: int) -> Iterator[Callable[[Progress], None]]:
    """Something to give to ``train(progress=...)``; draws on standard error.

    On a terminal it is a bar; elsewhere (a log file) one line every 100 steps.
    """
    if not sys.stderr.isatty():
        printed = -1

        def line(p: Progress) -> None:
            nonlocal printed
            if p.step // LINE_EVERY != printed or p.step == total:
                printed = p.step // LINE_EVERY
                print(f"step {p.step}/{total}: {describe(p)}", file=sys.stderr, flush=True)

        yield line
        return
    layout = "training {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt}{postfix}"
    with tqdm(total=total, file=sys.stderr, bar_format=layout, dynamic_ncols=True) as drawn:

        def draw(p: Progress) -> None:
            drawn.n = p.step
            drawn.set_postfix_str(describe(p))

        yield draw
