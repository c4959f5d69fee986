"""Sequences that make heads show what they do: blocks of distinct tokens, repeated, or a task's own lines.

Axes: ``batch pos``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.task import Batch, Vocabulary

if TYPE_CHECKING:
    from workbench.subject import Subject


@dataclass(frozen=True)
class Probe:
    """Sequences on which heads are scored.

    Attributes:
        tokens: ids. mask: True where a token is real (everywhere, for repeated blocks).
        bos: whether position 0 holds the begin token; it occurs nowhere else.
        periods: the block length of each sequence; None for a task's own.
        keys: the keys that the task names as a perfect induction head's, at scored queries; None for repeated blocks.
    """

    tokens: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    bos: bool
    periods: Int[Tensor, " batch"] | None
    keys: Bool[Tensor, "batch query_pos key_pos"] | None = None

    def __len__(self) -> int:
        return self.tokens.shape[0]


def repeated_blocks(
    vocabulary: Vocabulary, n: int, n_ctx: int, periods: Sequence[int], stream: torch.Generator
) -> Probe:
    """``n`` sequences of ``n_ctx`` tokens, each a block of distinct ordinary tokens repeated to the end.

    A vocabulary with a begin token has it exactly once, at position 0; the other ``T = n_ctx - 1`` positions (``n_ctx``
    without one) are content. The period of each sequence is drawn uniformly from ``periods``.

    Raises:
        WorkbenchError: no sequences or periods, a period below 1 or above T - 2 (nothing would repeat), or more
            distinct tokens in a block than the vocabulary has.
    """
    ordinary = torch.tensor(vocabulary.ordinary, dtype=torch.long)
    bos = vocabulary.bos is not None
    content = n_ctx - bos
    if n < 1:
        raise WorkbenchError("a probe needs sequences", expected="at least 1", got=n)
    if not periods:
        raise WorkbenchError("a probe needs periods", expected="at least one whole number", got="none")
    if min(periods) < 1 or max(periods) > content - 2:
        raise WorkbenchError(
            "a period does not fit the context",
            expected=f"1 to {content - 2} (a context of {n_ctx}{' with a begin token' if bos else ''})",
            got=min(periods) if min(periods) < 1 else max(periods),
        )
    if max(periods) > len(ordinary):
        raise WorkbenchError(
            "the vocabulary is too small for a block of distinct tokens",
            expected=f"periods up to {len(ordinary)} (the ordinary tokens)",
            got=max(periods),
        )
    period = torch.tensor(periods)[torch.randint(len(periods), (n,), generator=stream)]
    # The ranks of independent uniform numbers are a uniform permutation: one for each sequence.
    order = torch.rand(n, len(ordinary), generator=stream, dtype=torch.float64).argsort(dim=1)
    index = torch.arange(content)[None, :] % period[:, None]
    tokens = ordinary[order.gather(1, index)]
    if vocabulary.bos is not None:
        tokens = torch.cat([torch.full((n, 1), vocabulary.bos), tokens], dim=1)
    return Probe(tokens, torch.ones_like(tokens, dtype=torch.bool), bos, period)


def task_lines(batch: Batch, vocabulary: Vocabulary) -> Probe:
    """A task's own sequences as a probe, with the induction keys that it names at its scored queries.

    Raises:
        WorkbenchError: a batch that names no induction keys.
    """
    if "induction" not in batch.key_masks:
        raise WorkbenchError(
            "the task's own sequences cannot show induction",
            expected='key_masks["induction"], the keys of a perfect induction head',
            got=", ".join(batch.key_masks) or "no key masks",
        )
    keys = batch.key_masks["induction"] & batch.scored[:, :, None]
    return Probe(batch.tokens, batch.mask, vocabulary.bos is not None, None, keys)


def varying_periods(n_ctx: int, n_ordinary: int, low: int = 6, high: int = 20) -> tuple[int, ...]:
    """Periods from ``low`` to ``high``, as far as they fit: at most ``n_ctx - 3`` (a begin token, and two repeated
    tokens to see) and at most ``n_ordinary`` distinct tokens. Where fewer than two are left, from half the longest.

    Raises:
        WorkbenchError: a context or vocabulary in which no two periods fit.
    """
    top = min(high, n_ctx - 3, n_ordinary)
    if top < 2:
        raise WorkbenchError(
            "no varying periods fit",
            expected="a context of at least 5 and 2 ordinary tokens",
            got=f"a context of {n_ctx} and {n_ordinary} ordinary tokens",
        )
    return tuple(range(low if top > low else (top + 1) // 2, top + 1))


def impostor_periods(fixed: int, n_ctx: int, candidates: Iterable[int]) -> tuple[int, ...]:
    """The candidates on which a head made for period ``fixed`` gets nothing by position: those that divide no multiple
    of ``fixed`` below ``n_ctx`` (where one does, a key that far back is right for both periods)."""
    multiples = range(fixed, n_ctx, fixed)
    return tuple(p for p in candidates if all(m % p for m in multiples))


def probe_periods(subject: Subject) -> tuple[int, ...]:
    """Periods 6 to 20 and the whole range of the subject's task, as far as they fit.

    Never the task's range alone: a head that looks back a fixed distance passes on a narrow one.
    """
    own = () if subject.task is None else subject.task.periods
    low, high = min((6, *own)), max((20, *own))
    return varying_periods(subject.config.n_ctx, len(subject.vocabulary.ordinary), low, high)
