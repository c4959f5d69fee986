"""Sentences and their twins, one word apart, with a clean pass of each; and passes that are changed in between.

A *side* is a batch whose every sentence has one deciding position (the query that must name the answer), a cue and two
or more candidates. Every change is made to the sentences; how far it takes them towards their twins is its effect.

Axes: ``n`` sentences, ``layer head pos key``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.hooks import Edit, intervene
from workbench.metrics import sequence_accuracy
from workbench.model.transformer import Transformer
from workbench.patching import SourceCache, restored, source_cache, twin_difference
from workbench.puts import put_edits
from workbench.replacements import Put
from workbench.statistics import Interval
from workbench.task import Batch, Task


@dataclass(frozen=True, eq=False)
class Side:
    """Sentences, their twins, and a clean pass of each.

    Attributes:
        clean, other: the passes over the sentences and over their twins. cue: the cue's place ``[n]``. query: the
            deciding position ``[n]``. role: which candidate is the answer ``[n]``.
    """

    model: Transformer
    clean: SourceCache
    other: SourceCache
    cue: Int[Tensor, " n"]
    query: Int[Tensor, " n"]
    role: Int[np.ndarray, " n"]

    @property
    def batch(self) -> Batch:
        """The sentences."""
        return self.clean.batch

    @property
    def twin(self) -> Batch:
        """The same sentences with the cue's partner."""
        return self.other.batch

    @cached_property
    def accuracy(self) -> Float[np.ndarray, " n"]:
        """1 where the clean pass names the answer."""
        return _right(self.clean.logits, self.batch)

    def accuracy_of(self, logits: Tensor) -> Float[np.ndarray, " n"]:
        """1 where a changed pass over the sentences names their answer."""
        return _right(logits, self.batch)

    @cached_property
    def own(self) -> Float[np.ndarray, " n"]:
        """Logit of the answer minus that of the twin's answer, in the clean pass."""
        return twin_difference(self.clean.logits, self.batch, self.twin)

    @cached_property
    def flipped(self) -> Float[np.ndarray, " n"]:
        """The same difference in the twins' pass."""
        return twin_difference(self.other.logits, self.batch, self.twin)

    def moved(self, logits: Tensor) -> Interval:
        """How far a changed pass over the sentences goes to their twins: 0 not at all, 1 all the way."""
        return restored(twin_difference(logits, self.batch, self.twin), self.own, self.flipped)

    def rows(self, what: str, twin: bool = False) -> Float[Tensor, "n layer head key"]:
        """``attn_scores`` or ``pattern`` of the deciding query, in every head."""
        kept = (self.other if twin else self.clean).activations
        n = torch.arange(len(self.query), device=self.query.device)
        layers = range(self.model.config.n_layers)
        return torch.stack([kept[f"blocks.{layer}.attn.hook_{what}"][n, :, self.query] for layer in layers], dim=1)

    @cached_property
    def places(self) -> Mapping[str, Bool[Tensor, "n pos"]]:
        """Positions by what they are to the cue: before it, the cue, between it and the deciding query, that query."""
        at = torch.arange(self.batch.tokens.shape[1], device=self.cue.device)
        cue, query = self.cue[:, None], self.query[:, None]
        return {
            "before the cue": at < cue,
            "cue": at == cue,
            "between": (at > cue) & (at < query),
            "answer": at == query,
        }

    @cached_property
    def frames(self) -> list[tuple[int, ...]]:
        """What a sentence's template looks like from outside: every named place and its length."""
        named = [self.batch.positions[k] for k in sorted(self.batch.positions)]
        return [tuple(row) for row in torch.stack([*named, self.batch.mask.sum(1)], dim=1).tolist()]


def _right(logits: Tensor, batch: Batch) -> np.ndarray:
    return sequence_accuracy(logits, batch).double().cpu().numpy()


def unfit(task: Task, batch: Batch, twin: Batch | None) -> str:
    """Why these sentences cannot be looked at like this, or ""."""
    roles = task.roles
    if twin is None:
        return "the task has no twin sentences"
    if len(roles.get("cue", ())) != 1 or len(roles.get("candidates", ())) < 2:
        return "the task does not say which position holds the cue and which hold the candidates"
    if not bool((batch.scored.sum(1) == 1).all()) or not torch.equal(batch.scored, twin.scored):
        return "its sequences are not scored at one position each, the same as their twins'"
    return ""


