"""Intervals and tests over sequences: bootstrap, exact binomial, sign flips, equivalence, many heads.

Everything here is numpy. Intervals are 95 %, two-sided. A sample is a vector of per-sequence means; resamples draw
sequences with replacement from the stream of a seed, so that quantities of one sample stay paired.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from workbench.errors import WorkbenchError
from workbench.rng import numpy_stream

TAIL = 0.025
"""Probability beyond each end of an interval."""

BLOCK = 1 << 22
"""Numbers that are drawn at a time."""

FEW = 4
"""A sample with this many values off the common one, or fewer, is too uniform to resample."""

Z_TWO_SIDED, Z_POWER = 1.959963984540054, 0.8416212335729143
"""Normal quantiles: 95 %, two-sided; a power of 80 %."""

Number = float | int
Bounds = tuple[Number, Number]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval.

    Attributes:
        value, low, high: the estimate and the interval's ends.
        n: how many were sampled. samples: what they are ("sequences", "seeds", "positions").
    """

    value: float
    low: float
    high: float
    n: int
    samples: str = "sequences"


@functools.lru_cache(maxsize=2)
def resample_weights(n: int, seed: int = 0, resamples: int = 2000) -> np.ndarray:
    """``[resamples n]``: each row the shares with which a resample holds the n sequences (rows sum to 1; read-only)."""
    drawn = numpy_stream(seed, "bootstrap", n, resamples).integers(0, n, (resamples, n))
    drawn += n * np.arange(resamples)[:, None]
    weights = np.bincount(drawn.ravel(), minlength=n * resamples).reshape(resamples, n) / n
    weights.flags.writeable = False
    return weights


def mean_intervals(
    x: ArrayLike, *, bounds: Bounds | None = None, seed: int = 0, resamples: int = 2000
) -> tuple[np.ndarray, np.ndarray]:
    """Ends ``(low, high)`` of the interval of the mean over axis 0, for every cell of the trailing axes.

    Percentile bootstrap (Efron 1979). Where all n values are equal up to rounding, or all but ``FEW``, resampling has
    nothing to vary, or too little; then at most a share m of the population differs from the common value (the upper
    Clopper-Pearson bound; with none seen ``1 - 0.025 ** (1 / n)``, about 3.7 / n), and the mean lies within
    ``(1 - m) common + m bounds``. Without bounds nothing limits it: the ends are infinite where all are equal.

    Args:
        x: ``[n ...]``, finite. bounds: the smallest and largest value that a sequence can have.
    """
    sample = np.asarray(x, dtype=np.float64)
    _require_sample(sample)
    flat = sample.reshape(len(sample), -1)
    drawn = _resampled(flat, seed, resamples)
    low, high = np.quantile(drawn, [TAIL, 1 - TAIL], axis=0)
    mean = flat.mean(axis=0)
    least, most = bounds if bounds is not None else (-math.inf, math.inf)
    # Values that agree to rounding are equal: float32 noise is no spread between sequences.
    rounding = 1e-6 * np.maximum(np.abs(mean), most - least if bounds is not None else 1.0)
    common = np.median(flat, axis=0)
    different = (np.abs(flat - common) > rounding).sum(axis=0)
    few = min(FEW, (len(sample) - 1) // 2) if bounds is not None else 0
    share = np.array([clopper_pearson(k, len(sample)).high for k in range(few + 1)])[np.minimum(different, few)]
    saturated = different <= few
    low = np.where(saturated, (1 - share) * common + share * least, low)
    high = np.where(saturated, (1 - share) * common + share * most, high)
    return low.reshape(sample.shape[1:]), high.reshape(sample.shape[1:])


def _resampled(flat: np.ndarray, seed: int, resamples: int) -> np.ndarray:
    """Means of resamples ``[resamples cell]``; of large samples in blocks, so that the weights stay small."""
    n = len(flat)
    if n * resamples <= BLOCK:
        return resample_weights(n, seed, resamples) @ flat
    stream, size = numpy_stream(seed, "bootstrap", n, resamples), max(1, BLOCK // n)
    means = []
    for start in range(0, resamples, size):
        rows = min(size, resamples - start)
        drawn = stream.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=n * rows).reshape(rows, n)
        means.append((counts @ flat) / n)
    return np.concatenate(means)


def mean_interval(
    x: ArrayLike,
    *,
    bounds: Bounds | None = None,
    seed: int = 0,
    resamples: int = 2000,
    samples: str = "sequences",
) -> Interval:
    """The mean of per-sequence values ``[n]`` with its interval; see :func:`mean_intervals`."""
    sample = np.asarray(x, dtype=np.float64)
    low, high = mean_intervals(sample, bounds=bounds, seed=seed, resamples=resamples)
    return Interval(float(sample.mean()), float(low), float(high), len(sample), samples)


def paired_interval(
    ablated: ArrayLike, clean: ArrayLike, *, bounds: Bounds | None = None, seed: int = 0, resamples: int = 2000
) -> Interval:
    """The effect, ablated minus clean, paired by sequence.

    Args:
        ablated, clean: per-sequence values ``[n]`` of the same sequences. bounds: of either value (their difference
            then lies within plus and minus the width).
    """
    a, c = np.asarray(ablated, dtype=np.float64), np.asarray(clean, dtype=np.float64)
    if a.shape != c.shape:
        raise WorkbenchError("ablated and clean are not paired", expected=f"{c.shape} values", got=a.shape)
    width = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
    return mean_interval(a - c, bounds=width, seed=seed, resamples=resamples)


def clopper_pearson(k: int, n: int) -> Interval:
    """Exact interval of a share, ``k`` successes of ``n`` (Clopper & Pearson 1934)."""
    _require_count(k, n)
    low = 0.0 if k == 0 else _solve(lambda p: _at_least(k, n, p), TAIL)
    high = 1.0 if k == n else 1 - _solve(lambda p: _at_least(n - k, n, p), TAIL)
    return Interval(k / n, low, high, n, "positions")


def wilson(k: int, n: int) -> Interval:
    """Score interval of a share, ``k`` successes of ``n`` (Wilson 1927)."""
    _require_count(k, n)
    z2 = Z_TWO_SIDED**2
    share = k / n
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half), n, "positions")


