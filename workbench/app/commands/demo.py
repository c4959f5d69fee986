"""``workbench demo``: train on repeated tokens and report, in one command."""

from __future__ import annotations

import argparse

from workbench.app import settings, words
from workbench.app.commands import _options
from workbench.app.commands import report as report_command
from workbench.app.commands import train as train_command

NAME = "demo"
HELP = "Train a model that learns to induce on repeated sequences, and report on it. Again: reuses what is there."
KEPT = "{out} keeps what it holds; the same command goes on from there."
TASK = "repeated_tokens"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to put the run, and which model."""
    parser.add_argument("--out", metavar="RUN", default="runs/demo", help="the run folder (default runs/demo)")
    _options.preset(parser)
    _options.seed(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train or reuse, report or reuse, then print the claims and the page's path; 1 if an analysis failed."""
    made = train_command.train(settings.resolve(TASK, arguments.preset), arguments.seed, arguments.out)
    from workbench.app import pipeline, stages

    with stages.shown() as stage:
        report = pipeline.current_report(made) or pipeline.report(made.folder, progress=stage)
    print(words.summary(report.record, report.page))
    return report_command.exit_code(report.record, strict=False)
