"""Everything that the path patching analysis measures, once.

The receivers and the path that claims are about are chosen on validation sequences; what is claimed is measured on test
sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analyses._twins import Twins, clean_behaviour, draw, unmet
from workbench.analysis import Budget, Progress
from workbench.behaviour import Judgement
from workbench.bridge import Bridged
from workbench.components import Head
from workbench.cut_path import INPUTS
from workbench.patch_sweep import DIRECTIONS, PatchSweep, head_points, patch_sweep
from workbench.path_patching import Path, all_paths, path_sweep
from workbench.subject import Subject
from workbench.task import Task

RECEIVERS = 4
"""At most so many heads are looked at as receivers."""
CARRIES = 0.1
"""The share of the way that a head must carry, on validation sequences, to be looked at."""


@dataclass(frozen=True, eq=False)
class Study:
    """What was measured on a subject.

    Attributes:
        twins: the test sequences. behaviour: whether clean accuracy is there. reason: why nothing can be claimed.
        receivers: the heads whose inputs were looked at, chosen on ``selected_on`` validation sequences.
        paths: by direction, every path that ends in them; empty where there is no receiver.
        strongest: the path that restores most on validation sequences; other: the same pair's strongest other input.
        shared: whether heads share keys and values, so that only paths through queries can be told apart.
    """

    subject: Subject
    twins: Twins
    behaviour: Judgement
    reason: str
    receivers: tuple[Head, ...]
    selected_on: int
    paths: Mapping[str, PatchSweep[Path]]
    strongest: Path | None
    other: Path | None
    shared: bool


def unfit(subject: Subject) -> str:
    """Why the model has no paths from head to head, or ""."""
    if subject.config.norm == "post":
        return "a post-norm model's residual stream is not a sum of writes"
    return "a model of one layer has no later heads" if subject.config.n_layers == 1 else ""


def conduct(subject: Subject, task: Task, budget: Budget, progress: Progress) -> Study:
    """Measure everything."""
    model, config = subject.model, subject.config
    shared = isinstance(model, Bridged) and model.n_key_value_heads != config.n_heads
    twins = draw(subject, task, budget.samples, "test", "path patching")
    selection = draw(subject, task, budget.selection_samples, "validation", "path patching")
    progress("choosing receivers")
    pair, test = (selection.batch, selection.twin), (twins.batch, twins.twin)
    carried = patch_sweep(model, *pair, head_points(config, [selection.everywhere]), "z")
    noising = patch_sweep(model, *test, head_points(config, [twins.everywhere])[:1], "z", "noising")
    behaviour = clean_behaviour(task, noising)
    reason = unmet(behaviour, noising)
    receivers = () if reason else _receivers(subject.heads, carried.shares.value)
    if not reason and not receivers:
        reason = f"no head above L0 carries {CARRIES:g} of the answer by itself"
    progress("paths")
    kinds = ("Q",) if shared else tuple(INPUTS)
    paths = [path for path in all_paths(config, receivers) if path.kind in kinds]
    strongest, other, found = None, None, dict[str, PatchSweep[Path]]()
    if paths:
        chosen = np.abs(path_sweep(model, *pair, paths).moves.mean(axis=1))
        order = [paths[i] for i in np.argsort(-chosen, kind="stable")]
        strongest = order[0]
        other = next((path for path in order[1:] if path[:2] == strongest[:2]), None)
        found = {direction: path_sweep(model, *test, paths, direction) for direction in DIRECTIONS}
    return Study(
        subject=subject,
        twins=twins,
        behaviour=behaviour,
        reason=reason,
        receivers=receivers,
        selected_on=budget.selection_samples,
        paths=found,
        strongest=strongest,
        other=other,
        shared=shared,
    )


def _receivers(heads: tuple[Head, ...], share: np.ndarray) -> tuple[Head, ...]:
    """The heads above the first layer that carry most, in the model's order."""
    able = [i for i, head in enumerate(heads) if head.layer and abs(share[i]) >= CARRIES]
    most = sorted(able, key=lambda i: -abs(share[i]))[:RECEIVERS]
    return tuple(sorted(heads[i] for i in most))
