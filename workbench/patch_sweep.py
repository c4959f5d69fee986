"""Many patches at once: every layer, head and position of interest, denoising or noising, by restarts.

A batch and its twin are two passes that differ in what they say. *Denoising* puts the batch's activations into the
twin's pass, *noising* the twin's into the batch's. Either way what is judged are the batch's answers: right or wrong,
and the logit difference to the twin's answers. A sweep is carried out by :mod:`workbench.restart`, chunk by chunk, and
compared with the hooks' own result on its first sequences.

Axes: ``what`` (what is patched), ``metric`` (accuracy, loss, logit difference), ``n`` sequences.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.bridge import Model
from workbench.components import all_heads
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError, unknown_name
from workbench.measure import AGREEMENT, CHECKED, METRICS
from workbench.metrics import row_scores
from workbench.model.transformer import Transformer
from workbench.patching import (
    Point,
    Position,
    Puts,
    Shares,
    SourceCache,
    Stream,
    mask_misfit,
    patch,
    require_twins,
    shares,
    source_cache,
)
from workbench.replacements import Replacement
from workbench.restart import CHUNK_TOKENS, Outcome, evaluate
from workbench.task import Batch
from workbench.work import counting

What = TypeVar("What")

DIRECTIONS: Mapping[str, str] = {
    "denoising": "the batch's activations in the twin's pass",
    "noising": "the twin's activations in the batch's pass",
}


@dataclass(frozen=True, eq=False)
class PatchSweep(Generic[What]):
    """What each patch did, one value a sequence.

    Attributes:
        what: what was patched. direction: "denoising" or "noising".
        start: ``[metric n]``, the pass that is patched, before. end: the pass that the activations come from.
        patched: ``[what metric n]``. All three score the batch's answers, and their logit minus that of the twin's.
        fired, expected: by patch, the sequences on which it took place, and should have.
    """

    what: tuple[What, ...]
    direction: str
    start: Float[np.ndarray, "metric n"]
    end: Float[np.ndarray, "metric n"]
    patched: Float[np.ndarray, "what metric n"]
    fired: tuple[int, ...]
    expected: tuple[int, ...]

    @property
    def way(self) -> Float[np.ndarray, " n"]:
        """Logit difference from start to end, by sequence."""
        return self.end[-1] - self.start[-1]

    @property
    def moves(self) -> Float[np.ndarray, "what n"]:
        """How far each patch moves the logit difference, patched minus start, by sequence."""
        return self.patched[:, -1] - self.start[-1]

    @property
    def shares(self) -> Shares:
        """The share of the way by patch ``[what]``: 0 leaves the pass as it was, 1 gives the other pass's value."""
        return shares(self.moves.T, self.way)

    def of(self, what: What) -> int:
        """The index of one patch."""
        return self.what.index(what)

    def frame(self) -> pd.DataFrame:
        """Rows what, direction, share, low, high, accuracy, loss, logit difference, n, fired; one a patch."""
        at = self.shares
        table: dict[str, object] = {"what": [*map(str, self.what)], "direction": self.direction}
        table |= {"share": at.value, "low": at.low, "high": at.high}
        table |= dict(zip(METRICS, self.patched.mean(axis=2).T, strict=True))
        table["n"] = self.start.shape[1]
        table["fired"] = [f"{fired}/{expected}" for fired, expected in zip(self.fired, self.expected, strict=True)]
        return pd.DataFrame(table)


def residual_points(config: ModelConfig, positions: Sequence[Position]) -> tuple[Point, ...]:
    """The residual stream at these positions, as it enters every layer and as it leaves the last."""
    return tuple(Point(layer, position) for layer in range(config.n_layers + 1) for position in positions)


def head_points(config: ModelConfig, positions: Sequence[Position]) -> tuple[Point, ...]:
    """z of every head at these positions."""
    heads = all_heads(config.n_layers, config.n_heads)
    return tuple(Point(head.layer, position, head.head) for head in heads for position in positions)


