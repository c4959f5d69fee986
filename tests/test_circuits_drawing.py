"""A drawn circuit: boxes in their layers, lines as wide as their effect, names as text; it comes out as others do."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from reports.circuits import circuit
from reports.page import render_page
from tests.sample_findings import IMAGE, SCRIPT
from workbench.errors import WorkbenchError
from workbench.findings import Circuit, Edge, Node
from workbench.findings_json import from_json, to_json

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TWO_LAYERS = Circuit(
    id="test.circuit",
    title="The circuit",
    caption="How it was computed.",
    nodes=(
        Node(name="L0.H0", layer=0, role="previous token", effect=-0.9, low=-0.95, high=-0.85),
        Node(name="L0.H3", layer=0, effect=-0.2),
        Node(name="L2.H1", layer=2, role="induction", effect=-0.97),
    ),
    edges=(
        Edge(sender="L0.H0", receiver="L2.H1", kind="K", weight=-0.8, low=-0.85, high=-0.75),
        Edge(sender="L0.H0", receiver="L2.H1", kind="Q", weight=-0.001),
        Edge(sender="L0.H3", receiver="L2.H1", kind="V", weight=0.4),
        Edge(sender="L0.H3", receiver="L2.H1", kind="K", weight=0.0),
    ),
    unit="Δ accuracy",
)
HOSTILE = Circuit(
    id="test.hostile",
    title=SCRIPT,
    caption=IMAGE,
    nodes=(Node(name=SCRIPT, layer=0, role=IMAGE), Node(name="$x^2$", layer=1, role="a\n\u202eb")),
    edges=(Edge(sender=SCRIPT, receiver="$x^2$", kind="<b>", weight=-0.5),),
    unit=SCRIPT,
)


def page(*findings: Circuit) -> str:
    return render_page(findings, identity={}, command="workbench report", heading="test")


def texts(svg: str) -> dict[str, tuple[float, float]]:
    """Text of each label -> where it stands, from the top left."""
    found = {}
    for element in ElementTree.fromstring(svg).iter("text"):
        place = re.search(r"(?:translate\(|rotate\([-\d.]+ )([-\d.]+) ([-\d.]+)\)", element.get("transform", ""))
        x, y = place.groups() if place else (element.get("x"), element.get("y"))
        found["".join(element.itertext()).strip()] = (float(x), float(y))
    return found


def lines(svg: str) -> list[dict[str, str]]:
    """The style of every line (boxes and the backs of labels are filled), thickest first."""
    styles = [
        dict(part.split(": ") for part in path.get("style", "").split("; "))
        for path in ElementTree.fromstring(svg).iter("path")
    ]
    edges = [style for style in styles if style.get("fill") == "none" and "stroke" in style]
    return sorted(edges, key=lambda style: -float(style.get("stroke-width", 1)))


def test_layers_stand_above_each_other_and_labels_are_text() -> None:
    at = texts(circuit(TWO_LAYERS, "x").svg)
    assert {"L0.H0", "L0.H3", "L2.H1", "previous token", "induction", "layer 0", "layer 2"} <= set(at)
    assert {"−0.90", "−0.20", "−0.97", "K −0.80", "V +0.40"} <= set(at)
    assert at["layer 0"][1] > at["K −0.80"][1] > at["layer 2"][1]
    for name, layer in (("L0.H0", 0), ("L0.H3", 0), ("L2.H1", 2)):
        assert abs(at[name][1] - at[f"layer {layer}"][1]) < 24
    assert at["L0.H0"][0] < at["L2.H1"][0] < at["L0.H3"][0]
    assert "Q −0.00" not in at


def test_lines_are_as_wide_as_their_effect_and_tell_kinds_and_signs_apart() -> None:
    edges = lines(circuit(TWO_LAYERS, "x").svg)
    widths = [float(style["stroke-width"]) for style in edges]
    assert widths[0] == pytest.approx(7.0)
    assert widths[1] == pytest.approx(0.7 + (7.0 - 0.7) / 2)
    assert widths[2] == widths[3] == pytest.approx(0.7)
    assert [style["stroke"] for style in edges] == ["var(--c2)", "var(--c3)", "var(--muted)", "var(--muted)"]
    assert ["stroke-dasharray" in style for style in edges] == [False, True, False, False]


def test_what_has_no_number_is_counted_and_the_rest_is_said() -> None:
    drawn = circuit(TWO_LAYERS, "x")
    assert drawn.notes == (
        "2 of 4 paths stand without a number: too small (thin, grey), or no room. All are in the CSV.",
    )
    assert "the widest 0.80" in drawn.legend
    assert "Dashed: cutting it helps" in drawn.legend
    assert "L0.H0 to L2.H1 K −0.800" in drawn.summary


def test_single_heads_and_none_are_drawn() -> None:
    one = circuit(Circuit(id="c", title="t", nodes=TWO_LAYERS.nodes[:1], edges=(), unit="u"), "x")
    assert one.notes == ()
    assert "L0.H0" in texts(one.svg)
    none = circuit(Circuit(id="c", title="t", nodes=(), edges=(), unit="u"), "x")
    assert none.notes == ("There is no head to draw.",)


def test_many_lines_never_write_over_each_other() -> None:
    nodes = [Node(name=f"L{layer}.H{h}", layer=layer) for layer in range(3) for h in range(4)]
    edges = [
        Edge(sender=a.name, receiver=b.name, kind=kind, weight=-0.1 - 0.01 * i)
        for i, (a, b) in enumerate((a, b) for a in nodes for b in nodes if a.layer < b.layer)
        for kind in "QKV"
    ]
    drawn = circuit(Circuit(id="c", title="t", nodes=tuple(nodes), edges=tuple(edges), unit="u"), "x")
    placed = []
    for element in ElementTree.fromstring(drawn.svg).iter("text"):
        label = "".join(element.itertext()).strip()
        if label[:2] in ("Q ", "K ", "V "):
            place = re.search(r"([-\d.]+) ([-\d.]+)\)", element.get("transform", ""))
            placed.append(tuple(map(float, place.groups() if place else (element.get("x"), element.get("y")))))
    assert len(placed) > 15
    apart = [(a, b) for i, a in enumerate(placed) for b in placed[:i]]
    assert all(abs(a[0] - b[0]) > 30 or abs(a[1] - b[1]) > 11 for a, b in apart)
    assert f"{len(edges) - len(placed)} of {len(edges)} paths stand without a number" in drawn.notes[0]


@pytest.mark.parametrize("finding", [TWO_LAYERS, HOSTILE], ids=["plain", "hostile"])
def test_json_round_trip(finding: Circuit) -> None:
    assert from_json(json.loads(json.dumps(to_json(finding), allow_nan=False))) == finding


@pytest.mark.parametrize(
    ("nodes", "edge", "problem"),
    [
        (("a", "a"), None, "two nodes have one name"),
        (("a", "b"), ("a", "c"), "an edge has no node at its end: expected a, b, got a to c"),
        (("a", "b"), ("b", "a"), "an edge does not lead upwards"),
        (("a", "b"), ("a", "a"), "an edge does not lead upwards"),
    ],
)
def test_what_cannot_be_drawn_is_refused(nodes: tuple[str, ...], edge: tuple[str, str] | None, problem: str) -> None:
    made = tuple(Node(name=name, layer=layer) for layer, name in enumerate(nodes))
    edges = () if edge is None else (Edge(sender=edge[0], receiver=edge[1], kind="V", weight=0.0),)
    with pytest.raises(WorkbenchError, match=problem):
        Circuit(id="c", title="t", nodes=made, edges=edges, unit="u")


def test_hostile_names_are_text() -> None:
    source = page(HOSTILE)
    assert SCRIPT not in source
    assert IMAGE not in source
    assert "could not be drawn" not in source
    at = texts(circuit(HOSTILE, "x").svg)
    assert "$x^2$" in at
    assert "a↵⟨U+202E⟩b" in at
    assert "<b> −0.50" in at


@pytest.fixture
def opened(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Page, list[str]]]:
    file = tmp_path / "page.html"
    file.write_text(page(TWO_LAYERS, HOSTILE), encoding="utf-8")
    context = browser.new_context(offline=True, color_scheme=request.param, accept_downloads=True)
    shown, troubles = context.new_page(), list[str]()
    shown.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
    shown.on("dialog", lambda d: (troubles.append(d.message), d.dismiss()))
    shown.goto(file.as_uri())
    yield shown, troubles
    context.close()


@pytest.mark.parametrize(
    ("opened", "ink"), [("light", "rgb(26, 29, 33)"), ("dark", "rgb(231, 234, 237)")], indirect=["opened"]
)
def test_it_follows_the_theme_and_comes_out_alone(opened: tuple[Page, list[str]], ink: str) -> None:
    shown, troubles = opened
    figure = shown.locator("[id='test.circuit']")
    name = figure.locator("svg.plot text", has_text="L2.H1").first
    assert name.evaluate("e => getComputedStyle(e).fill") == ink
    assert shown.locator("img").count() == 0

    def take(tool: str) -> Path:
        with shown.expect_download() as waiting:
            figure.locator(f"button[data-tool={tool}]").click()
        return Path(waiting.value.path())

    alone = take("svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(alone).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in alone
    with take("csv").open(encoding="utf-8", newline="") as file:
        data = list(csv.DictReader(file))
    assert [(row["part"], row["name"], row["to"], row["kind"]) for row in data][2:4] == [
        ("head", "L2.H1", "", ""),
        ("path", "L0.H0", "L2.H1", "K"),
    ]
    assert (data[3]["Δ accuracy"], data[3]["low"], data[3]["high"]) == ("-0.8", "-0.85", "-0.75")
    assert troubles == []
