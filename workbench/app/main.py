"""The command ``workbench``: finds the commands by file, runs one, turns what happens into an exit code.

Exit codes: 0 done; 1 the user's error, in one line; 2 usage; 3 a check said no; 130 interrupted. An exception that is
neither the user's making nor the machine's refusal keeps its traceback.

A command is a module in ``workbench/app/commands`` with ``NAME``, ``HELP``, ``KEPT`` (what an interruption leaves, with
the arguments in braces), ``add_arguments(parser)`` and ``run(arguments) -> exit code``. Modules import at their top
only what is light; torch and the like are imported when the command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.app import words
from workbench.errors import WorkbenchError
from workbench.registry import check_installation

INTERRUPTED = 130


def commands() -> list[Any]:
    """The command modules, by name."""
    files = sorted((Path(__file__).parent / "commands").glob("[!_]*.py"))
    found = [importlib.import_module(f"workbench.app.commands.{file.stem}") for file in files]
    return sorted(found, key=lambda command: command.NAME)


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command; the chosen module lands in ``arguments.command``."""
    parser = argparse.ArgumentParser(prog="workbench", description="Take attention heads apart.")
    choices = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands():
        sub = choices.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(sub)
        sub.set_defaults(command=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` by default) and return the exit code. Never raises ``SystemExit``."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without our signs gets a ? for them, and no error
        sys.stdout.reconfigure(errors="replace")
    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed the help (0) or what is wrong with the usage (2)
        return int(stop.code or 0)
    try:
        with _termination_as_interrupt():
            check_installation()
            code = int(arguments.command.run(arguments))
            sys.stdout.flush()
            return code
    except WorkbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"\ninterrupted: {_kept(arguments)}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has left (``workbench list | head -1``). Python flushes stdout once more at exit; give it a sink.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, MemoryError, RuntimeError) as error:
        line = words.refused(error)
        if line is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        return line.exit_code


def _kept(arguments: argparse.Namespace) -> str:
    """What an interruption leaves; a command that was stopped before it made its folder leaves nothing."""
    kept: str = arguments.command.KEPT
    if "{out}" in kept and not os.path.exists(arguments.out):
        return f"nothing is in {arguments.out} yet; the same command begins anew."
    return kept.format(**vars(arguments))


@contextlib.contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """While a command runs, SIGTERM is Ctrl-C: the same files are kept and the same line is printed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
