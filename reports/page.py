"""The page: one self-contained HTML string from findings. Nothing is loaded from outside, nothing is computed."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reports import attention, charts, circuits, claims, heatmaps, live, palette, tables
from reports.drawing import Drawing
from reports.escaping import emphasised, text
from reports.parts import Names, csv_script, frame, plot
from workbench.findings import (
    Answer,
    Attention,
    Circuit,
    Claim,
    Curve,
    Definition,
    Finding,
    Heatmap,
    Interactive,
    Notice,
    Table,
)

_UNNAMED = "Results"

MARK = '<meta name="generator" content="attention-workbench">'
"""Stands near the top of every page, so that a file can be told from somebody else's."""


@dataclass
class _Part:
    """What belongs to one answer: its claims, its remarks, and the rest by section."""

    answer: Answer | None = None
    claims: list[Claim] = field(default_factory=list)
    remarks: list[Notice] = field(default_factory=list)
    sections: dict[str, list[Finding]] = field(default_factory=dict)


def render_page(findings: Sequence[Finding], *, identity: Mapping[str, Any], command: str, heading: str) -> str:
    """One HTML page from findings.

    Args:
        findings: in reading order. Each ``Answer`` begins a part, to which what follows it belongs.
        identity: plain data that says what was run, shown as it comes; mappings may be nested.
        command: the shell line that makes the page again.
        heading: a short line above the question (task, run, seed, shape), also the page's title.

    Returns:
        The whole document. A finding that cannot be drawn shows its error in its place. The same arguments give the
        same text, byte for byte.
    """
    names = Names()
    parts = _parts(findings)
    links: list[tuple[str, str]] = []
    body = "".join(_part(part, names, links, heading, first=i == 0) for i, part in enumerate(parts))
    definitions = _definitions([f for f in findings if isinstance(f, Definition)], names, links)
    end = _identity(identity, command, names, links)
    listed = "".join(f'<li><a href="#{anchor}">{text(title)}</a></li>' for anchor, title in links)
    contents = f'<nav class="contents" aria-label="Contents"><ol>{listed}</ol></nav>'
    body = body.replace(_CONTENTS, contents, 1)
    models = [f for f in findings if isinstance(f, Interactive) and live.has_view(f)]
    scripts = [*attention.scripts(findings), _asset("page.js")]
    scripts += [live.script()] if models else []
    style = page_style() + (live.style() if models else "")
    title = next((f.title for f in findings if isinstance(f, Answer)), heading)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'{MARK}<meta http-equiv="Content-Security-Policy" content="{_policy(scripts, models)}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)} · {text(heading)}</title><style>{style}</style></head>\n"
        f'<body><a class="skip" href="#main">Skip to the content</a><main id="main">{body}{definitions}{end}</main>\n'
        '<div id="light" class="light" hidden></div><p id="said" class="unseen" role="status"></p>'
        f"{''.join(f'<script>{s}</script>' for s in scripts)}</body></html>\n"
    )


_CONTENTS = "<!--contents-->"  # text() never lets a comment through, so a finding cannot contain it


def _asset(name: str) -> str:
    return importlib.resources.files("reports").joinpath("assets", name).read_text(encoding="utf-8")


def page_style() -> str:
    light, dark = palette.variables("light"), palette.variables("dark")
    return f"{_asset('page.css')}".replace("/*light maps*/", light + ";").replace("/*dark maps*/", dark + ";")


def _policy(scripts: Sequence[str], models: Sequence[Interactive]) -> str:
    """Only the page's own scripts may run, and nothing may be loaded; a model runs in a worker made from its script, or
    is asked of whoever serves the page."""
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{d}'" for d in digests)
    workers = "worker-src blob:; " if models else ""
    server = "connect-src 'self'; " if any(map(live.is_served, models)) else ""
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; {workers}{server}"
        "base-uri 'none'; form-action 'none'"
    )


def _parts(findings: Sequence[Finding]) -> list[_Part]:
    parts = [_Part()]
    models: dict[str, list[Finding]] = {}
    for finding in findings:
        part = parts[-1]
        if isinstance(finding, Answer):
            if part.answer or part.claims or part.remarks or part.sections:
                parts.append(_Part(finding))
            else:
                part.answer = finding
        elif isinstance(finding, Claim):
            part.claims.append(finding)
        elif isinstance(finding, Notice) and not finding.section:
            part.remarks.append(finding)
        elif isinstance(finding, Interactive):
            models.setdefault(finding.section or _UNNAMED, []).append(finding)
        elif not isinstance(finding, Definition):
            part.sections.setdefault(finding.section or _UNNAMED, []).append(finding)
    # A model to take apart belongs to the page as a whole: it stands first under the first answer and its claims.
    first = parts[0].sections
    parts[0].sections = {title: [*inside, *first.pop(title, [])] for title, inside in models.items()} | first
    return parts


def _part(part: _Part, names: Names, links: list[tuple[str, str]], heading: str, *, first: bool) -> str:
    answer = part.answer
    anchor = names.take(answer.id if answer else "findings")
    title = text(answer.title if answer else heading)
    kicker = f'<p class="kicker">{text(heading)}</p>' if first else ""
    if not first:
        links.append((anchor, answer.title if answer else heading))
    level = "h1" if first else "h2"
    said = f'<p class="answer">{emphasised(answer.text)}</p>' if answer else ""
    caption = f'<p class="soft">{text(answer.caption)}</p>' if answer and answer.caption else ""
    rows = "".join(_safely(claims.row, c, names, tag="li") for c in part.claims)
    listed = f'<ul class="claims" aria-label="Claims">{rows}</ul>' if rows else ""
    remarks = "".join(_safely(_notice, n, names) for n in part.remarks)
    question = f'<{level} class="question">{title}</{level}>'
    head = f'<header class="lead" id="{anchor}">{kicker}{question}{said}{caption}</header>'
    sections = "".join(_section(title, inside, names, links) for title, inside in part.sections.items())
    return f"{head}{listed}{remarks}{_CONTENTS if first else ''}{sections}"


