"""``workbench audit``: can a task be solved by a shortcut?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench import cache
from workbench.app import settings
from workbench.app.commands import _options
from workbench.content import files_hash, json_hash
from workbench.errors import WorkbenchError
from workbench.registry import ROOT, load_task

NAME = "audit"
HELP = "Fit shortcut probes on a task and say whether it can be solved without what it asks for (exit code 3)."
KEPT = "nothing was changed."
SHORT = "audit-requests"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task and its options."""
    _options.task(parser)
    _options.seed(parser)
    parser.add_argument("--json", action="store_true", help="machine output (workbench/schemas/audit.schema.json)")
    _options.plugins(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the probes and the verdict; 3 if the task leaks."""
    record = certificate(arguments.task, arguments.sets, arguments.seed, arguments.plugins)
    print(json.dumps(record, indent=1) if arguments.json else as_text(record))
    return 3 if record["verdict"] == "leaks" else 0


def certificate(task: str, sets: list[str], seed: int, plugins: list[str]) -> dict[str, Any]:
    """The audit as plain data. One that was asked for before in the same words is found without loading torch.

    Raises:
        WorkbenchError: an unknown task or option, or a task that cannot be audited (the error names file and field).
    """
    options = settings.parse_sets(sets)
    for group in ("model", "train"):
        if options[group]:
            raise WorkbenchError(
                "an audit looks at the task alone", expected="--set task.KEY=VALUE",
                got=f"an option of the group {group}",
            )  # fmt: skip
    request = json_hash([task, options["task"], seed, _code(plugins)])
    content = cache.read(SHORT, request)
    record = cache.read(NAME, content) if isinstance(content, str) else None
    if record is not None and not (isinstance(record, dict) and record.get("content") == content):
        record = None  # damaged: made again
    if record is None:
        from workbench import audit
        from workbench.app import stages

        loaded = load_task(task, options["task"], plugins)
        with stages.shown() as stage:
            record = audit.to_json(audit.cached(loaded, seed=seed, progress=stage))
        cache.write(SHORT, request, record["content"])
    return record


def _code(plugins: list[str]) -> str:
    """The hash of the engine and of every task's file: what the words of a request may stand for."""
    folders = [ROOT / "workbench", ROOT / "tasks", *(Path(p).expanduser() / "tasks" for p in plugins)]
    return files_hash(path for folder in folders for path in sorted(folder.rglob("*.py")))


def as_text(record: Mapping[str, Any]) -> str:
    """The certificate for a reader: a line a probe, the overlap of the splits, the verdict."""
    probes = record["probes"]
    options = " ".join(f"{key}={value}" for key, value in record["options"].items())
    width = max(len(p["name"]) for p in probes)
    lines = [f"{record['task']}  {options}".rstrip(), ""]
    twins = "  twins" if probes[0]["twins"] is not None else ""
    lines.append(f"{'probe':<{width}}  accuracy             leak share            {twins}")
    lines += [_line(p, width) for p in probes]
    lines += ["", f"chance {probes[0]['chance']:.1%} ({record['predictor']}), ceiling {record['ceiling']:.1%}"]
    for overlap in record["overlap"]:
        equal = {"exact": "word for word", "up_to_order": "in some order"}[overlap["kind"]]
        lines.append(
            f"test sequences that occur in training {equal}: {overlap['share']:.1%} "
            f"[{overlap['low']:.1%}, {overlap['high']:.1%}] ({overlap['different']:,} different ones of "
            f"{overlap['drawn']:,} looked through)"
        )
    leaking = [p["name"] for p in probes if p["leaks"]]
    verdict = {
        "clean": "clean",
        "leaks": f"leaks through {', '.join(leaking)}",
        "not_applicable": "not applicable: chance lies within .05 of the ceiling, nothing can be told apart",
    }[record["verdict"]]
    return "\n".join([*lines, "", f"verdict: {verdict}"])


def _line(p: Mapping[str, Any], width: int) -> str:
    accuracy = f"{p['accuracy']:.3f} [{p['low']:.3f}, {p['high']:.3f}]"
    share = "not applicable"
    if p["leak_share"] is not None:
        share = f"{p['leak_share']:5.2f} [{p['share_low']:5.2f}, {p['share_high']:5.2f}]"
    twins = "" if p["twins"] is None else f"  {p['twins']:5.3f}"
    said = "leaks: " + p["meaning"] if p["leaks"] else f"allowed: {p['allowed']}" if p["allowed"] else ""
    detail = f"({p['detail']})" if p["detail"] else ""
    return "  ".join([f"{p['name']:<{width}}", accuracy, f"{share:<20}{twins}", said, detail]).rstrip()
