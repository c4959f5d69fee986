"""Many interventions on one batch, each restarting where it begins: the same logits as the hooks give, much sooner.

A replacement leaves everything below it as it was. So the passes form a tree that is walked once, from the embedding
up: states to which the same has been done are one state until they part, and the clean pass is the state to which
nothing has been done. What is left of a pass is computed through the linear maps of :mod:`workbench.linear_parts`:

- where few heads of a layer are replaced, the stream and its next reading are those of the state that it parts from,
  plus a change of the heads' width. Where the change leaves so little of the stream that rounding would show
  (``CANCELLED``), and under post-norm, both are computed from the replaced z instead;
- in the last layer only the scored positions are computed, and its replacements never repeat attention.

Exact up to rounding; nothing is sampled, frozen or approximated. Axes: ``state seq pos head d_head d_model d_vocab``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.attend import Attend
from workbench.errors import WorkbenchError
from workbench.linear_parts import LinearParts, centred, post_norm, sizes
from workbench.model.transformer import Transformer
from workbench.replacements import Place, Plan, Put, Replacement, plan
from workbench.task import Batch

CHUNK_TOKENS = 4096
CANCELLED = 8.0
"""A change that leaves less than this part of a vector of the stream is not added; the stream is computed afresh."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Outcome:
    """The logits of some replacements on some sequences of the batch.

    Attributes:
        indices: of the replacements. start, stop: the sequences.
        logits: at the scored positions of these sequences, in the order of ``batch.scored[start:stop].nonzero()``.
        fired: the sequences on which every value was put at a real position. False everywhere for an empty replacement.
    """

    indices: tuple[int, ...]
    start: int
    stop: int
    logits: Float[Tensor, "index row d_vocab"]
    fired: Bool[Tensor, "index seq"]


def evaluate(
    model: Transformer, batch: Batch, replacements: Sequence[Replacement], *, chunk_tokens: int = CHUNK_TOKENS
) -> Iterator[Outcome]:
    """The logits of every replacement at the batch's scored positions, piece by piece.

    Args:
        replacements: in any order; what several have in common is computed once. Values are the same where they are
            the same number, or the same tensor (or views of the same place in one).
        chunk_tokens: tokens computed at once, of one state or of several. Peak memory is about this times the bytes of
            a token's widest activations (its scores among them), times the number of layers. It changes the result by
            rounding at most.

    Yields:
        Outcomes that together hold each replacement on each sequence once. Sequences come in order.

    Raises:
        WorkbenchError: a place that does not exist, a value or mask that does not fit the batch, a sequence without a
            scored position, a chunk below 1, or anything that the model refuses.
    """
    if chunk_tokens < 1:
        raise WorkbenchError("chunk_tokens cannot be used", expected="at least 1", got=chunk_tokens)
    model._check(batch.tokens, batch.mask, 0)
    unscored = (~batch.scored.any(dim=1)).nonzero()
    if len(unscored):
        raise WorkbenchError(
            "a sequence has no scored position", expected="at least one", got=f"none in sequence {int(unscored[0, 0])}"
        )
    n, t = batch.tokens.shape
    return _chunks(model, batch, [plan(puts, model.config, (n, t)) for puts in replacements], chunk_tokens)


