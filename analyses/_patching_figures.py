"""Maps of what patches restore and lose; each head exact and approximated; how patching was checked."""

from __future__ import annotations

import numpy as np

from analyses._heads import effects_by_head
from analyses._patching_study import Study
from workbench.findings import Cell, Column, Finding, Heatmap, Notice, Panel, Table
from workbench.patching import Shares

STREAM, HEADS = "Where the answer stands", "Which heads carry it"
NOTABLE = 0.05
"""A share by which exact and approximated have to differ to be set off."""
ANNOTATED = 12
"""Up to so many columns the value is written into each cell."""


def figures(study: Study) -> list[Finding]:
    """All figures, in order."""
    return [_residual(study), _heads(study), _table(study), _checks(study)]


def panel(title: str, at: Shares, rows: int) -> Panel:
    """Shares as a matrix with this many rows, with their intervals; rounded, so that 1 is not marked as beyond 1."""
    values, low, high = (tuple(map(tuple, x.round(6).reshape(rows, -1).tolist())) for x in at)
    return Panel(title=title, values=values, low=low, high=high)


def _residual(study: Study) -> Heatmap:
    layers, places = range(study.subject.config.n_layers + 1), tuple(study.twins.places)
    titles = {"denoising": "denoising: restored", "noising": "noising: lost"}
    return Heatmap(
        id="activation_patching.residual",
        section=STREAM,
        title="The residual stream, patched at one place as it enters a layer",
        caption="Left: taken from a sequence and put into its twin, and how much of the sequence's answer that "
        "restores (share of the logit difference between the two answers). Right: the twin's put into the sequence, "
        "and how much is lost. Everything after it is computed anew. "
        f"{len(study.twins.batch)} test sequences; 95 % intervals over them.",
        panels=tuple(panel(titles[d], sweep.shares, len(layers)) for d, sweep in study.residual.items()),
        row_labels=tuple(f"into L{layer}" if layer < layers[-1] else "out" for layer in layers),
        column_labels=places,
        row_title="residual stream",
        column_title="position",
        unit="share",
        kind="diverging",
        vmin=-1.0,
        vmax=1.0,
        annotate=len(places) <= ANNOTATED,
    )


def _whole(study: Study, at: Shares) -> Shares:
    index = [study.whole(head) for head in study.subject.heads]
    return Shares(*(x[index] for x in at))


def _heads(study: Study) -> Heatmap:
    rows = study.subject.config.n_layers
    return effects_by_head(
        study.subject.config,
        id="activation_patching.heads",
        section=HEADS,
        title="z of one head, patched at every position",
        caption="Denoising and noising as above, exact: everything after the head is computed anew. Approximated: the "
        "gradient of the logit difference in the twin's pass times the difference of z (attribution patching, Nanda "
        f"2023). {len(study.twins.batch)} test sequences. Outlined: the head that restores most on validation "
        "sequences.",
        panels=(
            panel("denoising: restored", _whole(study, study.heads.exact.shares), rows),
            panel("noising: lost", study.lost.shares, rows),
            panel("denoising, approximated", _whole(study, study.heads.shares), rows),
        ),
        unit="share",
        marks=((0, study.head.layer, study.head.head),),
    )


def _table(study: Study) -> Table:
    columns = {
        "restored": _whole(study, study.heads.exact.shares),
        "lost": study.lost.shares,
        "approximated": _whole(study, study.heads.shares),
        "disagreement": _whole(study, study.heads.disagreement),
    }
    by_place = study.heads.exact.shares.value.reshape(len(study.subject.heads), -1)[:, :-1]
    rows: list[dict[str, Cell]] = []
    for i, head in enumerate(study.subject.heads):
        row: dict[str, Cell] = {"head": str(head)}
        for key, at in columns.items():
            row |= {key: float(at.value[i]), f"{key}_low": float(at.low[i]), f"{key}_high": float(at.high[i])}
        best = 0 if study.reason else int(np.abs(by_place[i]).argmax())
        row |= {"place": study.head_places[best], "there": float(by_place[i, best])}
        rows.append(row)
    differ = columns["disagreement"]
    apart = np.flatnonzero((differ.low > NOTABLE) | (differ.high < -NOTABLE))
    labels = {"restored": "restored", "lost": "lost", "approximated": "approximated", "disagreement": "difference"}
    help = {"disagreement": "approximated minus restored, paired by sequence"}
    return Table(
        id="activation_patching.table",
        section=HEADS,
        title="Exact and approximated, head by head",
        caption="Shares of the logit difference; z everywhere, and at the one place where it restores most. Set off: "
        f"heads of which the approximation is wrong by more than {NOTABLE:g}. {len(study.twins.batch)} test sequences, "
        "95 % intervals over them.",
        columns=(
            Column(key="head", label="head"),
            *(
                Column(
                    key=key,
                    label=label,
                    digits=2,
                    low=f"{key}_low",
                    high=f"{key}_high",
                    signed=key == "disagreement",
                    help=help.get(key, ""),
                )
                for key, label in labels.items()
            ),
            Column(key="place", label="most at"),
            Column(key="there", label="restored there", digits=2),
        ),
        rows=tuple(rows),
        marked=tuple(map(int, apart)),
    )


def _checks(study: Study) -> Notice:
    checks, sweeps = study.checks, (*study.residual.values(), study.heads.exact, study.lost)
    other = (
        "sequences and twins are padded differently, so no patch makes one the other"
        if checks.everything is None
        else f"the whole residual stream patched gives the other pass's logits ({_gap(checks.everything)})"
    )
    fired, due = (sum(sum(getattr(sweep, name)) for sweep in sweeps) for name in ("fired", "expected"))
    return Notice(
        id="activation_patching.checks",
        section=HEADS,
        title="Checked on this model",
        text="A pass patched with itself is the clean pass, bitwise; "
        f"{other}; both on {checks.sequences} sequences. The first and the last patch of every sweep gave what the "
        "hooks give. All patches together took place on "
        f"{fired:,} of {due:,} sequences, as they should. Less would have been an error.",
    )


def _gap(deviation: float) -> str:
    return f"to {deviation:.0e}" if deviation else "bitwise"
