"""The history of a training: at which steps weights are kept, each in its own file."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from workbench import storage
from workbench.runs import CHECKPOINTS, checkpoint_name

INTERVALS = 32


def checkpoint_steps(total: int) -> tuple[int, ...]:
    """The steps at which weights are kept: 0, every early one, then log-spaced, and ``total`` itself.

    ``round(total ** (i / 32))`` for i = 0..32, without repeats: about 30 for 600 steps, each 1.2 times the last.
    """
    return tuple(sorted({0, *(round(total ** (i / INTERVALS)) for i in range(INTERVALS + 1))}))


def save_checkpoint(folder: Path, step: int, model: nn.Module) -> tuple[str, str]:
    """Write the weights after ``step`` updates; returns the file's name in the folder and its hash."""
    storage.make_folder(folder / CHECKPOINTS)
    return checkpoint_name(step), storage.write_tensors(folder / checkpoint_name(step), model.state_dict())
