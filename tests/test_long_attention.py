"""Attention at length: packed within the stated precision and budget, and a view that mouse, touch and keys can use."""

from __future__ import annotations

import csv
import importlib.resources
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import expect

from reports import attention, long_attention
from reports.escaping import glyphs
from reports.long_attention import TOP, block, is_causal, packed, pooled
from reports.page import render_page
from tests.sample_findings import COMMAND, HEADING, HOSTILE_TOKENS, IDENTITY, IMAGE, SCRIPT
from tests.sample_findings import attention as short_figure
from workbench.findings import Attention
from workbench.pattern_array import MOST_CELLS, MOST_TOKENS, most_tokens

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("L0.H0", "L0.H1", "L1.H0", "L1.H1")


def patterns(n: int, heads: int = 4, seed: int = 0) -> np.ndarray:
    """Causal patterns: diffuse noise, and one head that looks one token back."""
    noise = np.random.default_rng(seed).random((heads, n, n), dtype=np.float32)
    noise[1, np.arange(1, n), np.arange(n - 1)] += 3 * n
    lower = np.tril(noise)
    return lower / lower.sum(axis=2, keepdims=True)


def figure(n: int = 128, **changes: Any) -> Attention:
    made = {
        "id": "long.patterns",
        "title": "L0.H1 looks one token back",
        "caption": "Rows are queries.",
        "tokens": tuple(f"t{i * 7 % 61}" for i in range(n)),
        "patterns": patterns(n),
        "names": NAMES,
    }
    return Attention(**(made | changes))


def page(*findings: Attention) -> str:
    return render_page(findings, identity=IDENTITY, command=COMMAND, heading=HEADING)


def carried(source: str) -> list[dict[str, Any]]:
    return [json.loads(found) for found in re.findall(r'class="cells">(.*?)</script>', source)]


def codes_of(values: np.ndarray, causal: bool = True) -> list[int]:
    return list(packed(values, causal))


# Packing


def test_a_byte_a_weight_by_hand():
    values = np.array([[[1.0, 0.0], [0.25, 0.75]], [[1.0, 0.0], [math.nan, 0.0]]])
    assert codes_of(values) == [254, 127, 220, 254, 255, 0]
    assert codes_of(values[:1], causal=False) == [254, 0, 127, 220]
    assert codes_of(np.array([[[1.5, 0.0], [-0.1, math.inf]]])) == [254, 0, 254]
    assert is_causal(values)
    assert not is_causal(values[:1].transpose(0, 2, 1))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_every_weight_comes_back_within_what_is_stated(weights: list[float]):
    values = np.zeros((1, len(weights), len(weights)))
    values[0, -1] = weights
    for code, weight in zip(codes_of(values)[-len(weights) :], weights, strict=True):
        within = (code + 0.25) / TOP**2
        assert abs((code / TOP) ** 2 - weight) <= within + 1e-12
        assert within <= 0.004
        assert weight > 0.011 or within <= 0.00043


def test_blocks_keep_the_largest_weight_and_what_is_undefined():
    values = np.zeros((1, 5, 5))
    values[0, 2, 1], values[0, 3, 0], values[0, 4, 4], values[0, 1, 0] = 0.3, 0.7, 0.2, math.nan
    made = pooled(values, 2)[0]
    assert np.array_equal(made, [[math.nan, 0, 0], [0.7, 0, 0], [0, 0, 0.2]], equal_nan=True)
    assert pooled(values, 1) is values


