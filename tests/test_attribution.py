"""Direct logit attribution and the logit lens: against the model step by step, paper values, and their checks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests import hand_models
from tests.small_models import D_VOCAB, hooks_left, model, seeds, shapes, subject
from workbench.attribution import TOLERANCE, LogitAttribution, direct_logit_attribution, logit_lens
from workbench.components import Head
from workbench.errors import WorkbenchError
from workbench.hooks import Edit, intervene
from workbench.metrics import logit_difference, sequence_accuracy, sequence_loss
from workbench.task import IGNORE, Batch

POST = {"norm": "post", "positions": "learned", "d_mlp": 12, "attention": "learned"}
PRE = {**POST, "norm": "pre"}
BARE = {"norm": "none", "positions": "none", "d_mlp": 0, "attention": "learned"}


def other_answers(batch: Batch) -> torch.Tensor:
    return torch.where(batch.scored, (batch.targets + 1) % D_VOCAB, IGNORE)


def by_sequence(values: torch.Tensor, batch: Batch) -> np.ndarray:
    """Means over scored positions, one sequence after the other."""
    return np.array([row[where].mean().item() for row, where in zip(values, batch.scored, strict=True)])


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return np.abs(a - b).max() <= 1e-5 * max(1.0, np.abs(b).max())


@torch.no_grad()
def step_by_step(made, batch: Batch, value) -> dict[str, np.ndarray]:
    """Each written tensor through the frozen norm and the whole unembedding, ``value`` picks from logits."""
    logits, cache = made.run_with_cache(batch.tokens, batch.mask)
    written = {"embed": cache["hook_embed"]}
    if "hook_pos_embed" in cache:
        written["pos_embed"] = cache["hook_pos_embed"]
    for layer, block in enumerate(made.blocks):
        stream = cache["resid_pre", layer]
        x = stream if block.ln1 is None else block.ln1(stream)
        for head in range(made.config.n_heads):
            moved = cache["pattern", layer][:, head] @ (x @ block.attn.W_V[head])
            written[f"L{layer}.H{head}"] = moved @ block.attn.W_O[head]
        shared = sum(block.attn.b_V[h] @ block.attn.W_O[h] for h in range(made.config.n_heads))
        written[f"L{layer}.b_V"] = shared.expand_as(x)
        written[f"L{layer}.b_O"] = block.attn.b_O.expand_as(x)
        if block.mlp is not None:
            written[f"L{layer}.mlp"] = cache["mlp_out", layer]
    through = {}
    for name, t in written.items():
        if made.ln_final is not None:
            t = (t - t.mean(-1, keepdim=True)) / cache["ln_final.hook_scale"] * made.ln_final.w
        through[name] = value(t @ made.unembed.W_U)
    if made.ln_final is not None:
        through["ln_final.b"] = value((made.ln_final.b @ made.unembed.W_U).expand_as(logits))
    return {name: by_sequence(v, batch) for name, v in (through | {"sum": value(logits)}).items()}


@given(shapes.filter(lambda shape: shape["norm"] != "post"), seeds)
@settings(max_examples=25, deadline=None)
def test_every_term_equals_the_model_step_by_step_and_they_add_up(shape, seed) -> None:
    made = subject(shape, seed)
    batch = made.sample(3, "test")
    answer, other = batch.targets.clamp(min=0), other_answers(batch)
    ways = {
        "centred": ({}, lambda logits: logits.gather(2, answer[..., None])[..., 0] - logits.mean(-1)),
        "as is": ({"centred": False}, lambda logits: logits.gather(2, answer[..., None])[..., 0]),
        "difference": ({"incorrect": other}, lambda logits: logit_difference(logits, answer, other.clamp(min=0))),
    }
    quantities = set()
    for options, value in ways.values():
        got = direct_logit_attribution(made.model, batch, **options)
        expected = step_by_step(made.model, batch, value)
        assert [*got.terms, "sum"] == list(expected)
        for name in got.terms:
            assert close(got.of(name), expected[name]), name
        assert close(got.total, expected["sum"])
        assert close(got.values.sum(axis=1), got.total)
        assert 0 <= got.deviation <= 1e-12
        quantities.add(got.quantity)
    assert len(quantities) == 3


@given(shapes, seeds)
@settings(max_examples=25, deadline=None)
def test_the_lens_is_the_end_of_the_model_applied_early(shape, seed) -> None:
    made = subject(shape, seed)
    batch = made.sample(3, "test")
    n_layers, transformer = made.config.n_layers, made.model
    lens = logit_lens(transformer, batch)
    with torch.no_grad():
        logits, cache = transformer.run_with_cache(batch.tokens, batch.mask)
        stops = {"embed": cache["resid_pre", 0]}
        for layer in range(n_layers):
            if made.config.d_mlp:
                stops[f"L{layer}.mid"] = cache["resid_mid", layer]
            stops[f"L{layer}"] = cache["resid_post", layer]
        assert lens.stops == tuple(stops)
        for index, stream in enumerate(stops.values()):
            read = transformer(stream, batch.mask, start_at_layer=n_layers)
            assert close(lens.accuracy[:, index], sequence_accuracy(read, batch).numpy())
            assert close(lens.log_prob[:, index], -sequence_loss(read, batch, "scored").numpy())
    # The last row is the model itself.
    assert close(lens.log_prob[:, -1], -sequence_loss(logits, batch, "scored").numpy())
    assert 0 <= lens.deviation <= 1e-12
    step = 0.5 if made.config.d_mlp else 1.0
    assert lens.depth == tuple(np.arange(0, n_layers + step, step))


@given(seeds)
@settings(max_examples=5, deadline=None)
def test_the_frozen_scale_is_the_clean_one_of_the_end(seed) -> None:
    made = subject(PRE, seed)
    batch = made.sample(3, "test")
    own, frozen = (logit_lens(made.model, batch, scale=scale) for scale in ("own", "final"))
    norm = made.model.ln_final
    with torch.no_grad():
        _, cache = made.model.run_with_cache(batch.tokens, batch.mask)
        stream = cache["resid_post", 0]
        normed = (stream - stream.mean(-1, keepdim=True)) / cache["ln_final.hook_scale"] * norm.w + norm.b
        loss = sequence_loss(normed @ made.model.unembed.W_U, batch, "scored")
    at = own.stops.index("L0")
    assert close(frozen.log_prob[:, at], -loss.numpy())
    assert np.abs(frozen.log_prob - own.log_prob)[:, at].min() > 1e-4
    assert close(frozen.log_prob[:, -1], own.log_prob[:, -1])


def test_the_value_bias_stands_apart_and_a_head_without_attention_to_give_writes_nothing() -> None:
    """One token: the pattern is 1 on it. With W_V at 0 a head moves nothing, and its whole write is the bias's."""
    made = model(BARE)
    with torch.no_grad():
        made.blocks[1].attn.W_V.zero_()
    tokens = torch.tensor([[3]])
    batch = Batch(tokens, tokens > 0, torch.tensor([[2]]), tokens > 0)
    got = direct_logit_attribution(made, batch, centred=False)
    with torch.no_grad():
        attn = made.blocks[1].attn
        by_hand = sum(float(attn.b_V[h] @ attn.W_O[h] @ made.unembed.W_U[:, 2]) for h in range(2))
    assert got.of("L1.H0")[0] == got.of(Head(1, 1))[0] == 0
    assert got.of("L1.b_V")[0] == pytest.approx(by_hand, abs=1e-6)
    assert abs(by_hand) > 0.01


