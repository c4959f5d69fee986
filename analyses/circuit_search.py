"""Circuit search: the smallest set of heads that keeps the behaviour, and whether it is all that matters.

Heads are chosen by a greedy search over sets, each of which is kept alone with every other head at its mean, and judged
on other sequences by faithfulness, completeness and minimality (Wang et al. 2022). What the heads pass to each other is
measured by cutting one path at a time within the circuit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from analyses._circuit_claims import answer, claims
from analyses._circuit_figures import figures
from analyses._circuit_study import conduct
from analyses._definitions import definitions
from workbench.analysis import Analysis, Budget, Progress
from workbench.errors import WorkbenchError
from workbench.findings import Finding
from workbench.subject import Subject

WORDS = (
    "accuracy",
    "floor",
    "behaviour there",
    "removed",
    "keep-only",
    "faithfulness",
    "completeness",
    "minimality",
    "path cut",
    "S0, previous-token heads",
    "S1, induction heads",
    "verdicts",
    "intervals",
)


class CircuitSearchAnalysis(Analysis):
    """Claims about the smallest set found, the set drawn, and how it was found."""

    needs: ClassVar[tuple[str, ...]] = ("task",)

    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """All findings; the claims alone, not applicable, where the behaviour is not there."""
        if subject.task is None:
            raise WorkbenchError("the circuit search needs a task", next_step="Give the Subject a task.")
        study = conduct(subject, subject.task, budget, progress)
        made = claims(study)
        progress("figures")
        return [answer(study, made), *made, *figures(study), *definitions(WORDS)]


ANALYSIS = CircuitSearchAnalysis()
