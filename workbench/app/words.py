"""What a report found, and what the machine refused, in lines of plain text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError

_NO_MEMORY = ("not enough memory", "allocate memory", "out of memory")


def summary(record: Mapping[str, Any], page: Path) -> str:
    """Every claim of a ``findings.json`` in a line, what failed, and the page's path at the end."""
    width = max((len(claim["verdict"]) for claim in record["claims"]), default=0)
    lines = [claim_line(claim, width) for claim in record["claims"]] or ["no claims were made"]
    lines += [f"the analysis {name} failed; the page says why" for name in record["failed"]]
    return "\n".join([*lines, "", f"page: {page.resolve()}"])


def claim_line(claim: Mapping[str, Any], width: int = 0) -> str:
    """``supported  L0.H1 looks one token back: 0.81 [0.79, 0.83] score``; the reason where nothing was measured."""
    verdict = claim["verdict"].replace("_", " ")
    line = f"{verdict:<{width}}  {claim['statement'].rstrip('.')}"
    if claim["value"] is not None:
        line += f": {number(claim['value'])}"
        if claim["low"] is not None and claim["high"] is not None:
            line += f" [{number(claim['low'])}, {number(claim['high'])}]"
        line += f" {claim['unit']}".rstrip()
    elif claim["reason"]:
        line += f": {claim['reason']}"
    return line


def number(value: float) -> str:
    """Three significant digits, at most three decimals: 0.812, 12.3, 0.004, 1234."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1
    return f"{value:.{digits}f}"


def refused(error: BaseException) -> WorkbenchError | None:
    """The one line for what the machine refused (a file, memory); None where the error is a fault of the code."""
    memory = isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _NO_MEMORY)
    if memory or isinstance(error, MemoryError):
        return WorkbenchError(
            "not enough memory for this model or batch",
            next_step="Take a smaller model, a smaller train.batch_size, or fewer --samples.",
        )
    if isinstance(error, OSError):
        place = f"{error.filename} cannot be used" if error.filename is not None else "the system refused"
        return WorkbenchError(place, got=error.strerror or error, next_step="Choose another place, or mend this one.")
    return None
