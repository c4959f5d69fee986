"""Sweeps: the effect of every part, or of every pair of parts, with what they did beyond each alone.

All effects are ablated minus clean, paired by sequence. Axes: ``n`` sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor

from workbench.ablation import Intervention, KeepOnly, Mean, Resample, Zero
from workbench.components import Head, Part, Parts, as_parts, part_names
from workbench.errors import WorkbenchError, unknown_name
from workbench.measure import METRICS, Effect, measure
from workbench.metrics import incorrect_answers
from workbench.reference import Pairing, ReferenceSet, build_reference
from workbench.statistics import Bounds, Interval, holm, mean_interval, sign_flip_p, smallest_visible
from workbench.subject import Subject
from workbench.task import Batch

KINDS = ("zero", "mean", "resample", "keep-only")

BOUNDS: Mapping[str, Bounds | None] = {"accuracy": (-1, 1), "loss": None, "logit difference": None}
"""Of an effect on each metric."""

MOST_SAMPLES = 1 << 16
"""Sampling for a width stops here."""


@dataclass(frozen=True)
class Way:
    """How parts are removed.

    Attributes:
        kind: what stands in for their output: zero, mean, resample; keep-only replaces all other heads by their means.
        frozen_patterns, frozen_norm: modes of the whole.
    """

    kind: str = "zero"
    frozen_patterns: bool = False
    frozen_norm: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("way to remove parts", self.kind, KINDS)

    @property
    def needs_reference(self) -> bool:
        """Whether means are put in."""
        return self.kind in ("mean", "keep-only")

    def of(self, parts: Parts, reference: ReferenceSet | None, pairing: Pairing | None) -> Intervention:
        """The intervention on these parts."""
        frozen_patterns, frozen_norm = self.frozen_patterns, self.frozen_norm
        if self.kind == "zero":
            return Zero(parts, frozen_patterns=frozen_patterns, frozen_norm=frozen_norm)
        if self.kind == "resample":
            assert pairing is not None
            return Resample(parts, pairing, frozen_patterns=frozen_patterns, frozen_norm=frozen_norm)
        assert reference is not None
        if self.kind == "mean":
            return Mean(parts, reference, frozen_patterns=frozen_patterns, frozen_norm=frozen_norm)
        by = Mean((), reference)
        return KeepOnly(parts, by, frozen_patterns=frozen_patterns, frozen_norm=frozen_norm)


ZERO = Way()


@dataclass(frozen=True, eq=False)
class Sweep:
    """The effects of a sweep.

    Attributes:
        effects: by what was replaced: one part, or two in their order. metrics: the names of the rows of an effect.
    """

    effects: Mapping[tuple[Part, ...], Effect]
    metrics: tuple[str, ...]

    @property
    def n(self) -> int:
        """Sequences."""
        return next(iter(self.effects.values())).clean.shape[1]

    def change(self, parts: tuple[Part, ...], metric: str) -> Float[np.ndarray, " n"]:
        """Ablated minus clean of a metric, sequence by sequence."""
        if metric not in self.metrics:
            raise unknown_name("metric", metric, self.metrics)
        at = self.metrics.index(metric)
        return self.effects[parts].ablated[at] - self.effects[parts].clean[at]

    def interval(self, parts: tuple[Part, ...], metric: str) -> Interval:
        """The effect with its interval."""
        return mean_interval(self.change(parts, metric), bounds=BOUNDS[metric])

    def corrected(self, metric: str, sets: Sequence[tuple[Part, ...]], *, seed: int = 0) -> np.ndarray:
        """p-values by sign flips that each effect is 0, Holm-corrected for the number of these sets."""
        return holm([sign_flip_p(self.change(parts, metric), seed=seed) for parts in sets])

    def frame(self, *, seed: int = 0) -> pd.DataFrame:
        """One row for each component and metric, in that order.

        Columns: component, metric, clean, ablated, effect (ablated minus clean), low, high, p_corrected (for the number
        of components), smallest_visible (the smallest effect that so many sequences show, see
        :func:`workbench.statistics.smallest_visible`), n, fired.
        """
        rows = []
        sets = list(self.effects)
        p = {metric: self.corrected(metric, sets, seed=seed) for metric in self.metrics}
        for i, (parts, effect) in enumerate(self.effects.items()):
            fired = f"{effect.fired}/{effect.expected}"
            for at, metric in enumerate(self.metrics):
                found = self.interval(parts, metric)
                clean, ablated = float(effect.clean[at].mean()), float(effect.ablated[at].mean())
                visible = smallest_visible(self.change(parts, metric), bounds=BOUNDS[metric])
                cells = (found.value, found.low, found.high, float(p[metric][i]), visible, found.n, fired)
                rows.append((part_names(parts), metric, clean, ablated, *cells))
        return pd.DataFrame(rows, columns=COLUMNS)

    def synergy(self, metric: str, *, seed: int = 0) -> pd.DataFrame:
        """What each pair did together beyond the sum of both alone.

        Columns: first, second, joint (the effect of both), alone (the sum of their effects), synergy (joint minus
        alone), low, high, p_corrected (for the number of pairs). For accuracy, negative synergy is redundancy: each
        stands in for the other, and only together are they missed; positive: what one does needs the other.
        """
        pairs = [parts for parts in self.effects if len(parts) == 2]
        alone = {pair: sum(self.change((part,), metric) for part in pair) for pair in pairs}
        beyond = {pair: self.change(pair, metric) - alone[pair] for pair in pairs}
        p = holm([sign_flip_p(beyond[pair], seed=seed) for pair in pairs])
        bounds = None if BOUNDS[metric] is None else (-2, 2)
        rows = []
        for pair, corrected in zip(pairs, p, strict=True):
            at = mean_interval(beyond[pair], bounds=bounds)
            joint, apart = float(self.change(pair, metric).mean()), float(np.mean(alone[pair]))
            rows.append((*map(str, pair), joint, apart, at.value, at.low, at.high, float(corrected)))
        return pd.DataFrame(rows, columns=SYNERGY)


COLUMNS = [
    "component",
    "metric",
    "clean",
    "ablated",
    "effect",
    "low",
    "high",
    "p_corrected",
    "smallest_visible",
    "n",
    "fired",
]
SYNERGY = ["first", "second", "joint", "alone", "synergy", "low", "high", "p_corrected"]


def sweep(
    subject: Subject,
    batch: Batch,
    parts: Parts,
    way: Way = ZERO,
    *,
    pairs: bool = False,
    reference: ReferenceSet | None = None,
    incorrect: Int[Tensor, "batch pos"] | None = None,
) -> Sweep:
    """Every part alone and, if asked for, every pair of them, on one batch.

    Args:
        reference: of the means; None builds one where the way needs it. incorrect: as :func:`workbench.measure.measure`
            takes them.

    Raises:
        WorkbenchError: no parts, parts that do not exist, or what :func:`workbench.measure.measure` refuses.
    """
    chosen = as_parts(parts)
    if not chosen:
        raise WorkbenchError("a sweep needs parts", expected='at least one, as "L0.H0"', got="none")
    if way.kind == "keep-only" and not all(isinstance(part, Head) for part in chosen):
        raise WorkbenchError("keep-only keeps heads", expected='heads, as "L0.H0"', got=part_names(chosen))
    if way.kind == "keep-only" and pairs:
        raise WorkbenchError(
            "pairs that are kept have no synergy",
            expected="zero, mean or resample",
            got="keep-only",
            next_step="workbench report RUN --only circuit_search looks for sets that suffice.",
        )
    if pairs and len(chosen) < 2:
        raise WorkbenchError("pairs need two parts", expected="at least two", got=part_names(chosen))
    if way.needs_reference and reference is None:
        reference = build_reference(subject)
    pairing = Pairing(len(batch), subject.seed) if way.kind == "resample" else None
    sets: list[tuple[Part, ...]] = [(part,) for part in chosen]
    sets += list(combinations(chosen, 2)) if pairs else []
    done = measure(subject, batch, [way.of(these, reference, pairing) for these in sets], incorrect=incorrect)
    metrics = METRICS if incorrect is not None else METRICS[:2]
    return Sweep(dict(zip(sets, done, strict=True)), metrics)


def sample_sweep(
    subject: Subject,
    parts: Parts,
    way: Way = ZERO,
    *,
    pairs: bool = False,
    samples: int = 512,
    until_width: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Sweep:
    """A sweep over test sequences of the subject's task: so many, or as many as it takes.

    The logit difference is among the metrics where the task has counterfactuals.

    Args:
        samples: sequences; with ``until_width``, of each round.
        until_width: sample round after round until no interval of an effect on accuracy is wider, or ``MOST_SAMPLES``
            are reached. What stops is the width alone, never the size of an effect.

    Raises:
        WorkbenchError: a width or a number of samples that cannot be used, or what :func:`sweep` refuses.
    """
    if samples < 8:
        raise WorkbenchError("--samples cannot be used", expected="at least 8", got=samples)
    if until_width is not None and not 0 < until_width < 2:
        raise WorkbenchError("--until-width cannot be used", expected="a width above 0 and below 2", got=until_width)
    assert subject.task is not None
    reference = build_reference(subject) if way.needs_reference else None
    whole: Sweep | None = None
    for index in range(max(1, MOST_SAMPLES // samples)):
        batch = subject.sample(samples, "test", f"sweep {index}")
        incorrect = incorrect_answers(subject.task, batch)
        new = sweep(subject, batch, parts, way, pairs=pairs, reference=reference, incorrect=incorrect)
        whole = new if whole is None else _joined(whole, new)
        if until_width is None:
            return whole
        widest = max(_width(whole.interval(of, "accuracy")) for of in whole.effects)
        progress(f"{whole.n} sequences: the widest interval is {widest:.4f}")
        if widest <= until_width:
            return whole
    assert whole is not None
    raise WorkbenchError(
        "the intervals stay wider than asked for",
        expected=f"at most {until_width:g}",
        got=f"{widest:.4f} after {whole.n} sequences",
        next_step="Ask for a wider one.",
    )


def _width(interval: Interval) -> float:
    return interval.high - interval.low


def _joined(first: Sweep, second: Sweep) -> Sweep:
    effects = {}
    for parts, a in first.effects.items():
        b = second.effects[parts]
        clean, ablated = (np.concatenate(pair, axis=1) for pair in ((a.clean, b.clean), (a.ablated, b.ablated)))
        effects[parts] = Effect(a.intervention, clean, ablated, a.fired + b.fired, a.expected + b.expected)
    return Sweep(effects, first.metrics)
