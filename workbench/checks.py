"""Checks that the machinery of interventions makes on itself, on the model at hand, each time it is used in earnest.

Deviations are largest absolute differences, relative to max(1, the largest absolute value compared with). Two ways to
the same logits are compared in float64, so that what shows is the machinery and not rounding: in float32 the logits of
a trained model with attention scores near 30 lie up to 4e-6 from their own result in float64, by either path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.func import functional_call

from workbench.ablation import KeepOnly, Zero
from workbench.components import all_heads
from workbench.errors import WorkbenchError
from workbench.hooks import capture, intervene
from workbench.measure import run
from workbench.model.transformer import Transformer
from workbench.replacements import Put
from workbench.restart import evaluate
from workbench.task import Batch
from workbench.work import counting

TOLERANCES: Mapping[str, float] = {
    "zero_vs_rows": 1e-6,
    "batch_vs_singles": 1e-6,
    "fast_vs_explicit": 2e-6,
    "restart_vs_hooks": 1e-6,
    "writes_vs_residual": 1e-5,
}
"""The largest deviation that each identity may show in float32 at one thread count; the others hold bitwise."""

SEQUENCES = 8
"""How many sequences of a batch the checks look at."""


@dataclass(frozen=True)
class Checks:
    """Deviations of identities that must hold.

    Attributes:
        empty_is_clean: an intervention without edits gives the clean logits, bitwise.
        patched_is_clean: so does replacing every pattern by its own clean value.
        zero_vs_rows: a head's z zeroed, against its rows of W_O zeroed; the worst head.
        batch_vs_singles: a batch, against its sequences one by one.
        fast_vs_explicit: the fused path, against the one with hook points.
        restart_vs_hooks: every head zeroed by a restart, against the same by hooks; the worst head.
        writes_vs_residual: the sum of everything written, against the final residual stream; None for a post-norm
            model, whose residual stream is not a sum.
    """

    empty_is_clean: bool
    patched_is_clean: bool
    zero_vs_rows: float
    batch_vs_singles: float
    fast_vs_explicit: float
    restart_vs_hooks: float
    writes_vs_residual: float | None

    def require(self) -> None:
        """Raise if a deviation lies above its tolerance (a deviation that is not a number does)."""
        for name, expected, got in self._failures():
            raise WorkbenchError(
                f"self check failed: {name.replace('_', ' ')}",
                expected=expected,
                got=got,
                next_step="Results of interventions on this model cannot be trusted.",
            )

    def _failures(self) -> Iterator[tuple[str, str, str]]:
        for name in ("empty_is_clean", "patched_is_clean"):
            if not getattr(self, name):
                yield name, "bitwise equal logits", "a difference"
        for name, tolerance in TOLERANCES.items():
            value = getattr(self, name)
            if value is not None and not value <= tolerance:
                yield name, f"a deviation of at most {tolerance:g}", f"{value:.2g}"


@dataclass(frozen=True, eq=False)
class Writes:
    """The final residual stream (before the final norm) taken apart.

    Attributes:
        parts: by name ("embed", "pos_embed", "L0.H1", "L0.b_O", "L0.mlp"), each ``[batch pos d_model]``.
        residual: what the model itself holds. deviation: of the sum of all parts from it.
    """

    parts: Mapping[str, Tensor]
    residual: Float[Tensor, "batch pos d_model"]
    deviation: float


def deviation(a: Tensor, b: Tensor) -> float:
    """Largest |a - b| relative to max(1, largest |b|)."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1.0))


