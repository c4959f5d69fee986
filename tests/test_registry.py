"""A file is its own registration; a broken one breaks nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workbench import registry
from workbench.errors import WorkbenchError
from workbench.registry import check, check_installation, find, load_analysis, load_experiment, load_task

TASK = '''"""A coin: heads or tails."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.task import Floor, Task, Vocabulary

from ._words import WORDS


@dataclass(frozen=True)
class Coin(Task):
    n_ctx: int = 4

    @property
    def vocabulary(self):
        return Vocabulary(WORDS)

    def sample(self, n, split, stream):
        raise NotImplementedError

    def floor(self):
        return Floor(0.5, "a guess")


TASK = Coin()
'''


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A user's folder with one sound task that uses a helper, and empty ``analyses``."""
    for kind in ("tasks", "analyses"):
        (tmp_path / kind).mkdir()
    (tmp_path / "tasks" / "coin.py").write_text(TASK)
    (tmp_path / "tasks" / "_words.py").write_text('WORDS = ("heads", "tails")\n')
    return tmp_path


def write(plugins: Path, name: str, text: str, kind: str = "tasks") -> Path:
    path = plugins / kind / f"{name}.py"
    path.write_text(text)
    return path


def test_everything_in_the_product_loads_and_has_a_title() -> None:
    assert check() == []
    assert "repeated_tokens" in find("tasks")
    assert "induction" in find("analyses")
    assert "winograd_ladder" in find("experiments")
    for folder, kinds in (("tasks", ["tasks"]), ("analyses", ["analyses", "experiments"])):
        assert sorted(e.path.stem for kind in kinds for e in find(kind).values()) == sorted(
            p.stem for p in (registry.ROOT / folder).glob("*.py") if not p.stem.startswith("_")
        )


def test_titles_are_read_without_importing(plugins: Path) -> None:
    write(plugins, "bomb", '"""A bomb: goes off when imported.\n\nMore."""\nraise SystemExit("imported")\n')
    found = find("tasks", [plugins])
    assert found["bomb"].title == "A bomb: goes off when imported."
    assert found["coin"].title == "A coin: heads or tails."
    assert "_words" not in found
    assert list(found) == sorted(found)


def test_a_plugin_is_loaded_under_a_name_of_its_own(plugins: Path) -> None:
    task = load_task("coin", {"n_ctx": "9"}, [plugins])
    assert (task.name, task.options, task.vocabulary.tokens) == ("coin", {"n_ctx": 9}, ("heads", "tails"))
    assert "tasks.coin" not in sys.modules
    assert "coin" not in find("tasks")


def test_two_plugin_folders_do_not_mix(plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "tasks").mkdir()
    write(other, "token", TASK)
    write(other, "_words", 'WORDS = ("left", "right")\n')
    both = [plugins, other]
    assert load_task("coin", plugins=both).vocabulary.tokens == ("heads", "tails")
    assert load_task("token", plugins=both).vocabulary.tokens == ("left", "right")


def test_names_must_not_collide(plugins: Path) -> None:
    path = write(plugins, "repeated_tokens", TASK)
    with pytest.raises(WorkbenchError, match="two files define the task 'repeated_tokens'") as error:
        find("tasks", [plugins])
    assert str(path) in str(error.value)
    assert str(registry.ROOT / "tasks" / "repeated_tokens.py") in str(error.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"""T."""\ndef (', "SyntaxError"),
        ('"""T."""\nimport nothing_of_that_name\n', "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ('"""T."""\n1 / 0\n', "ZeroDivisionError"),
        ('"""T."""\nimport sys\nsys.exit(7)\n', "SystemExit: 7"),
        ('"""T."""\n', "expected a constant TASK holding an instance of workbench.task.Task, got no such constant"),
        ('"""T."""\nTASK = 3\n', "got TASK of type builtins.int"),
        (TASK.partition("\n")[2], "has no title"),
    ],
)
def test_a_broken_file_has_a_reason_and_breaks_nothing_else(plugins: Path, text: str, reason: str) -> None:
    path = write(plugins, "broken", text)
    assert load_task("coin", plugins=[plugins]).name == "coin"
    [(entry, why)] = check([plugins])
    assert (entry.name, entry.path) == ("broken", path)
    assert reason in why
    assert str(path) in why


def test_an_analysis_of_the_wrong_kind(plugins: Path) -> None:
    write(plugins, "odd", '"""Odd."""\nfrom workbench.analysis import Analysis\nANALYSIS = Analysis\n', "analyses")
    with pytest.raises(WorkbenchError, match=r"odd\.py defines no analysis: .*workbench\.analysis\.Analysis"):
        load_analysis("odd", [plugins])


EXPERIMENT = '''"""A trial."""
from workbench.analysis import Experiment


class Trial(Experiment):
    def run(self, budget, lab, progress):
        return []


EXPERIMENT: Experiment = Trial()
'''


def test_an_experiment_is_known_by_its_constant(plugins: Path) -> None:
    write(plugins, "trial", EXPERIMENT, "analyses")
    assert find("experiments", [plugins])["trial"].title == "A trial."
    assert "trial" not in find("analyses", [plugins])
    assert load_experiment("trial", [plugins]).run(None, None, None) == []
    assert check([plugins]) == []
    with pytest.raises(WorkbenchError, match=r"'trial' is an experiment.*Run it with: workbench experiment trial"):
        load_analysis("trial", [plugins])
    with pytest.raises(WorkbenchError, match=r"unknown experiment 'trail'\. Did you mean trial"):
        load_experiment("trail", [plugins])


def test_one_file_holds_one_thing(plugins: Path) -> None:
    path = write(plugins, "both", EXPERIMENT + "ANALYSIS = EXPERIMENT\n", "analyses")
    [(entry, why)] = check([plugins])
    assert (entry.name, entry.kind) == ("both", "experiments")
    assert f"{path} holds two things: expected one constant, got ANALYSIS and EXPERIMENT" in why


def test_an_experiment_of_the_wrong_kind(plugins: Path) -> None:
    write(plugins, "odd", '"""Odd."""\nEXPERIMENT = 3\n', "analyses")
    with pytest.raises(WorkbenchError, match=r"odd\.py defines no experiment: .*workbench\.analysis\.Experiment"):
        load_experiment("odd", [plugins])


def test_unknown_names_have_near_ones(plugins: Path) -> None:
    with pytest.raises(WorkbenchError, match=r"unknown task 'repeated_token'\. Did you mean repeated_tokens"):
        load_task("repeated_token")
    with pytest.raises(WorkbenchError, match="unknown analysis 'nothing'"):
        load_analysis("nothing", [plugins])
    with pytest.raises(WorkbenchError, match=r"unknown task option 'n_cxt'\. Did you mean n_ctx"):
        load_task("coin", {"n_cxt": 3}, [plugins])


@pytest.mark.parametrize(("name", "got"), [("", "neither"), ("missing", "no such folder")])
def test_a_plugin_folder_without_plugins(tmp_path: Path, name: str, got: str) -> None:
    with pytest.raises(WorkbenchError, match=f"expected a folder that holds tasks/ or analyses/, got {got}"):
        find("tasks", [tmp_path / name])


def test_a_shadowed_installation_names_both_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_installation()
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "reports", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WorkbenchError, match="'reports' would load from the wrong place") as error:
        check_installation()
    assert str(registry.ROOT / "reports") in str(error.value)
    assert str(tmp_path / "reports") in str(error.value)
