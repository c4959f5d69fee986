"""Pairwise ablation: what two heads do together beyond what each does alone.

Single removals miss heads that stand in for each other, and count twice what two heads only do together. Every pair is
replaced by its means; the most redundant pair of validation sequences is judged on test sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analyses._definitions import definitions
from analyses._words import p_text
from workbench.analysis import Analysis, Budget, Progress, judge
from workbench.behaviour import Judgement, there
from workbench.components import Head, as_parts
from workbench.errors import WorkbenchError
from workbench.findings import Answer, Cell, Claim, Column, Finding, Heatmap, Notice, Panel, Table
from workbench.reference import build_reference
from workbench.subject import Subject
from workbench.sweep import Way, sweep
from workbench.task import Task

MARGIN = 0.05
"""Synergy or redundancy beyond this much accuracy counts."""
MOST_HEADS = 16
"""Pairs of more heads are left out: they would be more than 120."""
SHOWN = 10
SECTION = "Pairs of heads"
QUESTION = "Do heads stand in for each other?"
WORDS = ("accuracy", "behaviour there", "zero, mean, resample", "synergy, redundancy", "verdicts", "intervals")


@dataclass(frozen=True, eq=False)
class Study:
    """What was measured.

    Attributes:
        heads: whose pairs. left_out: heads beyond ``MOST_HEADS``, those that did least alone on validation sequences.
        pairs: one row a pair on the test sequences, as :meth:`workbench.sweep.Sweep.synergy` gives them, indexed by the
            names of both. chosen: the pair that is most redundant on validation sequences. semantics: of its removal.
    """

    behaviour: Judgement
    heads: tuple[Head, ...]
    left_out: tuple[Head, ...]
    reference: str
    semantics: str
    n: int
    pairs: pd.DataFrame
    chosen: tuple[str, str]


def conduct(subject: Subject, task: Task, budget: Budget, progress: Progress) -> Study:
    """Measure everything."""
    reference = build_reference(subject)
    few = subject.sample(budget.selection_samples, "validation", "pairwise ablation")
    heads, seed = subject.heads, subject.seed
    if len(heads) > MOST_HEADS:
        alone = sweep(subject, few, heads, Way("mean"), reference=reference)
        by_size = sorted(heads, key=lambda h: -abs(float(alone.change((h,), "loss").mean())))
        heads = tuple(sorted(by_size[:MOST_HEADS]))
    progress("pairs, selection")
    selection = sweep(subject, few, heads, Way("mean"), pairs=True, reference=reference).synergy("accuracy", seed=seed)
    progress("pairs")
    batch = subject.sample(budget.samples, "test", "pairwise ablation")
    swept = sweep(subject, batch, heads, Way("mean"), pairs=True, reference=reference)
    first = next(iter(swept.effects.values()))
    ceiling = task.ceiling()
    chosen = selection.set_index(["first", "second"])["synergy"].idxmin()
    return Study(
        behaviour=there(first.clean_accuracy, task.floor().accuracy, ceiling.accuracy if ceiling else None),
        heads=heads,
        left_out=tuple(h for h in subject.heads if h not in heads),
        reference=reference.describe(),
        semantics=swept.effects[as_parts(chosen)].intervention.semantics,
        n=swept.n,
        pairs=swept.synergy("accuracy", seed=seed).set_index(["first", "second"], drop=False),
        chosen=chosen,
    )


def claims(study: Study) -> list[Claim]:
    """The pair that is most redundant on validation sequences, judged on test sequences."""
    return [redundant(study)]


def redundant(study: Study) -> Claim:
    """Together the two cost more than the margin beyond what they cost in sum."""
    first, second = study.chosen
    row = study.pairs.loc[study.chosen]
    shared: dict[str, Any] = {
        "id": "pairwise_ablation.redundant", "unit": "Δ accuracy", "threshold": -MARGIN, "direction": "below",
        "scale": (-1.0, 1.0),
    }  # fmt: skip
    if study.behaviour.verdict != "supported":
        general = "Two heads cost more together than in sum"
        reason = f"the behaviour is not there: clean {study.behaviour.reason}"
        return Claim(title=general, statement=general, reason=reason, **shared)
    statement = f"{first} and {second} cost more together than in sum: removing one alone understates them"
    return Claim(
        title=statement,
        statement=statement,
        heads=(first, second),
        value=float(row["synergy"]),
        low=float(row["low"]),
        high=float(row["high"]),
        n=study.n,
        semantics=study.semantics,
        verdict=judge(float(row["low"]), float(row["high"]), -MARGIN, "below"),
        reason=f"chosen among {len(study.pairs)} pairs on validation sequences; together {row['joint']:+.3f}, alone "
        f"{row['alone']:+.3f} in sum; p {p_text(float(row['p_corrected']))}, corrected for all pairs (Holm)",
        **shared,
    )


def answer(study: Study, made: Sequence[Claim]) -> Answer:
    """From the verdict alone."""
    [claim] = made
    row = study.pairs.loc[study.chosen]
    who, beyond = " and ".join(f"**{name}**" for name in study.chosen), -float(row["synergy"])
    text = {
        "supported": f"{who} do in part: removed together they cost {beyond:.2f} of accuracy more than in sum.",
        "contradicted": f"No pair does: no two heads cost {MARGIN:g} of accuracy more together than in sum.",
        "inconclusive": "Not decided: the pair that seemed to on validation sequences straddles the threshold.",
        "not_applicable": "Not applicable: the model does not show the behaviour.",
    }[claim.verdict]
    if claim.verdict == "supported" and float(row["alone"]) > 0.5 * float(row["joint"]):
        text = f"{who} do: most of what they do ({-float(row['joint']):.2f} of accuracy) is missed by single removals."
    return Answer(id="pairwise_ablation.answer", title=QUESTION, text=text)


def figure(study: Study) -> Heatmap:
    """Synergy of every pair; a head with itself is no pair."""
    names = [str(h) for h in study.heads]
    values = np.full((len(names), len(names)), math.nan)
    for first, second, synergy in study.pairs[["first", "second", "synergy"]].itertuples(index=False):
        i, j = names.index(first), names.index(second)
        values[i, j] = values[j, i] = synergy
    largest = float(np.nanmax(np.abs(values))) or None
    return Heatmap(
        id="pairwise_ablation.map",
        section=SECTION,
        title="What each pair does beyond the sum of both alone",
        caption="Joint effect on accuracy minus the sum of the single effects; negative: single removals understate "
        "the two; positive: what one does needs the other, or accuracy has no more to lose. Means: "
        f"{study.reference}. {study.n} test sequences, paired.",
        panels=(Panel(title="", values=tuple(tuple(map(float, row)) for row in values)),),
        row_labels=tuple(names),
        column_labels=tuple(names),
        row_title="head",
        column_title="head",
        unit="Δ accuracy",
        kind="diverging",
        vmin=None if largest is None else -largest,
        vmax=largest,
        annotate=len(names) <= 8,
        width="half",
    )


def table(study: Study) -> Table:
    """The pairs that stand out, largest first."""
    order = study.pairs["synergy"].abs().sort_values(ascending=False, kind="stable").index[:SHOWN]
    keys = ("first", "second", "alone", "joint", "synergy", "low", "high", "p_corrected")
    rows: list[dict[str, Cell]] = [
        {key: str(v) if isinstance(v := study.pairs.loc[pair, key], str) else float(v) for key in keys}
        for pair in order
    ]
    return Table(
        id="pairwise_ablation.pairs",
        section=SECTION,
        title=f"The {len(rows)} pairs that stand out",
        caption="Effects on accuracy (ablated minus clean) of mean ablation, paired by sequence; intervals of the part "
        f"beyond the sum, over {study.n} test sequences; p by sign flips, corrected for {len(study.pairs)} pairs "
        "(Holm).",
        columns=(
            Column(key="first", label="head"),
            Column(key="second", label="and"),
            Column(key="alone", label="alone, in sum", digits=3, signed=True),
            Column(key="joint", label="together", digits=3, signed=True),
            Column(key="synergy", label="beyond the sum", digits=3, low="low", high="high", signed=True),
            Column(key="p_corrected", label="p (Holm)", digits=3),
        ),
        rows=tuple(rows),
    )


class PairwiseAblation(Analysis):
    """Redundancy and synergy of heads."""

    needs: ClassVar[tuple[str, ...]] = ("task",)

    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """Claims, the map and the table; a notice for a model of one head."""
        if subject.task is None:
            raise WorkbenchError("pairwise ablation needs a task", next_step="Give the Subject a task.")
        if len(subject.heads) < 2:
            text = "The model has one head: there are no pairs."
            return [Notice(id="pairwise_ablation.none", section=SECTION, title="No pairs", text=text)]
        study = conduct(subject, subject.task, budget, progress)
        made = claims(study)
        found: list[Finding] = [answer(study, made), *made, figure(study), table(study)]
        if study.left_out:
            names = ", ".join(map(str, study.left_out))
            text = f"In no pair here, since they did least alone on validation sequences: {names}."
            found.append(Notice(id="pairwise_ablation.left_out", section=SECTION, title="Heads left out", text=text))
        return [*found, *definitions(WORDS)]


ANALYSIS = PairwiseAblation()
