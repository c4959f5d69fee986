"""A change of the ablation view carried out with bare hooks: what the page and the library are both compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workbench.hooks import Edit, capture, intervene
from workbench.model.transformer import Transformer
from workbench.reference import ReferenceSet
from workbench.task import Batch


def hooked(
    model: Transformer,
    batch: Batch,
    change: Mapping[str, Any],
    reference: ReferenceSet | None = None,
    donors: Sequence[int] | None = None,
) -> Tensor:
    """Logits of a batch under a change; ``donors`` are indices into the same batch."""
    config = model.config
    z = [f"blocks.{layer}.attn.hook_z" for layer in range(config.n_layers)]
    mlp = [f"blocks.{layer}.hook_mlp_out" for layer in range(config.n_layers)] if config.d_mlp else []
    patterns = [f"blocks.{layer}.attn.hook_pattern" for layer in range(config.n_layers)]
    with torch.no_grad():
        with capture(model, [*z, *mlp, *patterns]) as clean:
            model(batch.tokens, batch.mask)
        places = torch.zeros_like(batch.mask)
        for place in change["at"]:
            where = batch.positions[place] if isinstance(place, str) else torch.full((len(batch),), place)
            places[torch.arange(len(batch)), where] = True
        if not change["at"]:
            places[:] = True
        edits = []
        for part, state in change["states"].items():
            layer = int(part[1 : part.index(".")])
            head = None if part.endswith("mlp") else int(part.rpartition("H")[2])
            point = mlp[layer] if head is None else z[layer]
            if state == "zero":
                value = torch.zeros(())
            elif state == "mean":
                value = reference.mean_mlp[layer] if head is None else reference.mean_z[layer][:, head]
            else:
                other = clean[point][list(donors)]
                value = other if head is None else other[:, :, head]
            edits.append(Edit(point, partial(_put, head=head, places=places, value=value), part))
        if change["frozen"]:
            edits += [Edit(point, _constant(clean[point]), point) for point in patterns]
        with intervene(model, edits):
            return model(batch.tokens, batch.mask, path="explicit")


def _put(activation: Tensor, head: int | None, places: Tensor, value: Tensor) -> Tensor:
    edited = activation.clone()
    if head is None:
        return edited.where(~places[:, :, None], value)
    edited[:, :, head] = edited[:, :, head].where(~places[:, :, None], value)
    return edited


def _constant(value: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: value
