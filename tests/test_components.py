"""Names of heads are read, sorted and checked."""

from __future__ import annotations

import pytest

from workbench.components import Head, all_heads, as_heads, check_heads, head_names, parse_head
from workbench.errors import WorkbenchError


def test_names_round_trip() -> None:
    assert parse_head("L1.H3") == parse_head(" l1.h3 ") == Head(1, 3)
    assert [str(h) for h in all_heads(2, 2)] == ["L0.H0", "L0.H1", "L1.H0", "L1.H1"]
    assert all(parse_head(str(h)) == h for h in all_heads(3, 12))


@pytest.mark.parametrize("text", ["", "L1", "1.3", "L1H3", "L1.H", "L-1.H0", "L0.mlp"])
def test_unreadable_names(text: str) -> None:
    with pytest.raises(WorkbenchError, match="a head's name cannot be read"):
        parse_head(text)


def test_any_mixture_becomes_sorted_heads_without_repeats() -> None:
    both = (Head(0, 1), Head(1, 0))
    assert as_heads("L1.H0, L0.H1") == both
    assert as_heads(["L1.H0", Head(0, 1), "l1.h0"]) == both
    assert as_heads(Head(0, 1)) == (Head(0, 1),)
    assert as_heads(()) == as_heads("") == ()


def test_heads_outside_the_model() -> None:
    check_heads(all_heads(2, 4), 2, 4)
    for head in (Head(2, 0), Head(0, 4)):
        with pytest.raises(WorkbenchError, match=r"L0 to L1 and H0 to H3 \(2 layers x 4 heads\)"):
            check_heads([head], 2, 4)


def test_names_for_sentences() -> None:
    assert head_names([Head(1, 0), Head(0, 10), Head(0, 9)]) == "L0.H9, L0.H10, L1.H0"
    assert head_names([]) == "none"
