"""The gradient approximation of patches: planted values, exactness where it must be exact, ranks by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests import hand_circuits
from tests import small_models as small
from tests.hand_circuits import CIRCUITS
from tests.test_patch_sweep import HEADS, pair, twins
from workbench.attribution_patching import _approximate, attribution_patching, rank_agreement
from workbench.bridge import Bridged
from workbench.errors import WorkbenchError
from workbench.metrics import row_scores
from workbench.model.export import export
from workbench.patch_sweep import Side, head_points
from workbench.patching import Point, patch, source_cache


@pytest.mark.parametrize("make", CIRCUITS, ids=lambda make: make.__name__)
def test_planted_heads_are_approximated_as_paper_says(make) -> None:
    planted = make()
    batch, twin = pair(planted)
    points = head_points(planted.model.config, [torch.ones_like(batch.mask)])
    found = attribution_patching(planted.model, batch, twin, points)
    guess = np.array([planted.approximated.get(head, 0.0) for head in HEADS])
    exact = np.array([planted.denoised.get(head, 0.0) for head in HEADS])
    assert found.shares.value == pytest.approx(guess, abs=2e-6)
    assert found.exact.shares.value == pytest.approx(exact, abs=2e-6)
    assert found.disagreement.value == pytest.approx(guess - exact, abs=4e-6)
    assert all(p.grad is None for p in planted.model.parameters())
    assert small.hooks_left(planted.model) == 0


def test_the_director_is_missed_and_its_ranks_show_it() -> None:
    """Exact: director and reader 1, the rest 0. Approximated: the reader alone. Ranks 2.5 2.5 .5 .5, and 3 1 1 1."""
    planted = hand_circuits.through_queries()
    batch, twin = pair(planted)
    found = attribution_patching(
        planted.model, batch, twin, head_points(planted.model.config, [torch.ones_like(batch.mask)])
    )
    assert found.rank_agreement().value == pytest.approx(1 / math.sqrt(3), abs=1e-6)
    director = found.exact.what.index(next(p for p in found.exact.what if (p.layer, p.head) == (0, 1)))
    assert found.disagreement.high[director] < -0.7


@settings(max_examples=8, deadline=None)
@given(shape=small.shapes, seed=small.seeds)
def test_it_is_the_derivative_of_the_patch(shape, seed):
    """A millionth of the way, in float64: patch and approximation agree to second order, by place and summed."""
    model = small.model(shape, seed).double()
    batch, twin = twins(True, seed)
    points = [*head_points(model.config, [0, 1, "here"]), Point(0, "here"), Point(1, torch.ones_like(batch.mask))]
    # The source is the destination with slightly other embeddings of its tokens: nearby activations.
    moved = small.model(shape, seed).double()
    with torch.no_grad():
        moved.embed.W_E += 1e-6 * torch.randn(moved.embed.W_E.shape, dtype=torch.float64)
    side = Side(0, len(batch), batch, source_cache(moved, batch))
    guess = _approximate(model, side, batch, twin, points)
    with torch.no_grad():
        clean = row_scores(model(batch.tokens, batch.mask, path="explicit")[batch.scored], batch, twin.targets)[-1]
    for point, mine in zip(points, guess, strict=True):
        logits = patch(model, batch, side.source, [point], "z")
        change = row_scores(logits[batch.scored], batch, twin.targets)[-1] - clean
        assert torch.allclose(change, mine, rtol=1e-3, atol=1e-10), point
    assert torch.allclose(guess[[2, 5]].sum(0), guess[-2])  # all heads of a layer are their sum


@settings(max_examples=4, deadline=None)
@given(seed=small.seeds)
def test_in_the_last_layer_without_norm_it_is_exact_whoever_holds_gradients(seed):
    shape = {"norm": "none", "positions": "learned", "d_mlp": 0, "attention": "learned"}
    model = small.model(shape, seed).requires_grad_(False)
    batch, twin = twins(False, seed)
    points = [p for p in head_points(model.config, [0, 3, "here"]) if p.layer == 1]
    with torch.no_grad():
        found = attribution_patching(model, batch, twin, points, "noising", chunk_tokens=13)
    assert found.approximated == pytest.approx(found.exact.moves, abs=1e-5)
    assert found.rank_agreement().value > 0.9


def test_a_bridge_gives_what_the_model_gives():
    """The library's own small transformer with the same weights: exact and approximated, both directions."""
    model = small.model({"norm": "pre", "positions": "learned", "d_mlp": 0, "attention": "learned"})
    batch, twin = twins(False, 5)
    points = head_points(model.config, [2, "here", torch.ones_like(batch.mask)])
    bridge = Bridged(export(model, "native"))
    before = small.hooks_left(bridge)
    for direction in ("denoising", "noising"):
        own, theirs = (attribution_patching(m, batch, twin, points, direction) for m in (model, bridge))
        assert theirs.approximated == pytest.approx(own.approximated, abs=1e-5)
        assert theirs.exact.patched == pytest.approx(own.exact.patched, abs=1e-5)
        assert np.abs(own.approximated).max() > 1e-2
    assert small.hooks_left(bridge) == before


def test_ranks_by_hand():
    one = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    assert rank_agreement(one, one**3).value == pytest.approx(1)
    assert rank_agreement(one, -one).value == pytest.approx(-1)
    # Ranks 0 1 2 against 0 2 1: 1 - 6 (0 + 1 + 1) / (3 * 8) = 1/2.
    louder = one * [1.0, 1.5]  # the second sequence, in the same order
    at = rank_agreement(louder, louder[[0, 2, 1]])
    assert (at.value, at.low, at.high, at.n) == (pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5), 2)
    # Where no sequence differs from another, there is nothing to take an interval from.
    at = rank_agreement(one, one[[0, 2, 1]])
    assert (at.value, at.low, at.high) == (pytest.approx(0.5), -1, 1)
    # A tie: ranks 0 1 2 against .5 .5 2 has 1.5 / sqrt(2 * 1.5).
    tied = one.copy()
    tied[1] = tied[0] + 1e-3
    assert rank_agreement(one, tied).value == pytest.approx(1.5 / math.sqrt(3))
    assert math.isnan(rank_agreement(one, np.ones_like(one)).value)
    # One sequence ranks them one way and one the other: a resample of either alone turns it around.
    mixed = np.array([[0.0, 3.0], [1.0, 1.0]])
    spread = rank_agreement(np.array([[0.0, 0.0], [1.0, 1.0]]), mixed)
    assert (spread.low, spread.high) == (pytest.approx(-1), pytest.approx(1))
    with pytest.raises(WorkbenchError, match="ranks cannot be compared"):
        rank_agreement(one[:1], one[:1])
