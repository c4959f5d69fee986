"""Patching: activations of one pass put into another, at chosen layers, positions and heads.

*Denoising* puts clean activations into a corrupted pass: what suffices to restore the behaviour. *Noising* puts
corrupted activations into a clean one: what is necessary (Meng et al. 2022; Heimersheim & Nanda 2024). Both are
``patch(model, destination_batch, source_cache, points)``; which is which depends on what source and destination are.
Many points at once are a :func:`workbench.patch_sweep.patch_sweep`.

Axes: ``batch pos head d_head d_model``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from torch import Tensor

from workbench.bridge import Model
from workbench.errors import WorkbenchError, unknown_name
from workbench.hooks import capture, intervene
from workbench.metrics import row_scores
from workbench.places import Place, index_of
from workbench.puts import point as hook_name
from workbench.puts import put_edits
from workbench.replacements import Put
from workbench.statistics import TAIL, Bounds, Interval, resample_weights
from workbench.task import IGNORE, Batch

Stream = Literal["resid_pre", "z"]
Position = Place | Bool[Tensor, "batch pos"]
"""Where: a named position of the batches (which may stand elsewhere in each), an index, or a mask of several."""

COLUMNS = 512
"""Quantities resampled at once."""


class Point(NamedTuple):
    """What is patched.

    Attributes:
        layer: 0 to ``n_layers - 1``; for the residual stream ``n_layers`` is what leaves the last block.
        position: where. head: one head of the layer, or None for all (always None for the residual stream).
    """

    layer: int
    position: Position
    head: int | None = None

    def __str__(self) -> str:
        """``"L0.H1 at cue"``, ``"L2 at 5"``."""
        part = f"L{self.layer}" if self.head is None else f"L{self.layer}.H{self.head}"
        many = isinstance(self.position, Tensor)
        return f"{part} at {'a mask of places' if many else self.position}"


@dataclass(frozen=True, eq=False)
class SourceCache:
    """A clean pass: its batch, its logits, and its activations by the hook point's name."""

    batch: Batch
    logits: Float[Tensor, "batch pos d_vocab"]
    activations: Mapping[str, Tensor]


class Shares(NamedTuple):
    """How far changes go of a whole way, one number a change: estimates and their 95 % intervals over sequences."""

    value: Float[np.ndarray, "*what"]
    low: Float[np.ndarray, "*what"]
    high: Float[np.ndarray, "*what"]


def point_name(model: Model, layer: int, stream: Stream) -> str:
    """The hook point of a stream at a layer; an impossible one is an error that says what exists."""
    top = model.config.n_layers - (stream == "z")
    if stream not in ("resid_pre", "z"):
        raise unknown_name("stream", stream, ("resid_pre", "z"))
    if not 0 <= layer <= top:
        raise WorkbenchError(f"there is no {stream} at layer {layer}", expected=f"0 to {top}", got=layer)
    leaving = stream == "resid_pre" and layer == model.config.n_layers
    return f"blocks.{layer - 1}.hook_resid_post" if leaving else hook_name(stream, layer)


def source_cache(model: Model, batch: Batch, *, extra: Sequence[str] = ()) -> SourceCache:
    """A clean pass with the residual stream and z of every layer, and any ``extra`` hook points."""
    layers = range(model.config.n_layers)
    names = [point_name(model, layer, "resid_pre") for layer in (*layers, len(layers))]
    names += [point_name(model, layer, "z") for layer in layers]
    with torch.no_grad(), capture(model, [*names, *extra]) as kept:
        logits = model(batch.tokens, batch.mask, path="explicit")
    return SourceCache(batch, logits, kept)


