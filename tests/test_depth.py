"""The depth certificate: what it forbids and allows, that it is kept by content, and the command."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jsonschema
import pytest

from tests.tiny_task import Successor
from workbench import cache, depth, training
from workbench.analysis import Plan, Progress
from workbench.app.lab import ProcessLab
from workbench.app.main import main
from workbench.app.pages import depth_command, depth_findings
from workbench.config import TrainConfig
from workbench.depth import NETWORKS, Depth, Row, certify, from_json, to_json
from workbench.errors import WorkbenchError
from workbench.findings import Notice, Table
from workbench.registry import ROOT, load_task
from workbench.task import Ceiling, Floor, Task

EXAMPLES = str(ROOT / "examples")
SCHEMA = json.loads((ROOT / "workbench" / "schemas" / "depth.schema.json").read_text())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of tiny networks in this process."""
    monkeypatch.setattr(depth, "training_of", lambda task: TrainConfig(steps=2, batch_size=4))
    monkeypatch.setattr(depth, "MODEL", {"n_heads": 1, "d_model": 8})
    monkeypatch.setattr(depth, "SEQUENCES", 16)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)


PERFECT = Ceiling(0.0, 1.0)


def made(one: Sequence[float], two: Sequence[float], ceiling: Ceiling | None = PERFECT) -> Depth:
    """A certificate of a task with floor .5, of one kind of network of each depth."""
    rows = (Row("one-mlp", "one layer, with MLP", 1, tuple(one)), Row("two-mlp", "two layers", 2, tuple(two)))
    seeds = tuple(range(len(one)))
    return Depth("coin", {"n": 3}, "0" * 64, "rotary", seeds, 2000, 1000, Floor(0.5, "a guess"), ceiling, rows)


class Tabled:
    """A lab that trains nothing and gives each plan back; ``held_out_accuracy`` then looks the plan up."""

    folder = Path("nowhere")

    def __init__(self) -> None:
        self.asked: list[Plan] = []

    def task(self, name: str, options: Mapping[str, Any] = MappingProxyType({})) -> Task:
        raise NotImplementedError

    def train(self, plans: Sequence[Plan], progress: Progress) -> list[Any]:
        self.asked += plans
        return list(plans)


def test_a_network_solves_from_95_percent_of_the_way() -> None:
    at = made([0.974, 0.975, 1.0], [1.0, 1.0, 1.0])
    assert at.threshold == pytest.approx(0.975)
    assert [at.solved(row) for row in at.rows] == [2, 3]
    assert made([0.5, 0.5], [0.5, 0.5], Ceiling(0.2, 0.9)).threshold == pytest.approx(0.5 + 0.95 * 0.4)
    assert made([0.5, 0.5], [0.5, 0.5], None).threshold == pytest.approx(0.975)


def test_one_solving_single_layer_forbids_the_sentence() -> None:
    at = made([0.6, 0.6, 0.99], [1.0, 1.0, 1.0])
    assert at.forbids == ("this needs two hops",)
    assert at.allows == ("A single layer solves this task.",)
    assert at.verdict == (
        "A single layer solves this task (one layer, with MLP: 1 of 3 seeds): 'this needs two hops' cannot be said of "
        "it."
    )


def test_where_only_two_layers_solve_it_that_is_all_that_may_be_said() -> None:
    at = made([0.6, 0.7, 0.97], [0.5, 1.0, 0.9])
    assert at.forbids == ()
    assert at.allows == ("Two layers solved this task, and no single layer of these did in 2000 steps.",)
    assert "no proof" in at.verdict


def test_where_nothing_solves_it_nothing_is_said() -> None:
    at = made([0.6, 0.7], [0.5, 0.9])
    assert (at.forbids, at.allows) == ((), ())
    assert "nothing can be said" in at.verdict


def test_the_interval_is_over_seeds() -> None:
    at = made([0.9, 0.92, 0.94], [1.0, 1.0, 1.0])
    first, second = (at.interval(row) for row in at.rows)
    assert (first.value, first.low, first.high) == pytest.approx((0.92, 0.870317, 0.969683), abs=1e-5)
    assert (second.low, second.high) == (pytest.approx(0.025 ** (1 / 1000)), 1.0)
    assert first.samples == "seeds"


@pytest.mark.parametrize("ceiling", [None, Ceiling(0.1, 0.9)])
def test_json_round_trip_and_schema(ceiling: Ceiling | None) -> None:
    at = made([0.6, 0.7], [0.5, 0.9], ceiling)
    record = json.loads(json.dumps(to_json(at), allow_nan=False))
    jsonschema.validate(record, SCHEMA)
    assert from_json(record) == at
    assert record["networks"][0]["solved"] == 0


