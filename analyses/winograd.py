"""Winograd: how one word decides between two nouns, by intervention and not by looking.

Shows attention at the deciding position for sentences one word apart, says what of it is equal exactly, finds where the
cue's information crosses by patching from the twin, and tests two stories against each other: two hops, or a cue that
soaks up a head's softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from analyses._definitions import definitions
from analyses._winograd_claims import answer, claims, study_of
from analyses._winograd_effects import effect_findings
from analyses._winograd_figures import attention_findings
from analyses._winograd_sides import unfit
from workbench.analysis import Analysis, Budget, Progress
from workbench.findings import Definition, Finding, Notice
from workbench.subject import Subject

MEANINGS = {
    "deciding position": "The query that has to name the answer: the word before it.",
    "moved": "How far an intervention takes the logit difference between the two nouns towards the twin's: 0 not at "
    "all, 1 all the way. Mean over sentences of the change, over the mean difference between a sentence and its twin.",
    "total variation": "Half the sum of the absolute differences of two rows: the share of weight that has to move to "
    "make them equal.",
}


class WinogradAnalysis(Analysis):
    """Claims about how the cue decides, with the figures that show them."""

    needs: ClassVar[tuple[str, ...]] = ("task", "counterfactual")
    leads: ClassVar[bool] = True

    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """All findings; a notice alone where the task has no cue and candidates."""
        if subject.task is not None:
            few = subject.sample(8, "test", "winograd fit")
            if reason := unfit(subject.task, few, subject.task.counterfactual(few)):
                text = f"It looks at sentences in which a cue decides between candidates: {reason}."
                return [Notice(id="winograd.unfit", title="The Winograd analysis does not apply", text=text)]
        study = study_of(subject, budget, progress)
        made = claims(study)
        progress("figures")
        words = [Definition(id=f"definition.{word}", title=word, text=text) for word, text in MEANINGS.items()]
        shared = definitions(("twin", "denoising, noising"))
        return [answer(study, made), *made, *attention_findings(study), *effect_findings(study), *shared, *words]


ANALYSIS = WinogradAnalysis()
