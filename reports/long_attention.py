"""Attention over long sequences: packed cells for the page's own canvas view, and a still picture of all heads.

A weight becomes one byte, ``round(254 sqrt(weight))``, and 255 where it is not defined: exact to 0.004 near 1, to
0.0004 near 0.01, so that weights of the order of 1 / length are told apart. Colours follow the same square root. Beyond
the budget in ``workbench.pattern_array`` a cell is the largest weight of a block of tokens, and the figure says so.
"""

from __future__ import annotations

import base64
import importlib.resources
import math

import numpy as np

from reports import palette
from reports.drawing import FONT, Drawing, png
from reports.escaping import glyphs, script_json, script_source, short, text
from reports.numbers import number
from workbench.findings import Attention
from workbench.pattern_array import MOST_CELLS, MOST_TOKENS

TOP, MISSING = 254, 255
LEGEND = (
    "Colours follow the square root of the weight. A weight is kept in one byte: to ±0.004 near 1, ±0.0004 near 0.01."
)
_STILL_CELLS = 100_000
_TICKS = (0.0, 0.01, 0.1, 0.25, 0.5, 1.0)
_MODULES = ("cells", "plot", "gestures", "data")


def script() -> str:
    """The view as one script that mounts itself wherever a figure of this kind stands."""
    assets = importlib.resources.files("reports").joinpath("assets")
    names = [*(f"long_attention_{name}.js" for name in _MODULES), "long_attention.js"]
    joined = "".join(assets.joinpath(name).read_text(encoding="utf-8") for name in names)
    return script_source(f'(() => {{\n"use strict";\n{joined}}})();\n')


def is_causal(patterns: np.ndarray) -> bool:
    """Whether no query looks at a later key."""
    return not any(np.nan_to_num(np.triu(head, 1)).any() for head in patterns)


