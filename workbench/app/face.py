"""The Python face: ``workbench.open`` and ``workbench.train``.

With ``folder`` the run folder of a trained model (here one with a single head in each of two layers):

>>> import workbench
>>> subject = workbench.open(folder)
>>> [str(head) for head in subject.heads]
['L0.H0', 'L1.H0']

What the heads look at, each score with its 95 % interval over sequences and its chance:

>>> scores = subject.scores().set_index(["head", "score"])
>>> induction = scores.loc[("L1.H0", "prefix_matching_score")]
>>> bool(induction["low"] > 3 * induction["chance"])
True

What breaks without a head; an effect is always ablated minus clean, paired by sequence:

>>> effect = subject.ablate("L1.H0", how="mean", n=128).set_index("metric").loc["accuracy"]
>>> bool(effect["high"] < -0.5), effect["fired"]
(True, '128/128')
>>> effect["semantics"]
'z of L1.H0 replaced by its mean over 512 train sequences of repeated_tokens (seed 100), per position'

Attention patterns as an array, batch x layer x head x query x key:

>>> subject.patterns([["<bos>", "t1", "t2", "t1"]]).shape
(1, 2, 1, 4, 4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.app import settings
from workbench.app.pipeline import open_subject
from workbench.runs import open_run
from workbench.subject import Subject


def open(folder: str | Path, *, plugins: Sequence[str | Path] = ()) -> Subject:
    """The model of a run folder, with the task that it was trained on.

    Args:
        folder: of a finished run. plugins: folders that hold the task, where it is not one of the workbench's own.

    Raises:
        WorkbenchError: no finished run there, or a damaged one (the error names the file).
    """
    return open_subject(open_run(folder), plugins)


def train(
    task: str,
    out: str | Path,
    *,
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int = 1,
    allow_leaky: bool = False,
    plugins: Sequence[str | Path] = (),
) -> Subject:
    """Audit the task, train into a run folder and open it; a finished run is reused, an unfinished one resumed.

    Args:
        task: its name. out: the run folder. options: as after ``--set``, for instance ``{"model.n_heads": 2}``.
        seed: of weights and batches. device: auto, cpu or cuda. threads: of the CPU.
        allow_leaky: train even on a task that a shortcut solves.

    Raises:
        CheckFailed: the task leaks (the error names the probe) and that is not allowed.
        WorkbenchError: unknown names, impossible values, or a folder that holds something else.
    """
    from workbench.app.commands import train as command

    sets = [f"{name}={value}" for name, value in (options or {}).items()]
    spec = settings.resolve(task, preset, sets, plugins)
    run = command.train(
        spec, seed, str(out), device=device, threads=threads, allow_leaky=allow_leaky, plugins=list(map(str, plugins))
    )
    return open_subject(run, plugins)
