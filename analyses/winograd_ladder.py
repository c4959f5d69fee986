"""Winograd ladder: how much of a transformer it takes to tell the two nouns of a sentence apart.

Trains, from several seeds, a uniform average of the words, one block and two blocks, with and without MLPs, on
sentences that no shortcut solves, and two of them on leaky ones; says what each reaches on held-out sentences, beside
the figures of the source that read two blocks as needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analyses._definitions import definitions
from analyses._ladder_claims import Readings, answer, claims
from analyses._ladder_figures import definitions as own_definitions
from analyses._ladder_figures import figures
from analyses._ladder_rungs import RUNGS, TASK, Reading, read
from workbench.analysis import Budget, Experiment, Lab, Progress
from workbench.findings import Finding, Notice

WORDS = ("accuracy", "floor", "verdicts")


class WinogradLadder(Experiment):
    """Claims about what each depth reaches, over seeds."""

    def run(self, budget: Budget, lab: Lab, progress: Progress) -> Sequence[Finding]:
        """All findings. Seeds are 0, 1, ...; with a time given, seeds are trained one after the other until it ends."""
        readings = _climb(budget, lab, progress)
        floor = lab.task(TASK).floor()
        made = claims(readings, floor)
        trained = len(next(iter(readings.values())))
        short = [] if trained == budget.seeds else [_cut_short(trained, budget)]
        return [answer(made), *made, *short, *figures(readings, floor), *own_definitions(), *definitions(WORDS)]


def _climb(budget: Budget, lab: Lab, progress: Progress) -> Readings:
    """Train and read every rung, for as many seeds as the budget has time for, and at least two."""
    seeds = range(budget.seeds)
    rounds = [list(seeds)] if budget.seconds is None else [[seed] for seed in seeds]
    readings: dict[str, list[Reading]] = {rung.name: [] for rung in RUNGS}
    for done, chosen in enumerate(rounds):
        if done >= 2 and budget.spent:
            break
        # The longest trainings first: then no worker is left alone with one at the end.
        order = sorted(((rung, seed) for rung in RUNGS for seed in chosen), key=lambda pair: -_size(pair[0].model))
        subjects = lab.train([rung.plan(lab, seed) for rung, seed in order], progress)
        progress("held-out sentences")
        for (rung, _), subject in zip(order, subjects, strict=True):
            readings[rung.name].append(read(subject, budget.samples))
    return readings


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
