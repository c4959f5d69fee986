"""Patching: activations of one pass put into another, at chosen layers, positions and heads.

*Denoising* puts clean activations into a corrupted pass: what suffices to restore the behaviour. *Noising* puts
corrupted activations into a clean one: what is necessary (Meng et al. 2022; Heimersheim & Nanda 2024). Both are
``patch(model, destination_batch, source_cache, points)``; which is which depends on what source and destination are.

Axes: ``batch pos head d_head d_model``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from torch import Tensor

from workbench.errors import WorkbenchError, unknown_name
from workbench.hooks import Edit, capture, intervene
from workbench.metrics import logit_difference
from workbench.model.transformer import Transformer
from workbench.statistics import TAIL, Interval, resample_weights
from workbench.task import Batch

Stream = Literal["resid_pre", "z"]
Position = str | int | Bool[Tensor, "batch pos"]
"""Where: a named position of the batches (which may stand elsewhere in each), an index, or a mask of several."""


class Point(NamedTuple):
    """What is patched.

    Attributes:
        layer: 0 to ``n_layers - 1``; for the residual stream ``n_layers`` is what leaves the last block.
        position: where. head: one head of the layer, or None for all (always None for the residual stream).
    """

    layer: int
    position: Position
    head: int | None = None


@dataclass(frozen=True, eq=False)
class SourceCache:
    """A clean pass: its batch, its logits, and its activations by the hook point's name."""

    batch: Batch
    logits: Float[Tensor, "batch pos d_vocab"]
    activations: Mapping[str, Tensor]


def point_name(model: Transformer, layer: int, stream: Stream) -> str:
    """The hook point of a stream at a layer; an impossible one is an error that says what exists."""
    top = model.config.n_layers - (stream == "z")
    if stream not in ("resid_pre", "z"):
        raise unknown_name("stream", stream, ("resid_pre", "z"))
    if not 0 <= layer <= top:
        raise WorkbenchError(f"there is no {stream} at layer {layer}", expected=f"0 to {top}", got=layer)
    if stream == "z":
        return f"blocks.{layer}.attn.hook_z"
    return f"blocks.{layer}.hook_resid_pre" if layer <= top - 1 else f"blocks.{top - 1}.hook_resid_post"


def source_cache(model: Transformer, batch: Batch, *, extra: Sequence[str] = ()) -> SourceCache:
    """A clean pass with the residual stream and z of every layer, and any ``extra`` hook points."""
    layers = range(model.config.n_layers)
    names = [point_name(model, layer, "resid_pre") for layer in (*layers, len(layers))]
    names += [point_name(model, layer, "z") for layer in layers]
    with torch.no_grad(), capture(model, [*names, *extra]) as kept:
        logits = model(batch.tokens, batch.mask, path="explicit")
    return SourceCache(batch, logits, kept)


def patch(
    model: Transformer,
    destination_batch: Batch,
    source: SourceCache,
    points: Sequence[Point],
    stream: Stream = "resid_pre",
) -> Float[Tensor, "batch pos d_vocab"]:
    """Logits of the destination batch, with the source's activations at these points.

    Everything after a point is computed anew from there. Patching a pass with itself changes no bit; patching the whole
    residual stream at a layer gives the source's logits.

    Args:
        source: of :func:`source_cache`, as many sequences as the destination; sequence i goes into sequence i.
        points: at least one. stream: the residual stream that enters a layer, or the z of heads.

    Raises:
        WorkbenchError: no point, a layer, head or position that does not exist, or batches that do not pair.
    """
    if not points:
        raise WorkbenchError("a patch replaces nothing", expected="at least one point", got="none")
    if len(source.batch) != len(destination_batch):
        raise WorkbenchError(
            "source and destination do not pair",
            expected=f"{len(destination_batch)} sequences",
            got=len(source.batch),
        )
    by_name: dict[str, list[Point]] = {}
    for point in points:
        _check_head(model, point, stream)
        by_name.setdefault(point_name(model, point.layer, stream), []).append(point)
    edits = [
        Edit(name, partial(_replace, value=source.activations[name], pieces=_pieces(here, destination_batch, source)),
             f"patch of {stream}")
        for name, here in by_name.items()
    ]  # fmt: skip
    with torch.no_grad(), intervene(model, edits):
        return model(destination_batch.tokens, destination_batch.mask, path="explicit")


