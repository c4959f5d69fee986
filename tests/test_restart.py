"""Restarted passes against the hooks: over every model option, and for what they share, count and refuse."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.drawn_models import NORMS, POSITIONS, build, relative
from tests.small_models import hooks_left
from workbench.attend import FEW
from workbench.errors import WorkbenchError
from workbench.hooks import Edit, intervene
from workbench.linear_parts import LinearParts, Reading
from workbench.model.transformer import Transformer
from workbench.replacements import Put, Replacement
from workbench.restart import evaluate
from workbench.state_tree import CANCELLED, WORTH
from workbench.task import Batch

D_HEAD = 6
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def sequences(n: int = 3, t: int = 8, padding: str = "none", scored: str = "some", seed: int = 0) -> Batch:
    """Random tokens, perhaps padded on one side, at least one position of each sequence scored."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 11, (n, t), generator=generator)
    length = torch.randint(t // 2, t + 1, (n, 1), generator=generator)
    place = torch.arange(t).expand(n, t)
    mask = {"none": place >= 0, "right": place < length, "left": place >= t - length}[padding]
    last = place == mask.long().mul(place).amax(1, keepdim=True)
    some = (torch.rand(n, t, generator=generator) < 0.4) & mask | last
    return Batch(tokens, mask, tokens.roll(-1, 1), {"last": last, "some": some, "all": mask}[scored])


def by_hooks(model: Transformer, batch: Batch, replacement: Replacement) -> Tensor:
    """Logits at the scored positions of one explicit pass under edits."""

    def edit(put: Put) -> Edit:
        at = batch.mask | True if put.at is None else put.at

        def change(x: Tensor) -> Tensor:
            x = x.clone()
            mine = x[:, :, put.head] if put.stream == "z" else x
            mine.copy_(torch.where(at[..., None], put.value, mine))
            return x

        top = put.layer == model.config.n_layers
        point = {"z": "attn.hook_z", "mlp_out": "hook_mlp_out", "resid_pre": f"hook_resid_{'post' if top else 'pre'}"}
        return Edit(f"blocks.{put.layer - top}.{point[put.stream]}", change, "put")

    with torch.no_grad(), intervene(model, [edit(put) for put in replacement]):
        return model(batch.tokens, batch.mask, path="explicit")[batch.scored]


def restarted(
    model: Transformer, batch: Batch, replacements: Sequence[Replacement], chunk_tokens: int = 4096
) -> tuple[list[Tensor], list[Tensor]]:
    """For each replacement the logits at the scored positions of the whole batch, and where it fired."""
    logits: list[list[Tensor]] = [[] for _ in replacements]
    fired: list[list[Tensor]] = [[] for _ in replacements]
    for outcome in evaluate(model, batch, replacements, chunk_tokens=chunk_tokens):
        assert len(outcome.indices) == len(outcome.logits) == len(outcome.fired)
        for i, index in enumerate(outcome.indices):
            logits[index].append(outcome.logits[i])
            fired[index].append(outcome.fired[i])
    return [torch.cat(pieces) for pieces in logits], [torch.cat(pieces) for pieces in fired]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Transformer, Batch, list[Replacement], int]:
    """A model of any shape, a batch, and replacements that overlap, share values and repeat each other."""
    options = {
        "n_layers": draw(st.integers(1, 3)), "n_heads": draw(st.sampled_from((1, 2, 4))), "d_head": D_HEAD,
        "positions": draw(st.sampled_from(POSITIONS)), "norm": draw(st.sampled_from(NORMS)),
        "d_mlp": draw(st.sampled_from((0, 20))), "scale_scores": draw(st.booleans()),
        "attention": draw(st.sampled_from(("learned", "learned", "uniform"))),
    }  # fmt: skip
    seed = draw(st.integers(0, 1000))
    model = build(seed, **options).to(draw(st.sampled_from((torch.float32, torch.float64))))
    batch = sequences(
        3, draw(st.integers(2, 12)), draw(st.sampled_from(("none", "left", "right"))),
        draw(st.sampled_from(("last", "some", "all"))), seed,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    dtype, shape = model.unembed.W_U.dtype, batch.tokens.shape
    values = {
        # No constant but 0 in the stream: a norm divides what rounding leaves of it by next to nothing.
        width: [
            0.0,
            0.7 * (width == D_HEAD),
            *(torch.randn(*size, width, generator=generator, dtype=dtype) for size in (shape, shape[1:])),
        ]
        for width in (D_HEAD, 16)
    }
    masks = [None, torch.rand(shape, generator=generator) < 0.5, torch.arange(shape[1]).expand(shape) == 1]
    c = model.config
    streams = ["z", "z", "resid_pre", *(["mlp_out"] if c.d_mlp else [])]

    @st.composite
    def puts(draw: st.DrawFn) -> Put:
        stream = draw(st.sampled_from(streams))
        layer = draw(st.integers(0, c.n_layers - (stream != "resid_pre")))
        head = draw(st.integers(0, c.n_heads - 1)) if stream == "z" else None
        value = draw(st.sampled_from(values[D_HEAD if stream == "z" else 16]))
        return Put(stream, layer, value, draw(st.sampled_from(masks)), head)

    replacements = draw(st.lists(st.lists(puts(), max_size=4), min_size=1, max_size=6))
    return model, batch, [*replacements, replacements[0], []], draw(st.sampled_from((1, 12, 60, 4096)))


@settings(max_examples=120, deadline=None)
@given(cases(), st.sampled_from((0, 0, WORTH, 10**9)))
def test_equals_the_hooks_for_every_option(case: tuple[Transformer, Batch, list[Replacement], int], worth: int) -> None:
    model, batch, replacements, chunk_tokens = case
    with patch("workbench.state_tree.WORTH", worth):
        logits, fired = restarted(model, batch, replacements, chunk_tokens)
    for replacement, mine, took in zip(replacements, logits, fired, strict=True):
        assert relative(mine, by_hooks(model, batch, replacement)) < TOLERANCE[mine.dtype]
        real = [(batch.mask if put.at is None else batch.mask & put.at).any(1) for put in replacement]
        expected = torch.stack(real).all(0) if real else torch.zeros(len(batch), dtype=torch.bool)
        assert torch.equal(took, expected)
    assert hooks_left(model) == 0


def test_equals_the_hooks_where_weights_are_large() -> None:
    """As training leaves them, and far beyond: sharp attention, and heads whose removal leaves little of the stream."""
    batch = sequences(4, 12, scored="all")
    for scale, d_mlp in itertools.product((3.0, 30.0, 1000.0), (0, 20)):
        model = build(1, n_layers=3, n_heads=4, positions="learned", d_mlp=d_mlp)
        with torch.no_grad():
            for block in model.blocks:
                block.attn.W_O[0] *= scale
                for name in ("W_Q", "W_K"):
                    getattr(block.attn, name).mul_(2)
        replacements = [[Put("z", layer, 0.0, head=head)] for layer in range(3) for head in range(4)]
        logits, _ = restarted(model, batch, replacements)
        exact = [by_hooks(model.double(), batch, replacement) for replacement in replacements]
        worst = max(relative(a.double(), b) for a, b in zip(logits, exact, strict=True))
        hooks = max(
            relative(by_hooks(model.float(), batch, r).double(), e) for r, e in zip(replacements, exact, strict=True)
        )
        assert worst < max(1e-5, 2 * hooks), (scale, d_mlp, worst, hooks)


def test_a_change_that_leaves_little_is_computed_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking away a write a million times the rest: by addition nothing true would be left of it in float32."""
    model = build(2, n_layers=2, n_heads=4, positions="learned")
    with torch.no_grad():
        model.blocks[0].attn.W_O[1] *= 1e6
    batch, gone = sequences(scored="all"), [Put("z", 0, 0.0, head=1)]
    assert relative(restarted(model, batch, [gone])[0][0], by_hooks(model, batch, gone)) < 1e-5
    monkeypatch.setattr("workbench.state_tree.WORTH", 0)
    assert relative(restarted(model, batch, [gone])[0][0], by_hooks(model, batch, gone)) < 1e-5
    monkeypatch.setattr("workbench.state_tree.CANCELLED", float("inf"))
    assert relative(restarted(model, batch, [gone])[0][0], by_hooks(model, batch, gone)) > 1e-3
    assert CANCELLED > 1


def test_an_empty_replacement_is_the_clean_pass_bitwise() -> None:
    model, batch = build(3, n_layers=2, d_mlp=20), sequences()
    clean = restarted(model, batch, [[]])[0][0]
    assert relative(clean, model(batch.tokens, batch.mask)[batch.scored]) < 2e-6
    among, fired = restarted(model, batch, [[], [Put("z", 1, 0.0, head=0)], []])
    assert torch.equal(among[0], among[2])
    assert torch.equal(among[0], clean)
    assert [int(f.sum()) for f in fired] == [0, 3, 0]


def test_batch_equals_singles_and_chunks_change_rounding_only() -> None:
    model, batch = build(4, n_layers=3, n_heads=4), sequences(6, 9, padding="right")
    value = torch.randn(6, 9, D_HEAD)
    replacements: list[Replacement] = [[Put("z", i, value, head=j)] for i in range(3) for j in range(4)]
    replacements += [[*a, *b] for a, b in itertools.combinations(replacements, 2)]
    whole, _ = restarted(model, batch, replacements)
    for tokens in (1, 20, 100):
        for a, b in zip(whole, restarted(model, batch, replacements, tokens)[0], strict=True):
            assert relative(a, b) < 1e-6
    pieces = [
        restarted(model, batch[i : i + 1], [[replace(put, value=value[i : i + 1]) for put in r] for r in replacements])[
            0
        ]
        for i in range(6)
    ]
    for a, b in zip(whole, zip(*pieces, strict=True), strict=True):
        assert relative(a, torch.cat(b)) < 1e-6


def test_what_pairs_share_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2 x 4 heads, the clean state, 4 single ones and 6 pairs below pass the second layer; nothing else does."""
    seen = []
    finish = LinearParts.after_heads

    def counted(self: LinearParts, index: int) -> Reading:
        return finish(self, index)

    monkeypatch.setattr(LinearParts, "after_heads", counted)
    project = Reading.finish

    def watch(self: Reading, projection: object, size: Tensor, *part: slice) -> Tensor:
        if not self.by_row and part and part[0].start == 0:
            seen.append(len(size))
        return project(self, projection, size, *part)

    monkeypatch.setattr(Reading, "finish", watch)
    model, batch = build(5, n_layers=2, n_heads=4), sequences()
    mean = torch.randn(8, 2, 4, D_HEAD)
    # A new view for every use: what counts is the place in memory.
    singles = [lambda i=i, j=j: Put("z", i, mean[:, i, j], head=j) for i in range(2) for j in range(4)]
    pairs = [[a(), b()] for a, b in itertools.combinations(singles, 2)]
    logits, _ = restarted(model, batch, pairs)
    assert seen == [1, 4 + 6 + 1]
    for pair, mine in zip(pairs, logits, strict=True):
        assert relative(mine, by_hooks(model, batch, pair)) < 1e-5


def test_a_chunk_bounds_what_is_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    most = []
    project = Reading.project

    def watch(self: Reading, x: Tensor) -> object:
        most.append(x.shape[0] * x.shape[1] * x.shape[2])
        return project(self, x)

    monkeypatch.setattr(Reading, "project", watch)
    model, batch = build(6, n_layers=3, n_heads=4, d_mlp=20), sequences(20, 8)
    singles = [[Put("z", i, 0.0, head=j)] for i in range(3) for j in range(4)]
    pairs = [[*a, *b] for a, b in itertools.combinations(singles, 2)]
    for outcome in evaluate(model, batch, pairs, chunk_tokens=64):
        assert outcome.stop - outcome.start <= 8
        assert outcome.logits.shape[0] * outcome.logits.shape[1] <= 64
    assert max(most) <= 64


def test_gradients_and_the_callers_mode_are_left_alone() -> None:
    model, batch = build(7), sequences()
    for outcome in evaluate(model, batch, [[], [Put("z", 0, 0.0, head=0)]]):
        assert torch.is_grad_enabled()
        assert not outcome.logits.requires_grad
    assert list(evaluate(model, batch, [])) == []


def test_few_scored_positions_are_gathered_first() -> None:
    """Both ways to the scored positions are taken by the tests above; here they meet on one batch."""
    model, batch = build(8, n_layers=2, positions="rotary"), sequences(2, 12, scored="all")
    few = torch.arange(12).expand(2, 12) % 3 == 1
    assert few.float().mean() < FEW
    gone = [Put("z", 0, 0.0, head=1)]
    all_logits = restarted(model, batch, [gone])[0][0].view(2, 12, -1)
    assert relative(restarted(model, replace(batch, scored=few), [gone])[0][0], all_logits[few]) < 1e-6


SHAPE = (3, 8)


@pytest.mark.parametrize(
    ("put", "says"),
    [
        (Put("y", 0, 0.0), "unknown stream 'y'"),
        (Put("z", 2, 0.0, head=0), "there is no z at layer 2: expected 0 to 1"),
        (Put("resid_pre", 3, 0.0), "expected 0 to 2"),
        (Put("mlp_out", 0, 0.0), "attention-only"),
        (Put("z", 0, 0.0, head=2), "head 0 to 1, got 2"),
        (Put("z", 0, 0.0), "head 0 to 1, got None"),
        (Put("resid_pre", 0, 0.0, head=0), "has no heads"),
        (Put("z", 0, torch.zeros(4, 8, D_HEAD), head=0), "what broadcasts to (3, 8, 6), got (4, 8, 6)"),
        (Put("z", 0, torch.zeros(2, 3, 8, D_HEAD), head=0), "what broadcasts to (3, 8, 6)"),
        (Put("resid_pre", 0, torch.zeros(D_HEAD)), "what broadcasts to (3, 8, 16), got (6,)"),
        (Put("z", 0, 0.0, torch.ones(3, 7, dtype=torch.bool), 0), "a mask of positions does not fit"),
    ],
)  # fmt: skip
def test_what_cannot_be_put_is_said_at_once(put: Put, says: str) -> None:
    model = build(9, n_layers=2)
    with pytest.raises(WorkbenchError) as error:
        evaluate(model, sequences(*SHAPE), [[put]])
    assert says in str(error.value)
    assert hooks_left(model) == 0


def test_what_cannot_be_evaluated_is_said_at_once() -> None:
    model, batch = build(9), sequences(*SHAPE)
    with pytest.raises(WorkbenchError, match="chunk_tokens"):
        evaluate(model, batch, [[]], chunk_tokens=0)
    silent = batch.scored.clone()
    silent[1] = False
    with pytest.raises(WorkbenchError, match="none in sequence 1"):
        evaluate(model, replace(batch, scored=silent), [[]])
    with pytest.raises(WorkbenchError, match="longer than the context"):
        evaluate(model, sequences(3, 13), [[]])
    with pytest.raises(WorkbenchError, match="outside the vocabulary"):
        list(evaluate(model, replace(batch, tokens=batch.tokens + 11), [[]]))
