"""The colour scale that a heatmap's panels share, and its bar with the reference values on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from reports import palette
from reports.charts import spread
from reports.escaping import glyphs, short
from reports.numbers import plain
from workbench.findings import Heatmap

LETTER = 0.075  # inches a character of a label takes, generously
_LINE = 0.18  # inches from one label to the next


@dataclass(frozen=True)
class Scale:
    """From ``low`` to ``high`` in ``palette.LEVELS`` equal steps."""

    kind: str
    low: float
    high: float

    def levels(self, values: np.ndarray) -> np.ndarray:
        """Whole levels 0 to LEVELS - 1, -1 where there is no value."""
        span = self.high - self.low
        part = (values - self.low) / span if span > 0 else np.full(values.shape, 0.5)
        top = palette.LEVELS - 1
        return np.where(np.isnan(values), -1, np.rint(np.clip(np.nan_to_num(part), 0, 1) * top)).astype(int)


def scale_of(finding: Heatmap, panels: Sequence[np.ndarray]) -> Scale:
    """The scale of all panels together; a diverging one reaches equally far on both sides of zero."""
    finite = np.concatenate([p[np.isfinite(p)] for p in panels] or [np.zeros(0)])
    least, most = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if finding.kind == "diverging":
        ends = [e for e in (finding.vmin, finding.vmax) if e is not None] or [least, most]
        bound = max(map(abs, ends)) or 1.0
        return Scale("diverging", -bound, bound)
    low = least if finding.vmin is None else finding.vmin
    high = most if finding.vmax is None else finding.vmax
    return Scale("sequential", low, high)


def outside(values: np.ndarray, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
    """Which values lie below and above the scale."""
    slack = 1e-9 * max(1.0, abs(scale.low), abs(scale.high))
    return values < scale.low - slack, values > scale.high + slack


@dataclass(frozen=True)
class Entry:
    """A labelled place on the bar, 0 at its foot; ``named`` is a reference value."""

    at: float
    label: str
    named: bool = False


def bar_entries(finding: Heatmap, panels: Sequence[np.ndarray], scale: Scale) -> list[Entry]:
    """The ends, the middle and the reference values, from the foot; one in a reference value's way gives place."""
    span = scale.high - scale.low
    if span <= 0:
        return [Entry(0.5, plain(scale.low))]
    below, above = (any(m.any() for m in masks) for masks in zip(*(outside(p, scale) for p in panels), strict=True))
    ends = [
        Entry(0.0, "▾ " * below + plain(float(f"{scale.low:.3g}"))),
        Entry(0.5, plain(float(f"{scale.low + span / 2:.3g}"))),
        Entry(1.0, "▴ " * above + plain(float(f"{scale.high:.3g}"))),
    ]
    named = [
        Entry((r.value - scale.low) / span, f"{short(glyphs(r.label), 14)} {plain(r.value)}", named=True)
        for r in finding.rules
        if scale.low <= r.value <= scale.high
    ]
    free = [e for e in ends if e.at != 0.5 or all(abs(e.at - n.at) > 0.12 for n in named)]
    return sorted(free + named, key=lambda entry: entry.at)


def bar_width(finding: Heatmap, entries: Sequence[Entry]) -> float:
    """Inches for the bar with its labels and the room before it."""
    labels = max(len(e.label) for e in entries)
    return max(0.55 + 0.07 * labels, 0.3 + 0.07 * min(20, len(finding.unit)))


def draw_bar(axes: Axes, finding: Heatmap, entries: Sequence[Entry], inches: float) -> None:
    """The labels beside the bar, in axes ``inches`` tall whose colours are laid in as a raster."""
    soft, ink = palette.stand_in("soft"), palette.stand_in("ink")
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
    for y, entry in zip(spread([e.at for e in entries], _LINE / inches), entries, strict=True):
        colour = ink if entry.named else soft
        axes.plot([0 if entry.named else 1, 1.35], [entry.at] * 2, color=colour, lw=0.9, clip_on=False)
        axes.plot([1.35, 1.6], [entry.at, y], color=colour, lw=0.6, clip_on=False)
        axes.text(1.95, y, entry.label, va="center_baseline", color=colour, fontsize=8.5)
    if finding.unit:
        axes.text(-0.2, 1 + 0.1 / inches, short(glyphs(finding.unit), 20), color=soft, fontsize=8.5)
