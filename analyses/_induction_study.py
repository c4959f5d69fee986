"""Everything that the induction analysis measures, once: scores, sets, reference, effects, sharing.

Streams are kept apart: heads are selected on one probe (``select``) and tested on another (``test``); the reference set
comes from the training split; behaviour is measured on the test split.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.ablation import Intervention, KeepOnly, Mean, Resample, Zero
from workbench.analysis import Budget, Progress
from workbench.behaviour import Judgement, there
from workbench.components import Head
from workbench.cut_path import CutPath, PathKind
from workbench.errors import WorkbenchError
from workbench.head_scores import HeadScores, HeadSets, ImpostorRow, impostor_check, matching, score_heads, select_sets
from workbench.measure import Effect, measure, run
from workbench.metrics import token_loss
from workbench.probes import Probe, probe_periods, repeated_blocks, task_lines
from workbench.reference import Pairing, ReferenceSet, build_reference
from workbench.rng import stream
from workbench.sharing import EffectiveNumber, removal_cost, shapley, sharing
from workbench.subject import Subject
from workbench.task import IGNORE, Batch, Task

SEMANTICS = ("zero", "mean", "resample", "frozen")
SHARING_SAMPLES = 256
"""Sequences on which sets of heads are removed together for the Shapley values: each set is a pass."""


@dataclass(frozen=True, eq=False)
class Study:
    """What was measured on a subject.

    Attributes:
        periods: the block lengths of the probes, () where heads are scored on the task's own sequences.
        selection, test: head scores on the two probes. sets: S0 and S1, chosen on ``selection``. impostors: one row a
            head, or none and the reason in ``not_checked``.
        batch: the test sequences. behaviour: whether clean accuracy is there. excess: loss above the Bayes
            predictor's by sequence, or None where that is not known.
        reference: of the means. singles: (head, semantics) to effect. joint: (set name, semantics) to effect.
        sharing: set name to effective number.
    """

    subject: Subject
    task: Task
    periods: tuple[int, ...]
    selection: HeadScores
    test: HeadScores
    sets: HeadSets
    impostors: tuple[ImpostorRow, ...]
    not_checked: str
    batch: Batch
    behaviour: Judgement
    clean_accuracy: np.ndarray
    excess: np.ndarray | None
    reference: ReferenceSet
    singles: dict[tuple[Head, str], Effect]
    joint: dict[tuple[str, str], Effect]
    sharing: dict[str, EffectiveNumber]

    @property
    def ways(self) -> tuple[str, ...]:
        """The semantics under which heads were removed: all, but no resampling where sequences are padded."""
        return tuple(how for how in SEMANTICS if (self.subject.heads[0], how) in self.singles)

    @property
    def circuit(self) -> tuple[Head, ...]:
        """S0 and S1 together."""
        return tuple(sorted({*self.sets.s0, *self.sets.s1}))

    @property
    def match(self) -> str:
        """The score by which induction heads are chosen and judged."""
        return matching(self.test)

    @property
    def scored_on(self) -> str:
        """What the probes are, for captions."""
        if not self.periods:
            return f"the {self.task.name.replace('_', ' ')} task's own sequences"
        return f"repeated blocks, periods {self.periods[0]} to {self.periods[-1]}"


def fixed_period(task: Task) -> int | None:
    """The one period of a task that has just one."""
    return task.periods[0] if len(task.periods) == 1 else None


def own_lines(subject: Subject, task: Task) -> bool:
    """Whether heads are scored on the task's own sequences: where it names induction keys but repeats no block, heads
    may look things up in a way that random blocks do not call for."""
    return not task.periods and "induction" in subject.sample(1, "validation", "induction keys").key_masks


def draw_probe(subject: Subject, periods: tuple[int, ...], n: int, split: str, *names: str) -> Probe:
    """Repeated blocks of these periods; without any, sequences of the task's split."""
    if periods:
        drawn = stream(subject.seed, *names)
        return repeated_blocks(subject.vocabulary, n, subject.config.n_ctx, periods, drawn)
    return task_lines(subject.sample(n, split, " ".join(names)), subject.vocabulary)


