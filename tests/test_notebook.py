"""A subject in a notebook: its face, the widget in a real browser, attention in a frame, and the example executed."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import workbench
from reports import notebook as notebook_page
from tests import hand_models, small_models
from tests.sample_findings import HOSTILE_TOKENS, SCRIPT
from workbench import live, training
from workbench.app import notebook
from workbench.app.notebook import AblationWidget
from workbench.config import ModelConfig, TrainConfig
from workbench.errors import WorkbenchError
from workbench.measure import measure
from workbench.registry import ROOT, load_task
from workbench.subject import Subject
from workbench.task import Vocabulary

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

EXAMPLE = ROOT / "examples" / "notebook.ipynb"
TASK = {"n_ctx": 32, "d_vocab": 25, "period_min": 4, "period_max": 10}
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("notebook") / "run <1>"
    task = load_task("repeated_tokens", TASK)
    shape = ModelConfig(d_vocab=25, n_ctx=32, n_heads=2, d_model=16)
    training.train(task, shape, TrainConfig(steps=20, batch_size=8), 0, place)
    return place


def planted() -> Subject:
    return hand_models.induction(24, 32).subject(load_task("repeated_tokens", TASK))


@pytest.fixture
def tab(browser: Browser) -> Iterator[Callable[..., Page]]:
    contexts = []
    troubles: list[str] = []

    def opener(**options: Any) -> Page:
        contexts.append(browser.new_context(offline=True, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: troubles.append(str(e)))
        page.on("dialog", lambda d: (troubles.append(d.message), d.dismiss()))
        page.on("request", lambda r: None if r.url.startswith(("about:", "blob:", "data:")) else troubles.append(r.url))
        return page

    yield opener
    for context in contexts:
        context.close()
    assert troubles == []


def test_a_run_shows_what_it_is(folder: Path) -> None:
    subject = workbench.open(folder)
    run = subject.run
    assert run is not None
    assert repr(subject) == (
        f"Subject(repeated_tokens, 2L x 2H, d 16, {live.parameters(subject):,} parameters, "
        f"run {run.hash[:12]} in {folder}, seed 0)"
    )
    shown = subject._repr_html_()
    assert html.escape(str(folder)) in shown
    assert "<1>" not in shown
    assert ".view()" in shown
    assert repr(small_models.subject({"d_mlp": 0}, seed=3)).endswith("parameters, seed 3)")


def test_the_widget_carries_the_model(folder: Path) -> None:
    subject = workbench.open(folder)
    widget = subject.view()
    assert isinstance(widget, AblationWidget)
    assert widget.payload["model"] == live.model_hash(subject)
    assert widget.payload["backend"] == "page"
    assert widget.payload["weights"]["sha256"]
    assert len(widget.payload["vocabulary"]["shown"]) == 25
    json.dumps(widget.payload, allow_nan=False)
    state = widget.get_state()
    assert state["_esm"] == notebook_page.module()
    assert state["_css"] == notebook_page.style()
    assert repr(widget) == f"AblationWidget(repeated_tokens, model {widget.payload['model'][:12]})"


# What anywidget does: a module's default export draws a model's traits into an element.
RENDER = """async ({ esm, css, payload }) => {
  const rules = document.createElement("style");
  rules.textContent = css;
  document.head.append(rules);
  const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  const { default: widget } = await import(url);
  window.stop = widget.render({ model: { get: (name) => ({ payload })[name] }, el: document.querySelector("#out") });
}"""
NOTEBOOK = '<!doctype html><h1>Mine</h1><table><tr><td>1</td></tr></table><button>mine</button><div id="out"></div>'
OWN = """[...document.querySelectorAll("body, body > h1, body > table, body > table td, body > button")].map((e) => {
  const s = getComputedStyle(e);
  return [s.font, s.color, s.backgroundColor, s.padding, s.margin, s.border, s.boxSizing].join("|");
})"""


def test_the_widget_in_a_browser(tab: Callable[..., Page]) -> None:
    subject = planted()
    widget = subject.view()
    page = tab(color_scheme="dark")
    page.set_content(NOTEBOOK)
    before = page.evaluate(OWN)
    page.evaluate(RENDER, {"esm": widget._esm, "css": widget._css, "payload": widget.payload})
    page.locator("[data-agreement]").wait_for()
    assert float(page.locator("[data-agreement]").inner_text()) <= 1e-4
    page.locator("[data-head='L1.H0']").click()
    page.locator("[data-head='L1.H0'][data-state=zero]").wait_for()
    page.locator("[data-score-after][aria-busy=false]").wait_for(state="attached")
    given = live.material(subject)
    change = live.intervention({"states": {"L1.H0": "zero"}, "frozen": False, "at": []}, given)
    assert change is not None
    [effect] = measure(subject, given.batch, [change])
    after = float(page.locator("[data-score-after]").text_content() or "nan")
    assert after == pytest.approx(effect.ablated_accuracy.mean(), abs=1e-6)
    assert page.evaluate("location.hash") == ""
    assert page.evaluate(OWN) == before, "the notebook's own elements have changed"
    box = page.locator(".workbench-view")
    colours = "e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color]"
    assert box.evaluate(colours) == ["rgb(16, 19, 22)", "rgb(231, 234, 237)"]
    assert box.evaluate("e => e.getBoundingClientRect().height") > 600
    page.evaluate("stop()")
    assert page.locator("[data-head]").count() == 0


def test_the_rules_of_the_view_stay_inside_it() -> None:
    style = notebook_page.style()
    assert style.startswith(".workbench-view{")
    assert style.count("{") == style.count("}")
    assert not re.search(r":root|(?<![\w-])body\{", style)
    assert {"--paper", "--s0", "--d100", "--c2"} <= set(re.findall(r"--[\w]+(?=:)", style))
    assert ".lv-cell" in style


def test_a_model_too_large_for_a_notebook(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MOST_PARAMETERS", 1000)
    subject = workbench.open(folder)
    shown = subject.view()
    assert repr(shown).endswith(f"workbench ablate '{folder}'")
    assert "a notebook carries at most 1,000" in repr(shown)
    assert html.escape(f"'{folder}'") in shown._repr_html_()
    assert "<1>" not in shown._repr_html_()


def test_a_subject_without_a_task_has_no_view() -> None:
    with pytest.raises(WorkbenchError, match="needs a task"):
        Subject(small_models.model({"d_mlp": 0}), Vocabulary(tuple("abcdefg"))).view()


def test_attention_in_a_frame(tab: Callable[..., Page]) -> None:
    tokens = tuple(HOSTILE_TOKENS[:7])
    subject = Subject(small_models.model({"d_mlp": 0}), Vocabulary(tokens))
    shown = subject.show_attention([tokens[:5], tokens[2:4]])
    assert repr(shown) == "Attention of 4 heads on 2 sequences"
    page = tab()
    page.set_content(NOTEBOOK + shown._repr_html_())
    frame = page.frame_locator("iframe")
    figures = frame.locator("figure")
    assert figures.count() == 2
    frame.locator(".circuitsvis canvas").first.wait_for()
    assert figures.first.locator(".strip .tokens button").first.inner_text() == SCRIPT
    assert not frame.locator("h1").is_visible()
    assert page.locator("iframe").get_attribute("sandbox") == "allow-scripts allow-downloads"
    by_ids = subject.show_attention(torch.tensor([[0, 1, 2, 3, 4]]))
    assert repr(by_ids) == "Attention of 4 heads on 1 sequences"


def test_attention_that_cannot_be_shown() -> None:
    subject = small_models.subject({"d_mlp": 0})
    for sequences, message in (
        ([], "at least one sequence"),
        ([["a", "?"]], "unknown token '\\?'"),
        ([[]], "empty"),
        ([["a"] * 7], "longer than the context"),
    ):
        with pytest.raises(WorkbenchError, match=message):
            subject.show_attention(sequences)


def outputs(made: nbformat.NotebookNode) -> list[list[dict[str, Any]]]:
    return [list(cell.outputs) for cell in made.cells if cell.cell_type == "code"]


def test_the_example_runs(folder: Path) -> None:
    example = nbformat.read(EXAMPLE, as_version=4)
    [parameters] = [cell for cell in example.cells if "parameters" in cell.metadata.get("tags", [])]
    parameters.source = f"folder = {folder.name!r}"
    client = NotebookClient(
        example, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(folder.parent)}}
    )
    client.execute()
    shown = [cell[-1]["data"] for cell in outputs(example)[1:]]
    assert "Subject(repeated_tokens, 2L x 2H" in shown[0]["text/plain"]
    assert "L1.H1" in shown[1]["text/html"]
    assert "semantics" in shown[2]["text/html"]
    assert "<iframe" in shown[3]["text/html"]
    state = example.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    payload = state[shown[4][WIDGET]["model_id"]]["state"]["payload"]
    assert payload["model"] == live.model_hash(workbench.open(folder))


def test_the_example_is_stored_executed() -> None:
    example = nbformat.read(EXAMPLE, as_version=4)
    nbformat.validate(example)
    code = [cell for cell in example.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(len(cell) == 1 and cell[0]["output_type"] == "execute_result" for cell in outputs(example)[1:])
    assert WIDGET in outputs(example)[-1][0]["data"]
    assert not re.search(r'["\s(=](/|~/)(home|root|tmp|usr|Users|work)\b', EXAMPLE.read_text(encoding="utf-8"))
