"""Checks that patching makes on itself, on the model and the twins at hand, through the hooks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workbench.bridge import Model
from workbench.checks import SEQUENCES, deviation
from workbench.errors import WorkbenchError
from workbench.patching import Point, patch, require_same_shape, source_cache
from workbench.task import Batch

TOLERANCE = 1e-6
"""How far the pass in which everything is patched may be from the other pass, relative to max(1, largest logit)."""


@dataclass(frozen=True)
class PatchChecks:
    """Identities of patching on the first sequences.

    Attributes:
        itself: a pass patched with its own residual streams, or its own z, at every layer and position is the clean
            pass, bitwise. everything: the whole residual stream from the other pass gives the other pass's logits: the
            worst layer's deviation; None where the two batches are padded differently, so that it cannot hold.
        sequences: how many were looked at.
    """

    itself: bool
    everything: float | None
    sequences: int

    def require(self) -> None:
        """Raise where an identity does not hold."""
        for fine, name, got in (
            (self.itself, "a pass patched with itself is not the clean pass", "another result"),
            (
                self.everything is None or self.everything <= TOLERANCE,
                "patching everything does not give the other pass",
                f"a deviation of {self.everything}",
            ),
        ):
            if not fine:
                raise WorkbenchError(
                    f"self check failed: {name}",
                    expected="equal logits",
                    got=got,
                    next_step="Results of patches on this model cannot be trusted.",
                )


def patch_checks(model: Model, batch: Batch, twin: Batch) -> PatchChecks:
    """The identities on the first sequences of a batch and its twin; ``require()`` on the result raises."""
    require_same_shape(batch, twin)
    few, other = batch[:SEQUENCES], twin[:SEQUENCES]
    own, source = source_cache(model, few), source_cache(model, other)
    everywhere, layers = torch.ones_like(few.mask), range(model.config.n_layers)
    streams = [Point(layer, everywhere) for layer in (*layers, len(layers))]
    same = [patch(model, few, own, streams, "resid_pre"), patch(model, few, own, streams[:-1], "z")]
    everything = None
    if torch.equal(few.mask, other.mask):
        gaps = [deviation(patch(model, few, source, [point]), source.logits) for point in streams]
        everything = max(gaps)
    return PatchChecks(all(torch.equal(logits, own.logits) for logits in same), everything, len(few))
