"""Marks: differences of events add up to one clock, exactly, and the host is never made to wait but once."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.fakes import FakeClock, FakeCuda
from tracer.marks import Mark, Marks


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 50_000)), min_size=1, max_size=60))
def test_marks_tell_when_the_gpu_got_there(script: list[tuple[int, int]]) -> None:
    clock = FakeClock()
    cuda = FakeCuda(clock)
    any_clock: Any = clock
    marks = Marks(cuda, any_clock)
    taken: list[Mark] = []
    truth: list[int] = []
    for host_ns, device_ns in script:
        clock.ns += host_ns
        cuda.launch(device_ns)
        mark = marks.take()
        assert mark is not None
        taken.append(mark)
        truth.append(max(cuda.busy_until_ns[0], clock.ns) if len(taken) > 1 else clock.ns)
        marks.settle(taken)  # reads those that are done, in order; the others stay for later
    assert marks.settle(taken, wait=True)
    assert [mark.time_ns for mark in taken] == truth


def test_a_script_that_does_not_use_cuda_has_no_marks() -> None:
    clock = FakeClock()
    cuda = FakeCuda(clock)
    cuda.used = False
    any_clock: Any = clock
    assert Marks(cuda, any_clock).take() is None


def test_devices_have_clocks_of_their_own() -> None:
    clock = FakeClock(0)
    cuda = FakeCuda(clock)
    any_clock: Any = clock
    marks = Marks(cuda, any_clock)
    taken = []
    for device in (0, 1, 0, 1):
        cuda.device = device
        cuda.launch(100 * (device + 1), device)
        mark = marks.take()
        assert mark is not None
        taken.append(mark)
    assert marks.settle(taken, wait=True)
    # The first mark of each device is waited for: at 100 and, from there, at 300. Then each has one more launch behind it.
    assert [(mark.device, mark.time_ns) for mark in taken] == [(0, 100), (1, 300), (0, 400), (1, 500)]
