"""Attention at the deciding position: two sentences one word apart, every cue, and what is equal exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from analyses._winograd_study import Study
from workbench.findings import Attention, Cell, Column, Finding, Heatmap, Panel, Rule, Table
from workbench.statistics import mean_interval

APART, EXACT = "One word apart", "What is equal in the first layer, and what is not"
MOST_HEADS = 8
"""Models with more heads show the cues' rows by layer only."""

SOURCE_FRAME = "the _ did not cross the _ because it was too _ , so the"
FIRST_BLOCK = ((1, 0.70), (6, 0.06), (12, 0.05), (14, 0.19))
SOURCE = (
    *((1, cue, place, value) for cue in ("tired", "wet") for place, value in FIRST_BLOCK),
    (2, "tired", 11, 1.00),
    *((2, "wet", place, value) for place, value in ((6, 0.49), (14, 0.25), (10, 0.20), (4, 0.03), (11, 0.03))),
)  # fmt: skip
"""Block, cue, place in the frame, weight (mean of four heads, one sentence): printed for another model's run."""

SHOWN_CUE = "tired"


def attention_findings(study: Study) -> list[Finding]:
    """All figures about attention, in order."""
    shown = _shown(study)
    found: list[Finding] = [_pair(study, shown), *_cues(study, shown), *_views(study, shown)]
    found += _source_table(study, shown)
    return [*found, _exact_table(study)]


def _text(study: Study, row: int, twin: bool = False) -> list[str]:
    batch = study.side.twin if twin else study.side.batch
    return study.subject.vocabulary.decode(batch.tokens[row])


def _shown(study: Study) -> int:
    """The sentence that is drawn: one that means the first noun, where possible with the cue that the source shows."""
    first = [i for i, role in enumerate(study.side.role) if role == 0] or [0]
    cues = _cue_words(study)
    return next((i for i in first if cues[i] == SHOWN_CUE), first[0])


def _cue_words(study: Study) -> list[str]:
    side = study.side
    n = torch.arange(len(side.cue), device=side.cue.device)
    return study.subject.vocabulary.decode(side.batch.tokens[n, side.cue])


def _mean_rows(values: torch.Tensor) -> list[tuple[float, ...]]:
    """``[layer head key]`` as one row a head, and one for the mean of a layer's heads after them."""
    rows = []
    for layer in values:
        rows += [tuple(map(float, head)) for head in layer]
        rows.append(tuple(map(float, layer.mean(dim=0))))
    return rows


def _row_labels(study: Study) -> tuple[str, ...]:
    config = study.subject.config
    return tuple(
        label
        for layer in range(config.n_layers)
        for label in (*(f"L{layer}.H{h}" for h in range(config.n_heads)), f"L{layer} mean")
    )


def _pair(study: Study, row: int) -> Heatmap:
    side = study.side
    end, cue = int(side.query[row]) + 1, int(side.cue[row])
    here, there = _text(study, row), _text(study, row, twin=True)
    labels = [*here[:end]]
    labels[cue] = f"{here[cue]} / {there[cue]}"
    panels = []
    for twin, words in ((False, here), (True, there)):
        values = side.rows("pattern", twin)[row, :, :, :end]
        panels.append(Panel(title=f"… {words[cue]} …", note=f"means {words[end]}", values=tuple(_mean_rows(values))))
    return Heatmap(
        id="winograd.pair",
        section=APART,
        title="Attention at the deciding position, two sentences one word apart",
        caption=f"“{' '.join(here[:end])}” and the same with “{there[cue]}”, a held-out test sentence. Each row sums "
        f"to 1; an even spread would be {1 / end:.3f} for every word.",
        panels=tuple(panels),
        row_labels=_row_labels(study),
        column_labels=tuple(labels),
        row_title="head",
        column_title="word attended to",
        unit="attention",
        vmin=0.0,
        vmax=1.0,
        rules=(Rule(label="even", value=round(1 / end, 3)),),
    )


def _template(study: Study, row: int) -> list[str]:
    """The words up to the deciding query, slots as names."""
    side = study.side
    words = _text(study, row)[: int(side.query[row]) + 1]
    for name in (*study.candidates, *study.task.roles["cue"]):
        words[int(side.batch.positions[name][row])] = f"‹{name}›"
    return words


def _by_cue(study: Study, row: int) -> dict[str, list[int]]:
    """Sentences of the shown template by cue, those that mean the first noun first."""
    frame, cues = study.side.frames[row], _cue_words(study)
    members = [i for i, other in enumerate(study.side.frames) if other == frame]
    order = sorted({(int(study.side.role[i]), cues[i]) for i in members})
    return {cue: [i for i in members if cues[i] == cue] for _, cue in order}


