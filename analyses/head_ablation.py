"""Head ablation: what each head and MLP does, removed alone, and whether the rest is idle.

Every part is replaced under each semantics; parts are chosen on validation sequences and judged on test sequences, some
by a test corrected for their number, the rest together by an equivalence test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from analyses._definitions import definitions
from analyses._heads import by_head
from analyses._words import p_text
from workbench.ablation import Mean
from workbench.analysis import Analysis, Budget, Progress, judge
from workbench.behaviour import Judgement, there
from workbench.components import Head, Part, all_parts, part_names
from workbench.errors import WorkbenchError
from workbench.findings import Answer, Cell, Claim, Column, Finding, Heatmap, Panel, Table
from workbench.measure import Effect, measure
from workbench.metrics import incorrect_answers
from workbench.reference import build_reference
from workbench.statistics import equivalence
from workbench.subject import Subject
from workbench.sweep import Sweep, Way, sweep
from workbench.task import Task

MARGIN = 0.05
"""A change of accuracy below this, either way, counts as nothing; a part that matters takes more."""
LEVEL = 0.05
SECTION = "Every part, removed alone"
QUESTION = "Which parts does the behaviour need?"
WORDS = (
    "accuracy",
    "behaviour there",
    "zero, mean, resample",
    "frozen patterns",
    "matters, idle",
    "smallest visible effect",
    "verdicts",
    "intervals",
)
WAYS = {
    "zero": Way("zero"),
    "mean": Way("mean"),
    "resample": Way("resample"),
    "zero, frozen": Way("zero", frozen_patterns=True),
}


@dataclass(frozen=True, eq=False)
class Study:
    """What was measured.

    Attributes:
        sweeps: of the test sequences, by way. chosen: the part that seems to matter most on validation sequences, or
            None. rest: the parts that show nothing there. together: their joint removal on the test sequences.
    """

    subject: Subject
    task: Task
    behaviour: Judgement
    reference: str
    sweeps: dict[str, Sweep]
    chosen: Part | None
    rest: tuple[Part, ...]
    together: Effect | None


def conduct(subject: Subject, task: Task, budget: Budget, progress: Progress) -> Study:
    """Measure everything."""
    parts = all_parts(subject.config)
    reference = build_reference(subject)
    progress("selection")
    few = subject.sample(budget.selection_samples, "validation", "head ablation")
    selection = sweep(subject, few, parts, Way("mean"), reference=reference)
    singles = [(part,) for part in parts]
    effect = np.array([selection.change(one, "accuracy").mean() for one in singles])
    p = selection.corrected("accuracy", singles, seed=subject.seed)
    matters = (p < LEVEL) & (np.abs(effect) >= MARGIN)
    rest = tuple(part for part, seen in zip(parts, matters, strict=True) if not seen)

    progress("every part")
    batch = subject.sample(budget.samples, "test", "head ablation")
    incorrect = incorrect_answers(task, batch)
    # A padded sequence has nothing to give at the last positions of a longer one.
    ways = {name: way for name, way in WAYS.items() if way.kind != "resample" or bool(batch.mask.all())}
    sweeps = {
        name: sweep(subject, batch, parts, way, reference=reference, incorrect=incorrect) for name, way in ways.items()
    }
    together = measure(subject, batch, [Mean(rest, reference)])[0] if rest else None
    clean = sweeps["mean"].effects[singles[0]].clean_accuracy
    ceiling = task.ceiling()
    return Study(
        subject=subject,
        task=task,
        behaviour=there(clean, task.floor().accuracy, ceiling.accuracy if ceiling else None),
        reference=reference.describe(),
        sweeps=sweeps,
        chosen=parts[int(np.argmin(effect))] if matters.any() else None,
        rest=rest,
        together=together,
    )


def claims(study: Study) -> list[Claim]:
    """Some part matters; the parts that show nothing alone are idle together while the others are there."""
    return [some_part(study), idle(study)]


def _claim(id: str, statement: str, **fields: Any) -> Claim:
    return Claim(id=f"head_ablation.{id}", title=statement, statement=statement, **fields)


def _unmet(study: Study) -> str:
    return (
        "" if study.behaviour.verdict == "supported"
        else f"the behaviour is not there: clean {study.behaviour.reason}"
    )  # fmt: skip


def some_part(study: Study) -> Claim:
    """The part whose removal costs most on validation sequences costs more than the margin on test sequences."""
    shared: dict[str, Any] = {
        "unit": "Δ accuracy", "threshold": -MARGIN, "direction": "below", "scale": (-1.0, 0.25),
    }  # fmt: skip
    swept = study.sweeps["mean"]
    # Where nothing was chosen, the part that costs most on the test sequences themselves: it flatters the claim.
    part = study.chosen or min(swept.effects, key=lambda one: swept.change(one, "accuracy").mean())[0]
    statement = f"{part} matters alone: without it accuracy falls by more than {MARGIN:g}"
    if reason := _unmet(study):
        return _claim("some_part", "Some part matters alone", reason=reason, **shared)
    at = swept.interval((part,), "accuracy")
    p = swept.corrected("accuracy", list(swept.effects), seed=study.subject.seed)[list(swept.effects).index((part,))]
    how = (
        "chosen on validation sequences" if study.chosen else "no part was chosen on validation sequences; the largest"
    )
    return _claim(
        "some_part",
        statement,
        heads=(str(part),),
        value=at.value,
        low=at.low,
        high=at.high,
        n=at.n,
        semantics=swept.effects[part,].intervention.semantics,
        verdict=judge(at.low, at.high, -MARGIN, "below"),
        reason=f"{how}; p {p_text(p)} by sign flips, corrected for {len(swept.effects)} parts (Holm)",
        **shared,
    )


def idle(study: Study) -> Claim:
    """The parts that show nothing alone, removed together, change accuracy by less than the margin."""
    shared: dict[str, Any] = {
        "heads": tuple(map(str, study.rest)), "unit": "Δ accuracy", "threshold": -MARGIN, "direction": "above",
        "scale": (-1.0, 0.25),
    }  # fmt: skip
    many = f"{len(study.rest)} parts that show" if len(study.rest) > 1 else "one part that shows"
    do = "do" if len(study.rest) > 1 else "does"
    statement = f"The {many} nothing alone {do} nothing together while the others are there"
    reason = _unmet(study) or ("" if study.together else "every part shows something alone: there is no rest")
    if reason or study.together is None:
        return _claim("idle", "The rest is idle while the others are there", reason=reason, **shared)
    found = equivalence(study.together.accuracy_effect, MARGIN, bounds=(-1, 1), seed=study.subject.seed)
    at = found.interval
    return _claim(
        "idle",
        statement,
        value=at.value,
        low=at.low,
        high=at.high,
        n=at.n,
        semantics=study.together.intervention.semantics,
        verdict=found.verdict,
        reason=f"{part_names(study.rest)}, by validation sequences; equivalence within ±{MARGIN:g} (Schuirmann 1987)",
        **shared,
    )


def answer(study: Study, made: Sequence[Claim]) -> Answer:
    """From the verdicts alone."""
    verdicts = {claim.id.rpartition(".")[2]: claim.verdict for claim in made}
    rest = {
        "supported": "The parts that show nothing alone do nothing together, while the others are there.",
        "contradicted": "The parts that show nothing alone do matter together: single removals miss them.",
        "inconclusive": "Whether the parts that show nothing alone are idle together is not decided.",
        "not_applicable": "",
    }[verdicts["idle"]]
    if verdicts["some_part"] == "not_applicable":
        text = "Not applicable: the model does not show the behaviour."
    elif verdicts["some_part"] == "supported":
        p = study.sweeps["mean"]
        strong = [one[0] for one in p.effects if p.interval(one, "accuracy").high < -MARGIN]
        text = f"Removed alone, {_bold(strong)} each cost more than {MARGIN:g} of accuracy. {rest}"
    else:
        text = f"No single part was shown to cost more than {MARGIN:g} of accuracy. {rest}"
    return Answer(id="head_ablation.answer", title=QUESTION, text=text.strip())


def _bold(parts: Sequence[Part]) -> str:
    return ", ".join(f"**{part}**" for part in parts)


def figure(study: Study) -> Heatmap:
    """Change in loss, by head and way; the scale is that of the largest."""
    config = study.subject.config
    panels, largest = [], 0.0
    for name, swept in study.sweeps.items():
        values = np.array(
            [
                [swept.change((Head(layer, h),), "loss").mean() for h in range(config.n_heads)]
                for layer in range(config.n_layers)
            ]
        )
        largest = max(largest, float(np.abs(values).max()))
        panels.append(Panel(title=name, values=tuple(tuple(map(float, row)) for row in values)))
    return by_head(
        config,
        id="head_ablation.loss",
        section=SECTION,
        title="What each removal does to the loss",
        caption="Change in loss at scored positions (ablated minus clean, nats) when one head's output is replaced: by "
        f"zero, by its {study.reference}, by that of another sequence, by zero with every pattern held. "
        f"{study.sweeps['mean'].n} test sequences, paired; intervals are in the table.",
        panels=tuple(panels),
        unit="Δ loss (nats)",
        kind="diverging",
        vmin=-largest or None,
        vmax=largest or None,
    )


def table(study: Study) -> Table:
    """Every part under mean ablation, on each metric."""
    swept = study.sweeps["mean"]
    frame = swept.frame(seed=study.subject.seed).set_index(["component", "metric"])
    rows: list[dict[str, Cell]] = []
    for one in swept.effects:
        name = part_names(one)
        row: dict[str, Cell] = {"part": name, "fired": str(frame.loc[(name, "accuracy"), "fired"])}
        for metric in swept.metrics:
            key = metric.replace(" ", "_")
            at = frame.loc[(name, metric)]
            row |= {key: float(at["effect"])}
            row |= {f"{key}_{end}": float(at[end]) if math.isfinite(at[end]) else None for end in ("low", "high")}
        row |= {"p_corrected": float(frame.loc[(name, "accuracy"), "p_corrected"])}
        row |= {"smallest_visible": float(frame.loc[(name, "accuracy"), "smallest_visible"])}
        rows.append(row)
    columns = [Column(key="part", label="removed")]
    for metric in swept.metrics:
        key = metric.replace(" ", "_")
        columns.append(
            Column(key=key, label=f"Δ {metric}", digits=3, low=f"{key}_low", high=f"{key}_high", signed=True)
        )
    columns += [
        Column(key="p_corrected", label="p (Holm)", digits=3, help="accuracy, sign flips, corrected for all parts"),
        Column(key="smallest_visible", label="visible", digits=3, help="the smallest change of accuracy to be seen"),
        Column(key="fired", label="fired", help="sequences on which the replacement took place"),
    ]
    parts = [one[0] for one in swept.effects]
    return Table(
        id="head_ablation.parts",
        section=SECTION,
        title="Every head and MLP, replaced by its mean",
        caption=f"Ablated minus clean, paired by sequence, with 95 % intervals over {swept.n} test sequences. The mean "
        f"is the {study.reference}. Set off: the parts that show something on validation sequences.",
        columns=tuple(columns),
        rows=tuple(rows),
        marked=tuple(i for i, part in enumerate(parts) if part not in study.rest),
    )


class HeadAblation(Analysis):
    """What each part does alone, and what the rest does together."""

    needs: ClassVar[tuple[str, ...]] = ("task",)

    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """Claims, the map and the table."""
        if subject.task is None:
            raise WorkbenchError("head ablation needs a task", next_step="Give the Subject a task.")
        study = conduct(subject, subject.task, budget, progress)
        made = claims(study)
        return [answer(study, made), *made, figure(study), table(study), *definitions(WORDS)]


ANALYSIS = HeadAblation()
