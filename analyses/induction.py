"""Induction: which heads look things up and copy, and what happens without them.

Finds previous-token and induction heads (Olsson et al. 2022) on one set of sequences, tests them on another, removes
them alone and together under several semantics, cuts the paths between them, and says how the work is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from analyses._definitions import definitions
from analyses._induction_answer import answer
from analyses._induction_claims import claims
from analyses._induction_effects import check_findings, effect_findings
from analyses._induction_figures import attention_findings, circuit_findings, score_findings
from analyses._induction_study import conduct
from analyses._induction_training import findings as training_findings
from workbench.analysis import Analysis, Budget, Progress
from workbench.errors import WorkbenchError
from workbench.findings import Finding, Notice
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

    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """All findings; the training curves only where the subject comes from a run."""
        if subject.task is None:
            raise WorkbenchError("the induction analysis needs a task", next_step="Give the Subject a task.")
        study = conduct(subject, subject.task, budget, progress)
        made = claims(study)
        found: list[Finding] = [answer(study, made), *made]
        progress("figures")
        found += [*score_findings(study), *attention_findings(study), *effect_findings(study), *circuit_findings(study)]
        if subject.run is not None and not budget.spent:
            progress("checkpoints")
            found += training_findings(study, subject.run)
        elif subject.run is not None:
            text = "The budget's seconds were over before the checkpoints were scored; more would show the training."
            found.append(
                Notice(id="induction.left_out_for_time", title="Left out for time", text=text, level="warning")
            )
        return [*found, *check_findings(study), *definitions(WORDS)]


ANALYSIS = Induction()
