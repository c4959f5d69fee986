"""The training loop: the same spec gives the same bits, whether or not it was killed on the way.

Batches are addressed by step (``stream(seed, "train", step)``), the weights by the seed, and everything else follows
from them; so a state is weights, AdamW's moments and the step. Numbers stay tensors until somebody looks at them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench import runs, storage
from workbench.config import ModelConfig, TrainConfig
from workbench.errors import WorkbenchError
from workbench.model.transformer import Transformer
from workbench.rng import stream
from workbench.runs import Run
from workbench.task import Task
from workbench.training import resume
from workbench.training.checkpoints import checkpoint_steps, save_checkpoint
from workbench.training.execution import execution_record, resolve_device, use_threads
from workbench.training.refusals import require_drawable, require_ours
from workbench.training.resume import State
from workbench.training.step import apply, gradients, learning_rate, make_optimiser

REFRESH_SECONDS = 0.2
SAVE_SECONDS = 3.0
"""Between two resume states; a step more may pass, and 5 seconds are promised."""


@dataclass(frozen=True)
class Progress:
    """Where a training is: means over the steps since the last report, and the pace of this call.

    Attributes:
        step, total: updates done, and of how many. loss: nats a position with a target. excess: loss above the task's
            ceiling, None where unknown. accuracy: on scored positions. steps_per_second, seconds_left: of this call.
    """

    step: int
    total: int
    loss: float
    excess: float | None
    accuracy: float
    steps_per_second: float
    seconds_left: float


class Training:
    """A training in memory: model, optimiser, log, and the step between two updates."""

    def __init__(self, task: Task, model: ModelConfig, train: TrainConfig, seed: int, device: torch.device) -> None:
        self.task, self.config, self.seed, self.device = task, train, seed, device
        self.model = Transformer(model, seed).to(device)
        self.optimiser = make_optimiser(self.model, train)
        self.parameters = dict(self.model.named_parameters())
        for p in self.parameters.values():
            moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            self.optimiser.state[p] = {"step": torch.zeros((), device=device), **moments}
        self.log = resume.empty_log(train.steps, device)
        self.step = self.seen = 0
        self.whole = True
        """False while an update is applied: then weights and moments belong to no step."""
        self.checkpoints: dict[str, str] = {}
        known = task.ceiling()
        self.ceiling = None if known is None else known.loss

    def state(self) -> State:
        """What resuming needs, as references to the live tensors."""
        moments = {
            key: {name: self.optimiser.state[p][key] for name, p in self.parameters.items()}
            for key in ("exp_avg", "exp_avg_sq")
        }
        return State(self.step, self.parameters, **moments, log=self.log[: self.step], checkpoints=self.checkpoints)

    def restore(self, state: State) -> None:
        """Become the training that this state was taken from."""
        self.step = self.seen = state.step
        self.checkpoints = dict(state.checkpoints)
        with torch.no_grad():
            self.log[: self.step] = state.log
            for name, p in self.parameters.items():
                p.copy_(state.weight[name])
                self.optimiser.state[p]["step"].fill_(self.step)
                self.optimiser.state[p]["exp_avg"].copy_(state.exp_avg[name])
                self.optimiser.state[p]["exp_avg_sq"].copy_(state.exp_avg_sq[name])

    def advance(self, forward: Callable[..., Tensor], check: bool = False) -> None:
        """One update on the batch of this step; ``check`` looks the batch over first."""
        batch = self.task.sample(self.config.batch_size, "train", stream(self.seed, "train", self.step))
        if check:
            batch.check(self.model.config.d_vocab, self.task.name)
        mask = None if bool(batch.mask.all()) else batch.mask.to(self.device)
        batch = dataclasses.replace(batch, positions={}, key_masks={}).to(self.device)
        row = gradients(self.model, forward, batch, mask, self.config)
        self.whole = False
        apply(self.optimiser, learning_rate(self.config, self.step))
        for column, value in enumerate(row):
            self.log[self.step, column] = value
        self.step += 1
        self.whole = True

    def require_finite(self, folder: Path) -> None:
        """Look at the log since the last look, and at the weights.

        Raises:
            WorkbenchError: naming the first step whose loss or gradient is not finite, and what is kept.
        """
        wrong = ~self.log[self.seen : self.step, [0, 2]].isfinite()  # loss and gradient norm
        steps = wrong.any(dim=1).nonzero()
        healthy = torch.stack([p.isfinite().all() for p in self.parameters.values()]).all()
        if len(steps) or not healthy:
            step = self.seen + int(steps[0]) if len(steps) else self.step
            what = "weights" if not len(steps) else "loss" if wrong[int(steps[0]), 0] else "gradient"
            kept = [name for name in self.checkpoints if name < runs.checkpoint_name(step)]
            last = f"The last good checkpoint is {folder / max(kept)}, " if kept else "Kept is "
            raise WorkbenchError(
                f"training stopped at step {step}: {what} not finite",
                next_step=f"{last}the resume state {resume.latest(folder)}. Train into another folder with a lower "
                f"train.lr ({self.config.lr:g} here) or train.grad_clip.",
            )
        self.seen = self.step

    def save_checkpoint(self, folder: Path) -> None:
        """Keep the weights of this step."""
        self.require_finite(folder)
        name, digest = save_checkpoint(folder, self.step, self.model)
        self.checkpoints[name] = digest

    def save(self, folder: Path) -> None:
        """Write the resume state of this step."""
        self.require_finite(folder)
        resume.save(folder, self.state())

    def table(self) -> bytes:
        """``training.csv``."""
        lines = [",".join(runs.COLUMNS)]
        for step, (loss, accuracy, norm) in enumerate(self.log.tolist()):
            excess = "" if self.ceiling is None else loss - self.ceiling
            lines.append(f"{step},{loss},{excess},{accuracy},{norm},{learning_rate(self.config, step)}")
        return ("\n".join(lines) + "\n").encode()

    def progress(self, since: int, begun: int, seconds: float) -> Progress:
        """The report on the steps from ``since``, in a call that began at step ``begun`` that many seconds ago."""
        loss, accuracy, _ = self.log[since : self.step].mean(dim=0).tolist()
        pace = (self.step - begun) / max(seconds, 1e-9)
        excess = None if self.ceiling is None else loss - self.ceiling
        left = (self.config.steps - self.step) / pace
        return Progress(self.step, self.config.steps, loss, excess, accuracy, pace, left)


def train(
    task: Task,
    model_config: ModelConfig,
    train_config: TrainConfig,
    seed: int,
    folder: str | Path,
    *,
    device: str = "cpu",
    threads: int = 1,
    compile: bool = False,
    audit: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Train a model into a run folder; what is there already is reused.

    The same spec (task, model, train, seed) finished is returned as it is; unfinished, it goes on from its last state
    and ends with the same bits as if it had not been stopped (CPU, one thread count). Another spec is an error.

    Args:
        folder: made if missing. device: auto, cpu or cuda. threads: of the CPU, during this call.
        compile: run the forward pass through ``torch.compile``. audit: the task's certificate, kept with the run.
        progress: called a few times a second.

    Raises:
        WorkbenchError: another run, or somebody's files, in the folder; a folder that cannot be written; a training
            begun on another device, thread count or version; no such device; a loss that is no longer finite.
        KeyboardInterrupt: passed on, after the state is written.
    """
    folder = Path(folder)
    where = resolve_device(device)
    asked = runs.make_spec(task, model_config, train_config, seed)
    require_trainable(task, model_config, train_config, seed, folder, device=device, threads=threads)
    with use_threads(threads):
        execution = storage.plain(execution_record(where, threads, compile))
        storage.make_folder(folder)
        with storage.exclusive(folder):
            if (folder / runs.RECORD).exists():
                run = _finished(folder, asked)
                _require_whole(run)
                resume.end(folder)  # left if the process died just after writing run.json
                return run
            training = Training(task, model_config, train_config, seed, where)
            if (folder / runs.RESUME).exists():
                training.restore(resume.load(folder, asked, execution, training.state()))
            else:
                resume.begin(folder, asked, execution, training.state())
            try:
                _steps(training, folder, compile, progress)
            except KeyboardInterrupt:
                if training.whole:
                    training.save(folder)
                raise
            return _finish(training, folder, asked, execution, audit)