def test_every_network_is_trained_from_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = {(n.name, seed): 0.1 * i + 0.01 * seed for i, n in enumerate(NETWORKS) for seed in range(3)}
    monkeypatch.setattr(depth, "held_out_accuracy", lambda plan: reached[plan.name, plan.seed])
    lab, task = Tabled(), Successor()
    at = certify(task, lab, 3, lambda stage: None)
    assert {row.name: row.accuracies for row in at.rows} == {
        n.name: tuple(reached[n.name, seed] for seed in range(3)) for n in NETWORKS
    }
    assert {(p.name, p.seed) for p in lab.asked} == set(reached)
    shapes = {p.name: (p.model.n_layers, p.model.d_mlp > 0, p.model.norm) for p in lab.asked}
    assert shapes == {
        "one-attention": (1, False, "pre"),
        "one-attention-no-norm": (1, False, "none"),
        "one-mlp": (1, True, "pre"),
        "two-attention": (2, False, "pre"),
        "two-mlp": (2, True, "pre"),
    }
    assert all(p.train == TrainConfig(steps=2000) and p.task is task for p in lab.asked)
    assert [row.layers for row in at.rows] == [1, 1, 1, 2, 2]
    with pytest.raises(WorkbenchError, match="expected at least 2 seeds, got 1"):
        certify(task, lab, 1, lambda stage: None)


def test_positions_are_the_presets_and_so_are_the_steps_where_it_takes_more() -> None:
    asked = {task: depth.plans(load_task(task), [0]) for task in ("repeated_tokens", "identifiers", "two_hops")}
    found = {task: {(p.model.positions, p.train.steps) for p in plans} for task, plans in asked.items()}
    assert found == {
        "repeated_tokens": {("rotary", 2000)},
        "identifiers": {("alibi", 2000)},
        "two_hops": {("none", 4000)},
    }


def test_accuracy_is_on_held_out_sequences(tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "training_of", lambda task: TrainConfig(steps=150, batch_size=32, lr=1e-2))
    task = Successor()
    [plan] = [p for p in depth.plans(task, [4]) if p.name == "one-attention"]
    [subject] = ProcessLab(tmp_path, workers=1).train([plan], lambda stage: None)
    splits: list[str] = []
    sample = Successor.sample
    monkeypatch.setattr(
        Successor, "sample", lambda self, n, split, s: (splits.append(split), sample(self, n, split, s))[1]
    )
    assert depth.held_out_accuracy(subject) > 0.9  # trained: says the successor, where a guess is right 1/6 of the time
    assert splits == ["test"]


def test_it_is_kept_by_the_content_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Successor()
    at = dataclasses.replace(made([0.6, 0.7], [1.0, 1.0]), key=depth.key(task))
    assert depth.cached(task) is None
    depth.keep(at)
    assert depth.cached(task) == at
    assert depth.cached(Successor(padded=True)) is None
    with monkeypatch.context() as other:
        other.setattr(depth, "_code", lambda: "other code")
        assert depth.cached(task) is None
    cache.write("depth", depth.key(task), {"schema": 1})
    assert depth.cached(task) is None
    monkeypatch.setattr(depth, "training_of", lambda task: TrainConfig(steps=7))
    assert depth.cached(task) is None


def test_what_a_report_shows() -> None:
    task = load_task("counting", plugins=[EXAMPLES])
    [notice] = depth_findings(task, [EXAMPLES])
    assert isinstance(notice, Notice)
    assert notice.text.endswith(f"workbench depth counting --plugins {EXAMPLES}")
    at = dataclasses.replace(made([0.6, 0.99], [1.0, 1.0]), key=depth.key(task))
    depth.keep(at)
    verdict, table = depth_findings(task, [EXAMPLES])
    assert isinstance(verdict, Notice)
    assert isinstance(table, Table)
    assert verdict.text == at.verdict
    assert [row["solved"] for row in table.rows] == ["1 of 2", "2 of 2"]
    assert [table.rows[0][key] for key in ("seed_0", "seed_1", "floor", "ceiling")] == [0.6, 0.99, 0.5, 1.0]
    assert {c.key for c in table.columns} | {"low", "high"} == set(table.rows[0])


def test_the_command_that_a_report_names_asks_for_the_same_task() -> None:
    task = load_task("repeated_tokens", {"n_ctx": 50, "period": "fixed"})
    assert depth_command(task) == "workbench depth repeated_tokens --set task.n_ctx=50 --set task.period=fixed"


def test_the_command(quick: None, own_cache: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["depth", "counting", "--plugins", EXAMPLES, "--seeds", "2"]
    assert main([*argv, "--json"]) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    jsonschema.validate(record, SCHEMA)
    assert (record["task"], record["seeds"], record["steps"], record["sequences"]) == ("counting", [0, 1], 2, 16)
    assert len(record["networks"]) == 5
    assert "(10 of 10)" in printed.err
    assert cache.read("depth", record["key"]) == record
    assert list((own_cache / "depth-runs").iterdir()) == []

    with monkeypatch.context() as patch:
        patch.setattr(training, "train", None)  # nothing is trained again
        assert main(argv) == 0
    text = capsys.readouterr().out
    assert record["verdict"] in text
    assert all(row["label"] in text for row in record["networks"])
    assert main([*argv[:-1], "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["countin"], "unknown task 'countin'. Did you mean counting?"),
        (["counting", "--set", "model.d_model=8"], "--set model.d_model cannot be used here: expected options of the"),
        (["counting", "--set", "task.n_cxt=8"], "unknown task option 'n_cxt'"),
        (["counting", "--seeds", "1"], "expected at least 2 seeds, got 1"),
    ],
)
def test_what_the_command_refuses(words: list[str], says: str, capsys: Any, own_cache: Path) -> None:
    assert main(["depth", *words, "--plugins", EXAMPLES]) == 1
    assert says in capsys.readouterr().err
    assert not own_cache.exists()
