"""The repeated-tokens task: its sequences by hand, its ceiling by enumeration, its floor, its errors."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.repeated_tokens import TASK, RepeatedTokens
from workbench.errors import WorkbenchError
from workbench.rng import stream
from workbench.task import IGNORE

TINY = RepeatedTokens(n_ctx=6, d_vocab=5, period_min=2, period_max=3)


def enumerate_sequences(task: RepeatedTokens) -> dict[tuple[int, ...], float]:
    """Every content sequence of a tiny task with its probability."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for period in task.periods:
        blocks = list(itertools.permutations(range(1, task.d_vocab), period))
        for block in blocks:
            sequence = tuple(block[i % period] for i in range(task.content))
            found[sequence] += 1 / len(task.periods) / len(blocks)
    return found


def brute_loss(sequences: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], list[float]]:
    """-ln p(next | prefix) at each position, from the enumeration alone."""
    prefixes: dict[tuple[int, ...], float] = defaultdict(float)
    for sequence, p in sequences.items():
        for i in range(len(sequence) + 1):
            prefixes[sequence[:i]] += p
    return {s: [-math.log(prefixes[s[: i + 1]] / prefixes[s[:i]]) for i in range(len(s))] for s in sequences}


@pytest.mark.parametrize("task", [TINY, RepeatedTokens(n_ctx=7, d_vocab=4, period="fixed", period_min=2, period_max=3)])
def test_ceiling_and_bayes_loss_by_enumeration(task):
    sequences = enumerate_sequences(task)
    assert sum(sequences.values()) == pytest.approx(1)
    losses = brute_loss(sequences)
    mean = sum(p * sum(losses[s]) for s, p in sequences.items()) / task.content
    assert task.ceiling().loss == pytest.approx(mean, abs=1e-12)
    batch = task.sample(64, "train", stream(0, "enumeration"))
    for row, loss in zip(batch.tokens, task.bayes_loss(batch), strict=True):
        assert loss[:-1].tolist() == pytest.approx(losses[tuple(row[1:].tolist())], abs=1e-6)
        assert loss[-1] == 0


def test_ceiling_is_the_entropy_of_the_period_and_the_block():
    """T x ceiling = H(min(P, T)) + E[sum over j < P of ln(V' - j)]: an independent closed form."""
    entropy = math.log(15)
    blocks = sum(sum(math.log(64 - j) for j in range(p)) for p in range(6, 21)) / 15
    assert 47 * TASK.ceiling().loss == pytest.approx(entropy + blocks, abs=1e-9)
    assert TASK.ceiling().accuracy == 1.0


def test_floor_is_the_mean_of_one_over_the_period():
    assert TINY.floor().accuracy == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert TASK.floor().accuracy == pytest.approx(0.0876, abs=1e-4)


@given(st.integers(6, 20), st.integers(5, 40), st.data(), st.sampled_from(["varying", "fixed"]), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_sequences_are_what_they_say(n_ctx, d_vocab, data, period, seed):
    longest = min(n_ctx - 3, d_vocab - 1)
    if longest < 2:
        return
    low = data.draw(st.integers(2, longest))
    task = RepeatedTokens(n_ctx, d_vocab, period, low, data.draw(st.integers(low, longest)))
    batch = task.sample(5, "train", stream(seed, "property"))
    batch.check(d_vocab, task.name)
    for i in range(5):
        tokens, p = batch.tokens[i].tolist(), int(batch.positions["block_end"][i])
        assert p in task.periods
        assert tokens.count(0) == 1
        assert tokens[0] == 0
        content = tokens[1:]
        assert len(set(content[:p])) == p
        assert all(content[j] == content[j - p] for j in range(p, len(content)))
        assert batch.targets[i].tolist() == [*content, IGNORE]
        # Scored: the token occurred before, and the next one lies in the context.
        seen = [q > 0 and tokens[q] in tokens[1:q] and q < n_ctx - 1 for q in range(n_ctx)]
        assert batch.scored[i].tolist() == seen
        for q in range(n_ctx):
            earlier = [k for k in range(q) if tokens[k] == tokens[q]]
            assert batch.key_masks["previous_occurrences"][i, q].nonzero().flatten().tolist() == earlier
            assert batch.key_masks["induction"][i, q].nonzero().flatten().tolist() == [k + 1 for k in earlier]


def test_a_perfect_induction_head_is_always_right_where_scored():
    batch = TASK.sample(16, "test", stream(3, "oracle"))
    for i, q in batch.scored.nonzero().tolist():
        keys = batch.key_masks["induction"][i, q]
        assert set(batch.tokens[i][keys].tolist()) == {int(batch.targets[i, q])}


def test_a_fixed_period_is_the_midpoint_and_varying_ones_are_all_drawn():
    fixed = RepeatedTokens(period="fixed")
    assert fixed.periods == (13,)
    assert set(TASK.sample(600, "train", stream(0, "all")).positions["block_end"].tolist()) == set(range(6, 21))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period_max": 46}, r"too long for the context: expected at most 45"),
        ({"period_min": 9, "period_max": 8}, r"do not make a range"),
        ({"period_min": 1}, r"do not make a range"),
        ({"d_vocab": 20}, r"vocabulary is too small for a block.*at least 21"),
    ],
)
def test_impossible_options_are_one_clear_error(options, message):
    with pytest.raises(WorkbenchError, match=message):
        RepeatedTokens(**options)


def test_the_longest_period_that_fits_is_accepted():
    batch = RepeatedTokens(n_ctx=48, period_min=45, period_max=45).sample(4, "train", stream(0, "edge"))
    assert batch.scored.sum(dim=1).tolist() == [1] * 4


def test_unknown_split_is_an_error():
    with pytest.raises(WorkbenchError, match="train or validation or test"):
        TASK.sample(1, "tset", stream(0, "x"))


def test_period_draws_are_independent_of_the_blocks():
    batch = TASK.sample(2000, "train", stream(1, "independence"))
    first = batch.tokens[:, 1].double()
    period = batch.positions["block_end"].double()
    assert abs(torch.corrcoef(torch.stack([first, period]))[0, 1]) < 0.08
