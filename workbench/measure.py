"""Carrying interventions out: passes with a count of firings, and effects paired by sequence.

Everything runs on the model's explicit path, in chunks of whole sequences, without gradients. An intervention that
replaces nothing is an error: its "effect" would be a plausible zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.ablation import CutPath, Intervention, KeepOnly, Mean, Pairing, Resample, Zero
from workbench.components import Head
from workbench.errors import WorkbenchError
from workbench.hooks import Edit, capture, intervene
from workbench.metrics import sequence_accuracy, sequence_loss
from workbench.model.transformer import Transformer
from workbench.reference import CHUNK_TOKENS
from workbench.statistics import paired_interval
from workbench.subject import Subject
from workbench.task import Batch


@dataclass(frozen=True, eq=False)
class Pass:
    """What a pass gave.

    Attributes:
        logits: of the whole batch. fired: the sequences on which every edit really took place.
        expected: the sequences on which it should have (0 for a clean pass).
    """

    logits: Float[Tensor, "batch pos d_vocab"]
    fired: int
    expected: int


@dataclass(frozen=True, eq=False)
class Effect:
    """An intervention beside the clean pass, one value a sequence over its scored positions.

    Attributes:
        intervention: what was done. clean_accuracy, ablated_accuracy: shares. clean_loss, ablated_loss: nats.
        fired, expected: sequences on which every edit took place, and should have.
    """

    intervention: Intervention
    clean_accuracy: Float[np.ndarray, " n"]
    ablated_accuracy: Float[np.ndarray, " n"]
    clean_loss: Float[np.ndarray, " n"]
    ablated_loss: Float[np.ndarray, " n"]
    fired: int
    expected: int

    @property
    def accuracy_effect(self) -> Float[np.ndarray, " n"]:
        """Ablated minus clean accuracy."""
        return self.ablated_accuracy - self.clean_accuracy

    @property
    def loss_effect(self) -> Float[np.ndarray, " n"]:
        """Ablated minus clean loss."""
        return self.ablated_loss - self.clean_loss

    def frame(self) -> pd.DataFrame:
        """Rows metric (accuracy, loss), clean, ablated, effect, low, high, n, fired, semantics."""
        rows = []
        for metric, clean, ablated, bounds in (
            ("accuracy", self.clean_accuracy, self.ablated_accuracy, (0, 1)),
            ("loss", self.clean_loss, self.ablated_loss, None),
        ):
            at = paired_interval(ablated, clean, bounds=bounds)
            cells = (float(clean.mean()), float(ablated.mean()), at.value, at.low, at.high, at.n)
            rows.append((metric, *cells, f"{self.fired}/{self.expected}", self.intervention.semantics))
        columns = ["metric", "clean", "ablated", "effect", "low", "high", "n", "fired", "semantics"]
        return pd.DataFrame(rows, columns=columns)


def run(
    model: Transformer, batch: Batch, intervention: Intervention | None = None, *, chunk: int | None = None
) -> Pass:
    """One pass over a batch: clean for None, else under the intervention.

    Args:
        chunk: sequences at once; None for about 4,096 tokens. It changes the result by rounding at most.

    Raises:
        WorkbenchError: heads that do not exist, no head to replace (except a keep-only of every head, which is the
            clean pass), a reference set or pairing that does not fit the batch, or an edit that never took place.
    """
    with torch.no_grad():
        passes = [part.run(intervention) for part in _parts(model, batch, chunk)]
    return Pass(torch.cat([p.logits for p in passes]), sum(p.fired for p in passes), sum(p.expected for p in passes))


def measure(
    subject: Subject, batch: Batch, interventions: Sequence[Intervention], *, chunk: int | None = None
) -> list[Effect]:
    """The effect of each intervention, all against the same clean pass; errors as :func:`run`."""
    clean: list[Tensor] = []
    ablated: list[list[Tensor]] = [[] for _ in interventions]
    fired = np.zeros((len(interventions), 2), dtype=int)
    with torch.no_grad():
        for part in _parts(subject.model, batch, chunk):
            clean.append(_scores(part.clean, part.batch))
            for index, intervention in enumerate(interventions):
                done = part.run(intervention)
                ablated[index].append(_scores(done.logits, part.batch))
                fired[index] += (done.fired, done.expected)
    before = torch.cat(clean, dim=1).double().cpu().numpy()
    effects = []
    for intervention, parts, (did, should) in zip(interventions, ablated, fired.tolist(), strict=True):
        after = torch.cat(parts, dim=1).double().cpu().numpy()
        effects.append(Effect(intervention, before[0], after[0], before[1], after[1], did, should))
    return effects


def _scores(logits: Tensor, batch: Batch) -> Float[Tensor, "2 batch"]:
    return torch.stack([sequence_accuracy(logits, batch), sequence_loss(logits, batch, "scored")])


def _parts(model: Transformer, batch: Batch, chunk: int | None) -> Iterator[_Part]:
    if chunk is not None and chunk < 1:
        raise WorkbenchError("a chunk cannot be used", expected="at least 1 sequence", got=chunk)
    size = chunk or max(1, CHUNK_TOKENS // batch.tokens.shape[1])
    for start in range(0, len(batch), size):
        yield _Part(model, batch, start, min(start + size, len(batch)))


class _Part:
    """A chunk of a batch, with the clean activations that interventions on it share (computed when first needed)."""

    def __init__(self, model: Transformer, whole: Batch, start: int, stop: int) -> None:
        self.model, self.whole, self.start, self.stop = model, whole, start, stop
        self.batch = whole[start:stop]
        self._donors: dict[Pairing, dict[str, Tensor]] = {}

    @cached_property
    def clean(self) -> Tensor:
        """Clean logits."""
        return self.model(self.batch.tokens, self.batch.mask, path="explicit")

    @cached_property
    def patterns(self) -> dict[str, Tensor]:
        """The clean pattern of every layer."""
        with capture(self.model, [_point(layer, "pattern") for layer in range(self.model.config.n_layers)]) as kept:
            self.model(self.batch.tokens, self.batch.mask, path="explicit")
        return kept

    def donors(self, pairing: Pairing) -> dict[str, Tensor]:
        """z of every layer in a clean pass over the sequences paired with this chunk's, wherever they stand."""
        if pairing not in self._donors:
            if pairing.n != len(self.whole):
                raise WorkbenchError(
                    "a pairing does not fit the batch", expected=f"{len(self.whole)} sequences", got=pairing.n
                )
            other = self.whole[list(pairing.donors[self.start : self.stop])]
            if bool((self.batch.mask & ~other.mask).any()):
                raise WorkbenchError(
                    "a sequence is paired with a shorter one, which has nothing to give at its last positions",
                    expected="sequences of one length",
                    got="padding",
                    next_step="Use a mean over a reference set.",
                )
            with capture(self.model, [_point(layer, "z") for layer in range(self.model.config.n_layers)]) as kept:
                self.model(other.tokens, other.mask, path="explicit")
            self._donors[pairing] = kept
        return self._donors[pairing]

    def run(self, intervention: Intervention | None) -> Pass:
        edits = [] if intervention is None else self._edits(intervention)
        if not edits:
            return Pass(self.clean, 0, 0)
        with intervene(self.model, edits) as firings:
            logits = self.model(self.batch.tokens, self.batch.mask, path="explicit")
        return Pass(logits, firings.complete, len(self.batch))

    def _edits(self, intervention: Intervention) -> list[Edit]:
        targets = intervention.targets(self.model.config)
        if not targets and not isinstance(intervention, KeepOnly):
            raise WorkbenchError(
                "an intervention replaces nothing", expected="at least one head", got=repr(intervention)
            )
        if isinstance(intervention, CutPath):
            return self._cut(intervention)
        edits = []
        for layer, heads in _by_layer(targets):
            put = partial(_put, heads=heads, value=self._value(intervention, layer, heads))
            edits.append(Edit(_point(layer, "z"), put, str(intervention)))
        if intervention.frozen_patterns:
            for point, pattern in self.patterns.items():
                edits.append(Edit(point, partial(_hold, value=pattern), str(intervention)))
        return edits

    def _value(self, intervention: Intervention, layer: int, heads: list[int]) -> Tensor | float:
        """What replaces z of these heads: something that broadcasts to ``[batch pos head d_head]``."""
        by = intervention.by if isinstance(intervention, KeepOnly) else intervention
        if isinstance(by, Mean):
            by.reference.require_fit(self.model.config, self.whole.mask)
            return by.reference.mean_z[layer][:, heads].to(self.batch.tokens.device)
        if isinstance(by, Resample):
            return self.donors(by.pairing)[_point(layer, "z")][:, :, heads]
        assert isinstance(by, Zero)
        return 0.0

    def _cut(self, cut: CutPath) -> list[Edit]:
        cut.reference.require_fit(self.model.config, self.whole.mask)
        missing: dict[int, Tensor] = {}  # by layer of the senders, filled from below as the pass goes up

        def catch(z: Tensor, layer: int, heads: list[int]) -> Tensor:
            mean = cut.reference.mean_z[layer][:, heads].to(z.device)
            missing[layer] = torch.einsum(
                "bphk,hkd->bpd", mean - z[:, :, heads], self.model.blocks[layer].attn.W_O[heads]
            )
            return z

        def feed(x: Tensor, heads: list[int]) -> Tensor:
            edited = x.clone()
            edited[:, :, heads] += torch.stack(list(missing.values())).sum(0)[:, :, None]
            return edited

        senders, receivers = cut.ends
        edits = [
            Edit(_point(layer, "z"), partial(catch, layer=layer, heads=heads), str(cut))
            for layer, heads in _by_layer(senders)
        ]
        edits += [
            Edit(f"blocks.{layer}.hook_{cut.kind.lower()}_input", partial(feed, heads=heads), str(cut))
            for layer, heads in _by_layer(receivers)
        ]
        return edits


def _point(layer: int, name: str) -> str:
    return f"blocks.{layer}.attn.hook_{name}"


def _by_layer(heads: Sequence[Head]) -> list[tuple[int, list[int]]]:
    return [(layer, [h.head for h in group]) for layer, group in groupby(sorted(heads), key=lambda h: h.layer)]


def _put(z: Tensor, heads: list[int], value: Tensor | float) -> Tensor:
    edited = z.clone()
    edited[:, :, heads] = value
    return edited


def _hold(pattern: Tensor, value: Tensor) -> Tensor:
    return value
