"""The run folder: what was asked, on what it ran, and the hash of every file that training made.

``run.json`` is the identity, written once when training ends::

    {"format": 1, "spec": {"task": {"name", "options"}, "model", "train", "seed"}, "execution": {...},
     "steps": 600, "artefacts": {"model.safetensors": sha256, ...}, "hash": sha256 of everything else}

``hash`` is taken over the canonical JSON of the rest, so an edit by hand shows. Beside it stand ``model.safetensors``,
``checkpoints/step-*.safetensors``, ``training.csv`` and, where the task was audited, ``audit.json``; while a training
is unfinished there is ``resume/`` instead of ``run.json``. Every file is checked against its hash when it is read.
Pages and findings may lie in the folder too: they name the run's hash and are no part of it.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from workbench import run_record, storage
from workbench.config import ModelConfig, TrainConfig
from workbench.errors import CheckFailed, WorkbenchError
from workbench.model.transformer import Transformer
from workbench.task import Task

FORMAT = 1
RECORD, WEIGHTS, TABLE, RESUME, CHECKPOINTS = "run.json", "model.safetensors", "training.csv", "resume", "checkpoints"
AUDIT = "audit.json"
COLUMNS = ("step", "loss", "excess", "accuracy", "grad_norm", "lr")


@dataclass(frozen=True)
class Checkpoint:
    """Weights kept along the way: after ``step`` updates, in the file ``path``."""

    step: int
    path: Path


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run folder. ``record`` is the content of its ``run.json``."""

    folder: Path
    record: dict[str, Any]

    @property
    def hash(self) -> str:
        """What names this run everywhere: the hash over its spec, execution and artefacts."""
        return self.record["hash"]

    @property
    def spec(self) -> dict[str, Any]:
        """What was asked: task, model, train, seed."""
        return self.record["spec"]

    @property
    def task_name(self) -> str:
        """The task that it was trained on."""
        return self.spec["task"]["name"]

    @property
    def task_options(self) -> dict[str, Any]:
        """The options of that task."""
        return self.spec["task"]["options"]

    @property
    def model_config(self) -> ModelConfig:
        """The model's shape."""
        return ModelConfig(**self.spec["model"])

    @property
    def train_config(self) -> TrainConfig:
        """How it was trained."""
        return TrainConfig(**self.spec["train"])

    @property
    def seed(self) -> int:
        """The seed of its weights and batches."""
        return self.spec["seed"]

    def load_model(self) -> Transformer:
        """The trained model, on the CPU.

        Raises:
            WorkbenchError: the file is missing, damaged, changed, a pickle, or of another model.
        """
        return self._load(WEIGHTS)

    def checkpoints(self) -> list[Checkpoint]:
        """The weights kept along the way, by step, from 0 to the last."""
        names = sorted(name for name in self.record["artefacts"] if name.startswith(f"{CHECKPOINTS}/"))
        return [Checkpoint(int(Path(name).stem.removeprefix("step-")), self.folder / name) for name in names]

    def load_checkpoint(self, step: int) -> Transformer:
        """The model after ``step`` updates, on the CPU; errors as :meth:`load_model`, or no such step."""
        if checkpoint_name(step) not in self.record["artefacts"]:
            steps = ", ".join(str(c.step) for c in self.checkpoints())
            raise WorkbenchError(f"{self.folder} has no checkpoint of that step", expected=steps, got=step)
        return self._load(checkpoint_name(step))

    def training_table(self) -> pd.DataFrame:
        """The training curve: one row a step, columns ``step loss excess accuracy grad_norm lr``.

        Row ``step`` is of the weights after ``step`` updates (as in the checkpoint of that step) on that step's
        training batch: loss in nats a position with a target, without the penalty; excess over the task's ceiling (NaN
        where unknown); accuracy on scored positions; the gradient norm before clipping and the rate of the next update.
        """
        data = self._read(TABLE)
        self._require_hash(TABLE, data)
        names, *rows = csv.reader(io.StringIO(data.decode()))
        return pd.DataFrame([[float(cell or "nan") for cell in row] for row in rows], columns=names).astype(
            {"step": int}
        )

    def audit(self) -> dict[str, Any] | None:
        """The certificate of the task that it was trained on (``workbench.audit.from_json`` reads it), if there is one.

        Raises:
            WorkbenchError: the file is missing or has changed since.
        """
        if AUDIT not in self.record["artefacts"]:
            return None
        data = self._read(AUDIT)
        self._require_hash(AUDIT, data)
        return storage.parse_json(self.folder / AUDIT, data)

    def _read(self, name: str) -> bytes:
        return storage.read_bytes(self.folder / name)

    def _require_hash(self, name: str, data: bytes) -> None:
        want, got = self.record["artefacts"].get(name), storage.sha256(data)
        if want != got:
            raise WorkbenchError(
                f"{self.folder / name} has changed since it was trained", expected=f"sha256 {want}", got=got
            )

    def _load(self, name: str) -> Transformer:
        data = self._read(name)
        # What a file holds is said before that it changed: "another model" tells more than "another hash".
        tensors = storage.parse_tensors(self.folder / name, data)
        require_fit(tensors, self.model_config, self.folder / name)
        self._require_hash(name, data)
        model = Transformer(self.model_config)
        model.load_state_dict(tensors)
        return model


def checkpoint_name(step: int) -> str:
    """Where the weights after ``step`` updates stand, relative to the run folder."""
    return f"{CHECKPOINTS}/step-{step:08d}.safetensors"


