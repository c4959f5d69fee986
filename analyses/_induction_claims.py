"""The claims of the induction analysis. Every threshold stands here, before any model is looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from analyses._induction_study import Study
from analyses._words import judged
from workbench.analysis import judge
from workbench.behaviour import keeps, removed
from workbench.components import Head, part_names
from workbench.findings import Claim, Verdict
from workbench.head_scores import INDUCTION_RATIO, PREVIOUS_RATIO
from workbench.statistics import mean_interval

EXCESS_SHARE = 0.05
"""Loss above the ceiling counts as none below this share of ln V'."""


def claims(study: Study) -> list[Claim]:
    """All eight, in the order in which a reader should meet them."""
    return [
        loss_vs_ceiling(study),
        score_claim(study, "previous_token"),
        score_claim(study, "prefix_matching"),
        necessary(study, "previous_token", "S0", study.sets.s0),
        necessary(study, "induction", "S1", study.sets.s1),
        sufficient(study),
        k_path(study),
        sharing_claim(study),
    ]


def combined(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a conjunction: every part supported, or any part contradicted, or not decided."""
    if all(v == "supported" for v in verdicts):
        return "supported"
    return "contradicted" if "contradicted" in verdicts else "inconclusive"


def _claim(id: str, statement: str, **fields: Any) -> Claim:
    return Claim(id=f"induction.{id}", title=statement, statement=statement, **fields)


def loss_vs_ceiling(study: Study) -> Claim:
    """Loss above the Bayes predictor's on the same sequences, against 5 % of ln V'."""
    symbols = len(study.subject.vocabulary.ordinary)
    statement = (
        f"The model predicts nearly as well as anything could: its loss is within {EXCESS_SHARE:g} ln {symbols} of the "
        "Bayes ceiling"
    )
    shared: dict[str, Any] = {"unit": "nats", "threshold": EXCESS_SHARE * math.log(symbols), "direction": "below"}
    if study.excess is None:
        return _claim("loss_vs_ceiling", statement, reason="the task knows no Bayes predictor", **shared)
    at = mean_interval(study.excess)
    threshold = shared["threshold"]
    bound = "" if math.isfinite(at.low) else "; all sequences agree, and a loss has no bound to take an interval from"
    return _claim(
        "loss_vs_ceiling",
        statement,
        value=at.value,
        low=at.low,
        high=at.high,
        n=at.n,
        verdict=judge(at.low, at.high, threshold, "below"),
        reason=f"loss above the Bayes predictor's, mean over all positions; threshold {EXCESS_SHARE:g} ln "
        f"{symbols}{bound}",
        scale=(min(0.0, at.value), max(2 * threshold, at.high if math.isfinite(at.high) else at.value)),
        **shared,
    )


def score_claim(study: Study, score: str) -> Claim:
    """The chosen heads' score, as a ratio to chance, on sequences that did not choose them; the weakest decides."""
    sets = study.sets
    previous = score == "previous_token"
    chosen, threshold = (sets.s0, PREVIOUS_RATIO) if previous else (sets.s1, INDUCTION_RATIO)
    id, what = ("previous_token_heads", "previous-token") if previous else ("induction_heads", "induction")
    own = "attention to the keys that the task names, on its own sequences"
    matches = "prefix matching on varying periods" if study.periods else own
    measure = "attention to the previous token" if previous else matches
    shared: dict[str, Any] = {"unit": "× chance", "threshold": threshold, "direction": "above"}
    candidates = study.subject.heads
    if previous:
        if not sets.s1:
            reason = "there is no induction head, so no layer below one"
            return _claim(id, "There are previous-token heads below the induction heads", reason=reason, **shared)
        candidates = tuple(h for h in candidates if h.layer < max(sets.s1).layer)
        if not candidates:
            reason = "the induction heads are in layer 0: no layer lies below"
            return _claim(id, "There are previous-token heads below the induction heads", reason=reason, **shared)
    name = "previous_token_score" if previous else study.match
    chance = study.test.chance[name]
    value, (low, high) = study.test.mean(name) / chance, (end / chance for end in study.test.interval(name))
    if chosen:
        weakest = min(chosen, key=lambda h: value[h])
        verdict = combined([judge(low[h], high[h], threshold, "above") for h in chosen])
        plural = "s are" if len(chosen) > 1 else " is"
        statement = (
            f"{part_names(chosen)}: the {what} head{plural} there, with {measure} at least {threshold:g} × chance"
        )
        reason = f"chosen on other sequences; the interval is that of the weakest, {weakest}"
    else:
        weakest = max(candidates, key=lambda h: study.selection.mean(name)[h])
        verdict = judge(low[weakest], high[weakest], threshold, "above")
        statement = f"There are {what} heads: {measure} at least {threshold:g} × chance"
        reason = f"no head was chosen; the interval is that of the strongest on the selection sequences, {weakest}"
    return _claim(
        id,
        statement,
        heads=tuple(map(str, chosen)),
        value=float(value[weakest]),
        low=float(low[weakest]),
        high=float(high[weakest]),
        n=len(study.test.per_sequence[name]),
        verdict=verdict,
        reason=reason,
        scale=(0.0, max(1 / chance, float(high[weakest]), threshold * 1.2)),
        **shared,
    )


def _unmet(study: Study, heads: Sequence[Head], what: str) -> str:
    """Why a claim about a set cannot be judged, or ""."""
    if not heads:
        return f"{what} is empty: no head was chosen"
    if study.behaviour.verdict != "supported":
        return f"the behaviour is not there: clean {study.behaviour.reason}"
    return ""


def necessary(study: Study, id: str, name: str, heads: tuple[Head, ...]) -> Claim:
    """Joint mean ablation of the set removes the behaviour."""
    words = "previous-token" if name == "S0" else "induction"
    who = f" ({part_names(heads)})" if heads else ""
    statement = f"Without the {words} heads{who} the behaviour is gone"
    shared: dict[str, Any] = {"heads": tuple(map(str, heads)), "unit": "accuracy", "direction": "below"}
    if reason := _unmet(study, heads, name):
        return _claim(f"necessary_{id}", statement, reason=reason, **shared)
    effect = study.joint[name, "mean"]
    verdict = removed(effect.clean_accuracy, effect.ablated_accuracy, study.task.floor().accuracy)
    fields = shared | judged(verdict) | {"semantics": effect.intervention.semantics}
    return _claim(f"necessary_{id}", statement, **fields)


def sufficient(study: Study) -> Claim:
    """With every other head mean-ablated, at least 95 % of accuracy stays."""
    heads = study.circuit
    who = part_names(heads) if study.sets.s0 and study.sets.s1 else "The two sets"
    statement = f"{who} suffice: with every other head replaced, the behaviour stays"
    shared: dict[str, Any] = {"heads": tuple(map(str, heads)), "unit": "accuracy", "direction": "above"}
    reason = _unmet(study, study.sets.s0, "S0") or _unmet(study, study.sets.s1, "S1")
    if not reason and set(heads) == set(study.subject.heads):
        reason = "nothing is left out: the two sets are all heads of the model"
    if reason:
        return _claim("sufficient", statement, reason=reason, **shared)
    effect = study.joint["only S0 and S1", "mean"]
    fields = shared | judged(keeps(effect.clean_accuracy, effect.ablated_accuracy))
    return _claim("sufficient", statement, semantics=effect.intervention.semantics, **fields)


def k_path(study: Study) -> Claim:
    """Cutting S0's writes out of S1's keys removes the behaviour; out of its queries or values keeps it."""
    sets = study.sets
    statement = "The previous-token heads matter through the induction heads' keys, not their queries or values"
    shared: dict[str, Any] = {"heads": tuple(map(str, study.circuit)), "unit": "accuracy", "direction": "below"}
    reason = _unmet(study, sets.s0, "S0") or _unmet(study, sets.s1, "S1")
    if not reason and ("K cut", "mean") not in study.joint:
        config = study.subject.config
        reason = "a post-norm residual stream is no sum of writes" if config.norm == "post" else "there are no keys"
    if reason:
        return _claim("k_path", statement, reason=reason, **shared)
    cut = {kind: study.joint[f"{kind} cut", "mean"] for kind in "KQV"}
    key = removed(cut["K"].clean_accuracy, cut["K"].ablated_accuracy, study.task.floor().accuracy)
    kept = {kind: keeps(cut[kind].clean_accuracy, cut[kind].ablated_accuracy) for kind in "QV"}
    fields = shared | judged(key)
    fields["verdict"] = combined([key.verdict, kept["Q"].verdict, kept["V"].verdict])
    fields["reason"] = "; ".join(
        [f"K cut: {key.reason}", *(f"{kind} cut: {judgement.reason}" for kind, judgement in kept.items())]
    )
    return _claim("k_path", statement, semantics=cut["K"].intervention.semantics, **fields)


def sharing_claim(study: Study) -> Claim:
    """Over how many heads the work is shared: a measurement, without a threshold. The value is S1's."""
    shared: dict[str, Any] = {"unit": "heads", "threshold": None}
    reason = _unmet(study, study.sets.s1, "S1")
    at = study.sharing.get("S1")
    if not reason and (at is None or at.value is None):
        reason = at.reason if at is not None else "left out: the budget's seconds were over"
    if reason or at is None:
        return _claim("sharing", "Over how many heads the induction is shared", reason=reason, **shared)
    below = study.sharing.get("S0")
    back = ""
    if below is not None and below.value is not None:
        back = f", looking back over {below.value:.1f} of the {len(study.sets.s0)} previous-token heads"
    return _claim(
        "sharing",
        f"The induction is shared over {at.value:.1f} of the {len(study.sets.s1)} induction heads{back}",
        heads=tuple(map(str, study.circuit)),
        value=at.value,
        low=at.low,
        high=at.high,
        n=at.n,
        semantics=f"joint {study.reference.describe()} of subsets of S1",
        verdict="supported",
        reason=f"a measurement: it has no threshold to fail. {at.reason}".strip(),
        scale=(1.0, float(max(2, len(study.sets.s1)))),
        **shared,
    )
