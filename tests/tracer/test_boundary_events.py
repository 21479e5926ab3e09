"""Boundary events: differences of events add up to one clock, exactly, and the host is never made to wait but once."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.fakes import FakeClock, FakeCuda
from tracer.boundary_events import BoundaryEvent, BoundaryEvents


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 50_000)), min_size=1, max_size=60))
def test_marks_tell_when_the_gpu_got_there(script: list[tuple[int, int]]) -> None:
    clock = FakeClock()
    cuda = FakeCuda(clock)
    any_clock: Any = clock
    events = BoundaryEvents(cuda, any_clock)
    taken: list[BoundaryEvent] = []
    truth: list[int] = []
    for host_ns, device_ns in script:
        clock.ns += host_ns
        cuda.launch(device_ns)
        event = events.take()
        assert event is not None
        taken.append(event)
        truth.append(max(cuda.busy_until_ns[0], clock.ns) if len(taken) > 1 else clock.ns)
        events.settle(taken)  # reads those that are done, in order; the others stay for later
    assert events.settle(taken, wait=True)
    assert [event.time_ns for event in taken] == truth


def test_a_script_that_does_not_use_cuda_has_no_marks() -> None:
    clock = FakeClock()
    cuda = FakeCuda(clock)
    cuda.used = False
    any_clock: Any = clock
    assert BoundaryEvents(cuda, any_clock).take() is None


def test_devices_have_clocks_of_their_own() -> None:
    clock = FakeClock(0)
    cuda = FakeCuda(clock)
    any_clock: Any = clock
    events = BoundaryEvents(cuda, any_clock)
    taken = []
    for device in (0, 1, 0, 1):
        cuda.device = device
        cuda.launch(100 * (device + 1), device)
        event = events.take()
        assert event is not None
        taken.append(event)
    assert events.settle(taken, wait=True)
    # The first event of each device is waited for: at 100 and, from there, at 300. Then each has one more launch behind it.
    assert [(event.device, event.time_ns) for event in taken] == [(0, 100), (1, 300), (0, 400), (1, 500)]
