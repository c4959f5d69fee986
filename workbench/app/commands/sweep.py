"""``workbench sweep``: remove every part of a run's model, alone or in pairs, and say what it did."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from workbench.app.commands import _options

NAME = "sweep"
HELP = "Remove every head and MLP of a run's model, alone or in pairs, and say what each did (rows for scripts)."
KEPT = "{run_folder} is unchanged."
KINDS = ("zero", "mean", "resample", "keep-only")
DEFAULT_SAMPLES = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, what is removed and how, and how many sequences."""
    parser.add_argument("run_folder", metavar="RUN", help="a run folder that workbench train made")
    parser.add_argument(
        "--kind", choices=KINDS, default="zero", help="what stands in for an output (default zero); keep-only: "
        "every other head is replaced by its mean",
    )  # fmt: skip
    parser.add_argument("--heads", metavar="L0.H1,L1.mlp", help="these parts alone (default: every head and MLP)")
    parser.add_argument("--pairs", action="store_true", help="every pair too, and what it did beyond each alone")
    parser.add_argument("--frozen-patterns", action="store_true", help="hold every pattern at its clean value")
    parser.add_argument("--frozen-norm", action="store_true", help="hold the final norm's scale at its clean value")
    parser.add_argument(
        "--samples", metavar="N", type=int, default=DEFAULT_SAMPLES,
        help=f"sequences of the test split (default {DEFAULT_SAMPLES}); with --until-width, of each round",
    )  # fmt: skip
    parser.add_argument(
        "--until-width", metavar="WIDTH", type=float,
        help="sample until every interval of an effect on accuracy is at most so wide",
    )  # fmt: skip
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="machine output (workbench/schemas/sweep.schema.json)")
    shape.add_argument("--csv", action="store_true", help="the rows as CSV")
    _options.plugins(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the rows."""
    from pathlib import Path

    from workbench.app import stages
    from workbench.app.pipeline import open_subject
    from workbench.components import all_heads, all_parts, as_parts
    from workbench.runs import open_run
    from workbench.sweep import Way, sample_sweep
    from workbench.training.execution import use_threads

    opened = open_run(Path(arguments.run_folder))
    way = Way(arguments.kind, arguments.frozen_patterns, arguments.frozen_norm)
    with use_threads(1), stages.shown() as stage:
        subject = open_subject(opened, arguments.plugins)
        config = subject.config
        # Keeping one MLP alone is no question about heads.
        every = all_heads(config.n_layers, config.n_heads) if way.kind == "keep-only" else all_parts(config)
        parts = every if arguments.heads is None else as_parts(arguments.heads)
        made = sample_sweep(
            subject, parts, way, pairs=arguments.pairs, samples=arguments.samples, until_width=arguments.until_width,
            progress=stage,
        )  # fmt: skip
        frame = made.frame(seed=subject.seed)
        synergy = made.synergy("accuracy", seed=subject.seed) if arguments.pairs else None
    if arguments.csv:
        frame.to_csv(sys.stdout, index=False)
        return 0
    if arguments.json:
        record: dict[str, Any] = {
            "schema": 1,
            "run": opened.hash,
            "task": opened.task_name,
            "kind": arguments.kind,
            "frozen_patterns": arguments.frozen_patterns,
            "frozen_norm": arguments.frozen_norm,
            "samples": made.n,
            "split": "test",
            "semantics": next(iter(made.effects.values())).intervention.semantics,
            "rows": json.loads(frame.to_json(orient="records", double_precision=10)),
        }
        if synergy is not None:
            record["pairs"] = json.loads(synergy.to_json(orient="records", double_precision=10))
        print(json.dumps(record, indent=1))
        return 0
    print(f"{next(iter(made.effects.values())).intervention.semantics}; and so on. {made.n} test sequences, paired;")
    print("95 % intervals; p corrected for the number of components (Holm).\n")
    print(frame.to_string(index=False, float_format=lambda x: f"{x:.4f}"))
    if synergy is not None:
        print("\nWhat pairs did to accuracy beyond the sum of each alone (negative: each stands in for the other):\n")
        print(synergy.to_string(index=False, float_format=lambda x: f"{x:.4f}"))
    return 0
