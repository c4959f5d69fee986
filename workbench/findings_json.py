"""Findings as plain JSON data and back, and what of them a run's ``findings.json`` holds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.errors import WorkbenchError
from workbench.findings import (
    Answer,
    Attention,
    Circuit,
    Claim,
    Column,
    Curve,
    Definition,
    Edge,
    Finding,
    Heatmap,
    Interactive,
    Node,
    Notice,
    Panel,
    Rule,
    Series,
    Span,
    Table,
)

KINDS: Mapping[str, type[Finding]] = {
    k.__name__: k for k in (Answer, Claim, Table, Curve, Heatmap, Attention, Circuit, Interactive, Notice, Definition)
}
_PARTS: Mapping[str, type[Any]] = {
    "columns": Column,
    "series": Series,
    "rules": Rule,
    "spans": Span,
    "panels": Panel,
    "nodes": Node,
    "edges": Edge,
}


def to_json(value: Any) -> Any:
    """Plain JSON data of a finding or a part of it; a number that is not finite becomes null."""
    if isinstance(value, Finding):
        return {"finding": type(value).__name__, **_fields(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if isinstance(value, np.ndarray):
        return np.where(np.isfinite(value), value, np.array(None)).tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    raise TypeError(f"{type(value).__name__} is not plain data; convert it before it becomes a finding")


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}


def _tuples(value: Any, none_is_nan: bool) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(v, none_is_nan) for v in value)
    return math.nan if value is None and none_is_nan else value


def from_json(data: Mapping[str, Any]) -> Finding:
    """The finding that ``to_json`` wrote (null in arrays of numbers comes back as nan)."""
    kind = KINDS.get(data.get("finding", ""))
    if kind is None:
        raise WorkbenchError("a finding's kind is unknown", expected=" or ".join(KINDS), got=data.get("finding"))
    return _build(kind, data)


def _build(kind: type[Any], data: Mapping[str, Any]) -> Any:
    arguments = {}
    for f in dataclasses.fields(kind):
        if f.name not in data:
            continue
        value = data[f.name]
        if f.name in _PARTS and isinstance(value, list):
            value = tuple(_build(_PARTS[f.name], part) for part in value)
        elif f.name == "rows":
            value = tuple(dict(row) for row in value)
        elif isinstance(value, list):
            value = _tuples(value, none_is_nan=f.name in ("x", "y", "low", "high", "values", "patterns"))
        arguments[f.name] = value
    return kind(**arguments)


def tables(findings: Sequence[Finding]) -> dict[str, list[dict[str, Any]]]:
    """Every table's rows by id, as ``findings.json`` holds them."""
    return {f.id: [dict(to_json(row)) for row in f.rows] for f in findings if isinstance(f, Table)}


PRIVATE = ("title", "caption", "section", "scale")
"""What of a claim is for the page alone."""


def public(claim: Claim) -> dict[str, Any]:
    """A claim as ``findings.json`` holds it."""
    return {f.name: to_json(getattr(claim, f.name)) for f in dataclasses.fields(claim) if f.name not in PRIVATE}