def require_trainable(
    task: Task,
    model_config: ModelConfig,
    train_config: TrainConfig,
    seed: int,
    folder: str | Path,
    *,
    device: str = "cpu",
    threads: int = 1,
) -> None:
    """Raise what :func:`train` would refuse before its first step, with the same arguments. Touches nothing."""
    folder = Path(folder)
    resolve_device(device)
    asked = runs.make_spec(task, model_config, train_config, seed)
    there = (model_config.d_vocab, model_config.n_ctx)
    if there != (len(task.vocabulary), task.n_ctx):
        raise WorkbenchError(
            "the model does not fit the task (d_vocab, n_ctx)", expected=(len(task.vocabulary), task.n_ctx), got=there
        )
    with use_threads(threads):
        require_ours(folder)
        require_drawable(task, train_config.batch_size, seed)
    if (folder / runs.RECORD).exists():
        _finished(folder, asked)


def _finished(folder: Path, asked: dict[str, Any]) -> Run:
    run = runs.open_run(folder)
    next_step = "Choose another folder, or ask for the same."
    runs.require_same(folder, run.spec, asked, what="another run", next_step=next_step)
    return run


def _require_whole(run: Run) -> None:
    try:
        runs.require_whole(run)
    except WorkbenchError as error:
        next_step = error.next_step or "Restore the file, or train again into another folder."
        raise WorkbenchError(error.problem, expected=error.expected, got=error.got, next_step=next_step) from error


