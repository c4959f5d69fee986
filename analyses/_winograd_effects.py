"""What interventions say: where the cue crosses, what breaks without which heads, how the cue acts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from analyses._heads import effects_by_head
from analyses._winograd_claims import CROSSED
from analyses._winograd_study import Hop, Study
from workbench.components import part_names
from workbench.findings import Cell, Column, Finding, Heatmap, Panel, Table
from workbench.measure import Effect
from workbench.patch_sweep import head_points, patch_sweep, residual_points
from workbench.patching import Shares
from workbench.statistics import mean_interval, paired_interval

CROSSES, BREAKS, ACTS = "Where the cue crosses", "What breaks without which heads", "How the cue acts"
WORDS = {
    "weight": "the twin's weight on the cue, own values",
    "value": "the twin's value of the cue, own weights",
    "both": "the twin's weight on the cue and its value",
    "unseen": "no weight on the cue",
}


def effect_findings(study: Study) -> list[Finding]:
    """All figures about interventions, in order."""
    found: list[Finding] = [_crossing(study), _head_patches(study), _singles(study), _table(study)]
    if study.lower:
        found.append(_lower(study))
    return [*found, _acts(study)]


def _places(study: Study) -> dict[str, Tensor]:
    """Word by word from the cue on where all sentences have one template; else the named places."""
    side = study.side
    if len(set(side.frames)) > 1:
        return {name: side.places[name] for name in ("cue", "between", "answer") if side.places[name].any()}
    cue, query = int(side.cue[0]), int(side.query[0])
    words = study.subject.vocabulary.decode(side.batch.tokens[0])
    labels = {cue: "‹cue›"} | {p: words[p] for p in range(cue + 1, query)} | {query: f"{words[query]} (decides)"}
    found = {}
    for place, label in labels.items():
        where = side.batch.mask & False
        where[:, place] = True
        found[label if label not in found else f"{label} ({place})"] = where
    return found


def _panel(title: str, at: Shares, rows: int, note: str = "") -> Panel:
    values, low, high = (tuple(map(tuple, x.round(6).reshape(rows, -1).tolist())) for x in at)
    return Panel(title=title, note=note, values=values, low=low, high=high)


def _crossing(study: Study) -> Heatmap:
    side, places = study.side, _places(study)
    layers = range(study.subject.config.n_layers + 1)
    points = residual_points(study.subject.config, list(places.values()))

    def panel(title: str, direction: str) -> Panel:
        sweep = patch_sweep(side.model, side.batch, side.twin, points, "resid_pre", direction)
        return _panel(title, sweep.shares, len(layers), "share of the logit difference")

    return Heatmap(
        id="winograd.crossing",
        section=CROSSES,
        title="Where the cue's information stands, layer by layer",
        caption="The residual stream at one place (column), as it enters a layer (row; the last leaves the model), "
        "taken from the other sentence of the pair. Left: the sentence's own activations put into its twin, and how "
        "much of the answer that restores. Right: the twin's put into the sentence, and how much is lost. Before the "
        f"cue both sentences are equal. {len(side.batch)} test sentences.",
        panels=(panel("denoising: restored", "denoising"), panel("noising: lost", "noising")),
        row_labels=tuple(f"into L{layer}" if layer < layers[-1] else "out" for layer in layers),
        column_labels=tuple(places),
        row_title="residual stream",
        column_title="position",
        unit="moved",
        kind="diverging",
        vmin=-1.0,
        vmax=1.0,
        annotate=True,
    )


def _head_patches(study: Study) -> Heatmap:
    side, config = study.side, study.subject.config
    titles = {"cue": "cue", "between": "between", "answer": "deciding position"}
    places = {place: title for place, title in titles.items() if side.places[place].any()}
    where = [side.places[place] for place in places]
    at = patch_sweep(side.model, side.batch, side.twin, head_points(config, where), "z", "noising").shares

    def panel(index: int, title: str) -> Panel:
        return _panel(title, Shares(*(x.reshape(-1, len(where))[:, index] for x in at)), config.n_layers)

    return effects_by_head(
        config,
        id="winograd.head_patches",
        section=CROSSES,
        title="Which heads carry it",
        caption="z of one head at one place taken from the twin: how far the answer moves towards the twin's. "
        "Everything after it is computed anew.",
        panels=tuple(panel(index, title) for index, title in enumerate(places.values())),
        unit="moved",
    )


def _singles(study: Study) -> Heatmap:
    config, role = study.subject.config, study.side.role

    def panel(title: str, members: np.ndarray) -> Panel:
        values = np.full((config.n_layers, config.n_heads), np.nan)
        for head, effect in study.singles.items():
            if members.any():
                values[head] = effect.accuracy_effect[members].mean()
        return Panel(title=title, values=tuple(tuple(map(float, row)) for row in values))

    named = [panel(f"{name} noun meant", role == r) for r, name in enumerate(study.candidates)]
    return effects_by_head(
        config,
        id="winograd.single_effects",
        section=BREAKS,
        title="Every head, removed alone",
        caption=f"Change in accuracy (ablated minus clean) when one head's z is replaced by its "
        f"{study.reference.describe()}.",
        panels=(panel("all sentences", role >= 0), *named),
        unit="Δ accuracy",
    )


def _by_role(study: Study, values: np.ndarray) -> dict[str, Cell]:
    """Mean with interval over the sentences of each role, under the candidates' names."""
    cells: dict[str, Cell] = {}
    for r, name in enumerate(study.candidates):
        chosen = values[study.side.role == r]
        at = mean_interval(chosen, bounds=(0, 1)) if len(chosen) else None
        for key in ("value", "low", "high"):
            cells[name if key == "value" else f"{name}_{key}"] = getattr(at, key) if at else None
    return cells


