"""Direct writes by head and by term; what the residual stream says by layer; how well the sums hold."""

from __future__ import annotations

import math

import numpy as np

from analyses._attribution_study import Study
from analyses._heads import by_head
from workbench.attribution import TOLERANCE, LogitAttribution, LogitLens
from workbench.findings import Cell, Column, Curve, Finding, Heatmap, Notice, Panel, Rule, Series, Table
from workbench.statistics import mean_intervals

DIRECT, LENS = "What is written towards the answer directly", "What the residual stream says on its way"


def figures(study: Study) -> list[Finding]:
    """All figures, in order."""
    found: list[Finding] = []
    if study.test is None:
        text = f"It needs a residual stream that is a sum: {study.reason}. The logit lens stands on its own."
        title = "Direct logit attribution does not apply"
        found.append(Notice(id="logit_attribution.unfit", section=DIRECT, title=title, text=text))
    else:
        found += [_heads(study, study.test), _terms(study, study.test)]
    if study.scaled and study.frozen is None:
        text = "The budget's seconds were over before the logit lens was read with the final scale; more would show it."
        title = "Left out for time"
        found.append(Notice(id="logit_attribution.no_frozen", section=LENS, title=title, text=text, level="warning"))
    return [*found, *_curves(study), _lens_table(study), _checks(study)]


def _heads(study: Study, test: LogitAttribution) -> Heatmap:
    config = study.subject.config
    values = np.stack([test.of(head) for head in study.subject.heads], axis=1)
    shape = (config.n_layers, config.n_heads)
    grids = [tuple(map(tuple, x.reshape(shape).tolist())) for x in (values.mean(axis=0), *mean_intervals(values))]
    chosen = study.strongest
    return by_head(
        config,
        id="logit_attribution.heads",
        section=DIRECT,
        title="What each head writes towards the answer directly",
        caption=f"{test.quantity.capitalize()}: the head's write, without its share of the value bias, on that "
        "direction, with the final norm's scale held. Mean over scored positions, then over "
        f"{len(test.total)} test sequences; 95 % intervals over them. Outlined: the largest on validation sequences.",
        panels=(Panel(title="", values=grids[0], low=grids[1], high=grids[2]),),
        unit="logits",
        kind="diverging",
        width="half",
        marks=() if chosen is None else ((0, chosen.layer, chosen.head),),
    )


def _terms(study: Study, test: LogitAttribution) -> Table:
    rows: list[dict[str, Cell]] = [
        {"term": row.term, "what": _meaning(row.term), "value": row.value, "low": row.low, "high": row.high}
        for row in test.frame().itertuples()
    ]
    chosen = [i for i, row in enumerate(rows) if row["term"] == str(study.strongest)]
    return Table(
        id="logit_attribution.terms",
        section=DIRECT,
        title="Every term of the answer's logit",
        caption=f"{test.quantity.capitalize()}, as the sum of everything that was written into the residual stream; "
        "the last row is the model's own value, which the terms add up to. What a head does through later layers is "
        f"not in its term. Mean over scored positions, then over {len(test.total)} test sequences; 95 % intervals "
        "over them.",
        columns=(
            Column(key="term", label="term"),
            Column(key="what", label="what it is"),
            Column(key="value", label="logits", digits=3, low="low", high="high", signed=True),
        ),
        rows=tuple(rows),
        marked=(*chosen, len(rows) - 1),
    )


def _meaning(term: str) -> str:
    fixed = {
        "embed": "the token's embedding",
        "pos_embed": "the position's embedding",
        "ln_final.b": "the final norm's shift",
        "sum": "the model's own value",
    }
    if term in fixed:
        return fixed[term]
    layer, _, part = term.partition(".")
    parts = {"b_V": "the value biases of all its heads", "b_O": "the attention's output bias", "mlp": "MLP, with bias"}
    return f"{layer}: {parts.get(part, 'a head, without its value bias')}"


def _curves(study: Study) -> list[Finding]:
    floor, d_vocab = study.task.floor().accuracy, study.subject.config.d_vocab
    shared = "Final norm and unembedding applied to the residual stream after so many blocks (halves: between "
    shared += "attention and MLP); the last point is the model itself. 95 % band over test sequences."
    return [
        Curve(
            id="logit_attribution.lens_accuracy",
            section=LENS,
            title="Where the answer comes first",
            caption=shared,
            x_label="blocks passed",
            y_label="accuracy",
            series=_series(study, "accuracy"),
            rules=(Rule(label="floor", value=floor),),
            y_range=(0.0, 1.0),
            width="half",
        ),
        Curve(
            id="logit_attribution.lens_log_prob",
            section=LENS,
            title="How likely the answer is",
            caption=shared,
            x_label="blocks passed",
            y_label="log-probability of the answer (nats)",
            series=_series(study, "log_prob"),
            rules=(Rule(label="every token alike", value=-math.log(d_vocab)),),
            width="half",
        ),
    ]


def _lenses(study: Study) -> list[tuple[str, LogitLens]]:
    own = ("own scale" if study.scaled else "no final norm", study.lens)
    return [own] if study.frozen is None else [own, ("final scale", study.frozen)]


def _intervals(lens: LogitLens, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means by stop and the ends of their intervals; no end where nothing bounds it."""
    values = lens.accuracy if metric == "accuracy" else lens.log_prob
    ends = mean_intervals(values, bounds=(0, 1) if metric == "accuracy" else None)
    low, high = (np.where(np.isfinite(end), end, np.nan) for end in ends)
    return values.mean(axis=0), low, high


def _series(study: Study, metric: str) -> tuple[Series, ...]:
    made = []
    for index, (name, lens) in enumerate(_lenses(study)):
        y, low, high = (tuple(map(float, x)) for x in _intervals(lens, metric))
        made.append(Series(name=name, x=lens.depth, y=y, low=low, high=high, emphasis=index == 0))
    return tuple(made)


def _lens_table(study: Study) -> Table:
    rows: list[dict[str, Cell]] = [{"stop": stop} for stop in study.lens.stops]
    columns = [Column(key="stop", label="after")]
    metrics = (("accuracy", "accuracy", 3), ("log_prob", "log-prob.", 2))
    for key, (name, lens) in zip(("own", "final"), _lenses(study), strict=False):
        for metric, label, digits in metrics:
            id = f"{key}_{metric}"
            for row, *at in zip(rows, *_intervals(lens, metric), strict=True):
                row |= dict(zip((id, f"{id}_low", f"{id}_high"), map(float, at), strict=True))
            columns.append(Column(key=id, label=f"{label}, {name}", digits=digits, low=f"{id}_low", high=f"{id}_high"))
    return Table(
        id="logit_attribution.lens",
        section=LENS,
        title="The logit lens in numbers",
        caption="“embed” is what enters the first block, “L0.mid” stands between its attention and its MLP, “L0” is "
        f"what leaves it. {len(study.lens.accuracy)} test sequences, 95 % intervals over them.",
        columns=tuple(columns),
        rows=tuple(rows),
    )


def _checks(study: Study) -> Notice:
    found = [] if study.test is None else [f"the sum of all terms to within {study.test.deviation:.0e}"]
    found.append(f"the last row of the logit lens to within {study.lens.deviation:.0e}")
    return Notice(
        id="logit_attribution.checks",
        section=LENS,
        title="Checked against the model's own logits",
        text=f"In float64, relative to the largest of them: {', '.join(found)}. More than {TOLERANCE:g} would have "
        "been an error.",
    )
