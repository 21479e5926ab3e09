"""Tests that the times between boundary events add up exactly to one clock, and that the host never waits for an event."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.fakes import FakeClock, FakeCuda, FakeEvent, FakeProfiles, FakeStream
from tracer.device.boundary_events import BoundaryEvent, BoundaryEvents
from tracer.device.device_access import DeviceAccess
from traces.model.trace import NONE, Untimed


class Events:
    """Provides boundary events on a fake device."""

    def __init__(self, now_ns: int = 1_000_000) -> None:
        self.clock = FakeClock(now_ns)
        self.cuda = FakeCuda(self.clock)
        self.profiles = FakeProfiles()
        self.access = DeviceAccess(self.cuda, self.cuda.captures, self.profiles)
        clock: Any = self.clock
        cuda: Any = self.cuda
        self.events = BoundaryEvents(cuda, clock, self.access)

    def take(self) -> BoundaryEvent:
        event = self.events.record(self.clock.ns)
        assert event is not None
        return event


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 50_000)), min_size=1, max_size=60))
def test_a_cuda_event_records_the_time_when_the_gpu_reaches_it(script: list[tuple[int, int]]) -> None:
    """Differences between events are exact. The offset between the clocks is the smallest that agrees with what the host has
    observed. The offset is exact if the GPU was idle at any event."""
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


def test_reading_cuda_events_never_blocks_the_host() -> None:
    here = Events()
    here.cuda.launch(5_000)
    event = here.take()
    assert not here.events.read_finished([event])
    assert (here.clock.ns, event.time_ns) == (1_000_000, NONE)


def test_completed_cuda_events_are_reported_until_they_are_read() -> None:
    here = Events()
    here.cuda.launch(5_000)
    events = [here.take(), here.take()]
    assert not here.events.are_done([]) and not here.events.are_done(events)
    here.clock.ns += 5_000
    assert here.events.are_done(events)
    assert here.events.read_finished(events) and not here.events.are_done(events)


def test_a_pending_event_improves_the_estimate_of_the_gpu_clock_offset() -> None:
    """The GPU is never idle. If the event is still pending at 4 000 ns, it is not earlier than that."""
    here = Events(0)
    here.cuda.launch(5_000)
    event = here.take()
    here.clock.ns = 4_000
    assert not here.events.read_finished([event])
    here.clock.ns = 9_000
    assert here.events.read_finished([event])
    assert event.time_ns == 4_000


def test_the_offset_of_a_gpu_clock_that_runs_too_fast_is_corrected() -> None:
    """On the GPU clock, the events are 1 000 ns apart. If both are complete after 900 ns, the second event is not later than
    that."""
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
    assert here.events.record(0) is None and here.access.closed is Untimed.NO


def test_each_device_has_a_separate_clock() -> None:
    here = Events(0)
    taken = []
    for device in (0, 1, 0, 1):
        here.cuda.device = device
        taken.append(here.take())
        here.cuda.launch(100 * (device + 1), device)
        here.clock.ns += 1_000
    assert here.events.read_finished(taken)
    assert [(event.device, event.time_ns) for event in taken] == [(0, 0), (1, 1_000), (0, 2_000), (1, 3_000)]


def test_events_of_two_streams_are_distinguished() -> None:
    here = Events()
    one = here.take()
    two = here.events.take_on(FakeStream(0, 7))
    assert two is not None and (one.of.is_default, two.of.is_default) == (True, False)


@pytest.mark.parametrize("own_stream", [True, False])
def test_the_recorder_does_not_disturb_a_cuda_graph_capture(own_stream: bool) -> None:
    """The current stream captures a graph, or another stream does, possibly in another thread."""
    here = Events()
    taken = [here.take()]
    calls = here.cuda.calls
    if own_stream:
        here.cuda.stream, here.cuda.capturing = 7, True
    else:
        here.cuda.captures.add("graph")
    assert here.events.record(0) is None and here.access.closed is Untimed.CAPTURE
    assert not here.events.read_finished(taken) and not here.events.read_finished_within(taken, 1_000)
    assert not here.access.is_idle_within(1_000, [0])
    assert (here.cuda.calls, here.cuda.destroyed_captures) == (calls, 0)
    here.cuda.stream, here.cuda.capturing = 0, False
    here.cuda.captures.clear()
    assert here.events.read_finished(taken)


def test_no_events_are_recorded_while_the_script_profiles() -> None:
    here = Events()
    taken = [here.take()]
    calls = here.cuda.calls
    here.profiles.add("profile")
    assert here.events.record(0) is None and here.access.closed is Untimed.PROFILE
    assert not here.events.read_finished(taken)
    assert here.cuda.calls == calls


def test_no_cuda_call_is_made_after_a_device_error() -> None:
    here = Events()
    taken = [here.take(), here.take()]
    assert here.events.read_finished(taken[:1])
    here.cuda.error = "CUDA error: device-side assert triggered\nCompile with ..."
    assert not here.events.read_finished(taken)
    calls = here.cuda.calls
    assert here.access.device_lost == "CUDA error: device-side assert triggered"
    assert (
        here.events.record(0) is None and not here.events.read_finished(taken) and here.access.attempt(here.cuda.check) is None
    )
    assert here.cuda.calls == calls
    assert taken[0].time_ns != NONE and taken[1].time_ns == NONE


def test_waiting_ends_if_the_device_makes_no_progress() -> None:
    here = Events(0)
    taken = [here.take()]
    here.cuda.hangs = True
    assert not here.events.read_finished_within(taken, 1_500_000_000)
    assert 1_500_000_000 <= here.clock.ns < 1_502_000_000
    assert not here.access.is_idle_within(10_000_000, [0])


def test_waiting_continues_while_the_device_makes_progress() -> None:
    here = Events(0)
    taken = []
    for _ in range(5):
        here.cuda.launch(1_000_000_000)
        taken.append(here.take())
    assert here.events.read_finished_within(taken, 1_500_000_000)
    assert 5_000_000_000 <= here.clock.ns < 5_002_000_000


def test_the_stream_object_is_created_once_per_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder asks torch for a stream object only when it sees the handle of a stream for the first time."""
    here = Events()
    made: list[tuple[int, int]] = []

    def current_stream(device: int) -> FakeStream:
        made.append((device, here.cuda.stream))
        return FakeStream(device, here.cuda.stream)

    monkeypatch.setattr(here.cuda, "current_stream", current_stream)
    for here.cuda.device, here.cuda.stream in ((0, 0), (0, 0), (1, 0), (1, 9), (0, 0)):
        event = here.take()
        assert event.of.stream == (here.cuda.device, here.cuda.stream) and here.events.is_current(event.of)
    assert made == [(0, 0), (1, 0), (1, 9)]


