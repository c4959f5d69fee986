"""What a page needs to run a model by itself: weights, sequences, references, and logits to agree with. Plain data.

A *change* is the page's word for an intervention: ``{"states": {"L1.H0": "zero", "L0.mlp": "mean"}, "frozen": False,
"at": []}``. A part that is not named is on; ``at`` holds the positions at which parts are replaced (indices, or names
of the batch's places), empty for everywhere. :func:`intervention` is what it means here.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from workbench.ablation import Intervention, Joint, Mean, Resample, Zero
from workbench.components import all_parts
from workbench.errors import WorkbenchError, unknown_name
from workbench.measure import run
from workbench.model.transformer import Transformer
from workbench.reference import Pairing, ReferenceSet, build_reference
from workbench.registry import find
from workbench.rng import numpy_stream
from workbench.subject import Subject
from workbench.task import Batch

FORMAT = 1
SAMPLES = 64
STREAM = "ablation_view"
MOST_PARAMETERS = 2_000_000
"""A larger model makes a page that is slow to open and slow to answer."""

CHECKED_SEQUENCES, CHECKED_ROWS = 4, 8
Backend = Literal["page", "server"]
Change = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Material:
    """What a change is carried out on.

    Attributes:
        batch: test sequences. stream: the name of the stream that they were drawn from. reference: the means.
        pairing: whose z and MLP output stand in when a sequence is resampled; None where sequences are padded.
    """

    subject: Subject
    batch: Batch
    stream: str
    reference: ReferenceSet
    pairing: Pairing | None

    @property
    def ways(self) -> tuple[str, ...]:
        """The states that a part can have beside on."""
        return ("zero", "mean", "resample") if self.pairing is not None else ("zero", "mean")


@dataclass(frozen=True)
class Preset:
    """A change with a name: which parts get which state, and what that shows."""

    name: str
    note: str
    states: Mapping[str, str]


def material(subject: Subject, draw: int = 0, n: int = SAMPLES) -> Material:
    """``n`` sequences of the subject's test split (another ``draw`` gives others), their pairing, and the means.

    Raises:
        WorkbenchError: a subject without a task.
    """
    name = STREAM if draw == 0 else f"{STREAM}-{draw}"
    batch = subject.sample(n, "test", name)
    pairing = Pairing(n, subject.seed) if bool(batch.mask.all()) else None
    return Material(subject, batch, name, build_reference(subject), pairing)


def intervention(change: Change, given: Material) -> Intervention | None:
    """The intervention that a change stands for; None where nothing is changed.

    Raises:
        WorkbenchError: an unknown state, or resampling where sequences are padded. Parts and positions that do not
            exist are refused when it is carried out.
    """
    by_state: dict[str, list[str]] = {}
    for part, state in change["states"].items():
        if state not in given.ways:
            raise unknown_name("state", str(state), given.ways)
        by_state.setdefault(state, []).append(part)
    frozen, at = bool(change.get("frozen", False)), tuple(change.get("at", ()))
    members: list[Intervention] = []
    for state, parts in by_state.items():
        if state == "zero":
            members.append(Zero(parts, frozen_patterns=frozen, at=at))
        elif state == "mean":
            members.append(Mean(parts, given.reference, frozen_patterns=frozen, at=at))
        elif given.pairing is not None:
            members.append(Resample(parts, given.pairing, frozen_patterns=frozen, at=at))
    if not members:
        return None
    return members[0] if len(members) == 1 else Joint(tuple(members))


def parameters(subject: Subject) -> int:
    """How many numbers the model holds."""
    return sum(p.numel() for p in subject.model.parameters())


def payload(given: Material, presets: Sequence[Preset], backend: Backend = "page") -> dict[str, Any]:
    """Everything that the ablation view needs, as plain data.

    Args:
        given: sequences, pairing and means. presets: changes to offer by name. backend: ``page`` carries the weights
            and computes in the page (up to ``MOST_PARAMETERS``; beyond that no weights, and the page says how the model
            is served); ``server`` asks whoever serves the page.

    Raises:
        WorkbenchError: a foreign model for the page.
    """
    subject = given.subject
    count = parameters(subject)
    made: dict[str, Any] = {
        "format": FORMAT,
        "backend": backend,
        "run": _run(subject),
        "model": model_hash(subject),
        "config": asdict(subject.config),
        "parameters": count,
        "most_parameters": MOST_PARAMETERS,
        "vocabulary": asdict(subject.vocabulary),
        "task": _task(subject),
        "ways": list(given.ways),
        "samples": samples(given),
        "reference": {
            "describe": given.reference.describe(),
            "per_position": given.reference.per_position,
            "filled": given.reference.filled.tolist(),
        },
        "pairing": given.pairing.describe() if given.pairing is not None else None,
        "seed": subject.seed,
        "presets": [asdict(preset) for preset in presets],
        "weights": None,
        "checks": [],
    }
    if backend == "page" and not isinstance(subject.model, Transformer):
        raise WorkbenchError(
            "this model cannot run in a page",
            expected="a model of the workbench's own",
            got=type(subject.model).__name__,
            next_step='Ask for the payload of a served page: backend="server".',
        )
    if backend == "page" and count <= MOST_PARAMETERS:
        checks, logits = _checks(given)
        tensors = {name: p.detach() for name, p in subject.model.named_parameters()}
        tensors |= {f"reference.z.{layer}": mean for layer, mean in enumerate(given.reference.mean_z)}
        tensors |= {f"reference.mlp.{layer}": mean for layer, mean in enumerate(given.reference.mean_mlp)}
        made |= {"checks": checks, "weights": pack(tensors | logits)}
    return made


def samples(given: Material) -> dict[str, Any]:
    """The sequences of the material, as plain data."""
    batch = given.batch
    return {
        "n": len(batch),
        "split": "test",
        "stream": given.stream,
        "tokens": batch.tokens.tolist(),
        "mask": None if bool(batch.mask.all()) else batch.mask.int().tolist(),
        "targets": batch.targets.tolist(),
        "scored": batch.scored.int().tolist(),
        "places": {name: at.tolist() for name, at in batch.positions.items()},
        "donors": list(given.pairing.donors) if given.pairing is not None else None,
    }


def model_hash(subject: Subject) -> str:
    """sha256 over the model's shape and weights: what a link to a state of the view is about."""
    digest = hashlib.sha256(repr(subject.config).encode())
    for name, weight in subject.model.named_parameters():
        digest.update(name.encode() + _bytes(weight))
    return digest.hexdigest()


