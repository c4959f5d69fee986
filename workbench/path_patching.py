"""Path patching: what one head hands to one later head through its queries, its keys or its values alone.

The direct path from a sender to an input (Q, K or V) of a receiver (after Wang et al. 2022): with z_s the sender's z,

    x' = x_destination + (z_s_source - z_s_destination) W_O_s

is the residual stream that this one input of this one receiver reads, at every position, normed anew (pre-norm). Every
other input, every other head and every MLP up to the receiver is what it is in the clean pass of the destination; from
the receiver's z on, everything is computed anew. So heads *and* MLPs between the two are held: what an MLP passes on is
a path of its own (Wang et al. compute MLPs anew and count what goes through them as well; in a model without MLPs there
is no difference). A residual stream that is normed after each sublayer is no sum of writes: post-norm is refused.

Axes: ``batch pos head d_head d_model``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.bridge import Model
from workbench.components import Head, Heads, all_heads, as_heads, check_heads
from workbench.config import ModelConfig
from workbench.cut_path import INPUTS
from workbench.errors import WorkbenchError, unknown_name
from workbench.hooks import Edit, capture, intervene
from workbench.model.transformer import Transformer
from workbench.patch_sweep import PatchSweep, Side, Work, carry_out
from workbench.patching import SourceCache, point_name, require_same_shape, source_cache
from workbench.replacements import Put, Replacement
from workbench.restart import CHUNK_TOKENS
from workbench.task import Batch

AT_ONCE = 64
"""Paths whose new z is held at one time."""


class Path(NamedTuple):
    """From a sender to one input of a receiver in a later layer. ``str`` gives ``"L0.H1 to L1.H0 (V)"``."""

    sender: Head
    receiver: Head
    kind: str

    def __str__(self) -> str:
        return f"{self.sender} to {self.receiver} ({self.kind})"


def all_paths(config: ModelConfig, receivers: Heads | None = None) -> tuple[Path, ...]:
    """Every path that ends in these heads (None: in any), from every head below and through every input they have."""
    every = all_heads(config.n_layers, config.n_heads)
    chosen = every if receivers is None else as_heads(receivers)
    kinds = INPUTS if config.attention == "learned" else ("V",)
    return tuple(Path(s, r, kind) for r in chosen for s in every if s.layer < r.layer for kind in kinds)


def path_patch(
    model: Model, destination_batch: Batch, source: SourceCache, path: Path
) -> Float[Tensor, "batch pos d_vocab"]:
    """Logits of the destination batch, with one path from the source, through the hooks.

    Args:
        source: of :func:`workbench.patching.source_cache`; sequence i goes into sequence i.

    Raises:
        WorkbenchError: a head, input or path that does not exist, batches that do not pair, a post-norm model, or a
            bridge whose heads share what the path ends in (several heads' keys or values cannot change alone).
    """
    require_path(model.config, path)
    require_same_shape(destination_batch, source.batch)
    point = point_name(model, path.sender.layer, "z")
    with torch.no_grad(), capture(model, [point]) as own:
        model(destination_batch.tokens, destination_batch.mask, path="explicit")
        change = _write(model, path.sender, source.activations[point] - own[point])

    def feed(x: Tensor) -> Tensor:
        edited = x.clone()
        edited[:, :, path.receiver.head] += change
        return edited

    entrance = f"blocks.{path.receiver.layer}.hook_{path.kind.lower()}_input"
    with torch.no_grad(), intervene(model, [Edit(entrance, feed, str(path))]):
        return model(destination_batch.tokens, destination_batch.mask, path="explicit")


def path_sweep(
    model: Model,
    batch: Batch,
    twin: Batch,
    paths: Sequence[Path],
    direction: str = "denoising",
    *,
    chunk_tokens: int = CHUNK_TOKENS,
) -> PatchSweep[Path]:
    """Every path patched on its own, between a batch and its twin; errors as :func:`path_patch`.

    Args:
        direction, chunk_tokens: as in :func:`workbench.patch_sweep.patch_sweep`.
    """
    for path in paths:
        require_path(model.config, path)
    ordered = sorted(paths, key=lambda p: (p.receiver.layer, p.sender, p.kind, p.receiver))
    done = [
        carry_out(_Paths(model, ordered[i : i + AT_ONCE]), batch, twin, direction, chunk_tokens)
        for i in range(0, max(1, len(ordered)), AT_ONCE)
    ]
    what = [path for sweep in done for path in sweep.what]
    order = [what.index(path) for path in paths]
    patched = np.concatenate([sweep.patched for sweep in done])[order]
    fired, expected = ([n for sweep in done for n in getattr(sweep, name)] for name in ("fired", "expected"))
    return replace(
        done[0],
        what=tuple(paths),
        patched=patched,
        fired=tuple(fired[i] for i in order),
        expected=tuple(expected[i] for i in order),
    )


def require_path(config: ModelConfig, path: Path) -> None:
    """Raise where there is no such path in a model of this shape."""
    if path.kind not in INPUTS:
        raise unknown_name("path", path.kind, INPUTS)
    check_heads((path.sender, path.receiver), config.n_layers, config.n_heads)
    if path.sender.layer >= path.receiver.layer:
        raise WorkbenchError(
            "no path leads from the sender to the receiver",
            expected=f"a sender in a layer below {path.receiver.layer}",
            got=str(path.sender),
        )
    if config.norm == "post":
        raise WorkbenchError(
            "patching a path is not applicable to a post-norm model",
            expected="a residual stream that is a sum of writes (norm pre or none)",
            got="norm post",
        )
    if config.attention == "uniform" and path.kind != "V":
        raise WorkbenchError(
            f"there is no {path.kind} path",
            expected="learned attention",
            got="uniform attention, without queries and keys",
        )


def _write(model: Model, head: Head, z: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos d_model"]:
    return z[:, :, head.head] @ model.blocks[head.layer].attn.W_O[head.head]


@dataclass(frozen=True, eq=False)
class _Paths(Work[Path]):
    model: Model
    what: Sequence[Path]

    def by_hooks(self, side: Side, index: int) -> Tensor:
        return path_patch(self.model, side.destination, side.source, self.what[index])

    def reached(self, side: Side, index: int) -> Bool[Tensor, " batch"]:
        return side.destination.mask.any(dim=1)

    def replacements(self, side: Side) -> list[Replacement]:
        """All that a path changes is its receiver's z: computed here, from the stream that enters that layer on."""
        assert isinstance(self.model, Transformer)
        clean = source_cache(self.model, side.destination)
        made: list[Replacement] = []
        for (layer, sender, kind), group in groupby(self.what, lambda p: (p.receiver.layer, p.sender, p.kind)):
            z = self._received(self.model, side, clean, layer, sender, kind)
            made += [[Put("z", layer, z[:, :, p.receiver.head].clone(), None, p.receiver.head)] for p in group]
        return made

    @torch.no_grad()
    def _received(
        self, model: Transformer, side: Side, clean: SourceCache, layer: int, sender: Head, kind: str
    ) -> Float[Tensor, "batch pos head d_head"]:
        """z of each head of the layer if it alone were the receiver: no head's z depends on another's inputs."""
        point = point_name(model, sender.layer, "z")
        change = _write(model, sender, side.source.activations[point] - clean.activations[point])[:, :, None]
        name = point_name(model, layer, "z")
        entering = clean.activations[point_name(model, layer, "resid_pre")]
        edit = Edit(f"blocks.{layer}.hook_{kind.lower()}_input", lambda x: x + change, f"{sender} to L{layer} ({kind})")
        with intervene(model, [edit]), capture(model, [name]) as kept:
            model(entering, side.destination.mask, start_at_layer=layer, path="explicit")
        return kept[name]
