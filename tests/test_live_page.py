"""The ablation view in a real browser, from a file with the network off: what a reader does, and what goes wrong."""

from __future__ import annotations

import ast
import base64
import contextlib
import csv
import io
import json
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from playwright.sync_api import expect

from analyses import ablation_view
from reports.page import render_page
from tests import hand_models, small_models
from tests.live_reference import hooked
from tests.sample_findings import HOSTILE_TOKENS, SCRIPT
from workbench import live, training
from workbench.analysis import Budget
from workbench.app.face import open as open_run
from workbench.config import ModelConfig, TrainConfig
from workbench.findings import Answer, Interactive
from workbench.measure import measure
from workbench.registry import load_task
from workbench.subject import Subject
from workbench.task import Vocabulary

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Route

Opener = Callable[..., "Opened"]
TASK = {"n_ctx": 32, "d_vocab": 25, "period_min": 4, "period_max": 10}
CELL = "[data-head='{}']"
FAMILY = "👩‍👩‍👧‍👦"
STRANGE = ("var(--c1)", "=1+1", f"abcdef{FAMILY * 4}", "שלום", "-2", "@a", "x")
"""The third is cut after its second family."""


def page_of(finding: Interactive) -> str:
    answer = Answer(id="a", title="What do the heads do?", text="See for yourself.")
    return render_page([answer, finding], identity={}, command="workbench report RUN", heading="a test")


def finding_of(subject: Subject) -> Interactive:
    [finding] = ablation_view.ANALYSIS.run(subject, Budget(), lambda stage: None)
    assert isinstance(finding, Interactive)
    return finding


def planted() -> Subject:
    return hand_models.induction(24, 32).subject(load_task("repeated_tokens", TASK))


class Hostile(small_models.Random):
    """Random sequences whose tokens look like markup, blanks or quotation marks."""

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary((*HOSTILE_TOKENS[:6], 'say "a"'), pad=0)


class Strange(small_models.Random):
    """Random sequences whose tokens look like colours or formulas, run from right to left, or are long emoji."""

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(STRANGE, pad=0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("live")
    task = load_task("repeated_tokens", TASK)
    shape = ModelConfig(d_vocab=25, n_ctx=32, n_heads=2, d_model=16, d_mlp=24)
    training.train(task, shape, TrainConfig(steps=30, batch_size=8), 0, folder / "run")
    hostile, strange = Hostile(padded=True), Strange(padded=False)
    subjects = {
        "planted": planted(),
        "run": open_run(folder / "run"),
        "hostile": Subject(small_models.model({"d_mlp": 12}), hostile.vocabulary, hostile),
        "strange": Subject(small_models.model({"d_mlp": 12}), strange.vocabulary, strange),
    }
    for name, subject in subjects.items():
        (folder / f"{name}.html").write_text(page_of(finding_of(subject)), encoding="utf-8")
    source = (folder / "planted.html").read_text(encoding="utf-8")
    at = source.index('"data":"') + 1000
    spoiled = source[:at] + ("A" if source[at] != "A" else "B") + source[at + 1 :]
    (folder / "damaged.html").write_text(spoiled, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in (*subjects, "damaged")}


@dataclass
class Opened:
    """A page and everything that went wrong on it."""

    page: Page
    troubles: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def settle(self) -> None:
        """Wait until the score is that of the present state."""
        self.page.locator("[data-agreement][aria-busy=false]").wait_for()
        self.page.locator("[data-score-after][aria-busy=false]").wait_for(state="attached")

    def score(self, when: str = "after") -> float:
        self.settle()
        return float(self.page.locator(f"[data-score-{when}]").text_content() or "nan")

    def state(self, head: str) -> str:
        return self.page.locator(CELL.format(head)).get_attribute("data-state") or ""

    def trouble(self) -> str:
        shown = self.page.locator(".lv-trouble:visible, .lv-wrong:not(:empty)")
        shown.first.wait_for()
        return shown.first.inner_text()


def watched(context: BrowserContext) -> Opened:
    opened = Opened(context.new_page())
    page, troubles = opened.page, opened.troubles
    page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: troubles.append(str(e)))
    page.on("dialog", lambda d: (troubles.append(d.message), d.dismiss()))
    return opened


@pytest.fixture
def open_page(browser: Browser, files: dict[str, Path]) -> Iterator[Opener]:
    contexts: list[BrowserContext] = []

    def opener(
        name: str, fragment: str = "", *, width: int = 1280, scheme: Any = "light", ready: bool = True
    ) -> Opened:
        context = browser.new_context(
            offline=True, color_scheme=scheme, viewport={"width": width, "height": 900}, accept_downloads=True
        )
        contexts.append(context)
        opened = watched(context)
        opened.page.goto(files[name].as_uri() + fragment)
        if ready:
            opened.settle()
        return opened

    yield opener
    for context in contexts:
        context.close()


