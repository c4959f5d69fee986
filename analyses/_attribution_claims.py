"""The claims of the logit attribution analysis. Every threshold stands here, before any model is looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from analyses._attribution_study import Study
from analyses._words import judged
from workbench.analysis import judge
from workbench.attribution import TOLERANCE
from workbench.behaviour import removed
from workbench.findings import Answer, Claim
from workbench.statistics import mean_interval


def claims(study: Study) -> list[Claim]:
    """All four, in the order in which a reader should meet them."""
    return [accuracy(study), sums_up(study), strongest_head(study), last_block(study)]


def _claim(id: str, statement: str, **fields: Any) -> Claim:
    return Claim(id=f"logit_attribution.{id}", title=statement, statement=statement, **fields)


def _unmet(study: Study) -> str:
    if study.behaviour.verdict != "supported":
        return f"the behaviour is not there: clean {study.behaviour.reason}"
    return ""


def accuracy(study: Study) -> Claim:
    """The behaviour that is attributed is there."""
    return _claim("accuracy", "The model gives the answers", **judged(study.behaviour))


def sums_up(study: Study) -> Claim:
    """All terms together are the model's own logits. A larger deviation is an error before it is a claim."""
    statement = "Everything that is written adds up to the model's own logits"
    shared: dict[str, Any] = {"threshold": TOLERANCE, "direction": "below", "samples": "none"}
    shared |= {"unit": "relative deviation", "scale": (0.0, 2 * TOLERANCE)}
    if study.test is None:
        return _claim("sums_up", statement, reason=study.reason, **shared)
    return _claim(
        "sums_up",
        statement,
        value=study.test.deviation,
        n=len(study.test.total),
        verdict=judge(study.test.deviation, study.test.deviation, TOLERANCE, "below"),
        reason=f"{len(study.test.terms)} terms, in float64; largest deviation at any scored position of the test "
        f"sequences; {study.test.quantity}",
        **shared,
    )


def strongest_head(study: Study) -> Claim:
    """The head that writes most towards the answer on validation sequences does so on test sequences."""
    shared: dict[str, Any] = {"threshold": 0.0, "direction": "above", "unit": "logits"}
    reason = study.reason or _unmet(study)
    if reason or study.test is None or study.strongest is None:
        return _claim("strongest_head", "A head writes towards the answer directly", reason=reason, **shared)
    head, values = study.strongest, study.test.of(study.strongest)
    at, total = mean_interval(values), float(np.mean(study.test.total))
    bound = "" if math.isfinite(at.low) else "; all sequences agree, and a logit has no bound to take an interval from"
    ends = [end for end in (0.0, total, at.value, at.low, at.high) if math.isfinite(end)]
    return _claim(
        "strongest_head",
        f"{head} writes towards the answer directly",
        heads=(str(head),),
        value=at.value,
        low=at.low,
        high=at.high,
        n=at.n,
        verdict=judge(at.low, at.high, 0.0, "above"),
        reason=f"{study.test.quantity}, {total:.2f} in all; of all heads the largest on {study.selected_on} validation "
        f"sequences{bound}",
        scale=(min(ends), max(ends)),
        **shared,
    )


def last_block(study: Study) -> Claim:
    """What enters the last block does not tell the answer yet."""
    statement = "Before the last block the answer cannot be read from the residual stream"
    if reason := _unmet(study):
        return _claim("last_block", statement, unit="accuracy", direction="below", reason=reason)
    lens = study.lens
    before = lens.depth.index(study.subject.config.n_layers - 1.0)
    gone = removed(lens.accuracy[:, -1], lens.accuracy[:, before], study.task.floor().accuracy)
    fields = judged(gone) | {"reason": f"the logit lens at {lens.stops[before]!r}: {gone.reason}"}
    return _claim("last_block", statement, **fields)


def answer(study: Study, made: Sequence[Claim]) -> Answer:
    """The first screen's sentences, from the claims alone."""
    by_id = {claim.id.removeprefix("logit_attribution."): claim for claim in made}
    head, last = by_id["strongest_head"], by_id["last_block"]
    if study.test is None:
        direct = f"Direct attribution does not apply: {study.reason}."
    elif head.verdict == "not_applicable" or head.value is None:
        direct = "The model does not give the answers, so nothing is said about what writes them."
    else:
        whole = float(np.mean(study.test.total))
        verb = {"supported": "writes", "contradicted": "does not write"}.get(head.verdict, "may write")
        direct = (
            f"**{head.heads[0]}** {verb} towards the answer directly: {head.value:.2f} of {whole:.2f} "
            f"({study.test.quantity})."
        )
    read = {
        "supported": "Before the last block the answer cannot be read from the residual stream.",
        "contradicted": "The answer can be read from the residual stream before the last block.",
        "inconclusive": "Whether the answer can be read before the last block is open.",
        "not_applicable": "",
    }[last.verdict]
    return Answer(
        id="logit_attribution.answer",
        title="What writes the answer into the logits, and from where on is it there?",
        text=" ".join(part for part in (direct, read) if part),
    )
