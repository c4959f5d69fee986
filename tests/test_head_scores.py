"""Head scores: values by hand on plain patterns and on planted models, and what a score must never do."""

from __future__ import annotations

import copy
import math
import time
import weakref

import numpy as np
import pytest
import torch

from tests import hand_models
from workbench import head_scores, pattern_scores
from workbench.components import Head
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.head_scores import (
    SCORES,
    HeadScores,
    HeadSets,
    duplicate_token,
    impostor_check,
    prefix_matching,
    previous_token,
    score_heads,
    select_sets,
)
from workbench.model.transformer import Transformer
from workbench.probes import Probe, repeated_blocks, varying_periods
from workbench.rng import stream
from workbench.task import Vocabulary

S, G = hand_models.SHARPNESS, hand_models.GAIN
V, T = 24, 32
VARYING = varying_periods(T, V)


def looks_at(*keys: int | list[int]) -> torch.Tensor:
    """A pattern ``[1 1 q k]`` whose row q shares its attention over the given keys."""
    pattern = torch.zeros(1, 1, len(keys), len(keys))
    for q, key in enumerate(keys):
        for k in [key] if isinstance(key, int) else key:
            pattern[0, 0, q, k] += 1 / (1 if isinstance(key, int) else len(key))
    return pattern


def uniform(length: int) -> torch.Tensor:
    return looks_at(*([*range(q + 1)] for q in range(length)))


def small_model(n_symbols: int = 9, n_ctx: int = 14, **options) -> tuple[Transformer, Vocabulary]:
    config = ModelConfig(d_vocab=n_symbols + 1, n_ctx=n_ctx, n_layers=2, n_heads=2, d_model=16, **options)
    model = Transformer(config)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=stream(1, "weights", i)))
    return model, hand_models.vocabulary(n_symbols)


def blocks(vocabulary: Vocabulary, n: int, n_ctx: int, periods=None, name: str = "scores") -> Probe:
    periods = periods or varying_periods(n_ctx, len(vocabulary.ordinary))
    return repeated_blocks(vocabulary, n, n_ctx, periods, stream(0, name))


# --- pattern scores by hand ---------------------------------------------------------------------------------------

ABAB = torch.tensor([[7, 8, 9, 7, 8, 9, 7]])
BEGUN = torch.tensor([[0, 7, 8, 7, 8, 7]])


def test_previous_token_is_the_mean_below_the_diagonal():
    pattern = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.75, 0, 0], [0.1, 0.4, 0.5, 0], [0.3, 0.2, 0.1, 0.4]])[None, None]
    mean, left_out = previous_token(pattern, False)
    assert mean.item() == pytest.approx((0.25 + 0.4 + 0.1) / 3)
    assert left_out.tolist() == [1]
    mean, left_out = previous_token(pattern, True)
    assert mean.item() == pytest.approx((0.4 + 0.1) / 2)
    assert left_out.tolist() == [2]


def test_a_head_on_the_earlier_occurrence_is_duplicate_and_not_prefix():
    duplicate = looks_at(0, 0, 0, 0, 1, 2, [0, 3])
    assert duplicate_token(duplicate, ABAB, False)[0].item() == 1.0
    assert prefix_matching(duplicate, ABAB, False)[0].item() == 0.0
    prefix = looks_at(0, 0, 0, 1, 2, 3, [1, 4])
    assert prefix_matching(prefix, ABAB, False)[0].item() == 1.0
    assert duplicate_token(prefix, ABAB, False)[0].item() == 0.0
    # Queries 0, 1 and 2 have no earlier occurrence.
    assert prefix_matching(prefix, ABAB, False)[1].tolist() == [3]


