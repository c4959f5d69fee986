"""Hand a model over to TransformerLens: a ``TransformerBridge`` that computes the same logits.

Three forms, in the order of what they give:

- ``gpt2``: LayerNorm before each sublayer, MLP, learned positions, ``d_head = d_model / n_heads``, as a
  ``GPT2LMHeadModel``. Unlocks the bridge's ``hook_result``, split Q/K/V inputs and true attention scores.
- ``neox``: the same with rotary positions, as a ``GPTNeoXForCausalLM`` with sequential residuals.
- ``native``: learned or rotary positions, LayerNorm before each sublayer or no norm, with or without MLP, any
  ``d_head``, as the bridge's own small transformer. Its ``hook_attn_scores`` holds the pattern, and its rotary pairs
  are neighbours: coordinate ``i`` of a query or key here is ``2 i`` there, ``i + d_head / 2`` is ``2 i + 1``.

The Llama class never fits: it has RMSNorm and a gated MLP, and this model has neither. A bridge's
``hook_normalized`` holds a norm's value before gain and shift; here it is the norm's output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.model.blocks import EPS
from workbench.model.transformer import Transformer

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def export(model: Transformer, form: str = "auto") -> TransformerBridge:
    """A TransformerLens bridge with a copy of the weights; its logits equal the model's (to 1e-5, relative).

    Args:
        model: what to export; it is left as it is.
        form: which class carries the weights; auto takes the first of gpt2, neox and native that fits.

    Raises:
        WorkbenchError: the model has a part that the form cannot express; the message names every such part.
    """
    makers = {"gpt2": _gpt2, "neox": _neox, "native": _native}
    if form != "auto" and form not in makers:
        raise WorkbenchError("unknown export form", expected=" or ".join(("auto", *makers)), got=repr(form))
    if form == "auto":
        form = next((name for name in ("gpt2", "neox") if not misfits(model.config, name)), "native")
    wrong = misfits(model.config, form)
    if wrong:
        raise WorkbenchError(
            f"TransformerLens's {form} form cannot express this model",
            expected=", ".join(expected for expected, _ in wrong),
            got=", ".join(got for _, got in wrong),
        )
    weights = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    with torch.random.fork_rng(devices=[]):  # the classes draw weights of their own before they take ours
        bridge = makers[form](model.config, weights)
    device = model.unembed.W_U.device
    return (bridge if device.type == "cpu" else bridge.to(device)).eval()


def misfits(config: ModelConfig, form: str) -> list[tuple[str, str]]:
    """What a form cannot express, as pairs of what it has and what the model has; empty where the form fits."""
    positions = {"gpt2": ("learned",), "neox": ("rotary",), "native": ("learned", "rotary")}[form]
    norms = ("pre", "none") if form == "native" else ("pre",)
    rules = [
        (config.positions in positions, f"{' or '.join(positions)} positions", f"positions={config.positions}"),
        (config.norm in norms, f"norm {' or '.join(norms)}", f"norm={config.norm}"),
        (config.attention == "learned", "learned attention", f"attention={config.attention}"),
        (config.scale_scores or config.d_head == 1, "scaled scores", "scale_scores=false"),
    ]
    if form != "native":
        rules.append((config.d_mlp > 0, "an MLP", "d_mlp=0"))
        natural = config.d_head * config.n_heads == config.d_model
        rules.append(
            (natural, f"d_head = d_model / n_heads = {config.d_model / config.n_heads:g}", f"d_head={config.d_head}")
        )
    return [(expected, got) for fits, expected, got in rules if not fits]


def _native(config: ModelConfig, weights: dict[str, Tensor]) -> TransformerBridge:
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.utilities.tl_checkpoint_conversion import convert_tl_checkpoint

    rotary = config.positions == "rotary"
    shape = TransformerBridgeConfig(
        d_model=config.d_model,
        d_head=config.d_head,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        n_ctx=config.n_ctx,
        d_vocab=config.d_vocab,
        d_mlp=config.d_mlp or None,
        attn_only=config.d_mlp == 0,
        act_fn="gelu_new",
        normalization_type="LN" if config.norm == "pre" else None,
        positional_embedding_type="rotary" if rotary else "standard",
        rotary_dim=config.d_head if rotary else None,
        eps=EPS,
        init_weights=False,
        tokenizer_prepends_bos=False,
    )
    bridge: Any = TransformerBridge.boot_native(shape)
    if rotary:
        for name, weight in weights.items():
            if name.rpartition(".")[2] in ("W_Q", "b_Q", "W_K", "b_K"):
                weights[name] = torch.stack(weight.chunk(2, dim=-1), dim=-1).flatten(-2)
    weights["unembed.b_U"] = torch.zeros(config.d_vocab)
    bridge.load_state_dict(convert_tl_checkpoint(weights, bridge.cfg), strict=True)
    return bridge


def _gpt2(config: ModelConfig, weights: dict[str, Tensor]) -> TransformerBridge:
    from transformers import GPT2Config, GPT2LMHeadModel

    settings = GPT2Config(
        vocab_size=config.d_vocab,
        n_positions=config.n_ctx,
        n_embd=config.d_model,
        n_layer=config.n_layers,
        n_head=config.n_heads,
        n_inner=config.d_mlp,
        activation_function="gelu_new",
        layer_norm_epsilon=EPS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs = {"wte.weight": weights["embed.W_E"], "wpe.weight": weights["pos_embed.W_pos"]}
    _norm(theirs, "ln_f", weights, "ln_final")
    for layer in range(config.n_layers):
        ours, block = f"blocks.{layer}.", f"h.{layer}."
        _norm(theirs, block + "ln_1", weights, ours + "ln1")
        _norm(theirs, block + "ln_2", weights, ours + "ln2")
        parts = [_flat(weights, ours, name) for name in "QKV"]
        theirs[block + "attn.c_attn.weight"] = torch.cat([weight for weight, _ in parts]).T
        theirs[block + "attn.c_attn.bias"] = torch.cat([bias for _, bias in parts])
        theirs[block + "attn.c_proj.weight"] = weights[ours + "attn.W_O"].flatten(0, 1)
        theirs[block + "attn.c_proj.bias"] = weights[ours + "attn.b_O"]
        for our, their in {"in": "c_fc", "out": "c_proj"}.items():
            theirs[f"{block}mlp.{their}.weight"] = weights[f"{ours}mlp.W_{our}"]
            theirs[f"{block}mlp.{their}.bias"] = weights[f"{ours}mlp.b_{our}"]
    return _bridge(GPT2LMHeadModel(settings), "transformer.", theirs, weights)


def _neox(config: ModelConfig, weights: dict[str, Tensor]) -> TransformerBridge:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    settings = GPTNeoXConfig(
        vocab_size=config.d_vocab,
        max_position_embeddings=config.n_ctx,
        hidden_size=config.d_model,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        intermediate_size=config.d_mlp,
        hidden_act="gelu_new",
        layer_norm_eps=EPS,
        use_parallel_residual=False,
        rotary_pct=1.0,  # type: ignore[call-arg]  # all of a head's coordinates turn; read from the keywords
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs = {"embed_in.weight": weights["embed.W_E"]}
    _norm(theirs, "final_layer_norm", weights, "ln_final")
    for layer in range(config.n_layers):
        ours, block = f"blocks.{layer}.", f"layers.{layer}."
        _norm(theirs, block + "input_layernorm", weights, ours + "ln1")
        _norm(theirs, block + "post_attention_layernorm", weights, ours + "ln2")
        parts = [_flat(weights, ours, name) for name in "QKV"]
        # NeoX keeps a head's query, key and value rows together.
        by_head = [torch.stack([x[i].unflatten(0, (config.n_heads, -1)) for x in parts], dim=1) for i in (0, 1)]
        theirs[block + "attention.query_key_value.weight"] = by_head[0].flatten(0, 2)
        theirs[block + "attention.query_key_value.bias"] = by_head[1].flatten()
        theirs[block + "attention.dense.weight"] = weights[ours + "attn.W_O"].flatten(0, 1).T
        theirs[block + "attention.dense.bias"] = weights[ours + "attn.b_O"]
        for our, their in {"in": "dense_h_to_4h", "out": "dense_4h_to_h"}.items():
            theirs[f"{block}mlp.{their}.weight"] = weights[f"{ours}mlp.W_{our}"].T
            theirs[f"{block}mlp.{their}.bias"] = weights[f"{ours}mlp.b_{our}"]
    return _bridge(GPTNeoXForCausalLM(settings), "gpt_neox.", theirs, weights)


def _norm(theirs: dict[str, Tensor], their: str, weights: dict[str, Tensor], our: str) -> None:
    theirs[their + ".weight"], theirs[their + ".bias"] = weights[our + ".w"], weights[our + ".b"]


def _flat(weights: dict[str, Tensor], block: str, name: str) -> tuple[Tensor, Tensor]:
    """The heads' projections "Q", "K" or "V" as one ``[head * d_head, d_model]`` weight, and the bias to it."""
    return weights[f"{block}attn.W_{name}"].transpose(1, 2).flatten(0, 1), weights[f"{block}attn.b_{name}"].flatten()


def _bridge(module: Any, prefix: str, theirs: dict[str, Tensor], weights: dict[str, Tensor]) -> TransformerBridge:
    """The bridge around a transformers model that takes these weights (names without the prefix)."""
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    head = "lm_head.weight" if hasattr(module, "lm_head") else "embed_out.weight"
    state = {prefix + name: weight for name, weight in theirs.items()} | {head: weights["unembed.W_U"].T}
    module.load_state_dict(state, strict=True)
    bridge = build_bridge_from_module(module, type(module).__name__, hf_config=module.config)
    bridge.cfg.tokenizer_prepends_bos = False
    return bridge
