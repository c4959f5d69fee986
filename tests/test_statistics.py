"""Intervals and tests: against scipy, by hand, and by how often they cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from workbench.errors import WorkbenchError
from workbench.rng import numpy_stream
from workbench.statistics import (
    clopper_pearson,
    equivalence,
    holm,
    mean_interval,
    mean_intervals,
    paired_interval,
    resample_weights,
    sign_flip_p,
    spearman,
    wilson,
)

UNSEEN_256 = 1 - 0.025 ** (1 / 256)


def test_resamples_draw_as_many_as_there_are_and_repeat_by_seed():
    weights = resample_weights(7, 3, 50)
    counts = weights * 7
    assert weights.shape == (50, 7)
    assert np.array_equal(counts, counts.round())
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert np.array_equal(weights, resample_weights(7, 3, 50))
    assert not np.array_equal(weights, resample_weights(7, 4, 50))
    with pytest.raises(ValueError, match="read-only"):
        weights[0, 0] = 1


def test_the_bootstrap_is_near_the_normal_interval_of_a_large_sample():
    x = numpy_stream(0, "test").normal(2, 3, 2000)
    interval = mean_interval(x)
    half = 1.96 * x.std() / np.sqrt(2000)
    assert interval.value == x.mean()
    assert interval.n == 2000
    assert interval.low == pytest.approx(x.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(x.mean() + half, abs=0.1 * half)


def test_the_bootstrap_covers_about_as_often_as_it_says():
    stream = numpy_stream(1, "coverage")
    skewed = stream.exponential(1.0, (60, 400))
    low, high = mean_intervals(skewed)
    covered = ((low < 1) & (high > 1)).mean()
    assert 0.89 < covered < 0.97


def test_many_intervals_equal_each_alone():
    x = numpy_stream(2, "many").random((40, 2, 3))
    x[:, 1, 2] = 1.0
    low, high = mean_intervals(x, bounds=(0, 1))
    assert low.shape == high.shape == (2, 3)
    for index in np.ndindex(2, 3):
        alone = mean_interval(x[(slice(None), *index)], bounds=(0, 1))
        assert (low[index], high[index]) == pytest.approx((alone.low, alone.high), abs=1e-12)


def test_a_saturated_sample_has_the_exact_bound_and_never_width_zero():
    ones, zeros = mean_interval(np.ones(256), bounds=(0, 1)), mean_interval(np.zeros(256), bounds=(0, 1))
    assert ones.value == ones.high == 1
    assert ones.low == pytest.approx(1 - UNSEEN_256)
    assert ones.low == pytest.approx(clopper_pearson(256, 256).low)
    assert (zeros.low, zeros.high) == pytest.approx((0, UNSEEN_256))
    between = mean_interval(np.full(256, 0.4), bounds=(0, 1))
    assert (between.low, between.high) == pytest.approx((0.4 * (1 - UNSEEN_256), 0.4 * (1 - UNSEEN_256) + UNSEEN_256))
    rounded = mean_interval(1 - 1e-9 * np.arange(256), bounds=(0, 1))
    assert rounded.low == pytest.approx(1 - UNSEEN_256, abs=1e-6)
    unbounded = mean_interval(np.full(5, 3.0))
    assert (unbounded.low, unbounded.high) == (-np.inf, np.inf)


def test_one_sequence_says_next_to_nothing():
    interval = mean_interval([0.5], bounds=(0, 1))
    assert (interval.low, interval.high) == pytest.approx((0.0125, 0.9875))


def test_pairing_takes_out_what_sequences_share():
    stream = numpy_stream(3, "pairs")
    clean = stream.normal(0, 5, 100)
    ablated = clean + 1 + stream.normal(0, 0.1, 100)
    effect = paired_interval(ablated, clean)
    assert effect.value == pytest.approx((ablated - clean).mean())
    assert 0.95 < effect.low < effect.high < 1.05
    equal = paired_interval(np.ones(256), np.ones(256), bounds=(0, 1))
    assert (equal.low, equal.high) == pytest.approx((-UNSEEN_256, UNSEEN_256))
    with pytest.raises(WorkbenchError, match="not paired"):
        paired_interval(np.ones(3), np.ones(4))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_binomial_intervals_equal_scipys(case):
    k, n = case
    for ours, method in ((clopper_pearson(k, n), "exact"), (wilson(k, n), "wilson")):
        theirs = stats.binomtest(k, n).proportion_ci(0.95, method)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
        assert ours.value == k / n


@pytest.mark.parametrize("case", [(-1, 4), (5, 4), (0, 0)])
def test_an_impossible_share_is_an_error(case):
    for interval in (clopper_pearson, wilson):
        with pytest.raises(WorkbenchError, match="a share cannot be formed"):
            interval(*case)


def test_holm_by_hand():
    # Sorted .01 .02 .03 .04 times 4 3 2 1: .04 .06 .06 .04, made to rise: .04 .06 .06 .06.
    np.testing.assert_allclose(holm([0.04, 0.01, 0.03, 0.02]), [0.06, 0.04, 0.06, 0.06])
    np.testing.assert_allclose(holm([0.6, 0.7]), [1, 1])
    assert holm([]).shape == (0,)


def test_sign_flips_by_hand():
    # All five differences alike: of 32 sign patterns 2 reach the seen mean.
    assert sign_flip_p(np.ones(5)) == pytest.approx(2 / 32, abs=0.008)
    assert sign_flip_p(np.zeros(9)) == 1
    assert sign_flip_p(np.ones(40)) == pytest.approx(1 / 10_001)
    x = numpy_stream(4, "flips").normal(0.3, 1, 50)
    assert sign_flip_p(x) == pytest.approx(stats.ttest_1samp(x, 0).pvalue, abs=0.01)
    assert sign_flip_p(x) == sign_flip_p(-x)


def test_equivalence_by_hand():
    near, far = np.tile([-0.01, 0.01], 100), np.tile([0.1, 0.3], 100)
    assert equivalence(near, 0.05).verdict == "supported"
    assert equivalence(far, 0.05).verdict == "contradicted"
    assert equivalence(-far, 0.05).verdict == "contradicted"
    assert equivalence(far, 0.2).verdict == "inconclusive"
    assert equivalence(np.zeros(256), 0.02, bounds=(-1, 1)).verdict == "supported"
    assert equivalence(np.zeros(64), 0.02, bounds=(-1, 1)).verdict == "inconclusive"
    with pytest.raises(WorkbenchError, match="a number above 0"):
        equivalence(near, 0.0)


def test_samples_that_cannot_be_used_are_errors():
    with pytest.raises(WorkbenchError, match="a sample is empty"):
        mean_interval([])
    with pytest.raises(WorkbenchError, match=r"not finite.*got 1 that are not"):
        mean_intervals(np.array([[1.0, np.nan], [2.0, 3.0]]))
    with pytest.raises(WorkbenchError, match="not finite"):
        sign_flip_p([np.inf])


@pytest.mark.parametrize("off", range(6))
def test_a_few_values_off_the_common_one_give_the_exact_bound_and_more_are_resampled(off):
    """With k of n values off, at most the upper Clopper-Pearson share can be, each as far as the bounds allow."""
    sample = np.zeros(400)
    sample[:off] = 0.1
    at = mean_interval(sample, bounds=(0, 1))
    exact = stats.beta.ppf(0.975, off + 1, 400 - off)
    if off <= 4:
        assert at.high == pytest.approx(exact, rel=1e-6)
        assert at.low == 0.0
    else:
        assert at.high < 0.1 * exact


def test_rounding_noise_is_no_spread_between_sequences():
    at = mean_interval(0.0233881 + 1e-8 * np.arange(50) / 50)
    assert (at.low, at.high) == (-np.inf, np.inf)


def test_spearman_by_hand():
    """Ranks (1, 2, 3, 4) and (2, 1, 4, 3): squared differences sum to 4, so rho = 1 - 6 * 4 / (4 * 15) = 0.6. A tie
    shares its mean rank: (1.5, 1.5, 3) against (1, 2, 3) is 1.5 / sqrt(1.5 * 2)."""
    one = np.array([[10.0, 20.0, 30.0, 40.0], [1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]])
    other = np.array([[2.0, 1.0, 4.0, 3.0], [4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    found = spearman(one, other)
    assert found[:2] == pytest.approx([0.6, -1.0])
    assert np.isnan(found[2])
    assert spearman(np.array([[1.0, 1.0, 2.0]]), np.array([[1.0, 2.0, 3.0]]))[0] == pytest.approx(1.5 / math.sqrt(3))
