"""The claims of the ladder. Every threshold stands here, before any model is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analyses._ladder_rungs import RUNGS, Reading
from workbench.analysis import judge
from workbench.behaviour import THERE
from workbench.findings import Answer, Claim, Direction
from workbench.seeds import seed_interval
from workbench.statistics import clopper_pearson
from workbench.task import Floor

SOLVED = 0.99
"""Held-out accuracy from which a model counts as solving the sentences."""

Readings = Mapping[str, Sequence[Reading]]
"""By the name of the rung: one reading a seed."""

_LABELS = {rung.name: rung.label for rung in RUNGS}


def claims(readings: Readings, floor: Floor) -> list[Claim]:
    """All four, in the order of the rungs."""
    beaten = floor.accuracy + THERE * (1 - floor.accuracy)
    return [
        _claim(
            "average_cannot", "A uniform average of the words does not answer held-out sentences",
            "average", beaten, "below", readings,
            f"{beaten:g} is a quarter of the way from the floor ({floor.predictor}) to 1",
        ),
        _claim(
            "one_attention_is_not_enough", "One block of attention alone does not solve held-out sentences",
            "one-attention", SOLVED, "below", readings,
        ),
        _claim(
            "one_block_is_not_enough", "One block does not solve held-out sentences (the source's reading)",
            "one-block", SOLVED, "below", readings,
        ),
        _claim(
            "two_blocks_solve", "Two blocks solve held-out sentences",
            "two-blocks", SOLVED, "above", readings,
        ),
    ]  # fmt: skip


def solving(readings: Sequence[Reading]) -> int:
    """How many seeds reach ``SOLVED``."""
    return sum(r.accuracy >= SOLVED for r in readings)


def _claim(
    id: str, statement: str, rung: str, threshold: float, direction: Direction, readings: Readings, why: str = ""
) -> Claim:
    made = readings[rung]
    at = seed_interval([r.accuracy for r in made], made[0].sentences)
    k, n = solving(made), len(made)
    share = clopper_pearson(k, n)
    seeds = f"{k} of {n} seeds reach {SOLVED:g}; of all seeds between {share.low:.0%} and {share.high:.0%} do"
    return Claim(
        id=f"ladder.{id}",
        title=statement,
        statement=statement,
        value=at.value,
        low=at.low,
        high=at.high,
        unit="accuracy",
        samples="seeds",
        n=n,
        threshold=threshold,
        direction=direction,
        verdict=judge(at.low, at.high, threshold, direction),
        reason="; ".join(part for part in (f"mean over seeds of: {_LABELS[rung]}", why, seeds) if part),
    )


def answer(made: Sequence[Claim]) -> Answer:
    """The first screen's sentence, from the claims alone."""
    by_id = {claim.id.removeprefix("ladder."): claim for claim in made}
    one, two = by_id["one_block_is_not_enough"], by_id["two_blocks_solve"]
    if two.verdict == "contradicted":
        need = "No: two blocks do not solve it either"
    elif two.verdict != "supported":
        need = "Not settled: whether two blocks solve it is open"
    else:
        need = {
            "supported": "Two blocks solve it and one does not",
            "contradicted": "No: one block already solves it, so nothing here needs two",
        }.get(one.verdict, "Not settled: two blocks solve it, and one block comes so close that it may, too")
    alone = by_id["one_attention_is_not_enough"]
    numbers = ", ".join(
        f"{name} {100 * claim.value:.1f}\u00a0%"
        for name, claim in (
            ("a uniform average", by_id["average_cannot"]),
            ("one block of attention alone", alone),
            ("one block", one),
            ("two blocks", two),
        )
        if claim.value is not None
    )
    return Answer(
        id="ladder.answer",
        title="Does telling the two nouns apart take two blocks?",
        text=f"{need}. Held-out sentences answered rightly, mean over {two.n} seeds: {numbers}.",
    )
