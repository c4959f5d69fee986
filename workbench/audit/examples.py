"""What the probes are fitted on and scored with: scored positions of a task's splits, checked before anyone looks.

Axes: ``n`` sequences, ``pos`` positions, ``m`` examples (a sequence and one of its scored positions).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int

from workbench.errors import WorkbenchError, unknown_name
from workbench.registry import ROOT
from workbench.rng import numpy_stream, stream
from workbench.task import Batch, Task
from workbench.training.refusals import require_kinds

CHUNK = 512
"""Sequences drawn at once: named sets of keys take ``pos * pos`` cells a sequence."""

PER_SEQUENCE = 2
"""Scored positions used of each sequence, drawn at random where it has more."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Scored positions, each with what is visible from it and the right answer.

    Attributes:
        tokens: ids. mask: True where a token is real. row: the example's sequence. query: its position; visible are the
            real tokens up to it. answer: the id of the right next token. places: named positions, one a sequence.
        single: True where no sequence had more than one scored position.
    """

    tokens: Int[np.ndarray, "n pos"]
    mask: Bool[np.ndarray, "n pos"]
    row: Int[np.ndarray, " m"]
    query: Int[np.ndarray, " m"]
    answer: Int[np.ndarray, " m"]
    places: Mapping[str, Int[np.ndarray, " n"]]
    single: bool

    def __len__(self) -> int:
        return len(self.row)

    @property
    def visible(self) -> Bool[np.ndarray, "m pos"]:
        """For each example, the keys that its position may look at."""
        return self.mask[self.row] & (np.arange(self.tokens.shape[1]) <= self.query[:, None])

    def at(self, position: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
        """The visible token at a position of each example's sequence, -1 where there is none."""
        inside = (position >= 0) & (position <= self.query)
        place = np.where(inside, position, 0)
        return np.where(inside & self.mask[self.row, place], self.tokens[self.row, place], -1)

    def head(self, m: int) -> Examples:
        """The first ``m`` examples."""
        return Examples(self.tokens, self.mask, self.row[:m], self.query[:m], self.answer[:m], self.places, self.single)


def place_of(task: Task) -> str:
    """The file that defines a task, as a line of text names it."""
    path = Path(inspect.getsourcefile(type(task)) or task.name)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def draw(task: Task, n: int, split: str, seed: int, name: str) -> list[Batch]:
    """``n`` sequences of a split in chunks, from the stream of this name, checked against the vocabulary.

    Raises:
        WorkbenchError: naming the task's file and the field: a split that is empty or cannot be drawn, ids outside the
            vocabulary, masks or named positions that contradict the tokens.
    """
    chunks = []
    for start in range(0, n, CHUNK):
        size = min(CHUNK, n - start)
        try:
            batch = task.sample(size, split, stream(seed, "audit", name, split, start))
        except WorkbenchError:
            raise
        except Exception as error:  # whatever a user's file raises becomes the reason
            raise WorkbenchError(
                f"{place_of(task)}: sample cannot draw the split {split!r}", got=f"{type(error).__name__}: {error}"
            ) from error
        _check(task, batch, size, split)
        chunks.append(batch)
    return chunks


def _check(task: Task, batch: Any, size: int, split: str) -> None:
    where = place_of(task)
    if isinstance(batch, Batch) and len(batch) != size:
        what = "the split is empty" if len(batch) == 0 else "the split has another size than asked"
        raise WorkbenchError(f"{where}: sample({split!r}): {what}", expected=f"{size} sequences", got=len(batch))
    try:
        require_kinds(batch, task, size)
    except WorkbenchError as error:
        raise WorkbenchError(
            f"{where}: sample({split!r}): {error.problem}", expected=error.expected, got=error.got
        ) from error
    batch.check(len(task.vocabulary), f"{task.name} ({where}, split {split!r})")
    pad = task.vocabulary.pad
    padding = torch.zeros_like(batch.mask) if pad is None else batch.tokens == pad
    wrong = (padding == batch.mask).any(dim=1)
    if wrong.any():
        row = int(wrong.nonzero()[0, 0])
        position = int((padding[row] == batch.mask[row]).nonzero()[0, 0])
        token = task.vocabulary.tokens[int(batch.tokens[row, position])]
        raise WorkbenchError(
            f"{where}: sample({split!r}): mask contradicts tokens",
            expected="False exactly where the token is the vocabulary's pad"
            + (" (it has none)" if pad is None else ""),
            got=f"{bool(batch.mask[row, position])} at the token {token!r} (sequence {row}, position {position})",
        )
    for key, keys in batch.key_masks.items():
        if bool((keys & ~batch.mask[:, None, :]).any()):
            raise WorkbenchError(f"{where}: sample({split!r}): key_masks[{key!r}] contradicts mask",
                                 expected="no key on padding", got="one")  # fmt: skip


