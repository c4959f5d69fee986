"""The claims of the Winograd analysis. Every threshold stands here, before any model is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analyses._winograd_sides import unfit
from analyses._winograd_study import ROUNDING, Study, conduct
from analyses._words import judged
from workbench.analysis import Budget, Progress, judge
from workbench.behaviour import removed
from workbench.errors import WorkbenchError
from workbench.findings import Answer, Cell, Claim, Column, Table, Verdict
from workbench.statistics import clopper_pearson, mean_interval
from workbench.subject import Subject

ROW = 0.01
"""The source prints weights to two decimals; rows that differ by less than this total weight are one row there."""

AGREE = 0.98
"""Share of sentences whose scores agree to rounding from which they count as equal."""

CROSSED = 0.25
"""A cue that has moved the answer by less than this has not crossed yet."""

SOAKED = 0.5
"""The cue's weight alone has to move the answer by more than this."""

STORIES = {
    "accuracy": "the model answers held-out sentences",
    "scores_equal_on_unchanged": "first block: scores on unchanged words are equal",
    "row_cannot_differ": "first block: the whole row cannot differ (the source's reading)",
    "two_hops": "two hops by way of the deciding position",
    "relay": "two hops by way of another word",
    "cue_soaks_softmax": "the cue soaks up the softmax",
}
IDS = tuple(STORIES)


def claims(study: Study) -> list[Claim]:
    """All six, in the order in which a reader should meet them."""
    one_block = [accuracy(study), scores_equal(study), row_cannot_differ(study)]
    return [*one_block, two_hops(study), relay(study), cue_soaks(study)]


def claims_of(subject: Subject, budget: Budget, progress: Progress = lambda stage: None) -> list[Claim]:
    """The five claims about one model, for experiments over seeds.

    Raises:
        WorkbenchError: a subject whose task has no twins, or no cue and candidates.
    """
    return claims(study_of(subject, budget, progress))


def study_of(subject: Subject, budget: Budget, progress: Progress) -> Study:
    """Draw the test sentences and measure everything."""
    if subject.task is None:
        raise WorkbenchError("the Winograd analysis needs a task", next_step="Give the Subject a task.")
    batch = subject.sample(budget.samples, "test", "winograd")
    twin = subject.task.counterfactual(batch)
    reason = unfit(subject.task, batch, twin)
    if reason or twin is None:
        raise WorkbenchError("the Winograd analysis does not apply", got=reason)
    return conduct(subject, subject.task, batch, twin, budget, progress)


def over_seeds(made: Mapping[int, Sequence[Claim]]) -> Table:
    """For each claim the share of seeds that bears it out, among those to which it applies.

    Args:
        made: seed to its claims, of models trained alike.
    """
    rows: list[dict[str, Cell]] = []
    for id in (f"winograd.{name}" for name in IDS):
        here = {seed: next(c for c in found if c.id == id) for seed, found in made.items()}
        count = {v: sum(c.verdict == v for c in here.values()) for v in ("supported", "contradicted", "inconclusive")}
        n = sum(count.values())
        share = clopper_pearson(count["supported"], n) if n else None
        values = [c.value for c in here.values() if c.value is not None]
        row: dict[str, Cell] = {
            "claim": id,
            "story": STORIES[id.partition(".")[2]],
            "seeds": len(here),
            "applicable": n,
            **count,
        }
        row |= {key: getattr(share, end) if share else None for key, end in
                (("share", "value"), ("low", "low"), ("high", "high"))}  # fmt: skip
        rows.append(row | {"values": ", ".join(f"{v:.2f}" for v in values)})
    return Table(
        id="winograd.over_seeds",
        section="Over seeds",
        title="Which claims hold in how many seeds",
        caption="Models trained alike from different seeds, each judged on its own test sentences. The share is of the "
        "seeds to which the claim applies; exact 95 % interval over seeds (Clopper & Pearson 1934).",
        columns=(
            Column(key="story", label="story"),
            Column(key="share", label="share supported", digits=2, low="low", high="high"),
            Column(key="supported", label="supported"),
            Column(key="contradicted", label="contradicted"),
            Column(key="inconclusive", label="inconclusive"),
            Column(key="applicable", label="applicable"),
            Column(key="seeds", label="seeds"),
            Column(key="values", label="values", help="the claim's value at each seed"),
        ),
        rows=tuple(rows),
    )


def _claim(id: str, statement: str, **fields: Any) -> Claim:
    return Claim(id=f"winograd.{id}", title=statement, statement=statement, **fields)


def accuracy(study: Study) -> Claim:
    """The behaviour is there, on pairs of nouns that training has shown in the other order only."""
    return _claim("accuracy", "The model names the right noun in held-out sentences", **judged(study.behaviour))


