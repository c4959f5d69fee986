"""The rungs of the ladder: what is trained, what the source reports of it, and how one trained model is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.analysis import Lab, Plan
from workbench.config import TrainConfig, model_config
from workbench.errors import WorkbenchError
from workbench.metrics import sequence_accuracy
from workbench.rng import stream
from workbench.subject import Subject
from workbench.task import Batch

TASK = "winograd"
TRAIN = TrainConfig(steps=1500)
"""Fixed on seeds of their own, 100 to 104, before any seed that is reported was trained."""
MODEL: Mapping[str, Any] = {"n_heads": 4, "d_model": 64, "positions": "learned"}
D_MLP = 256
EARLIEST = 50
"""Checkpoints before this step show nothing yet and are not measured."""


@dataclass(frozen=True)
class Rung:
    """One kind of model.

    Attributes:
        name: of its plans. label, short: for readers, and for the rows of a figure. model, task: options over the
            defaults.
        source, source_other: the source's accuracy and wrong-noun rate, None where it gives none.
    """

    name: str
    label: str
    short: str
    model: Mapping[str, Any]
    task: Mapping[str, Any] = field(default_factory=dict)
    source: float | None = None
    source_other: float | None = None

    def plan(self, lab: Lab, seed: int) -> Plan:
        """The training of this rung from a seed."""
        task = lab.task(TASK, self.task)
        shape = model_config({**MODEL, **self.model}, d_vocab=len(task.vocabulary), n_ctx=task.n_ctx)
        return Plan(self.name, task, shape, TRAIN, seed)


_AVERAGE = {"n_layers": 1, "attention": "uniform"}
_LEAKY = {"nouns": "by_category"}
RUNGS = (
    Rung("average", "uniform average", "average", _AVERAGE, source=0.279, source_other=0.5),
    Rung("one-attention", "one block, attention only", "1 × attention", {"n_layers": 1}),
    Rung("one-block", "one block", "1 × block", {"n_layers": 1, "d_mlp": D_MLP}, source=0.927),
    Rung("two-attention", "two blocks, attention only", "2 × attention", {"n_layers": 2}),
    Rung("two-blocks", "two blocks", "2 × block", {"n_layers": 2, "d_mlp": D_MLP}, source=1.0),
    Rung("leaky-average", "leaky nouns: uniform average", "leaky average", _AVERAGE, _LEAKY, source=1.0),
    Rung(
        "leaky-one-block",
        "leaky nouns: one block",
        "leaky 1 × block",
        {"n_layers": 1, "d_mlp": D_MLP},
        _LEAKY,
        source=0.917,
    ),
)


@dataclass(frozen=True)
class Reading:
    """One trained model on held-out sentences.

    Attributes:
        accuracy, other: shares answered rightly, and with the sentence's other noun. sentences: how many.
        steps, learned: held-out accuracy at the checkpoints along the way.
    """

    seed: int
    accuracy: float
    other: float
    sentences: int
    steps: tuple[int, ...]
    learned: tuple[float, ...]


def read(subject: Subject, sentences: int) -> Reading:
    """Measure a trained model and its checkpoints on sentences of its own seed."""
    if subject.task is None or subject.run is None:
        raise WorkbenchError("a rung is read from a run and its task", got="a subject without them")
    batch = subject.task.sample(sentences, "test", stream(subject.seed, "ladder", "test"))
    kept = [c.step for c in subject.run.checkpoints() if c.step >= EARLIEST]
    learned = [_accuracy(_logits(subject.run.load_checkpoint(step), batch), batch) for step in kept]
    logits = _logits(subject.model, batch)
    return Reading(
        subject.seed, _accuracy(logits, batch), other_noun(logits, batch), sentences, tuple(kept), tuple(learned)
    )


def other_noun(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> float:
    """Share of sentences answered with the noun that is in the sentence and is not the answer."""
    rows, query = torch.arange(len(batch)), batch.scored.int().argmax(dim=1)
    first, second = (batch.tokens[rows, batch.positions[name]] for name in ("first", "second"))
    answer = batch.targets[rows, query]
    other = torch.where(answer == first, second, first)
    return float((logits[rows, query].argmax(dim=-1) == other).double().mean())


def _accuracy(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> float:
    return float(sequence_accuracy(logits, batch).double().mean())


def _logits(model: torch.nn.Module, batch: Batch) -> Float[Tensor, "batch pos d_vocab"]:
    with torch.no_grad():
        return model(batch.tokens, batch.mask)
