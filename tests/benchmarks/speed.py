"""A train step and a forward pass beside plain torch: same weights, same batch, timed in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.benchmarks.measure import Row, paired
from tests.benchmarks.plain import Plain, plain_copy
from workbench.config import ModelConfig, TrainConfig
from workbench.model.export import export
from workbench.model.transformer import Transformer
from workbench.rng import stream
from workbench.task import Batch
from workbench.training.step import apply, gradients, make_optimiser

SHAPE = ModelConfig(d_vocab=64, n_ctx=64, n_layers=2, n_heads=8, d_model=64, positions="learned", norm="pre")
TRAIN = TrainConfig(batch_size=64)
TARGET = 1.1


def _batch() -> Batch:
    tokens = torch.randint(0, SHAPE.d_vocab, (TRAIN.batch_size, SHAPE.n_ctx), generator=stream(0, "benchmark"))
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    return Batch(tokens, everywhere, tokens.roll(-1, dims=1), everywhere)


def _our_step(model: Transformer, batch: Batch) -> Callable[[], object]:
    """One update exactly as the training loop makes it."""
    optimiser = make_optimiser(model, TRAIN)

    def forward(tokens: Tensor, mask: Tensor | None) -> Tensor:
        return model(tokens, mask, path="fast")

    def step() -> None:
        gradients(model, forward, batch, None, TRAIN)
        apply(optimiser, TRAIN.lr)

    return step


def _torch_step(model: nn.Module, batch: Batch) -> Callable[[], object]:
    """Forward, loss, backward, clip, fused AdamW, in plain torch."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=TRAIN.lr, weight_decay=TRAIN.weight_decay, fused=True)

    def step() -> None:
        loss = F.cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), TRAIN.grad_clip)
        optimiser.step()

    return step


def _forward(model: nn.Module, batch: Batch) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            model(batch.tokens)

    return run


def _models() -> tuple[Transformer, Plain]:
    ours = Transformer(SHAPE)
    return ours, plain_copy(ours)


def rows() -> Iterator[Row]:
    """The rows, each measured when it is asked for."""
    batch = _batch()
    shape = "2L x 8H, d 64, 64 x 64"
    for threads in (1, 2):
        ours, plain = _models()
        yield paired(
            f"forward without hooks / plain torch ({shape})",
            _forward(ours, batch), _forward(plain, batch), threads=threads, target=TARGET, pairs=200, seconds=12,
        )  # fmt: skip
    for threads in (1, 2):
        ours, plain = _models()
        yield paired(
            f"train step / plain torch ({shape})",
            _our_step(ours, batch), _torch_step(plain, batch), threads=threads, target=TARGET, pairs=100, seconds=20,
        )  # fmt: skip
    ours, plain = _models()
    yield paired(
        f"train step, TransformerLens boot_native / plain torch ({shape})",
        _torch_step(export(ours, "native").train(), batch), _torch_step(plain, batch), threads=1, pairs=40, seconds=20,
    )  # fmt: skip
