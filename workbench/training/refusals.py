"""What is looked at before anything is made: whether the folder is ours, and whether the task can be drawn from."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench import runs, storage
from workbench.errors import WorkbenchError
from workbench.rng import stream
from workbench.task import Batch, Task
from workbench.training import resume

FEW = 4
KINDS = {"tokens": torch.int64, "mask": torch.bool, "targets": torch.int64, "scored": torch.bool}


def require_ours(folder: Path) -> None:
    """Check that a folder is missing, empty, or a run, finished or not.

    Raises:
        WorkbenchError: it holds somebody's files, is a file, or cannot be looked into.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise WorkbenchError(
                f"{folder} is a file", expected="a folder for the run", next_step="Choose another name."
            )
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
        begun = runs.RECORD in names or (folder / runs.RESUME / resume.CONDITIONS).exists()
        newborn = resume.BIRTH in names and resume.is_ours(folder / resume.BIRTH)
    except OSError as error:
        raise storage.unwritable(folder, error) from error
    foreign = names - {resume.BIRTH} if newborn else names
    if foreign and not begun:
        raise WorkbenchError(
            f"{folder} holds files that are not a run's", expected="an empty folder, or a run", got=min(foreign),
            next_step="Choose another folder: nothing was touched.",
        )  # fmt: skip


def require_drawable(task: Task, batch_size: int, seed: int) -> None:
    """Draw a few training sequences and check them.

    Raises:
        WorkbenchError: naming the task, its file, and the field of the batch that is wrong; or what ``sample`` raised.
    """
    n = min(batch_size, FEW)
    mend = f"Mend sample in {_file(task)}."
    try:
        batch = task.sample(n, "train", stream(seed, "look"))
        require_kinds(batch, task, n)
        batch.check(len(task.vocabulary), task.name)
    except WorkbenchError as error:
        raise WorkbenchError(error.problem, expected=error.expected, got=error.got, next_step=mend) from error
    except Exception as error:  # the code of a task is somebody's own: whatever it raises is a fault to name
        raise WorkbenchError(
            f"task {task.name}: sample fails", got=f"{type(error).__name__} ({error})", next_step=mend
        ) from error


def _file(task: Task) -> str:
    try:
        return inspect.getfile(type(task))
    except (OSError, TypeError):  # defined at a prompt or in a notebook
        return f"task {task.name}"


def require_kinds(batch: Any, task: Task, n: int) -> None:
    """Raise where ``sample`` gave no batch of ``n`` sequences within the context, or a field is of another kind."""
    if not isinstance(batch, Batch):
        raise WorkbenchError(f"task {task.name}: sample gives no batch", expected="a Batch", got=repr(batch)[:80])

    def require(ok: bool, field: str, expected: str, got: object) -> None:
        if not ok:
            raise WorkbenchError(f"task {task.name}: {field} is wrong", expected=expected, got=got)

    for field, kind in KINDS.items():
        value = getattr(batch, field)
        what = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        ok = isinstance(value, Tensor) and value.dtype == kind and value.ndim == 2 and len(value) == n
        require(ok and value.shape[1] <= task.n_ctx, field, f"{kind} [{n}, at most {task.n_ctx}]", what)
    for field in ("positions", "key_masks"):
        value = getattr(batch, field)
        ok = isinstance(value, Mapping) and all(isinstance(v, Tensor) for v in value.values())
        require(ok, field, "tensors by name", type(value).__name__)
