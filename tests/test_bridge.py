"""Interventions on a TransformerLens bridge: the same value gives the same effects as on our own model; the rest is
refused with its reason."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.drawn_models import build, draw, relative
from tests.grouped_bridge import Grouped, grouped_bridge
from tests.small_models import hooks_left
from workbench.ablation import KeepOnly, Mean, Resample, Zero
from workbench.bridge import Bridged
from workbench.components import all_heads
from workbench.cut_path import CutPath
from workbench.errors import WorkbenchError
from workbench.hooks import Edit, capture, capture_gradients, intervene
from workbench.interventions import from_json
from workbench.measure import measure, run
from workbench.model.export import export
from workbench.patching import Point, patch, source_cache
from workbench.reference import Pairing, ReferenceSet, build_reference
from workbench.subject import Subject
from workbench.task import IGNORE, Batch, Floor, Task, Vocabulary

# What TransformerLens says of an edited norm and of a pattern that nothing reads; both are tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:A forward hook edited hook_scale"),
    pytest.mark.filterwarnings("ignore:A hook on attn.hook_pattern"),
]

V, T = 11, 12
OWN = {
    "gpt2": {"positions": "learned", "d_mlp": 20, "d_head": 8},
    "neox": {"positions": "rotary", "d_mlp": 20, "d_head": 8},
    "native": {"positions": "rotary", "d_head": 6},
}


class Next(Task):
    """Random ids without padding; the next one is asked for, everywhere but at the end."""

    n_ctx = T
    vocabulary = Vocabulary(tuple("abcdefghijk"))
    name = "next"

    def floor(self) -> Floor:
        return Floor(1 / V, "uniform guess")

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        tokens = torch.randint(0, V, (n, T), generator=stream)
        targets = torch.full_like(tokens, IGNORE)
        targets[:, :-1] = tokens[:, 1:]
        here = {"middle": torch.randint(2, 9, (n,), generator=stream)}
        return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), targets, targets != IGNORE, here)


def subject_of(model: nn.Module) -> Subject:
    task = Next()
    return Subject(model, task.vocabulary, task)


@pytest.fixture(scope="module")
def grouped() -> Grouped:
    return grouped_bridge()


@pytest.fixture(scope="module")
def shared(grouped: Grouped) -> Subject:
    return subject_of(Bridged(grouped.bridge))


@pytest.fixture(scope="module", params=OWN)
def pair(request: pytest.FixtureRequest) -> tuple[Subject, Subject, str]:
    """A model of our own and its exported bridge."""
    own = build(**OWN[request.param])
    return subject_of(own), subject_of(Bridged(export(own, request.param))), request.param


def every_kind(reference: ReferenceSet, n: int, *, mlps: bool, cuts: bool) -> list[Any]:
    kinds: list[Any] = [
        Zero("L0.H1"),
        Zero("L1"),
        Zero("L0.H0, L1.H1", at=("middle", 0)),
        Mean("L0, L1.H0", reference),
        Resample("L1", Pairing(n), at="middle"),
        KeepOnly("L0.H1,L1.H0", Mean((), reference)),
        KeepOnly("L1", Resample((), Pairing(n)), among="parts"),
        Zero("L0.H1") + Mean("L1.H0", reference),
        Zero("L0.H1", frozen_patterns=True),
        Mean("L1", reference, frozen_norm=True),
        Zero("L0", frozen_patterns=True, frozen_norm=True),
    ]
    if mlps:
        kinds += [Zero("L0.mlp"), Mean("L1.mlp", reference, at=3), Resample("L0.mlp", Pairing(n))]
    if cuts:
        kinds += [CutPath(kind, "L0.H0,L0.H1", "L1.H0", reference) for kind in "QKV"]
        kinds += [CutPath("K", "L0.H0", "L1.H1", reference) + Zero("L0.H1")]
    return kinds


def test_the_same_value_has_the_same_effects_on_the_model_and_on_its_bridge(pair) -> None:
    own, bridged, form = pair
    batch = own.sample(5, "test")
    reference = build_reference(own, size=8)
    others = build_reference(bridged, size=8)
    for ours, theirs in zip((*reference.mean_z, *reference.mean_mlp), (*others.mean_z, *others.mean_mlp), strict=True):
        assert relative(theirs, ours) <= 1e-5
    kinds = every_kind(reference, 5, mlps=own.config.d_mlp > 0, cuts=form != "native")
    wrong = (batch.targets + 1) % V
    pairs = zip(*(measure(s, batch, kinds, incorrect=wrong) for s in (own, bridged)), strict=True)
    for here, there in pairs:
        scale = max(1.0, np.abs(here.ablated).max())
        np.testing.assert_allclose(there.clean, here.clean, atol=1e-5 * scale, err_msg=repr(here.intervention))
        np.testing.assert_allclose(there.ablated, here.ablated, atol=1e-5 * scale, err_msg=repr(here.intervention))
        assert (there.fired, there.expected) == (here.fired, here.expected) == (5, 5)
        assert np.abs(here.loss_effect).max() > 1e-4, here.intervention


def test_a_value_stored_on_one_runs_on_the_other(pair) -> None:
    own, bridged, _ = pair
    reference = build_reference(own, size=8)
    value = Mean("L1.H1", reference, at="middle")
    again = from_json(json.loads(json.dumps(value.to_json())), {reference.hash: reference})
    batch = own.sample(3, "test")
    assert relative(run(bridged.model, batch, again).logits, run(own.model, batch, value).logits) <= 1e-5


def test_patching_is_the_same_on_both(pair) -> None:
    own, bridged, _ = pair
    batch, other = own.sample(3, "test"), own.sample(3, "validation")
    for stream, points in (
        ("z", [Point(0, "middle", 1), Point(1, 4)]),
        ("resid_pre", [Point(1, "middle")]),
        ("resid_pre", [Point(2, T - 1), Point(0, 3)]),
    ):
        ours, theirs = (patch(s.model, batch, source_cache(s.model, other), points, stream) for s in (own, bridged))
        assert relative(theirs, ours) <= 1e-5
        assert relative(ours, run(own.model, batch).logits) > 1e-3
        itself = patch(bridged.model, batch, source_cache(bridged.model, batch), points, stream)
        assert torch.equal(itself, run(bridged.model, batch).logits)


def test_head_patterns_and_the_norms_scale_are_seen_in_our_shapes(pair) -> None:
    own, bridged, _ = pair
    tokens = draw(own.model)
    theirs = bridged.patterns(tokens)
    assert theirs.shape == (3, 2, 2, T, T)
    np.testing.assert_allclose(theirs, own.patterns(tokens), atol=1e-5)
    names = ["blocks.0.attn.hook_z", "blocks.1.hook_resid_pre", "ln_final.hook_scale"]
    with capture(own.model, names) as a, capture(bridged.model, names) as b, torch.no_grad():
        own.model(tokens, path="explicit")
        bridged.model(tokens)
    assert all(a[name].shape == b[name].shape and relative(b[name], a[name]) <= 1e-5 for name in names)


def test_nothing_is_left_on_a_bridge_and_its_own_use_goes_on(pair) -> None:
    own, bridged, form = pair
    bridge = bridged.model.bridge
    batch, reference = own.sample(2, "test"), build_reference(own, size=8)
    with torch.no_grad():
        before, left = bridge(batch.tokens), hooks_left(bridge)
    repr(bridged.model)
    for kind in every_kind(reference, 2, mlps=own.config.d_mlp > 0, cuts=form != "native"):
        run(bridged.model, batch, kind)
    with pytest.raises(ZeroDivisionError), intervene(bridged.model, [Edit("blocks.0.attn.hook_z", _fail, "fail")]):
        bridged.model(batch.tokens)
    assert hooks_left(bridge) == left
    assert not bridge.cfg.use_split_qkv_input
    with torch.no_grad():
        assert torch.equal(bridge(batch.tokens), before)
        _, cache = bridge.run_with_cache(batch.tokens)
    assert cache["z", 0].shape == (2, T, 2, own.config.d_head)


def _fail(x: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError


def test_a_plain_hook_on_a_bridge_itself_sees_heads_too(grouped: Grouped) -> None:
    """The point holds ``[batch pos head * d_head]``: without its conversion an edit of head 1 hits a coordinate."""
    name, tokens, seen = "blocks.0.attn.hook_z", grouped.tokens(), []

    def silence(z: torch.Tensor) -> torch.Tensor:
        seen.append(z.shape)
        return z.index_fill(2, torch.tensor([1]), 0.0)

    with (
        torch.no_grad(),
        capture(grouped.bridge, [name]) as kept,
        intervene(grouped.bridge, [Edit(name, silence, "h")]),
    ):
        logits = grouped.bridge(tokens)
    assert seen == [(3, T, 4, 4)]
    assert kept[name].shape == (3, T, 4, 4)
    assert relative(logits, grouped.logits_without(tokens, [(0, 1)])) <= 1e-5
    with capture_gradients(grouped.bridge, [name]) as gradients:
        grouped.bridge(tokens).square().sum().backward()
    assert gradients[name].shape == (3, T, 4, 4)


@pytest.mark.parametrize("heads", [[(0, 1)], [(0, 0), (1, 2)], [(1, h) for h in range(4)]], ids=str)
def test_zero_a_head_of_a_grouped_bridge_is_zero_its_part_of_the_output_projection(grouped, shared, heads) -> None:
    batch = shared.sample(4, "test")
    done = run(shared.model, batch, Zero(",".join(f"L{layer}.H{head}" for layer, head in heads)))
    assert relative(done.logits, grouped.logits_without(batch.tokens, heads)) <= 1e-5
    assert (done.fired, done.expected) == (4, 4)
    assert relative(run(shared.model, batch).logits, grouped.logits(batch.tokens)) <= 1e-5


def test_zero_an_mlp_of_a_grouped_bridge_is_zero_what_it_writes(grouped, shared) -> None:
    batch, without = shared.sample(4, "test"), copy.deepcopy(grouped.reference)
    with torch.no_grad():
        without.model.layers[1].mlp.down_proj.weight.zero_()
        assert relative(run(shared.model, batch, Zero("L1.mlp")).logits, without(batch.tokens).logits) <= 1e-5


def test_paths_of_a_grouped_bridge_are_cut_for_whole_groups_or_refused(grouped, shared) -> None:
    assert shared.model.n_key_value_heads == 2
    batch, model = shared.sample(3, "test"), shared.model
    reference = build_reference(shared, size=8)
    clean = run(model, batch).logits
    refused = r"share their (keys|values).*all of H[02] to H[13], got different ones"
    for kind, module in (("K", "k_proj"), ("V", "v_proj")):
        for receivers in ("L1.H0", "L1.H1,L1.H2", "L1.H0,L1.H1,L1.H3"):
            with pytest.raises(WorkbenchError, match=refused):
                run(model, batch, CutPath(kind, "L0.H3", receivers, reference))
        cut = run(model, batch, CutPath(kind, "L0.H0,L0.H3", "L1.H2,L1.H3", reference)).logits
        assert relative(cut, _cut_by_hand(grouped, batch.tokens, (0, 3), module, slice(4, 8), reference)) <= 1e-5
        assert relative(cut, clean) > 1e-3
    one = run(model, batch, CutPath("Q", "L0.H0,L0.H3", "L1.H2", reference)).logits
    assert relative(one, _cut_by_hand(grouped, batch.tokens, (0, 3), "q_proj", slice(8, 12), reference)) <= 1e-5
    with (
        pytest.raises(WorkbenchError, match="no gradient of each head"),
        capture_gradients(model, ["blocks.1.hook_k_input"]),
    ):
        raise AssertionError
    assert not model.bridge.cfg.use_split_qkv_input


@torch.no_grad()
def _cut_by_hand(
    grouped: Grouped, tokens: torch.Tensor, senders: tuple[int, ...], name: str, rows: slice, reference: ReferenceSet
) -> torch.Tensor:
    """transformers' own model, with some rows of one projection of layer 1 fed from a stream without the senders."""
    model = copy.deepcopy(grouped.reference)
    lower, upper = model.model.layers
    kept: dict[str, torch.Tensor] = {}
    lower.self_attn.o_proj.register_forward_pre_hook(lambda _, args: kept.update(z=args[0].unflatten(2, (4, 4))))
    upper.register_forward_pre_hook(lambda _, args, kw: kept.update(x=args[0]), with_kwargs=True)
    projection = getattr(upper.self_attn, name)
    original = projection.forward

    def fed(x: torch.Tensor) -> torch.Tensor:
        missing = torch.zeros_like(kept["x"])
        for head in senders:
            rows_of_head = lower.self_attn.o_proj.weight[:, head * 4 : head * 4 + 4]
            missing += (reference.mean_z[0][:, head] - kept["z"][:, :, head]) @ rows_of_head.T
        other = original(upper.input_layernorm(kept["x"] + missing))
        out = original(x).clone()
        out[..., rows] = other[..., rows]
        return out

    projection.forward = fed
    return model(tokens).logits


