"""The leak gate: what shortcuts reach on a task, before anyone believes what a model of it does.

Each probe ignores most of what a sequence says. One that reaches far beyond chance on held-out sequences shows that
the task can be solved without what it is meant to ask for (Geirhos et al. 2020).
"""

from workbench.audit.certificate import LEAK, Audit, Overlap, Probe, banner, findings, from_json, sentence, to_json
from workbench.audit.probing import Size, audit, cached

__all__ = [
    "LEAK", "Audit", "Overlap", "Probe", "Size", "audit", "banner", "cached", "findings", "from_json", "sentence",
    "to_json",
]  # fmt: skip
