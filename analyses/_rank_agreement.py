"""How alike two numbers rank the heads: Spearman's rho and Kendall's tau, with intervals over sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from workbench.statistics import TAIL, Interval, resample_weights

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
    given = _signs(prediction.mean(axis=0)[None]), _signs(effect.mean(axis=0)[None])
    if any(not signs.any() for signs in given):
        return None
    weights = resample_weights(n, seed)
    drawn = prediction if len(prediction) == 1 else resample_weights(len(prediction), seed) @ prediction
    signs = _signs(drawn), _signs(weights @ effect)
    swap = {_spearman: 12 / (heads * (heads**2 - 1)), _kendall: 4 / (heads * (heads - 1))}
    return Agreement(*(_interval(measure, given, signs, least, n) for measure, least in swap.items()))


Signs = tuple[np.ndarray, np.ndarray]


def _interval(measure: Callable[[Signs], np.ndarray], given: Signs, drawn: Signs, least: float, n: int) -> Interval:
    value = float(measure(given)[0])
    low, high = np.quantile(measure(drawn), [TAIL, 1 - TAIL])
    return Interval(value, max(-1.0, min(float(low), value - least)), min(1.0, max(float(high), value + least)), n)


def _signs(values: Float[np.ndarray, "draw head"]) -> Float[np.ndarray, "draw head head"]:
    """Which of two heads has more: 1, 0 or -1."""
    rounded = np.round(values, _DECIMALS)
    return np.sign(rounded[:, :, None] - rounded[:, None, :])


def _spearman(signs: Signs) -> np.ndarray:
    """The correlation of ranks: a head's rank is, but for a constant, half the sum of its signs."""
    return _correlation(*(s.sum(axis=2) for s in signs))


def _kendall(signs: Signs) -> np.ndarray:
    """Tau-b: the correlation of the signs of all pairs."""
    return _correlation(*(s.reshape(len(s), -1) for s in signs))


def _correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of rows whose mean is 0; 0 where one is constant."""
    scale = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    product = (x * y).sum(axis=1)
    return np.divide(product, scale, out=np.zeros_like(product), where=scale > 0)
