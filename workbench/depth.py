"""The depth certificate of a task: what small networks of one layer and of two reach, and what that lets one say.

A single layer that solves a task is no leak in its data, but it forbids the sentence "this needs two hops". One network
that solves it is enough for that: it is an example. The reverse is weaker, for a network that was not found may exist;
so where no single layer solves it, the certificate allows no more than "none of these did".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workbench import cache, content, storage
from workbench.analysis import Lab, Plan, Progress
from workbench.config import TrainConfig, model_config, preset
from workbench.errors import WorkbenchError
from workbench.findings import Column, Finding, Notice, Table
from workbench.metrics import sequence_accuracy
from workbench.rng import stream
from workbench.seeds import seed_interval
from workbench.statistics import Interval
from workbench.subject import Subject
from workbench.task import Ceiling, Floor, Task

SCHEMA = 2
"""Of the JSON, ``workbench/schemas/depth.schema.json``; a new one makes every kept certificate again."""

SEEDS = 3
SEQUENCES = 1024
"""Of the test split, for each network."""
TRAIN = TrainConfig(steps=2000)
"""The steps at least: as many as the task's own preset takes, where that is more."""
MODEL: Mapping[str, Any] = {"n_heads": 4, "d_model": 64}
"""Of every network. How it tells positions apart is the task's own preset's choice."""
SOLVED = 0.95
"""A network solves the task from this share of the way from the floor to the ceiling (1 where that is not known)."""


NEEDS_TWO = "this needs two hops"
SECTION = "What depth it takes"


@dataclass(frozen=True)
class Network:
    """A kind of network: the name of its plans, what it is called, and its options over ``MODEL``."""

    name: str
    label: str
    options: Mapping[str, Any]


NETWORKS = (
    Network("one-attention", "one layer, attention only", {"n_layers": 1}),
    Network("one-attention-no-norm", "one layer, attention only, without norm", {"n_layers": 1, "norm": "none"}),
    Network("one-mlp", "one layer, with MLP", {"n_layers": 1, "d_mlp": 256}),
    Network("two-attention", "two layers, attention only", {"n_layers": 2}),
    Network("two-mlp", "two layers, with MLP", {"n_layers": 2, "d_mlp": 256}),
)


@dataclass(frozen=True)
class Row:
    """What one kind of network reaches: its accuracy on held-out sequences, one a seed."""

    name: str
    label: str
    layers: int
    accuracies: tuple[float, ...]


@dataclass(frozen=True)
class Depth:
    """A certificate.

    Attributes:
        task, options: the task. key: the hash of the task and of everything else that decides the accuracies.
        positions: how every network tells them apart. seeds: of the networks. steps: of every training.
        sequences: of the test split, for each network.
        floor, ceiling: of the task. rows: one a kind of network.
    """

    task: str
    options: Mapping[str, Any]
    key: str
    positions: str
    seeds: tuple[int, ...]
    steps: int
    sequences: int
    floor: Floor
    ceiling: Ceiling | None
    rows: tuple[Row, ...]

    @property
    def threshold(self) -> float:
        """The accuracy from which a network solves the task."""
        top = 1.0 if self.ceiling is None else self.ceiling.accuracy
        return self.floor.accuracy + SOLVED * (top - self.floor.accuracy)

    def interval(self, row: Row) -> Interval:
        """The mean of a row over seeds."""
        return seed_interval(row.accuracies, self.sequences)

    def solved(self, row: Row) -> int:
        """How many seeds of a row solve the task."""
        return sum(accuracy >= self.threshold for accuracy in row.accuracies)

    def solving(self, layers: int) -> tuple[Row, ...]:
        """The rows of this depth of which at least one seed solves the task."""
        return tuple(row for row in self.rows if row.layers == layers and self.solved(row))

    @property
    def forbids(self) -> tuple[str, ...]:
        """The sentences that cannot be said of this task."""
        return (NEEDS_TWO,) if self.solving(1) else ()

    @property
    def allows(self) -> tuple[str, ...]:
        """The sentences that this certificate bears out."""
        if self.solving(1):
            return ("A single layer solves this task.",)
        if self.solving(2):
            return (f"Two layers solved this task, and no single layer of these did in {self.steps} steps.",)
        return ()

    @property
    def verdict(self) -> str:
        """Forbidden and allowed in a sentence or two."""
        if rows := self.solving(1):
            best = max(rows, key=self.solved)
            seeds = f"{self.solved(best)} of {len(self.seeds)} seeds"
            return f"A single layer solves this task ({best.label}: {seeds}): {NEEDS_TWO!r} cannot be said of it."
        if self.solving(2):
            return (
                f"{self.allows[0]} That is no proof that two are needed: a single layer may exist that was not found."
            )
        return (
            f"None of these networks solves this task in {self.steps} steps: nothing can be said about the depth that "
            "it needs."
        )


