"""The machinery's checks on itself: they hold on every kind of model, and each one can fail."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings

from tests.small_models import hooks_left, model, seeds, shapes, subject
from workbench.ablation import Zero
from workbench.checks import TOLERANCES, Checks, deviation, residual_writes, self_checks
from workbench.errors import WorkbenchError
from workbench.hooks import capture
from workbench.measure import run
from workbench.model.blocks import Block, LayerNorm

GOOD = Checks(True, True, 0.0, 0.0, 0.0, 0.0, 0.0)


@settings(max_examples=12, deadline=None)
@given(shapes, seeds)
def test_every_identity_holds_on_every_kind_of_model(shape, seed):
    s = subject(shape, seed)
    checks = self_checks(s.model, s.sample(10, "test"))
    checks.require()
    assert (checks.writes_vs_residual is None) == (shape["norm"] == "post")
    assert hooks_left(s.model) == 0


@settings(max_examples=25, deadline=None)
@given(shapes, seeds)
def test_zeroing_a_head_equals_zeroing_its_rows_of_w_o(shape, seed):
    s = subject(shape, seed)
    batch = s.sample(5, "test")
    clean = run(s.model, batch).logits
    ablated = run(s.model, batch, Zero("L0.H1")).logits
    other = model(shape, seed)
    with torch.no_grad():
        other.blocks[0].attn.W_O[1] = 0.0
    assert deviation(run(other, batch).logits, ablated) < 1e-6
    assert deviation(clean, ablated) > 1e-3


def test_deviation_by_hand():
    assert deviation(torch.tensor([0.5, 1.0]), torch.tensor([0.25, 1.0])) == 0.25
    assert deviation(torch.tensor([1.0, 7.0]), torch.tensor([2.0, 8.0])) == 0.125


def test_rounding_of_large_scores_is_no_failure_and_a_fault_is(monkeypatch):
    """Weights scaled until float32 paths differ by far more than the tolerance; then a path that really differs."""
    s = subject({"norm": "pre", "positions": "rotary"}, 5)
    with torch.no_grad():
        for name, weight in s.model.named_parameters():
            if ".W_" in name:
                weight.mul_(20.0)
    batch = s.sample(8, "test")
    with torch.no_grad():
        paths = [s.model(batch.tokens, batch.mask, path=path) for path in ("fast", "explicit")]
    assert deviation(*paths) > TOLERANCES["fast_vs_explicit"]
    self_checks(s.model, batch).require()
    honest = LayerNorm.fast
    monkeypatch.setattr(LayerNorm, "fast", lambda self, x: 1.0001 * honest(self, x))
    with pytest.raises(WorkbenchError, match="fast vs explicit"):
        self_checks(s.model, batch).require()


@pytest.mark.parametrize("name", TOLERANCES)
def test_a_deviation_above_its_tolerance_is_an_error(name):
    dataclasses.replace(GOOD, **{name: TOLERANCES[name]}).require()
    for bad in (1.01 * TOLERANCES[name], float("nan")):
        with pytest.raises(WorkbenchError, match=f"self check failed: {name.replace('_', ' ')}.*cannot be trusted"):
            dataclasses.replace(GOOD, **{name: bad}).require()


@pytest.mark.parametrize("name", ["empty_is_clean", "patched_is_clean"])
def test_a_pass_that_differs_where_it_must_not_is_an_error(name):
    with pytest.raises(WorkbenchError, match=f"self check failed: {name.replace('_', ' ')}.*bitwise"):
        dataclasses.replace(GOOD, **{name: False}).require()


def test_a_model_whose_paths_disagree_is_caught(monkeypatch):
    s = subject({"norm": "pre", "positions": "learned", "d_mlp": 12})
    honest = Block.fast
    monkeypatch.setattr(Block, "fast", lambda *arguments: 1.01 * honest(*arguments))
    with pytest.raises(WorkbenchError, match="fast vs explicit"):
        self_checks(s.model, s.sample(4, "test")).require()


@settings(max_examples=25, deadline=None)
@given(shapes, seeds)
def test_the_writes_add_up_to_the_residual_stream(shape, seed):
    s = subject(shape, seed)
    batch = s.sample(4, "test")
    if shape["norm"] == "post":
        with pytest.raises(WorkbenchError, match="not a sum of writes"):
            residual_writes(s.model, batch.tokens, batch.mask)
        return
    writes = residual_writes(s.model, batch.tokens, batch.mask)
    heads = {"L0.H0", "L0.H1", "L0.b_O", "L1.H0", "L1.H1", "L1.b_O", "embed"}
    mlps = {"L0.mlp", "L1.mlp"} if shape["d_mlp"] else set()
    where = {"pos_embed"} if shape["positions"] in ("learned", "sinusoidal") else set()
    assert set(writes.parts) == heads | mlps | where
    with capture(s.model, ["blocks.1.hook_resid_post", "blocks.0.attn.hook_z"]) as kept:
        s.model(batch.tokens, batch.mask)
    torch.testing.assert_close(writes.residual, kept["blocks.1.hook_resid_post"])
    by_hand = kept["blocks.0.attn.hook_z"][:, :, 1] @ s.model.blocks[0].attn.W_O[1]
    torch.testing.assert_close(writes.parts["L0.H1"], by_hand)
    assert writes.deviation < 1e-5


def test_a_sum_that_misses_is_an_error():
    s = subject({"norm": "pre", "positions": "learned"})
    batch = s.sample(4, "test")
    # A write that no part accounts for.
    handle = s.model.blocks[0].hook_resid_post.register_forward_hook(lambda module, inputs, output: output + 1e-3)
    with pytest.raises(WorkbenchError, match="do not add up to the residual stream"):
        residual_writes(s.model, batch.tokens, batch.mask)
    handle.remove()
    assert residual_writes(s.model, batch.tokens, batch.mask).deviation < 1e-5
