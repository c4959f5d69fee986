"""Probes: what every sequence looks like, for any vocabulary, and which periods tell position from matching."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import WorkbenchError
from workbench.probes import impostor_periods, repeated_blocks, varying_periods
from workbench.rng import stream
from workbench.task import Vocabulary


def words(n: int, **special: int) -> Vocabulary:
    return Vocabulary(tuple(f"w{i}" for i in range(n)), **special)


@settings(deadline=None, max_examples=40)
@given(
    n_symbols=st.integers(5, 30),
    n_ctx=st.integers(8, 30),
    special=st.sampled_from([{}, {"bos": 0}, {"bos": 3}, {"bos": 4, "pad": 1}]),
    seed=st.integers(0, 1000),
)
def test_every_sequence_is_a_block_of_distinct_ordinary_tokens_repeated(n_symbols, n_ctx, special, seed):
    vocabulary = words(n_symbols, **special)
    periods = varying_periods(n_ctx, len(vocabulary.ordinary))
    probe = repeated_blocks(vocabulary, 6, n_ctx, periods, stream(seed, "probe"))
    assert probe.tokens.shape == (6, n_ctx)
    assert probe.bos == ("bos" in special)
    assert bool(probe.mask.all())
    for row, period in zip(probe.tokens.tolist(), probe.periods.tolist(), strict=True):
        assert period in periods
        if probe.bos:
            assert row.count(vocabulary.bos) == 1
            assert row[0] == vocabulary.bos
        content = row[1:] if probe.bos else row
        assert set(content) <= set(vocabulary.ordinary)
        assert len(set(content)) == len(set(content[:period])) == period
        assert all(content[i] == content[i - period] for i in range(period, len(content)))


def test_periods_and_first_tokens_are_drawn_uniformly_and_from_the_stream_alone():
    vocabulary = words(9, bos=0)
    probe = repeated_blocks(vocabulary, 4000, 12, (2, 5, 8), stream(0, "a"))
    shares = torch.stack([(probe.periods == p).float().mean() for p in (2, 5, 8)])
    assert torch.allclose(shares, torch.full((3,), 1 / 3), atol=0.04)
    first = torch.bincount(probe.tokens[:, 1], minlength=9)[1:] / 4000
    assert torch.allclose(first, torch.full((8,), 1 / 8), atol=0.03)
    again = repeated_blocks(vocabulary, 4000, 12, (2, 5, 8), stream(0, "a"))
    other = repeated_blocks(vocabulary, 4000, 12, (2, 5, 8), stream(0, "b"))
    assert torch.equal(probe.tokens, again.tokens)
    assert not torch.equal(probe.tokens, other.tokens)


@pytest.mark.parametrize(
    ("n", "n_ctx", "periods", "message"),
    [
        (4, 12, (10,), "expected 1 to 9 (a context of 12 with a begin token), got 10"),
        (4, 12, (0, 3), "got 0"),
        (4, 40, (21,), "expected periods up to 20 (the ordinary tokens), got 21"),
        (4, 12, (), "at least one whole number"),
        (0, 12, (4,), "at least 1, got 0"),
    ],
)
def test_impossible_probes_say_what_would_be_possible(n, n_ctx, periods, message):
    with pytest.raises(WorkbenchError) as error:
        repeated_blocks(words(21, bos=0), n, n_ctx, periods, stream(0, "x"))
    assert message in str(error.value)


def test_the_longest_period_that_fits_still_repeats_two_tokens():
    row = repeated_blocks(words(21, bos=0), 1, 12, (9,), stream(0, "x")).tokens[0]
    assert row[10:].tolist() == row[1:3].tolist()


def test_varying_periods():
    assert varying_periods(48, 64) == tuple(range(6, 21))
    assert varying_periods(48, 10) == (6, 7, 8, 9, 10)
    assert varying_periods(12, 64) == (6, 7, 8, 9)
    assert varying_periods(48, 6) == (3, 4, 5, 6)
    assert varying_periods(5, 64) == (1, 2)
    with pytest.raises(WorkbenchError, match="no varying periods fit"):
        varying_periods(4, 64)


def test_impostor_periods_leave_out_what_divides_a_multiple():
    assert impostor_periods(13, 48, range(6, 21)) == (6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20)
    assert impostor_periods(16, 48, range(6, 21)) == (6, 7, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20)
    assert impostor_periods(12, 48, range(6, 21)) == (7, 10, 11, 13, 14, 15, 16, 17, 19, 20)
    assert impostor_periods(2, 8, (1, 2, 3)) == ()


@given(fixed=st.integers(2, 20), n_ctx=st.integers(21, 60))
def test_on_impostor_periods_no_multiple_of_the_fixed_period_is_a_repeat(fixed, n_ctx):
    for period in impostor_periods(fixed, n_ctx, range(2, 21)):
        assert not set(range(fixed, n_ctx, fixed)) & set(range(period, n_ctx, period))
