"""Paths between heads: the definition by hand on random models, the planted values, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import hand_circuits
from tests import small_models as small
from tests.drawn_models import build, draw
from tests.grouped_bridge import grouped_bridge
from tests.hand_circuits import CIRCUITS
from tests.test_patch_sweep import pair, twins
from workbench.bridge import Bridged
from workbench.components import Head
from workbench.errors import WorkbenchError
from workbench.hooks import Edit, capture, intervene
from workbench.metrics import row_scores
from workbench.patching import source_cache
from workbench.path_patching import Path, all_paths, path_patch, path_sweep
from workbench.task import Batch

SUMS = [shape for shape in small.SHAPES if shape["norm"] != "post"]


def looked(model, batch: Batch) -> dict[str, torch.Tensor]:
    layers = range(model.config.n_layers)
    names = [f"blocks.{i}.{name}" for i in layers for name in ("attn.hook_z", "hook_resid_pre")]
    with torch.no_grad(), capture(model, names) as seen:
        model(batch.tokens, batch.mask, path="explicit")
    return seen


def by_definition(model, destination: Batch, kept: list[dict[str, torch.Tensor]], path: Path) -> torch.Tensor:
    """The receiver's query, key or value of x', written out and put in by its own hook; the rest is the model's.

    ``kept`` is what the clean passes of the destination and of the source hold.
    """
    layer, head = path.receiver
    z, entering = f"blocks.{path.sender.layer}.attn.hook_z", f"blocks.{layer}.hook_resid_pre"
    block = model.blocks[layer]
    w_o = model.blocks[path.sender.layer].attn.W_O[path.sender.head]
    with torch.no_grad():
        x = kept[0][entering] + (kept[1][z] - kept[0][z])[:, :, path.sender.head] @ w_o
        normed = x if block.ln1 is None else torch.nn.functional.layer_norm(x, x.shape[-1:], block.ln1.w, block.ln1.b)
        weight, bias = (getattr(block.attn, f"{kind}_{path.kind}")[head] for kind in ("W", "b"))
        new = normed @ weight + bias

    def put(old: torch.Tensor) -> torch.Tensor:
        old = old.clone()
        old[:, :, head] = new
        return old

    with torch.no_grad(), intervene(model, [Edit(f"blocks.{layer}.attn.hook_{path.kind.lower()}", put, "x'")]):
        return model(destination.tokens, destination.mask, path="explicit")


@settings(max_examples=7, deadline=None)
@given(
    shape=st.sampled_from(SUMS),
    seed=small.seeds,
    padded=st.booleans(),
    direction=st.sampled_from(["denoising", "noising"]),
    chunk=st.sampled_from([7, 4096]),
)
def test_every_path_is_its_definition(shape, seed, padded, direction, chunk):
    model = small.model(shape, seed)
    batch, twin = twins(padded, seed)
    destination, source = (twin, batch) if direction == "denoising" else (batch, twin)
    paths = all_paths(model.config)
    assert len(paths) == 4 * (3 if shape["attention"] == "learned" else 1)
    found = path_sweep(model, batch, twin, paths[::-1], direction, chunk_tokens=chunk)
    assert found.what == paths[::-1]
    assert found.fired == found.expected == (4,) * len(paths)
    kept = [looked(model, part) for part in (destination, source)]
    single = path_patch(model, destination, source_cache(model, source), paths[0])
    assert torch.allclose(single, by_definition(model, destination, kept, paths[0]), rtol=0, atol=2e-5)
    for path, got in zip(found.what, found.patched, strict=True):
        expected = by_definition(model, destination, kept, path)
        assert got[1:] == pytest.approx(
            row_scores(expected[batch.scored], batch, twin.targets).numpy()[1:], abs=2e-5
        ), path
    same = path_patch(model, batch, source_cache(model, batch), paths[0])
    with torch.no_grad():
        assert torch.equal(same, model(batch.tokens, batch.mask, path="explicit"))
    assert small.hooks_left(model) == 0


def test_what_lies_between_is_held_and_what_comes_after_is_not():
    """Three layers with MLPs: past the middle one, into it, and out of it."""
    model = build(n_layers=3, positions="rotary", norm="pre", d_mlp=20)
    ids = torch.arange(12).expand(3, 12)
    batch, twin = (
        Batch(draw(model, seed=seed), torch.ones_like(ids, dtype=torch.bool), (ids + seed) % 11, ids > 7)
        for seed in (1, 2)
    )
    paths = [Path(Head(a, 1), Head(b, 0), kind) for a, b in ((0, 2), (0, 1), (1, 2)) for kind in "QKV"]
    found = path_sweep(model, batch, twin, paths, "noising")
    kept = [looked(model, part) for part in (batch, twin)]
    for path, got in zip(paths, found.patched, strict=True):
        logits = by_definition(model, batch, kept, path)
        expected = row_scores(logits[batch.scored], batch, twin.targets).numpy()
        assert got[1:] == pytest.approx(expected[1:], abs=1e-5), path
    assert np.abs(found.moves).max(axis=1).min() > 1e-3


@pytest.mark.parametrize("make", [c for c in CIRCUITS if c().paths], ids=lambda make: make.__name__)
def test_planted_paths_carry_what_paper_says(make) -> None:
    planted = make()
    batch, twin = pair(planted)
    lower, upper = planted.circuit
    for direction in ("denoising", "noising"):
        found = path_sweep(planted.model, batch, twin, all_paths(planted.model.config), direction)
        share = dict(zip(found.what, found.shares.value, strict=True))
        for path, value in share.items():
            mine = (path.sender, path.receiver) == (lower, upper)
            # The query alone decides where the reader looks, in either direction.
            assert value == pytest.approx(planted.paths[path.kind] if mine else 0.0, abs=2e-6), path


def test_many_paths_go_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small.model(SUMS[0])
    batch, twin = twins(True, 3)
    paths = all_paths(model.config)
    whole = path_sweep(model, batch, twin, paths)
    monkeypatch.setattr("workbench.path_patching.AT_ONCE", 5)
    few = path_sweep(model, batch, twin, paths[::-1])
    assert few.what == whole.what[::-1]
    assert few.patched[::-1] == pytest.approx(whole.patched, abs=1e-6)


def test_a_bridge_whose_heads_share_keys_and_values() -> None:
    """Its queries are each head's own: exact. Its keys and values are a group's: refused, with the reason."""
    grouped = grouped_bridge()
    model = Bridged(grouped.bridge)
    scored = torch.zeros(3, 12, dtype=torch.bool)
    scored[:, -1] = True
    batch, twin = (
        Batch(t, torch.ones_like(scored), torch.full_like(t, i), scored)
        for i, t in enumerate((grouped.tokens(seed=0), grouped.tokens(seed=1)))
    )
    path = Path(Head(0, 1), Head(1, 2), "Q")
    found = path_sweep(model, batch, twin, [path])
    logits = path_patch(model, twin, source_cache(model, batch), path)
    assert found.patched[0] == pytest.approx(row_scores(logits[scored], batch, twin.targets).numpy(), abs=1e-5)
    assert np.abs(found.moves).max() > 1e-4
    before = small.hooks_left(grouped.bridge)
    for kind, what in (("K", "keys"), ("V", "values")):
        with pytest.raises(WorkbenchError, match=f"heads that share their {what} cannot be told apart"):
            path_sweep(model, batch, twin, [path._replace(kind=kind)])
    assert small.hooks_left(grouped.bridge) == before


@pytest.mark.parametrize(
    ("shape", "path", "text"),
    [
        ({}, Path(Head(1, 0), Head(1, 1), "Q"), "no path leads from the sender.*below 1.*got L1.H0"),
        ({}, Path(Head(0, 0), Head(1, 1), "z"), "unknown path 'z'"),
        ({}, Path(Head(0, 2), Head(1, 1), "V"), r"no head L0\.H2: expected L0 to L1 and H0 to H1"),
        ({"norm": "post"}, Path(Head(0, 0), Head(1, 1), "V"), "post-norm model"),
        ({"attention": "uniform"}, Path(Head(0, 0), Head(1, 1), "K"), "no K path: .*uniform attention"),
    ],
)
def test_paths_that_do_not_exist_are_one_clear_line(shape, path, text):
    model = small.model({**SUMS[0], **shape})
    batch, twin = twins(False, 0)
    with pytest.raises(WorkbenchError, match=text):
        path_sweep(model, batch, twin, [path])
    with pytest.raises(WorkbenchError, match=text):
        path_patch(model, batch, source_cache(model, twin), path)
    assert small.hooks_left(model) == 0


def test_no_path_and_batches_that_do_not_pair_are_errors():
    model = small.model(SUMS[0])
    batch, twin = twins(False, 0)
    with pytest.raises(WorkbenchError, match="patches nothing"):
        path_sweep(model, batch, twin, [])
    with pytest.raises(WorkbenchError, match="do not pair"):
        path_patch(model, batch, source_cache(model, twin[:2]), all_paths(model.config)[0])
    assert str(all_paths(hand_circuits.backup().model.config, "L1.H0")[0]) == "L0.H0 to L1.H0 (Q)"
