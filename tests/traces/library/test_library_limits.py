"""Tests measured batch limits: with an estimated limit, between two measured batches, and for another program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.traces.library.test_library_cells import a_cell
from traces.comparison.thresholds import SAME_PEAK
from traces.library.limits import MeasuredLimit


@pytest.mark.parametrize(
    ("last", "full", "estimated", "largest", "is_exact"),
    [
        (226, 227, 265, 226, True),  # the measured limit is preferred to the estimated one
        (226, 227, None, 226, True),
        (64, 128, 100, 100, False),  # the estimate decides between 64, which fit, and 128, which failed
        (64, 128, 50, 64, False),
        (64, 128, 300, 127, False),
        (64, 128, None, None, False),
        (256, None, 300, 300, False),  # all batches in the sweep fit
        (256, None, 200, 256, False),
    ],
)
def test_the_largest_batch_lies_between_a_batch_that_fit_and_one_that_failed(
    last: int, full: int | None, estimated: int | None, largest: int | None, is_exact: bool
) -> None:
    limit = MeasuredLimit.of(a_cell(batches=(1, last), out_of_memory_batch=full))
    assert (limit.largest(estimated), limit.is_exact) == (largest, is_exact)
    assert (limit.fits(last), limit.fits(full or 1)) == (True, full is None)
    assert limit.fits(last + 1) is (False if full == last + 1 else None)


def test_a_measured_batch_limit_applies_only_to_programs_with_a_similar_memory_peak() -> None:
    cell = replace(a_cell(), memory_batches=np.array([10, 20]), peak_bytes=np.array([1000, 2000]))
    assert [cell.peak_at(batch) for batch in (5, 10, 15, 30)] == [500, 1000, 1500, 3000]
    limit = MeasuredLimit.of(cell)
    assert limit.is_of(30, 3100) and limit.is_of(30, 2900)
    assert not limit.is_of(30, 4200) and not limit.is_of(30, 1500)
    most = int(SAME_PEAK * 3000)
    assert [limit.is_of(30, 3000 + sign * (most + by)) for sign in (1, -1) for by in (0, 1)] == [True, False, True, False]
    assert MeasuredLimit.of(a_cell()).is_of(30, 1)  # without a measured peak, the limit applies
