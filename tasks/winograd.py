"""Winograd sentences: one word decides which of two nouns is meant, and no shortcut does.

"the dog did not cross the street because it was too tired , so the" -> "dog"; with "wet" for "tired" -> "street"
(after Winograd 1972; Levesque et al. 2012). If one noun were always an animal and the other a place, the words alone
would give the answer away (``nouns=by_category`` keeps that version). Here both nouns come from one pool, and held-out
sentences use only pairs that training has shown in the other order: whoever ignores the order answers them wrong.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch

from tasks._templates import Grammar, Situation, category_pairs, check, reversed_pairs
from workbench.errors import WorkbenchError, unknown_name
from workbench.task import SPLITS, Batch, Ceiling, Floor, Task, Vocabulary

ALL, PAIRS = "all", "pairs"


@dataclass(frozen=True)
class Winograd(Task):
    """Sentences of one or all situations, scored at one position: the word that names the answer.

    Attributes:
        situations: the name of one situation, or "all".
        nouns: pool puts any noun in either slot; by_category only beings in the first and only places in the second.
        held_out: pairs holds out ordered pairs of nouns; the name of a situation holds out that situation as well (its
            cue words are known from others; "all" situations are needed).
        loss: at the answer alone, or at every_word, as an ordinary next-word predictor is trained.
    """

    situations: str = "crossing"
    nouns: Literal["pool", "by_category"] = "pool"
    held_out: str = PAIRS
    loss: Literal["answer", "every_word"] = "answer"

    BEINGS: ClassVar[tuple[str, ...]] = ("animal", "dog", "horse", "child", "robot", "farmer", "wolf", "queen")
    PLACES: ClassVar[tuple[str, ...]] = ("street", "river", "bridge", "field", "tower", "tunnel", "lake", "market")
    SITUATIONS: ClassVar[tuple[Situation, ...]] = (
        Situation(
            "crossing",
            "the {first} did not cross the {second} because it was too {cue} , so the {answer} waited .",
            ("tired", "scared", "slow", "weak"),
            ("wet", "wide", "busy", "steep"),
        ),
        Situation(
            "climbing",
            "yesterday the {first} failed to climb the {second} since it was {cue} , and then the {answer} was alone .",
            ("slow", "weak", "small", "young"),
            ("busy", "steep", "hot", "dirty"),
        ),
        Situation(
            "lifting",
            "even with help the {first} could not lift the {second} as it seemed {cue} ; the {answer} stayed there .",
            ("small", "young", "ill", "lazy"),
            ("hot", "dirty", "heavy", "sharp"),
        ),
        Situation(
            "carrying",
            "the {first} refused to carry the {second} for it was much too {cue} , which is why we saw the {answer} .",
            ("ill", "lazy", "late", "drunk"),
            ("heavy", "sharp", "cold", "big"),
        ),
        Situation(
            "entering",
            "nobody asked , but the {first} never entered the {second} , being rather {cue} , and the {answer} was "
            "soon forgotten .",
            ("late", "drunk", "shy", "proud"),
            ("cold", "big", "dark", "noisy"),
        ),
        Situation(
            "approaching",
            "when the {first} would not approach the {second} because it looked {cue} to me , I blamed the {answer} .",
            ("shy", "proud", "tired", "scared"),
            ("dark", "noisy", "wet", "wide"),
        ),
    )

    def __post_init__(self) -> None:
        check(self.SITUATIONS, (*self.BEINGS, *self.PLACES), self._file)
        known = [s.name for s in self.SITUATIONS]
        if self.situations not in (*known, ALL):
            raise unknown_name("situation (task.situations)", self.situations, (*known, ALL))
        if self.held_out not in (*known, PAIRS):
            raise unknown_name("held-out part (task.held_out)", self.held_out, (*known, PAIRS))
        if self.nouns == "by_category" and len(self.BEINGS) != len(self.PLACES):
            raise WorkbenchError(
                f"{self._file}: BEINGS and PLACES differ in number",
                expected="as many of either",
                got=f"{len(self.BEINGS)} and {len(self.PLACES)}",
            )
        if self.held_out != PAIRS and self.situations != ALL:
            raise WorkbenchError(
                "task.held_out leaves nothing to train on",
                expected="task.situations=all, so that others remain",
                got=f"situations={self.situations}, held_out={self.held_out}",
            )

    @property
    def _file(self) -> str:
        """Where the templates stand, for errors: a subclass with templates of its own names its own file."""
        return str(getattr(sys.modules[type(self).__module__], "__file__", type(self).__module__))

    @property
    def chosen(self) -> tuple[Situation, ...]:
        """The situations in use."""
        return tuple(s for s in self.SITUATIONS if self.situations in (ALL, s.name))

    @cached_property
    def _grammar(self) -> Grammar:
        return Grammar(self.chosen, (*self.BEINGS, *self.PLACES), self.loss == "every_word")

    @cached_property
    def _pairs(self) -> dict[str, torch.Tensor]:
        make = reversed_pairs if self.nouns == "pool" else category_pairs
        return dict(make(len(self.BEINGS) + len(self.PLACES)))

    @property
    def n_ctx(self) -> int:  # type: ignore[override]
        """The words of the longest situation; shorter ones are padded on the right."""
        return self._grammar.n_ctx

    @property
    def vocabulary(self) -> Vocabulary:
        """Padding (id 0), the nouns, the cue words, all other words. There is no begin token."""
        return self._grammar.vocabulary

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """The cue decides between the candidates."""
        return {"cue": ("cue",), "candidates": ("first", "second")}

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        """``n`` sentences; situation, pair, role and cue are drawn evenly and independently, with replacement.

        Positions: ``first``, ``second`` and ``cue`` are those words; ``answer`` is the query that has to name the
        answer, the word before it.
        """
        if split not in SPLITS:
            raise WorkbenchError("unknown split", expected=" or ".join(SPLITS), got=repr(split))
        held = split != "train"
        situations = [
            i for i, s in enumerate(self.chosen) if self.held_out == PAIRS or (s.name == self.held_out) == held
        ]
        return self._grammar.sample(n, self._pairs[split], situations, stream)

    @property
    def preset(self) -> str:
        """Without the penalty on heads, which costs some seeds this task."""
        return "winograd"

    def floor(self) -> Floor:
        """Who knows the two nouns and not which: right half the time."""
        return Floor(0.5, "uniform guess between the two nouns")

    def ceiling(self) -> Ceiling | None:
        """At the answer, which the sentence determines: loss 0, accuracy 1. Not known where every word is a target."""
        return Ceiling(loss=0.0, accuracy=1.0) if self.loss == "answer" else None

    def counterfactual(self, batch: Batch) -> Batch:
        """The cue's partner of the other role in its place: one word changes, and the answer with it."""
        return self._grammar.swap_cue(batch)

    def swap_nouns(self, batch: Batch) -> Batch:
        """The two nouns in each other's place: the cue stays, and the answer becomes the other noun."""
        return self._grammar.swap_nouns(batch)


TASK = Winograd()
