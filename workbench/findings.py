"""What an analysis says: plain data. Reports draw these and compute nothing; JSON is in :mod:`workbench.findings_json`.

Every finding has ``id`` (unique on a page, dotted, a contract for scripts), ``title`` (what is seen) and
``caption`` (how it was computed). Numbers may be ``nan`` where something is undefined: JSON holds ``null`` there,
and a page marks the cell. ``section`` groups findings under a heading, in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from workbench.errors import WorkbenchError
from workbench.pattern_array import checked_patterns

Verdict = Literal["supported", "contradicted", "inconclusive", "not_applicable"]
Direction = Literal["above", "below"]
Patterns = np.ndarray | tuple[tuple[tuple[float | None, ...], ...], ...]
Cell = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Base of all findings."""

    id: str
    title: str
    caption: str = ""
    section: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer(Finding):
    """The first screen: ``title`` is the question, ``text`` the answer in a sentence or two.

    ``text`` may set off names as ``**L1.H0**``; everything else in it is literal.
    """

    text: str


@dataclass(frozen=True, kw_only=True)
class Claim(Finding):
    """A statement with a number, its interval, a threshold stated before looking, and a verdict.

    Attributes:
        statement: the sentence. heads: the heads it is about, as names.
        value, low, high: the estimate and its 95 % interval, None where not applicable.
        unit: of the value ("nats", "accuracy", "ratio to chance", "heads"...).
        samples: what the interval samples ("sequences", "seeds", "none"). n: how many of them.
        semantics: the ablation's semantics with its reference, or "" where nothing is ablated.
        threshold, direction: supported when the interval lies on that side of it; None for a measurement.
        verdict: supported, contradicted, inconclusive (the interval straddles) or not_applicable.
        reason: why not_applicable, or what decides.
        scale: the natural range of the value, for drawing the interval.
    """

    statement: str
    heads: tuple[str, ...] = ()
    value: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    samples: str = "sequences"
    n: int = 0
    semantics: str = ""
    threshold: float | None = None
    direction: Direction = "above"
    verdict: Verdict = "not_applicable"
    reason: str = ""
    scale: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        key: the rows' key. label: the heading. digits: decimals shown, None for text and whole numbers.
        low, high: keys of the interval's ends, shown with the value ("0.95 [0.93, 0.97]").
        signed: show the sign and colour by it. help: what the column means.
    """

    key: str
    label: str
    digits: int | None = None
    low: str = ""
    high: str = ""
    signed: bool = False
    help: str = ""


@dataclass(frozen=True, kw_only=True)
class Table(Finding):
    """Rows of plain cells. ``marked`` names rows (by index) to set off, for instance the heads of S0 and S1."""

    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Cell], ...]
    marked: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line: ``x``, ``y``, optionally a band ``low``..``high``. ``emphasis`` draws it in the foreground."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    emphasis: bool = False


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A labelled reference value (``axis="y"``) or place (``axis="x"``), for instance chance or the ceiling."""

    label: str
    value: float
    axis: Literal["x", "y"] = "y"


