"""A model taken apart into its linear maps, for passes that share work: what :mod:`workbench.restart` computes with.

Everything that reads the residual stream reads it through a linear map, after a norm or without one. LayerNorm is a
centring, a scale and a linear map, so with a residual stream that is kept centred (every write to it centred in
advance) a reading is

    (projection of the stream) * rstd + offset,    rstd = (||x||^2 / d_model + eps) ** -1/2

and the projection, being linear, changes by a matrix of width ``d_head`` when one head's z changes: the map of a head's
output matrix and the reading's weights is multiplied out in advance (Elhage et al. 2021, virtual weights).

Axes: ``state seq pos d_model``; what is read is ``[state seq out pos]`` (positions last: attention's products are
fastest so, and z comes out as ``[state seq head*d_head pos]``), but ``[state seq pos out]`` for the MLP and the logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.config import ModelConfig
from workbench.model.blocks import EPS
from workbench.model.transformer import Transformer

CACHED = 1 << 17
"""Numbers that a step of several passes takes at once, to stay in the processor's cache."""


@dataclass(frozen=True, eq=False)
class Projection:
    """What a linear map makes of the stream before scale and offset: ``base``, and beside it ``maps`` times ``change``.

    Attributes:
        base: ``[state seq out pos]`` (``[state seq pos out]`` by row). change: ``[state seq width pos]``, by how much z
            of the changed heads differs. maps: ``[state width out]``, what that does to the output.
        spare: nothing else will use ``base``; it may be overwritten.
    """

    base: Tensor
    change: Tensor | None = None
    maps: Tensor | None = None
    spare: bool = False


class Reading:
    """A linear map that reads the residual stream, the norm before it (where there is one) folded in.

    Args:
        weight: ``[d_model out]``. offset: ``[out]``. norm: the LayerNorm that is read through, or None.
        writer: ``W_O [head d_head d_model]`` of the heads right below, to which changes are known; or None.
        by_row: give ``[state seq pos out]``, as the MLP and the logits take it.
    """

    def __init__(
        self,
        weight: Float[Tensor, "d_model out"],
        offset: Float[Tensor, " out"],
        norm: Any = None,
        writer: Float[Tensor, "head d_head d_model"] | None = None,
        by_row: bool = False,
    ) -> None:
        self.normed = norm is not None
        if norm is not None:
            offset = offset + norm.b @ weight
            weight = norm.w[:, None] * weight
        self.by_row = by_row
        self.weight, self.writer = weight, writer
        self.offset = offset if by_row else offset[:, None]

    @cached_property
    def per_head(self) -> Float[Tensor, "head d_head out"]:
        """What a unit of a head's z adds to each output."""
        assert self.writer is not None
        return self.writer @ self.weight

    def project(self, x: Float[Tensor, "state seq pos d_model"]) -> Projection:
        """The stream's projection, before scale and offset."""
        if self.by_row:
            return Projection(x @ self.weight, spare=True)
        s, n, t, d = x.shape
        out = torch.bmm(self.weight.T.expand(s * n, -1, d), x.reshape(s * n, t, d).transpose(1, 2))
        return Projection(out.view(s, n, -1, t), spare=True)

    def change(
        self, base: Tensor, change: Float[Tensor, "state seq width pos"], heads: Int[Tensor, "state changed"]
    ) -> Projection:
        """The projection ``base`` after the z of ``heads`` (of each state) has changed by ``change``."""
        return Projection(base, change, self.per_head[heads].flatten(1, 2))

    def finish(
        self, projection: Projection, size: Float[Tensor, "state seq pos"], part: slice = slice(None)
    ) -> Float[Tensor, "state seq a b"]:
        """What is read: scale (where normed) and offset. ``part`` takes some of the outputs (not by row)."""
        base, change, maps = projection.base, projection.change, projection.maps
        rstd = (size.square() / self.weight.shape[0] + EPS).rsqrt() if self.normed else None
        if not self.by_row:
            base = base[:, :, part]
        offset = self.offset if self.by_row else self.offset[part]
        into = base if projection.spare and self.by_row else None
        if rstd is None:
            out = torch.add(base, offset, out=into)
        else:
            out = torch.addcmul(offset, base, rstd.unsqueeze(-1 if self.by_row else -2), out=into)
        if change is not None and maps is not None:  # added when scaled: the wide base is read once and not copied
            s, n, width, _ = change.shape
            change = (change if rstd is None else change * rstd[:, :, None]).view(s * n, width, -1)
            maps = maps[:, None, :, part].expand(s, n, width, -1).reshape(s * n, width, -1)
            factors = (change.transpose(1, 2), maps) if self.by_row else (maps.transpose(1, 2), change)
            out.view(s * n, *out.shape[2:]).baddbmm_(*factors)
        return out


