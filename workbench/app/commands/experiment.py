"""``workbench experiment``: trains the models that an experiment compares, and writes its page."""

from __future__ import annotations

import argparse
import json

from workbench.app import words
from workbench.app.commands import _options
from workbench.app.commands import report as report_command

NAME = "experiment"
HELP = "Train the models that an experiment compares, over several seeds, and write its page and findings.json."
KEPT = "{out} keeps the runs; the same command goes on from there."
DEFAULT_SEEDS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The experiment, where it goes, and what it may spend."""
    parser.add_argument("experiment", metavar="NAME", help="an experiment's name; workbench list shows them")
    parser.add_argument("--out", metavar="DIR", help="a folder for runs, page and findings (default runs/NAME)")
    parser.add_argument(
        "--seeds", metavar="N", type=int, default=DEFAULT_SEEDS, help=f"models of a kind (default {DEFAULT_SEEDS})"
    )
    parser.add_argument("--seconds", metavar="S", type=float, help="begin no further seeds after this time")
    parser.add_argument("--strict", action="store_true", help="exit code 3 if a claim is contradicted")
    parser.add_argument(
        "--json", action="store_true", help="print findings.json (workbench/schemas/findings.schema.json)"
    )
    _options.plugins(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the experiment and print its claims; 3 if ``--strict`` and one is contradicted."""
    arguments.out = arguments.out or f"runs/{arguments.experiment}"
    from workbench.analysis import Budget
    from workbench.app import experiments, stages

    with stages.shown() as stage:
        made = experiments.conduct(
            arguments.experiment,
            arguments.out,
            Budget(seconds=arguments.seconds, seeds=arguments.seeds),
            plugins=arguments.plugins,
            progress=stage,
        )
    if arguments.json:
        print(json.dumps(made.record, indent=1))
    else:
        print(words.summary(made.record, made.page))
    return report_command.exit_code(made.record, strict=arguments.strict)
