"""A transformer that can be read in one sitting, on TransformerLens's HookedRootModule and HookPoint.

Two paths compute the same function. The *fast* path (fused attention, no hook points) trains and evaluates; the
*explicit* path passes every intermediate through a HookPoint under TransformerLens's name, and runs whenever
something looks or intervenes. Weights have TransformerLens's names and per-head shapes.

Axes: ``batch pos query_pos key_pos head d_head d_model d_mlp d_vocab``. A head's query, key and value are
``[batch pos head d_head]``, its scores and pattern ``[batch head query_pos key_pos]``.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.model import positions
from workbench.rng import stream

Path = Literal["auto", "fast", "explicit"]
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


class Attention(nn.Module):
    """Multi-head attention with per-head weights ``W_Q W_K W_V [head d_model d_head]``, ``W_O [head d_head d_model]``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        h, d, k = config.n_heads, config.d_model, config.d_head
        for name in ("Q", "K", "V") if config.attention == "learned" else ("V",):
            self.register_parameter(f"W_{name}", nn.Parameter(torch.empty(h, d, k)))
            self.register_parameter(f"b_{name}", nn.Parameter(torch.zeros(h, k)))
        self.W_O, self.b_O = nn.Parameter(torch.empty(h, k, d)), nn.Parameter(torch.zeros(d))
        self.scale = math.sqrt(k) if config.scale_scores else 1.0
        for point in ("q", "k", "v", "attn_scores", "pattern", "z", "result"):
            setattr(self, f"hook_{point}", HookPoint())
        if config.positions == "rotary":
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()

    def project(self, x: Tensor, name: str) -> Float[Tensor, "batch pos head d_head"]:
        """Queries, keys or values of ``x``, which is ``[batch pos d_model]`` or, one input a head, ``[batch pos head d_model]``."""
        axes = "bphd,hdk->bphk" if x.ndim == 4 else "bpd,hdk->bphk"
        return torch.einsum(axes, x, getattr(self, f"W_{name}")) + getattr(self, f"b_{name}")

    def explicit(
        self, q_in: Tensor, k_in: Tensor, v_in: Tensor, allowed: Tensor, rotary: Tensor | None, bias: Tensor | None
    ) -> Float[Tensor, "batch pos d_model"]:
        v = self.hook_v(self.project(v_in, "V"))
        if self.config.attention == "learned":
            q, k = self.hook_q(self.project(q_in, "Q")), self.hook_k(self.project(k_in, "K"))
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
        if watched(self.hook_result):
            return self.hook_result(torch.einsum("bphk,hkd->bphd", z, self.W_O)).sum(2) + self.b_O
        return torch.einsum("bphk,hkd->bpd", z, self.W_O) + self.b_O

    def fast(
        self, x: Tensor, visible: Tensor | None, rotary: Tensor | None, bias: Tensor | None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Fused attention. ``visible`` None means plain causal; else the mask of allowed keys (True may attend)."""
        b, t, d = x.shape
        h, k = self.config.n_heads, self.config.d_head
        names = ("Q", "K", "V") if self.config.attention == "learned" else ("V",)
        # One matrix product for all projections; the per-head weights are small beside the activations.
        weight = torch.cat([getattr(self, f"W_{n}").transpose(1, 2).reshape(h * k, d) for n in names])
        offset = torch.cat([getattr(self, f"b_{n}").reshape(h * k) for n in names])
        heads = F.linear(x, weight, offset).view(b, t, len(names), h, k).permute(2, 0, 3, 1, 4)
        if self.config.attention == "learned":
            q, key, v = heads.unbind(0)
            if rotary is not None:
                q, key = positions.rotate(q, rotary), positions.rotate(key, rotary)
        else:
            v = heads[0]
            q = key = torch.zeros_like(v)
        if bias is not None:
            visible = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
        z = F.scaled_dot_product_attention(
            q, key, v, attn_mask=visible, is_causal=visible is None, scale=1.0 / self.scale
        )
        return F.linear(z.transpose(1, 2).reshape(b, t, h * k), self.W_O.reshape(h * k, d).T, self.b_O)


class MLP(nn.Module):
    """Two linear maps with GELU (tanh form, as GPT-2) between."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.W_in, self.b_in = (
            nn.Parameter(torch.empty(config.d_model, config.d_mlp)),
            nn.Parameter(torch.zeros(config.d_mlp)),
        )
        self.W_out, self.b_out = (
            nn.Parameter(torch.empty(config.d_mlp, config.d_model)),
            nn.Parameter(torch.zeros(config.d_model)),
        )
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def explicit(self, x: Tensor) -> Tensor:
        pre = self.hook_pre(x @ self.W_in + self.b_in)
        return self.hook_post(F.gelu(pre, approximate="tanh")) @ self.W_out + self.b_out

    def fast(self, x: Tensor) -> Tensor:
        return F.gelu(x @ self.W_in + self.b_in, approximate="tanh") @ self.W_out + self.b_out


