"""What counts as predicted, as an effect, and as a contradiction between the two. Every threshold stands here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analyses._predicted_study import WAYS, Study
from workbench.components import Head
from workbench.head_scores import INDUCTION_RATIO, KEYS, PREVIOUS_RATIO, matching
from workbench.statistics import Interval, paired_interval

OV_HIGH = 0.5
"""OV eigenvalue copying of at least this, either way: the head copies, or suppresses, what it attends to."""

DIRECT_HIGH = 0.1
"""A direct write of at least this share of the whole quantity, either way."""

EFFECT = 0.05
"""A change of accuracy beyond this, either way, is an effect; one within it is none."""

Change = Literal["hurts", "helps", "none", "unclear"]


@dataclass(frozen=True)
class Mark:
    """Something to note about a head: a word for the table, and the sentence."""

    word: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """A head by the rules.

    Attributes:
        predicted: what predicts that it matters, in words. changes: what each way of removing it does to accuracy.
        contradictions: where prediction and cause, or two ways of removing it, contradict each other. remarks: what
            explains a difference between the ways that is none.
    """

    head: Head
    predicted: tuple[str, ...]
    effects: Mapping[str, Interval]
    changes: Mapping[str, Change]
    contradictions: tuple[Mark, ...]
    remarks: tuple[Mark, ...]


def verdicts(study: Study) -> list[Verdict]:
    """One a head."""
    return [_verdict(study, index) for index in range(len(study.heads))]


def change(at: Interval) -> Change:
    """Which side of ``EFFECT`` an interval lies on."""
    if at.high < -EFFECT:
        return "hurts"
    if at.low > EFFECT:
        return "helps"
    return "none" if at.low > -EFFECT and at.high < EFFECT else "unclear"


def share(study: Study) -> np.ndarray | None:
    """Each head's direct write as a share of the whole; None where there is none to share."""
    if study.direct is None or study.written is None:
        return None
    whole = abs(float(study.direct.total.mean()))
    return study.written.mean(axis=0) / whole if whole > 0 else None


def _predicted(study: Study, index: int) -> tuple[str, ...]:
    found = []
    if study.ov is not None and abs(study.ov[index]) >= OV_HIGH:
        found.append("OV")
    if study.probed.scores is not None:
        match = matching(study.probed.scores)
        scores = (
            ("previous_token_score", PREVIOUS_RATIO, "previous token"),
            (match, INDUCTION_RATIO, "induction keys" if match == KEYS else "prefix matching"),
        )
        found += [words for name, least, words in scores if study.ratio(name)[:, index].mean() >= least]
    shares = share(study)
    if shares is not None and abs(shares[index]) >= DIRECT_HIGH:
        found.append("direct write" if shares[index] > 0 else "direct write against the answer")
    return tuple(found)


def _verdict(study: Study, index: int) -> Verdict:
    effects = {
        way: paired_interval(some[index].ablated_accuracy, some[index].clean_accuracy, bounds=(0, 1))
        for way, some in study.effects.items()
    }
    changes = {way: change(at) for way, at in effects.items()}
    predicted, mean, shares = _predicted(study, index), changes["mean"], share(study)
    found = []
    if predicted and mean == "none":
        found.append(Mark("no effect", f"predicted ({', '.join(predicted)}), no effect"))
    if not predicted and mean in ("hurts", "helps"):
        found.append(Mark("unpredicted", "an effect that nothing predicts"))
    if shares is not None and abs(shares[index]) >= DIRECT_HIGH:
        if mean == "hurts" and shares[index] < 0:
            found.append(Mark("sign", "writes against the answer, but is needed"))
        if mean == "helps" and shares[index] > 0:
            found.append(Mark("sign", "writes towards the answer, but is better gone"))
    if changes["frozen"] == "hurts" and changes["zero"] == "none":
        found.append(Mark("self-repair", "self-repair: zeroing it does nothing unless patterns are held"))
    whole = {way: seen for way, seen in changes.items() if way != "frozen" and seen != "unclear"}
    if len(set(whole.values())) > 1:
        seen = ", ".join(f"{WAYS[way]} {effect}" for way, effect in whole.items())
        found.append(Mark("disagree", f"ablations disagree: {seen}"))
    remarks = []
    if changes["zero"] == "hurts" and changes["frozen"] == "none":
        remarks.append(Mark("via patterns", "acts through later patterns alone"))
    return Verdict(study.heads[index], predicted, effects, changes, tuple(found), tuple(remarks))
