"""What stands in for a head's z: its mean over a reference set, or that of a paired sequence.

A mean ablation means nothing until it says over what the mean was taken, nor does resampling until it says from where;
so both are values that are recorded, named in every sentence about the ablation, and identified by a hash.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.hooks import capture
from workbench.rng import numpy_stream
from workbench.subject import Subject

CHUNK_TOKENS = 4096
"""Tokens of one pass: enough to keep the processor busy, few enough that patterns stay small."""


@dataclass(frozen=True, eq=False, repr=False)
class ReferenceSet:
    """Means of every head's z and every MLP's output over sequences of a task. Equal when the hash is equal.

    The numbers are those of the weights that they were built from, and stay: after training, build another.

    Attributes:
        task_name, split, seed, size: the sequences that the mean was taken over.
        per_position: one mean for each position, or one over all positions.
        mean_z: one tensor a layer, ``[pos head d_head]`` (``[1 head d_head]`` over all positions), float32, on the CPU.
        mean_mlp: likewise what each MLP writes, ``[pos d_model]`` (``[1 d_model]``); empty for an attention-only model.
        filled: the positions at which some sequence had a real token, ``[pos]`` (``[1]``); elsewhere the mean is 0.
        hash: sha256 over the spec and the numbers.
    """

    task_name: str
    split: str
    seed: int
    size: int
    per_position: bool
    mean_z: tuple[Float[Tensor, "pos head d_head"], ...]
    filled: Bool[Tensor, " pos"]
    mean_mlp: tuple[Float[Tensor, "pos d_model"], ...] = ()
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(json.dumps(self._spec(), sort_keys=True).encode())
        for mean in (*self.mean_z, *self.mean_mlp):
            digest.update(str(tuple(mean.shape)).encode() + mean.contiguous().numpy().tobytes())
        object.__setattr__(self, "hash", digest.hexdigest())

    def _spec(self) -> dict[str, Any]:
        names = ("task_name", "split", "seed", "size", "per_position")
        return {name: getattr(self, name) for name in names}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReferenceSet) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def __repr__(self) -> str:
        return f"ReferenceSet({self.describe()}; {self.hash[:12]})"

    def describe(self) -> str:
        """For sentences: ``"mean over 512 validation sequences of repeated_tokens (seed 0), per position"``."""
        over = "per position" if self.per_position else "over all positions"
        return f"mean over {self.size} {self.split} sequences of {self.task_name} (seed {self.seed}), {over}"

    def to_json(self) -> dict[str, Any]:
        """Where it comes from and its hash; the numbers are not in it."""
        return {**self._spec(), "hash": self.hash}

    def require_fit(self, config: ModelConfig, mask: Bool[Tensor, "batch pos"], *, mlps: bool = False) -> None:
        """Raise unless these means can stand in for z (and what MLPs write) in this model on sequences of this mask."""

        def refuse(expected: object, got: object) -> None:
            raise WorkbenchError(
                f"a reference set that does not fit ({self.describe()})",
                expected=expected,
                got=got,
                next_step="Build the reference from this model and a task of the same context.",
            )

        shape = (len(self.mean_z), *(self.mean_z[0].shape[1:] if self.mean_z else ()))
        if shape != (config.n_layers, config.n_heads, config.d_head):
            refuse(f"(layers, heads, d_head) = {(config.n_layers, config.n_heads, config.d_head)}", shape)
        wide = [tuple(mean.shape[1:]) for mean in self.mean_mlp]
        if mlps and wide != [(config.d_model,)] * config.n_layers:
            refuse(f"a mean of {config.d_model} numbers for each of {config.n_layers} MLPs", wide or "none")
        if self.per_position and mask.shape[1] != len(self.filled):
            refuse(f"sequences of {len(self.filled)} positions", mask.shape[1])
        empty = mask.any(dim=0).cpu() & ~self.filled
        if bool(empty.any()):
            refuse("a mean at every position in use", f"none at position {int(empty.nonzero()[0, 0])}")


def build_reference(
    subject: Subject, *, split: str = "train", size: int = 512, per_position: bool = True
) -> ReferenceSet:
    """The reference set of a subject: means of z and of what MLPs write, over ``size`` sequences of its task.

    Sequences come from the subject's stream "reference"; only real tokens count. Sums are kept in float64.

    Raises:
        WorkbenchError: a size below 1, or a subject without a task.
    """
    if size < 1:
        raise WorkbenchError("a reference set needs sequences", expected="at least 1", got=size)
    batch = subject.sample(size, split, "reference")
    layers = range(subject.config.n_layers)
    heads = [f"blocks.{layer}.attn.hook_z" for layer in layers]
    mlps = [f"blocks.{layer}.hook_mlp_out" for layer in layers] if subject.config.d_mlp else []
    names = [*heads, *mlps]
    axes = (0,) if per_position else (0, 1)
    count = batch.mask.sum(dim=axes).reshape(-1).double()
    totals: dict[str, Tensor] = {}
    with torch.no_grad(), capture(subject.model, names) as z:
        for part in batch.chunks(max(1, CHUNK_TOKENS // batch.tokens.shape[1])):
            subject.model(part.tokens, part.mask)
            for name in names:
                real = z[name].flatten(2).double() * part.mask[:, :, None]
                totals[name] = totals.get(name, 0.0) + real.sum(dim=axes)
    share = (1 / count.clamp(min=1))[:, None]
    means = {name: (totals[name].reshape(len(count), -1) * share).float().cpu() for name in names}
    shape = (len(count), subject.config.n_heads, subject.config.d_head)
    mean_z, mean_mlp = tuple(means[name].reshape(shape) for name in heads), tuple(means[name] for name in mlps)
    assert subject.task is not None  # sample() has refused a subject without one
    return ReferenceSet(subject.task.name, split, subject.seed, size, per_position, mean_z, (count > 0).cpu(), mean_mlp)


@dataclass(frozen=True, repr=False)
class Pairing:
    """Which sequence of a batch gives its z to which: a permutation without fixed points.

    Attributes:
        n: sequences in the batch. seed: of the stream "pairing".
        donors: for each sequence the index of the one it is paired with; one cycle through all, drawn uniformly.
        hash: sha256 over the donors.
    """

    n: int
    seed: int = 0
    donors: tuple[int, ...] = field(init=False, compare=False)
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        if self.n < 2:
            raise WorkbenchError("a pairing needs other sequences", expected="at least 2 sequences", got=self.n)
        order = numpy_stream(self.seed, "pairing", self.n).permutation(self.n).tolist()
        after = dict(zip(order, order[1:] + order[:1], strict=True))
        object.__setattr__(self, "donors", tuple(after[i] for i in range(self.n)))
        object.__setattr__(self, "hash", hashlib.sha256(str(self.donors).encode()).hexdigest())

    def __repr__(self) -> str:
        return f"Pairing({self.describe()}; {self.hash[:12]})"

    def describe(self) -> str:
        """For sentences."""
        return f"each of {self.n} sequences paired with another, pairing seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        """The spec, from which the donors follow, and the hash that proves it."""
        return {"n": self.n, "seed": self.seed, "hash": self.hash}
