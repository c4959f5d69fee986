"""The house rules: who imports whom, what importing changes (nothing), and what the README says about the files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from workbench.app import main as main_module
from workbench.app.main import main
from workbench.registry import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGES = ("workbench", "tasks", "analyses", "reports")

# Runs in a fresh process: what is loaded there was loaded by the product. For each package in turn: import all of it,
# note which packages came along, and drop what is not the engine.
IMPORTS = """
import importlib, json, pathlib, sys
import matplotlib, torch, transformer_lens, warnings

def state():
    return [torch.get_num_threads(), str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.initial_seed(),
            sorted((k, str(v)) for k, v in matplotlib.rcParams.items()), len(warnings.filters)]

def modules(folder):
    files = sorted(pathlib.Path(folder).rglob("*.py"))
    return [".".join(p.with_suffix("").parts).removesuffix(".__init__") for p in files]

before, came_along = state(), {}
for part in ("workbench", "tasks", "analyses", "reports"):
    for name in modules(part):
        if not name.startswith("workbench.app") and name != "workbench.__main__":
            importlib.import_module(name)
    loaded = {".".join(m.split(".")[:2]) if m.startswith("workbench.app") else m.split(".")[0] for m in sys.modules}
    came_along[part] = sorted(loaded & {"tasks", "analyses", "reports", "workbench.app"} - {part})
    for m in [m for m in sys.modules if m.split(".")[0] in ("tasks", "analyses", "reports")]:
        del sys.modules[m]
print(json.dumps({"came_along": came_along, "changed": before != state()}))
"""

# What --help and list load, and how long the processor works for them.
QUICK = """
import sys, time
from workbench.app.main import main
main(["--help"]); main(["list"])
heavy = sorted({m.split(".")[0] for m in sys.modules} & {"torch", "numpy", "pandas", "matplotlib", "transformer_lens"})
print("heavy:", heavy, "seconds:", time.process_time())
"""


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_keep_to_the_rules_and_change_nothing() -> None:
    seen = json.loads(fresh(IMPORTS).splitlines()[-1])
    assert seen["came_along"] == {"workbench": [], "tasks": [], "analyses": [], "reports": []}
    assert not seen["changed"]


def test_help_and_list_are_quick() -> None:
    last = fresh(QUICK).splitlines()[-1]
    assert last.startswith("heavy: [] seconds: ")
    assert float(last.rpartition(" ")[2]) < 0.5


KINDS = (".py", ".json", ".js", ".css", ".ipynb")


def source_files() -> set[str]:
    """Every source file of the product, relative to the checkout; tests are one entry of the map."""
    found = {ROOT / name for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run")}
    for folder in (*PACKAGES, "examples", "tests"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix in KINDS:
                found.add(path)
    return {str(path.relative_to(ROOT)) for path in found}


def mapped() -> list[str]:
    section = README.partition("## Every file")[2].partition("\n## ")[0]
    return re.findall(r"^- `([^`]+)`: \S", section, re.MULTILINE)


def test_the_map_names_every_source_file_and_nothing_else() -> None:
    entries = mapped()
    assert len(entries) == len(set(entries))
    covered = {entry: {str(p.relative_to(ROOT)) for p in ROOT.glob(entry)} for entry in entries}
    named = {file for files in covered.values() for file in files}
    assert {
        "not in the map": source_files() - named,
        "no such file": {e for e, files in covered.items() if not files},
    } == {
        "not in the map": set(),
        "no such file": set(),
    }
    assert named <= source_files()


def test_the_packages_of_the_project_are_the_folders() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert set(settings["tool"]["setuptools"]["packages"]) == folders


@pytest.mark.parametrize("command", main_module.commands(), ids=lambda c: c.NAME)
def test_the_readme_has_every_option_of_every_command(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    name = command.NAME
    assert main([name, "--help"]) == 0
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    section = README.partition("## The command")[2].partition("\n## ")[0]
    [usage] = re.findall(rf"^workbench {name}\b(?:.|\n )*", section, re.MULTILINE)
    assert set(re.findall(r"--[a-z-]+", usage)) == options


RECIPES = re.findall(r"<!-- (examples/\S+) -->\n```python\n(.*?)```", README, re.DOTALL)


def test_there_are_both_recipes() -> None:
    assert [Path(file).parent.name for file, _ in RECIPES] == ["tasks", "analyses"]


@pytest.mark.parametrize(("file", "code"), RECIPES, ids=[file for file, _ in RECIPES])
def test_the_recipe_in_the_readme_is_the_example(file: str, code: str) -> None:
    assert code == (ROOT / file).read_text(encoding="utf-8")


def test_the_recipes_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file, code in RECIPES:
        place = tmp_path / "mine" / Path(file).relative_to("examples")
        place.parent.mkdir(parents=True)
        place.write_text(code, encoding="utf-8")
    plugins, run = ["--plugins", str(tmp_path / "mine")], str(tmp_path / "run")
    assert main(["list", "--check", *plugins]) == 0
    steps = ["--set", "train.steps=2", "--set", "model.d_model=16"]
    assert main(["train", "counting", "--out", run, *steps, *plugins]) == 0
    assert main(["report", run, "--only", "distance", "--samples", "16", *plugins]) == 0
    assert "looks more than one token back" in capsys.readouterr().out
