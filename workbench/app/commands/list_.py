"""``workbench list``: what there is, read without importing."""

from __future__ import annotations

import argparse
import json
from typing import Any

from workbench.app.commands import _options
from workbench.config import PRESETS
from workbench.registry import KINDS, check, find

NAME = "list"
HELP = "The tasks, analyses, experiments and presets, with their titles."
KEPT = "nothing was changed."
SCHEMA = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--json``, ``--check``, ``--plugins``."""
    parser.add_argument("--json", action="store_true", help="machine output (workbench/schemas/list.schema.json)")
    parser.add_argument("--check", action="store_true", help="import each one and name the broken ones (exit code 3)")
    _options.plugins(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the listing; 3 if ``--check`` found a broken file."""
    listing = collect(arguments.plugins, checked=arguments.check)
    print(json.dumps(listing, indent=1) if arguments.json else as_text(listing))
    return 3 if listing.get("broken") else 0


def collect(plugins: list[str], *, checked: bool) -> dict[str, Any]:
    """The listing as plain data; with ``checked`` also ``broken``: name, kind, file and reason."""
    listing: dict[str, Any] = {"schema": SCHEMA}
    for kind in KINDS:
        entries = find(kind, plugins).values()
        listing[kind] = [{"name": e.name, "title": e.title or e.problem, "file": str(e.path)} for e in entries]
    listing["presets"] = [{"name": name, "title": preset.about} for name, preset in PRESETS.items()]
    if checked:
        listing["broken"] = [
            {"name": e.name, "kind": e.kind, "file": str(e.path), "reason": reason} for e, reason in check(plugins)
        ]
    return listing


def as_text(listing: dict[str, Any]) -> str:
    """The listing for a reader."""
    lines = []
    for kind in (*KINDS, "presets"):
        width = max((len(row["name"]) for row in listing[kind]), default=0)
        lines += [kind, *(f"  {row['name']:<{width}}  {row['title']}".rstrip() for row in listing[kind]), ""]
    if "broken" in listing:
        lines += ["broken", *(f"  {row['name']}  {row['reason']}" for row in listing["broken"])]
        if not listing["broken"]:
            lines[-1] = "every task, analysis and experiment loads"
    return "\n".join(lines).strip()