@pytest.mark.parametrize(("contexts", "taken_on"), [({0, 1}, 0), ({1}, 1), ({1, 2}, None), (set(), None)])
def test_recording_an_event_never_creates_a_context(contexts: set[int], taken_on: int | None) -> None:
    """The current device is cuda:0. If it has no context and exactly one other device has a context, the event is recorded on
    that device."""
    here = Events()
    here.cuda.contexts = contexts
    event = here.events.record(0)
    assert (event.device if event is not None else None) == taken_on
    assert here.events.untimed is Untimed.NO and here.access.device_lost == ""


def test_a_completed_event_shows_that_earlier_events_of_its_stream_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN ten completed events on two streams THEN the recorder queries only the last event of each stream."""
    here = Events()
    taken = []
    for here.cuda.stream in (0, 3) * 5:
        taken.append(here.take())
        here.clock.ns += 10
    queries = []
    query = FakeEvent.query

    def counted(event: FakeEvent) -> bool:
        queries.append(event)
        return query(event)

    monkeypatch.setattr(FakeEvent, "query", counted)
    assert here.events.read_finished(taken)
    assert queries == [taken[8].event, taken[9].event]
    assert [event.time_ns - taken[0].time_ns for event in taken] == list(range(0, 100, 10))


def test_the_events_of_finished_steps_are_read_together() -> None:
    """Each of three steps has two events, and the last event follows GPU work of 1000 ns. The first read finds two finished
    steps, and a read after 2000 ns finds the third step."""
    here = Events()
    first = here.take()
    assert here.events.read_finished([first])
    began_ns, events, host_ns = here.clock.ns, [], []
    for number in range(6):
        if number == 5:
            here.cuda.launch(1000)
        here.clock.ns += 10
        event = here.cuda.event()
        event.record(first.of.stream)
        events.append(event)
        host_ns.append(here.clock.ns)
    ticks_ns, asked_ns = here.events.read_in_order(first.of, events, [host_ns[::2], host_ns[1::2]], NONE)
    assert (ticks_ns, asked_ns) == ([10, 20, 30, 40], here.clock.ns)
    here.clock.ns += 2000
    ticks_ns, unfinished_ns = here.events.read_in_order(first.of, events[4:], [host_ns[4:5], host_ns[5:]], asked_ns)
    assert (ticks_ns, unfinished_ns) == ([50, 1050], NONE)
    last = first.of.clock.last
    assert last is not None and last.time_ns == began_ns + 1050 and len(first.of.clock.free) == 6


class AcceleratorError(RuntimeError):
    """Stands in for torch.AcceleratorError, which has CUDA's error code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.error_code = code


@pytest.mark.parametrize(
    ("error", "lost", "untimed"),
    [
        (AcceleratorError("CUDA error: device-side assert triggered\nmore", 710), True, Untimed.DEVICE_LOST),
        (RuntimeError("HIP error: unspecified launch failure"), True, Untimed.DEVICE_LOST),
        (AcceleratorError("CUDA error: out of memory", 2), False, Untimed.DEVICE_LOST),
        (AcceleratorError("CUDA error: operation not permitted when stream is capturing", 900), False, Untimed.CAPTURE),
        (RuntimeError("Expected one of cpu, cuda"), False, Untimed.DEVICE_LOST),
    ],
)
def test_only_a_sticky_error_counts_as_a_lost_device(error: RuntimeError, lost: bool, untimed: Untimed) -> None:
    here = Events()

    def fails() -> None:
        raise error

    assert here.access.attempt(fails) is None
    assert here.access.device_lost == (str(error).partition("\n")[0] if lost else "")
    if not lost:
        here.cuda.check = fails  # type: ignore[method-assign]
        assert here.events.record(0) is None and here.events.untimed is untimed
        del here.cuda.check
        assert here.take().device == 0
