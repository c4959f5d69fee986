"""How the behaviour came about: loss and scores over training, with the phase change bracketed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyses._induction_figures import LABELS
from analyses._induction_study import Study, draw_probe
from workbench.components import Head
from workbench.findings import Column, Curve, Finding, Rule, Series, Span, Table
from workbench.head_scores import score_heads
from workbench.metrics import sequence_accuracy
from workbench.phase import PhaseChange, phase_change
from workbench.runs import Run

SECTION = "How it was learned"
SEQUENCES = 128


def findings(study: Study, run: Run) -> list[Finding]:
    """Two curves side by side and the table of phase changes."""
    steps, accuracy, previous, prefix = _over_checkpoints(study, run)
    series = [("accuracy", accuracy, True)]
    kinds = (("previous token", previous), (LABELS[study.match], prefix))
    for heads, (name, values) in zip(_watched(study), kinds, strict=True):
        strongest = heads[int(np.argmax([values[-1][h] for h in heads]))]
        series += [(f"{h} {name}", values[:, h.layer, h.head], h == strongest) for h in heads]
    changes = {name: phase_change(steps, values.tolist()) for name, values, _ in series}
    return [_loss(study, run, changes["accuracy"]), _scores(study, steps, series, changes["accuracy"]), _table(changes)]


def _watched(study: Study) -> tuple[tuple[Head, ...], tuple[Head, ...]]:
    """S0 and S1; where a set is empty, the head that comes nearest, so that the reader sees what did not happen."""
    heads = study.subject.heads

    def best(score: str) -> tuple[Head, ...]:
        return (max(heads, key=lambda h: study.selection.mean(score)[h]),)

    return study.sets.s0 or best("previous_token_score"), study.sets.s1 or best(study.match)


def _over_checkpoints(study: Study, run: Run) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
    """Step of each checkpoint; accuracy ``[step]``, previous-token and matching scores ``[step layer head]``."""
    subject, vocabulary = study.subject, study.subject.vocabulary
    batch = subject.sample(SEQUENCES, "validation", "checkpoints")
    probe = draw_probe(subject, study.periods, SEQUENCES, "validation", "checkpoints", "probe")
    steps, accuracy, previous, prefix = [], [], [], []
    for checkpoint in run.checkpoints():
        model = run.load_checkpoint(checkpoint.step)
        scores = score_heads(model, vocabulary, probe)
        steps.append(checkpoint.step)
        accuracy.append(float(sequence_accuracy(model(batch.tokens, batch.mask), batch).mean()))
        previous.append(scores.mean("previous_token_score"))
        prefix.append(scores.mean(study.match))
    return steps, np.array(accuracy), np.array(previous), np.array(prefix)


def _spans(change: PhaseChange) -> tuple[Span, ...]:
    if change.low is None or change.high is None:
        return ()
    return (Span(label="phase change", low=change.low, high=change.high),)


def _loss(study: Study, run: Run, change: PhaseChange) -> Curve:
    table = run.training_table()
    ceiling = study.task.ceiling()
    rules = () if ceiling is None else (Rule(label="Bayes ceiling", value=ceiling.loss),)
    return Curve(
        id="induction.training_loss",
        section=SECTION,
        title="Loss during training"
        if change.low is None
        else f"The behaviour came between steps {change.low:.0f} and {change.high:.0f}",
        caption="Cross entropy of each training batch, mean over all positions. The ceiling is what the best possible "
        "predictor pays. Shaded: the checkpoints between which accuracy on scored positions rose from 10 to 90 % of "
        "its way.",
        x_label="training step",
        y_label="loss (nats)",
        x_scale="log",
        series=(
            Series(
                name="loss",
                x=tuple(table["step"].astype(float)),
                y=tuple(table["loss"].astype(float)),
                emphasis=True,
            ),
        ),
        rules=rules,
        spans=_spans(change),
        width="half",
    )


def _scores(
    study: Study, steps: Sequence[int], series: Sequence[tuple[str, np.ndarray, bool]], change: PhaseChange
) -> Curve:
    return Curve(
        id="induction.training_scores",
        section=SECTION,
        title="Head scores and accuracy over the same steps",
        caption=f"At every checkpoint, on {SEQUENCES} validation sequences: accuracy at scored positions, and the "
        "score of "
        f"each head of S0 (previous token) and S1 ({LABELS[study.match]}), or of the nearest head where a set is "
        f"empty, on {study.scored_on}.",
        x_label="training step",
        y_label="score",
        x_scale="log",
        y_range=(0.0, 1.0),
        series=tuple(
            Series(name=name, x=tuple(map(float, steps)), y=tuple(values.tolist()), emphasis=front)
            for name, values, front in series
        ),
        spans=_spans(change),
        width="half",
    )


def _table(changes: dict[str, PhaseChange]) -> Table:
    return Table(
        id="induction.phase_changes",
        section=SECTION,
        title="When each score rose",
        caption="One run gives a bracket between two checkpoints, no interval. A rise under 0.2 is not a phase change.",
        columns=(
            Column(key="score", label="score"),
            Column(key="low", label="after step"),
            Column(key="high", label="by step"),
            Column(key="rise", label="rise", digits=2, signed=True),
            Column(key="reason", label="remark"),
        ),
        rows=tuple(
            {
                "score": name,
                "low": None if c.low is None else int(c.low),
                "high": None if c.high is None else int(c.high),
                "rise": c.rise,
                "reason": c.reason,
            }
            for name, c in changes.items()
        ),
    )
