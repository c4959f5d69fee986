"""What an audit says: every probe with its accuracy, its leak share, and the verdict; plain data and findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from workbench.errors import WorkbenchError
from workbench.findings import Cell, Column, Finding, Notice, Table

SCHEMA = 1
LEAK = 0.25
"""A probe leaks when the lower bound of its leak share lies above this."""

OVERLAP = 0.01
"""Test sequences that occur in training, as far as it was looked through: a share clearly above this is told."""

SECTION = "Is the task sound?"
AuditVerdict = Literal["clean", "leaks", "not_applicable"]


@dataclass(frozen=True)
class Probe:
    """A shortcut, fitted on the training split and scored on the test split.

    Attributes:
        name: of the probe. accuracy, low, high: where scored, with the 95 % interval over sequences.
        chance: what the task's floor predictor reaches.
        leak_share: ``(accuracy - chance) / (ceiling - chance)``, None where the two lie closer than .05; share_low,
            share_high: its interval. Negative shares are shown and never leak.
        leaks: share_low lies above .25, and the task does not allow the probe.
        twins: share of sequences for which it answers both the sequence and its counterfactual twin right; None
            where the task has no twins.
        meaning: what it says about the task if the probe passes. detail: what the probe settled on.
        allowed: the task's reason why passing is legitimate, else None.
    """

    name: str
    accuracy: float
    low: float
    high: float
    chance: float
    leak_share: float | None
    share_low: float | None
    share_high: float | None
    leaks: bool
    twins: float | None
    meaning: str
    detail: str
    allowed: str | None

    @property
    def passes(self) -> bool:
        """Whether the lower bound of the leak share lies above the threshold, allowed or not."""
        return self.share_low is not None and self.share_low > LEAK

    @property
    def title(self) -> str:
        """The name as words."""
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class Overlap:
    """Test sequences that occur in training, as far as they are visible from a scored position.

    Attributes:
        kind: exact, or up to order. share, low, high: of the test sequences, with the 95 % interval (Wilson).
        different, drawn: how many different ones there were among the training sequences looked through.
    """

    kind: Literal["exact", "up_to_order"]
    share: float
    low: float
    high: float
    different: int
    drawn: int


@dataclass(frozen=True)
class Audit:
    """The certificate of a task.

    Attributes:
        task, options, seed: what was audited. file: where it is defined.
        verdict: leaks if a probe does, else clean; not_applicable where ceiling and chance lie closer than .05.
        probes, overlap: the probes' rows, and how far the splits overlap.
        predictor: what chance is. ceiling: the best possible accuracy (1 where the task declares none).
        fit, test: sequences fitted on and scored. single: one scored position a sequence (else up to 2 are drawn).
        content: the hash of the task's options and source and of the audit's own code.
    """

    task: str
    options: Mapping[str, Any]
    seed: int
    file: str
    verdict: AuditVerdict
    probes: tuple[Probe, ...]
    overlap: tuple[Overlap, ...]
    predictor: str
    ceiling: float
    fit: int
    test: int
    single: bool
    content: str

    @property
    def leaking(self) -> tuple[Probe, ...]:
        """The probes that leak, the largest share first."""
        return tuple(sorted((p for p in self.probes if p.leaks), key=lambda p: -(p.leak_share or 0.0)))

    @property
    def largest(self) -> Probe:
        """The probe of the largest share that the task does not allow."""
        counted = [p for p in self.probes if p.allowed is None] or list(self.probes)
        return max(counted, key=lambda p: p.accuracy)


def to_json(audit: Audit) -> dict[str, Any]:
    """Plain data: what ``workbench audit --json`` prints and ``audit.json`` holds."""
    return {"schema": SCHEMA, **dataclasses.asdict(audit)}


def from_json(data: Mapping[str, Any]) -> Audit:
    """The audit that :func:`to_json` wrote.

    Raises:
        WorkbenchError: data of another version.
    """
    if data.get("schema") != SCHEMA:
        raise WorkbenchError("an audit is of an unknown form", expected=f"schema {SCHEMA}", got=data.get("schema"))
    rest = {key: value for key, value in data.items() if key != "schema"}
    rest["probes"] = tuple(Probe(**probe) for probe in rest["probes"])
    rest["overlap"] = tuple(Overlap(**overlap) for overlap in rest["overlap"])
    return Audit(**rest)


def sentence(audit: Audit) -> str:
    """The verdict in a sentence."""
    if audit.verdict == "not_applicable":
        return (
            f"Nothing can be said: chance ({audit.predictor}) lies within .05 of the ceiling, so there is no room "
            "between a shortcut and the task."
        )
    if audit.verdict == "leaks":
        named = [f"{p.title} {f'({p.detail}) ' if p.detail else ''}{p.accuracy:.1%}" for p in audit.leaking]
        return (
            f"The task leaks: {', '.join(named)} right on held-out sequences, where chance is "
            f"{audit.probes[0].chance:.1%} ({audit.predictor})."
        )
    most, beware = audit.largest, ""
    exact = next((o for o in audit.overlap if o.kind == "exact" and o.low > OVERLAP), None)
    if exact is not None:
        beware = (
            f" But the splits overlap: at least {exact.share:.1%} of the test sequences are training sequences "
            f"(of {exact.drawn:,} looked through; sample in {audit.file})."
        )
    share = "" if most.leak_share is None else f", a leak share of {most.leak_share:.2f}"
    return (
        f"No shortcut solves the task: the best probe ({most.title}) reaches {most.accuracy:.1%} where chance is "
        f"{most.chance:.1%} ({audit.predictor}){share}.{beware}"
    )


def findings(audit: Audit) -> list[Finding]:
    """The certificate as a section of a report: the verdict, the probes, the overlap of the splits."""
    fine = audit.verdict == "clean" and not any(o.kind == "exact" and o.low > OVERLAP for o in audit.overlap)
    level: Literal["info", "warning"] = "info" if fine else "warning"
    positions = "the one scored position" if audit.single else "up to 2 scored positions, drawn at random,"
    chance = f"{audit.probes[0].chance:.3f} ({audit.predictor})"
    caption = (
        f"Each probe is fitted on {audit.fit} training sequences and scored on {audit.test} test sequences, at "
        f"{positions} of each. Leak share is (accuracy - chance) / (ceiling - chance), with chance {chance} "
        f"and ceiling {audit.ceiling:g}; a probe leaks when its lower bound lies above {LEAK}. Intervals are 95 % over "
        f"sequences ({'Wilson' if audit.single else 'bootstrap'}). Where the copies know nothing they count as chance."
    )
    columns = [
        Column(key="probe", label="probe"),
        Column(key="accuracy", label="accuracy", digits=3, low="low", high="high"),
        Column(key="leak_share", label="leak share", digits=2, low="share_low", high="share_high"),
        Column(key="verdict", label="verdict"),
        Column(key="detail", label="settled on"),
        Column(key="meaning", label="if it passes"),
    ]
    if any(p.twins is not None for p in audit.probes):
        columns.insert(3, Column(key="twins", label="both twins right", digits=3))
    overlaps: list[Mapping[str, Cell]] = [dataclasses.asdict(o) for o in audit.overlap]
    return [
        Notice(id="audit.verdict", title="", text=sentence(audit), level=level, section=SECTION),
        Table(
            id="audit.probes",
            title=f"What shortcuts reach on {audit.task.replace('_', ' ')}",
            caption=caption,
            section=SECTION,
            columns=tuple(columns),
            rows=tuple(_row(p) for p in audit.probes),
            marked=tuple(i for i, p in enumerate(audit.probes) if p.leaks),
        ),
        Table(
            id="audit.overlap",
            title="Test sequences that occur in training",
            caption="What is visible from a scored position, compared word for word and with the order of the words "
            "left out. What recurs in another order is no leak as long as remembering it does not give the answers "
            "(the probe copies up to order).",
            section=SECTION,
            columns=(
                Column(key="kind", label="equal"),
                Column(key="share", label="share of test sequences", digits=3, low="low", high="high"),
                Column(key="different", label="different training sequences"),
                Column(key="drawn", label="looked through"),
            ),
            rows=tuple({**row, "kind": str(row["kind"]).replace("_", " ")} for row in overlaps),
        ),
    ]


def banner(audit: Audit) -> Notice | None:
    """What stands right under the claims of a report on a leaking task, else None."""
    if audit.verdict != "leaks":
        return None
    return Notice(
        id="audit.leaks",
        title="This model was trained on a task that a shortcut solves.",
        text=f"{sentence(audit)} What its heads do may be the shortcut; the gate was overridden with --allow-leaky.",
        level="warning",
    )


def _row(p: Probe) -> dict[str, Cell]:
    if p.leak_share is None:
        verdict = "not applicable"
    elif p.leaks:
        verdict = "leaks"
    else:
        verdict = "clean" if not p.passes else f"allowed: {p.allowed}"
    shown = ("accuracy", "low", "high", "leak_share", "share_low", "share_high", "meaning", "detail")
    cells: dict[str, Cell] = {"probe": p.title, **{key: getattr(p, key) for key in shown}, "verdict": verdict}
    return cells if p.twins is None else {**cells, "twins": p.twins}
