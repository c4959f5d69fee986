"""Counting: from a random number on, each step adds a stride that the first two numbers show."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workbench.errors import WorkbenchError
from workbench.task import IGNORE, Batch, Ceiling, Floor, Task, Vocabulary


@dataclass(frozen=True)
class Counting(Task):
    """Numbers modulo ``d_vocab``. The fields are the options: ``--set task.d_vocab=16``."""

    n_ctx: int = 12
    d_vocab: int = 10

    def __post_init__(self) -> None:
        if self.n_ctx < 3 or self.d_vocab < 2:
            raise WorkbenchError("counting needs task.n_ctx from 3 and task.d_vocab from 2")

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(tuple(str(i) for i in range(self.d_vocab)))

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        start, stride = torch.randint(self.d_vocab, (2, n, 1), generator=stream)
        numbers = (start + stride * torch.arange(self.n_ctx + 1)) % self.d_vocab
        targets = numbers[:, 1:].clone()
        targets[:, 0] = IGNORE  # one number does not show the stride
        tokens = numbers[:, :-1]
        return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), targets, targets != IGNORE)

    @property
    def allowed_probes(self) -> dict[str, str]:
        """Shortcuts that the audit finds and that belong to this task, each with the reason."""
        near, few = "two neighbours show the stride", "there are only d_vocab ** 2 sequences"
        passing = {"last_2_tokens": near, "last_3_tokens": near, "exact_copies": few, "copies_up_to_order": few}
        return {**passing, "uniform_average": few, "offset_copy": "many strides come round to the same number"}

    def floor(self) -> Floor:
        return Floor(1 / self.d_vocab, "a uniform guess over the numbers")

    def ceiling(self) -> Ceiling:
        return Ceiling(loss=0.0, accuracy=1.0)


TASK = Counting()