def library_score(subject: Subject, states: dict[str, str], **more: Any) -> float:
    given = live.material(subject)
    change = live.intervention({"states": states, "frozen": False, "at": [], **more}, given)
    assert change is not None
    return float(measure(subject, given.batch, [change])[0].ablated_accuracy.mean())


def test_the_page_agrees_with_pytorch_and_a_click_takes_the_behaviour_away(open_page: Opener) -> None:
    opened = open_page("planted")
    assert 0 < float(opened.text("[data-agreement]")) < 1e-4
    assert opened.score("before") > 0.99
    assert opened.score() == opened.score("before")
    opened.page.locator(CELL.format("L1.H0")).click()
    assert opened.state("L1.H0") == "zero"
    after = opened.score()
    assert after == pytest.approx(library_score(planted(), {"L1.H0": "zero"}), abs=1e-4)
    assert after < load_task("repeated_tokens", TASK).floor().accuracy
    assert "L1.H0: zero" in (opened.page.locator(CELL.format("L1.H0")).get_attribute("aria-label") or "")
    states = []
    for _ in range(3):
        opened.page.locator(CELL.format("L1.H0")).click()
        states.append(opened.state("L1.H0"))
    assert states == ["mean", "resample", "on"]
    assert opened.score() > 0.99
    assert opened.troubles == []


def test_presets_invert_keep_only_and_reset(open_page: Opener) -> None:
    opened = open_page("planted")
    page = opened.page
    page.locator("[data-preset='without the induction heads']").click()
    assert opened.score() == pytest.approx(library_score(planted(), {"L1.H0": "mean"}), abs=1e-4)
    assert page.locator("[data-preset][aria-pressed=true]").inner_text() == "without the induction heads"
    page.locator("[data-preset='only the circuit']").click()
    assert (opened.state("L0.H0"), opened.state("L0.H1")) == ("on", "mean")
    assert opened.score() > 0.99
    page.get_by_role("button", name="invert").click()
    assert [opened.state(h) for h in ("L0.H0", "L0.H1", "L1.H0", "L1.H1")] == ["mean", "on", "mean", "on"]
    page.get_by_role("button", name="keep only L1.H0").click()
    assert [opened.state(h) for h in ("L0.H0", "L0.H1", "L1.H0", "L1.H1")] == ["mean", "mean", "on", "mean"]
    page.get_by_role("button", name="reset").click()
    assert page.locator("[data-head]:not([data-state=on])").count() == 0
    assert opened.score() > 0.99


def test_frozen_patterns_spare_a_head_that_acts_through_them(open_page: Opener) -> None:
    opened = open_page("planted")
    opened.page.locator(CELL.format("L0.H0")).click()
    assert opened.score() < 0.1
    opened.page.locator("[data-control=frozen]").check()
    assert opened.score() > 0.99


def test_positions_limit_a_change_and_are_checked(open_page: Opener) -> None:
    opened = open_page("planted")
    page, places = opened.page, opened.page.get_by_label("Positions at which parts are replaced")
    page.locator(CELL.format("L1.H0")).click()
    places.fill("20, 21")
    places.press("Enter")
    assert opened.score() == pytest.approx(library_score(planted(), {"L1.H0": "zero"}, at=[20, 21]), abs=1e-4)
    places.fill("40")
    places.press("Enter")
    assert opened.trouble().startswith("40 is no position: use 0 to 31")


def test_keys_do_what_the_mouse_does_and_escape_releases(open_page: Opener) -> None:
    opened = open_page("planted")
    page = opened.page
    page.locator(CELL.format("L1.H0")).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.head") == "L0.H1"
    # What waits for the model's answer shows the new head with it, not before.
    expect(page.locator(".lv-attention select")).to_have_value("L0.H1")
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    assert opened.state("L0.H1") == "mean"
    page.locator(".lv-tokens button").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".lv-tokens [aria-pressed=true]").count() == 1
    expect(page.locator(".lv-predictions h4")).to_contain_text("position 1")
    page.locator(".lv-map").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert page.locator(".lv-token.lv-query").get_attribute("aria-label").startswith("position 2:")
    assert page.locator(".lv-token.lv-key").count() == 1
    page.keyboard.press("Escape")
    assert page.locator(".lv-tokens [aria-pressed=true], .lv-token.lv-key").count() == 0
    assert opened.troubles == []


def test_hovering_links_rows_columns_and_tokens_and_a_click_locks(open_page: Opener) -> None:
    opened = open_page("planted")
    page = opened.page
    box = page.locator(".lv-map").first
    size = box.bounding_box()
    assert size is not None
    place = {"x": size["width"] * 4.5 / 32, "y": size["height"] * 9.5 / 32}
    box.hover(position=place)
    expect(page.locator(".lv-read")).to_contain_text("(9) looks at")
    expect(page.locator(".lv-read")).to_contain_text("(4): ")
    assert page.locator(".lv-mark:visible").count() == 6  # a row and a column in each map
    box.click(position=place)
    page.mouse.move(0, 0)
    assert page.locator(".lv-tokens [aria-pressed=true]").get_attribute("aria-label").startswith("position 9:")
    expect(page.locator(".lv-read")).to_contain_text("(4): ")
    page.keyboard.press("Escape")
    assert page.locator(".lv-tokens [aria-pressed=true]").count() == 0


