"""Compares the detection of impossible durations with simple rules that look at one pair of kernels after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.kineto.spans.impossible import durations_ns, launches_on_idle_devices, longer_than, without_duration
from traces.kineto.spans.launches import DeviceColumns
from traces.model.trace import NONE, DeviceKind, DeviceSpans

Kernel = tuple[int, int, int, int, int]  # device, stream, start, duration, correlation id; times in half microseconds

kernels = st.tuples(st.integers(0, 1), st.integers(7, 8), st.integers(0, 12), st.integers(0, 9), st.integers(0, 3))


def spans_of(found: list[Kernel], kind: DeviceKind = DeviceKind.KERNEL, launch: list[int] | None = None) -> DeviceSpans:
    device, stream, start, duration, _ = np.array(found, dtype=np.int64).reshape(-1, 5).T
    given = {} if launch is None else {"launch": launch}
    return DeviceSpans.of(
        device=device, stream=stream, kind=[kind] * len(found), start_ns=start * 500, duration_ns=duration * 500, **given
    )


def possible_ns(found: list[Kernel], dependent_launch: bool) -> list[int]:
    """Return the possible durations of kernels.

    A kernel that outlasts a later kernel by over 1 us never ran. A kernel that overlaps the next kernel by over 1 us ended at
    its start. Kernels of one launch may overlap.
    """
    lasts_ns = []
    for number, (device, stream, start, duration, launch) in enumerate(found):
        end_ns, ends_at_ns = (start + duration) * 500 - 1000, None
        outlasts = False
        for other, (of_device, on, begins, takes, launched) in enumerate(found):
            is_later = (of_device, on) == (device, stream) and (begins, other) > (start, number)
            if is_later and begins * 500 < end_ns and not (launched == launch and launch):
                outlasts |= (begins + takes) * 500 < end_ns
                ends_at_ns = min(begins * 500, end_ns if ends_at_ns is None else ends_at_ns)
        shortened = ends_at_ns is not None and not dependent_launch
        lasts_ns.append(0 if outlasts else ends_at_ns - start * 500 if shortened and ends_at_ns is not None else duration * 500)
    return lasts_ns


@given(st.lists(kernels, max_size=6), st.booleans())
def test_overlong_kernels_are_shortened_to_the_next_kernel_of_the_stream(found: list[Kernel], dependent_launch: bool) -> None:
    ids = np.array([kernel[4] for kernel in found], dtype=np.int64)
    columns = DeviceColumns(spans_of(found), ids, ids)
    assert durations_ns(columns, dependent_launch).tolist() == possible_ns(found, dependent_launch)


@pytest.mark.parametrize(
    ("halves", "expected"),
    [([0, 3, 2, 2], [True, False, False, False]), ([0, 0, 2, 2], [False] * 4), ([0, 0, 0, 2], [True, True, True, False])],
)
def test_kernels_of_0_ns_are_reported_as_impossible_unless_times_are_rounded(halves: list[int], expected: list[bool]) -> None:
    """GIVEN four kernels whose times are whole microseconds WHEN two of them have a duration of 0 ns THEN this may be rounding.
    WHEN three of them have a duration of 0 ns THEN the kernels are reported as impossible."""
    kernels = spans_of([(0, 7, 10 * start, duration, 0) for start, duration in enumerate(halves)])
    assert without_duration(kernels).tolist() == expected


def test_copies_may_overlap_kernels() -> None:
    found = [(0, 7, 0, 20, 1), (0, 7, 4, 2, 2)]
    columns = DeviceColumns(spans_of(found, DeviceKind.MEMCPY), np.zeros(2, int), np.array([1, 2]))
    assert durations_ns(columns, False).tolist() == [10_000, 1_000]


@pytest.mark.parametrize(
    ("window_ns", "expected"), [(0, [False, False]), (8_999, [True, False]), (9_000, [False, False]), (7_000, [True, True])]
)
def test_an_event_may_be_up_to_one_microsecond_longer_than_the_recording(window_ns: int, expected: list[bool]) -> None:
    assert longer_than(spans_of([(0, 7, 0, 20, 1), (0, 7, 30, 17, 2)]), window_ns).tolist() == expected


@pytest.mark.parametrize(
    ("late_ns", "idle_launches"),
    [(1_000_000, 0), (1_000_001, 3)],  # the limit is 1 ms between a launch and its kernel
)
def test_launches_on_an_idle_gpu_are_reported_only_if_all_kernels_begin_late(late_ns: int, idle_launches: int) -> None:
    """GIVEN kernels on two GPUs whose launch calls return when the last kernel of the GPU has ended WHEN each kernel begins
    more than 1 ms later THEN the launches are reported. A call that returns 1 ns earlier, the first kernel of a GPU, and a
    kernel without a known launch do not count."""
    # the times at which the calls return
    ended_ns = [100_000_000, 200_000_000, 300_000_000, 399_999_999, 100_000_000, 200_000_000]
    starts_ns = [end_ns + late_ns for end_ns in ended_ns]
    starts_ns[3] = 500_000_000
    lasts_ns = [100_000_000 - late_ns, 100_000_000 - late_ns, 100_000_000 - late_ns, 5, 100_000_000 - late_ns, 5]
    spans = DeviceSpans.of(
        device=[0, 0, 0, 0, 1, 1, 1], stream=[7] * 7, kind=[DeviceKind.KERNEL] * 7, start_ns=[*starts_ns, 900_000_000],
        duration_ns=[*lasts_ns, 5], launch=[0, 1, 2, 3, 4, 5, NONE],
    )  # fmt: skip
    assert launches_on_idle_devices(spans, np.array(ended_ns)) == idle_launches
    assert launches_on_idle_devices(spans.take(np.arange(3)), np.array(ended_ns)) == 0  # two launches are too few
