"""Sentences from templates: two nouns, a cue word that decides between them, the answer repeated late.

A *situation* is a sentence with the slots ``{first} {second} {cue} {answer}`` and two lists of cue words: those that
make the answer the first noun, and those that make it the second. The cue words of the two lists are partners, one to
one, so that swapping a cue for its partner is the smallest change that flips the answer, and its own inverse.

Axes: ``batch pos``; a table of pairs is ``[pair 2]``, indices of nouns (first, second).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.task import IGNORE, Batch, Vocabulary

SLOTS = ("first", "second", "cue", "answer")
PAD = "<pad>"
FEWEST_NOUNS = 5
"""From here on, a validation and a test split can each hold pairs whose order is balanced over the nouns."""


@dataclass(frozen=True)
class Situation:
    """A template and its cue words.

    Attributes:
        name: what it is called in options and errors. template: words separated by spaces, each slot once, ``{answer}``
            after the others and not at the start.
        first, second: the cue words that make the answer the first or the second noun; partners stand at one index.
    """

    name: str
    template: str
    first: tuple[str, ...]
    second: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The template, word by word."""
        return tuple(self.template.split())

    def place(self, slot: str) -> int:
        """The index of a slot."""
        return self.words.index("{" + slot + "}")

    @property
    def fixed(self) -> tuple[str, ...]:
        """The words that are no slots."""
        return tuple(w for w in self.words if not w.startswith("{"))


def check(situations: Sequence[Situation], nouns: Sequence[str], file: str) -> None:
    """Raise the error that names the file and the field of the first thing that cannot be used."""

    def require(ok: bool, fieldname: str, expected: str, got: object) -> None:
        if not ok:
            raise WorkbenchError(f"{file}: {fieldname} cannot be used", expected=expected, got=got)

    require(
        len(nouns) >= FEWEST_NOUNS,
        "the pool of nouns",
        f"at least {FEWEST_NOUNS} nouns, so that every split has pairs of its own",
        len(nouns),
    )
    require(len(set(nouns)) == len(nouns), "the pool of nouns", "nouns all different", _twice(nouns))
    names = [s.name for s in situations]
    require(len(set(names)) == len(names), "the situations", "names all different", _twice(names))
    role: dict[str, tuple[str, str]] = {}
    for s in situations:
        where = f"situation {s.name!r}, field "
        for slot in SLOTS:
            count = s.words.count("{" + slot + "}")
            require(count == 1, where + "template", f"the slot {{{slot}}} once", f"{count} times")
        unknown = [w for w in s.words if w.startswith("{") and w[1:-1] not in SLOTS]
        require(not unknown, where + "template", f"only the slots {', '.join(SLOTS)}", " ".join(unknown))
        last = max(s.place(slot) for slot in SLOTS[:3])
        require(s.place("answer") > last, where + "template", "{answer} after the other slots", s.template)
        require(s.place("first") < s.place("second"), where + "template", "{first} before {second}", s.template)
        same = len(s.first) == len(s.second) > 0
        got = f"{len(s.first)} and {len(s.second)}"
        require(same, where + "first and second", "as many cue words for either noun, at least one", got)
        known = {*nouns, *s.first, *s.second}
        clash = [w for w in s.fixed if w in known or w == PAD]
        require(not clash, where + "template", "no noun and no cue word outside its slot", " ".join(clash))
        for a, b in zip(s.first, s.second, strict=True):
            for word, meaning in ((a, ("first", b)), (b, ("second", a))):
                require(word not in nouns, where + meaning[0], "cue words that are no nouns", word)
                before = role.setdefault(word, meaning)
                expected = f"{word!r} with one role and one partner throughout ({before[0]}, {before[1]})"
                require(before == meaning, where + meaning[0], expected, f"{meaning[0]}, {meaning[1]}")


def _twice(words: Sequence[str]) -> str:
    return ", ".join(sorted({w for w in words if list(words).count(w) > 1})) + " repeated"