def test_dragging_paints_the_first_state(open_page: Opener) -> None:
    opened = open_page("planted")
    page = opened.page
    page.locator(CELL.format("L0.H0")).hover()
    page.mouse.down()
    page.locator(CELL.format("L0.H1")).hover()
    page.mouse.up()
    assert [opened.state(h) for h in ("L0.H0", "L0.H1", "L1.H0")] == ["zero", "zero", "on"]


def test_the_fragment_reproduces_the_state(open_page: Opener, files: dict[str, Path]) -> None:
    opened = open_page("planted")
    page = opened.page
    page.locator(CELL.format("L1.H0")).click()
    page.locator(CELL.format("L0.H1")).click(click_count=1)
    page.locator("[data-control=frozen]").check()
    page.get_by_role("button", name="next sample").click()
    page.locator(".lv-tokens button").nth(7).click()
    expect(page).to_have_url(re.compile("query=7"))
    fragment = page.evaluate("location.hash")
    other = open_page("planted", fragment)
    assert [other.state(h) for h in ("L1.H0", "L0.H1")] == ["zero", "zero"]
    assert other.page.locator("[data-control=frozen]").is_checked()
    assert other.page.locator(".lv-pick input").input_value() == "2"
    assert other.page.locator(".lv-tokens [aria-pressed=true]").get_attribute("aria-label").startswith("position 7:")
    assert other.score() == opened.score()
    expect(other.page).to_have_url(re.compile(re.escape(fragment) + "$"))
    foreign = open_page("run", fragment)
    assert foreign.trouble() == "The link is about another model; it was ignored."


BY_HAND = (
    ("zero=L9.H0", "there is no part L9.H0"),
    ("zero=L1.H0&mean=L1.H0", "it sets L1.H0 twice"),
    ("zero=<img src=x onerror=alert(1)>", "there is no part <img src=x onerror=alert(1)>"),
    ("draw=1", "its samples were drawn by a served page; open it there, with workbench ablate"),
    ("sample=64", "sample is 0 to 63, not 64"),
    ("sample=-1", "sample is 0 to 63, not -1"),
    ("tokens=1.2.99", "A token id lies outside the vocabulary (0 to 24)"),
    ("tokens=" + "1." * 40 + "1", "The sequence has 41 tokens; the model's context holds 32"),
    ("tokens=", "A token id lies outside the vocabulary"),
    ("head=L0.mlp", "there is no head L0.mlp"),
    ("query=32", "query is 0 to 31, not 32"),
    ("at=99", "99 is no position"),
    ("frozen=2", "frozen is 1 or absent"),
    ("sample=1&sample=2", "it sets sample"),
    ("__proto__=1", "it sets __proto__"),
    ("zero=" + "L9.H9" * 2000, "there is no part L9.H9L9.H9"),
)


def test_fragments_made_by_hand_are_told_and_ignored(open_page: Opener) -> None:
    start = f"#ablate?view=ablation.view&model={live.model_hash(planted())[:16]}&"
    opened = open_page("planted", start + BY_HAND[0][0])
    page = opened.page
    told = page.locator(".lv-trouble")
    expect(told).to_contain_text(BY_HAND[0][1])
    for words, why in BY_HAND[1:]:
        page.evaluate("words => { location.hash = words; }", start + words)
        expect(told).to_contain_text(why)
        expect(told).to_contain_text("it was ignored")
    assert page.locator("[data-head]:not([data-state=on])").count() == 0
    assert opened.score() > 0.99
    page.evaluate("words => { location.hash = words; }", start + "zero=L1.H0")
    expect(told).to_be_hidden()
    assert opened.score() < 0.1
    assert opened.troubles == []


def test_other_anchors_are_left_alone(open_page: Opener) -> None:
    opened = open_page("planted", "#identity")
    assert opened.page.locator(".lv-trouble:visible").count() == 0


def type_tokens(page: Page, text: str) -> None:
    if not page.locator(".lv-edit").is_visible():
        page.locator(".lv-sequence").get_by_role("button", name="edit").click()
    page.locator(".lv-edit textarea").fill(text)
    page.get_by_role("button", name="use these tokens").click()