def test_paper_values_on_the_planted_induction_model() -> None:
    """Sequence begin, 5, 7, 9, 5, then 7: L1.H0 writes gain x its attention on the key after the first 5."""
    s, gain = hand_models.SHARPNESS, hand_models.GAIN
    planted = hand_models.induction()
    tokens = torch.tensor([[0, 5, 7, 9, 5]])
    targets = torch.tensor([[IGNORE, IGNORE, IGNORE, IGNORE, 7]])
    batch = Batch(tokens, tokens >= 0, targets, targets >= 0)
    room = math.exp(s) + math.exp(s / 2) + 3
    seven, rest = gain * math.exp(s) / room, gain / room
    # Position 2 holds the 7 that is looked at; the two 5s and the 9 get weight 1 each, the begin token writes nothing.
    wrong = torch.where(batch.scored, 5, IGNORE)
    difference = direct_logit_attribution(planted.model, batch, incorrect=wrong)
    assert difference.of(Head(1, 0))[0] == pytest.approx(seven - 2 * rest, abs=1e-6)
    assert difference.total[0] == pytest.approx(seven - 2 * rest, abs=1e-6)
    assert {name for name in difference.terms if difference.of(name)[0] != 0} == {"L1.H0"}
    centred = direct_logit_attribution(planted.model, batch)
    assert centred.of("pos_embed")[0] == pytest.approx(gain / 25, abs=1e-6)  # -gain on the begin token's logit alone
    assert centred.of("L1.H0")[0] == pytest.approx(seven - (seven + 3 * rest) / 25, abs=1e-6)
    lens = logit_lens(planted.model, batch)
    assert lens.stops == ("embed", "L0", "L1")
    assert lens.accuracy[0].tolist() == [0.0, 0.0, 1.0]
    assert lens.log_prob[0, :2] == pytest.approx([-math.log(24 + math.exp(-gain))] * 2, abs=1e-6)
    log_sum = math.log(math.exp(seven) + math.exp(2 * rest) + math.exp(rest) + 21 + math.exp(-gain))
    assert lens.log_prob[0, 2] == pytest.approx(seven - log_sum, abs=1e-6)


