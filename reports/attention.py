"""Attention patterns: CircuitsVis's view or, of many tokens, the page's own, and a still picture of all heads.

Either script stands once on a page, and only where a figure needs it.
"""

from __future__ import annotations

import importlib.resources
import math
from collections.abc import Sequence

import numpy as np

from reports import long_attention
from reports.drawing import Drawing
from reports.escaping import glyphs, script_json, script_source
from reports.heatmaps import heatmap
from reports.parts import frame, plot
from workbench.findings import Attention, Finding, Heatmap, Panel

VIEW_TOKENS = 64
VIEW_CELLS = 400_000
"""What CircuitsVis can open within a second or two."""


def bundle() -> str:
    """CircuitsVis's own build, from its installed package, ready to stand in a script element."""
    source = importlib.resources.files("circuitsvis").joinpath("dist", "cdn", "iife.js").read_text(encoding="utf-8")
    return script_source(source)


def scripts(findings: Sequence[Finding]) -> list[str]:
    """The scripts that the attention figures of a page need, each once."""
    figures = [f for f in findings if isinstance(f, Attention)]
    assets = importlib.resources.files("reports").joinpath("assets")
    short = [bundle(), assets.joinpath("attention.js").read_text(encoding="utf-8")]
    return (short if not all(map(is_long, figures)) else []) + (
        [long_attention.script()] if any(map(is_long, figures)) else []
    )


def is_long(finding: Attention) -> bool:
    """Whether the patterns are too many for CircuitsVis."""
    n = len(finding.tokens)
    return n > VIEW_TOKENS or len(finding.names) * n**2 > VIEW_CELLS


def figure(finding: Attention, anchor: str) -> str:
    """The view, a still picture of all heads for print and export, and remarks on what is not as it should be."""
    patterns = np.asarray(finding.patterns)
    tools: tuple[str, ...]
    notes = _remarks(finding, patterns, "orange" if is_long(finding) else "blank")
    if is_long(finding):
        body, more = long_attention.body(finding, anchor)
        notes += more
        tools, legend = ("SVG", "PNG"), long_attention.LEGEND
    else:
        still = _still(finding, patterns, anchor)
        below = f'<div class="still beside-view" id="{anchor}--still">{plot(still, "full")}</div>'
        body = _view(finding, patterns) + below
        notes += still.notes
        tools, legend = ("SVG", "PNG", "CSV"), ""
    return frame(finding, anchor, look="full attention", tool_names=tools, body=body, notes=notes, legend=legend)


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
    return heatmap(
        Heatmap(
            id=finding.id,
            title=finding.title,
            panels=tuple(
                Panel(title=name, values=tuple(map(tuple, head.tolist())))
                for name, head in zip(finding.names, patterns, strict=True)
            ),
            row_labels=finding.tokens,
            column_labels=finding.tokens,
            row_title="query",
            column_title="key",
            unit="weight",
            vmin=0.0,
            vmax=1.0,
        ),
        f"{anchor}-still",
    )


def _remarks(finding: Attention, patterns: np.ndarray, missing: str) -> list[str]:
    remarks = []
    for name, head in zip(finding.names, patterns, strict=True):
        seen = head[np.tril_indices(len(head))]
        if np.isnan(head).any():
            remarks.append(f"{name}: {int(np.isnan(head).sum())} weights are undefined (n/a), {missing} in the view.")
        elif seen.size > 1 and seen.min() == seen.max() and head.min() == head.max():
            continue  # the picture says it
        elif seen.size > 1 and seen.min() == seen.max():
            remarks.append(f"{name} is constant: every weight up to the query is {seen[0]:.4g}.")
        elif len(head) > 1 and np.abs(head.sum(axis=1) - 1).max() > 1e-3:
            remarks.append(f"{name}: rows do not sum to 1.")
    return remarks