def key(task: Task) -> str:
    """What a certificate and its runs are kept under: seeds can be added to it, everything else is part of it."""
    networks, train = [[n.name, dict(n.options)] for n in NETWORKS], dataclasses.asdict(training_of(task))
    return content.content_hash(
        task, "depth", SCHEMA, networks, dict(_shape(task)), train, SEQUENCES, torch.__version__, _code()
    )


def _shape(task: Task) -> Mapping[str, Any]:
    return {**MODEL, "positions": preset(task.preset).model["positions"]}


def training_of(task: Task) -> TrainConfig:
    """How the networks of a task are trained."""
    return dataclasses.replace(TRAIN, steps=max(TRAIN.steps, preset(task.preset).train["steps"]))


def _code() -> str:
    """The hash of the code that trains and measures: a certificate of other code is made again."""
    here = Path(__file__).parent
    folders = (here / "model", here / "training")
    files = [here / "rng.py", here / "metrics.py", *(file for folder in folders for file in folder.glob("*.py"))]
    return content.files_hash(sorted(files))


def plans(task: Task, seeds: Sequence[int]) -> list[Plan]:
    """Every training of a certificate, the longest first, so that no worker is left alone with one at the end."""

    def plan(network: Network, seed: int) -> Plan:
        shape = model_config({**_shape(task), **network.options}, d_vocab=len(task.vocabulary), n_ctx=task.n_ctx)
        return Plan(network.name, task, shape, training_of(task), seed)

    return [plan(network, seed) for network in reversed(NETWORKS) for seed in seeds]


def certify(task: Task, lab: Lab, seeds: int, progress: Progress) -> Depth:
    """Train the networks and measure each on held-out sequences of its own seed.

    Args:
        lab: give it the folder :func:`place`, so that what was begun is found again. seeds: at least 2, from 0 on.
    """
    if seeds < 2:
        raise WorkbenchError("a depth certificate needs an interval over seeds", expected="at least 2 seeds", got=seeds)
    chosen = tuple(range(seeds))
    asked = plans(task, chosen)
    reached: dict[tuple[str, int], float] = {}
    for plan, subject in zip(asked, lab.train(asked, progress), strict=True):
        reached[plan.name, plan.seed] = held_out_accuracy(subject)
    rows = tuple(
        Row(n.name, n.label, n.options["n_layers"], tuple(reached[n.name, seed] for seed in chosen)) for n in NETWORKS
    )
    return Depth(
        task.name,
        storage.plain(task.options),
        key(task),
        _shape(task)["positions"],
        chosen,
        training_of(task).steps,
        SEQUENCES,
        task.floor(),
        task.ceiling(),
        rows,
    )


def held_out_accuracy(subject: Subject) -> float:
    """Mean accuracy on ``SEQUENCES`` sequences of the test split."""
    if subject.task is None:
        raise WorkbenchError("a network's accuracy needs its task", got="a subject without one")
    batch = subject.task.sample(SEQUENCES, "test", stream(subject.seed, "depth", "test"))
    with torch.no_grad():
        return float(sequence_accuracy(subject.model(batch.tokens, batch.mask), batch).double().mean())


def place(task: Task) -> Path:
    """The folder in the cache where the runs of an unfinished certificate lie."""
    return cache.folder() / "depth-runs" / key(task)