def test_shared_work_is_attributed_to_each_head_by_half() -> None:
    """Two induction heads alike: each has the same attribution, together they are the logit difference."""
    planted = hand_models.split_induction()
    tokens = torch.tensor([[0, 5, 7, 9, 5]])
    targets = torch.tensor([[IGNORE, IGNORE, IGNORE, IGNORE, 7]])
    batch = Batch(tokens, tokens >= 0, targets, targets >= 0)
    got = direct_logit_attribution(planted.model, batch, incorrect=torch.where(batch.scored, 9, IGNORE))
    assert got.of("L1.H0")[0] == got.of("L1.H1")[0] == pytest.approx(got.total[0] / 2, abs=1e-9)
    assert got.of("L0.H0")[0] == 0


@pytest.mark.parametrize("shape", [PRE, BARE], ids=["pre", "none"])
def test_a_batch_equals_its_sequences_and_chunks_change_nothing(shape) -> None:
    made = subject(shape)
    batch = made.sample(5, "test")
    whole, lens = direct_logit_attribution(made.model, batch), logit_lens(made.model, batch)
    for chunk in (1, 2):
        parts = direct_logit_attribution(made.model, batch, incorrect=other_answers(batch), chunk=chunk)
        together = direct_logit_attribution(made.model, batch, incorrect=other_answers(batch))
        assert np.allclose(parts.values, together.values, rtol=0, atol=1e-12)
        assert np.allclose(logit_lens(made.model, batch, chunk=chunk).log_prob, lens.log_prob, rtol=0, atol=1e-12)
    for i in range(5):
        alone = direct_logit_attribution(made.model, batch[i : i + 1])
        assert np.allclose(alone.values[0], whole.values[i], rtol=0, atol=1e-12)


def test_nothing_is_changed_and_every_reading_reflects_the_weights_now() -> None:
    made = subject(PRE)
    batch = made.sample(4, "test")
    held = [t.clone() for t in (batch.tokens, batch.mask, batch.targets, batch.scored)]
    weights = {name: w.clone() for name, w in made.model.state_dict().items()}
    before, lens = direct_logit_attribution(made.model, batch), logit_lens(made.model, batch)
    assert all(map(torch.equal, held, (batch.tokens, batch.mask, batch.targets, batch.scored)))
    now = made.model.state_dict()
    assert all(torch.equal(now[name], w) and now[name].dtype == torch.float32 for name, w in weights.items())
    assert hooks_left(made.model) == 0
    with torch.no_grad():
        made.model.blocks[1].attn.W_O[0] *= 2
    after = direct_logit_attribution(made.model, batch, centred=False)
    assert not np.allclose(before.of("L1.H0"), after.of("L1.H0"))
    assert not np.allclose(lens.log_prob[:, -1], logit_lens(made.model, batch).log_prob[:, -1])


