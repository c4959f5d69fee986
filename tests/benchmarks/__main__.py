"""``python -m tests.benchmarks``: a table, and ``bench.json`` in the working directory. Takes up to 10 minutes."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

from tests.benchmarks import bench_attention, bench_live, bench_server, bench_sweep, main_job, speed
from tests.benchmarks.measure import Row
from workbench.errors import WorkbenchError

PARTS = (speed, bench_sweep, bench_live, bench_server, bench_attention, main_job)


def table(rows: list[Row]) -> str:
    """The rows as aligned text."""
    head = ["name", "threads", "ours", "other", "unit", "ratio", "target", "met"]
    cells = [head]
    for r in rows:
        target, met = ("", "") if r.target is None else (f"{r.target:g}", "yes" if r.met else "NO")
        threads = str(r.threads or "")
        cells.append([r.name, threads, f"{r.ours:.4g}", f"{r.other:.4g}", r.unit, f"{r.ratio:.3f}", target, met])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def main() -> int:
    """Measure everything; 1 with one line if a command could not run."""
    rows: list[Row] = []
    try:
        for row in itertools.chain.from_iterable(part.rows() for part in PARTS):
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
    except WorkbenchError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        Path("bench.json").write_text(json.dumps([row.public() for row in rows], indent=1) + "\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
