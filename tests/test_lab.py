"""The lab trains, reuses and resumes; the workers share out, report, fail and stop as they should."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_task import Successor
from workbench import training
from workbench.analysis import Budget, Lab, Plan
from workbench.app import lab as lab_module
from workbench.app import workers
from workbench.app.lab import ProcessLab
from workbench.app.workers import Job
from workbench.config import ModelConfig, TrainConfig, model_config
from workbench.errors import WorkbenchError
from workbench.registry import ROOT, load_task
from workbench.task import Task

EXAMPLES = str(ROOT / "examples")


def plan(name: str = "small", seed: int = 0, steps: int = 3, task: Task | None = None) -> Plan:
    task = task or Successor()
    shape = model_config({"n_heads": 1, "d_model": 8}, d_vocab=len(task.vocabulary), n_ctx=task.n_ctx)
    return Plan(name, task, shape, TrainConfig(steps=steps, batch_size=4), seed)


def weights(subject: Any) -> dict[str, torch.Tensor]:
    return subject.model.state_dict()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# In this process


def test_it_trains_each_plan_into_its_own_run(tmp_path: Path) -> None:
    said: list[str] = []
    lab = ProcessLab(tmp_path, workers=1)
    assert isinstance(lab, Lab)
    plans = [plan("a", 1), plan("b-long", 0, steps=4), plan("a", 0)]
    subjects = lab.train(plans, said.append)
    assert [(s.seed, s.run.train_config.steps) for s in subjects] == [(1, 3), (0, 4), (0, 3)]
    assert all(s.task is p.task for s, p in zip(subjects, plans, strict=True))
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["a-seed-0", "a-seed-1", "b-long-seed-0"]
    assert lab.used == {s.run.folder.name: s.run.hash for s in subjects}
    assert said == ["trained a, seed 1 (1 of 3)", "trained b-long, seed 0 (2 of 3)", "trained a, seed 0 (3 of 3)"]
    alone = training.train(*_arguments(plans[0]), tmp_path / "alone")
    assert same(weights(subjects[0]), alone.load_model().state_dict())


def _arguments(p: Plan) -> tuple[Task, ModelConfig, TrainConfig, int]:
    return p.task, p.model, p.train, p.seed


def test_what_is_there_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = ProcessLab(tmp_path, workers=1)
    [first] = lab.train([plan()], lambda stage: None)
    said: list[str] = []
    steps: list[int] = []
    advance = training.loop.Training.advance
    monkeypatch.setattr(
        training.loop.Training, "advance", lambda self, *a, **k: (steps.append(self.step), advance(self, *a, **k))[1]
    )
    again, _ = lab.train([plan(), plan(seed=1)], said.append)
    assert steps == [0, 1, 2]
    assert same(weights(first), weights(again))
    assert said == ["1 of 2 models are there already", "trained small, seed 1 (2 of 2)"]


def test_what_was_begun_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = training.loop.Training.advance

    def stop_at_two(self: Any, *arguments: Any, **more: Any) -> None:
        if self.step == 2:
            raise KeyboardInterrupt
        advance(self, *arguments, **more)

    lab = ProcessLab(tmp_path / "stopped", workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(training.loop.Training, "advance", stop_at_two)
        with pytest.raises(KeyboardInterrupt):
            lab.train([plan(steps=5)], lambda stage: None)
    [state] = (tmp_path / "stopped" / "runs" / "small-seed-0" / "resume").glob("state-*")
    assert state.stem == "state-00000002"
    [resumed] = lab.train([plan(steps=5)], lambda stage: None)
    [straight] = ProcessLab(tmp_path / "straight", workers=1).train([plan(steps=5)], lambda stage: None)
    assert same(weights(resumed), weights(straight))


def test_another_plan_of_the_same_name_is_refused(tmp_path: Path) -> None:
    lab = ProcessLab(tmp_path, workers=1)
    lab.train([plan()], lambda stage: None)
    with pytest.raises(WorkbenchError, match="steps: 3 there, 4 asked"):
        lab.train([plan(steps=4)], lambda stage: None)


@pytest.mark.parametrize(
    ("plans", "says"),
    [
        ([plan(), plan()], "two plans have one name and seed: got small, seed 0"),
        ([plan("../elsewhere")], "a plan's name cannot be used"),
        ([plan("Two Blocks")], "a plan's name cannot be used"),
    ],
)
def test_names_are_folders(tmp_path: Path, plans: Sequence[Plan], says: str) -> None:
    with pytest.raises(WorkbenchError, match=says):
        ProcessLab(tmp_path, workers=1).train(plans, lambda stage: None)
    assert list(tmp_path.iterdir()) == []


def test_tasks_come_from_the_registry(tmp_path: Path) -> None:
    lab = ProcessLab(tmp_path, plugins=(EXAMPLES,))
    assert lab.task("counting").name == "counting"
    assert lab.task("repeated_tokens", {"n_ctx": 50}).n_ctx == 50
    with pytest.raises(WorkbenchError, match="unknown task 'countin'"):
        lab.task("countin")


def test_a_task_that_a_worker_could_not_rebuild_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkbenchError, match="unknown task 'tiny_task'"):
        ProcessLab(tmp_path, workers=2).train([plan(seed=0), plan(seed=1)], lambda stage: None)


def test_at_most_as_many_workers_as_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_module.os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert lab_module.cores() == 3
    assert ProcessLab(Path("x")).workers == 3


def test_a_bar_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(lab_module.sys.stderr, "isatty", lambda: True, raising=False)
    ProcessLab(tmp_path, workers=1).train([plan(seed=0), plan(seed=1)], lambda stage: None)
    assert "2 of 2 models" in capsys.readouterr().err


def test_a_budget_has_seeds_for_an_interval() -> None:
    assert Budget().seeds == 5
    with pytest.raises(WorkbenchError, match="seeds is too small: expected at least 2, got 1"):
        Budget(seeds=1)


# The workers, played by threads


class Gone(BaseProcess):
    """Stands for a process that has ended."""

    exitcode = -9

    def __init__(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...


def crew_of(play: Callable[[Any], None]) -> Callable[..., Any]:
    """A crew whose workers are threads that play on the far end of their pipe, then hang up."""

    @contextlib.contextmanager
    def crew(n: int, plugins: Sequence[str]) -> Iterator[dict[Any, Any]]:
        pipes, threads = {}, []

        def run(there: Any) -> None:
            with there, contextlib.suppress(EOFError, ConnectionError):
                play(there)

        for _ in range(n):
            here, there = Pipe()
            pipes[here] = Gone()
            threads.append(threading.Thread(target=run, args=(there,)))
            threads[-1].start()
        try:
            yield pipes
        finally:
            for pipe in pipes:
                pipe.close()
            for thread in threads:
                thread.join()

    return crew


def job(index: int) -> Job:
    return Job(index, "counting", {}, ModelConfig(4, 4, n_heads=1), TrainConfig(steps=10), index, f"run {index}")


def test_every_job_is_carried_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[int] = []

    def play(pipe: Any) -> None:
        while True:
            asked = pipe.recv()
            received.append(asked.index)
            pipe.send(("step", 5))
            pipe.send(("done", asked.train.steps))

    monkeypatch.setattr(workers, "_crew", crew_of(play))
    reports: list[tuple[int, int]] = []
    workers.side_by_side([job(i) for i in range(7)], 3, (), lambda index, step: reports.append((index, step)))
    assert sorted(received) == list(range(7))
    assert sorted(reports) == [(i, step) for i in range(7) for step in (5, 10)]


def test_a_worker_that_dies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_crew", crew_of(lambda pipe: pipe.recv()))
    with pytest.raises(WorkbenchError, match=r"the process that trained run 0 died: got exit code -9\. The same comm"):
        workers.side_by_side([job(0)], 2, (), lambda index, step: None)


def play_work(jobs: Sequence[Job], monkeypatch: pytest.MonkeyPatch, train: Callable[..., Any]) -> list[Any]:
    """Run a worker's loop here on these jobs; what it sent."""
    monkeypatch.setattr(training, "train", train)
    here, there = Pipe()
    sent: list[Any] = []

    def parent() -> None:
        with here, contextlib.suppress(EOFError):
            for asked in jobs:
                here.send(asked)
                while (message := here.recv())[0] == "step":
                    sent.append(message)
                sent.append(message)

    thread = threading.Thread(target=parent)
    before = signal.getsignal(signal.SIGTERM)
    try:
        thread.start()
        with there:
            workers.work(there, (EXAMPLES,))
    finally:
        signal.signal(signal.SIGTERM, before)
        thread.join()
    return sent


