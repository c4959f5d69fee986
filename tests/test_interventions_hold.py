"""What holds of every intervention, whatever its kind, parts, places and modes, on random models of every shape."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import small_models as small
from tests.drawn_interventions import Drawn, N, batch_of, each
from tests.small_models import hooks_left
from workbench.ablation import Intervention, Joint, KeepOnly, Mean, Resample, Zero
from workbench.checks import deviation
from workbench.components import Head, Mlp, all_parts, expand
from workbench.cut_path import CutPath
from workbench.errors import WorkbenchError
from workbench.hooks import Edit, capture, capture_gradients, intervene
from workbench.interventions import from_json
from workbench.measure import Effect, measure, run
from workbench.metrics import row_scores
from workbench.reference import Pairing, build_reference
from workbench.restart import evaluate
from workbench.subject import Subject
from workbench.task import Batch

PRE = {"norm": "pre", "positions": "learned", "d_mlp": 12}
Z = "blocks.1.attn.hook_z"


def effect_of(s: Subject, batch: Batch, value: Intervention, **options: object) -> Effect:
    return measure(s, batch, [value], **options)[0]


def close(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-5) -> bool:
    """Alike in all but accuracy, which rounding may tip where two logits are equal."""
    return bool(np.abs(a[1:] - b[1:]).max() <= tolerance * max(1.0, np.abs(b[1:]).max()))


@each(40)
def test_restart_and_hooks_agree_and_every_effect_says_how_often_it_fired(d: Drawn) -> None:
    wrong = (d.batch.targets + 1) % small.D_VOCAB
    effect, done = effect_of(d.subject, d.batch, d.value, incorrect=wrong), run(d.subject.model, d.batch, d.value)
    hooked = row_scores(done.logits[d.batch.scored], d.batch, wrong).double().numpy()
    assert close(effect.ablated, hooked), d.value
    assert done.expected == (N if d.changes else 0)
    assert (effect.fired, effect.expected) == (done.fired, done.expected) == (done.expected, done.expected)
    assert set(effect.frame()["fired"]) == {f"{done.fired}/{done.expected}"}
    clean = run(d.subject.model, d.batch)
    assert close(effect.clean, row_scores(clean.logits[d.batch.scored], d.batch, wrong).double().numpy())
    assert torch.equal(done.logits, clean.logits) == (not d.changes) or deviation(done.logits, clean.logits) < 1e-6


@each(15, padded=True)
def test_on_padding_nothing_fires(d: Drawn) -> None:
    """A sequence that is padding at the places counts as not fired, on both ways; nowhere at all is an error."""
    real = torch.ones(N, dtype=torch.bool)
    for member in d.value.members if isinstance(d.value, Joint) else (d.value,):
        at = getattr(member, "at", ())
        if at and at not in (("here",), ("last",)):
            places = [d.batch.positions[p] if isinstance(p, str) else torch.full((N,), p) for p in at]
            real &= torch.stack([d.batch.mask[torch.arange(N), p] for p in places]).any(0)
    if d.changes and not real.any():
        for way in (lambda: effect_of(d.subject, d.batch, d.value), lambda: run(d.subject.model, d.batch, d.value)):
            with pytest.raises(WorkbenchError, match="never took place"):
                way()
        return
    fired = int(real.sum()) if d.changes else 0
    assert effect_of(d.subject, d.batch, d.value).fired == run(d.subject.model, d.batch, d.value).fired == fired


def test_an_intervention_at_padding_alone_is_an_error_on_both_ways() -> None:
    s = small.subject(PRE)
    batch = s.sample(20, "test")
    short = batch[batch.mask.sum(1) < 5]
    for value in (Zero("L0.H0", at=5), Zero("L0.mlp", at=5, frozen_patterns=True)):
        for way in (lambda v: effect_of(s, short, v), lambda v: run(s.model, short, v)):
            with pytest.raises(WorkbenchError, match=r"never took place: Zero.*a real position"):
                way(value)
    some = int(batch.mask[:, 4].sum())
    assert 0 < some < 20
    assert effect_of(s, batch, Zero("L0.H0", at=4)).fired == run(s.model, batch, Zero("L0.H0", at=4)).fired == some


@each(15)
def test_a_batch_equals_its_sequences(d: Drawn) -> None:
    whole, singly = effect_of(d.subject, d.batch, d.value), effect_of(d.subject, d.batch, d.value, chunk=1)
    assert close(singly.ablated, whole.ablated, 2e-6)
    logits = run(d.subject.model, d.batch, d.value).logits
    assert deviation(run(d.subject.model, d.batch, d.value, chunk=1).logits, logits) < 1e-6


@each(8, resample=False)
def test_a_sequence_alone_has_the_effect_it_has_in_a_batch(d: Drawn) -> None:
    whole = effect_of(d.subject, d.batch, d.value)
    for i in range(N):
        alone = effect_of(d.subject, d.batch[i : i + 1], d.value)
        assert close(alone.ablated, whole.ablated[:, i : i + 1], 2e-6)


@each(12, padded=True)
def test_padding_leaks_into_nothing(d: Drawn) -> None:
    """Each sequence alone and without its padding; then with the padding in front of it (positions by name only)."""
    if any(isinstance(p, int) for p in _places(d.value)):
        return
    effect = effect_of(d.subject, d.batch, d.value)
    for i in range(N):
        real = int(d.batch.mask[i].sum())
        alone = effect_of(d.subject, _part(d.batch, i, slice(0, real), 0), d.value)
        assert close(alone.ablated, effect.ablated[:, i : i + 1], 2e-6)
        tokens = _part(d.batch, i, slice(None), small.N_CTX - real)
        moved = Batch(
            *(t.roll(small.N_CTX - real, 1) for t in (tokens.tokens, tokens.mask, tokens.targets, tokens.scored)),
            tokens.positions,
        )
        in_front = effect_of(d.subject, moved, d.value)
        assert close(in_front.ablated, effect.ablated[:, i : i + 1], 2e-6)


def _places(value: Intervention) -> list[object]:
    members = value.members if isinstance(value, Joint) else (value,)
    return [place for member in members for place in getattr(member, "at", ())]


def _part(batch: Batch, i: int, where: slice, shift: int) -> Batch:
    """One sequence, some of its positions, its names moved by ``shift``."""
    parts = [t[i : i + 1, where] for t in (batch.tokens, batch.mask, batch.targets, batch.scored)]
    return Batch(*parts, {name: at[i : i + 1] + shift for name, at in batch.positions.items()})


@each(10, padded=True)
def test_padded_keys_get_no_attention_under_any_intervention(d: Drawn) -> None:
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(2)]
    seen: list[torch.Tensor] = []
    looks = [Edit(name, lambda x: seen.append(x.clone()) or x, "look") for name in names]
    with intervene(d.subject.model, looks):
        try:
            run(d.subject.model, d.batch, d.value)
        except WorkbenchError as error:
            assert "never took place" in str(error)  # noqa: PT017
    for pattern in seen:
        real = d.batch.mask[:, None, :, None] & ~d.batch.mask[:, None, None, :]
        assert not pattern[real.expand_as(pattern)].any()


@settings(max_examples=12, deadline=None)
@given(small.shapes, small.seeds, st.data())
def test_zero_a_part_is_zero_the_weights_that_write_it(shape, seed, data) -> None:
    s = small.subject(shape, seed)
    batch = s.sample(3, "test")
    names = [*map(str, all_parts(s.config)), "L0", "L1"]
    parts = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    zeroed = small.model(shape, seed)
    with torch.no_grad():
        for part in expand(Zero(parts).parts, s.config):
            if isinstance(part, Mlp):
                zeroed.blocks[part.layer].mlp.W_out.zero_()
                zeroed.blocks[part.layer].mlp.b_out.zero_()
            else:
                zeroed.blocks[part.layer].attn.W_O[part.head] = 0
        expected = zeroed(batch.tokens, batch.mask, path="explicit")
    assert deviation(run(s.model, batch, Zero(parts)).logits, expected) < 1e-6
    scores = row_scores(expected[batch.scored], batch).double().numpy()
    assert close(effect_of(s, batch, Zero(parts)).ablated, scores, 2e-6)


@settings(max_examples=12, deadline=None)
@given(small.shapes, small.seeds, st.booleans())
def test_what_replaces_nothing_is_the_clean_pass_bitwise_within_its_path(shape, seed, frozen) -> None:
    s = small.subject(shape, seed, padded=False)
    batch, reference = s.sample(N, "test"), build_reference(s, size=8)
    modes = {"frozen_patterns": frozen, "frozen_norm": frozen and s.config.norm == "pre"}
    clean = run(s.model, batch).logits
    for by in (Zero(()), Mean((), reference), Resample((), Pairing(N))):
        for parts, among in ((s.heads, "heads"), (all_parts(s.config), "parts")):
            value = KeepOnly(parts, by, among=among, **modes)
            assert torch.equal(run(s.model, batch, value).logits, clean)
            # Beside one that begins in the first layer, so that the two share a walk.
            kept = measure(s, batch, [Zero("L0.H0"), value])[1]
            assert np.array_equal(kept.clean, kept.ablated)
    for nothing in (Zero((), **modes), Mean((), reference, **modes), Zero((), at=0, **modes)):
        for way in (lambda v: effect_of(s, batch, v), lambda v: run(s.model, batch, v)):
            with pytest.raises(WorkbenchError, match="replaces nothing"):
                way(nothing)


@each(15)
def test_after_an_exception_no_hook_is_left_and_the_next_pass_is_clean(d: Drawn) -> None:
    model = d.subject.model
    point = d.data.draw(st.sampled_from(("blocks.0.hook_attn_out", Z, "blocks.1.hook_resid_post")))
    clean = run(model, d.batch).logits
    with pytest.raises(ZeroDivisionError), intervene(model, [Edit(point, _fail, "fail")]):
        run(model, d.batch, d.value)
    assert hooks_left(model) == 0
    assert torch.equal(run(model, d.batch).logits, clean)


def _fail(x: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError


@each(12, frozen=False)
def test_a_scope_around_an_intervention_keeps_its_own_hooks(d: Drawn) -> None:
    """Within a scope that silences a head, the intervention runs on the silenced model; the scope outlives it."""
    model, head = d.subject.model, d.data.draw(st.integers(0, 1))

    def silence(z: torch.Tensor) -> torch.Tensor:
        return z.index_fill(2, torch.tensor([head]), 0.0)

    silenced = small.model(d.shape, d.subject.seed)
    with torch.no_grad():
        silenced.blocks[1].attn.W_O[head] = 0
    if Head(1, head) in d.value.targets(d.subject.config):
        return  # what the intervention puts there comes after, and speaks again
    with intervene(model, [Edit(Z, silence, "mine")]) as mine:
        inside = run(model, d.batch, d.value).logits
        left = hooks_left(model)
        after = run(model, d.batch).logits
    assert deviation(inside, run(silenced, d.batch, d.value).logits) < 1e-6
    assert torch.equal(after, run(model, d.batch, Zero(f"L1.H{head}")).logits)
    assert (left, hooks_left(model)) == (1, 0)
    assert mine.complete >= 2 * N


def test_a_measurement_inside_a_scope_that_changes_the_model_sees_the_change() -> None:
    """A restart passes no hook point: with something hanging there the hooks' path is taken, and ``evaluate`` refuses.
    On paper: with all z at 0, zeroing a head changes nothing, while both passes differ from the unchanged model's."""
    s = small.subject(PRE, padded=False)
    batch = s.sample(N, "test")
    plain = effect_of(s, batch, Zero("L0.H0"))
    last_rows = Edit(Z, lambda z: torch.cat([z[:-1], torch.zeros_like(z[-1:])]), "mine")
    with intervene(s.model, [last_rows]):
        changed = effect_of(s, batch, Zero("L0.H0"))
        with pytest.raises(WorkbenchError, match="something hangs on the model's hook points"):
            next(evaluate(s.model, batch, [[]]))
    assert changed.clean[1][:-1] == pytest.approx(plain.clean[1][:-1], abs=1e-5)
    assert changed.clean[1][-1] != pytest.approx(plain.clean[1][-1], abs=1e-4)
    assert changed.ablated[1][-1] != pytest.approx(plain.ablated[1][-1], abs=1e-4)