def test_attention_is_summed_over_all_earlier_occurrences():
    pattern = uniform(7)
    # Queries 3, 4, 5 have one target and query 6 two, among q + 1 keys.
    expected = (1 / 4 + 1 / 5 + 1 / 6 + 2 / 7) / 4
    assert prefix_matching(pattern, ABAB, False)[0].item() == pytest.approx(expected)
    assert duplicate_token(pattern, ABAB, False)[0].item() == pytest.approx(expected)
    assert pattern_scores.chance(pattern_scores.prefix_targets(ABAB, False)).item() == pytest.approx(expected)
    only_latest = looks_at(0, 0, 0, 1, 2, 3, 4)
    assert prefix_matching(only_latest, ABAB, False)[0].item() == 1.0


def test_the_begin_token_counts_in_the_row_and_is_never_a_target():
    resting = looks_at(0, 0, 0, [0, 2], [0, 3], [0, 2, 4])
    assert prefix_matching(resting, BEGUN, True)[0].item() == pytest.approx((1 / 2 + 1 / 2 + 2 / 3) / 3)
    assert prefix_matching(resting, BEGUN, True)[1].tolist() == [3]
    assert previous_token(looks_at(0, 0, 0, 0, 0, 0), True)[0].item() == 0.0
    # Even a begin token that stood twice would not be its own duplicate.
    assert duplicate_token(looks_at(0, 0, 0), torch.tensor([[0, 0, 0]]), True)[0].item() == 0.0
    assert pattern_scores.duplicate_targets(BEGUN, True)[0, :, 0].sum() == 0


def test_without_a_begin_token_the_first_token_counts():
    tokens = torch.tensor([[4, 4, 4]])
    assert duplicate_token(looks_at(0, 0, 0), tokens, False)[0].item() == 1.0
    assert previous_token(looks_at(0, 0, 1), False)[0].item() == 1.0
    assert prefix_matching(looks_at(0, 1, [1, 2]), tokens, False)[0].item() == 1.0


def test_a_sequence_that_repeats_nothing_has_no_score():
    mean, left_out = prefix_matching(uniform(3), torch.tensor([[1, 2, 3]]), False)
    assert math.isnan(mean.item())
    assert left_out.tolist() == [3]


def test_copied_share_and_copying_by_hand():
    # One head, d_head 2, V 3: the value of key 0 raises its own token by 2 and token 2 by 1, against a mean of 1.
    to_logits = torch.tensor([[[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]]])
    value = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, -1.0]], [[0.0, 0.0]]]])
    tokens = torch.tensor([[0, 1, 1, 2]])
    share = pattern_scores.copied_share(value, tokens, to_logits)[0, 0]
    # Key 0: centred (1, -1, 0), all that is raised is its own. Key 1 likewise. Key 2 lowers its own: share 0 of the
    # rest. Key 3 writes nothing.
    assert share.tolist() == pytest.approx([1.0, 1.0, -1 / 2, 0.0])
    half = pattern_scores.copied_share(value[:, :1], torch.tensor([[0]]), torch.tensor([[[3.0, 3.0, 0.0], [0, 0, 0]]]))
    assert half.item() == pytest.approx((1 / 2 - 1 / 3) / (1 - 1 / 3))
    pattern = looks_at(0, [0, 1], [1, 2], 2)
    # Attention that keys get: 1.5, 1, 1.5, 0; behind a begin token only keys 1, 2, 3.
    assert pattern_scores.copying(pattern, share[None, None], False).item() == pytest.approx((1.5 + 1 - 0.75) / 4)
    assert pattern_scores.copying(pattern, share[None, None], True).item() == pytest.approx((1 - 0.75) / 2.5)
    assert pattern_scores.copying(looks_at(0, 0, 0, 0), share[None, None], True).item() == 0.0


def test_a_write_that_raises_all_logits_alike_copies_nothing():
    rounding = 1 + 1e-7 * torch.randn(1, 2, 37, generator=stream(0, "rounding"))
    to_logits = torch.tensor([0.7, 0.3])[None, :, None] * rounding
    value = torch.randn(1, 36, 1, 2, generator=stream(0, "v"))
    logits = value[0, :, 0] @ to_logits[0]
    assert bool((logits - logits.mean(dim=1, keepdim=True)).any())
    assert not bool(pattern_scores.copied_share(value, torch.arange(36)[None], to_logits).any())


