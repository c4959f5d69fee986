"""Finds tasks and analyses by file: a file is its own registration.

Every ``NAME.py`` in ``tasks/`` (or ``analyses/``) is one task (analysis): ``NAME`` is its id, the first line of its
docstring its title, and the constant ``TASK`` (``ANALYSIS``) the object. Files with a leading underscore are helpers.
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
    from workbench.analysis import Analysis
    from workbench.task import Task

Kind = Literal["tasks", "analyses"]

ROOT = Path(__file__).resolve().parent.parent
"""The checkout: the folder that holds ``workbench/``, ``tasks/``, ``analyses/`` and ``reports/``."""


@dataclass(frozen=True)
class _Form:
    """What the files of a kind hold: the word for one, the constant, and the class of the object (module, name)."""

    word: str
    constant: str
    module: str
    base: str


_FORMS: Mapping[Kind, _Form] = {
    "tasks": _Form("task", "TASK", "workbench.task", "Task"),
    "analyses": _Form("analysis", "ANALYSIS", "workbench.analysis", "Analysis"),
}


@dataclass(frozen=True)
class Entry:
    """A file found.

    Attributes:
        name: the file's name without ``.py``. path: the file. kind: "tasks" or "analyses".
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
        kind: "tasks" or "analyses". plugins: folders that hold ``tasks/`` and/or ``analyses/`` of a user's own.

    Raises:
        WorkbenchError: a plugin folder that is missing or holds neither, or two files of one name (both are named).
    """
    found: dict[str, Entry] = {}
    sources = [(ROOT, "")] + [(folder, _package_name(folder) + ".") for folder in _plugin_folders(plugins)]
    for folder, prefix in sources:
        for path in sorted((folder / kind).glob("[!_]*.py")):
            if path.stem in found:
                raise WorkbenchError(
                    f"two files define the {_FORMS[kind].word} {path.stem!r}: {found[path.stem].path} and {path}",
                    next_step="Rename one of them.",
                )
            title, problem = _read_title(path)
            found[path.stem] = Entry(path.stem, path, title, kind, f"{prefix}{kind}.{path.stem}", problem)
    return dict(sorted(found.items()))


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


def load(entry: Entry, plugins: Sequence[str | Path] = ()) -> Any:
    """Import an entry's file and give the object that it defines.

    Raises:
        WorkbenchError: the file fails to import, or its constant is missing or of another class; names the file.
    """
    form = _FORMS[entry.kind]
    for folder in _plugin_folders(plugins):
        _package(folder)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(entry.module)
    except Exception as error:  # whatever a user's file raises becomes the reason why it is broken
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
    return made


def check(plugins: Sequence[str | Path] = ()) -> list[tuple[Entry, str]]:
    """Import every task and analysis; the broken ones, each with its reason."""
    broken = []
    for kind in _FORMS:
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
    for name in (*_FORMS, "reports"):
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
    if name not in known:
        raise unknown_name(_FORMS[kind].word, name, known)
    return known[name]


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _read_title(path: Path) -> tuple[str, str]:
    """The docstring's first line, and why the file cannot be read (one of the two is empty)."""
    try:
        docstring = ast.get_docstring(ast.parse(path.read_bytes(), filename=str(path)))
    except (SyntaxError, ValueError, OSError) as error:
        return "", f"{type(error).__name__}: {error}"
    return (docstring or "").strip().partition("\n")[0].strip(), ""


def _plugin_folders(plugins: Sequence[str | Path]) -> list[Path]:
    folders = list(dict.fromkeys(Path(p).expanduser().resolve() for p in plugins))
    for folder in folders:
        if not any((folder / kind).is_dir() for kind in _FORMS):
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
