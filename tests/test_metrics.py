"""Loss, accuracy and the other metrics, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from workbench.errors import WorkbenchError
from workbench.metrics import (
    in_context_learning_score,
    logit_difference,
    sequence_accuracy,
    sequence_loss,
    token_loss,
)
from workbench.task import IGNORE, Batch

LN3 = math.log(3.0)


def batch() -> tuple[torch.Tensor, Batch]:
    """Two sequences of three positions: even logits (ln 2 a position), or 3 : 1 for id 0."""
    targets = torch.tensor([[0, 1, IGNORE], [0, 1, 0]])
    scored = torch.tensor([[True, False, False], [False, True, True]])
    logits = torch.zeros(2, 3, 2)
    logits[1, :, 0] = LN3
    return logits, Batch(torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool), targets, scored)


def test_token_loss_by_hand():
    logits, b = batch()
    expected = [[math.log(2), math.log(2), 0], [math.log(4 / 3), math.log(4), math.log(4 / 3)]]
    torch.testing.assert_close(token_loss(logits, b.targets), torch.tensor(expected))


def test_sequence_loss_over_targets_and_over_scored():
    logits, b = batch()
    third = (2 * math.log(4 / 3) + math.log(4)) / 3
    torch.testing.assert_close(sequence_loss(logits, b), torch.tensor([math.log(2), third]))
    half = (math.log(4 / 3) + math.log(4)) / 2
    torch.testing.assert_close(sequence_loss(logits, b, "scored"), torch.tensor([math.log(2), half]))


def test_accuracy_counts_scored_positions_only():
    logits, b = batch()
    assert sequence_accuracy(logits, b).tolist() == [1.0, 0.5]


def test_logit_difference():
    logits = torch.tensor([[[1.0, 4.0, 2.0], [0.0, 0.0, 7.0]]])
    difference = logit_difference(logits, torch.tensor([[1, 2]]), torch.tensor([[0, 2]]))
    assert difference.tolist() == [[3.0, 0.0]]


def test_in_context_learning_is_late_minus_early():
    loss = torch.tensor([[4.0, 3.0, 1.0, 1.0], [2.0, 2.0, 2.0, 4.0]])
    assert in_context_learning_score(loss, slice(0, 2), slice(2, 4)).tolist() == [-2.5, 1.0]
    assert in_context_learning_score(loss, torch.tensor([0]), torch.tensor([3])).tolist() == [-3.0, 2.0]
    with pytest.raises(WorkbenchError, match="has no positions"):
        in_context_learning_score(loss, slice(0, 0), slice(2, 4))


def test_a_sequence_without_positions_is_an_error_that_names_it():
    logits, b = batch()
    empty = Batch(b.tokens, b.mask, b.targets, b.scored & torch.tensor([[True], [False]]))
    with pytest.raises(WorkbenchError, match="none in sequence 1"):
        sequence_accuracy(logits, empty)
    with pytest.raises(WorkbenchError, match=r"\(scored\)"):
        sequence_loss(logits, empty, "scored")