class Layer:
    """One block: the reading of its attention, what its heads write, and its MLP's two maps (or none)."""

    def __init__(self, model: Transformer, index: int) -> None:
        config, block = model.config, model.blocks[index]
        self.post = [norm for norm in (block.ln1, block.ln2) if norm is not None] if config.norm == "post" else []
        pre, attn = config.norm == "pre", block.attn
        # Scores are divided once, here, instead of at every query and key.
        scale = {"Q": 1 / attn.scale}
        weights = [getattr(attn, f"W_{n}").transpose(0, 1).flatten(1) * scale.get(n, 1) for n in attn.inputs]
        offsets = [getattr(attn, f"b_{n}").flatten() * scale.get(n, 1) for n in attn.inputs]
        below = None if index == 0 else heads_right_below(model.blocks[index - 1], config)
        self.read = Reading(torch.cat(weights, dim=1), torch.cat(offsets), block.ln1 if pre else None, below)
        self.w_o = centred(attn.W_O, config)
        self.write, self.b_o = self.w_o.flatten(0, 1), centred(attn.b_O, config)
        self.mlp_read: Reading | None = None
        if block.mlp is not None:
            writer = None if config.norm == "post" else self.w_o
            self.mlp_read = Reading(block.mlp.W_in, block.mlp.b_in, block.ln2 if pre else None, writer, by_row=True)
            self.mlp_write, self.b_mlp = centred(block.mlp.W_out, config), centred(block.mlp.b_out, config)

    def heads_write(
        self, x: Float[Tensor, "state seq pos d_model"], z: Float[Tensor, "state seq width pos"]
    ) -> Float[Tensor, "state seq pos d_model"]:
        """``x`` with the writes of all heads added."""
        out = x + self.b_o
        out.flatten(0, 1).baddbmm_(*_factors(x, z, self.write))
        return out

    def change(
        self, x: Tensor, change: Float[Tensor, "state seq width pos"], heads: Int[Tensor, "state changed"]
    ) -> Float[Tensor, "state seq pos d_model"]:
        """``x`` after the z of ``heads`` (of each state) has changed by ``change``."""
        writes = self.w_o[heads].flatten(1, 2)  # [state width d_model]
        return torch.baddbmm(x.flatten(0, 1), *_factors(x, change, writes)).view(x.shape)

    def mlp_writes(
        self, x: Float[Tensor, "state seq pos d_model"], projection: Projection | None
    ) -> Float[Tensor, "state seq pos d_model"]:
        """``x`` with the MLP's write added; from the projection of its reading, where that is known."""
        assert self.mlp_read is not None
        out = x + self.b_mlp
        if projection is not None:
            hidden = self.mlp_read.finish(projection, sizes(x))
            out.flatten(0, 2).addmm_(_gelu_(hidden.flatten(0, 2)), self.mlp_write)
            return out
        # Some rows at a time, so that the hidden layer stays in the cache.
        step = max(1, CACHED // self.mlp_write.shape[0])
        for rows, into in zip(x.flatten(0, 2).split(step), out.flatten(0, 2).split(step), strict=True):
            rows = rows[None, None]
            hidden = self.mlp_read.finish(self.mlp_read.project(rows), sizes(rows))[0, 0]
            into.addmm_(_gelu_(hidden), self.mlp_write)
        return out


class LinearParts:
    """The whole model as linear maps: its layers, and the reading of the logits."""

    def __init__(self, model: Transformer) -> None:
        self.config = model.config
        self.layers = [Layer(model, index) for index in range(model.config.n_layers)]
        unembed = model.unembed.W_U
        below = heads_right_below(model.blocks[-1], model.config)
        self.logits = Reading(unembed, unembed.new_zeros(unembed.shape[1]), model.ln_final, below, by_row=True)

    def after_heads(self, index: int) -> Reading:
        """What first reads what the heads of a layer have written."""
        above = self.layers[index + 1].read if index + 1 < len(self.layers) else self.logits
        return self.layers[index].mlp_read or above


def heads_right_below(block: Any, config: ModelConfig) -> Tensor | None:
    """``W_O`` of the block under a reading, or None where an MLP or a norm stands between."""
    return None if block.mlp is not None or config.norm == "post" else centred(block.attn.W_O, config)


def centred(x: Float[Tensor, "*lead d_model"], config: ModelConfig) -> Float[Tensor, "*lead d_model"]:
    """Without the mean over ``d_model``, where everything reads through a LayerNorm, which takes it away anyhow."""
    return x - x.mean(-1, keepdim=True) if config.norm == "pre" else x


def _factors(x: Tensor, z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """``z [state seq width pos]`` and its weight ``[width d_model]`` (or one a state) as batches of matrices."""
    s, n, t, d = x.shape
    if weight.ndim == 3:
        weight = weight[:, None].expand(s, n, -1, d).reshape(s * n, -1, d)
    return z.reshape(s * n, -1, t).transpose(1, 2), weight.expand(s * n, -1, d)


def _gelu_(x: Float[Tensor, "row d_mlp"]) -> Float[Tensor, "row d_mlp"]:
    """GELU in its tanh form, in place, as ``x * sigmoid(2 u)``: the same function by the faster kernel."""
    for piece in x.split(max(1, CACHED // x.shape[1])):
        twice = piece.square().mul_(0.044715).add_(1.0).mul_(piece).mul_(2 * math.sqrt(2 / math.pi))
        piece.mul_(twice.sigmoid_())
    return x


def sizes(x: Float[Tensor, "state seq pos d_model"]) -> Float[Tensor, "state seq pos"]:
    """The length of every vector of the stream."""
    return torch.linalg.vector_norm(x, dim=-1)


def post_norm(x: Tensor, norms: Sequence[Any], index: int) -> Tensor:
    """``x`` after the norm that follows a sublayer, where there is one."""
    return norms[index].fast(x) if norms else x
