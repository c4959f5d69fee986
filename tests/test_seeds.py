"""Intervals over seeds, against values worked out by hand and by scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workbench.errors import WorkbenchError
from workbench.seeds import seed_interval, t_quantile
from workbench.statistics import clopper_pearson


def test_worked_out_by_hand() -> None:
    # mean .92, s = .02, t(2) = 4.302653: half = 4.302653 * .02 / sqrt 3 = .0496828
    at = seed_interval([0.9, 0.92, 0.94], 10**6)
    assert (at.value, at.low, at.high) == pytest.approx((0.92, 0.92 - 0.0496828, 0.92 + 0.0496828), abs=1e-6)
    assert (at.n, at.samples) == (3, "seeds")


@pytest.mark.parametrize(("degrees", "value"), [(1, 12.7062), (4, 2.7764), (9, 2.2622)])
def test_quantiles_of_t(degrees: int, value: float) -> None:
    assert t_quantile(degrees) == pytest.approx(value, abs=1e-4)


def test_where_all_seeds_agree_the_sequences_of_one_run_decide() -> None:
    at = seed_interval([1.0] * 5, 512)
    assert (at.low, at.high) == (pytest.approx(0.025 ** (1 / 512)), 1.0)
    middle, exact = seed_interval([0.5, 0.5], 100), clopper_pearson(50, 100)
    assert (middle.low, middle.high) == (exact.low, exact.high)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.integers(10, 2000))
def test_it_holds_the_t_interval_and_stays_inside(accuracies: list[float], trials: int) -> None:
    at = seed_interval(accuracies, trials)
    assert 0 <= at.low <= at.value + 1e-12
    assert at.value - 1e-12 <= at.high <= 1
    assert at.high > at.low
    spread = float(np.std(accuracies, ddof=1))
    if spread > 1e-6:
        low, high = stats.t.interval(0.95, len(accuracies) - 1, np.mean(accuracies), spread / np.sqrt(len(accuracies)))
        assert at.low <= max(0.0, low) + 1e-9
        assert at.high >= min(1.0, high) - 1e-9


@pytest.mark.parametrize("accuracies", [[], [0.5], [0.5, 1.5], [0.5, float("nan")]])
def test_what_cannot_be_an_accuracy(accuracies: list[float]) -> None:
    with pytest.raises(WorkbenchError, match="an interval over seeds cannot be formed"):
        seed_interval(accuracies, 100)
