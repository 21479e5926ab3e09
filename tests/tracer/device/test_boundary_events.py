"""Boundary events: differences of events add up to one clock, exactly, and the host never waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.fakes import FakeClock, FakeCuda, FakeStream
from tracer.device.boundary_events import BoundaryEvent, BoundaryEvents, CurrentStream
from tracer.device.device_access import DeviceAccess
from traces.model.trace import NONE, Untimed


class Events:
    """Boundary events on a fake device."""

    def __init__(self, now_ns: int = 1_000_000) -> None:
        self.clock = FakeClock(now_ns)
        self.cuda = FakeCuda(self.clock)
        self.profiles: set[str] = set()
        self.access = DeviceAccess(self.cuda, self.cuda.captures, self.profiles)
        clock: Any = self.clock
        self.events = BoundaryEvents(self.cuda, clock, self.access)

    def take(self) -> BoundaryEvent:
        event = self.events.take()
        assert event is not None
        return event


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 50_000)), min_size=1, max_size=60))
def test_events_say_when_the_gpu_got_there(script: list[tuple[int, int]]) -> None:
    """Differences are exact. The offset is the earliest that agrees with the host: exact if the GPU was idle at any event."""
    here = Events()
    taken: list[BoundaryEvent] = []
    truth: list[int] = []
    lags: list[int] = []
    for host_ns, device_ns in script:
        here.clock.ns += host_ns
        here.cuda.launch(device_ns)
        taken.append(here.take())
        truth.append(max(here.cuda.busy_until_ns[0], here.clock.ns))
        lags.append(truth[-1] - here.clock.ns)
    assert here.events.read_finished_within(taken, 10**9)
    assert [event.time_ns - taken[0].time_ns for event in taken] == [of - truth[0] for of in truth]
    assert 0 <= truth[0] - taken[0].time_ns <= min(lags)


def test_the_host_never_waits() -> None:
    here = Events()
    here.cuda.launch(5_000)
    event = here.take()
    assert not here.events.read_finished([event])
    assert (here.clock.ns, event.time_ns) == (1_000_000, NONE)


def test_an_event_that_is_found_not_done_narrows_the_clock_down() -> None:
    """GIVEN a GPU that is never idle WHEN the host looks at 4 000 ns and finds it busy THEN it was busy until then."""
    here = Events(0)
    here.cuda.launch(5_000)
    event = here.take()
    here.clock.ns = 4_000
    assert not here.events.read_finished([event])
    here.clock.ns = 9_000
    assert here.events.read_finished([event])
    assert event.time_ns == 4_000


def test_a_clock_of_the_gpu_that_runs_fast_is_set_back() -> None:
    """GIVEN events 1 000 ns apart by the GPU's clock WHEN the host finds the second one done after 900 THEN it was done."""
    here = Events(0)
    first = here.take()
    assert here.events.read_finished([first])
    here.clock.ns = 900
    second = here.take()
    second.event.ns = 900
    second.event.elapsed_time = first.event.elapsed_time = lambda end: 1_000 / 1e6
    assert here.events.read_finished([second])
    assert second.time_ns == 900 and second.time_ns - first.time_ns == 1_000


def test_a_script_that_does_not_use_cuda_has_no_events() -> None:
    here = Events()
    here.cuda.used = False
    assert here.events.take() is None and here.access.closed is Untimed.NO


def test_devices_have_clocks_of_their_own() -> None:
    here = Events(0)
    taken = []
    for device in (0, 1, 0, 1):
        here.cuda.device = device
        taken.append(here.take())
        here.cuda.launch(100 * (device + 1), device)
        here.clock.ns += 1_000
    assert here.events.read_finished(taken)
    assert [(event.device, event.time_ns) for event in taken] == [(0, 0), (1, 1_000), (0, 2_000), (1, 3_000)]


def test_events_of_two_streams_are_told_apart() -> None:
    here = Events()
    one = here.take()
    two = here.events.take(FakeStream(0, 7))
    assert two is not None and (one.stream, two.stream) == (0, 7)


@pytest.mark.parametrize("own_stream", [True, False])
def test_a_capture_is_left_alone(own_stream: bool) -> None:
    """Whether the current stream captures, or another one, of this thread or another."""
    here = Events()
    taken = [here.take()]
    calls = here.cuda.calls
    if own_stream:
        here.cuda.capturing = True
    else:
        here.cuda.captures.add("graph")
    assert here.events.take() is None and here.access.closed is Untimed.CAPTURE
    assert not here.events.read_finished(taken) and not here.events.read_finished_within(taken, 1_000)
    assert not here.access.is_idle_within(1_000, [0])
    assert (here.cuda.calls, here.cuda.destroyed_captures) == (calls, 0)
    here.cuda.capturing = False
    here.cuda.captures.clear()
    assert here.events.read_finished(taken)


def test_a_profile_of_the_script_gets_no_event_of_ours() -> None:
    here = Events()
    taken = [here.take()]
    calls = here.cuda.calls
    here.profiles.add("profile")
    assert here.events.take() is None and here.access.closed is Untimed.PROFILE
    assert not here.events.read_finished(taken)
    assert here.cuda.calls == calls


def test_after_an_error_of_the_device_nothing_is_called() -> None:
    here = Events()
    taken = [here.take(), here.take()]
    assert here.events.read_finished(taken[:1])
    here.cuda.error = "CUDA error: device-side assert triggered\nCompile with ..."
    assert not here.events.read_finished(taken)
    calls = here.cuda.calls
    assert here.access.lost == "CUDA error: device-side assert triggered"
    assert here.events.take() is None and not here.events.read_finished(taken) and here.access.attempt(here.cuda.check) is None
    assert here.cuda.calls == calls
    assert taken[0].time_ns != NONE and taken[1].time_ns == NONE


def test_a_device_that_makes_no_progress_is_not_waited_for() -> None:
    here = Events(0)
    taken = [here.take()]
    here.cuda.hangs = True
    assert not here.events.read_finished_within(taken, 1_500_000_000)
    assert 1_500_000_000 <= here.clock.ns < 1_502_000_000
    assert not here.access.is_idle_within(10_000_000, [0])


def test_a_device_that_makes_progress_is_waited_for() -> None:
    here = Events(0)
    taken = []
    for _ in range(5):
        here.cuda.launch(1_000_000_000)
        taken.append(here.take())
    assert here.events.read_finished_within(taken, 1_500_000_000)
    assert 5_000_000_000 <= here.clock.ns < 5_002_000_000


def test_the_current_stream_is_made_once_per_id() -> None:
    """GIVEN the ids of current streams THEN torch is asked for an object at an id's first use on each device."""
    made: list[int] = []
    current = {"device": 0, "stream": 7}

    def current_stream(device: int) -> str:
        made.append(device)
        return f"stream {current['stream']} of {device}"

    cuda = SimpleNamespace(current_device=lambda: current["device"], current_stream=current_stream)
    bindings = SimpleNamespace(_cuda_getCurrentStream=lambda device: (current["stream"], device, 1))
    find = CurrentStream(SimpleNamespace(cuda=cuda, _C=bindings))
    assert [find(), find()] == ["stream 7 of 0"] * 2
    current["device"] = 1
    assert find() == "stream 7 of 1"
    current["stream"] = 9
    assert find() == "stream 9 of 1" and made == [0, 1, 1]
