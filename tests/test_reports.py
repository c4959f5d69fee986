"""Pages from findings: what is escaped, marked, counted, kept out, and kept the same."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import palette
from reports.charts import spread
from reports.claims import row, verdict
from reports.drawing import png
from reports.escaping import emphasised, glyphs, script_json, script_source, short, text
from reports.numbers import estimate, number, plain, warranted
from reports.page import render_page
from tests.sample_findings import (
    COMMAND,
    HEADING,
    HOSTILE_TOKENS,
    IDENTITY,
    IMAGE,
    SCRIPT,
    Unheard,
    attention,
    hostile,
    induction_report,
)
from workbench.findings import Answer, Attention, Claim, Column, Curve, Finding, Heatmap, Panel, Rule, Series, Table


def page(*findings: Finding) -> str:
    return render_page(findings, identity=IDENTITY, command=COMMAND, heading=HEADING)


class Outline(HTMLParser):
    """Tags, ids, headings and shown text of a page, as a browser would read them."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def ids(self) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get("id"))]

    def shown(self) -> str:
        return "\n".join(data for tag, data in self.texts if tag not in ("script", "style", "title"))


@pytest.fixture(scope="module")
def report() -> str:
    return page(*induction_report())


@pytest.fixture(scope="module")
def hostile_page() -> str:
    return page(*hostile())


# Escaping, worked out by hand


def test_text_is_literal_and_control_characters_are_seen():
    assert text(SCRIPT) == "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;"
    assert text("a\"b'&\x00\x1b\ud800") == "a&quot;b&#x27;&amp;␀␛\ufffd"


def test_only_the_emphasis_is_markup():
    assert emphasised("**L1.H0** <b>x</b> ** y") == "<b>L1.H0</b> &lt;b&gt;x&lt;/b&gt; ** y"
    assert emphasised("**<i>**") == "<b>&lt;i&gt;</b>"


def test_json_in_a_script_has_no_tag_entity_or_separator():
    data = {"a": [SCRIPT, "&lt;", "\u2028\u2029", math.nan, 0.5, None], "é": "日本"}
    written = script_json(data)
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {"a": [SCRIPT, "&lt;", "\u2028\u2029", None, 0.5, None], "é": "日本"}


def test_a_script_source_cannot_end_its_element():
    assert script_source('x="</script>";\n//# sourceMappingURL=iife.js.map') == 'x="<\\/script>";\n'


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("\n", "↵"),
        ("\t", "⇥"),
        ("\r\n", "␍↵"),
        (" the", "·the"),
        ("the", "the"),
        ("a b", "a b"),
        ("a  b", "a··b"),
        (" ", "·"),
        ("", "∅"),
        ("\x00", "␀"),
        ("\x7f", "␡"),
        ("·", "\\·"),
        ("∅", "\\∅"),
        ("\\n", "\\\\n"),
        ("\u00a0", "⟨U+00A0⟩"),
        ("\u202eabc", "⟨U+202E⟩abc"),
        ("\u200d", "⟨U+200D⟩"),
        ("\u0301", "◌\u0301"),
        ("\ud800", "⟨U+D800⟩"),
        ("שלום", "שלום"),
        ("日本語", "日本語"),
        ("👩‍👩‍👧‍👦", "👩‍👩‍👧‍👦"),
        ("e\u0301", "e\u0301"),
    ],
)
def test_glyphs(token: str, shown: str):
    assert glyphs(token) == shown


letters = st.text(st.characters() | st.sampled_from(" \n\t\\·∅↵◌⟨⟩U+0Dé\u0301\u200d"), max_size=6)


@given(letters, letters)
def test_two_tokens_never_look_alike(one: str, other: str):
    assert (glyphs(one) == glyphs(other)) == (one == other)


@given(letters)
def test_glyphs_leave_nothing_blank(token: str):
    shown = glyphs(token)
    assert shown
    assert shown == shown.strip()
    assert not set(shown) & set("\n\t\r\x00\u00a0\u202e\u2028")


def test_short_keeps_what_fits():
    assert short("abcdef", 6) == "abcdef"
    assert short("abcdefg", 6) == "abcde…"


