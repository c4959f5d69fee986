"""Options that several commands share, so that each has one name and one help text."""

from __future__ import annotations

import argparse

from workbench.config import PRESETS


def plugins(parser: argparse.ArgumentParser) -> None:
    """``--plugins DIR``, any number of times."""
    parser.add_argument(
        "--plugins",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder of your own with tasks/ and/or analyses/ (may be given several times)",
    )


def task(parser: argparse.ArgumentParser) -> None:
    """``TASK`` and ``--set task.KEY=VALUE``, any number of times."""
    parser.add_argument("task", metavar="TASK", help="a task's name; workbench list shows them")
    parser.add_argument(
        "--set",
        metavar="task.KEY=VALUE",
        dest="sets",
        action="append",
        default=[],
        help="an option of the task (may be given several times)",
    )


def preset(parser: argparse.ArgumentParser) -> None:
    """``--preset NAME``."""
    parser.add_argument(
        "--preset", metavar="NAME", help=f"where to start from (default: the task's own): {', '.join(PRESETS)}"
    )


def threads(parser: argparse.ArgumentParser, why_one: str) -> None:
    """``--threads N``."""
    parser.add_argument("--threads", metavar="N", type=int, default=1, help=f"of the CPU (default 1: {why_one})")


def seed(parser: argparse.ArgumentParser) -> None:
    """``--seed N``."""
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of every random stream (default 0)")