def choose(chunks: Sequence[Batch], seed: int, name: str) -> list[Bool[torch.Tensor, "_ _"]]:
    """Of each sequence's scored positions at most ``PER_SEQUENCE``, drawn from the stream of this name."""
    generator = numpy_stream(seed, "audit", "positions", name)
    chosen = []
    for batch in chunks:
        order = torch.from_numpy(generator.random(tuple(batch.scored.shape)))
        order[~batch.scored] = np.inf
        rank = order.argsort(dim=1).argsort(dim=1)
        chosen.append(batch.scored & (rank < PER_SEQUENCE))
    return chosen


def examples(chunks: Sequence[Batch], chosen: Sequence[Bool[torch.Tensor, "_ _"]], width: int) -> Examples:
    """The chosen positions of these chunks as one set, the tokens padded to ``width``."""

    def wide(parts: list[torch.Tensor]) -> np.ndarray:
        return torch.cat([torch.nn.functional.pad(p, (0, width - p.shape[1])) for p in parts]).numpy()

    row, query = np.nonzero(wide(list(chosen)))
    names = set.intersection(*(set(batch.positions) for batch in chunks))
    return Examples(
        tokens=wide([batch.tokens for batch in chunks]),
        mask=wide([batch.mask for batch in chunks]),
        row=row,
        query=query,
        answer=wide([batch.targets for batch in chunks])[row, query],
        places={name: torch.cat([batch.positions[name] for batch in chunks]).numpy() for name in sorted(names)},
        single=all(bool((batch.scored.sum(dim=1) == 1).all()) for batch in chunks),
    )


def twins(
    task: Task, chunks: Sequence[Batch], chosen: Sequence[Bool[torch.Tensor, "_ _"]], width: int
) -> Examples | None:
    """The same positions in the task's counterfactual twins, by their rank among the scored ones; None without twins.

    Raises:
        WorkbenchError: twins with another number of scored positions, or that contradict themselves.
    """
    others = [task.counterfactual(batch) for batch in chunks]
    if any(other is None for other in others):
        return None
    paired, places = [], []
    for batch, other, here in zip(chunks, others, chosen, strict=True):
        assert other is not None
        other.check(len(task.vocabulary), f"{task.name} ({place_of(task)}, counterfactual)")
        if not torch.equal(batch.scored.sum(dim=1), other.scored.sum(dim=1)):
            raise WorkbenchError(
                f"{place_of(task)}: counterfactual scores other positions",
                expected="as many scored positions in a twin as in its sequence",
                got="another number",
            )
        flags = torch.zeros_like(other.scored)
        # Both list their scored positions row by row, in order: the same index is the same rank in the same sequence.
        flags[other.scored] = here[batch.scored]
        paired.append(other)
        places.append(flags)
    return examples(paired, places, width)


def roles(task: Task, found: Examples) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The names of the cue's and of the candidates' positions; None where the task does not declare both.

    Raises:
        WorkbenchError: a role or a named position that does not exist.
    """
    for role, names in task.roles.items():
        if role not in ("cue", "candidates"):
            raise unknown_name(f"role (in {place_of(task)}, roles)", role, ("cue", "candidates"))
        for name in names:
            if name not in found.places:
                raise unknown_name(f"position (in {place_of(task)}, roles)", name, found.places)
    cue, candidates = (tuple(task.roles.get(role, ())) for role in ("cue", "candidates"))
    return (cue, candidates) if cue and candidates else None