def _role_columns(study: Study) -> tuple[Column, ...]:
    return tuple(
        Column(key=name, label=f"accuracy, {name} noun meant", digits=3, low=f"{name}_low", high=f"{name}_high")
        for name in study.candidates
    )


def _table(study: Study) -> Table:
    def row(name: str, effect: Effect) -> Mapping[str, Cell]:
        at = paired_interval(effect.ablated_accuracy, effect.clean_accuracy, bounds=(0, 1))
        cells: dict[str, Cell] = {"removed": name, "effect": at.value, "low": at.low, "high": at.high}
        return cells | _by_role(study, effect.ablated_accuracy) | {"fired": f"{effect.fired}/{effect.expected}"}

    rows = [row(str(head), effect) for head, effect in study.singles.items()]
    rows += [row(f"all heads of L{layer}", effect) for layer, effect in study.layers.items()]
    return Table(
        id="winograd.ablations",
        section=BREAKS,
        title="Heads and whole layers removed",
        caption=f"z replaced by its {study.reference.describe()}; clean accuracy {study.behaviour.value:.3f}, "
        f"{len(study.side.batch)} test sentences, 95 % intervals over them.",
        columns=(
            Column(key="removed", label="removed"),
            Column(key="effect", label="Δ accuracy", digits=3, low="low", high="high", signed=True),
            *_role_columns(study),
            Column(key="fired", label="fired", help="sequences on which every edit took place"),
        ),
        rows=tuple(rows),
        marked=tuple(range(len(study.singles), len(rows))),
    )


def _lower(study: Study) -> Table:
    layers = next(iter(study.lower.values())).layers
    later = max(study.below) + 1
    crossed = study.crossed[later]
    heads = part_names(h for h in study.subject.heads if h.layer in study.below)
    return Table(
        id="winograd.lower_layers",
        section=BREAKS,
        title=f"Where the work of {layers} is needed",
        caption=f"z of every head of {layers} ({heads}) replaced by its mean over other sentences of the same "
        "template, at one place only. A candidate that is brought to the deciding position breaks the last row; one "
        "that travels through the cue's position breaks the cue's. "
        f"On entering L{later} {crossed.value:.2f} [{crossed.low:.2f}, {crossed.high:.2f}] of the cue's effect stands "
        f"at the deciding position (two hops need less than {CROSSED:g}).",
        columns=(Column(key="place", label="at"), *_role_columns(study), _moved_column()),
        rows=tuple(
            {"place": "deciding position" if hop.name == "answer" else hop.name} | _hop(study, hop)
            for hop in study.lower.values()
        ),
    )


def _moved_column() -> Column:
    help = "towards the twin's answer: 0 not at all, 1 all the way"
    return Column(key="moved", label="moved", digits=2, low="moved_low", high="moved_high", help=help)


def _hop(study: Study, hop: Hop) -> dict[str, Cell]:
    moved = {"moved": hop.moved.value, "moved_low": hop.moved.low, "moved_high": hop.moved.high}
    return _by_role(study, hop.accuracy) | moved


def _acts(study: Study) -> Table:
    return Table(
        id="winograd.acts",
        section=ACTS,
        title="What of the cue acts on the deciding position: its weight or its value",
        caption="At the deciding query alone, in every head of the layers named. Weight: the cue gets the weight that "
        "it has in the twin, and all other words share the rest in their own proportions. Value: what is read from the "
        "cue is the twin's. Both in every layer is the twin itself wherever the cue acts on that query directly.",
        columns=(
            Column(key="change", label="change"),
            Column(key="layers", label="layers"),
            _moved_column(),
            *_role_columns(study),
        ),
        rows=tuple({"change": WORDS[hop.name], "layers": hop.layers} | _hop(study, hop) for hop in study.acts),
    )
