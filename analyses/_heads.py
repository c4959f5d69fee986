"""Maps with a cell for every head: layers down, heads across."""

from __future__ import annotations

from typing import Any

from workbench.config import ModelConfig
from workbench.findings import Heatmap


def by_head(config: ModelConfig, **fields: Any) -> Heatmap:
    """A heatmap of panels ``[n_layers][n_heads]`` with the value in each cell; ``fields`` as Heatmap takes them."""
    return Heatmap(
        row_labels=tuple(f"L{layer}" for layer in range(config.n_layers)),
        column_labels=tuple(f"H{head}" for head in range(config.n_heads)),
        row_title="layer",
        column_title="head",
        annotate=True,
        **fields,
    )


def effects_by_head(config: ModelConfig, **fields: Any) -> Heatmap:
    """The same for changes between -1 and 1, on a scale that diverges around 0."""
    return by_head(config, kind="diverging", vmin=-1.0, vmax=1.0, **fields)
