"""The planted models are what they say: patterns, logits, loss against Bayes, redundancy, all against paper values."""

from __future__ import annotations

import math

import pytest
import torch

from tests import hand_models
from workbench.components import Head
from workbench.probes import Probe, repeated_blocks, varying_periods
from workbench.rng import stream

S, G = hand_models.SHARPNESS, hand_models.GAIN
V, T = 24, 32
PERIODS = tuple(range(6, 15))
MODELS = [hand_models.induction, hand_models.split_induction, hand_models.positional_impostor, hand_models.inert]


def probe(periods=PERIODS, n=256, n_symbols=V, n_ctx=T) -> Probe:
    return repeated_blocks(hand_models.vocabulary(n_symbols), n, n_ctx, periods, stream(0, "hand", n_ctx, *periods))


def bayes_loss(p: Probe, periods, n_symbols):
    """Of each next content token: new with its hazard and 1 of those not seen, or the repeat, or certain."""
    content = torch.arange(p.tokens.shape[1] - 1)
    hazard = torch.tensor([sum(q == i for q in periods) / max(1, sum(q >= i for q in periods)) for i in content])
    new = -(1 - hazard).log() + (n_symbols - content).clamp(min=1).log()
    period = p.periods[:, None]
    return torch.where(content < period, new, torch.where(content == period, -hazard.log(), 0.0))


@torch.no_grad()
def losses(planted, p: Probe, hooks=()):
    logits = planted.model.run_with_hooks(p.tokens, fwd_hooks=list(hooks))[:, :-1]
    return -logits.log_softmax(-1).gather(2, p.tokens[:, 1:, None])[..., 0]


@torch.no_grad()
def accuracy(planted, p: Probe, hooks=()) -> float:
    logits = planted.model.run_with_hooks(p.tokens, fwd_hooks=list(hooks))[:, :-1]
    scored = torch.arange(p.tokens.shape[1] - 1) > p.periods[:, None]
    return float((logits.argmax(-1) == p.tokens[:, 1:])[scored].float().mean())


def replace(layer, heads, by):
    """A hook that gives these heads a z of 0, or their mean over the batch at each position."""

    def hook(z, hook):
        z = z.clone()
        z[:, :, heads] = 0.0 if by == "zero" else z[:, :, heads].mean(dim=0, keepdim=True)
        return z

    return (f"blocks.{layer}.attn.hook_z", hook)


@pytest.mark.parametrize("make", MODELS)
def test_shape_subspaces_and_exactly_inert_heads(make):
    planted = make()
    model, config = planted.model, planted.model.config
    n_heads = 3 if make is hand_models.split_induction else 2
    assert (config.n_layers, config.n_heads, config.d_vocab, config.n_ctx) == (2, n_heads, V + 1, T)
    assert len(planted.vocabulary) == config.d_vocab
    assert planted.vocabulary.bos == 0
    at_work = {*planted.previous_token, *planted.induction, *planted.stripes}
    for layer, block in enumerate(model.blocks):
        for head in range(n_heads):
            weights = [getattr(block.attn, f"W_{name}")[head] for name in "QKVO"]
            if Head(layer, head) in at_work:
                assert all(bool(w.any()) for w in weights)
            else:
                assert not any(bool(w.any()) for w in weights)
    # No direct path: the token embedding has nothing in the subspace that the unembedding reads.
    assert not bool((model.embed.W_E @ model.unembed.W_U).any())
    assert planted.subject().heads == tuple(Head(layer, h) for layer in range(2) for h in range(n_heads))


def test_planted_sets():
    planted = hand_models.induction()
    assert (planted.previous_token, planted.induction) == ((Head(0, 0),), (Head(1, 0),))
    planted = hand_models.split_induction()
    assert (planted.previous_token, planted.induction) == ((Head(0, 0), Head(0, 1)), (Head(1, 0), Head(1, 1)))
    assert hand_models.positional_impostor().stripes == (Head(0, 0), Head(1, 1))
    assert hand_models.positional_impostor(n_layers=1).stripes == (Head(0, 0), Head(0, 1))


