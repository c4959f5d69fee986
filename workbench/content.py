"""What a task is made of, as one hash: two tasks of one hash draw the same sequences from the same streams.

Light to import: a cached result is found without torch.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.task import Task


def content_hash(task: Task, *parts: object) -> str:
    """The hash of a task's name, options and source text, and of whatever else a cached result depends on.

    The source is that of every file that defines its class or a base of it (short of ``Task`` itself), and of the
    underscore helpers that those files import from their own folder.

    Args:
        parts: further plain values, for instance the version of the code whose result is cached.

    Raises:
        TypeError: an option or a part that JSON cannot hold.
    """
    return json_hash([task.name, task.options, files_hash(sources(task)), *parts])


def sources(task: Task) -> list[Path]:
    """The files that decide what a task draws, in a fixed order: those of its classes, each with its helpers."""
    from workbench.task import Task as Base

    found: dict[Path, None] = {}
    for kind in type(task).__mro__:
        if kind is Base or not issubclass(kind, Base):
            continue
        path = inspect.getsourcefile(sys.modules[kind.__module__])
        if path is not None:
            found |= dict.fromkeys(with_helpers(Path(path)))
    return list(found)


def with_helpers(path: Path) -> list[Path]:
    """A file, the underscore helpers beside it that it imports, and theirs; found by reading, nothing is imported."""
    found: dict[Path, None] = {}
    _follow(path, found)
    return list(found)


def files_hash(paths: Iterable[Path]) -> str:
    """One hash of the names and contents of files, in the order given."""
    return json_hash([(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths])


def json_hash(value: object) -> str:
    """The SHA-256 of a plain value's JSON (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _follow(path: Path, found: dict[Path, None]) -> None:
    if path in found or not path.is_file():
        return
    found[path] = None
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        for name in (module.rpartition(".")[2] for module in modules):
            if name.startswith("_") and not name.startswith("__"):
                _follow(path.with_name(f"{name}.py"), found)
