"""Interventions with a value known exactly: linear where everything else is held, nothing where only patterns matter,
and the passes that cut paths and places must be equal to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.repeated_tokens import RepeatedTokens
from tests import hand_models
from tests import small_models as small
from tests.drawn_interventions import batch_of
from workbench.ablation import Mean, Resample, Zero
from workbench.attribution import direct_logit_attribution
from workbench.checks import deviation
from workbench.components import Head
from workbench.cut_path import CutPath
from workbench.hooks import capture
from workbench.measure import measure, run
from workbench.model.blocks import EPS
from workbench.reference import Pairing, build_reference

positions = st.sampled_from(("learned", "sinusoidal", "rotary", "alibi", "none"))
attention = st.sampled_from(("learned", "uniform"))


@settings(max_examples=12, deadline=None)
@given(small.seeds, positions, attention)
def test_with_patterns_and_norm_frozen_a_last_layers_head_has_minus_its_direct_attribution(seed, where, kind) -> None:
    """Zeroing z takes the head's own write and its share of b_V, which attribution states apart for all heads."""
    s = small.subject({"norm": "pre", "positions": where, "attention": kind}, seed, padded=False)
    batch = s.sample(4, "test")
    wrong = (batch.targets + 1) % small.D_VOCAB
    direct = direct_logit_attribution(s.model, batch, incorrect=wrong)
    values = [Zero(parts, frozen_patterns=True, frozen_norm=True) for parts in ("L1.H0", "L1.H1", "L1")]
    first, second, both = (e.logit_difference_effect for e in measure(s, batch, values, incorrect=wrong))
    shares = [share_of_bias(s, batch, wrong, head) for head in range(2)]
    np.testing.assert_allclose(sum(shares), direct.of("L1.b_V"), atol=1e-5)
    for effect, head, share in ((first, 0, shares[0]), (second, 1, shares[1])):
        np.testing.assert_allclose(effect, -(direct.of(Head(1, head)) + share), atol=1e-5)
    np.testing.assert_allclose(both, first + second, atol=1e-5)
    np.testing.assert_allclose(both, -(direct.of("L1.H0") + direct.of("L1.H1") + direct.of("L1.b_V")), atol=1e-5)


@torch.no_grad()
def share_of_bias(s, batch, wrong: torch.Tensor, head: int) -> np.ndarray:
    """A head's b_V through its W_O, the final norm at its clean scale, and the difference of two answers' columns."""
    attn, norm = s.model.blocks[1].attn, s.model.ln_final
    with capture(s.model, ["ln_final.hook_scale"]) as kept:
        s.model(batch.tokens, batch.mask, path="explicit")
    write = attn.b_V[head] @ attn.W_O[head]
    normed = (write - write.mean()) / kept["ln_final.hook_scale"] * norm.w
    columns = s.model.unembed.W_U.T
    answer = columns[batch.targets.clamp(min=0)] - columns[wrong.clamp(min=0)]
    by_position = (normed * answer).sum(-1) * batch.scored
    return (by_position.sum(1) / batch.scored.sum(1)).double().numpy()


@settings(max_examples=10, deadline=None)
@given(small.seeds, positions)
def test_without_norm_and_mlp_a_frozen_pattern_makes_the_heads_of_a_layer_add_up(seed, where) -> None:
    """Layer 0 reaches the logits directly and through layer 1's values: both are linear once patterns are held."""
    s = small.subject({"norm": "none", "positions": where}, seed, padded=False)
    batch, pairing = s.sample(4, "test"), Pairing(4, seed)
    reference = build_reference(s, size=8)
    clean = run(s.model, batch).logits
    for way in (Zero, lambda p, **o: Mean(p, reference, **o), lambda p, **o: Resample(p, pairing, **o)):
        changes = [run(s.model, batch, way(p, frozen_patterns=True)).logits - clean for p in ("L0.H0", "L0.H1", "L0")]
        torch.testing.assert_close(changes[0] + changes[1], changes[2], atol=2e-5, rtol=1e-5)


@settings(max_examples=12, deadline=None)
@given(small.seeds, st.sampled_from((0, 12)), st.booleans())
def test_under_a_frozen_norm_the_end_divides_by_the_clean_scale(seed, d_mlp, patterns) -> None:
    s = small.subject({"norm": "pre", "positions": "learned", "d_mlp": d_mlp}, seed, padded=False)
    batch = s.sample(3, "test")
    names = ["blocks.1.hook_resid_post", "ln_final.hook_scale"]
    with capture(s.model, names[1:]) as clean:
        run(s.model, batch)
    with capture(s.model, names[:1]) as seen:
        held = run(s.model, batch, Zero("L0", frozen_norm=True, frozen_patterns=patterns)).logits
    x, norm = seen[names[0]], s.model.ln_final
    x = x - x.mean(-1, keepdim=True)
    with torch.no_grad():
        by_hand = (x / clean[names[1]] * norm.w + norm.b) @ s.model.unembed.W_U
        own = (x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * norm.w + norm.b) @ s.model.unembed.W_U
    assert deviation(held, by_hand) < 1e-6
    assert deviation(own, by_hand) > 1e-3