@torch.no_grad()  # as a decorator: it lets go of the caller's gradients between two outcomes
def _chunks(model: Transformer, batch: Batch, plans: Sequence[Plan], tokens: int) -> Iterator[Outcome]:
    parts = LinearParts(model)
    size = max(1, tokens // batch.tokens.shape[1])
    for start in range(0, len(batch) if plans else 0, size):
        yield from _Walk(model, parts, batch, slice(start, min(start + size, len(batch))), plans, tokens).outcomes()


@dataclass(frozen=True, eq=False)
class _States:
    """Passes that differ, side by side.

    Attributes:
        x: the residual stream (centred under pre-norm), ``[state seq pos d_model]``; after the last attention
            ``[state 1 row d_model]``, the rows being the scored positions. members: whose each state is so far.
        fired: the sequences on which everything up to here was put. projection: of ``x``, by what reads it next.
    """

    x: Tensor
    members: tuple[tuple[int, ...], ...]
    fired: Bool[Tensor, "state seq"]
    projection: Tensor | None = None


@dataclass(frozen=True, eq=False)
class _Child:
    """A state to be: what it parts from, by what, and whose it is."""

    parent: int
    puts: tuple[Put, ...]
    members: list[int]

    @property
    def heads(self) -> tuple[int, ...]:
        """The heads whose z changes."""
        return tuple(sorted({put.head for put in self.puts if put.head is not None}))


class _Walk:
    """The tree of states on one chunk of sequences: each method takes states one step up and hands on what follows."""

    def __init__(
        self, model: Transformer, parts: LinearParts, batch: Batch, chunk: slice, plans: Sequence[Plan], tokens: int
    ) -> None:
        self.model, self.parts, self.chunk, self.plans, self.tokens = model, parts, chunk, plans, tokens
        self.whole = batch.tokens.shape
        self.batch = batch[chunk]
        self.attend = Attend(model, self.batch.mask, self.batch.scored)
        self.n_layers = model.config.n_layers

    def outcomes(self) -> Iterator[Outcome]:
        x = centred(self.model._embed_fast(self.batch.tokens, self.batch.mask), self.model.config)
        fired = torch.ones(1, len(self.batch), dtype=torch.bool, device=x.device)
        yield from self._layer(0, _States(x[None], (tuple(range(len(self.plans))),), fired))

    def _layer(self, index: int, states: _States) -> Iterator[Outcome]:
        for group in self._branch(("resid_pre", index), states):
            yield from self._attention(index, group) if index < self.n_layers else self._end(group)

    def _attention(self, index: int, states: _States) -> Iterator[Outcome]:
        layer, x = self.parts.layers[index], states.x
        projection = layer.read.project(x) if states.projection is None else states.projection
        if index == self.n_layers - 1:
            z, x = self.attend.scored(layer.read, projection, sizes(x)), self.attend.rows(x)
        else:
            z = self.attend.all(layer.read, projection, sizes(x))
        for group in self._branch_heads(index, replace(states, x=x), z):
            yield from self._mlp(index, replace(group, x=post_norm(group.x, layer.post, 0)))

    def _mlp(self, index: int, states: _States) -> Iterator[Outcome]:
        layer, x = self.parts.layers[index], states.x
        if layer.mlp_read is None:
            yield from self._layer(index + 1, states)
            return
        projection = layer.mlp_read.project(x) if states.projection is None else states.projection
        after = replace(states, x=layer.mlp_writes(x, projection, sizes(x)), projection=None)
        for group in self._branch(("mlp_out", index), after, before=x):
            yield from self._layer(index + 1, replace(group, x=post_norm(group.x, layer.post, 1)))

    def _end(self, states: _States) -> Iterator[Outcome]:
        read = self.parts.logits
        projection = read.project(states.x) if states.projection is None else states.projection
        logits = read.finish(projection, sizes(states.x))[:, 0]
        done = [(state, i) for state, members in enumerate(states.members) for i in members]
        for some in _cut(done, self._room(states.x)):
            at, indices = [state for state, _ in some], tuple(i for _, i in some)
            something = torch.tensor([bool(self.plans[i]) for i in indices], device=logits.device)
            fired = _take(states.fired, at) & something[:, None]
            yield Outcome(indices, self.chunk.start, self.chunk.stop, _take(logits, at), fired)

    def _branch_heads(self, index: int, states: _States, z: Tensor) -> Iterator[_States]:
        """The states after what is put in place of heads' z, and after all heads have written."""
        layer = self.parts.layers[index]
        base = layer.heads_write(states.x, z)
        children = self._children(("z", index), states)
        if children is None:
            yield replace(states, x=base, projection=None)
            return
        following = self.parts.after_heads(index)
        narrow = 0 if following.per_head is None else self.model.config.n_heads // 2
        known = following.project(base) if any(len(child.heads) <= narrow for child in children) else None
        for width, alike in groupby(sorted(children, key=lambda c: len(c.heads)), key=lambda c: len(c.heads)):
            for some in _cut(list(alike), self._room(base)):
                at = [child.parent for child in some]
                x = projection = None
                if width <= narrow and known is not None:
                    x, projection = _take(base, at), _take(known, at)
                if width and x is not None and projection is not None:
                    heads = torch.tensor([child.heads for child in some], device=z.device)
                    change = torch.stack([self._change(child, z[child.parent]) for child in some])
                    before, x = sizes(x), layer.change(x, change, heads)
                    projection = following.change(projection, change, heads)
                    if bool((CANCELLED * sizes(x) < before).any()):
                        x = projection = None
                if x is None:
                    replaced = torch.stack([self._replace(child, z[child.parent]) for child in some])
                    x = layer.heads_write(_take(states.x, at), replaced)
                yield self._descend(states, some, x, projection)

    def _change(self, child: _Child, z: Tensor) -> Float[Tensor, "seq width pos"]:
        """By how much the z of the child's heads differs from that of the state that it parts from."""
        k = self.model.config.d_head
        new = self._replace(child, z)
        return torch.cat([(new - z)[:, head * k : (head + 1) * k] for head in child.heads], dim=1)

    def _replace(self, child: _Child, z: Tensor) -> Float[Tensor, "seq out pos"]:
        """All heads' z, the child's replaced."""
        k, z = self.model.config.d_head, z.clone()
        for put in child.puts:
            assert put.head is not None
            mine = z[:, put.head * k : (put.head + 1) * k]
            mine.copy_(self._put(put, mine.transpose(1, 2)).transpose(1, 2))
        return z

    def _branch(self, place: Place, states: _States, before: Tensor | None = None) -> Iterator[_States]:
        """The states after what is put into the stream; ``before`` is what a value is added to, where it is a write."""
        children = self._children(place, states)
        if children is None:
            yield states
            return
        for some in _cut(children, self._room(states.x)):
            made = []
            for child in some:
                x = states.x[child.parent]
                for put in child.puts:
                    x = self._put(put, x, None if before is None else before[child.parent])
                made.append(x)
            yield self._descend(states, some, torch.stack(made), None)

    def _put(self, put: Put, old: Float[Tensor, "seq pos width"], plus: Tensor | None = None) -> Tensor:
        """``old`` with the value (and ``plus``) in its place."""
        value = torch.as_tensor(put.value, dtype=old.dtype, device=old.device)
        new = self._mine(value.expand(*self.whole, old.shape[-1]), put)
        if put.stream != "z":
            new = centred(new, self.model.config)
        if plus is not None:
            new = new + plus
        return new if put.at is None else torch.where(self._mine(put.at, put)[..., None], new, old)

    def _mine(self, whole: Tensor, put: Put) -> Tensor:
        """What of ``[batch pos ...]`` is computed where a value is put: from the last z on, the scored positions."""
        mine = whole[self.chunk]
        if put.layer < self.n_layers - (put.stream != "resid_pre"):
            return mine
        return mine[self.attend.seq, self.attend.pos][None]

    def _children(self, place: Place, states: _States) -> list[_Child] | None:
        """What the states part into; None where nothing is put into any of them."""
        found: dict[tuple[int, object], _Child] = {}
        for parent, members in enumerate(states.members):
            for i in members:
                key, puts = self.plans[i].get(place, ((), ()))
                found.setdefault((parent, key), _Child(parent, puts, [])).members.append(i)
        return list(found.values()) if any(child.puts for child in found.values()) else None

    def _descend(self, states: _States, children: Sequence[_Child], x: Tensor, projection: Tensor | None) -> _States:
        """The children as states, with what fired: a value counts where it was put on a real position."""
        fired = []
        for child in children:
            took = states.fired[child.parent]
            for put in child.puts:
                real = self.batch.mask if put.at is None else self.batch.mask & put.at[self.chunk]
                took = took & real.any(dim=1)
            fired.append(took)
        return _States(x, tuple(tuple(child.members) for child in children), torch.stack(fired), projection)

    def _room(self, x: Tensor) -> int:
        """How many states like these are computed at once."""
        return max(1, self.tokens // (x.shape[1] * x.shape[2]))


def _cut(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _take(x: Tensor, states: Sequence[int]) -> Tensor:
    """These states, without a copy where they are all of them, or one."""
    if list(states) == list(range(len(x))):
        return x
    return x[states[0]][None] if len(states) == 1 else x[list(states)]
