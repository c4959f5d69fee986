"""Names of a model's parts: ``"L1.H3"`` is head 3 of layer 1 (both from 0)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from workbench.errors import WorkbenchError


class Head(NamedTuple):
    """One attention head. Sorts by layer, then head; ``str`` gives ``"L1.H3"``."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}.H{self.head}"


def parse_head(text: str) -> Head:
    """``"L1.H3"`` (case does not matter) as a Head."""
    match = re.fullmatch(r"[Ll](\d+)\.[Hh](\d+)", str(text).strip())
    if match is None:
        raise WorkbenchError("a head's name cannot be read", expected='a name like "L1.H0"', got=repr(text))
    return Head(int(match[1]), int(match[2]))


def as_heads(heads: str | Head | Iterable[str | Head]) -> tuple[Head, ...]:
    """Heads from a name, several names with commas, a Head, or any mixture, sorted and without repeats."""
    if isinstance(heads, Head):
        return (heads,)
    if isinstance(heads, str):
        heads = [part for part in heads.split(",") if part.strip()]
    return tuple(sorted({h if isinstance(h, Head) else parse_head(h) for h in heads}))


def all_heads(n_layers: int, n_heads: int) -> tuple[Head, ...]:
    """Every head, layer by layer."""
    return tuple(Head(layer, head) for layer in range(n_layers) for head in range(n_heads))


def check_heads(heads: Iterable[Head], n_layers: int, n_heads: int) -> None:
    """Raise the error that says what exists if a head lies outside the model."""
    for h in heads:
        if not (0 <= h.layer < n_layers and 0 <= h.head < n_heads):
            raise WorkbenchError(
                f"there is no head {h}",
                expected=f"L0 to L{n_layers - 1} and H0 to H{n_heads - 1} ({n_layers} layers x {n_heads} heads)",
                got=str(h),
            )


def head_names(heads: Iterable[Head]) -> str:
    """``"L0.H1, L1.H0"``, or ``"none"``: for sentences."""
    return ", ".join(str(h) for h in sorted(heads)) or "none"
