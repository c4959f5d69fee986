"""What removing heads does: effects, cut paths, and how the work is shared."""

from __future__ import annotations

import numpy as np

from analyses._heads import effects_by_head
from analyses._induction_study import SHARING_SAMPLES, Study
from workbench.components import Head, part_names
from workbench.findings import Cell, Column, Finding, Heatmap, Panel, Table
from workbench.measure import Effect
from workbench.statistics import holm, paired_interval, sign_flip_p

SECTION = "What breaks without them"
LABELS = {"zero": "zero", "mean": "mean", "resample": "resample", "frozen": "zero, frozen"}
SETS = ("S0", "S1", "S0 and S1", "only S0 and S1")


def effect_findings(study: Study) -> list[Finding]:
    """Heatmap and table of effects, the cut paths, the sharing."""
    found = [_heatmap(study), _table(study)]
    cuts = [key for key in study.joint if key[0].endswith("cut")]
    if cuts:
        found.append(_cut_table(study, cuts))
    if study.sharing:
        found.append(_sharing_table(study))
    return found


def _cells(effect: Effect, key: str) -> dict[str, Cell]:
    at = paired_interval(effect.ablated_accuracy, effect.clean_accuracy, bounds=(0, 1))
    return {key: at.value, f"{key}_low": at.low, f"{key}_high": at.high}


def _heatmap(study: Study) -> Heatmap:
    config = study.subject.config

    def panel(how: str) -> Panel:
        values = np.array(
            [
                [float(study.singles[Head(layer, h), how].accuracy_effect.mean()) for h in range(config.n_heads)]
                for layer in range(config.n_layers)
            ]
        )
        return Panel(title=LABELS[how], values=tuple(tuple(map(float, row)) for row in values))

    return effects_by_head(
        config,
        id="induction.single_effects",
        section=SECTION,
        title="Every head, removed alone",
        caption="Change in accuracy at scored positions (ablated minus clean) when one head's z is replaced: by zero, "
        "by its "
        f"{study.reference.describe()}, by that of another sequence, by zero with every pattern held. "
        f"{len(study.batch)} test sequences, paired.",
        panels=tuple(panel(how) for how in study.ways),
        unit="Δ accuracy",
    )


def _table(study: Study) -> Table:
    rows: list[dict[str, Cell]] = []
    p = holm(
        [sign_flip_p(study.singles[h, "mean"].accuracy_effect, seed=study.subject.seed) for h in study.subject.heads]
    )
    for h, corrected in zip(study.subject.heads, p, strict=True):
        rows.append(_row(str(h), str(h), {how: study.singles[h, how] for how in study.ways}, float(corrected)))
    members = {"S0": study.sets.s0, "S1": study.sets.s1, "S0 and S1": study.circuit}
    for name in SETS:
        effects = {how: study.joint[name, how] for how in study.ways if (name, how) in study.joint}
        if effects:
            heads = members.get(name, study.circuit)
            verb = "all but" if name.startswith("only") else "all of"
            rows.append(_row(f"{verb} {name.removeprefix('only ')}", part_names(heads), effects, None))
    columns = [Column(key="removed", label="removed")]
    columns += [
        Column(key=how, label=label, digits=3, low=f"{how}_low", high=f"{how}_high", signed=True)
        for how, label in LABELS.items()
        if how in study.ways
    ]
    columns += [
        Column(key="p_corrected", label="p (Holm)", digits=3, help="sign flips, mean ablation, all heads corrected"),
        Column(key="fired", label="fired", help="sequences on which every edit took place"),
    ]
    clean = study.behaviour
    return Table(
        id="induction.ablations",
        section=SECTION,
        title="Effect on accuracy, every head and the sets",
        caption=f"Ablated minus clean, paired by sequence, 95 % intervals over {clean.n} test sequences; clean "
        f"accuracy {clean.value:.3f}. The mean is the {study.reference.describe()}. A set's joint effect is not the "
        "sum "
        f"of its heads'. S0: {part_names(study.sets.s0)}. S1: {part_names(study.sets.s1)}."
        + ("" if "resample" in study.ways else " Padded sequences are not resampled."),
        columns=tuple(columns),
        rows=tuple(rows),
        marked=tuple(i for i, h in enumerate(study.subject.heads) if h in study.circuit),
    )


def _row(name: str, heads: str, effects: dict[str, Effect], p: float | None) -> dict[str, Cell]:
    row: dict[str, Cell] = {"removed": name, "heads": heads, "p_corrected": p}
    for how in LABELS:
        row |= _cells(effects[how], how) if how in effects else {how: None, f"{how}_low": None, f"{how}_high": None}
    row["fired"] = f"{min(e.fired for e in effects.values())}/{max(e.expected for e in effects.values())}"
    return row


def _cut_table(study: Study, cuts: list[tuple[str, str]]) -> Table:
    rows = []
    for key in cuts:
        effect = study.joint[key]
        rows.append(
            {"path": key[0], **_cells(effect, "effect"), "fired": f"{effect.fired}/{effect.expected}"}
            | {"accuracy": float(effect.ablated_accuracy.mean())}
        )
    return Table(
        id="induction.paths",
        section=SECTION,
        title="Cutting the direct path from S0 to S1",
        caption=f"The keys, queries or values of {part_names(study.sets.s1)} read a residual stream in which the "
        "writes of "
        f"{part_names(study.sets.s0)} are replaced by their {study.reference.describe()}; the norm is computed anew.",
        columns=(
            Column(key="path", label="path"),
            Column(key="accuracy", label="accuracy left", digits=3),
            Column(key="effect", label="effect", digits=3, low="effect_low", high="effect_high", signed=True),
            Column(key="fired", label="fired"),
        ),
        rows=tuple(rows),
    )


def _sharing_table(study: Study) -> Table:
    rows: list[dict[str, Cell]] = []
    for name, heads in (("S0", study.sets.s0), ("S1", study.sets.s1)):
        if name not in study.sharing:
            continue
        at = study.sharing[name]
        shares = ", ".join(f"{h} {share:.2f}" for h, share in zip(heads, at.shares, strict=False))
        negative = f"negative, set to 0: {part_names(at.negatives)}" if at.negatives else ""
        rows.append(
            {"set": name, "heads": part_names(heads), "effective_number": at.value}
            | {
                "low": at.low,
                "high": at.high,
                "shares": shares,
                "remark": ". ".join(filter(None, (negative, at.reason))),
            }
        )
    return Table(
        id="induction.shares",
        section=SECTION,
        title="How the work is shared",
        caption="Normalised Shapley values of each head in the joint effect of its set on accuracy (mean ablation of "
        f"subsets, first {min(len(study.batch), SHARING_SAMPLES)} test sequences), and the effective number of heads, "
        "exp "
        "of their entropy. Exact to 8 heads; over random orders beyond.",
        columns=(
            Column(key="set", label="set"),
            Column(key="heads", label="heads"),
            Column(key="effective_number", label="effective number", digits=2, low="low", high="high"),
            Column(key="shares", label="shares"),
            Column(key="remark", label="remark"),
        ),
        rows=tuple(rows),
    )