def patch(
    model: Model,
    destination_batch: Batch,
    source: SourceCache,
    points: Sequence[Point],
    stream: Stream = "resid_pre",
) -> Float[Tensor, "batch pos d_vocab"]:
    """Logits of the destination batch, with the source's activations at these points, through the hooks.

    Everything after a point is computed anew from there. Patching a pass with itself changes no bit; patching the whole
    residual stream at a layer gives the source's logits.

    Args:
        source: of :func:`source_cache`, of the destination's shape; sequence i goes into sequence i.
        points: at least one. stream: the residual stream that enters a layer, or the z of heads.

    Raises:
        WorkbenchError: no point, a layer, head or position that does not exist, or batches that do not pair.
    """
    if not points:
        raise WorkbenchError("a patch replaces nothing", expected="at least one point", got="none")
    puts = Puts(model, destination_batch, source, stream)
    edits = put_edits([put for point in points for put in puts.of(point)], f"patch of {stream}")
    top = hook_name("resid_pre", model.config.n_layers)
    leaving = point_name(model, model.config.n_layers, "resid_pre")
    edits = [replace(edit, point=leaving) if edit.point == top else edit for edit in edits]
    with torch.no_grad(), intervene(model, edits):
        return model(destination_batch.tokens, destination_batch.mask, path="explicit")


class Puts:
    """What points put into a pass over the destination: values of the source, where they belong.

    Raises:
        WorkbenchError: batches of different shapes.
    """

    def __init__(self, model: Model, destination: Batch, source: SourceCache, stream: Stream) -> None:
        require_same_shape(destination, source.batch)
        self.model, self.destination, self.source, self.stream = model, destination, source, stream
        self._known: dict[Position, tuple[Tensor, Tensor | None]] = {}

    def of(self, point: Point) -> list[Put]:
        """The puts of one point: one, or one a head."""
        self._check_head(point)
        value, at = self.value(point), self.place(point.position)[0]
        if self.stream == "resid_pre":
            return [Put(self.stream, point.layer, value, at)]
        heads = range(self.model.config.n_heads) if point.head is None else (point.head,)
        return [Put(self.stream, point.layer, value[:, :, head], at, head) for head in heads]

    def value(self, point: Point) -> Tensor:
        """The source's activation laid out for the destination: ``[batch pos ...]``, or ``[batch 1 ...]``."""
        whole = self.source.activations[point_name(self.model, point.layer, self.stream)]
        origin = self.place(point.position)[1]
        return whole if origin is None else whole[torch.arange(len(whole), device=whole.device), origin][:, None]

    def reached(self, point: Point) -> Bool[Tensor, " batch"]:
        """The sequences in which the point stands on a real position of the destination."""
        return (self.destination.mask & self.place(point.position)[0]).any(dim=1)

    def place(self, position: Position) -> tuple[Bool[Tensor, "batch pos"], Tensor | None]:
        """Where a value goes in the destination, and where it stands in the source (None: at the same place)."""
        if position not in self._known:
            self._known[position] = self._find(position)
        return self._known[position]

    def _find(self, position: Position) -> tuple[Tensor, Tensor | None]:
        shape = self.destination.tokens.shape
        if isinstance(position, Tensor):
            if position.shape != shape:
                raise mask_misfit(self.destination, position)
            self._require_source((position & self.destination.mask & ~self.source.batch.mask).any(dim=1))
            return position, None
        to, origin = index_of(position, self.destination), index_of(position, self.source.batch)
        at = torch.zeros_like(self.destination.mask)
        rows = torch.arange(len(to), device=to.device)
        at[rows, to] = True
        self._require_source(self.destination.mask[rows, to] & ~self.source.batch.mask[rows, origin])
        return at, None if torch.equal(to, origin) else origin

    def _require_source(self, padding: Bool[Tensor, " batch"]) -> None:
        """Raise where a real position would be given what stands on the source's padding."""
        if bool(padding.any()):
            raise WorkbenchError(
                "a patch would take padding, which has nothing to give",
                expected="a real token at that position of the source",
                got=f"padding in sequence {int(padding.nonzero()[0, 0])}",
            )

    def _check_head(self, point: Point) -> None:
        n = self.model.config.n_heads
        if point.head is not None and (self.stream != "z" or not 0 <= point.head < n):
            expected = f"0 to {n - 1}" if self.stream == "z" else "None: the residual stream has no heads"
            raise WorkbenchError("a patch's head does not exist", expected=expected, got=point.head)


def mask_misfit(batch: Batch, mask: Tensor) -> WorkbenchError:
    """The error for a mask of positions that is not the batch's."""
    return WorkbenchError(
        "a patch's mask does not fit the batch", expected=tuple(batch.tokens.shape), got=tuple(mask.shape)
    )


