"""The audit itself: fit every probe on the training split, score it on the test split, judge.

The memory of training sequences counts as right as chance on what it never saw: its leak share is then the share of
test sequences that it knows (as far as it knows them right), however many answers a task has.

Seconds, not minutes: the number of sequences, of scored positions a sequence and of training steps is bounded, and a
probe's cost grows with the task's context and vocabulary only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Shaped

from workbench import cache
from workbench.audit.certificate import LEAK, Audit, AuditVerdict, Overlap, Probe, from_json, to_json
from workbench.audit.examples import Examples, choose, draw, examples, place_of, roles, twins
from workbench.audit.learned import (
    fit_bag_of_words,
    fit_candidates_without_cue,
    fit_cue_without_candidates,
    fit_uniform_average,
)
from workbench.audit.lookups import (
    Copies,
    Fitted,
    fit_copies,
    fit_last_tokens,
    fit_majority,
    fit_offset_copy,
    fit_position_copy,
    fit_position_lookup,
)
from workbench.content import content_hash, files_hash
from workbench.errors import unknown_name
from workbench.statistics import Interval, mean_interval, wilson
from workbench.storage import plain
from workbench.task import Task
from workbench.training.execution import use_threads

MARGIN = 0.05
"""Ceiling and chance closer than this leave nothing to judge."""

MEMORY_TOKENS = 800_000
"""Of the training sequences looked through for copies."""

MEANINGS = {
    "majority_answer": "one answer is right often enough",
    "bag_of_words": "which words occur is enough, their order is not needed",
    "uniform_average": "an equal look at everything is enough, no head has to choose",
    "position_lookup": "the word at one fixed place tells the answer",
    "position_copy": "the answer stands at one fixed place",
    "offset_copy": "the answer stands at one fixed distance",
    "last_token": "the last token tells the answer",
    "last_2_tokens": "the last two tokens tell the answer",
    "last_3_tokens": "the last three tokens tell the answer",
    "exact_copies": "test sequences occur in training, remembering them is enough",
    "copies_up_to_order": "test sequences occur in training in another order, remembering their words is enough",
    "candidates_without_cue": "which candidate wins can be told without the cue",
    "cue_without_candidates": "the answer can be told without the candidates",
}
"""What it says about a task when a probe passes, by the probe's name."""


@dataclass(frozen=True)
class Size:
    """How much an audit looks at: sequences to fit on, to score, to look through for copies; training steps."""

    fit: int = 4096
    test: int = 2048
    copies: int = 16384
    steps: int = 250


def code_version() -> str:
    """The hash of the code that decides an audit's numbers: an audit by other code is made again."""
    here = Path(__file__).parent
    beside = ("task.py", "statistics.py", "rng.py", "training/step.py")
    files = [*here.glob("*.py"), *(here.parent / name for name in beside), *(here.parent / "model").glob("*.py")]
    return files_hash(sorted(files))


def cached(task: Task, *, seed: int = 0, progress: Callable[[str], None] = lambda stage: None) -> Audit:
    """The audit of a task, from the cache where the same task was audited by the same code before."""
    kept = cache.read_as("audit", _content(task, seed), from_json)
    if kept is not None:
        return kept
    made = audit(task, seed=seed, progress=progress)
    cache.write("audit", made.content, to_json(made))
    return made


def _content(task: Task, seed: int) -> str:
    return content_hash(task, "audit", code_version(), seed)


def audit(
    task: Task, *, seed: int = 0, size: Size | None = None, progress: Callable[[str], None] = lambda stage: None
) -> Audit:
    """Fit and score every probe, on one thread (so that the numbers repeat).

    Args:
        seed: of the sequences and of the network. size: how much is looked at. progress: called with each probe's name.

    Raises:
        WorkbenchError: naming the task's file and the field: a split that is empty, an answer outside the vocabulary,
            masks that contradict the tokens, roles or allowed probes that do not exist.
    """
    from threadpoolctl import threadpool_limits

    size = size or Size()
    for name in task.allowed_probes:
        if name not in MEANINGS:
            raise unknown_name(f"probe (in {place_of(task)}, allowed_probes)", name, MEANINGS)
    with use_threads(1), threadpool_limits(1):
        return _audit(task, seed, size, progress)


