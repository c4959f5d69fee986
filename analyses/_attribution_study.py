"""Everything that the logit attribution analysis measures, once.

The head that a claim is about is chosen on validation sequences; what is claimed is measured on test sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.analysis import Budget, Progress
from workbench.attribution import LogitAttribution, LogitLens, direct_logit_attribution, logit_lens
from workbench.behaviour import Judgement, there
from workbench.components import Head
from workbench.metrics import incorrect_answers
from workbench.subject import Subject
from workbench.task import Task


@dataclass(frozen=True, eq=False)
class Study:
    """What was measured on a subject.

    Attributes:
        behaviour: whether clean accuracy is there.
        test: the attribution on the test sequences; None where it does not apply, with the reason in ``reason``.
        strongest: the head with the largest mean attribution on the validation sequences (None as above).
        selected_on: how many those were.
        lens: with each stop's own scale. frozen: with the clean scale of the end; None where there is no final norm
            or the budget's seconds were over.
    """

    subject: Subject
    task: Task
    behaviour: Judgement
    test: LogitAttribution | None
    strongest: Head | None
    selected_on: int
    reason: str
    lens: LogitLens
    frozen: LogitLens | None

    @property
    def scaled(self) -> bool:
        """Whether the model has a final norm, so that its scale can be held."""
        return self.subject.config.norm == "pre"


def conduct(subject: Subject, task: Task, budget: Budget, progress: Progress) -> Study:
    """Measure everything."""
    model = subject.own
    batch = subject.sample(budget.samples, "test", "logit attribution")
    progress("logit lens")
    lens = logit_lens(model, batch)
    ceiling = task.ceiling()
    behaviour = there(lens.accuracy[:, -1], task.floor().accuracy, ceiling.accuracy if ceiling else None)
    test, strongest, reason = None, None, "a post-norm model's residual stream is not a sum of writes"
    if subject.config.norm != "post":
        progress("direct attribution")
        selection = subject.sample(budget.selection_samples, "validation", "logit attribution")
        chosen = direct_logit_attribution(model, selection, incorrect=incorrect_answers(task, selection))
        strongest = max(subject.heads, key=lambda head: float(np.mean(chosen.of(head))))
        test, reason = direct_logit_attribution(model, batch, incorrect=incorrect_answers(task, batch)), ""
    with_frozen = subject.config.norm == "pre" and not budget.spent
    return Study(
        subject=subject,
        task=task,
        behaviour=behaviour,
        test=test,
        strongest=strongest,
        selected_on=budget.selection_samples,
        reason=reason,
        lens=lens,
        frozen=logit_lens(model, batch, scale="final") if with_frozen else None,
    )
