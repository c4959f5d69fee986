"""Verdicts about a behaviour, by hand: thresholds, margins in each resample, saturation."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.behaviour import keeps, removed, there
from workbench.rng import numpy_stream
from workbench.statistics import mean_interval

ONES, ZEROS = np.ones(256), np.zeros(256)


def near(mean: float, spread: float = 0.02, seed: int = 0) -> np.ndarray:
    return mean + numpy_stream(seed, "near").uniform(-spread, spread, 256)


def test_there_compares_with_a_quarter_of_the_way_to_the_ceiling():
    assert there(ONES, 0.1).threshold == pytest.approx(0.1 + 0.25 * 0.9)
    assert there(ONES, 0.1, 0.5).threshold == pytest.approx(0.1 + 0.25 * 0.4)
    assert there(near(0.4), 0.1).verdict == "supported"
    assert there(near(0.25), 0.1).verdict == "contradicted"
    assert there(near(0.325, 0.2), 0.1).verdict == "inconclusive"
    assert there(near(0.25), 0.1, 0.5).verdict == "supported"


def test_removed_compares_with_a_tenth_of_the_way_to_clean():
    judged = removed(near(0.9), near(0.1), 0.1)
    assert judged.threshold == pytest.approx(0.1 + 0.1 * (near(0.9).mean() - 0.1))
    assert judged.value == near(0.1).mean()
    assert (judged.verdict, judged.direction, judged.n) == ("supported", "below", 256)
    assert removed(near(0.9), near(0.3), 0.1).verdict == "contradicted"
    assert removed(near(0.9), near(0.18, 0.2), 0.1).verdict == "inconclusive"


def test_keeps_compares_with_a_share_of_clean():
    assert keeps(near(0.9), near(0.89), 0.95).verdict == "supported"
    assert keeps(near(0.9), near(0.8), 0.95).verdict == "contradicted"
    assert keeps(near(0.9), near(0.8), 0.8).verdict == "supported"
    assert keeps(near(0.9), near(0.855, 0.3), 0.95).verdict == "inconclusive"
    assert keeps(ONES, ONES).threshold == 0.95


def test_the_threshold_moves_with_clean_in_each_resample():
    # Sequences vary much, but each keeps 97 % of its own accuracy: paired that is certain, unpaired it is not.
    clean = numpy_stream(1, "wide").uniform(0.2, 1.0, 64)
    ablated = 0.97 * clean
    judged = keeps(clean, ablated)
    assert judged.verdict == "supported"
    assert judged.low > judged.threshold
    assert mean_interval(ablated).low < judged.threshold
    margin = mean_interval(ablated - 0.95 * clean)
    assert (judged.low, judged.high) == pytest.approx((judged.threshold + margin.low, judged.threshold + margin.high))


@pytest.mark.parametrize(
    "judged",
    [there(ONES, 0.1), there(ZEROS, 0.1), removed(ONES, ZEROS, 0.1), removed(ONES, ONES, 0.1), keeps(ONES, ONES)],
)
def test_a_saturated_case_is_decided_and_its_interval_has_a_width(judged):
    assert judged.verdict != "inconclusive"
    assert 0.01 < judged.high - judged.low < 0.03
    assert 0 <= judged.low <= judged.value <= judged.high <= 1


def test_saturated_bounds_by_hand():
    unseen = 1 - 0.025 ** (1 / 256)
    assert there(ONES, 0.1).low == pytest.approx(1 - unseen)
    # Margin -.19 everywhere; unseen sequences could at most have ablated 1 and clean 0: a margin of 1 - .09.
    assert removed(ONES, ZEROS, 0.1).high == pytest.approx(0.19 + (1 - unseen) * -0.19 + unseen * 0.91)
    # Few sequences cannot decide what many can.
    assert keeps(np.ones(16), np.ones(16)).verdict == "inconclusive"


def test_the_verdict_can_be_read_off_the_interval_and_the_reason():
    for seed in range(30):
        judged = removed(near(0.9, 0.1, seed), near(0.18, 0.3, seed + 100), 0.1)
        by_eye = (
            "supported"
            if judged.high < judged.threshold
            else "contradicted"
            if judged.low > judged.threshold
            else "inconclusive"
        )
        assert judged.verdict == by_eye
    assert removed(ONES, ZEROS, 0.1).reason == "accuracy 0.000 [0.000, 0.016] lies below the threshold 0.190"
    assert "straddles the threshold" in there(near(0.325, 0.2), 0.1).reason
    assert "lies above the threshold" in removed(ONES, ONES, 0.1).reason
