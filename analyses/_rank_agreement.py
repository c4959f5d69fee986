"""How alike two numbers rank the heads: Spearman's rho and Kendall's tau, with intervals over sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from workbench.statistics import TAIL, Interval, resample_weights, spearman

FEWEST = 4
"""The order of fewer heads than this says nothing."""

_DECIMALS = 6  # values that agree to this many tie: what is left is rounding


@dataclass(frozen=True)
class Agreement:
    """Rank agreement over heads, in [-1, 1]: 1 the same order, -1 the reverse."""

    spearman: Interval
    kendall: Interval


def agreement(
    prediction: Float[np.ndarray, "m head"], effect: Float[np.ndarray, "n head"], *, seed: int = 0
) -> Agreement | None:
    """Agreement of the orders in which two per-sequence numbers put the heads by their means.

    Ties share their ranks (Spearman 1904; tau-b, Kendall 1945). Intervals are percentile bootstraps of both, paired
    where ``m == n``; of the effect alone where ``m`` is 1 (a number from weights).
    Resamples in which all heads tie agree by 0. No interval is narrower than one swap of neighbouring heads to either
    side: where sequences are all alike resampling changes nothing, and the order of few heads still is no more exact.

    Returns:
        None where all heads tie, or where there are fewer than ``FEWEST``.
    """
    n, heads = effect.shape
    if heads < FEWEST:
        return None
    given = _rounded(prediction.mean(axis=0)[None]), _rounded(effect.mean(axis=0)[None])
    if any(np.ptp(values) == 0 for values in given):
        return None
    weights = resample_weights(n, seed)
    drawn = prediction if len(prediction) == 1 else resample_weights(len(prediction), seed) @ prediction
    effects = _rounded(weights @ effect)
    both = np.broadcast_to(_rounded(drawn), effects.shape), effects
    swap = {spearman: 12 / (heads * (heads**2 - 1)), _kendall: 4 / (heads * (heads - 1))}
    return Agreement(*(_interval(measure, given, both, least, n) for measure, least in swap.items()))


Pair = tuple[np.ndarray, np.ndarray]
"""Two numbers of every head, ``[draw head]``."""


def _interval(
    measure: Callable[[np.ndarray, np.ndarray], np.ndarray], given: Pair, drawn: Pair, least: float, n: int
) -> Interval:
    value = float(measure(*given)[0])
    low, high = np.quantile(np.nan_to_num(measure(*drawn)), [TAIL, 1 - TAIL])
    return Interval(value, max(-1.0, min(float(low), value - least)), min(1.0, max(float(high), value + least)), n)


def _rounded(values: Float[np.ndarray, "draw head"]) -> Float[np.ndarray, "draw head"]:
    return np.round(values, _DECIMALS)


def _kendall(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Tau-b: the correlation of the signs of all pairs; nan where all heads tie."""
    x, y = (np.sign(v[:, :, None] - v[:, None, :]).reshape(len(v), -1) for v in (one, other))
    scale = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    product = (x * y).sum(axis=1)
    return np.divide(product, scale, out=np.full_like(product, np.nan), where=scale > 0)
