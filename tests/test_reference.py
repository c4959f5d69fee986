"""Reference sets: the means are means, over what is said, and they refuse to stand in where they do not fit."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.small_models import D_VOCAB, N_CTX, Random, subject
from workbench import reference
from workbench.errors import WorkbenchError
from workbench.hooks import capture
from workbench.reference import ReferenceSet, build_reference
from workbench.subject import Subject

PLAIN = {"norm": "pre", "positions": "learned"}


def by_hand(size: int, per_position: bool, padded: bool) -> list[torch.Tensor]:
    s = subject(PLAIN, padded=padded)
    batch = s.sample(size, "validation", "reference")
    names = ["blocks.0.attn.hook_z", "blocks.1.attn.hook_z"]
    with capture(s.model, names) as kept, torch.no_grad():
        s.model(batch.tokens, batch.mask)
    means = []
    for name in names:
        rows = [torch.stack([kept[name][i, p] for i in range(size) if batch.mask[i, p]]) for p in range(N_CTX)]
        means.append(torch.stack([r.mean(0) for r in rows]) if per_position else torch.cat(rows).mean(0)[None])
    return means


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("per_position", [False, True])
def test_means_are_over_real_tokens_whatever_the_chunk(monkeypatch, padded, per_position):
    s = subject(PLAIN, padded=padded)
    monkeypatch.setattr(reference, "CHUNK_TOKENS", 7 * N_CTX)
    built = build_reference(s, split="validation", size=40, per_position=per_position)
    for mean, expected in zip(built.mean_z, by_hand(40, per_position, padded), strict=True):
        assert mean.dtype == torch.float32
        torch.testing.assert_close(mean, expected, atol=1e-6, rtol=1e-5)


def test_it_says_over_what_the_mean_was_taken_and_the_hash_tells_sets_apart():
    s = subject(PLAIN)
    first = build_reference(s, split="validation", size=16)
    assert first.describe() == "mean over 16 validation sequences of random (seed 0), per position"
    assert first.describe() in repr(first)
    over_all = build_reference(s, split="validation", size=16, per_position=False)
    assert over_all.describe().endswith("over all positions")
    assert first.to_json() == {
        "task_name": "random",
        "split": "validation",
        "seed": 0,
        "size": 16,
        "per_position": True,
        "hash": first.hash,
    }
    again = build_reference(s, split="validation", size=16)
    assert first == again
    assert hash(first) == hash(again)
    others = [
        over_all,
        build_reference(s, split="test", size=16),
        build_reference(s, split="validation", size=17),
        build_reference(Subject(s.model, s.vocabulary, s.task, seed=1), split="validation", size=16),
        dataclasses.replace(first, mean_z=tuple(m + 1 for m in first.mean_z)),
    ]
    assert len({first, *others}) == 6


def fitting() -> tuple[Subject, ReferenceSet, torch.Tensor]:
    s = subject(PLAIN, padded=False)
    return s, build_reference(s, size=8), torch.ones(3, N_CTX, dtype=torch.bool)


def test_it_fits_its_own_model_and_context():
    s, built, mask = fitting()
    built.require_fit(s.config, mask)
    build_reference(s, size=8, per_position=False).require_fit(s.config, mask[:, :2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layers": 3}, r"\(3, 2, 4\), got \(2, 2, 4\)"),
        ({"n_heads": 1}, r"\(2, 1, 4\)"),
        ({"d_head": 2}, r"\(2, 2, 2\)"),
    ],
)
def test_another_shape_does_not_fit(change, message):
    s, built, mask = fitting()
    with pytest.raises(WorkbenchError, match="a reference set that does not fit.*" + message):
        built.require_fit(dataclasses.replace(s.config, **change), mask)


def test_another_length_does_not_fit():
    s, built, mask = fitting()
    for other in (mask[:, :-1], torch.ones(3, N_CTX + 1, dtype=torch.bool)):
        with pytest.raises(WorkbenchError, match=rf"does not fit.*sequences of 6 positions, got {other.shape[1]}"):
            built.require_fit(s.config, other)


def test_a_position_that_no_sequence_of_the_reference_filled_does_not_fit():
    s, built, mask = fitting()
    short = dataclasses.replace(built, filled=torch.arange(N_CTX) < 4)
    short.require_fit(s.config, mask & (torch.arange(N_CTX) < 4))
    with pytest.raises(WorkbenchError, match="none at position 4"):
        short.require_fit(s.config, mask)


def test_it_needs_a_task_and_sequences():
    s = subject(PLAIN)
    with pytest.raises(WorkbenchError, match="no task"):
        build_reference(Subject(s.model, s.vocabulary))
    with pytest.raises(WorkbenchError, match="needs sequences"):
        build_reference(s, size=0)
    assert len(Random().vocabulary) == D_VOCAB


WITH_MLP = {"norm": "pre", "positions": "learned", "d_mlp": 12}


@pytest.mark.parametrize("per_position", [False, True])
def test_means_of_what_mlps_write_are_over_real_tokens(monkeypatch, per_position):
    s = subject(WITH_MLP)
    monkeypatch.setattr(reference, "CHUNK_TOKENS", 7 * N_CTX)
    built = build_reference(s, split="validation", size=40, per_position=per_position)
    batch = s.sample(40, "validation", "reference")
    names = ["blocks.0.hook_mlp_out", "blocks.1.hook_mlp_out"]
    with capture(s.model, names) as kept, torch.no_grad():
        s.model(batch.tokens, batch.mask)
    assert len(built.mean_mlp) == 2
    for mean, name in zip(built.mean_mlp, names, strict=True):
        assert mean.shape == ((N_CTX if per_position else 1), 8)
        for p, row in enumerate(mean):
            real = batch.mask[:, p] if per_position else batch.mask
            written = kept[name][:, p] if per_position else kept[name]
            torch.testing.assert_close(row, written[real].mean(0), atol=1e-6, rtol=1e-5)
    assert build_reference(subject(PLAIN), size=8).mean_mlp == ()


def test_the_mlps_are_part_of_what_the_hash_tells_apart_and_of_what_must_fit():
    s = subject(WITH_MLP, padded=False)
    built, mask = build_reference(s, size=8), torch.ones(3, N_CTX, dtype=torch.bool)
    without = dataclasses.replace(built, mean_mlp=())
    moved = dataclasses.replace(built, mean_mlp=tuple(m + 1 for m in built.mean_mlp))
    assert len({built, without, moved}) == 3
    built.require_fit(s.config, mask, mlps=True)
    without.require_fit(s.config, mask)
    with pytest.raises(WorkbenchError, match="a mean of 8 numbers for each of 2 MLPs, got none"):
        without.require_fit(s.config, mask, mlps=True)