class Block(nn.Module):
    """Attention, then (where ``d_mlp`` is not 0) an MLP, each added to the residual stream.

    ``hook_q_input``, ``hook_k_input``, ``hook_v_input`` ``[batch pos head d_model]`` are the residual stream as each head's
    query, key or value reads it, before the norm; an edit there is normed afresh. They are computed only when watched.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = config.norm
        self.n_heads = config.n_heads
        self.attn = Attention(config)
        self.ln1 = LayerNorm(config.d_model) if config.norm != "none" else None
        points = ["resid_pre", "q_input", "k_input", "v_input", "attn_out", "resid_post"]
        self.mlp = MLP(config) if config.d_mlp else None
        self.ln2 = LayerNorm(config.d_model) if config.d_mlp and config.norm != "none" else None
        if config.d_mlp:
            points += ["resid_mid", "mlp_out"]
        for point in points:
            setattr(self, f"hook_{point}", HookPoint())

    def explicit(self, x: Tensor, allowed: Tensor, rotary: Tensor | None, bias: Tensor | None) -> Tensor:
        x = self.hook_resid_pre(x)
        shared = self.ln1.explicit(x) if self.norm == "pre" else x
        inputs = [self._input(x, shared, point) for point in (self.hook_q_input, self.hook_k_input, self.hook_v_input)]
        x = x + self.hook_attn_out(self.attn.explicit(*inputs, allowed, rotary, bias))
        if self.norm == "post":
            x = self.ln1.explicit(x)
        if self.mlp is not None:
            x = self.hook_resid_mid(x)
            x = x + self.hook_mlp_out(self.mlp.explicit(self.ln2.explicit(x) if self.norm == "pre" else x))
            if self.norm == "post":
                x = self.ln2.explicit(x)
        return self.hook_resid_post(x)

    def _input(self, x: Tensor, shared: Tensor, point: HookPoint) -> Tensor:
        if not watched(point):
            return shared
        split = point(x[:, :, None, :].repeat(1, 1, self.n_heads, 1))
        return self.ln1.fast(split) if self.norm == "pre" else split

    def fast(self, x: Tensor, visible: Tensor | None, rotary: Tensor | None, bias: Tensor | None) -> Tensor:
        x = x + self.attn.fast(self.ln1.fast(x) if self.norm == "pre" else x, visible, rotary, bias)
        if self.norm == "post":
            x = self.ln1.fast(x)
        if self.mlp is not None:
            x = x + self.mlp.fast(self.ln2.fast(x) if self.norm == "pre" else x)
            if self.norm == "post":
                x = self.ln2.fast(x)
        return x


class Table(nn.Module):
    """A holder that gives a lone weight its TransformerLens name (``embed.W_E``)."""

    def __init__(self, name: str, *shape: int) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.empty(*shape)))


class Transformer(HookedRootModule):
    """The model. ``model(tokens)`` gives logits; ``run_with_cache`` and ``run_with_hooks`` work as in TransformerLens.

    Args:
        config: the shape. seed: of the initial weights (stream "init"): matrices normal with variance
            1 / fan-in (the two that write to the residual stream further divided by the number of writers),
            embeddings with standard deviation 1 / sqrt(d_model), biases 0, norms 1.
    """

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embed = Table("W_E", config.d_vocab, config.d_model)
        self.hook_embed = HookPoint()
        if config.positions == "learned":
            self.pos_embed = Table("W_pos", config.n_ctx, config.d_model)
        if config.positions in ("learned", "sinusoidal"):
            self.hook_pos_embed = HookPoint()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.ln_final = LayerNorm(config.d_model) if config.norm == "pre" else None
        self.unembed = Table("W_U", config.d_model, config.d_vocab)
        constants = {
            "sinusoidal": lambda: positions.sinusoidal(config.n_ctx, config.d_model),
            "rotary": lambda: positions.rotary_table(config.n_ctx, config.d_head),
            "alibi": lambda: positions.alibi_bias(config.n_ctx, config.n_heads),
        }
        for name, make in constants.items():
            self.register_buffer(name, make() if config.positions == name else None, persistent=False)
        causal = torch.ones(config.n_ctx, config.n_ctx, dtype=torch.bool).tril()
        self.register_buffer("causal", causal, persistent=False)
        self.setup()
        self._initialise(seed)

    @property
    def cfg(self) -> ModelConfig:
        """The configuration under TransformerLens's name, which its ``ActivationCache`` reads."""
        return self.config

    def _initialise(self, seed: int) -> None:
        generator = stream(seed, "init")
        writers = self.config.n_layers * (2 if self.config.d_mlp else 1)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                kind = name.rpartition(".")[2]
                if not kind.startswith("W_"):
                    continue
                if kind in ("W_E", "W_pos"):
                    std = 1 / math.sqrt(self.config.d_model)
                elif kind == "W_O":
                    std = 1 / math.sqrt(self.config.n_heads * self.config.d_head * writers)
                else:
                    std = 1 / math.sqrt(weight.shape[-2] * (writers if kind == "W_out" else 1))
                weight.normal_(0.0, std, generator=generator)

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"] | Float[Tensor, "batch pos d_model"],
        mask: Bool[Tensor, "batch pos"] | None = None,
        *,
        start_at_layer: int = 0,
        path: Path = "auto",
    ) -> Float[Tensor, "batch pos d_vocab"]:
        """Logits.

        Args:
            tokens: ids; or, with ``start_at_layer`` above 0, the residual stream that enters that layer.
            mask: True where a token is real. Padded keys get no attention (a padded query sees itself, so that no row
                is empty); None means that all are real.
            start_at_layer: restart from a cached ``blocks.{l}.hook_resid_pre``; ``n_layers`` applies only the end.
            path: fast, explicit, or auto: explicit exactly when something is hooked.

        Raises:
            WorkbenchError: a sequence longer than the context, an empty one, ids outside the vocabulary, or a layer
                that does not exist.
        """
        self._check(tokens, mask, start_at_layer)
        explicit = path == "explicit" or (path == "auto" and any(map(watched, self.hook_dict.values())))
        t = tokens.shape[1]
        rotary = None if self.rotary is None else self.rotary[:, :t]
        bias = None if self.alibi is None else self.alibi[:, :t, :t]
        visible = None
        if mask is not None and (explicit or not bool(mask.all())):
            itself = torch.eye(t, dtype=torch.bool, device=mask.device)
            visible = (self.causal[:t, :t] & (mask[:, None, :] | itself))[:, None]
        if explicit:
            x = self._embed_explicit(tokens) if start_at_layer == 0 else tokens
            allowed = self.causal[:t, :t] if visible is None else visible
            for block in self.blocks[start_at_layer:]:
                x = block.explicit(x, allowed, rotary, bias)
            x = x if self.ln_final is None else self.ln_final.explicit(x)
        else:
            x = self._embed_fast(tokens) if start_at_layer == 0 else tokens
            if bias is not None and visible is None:
                visible = self.causal[:t, :t]
            for block in self.blocks[start_at_layer:]:
                x = block.fast(x, visible, rotary, bias)
            x = x if self.ln_final is None else self.ln_final.fast(x)
        return x @ self.unembed.W_U

    def _positions(self, t: int) -> Tensor | None:
        table = self.pos_embed.W_pos if self.config.positions == "learned" else self.sinusoidal
        return None if table is None else table[:t]

    def _embed_explicit(self, tokens: Tensor) -> Tensor:
        x = self.hook_embed(self.embed.W_E[tokens])
        where = self._positions(tokens.shape[1])
        # Repeated, not broadcast: a hook that edits in place must not write into the weights.
        return x if where is None else x + self.hook_pos_embed(where.repeat(tokens.shape[0], 1, 1))

    def _embed_fast(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embed.W_E)
        where = self._positions(tokens.shape[1])
        return x if where is None else x + where

    def _check(self, tokens: Tensor, mask: Tensor | None, start_at_layer: int) -> None:
        config = self.config
        if not 0 <= start_at_layer <= config.n_layers:
            raise WorkbenchError(
                "start_at_layer does not exist", expected=f"0 to {config.n_layers}", got=start_at_layer
            )
        if tokens.ndim != (2 if start_at_layer == 0 else 3):
            shape = "[batch pos] token ids" if start_at_layer == 0 else "[batch pos d_model], the residual stream"
            raise WorkbenchError("the model's input has the wrong shape", expected=shape, got=tuple(tokens.shape))
        if tokens.shape[1] == 0:
            raise WorkbenchError("a sequence is empty", expected=f"1 to {config.n_ctx} tokens", got="0 tokens")
        if tokens.shape[1] > config.n_ctx:
            raise WorkbenchError(
                "a sequence is longer than the context", expected=f"at most {config.n_ctx} tokens", got=tokens.shape[1]
            )
        if mask is not None and mask.shape != tokens.shape[:2]:
            raise WorkbenchError(
                "mask and tokens differ in shape", expected=tuple(tokens.shape[:2]), got=tuple(mask.shape)
            )
