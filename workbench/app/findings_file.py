"""``findings.json``: claims and tables of a report, with the run and the code that they came from.

``hash`` is over everything else in the file. The form is in ``workbench/schemas/findings.schema.json``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench import storage
from workbench.errors import CheckFailed, WorkbenchError
from workbench.findings import Claim, Finding
from workbench.findings_json import public, tables
from workbench.registry import ROOT

SCHEMA = 1
NAME = "findings.json"
FIELDS = {"schema", "run", "code", "asked", "failed", "claims", "tables", "hash"}
CODE = (".py", ".css", ".js")


def asked(only: Sequence[str], samples: int, threads: int = 1) -> dict[str, Any]:
    """What was asked of a report."""
    return {"only": list(only), "samples": samples, **({"threads": threads} if threads > 1 else {})}


def code_hash() -> str:
    """Of every file of the product that decides what a page holds: a report made by other code is made again."""
    digest = hashlib.sha256()
    for folder in ("workbench", "tasks", "analyses", "reports"):
        for path in sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in CODE):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def make_record(
    run_hash: str, findings: Sequence[Finding], request: Mapping[str, Any], failed: Sequence[str]
) -> dict[str, Any]:
    """The content of the file."""
    record = {
        "schema": SCHEMA,
        "run": run_hash,
        "code": code_hash(),
        "asked": dict(request),
        "failed": list(failed),
        "claims": [public(f) for f in findings if isinstance(f, Claim)],
        "tables": tables(findings),
    }
    return {**record, "hash": _hash(record)}


def read(folder: Path) -> dict[str, Any] | None:
    """The record in a run folder, None where there is none.

    Raises:
        CheckFailed: it cannot be read, or its content does not have the hash that it carries.
    """
    path = folder / NAME
    if not path.exists():
        return None
    again = f"Make it again with: workbench report {folder}"
    try:
        record = storage.read_json(path)
    except WorkbenchError as error:
        raise CheckFailed(error.problem, expected=error.expected, got=error.got, next_step=again) from None
    if not is_ours(record):
        raise CheckFailed(
            f"{path} was edited by hand or damaged",
            expected="the hash of its own content",
            got=record.get("hash") if isinstance(record, dict) else None,
            next_step=again,
        )
    if missing := FIELDS - set(record):
        raise CheckFailed(f"{path} is not whole", got=f"no {', no '.join(sorted(missing))}", next_step=again)
    return record


def is_ours(record: Any) -> bool:
    """Whether a JSON value carries the hash of its own content, as every ``findings.json`` does."""
    if not isinstance(record, dict) or "hash" not in record:
        return False
    try:
        return record["hash"] == _hash({key: value for key, value in record.items() if key != "hash"})
    except WorkbenchError:  # a number that JSON does not have
        return False


def verify(folder: Path, run_hash: str) -> None:
    """Raise if the file is there and is damaged or about another run."""
    record = read(folder)
    if record is not None and record["run"] != run_hash:
        raise CheckFailed(
            f"{folder / NAME} is about another run",
            expected=run_hash,
            got=record["run"],
            next_step=f"Make it again with: workbench report {folder}",
        )


def _hash(content: Mapping[str, Any]) -> str:
    return storage.sha256(storage.canonical_json(content))
