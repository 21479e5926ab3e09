"""Tests which reasons are found for the idle time of a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.traces.analyses.streams import two_streams
from tests.traces.figures.test_pace import Work, a_trace, at
from tests.traces.handmade import MS, US, Call, calls, data_parallel, training
from traces.analyses.idle import IdleReason, data_waits, idle_spans, idle_times
from traces.figures.bottleneck import PaceLimit
from traces.figures.summary import summarize
from traces.model.trace import NONE, DeviceKind, HostKind, HostSpans, Phases, StepKind, Steps, Trace


def test_idle_time_is_divided_into_data_and_host_and_launch_time() -> None:
    """GIVEN steps that wait 20 us for data and then run three kernels WHEN each kernel is launched 4 us before it starts THEN
    idle time is divided into data, host and launch time. In a step, the kernels run from 27 to 47 us, from 57 to 77 us and from
    87 to 97 us."""
    of = idle_times(training(steps=4))["cuda:0"]
    # The window lasts from the start of the first step to the end of the last step on the host, 3 us after the last kernel.
    assert of.steps == 4 and of.window_ns == 400 * US
    assert of.busy_ns == 4 * 50 * US and of.busy_ns + of.idle_ns == of.window_ns
    assert of.by_reason["data"] == 4 * 20 * US
    assert of.by_reason["launch"] == 4 * 3 * 4 * US
    assert of.by_reason["host"] == (400 - 200 - 80 - 48) * US
    assert not of.by_reason["stream"] and not of.by_reason["unknown"]


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (two_streams("gemm", 41), IdleReason.STREAM),
        (two_streams("ncclKernel_AllReduce", 41), IdleReason.COLLECTIVE),
        (two_streams("gemm", 40), IdleReason.STREAM),
        (two_streams("gemm", 50), IdleReason.STREAM),
        (two_streams("gemm", 51), IdleReason.LAUNCH),  # the kernel starts 11 us after the other stream ends, which is too late
        (two_streams("gemm", 41, launched_us=40), IdleReason.HOST),
    ],
)
def test_a_kernel_waits_for_work_that_ended_just_before_it_on_another_stream(trace: Trace, reason: IdleReason) -> None:
    spans = idle_spans(trace, by_stream=True)
    mine = spans.take(spans.stream == 7)
    lasted = {IdleReason(kind): int((mine.end_ns - mine.start_ns)[mine.reason == kind].sum()) for kind in mine.reason.tolist()}
    assert max(lasted, key=lambda kind: lasted[kind]) is reason
    assert sum(lasted.values()) == int(trace.device.start_ns[2]) - 20 * US
    assert not len(idle_spans(trace).take(idle_spans(trace).start_ns < 40 * US))  # the other stream was busy


def test_each_nanosecond_of_idle_time_has_exactly_one_reason(real: Trace) -> None:
    of = idle_times(real)["cuda:0"]
    assert of.busy_ns + of.idle_ns == of.window_ns
    spans = idle_spans(real)
    assert (spans.start_ns[1:] >= spans.end_ns[:-1]).all()
    # The host waits for data, but during a part of the wait the GPU still has queued work.
    assert of.by_reason["data"] / of.steps == pytest.approx(58.7 * MS, rel=0.01)


def test_idle_time_of_unprofiled_steps_is_computed_from_kernels_of_profiled_steps() -> None:
    """GIVEN profiled steps of 150 us and clean steps of 100 us WHEN idle time is computed for the clean steps THEN data,
    launches and the host cause 13, 12 and 25 us of idle time.

    In a profiled step, the GPU is busy for 50 us and idle for 20 us of data loading, 12 us of launch latency and 68 us of host
    work. In a clean step, data loading leaves the GPU without work for 13 us. The remaining 100 - 50 - 13 - 12 = 25 us are host
    time. A copy runs from 27 to 37 us, and a kernel launched at 32 us waits 5 us for this copy.
    """
    trace = training(steps=8, jitter_us=(*[0] * 4, *[50] * 4))
    trace.device = trace.device.take(trace.device.start_ns >= trace.steps.start_ns[4])
    trace.steps.kind[:] = [StepKind.STEADY] * 4 + [StepKind.PROFILED] * 4
    of = idle_times(trace)["cuda:0"]
    assert (of.window_ns, of.busy_ns, of.steps) == (400 * US, 200 * US, 4)
    assert {reason: ns // 4 // US for reason, ns in of.by_reason.items() if ns} == {"data": 13, "host": 25, "launch": 12}
    summary = summarize(trace)
    assert summary.busy_shares == {"cuda:0": 0.5} and summary.bottleneck == PaceLimit("host", 25 * US, 0.25, copies_ns=5 * US)


def test_idle_time_and_bottleneck_describe_the_same_average_step() -> None:
    """GIVEN clean steps of 100 us and a last clean step of 140 us WHEN idle time and bottleneck are computed THEN both describe
    the average clean step of 111.75 us.

    The profiled steps take 150 us. On the GPU, the first step ends after 107 us, because nothing ran before it. All 20 us of
    data loading in the first step count. The average step takes (107 + 100 + 100 + 140) / 4 = 111.75 us. The data loading of
    the average step takes (20 + 3 * 13) / 4 = 14.75 us. The host causes the remaining idle time, 111.75 - 50 - 14.75 - 12 = 35
    us.
    """
    trace = training(steps=8, jitter_us=(*[0] * 3, 40, *[50] * 4))
    trace.device = trace.device.take(trace.device.start_ns >= trace.steps.start_ns[4])
    trace.steps.kind[:] = [StepKind.STEADY] * 4 + [StepKind.PROFILED] * 4
    of, summary = idle_times(trace)["cuda:0"], summarize(trace)
    assert (of.window_ns, of.busy_ns, of.steps) == (447 * US, 200 * US, 4)
    assert {reason: ns for reason, ns in of.by_reason.items() if ns} == {"data": 59 * US, "host": 140 * US, "launch": 48 * US}
    assert summary.bottleneck == PaceLimit("host", 35 * US, 35 / 111.75, copies_ns=5 * US)


def _clean_and_synchronized(extra_us: int, clean_stretch: float = 1.0) -> Trace:
    """Return four clean steps, and four profiled steps of 100 + `extra_us` us.

    In a profiled step, the GPU works from 27 to 47 us, from 57 to 67 us and from 87 to 97 us. The host waits for the kernel
    that ends at 67 us, and launches the next kernel at 83 us.
    """
    made = calls(32)
    made[2] = Call("aten::item", "", 51, "Memcpy DtoH (Device -> Pageable)", DeviceKind.MEMCPY)
    trace = training(steps=4, made=[made[0], made[1], made[2], made[4]], jitter_us=(extra_us,))
    waits = np.flatnonzero(trace.host.name == trace.strings.find("aten::item")) + 1
    trace.host.duration_ns[waits] = 16 * US
    clean = training(steps=4, stretch=clean_stretch)
    clean.steps.start_ns -= 1000 * US
    clean.phases.start_ns -= 1000 * US
    for column in (clean.phases.device_start_ns, clean.phases.device_end_ns):
        column[column != NONE] -= 1000 * US
    clean.phases.name[:] = trace.phases.name
    trace.phases.step += 4
    clean.steps.kind[:], trace.steps.kind[:] = StepKind.STEADY, StepKind.PROFILED
    trace.steps = Steps.concatenated([clean.steps, trace.steps])
    trace.phases = Phases.concatenated([clean.phases, trace.phases])
    return trace


@pytest.mark.parametrize(
    ("extra_us", "clean_stretch", "window_us", "reasons_us"),
    [
        # A profiled step has 40 us of GPU work, 20 us of data loading and 8 us of launch latency. Another 16 us follow the
        # synchronization, and 16 + 46 us are host work. A clean step of 100 us has 40 us of GPU work, 13 us of data
        # loading and 8 us of launch latency. Its other 39 us are divided in the ratio 16 to 62.
        (46, 1.0, 100, {"data": 13, "launch": 8, "synchronization": 8, "host": 31}),
        # A clean step of 56 us has 40 us of GPU work and 13 us of data loading, so 3 us are left for launch latency.
        (46, 0.45, 56, {"data": 13, "launch": 3}),
        # In a clean step of 44 us, the GPU is idle for only 4 us, so data loading gets at most 4 us.
        (46, 0.3, 44, {"data": 4}),
        # A clean step is never shorter than the GPU's work.
        (46, 0.2, 40, {}),
    ],
)
def test_idle_time_of_unprofiled_steps_is_divided_by_reason(
    extra_us: int, clean_stretch: float, window_us: int, reasons_us: dict[str, int]
) -> None:
    of = idle_times(_clean_and_synchronized(extra_us, clean_stretch))["cuda:0"]
    assert (of.window_ns, of.busy_ns, of.steps) == (4 * window_us * US, 4 * 40 * US, 4)
    assert {reason: ns // 4 // US for reason, ns in of.by_reason.items() if ns} == reasons_us


@pytest.mark.parametrize(("late_ns", "reason"), [(1_000_000, IdleReason.LAUNCH), (1_000_001, IdleReason.UNKNOWN)])
def test_idle_time_before_a_late_first_kernel_has_an_unknown_reason(late_ns: int, reason: IdleReason) -> None:
    trace = training(steps=1)
    trace.device = trace.device.take(np.array([0]))
    launched_ns = int(trace.host.end_ns[trace.device.launch[0]])
    trace.device.start_ns[0] = launched_ns + late_ns
    trace.steps.duration_ns[0] = 2 * MS
    spans = idle_spans(trace)
    assert spans.reason[spans.end_ns == launched_ns + late_ns].tolist() == [reason]


def test_a_gpu_is_idle_while_another_gpu_of_its_process_still_works() -> None:
    """GIVEN a step that launches 2 ms of work on one GPU and 8 ms on another THEN the first GPU waits 5 ms for the other GPU
    after the host's step. The measurement of both GPUs lasts 9 ms. The first GPU is idle for 1 ms before its work and for 6 ms
    after it."""
    trace = a_trace([(0, 4)], [Work(0, 1, 3), Work(0, 1, 9, device=1)], devices=(0, 0))
    short, long = idle_times(trace)["cuda:0"], idle_times(trace)["cuda:1"]
    assert [(of.window_ns, of.busy_ns, of.idle_ns) for of in (short, long)] == [(9 * MS, 2 * MS, 7 * MS), (9 * MS, 8 * MS, MS)]
    assert short.by_reason["other_gpu"] == 5 * MS and short.by_reason["host"] == MS + 5 * US  # a launch call takes 5 us


@pytest.mark.parametrize(("late_us", "reasons"), [(8, {"other_gpu": 16}), (12, {"launch": 12, "unknown": 4})])
def test_a_launched_kernel_waits_for_another_gpu_that_ends_just_before_it(late_us: float, reasons: dict[str, int]) -> None:
    """GIVEN steps in which first cuda:0 and then cuda:1 works for 4 ms WHEN cuda:1 starts at most 10 us after cuda:0 has ended
    THEN cuda:1 waits for cuda:0. If cuda:1 starts later, the reason is unknown."""
    late = late_us / 1000
    work = [
        one
        for start in range(0, 40, 10)
        for one in (Work(start, start, start + 4), Work(start, start + 4 + late, start + 8 + late, device=1))
    ]
    trace = a_trace([(start, start + 10) for start in range(0, 40, 10)], work, devices=(0, 0))
    found_ms = {reason: round(ns / MS) for reason, ns in idle_times(trace)["cuda:1"].by_reason.items() if ns > MS}
    assert found_ms == {"host": 4 * 2, **reasons}


def test_a_gpu_waits_for_another_gpu_while_the_host_waits_for_it() -> None:
    """GIVEN a host that launches 4 ms of work on cuda:0, waits for it, then launches 5 ms on cuda:1 and waits again THEN each
    GPU waits while the other one works."""
    trace = a_trace([(0, 9)], [Work(0, 0, 4), Work(4, 4, 9, device=1)], devices=(0, 0))
    host, name = trace.host, trace.strings.add("cudaStreamSynchronize")
    waits = HostSpans.of(
        thread=[0, 0],
        kind=[HostKind.RUNTIME] * 2,
        name=[name] * 2,
        start_ns=host.end_ns,
        duration_ns=np.array([at(4), at(9)]) - host.end_ns,
    )
    trace.host = HostSpans.concatenated([host, waits])
    first, second = idle_times(trace)["cuda:0"].by_reason, idle_times(trace)["cuda:1"].by_reason
    assert first["other_gpu"] == pytest.approx(5 * MS, rel=0.01) and sum(first.values()) == 5 * MS
    assert second["other_gpu"] == pytest.approx(4 * MS, rel=0.01) and sum(second.values()) == 4 * MS


def test_waits_for_data_are_counted_per_rank() -> None:
    trace = data_parallel(steps=4)
    trace.batches.rank[1::2] = 1
    for rank in (0, 1):
        waits = data_waits(trace, rank)
        assert waits.start_ns.tolist() == (trace.steps.start_ns[rank::2] + US).tolist() and waits.total_ns == 2 * 2 * US
