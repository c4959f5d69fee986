"""What an analysis (subject -> findings) and an experiment (budget -> findings) are, and what a budget is.

The file of either in ``analyses/`` is its registration: one constant ``ANALYSIS`` or ``EXPERIMENT``; the file's name is
its id and the first line of its docstring its title. An analysis looks at one model that is there. An experiment trains
the models that it compares, in a lab that it is given, or none.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from workbench.config import ModelConfig, TrainConfig
from workbench.errors import WorkbenchError
from workbench.findings import Finding, Verdict
from workbench.rng import stream
from workbench.task import Task, capabilities

if TYPE_CHECKING:
    from workbench.findings import Direction
    from workbench.subject import Subject

Progress = Callable[[str], None]
"""Called with the name of each stage as it begins."""

NEEDS = ("task", "run", "ceiling", "bayes_loss", "counterfactual", "induction_keys")
"""``induction_keys``: the task's batches name the keys that a perfect induction head attends to."""


@dataclass(frozen=True)
class Budget:
    """What an analysis or an experiment may spend.

    Attributes:
        samples: sequences of the test split. selection_samples: sequences on which heads are chosen.
        seconds: None, or the time after which optional parts are left out (and said to be).
        seeds: models of each kind that an experiment trains.
    """

    samples: int = 512
    selection_samples: int = 256
    seconds: float | None = None
    seeds: int = 5
    started: float = field(default_factory=time.monotonic, compare=False)

    def __post_init__(self) -> None:
        # An interval over seeds needs two of them.
        for name, least in (("samples", 8), ("selection_samples", 8), ("seeds", 2)):
            if getattr(self, name) < least:
                raise WorkbenchError(
                    f"the budget's {name} is too small", expected=f"at least {least}", got=getattr(self, name)
                )
        if self.seconds is not None and not self.seconds >= 0:
            raise WorkbenchError("the budget's seconds cannot be used", expected="a number from 0", got=self.seconds)

    @property
    def spent(self) -> bool:
        """True once the seconds are over."""
        return self.seconds is not None and time.monotonic() - self.started > self.seconds


class Analysis(ABC):
    """Looks at a subject and says what it found. Draws nothing and trains nothing."""

    needs: ClassVar[tuple[str, ...]] = ()
    leads: ClassVar[bool] = False
    """Whether it answers what its task asks: those stand first on a page, the others follow by name."""

    @abstractmethod
    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """The findings, in the order in which a reader should meet them."""


@dataclass(frozen=True)
class Plan:
    """One model to be trained.

    Attributes:
        name: of the kind of model, lower-case words joined by "-" (it becomes part of a folder's name). With ``seed``
            it is unique among the plans of a lab.
        task, model, train, seed: as :func:`workbench.training.train` takes them.
    """

    name: str
    task: Task
    model: ModelConfig
    train: TrainConfig
    seed: int


@runtime_checkable
class Lab(Protocol):
    """Where an experiment gets its tasks and trained models."""

    @property
    def folder(self) -> Path:
        """Keeps the runs."""

    def task(self, name: str, options: Mapping[str, Any] = MappingProxyType({})) -> Task:
        """The task of this name, with some options replaced; errors as in :func:`workbench.registry.load_task`."""

    def train(self, plans: Sequence[Plan], progress: Progress) -> list[Subject]:
        """A trained model for each plan, in their order; what was trained before is reused, what was begun resumed."""


class Experiment(ABC):
    """Trains its own models, in a lab, and says what it found over seeds. Draws nothing."""

    @abstractmethod
    def run(self, budget: Budget, lab: Lab, progress: Progress) -> Sequence[Finding]:
        """The findings, in the order in which a reader should meet them."""


def missing_needs(analysis: Analysis, subject: Subject) -> list[str]:
    """What the analysis needs and the subject lacks, for the sentence on the page; empty if it can run."""
    have = set()
    if subject.task is not None:
        have |= {"task"} | capabilities(subject.task)
        if "induction" in subject.task.sample(1, "validation", stream(0, "needs")).key_masks:
            have.add("induction_keys")
    if subject.run is not None:
        have |= {"run"}
    return [need for need in analysis.needs if need not in have]


def judge(low: float, high: float, threshold: float, direction: Direction) -> Verdict:
    """The verdict of an interval against a threshold that was stated before looking."""
    if direction == "above":
        return "supported" if low > threshold else "contradicted" if high < threshold else "inconclusive"
    return "supported" if high < threshold else "contradicted" if low > threshold else "inconclusive"