def residual_writes(
    model: Transformer, tokens: Int[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"] | None = None
) -> Writes:
    """Everything that is written into the residual stream, part by part, with the deviation of the sum.

    Raises:
        WorkbenchError: a post-norm model, whose residual stream is not a sum; a sum that misses its tolerance.
    """
    config = model.config
    if config.norm == "post":
        raise WorkbenchError(
            "a post-norm model's residual stream is not a sum of writes", expected="norm pre or none", got="norm post"
        )
    names = {"embed": "hook_embed"}
    if config.positions in ("learned", "sinusoidal"):
        names["pos_embed"] = "hook_pos_embed"
    for layer in range(config.n_layers):
        names[f"L{layer}"] = f"blocks.{layer}.attn.hook_result"
        if config.d_mlp:
            names[f"L{layer}.mlp"] = f"blocks.{layer}.hook_mlp_out"
    last = f"blocks.{config.n_layers - 1}.hook_resid_post"
    with torch.no_grad(), capture(model, [*names.values(), last]) as kept:
        model(tokens, mask, path="explicit")
    parts: dict[str, Tensor] = {}
    for part, point in names.items():
        if not point.endswith("hook_result"):
            parts[part] = kept[point]
            continue
        parts |= {f"{part}.H{head}": write for head, write in enumerate(kept[point].unbind(2))}
        bias = model.blocks[int(part[1:])].attn.b_O.detach()
        parts[f"{part}.b_O"] = bias.expand_as(kept[last])
    off = deviation(torch.stack(list(parts.values())).sum(0), kept[last])
    if not off <= TOLERANCES["writes_vs_residual"]:
        raise WorkbenchError(
            "the writes do not add up to the residual stream",
            expected=f"a deviation of at most {TOLERANCES['writes_vs_residual']:g}",
            got=f"{off:.2g}",
        )
    return Writes(parts, kept[last], off)


def self_checks(model: Transformer, batch: Batch) -> Checks:
    """The identities on the first sequences of a batch; ``require()`` on the result raises where one fails.

    Raises:
        WorkbenchError: writes that do not add up (see :func:`residual_writes`).
    """
    few = batch[:SEQUENCES]
    heads = all_heads(model.config.n_layers, model.config.n_heads)
    with torch.no_grad(), counting(len(heads)) as step:
        clean = run(model, few).logits
        with intervene(model, []):
            empty = model(few.tokens, few.mask, path="explicit")
        patched = run(model, few, KeepOnly(heads, Zero(()), frozen_patterns=True)).logits
        exact = _in_float64(model)
        reference = run(exact, few).logits
        singles = torch.cat([run(exact, few[i : i + 1]).logits for i in range(len(few))])
        fast = exact(few.tokens, few.mask, path="fast")
        zeroed, rows = [], []
        for head in heads:
            zeroed.append(run(exact, few, Zero((head,))).logits)
            rows.append(deviation(zeroed[-1], _without_rows(exact, few, *head)))
            step(1)
        puts = [[Put("z", head.layer, 0.0, head=head.head)] for head in heads]
        restarts = [
            deviation(logits, zeroed[index][outcome.start : outcome.stop][few.scored[outcome.start : outcome.stop]])
            for outcome in evaluate(exact, few, puts)
            for index, logits in zip(outcome.indices, outcome.logits, strict=True)
        ]
    return Checks(
        empty_is_clean=torch.equal(empty, clean),
        patched_is_clean=torch.equal(patched, clean),
        zero_vs_rows=max(rows),
        batch_vs_singles=deviation(singles, reference),
        fast_vs_explicit=deviation(fast, reference),
        restart_vs_hooks=max(restarts),
        writes_vs_residual=None
        if model.config.norm == "post"
        else residual_writes(model, few.tokens, few.mask).deviation,
    )


def _in_float64(model: Transformer) -> Transformer:
    """The same weights in float64, without anybody's hooks."""
    exact = Transformer(model.config)
    exact.load_state_dict(model.state_dict())
    return exact.to(model.unembed.W_U.device, torch.float64)


def _without_rows(model: Transformer, batch: Batch, layer: int, head: int) -> Tensor:
    """Logits of the model with one head's rows of W_O at 0; the model itself is left as it is."""
    name = f"blocks.{layer}.attn.W_O"
    weight = model.get_parameter(name).detach().clone()
    weight[head] = 0.0
    return functional_call(model, {name: weight}, (batch.tokens, batch.mask), {"path": "explicit"})
