"""The circuit drawn, its heads in a table, and what the search tried."""

from __future__ import annotations

from collections import defaultdict

from analyses._circuit_claims import left_out
from analyses._circuit_study import Found, Study
from workbench.behaviour import KEPT
from workbench.circuit_search import STANDARD_ERRORS, Evaluated
from workbench.components import part_names
from workbench.findings import Cell, Circuit, Column, Edge, Finding, Node, Notice, Table
from workbench.statistics import paired_interval

SECTION = "The circuit and how it was found"


def figures(study: Study) -> list[Finding]:
    """All figures, in order; none where there is no behaviour."""
    if study.found is None:
        return []
    made: list[Finding] = [_drawn(study, study.found)] if study.found.search.heads else []
    if study.found.no_edges:
        text = f"{study.found.no_edges[0].upper()}{study.found.no_edges[1:]}."
        made.append(Notice(id="circuit_search.no_paths", section=SECTION, title="No paths are drawn", text=text))
    return [*made, _heads(study, study.found), _search(study.found)]


def _drawn(study: Study, found: Found) -> Circuit:
    nodes = [
        Node(
            name=str(head),
            layer=head.layer,
            role=found.probed.role(head),
            effect=at.value,
            low=at.low,
            high=at.high,
        )
        for head, at in left_out(found).items()
    ]
    edges = []
    for (kind, sender, receiver), effect in found.edges.items():
        at = paired_interval(effect.ablated_accuracy, found.cut_base, bounds=(0, 1))
        ends = {"sender": str(sender), "receiver": str(receiver)}
        edges.append(Edge(**ends, kind=kind, weight=at.value, low=at.low, high=at.high))
    return Circuit(
        id="circuit_search.circuit",
        section=SECTION,
        title="The circuit",
        caption="Boxes: what leaving the head out does to the accuracy of the circuit alone "
        f"({found.alone.clean_accuracy.size} test sequences). Lines: what cutting that direct path does to it "
        f"({found.cut_base.size} test sequences): the receiver's queries (Q), keys (K) or values (V) read a residual "
        "stream in which the sender's write is replaced by its mean. Every head outside is at its "
        f"{study.reference.describe()}. 95 % intervals over sequences stand in the data.",
        nodes=tuple(nodes),
        edges=tuple(edges),
        unit="Δ accuracy",
    )


def _heads(study: Study, found: Found) -> Table:
    rows: list[dict[str, Cell]] = []
    alone = left_out(found)
    for head, effect in found.removed.items():
        whole = paired_interval(effect.ablated_accuracy, effect.clean_accuracy, bounds=(0, 1))
        row: dict[str, Cell] = {"head": str(head), "role": found.probed.role(head)}
        for key, at in (("alone", alone[head]), ("whole", whole)):
            row |= {key: at.value, f"{key}_low": at.low, f"{key}_high": at.high}
        rows.append(row)
    roles = f"Roles by {found.probed.words}." if found.probed.scores else f"No roles: {found.probed.words}"
    return Table(
        id="circuit_search.heads",
        section=SECTION,
        title="The circuit's heads, missed from the circuit and from the whole model",
        caption="Change in accuracy when the head's z is replaced by its mean. Where the circuit misses a head more "
        "than the whole model does, others stand in for it there. Clean accuracy "
        f"{found.alone.clean_accuracy.mean():.3f}, of the circuit alone {found.alone.ablated_accuracy.mean():.3f}; "
        f"{found.alone.clean_accuracy.size} test sequences, 95 % intervals, paired. {roles}",
        columns=(
            Column(key="head", label="head"),
            Column(key="role", label="role"),
            Column(key="alone", label="left out of it", digits=3, low="alone_low", high="alone_high", signed=True),
            Column(key="whole", label="removed alone", digits=3, low="whole_low", high="whole_high", signed=True),
        ),
        rows=tuple(rows),
    )


def _search(found: Found) -> Table:
    search = found.search
    by_size: dict[int, list[Evaluated]] = defaultdict(list)
    for one in search.evaluated:
        by_size[len(one.heads)].append(one)
    rows: list[dict[str, Cell]] = []
    for size, sets in sorted(by_size.items()):
        best = min(sets, key=lambda one: (-one.accuracy, one.loss, one.heads))
        keep = sum(one.keeps for one in sets)
        rows.append(
            {"size": size, "sets": len(sets), "keep": keep, "best": part_names(best.heads), "accuracy": best.accuracy}
        )
    stages = "; ".join(
        f"{stage.name}: {stage.evaluated} sets{f', cut short ({stage.reason})' if stage.reason else ''}"
        for stage in search.stages
    )
    return Table(
        id="circuit_search.search",
        section=SECTION,
        title="The sets that were tried",
        caption=f"{len(search.evaluated)} sets, each kept alone on {search.n} validation sequences and really "
        f"evaluated. A set keeps the behaviour where accuracy lies above {KEPT:g} of clean ({search.clean_accuracy:.3f}"
        f") by {STANDARD_ERRORS:g} standard errors. {stages[0].upper()}{stages[1:]}. Marked: the size of the circuit.",
        columns=(
            Column(key="size", label="heads kept"),
            Column(key="sets", label="sets"),
            Column(key="keep", label="of these keep it"),
            Column(key="best", label="the best of them"),
            Column(key="accuracy", label="its accuracy", digits=3),
        ),
        rows=tuple(rows),
        marked=tuple(i for i, row in enumerate(rows) if row["size"] == len(search.heads)),
    )