def test_copied_share_does_not_depend_on_how_it_is_cut_up(monkeypatch):
    value, to_logits = (
        torch.randn(3, 5, 2, 4, generator=stream(0, "v")),
        torch.randn(2, 4, 11, generator=stream(0, "w")),
    )
    tokens = torch.randint(11, (3, 5), generator=stream(0, "t"))
    whole = pattern_scores.copied_share(value, tokens, to_logits)
    monkeypatch.setattr(pattern_scores, "MAX_LOGITS", 44)
    assert torch.allclose(pattern_scores.copied_share(value, tokens, to_logits), whole, atol=1e-6)


def test_scoring_leaves_the_callers_tensors_byte_identical():
    pattern = torch.rand(2, 3, 6, 6, generator=stream(0, "p")).tril()
    tokens, share = torch.tensor([[0, 1, 2, 1, 2, 1]] * 2), torch.rand(2, 3, 6, generator=stream(0, "s"))
    value, to_logits = torch.rand(2, 6, 3, 4), torch.rand(3, 4, 5)
    given = (pattern, tokens, share, value, to_logits)
    before = [t.clone() for t in given]
    for bos in (False, True):
        previous_token(pattern, bos)
        duplicate_token(pattern, tokens, bos)
        prefix_matching(pattern, tokens, bos)
        pattern_scores.copying(pattern, share, bos)
    pattern_scores.copied_share(value, tokens, to_logits)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


# --- planted models -----------------------------------------------------------------------------------------------


def scores_of(planted, periods=VARYING, n=64) -> HeadScores:
    return score_heads(planted.model, planted.vocabulary, blocks(planted.vocabulary, n, T, periods))


def test_scores_of_the_induction_model_by_hand():
    planted = hand_models.induction()
    p = blocks(planted.vocabulary, 64, T, VARYING)
    scores = scores_of(planted)
    previous, prefix = scores.mean("previous_token_score"), scores.mean("prefix_matching_score")
    q = torch.arange(2, T, dtype=torch.float64)
    assert previous[0, 0] == pytest.approx(float((math.exp(S) / (math.exp(S) + q)).mean()), abs=1e-6)
    # A query with n earlier occurrences: n keys at s, the begin key at s/2, the rest at 0.
    n = torch.stack([pattern_scores.prefix_targets(p.tokens, True).sum(2)[i] for i in range(64)]).double()
    rows = n * math.exp(S) / (n * math.exp(S) + math.exp(S / 2) + torch.arange(T) - n)
    expected = (rows.sum(1) / (n > 0).sum(1)).mean()
    assert prefix[1, 0] == pytest.approx(float(expected), abs=1e-6)
    assert scores.mean("copying_score").tolist() == [[0.0, 0.0], [pytest.approx(1.0, abs=1e-6), 0.0]]
    assert scores.mean("duplicate_token_score")[0, 0] < 1e-6
    assert scores.mean("duplicate_token_score")[1, 0] < 1e-6
    # Inert heads look everywhere alike: exactly chance.
    for name in SCORES:
        for head in planted.previous_token[0]._replace(head=1), Head(1, 1):
            assert scores.mean(name)[head] == pytest.approx(scores.chance[name], abs=1e-6)
    assert scores.chance["previous_token_score"] == pytest.approx(float((1 / (q + 1)).mean()))
    assert scores.left_out["previous_token_score"] == 64 * 2
    assert scores.left_out["prefix_matching_score"] == int((n == 0).sum())
    assert scores.left_out["copying_score"] == 64


def test_the_sets_are_exactly_those_planted():
    for planted in (hand_models.induction(), hand_models.split_induction()):
        assert select_sets(scores_of(planted)) == HeadSets(planted.previous_token, planted.induction)
        rows = impostor_check(planted.model, planted.vocabulary, stream(0, "i"), n=32)
        assert not any(row.flagged for row in rows)
    for planted in (hand_models.positional_impostor(), hand_models.inert()):
        assert select_sets(scores_of(planted)) == HeadSets((), ())


