"""Settings as frozen dataclasses, validated on creation, and the presets.

``override`` turns the command line's ``KEY=VALUE`` texts into typed fields of any such dataclass (tasks
use it too), so that an unknown key or an impossible value is one clear error everywhere.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from workbench.errors import WorkbenchError, unknown_name

Positions = Literal["learned", "sinusoidal", "rotary", "alibi", "none"]
Norm = Literal["pre", "post", "none"]
AttentionKind = Literal["learned", "uniform"]
T = typing.TypeVar("T")

Precision = Literal["float32", "bfloat16"]

MAX_SIZE, MAX_STEPS, MAX_BATCH = 1_000_000, 10_000_000, 1_000_000
"""Far above anything that can be trained here: a slip of the keyboard is told before memory runs out."""


def _require(condition: bool, name: str, expected: str, got: object) -> None:
    if not condition:
        raise WorkbenchError(f"{name} cannot be used", expected=expected, got=got)


def _check_fields(settings: Any, owner: str) -> None:
    """Types and Literal choices of every field; a wrong one is a WorkbenchError that names it."""
    hints = typing.get_type_hints(type(settings))
    for f in dataclasses.fields(settings):
        _convert(f"{owner}.{f.name}", hints[f.name], getattr(settings, f.name))


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a transformer.

    Attributes:
        d_vocab: vocabulary size. n_ctx: the longest sequence, the begin token included.
        n_layers: blocks. n_heads: heads in every block. d_model: width of the residual stream.
        d_head: width of a head; 0 means ``d_model / n_heads``, which must then divide.
        d_mlp: hidden width of the MLP; 0 is attention-only.
        positions: learned (added), sinusoidal (added, fixed), rotary (turns queries and keys), alibi
            (a penalty by distance on the scores), none.
        norm: LayerNorm before each sublayer and at the end (pre), after each addition (post), or none.
        scale_scores: divide attention scores by sqrt(d_head).
        attention: learned, or uniform over the visible keys (then there is no W_Q and no W_K).
    """

    d_vocab: int
    n_ctx: int
    n_layers: int = 2
    n_heads: int = 4
    d_model: int = 64
    d_head: int = 0
    d_mlp: int = 0
    positions: Positions = "rotary"
    norm: Norm = "pre"
    scale_scores: bool = True
    attention: AttentionKind = "learned"

    def __post_init__(self) -> None:
        _check_fields(self, "model")
        for name in ("d_vocab", "n_ctx", "n_layers", "n_heads", "d_model"):
            _require(getattr(self, name) >= 1, f"model.{name}", "a whole number from 1", getattr(self, name))
        for name in ("d_head", "d_mlp"):
            _require(getattr(self, name) >= 0, f"model.{name}", "a whole number from 0", getattr(self, name))
        for name in ("d_vocab", "n_ctx", "n_layers", "n_heads", "d_model", "d_head", "d_mlp"):
            _require(getattr(self, name) <= MAX_SIZE, f"model.{name}", f"at most {MAX_SIZE}", getattr(self, name))
        if self.d_head == 0:
            if self.d_model % self.n_heads:
                raise WorkbenchError(
                    "model.n_heads does not divide model.d_model",
                    expected=f"a divisor of {self.d_model}",
                    got=self.n_heads,
                    next_step="Choose another number of heads, or set model.d_head.",
                )
            object.__setattr__(self, "d_head", self.d_model // self.n_heads)
        if self.positions == "rotary":
            _require(self.d_head % 2 == 0, "model.d_head", "an even number (rotary positions)", self.d_head)
        if self.positions == "sinusoidal":
            _require(self.d_model % 2 == 0, "model.d_model", "an even number (sinusoidal positions)", self.d_model)


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained.

    Attributes:
        steps: optimiser steps. batch_size: sequences a step, drawn afresh from the training split.
        lr: AdamW's rate after warm-up. warmup_steps: linear rise from 0. weight_decay: on matrices only.
        grad_clip: largest global gradient norm.
        head_sparsity: weight of a group lasso, the sum over heads of ||W_O of the head||_F, added to
            the loss, so that a head that is not needed falls idle (Yuan & Lin 2006). 0 switches it off.
        precision: float32, or bfloat16 autocast of the forward pass (weights stay float32).
    """

    steps: int = 600
    batch_size: int = 64
    lr: float = 3e-3
    warmup_steps: int = 50
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    head_sparsity: float = 0.0
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        _check_fields(self, "train")
        for name, most in (("steps", MAX_STEPS), ("batch_size", MAX_BATCH)):
            _require(getattr(self, name) >= 1, f"train.{name}", "a whole number from 1", getattr(self, name))
            _require(getattr(self, name) <= most, f"train.{name}", f"at most {most}", getattr(self, name))
        _require(self.warmup_steps >= 0, "train.warmup_steps", "a whole number from 0", self.warmup_steps)
        for name in ("lr", "grad_clip"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, f"train.{name}", "a number above 0", value)
        for name in ("weight_decay", "head_sparsity"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value >= 0, f"train.{name}", "a number from 0", value)


@dataclass(frozen=True)
class Preset:
    """A named starting point: options for the task, the model and the training, and what it is for."""

    about: str
    task: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)


PRESETS: Mapping[str, Preset] = types.MappingProxyType(
    {
        "default": Preset(
            "two layers of four heads under a penalty that lets idle heads go: a clear division of labour",
            model={"n_layers": 2, "n_heads": 4, "d_model": 64, "d_head": 32, "positions": "rotary", "norm": "pre"},
            train={"steps": 600, "head_sparsity": 0.2},
        ),
        "shared": Preset(
            "the same without the penalty: all heads share the work",
            model={"n_layers": 2, "n_heads": 4, "d_model": 64, "d_head": 32, "positions": "rotary", "norm": "pre"},
            train={"steps": 600},
        ),
        "teaching": Preset(
            "one head a layer: the textbook circuit",
            model={"n_layers": 2, "n_heads": 1, "d_model": 64, "d_head": 32, "positions": "rotary", "norm": "pre"},
            train={"steps": 600},
        ),
        "winograd": Preset(
            "as shared, 300 steps: where the task winograd starts from",
            model={"n_layers": 2, "n_heads": 4, "d_model": 64, "d_head": 32, "positions": "rotary", "norm": "pre"},
            train={"steps": 300},
        ),
        "identifiers": Preset(
            "as shared with ALiBi positions, 1,000 steps: where the task identifiers starts from",
            model={"n_layers": 2, "n_heads": 4, "d_model": 64, "d_head": 32, "positions": "alibi", "norm": "pre"},
            train={"steps": 1000},
        ),
        "two_hops": Preset(
            "two layers of four heads without positions, 4,000 steps: where the task two_hops starts from",
            model={"n_layers": 2, "n_heads": 4, "d_model": 64, "positions": "none", "norm": "pre"},
            train={"steps": 4000},
        ),
        "large": Preset(
            "four layers of eight heads with MLPs on longer sequences: worth a GPU",
            task={"n_ctx": 256, "d_vocab": 513, "period_min": 16, "period_max": 96},
            model={"n_layers": 4, "n_heads": 8, "d_model": 256, "d_mlp": 1024, "positions": "rotary", "norm": "pre"},
            train={"steps": 4000, "batch_size": 128, "lr": 1e-3, "warmup_steps": 200},
        ),
    }
)


def preset(name: str) -> Preset:
    """The preset of this name, or the error that names the nearest ones."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]


def _convert(name: str, hint: Any, value: Any) -> Any:
    """``value`` (perhaps the text of it) as the type of the field, or an error that names the field."""
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise WorkbenchError(f"{name} cannot be used", expected=" or ".join(map(str, choices)), got=repr(value))
        return value
    if hint is bool:
        words = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise WorkbenchError(f"{name} cannot be used", expected="true or false", got=repr(value))
    kind = {int: "a whole number", float: "a number", str: "a text"}.get(hint)
    if kind is None:
        raise TypeError(f"{name}: fields of type {hint} have no text form")
    try:
        if isinstance(value, bool):
            raise ValueError
        converted = hint(value)
        if hint is int and not isinstance(value, (int, str)) and converted != value:
            raise ValueError
        return converted
    except (TypeError, ValueError, OverflowError):
        raise WorkbenchError(f"{name} cannot be used", expected=kind, got=repr(value)) from None


def override(settings: T, options: Mapping[str, Any], owner: str) -> T:
    """A copy of a settings dataclass with some fields replaced, validated again.

    Args:
        settings: a frozen dataclass instance. options: field name to value or to the text of it.
        owner: how the command line calls this group ("task", "model", "train"), for the errors.

    Raises:
        WorkbenchError: an unknown field (with the nearest ones) or a value of the wrong kind.
    """
    hints = typing.get_type_hints(type(settings))
    known = {f.name for f in dataclasses.fields(settings)}  # type: ignore[arg-type]
    changed = {}
    for key, value in options.items():
        if key not in known:
            raise unknown_name(f"{owner} option", key, known)
        changed[key] = _convert(f"{owner}.{key}", hints[key], value)
    return dataclasses.replace(settings, **changed)  # type: ignore[type-var]


def model_config(options: Mapping[str, Any], *, d_vocab: int, n_ctx: int) -> ModelConfig:
    """A ModelConfig for a task's vocabulary size and context, with these options over the defaults.

    The defaults are filled in before ``d_head`` is derived, so that changing ``n_heads`` keeps it consistent.
    """
    for fixed in ("d_vocab", "n_ctx"):
        if fixed in options:
            raise WorkbenchError(f"model.{fixed} follows from the task", next_step=f"Set task.{fixed} instead.")
    hints = typing.get_type_hints(ModelConfig)
    known = {f.name for f in dataclasses.fields(ModelConfig)} - {"d_vocab", "n_ctx"}
    typed = {}
    for key, value in options.items():
        if key not in known:
            raise unknown_name("model option", key, known)
        typed[key] = _convert(f"model.{key}", hints[key], value)
    return ModelConfig(d_vocab=d_vocab, n_ctx=n_ctx, **typed)