@given(st.integers(1, 6_000), st.integers(1, 300), st.booleans())
@settings(max_examples=60)
def test_the_budget_is_kept_with_no_more_blocks_than_it_takes(n: int, heads: int, causal: bool):
    def cells(every: int) -> int:
        size = math.ceil(n / every)
        return heads * (size * (size + 1) // 2 if causal else size**2)

    every = block(n, heads, causal)
    assert cells(every) <= MOST_CELLS
    assert math.ceil(n / every) <= MOST_TOKENS
    assert every == 1 or cells(every - 1) > MOST_CELLS or math.ceil(n / (every - 1)) > MOST_TOKENS


def test_the_longest_sequence_is_the_longest():
    assert block(512, 12, causal=True) == 1
    assert block(1_024, 1, causal=True) == 1
    assert block(1_025, 1, causal=True) == 2
    for heads in (1, 2, 12, 16, 32, 700):
        n = most_tokens(heads)
        assert block(n, heads, causal=True) == 1
        assert block(n + 1, heads, causal=True) == 2


def test_512_tokens_of_12_heads_fit_and_are_packed_at_once():
    made = figure(512, patterns=patterns(512, 12), names=tuple(f"H{i}" for i in range(12)))
    start = time.perf_counter()
    packed(np.asarray(made.patterns), True)
    assert time.perf_counter() - start < 0.9
    assert len(page(made)) <= 2_500_000


# The page


def test_what_the_page_carries():
    made = figure(100, tokens=(" the", "the", "\n", *"abcdefg" * 13, *HOSTILE_TOKENS[:6]))
    (data,) = carried(page(made))
    assert (data["size"], data["every"], data["causal"]) == (100, 1, True)
    assert data["raw"] == list(made.tokens)
    assert data["tokens"] == [glyphs(t) for t in made.tokens]
    assert len(data["cells"]) == math.ceil(4 * 5_050 / 3) * 4


def test_each_view_has_its_script_once_and_only_where_it_stands():
    ours, theirs = long_attention.script(), attention.bundle()
    assert not attention.is_long(figure(64, patterns=patterns(64)))
    assert attention.is_long(figure(65, patterns=patterns(65)))
    assert attention.is_long(figure(64, patterns=patterns(64, 98), names=tuple(map(str, range(98)))))
    for findings, counts in (
        ((figure(), figure(90)), (1, 0)),
        ((short_figure(),), (0, 1)),
        ((figure(), short_figure(), short_figure()), (1, 1)),
        ((), (0, 0)),
    ):
        source = page(*findings)
        assert (source.count(ours), source.count(theirs)) == counts


def test_down_sampling_is_said_on_the_figure():
    n = 1_100
    weights = np.zeros((1, n, n), dtype=np.float32)
    weights[0, np.arange(n), np.arange(n) // 2] = 1
    source = page(figure(n, patterns=weights, names=("L0.H0",)))
    assert f"Down-sampled: {n} tokens" in source
    assert "largest weight of 2 x 2 tokens" in source
    (data,) = carried(source)
    assert (data["size"], data["every"], len(data["tokens"])) == (550, 2, n)
    assert "Down-sampled" not in page(figure())


def test_what_is_out_of_order_is_marked():
    weights = patterns(70)
    weights[0, 5, 2], weights[2], weights[3, 9, 0] = math.nan, np.tril(np.full((70, 70), 0.1)), 1.5
    source = page(figure(70, patterns=weights))
    assert carried(source)[0]["marks"] == ["n/a", "", "constant", ""]
    for said in (
        "L0.H0: 1 weights are undefined",
        "L1.H0 is constant: every weight up to the query is 0.1",
        "L1.H1: rows do not sum to 1",
        "L1.H1: 1 weights lie outside 0 to 1",
        "L0.H0 · n/a",
        "L1.H0 · constant",
    ):
        assert said in source
    flat = page(figure(70, patterns=np.full((1, 70, 70), 1 / 70), names=("H",)))
    assert "H is constant: every weight is 0.01429" in flat
    assert carried(flat)[0]["causal"] is False


# In the browser


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("long")
    broken = patterns(70)
    broken[0, 40:60, 10:30], broken[2] = math.nan, np.tril(np.full((70, 70), 0.1))
    tokens = tuple(HOSTILE_TOKENS[i % len(HOSTILE_TOKENS)] for i in range(70))
    pages = {
        "long": [figure()],
        "two": [figure(300, patterns=patterns(300, 2), names=NAMES[:2]), figure(90), short_figure()],
        "hostile": [figure(70, tokens=tokens, patterns=broken, names=(IMAGE, SCRIPT, "L1.H0", "L1.H1"))],
        "formulas": [figure(70, tokens=("@SUM(A1)",) * 70, patterns=patterns(70, 2), names=("=1+1", "L0.H1"))],
        "blocks": [figure(1_100, patterns=patterns(1_100, 2), names=NAMES[:2])],
        "short": [short_figure(n=48)],
    }  # fmt: skip
    for name, findings in pages.items():
        (folder / f"{name}.html").write_text(page(*findings), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


Opener = Callable[..., "Page"]


@pytest.fixture
def opened(browser: Browser, files: dict[str, Path]) -> Iterator[Opener]:
    contexts, troubles = [], []

    def opener(name: str, width: int = 1280, ready: str = ".long-view[data-drawn]", **more: Any) -> Page:
        size = {"width": width, "height": max(900, width // 2)}
        context = browser.new_context(offline=True, viewport=size, accept_downloads=True, **more)
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") and _ours(m.text) else None
        )
        page.on("pageerror", lambda e: troubles.append(str(e)))
        page.on("requestfailed", lambda r: troubles.append(r.url))
        page.on("dialog", lambda d: (troubles.append(d.message), d.dismiss()))
        page.goto(files[name].as_uri())
        page.locator(ready).first.wait_for(state="attached")
        return page

    yield opener
    for context in contexts:
        context.close()
    assert troubles == []


def _ours(message: str) -> bool:
    """The browser remarks that canvases are read often: these tests read them, the page does not."""
    return not message.startswith("Canvas2D: Multiple readback")


def settle(page: Page) -> None:
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def until(page: Page, holds: Callable[[], bool]) -> None:
    """Waits at most 30 s (the page's policy forbids the browser to evaluate what it would have to wait for)."""
    for _ in range(600):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not come about within 30 s")


def window(page: Page) -> tuple[float, float, float]:
    settle(page)
    x, y, span = map(float, page.locator(".map").first.get_attribute("data-window").split())
    return x, y, span


def at(page: Page, q: int, k: int) -> dict[str, float]:
    """Where in the map's box the middle of a cell lies."""
    x, y, span = window(page)
    left, top, side = map(float, page.locator(".map").first.get_attribute("data-plot").split())
    return {"x": left + (k + 0.5 - x) / span * side, "y": top + (q + 0.5 - y) / span * side}


def is_locked(page: Page) -> bool:
    settle(page)
    return page.locator(".state").inner_text().startswith("Locked")


def reading(page: Page) -> dict[str, str]:
    settle(page)
    pairs = page.locator(".beside").first.locator("dl > div")
    return {p.locator("dt").inner_text(): p.locator("dd").inner_text() for p in pairs.all()}


def said(head: int, q: int, k: int, n: int = 128) -> tuple[str, str, str]:
    """The query, the key and the weight that the view must name, from the numbers."""
    code = packed(patterns(n)[head : head + 1, q : q + 1, k : k + 1], causal=False)[0]
    within = (code + 0.25) / TOP**2
    digits = math.ceil(-math.log10(within))
    weight = f"{(code / TOP) ** 2:.{digits}f} ± {math.ceil(within * 10**digits) / 10**digits:.{digits}f}"
    return f"t{q * 7 % 61} ({q})", f"t{k * 7 % 61} ({k})", weight


def seen(page: Page) -> tuple[str, str, str]:
    shown = reading(page)
    return shown["query"], shown["key"], shown["weight"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 3840])
def test_it_is_drawn_at_every_width_in_both_themes(opened: Opener, width: int, scheme: str):
    page = opened("long", width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator(".map").bounding_box()
    assert box["width"] > 250
    assert page.locator(".heads button").count() == 4
    drawn = """canvas => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const pixels = new Uint32Array(data.buffer);
      return [new Set(pixels).size, pixels.reduce((count, p) => count + (p !== 0), 0) / pixels.length];
    }"""
    for canvas in page.locator(".heads canvas, .map canvas:first-child").all():
        colours, filled = canvas.evaluate(drawn)
        assert colours > 8
        assert 0.3 < filled < 0.7


def test_colours_follow_the_theme_while_the_page_is_open(opened: Opener):
    page = opened("long")
    pixel = "c => [...c.getContext('2d').getImageData(c.width / 4, c.height / 2, 1, 1).data].slice(0, 3)"
    light = page.locator(".heads canvas").first.evaluate(pixel)
    page.emulate_media(color_scheme="dark")
    settle(page)
    dark = page.locator(".heads canvas").first.evaluate(pixel)
    assert sum(light) > 400 > 300 > sum(dark)


def test_hover_names_the_cell_and_links_row_column_and_tokens(opened: Opener):
    page = opened("long")
    over = """c => {
      const { data } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
      return new Uint32Array(data.buffer).filter((pixel) => pixel).length;
    }"""
    page.locator(".map").hover(position=at(page, 90, 31))
    assert seen(page) == said(0, 90, 31)
    assert page.locator(".map canvas").last.evaluate(over) > 200
    assert page.locator(".words [aria-selected=true]").get_attribute("title") == "90"
    assert page.locator(".words .key").get_attribute("title") == "31"
    assert all(re.fullmatch(r"<?0\.\d{3}", s) for s in page.locator(".heads small").all_inner_texts())
    page.locator(".heads button").nth(1).click()
    page.locator(".map").hover(position=at(page, 90, 89))
    assert seen(page) == said(1, 90, 89)
    assert reading(page)["row’s largest"].splitlines()[0].startswith(f"t{89 * 7 % 61} (89) 0.8")
    page.locator(".map").hover(position=at(page, 20, 100))  # above the diagonal nothing is
    assert seen(page) == ("–", "–", "–")
    page.locator(".words span").nth(64).hover()
    assert seen(page) == said(1, 64, 63)
    page.locator("h1").hover()
    assert seen(page) == ("–", "–", "–")
    assert page.locator(".map canvas").last.evaluate(over) == 0


def test_a_click_locks_and_escape_releases(opened: Opener):
    page = opened("long")
    page.locator(".map").click(position=at(page, 100, 40))
    page.locator(".map").hover(position=at(page, 60, 10))
    assert seen(page) == said(0, 100, 40)
    assert is_locked(page)
    page.locator(".heads button").nth(2).click()  # the cell stays while the heads change
    assert seen(page) == said(2, 100, 40)
    page.keyboard.press("Escape")
    assert seen(page) == ("–", "–", "–")
    assert page.locator(".long-view [role=status]").inner_text() == "released"
    page.locator(".words span").nth(70).click()
    page.locator(".map").hover(position=at(page, 60, 10))
    assert seen(page)[0] == said(2, 70, 0)[0]
    page.locator(".words span").nth(70).click()
    page.locator(".map").hover(position=at(page, 60, 10))
    assert seen(page) == said(2, 60, 10)


def test_escape_releases_wherever_the_focus_is(opened: Opener):
    page = opened("two", ready=".circuitsvis canvas")
    views = page.locator(".long-view")
    for i in range(2):
        views.nth(i).locator(".words span").nth(30).click()
    page.locator("h1").click()
    page.evaluate("document.activeElement.blur()")
    settle(page)
    assert [text.startswith("Locked") for text in page.locator(".state").all_inner_texts()] == [True, True]
    page.keyboard.press("Escape")
    settle(page)
    assert [text.startswith("Locked") for text in page.locator(".state").all_inner_texts()] == [False, False]
    before = page.locator(".long-view [role=status]").first.inner_text()
    assert before == "released"
    page.evaluate("document.querySelector('.long-view [role=status]').textContent = 'said earlier'")
    page.keyboard.press("Escape")  # nothing is held: nothing is said
    settle(page)
    assert page.locator(".long-view [role=status]").first.inner_text() == "said earlier"


def test_what_is_read_out_holds_what_is_seen(opened: Opener):
    page = opened("long")
    page.locator(".words span").nth(30).click()
    settle(page)
    buttons = page.eval_on_selector_all(
        ".long-view button",
        "all => all.map(b => [b.innerText.split('\\n').filter(Boolean), b.getAttribute('aria-label')])",
    )
    assert len(buttons) == 4 + 5
    for seen_, named in buttons:
        assert seen_
        assert all(text in named for text in seen_), (seen_, named)


def test_everything_by_keyboard(opened: Opener):
    page = opened("long")
    page.locator(".map").focus()
    for key in ("ArrowDown", "Shift+ArrowDown", "PageDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    assert seen(page) == said(0, 21, 1)
    assert "query t25 at 21, key t7 at 1, weight" in page.locator(".long-view [role=status]").inner_text()
    page.keyboard.press("End")
    assert seen(page) == said(0, 21, 21)
    page.keyboard.press("]")
    page.keyboard.press("Enter")
    assert is_locked(page)
    page.keyboard.press("+")
    page.keyboard.press("+")
    x, y, span = window(page)
    assert span == pytest.approx(128 / 1.6**2)
    assert x <= 21 < x + span
    assert y <= 21 < y + span
    for _ in range(4):
        page.keyboard.press("Shift+ArrowDown")
    assert seen(page) == said(1, 61, 21)
    x, y, span = window(page)
    assert y + span >= 62  # the window followed the cross
    page.keyboard.press("0")
    assert window(page) == (0, 0, 128)
    page.keyboard.press("Escape")
    assert seen(page) == ("–", "–", "–")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-checked')") == "true"
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.get_by_role("radio", name="L1.H0", exact=True).get_attribute("aria-checked") == "true"
    page.keyboard.press("Home")
    settle(page)
    assert page.locator("h4").inner_text() == "L0.H0"
    page.locator(".words").focus()
    page.keyboard.press("End")
    assert seen(page)[0] == said(0, 127, 0)[0]
    assert page.locator(".words").get_attribute("aria-activedescendant") == "long.patterns--token-127"
    words, box = page.locator(".words span").last.bounding_box(), page.locator(".words").bounding_box()
    assert words["y"] + words["height"] <= box["y"] + box["height"] + 1


def test_wheel_and_drag(opened: Opener):
    page = opened("long")
    page.locator(".map").scroll_into_view_if_needed()
    box = page.locator(".map").bounding_box()
    spot = at(page, 80, 40)
    page.mouse.move(box["x"] + spot["x"], box["y"] + spot["y"])
    page.mouse.wheel(0, -300)
    assert window(page) == (0, 0, 128)  # the page scrolls until the map has the focus
    page.evaluate("scrollTo(0, 0)")
    page.locator(".map").click(position=at(page, 80, 40))
    page.mouse.wheel(0, -600)
    until(page, lambda: window(page)[2] < 127)
    x, y, span = window(page)
    assert span < 60
    page.keyboard.press("Escape")
    page.locator(".map").hover(position=at(page, 80, 40))
    assert seen(page) == said(0, 80, 40)
    inside, _ = page.locator(".map").bounding_box(), page.mouse.down()
    spot = at(page, 80, 40)
    page.mouse.move(inside["x"] + spot["x"] + 60, inside["y"] + spot["y"] + 30, steps=4)
    page.mouse.up()
    moved = window(page)
    side = float(page.locator(".map").get_attribute("data-plot").split()[2])
    assert moved == pytest.approx((max(0, x - 60 * span / side), max(0, y - 30 * span / side), span), abs=0.2)
    assert not is_locked(page)
    page.get_by_role("button", name="show the whole map").click()
    assert window(page) == (0, 0, 128)
    page.get_by_role("button", name="zoom in").click()
    assert window(page)[2] == pytest.approx(80)


def test_fingers_tap_and_pinch(opened: Opener):
    page = opened("long", 400, has_touch=True, is_mobile=True, device_scale_factor=2)
    page.locator(".map").scroll_into_view_if_needed()
    page.locator(".map").tap(position=at(page, 100, 40))
    assert is_locked(page)
    assert abs(int(re.search(r"\((\d+)\)", seen(page)[0])[1]) - 100) <= 1
    box = page.locator(".map").bounding_box()
    session = page.context.new_cdp_session(page)
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def touch(kind: str, *apart: float) -> None:
        points = [{"x": middle[0] + s * a, "y": middle[1], "id": i} for a in apart for i, s in enumerate((-1, 1))]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 20)
    for apart in (30, 40, 50, 60):
        touch("touchMove", apart)
    touch("touchEnd")
    assert window(page)[2] == pytest.approx(128 / 3, rel=0.1)
    assert is_locked(page)


def test_hostile_tokens_and_names_are_text_and_faults_are_marked(opened: Opener):
    page = opened("hostile")
    words = page.locator(".words span").all_inner_texts()
    assert words[:2] == [SCRIPT, IMAGE]
    assert len(set(words)) == len(HOSTILE_TOKENS)
    assert page.locator(".heads bdi").all_inner_texts() == [IMAGE, SCRIPT, "L1.H0", "L1.H1"]
    assert page.locator("img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert page.locator(".heads small").all_inner_texts() == ["n/a", "", "constant", ""]
    assert page.get_by_role("radio", name="L1.H0, constant").count() == 1
    assert page.locator(".missing").is_visible()
    page.locator(".map").hover(position=at(page, 50, 20))
    assert seen(page)[2] == "n/a"
    orange = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--c2').trim()")
    place = at(page, 44, 13)
    pixel = page.locator(".map canvas").first.evaluate(
        "(c, p) => [...c.getContext('2d').getImageData(p.x, p.y, 1, 1).data].slice(0, 3)", place
    )
    assert pixel == [int(orange[i : i + 2], 16) for i in (1, 3, 5)]


def test_blocks_name_the_tokens_they_stand_for(opened: Opener):
    page = opened("blocks")
    assert page.locator("figcaption .mark", has_text="Down-sampled").is_visible()
    page.locator(".map").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    shown = reading(page)
    assert (shown["query"], shown["key"]) == ("t14 … t21 (2–3)", "t0 … t7 (0–1)")
    assert page.locator(".words span").count() == 550


def download(page: Page, button: Any) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        button.click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def test_pictures_and_numbers_come_out(opened: Opener):
    page = opened("long", color_scheme="dark")
    page.locator(".heads button").nth(1).click()
    name, data = download(page, page.get_by_role("button", name="save the shown head's weights as CSV"))
    assert name == "long.patterns-1.csv"
    rows = list(csv.DictReader(data.decode().splitlines()))
    assert len(rows) == 128 * 129 // 2
    assert rows[2] == {
        "head": "L0.H1", "query": "1", "query_token": "t7", "key": "1", "key_token": "t7",
        "weight": rows[2]["weight"], "within": rows[2]["within"],
    }  # fmt: skip
    exact = patterns(128)[1][np.tril_indices(128)]
    for row, weight in zip(rows, exact.tolist(), strict=True):
        assert abs(float(row["weight"]) - weight) <= float(row["within"]) + 1e-6
    name, data = download(page, page.get_by_role("button", name="save the shown map as PNG"))
    assert name == "long.patterns-1.png"
    assert data.startswith(b"\x89PNG")
    corner = page.evaluate(
        """async (bytes) => {
          const image = await createImageBitmap(new Blob([new Uint8Array(bytes)]));
          const context = Object.assign(document.createElement("canvas"), { width: 9, height: 9 }).getContext("2d");
          context.drawImage(image, 0, 0);
          return [image.width, ...context.getImageData(2, 2, 1, 1).data];
        }""",
        list(data),
    )
    assert corner[0] > 1_000
    assert corner[1:] == [255, 255, 255, 255]  # light, whatever the page's theme
    for tool in ("svg", "png"):
        name, data = download(page, page.locator(f"button[data-tool={tool}]"))
        assert name == f"long.patterns.{tool}"
        assert len(data) > 20_000


def test_a_token_like_a_formula_is_a_text_in_the_table_and_letters_stay_whole(opened: Opener):
    page = opened("formulas")
    _, data = download(page, page.get_by_role("button", name="save the shown head's weights as CSV"))
    row = next(csv.DictReader(data.decode().splitlines()))
    assert (row["head"], row["query_token"], row["key_token"]) == ("'=1+1", "'@SUM(A1)", "'@SUM(A1)")
    assert "-" not in row["weight"]
    family = "👩‍👩‍👧‍👦"
    source = importlib.resources.files("reports").joinpath("assets", "long_attention_plot.js").read_text("utf-8")
    cut = page.evaluate(
        "text => {"
        + source
        + """
          const context = document.createElement("canvas").getContext("2d");
          return Array.from({ length: 60 }, (_, room) => clipped(context, text, room * 4));
        }""",
        family * 6,
    )
    assert set(cut) >= {family * 6, family + "…"}
    assert set(cut) <= {family * 6, *(family * n + "…" for n in range(1, 6))}


def test_print_is_a_still_picture(opened: Opener):
    page = opened("long")
    assert not page.locator(".still").is_visible()
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator(".still svg").is_visible()
    assert page.locator(".still svg image.only-light").count() == 5
    assert not page.locator(".still svg image.only-dark").first.is_visible()
    assert not page.locator(".long-view").is_visible()


def test_figures_stand_beside_each_other(opened: Opener):
    page = opened("two", ready=".circuitsvis canvas")
    expect(page.locator(".long-view[data-drawn]")).to_have_count(2)
    page.locator(".map").last.focus()
    page.keyboard.press("ArrowDown")
    settle(page)
    assert page.locator(".beside").last.locator("dd").first.inner_text() == "t0 (0)"
    assert page.locator(".beside").first.locator("dd").first.inner_text() == "–"


# CircuitsVis's map in a window that changes


def test_the_zoomed_map_of_a_short_figure_keeps_up_with_the_window(opened: Opener):
    page = opened("short", ready=".circuitsvis canvas")
    sizes = "all => all.map(canvas => Math.round(canvas.getBoundingClientRect().width))"

    def zoomed() -> int:
        return page.eval_on_selector_all(".circuitsvis canvas", sizes)[-1]

    until(page, lambda: zoomed() > 400)
    wide = zoomed()
    page.set_viewport_size({"width": 360, "height": 900})
    until(page, lambda: 150 < zoomed() < 330)
    page.set_viewport_size({"width": 1280, "height": 900})
    until(page, lambda: zoomed() == wide)
    for display in ("none", ""):
        page.locator("figure").evaluate("(figure, display) => { figure.style.display = display; }", display)
        settle(page)
    until(page, lambda: zoomed() == wide)