def pack(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors as one little-endian float32 buffer in base64, with its sha256 and where each tensor lies (in bytes)."""
    table, parts, offset = [], [], 0
    for name, tensor in tensors.items():
        table.append({"name": name, "shape": list(tensor.shape), "offset": offset})
        parts.append(_bytes(tensor))
        offset += len(parts[-1])
    whole = b"".join(parts)
    return {
        "data": base64.b64encode(whole).decode("ascii"),
        "sha256": hashlib.sha256(whole).hexdigest(),
        "tensors": table,
    }


def _bytes(tensor: Tensor) -> bytes:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy(), dtype="<f4").tobytes()


def _run(subject: Subject) -> dict[str, Any] | None:
    """Where the run lies, and the plugin folders that its task needs, so that both are found from any folder."""
    if subject.run is None:
        return None
    folder, name = str(subject.run.folder.resolve()), subject.run.task_name
    plugins = [] if name in find("tasks") else _task_folders(name, subject)
    return {"hash": subject.run.hash, "folder": folder, "plugins": plugins}


def _task_folders(name: str, subject: Subject) -> list[str]:
    """The plugin folders whose file ``tasks/NAME.py`` defines the subject's task; two may hold files of one name."""
    return sorted(
        str(Path(str(module.__file__)).resolve().parent.parent)
        for module_name, module in list(sys.modules.items())
        if module_name.endswith(f".tasks.{name}") and type(getattr(module, "TASK", None)) is type(subject.task)
    )


def _task(subject: Subject) -> dict[str, Any]:
    if subject.task is None:
        raise WorkbenchError("the ablation view needs a task", next_step="Give Subject a task.")
    floor, ceiling = subject.task.floor(), subject.task.ceiling()
    return {
        "name": subject.task.name,
        "floor": floor.accuracy,
        "predictor": floor.predictor,
        "ceiling": ceiling.accuracy if ceiling is not None else None,
    }


def _checks(given: Material) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Passes that the page repeats when it opens, and PyTorch's logits at some positions of each, in float64.

    In float32 the logits of a trained model lie up to 5e-5 from their own result in float64: what the page would show
    is PyTorch's rounding and not a fault.
    The first sequences clean, with half of the parts in each state, with half in mixed states under frozen patterns,
    and with half replaced at one position. They are paired among themselves.
    """
    subject, batch = given.subject, given.batch[:CHECKED_SEQUENCES]
    pairing = Pairing(len(batch), subject.seed) if given.pairing is not None else None
    few = replace(given, batch=batch, pairing=pairing)
    parts = [str(part) for part in all_parts(subject.config)]
    drawn = numpy_stream(subject.seed, STREAM, "checks")

    def half(states: Sequence[str]) -> dict[str, str]:
        chosen = sorted(drawn.permutation(len(parts))[: (len(parts) + 1) // 2].tolist())
        return {parts[i]: states[int(drawn.integers(len(states)))] for i in chosen}

    changes: list[dict[str, Any]] = [{"states": {}, "frozen": False, "at": []}]
    changes += [{"states": half([way]), "frozen": False, "at": []} for way in given.ways]
    changes.append({"states": half(given.ways), "frozen": True, "at": []})
    changes.append({"states": half(given.ways), "frozen": False, "at": [int(batch.mask.sum(1).min()) // 2]})
    checks, stored = [], {}
    exact = Transformer(subject.config).to(torch.float64)
    exact.load_state_dict(subject.model.state_dict())
    for number, change in enumerate(changes):
        logits = run(exact, batch, intervention(change, few)).logits
        for sequence in range(len(batch)):
            real = batch.mask[sequence].nonzero()[:, 0]
            rows = real[torch.linspace(0, len(real) - 1, min(CHECKED_ROWS, len(real))).round().long()]
            name = f"check.{number}.{sequence}"
            stored[name] = logits[sequence, rows]
            donor = pairing.donors[sequence] if pairing is not None else None
            checks.append(
                {"sequence": sequence, "donor": donor, "change": change, "rows": rows.tolist(), "logits": name}
            )
    return checks, stored
