"""Matrices on one colour scale: nan hatched, clipping marked and counted, reference values on the colour bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle

from reports import palette
from reports.charts import WIDTH
from reports.drawing import Drawing, new_figure, place, png, quiet_matplotlib, to_svg
from reports.escaping import glyphs, short
from reports.numbers import decimals, number, plain
from reports.scale import LETTER, Scale, bar_entries, bar_width, draw_bar, outside, scale_of
from workbench.findings import Heatmap, Panel

VECTOR_CELLS = 1600
NOTE = 0.19
SMALLEST = 0.1
"""Inches that a label of six points needs."""
"""Inches that a panel's note takes."""
_HATCHED = 400


def heatmap(finding: Heatmap, prefix: str) -> Drawing:
    """The panels side by side as inline SVG whose ids begin with ``prefix``."""
    panels = [np.array(p.values, dtype=float) for p in finding.panels]
    scale = scale_of(finding, panels)
    with quiet_matplotlib():
        svg = _draw(finding, panels, scale, prefix)
    return Drawing(svg, _summary(finding, panels), tuple(_notes(finding, panels, scale)))


def _notes(finding: Heatmap, panels: Sequence[np.ndarray], scale: Scale) -> list[str]:
    notes = []
    undefined = sum(int(np.isnan(p).sum()) for p in panels)
    below, above = (
        sum(int(m.sum()) for m in masks) for masks in zip(*(outside(p, scale) for p in panels), strict=True)
    )
    for panel, values in zip(finding.panels, panels, strict=True):
        finite = values[~np.isnan(values)]
        if not finite.size:
            notes.append(f"{panel.title or 'The matrix'}: no cell is defined.")
        elif finite.size > 1 and finite.min() == finite.max():
            notes.append(f"{panel.title or 'The matrix'} is constant: every defined cell is {plain(finite[0])}.")
    if undefined:
        total = sum(p.size for p in panels)
        notes.append(f"{undefined} of {total} cells undefined (n/a), hatched or grey.")
    for count, word, sign, end in ((below, "below", "▾", scale.low), (above, "above", "▴", scale.high)):
        if count:
            notes.append(f"Clipped: {count} {word} {plain(end)} ({sign}).")
    return notes


@dataclass(frozen=True)
class _Layout:
    columns: int
    cell: tuple[float, float]
    left: float
    top: float
    bottom: float
    gap: float = 0.3


def _layout(finding: Heatmap, rows: int, columns: int, bar: float) -> _Layout:
    width = WIDTH[finding.width]
    left = (0.3 if finding.row_title else 0.1) + LETTER * max((len(_tick(t)) for t in finding.row_labels), default=0)
    longest = max((len(_tick(t)) for t in finding.column_labels), default=0)
    room = width - left - bar
    across = len(finding.panels)
    wanted = (0.78 if finding.panels[0].low else 0.62) if finding.annotate else 0.34
    least = max(0.46 if finding.annotate else 0.0, min(wanted, 1.5 / columns))
    while across > 1 and (room + 0.3) / across - 0.3 < least * columns:
        across -= 1
    across = math.ceil(len(finding.panels) / math.ceil(len(finding.panels) / across))  # rows of even length
    per_panel = (room + 0.3) / across - 0.3
    wide = min(wanted, per_panel / columns, 4.6 / max(rows, 1) if not finding.annotate else 9.0)
    tall = min(wide, 0.46) if finding.annotate else wide
    turned = longest * LETTER > wide * 0.95
    bottom = (LETTER * longest if turned else 0.2) + (0.26 if finding.column_title else 0.06)
    return _Layout(across, (wide, tall), left, _top(finding.panels, finding.unit), bottom)


def _top(panels: Sequence[Panel], unit: str) -> float:
    """Inches above a panel for its title and the note under it, and for the unit above the scale."""
    title = 0.28 if unit or any(p.title for p in panels) else 0.08
    return title + (NOTE if any(p.note for p in panels) else 0.0)


