"""Compares the step times of two traces.

    spread(ours, recorded.steps.duration_ns, theirs, replayed.steps.duration_ns, ours).error     # 0.004

Note [Periodic steps]
    Long and short steps may alternate, for example if only every fourth step updates the weights. If steps repeat with a period
    of k steps, all statistics are computed from the means of k consecutive steps. The period is k if nine in ten steps take as
    long as the step k steps earlier (within REPEATS_WITHIN of the mean). A single slow step is not a pattern. Therefore, most
    large differences between consecutive steps must occur again k steps later. At least two periods and four pairs of steps are
    needed. The times of a phase are averaged over the period of the step times, even if the phase's own times do not repeat.
    If two traces are compared, both are averaged over the longest of their periods that fits at least twice into each trace. If
    no period fits, the medians of single steps are compared (`shared_period`).

Note [Means of varying steps]
    If half of the steps are short and half are long, chance decides whether the median is the time of a short or a long step.
    If at least four steps of each trace vary by at least MUCH_SPREAD (`noise_floor`), the means of the traces are therefore
    compared. If only one of the traces varies, a busy machine probably slowed some of its steps, so the medians are compared.
    There is one exception: if the mean of this trace is at least LONG_STEP times its median, the means are compared. Most of
    the time then passes in long steps, for example in steps that wait for the workers of a DataLoader. With fewer than four
    steps, a single slow step would change the mean. Steps of at least SLOW_STEP times the 75th percentile are left out of the
    means, because they also do other work than training.

Note [Noise of an average]
    The average of many steps is more certain than the time of one step. Step times are assumed to be independent and normally
    distributed. Two standard errors of the difference between two medians of n steps are then 5.26 / sqrt(n) times the noise
    floor. If n is larger than CERTAIN_STEPS = 5.26**2, two standard errors are less than the noise floor. A difference may be
    noise if it is not larger than the noise floor and two standard errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from traces.comparison import thresholds
from traces.model.json_facts import OMITTED_IF_NONE
from traces.model.trace import Column

_NINE_IN_TEN = 90


# see Note [Periodic steps]
@dataclass(frozen=True, slots=True)
class Spread:
    """Compares the step times of two traces, usually a recording and its replay. If `error` is not larger than
    `average_noise`, the step times of the traces do not differ significantly."""

    recorded_median_ns: int | None  # median of the first trace
    replayed_median_ns: int | None  # median of the second trace
    error: float | None  # relative difference of the medians or means
    # half the interquartile range of the recorded times, divided by their median; None below four steps
    noise_floor: float | None
    recorded_p5_ns: int | None  # 5th percentile
    recorded_p95_ns: int | None  # 95th percentile
    replayed_p5_ns: int | None  # 5th percentile
    replayed_p95_ns: int | None  # 95th percentile
    # mean of the first trace, if means are compared instead of medians, because the steps vary a lot
    recorded_mean_ns: int | None = field(default=None, metadata=OMITTED_IF_NONE)
    replayed_mean_ns: int | None = field(default=None, metadata=OMITTED_IF_NONE)  # mean of the second trace
    replayed_noise_floor: float | None = field(default=None, metadata=OMITTED_IF_NONE)  # noise floor of the second trace
    # the largest `error` that may be noise, see Note [Noise of an average]; None if both noise floors are unknown
    average_noise: float | None = field(default=None, metadata=OMITTED_IF_NONE)

    @property
    def noise(self) -> float:
        """Return the larger noise floor, or 0 if both are unknown."""
        return max(self.noise_floor or 0.0, self.replayed_noise_floor or 0.0)

    @property
    def overlaps(self) -> bool:
        """Return True if the ranges from the 5th to the 95th percentile of the two traces overlap."""
        ends_ns = self.recorded_p95_ns or 0, self.replayed_p95_ns or 0
        return max(self.recorded_p5_ns or 0, self.replayed_p5_ns or 0) <= min(ends_ns)

    # see Note [Means of varying steps]
    @property
    def has_means(self) -> bool:
        return self.recorded_mean_ns is not None  # `spread` sets both means, or none

    @property
    def average(self) -> str:
        return "mean" if self.has_means else "median"

    def label(self, words: str) -> str:
        return f"{words} (mean)" if self.has_means else words

    @property
    def recorded_ns(self) -> int | None:
        return self.recorded_mean_ns if self.has_means else self.recorded_median_ns

    @property
    def replayed_ns(self) -> int | None:
        return self.replayed_mean_ns if self.has_means else self.replayed_median_ns


NOTHING = Spread(None, None, None, None, None, None, None, None)


def spread(ours: Column, our_ns: Column, theirs: Column, their_ns: Column, all_ours: Column) -> Spread:
    """Compare the step times of a recording (`our_ns`) with the step times of another trace (`their_ns`)."""
    period = shared_period(our_ns[ours], their_ns[theirs])
    a, b = _percentiles(our_ns[ours], period), _percentiles(their_ns[theirs], period)
    noise = noise_floor(our_ns[all_ours]) if len(ours) else None
    others = noise_floor(their_ns[theirs])
    noises = [_of_average(of, len(steps)) for of, steps in ((noise, ours), (others, theirs)) if of is not None]
    found = Spread(
        a[1], b[1], relative_error(a[1], b[1]), noise, a[0], a[2], b[0], b[2],
        replayed_noise_floor=others, average_noise=max(noises, default=None),
    )  # fmt: skip
    if not len(ours) or not len(theirs):
        return found
    vary = varies_much(our_ns[ours]), varies_much(their_ns[theirs])
    means = mean(our_ns[ours][are_usual(our_ns[ours])]), mean(their_ns[theirs][are_usual(their_ns[theirs])])
    is_long = [mean_ns >= thresholds.LONG_STEP * (of[1] or mean_ns) for mean_ns, of in zip(means, (a, b), strict=True)]
    if not all(vary) and not any(varies and long for varies, long in zip(vary, is_long, strict=True)):
        return found
    return replace(found, error=relative_error(*means), recorded_mean_ns=means[0], replayed_mean_ns=means[1])


def median(values: Column) -> int | None:
    return round(float(np.median(values))) if len(values) else None


def mean(values: Column) -> int:
    return round(float(values.mean()))


def are_usual(values: Column) -> Column:
    # see Note [Means of varying steps]
    usual = np.asarray(values < thresholds.SLOW_STEP * np.percentile(values, 75)) if len(values) else np.zeros(0, dtype=bool)
    return usual if usual.any() else np.ones(len(values), dtype=bool)


def median_per_step(values: Column, period: int | None = None) -> int | None:
    """Compute the mean of each `period` consecutive steps, and return the median of these means. If `period` is None, use the
    length of the repeating pattern in `values`."""
    # see Note [Periodic steps]
    return median(means_of_periods(values, period))


def shared_period(ours: Column, theirs: Column) -> int:
    """Return the number of consecutive steps over which the step times of two traces are averaged."""
    # see Note [Periodic steps]
    fewest = min(len(ours), len(theirs))
    return max((period for period in (period_of(ours), period_of(theirs)) if 2 * period <= fewest), default=1)


def period_of(values: Column) -> int:
    """Return the length of a repeating pattern: 10 if every tenth value is large, or 1 if no pattern is found."""
    # see Note [Periodic steps]
    most = min(len(values) // 2, len(values) - thresholds.FEWEST_PAIRS, thresholds.LONGEST_PERIOD)
    mean = float(np.mean(values)) if most > 1 else 0.0
    if mean <= 0 or _differ_by(values, 1) <= thresholds.MUCH_SPREAD * mean:
        return 1
    repeated = (period for period in range(2, most + 1) if _differ_by(values, period) <= thresholds.REPEATS_WITHIN * mean)
    return next((period for period in repeated if _changes_repeat(values, period, mean)), 1)


def _changes_repeat(values: Column, period: int, mean: float) -> bool:
    changes = np.diff(values)
    is_alike = np.abs(changes[period:] - changes[:-period]) <= thresholds.REPEATS_WITHIN * mean
    unknown = np.ones(period, dtype=bool)
    repeats = np.append(is_alike, unknown) & np.append(unknown, is_alike)
    return bool(np.median(repeats[np.abs(changes) > thresholds.MUCH_SPREAD * mean]) == 1)


def slow_starts(values: Column) -> int:
    """Return the number of slow steps at the start of a run. The first steps may, for example, compile code."""
    most = max(len(values) - thresholds.FEWEST_STEADY, 0)
    return next((i for i in range(most) if values[i] < thresholds.SLOW_START * np.median(values[i + 1 :])), most)


def means_of_periods(values: Column, period: int | None = None) -> Column:
    period = period_of(values) if period is None else period
    if period == 1 or len(values) < period:
        return values
    sums = np.cumsum(np.append(0.0, values))
    return np.asarray((sums[period:] - sums[:-period]) / period)


def _differ_by(values: Column, period: int) -> float:
    """Return the 90th percentile of |values[i + period] - values[i]|. The function uses np.partition, because it is ten times
    faster than np.percentile for short arrays."""
    apart = np.abs(values[period:] - values[:-period])
    last = len(apart) - 1
    below = last * _NINE_IN_TEN // 100
    low, high = np.partition(apart, (below, min(below + 1, last)))[[below, min(below + 1, last)]].tolist()
    return float(low + (high - low) * (last * _NINE_IN_TEN / 100 - below))


def relative_error(recorded: float | None, replayed: float | None) -> float | None:
    return replayed / recorded - 1 if recorded and replayed is not None else None


def _percentiles(values: Column, period: int) -> list[int] | list[None]:
    if not len(values):
        return [None] * 3
    chosen = values if period_of(values) == period else values[are_usual(values)]
    middle = float(np.median(means_of_periods(chosen, period)))
    return [round(float(np.percentile(values, 5))), round(middle), round(float(np.percentile(values, 95)))]


def noise_floor(values: Column) -> float | None:
    if len(values) < thresholds.STEPS_FOR_NOISE:
        return None
    lower, median, upper = np.percentile(means_of_periods(values), (25, 50, 75))
    return float((upper - lower) / 2 / median) if median else None


def _of_average(noise: float, steps: int) -> float:
    # see Note [Noise of an average]
    return noise * min(1.0, math.sqrt(thresholds.CERTAIN_STEPS / steps))


def varies_much(values: Column) -> bool:
    # see Note [Means of varying steps]
    return (noise_floor(values) or 0) >= thresholds.MUCH_SPREAD