def test_everything_else_on_a_grouped_bridge_runs(shared) -> None:
    batch, reference = shared.sample(3, "test"), build_reference(shared, size=8)
    kinds = every_kind(reference, 3, mlps=True, cuts=False)
    for effect in measure(shared, batch, kinds, chunk=2):
        assert (effect.fired, effect.expected) == (3, 3)
        assert np.abs(effect.loss_effect).max() > 1e-4
    kept = run(shared.model, batch, KeepOnly(all_heads(2, 4), Zero(()))).logits
    assert torch.equal(kept, run(shared.model, batch).logits)
    assert shared.patterns(batch.tokens).shape == (3, 2, 4, T, T)
    with pytest.raises(WorkbenchError, match="a model of the workbench's own"):
        shared.scores(8)


def test_padding_is_exact_after_a_sequence_and_refused_before(grouped, shared) -> None:
    tokens = grouped.tokens(2)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1, 7:] = False
    with torch.no_grad():
        together = shared.model(tokens, mask)
        assert relative(together[1, :7], grouped.logits(tokens[1:, :7])[0]) <= 1e-5
        with pytest.raises(WorkbenchError, match="no padding before a token"):
            shared.model(tokens, mask.flip(1))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.full((1, 3), V), r"outside the vocabulary: expected 0 to 10, got 11"),
        (torch.full((1, 3), -1), r"outside the vocabulary: expected 0 to 10, got -1"),
        (torch.zeros(1, T + 1, dtype=torch.long), r"longer than the context: expected at most 12 tokens, got 13"),
    ],
)
def test_input_that_does_not_fit_is_one_line(shared, tokens, message) -> None:
    with pytest.raises(WorkbenchError, match=message):
        shared.model(tokens)


