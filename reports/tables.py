"""Tables: intervals beside their values, columns that sort, rows set off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from reports.escaping import glyphs, text
from reports.numbers import MISSING, decimals, interval, is_missing, number, warranted
from reports.parts import csv_script, frame
from workbench.findings import Cell, Column, Table


def table(finding: Table, anchor: str) -> str:
    """The table as a figure."""
    places = {c.key: _digits(c, finding) for c in finding.columns}
    numeric = {c.key: _is_numeric(c, finding) for c in finding.columns}
    heads = "".join(_heading(c, numeric[c.key]) for c in finding.columns)
    rows = []
    for index, row in enumerate(finding.rows):
        cells = "".join(_cell(c, row, places[c.key], numeric[c.key], i == 0) for i, c in enumerate(finding.columns))
        marked = ' class="marked"' if index in finding.marked else ""
        rows.append(f"<tr{marked}>{cells}</tr>")
    # Many columns stand closer, so that the last ones are seen without scrolling.
    dense = ' class="dense"' if len(finding.columns) > 6 else ""
    helps = "".join(f"<div><dt>{text(c.label)}</dt><dd>{text(c.help)}</dd></div>" for c in finding.columns if c.help)
    legend = (
        f'<details class="help"><summary>What the columns mean</summary><dl>{helps}</dl></details>' if helps else ""
    )
    body = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(finding.title)}"><table{dense}>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{legend}{_csv(finding)}"
    )
    notes = [] if finding.rows else ["The table has no rows."]
    return frame(finding, anchor, look="full", tool_names=("CSV",), body=body, notes=notes)


def _csv(finding: Table) -> str:
    keys = [k for c in finding.columns for k in (c.key, c.low, c.high) if k]
    return csv_script(keys, ([row.get(k) for k in keys] for row in finding.rows))


def _heading(column: Column, numeric: bool) -> str:
    side = ' class="n"' if numeric else ""
    tip = f' title="{text(column.help)}"' if column.help else ""
    return f'<th scope="col"{side} aria-sort="none"><button type="button"{tip}>{text(column.label)}</button></th>'


def _is_numeric(column: Column, finding: Table) -> bool:
    kinds = {type(row.get(column.key)) for row in finding.rows} - {type(None)}
    return bool(kinds) and kinds <= {int, float}


def _digits(column: Column, finding: Table) -> int | None:
    """One number of decimals for a column: the author's, or fewer where no row's interval warrants them."""
    if column.digits is None or not (column.low and column.high):
        return column.digits
    known = [warranted(_float(row.get(column.low)), _float(row.get(column.high))) for row in finding.rows]
    warranted_most = max((d for d in known if d is not None), default=column.digits)
    return min(column.digits, warranted_most)


def _float(value: Cell) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _cell(column: Column, row: Mapping[str, Cell], digits: int | None, numeric: bool, first: bool) -> str:
    value = row.get(column.key)
    key: Any = "" if is_missing(_float(value)) and not isinstance(value, (str, bool)) else value
    classes = ["n"] if numeric else []
    as_float = _float(value)
    if isinstance(value, bool):
        shown = "yes" if value else "no"
    elif isinstance(value, str):
        # An empty text is an empty cell, not the empty token.
        shown = f"<bdi>{text(glyphs(value))}</bdi>" if value else ""
    elif as_float is None or math.isnan(as_float):
        shown = f'<span class="soft">{MISSING}</span>'
    else:
        shown = text(_number(value, digits, column.signed))
        if column.signed and shown[0] in "+−":
            classes.append("plus" if shown[0] == "+" else "minus")
        low, high = _float(row.get(column.low)), _float(row.get(column.high))
        if column.low and column.high and not (is_missing(low) and is_missing(high)):
            shown += f' <span class="soft">{text(interval(low, high, digits, column.signed))}</span>'
    look = f' class="{" ".join(classes)}"' if classes else ""
    tag = 'th scope="row"' if first else "td"
    return f'<{tag}{look} data-v="{text(key)}">{shown}</{tag.split()[0]}>'


def _number(value: Cell, digits: int | None, signed: bool) -> str:
    if isinstance(value, int):
        return number(float(value), 0, signed) if signed else f"{value:,}".replace(",", "\u202f").replace("-", "−")
    number_value = float(value)  # type: ignore[arg-type]
    return number(number_value, decimals(number_value) if digits is None else digits, signed)