def require_same_shape(destination: Batch, source: Batch) -> None:
    """Raise where two batches do not pair sequence by sequence and position by position."""
    if destination.tokens.shape != source.tokens.shape:
        raise WorkbenchError(
            "source and destination do not pair",
            expected=f"the destination's shape {tuple(destination.tokens.shape)}",
            got=tuple(source.tokens.shape),
        )


def require_twins(batch: Batch, twin: Batch) -> None:
    """Raise where two batches cannot be judged by the logit difference between their answers.

    Raises:
        WorkbenchError: different shapes, different scored positions, or a scored position without a target.
    """
    require_same_shape(batch, twin)
    if not torch.equal(batch.scored, twin.scored):
        raise WorkbenchError(
            "a batch and its twin are scored at different positions",
            expected="answers at the same positions",
            got=f"a difference in {int((batch.scored != twin.scored).any(dim=1).sum())} sequences",
        )
    for name, one in (("the batch", batch), ("the twin", twin)):
        bare = (one.scored & (one.targets == IGNORE)).any(dim=1)
        if bool(bare.any()):
            raise WorkbenchError(
                "a logit difference needs its labels",
                expected="a target at every scored position",
                got=f"none in sequence {int(bare.nonzero()[0, 0])} of {name}",
            )


def twin_difference(
    logits: Float[Tensor, "batch pos d_vocab"], batch: Batch, twin: Batch
) -> Float[np.ndarray, " batch"]:
    """Logit of the batch's answer minus that of its twin's, mean over the batch's scored positions, in nats.

    ``twin`` is the counterfactual, whose answers stand at the same positions; errors as :func:`require_twins`.
    """
    require_twins(batch, twin)
    return row_scores(logits[batch.scored], batch, twin.targets)[-1].double().cpu().numpy()


def shares(done: ArrayLike, whole: ArrayLike, *, bounds: Bounds = (0, 1)) -> Shares:
    """``mean(done) / mean(whole)``, how far changes go of a whole way, for every cell of the trailing axes.

    Interval by bootstrap over sequences; where nothing varies, up to ``1 - 0.025 ** (1 / n)`` of the population could
    differ, anywhere within the bounds. nan where the whole way is 0.

    Args:
        done: ``[n ...]``, one value a sequence. whole: ``[n]``. bounds: of a sequence's share, as far as is known.
    """
    changes, way = np.asarray(done, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    flat = changes.reshape(len(changes), -1)
    if abs(way.mean()) < 1e-6:
        nothing = np.full(changes.shape[1:], np.nan)
        return Shares(nothing, nothing, nothing)
    value = flat.mean(axis=0) / way.mean()
    weights = resample_weights(len(way))
    ways = (weights @ way)[:, None]
    ends: list[Any] = []
    for start in range(0, flat.shape[1], COLUMNS):
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn = (weights @ flat[:, start : start + COLUMNS]) / ways
        quantile = np.nanquantile if np.isnan(drawn).any() else np.quantile
        ends.append(quantile(drawn, [TAIL, 1 - TAIL], axis=0))
    low, high = np.concatenate(ends, axis=1)
    unseen, uniform = 1 - TAIL ** (1 / len(way)), high - low < 1e-6
    least, most = ((1 - unseen) * value + unseen * end for end in bounds)
    low, high = np.where(uniform, np.minimum(low, least), low), np.where(uniform, np.maximum(high, most), high)
    return Shares(*(x.reshape(changes.shape[1:]) for x in (value, low, high)))


def restored(patched: ArrayLike, destination: ArrayLike, source: ArrayLike) -> Interval:
    """How far a patch takes the destination to the source: the :func:`shares` of one value a sequence ``[n]`` each.

    0 leaves the destination as it was, 1 gives the source's value. nan where source and destination do not differ.
    """
    p, d, s = (np.asarray(a, dtype=np.float64) for a in (patched, destination, source))
    at = shares(p - d, s - d)
    return Interval(float(at.value), float(at.low), float(at.high), len(d))
