"""A row of the benchmark table, and two pieces of work timed side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from workbench.training.execution import use_threads


@dataclass(frozen=True)
class Row:
    """One comparison: ``ours`` beside ``other`` (another implementation, or the limit), both in ``unit``.

    Attributes:
        ratio: ours / other; of paired timings the median of the pairs' ratios.
        target: the largest ratio allowed, or None.
        threads: of torch while both ran, 0 where the work sets its own.
    """

    name: str
    ours: float
    other: float
    ratio: float
    target: float | None
    unit: str
    threads: int = 0

    @property
    def met(self) -> bool | None:
        """Whether the ratio is within the target; None where there is none."""
        return None if self.target is None else self.ratio <= self.target

    def public(self) -> dict[str, Any]:
        """The row as ``bench.json`` holds it."""
        return {**asdict(self), "met": self.met}

    def __str__(self) -> str:
        target = "" if self.target is None else f" (target {self.target:g}: {'met' if self.met else 'MISSED'})"
        return f"{self.name}: {self.ours:.4g} against {self.other:.4g} {self.unit}, ratio {self.ratio:.3f}{target}"


def limit(name: str, ours: float, at_most: float, unit: str, threads: int = 0) -> Row:
    """A row that holds a measured amount against a fixed limit."""
    return Row(name, ours, at_most, ours / at_most, 1.0, unit, threads)


def _milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def paired(
    name: str,
    ours: Callable[[], object],
    other: Callable[[], object],
    *,
    threads: int,
    target: float | None = None,
    pairs: int = 60,
    seconds: float = 20.0,
) -> Row:
    """Time two pieces of work in turn, the order swapped from pair to pair, so that other load hits both alike.

    Ends after ``pairs`` pairs, or after ``seconds`` and at least 10 pairs.
    """
    with use_threads(threads):
        for _ in range(3):
            ours()
            other()
        times: list[tuple[float, float]] = []
        start = time.perf_counter()
        while len(times) < pairs and (len(times) < 10 or time.perf_counter() - start < seconds):
            if len(times) % 2:
                second, first = _milliseconds(other), _milliseconds(ours)
            else:
                first, second = _milliseconds(ours), _milliseconds(other)
            times.append((first, second))
    mine, theirs, ratio = (statistics.median(x) for x in zip(*((a, b, a / b) for a, b in times), strict=True))
    return Row(name, mine, theirs, ratio, target, "ms", threads)