# Numbers


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        (0.9713, 0.9661, 0.9758, "0.971 [0.966, 0.976]"),  # half-width 0.0049
        (0.41234, 0.37, 0.45, "0.41 [0.37, 0.45]"),  # 0.04
        (0.8, 0.66, 0.94, "0.80 [0.66, 0.94]"),  # 0.14: a leading 1 keeps a second digit
        (123.4, 90.0, 150.0, "123 [90, 150]"),
        (-0.5, -0.53, -0.47, "−0.50 [−0.53, −0.47]"),
        (1.0, 1.0, 1.0, "1.00 [1.00, 1.00]"),
        (0.12345, None, None, "0.123"),
        (math.nan, 0.1, 0.2, "n/a [0.10, 0.20]"),
        (2.0, math.nan, math.nan, "2.00"),
    ],
)
def test_estimate(value: float, low: float | None, high: float | None, shown: str):
    assert estimate(value, low, high) == shown


def test_numbers_by_hand():
    assert number(-0.0004, 2, signed=True) == "0.00"
    assert number(0.25, 2, signed=True) == "+0.25"
    assert number(None) == number(math.nan) == "n/a"
    assert number(math.inf) == "∞"
    assert number(-math.inf) == "−∞"
    assert plain(-0.5) == "−0.5"
    assert warranted(0.0, 0.0) is None


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0.01, 0.1))
def test_spread_keeps_order_distance_and_bounds(wanted: list[float], gap: float):
    placed = spread(sorted(wanted), gap)
    assert all(b - a >= gap - 1e-9 for a, b in itertools.pairwise(placed))
    assert all(-1e-9 <= p <= 1 + 1e-9 for p in placed)


def test_spread_moves_nothing_that_has_room():
    assert spread([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])


# Colours


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_sequential_map_goes_one_way_in_even_steps(theme: str):
    luminance = [palette.contrast(c, "#000000") for c in palette.ramp("sequential", theme)]
    steps = np.diff(luminance)
    assert (steps < 0).all() if theme == "light" else (steps > 0).all()
    assert len(set(palette.ramp("sequential", theme))) == palette.LEVELS


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_diverging_map_turns_at_its_middle(theme: str):
    against = "#ffffff" if theme == "light" else "#000000"
    away = [palette.contrast(c, against) for c in palette.ramp("diverging", theme)]
    middle = palette.LEVELS // 2
    assert int(np.argmin(away)) == middle
    red, _, blue = palette.rgb(palette.ramp("diverging", theme)[0])
    assert red > blue
    red, _, blue = palette.rgb(palette.ramp("diverging", theme)[-1])
    assert blue > red


def test_contrast_by_hand():
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert palette.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_have_contrast_enough(report: str, theme: str):
    blocks = re.findall(r"--paper:.*?(?=--s0:)", report, flags=re.DOTALL)
    colours = dict(re.findall(r"--(\w+):(#[0-9a-f]{3,6})", blocks[0 if theme == "light" else 1]))
    full = {k: v if len(v) == 7 else "#" + "".join(2 * c for c in v[1:]) for k, v in colours.items()}
    pairs = [("ink", "paper"), ("soft", "paper"), ("soft", "card"), ("soft", "wash"), ("accent", "paper")]
    pairs += [("good", "goodbg"), ("bad", "badbg"), ("open", "openbg"), ("accent", "askbg"), ("bad", "card")]
    pairs += [(f"c{i}", "card") for i in range(1, 7)]
    assert {
        p: palette.contrast(full[p[0]], full[p[1]]) for p in pairs if palette.contrast(full[p[0]], full[p[1]]) < 4.5
    } == {}
    for kind, shade, ink in (("sequential", "s", "t"), ("diverging", "d", "u")):
        names = dict(re.findall(rf"--([{shade}{ink}]\d+):(#[0-9a-f]{{6}})", palette.variables(theme)))
        assert min(palette.contrast(names[f"{ink}{i}"], c) for i, c in enumerate(palette.ramp(kind, theme))) >= 4.5


def test_a_raster_has_its_size():
    assert png(np.array([[0, 100], [-1, 50]]), "sequential", "light").startswith("data:image/png;base64,iVBORw0KGgo")


# Claims


def claim(**more: object) -> Claim:
    given: dict = {"id": "c", "title": "t", "statement": "s", "value": 0.5, "low": 0.4, "high": 0.6, "n": 1000}
    return Claim(**(given | more))


@pytest.mark.parametrize(
    ("given", "threshold", "word"),
    [
        ("supported", 0.3, "supported"),
        ("supported", None, "measured"),
        ("contradicted", 0.3, "contradicted"),
        ("inconclusive", 0.5, "inconclusive"),
        ("not_applicable", None, "not applicable"),
    ],
)
def test_verdicts_are_words(given: str, threshold: float | None, word: str):
    assert verdict(claim(verdict=given, threshold=threshold)) == word
    assert f">{word}</span>" in row(claim(verdict=given, threshold=threshold), "c")


