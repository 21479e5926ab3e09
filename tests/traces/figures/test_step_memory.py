"""Tests how much the memory use rises within a step."""

from __future__ import annotations

from tests.replayer.recordings import US, make_recording
from traces.figures.step_memory import step_rises
from traces.model.trace import Device, MemoryEvents, StepKind, Trace


def trace_of(*events: tuple[int, int, int], steps: int = 1) -> Trace:
    """Return a trace with steps of 100 us. An event is a tuple: us after the start of the first step, device, and bytes."""
    trace = make_recording([("forward", 0, 100)], [], steps=steps)
    trace.devices.append(Device(0, 1, "second", 1 << 30))
    start_ns = int(trace.steps.start_ns[0])
    trace.memory = MemoryEvents.of(
        thread=[0] * len(events),
        device=[device for _, device, _ in events],
        time_ns=[start_ns + at * US for at, _, _ in events],
        bytes=[size for _, _, size in events],
        address=[0] * len(events),
    )
    return trace


def test_the_memory_rise_of_a_step_is_measured_from_its_start() -> None:
    """GIVEN memory allocated before the step WHEN some of it is freed first THEN the rise counts from the start of the step,
    not from the lowest point."""
    assert step_rises(trace_of((-5, 0, 1000), (10, 0, -600), (20, 0, 900), (30, 0, -100))) == {0: 300}
    assert step_rises(trace_of((10, 0, -600), (20, 0, 500))) == {0: 0}


def test_the_memory_rise_is_computed_for_each_gpu_and_not_for_the_host() -> None:
    assert step_rises(trace_of((10, 0, 5), (20, 1, 700), (30, -1, 9000))) == {0: 5, 1: 700}


def test_the_memory_rise_per_step_is_the_median_of_steady_steps() -> None:
    trace = trace_of((10, 0, 9), (90, 0, -9), (110, 0, 5), (190, 0, -5), (210, 0, 7), (290, 0, -7), steps=3)
    assert step_rises(trace) == {0: 7}
    trace.steps.kind[0] = StepKind.WARMUP
    trace.steps.kind[2] = StepKind.WARMUP
    assert step_rises(trace) == {0: 5}
    trace.steps.kind[1] = StepKind.WARMUP
    assert step_rises(trace) == {}
