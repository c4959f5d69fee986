"""A TransformerLens bridge whose heads share keys and values: a tiny Llama with random weights, nothing downloaded."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.rng import stream

N_LAYERS, N_HEADS, N_KEY_VALUE_HEADS, D_HEAD, D_MODEL, D_VOCAB, N_CTX = 2, 4, 2, 4, 16, 11, 12


@dataclass(frozen=True, eq=False)
class Grouped:
    """A bridge and a model to compare it with.

    Attributes:
        bridge: 2 layers of 4 heads; heads 0 and 1 share the first key and value, heads 2 and 3 the second.
        reference: transformers' own model with the same weights; not the object inside the bridge, which is changed.
    """

    bridge: Any
    reference: Any

    def tokens(self, n: int = 3, t: int = N_CTX, seed: int = 0) -> Tensor:
        """Random ids, ``[n t]``."""
        return torch.randint(0, D_VOCAB, (n, t), generator=stream(seed, "grouped", n, t))

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """The reference's logits."""
        return self.reference(tokens).logits

    @torch.no_grad()
    def logits_without(self, tokens: Tensor, heads: list[tuple[int, int]]) -> Tensor:
        """The reference's logits with the output projection's columns of these (layer, head) at 0."""
        cut = copy.deepcopy(self.reference)
        for layer, head in heads:
            cut.model.layers[layer].self_attn.o_proj.weight[:, head * D_HEAD : (head + 1) * D_HEAD] = 0.0
        return cut(tokens).logits


def grouped_bridge(seed: int = 0) -> Grouped:
    """The bridge, from a configuration alone; no global random state is touched."""
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = LlamaConfig(
        vocab_size=D_VOCAB,
        hidden_size=D_MODEL,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        num_key_value_heads=N_KEY_VALUE_HEADS,
        head_dim=D_HEAD,
        intermediate_size=24,
        max_position_embeddings=N_CTX,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        module = LlamaForCausalLM(settings).eval()
    with torch.no_grad():
        for name, weight in module.named_parameters():
            noise = 0.3 * torch.randn(weight.shape, generator=stream(seed, "grouped", name))
            weight.copy_(1 + noise if "norm" in name else noise)
    reference = copy.deepcopy(module)
    bridge = build_bridge_from_module(module, "LlamaForCausalLM", hf_config=settings)
    bridge.cfg.tokenizer_prepends_bos = False
    return Grouped(bridge.eval(), reference)
