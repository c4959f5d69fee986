"""The benchmarks measure what they say: the comparison computes the same, and rows are judged by their targets."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.benchmarks import gpu_check, measure, speed
from tests.benchmarks.__main__ import table
from workbench.app.settings import resolve
from workbench.rng import stream


def test_the_comparison_has_the_same_logits_and_gradients() -> None:
    ours, plain = speed._models()
    tokens = torch.randint(0, 64, (4, 64), generator=stream(0, "test"))
    norms = []
    for model in (ours, plain):
        cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        norms.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm())
    assert torch.allclose(ours(tokens), plain(tokens), rtol=1e-5, atol=1e-6)
    assert torch.allclose(*norms, rtol=1e-5)


def test_paired_timing_and_targets() -> None:
    threads = torch.get_num_threads()
    row = measure.paired(
        "sleep", lambda: time.sleep(0.004), lambda: time.sleep(0.002), threads=1, target=1.1, pairs=11, seconds=5
    )
    assert torch.get_num_threads() == threads
    assert 1.2 < row.ratio < 3
    assert row.met is False
    assert row.public().keys() >= {"name", "ours", "other", "ratio", "target", "met", "threads", "unit"}
    kept = measure.limit("size", 2.0, 4.0, "MB")
    assert (kept.ratio, kept.met) == (0.5, True)
    assert dataclasses.replace(kept, target=None).met is None
    assert [line.split()[-1] for line in table([row, kept]).splitlines()] == ["met", "NO", "yes"]


def test_gpu_check_without_a_device_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main() == 1
    assert capsys.readouterr().err == "gpu-check needs a CUDA device, and this machine has none\n"


def test_gpu_check_compares_a_training_with_the_cpu_one(tmp_path: Path) -> None:
    spec = resolve("repeated_tokens", "teaching", ["train.steps=12", "train.batch_size=4"])
    cpu = gpu_check._measure("teaching", "cpu", spec, tmp_path, "cpu", False)
    again = gpu_check._measure("teaching", "again", spec, tmp_path, "cpu", False)
    same = gpu_check.compare(again, cpu, "float32")
    assert same == {
        "first_loss_difference": 0, "final_loss_difference": 0, "score_difference": 0, "agrees": True
    }  # fmt: skip
    assert "agrees" in gpu_check.line(dataclasses.asdict(again) | same)
    for wrong in (
        {"first_losses": tuple(x + 0.01 for x in cpu.first_losses)},
        {"final_loss": cpu.final_loss + 0.2},
        {"scores": {**cpu.scores, "prefix_matching_score": 0.9}},
    ):
        assert not gpu_check.compare(dataclasses.replace(cpu, **wrong), cpu, "float32")["agrees"]
    assert cpu.steps_per_second > 0
