"""A batch and its twin, and the places of both that patches are asked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from workbench.behaviour import Judgement, there
from workbench.errors import WorkbenchError
from workbench.patch_sweep import PatchSweep
from workbench.patching import Point, Position, require_twins
from workbench.subject import Subject
from workbench.task import Batch, Task

EVERYWHERE = "everywhere"


@dataclass(frozen=True, eq=False)
class Twins:
    """Sequences and their twins.

    Attributes:
        places: by name what is patched: the batch's named positions, else every index. answer: the name of the place
            at which the answers are asked.
    """

    batch: Batch
    twin: Batch
    places: Mapping[str, Position]
    answer: str

    @property
    def everywhere(self) -> Position:
        """Every position."""
        return torch.ones_like(self.batch.mask)


def draw(subject: Subject, task: Task, n: int, split: str, name: str) -> Twins:
    """Sequences of a split, from the stream of this name, and their twins; errors as :func:`require_twins`."""
    batch = subject.sample(n, split, name)
    twin = task.counterfactual(batch)
    if twin is None:
        raise WorkbenchError("this analysis needs a task with a counterfactual", got=task.name)
    require_twins(batch, twin)
    asked = batch.scored.int().argmax(dim=1)
    single = bool((batch.scored.sum(dim=1) == 1).all())
    if batch.positions:
        places: dict[str, Position] = {name: name for name in batch.positions}
        named = [name for name, at in batch.positions.items() if single and torch.equal(at, asked)]
    else:
        real = batch.mask.any(dim=0).nonzero()[:, 0].tolist()
        places = {str(index): index for index in real}
        named = [str(index) for index in real if single and bool((asked == index).all())]
    answer = named[0] if named else "answers"
    if not named:
        places[answer] = batch.scored
    return Twins(batch, twin, places, answer)


def clean_behaviour(task: Task, noising: PatchSweep[Point]) -> Judgement:
    """Whether the batch's clean accuracy, from which a noising sweep starts, is there."""
    ceiling = task.ceiling()
    return there(noising.start[0], task.floor().accuracy, ceiling.accuracy if ceiling else None)


def unmet(behaviour: Judgement, sweep: PatchSweep[Point]) -> str:
    """Why nothing can be said about what a patch restores, or ""."""
    if behaviour.verdict != "supported":
        return f"the behaviour is not there: clean {behaviour.reason}"
    if abs(float(sweep.way.mean())) < 1e-6:
        return "the logits do not differ between the sequences and their twins"
    return ""