def _tick(label: str) -> str:
    return short(glyphs(label), 16)


def _draw(finding: Heatmap, panels: Sequence[np.ndarray], scale: Scale, prefix: str) -> str:
    rows, columns = panels[0].shape
    entries = bar_entries(finding, panels, scale)
    bar_wide = bar_width(finding, entries)
    layout = _layout(finding, rows, columns, bar_wide)
    wide, tall = layout.cell[0] * columns, layout.cell[1] * rows
    down = math.ceil(len(panels) / layout.columns)
    step = layout.top + tall + layout.bottom
    bar_tall = max(tall, 1.1)
    total_wide = layout.left + layout.columns * (wide + layout.gap) - layout.gap + bar_wide
    figure = new_figure(total_wide, max(down * step, layout.top + bar_tall + 0.2) + 0.05)
    images: list[tuple[Axes, Callable[[str], str]]] = []
    for index, values in enumerate(panels):
        row, column = divmod(index, layout.columns)
        axes = place(figure, layout.left + column * (wide + layout.gap), layout.top + row * step, wide, tall)
        levels = scale.levels(values)
        if sum(p.size for p in panels) > VECTOR_CELLS:
            images.append((axes, partial(png, levels, scale.kind)))
            axes.set(xlim=(0, columns), ylim=(rows, 0))
        else:
            _cells(axes, levels, scale.kind)
        _marks(axes, finding, index, values, levels, scale)
        _labels(axes, finding, index, layout, first=column == 0, last=index + layout.columns >= len(panels))
    bar = place(figure, total_wide - bar_wide + 0.18, layout.top, 0.13, bar_tall)
    draw_bar(bar, finding, entries, bar_tall)
    images.append((bar, partial(png, np.arange(palette.LEVELS)[::-1, None], scale.kind)))
    return to_svg(figure, prefix, images)


def _cells(axes: Axes, levels: np.ndarray, kind: str) -> None:
    import seaborn  # costs a second, and only pages with heatmaps need it

    seaborn.heatmap(
        levels,
        mask=levels < 0,
        cmap=ListedColormap(palette.level_stand_ins(kind)),
        vmin=-0.5,
        vmax=palette.LEVELS - 0.5,
        cbar=False,
        xticklabels=False,
        yticklabels=False,
        linewidths=1.0 if max(levels.shape) <= 24 else 0.25,
        linecolor=palette.stand_in("card"),
        ax=axes,
    )


def _marks(axes: Axes, finding: Heatmap, panel: int, values: np.ndarray, levels: np.ndarray, scale: Scale) -> None:
    missing = np.argwhere(np.isnan(values))
    for row, column in missing[:_HATCHED]:
        look = {"edgecolor": palette.stand_in("soft"), "hatch": "////", "lw": 0}
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor="none", **look))
    if finding.annotate:
        _annotate(axes, finding, panel, values, levels, scale)
    if values.size <= VECTOR_CELLS:
        for beyond, sign, dy in zip(outside(values, scale), "▾▴", (0.86, 0.24), strict=True):
            for row, column in np.argwhere(beyond):
                colour = palette.text_stand_in(scale.kind, int(levels[row, column]))
                axes.text(column + 0.9, row + dy, sign, ha="right", va="center", fontsize=7, color=colour)
    for at, row, column in finding.marks:
        if at == panel:
            look = {"facecolor": "none", "edgecolor": palette.stand_in("bad"), "lw": 2.0, "clip_on": False}
            axes.add_patch(Rectangle((column, row), 1, 1, zorder=5, **look))


