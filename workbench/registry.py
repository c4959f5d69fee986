"""Finds tasks, analyses and experiments by file: a file is its own registration.

Every ``NAME.py`` in ``tasks/`` is one task: ``NAME`` is its id, the first line of its docstring its title, and the
constant ``TASK`` the object. A file in ``analyses/`` is likewise an analysis (``ANALYSIS``) or, where it assigns
``EXPERIMENT`` at its top level, an experiment. Files with a leading underscore are helpers.
A user's own folders of the same form are *plugins*. Finding reads the files without importing them, so it is quick and
a broken file breaks nothing else; loading imports the one that is asked for.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workbench.config import override
from workbench.errors import WorkbenchError, unknown_name

if TYPE_CHECKING:
    from workbench.analysis import Analysis, Experiment
    from workbench.task import Task

Kind = Literal["tasks", "analyses", "experiments"]

ROOT = Path(__file__).resolve().parent.parent
"""The checkout: the folder that holds ``workbench/``, ``tasks/``, ``analyses/`` and ``reports/``."""


@dataclass(frozen=True)
class _Form:
    """What the files of a kind hold: the word for one, their folder, the constant, and its class (module, name)."""

    word: str
    folder: str
    constant: str
    module: str
    base: str


_FORMS: Mapping[Kind, _Form] = {
    "tasks": _Form("task", "tasks", "TASK", "workbench.task", "Task"),
    "analyses": _Form("analysis", "analyses", "ANALYSIS", "workbench.analysis", "Analysis"),
    "experiments": _Form("experiment", "analyses", "EXPERIMENT", "workbench.analysis", "Experiment"),
}
KINDS: tuple[Kind, ...] = tuple(_FORMS)
_FOLDERS = tuple(dict.fromkeys(form.folder for form in _FORMS.values()))


@dataclass(frozen=True)
class Entry:
    """A file found.

    Attributes:
        name: the file's name without ``.py``. path: the file. kind: "tasks", "analyses" or "experiments".
        title: the docstring's first line, "" where there is none. module: the name that it is imported under.
        problem: why the file cannot be read as Python, or "".
    """

    name: str
    path: Path
    title: str
    kind: Kind
    module: str
    problem: str = ""


def find(kind: Kind, plugins: Sequence[str | Path] = ()) -> dict[str, Entry]:
    """Everything of a kind, by name, in alphabetical order. Imports nothing.

    Args:
        kind: one of ``KINDS``. plugins: folders that hold ``tasks/`` and/or ``analyses/`` of a user's own.

    Raises:
        WorkbenchError: a plugin folder that is missing or holds neither, or two files of one name (both are named).
    """
    found: dict[str, Entry] = {}
    inside = _FORMS[kind].folder
    sources = [(ROOT, "")] + [(folder, _package_name(folder) + ".") for folder in _plugin_folders(plugins)]
    for folder, prefix in sources:
        for path in sorted((folder / inside).glob("[!_]*.py")):
            entry = _read(path, inside, f"{prefix}{inside}.{path.stem}")
            if path.stem in found:
                raise WorkbenchError(
                    f"two files define the {_FORMS[entry.kind].word} {path.stem!r}: {found[path.stem].path} and {path}",
                    next_step="Rename one of them.",
                )
            found[path.stem] = entry
    return {name: entry for name, entry in sorted(found.items()) if entry.kind == kind}


def load_task(name: str, options: Mapping[str, Any] | None = None, plugins: Sequence[str | Path] = ()) -> Task:
    """The task of this name, with some of its options replaced (values, or the texts of them).

    Raises:
        WorkbenchError: an unknown name or option (with the nearest ones), an impossible value, or a broken file.
    """
    task = load(_entry("tasks", name, plugins), plugins)
    return override(task, options, "task") if options else task


def load_analysis(name: str, plugins: Sequence[str | Path] = ()) -> Analysis:
    """The analysis of this name; unknown names and broken files raise as for :func:`load_task`."""
    return load(_entry("analyses", name, plugins), plugins)


def load_experiment(name: str, plugins: Sequence[str | Path] = ()) -> Experiment:
    """The experiment of this name; unknown names and broken files raise as for :func:`load_task`."""
    return load(_entry("experiments", name, plugins), plugins)


def load(entry: Entry, plugins: Sequence[str | Path] = ()) -> Any:
    """Import an entry's file and give the object that it defines.

    Raises:
        WorkbenchError: the file fails to import, its constant is missing or of another class, or it holds an analysis
            beside an experiment; names the file.
    """
    form = _FORMS[entry.kind]
    for folder in _plugin_folders(plugins):
        _package(folder)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(entry.module)
    except (Exception, SystemExit) as error:  # whatever a user's file raises becomes the reason why it is broken
        reason = f"{type(error).__name__}: {error}"
        raise WorkbenchError(f"{entry.path} cannot be imported", got=reason, next_step="Mend the file.") from error
    base = getattr(importlib.import_module(form.module), form.base)
    made = getattr(module, form.constant, None)
    if not isinstance(made, base):
        raise WorkbenchError(
            f"{entry.path} defines no {form.word}",
            expected=f"a constant {form.constant} holding an instance of {form.module}.{form.base}",
            got="no such constant" if made is None else f"{form.constant} of type {_type_name(made)}",
        )
    constants = [f.constant for f in _FORMS.values() if f.folder == form.folder and hasattr(module, f.constant)]
    if len(constants) > 1:
        raise WorkbenchError(
            f"{entry.path} holds two things", expected="one constant", got=" and ".join(constants),
            next_step="Give each a file of its own.",
        )  # fmt: skip
    return made


def check(plugins: Sequence[str | Path] = ()) -> list[tuple[Entry, str]]:
    """Import every task, analysis and experiment; the broken ones, each with its reason."""
    broken = []
    for kind in KINDS:
        for entry in find(kind, plugins).values():
            try:
                load(entry, plugins)
            except WorkbenchError as error:
                broken.append((entry, str(error)))
                continue
            if not entry.title:
                broken.append((entry, f"{entry.path} has no title: expected a docstring, its first line is the title"))
    return broken


def check_installation() -> None:
    """Raise if ``tasks``, ``analyses`` or ``reports`` would load from anywhere but beside ``workbench/``.

    The names are generic, so another installed package may shadow them. Looks for the folders without importing them.
    """
    for name in (*_FOLDERS, "reports"):
        spec = importlib.util.find_spec(name)
        places = [Path(p).resolve() for p in (spec.submodule_search_locations or [])] if spec is not None else []
        if places != [ROOT / name]:
            raise WorkbenchError(
                f"the package {name!r} would load from the wrong place",
                expected=str(ROOT / name),
                got=", ".join(map(str, places)) or "nothing of that name",
                next_step=f"Install the checkout with: pip install -e {ROOT}",
            )


def _entry(kind: Kind, name: str, plugins: Sequence[str | Path]) -> Entry:
    known = find(kind, plugins)
    if name in known:
        return known[name]
    if kind == "analyses" and name in find("experiments", plugins):
        raise WorkbenchError(f"{name!r} is an experiment: it looks at no run but trains its own models",
                             next_step=f"Run it with: workbench experiment {name}")  # fmt: skip
    raise unknown_name(_FORMS[kind].word, name, known)


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _read(path: Path, folder: str, module: str) -> Entry:
    """What a file says about itself, without importing it; a broken one counts as the first kind of its folder."""
    kinds = [kind for kind in KINDS if _FORMS[kind].folder == folder]
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError, OSError) as error:
        return Entry(path.stem, path, "", kinds[0], module, f"{type(error).__name__}: {error}")
    title = (ast.get_docstring(tree) or "").strip().partition("\n")[0].strip()
    assigned = {name for node in tree.body for name in _assigned(node)}
    kind = next((kind for kind in reversed(kinds) if _FORMS[kind].constant in assigned), kinds[0])
    return Entry(path.stem, path, title, kind, module)


def _assigned(node: ast.stmt) -> list[str]:
    """The names that a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _plugin_folders(plugins: Sequence[str | Path]) -> list[Path]:
    folders = list(dict.fromkeys(Path(p).expanduser().resolve() for p in plugins))
    for folder in folders:
        if not any((folder / name).is_dir() for name in _FOLDERS):
            raise WorkbenchError(
                f"the plugin folder {folder} cannot be used",
                expected="a folder that holds tasks/ or analyses/",
                got="neither" if folder.is_dir() else "no such folder",
            )
    return folders


def _package_name(folder: Path) -> str:
    return "_workbench_plugins_" + hashlib.sha256(str(folder).encode()).hexdigest()[:12]


def _package(folder: Path) -> None:
    """Make a plugin folder importable under a name of its own, so that it can collide with nothing.

    The files keep their own name as the last part, and may import their underscore helpers relatively.
    """
    name = _package_name(folder)
    if name not in sys.modules:
        package = types.ModuleType(name, f"The plugins in {folder}.")
        package.__path__ = [str(folder)]
        sys.modules[name] = package
