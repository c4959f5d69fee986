"""Places of a batch: named positions, which may stand elsewhere in each sequence, and indices, as a mask."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from workbench.errors import WorkbenchError, unknown_name
from workbench.task import Batch

Place = str | int
"""A named position of the batch, or an index from 0."""


def index_of(place: Place, batch: Batch) -> Tensor:
    """Where a place stands in each sequence, ``[batch]``.

    Raises:
        WorkbenchError: a name that the batch does not have (with the nearest ones), or an index outside it.
    """
    if isinstance(place, str):
        if place not in batch.positions:
            raise unknown_name("position", place, batch.positions)
        return batch.positions[place]
    length = batch.tokens.shape[1]
    if not 0 <= place < length:
        raise WorkbenchError("a position does not exist", expected=f"0 to {length - 1}", got=place)
    return torch.full((len(batch),), place, device=batch.tokens.device)


def mask_of(places: Sequence[Place], batch: Batch) -> Bool[Tensor, "batch pos"]:
    """True at these places; errors as :func:`index_of`."""
    mask = torch.zeros_like(batch.mask)
    rows = torch.arange(len(batch), device=mask.device)
    for place in places:
        mask[rows, index_of(place, batch)] = True
    return mask
