"""The workbench: take attention heads apart.

    import workbench

    subject = workbench.train("repeated_tokens", "runs/demo")  # or workbench.open("runs/demo")
    subject.scores()                                           # what each head looks at, with chance and interval
    subject.ablate("L1.H0", how="mean")                        # what breaks without it
    subject.view()                                             # the same by clicking, in a notebook

Reading order: ``task`` (what a task is), ``model.transformer`` (the model), ``probes`` and ``head_scores`` (looking),
``ablation`` and ``measure`` (intervening), ``behaviour`` and ``statistics`` (how sure), ``findings`` and ``analysis``
(what is said), ``runs`` and ``training`` (where models come from), ``app`` (the commands, which join it all).

Axis names in shapes: ``batch pos query_pos key_pos head d_head d_model d_mlp d_vocab``; in tables of scores
``n_sequences n_layers n_heads``. Heads are written ``"L1.H0"``, layers and heads from 0.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.ablation import KeepOnly, Mean, Resample, Zero
    from workbench.app.face import open, train
    from workbench.app.notebook import show_attention, view
    from workbench.components import Head
    from workbench.cut_path import CutPath
    from workbench.errors import WorkbenchError
    from workbench.reference import Pairing, build_reference
    from workbench.subject import Subject

__all__ = [
    "CutPath",
    "Head",
    "Joint",
    "KeepOnly",
    "Layer",
    "Mean",
    "Mlp",
    "Pairing",
    "Resample",
    "Subject",
    "WorkbenchError",
    "Zero",
    "build_reference",
    "open",
    "show_attention",
    "train",
    "view",
]

_HOMES = {
    "ablation": ("Joint", "KeepOnly", "Mean", "Resample", "Zero"),
    "app.face": ("open", "train"),
    "app.notebook": ("show_attention", "view"),
    "components": ("Head", "Layer", "Mlp"),
    "cut_path": ("CutPath",),
    "errors": ("WorkbenchError",),
    "reference": ("Pairing", "build_reference"),
    "subject": ("Subject",),
}


def __getattr__(name: str) -> Any:
    """Names are loaded when first used: importing the package alone costs nothing."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"workbench.{home}"), name)
    raise AttributeError(f"module 'workbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
