"""Circuits: heads as boxes in their layers, from below; paths as lines, each as wide as its effect is large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from reports import palette
from reports.charts import WIDTH
from reports.drawing import Drawing, new_figure, place, quiet_matplotlib, to_svg
from reports.escaping import glyphs, short
from reports.numbers import number
from workbench.findings import Circuit, Edge, Node

KINDS: Mapping[str, str] = {"Q": "c1", "K": "c2", "V": "c3"}
"""The colour of each input; one of another kind has the next."""

_FEW = 0.04  # an effect below this share of the largest is a hairline without a number
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.85, 0.25, 0.2, 0.2  # inches around the boxes
_BOX, _BETWEEN = 0.66, 1.0  # inches: a box's height, the room between layers
_WIDEST, _GAP = 1.75, 0.18  # inches: the widest box, the least room beside one
_HAIR, _THICK = 0.7, 7.0  # points: the thinnest and the thickest line
_LETTER, _LINE = 0.073, 0.17  # inches that a letter and a line of a label take, generously
_TRIED = (0.62, 0.5, 0.72, 0.4, 0.3, 0.8, 0.22)  # where along a line its label may stand, from the sender

Point = tuple[float, float]
_Place = tuple[float, float, float, float]  # the middle of something, half its width and half its height


def circuit(finding: Circuit, prefix: str) -> Drawing:
    """A circuit as inline SVG whose ids begin with ``prefix``."""
    with quiet_matplotlib():
        return _draw(finding, prefix)


@dataclass(frozen=True)
class _Box:
    """Where a node stands, in inches from the lower left corner."""

    x: float
    y: float
    width: float

    @property
    def top(self) -> Point:
        return self.x + self.width / 2, self.y + _BOX

    def port(self, index: int, count: int) -> Point:
        """Where lines of one kind enter, from below."""
        return self.x + self.width * (index + 1) / (count + 1), self.y


def _draw(finding: Circuit, prefix: str) -> Drawing:
    layers = sorted({node.layer for node in finding.nodes})
    width = WIDTH[finding.width]
    height = _TOP + _BOTTOM + _BOX + (_BOX + _BETWEEN) * max(0, len(layers) - 1)
    figure = new_figure(width, height)
    axes = place(figure, 0, 0, width, height)
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    boxes = _boxes(finding.nodes, layers, width)
    unlabelled = _edges(axes, finding.edges, boxes)
    for node in finding.nodes:
        _box(axes, node, boxes[node.name])
    for row, layer in enumerate(layers):
        y = _BOTTOM + row * (_BOX + _BETWEEN) + _BOX / 2
        axes.text(0.1, y, f"layer {layer}", color=palette.stand_in("soft"), va="center_baseline", fontsize=9.5)
    return Drawing(to_svg(figure, prefix), _summary(finding), _notes(finding, unlabelled), _legend(finding))


def _boxes(nodes: Sequence[Node], layers: Sequence[int], width: float) -> dict[str, _Box]:
    boxes = {}
    for row, layer in enumerate(layers):
        here = [node for node in nodes if node.layer == layer]
        room = (width - _LEFT - _RIGHT) / len(here)
        wide = min(_WIDEST, room - min(_GAP, 0.2 * room))
        for column, node in enumerate(here):
            left = _LEFT + room * column + (room - wide) / 2
            boxes[node.name] = _Box(left, _BOTTOM + row * (_BOX + _BETWEEN), wide)
    return boxes


def _box(axes: Axes, node: Node, box: _Box) -> None:
    ink, soft, card = map(palette.stand_in, ("ink", "soft", "card"))
    look = {"boxstyle": "round,pad=0,rounding_size=0.08", "fc": card, "ec": ink, "lw": 1.1, "zorder": 5}
    axes.add_patch(FancyBboxPatch((box.x, box.y), box.width, _BOX, **look))
    letters = max(2, int(box.width / _LETTER) - 1)
    lines = [(short(glyphs(node.name), letters), ink, 10.0)]
    lines += [(short(glyphs(node.role), letters), soft, 8.5)] if node.role else []
    lines += [] if node.effect is None else [(number(node.effect, 2, signed=True), ink, 8.5)]
    for i, (label, colour, size) in enumerate(lines):
        y = box.y + _BOX / 2 + (len(lines) / 2 - i - 0.5) * (_BOX - 0.1) / 3
        at = {"ha": "center", "va": "center_baseline", "zorder": 6}
        axes.text(box.x + box.width / 2, y, label, color=colour, fontsize=size, **at)


def _edges(axes: Axes, edges: Sequence[Edge], boxes: Mapping[str, _Box]) -> int:
    """The lines, the strongest on top, and their labels where they have room; how many have no label."""
    kinds = _kinds(edges)
    largest = max((abs(edge.weight) for edge in edges), default=0.0)
    taken = [(box.x + box.width / 2, box.y + _BOX / 2, box.width / 2, _BOX / 2) for box in boxes.values()]
    labelled = 0
    for rank, edge in enumerate(sorted(edges, key=lambda e: -abs(e.weight))):
        share = abs(edge.weight) / largest if largest else 0.0
        curve = _curve(boxes[edge.sender].top, boxes[edge.receiver].port(kinds.index(edge.kind), len(kinds)))
        colour = palette.stand_in(_colour(edge.kind, kinds) if share >= _FEW else "muted")
        line = _HAIR + (_THICK - _HAIR) * share if share >= _FEW else _HAIR
        dashes = "-" if edge.weight <= 0 or share < _FEW else (0, (3, 1.5))
        path = Path(curve, [Path.MOVETO, *[Path.CURVE4] * 3])
        axes.add_patch(PathPatch(path, fc="none", ec=colour, lw=line, ls=dashes, zorder=3 - rank / (1 + len(edges))))
        if share >= _FEW:
            labelled += _label(axes, f"{short(glyphs(edge.kind), 6)} {number(edge.weight, 2, True)}", curve, taken)
    return len(edges) - labelled


def _kinds(edges: Sequence[Edge]) -> list[str]:
    """The kinds that occur: those known first, in their order."""
    found = {edge.kind for edge in edges}
    return [kind for kind in KINDS if kind in found] + sorted(found - set(KINDS))


def _colour(kind: str, kinds: Sequence[str]) -> str:
    return KINDS.get(kind) or palette.SERIES_ROLES[kinds.index(kind) % len(palette.SERIES_ROLES)]


def _curve(start: Point, end: Point) -> list[Point]:
    """A cubic that leaves and arrives upright."""
    bend = 0.45 * (end[1] - start[1])
    return [start, (start[0], start[1] + bend), (end[0], end[1] - bend), end]


def _at(curve: Sequence[Point], t: float) -> Point:
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    return tuple(sum(w * p[axis] for w, p in zip(weights, curve, strict=True)) for axis in (0, 1))  # type: ignore[return-value]


def _label(axes: Axes, label: str, curve: Sequence[Point], taken: list[_Place]) -> bool:
    """A label on the line, at the first place where it touches no other; False where there is none."""
    half = _LETTER * len(label) / 2
    for t in _TRIED:
        x, y = _at(curve, t)
        if all(abs(x - mx) > half + w or abs(y - my) > _LINE / 2 + h for mx, my, w, h in taken):
            taken.append((x, y, half, _LINE / 2))
            behind = {"boxstyle": "round,pad=0.15", "fc": palette.stand_in("card"), "ec": "none"}
            look = {"ha": "center", "va": "center_baseline", "fontsize": 9, "zorder": 4, "bbox": behind}
            axes.text(x, y, label, color=palette.stand_in("ink"), **look)
            return True
    return False


def _notes(finding: Circuit, unlabelled: int) -> tuple[str, ...]:
    notes = []
    if not finding.nodes:
        notes.append("There is no head to draw.")
    if unlabelled:
        notes.append(
            f"{unlabelled} of {len(finding.edges)} paths stand without a number: too small (thin, grey), or no room. "
            "All are in the CSV."
        )
    return tuple(notes)


def _legend(finding: Circuit) -> str:
    if not finding.edges:
        return f"Numbers are {finding.unit}."
    largest = max(abs(edge.weight) for edge in finding.edges)
    helps = " Dashed: cutting it helps." if any(edge.weight >= _FEW * largest > 0 for edge in finding.edges) else ""
    widest = number(largest, 2)
    return f"Numbers are {finding.unit}; a line is as wide as its number is large, the widest {widest}.{helps}"


def _summary(finding: Circuit) -> str:
    heads = [f"{node.name}{f' ({node.role})' if node.role else ''} {number(node.effect)}" for node in finding.nodes]
    strongest = sorted(finding.edges, key=lambda e: -abs(e.weight))[:12]
    paths = [f"{edge.sender} to {edge.receiver} {edge.kind} {number(edge.weight)}" for edge in strongest]
    more = f"; {len(finding.edges) - len(strongest)} more" if len(finding.edges) > len(strongest) else ""
    return f"Circuit, {finding.unit}. Heads: {'; '.join(heads) or 'none'}. Paths: {'; '.join(paths) or 'none'}{more}"