def test_typed_tokens_are_used_or_refused_in_one_sentence(open_page: Opener) -> None:
    opened = open_page("planted")
    page = opened.page
    type_tokens(page, "<bos> t1 t2 t3 t1 t2")
    expect(page.locator(".lv-tokens button")).to_have_count(6)
    expect(page.locator(".lv-predictions")).to_contain_text("position 5")
    answer = page.locator(".lv-predictions svg").get_attribute("aria-label") or ""
    assert "t3 1.00" in answer or "t3 0.99" in answer
    for text, told in (
        ("<bos> nope t1 what", "Not in the vocabulary: nope what. It has 25 tokens: <bos> t1"),
        ("", "A sequence needs tokens: 1 to 32."),
        (" ".join(["t1"] * 33), "The sequence has 33 tokens; the model's context holds 32."),
    ):
        type_tokens(page, text)
        assert opened.trouble().startswith(told)
        assert page.locator(".lv-tokens button").count() == 6
    page.locator(".lv-edit textarea").press("Escape")
    assert not page.locator(".lv-edit").is_visible()
    assert opened.troubles == []


def shows_nothing(opened: Opened) -> None:
    """No figure of an older sequence or change is left, on the page or to be taken out of it."""
    page = opened.page
    expect(page.locator("[data-export='tokens.csv']")).to_be_disabled()
    assert page.locator(":is(.lv-predictions, .lv-losses) svg, .lv-rows tbody tr").count() == 0
    assert page.locator(".lv-cover:visible").count() == 3
    assert page.locator(".lv-mark:visible").count() == 0
    assert "Nothing to show" in opened.text(".lv-read")
    for name in ("attention", "next-token", "per-token"):
        for kind in ("svg", "png"):
            assert page.locator(f"[data-export='{name}.{kind}']").is_disabled()


