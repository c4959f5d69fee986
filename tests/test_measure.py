"""Interventions carried out: against values worked out by hand on planted circuits, and identities on random models."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tasks.repeated_tokens import RepeatedTokens
from tests import hand_models
from tests.small_models import hooks_left, model, seeds, shapes, subject
from workbench.ablation import KeepOnly, Mean, Resample, Zero
from workbench.checks import deviation
from workbench.components import all_heads
from workbench.cut_path import CutPath
from workbench.errors import WorkbenchError
from workbench.hooks import Edit, capture, intervene
from workbench.measure import measure, run
from workbench.metrics import sequence_accuracy
from workbench.reference import Pairing, build_reference
from workbench.task import Batch

TASK = RepeatedTokens(n_ctx=32, d_vocab=25, period_min=5, period_max=12)
CIRCUIT, SPLIT = hand_models.induction().subject(TASK), hand_models.split_induction().subject(TASK)
BATCH = CIRCUIT.sample(64, "test")
REFERENCE = build_reference(CIRCUIT, split="validation", size=128)
SPLIT_REFERENCE = build_reference(SPLIT, split="validation", size=128)
PAIRING = Pairing(64)
LOST = 0.1
"""Accuracy where nothing is left is that of a guess among 24 symbols or those of a block; well below this."""


def accuracy(subject, *interventions) -> list[float]:
    effects = measure(subject, BATCH, interventions)
    assert all(e.clean_accuracy.mean() == 1 for e in effects)
    assert all((e.fired, e.expected) == (64, 64) for e in effects)
    return [float(e.ablated_accuracy.mean()) for e in effects]


def ways(heads: str) -> list:
    return [Zero(heads), Mean(heads, REFERENCE), Resample(heads, PAIRING)]


def test_each_planted_head_is_necessary_under_every_semantics():
    for head in ("L0.H0", "L1.H0"):
        assert max(accuracy(CIRCUIT, *ways(head))) < LOST


def test_zeroing_the_induction_head_leaves_an_even_guess():
    # Nothing else reaches the output block: logits 0 for the 24 ordinary tokens, minus the gain for the begin token.
    effect = measure(CIRCUIT, BATCH, [Zero("L1.H0")])[0]
    np.testing.assert_allclose(effect.ablated_loss, math.log(24 + math.exp(-hand_models.GAIN)), atol=1e-5)


def test_without_the_previous_token_head_the_induction_head_rests_on_the_begin_token():
    # Scores: s/2 for the begin key, 0 for at most 31 others, whose weight is below 31 exp(-s/2) = .0014 (x the gain).
    effects = measure(CIRCUIT, BATCH, [Zero("L0.H0"), CutPath("K", "L0.H0", "L1.H0", REFERENCE)])
    for effect in effects:
        np.testing.assert_allclose(effect.ablated_loss, math.log(24), atol=0.05)


def test_inert_heads_do_nothing_bitwise():
    for effect in measure(CIRCUIT, BATCH, [*ways("L0.H1"), *ways("L1.H1"), *ways("L0.H1,L1.H1")]):
        assert np.array_equal(effect.ablated_loss, effect.clean_loss)
        assert not effect.accuracy_effect.any()
        assert not effect.loss_effect.any()


def test_keeping_only_the_circuit_keeps_everything_and_half_of_it_nothing():
    by = (Zero(()), Mean((), REFERENCE), Resample((), PAIRING))
    assert accuracy(CIRCUIT, *(KeepOnly("L0.H0,L1.H0", b) for b in by)) == [1, 1, 1]
    for half in ("L0.H0", "L1.H0", "L0.H1,L1.H1"):
        assert max(accuracy(CIRCUIT, *(KeepOnly(half, b) for b in by))) < LOST


def test_under_frozen_patterns_a_previous_token_head_has_no_effect_and_the_induction_head_all():
    for frozen in (
        Zero("L0.H0", frozen_patterns=True),
        Mean("L0.H0", REFERENCE, frozen_patterns=True),
        Resample("L0.H0", PAIRING, frozen_patterns=True),
        KeepOnly("L1.H0", Zero(()), frozen_patterns=True),
    ):
        effect = measure(CIRCUIT, BATCH, [frozen])[0]
        assert not effect.accuracy_effect.any()
        np.testing.assert_allclose(effect.ablated_loss, effect.clean_loss, atol=1e-6)
    assert accuracy(CIRCUIT, Zero("L1.H0", frozen_patterns=True))[0] < LOST


def test_frozen_patterns_hold_every_pattern_and_recompute_the_rest():
    s = subject({"norm": "pre", "positions": "learned"})
    batch, attn = s.sample(4, "test"), s.model.blocks[1].attn
    pattern, z = "blocks.1.attn.hook_pattern", "blocks.1.attn.hook_z"
    with capture(s.model, [pattern]) as clean:
        run(s.model, batch)
    with capture(s.model, ["blocks.1.attn.hook_v"]) as moved, torch.no_grad():
        run(s.model, batch, Zero("L0.H0"))
    by_hand = torch.einsum("bhqp,bphk->bqhk", clean[pattern], moved["blocks.1.attn.hook_v"])
    seen: list[torch.Tensor] = []
    look = Edit(z, lambda value: seen.append(value.clone()) or value, "look")
    with intervene(s.model, [look]):
        run(s.model, batch, Zero("L0.H0", frozen_patterns=True))
    # Two passes: the clean one that gives the patterns, then the one that is meant.
    torch.testing.assert_close(seen[1], by_hand)
    assert attn.hook_pattern._forward_hooks == {}


def test_cutting_k_removes_and_cutting_q_or_v_changes_nothing():
    q, k, v = (CutPath(kind, "L0.H0", "L1.H0", REFERENCE) for kind in "QKV")
    assert accuracy(CIRCUIT, k)[0] < LOST
    for effect in measure(CIRCUIT, BATCH, [q, v]):
        assert not effect.accuracy_effect.any()
        np.testing.assert_allclose(effect.ablated_loss, effect.clean_loss, atol=1e-6)


def test_a_cut_touches_the_named_receivers_only():
    to_the_inert_head = measure(CIRCUIT, BATCH, [CutPath("K", "L0.H0", "L1.H1", REFERENCE)])[0]
    assert not to_the_inert_head.accuracy_effect.any()
    from_the_inert_head = measure(CIRCUIT, BATCH, [CutPath("K", "L0.H1", "L1.H0", REFERENCE)])[0]
    assert not from_the_inert_head.loss_effect.any()


def test_where_all_goes_through_one_path_the_cut_equals_the_mean_ablation():
    cut, mean = measure(CIRCUIT, BATCH, [CutPath("K", "L0.H0", "L1.H0", REFERENCE), Mean("L0.H0", REFERENCE)])
    np.testing.assert_allclose(cut.ablated_loss, mean.ablated_loss, atol=1e-5)


def test_split_work_each_alone_nothing_both_everything():
    for layer in (0, 1):
        first, second = f"L{layer}.H0", f"L{layer}.H1"
        for way in (Zero, lambda heads: Mean(heads, SPLIT_REFERENCE)):
            assert accuracy(SPLIT, way(first), way(second)) == [1, 1]
            assert accuracy(SPLIT, way([first, second]))[0] < LOST
    cuts = [CutPath("K", senders, "L1.H0,L1.H1", SPLIT_REFERENCE) for senders in ("L0.H0", "L0.H1", "L0.H0,L0.H1")]
    one, other, both = accuracy(SPLIT, *cuts)
    assert (one, other) == (1, 1)
    assert both < LOST


def test_resampling_puts_in_the_paired_sequences_z():
    batch, pairing = BATCH[:9], Pairing(9, seed=5)
    z = "blocks.1.attn.hook_z"
    with capture(CIRCUIT.model, [z]) as clean:
        run(CIRCUIT.model, batch)
    seen: list[torch.Tensor] = []
    look = Edit("blocks.1.hook_attn_out", lambda x: seen.append(x.clone()) or x, "look")
    with intervene(CIRCUIT.model, [look]):
        run(CIRCUIT.model, batch, Resample("L1.H0", pairing))
    expected = clean[z][list(pairing.donors)][:, :, 0] @ CIRCUIT.model.blocks[1].attn.W_O[0]
    torch.testing.assert_close(seen[-1], expected)


def everything(s, n):
    reference = build_reference(s, size=16)
    heads = all_heads(2, 2)
    cuts = [] if s.config.norm == "post" else [CutPath("V", "L0.H0", "L1.H0,L1.H1", reference)]
    return [
        None,
        Zero(heads[1:3]),
        Mean(heads[:2], reference),
        Resample(heads[::3], Pairing(n)),
        KeepOnly(heads[:1], Resample((), Pairing(n)), frozen_patterns=True),
        Mean(heads[:1], reference, frozen_patterns=True),
        *cuts,
    ]


@settings(max_examples=8, deadline=None)
@given(shapes, seeds)
def test_chunks_change_nothing(shape, seed):
    s = subject(shape, seed, padded=False)
    batch = s.sample(7, "test")
    for intervention in everything(s, 7):
        whole = run(s.model, batch, intervention, chunk=7)
        parts = run(s.model, batch, intervention, chunk=3)
        assert deviation(parts.logits, whole.logits) < 1e-6
        assert (parts.fired, parts.expected) == (whole.fired, whole.expected)
    assert hooks_left(s.model) == 0


@settings(max_examples=10, deadline=None)
@given(shapes, seeds)
def test_a_padded_batch_equals_its_sequences_alone_without_padding(shape, seed):
    s = subject(shape, seed)
    batch = s.sample(4, "test")
    reference = build_reference(s, size=16, per_position=False)
    for intervention in (None, Zero("L0.H1"), Mean("L0.H0,L1.H1", reference), Zero("L0.H0", frozen_patterns=True)):
        together = run(s.model, batch, intervention).logits
        for i in range(4):
            real = int(batch.mask[i].sum())
            row = (t[i : i + 1, :real] for t in (batch.tokens, batch.mask, batch.targets, batch.scored))
            alone = run(s.model, Batch(*row), intervention).logits
            assert deviation(alone[0], together[i, :real]) < 1e-6


@settings(max_examples=20, deadline=None)
@given(shapes, seeds)
def test_the_clean_pass_bitwise_from_keep_only_of_every_head_and_from_patching_it_with_itself(shape, seed):
    s = subject(shape, seed)
    batch, heads = s.sample(5, "test"), all_heads(2, 2)
    clean = run(s.model, batch)
    assert (clean.fired, clean.expected) == (0, 0)
    assert torch.equal(clean.logits, s.model(batch.tokens, batch.mask, path="explicit"))
    kept = run(s.model, batch, KeepOnly(heads, Zero(())))
    assert torch.equal(kept.logits, clean.logits)
    frozen = run(s.model, batch, KeepOnly(heads, Zero(()), frozen_patterns=True))
    assert torch.equal(frozen.logits, clean.logits)
    assert (frozen.fired, frozen.expected) == (kept.fired, kept.expected) == (0, 0)


@settings(max_examples=15, deadline=None)
@given(shapes, seeds)
def test_all_heads_at_their_own_z_is_the_clean_pass(shape, seed):
    s = subject(shape, seed, padded=False)
    one = s.sample(1, "test")
    with capture(s.model, ["blocks.0.attn.hook_z", "blocks.1.attn.hook_z"]) as z:
        clean = run(s.model, one).logits
    reference = build_reference(s, size=4)
    own = type(reference)("random", "test", seed, 1, True, tuple(t[0] for t in z.values()), reference.filled)
    assert torch.equal(run(s.model, one, Mean(s.heads, own)).logits, clean)
    if s.config.norm != "post":
        cut = run(s.model, one, CutPath("V", "L0.H0,L0.H1", "L1.H0,L1.H1", own)).logits
        assert deviation(cut, clean) < 2e-6


def test_effects_are_paired_and_equal_single_passes():
    s = subject({"norm": "pre", "positions": "rotary"}, padded=False)
    batch, interventions = s.sample(11, "test"), everything(s, 11)[1:]
    for effect, intervention in zip(measure(s, batch, interventions, chunk=4), interventions, strict=True):
        logits = run(s.model, batch, intervention).logits
        assert effect.intervention == intervention
        np.testing.assert_allclose(effect.ablated_accuracy, sequence_accuracy(logits, batch).numpy(), rtol=1e-6)
        np.testing.assert_allclose(
            effect.clean_accuracy, sequence_accuracy(run(s.model, batch).logits, batch).numpy(), rtol=1e-6
        )
        assert effect.clean_loss.shape == effect.ablated_loss.shape == (11,)
        assert effect.clean_loss.dtype == np.float64
        assert (effect.fired, effect.expected) == (11, 11)


def test_weights_are_read_as_they_are_now():
    s = subject({"norm": "pre", "positions": "learned"}, padded=False)
    batch = s.sample(4, "test")
    cut = CutPath("K", "L0.H0", "L1.H0", build_reference(s, size=8))
    before = run(s.model, batch, cut).logits
    loss = s.model(batch.tokens).square().mean()
    loss.backward()
    torch.optim.SGD([s.model.blocks[0].attn.W_O], lr=1.0).step()
    after = run(s.model, batch, cut).logits
    fresh = model({"norm": "pre", "positions": "learned"})
    fresh.load_state_dict(s.model.state_dict())
    assert torch.equal(after, run(fresh, batch, cut).logits)
    assert deviation(after, before) > 1e-3


@pytest.mark.parametrize("nothing", [Zero(()), Mean((), REFERENCE), CutPath("K", "L0.H0", (), REFERENCE)], ids=repr)
def test_an_intervention_that_replaces_nothing_is_an_error(nothing):
    with pytest.raises(WorkbenchError, match="replaces nothing"):
        measure(CIRCUIT, BATCH, [nothing])


def test_what_does_not_fit_is_an_error():
    short = Batch(*(t[:, :20] for t in (BATCH.tokens, BATCH.mask, BATCH.targets, BATCH.scored)))
    with pytest.raises(WorkbenchError, match=r"a reference set that does not fit.*32 positions, got 20"):
        measure(CIRCUIT, short, [Mean("L0.H0", REFERENCE)])
    with pytest.raises(WorkbenchError, match="a reference set that does not fit"):
        run(CIRCUIT.model, short, CutPath("K", "L0.H0", "L1.H0", REFERENCE))
    with pytest.raises(WorkbenchError, match="a pairing does not fit the batch: expected 64 sequences, got 63"):
        run(CIRCUIT.model, BATCH, Resample("L0.H0", Pairing(63)))
    with pytest.raises(WorkbenchError, match=r"there is no head L0\.H2"):
        run(CIRCUIT.model, BATCH, Zero("L0.H2"))
    with pytest.raises(WorkbenchError, match="a chunk cannot be used"):
        run(CIRCUIT.model, BATCH, chunk=0)
    padded = subject({"norm": "pre", "positions": "learned"}).sample(8, "test")
    with pytest.raises(WorkbenchError, match="paired with a shorter one"):
        run(model({"norm": "pre", "positions": "learned"}), padded, Resample("L0.H0", Pairing(8)))
    assert hooks_left(CIRCUIT.model) == 0
