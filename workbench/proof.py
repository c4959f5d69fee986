"""What a page checked about itself: the identities that must hold on the model at hand, as badges and a table.

They are computed before anything is measured; where one fails, nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping

from workbench.checks import SEQUENCES, TOLERANCES, Checks, self_checks
from workbench.findings import Cell, Column, Finding, Notice, Table
from workbench.model.transformer import Transformer
from workbench.subject import Subject

SECTION = "What this page checked about itself"
IDENTITIES: Mapping[str, tuple[str, str]] = {
    "empty_is_clean": ("empty = clean", "an intervention that changes nothing is the clean pass"),
    "patched_is_clean": ("patched with itself = clean", "patching a pass with its own patterns is the clean pass"),
    "zero_vs_rows": ("head zero = W_O rows zero", "zeroing a head equals zeroing its rows of W_O (the worst head)"),
    "batch_vs_singles": ("batch = singles", "a batch equals its sequences one by one"),
    "fast_vs_explicit": ("fused = hooked", "the fused path equals the one with hooks"),
    "restart_vs_hooks": ("restart = hooks", "a sweep's restarts equal the same by hooks (the worst head)"),
    "writes_vs_residual": ("writes = residual stream", "all writes sum to the final residual stream"),
}
"""Each check of :class:`workbench.checks.Checks`: its badge and its sentence."""


def prove(subject: Subject) -> list[Finding]:
    """The checks on the subject's own first test sequences: badges and table.

    Raises:
        WorkbenchError: an identity does not hold: results of interventions on this model cannot be trusted.
    """
    model = subject.model
    if not isinstance(model, Transformer):
        return []  # a bridge shows what holds of its hook points when it is wrapped
    checks = self_checks(model, subject.sample(SEQUENCES, "test", "proof"))
    checks.require()
    return [_badges(checks), _table(checks)]


def _badges(checks: Checks) -> Notice:
    held = [badge for name, (badge, _) in IDENTITIES.items() if getattr(checks, name) is not None]
    return Notice(
        id="proof.badges",
        title="Checked on this model",
        text="  ".join(f"\u2713\u00a0{badge}" for badge in held)
        + ". Every intervention counts where it took place; one that takes place nowhere is an error.",
    )


def _table(checks: Checks) -> Table:
    rows: list[dict[str, Cell]] = []
    for name, (_, identity) in IDENTITIES.items():
        value = getattr(checks, name)
        row: dict[str, Cell] = {"identity": identity, "deviation": None, "tolerance": None, "result": "\u2713 holds"}
        if value is None:
            row["result"] = "not applicable (post-norm)"
        elif isinstance(value, bool):
            row |= {"deviation": "none (bitwise)", "tolerance": "bitwise"}
        else:
            row |= {"deviation": f"{value:.1e}", "tolerance": f"{TOLERANCES[name]:.0e}"}
        rows.append(row)
    return Table(
        id="proof.identities",
        section=SECTION,
        title="Identities that must hold, on this model",
        caption=f"Computed on {SEQUENCES} test sequences before any effect was measured; a deviation above its "
        "tolerance would have ended the report. Deviations are relative to max(1, largest value). Two ways to the same "
        "logits are compared in float64: what would show is a fault, not rounding.",
        columns=(
            Column(key="identity", label="identity"),
            Column(key="deviation", label="deviation"),
            Column(key="tolerance", label="tolerance"),
            Column(key="result", label="result"),
        ),
        rows=tuple(rows),
    )
