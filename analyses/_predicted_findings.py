"""Claims about rank agreement, the table of predictions beside effects, and the agreement of each with each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from analyses._predicted_rules import DIRECT_HIGH, EFFECT, OV_HIGH, Verdict
from analyses._predicted_study import WAYS, Study
from analyses._rank_agreement import FEWEST, Agreement, agreement
from workbench.analysis import judge
from workbench.findings import Answer, Cell, Claim, Column, Finding, Notice, Table
from workbench.head_scores import INDUCTION_RATIO, KEYS, PREVIOUS_RATIO, matching
from workbench.statistics import mean_intervals

AGREES = 0.5
"""Spearman's rho above this: the prediction puts the heads in much the order of their effects."""

SECTION = "Predictions beside effects"

PREDICTIONS = {"ov": "OV eigenvalue copying", "attention": "attention scores", "direct": "direct logit attribution"}


def prediction(study: Study, name: str) -> tuple[np.ndarray | None, str]:
    """A prediction for every head, by sequence, or the reason why there is none."""
    if name == "ov":
        return (None, "a bridged model's weights are not read") if study.ov is None else (study.ov[None], "")
    if name == "attention":
        return study.attention, "" if study.probed.scores else study.probed.words
    return study.written, study.no_direct


def agree(study: Study, name: str, way: str) -> Agreement | None:
    """How a prediction's order of the heads agrees with that of the loss that removing them costs."""
    values, _ = prediction(study, name)
    return None if values is None else agreement(values, study.loss(way), seed=study.subject.seed)


def claims(study: Study) -> list[Claim]:
    """One a prediction."""
    return [_claim(study, name) for name in PREDICTIONS]


def _claim(study: Study, name: str) -> Claim:
    statement = f"{PREDICTIONS[name][0].upper()}{PREDICTIONS[name][1:]} ranks the heads much as removing them does"
    if name == "attention":
        statement = statement.replace("ranks", "rank")
    shared: dict[str, Any] = {"threshold": AGREES, "unit": "Spearman's rho", "scale": (-1.0, 1.0)}
    shared |= {"id": f"predicted_vs_causal.{name}", "title": statement, "statement": statement}
    values, reason = prediction(study, name)
    if study.behaviour.verdict != "supported":
        reason = f"the behaviour is not there: clean {study.behaviour.reason}"
    elif values is not None and len(study.heads) < FEWEST:
        reason = f"the order of {len(study.heads)} heads says nothing"
    found = None if reason else agree(study, name, "mean")
    if found is None:
        return Claim(**shared, reason=reason or "all heads tie")
    at = found.spearman
    return Claim(
        **shared,
        value=at.value,
        low=at.low,
        high=at.high,
        n=at.n,
        verdict=judge(at.low, at.high, AGREES, "above"),
        semantics=f"z of one head at a time replaced by its {study.reference.describe()}",
        reason=f"over {len(study.heads)} heads, with the rise of the loss; Kendall's tau {found.kendall.value:.2f} "
        f"[{found.kendall.low:.2f}, {found.kendall.high:.2f}]. The interval holds sequences, not other heads",
    )


def answer(study: Study, judged: Sequence[Verdict]) -> Answer:
    """The first screen's sentences, from the rules alone."""
    against = [verdict for verdict in judged if verdict.contradictions]
    if study.behaviour.verdict != "supported":
        text = "The model does not show the behaviour, so its heads' effects say nothing about predictions."
    elif not against:
        text = f"For none of the {len(judged)} heads do predictions and effects contradict each other."
    else:
        named = "; ".join(f"**{verdict.head}** {verdict.contradictions[0].sentence}" for verdict in against)
        text = f"For {len(against)} of {len(judged)} heads they contradict each other: {named}."
    title = "Do scores say which heads matter?"
    return Answer(id="predicted_vs_causal.answer", title=title, text=text)


def tables(study: Study, judged: Sequence[Verdict]) -> list[Finding]:
    """What could not be predicted, the table of heads, and that of agreement."""
    missing = {PREDICTIONS[name]: prediction(study, name) for name in PREDICTIONS}
    made: list[Finding] = []
    if left_out := [f"{name} ({reason})" for name, (values, reason) in missing.items() if values is None]:
        title, text = "Columns left out", f"{'; '.join(left_out)}."
        made.append(Notice(id="predicted_vs_causal.left_out", section=SECTION, title=title, text=text))
    return [*made, _heads(study, judged), *_marks(judged), _agreement(study)]


