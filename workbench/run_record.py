"""Whether the content of a ``run.json`` is what training writes: a true hash alone says only that it is unchanged."""

from __future__ import annotations

import dataclasses
import re
import reprlib
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench import storage
from workbench.config import ModelConfig, TrainConfig
from workbench.errors import WorkbenchError

FIELDS = ("format", "spec", "execution", "steps", "artefacts", "hash")
CHECKPOINT = r"checkpoints/step-[0-9]{8}\.safetensors"
ARTEFACT = rf"model\.safetensors|training\.csv|audit\.json|{CHECKPOINT}"
"""The only files that a run names: none lies outside its folder."""
REQUIRED = ("model.safetensors", "training.csv", "checkpoints/step-00000000.safetensors")
EXECUTION = {
    "device": str, "hardware": str, "threads": int, "compile": bool, "platform": str, "python": str, "versions": dict,
}  # fmt: skip
LARGEST = 10**300
"""A whole number may stand for a float as long as it can be one."""
NEXT_STEP = "Restore the file, or train again into another folder."


def require_sound(path: Path, record: dict[str, Any]) -> None:
    """Check the record of format 1 that was read from ``path``: its hash, then every field.

    Raises:
        WorkbenchError: naming the file, and the field that is missing, extra, or of a wrong kind or range.
    """
    rest = {key: value for key, value in record.items() if key != "hash"}
    try:
        true = storage.sha256(storage.canonical_json(rest))
    except WorkbenchError as error:
        raise WorkbenchError(f"{path} is malformed", got=error.got, next_step=NEXT_STEP) from error
    if set(record) != set(FIELDS) or record["hash"] != true:
        raise WorkbenchError(
            f"{path} was edited by hand or damaged", expected="the hash of its own content",
            got=_short(record.get("hash")), next_step=NEXT_STEP,
        )  # fmt: skip
    try:
        _check(path, record)
    except WorkbenchError as error:
        if error.problem.startswith(str(path)):
            raise
        # The settings name their field; the file is known only here.
        raise WorkbenchError(
            f"{path}: {error.problem}", expected=error.expected, got=error.got, next_step=NEXT_STEP
        ) from error


def _check(path: Path, record: dict[str, Any]) -> None:
    def require(ok: bool, name: str, expected: str, got: object) -> None:
        if not ok:
            raise WorkbenchError(
                f"{path}: {name} is malformed", expected=expected, got=_short(got), next_step=NEXT_STEP
            )

    def require_keys(name: str, value: Any, keys: Iterable[str]) -> None:
        require(isinstance(value, dict), name, "an object", value)
        for key in keys:
            require(key in value, f"{name}.{key}", "a value", "none")
        strange = sorted(set(value) - set(keys))
        if strange:
            raise WorkbenchError(f"{path} has settings unknown to this version", got=_short(f"{name}.{strange[0]}"))

    def require_types(name: str, value: dict[str, Any], types: dict[str, Any]) -> None:
        for key, hint in types.items():
            kind = hint if isinstance(hint, type) else str  # a Literal is a choice of texts
            ok = type(value[key]) is kind or (kind is float and type(value[key]) is int and abs(value[key]) < LARGEST)
            require(ok, f"{name}.{key}", f"a value of kind {kind.__name__}", value[key])

    spec, artefacts, execution = record["spec"], record["artefacts"], record["execution"]
    require_keys("spec", spec, ("task", "model", "train", "seed"))
    require_keys("spec.task", spec["task"], ("name", "options"))
    require_types("spec.task", spec["task"], {"name": str, "options": dict})
    require(spec["task"]["name"] != "", "spec.task.name", "a name", "")
    for name, settings in (("model", ModelConfig), ("train", TrainConfig)):
        require_keys(f"spec.{name}", spec[name], [f.name for f in dataclasses.fields(settings)])
        require_types(f"spec.{name}", spec[name], typing.get_type_hints(settings))
        settings(**spec[name])
    require(type(spec["seed"]) is int, "spec.seed", "a whole number", spec["seed"])
    require(type(record["steps"]) is int and record["steps"] == spec["train"]["steps"], "steps", "spec.train.steps",
            record["steps"])  # fmt: skip
    require_keys("execution", execution, EXECUTION)
    require_types("execution", execution, EXECUTION)
    for library, version in execution["versions"].items():
        require(isinstance(version, str), f"execution.versions.{_short(library)}", "a text", version)
    require(isinstance(artefacts, dict), "artefacts", "an object", artefacts)
    for name, digest in artefacts.items():
        require(re.fullmatch(ARTEFACT, name) is not None, "artefacts", "names of a run's own files", name)
        ok = isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) is not None
        require(ok, f"artefacts.{name}", "a SHA-256", digest)
    for name in REQUIRED:
        require(name in artefacts, f"artefacts.{name}", "a SHA-256", "none")


def _short(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 80 else reprlib.repr(value)
