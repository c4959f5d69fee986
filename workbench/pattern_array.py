"""Attention patterns of several heads as one array, checked against their tokens and names; how much a page shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.errors import WorkbenchError

MOST_CELLS = 1_600_000
"""Weights of a figure's lower triangles that a page carries one by one (512 x 512 for 12 heads is within); of more it
shows the largest of each block."""
MOST_TOKENS = 1_024
"""Tokens a side that a page shows one by one."""


def most_tokens(n_heads: int) -> int:
    """The longest sequence of which a page shows every weight of so many heads, at n (n + 1) / 2 weights each."""
    return min(MOST_TOKENS, (math.isqrt(8 * (MOST_CELLS // max(n_heads, 1)) + 1) - 1) // 2)


def checked_patterns(id: str, tokens: Sequence[str], names: Sequence[str], patterns: Any) -> np.ndarray:
    """A read-only copy ``[head query_pos key_pos]`` of an array or of nested sequences, None as nan.

    Floats keep their type, anything else becomes float64.

    Raises:
        WorkbenchError: not one pattern a name, or not one row and one column a token.
    """
    n = len(tokens)
    if len(names) != len(patterns):
        raise WorkbenchError(
            f"attention {id}: names and patterns differ in number",
            expected=f"{len(patterns)} names",
            got=len(names),
        )
    for name, pattern in zip(names, patterns, strict=True):
        rows, widths = _size(pattern)
        if rows != n or widths - {n}:
            raise WorkbenchError(
                f"attention {id}, {name}: labels and pattern differ in size",
                expected=f"{n} x {n} for {n} tokens",
                got=f"{rows} x {'/'.join(map(str, sorted(widths)))}",
            )
    given = getattr(patterns, "dtype", None)
    kind = given if given is not None and np.issubdtype(given, np.floating) else np.float64
    array = np.array(patterns, dtype=kind)
    if array.size != len(names) * n * n:
        raise WorkbenchError(f"attention {id}: a weight is not one number", expected="[head query_pos key_pos]")
    array = array.reshape(len(names), n, n)
    array.setflags(write=False)
    return array


def _size(pattern: Any) -> tuple[int, set[int]]:
    """How many rows a pattern has and how long they are; what has no length is 0 long."""
    if isinstance(pattern, np.ndarray) and pattern.ndim == 2:
        return len(pattern), {pattern.shape[1]}
    rows = [len(row) if hasattr(row, "__len__") else 0 for row in pattern] if hasattr(pattern, "__len__") else []
    return len(rows), set(rows)
