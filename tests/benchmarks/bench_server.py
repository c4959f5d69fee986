"""A click on a head of the served page until the change is painted, in Chromium: p50 and p95 over 100 clicks.

Between two clicks the score of the last one is waited for, and timed on its own.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import threading
from collections.abc import Iterator

from reports.page import render_page
from tasks.repeated_tokens import RepeatedTokens
from tests.benchmarks.measure import Row
from tests.drawn_models import build
from workbench.app.answers import Answers
from workbench.app.server import Server, listen
from workbench.app.view import interactive, served
from workbench.subject import Subject
from workbench.training.execution import use_threads

CLICKS, TARGET_MS, THREADS = 100, 100.0, 1

CLICK = """async (clicks) => {
  const view = document.querySelector(".live-view");
  const cells = [...view.querySelectorAll("[data-head]")];
  const after = view.querySelector("[data-score-after]");
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const times = [];
  for (let i = 0; i < clicks; i++) {
    const start = performance.now();
    const drawn = new Promise((resolve) => view.addEventListener("drawn", resolve, { once: true }));
    cells[(i * 7) % cells.length].click();
    await drawn;
    await frame();
    await new Promise((resolve) => setTimeout(resolve)); // the frame is painted
    const painted = performance.now() - start;
    while (after.getAttribute("aria-busy") !== "false") await new Promise((resolve) => setTimeout(resolve, 1));
    times.push([painted, performance.now() - start]);
  }
  return times;
}"""


def rows() -> Iterator[Row]:
    """Two layers of eight heads, width 64, 64 tokens; none without Chromium, which one line says."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("no chromium on the PATH: the served page is not timed", file=sys.stderr)
        return
    times = _times(chromium)
    for name, at, target in (("painted", 0, 1.0), ("scored", 1, None)):
        taken = [time[at] for time in times]
        for share, value in (("p50", statistics.median(taken)), ("p95", statistics.quantiles(taken, n=20)[-1])):
            title = f"a head clicked, served: {name} ({share})"
            yield Row(title, value, TARGET_MS, value / TARGET_MS, target, "ms", THREADS)


def _times(chromium: str) -> list[tuple[float, float]]:
    """Milliseconds from a click to the paint, and to the score of the 64 sequences."""
    from playwright.sync_api import sync_playwright

    task = RepeatedTokens(n_ctx=64)
    model = build(0, d_vocab=65, n_ctx=64, n_layers=2, n_heads=8, d_model=64, d_head=8, positions="rotary", norm="pre")
    subject = Subject(model, task.vocabulary, task)
    with use_threads(THREADS):
        page = render_page([served(interactive(subject))], identity={}, command="", heading="served")
        made = Server(Answers(subject), page, listen(0))
        thread = threading.Thread(target=made.run)
        thread.start()
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
                tab = browser.new_page()
                tab.goto(made.url)
                tab.locator("[data-agreement]").wait_for()
                tab.evaluate(CLICK, 10)
                times: list[tuple[float, float]] = [(one, both) for one, both in tab.evaluate(CLICK, CLICKS)]
                browser.close()
        finally:
            made.stop()
            thread.join()
    return times
