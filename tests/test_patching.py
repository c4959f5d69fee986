from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import small_models as small
from workbench import patch_checks as checks_module
from workbench.errors import WorkbenchError
from workbench.patch_checks import patch_checks
from workbench.patching import Point, patch, restored, shares, source_cache, twin_difference
from workbench.rng import stream
from workbench.task import IGNORE, Batch

LENGTH = small.N_CTX


def batches(padded: bool = False, seed: int = 0) -> tuple[Batch, Batch]:
    """Two batches of equal masks."""
    task = small.Random(padded)
    one = task.sample(4, "test", stream(seed, "destination"))
    other = replace(one, tokens=torch.randint(1, small.D_VOCAB, one.tokens.shape, generator=stream(seed, "source")))
    return one, replace(other, tokens=other.tokens.where(one.mask, torch.tensor(0)))


def clean(model, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        return model(batch.tokens, batch.mask, path="explicit")


@settings(max_examples=15, deadline=None)
@given(
    shape=small.shapes,
    seed=small.seeds,
    layer=st.integers(0, 2),
    position=st.integers(0, LENGTH - 1),
    padded=st.booleans(),
)
def test_patching_a_pass_with_itself_changes_no_bit(shape, seed, layer, position, padded):
    model = small.model(shape, seed)
    batch, _ = batches(padded, seed)
    own = source_cache(model, batch)
    assert torch.equal(patch(model, batch, own, [Point(layer, position)]), clean(model, batch))
    points = [Point(min(layer, 1), position, head) for head in (0, 1)]
    assert torch.equal(patch(model, batch, own, points, "z"), clean(model, batch))
    assert small.hooks_left(model) == 0


@settings(max_examples=15, deadline=None)
@given(shape=small.shapes, seed=small.seeds, layer=st.integers(0, 2), padded=st.booleans())
def test_patching_everything_gives_the_other_pass(shape, seed, layer, padded):
    model = small.model(shape, seed)
    batch, other = batches(padded, seed)
    source = source_cache(model, other)
    everywhere = [Point(layer, p) for p in range(LENGTH)]
    assert torch.equal(patch(model, batch, source, everywhere), clean(model, other))
    assert torch.equal(patch(model, batch, source, [Point(layer, torch.ones_like(batch.mask))]), clean(model, other))
    if layer == 0 and not torch.equal(batch.tokens, other.tokens):
        assert not torch.equal(clean(model, batch), clean(model, other))


@settings(max_examples=10, deadline=None)
@given(shape=small.shapes, seed=small.seeds, layer=st.integers(0, 2), position=st.integers(1, LENGTH - 1))
def test_what_comes_before_a_patched_position_stays(shape, seed, layer, position):
    model = small.model(shape, seed)
    batch, other = batches(seed=seed)
    logits = patch(model, batch, source_cache(model, other), [Point(layer, position)])
    assert torch.equal(logits[:, :position], clean(model, batch)[:, :position])


def test_all_heads_one_by_one_are_all_heads_at_once():
    model = small.model(small.SHAPES[0])
    batch, other = batches()
    source = source_cache(model, other)
    one_by_one = patch(model, batch, source, [Point(1, 3, 0), Point(1, 3, 1)], "z")
    assert torch.equal(one_by_one, patch(model, batch, source, [Point(1, 3)], "z"))
    assert not torch.equal(one_by_one, clean(model, batch))
    assert not torch.equal(patch(model, batch, source, [Point(1, 3, 0)], "z"), one_by_one)


def test_a_name_stands_for_its_own_place_in_each_batch():
    """The source's activation at position 2 goes to the destination's position 4, and nowhere else."""
    model = small.model({"norm": "pre", "positions": "none", "d_mlp": 0, "attention": "learned"})
    batch, other = batches()
    batch = replace(batch, positions={"here": torch.full((4,), 4)})
    other = replace(other, positions={"here": torch.full((4,), 2)})
    logits = patch(model, batch, source_cache(model, other), [Point(2, "here")])
    assert torch.allclose(logits[:, 4], clean(model, other)[:, 2], atol=1e-6)
    keep = [0, 1, 2, 3, 5]
    assert torch.equal(logits[:, keep], clean(model, batch)[:, keep])


@pytest.mark.parametrize(
    ("points", "kind", "text"),
    [
        ([], "resid_pre", "replaces nothing"),
        ([Point(3, 0)], "resid_pre", "no resid_pre at layer 3"),
        ([Point(2, 0)], "z", "no z at layer 2"),
        ([Point(0, 6)], "resid_pre", "position does not exist"),
        ([Point(0, "cue")], "resid_pre", "unknown position 'cue'"),
        ([Point(0, 1, 0)], "resid_pre", "no heads"),
        ([Point(0, 1, 2)], "z", "head does not exist"),
        ([Point(0, torch.ones(2, 2, dtype=torch.bool))], "resid_pre", "mask does not fit"),
    ],
)
def test_what_does_not_exist_is_an_error(points, kind, text):
    model = small.model(small.SHAPES[0])
    batch, other = batches()
    with pytest.raises(WorkbenchError, match=text):
        patch(model, batch, source_cache(model, other), points, kind)


def test_batches_of_different_size_do_not_pair():
    model = small.model(small.SHAPES[0])
    batch, other = batches()
    with pytest.raises(WorkbenchError, match="do not pair"):
        patch(model, batch, source_cache(model, other[:2]), [Point(0, 0)])


def test_twin_difference_by_hand():
    logits = torch.zeros(1, 2, 3)
    logits[0, 1] = torch.tensor([1.0, 5.0, 2.0])
    scored = torch.tensor([[False, True]])

    def batch(answer: int) -> Batch:
        return Batch(torch.zeros(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool),
                     torch.tensor([[IGNORE, answer]]), scored)  # fmt: skip

    assert twin_difference(logits, batch(1), batch(2)).tolist() == [3.0]
    assert twin_difference(logits, batch(0), batch(1)).tolist() == [-4.0]


def test_shares_of_several_are_those_of_each():
    numbers = np.random.default_rng(0)
    done, whole = numbers.normal(0.5, 1, (40, 3, 2)), numbers.normal(3, 1, 40)
    done[:, 1, 1] = 0.25 * whole
    together = shares(done, whole)
    for i in range(3):
        for j in range(2):
            alone = restored(done[:, i, j], np.zeros(40), whole)
            at = (together.value[i, j], together.low[i, j], together.high[i, j])
            assert at == pytest.approx((alone.value, alone.low, alone.high), rel=1e-9)
            assert at[1] < done[:, i, j].mean() / whole.mean() < at[2]
    # A quarter in every sequence: of those not seen, up to u may have a share anywhere from 0 to 1, or from -1 to 1.
    unseen = 1 - 0.025 ** (1 / 40)
    assert (together.low[1, 1], together.high[1, 1]) == pytest.approx((0.25 * (1 - unseen), 0.25 + 0.75 * unseen))
    wide = shares(done, whole, bounds=(-1, 1))
    assert (wide.low[1, 1], wide.high[1, 1]) == pytest.approx((0.25 - 1.25 * unseen, 0.25 + 0.75 * unseen))
    assert np.isnan(shares(done, np.zeros(40)).value).all()


@settings(max_examples=8, deadline=None)
@given(shape=small.shapes, seed=small.seeds, padded=st.booleans())
def test_the_checks_hold_on_every_model(shape, seed, padded):
    model = small.model(shape, seed)
    checks = patch_checks(model, *batches(padded, seed))
    checks.require()
    assert checks.itself
    assert checks.everything == 0
    assert small.hooks_left(model) == 0


def test_the_checks_can_fail(monkeypatch: pytest.MonkeyPatch):
    model = small.model(small.SHAPES[0])
    batch, other = batches(True)
    unequal = replace(other, mask=torch.ones_like(other.mask))
    assert patch_checks(model, batch, unequal).everything is None
    monkeypatch.setattr(checks_module, "patch", lambda *a: patch(*a) + 1e-4)
    with pytest.raises(WorkbenchError, match="self check failed: a pass patched with itself is not the clean pass"):
        patch_checks(model, batch, other).require()
    with pytest.raises(WorkbenchError, match=r"patching everything does not give the other pass: .* a deviation of"):
        replace(patch_checks(model, batch, other), itself=True).require()


def test_restored_by_hand():
    at = restored([1.0, 3.0], [0.0, 0.0], [4.0, 4.0])
    assert at.value == 0.5
    assert at.low < 0.5 < at.high
    none, all_of_it = (restored(x, np.zeros(100), np.ones(100)) for x in (np.zeros(100), np.ones(100)))
    unseen = 1 - 0.025**0.01
    assert (none.value, none.low) == (0, 0)
    assert none.high == pytest.approx(unseen)
    assert (all_of_it.value, all_of_it.high) == (1, pytest.approx(1))
    assert all_of_it.low == pytest.approx(1 - unseen)
    assert math.isnan(restored([1.0, 1.0], [2.0, 2.0], [2.0, 2.0]).value)
