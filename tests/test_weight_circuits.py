"""Circuits from weights: against the running model, against dense products, and by hand on planted weights."""

from __future__ import annotations

import math

import pytest
import torch

from tests import hand_models
from workbench.components import Head
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.model.positions import rotary_table, rotate
from workbench.model.transformer import Transformer
from workbench.rng import stream
from workbench.weight_circuits import (
    composition,
    full_ov,
    full_qk,
    ov_circuit,
    ov_eigenvalue_copying,
    product_eigenvalues,
    product_norm,
    qk_circuit,
    scores_from_weights,
)

POSITIONS = ["learned", "sinusoidal", "rotary", "alibi", "none"]
S, G = hand_models.SHARPNESS, hand_models.GAIN
V = 25


def model_of(**options) -> Transformer:
    """Random weights, biases and norms included."""
    given = {"n_layers": 2, "n_heads": 3, "d_model": 12, "d_head": 6, "norm": "none"} | options
    model = Transformer(ModelConfig(d_vocab=11, n_ctx=9, **given))
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(0.6 * torch.randn(parameter.shape, generator=stream(2, "weights", i)))
    return model


TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 10], [0, 2, 7, 1, 8, 2, 8, 1, 8]])
VISIBLE = torch.ones(9, 9, dtype=torch.bool).tril()


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("norm", ["none", "pre", "post"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_scores_from_weights_are_the_models(positions, norm, scale):
    model = model_of(positions=positions, norm=norm, scale_scores=scale)
    _, cache = model.run_with_cache(TOKENS)
    for layer in range(2):
        ours = scores_from_weights(model, layer, cache[f"blocks.{layer}.hook_resid_pre"])
        theirs = cache[f"blocks.{layer}.attn.hook_attn_scores"]
        assert torch.allclose(ours[..., VISIBLE], theirs[..., VISIBLE], atol=1e-4)
        # One sequence, and one that is shorter than the context.
        short = scores_from_weights(model, layer, cache[f"blocks.{layer}.hook_resid_pre"][:1, :5])
        assert torch.allclose(short, ours[:1, :, :5, :5], atol=1e-4)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_scores_are_the_bilinear_form_of_the_qk_circuit(positions):
    model = model_of(positions=positions)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.b_Q.zero_()
            block.attn.b_K.zero_()
    _, cache = model.run_with_cache(TOKENS)
    x = cache["blocks.1.hook_resid_pre"]
    for h in range(3):
        form = torch.einsum("bqd,de,bke->bqk", x, qk_circuit(model, Head(1, h)), x) / math.sqrt(6)
        assert torch.allclose(form[:, VISIBLE], cache["blocks.1.attn.hook_attn_scores"][:, h][:, VISIBLE], atol=1e-4)


@pytest.mark.parametrize("norm", ["none", "pre"])
@pytest.mark.parametrize("positions", ["rotary", "alibi", "none"])
def test_full_qk_is_what_the_first_layer_scores_at_each_offset(positions, norm):
    model = model_of(positions=positions, norm=norm)
    _, cache = model.run_with_cache(TOKENS)
    scores = cache["blocks.0.attn.hook_attn_scores"]
    for h in range(3):
        for offset in (0, 1, 4, 8):
            circuit = full_qk(model, f"L0.H{h}", offset=offset)
            for q in range(offset, 9):
                expected = circuit[TOKENS[:, q], TOKENS[:, q - offset]]
                assert torch.allclose(scores[:, h, q, q - offset], expected, atol=1e-4)


def test_full_qk_of_learned_positions_is_the_tokens_share():
    model = model_of(positions="learned")
    with torch.no_grad():
        model.pos_embed.W_pos.zero_()
    _, cache = model.run_with_cache(TOKENS)
    expected = full_qk(model, Head(0, 1), offset=3)
    assert torch.equal(expected, full_qk(model, Head(0, 1)))
    seen = cache["blocks.0.attn.hook_attn_scores"][0, 1, 8, 5]
    assert torch.allclose(seen, expected[TOKENS[0, 8], TOKENS[0, 5]], atol=1e-4)


@pytest.mark.parametrize("norm", ["none", "pre"])
def test_full_qk_through_earlier_heads(norm):
    model = model_of(positions="rotary", norm=norm)
    senders = [Head(0, 0), Head(0, 2)]

    def read(layer, x):
        return model.blocks[layer].ln1.fast(x) if norm == "pre" else x

    with torch.no_grad():
        e, attn = model.embed.W_E, model.blocks[1].attn
        keys = sum(read(0, e) @ model.blocks[0].attn.W_V[h.head] @ model.blocks[0].attn.W_O[h.head] for h in senders)
        q, k = read(1, e) @ attn.W_Q[1] + attn.b_Q[1], read(1, keys) @ attn.W_K[1] + attn.b_K[1]
        table = rotary_table(9, 6)
        # Query at position 5, key at 3: each turned by its own position.
        expected = (
            rotate(q[:, None].expand(-1, 9, -1), table)[:, 5] @ rotate(k[:, None].expand(-1, 9, -1), table)[:, 3].T
        ) / math.sqrt(6)
    assert torch.allclose(full_qk(model, "L1.H1", offset=2, through=senders), expected, atol=1e-4)
    assert torch.allclose(full_qk(model, "L1.H1", offset=2, through="L0.H0,L0.H2"), expected, atol=1e-4)


@pytest.mark.parametrize("norm", ["none", "pre"])
def test_full_ov_is_what_attending_to_a_lone_token_writes(norm):
    model = model_of(positions="none", norm=norm, n_layers=1)
    with torch.no_grad():
        model.blocks[0].attn.b_V.zero_()
    _, cache = model.run_with_cache(torch.arange(11)[:, None])
    # A sequence of one token attends to itself only.
    z = cache["blocks.0.attn.hook_z"][:, 0]
    for h in range(3):
        written = z[:, h] @ model.blocks[0].attn.W_O[h] @ model.unembed.W_U
        assert torch.allclose(full_ov(model, Head(0, h)), written, atol=1e-4)


def test_circuits_of_the_planted_induction_model_by_hand():
    model = hand_models.induction().model
    ordinary = torch.eye(V)
    ordinary[0, 0] = 0.0
    induction = full_qk(model, "L1.H0", through=["L0.H0"])
    assert torch.equal(induction, S * ordinary)
    # Seen directly, only the begin token draws it, at half the score of a match.
    direct = torch.zeros(V, V)
    direct[1:, 0] = S / 2
    assert torch.equal(full_qk(model, "L1.H0"), direct)
    assert torch.equal(full_ov(model, "L1.H0"), G * ordinary)
    for idle in ("L0.H0", "L0.H1", "L1.H1"):
        assert not bool(full_ov(model, idle).any())
    both = full_qk(hand_models.split_induction().model, "L1.H1", through=["L0.H0", "L0.H1"])
    assert torch.equal(both, 2 * S * ordinary)


def test_copying_eigenvalues_of_planted_heads():
    model = hand_models.induction().model
    assert ov_eigenvalue_copying(model, "L1.H0") == pytest.approx(1.0, abs=1e-5)
    for nothing in ("L0.H0", "L0.H1", "L1.H1"):
        assert ov_eigenvalue_copying(model, nothing) == 0.0
    with torch.no_grad():
        model.blocks[1].attn.W_O[0] *= -1
    assert ov_eigenvalue_copying(model, "L1.H0") == pytest.approx(-1.0, abs=1e-5)
    # A write that shifts all logits alike is nothing to softmax.
    with torch.no_grad():
        model.blocks[1].attn.W_O[0] = torch.rand(32, 1, generator=stream(0, "o")) * model.unembed.W_U.sum(dim=1)
    assert ov_eigenvalue_copying(model, "L1.H0") == 0.0


@pytest.mark.parametrize("d_head", [6, 20])
def test_copying_eigenvalues_equal_the_dense_computation(d_head):
    model = model_of(d_head=d_head)
    for h in range(3):
        unembed = model.unembed.W_U - model.unembed.W_U.mean(dim=1, keepdim=True)
        dense = (model.embed.W_E @ ov_circuit(model, Head(1, h)) @ unembed).double()
        values = torch.linalg.eigvals(dense.detach())
        expected = float(values.real.sum() / values.abs().sum())
        assert ov_eigenvalue_copying(model, Head(1, h)) == pytest.approx(expected, abs=1e-3)
        assert -1 < expected < 1


def test_a_shift_of_the_unembedding_over_the_vocabulary_changes_nothing():
    model = model_of()
    before = ov_eigenvalue_copying(model, "L0.H1")
    with torch.no_grad():
        model.unembed.W_U += torch.randn(12, 1, generator=stream(0, "shift"))
    assert ov_eigenvalue_copying(model, "L0.H1") == pytest.approx(before, abs=1e-4)


def test_bfloat16_weights_are_computed_in_float32():
    model = model_of(norm="pre")
    exact = ov_eigenvalue_copying(model, "L1.H2")
    model = model.bfloat16()
    assert ov_eigenvalue_copying(model, "L1.H2") == pytest.approx(exact, abs=0.02)
    for circuit in (qk_circuit(model, "L1.H2"), ov_circuit(model, "L1.H2"), full_qk(model, "L1.H2", offset=1)):
        assert circuit.dtype == torch.float32
    assert full_ov(model, "L1.H2").dtype == torch.float32
    assert all(math.isfinite(row.value) for row in composition(model, null_samples=10, stream=stream(0, "n")))


@pytest.mark.parametrize("lead", [(), (1,), (1, 1), (1, 3), (3, 1)])
def test_low_rank_products_equal_dense_ones_with_any_leading_axes(lead):
    def draw(name, *shape):
        return torch.randn(*lead, *shape, generator=stream(3, name))

    left, middle, right = draw("a", 7, 3), draw("b", 3, 4), draw("c", 4, 5)
    norm = product_norm(left, middle, right)
    assert norm.shape == lead
    assert torch.allclose(norm.float(), torch.linalg.matrix_norm(left @ middle @ right), rtol=1e-5)
    back = draw("d", 3, 7)
    small = product_eigenvalues(left, back)
    assert small.shape == (*lead, 3)
    dense = torch.linalg.eigvals((left @ back).double())
    # The dense product has the same three and four zeros; sums of powers name a spectrum without an order.
    for power in (1, 2, 3):
        ours, theirs = (small.to(dense.dtype) ** power).sum(-1), (dense**power).sum(-1)
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def test_composition_equals_the_dense_products():
    model = model_of(n_layers=3)
    rows = composition(model, null_samples=5, stream=stream(0, "null"))
    assert len(rows) == 3 * 3 * 9
    for row in rows:
        reading = {
            "Q": lambda r: qk_circuit(model, r),
            "K": lambda r: qk_circuit(model, r).T,
            "V": lambda r: ov_circuit(model, r),
        }[row.kind](row.receiver)
        writing = ov_circuit(model, row.sender)
        expected = (writing @ reading).norm() / (writing.norm() * reading.norm())
        assert row.sender.layer < row.receiver.layer
        assert row.value == pytest.approx(float(expected), rel=1e-4)


def test_composition_of_the_planted_model_by_hand():
    rows = composition(hand_models.induction().model, stream=stream(0, "null"))
    value = {(row.kind, str(row.sender), str(row.receiver)): row.value for row in rows}
    assert len(value) == 3 * 4
    # ||W_OV||^2 = V; ||W_QK||^2 = s^2 (V-1) (1 + 1/4), the quarter being the begin key; ||product||^2 = s^2 (V-1).
    assert value.pop(("K", "L0.H0", "L1.H0")) == pytest.approx(1 / math.sqrt(1.25 * V), rel=1e-6)
    assert set(value.values()) == {0.0}
    assert 1 / math.sqrt(1.25 * V) > rows[0].null_high


def test_the_gaussian_null_of_composition():
    model = model_of(d_model=64, d_head=16)
    rows = composition(model, stream=stream(0, "null"))
    assert len({(r.null_low, r.null_median, r.null_high) for r in rows}) == 1
    first = rows[0]
    assert first.null_low < first.null_median < first.null_high
    # The weights of this model are Gaussian themselves: about 5 % of them lie outside, and never most.
    outside = [r for r in rows if not first.null_low <= r.value <= first.null_high]
    assert len(outside) < len(rows) / 3
    # Of two independent products in d dimensions, the squared ratio is 1 / d on average.
    assert first.null_median == pytest.approx(1 / math.sqrt(64), rel=0.1)
    again = composition(model, stream=stream(0, "null"))
    assert again == rows


def test_every_read_reflects_the_weights_now():
    model = model_of()
    reads = [
        lambda: qk_circuit(model, "L1.H0"),
        lambda: ov_circuit(model, "L1.H0"),
        lambda: full_qk(model, "L1.H0", through="L0.H1"),
        lambda: full_ov(model, "L1.H0"),
        lambda: scores_from_weights(model, 1, torch.ones(1, 4, 12)),
        lambda: torch.tensor(ov_eigenvalue_copying(model, "L1.H0")),
        lambda: torch.tensor([r.value for r in composition(model, null_samples=2, stream=stream(0, "n"))]),
    ]
    before = [read().clone() for read in reads]
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert all(torch.equal(read(), b) for read, b in zip(reads, before, strict=True))
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    model(TOKENS).log_softmax(-1)[..., 0].mean().backward()
    optimiser.step()
    for read, old in zip(reads, before, strict=True):
        assert not torch.allclose(read(), old, atol=1e-6)
        assert not read().requires_grad


def test_uniform_attention_has_no_qk_circuit():
    model = model_of(attention="uniform")
    for read in (
        lambda: qk_circuit(model, "L0.H0"),
        lambda: full_qk(model, "L0.H0"),
        lambda: scores_from_weights(model, 0, torch.ones(1, 4, 12)),
    ):
        with pytest.raises(WorkbenchError, match="no QK circuit: its attention is uniform"):
            read()
    assert {row.kind for row in composition(model, null_samples=5, stream=stream(0, "n"))} == {"V"}
    assert ov_circuit(model, "L0.H0").shape == (12, 12)


def test_what_does_not_exist_is_named():
    model = model_of()
    with pytest.raises(WorkbenchError, match=r"no head L2\.H0"):
        qk_circuit(model, "L2.H0")
    with pytest.raises(WorkbenchError, match=r"no head L0\.H7"):
        full_ov(model, Head(0, 7))
    with pytest.raises(WorkbenchError, match="0 to 8 positions back, got 9"):
        full_qk(model, "L0.H0", offset=9)
    with pytest.raises(WorkbenchError, match="heads in layers below 1"):
        full_qk(model, "L1.H0", through=["L0.H0", "L1.H1"])
    with pytest.raises(WorkbenchError, match="no head L3"):
        scores_from_weights(model, 3, torch.ones(1, 4, 12))
