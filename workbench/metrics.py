"""What a pass is judged by: loss, accuracy, logit difference, in-context learning. One number a sequence or position.

Axes: ``batch pos d_vocab``.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.task import IGNORE, Batch, Task

Where = Literal["targets", "scored"]


def token_loss(
    logits: Float[Tensor, "batch pos d_vocab"], targets: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos"]:
    """Cross-entropy in nats at every position; 0 where the target is ``IGNORE``."""
    return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORE, reduction="none")


def sequence_loss(
    logits: Float[Tensor, "batch pos d_vocab"], batch: Batch, where: Where = "targets"
) -> Float[Tensor, " batch"]:
    """Mean loss of each sequence over the positions that have a target, or over the scored ones."""
    places = batch.scored if where == "scored" else batch.targets != IGNORE
    return _mean_over(token_loss(logits, batch.targets), places, where)


def sequence_accuracy(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, " batch"]:
    """Share of each sequence's scored positions at which the largest logit is the target's."""
    right = (logits.argmax(dim=-1) == batch.targets).to(logits.dtype)
    return _mean_over(right, batch.scored, "scored")


def logit_difference(
    logits: Float[Tensor, "*lead d_vocab"], correct: Int[Tensor, "*lead"], incorrect: Int[Tensor, "*lead"]
) -> Float[Tensor, "*lead"]:
    """Logit of the correct answer minus that of the incorrect one (Wang et al. 2022)."""
    pick = [logits.gather(-1, ids[..., None])[..., 0] for ids in (correct, incorrect)]
    return pick[0] - pick[1]


def incorrect_answers(task: Task, batch: Batch) -> Int[Tensor, "batch pos"] | None:
    """The wrong answers of a batch, for the logit difference: those that its twin has at the same scored positions.

    None where the task has no counterfactual, or its twin is judged at other positions.
    """
    twin = task.counterfactual(batch)
    if twin is None or not bool((twin.scored == batch.scored).all()):
        return None
    return twin.targets


def row_scores(
    logits: Float[Tensor, "row d_vocab"], batch: Batch, incorrect: Int[Tensor, "batch pos"] | None = None
) -> Float[Tensor, "metric batch"]:
    """Accuracy, loss and, with wrong answers, logit difference of each sequence, means over its scored positions.

    Args:
        logits: at the scored positions, in the order of ``batch.scored.nonzero()``. incorrect: ids, read there.
    """
    count = _count(batch.scored, "scored")
    targets = batch.targets[batch.scored]
    rows = [(logits.argmax(dim=-1) == targets).to(logits.dtype), F.cross_entropy(logits, targets, reduction="none")]
    if incorrect is not None:
        rows.append(logit_difference(logits, targets, incorrect[batch.scored]))
    sequence = batch.scored.nonzero()[:, 0]
    total = logits.new_zeros(len(rows), len(batch)).index_add_(1, sequence, torch.stack(rows))
    return total / count


def require_answers(batch: Batch, answers: Tensor, d_vocab: int, what: str) -> None:
    """Raise unless every sequence has a scored position, and each of them an answer (``what`` says whose, in words)."""
    if len(batch) == 0 or not bool(batch.scored.any(dim=1).all()):
        raise WorkbenchError("nothing is scored", expected="sequences, each with a scored position", got="none")
    if answers.shape != batch.tokens.shape:
        raise WorkbenchError(
            f"the {what} do not fit the batch", expected=tuple(batch.tokens.shape), got=tuple(answers.shape)
        )
    ids = answers[batch.scored]
    outside = ids[(ids < 0) | (ids >= d_vocab)]
    if len(outside):
        raise WorkbenchError(
            f"the {what} leave a scored position without an answer",
            expected=f"ids from 0 to {d_vocab - 1}",
            got=int(outside[0]),
        )


def in_context_learning_score(
    loss: Float[Tensor, "batch pos"], early: slice | Int[Tensor, " places"], late: slice | Int[Tensor, " places"]
) -> Float[Tensor, " batch"]:
    """Mean loss at late positions minus mean loss at early ones (Olsson et al. 2022): negative where context helps.

    Args:
        loss: of :func:`token_loss`. early, late: the positions, to be stated with the score.
    """
    if loss[:, early].shape[1] == 0 or loss[:, late].shape[1] == 0:
        raise WorkbenchError(
            "an in-context learning score has no positions", expected="early and late positions inside the sequence"
        )
    return loss[:, late].mean(dim=1) - loss[:, early].mean(dim=1)


def _mean_over(values: Float[Tensor, "batch pos"], places: Tensor, where: str) -> Float[Tensor, " batch"]:
    return (values * places).sum(dim=1) / _count(places, where)


def _count(places: Tensor, where: str) -> Tensor:
    """How many places each sequence has; a sequence without any is an error."""
    count = places.sum(dim=1)
    if bool((count == 0).any()):
        index = int((count == 0).nonzero()[0, 0])
        raise WorkbenchError(
            f"a sequence has no position to average over ({where})",
            expected="at least one",
            got=f"none in sequence {index}",
        )
    return count