def require_fit(tensors: Mapping[str, Tensor], config: ModelConfig, path: Path) -> None:
    """Check that tensors are the weights of a model of this configuration.

    Raises:
        WorkbenchError: naming the file and the first tensor that is missing, extra, or of another shape or dtype.
    """
    with torch.device("meta"):
        expected = Transformer(config).state_dict()
    for name in [*expected, *sorted(set(tensors) - set(expected))]:
        want, got = (
            f"{t[name].dtype} {tuple(t[name].shape)}" if name in t else "no such tensor" for t in (expected, tensors)
        )
        if want != got:
            raise WorkbenchError(f"{path} holds the weights of another model ({name})", expected=want, got=got)


def make_spec(task: Task, model: ModelConfig, train: TrainConfig, seed: int) -> dict[str, Any]:
    """What is asked, as plain JSON data: together with the execution it decides every bit of the result.

    Raises:
        WorkbenchError: an option of the task that JSON cannot hold.
    """
    spec = {
        "task": {"name": task.name, "options": task.options},
        "model": dataclasses.asdict(model),
        "train": dataclasses.asdict(train),
        "seed": seed,
    }
    try:
        return storage.plain(spec)
    except (TypeError, WorkbenchError) as error:
        raise WorkbenchError(
            f"the options of task {task.name} cannot be recorded", expected="plain data", got=error
        ) from error


def differences(there: Mapping[str, Any], asked: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two nested records, as ``"train.steps: 600 there, 300 asked"``."""
    found = []
    for key in [*there, *(k for k in asked if k not in there)]:
        a, b = there.get(key), asked.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, prefix if key == "options" else f"{prefix}{key}.")
        elif a != b or (key in there) != (key in asked):
            found.append(f"{prefix}{key}: {a} there, {b} asked")
    return found


def require_same(
    folder: Path, there: Mapping[str, Any], asked: Mapping[str, Any], *, what: str, next_step: str
) -> None:
    """Raise the error that names every difference between what a folder holds and what is asked of it."""
    if found := differences(there, asked):
        raise WorkbenchError(f"{folder} holds {what} ({'; '.join(found)})", next_step=next_step)


def seal(
    folder: Path, spec: dict[str, Any], execution: dict[str, Any], steps: int, artefacts: Mapping[str, str]
) -> Run:
    """Write ``run.json``, which makes the folder a finished run."""
    record: dict[str, Any] = {"format": FORMAT, "spec": spec, "execution": execution, "steps": steps}
    record["artefacts"] = dict(sorted(artefacts.items()))
    record["hash"] = storage.sha256(storage.canonical_json(record))
    storage.write_json(folder / RECORD, record)
    return Run(folder, record)


def _require_finished(folder: Path) -> None:
    """Raise the error that says what stands there instead of a finished run."""
    try:
        if not folder.is_dir():
            got = "a file" if folder.exists() else "nothing"
            raise WorkbenchError(f"{folder} is not a run folder", got=got, next_step="Make one with workbench train.")
        if (folder / RECORD).exists():
            return
        unfinished = (folder / RESUME / "spec.json").exists()
        pickles = [p.name for p in sorted(folder.iterdir()) if p.suffix in storage.PICKLE_SUFFIXES]
    except (OSError, ValueError) as error:  # a name that is too long or holds a zero byte, a folder closed to us
        raise WorkbenchError(f"{folder} cannot be opened", got=getattr(error, "strerror", error)) from error
    if unfinished:
        raise WorkbenchError(
            f"{folder} is an unfinished run", next_step="Run the same train command again: it goes on from there."
        )
    refused = f"{pickles[0]} is a pickle and is never loaded." if pickles else "Make one with workbench train."
    raise WorkbenchError(f"{folder} is not a run folder", expected=f"a {RECORD} in it", got="none", next_step=refused)


def open_run(folder: str | Path) -> Run:
    """Open a finished run folder and check its identity (files are checked when they are read).

    Raises:
        WorkbenchError: no folder, not a run, an unfinished one, a ``run.json`` that was damaged or edited, or one of
            another format version.
    """
    folder = Path(folder)
    _require_finished(folder)
    path = folder / RECORD
    record = storage.read_json(path)
    version = record.get("format") if isinstance(record, dict) else None
    if type(version) is not int or version != FORMAT:
        raise WorkbenchError(
            f"{path} is of an unknown format", expected=f"format {FORMAT}", got=version,
            next_step="Open it with the version of the workbench that wrote it.",
        )  # fmt: skip
    run_record.require_sound(path, record)
    return Run(folder, record)


def require_whole(run: Run) -> None:
    """Check the hash of every file of a run, that all weights load into the model, and that no checkpoint is strange.

    Raises:
        WorkbenchError: naming the first file that is missing, damaged, changed or not the run's.
    """
    for name in dict.fromkeys([WEIGHTS, TABLE, *run.record["artefacts"]]):
        if name.endswith(".safetensors"):
            run._load(name)
        else:
            run._require_hash(name, run._read(name))
    for path in sorted((run.folder / CHECKPOINTS).iterdir()):
        if f"{CHECKPOINTS}/{path.name}" not in run.record["artefacts"]:
            raise WorkbenchError(f"{path} is not part of this run", next_step="Move it elsewhere.")


def verify(folder: str | Path) -> Run:
    """Check a run folder whole: identity, the hash of every file, and that all weights load into the model.

    Raises:
        CheckFailed: naming the file that is wrong.
        WorkbenchError: there is no finished run to check.
    """
    _require_finished(Path(folder))
    try:
        run = open_run(folder)
        require_whole(run)
    except WorkbenchError as error:
        raise CheckFailed(error.problem, expected=error.expected, got=error.got, next_step=error.next_step) from error
    return run
