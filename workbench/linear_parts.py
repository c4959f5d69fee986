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
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.config import ModelConfig
from workbench.model.blocks import EPS
from workbench.model.transformer import Transformer


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
        self.weight = weight.T.contiguous()
        self.offset = offset if by_row else offset[:, None]
        # [head out d_head]: what a unit of a head's z adds to each output.
        self.per_head = None if writer is None else (writer @ weight).transpose(1, 2).contiguous()

    def project(self, x: Float[Tensor, "state seq pos d_model"]) -> Float[Tensor, "state seq a b"]:
        """The stream's projection, before scale and offset."""
        if self.by_row:
            return x @ self.weight.T
        s, n, t, d = x.shape
        out = torch.bmm(self.weight.expand(s * n, -1, d), x.reshape(s * n, t, d).transpose(1, 2))
        return out.view(s, n, -1, t)

    def change(
        self,
        projection: Float[Tensor, "state seq a b"],
        change: Float[Tensor, "state seq width pos"],
        heads: Int[Tensor, "state changed"],
    ) -> Float[Tensor, "state seq a b"]:
        """The projection after the z of ``heads`` (of each state) has changed by ``change``."""
        assert self.per_head is not None
        maps = self.per_head[heads].transpose(1, 2).flatten(2)  # [state out width]
        s, n, width, t = change.shape
        maps = maps[:, None].expand(s, n, -1, width).reshape(s * n, -1, width)
        flat, change = projection.reshape(s * n, *projection.shape[2:]), change.reshape(s * n, width, t)
        factors = (change.transpose(1, 2), maps.transpose(1, 2)) if self.by_row else (maps, change)
        return torch.baddbmm(flat, *factors).view(projection.shape)

    def finish(
        self, projection: Tensor, size: Float[Tensor, "state seq pos"], part: slice | None = None
    ) -> Float[Tensor, "state seq a b"]:
        """What is read: scale (where normed) and offset. ``part`` takes some of the outputs (not by row)."""
        offset = self.offset
        if part is not None:
            projection, offset = projection[:, :, part], offset[part]
        if not self.normed:
            return projection + offset
        rstd = (size.square() / self.weight.shape[1] + EPS).rsqrt()
        return torch.addcmul(offset, projection, rstd.unsqueeze(-1 if self.by_row else -2))


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
        return _add(x + self.b_o, z, self.write)

    def change(
        self, x: Tensor, change: Float[Tensor, "state seq width pos"], heads: Int[Tensor, "state changed"]
    ) -> Float[Tensor, "state seq pos d_model"]:
        """``x`` after the z of ``heads`` (of each state) has changed by ``change``."""
        writes = self.w_o[heads].flatten(1, 2)  # [state width d_model]
        n = x.shape[1]
        return _add(x, change, writes[:, None].expand(-1, n, -1, -1).flatten(0, 1))

    def mlp_writes(
        self, x: Tensor, projection: Tensor, size: Float[Tensor, "state seq pos"]
    ) -> Float[Tensor, "state seq pos d_model"]:
        """``x`` with the MLP's write added, from the projection of its reading."""
        assert self.mlp_read is not None
        hidden = _gelu(self.mlp_read.finish(projection, size))
        return torch.addmm((x + self.b_mlp).flatten(0, 2), hidden.flatten(0, 2), self.mlp_write).view(x.shape)


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


def _add(x: Tensor, z: Tensor, weight: Tensor) -> Tensor:
    """``x [state seq pos d_model]`` plus ``z [state seq width pos]`` times ``[width d_model]``, or one for each."""
    s, n, t, d = x.shape
    z = z.reshape(s * n, -1, t).transpose(1, 2)
    return torch.baddbmm(x.reshape(s * n, t, d), z, weight.expand(s * n, -1, d)).view(x.shape)


def _gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form, as ``x * sigmoid(2 u)``: the same function, and sigmoid is the faster kernel."""
    twice = x.square().mul_(0.044715).add_(1.0).mul_(x).mul_(2 * math.sqrt(2 / math.pi))
    return torch.sigmoid(twice, out=twice).mul_(x)


def sizes(x: Float[Tensor, "state seq pos d_model"]) -> Float[Tensor, "state seq pos"]:
    """The length of every vector of the stream."""
    return torch.linalg.vector_norm(x, dim=-1)


def post_norm(x: Tensor, norms: Sequence[Any], index: int) -> Tensor:
    """``x`` after the norm that follows a sublayer, where there is one."""
    return norms[index].fast(x) if norms else x
