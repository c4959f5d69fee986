"""Every hook point against the forward pass by hand; looking changes nothing; TransformerLens's tools run on it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from transformer_lens import patching
from transformer_lens.ActivationCache import ActivationCache

from tests.drawn_models import VARIED, build, draw, relative
from tests.reference_forward import reference_forward
from workbench.model.blocks import watched


def bump(shape: tuple[int, ...]) -> np.ndarray:
    return 0.3 * np.cos(np.arange(np.prod(shape)) * 1.7).reshape(shape)


def new_tensor(x: Tensor, hook: object) -> Tensor:
    return x * 0.5 + torch.from_numpy(bump(tuple(x.shape))).float()


def in_place(x: Tensor, hook: object) -> None:
    x.mul_(0.5).add_(torch.from_numpy(bump(tuple(x.shape))).float())


@pytest.mark.parametrize("name", VARIED)
def test_every_hook_point_reads_what_the_hand_written_forward_computes(name: str) -> None:
    model = build(**VARIED[name])
    tokens = draw(model, 2, 7)
    logits, cache = model.run_with_cache(tokens, return_cache_object=False)
    expected, values = reference_forward(model, tokens)
    assert set(cache) == set(model.hook_dict) == set(values)
    assert relative(logits.double(), torch.from_numpy(expected)) <= 2e-6
    for point, value in values.items():
        finite = np.isfinite(value)
        assert cache[point].shape == value.shape, point
        assert np.array_equal(finite, torch.isfinite(cache[point]).numpy()), point
        read, value = cache[point].numpy()[finite], value[finite]
        assert np.abs(read - value).max() <= 2e-6 * max(1, np.abs(value).max()), point


@pytest.mark.parametrize("edit", [new_tensor, in_place])
@pytest.mark.parametrize("name", VARIED)
def test_every_edit_takes_effect_as_in_the_hand_written_forward(name: str, edit: Callable[..., Tensor | None]) -> None:
    model = build(**VARIED[name])
    tokens = draw(model, 2, 7)
    before = copy.deepcopy(model.state_dict())
    clean, _ = reference_forward(model, tokens)
    with torch.no_grad():
        for point in model.hook_dict:
            edited = model.run_with_hooks(tokens, fwd_hooks=[(point, edit)])
            expected, _ = reference_forward(model, tokens, {point: lambda x: x * 0.5 + bump(x.shape)})
            assert np.abs(expected - clean).max() > 1e-3, f"{point}: the edit would not be noticed"
            assert relative(edited.double(), torch.from_numpy(expected)) <= 5e-6, point
            # Watching everything else beside the edit changes nothing of it.
            with model.hooks(fwd_hooks=[(point, edit)]):
                watched_too, _ = model.run_with_cache(tokens)
            assert torch.equal(watched_too, edited), point
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items()), "an edit reached a weight"


def test_attention_without_queries_and_keys_has_no_hook_points_for_them() -> None:
    names = {name.rpartition("hook_")[2] for name in build(attention="uniform").hook_dict}
    assert names.isdisjoint({"q", "k", "q_input", "k_input", "rot_q", "rot_k"})
    assert {"v", "v_input", "attn_scores", "pattern", "z", "result"} <= names


def test_gradients_reach_hook_points_that_are_computed_only_when_watched() -> None:
    model = build(**VARIED["rotary-pre"])
    tokens, grads = draw(model), {}

    def keep(x: Tensor, hook: object) -> None:
        x.requires_grad_(True).retain_grad() if not x.requires_grad else x.retain_grad()
        grads[hook.name] = x

    points = [
        f"blocks.1.{p}" for p in ("hook_q_input", "hook_k_input", "hook_v_input", "attn.hook_result", "hook_resid_pre")
    ]
    with model.hooks(fwd_hooks=[(p, keep) for p in points]):
        model(tokens).logsumexp(-1).sum().backward()
    with_hooks = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert all(float(grads[p].grad.abs().max()) > 0 for p in points)
    model.zero_grad()
    model(tokens, path="explicit").logsumexp(-1).sum().backward()
    for name, p in model.named_parameters():
        assert torch.allclose(with_hooks[name], p.grad, rtol=1e-4, atol=1e-5), name


# Looking changes nothing


@pytest.mark.parametrize("name", VARIED)
def test_looking_changes_no_bit(name: str) -> None:
    model = build(**VARIED[name])
    tokens = draw(model)
    fast, explicit = (model(tokens, path=path) for path in ("fast", "explicit"))
    weights = copy.deepcopy(model.state_dict())
    repr(model), str(model.config), list(model.hook_dict), vars(model.cfg), list(model.named_modules())
    looked, cache = model.run_with_cache(tokens)
    repr(cache)
    assert torch.equal(looked, explicit)
    assert not any(watched(point) for point in model.hook_dict.values())
    assert torch.equal(model(tokens), fast)
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())


def test_a_hook_that_edits_in_place_does_not_reach_the_cache_it_restarts_from() -> None:
    model = build(**VARIED["alibi-none"])
    _, cache = model.run_with_cache(draw(model))
    resid = cache["resid_pre", 1]
    before = resid.clone()
    with torch.no_grad():
        model.run_with_hooks(resid, start_at_layer=1, fwd_hooks=[("blocks.1.hook_resid_pre", in_place)])
    assert torch.equal(resid, before)


# As TransformerLens's users expect


@pytest.mark.parametrize("name", [n for n in VARIED if VARIED[n]["norm"] == "pre"])
def test_activation_cache_decomposes_the_residual_stream(name: str) -> None:
    model = build(**VARIED[name])
    c, tokens = model.config, draw(model)
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens)
        assert isinstance(cache, ActivationCache)
        final = cache["resid_post", -1]
        assert cache["pattern", 0].shape == (3, c.n_heads, 12, 12)
        assert torch.equal(cache["pattern", 0], cache["blocks.0.attn.hook_pattern"])
        parts, labels = cache.decompose_resid(return_labels=True)
        assert relative(parts.sum(0), final) <= 1e-5
        assert len(labels) == len(parts)
        assert ("1_mlp_out" in labels) == bool(c.d_mlp)
        heads, names = cache.stack_head_results(return_labels=True)
        assert names == [f"L{layer}H{h}" for layer in range(c.n_layers) for h in range(c.n_heads)]
        rest = sum(block.attn.b_O for block in model.blocks) + cache["hook_embed"]
        if c.positions in ("learned", "sinusoidal"):
            rest = rest + cache["hook_pos_embed"]
        if c.d_mlp:
            rest = rest + sum(cache["mlp_out", layer] for layer in range(c.n_layers))
        assert relative(heads.sum(0) + rest, final) <= 1e-5
        stream = cache.accumulated_resid(apply_ln=True)
        assert relative(stream[-1] @ model.unembed.W_U, logits) <= 1e-5
        assert relative(cache.accumulated_resid()[1], cache["resid_post", 0]) == 0
        single = model.run_with_cache(tokens[:1], remove_batch_dim=True)[1]
        assert relative(single["pattern", 1], cache["pattern", 1][0]) <= 1e-6
        assert set(model.run_with_cache(tokens, names_filter="hook_embed", return_cache_object=False)[1]) == {
            "hook_embed"
        }


def test_transformer_lens_patching_runs_and_equals_patching_by_hand() -> None:
    model = build(**VARIED["learned-pre-mlp"])
    clean, corrupted = draw(model, 2), draw(model, 2, seed=5)

    def metric(logits: Tensor) -> Tensor:
        return logits[:, -1, 3].mean()

    with torch.no_grad():
        _, cache = model.run_with_cache(clean)
        heads = patching.get_act_patch_attn_head_out_all_pos(model, corrupted, cache, metric)
        stream = patching.get_act_patch_resid_pre(model, corrupted, cache, metric)
        for layer, h in itertools.product(range(2), range(2)):

            def swap(z: Tensor, hook: object, layer: int = layer, h: int = h) -> Tensor:
                z[:, :, h] = cache["z", layer][:, :, h]
                return z

            by_hand = metric(model.run_with_hooks(corrupted, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", swap)]))
            assert float(heads[layer, h]) == pytest.approx(float(by_hand), abs=1e-6)
    assert stream.shape == (2, 12)
    assert bool((heads != metric(model(corrupted))).any())
