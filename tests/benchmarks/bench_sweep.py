"""Many interventions at once beside plain loops: same weights, same answers, timed in turn.

The others are loops of whole passes: with TransformerLens's hooks on a bridge (``boot_native``), and of our own fast
forward with the head's rows of W_O at zero. Every row of a sweep is followed by one that holds our time against the
floating-point limit: the matrix products that our way leaves to be done, at the rate of a large one on these threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode
from transformer_lens.patching import get_act_patch_attn_head_out_by_pos

from tasks.repeated_tokens import RepeatedTokens
from tests.benchmarks.measure import Row
from tests.drawn_models import build, relative
from workbench.components import all_heads
from workbench.errors import WorkbenchError
from workbench.model.export import export
from workbench.model.transformer import Transformer
from workbench.patching import source_cache
from workbench.replacements import Put, Replacement
from workbench.restart import evaluate
from workbench.rng import stream
from workbench.task import Batch
from workbench.training.execution import use_threads

SAME = 1e-5
Answers = Iterator[tuple[int, int, Tensor]]
"""Which intervention, from which sequence on, and its logits at the scored positions."""
Contender = Callable[[], Answers]


@dataclass(frozen=True)
class Shape:
    """A model and a batch. ``rounds``: how often each contender runs (the slowest takes seconds)."""

    layers: int
    d_model: int
    d_mlp: int
    sequences: int
    length: int
    rounds: int

    def __str__(self) -> str:
        mlp = " with MLP" if self.d_mlp else ""
        return f"{self.layers}L x 8H, d {self.d_model}{mlp}, {self.sequences} x {self.length}"

    def model(self) -> Transformer:
        """Every weight drawn, large enough that heads attend sharply."""
        return build(
            0, d_vocab=65, n_ctx=self.length, n_layers=self.layers, n_heads=8, d_model=self.d_model,
            d_head=self.d_model // 8, d_mlp=self.d_mlp, positions="learned", norm="pre",
        )  # fmt: skip

    def batch(self) -> Batch:
        """Repeated tokens: about three quarters of the positions are scored."""
        return RepeatedTokens(n_ctx=self.length).sample(self.sequences, "test", stream(0, "benchmark sweep"))


SMALL = Shape(2, 64, 0, 64, 64, rounds=9)
LARGE = Shape(4, 128, 512, 32, 64, rounds=3)
SINGLE = Shape(4, 128, 512, 1, 32, rounds=15)
PATCHED = Shape(2, 64, 0, 4, 32, rounds=3)


def zeros(shape: Shape) -> list[Replacement]:
    """Each head at zero."""
    return [[Put("z", h.layer, 0.0, head=h.head)] for h in all_heads(shape.layers, 8)]


def pairs(shape: Shape) -> list[Replacement]:
    """Each pair of heads at zero."""
    return [[*a, *b] for a, b in itertools.combinations(zeros(shape), 2)]


def ours(model: Transformer, batch: Batch, replacements: Sequence[Replacement]) -> Answers:
    """All replacements at once."""
    for outcome in evaluate(model, batch, replacements):
        for index, logits in zip(outcome.indices, outcome.logits, strict=True):
            yield index, outcome.start, logits


@torch.no_grad()
def forwards(model: Transformer, batch: Batch) -> Answers:
    """Our own fast forward, once a head."""
    weights = dict(model.named_parameters())
    for index, h in enumerate(all_heads(model.config.n_layers, model.config.n_heads)):
        name = f"blocks.{h.layer}.attn.W_O"
        without = weights[name].clone()
        without[h.head] = 0
        logits = functional_call(model, {name: without}, (batch.tokens,), {"path": "fast"})
        yield index, 0, logits[batch.scored]


@torch.no_grad()
def hooked(bridge: Any, model: Transformer, batch: Batch) -> Answers:
    """TransformerLens's hooks, once a head."""

    def zero(z: Tensor, hook: Any, head: int) -> Tensor:
        z[:, :, head] = 0
        return z

    for index, h in enumerate(all_heads(model.config.n_layers, model.config.n_heads)):
        hooks = [(f"blocks.{h.layer}.attn.hook_z", partial(zero, head=h.head))]
        yield index, 0, bridge.run_with_hooks(batch.tokens, fwd_hooks=hooks)[batch.scored]


def collect(work: Contender) -> list[Tensor]:
    """Each intervention's answers, all sequences together."""
    by_index = itertools.groupby(sorted(work(), key=lambda answer: answer[:2]), key=lambda answer: answer[0])
    return [torch.cat([logits for _, _, logits in group]) for _, group in by_index]


def require_same(works: dict[str, Contender]) -> None:
    """Raise a WorkbenchError if the contenders' answers differ by more than ``SAME``."""
    first, *others = (collect(work) for work in works.values())
    for other in others:
        worst = max(relative(a, b) for a, b in zip(first, other, strict=True))
        if worst > SAME:
            raise WorkbenchError("two contenders answer differently", expected=f"within {SAME:g}", got=f"{worst:.1e}")