def test_a_worker_rebuilds_the_task_and_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def train(task: Task, model: ModelConfig, config: TrainConfig, seed: int, folder: str, progress: Any) -> None:
        asked.append((task == load_task("counting", plugins=[EXAMPLES]), seed, folder))
        progress(training.Progress(4, 10, 0.0, None, 0.0, 1.0, 1.0))

    sent = play_work([job(0), job(1)], monkeypatch, train)
    assert asked == [(True, 0, "run 0"), (True, 1, "run 1")]
    assert sent == [("step", 4), ("done", 10), ("step", 4), ("done", 10)]


def test_a_workers_errors_reach_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = [WorkbenchError("the loss is not finite", next_step="Lower it."), ValueError("ours")]

    def train(*_: Any, **__: Any) -> None:
        raise errors.pop(0)

    (_, mild), (_, grave) = play_work([job(0), job(1)], monkeypatch, train)
    assert isinstance(mild, WorkbenchError)
    assert (str(mild), mild.next_step) == ("the loss is not finite. Lower it.", "Lower it.")
    assert isinstance(grave, RuntimeError)
    assert "ValueError: ours" in str(grave)
    assert "Traceback" in str(grave)

    def fail(pipe: Any) -> None:
        pipe.recv()
        pipe.send(("failed", mild))
        pipe.recv()

    monkeypatch.setattr(workers, "_crew", crew_of(fail))
    with pytest.raises(WorkbenchError, match="the loss is not finite"):
        workers.side_by_side([job(0), job(1)], 2, (), lambda index, step: None)


