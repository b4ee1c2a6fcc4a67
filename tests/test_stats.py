"""Intervals: known answers, and that whole sequences are drawn, never tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ident_utils.stats import bootstrap, bootstrap_mean, bootstrap_median, trend_with_depth

groups_of_numbers = st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=5), min_size=1, max_size=6)


def test_estimate_pools_the_tokens_of_all_sequences():
    groups = [np.array([1.0, 2.0, 3.0]), np.array([10.0])]
    assert bootstrap_median(groups, resamples=10).value == 2.5
    assert bootstrap_mean(groups, resamples=10).value == 4.0  # not the mean of the two means, 6
    assert bootstrap_mean(groups, resamples=10).n_sequences == 2


def test_interval_of_two_sequences_is_known():
    # Draws of two from {0, 1}: means 0, 1/2, 1/2, 1; the 95% interval spans everything, the 40% one is the middle.
    groups = [np.zeros(3), np.ones(3)]
    wide = bootstrap_mean(groups, resamples=4000)
    assert (wide.low, wide.high) == (0.0, 1.0)
    narrow = bootstrap_mean(groups, resamples=4000, level=0.4)
    assert (narrow.low, narrow.high) == (0.5, 0.5)


def test_interval_has_the_width_that_theory_says():
    values = np.random.default_rng(0).normal(size=400)
    found = bootstrap_mean([np.array([v]) for v in values], resamples=4000)
    expected = 1.96 * values.std() / 20
    assert found.value - found.low == pytest.approx(expected, rel=0.1)
    assert found.high - found.value == pytest.approx(expected, rel=0.1)


def test_sequences_are_resampled_not_tokens():
    """Fifty identical tokens in a sequence tell no more than one: resampling tokens would pretend otherwise."""
    values = np.random.default_rng(1).normal(size=20)
    together = bootstrap_mean([np.full(50, v) for v in values])
    alone = bootstrap_mean([np.array([v]) for v in values])
    tokens = bootstrap_mean([np.array([v]) for v in np.repeat(values, 50)])

    def width(interval):
        return interval.high - interval.low

    assert width(together) == pytest.approx(width(alone), rel=1e-9)
    assert width(together) > 5 * width(tokens)
    assert width(bootstrap_median([np.full(50, v) for v in values])) > 0.3


@settings(max_examples=30, deadline=None)
@given(groups_of_numbers, st.integers(0, 100))
def test_fast_mean_is_the_general_bootstrap_of_the_mean(groups, seed):
    arrays = [np.array(g) for g in groups]
    fast = bootstrap_mean(arrays, resamples=50, seed=seed).as_dict()
    slow = bootstrap(arrays, np.mean, resamples=50, seed=seed).as_dict()
    assert fast == pytest.approx(slow, rel=1e-9, abs=1e-9, nan_ok=True)


@settings(max_examples=30, deadline=None)
@given(groups_of_numbers)
def test_ends_enclose_what_can_come_out(groups):
    found = bootstrap_median([np.array(g) for g in groups], resamples=50)
    everything = np.concatenate(groups)
    assert everything.min() <= found.value <= everything.max()
    if len(groups) > 1:
        assert everything.min() <= found.low <= found.high <= everything.max()


def test_seed_decides():
    groups = [np.array([v]) for v in np.random.default_rng(2).normal(size=9)]
    first = bootstrap_median(groups, resamples=30, seed=1)
    assert bootstrap_median(groups, resamples=30, seed=1) == first
    assert bootstrap_median(groups, resamples=30, seed=2) != first


@pytest.mark.parametrize("estimate", [bootstrap_mean, bootstrap_median])
def test_single_sequence_has_a_value_but_no_interval(estimate):
    found = estimate([np.array([1.0, 2.0, 6.0])])
    assert found.value in (2.0, 3.0) and found.n_sequences == 1
    assert np.isnan(found.low) and np.isnan(found.high)


@pytest.mark.parametrize("estimate", [bootstrap_mean, bootstrap_median])
@pytest.mark.parametrize(("groups", "lengths"), [([], r"\[\]"), ([np.ones(2), np.array([])], r"\[2, 0\]")])
def test_nothing_to_estimate_from_is_refused(estimate, groups, lengths):
    with pytest.raises(ValueError, match=f"at least one sequence and a token in each; got lengths {lengths}"):
        estimate(groups)


def test_trend_by_hand():
    assert trend_with_depth([0.9, 0.5, 0.4, 0.1]) == -1.0
    assert trend_with_depth([1, 2, 3]) == 1.0
    assert trend_with_depth([4, 2, 3, 1]) == pytest.approx(-0.8)  # 1 - 6 * 18 / (4 * 15)
    assert trend_with_depth([3, 1, 2]) == pytest.approx(-0.5)
    assert np.isnan(trend_with_depth([0.5])) and np.isnan(trend_with_depth([0.5, 0.5, 0.5]))
