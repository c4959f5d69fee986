"""Words and fields that the claims of several analyses share."""

from __future__ import annotations

from typing import Any

from workbench.behaviour import Judgement


def p_text(p: float) -> str:
    """A p-value for a sentence."""
    return "below .001" if p < 0.001 else f"{p:.3f}"


def judged(judgement: Judgement) -> dict[str, Any]:
    """What a claim takes from a judgement about accuracy."""
    names = ("value", "low", "high", "n", "threshold", "direction", "verdict", "reason")
    return {name: getattr(judgement, name) for name in names} | {"unit": "accuracy"}
