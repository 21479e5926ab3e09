"""Compares per-step values of two traces: medians, percentiles, relative error and noise floor.

spread(ours, recorded.steps.duration_ns, theirs, replayed.steps.duration_ns, ours).error     # 0.004
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.comparison.thresholds import STEPS_FOR_NOISE
from traces.model.trace import Column


@dataclass(frozen=True, slots=True)
class Spread:
    """Holds percentiles of a per-step value in two traces, and the relative error of the medians.

    `noise_floor` is half the interquartile range of the recording divided by its median. It is None below four steps. An error
    below the noise floor is not significant.
    """

    recorded_median_ns: int | None
    replayed_median_ns: int | None
    error: float | None
    noise_floor: float | None
    recorded_p5_ns: int | None
    recorded_p95_ns: int | None
    replayed_p5_ns: int | None
    replayed_p95_ns: int | None


NOTHING = Spread(None, None, None, None, None, None, None, None)


def spread(ours: Column, our_ns: Column, theirs: Column, their_ns: Column, all_ours: Column) -> Spread:
    """Compare the chosen rows of both columns of times. The noise floor is computed from the steps in `all_ours`."""
    a, b = _percentiles(our_ns[ours]), _percentiles(their_ns[theirs])
    noise = noise_floor(our_ns[all_ours]) if len(ours) else None
    return Spread(a[1], b[1], relative_error(a[1], b[1]), noise, a[0], a[2], b[0], b[2])


def median(values: Column) -> int | None:
    return round(float(np.median(values))) if len(values) else None


def relative_error(recorded: float | None, replayed: float | None) -> float | None:
    """Return replayed / recorded - 1. If a value is missing or the recorded value is 0, return None."""
    return replayed / recorded - 1 if recorded and replayed is not None else None


def _percentiles(values: Column) -> list[int] | list[None]:
    return np.percentile(values, (5, 50, 95)).round().astype(int).tolist() if len(values) else [None] * 3


def noise_floor(values: Column) -> float | None:
    if len(values) < STEPS_FOR_NOISE:
        return None
    lower, median, upper = np.percentile(values, (25, 50, 75))
    return float((upper - lower) / 2 / median) if median else None
