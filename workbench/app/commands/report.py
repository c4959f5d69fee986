"""``workbench report``: the analyses of a run, as ``findings.json`` and a page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from workbench.app import words
from workbench.app.commands import _options

NAME = "report"
HELP = "Analyse a run and write its page and findings.json."
KEPT = "{run_folder} is unchanged; no report was written."
DEFAULT_SAMPLES = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, which analyses, and where the page goes."""
    parser.add_argument("run_folder", metavar="RUN", help="a run folder that workbench train made")
    parser.add_argument("--only", metavar="NAME", nargs="+", default=[], help="these analyses alone")
    parser.add_argument(
        "--out", metavar="FILE", help="where the page goes, with its findings beside it (default RUN/report.html)"
    )
    parser.add_argument(
        "--samples",
        metavar="N",
        type=int,
        default=DEFAULT_SAMPLES,
        help=f"sequences of the test split (default {DEFAULT_SAMPLES})",
    )
    _options.threads(parser, "the same numbers on every machine")
    parser.add_argument("--strict", action="store_true", help="exit code 3 if a claim is contradicted")
    parser.add_argument(
        "--json", action="store_true", help="print findings.json (workbench/schemas/findings.schema.json)"
    )
    _options.plugins(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the report and print the claims; 1 if an analysis failed, 3 if ``--strict`` and one is contradicted."""
    from workbench.app import pipeline, stages

    with stages.shown() as stage:
        made = pipeline.report(
            arguments.run_folder,
            only=arguments.only,
            out=arguments.out,
            samples=arguments.samples,
            threads=arguments.threads,
            plugins=arguments.plugins,
            progress=stage,
        )
    if arguments.json:
        print(json.dumps(made.record, indent=1))
    else:
        print(words.summary(made.record, made.page))
    return exit_code(made.record, strict=arguments.strict)


def exit_code(record: Mapping[str, Any], *, strict: bool) -> int:
    """1 where an analysis failed, 3 where ``strict`` and a claim is contradicted, else 0."""
    contradicted = any(claim["verdict"] == "contradicted" for claim in record["claims"])
    return 1 if record["failed"] else 3 if strict and contradicted else 0
