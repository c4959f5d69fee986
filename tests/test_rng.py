"""Streams are addressed: one address gives the same numbers everywhere, two addresses share nothing."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.rng import numpy_stream, stream, stream_seed

names = st.lists(st.one_of(st.integers(0, 50), st.text("abc", min_size=1, max_size=3)), max_size=3)


def test_the_seed_is_the_first_63_bits_of_the_address_hash() -> None:
    digest = hashlib.sha256(b"7\x1ftrain\x1f3").digest()
    assert stream_seed(7, "train", 3) == int.from_bytes(digest[:8], "big") // 2
    assert 0 <= stream_seed(7, "train", 3) < 2**63


@given(st.integers(-3, 3), names, st.integers(-3, 3), names)
def test_different_addresses_have_different_seeds(a: int, path: list, b: int, other: list) -> None:
    same = (a, [str(p) for p in path]) == (b, [str(p) for p in other])
    assert (stream_seed(a, *path) == stream_seed(b, *other)) == same


def test_a_stream_starts_afresh_and_touches_no_global_state() -> None:
    before = torch.random.get_rng_state()
    first, again = (torch.rand(5, generator=stream(0, "x")) for _ in range(2))
    assert torch.equal(first, again)
    assert np.array_equal(numpy_stream(0, "x").random(5), numpy_stream(0, "x").random(5))
    assert torch.equal(before, torch.random.get_rng_state())


def test_neighbouring_seeds_and_names_are_independent() -> None:
    draws = [torch.randn(4096, generator=stream(seed, "train", step)) for seed in range(4) for step in range(4)]
    correlation = torch.corrcoef(torch.stack(draws)) - torch.eye(16)
    # 120 pairs of independent draws: standard deviation 1/64, so .08 is five of them.
    assert correlation.abs().max() < 0.08
