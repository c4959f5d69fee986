"""The model in the page, in Chromium: toggle to repaint, size and first paint; and its logits beside PyTorch's.

``python -m tests.benchmarks.bench_live`` prints the table alone.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from analyses import ablation_view
from reports.live import core_source
from reports.page import render_page
from tests import small_models
from tests.benchmarks.measure import Row, limit
from tests.live_reference import hooked
from workbench import live
from workbench.analysis import Budget
from workbench.components import all_parts
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.findings import Answer
from workbench.model.transformer import Transformer
from workbench.registry import load_task
from workbench.subject import Subject

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TOGGLES = 100
SEQUENCES, CHANGES = 200, 50

# One toggle after the other: from the click to the frame after the one in which the new figures were drawn.
TOGGLE = """async (toggles) => {
  const view = document.querySelector(".live-view");
  const cells = [...view.querySelectorAll("[data-head]")];
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const times = [];
  for (let i = 0; i < toggles; i++) {
    const drawn = new Promise((resolve) => view.addEventListener("drawn", resolve, { once: true }));
    const start = performance.now();
    cells[(7 * i) % cells.length].click();
    await drawn;
    await frame();
    times.push(performance.now() - start);
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
  return times;
}"""


def subject_of(**shape: Any) -> Subject:
    """An untrained model on repeated tokens of its size."""
    config = ModelConfig(**shape)
    task = load_task("repeated_tokens", {"n_ctx": config.n_ctx, "d_vocab": config.d_vocab})
    return Subject(Transformer(config), task.vocabulary, task)


def page(subject: Subject, folder: Path, name: str) -> Path:
    """A page that holds nothing but the ablation view."""
    findings = ablation_view.ANALYSIS.run(subject, Budget(), lambda stage: None)
    answer = Answer(id="a", title="How fast?", text="See below.")
    path = folder / f"{name}.html"
    source = render_page([answer, *findings], identity={}, command="workbench report RUN", heading="benchmark")
    path.write_text(source, encoding="utf-8")
    return path


def in_browser() -> Iterator[Row]:
    """Toggles, size and first paint."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise WorkbenchError("the live benchmark needs chromium on the PATH")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with tempfile.TemporaryDirectory() as text, sync_playwright() as playwright:
        folder = Path(text)
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield from toggles(browser, folder)
        yield from opening(browser, folder)
        browser.close()


def toggles(browser: Browser, folder: Path) -> Iterator[Row]:
    """Two layers of eight heads, width 64, 64 tokens."""
    path = page(subject_of(d_vocab=64, n_ctx=64, n_layers=2, n_heads=8, d_model=64), folder, "toggles")
    opened = browser.new_page()
    opened.goto(path.as_uri())
    opened.locator("[data-score-after][aria-busy=false]").wait_for(state="attached")
    times = opened.evaluate(TOGGLE, TOGGLES)
    opened.close()
    for share in (50, 95):
        yield limit(f"live page, toggle to repaint, p{share}", float(np.percentile(times, share)), 50, "ms")


def opening(browser: Browser, folder: Path) -> Iterator[Row]:
    """About 100,000 parameters."""
    subject = subject_of(d_vocab=64, n_ctx=64, n_layers=2, n_heads=4, d_model=64, d_mlp=256)
    path = page(subject, folder, "opening")
    yield limit(f"live page, size with {live.parameters(subject)} parameters", path.stat().st_size / 1e6, 3, "MB")
    paints = []
    for _ in range(5):
        opened = browser.new_page()
        opened.goto(path.as_uri())
        opened.locator("[data-agreement][aria-busy=false]").wait_for()
        entries = "performance.getEntriesByName('first-contentful-paint').map(e => e.startTime)"
        paints.append(opened.evaluate(entries)[0] / 1e3)
        opened.close()
    yield limit("live page, first paint, median of 5", float(np.median(paints)), 1, "s")


def agreement(given: live.Material, rows: int) -> float:
    """The largest difference of a logit over ``CHANGES`` random changes of every sequence of the material."""
    chance = random.Random(0)
    batch, parts = given.batch, [str(part) for part in all_parts(given.subject.config)]
    donors = given.pairing.donors if given.pairing is not None else None
    places = sorted(chance.sample(range(batch.tokens.shape[1]), rows))
    tensors = {name: p.detach() for name, p in given.subject.model.named_parameters()}
    tensors |= {f"reference.z.{i}": mean for i, mean in enumerate(given.reference.mean_z)}
    tensors |= {f"reference.mlp.{i}": mean for i, mean in enumerate(given.reference.mean_mlp)}
    checks = []
    for number in range(CHANGES):
        states = {part: chance.choice(given.ways) for part in parts if chance.random() < 0.4}
        change = {"states": states, "frozen": number % 4 == 3, "at": [0, 1] if number % 5 == 4 else []}
        logits = hooked(given.subject.model, batch, change, given.reference, donors)
        for i in range(len(batch)):
            name = f"check.{number}.{i}"
            tensors[name] = logits[i, places]
            donor = donors[i] if donors is not None else None
            checks.append({"sequence": i, "donor": donor, "change": change, "rows": places, "logits": name})
    payload = {**live.payload(given, []), "checks": checks, "weights": live.pack(tensors)}
    asked = json.dumps({"source": core_source(), "jobs": [{"payload": payload, "calls": [["agreement", None]]}]})
    script = str(Path(__file__).parents[1] / "live_node.js")
    done = subprocess.run(["node", script], input=asked, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)[0][0]["difference"])


def agreements() -> Iterator[Row]:
    """Every option of the model on small ones, and a model of the size that the toggles are timed on."""
    worst = 0.0
    for number, shape in enumerate(small_models.SHAPES):
        options = {**shape, "scale_scores": number % 3 != 0}
        worst = max(
            worst, agreement(live.material(small_models.subject(options, number, number % 2 == 0), n=SEQUENCES), 6)
        )
    yield limit(f"live logits against PyTorch, {len(small_models.SHAPES)} options", worst, 1e-4, "logit")
    large = subject_of(d_vocab=64, n_ctx=64, n_layers=2, n_heads=8, d_model=64, d_mlp=256)
    with torch.no_grad():
        for name, weight in large.model.named_parameters():  # as far from the start as training goes
            if name.rpartition(".")[2].startswith("W_"):
                weight *= 4
    yield limit(
        "live logits against PyTorch, 2 x 8 heads", agreement(live.material(large, n=SEQUENCES), 4), 1e-4, "logit"
    )


def rows() -> Iterator[Row]:
    """The rows against fixed limits."""
    yield from in_browser()
    yield from agreements()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in rows():
        print(row, flush=True)
    sys.exit(0)
