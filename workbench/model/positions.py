"""How a model knows where a token stands: tables, rotations and penalties, as plain functions.

Axes: ``pos query_pos key_pos head d_head d_model``.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def sinusoidal(n_ctx: int, d_model: int) -> Float[Tensor, "pos d_model"]:
    """The fixed table of Vaswani et al. (2017): sin and cos in turn, wavelengths from 2 pi to 10,000 * 2 pi."""
    position = torch.arange(n_ctx, dtype=torch.float64)[:, None]
    rate = 10_000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    table = torch.stack([torch.sin(position * rate), torch.cos(position * rate)], dim=-1)
    return table.reshape(n_ctx, d_model).float()


def rotary_table(n_ctx: int, d_head: int) -> Float[Tensor, "2 pos d_head"]:
    """Cosines and sines of the rotary angles (Su et al. 2021), base 10,000, halves convention (as GPT-NeoX and Llama).

    Coordinate ``i`` of the first half turns together with coordinate ``i`` of the second half.
    """
    position = torch.arange(n_ctx, dtype=torch.float64)[:, None]
    rate = 10_000.0 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    angle = (position * rate).repeat(1, 2)
    return torch.stack([torch.cos(angle), torch.sin(angle)]).float()


def rotate(
    x: Float[Tensor, "*lead pos d_head"], table: Float[Tensor, "2 pos d_head"]
) -> Float[Tensor, "*lead pos d_head"]:
    """Turn each vector by the angles of its position; after it a dot product depends on the offset only."""
    first, second = x.chunk(2, dim=-1)
    return x * table[0] + torch.cat([-second, first], dim=-1) * table[1]


def alibi_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """Slopes of Press et al. (2022): ``2 ** (-8 (h + 1) / n_heads)`` for head h."""
    return 2.0 ** (-8.0 * torch.arange(1, n_heads + 1, dtype=torch.float32) / n_heads)


def alibi_bias(n_ctx: int, n_heads: int) -> Float[Tensor, "head query_pos key_pos"]:
    """What ALiBi adds to the scores: minus the slope times the distance back to the key (0 on and after the query)."""
    position = torch.arange(n_ctx, dtype=torch.float32)
    distance = (position[:, None] - position[None, :]).clamp(min=0)
    return -alibi_slopes(n_heads)[:, None, None] * distance
