"""Probes that are tables: what was seen with a key in training is the answer to it.

A key is a sum of random 64-bit numbers, one for each part of what a probe may see (Zobrist 1970): the same parts give
the same key, others practically never. Every ``fit_*`` gives a :class:`Fitted`; an answer of -1 means none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, UInt64

from workbench.audit.examples import Examples
from workbench.rng import numpy_stream
from workbench.task import Batch

Predict = Callable[[Examples], Int[np.ndarray, " m"]]
Keys = Callable[[Examples], UInt64[np.ndarray, " m"]]


@dataclass(frozen=True)
class Fitted:
    """A probe after training: what it answers, and in words what it settled on ("13 tokens before the answer")."""

    predict: Predict
    detail: str = ""


@dataclass(frozen=True, eq=False)
class Table:
    """The commonest answer seen with each key (of equally common ones the smallest id); keys are sorted."""

    keys: UInt64[np.ndarray, " entries"]
    answers: Int[np.ndarray, " entries"]

    @classmethod
    def of(cls, keys: UInt64[np.ndarray, " m"], answers: Int[np.ndarray, " m"]) -> Table:
        """The table of these examples."""
        order = np.lexsort((answers, keys))
        k, a = keys[order], answers[order]
        starts = np.flatnonzero(np.concatenate([[True], (k[1:] != k[:-1]) | (a[1:] != a[:-1])]))
        count = np.diff(np.append(starts, len(k)))
        k, a = k[starts], a[starts]
        order = np.lexsort((a, -count, k))
        k, a = k[order], a[order]
        first = np.concatenate([[True], k[1:] != k[:-1]])
        return cls(k[first], a[first])

    def __call__(self, keys: UInt64[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
        """The answers to these keys, -1 to a key that was never seen."""
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, self.answers[place], -1)


def accuracy(predicted: Int[np.ndarray, " m"], found: Examples) -> float:
    """Share of examples answered right."""
    return float((predicted == found.answer).mean())


def backed(*answers: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
    """The first of these that is an answer, example by example."""
    result = answers[0]
    for other in answers[1:]:
        result = np.where(result >= 0, result, other)
    return result


def majority(train: Examples) -> int:
    """The commonest answer."""
    return int(np.bincount(train.answer).argmax())


def fit_majority(train: Examples, names: Sequence[str]) -> Fitted:
    """The same answer always.

    Args:
        names: the tokens' texts, by id.
    """
    answer = majority(train)
    return Fitted(lambda found: np.full(len(found), answer), f"always {names[answer]!r}")


def fit_position_lookup(train: Examples) -> Fitted:
    """The token at one position tells the answer; the position is chosen on the training split."""
    common = majority(train)

    def answering(position: int) -> Predict:
        table = Table.of(_token_at(position)(train), train.answer)
        return lambda found: backed(table(_token_at(position)(found)), np.full(len(found), common))

    return _best(train, ((f"position {p}", answering(p)) for p in range(train.tokens.shape[1])))


def fit_position_copy(train: Examples) -> Fitted:
    """The answer is the token at one position, chosen on the training split."""
    common = majority(train)

    def copying(position: int) -> Predict:
        return lambda found: backed(found.at(np.full(len(found), position)), np.full(len(found), common))

    return _best(train, ((f"position {p}", copying(p)) for p in range(train.tokens.shape[1])))


def fit_offset_copy(train: Examples) -> Fitted:
    """The answer is the token a fixed distance before it; the distance is chosen on the training split."""
    common = majority(train)

    def copying(distance: int) -> Predict:
        return lambda found: backed(found.at(found.query + 1 - distance), np.full(len(found), common))

    width = train.tokens.shape[1]
    return _best(train, ((f"{d} token{'s'[: d > 1]} before the answer", copying(d)) for d in range(1, width + 1)))


def fit_last_tokens(train: Examples, n: int, d_vocab: int) -> Fitted:
    """The last ``n`` tokens tell the answer; unseen ones fall back on fewer, at last on the commonest answer."""
    common = majority(train)
    worth = _numbers("last", (n, d_vocab + 1))  # the column 0 is for no token: the sequence begins here

    def keys(found: Examples, k: int) -> np.ndarray:
        return np.stack([worth[back][found.at(found.query - back) + 1] for back in range(k)]).sum(axis=0)

    tables = [(k, Table.of(keys(train, k), train.answer)) for k in range(n, 0, -1)]

    def predict(found: Examples) -> np.ndarray:
        return backed(*(table(keys(found, k)) for k, table in tables), np.full(len(found), common))

    return Fitted(predict)


def fit_copies(seen: Iterable[Batch], width: int, d_vocab: int, *, ordered: bool) -> Copies:
    """The answer that stood after the same tokens in training: word for word, or (``ordered`` off) in any order.

    It answers nothing (-1) where they did not occur.

    Args:
        seen: training sequences, many; every scored position is remembered.
    """
    worth = _numbers("copies", (width, d_vocab) if ordered else (1, d_vocab))
    keys, answers, lines = [], [], []
    for batch in seen:
        prefix = _prefix_keys(worth, batch.tokens.numpy(), batch.mask.numpy())
        scored = batch.scored.numpy()
        keys.append(prefix[scored])
        answers.append(batch.targets.numpy()[scored])
        lines.append(prefix[:, -1])
    table, whole = Table.of(np.concatenate(keys), np.concatenate(answers)), np.concatenate(lines)

    def remembered(found: Examples) -> np.ndarray:
        return table(_prefix_keys(worth, found.tokens, found.mask)[found.row, found.query])

    return Copies(remembered, different=len(np.unique(whole)), drawn=len(whole))


@dataclass(frozen=True, kw_only=True)
class Copies(Fitted):
    """A memory of training sequences.

    Attributes:
        different, drawn: training sequences, how many different ones among how many.
    """

    different: int
    drawn: int


def _best(train: Examples, candidates: Iterable[tuple[str, Predict]]) -> Fitted:
    """The candidate that is right most often on the training split (the first of equal ones)."""
    detail, predict = max(candidates, key=lambda c: accuracy(c[1](train), train))
    return Fitted(predict, detail)


def _token_at(position: int) -> Keys:
    return lambda found: (found.at(np.full(len(found), position)) + 1).astype(np.uint64)


def _prefix_keys(worth: np.ndarray, tokens: np.ndarray, mask: np.ndarray) -> UInt64[np.ndarray, "n pos"]:
    """For every position the key of the real tokens up to it."""
    place = np.arange(tokens.shape[1]) if len(worth) > 1 else np.zeros(tokens.shape[1], dtype=int)
    return np.cumsum(np.where(mask, worth[place, tokens], np.uint64(0)), axis=1, dtype=np.uint64)


def _numbers(name: str, shape: tuple[int, int]) -> UInt64[np.ndarray, "rows columns"]:
    return numpy_stream(0, "audit", "keys", name).integers(0, 2**64, shape, dtype=np.uint64)