def look(model: Transformer, task: Task, batch: Batch, twin: Batch) -> Side:
    """A clean pass over the sentences and one over their twins."""
    layers = range(model.config.n_layers)
    extra = [f"blocks.{layer}.attn.hook_{name}" for layer in layers for name in ("attn_scores", "pattern", "v")]
    n = torch.arange(len(batch), device=batch.tokens.device)
    candidates = torch.stack([batch.tokens[n, batch.positions[name]] for name in task.roles["candidates"]], dim=1)
    answer = batch.targets[batch.scored]
    return Side(
        model=model,
        clean=source_cache(model, batch, extra=extra),
        other=source_cache(model, twin, extra=extra),
        cue=batch.positions[task.roles["cue"][0]],
        query=batch.scored.int().argmax(dim=1),
        role=(candidates == answer[:, None]).int().argmax(dim=1).cpu().numpy(),
    )


def changed(side: Side, edits: Sequence[Edit]) -> Float[Tensor, "n pos d_vocab"]:
    """Logits of the sentences under these edits."""
    with torch.no_grad(), intervene(side.model, edits):
        return side.model(side.batch.tokens, side.batch.mask, path="explicit")


def frame_means(reference: Side, side: Side) -> list[Float[Tensor, "n pos head d_head"]]:
    """For each layer the mean z over the reference's sentences of the same template, laid out for ``side``."""
    known = {frame: i for i, frame in enumerate(dict.fromkeys(reference.frames))}
    missing = [frame for frame in side.frames if frame not in known]
    if missing:
        raise WorkbenchError("the reference has no sentence of some template", next_step="Raise the budget's samples.")
    member = torch.tensor([known[frame] for frame in reference.frames])
    wanted = torch.tensor([known[frame] for frame in side.frames])
    means = []
    for layer in range(side.model.config.n_layers):
        z = reference.clean.activations[f"blocks.{layer}.attn.hook_z"]
        means.append(torch.stack([z[member == i].mean(dim=0) for i in range(len(known))])[wanted])
    return means


def without_heads(
    side: Side, layers: Sequence[int], where: Bool[Tensor, "n pos"], means: Sequence[Tensor]
) -> Float[Tensor, "n pos d_vocab"]:
    """Logits when z of every head of these layers is its mean, at these positions only."""
    puts = [
        Put("z", layer, means[layer][..., head, :], where, head)
        for layer in layers
        for head in range(side.model.config.n_heads)
    ]
    return changed(side, put_edits(puts, "means of sentence frames"))


def _z(layer: int, function: Callable[[Tensor], Tensor], label: str) -> Edit:
    return Edit(f"blocks.{layer}.attn.hook_z", function, f"{label} of layer {layer}")


def cue_weight_edits(side: Side, layers: Sequence[int], *, removed: bool = False) -> list[Edit]:
    """At the deciding query every head of these layers gives the cue the weight that it has in the twin.

    All other keys share the rest in the proportions that they have in the pass itself; values stay. With ``removed``
    the cue gets no weight.
    """
    n = torch.arange(len(side.query), device=side.query.device)
    theirs = side.rows("attn_scores", twin=True)

    def take(scores: Tensor, layer: int) -> Tensor:
        edited = scores.clone()
        row = scores[n, :, side.query].clone()
        rest, _ = _odds(row, side.cue)
        _, odds = _odds(theirs[:, layer], side.cue)
        row[n, :, side.cue] = torch.full_like(odds, -torch.inf) if removed else rest + odds
        edited[n, :, side.query] = row
        return edited

    return [Edit(f"blocks.{layer}.attn.hook_attn_scores", partial(take, layer=layer), "weight on the cue")
            for layer in layers]  # fmt: skip


def _odds(row: Float[Tensor, "n head key"], cue: Int[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    """logsumexp of the scores of all other keys, and the cue's log odds against them, ``[n head]`` each."""
    n = torch.arange(len(cue), device=cue.device)
    others = row.clone()
    others[n, :, cue] = -torch.inf
    rest = others.logsumexp(dim=-1)
    return rest, row[n, :, cue] - rest


def cue_value_edits(side: Side, layers: Sequence[int]) -> list[Edit]:
    """At the deciding query every head of these layers reads the twin's value from the cue; weights stay."""
    n = torch.arange(len(side.query), device=side.query.device)
    weights: dict[int, Tensor] = {}

    def note(pattern: Tensor, layer: int) -> Tensor:
        weights[layer] = pattern[n, :, side.query, side.cue]
        return pattern

    def read(z: Tensor, layer: int) -> Tensor:
        name = f"blocks.{layer}.attn.hook_v"
        change = side.other.activations[name][n, side.cue] - side.clean.activations[name][n, side.cue]
        edited = z.clone()
        edited[n, side.query] += weights[layer][:, :, None] * change
        return edited

    edits = []
    for layer in layers:
        edits.append(Edit(f"blocks.{layer}.attn.hook_pattern", partial(note, layer=layer), "weight of the cue"))
        edits.append(_z(layer, partial(read, layer=layer), "value of the cue"))
    return edits
