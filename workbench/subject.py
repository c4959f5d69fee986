"""What is looked at: a model, its vocabulary, and optionally the task it was trained on and the run it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.components import Head, all_heads
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.task import Batch, Task, Vocabulary

if TYPE_CHECKING:
    from workbench.model.transformer import Transformer
    from workbench.runs import Run


@dataclass(frozen=True)
class Subject:
    """A model to take apart.

    Attributes:
        model: the transformer, in evaluation use (its weights are not changed by any analysis).
        vocabulary: the tokens that its ids mean.
        task: where sequences with targets come from; None for a model without one.
        run: the run folder that it came from; None for a planted or foreign model.
        seed: addresses the random streams of everything measured on it.
    """

    model: Transformer
    vocabulary: Vocabulary
    task: Task | None = None
    run: Run | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.vocabulary) != self.config.d_vocab:
            raise WorkbenchError(
                "the vocabulary does not fit the model",
                expected=f"{self.config.d_vocab} tokens",
                got=len(self.vocabulary),
            )

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self.model.config

    @property
    def heads(self) -> tuple[Head, ...]:
        """Every head of the model."""
        return all_heads(self.config.n_layers, self.config.n_heads)

    def sample(self, n: int, split: str, name: str = "subject") -> Batch:
        """``n`` sequences of the task's split, from the subject's stream of this name, on the model's device."""
        from workbench.rng import stream

        if self.task is None:
            raise WorkbenchError("this subject has no task to draw sequences from", next_step="Give Subject a task.")
        batch = self.task.sample(n, split, stream(self.seed, name, split))
        return batch.to(next(self.model.parameters()).device)
