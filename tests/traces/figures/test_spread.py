"""Tests the medians, periods, means and noise of step times, with values worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces import oracle
from traces.figures.spread import (
    NOTHING,
    Spread,
    _differ_by,
    means_of_periods,
    median_per_step,
    noise_floor,
    period_of,
    slow_starts,
    spread,
    varies_much,
)
from traces.model.trace import Column

MS = 1_000_000


@pytest.mark.parametrize(
    ("times", "period", "middle", "noise"),
    [
        ([2, 6, 2, 6, 2, 6, 2], 2, 4, 0.0),  # the median would be 2 ms, or 6 ms with one more step at the start
        ([6, 2, 6, 2, 6, 2, 6], 2, 4, 0.0),
        ([1, 1, 1, 5] * 2, 4, 2, 0.0),  # the optimizer runs after every fourth batch
        ([2, 6, 2, 6, 2], 1, 2, 1.0),  # three repeated pairs are too few for a period
        ([2, 2, 2, 2, 60, 2, 2, 2, 2, 2], 1, 2, 0.0),  # a single slow step is no period
        ([2] * 11 + [60] + [2] * 8, 1, 2, 0.0),  # one slow step is no period, although nine of ten pairs are equal
        (([2] * 7 + [60, 2, 2]) * 2, 10, 7.8, 0.0),  # every tenth step is slow
        ([2] * 12 + [60] + [2] * 5 + [60] + [2] * 22, 1, 2, 0.0),  # two slow steps at irregular places are no period
        ([1, 1, 1, 5] * 7 + [1, 1, 40, 5] + [1, 1, 1, 5], 4, 2, 0.0),  # most changes repeat after four steps
        ([10, 10, 11, 10, 11, 10, 11, 10], 1, 10, 0.05),  # the steps hardly differ
        ([2, 9, 4, 7, 3, 8, 5, 6], 1, 5.5, 3.5 / 2 / 5.5),  # the times are irregular
    ],
)
def test_step_times_that_change_periodically_are_averaged_over_one_period(
    times: list[int], period: int, middle: float, noise: float
) -> None:
    values = np.array(times) * 1_000_000
    assert (period_of(values), median_per_step(values)) == (period, middle * 1_000_000)
    assert noise_floor(values) == pytest.approx(noise, abs=0.01)


def test_a_mean_is_computed_over_each_period_of_step_times() -> None:
    assert means_of_periods(np.array([2, 6, 4, 8]), 2).tolist() == [4, 5, 6]
    assert means_of_periods(np.array([2, 6]), 3).tolist() == [2, 6]  # there are fewer steps than in one period
    assert means_of_periods(np.array([2, 6]), 2).tolist() == [4]


def test_the_mean_step_time_of_a_pattern_ignores_incomplete_repetitions() -> None:
    """GIVEN steps of 2 and 6 ms in turn THEN the mean is 4 ms for seven steps and for eight steps. Only longer steps change the
    mean."""
    one, two, slow = (np.array(times) * 1_000_000 for times in ([2, 6] * 3 + [2], [6, 2] * 4, [9, 2] * 4))

    def compared(other: Column) -> Spread:
        return spread(np.arange(len(one)), one, np.arange(len(other)), other, np.arange(len(one)))

    assert (compared(two).error, compared(slow).error) == (0.0, 5.5 / 4 - 1)


def test_mean_steps_are_compared_if_the_steps_of_both_traces_vary_a_lot() -> None:
    """GIVEN a trace with steps of 8 and 23 ms and a trace with steps of 6 to 18 ms WHEN both traces vary a lot THEN their
    means, 14 ms, are compared. The medians are 8 and 18 ms. Half the interquartile ranges are 7.5 and 4 ms."""
    short, long, steady = (np.array(times) * MS for times in ([8, 8, 8, 23, 23], [6, 10, 18, 18, 18], [14] * 4))

    def compared(a: Column, b: Column) -> Spread:
        return spread(np.arange(len(a)), a, np.arange(len(b)), b, np.arange(len(a)))

    of = compared(short, long)
    assert (of.recorded_median_ns, of.replayed_median_ns) == (8 * MS, 18 * MS)
    assert (of.recorded_ns, of.replayed_ns, of.error, of.has_means) == (14 * MS, 14 * MS, 0.0, True)
    # If only one of the traces varies, medians are compared: 8 ms with 14 ms, and 14 ms with 18 ms.
    assert (compared(short, steady).error, compared(steady, long).error) == pytest.approx((6 / 8, 4 / 14))
    assert compared(short, long * 2).error == 1.0
    # A step of ten times the 75th percentile (230 ms) is left out of the mean, but a step of 229 ms counts.
    assert compared(np.append(short, 230 * MS), long).recorded_ns == 14 * MS
    assert compared(np.append(short, 229 * MS), long).recorded_ns == round(299 * MS / 6)
    # One slow step of five does not change the quartiles. Three steps are too few to compare means.
    one_slow = compared(steady, np.array([14, 14, 14, 14, 84]) * MS)
    assert (one_slow.error, one_slow.has_means, one_slow.replayed_ns) == (0.0, False, 14 * MS)
    assert compared(steady, np.array([14, 14, 84]) * MS).error == 0.0
    nothing = np.zeros(0, np.int64)
    assert compared(short, nothing).recorded_ns == 8 * MS and compared(short, nothing).error is None


@given(st.lists(st.sampled_from([100, 100, 104, 105, 150, 160]), min_size=2, max_size=40))
def test_the_period_of_step_times_equals_an_independent_computation(values: list[int]) -> None:
    assert period_of(np.array(values)) == oracle.period(values)


@pytest.mark.parametrize(
    ("times", "count"), [([20, 10, 10, 10], 1), ([19, 10, 10, 10], 0), ([90, 80, 10], 1), ([90], 0), ([], 0)]
)
def test_slow_first_steps_take_at_least_twice_the_median_of_the_later_steps(times: list[int], count: int) -> None:
    """The last two steps of a run never count as slow."""
    assert slow_starts(np.array(times)) == count


@pytest.mark.parametrize(
    ("times", "varies"),
    [([85, 85, 100, 115, 115], True), ([86, 86, 100, 114, 114], False), ([1, 1, 9, 9], True), ([1, 1, 9], False)],
)
def test_step_times_vary_a_lot_if_half_their_interquartile_range_is_15_percent(times: list[int], varies: bool) -> None:
    assert varies_much(np.array(times)) == varies


@pytest.mark.parametrize(("times", "period"), [([185, 215], 1), ([184, 216], 2)])
def test_step_times_that_differ_by_15_percent_are_not_periodic(times: list[int], period: int) -> None:
    assert period_of(np.array(times * 4)) == period


@pytest.mark.parametrize(("times", "period"), [([100, 295, 100, 305], 2), ([100, 294, 100, 306], 4)])
def test_step_times_repeat_if_they_differ_by_at_most_5_percent_of_their_mean(times: list[int], period: int) -> None:
    assert period_of(np.array(times * 2)) == period


def test_if_one_trace_is_periodic_both_traces_are_averaged_over_its_period() -> None:
    """GIVEN a trace with steps of 2 and 6 ms in turn WHEN it is compared with steps of 4 ms THEN the step times are equal."""
    varying, steady = np.array([2, 6] * 3 + [2]) * MS, np.array([4] * 8) * MS
    for one, other in ((varying, steady), (steady, varying)):
        assert spread(np.arange(len(one)), one, np.arange(len(other)), other, np.arange(len(one))).error == 0.0
    # WHEN the trace without a period has one slow step of 40 ms THEN this step does not count.
    slow = np.array([4, 4, 4, 40, 4, 4, 4]) * MS
    assert spread(np.arange(8), np.tile(varying[:2], 4), np.arange(7), slow, np.arange(8)).error == 0.0


def test_single_steps_are_compared_if_one_trace_is_shorter_than_two_periods() -> None:
    """GIVEN a trace with ten irregular steps, and a trace with 40 steps in which every tenth step takes 44 ms WHEN the two
    traces are compared THEN the medians of single steps are compared, which are 34 ms in both traces. WHEN the first trace has
    20 irregular steps THEN the means of ten steps are compared, which are 31.4 and 35 ms."""
    irregular, tenth = np.array([34, 36, 39, 34, 34, 34, 21, 25, 28, 29]) * MS, np.array(([34] * 9 + [44]) * 4) * MS
    for count, medians in ((1, (34 * MS, 34 * MS)), (2, (round(31.4 * MS), 35 * MS))):
        ours = np.tile(irregular, count)
        of = spread(np.arange(len(ours)), ours, np.arange(40), tenth, np.arange(len(ours)))
        assert (of.recorded_median_ns, of.replayed_median_ns) == medians


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=60), st.integers(1, 8))
def test_the_90th_percentile_of_changes_equals_that_of_numpy(values: list[int], period: int) -> None:
    """GIVEN step times THEN the 90th percentile of their changes is interpolated as in numpy."""
    times, period = np.array(values), min(period, len(values) - 1)
    assert _differ_by(times, period) == pytest.approx(np.percentile(np.abs(times[period:] - times[:-period]), 90))


@pytest.mark.parametrize(
    ("recorded", "replayed", "expected"),
    [
        ((10, 20), (20, 30), True),  # both ranges contain 20
        ((10, 20), (21, 30), False),
        ((25, 30), (10, 20), False),
        ((12, 18), (10, 20), True),
        ((None, 20), (15, 30), True),  # an unknown percentile counts as 0
        ((None, None), (1, 30), False),
        ((10, 20), (None, 30), True),
    ],
)
def test_two_ranges_of_step_times_overlap_if_they_share_a_time(
    recorded: tuple[int | None, int | None], replayed: tuple[int | None, int | None], expected: bool
) -> None:
    ends = {f"{side}_{name}_ns": of for side, both in (("recorded", recorded), ("replayed", replayed))
            for name, of in zip(("p5", "p95"), both, strict=True)}  # fmt: skip
    assert replace(NOTHING, **ends).overlaps is expected


@pytest.mark.parametrize(
    ("low", "middle", "expected"),
    [
        (5, 4, 0.1),  # 14 steps: the average is as uncertain as a single step
        (8, 12, 0.1),  # 28 steps are CERTAIN_STEPS
        (30, 52, 0.05),  # 112 steps are four times CERTAIN_STEPS, and the square root of 1 / 4 is 1 / 2
    ],
)
def test_the_average_of_more_steps_has_less_noise(low: int, middle: int, expected: float) -> None:
    times = np.array([90] * low + [100] * middle + [110] * low) * MS  # the noise floor is (110 - 90) / 2 / 100 = 0.1
    equal, steps = np.full(len(times), 100 * MS), np.arange(len(times))
    for ours, theirs in ((times, equal), (equal, times)):  # the trace with more noise decides
        assert spread(steps, ours, steps, theirs, steps).average_noise == pytest.approx(expected)


def test_a_noise_floor_needs_four_steps() -> None:
    assert noise_floor(np.array([90, 100, 110])) is None
    assert noise_floor(np.array([90, 90, 110, 110])) == pytest.approx(0.1)