@dataclass(frozen=True, eq=False)
class Side:
    """Some sequences of the destination, and the clean pass over those of the source."""

    start: int
    stop: int
    destination: Batch
    source: SourceCache


class Work(ABC, Generic[What]):
    """What a sweep does: how each of its patches is put into a pass, and how the hooks would do the same."""

    model: Model
    what: Sequence[What]

    @abstractmethod
    def replacements(self, side: Side) -> list[Replacement]:
        """What each patch puts into the destination's pass."""

    @abstractmethod
    def by_hooks(self, side: Side, index: int) -> Float[Tensor, "batch pos d_vocab"]:
        """The logits of one patch, through the hooks."""

    @abstractmethod
    def reached(self, side: Side, index: int) -> Bool[Tensor, " batch"]:
        """The sequences on which a patch should take place."""


@dataclass(frozen=True, eq=False)
class _Points(Work[Point]):
    model: Model
    what: Sequence[Point]
    stream: Stream

    def _puts(self, side: Side) -> Puts:
        return Puts(self.model, side.destination, side.source, self.stream)

    def replacements(self, side: Side) -> list[Replacement]:
        puts = self._puts(side)
        return [puts.of(here(point, side)) for point in self.what]

    def by_hooks(self, side: Side, index: int) -> Tensor:
        return patch(self.model, side.destination, side.source, [here(self.what[index], side)], self.stream)

    def reached(self, side: Side, index: int) -> Tensor:
        return self._puts(side).reached(here(self.what[index], side))


def here(point: Point, side: Side) -> Point:
    """The point on these sequences."""
    if not isinstance(point.position, Tensor):
        return point
    return point._replace(position=point.position[side.start : side.stop])


def patch_sweep(
    model: Model,
    batch: Batch,
    twin: Batch,
    points: Sequence[Point],
    stream: Stream = "resid_pre",
    direction: str = "denoising",
    *,
    chunk_tokens: int = CHUNK_TOKENS,
) -> PatchSweep[Point]:
    """Every point patched on its own, between a batch and its twin.

    Args:
        points: as :func:`workbench.patching.patch` takes them; masks are of the whole batch. stream: of the points.
        direction: "denoising" or "noising".
        chunk_tokens: as in :func:`workbench.restart.evaluate`; both clean passes are held for one chunk at a time.

    Raises:
        WorkbenchError: batches that are no twins, a point that does not exist or takes place on no sequence, or a
            result that the hooks do not confirm.
    """
    for point in points:
        if isinstance(point.position, Tensor) and point.position.shape != batch.tokens.shape:
            raise mask_misfit(batch, point.position)
    return carry_out(_Points(model, points, stream), batch, twin, direction, chunk_tokens)


@dataclass
class _Collected:
    scores: list[Tensor] = field(default_factory=list)
    fired: int = 0
    expected: int = 0


