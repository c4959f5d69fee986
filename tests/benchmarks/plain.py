"""The comparison: the same transformer written the shortest way in plain torch, with fused attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workbench.model.transformer import Transformer


class PlainBlock(nn.Module):
    """Pre-norm attention with one fused projection for queries, keys and values."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm = nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(z.transpose(1, 2).reshape(b, t, d))


class Plain(nn.Module):
    """Attention-only, LayerNorm before each layer and at the end, learned positions."""

    def __init__(self, d_vocab: int, n_ctx: int, n_layers: int, n_heads: int, d_model: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(d_vocab, d_model)
        self.position = nn.Parameter(torch.zeros(n_ctx, d_model))
        self.blocks = nn.Sequential(*(PlainBlock(d_model, n_heads) for _ in range(n_layers)))
        self.norm = nn.LayerNorm(d_model)
        self.unembed = nn.Linear(d_model, d_vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.unembed(self.norm(self.blocks(self.embed(tokens) + self.position[: tokens.shape[1]])))


@torch.no_grad()
def plain_copy(model: Transformer) -> Plain:
    """A Plain model with the weights of one of ours (attention-only, pre-norm, learned positions)."""
    c = model.config
    plain = Plain(c.d_vocab, c.n_ctx, c.n_layers, c.n_heads, c.d_model)
    plain.embed.weight.copy_(model.embed.W_E)
    plain.position.copy_(model.pos_embed.W_pos)
    mine: Any
    for mine, block in zip(plain.blocks, model.blocks, strict=True):
        attn = block.attn
        mine.qkv.weight.copy_(torch.cat([w.transpose(1, 2).flatten(0, 1) for w in (attn.W_Q, attn.W_K, attn.W_V)]))
        mine.qkv.bias.copy_(torch.cat([b.flatten() for b in (attn.b_Q, attn.b_K, attn.b_V)]))
        mine.out.weight.copy_(attn.W_O.flatten(0, 1).T)
        mine.out.bias.copy_(attn.b_O)
        mine.norm.weight.copy_(block.ln1.w)
        mine.norm.bias.copy_(block.ln1.b)
    plain.norm.weight.copy_(model.ln_final.w)
    plain.norm.bias.copy_(model.ln_final.b)
    plain.unembed.weight.copy_(model.unembed.W_U.T)
    return plain
