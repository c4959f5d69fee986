"""Names of a model's parts: ``"L1.H3"`` is head 3 of layer 1, ``"L0.mlp"`` an MLP, ``"L1"`` a whole layer; from 0."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from workbench.config import ModelConfig
from workbench.errors import WorkbenchError

MOST_NAMED = 12
"""Parts that a sentence names one by one."""


class Head(NamedTuple):
    """One attention head. Sorts by layer, then head; ``str`` gives ``"L1.H3"``."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}.H{self.head}"


@dataclass(frozen=True)
class Mlp:
    """The MLP of a layer; ``str`` gives ``"L0.mlp"``."""

    layer: int

    def __str__(self) -> str:
        return f"L{self.layer}.mlp"


@dataclass(frozen=True)
class Layer:
    """Every head of a layer, and its MLP where it has one; ``str`` gives ``"L1"``."""

    layer: int

    def __str__(self) -> str:
        return f"L{self.layer}"


Part = Head | Mlp | Layer

Heads = str | Head | Iterable[str | Head]
"""How heads are given: ``"L1.H0"``, ``"L0.H0, L1.H0"``, Heads, or any mixture."""

Parts = str | Part | Iterable[str | Part]
"""How parts are given: as heads, and ``"L0.mlp"``, ``"L1"``, Mlps and Layers among them."""


def parse_head(text: str) -> Head:
    """``"L1.H3"`` (case does not matter) as a Head."""
    match = re.fullmatch(r"[Ll](\d+)\.[Hh](\d+)", str(text).strip())
    if match is None:
        raise WorkbenchError("a head's name cannot be read", expected='a name like "L1.H0"', got=repr(text))
    return Head(int(match[1]), int(match[2]))


def parse_part(text: str) -> Part:
    """``"L1.H3"``, ``"L0.mlp"`` or ``"L1"`` (case does not matter) as a part."""
    match = re.fullmatch(r"L(\d+)(\.MLP|\.H(\d+))?", str(text).strip().upper())
    if match is None:
        raise WorkbenchError(
            "a part's name cannot be read", expected='a name like "L1.H0", "L0.mlp" or "L1"', got=repr(text)
        )
    layer = int(match[1])
    if match[3] is not None:
        return Head(layer, int(match[3]))
    return Mlp(layer) if match[2] else Layer(layer)


def as_heads(heads: Heads) -> tuple[Head, ...]:
    """Heads from a name, several names with commas, a Head, or any mixture, sorted and without repeats."""
    if isinstance(heads, Head):
        return (heads,)
    if isinstance(heads, str):
        heads = [part for part in heads.split(",") if part.strip()]
    return tuple(sorted({h if isinstance(h, Head) else parse_head(h) for h in heads}))


def as_parts(parts: Parts) -> tuple[Part, ...]:
    """Parts from names, parts or any mixture, sorted by layer (its heads, its MLP, the whole) and without repeats."""
    if isinstance(parts, Head | Mlp | Layer):
        return (parts,)
    if isinstance(parts, str):
        parts = [part for part in parts.split(",") if part.strip()]
    try:
        given = [p if isinstance(p, Head | Mlp | Layer) else parse_part(p) for p in parts]
    except TypeError:
        raise WorkbenchError(
            "parts cannot be read", expected='names like "L1.H0, L0.mlp", or parts', got=repr(parts)
        ) from None
    return tuple(sorted(set(given), key=_order))


def _order(part: Part) -> tuple[int, int, int]:
    return (part.layer, 0, part.head) if isinstance(part, Head) else (part.layer, 1 + isinstance(part, Layer), 0)


def all_heads(n_layers: int, n_heads: int) -> tuple[Head, ...]:
    """Every head, layer by layer."""
    return tuple(Head(layer, head) for layer in range(n_layers) for head in range(n_heads))


def all_mlps(config: ModelConfig) -> tuple[Mlp, ...]:
    """Every MLP, from below; none in an attention-only model."""
    return tuple(Mlp(layer) for layer in range(config.n_layers)) if config.d_mlp else ()


def all_parts(config: ModelConfig) -> tuple[Head | Mlp, ...]:
    """Every head and MLP, layer by layer."""
    return expand(map(Layer, range(config.n_layers)), config)


def expand(parts: Iterable[Part], config: ModelConfig) -> tuple[Head | Mlp, ...]:
    """The heads and MLPs that are meant, sorted; raises the error that says what exists for one outside the model."""
    found: set[Head | Mlp] = set()
    for part in parts:
        if isinstance(part, Head):
            check_heads((part,), config.n_layers, config.n_heads)
            found.add(part)
            continue
        if not 0 <= part.layer < config.n_layers:
            raise WorkbenchError(
                f"there is no part {part}", expected=f"layers L0 to L{config.n_layers - 1}", got=str(part)
            )
        if isinstance(part, Mlp) and not config.d_mlp:
            raise WorkbenchError(f"there is no part {part}", expected="heads: the model has no MLPs", got=str(part))
        if isinstance(part, Layer):
            found |= {Head(part.layer, head) for head in range(config.n_heads)}
        if config.d_mlp:
            found.add(Mlp(part.layer))
    return tuple(sorted(found, key=_order))


def check_heads(heads: Iterable[Head], n_layers: int, n_heads: int) -> None:
    """Raise the error that says what exists if a head lies outside the model."""
    for h in heads:
        if not (0 <= h.layer < n_layers and 0 <= h.head < n_heads):
            raise WorkbenchError(
                f"there is no head {h}",
                expected=f"L0 to L{n_layers - 1} and H0 to H{n_heads - 1} ({n_layers} layers x {n_heads} heads)",
                got=str(h),
            )


def part_names(parts: Iterable[Part]) -> str:
    """``"L0.H1, L0.mlp"``, or ``"none"``: for sentences.

    Of more than ``MOST_NAMED``, heads in a row are drawn together: ``"L0.H0 to H7, L0.mlp"``.
    """
    ordered = sorted(parts, key=_order)
    if len(ordered) <= MOST_NAMED:
        return ", ".join(map(str, ordered)) or "none"
    rows: list[list[Part]] = []
    for part in ordered:
        before = rows[-1][-1] if rows else None
        if isinstance(part, Head) and isinstance(before, Head) and part == (before.layer, before.head + 1):
            rows[-1].append(part)
        else:
            rows.append([part])
    return ", ".join(
        f"{row[0]} to H{row[-1].head}" if isinstance(row[-1], Head) and len(row) > 2 else ", ".join(map(str, row))
        for row in rows
    )
