"""Claims as rows: verdict, statement, value with its interval, and the interval drawn against its threshold."""

from __future__ import annotations

import math

from reports.escaping import text
from reports.numbers import MISSING, estimate, is_missing, plain
from workbench.findings import Claim

_WORDS = {
    "supported": "supported",
    "contradicted": "contradicted",
    "inconclusive": "inconclusive",
    "not_applicable": "not applicable",
}


def verdict(claim: Claim) -> str:
    """The verdict in words; a measurement without a threshold has nothing to be supported by."""
    if claim.threshold is None and claim.verdict == "supported":
        return "measured"
    return _WORDS[claim.verdict]


def row(claim: Claim, anchor: str) -> str:
    """The claim as a list item."""
    word = verdict(claim)
    name = word.replace(" ", "-")
    value = "" if is_missing(claim.value) else text(estimate(claim.value, claim.low, claim.high))
    unit = f' <span class="soft">{text(claim.unit)}</span>' if claim.unit and value else ""
    return (
        f'<li class="claim" id="{anchor}"><span class="verdict {name}">{word}</span>'
        f'<div><p class="statement">{text(claim.statement or claim.title)}</p>{_details(claim)}</div>'
        f'<div class="measure"><p class="value">{value or MISSING}{unit}</p>{_bar(claim) if value else ""}</div></li>'
    )


def _details(claim: Claim) -> str:
    parts = []
    if claim.n:
        kind = "" if claim.samples == "none" else f" {claim.samples}"
        parts.append(f"n = {claim.n:,}".replace(",", "\u202f") + kind)
    elif claim.samples == "none" and not is_missing(claim.value):
        parts.append("no sampling interval")
    if claim.semantics:
        parts.append(claim.semantics)
    if claim.threshold is not None:
        parts.append(f"threshold: {claim.direction} {plain(claim.threshold)}")
    if claim.reason:
        parts.append(claim.reason)
    lines = " · ".join(map(text, parts))
    caption = f"<p>{text(claim.caption)}</p>" if claim.caption else ""
    return f'<div class="details">{f"<p>{lines}</p>" if lines else ""}{caption}</div>' if lines or caption else ""


def _bar(claim: Claim) -> str:
    """The interval on the claim's scale; the side on which it would support the claim is tinted."""
    low, high = claim.scale
    if not high > low or claim.value is None:
        return ""

    def at(value: float) -> float:
        return round(100 * min(1.0, max(0.0, (value - low) / (high - low))), 2)

    parts = []
    if claim.threshold is not None:
        t = at(claim.threshold)
        side = f"left:{t}%;right:0" if claim.direction == "above" else f"left:0;right:{100 - t:.2f}%"
        parts += [f'<i class="side" style="{side}"></i>', f'<i class="threshold" style="left:{t}%"></i>']
    ends = (claim.value, claim.value)
    if claim.low is not None and claim.high is not None and not math.isnan(claim.low + claim.high):
        ends = (claim.low, claim.high)
    start, stop = at(ends[0]), at(ends[1])
    parts.append(f'<i class="interval" style="left:{start}%;width:{stop - start:.2f}%"></i>')
    parts.append(f'<i class="point" style="left:{at(claim.value)}%"></i>')
    outside = min(claim.value, *ends) < low or max(claim.value, *ends) > high
    label = f"{estimate(claim.value, claim.low, claim.high)} on a scale from {plain(low)} to {plain(high)}"
    if claim.threshold is not None:
        label += f", threshold {plain(claim.threshold)}"
    if outside:
        label += "; reaches beyond the scale"
    ends_text = f"<span>{plain(low)}</span><span>{plain(high)}{' · off the scale' if outside else ''}</span>"
    return (
        f'<div class="bar" role="img" aria-label="{text(label)}">{"".join(parts)}</div>'
        f'<div class="ends" aria-hidden="true">{ends_text}</div>'
    )
