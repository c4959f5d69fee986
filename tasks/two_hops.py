"""Two hops: a map written as pairs, and symbols to follow through it twice: what to look up must be looked up first.

Every sequence draws a map f that leads once around all symbols, writes it as pair tokens ``a>b`` (b = f(a)) in random
order, and asks ``a??`` for f(f(a)). A pair is a single token, so that one lookup takes one layer, and the second one,
which cannot start before the first has answered, another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.task import IGNORE, SPLITS, Batch, Ceiling, Floor, Task, Vocabulary

BOS = 0


@dataclass(frozen=True)
class TwoHops(Task):
    """``<bos>``, a pair for every symbol, then questions; loss at the questions, scored where two hops are asked for.

    Answers are asked for, not written into the sequence (the target of a question is its answer, no next token): were
    they there, the last ones would follow from the others by elimination. Every symbol stands in the pairs exactly
    twice, once on each side, whatever the map: counting them says nothing.

    Attributes:
        symbols: k, how many the map has. one_hop: ask ``a?`` for f(a) too, to practise on; not scored.
    """

    symbols: int = 20
    one_hop: bool = True

    def __post_init__(self) -> None:
        if not 5 <= self.symbols <= len(ascii_lowercase):
            raise WorkbenchError(
                "task.symbols cannot be used", expected=f"5 to {len(ascii_lowercase)}", got=self.symbols
            )

    @property
    def n_ctx(self) -> int:  # type: ignore[override]
        """The begin token, k pairs, and one or two questions for each symbol."""
        return 1 + self.symbols * (3 if self.one_hop else 2)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        symbols = ascii_lowercase[: self.symbols]
        pairs = [f"{a}>{b}" for a in symbols for b in symbols if a != b]
        questions = [f"{a}{marks}" for marks in ("??", "?") for a in symbols]
        return Vocabulary(("<bos>", *symbols, *pairs, *questions), bos=BOS)

    @property
    def vocabulary(self) -> Vocabulary:
        """``<bos>`` (id 0), the symbols (the answers), pairs ``a>b``, questions ``a??`` and ``a?``."""
        return self._vocabulary

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        """``n`` sequences; the splits differ by their streams alone (from 8 symbols on, maps practically never recur).

        Key masks, at questions: ``first_hop`` (the pair that holds f(a)) and, where scored, ``second_hop`` (the pair
        that holds f(f(a))).
        """
        if split not in SPLITS:
            raise WorkbenchError("unknown split", expected=" or ".join(SPLITS), got=repr(split))
        k, asked = self.symbols, self.n_ctx - 1 - self.symbols

        def orders(size: int) -> Int[Tensor, "batch size"]:
            return torch.rand(n, size, generator=stream).argsort(dim=1)

        around = orders(k)
        image = torch.empty_like(around).scatter_(1, around, around.roll(-1, dims=1))
        left = orders(k)
        right = image.gather(1, left)
        # The pairs of one symbol stand side by side in the vocabulary, without the one that leads to itself.
        pairs = 1 + k + left * (k - 1) + right - (right > left).long()
        question = orders(asked)
        start, twice = question % k, question < k
        once = image.gather(1, start)
        answers = torch.where(twice, image.gather(1, once), once)
        begin = torch.zeros(n, 1, dtype=torch.long)
        scored = torch.cat([torch.zeros(n, 1 + k, dtype=torch.bool), twice], dim=1)
        return Batch(
            tokens=torch.cat([begin + BOS, pairs, 1 + k + k * (k - 1) + question], dim=1),
            mask=torch.ones_like(scored),
            targets=torch.cat([(begin + IGNORE).expand(n, 1 + k), answers + 1], dim=1),
            scored=scored,
            key_masks={
                "first_hop": self._holds(left, start, torch.ones_like(twice)),
                "second_hop": self._holds(left, once, twice),
            },
        )

    def _holds(self, left: Int[Tensor, "batch k"], wanted: Int[Tensor, "batch asked"], where: Tensor) -> Tensor:
        """The key of the pair whose left side is wanted, for each question, ``[batch query_pos key_pos]``."""
        keys = torch.zeros(len(left), self.n_ctx, self.n_ctx, dtype=torch.bool)
        first = 1 + self.symbols
        keys[:, first:, 1:first] = (wanted[:, :, None] == left[:, None, :]) & where[:, :, None]
        return keys

    @property
    def preset(self) -> str:
        """Without positions: in which order the pairs stand says nothing."""
        return "two_hops"

    def floor(self) -> Floor:
        """A uniform guess among the symbols that stand in no pair with the query: what one lookup leaves open.

        On a map that leads once around k symbols, f(f(a)) is neither a, nor f(a), nor (from k = 4) the symbol whose
        image is a; among the other k - 3 nothing but the second lookup decides.
        """
        return Floor(1 / (self.symbols - 3), "any symbol that is in no pair with the one asked about")

    def ceiling(self) -> Ceiling:
        """Everything can be looked up."""
        return Ceiling(loss=0.0, accuracy=1.0)

    def bayes_loss(self, batch: Batch) -> Float[Tensor, "batch pos"]:
        """0 everywhere: the pairs come before the questions."""
        return torch.zeros(batch.tokens.shape, device=batch.tokens.device)


TASK = TwoHops()