def _heads(study: Study, judged: Sequence[Verdict]) -> Table:
    scores, written = study.probed.scores, study.written
    columns = [Column(key="head", label="head"), Column(key="marks", label="marks", help="spelt out below")]
    cells: dict[str, np.ndarray] = {}
    if study.ov is not None:
        cells["ov"] = study.ov
        columns.append(Column(key="ov", label="OV", digits=2, signed=True, help="OV eigenvalue copying, from weights"))
    if scores is not None:
        match = matching(scores)
        what = "keys" if match == KEYS else "prefix"
        for key, score, label in (("previous", "previous_token_score", "previous"), ("match", match, what)):
            cells[key] = study.ratio(score).mean(axis=0)
            columns.append(Column(key=key, label=f"{label} ×", digits=1, help=f"times chance, on {study.probed.words}"))
    if study.direct is not None and written is not None:
        cells["direct"] = written.mean(axis=0)
        cells["direct_low"], cells["direct_high"] = _finite(written)
        ends = {"low": "direct_low", "high": "direct_high"}
        whole = f"{study.direct.quantity}, {study.direct.total.mean():.2f} in all"
        columns.append(Column(key="direct", label="direct", digits=2, signed=True, help=whole, **ends))
    ways = [way for way in WAYS if way in study.effects]
    columns += [
        Column(key=way, label=f"Δ {WAYS[way]}", digits=3, low=f"{way}_low", high=f"{way}_high", signed=True)
        for way in ways
    ]
    loss = study.loss("mean")
    cells["loss"] = loss.mean(axis=0)
    columns += [
        Column(key="loss", label="Δ loss, mean", digits=3, signed=True, help="nats; what heads are ranked by"),
    ]
    rows: list[dict[str, Cell]] = []
    for index, verdict in enumerate(judged):
        row: dict[str, Cell] = {"head": str(verdict.head)}
        row |= {key: float(values[index]) for key, values in cells.items()}
        for way in ways:
            at = verdict.effects[way]
            row |= {way: at.value, f"{way}_low": at.low, f"{way}_high": at.high}
        row["marks"] = ", ".join(mark.word for mark in (*verdict.contradictions, *verdict.remarks))
        rows.append(row)
    return Table(
        id="predicted_vs_causal.heads",
        section=SECTION,
        title="Every head: what predicts that it matters, and what removing it does",
        caption=_rules(study),
        columns=tuple(columns),
        rows=tuple(rows),
        marked=tuple(i for i, verdict in enumerate(judged) if verdict.contradictions),
    )


def _marks(judged: Sequence[Verdict]) -> list[Table]:
    """What stands in a word in the table of heads, as sentences; none where there is nothing to say."""
    rows: list[dict[str, Cell]] = []
    for verdict in judged:
        kinds = (("contradiction", verdict.contradictions), ("remark", verdict.remarks))
        rows += [
            {"head": str(verdict.head), "mark": mark.word, "kind": kind, "what": mark.sentence}
            for kind, marks in kinds
            for mark in marks
        ]
    if not rows:
        return []
    columns = {"head": "head", "mark": "mark", "kind": "kind", "what": "what it says"}
    return [
        Table(
            id="predicted_vs_causal.marks",
            section=SECTION,
            title="The marks, spelt out",
            caption="By the rules above, for each head. A remark is a difference between two ways of removing a head "
            "that their meaning explains.",
            columns=tuple(Column(key=key, label=label) for key, label in columns.items()),
            rows=tuple(rows),
        )
    ]


def _finite(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the intervals of means; nan where nothing bounds them."""
    low, high = (np.where(np.isfinite(end), end, np.nan) for end in mean_intervals(values))
    return low, high


def _rules(study: Study) -> str:
    n = study.behaviour.n
    padded = "" if "resample" in study.effects else " Padded sequences are not resampled."
    return (
        f"Effects are ablated minus clean (Δ: accuracy), one head at a time, {n} test sequences, 95 % intervals, "
        f"paired; the mean is the {study.reference.describe()}.{padded} Rows set off hold contradictions, by rules "
        f"fixed beforehand. Predicted: OV at least {OV_HIGH:g} either way, previous token at least {PREVIOUS_RATIO:g} "
        f"× chance, prefix matching or induction keys at least {INDUCTION_RATIO:g} × chance, a direct write of at "
        f"least {DIRECT_HIGH:g} of the whole either way. An effect: accuracy's interval beyond {EFFECT:g}, either way; "
        "none: within it. Contradictions: predicted, and no effect (mean); an effect (mean) that nothing predicts; the "
        "sign of the direct write; self-repair (zero none, with patterns held an effect); ablations that disagree."
    )


def _agreement(study: Study) -> Table:
    rows: list[dict[str, Cell]] = []
    ways = [way for way in WAYS if way in study.effects]
    for name, label in PREDICTIONS.items():
        row: dict[str, Cell] = {"prediction": label}
        for way in ways:
            found = agree(study, name, way)
            for key, at in (("rho", found and found.spearman), ("tau", found and found.kendall)):
                if key == "rho" or way == "mean":
                    keys = (f"{way}_{key}", f"{way}_{key}_low", f"{way}_{key}_high")
                    row |= dict(zip(keys, (at.value, at.low, at.high) if at else (None, None, None), strict=True))
        rows.append(row)
    columns = [Column(key="prediction", label="prediction")]
    for key, label in [*((f"{way}_rho", f"ρ, {WAYS[way]}") for way in ways), ("mean_tau", "τ, mean")]:
        columns.append(Column(key=key, label=label, digits=2, low=f"{key}_low", high=f"{key}_high", signed=True))
    return Table(
        id="predicted_vs_causal.agreement",
        section=SECTION,
        title="How alike predictions and effects rank the heads",
        caption="Spearman's ρ and Kendall's τ-b over all heads, between a prediction and the rise of the loss when one "
        "head is removed, by way of removing it; attention is the higher of its two ratios. Signed: a head that "
        "copies, or writes towards the answer, should be missed, one that does the reverse should be better gone. 95 % "
        f"intervals by bootstrap over {study.behaviour.n} test sequences, at least one swap of neighbours wide; they "
        "say nothing of other heads.",
        columns=tuple(columns),
        rows=tuple(rows),
    )
