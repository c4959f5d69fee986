"""Identifiers: log-like lines, character by character, in which an identifier and what it names come back.

``P-104-pump;V-273-valve;P-104-pump;...``. Which name goes with which identifier is drawn for every line, so when an
identifier comes back, its remaining digits and the name behind it can only be looked up in the line.
Validation and test draw their identifiers from pools of their own, which training never sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.rng import stream as rng_stream
from workbench.task import IGNORE, SPLITS, Batch, Floor, Task, Vocabulary

LETTERS = "BFHMPSTV"
NAMES = ("belt", "crane", "drum", "fan", "gate", "hoist", "lamp", "motor", "pump", "relay", "tank", "valve")
POOLS = {"train": 0.8, "validation": 0.1, "test": 0.1}
"""The share of all identifiers that each split draws from; the pools are disjoint."""
MOST_ENTITIES = 5
"""With more, the smallest pools may hold no identifier that differs from all others of a line at every digit."""
BOS = 0


@dataclass(frozen=True)
class Identifiers(Task):
    """``<bos>`` and a line of mentions ``LETTER-DIGITS-NAME;``, cut where the context ends.

    The first mentions introduce the entities, one each; every later one brings back an entity drawn uniformly. Names
    are of different lengths, so the distance to the earlier mention varies. Next-character targets stand everywhere.
    Scored is what the line decides and nothing shorter does, in mentions that bring an entity back:

    - a digit, once what is typed of the identifier fits one entity only (where letters coincide, the first digit
      cannot be foreseen; the letter itself never can);
    - the first letter of the name, right after the identifier and its hyphen.

    Not scored are the hyphens and the semicolon, which the format gives, and the rest of a name, which its first
    letter gives (the names' first letters differ). No two identifiers of a line have the same digit at the same
    place, so that copying from any wrong entity is wrong at every scored position.

    Attributes:
        n_ctx: length with the begin token. entities: different identifiers a line. digits: in each identifier.
    """

    n_ctx: int = 96
    entities: int = 3
    digits: int = 3

    def __post_init__(self) -> None:
        if not 2 <= self.entities <= MOST_ENTITIES:
            raise WorkbenchError("task.entities cannot be used", expected=f"2 to {MOST_ENTITIES}", got=self.entities)
        if not 2 <= self.digits <= 4:
            raise WorkbenchError("task.digits cannot be used", expected="2 to 4", got=self.digits)
        # The begin token, every introduction at its longest, and the first return up to its name's first letter.
        needed = 1 + self.entities * self._length(max) + self.digits + 4
        if self.n_ctx < needed:
            raise WorkbenchError(
                "task.n_ctx is too short for an identifier to come back",
                expected=f"at least {needed} for {self.entities} entities of {self.digits} digits",
                got=self.n_ctx,
            )

    def _length(self, which: Callable[[Iterable[int]], int]) -> int:
        """Characters of the shortest (``min``) or the longest (``max``) mention."""
        return self.digits + 4 + which(map(len, NAMES))

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        letters = sorted({*"".join(NAMES)})
        return Vocabulary(("<bos>", "-", ";", *"0123456789", *LETTERS, *letters), bos=BOS)

    @property
    def vocabulary(self) -> Vocabulary:
        """``<bos>`` (id 0), hyphen, semicolon, digits, the identifiers' letters, small letters."""
        return self._vocabulary

    @cached_property
    def pools(self) -> dict[str, Int[Tensor, "identifiers parts"]]:
        """The identifiers of each split, as a letter's index and then digits."""
        every = torch.tensor(list(product(range(len(LETTERS)), *[range(10)] * self.digits)))
        every = every[torch.randperm(len(every), generator=rng_stream(0, "identifiers", "pools"))]
        sizes = [round(POOLS[split] * len(every)) for split in SPLITS[:-1]]
        return dict(zip(SPLITS, every.split([*sizes, len(every) - sum(sizes)]), strict=True))

    def _identifiers(self, n: int, split: str, stream: torch.Generator) -> Int[Tensor, "batch entities parts"]:
        """Identifiers of the split's pool for every line; one that shares a digit's place is drawn again."""
        pool = self.pools[split]
        drawn = pool[torch.randint(len(pool), (n, self.entities), generator=stream)]
        for e in range(1, self.entities):
            while True:
                same = (drawn[:, :e, 1:] == drawn[:, e : e + 1, 1:]).flatten(1).any(dim=1)
                if not bool(same.any()):
                    break
                drawn[same, e] = pool[torch.randint(len(pool), (int(same.sum()),), generator=stream)]
        return drawn

    @cached_property
    def _names(self) -> Int[Tensor, "names width"]:
        """Ids of each name's characters, -1 behind its end."""
        width = max(map(len, NAMES))
        return torch.tensor([self.vocabulary.encode(list(name)) + [-1] * (width - len(name)) for name in NAMES])

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        """``n`` lines of a split.

        Named position: ``first_return``, the letter of the first identifier that comes back. Key masks, at scored
        queries only: ``previous_occurrences`` (the query's place in earlier mentions of the same entity) and
        ``induction`` (the keys just after those, which hold the answer: what a perfect induction head attends to).
        """
        if split not in SPLITS:
            raise WorkbenchError("unknown split", expected=" or ".join(SPLITS), got=repr(split))
        content, mentions = self.n_ctx - 1, -(-(self.n_ctx - 1) // self._length(min))
        identifiers = self._identifiers(n, split, stream)
        names = torch.rand(n, len(NAMES), generator=stream).argsort(dim=1)[:, : self.entities]
        back = torch.randint(self.entities, (n, mentions - self.entities), generator=stream)
        who = torch.cat([torch.arange(self.entities).expand(n, -1), back], dim=1)

        # Every mention on a grid of fixed width, with -1 where nothing stands; then pushed together.
        hyphen, semicolon, zero, letter = self.vocabulary.encode(["-", ";", "0", LETTERS[0]])
        first, numbers = identifiers[..., :1], identifiers[..., 1:]
        between, end = torch.full_like(first, hyphen), torch.full_like(first, semicolon)
        entity = torch.cat([first + letter, between, numbers + zero, between, self._names[names], end], dim=2)
        grid = entity.gather(1, who[:, :, None].expand(-1, -1, entity.shape[2]))

        decided = torch.zeros_like(grid, dtype=torch.bool)
        alone = (first == first.mT).sum(dim=2) == 1
        decided[..., 2] = alone.gather(1, who)
        decided[..., 3 : 2 + self.digits] = True
        decided[..., 3 + self.digits] = True
        decided[:, : self.entities] = False
        place = who[:, :, None] * grid.shape[2] + torch.arange(grid.shape[2])

        order = (grid < 0).flatten(1).int().argsort(dim=1, stable=True)[:, :content]
        line, answer, place = (part.flatten(1).gather(1, order) for part in (grid, decided, place))
        tokens = torch.cat([torch.full((n, 1), BOS), line], dim=1)
        scored = torch.cat([answer, torch.zeros(n, 1, dtype=torch.bool)], dim=1)
        lengths = (grid[:, : self.entities] >= 0).flatten(1).sum(dim=1)
        return Batch(
            tokens=tokens,
            mask=torch.ones_like(scored),
            targets=torch.cat([line, torch.full((n, 1), IGNORE)], dim=1),
            scored=scored,
            positions={"first_return": lengths + 1},
            key_masks=_key_masks(torch.cat([torch.full((n, 1), -1), place], dim=1), scored),
        )

    @property
    def preset(self) -> str:
        """Without the penalty on heads, which costs some seeds this task."""
        return "identifiers"

    def floor(self) -> Floor:
        """Copying from an entity drawn uniformly: right once in ``entities`` times, at every scored position."""
        return Floor(1 / self.entities, "copying from any entity of the line")


def _key_masks(
    place: Int[Tensor, "batch pos"], scored: Bool[Tensor, "batch pos"]
) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
    """Where a scored query's place in its entity's mention stood before, and the keys just after."""
    same = ((place[:, :, None] == place[:, None, :]) & scored[:, :, None]).tril(-1)
    after = torch.zeros_like(same)
    after[:, :, 1:] = same[:, :, :-1]
    return {"previous_occurrences": same, "induction": after}


TASK = Identifiers()
