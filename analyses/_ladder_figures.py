"""What the ladder shows: the table beside the source's figures, every seed, and how each rung was learned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analyses._ladder_claims import SOLVED, Readings, solving
from analyses._ladder_rungs import MODEL, RUNGS, TRAIN, Reading, Rung
from workbench.findings import Column, Curve, Definition, Finding, Heatmap, Panel, Rule, Series, Table
from workbench.seeds import seed_interval
from workbench.statistics import clopper_pearson
from workbench.task import Floor

SECTION = "Held-out sentences, rung by rung"
SOURCE = "source"


def figures(readings: Readings, floor: Floor) -> list[Finding]:
    """Table, seeds and curves."""
    return [_table(readings), _seeds(readings), _curves(readings, floor)]


def _row(rung: Rung, made: Sequence[Reading]) -> dict[str, str | int | float | None]:
    accuracy = seed_interval([r.accuracy for r in made], made[0].sentences)
    other = seed_interval([r.other for r in made], made[0].sentences)
    share = clopper_pearson(solving(made), len(made))
    return {
        "rung": rung.label,
        "accuracy": accuracy.value,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "source": rung.source,
        "other": other.value,
        "other_low": other.low,
        "other_high": other.high,
        "source_other": rung.source_other,
        "worst": min(r.accuracy for r in made),
        "solved": share.value,
        "solved_low": share.low,
        "solved_high": share.high,
    }


def _table(readings: Readings) -> Table:
    made = next(iter(readings.values()))
    columns = (
        Column(key="rung", label="trained"),
        Column(key="accuracy", label="accuracy", digits=3, low="accuracy_low", high="accuracy_high"),
        Column(key="source", label="source", digits=3, help="The accuracy that the source reports of its own models."),
        Column(
            key="other", label="wrong noun", digits=3, low="other_low", high="other_high",
            help="Share of sentences answered with the other of their two nouns.",
        ),
        Column(key="source_other", label="source", digits=3, help="The source's share of the wrong noun."),
        Column(key="worst", label="worst", digits=3, help="The lowest accuracy of a seed."),
        Column(
            key="solved", label="solved", digits=2, low="solved_low", high="solved_high",
            help=f"Share of the seeds at {SOLVED:g} or more, with the exact interval of the share of all seeds "
            "(Clopper and Pearson 1934).",
        ),
    )  # fmt: skip
    caption = (
        f"Means over {len(made)} seeds with their 95 % intervals over seeds; {made[0].sentences} held-out sentences a "
        f"seed, whose ordered noun pairs training never shows. All rungs: width {MODEL['d_model']}, "
        f"{MODEL['n_heads']} heads, {MODEL['positions']} positions, LayerNorm, {TRAIN.steps} steps of "
        f"{TRAIN.batch_size} sentences. The source's models, training and sentences are its own."
    )
    rows = tuple(_row(rung, readings[rung.name]) for rung in RUNGS)
    return Table(
        id="ladder.rungs", title="What each rung reaches, beside the source", caption=caption, section=SECTION,
        columns=columns, rows=rows,
    )  # fmt: skip


def _seeds(readings: Readings) -> Heatmap:
    seeds = [r.seed for r in next(iter(readings.values()))]

    def cells(name: str, source: float | None) -> tuple[float, ...]:
        return (*values(name), float(np.mean(values(name))), math.nan if source is None else source)

    def values(name: str) -> list[float]:
        rung, field = name.split(".")
        return [getattr(r, field) for r in readings[rung]]

    panels = (
        Panel(title="right", values=tuple(cells(f"{r.name}.accuracy", r.source) for r in RUNGS)),
        Panel(title="the other noun", values=tuple(cells(f"{r.name}.other", r.source_other) for r in RUNGS)),
    )
    return Heatmap(
        id="ladder.seeds", title="Every seed, and the source",
        caption="Share of held-out sentences answered rightly (left) and with the other of their two nouns (right). "
        "What is missing to 1 was answered with a word that is neither. The source gives no figure where n/a stands. "
        "A block has an MLP; attention alone stands for a block without one.",
        section=SECTION, panels=panels, row_labels=tuple(r.short for r in RUNGS),
        column_labels=(*(f"seed {s}" for s in seeds), "mean", SOURCE), unit="share of sentences",
        vmin=0.0, vmax=1.0, annotate=True,
    )  # fmt: skip


def _curves(readings: Readings, floor: Floor) -> Curve:
    series = []
    for rung in RUNGS:
        if rung.task:
            continue
        made = readings[rung.name]
        learned = np.array([r.learned for r in made])
        series.append(
            Series(
                name=rung.label,
                x=tuple(map(float, made[0].steps)),
                y=tuple(learned.mean(axis=0).tolist()),
                low=tuple(learned.min(axis=0).tolist()),
                high=tuple(learned.max(axis=0).tolist()),
            )
        )
    return Curve(
        id="ladder.learning", title="How each rung learns it",
        caption="Accuracy on held-out sentences at the checkpoints: mean over seeds, band from the lowest seed to the "
        f"highest. Floor: {floor.predictor}.",
        section=SECTION, x_label="step", y_label="accuracy", series=tuple(series),
        rules=(Rule(label="floor", value=floor.accuracy),), x_scale="log", y_range=(0.0, 1.0),
    )  # fmt: skip


def definitions() -> list[Definition]:
    """The words that the ladder uses beside the shared ones."""
    texts = {
        "interval over seeds": "95 %, by Student's t over the models' accuracies (one a seed), never narrower than "
        "what the sentences of one model can tell.",
        "wrong noun": "The model's most likely word at the scored position is the noun of the sentence that is not the "
        "answer.",
        "held-out sentences": "Sentences of the test split: their ordered pair of nouns is in no training sentence.",
    }
    return [Definition(id=f"ladder.definition.{word}", title=word, text=text) for word, text in texts.items()]
