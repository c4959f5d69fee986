"""What an analysis is (subject -> findings) and what a budget is.

An analysis's file in ``analyses/`` is its registration: one constant ``ANALYSIS``; the file's name is its id and the
first line of its docstring its title.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from workbench.errors import WorkbenchError
from workbench.findings import Finding, Verdict
from workbench.task import capabilities

if TYPE_CHECKING:
    from workbench.findings import Direction
    from workbench.subject import Subject

Progress = Callable[[str], None]
"""Called with the name of each stage as it begins."""

NEEDS = ("task", "run", "ceiling", "bayes_loss", "counterfactual")


@dataclass(frozen=True)
class Budget:
    """What an analysis may spend.

    Attributes:
        samples: sequences of the test split. selection_samples: sequences on which heads are chosen.
        seconds: None, or the time after which optional parts are left out (and said to be).
    """

    samples: int = 512
    selection_samples: int = 256
    seconds: float | None = None
    started: float = field(default_factory=time.monotonic, compare=False)

    def __post_init__(self) -> None:
        for name in ("samples", "selection_samples"):
            if getattr(self, name) < 8:
                raise WorkbenchError(
                    f"the budget's {name} is too small", expected="at least 8", got=getattr(self, name)
                )

    @property
    def spent(self) -> bool:
        """True once the seconds are over."""
        return self.seconds is not None and time.monotonic() - self.started > self.seconds


class Analysis(ABC):
    """Looks at a subject and says what it found. Draws nothing and trains nothing."""

    needs: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """The findings, in the order in which a reader should meet them."""


def missing_needs(analysis: Analysis, subject: Subject) -> list[str]:
    """What the analysis needs and the subject lacks, for the sentence on the page; empty if it can run."""
    have = set()
    if subject.task is not None:
        have |= {"task"} | capabilities(subject.task)
    if subject.run is not None:
        have |= {"run"}
    return [need for need in analysis.needs if need not in have]


def judge(low: float, high: float, threshold: float, direction: Direction) -> Verdict:
    """The verdict of an interval against a threshold that was stated before looking."""
    if direction == "above":
        return "supported" if low > threshold else "contradicted" if high < threshold else "inconclusive"
    return "supported" if high < threshold else "contradicted" if low > threshold else "inconclusive"