def test_a_sum_that_misses_the_logits_is_an_error_and_leaves_no_hook() -> None:
    made = subject(PRE)
    batch = made.sample(4, "test")
    unlisted = Edit("blocks.0.hook_resid_post", lambda x: x + torch.linspace(0, 1, x.shape[-1]), "an unlisted write")
    with intervene(made.model, [unlisted]), pytest.raises(WorkbenchError, match="do not add up") as error:
        direct_logit_attribution(made.model, batch)
    assert error.value.expected == f"a deviation of at most {TOLERANCE:g}"
    other_end = Edit("ln_final.hook_normalized", lambda x: x * 1.001, "another final norm")
    with intervene(made.model, [other_end]), pytest.raises(WorkbenchError, match="does not end in the model's own"):
        logit_lens(made.model, batch)
    broken = Edit("blocks.0.attn.hook_z", lambda z: z * torch.nan, "not a number")
    with intervene(made.model, [broken]), pytest.raises(WorkbenchError, match="got nan"):
        direct_logit_attribution(made.model, batch)
    assert hooks_left(made.model) == 0
    assert direct_logit_attribution(made.model, batch).deviation <= 1e-12


def test_within_a_scope_the_changed_pass_is_taken_apart() -> None:
    """A head whose z is 0 gives back its share of b_V: together with that share it writes nothing."""
    made = subject({**PRE, "d_mlp": 0})
    batch = made.sample(4, "test")
    gone = Edit("blocks.1.attn.hook_z", torch.zeros_like, "zero")
    with intervene(made.model, [gone]):
        got = direct_logit_attribution(made.model, batch)
    assert np.allclose(got.of("L1.H0") + got.of("L1.H1"), -got.of("L1.b_V"), rtol=0, atol=1e-12)


def test_bad_input_is_one_clear_error() -> None:
    made = subject(PRE)
    batch = made.sample(4, "test")
    with pytest.raises(WorkbenchError, match="not applicable to a post-norm model"):
        direct_logit_attribution(model(POST), batch)
    with pytest.raises(WorkbenchError, match="Did you mean final"):
        logit_lens(made.model, batch, scale="finale")
    unlabelled = replace(batch, targets=torch.full_like(batch.targets, IGNORE))
    for read in (direct_logit_attribution, logit_lens):
        with pytest.raises(WorkbenchError, match="a chunk cannot be used"):
            read(made.model, batch, chunk=0)
        with pytest.raises(WorkbenchError, match="the targets leave a scored position without an answer"):
            read(made.model, unlabelled)
        with pytest.raises(WorkbenchError, match="nothing is scored"):
            read(made.model, replace(batch, scored=batch.scored & False))
        with pytest.raises(WorkbenchError, match="nothing is scored"):
            read(made.model, batch[:0])
    with pytest.raises(WorkbenchError, match="the incorrect answers leave"):
        direct_logit_attribution(made.model, batch, incorrect=unlabelled.targets)
    with pytest.raises(WorkbenchError, match="do not fit the batch"):
        direct_logit_attribution(made.model, batch, incorrect=other_answers(batch)[:2])
    with pytest.raises(WorkbenchError, match=r"Did you mean L1\.H1"):
        direct_logit_attribution(made.model, batch).of("L1.H11")


def test_the_frame_has_a_row_a_term_and_one_for_the_sum() -> None:
    values = np.array([[1.0, 2.0], [3.0, 2.5], [2.0, 4.5]])
    frame = LogitAttribution("x", ("embed", "L0.H0"), values, values.sum(axis=1), 0.0).frame()
    assert frame["term"].tolist() == ["embed", "L0.H0", "sum"]
    assert frame["value"].tolist() == [2.0, 3.0, 5.0]
    assert (frame["low"] <= frame["value"]).all()
    assert (frame["value"] <= frame["high"]).all()
    assert set(frame["n"]) == {3}
