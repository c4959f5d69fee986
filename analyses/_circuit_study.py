"""Everything that the circuit search measures, once.

The circuit, and the subset of it on which completeness is judged, are chosen on validation sequences; every claim is
measured on test sequences. Heads outside are replaced by their mean; MLPs stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from analyses._probe_scores import Probed, probe_scores
from workbench.ablation import Intervention, Joint, KeepOnly, Mean
from workbench.analysis import Budget, Progress
from workbench.behaviour import Judgement, there
from workbench.circuit_search import CircuitSearch, find_circuit, subsets
from workbench.components import Head
from workbench.cut_path import CutPath, PathKind
from workbench.measure import Effect, measure
from workbench.reference import ReferenceSet, build_reference
from workbench.subject import Subject
from workbench.task import Batch, Task

SUBSETS = 16
"""Subsets of the circuit that completeness is tried on: all of a circuit of four heads."""

EDGES, EDGE_SAMPLES = 48, 128
"""Each path is a pass of its own: with more paths than this none is measured; on at most so many sequences."""

Subset = tuple[Head, ...]
Edge = tuple[PathKind, Head, Head]


@dataclass(frozen=True)
class Pair:
    """The same heads taken from the whole model and from the circuit alone."""

    model: Effect
    circuit: Effect

    @property
    def difference(self) -> np.ndarray:
        """Accuracy of the circuit without them minus that of the model without them, by sequence."""
        return self.circuit.ablated_accuracy - self.model.ablated_accuracy


@dataclass(frozen=True, eq=False)
class Found:
    """A circuit and what was measured of it, on test sequences.

    Attributes:
        alone: the circuit kept alone. gone: the circuit removed (None where it is empty).
        left_out: head of the circuit to the circuit kept alone without it. removed: to the model without that head.
        worst: the subset without which circuit and model differ most on the validation sequences (None where the
            circuit is empty or the whole model); ``tried``: of how many. pair: the same on the test sequences.
        edges: (kind, sender, receiver) to the circuit kept alone with that path cut. cut_base: accuracy of the circuit
            alone on the same sequences. no_edges: why no path was measured, or "".
        probed: head scores, for the roles.
    """

    search: CircuitSearch
    alone: Effect
    gone: Effect | None
    left_out: Mapping[Head, Effect]
    removed: Mapping[Head, Effect]
    worst: Subset | None
    tried: int
    pair: Pair | None
    edges: Mapping[Edge, Effect]
    cut_base: np.ndarray
    no_edges: str
    probed: Probed


@dataclass(frozen=True, eq=False)
class Study:
    """What was measured on a subject: the behaviour on the test sequences and, where it is there, the circuit."""

    subject: Subject
    task: Task
    behaviour: Judgement
    reference: ReferenceSet
    found: Found | None

    @property
    def is_everything(self) -> bool:
        """Whether no head lies outside the circuit."""
        return self.found is not None and set(self.found.search.heads) == set(self.subject.heads)


def conduct(subject: Subject, task: Task, budget: Budget, progress: Progress) -> Study:
    """Measure everything."""
    reference = build_reference(subject)
    test = subject.sample(budget.samples, "test", "circuit search")
    clean = measure(subject, test, [KeepOnly(subject.heads, Mean((), reference))])[0].clean_accuracy
    ceiling = task.ceiling()
    behaviour = there(clean, task.floor().accuracy, ceiling.accuracy if ceiling else None)
    found = None
    if behaviour.verdict == "supported":
        found = _find(subject, task, test, reference, budget, progress)
    return Study(subject, task, behaviour, reference, found)


def _find(
    subject: Subject, task: Task, test: Batch, reference: ReferenceSet, budget: Budget, progress: Progress
) -> Found:
    by = Mean((), reference)
    progress("search")
    selection = subject.sample(budget.selection_samples, "validation", "circuit search")
    search = find_circuit(subject, selection, by, spent=lambda: budget.spent)
    circuit = search.heads

    progress("criteria")
    asked: list[Intervention] = [KeepOnly(circuit, by)]
    asked += [KeepOnly(tuple(h for h in circuit if h != head), by) for head in circuit]
    asked += [Mean(head, reference) for head in circuit]
    asked += [Mean(circuit, reference)] if circuit else []
    alone, *effects = measure(subject, test, asked)
    worst, tried = _worst_subset(subject, selection, circuit, by)

    progress("paths")
    paths, no_edges = _paths(subject, circuit, budget)
    few = test[: min(len(test), EDGE_SAMPLES)]
    cuts = [Joint((KeepOnly(circuit, by), CutPath(kind, (s,), (r,), reference))) for kind, s, r in paths]
    return Found(
        search=search,
        alone=alone,
        gone=effects[-1] if circuit else None,
        left_out=dict(zip(circuit, effects, strict=False)),
        removed=dict(zip(circuit, effects[len(circuit) :], strict=False)),
        worst=worst,
        tried=tried,
        pair=None if worst is None else _pairs(subject, test, circuit, [worst], by)[0],
        edges=dict(zip(paths, measure(subject, few, cuts), strict=True)),
        cut_base=alone.ablated_accuracy[: len(few)],
        no_edges=no_edges,
        probed=probe_scores(subject, task, budget.selection_samples, "validation", "circuit search"),
    )


def _pairs(subject: Subject, batch: Batch, circuit: Subset, taken: Sequence[Subset], by: Mean) -> list[Pair]:
    model: list[Intervention] = [Mean(some, by.reference) for some in taken]
    rest = [KeepOnly(tuple(h for h in circuit if h not in some), by) for some in taken]
    effects = measure(subject, batch, [*model, *rest])
    return [Pair(*both) for both in zip(effects[: len(taken)], effects[len(taken) :], strict=True)]


def _worst_subset(subject: Subject, batch: Batch, circuit: Subset, by: Mean) -> tuple[Subset | None, int]:
    """The subset without which the circuit and the model differ most, and how many were tried."""
    if not circuit or set(circuit) == set(subject.heads):
        return None, 0
    taken = subsets(circuit, max(SUBSETS, 1 + len(circuit)), seed=subject.seed)
    pairs = _pairs(subject, batch, circuit, taken, by)
    apart = [round(abs(float(pair.difference.mean())), 9) for pair in pairs]
    return taken[int(np.argmax(apart))], len(taken)


def _paths(subject: Subject, circuit: Subset, budget: Budget) -> tuple[list[Edge], str]:
    """Every direct path between two heads of the circuit; none, with the reason, where they are not measured."""
    config = subject.config
    if config.norm == "post":
        return [], "a post-norm model's residual stream is no sum of writes, so that no path can be cut"
    kinds: tuple[PathKind, ...] = ("Q", "K", "V") if config.attention == "learned" else ("V",)
    paths = [(k, s, r) for s, r, k in product(circuit, circuit, kinds) if s.layer < r.layer]
    if len(paths) > EDGES:
        return [], f"{len(paths)} paths are more than are measured one by one ({EDGES})"
    if paths and budget.spent:
        return [], "the budget's seconds were over; more would show the paths"
    return paths, ""