def test_what_matters_through_patterns_alone_shows_nothing_where_they_are_held() -> None:
    task = RepeatedTokens(n_ctx=32, d_vocab=25, period_min=5, period_max=12)
    circuit = hand_models.induction().subject(task)
    batch, frozen = circuit.sample(16, "test"), {"frozen_patterns": True}
    reference = build_reference(circuit, size=16)
    for value in (
        Zero("L0", **frozen),
        Mean("L0.H0", reference, at=(3, 4, 5), **frozen),
        Zero("L0.H0", **frozen) + Resample("L0.H1", Pairing(16), **frozen),
    ):
        effect = measure(circuit, batch, [value])[0]
        np.testing.assert_allclose(effect.ablated_loss, effect.clean_loss, atol=1e-6)
        assert effect.fired == effect.expected == 16
    assert measure(circuit, batch, [Zero("L0.H0")])[0].loss_effect.min() > 1


@settings(max_examples=12, deadline=None)
@given(small.seeds, positions, st.sampled_from(("pre", "none")))
def test_cutting_q_k_and_v_of_all_heads_is_their_layer_on_the_stream_without_the_senders(seed, where, norm) -> None:
    s = small.subject({"norm": norm, "positions": where}, seed, padded=False)
    batch, reference = s.sample(3, "test"), build_reference(s, size=8)
    names = ["blocks.0.attn.hook_z", "blocks.1.hook_resid_pre"]
    for senders in ([0], [0, 1]):
        with torch.no_grad(), capture(s.model, names) as clean:
            s.model(batch.tokens, batch.mask, path="explicit")
        missing = torch.einsum(
            "bphk,hkd->bpd",
            (reference.mean_z[0] - clean[names[0]])[:, :, senders],
            s.model.blocks[0].attn.W_O.detach()[senders],
        )
        stream = clean[names[1]]
        with torch.no_grad(), capture(s.model, ["blocks.1.hook_attn_out"]) as moved:
            s.model(stream + missing, batch.mask, start_at_layer=1, path="explicit")
            by_hand = s.model(stream + moved["blocks.1.hook_attn_out"], batch.mask, start_at_layer=2)
        froms = [f"L0.H{h}" for h in senders]
        q, k, v = (CutPath(kind, froms, "L1.H0,L1.H1", reference) for kind in "QKV")
        assert deviation(run(s.model, batch, q + k + v).logits, by_hand) < 2e-6
        singles = [run(s.model, batch, one).logits for one in (q, k, v)]
        assert max(deviation(one, by_hand) for one in singles) > 1e-4


@settings(max_examples=8, deadline=None)
@given(small.shapes.filter(lambda shape: shape["norm"] != "post"), small.seeds)
def test_cutting_a_path_to_each_receiver_in_turn_is_cutting_it_to_both(shape, seed) -> None:
    """In one layer no receiver reads what another writes, so their values add up to those of both."""
    s = small.subject(shape, seed, padded=False)
    batch, reference = batch_of(s), build_reference(s, size=8)
    z = "blocks.1.attn.hook_z"

    def heads(receivers: str) -> torch.Tensor:
        with capture(s.model, [z]) as seen:
            run(s.model, batch, CutPath("V", "L0.H1", receivers, reference))
        return seen[z]

    first, second, both = map(heads, ("L1.H0", "L1.H1", "L1.H0,L1.H1"))
    assert torch.equal(both[:, :, 0], first[:, :, 0])
    assert torch.equal(both[:, :, 1], second[:, :, 1])
    assert not torch.equal(first[:, :, 0], second[:, :, 0])


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_a_resampled_pass_of_everything_is_the_donors_own_but_for_the_stream_they_share(norm: str) -> None:
    """With every head and MLP from the donor, what is left of the sequence itself is its embedding."""
    s = small.subject({"norm": norm, "positions": "learned", "d_mlp": 12}, padded=False)
    batch = s.sample(4, "test")
    same = batch[[0, 0, 0, 0]]
    whole = Resample("L0,L1", Pairing(4))
    assert deviation(run(s.model, same, whole).logits, run(s.model, same).logits) < 1e-6
    assert deviation(run(s.model, batch, whole).logits, run(s.model, batch).logits) > 1e-3
