"""Attention patterns: CircuitsVis's interactive view, its bundle once a page, and a still picture of all heads."""

from __future__ import annotations

import importlib.resources
import math

import numpy as np

from reports.drawing import Drawing
from reports.escaping import glyphs, script_json, script_source
from reports.heatmaps import heatmap
from reports.parts import frame, plot
from workbench.findings import Attention, Heatmap, Panel

VIEW_CELLS = 400_000  # what the view can open within a second or two; beyond it there is the still picture alone
_STILL_SIDE = 256


def bundle() -> str:
    """CircuitsVis's own build, from its installed package, ready to stand in a script element."""
    source = importlib.resources.files("circuitsvis").joinpath("dist", "cdn", "iife.js").read_text(encoding="utf-8")
    return script_source(source)


def has_view(finding: Attention) -> bool:
    """Whether the patterns are few enough to be opened interactively."""
    return len(finding.patterns) * len(finding.tokens) ** 2 <= VIEW_CELLS


def figure(finding: Attention, anchor: str) -> str:
    """The view, a still picture of all heads for print and export, and remarks on what is not as it should be."""
    patterns = np.array(finding.patterns, dtype=float).reshape(len(finding.names), len(finding.tokens), -1)
    still = _still(finding, patterns, anchor)
    notes = [*_remarks(finding, patterns), *still.notes]
    view = ""
    names: tuple[str, ...] = ("SVG", "PNG")
    if has_view(finding):
        view, names = _view(finding, patterns), ("SVG", "PNG", "CSV")
    else:
        cells = f"{patterns.size:,}".replace(",", " ")
        notes.append(f"{cells} cells are too many for the interactive view ({VIEW_CELLS:,}); see the picture.")
    still_class = "still beside-view" if view else "still"
    body = f'{view}<div class="{still_class}" id="{anchor}--still">{plot(still, "full")}</div>'
    return frame(finding, anchor, look="full attention", tool_names=names, body=body, notes=notes)


def _view(finding: Attention, patterns: np.ndarray) -> str:
    """Where the script draws the view, and its data: weights to four decimals, tokens with their blanks shown."""
    data = {
        "tokens": [glyphs(t) for t in finding.tokens],
        "raw": finding.tokens,
        "names": [glyphs(n) for n in finding.names],
        "attention": _rounded(patterns),
        "causal": bool(np.nansum(np.abs(np.triu(patterns, 1))) == 0),
    }
    return (
        '<div class="view light" tabindex="-1"><div class="strip"></div><div class="circuitsvis"></div></div>'
        '<button type="button" class="quiet" data-tool="still" aria-expanded="false">all heads at once</button>'
        f'<script type="application/json" class="patterns">{script_json(data)}</script>'
    )


def _rounded(patterns: np.ndarray) -> list:
    def plain(value: float) -> float | int | None:
        if not math.isfinite(value):
            return None
        rounded = round(value, 4)
        return int(rounded) if rounded == int(rounded) else rounded

    return [[[plain(v) for v in row] for row in head] for head in patterns.tolist()]


def _still(finding: Attention, patterns: np.ndarray, anchor: str) -> Drawing:
    pooled, every = _pooled(patterns)
    labels = tuple(finding.tokens[::every])
    notes = (f"The picture shows the largest weight of each {every} x {every} tokens.",) if every > 1 else ()
    drawing = heatmap(
        Heatmap(
            id=finding.id,
            title=finding.title,
            panels=tuple(
                Panel(title=name, values=tuple(map(tuple, head.tolist())))
                for name, head in zip(finding.names, pooled, strict=True)
            ),
            row_labels=labels,
            column_labels=labels,
            row_title="query",
            column_title="key",
            unit="weight",
            vmin=0.0,
            vmax=1.0,
        ),
        f"{anchor}-still",
    )
    return Drawing(drawing.svg, drawing.summary, drawing.notes + notes)


def _pooled(patterns: np.ndarray) -> tuple[np.ndarray, int]:
    """Patterns of at most ``_STILL_SIDE`` rows, each cell the largest of those it stands for, and how many a side."""
    size = patterns.shape[1]
    every = math.ceil(size / _STILL_SIDE)
    if every == 1:
        return patterns, 1
    pad = -size % every
    padded = np.pad(patterns, ((0, 0), (0, pad), (0, pad)), constant_values=0.0)
    side = padded.shape[1] // every
    return padded.reshape(len(patterns), side, every, side, every).max(axis=(2, 4)), every


def _remarks(finding: Attention, patterns: np.ndarray) -> list[str]:
    remarks = []
    for name, head in zip(finding.names, patterns, strict=True):
        seen = head[np.tril_indices(len(head))]
        if np.isnan(head).any():
            remarks.append(f"{name}: {int(np.isnan(head).sum())} weights are undefined (n/a), blank in the view.")
        elif seen.size > 1 and seen.min() == seen.max() and head.min() == head.max():
            continue  # the picture says it
        elif seen.size > 1 and seen.min() == seen.max():
            remarks.append(f"{name} is constant: every weight up to the query is {seen[0]:.4g}.")
        elif len(head) > 1 and np.abs(head.sum(axis=1) - 1).max() > 1e-3:
            remarks.append(f"{name}: rows do not sum to 1.")
    return remarks
