"""A folder of results that are dear to compute and cheap to keep, one JSON file each, named by what it depends on.

``$WORKBENCH_CACHE``, else ``attention-workbench`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. Removing it costs time and
nothing else. Light to import: a cached result is found without torch.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from workbench.errors import WorkbenchError

T = TypeVar("T")


def folder() -> Path:
    """Where the cache lies."""
    own = os.environ.get("WORKBENCH_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attention-workbench"


def read(kind: str, key: str) -> Any | None:
    """The value kept under a key, None where there is none or its file is damaged."""
    try:
        return json.loads(_path(kind, key).read_bytes())
    except (OSError, ValueError):
        return None


def read_as(kind: str, key: str, make: Callable[[Any], T]) -> T | None:
    """What ``make`` reads from the value kept under a key; None where there is none, or none that it can read."""
    record = read(kind, key)
    try:
        return None if record is None else make(record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, WorkbenchError):
        return None


def write(kind: str, key: str, value: Any) -> None:
    """Keep a plain value. Where the folder cannot be written nothing is kept, and that is no error."""
    path = _path(kind, key)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(value, allow_nan=False), encoding="utf-8")
        os.replace(temporary, path)


def _path(kind: str, key: str) -> Path:
    return folder() / kind / f"{key}.json"
