"""Everything that the Winograd analysis measures, once.

What is chosen (the layer in which the cue crosses, the role that needs a candidate brought forward) is chosen on
validation sentences; what is claimed is measured on test sentences. Means are taken over other validation sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from analyses._winograd_sides import (
    Side,
    changed,
    cue_value_edits,
    cue_weight_edits,
    frame_means,
    look,
    without_heads,
)
from workbench.ablation import Mean
from workbench.analysis import Budget, Progress
from workbench.behaviour import Judgement, there
from workbench.components import Head
from workbench.measure import Effect, measure
from workbench.patch_sweep import patch_sweep, residual_points
from workbench.reference import ReferenceSet, build_reference
from workbench.statistics import Interval
from workbench.subject import Subject
from workbench.task import Batch, Task

REFERENCE_SIZE = 256
ROUNDING = 1e-5
"""Two scores that differ by less than this share of max(1, the row's largest) are equal: float32 rounding."""

VISIBLE = 1e-12
"""Weights below this are too near what float32 can hold for a ratio to mean anything."""


@dataclass(frozen=True, eq=False)
class FirstLayer:
    """The deciding query's row in the first layer, sentences against twins; one value a sentence and head ``[n head]``.

    Attributes:
        score_gap: largest difference of a score on an unchanged word, relative to max(1, the row's largest score).
        ratio_gap: largest factor (minus 1) by which a ratio of two unchanged words' weights differs (nan where fewer
            than two weights are visible).
        row_gap: total variation between the two rows, from 0 (equal) to 1. cue_weight, twin_weight: weight on the cue.
    """

    score_gap: Float[np.ndarray, "n head"]
    ratio_gap: Float[np.ndarray, "n head"]
    row_gap: Float[np.ndarray, "n head"]
    cue_weight: Float[np.ndarray, "n head"]
    twin_weight: Float[np.ndarray, "n head"]


@dataclass(frozen=True, eq=False)
class Hop:
    """An intervention on how the cue acts, or on what lower layers do, at the deciding position.

    Attributes:
        name, layers: what was done and where. accuracy: one value a sentence. moved: how far towards the twin.
    """

    name: str
    layers: str
    accuracy: Float[np.ndarray, " n"]
    moved: Interval


@dataclass(frozen=True, eq=False)
class Study:
    """What was measured on a subject.

    Attributes:
        side: the test sentences. behaviour: whether clean accuracy is there. first: the first layer's rows.
        crossed: by layer 0 to n_layers, how much of the cue's effect stands at the deciding position when that layer
            is entered. layer: where it crosses most (chosen on validation). role: the candidate whose sentences need
            the lower layers most (chosen on validation; -1 in a one-layer model).
        lower: place to what mean-ablating the lower layers' heads there does. relay: the place other than the deciding
            position, and the candidate, that need it most (chosen on validation). acts: how the cue acts.
        singles, layers: effects of removing one head, and all heads of a layer. reference: of their means.
    """

    subject: Subject
    task: Task
    side: Side
    behaviour: Judgement
    first: FirstLayer
    crossed: tuple[Interval, ...]
    layer: int
    role: int
    lower: Mapping[str, Hop]
    relay: tuple[str, int] | None
    acts: tuple[Hop, ...]
    singles: Mapping[Head, Effect]
    layers: Mapping[int, Effect]
    reference: ReferenceSet

    @property
    def below(self) -> tuple[int, ...]:
        """The layers below the one in which the cue crosses (at least the first, where there are several)."""
        return below(self.layer, self.subject.config.n_layers)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of the candidates' positions."""
        return self.task.roles["candidates"]


def below(layer: int, n_layers: int) -> tuple[int, ...]:
    """The layers that a story of two hops needs below ``layer``; none in a one-layer model."""
    return tuple(range(max(1, layer))) if n_layers > 1 else ()


def conduct(subject: Subject, task: Task, batch: Batch, twin: Batch, budget: Budget, progress: Progress) -> Study:
    """Measure everything on these test sentences and their twins."""
    model = subject.own
    progress("rows of attention")
    side = look(model, task, batch, twin)
    selection, reference = (
        _held_out(subject, task, n, name)
        for n, name in ((budget.selection_samples, "winograd select"), (REFERENCE_SIZE, "winograd reference"))
    )

    progress("where the cue crosses")
    chosen = [at.value for at in crossings(selection)]
    rises = np.nan_to_num(np.diff(chosen))
    layer = int(rises.argmax())
    lower_layers = below(layer, subject.config.n_layers)
    role = -1
    if lower_layers:
        hurt = _without(selection, reference, lower_layers, "answer").accuracy
        means = [hurt[selection.role == r].mean() if (selection.role == r).any() else 1.0 for r in _roles(task)]
        role = int(np.argmin(means))
    others = [place for place in side.places if place != "answer"] if lower_layers else []
    relay = _most_needed(task, selection, {p: _without(selection, reference, lower_layers, p) for p in others})
    lower = {place: _without(side, reference, lower_layers, place) for place in side.places} if lower_layers else {}

    progress("removing heads")
    known = build_reference(subject)
    heads = {(h,): Mean((h,), known) for h in subject.heads}
    whole = {
        tuple(h for h in subject.heads if h.layer == i): Mean(tuple(h for h in subject.heads if h.layer == i), known)
        for i in range(subject.config.n_layers)
    }
    asked = heads | whole
    effects = dict(zip(asked, measure(subject, batch, list(asked.values())), strict=True))
    return Study(
        subject=subject,
        task=task,
        side=side,
        behaviour=there(side.accuracy, task.floor().accuracy, _top(task)),
        first=first_layer(side),
        crossed=crossings(side),
        layer=layer,
        role=role,
        lower=lower,
        relay=relay,
        acts=tuple(_acts(side)),
        singles={h: effects[(h,)] for h in subject.heads},
        layers={group[0].layer: effects[group] for group in whole},
        reference=known,
    )


def _most_needed(task: Task, side: Side, hops: Mapping[str, Hop]) -> tuple[str, int] | None:
    """The place and the role whose sentences lose most when the lower layers' heads are replaced there alone."""
    found = [
        (float(hop.accuracy[side.role == role].mean()), place, role)
        for place, hop in hops.items()
        for role in _roles(task)
        if (side.role == role).any()
    ]
    return min(found)[1:] if found else None


def _roles(task: Task) -> range:
    return range(len(task.roles["candidates"]))


def _top(task: Task) -> float | None:
    ceiling = task.ceiling()
    return ceiling.accuracy if ceiling else None


def _held_out(subject: Subject, task: Task, n: int, name: str) -> Side:
    batch = subject.sample(n, "validation", name)
    twin = task.counterfactual(batch)
    assert twin is not None
    return look(subject.own, task, batch, twin)


def crossings(side: Side) -> tuple[Interval, ...]:
    """By layer: how far the twin's residual stream at the deciding position, put in as that layer is entered, moves."""
    points = residual_points(side.model.config, [side.places["answer"]])
    at = patch_sweep(side.model, side.batch, side.twin, points, "resid_pre", "noising").shares
    return tuple(Interval(float(v), float(low), float(high), len(side.batch)) for v, low, high in zip(*at, strict=True))


def _without(side: Side, reference: Side, layers: tuple[int, ...], place: str) -> Hop:
    means = frame_means(reference, side)
    logits = without_heads(side, layers, side.places[place], means)
    return Hop(place, _names(layers), side.accuracy_of(logits), side.moved(logits))


def _names(layers: tuple[int, ...] | range) -> str:
    return ", ".join(f"L{layer}" for layer in layers)


def _acts(side: Side) -> list[Hop]:
    """The ways in which the cue can act on the deciding query, each taken from the twin alone."""
    every = tuple(range(side.model.config.n_layers))
    groups = [(layer,) for layer in every] + ([every] if len(every) > 1 else [])
    made = []
    for name, edits in (
        ("weight", cue_weight_edits),
        ("value", cue_value_edits),
        ("both", lambda s, group: [*cue_weight_edits(s, group), *cue_value_edits(s, group)]),
        ("unseen", lambda s, group: cue_weight_edits(s, group, removed=True)),
    ):
        if side.model.config.attention == "uniform" and name != "value":
            continue
        for group in groups:
            logits = changed(side, edits(side, group))
            made.append(Hop(name, _names(group), side.accuracy_of(logits), side.moved(logits)))
    return made


def first_layer(side: Side) -> FirstLayer:
    """Rows of the first layer at the deciding query, sentences against their twins."""
    scores, theirs = (side.rows("attn_scores", twin)[:, 0] for twin in (False, True))
    rows, other = (side.rows("pattern", twin)[:, 0] for twin in (False, True))
    at = torch.arange(scores.shape[-1], device=scores.device)
    seen = at <= side.query[:, None]
    unchanged = (seen & (at != side.cue[:, None]))[:, None].expand_as(scores)

    def over(x: Tensor) -> Tensor:
        return x.masked_fill(~unchanged, 0.0)

    largest = over(scores).abs().amax(-1).clamp(min=1.0)
    n = torch.arange(len(side.cue), device=scores.device)
    visible = unchanged & (rows > VISIBLE) & (other > VISIBLE)
    log_gap = rows.double().clamp(min=VISIBLE).log() - other.double().clamp(min=VISIBLE).log()
    highest = log_gap.masked_fill(~visible, -torch.inf).amax(-1)
    lowest = log_gap.masked_fill(~visible, torch.inf).amin(-1)
    spread = torch.where(visible.sum(-1) > 1, torch.expm1(highest - lowest), torch.nan)
    return FirstLayer(
        score_gap=_numbers(over(scores - theirs).abs().amax(-1) / largest),
        ratio_gap=_numbers(spread),
        row_gap=_numbers((rows - other).abs().sum(-1) / 2),
        cue_weight=_numbers(rows[n, :, side.cue]),
        twin_weight=_numbers(other[n, :, side.cue]),
    )


def _numbers(x: Tensor) -> np.ndarray:
    return x.double().cpu().numpy()
