"""What an unfinished training needs to go on, bit for bit: ``resume/`` in the run folder.

It holds ``spec.json`` (what was asked, and on what it ran) and one ``state-*.safetensors``: weights, AdamW's moments,
the step (in the file's name), the rows of the log, and the hashes of the checkpoints so far. No generator state is
needed, since batches are addressed by step. The folder appears whole, by a rename; each newer state likewise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench import storage
from workbench.errors import WorkbenchError
from workbench.runs import RESUME, require_same

BIRTH = ".resume.tmp"
"""``resume/`` before its rename; a folder that holds nothing else was killed there, and is as good as empty."""
LOG_COLUMNS = ("loss", "accuracy", "grad_norm")
PARTS = ("weight", "exp_avg", "exp_avg_sq")


@dataclass
class State:
    """A training between two updates.

    Attributes:
        step: updates done. weight, exp_avg, exp_avg_sq: parameters and AdamW's two moments, by parameter name.
        log: the row of each update done: loss, accuracy, grad_norm. checkpoints: hash of each kept file, by its name.
    """

    step: int
    weight: Mapping[str, Tensor]
    exp_avg: Mapping[str, Tensor]
    exp_avg_sq: Mapping[str, Tensor]
    log: Float[Tensor, "step 3"]
    checkpoints: Mapping[str, str] = field(default_factory=dict)


def begin(folder: Path, spec: Mapping[str, Any], execution: Mapping[str, Any], state: State) -> None:
    """Make ``resume/`` with the first state in it, all at once."""
    newborn = folder / BIRTH
    storage.remove_folder(newborn)
    storage.make_folder(newborn)
    storage.write_json(newborn / "spec.json", {"spec": spec, "execution": execution})
    _write(newborn, state)
    storage.rename(newborn, folder / RESUME)


def save(folder: Path, state: State) -> None:
    """Write a newer state, then remove the older ones."""
    kept = _write(folder / RESUME, state)
    for old in _states(folder):
        if old != kept:
            old.unlink()


def load(folder: Path, spec: Mapping[str, Any], execution: Mapping[str, Any]) -> State:
    """The latest state, after checking that it is of the same spec and execution and that its checkpoints are there.

    Raises:
        WorkbenchError: another spec or execution (each difference named), or a file that is damaged or gone.
    """
    there = storage.read_json(folder / RESUME / "spec.json")
    if not isinstance(there, dict) or set(there) != {"spec", "execution"}:
        raise WorkbenchError(f"{folder / RESUME / 'spec.json'} is damaged", expected="a spec and an execution")
    again = "Choose another folder, or ask for the same."
    require_same(folder, there["spec"], spec, what="another training, unfinished", next_step=again)
    other = "a training begun under other conditions, which would change its bits"
    require_same(folder, there["execution"], execution, what=other, next_step="Go on as it began, or start elsewhere.")
    afresh = "Remove the folder and train again."
    states = _states(folder)
    if not states:
        raise WorkbenchError(f"{folder / RESUME} holds no state", next_step=afresh)
    data = storage.read_bytes(states[-1])
    tensors = storage.parse_tensors(states[-1], data)
    parts = {part: {n.partition(".")[2]: t for n, t in tensors.items() if n.startswith(f"{part}.")} for part in PARTS}
    checkpoints = json.loads(storage.read_note(states[-1], data))
    for name, want in checkpoints.items():
        if storage.sha256(storage.read_bytes(folder / name)) != want:
            raise WorkbenchError(f"{folder / name} has changed since it was written", next_step=afresh)
    return State(int(states[-1].stem.removeprefix("state-")), **parts, log=tensors["log"], checkpoints=checkpoints)


def latest(folder: Path) -> Path:
    """The file of the latest state."""
    return _states(folder)[-1]


def _states(folder: Path) -> list[Path]:
    return sorted((folder / RESUME).glob("state-*.safetensors"))


def _write(resume: Path, state: State) -> Path:
    tensors = {f"{part}.{name}": tensor for part in PARTS for name, tensor in getattr(state, part).items()}
    path = resume / f"state-{state.step:08d}.safetensors"
    storage.write_tensors(path, tensors | {"log": state.log}, note=json.dumps(dict(state.checkpoints)))
    return path


def empty_log(steps: int, device: torch.device) -> Float[Tensor, "step 3"]:
    """Room for the rows of a whole training; rows not yet reached are NaN."""
    return torch.full((steps, len(LOG_COLUMNS)), torch.nan, device=device)