def test_bad_interventions_are_one_line_and_leave_nothing(shared) -> None:
    batch, reference, bridge = shared.sample(3, "test"), build_reference(shared, size=8), shared.model.bridge
    left = hooks_left(bridge)
    for wrong, message in [
        (Zero("L7.H9"), "L0 to L1 and H0 to H3"),
        (Zero("L0.H1", at=T), "a position does not exist: expected 0 to 11"),
        (Zero("L0.H1", at="cue"), "unknown position 'cue'.*middle"),
        (Resample("L0.H1", Pairing(4)), "expected 3 sequences, got 4"),
        (Mean("L0.mlp", ReferenceSet("next", "train", 0, 8, True, reference.mean_z, reference.filled)), "16 numbers"),
    ]:
        for way in (lambda value: run(shared.model, batch, value), lambda value: measure(shared, batch, [value])):
            with pytest.raises(WorkbenchError, match=message) as error:
                way(wrong)
            assert "\n" not in str(error.value)
    assert hooks_left(bridge) == left


def test_paths_through_a_native_bridge_are_refused_by_name() -> None:
    own = build(**OWN["native"])
    bridged = Bridged(export(own, "native"))
    batch, reference = subject_of(own).sample(2, "test"), build_reference(subject_of(own), size=4)
    left = hooks_left(bridged.bridge)
    with pytest.raises(WorkbenchError, match=r"hook_v_input cannot be used.*no point before its queries"):
        run(bridged, batch, CutPath("V", "L0.H0", "L1.H0", reference))
    assert hooks_left(bridged.bridge) == left


