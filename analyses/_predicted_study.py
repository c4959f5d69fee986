"""Everything that the comparison of predictions with causes measures, once, on test sequences.

Nothing is chosen here: every head is in, and what counts as predicted, as an effect and as a contradiction is fixed
beforehand (:mod:`analyses._predicted_rules`). The probe's sequences are not those on which heads are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from analyses._probe_scores import Probed, probe_scores
from workbench.ablation import Intervention, Mean, Resample, Zero
from workbench.analysis import Budget, Progress
from workbench.attribution import LogitAttribution, direct_logit_attribution
from workbench.behaviour import Judgement, there
from workbench.components import Head
from workbench.head_scores import matching
from workbench.measure import Effect, measure
from workbench.metrics import incorrect_answers
from workbench.model.transformer import Transformer
from workbench.reference import Pairing, ReferenceSet, build_reference
from workbench.subject import Subject
from workbench.task import Task
from workbench.weight_circuits import ov_eigenvalue_copying

WAYS: Mapping[str, str] = {"zero": "zero", "mean": "mean", "resample": "resample", "frozen": "zero, frozen"}
"""The ablations, in the order of the table, with their headings."""


@dataclass(frozen=True, eq=False)
class Study:
    """What was measured on a subject.

    Attributes:
        ov: OV eigenvalue copying of every head, from weights; None for a bridged model.
        probed: previous-token and prefix-matching scores. direct: the attribution; None where it does not apply, with
            the reason in ``no_direct``.
        effects: way to one effect a head.
    """

    subject: Subject
    task: Task
    behaviour: Judgement
    reference: ReferenceSet
    ov: Float[np.ndarray, " head"] | None
    probed: Probed
    direct: LogitAttribution | None
    no_direct: str
    effects: Mapping[str, tuple[Effect, ...]]

    @property
    def heads(self) -> tuple[Head, ...]:
        """Every head: the rows of the table."""
        return self.subject.heads

    def ratio(self, score: str) -> Float[np.ndarray, "n head"]:
        """A score over its chance, by sequence of the probe."""
        scores = self.probed.scores
        assert scores is not None  # asked for by names that are there
        return scores.per_sequence[score].reshape(-1, len(self.heads)) / scores.chance[score]

    @property
    def attention(self) -> Float[np.ndarray, "n head"] | None:
        """The higher of a head's two ratios on average, by sequence; None without scores."""
        if self.probed.scores is None:
            return None
        both = np.stack([self.ratio("previous_token_score"), self.ratio(matching(self.probed.scores))])
        chosen = both.mean(axis=1).argmax(axis=0)
        return both[chosen, :, np.arange(len(self.heads))].T

    @property
    def written(self) -> Float[np.ndarray, "n head"] | None:
        """What every head writes towards the answer directly."""
        return None if self.direct is None else np.stack([self.direct.of(head) for head in self.heads], axis=1)

    def loss(self, way: str) -> Float[np.ndarray, "n head"]:
        """How much loss rises when a head is removed so, by sequence."""
        return np.stack([effect.loss_effect for effect in self.effects[way]], axis=1)


def conduct(subject: Subject, task: Task, budget: Budget, progress: Progress) -> Study:
    """Measure everything."""
    model = subject.model
    test = subject.sample(budget.samples, "test", "predicted vs causal")
    progress("ablations")
    reference = build_reference(subject)
    ways: dict[str, list[Intervention]] = {"zero": [Zero(head) for head in subject.heads]}
    ways["mean"] = [Mean(head, reference) for head in subject.heads]
    if bool(test.mask.all()):  # a padded sequence has nothing to give at the last positions of a longer one
        pairing = Pairing(len(test), subject.seed)
        ways["resample"] = [Resample(head, pairing) for head in subject.heads]
    ways["frozen"] = [Zero(head, frozen_patterns=True) for head in subject.heads]
    found = iter(measure(subject, test, [one for way in ways.values() for one in way]))
    effects = {way: tuple(next(found) for _ in asked) for way, asked in ways.items()}
    ceiling = task.ceiling()
    clean = effects["zero"][0].clean_accuracy

    progress("predictions")
    direct, no_direct = None, "a post-norm model's residual stream is not a sum of writes"
    ov = None
    if isinstance(model, Transformer):
        ov = np.array([ov_eigenvalue_copying(model, head) for head in subject.heads])
        if subject.config.norm != "post":
            direct, no_direct = direct_logit_attribution(model, test, incorrect=incorrect_answers(task, test)), ""
    else:
        no_direct = "the writes of a bridged model are not taken apart"
    return Study(
        subject=subject,
        task=task,
        behaviour=there(clean, task.floor().accuracy, ceiling.accuracy if ceiling else None),
        reference=reference,
        ov=ov,
        probed=probe_scores(subject, task, budget.selection_samples, "validation", "predicted vs causal"),
        direct=direct,
        no_direct=no_direct,
        effects=effects,
    )
