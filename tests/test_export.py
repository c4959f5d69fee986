"""The export: every form it has computes the model's logits, and what fits no form is one error that names it."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.drawn_models import build, draw, relative
from workbench.errors import WorkbenchError
from workbench.model.export import export, misfits
from workbench.model.transformer import Transformer

NATIVE = [
    {"positions": positions, "norm": norm, "d_mlp": d_mlp, "d_head": d_head, "n_layers": n_layers}
    for positions, norm, d_mlp, (d_head, n_layers) in itertools.product(
        ("learned", "rotary"), ("pre", "none"), (0, 20), ((8, 2), (6, 1), (10, 3))
    )
]
CLASSES = [("gpt2", "learned"), ("neox", "rotary")]


def difference(model: Transformer, form: str) -> float:
    tokens = draw(model, 3, model.config.n_ctx)
    with torch.no_grad():
        return relative(export(model, form)(tokens), model(tokens))


@pytest.mark.parametrize("options", NATIVE, ids=lambda options: "-".join(map(str, options.values())))
def test_native_logits_are_equal(options: dict[str, object]) -> None:
    assert difference(build(**options), "native") <= 1e-5


@pytest.mark.parametrize(("form", "positions"), CLASSES)
@pytest.mark.parametrize("shape", [{"n_heads": 2, "d_head": 8}, {"n_heads": 1, "d_head": 16, "n_layers": 3}], ids=str)
def test_gpt2_and_neox_logits_are_equal(form: str, positions: str, shape: dict[str, object]) -> None:
    assert difference(build(positions=positions, d_mlp=20, **shape), form) <= 1e-5


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_long_context_and_a_vocabulary_as_wide_as_the_model_are_equal_too(positions: str) -> None:
    for d_mlp in (0, 20):
        model = build(positions=positions, d_mlp=d_mlp, d_head=8, n_ctx=300, d_vocab=16)
        assert difference(model, "auto") <= 1e-5


@pytest.mark.parametrize("form", ["gpt2", "neox", "native"])
def test_values_and_interventions_carry_over(form: str) -> None:
    positions = "rotary" if form == "neox" else "learned"
    model = build(positions=positions, d_mlp=20, d_head=8)
    tokens, bridge = draw(model), export(model, form)
    _, theirs = bridge.run_with_cache(tokens)
    _, ours = model.run_with_cache(tokens)
    for layer in range(2):
        for name in ("resid_pre", "q", "k", "v", "pattern", "z", "attn_out", "pre", "post", "mlp_out", "resid_post"):
            assert relative(theirs[name, layer], ours[name, layer]) <= 1e-5, (layer, name)
        if form != "native":
            visible = model.causal.expand_as(ours["attn_scores", layer])
            a, b = (cache["attn_scores", layer][visible] for cache in (theirs, ours))
            assert relative(a, b) <= 1e-5

    def silence(z: torch.Tensor, hook: object) -> torch.Tensor:
        z = z.clone()
        z[:, :, 1] = 0
        return z

    hooks = [("blocks.0.attn.hook_z", silence)]
    with torch.no_grad():
        ablated = model.run_with_hooks(tokens, fwd_hooks=hooks)
        assert relative(bridge.run_with_hooks(tokens, fwd_hooks=hooks), ablated) <= 1e-5
        assert relative(ablated, model(tokens)) > 1e-3


def test_rotary_pairs_of_the_native_form_are_neighbours_as_documented() -> None:
    model = build(positions="rotary", d_head=6)
    tokens = draw(model)
    _, theirs = export(model, "native").run_with_cache(tokens)
    _, ours = model.run_with_cache(tokens)
    for i in range(3):
        assert relative(theirs["q", 0][..., 2 * i], ours["q", 0][..., i]) <= 1e-5
        assert relative(theirs["k", 1][..., 2 * i + 1], ours["k", 1][..., i + 3]) <= 1e-5


def test_auto_takes_the_form_that_gives_most() -> None:
    for options, name in [
        ({"positions": "learned", "d_mlp": 20, "d_head": 8}, "GPT2LMHeadModel"),
        ({"positions": "rotary", "d_mlp": 20, "d_head": 8}, "GPTNeoXForCausalLM"),
        ({"positions": "learned", "d_mlp": 20, "d_head": 6}, "TransformerLensNative"),
        ({"positions": "rotary", "d_mlp": 0, "d_head": 8}, "TransformerLensNative"),
    ]:
        assert export(build(**options)).cfg.architecture == name


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"positions": "alibi"}, "positions=alibi"),
        ({"positions": "sinusoidal"}, "positions=sinusoidal"),
        ({"positions": "none"}, "positions=none"),
        ({"norm": "post"}, "norm=post"),
        ({"attention": "uniform"}, "attention=uniform"),
        ({"scale_scores": False}, "scale_scores=false"),
        ({"positions": "none", "norm": "post"}, "positions=none, norm=post"),
    ],
    ids=str,
)
def test_what_fits_no_form_is_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(WorkbenchError, match=named):
        export(build(**options))


def test_a_form_that_does_not_fit_or_does_not_exist_is_named() -> None:
    with pytest.raises(WorkbenchError, match=r"gpt2 form.*an MLP.*d_mlp=0"):
        export(build(positions="learned", d_head=8), "gpt2")
    with pytest.raises(WorkbenchError, match=r"d_model / n_heads = 8, got d_head=6"):
        export(build(positions="rotary", d_head=6, d_mlp=20), "neox")
    with pytest.raises(WorkbenchError, match="auto or gpt2"):
        export(build(), "llama")
    assert misfits(build(positions="learned", d_head=8, d_mlp=20).config, "gpt2") == []


def test_exporting_leaves_the_model_and_the_random_state_alone() -> None:
    model = build(positions="rotary")
    tokens, state = draw(model), torch.random.get_rng_state()
    before = model(tokens)
    bridge = export(model)
    with torch.no_grad():
        for weight in bridge.parameters():
            weight.zero_()
    assert torch.equal(model(tokens), before)
    assert torch.equal(torch.random.get_rng_state(), state)
