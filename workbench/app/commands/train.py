"""``workbench train``: a run folder with a trained model in it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.app import settings
from workbench.app.commands import _options

if TYPE_CHECKING:
    from workbench.runs import Run

NAME = "train"
HELP = "Audit a task and train a model on it. The same command again reuses a finished run or goes on with one."
KEPT = "{out} keeps what it holds; the same command goes on from there."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task, where to put the run, and everything that can be set."""
    parser.add_argument("task", metavar="TASK", help="a task's name; workbench list shows them")
    parser.add_argument("--out", metavar="RUN", required=True, help="the run folder")
    _options.preset(parser)
    parser.add_argument(
        "--set",
        metavar="GROUP.KEY=VALUE",
        dest="sets",
        action="append",
        default=[],
        help="an option of the task, model or train group (may be given several times)",
    )
    _options.seed(parser)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default auto")
    _options.threads(parser, "the same weights on every machine")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), help="short for --set train.precision=...")
    parser.add_argument("--compile", action="store_true", help="compile the training step (worth it for large models)")
    parser.add_argument(
        "--allow-leaky", action="store_true", help="train even on a task that a shortcut solves; the report will say so"
    )
    _options.plugins(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train, then say where the run is, how it ended, and what to do with it."""
    spec = settings.resolve(
        arguments.task, arguments.preset, arguments.sets, arguments.plugins, precision=arguments.precision
    )
    made = train(
        spec,
        arguments.seed,
        arguments.out,
        device=arguments.device,
        threads=arguments.threads,
        compile=arguments.compile,
        allow_leaky=arguments.allow_leaky,
        plugins=arguments.plugins,
    )
    accuracy = made.training_table()["accuracy"].iloc[-1]
    print(f"run {made.hash[:12]} in {made.folder}: {spec.train.steps} steps, accuracy {accuracy:.1%} on the last batch")
    print(f"next: {shlex.join(['workbench', 'report', arguments.out, *settings.plugin_words(arguments.plugins)])}")
    return 0


def train(
    spec: settings.Spec,
    seed: int,
    out: str,
    *,
    device: str = "auto",
    threads: int = 1,
    compile: bool = False,
    allow_leaky: bool = False,
    plugins: Sequence[str] = (),
) -> Run:
    """Audit the task, then train into a run folder with a progress bar on stderr; what is there already is reused.

    Raises:
        CheckFailed: the task leaks and ``allow_leaky`` is off; nothing was touched.
    """
    from workbench import training
    from workbench.app import gate
    from workbench.training.progress import bar

    training.require_trainable(spec.task, spec.model, spec.train, seed, out, device=device, threads=threads)
    certificate = gate.passed(spec.task, allow_leaky=allow_leaky, plugins=plugins)
    with bar(spec.train.steps) as progress:
        return training.train(
            spec.task,
            spec.model,
            spec.train,
            seed,
            out,
            device=device,
            threads=threads,
            compile=compile,
            audit=certificate,
            progress=progress,
        )
