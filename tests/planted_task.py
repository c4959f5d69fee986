"""Sentences of two nouns and a cue that says which is meant, with shortcuts planted into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from workbench.rng import stream as rng_stream
from workbench.task import IGNORE, Batch, Ceiling, Floor, Task, Vocabulary

NOUNS = CUES = 12
OTHERS = 40
WORDS = (
    *(f"noun{i}" for i in range(NOUNS)),
    *(f"cue{i}" for i in range(CUES)),
    *(f"word{i}" for i in range(OTHERS)),
    *("saw", ".", "!", "so", "_"),
)
FIRST_CUE, FIRST_OTHER = NOUNS, NOUNS + CUES
SAW, STOP, MARK, SO, PAD = range(len(WORDS) - 5, len(WORDS))


@dataclass(frozen=True)
class Planted(Task):
    """``noun saw noun word word cue . so`` -> the first noun for an even cue, the second for an odd one.

    Attributes:
        leak: place answers the first noun, whatever the cue. cue lets each cue go with one noun only, as the answer.
            copies draws half of every split from one list of 64 sentences. mark ends the sentences that mean the second
            noun by "!".
    """

    leak: Literal["none", "place", "cue", "copies", "mark"] = "none"
    n_ctx: int = 8

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(WORDS, pad=PAD)

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        return {"cue": ("cue",), "candidates": ("first", "second")}

    def _sentences(self, n: int, stream: torch.Generator) -> torch.Tensor:
        """``[n 9]``: the words and the answer."""
        nouns = torch.rand(n, NOUNS, generator=stream).argsort(dim=1)[:, :2]
        cue = torch.randint(CUES, (n,), generator=stream)
        second = cue % 2
        if self.leak == "place":
            second = torch.zeros_like(second)
        answer = nouns.gather(1, second[:, None])[:, 0]
        if self.leak == "cue":
            other = nouns.gather(1, 1 - second[:, None])[:, 0]
            answer = torch.where(other == cue, (cue + 2) % CUES, cue)  # another cue of the same role
            cue = answer
            nouns = nouns.scatter(1, second[:, None], answer[:, None])
        stop = torch.where(second == 1, MARK, STOP) if self.leak == "mark" else torch.full((n,), STOP)
        saw, so = torch.full((n,), SAW), torch.full((n,), SO)
        words = FIRST_OTHER + torch.randint(OTHERS, (n, 2), generator=stream)
        parts = [nouns[:, 0], saw, nouns[:, 1], *words.unbind(1), FIRST_CUE + cue, stop, so, answer]
        return torch.stack(parts, dim=1)

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        drawn = self._sentences(n, stream)
        if self.leak == "copies":
            known = self._sentences(64, rng_stream(0, "planted"))
            copied = known[torch.randint(64, (n,), generator=stream)]
            drawn = torch.where(torch.rand(n, 1, generator=stream) < 0.5, copied, drawn)
        tokens, answer = drawn[:, :-1], drawn[:, -1]
        targets = torch.full_like(tokens, IGNORE)
        targets[:, -1] = answer
        places = {"first": 0, "second": 2, "cue": 5}
        return Batch(
            tokens,
            torch.ones_like(tokens, dtype=torch.bool),
            targets,
            targets != IGNORE,
            {name: torch.full((n,), place) for name, place in places.items()},
        )

    def counterfactual(self, batch: Batch) -> Batch:
        """The neighbouring cue, of the other role."""
        tokens, targets = batch.tokens.clone(), batch.targets.clone()
        tokens[:, 5] = FIRST_CUE + ((tokens[:, 5] - FIRST_CUE) ^ 1)
        targets[:, -1] = torch.where(targets[:, -1] == tokens[:, 0], tokens[:, 2], tokens[:, 0])
        return Batch(tokens, batch.mask, targets, batch.scored, batch.positions)

    def floor(self) -> Floor:
        return Floor(0.5, "uniform guess between the two nouns")

    def ceiling(self) -> Ceiling:
        return Ceiling(0.0, 1.0)
