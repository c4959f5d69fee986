"""Worker processes that train side by side, one thread each.

A worker is a fresh process (spawned) that rebuilds the task through the registry. It and the parent talk over a pipe of
their own, so a worker that dies is noticed and holds up no other, and a parent that dies ends its workers. Ctrl-C at a
terminal reaches every process: workers are born deaf to it, and the parent tells them to stop, upon which each writes
its state down.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

from workbench import training
from workbench.config import ModelConfig, TrainConfig
from workbench.errors import WorkbenchError
from workbench.registry import load_task

GRACE = 20.0
"""Seconds that a worker has to write its state down when it is told to stop."""


@dataclass(frozen=True)
class Job:
    """One training, as a worker is told of it. ``index`` names it in reports."""

    index: int
    task_name: str
    task_options: Mapping[str, Any]
    model: ModelConfig
    train: TrainConfig
    seed: int
    folder: str


def side_by_side(jobs: Sequence[Job], workers: int, plugins: Sequence[str], report: Callable[[int, int], None]) -> None:
    """Carry out all jobs in that many processes.

    Args:
        report: called with a job's index and the step that it has reached.

    Raises:
        WorkbenchError: what a training raised, or a worker that died; the others stop and keep what they have.
        KeyboardInterrupt: passed on, likewise.
    """
    waiting = list(reversed(jobs))
    with _crew(min(workers, len(jobs)), plugins) as crew:
        busy: dict[Connection, Job] = {}
        for pipe in crew:
            busy[pipe] = waiting.pop()
            pipe.send(busy[pipe])
        while busy:
            for pipe in cast("list[Connection]", wait(list(busy))):
                try:
                    kind, value = pipe.recv()
                except (EOFError, ConnectionError) as error:
                    raise _died(crew[pipe], busy[pipe]) from error
                if kind == "failed":
                    raise value
                report(busy[pipe].index, value)
                if kind == "done":
                    del busy[pipe]
                    if waiting:
                        busy[pipe] = waiting.pop()
                        pipe.send(busy[pipe])


@contextlib.contextmanager
def _crew(n: int, plugins: Sequence[str]) -> Iterator[dict[Connection, BaseProcess]]:
    """That many idle workers, by the pipe to each; at the end all are gone."""
    context = multiprocessing.get_context("spawn")
    crew: dict[Connection, BaseProcess] = {}
    try:
        with _deaf_to_interrupts():
            for _ in range(n):
                here, there = context.Pipe()
                process: BaseProcess = context.Process(target=work, args=(there, tuple(plugins)), daemon=True)
                process.start()
                there.close()
                crew[here] = process
        yield crew
    finally:
        for process in crew.values():
            process.terminate()
        for pipe, process in crew.items():
            process.join(GRACE)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C from their first moment."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _died(process: BaseProcess, job: Job) -> WorkbenchError:
    process.join(GRACE)
    return WorkbenchError(
        f"the process that trained {job.folder} died",
        got=f"exit code {process.exitcode}",
        next_step="The same command again goes on from what is kept; if memory is short, on fewer cores.",
    )


def work(pipe: Connection, plugins: Sequence[str]) -> None:
    """What a worker does: one job after the other, until it is told to stop or the parent is gone."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(KeyboardInterrupt, EOFError, ConnectionError):
        while True:
            job = pipe.recv()
            try:
                _carry_out(job, plugins, lambda step: pipe.send(("step", step)))
            except (KeyboardInterrupt, ConnectionError):
                raise
            except WorkbenchError as error:
                pipe.send(("failed", error))
            except Exception:  # a fault of ours: the parent shows where it happened
                pipe.send(("failed", RuntimeError(f"in a worker process:\n{traceback.format_exc()}")))
            else:
                pipe.send(("done", job.train.steps))


def _carry_out(job: Job, plugins: Sequence[str], report: Callable[[int], None]) -> None:
    task = load_task(job.task_name, job.task_options, plugins)
    training.train(task, job.model, job.train, job.seed, job.folder, progress=lambda p: report(p.step))
