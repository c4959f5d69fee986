"""The claims of the path patching analysis. Every threshold stands here, before any model is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analyses._paths_study import Study
from workbench.analysis import judge
from workbench.components import part_names
from workbench.cut_path import INPUTS
from workbench.findings import Answer, Claim
from workbench.path_patching import Path

CARRIES = 0.25
"""The share of the way that a path must carry to be one that the answer takes."""
NOTHING = 0.1
"""Below this share a path carries next to nothing."""


def claims(study: Study) -> list[Claim]:
    """Both, in the order in which a reader should meet them."""
    return [strongest_path(study), one_input(study)]


def _claim(id: str, statement: str, **fields: Any) -> Claim:
    return Claim(id=f"path_patching.{id}", title=statement, statement=statement, **fields)


def _interval(study: Study, path: Path) -> tuple[float, float, float]:
    """Share with its ends, turned so that the share is positive."""
    sweep = study.paths["denoising"]
    value, low, high = (float(x[sweep.of(path)]) for x in sweep.shares)
    return (value, low, high) if value >= 0 else (-value, -high, -low)


def strongest_path(study: Study) -> Claim:
    """One head hands one later head, through one input, a quarter of the answer or more."""
    shared: dict[str, Any] = {"unit": "share restored", "threshold": CARRIES}
    path = study.strongest
    if study.reason or path is None:
        return _claim("strongest_path", "One head hands the answer to another", reason=study.reason, **shared)
    sweep = study.paths["denoising"]
    value, low, high = (float(x[sweep.of(path)]) for x in sweep.shares)
    return _claim(
        "strongest_path",
        f"{path.sender} acts on {path.receiver} through its {INPUTS[path.kind]}",
        heads=(str(path.sender), str(path.receiver)),
        value=value,
        low=low,
        high=high,
        n=len(study.twins.batch),
        verdict=judge(low, high, CARRIES, "above"),
        semantics="the sender's z from the sequence into its twin, seen by that input of the receiver alone",
        reason=f"of {len(sweep.what)} paths into {part_names(study.receivers)} the strongest on {study.selected_on} "
        "validation sequences",
        scale=(min(0.0, low), max(1.0, high)),
        **shared,
    )


def one_input(study: Study) -> Claim:
    """The same two heads do next to nothing through the other inputs."""
    shared: dict[str, Any] = {"unit": "|share restored|", "threshold": NOTHING, "direction": "below"}
    path, other = study.strongest, study.other
    statement = "It does so through that input alone"
    if study.reason or path is None or other is None:
        none = "keys and values are shared by heads" if study.shared else "the receiver has no other input"
        return _claim("one_input", statement, reason=study.reason or none, **shared)
    value, low, high = _interval(study, other)
    within = judge(low, high, NOTHING, "below")
    inside = "inconclusive" if within == "supported" and low <= -NOTHING else within
    return _claim(
        "one_input",
        f"{path.sender} acts on {path.receiver} through its {INPUTS[path.kind]} alone",
        heads=(str(path.sender), str(path.receiver)),
        value=value,
        low=low,
        high=high,
        n=len(study.twins.batch),
        verdict=inside,
        semantics="the same, through another input",
        reason=f"through its {INPUTS[other.kind]}, the strongest other input on {study.selected_on} validation "
        "sequences",
        scale=(min(0.0, low), max(2 * NOTHING, high)),
        **shared,
    )


def answer(study: Study, made: Sequence[Claim]) -> Answer:
    """The first screen's sentences, from the claims alone."""
    strongest, alone = made
    path = study.strongest
    if study.reason or path is None or strongest.value is None:
        text = f"Nothing is said about paths: {study.reason}."
    else:
        what = f"**{path.sender}** to the {INPUTS[path.kind]} of **{path.receiver}**"
        text = {
            "supported": f"The answer takes the path from {what}: it carries {strongest.value:.2f} of it.",
            "contradicted": f"No single path carries a quarter of the answer; {what} carries {strongest.value:.2f}.",
            "inconclusive": f"The path from {what} carries {strongest.value:.2f} of the answer, perhaps a quarter.",
        }[strongest.verdict]
        text += {
            "supported": " The other inputs of that head take next to nothing from it.",
            "contradicted": f" Another input of that head takes {alone.value or 0:.2f} from it as well.",
        }.get(alone.verdict, "")
    return Answer(
        id="path_patching.answer",
        title="Which head hands the answer to which, and through queries, keys or values?",
        text=text,
    )
