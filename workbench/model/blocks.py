"""The layers of the transformer: LayerNorm, Attention, MLP and the Block that joins them, each on two paths.

``fast`` is fused and has no hook points; ``explicit`` passes every intermediate through a HookPoint. On the explicit
path looking changes no bit: what is computed only when watched (``hook_result``, each head's own input) enters as a
change that is exactly 0 until something edits it.

Axes: ``batch pos query_pos key_pos head d_head d_model d_mlp``. A head's query, key and value are
``[batch pos head d_head]``, its scores and pattern ``[batch head query_pos key_pos]``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from workbench.config import ModelConfig
from workbench.model import positions

EPS = 1e-5


def watched(point: nn.Module) -> bool:
    """Whether any hook, forward or backward, hangs on a hook point."""
    return bool(point._forward_hooks or point._backward_hooks or point._forward_pre_hooks or point._backward_pre_hooks)


class LayerNorm(nn.Module):
    """Centre, divide by the standard deviation, scale by ``w``, shift by ``b``. ``hook_normalized`` is its output."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))
        self.hook_scale, self.hook_normalized = HookPoint(), HookPoint()

    def explicit(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        scale = self.hook_scale((x.pow(2).mean(-1, keepdim=True) + EPS).sqrt())
        return self.hook_normalized(x / scale * self.w + self.b)

    def fast(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.w.shape, self.w, self.b, EPS)

    forward = fast


class Attention(nn.Module):
    """Multi-head attention, weights by head: ``W_Q W_K W_V [head d_model d_head]``, ``W_O [head d_head d_model]``."""

    hook_q: HookPoint
    hook_k: HookPoint
    hook_v: HookPoint
    hook_attn_scores: HookPoint
    hook_pattern: HookPoint
    hook_z: HookPoint
    hook_result: HookPoint

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        h, d, k = config.n_heads, config.d_model, config.d_head
        self.inputs = ("Q", "K", "V") if config.attention == "learned" else ("V",)
        for name in self.inputs:
            self.register_parameter(f"W_{name}", nn.Parameter(torch.empty(h, d, k)))
            self.register_parameter(f"b_{name}", nn.Parameter(torch.zeros(h, k)))
        self.W_O, self.b_O = nn.Parameter(torch.empty(h, k, d)), nn.Parameter(torch.zeros(d))
        self.scale = math.sqrt(k) if config.scale_scores else 1.0
        for point in (*map(str.lower, self.inputs), "attn_scores", "pattern", "z", "result"):
            setattr(self, f"hook_{point}", HookPoint())
        if config.positions == "rotary" and config.attention == "learned":
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()

    def project(
        self, x: Float[Tensor, "batch pos d_model"], name: str, change: Tensor | None = None
    ) -> Float[Tensor, "batch pos head d_head"]:
        """Q, K or V of ``x``; ``change [batch pos head d_model]`` is added to each head's own copy of ``x``."""
        weight = getattr(self, f"W_{name}")
        out = torch.einsum("bpd,hdk->bphk", x, weight) + getattr(self, f"b_{name}")
        return out if change is None else out + torch.einsum("bphd,hdk->bphk", change, weight)

    def explicit(
        self, x: Tensor, changes: dict[str, Tensor], allowed: Tensor, rotary: Tensor | None, bias: Tensor | None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Attention of ``x``, step by step; ``changes`` are what edits added to each head's input of Q, K or V."""
        v = self.hook_v(self.project(x, "V", changes.get("V")))
        if self.config.attention == "learned":
            q = self.hook_q(self.project(x, "Q", changes.get("Q")))
            k = self.hook_k(self.project(x, "K", changes.get("K")))
            if rotary is not None:
                q = self.hook_rot_q(positions.rotate(q.transpose(1, 2), rotary).transpose(1, 2))
                k = self.hook_rot_k(positions.rotate(k.transpose(1, 2), rotary).transpose(1, 2))
            scores = torch.einsum("bqhk,bphk->bhqp", q, k) / self.scale
        else:
            scores = v.new_zeros(v.shape[0], v.shape[2], v.shape[1], v.shape[1])
        if bias is not None:
            scores = scores + bias
        scores = self.hook_attn_scores(scores.masked_fill(~allowed, -torch.inf))
        pattern = self.hook_pattern(scores.softmax(dim=-1))
        z = self.hook_z(torch.einsum("bhqp,bphk->bqhk", pattern, v))
        out = torch.einsum("bphk,hkd->bpd", z, self.W_O) + self.b_O
        if watched(self.hook_result):
            result = torch.einsum("bphk,hkd->bphd", z, self.W_O)
            out = out + (self.hook_result(result.clone()) - result).sum(2)
        return out

    def fast(self, x: Tensor, mask: Tensor | None, rotary: Tensor | None) -> Float[Tensor, "batch pos d_model"]:
        """Fused attention. ``mask`` None is plain causal; else True for allowed keys, or what to add to the scores."""
        b, t, d = x.shape
        h, k = self.config.n_heads, self.config.d_head
        # One matrix product for all projections; the per-head weights are small beside the activations.
        weight = torch.cat([getattr(self, f"W_{n}").transpose(1, 2).reshape(h * k, d) for n in self.inputs])
        offset = torch.cat([getattr(self, f"b_{n}").reshape(h * k) for n in self.inputs])
        heads = F.linear(x, weight, offset).view(b, t, len(self.inputs), h, k).permute(2, 0, 3, 1, 4)
        if self.config.attention == "learned":
            q, key, v = heads.unbind(0)
            if rotary is not None:
                q, key = positions.rotate(q, rotary), positions.rotate(key, rotary)
        else:
            v = heads[0]
            q = key = torch.zeros_like(v)
        z = F.scaled_dot_product_attention(q, key, v, attn_mask=mask, is_causal=mask is None, scale=1.0 / self.scale)
        return F.linear(z.transpose(1, 2).reshape(b, t, h * k), self.W_O.reshape(h * k, d).T, self.b_O)


class MLP(nn.Module):
    """Two linear maps with GELU (tanh form, as GPT-2) between."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, m = config.d_model, config.d_mlp
        self.W_in, self.b_in = nn.Parameter(torch.empty(d, m)), nn.Parameter(torch.zeros(m))
        self.W_out, self.b_out = nn.Parameter(torch.empty(m, d)), nn.Parameter(torch.zeros(d))
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def explicit(self, x: Tensor) -> Tensor:
        pre = self.hook_pre(x @ self.W_in + self.b_in)
        return self.hook_post(F.gelu(pre, approximate="tanh")) @ self.W_out + self.b_out

    def fast(self, x: Tensor) -> Tensor:
        return F.gelu(x @ self.W_in + self.b_in, approximate="tanh") @ self.W_out + self.b_out


class Block(nn.Module):
    """Attention, then (where ``d_mlp`` is not 0) an MLP, each added to the residual stream.

    ``hook_q_input``, ``hook_k_input``, ``hook_v_input`` ``[batch pos head d_model]`` are the residual stream as each
    head's query, key or value reads it, before the norm; an edit there is normed afresh.
    """

    ln1: Any  # LayerNorm or None, as ln2 and mlp
    hook_resid_pre: HookPoint
    hook_attn_out: HookPoint
    hook_resid_mid: HookPoint
    hook_mlp_out: HookPoint
    hook_resid_post: HookPoint

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = config.norm
        self.n_heads = config.n_heads
        self.attn = Attention(config)
        self.ln1 = LayerNorm(config.d_model) if config.norm != "none" else None
        points = ["resid_pre", *(f"{name.lower()}_input" for name in self.attn.inputs), "attn_out", "resid_post"]
        self.mlp: Any = MLP(config) if config.d_mlp else None
        self.ln2: Any = LayerNorm(config.d_model) if config.d_mlp and config.norm != "none" else None
        if config.d_mlp:
            points += ["resid_mid", "mlp_out"]
        for point in points:
            setattr(self, f"hook_{point}", HookPoint())

    def explicit(self, x: Tensor, allowed: Tensor, rotary: Tensor | None, bias: Tensor | None) -> Tensor:
        x = self.hook_resid_pre(x)
        shared = self.ln1.explicit(x) if self.norm == "pre" else x
        changes = {}
        for name in self.attn.inputs:
            point = getattr(self, f"hook_{name.lower()}_input")
            if watched(point):
                changes[name] = self._change(x, point)
        x = x + self.hook_attn_out(self.attn.explicit(shared, changes, allowed, rotary, bias))
        if self.norm == "post":
            x = self.ln1.explicit(x)
        if self.mlp is not None:
            x = self.hook_resid_mid(x)
            x = x + self.hook_mlp_out(self.mlp.explicit(self.ln2.explicit(x) if self.norm == "pre" else x))
            if self.norm == "post":
                x = self.ln2.explicit(x)
        return self.hook_resid_post(x)

    def _change(self, x: Tensor, point: HookPoint) -> Float[Tensor, "batch pos head d_model"]:
        """How the hooks on a head's own input change what its projection reads."""
        before = x[:, :, None, :].expand(-1, -1, self.n_heads, -1)
        after = point(before.clone())
        return self.ln1.fast(after) - self.ln1.fast(before) if self.norm == "pre" else after - before

    def fast(self, x: Tensor, mask: Tensor | None, rotary: Tensor | None) -> Tensor:
        x = x + self.attn.fast(self.ln1.fast(x) if self.norm == "pre" else x, mask, rotary)
        if self.norm == "post":
            x = self.ln1.fast(x)
        if self.mlp is not None:
            x = x + self.mlp.fast(self.ln2.fast(x) if self.norm == "pre" else x)
            if self.norm == "post":
                x = self.ln2.fast(x)
        return x
