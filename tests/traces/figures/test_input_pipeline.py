"""Tests the figures of the input pipeline, with values worked out by hand. All times are in nanoseconds."""

from __future__ import annotations

import numpy as np

from traces.figures.input_pipeline import batch_arrival_ns, input_pipeline
from traces.model.trace import NONE, Batches, BatchKind, StepKind, Steps, Trace


def batches(*rows: tuple[BatchKind, int, int, int, int]) -> Batches:
    """Return a table of batches. Each row contains the kind, the rank, the start, the duration and the bytes of a batch."""
    kinds, ranks, starts, durations, sizes = zip(*rows, strict=True)
    return Batches.of(
        rank=ranks, loader=[0] * len(rows), kind=list(map(int, kinds)), start_ns=starts, duration_ns=durations, bytes=sizes
    )


def test_the_pinning_rate_ignores_batches_without_duration_or_size() -> None:
    """GIVEN a pinned batch of 40 bytes in 10 ns, a batch without duration and a batch of unknown size THEN the rate is 40 bytes
    in 10 ns."""
    pins = batches((BatchKind.PIN, 0, 0, 10, 40), (BatchKind.PIN, 0, 20, 0, 99), (BatchKind.PIN, 0, 30, 5, NONE))
    found = input_pipeline(Trace(batches=pins))
    assert found is not None and (found.waits, found.wait_median_ns, found.wait_per_step_ns) == (0, None, None)
    assert (found.pins, found.pin_median_ns, found.pin_bytes_per_s) == (3, 5, 4_000_000_000)
    nothing_sized = input_pipeline(Trace(batches=pins.take([1, 2])))
    assert nothing_sized is not None and nothing_sized.pin_bytes_per_s is None
    assert input_pipeline(Trace()) is None


def test_a_wait_for_a_batch_belongs_to_the_step_in_which_it_begins() -> None:
    """GIVEN three steps of 100 ns WHEN a wait for a batch begins in one step and ends in the next THEN the wait belongs to the
    first of the two steps. A wait that begins after the last step belongs to no step."""
    steps = Steps.of(
        rank=[0] * 3, number=[0, 1, 2], start_ns=[0, 100, 200], duration_ns=[100] * 3, kind=[int(StepKind.STEADY)] * 3
    )
    waits = [(BatchKind.WAIT, 0, at, took, size) for at, took, size in
             ((0, 7, 8), (99, 5, NONE), (100, 3, 8), (299, 20, 8), (300, 50, 8))]  # fmt: skip
    found = input_pipeline(Trace(steps=steps, batches=batches(*waits)))
    assert found is not None and (found.waits, found.pins, found.pin_bytes_per_s) == (5, 0, None)
    assert (found.wait_per_step_ns, found.wait_median_ns, found.wait_total_ns, found.batch_bytes) == (12, 7, 85, 8)


def test_a_wait_for_a_batch_ends_at_the_end_of_its_phase() -> None:
    """A wait of zero length at the start of a phase is ignored, and a wait that outlasts its phase is cut."""
    waits = batches(
        (BatchKind.WAIT, 0, 2, 3, 8),
        (BatchKind.WAIT, 0, 0, 1, 8),
        (BatchKind.WAIT, 0, 10, 0, 8),
        (BatchKind.WAIT, 0, 25, 9, 8),
        (BatchKind.WAIT, 1, 3, 6, 8),  # a wait of another rank
        (BatchKind.PIN, 0, 4, 4, 8),
    )
    arrived = batch_arrival_ns(Trace(batches=waits), 0, np.array([0, 10, 20]), np.array([10, 20, 30]))
    assert arrived.tolist() == [5, 20, 30]
