"""The ablation view: the page's own model and what a reader does with it, from the JavaScript in ``live/``.

``live/core`` computes and runs in a worker; ``live/view`` draws and asks. Both are plain functions, put together here;
nothing is built and nothing is loaded from outside.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import shlex
from collections.abc import Mapping
from typing import Any

from reports.escaping import glyphs, script_json, script_source, text
from reports.parts import frame
from workbench.findings import Interactive

WAITING = "If this sentence stays, JavaScript is off, or the file is incomplete: then make the page again."


def core_source() -> str:
    """The model and what is asked of it, as declarations: ``Engine``, ``serve`` and what they stand on."""
    return _joined("core")


def library() -> str:
    """The whole view as ``const AblationView = {mount}``, ready to stand in a script element."""
    core = f"function core() {{\n{core_source()}return {{ serve, sha256, logSumExp }};\n}}\n"
    inside = f'"use strict";\n{core}const {{ sha256, logSumExp }} = core();\n{_joined("view")}'
    return script_source(f"const AblationView = (() => {{\n{inside}return {{ mount, mountAll }};\n}})();\n")


def script() -> str:
    """The library, and every view of the page mounted."""
    return f"{library()}AblationView.mountAll();\n"


def style() -> str:
    """The view's own rules; colours, sizes and spaces are the page's variables."""
    return importlib.resources.files("reports").joinpath("live", "live.css").read_text(encoding="utf-8")


def page_data(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The payload as the view takes it: with every token in visible glyphs."""
    vocabulary = payload["vocabulary"]
    return {**payload, "vocabulary": {**vocabulary, "shown": [glyphs(token) for token in vocabulary["tokens"]]}}


def has_view(finding: Interactive) -> bool:
    """Whether the page can run the model: it carries the weights, or somebody serves it."""
    return finding.payload["backend"] == "server" or finding.payload["weights"] is not None


def is_served(finding: Interactive) -> bool:
    """Whether the view asks whoever serves the page."""
    return finding.payload["backend"] == "server"


def figure(finding: Interactive, anchor: str) -> str:
    """Where the script mounts the view, and its data with their hash; or why there is no view, and what to do."""
    if not has_view(finding):
        return frame(finding, anchor, look="full", tool_names=(), body=_too_large(finding.payload))
    data = script_json(page_data(finding.payload))
    digest = hashlib.sha256(data.encode("ascii")).hexdigest()
    body = (
        f'<div class="live-view" data-anchor="{anchor}"><p class="soft">{WAITING}</p></div>'
        f'<script type="application/json" class="live-data" data-sha256="{digest}">{data}</script>'
    )
    return frame(finding, anchor, look="full", tool_names=(), body=body)


def _too_large(payload: Mapping[str, Any]) -> str:
    count, most = (f"{payload[key]:,}".replace(",", " ") for key in ("parameters", "most_parameters"))
    run = payload["run"]
    words = ["workbench", "ablate", run["folder"] if run is not None else "RUN"]
    words += [word for folder in (run["plugins"] if run is not None else ()) for word in ("--plugins", folder)]
    return (
        f'<p class="soft">The model has {count} parameters, and a page carries at most {most}. '
        "The same view runs on this machine with:</p>"
        f'<div class="rerun"><pre tabindex="0"><code>{text(shlex.join(words))}</code></pre>'
        '<button type="button" data-tool="copy">copy</button></div>'
    )


def _joined(folder: str) -> str:
    files = sorted(
        (f for f in importlib.resources.files("reports").joinpath("live", folder).iterdir() if f.name.endswith(".js")),
        key=lambda f: f.name,
    )
    return "".join(f.read_text(encoding="utf-8") for f in files)
