"""When a score rose during training: the bracket of a phase change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.errors import WorkbenchError

LEAST_RISE = 0.2


@dataclass(frozen=True)
class PhaseChange:
    """The stretch of training over which a score rose.

    Attributes:
        low: the last checkpoint before ``high`` at or below 10 % of the rise. high: the first one at or above 90 %.
            Both are steps, None where there is no phase change to speak of.
        rise: last value minus first. reason: why there is none, or "".
    """

    low: float | None
    high: float | None
    rise: float
    reason: str = ""


def phase_change(steps: Sequence[float | int], values: Sequence[float | int]) -> PhaseChange:
    """The bracket of the rise of ``values`` (a score in [0, 1]) from the first to the last checkpoint.

    One run gives a bracket, no interval: what lies between two checkpoints is not known. A rise under 0.2 has none.
    """
    if len(steps) != len(values) or len(steps) < 2:
        raise WorkbenchError(
            "a phase change needs a value a checkpoint", expected="at least 2", got=f"{len(values)} for {len(steps)}"
        )
    score = np.asarray(values, dtype=float)
    rise = float(score[-1] - score[0])
    if rise < LEAST_RISE:
        return PhaseChange(None, None, rise, f"the score rises by {rise:.2f}, less than {LEAST_RISE:g}")
    share = (score - score[0]) / rise
    upper = int(np.argmax(share >= 0.9))
    lower = int(np.flatnonzero(share[:upper] <= 0.1)[-1])
    return PhaseChange(float(steps[lower]), float(steps[upper]), rise)