def _check_head(model: Transformer, point: Point, stream: Stream) -> None:
    n = model.config.n_heads
    if point.head is not None and (stream != "z" or not 0 <= point.head < n):
        expected = f"0 to {n - 1}" if stream == "z" else "None: the residual stream has no heads"
        raise WorkbenchError("a patch's head does not exist", expected=expected, got=point.head)


def _pieces(
    points: Sequence[Point], destination: Batch, source: SourceCache
) -> list[tuple[Tensor, Tensor, Tensor, int | None]]:
    """For each point: sequences, positions in the destination, positions in the source, head."""
    found = []
    for point in points:
        row, to = _indices(point.position, destination)
        _, origin = _indices(point.position, source.batch)
        if len(to) != len(origin):
            raise WorkbenchError("a patch's mask does not fit both batches", expected=len(to), got=len(origin))
        found.append((row, to, origin, point.head))
    return found


def _indices(position: Position, batch: Batch) -> tuple[Tensor, Tensor]:
    n, length = batch.tokens.shape
    rows = torch.arange(n, device=batch.tokens.device)
    if isinstance(position, Tensor):
        if position.shape != batch.tokens.shape:
            raise WorkbenchError(
                "a patch's mask does not fit the batch", expected=(n, length), got=tuple(position.shape)
            )
        row, at = position.nonzero(as_tuple=True)
        return row, at
    if isinstance(position, str):
        if position not in batch.positions:
            raise unknown_name("position", position, batch.positions)
        return rows, batch.positions[position]
    if not 0 <= position < length:
        raise WorkbenchError("a patch's position does not exist", expected=f"0 to {length - 1}", got=position)
    return rows, torch.full_like(rows, position)


def _replace(x: Tensor, value: Tensor, pieces: Sequence[tuple[Tensor, Tensor, Tensor, int | None]]) -> Tensor:
    edited = x.clone()
    for row, to, origin, head in pieces:
        if head is None:
            edited[row, to] = value[row, origin]
        else:
            edited[row, to, head] = value[row, origin, head]
    return edited


def twin_difference(
    logits: Float[Tensor, "batch pos d_vocab"], batch: Batch, twin: Batch
) -> Float[np.ndarray, " batch"]:
    """Logit of the batch's answer minus that of its twin's, mean over the batch's scored positions, in nats.

    ``twin`` is the counterfactual, whose answers stand at the same positions.
    """
    answers = [b.targets.where(batch.scored, torch.zeros_like(b.targets)) for b in (batch, twin)]
    difference = logit_difference(logits, *answers) * batch.scored
    return (difference.sum(1) / batch.scored.sum(1)).double().cpu().numpy()


def restored(patched: ArrayLike, destination: ArrayLike, source: ArrayLike) -> Interval:
    """How far a patch takes the destination to the source.

    ``mean(patched - destination) / mean(source - destination)`` of one value a sequence ``[n]``. 0 leaves the
    destination as it was, 1 gives the source's value. Interval by bootstrap over sequences; where nothing varies, up to
    ``1 - 0.025 ** (1 / n)`` of the population could differ, anywhere between 0 and 1. nan where source and destination
    do not differ.
    """
    p, d, s = (np.asarray(a, dtype=np.float64) for a in (patched, destination, source))
    done, whole = p - d, s - d
    if abs(whole.mean()) < 1e-6:
        return Interval(float("nan"), float("nan"), float("nan"), len(d))
    value = float(done.mean() / whole.mean())
    weights = resample_weights(len(d))
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = (weights @ done) / (weights @ whole)
    low, high = np.nanquantile(drawn, [TAIL, 1 - TAIL])
    if high - low < 1e-6:
        unseen = 1 - TAIL ** (1 / len(d))
        low, high = min(low, (1 - unseen) * value), max(high, (1 - unseen) * value + unseen)
    return Interval(value, float(low), float(high), len(d))
