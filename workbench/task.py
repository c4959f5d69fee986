"""What a task is: a vocabulary, a sampler, a floor to beat, and what it knows about its own ceiling.

Axes: ``batch pos query_pos key_pos``. A task is a frozen dataclass whose fields are its options; its file in
``tasks/`` is its registration (one constant ``TASK``), and the file's name is its name.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.errors import WorkbenchError, unknown_name

IGNORE = -100
"""The target where no loss is taken (torch's own ``ignore_index``)."""

SPLITS = ("train", "validation", "test")
"""Models learn from the first, are watched on the second, and claims about behaviour are made on the third."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a task, by id, and which of them are special.

    Attributes:
        tokens: the text of each id, all different.
        bos: the id of the begin token, or None where sequences have none.
        pad: the id that fills up short sequences, or None.
    """

    tokens: tuple[str, ...]
    bos: int | None = None
    pad: int | None = None

    def __post_init__(self) -> None:
        if len(set(self.tokens)) != len(self.tokens):
            twice = next(t for t in self.tokens if self.tokens.count(t) > 1)
            raise WorkbenchError("a vocabulary repeats a token", expected="all tokens different", got=repr(twice))
        for name in ("bos", "pad"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < len(self.tokens):
                raise WorkbenchError(
                    f"the {name} id lies outside the vocabulary", expected=f"0 to {len(self.tokens) - 1}", got=value
                )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def ordinary(self) -> tuple[int, ...]:
        """The ids that are not special: what probes may draw from."""
        return tuple(i for i in range(len(self.tokens)) if i not in (self.bos, self.pad))

    def encode(self, tokens: list[str] | tuple[str, ...]) -> list[int]:
        """Ids of a sequence of token texts; an unknown text is an error that names the nearest ones."""
        index = {t: i for i, t in enumerate(self.tokens)}
        for t in tokens:
            if t not in index:
                raise unknown_name("token", t, self.tokens)
        return [index[t] for t in tokens]

    def decode(self, ids: Tensor | list[int]) -> list[str]:
        """Texts of a sequence of ids."""
        return [self.tokens[int(i)] for i in ids]


@dataclass(frozen=True)
class Batch:
    """Sequences of a task, with what is asked of each position.

    Attributes:
        tokens: ids, ``[batch pos]``.
        mask: True where a token is real, False where it is padding.
        targets: the next token's id, or ``IGNORE`` where no loss is taken. Loss runs over these.
        scored: the positions at which the behaviour is judged (accuracy); each has a target.
        positions: named places, one index a sequence (``{"cue": [batch]}``), so that sequences of
            different length align by name.
        key_masks: named sets of keys for each query, ``[batch query_pos key_pos]``.
    """

    tokens: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    targets: Int[Tensor, "batch pos"]
    scored: Bool[Tensor, "batch pos"]
    positions: Mapping[str, Int[Tensor, " batch"]] = field(default_factory=dict)
    key_masks: Mapping[str, Bool[Tensor, "batch query_pos key_pos"]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def _map(self, f: Any) -> Batch:
        return Batch(
            f(self.tokens),
            f(self.mask),
            f(self.targets),
            f(self.scored),
            {k: f(v) for k, v in self.positions.items()},
            {k: f(v) for k, v in self.key_masks.items()},
        )

    def __getitem__(self, index: slice | Tensor | list[int]) -> Batch:
        """The sequences at these indices (a slice, a tensor or a list), as a batch."""
        return self._map(lambda t: t[index])

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self._map(lambda t: t.to(device))

    def chunks(self, size: int) -> Iterator[Batch]:
        """The batch in pieces of at most ``size`` sequences, in order."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def check(self, d_vocab: int, name: str) -> None:
        """Raise the error that names the task and the field if the parts contradict each other."""

        def require(ok: bool, fieldname: str, expected: str) -> None:
            if not ok:
                raise WorkbenchError(
                    f"task {name}: {fieldname} contradicts the batch", expected=expected, got="otherwise"
                )

        shape = self.tokens.shape
        require(all(t.shape == shape for t in (self.mask, self.targets, self.scored)), "shape", f"all {tuple(shape)}")
        require(bool(((self.tokens >= 0) & (self.tokens < d_vocab)).all()), "tokens", f"ids from 0 to {d_vocab - 1}")
        with_loss = self.targets != IGNORE
        inside = (self.targets >= 0) & (self.targets < d_vocab)
        require(bool((inside | ~with_loss).all()), "targets", f"ids from 0 to {d_vocab - 1}, or {IGNORE}")
        require(bool((with_loss | ~self.scored).all()), "scored", "only positions that have a target")
        require(bool((self.mask | ~with_loss).all()), "mask", "no target on padding")
        require(bool(self.scored.any(dim=1).all()), "scored", "at least one position in every sequence")
        for key, place in self.positions.items():
            require(place.shape == shape[:1], f"positions[{key!r}]", "one index a sequence")
            require(
                bool(((place >= 0) & (place < shape[1])).all()), f"positions[{key!r}]", "indices inside the sequence"
            )
        for key, keys in self.key_masks.items():
            require(keys.shape == (*shape, shape[1]), f"key_masks[{key!r}]", "[batch query_pos key_pos]")
            require(not bool(keys.triu(1).any()), f"key_masks[{key!r}]", "no key after its query")


@dataclass(frozen=True)
class Ceiling:
    """What the best possible predictor reaches: loss in nats a position that has a target, accuracy where scored."""

    loss: float
    accuracy: float


@dataclass(frozen=True)
class Floor:
    """What a named trivial predictor reaches where scored; this is the task's "chance"."""

    accuracy: float
    predictor: str


class Task(ABC):
    """A source of sequences. Subclasses are frozen dataclasses; their fields are the options.

    Required: ``n_ctx`` (a field or property), ``vocabulary``, ``sample``, ``floor``.
    Optional capabilities, found by overriding: ``ceiling``, ``bayes_loss``, ``counterfactual``. A task that repeats
    blocks overrides ``periods``.
    """

    n_ctx: int

    @property
    def periods(self) -> tuple[int, ...]:
        """The block lengths of a task that repeats blocks, each equally often; else empty."""
        return ()

    @property
    def roles(self) -> Mapping[str, tuple[str, ...]]:
        """Which of the batch's named positions are the ``cue`` and which the ``candidates``, for the audit."""
        return {}

    @property
    def allowed_probes(self) -> Mapping[str, str]:
        """The audit's probes that this task may pass, each with the reason why that is legitimate."""
        return {}

    @property
    def preset(self) -> str:
        """The preset that training this task starts from, unless another is asked for."""
        return "default"

    @property
    def name(self) -> str:
        """The name of the file that defines the task."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def options(self) -> dict[str, Any]:
        """The options as plain data: with the name, the task's part of a run's identity."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    @property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """The tokens."""

    @abstractmethod
    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        """``n`` sequences of a split (one of ``SPLITS``), drawn from the stream alone."""

    @abstractmethod
    def floor(self) -> Floor:
        """The trivial predictor that a behaviour has to beat."""

    def ceiling(self) -> Ceiling | None:
        """The exact Bayes ceiling, where it is known."""
        return None

    def bayes_loss(self, batch: Batch) -> Float[Tensor, "batch pos"] | None:
        """The Bayes predictor's loss at every position (0 without a target), where it is known."""
        return None

    def counterfactual(self, batch: Batch) -> Batch | None:
        """The twin batch in which the smallest change flips every answer, where there is one."""
        return None


CAPABILITIES = ("ceiling", "bayes_loss", "counterfactual")


def capabilities(task: Task) -> frozenset[str]:
    """Which optional capabilities a task has, by what it overrides."""
    return frozenset(c for c in CAPABILITIES if getattr(type(task), c) is not getattr(Task, c))
