"""What an unfinished training needs to go on, bit for bit: ``resume/`` in the run folder.

It holds ``spec.json`` (what was asked, and on what it ran) and one ``state-*.safetensors``: weights, AdamW's moments
and the rows of the log; in its header the step, the hashes of the checkpoints so far, and one over it all. No
generator state is needed, since batches are addressed by step. The folder appears whole, by a rename; each newer
state likewise.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench import storage
from workbench.errors import WorkbenchError
from workbench.run_record import CHECKPOINT
from workbench.runs import RESUME, require_same

BIRTH = ".resume.tmp"
"""``resume/`` before its rename; a folder that holds nothing else was killed there, and is as good as empty."""
CONDITIONS = "spec.json"
OWN_NAMES = r"\.?(spec\.json|state-\d+\.safetensors)(\.tmp)?"
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
    storage.write_json(newborn / CONDITIONS, {"spec": spec, "execution": execution})
    _write(newborn, state)
    storage.rename(newborn, folder / RESUME)


def save(folder: Path, state: State) -> None:
    """Write a newer state, then remove the older ones."""
    kept = _write(folder / RESUME, state)
    for old in _states(folder):
        if old != kept:
            old.unlink()


def is_ours(path: Path) -> bool:
    """Whether this is a folder that holds nothing but what this module writes: then it may be removed."""
    try:
        if path.is_symlink() or not path.is_dir():
            return False
        if (path / CONDITIONS).exists():
            _conditions(path / CONDITIONS, "")
        return all(re.fullmatch(OWN_NAMES, inside.name) and inside.is_file() for inside in path.iterdir())
    except (OSError, WorkbenchError):
        return False


def end(folder: Path) -> None:
    """Remove ``resume/`` of a finished run; one that somebody's files have come into is left alone."""
    if is_ours(folder / RESUME):
        storage.remove_folder(folder / RESUME)


def load(folder: Path, spec: Mapping[str, Any], execution: Mapping[str, Any], fresh: State) -> State:
    """The latest state, after checking that it is whole, of the same spec and execution, and has its checkpoints.

    Args:
        fresh: the state of the same training at its step 0, which says what tensors there must be.

    Raises:
        WorkbenchError: another spec or execution (each difference named), or a file that is damaged or gone.
    """
    afresh = f"Remove {folder} to start again."
    there = _conditions(folder / RESUME / CONDITIONS, afresh)
    again = "Choose another folder, or ask for the same."
    require_same(folder, there["spec"], spec, what="another training, unfinished", next_step=again)
    other = "a training begun under other conditions, which would change its bits"
    require_same(folder, there["execution"], execution, what=other, next_step="Go on as it began, or start elsewhere.")
    states = _states(folder)
    if not states:
        raise WorkbenchError(f"{folder / RESUME} holds no state", next_step=afresh)
    state = _read(states[-1], fresh, spec["train"]["steps"], afresh)
    for name, want in state.checkpoints.items():
        if storage.sha256(storage.read_bytes(folder / name)) != want:
            raise WorkbenchError(f"{folder / name} has changed since it was written", next_step=afresh)
    return state


def _conditions(path: Path, next_step: str) -> dict[str, Any]:
    try:
        there = storage.read_json(path)
    except WorkbenchError as error:
        raise WorkbenchError(error.problem, expected=error.expected, got=error.got, next_step=next_step) from error
    if not (isinstance(there, dict) and set(there) == {"spec", "execution"} and all(map(_is_dict, there.values()))):
        raise WorkbenchError(f"{path} is damaged", expected="a spec and an execution", next_step=next_step)
    return there


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


def _read(path: Path, fresh: State, total: int, next_step: str) -> State:
    """The state in a file; whatever is not as :func:`_write` left it is one error that names the file."""

    def damaged(expected: object, got: object) -> WorkbenchError:
        return WorkbenchError(f"{path} is damaged", expected=expected, got=got, next_step=next_step)

    try:
        data = storage.read_bytes(path)
        tensors = storage.parse_tensors(path, data)
        note = json.loads(storage.read_note(path, data))
    except WorkbenchError as error:
        raise WorkbenchError(error.problem, expected=error.expected, got=error.got, next_step=next_step) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise damaged("the note of a state in its header", error) from error
    if not _is_dict(note) or set(note) != {"step", "checkpoints", "sha256"}:
        raise damaged("step, checkpoints and hash in its header", "others")
    step, checkpoints = note["step"], note["checkpoints"]
    if type(step) is not int or not 0 <= step <= total or path.name != _state_name(step):
        raise damaged(f"a step up to {total} that its name agrees with", f"step {step}")
    if not _is_dict(checkpoints) or not all(re.fullmatch(CHECKPOINT, name) for name in checkpoints):
        raise damaged("the names of checkpoints in its header", "others")
    wanted = {name: (t.dtype, tuple(t.shape)) for name, t in _tensors(fresh).items()}
    wanted["log"] = (fresh.log.dtype, (step, len(LOG_COLUMNS)))
    for name in sorted(set(wanted) | set(tensors)):
        got = (tensors[name].dtype, tuple(tensors[name].shape)) if name in tensors else None
        if wanted.get(name) != got:
            raise damaged(f"{name} as {wanted.get(name, 'no such tensor')}", got or "no such tensor")
    if _digest(tensors, step, checkpoints) != note["sha256"]:
        raise damaged("tensors of the hash in its header", "others")
    parts = {part: {n.partition(".")[2]: t for n, t in tensors.items() if n.startswith(f"{part}.")} for part in PARTS}
    return State(step, **parts, log=tensors["log"], checkpoints=checkpoints)


def latest(folder: Path) -> Path:
    """The file of the latest state."""
    return _states(folder)[-1]


def _states(folder: Path) -> list[Path]:
    return sorted((folder / RESUME).glob("state-*.safetensors"))


def _state_name(step: int) -> str:
    return f"state-{step:08d}.safetensors"


def _tensors(state: State) -> dict[str, Tensor]:
    parts = {f"{part}.{name}": tensor for part in PARTS for name, tensor in getattr(state, part).items()}
    return parts | {"log": state.log}


def _digest(tensors: Mapping[str, Tensor], step: int, checkpoints: Mapping[str, str]) -> str:
    """One hash over all that a state holds. Tensors lie on the CPU."""
    whole = hashlib.sha256(storage.canonical_json([step, checkpoints]))
    for name in sorted(tensors):
        whole.update(storage.canonical_json([name, str(tensors[name].dtype), list(tensors[name].shape)]))
        whole.update(tensors[name].numpy().tobytes())
    return whole.hexdigest()


def _write(resume: Path, state: State) -> Path:
    tensors = {name: tensor.detach().cpu() for name, tensor in _tensors(state).items()}
    checkpoints = dict(state.checkpoints)
    note = {"step": state.step, "checkpoints": checkpoints, "sha256": _digest(tensors, state.step, checkpoints)}
    path = resume / _state_name(state.step)
    storage.write_tensors(path, tensors, note=json.dumps(note))
    return path


def empty_log(steps: int, device: torch.device) -> Float[Tensor, "step 3"]:
    """Room for the rows of a whole training; rows not yet reached are NaN."""
    return torch.full((steps, len(LOG_COLUMNS)), torch.nan, device=device)