def test_what_cannot_be_computed_leaves_nothing_of_the_older_result(open_page: Opener) -> None:
    opened = open_page("planted")
    page, places = opened.page, opened.page.get_by_label("Positions at which parts are replaced")
    page.locator(CELL.format("L1.H0")).click()
    places.fill("20")
    places.press("Enter")
    opened.settle()
    type_tokens(page, "<bos> t1 t2 t1")
    expect(page.locator(".lv-tokens button")).to_have_count(4)
    shows_nothing(opened)
    why = "Your own tokens have 4 tokens, so no position 20; use 0 to 3, or leave this empty."
    assert opened.text(".lv-controls .lv-wrong") == why
    assert places.get_attribute("aria-invalid") == "true"
    assert page.locator(".lv-trouble").is_hidden()
    places.fill("2")
    places.press("Enter")
    expect(page.locator(".lv-predictions")).to_contain_text("position 3")
    expect(page.locator("[data-export='attention.svg']")).to_be_enabled()
    assert opened.text(".lv-controls .lv-wrong") == ""
    assert places.get_attribute("aria-invalid") is None
    with download(page, "tokens.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 4
    assert opened.troubles == []


def test_a_late_answer_does_not_replace_a_refusal(open_page: Opener) -> None:
    opened = open_page("planted")
    page, places = opened.page, opened.page.get_by_label("Positions at which parts are replaced")
    places.fill("20")
    places.press("Enter")
    opened.settle()
    page.evaluate("""() => {
      document.querySelector("[data-head='L1.H0']").click();
      document.querySelector(".lv-sequence [aria-expanded]").click();
      document.querySelector(".lv-edit textarea").value = "t1 t2";
      document.querySelector(".lv-edit").requestSubmit();
    }""")
    opened.settle()
    shows_nothing(opened)


def test_a_preset_is_the_whole_change_and_reset_mends(open_page: Opener) -> None:
    opened = open_page("planted")
    page, places = opened.page, opened.page.get_by_label("Positions at which parts are replaced")
    preset = page.locator("[data-preset='without the induction heads']")
    page.locator("[data-control=frozen]").check()
    places.fill("3")
    places.press("Enter")
    preset.click()
    assert not page.locator("[data-control=frozen]").is_checked()
    assert places.input_value() == ""
    assert opened.score() == pytest.approx(library_score(planted(), {"L1.H0": "mean"}), abs=1e-4)
    assert preset.get_attribute("aria-pressed") == "true"
    page.locator("[data-control=frozen]").check()
    assert preset.get_attribute("aria-pressed") == "false"
    page.locator("[data-control=frozen]").uncheck()
    places.fill("3")
    places.press("Enter")
    assert preset.get_attribute("aria-pressed") == "false"
    page.locator("[data-control=frozen]").check()
    assert page.locator(".lv-printed").is_hidden()
    page.emulate_media(media="print")
    assert opened.text(".lv-printed") == "Changed: mean: L1.H0; every attention pattern held; at positions 3."
    page.emulate_media(media="screen")
    for mend in (page.get_by_role("button", name="reset"), preset):
        places.fill("nowhere")
        places.press("Enter")
        assert opened.trouble().startswith("nowhere is no position")
        mend.click()
        assert (places.input_value(), places.get_attribute("aria-invalid")) == ("", None)
        assert opened.text(".lv-controls .lv-wrong") == ""


def test_inverting_twice_gives_every_state_back(open_page: Opener) -> None:
    opened = open_page("hostile")
    page, names = opened.page, ("L0.H0", "L0.H1", "L0.mlp", "L1.H0", "L1.H1", "L1.mlp")
    for head, clicks in (("L0.H0", 2), ("L0.mlp", 1), ("L1.H1", 1)):
        for _ in range(clicks):
            page.locator(CELL.format(head)).click()
    before = [opened.state(name) for name in names]
    assert before == ["mean", "on", "zero", "on", "zero", "on"]
    page.get_by_role("button", name="invert").click()
    inverted = [opened.state(name) for name in names]
    assert [state == "on" for state in inverted] == [True, False, False, False, True, True]
    page.get_by_role("button", name="invert").click()
    assert [opened.state(name) for name in names] == before


def test_a_quick_drag_skips_no_cell(open_page: Opener) -> None:
    opened = open_page("hostile")
    page = opened.page
    page.locator(CELL.format("L0.H0")).scroll_into_view_if_needed()
    first, last = (page.locator(CELL.format(name)).bounding_box() for name in ("L0.H0", "L0.mlp"))
    assert first is not None
    assert last is not None
    page.mouse.move(first["x"] + 9, first["y"] + 9)
    page.mouse.down()
    page.mouse.move(last["x"] + 9, last["y"] + 9, steps=1)
    page.mouse.up()
    assert [opened.state(name) for name in ("L0.H0", "L0.H1", "L0.mlp", "L1.H0")] == ["zero", "zero", "zero", "on"]


def test_escape_releases_wherever_the_focus_is(open_page: Opener) -> None:
    opened = open_page("planted")
    page = opened.page
    page.locator(".lv-losses svg").click(position={"x": 150, "y": 60})
    expect(page.locator(".lv-tokens [aria-pressed=true]")).to_have_count(1)
    assert page.evaluate("document.activeElement === document.body")
    page.keyboard.press("Escape")
    assert page.locator(".lv-tokens [aria-pressed=true]").count() == 0


def test_strange_tokens_come_out_as_they_are(open_page: Opener) -> None:
    opened = open_page("strange")
    page = opened.page
    type_tokens(page, " ".join(STRANGE[:6]))
    expect(page.locator(".lv-tokens button")).to_have_count(6)
    page.locator(".lv-tokens button").nth(3).click()
    expect(page.locator(".lv-read bdi").first).to_have_text(STRANGE[3])
    page.locator("[data-export='attention.svg']:enabled").wait_for()
    source = download(page, "attention.svg").read_text(encoding="utf-8")
    texts = [element.text for element in ElementTree.fromstring(source).iter() if element.tag.endswith("text")]
    assert texts.count("var(--c1)") == 0  # nine letters, of which eight are shown
    assert texts.count("var(--c…") == 6
    assert texts.count(f"abcdef{FAMILY}…") == 6
    assert texts.count("key") == texts.count("query") == 3
    assert {"0", "1", "−1", "+1", "Attention of L1.H0"} <= set(texts)
    source = download(page, "next-token.svg").read_text(encoding="utf-8")
    texts = [element.text for element in ElementTree.fromstring(source).iter() if element.tag.endswith("text")]
    assert {"var(--c1)", f"abcdef{FAMILY * 2}…", "שלום"} & set(texts)
    assert not [text for text in texts if text and "\u200d…" in text]
    with download(page, "tokens.csv").open(encoding="utf-8", newline="") as file:
        tokens = [row["token"] for row in csv.DictReader(file)]
    assert tokens == ["var(--c1)", "'=1+1", STRANGE[2], STRANGE[3], "'-2", "'@a"]
    assert opened.troubles == []


def test_nothing_is_told_before_the_guess(open_page: Opener) -> None:
    """Whatever the page shows, says or gives away while the effect is concealed is the same under another change."""
    opened = open_page("planted")
    page = opened.page
    page.locator("[data-control=guessing]").check()
    given = []
    for head in ("L1.H0", "L1.H1"):
        page.get_by_role("button", name="reset").click()
        page.locator(CELL.format(head)).click()
        page.locator(".lv-attention select").select_option("L0.H0")
        opened.settle()
        page.locator("[data-export='tokens.csv']:enabled").wait_for()
        drawn = [
            download(page, name).read_text(encoding="utf-8")
            for name in ("attention.svg", "next-token.svg", "tokens.csv")
        ]
        told = [page.locator(part).inner_html() for part in (".lv-score", ".lv-predictions", ".lv-losses", ".lv-read")]
        expect(page.locator(".live-view > [role=status]")).to_contain_text("guess the accuracy")
        told.append(opened.text(".live-view > [role=status]").replace(head, "HEAD"))
        given.append([*[text.replace(head, "HEAD") for text in drawn], *told])
    for one, other in zip(*given, strict=True):
        assert one == other
    rows = list(csv.DictReader(io.StringIO(given[0][2])))
    assert {row["loss_after"] + row["likeliest_after"] + row["logit_difference_after"] for row in rows} == {""}
    page.get_by_label("Your guess of the accuracy after").fill("40")
    page.get_by_role("button", name="reveal").click()
    assert page.locator(".lv-predictions svg").get_attribute("aria-label").count(", then ") >= 4


def test_a_reader_who_listens_hears_the_new_score(open_page: Opener) -> None:
    opened = open_page("planted")
    opened.page.locator(CELL.format("L1.H0")).click()
    after = opened.score()
    before = opened.score("before")
    said = f"zero: L1.H0: accuracy {100 * after:.1f} %, before {100 * before:.1f} %"
    assert opened.text(".live-view > [role=status]") == said
    assert {m.get_attribute("role") for m in opened.page.locator(".lv-map").all()} == {"application"}


def test_a_page_that_was_cut_says_what_to_do(browser: Browser, files: dict[str, Path], tmp_path: Path) -> None:
    source = files["planted"].read_bytes()
    path = tmp_path / "half.html"
    path.write_bytes(source[: source.index(b'"data":"') + 1000])
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(path.as_uri())
    assert "the file is incomplete: then make the page again" in page.locator(".live-view").inner_text()
    context.close()


def test_the_score_s_interval_is_drawn_as_wide_as_it_is(open_page: Opener) -> None:
    opened = open_page("planted")
    lines = opened.page.locator(".lv-axis line[stroke-width='6']")
    assert lines.count() == 2
    assert {line.evaluate("e => getComputedStyle(e).strokeLinecap") for line in lines.all()} == {"butt"}


def test_a_damaged_page_says_so_and_shows_no_number(open_page: Opener) -> None:
    opened = open_page("damaged", ready=False)
    assert opened.trouble().startswith("The model in this page is damaged")
    assert opened.page.locator("[data-score-after], [data-head]").count() == 0
    assert opened.troubles == []


def test_weights_that_do_not_have_their_hash_are_refused_by_the_model_itself(browser: Browser, tmp_path: Path) -> None:
    finding = finding_of(planted())
    payload = {**finding.payload, "weights": {**finding.payload["weights"], "sha256": "0" * 64}}
    path = tmp_path / "page.html"
    path.write_text(page_of(Interactive(id="x", title="x", payload=payload)), encoding="utf-8")
    context = browser.new_context(offline=True)
    opened = watched(context)
    opened.page.goto(path.as_uri())
    assert opened.trouble().startswith("The weights in this page are damaged: expected sha256 000000000000…")
    assert opened.page.evaluate("document.querySelector('.lv-body').inert")
    assert opened.page.locator("[data-score-after]").text_content() == ""
    context.close()


def test_hostile_tokens_stay_text_and_can_be_typed(open_page: Opener, files: dict[str, Path]) -> None:
    opened = open_page("hostile")
    page = opened.page
    assert "alert(1)</script>" not in files["hostile"].read_text(encoding="utf-8").partition("live-data")[2]
    type_tokens(page, json.dumps(SCRIPT) + ' "say \\"a\\"" ' + json.dumps(HOSTILE_TOKENS[1]))
    expect(page.locator(".lv-tokens button")).to_have_count(3)
    assert page.locator(".lv-tokens button").first.inner_text() == SCRIPT
    page.get_by_text("every token as a table").click()
    expect(page.locator(".lv-rows tbody .lv-token").first).to_have_text(SCRIPT)
    assert page.locator("img").count() == 0
    page.locator(".lv-sequence").get_by_role("button", name="edit").click()
    assert (
        json.dumps(SCRIPT) in page.locator(".lv-edit textarea").input_value()
        or SCRIPT in page.locator(".lv-edit textarea").input_value()
    )
    assert page.locator("[data-head='L0.mlp']").count() == 1
    assert opened.troubles == []


def test_guess_first_then_reveal(open_page: Opener) -> None:
    opened = open_page("planted")
    page = opened.page
    page.locator("[data-control=guessing]").check()
    page.locator(CELL.format("L1.H0")).click()
    opened.settle()
    assert page.locator("[data-score-after]").text_content() == ""
    assert page.locator(".lv-cover:visible").count() == 2
    page.get_by_label("Your guess of the accuracy after").fill("40")
    page.get_by_role("button", name="reveal").click()
    after = opened.score()
    assert opened.text(".lv-said") == (
        f"You said 40.0 %; it is {100 * after:.1f} %, off by {100 * abs(0.4 - after):.1f} points."
    )
    assert page.locator(".lv-cover:visible").count() == 0
    page.locator(CELL.format("L1.H0")).click()
    assert page.locator(".lv-cover:visible").count() == 2


def test_the_python_lines_give_the_shown_score(open_page: Opener, files: dict[str, Path]) -> None:
    opened = open_page("run")
    page = opened.page
    lines = page.locator("[data-python] code")
    said = []
    for clicks, places in (
        ((), ""),
        (("L0.H0",), ""),
        (("L0.mlp", "L1.H1", "L1.H1", "L0.H1", "L0.H1", "L0.H1"), "5, 9"),
    ):
        page.get_by_role("button", name="reset").click()
        for head in clicks:
            page.locator(CELL.format(head)).click()
        page.locator("[data-control=frozen]").set_checked(bool(places))
        page.get_by_label("Positions at which parts are replaced").fill(places)
        page.get_by_label("Positions at which parts are replaced").press("Enter")
        shown = opened.score()
        page.get_by_role("button", name="copy as Python").click()
        code = lines.text_content() or ""
        assert f"{shown:.6f} on the page" in code
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, {})
        assert float(out.getvalue()) == pytest.approx(shown, abs=1e-4)
        assert f"workbench.open({json.dumps(str(files['run'].parent / 'run'))})" in code
        said.append(code)
    assert 'Zero("L0.H0")' in said[1]
    assert "frozen_patterns=True, at=(5, 9,)" in said[2]
    assert "Joint((" in said[2]
    assert opened.troubles == []


