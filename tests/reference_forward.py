"""The transformer once more, by hand in numpy and float64: what the model's hook points are held against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch

from workbench.model.transformer import Transformer

Array = np.ndarray
Edit = Callable[[Array], Array]


def layer_norm(x: Array, w: Array, b: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w + b


def turn(x: Array) -> Array:
    """Rotary positions of ``[batch pos head d_head]``: coordinates i and i + d_head/2 as one complex number."""
    half = x.shape[-1] // 2
    rate = 10_000.0 ** (-np.arange(half) / half)
    angle = np.arange(x.shape[1])[:, None, None] * rate
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag], -1)


def reference_forward(
    model: Transformer, tokens: torch.Tensor, edits: Mapping[str, Edit] | None = None
) -> tuple[Array, dict[str, Array]]:
    """Logits and the value at every hook point, each passed through the edit of its name."""
    edits = edits or {}
    c, values = model.config, {}
    weights = {k: v.detach().double().numpy() for k, v in model.state_dict().items()}
    batch, t = tokens.shape

    def at(name: str, x: Array) -> Array:
        values[name] = edits[name](x) if name in edits else x
        return values[name]

    def norm(name: str, x: Array) -> Array:
        scale = at(f"{name}.hook_scale", np.sqrt(x.var(-1, keepdims=True) + 1e-5))
        out = (x - x.mean(-1, keepdims=True)) / scale * weights[f"{name}.w"] + weights[f"{name}.b"]
        return at(f"{name}.hook_normalized", out)

    x = at("hook_embed", weights["embed.W_E"][tokens.numpy()])
    if c.positions == "learned":
        x = x + at("hook_pos_embed", np.broadcast_to(weights["pos_embed.W_pos"][:t], x.shape))
    if c.positions == "sinusoidal":
        table = np.zeros((t, c.d_model))
        for p in range(t):
            for i in range(c.d_model // 2):
                angle = p / 10_000 ** (2 * i / c.d_model)
                table[p, 2 * i], table[p, 2 * i + 1] = math.sin(angle), math.cos(angle)
        x = x + at("hook_pos_embed", np.broadcast_to(table, x.shape))

    for layer in range(c.n_layers):
        block = f"blocks.{layer}"
        x = at(f"{block}.hook_resid_pre", x)
        read = norm(f"{block}.ln1", x) if c.norm == "pre" else x

        def project(letter: str, block: str = block, x: Array = x, read: Array = read) -> Array:
            own = np.repeat(read[:, :, None], c.n_heads, axis=2)
            name = f"{block}.hook_{letter}_input"
            split = at(name, np.repeat(x[:, :, None], c.n_heads, axis=2))
            if name in edits:
                own = (
                    layer_norm(split, weights[f"{block}.ln1.w"], weights[f"{block}.ln1.b"])
                    if c.norm == "pre"
                    else split
                )
            out = np.zeros((batch, t, c.n_heads, c.d_head))
            for h in range(c.n_heads):
                bias = weights[f"{block}.attn.b_{letter.upper()}"][h]
                out[:, :, h] = own[:, :, h] @ weights[f"{block}.attn.W_{letter.upper()}"][h] + bias
            return at(f"{block}.attn.hook_{letter}", out)

        v = project("v")
        scores = np.full((batch, c.n_heads, t, t), -np.inf)
        if c.attention == "learned":
            q, k = project("q"), project("k")
            if c.positions == "rotary":
                q, k = at(f"{block}.attn.hook_rot_q", turn(q)), at(f"{block}.attn.hook_rot_k", turn(k))
        for h in range(c.n_heads):
            for i in range(t):
                for j in range(i + 1):
                    score = 0.0
                    if c.attention == "learned":
                        score = (q[:, i, h] * k[:, j, h]).sum(-1) / (math.sqrt(c.d_head) if c.scale_scores else 1)
                    if c.positions == "alibi":
                        score = score - 2.0 ** (-8 * (h + 1) / c.n_heads) * (i - j)
                    scores[:, h, i, j] = score
        scores = at(f"{block}.attn.hook_attn_scores", scores)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        pattern = at(f"{block}.attn.hook_pattern", weight / weight.sum(-1, keepdims=True))
        z = np.zeros((batch, t, c.n_heads, c.d_head))
        for h in range(c.n_heads):
            z[:, :, h] = pattern[:, h] @ v[:, :, h]
        z = at(f"{block}.attn.hook_z", z)
        result = np.stack([z[:, :, h] @ weights[f"{block}.attn.W_O"][h] for h in range(c.n_heads)], axis=2)
        result = at(f"{block}.attn.hook_result", result)
        x = x + at(f"{block}.hook_attn_out", result.sum(2) + weights[f"{block}.attn.b_O"])
        if c.norm == "post":
            x = norm(f"{block}.ln1", x)
        if c.d_mlp:
            x = at(f"{block}.hook_resid_mid", x)
            read = norm(f"{block}.ln2", x) if c.norm == "pre" else x
            pre = at(f"{block}.mlp.hook_pre", read @ weights[f"{block}.mlp.W_in"] + weights[f"{block}.mlp.b_in"])
            gelu = pre / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (pre + 0.044715 * pre**3)))
            out = at(f"{block}.mlp.hook_post", gelu) @ weights[f"{block}.mlp.W_out"] + weights[f"{block}.mlp.b_out"]
            x = x + at(f"{block}.hook_mlp_out", out)
            if c.norm == "post":
                x = norm(f"{block}.ln2", x)
        x = at(f"{block}.hook_resid_post", x)
    if c.norm == "pre":
        x = norm("ln_final", x)
    return x @ weights["unembed.W_U"], values