def carry_out(work: Work[What], batch: Batch, twin: Batch, direction: str, chunk_tokens: int) -> PatchSweep[What]:
    """A sweep over twins; a bridge goes through the hooks patch by patch."""
    if direction not in DIRECTIONS:
        raise unknown_name("direction", direction, DIRECTIONS)
    if not work.what:
        raise WorkbenchError("a sweep patches nothing", expected="at least one point", got="none")
    require_twins(batch, twin)
    destination, source = (twin, batch) if direction == "denoising" else (batch, twin)
    before, after, found = list[Tensor](), list[Tensor](), [_Collected() for _ in work.what]
    with counting(len(batch) * len(work.what)) as step:
        for side in sides(work.model, destination, source, chunk_tokens):
            labels, wrong = batch[side.start : side.stop], twin.targets[side.start : side.stop]
            after.append(row_scores(side.source.logits[labels.scored], labels, wrong))
            scores: list[list[Tensor]] = [[] for _ in (None, *work.what)]
            for outcome in _outcomes(work, side, chunk_tokens):
                few, ids = labels[outcome.start : outcome.stop], wrong[outcome.start : outcome.stop]
                for index, logits, fired in zip(outcome.indices, outcome.logits, outcome.fired, strict=True):
                    scores[index].append(row_scores(logits, few, ids))
                    if index:
                        found[index - 1].fired += int(fired.sum())
                        step(len(few))
            before.append(torch.cat(scores[0], dim=1))
            for index, at in enumerate(found):
                at.scores.append(torch.cat(scores[index + 1], dim=1))
                at.expected += int(work.reached(side, index).sum())
    for one, at in zip(work.what, found, strict=True):
        if not 0 < at.fired == at.expected:
            expected = f"on {at.expected} sequences" if at.expected else "a real position in some sequence"
            raise WorkbenchError(f"a patch did not take place ({one})", expected=expected, got=f"{at.fired} firings")
    start, end, *patched = (_numbers(x) for x in (before, after, *(at.scores for at in found)))
    fired, due = tuple(at.fired for at in found), tuple(at.expected for at in found)
    return PatchSweep(tuple(work.what), direction, start, end, np.stack(patched), fired, due)


def sides(model: Model, destination: Batch, source: Batch, chunk_tokens: int) -> Iterator[Side]:
    """Some sequences at a time, with a clean pass over their sources."""
    if chunk_tokens < 1:
        raise WorkbenchError("chunk_tokens cannot be used", expected="at least 1", got=chunk_tokens)
    size = max(1, chunk_tokens // destination.tokens.shape[1])
    for start in range(0, len(destination), size):
        stop = min(start + size, len(destination))
        yield Side(start, stop, destination[start:stop], source_cache(model, source[start:stop]))


def _outcomes(work: Work[What], side: Side, chunk_tokens: int) -> Iterator[Outcome]:
    """The clean pass over the destination (index 0) and every patch (from 1)."""
    scored, stop = side.destination.scored, len(side.destination)
    # A restart passes no hook point, so what somebody hung there needs the hooks' path.
    if isinstance(work.model, Transformer) and not work.model.is_watched:
        replacements = work.replacements(side)
        if side.start == 0:
            _agree(work.model, work, side, replacements)
        yield from evaluate(work.model, side.destination, [[], *replacements], chunk_tokens=chunk_tokens)
        return
    with torch.no_grad():
        clean = work.model(side.destination.tokens, side.destination.mask, path="explicit")
    yield Outcome((0,), 0, stop, clean[scored][None], torch.zeros(1, stop, dtype=torch.bool))
    for index in range(len(work.what)):
        logits = work.by_hooks(side, index)[scored]
        yield Outcome((index + 1,), 0, stop, logits[None], work.reached(side, index)[None])


def _agree(model: Transformer, work: Work[What], side: Side, replacements: Sequence[Replacement]) -> None:
    """Raise where the first or the last patch is not what the hooks give, on the first sequences."""
    batch = side.destination[:CHECKED]
    few = Side(0, len(batch), batch, source_cache(model, side.source.batch[:CHECKED]))
    for index in {0, len(work.what) - 1}:
        expected = work.by_hooks(few, index)[batch.scored]
        [outcome] = evaluate(model, side.destination, [replacements[index]], chunk_tokens=side.destination.mask.numel())
        difference = float((outcome.logits[0, : len(expected)] - expected).abs().max())
        if not difference <= AGREEMENT * max(1.0, float(expected.abs().max())):
            raise WorkbenchError(
                f"two ways to one patch disagree ({work.what[index]})",
                expected=f"the logits of the hooks to {AGREEMENT:.0e}",
                got=f"a difference of {difference:.1e}",
            )


def _numbers(parts: Sequence[Tensor]) -> Float[np.ndarray, "metric n"]:
    return torch.cat(list(parts), dim=1).double().cpu().numpy()