def test_the_python_lines_name_the_plugin_folders(browser: Browser, tmp_path: Path) -> None:
    finding = finding_of(planted())
    plugins = ['/a "folder"/of mine', "/ü"]
    run = {"hash": "0" * 64, "folder": "/runs/own", "plugins": plugins}
    path = tmp_path / "page.html"
    path.write_text(page_of(Interactive(id="x", title="x", payload={**finding.payload, "run": run})), encoding="utf-8")
    context = browser.new_context(offline=True)
    opened = watched(context)
    opened.page.goto(path.as_uri())
    opened.settle()
    [line] = [
        line for line in opened.page.locator("[data-python] code").text_content().splitlines() if ".open(" in line
    ]
    call = ast.parse(line).body[0].value
    assert ast.literal_eval(call.args[0]) == "/runs/own"
    assert [(word.arg, ast.literal_eval(word.value)) for word in call.keywords] == [("plugins", plugins)]
    context.close()


def download(page: Page, name: str) -> Path:
    with page.expect_download() as waiting:
        page.locator(f"[data-export='{name}']").click()
    assert waiting.value.suggested_filename == f"ablation.view.{name}"
    return Path(waiting.value.path())


def test_figures_and_tokens_come_out(open_page: Opener) -> None:
    opened = open_page("planted", scheme="dark")
    page = opened.page
    page.locator(CELL.format("L1.H0")).click()
    opened.settle()
    for name in ("attention", "score", "next-token", "per-token"):
        source = download(page, f"{name}.svg").read_text(encoding="utf-8")
        assert ElementTree.fromstring(source).tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in source
        assert "#5b6169" in source  # the light theme's, as in print
        assert "Changed: zero: L1.H0." in source
        assert f"repeated_tokens, model {live.model_hash(planted())[:12]}, " in source
        assert ("test sequence 1 of 64" in source) == (name != "score")
        image = download(page, f"{name}.png").read_bytes()
        assert image.startswith(b"\x89PNG")
        assert len(image) > 2_000
    with download(page, "tokens.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 32
    scored = [row for row in rows if row["scored"] == "1"]
    assert all(float(row["loss_after"]) > 1 > float(row["loss_before"]) for row in scored)
    assert all(row["likeliest_before"] == row["answer"] for row in scored)
    assert opened.troubles == []


def test_two_tabs_do_not_touch_each_other(browser: Browser, files: dict[str, Path]) -> None:
    context = browser.new_context(offline=True)
    first, second = watched(context), watched(context)
    for opened in (first, second):
        opened.page.goto(files["planted"].as_uri())
        opened.settle()
    first.page.locator(CELL.format("L1.H0")).click()
    assert first.score() < 0.1
    assert second.score() > 0.99
    assert second.state("L1.H0") == "on"
    context.close()


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("planted", 360, "light"), ("run", 360, "dark"), ("planted", 1280, "dark"), ("run", 3840, "light")],
)
def test_everything_fits_and_is_drawn(open_page: Opener, name: str, width: int, scheme: str) -> None:
    opened = open_page(name, width=width, scheme=scheme)
    page = opened.page
    page.locator(CELL.format("L0.H0")).click()
    page.locator(".lv-attention select").select_option("L1.H0")
    expect(page.locator(".lv-read")).to_contain_text("L1.H0")
    opened.settle()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    pixels = page.eval_on_selector_all(
        ".lv-map canvas",
        """all => all.map(c => new Set(new Uint32Array(
            c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size)""",
    )
    assert len(pixels) == 3
    assert min(pixels) >= (3 if name == "planted" else 2)
    overflowing = page.eval_on_selector_all(
        ".live-view section", "all => all.filter(e => e.scrollWidth > e.clientWidth + 3).map(e => e.className)"
    )
    assert overflowing == []
    assert opened.troubles == []