def reversed_pairs(n: int) -> Mapping[str, Int[Tensor, "pair 2"]]:
    """Ordered pairs of n nouns for each split; what is held out stands in training in the other order only.

    The nouns stand in a circle. The pairs at one distance below n / 2 hold every noun once in either slot, so each
    split is made of whole distances: every third is a test distance, every third a validation distance (trained
    forwards, held out backwards); the rest is trained in both orders. No split favours a noun in a slot.
    """
    pairs: dict[str, list[tuple[int, int]]] = {"train": [], "validation": [], "test": []}
    for distance in range(1, n // 2 + 1):
        opposite = 2 * distance == n
        forwards = [(i, (i + distance) % n) for i in range(n // 2 if opposite else n)]
        backwards = [(b, a) for a, b in forwards]
        held = {1: "test", 2: "validation"}.get(distance % 3, "train")
        pairs["train"] += forwards
        pairs["train" if opposite else held] += backwards
    return {split: torch.tensor(found) for split, found in pairs.items()}


def category_pairs(n: int) -> Mapping[str, Int[Tensor, "pair 2"]]:
    """Ordered pairs, the first noun from the first half of n and the second from the second half; splits are disjoint.

    Every noun is as frequent as every other of its half. The order never varies, so a noun's kind gives its slot away.
    """
    half = n // 2
    pairs: dict[str, list[tuple[int, int]]] = {"train": [], "validation": [], "test": []}
    for shift in range(half):
        split = {1: "test", 2: "validation"}.get(shift % 4, "train")
        pairs[split] += [(i, half + (i + shift) % half) for i in range(half)]
    return {split: torch.tensor(found) for split, found in pairs.items()}


class Grammar:
    """Situations over a pool of nouns, as tables of ids: fills slots, and swaps what a twin differs in.

    Attributes:
        vocabulary: padding, the nouns in their order, the cue words, all other words. n_ctx: of the longest situation.
        every_word: whether every word but the first is a target, or the answer alone.
    """

    def __init__(self, situations: Sequence[Situation], nouns: Sequence[str], every_word: bool = False) -> None:
        self.every_word = every_word
        cues = [word for s in situations for pair in zip(s.first, s.second, strict=True) for word in pair]
        rest = [w for s in situations for w in s.fixed]
        self.vocabulary = Vocabulary(tuple(dict.fromkeys((PAD, *nouns, *cues, *rest))), pad=0)
        self.n_ctx = max(len(s.words) for s in situations)
        index = {t: i for i, t in enumerate(self.vocabulary.tokens)}
        rows = [[index.get(w, 0) for w in s.words] + [0] * (self.n_ctx - len(s.words)) for s in situations]
        self._frames = torch.tensor(rows)
        self._lengths = torch.tensor([len(s.words) for s in situations])
        self._places = {slot: torch.tensor([s.place(slot) for s in situations]) for slot in SLOTS}
        self._cues = [torch.tensor([[index[w] for w in s.first], [index[w] for w in s.second]]) for s in situations]
        self._partner = torch.arange(len(index))
        for table in self._cues:
            self._partner[table[0]], self._partner[table[1]] = table[1], table[0]

    def sample(self, n: int, pairs: Int[Tensor, "pair 2"], situations: Sequence[int], stream: torch.Generator) -> Batch:
        """``n`` sentences: situation, pair, role and cue each drawn evenly and independently."""

        def draw(size: int) -> Tensor:
            return torch.randint(size, (n,), generator=stream)

        which = torch.tensor(situations)[draw(len(situations))]
        nouns = 1 + pairs[draw(len(pairs))]
        role, place = draw(2), torch.rand(n, generator=stream)
        cue = torch.zeros(n, dtype=torch.long)
        for i in situations:
            table, rows = self._cues[i], which == i
            cue[rows] = table[role[rows], (place[rows] * table.shape[1]).long()]
        tokens, row = self._frames[which], torch.arange(n)
        answer = nouns[row, role]
        for slot, ids in (("first", nouns[:, 0]), ("second", nouns[:, 1]), ("cue", cue), ("answer", answer)):
            tokens[row, self._places[slot][which]] = ids
        positions = {slot: self._places[slot][which] for slot in SLOTS}
        positions["answer"] = positions["answer"] - 1
        mask = torch.arange(self.n_ctx) < self._lengths[which][:, None]
        return self._asked(tokens, mask, positions)

    def swap_cue(self, batch: Batch) -> Batch:
        """The cue's partner in its place, the other noun as the answer."""
        tokens, row = batch.tokens.clone(), torch.arange(len(batch), device=batch.tokens.device)
        cue, first, second, at = (batch.positions[slot] for slot in ("cue", "first", "second", "answer"))
        tokens[row, cue] = self._partner.to(tokens.device)[tokens[row, cue]]
        tokens[row, at + 1] = tokens[row, first] + tokens[row, second] - tokens[row, at + 1]
        return self._asked(tokens, batch.mask, dict(batch.positions))

    def swap_nouns(self, batch: Batch) -> Batch:
        """The two nouns in each other's place, and the other noun as the answer."""
        tokens, row = batch.tokens.clone(), torch.arange(len(batch), device=batch.tokens.device)
        first, second, at = (batch.positions[slot] for slot in ("first", "second", "answer"))
        tokens[row, first], tokens[row, second] = tokens[row, second], tokens[row, first]
        tokens[row, at + 1] = tokens[row, first] + tokens[row, second] - tokens[row, at + 1]
        return self._asked(tokens, batch.mask, dict(batch.positions))

    def _asked(
        self, tokens: Int[Tensor, "batch pos"], mask: Tensor, positions: Mapping[str, Int[Tensor, " batch"]]
    ) -> Batch:
        """The batch that asks for the answer at the query before it."""
        row, at = torch.arange(len(tokens), device=tokens.device), positions["answer"]
        scored = torch.zeros_like(mask)
        scored[row, at] = True
        asked = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1) if self.every_word else scored
        targets = torch.where(asked, tokens.roll(-1, dims=1), IGNORE)
        return Batch(tokens, mask, targets, scored, positions)
