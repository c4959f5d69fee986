"""The frame that every figure and table of a page shares: title, tools, drawing, remarks, caption, data as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from reports.drawing import Drawing
from reports.escaping import script_json, text
from workbench.findings import Finding

_PLAIN_ID = re.compile(r"[A-Za-z][\w.:-]*\Z")


@dataclass
class Names:
    """Hands out ids, each once on a page, as near to the wanted one as HTML and CSS allow."""

    taken: set[str] = field(default_factory=lambda: {"main", "light", "said"})  # the page's own

    def take(self, wanted: str) -> str:
        """The wanted id, made of plain characters, with a number behind it if it is taken."""
        base = wanted if _PLAIN_ID.match(wanted) else "x-" + re.sub(r"[^\w.:-]", "-", wanted, flags=re.ASCII)
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}-{count}"
        self.taken.add(name)
        return name


def csv_script(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as CSV text in a data script, from which the page's CSV button takes it."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(header)
    writer.writerows([_cell(cell) for cell in row] for row in rows)
    return f'<script type="application/json" class="csv">{script_json(buffer.getvalue())}</script>'


def _cell(cell: Any) -> Any:
    """Seven significant digits of a number: what float32 holds, at half the length."""
    if cell is None or cell != cell:
        return ""
    return f"{cell:.7g}" if isinstance(cell, float) else cell


def tools(*names: str) -> str:
    """Buttons that take the figure out."""
    buttons = "".join(f'<button type="button" data-tool="{n.lower()}">{n}</button>' for n in names)
    return f'<span class="tools">{buttons}</span>'


def frame(
    finding: Finding,
    anchor: str,
    *,
    look: str,
    tool_names: Sequence[str],
    body: str,
    notes: Sequence[str] = (),
    legend: str = "",
) -> str:
    """A ``<figure>`` with the finding's title and caption around a body that is already HTML."""
    remarks = "".join(f'<p class="mark">{text(n)}</p>' for n in notes)
    caption = "".join(f"<p>{text(line)}</p>" for line in (finding.caption, legend) if line)
    below = f"<figcaption>{remarks}{caption}</figcaption>" if remarks or caption else ""
    return (
        f'<figure id="{anchor}" class="card {look}" aria-labelledby="{anchor}--title">'
        f'<header><h3 id="{anchor}--title">{text(finding.title)}</h3>{tools(*tool_names)}</header>'
        f"{body}{below}</figure>"
    )


def plot(drawing: Drawing, width: str) -> str:
    """A drawing in a box that scrolls by itself where the screen is narrower than it can be read."""
    label = text(drawing.summary)
    return f'<div class="scroll {width}" role="img" tabindex="0" aria-label="{label}">{drawing.svg}</div>'