def cached(task: Task) -> Depth | None:
    """The certificate that is kept of a task, of however many seeds; None where there is none."""
    return cache.read_as("depth", key(task), from_json)


def keep(depth: Depth) -> None:
    """Keep a certificate, in the place of any older one of the task."""
    cache.write("depth", depth.key, to_json(depth))


def to_json(depth: Depth) -> dict[str, Any]:
    """The certificate as plain data, with what follows from it."""
    rows = []
    for row in depth.rows:
        at = depth.interval(row)
        record = {**dataclasses.asdict(row), "accuracies": list(row.accuracies)}
        rows.append({**record, "value": at.value, "low": at.low, "high": at.high, "solved": depth.solved(row)})
    return {
        "schema": SCHEMA,
        "task": depth.task,
        "options": dict(depth.options),
        "key": depth.key,
        "positions": depth.positions,
        "seeds": list(depth.seeds),
        "steps": depth.steps,
        "sequences": depth.sequences,
        "floor": dataclasses.asdict(depth.floor),
        "ceiling": None if depth.ceiling is None else dataclasses.asdict(depth.ceiling),
        "threshold": depth.threshold,
        "networks": rows,
        "verdict": depth.verdict,
        "forbids": list(depth.forbids),
        "allows": list(depth.allows),
    }


def from_json(record: Mapping[str, Any]) -> Depth:
    """The certificate that :func:`to_json` wrote."""
    ceiling = record["ceiling"]
    rows = (Row(r["name"], r["label"], r["layers"], tuple(r["accuracies"])) for r in record["networks"])
    return Depth(
        **{name: record[name] for name in ("task", "options", "key", "positions", "steps", "sequences")},
        seeds=tuple(record["seeds"]),
        floor=Floor(**record["floor"]),
        ceiling=None if ceiling is None else Ceiling(**ceiling),
        rows=tuple(rows),
    )


def findings(depth: Depth) -> list[Finding]:
    """The certificate as a section of a report: what may be said, and what each kind of network reaches."""
    columns = (
        Column(key="network", label="network"),
        Column(key="accuracy", label="accuracy", digits=3, low="low", high="high"),
        Column(key="solved", label="seeds that solve it"),
        *(Column(key=f"seed_{seed}", label=f"seed {seed}", digits=3) for seed in depth.seeds),
        Column(key="floor", label="floor", digits=3, help=depth.floor.predictor),
        Column(
            key="ceiling", label="ceiling", digits=3, help="The best possible predictor; n/a where it is not known."
        ),
    )
    caption = (
        f"Accuracy on {depth.sequences} held-out sequences after {depth.steps} steps, mean over seeds with the 95 % "
        f"interval over seeds (t). Width {MODEL['d_model']}, {MODEL['n_heads']} heads, positions {depth.positions}. "
        f"A seed solves the task from {depth.threshold:.3f} on, which is {SOLVED:.0%} of the way from the floor "
        f"({depth.floor.predictor}) to the ceiling. It is no verdict about leaks."
    )
    rows = []
    for row in depth.rows:
        at = depth.interval(row)
        cells: dict[str, Any] = {"network": row.label, "accuracy": at.value, "low": at.low, "high": at.high}
        cells |= {"solved": f"{depth.solved(row)} of {len(depth.seeds)}", "floor": depth.floor.accuracy}
        cells |= {f"seed_{seed}": value for seed, value in zip(depth.seeds, row.accuracies, strict=True)}
        rows.append(cells | {"ceiling": None if depth.ceiling is None else depth.ceiling.accuracy})
    return [
        Notice(id="depth.verdict", title="", text=depth.verdict, section=SECTION),
        Table(
            id="depth.networks",
            title=f"What small networks reach on {depth.task.replace('_', ' ')}",
            caption=caption,
            section=SECTION,
            columns=columns,
            rows=tuple(rows),
        ),
    ]


def missing(command: str) -> Notice:
    """What a report says of a task without a certificate. ``command`` makes one."""
    text = f"Whether one layer is enough for this task has not been measured. To measure it: {command}"
    return Notice(id="depth.missing", title="No depth certificate", text=text, section=SECTION)
