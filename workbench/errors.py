"""The one error type: what went wrong, what was expected, what came, what to do next.

Every fault that a user can cause raises :class:`WorkbenchError` (or a subclass). The command line
prints its text as one line and exits with ``exit_code``; no traceback reaches the user.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WorkbenchError(Exception):
    """A fault that the user can mend.

    Args:
        problem: what went wrong, naming the file, field or name.
        expected: what would have been right.
        got: what was there instead.
        next_step: the command or change that mends it.
    """

    exit_code = 1

    def __init__(self, problem: str, *, expected: object = "", got: object = "", next_step: str = "") -> None:
        self.problem, self.expected, self.got, self.next_step = problem, expected, got, next_step
        text = problem
        if expected != "":
            text += f": expected {expected}"
        if got != "":
            text += f"{', ' if expected != '' else ': '}got {got}"
        if next_step:
            text += f". {next_step}"
        super().__init__(" ".join(text.split()))


class CheckFailed(WorkbenchError):
    """A check was carried out and said no (exit code 3): nothing is broken, the answer is negative."""

    exit_code = 3


def unknown_name(kind: str, name: str, known: Iterable[str]) -> WorkbenchError:
    """The error for a name that does not exist, with the nearest names that do."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(names) or 'none'}."
    return WorkbenchError(f"unknown {kind} {name!r}", next_step=hint)
