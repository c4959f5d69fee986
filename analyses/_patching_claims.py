"""The claims of the activation patching analysis. Every threshold stands here, before any model is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from analyses._patching_study import Study
from workbench.analysis import judge
from workbench.findings import Answer, Claim
from workbench.patching import Shares, shares

MOST = 0.5
"""More than half of the way counts as most of it."""
AGREE = 0.8
"""Rank agreement from which an approximation may stand in for the exact values."""


def claims(study: Study) -> list[Claim]:
    """All three, in the order in which a reader should meet them."""
    return [crosses(study), one_head(study), approximation(study)]


def _claim(id: str, statement: str, **fields: Any) -> Claim:
    return Claim(id=f"activation_patching.{id}", title=statement, statement=statement, **fields)


def _share(study: Study, at: Shares, threshold: float) -> dict[str, Any]:
    value, low, high = (float(x) for x in at)
    return {
        "value": value,
        "low": low,
        "high": high,
        "n": len(study.twins.batch),
        "verdict": judge(low, high, threshold, "above"),
        "scale": (min(0.0, low), max(1.0, high)),
    }


def crosses(study: Study) -> Claim:
    """One layer brings most of the answer to where it is asked."""
    statement = f"What decides the answer reaches the position “{study.twins.answer}” in L{study.layer}"
    shared: dict[str, Any] = {"unit": "share restored", "threshold": MOST}
    if study.reason:
        return _claim("crosses", statement, reason=study.reason, **shared)
    sweep, places = study.residual["denoising"], list(study.twins.places)
    moves = sweep.moves.reshape(-1, len(places), sweep.moves.shape[1])[:, places.index(study.twins.answer)]
    before, after = moves[study.layer], moves[study.layer + 1]
    entering, leaving = (float(x.mean() / sweep.way.mean()) for x in (before, after))
    return _claim(
        "crosses",
        statement,
        reason=f"the residual stream there, from the sequence into its twin, restores {entering:.2f} as it enters "
        f"L{study.layer} and {leaving:.2f} as it leaves; the value is the rise. Of all layers the largest rise on "
        f"{study.selected_on} validation sequences",
        **_share(study, shares(after - before, sweep.way, bounds=(-1, 1)), MOST),
        **shared,
    )


def one_head(study: Study) -> Claim:
    """One head's output alone restores most of the answer."""
    statement = f"{study.head} alone carries most of the answer"
    shared: dict[str, Any] = {"unit": "share restored", "threshold": MOST, "heads": (str(study.head),)}
    if study.reason:
        return _claim("one_head", statement, reason=study.reason, **shared)
    at = study.heads.exact.shares
    index = study.whole(study.head)
    return _claim(
        "one_head",
        statement,
        semantics="z of the head at every position, from the sequence into its twin; all else computed anew",
        reason=f"of all heads the largest on {study.selected_on} validation sequences",
        **_share(study, Shares(at.value[index], at.low[index], at.high[index]), MOST),
        **shared,
    )


def approximation(study: Study) -> Claim:
    """The gradient ranks the heads as patching does."""
    statement = "The gradient approximation ranks the heads as exact patching does"
    shared: dict[str, Any] = {"unit": "rank correlation", "threshold": AGREE, "scale": (-1.0, 1.0)}
    reason = study.reason or ("there is one head" if len(study.subject.heads) == 1 else "")
    if reason:
        return _claim("approximation", statement, reason=reason, **shared)
    at = study.heads.rank_agreement([study.whole(head) for head in study.subject.heads])
    if not np.isfinite(at.value):
        return _claim("approximation", statement, reason="all heads have the same effect", **shared)
    bound = "; all sequences agree, so nothing bounds it" if (at.low, at.high) == (-1, 1) else ""
    return _claim(
        "approximation",
        statement,
        value=at.value,
        low=at.low,
        high=at.high,
        n=at.n,
        verdict=judge(at.low, at.high, AGREE, "above"),
        reason=f"Spearman's correlation over {len(study.subject.heads)} heads, z everywhere, denoising{bound}",
        **shared,
    )


def answer(study: Study, made: Sequence[Claim]) -> Answer:
    """The first screen's sentences, from the claims alone."""
    crossing, head, approximated = made
    place, value = f"“{study.twins.answer}”", _of(crossing)
    texts = {
        "supported": f"What decides the answer reaches {place} in L{study.layer} ({value} of it).",
        "contradicted": f"No single layer brings the answer to {place}: L{study.layer} does most, {value}.",
        "inconclusive": f"Whether one layer brings the answer to {place} is open (L{study.layer}: {value}).",
        "not_applicable": f"Nothing is said about where the answer stands: {study.reason}.",
    }
    heads = {
        "supported": f"**{study.head}** alone carries {_of(head)} of it.",
        "contradicted": f"No head carries most of it alone; **{study.head}** carries {_of(head)}.",
        "inconclusive": f"**{study.head}** carries {_of(head)} of it, perhaps most.",
    }
    guess = {
        "supported": "The gradient approximation ranks the heads alike.",
        "contradicted": "The gradient approximation ranks the heads otherwise: it cannot stand in for patching here.",
    }
    parts = (texts[crossing.verdict], heads.get(head.verdict, ""), guess.get(approximated.verdict, ""))
    return Answer(
        id="activation_patching.answer",
        title="Where does what decides the answer stand, layer by layer, and which heads carry it?",
        text=" ".join(part for part in parts if part),
    )


def _of(claim: Claim) -> str:
    return "" if claim.value is None else f"{claim.value:.2f}"