@pytest.mark.parametrize("n_layers", [1, 2])
def test_a_stripe_passes_on_its_period_is_flagged_and_not_selected(n_layers):
    planted = hand_models.positional_impostor(n_layers=n_layers)
    fixed = scores_of(planted, (13,)).mean("prefix_matching_score")
    varying = scores_of(planted, tuple(p for p in VARYING if p != 13)).mean("prefix_matching_score")
    for stripe in planted.stripes:
        assert fixed[stripe] == pytest.approx(1.0, abs=1e-6)
        assert varying[stripe] < 1e-6
    rows = impostor_check(planted.model, planted.vocabulary, stream(0, "i"), n=32)
    assert tuple(row.head for row in rows if row.flagged) == planted.stripes
    assert select_sets(scores_of(planted)).s1 == ()
    for row in rows:
        assert row.fixed_period == 13
        assert row.periods == tuple(p for p in VARYING if p != 13)
        if not row.flagged:
            assert (row.fixed_ratio, row.varying_ratio) == pytest.approx((1.0, 1.0), abs=1e-5)


def test_the_runs_own_period_decides_who_is_an_impostor():
    planted = hand_models.positional_impostor(period=16)
    rows = impostor_check(planted.model, planted.vocabulary, stream(0, "i"), n=32, fixed_period=16)
    assert tuple(row.head for row in rows if row.flagged) == planted.stripes
    assert 8 not in rows[0].periods
    assert not any(r.flagged for r in impostor_check(planted.model, planted.vocabulary, stream(0, "i"), n=32))
    with pytest.raises(WorkbenchError, match="no period tells"):
        impostor_check(*small_model(n_symbols=4, n_ctx=9), stream(0, "i"), fixed_period=1)


# --- the stream ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["rotary", "alibi", "learned"])
def test_a_batch_equals_singles_whatever_the_chunks(positions):
    model, vocabulary = small_model(positions=positions)
    probe = blocks(vocabulary, 7, 14)
    whole = score_heads(model, vocabulary, probe)
    singles = [
        score_heads(
            model,
            vocabulary,
            Probe(probe.tokens[i : i + 1], probe.mask[i : i + 1], probe.bos, probe.periods[i : i + 1]),
        )
        for i in range(7)
    ]
    chunked = [score_heads(model, vocabulary, probe, chunk_tokens=size) for size in (1, 40, 10_000)]
    for name in SCORES:
        assert whole.per_sequence[name].shape == (7, 2, 2)
        alone = np.concatenate([s.per_sequence[name] for s in singles])
        for other in (alone, *(c.per_sequence[name] for c in chunked)):
            np.testing.assert_allclose(other, whole.per_sequence[name], atol=1e-6)
        assert sum(s.left_out[name] for s in singles) == whole.left_out[name]
        assert np.mean([s.chance[name] for s in singles]) == pytest.approx(whole.chance[name])


def test_scores_equal_those_of_cached_patterns():
    model, vocabulary = small_model(norm="pre")
    probe = blocks(vocabulary, 5, 14)
    scores = score_heads(model, vocabulary, probe, chunk_tokens=28)
    _, cache = model.run_with_cache(probe.tokens)
    for layer in range(2):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"]
        for name, mean in (
            ("previous_token_score", previous_token(pattern, True)[0]),
            ("duplicate_token_score", duplicate_token(pattern, probe.tokens, True)[0]),
            ("prefix_matching_score", prefix_matching(pattern, probe.tokens, True)[0]),
        ):
            np.testing.assert_allclose(scores.per_sequence[name][:, layer], mean.detach().numpy(), atol=1e-6)


def test_the_value_bias_is_no_part_of_copying():
    model, vocabulary = small_model()
    probe = blocks(vocabulary, 4, 14)
    before = score_heads(model, vocabulary, probe).per_sequence["copying_score"][:, 0]
    with torch.no_grad():
        model.blocks[0].attn.b_V += 3.0
    after = score_heads(model, vocabulary, probe).per_sequence["copying_score"][:, 0]
    np.testing.assert_allclose(after, before, atol=1e-5)


