"""Everything that the activation patching analysis measures, once.

The layer and the head that claims are about are chosen on validation sequences; what is claimed is measured on test
sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analyses._twins import EVERYWHERE, Twins, clean_behaviour, draw, unmet
from workbench.analysis import Budget, Progress
from workbench.attribution_patching import Approximation, attribution_patching
from workbench.behaviour import Judgement
from workbench.components import Head
from workbench.patch_checks import PatchChecks, patch_checks
from workbench.patch_sweep import DIRECTIONS, PatchSweep, head_points, patch_sweep, residual_points
from workbench.patching import Point
from workbench.subject import Subject
from workbench.task import Task


@dataclass(frozen=True, eq=False)
class Study:
    """What was measured on a subject.

    Attributes:
        twins: the test sequences. behaviour: whether clean accuracy is there. reason: why nothing can be claimed.
        residual: by direction, the residual stream by layer (outer) and place. heads: z of each head (outer) at each
            place, the last being everywhere; denoising, exact and approximated. lost: z of each head everywhere,
            noising.
        layer, head: chosen on ``selected_on`` validation sequences: where the answer crosses, what carries most.
        checks: of patching on this model.
    """

    subject: Subject
    twins: Twins
    behaviour: Judgement
    reason: str
    residual: Mapping[str, PatchSweep[Point]]
    heads: Approximation
    lost: PatchSweep[Point]
    layer: int
    head: Head
    selected_on: int
    checks: PatchChecks

    @property
    def head_places(self) -> tuple[str, ...]:
        """The places of ``heads``, in their order."""
        return (*self.twins.places, EVERYWHERE)

    def whole(self, head: Head) -> int:
        """The index in ``heads`` of a head's z everywhere."""
        return (self.subject.heads.index(head) + 1) * len(self.head_places) - 1


def conduct(subject: Subject, task: Task, budget: Budget, progress: Progress) -> Study:
    """Measure everything."""
    model, config = subject.model, subject.config
    twins = draw(subject, task, budget.samples, "test", "activation patching")
    checks = patch_checks(model, twins.batch, twins.twin)
    checks.require()
    progress("choosing a layer and a head")
    selection = draw(subject, task, budget.selection_samples, "validation", "activation patching")
    pair = (selection.batch, selection.twin)
    arrived = patch_sweep(model, *pair, residual_points(config, [selection.places[selection.answer]]))
    carried = patch_sweep(model, *pair, head_points(config, [selection.everywhere]), "z")
    progress("residual stream")
    test = (twins.batch, twins.twin)
    points = residual_points(config, list(twins.places.values()))
    residual = {direction: patch_sweep(model, *test, points, "resid_pre", direction) for direction in DIRECTIONS}
    progress("heads")
    heads = attribution_patching(model, *test, head_points(config, [*twins.places.values(), twins.everywhere]))
    lost = patch_sweep(model, *test, head_points(config, [twins.everywhere]), "z", "noising")
    behaviour = clean_behaviour(task, lost)
    return Study(
        subject=subject,
        twins=twins,
        behaviour=behaviour,
        reason=unmet(behaviour, lost),
        residual=residual,
        heads=heads,
        lost=lost,
        layer=int(np.diff(arrived.moves.mean(axis=1)).argmax()),
        head=subject.heads[int(carried.moves.mean(axis=1).argmax())],
        selected_on=budget.selection_samples,
        checks=checks,
    )
