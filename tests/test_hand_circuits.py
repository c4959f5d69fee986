"""The planted circuits are what their docstrings say: zeroed, frozen, patched, approximated, attributed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tests import hand_circuits
from tests.asked_tasks import ASK, CHOOSE, N_SYMBOLS, RECALL, SYMBOLS, Choose, Recall, V
from tests.grouped_bridge import D_HEAD, N_HEADS, N_KEY_VALUE_HEADS, N_LAYERS, grouped_bridge
from tests.hand_circuits import CIRCUITS, G, Paper, PlantedCircuit
from tests.small_models import hooks_left
from workbench.ablation import KeepOnly, Mean, Zero
from workbench.attribution import direct_logit_attribution
from workbench.components import Head, all_heads
from workbench.cut_path import CutPath
from workbench.hooks import Edit, capture, capture_gradients, intervene
from workbench.measure import measure, run
from workbench.metrics import logit_difference
from workbench.reference import build_reference
from workbench.rng import stream
from workbench.task import Batch

N = 64
HEADS = all_heads(2, 2)


@pytest.fixture(scope="module", params=CIRCUITS, ids=lambda make: make.__name__)
def planted(request: pytest.FixtureRequest) -> PlantedCircuit:
    return request.param()


def pair(planted: PlantedCircuit) -> tuple[Batch, Batch]:
    batch = planted.subject().sample(N, "test")
    return batch, planted.task.counterfactual(batch)


def difference(logits: torch.Tensor, batch: Batch, twin: Batch) -> torch.Tensor:
    """Answer minus the twin's answer at the last position, by sequence."""
    return logit_difference(logits[:, ASK], batch.targets[:, ASK], twin.targets[:, ASK])


def z_point(layer: int) -> str:
    return f"blocks.{layer}.attn.hook_z"


def put(head: Head, source: torch.Tensor) -> Edit:
    """z of one head replaced by the source's."""

    def edit(z: torch.Tensor) -> torch.Tensor:
        z = z.clone()
        z[:, :, head.head] = source[:, :, head.head]
        return z

    return Edit(z_point(head.layer), edit, f"patch {head}")


def share(patched: torch.Tensor, clean: torch.Tensor, corrupted: torch.Tensor) -> np.ndarray:
    return ((patched - corrupted) / (clean - corrupted)).numpy()


def test_tasks_hold_together_and_twins_flip_every_answer() -> None:
    for task, vocabulary in ((Recall(), RECALL), (Choose(), CHOOSE)):
        batch = task.sample(N, "test", stream(0, "asked"))
        twin = task.counterfactual(batch)
        for made in (batch, twin):
            made.check(V, "asked")
            assert made.scored.nonzero()[:, 1].tolist() == [ASK] * N
            assert set(made.targets[:, ASK].tolist()) <= set(SYMBOLS)
        assert (batch.targets[:, ASK] != twin.targets[:, ASK]).all()
        assert (batch.tokens != twin.tokens).sum(dim=1).tolist() == [1] * N
        assert torch.equal(task.counterfactual(twin).tokens, batch.tokens)
        assert len(vocabulary) == V
        assert batch.positions["ask"].tolist() == [ASK] * N
        assert set(batch.targets[:, ASK].tolist()) == set(SYMBOLS)
    tokens, answers = batch.tokens, batch.targets[:, ASK]  # of Choose
    first = tokens[:, 3] == CHOOSE.encode(["first"])[0]
    assert torch.equal(answers, torch.where(first, tokens[:, 1], tokens[:, 2]))
    assert 0 < first.sum() < N


def test_paper_gives_accuracy_difference_and_loss() -> None:
    assert (Paper(4).accuracy, Paper(4, 4).accuracy, Paper(0.8, 0.8).accuracy, Paper(-4).accuracy) == (1, 0, 0, 0)
    assert Paper(3, 1).logit_difference == 2
    # One e for the begin token, e^4 for the answer, 1 for each of the 8 others.
    assert Paper(4).loss == pytest.approx(math.log(math.exp(4) + math.e + 8) - 4)


def test_roles_and_inert_heads(planted: PlantedCircuit) -> None:
    assert planted.circuit == tuple(sorted(planted.roles.values()))
    assert len(set(planted.circuit)) == 2
    for head in HEADS:
        attn = planted.model.blocks[head.layer].attn
        at_work = head in planted.circuit
        assert bool(attn.W_V[head.head].any()) == bool(attn.W_O[head.head].any()) == at_work
    assert set(planted.zeroed) == set(planted.frozen) == {
        *((head,) for head in planted.circuit),
        planted.circuit,
    }  # fmt: skip
    assert set(planted.direct) == set(planted.denoised) == set(planted.approximated) == set(planted.circuit)