def test_never_more_than_one_pattern_of_one_chunk_is_alive():
    model, vocabulary = small_model()
    seen, alive = [], []

    def watch(module, inputs, pattern):
        seen.append(weakref.ref(pattern))
        alive.append([ref().shape[0] for ref in seen if ref() is not None])

    handles = [block.attn.hook_pattern.register_forward_hook(watch) for block in model.blocks]
    score_heads(model, vocabulary, blocks(vocabulary, 12, 14), chunk_tokens=3 * 14)
    for handle in handles:
        handle.remove()
    assert alive == [[3]] * 8


def test_scoring_changes_neither_model_nor_probe_and_leaves_no_hook():
    model, vocabulary = small_model()
    probe, weights = blocks(vocabulary, 6, 14), copy.deepcopy(model.state_dict())
    tokens, logits = probe.tokens.clone(), model(probe.tokens, path="explicit")
    first = score_heads(model, vocabulary, probe)
    again = score_heads(model, vocabulary, probe)
    assert all(np.array_equal(first.per_sequence[n], again.per_sequence[n]) for n in SCORES)
    assert torch.equal(probe.tokens, tokens)
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert not any(point._forward_hooks for point in model.hook_dict.values())
    assert torch.equal(model(probe.tokens, path="explicit"), logits)


def test_uniform_attention_scores_chance():
    model, vocabulary = small_model(attention="uniform")
    scores = score_heads(model, vocabulary, blocks(vocabulary, 6, 14))
    for name in SCORES[:3]:
        np.testing.assert_allclose(scores.mean(name), scores.chance[name], atol=1e-6)


def test_bfloat16_models_are_scored_in_float32():
    model, vocabulary = small_model()
    probe = blocks(vocabulary, 6, 14)
    exact, rounded = score_heads(model, vocabulary, probe), score_heads(model.bfloat16(), vocabulary, probe)
    for name in SCORES:
        np.testing.assert_allclose(rounded.mean(name), exact.mean(name), atol=0.05)


# --- what may be given --------------------------------------------------------------------------------------------


def test_a_probe_as_long_as_the_context_is_scored_and_one_more_is_refused():
    model, vocabulary = small_model(n_ctx=14)
    score_heads(model, vocabulary, blocks(vocabulary, 2, 14))
    with pytest.raises(WorkbenchError, match=r"at most 14 tokens, got 15"):
        score_heads(model, vocabulary, blocks(vocabulary, 2, 15))


def test_a_small_vocabulary_suffices():
    model, vocabulary = small_model(n_symbols=5, n_ctx=9)
    scores = score_heads(model, vocabulary, blocks(vocabulary, 4, 9))
    assert all(np.isfinite(scores.mean(name)).all() for name in SCORES)
    assert len(impostor_check(model, vocabulary, stream(0, "i"), n=4)) == 4


def test_without_a_begin_token_no_token_is_lost():
    vocabulary = Vocabulary(tuple(f"t{i}" for i in range(10)))
    model, _ = small_model()
    probe = blocks(vocabulary, 4, 14)
    scores = score_heads(model, vocabulary, probe)
    assert scores.left_out == {
        "previous_token_score": 4,
        "duplicate_token_score": int(probe.periods.sum()),
        "prefix_matching_score": int(probe.periods.sum()),
        "copying_score": 0,
    }


def test_the_begin_token_stands_exactly_once():
    model, vocabulary = small_model()
    good = blocks(vocabulary, 3, 14)
    twice, absent = good.tokens.clone(), good.tokens.clone()
    twice[1, 1] = 0
    absent[:, 0] = 5
    for tokens, got in ((twice, "3 of 3 sequences begin with it, 4 in all"), (absent, "0 of 3")):
        with pytest.raises(WorkbenchError, match=got):
            score_heads(model, vocabulary, Probe(tokens, good.mask, True, good.periods))
    with pytest.raises(WorkbenchError, match="differ over the begin token"):
        score_heads(model, vocabulary, Probe(good.tokens, good.mask, False, good.periods))


