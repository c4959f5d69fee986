"""Positions, against values worked out by hand and the properties that define them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.model import positions


def test_sinusoidal_by_hand() -> None:
    table = positions.sinusoidal(3, 4)
    for p in range(3):
        expected = [math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)]
        assert table[p].tolist() == pytest.approx(expected, abs=1e-7)


def test_rotary_by_hand() -> None:
    # d_head 4: coordinates (0, 2) turn by 1 radian a position, (1, 3) by 1/100.
    table = positions.rotary_table(3, 4)
    turned = positions.rotate(torch.tensor([[1.0, 0.0, 0.0, 1.0]]).expand(3, 4), table)
    for p in range(3):
        expected = [math.cos(p), -math.sin(p / 100), math.sin(p), math.cos(p / 100)]
        assert turned[p].tolist() == pytest.approx(expected, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.sampled_from([2, 6, 16]))
def test_rotated_products_depend_on_the_offset_only(i: int, j: int, shift: int, d_head: int) -> None:
    generator = torch.Generator().manual_seed(d_head)
    q, k = (torch.randn(d_head, generator=generator).expand(41, d_head) for _ in range(2))
    table = positions.rotary_table(41, d_head)
    q, k = positions.rotate(q, table), positions.rotate(k, table)
    assert float(q[i] @ k[j]) == pytest.approx(float(q[i + shift] @ k[j + shift]), abs=1e-4)
    assert float(q[i].norm()) == pytest.approx(float(q[0].norm()), rel=1e-5)


def test_rotation_at_position_0_is_the_identity_and_leaves_its_input_alone() -> None:
    x = torch.arange(8.0).reshape(2, 4)
    before = x.clone()
    assert torch.equal(positions.rotate(x, positions.rotary_table(2, 4))[0], x[0])
    assert torch.equal(x, before)


def test_alibi_by_hand() -> None:
    assert positions.alibi_slopes(4).tolist() == [1 / 4, 1 / 16, 1 / 64, 1 / 256]
    bias = positions.alibi_bias(3, 4)
    assert bias[0].tolist() == [[0, 0, 0], [-0.25, 0, 0], [-0.5, -0.25, 0]]
    assert torch.equal(bias[1] * 4, bias[0])


def test_tables_of_a_longer_context_begin_with_those_of_a_shorter() -> None:
    assert torch.equal(positions.sinusoidal(9, 6)[:5], positions.sinusoidal(5, 6))
    assert torch.equal(positions.rotary_table(9, 6)[:, :5], positions.rotary_table(5, 6))
    assert torch.equal(positions.alibi_bias(9, 3)[:, :5, :5], positions.alibi_bias(5, 3))