def block(n_tokens: int, n_heads: int, causal: bool) -> int:
    """How many tokens a side one cell of the page stands for: the fewest that keep within the budget."""
    every = max(1, math.ceil(n_tokens / MOST_TOKENS))
    while True:
        size = math.ceil(n_tokens / every)
        if n_heads * (size * (size + 1) // 2 if causal else size**2) <= MOST_CELLS or size == 1:
            return every
        every += 1


def pooled(patterns: np.ndarray, every: int) -> np.ndarray:
    """The largest weight of each ``every`` x ``every`` block; one undefined weight makes its block undefined."""
    if every == 1:
        return patterns
    starts = np.arange(0, patterns.shape[1], every)
    return np.maximum.reduceat(np.maximum.reduceat(patterns, starts, axis=1), starts, axis=2)


def packed(patterns: np.ndarray, causal: bool) -> bytes:
    """One byte a weight, head after head and row after row; of causal patterns the lower triangle alone."""
    if causal:
        rows, columns = np.tril_indices(patterns.shape[1])
        patterns = patterns[:, rows, columns]
    codes = np.rint(TOP * np.sqrt(np.clip(patterns, 0.0, 1.0)))
    return np.where(np.isnan(codes), MISSING, codes).astype(np.uint8).tobytes()


def body(finding: Attention, anchor: str) -> tuple[str, list[str]]:
    """The view with its data and the still picture as HTML, and what has to be said about them."""
    patterns = np.asarray(finding.patterns)
    n, heads = len(finding.tokens), len(finding.names)
    causal = is_causal(patterns)
    every = block(n, heads, causal)
    cells = pooled(patterns, every)
    marks = [_mark(head, causal) for head in patterns]
    data = {
        "tokens": [glyphs(t) for t in finding.tokens],
        "raw": finding.tokens,
        "names": [glyphs(name) for name in finding.names],
        "heads": finding.names,
        "marks": marks,
        "every": every,
        "size": cells.shape[1],
        "causal": causal,
        "cells": base64.b64encode(packed(cells, causal)).decode(),
    }
    still, a_side = _still(finding, patterns, marks)
    notes = _wholly_constant(finding, patterns)
    notes += _outside(finding, patterns)
    if every > 1:
        whole = number(heads * (n * (n + 1) // 2 if causal else n**2), 0)
        notes.append(
            f"Down-sampled: {n} tokens, {whole} weights. A cell shows the largest weight of {every} x {every} tokens."
        )
    coarse = f"A point is the largest weight of {a_side} x {a_side} tokens." if a_side > 1 else ""
    return (
        '<div class="long-view"></div>'
        '<button type="button" class="quiet" data-tool="still" aria-expanded="false">all heads at once</button>'
        f'<script type="application/json" class="cells">{script_json(data)}</script>'
        f'<div class="still beside-view" id="{anchor}--still"><div class="scroll full" role="img" tabindex="0" '
        f'aria-label="{text(still.summary)}">{still.svg}</div><p class="soft">{coarse}</p></div>'
    ), notes


def _mark(head: np.ndarray, causal: bool) -> str:
    """What is out of order with a head's pattern, in a word."""
    if np.isnan(head).any():
        return "n/a"
    seen = head[np.tril_indices(len(head))] if causal else head
    return "constant" if seen.size > 1 and seen.min() == seen.max() else ""


def _wholly_constant(finding: Attention, patterns: np.ndarray) -> list[str]:
    """Those above the diagonal too; of others the figure's other remarks speak."""
    pairs = zip(finding.names, patterns, strict=True)
    return [f"{name} is constant: every weight is {head[0, 0]:.4g}." for name, head in pairs if np.ptp(head) == 0]


def _outside(finding: Attention, patterns: np.ndarray) -> list[str]:
    slack = 1e-4
    counts = ((patterns < -slack) | (patterns > 1 + slack)).sum(axis=(1, 2))
    return [
        f"{name}: {count} weights lie outside 0 to 1 and are clipped."
        for name, count in zip(finding.names, counts.tolist(), strict=True)
        if count
    ]


def _still(finding: Attention, patterns: np.ndarray, marks: list[str]) -> tuple[Drawing, int]:
    """All heads as small pictures on one scale, and how many tokens a side a point of them stands for."""
    n, heads = len(finding.tokens), len(finding.names)
    every = math.ceil(n / max(1, min(n, math.isqrt(_STILL_CELLS // heads))))
    down = max(1, round(math.sqrt(heads / 1.4)))
    across = math.ceil(heads / down)
    down = math.ceil(heads / across)
    left, bar, gap, title, foot = 56.0, 84.0, 18.0, 26.0, 40.0
    side = min(420.0, (960 - left - bar + gap) / across - gap)
    width, height = left + across * (side + gap) - gap + bar, down * (side + title) + foot
    parts = []
    for i, head in enumerate(pooled(patterns, every)):
        row, column = divmod(i, across)
        x, y = left + column * (side + gap), title + row * (side + title)
        shown = short(glyphs(finding.names[i]), int(side / 8)) + (f" · {marks[i]}" if marks[i] else "")
        parts.append(_words(x, y - 8, shown, "ink", 13))
        root = np.sqrt(np.clip(head, 0.0, 1.0))
        levels = np.where(np.isnan(root), -1, np.rint(np.nan_to_num(root) * (palette.LEVELS - 1))).astype(int)
        parts.append(_image(x, y, side, side, levels))
        parts.append(f'<path d="M{x:.1f} {y:.1f}v{side:.1f}h{side:.1f}" fill="none" stroke="var(--soft)"/>')
        if column == 0:
            parts.append(_words(x - 6, y + 10, "0", "soft", 11, "end"))
            parts.append(_words(x - 6, y + side, str(n - 1), "soft", 11, "end"))
            turned = f' transform="rotate(-90 {x - 26:.1f} {y + side / 2:.1f})"'
            parts.append(_words(x - 26, y + side / 2, "query", "ink", 12, "middle", turned))
        if row == (heads - 1 - column) // across:
            parts.append(_words(x, y + side + 14, "0", "soft", 11))
            parts.append(_words(x + side, y + side + 14, str(n - 1), "soft", 11, "end"))
            parts.append(_words(x + side / 2, y + side + 16, "key", "ink", 12, "middle"))
    tall = min(side, 220.0)
    parts.append(_image(width - bar + 20, title, 13, tall, np.arange(palette.LEVELS)[::-1, None]))
    parts += [_words(width - bar + 40, title + tall * (1 - math.sqrt(t)) + 4, f"{t:g}", "soft", 11) for t in _TICKS]
    svg = (
        f'<svg class="plot" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'font-family="{FONT}">{"".join(parts)}</svg>'
    )
    names = ", ".join(finding.names[:12]) + (" and more" if heads > 12 else "")
    return Drawing(svg, f"Attention patterns of {heads} heads over {n} tokens: {names}"), every


def _words(x: float, y: float, words: str, role: str, size: int, anchor: str = "start", more: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="var(--{role})"{more}>'
        f"{text(words)}</text>"
    )


def _image(x: float, y: float, width: float, height: float, levels: np.ndarray) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" preserveAspectRatio="none"'
    return "".join(
        f'<image class="only-{theme}" {place} style="image-rendering:pixelated" '
        f'href="{png(levels, "sequential", theme)}"/>'
        for theme in ("light", "dark")
    )