@dataclass(frozen=True, kw_only=True)
class Span:
    """A labelled stretch of the x axis, for instance the bracket of a phase change."""

    label: str
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Curve(Finding):
    """Lines over a shared x axis. Two half-width curves stand side by side."""

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = ()
    spans: tuple[Span, ...] = ()
    x_scale: Literal["linear", "log"] = "linear"
    y_range: tuple[float, float] | None = None
    width: Literal["half", "full"] = "full"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One matrix of a heatmap, rows from the top; ``nan`` cells are marked. ``note`` stands under the title."""

    title: str
    note: str = ""
    values: tuple[tuple[float, ...], ...]
    low: tuple[tuple[float, ...], ...] = ()
    high: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Heatmap(Finding):
    """One or more matrices on one colour scale.

    Attributes:
        panels: the matrices, all of one shape. row_labels, column_labels: texts for the ticks.
        row_title, column_title: what the axes are. unit: of the values.
        kind: sequential (from ``vmin``), or diverging around zero.
        vmin, vmax: the scale's ends, None to take them from the data; values outside are marked as clipped.
        annotate: write the value in each cell (small matrices).
        marks: cells (panel, row, column) to outline. rules: labelled reference values for the scale (chance).
    """

    panels: tuple[Panel, ...]
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    row_title: str = ""
    column_title: str = ""
    unit: str = ""
    kind: Literal["sequential", "diverging"] = "sequential"
    vmin: float | None = None
    vmax: float | None = None
    annotate: bool = False
    marks: tuple[tuple[int, int, int], ...] = ()
    rules: tuple[Rule, ...] = ()
    width: Literal["half", "full"] = "full"

    def __post_init__(self) -> None:
        shape = (len(self.row_labels), len(self.column_labels))
        for panel in self.panels:
            got = (len(panel.values), len(panel.values[0]) if panel.values else 0)
            if got != shape or any(len(row) != shape[1] for row in panel.values):
                raise WorkbenchError(
                    f"heatmap {self.id}, panel {panel.title!r}: labels and values differ in size",
                    expected=f"{shape[0]} x {shape[1]} (the labels)",
                    got=f"{got[0]} x {got[1]}",
                )


@dataclass(frozen=True, kw_only=True)
class Attention(Finding):
    """Patterns of several heads over one sequence, for the interactive attention view.

    Attributes:
        tokens: the texts of the sequence.
        patterns: ``[head query_pos key_pos]``, rows sum to 1, from an array or from nested tuples (where None is nan);
            kept as a read-only copy: of floats as they come, of anything else as float64.
        names: one a head.

    Two are equal where their texts and every weight are, undefined ones included.
    """

    tokens: tuple[str, ...]
    patterns: Patterns
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", checked_patterns(self.id, self.tokens, self.names, self.patterns))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Attention):
            return NotImplemented
        weights = np.asarray(self.patterns), np.asarray(other.patterns)
        return self._texts() == other._texts() and np.array_equal(*weights, equal_nan=True)

    def __hash__(self) -> int:
        return hash(self._texts())

    def _texts(self) -> tuple[object, ...]:
        return self.id, self.title, self.caption, self.section, self.tokens, self.names


@dataclass(frozen=True, kw_only=True)
class Node:
    """A part of a circuit: its ``name``, the ``layer`` it stands in, its ``role`` in a word or two ("" where it has
    none), and what leaving it out does, with its interval (None where that was not measured)."""

    name: str
    layer: int
    role: str = ""
    effect: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A path from a part to an input of a later one (``kind``: "Q", "K", "V"), and what cutting it does."""

    sender: str
    receiver: str
    kind: str
    weight: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Circuit(Finding):
    """Parts that work together, and the paths between them. ``unit`` is of the effects and weights."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    unit: str
    width: Literal["half", "full"] = "full"

    def __post_init__(self) -> None:
        layers = {node.name: node.layer for node in self.nodes}
        if len(layers) != len(self.nodes):
            raise WorkbenchError(f"circuit {self.id}: two nodes have one name", expected="all names different")
        for edge in self.edges:
            if not {edge.sender, edge.receiver} <= set(layers):
                raise WorkbenchError(
                    f"circuit {self.id}: an edge has no node at its end",
                    expected=", ".join(layers) or "no edges",
                    got=f"{edge.sender} to {edge.receiver}",
                )
            if layers[edge.sender] >= layers[edge.receiver]:
                raise WorkbenchError(
                    f"circuit {self.id}: an edge does not lead upwards",
                    expected="a sender in a layer below its receiver's",
                    got=f"{edge.sender} to {edge.receiver}",
                )


@dataclass(frozen=True, kw_only=True)
class Interactive(Finding):
    """A model that the reader can take apart. ``payload`` is what :func:`workbench.live.payload` makes."""

    payload: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Notice(Finding):
    """A remark in place: ``level`` info, warning (something was skipped or is limited) or error (a part failed)."""

    text: str
    level: Literal["info", "warning", "error"] = "info"


@dataclass(frozen=True, kw_only=True)
class Definition(Finding):
    """What a score or word used on the page means: ``title`` is the word, ``text`` the meaning."""

    text: str
