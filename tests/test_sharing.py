"""Shapley values and the effective number of heads, by hand, by brute force, and on planted circuits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.repeated_tokens import RepeatedTokens
from tests import hand_models
from workbench.components import Head
from workbench.errors import WorkbenchError
from workbench.reference import build_reference
from workbench.rng import numpy_stream
from workbench.sharing import Shapley, effective_number, removal_cost, shapley, sharing

UNSEEN_100 = 1 - 0.025 ** (1 / 100)


def heads(k: int) -> tuple[Head, ...]:
    return tuple(Head(0, i) for i in range(k))


def random_game(k: int, n: int, seed: int):
    stream = numpy_stream(seed, "game")
    worths = {bits: stream.normal(size=n) for bits in range(1, 2**k)}
    return lambda subset: worths.get(sum(1 << h.head for h in subset), np.zeros(n))


def each(game):
    """The game asked for many sets at once."""
    return lambda subsets: [game(subset) for subset in subsets]


def test_a_redundant_pair_shares_alike_and_two_needed_ones_too():
    def either(removed):
        return np.full(5, 1.0 if len(removed) == 2 else 0.0)

    def both(removed):
        return np.full(5, 1.0 if removed else 0.0)

    for game in (either, both):
        np.testing.assert_allclose(shapley(each(game), heads(2)).values, 0.5)


def test_the_glove_game_by_hand():
    # A left glove (H0) and two right ones: the pair needs H0, worth 2/3; the others 1/6 each.
    def game(subset):
        return np.full(3, float(Head(0, 0) in subset and len(subset) >= 2))

    np.testing.assert_allclose(shapley(each(game), heads(3)).values[:, 0], [2 / 3, 1 / 6, 1 / 6])


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(0, 100))
def test_exact_values_equal_the_mean_over_all_orders_and_add_up(k, seed):
    game, players = random_game(k, 4, seed), heads(k)
    values = shapley(each(game), players)
    brute = np.zeros((k, 4))
    for order in itertools.permutations(range(k)):
        for place, i in enumerate(order):
            before = frozenset(players[j] for j in order[:place])
            brute[i] += (game(before | {players[i]}) - game(before)) / math.factorial(k)
    np.testing.assert_allclose(values.values, brute, atol=1e-12)
    np.testing.assert_allclose(values.values.sum(axis=0), game(frozenset(players)), atol=1e-12)
    assert values.exact
    assert values.evaluations == 2**k


def test_nine_players_use_orders_that_still_add_up_and_repeat():
    players = heads(9)
    game = random_game(9, 2, 0)
    values = shapley(each(game), players)
    assert not values.exact
    assert values.evaluations < 2**9
    np.testing.assert_allclose(values.values.sum(axis=0), game(frozenset(players)), atol=1e-12)
    assert np.array_equal(values.values, shapley(each(game), players).values)
    assert not np.array_equal(values.values, shapley(each(game), players, seed=1).values)
    # Nine that share alike, in an additive game: exact whatever the orders.
    np.testing.assert_allclose(shapley(each(lambda s: np.full(2, float(len(s)))), players).values, 1)


def test_each_set_is_evaluated_once():
    asked = []

    def game(subsets):
        asked.append(subsets)
        return [np.zeros(2)] * len(subsets)

    shapley(game, heads(3))
    shapley(game, heads(9))
    few, many = asked
    assert len(few) == len(set(few)) == 8
    assert len(many) == len(set(many)) > 8


def test_players_must_be_different():
    for players in ((), (Head(0, 0), Head(0, 0))):
        with pytest.raises(WorkbenchError, match="need players"):
            shapley(each(random_game(2, 2, 0)), players)


def test_effective_number_by_hand():
    assert effective_number([1, 0, 0]) == pytest.approx(1)
    assert effective_number([2, 2, 2, 2]) == pytest.approx(4)
    assert effective_number([0.5, 0.5, -3]) == pytest.approx(2)
    assert effective_number([3, 1]) == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))
    assert math.isnan(effective_number([-1, 0]))


def values(*means: float, n: int = 100, noise: float = 0.0) -> Shapley:
    drawn = np.array(means)[:, None] + noise * numpy_stream(0, "noise").normal(size=(len(means), n))
    return Shapley(heads(len(means)), drawn, True, 2 ** len(means))


def test_the_number_has_an_interval_over_sequences():
    shared = sharing(values(0.3, 0.3, 0.1, noise=0.1))
    assert shared.value is not None
    assert shared.low < shared.value < shared.high
    assert shared.low > 2.2
    assert shared.n == 100
    assert sum(shared.shares) == pytest.approx(1)
    assert shared.reason == ""


def test_negative_values_are_set_to_zero_and_reported():
    shared = sharing(values(0.4, 0.4, -0.1))
    assert shared.value == pytest.approx(2)
    assert shared.shares == pytest.approx((0.5, 0.5, 0))
    assert shared.negatives == (Head(0, 2),)


def test_saturated_sequences_bound_what_the_unseen_could_do():
    pair = sharing(values(0.5, 0.5))
    assert pair.value == pair.high == pytest.approx(2)
    assert pair.low == pytest.approx(effective_number([0.5 + UNSEEN_100 / 2, 0.5 - UNSEEN_100 / 2]))
    one = sharing(values(1.0, 0.0))
    assert one.value == one.low == 1
    assert one.high == pytest.approx(effective_number([1 - UNSEEN_100, UNSEEN_100]))
    alone = sharing(values(1.0))
    assert (alone.low, alone.high) == (1, 1)
    assert "by definition" in alone.reason


def test_without_a_joint_effect_there_is_nothing_to_share():
    for without in (values(0.0, 0.0), values(0.01, -0.02, noise=0.2), values(-0.5, 0.1)):
        shared = sharing(without)
        assert shared.value is None
        assert shared.low is None
        assert "not clearly there" in shared.reason


def test_planted_circuits_have_one_head_and_two():
    task = RepeatedTokens(n_ctx=32, d_vocab=25, period_min=5, period_max=12)
    for planted, number in ((hand_models.induction(), 1.0), (hand_models.split_induction(), 2.0)):
        subject = planted.subject(task)
        batch = subject.sample(64, "test")
        cost = removal_cost(subject, batch, build_reference(subject, split="validation", size=128))
        assert not cost([frozenset()])[0].any()
        for layer in (0, 1):
            shared = sharing(shapley(cost, (Head(layer, 0), Head(layer, 1))))
            assert shared.value == pytest.approx(number, abs=1e-6)
            assert shared.low <= shared.value <= shared.high
            assert shared.high - shared.low > 0
