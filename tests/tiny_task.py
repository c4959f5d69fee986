"""A task that trains in milliseconds: say the token's successor; some sequences are padded, as an option."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workbench.task import IGNORE, Batch, Ceiling, Floor, Task, Vocabulary


@dataclass(frozen=True)
class Successor(Task):
    """Ids 1..6; the target of each is the next one, 6 being followed by 1. Id 0 is padding."""

    n_ctx: int = 6
    padded: bool = False
    known: bool = True

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(("_", "a", "b", "c", "d", "e", "f"), pad=0)

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        tokens = torch.randint(1, 7, (n, self.n_ctx), generator=stream)
        mask = torch.ones_like(tokens, dtype=torch.bool)
        if self.padded:
            mask = torch.arange(self.n_ctx) < torch.randint(2, self.n_ctx + 1, (n, 1), generator=stream)
        targets = torch.where(mask, tokens % 6 + 1, IGNORE)
        return Batch(torch.where(mask, tokens, 0), mask, targets, mask)

    def floor(self) -> Floor:
        return Floor(1 / 6, "a uniform guess")

    def ceiling(self) -> Ceiling | None:
        return Ceiling(0.0, 1.0) if self.known else None
