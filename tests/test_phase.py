"""The bracket of a phase change, by hand."""

from __future__ import annotations

import pytest

from workbench.errors import WorkbenchError
from workbench.phase import phase_change


def test_bracket_by_hand():
    # Rise 1.0 from 0: 90 % first reached at step 40 (0.95), last at or below 10 % before that at step 20 (0.1).
    change = phase_change([0, 10, 20, 30, 40, 50], [0.0, 0.05, 0.1, 0.5, 0.95, 1.0])
    assert (change.low, change.high, change.rise) == (20.0, 40.0, 1.0)


def test_a_dip_after_the_rise_does_not_move_the_bracket():
    change = phase_change([0, 1, 2, 3, 4], [0.2, 0.2, 0.9, 0.3, 1.0])
    # Rise 0.8; 0.9 is 87.5 % of it, so the upper end is step 4; the last at or below 10 % (0.28) before it is step 1.
    assert (change.low, change.high) == (1.0, 4.0)


def test_a_rise_under_a_fifth_is_none():
    change = phase_change([0, 1], [0.5, 0.69])
    assert change.low is None
    assert change.high is None
    assert "0.19" in change.reason


@pytest.mark.parametrize(("steps", "values"), [([0], [0.1]), ([0, 1], [0.1])])
def test_too_few_values_are_an_error(steps, values):
    with pytest.raises(WorkbenchError, match="a value a checkpoint"):
        phase_change(steps, values)