def _steps(training: Training, folder: Path, compiled: bool, progress: Callable[[Progress], None] | None) -> None:
    """From the training's step to the last, with everything that is written on the way."""
    total, begun, reported = training.config.steps, training.step, training.step
    keep = set(checkpoint_steps(total))

    def fast(tokens: Tensor, mask: Tensor | None) -> Tensor:
        return training.model(tokens, mask, path="fast")

    forward = torch.compile(fast) if compiled else fast
    start = saved = refreshed = time.monotonic()
    while True:
        if training.step in keep and runs.checkpoint_name(training.step) not in training.checkpoints:
            training.save_checkpoint(folder)
        if training.step == total:
            training.save(folder)
            return
        training.advance(forward, check=training.step == begun)
        now = time.monotonic()
        if now - refreshed >= REFRESH_SECONDS or training.step == total:
            training.require_finite(folder)
            if progress is not None:
                progress(training.progress(reported, begun, now - start))
            reported, refreshed = training.step, now
        if now - saved >= SAVE_SECONDS:
            training.save(folder)
            saved = now


def _finish(
    training: Training,
    folder: Path,
    spec: dict[str, Any],
    execution: dict[str, Any],
    audit: Mapping[str, Any] | None,
) -> Run:
    """Weights and tables, then the identity, then the end of ``resume/``: an order that may be broken off anywhere."""
    artefacts = dict(training.checkpoints)
    if audit is not None:
        artefacts[runs.AUDIT] = storage.write_json(folder / runs.AUDIT, audit)
    artefacts[runs.WEIGHTS] = storage.write_tensors(folder / runs.WEIGHTS, training.model.state_dict())
    artefacts[runs.TABLE] = storage.write_atomic(folder / runs.TABLE, training.table())
    run = runs.seal(folder, spec, execution, training.config.steps, artefacts)
    resume.end(folder)
    return run
