"""The model against other people's attention and against itself; its edges, its seeds and its names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.drawn_models import NORMS, POSITIONS, VARIED, build, draw, relative
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.model.blocks import Attention
from workbench.model.transformer import Transformer


def every_option() -> Iterator[dict[str, object]]:
    for positions, norm, d_mlp, attention, scale in itertools.product(
        POSITIONS, NORMS, (0, 20), ("learned", "uniform"), (True, False)
    ):
        yield {
            "positions": positions, "norm": norm, "d_mlp": d_mlp, "attention": attention, "scale_scores": scale
        }  # fmt: skip


# Against torch's own attention


def as_multihead(attn: Attention) -> nn.MultiheadAttention:
    d, h = attn.config.d_model, attn.config.n_heads
    reference = nn.MultiheadAttention(d, h, batch_first=True)
    with torch.no_grad():
        flat = [w.transpose(1, 2).reshape(d, d) for w in (attn.W_Q, attn.W_K, attn.W_V)]
        reference.in_proj_weight.copy_(torch.cat(flat))
        reference.in_proj_bias.copy_(torch.cat([b.flatten() for b in (attn.b_Q, attn.b_K, attn.b_V)]))
        reference.out_proj.weight.copy_(attn.W_O.reshape(d, d).T)
        reference.out_proj.bias.copy_(attn.b_O)
    return reference


def test_attention_equals_multihead_attention(record_property: Callable[[str, object], None]) -> None:
    model = build(positions="none", d_model=32, n_heads=4, d_head=8, n_ctx=20)
    attn, x = model.blocks[0].attn, torch.randn(3, 20, 32, generator=torch.Generator().manual_seed(0))
    future = ~model.causal
    expected, weights = as_multihead(attn)(x, x, x, attn_mask=future, average_attn_weights=False)
    seen = {}
    attn.hook_pattern.add_hook(lambda pattern, hook: seen.update(pattern=pattern.clone()))
    explicit = attn.explicit(x, {}, model.causal, None, None)
    differences = {
        "fast": relative(attn.fast(x, None, None), expected),
        "explicit": relative(explicit, expected),
        "pattern": relative(seen["pattern"], weights),
    }
    record_property("differences", differences)
    assert max(differences.values()) <= 1e-6, differences


@pytest.mark.parametrize("name", VARIED)
def test_explicit_z_equals_scaled_dot_product_attention(name: str) -> None:
    model = build(**VARIED[name])
    c = model.config
    _, cache = model.run_with_cache(draw(model))
    for layer in range(c.n_layers):
        v = cache["v", layer].transpose(1, 2)
        rotary = c.positions == "rotary"
        q, k = (
            cache[f"blocks.{layer}.attn.hook_{'rot_' if rotary else ''}{n}"].transpose(1, 2)
            if c.attention == "learned"
            else torch.zeros_like(v)
            for n in "qk"
        )
        bias = torch.zeros(12, 12) if model.alibi is None else model.alibi
        mask = bias.masked_fill(torch.ones(12, 12, dtype=torch.bool).triu(1), -torch.inf)
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=c.d_head**-0.5 if c.scale_scores else 1.0)
        assert relative(cache["z", layer].transpose(1, 2), z) <= 1e-6


# Fast against explicit


def test_fast_equals_explicit_over_all_options() -> None:
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[1, 9:], mask[2, :3] = False, False
    worst = {}
    with torch.no_grad():
        for options in every_option():
            model = build(**options)
            tokens = draw(model)
            for padding in (None, mask, torch.ones_like(mask)):
                fast, explicit = (model(tokens, padding, path=path) for path in ("fast", "explicit"))
                assert bool(torch.isfinite(fast).all()), options
                worst[relative(fast, explicit)] = options
    assert max(worst) <= 2e-6, worst[max(worst)]


def test_both_paths_have_the_same_gradients() -> None:
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[1, 9:], mask[2, :3] = False, False
    for positions, norm, d_mlp in itertools.product(POSITIONS, NORMS, (0, 20)):
        model = build(positions=positions, norm=norm, d_mlp=d_mlp)
        tokens, gradients = draw(model), []
        for path in ("fast", "explicit"):
            model.zero_grad()
            F.cross_entropy(model(tokens, mask, path=path)[mask], tokens[mask]).backward()
            gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        fast, explicit = gradients
        assert fast.keys() == explicit.keys() == dict(model.named_parameters()).keys()
        for name, grad in fast.items():
            scale = float(explicit[name].norm())
            assert float((grad - explicit[name]).norm()) <= 1e-4 * max(scale, 1e-3), (positions, norm, d_mlp, name)


def test_auto_is_explicit_exactly_when_something_is_hooked() -> None:
    model = build(**VARIED["rotary-pre"])
    tokens = draw(model)
    fast, explicit = (model(tokens, path=path) for path in ("fast", "explicit"))
    assert not torch.equal(fast, explicit)
    assert torch.equal(model(tokens), fast)
    model.hook_dict["blocks.1.attn.hook_z"].add_hook(lambda z, hook: None)
    assert torch.equal(model(tokens), explicit)
    model.reset_hooks()
    assert torch.equal(model(tokens), fast)


@pytest.mark.parametrize("options", [VARIED["rotary-pre"], VARIED["learned-pre-mlp"]], ids=str)
def test_compiles_without_a_graph_break(options: dict[str, object], request: pytest.FixtureRequest) -> None:
    model = build(**options)
    tokens = draw(model)
    torch._dynamo.reset()
    jaxtyping.config.update("jaxtyping_disable", True)  # what a user runs: the tests' type checks cannot be compiled
    request.addfinalizer(lambda: jaxtyping.config.update("jaxtyping_disable", False))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert relative(compiled(tokens), model(tokens)) <= 1e-6


@pytest.mark.parametrize("positions", POSITIONS)
def test_bfloat16_autocast_runs_on_the_fast_path(positions: str) -> None:
    model = build(positions=positions, d_mlp=20)
    tokens = draw(model)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(tokens, path="fast")
    assert relative(half.float(), model(tokens)) <= 0.05


# Restart, causality, padding, context


@pytest.mark.parametrize("name", VARIED)
def test_restart_from_a_cached_residual_stream_is_equal(name: str) -> None:
    model = build(**VARIED[name])
    tokens = draw(model)
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[1, 9:], mask[2, :3] = False, False
    for padding in (None, mask):
        logits, cache = model.run_with_cache(tokens, padding)
        for layer in range(1, model.config.n_layers):
            again = model(cache["resid_pre", layer], padding, start_at_layer=layer, path="explicit")
            assert torch.equal(again, logits)
            fast = model(cache["resid_pre", layer], padding, start_at_layer=layer)
            assert relative(fast, logits) <= 2e-6
        end = model(cache["resid_post", -1], padding, start_at_layer=model.config.n_layers, path="explicit")
        assert torch.equal(end, logits)


@pytest.mark.parametrize("path", ["fast", "explicit"])
@pytest.mark.parametrize("name", VARIED)
def test_the_future_does_not_change_the_past(name: str, path: str) -> None:
    model = build(**VARIED[name])
    tokens = draw(model)
    other = tokens.clone()
    other[:, 7:] = (other[:, 7:] + 1) % model.config.d_vocab
    a, b = model(tokens, path=path), model(other, path=path)
    assert torch.equal(a[:, :7], b[:, :7])
    assert not torch.equal(a[:, 7:], b[:, 7:])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("path", ["fast", "explicit"])
def test_a_padded_batch_equals_its_single_sequences(side: str, path: str) -> None:
    lengths = (12, 9, 5, 1)
    for positions, norm, attention in itertools.product(POSITIONS, NORMS, ("learned", "uniform")):
        model = build(positions=positions, norm=norm, attention=attention)
        tokens, mask = draw(model, 4), torch.zeros(4, 12, dtype=torch.bool)
        for row, n in enumerate(lengths):
            mask[row, slice(None, n) if side == "right" else slice(12 - n, None)] = True
        logits = model(tokens, mask, path=path)
        for row, n in enumerate(lengths):
            alone = model(tokens[row][mask[row]][None], path=path)
            assert relative(logits[row][mask[row]], alone[0]) <= 1e-6, (positions, norm, attention, n)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", VARIED)
def test_padded_keys_get_exactly_no_attention(side: str, name: str) -> None:
    model = build(**VARIED[name])
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[1, slice(9, None) if side == "right" else slice(None, 4)] = False
    logits, cache = model.run_with_cache(draw(model), mask)
    assert bool(torch.isfinite(logits).all())
    for layer in range(2):
        pattern = cache["pattern", layer]
        real_queries_padded_keys = mask[:, None, :, None] & ~mask[:, None, None, :]
        assert float(pattern.masked_select(real_queries_padded_keys).abs().max()) == 0
        assert torch.allclose(pattern.sum(-1), torch.ones(()), atol=1e-6)
        assert torch.equal(pattern.triu(1), torch.zeros_like(pattern))


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_sequence_as_long_as_the_context_is_accepted_and_one_more_is_not(positions: str) -> None:
    model = build(positions=positions)
    for path in ("fast", "explicit"):
        assert model(draw(model, 1, 12), path=path).shape == (1, 12, 11)
        assert model(draw(model, 1, 1), path=path).shape == (1, 1, 11)
        with pytest.raises(WorkbenchError, match="at most 12 tokens, got 13"):
            model(draw(model, 1, 13), path=path)


@pytest.mark.parametrize("path", ["fast", "explicit"])
@pytest.mark.parametrize(("token", "said"), [(11, "0 to 10, got 11"), (-1, "0 to 10, got -1")])
def test_ids_outside_the_vocabulary_are_named(path: str, token: int, said: str) -> None:
    model = build()
    tokens = draw(model)
    tokens[1, 2] = token
    with pytest.raises(WorkbenchError, match=said):
        model(tokens, path=path)


def test_other_inputs_that_cannot_be_used_are_named() -> None:
    model = build()
    tokens, resid = draw(model), torch.zeros(3, 12, 16)
    with pytest.raises(WorkbenchError, match="empty"):
        model(tokens[:, :0])
    with pytest.raises(WorkbenchError, match="wrong shape"):
        model(resid)
    with pytest.raises(WorkbenchError, match="wrong shape"):
        model(tokens, start_at_layer=1)
    with pytest.raises(WorkbenchError, match="0 to 2, got 3"):
        model(resid, start_at_layer=3)
    with pytest.raises(WorkbenchError, match="mask and tokens"):
        model._check(tokens, torch.ones(3, 11, dtype=torch.bool), 0)


# Seeds and names


def test_a_seed_fixes_the_weights_and_neighbouring_seeds_share_none() -> None:
    state = torch.random.get_rng_state()
    config = ModelConfig(d_vocab=11, n_ctx=12, d_model=16, n_heads=2, positions="learned", d_mlp=20)
    a, b, c = (Transformer(config, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    for (name, x), y, z in zip(a.named_parameters(), b.parameters(), c.parameters(), strict=True):
        assert torch.equal(x, y)
        if name.rpartition(".")[2].startswith("W_"):
            assert not bool((x == z).any()), name
            correlation = float(torch.corrcoef(torch.stack([x.flatten(), z.flatten()]).detach())[0, 1])
            assert abs(correlation) < 5 / x.numel() ** 0.5, name


def test_initial_weights_are_small_and_biases_0() -> None:
    model = Transformer(ModelConfig(d_vocab=200, n_ctx=64, d_model=128, n_heads=4, d_mlp=256, positions="learned"))
    for name, weight in model.named_parameters():
        kind = name.rpartition(".")[2]
        if kind.startswith("W_"):
            std = 0.025 if kind in ("W_E", "W_pos") else 0.02
            assert float(weight.detach().std()) == pytest.approx(std, rel=0.05), name
        else:
            assert bool((weight == (1 if kind == "w" else 0)).all()), name


def test_weights_have_transformer_lens_names_and_shapes() -> None:
    shapes = {name: tuple(p.shape) for name, p in build(positions="learned", d_mlp=20).named_parameters()}
    expected = {
        "embed.W_E": (11, 16),
        "pos_embed.W_pos": (12, 16),
        "blocks.0.attn.W_Q": (2, 16, 6),
        "blocks.0.attn.b_K": (2, 6),
        "blocks.1.attn.W_O": (2, 6, 16),
        "blocks.1.attn.b_O": (16,),
        "blocks.0.ln1.w": (16,),
        "blocks.0.ln2.b": (16,),
        "blocks.0.mlp.W_in": (16, 20),
        "blocks.0.mlp.b_out": (16,),
        "ln_final.w": (16,),
        "unembed.W_U": (16, 11),
    }
    assert expected.items() <= shapes.items()
