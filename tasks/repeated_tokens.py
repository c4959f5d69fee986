"""Repeated tokens: a block of distinct tokens, repeated to the end of the context.

The first pass through the block cannot be foreseen; from the second on, every next token can be looked up: find where
the current token stood before and copy what followed. The period is drawn afresh for each sequence, because with a
fixed one a single layer reaches 100 % by position alone (``period=fixed`` is kept to show that).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.task import IGNORE, SPLITS, Batch, Ceiling, Floor, Task, Vocabulary

BOS = 0


@dataclass(frozen=True)
class RepeatedTokens(Task):
    """Sequences ``<bos> x0 x1 ... x(T-1)`` with ``x(i) = x(i - P)``, ``T = n_ctx - 1``, block of P distinct tokens.

    Attributes:
        n_ctx: length with the begin token. d_vocab: ids, the begin token (id 0) included.
        period: varying draws P uniformly from ``period_min`` to ``period_max`` for each sequence; fixed
            gives every sequence their midpoint, rounded down.
    """

    n_ctx: int = 48
    d_vocab: int = 65
    period: Literal["varying", "fixed"] = "varying"
    period_min: int = 6
    period_max: int = 20

    def __post_init__(self) -> None:
        if not 2 <= self.period_min <= self.period_max:
            raise WorkbenchError(
                "task.period_min and task.period_max do not make a range",
                expected="2 <= period_min <= period_max",
                got=f"{self.period_min} to {self.period_max}",
            )
        if self.period_max > self.content - 2:
            raise WorkbenchError(
                "task.period_max is too long for the context",
                expected=f"at most {self.content - 2} (task.n_ctx - 3, so that something can be foreseen)",
                got=self.period_max,
                next_step="Raise task.n_ctx or lower task.period_max.",
            )
        if self.period_max > self.d_vocab - 1:
            raise WorkbenchError(
                "the vocabulary is too small for a block of distinct tokens",
                expected=f"task.d_vocab of at least {self.period_max + 1} for period_max {self.period_max}",
                got=self.d_vocab,
            )

    @property
    def content(self) -> int:
        """T, the tokens after the begin token."""
        return self.n_ctx - 1

    @property
    def periods(self) -> tuple[int, ...]:
        """The periods that occur, each equally often."""
        if self.period == "fixed":
            return ((self.period_min + self.period_max) // 2,)
        return tuple(range(self.period_min, self.period_max + 1))

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(("<bos>", *(f"t{i}" for i in range(1, self.d_vocab))), bos=BOS)

    @property
    def vocabulary(self) -> Vocabulary:
        """``<bos>`` (id 0) and ``t1`` to ``t(d_vocab - 1)``."""
        return self._vocabulary

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        """``n`` sequences; the splits differ by their streams alone (blocks practically never recur).

        Key masks: ``previous_occurrences`` (earlier keys that hold the query's token) and ``induction`` (the keys just
        after those: what a perfect induction head attends to).
        """
        if split not in SPLITS:
            raise WorkbenchError("unknown split", expected=" or ".join(SPLITS), got=repr(split))
        choice = torch.randint(len(self.periods), (n,), generator=stream)
        period = torch.tensor(self.periods)[choice]
        order = torch.rand(n, self.d_vocab - 1, generator=stream).argsort(dim=1) + 1
        place = torch.arange(self.content)
        blocks = order.gather(1, place % period[:, None])
        tokens = torch.cat([torch.full((n, 1), BOS), blocks], dim=1)
        targets = torch.cat([blocks, torch.full((n, 1), IGNORE)], dim=1)
        scored = torch.zeros(n, self.n_ctx, dtype=torch.bool)
        scored[:, 1:-1] = place[:-1] >= period[:, None]
        return Batch(
            tokens=tokens,
            mask=torch.ones_like(scored),
            targets=targets,
            scored=scored,
            positions={"block_end": period, "first_repeat": period + 1},
            key_masks=_key_masks(tokens),
        )

    def floor(self) -> Floor:
        """A uniform guess within the block: right once in P times."""
        return Floor(sum(1 / p for p in self.periods) / len(self.periods), "uniform guess within the block")

    def _hazard(self, i: int) -> tuple[float, float]:
        """``G = P(period >= i)`` and ``h = P(period = i) / G`` after i content tokens without a repeat."""
        surviving = sum(p >= i for p in self.periods) / len(self.periods)
        return surviving, (sum(p == i for p in self.periods) / len(self.periods) / surviving if surviving else 0.0)

    def ceiling(self) -> Ceiling:
        """The Bayes predictor's expected loss over all positions, in closed form, and its accuracy where scored (1).

        After i content tokens without a repeat, the block ends here with probability h and the first token comes back;
        else one of the ``V' - i`` unused tokens comes. Once repeating, everything is known.
        """
        symbols, total = self.d_vocab - 1, 0.0
        for i in range(self.content):
            surviving, h = self._hazard(i)
            if surviving == 0.0 or h == 1.0:
                continue
            entropy = -sum(p * log(p) for p in (h, 1 - h) if p > 0)
            total += surviving * (entropy + (1 - h) * log(symbols - i))
        return Ceiling(loss=total / self.content, accuracy=1.0)

    def bayes_loss(self, batch: Batch) -> Float[Tensor, "batch pos"]:
        """What the Bayes predictor pays for each target of these sequences (0 where there is none)."""
        symbols = self.d_vocab - 1
        fresh, back = torch.zeros(self.content), torch.zeros(self.content)
        for i in range(self.content):
            _, h = self._hazard(i)
            if h < 1.0 and symbols > i:
                fresh[i] = log(symbols - i) - log(1 - h)
            if h > 0.0:
                back[i] = -log(h)
        period = batch.positions["block_end"].cpu()[:, None]
        place = torch.arange(self.content)
        loss = torch.where(place < period, fresh, torch.where(place == period, back, torch.zeros(())))
        loss = torch.cat([loss, torch.zeros(len(batch), 1)], dim=1)
        return loss.to(batch.tokens.device)


def _key_masks(tokens: Int[Tensor, "batch pos"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
    """Earlier occurrences of each query's token, and the keys just after them; the begin token is no target."""
    same = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    after = torch.zeros_like(same)
    after[:, :, 1:] = same[:, :, :-1]
    return {"previous_occurrences": same, "induction": after}


TASK = RepeatedTokens()
