"""``workbench depth``: what small networks of one layer and of two reach on a task."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from workbench.app import settings
from workbench.app.commands import _options
from workbench.errors import WorkbenchError
from workbench.registry import load_task

if TYPE_CHECKING:
    from workbench.depth import Depth

NAME = "depth"
HELP = "Certify what one layer and two layers reach on a task. Again: shows the certificate that is kept."
KEPT = "the runs are kept in the cache; the same command goes on from there."
DEFAULT_SEEDS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task, its options, and how many seeds."""
    _options.task(parser)
    parser.add_argument(
        "--seeds", metavar="N", type=int, default=DEFAULT_SEEDS, help=f"networks of a kind (default {DEFAULT_SEEDS})"
    )
    parser.add_argument("--json", action="store_true", help="machine output (workbench/schemas/depth.schema.json)")
    _options.plugins(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the certificate that is kept of the task, or make and keep it."""
    options = settings.parse_sets(arguments.sets)
    for group in ("model", "train"):
        if options[group]:
            raise WorkbenchError(
                f"--set {group}.{next(iter(options[group]))} cannot be used here", expected="options of the task",
                next_step="The networks of a certificate are always the same ones.",
            )  # fmt: skip
    from workbench import depth, storage
    from workbench.app import stages
    from workbench.app.lab import ProcessLab
    from workbench.training.execution import use_threads

    task = load_task(arguments.task, options["task"], arguments.plugins)
    certificate = depth.cached(task)
    if certificate is None or len(certificate.seeds) != arguments.seeds:
        lab = ProcessLab(depth.place(task), tuple(arguments.plugins))
        with use_threads(1), stages.shown() as stage:
            certificate = depth.certify(task, lab, arguments.seeds, stage)
        depth.keep(certificate)
        storage.remove_folder(lab.folder)
    if arguments.json:
        print(json.dumps(depth.to_json(certificate), indent=1))
    else:
        print(as_text(certificate))
    return 0


def as_text(depth: Depth) -> str:
    """The certificate for a reader at a terminal."""
    seeds = len(depth.seeds)
    width = max(len(row.label) for row in depth.rows)
    lines = [f"{depth.task}: accuracy on held-out sequences after {depth.steps} steps, {seeds} seeds"]
    for row in depth.rows:
        at = depth.interval(row)
        each = " ".join(f"{accuracy:.3f}" for accuracy in row.accuracies)
        mean = f"{at.value:.3f} [{at.low:.3f}, {at.high:.3f}]"
        lines.append(f"  {row.label:<{width}}  {mean}  seeds {each}  {depth.solved(row)} of {seeds} solve it")
    ceiling = "not known" if depth.ceiling is None else f"{depth.ceiling.accuracy:.3f}"
    lines.append(f"  floor {depth.floor.accuracy:.3f} ({depth.floor.predictor}), ceiling {ceiling}")
    return "\n".join([*lines, f"solved from {depth.threshold:.3f} on", "", depth.verdict])
