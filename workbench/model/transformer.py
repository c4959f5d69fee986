"""A transformer that can be read in one sitting, on TransformerLens's HookedRootModule and HookPoint.

Two paths compute the same function. The *fast* path (fused attention, no hook points) trains and evaluates; the
*explicit* path passes every intermediate through a HookPoint under TransformerLens's name, and runs whenever
something looks or intervenes. Weights have TransformerLens's names and per-head shapes. The layers are in
:mod:`workbench.model.blocks`.

Axes: ``batch pos d_model d_vocab``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.ActivationCache import ActivationCache
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.model import positions
from workbench.model.blocks import Block, LayerNorm, watched
from workbench.rng import stream

Path = Literal["auto", "fast", "explicit"]


class Table(nn.Module):
    """A holder that gives a lone weight its TransformerLens name (``embed.W_E``)."""

    W_E: Tensor
    W_pos: Tensor
    W_U: Tensor

    def __init__(self, name: str, *shape: int) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.empty(*shape)))


INIT_STD = 0.02
"""Of every matrix at the start (Radford et al. 2019)."""

EMBEDDING_STD = 0.025
"""Of the embeddings. From 0.02, models without a penalty found another way to copy, in which later heads look three
tokens past the earlier occurrence; from 0.05, heads under the penalty died before they learned."""


class Transformer(HookedRootModule):
    """The model. ``model(tokens)`` gives logits; ``run_with_cache`` and ``run_with_hooks`` work as in TransformerLens.

    Args:
        config: the shape. seed: of the initial weights (stream "init"): matrices normal with standard
            deviation 0.02, embeddings 0.025, biases 0, norms 1.
    """

    causal: Tensor
    sinusoidal: Tensor | None
    rotary: Tensor | None
    alibi: Tensor | None

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embed = Table("W_E", config.d_vocab, config.d_model)
        self.hook_embed = HookPoint()
        if config.positions == "learned":
            self.pos_embed = Table("W_pos", config.n_ctx, config.d_model)
        if config.positions in ("learned", "sinusoidal"):
            self.hook_pos_embed = HookPoint()
        self.blocks: Any = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.ln_final: Any = LayerNorm(config.d_model) if config.norm == "pre" else None
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
    def cfg(self) -> SimpleNamespace:
        """The configuration under TransformerLens's names, as its ``ActivationCache`` and ``patching`` read it."""
        return SimpleNamespace(
            **vars(self.config),
            attn_only=self.config.d_mlp == 0,
            normalization_type="LN" if self.config.norm == "pre" else None,
            n_key_value_heads=None,
            device=self.unembed.W_U.device,
        )

    @property
    def is_watched(self) -> bool:
        """Whether any hook hangs on any hook point."""
        return any(map(watched, self.hook_dict.values()))

    def run_with_cache(
        self, *args: Any, return_cache_object: bool = True, remove_batch_dim: bool = False, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        """Logits and every activation, as an ``ActivationCache`` (or its dict); arguments as in TransformerLens."""
        logits, cache = super().run_with_cache(*args, remove_batch_dim=remove_batch_dim, **kwargs)
        return logits, ActivationCache(cache, self, not remove_batch_dim) if return_cache_object else cache

    def _initialise(self, seed: int) -> None:
        generator = stream(seed, "init")
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if name.rpartition(".")[2].startswith("W_"):
                    std = EMBEDDING_STD if name.startswith(("embed.", "pos_embed.")) else INIT_STD
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
            mask: True where a token is real; None means everywhere. Padding may stand before or after a sequence:
                padded keys get no attention (a padded query sees itself, so that no row is empty), and learned and
                sinusoidal positions count from the first real token.
            start_at_layer: restart from a cached ``blocks.{l}.hook_resid_pre``; ``n_layers`` applies only the end.
            path: fast, explicit, or auto: explicit exactly when something is hooked.

        Raises:
            WorkbenchError: a sequence longer than the context, an empty one, ids outside the vocabulary, or a layer
                that does not exist.
        """
        self._check(tokens, mask, start_at_layer)
        explicit = path == "explicit" or (path == "auto" and self.is_watched)
        if mask is not None and not (explicit or torch.compiler.is_compiling()) and bool(mask.all()):
            mask = None  # plain causal attention has the faster kernel
        t = tokens.shape[1]
        visible = self.causal[:t, :t]
        if mask is not None:
            itself = torch.eye(t, dtype=torch.bool, device=mask.device)
            visible = (visible & (mask[:, None, :] | itself))[:, None]
        rotary = None if self.rotary is None else self.rotary[:, :t]
        bias = None if self.alibi is None else self.alibi[:, :t, :t]
        if explicit:
            # A clone, so that a hook that edits in place does not write into the caller's cache.
            x = self._embed_explicit(tokens, mask) if start_at_layer == 0 else tokens.clone()
            for block in self.blocks[start_at_layer:]:
                x = block.explicit(x, visible, rotary, bias)
            x = x if self.ln_final is None else self.ln_final.explicit(x)
        else:
            x = self._embed_fast(tokens, mask) if start_at_layer == 0 else tokens
            attend = None if mask is None else visible
            if bias is not None:
                attend = bias.masked_fill(~visible, -torch.inf)
            for block in self.blocks[start_at_layer:]:
                x = block.fast(x, attend, rotary)
            x = x if self.ln_final is None else self.ln_final.fast(x)
        return x @ self.unembed.W_U

    def _positions(self, t: int, mask: Tensor | None) -> Tensor | None:
        """What is added for position, ``[pos d_model]`` or, with a mask, ``[batch pos d_model]``."""
        table = self.pos_embed.W_pos if self.config.positions == "learned" else self.sinusoidal
        if table is None or mask is None:
            return None if table is None else table[:t]
        return F.embedding((mask.cumsum(dim=1) - 1).clamp(min=0), table)

    def _embed_explicit(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        if bool(((tokens < 0) | (tokens >= self.config.d_vocab)).any()):
            raise self._outside(tokens)
        x = self.hook_embed(F.embedding(tokens, self.embed.W_E))
        where = self._positions(tokens.shape[1], mask)
        # A copy, not a view: a hook that edits in place must not write into the weights.
        return x if where is None else x + self.hook_pos_embed(where.expand_as(x).clone())

    def _embed_fast(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        try:
            x = F.embedding(tokens, self.embed.W_E)
        except IndexError:
            raise self._outside(tokens) from None
        where = self._positions(tokens.shape[1], mask)
        return x if where is None else x + where

    def _outside(self, tokens: Tensor) -> WorkbenchError:
        low, high = int(tokens.min()), int(tokens.max())
        return WorkbenchError(
            "token ids lie outside the vocabulary",
            expected=f"0 to {self.config.d_vocab - 1}",
            got=low if low < 0 else high,
        )

    def _check(self, tokens: Tensor, mask: Tensor | None, start_at_layer: int) -> None:
        config = self.config
        if not 0 <= start_at_layer <= config.n_layers:
            raise WorkbenchError(
                "start_at_layer does not exist", expected=f"0 to {config.n_layers}", got=start_at_layer
            )
        if tokens.ndim != (2 if start_at_layer == 0 else 3) or tokens.is_floating_point() != (start_at_layer > 0):
            shape = "[batch pos] token ids" if start_at_layer == 0 else "[batch pos d_model], the residual stream"
            raise WorkbenchError(
                "the model's input has the wrong shape", expected=shape, got=f"{tuple(tokens.shape)}, {tokens.dtype}"
            )
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
