"""Intervals over seeds: what models trained alike, from different seeds, reach on average."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from workbench.errors import WorkbenchError
from workbench.statistics import TAIL, Interval, clopper_pearson


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t (Student 1908)."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 1 - TAIL))


def seed_interval(accuracies: Sequence[float], trials: int) -> Interval:
    """The mean of an accuracy over seeds with its 95 % t interval, inside 0 and 1.

    ``mean ± t(n - 1) s / sqrt(n)``, with s the standard deviation over the n seeds. Where all seeds agree, s says
    nothing; so the interval is never narrower than what the sequences of one run can tell: the exact interval
    (Clopper & Pearson 1934) of the mean as a share of ``trials``.

    Args:
        accuracies: one a seed, at least two, each from 0 to 1. trials: the sequences on which each was measured.
    """
    sample = np.asarray(accuracies, dtype=np.float64)
    if len(sample) < 2 or not bool(((sample >= 0) & (sample <= 1)).all()):
        raise WorkbenchError(
            "an interval over seeds cannot be formed", expected="an accuracy for each of two seeds or more",
            got=sample.tolist(),
        )  # fmt: skip
    mean, n = float(sample.mean()), len(sample)
    half = t_quantile(n - 1) * float(sample.std(ddof=1)) / math.sqrt(n)
    resolution = clopper_pearson(round(mean * trials), trials)
    low, high = max(0.0, min(mean - half, resolution.low)), min(1.0, max(mean + half, resolution.high))
    return Interval(mean, low, high, n, "seeds")