def _cues(study: Study, row: int) -> list[Finding]:
    config, groups = study.subject.config, _by_cue(study, row)
    words = _template(study, row)
    rows = study.side.rows("pattern")[..., : len(words)]
    means = torch.stack([rows[index].mean(dim=0) for index in groups.values()])  # [cue layer head key]
    label = {cue: f"{cue} ({study.candidates[int(study.side.role[index[0]])]})" for cue, index in groups.items()}

    def heatmap(id: str, title: str, panels: Sequence[Panel]) -> Heatmap:
        return Heatmap(
            id=id,
            section=APART,
            title=title,
            caption="Mean over the test sentences of this template with each cue "
            f"({min(map(len, groups.values()))} to {max(map(len, groups.values()))} a cue); in brackets the noun that "
            "the cue points to.",
            panels=tuple(panels),
            row_labels=tuple(label.values()),
            column_labels=tuple(words),
            row_title="cue",
            column_title="word attended to",
            unit="attention",
            vmin=0.0,
            vmax=1.0,
        )

    def panel(title: str, values: torch.Tensor) -> Panel:
        return Panel(title=title, values=tuple(tuple(map(float, r)) for r in values))

    layers = [panel(f"L{i}, mean of heads", means[:, i].mean(dim=1)) for i in range(config.n_layers)]
    found: list[Finding] = [heatmap("winograd.cues", "The same row for every cue, by layer", layers)]
    if config.n_layers * config.n_heads <= MOST_HEADS:
        heads = [panel(str(h), means[:, h.layer, h.head]) for h in study.subject.heads]
        found.append(heatmap("winograd.cues_by_head", "The same row for every cue, by head", heads))
    return found


def _views(study: Study, row: int) -> list[Finding]:
    side, end = study.side, int(study.side.query[row]) + 1
    heads = study.subject.heads[: 2 * MOST_HEADS]
    found: list[Finding] = []
    for twin, cache in ((False, side.clean), (True, side.other)):
        patterns = tuple(
            tuple(tuple(round(v, 4) for v in r) for r in
                  cache.activations[f"blocks.{h.layer}.attn.hook_pattern"][row, h.head, :end, :end].tolist())
            for h in heads
        )  # fmt: skip
        words = _text(study, row, twin)
        found.append(
            Attention(
                id=f"winograd.attention_{'twin' if twin else 'sentence'}",
                section=APART,
                title=f"All of the attention: “… {words[int(side.cue[row])]} …”",
                caption=f"Each row is a query, each column a word it looks at. The last row decides: {words[end]}.",
                tokens=tuple(words[:end]),
                patterns=patterns,
                names=tuple(map(str, heads)),
            )
        )
    return found


def _source_table(study: Study, row: int) -> list[Finding]:
    """The source's weights beside ours, where the sentences are the source's."""
    words = [("_" if w.startswith("‹") else w) for w in _template(study, row)]
    groups = _by_cue(study, row)
    if " ".join(words) != SOURCE_FRAME or not {"tired", "wet"} <= set(groups):
        return []
    names = _template(study, row)
    pattern, n_heads = study.side.rows("pattern"), study.subject.config.n_heads
    rows: list[dict[str, Cell]] = []
    for block, cue, place, value in SOURCE:
        made: dict[str, Cell] = {"block": block, "cue": cue, "word": cue if place == 11 else names[place]}
        made |= {"source": value, "ours": None}
        if block <= study.subject.config.n_layers:
            ours = pattern[groups[cue], block - 1, :, place].mean(dim=0)
            made |= {"ours": float(ours.mean())} | {f"h{h}": float(v) for h, v in enumerate(ours)}
        rows.append(made)
    return [
        Table(
            id="winograd.source",
            section=APART,
            title="Printed weights of another run, beside this one's",
            caption="“Source” are numbers printed for another model, trained elsewhere: the mean of its four heads in "
            "one sentence. “This run” is the mean of this model's heads over the test sentences with the same cue, and "
            "then each head. Another run may divide the work otherwise; nothing here is expected to agree.",
            columns=(
                Column(key="block", label="block"),
                Column(key="cue", label="sentence with"),
                Column(key="word", label="word attended to"),
                Column(key="source", label="source (another run)", digits=2),
                Column(key="ours", label="this run, mean", digits=2),
                *(Column(key=f"h{h}", label=f"H{h}", digits=2) for h in range(n_heads)),
            ),
            rows=tuple(rows),
        )
    ]


def _exact_table(study: Study) -> Table:
    first, role = study.first, study.side.role
    rows: list[dict[str, Cell]] = []
    for h in range(study.subject.config.n_heads):
        gap = mean_interval(first.row_gap[:, h], bounds=(0, 1))
        ratio = first.ratio_gap[:, h]
        finite = ratio[np.isfinite(ratio)]
        row: dict[str, Cell] = {
            "head": f"L0.H{h}",
            "scores": f"{first.score_gap[:, h].max():.1e}" if first.score_gap[:, h].max() else "0, bitwise",
            "ratios": f"{finite.max():.1e}" if len(finite) else None,
            "row": gap.value,
            "row_low": gap.low,
            "row_high": gap.high,
        }
        for r, name in enumerate(study.candidates):
            chosen = first.cue_weight[role == r, h]
            row[f"cue_{name}"] = float(chosen.mean()) if len(chosen) else None
        rows.append(row)
    return Table(
        id="winograd.first_layer",
        section=EXACT,
        title="The deciding position's row in the first layer: scores and ratios are equal, weights are not",
        caption="A first-layer query does not know the cue, so its scores on unchanged words, and the ratios of their "
        f"weights, are the same in both sentences (largest deviation over {len(first.row_gap)} sentences and their "
        "twins; float32 rounding is about 1e-6). The weights themselves share one denominator with the cue's: the row "
        "differs by its total variation.",
        columns=(
            Column(key="head", label="head"),
            Column(key="scores", label="scores differ by", help="largest, relative to max(1, the row's largest)"),
            Column(key="ratios", label="ratios differ by", help="largest factor minus 1"),
            Column(key="row", label="row differs by", digits=3, low="row_low", high="row_high"),
            *(
                Column(key=f"cue_{name}", label=f"weight on a cue for the {name}", digits=3)
                for name in study.candidates
            ),
        ),
        rows=tuple(rows),
    )