def side_by_side(works: dict[str, Contender], threads: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each contender, round by round, the order turned from round to round; answers are let go."""
    times: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    with use_threads(threads):
        for turn in range(rounds + 1):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                start = time.perf_counter()
                for _ in works[name]():
                    pass
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: all_times[1:] for name, all_times in times.items()}  # the first round warms up


def row(name: str, mine: list[float], theirs: list[float], target: float, threads: int) -> Row:
    """Medians, and the median of the rounds' ratios."""
    ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
    return Row(name, statistics.median(mine), statistics.median(theirs), ratio, target, "ms", threads)


def _product(into: torch.Size, a: torch.Size, b: torch.Size, out_shape: object = None, **kwargs: object) -> int:
    """Floating-point operations of ``into += a b``."""
    return 2 * a.numel() * b[-1]


def limit(name: str, work: Contender, mine: list[float], threads: int) -> Row:
    """Our time against that of the matrix products left, had they all run at the rate of a large one."""
    in_place = dict.fromkeys((torch.ops.aten.addmm_, torch.ops.aten.baddbmm_), _product)  # not known to the counter
    with FlopCounterMode(display=False, custom_mapping=in_place) as counted:
        for _ in work():
            pass
    a = torch.randn(1024, 1024)
    with use_threads(threads):
        seconds = []
        for _ in range(12):
            start = time.perf_counter()
            a @ a
            seconds.append(time.perf_counter() - start)
    flop, time_of_ours = counted.get_total_flops(), statistics.median(mine)
    least = 1e3 * flop * min(seconds) / (2 * 1024**3)
    label = f"{name} / the {flop / 1e9:.2g} GFLOP left"
    return Row(label, time_of_ours, least, time_of_ours / least, None, "ms", threads)


def zero_rows(shape: Shape, threads: int, hooks: float, forward: float | None) -> Iterator[Row]:
    """Each head at zero: against both loops."""
    model, batch, name = shape.model(), shape.batch(), f"zero each head ({shape})"
    work = partial(ours, model, batch, zeros(shape))
    works = {"ours": work, "hooks": partial(hooked, export(model, "native"), model, batch)}
    works["forwards"] = partial(forwards, model, batch)
    require_same(works)
    times = side_by_side(works, threads, shape.rounds)
    yield row(f"{name} / TransformerLens hooks", times["ours"], times["hooks"], hooks, threads)
    if forward is not None:
        yield row(f"{name} / our own forwards", times["ours"], times["forwards"], forward, threads)
    yield limit(name, work, times["ours"], threads)


def pair_rows(shape: Shape, threads: int) -> Iterator[Row]:
    """All pairs of heads against the singles."""
    model, batch, both = shape.model(), shape.batch(), pairs(shape)
    work = partial(ours, model, batch, both)
    works = {"pairs": work, "singles": partial(ours, model, batch, zeros(shape))}
    times = side_by_side(works, threads, shape.rounds)
    name = f"zero {len(both)} pairs of heads ({shape})"
    yield row(f"{name} / the single heads", times["pairs"], times["singles"], 6.0, threads)
    yield limit(name, work, times["pairs"], threads)


def patching_rows(shape: Shape, threads: int) -> Iterator[Row]:
    """Each head's z at each position from other sequences; judged by a logit difference at the last position."""
    model, batch = shape.model(), shape.batch()
    bridge: Any = export(model, "native")
    source = batch[torch.arange(len(batch)).roll(1)]
    batch = dataclasses.replace(batch, scored=torch.arange(shape.length).expand_as(batch.tokens) == shape.length - 1)
    cache, (_, theirs) = source_cache(model, source), bridge.run_with_cache(source.tokens)
    at = [torch.arange(shape.length).expand_as(batch.tokens) == position for position in range(shape.length)]
    replacements = [
        [Put("z", layer, cache.activations[f"blocks.{layer}.attn.hook_z"][:, :, head], where, head)]
        for layer in range(shape.layers)
        for where in at
        for head in range(8)
    ]

    def metric(last: Tensor) -> Tensor:
        """Of logits ``[... sequence d_vocab]``."""
        return (last[..., 1] - last[..., 2]).mean(-1)

    def library() -> Answers:
        with torch.no_grad():
            found = get_act_patch_attn_head_out_by_pos(bridge, batch.tokens, theirs, lambda x: metric(x[:, -1]))
        yield from ((index, 0, value[None]) for index, value in enumerate(found.flatten()))

    def work() -> Answers:
        for outcome in evaluate(model, batch, replacements):
            for index, value in zip(outcome.indices, metric(outcome.logits), strict=True):
                yield index, outcome.start, value[None]

    works = {"ours": work, "library": library}
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        require_same(works)
        times = side_by_side(works, threads, shape.rounds)
    name = f"patch each head at each position ({shape})"
    yield row(f"{name} / TransformerLens patching", times["ours"], times["library"], 0.1, threads)
    yield limit(name, work, times["ours"], threads)


def rows() -> Iterator[Row]:
    """The rows, each measured when it is asked for."""
    for threads in (1, 2):
        yield from zero_rows(SMALL, threads, 1 / 10, 1 / 3)
        yield from zero_rows(LARGE, threads, 1 / 4, 1 / 1.7)
        yield from zero_rows(SINGLE, threads, 1 / 7, None)
        yield from patching_rows(PATCHED, threads)
        yield from pair_rows(SMALL, threads)
