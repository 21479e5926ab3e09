"""Tests that the critical path of a step leads from the end of the previous step to the end of the step.

Times are in microseconds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.traces.analyses.test_waits import Call, Work, recorded
from tests.traces.handmade import US, training
from traces.analyses.critical_path import critical_path
from traces.kineto import read_kineto
from traces.model.trace import NONE, Phases, Steps


def test_a_kernel_of_zero_duration_is_on_the_critical_path_at_most_once(shared_traces: Path) -> None:
    # GIVEN a recording with a resolution of 1 us, in which copies have a duration of 0 us
    trace = read_kineto(shared_traces / "gp100_gpu_user_annotation.json.gz")
    assert (trace.device.duration_ns == 0).any()
    path = critical_path(trace)
    assert path is not None
    assert sum(segment.end_ns - segment.start_ns for segment in path.segments) == path.sums.duration_ns


def test_the_critical_path_is_on_the_device_if_the_host_runs_ahead() -> None:
    """GIVEN three steps of 4 us on the host WHEN each step launches a kernel of 100 us THEN the second step's critical path is
    its kernel alone. The first kernel runs from 10 to 110 us, and the next kernels follow without gaps."""
    calls: list[Call] = [("cudaLaunchKernel", 4 * step + 1, 4 * step + 2) for step in range(3)]
    work: list[Work] = [(0, 7, "gemm", 10 + 100 * step, 110 + 100 * step, step) for step in range(3)]
    trace = recorded(calls, work)
    trace.steps = Steps.of(rank=[0] * 3, number=[0, 1, 2], start_ns=[0, 4 * US, 8 * US], duration_ns=[4 * US] * 3)
    first, second = critical_path(trace, 0), critical_path(trace, 1)
    assert first is not None and second is not None
    # The critical path of the first step begins on the host and ends with the kernel of the step.
    assert first.sums.by_kind == {"kernel": 100 * US, "launch": 8 * US, "host": 2 * US}
    # The critical path of the second step lasts from the end of the first kernel (110 us) to the end of the second (210 us).
    assert second.sums.by_kind == {"kernel": 100 * US} and second.segments[0].start_ns == 110 * US


def test_the_critical_path_through_a_pageable_copy_includes_earlier_kernels() -> None:
    """GIVEN a kernel that runs from 10 to 5000 us WHEN the host calls a pageable copy at 20 us THEN the kernel and the copy are
    on the critical path. The copy ends at 5008 us, the call returns at 5018 us, and the step ends at 5100 us."""
    copy = (0, 7, "Memcpy DtoH (Device -> Pageable)", 5005, 5008, 1)
    trace = recorded([("cudaLaunchKernel", 0, 5), ("cudaMemcpyAsync", 20, 5018)], [(0, 7, "gemm", 10, 5000, 0), copy])
    trace.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[5100 * US])
    path = critical_path(trace)
    assert path is not None
    told = [(segment.kind, (segment.end_ns - segment.start_ns) // US) for segment in path.segments]
    assert told == [("host", 5), ("launch", 5), ("kernel", 4990), ("launch", 5), ("copy", 3), ("host", 92)]
    # WHEN the host launches only after the GPU has finished its earlier work THEN the critical path is on the host
    late = recorded(
        [("cudaLaunchKernel", 0, 5), ("cudaLaunchKernel", 300, 305)], [(0, 7, "a", 10, 50, 0), (0, 7, "b", 310, 350, 1)]
    )
    late.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[350 * US])
    path = critical_path(late)
    assert path is not None and path.sums.by_kind == {"host": 305 * US, "kernel": 40 * US, "launch": 5 * US}


def test_the_critical_path_continues_on_the_stream_whose_work_ended_last() -> None:
    """GIVEN a GPU that limits the pace WHEN a kernel on stream 7 waits for an event of stream 8 THEN the critical path
    continues with the kernel on stream 8. The kernel on stream 8 runs from 10 to 400 us. The kernels on stream 7 run from 5 to
    50 us and from 405 to 450 us."""
    calls: list[Call] = [("cudaLaunchKernel", at, at + 1) for at in range(3)]
    trace = recorded(calls, [(0, 7, "a", 5, 50, 0), (0, 8, "b", 10, 400, 1), (0, 7, "c", 405, 450, 2)])
    trace.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[20 * US])
    path = critical_path(trace)
    assert path is not None
    told = [(segment.kind, (segment.end_ns - segment.start_ns) // US, segment.name) for segment in path.segments]
    first = [("host", 1, ""), ("launch", 4, ""), ("kernel", 5, "a")]
    assert told == [*first, ("kernel", 390, "b"), ("launch", 5, ""), ("kernel", 45, "c")]


def test_the_critical_path_goes_to_the_launch_call_if_the_host_limits_the_step() -> None:
    """GIVEN a kernel that is launched at 400 us WHEN the GPU is idle from 50 to 405 us THEN the critical path leads to the
    launch call."""
    calls: list[Call] = [("cudaLaunchKernel", at, at + 1) for at in (0, 1, 400)]
    trace = recorded(calls, [(0, 7, "a", 5, 50, 0), (0, 8, "b", 10, 15, 1), (0, 7, "c", 405, 450, 2)])
    trace.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[450 * US])
    path = critical_path(trace)
    assert path is not None
    told = [(segment.kind, (segment.end_ns - segment.start_ns) // US) for segment in path.segments]
    assert told == [("host", 401), ("launch", 4), ("kernel", 45)]


def test_host_time_on_the_critical_path_is_divided_by_phase() -> None:
    """GIVEN a step from 100 to 200 us in which the host never waits THEN the host time on its critical path is divided by
    phase. Phases of another rank do not change the result."""
    trace = training(steps=3)
    steps, phases = trace.steps.take(np.arange(3)), trace.phases.take(np.arange(len(trace.phases)))
    steps.rank[:], phases.step[:] = 1, phases.step + 3
    phases.name[:] = trace.strings.add("other")
    trace.steps, trace.phases = Steps.concatenated([trace.steps, steps]), Phases.concatenated([phases, trace.phases])
    path = critical_path(trace, 1)
    assert path is not None
    told = [(segment.kind, segment.name, (segment.end_ns - segment.start_ns) // US) for segment in path.segments]
    assert told == [
        ("data", "loader", 20), ("host", "h2d", 10), ("host", "forward", 20), ("host", "loss", 10), ("host", "backward", 20),
        ("host", "optimizer", 20),
    ]  # fmt: skip
    assert path.sums.by_name == {} and path.sums.step == int(trace.steps.number[1])


def test_the_critical_path_excludes_unrelated_work_of_other_steps() -> None:
    calls: list[Call] = [("cudaLaunchKernel", at, at + 1) for at in (0, 100, 200)]
    trace = recorded(calls, [(0, 7, "a", 5, 50, 0), (0, 7, "b", 110, 150, 1), (0, 7, "c", 210, 250, 2)])
    trace.steps = Steps.of(rank=[0] * 3, number=[0, 1, 2], start_ns=[0, 100 * US, 200 * US], duration_ns=[100 * US] * 3)
    path = critical_path(trace, 1)
    assert path is not None and path.sums.by_kind == {"host": 100 * US}
    trace.steps.duration_ns[1] = 20 * US
    path = critical_path(trace, 1)
    # The host ends the step at 120 us, and the kernel ends at 150 us.
    assert path is not None and path.sums.by_name == {"b": 40 * US}
    assert path.sums.by_kind == {"kernel": 40 * US, "launch": 9 * US, "host": US}


def test_the_critical_path_is_computed_for_a_step_that_follows_another_step() -> None:
    """GIVEN steps of 105, 100 and 110 us WHEN the caller chooses no step THEN the critical path is computed for the last step.
    The first step has the median length, but no predecessor."""
    trace = training(steps=3, jitter_us=(5, 0, 10))
    path = critical_path(trace)
    assert path is not None and path.sums.step == trace.steps.number[2]
    first = critical_path(training(steps=1))
    assert first is not None and first.sums.step == trace.steps.number[0]


def test_the_critical_path_can_continue_with_the_first_kernel_of_another_stream() -> None:
    """GIVEN a kernel on stream 8 that ends at 50 us WHEN the first kernel on stream 7 starts at 55 us THEN both kernels are on
    the critical path. The kernel on stream 7 was launched long before."""
    calls: list[Call] = [("cudaLaunchKernel", at, at + 1) for at in range(2)]
    trace = recorded(calls, [(0, 8, "a", 10, 50, 0), (0, 7, "b", 55, 90, 1)])
    trace.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[20 * US])
    path = critical_path(trace)
    assert path is not None
    told = [(segment.kind, (segment.end_ns - segment.start_ns) // US, segment.name) for segment in path.segments]
    assert told == [("host", 1, ""), ("launch", 9, ""), ("kernel", 40, "a"), ("launch", 5, ""), ("kernel", 35, "b")]


def test_a_kernel_that_ends_at_the_next_launch_is_on_the_critical_path() -> None:
    """GIVEN a kernel that runs from 5 to 50 us WHEN the call that launches the second kernel ends at 50 us THEN both kernels
    are on the critical path."""
    calls: list[Call] = [("cudaLaunchKernel", 0, 1), ("cudaLaunchKernel", 45, 50)]
    trace = recorded(calls, [(0, 7, "a", 5, 50, 0), (0, 7, "b", 60, 90, 1)])
    trace.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[90 * US])
    path = critical_path(trace)
    assert path is not None
    told = [(segment.kind, (segment.end_ns - segment.start_ns) // US, segment.name) for segment in path.segments]
    assert told == [("host", 1, ""), ("launch", 4, ""), ("kernel", 45, "a"), ("launch", 10, ""), ("kernel", 30, "b")]


def test_a_recording_without_launch_calls_has_no_critical_path() -> None:
    trace = training()
    assert critical_path(trace) is not None
    trace.device.launch[:] = NONE
    assert critical_path(trace) is None
