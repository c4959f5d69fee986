"""Interventions from the plain data that they were stored as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.ablation import Intervention, Joint, KeepOnly, Mean, Resample, Zero
from workbench.components import as_heads, as_parts
from workbench.cut_path import CutPath
from workbench.errors import WorkbenchError, unknown_name
from workbench.reference import Pairing, ReferenceSet

KINDS = ("Zero", "Mean", "Resample", "KeepOnly", "CutPath", "Joint")


def from_json(data: Mapping[str, Any], references: Mapping[str, ReferenceSet]) -> Intervention:
    """The intervention that ``to_json`` wrote.

    Args:
        references: the reference sets at hand, by hash.

    Raises:
        WorkbenchError: an unknown kind, a reference that is not at hand, or a pairing that comes out differently.
    """
    kind = str(data.get("kind"))
    if kind not in KINDS:
        raise unknown_name("intervention", kind, KINDS)
    if kind == "Joint":
        return Joint(tuple(from_json(member, references) for member in data["members"]))
    if kind == "CutPath":
        ends = as_heads(data["senders"]), as_heads(data["receivers"])
        return CutPath(data["path"], *ends, _reference(data["reference"], references))
    parts = as_parts(data["parts"])
    modes = {name: bool(data[name]) for name in ("frozen_patterns", "frozen_norm")}
    if kind == "KeepOnly":
        by = from_json(data["by"], references)
        assert isinstance(by, Zero | Mean | Resample)
        return KeepOnly(parts, by, among=data["among"], **modes)
    at = tuple(data["at"])
    if kind == "Zero":
        return Zero(parts, at=at, **modes)
    if kind == "Mean":
        return Mean(parts, _reference(data["reference"], references), at=at, **modes)
    return Resample(parts, _pairing(data["pairing"]), at=at, **modes)


def _reference(stored: Mapping[str, Any], references: Mapping[str, ReferenceSet]) -> ReferenceSet:
    if stored["hash"] not in references:
        raise WorkbenchError(
            "the reference set of a stored intervention is not at hand",
            expected=stored["hash"][:12],
            got=", ".join(h[:12] for h in references) or "none",
            next_step="Build it again from its task, split, seed and size.",
        )
    return references[stored["hash"]]


def _pairing(stored: Mapping[str, Any]) -> Pairing:
    pairing = Pairing(stored["n"], stored["seed"])
    if pairing.hash != stored["hash"]:
        raise WorkbenchError(
            "a stored pairing comes out differently", expected=stored["hash"][:12], got=pairing.hash[:12]
        )
    return pairing