def test_a_claims_bar_is_drawn_on_its_scale():
    shown = row(claim(scale=(0.0, 2.0), threshold=1.0, direction="below", reason="why", semantics="zero"), "c")
    assert 'class="threshold" style="left:50.0%"' in shown
    assert 'class="interval" style="left:20.0%;width:10.00%"' in shown
    assert 'class="side" style="left:0;right:50.00%"' in shown
    assert "0.50 [0.40, 0.60] on a scale from 0 to 2, threshold 1" in shown
    assert "n = 1\u202f000 sequences · zero · threshold: below 1 · why" in shown


def test_a_claim_off_its_scale_says_so():
    assert "off the scale" in row(claim(value=3.0, low=2.0, high=4.0), "c")
    assert "off the scale" not in row(claim(), "c")


def test_a_claim_without_a_value_has_no_bar():
    shown = row(claim(value=math.nan, low=None, high=None), "c")
    assert "n/a" in shown
    assert 'class="bar"' not in shown


# The page


def test_the_same_findings_give_the_same_bytes(report: str):
    assert page(*induction_report()) == report


def test_a_report_is_small_and_loads_nothing(report: str):
    assert len(report.encode()) < 4_000_000
    tags = Outline(report).tags
    loads = [(t, a) for t, a in tags for k in ("src", "href", "srcset", "data", "poster") if a.get(k)]
    assert {t for t, _ in loads} <= {"a", "image", "use", "path"}
    assert all((a.get("href") or "").startswith(("#", "data:image/png")) for _, a in loads)
    assert "default-src 'none'" in report
    assert "url(http" not in report
    assert not [a for t, a in tags if t in ("link", "iframe", "img", "object", "embed")]


def test_every_id_is_unique_and_every_reference_resolves(report: str, hostile_page: str):
    for source in (report, hostile_page):
        outline = Outline(source)
        ids = outline.ids()
        assert len(ids) == len(set(ids))
        references = [a["href"][1:] for _, a in outline.tags if (a.get("href") or "").startswith("#")]
        references += re.findall(r"url\(#([^)]+)\)", "".join(str(a.get("style", "")) for _, a in outline.tags))
        references += re.findall(r"url\(#([^)]+)\)", "".join(str(a.get("clip-path", "")) for _, a in outline.tags))
        assert references
        assert set(references) <= set(ids)


