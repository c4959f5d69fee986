"""Scopes that look and edit: they remove their own hooks, only those, always, and never stay silent."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from tests.small_models import hooks_left, model, seeds, shapes, subject
from workbench.errors import WorkbenchError
from workbench.hooks import Edit, capture, capture_gradients, hook_point, intervene

PLAIN = {"norm": "pre", "positions": "learned", "d_mlp": 12}
Z0, Z1 = "blocks.0.attn.hook_z", "blocks.1.attn.hook_z"


def tokens() -> torch.Tensor:
    return subject(PLAIN).sample(4, "test").tokens


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@settings(max_examples=25, deadline=None)
@given(shapes, seeds)
def test_a_scope_without_edits_is_the_clean_pass_bitwise(shape, seed):
    made = model(shape, seed)
    clean = made(tokens(), path="explicit")
    with intervene(made, []):
        assert torch.equal(made(tokens(), path="explicit"), clean)


def test_an_edit_reaches_everything_after_it():
    made = model(PLAIN)
    with capture(made, [Z0, "blocks.0.hook_attn_out"]) as kept:
        made(tokens())
    attn = made.blocks[0].attn
    with (
        intervene(made, [Edit(Z0, double, "double")]) as firings,
        capture(made, [Z0, "blocks.0.hook_attn_out"]) as edited,
    ):
        made(tokens())
    assert torch.equal(edited[Z0], 2 * kept[Z0])
    by_hand = torch.einsum("bphk,hkd->bpd", 2 * kept[Z0], attn.W_O) + attn.b_O
    torch.testing.assert_close(edited["blocks.0.hook_attn_out"], by_hand)
    assert firings.sequences == [4]
    assert firings.complete == 4


def test_edits_at_one_point_apply_in_order():
    made = model(PLAIN)
    with capture(made, [Z0]) as kept:
        made(tokens())
    edits = [Edit(Z0, lambda z: z + 1, "add"), Edit(Z0, double, "double")]
    with intervene(made, edits), capture(made, [Z0]) as edited:
        made(tokens())
    torch.testing.assert_close(edited[Z0], 2 * (kept[Z0] + 1))


def test_what_is_captured_cannot_be_changed_later():
    made = model(PLAIN)
    with capture(made, [Z0]) as kept:
        made(tokens())
    with capture(made, [Z0]) as before, intervene(made, [Edit(Z0, lambda z: z.zero_(), "in place")]):
        made(tokens())
    assert torch.equal(before[Z0], kept[Z0])
    assert not kept[Z0].requires_grad


def test_an_edit_in_place_counts_like_a_new_tensor():
    made = model(PLAIN)
    with intervene(made, [Edit(Z0, lambda z: z.mul_(0), "in place")]), torch.no_grad():
        in_place = made(tokens())
    with intervene(made, [Edit(Z0, torch.zeros_like, "new")]):
        new = made(tokens())
    assert torch.equal(in_place, new)


@pytest.mark.parametrize("scope", [capture, capture_gradients])
def test_an_unknown_hook_point_names_the_nearest(scope):
    made = model(PLAIN)
    with (
        pytest.raises(WorkbenchError, match=r"unknown hook point 'blocks.0.attn.hook_zz'.*blocks.0.attn.hook_z"),
        scope(made, ["blocks.0.attn.hook_zz"]),
    ):
        raise AssertionError("the scope must not open")
    assert hooks_left(made) == 0


def test_an_edit_of_an_unknown_hook_point_names_the_nearest_and_hangs_nothing():
    made = model(PLAIN)
    edits = [Edit(Z0, double, "known"), Edit("blocks.7.attn.hook_z", double, "unknown")]
    with pytest.raises(WorkbenchError, match=r"unknown hook point 'blocks\.7\.attn\.hook_z'"), intervene(made, edits):
        raise AssertionError("the scope must not open")
    assert hooks_left(made) == 0


def test_an_edit_that_never_fires_is_an_error():
    made = model(PLAIN)
    with (
        pytest.raises(WorkbenchError, match=r"never took place: mine at blocks.1.attn.hook_z"),
        intervene(made, [Edit(Z0, double, "other"), Edit(Z1, double, "mine")]) as firings,
    ):
        made.blocks[0].attn.hook_z(torch.zeros(1, 2, 2, 4))
    assert firings.sequences == [1, 0]
    with pytest.raises(WorkbenchError, match="never took place"), intervene(made, [Edit(Z0, double, "fast")]):
        made(tokens(), path="fast")
    assert hooks_left(made) == 0


def test_a_capture_that_no_pass_reaches_is_an_error():
    made = model(PLAIN)
    with (
        pytest.raises(WorkbenchError, match=r"no activation came from hook point blocks.0.attn.hook_z"),
        capture(made, [Z0]),
    ):
        made(tokens(), path="fast")


def test_an_edit_must_give_a_tensor_of_the_same_shape():
    made = model(PLAIN)
    for wrong, got in ((lambda z: z[:, 1:], r"got \(4, 5, 2, 4\)"), (lambda z: [z], "got list")):
        with pytest.raises(WorkbenchError, match=got), intervene(made, [Edit(Z0, wrong, "wrong")]):
            made(tokens())
    assert hooks_left(made) == 0


@settings(max_examples=15, deadline=None)
@given(shapes, seeds)
def test_after_an_exception_no_hook_is_left_and_the_next_pass_is_clean(shape, seed):
    made = model(shape, seed)
    clean = made(tokens(), path="explicit")

    def fail(z: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("inside the hook")

    for point in (Z0, Z1):
        with (
            pytest.raises(RuntimeError, match="inside the hook"),
            capture(made, [Z0]),
            intervene(made, [Edit(Z0, double, "before"), Edit(point, fail, "fail")]),
        ):
            made(tokens())
        assert hooks_left(made) == 0
        assert torch.equal(made(tokens(), path="explicit"), clean)


def test_nested_scopes_remove_only_their_own_and_leave_the_users():
    made = model(PLAIN)
    seen: list[str] = []
    hook_point(made, Z0).add_hook(lambda z, hook: seen.append("transformer lens"))
    handle = hook_point(made, Z0).register_forward_hook(lambda *_: seen.append("torch"))
    with intervene(made, [Edit(Z0, double, "outer")]) as outer:
        with intervene(made, [Edit(Z0, double, "inner")]) as inner, capture(made, [Z1]):
            made(tokens())
        made(tokens())
    assert (outer.sequences, inner.sequences) == ([8], [4])
    assert seen == ["transformer lens", "torch"] * 2
    made(tokens())
    assert seen == ["transformer lens", "torch"] * 3
    handle.remove()
    made.reset_hooks()
    assert hooks_left(made) == 0


def test_gradients_are_those_of_autograd_and_no_backward_hook_survives():
    made = model(PLAIN)
    mine: list[torch.Tensor] = []
    own = hook_point(made, Z1).register_full_backward_hook(lambda *_: mine.append(torch.ones(1)))
    with capture_gradients(made, [Z0, Z1]) as gradients:
        made(tokens()).square().sum().backward()
    kept: dict[str, torch.Tensor] = {}

    def keep(z: torch.Tensor) -> torch.Tensor:
        z.retain_grad()
        kept["z"] = z
        return z

    with intervene(made, [Edit(Z0, keep, "keep")]):
        made(tokens()).square().sum().backward()
    torch.testing.assert_close(gradients[Z0], kept["z"].grad)
    assert gradients[Z1].shape == (4, 6, 2, 4)
    assert len(mine) == 2
    assert hooks_left(made) == 1
    own.remove()
    with pytest.raises(RuntimeError, match="stop"), capture_gradients(made, [Z0]):
        raise RuntimeError("stop")
    with pytest.raises(WorkbenchError, match="no gradient came"), capture_gradients(made, [Z0]):
        made(tokens())
    assert hooks_left(made) == 0


@settings(max_examples=15, deadline=None)
@given(shapes, seeds)
def test_looking_at_a_model_changes_nothing(shape, seed):
    made = model(shape, seed)
    weights = {name: weight.clone() for name, weight in made.named_parameters()}
    clean = made(tokens(), path="explicit")
    assert "Transformer" in repr(made)
    names = list(made.hook_dict)
    assert "blocks.0.attn.hook_z" in names
    stacked = [block.attn.W_O for block in made.blocks]
    assert len(stacked) == 2
    sum(float(weight.detach().sum()) for weight in made.parameters())
    with capture(made, [Z0, "blocks.1.hook_resid_post", "blocks.0.attn.hook_result", "blocks.0.hook_v_input"]) as kept:
        made(tokens())
    for value in kept.values():
        value.zero_()
    assert torch.equal(made(tokens(), path="explicit"), clean)
    assert all(torch.equal(weight, weights[name]) for name, weight in made.named_parameters())
    assert hooks_left(made) == 0
