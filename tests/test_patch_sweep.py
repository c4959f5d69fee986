"""Sweeps of patches: what the hooks give, for every model, place and direction; and the planted values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import hand_circuits
from tests import small_models as small
from tests.asked_tasks import ASK
from tests.grouped_bridge import grouped_bridge
from tests.hand_circuits import CIRCUITS, G, PlantedCircuit
from workbench import patch_sweep as module
from workbench.bridge import Bridged
from workbench.components import all_heads
from workbench.errors import WorkbenchError
from workbench.metrics import row_scores
from workbench.patch_sweep import head_points, patch_sweep, residual_points
from workbench.patching import Point, patch, source_cache, twin_difference
from workbench.rng import stream
from workbench.task import IGNORE, Batch

N = 24
HEADS = all_heads(2, 2)


@pytest.fixture(scope="module", params=CIRCUITS, ids=lambda make: make.__name__)
def planted(request: pytest.FixtureRequest) -> PlantedCircuit:
    return request.param()


def pair(planted: PlantedCircuit, n: int = N) -> tuple[Batch, Batch]:
    batch = planted.subject().sample(n, "test")
    return batch, planted.task.counterfactual(batch)


def twins(padded: bool, seed: int, n: int = 4) -> tuple[Batch, Batch]:
    """Random sequences and others of the same lengths, asked at the same places; "here" stands elsewhere in each."""
    one = small.Random(padded).sample(n, "test", stream(seed, "one"))
    tokens = torch.randint(1, small.D_VOCAB, one.tokens.shape, generator=stream(seed, "other"))
    tokens = tokens.where(one.mask, torch.tensor(0))
    targets = ((one.targets + 1) % small.D_VOCAB).where(one.scored, torch.tensor(IGNORE))
    places = [torch.randint(0, 2, (n,), generator=stream(seed, "places", i)) for i in range(2)]
    batch = replace(one, positions={"here": places[0]})
    return batch, replace(one, tokens=tokens, targets=targets, positions={"here": places[1]})


@settings(max_examples=14, deadline=None)
@given(
    shape=small.shapes,
    seed=small.seeds,
    padded=st.booleans(),
    kind=st.sampled_from(["resid_pre", "z"]),
    direction=st.sampled_from(["denoising", "noising"]),
    chunk=st.sampled_from([1, 13, 4096]),
)
def test_every_value_is_that_of_a_single_patch_by_hooks(shape, seed, padded, kind, direction, chunk):
    model = small.model(shape, seed)
    batch, twin = twins(padded, seed)
    positions = [0, 1, "here", batch.mask & (batch.tokens % 2 == 1) | batch.scored]
    points = residual_points(model.config, positions)
    if kind == "z":
        points = (*head_points(model.config, positions), Point(1, "here"), Point(0, 1))
    found = patch_sweep(model, batch, twin, points, kind, direction, chunk_tokens=chunk)
    destination, source = (twin, batch) if direction == "denoising" else (batch, twin)
    kept = source_cache(model, source)
    for i, point in enumerate(points):
        logits = patch(model, destination, kept, [point], kind)
        expected = row_scores(logits[batch.scored], batch, twin.targets).numpy()
        assert found.patched[i][1:] == pytest.approx(expected[1:], abs=1e-5), point
    with torch.no_grad():
        clean = model(destination.tokens, destination.mask)
    for logits, got in ((clean, found.start), (kept.logits, found.end)):
        assert got == pytest.approx(row_scores(logits[batch.scored], batch, twin.targets).numpy(), abs=1e-5)
        assert got[-1] == pytest.approx(twin_difference(logits, batch, twin), abs=1e-5)
    assert found.fired == found.expected == (4,) * len(points)
    assert small.hooks_left(model) == 0


@settings(max_examples=6, deadline=None)
@given(shape=small.shapes, seed=small.seeds, padded=st.booleans())
def test_itself_changes_nothing_everything_gives_the_other_pass_and_a_batch_is_its_sequences(shape, seed, padded):
    model = small.model(shape, seed)
    batch, twin = twins(padded, seed)
    relabelled = replace(batch, targets=twin.targets)  # the same pass, judged against other answers
    everywhere = [torch.ones_like(batch.mask)]
    for kind, points in (
        ("resid_pre", residual_points(model.config, [2, "here", *everywhere])),
        ("z", head_points(model.config, [1, "here", *everywhere])),
    ):
        own = patch_sweep(model, batch, relabelled, points, kind)
        assert own.patched == pytest.approx(np.broadcast_to(own.start, own.patched.shape), abs=1e-6)
    for direction in ("denoising", "noising"):
        every = patch_sweep(model, batch, twin, residual_points(model.config, everywhere), "resid_pre", direction)
        assert every.patched[:, 1:] == pytest.approx(np.broadcast_to(every.end, every.patched.shape)[:, 1:], abs=1e-5)
        assert every.shares.value == pytest.approx(1, abs=1e-2)
    points = head_points(model.config, [0, "here"])
    whole = patch_sweep(model, batch, twin, points, "z")
    for i in range(len(batch)):
        alone = patch_sweep(model, batch[i : i + 1], twin[i : i + 1], points, "z")
        assert alone.patched[:, 1:, 0] == pytest.approx(whole.patched[:, 1:, i], abs=1e-5)


def test_planted_heads_restore_what_paper_says(planted: PlantedCircuit) -> None:
    batch, twin = pair(planted)
    everywhere = torch.ones_like(batch.mask)
    found = patch_sweep(planted.model, batch, twin, head_points(planted.model.config, [everywhere]), "z")
    expected = [planted.denoised.get(head, 0.0) for head in HEADS]
    assert found.shares.value == pytest.approx(expected, abs=2e-6)
    assert found.start[-1] == pytest.approx(-planted.clean.logit_difference, abs=2e-6)
    assert found.end[-1] == pytest.approx(planted.clean.logit_difference, abs=2e-6)
    assert found.end[0] == pytest.approx(planted.clean.accuracy)


def test_planted_carrier_crosses_at_its_places_alone() -> None:
    """The carrier notes the symbol at position 2, the reader brings it to "?": by layer, where the answer stands."""
    planted = hand_circuits.through_values()
    batch, twin = pair(planted)
    places = ("symbol", "filler", "ask")
    stands = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]  # at the symbol; then at the filler after it; then at "?"
    for direction in ("denoising", "noising"):
        found = patch_sweep(
            planted.model, batch, twin, residual_points(planted.model.config, places), "resid_pre", direction
        )
        assert found.shares.value.reshape(3, 3) == pytest.approx(np.array(stands), abs=2e-6)
    heads = patch_sweep(planted.model, batch, twin, head_points(planted.model.config, places), "z")
    by_place = heads.shares.value.reshape(4, 3)
    assert by_place[HEADS.index(planted.roles["carrier"])] == pytest.approx([0, 1, 0], abs=2e-6)
    assert by_place[HEADS.index(planted.roles["reader"])] == pytest.approx([0, 0, 1], abs=2e-6)


def test_the_table_by_hand() -> None:
    planted = hand_circuits.redundant_pair()
    batch, twin = pair(planted)
    found = patch_sweep(planted.model, batch, twin, [Point(0, "ask", 0), Point(1, ASK)], "z", "noising")
    first, last = found.frame().to_dict("records")
    # Half of the way from 2 g to -2 g each: g for either answer, a tie that the smaller id wins.
    assert first["what"] == "L0.H0 at ask"
    assert last["what"] == "L1 at 4"
    assert (first["share"], first["logit difference"], first["n"], first["fired"]) == (
        pytest.approx(0.5), pytest.approx(0, abs=1e-5), N, f"{N}/{N}",
    )  # fmt: skip
    assert found.moves[found.of(Point(1, ASK))] == pytest.approx(-2 * G, abs=1e-5)
    assert first["low"] < 0.5 < first["high"]


def test_a_bridge_gives_what_its_hooks_give() -> None:
    grouped = grouped_bridge()
    model = Bridged(grouped.bridge)
    tokens, other = grouped.tokens(seed=0), grouped.tokens(seed=1)
    scored = torch.zeros_like(tokens, dtype=torch.bool)
    scored[:, -1] = True
    batch, twin = (
        Batch(t, torch.ones_like(scored), torch.full_like(t, i), scored, {}) for i, t in enumerate((tokens, other))
    )
    whole = torch.ones_like(scored)
    found = patch_sweep(model, batch, twin, residual_points(model.config, [whole]))
    assert found.moves == pytest.approx(np.broadcast_to(found.way, found.moves.shape), abs=1e-4)
    heads = patch_sweep(model, batch, twin, [Point(1, 3, 2), Point(0, 11, 1)], "z", "noising")
    single = patch(model, batch, source_cache(model, twin), [Point(0, 11, 1)], "z")
    assert heads.patched[1, -1] == pytest.approx(twin_difference(single, batch, twin), abs=1e-5)
    assert heads.fired == (3, 3)


def test_a_fast_way_that_disagrees_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = hand_circuits.redundant_pair()
    batch, twin = pair(planted)
    monkeypatch.setattr(module, "patch", lambda *a: patch(*a) + 0.01)
    with pytest.raises(WorkbenchError, match="two ways to one patch disagree"):
        patch_sweep(planted.model, batch, twin, [Point(0, 1, 0)], "z")


@pytest.mark.parametrize(
    ("points", "kind", "text"),
    [
        ([], "z", "patches nothing"),
        ([Point(2, 0)], "z", "no z at layer 2"),
        ([Point(0, 0, 2)], "z", "head does not exist"),
        ([Point(0, 0, 1)], "resid_pre", "no heads"),
        ([Point(0, "ther")], "z", r"unknown position 'ther'.*'?here"),
        ([Point(0, 9)], "z", "position does not exist"),
        ([Point(0, torch.ones(3, 2, dtype=torch.bool))], "z", "mask does not fit"),
        ([Point(0, torch.zeros(4, 6, dtype=torch.bool))], "z", "did not take place .L0 at a mask of places."),
    ],
)
def test_what_cannot_be_patched_is_one_clear_line(points, kind, text):
    model = small.model(small.SHAPES[0])
    batch, twin = twins(False, 0)
    with pytest.raises(WorkbenchError, match=text):
        patch_sweep(model, batch, twin, points, kind)
    assert small.hooks_left(model) == 0


def test_batches_that_are_no_twins_are_errors():
    model = small.model(small.SHAPES[0])
    batch, twin = twins(False, 0)

    def sweep(one: Batch, other: Batch, **options: object) -> None:
        patch_sweep(model, one, other, [Point(0, 0)], **options)

    shorter = Batch(twin.tokens[:, :4], twin.mask[:, :4], twin.targets[:, :4], twin.scored[:, :4])
    for other in (twin[:3], shorter):
        with pytest.raises(WorkbenchError, match=r"do not pair: expected the destination's shape .*, got"):
            sweep(batch, other)
    with pytest.raises(WorkbenchError, match=r"scored at different positions: .* 4 sequences"):
        sweep(batch, replace(twin, scored=twin.scored & (torch.arange(6) > 0)))
    bare = replace(twin, targets=torch.full_like(twin.targets, IGNORE))
    with pytest.raises(WorkbenchError, match=r"needs its labels: .* none in sequence 0 of the twin"):
        sweep(batch, bare)
    with pytest.raises(WorkbenchError, match=r"unknown direction 'denoise'.*denoising"):
        sweep(batch, twin, direction="denoise")
    with pytest.raises(WorkbenchError, match="chunk_tokens"):
        sweep(batch, twin, chunk_tokens=0)
    assert small.hooks_left(model) == 0