def test_a_bridge_without_a_norm_has_no_norm_to_freeze() -> None:
    own = build(positions="learned", norm="none")
    bridged = subject_of(Bridged(export(own)))
    assert bridged.config == own.config
    with pytest.raises(WorkbenchError, match="the final norm cannot be frozen"):
        measure(bridged, bridged.sample(2, "test"), [Zero("L0.H0", frozen_norm=True)])


@pytest.mark.parametrize("form", ["gpt2", "native"])
def test_the_configuration_is_the_one_that_was_exported(form: str) -> None:
    own = build(**OWN[form])
    assert Bridged(export(own, form)).config == own.config


def _bridge_with(**changes: object) -> Any:
    bridge = export(build(**OWN["gpt2"]), "gpt2")
    fixed = SimpleNamespace(**{name: getattr(bridge.cfg, name) for name in CFG} | changes)
    return Renamed(fixed, bridge)


CFG = (
    *("positional_embedding_type", "normalization_type", "attention_dir", "parallel_attn_mlp", "d_vocab_out"),
    *("d_vocab", "n_ctx", "n_layers", "n_heads", "d_model", "d_head", "d_mlp", "attn_only", "use_attn_scale"),
)


class Renamed(nn.Module):
    """A bridge under another configuration."""

    def __init__(self, cfg: SimpleNamespace, bridge: Any) -> None:
        super().__init__()
        self.cfg, self.inner, self.blocks, self.hook_dict = cfg, bridge, bridge.blocks, bridge.hook_dict
        self.unembed, self.training = bridge.unembed, False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inner(tokens)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positional_embedding_type": "relative", "parallel_attn_mlp": True}, "positions relative; both side by side"),
        ({"normalization_type": "soft"}, "got norm soft"),
        ({"attention_dir": "bidirectional"}, "got attention bidirectional"),
        ({"d_vocab_out": 2}, "11 and 2 tokens"),
        ({"n_heads": 4, "d_head": 4}, r"hook_z of shape \(2, 4, 4, 4\), got \(2, 4, 2, 8\)"),
        ({"n_layers": 3}, "lacks hook points: expected blocks.2.attn.hook_z"),
    ],
    ids=str,
)
def test_what_cannot_be_said_of_a_bridge_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(WorkbenchError, match=message):
        Bridged(_bridge_with(**changes))