def test_a_view_without_an_address_offers_no_link_and_leaves_nothing(open_page: Opener) -> None:
    opened = open_page("planted")
    page = opened.page
    mounted = page.evaluate("""() => {
      const element = document.body.appendChild(document.createElement("div"));
      const data = JSON.parse(document.querySelector("script.live-data").textContent);
      const view = AblationView.mount(element, data, { fragment: false });
      const named = [...element.querySelectorAll("footer button")].map((button) => button.textContent);
      view.destroy();
      return [named, element.childNodes.length];
    }""")
    assert mounted == [["copy as Python", "CSV"], 0]
    assert page.get_by_role("button", name="copy link").count() == 1
    page.keyboard.press("Escape")
    assert opened.troubles == []


def test_a_link_replaces_positions_that_were_mistyped(open_page: Opener) -> None:
    opened = open_page("planted")
    page, places = opened.page, opened.page.get_by_label("Positions at which parts are replaced")
    places.fill("nowhere")
    places.press("Enter")
    assert opened.trouble().startswith("nowhere is no position")
    link = f"#ablate?view=ablation.view&model={live.model_hash(planted())[:16]}&at=3"
    page.evaluate("words => { location.hash = words; }", link)
    expect(places).to_have_value("3")
    assert places.get_attribute("aria-invalid") is None