def scores_equal(study: Study) -> Claim:
    """Before the softmax the first layer's scores on unchanged words are the same in both sentences."""
    gap = study.first.score_gap.max(axis=1)
    ratio = study.first.ratio_gap[np.isfinite(study.first.ratio_gap)]
    agree = gap < ROUNDING
    at = clopper_pearson(int(agree.sum()), len(agree))
    ratios = f"; ratios of their weights differ by at most {ratio.max():.1e}" if len(ratio) else ""
    return _claim(
        "scores_equal_on_unchanged",
        "In the first layer the deciding position's scores on all unchanged words are equal in both sentences",
        value=at.value,
        low=at.low,
        high=at.high,
        unit="share of sentences",
        n=at.n,
        threshold=AGREE,
        verdict=judge(at.low, at.high, AGREE, "above"),
        reason=f"largest difference of any score in any head {gap.max():.1e}, relative to max(1, the row's largest); "
        f"below {ROUNDING:g} counts as equal{ratios}",
    )


def row_cannot_differ(study: Study) -> Claim:
    """What was concluded from that: the whole row of weights is the same. Softmax shares one denominator."""
    gap = study.first.row_gap
    largest = int(gap.mean(axis=0).argmax())
    at = mean_interval(gap[:, largest], bounds=(0, 1))
    by_head = ", ".join(f"L0.H{h} {v:.3f}" for h, v in enumerate(gap.mean(axis=0)))
    return _claim(
        "row_cannot_differ",
        "In the first layer the deciding position's row of attention cannot differ between the two sentences",
        heads=(f"L0.H{largest}",),
        value=at.value,
        low=at.low,
        high=at.high,
        unit="share of the row's weight",
        n=at.n,
        threshold=ROW,
        direction="below",
        verdict=judge(at.low, at.high, ROW, "below"),
        reason=f"total variation between the two rows, in the head where it is largest ({by_head}); the scores on "
        "unchanged words are equal, but all weights share one denominator with the cue's",
    )


def _unmet(study: Study) -> str:
    if study.behaviour.verdict != "supported":
        return f"the behaviour is not there: clean {study.behaviour.reason}"
    return ""


def two_hops(study: Study) -> Claim:
    """A lower layer brings a candidate to the deciding position, and a later layer decides there by the cue.

    Both must hold: on entering the later layer less than ``CROSSED`` of the cue's effect stands at the deciding
    position; and with the lower layers' heads mean-ablated at that position alone, sentences whose answer is the
    candidate that they bring are no longer answered.
    """
    statement = (
        "Two hops by way of the deciding position: a lower layer brings a candidate there, and a later one decides"
    )
    reason = _unmet(study)
    if not study.below:
        reason = "the model has one layer"
    if reason:
        return _claim("two_hops", statement, unit="accuracy", direction="below", reason=reason)
    later = max(study.below) + 1
    crossed = study.crossed[later]
    first = judge(crossed.low, crossed.high, CROSSED, "below")
    of_role = study.side.role == study.role
    name = study.candidates[study.role]
    if not of_role.any():
        return _claim("two_hops", statement, reason=f"no test sentence has the {name} noun as its answer")
    hop = study.lower["answer"]
    gone = removed(study.side.accuracy[of_role], hop.accuracy[of_role], study.task.floor().accuracy)
    verdict = _both(first, gone.verdict)
    story = (
        f"on entering L{later}, {crossed.value:.2f} [{crossed.low:.2f}, {crossed.high:.2f}] of the cue's effect stands "
        f"at the deciding position already (threshold {CROSSED:g}: {first}); without the heads of {hop.layers} there, "
        f"sentences that mean the {name} noun: {gone.reason} ({gone.verdict})"
    )
    if first != "supported" and gone.verdict != "contradicted":
        shown: dict[str, Any] = {
            "value": crossed.value,
            "low": crossed.low,
            "high": crossed.high,
            "n": crossed.n,
            "unit": "share of the cue's effect",
            "threshold": CROSSED,
            "direction": "below",
        }
    else:
        shown = judged(gone)
    heads = tuple(str(h) for h in study.subject.heads if h.layer in study.below)
    semantics = (
        f"z of every head of {hop.layers} at the deciding position replaced by its mean over validation sentences"
    )
    return _claim(
        "two_hops", statement, heads=heads, semantics=semantics, **(shown | {"verdict": verdict, "reason": story})
    )


def relay(study: Study) -> Claim:
    """What a lower layer writes at another word than the deciding one is needed: a later layer fetches it from there.

    The word and the candidate are chosen on validation sentences. A write at a word before the deciding one can reach
    the answer only through the attention of a later layer.
    """
    general = "Two hops by way of another word: what a lower layer writes there, a later one fetches"
    reason = _unmet(study)
    if not study.below:
        reason = "the model has one layer"
    if reason or study.relay is None:
        return _claim("relay", general, unit="accuracy", direction="below", reason=reason or "there is no other word")
    place, role = study.relay
    hop, of_role, name = study.lower[place], study.side.role == role, study.candidates[role]
    if not of_role.any():
        return _claim("relay", general, reason=f"no test sentence has the {name} noun as its answer")
    gone = removed(study.side.accuracy[of_role], hop.accuracy[of_role], study.task.floor().accuracy)
    shown = judged(gone)
    shown["reason"] = f"sentences that mean the {name} noun (chosen on validation sentences): {gone.reason}"
    return _claim(
        "relay",
        f"Two hops by way of \u2039{place}\u203a: what {hop.layers} writes there, a later layer fetches",
        heads=tuple(str(h) for h in study.subject.heads if h.layer in study.below),
        semantics=f"z of every head of {hop.layers} at \u2039{place}\u203a replaced by its mean over validation "
        "sentences",
        **shown,
    )


