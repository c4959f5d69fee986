"""Path patching: which head hands the answer to which later head, and through queries, keys or values.

Lets one head's output from the other pass reach one input of one later head alone (after Wang et al. 2022), between
sequences and their twins: what a path suffices for, and what is lost with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from analyses._definitions import definitions
from analyses._paths_claims import answer, claims
from analyses._paths_figures import figures
from analyses._paths_study import conduct, unfit
from workbench.analysis import Analysis, Budget, Progress
from workbench.errors import WorkbenchError
from workbench.findings import Finding, Notice
from workbench.subject import Subject

WORDS = (
    "accuracy",
    "floor",
    "behaviour there",
    "logit difference",
    "twin",
    "denoising, noising",
    "share restored, share lost",
    "path patching",
    "verdicts",
    "intervals",
)


class PathPatchingAnalysis(Analysis):
    """Claims about paths between heads, with the figures that show them."""

    needs: ClassVar[tuple[str, ...]] = ("task", "counterfactual")

    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """All findings; a notice alone where the model has no paths from head to head."""
        if subject.task is None:
            raise WorkbenchError("the path patching analysis needs a task", next_step="Give the Subject a task.")
        if reason := unfit(subject):
            text = f"It needs a head, a later head, and a residual stream that is a sum between them: {reason}."
            return [Notice(id="path_patching.unfit", title="Path patching does not apply", text=text)]
        study = conduct(subject, subject.task, budget, progress)
        made = claims(study)
        progress("figures")
        return [answer(study, made), *made, *figures(study), *definitions(WORDS)]


ANALYSIS = PathPatchingAnalysis()