def _annotate(axes: Axes, finding: Heatmap, panel: int, values: np.ndarray, levels: np.ndarray, scale: Scale) -> None:
    source = finding.panels[panel]
    digits = min(2, decimals(max(abs(scale.low), abs(scale.high)), 3))
    for (row, column), value in np.ndenumerate(values):
        known = not math.isnan(value)
        colour = palette.text_stand_in(scale.kind, int(levels[row, column])) if known else palette.stand_in("ink")
        interval = bool(source.low and source.high) and known
        shift = 0.1 if interval else 0.0
        shown = number(value, digits, signed=finding.kind == "diverging")
        look = {"ha": "center", "va": "center_baseline", "color": colour}
        axes.text(column + 0.5, row + 0.52 - shift * 1.4, shown, fontsize=9.5, **look)
        if interval:
            half = (source.high[row][column] - source.low[row][column]) / 2
            axes.text(column + 0.5, row + 0.82, f"± {number(half, digits)}", fontsize=7.5, **look)


def _labels(axes: Axes, finding: Heatmap, panel: int, layout: _Layout, *, first: bool, last: bool) -> None:
    soft, ink = palette.stand_in("soft"), palette.stand_in("ink")
    rows, columns = len(finding.row_labels), len(finding.column_labels)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, labelcolor=soft, labelsize=9, pad=4)
    for axis, labels, size in (
        (axes.yaxis, finding.row_labels, layout.cell[1]),
        (axes.xaxis, finding.column_labels, layout.cell[0]),
    ):
        # Narrow cells get smaller labels before any is left out.
        every = max(1, math.ceil(SMALLEST / size))
        kept = range(0, len(labels), every)
        axis.set_ticks([i + 0.5 for i in kept], labels=[_tick(labels[i]) for i in kept])
        axis.set_tick_params(labelsize=min(9.0, max(6.0, 72 * 0.8 * size * every)))
    longest = max((len(_tick(t)) for t in finding.column_labels), default=0)
    if longest * LETTER > layout.cell[0] * 0.95:
        for label in axes.get_xticklabels():
            label.set(rotation=90, rotation_mode="anchor", ha="right", va="center")
    else:
        for label in axes.get_xticklabels():
            label.set(rotation=0)
    for label in axes.get_yticklabels():
        label.set(rotation=0, va="center_baseline")
    if not first:
        axes.set_yticks([])
    if not last:
        axes.set_xticks([])
    axes.set(xlabel="", ylabel="")
    wide, tall = layout.cell[0] * columns, layout.cell[1] * rows
    if first and finding.row_title:
        x = -(layout.left - 0.12) / wide
        axes.text(
            x,
            0.5,
            short(glyphs(finding.row_title), 30),
            rotation=90,
            rotation_mode="anchor",
            ha="center",
            va="center",
            color=ink,
            transform=axes.transAxes,
        )
    if last and finding.column_title:
        y = -(layout.bottom - 0.1) / tall
        axes.text(
            0.5,
            y,
            short(glyphs(finding.column_title), 60),
            ha="center",
            va="center_baseline",
            color=ink,
            transform=axes.transAxes,
        )
    title = finding.panels[panel].title
    if title:
        room = max(6, int(wide / LETTER))
        note = finding.panels[panel].note
        above = (0.09 + (NOTE if note else 0.0)) / tall
        axes.text(0, 1 + above, short(glyphs(title), room), color=ink, transform=axes.transAxes, fontsize=10)
        if note:
            soft = palette.stand_in("soft")
            axes.text(0, 1 + 0.08 / tall, short(glyphs(note), room), color=soft, transform=axes.transAxes, fontsize=9)


def _summary(finding: Heatmap, panels: Sequence[np.ndarray]) -> str:
    parts = []
    for panel, values in list(zip(finding.panels, panels, strict=True))[:12]:
        if not np.isfinite(values).any():
            parts.append(f"{panel.title}: no value")
            continue
        row, column = np.unravel_index(np.nanargmax(values), values.shape)
        most = f"{number(float(values[row, column]))} at {finding.row_labels[row]}, {finding.column_labels[column]}"
        parts.append(
            f"{panel.title + ': ' if panel.title else ''}largest {most}, least {number(float(np.nanmin(values)))}"
        )
    size = f"{len(finding.row_labels)} by {len(finding.column_labels)}"
    return f"Heatmap, {len(panels)} of {size} cells. " + "; ".join(parts)