def test_a_bridge_whose_parts_do_not_write_what_they_hold_is_refused() -> None:
    with pytest.raises(WorkbenchError, match="no TransformerBridge"):
        Bridged(nn.Linear(2, 2))
    with pytest.raises(WorkbenchError, match=r"got training use"):
        Bridged(export(build(**OWN["gpt2"]), "gpt2").train())
    bridge = export(build(**OWN["gpt2"]), "gpt2")
    # A stream that is scaled on its way is no sum of writes any more.
    bridge.hook_dict["blocks.1.hook_resid_post"].register_forward_hook(lambda _, __, x: 1.1 * x)
    with pytest.raises(WorkbenchError, match=r"a sum of what heads .* got none in L1"):
        Bridged(bridge)


def test_a_pattern_or_scale_that_nothing_reads_is_refused_and_the_rest_runs() -> None:
    own = build(**OWN["native"])
    bridge = export(own, "native")
    for block in bridge.blocks:  # as attention that only reports its pattern afterwards
        block.attn.original_component.accepts_pattern_fn = False
    bridged = subject_of(Bridged(bridge))
    batch = bridged.sample(3, "test")
    with pytest.raises(WorkbenchError, match="does not read the pattern that is put there"):
        measure(bridged, batch, [Zero("L0.H0", frozen_patterns=True)])
    both = run(bridged.model, batch, Zero("L0.H0")).logits, run(own, batch, Zero("L0.H0")).logits
    assert relative(*both) <= 1e-5
