"""Predicted against causal: do weights, attention and direct writes say which heads matter?

Sets what is read off a head (its OV circuit, what it attends to, what it writes towards the answer) beside what
removing it does, in each of four ways, and marks where the two contradict each other: redundant heads, self-repair,
heads that act through others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from analyses._definitions import definitions
from analyses._predicted_findings import answer, claims, tables
from analyses._predicted_rules import verdicts
from analyses._predicted_study import conduct
from workbench.analysis import Analysis, Budget, Progress
from workbench.errors import WorkbenchError
from workbench.findings import Finding
from workbench.subject import Subject

WORDS = (
    "accuracy",
    "behaviour there",
    "OV eigenvalue copying",
    "previous-token score",
    "prefix matching",
    "induction keys",
    "direct logit attribution",
    "logit difference",
    "zero, mean, resample",
    "frozen patterns",
    "self-repair",
    "rank agreement",
    "verdicts",
    "intervals",
)


class PredictedVsCausal(Analysis):
    """Claims about rank agreement, and one table a head."""

    needs: ClassVar[tuple[str, ...]] = ("task",)

    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """All findings; columns that do not apply are left out with the reason."""
        if subject.task is None:
            raise WorkbenchError("predicted against causal needs a task", next_step="Give the Subject a task.")
        study = conduct(subject, subject.task, budget, progress)
        progress("agreement")
        judged = verdicts(study)
        return [answer(study, judged), *claims(study), *tables(study, judged), *definitions(WORDS)]


ANALYSIS = PredictedVsCausal()