def test_every_control_has_a_name_and_the_focus_a_sensible_order(open_page: Opener) -> None:
    page = open_page("planted").page
    nameless = page.eval_on_selector_all(
        ".live-view :is(button, input, select, textarea)",
        """all => all.filter(e => !(e.innerText || e.ariaLabel || e.labels?.length || e.getAttribute('aria-label')))
            .map(e => e.outerHTML)""",
    )
    assert nameless == []
    page.locator("[data-head][tabindex='0']").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "invert"


def test_a_served_page_asks_its_server_in_the_same_words(browser: Browser) -> None:
    subject = planted()
    given = live.material(subject)
    finding = Interactive(id="ablation.view", title="Served", payload=live.payload(given, [], "server"))
    html, asked = page_of(finding), []

    def floats(values: Any) -> dict[str, str]:
        flat = values.flatten().tolist()
        return {"f32": base64.b64encode(struct.pack(f"<{len(flat)}f", *flat)).decode()}

    def answer(route: Route) -> None:
        if not route.request.url.endswith("/message"):
            route.fulfill(body=html, content_type="text/html")
            return
        request = json.loads(route.request.post_data or "")
        asked.append(request)
        result: dict[str, Any] = {}
        if request["kind"] == "agreement":
            result = {"difference": 0.0, "passes": 1}
        elif request["kind"] == "sequence":
            logits = hooked(subject.model, given.batch[:1], request["change"], given.reference)
            pattern = floats(given.batch.tokens.new_ones(32, 32).float() / 32)
            result = {"pattern": {"before": pattern, "after": pattern}}
            result["logits"] = {"before": floats(logits), "after": floats(logits)}
        elif request["kind"] == "score":
            part = {key: {"value": 0.5, "low": 0.4, "high": 0.6} for key in ("accuracy", "loss")}
            result = {"done": 64, "total": 64, "before": part, "after": part, "ties": 0}
        elif request["kind"] == "draw":
            result = {"samples": live.samples(live.material(subject, request["draw"]))}
        lines = [{"id": request["id"], "result": result}]
        if request["change" if "change" in request else "kind"] == {
            "states": {"L0.H0": "zero"},
            "frozen": False,
            "at": [],
        }:
            lines = [{"id": request["id"], "error": "The server says no."}]
        route.fulfill(body="".join(json.dumps(line) + "\n" for line in lines), content_type="application/x-ndjson")

    context = browser.new_context()
    context.route("http://ablate.test/**", answer)
    opened = watched(context)
    opened.page.goto("http://ablate.test/token/")
    assert opened.score() == 0.5
    assert opened.page.locator(".lv-predictions svg").count() == 1
    opened.page.get_by_role("button", name="new samples").click()
    expect(opened.page).to_have_url(re.compile("draw=1"))
    opened.settle()
    assert [r["kind"] for r in asked][:1] == ["load"]
    assert asked[-1]["draw"] == 1
    opened.page.locator(CELL.format("L0.H0")).click()
    assert opened.trouble() == "The server says no."
    assert opened.text(".lv-sequence .lv-wrong") == "The server says no."
    shows_nothing(opened)
    opened.page.locator(CELL.format("L0.H0")).click()
    opened.page.locator("[data-export='tokens.csv']:enabled").wait_for()
    context.unroute("http://ablate.test/**")
    context.route("http://ablate.test/**", lambda route: route.abort())
    opened.page.get_by_role("button", name="next sample").click()
    expect(opened.page.locator(".lv-trouble")).to_contain_text("The server does not answer")
    shows_nothing(opened)
    assert {trouble for trouble in opened.troubles if "ERR_FAILED" not in trouble} == set()
    context.close()
