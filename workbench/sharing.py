"""How a set of heads shares its work: Shapley values of the joint effect, and the effective number of heads.

Single effects of redundant heads are about zero, so they cannot be normalised; Shapley values can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from workbench.ablation import Mean
from workbench.components import Head
from workbench.errors import WorkbenchError
from workbench.measure import measure
from workbench.reference import ReferenceSet
from workbench.rng import numpy_stream
from workbench.statistics import TAIL, Bounds, mean_interval, resample_weights
from workbench.subject import Subject
from workbench.task import Batch

EXACT_UP_TO = 8
ORDERS = 200


@dataclass(frozen=True, eq=False)
class Shapley:
    """Shapley values (Shapley 1953), one for each player and sequence.

    Attributes:
        players: the heads. values: ``[player n]``; they sum over players to the joint effect of each sequence.
        exact: over all orders, or over 200 random ones. evaluations: sets that were evaluated.
    """

    players: tuple[Head, ...]
    values: Float[np.ndarray, "player n"]
    exact: bool
    evaluations: int


@dataclass(frozen=True)
class EffectiveNumber:
    """exp of the entropy of the normalised Shapley values: 1 where one head does all, k where k share alike.

    Attributes:
        value, low, high: the number and its 95 % interval over sequences; None where there is no joint effect to share.
        n: sequences. shares: of each player, negatives set to 0, summing to 1 (empty where None).
        negatives: the players whose value is negative. reason: what limits it, or "".
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    shares: tuple[float, ...]
    negatives: tuple[Head, ...]
    reason: str


Heads = frozenset[Head]


def shapley(
    value: Callable[[Sequence[Heads]], Sequence[np.ndarray]], players: Sequence[Head], *, seed: int = 0
) -> Shapley:
    """Shapley values of a set function: exact to 8 players, else the mean over 200 orders of the stream "shapley".

    Args:
        value: for each set of players the per-sequence cost ``[n]`` of removing it (positive where it hurts; for
            instance clean minus ablated accuracy). Asked once, for all sets. players: all different.
    """
    players = tuple(players)
    if not players or len(set(players)) != len(players):
        raise WorkbenchError("Shapley values need players", expected="at least one, all different", got=players)
    k = len(players)
    exact = k <= EXACT_UP_TO
    # Steps: a player joins those who are there already, with the weight of that in the player's value.
    steps: list[tuple[int, Heads, float]] = []
    if exact:
        subsets = [frozenset(p for i, p in enumerate(players) if bits >> i & 1) for bits in range(2**k)]
        for i, player in enumerate(players):
            steps += [(i, there, 1 / (k * math.comb(k - 1, len(there)))) for there in subsets if player not in there]
    else:
        stream = numpy_stream(seed, "shapley")
        for _ in range(ORDERS):
            order = stream.permutation(k)
            steps += [(i, frozenset(players[j] for j in order[:at]), 1 / ORDERS) for at, i in enumerate(order)]
    asked = list(dict.fromkeys(heads for i, there, _ in steps for heads in (there, there | {players[i]})))
    worth = dict(zip(asked, (np.asarray(v, dtype=np.float64) for v in value(asked)), strict=True))
    values = np.zeros((k, len(worth[frozenset()])))
    for i, there, weight in steps:
        values[i] += weight * (worth[there | {players[i]}] - worth[there])
    return Shapley(players, values, exact, len(worth))


def removal_cost(
    subject: Subject, batch: Batch, reference: ReferenceSet
) -> Callable[[Sequence[Heads]], list[Float[np.ndarray, " n"]]]:
    """The set function for :func:`shapley`: accuracy lost, sequence by sequence, when a set is mean-ablated jointly."""

    def costs(sets: Sequence[Heads]) -> list[np.ndarray]:
        some = [heads for heads in sets if heads]
        lost = {Heads(): np.zeros(len(batch))}
        effects = measure(subject, batch, [Mean(tuple(sorted(heads)), reference) for heads in some])
        lost |= {heads: -effect.accuracy_effect for heads, effect in zip(some, effects, strict=True)}
        return [lost[heads] for heads in sets]

    return costs


def effective_number(values: ArrayLike) -> float:
    """exp of the entropy of ``[player]`` values, negatives set to 0; nan where none is positive."""
    return float(_effective(np.asarray(values, dtype=np.float64)[None])[0])


def sharing(values: Shapley, *, bounds: Bounds = (-1.0, 1.0), seed: int = 0) -> EffectiveNumber:
    """The effective number of heads of a set, with its interval by bootstrap over sequences.

    Not applicable (None, with the reason) unless the joint effect lies above 0. Where all sequences are alike, up to
    ``1 - 0.025 ** (1 / n)`` of the population can differ, and the interval holds what that share could do: fall on one
    head, or on all alike.

    Args:
        bounds: the smallest and largest joint effect that a sequence can have.
    """
    mean = values.values.mean(axis=1)
    n = values.values.shape[1]
    negatives = tuple(p for p, v in zip(values.players, mean, strict=True) if v < 0)
    joint = mean_interval(values.values.sum(axis=0), bounds=bounds, seed=seed)
    if not joint.low > 0 or not mean.max() > 0:
        reason = f"the joint effect is not clearly there ({joint.value:.3f} [{joint.low:.3f}, {joint.high:.3f}])"
        return EffectiveNumber(None, None, None, n, (), negatives, reason)
    shares = mean.clip(min=0) / mean.clip(min=0).sum()
    number = effective_number(shares)
    drawn = _effective(resample_weights(n, seed) @ values.values.T)
    low, high = np.nanquantile(drawn, [TAIL, 1 - TAIL])
    if high - low < 1e-6:
        unseen, k = 1 - TAIL ** (1 / n), len(shares)
        mixed = (1 - unseen) * shares + unseen * np.concatenate([np.eye(k), np.full((1, k), 1 / k)])
        low, high = _effective(mixed).min(), _effective(mixed).max()
    # At its ends (one head, or all alike) the number cannot scatter to both sides, and resamples all miss it.
    low, high = min(float(low), number), max(float(high), number)
    reason = "" if len(shares) > 1 else "one head: the number is 1 by definition"
    if not values.exact:
        reason = f"over {ORDERS} random orders of the heads; the interval holds their sequences, not the orders"
    return EffectiveNumber(number, low, high, n, tuple(shares.tolist()), negatives, reason)


def _effective(values: np.ndarray) -> np.ndarray:
    """exp of the entropy over the last of two axes."""
    positive = values.clip(min=0)
    total = positive.sum(axis=-1, keepdims=True)
    shares = np.divide(positive, total, out=np.full_like(positive, np.nan), where=total > 0)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.exp(-(shares * logs).sum(axis=-1))