def test_a_worker_told_to_stop_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    assert play_work([job(0)], monkeypatch, train) == []


# Real processes


def test_processes_train_the_same_weights_and_keep_what_they_have_when_interrupted(tmp_path: Path) -> None:
    task = load_task("counting", plugins=[EXAMPLES])
    plans = [plan("short", 0, 4, task), plan("short", 1, 4, task), plan("long", 0, 600, task)]
    lab = ProcessLab(tmp_path / "side by side", (EXAMPLES,), workers=2)
    jobs = [lab._job(i, p) for i, p in enumerate(plans)]
    done: set[int] = set()

    def interrupt(index: int, step: int) -> None:
        """Ctrl-C as soon as the long plan, which a worker begins after its short one, is under way."""
        done.update({index} if step == plans[index].train.steps else ())
        if index == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workers.side_by_side(jobs, 2, lab.plugins, interrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert done in ({0}, {1}, {0, 1})
    record = json.loads((lab.place(plans[min(done)]) / "run.json").read_text())
    assert record["execution"]["threads"] == 1
    [state] = (lab.place(plans[2]) / "resume").glob("state-*")
    assert 0 < int(state.stem.removeprefix("state-")) < 600
    both = ProcessLab(lab.folder, (EXAMPLES,), workers=1).train(plans, lambda stage: None)
    alone = ProcessLab(tmp_path / "alone", (EXAMPLES,), workers=1).train(plans, lambda stage: None)
    assert [same(weights(a), weights(b)) for a, b in zip(both, alone, strict=True)] == [True] * 3
