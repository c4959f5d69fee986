"""Logit attribution: what each part writes towards the answer directly, and from which layer on it can be read.

Takes the answer's logit apart into everything that was written into the residual stream (Elhage et al. 2021), checks
the sum against the model's own logits, and applies the unembedding in mid-stream (nostalgebraist 2020). What is written
directly is not all that a head does: what it does through later layers is for ablations to show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from analyses._attribution_claims import answer, claims
from analyses._attribution_figures import figures
from analyses._attribution_study import conduct
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
    "direct logit attribution",
    "centred logit",
    "logit difference",
    "logit lens",
    "verdicts",
    "intervals",
)


class LogitAttributionAnalysis(Analysis):
    """Claims about direct writes, with the figures that show them."""

    needs: ClassVar[tuple[str, ...]] = ("task",)

    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """All findings; of a post-norm model the logit lens alone, with the reason."""
        if subject.task is None:
            raise WorkbenchError("the logit attribution analysis needs a task", next_step="Give the Subject a task.")
        study = conduct(subject, subject.task, budget, progress)
        made = claims(study)
        progress("figures")
        return [answer(study, made), *made, *figures(study), *definitions(WORDS)]


ANALYSIS = LogitAttributionAnalysis()
