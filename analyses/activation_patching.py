"""Activation patching: where what decides the answer stands, layer by layer, and which heads carry it.

Puts activations of a sequence into the pass over its twin (denoising: what suffices) and the twin's into the sequence
(noising: what is needed): the residual stream at every layer and place, and every head (Meng et al. 2022; Heimersheim &
Nanda 2024). Beside each head stands its gradient approximation (Nanda 2023), and by how much it is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from analyses._definitions import definitions
from analyses._patching_claims import answer, claims
from analyses._patching_figures import figures
from analyses._patching_study import conduct
from workbench.analysis import Analysis, Budget, Progress
from workbench.errors import WorkbenchError
from workbench.findings import Finding
from workbench.subject import Subject

WORDS = (
    "accuracy",
    "floor",
    "behaviour there",
    "logit difference",
    "twin",
    "denoising, noising",
    "share restored, share lost",
    "attribution patching",
    "verdicts",
    "intervals",
)


class ActivationPatchingAnalysis(Analysis):
    """Claims about where the answer stands, with the figures that show it."""

    needs: ClassVar[tuple[str, ...]] = ("task", "counterfactual")

    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """All findings."""
        if subject.task is None:
            raise WorkbenchError("the activation patching analysis needs a task", next_step="Give the Subject a task.")
        study = conduct(subject, subject.task, budget, progress)
        made = claims(study)
        progress("figures")
        return [answer(study, made), *made, *figures(study), *definitions(WORDS)]


ANALYSIS = ActivationPatchingAnalysis()