@each(10)
def test_no_gradient_and_no_backward_hook_is_left(d: Drawn) -> None:
    model = d.subject.model
    with capture_gradients(model, [Z]) as seen:
        model(d.batch.tokens, d.batch.mask, path="explicit").square().sum().backward()
        before = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
        logits = run(model, d.batch, d.value).logits
        effect_of(d.subject, d.batch, d.value)
    assert seen[Z].shape[2] == 2
    assert not logits.requires_grad
    assert torch.is_grad_enabled()
    assert hooks_left(model) == 0
    assert all(torch.equal(dict(model.named_parameters())[name].grad, grad) for name, grad in before.items())


@each(15)
def test_a_value_is_stored_read_back_printed_and_compared_without_changing_anything(d: Drawn) -> None:
    model, value = d.subject.model, d.value
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    before = run(model, d.batch, value).logits
    again = from_json(json.loads(json.dumps(value.to_json())), {d.reference.hash: d.reference})
    assert (again, hash(again), repr(again), str(again)) == (value, hash(value), repr(value), str(value))
    assert again.to_json() == value.to_json()
    assert again.targets(d.subject.config) == value.targets(d.subject.config)
    assert "tensor" not in repr(value) + str(value)
    repr(model), list(model.hook_dict), effect_of(d.subject, d.batch, value).frame()
    assert torch.equal(run(model, d.batch, again).logits, before)
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert hooks_left(model) == 0


