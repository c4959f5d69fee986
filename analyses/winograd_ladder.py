"""Winograd ladder: how much of a transformer it takes to tell the two nouns of a sentence apart.

Trains, from several seeds, a uniform average of the words, one block and two blocks, with and without MLPs, on
sentences that no shortcut solves, and two of them on leaky ones; says what each reaches on held-out sentences, beside
the figures of the source that read two blocks as needed, and in how many seeds each story about the inside holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analyses._definitions import definitions
from analyses._ladder_claims import Readings, answer, claims
from analyses._ladder_figures import definitions as own_definitions
from analyses._ladder_figures import figures
from analyses._ladder_rungs import RUNGS, TASK, Reading, read
from analyses._winograd_claims import claims_of, over_seeds
from workbench.analysis import Budget, Experiment, Lab, Progress
from workbench.findings import Claim, Finding, Notice

WORDS = ("accuracy", "floor", "verdicts")
OPENED = ("one-attention", "one-block", "two-attention", "two-blocks")
"""Rungs whose models are taken apart: each seed is judged on the claims of the Winograd analysis."""


@dataclass
class _Climb:
    """What has been measured so far, by rung: a reading a seed, and for the opened ones the claims by seed."""

    readings: dict[str, list[Reading]] = field(default_factory=lambda: {rung.name: [] for rung in RUNGS})
    inside: dict[str, dict[int, list[Claim]]] = field(default_factory=lambda: {name: {} for name in OPENED})


class WinogradLadder(Experiment):
    """Claims about what each depth reaches, over seeds."""

    def run(self, budget: Budget, lab: Lab, progress: Progress) -> Sequence[Finding]:
        """All findings. Seeds are 0, 1, ...; with a time given, seeds are trained one after the other until it ends."""
        climb = _climb(budget, lab, progress)
        readings: Readings = climb.readings
        floor = lab.task(TASK).floor()
        made = claims(readings, floor)
        trained = len(next(iter(readings.values())))
        short = [] if trained == budget.seeds else [_cut_short(trained, budget)]
        shown = [*figures(readings, floor), *_inside(climb)]
        return [answer(made), *made, *short, *shown, *own_definitions(), *definitions(WORDS)]


def _climb(budget: Budget, lab: Lab, progress: Progress) -> _Climb:
    """Train and read every rung, for as many seeds as the budget has time for, and at least two."""
    seeds = range(budget.seeds)
    rounds = [list(seeds)] if budget.seconds is None else [[seed] for seed in seeds]
    climb = _Climb()
    for done, chosen in enumerate(rounds):
        if done >= 2 and budget.spent:
            break
        # The longest trainings first: then no worker is left alone with one at the end.
        order = sorted(((rung, seed) for rung in RUNGS for seed in chosen), key=lambda pair: -_size(pair[0].model))
        subjects = lab.train([rung.plan(lab, seed) for rung, seed in order], progress)
        progress("held-out sentences")
        for (rung, seed), subject in zip(order, subjects, strict=True):
            climb.readings[rung.name].append(read(subject, budget.samples))
            if rung.name in OPENED:
                climb.inside[rung.name][seed] = claims_of(subject, budget)
    return climb


def _inside(climb: _Climb) -> list[Finding]:
    """For each opened rung, in how many seeds each claim of the Winograd analysis holds."""
    labels = {rung.name: rung.label for rung in RUNGS}
    return [
        dataclasses.replace(
            over_seeds(made),
            id=f"ladder.inside.{name}",
            section="Which stories hold inside, over seeds",
            title=f"What happens in {labels[name]}",
        )
        for name, made in climb.inside.items()
    ]


def _size(model: Mapping[str, Any]) -> int:
    """What a training costs, roughly, in attention sublayers."""
    return model["n_layers"] * (2 if "d_mlp" in model else 1)


def _cut_short(trained: int, budget: Budget) -> Notice:
    return Notice(
        id="ladder.cut_short",
        title=f"Only {trained} of {budget.seeds} seeds were trained",
        text=f"The time given ({budget.seconds:g} s) was over. The same command with more time goes on from there.",
        level="warning",
    )


EXPERIMENT = WinogradLadder()