def needed_at(study: Study) -> list[str]:
    """The places at which the lower layers' heads, mean-ablated there alone, take away the sentences of some role."""
    if study.behaviour.verdict != "supported":
        return []
    floor, found = study.task.floor().accuracy, []
    for place, hop in study.lower.items():
        for role in range(len(study.candidates)):
            of = study.side.role == role
            if of.any() and removed(study.side.accuracy[of], hop.accuracy[of], floor).verdict == "supported":
                found.append("the deciding position" if place == "answer" else place)
                break
    return found


def _both(*verdicts: Verdict) -> Verdict:
    if all(v == "supported" for v in verdicts):
        return "supported"
    return "contradicted" if "contradicted" in verdicts else "inconclusive"


def cue_soaks(study: Study) -> Claim:
    """The rival: the cue acts by the weight that it takes from the other words, whatever is read from it."""
    statement = "The cue decides by the attention that it soaks up, not by what is read from it"
    shared: dict[str, Any] = {"unit": "share of the cue's effect", "threshold": SOAKED}
    everywhere = [hop for hop in study.acts if hop.layers.count("L") == study.subject.config.n_layers]
    hops = {hop.name: hop for hop in everywhere}
    reason = _unmet(study) or ("" if "weight" in hops else "attention is uniform: no word can take weight from another")
    if reason:
        return _claim("cue_soaks_softmax", statement, reason=reason, **shared)
    weight, value, unseen = hops["weight"].moved, hops["value"].moved, hops["unseen"]
    return _claim(
        "cue_soaks_softmax",
        statement,
        value=weight.value,
        low=weight.low,
        high=weight.high,
        n=weight.n,
        verdict=judge(weight.low, weight.high, SOAKED, "above"),
        semantics="at the deciding query every head gives the cue the weight that it has in the twin; all other words "
        "share the rest in their own proportions; values stay",
        reason=f"the twin's weight on the cue alone moves {weight.value:.2f} of the way to the twin's answer, the "
        f"twin's value of the cue alone {value.value:.2f}; with no weight on the cue accuracy is "
        f"{unseen.accuracy.mean():.2f}",
        **shared,
    )


def answer(study: Study, made: Sequence[Claim]) -> Answer:
    """The first screen's sentences, from the claims alone."""
    by_id = {claim.id.removeprefix("winograd."): claim for claim in made}
    floor, at = study.task.floor(), study.behaviour
    chance = f"{floor.predictor}: {100 * floor.accuracy:.0f} %"
    beat = f"It is right in {100 * at.value:.1f} % of held-out sentences ({chance})."
    row = by_id["row_cannot_differ"]
    rows = {
        "contradicted": f"The first layer's row does differ between two sentences one word apart: **{row.heads[0]}** "
        f"moves {row.value:.2f} of its weight, although its scores on unchanged words are equal.",
        "supported": "The first layer's row is the same in two sentences one word apart.",
    }.get(row.verdict, "Whether the first layer's row differs between two sentences one word apart is not decided.")
    rises = np.diff([c.value for c in study.crossed])
    most = int(np.nan_to_num(rises).argmax())
    crosses = f"{rises[most]:.2f} of the cue's effect reaches the deciding position in **L{most}**."
    hops = {
        "supported": "Two hops by way of that position are borne out: a lower layer brings a candidate, a later one "
        "decides.",
        "contradicted": "That a candidate is brought to that position first and decided on later is contradicted.",
        "inconclusive": "Whether a candidate is brought to that position first and decided on later is open.",
        "not_applicable": "",
    }[by_id["two_hops"].verdict]
    if by_id["relay"].verdict == "supported" and study.relay is not None:
        where = f"\u2039{study.relay[0]}\u203a"
        hops += f" But there are two hops: what a lower layer writes at {where} is fetched by a later one."
    places = needed_at(study)
    if places:
        hops += f" The heads of {study.lower['answer'].layers} are needed at: {', '.join(places)}."
    soaks = {
        "supported": "The cue decides by the attention that it soaks up.",
        "contradicted": "The weight that the cue soaks up does not decide on its own.",
        "inconclusive": "Whether the weight that the cue soaks up decides is open.",
        "not_applicable": "",
    }[by_id["cue_soaks_softmax"].verdict]
    text = " ".join(part for part in (beat, rows, crosses, hops, soaks) if part)
    return Answer(id="winograd.answer", title="Which noun is meant: how does this model decide?", text=text)
