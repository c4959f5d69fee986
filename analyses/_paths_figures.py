"""What every path carries: a map of senders by receivers' inputs, and the strongest paths in numbers."""

from __future__ import annotations

import numpy as np

from analyses._paths_study import CARRIES, RECEIVERS, Study
from workbench.components import Head
from workbench.findings import Cell, Column, Finding, Heatmap, Notice, Panel, Table
from workbench.patch_sweep import PatchSweep
from workbench.path_patching import Path

PATHS = "What heads hand to heads"
LISTED = 10
"""So many paths stand in the table."""


def figures(study: Study) -> list[Finding]:
    """All figures, in order; a notice where there are none."""
    if not study.paths:
        text = f"No path was looked at: {study.reason}."
        return [Notice(id="path_patching.none", section=PATHS, title="No paths to show", text=text)]
    return [_map(study), _table(study)]


def _map(study: Study) -> Heatmap:
    paths = study.paths["denoising"].what
    senders = sorted({path.sender for path in paths})
    inputs = list(dict.fromkeys((path.receiver, path.kind) for path in paths))
    mark = study.strongest
    marks = () if mark is None else ((0, senders.index(mark.sender), inputs.index(mark[1:])),)
    limits = " Heads share keys and values here, so only queries can be told apart." if study.shared else ""
    return Heatmap(
        id="path_patching.paths",
        section=PATHS,
        title="What each head hands to one input of each later head",
        caption="Denoising: the sender's z of a sequence reaches one input (Q, K or V) of one receiver in the pass "
        "over its twin, at every position, the norm computed anew there; all else up to the receiver stays, all after "
        "it is computed anew. Noising: the reverse. Share of the logit difference. Receivers: the at most "
        f"{RECEIVERS} heads above L0 that carry {CARRIES:g} of the answer or more on {study.selected_on} validation "
        f"sequences.{limits} {len(study.twins.batch)} test sequences; 95 % intervals over them. Outlined: the "
        "strongest on validation sequences.",
        panels=tuple(
            _panel(title, study.paths[direction], senders, inputs)
            for direction, title in (("denoising", "denoising: restored"), ("noising", "noising: lost"))
        ),
        row_labels=tuple(map(str, senders)),
        column_labels=tuple(f"{receiver} {kind}" for receiver, kind in inputs),
        row_title="sender",
        column_title="receiver and input",
        unit="share",
        kind="diverging",
        vmin=-1.0,
        vmax=1.0,
        annotate=len(inputs) <= 12,
        marks=marks,
    )


def _panel(title: str, sweep: PatchSweep[Path], senders: list[Head], inputs: list[tuple[Head, str]]) -> Panel:
    grids = np.full((3, len(senders), len(inputs)), np.nan)
    for i, path in enumerate(sweep.what):
        grids[:, senders.index(path.sender), inputs.index(path[1:])] = [x[i] for x in sweep.shares]
    values, low, high = (tuple(map(tuple, grid.round(6).tolist())) for grid in grids)
    return Panel(title=title, values=values, low=low, high=high)


def _table(study: Study) -> Table:
    restored, lost = (study.paths[direction] for direction in ("denoising", "noising"))
    columns = {"restored": restored.shares, "lost": lost.shares}
    order = np.argsort(-np.abs(columns["restored"].value), kind="stable")[:LISTED]
    rows: list[dict[str, Cell]] = []
    for i in order:
        path = restored.what[i]
        row: dict[str, Cell] = {"sender": str(path.sender), "receiver": str(path.receiver), "input": path.kind}
        for key, at in columns.items():
            row |= {key: float(at.value[i]), f"{key}_low": float(at.low[i]), f"{key}_high": float(at.high[i])}
        rows.append(row | {"fired": f"{restored.fired[i]}/{restored.expected[i]}"})
    return Table(
        id="path_patching.strongest",
        section=PATHS,
        title="The strongest paths",
        caption=f"The {len(rows)} of {len(restored.what)} paths that restore most, either way, on "
        f"{len(study.twins.batch)} test sequences; 95 % intervals over them. A path's share is of the whole way from "
        "the twin's logit difference to the sequence's, so paths that work together need not add up.",
        columns=(
            Column(key="sender", label="sender"),
            Column(key="receiver", label="receiver"),
            Column(key="input", label="input"),
            Column(key="restored", label="restored", digits=3, low="restored_low", high="restored_high", signed=True),
            Column(key="lost", label="lost", digits=3, low="lost_low", high="lost_high", signed=True),
            Column(key="fired", label="fired", help="sequences on which the patch took place"),
        ),
        rows=tuple(rows),
        marked=tuple(i for i, row in enumerate(rows) if restored.what[order[i]] == study.strongest),
    )
