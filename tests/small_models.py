"""Small random transformers and batches over every option, for properties that must hold whatever the weights are."""

from __future__ import annotations

import itertools

import torch
from hypothesis import strategies as st

from workbench.config import ModelConfig
from workbench.model.transformer import Transformer
from workbench.rng import stream
from workbench.subject import Subject
from workbench.task import IGNORE, Batch, Floor, Task, Vocabulary

N_CTX, D_VOCAB = 6, 7

SHAPES = [
    {"norm": norm, "positions": positions, "d_mlp": d_mlp, "attention": attention}
    for norm, positions, d_mlp, attention in itertools.product(
        ("pre", "post", "none"),
        ("learned", "sinusoidal", "rotary", "alibi", "none"),
        (0, 12),
        ("learned", "uniform"),
    )
]

shapes = st.sampled_from(SHAPES)
seeds = st.integers(0, 1000)


def model(shape: dict[str, object], seed: int = 0) -> Transformer:
    """A transformer with two layers of two heads whose weights, biases included, are all random."""
    config = ModelConfig(d_vocab=D_VOCAB, n_ctx=N_CTX, n_layers=2, n_heads=2, d_model=8, d_head=4, **shape)
    made = Transformer(config, seed)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=stream(seed, "test weights", name))
    return made


class Random(Task):
    """Random tokens, some sequences padded on the right; the next token is asked for everywhere."""

    n_ctx = N_CTX

    def __init__(self, padded: bool = True) -> None:
        self.padded = padded

    @property
    def name(self) -> str:
        return "random"

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(tuple("abcdefg"), pad=0)

    def floor(self) -> Floor:
        return Floor(1 / D_VOCAB, "uniform guess")

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        tokens = torch.randint(1, D_VOCAB, (n, N_CTX), generator=stream)
        length = torch.randint(2, N_CTX + 1, (n,), generator=stream) if self.padded else torch.full((n,), N_CTX)
        mask = torch.arange(N_CTX) < length[:, None]
        tokens = tokens.where(mask, torch.tensor(0))
        targets = torch.full_like(tokens, IGNORE)
        targets[:, :-1] = tokens[:, 1:].where(mask[:, 1:], torch.tensor(IGNORE))
        return Batch(tokens, mask, targets, targets != IGNORE)


def subject(shape: dict[str, object], seed: int = 0, padded: bool = True) -> Subject:
    """A random model as a subject with random sequences."""
    task = Random(padded)
    return Subject(model(shape, seed), task.vocabulary, task, seed=seed)


def hooks_left(made: torch.nn.Module) -> int:
    """How many hooks of any kind hang on any module."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in made.modules() for kind in kinds)