def test_padding_and_probes_that_repeat_nothing_are_refused():
    model, vocabulary = small_model()
    good = blocks(vocabulary, 3, 14)
    mask = good.mask.clone()
    mask[0, -1] = False
    with pytest.raises(WorkbenchError, match="padded"):
        score_heads(model, vocabulary, Probe(good.tokens, mask, True, good.periods))
    distinct = torch.arange(6)[None]
    with pytest.raises(WorkbenchError, match="sequences that repeat a token, got 1 that do not"):
        score_heads(model, vocabulary, Probe(distinct, distinct >= 0, True, torch.tensor([5])))


# --- the table and the sets ---------------------------------------------------------------------------------------


def table(prefix, previous, chance=0.1) -> HeadScores:
    values = {"prefix_matching_score": np.array([prefix] * 4), "previous_token_score": np.array([previous] * 4)}
    return HeadScores(values, dict.fromkeys(values, chance), dict.fromkeys(values, 0), 10)


def test_set_selection_thresholds_and_layers():
    # Chance .125: S1 from .375, S0 from .25, each included at the threshold itself; S0 only below S1's highest layer.
    scores = table(
        [[0.375, 0.1], [0.1, 0.374], [0.5, 0.1], [0.1, 0.1]], [[0.25, 0.249], [0.9, 0.1], [0.9, 0.9], [0.9, 0.1]], 0.125
    )
    sets = select_sets(scores)
    assert sets.s1 == (Head(0, 0), Head(2, 0))
    assert sets.s0 == (Head(0, 0), Head(1, 0))
    assert select_sets(table([[0.1], [0.1]], [[0.9], [0.9]])) == HeadSets((), ())


def test_the_frame_and_its_intervals():
    model, vocabulary = small_model()
    scores = score_heads(model, vocabulary, blocks(vocabulary, 30, 14))
    frame = scores.frame()
    assert list(frame.columns) == ["head", "score", "value", "low", "high", "chance"]
    assert len(frame) == 4 * 4
    assert set(frame["head"]) == {"L0.H0", "L0.H1", "L1.H0", "L1.H1"}
    assert (frame["low"] < frame["value"]).all()
    assert (frame["value"] < frame["high"]).all()
    row = frame[(frame["head"] == "L1.H0") & (frame["score"] == "prefix_matching_score")].iloc[0]
    values = scores.per_sequence["prefix_matching_score"][:, 1, 0]
    error = values.std(ddof=1) / math.sqrt(30)
    assert row["value"] == pytest.approx(values.mean())
    assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * error, rel=0.2)
    assert row["chance"] == scores.chance["prefix_matching_score"]
    with pytest.raises(WorkbenchError, match="prefix_matching_score"):
        scores.mean("prefix_matching")


def test_a_saturated_score_has_an_interval_of_some_width():
    planted = hand_models.split_induction(sharpness=60.0)
    low, high = scores_of(planted).interval("prefix_matching_score")
    assert high[1, 0] == pytest.approx(1.0)
    assert low[1, 0] == pytest.approx(0.025 ** (1 / 64), abs=1e-6)


def test_scoring_the_default_shape_is_fast():
    vocabulary = hand_models.vocabulary(64)
    model = Transformer(ModelConfig(d_vocab=65, n_ctx=48, d_head=32))
    probe = repeated_blocks(vocabulary, 256, 48, varying_periods(48, 64), stream(0, "fast"))
    start = time.process_time()
    score_heads(model, vocabulary, probe)
    assert time.process_time() - start < 2.0


def test_the_ratios_are_those_of_the_definitions():
    assert (head_scores.INDUCTION_RATIO, head_scores.PREVIOUS_RATIO, head_scores.IMPOSTOR_RATIO) == (3, 2, 1.5)
