"""Tests the rules for the step time on small traces, with values worked out by hand. Times are in ms unless stated
otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from traces.analyses.idle import idle_times
from traces.figures.bottleneck import PaceLimit, bottleneck
from traces.figures.measure import launch_phases, launch_steps
from traces.figures.pace import MeanStep, _done_before, device_windows, pace, pace_intervals, pace_series, step_times
from traces.figures.summary import summarize
from traces.model.trace import (
    NONE,
    Device,
    DeviceKind,
    DeviceSpans,
    HostKind,
    HostSpans,
    Phases,
    StepKind,
    Steps,
    Thread,
    Trace,
)

MS = 1_000_000
START_NS = 1_700_000_000 * 10**9


class Work(NamedTuple):
    """Contains a kernel: the start of its launch call (None if not recorded), its start, its end, its stream and its device."""

    launched: float | None
    start: float
    end: float
    stream: int = 7
    device: int = 0


def at(time_ms: float) -> int:
    return START_NS + round(time_ms * MS)


def a_trace(
    steps: Sequence[tuple[float, float]],
    work: Sequence[Work] = (),
    *,
    numbers: Sequence[int] | None = None,
    kinds: Sequence[StepKind] | None = None,
    ranks: Sequence[int] | None = None,
    devices: Sequence[int] = (0,),
    loader: Sequence[tuple[int, float, float]] = (),
    grain: str = "kernel",
) -> Trace:
    """Return a trace with the given steps and GPU work. `loader` contains waits for data (step, start, end), and `devices` the
    rank of each device."""
    trace = Trace(
        grain=grain,
        devices=[Device(rank, index, "a GPU") for index, rank in enumerate(devices)],
        threads=[Thread(rank, 100 + rank, "main", "main") for rank in sorted(set(devices))],
    )
    trace.steps = Steps.of(
        rank=list(ranks or [0] * len(steps)),
        number=list(numbers if numbers is not None else range(len(steps))),
        start_ns=[at(start) for start, _ in steps],
        duration_ns=[at(end) - at(start) for start, end in steps],
        kind=list(kinds or [StepKind.STEADY] * len(steps)),
    )
    launch = trace.strings.add("cudaLaunchKernel")
    launched = [one for one in work if one.launched is not None]
    trace.host = HostSpans.of(
        thread=[0] * len(launched),
        kind=[HostKind.RUNTIME] * len(launched),
        name=[launch] * len(launched),
        start_ns=[at(one.launched or 0) for one in launched],
        duration_ns=[5_000] * len(launched),
    )
    row_of = {one: row for row, one in enumerate(launched)}
    trace.device = DeviceSpans.of(
        device=[one.device for one in work],
        stream=[one.stream for one in work],
        kind=[DeviceKind.KERNEL] * len(work),
        name=[trace.strings.add("a kernel")] * len(work),
        start_ns=[at(one.start) for one in work],
        duration_ns=[at(one.end) - at(one.start) for one in work],
        launch=[row_of.get(one, NONE) for one in work],
    )
    trace.phases = Phases.of(
        step=[step for step, _, _ in loader],
        name=[trace.strings.add("loader")] * len(loader),
        start_ns=[at(start) for _, start, _ in loader],
        duration_ns=[at(end) - at(start) for _, start, end in loader],
    )
    return trace


def running_ahead(kernel_ms: float, steps: int = 4) -> Trace:
    """Return a trace in which the host takes 2 ms per step and never waits. Each step launches four kernels, which run one
    after the other."""
    work = []
    done = 3.0
    for step in range(steps):
        for place in range(4):
            work.append(Work(2 * step + 0.1 * (place + 1), done, done + kernel_ms))
            done += kernel_ms
    return a_trace([(2 * step, 2 * step + 1.99) for step in range(steps)], work)


def with_long_steps(long: list[int], long_ms: float, kernel: str = "prefill") -> Trace:
    return of_lengths([long_ms if place in (long or [0, 4]) else 2 for place in range(9)], long, kernel)


def of_lengths(steps_ms: list[float], others: list[int], kernel: str = "prefill") -> Trace:
    """Return steps with one kernel each. The steps `others` run another kernel."""
    ends = np.cumsum(steps_ms).tolist()
    starts = [0, *ends[:-1]]
    trace = a_trace([*zip(starts, ends, strict=True)], [Work(at + 0.1, at + 0.2, at + 0.3) for at in starts])
    trace.device.name[others] = trace.strings.add(kernel)
    return trace


def ms(values: np.ndarray) -> list[float]:
    return [value / MS for value in values.tolist()]


def test_one_long_wait_for_data_in_ten_steps_makes_data_the_bottleneck() -> None:
    """GIVEN ten steps of 10 ms on a busy GPU WHEN one step also waits 80 ms for data THEN the host limits the mean step of 18
    ms. The GPU limits the median step of 10 ms."""
    starts = [10 * step + (80 if step > 5 else 0) for step in range(11)]
    steps = [(start, end - 0.01) for start, end in pairwise(starts)]
    work = [Work(end - 9.7, end - 9.6, end - 0.1) for _, end in steps]
    of = pace(a_trace(steps, work, loader=[(5, starts[5], starts[6] - 10)]))
    assert of is not None and of.mean is not None
    assert (round(of.pace_ns / MS), round(of.mean.pace_ns / MS), of.limit) == (10, 18, "device")
    assert round((of.mean.pace_ns - of.mean.without_data_ns) / MS) == 8


def test_idle_time_is_measured_in_whole_periods_of_steps_that_repeat() -> None:
    """GIVEN nine steps that take 10 and 30 ms in turn WHEN the GPU works for 8 ms of each step THEN idle time is measured in
    the last eight steps. The last eight steps take 160 ms, and the GPU works for 64 ms of them."""
    starts = [0, 10, 40, 50, 80, 90, 120, 130, 160, 170]
    idle = idle_times(a_trace([*pairwise(starts)], [Work(start + 0.5, start + 1, start + 9) for start in starts[:9]]))["cuda:0"]
    assert (idle.window_ns, idle.busy_ns, idle.steps) == (160 * MS, 64 * MS, 8)


@pytest.mark.parametrize(("gpu_ms", "limit", "behind_ms"), [(103, "host", 0), (108, "host", 0), (109, "device", 9)])
def test_the_host_limits_the_step_if_the_gpu_waits_as_long_as_it_lags(gpu_ms: int, limit: str, behind_ms: int) -> None:
    """GIVEN steps of 100 ms on the host and 103 ms on the GPU WHEN the GPU waits 8 ms for each launch THEN the host limits the
    step. A faster GPU would gain 3 ms per step, and a faster host 8 ms. With steps of 109 ms, a faster GPU would gain 9 ms."""
    ends = [gpu_ms - 5 + gpu_ms * step for step in range(6)]
    trace = a_trace(
        [(100 * step, 100 * step + 99.9) for step in range(6)],
        [Work(end - gpu_ms + 8, end - gpu_ms + 13, end) for end in ends],
    )
    of = pace(trace)
    assert of is not None and (of.host_ns, of.device_ns) == (100 * MS, gpu_ms * MS)
    assert (of.host_runs_ahead, of.limit, of.falls_behind_ns) == (limit == "device", limit, behind_ms * MS)


@pytest.mark.parametrize(("kernel_ms", "expected_ms"), [(5, 20), (50, 200)])
def test_the_gpu_limits_the_step_if_the_host_runs_ahead(kernel_ms: float, expected_ms: float) -> None:
    of = pace(running_ahead(kernel_ms))
    assert of is not None
    assert of.host_ns == 2 * MS
    assert of.device_ns == of.pace_ns == of.gpu_time_ns == expected_ms * MS
    assert of.limit == "device"
    assert of.falls_behind_ns == (expected_ms - 2) * MS


def test_gpu_work_that_ends_after_its_step_still_counts_for_the_step() -> None:
    times = step_times(running_ahead(5))
    assert ms(times.completion_ns[0] - START_NS) == [23, 43, 63, 83]
    assert ms(times.device_interval_ns[0]) == [23, 20, 20, 20]  # the first step begins with its own start on the host
    assert ms(times.gpu_time_ns) == [20, 20, 20, 20]


def test_the_host_time_of_a_step_includes_the_time_since_the_previous_step() -> None:
    times = step_times(a_trace([(0, 8), (10, 18), (20, 29)]))
    # The first step has its own duration. The other steps last from the previous end to their own end.
    assert ms(times.host_interval_ns) == [8, 10, 11]


def test_a_step_never_completes_before_the_previous_step() -> None:
    """GIVEN a side stream that still runs work of step 0 when the work of step 1 has ended THEN both steps end together."""
    times = step_times(a_trace([(0, 10), (10, 20), (20, 30)], [Work(1, 2, 25, 20), Work(11, 12, 14), Work(21, 26, 29)]))
    assert ms(times.completion_ns[0] - START_NS) == [25, 25, 29]
    assert ms(times.device_interval_ns[0]) == [25, 0, 4]
    assert ms(times.gpu_time_ns) == [23, 2, 3]


def test_the_first_step_on_the_gpu_starts_when_earlier_work_ends() -> None:
    backlog = Work(None, 0, 6)  # work before the first known launch was launched before the recording began
    times = step_times(a_trace([(0, 10), (10, 20)], [backlog, Work(1, 6, 9), Work(11, 12, 19)]))
    assert ms(times.device_interval_ns[0]) == [3, 10]
    assert ms(times.gpu_time_ns) == [3, 7]


def test_a_kernel_without_a_launch_call_belongs_to_the_step_in_which_it_starts() -> None:
    later = Work(None, 13, 15)  # work after a known launch on its stream was launched during the recording
    lost = [Work(None, 14, 17, stream=20), Work(None, 24, 25, stream=20)]  # no launch on this stream is known
    times = step_times(a_trace([(0, 10), (10, 20), (20, 30)], [Work(1, 2, 3), later, *lost]))
    assert ms(times.gpu_time_ns) == [1, 4, 1]  # the GPU works from 13 to 17 ms in step 1



@pytest.mark.parametrize(("earlier_ms", "reported_ms"), [(15, 15), (14, None)])
def test_much_work_from_before_the_recording_is_reported(earlier_ms: int, reported_ms: int | None) -> None:
    """GIVEN a step of 100 ms WHEN work launched before the recording takes 15 ms of the step, the share MUCH_SPREAD THEN the
    summary reports this work."""
    step = a_trace([(0, 100)], [Work(None, -5, earlier_ms), Work(50, 60, 90)])
    assert summarize(step).earlier_work_ns == (None if reported_ms is None else reported_ms * MS)


def test_step_times_are_the_same_if_all_times_are_negative() -> None:
    trace, earlier = running_ahead(kernel_ms=5), running_ahead(kernel_ms=5)
    for table in (earlier.steps, earlier.host, earlier.device):
        table.start_ns -= 2 * int(trace.device.start_ns.max())
    expected, found = (step_times(of).device_interval_ns[0].tolist() for of in (trace, earlier))
    assert found == expected and min(found) > 0


def test_the_time_between_two_steps_is_excluded_if_their_numbers_are_not_consecutive() -> None:
    """The time between two cycles of a profiler belongs to no step."""
    work = [Work(1, 2, 9), Work(11, 12, 19), Work(1001, 1002, 1008), Work(1011, 1012, 1018)]
    times = step_times(a_trace([(0, 10), (10, 20), (1000, 1010), (1010, 1020)], work, numbers=[5, 6, 105, 106]))
    assert ms(times.host_interval_ns) == [10, 10, 10, 10]
    assert ms(times.device_interval_ns[0]) == [9, 10, 8, 10]


def test_the_time_between_two_profiles_belongs_to_no_step() -> None:
    kinds = [StepKind.STEADY, StepKind.PROFILED, StepKind.PROFILED, StepKind.STEADY]
    times = step_times(a_trace([(0, 10), (50, 62), (62, 74), (200, 210)], kinds=kinds))
    assert ms(times.host_interval_ns) == [10, 12, 12, 10]


def test_the_slowest_gpu_with_work_in_every_step_determines_the_step_time() -> None:
    steps = [(10 * step, 10 * step + 10) for step in range(3)]
    work = [Work(10 * step + 1, 10 * step + 2, 10 * step + 4, device=0) for step in range(3)]
    work += [Work(10 * step + 1, 2 + 12 * step, 2 + 12 * step + 12, device=1) for step in range(3)]
    work += [Work(1, 2, 3, device=2), Work(21, 22, 90, device=2)]  # device 2 works in only two of three steps
    of = pace(a_trace(steps, sorted(work, key=lambda one: one.device), devices=(0, 0, 0)))
    assert of is not None
    assert (of.device, of.device_ns, of.host_ns, of.limit) == (1, 12 * MS, 10 * MS, "device")


def test_the_host_runs_ahead_only_if_gpu_work_is_almost_always_queued() -> None:
    """GIVEN steps of 10 ms on the host and 11 ms on the GPU WHEN each kernel is launched while the previous kernel runs THEN
    the GPU limits the pace. WHEN the GPU has no work for 5 of 11 ms THEN the host limits the pace."""
    steps = [(10 * step, 10 * step + 10) for step in range(4)]
    queued = [Work(10 * step, 11 * step + 5, 11 * step + 11) for step in range(4)]
    idle = [Work(11 * step + 5, 11 * step + 5, 11 * step + 11) for step in range(4)]
    found = [pace(a_trace(steps, work)) for work in (queued, idle)]
    assert [(of.device_ns, of.limit, of.falls_behind_ns) for of in found if of] == [
        (11 * MS, "device", MS),
        (11 * MS, "host", 0),
    ]


@pytest.mark.parametrize(("slow_ms", "mean_ns"), [(14, None), (16, 14 * MS)])
def test_three_step_times_vary_a_lot_if_mean_and_median_differ_much(slow_ms: int, mean_ns: int | None) -> None:
    """GIVEN steps of 13, 13 and `slow_ms` ms WHEN the mean is 14 ms, 8 % above the median THEN the step times vary a lot. With
    a mean of 13.33 ms, the step times do not vary a lot."""
    of = pace(a_trace([(0, 13), (13, 26), (26, 26 + slow_ms)]))
    assert of is not None and of.pace_ns == 13 * MS
    assert (None if of.mean is None else of.mean.pace_ns) == mean_ns


@pytest.mark.parametrize(
    ("steps_ms", "has_mean"),
    [
        *(([10, 10, 11.5], False), ([10, 10, 11.6], True), ([10, 10, 10, 12], False), ([10, 10, 10, 12.1], True)),
        *(([4, 10, 10, 10], False), ([3.9, 10, 10, 10], True)),
    ],
)
def test_step_times_vary_if_their_mean_is_far_above_or_below_their_median(steps_ms: list[float], has_mean: bool) -> None:
    ends = np.cumsum([0, *steps_ms]).tolist()
    of = pace(a_trace(list(pairwise(ends))))
    assert of is not None and of.pace_ns == 10 * MS and (of.mean is not None) == has_mean


@pytest.mark.parametrize(("lag_ms", "device"), [(-0.5, NONE), (0, NONE), (0.5, 0)])
def test_the_gpu_sets_the_pace_of_steps_of_several_kinds_if_it_ends_later_than_the_host(lag_ms: float, device: int) -> None:
    """GIVEN training steps of 10 ms and other steps of 2 ms in turn WHEN the GPU ends each step `lag_ms` ms after the host THEN
    the step times of the GPU are used only if the lag is above 0. `device` is -1 for the step times of the host."""
    steps = [(start, start + lasting) for start, lasting in ((0, 10), (10, 2), (12, 10), (22, 2), (24, 10), (34, 2))]
    trace = a_trace(steps, [Work(start + 0.1, start + 0.6, end + lag_ms) for start, end in steps])
    trace.phases = Phases.of(
        step=[0, 2, 4],
        name=[trace.strings.add("backward")] * 3,
        start_ns=[at(start) for start, _ in steps[::2]],
        duration_ns=[10 * MS] * 3,
    )
    series = pace_series(step_times(trace), np.arange(6))
    assert series is not None and series.device == device


def test_the_slowest_of_several_ranks_determines_the_step_time() -> None:
    steps = [(0, 10), (0, 11), (10, 20), (11, 23), (20, 30), (23, 36)]
    of = pace(a_trace(steps, ranks=[0, 1] * 3, numbers=[0, 0, 1, 1, 2, 2]))
    assert of is not None
    assert (of.pace_ns, of.host_ns, of.device_ns) == (12 * MS, 12 * MS, None)


def test_the_gpu_limits_the_step_if_the_host_waits_for_it() -> None:
    """GIVEN steps of 10 ms on both host and GPU WHEN the GPU is busy for 9.5 ms of a step THEN the GPU limits the step. WHEN
    the GPU is busy for 3 ms THEN the host limits the step."""
    busy = a_trace([(0, 10), (10, 20), (20, 30)], [Work(t + 0.1, t + 0.2, t + 9.7) for t in (0, 10, 20)])
    idle = a_trace([(0, 10), (10, 20), (20, 30)], [Work(t + 6.6, t + 6.7, t + 9.7) for t in (0, 10, 20)])
    found = [pace(trace) for trace in (busy, idle)]
    assert [(of.pace_ns, of.limit) for of in found if of] == [(10 * MS, "device"), (10 * MS, "host")]
    assert [round(of.busy_share or 0, 3) for of in found if of] == [0.95, 0.3]


def test_overlapping_work_of_two_streams_is_counted_once_as_busy() -> None:
    """GIVEN steps of 10 ms with 10.5 ms of work on two streams WHEN 1 ms of this work overlaps with the next step THEN the GPU
    is busy for 95 % of the time."""
    work = [one for t in (0, 10, 20) for one in (Work(t + 0.1, t + 0.2, t + 6.2), Work(t + 0.2, t + 6.7, t + 11.2, stream=8))]
    of = pace(a_trace([(0, 10), (10, 20), (20, 30)], work))
    assert of is not None
    assert (of.pace_ns, of.gpu_time_ns, of.limit) == (10 * MS, 10.5 * MS, "device")
    assert round(of.busy_share or 0, 6) == 0.95


def test_the_busy_share_is_the_gpu_time_divided_by_the_step_time() -> None:
    """GIVEN two steps of 8 ms and 16 ms WHEN the GPU works for 6 ms in each THEN it is busy for 12 ms of 24 ms. The mean of
    75 % and 37.5 % is 56 %."""
    of = pace(a_trace([(0, 8), (8, 24)], [Work(0, 1, 7), Work(8, 9, 15)]))
    assert of is not None and (of.pace_ns, of.gpu_time_ns, of.busy_share) == (12 * MS, 6 * MS, 0.5)


def test_waits_for_data_count_only_if_no_work_is_queued() -> None:
    """GIVEN steps that wait 4 ms for data WHEN the GPU has no queued work THEN all 4 ms count. WHEN queued work runs for 3 ms
    of the wait THEN 1 ms counts."""
    steps = [(0, 10), (10, 20), (20, 30)]
    waits = [(step, 10 * step, 10 * step + 4) for step in range(3)]
    done = a_trace(steps, [Work(t + 5, t + 5, t + 9) for t in (0, 10, 20)], loader=waits)
    queued = a_trace(steps, [Work(t + 5, t + 6, t + 13) for t in (0, 10, 20)], loader=waits)
    assert ms(step_times(done).data_wait_ns) == [4, 4, 4]
    assert ms(step_times(queued).data_wait_ns) == [4, 1, 1]
    found = [pace(trace) for trace in (done, queued)]
    assert [(of.pace_ns / MS, of.without_data_ns / MS) for of in found if of] == [(10, 6), (10, 9)]


def test_queued_work_hides_a_wait_for_data() -> None:
    trace = a_trace([(0, 10), (10, 20)], [Work(1, 13, 18)], loader=[(1, 10, 14)])
    assert ms(step_times(trace).data_wait_ns) == [0, 0]


def test_cuda_events_show_when_the_gpu_ended_a_step_if_there_are_no_kernels() -> None:
    """GIVEN clean steps of `trace record` that take 2 ms on the host WHEN the CUDA events of their phases are 5 ms apart THEN
    the GPU limits the step to 5 ms."""
    trace = a_trace([(0, 2), (2, 4), (4, 6)], grain="phase")
    trace.phases = Phases.of(
        step=[0, 1, 2],
        name=[trace.strings.add("forward")] * 3,
        start_ns=[at(t) for t in (0, 2, 4)],
        duration_ns=[2 * MS] * 3,
        device=[0, 0, 0],
        device_start_ns=[at(t) for t in (0, 6, 11)],
        device_end_ns=[at(t) for t in (6, 11, 16)],
    )
    of = pace(trace)
    assert of is not None
    assert (of.host_ns, of.device_ns, of.gpu_time_ns, of.limit) == (2 * MS, 5 * MS, None, "device")
    assert of.falls_behind_ns == 3 * MS


def test_steps_without_host_time_last_as_long_as_their_gpu_time() -> None:
    """GIVEN an estimate in which all three steps begin and end at 0 on the host WHEN the GPU needs 5 ms per step THEN a step
    takes 5 ms."""
    trace = a_trace([(0, 0)] * 3, [Work(0, 5 * step, 5 * step + 5) for step in range(3)])
    trace.phases = Phases.of(
        step=[0, 1, 2],
        name=[trace.strings.add("forward")] * 3,
        start_ns=[at(0)] * 3,
        duration_ns=[0] * 3,
        device=[0, 0, 0],
        device_start_ns=[at(t) for t in (0, 5, 10)],
        device_end_ns=[at(t) for t in (5, 10, 15)],
    )
    of = pace(trace)
    assert of is not None and (of.host_ns, of.pace_ns, of.limit) == (0, 5 * MS, "device")


def test_cuda_events_show_how_long_the_gpu_works_during_a_wait_for_data() -> None:
    """GIVEN a wait for data from 10 to 14 ms WHEN the earlier work ends at 13 ms on the GPU THEN 1 ms of the wait counts."""
    trace = a_trace([(0, 10), (10, 20)], grain="phase")
    loader, forward = trace.strings.add("loader"), trace.strings.add("forward")
    trace.phases = Phases.of(
        step=[0, 1, 1],
        name=[forward, loader, forward],
        start_ns=[at(0), at(10), at(14)],
        duration_ns=[10 * MS, 4 * MS, 6 * MS],
        device=[0, NONE, 0],
        device_start_ns=[at(0), NONE, at(14)],
        device_end_ns=[at(13), NONE, at(21)],
    )
    assert ms(step_times(trace).data_wait_ns) == [0, 1]


def test_step_times_come_from_unprofiled_steps_and_gpu_times_from_profiled_steps() -> None:
    kinds = [StepKind.STEADY, StepKind.STEADY, StepKind.PROFILED]
    trace = a_trace([(0, 10), (10, 20), (20, 50)], [Work(21, 22, 29), Work(30, 31, 33)], kinds=kinds)
    of = pace(trace)
    assert of is not None
    assert (of.pace_ns, of.gpu_time_ns, of.busy_share) == (10 * MS, 9 * MS, 0.9)


def test_the_busy_time_of_a_step_starts_at_the_end_of_the_previous_step() -> None:
    kinds = [StepKind.WARMUP, StepKind.STEADY, StepKind.STEADY]
    trace = a_trace([(0, 10), (10, 20), (20, 30)], [Work(1, 2, 12), Work(11, 13, 23), Work(21, 24, 34)], kinds=kinds)
    window = device_windows(trace)[0]
    assert (ms(window.start_ns - START_NS), ms(window.end_ns - START_NS)) == ([12], [34])


def test_nonconsecutive_steps_are_measured_in_separate_time_windows() -> None:
    work = [Work(1, 2, 9), Work(11, 12, 19), Work(1001, 1002, 1008)]
    window = device_windows(a_trace([(0, 10), (10, 20), (1000, 1010)], work, numbers=[5, 6, 105]))[0]
    assert ms(window.start_ns - START_NS) == [0, 1000]
    assert ms(window.end_ns - START_NS) == [20, 1010]  # in both windows, the host ends after its last kernel


def test_gpu_work_launched_before_the_recording_counts_as_busy_but_belongs_to_no_step() -> None:
    """GIVEN a step of 20 ms with 11 ms of GPU work WHEN work launched before the recording takes another 8 ms THEN the GPU is
    busy for 95 % of the step."""
    trace = a_trace([(0, 20)], [Work(None, -2, 8), Work(1, 8, 19)])
    of, window = pace(trace), device_windows(trace)[0]
    assert of is not None and (of.gpu_time_ns, of.busy_share, of.limit) == (11 * MS, 0.95, "device")
    assert (ms(window.start_ns - START_NS), ms(window.end_ns - START_NS)) == ([0], [20])


def test_a_gpu_with_a_constant_lag_does_not_fall_behind() -> None:
    steps = [(10 * step, 10 * step + 10) for step in range(5)]
    of = pace(a_trace(steps, [Work(10 * step + 1, 10 * step + 5, 10 * step + 15) for step in range(5)]))
    assert of is not None
    assert (of.limit, of.falls_behind_ns) == ("device", 0)


def test_the_next_step_excludes_host_work_at_the_end_of_a_warm_up_step() -> None:
    """GIVEN a warm-up step in which the host works for 5 s after the GPU WHEN the other steps take 10 ms THEN the step time on
    the GPU is 10 ms, also on average."""
    steps = [(0, 5010), (5010, 5020), (5020, 5030), (5030, 5040)]
    work = [Work(start, start + 1, start + 10) for start, _ in steps]
    kinds = [StepKind.WARMUP, *[StepKind.STEADY] * 3]
    of = pace(a_trace(steps, work, kinds=kinds))
    assert of is not None and (of.pace_ns, of.mean) == (10 * MS, None)


@pytest.mark.parametrize(("host_ms", "expected"), [(8, 10), (16, 13)], ids=["queued", "waiting"])
def test_gpu_time_of_the_first_step_is_ignored_if_later_steps_have_queued_work(host_ms: float, expected: float) -> None:
    """GIVEN two steps in which the GPU works for 10 ms WHEN the second launch is queued before the GPU ends the first step THEN
    only the second step counts. WHEN the GPU waits from 14 to 16 ms for the second launch THEN both steps count, with 14 and 12
    ms. A second GPU works only in the first step."""
    begin = max(host_ms, 14)
    work = [Work(1, 2, 3, device=1), Work(3, 4, 14), Work(host_ms, begin, begin + 10)]
    trace = a_trace([(0, host_ms), (host_ms, 2 * host_ms)], work, devices=(0, 0))
    of = pace(trace)
    assert of is not None and of.device_ns == expected * MS
    # Idle time is measured in the same steps, on GPUs with work in these steps: from 14 to 24 ms, or from 0 to 32 ms.
    idle = {device: (of.window_ns, of.busy_ns, of.steps) for device, of in idle_times(trace).items()}
    both = {"cuda:0": (32 * MS, 20 * MS, 2), "cuda:1": (32 * MS, 1 * MS, 2)}
    assert idle == ({"cuda:0": (10 * MS, 10 * MS, 1)} if host_ms == 8 else both)


@pytest.mark.parametrize(
    ("completed", "falls_behind_ms"),
    [
        ([12, 24, 36, 48, 58], 2),  # the lag grows in three of four steps
        ([12, 24, 36, 46, 56], 0),  # the lag grows in two of four steps
    ],
)
def test_a_gpu_falls_behind_if_its_lag_grows_in_three_of_four_steps(completed: list[float], falls_behind_ms: float) -> None:
    begins = [1, *completed[:-1]]
    work = [Work(10 * step + 1, begin, end) for step, (begin, end) in enumerate(zip(begins, completed, strict=True))]
    of = pace(a_trace([(10 * step, 10 * step + 10) for step in range(5)], work))
    assert of is not None and (of.limit, of.falls_behind_ns) == ("device", falls_behind_ms * MS)


@pytest.mark.parametrize(("host_ms", "falls_behind_us"), [(9.9, 0), (9.899, 101)])
def test_a_gpu_falls_behind_if_it_needs_over_one_percent_longer_than_the_host(host_ms: float, falls_behind_us: int) -> None:
    """GIVEN steps of 10 ms on the GPU WHEN a step is shorter on the host by more than 0.1 ms THEN the GPU falls behind."""
    work = [Work(host_ms * step + 1, 10 * step + 1, 10 * step + 11) for step in range(5)]
    of = pace(a_trace([(host_ms * step, host_ms * (step + 1)) for step in range(5)], work))
    assert of is not None and (of.pace_ns, of.falls_behind_ns) == (10 * MS, falls_behind_us * 1000)


def test_the_step_time_is_the_longer_of_host_time_and_gpu_time() -> None:
    """GIVEN steps of 2 ms on the host and 4 ms on the GPU THEN the step time is the GPU time. The steps of rank 1 have no GPU
    work, so their step time is the host time."""
    ahead = running_ahead(1)
    assert ms(pace_intervals(ahead)) == ms(step_times(ahead).device_interval_ns[0]) == [7, 4, 4, 4]
    work = [Work(2 * step + 0.5, 3 + 4 * step, 7 + 4 * step) for step in range(4)]
    steps = [(2 * step, 2 * step + 2) for step in range(4)]
    both = a_trace([*steps, (0, 3), (3, 7)], work, numbers=[0, 1, 2, 3, 0, 1], ranks=[0] * 4 + [1] * 2, devices=(0, 1))
    assert ms(pace_intervals(both)) == [7, 4, 4, 4, 3, 4]
    assert ms(pace_intervals(a_trace([(0, 2), (2, 5)]))) == [2, 3]


def test_a_gpu_that_finishes_before_the_host_does_not_fall_behind() -> None:
    """GIVEN steps whose kernels end before the host ends the step WHEN the time between both ends shrinks from step to step
    THEN the GPU does not fall behind."""
    steps = [(0, 100), (100, 200), (200, 300), (300, 400)]
    of = pace(a_trace(steps, [Work(1, 2, 40), Work(101, 102, 160), Work(201, 202, 280), Work(301, 302, 390)]))
    assert of is not None and of.falls_behind_ns == 0


def test_a_trace_without_steps_has_no_step_times() -> None:
    assert pace(a_trace([])) is None
    assert device_windows(a_trace([], [Work(1, 2, 3), Work(1, 8, 9)]))[0].total_ns == 7 * MS


def test_the_bottleneck_of_varying_steps_comes_from_the_mean_step() -> None:
    """GIVEN three steps of 10 ms and two steps of 30 ms that wait 20 ms for data WHEN the GPU works for 9 ms of each step THEN
    data is the bottleneck. The GPU works for 90 % of the median step, but for 9 ms of the mean step of 18 ms."""
    begins = [0, 10, 20, 30, 60, 90]
    steps = list(pairwise(begins))
    work = [Work(end - 10, end - 9.5, end - 0.5) for _, end in steps]
    trace = a_trace(steps, work, loader=[(3, 30, 50), (4, 60, 80)])
    of = pace(trace)
    assert of is not None and (of.pace_ns, of.limit, of.busy_share) == (10 * MS, "device", 0.5)
    assert of.mean == MeanStep(18 * MS, 10 * MS)
    assert bottleneck(of, idle_times(trace)) == PaceLimit("data", 8 * MS, 8 / 18)
    # WHEN a second GPU works for 1 ms per step THEN the mean step has the busy share of the first GPU
    second = [Work(end - 10, end - 9.5, end - 8.5, device=1) for _, end in steps]
    both = pace(a_trace(steps, [*work, *second], devices=(0, 0), loader=[(3, 30, 50), (4, 60, 80)]))
    assert both is not None and both.busy_share == 0.5
    # Steps that vary little have no mean step.
    steady = pace(a_trace(steps[:3], work[:3]))
    assert steady is not None and steady.mean is None


def test_a_lag_that_grows_in_few_steps_does_not_mean_falling_behind() -> None:
    """GIVEN steps of 10 ms WHEN the GPU ends them 1, 4 and 4.01 ms late THEN the GPU does not fall behind. The second growth of
    the lag, 0.01 ms, is too small to count."""
    late = [Work(10 * step, 10 * step, 10 * step + 10 + lag) for step, lag in enumerate((1, 4, 4.01))]
    of = pace(a_trace([(0, 10), (10, 20), (20, 30)], late))
    assert of is not None and of.falls_behind_ns == 0


def test_a_gpu_with_only_a_kernel_of_zero_duration_is_idle() -> None:
    found = device_windows(a_trace([(0, 10)], [Work(1, 2, 2)]))
    assert {device: windows.total_ns for device, windows in found.items()} == {0: 10 * MS}


def test_a_phase_without_gpu_times_gets_the_gpu_end_time_of_the_previous_phase() -> None:
    """GIVEN a phase without GPU times THEN the GPU becomes free when the previous phase of the same rank has ended."""
    trace = a_trace([(0, 10), (0, 10)], ranks=[0, 1], devices=(0, 1))
    # Each row: the step, the host start, the GPU start, the GPU end, and the time at which the GPU becomes free.
    times: list[tuple[int, float, float | None, float | None, float]] = [
        (0, 0, 2, 12, 2),
        (0, 5, None, None, 12),
        (0, 7, None, None, 7),
        (0, 8, 15, 30, 15),
        (1, 6, None, None, 6),
        (1, 9, 10, 11, 10),
    ]
    trace.phases = Phases.of(
        step=[of[0] for of in times],
        name=[trace.strings.add("forward")] * len(times),
        start_ns=[at(of[1]) for of in times],
        duration_ns=[1] * len(times),
        device_start_ns=[NONE if of[2] is None else at(of[2]) for of in times],
        device_end_ns=[NONE if of[3] is None else at(of[3]) for of in times],
    )
    assert ms(_done_before(trace) - START_NS) == [of[4] for of in times]


def test_without_launches_gpu_work_belongs_to_the_phase_whose_cuda_events_enclose_it() -> None:
    """GIVEN a GPU that lags two steps behind the host WHEN a copy on another stream begins before the work of the previous step
    ends THEN the copy belongs to its own step."""
    trace = a_trace(
        [(0, 1), (1, 2), (2, 3)], [Work(None, 0, 9), Work(None, 9, 10), Work(None, 10, 18), Work(None, 18, 27)], grain="phase"
    )
    copy, forward = trace.strings.add("h2d"), trace.strings.add("forward")
    events = [(0, forward, 0, 1, 0, 9), (1, copy, 1, 1.5, 8, 10), (1, forward, 1.5, 2, 10, 18), (2, forward, 2, 3, 18, 27)]
    step, name, start, end, device_start, device_end = zip(*events, strict=True)
    trace.phases = Phases.of(
        step=step, name=name, start_ns=[at(ms) for ms in start],
        duration_ns=[at(after) - at(before) for before, after in zip(start, end, strict=True)],
        device=[0] * 4, device_start_ns=[at(ms) for ms in device_start], device_end_ns=[at(ms) for ms in device_end],
    )  # fmt: skip
    assert launch_phases(trace).tolist() == [0, 1, 2, 3]
    assert (step_times(trace).device_interval_ns[0] // MS).tolist() == [9, 9, 9]


def test_gpu_work_without_a_launch_is_assigned_to_a_phase_by_time() -> None:
    """GIVEN host phases without duration, as in `trace replay --clock recorded` with published times THEN GPU work belongs to
    the phase whose CUDA events enclose the work, although several phases of two steps start at the same time on the host."""
    trace = a_trace([(0, 1), (1, 2)], [Work(None, 0, 4), Work(None, 4, 9), Work(None, 9, 12)], grain="phase")
    forward, backward = trace.strings.add("forward"), trace.strings.add("backward")
    trace.phases = Phases.of(
        step=[0, 0, 1, 1], name=[forward, backward, forward, backward],
        start_ns=[at(0), at(1), at(1), at(1)], duration_ns=[MS, 0, 0, MS], device=[0] * 4,
        device_start_ns=[at(0), at(4), at(9), at(12)], device_end_ns=[at(4), at(9), at(12), at(12)],
    )  # fmt: skip
    assert launch_phases(trace).tolist() == [0, 1, 2] and launch_steps(trace).tolist() == [0, 0, 1]


def test_a_mean_step_counts_whole_repetitions_of_a_pattern() -> None:
    """GIVEN 11 steps of 1 ms, except that every fourth step takes 6 ms THEN the step time is (3 + 6) / 4 ms, although the
    recording ends in the middle of the pattern."""
    ends = np.cumsum([1, 1, 1, 6, 1, 1, 1, 6, 1, 1, 1]).tolist()
    of = pace(a_trace(list(pairwise([0, *ends]))))
    assert of is not None and (of.period, of.pace_ns, of.mean) == (4, 9 * MS // 4, None)


def test_step_time_and_idle_time_exclude_the_slow_first_inference_batch() -> None:
    """GIVEN batches without gradients of 6, 3, 3 and 3 ms WHEN the GPU works for 2 ms of each batch THEN the GPU is busy for 2
    of 3 ms."""
    ends = [0, 6, 9, 12, 15]
    work = [Work(start, start, start + 2) for start in ends[:-1]]
    trace = a_trace(list(pairwise(ends)), work, kinds=[StepKind.EVALUATION] * 4)
    of, idle = pace(trace), idle_times(trace)["cuda:0"]
    assert of is not None and (of.pace_ns, of.steps) == (3 * MS, 3)
    assert (idle.window_ns, idle.busy_ns, idle.steps) == (9 * MS, 6 * MS, 3)
    assert summarize(trace).bottleneck == PaceLimit("host", MS, 1 / 3)