def check(logits: torch.Tensor, batch: Batch, twin: Batch, paper: Paper) -> None:
    """Every logit at the last position, against paper."""
    expected = torch.zeros(N, V)
    expected[:, 0] = 1.0
    expected.scatter_(1, batch.targets[:, ASK, None], paper.answer)
    expected.scatter_(1, twin.targets[:, ASK, None], paper.twin)
    assert torch.allclose(logits[:, ASK], expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("frozen", [False, True], ids=["zero", "frozen"])
def test_every_set_of_the_circuit_zeroed(planted: PlantedCircuit, frozen: bool) -> None:
    batch, twin = pair(planted)
    known = planted.frozen if frozen else planted.zeroed
    sets = [Zero(heads, frozen_patterns=frozen) for heads in known]
    effects = measure(planted.subject(), batch, sets)
    check(run(planted.model, batch).logits, batch, twin, planted.clean)
    for (heads, paper), what, effect in zip(known.items(), sets, effects, strict=True):
        done = run(planted.model, batch, what)
        assert done.fired == done.expected == N, heads
        check(done.logits, batch, twin, paper)
        assert effect.clean_accuracy.tolist() == [planted.clean.accuracy] * N
        assert effect.ablated_accuracy.tolist() == [paper.accuracy] * N
        assert effect.loss_effect == pytest.approx(paper.loss - planted.clean.loss, abs=2e-6)
        assert difference(done.logits, batch, twin).numpy() == pytest.approx(paper.logit_difference, abs=4e-6)


def test_inert_heads_change_no_bit(planted: PlantedCircuit) -> None:
    batch, _ = pair(planted)
    others = tuple(h for h in HEADS if h not in planted.circuit)
    clean = run(planted.model, batch).logits
    for heads in ((others[0],), (others[1],), others):
        assert torch.equal(run(planted.model, batch, Zero(heads)).logits, clean)


def test_the_smallest_sets_keep_the_behaviour_and_no_smaller_one_does(planted: PlantedCircuit) -> None:
    batch, _ = pair(planted)
    subsets = [c for size in range(4) for c in itertools.combinations(HEADS, size)]
    kept = measure(planted.subject(), batch, [KeepOnly(heads, Zero(())) for heads in subsets])
    enough = [set(heads) for heads, effect in zip(subsets, kept, strict=True) if effect.ablated_accuracy.min() == 1]
    least = [heads for heads in enough if not any(other < heads for other in enough)]
    assert sorted(map(sorted, least)) == sorted(map(sorted, planted.smallest))


def test_denoising_and_its_approximation(planted: PlantedCircuit) -> None:
    batch, twin = pair(planted)
    model, points = planted.model, [z_point(0), z_point(1)]
    with torch.no_grad(), capture(model, points) as clean_z:
        clean = difference(model(batch.tokens, path="explicit"), batch, twin)
    with capture(model, points) as twin_z, capture_gradients(model, points) as gradient:
        corrupted = difference(model(twin.tokens, path="explicit"), batch, twin)
        corrupted.sum().backward()
    corrupted = corrupted.detach()
    model.zero_grad()
    for head in HEADS:
        point = z_point(head.layer)
        with torch.no_grad(), intervene(model, [put(head, clean_z[point])]):
            patched = difference(model(twin.tokens, path="explicit"), batch, twin)
        exact = planted.denoised.get(head, 0.0)
        assert share(patched, clean, corrupted) == pytest.approx(exact, abs=2e-6), head
        change = ((clean_z[point] - twin_z[point]) * gradient[point])[:, :, head.head].sum(dim=(1, 2))
        guess = planted.approximated.get(head, 0.0)
        assert (change / (clean - corrupted)).numpy() == pytest.approx(guess, abs=2e-6), head
    assert hooks_left(model) == 0


def test_direct_attribution(planted: PlantedCircuit) -> None:
    batch, twin = pair(planted)
    got = direct_logit_attribution(planted.model, batch, incorrect=twin.targets)
    for head in HEADS:
        assert got.of(head) == pytest.approx(planted.direct.get(head, 0.0), abs=2e-6), head
    assert got.total == pytest.approx(planted.clean.logit_difference, abs=2e-6)
    assert np.abs(np.delete(got.values, [got.terms.index(str(h)) for h in HEADS], axis=1)).max() == 0


@pytest.mark.parametrize("make", [c for c in CIRCUITS if c().paths], ids=lambda make: make.__name__)
def test_paths_from_the_lower_to_the_upper_head(make) -> None:
    """The upper head's own copy of the stream, at one input, gets what the lower head writes in the clean pass."""
    planted = make()
    batch, twin = pair(planted)
    model, (lower, upper) = planted.model, planted.circuit
    assert lower.layer < upper.layer
    w_o = model.blocks[lower.layer].attn.W_O[lower.head].detach()
    passes = []
    for tokens in (batch.tokens, twin.tokens):
        with torch.no_grad(), capture(model, [z_point(lower.layer)]) as z:
            passes.append((difference(model(tokens, path="explicit"), batch, twin), z))
    (clean, clean_z), (corrupted, twin_z) = passes
    point = z_point(lower.layer)
    change = (clean_z[point] - twin_z[point])[:, :, lower.head] @ w_o
    for kind, expected in planted.paths.items():

        def feed(x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            x[:, :, upper.head] += change
            return x

        edit = Edit(f"blocks.{upper.layer}.hook_{kind.lower()}_input", feed, f"path {kind}")
        with torch.no_grad(), intervene(model, [edit]):
            patched = difference(model(twin.tokens, path="explicit"), batch, twin)
        assert share(patched, clean, corrupted) == pytest.approx(expected, abs=2e-6), kind


@pytest.mark.parametrize("make", [hand_circuits.through_values, hand_circuits.through_queries])
def test_cutting_the_one_path_removes_the_behaviour_and_the_others_keep_every_bit(make) -> None:
    planted = make()
    batch, _ = pair(planted)
    reference = build_reference(planted.subject(), size=256)
    lower, upper = planted.circuit
    cuts = {kind: CutPath(kind, (lower,), (upper,), reference) for kind in planted.paths}
    effects = dict(zip(cuts, measure(planted.subject(), batch, list(cuts.values())), strict=True))
    for kind, effect in effects.items():
        if planted.paths[kind]:
            assert effect.ablated_accuracy.mean() < 0.7
        else:
            assert np.abs(effect.loss_effect).max() < 1e-6


def test_the_backup_sleeps_under_a_mean_and_wakes_under_zero() -> None:
    """A mean over many sequences keeps the flag at 1 and gives every symbol about g / 6, less than the begin's 1."""
    planted = hand_circuits.backup()
    batch, _ = pair(planted)
    main, spare = planted.roles["main"], planted.roles["backup"]
    reference = build_reference(planted.subject(), size=512)
    mean, zero = measure(planted.subject(), batch, [Mean((main,), reference), Zero((main,))])
    assert mean.accuracy_effect.tolist() == [-1.0] * N
    assert zero.accuracy_effect.tolist() == [0.0] * N
    assert reference.mean_z[0][ASK, main.head, 1 : N_SYMBOLS + 1].max() * G < 1

    def attention(*edits: Edit) -> torch.Tensor:
        point = "blocks.1.attn.hook_pattern"
        with torch.no_grad(), intervene(planted.model, edits), capture(planted.model, [point]) as kept:
            planted.model(batch.tokens, path="explicit")
        return kept[point][:, spare.head, ASK]

    gone = Edit(z_point(0), lambda z: z * (torch.arange(2) != main.head)[:, None], "main gone")
    assert torch.allclose(attention(), torch.eye(5)[0].expand(N, 5))
    assert torch.allclose(attention(gone), torch.eye(5)[1].expand(N, 5))


def test_redundancy_shows_in_accuracy_alone() -> None:
    """Singles cost no accuracy and g each of the logit difference; the pair costs all of both."""
    planted = hand_circuits.redundant_pair()
    (first,), (second,) = planted.smallest
    alone, other, both = (planted.zeroed[heads] for heads in ((first,), (second,), (first, second)))
    assert (alone.accuracy, other.accuracy, both.accuracy) == (1, 1, 0)
    lost = [planted.clean.logit_difference - paper.logit_difference for paper in (alone, other, both)]
    assert lost == [G, G, 2 * G]


def test_the_grouped_bridge_is_its_reference() -> None:
    grouped = grouped_bridge()
    tokens, bridge = grouped.tokens(), grouped.bridge
    logits, cache = bridge.run_with_cache(tokens)
    assert torch.allclose(logits, grouped.logits(tokens), rtol=0, atol=1e-5)
    assert (bridge.cfg.n_layers, bridge.cfg.n_heads, bridge.cfg.n_key_value_heads) == (
        N_LAYERS,
        N_HEADS,
        N_KEY_VALUE_HEADS,
    )
    n, t = tokens.shape
    assert cache["blocks.0.attn.hook_q"].shape == cache["blocks.0.attn.hook_z"].shape == (n, t, N_HEADS, D_HEAD)
    assert cache["blocks.0.attn.hook_v"].shape == (n, t, N_KEY_VALUE_HEADS, D_HEAD)
    # Heads 0 and 1 read the first value, heads 2 and 3 the second.
    values = cache["blocks.0.attn.hook_v"].repeat_interleave(2, dim=2)
    z = torch.einsum("bhqp,bphk->bqhk", cache["blocks.0.attn.hook_pattern"], values)
    assert torch.allclose(z, cache["blocks.0.attn.hook_z"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", [Head(0, 1), Head(0, 2), Head(1, 3)], ids=str)
def test_a_head_of_the_grouped_bridge_zeroed_is_its_columns_zeroed(head: Head) -> None:
    grouped = grouped_bridge()
    tokens = grouped.tokens()

    def zero(z, hook):
        z = z.clone()
        z[:, :, head.head] = 0.0
        return z

    with torch.no_grad():
        ablated = grouped.bridge.run_with_hooks(tokens, fwd_hooks=[(z_point(head.layer), zero)])
    expected = grouped.logits_without(tokens, [(head.layer, head.head)])
    assert torch.allclose(ablated, expected, rtol=0, atol=1e-5)
    assert not torch.allclose(ablated, grouped.logits(tokens), rtol=0, atol=1e-3)
