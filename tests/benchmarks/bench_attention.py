"""Attention of 12 heads over 512 tokens in Chromium: size and time to open, beside CircuitsVis's figure of the same.

``python -m tests.benchmarks.bench_attention`` prints the table alone.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reports.attention import bundle
from reports.long_attention import packed
from reports.page import render_page
from tests.benchmarks.measure import Row, limit
from workbench.errors import WorkbenchError
from workbench.findings import Answer, Attention

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TOKENS, HEADS, PERIOD = 512, 12, 61
PATIENCE = 60.0  # seconds; what has not opened by then counts as that long


def finding() -> Attention:
    """Diffuse heads, and ones that look one token back, at what followed last time and at the first token."""
    noise = np.random.default_rng(0)
    scores = noise.normal(size=(HEADS, TOKENS, TOKENS)).astype(np.float32)
    back = np.arange(TOKENS)[:, None] - np.arange(TOKENS)[None]
    scores[1::4, back == 1] += 9
    scores[2::4, (back > 0) & ((back + 1) % PERIOD == 0)] += 8
    scores[3::4, :, 0] += 6
    weights = np.where(back >= 0, np.exp(scores), 0)
    weights /= weights.sum(axis=2, keepdims=True)
    return Attention(
        id="attention",
        title="Attention",
        tokens=tuple(f"t{i % PERIOD}" for i in range(TOKENS)),
        patterns=weights,
        names=tuple(f"L{i // 4}.H{i % 4}" for i in range(HEADS)),
    )


def theirs(figure: Attention) -> str:
    """CircuitsVis's view of the same heads as a page that needs no network."""
    weights = np.asarray(figure.patterns).tolist()
    given = {"tokens": figure.tokens, "attention": weights, "attentionHeadNames": figure.names}
    return (
        f'<!doctype html><meta charset="utf-8"><div id="view"></div><script>{bundle()}</script>'
        f'<script>CircuitsVis.render("view", CircuitsVis.AttentionHeads, {json.dumps(given)})</script>'
    )


def opening(browser: Browser, path: Path, drawn: str) -> float:
    """Seconds from the address to the frame after the one in which the figure was drawn, at most ``PATIENCE``."""
    from playwright.sync_api import TimeoutError

    page = browser.new_page(viewport={"width": 1280, "height": 900})
    start = time.perf_counter()
    try:
        page.goto(path.as_uri(), timeout=1e3 * PATIENCE, wait_until="commit")
        page.locator(drawn).first.wait_for(state="attached", timeout=1e3 * (PATIENCE - time.perf_counter() + start))
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.perf_counter() - start
    except TimeoutError:
        return PATIENCE


def rows() -> Iterator[Row]:
    """The rows against fixed limits, and beside CircuitsVis."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise WorkbenchError("the attention benchmark needs chromium on the PATH")
    figure = finding()
    start = time.perf_counter()
    packed(np.asarray(figure.patterns), True)
    yield limit("attention 512 x 12, packing", time.perf_counter() - start, 1, "s")
    source = render_page(
        [Answer(id="a", title="How fast?", text="See below."), figure], identity={}, command="none", heading="benchmark"
    )
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        ours, other = Path(folder, "ours.html"), Path(folder, "circuitsvis.html")
        ours.write_text(source, encoding="utf-8")
        other.write_text(theirs(figure), encoding="utf-8")
        sizes = [path.stat().st_size / 1e6 for path in (ours, other)]
        yield limit("attention 512 x 12, size of the page", sizes[0], 2.5, "MB")
        yield Row("attention 512 x 12, size beside CircuitsVis", *sizes, sizes[0] / sizes[1], None, "MB")
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        opened = float(np.median([opening(browser, ours, ".long-view[data-drawn]") for _ in range(5)]))
        yield limit("attention 512 x 12, time to open, median of 5", opened, 1, "s")
        slow = opening(browser, other, "#view canvas")
        least = " (still closed)" if slow == PATIENCE else ""
        yield Row(f"attention 512 x 12, time to open beside CircuitsVis{least}", opened, slow, opened / slow, None, "s")
        browser.close()


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
    sys.exit(0)
