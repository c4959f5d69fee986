"""The lab of an experiment: trains its plans side by side in processes on the CPU, each into its own run folder.

What is finished is reused and what was begun is resumed, so an experiment that was stopped goes on where it was.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tqdm import tqdm

from workbench import runs, storage, training
from workbench.analysis import Plan, Progress
from workbench.app.workers import Job, side_by_side
from workbench.errors import WorkbenchError
from workbench.registry import load_task
from workbench.subject import Subject
from workbench.task import Task

RUNS = "runs"


def cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not every system can say; then all that there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class ProcessLab:
    """A lab in a folder.

    Attributes:
        folder: keeps the runs, in ``runs/NAME-seed-N``. plugins: folders that hold the tasks, where they are the
            user's own. workers: processes at most; with one, training happens in this process. used: the hash of every
            run that was given out, by the name of its folder. tasks: what the models were trained on, in order.
    """

    folder: Path
    plugins: tuple[str, ...] = ()
    workers: int = field(default_factory=cores)
    used: dict[str, str] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)

    def task(self, name: str, options: Mapping[str, Any] = MappingProxyType({})) -> Task:
        """The task of this name, with some options replaced."""
        return load_task(name, options, self.plugins)

    def place(self, plan: Plan) -> Path:
        """The run folder of a plan."""
        return self.folder / RUNS / f"{plan.name}-seed-{plan.seed}"

    def train(self, plans: Sequence[Plan], progress: Progress) -> list[Subject]:
        """A trained model for each plan, in their order.

        Raises:
            WorkbenchError: two plans of one name and seed, or whatever a training raises; the other trainings then
                stop too, and keep what they have.
            KeyboardInterrupt: passed on, after every training has written its state.
        """
        _check_names(plans)
        storage.make_folder(self.folder / RUNS)
        left = [i for i, plan in enumerate(plans) if not (self.place(plan) / runs.RECORD).exists()]
        with _board(plans, left, progress) as report:
            if min(self.workers, len(left)) > 1:
                side_by_side([self._job(i, plans[i]) for i in left], self.workers, self.plugins, report)
            else:
                for i in left:
                    self._train(plans[i], lambda p, i=i: report(i, p.step))  # type: ignore[misc]
        return [self._open(plan) for plan in plans]

    def _train(self, plan: Plan, report: Callable[[training.Progress], None] | None = None) -> runs.Run:
        return training.train(plan.task, plan.model, plan.train, plan.seed, self.place(plan), progress=report)

    def _open(self, plan: Plan) -> Subject:
        """What the plan's folder holds; training again finds it finished, and checks that it is what the plan asks."""
        run = self._train(plan)
        self.used[run.folder.name] = run.hash
        if plan.task not in self.tasks:
            self.tasks.append(plan.task)
        return Subject(run.load_model(), plan.task.vocabulary, plan.task, run, plan.seed)

    def _job(self, index: int, plan: Plan) -> Job:
        task = plan.task
        if load_task(task.name, task.options, self.plugins) != task:
            raise WorkbenchError(f"the task of {plan.name} is not the registered one", got=repr(task))
        place = str(self.place(plan))
        return Job(index, task.name, task.options, plan.model, plan.train, plan.seed, place)


def _check_names(plans: Sequence[Plan]) -> None:
    names = [(plan.name, plan.seed) for plan in plans]
    for name in names:
        if not re.fullmatch(r"[a-z0-9]+([-_][a-z0-9]+)*", name[0]):
            raise WorkbenchError("a plan's name cannot be used", expected="lower-case words joined by -", got=name[0])
        if names.count(name) > 1:
            raise WorkbenchError("two plans have one name and seed", got=f"{name[0]}, seed {name[1]}")


@contextlib.contextmanager
def _board(plans: Sequence[Plan], left: Sequence[int], progress: Progress) -> Iterator[Callable[[int, int], None]]:
    """Where the trainings that are left report: one bar over all of them on a terminal, else a line for each done."""
    reached = dict.fromkeys(left, 0)
    kept = len(plans) - len(left)
    if kept:
        progress(f"{kept} of {len(plans)} models are there already")

    def done() -> int:
        return kept + sum(plans[i].train.steps == step for i, step in reached.items())

    if not sys.stderr.isatty():

        def line(index: int, step: int) -> None:
            before, reached[index] = reached[index], step
            if step == plans[index].train.steps and step != before:
                progress(f"trained {plans[index].name}, seed {plans[index].seed} ({done()} of {len(plans)})")

        yield line
        return
    layout = "training {percentage:3.0f}% |{bar}| {postfix}, {elapsed} gone, {remaining} left"
    total = sum(plans[i].train.steps for i in left)
    with tqdm(total=total, file=sys.stderr, bar_format=layout, dynamic_ncols=True, disable=not left) as drawn:
        drawn.set_postfix_str(f"{done()} of {len(plans)} models")

        def draw(index: int, step: int) -> None:
            drawn.update(step - reached[index])
            reached[index] = step
            drawn.set_postfix_str(f"{done()} of {len(plans)} models")

        yield draw
