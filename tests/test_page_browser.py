"""Pages in a real browser with the network off: drawn, sortable, taken out, released, literal."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reports.page import render_page
from tests.sample_findings import COMMAND, HEADING, HOSTILE_TOKENS, IDENTITY, IMAGE, SCRIPT, hostile, induction_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {}
    for name, findings in (("report", induction_report()), ("hostile", hostile())):
        paths[name] = folder / f"{name}.html"
        source = render_page(findings, identity=IDENTITY, command=COMMAND, heading=HEADING)
        paths[name].write_text(source, encoding="utf-8")
    return paths


@dataclass
class Opened:
    """A page and everything that went wrong on it."""

    page: Page
    troubles: list[str] = field(default_factory=list)


@pytest.fixture
def open_page(browser: Browser, files: dict[str, Path]) -> Iterator:
    contexts = []

    def opener(name: str, *, width: int = 1280, scheme: str = "light") -> Opened:
        context = browser.new_context(
            offline=True, color_scheme=scheme, viewport={"width": width, "height": 900}, accept_downloads=True
        )
        contexts.append(context)
        opened = Opened(context.new_page())
        page, troubles = opened.page, opened.troubles
        page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: troubles.append(str(e)))
        page.on("requestfailed", lambda r: troubles.append(r.url))
        page.on(
            "request", lambda r: troubles.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None
        )
        page.on("dialog", lambda d: (troubles.append(d.message), d.dismiss()))
        page.goto(files[name].as_uri())
        page.wait_for_selector(".circuitsvis canvas")
        return opened

    yield opener
    for context in contexts:
        context.close()


DRAWN = """figure => {
  const box = figure.getBoundingClientRect();
  const canvas = [...figure.querySelectorAll("canvas")].at(-1);
  const pixels = canvas && canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const svg = figure.querySelector("svg.plot");
  return {
    id: figure.id, width: box.width, height: box.height,
    colours: pixels ? new Set(new Uint32Array(pixels.buffer)).size : null,
    marks: svg ? svg.querySelectorAll("path,use,image,text").length : null,
    rows: figure.querySelectorAll("tbody tr").length,
  };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("name", ["report", "hostile"])
def test_everything_is_drawn_and_nothing_complains(open_page, name: str, width: int, scheme: str):
    opened = open_page(name, width=width, scheme=scheme)
    page = opened.page
    figures = page.eval_on_selector_all("figure", f"all => all.map({DRAWN})")
    assert len(figures) >= 4
    for figure in figures:
        assert figure["width"] > 100, figure
        assert figure["height"] > 100, figure
        assert figure["rows"] or figure["marks"] > 10, figure
        assert figure["colours"] is None or figure["colours"] > 3, figure
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert (ink, paper) == (
        ("rgb(26, 29, 33)", "rgb(252, 252, 253)") if scheme == "light" else ("rgb(231, 234, 237)", "rgb(16, 19, 22)")
    )
    assert opened.troubles == []


def test_hostile_tokens_are_shown_literally(open_page):
    opened = open_page("hostile")
    page = opened.page
    assert page.locator("h1").inner_text() == f"Question {SCRIPT}?"
    assert page.locator("b", has_text="onerror").first.inner_text() == IMAGE
    strip = page.locator(".strip .tokens button").all_inner_texts()
    assert strip[:2] == [SCRIPT, IMAGE]
    assert len(set(strip)) == len(HOSTILE_TOKENS)
    assert page.locator("img").count() == 0
    assert opened.troubles == []


def column(page: Page, number: int) -> list[str]:
    return page.eval_on_selector_all(
        f"#induction\\.ablations tbody tr > :nth-child({number})", "c => c.map(e => e.dataset.v)"
    )


def test_tables_sort_by_keyboard_with_what_is_undefined_last(open_page):
    page = open_page("report").page
    heading = page.locator("#induction\\.ablations thead th").nth(4)
    given = column(page, 5)
    heading.locator("button").focus()
    orders = []
    for direction in ("ascending", "descending", "none"):
        page.keyboard.press("Enter")
        assert heading.get_attribute("aria-sort") == direction
        orders.append(column(page, 5))
    up, down, back = orders
    assert up[-1] == down[-1] == ""
    assert list(map(float, up[:-1])) == sorted(float(v) for v in given if v)
    assert down[:-1] == up[:-1][::-1]
    assert back == given
    page.locator("#induction\\.ablations thead button").first.click()
    assert heading.get_attribute("aria-sort") == "none"


def download(page: Page, figure: str, tool: str) -> Path:
    with page.expect_download() as waiting:
        page.locator(f"[id='{figure}'] button[data-tool={tool}]").click()
    assert waiting.value.suggested_filename == f"{figure}.{tool}"
    return Path(waiting.value.path())


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_data_comes_out_as_csv(open_page):
    opened = open_page("hostile")
    table = rows(download(opened.page, "hostile.table", "csv"))
    assert [r["token"] for r in table] == list(HOSTILE_TOKENS)
    weights = rows(download(opened.page, "hostile.attention", "csv"))
    n = len(HOSTILE_TOKENS)
    assert len(weights) == 3 * n * (n + 1) // 2
    assert [w["weight"] for w in weights[:3]] == ["1", "0.5", "0.5"]
    assert weights[-1] | {"head": ""} == {
        "head": "", "query": str(n - 1), "query_token": "a b", "key": str(n - 1), "key_token": "a b", "weight": "1"
    }  # fmt: skip
    assert opened.troubles == []


@pytest.mark.parametrize("figure", ["induction.training", "induction.ov", "induction.patterns"])
def test_drawings_come_out_on_their_own_in_light_colours(open_page, figure: str):
    from xml.etree import ElementTree

    opened = open_page("report", scheme="dark")
    source = download(opened.page, figure, "svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(source).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in source
    assert "#5b6169" in source
    assert "only-dark" not in source
    image = download(opened.page, figure, "png").read_bytes()
    assert image.startswith(b"\x89PNG")
    assert len(image) > 5_000
    assert opened.troubles == []


def test_keys_do_what_the_mouse_does_and_escape_releases(open_page):
    opened = open_page("report")
    page = opened.page
    zoomed = page.locator(".circuitsvis h2")
    read = page.locator(".strip .read")
    assert zoomed.inner_text() == "L0.H0"
    page.locator(".circuitsvis [role=button]").nth(5).focus()
    page.keyboard.press("Enter")
    assert zoomed.inner_text() == "L1.H1"
    page.locator(".strip .tokens button").first.focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    assert "L1.H1, query" in read.inner_text()
    assert "(20) → " in read.inner_text()
    assert page.locator(".strip [aria-pressed=true]").count() == 1
    page.keyboard.press("Escape")
    assert zoomed.inner_text() == "L0.H0"
    assert read.inner_text() == ""
    assert page.locator(".strip [aria-pressed=true]").count() == 0
    assert opened.troubles == []


def test_all_heads_can_be_seen_at_once_and_in_print(open_page):
    page = open_page("report").page
    still = page.locator(".still")
    assert not still.is_visible()
    page.locator("button[data-tool=still]").click()
    assert still.is_visible()
    page.locator("button[data-tool=still]").click()
    page.emulate_media(media="print")
    assert still.is_visible()
    assert not page.locator(".view").is_visible()
    assert not page.locator("button[data-tool=svg]").first.is_visible()


def test_the_command_can_be_copied(open_page):
    page = open_page("report").page
    page.locator("button[data-tool=copy]").click()
    page.locator("button[data-tool=copy]", has_text="copied").wait_for()