def conduct(subject: Subject, task: Task, budget: Budget, progress: Progress) -> Study:
    """Measure everything."""
    seed = subject.seed
    periods = () if own_lines(subject, task) else probe_periods(subject)

    progress("head scores")
    draws = ((budget.selection_samples, "validation", "select"), (budget.samples, "test", "test"))
    probes = [draw_probe(subject, periods, n, split, "induction", name) for n, split, name in draws]
    selection, test = (score_heads(subject.own, subject.vocabulary, probe) for probe in probes)
    sets = select_sets(selection)
    impostors, not_checked = _impostors(subject, task)

    progress("ablations")
    batch = subject.sample(budget.samples, "test", "induction")
    reference = build_reference(subject)
    effects = _effects(subject, batch, sets, reference)
    clean = next(iter(effects.values())).clean_accuracy
    ceiling = task.ceiling()
    behaviour = there(clean, task.floor().accuracy, ceiling.accuracy if ceiling else None)

    progress("sharing")
    few = batch[: min(len(batch), SHARING_SAMPLES)]
    shared = {
        name: sharing(shapley(removal_cost(subject, few, reference), heads, seed=seed), seed=seed)
        for name, heads in (("S0", sets.s0), ("S1", sets.s1))
        if heads and not budget.spent
    }
    return Study(
        subject=subject,
        task=task,
        periods=periods,
        selection=selection,
        test=test,
        sets=sets,
        impostors=impostors,
        not_checked=not_checked,
        batch=batch,
        behaviour=behaviour,
        clean_accuracy=clean,
        excess=_excess(subject, task, batch),
        reference=reference,
        singles={(key, how): e for (key, how), e in effects.items() if isinstance(key, Head)},
        joint={(key, how): e for (key, how), e in effects.items() if isinstance(key, str)},
        sharing=shared,
    )


def _ways(heads: tuple[Head, ...], reference: ReferenceSet, pairing: Pairing | None) -> dict[str, Intervention]:
    ways: dict[str, Intervention] = {"zero": Zero(heads), "mean": Mean(heads, reference)}
    if pairing is not None:
        ways["resample"] = Resample(heads, pairing)
    return {**ways, "frozen": Zero(heads, frozen_patterns=True)}


def _effects(
    subject: Subject, batch: Batch, sets: HeadSets, reference: ReferenceSet
) -> dict[tuple[Head | str, str], Effect]:
    """Every head and every set, under each semantics; the circuit alone; the paths between the sets cut."""
    # A padded sequence has nothing to give at the last positions of a longer one.
    pairing = Pairing(len(batch), subject.seed) if bool(batch.mask.all()) else None
    asked: dict[tuple[Head | str, str], Intervention] = {}
    for head in subject.heads:
        asked |= {(head, how): i for how, i in _ways((head,), reference, pairing).items()}
    circuit = tuple(sorted({*sets.s0, *sets.s1}))
    for name, heads in (("S0", sets.s0), ("S1", sets.s1), ("S0 and S1", circuit)):
        if heads:
            asked |= {(name, how): i for how, i in _ways(heads, reference, pairing).items()}
    if circuit and set(circuit) != set(subject.heads):
        by: dict[str, Zero | Mean | Resample] = {"zero": Zero(()), "mean": Mean((), reference)}
        if pairing is not None:
            by["resample"] = Resample((), pairing)
        asked |= {("only S0 and S1", how): KeepOnly(circuit, way) for how, way in by.items()}
    if sets.s0 and sets.s1 and subject.config.norm != "post":
        kinds: tuple[PathKind, ...] = ("K", "Q", "V") if subject.config.attention == "learned" else ("V",)
        asked |= {(f"{kind} cut", "mean"): CutPath(kind, sets.s0, sets.s1, reference) for kind in kinds}
    return dict(zip(asked, measure(subject, batch, list(asked.values())), strict=True))


def _impostors(subject: Subject, task: Task) -> tuple[tuple[ImpostorRow, ...], str]:
    """One row a head; or none, with the reason why the check does not apply."""
    drawn = stream(subject.seed, "induction", "impostor")
    try:
        return tuple(impostor_check(subject.own, subject.vocabulary, drawn, fixed_period=fixed_period(task))), ""
    except WorkbenchError as error:
        return (), str(error)


def _excess(subject: Subject, task: Task, batch: Batch) -> np.ndarray | None:
    """Loss above the Bayes predictor's on the same sequences, mean over positions with a target, ``[n]`` in nats."""
    parts = []
    for part in batch.chunks(max(1, 8192 // batch.tokens.shape[1])):
        best = task.bayes_loss(part)
        if best is None:
            return None
        loss = token_loss(run(subject.model, part).logits, part.targets)
        count = (part.targets != IGNORE).sum(1)
        parts.append(((loss - best).sum(1) / count).double().cpu().numpy())
    return np.concatenate(parts)
