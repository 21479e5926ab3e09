"""Tests how the bottleneck of the training speed is found, with figures in ms worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.traces.figures.test_pace import Work, a_trace, at, of_lengths, with_long_steps
from tests.traces.handmade import replay_of, training
from traces.analyses.idle import IdleTime
from traces.analyses.stragglers import RankLateness
from traces.comparison.compare import compare
from traces.comparison.comparison_figures import Both
from traces.comparison.explain import explain, largest_reason
from traces.figures.bottleneck import (
    CaughtUp,
    PaceLimit,
    Slowdown,
    StepsOfKernels,
    bottleneck,
    bottleneck_of,
    caught_up,
    slowdown_of,
    steps_by_kernels,
)
from traces.figures.pace import StepPace
from traces.figures.summary import summarize
from traces.model.trace import (
    Collectives,
    Device,
    DeviceKind,
    Ending,
    HostKind,
    HostSpans,
    Origin,
    Phases,
    Sizes,
    StepKind,
    Steps,
    Trace,
    Values,
)
from traces.model.workload import Sameness
from tui.text.bottleneck import bottleneck_text
from tui.text.info import note_sentences

MS = 1_000_000
# In a step of 100 ms, the GPU is busy for 40 ms and waits 35 ms for data.
OF_DATA = StepPace(
    steps=10,
    pace_ns=100 * MS,
    limit="host",
    host_runs_ahead=False,
    host_ns=100 * MS,
    device_ns=100 * MS,
    device=0,
    gpu_time_ns=40 * MS,
    busy_share=0.4,
    without_data_ns=65 * MS,
    period=1,
    noise=0.01,
    falls_behind_ns=0,
)


def idle(
    data_ms: float, host_ms: float, collective_ms: float = 0, busy_ms: int = 40, **others_ms: float
) -> dict[str, IdleTime]:
    found = {"data": data_ms, "host": host_ms, "collective": collective_ms, **others_ms}
    return {"cuda:0": IdleTime(100 * MS, busy_ms * MS, {reason: round(ms * MS) for reason, ms in found.items()}, 1)}


def test_the_bottleneck_is_the_largest_cause_of_idle_time() -> None:
    assert bottleneck(OF_DATA, idle(35, 25)) == PaceLimit("data", 35 * MS, 0.35)
    short = replace(OF_DATA, without_data_ns=90 * MS)
    assert bottleneck(short, idle(10, 50)) == PaceLimit("host", 50 * MS, 0.5)
    assert bottleneck(short, idle(10, 10, 40)) == PaceLimit("other ranks", 40 * MS, 0.4)
    late = PaceLimit("unknown", 40 * MS, 0.4, "the GPU is idle without a visible reason")
    assert bottleneck(short, idle(10, 10, launch=30, unknown=10)) == late


def test_a_gpu_that_is_mostly_idle_is_not_the_bottleneck() -> None:
    """GIVEN a recording of two steps that are 3 % longer on the GPU than on the host, perhaps by chance WHEN the GPU is mostly
    idle THEN the GPU is not the bottleneck."""
    ahead = replace(OF_DATA, limit="device", host_runs_ahead=True, without_data_ns=100 * MS)
    assert bottleneck(ahead, idle(0, 60)) == PaceLimit("host", 60 * MS, 0.6)
    assert bottleneck(ahead, idle(0, 25, launch=35)) == PaceLimit("device", 60 * MS, 0.6)
    # Idle time with an unknown reason does not count as a possible gain.
    assert bottleneck(ahead, idle(0, 25, unknown=35)) == PaceLimit("device", 25 * MS, 0.25)


def test_the_possible_gain_excludes_host_time_added_by_the_profiler() -> None:
    """GIVEN profiled steps in which the GPU waits 500 ms for the host WHEN the GPU waits only 55 ms in a clean step THEN only
    these 55 ms are a possible gain."""
    assert bottleneck(replace(OF_DATA, without_data_ns=95 * MS), idle(5, 500)) == PaceLimit("host", 55 * MS, 0.55)


def test_a_busy_gpu_is_the_bottleneck_unless_it_mostly_communicates() -> None:
    full = replace(OF_DATA, limit="device", busy_share=0.95, without_data_ns=100 * MS)
    five = idle(0, 5, busy_ms=95)
    assert bottleneck(full, five) == PaceLimit("device", 5 * MS, 0.05)
    assert bottleneck(full, five, exposed_ns=60 * MS) == PaceLimit("other ranks", 60 * MS, 0.6, exposed_ns=60 * MS)
    assert bottleneck(full, five, exposed_ns=30 * MS) == PaceLimit("device", 35 * MS, 0.35, exposed_ns=30 * MS)


@pytest.mark.parametrize(("busy_ms", "limit"), [(90, "device"), (89, "other GPUs")])
def test_a_gpu_that_is_90_percent_busy_is_not_called_waiting_for_other_gpus(busy_ms: int, limit: str) -> None:
    """GIVEN a GPU that waits for another GPU whenever it is idle WHEN this GPU is busy for 90 % of a step THEN it is the
    bottleneck itself."""
    ahead = replace(OF_DATA, limit="device", busy_share=busy_ms / 100, without_data_ns=100 * MS)
    found = bottleneck(ahead, idle(0, 0, other_gpu=100 - busy_ms, busy_ms=busy_ms))
    assert found is not None and (found.limit, found.gain_ns) == (limit, (100 - busy_ms) * MS)


def test_copies_without_other_gpu_work_count_as_waits() -> None:
    """GIVEN a GPU that is busy for 95 ms of a 100 ms step WHEN only copies run for 50 ms THEN copies are the bottleneck.

    If only copies run for 40 ms, this time is a part of the possible gain. Copies below 2 % of a step are not mentioned.
    """
    full = replace(OF_DATA, limit="device", busy_share=0.95, without_data_ns=100 * MS)
    five = idle(0, 5, busy_ms=95)
    assert bottleneck(full, five, copies=(50 * MS, 50 * MS)) == PaceLimit("copies", 50 * MS, 0.5, copies_ns=50 * MS)
    assert bottleneck(full, five, copies=(40 * MS, 40 * MS)) == PaceLimit("device", 45 * MS, 0.45, copies_ns=40 * MS)
    assert bottleneck(full, five, copies=(2 * MS, 2 * MS)) == PaceLimit("device", 7 * MS, 0.07, copies_ns=2 * MS)
    assert bottleneck(full, five, copies=(2 * MS - 1, 2 * MS - 1)) == PaceLimit("device", 5 * MS, 0.05)
    both = PaceLimit("device", 55 * MS, 0.55, exposed_ns=30 * MS, copies_ns=20 * MS)
    assert bottleneck(full, five, 30 * MS, copies=(20 * MS, 20 * MS)) == both
    # WHEN the host takes longer than the copies THEN the host is the limit
    of_host = replace(OF_DATA, without_data_ns=100 * MS)
    assert bottleneck(of_host, idle(0, 60), copies=(25 * MS, 25 * MS)) == PaceLimit("host", 60 * MS, 0.6, copies_ns=25 * MS)


@pytest.mark.parametrize(("copied_ms", "limit", "gain_ms"), [(55, "device", 45), (56, "copies", 40)])
def test_copies_that_run_longer_than_the_kernels_are_the_bottleneck(copied_ms: int, limit: str, gain_ms: int) -> None:
    """GIVEN kernels that run for 55 ms of a step of 100 ms WHEN only copies run for 40 ms THEN copies are the bottleneck if
    they run for more than 55 ms, some of it at the same time as kernels."""
    full = replace(OF_DATA, limit="device", busy_share=0.95, without_data_ns=100 * MS)
    found = bottleneck(full, idle(0, 5, busy_ms=95), copies=(40 * MS, copied_ms * MS))
    assert found is not None and (found.limit, found.gain_ns) == (limit, gain_ms * MS)


@pytest.mark.parametrize("busy_ms", [50, 30])
def test_the_possible_gain_is_the_mean_idle_time_per_step(busy_ms: int) -> None:
    """GIVEN a GPU that is busy for 40 % of the median step WHEN it is busy for 50 % or 30 % of all steps THEN the possible
    gain is 50 or 70 ms of a step of 100 ms."""
    of = bottleneck(replace(OF_DATA, without_data_ns=100 * MS), idle(0, 100 - busy_ms, busy_ms=busy_ms))
    assert of == PaceLimit("host", (100 - busy_ms) * MS, (100 - busy_ms) / 100)
    assert of is not None and of.busy_share == busy_ms / 100


def test_the_bottleneck_and_the_summary_show_the_same_busy_share() -> None:
    """GIVEN ten steps of 100 ms, in which the GPU works for 60 ms in nine steps and for 10 ms in one step THEN the GPU is busy
    for 55 % of the time. The share of the median step would be 60 %."""
    steps = [(100 * step, 100 * (step + 1)) for step in range(10)]
    work = [Work(100 * step, 100 * step + 1, 100 * step + (11 if step == 4 else 61)) for step in range(10)]
    of = summarize(a_trace(steps, work))
    assert of.busy_shares == {"cuda:0": pytest.approx(0.55)} and of.bottleneck is not None
    assert of.pace is not None
    assert of.pace.busy_share == of.bottleneck.busy_share == of.busy_shares["cuda:0"]


def test_the_possible_gain_excludes_idle_time_before_the_first_gpu_work() -> None:
    """GIVEN three steps of 20 ms on the host and 50 ms on the GPU WHEN the GPU is always busy after its first work THEN the
    steps cannot become shorter. The first GPU work starts after 20 ms."""
    trace = a_trace(
        [(0, 20), (20, 40), (40, 60)],
        [Work(19, 20, 70), Work(39, 70, 120), Work(59, 120, 170)],
        loader=[(0, 0, 19)],
    )
    summary = summarize(trace)
    assert summary.bottleneck == PaceLimit("device", 0, 0.0)
    assert summary.busy_shares == {"cuda:0": 1.0}


@pytest.mark.parametrize(("own_ms", "end_ms"), [(8, 10), (5, 0.1)], ids=["the host waits", "the host runs ahead"])
def test_alternating_gpus_of_one_process_wait_for_each_other(own_ms: float, end_ms: float) -> None:
    """GIVEN steps of 10 ms in which cuda:0 works first and cuda:1 works afterwards THEN each GPU waits for the other GPU, even
    if the host launched all work long before."""
    count = 6
    launched = [step * end_ms for step in range(count)]
    work = [
        one
        for step, launch in enumerate(launched)
        for one in (
            Work(launch, 10 * step, 10 * step + own_ms),
            Work(launch, 10 * step + own_ms, 10 * (step + 1), device=1),
        )
    ]
    trace = a_trace([(start, start + end_ms) for start in launched], work, devices=(0, 0))
    if end_ms == 10:
        name, start_ns = trace.strings.add("cudaDeviceSynchronize"), trace.host.end_ns[1::2]
        waits = HostSpans.of(
            thread=[0] * count,
            kind=[HostKind.RUNTIME] * count,
            name=[name] * count,
            start_ns=start_ns,
            duration_ns=trace.steps.end_ns - start_ns,
        )
        trace.host = HostSpans.concatenated([trace.host, waits])
    summary = summarize(trace)
    assert summary.pace is not None and summary.pace.host_runs_ahead == (end_ms < 1)
    share = 1 - own_ms / 10
    of = summary.bottleneck
    assert of is not None and of.limit == "other GPUs" and of.gain_ns == pytest.approx(10 * MS * share, rel=0.01)
    assert bottleneck_text(summary).startswith(
        f"The GPUs of the process wait for each other. Even cuda:0, the busiest one, works only {100 - 100 * share:.1f} % of"
        " the time. A step of 10.0 ms could be up to"
    )


def test_a_late_rank_is_the_bottleneck_of_all_ranks() -> None:
    """GIVEN steps of 100 ms on two ranks WHEN rank 0 communicates from 20 ms and rank 1 communicates from 90 ms THEN rank 1 is
    70 ms late. The host of rank 1 launches nothing before 80 ms, so the host is the reason."""
    steps = [(0, 100), (0, 100), (100, 200), (100, 200)]
    trace = a_trace(
        steps,
        [
            Work(start + launched, start + launched, start + end, device=device)
            for start in (0, 100)
            for device, launched, end in ((0, 0, 20), (0, 20, 100), (1, 80, 90), (1, 90, 100))
        ],
        numbers=[0, 0, 1, 1],
        ranks=[0, 1, 0, 1],
        devices=(0, 1),
    )
    trace.collectives = Collectives.of(
        rank=[0, 1, 0, 1],
        name=[trace.strings.add("all_reduce")] * 4,
        start_ns=[at(ms) for ms in (20, 90, 120, 190)],
        duration_ns=[80 * MS, 10 * MS] * 2,
        ending=[Ending.SEEN] * 4,
    )
    communicates = np.isin(trace.device.end_ns, [at(100), at(200)])
    trace.device.name[communicates] = trace.strings.add("ncclDevKernel_AllReduce")
    summary = summarize(trace)
    assert summary.bottleneck == PaceLimit("host", 70 * MS, 0.7, late_rank=1)
    assert bottleneck_text(summary) == (
        "Rank 1 limits the speed: the other ranks wait for it. Its GPU is busy 20.0 % of the time and waits for the host."
        " A step of 100.0 ms could be up to 70.0 ms shorter (70.0 %)."
    )
    slow = replace(trace, device=trace.device.take(np.arange(len(trace.device))))
    computes = (slow.device.device == 1) & ~communicates
    slow.device.start_ns[computes] -= 60 * MS  # rank 1 computes for 70 ms, and rank 0 computes for 20 ms
    slow.device.duration_ns[computes] += 60 * MS
    slow.host.start_ns[slow.device.launch[computes]] -= 60 * MS
    found = summarize(slow)
    reason = "computes longer than the GPUs of other ranks"
    assert found.bottleneck == PaceLimit("device", 70 * MS, 0.7, reason, late_rank=1)
    assert f"Its GPU is busy 80.0 % of the time and {reason}." in bottleneck_text(found)
    # WHEN warm-up steps without GPU work come first THEN their number does not change the bottleneck
    before = slow.steps.take(np.tile(np.arange(4), 3))
    before.start_ns -= 200 * MS * np.repeat(np.arange(3, 0, -1), 4)
    before.kind[:] = StepKind.WARMUP
    assert summarize(replace(slow, steps=Steps.concatenated([before, slow.steps]))).bottleneck == found.bottleneck
    hidden = replace(trace, device=trace.device.take(np.arange(len(trace.device))))
    hidden.device.duration_ns[(hidden.device.device == 0) & ~communicates] = 85 * MS  # rank 0 computes while it waits
    late = summarize(hidden).bottleneck
    assert late is not None and (late.late_rank, late.gain_ns) == (1, 15 * MS)
    trace.collectives.start_ns = np.array([at(ms) for ms in (20, 25, 120, 125)])
    trace.collectives.duration_ns = np.array([80 * MS, 75 * MS] * 2)  # rank 1 is 5 ms late, less than a tenth of a step
    assert summarize(replace(trace)).bottleneck != summary.bottleneck


def test_copies_of_the_two_gpus_of_a_process_are_not_added() -> None:
    """GIVEN two GPUs of one process, each with a copy for 35 ms of a step of 100 ms, and then kernels for 60 ms THEN the GPUs
    are the bottleneck, and a step could be 40 ms shorter."""
    times = [(100 * step, *of) for step in range(4) for of in ((0, 35, 0), (0, 35, 1), (35, 95, 0), (35, 95, 1))]
    work = [Work(start, start + begin, start + end, device=device) for start, begin, end, device in times]
    trace = a_trace([(100 * step, 100 * step + 100) for step in range(4)], work, devices=(0, 0))
    copies = trace.device.duration_ns == 35 * MS
    trace.device.kind[copies] = DeviceKind.MEMCPY
    trace.device.name[copies] = trace.strings.add("Memcpy HtoD (Pinned -> Device)")
    assert summarize(trace).bottleneck == PaceLimit("device", 40 * MS, 0.4, copies_ns=35 * MS)


def test_pipeline_stages_wait_for_each_other_whenever_they_do_not_compute() -> None:
    """GIVEN two pipeline stages that compute for 60 of 100 ms WHEN both stages wait for the rest of the step THEN a step could
    be 40 ms shorter. Stage 0 waits in a communication kernel, and stage 1 is idle."""
    starts = [100 * step for step in range(4)]
    trace = a_trace(
        [(start, start + 100) for start in starts for _ in range(2)],
        [
            Work(start, start + begin, start + end, device=device)
            for start in starts
            for device, begin, end in ((0, 0, 60), (1, 0, 60), (0, 60, 100))
        ],
        numbers=[0, 0, 1, 1, 2, 2, 3, 3],
        ranks=[0, 1] * 4,
        devices=(0, 1),
    )
    trace.device.name[trace.device.duration_ns == 40 * MS] = trace.strings.add("ncclDevKernel_SendRecv")
    found = summarize(trace).bottleneck
    assert found is not None and (found.limit, found.gain_ns, found.exposed_ns) == ("device", 40 * MS, 40 * MS)


@pytest.mark.parametrize(("late_ns", "late_rank"), [(10 * MS, 1), (10 * MS - 1, None)])
def test_a_rank_is_late_if_it_delays_a_step_by_a_tenth(late_ns: int, late_rank: int | None) -> None:
    """GIVEN two steps of 100 ms that are limited by the GPU WHEN rank 1 is 10 ms late in each step THEN rank 1 limits the
    speed."""
    trace = a_trace([(0, 100), (0, 100), (100, 200), (100, 200)], numbers=[0, 0, 1, 1], ranks=[0, 1, 0, 1], devices=(0, 1))
    late = [RankLateness(1, 4, 4, 0, 2 * late_ns, late_ns), RankLateness(0, 4, 0, 2 * late_ns, 0)]
    analyses = replace(summarize(trace).analyses, idle={"rank 0 cuda:0": idle(0, 25, launch=35)["cuda:0"]}, stragglers=late)
    ahead = replace(OF_DATA, limit="device", host_runs_ahead=True, without_data_ns=100 * MS)
    found = bottleneck_of(trace, ahead, analyses)
    assert found is not None and found.late_rank == late_rank
    assert (found.gain_ns, found.share) == ((late_ns, 0.1) if late_rank else (60 * MS, 0.6))


def test_without_kernels_the_bottleneck_is_found_from_step_times() -> None:
    bare = replace(OF_DATA, gpu_time_ns=None, busy_share=None)
    assert bottleneck(bare, {}) == PaceLimit("data", 35 * MS, 0.35)
    assert bottleneck(replace(bare, without_data_ns=99 * MS), {}) == PaceLimit(
        "unknown", None, None, "the recording has no kernels, and host and GPU take the same time"
    )
    assert bottleneck(replace(bare, host_runs_ahead=True), {}) == PaceLimit("device", None, None)
    no_device = replace(bare, device_ns=None, device=-1, without_data_ns=100 * MS)
    assert bottleneck(no_device, {}) == PaceLimit("host", None, None)
    assert bottleneck(None, {}) is None


def test_no_figure_is_derived_from_a_recording_with_lost_kernels() -> None:
    """GIVEN a recording that lost 4 kernels, more than 1 % THEN it has no bottleneck, no idle time and no critical path. A
    comparison mentions the lost kernels."""
    whole, trace = training(steps=4), training(steps=4)
    trace.problems = {"lost-kernel": 4}
    summary, expected = summarize(trace), PaceLimit("unknown", None, None, "kernels are missing from the recording")
    assert summary.bottleneck == expected and not summary.busy_shares
    assert (summary.analyses.idle, summary.analyses.critical_path, summary.gpus["cuda:0"].idle_share) == ({}, None, None)
    apart = compare(whole, trace)
    assert apart.bottlenecks == Both(summarize(whole).bottleneck, expected)
    kernels = int((trace.device.kind == DeviceKind.KERNEL).sum())
    text = f"The recording lacks 4 of {kernels + 4} kernels, so idle time is not reliable."
    assert apart.problems == Both([], [text])
    assert f"In B: {text}" in explain(apart).caution and not any("idle" in of.what for of in explain(apart).reasons)


@pytest.mark.parametrize(("end", "limit"), [(21, "device"), (32, "unknown")])
def test_the_bottleneck_is_unknown_if_long_gpu_work_follows_the_last_step(end: float, limit: str) -> None:
    """GIVEN two steps of 10 ms without recorded launch calls WHEN one kernel begins after the steps and runs longer than a step
    THEN the bottleneck is unknown."""
    work = [Work(None, 0, 10), Work(None, 10, 20), Work(None, 20, end)]
    of = summarize(a_trace([(0, 10), (10, 20)], work)).bottleneck
    assert of is not None and of.limit == limit


def test_work_from_before_the_recording_may_run_after_the_last_step() -> None:
    """GIVEN three steps of 1 ms on the host, each with a kernel of 4 ms WHEN the GPU first runs two kernels of 5 ms that were
    launched before the recording, and the second one begins after the last step THEN the GPU is the bottleneck."""
    work = [Work(None, 0, 5), Work(None, 5, 10), Work(0.1, 10, 14), Work(1.1, 14, 18), Work(2.1, 18, 22)]
    of = summarize(a_trace([(0, 1), (1, 2), (2, 3)], work))
    assert of.pace is not None and of.pace.pace_ns == 4 * MS
    assert of.bottleneck is not None and of.bottleneck.limit == "device"


@pytest.mark.parametrize(("last_ms", "limit"), [(9, "unknown"), (11, "host")])
def test_the_bottleneck_is_unknown_if_the_gpu_finished_no_step(last_ms: float, limit: str) -> None:
    """GIVEN two steps of 10 ms WHEN the GPU ran the first kernel, but not the last one that was launched THEN the bottleneck is
    unknown if the GPU finished no step."""
    trace = a_trace([(0, 10), (10, 20)], [Work(1, 1, 2), Work(last_ms, 18, 19)])
    trace.device, trace.problems = trace.device.take([0]), {"unfinished-launch": 1}
    of = summarize(trace).bottleneck
    assert of is not None and of.limit == limit


def test_a_few_lost_kernels_cause_a_warning_and_no_error() -> None:
    """GIVEN a recording that lost 1 of 321 kernels, less than 1 % THEN its bottleneck is the same as without the loss."""
    trace = training(steps=80)
    trace.problems = {"lost-kernel": 1}
    assert int((trace.device.kind == DeviceKind.KERNEL).sum()) == 320
    assert summarize(trace).bottleneck == summarize(training(steps=80)).bottleneck


def test_an_estimated_trace_has_no_idle_time() -> None:
    """GIVEN a replay with estimated times and `--clock recorded` THEN the bottleneck is unknown, because no host pace was
    recorded."""
    estimated = replay_of(training())
    notes = estimated.run_of(0).replay
    assert notes is not None
    of_wall = replace(notes, config=replace(notes.config, clock="wall"))
    of_recorded = replace(notes, config=replace(notes.config, clock="recorded"))
    for origin, of, is_unknown in (
        (Origin.ROOFLINE, of_recorded, True),
        (Origin.ROOFLINE, of_wall, False),
        (Origin.EXACT, of_recorded, False),
        (Origin.PUBLISHED, of_recorded, False),
    ):
        estimated.device.origin = np.full(len(estimated.device), origin, dtype=estimated.device.origin.dtype)
        estimated.runs[0] = replace(estimated.runs[0], replay=of)
        limit = summarize(estimated).bottleneck
        assert limit is not None
        assert (limit.reason.startswith("the times are estimates"), limit.share is None) == (is_unknown, is_unknown)


def _launched(forward_behind_us: int, backward_behind_us: int, steps: int = 3) -> Trace:
    """Return a recording without kernels, whose forward pass takes 8 ms and whose backward pass takes 10 ms.

    The GPU ends the passes by `forward_behind_us` and `backward_behind_us` later than the host.
    """
    trace = Trace(grain="phase", devices=[Device(0, 0, "a")])
    names = [trace.strings.add(name) for name in ("forward", "backward")]
    start_ns = np.arange(steps) * 18 * MS
    trace.steps = Steps.of(number=range(steps), start_ns=start_ns, duration_ns=[18 * MS] * steps)
    starts_ns = np.stack([start_ns, start_ns + 8 * MS], 1).ravel()
    duration_ns = np.array([8 * MS, 10 * MS] * steps)
    behind_ns = np.array([forward_behind_us, backward_behind_us] * steps) * 1000
    trace.phases = Phases.of(
        step=np.repeat(range(steps), 2),
        name=names * steps,
        start_ns=starts_ns,
        duration_ns=duration_ns,
        device=[0] * 2 * steps,
        device_start_ns=starts_ns,
        device_end_ns=starts_ns + duration_ns + behind_ns,
    )
    return trace


def test_a_gpu_waits_for_the_host_if_it_finishes_right_after_the_last_launch() -> None:
    """GIVEN a recording of ResNet-50 on an H200 WHEN the GPU finishes the forward pass 19 us after its last launch THEN the
    host is the bottleneck. The GPU finishes the backward pass 4.4 ms after its last launch."""
    trace = _launched(19, 4400)
    assert summarize(trace).bottleneck == PaceLimit("host", None, None, caught_up_in="forward", behind_ns=19_000)
    assert caught_up(_launched(19, 150)) == CaughtUp("backward", 150_000)  # the limit is 2 % of the backward pass, 200 us
    assert caught_up(_launched(160, 4400)) == CaughtUp("forward", 160_000)  # the limit is 2 % of the forward pass, 160 us
    assert caught_up(_launched(161, 4400)) is None


@pytest.mark.parametrize(("lasted_us", "behind_us", "is_caught_up"), [(500, 50, True), (499, 50, False), (500, 51, False)])
def test_only_phases_of_at_least_half_a_millisecond_show_that_the_gpu_catches_up(
    lasted_us: int, behind_us: int, is_caught_up: bool
) -> None:
    trace = _launched(0, 4400)
    trace.phases.duration_ns[::2] = lasted_us * 1000
    trace.phases.device_end_ns[::2] = trace.phases.end_ns[::2] + behind_us * 1000
    assert caught_up(trace) == (CaughtUp("forward", behind_us * 1000) if is_caught_up else None)


@pytest.mark.parametrize(("data_ns", "limit"), [(10 * MS, "data"), (10 * MS - 1, "host")])
def test_without_kernels_waits_for_data_are_the_bottleneck_if_they_last_a_tenth_of_a_step(data_ns: int, limit: str) -> None:
    pace = replace(OF_DATA, without_data_ns=100 * MS - data_ns, device_ns=None, gpu_time_ns=None, busy_share=None)
    found = bottleneck(pace, {})
    assert found is not None and (found.limit, found.gain_ns) == (limit, data_ns if limit == "data" else None)


def test_phases_do_not_show_a_catching_up_gpu_if_the_host_reads_values() -> None:
    trace = _launched(19, 4400)
    trace.sizes = Sizes.of(op=[trace.strings.add("aten::nonzero")])
    assert caught_up(trace) is None
    trace.sizes, trace.values = Sizes.empty(), Values.of(read=range(4))
    assert caught_up(trace) is None
    trace.values = Values.of(read=range(3))
    assert caught_up(trace) == CaughtUp("forward", 19_000)
    trace.sizes = Sizes.of(op=[trace.strings.add("aten::nonzero")])
    assert caught_up(trace) is None


def test_info_shows_how_long_the_gpu_works_after_a_single_step() -> None:
    """GIVEN a recording of a single step of 10 ms on the host WHEN its kernel ends at 40 ms THEN `trace info` says that the
    host ends 30 ms before the GPU. The text does not say that the host runs ahead, because the host may wait in the next
    step."""
    said = bottleneck_text(summarize(a_trace([(0, 10)], [Work(0.1, 0.2, 40)]), details=False))
    assert said.startswith("The GPU limits the speed: the host ends a 40.0 ms step 30.0 ms before the GPU.")


def test_the_time_that_the_host_needs_excludes_its_last_wait() -> None:
    """GIVEN a host that needs 2 ms per step WHEN it also waits 26 ms for the GPU in the last step THEN the text leaves out this
    wait. With the wait, the average on the host, 9 ms, would be longer than the average step, 7 ms."""
    ends = [12, 16, 26, 30, 40]
    work = [Work(2 * step + 0.1, start, end) for step, (start, end) in enumerate(pairwise([2, *ends]))]
    said = bottleneck_text(summarize(a_trace([(0, 2), (2, 4), (4, 6), (6, 8), (8, 40)], work), details=False))
    assert said.startswith("The GPU limits the speed: the host needs 2.0 ms of an average step of 7.0 ms and runs ahead.")


def of_two_kernels(first_ms: Sequence[float], second_ms: Sequence[float]) -> Trace:
    """Return a trace with one step every 20 ms. Each step runs "a kernel" and then "another kernel" for the given times."""
    work = []
    for step, (first, second) in enumerate(zip(first_ms, second_ms, strict=True)):
        start = 20 * step + 1
        work += [Work(start - 0.5, start, start + first), Work(start - 0.4, start + first, start + first + second)]
    trace = a_trace([(20 * step, 20 * step + 19.9) for step in range(len(first_ms))], work)
    trace.device.name[1::2] = trace.strings.add("another kernel")
    return trace


def test_kernels_that_become_slower_in_the_middle_of_a_run_are_noticed() -> None:
    """GIVEN steps with kernels of 4 and 2 ms WHEN both kernels take 1.5 times as long from step 4 on THEN the GPU clock may
    have fallen. WHEN only one kernel becomes slower THEN the clock is not the reason."""
    slower = of_two_kernels([4] * 4 + [6] * 4, [2] * 4 + [3] * 4)
    assert slowdown_of(slower) == Slowdown(4, 6 * MS, 9 * MS, is_alike=True)
    (said,) = [text for text in note_sentences(summarize(slower, details=False)) if "Starting with step" in text]
    assert said.startswith("Starting with step 4, the same kernels take 50 % longer, most by about the same factor")
    assert slowdown_of(of_two_kernels([4] * 4 + [7] * 4, [2] * 8)) == Slowdown(4, 6 * MS, 9 * MS, is_alike=False)
    # Three steps before the change and three steps after it are enough.
    assert slowdown_of(of_two_kernels([4] * 3 + [6] * 3, [2] * 3 + [3] * 3)) == Slowdown(3, 6 * MS, 9 * MS, is_alike=True)
    assert slowdown_of(of_two_kernels([4] * 3 + [6] * 2, [2] * 3 + [3] * 2)) is None
    with_outliers = of_two_kernels([12, 4, 4, 4, 6, 6, 15, 6], [2] * 4 + [3] * 4)
    assert slowdown_of(with_outliers) == Slowdown(4, 6 * MS, 9 * MS, is_alike=True)
    (problem,) = compare(of_two_kernels([4] * 8, [2] * 8), slower).problems.replayed
    assert problem.startswith("Starting with step 4,")


def test_kernels_count_as_slower_if_their_total_time_grows_by_15_percent() -> None:
    """GIVEN two kernels of 2.5 ms WHEN their total time grows by 15 % THEN they count as slower. WHEN the total doubles and
    each kernel is within 5 % of twice its time THEN both kernels are slower by about the same factor."""
    assert slowdown_of(of_two_kernels([2.5] * 4 + [5.25] * 4, [2.5] * 4 + [4.75] * 4)) == Slowdown(4, 5 * MS, 10 * MS, True)
    assert slowdown_of(of_two_kernels([2.5] * 4 + [5.26] * 4, [2.5] * 4 + [4.74] * 4)) == Slowdown(4, 5 * MS, 10 * MS, False)
    assert slowdown_of(of_two_kernels([2] * 4 + [2.3] * 4, [2] * 4 + [2.3] * 4)) == Slowdown(4, 4 * MS, 4_600_000, True)
    assert slowdown_of(of_two_kernels([2] * 4 + [2.3] * 4, [2] * 4 + [2.29] * 4)) is None


def test_kernels_whose_times_only_vary_are_not_reported_as_slower() -> None:
    assert slowdown_of(of_two_kernels([4] * 8, [2] * 8)) is None
    assert slowdown_of(of_two_kernels([4, 6] * 4, [2, 3] * 4)) is None  # slow and fast steps alternate
    assert slowdown_of(of_two_kernels([4] * 6 + [9] * 2, [2] * 8)) is None  # two slow steps are too few
    other = of_two_kernels([4] * 4 + [6] * 4, [2] * 4 + [3] * 4)
    other.device.name[-1] = other.device.name[0]
    assert slowdown_of(other) is None  # the steps run different kernels
    of_phases = of_two_kernels([4] * 4 + [6] * 4, [2] * 4 + [3] * 4)
    of_phases.device.origin[:] = Origin.PHASE
    assert slowdown_of(of_phases) is None


@pytest.mark.parametrize(
    ("long", "long_ms", "text"),
    [
        ([0, 4], 10, "7 steps take 2.0 ms, and 2 steps with other kernels, such as step 0, take 10.0 ms (medians)"),
        ([4], 10, "8 steps take 2.0 ms, and 1 step with other kernels (step 4) takes 10.0 ms (medians)"),
        ([0, 4], 2.2, ""),
        ([], 10, ""),
    ],
)
def test_steps_with_different_kernels_are_listed_separately(long: list[int], long_ms: float, text: str) -> None:
    """GIVEN nine steps of 2 ms, in which the GPU works for 0.1 ms WHEN some steps run another kernel and take at least 15 %
    longer THEN `trace info` shows the time of both kinds of steps. Without the other kernel, there is only one kind of step."""
    trace = with_long_steps(long, long_ms)
    kinds = steps_by_kernels(trace)
    assert (kinds is None) is (not text)
    assert [note for note in note_sentences(summarize(trace)) if "other kernels" in note] == [text] * bool(text)
    if len(long) > 1 and text:
        assert kinds == [StepsOfKernels(7, 1, 2 * MS), StepsOfKernels(2, 0, 10 * MS)]


@pytest.mark.parametrize("count", [9, 100])
def test_the_largest_reason_may_be_a_kernel_of_rare_steps(count: int) -> None:
    """GIVEN steps of 2 ms and two steps of 10 ms with another kernel WHEN the steps of 10 ms and their kernels take 4 ms longer
    in B THEN the kernel takes 8 ms / (number of steps) longer per average step, and `trace diff` names the kernel."""
    long = [0, 4]
    lengths = [[rare_ms if place in long else 2.0 for place in range(count)] for rare_ms in (10.0, 14.0)]
    shorter, slower = (of_lengths(of, long) for of in lengths)
    slower.device.duration_ns[long] += 4 * MS
    apart = compare(shorter, slower)
    alike = replace(apart.verdict, sameness=Sameness.SAME_PROGRAM)  # these traces contain no ops, so this cannot be told
    reason = largest_reason(replace(apart, verdict=alike))
    assert reason is not None and reason.what == "kernel prefill"
    assert reason.delta_ns == pytest.approx(8 / count * MS)


def test_the_first_inference_step_may_run_other_kernels() -> None:
    """GIVEN inference whose first step reads the prompt in 10 ms WHEN the other steps take 2 ms THEN the first step is a
    separate kind of step, although the first step does not count in the step time."""
    trace = with_long_steps([0], 10)
    trace.steps.kind[:] = StepKind.EVALUATION
    assert steps_by_kernels(trace) == [StepsOfKernels(8, 1, 2 * MS), StepsOfKernels(1, 0, 10 * MS)]


def test_steps_without_kernels_are_not_a_separate_kind() -> None:
    """GIVEN inference in which the GPU works for 3 ms per step WHEN one step runs no kernel THEN the step is not shown as a
    step of 0 ns."""
    work = [Work(2 * at + 0.1, 3 * at + 0.2, 3 * at + 3.2) for at in range(8)]
    trace = a_trace([(2 * at, 2 * at + 2) for at in range(9)], work)
    trace.steps.kind[:] = StepKind.EVALUATION
    assert steps_by_kernels(trace) is None


def test_a_pause_of_the_host_is_shown_for_the_step_in_which_it_happened() -> None:
    """GIVEN steps of 2 ms with a kernel at their start WHEN the host pauses for 20 ms at the end of step 4 THEN step 4 is slow.
    The pause delays the GPU work of step 5."""
    notes = note_sentences(summarize(with_long_steps([4], 22, "a kernel")))
    assert "Step 4 took 11 times the median step time (22.0 ms)" in notes
