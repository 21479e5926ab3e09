"""One figure per step, of two traces: medians and percentiles, the relative error, and the noise floor.

spread(ours, recorded.steps.duration_ns, theirs, replayed.steps.duration_ns, ours).error     # 0.004
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.model.trace import Column

_MIN_STEPS_FOR_NOISE = 4


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure per step, summed up. `noise_floor` is the recording's own spread: half the distance between its
    quartiles over its median, None below four steps. An error below it says nothing."""

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
    """The chosen rows (steps) of both columns (times). The noise is that of `all_ours`, not only of what drove a replay."""
    a, b = _percentiles(our_ns[ours]), _percentiles(their_ns[theirs])
    noise = noise_floor(our_ns[all_ours]) if len(ours) else None
    return Spread(a[1], b[1], relative_error(a[1], b[1]), noise, a[0], a[2], b[0], b[2])


def median(values: Column) -> int | None:
    """The median rounded to a whole number, or None where there are no values."""
    return round(float(np.median(values))) if len(values) else None


def relative_error(recorded: float | None, replayed: float | None) -> float | None:
    """replayed / recorded - 1, or None where either figure is missing or the recorded one is 0."""
    return replayed / recorded - 1 if recorded and replayed is not None else None


def _percentiles(values: Column) -> list[int] | list[None]:
    """The 5th, 50th and 95th."""
    return np.percentile(values, (5, 50, 95)).round().astype(int).tolist() if len(values) else [None] * 3


def noise_floor(values: Column) -> float | None:
    """Half the distance between the quartiles over the median; None below four values."""
    if len(values) < _MIN_STEPS_FOR_NOISE:
        return None
    lower, median, upper = np.percentile(values, (25, 50, 75))
    return float((upper - lower) / 2 / median) if median else None
