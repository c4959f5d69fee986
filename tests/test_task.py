"""Vocabulary, Batch and what a task can do, by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from workbench.errors import WorkbenchError
from workbench.task import IGNORE, Batch, Ceiling, Floor, Task, Vocabulary, capabilities

WORDS = Vocabulary(("<bos>", "a", "b", "<pad>"), bos=0, pad=3)


def batch(**changes: Any) -> Batch:
    """Two sequences, the second padded at its end; the key set is the diagonal."""
    parts: dict[str, Any] = {
        "tokens": torch.tensor([[0, 1, 2], [0, 2, 3]]),
        "mask": torch.tensor([[True, True, True], [True, True, False]]),
        "targets": torch.tensor([[IGNORE, 2, 1], [2, 1, IGNORE]]),
        "scored": torch.tensor([[False, True, True], [False, True, False]]),
        "positions": {"cue": torch.tensor([1, 0])},
        "key_masks": {"itself": torch.eye(3, dtype=torch.bool).repeat(2, 1, 1)},
    }
    return Batch(**{**parts, **changes})


def test_vocabulary() -> None:
    assert len(WORDS) == 4
    assert WORDS.ordinary == (1, 2)
    assert WORDS.encode(["b", "<bos>"]) == [2, 0]
    assert WORDS.decode(torch.tensor([2, 0])) == ["b", "<bos>"]
    with pytest.raises(WorkbenchError, match="unknown token"):
        WORDS.encode(["c"])


@pytest.mark.parametrize(
    "changes", [{"tokens": ("a", "b", "a")}, {"tokens": ("a", "b"), "bos": 2}, {"tokens": (), "pad": -1}]
)
def test_impossible_vocabularies(changes: dict[str, Any]) -> None:
    with pytest.raises(WorkbenchError, match="vocabulary"):
        Vocabulary(**changes)


def test_a_batch_is_indexed_whole() -> None:
    one = batch()[[1]]
    assert len(one) == 1
    assert one.tokens.tolist() == [[0, 2, 3]]
    assert one.positions["cue"].tolist() == [0]
    assert one.key_masks["itself"].shape == (1, 3, 3)
    assert [len(piece) for piece in batch()[[0, 1, 0, 1, 0]].chunks(2)] == [2, 2, 1]


def test_a_sound_batch_passes() -> None:
    batch().check(4, "t")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"tokens": torch.full((2, 3), 4)}, "tokens"),
        ({"targets": torch.full((2, 3), 9)}, "targets"),
        ({"targets": torch.full((2, 3), IGNORE)}, "scored"),
        ({"mask": torch.zeros(2, 3, dtype=torch.bool)}, "mask"),
        ({"scored": torch.zeros(2, 3, dtype=torch.bool)}, "scored"),
        ({"positions": {"cue": torch.tensor([1, 3])}}, "cue"),
        ({"key_masks": {"later": torch.ones(2, 3, 3, dtype=torch.bool)}}, "later"),
    ],
)
def test_a_batch_that_contradicts_itself_names_the_part(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(WorkbenchError, match=f"task t: .*{part}"):
        batch(**changes).check(4, "t")


@dataclasses.dataclass(frozen=True)
class Plain(Task):
    n_ctx: int = 3

    @property
    def vocabulary(self) -> Vocabulary:
        return WORDS

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        return batch()

    def floor(self) -> Floor:
        return Floor(0.5, "a coin")


class Knowing(Plain):
    def ceiling(self) -> Ceiling:
        return Ceiling(0.0, 1.0)


def test_capabilities_are_what_is_overridden() -> None:
    assert capabilities(Plain()) == frozenset()
    assert capabilities(Knowing()) == {"ceiling"}
    assert (Plain().ceiling(), Plain().bayes_loss(batch()), Plain().counterfactual(batch())) == (None, None, None)


def test_name_and_options() -> None:
    assert Plain().name == "test_task"
    assert Plain(n_ctx=5).options == {"n_ctx": 5}