@each(10)
def test_weights_are_read_as_they_are_now_and_a_reference_keeps_its_numbers(d: Drawn) -> None:
    s, numbers, known = d.subject, [mean.clone() for mean in d.reference.mean_z], d.reference.hash
    effect_of(s, d.batch, d.value)
    s.model(d.batch.tokens, d.batch.mask).square().mean().backward()
    torch.optim.SGD(s.model.parameters(), lr=0.1).step()
    fresh = Subject(small.model(d.shape), s.vocabulary, s.task, seed=s.seed)
    fresh.model.load_state_dict(s.model.state_dict())
    now, expected = (effect_of(of, d.batch, d.value) for of in (s, fresh))
    assert np.array_equal(now.ablated, expected.ablated)
    assert torch.equal(run(s.model, d.batch, d.value).logits, run(fresh.model, d.batch, d.value).logits)
    assert d.reference.hash == known
    assert all(map(torch.equal, d.reference.mean_z, numbers))
    assert build_reference(s, size=8) != d.reference


def test_every_value_over_a_mean_says_over_what() -> None:
    s = small.subject(PRE, padded=False)
    reference = build_reference(s, split="validation", size=9)
    said = "mean over 9 validation sequences of random (seed 0), per position"
    for value in (
        Mean("L0.H1, L1.mlp", reference, at=0, frozen_norm=True),
        KeepOnly("L0.mlp", Mean((), reference), among="parts"),
        CutPath("V", "L0.H0", "L1.H0", reference),
        Zero("L0.H0") + Mean("L1", reference),
    ):
        frame = effect_of(s, s.sample(N, "test"), value).frame()
        assert all(said in text for text in (str(value), repr(value), *frame["semantics"]))
        assert reference.hash in json.dumps(value.to_json())


