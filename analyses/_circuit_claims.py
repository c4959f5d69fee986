"""The claims of the circuit search, by the criteria of Wang et al. (2022).

Every threshold stands here, before any model is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analyses._circuit_study import Found, Study
from analyses._words import judged
from workbench.analysis import judge
from workbench.behaviour import keeps, removed
from workbench.components import Head, part_names
from workbench.findings import Answer, Claim, Verdict
from workbench.statistics import Interval, mean_interval, paired_interval

APART = 0.1
"""Circuit and model do alike where their accuracies differ by less than this."""

LOST = 0.01
"""A head's absence is felt where it costs more accuracy than this."""


def claims(study: Study) -> list[Claim]:
    """All four, in the order in which a reader should meet them."""
    return [faithful(study), necessary(study), complete(study), minimal(study)]


def _claim(study: Study, id: str, statement: str, **fields: Any) -> Claim:
    heads = () if study.found is None else tuple(map(str, study.found.search.heads))
    return Claim(id=f"circuit_search.{id}", title=statement, statement=statement, heads=heads, **fields)


def unmet(study: Study) -> str:
    """Why there is no circuit to judge, or ""."""
    if study.found is None:
        return f"the behaviour is not there: clean {study.behaviour.reason}"
    return ""


def faithful(study: Study) -> Claim:
    """Kept alone, the circuit keeps the behaviour."""
    statement = "The circuit alone keeps the behaviour (faithfulness)"
    if study.found is None or study.is_everything:
        reason = unmet(study) or "no smaller set keeps it, so nothing is left out"
        return _claim(study, "faithful", statement, unit="accuracy", reason=reason)
    alone = study.found.alone
    fields = judged(keeps(alone.clean_accuracy, alone.ablated_accuracy))
    return _claim(study, "faithful", statement, semantics=alone.intervention.semantics, **fields)


def necessary(study: Study) -> Claim:
    """Without the circuit the behaviour is removed."""
    statement = "Without the circuit the behaviour is gone"
    if study.found is None or study.found.gone is None:
        reason = unmet(study) or "no head is needed, so none can be removed"
        return _claim(study, "necessary", statement, unit="accuracy", direction="below", reason=reason)
    gone = study.found.gone
    fields = judged(removed(gone.clean_accuracy, gone.ablated_accuracy, study.task.floor().accuracy))
    return _claim(study, "necessary", statement, semantics=gone.intervention.semantics, **fields)


def complete(study: Study) -> Claim:
    """Taking the same heads from the circuit alone and from the whole model does the same."""
    statement = "Taken from the circuit or from the whole model, its heads are missed alike (completeness)"
    shared: dict[str, Any] = {"unit": "accuracy apart", "threshold": APART, "direction": "below"}
    found = study.found
    if found is None or found.pair is None or found.worst is None:
        empty = "the circuit is the whole model" if study.is_everything else "no head is needed, so none can be taken"
        return _claim(study, "complete", statement, reason=unmet(study) or empty, **shared)
    at = _magnitude(mean_interval(found.pair.difference, bounds=(-1, 1)))
    more = "more" if float(found.pair.difference.mean()) > 0 else "less"
    return _claim(
        study,
        "complete",
        statement,
        value=at.value,
        low=at.low,
        high=at.high,
        n=at.n,
        verdict=judge(at.low, at.high, APART, "below"),
        semantics=found.pair.model.intervention.semantics,
        reason=f"without {part_names(found.worst)} the circuit is right {more} often than the model by this much; the "
        f"subset on which they lie furthest apart on validation sequences, of {found.tried}",
        **shared,
    )


def _magnitude(at: Interval) -> Interval:
    """The interval of |x| from that of x."""
    ends = sorted((abs(at.low), abs(at.high)))
    return Interval(abs(at.value), 0.0 if at.low <= 0 <= at.high else ends[0], ends[1], at.n)


def left_out(found: Found) -> dict[Head, Interval]:
    """For each head of the circuit, what leaving it out does to the accuracy of the circuit alone."""
    base = found.alone.ablated_accuracy
    return {h: paired_interval(one.ablated_accuracy, base, bounds=(0, 1)) for h, one in found.left_out.items()}


def minimal(study: Study) -> Claim:
    """Each head of the circuit is missed when it alone is left out: every one of them, so nothing is corrected for."""
    statement = "Each head of the circuit is missed when it is left out (minimality)"
    shared: dict[str, Any] = {"unit": "accuracy lost", "threshold": LOST, "direction": "above"}
    if study.found is None or not study.found.left_out:
        return _claim(study, "minimal", statement, reason=unmet(study) or "no head is needed", **shared)
    heads = list(study.found.left_out)
    lost = [Interval(-at.value, -at.high, -at.low, at.n) for at in left_out(study.found).values()]
    verdicts: list[Verdict] = [judge(at.low, at.high, LOST, "above") for at in lost]
    verdict: Verdict = "inconclusive"
    if "contradicted" in verdicts:
        verdict = "contradicted"
    elif set(verdicts) == {"supported"}:
        verdict = "supported"
    # The head that decides: a contradicted one where there is one, else the one whose interval reaches lowest.
    order = sorted(range(len(lost)), key=lambda i: (verdicts[i] != "contradicted", lost[i].low, lost[i].value))
    least, head = lost[order[0]], heads[order[0]]
    return _claim(
        study,
        "minimal",
        statement,
        value=least.value,
        low=least.low,
        high=least.high,
        n=least.n,
        verdict=verdict,
        semantics=study.found.left_out[head].intervention.semantics,
        reason=f"{head} decides: it is missed least surely ({len(lost)} in the circuit)",
        scale=(min(0.0, least.low), 1.0),
        **shared,
    )


def answer(study: Study, made: Sequence[Claim]) -> Answer:
    """The first screen's sentences, from the search and the claims alone."""
    return Answer(
        id="circuit_search.answer", title="Which heads suffice, and are they all that matters?", text=_text(study, made)
    )


def _text(study: Study, made: Sequence[Claim]) -> str:
    if study.found is None:
        return "The model does not show the behaviour, so there is no circuit to look for."
    search, every = study.found.search, study.subject.heads
    heads, sets = search.heads, f"{len(search.evaluated)} sets were evaluated."
    if not heads:
        return f"No head is needed: with every head at its mean the behaviour is still there. {sets}"
    if study.is_everything:
        return f"No smaller set than all {len(every)} heads was found to keep the behaviour. {sets}"
    verdict = {claim.id.removeprefix("circuit_search."): claim.verdict for claim in made}
    names = ", ".join(f"**{head}**" for head in heads)
    does = {"supported": "keep", "contradicted": "do not keep"}.get(verdict["faithful"], "may keep")
    said = [f"{names}: {len(heads)} of {len(every)} heads, the smallest set found, {does} the behaviour alone."]
    alike, gone = verdict["complete"], verdict["necessary"]
    if gone == "contradicted" or alike == "contradicted":
        said.append("They are not all that matters: heads outside stand in for them, or work against them.")
    elif gone == alike == "supported":
        said.append("What heads outside do for them is less than 0.1 of accuracy.")
    else:
        said.append("Whether heads outside could stand in for them is open.")
    if not search.minimal:
        said.append("The search was cut short, so a smaller set may do.")
    return " ".join([*said, sets])
