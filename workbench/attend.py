"""Attention of many states on one chunk of sequences, positions last, for :mod:`workbench.restart`.

Axes: ``state seq head d_head pos query_pos key_pos``; ``out`` is heads times ``d_head``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.linear_parts import Projection, Reading
from workbench.model.transformer import Transformer

TILES, TILE = 4, 16
"""Causal queries are taken in so many runs, of at least so many, each beside the keys up to its end: of four runs, 5/8
of the scores are computed."""
FEW = 0.75
"""Up to this share of the positions, the scored ones are gathered before attention, not after it."""


class Attend:
    """What attention needs to know about the sequences: who sees whom, where they stand, and what is scored.

    Args:
        model: whose. mask: real tokens. scored: the positions that the last layer is needed at.
        frozen: every layer's pattern, ``[seq head query_pos key_pos]``, where patterns are held; else None.
    """

    def __init__(
        self,
        model: Transformer,
        mask: Bool[Tensor, "seq pos"],
        scored: Bool[Tensor, "seq pos"],
        frozen: Sequence[Tensor] | None = None,
    ) -> None:
        self.config, self.frozen = model.config, frozen
        t = mask.shape[1]
        visible = model.causal[:t, :t][None]
        if not bool(mask.all()):  # a padded query sees itself, so that no row is empty
            visible = visible & (mask[:, None] | torch.eye(t, dtype=torch.bool, device=mask.device))
        bias = 0.0 if model.alibi is None else model.alibi[:, :t, :t]
        self.bias = (model.unembed.W_U.new_zeros(()) + bias).masked_fill(~visible[:, None], -torch.inf)
        # Nothing but causality: of a run of queries only the keys among themselves need it.
        self.plain = model.alibi is None and bool(mask.all())
        self.rotary = None if model.rotary is None else model.rotary[:, :t].transpose(1, 2)
        tile = max(TILE, -(-t // TILES))
        self.everyone = [(start, min(start + tile, t)) for start in range(0, t, tile)]
        self.seq, self.pos = scored.nonzero(as_tuple=True)
        self.queries: Tensor | None = None
        self.among = self.pos  # where the scored positions stand among the queries
        most = int(scored.sum(1).max())
        if most <= FEW * t:
            self.queries = (~scored).long().argsort(dim=1, stable=True)[:, :most]  # [seq most], the scored ones first
            self.among = scored.gather(1, self.queries).nonzero(as_tuple=True)[1]

    def rows(self, x: Float[Tensor, "state seq pos d_model"]) -> Float[Tensor, "state 1 row d_model"]:
        """The stream at the scored positions, as one long sequence."""
        return x[:, self.seq, self.pos][:, None]

    def all(
        self, layer: int, read: Reading, projection: Projection, size: Tensor
    ) -> Float[Tensor, "state seq out pos"]:
        """z everywhere, from the reading's projection."""
        return self._z(layer, read, projection, size, None)

    def scored(
        self, layer: int, read: Reading, projection: Projection, size: Tensor
    ) -> Float[Tensor, "state 1 out row"]:
        """z at the scored positions, as one long sequence."""
        z = self._z(layer, read, projection, size, self.queries)
        return z.transpose(2, 3)[:, self.seq, self.among].transpose(1, 2)[:, None]

    def _z(self, layer: int, read: Reading, projection: Projection, size: Tensor, queries: Tensor | None) -> Tensor:
        c = self.config
        s, n, _, t = projection.base.shape
        width = c.n_heads * c.d_head
        if self.frozen is not None:
            last = slice(0, width) if c.attention == "uniform" else slice(2 * width, 3 * width)
            v = read.finish(projection, size, last).view(s, n, c.n_heads, c.d_head, t)
            pattern = self.frozen[layer]
            if queries is not None:
                where = queries[:, None, :, None].expand(n, c.n_heads, -1, t)
                pattern = pattern.gather(2, where)
            return (v @ pattern.transpose(-1, -2)).view(s, n, width, -1)
        if c.attention == "uniform":
            v = read.finish(projection, size).view(s, n, c.n_heads, c.d_head, t)
            bias = self.bias if queries is None else self._bias(queries)
            return (v @ bias.softmax(-1).transpose(-1, -2)).view(s, n, width, -1)
        key, v = (read.finish(projection, size, slice(i * width, (i + 1) * width)) for i in (1, 2))
        if queries is not None:
            where = queries[None, :, None].expand(s, n, width, -1)
            change = projection.change
            if change is not None:
                change = change.gather(3, queries[None, :, None].expand(s, n, change.shape[2], -1))
            projection = replace(projection, base=projection.base[:, :, :width].gather(3, where), change=change)
            size = size.gather(2, where[:, :, 0])
        q = read.finish(projection, size, slice(0, width))
        q, key, v = (x.reshape(s * n * c.n_heads, c.d_head, -1) for x in (q, key, v))
        if self.rotary is not None:
            key, q = _turn(key, self.rotary), _turn(q, self._turns(queries, s))
        if queries is not None:
            z = self._attend(q, key, v, self._bias(queries), s)
        else:
            z = torch.cat(
                [self._attend(q[..., a:b], key[..., :b], v[..., :b], self.bias[..., a:b, :b], s, a if self.plain else 0)
                 for a, b in self.everyone],
                dim=-1,
            )  # fmt: skip
        return z.view(s, n, width, -1)

    def _attend(self, q: Tensor, key: Tensor, v: Tensor, bias: Tensor, states: int, first: int = 0) -> Tensor:
        """z ``[state*seq*head d_head query_pos]``; the bias is 0 for keys before ``first``."""
        scores = torch.bmm(q.transpose(1, 2), key)
        scores.view(states, -1, self.config.n_heads, *scores.shape[1:])[..., first:].add_(bias[..., first:])
        pattern = torch.softmax(scores, -1, out=scores)
        return torch.bmm(v, pattern.transpose(1, 2))

    def _bias(self, queries: Tensor) -> Float[Tensor, "seq head query_pos key_pos"]:
        n, heads, t = len(queries), self.bias.shape[1], self.bias.shape[3]
        where = queries[:, None, :, None].expand(n, heads, -1, t)
        return self.bias.expand(n, -1, -1, -1).gather(2, where)

    def _turns(self, queries: Tensor | None, states: int) -> Tensor:
        assert self.rotary is not None
        if queries is None:
            return self.rotary
        table = self.rotary[:, :, queries].transpose(1, 2)  # [2 seq d_head query_pos]
        return table[:, None, :, None].expand(2, states, -1, self.config.n_heads, -1, -1).flatten(1, 3)


def _turn(x: Float[Tensor, "n d_head pos"], table: Float[Tensor, "2 *n d_head pos"]) -> Float[Tensor, "n d_head pos"]:
    """Rotary positions, as :func:`workbench.model.positions.rotate`, with positions last."""
    first, second = x.chunk(2, dim=1)
    return torch.addcmul(x * table[0], torch.cat([-second, first], dim=1), table[1])