def test_figures_are_named_after_their_findings_and_headings_follow(report: str):
    outline = Outline(report)
    figures = [a["id"] for t, a in outline.tags if t == "figure"]
    drawn = [f.id for f in induction_report() if isinstance(f, (Curve, Heatmap, Table, Attention))]
    assert sorted(figures) == sorted(drawn)
    levels = [int(t[1]) for t, _ in outline.tags if re.fullmatch(r"h[1-6]", t)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_the_first_screen_comes_first(report: str):
    shown = Outline(report).shown()
    places = [
        shown.index(s)
        for s in (
            "3f9c2ab1",
            "Does this model induce",
            "writes each",
            "within 0.21",
            "Training",
            "Definitions",
            COMMAND,
        )
    ]
    assert places == sorted(places)
    assert "<b>L0.H2</b>" in report


def test_each_answer_begins_its_own_part():
    def part(name: str) -> list[Finding]:
        return [Answer(id=name, title=f"Question {name}?", text="."), claim(id=f"{name}.c", statement=f"claim {name}")]

    shown = Outline(page(*part("a"), *part("b"))).shown()
    places = [shown.index(s) for s in ("Question a?", "claim a", "Question b?", "claim b")]
    assert places == sorted(places)


def test_sections_gather_in_the_order_of_their_first_finding():
    def table(name: str, section: str) -> Table:
        return Table(id=name, title=f"table {name}", columns=(), rows=(), section=section)

    shown = Outline(page(table("1", "B"), table("2", "A"), table("3", "B"))).shown()
    places = [shown.index(s) for s in ("table 1", "table 3", "table 2")]
    assert places == sorted(places)


def test_a_page_of_nothing_still_stands():
    assert HEADING in Outline(page()).shown()


def test_nested_identity_is_shown_as_it_comes():
    shown = Outline(render_page([], identity={"a": {"b": [1, 2], "c": None}}, command="x <y>", heading="h")).shown()
    assert re.search(r"a\s+b\s+1, 2\s+c\s+none", shown)
    assert "x <y>" in shown


def test_a_finding_that_fails_shows_why_in_its_place_and_breaks_nothing():
    torn = Curve(id="torn", title="Torn", x_label="x", y_label="y", series=(Series(name="s", x=(1.0,), y=(1.0, 2.0)),))
    empty = Heatmap(id="empty", title="Empty", panels=(), row_labels=(), column_labels=())
    shown = Outline(page(Unheard(id="u", title=f"New {SCRIPT}"), torn, empty, *induction_report())).shown()
    assert shown.count("could not be drawn.") == 3
    assert f"New {SCRIPT}" in shown
    assert "a page has no drawing for a Unheard" in shown
    assert "Traceback" not in shown
    assert "Every head, removed" in shown


# Hostile and foreign tokens


def test_nothing_gets_out(hostile_page: str):
    outline = Outline(hostile_page)
    scripts = [a for t, a in outline.tags if t == "script" and "type" not in a]
    assert len(scripts) == 3  # the bundle, its companion, the page's own
    assert all(not k.startswith("on") for _, a in outline.tags for k in a)
    assert not [t for t, _ in outline.tags if t == "img"]
    shown = outline.shown()
    for literal in (SCRIPT, IMAGE, "·the", "↵", "⇥", "∅", "$x^2$", "שלום", "日本語", "👩‍👩‍👧‍👦"):
        assert literal in shown


def test_svg_texts_are_texts(hostile_page: str):
    texts = {data for tag, data in Outline(hostile_page).texts if tag == "text"}
    for token in HOSTILE_TOKENS[2:]:
        assert glyphs(token) in texts
    assert any(t.startswith("</script><script>") for t in texts)


def test_undefined_clipped_and_constant_are_marked_and_counted(hostile_page: str):
    shown = Outline(hostile_page).shown()
    assert "52 of 512 cells undefined (n/a), hatched or grey." in shown
    assert "flat is constant: every defined cell is 0.25." in shown
    assert "Clipped: 272 below 20 (▾)." in shown  # the ramp has 20, 4 of them undefined; and all 256 of 0.25
    assert "Clipped: 44 above 200 (▴)." in shown
    assert "1 point is undefined (n/a), a gap." in shown
    assert "Clipped: 1 outside 0 to 2" in shown
    assert f"{SCRIPT}: 4 weights are undefined (n/a), blank in the view." in shown


def test_clipping_is_counted_by_hand():
    maps = Heatmap(
        id="m",
        title="m",
        panels=(Panel(title="p", values=((-1.0, 0.0, 0.5), (1.0, 2.0, 3.0))),),
        row_labels=("a", "b"),
        column_labels=("x", "y", "z"),
        vmin=0.0,
        vmax=1.0,
        annotate=True,
        rules=(Rule(label="chance", value=0.25),),
    )
    shown = Outline(page(maps)).shown()
    assert "Clipped: 1 below 0 (▾)." in shown
    assert "Clipped: 2 above 1 (▴)." in shown
    assert "chance 0.25" in shown
    assert shown.count("▴") == 2 + 1 + 1  # cells, colour bar, remark


def test_a_diverging_scale_is_even_about_zero():
    maps = Heatmap(
        id="m",
        title="m",
        panels=(Panel(title="p", values=((-0.25, 1.0),)),),
        row_labels=("a",),
        column_labels=("x", "y"),
        kind="diverging",
    )
    source = page(maps)
    assert {"−1", "0", "1"} <= {data for tag, data in Outline(source).texts if tag == "text"}
    assert "var(--d100)" in source
    assert "var(--d38)" in source  # a quarter of the way down from the middle: 50 - 12.5


@pytest.mark.parametrize("value", [math.nan, 0.0, 5.0, math.inf])
def test_matrices_of_one_value_are_drawn(value: float):
    maps = Heatmap(
        id="m",
        title="m",
        panels=(Panel(title="p", values=((value,) * 2,) * 2),),
        row_labels=("a", "b"),
        column_labels=("x", "y"),
    )
    shown = Outline(page(maps)).shown()
    assert "could not be drawn" not in shown
    assert ("no cell is defined" if math.isnan(value) else "is constant") in shown


def test_large_matrices_are_rasters_and_small_ones_cells():
    def maps(n: int) -> str:
        values = tuple(tuple(float(i + j) for j in range(n)) for i in range(n))
        labels = tuple(map(str, range(n)))
        return page(
            Heatmap(
                id="m", title="m", panels=(Panel(title="", values=values),), row_labels=labels, column_labels=labels
            )
        )

    assert maps(40).count("<image") == 2  # the colour bar, light and dark
    large = maps(120)
    assert large.count("<image") == 4
    assert len(large) - len(maps(2)) < 400_000


def test_a_log_axis_has_a_place_for_step_zero():
    steps = (0.0, 1.0, 10.0, 100.0)
    series = (Series(name="s", x=steps, y=(0.0, 1.0, 2.0, 3.0)),)
    source = page(Curve(id="c", title="c", x_label="x", y_label="y", series=series, x_scale="log"))
    texts = [data for tag, data in Outline(source).texts if tag == "text"]
    assert {"0", "1", "10", "100"} <= set(texts)
    assert "could not be drawn" not in Outline(source).shown()


def test_many_lines_are_told_apart_and_named():
    series = tuple(Series(name=f"s{i}", x=(0.0, 1.0), y=(0.0, float(i))) for i in range(12))
    source = page(Curve(id="c", title="c", x_label="x", y_label="y", series=series))
    assert "Lines without a label: s8, s9, s10, s11." in Outline(source).shown()
    first, seventh = re.findall(r'style="[^"]*stroke: var\(--c1\)[^"]*"', source)
    assert "stroke-dasharray" not in first
    assert "stroke-dasharray" in seventh


# Attention


def test_the_bundle_stands_once_and_only_where_it_is_needed(report: str):
    mark = "CircuitsVis=(()"
    three = page(*(attention(f"a{i}", n=8, period=3) for i in range(3)))
    bundles = [d for tag, d in Outline(three).texts if tag == "script" and len(d) > 1_000_000]
    assert len(bundles) == 1
    assert three.count('class="view light"') == 3
    without = page(*(f for f in induction_report() if not isinstance(f, Attention)))
    assert len(without) < len(report) - 1_000_000
    assert mark not in without


def test_patterns_stand_as_data_with_their_tokens_seen():
    source = page(hostile()[6])
    data = json.loads(re.search(r'class="patterns">(.*?)</script>', source)[1])
    assert data["raw"] == list(HOSTILE_TOKENS)
    assert data["tokens"] == [glyphs(t) for t in HOSTILE_TOKENS]
    assert data["attention"][0][3][:5] == [0.25, 0.25, 0.25, 0.25, 0]
    assert data["attention"][1][3][0] is None
    assert data["causal"] is True


def test_a_constant_pattern_is_named():
    finding = Attention(
        id="a",
        title="a",
        tokens=("x", "y"),
        patterns=(((0.5, 0.0), (0.5, 0.5)), ((1.0, 0.0), (0.2, 0.8))),
        names=("A", "B"),
    )
    shown = Outline(page(finding)).shown()
    assert "A is constant" in shown
    assert "B" in shown
    assert "B is constant" not in shown


# Tables


def test_cells_show_intervals_signs_and_marks():
    columns = (
        Column(key="h", label="head"),
        Column(key="d", label="change", digits=3, low="lo", high="hi", signed=True, help="what it is"),
        Column(key="n", label="n"),
    )
    rows = (
        {"h": "L0.H0", "d": -0.5, "lo": -0.53, "hi": -0.47, "n": 12000},
        {"h": "L0.H1", "d": math.nan, "lo": math.nan, "hi": math.nan, "n": None},
        {"h": "L0.H2", "d": 0.001, "lo": -0.03, "hi": 0.03, "n": 3},
    )
    source = page(Table(id="t", title="t", columns=columns, rows=rows, marked=(1,)))
    assert '<td class="n minus" data-v="-0.5">−0.50 <span class="soft">[−0.53, −0.47]</span></td>' in source
    assert '<td class="n" data-v=""><span class="soft">n/a</span></td>' in source
    assert '<td class="n" data-v="0.001">0.00 ' in source
    assert ">12\u202f000</td>" in source
    assert source.count('<tr class="marked">') == 1
    csv = json.loads(re.search(r'class="csv">(.*?)</script>', source)[1])
    assert csv.splitlines() == ["h,d,lo,hi,n", "L0.H0,-0.5,-0.53,-0.47,12000", "L0.H1,,,,", "L0.H2,0.001,-0.03,0.03,3"]


# Elsewhere nothing changes


def test_matplotlib_and_what_was_set_stay_as_they_were():
    with matplotlib.rc_context({"font.size": 33, "axes.facecolor": "red", "text.usetex": False}):
        before = dict(matplotlib.rcParams)
        themed = page(*induction_report()[8:12])
        assert dict(matplotlib.rcParams) == before
    assert page(*induction_report()[8:12]) == themed


def test_the_findings_are_not_changed():
    findings = hostile()
    copies = [dataclasses.replace(f) for f in findings]
    page(*findings)
    assert repr(findings) == repr(copies)