def _section(title: str, findings: Sequence[Finding], names: Names, links: list[tuple[str, str]]) -> str:
    anchor = names.take("section-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in title.lower()))
    links.append((anchor, title))
    inside = "".join(_safely(_DRAW.get(type(f), _unknown), f, names) for f in findings)
    head = f'<h2 id="{anchor}">{text(title)}</h2>'
    return f'<section aria-labelledby="{anchor}">{head}<div class="grid">{inside}</div></section>'


def _safely(draw: Callable[[Any, str], str], finding: Finding, names: Names, tag: str = "div") -> str:
    """The finding drawn, or in its place what went wrong; one broken finding breaks no page."""
    anchor = names.take(finding.id)
    try:
        return draw(finding, anchor)
    except Exception as error:
        return (
            f'<{tag} class="notice error full" id="{anchor}"><p><strong>{text(finding.title)}</strong> '
            f"could not be drawn. {text(type(error).__name__)}: {text(error)}</p></{tag}>"
        )


def _unknown(finding: Finding, anchor: str) -> str:
    raise TypeError(f"a page has no drawing for a {type(finding).__name__}")


def _curve(finding: Curve, anchor: str) -> str:
    drawing = charts.curve(finding, anchor)
    rows = (
        (s.name, x, y, s.low[i] if s.low else None, s.high[i] if s.high else None)
        for s in finding.series
        for i, (x, y) in enumerate(zip(s.x, s.y, strict=True))
    )
    header = ("series", finding.x_label, finding.y_label, "low", "high")
    return _drawn(finding, anchor, drawing, csv_script(header, rows))


def _heatmap(finding: Heatmap, anchor: str) -> str:
    drawing = heatmaps.heatmap(finding, anchor)
    ends = ("low", "high") if any(panel.low for panel in finding.panels) else ()
    rows = (
        (p.title, row, column, p.values[i][j], *(getattr(p, end)[i][j] if getattr(p, end) else None for end in ends))
        for p in finding.panels
        for i, row in enumerate(finding.row_labels)
        for j, column in enumerate(finding.column_labels)
    )
    header = (
        "panel",
        finding.row_title or "row",
        finding.column_title or "column",
        finding.unit or "value",
        *ends,
    )
    return _drawn(finding, anchor, drawing, csv_script(header, rows))


def _circuit(finding: Circuit, anchor: str) -> str:
    drawing = circuits.circuit(finding, anchor)
    rows = [("head", n.name, "", "", n.role, n.effect, n.low, n.high) for n in finding.nodes]
    rows += [("path", e.sender, e.receiver, e.kind, "", e.weight, e.low, e.high) for e in finding.edges]
    header = ("part", "name", "to", "kind", "role", finding.unit, "low", "high")
    return _drawn(finding, anchor, drawing, csv_script(header, rows))


def _drawn(finding: Curve | Heatmap | Circuit, anchor: str, drawing: Drawing, data: str) -> str:
    return frame(
        finding,
        anchor,
        look=finding.width,
        tool_names=("SVG", "PNG", "CSV"),
        body=plot(drawing, finding.width) + data,
        notes=drawing.notes,
        legend=drawing.legend,
    )


def _notice(finding: Notice, anchor: str) -> str:
    word = {"info": "Note", "warning": "Limited", "error": "Failed"}[finding.level]
    title = f"<strong>{text(finding.title)}</strong> " if finding.title else ""
    return (
        f'<div class="notice {finding.level} full" id="{anchor}"><p><span class="level">{word}</span> {title}'
        f"{text(finding.text)}</p></div>"
    )


_DRAW: Mapping[type[Finding], Callable[[Any, str], str]] = {
    Curve: _curve,
    Heatmap: _heatmap,
    Table: tables.table,
    Attention: attention.figure,
    Circuit: _circuit,
    Interactive: live.figure,
    Notice: _notice,
}


def _definitions(definitions: Sequence[Definition], names: Names, links: list[tuple[str, str]]) -> str:
    if not definitions:
        return ""
    anchor = names.take("definitions")
    links.append((anchor, "Definitions"))
    entries = "".join(
        f'<div id="{names.take(d.id)}"><dt>{text(d.title)}</dt><dd>{text(d.text)}</dd></div>' for d in definitions
    )
    return f'<section><h2 id="{anchor}">Definitions</h2><dl class="definitions">{entries}</dl></section>'


def _identity(identity: Mapping[str, Any], command: str, names: Names, links: list[tuple[str, str]]) -> str:
    anchor = names.take("identity")
    links.append((anchor, "Identity and re-run"))
    return (
        f'<section><h2 id="{anchor}">Identity and re-run</h2><div class="rerun"><pre tabindex="0">'
        f"<code>{text(command)}</code></pre>"
        f'<button type="button" data-tool="copy">copy</button></div>{_mapping(identity)}</section>'
    )


def _mapping(data: Mapping[str, Any]) -> str:
    entries = "".join(f"<div><dt>{text(k)}</dt><dd>{_value(v)}</dd></div>" for k, v in data.items())
    return f'<dl class="identity">{entries}</dl>'


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return _mapping(value) if value else "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(text, value)) or "none"
    return "none" if value is None else text(value)
