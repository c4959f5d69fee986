"""Names of heads, MLPs and layers are read, sorted and checked."""

from __future__ import annotations

import pytest

from workbench.components import (
    Head,
    Layer,
    Mlp,
    all_heads,
    all_mlps,
    all_parts,
    as_heads,
    as_parts,
    check_heads,
    expand,
    parse_head,
    parse_part,
    part_names,
)
from workbench.config import ModelConfig
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
    assert part_names([Head(1, 0), Head(0, 10), Head(0, 9)]) == "L0.H9, L0.H10, L1.H0"
    assert part_names([]) == "none"


def test_parts_are_read_sorted_and_named_without_repeats() -> None:
    assert parse_part("L1.H3") == parse_part("l1.h3") == Head(1, 3)
    assert parse_part("L0.mlp") == parse_part(" l0.MLP ") == Mlp(0)
    assert parse_part("L12") == Layer(12)
    parts = as_parts(["L1", Mlp(0), "L1.mlp", "L0.H10", Head(0, 9), "L0.mlp", "L0"])
    assert [str(p) for p in parts] == ["L0.H9", "L0.H10", "L0.mlp", "L0", "L1.mlp", "L1"]
    assert as_parts("L1.H0, L0.mlp") == (Mlp(0), Head(1, 0))
    assert as_parts(Mlp(1)) == (Mlp(1),)
    assert as_parts(()) == as_parts("") == ()
    assert part_names([Layer(1), Mlp(0), Head(0, 1)]) == "L0.H1, L0.mlp, L1"
    assert part_names([]) == "none"
    many = [*all_heads(2, 8), Mlp(0)]
    assert part_names(many) == "L0.H0 to H7, L0.mlp, L1.H0 to H7"
    gaps = [p for p in many if p not in (Head(0, 2), Head(0, 5), Head(1, 0))]
    assert part_names(gaps) == "L0.H0, L0.H1, L0.H3, L0.H4, L0.H6, L0.H7, L0.mlp, L1.H1 to H7"
    assert part_names(many[:12]) == ", ".join(map(str, many[:12]))


@pytest.mark.parametrize("text", ["", "H0", "mlp", "L0.mlp2", "L1.H", "L-1", "L0.mlp.H1", "LL0"])
def test_unreadable_parts(text: str) -> None:
    with pytest.raises(WorkbenchError, match=r'a part\'s name cannot be read: expected a name like "L1.H0"'):
        parse_part(text)


WITH, WITHOUT = ModelConfig(7, 6, d_model=8, n_heads=2, d_mlp=5), ModelConfig(7, 6, d_model=8, n_heads=2)


def test_a_layer_stands_for_its_heads_and_the_mlp_that_it_has() -> None:
    assert expand(as_parts("L1, L1.H0, L0.H1"), WITH) == (Head(0, 1), Head(1, 0), Head(1, 1), Mlp(1))
    assert expand(as_parts("L1"), WITHOUT) == (Head(1, 0), Head(1, 1))
    assert all_mlps(WITH) == (Mlp(0), Mlp(1))
    assert all_mlps(WITHOUT) == ()
    assert [str(p) for p in all_parts(WITH)] == ["L0.H0", "L0.H1", "L0.mlp", "L1.H0", "L1.H1", "L1.mlp"]
    assert all_parts(WITHOUT) == all_heads(2, 2)


def test_parts_outside_the_model_say_what_exists() -> None:
    for part, message in [
        ("L2", "no part L2: expected layers L0 to L1"),
        ("L2.mlp", "no part L2.mlp: expected layers L0 to L1"),
        ("L0.H2", r"no head L0.H2: expected L0 to L1 and H0 to H1"),
    ]:
        with pytest.raises(WorkbenchError, match=message):
            expand(as_parts(part), WITH)
    with pytest.raises(WorkbenchError, match="the model has no MLPs"):
        expand(as_parts("L0.mlp"), WITHOUT)
