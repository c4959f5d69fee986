"""Induction: which heads look things up and copy, and what happens without them.

Finds previous-token and induction heads (Olsson et al. 2022) on one set of sequences, tests them on another, removes
them alone and together under several semantics, cuts the paths between them, and says how the work is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from analyses._definitions import definitions
from analyses._induction_answer import answer
from analyses._induction_claims import claims
from analyses._induction_effects import effect_findings
from analyses._induction_figures import attention_findings, circuit_findings, score_findings
from analyses._induction_study import Study, conduct
from analyses._induction_training import SECTION as TRAINING
from analyses._induction_training import findings as training_findings
from workbench.analysis import Analysis, Budget, Progress
from workbench.errors import WorkbenchError
from workbench.findings import Finding, Notice
from workbench.head_scores import KEYS
from workbench.runs import Run
from workbench.subject import Subject

WORDS = (
    "accuracy",
    "floor",
    "ceiling",
    "behaviour there",
    "removed",
    "previous-token score",
    "duplicate-token score",
    "prefix matching",
    "induction keys",
    "copying",
    "OV eigenvalue copying",
    "S1, induction heads",
    "S0, previous-token heads",
    "positional impostor",
    "zero, mean, resample",
    "frozen patterns",
    "keep-only",
    "path cut",
    "composition",
    "effective number of heads",
    "phase change",
    "verdicts",
    "intervals",
)


class Induction(Analysis):
    """Claims about previous-token and induction heads, with the figures that show them."""

    needs: ClassVar[tuple[str, ...]] = ("task", "induction_keys")
    leads: ClassVar[bool] = True

    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """All findings; the training curves only where the subject comes from a run."""
        if subject.task is None:
            raise WorkbenchError("the induction analysis needs a task", next_step="Give the Subject a task.")
        study = conduct(subject, subject.task, budget, progress)
        made = claims(study)
        found: list[Finding] = [answer(study, made), *made]
        training: list[Finding] = []
        if subject.run is not None:
            progress("checkpoints")
            training = _training(study, subject.run, budget)
        progress("figures")
        figures = [*score_findings(study), *attention_findings(study)]
        figures += [*effect_findings(study), *circuit_findings(study)]
        # Of a task that repeats no block, how the lookup came about is the centre; elsewhere it is a supplement.
        found += [*figures, *training] if study.periods else [*training, *figures]
        words = [w for w in WORDS if w != "induction keys" or study.match == KEYS]
        return [*found, *definitions(words)]


def _training(study: Study, run: Run, budget: Budget) -> list[Finding]:
    """The training curves; where they cannot be had, a notice in their place: everything else stands without them."""
    if budget.spent:
        text = "The budget's seconds were over before the checkpoints were scored; more would show the training."
        return [_instead("Left out for time", text, "warning")]
    try:
        return training_findings(study, run)
    except WorkbenchError as error:
        return [_instead("The training curves cannot be drawn", str(error), "error")]


def _instead(title: str, text: str, level: Literal["warning", "error"]) -> Notice:
    return Notice(id="induction.no_training", section=TRAINING, title=title, text=text, level=level)


ANALYSIS = Induction()
