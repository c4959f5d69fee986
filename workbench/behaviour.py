"""Verdicts about a behaviour: is it there, does an ablation remove it, does an ablation keep it.

All judge per-sequence accuracies over scored positions, by an interval over sequences. A threshold that depends on the
clean accuracy is computed anew in each resample: what is judged is the margin, accuracy minus threshold, paired.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from workbench.analysis import judge
from workbench.findings import Direction, Verdict
from workbench.statistics import Number, mean_interval

THERE, REMOVED, KEPT = 0.25, 0.1, 0.95


@dataclass(frozen=True)
class Judgement:
    """An accuracy against its threshold.

    Attributes:
        value: mean accuracy. low, high: the ends of the margin's 95 % interval, put on the threshold (so they compare
            with it as the margin does with 0), within 0 and 1.
        threshold: at the estimate. direction: the side of it on which the statement holds.
        n: sequences. verdict: supported, contradicted or inconclusive. reason: what decided.
    """

    value: float
    low: float
    high: float
    threshold: float
    direction: Direction
    n: int
    verdict: Verdict
    reason: str


def there(clean: ArrayLike, floor: Number, ceiling: Number | None = None, *, seed: int = 0) -> Judgement:
    """Supported when clean accuracy lies above ``floor + .25 (ceiling - floor)``.

    Args:
        clean: per-sequence accuracies ``[n]``. floor: what the task's trivial predictor reaches. ceiling: what the best
            possible one does; 1 where it is not known.
    """
    accuracy = np.asarray(clean, dtype=np.float64)
    top = 1 if ceiling is None else ceiling
    return _judge(accuracy, floor + THERE * (top - floor), 0.0, accuracy, "above", seed)


def removed(clean: ArrayLike, ablated: ArrayLike, floor: Number, *, seed: int = 0) -> Judgement:
    """Supported when ablated accuracy lies below ``floor + .1 (clean - floor)``."""
    return _judge(np.asarray(ablated, dtype=np.float64), (1 - REMOVED) * floor, REMOVED, clean, "below", seed)


def keeps(clean: ArrayLike, ablated: ArrayLike, fraction: Number = KEPT, *, seed: int = 0) -> Judgement:
    """Supported when ablated accuracy lies above ``fraction`` of clean."""
    return _judge(np.asarray(ablated, dtype=np.float64), 0.0, fraction, clean, "above", seed)


def _judge(
    accuracy: np.ndarray, constant: Number, share: Number, clean: ArrayLike, direction: Direction, seed: int
) -> Judgement:
    """Judge accuracies against ``constant + share * clean``."""
    reference = np.asarray(clean, dtype=np.float64)
    threshold = constant + share * float(reference.mean())
    margin = mean_interval(
        accuracy - (constant + share * reference), bounds=(-constant - share, 1 - constant), seed=seed
    )
    verdict = judge(margin.low, margin.high, 0.0, direction)
    value = float(accuracy.mean())
    # The estimate lies between its own bounds, rounding or not.
    low, high = min(value, max(0.0, threshold + margin.low)), max(value, min(1.0, threshold + margin.high))
    where = {"supported": direction, "contradicted": "below" if direction == "above" else "above"}.get(verdict)
    side = f"lies {where}" if where else "straddles"
    reason = f"accuracy {value:.3f} [{low:.3f}, {high:.3f}] {side} the threshold {threshold:.3f}"
    return Judgement(value, low, high, threshold, direction, len(accuracy), verdict, reason)
