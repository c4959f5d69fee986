"""Interventions of every kind, drawn at random for a small random model, for properties that must hold of them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import small_models as small
from workbench.ablation import Intervention, KeepOnly, Mean, Resample, Zero
from workbench.components import all_heads, all_parts
from workbench.cut_path import CutPath
from workbench.reference import Pairing, ReferenceSet, build_reference
from workbench.rng import stream
from workbench.subject import Subject
from workbench.task import Batch

N = 4
Test = Callable[..., None]
PLACES: tuple[Any, ...] = ((), "here", 0, ("here", 1), ("last",), (1, 2, 3))


@dataclass(frozen=True, eq=False)
class Drawn:
    """A random model, a batch with named positions, a reference set, an intervention on them, and more to draw from."""

    subject: Subject
    batch: Batch
    reference: ReferenceSet
    value: Intervention
    data: st.DataObject

    @property
    def shape(self) -> dict[str, object]:
        """The options that the model was drawn with."""
        return {name: getattr(self.subject.config, name) for name in small.SHAPES[0]}

    @property
    def changes(self) -> bool:
        """Whether there is anything to replace: a keep-only of everything has nothing."""
        return bool(self.value.targets(self.subject.config))


def batch_of(s: Subject, n: int = N, seed: int = 0) -> Batch:
    """A batch of the subject's task with the names "here" (elsewhere in each sequence) and "last" (the last token)."""
    batch = s.sample(n, "test")
    last = batch.mask.sum(1) - 1
    here = (torch.rand(n, generator=stream(seed, "here")) * (last + 1)).long()
    return replace(batch, positions={"here": here, "last": last})


def each(examples: int, *, padded: bool = False, resample: bool = True, frozen: bool = True) -> Callable[[Test], Test]:
    """The test runs on drawn interventions: any kind over any parts at any places in any mode, any shape of model."""

    def of(test: Test) -> Test:
        @settings(max_examples=examples, deadline=None)
        @given(shape=small.shapes, seed=small.seeds, data=st.data())
        def run(shape: dict[str, object], seed: int, data: st.DataObject) -> None:
            s = small.subject(shape, seed, padded)
            reference = build_reference(s, size=8, per_position=not padded)
            value = value_for(data, s, reference, resample=resample and not padded, frozen=frozen)
            test(Drawn(s, batch_of(s, seed=seed), reference, value, data))

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return run

    return of


def value_for(
    data: st.DataObject, s: Subject, reference: ReferenceSet, *, resample: bool, frozen: bool
) -> Intervention:
    """An intervention that fits; without resampling where sequences are of several lengths, or stand alone."""
    config, draw = s.config, data.draw
    every = [str(part) for part in all_parts(config)]
    modes = {
        "frozen_patterns": frozen and draw(st.booleans()),
        "frozen_norm": frozen and config.norm == "pre" and draw(st.booleans()),
    }

    def replaced(parts: list[str]) -> Intervention:
        options: dict[str, Any] = {"at": draw(st.sampled_from(PLACES)), **modes}
        kinds = [lambda: Zero(parts, **options), lambda: Mean(parts, reference, **options)]
        if resample:
            kinds.append(lambda: Resample(parts, Pairing(N, draw(st.integers(0, 5))), **options))
        return draw(st.sampled_from(kinds))()

    def kept() -> Intervention:
        among = draw(st.sampled_from(("heads", "parts")))
        names = [str(head) for head in all_heads(2, 2)] if among == "heads" else every
        ways: list[Any] = [Zero(()), Mean((), reference), *([Resample((), Pairing(N))] if resample else [])]
        parts = draw(st.lists(st.sampled_from(names), unique=True))
        return KeepOnly(parts, draw(st.sampled_from(ways)), among=among, **modes)

    def cut() -> Intervention:
        kind = draw(st.sampled_from("QKV" if config.attention == "learned" else "V"))
        ends = [draw(st.sampled_from((f"L{i}.H0", f"L{i}.H1", f"L{i}.H0,L{i}.H1"))) for i in (0, 1)]
        return CutPath(kind, ends[0], ends[1], reference)

    kind = draw(st.sampled_from(("replace", "layer", "keep", "cut", "join")))
    if kind == "cut" and config.norm != "post":
        return cut()
    if kind == "layer":
        return replaced([draw(st.sampled_from(("L0", "L1")))])
    if kind == "keep":
        return kept()
    order = draw(st.permutations(every))
    first = draw(st.integers(1, len(order) - 1))
    if kind != "join":
        return replaced(order[:first])
    joined = replaced(order[:first]) + replaced(order[first:])
    return joined if any(modes.values()) or config.norm == "post" else joined + cut()
