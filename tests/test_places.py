"""Places of a batch: names and indices become positions of each sequence, and masks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.small_models import N_CTX, Random
from workbench.errors import WorkbenchError
from workbench.places import index_of, mask_of
from workbench.rng import stream
from workbench.task import Batch


def batch() -> Batch:
    drawn = Random(padded=False).sample(3, "test", stream(0, "places"))
    return replace(drawn, positions={"cue": torch.tensor([0, 4, 2]), "answer": torch.tensor([5, 4, 3])})


def test_a_name_stands_elsewhere_in_each_sequence_and_an_index_at_one_place() -> None:
    assert index_of("cue", batch()).tolist() == [0, 4, 2]
    assert index_of(3, batch()).tolist() == [3, 3, 3]
    assert index_of("cue", batch()[1:]).tolist() == [4, 2]


def test_a_mask_holds_exactly_the_places_named() -> None:
    mask = mask_of(("cue", "answer", 1), batch())
    assert mask.dtype == torch.bool
    assert mask.nonzero().tolist() == [[0, 0], [0, 1], [0, 5], [1, 1], [1, 4], [2, 1], [2, 2], [2, 3]]
    assert not mask_of((), batch()).any()
    assert mask_of(range(N_CTX), batch()).all()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("cues", "unknown position 'cues'. Did you mean cue?"),
        ("nowhere at all", "Known: answer, cue"),
        (N_CTX, "a position does not exist: expected 0 to 5, got 6"),
        (-1, "got -1"),
    ],
)
def test_a_place_that_does_not_exist_says_what_does(place: str | int, message: str) -> None:
    for find in (lambda: index_of(place, batch()), lambda: mask_of((0, place), batch())):
        with pytest.raises(WorkbenchError, match=message):
            find()
