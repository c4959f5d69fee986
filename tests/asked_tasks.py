"""Two tasks of five tokens that ask at the last position and score that position alone; each has a twin.

* Recall, ``<bos> s f f' ?``: the answer is the symbol s; in the twin another symbol stands there.
* Choose, ``<bos> a b cue ?``: the answer is a after the cue "first", b after "second"; the twin has the other cue.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workbench.task import IGNORE, Batch, Ceiling, Floor, Task, Vocabulary

N_SYMBOLS, N_CTX = 6, 5
SYMBOLS = range(1, N_SYMBOLS + 1)
RECALL = Vocabulary(("<bos>", *(f"s{i}" for i in SYMBOLS), "f1", "f2", "?"), bos=0)
CHOOSE = Vocabulary(("<bos>", *(f"s{i}" for i in SYMBOLS), "first", "second", "?"), bos=0)
V, ASK = len(RECALL), N_CTX - 1
FIRST_CUE = N_SYMBOLS + 1


@dataclass(frozen=True)
class _Asked(Task):
    """Five tokens, asked at the last."""

    n_ctx: int = N_CTX

    def floor(self) -> Floor:
        return Floor(1 / N_SYMBOLS, "a uniform guess among the symbols")

    def ceiling(self) -> Ceiling:
        return Ceiling(0.0, 1.0)

    def _batch(self, columns: list[torch.Tensor], answer: torch.Tensor) -> Batch:
        n = len(answer)
        bos, ask = torch.zeros(n, dtype=torch.long), torch.full((n,), V - 1)
        tokens = torch.stack([bos, *columns, ask], dim=1)
        targets = torch.full_like(tokens, IGNORE)
        targets[:, ASK] = answer
        places = {name: torch.full((n,), place) for place, name in enumerate(("bos", *self.places, "ask"))}
        return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), targets, targets != IGNORE, places)

    @property
    def places(self) -> tuple[str, ...]:
        """Names of positions 1 to 3."""
        raise NotImplementedError


@dataclass(frozen=True)
class Recall(_Asked):
    """``<bos> s f f' ?`` -> s."""

    @property
    def places(self) -> tuple[str, ...]:
        return ("symbol", "filler", "second filler")

    @property
    def vocabulary(self) -> Vocabulary:
        return RECALL

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        symbol = torch.randint(1, N_SYMBOLS + 1, (n,), generator=stream)
        fillers = torch.randint(N_SYMBOLS + 1, N_SYMBOLS + 3, (2, n), generator=stream)
        return self._batch([symbol, *fillers], symbol)

    def counterfactual(self, batch: Batch) -> Batch:
        """The symbol's neighbour: s1 and s2, s3 and s4, s5 and s6."""
        columns = list(batch.tokens[:, 1:ASK].unbind(1))
        columns[0] = ((columns[0] - 1) ^ 1) + 1
        return self._batch(columns, columns[0])


@dataclass(frozen=True)
class Choose(_Asked):
    """``<bos> a b cue ?`` -> a or b."""

    @property
    def places(self) -> tuple[str, ...]:
        return ("a", "b", "cue")

    @property
    def vocabulary(self) -> Vocabulary:
        return CHOOSE

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        a, b = torch.rand(n, N_SYMBOLS, generator=stream).argsort(dim=1)[:, :2].unbind(1)
        return self._asked(a + 1, b + 1, torch.randint(FIRST_CUE, FIRST_CUE + 2, (n,), generator=stream))

    def counterfactual(self, batch: Batch) -> Batch:
        """The other cue."""
        _, a, b, cue, _ = batch.tokens.unbind(1)
        return self._asked(a, b, 2 * FIRST_CUE + 1 - cue)

    def _asked(self, a: torch.Tensor, b: torch.Tensor, cue: torch.Tensor) -> Batch:
        return self._batch([a, b, cue], torch.where(cue == FIRST_CUE, a, b))