@settings(max_examples=12, deadline=None)
@given(small.shapes, small.seeds, st.data())
def test_places_by_name_are_places_by_index_and_all_of_them_are_everywhere(shape, seed, data) -> None:
    s = small.subject(shape, seed, padded=False)
    batch, reference = batch_of(s, seed=seed), build_reference(s, size=8)
    part = data.draw(st.sampled_from([*map(str, all_parts(s.config)), "L1"]))
    ways = [Zero, lambda p, at: Mean(p, reference, at=at), lambda p, at: Resample(p, Pairing(N, seed), at=at)]
    way = data.draw(st.sampled_from(ways))
    named = run(s.model, batch, way(part, at="here")).logits
    for i in range(N):
        by_index = run(s.model, batch, way(part, at=(int(batch.positions["here"][i]), "here"))).logits
        assert deviation(by_index[i], named[i]) < 1e-6
    everywhere = way(part, at=tuple(range(small.N_CTX)))
    assert torch.equal(run(s.model, batch, everywhere).logits, run(s.model, batch, way(part, at=())).logits)
    assert close(effect_of(s, batch, everywhere).ablated, effect_of(s, batch, way(part, at=())).ablated, 2e-6)
    # What comes before a place cannot notice it.
    late = run(s.model, batch, way(part, at=4)).logits
    assert torch.equal(late[:, :4], run(s.model, batch).logits[:, :4])


