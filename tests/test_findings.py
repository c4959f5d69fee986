"""Findings are plain data: they survive JSON, and refuse what cannot be drawn."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from workbench.errors import WorkbenchError
from workbench.findings import (
    Answer,
    Attention,
    Circuit,
    Claim,
    Column,
    Curve,
    Definition,
    Edge,
    Finding,
    Heatmap,
    Interactive,
    Node,
    Notice,
    Panel,
    Rule,
    Series,
    Span,
    Table,
)
from workbench.findings_json import KINDS, from_json, public, tables, to_json

ONE_OF_EACH: list[Finding] = [
    Answer(id="a", title="Does it?", text="**L1.H0** does."),
    Claim(id="c", title="t", statement="It does.", heads=("L1.H0",), value=0.5, low=0.4, high=0.6, n=8, threshold=0.1),
    Table(
        id="t", title="t", columns=(Column(key="x", label="X", digits=2),), rows=({"x": 1.5}, {"x": None}), marked=(1,)
    ),
    Curve(
        id="l",
        title="t",
        x_label="step",
        y_label="loss",
        series=(Series(name="s", x=(0.0, 1.0), y=(2.0, 1.0), low=(1.0, 0.5), high=(3.0, 1.5)),),
        rules=(Rule(label="floor", value=0.1),),
        spans=(Span(label="rise", low=0.0, high=1.0),),
        y_range=(0.0, 3.0),
    ),
    Heatmap(
        id="h",
        title="t",
        panels=(Panel(title="p", values=((1.0, 2.0),)),),
        row_labels=("r",),
        column_labels=("a", "b"),
        marks=((0, 0, 1),),
    ),
    Attention(id="m", title="t", tokens=("a", "b"), patterns=(((1.0, 0.0), (0.5, 0.5)),), names=("L0.H0",)),
    Circuit(
        id="k",
        title="t",
        nodes=(Node(name="L0.H0", layer=0), Node(name="L1.H0", layer=1)),
        edges=(Edge(sender="L0.H0", receiver="L1.H0", kind="K", weight=-0.5, low=-0.6, high=-0.4),),
        unit="Δ accuracy",
    ),
    Interactive(id="i", title="t", payload={"format": 1, "samples": {"tokens": [[1, 2]]}, "weights": None}),
    Notice(id="n", title="t", text="Look.", level="warning"),
    Definition(id="d", title="loss", text="What it is."),
]


def test_every_kind_is_here() -> None:
    assert {type(f).__name__ for f in ONE_OF_EACH} == set(KINDS)


@pytest.mark.parametrize("finding", ONE_OF_EACH, ids=lambda f: type(f).__name__)
def test_json_round_trip(finding: Finding) -> None:
    assert from_json(json.loads(json.dumps(to_json(finding), allow_nan=False))) == finding


def test_undefined_numbers_are_null_in_json_and_nan_again() -> None:
    made = Heatmap(
        id="h",
        title="t",
        panels=(Panel(title="p", values=((math.nan, math.inf),)),),
        row_labels=("r",),
        column_labels=("a", "b"),
    )
    data = to_json(made)
    assert data["panels"][0]["values"] == [[None, None]]
    back = from_json(data)
    assert isinstance(back, Heatmap)
    assert all(math.isnan(v) for v in back.panels[0].values[0])


def test_a_claim_in_public() -> None:
    shown = public(Claim(id="c", title="t", statement="It does.", heads=("L1.H0",), value=math.nan))
    keys = "id statement heads value unit low high samples n semantics threshold direction verdict reason"
    assert list(shown) == keys.split()
    assert (shown["value"], shown["heads"], shown["verdict"]) == (None, ["L1.H0"], "not_applicable")


def test_tables_by_id() -> None:
    assert tables(ONE_OF_EACH) == {"t": [{"x": 1.5}, {"x": None}]}


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(WorkbenchError, match=r"heatmap h, panel 'p'.*expected 2 x 1 \(the labels\), got 1 x 1"):
        Heatmap(
            id="h",
            title="t",
            panels=(Panel(title="p", values=((1.0,),)),),
            row_labels=("a", "b"),
            column_labels=("c",),
        )
    square = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.2, 0.3, 0.5))
    with pytest.raises(WorkbenchError, match="expected 2 x 2 for 2 tokens, got 3 x 3"):
        Attention(id="m", title="t", tokens=("a", "b"), patterns=(square,), names=("L0.H0",))
    with pytest.raises(WorkbenchError, match="expected 1 names, got 2"):
        Attention(id="m", title="t", tokens=("a", "b", "c"), patterns=(square,), names=("L0.H0", "L0.H1"))


def test_patterns_are_an_array_of_their_own_however_they_came() -> None:
    rows = (((1.0, 0.0), (0.25, 0.75)), ((1.0, None), (0.5, 0.5)))
    given = np.array(rows, dtype=np.float32)
    common = {"id": "m", "title": "t", "tokens": ("a", "b"), "names": ("L0.H0", "L0.H1")}
    nested, array = Attention(patterns=rows, **common), Attention(patterns=given, **common)
    assert nested == array
    assert hash(nested) == hash(array)
    assert (nested.patterns.dtype, array.patterns.dtype) == (np.float64, np.float32)
    given[0, 1] = 0.5
    assert array.patterns[0, 1].tolist() == [0.25, 0.75]
    assert array != Attention(patterns=given, **common)
    assert array != dataclasses.replace(array, names=("L0.H0", "L0.H2"))
    with pytest.raises(ValueError, match="read-only"):
        array.patterns[0, 0, 0] = 0.5
    back = from_json(json.loads(json.dumps(to_json(array), allow_nan=False)))
    assert back == array
    assert to_json(array)["patterns"][1] == [[1.0, None], [0.5, 0.5]]
    whole = Attention(patterns=np.eye(2, dtype=int)[None], **common | {"names": ("L0.H0",)})
    assert whole.patterns.dtype == np.float64


@pytest.mark.parametrize("shape", [(1, 3, 2), (1, 2, 3), (1, 2)])
def test_arrays_that_do_not_fit_the_tokens_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(WorkbenchError, match=r"L0.H0: labels and pattern differ in size.*expected 2 x 2 for 2 tokens"):
        Attention(id="m", title="t", tokens=("a", "b"), patterns=np.zeros(shape), names=("L0.H0",))


def test_patterns_of_patterns_are_refused() -> None:
    with pytest.raises(WorkbenchError, match="a weight is not one number"):
        Attention(id="m", title="t", tokens=("a", "b"), patterns=np.zeros((1, 2, 2, 2)), names=("L0.H0",))


def test_what_is_not_plain_is_refused() -> None:
    with pytest.raises(TypeError, match="set is not plain data"):
        to_json({"x": {1, 2}})
    with pytest.raises(WorkbenchError, match="a finding's kind is unknown"):
        from_json({"kind": "Movie"})
