"""The smallest set of heads that keeps a behaviour: a greedy search in which every set is really evaluated.

Everything outside a set is replaced (:class:`workbench.ablation.KeepOnly`), and the set is judged by what is left of
the accuracy. Three stages, each of which can only make the set smaller:

* prune: from all heads, take away those that are missed least, as many at once as the behaviour allows, until no single
  head can be taken away;
* grow: from no head, add the one that helps most, until the behaviour is kept or nothing smaller can come of it;
* exchange: two heads of the set for one outside it.

So no head of the result can be left out, and no two of them can be exchanged for one: a local minimum. That it is the
smallest set of all is not proved. The criteria by which a circuit is judged are those of Wang et al. (2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from workbench.ablation import KeepOnly, Mean, Resample, Zero
from workbench.behaviour import KEPT
from workbench.components import Head
from workbench.errors import WorkbenchError
from workbench.measure import Effect, measure
from workbench.rng import numpy_stream
from workbench.subject import Subject
from workbench.task import Batch

STANDARD_ERRORS = 2.0
"""A set keeps the behaviour where accuracy minus ``KEPT`` x clean lies this many standard errors above 0: a set that
only just passes on the sequences it was chosen on would often fail on others."""

EXCHANGES = 300
"""With more exchanges than this to try, that stage is left out."""
EXCHANGE_WORK = 1e13
"""So it is with more than this to compute: tokens times parameters times exchanges (some minutes of a processor)."""

_DECIMALS = 7  # of what sets are ranked by: below that, two ways to the same number differ by rounding

Heads = frozenset[Head]


@dataclass(frozen=True)
class Evaluated:
    """A set that was kept alone.

    Attributes:
        heads: sorted. accuracy: at scored positions, the mean over sequences. loss: in nats, likewise.
        margin: accuracy minus ``KEPT`` x clean, minus ``STANDARD_ERRORS`` standard errors of that.
    """

    heads: tuple[Head, ...]
    accuracy: float
    loss: float
    margin: float

    @property
    def keeps(self) -> bool:
        """Whether the behaviour is kept on these sequences."""
        return self.margin > 0


@dataclass(frozen=True)
class Stage:
    """A stage of the search: how many new sets it evaluated, and the smallest set known at its end.

    ``finished`` is False where it was cut short or left out; ``reason`` says why.
    """

    name: str
    evaluated: int
    found: tuple[Head, ...]
    reason: str = ""

    @property
    def finished(self) -> bool:
        """Whether it ran to its end."""
        return not self.reason


@dataclass(frozen=True)
class CircuitSearch:
    """What a search found.

    Attributes:
        heads: the circuit, sorted; all heads where no smaller set keeps the behaviour, none where none is needed.
        replacement: what stands in for every other head. n: sequences. clean_accuracy: on them, nothing replaced.
        evaluated: every set that was evaluated, in order, each once. stages: what each stage did.
    """

    heads: tuple[Head, ...]
    replacement: str
    n: int
    clean_accuracy: float
    evaluated: tuple[Evaluated, ...]
    stages: tuple[Stage, ...]

    @property
    def minimal(self) -> bool:
        """Whether leaving out each single head was tried, and none can be."""
        tried = {one.heads: one for one in self.evaluated}
        fewer = [tuple(h for h in self.heads if h != head) for head in self.heads]
        return all(heads in tried and not tried[heads].keeps for heads in fewer)


def find_circuit(
    subject: Subject, batch: Batch, by: Zero | Mean | Resample, *, spent: Callable[[], bool] = lambda: False
) -> CircuitSearch:
    """Search for the smallest set of heads that keeps the behaviour when every other head is replaced.

    The same arguments give the same result. Ranks are by accuracy, then by loss, then by name.

    Args:
        batch: the sequences on which sets are chosen (to be judged on others). by: what replaces the other heads,
            without parts of its own (``Mean((), reference)``). spent: asked between evaluations; once it says so, the
            search ends with the smallest set known.

    Raises:
        WorkbenchError: fewer than two sequences, or whatever :func:`workbench.measure.measure` refuses.
    """
    if len(batch) < 2:
        raise WorkbenchError("a circuit cannot be searched", expected="at least 2 sequences", got=len(batch))
    sets = _Sets(subject, batch, by)
    everything = frozenset(subject.heads)
    stages: list[Stage] = []

    def note(name: str, reason: str, found: Heads) -> None:
        new = len(sets.known) - sum(stage.evaluated for stage in stages)
        stages.append(Stage(name, new, tuple(sorted(found)), reason))

    late = "the time was over"
    best, finished = _prune(sets, everything, spent)
    note("prune", "" if finished else late, best)
    grown, finished = _grow(sets, everything, len(best), spent)
    if grown is not None:
        best, finished = _prune(sets, grown, spent)
    note("grow", "" if finished else late, best)
    reason = late
    while not spent():
        pairs, outside = comb(len(best), 2), len(everything - best)
        most = min(EXCHANGES, int(EXCHANGE_WORK / sets.cost))
        if pairs * outside > most:
            reason = f"{pairs * outside} exchanges to try, more than {most}"
            break
        shorter = _exchange(sets, best, everything)
        if shorter is None:
            reason = ""
            break
        best, _ = _prune(sets, shorter, spent)
    note("exchange", reason, best)
    return CircuitSearch(
        heads=tuple(sorted(best)),
        replacement=by.replacement,
        n=len(batch),
        clean_accuracy=sets.clean_accuracy,
        evaluated=tuple(sets.known.values()),
        stages=tuple(stages),
    )


class _Sets:
    """Evaluates sets, each once, all that are asked for at once in one sweep."""

    def __init__(self, subject: Subject, batch: Batch, by: Zero | Mean | Resample) -> None:
        self.subject, self.batch, self.by = subject, batch, by
        self.cost = batch.mask.numel() * sum(p.numel() for p in subject.model.parameters())
        self.known: dict[Heads, Evaluated] = {}
        self.clean_accuracy = self(frozenset(subject.heads)).accuracy  # nothing is left out: the clean pass

    def __call__(self, heads: Heads) -> Evaluated:
        return self.all([heads])[0]

    def all(self, asked: Iterable[Heads]) -> list[Evaluated]:
        wanted = list(asked)
        new = [heads for heads in dict.fromkeys(wanted) if heads not in self.known]
        effects = measure(self.subject, self.batch, [KeepOnly(tuple(heads), self.by) for heads in new]) if new else []
        self.known |= {heads: _evaluated(heads, effect) for heads, effect in zip(new, effects, strict=True)}
        return [self.known[heads] for heads in wanted]


def _evaluated(heads: Heads, effect: Effect) -> Evaluated:
    margin = effect.ablated_accuracy - KEPT * effect.clean_accuracy
    error = float(margin.std(ddof=1)) / len(margin) ** 0.5
    accuracy, loss = (round(float(np.mean(x)), _DECIMALS) for x in (effect.ablated_accuracy, effect.ablated_loss))
    return Evaluated(tuple(sorted(heads)), accuracy, loss, float(margin.mean()) - STANDARD_ERRORS * error)


def _best_first(found: Evaluated) -> tuple[float, float, tuple[Head, ...]]:
    return -found.accuracy, found.loss, found.heads


def _prune(sets: _Sets, start: Heads, spent: Callable[[], bool]) -> tuple[Heads, bool]:
    """A subset that keeps the behaviour and from which no head can be taken, and whether the time sufficed for that."""
    best = start
    while best and not spent():
        without = sorted(sets.all(best - {head} for head in sorted(best)), key=_best_first)
        if not any(one.keeps for one in without):
            return best, True
        least_missed = [next(iter(best.difference(one.heads))) for one in without if one.keeps]
        sizes = [2**i for i in range(len(least_missed)) if 2**i < len(least_missed)] + [len(least_missed)]
        fewer = sets.all(best.difference(least_missed[:size]) for size in sizes)
        best = frozenset(next(one for one in reversed(fewer) if one.keeps).heads)
    return best, not best


def _grow(sets: _Sets, everything: Heads, size: int, spent: Callable[[], bool]) -> tuple[Heads | None, bool]:
    """A set below this size that keeps the behaviour, grown head by head; None where none is found so."""
    best: Heads = frozenset()
    while len(best) < size:
        if sets(best).keeps:
            return best, True
        if len(best) == size - 1:
            break
        if spent():
            return None, False
        larger = sets.all(best | {head} for head in sorted(everything - best))
        best = frozenset(min(larger, key=_best_first).heads)
    return None, True


def _exchange(sets: _Sets, best: Heads, everything: Heads) -> Heads | None:
    """The best set that keeps the behaviour after one head from outside has taken the place of two."""
    outside = sorted(everything - best)
    asked = [best.difference(pair) | {head} for pair in combinations(sorted(best), 2) for head in outside]
    kept = [one for one in sets.all(asked) if one.keeps]
    return frozenset(min(kept, key=_best_first).heads) if kept else None


def subsets(heads: Sequence[Head], most: int, *, seed: int = 0) -> tuple[tuple[Head, ...], ...]:
    """Subsets of a circuit on which its completeness is judged: not empty, each once, the whole among them.

    Args:
        most: all of them where there are no more than this; else the whole, each head alone, and random ones (every
            head in or out alike, stream "subsets") up to this number.
    """
    members = tuple(sorted(heads))
    if 2 ** len(members) - 1 <= most:
        found = (c for size in range(1, len(members) + 1) for c in combinations(members, size))
        return tuple(found)
    chosen = dict.fromkeys([members, *((head,) for head in members)])
    draw = numpy_stream(seed, "subsets")
    while len(chosen) < most:
        chosen[tuple(h for h, is_in in zip(members, draw.random(len(members)) < 0.5, strict=True) if is_in)] = None
        chosen.pop((), None)
    return tuple(chosen)[:most]
