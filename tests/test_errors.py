"""Errors say what was expected, what came and what to do next, in one line."""

from __future__ import annotations

import pytest

from workbench.errors import CheckFailed, WorkbenchError, unknown_name


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (WorkbenchError("it broke"), "it broke"),
        (WorkbenchError("it broke", expected=3), "it broke: expected 3"),
        (WorkbenchError("it broke", got=0), "it broke: got 0"),
        (WorkbenchError("it broke", expected=3, got=0), "it broke: expected 3, got 0"),
        (WorkbenchError("it broke", got="no", next_step="Mend it."), "it broke: got no. Mend it."),
        (WorkbenchError("two\n  lines", got="a\tb"), "two lines: got a b"),
    ],
)
def test_text(error: WorkbenchError, text: str) -> None:
    assert str(error) == text


def test_a_check_that_says_no_has_its_own_exit_code() -> None:
    assert (WorkbenchError("x").exit_code, CheckFailed("x").exit_code) == (1, 3)


def test_unknown_names_the_nearest() -> None:
    assert str(unknown_name("task", "repeatd", ["repeated", "other"])) == (
        "unknown task 'repeatd'. Did you mean repeated?"
    )


def test_unknown_with_nothing_near_lists_all() -> None:
    assert str(unknown_name("task", "zzz", ["b", "a"])) == "unknown task 'zzz'. Known: a, b."
    assert str(unknown_name("task", "zzz", [])) == "unknown task 'zzz'. Known: none."