@settings(max_examples=8, deadline=None)
@given(small.seeds, st.sampled_from(("pre", "none")), st.data())
def test_a_part_is_replaced_at_the_places_and_nowhere_else(seed, norm, data) -> None:
    s = small.subject({**PRE, "norm": norm}, seed, padded=False)
    batch, reference, pairing = batch_of(s, seed=seed), build_reference(s, size=8), Pairing(N, seed)
    with capture(s.model, ["blocks.0.hook_mlp_out"]) as clean:
        run(s.model, batch)
    own = clean["blocks.0.hook_mlp_out"]
    value, put = data.draw(
        st.sampled_from(
            [
                (Zero("L0.mlp", at="here"), torch.zeros_like(own)),
                (Mean("L0.mlp", reference, at="here"), reference.mean_mlp[0].expand_as(own)),
                (Resample("L0.mlp", pairing, at="here"), own[list(pairing.donors)]),
            ]
        )
    )
    stream = ["blocks.0.hook_resid_mid", "blocks.0.hook_resid_post"]
    with capture(s.model, stream) as seen:
        run(s.model, batch, value)
    here = torch.arange(small.N_CTX) == batch.positions["here"][:, None]
    expected = torch.where(here[..., None], put, own)
    torch.testing.assert_close(seen[stream[1]] - seen[stream[0]], expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=12, deadline=None)
@given(small.shapes, small.seeds, st.booleans(), st.data())
def test_values_joined_are_one_value_with_all_parts_or_places(shape, seed, frozen, data) -> None:
    s = small.subject(shape, seed, padded=False)
    batch, reference = batch_of(s, seed=seed), build_reference(s, size=8)
    order = data.draw(st.permutations([*map(str, all_parts(s.config))]))
    cut = data.draw(st.integers(1, len(order) - 1))
    ways = [Zero, lambda p, **o: Mean(p, reference, **o), lambda p, **o: Resample(p, Pairing(N), **o)]
    way = data.draw(st.sampled_from(ways))
    modes = {"frozen_patterns": frozen}
    pairs = [
        (way(order[:cut], **modes) + way(order[cut:], **modes), way(order, **modes)),
        (way("L0", at=0, **modes) + way("L0", at=(2, 3), **modes), way("L0", at=(0, 2, 3), **modes)),
    ]
    for joined, one in pairs:
        assert torch.equal(run(s.model, batch, joined).logits, run(s.model, batch, one).logits)
        assert close(effect_of(s, batch, joined).ablated, effect_of(s, batch, one).ablated, 2e-6)
    with pytest.raises(WorkbenchError, match="replaces a part twice"):
        run(s.model, batch, way(order[0]) + Zero(order))
    with pytest.raises(WorkbenchError, match="replaces a part twice at one position"):
        run(s.model, batch, way("L0.H0", at=(0, 1)) + Zero("L0", at=1))