def test_patterns_and_logits_of_the_induction_model_by_hand():
    planted = hand_models.induction()
    tokens = torch.tensor([[0, 5, 7, 9, 5]])
    logits, cache = planted.model.run_with_cache(tokens)
    previous, match = cache["blocks.0.attn.hook_pattern"][0, 0], cache["blocks.1.attn.hook_pattern"][0, 0]
    for q in range(1, 5):
        row = torch.ones(q + 1)
        row[q - 1] = math.exp(S)
        assert torch.allclose(previous[q, : q + 1], row / row.sum(), atol=1e-6)
    for q, key in ((2, None), (3, None), (4, 2)):
        row = torch.ones(q + 1)
        row[0] = math.exp(S / 2)
        if key is not None:
            row[key] = math.exp(S)
        assert torch.allclose(match[q, : q + 1], row / row.sum(), atol=1e-6)
    # The second 5 is followed by 7: gain x its attention there; the begin token's logit is -gain everywhere.
    on_seven = math.exp(S) / (math.exp(S) + math.exp(S / 2) + 3)
    assert logits[0, 4, 7].item() == pytest.approx(G * on_seven, abs=1e-4)
    assert torch.allclose(logits[0, :, 0], torch.full((5,), -G))
    # A token that is new leaves the ordinary tokens alike.
    assert logits[0, 3, 1:].max() - logits[0, 3, 1:].min() < G * 2 * math.exp(-S / 2)
    loss = -logits[0, 3].log_softmax(-1)[9].item()
    assert loss == pytest.approx(math.log(V), abs=1e-3)


@pytest.mark.parametrize("make", [hand_models.induction, hand_models.split_induction])
@pytest.mark.parametrize(("n_symbols", "n_ctx", "periods"), [(24, 32, PERIODS), (64, 48, tuple(range(6, 21)))])
def test_induction_models_are_near_the_bayes_predictor(make, n_symbols, n_ctx, periods):
    planted, p = make(n_symbols, n_ctx), probe(periods, 256, n_symbols, n_ctx)
    excess = (losses(planted, p) - bayes_loss(p, periods, n_symbols)).mean(dim=1)
    high = excess.mean() + 1.96 * excess.std() / math.sqrt(len(excess))
    assert 0 < float(high) < 0.05 * math.log(n_symbols)
    assert accuracy(planted, p) == 1.0


@pytest.mark.parametrize("by", ["zero", "mean"])
@pytest.mark.parametrize("layer", [0, 1])
def test_split_work_is_redundant_and_symmetrical(layer, by):
    planted, p = hand_models.split_induction(), probe()
    logits = [planted.model.run_with_hooks(p.tokens, fwd_hooks=[replace(layer, [h], by)]) for h in range(2)]
    assert torch.allclose(logits[0], logits[1], atol=1e-4)
    for head in range(2):
        assert accuracy(planted, p, [replace(layer, [head], by)]) == 1.0
    floor = float((1 / p.periods).mean())
    assert accuracy(planted, p, [replace(layer, [0, 1], by)]) < floor


@pytest.mark.parametrize("by", ["zero", "mean"])
@pytest.mark.parametrize("layer", [0, 1])
def test_the_single_circuit_falls_with_either_head_and_not_with_the_inert_ones(layer, by):
    planted, p = hand_models.induction(), probe()
    floor = float((1 / p.periods).mean())
    assert accuracy(planted, p, [replace(layer, [0], by)]) < floor
    assert accuracy(planted, p, [replace(layer, [1], by)]) == 1.0


@pytest.mark.parametrize("n_layers", [1, 2])
def test_the_impostor_copies_from_a_fixed_distance(n_layers):
    planted = hand_models.positional_impostor(n_layers=n_layers)
    fixed = probe((13,))
    assert accuracy(planted, fixed) == 1.0
    varying = tuple(q for q in varying_periods(T, V) if q != 13)
    assert accuracy(planted, probe(varying)) < 0.01
    _, cache = planted.model.run_with_cache(fixed.tokens[:1])
    layer, head = planted.stripes[-1]
    pattern = cache[f"blocks.{layer}.attn.hook_pattern"][0, head]
    for q in range(T):
        assert pattern[q].argmax() == max(q - 12, 0)
        # At the first query the begin key is alone; elsewhere it is s against q others at 0.
        assert pattern[q].max().item() == pytest.approx(math.exp(S) / (math.exp(S) + q), abs=1e-6)


def test_inert_heads_look_everywhere_alike_and_write_nothing():
    planted = hand_models.inert()
    logits, cache = planted.model.run_with_cache(probe(n=4).tokens)
    uniform = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]
    for layer in range(2):
        assert torch.equal(cache[f"blocks.{layer}.attn.hook_pattern"], uniform.expand(4, 2, T, T))
        assert not bool(cache[f"blocks.{layer}.hook_attn_out"].any())
    assert not bool(logits[..., 1:].any())