def _audit(task: Task, seed: int, size: Size, progress: Callable[[str], None]) -> Audit:
    progress("sequences")
    width = task.n_ctx
    draw(task, 64, "validation", seed, "check")
    chunks = {split: draw(task, n, split, seed, "probe") for split, n in (("train", size.fit), ("test", size.test))}
    chosen = {split: choose(chunks[split], seed, split) for split in chunks}
    train, test = (examples(chunks[split], chosen[split], width) for split in ("train", "test"))
    paired = twins(task, chunks["test"], chosen["test"], width)
    chance, ceiling = task.floor().accuracy, task.ceiling()
    top = 1.0 if ceiling is None else ceiling.accuracy
    probes, overlaps = [], []
    for name, fit in _probes(task, train, seed, size):
        progress(name.replace("_", " "))
        fitted = fit()
        answers = fitted.predict(test)
        right = answers == test.answer
        both = None if paired is None else right & (fitted.predict(paired) == paired.answer)
        if isinstance(fitted, Copies):
            overlaps.append(_overlap(name, fitted, answers >= 0, test))
            at = mean_interval(_by_sequence(np.where(answers >= 0, right, chance), test), bounds=(0, 1))
        else:
            at = _interval(right, test)
        probes.append(_judge(name, fitted.detail, at, both, chance, top, task.allowed_probes.get(name)))
    verdict: AuditVerdict = "leaks" if any(p.leaks for p in probes) else "clean"
    return Audit(
        task=task.name,
        options=plain(task.options),
        seed=seed,
        file=place_of(task),
        verdict="not_applicable" if top - chance < MARGIN else verdict,
        probes=tuple(probes),
        overlap=tuple(overlaps),
        predictor=task.floor().predictor,
        ceiling=top,
        fit=size.fit,
        test=size.test,
        single=test.single,
        content=_content(task, seed),
    )


def _probes(task: Task, train: Examples, seed: int, size: Size) -> Iterator[tuple[str, Callable[[], Fitted]]]:
    """Every probe that the task admits, by name, to be fitted when called."""
    d_vocab, width = len(task.vocabulary), task.n_ctx
    seen = draw(task, min(size.copies, max(size.fit, MEMORY_TOKENS // width)), "train", seed, "copies")
    yield "majority_answer", partial(fit_majority, train, task.vocabulary.tokens)
    yield "bag_of_words", partial(fit_bag_of_words, train, d_vocab)
    yield "uniform_average", partial(fit_uniform_average, task, size.steps, seed)
    yield "position_lookup", partial(fit_position_lookup, train)
    yield "position_copy", partial(fit_position_copy, train)
    yield "offset_copy", partial(fit_offset_copy, train)
    for n, name in enumerate(("last_token", "last_2_tokens", "last_3_tokens"), start=1):
        yield name, partial(fit_last_tokens, train, n, d_vocab)
    yield "exact_copies", partial(fit_copies, seen, width, d_vocab, ordered=True)
    yield "copies_up_to_order", partial(fit_copies, seen, width, d_vocab, ordered=False)
    parts = roles(task, train)
    if parts is not None:
        yield "candidates_without_cue", partial(fit_candidates_without_cue, train, d_vocab, *parts)
        yield "cue_without_candidates", partial(fit_cue_without_candidates, train, d_vocab, *parts)


def _interval(right: Bool[np.ndarray, " m"], found: Examples) -> Interval:
    """Accuracy with its interval over sequences: Wilson for one scored position each, else bootstrap of their means."""
    if found.single:
        return wilson(int(right.sum()), len(right))
    return mean_interval(_by_sequence(right, found), bounds=(0, 1))


def _by_sequence(right: Shaped[np.ndarray, " m"], found: Examples) -> Float[np.ndarray, " n"]:
    return np.bincount(found.row, weights=right) / np.bincount(found.row)


def _judge(
    name: str,
    detail: str,
    at: Interval,
    both: Bool[np.ndarray, " m"] | None,
    chance: float,
    ceiling: float,
    allowed: str | None,
) -> Probe:
    def share(value: float) -> float | None:
        return None if ceiling - chance < MARGIN else round((value - chance) / (ceiling - chance), 6)

    share_low = share(at.low)
    return Probe(
        name=name,
        # Six digits: more would only record the rounding of one machine.
        accuracy=round(at.value, 6),
        low=round(at.low, 6),
        high=round(at.high, 6),
        chance=round(chance, 6),
        leak_share=share(at.value),
        share_low=share_low,
        share_high=share(at.high),
        leaks=allowed is None and share_low is not None and share_low > LEAK,
        twins=None if both is None else round(float(both.mean()), 6),
        meaning=MEANINGS[name],
        detail=detail,
        allowed=allowed,
    )


def _overlap(name: str, memory: Copies, known: Bool[np.ndarray, " m"], test: Examples) -> Overlap:
    # One position a sequence, the last one drawn: the longer a beginning, the less it recurs by chance.
    last = np.flatnonzero(np.append(np.diff(test.row), 1))
    at = wilson(int(known[last].sum()), len(last))
    low, high = (round(v, 6) for v in (at.low, at.high))
    kind = "exact" if name == "exact_copies" else "up_to_order"
    return Overlap(kind, round(at.value, 6), low, high, memory.different, memory.drawn)  # type: ignore[arg-type]
