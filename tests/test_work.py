"""Counting long work, and showing it on a terminal and in a log file."""

from __future__ import annotations

import io
import os

import pytest

from tests import small_models
from workbench.ablation import Zero
from workbench.app import stages
from workbench.components import Head
from workbench.measure import measure
from workbench.subject import Subject
from workbench.work import counting, watched


def test_the_outermost_loop_counts_and_says_when_it_begins_and_ends():
    told = []
    with watched(lambda done, total: told.append((done, total))):
        with counting(3) as step:
            step(1)
            with counting(100) as inner:
                inner(50)
            step(1)
        with counting(2) as step:
            step(5)
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3), (0, 2), (2, 2)]


def test_nobody_watches_and_nothing_is_counted():
    told = []
    with watched(lambda done, total: told.append(done)):
        pass
    with counting(3) as step:
        step(1)
    with watched(lambda done, total: told.append(done)), counting(0) as step:
        step(1)
    assert told == []


def test_after_an_error_the_next_loop_counts_again():
    told = []
    with watched(lambda done, total: told.append((done, total))):
        with pytest.raises(ZeroDivisionError), counting(3):
            raise ZeroDivisionError
        with counting(1) as step:
            step(1)
    assert told == [(0, 3), (3, 3), (0, 1), (1, 1)]


def test_a_watcher_that_fails_once_is_told_of_the_next_loop():
    told = []

    def tell(done, total):
        told.append((done, total))
        if len(told) == 1:
            raise OSError("told")

    with watched(tell):
        with pytest.raises(OSError, match="told"), counting(3):
            pass
        with counting(1) as step:
            step(1)
    assert told == [(0, 3), (3, 3), (0, 1), (1, 1)]


def test_a_measurement_counts_each_intervention_on_each_sequence():
    task = small_models.Random(padded=False)
    subject = Subject(small_models.model({"norm": "pre"}), task.vocabulary, task)
    batch = subject.sample(7, "test", "work")
    told = []
    # One that restarts, and one that goes through the hooks.
    asked = [Zero(Head(1, 0)), Zero(Head(1, 0), frozen_norm=True)]
    with watched(lambda done, total: told.append((done, total))):
        measure(subject, batch, asked, chunk=3)
    assert told[0] == (0, 14)
    assert told[-1] == (14, 14)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len(told) > 4


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_in_a_log_file_long_work_says_how_far_it_is(monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr(stages, "time", clock)
    with stages.shown() as stage, counting(10) as step:
        stage("ablations")
        for seconds in (1, 14.5, 1, 20):  # a line after 15 seconds, and after 15 more
            clock.now += seconds
            step(2)
    assert capsys.readouterr().err.splitlines() == ["  ablations", "    40%, 0:23 left", "    80%, 0:09 left"]


def test_on_a_terminal_a_bar_is_drawn_and_taken_away(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(stages, "BAR_AFTER", 0)
    with stages.shown() as stage:
        stage("ablations")
        with counting(4) as step:
            step(1)
            drawn = terminal.getvalue()
        gone = terminal.getvalue()
    assert drawn.startswith("  ablations\n")
    assert "0% |" in drawn
    assert "left" in drawn
    assert gone.rpartition("\r")[2].strip() == ""


def test_after_an_error_the_bar_is_gone_before_the_next_stage_and_the_next_loop_has_its_own(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(stages, "BAR_AFTER", 0)

    def fail() -> None:
        with counting(1000) as step:
            step(800)
            raise ZeroDivisionError

    with stages.shown() as stage:
        with pytest.raises(ZeroDivisionError):
            fail()
        stage("next")
        before = terminal.getvalue()
        with counting(4) as step:
            step(4)
    after = terminal.getvalue().removeprefix(before)
    assert "left" in before
    assert before.endswith("\r  next\n")
    assert "  0% |" in after
    assert after.rpartition("\r")[2].strip() == ""


def test_where_there_is_no_stderr_nothing_is_said(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", None)
    with stages.shown() as stage, counting(2) as step:
        stage("ablations")
        step(1)
    assert capsys.readouterr().out == ""


def test_a_terminal_without_columns_gets_lines(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    terminal.fileno = lambda: 2
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("os.get_terminal_size", lambda fd: os.terminal_size((0, 0)))
    clock = Clock()
    monkeypatch.setattr(stages, "time", clock)
    with stages.shown(), counting(2) as step:
        clock.now += 20
        step(1)
    assert terminal.getvalue() == "    50%, 0:20 left\n"
