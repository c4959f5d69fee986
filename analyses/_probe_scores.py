"""What heads attend to on a probe, for analyses to whom that is one source among others."""

from __future__ import annotations

from dataclasses import dataclass

from analyses._induction_study import draw_probe, own_lines
from workbench.components import Head
from workbench.errors import WorkbenchError
from workbench.head_scores import HeadScores, HeadSets, score_heads, select_sets
from workbench.model.transformer import Transformer
from workbench.probes import probe_periods
from workbench.subject import Subject
from workbench.task import Task


@dataclass(frozen=True, eq=False)
class Probed:
    """Head scores and what they were measured on; None, with the reason, where the vocabulary or context is too small
    for a probe."""

    scores: HeadScores | None
    words: str

    @property
    def sets(self) -> HeadSets:
        """S0 and S1 by these scores; both empty where there are none."""
        return HeadSets((), ()) if self.scores is None else select_sets(self.scores)

    def role(self, head: Head) -> str:
        """The head's role by the sets that it is in, in a word or two; "" where it is in none."""
        roles = {"previous token": self.sets.s0, "induction": self.sets.s1}
        return ", ".join(role for role, heads in roles.items() if head in heads)


def probe_scores(subject: Subject, task: Task, n: int, split: str, *names: str) -> Probed:
    """Scores on ``n`` sequences of the probe that the induction analysis would use: repeated blocks, or the task's own
    sequences of this split where they name induction keys and repeat no block."""
    if not isinstance(subject.model, Transformer):
        return Probed(None, "the heads of a bridged model are not scored")
    try:
        periods = () if own_lines(subject, task) else probe_periods(subject)
        probe = draw_probe(subject, periods, n, split, *names)
        scores = score_heads(subject.model, subject.vocabulary, probe)
    except WorkbenchError as error:
        return Probed(None, str(error))
    if not periods:
        return Probed(scores, f"the {task.name.replace('_', ' ')} task's own sequences")
    return Probed(scores, f"repeated blocks, periods {periods[0]} to {periods[-1]}")
