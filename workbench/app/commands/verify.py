"""``workbench verify``: is a run folder what it says it is?"""

from __future__ import annotations

import argparse
from pathlib import Path

NAME = "verify"
HELP = "Check a run folder: hashes, configurations, reload. Says ok, or which file is wrong (exit code 3)."
KEPT = "nothing was changed."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run."""
    parser.add_argument("run_folder", metavar="RUN", help="a run folder that workbench train made")


def run(arguments: argparse.Namespace) -> int:
    """Print ``ok``; 3 if a file is wrong, 1 if there is no finished run."""
    from workbench import runs
    from workbench.app import pages

    folder = Path(arguments.run_folder)
    pages.verify(folder, runs.verify(folder).hash)
    print("ok")
    return 0
