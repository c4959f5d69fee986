"""One update of the weights, as functions: the loss and its gradients, then AdamW."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbench.config import TrainConfig
from workbench.model.transformer import Transformer
from workbench.task import IGNORE, Batch


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of the update after ``step`` others: a linear rise over ``warmup_steps`` updates, then constant."""
    return config.lr * min(1.0, (step + 1) / max(1, config.warmup_steps))


def head_penalty(model: Transformer) -> Float[Tensor, ""]:
    """The group lasso over heads, the sum of ``||W_O of the head||_F`` (Yuan & Lin 2006); its gradient at 0 is 0."""
    outputs = torch.stack([block.attn.W_O for block in model.blocks])
    return torch.linalg.vector_norm(outputs, dim=(2, 3)).sum()


def make_optimiser(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019), fused; weight decay on matrices (names that start with ``W_``) only."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[name.rpartition(".")[2].startswith("W_")].append(parameter)
    decay = {True: config.weight_decay, False: 0.0}
    return torch.optim.AdamW(
        [{"params": members, "weight_decay": decay[kind]} for kind, members in groups.items() if members],
        lr=config.lr,
        fused=True,
    )


def gradients(
    model: Transformer,
    forward: Callable[..., Tensor],
    batch: Batch,
    mask: Bool[Tensor, "batch pos"] | None,
    config: TrainConfig,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """Gradients of the mean loss over positions with a target, plus the penalty, clipped, into ``.grad``.

    Args:
        forward: ``forward(tokens, mask)`` gives the logits of ``model``. batch: on the model's device.
        mask: the batch's, or None where every token is real (which is faster).

    Returns:
        Loss (without the penalty, nats), accuracy on scored positions, and the gradient norm before clipping.
    """
    half = config.precision == "bfloat16"
    with torch.autocast(batch.tokens.device.type, torch.bfloat16) if half else contextlib.nullcontext():
        logits = forward(batch.tokens, mask)
    logits = logits.float()
    loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)
    total = loss + config.head_sparsity * head_penalty(model) if config.head_sparsity else loss
    model.zero_grad()
    total.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
    right = (logits.detach().argmax(-1) == batch.targets) & batch.scored
    return loss.detach(), right.sum() / batch.scored.sum(), norm


def apply(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Move the weights along the gradients at this learning rate."""
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.step()
