"""From the command line's options to a task, a model shape and a training plan, and back to a command line.

A preset's options come first, then each ``--set GROUP.KEY=VALUE`` in order, the last one winning.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from workbench.config import ModelConfig, TrainConfig, model_config, override, preset
from workbench.errors import WorkbenchError, unknown_name
from workbench.registry import load_task

if TYPE_CHECKING:
    from workbench.task import Task

GROUPS = ("task", "model", "train")


@dataclass(frozen=True)
class Spec:
    """What a run is: task, model and training, with everything filled in (the seed stands beside it)."""

    task: Task
    model: ModelConfig
    train: TrainConfig


def parse_sets(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """``["task.n_ctx=32", "train.lr=0.001"]`` as ``{"task": {"n_ctx": "32"}, "model": {}, "train": {"lr": "0.001"}}``.

    Raises:
        WorkbenchError: a text without ``.`` or ``=``, or an unknown group (with the nearest ones).
    """
    options: dict[str, dict[str, str]] = {group: {} for group in GROUPS}
    for text in texts:
        name, equals, value = text.partition("=")
        group, dot, key = name.strip().partition(".")
        if not equals or not dot or not key:
            raise WorkbenchError(
                "--set cannot be read", expected="GROUP.KEY=VALUE, for instance train.steps=300", got=repr(text)
            )
        if group not in options:
            raise unknown_name("option group", group, GROUPS)
        options[group][key] = value.strip()
    return options


def resolve(
    task_name: str,
    preset_name: str | None = None,
    sets: Sequence[str] = (),
    plugins: Sequence[str | Path] = (),
    *,
    precision: str | None = None,
) -> Spec:
    """Task, model and training of a command line; without a preset's name, from the task's own.

    Raises:
        WorkbenchError: an unknown task, preset, group or option (with the nearest ones), an impossible value, or a
            preset made for the options of another task.
    """
    chosen = parse_sets(sets)
    start = None if preset_name is None else preset(preset_name)
    if precision is not None:
        chosen["train"]["precision"] = precision
    task = load_task(task_name, plugins=plugins)
    if start is None:
        preset_name, start = task.preset, preset(task.preset)
    _check_fit(task, str(preset_name), start.task)
    task = override(task, {**start.task, **chosen["task"]}, "task")
    _check_heads(start.model, chosen["model"])
    model = model_config({**start.model, **chosen["model"]}, d_vocab=len(task.vocabulary), n_ctx=task.n_ctx)
    return Spec(task, model, override(TrainConfig(), {**start.train, **chosen["train"]}, "train"))


def _check_heads(start: Mapping[str, Any], chosen: Mapping[str, str]) -> None:
    """A number of heads asked for must divide the width, unless a head's width is asked for too.

    Where a preset states ``d_head``, any number would be accepted; whoever sets only the number expects heads that
    share the width.
    """
    if "n_heads" in chosen and "d_head" not in chosen:
        model_config({**start, **chosen, "d_head": 0, "positions": "none"}, d_vocab=1, n_ctx=1)


def _check_fit(task: Task, preset_name: str, options: Mapping[str, Any]) -> None:
    missing = sorted(set(options) - set(task.options))
    if missing:
        raise WorkbenchError(
            f"the preset {preset_name!r} does not fit the task {task.name!r}",
            expected=f"a task with the options {', '.join(sorted(options))}",
            got=f"a task without {', '.join(missing)}",
            next_step="Choose another preset.",
        )


def train_command(
    spec: Spec,
    seed: int,
    out: str | Path,
    plugins: Sequence[str | Path] = (),
    *,
    execution: Mapping[str, Any] = MappingProxyType({}),
    allow_leaky: bool = False,
) -> str:
    """The command that trains exactly this spec: what differs from the task's own preset is written out.

    Args:
        execution: how the run was executed, as its record says; threads, device and compilation are taken from it.
        allow_leaky: the task leaks, and was trained on all the same.
    """
    plain = resolve(spec.task.name, plugins=plugins)
    words = ["workbench", "train", spec.task.name, "--out", str(out)]
    # The model's vocabulary and context follow from the task, so they are never written.
    groups = (
        ("task", plain.task.options, spec.task.options),
        ("model", _model_options(plain.model), _model_options(spec.model)),
        ("train", dataclasses.asdict(plain.train), dataclasses.asdict(spec.train)),
    )
    for group, usual, actual in groups:
        for key, value in actual.items():
            if usual[key] != value:
                words += ["--set", f"{group}.{key}={value}"]
    words += ["--seed", str(seed)]
    words += ["--threads", str(execution["threads"])] if execution.get("threads", 1) != 1 else []
    words += ["--device", "cuda"] if execution.get("device") == "cuda" else []
    words += ["--compile"] if execution.get("compile") else []
    words += ["--allow-leaky"] if allow_leaky else []
    words += plugin_words(plugins)
    return shlex.join(words)


def _model_options(model: ModelConfig) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(model).items() if k not in ("d_vocab", "n_ctx")}


def plugin_words(plugins: Sequence[str | Path]) -> list[str]:
    """The words of a command line that name these plugin folders."""
    return [word for folder in plugins for word in ("--plugins", str(folder))]
