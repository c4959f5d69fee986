"""Line charts: labels at the line ends, emphasis in the foreground, reference values named where they stand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from reports import palette
from reports.drawing import Drawing, new_figure, place, quiet_matplotlib, to_svg
from reports.escaping import glyphs, short
from reports.numbers import number, plain
from workbench.findings import Curve, Series

WIDTH = {"full": 10.0, "half": 5.0}
_HEIGHT = {"full": 3.4, "half": 3.0}
_LABELLED, _CONTEXT = 8, 4  # lines with labels of their own; the same, when some are emphasised
_LETTER = 0.078  # inches a character of a label takes, generously
_LINE = 0.185  # inches from one label to the next
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))


@dataclass(frozen=True)
class _Style:
    colour: str
    width: float
    dashes: str | tuple
    order: int


def curve(finding: Curve, prefix: str) -> Drawing:
    """A line chart as inline SVG whose ids begin with ``prefix``."""
    with quiet_matplotlib():
        return _draw(finding, prefix)


def series_styles(series: Sequence[Series]) -> list[_Style]:
    """Emphasised series in the palette's colours, the others muted; all coloured where none is emphasised.

    Beyond the palette's six colours the dashes change, so that no two series differ by nothing.
    """
    emphasis = any(s.emphasis for s in series)
    styles, coloured = [], 0
    for s in series:
        if emphasis and not s.emphasis:
            styles.append(_Style(palette.stand_in("muted"), 1.1, "-", 2))
            continue
        cycle, index = divmod(coloured, len(palette.SERIES_ROLES))
        dashes = _DASHES[cycle % len(_DASHES)]
        styles.append(_Style(palette.stand_in(palette.SERIES_ROLES[index]), 1.9, dashes, 4))
        coloured += 1
    return styles


def _draw(finding: Curve, prefix: str) -> Drawing:
    styles = series_styles(finding.series)
    shown = _labelled(finding.series)
    names = [short(glyphs(finding.series[i].name), 30) for i in shown]
    rules = [short(f"{glyphs(r.label)} {plain(r.value)}", 34) for r in finding.rules if r.axis == "y"]
    width, height = WIDTH[finding.width], _HEIGHT[finding.width]
    right = min(0.36 * width, 0.2 + _LETTER * max(map(len, names + rules), default=0))
    above = [(s.low, s.label) for s in finding.spans] + [(r.value, r.label) for r in finding.rules if r.axis == "x"]
    top = 0.16 + _LINE * len(above)
    figure = new_figure(width, height + top)
    axes = place(figure, 0.72, top, width - 0.72 - right, height - 0.62)
    notes = _lines(axes, finding, styles)
    _frame(axes, finding)
    _places(axes, finding, above)
    muted, soft = palette.stand_in("muted"), palette.stand_in("soft")
    colours = [soft if styles[i].colour == muted else styles[i].colour for i in shown]
    ends = [(_end(finding.series[i]), n, c, "normal") for i, n, c in zip(shown, names, colours, strict=True)]
    values = [r.value for r in finding.rules if r.axis == "y"]
    ends += [(v, n, soft, "italic") for v, n in zip(values, rules, strict=True)]
    _end_labels(axes, ends, height - 0.62)
    rest = [s.name for i, s in enumerate(finding.series) if i not in shown]
    legend = ""
    if rest:
        listed = ", ".join(glyphs(n) for n in rest[:24]) + (f" and {len(rest) - 24} more" if len(rest) > 24 else "")
        legend = f"Lines without a label: {listed}."
    return Drawing(to_svg(figure, prefix), _summary(finding), tuple(notes), legend)


def _labelled(series: Sequence[Series]) -> list[int]:
    emphasised = [i for i, s in enumerate(series) if s.emphasis]
    if len(series) <= (_CONTEXT if emphasised else _LABELLED):
        return list(range(len(series)))
    return (emphasised or list(range(len(series))))[:_LABELLED]


def _lines(axes: Axes, finding: Curve, styles: Sequence[_Style]) -> list[str]:
    undefined = clipped = 0
    for s, style in zip(finding.series, styles, strict=True):
        x, y = np.array(s.x, dtype=float), np.array(s.y, dtype=float)
        undefined += int(np.isnan(y).sum())
        look = {"color": style.colour, "zorder": style.order}
        axes.plot(x, y, lw=style.width, ls=style.dashes, solid_capstyle="round", **look)
        alone = np.isfinite(y) & ~np.isfinite(np.r_[np.nan, y[:-1]]) & ~np.isfinite(np.r_[y[1:], np.nan])
        axes.plot(x[alone], y[alone], ls="", marker="o", ms=4, **look)
        if s.low and s.high:
            axes.fill_between(x, s.low, s.high, color=style.colour, alpha=0.18, lw=0, zorder=style.order - 1)
        if finding.y_range:
            low, high = finding.y_range
            clipped += int(((y < low) | (y > high)).sum())
            for outside, edge, marker in ((y < low, low, "v"), (y > high, high, "^")):
                axes.plot(x[outside], np.full(outside.sum(), edge), ls="", marker=marker, ms=5, clip_on=False, **look)
    notes = []
    if not any(np.isfinite(s.y).any() for s in finding.series if s.y):
        notes.append("There is no defined value to draw.")
    if undefined:
        notes.append(f"{undefined} {'point is' if undefined == 1 else 'points are'} undefined (n/a), a gap.")
    if clipped:
        ends = " to ".join(map(plain, finding.y_range or ()))
        notes.append(f"Clipped: {clipped} outside {ends}, marked by triangles at the edge.")
    return notes


def _frame(axes: Axes, finding: Curve) -> None:
    ink, soft, line = map(palette.stand_in, ("ink", "soft", "line"))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(soft)
    axes.grid(axis="y", color=line, lw=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0, labelcolor=soft, pad=6)
    axes.tick_params(axis="x", length=3.5, color=soft, labelcolor=soft, pad=4)
    axes.set_xlabel(glyphs(finding.x_label), color=ink, labelpad=6)
    axes.set_ylabel(glyphs(finding.y_label), color=ink, labelpad=8)
    axes.margins(x=0.01, y=0.06)
    if finding.y_range:
        axes.set_ylim(*finding.y_range)
    else:
        for rule in finding.rules:
            if rule.axis == "y" and math.isfinite(rule.value):
                axes.update_datalim([(axes.dataLim.x0, rule.value)], updatex=False)
        axes.autoscale_view()
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: plain(v)))
    xs = [x for s in finding.series for x in s.x if math.isfinite(x)]
    if finding.x_scale == "log" and xs:
        _log_axis(axes, xs)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(8 if finding.width == "full" else 5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: plain(v)))


def _log_axis(axes: Axes, xs: Sequence[float]) -> None:
    """A log axis; one that also has 0 on it (the checkpoint before the first step) is linear below its first step."""
    positive = [x for x in xs if x > 0]
    if not positive:
        return
    first, last = min(positive), max(positive)
    if min(xs) <= 0:
        axes.set_xscale("symlog", linthresh=first, linscale=0.4)
        axes.set_xlim(min(xs) - 0.15 * first, last * 1.03)
    else:
        axes.set_xscale("log")
        axes.set_xlim(first / 1.03, last * 1.03)
    exponents = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
    zero = [0.0] if min(xs) <= 0 else []
    wanted = zero + [s * 10.0**e for s in (1, 5, 2) for e in exponents]
    ticks = _apart(axes, [t for t in wanted if t in zero or first <= t <= last] or [first, last])
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())


def _apart(axes: Axes, wanted: Sequence[float]) -> list[float]:
    """Those of the wanted ticks, first come first served, whose labels do not touch."""
    kept: list[tuple[float, float]] = []
    for tick in wanted:
        at, room = axes.transData.transform((tick, 0))[0] / 72, 0.12 + 0.08 * len(plain(tick))
        if all(abs(at - other) > room for other, _ in kept):
            kept.append((at, tick))
    return [tick for _, tick in sorted(kept)]


def _places(axes: Axes, finding: Curve, above: Sequence[tuple[float, str]]) -> None:
    soft, accent = palette.stand_in("soft"), palette.stand_in("accent")
    for rule in finding.rules:
        if rule.axis == "y":
            axes.axhline(rule.value, color=soft, lw=1, ls=(0, (4, 3)), zorder=1)
        else:
            axes.axvline(rule.value, color=soft, lw=1, ls=(0, (1.5, 2)), zorder=1)
    for span in finding.spans:
        axes.axvspan(span.low, span.high, color=accent, alpha=0.1, lw=0, zorder=0)
    inches = axes.get_position().height * axes.figure.get_size_inches()[1]
    left, right = axes.get_xlim()
    for row, (x, label) in enumerate(above):
        if not math.isfinite(x):
            continue
        at = axes.transData.transform((x, 0))[0] - axes.transData.transform((left, 0))[0]
        room = axes.transData.transform((right, 0))[0] - axes.transData.transform((left, 0))[0]
        side = "left" if at < room / 2 else "right"
        y = 1 + (0.07 + _LINE * row) / inches
        axes.annotate(
            short(glyphs(label), 60), (x, y), xycoords=("data", "axes fraction"), ha=side, color=soft, fontsize=9
        )


def _end(series: Series) -> float:
    finite = [y for y in series.y if math.isfinite(y)]
    return finite[-1] if finite else math.nan


def _end_labels(axes: Axes, ends: Sequence[tuple[float, str, str, str]], inches: float) -> None:
    """Labels right of the axes at their lines' heights, pushed apart where they would touch."""
    low, high = axes.get_ylim()
    placed = sorted(((e[0] - low) / (high - low), e) for e in ends if math.isfinite(e[0]))
    gap = _LINE / inches
    at = spread([min(1.0, max(0.0, p)) for p, _ in placed], gap)
    for y, (true, (_, label, colour, style)) in zip(at, placed, strict=True):
        kink = {"arrowstyle": "-", "color": palette.stand_in("line"), "lw": 0.8, "shrinkA": 1, "shrinkB": 1}
        axes.annotate(
            label,
            xy=(1.0, min(1.0, max(0.0, true))),
            xytext=(1.0 + 0.14 / (axes.get_position().width * axes.figure.get_size_inches()[0]), y),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center_baseline",
            color=colour,
            fontsize=9.5,
            fontstyle=style,
            arrowprops=kink,
        )


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places from 0 to 1 at least ``gap`` apart, as near as may be to the wanted ones, which ascend.

    Where there are too many for that, they run on beyond 1.
    """
    blocks: list[list[float]] = []  # each: sum of wanted starts, count
    for index, place_wanted in enumerate(wanted):
        blocks.append([place_wanted - index * gap, 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    room = max(0.0, 1.0 - (len(wanted) - 1) * gap)
    starts = [min(room, max(0.0, total / count)) for total, count in blocks for _ in range(int(count))]
    return [start + index * gap for index, start in enumerate(starts)]


def _summary(finding: Curve) -> str:
    parts = []
    for s in finding.series[:12]:
        finite = [y for y in s.y if math.isfinite(y)]
        parts.append(f"{s.name}: {number(finite[0])} to {number(finite[-1])}" if finite else f"{s.name}: no value")
    more = f"; {len(finding.series) - 12} more" if len(finding.series) > 12 else ""
    return f"Line chart of {finding.y_label} over {finding.x_label}. " + "; ".join(parts) + more
