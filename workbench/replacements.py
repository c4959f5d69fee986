"""What is put into a pass in place of what: the values that :mod:`workbench.restart` takes.

They know nothing of interventions and their names: a value, where it goes, and at which positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from workbench.config import ModelConfig
from workbench.errors import WorkbenchError, unknown_name

Stream = Literal["resid_pre", "z", "mlp_out"]


@dataclass(frozen=True, eq=False)
class Put:
    """One value put in place of another.

    Attributes:
        stream: ``z`` of one head; ``mlp_out``, what the MLP writes; or ``resid_pre``, the residual stream that enters
            the layer (of layer ``n_layers``: what leaves the last one).
        layer: where. head: which, for z.
        value: a number, or what broadcasts to ``[batch pos d_head]`` (z) or ``[batch pos d_model]`` of the whole batch.
        at: the positions at which it is put; None is every position.
    """

    stream: str
    layer: int
    value: Tensor | float
    at: Bool[Tensor, "batch pos"] | None = None
    head: int | None = None


Replacement = Sequence[Put]
"""What is put into one pass. Empty is the clean pass. Several at one place follow each other in their order."""

Place = tuple[str, int]
"""A stream and its layer."""

Plan = Mapping[Place, tuple[tuple[Any, ...], tuple[Put, ...]]]
"""By place: a key that is equal where the same is put, and what is put there."""


def plan(replacement: Replacement, config: ModelConfig, shape: tuple[int, int]) -> Plan:
    """A replacement by place, checked against the model and the ``(batch, pos)`` of the batch.

    Raises:
        WorkbenchError: a place that does not exist, or a value or mask that does not fit.
    """
    found: dict[Place, tuple[tuple[Any, ...], tuple[Put, ...]]] = {}
    for put in replacement:
        _check_place(put, config)
        _check_shapes(put, config, shape)
        key, puts = found.get((put.stream, put.layer), ((), ()))
        name = (put.head, _identity(put.value), _identity(put.at))
        found[put.stream, put.layer] = ((*key, name), (*puts, put))
    return found


def _identity(value: Tensor | float | None) -> object:
    """Equal for one number, and for views of one place in memory (which the replacements keep alive)."""
    if isinstance(value, Tensor):
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return value


def _check_place(put: Put, config: ModelConfig) -> None:
    if put.stream not in ("resid_pre", "z", "mlp_out"):
        raise unknown_name("stream", put.stream, ("resid_pre", "z", "mlp_out"))
    top = config.n_layers - (put.stream != "resid_pre")
    if put.stream == "mlp_out" and not config.d_mlp:
        raise WorkbenchError("there is no mlp_out", expected="a model with an MLP", got="an attention-only model")
    if not 0 <= put.layer <= top:
        raise WorkbenchError(f"there is no {put.stream} at layer {put.layer}", expected=f"0 to {top}", got=put.layer)
    if put.stream == "z" and (put.head is None or not 0 <= put.head < config.n_heads):
        raise WorkbenchError("a z is put into no head", expected=f"head 0 to {config.n_heads - 1}", got=put.head)
    if put.stream != "z" and put.head is not None:
        raise WorkbenchError(f"a {put.stream} has no heads", expected="head None", got=put.head)


def _check_shapes(put: Put, config: ModelConfig, shape: tuple[int, int]) -> None:
    full = (*shape, config.d_head if put.stream == "z" else config.d_model)
    if isinstance(put.value, Tensor):
        try:
            fits = torch.broadcast_shapes(put.value.shape, full) == full
        except RuntimeError:
            fits = False
        if not fits:
            raise WorkbenchError(
                f"a value put in place of {put.stream} does not fit the batch",
                expected=f"what broadcasts to {full}",
                got=tuple(put.value.shape),
            )
    if put.at is not None and (tuple(put.at.shape) != shape or put.at.dtype != torch.bool):
        raise WorkbenchError(
            "a mask of positions does not fit the batch",
            expected=f"{shape}, torch.bool",
            got=f"{tuple(put.at.shape)}, {put.at.dtype}",
        )
