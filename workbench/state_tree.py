"""The tree of passes that :mod:`workbench.restart` walks on one chunk of sequences.

States to which the same has been done are one state until they part. A state is taken up one step at a time, side by
side with others; where something is put into some of those it stands for, it parts into children. Axes:
``state seq pos head d_head d_model d_vocab``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.attend import Attend
from workbench.linear_parts import Layer, LinearParts, Projection, centred, post_norm, sizes
from workbench.model.transformer import Transformer
from workbench.replacements import Place, Plan, Put
from workbench.task import Batch

CANCELLED = 8.0
"""A change that leaves less than this part of a vector of the stream is not added; the stream is computed afresh."""

WORTH = 4
"""Rows to be changed, as a multiple of the heads' joint width, from which on it pays to multiply maps out first."""

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
    projection: Projection | None = None


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


class Walk:
    """The tree of states on one chunk of sequences: each method takes states one step up and hands on what follows."""

    def __init__(
        self,
        model: Transformer,
        parts: LinearParts,
        batch: Batch,
        chunk: slice,
        plans: Sequence[Plan],
        tokens: int,
        frozen: Sequence[Tensor] | None,
    ) -> None:
        self.model, self.parts, self.chunk, self.plans, self.tokens = model, parts, chunk, plans, tokens
        self.whole = batch.tokens.shape
        self.batch = batch[chunk]
        held = None if frozen is None else [pattern[chunk] for pattern in frozen]
        self.attend = Attend(model, self.batch.mask, self.batch.scored, held)
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
            z, x = self.attend.scored(index, layer.read, projection, sizes(x)), self.attend.rows(x)
        else:
            z = self.attend.all(index, layer.read, projection, sizes(x))
        for group in self._branch_heads(index, replace(states, x=x), z):
            yield from self._mlp(index, replace(group, x=post_norm(group.x, layer.post, 0)))

    def _mlp(self, index: int, states: _States) -> Iterator[Outcome]:
        layer, x = self.parts.layers[index], states.x
        if layer.mlp_read is None:
            yield from self._layer(index + 1, states)
            return
        after = replace(states, x=layer.mlp_writes(x, states.projection), projection=None)
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
        children = self._children(("z", index), states)
        if children is None:
            yield replace(states, x=layer.heads_write(states.x, z), projection=None)
            return
        following, rows = self.parts.after_heads(index), states.x.shape[1] * states.x.shape[2]
        changed = sum(bool(child.puts) for child in children)
        worth = following.writer is not None and changed * rows >= WORTH * z.shape[2]
        narrow = self.model.config.n_heads // 2 if worth else -1
        children.sort(key=lambda child: len(child.heads))  # so that few are filled up to the width of others
        few = [child for child in children if len(child.heads) <= narrow]
        if few:
            base = layer.heads_write(states.x, z)
            known = following.project(base).base
        for some in _cut(few, self._room(states.x)):
            at = [child.parent for child in some]
            x, projection = _take(base, at), Projection(_take(known, at))
            if width := len(some[-1].heads):
                heads = torch.tensor([(*child.heads, *[0] * (width - len(child.heads))) for child in some])
                change = torch.stack([self._change(child, z[child.parent], width) for child in some])
                before, x = sizes(x), layer.change(x, change, heads)
                if bool((CANCELLED * sizes(x) < before).any()):
                    yield self._afresh(layer, states, some, z)
                    continue
                projection = following.change(projection.base, change, heads)
            yield self._descend(states, some, x, projection)
        for some in _cut(children[len(few) :], self._room(states.x)):
            yield self._afresh(layer, states, some, z)

    def _afresh(self, layer: Layer, states: _States, children: Sequence[_Child], z: Tensor) -> _States:
        """The children, from the replaced z."""
        k, all_z = self.model.config.d_head, z[[child.parent for child in children]]
        for child, mine in zip(children, all_z, strict=True):
            for head, new in self._replaced(child, mine).items():
                mine[:, head * k : (head + 1) * k] = new
        x = layer.heads_write(_take(states.x, [child.parent for child in children]), all_z)
        return self._descend(states, children, x, None)

    def _change(self, child: _Child, z: Tensor, width: int) -> Float[Tensor, "seq width pos"]:
        """By how much the child changes the z of its heads, filled up with 0 to ``width`` heads."""
        k = self.model.config.d_head
        change = z.new_zeros(z.shape[0], width * k, z.shape[2])
        for i, (head, new) in enumerate(sorted(self._replaced(child, z).items())):
            torch.sub(new, z[:, head * k : (head + 1) * k], out=change[:, i * k : (i + 1) * k])
        return change

    def _replaced(self, child: _Child, z: Float[Tensor, "seq out pos"]) -> dict[int, Float[Tensor, "seq d_head pos"]]:
        """The new z of the heads that the child replaces."""
        k, new = self.model.config.d_head, dict[int, Tensor]()
        for put in child.puts:
            assert put.head is not None
            old = new.get(put.head, z[:, put.head * k : (put.head + 1) * k])
            new[put.head] = self._put(put, old.transpose(1, 2)).transpose(1, 2)
        return new

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

    def _descend(
        self, states: _States, children: Sequence[_Child], x: Tensor, projection: Projection | None
    ) -> _States:
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
    """These states of ``x [state ...]``, without a copy where they are all of them, or one over and over."""
    if list(states) == list(range(len(x))):
        return x
    if len(set(states)) == 1:
        return x[states[0]].expand(len(states), *x.shape[1:])
    return x[list(states)]
