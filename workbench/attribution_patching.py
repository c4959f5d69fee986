"""Attribution patching: what patching a head's z would do, approximated by a gradient, beside what it does.

The logit difference m of the destination's pass changes by about

    (z_source - z_destination) . dm/dz

when z of a head is patched at some positions (Nanda 2023): one backward pass approximates every point at once. It is
exact where m is linear in z, and misses what a settled softmax or norm hides, so it stands beside the exact values.

Axes: ``what`` (points), ``n`` sequences, ``batch pos head d_head``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.bridge import Model
from workbench.errors import WorkbenchError
from workbench.hooks import Edit, capture, intervene
from workbench.metrics import row_scores
from workbench.patch_sweep import PatchSweep, Side, here, patch_sweep, sides
from workbench.patching import Point, Puts, Shares, point_name, shares
from workbench.restart import CHUNK_TOKENS
from workbench.statistics import TAIL, Interval, resample_weights, spearman
from workbench.task import Batch

ALIKE = 0.01
"""Effects are ranked in steps of this share of the largest, so that the order of those that are next to nothing does
not count."""


@dataclass(frozen=True, eq=False)
class Approximation:
    """Exact patches of z and their gradient approximation.

    Attributes:
        exact: the sweep. approximated: ``[what n]``, by how much each patch should move the logit difference.
    """

    exact: PatchSweep[Point]
    approximated: Float[np.ndarray, "what n"]

    @property
    def shares(self) -> Shares:
        """The approximated share of the way by point, as :attr:`PatchSweep.shares`."""
        return shares(self.approximated.T, self.exact.way)

    @property
    def disagreement(self) -> Shares:
        """Approximated minus exact share by point, paired by sequence."""
        return shares((self.approximated - self.exact.moves).T, self.exact.way, bounds=(-1, 1))

    def rank_agreement(self, chosen: Sequence[int] | None = None) -> Interval:
        """Agreement of exact and approximated effects over these points (None: all); see :func:`rank_agreement`."""
        index = range(len(self.approximated)) if chosen is None else chosen
        return rank_agreement(self.exact.moves[list(index)], self.approximated[list(index)])


def attribution_patching(
    model: Model,
    batch: Batch,
    twin: Batch,
    points: Sequence[Point],
    direction: str = "denoising",
    *,
    chunk_tokens: int = CHUNK_TOKENS,
) -> Approximation:
    """Each z patch between a batch and its twin, exact and approximated; arguments and errors as ``patch_sweep``.

    No parameter's gradient is touched.
    """
    exact = patch_sweep(model, batch, twin, points, "z", direction, chunk_tokens=chunk_tokens)
    destination, source = (twin, batch) if direction == "denoising" else (batch, twin)
    found = [
        _approximate(model, side, batch[side.start : side.stop], twin[side.start : side.stop], points)
        for side in sides(model, destination, source, chunk_tokens)
    ]
    return Approximation(exact, torch.cat(found, dim=1).double().cpu().numpy())


def _approximate(
    model: Model, side: Side, batch: Batch, twin: Batch, points: Sequence[Point]
) -> Float[Tensor, "what n"]:
    names = [point_name(model, layer, "z") for layer in range(model.config.n_layers)]
    nothing: dict[str, Tensor] = {}

    def add(z: Tensor, name: str) -> Tensor:
        nothing[name] = torch.zeros_like(z, requires_grad=True)  # its gradient is that of z
        return z + nothing[name]

    def edit(name: str) -> Edit:
        return Edit(name, lambda z: add(z, name), "gradient of z")

    destination = side.destination
    with torch.enable_grad(), capture(model, names) as z, intervene(model, [edit(name) for name in names]):
        logits = model(destination.tokens, destination.mask, path="explicit")
        difference = row_scores(logits[batch.scored], batch, twin.targets)[-1].sum()
        gradients = torch.autograd.grad(difference, [nothing[name] for name in names])
    slope = dict(zip(names, gradients, strict=True))
    puts = Puts(model, destination, side.source, "z")
    found = []
    for point in points:
        name = point_name(model, point.layer, "z")
        mine = here(point, side)
        heads = slice(None) if point.head is None else slice(point.head, point.head + 1)
        change = (puts.value(mine) - z[name])[:, :, heads] * slope[name][:, :, heads]
        found.append((change.sum((2, 3)) * puts.place(mine.position)[0]).sum(1))
    return torch.stack(found)


def rank_agreement(one: Float[np.ndarray, "what n"], other: Float[np.ndarray, "what n"]) -> Interval:
    """Spearman's rank correlation (1904) of the mean effects of two measurements of the same things.

    Means that are equal in steps of ``ALIKE`` of the largest share a rank. Interval by bootstrap over sequences, which
    both measurements have in common; from -1 to 1 where no effect varies between them, so that nothing bounds it. nan
    where all means of either are alike.

    Args:
        one, other: effects by thing and sequence; at least two things.
    """
    if one.shape != other.shape or len(one) < 2:
        raise WorkbenchError(
            "ranks cannot be compared", expected="two measurements of the same 2 things or more", got=one.shape
        )
    value = float(spearman(_steps(one.mean(1)[None]), _steps(other.mean(1)[None]))[0])
    if all(np.ptp(x, axis=1).max() <= 1e-5 * np.abs(x).max() for x in (one, other)):
        return Interval(value, *((-1.0, 1.0) if np.isfinite(value) else (np.nan, np.nan)), one.shape[1])
    weights = resample_weights(one.shape[1])
    drawn = spearman(_steps(weights @ one.T), _steps(weights @ other.T))
    low, high = np.nanquantile(drawn, [TAIL, 1 - TAIL]) if np.isfinite(drawn).any() else (np.nan, np.nan)
    return Interval(value, float(low), float(high), one.shape[1])


def _steps(values: Float[np.ndarray, "row what"]) -> Float[np.ndarray, "row what"]:
    """Values in steps of ``ALIKE`` of the largest of their row."""
    return np.round(values / (ALIKE * np.maximum(np.abs(values).max(axis=1, keepdims=True), 1e-30)))
