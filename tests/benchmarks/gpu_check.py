"""``python -m tests.benchmarks.gpu_check``: the presets on a CUDA device (eager, compiled, bfloat16) beside the CPU.

Losses of the first steps and of the end, and the strongest head scores, must agree with the CPU's; steps per second are
reported. Writes ``gpu_check.json``. Takes some minutes. Exit code 1 without a CUDA device, 3 where results differ.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from workbench.app.settings import Spec, resolve
from workbench.config import Precision
from workbench.head_scores import score_heads
from workbench.probes import repeated_blocks, varying_periods
from workbench.rng import stream
from workbench.runs import Run
from workbench.training import Progress, train

TASK = "repeated_tokens"
PRESETS = {
    "default": (),
    "shared": (),
    "teaching": (),
    # Shortened so that a CPU can follow: what is compared is the arithmetic, not the end of the training.
    "large": ("train.steps=60", "train.batch_size=16", "train.warmup_steps=20"),
}
MODES: dict[str, tuple[Precision, bool]] = {
    "eager": ("float32", False),
    "compiled": ("float32", True),
    "bf16": ("bfloat16", False),
}
SCORES = ("previous_token_score", "prefix_matching_score")
FIRST, LAST = 10, 50
EARLY_TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}
"""Nats a position over the first steps, before rounding has grown."""
LATE_TOLERANCE = 0.1
"""Of the final loss (nats) and of the strongest scores: runs that rounding has driven apart still learn the same."""


@dataclass(frozen=True)
class Result:
    """One training: its pace, its losses and the strongest head score of each kind."""

    preset: str
    mode: str
    device: str
    steps_per_second: float
    first_losses: tuple[float, ...]
    final_loss: float
    scores: dict[str, float]


def _measure(name: str, mode: str, spec: Spec, folder: Path, device: str, compiled: bool) -> Result:
    seen: list[tuple[float, int]] = []

    def watch(progress: Progress) -> None:
        seen.append((time.perf_counter(), progress.step))

    threads = torch.get_num_threads()
    start = time.perf_counter()
    run = train(
        spec.task, spec.model, spec.train, 0, folder / f"{name}-{mode}",
        device=device, threads=threads, compile=compiled, progress=watch,
    )  # fmt: skip
    seen = [(start, 0), *seen]
    (t0, s0), (t1, s1) = seen[len(seen) // 2 if len(seen) > 2 else 0], seen[-1]  # the second half: warm, compiled
    loss = run.training_table()["loss"].to_numpy()
    return Result(
        name, mode, device, (s1 - s0) / (t1 - t0), tuple(loss[:FIRST]), float(loss[-LAST:].mean()), _scores(run, spec)
    )  # fmt: skip


def _scores(run: Run, spec: Spec) -> dict[str, float]:
    vocabulary = spec.task.vocabulary
    periods = varying_periods(spec.task.n_ctx, len(vocabulary.ordinary))
    probe = repeated_blocks(vocabulary, 64, spec.task.n_ctx, periods, stream(0, "gpu check"))
    scores = score_heads(run.load_model().eval(), vocabulary, probe)
    return {name: float(scores.mean(name).max()) for name in SCORES}


def compare(result: Result, cpu: Result, precision: str) -> dict[str, float | bool]:
    """Differences from the CPU's run, and whether all are within the tolerances."""
    early = float(np.abs(np.subtract(result.first_losses, cpu.first_losses)).max())
    late = abs(result.final_loss - cpu.final_loss)
    scores = max(abs(result.scores[name] - cpu.scores[name]) for name in SCORES)
    agrees = early <= EARLY_TOLERANCE[precision] and late <= LATE_TOLERANCE and scores <= LATE_TOLERANCE
    return {"first_loss_difference": early, "final_loss_difference": late, "score_difference": scores, "agrees": agrees}


def rows(folder: Path, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """A row a training; the CPU's first, without differences."""
    for name, sets in PRESETS.items():
        spec = resolve(TASK, name, sets)
        cpu = _measure(name, "cpu", spec, folder, "cpu", False)
        yield asdict(cpu)
        for mode, (precision, compiled) in MODES.items():
            say(f"{name}, {mode} ...")
            asked = dataclasses.replace(spec, train=dataclasses.replace(spec.train, precision=precision))
            result = _measure(name, mode, asked, folder, "cuda", compiled)
            yield asdict(result) | compare(result, cpu, precision)


def line(row: dict[str, object]) -> str:
    """A row as a line of the table."""
    cells = [
        f"{row['preset']!s:9}{row['mode']!s:9}{row['steps_per_second']:8.1f} steps/s  loss {row['final_loss']:.4f}"
    ]
    cells += [f"{name.removesuffix('_score')} {value:.3f}" for name, value in row["scores"].items()]
    if "agrees" in row:
        cells.append(f"first losses differ by {row['first_loss_difference']:.1e}")
        cells.append("agrees" if row["agrees"] else "DIFFERS from the CPU")
    return "  ".join(cells)


def main() -> int:
    """Run every preset in every mode; 0 if all agree."""
    if not torch.cuda.is_available():
        print("gpu-check needs a CUDA device, and this machine has none", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, beside {torch.get_num_threads()} CPU threads; torch {torch.__version__}")
    done = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(Path(folder), lambda text: print(text, file=sys.stderr, flush=True)):
            print(line(row), flush=True)
            done.append(row)
            Path("gpu_check.json").write_text(json.dumps(done, indent=1) + "\n")
    return 0 if all(row.get("agrees", True) for row in done) else 3


if __name__ == "__main__":
    sys.exit(main())