def holm(p: ArrayLike) -> np.ndarray:
    """p-values corrected for their number (Holm 1979), in the given order: "some head matters" at the smallest."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def spearman(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Rank correlation (Spearman 1904) of the rows of two matrices ``[row what]``: one number a row, in [-1, 1].

    Equal values share their mean rank; round before where what is left is noise. nan where a row is constant.
    """
    from scipy.stats import rankdata

    x, y = (rankdata(values, axis=1) - (values.shape[1] + 1) / 2 for values in (one, other))
    scale = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    product = (x * y).sum(axis=1)
    return np.divide(product, scale, out=np.full_like(product, np.nan), where=scale > 0)


def sign_flip_p(difference: ArrayLike, *, seed: int = 0, flips: int = 10_000) -> float:
    """Two-sided p-value of a mean paired difference of 0, by random sign flips (Fisher 1935).

    ``(1 + flips whose |mean| reaches the seen one) / (1 + flips)``; all differences 0 gives 1.
    """
    sample = np.asarray(difference, dtype=np.float64)
    _require_sample(sample)
    stream, seen, reached = numpy_stream(seed, "sign flips"), abs(sample.sum()) * (1 - 1e-12), 0
    size = max(1, BLOCK // len(sample))
    for start in range(0, flips, size):
        signs = stream.integers(0, 2, (min(size, flips - start), len(sample)), dtype=np.int8)
        reached += int(np.count_nonzero(np.abs((2.0 * signs - 1.0) @ sample) >= seen))
    return (1 + reached) / (1 + flips)


def smallest_visible(difference: ArrayLike, *, bounds: Bounds | None = None) -> float:
    """The smallest mean difference that a sample of this size and spread would show, four times out of five.

    ``(1.96 + 0.84) s / sqrt(n)``, s the standard deviation of the per-sequence differences ``[n]`` (Cohen 1988). Where
    nothing varies (or all but ``FEW`` are equal), s says nothing: then with bounds it is the largest mean that would go
    unseen, the share of sequences that the sample cannot rule out times the largest difference; without them, nan.
    """
    sample = np.asarray(difference, dtype=np.float64)
    _require_sample(sample)
    n = len(sample)
    spread = float(sample.std(ddof=1)) if n > 1 else math.nan
    common = float(np.median(sample))
    rounding = 1e-6 * max(abs(common), 1.0)
    different = int((np.abs(sample - common) > rounding).sum())
    if different > min(FEW, (n - 1) // 2):
        return (Z_TWO_SIDED + Z_POWER) * spread / math.sqrt(n)
    if bounds is None:
        return math.nan
    return clopper_pearson(different, n).high * max(abs(bounds[0]), abs(bounds[1]))


@dataclass(frozen=True)
class Equivalence:
    """Whether an effect lies within plus and minus a margin that was stated before looking.

    Attributes:
        interval: the effect. margin: the largest that counts as nothing.
        verdict: supported (the interval lies inside), contradicted (outside), or inconclusive.
    """

    interval: Interval
    margin: float
    verdict: Literal["supported", "contradicted", "inconclusive"]


def equivalence(difference: ArrayLike, margin: Number, *, bounds: Bounds | None = None, seed: int = 0) -> Equivalence:
    """Two one-sided tests by interval inclusion (Schuirmann 1987), at 2.5 % a side.

    Args:
        difference: per-sequence effects ``[n]``. margin: above 0. bounds: the smallest and largest difference possible.
    """
    if not margin > 0:
        raise WorkbenchError(
            "the margin of an equivalence test cannot be used", expected="a number above 0", got=margin
        )
    interval = mean_interval(difference, bounds=bounds, seed=seed)
    if -margin < interval.low and interval.high < margin:
        return Equivalence(interval, margin, "supported")
    outside = interval.low > margin or interval.high < -margin
    return Equivalence(interval, margin, "contradicted" if outside else "inconclusive")


def _at_least(k: int, n: int, p: float) -> float:
    """P(X >= k) of a binomial, k >= 1, summed over the shorter side."""
    upper = n - k < k
    i = np.arange(k, n + 1) if upper else np.arange(k)
    factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    logs = factorial[n] - factorial[i] - factorial[n - i] + i * math.log(p) + (n - i) * math.log1p(-p)
    total = float(np.exp(logs).sum())
    return total if upper else 1 - total


def _solve(rising: Callable[[float], float], goal: float) -> float:
    """The p in (0, 1) at which a rising function reaches the goal, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < goal:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _require_count(k: int, n: int) -> None:
    if not (n >= 1 and 0 <= k <= n):
        raise WorkbenchError(
            "a share cannot be formed", expected="0 <= successes <= trials, at least 1 trial", got=f"{k} of {n}"
        )


def _require_sample(sample: np.ndarray) -> None:
    if sample.ndim == 0 or len(sample) == 0:
        raise WorkbenchError("a sample is empty", expected="at least one sequence", got="none")
    if not np.isfinite(sample).all():
        raise WorkbenchError(
            "a sample holds values that are not finite",
            expected="finite numbers",
            got=f"{int((~np.isfinite(sample)).sum())} that are not",
            next_step="Leave out the sequences that have no value, and say how many.",
        )
