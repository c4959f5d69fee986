"""The first screen's answer: only what the verdicts bear out, and what they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analyses._induction_study import Study
from workbench.components import Head
from workbench.findings import Answer, Claim

QUESTION = "Does this model induce, and with which heads?"

ALONE = 1.5
"""An effective number of heads below this reads as one head that does nearly all."""

PARTS = {
    "previous_token_heads": "that the previous-token heads look back",
    "induction_heads": "that each induction head matches prefixes",
    "necessary_previous_token": "that the behaviour needs the previous-token heads",
    "necessary_induction": "that it needs the induction heads",
    "k_path": "that the first act through the keys of the second",
}
"""The verdicts that a plain yes rests on, as what was not shown."""


def answer(study: Study, made: Sequence[Claim]) -> Answer:
    """A sentence or two from the verdicts alone."""
    verdicts = {c.id.removeprefix("induction."): c.verdict for c in made}
    parts = (_found(study, verdicts), _accuracy(study), _removal(study, verdicts), _stripes(study))
    return Answer(id="induction.answer", title=QUESTION, text=" ".join(part for part in parts if part))


def _found(study: Study, verdicts: Mapping[str, str]) -> str:
    s0, s1 = study.sets.s0, study.sets.s1
    if not s1:
        start = "No." if verdicts["induction_heads"] == "contradicted" else "Not shown."
        if not study.periods:
            return f"{start} No head was found that looks up what followed, on the task's own sequences."
        return f"{start} No head was found that matches prefixes when the period varies."
    if study.behaviour.verdict != "supported":
        return f"Not shown: the behaviour is not there, although {bold(s1)} {_verb(s1, 'match', 'matches')} prefixes."
    looks = f"{bold(s0)} {_verb(s0, 'look', 'looks')} at the previous token, " if s0 else ""
    what = f"{looks}{bold(s1)} {_verb(s1, 'look', 'looks')} it up and {_verb(s1, 'copy', 'copies')} what followed."
    missing = [
        f"{words} ({verdicts[id].replace('_', ' ')})" for id, words in PARTS.items() if verdicts[id] != "supported"
    ]
    if not missing:
        return f"Yes. {what}"
    return f"In part. By their scores {what} Not shown: {'; '.join(missing)}."


def _accuracy(study: Study) -> str:
    floor = study.task.floor()
    percent = f"{100 * study.behaviour.value:.1f}\u00a0%"
    return (
        f"The model is right at {percent} of the scored positions ({floor.predictor}: "
        f"{100 * floor.accuracy:.1f}\u00a0%)."
    )


def _removal(study: Study, verdicts: Mapping[str, str]) -> str:
    if not all(verdicts[f"necessary_{name}"] == "supported" for name in ("previous_token", "induction")):
        return ""
    alone = {"supported": "; the two sets alone keep it", "contradicted": "; the two sets alone do not keep it"}
    kept = alone.get(verdicts["sufficient"], "")
    return f"Removing either set takes accuracy to the floor{kept}.{_shared(study)}"


def _shared(study: Study) -> str:
    """Who within the sets does the work, where the sets have more than one head each to tell apart."""
    found = [(heads, study.sharing.get(n)) for n, heads in (("S0", study.sets.s0), ("S1", study.sets.s1))]
    if all(len(heads) < 2 for heads, _ in found) or any(at is None or at.value is None for _, at in found):
        return ""
    over = [at.value for _, at in found if at is not None and at.value is not None]
    if all(v < ALONE for v in over):
        leaders = [heads[max(range(len(heads)), key=at.shares.__getitem__)] for heads, at in found if at is not None]
        return f" Within the sets {bold(leaders)} do nearly all of the work."
    return f" The work is shared: over {over[0]:.1f} heads of the first set and {over[1]:.1f} of the second."


def _stripes(study: Study) -> str:
    stripes = [row.head for row in study.impostors if row.flagged]
    if not stripes:
        return ""
    return f"{bold(stripes)} only {_verb(stripes, 'copy', 'copies')} from a fixed distance: positional, not induction."


def _verb(heads: Sequence[Head], plural: str, singular: str) -> str:
    return singular if len(heads) == 1 else plural


def bold(heads: Sequence[Head]) -> str:
    """``**L0.H0**, **L0.H1** and **L1.H0**``."""
    names = [f"**{h}**" for h in sorted(heads)]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
