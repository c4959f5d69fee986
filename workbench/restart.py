"""Many interventions on one batch, each restarting where it begins: the same logits as the hooks give, much sooner.

A replacement leaves everything below it as it was. So the passes form a tree that is walked once, from the embedding
up: states to which the same has been done are one state until they part, and the clean pass is the state to which
nothing has been done. What is left of a pass is computed through the linear maps of :mod:`workbench.linear_parts`:

- where few heads of a layer are replaced, the stream and its next reading are those of the state that it parts from,
  plus a change of the heads' width. Where the change leaves so little of the stream that rounding would show
  (:data:`workbench.state_tree.CANCELLED`), and under post-norm, both are computed from the replaced z instead;
- in the last layer only the scored positions are computed, and its replacements never repeat attention.

Exact up to rounding; nothing is sampled or approximated, and frozen only where patterns are given.
Axes: ``state seq pos head d_head d_model d_vocab``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.linear_parts import LinearParts
from workbench.model.transformer import Transformer
from workbench.replacements import Plan, Replacement, plan
from workbench.state_tree import Outcome, Walk
from workbench.task import Batch

CHUNK_TOKENS = 4096


def evaluate(
    model: Transformer,
    batch: Batch,
    replacements: Sequence[Replacement],
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    patterns: Sequence[Tensor] | None = None,
) -> Iterator[Outcome]:
    """The logits of every replacement at the batch's scored positions, piece by piece.

    Args:
        replacements: in any order; what several have in common is computed once. Values are the same where they are
            the same number, or the same tensor (or views of the same place in one).
        chunk_tokens: tokens computed at once, of one state or of several. Peak memory is about this times the bytes of
            a token's widest activations (its scores among them), times the number of layers. It changes the result by
            rounding at most.

        patterns: where every pattern is held, at what: one ``[batch head query_pos key_pos]`` a layer. None: they are
            computed anew.

    Yields:
        Outcomes that together hold each replacement on each sequence once. Sequences come in order.

    Raises:
        WorkbenchError: a place that does not exist, a value or mask that does not fit the batch, a sequence without a
            scored position, a chunk below 1, or anything that the model refuses.
    """
    if chunk_tokens < 1:
        raise WorkbenchError("chunk_tokens cannot be used", expected="at least 1", got=chunk_tokens)
    if model.is_watched:
        raise WorkbenchError(
            "something hangs on the model's hook points, which restarts do not pass",
            expected="a model without hooks",
            got="hooks",
            next_step="Run it through the hooks (workbench.measure.run), or take them off.",
        )
    model._check(batch.tokens, batch.mask, 0)
    unscored = (~batch.scored.any(dim=1)).nonzero()
    if len(unscored):
        raise WorkbenchError(
            "a sequence has no scored position", expected="at least one", got=f"none in sequence {int(unscored[0, 0])}"
        )
    n, t = batch.tokens.shape
    plans = [plan(puts, model.config, (n, t)) for puts in replacements]
    return _without_gradients(_chunks(model, batch, plans, chunk_tokens, patterns))


def _without_gradients(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """Each made without gradients, the caller's mode left alone between two."""
    while True:
        with torch.no_grad():
            outcome = next(outcomes, None)
        if outcome is None:
            return
        yield outcome


def _chunks(
    model: Transformer, batch: Batch, plans: Sequence[Plan], tokens: int, frozen: Sequence[Tensor] | None
) -> Iterator[Outcome]:
    parts = LinearParts(model)
    size = max(1, tokens // batch.tokens.shape[1])
    for start in range(0, len(batch) if plans else 0, size):
        chunk = slice(start, min(start + size, len(batch)))
        yield from Walk(model, parts, batch, chunk, plans, tokens, frozen).outcomes()
