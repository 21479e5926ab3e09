"""The analyses of a trace: idle time by reason, launches, rates, modules, stragglers, the critical path."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.traces.handmade import MS, US, Call, calls, data_parallel, phase_grained, training
from traces.analyses.analyse import analyse
from traces.analyses.critical_path import critical_path
from traces.analyses.idle import IdleReason, data_waits, idle_spans, idle_times
from traces.analyses.launches import launch_delay_ns, launch_figures, launched_rows, queue_length
from traces.analyses.modules import module_times
from traces.analyses.stragglers import RankLateness, rank_groups, similar_ranks, stragglers, without_waits
from traces.analyses.transfers import transfers
from traces.figures.bottleneck import PaceLimit
from traces.figures.measure import busy_ns, window_ns
from traces.figures.summary import summarize
from traces.format.trace_file import load
from traces.kineto import read_kineto
from traces.library import find
from traces.model.trace import (
    NONE,
    Collectives,
    Device,
    DeviceKind,
    DeviceSpans,
    Ending,
    HostKind,
    HostSpans,
    Phases,
    StepKind,
    Steps,
    Thread,
    Trace,
)
from traces.names.equivalent_ops import shapes_of_canonical
from traces.rates.achieved_rates import achieved


@pytest.fixture(scope="module")
def real(shared_traces: Path) -> Trace:
    return read_kineto(shared_traces / "v100_resnet50_workers0.json.gz")


# --- idle time ---


def test_idle_time_is_divided_into_data_and_host_and_launch_time() -> None:
    """Per step, in us: data until 20, and kernels from 27 to 47, 57 to 77 and 87 to 97. Each kernel is launched 4 us before it
    starts."""
    of = idle_times(training(steps=4))["cuda:0"]
    # From the first step's begin to the last step's end on the host, 3 after the last kernel.
    assert of.steps == 4 and of.window_ns == 400 * US
    assert of.busy_ns == 4 * 50 * US and of.busy_ns + of.idle_ns == of.window_ns
    assert of.by_reason["data"] == 4 * 20 * US
    assert of.by_reason["launch"] == 4 * 3 * 4 * US
    assert of.by_reason["host"] == (400 - 200 - 80 - 48) * US
    assert not of.by_reason["stream"] and not of.by_reason["unknown"]


def _two_streams(name: str, begins_us: int, launched_us: int = 1) -> Trace:
    """On stream 7 a kernel from 10 to 20 and one more from `begins_us`; on stream 8 a kernel of that name from 10 to 40."""
    trace = Trace(devices=[Device(0, 0, "Tesla V100-DGXS-32GB")], threads=[Thread(0, 1, "main", "main")])
    names = [trace.strings.add(text) for text in ("gemm", name, "gemm")]
    call = trace.strings.add("cudaLaunchKernel")
    trace.host = HostSpans.of(
        thread=[0] * 3, kind=[HostKind.RUNTIME] * 3, name=[call] * 3, start_ns=[0, US, launched_us * US], duration_ns=[US] * 3
    )
    starts = [10 * US, 10 * US, begins_us * US]
    trace.device = DeviceSpans.of(
        device=[0] * 3, stream=[7, 8, 7], kind=[0] * 3, name=names, start_ns=starts, duration_ns=[10 * US, 30 * US, US],
        launch=[0, 1, 2],
    )  # fmt: skip
    if name.startswith("nccl"):
        all_reduce = trace.strings.add("all_reduce")
        trace.collectives = Collectives.of(rank=[0], name=[all_reduce], start_ns=[10 * US], duration_ns=[30 * US], device=[0])
    return trace


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (_two_streams("gemm", 41), IdleReason.STREAM),
        (_two_streams("ncclKernel_AllReduce", 41), IdleReason.COLLECTIVE),
        (_two_streams("gemm", 60), IdleReason.LAUNCH),  # too long after the other stream's end
        (_two_streams("gemm", 41, launched_us=40), IdleReason.HOST),
    ],
)
def test_a_kernel_waits_for_work_that_ended_just_before_it_on_another_stream(trace: Trace, reason: IdleReason) -> None:
    spans = idle_spans(trace, by_stream=True)
    mine = spans.take(spans.stream == 7)
    lasted = {IdleReason(kind): int((mine.end_ns - mine.start_ns)[mine.reason == kind].sum()) for kind in mine.reason.tolist()}
    assert max(lasted, key=lambda kind: lasted[kind]) is reason
    assert sum(lasted.values()) == int(trace.device.start_ns[2]) - 20 * US
    assert not len(idle_spans(trace).take(idle_spans(trace).start_ns < 40 * US))  # the device itself was busy


def test_every_idle_nanosecond_has_one_reason(real: Trace) -> None:
    of = idle_times(real)["cuda:0"]
    assert of.busy_ns + of.idle_ns == of.window_ns
    spans = idle_spans(real)
    assert (spans.start_ns[1:] >= spans.end_ns[:-1]).all()
    # The step's wait for data, less what the device still works off meanwhile.
    assert of.by_reason["data"] / of.steps == pytest.approx(58.7 * MS, rel=0.01)


# --- launches and copies ---


def test_a_launch_queue_grows_at_launches_and_shrinks_at_kernel_starts(real: Trace) -> None:
    trace = _two_streams("gemm", 41)
    queue = queue_length(trace, 0, 7)
    assert (queue.time_ns // US).tolist() == [0, 1, 10, 41] and queue.length.tolist() == [1, 2, 1, 0]
    assert (launch_delay_ns(trace, launched_rows(trace)) // US).tolist() == [9, 8, 39]
    (stream,) = launch_figures(real)
    assert (stream.count, stream.queue_most) == (9096, 569) and queue_length(real, 0, 7).length[-1] == 0


def test_the_copied_bytes_of_all_times_add_up_to_the_total(real: Trace) -> None:
    rows = {row.kind: row for row in transfers(real)}
    assert sum(row.bytes for row in rows.values()) == int(real.device.bytes[real.device.bytes > 0].sum())
    start_ns, end_ns = window_ns(real)
    for row in transfers(real, parts=50):
        assert sum(row.over_time) * (end_ns - start_ns) / 50 == pytest.approx(rows[row.kind].bytes, rel=1e-6)


# --- rates ---


def test_the_flops_of_resnet50_equal_the_sum_over_its_layers(real: Trace) -> None:
    """There are 4.09 G multiply-adds per image (He et al. have 3.8 without the projections), and twice as many backward except
    for the first layer's gradient of the image."""
    rows = {row.op: row for row in achieved(real)}
    images, forward = 6 * 32, rows["convolution"]
    assert forward.flops == pytest.approx(2 * 4.087e9 * images, rel=0.002) and not forward.flops_bounded
    first_layer = 2 * 112 * 112 * 64 * 3 * 49 * images
    backward = rows["convolution_backward"]
    assert forward.flops is not None and backward.flops == pytest.approx(2 * forward.flops - first_layer, rel=0.03)
    # Some of its layers run by Winograd's algorithm, which needs fewer multiplications.
    assert forward.winograd and 0.5 < (forward.flops_share or 0) < (forward.tflops or 0) / 15.7
    assert 0.8 < (rows["relu"].bytes_share or 0) < 1


def test_rows_per_shape_add_up_to_the_row_of_their_kind(real: Trace) -> None:
    whole = {row.op: row for row in achieved(real)}
    for op in ("convolution", "batch_norm", "relu"):
        parts = [row for row in achieved(real, by_shape=True) if row.op == op]
        assert sum(row.device_ns for row in parts) == whole[op].device_ns
        assert sum(row.calls for row in parts) == whole[op].calls and len(parts) > 3


# --- modules ---


def test_module_times_are_read_from_the_stack_frames_of_old_profilers(real: Trace) -> None:
    modules = {row.path: row for row in module_times(real)}
    whole = modules["resnet.py:249"]
    layers = [modules[f"resnet.py:249/resnet.py:{line}"] for line in range(237, 241)]
    assert whole.forward_ns == pytest.approx(32.7 * MS, rel=0.01) and whole.backward_ns == pytest.approx(61.3 * MS, rel=0.01)
    assert 0.8 < sum(row.forward_ns for row in layers) / whole.forward_ns < 1
    assert max(layers, key=lambda row: row.forward_ns) is layers[2]


def test_modules_by_ranges(shared_traces: Path) -> None:
    trace = read_kineto(shared_traces / "h100_qwen05b_inference.json.gz")
    modules = {row.path: row for row in module_times(trace)}
    layers = [row for path, row in modules.items() if path.count("/") == 1 and "DecoderLayer" in path]
    assert len(layers) == 24 and all(row.calls == 1 for row in layers)
    inner = [row for path, row in modules.items() if path.count("/") == 1]
    whole = modules["Qwen2Model_0"]
    assert sum(row.forward_ns for row in inner) + whole.own_ns == pytest.approx(whole.forward_ns, abs=len(inner))


# --- ranks ---


def test_the_rank_with_the_shortest_collective_kernel_arrived_last() -> None:
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(3)])
    name, group = trace.strings.add("all_reduce"), trace.strings.add("0")
    took_us = [[10, 30, 20], [10, 40, 50], [30, 10, 10]]  # of three collectives, by rank
    rows = [(rank, at * 100 * US, us * US) for at, of in enumerate(took_us) for rank, us in enumerate(of)]
    rank, start_ns, duration_ns = zip(*sorted(rows), strict=True)
    trace.collectives = Collectives.of(
        rank=rank, name=[name] * 9, group=[group] * 9, start_ns=start_ns, duration_ns=duration_ns, ending=[Ending.SEEN] * 9
    )
    # THEN the arrivals are 20, 0, 10 us, then 40, 10, 0 us, then 0, 20, 20 us after the first rank, and the medians 10, 10, 20
    found = {of.rank: of for of in stragglers(trace)}
    assert (found[0].last, found[0].late_ns, found[0].waited_ns) == (2, (10 + 30) * US, 20 * US)
    assert (found[1].last, found[1].late_ns) == (1, 0) and next(iter(found)) == 0
    # WHEN all ranks reach the collectives at the same time THEN none is last
    trace.collectives.duration_ns[:] = 10 * US
    assert [of.last for of in stragglers(trace)] == [0, 0, 0]


def test_each_rank_that_arrives_after_the_median_rank_is_late() -> None:
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(4)])
    name, group = trace.strings.add("all_reduce"), trace.strings.add("0")
    # GIVEN kernels of 100, 90, 40 and 30 us (arrivals at 0, 10, 60, 70 us, median 10), then 50, 50, 50 and 20 us (0, 0, 0, 30)
    took_us = [100, 90, 40, 30, 50, 50, 50, 20]
    trace.collectives = Collectives.of(
        rank=[0, 1, 2, 3] * 2, name=[name] * 8, group=[group] * 8, start_ns=[0] * 4 + [100 * US] * 4,
        duration_ns=[us * US for us in took_us], ending=[Ending.SEEN] * 8,
    )  # fmt: skip
    found = stragglers(trace)
    # THEN rank 2 is late too, although the others wait only for rank 3
    assert [(of.rank, of.last, of.late_ns) for of in found] == [(3, 2, 90 * US), (2, 0, 50 * US), (0, 0, 0), (1, 0, 0)]
    assert similar_ranks(found) == [0, 1]


def test_ranks_that_are_late_by_chance_are_not_stragglers() -> None:
    # GIVEN nine ranks of which each is last once, by 10 us
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(9)])
    name, group = trace.strings.add("all_reduce"), trace.strings.add("0")
    calls = [(turn, rank) for turn in range(9) for rank in range(9)]
    trace.collectives = Collectives.of(
        rank=[rank for _, rank in calls], name=[name] * 81, group=[group] * 81, start_ns=[100 * US * turn for turn, _ in calls],
        duration_ns=[(10 if turn == rank else 20) * US for turn, rank in calls],
        ending=[Ending.SEEN] * 81,
    )  # fmt: skip
    assert {of.late_ns for of in stragglers(trace)} == {10 * US}
    assert similar_ranks(stragglers(trace)) == [*range(9)]


@pytest.mark.parametrize(
    ("late_ns", "similar"),
    [
        ([], []),
        ([0, 0, 0], [0, 1, 2]),
        ([0, 10, 20], [0, 1, 2]),  # twice the median
        ([0, 10, 21], [0, 1]),
        ([0, 0, 10, 100], [0, 1]),  # a tenth of the latest rank's lateness
        ([0, 0, 9, 100], [0, 1, 2]),
        ([0, 5, 30, 10], [0, 1, 3]),  # of four ranks, the second is the median
    ],
)
def test_ranks_with_little_lateness_are_similar(late_ns: list[int], similar: list[int]) -> None:
    assert similar_ranks([RankLateness(rank, 5, 1, 0, of_ns) for rank, of_ns in enumerate(late_ns)]) == similar


@pytest.mark.parametrize(("kernels", "first", "similar"), [(11, (0,), 11), (9, (0,), 11), (12, (5,), 11), (8, (5,), 11)])
def test_a_rank_with_other_work_is_shown_by_itself(kernels: int, first: tuple[int, ...], similar: int) -> None:
    """GIVEN twelve ranks with 10 kernels, except rank 5 THEN rank 5 is similar if its number differs by at most a tenth."""
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(12)])
    of_each = [kernels if rank == 5 else 10 for rank in range(12)]
    trace.device = DeviceSpans.of(device=np.repeat(range(12), of_each), start_ns=np.arange(sum(of_each)))
    order = rank_groups(trace)
    assert order.first == first and len(order.similar) == similar


def test_ranks_without_a_common_collective_are_not_compared() -> None:
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(2)])
    name = trace.strings.add("all_reduce")

    def numbered(*of: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        rank, number, took_us = zip(*of, strict=True)
        trace.collectives = Collectives.of(
            rank=rank, name=[name] * len(of), sequence=number, communicator=[name] * len(of),
            start_ns=[at * 100 * US for at in range(len(of))], duration_ns=[us * US for us in took_us],
            ending=[Ending.SEEN] * len(of),
        )  # fmt: skip
        return [(late.rank, late.collectives, late.late_ns) for late in stragglers(trace)]

    assert numbered((0, 1, 10), (0, 2, 10)) == []
    assert numbered((0, 1, 10), (1, 2, 10)) == []
    # Only the second call of rank 0 and the first of rank 1 have the same number. Rank 1 waits 10 us less.
    assert numbered((0, 1, 50), (0, 2, 30), (1, 2, 20), (1, 3, 90)) == [(1, 1, 10 * US), (0, 1, 0)]


def test_time_in_which_a_collective_waits_for_the_last_rank_is_not_gpu_time() -> None:
    """Each rank computes from 0 to 50 us. An all-reduce runs on rank 0 from 40 to 100 us, and on rank 1 from 80 to 100 us."""
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(2)])
    add = trace.strings.add
    gemm, nccl, operation, group = add("gemm"), add("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), add("all_reduce"), add("0")
    trace.device = DeviceSpans.of(
        device=[0, 0, 1, 1], stream=[7, 20, 7, 20], kind=[DeviceKind.KERNEL] * 4, name=[gemm, nccl, gemm, nccl],
        start_ns=[0, 40 * US, 0, 80 * US], duration_ns=[50 * US, 60 * US, 50 * US, 20 * US],
    )  # fmt: skip
    trace.collectives = Collectives.of(
        rank=[0, 1], name=[operation] * 2, group=[group] * 2, start_ns=[40 * US, 80 * US], duration_ns=[60 * US, 20 * US]
    )
    assert busy_ns(trace) == (100 + 50 + 20) * US
    transfers_only = without_waits(trace)
    assert transfers_only.device.start_ns.tolist() == [0, 80 * US, 0, 80 * US]
    assert transfers_only.device.duration_ns.tolist() == [50 * US, 20 * US, 50 * US, 20 * US]
    # WHEN the end of rank 1's call is unknown THEN nothing shows how long rank 0 waited
    trace.collectives.ending[1] = Ending.UNSEEN
    assert without_waits(trace) is trace


def test_stragglers_of_eight_ranks(shared_traces: Path) -> None:
    found = stragglers(read_kineto(shared_traces / "a100_megatron_tp8"))
    assert {of.rank for of in found[:2]} == {0, 6} and sum(of.last for of in found) == 84


# --- the critical path ---


def test_critical_path_segments_have_no_gaps(real: Trace, shared_traces: Path) -> None:
    for trace in (real, training(), read_kineto(shared_traces / "h100_qwen05b_inference.json.gz")):
        end_ns = int(trace.steps.start_ns[0])
        for step in range(len(trace.steps)):
            path = critical_path(trace, step)
            assert path is not None and sum(path.sums.by_kind.values()) == path.sums.duration_ns
            assert path.segments[0].start_ns == end_ns
            assert all(a.end_ns == b.start_ns for a, b in pairwise(path.segments))
            end_ns = path.segments[-1].end_ns
            assert end_ns >= trace.steps.end_ns[step]


def test_a_kernel_that_the_host_waits_for_is_on_the_critical_path() -> None:
    """A gemm launched at 0 runs from 10 to 41, and another until 45. The host synchronizes from 5 to 46, then continues alone
    until 50."""
    trace = _two_streams("gemm", 41)
    trace.device = trace.device.take([0, 2])
    trace.device.duration_ns[:] = [31 * US, 4 * US]
    trace.strings.add("cudaStreamSynchronize")
    sync = HostSpans.of(
        thread=[0], kind=[HostKind.RUNTIME], name=[len(trace.strings) - 1], start_ns=[5 * US], duration_ns=[41 * US]
    )
    trace.host = HostSpans.concatenated([trace.host, sync])
    trace.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[50 * US])
    path = critical_path(trace)
    assert path is not None
    told = [(segment.kind, (segment.end_ns - segment.start_ns) // US) for segment in path.segments]
    # The call that launched the first gemm returned at 1.
    assert told == [("host", 1), ("launch", 9), ("kernel", 31), ("kernel", 4), ("host", 5)]
    assert path.sums.by_name == {"gemm": 35 * US}


# --- all of it ---


def test_a_trace_without_kernels_has_no_kernel_analyses() -> None:
    for trace in (Trace(), phase_grained(), load(find("p100x2-no-cudnn"))):
        of = analyse(trace)
        assert not of.idle and not of.launches and not of.achieved and of.critical_path is None


@pytest.mark.real_time
def test_a_million_spans_are_analysed_in_seconds() -> None:
    steps = 200
    trace = training(steps=steps)
    count = 1_000_000 // len(trace.device)
    length_ns = int(trace.steps.end_ns.max() - trace.steps.start_ns.min())
    host, device = trace.host, trace.device
    shift = np.repeat(np.arange(count), len(device)) * length_ns
    trace.device = DeviceSpans.concatenated([device] * count)
    trace.device.start_ns = trace.device.start_ns + shift
    trace.device.launch = trace.device.launch + np.repeat(np.arange(count), len(device)).astype("i4") * len(host)
    trace.host = HostSpans.concatenated([host] * count)
    trace.host.start_ns = trace.host.start_ns + np.repeat(np.arange(count), len(host)) * length_ns
    trace.host.parent = np.where(
        trace.host.parent >= 0, trace.host.parent + np.repeat(np.arange(count), len(host)) * len(host), -1
    ).astype("i4")
    of = analyse(trace)
    assert sum(row.calls for row in of.achieved) == len(trace.device) > 900_000
    assert sum(row.count for row in of.launches) == 5 * steps  # the others lie outside of the steps
    assert of.idle["cuda:0"].window_ns == steps * 100 * US
    assert (trace.device.kind == DeviceKind.KERNEL).any()


def test_the_critical_path_search_ends_with_kernels_of_zero_duration() -> None:
    # GIVEN kernels that take no time and begin together, as recordings of whole microseconds have them, none with a launch
    trace = training(steps=1)
    trace.device.duration_ns[:] = 0
    trace.device.launch[:] = NONE
    trace.device.start_ns[1:] = trace.device.start_ns[1]
    path = critical_path(trace)
    assert path is not None
    assert sum(of.end_ns - of.start_ns for of in path.segments) == int(trace.steps.duration_ns[0])


def test_shapes_of_renamed_ops_are_written_in_the_same_order() -> None:
    image, weight, gradient = (32, 64, 56, 56), (256, 64, 1, 1), (32, 256, 56, 56)
    old = shapes_of_canonical("convolution_backward", (image, gradient, weight))
    assert old == shapes_of_canonical("convolution_backward", (gradient, image, weight)) == (gradient, image, weight)
    assert shapes_of_canonical("batch_norm", (image, (64,), (64,))) == (image,)
    # of others the order is the same everywhere, and says which is which
    assert shapes_of_canonical("mm", ((2, 8), (8, 4))) == ((2, 8), (8, 4))


def test_idle_time_of_clean_steps_is_computed_from_the_kernels_of_profiled_steps() -> None:
    """GIVEN profiled steps of 150 us, in which the GPU is busy for 50 us and idle for 20 us of data loading, 12 us of launch
    latency and 68 us of the host WHEN a clean step takes 100 us, with 13 us of data loading while the GPU has nothing to do
    THEN the host is the reason for the remaining 100 - 50 - 13 - 12 = 25 us."""
    trace = training(steps=8, jitter_us=(*[0] * 4, *[50] * 4))
    trace.device = trace.device.take(trace.device.start_ns >= trace.steps.start_ns[4])
    trace.steps.kind[:] = [StepKind.STEADY] * 4 + [StepKind.PROFILED] * 4
    of = idle_times(trace)["cuda:0"]
    assert (of.window_ns, of.busy_ns, of.steps) == (400 * US, 200 * US, 4)
    assert {reason: ns // 4 // US for reason, ns in of.by_reason.items() if ns} == {"data": 13, "host": 25, "launch": 12}
    summary = summarize(trace)
    assert summary.busy_shares == {"cuda:0": 0.5} and summary.bottleneck == PaceLimit("host", 25 * US, 0.25, copies_ns=10 * US)


def _clean_and_synchronized(extra_us: int, clean_stretch: float = 1.0) -> Trace:
    """Four clean steps and four profiled ones of 100 + `extra_us` us. In a profiled step, the GPU works from 27 to 47, from 57
    to 67 and from 87 to 97. The host waits for the kernel that ends at 67, and launches the next one at 83."""
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
        # A profiled step: 40 us busy, 20 data, 8 launch latency, 16 after the synchronization, 16 + 46 on the host. A clean
        # step of 100 us: 40 busy, 13 data, 8 launch latency. The other 39 us are split as 16 to 62.
        (46, 1.0, 100, {"data": 13, "launch": 8, "synchronization": 8, "host": 31}),
        # A clean step of 56 us: 40 busy, 13 data. Launch latency can take only the other 3 us.
        (46, 0.45, 56, {"data": 13, "launch": 3}),
        # A clean step of 44 us: data can take only the 4 us in which the GPU is idle.
        (46, 0.3, 44, {"data": 4}),
        # A clean step is never shorter than the GPU's work.
        (46, 0.2, 40, {}),
    ],
)
def test_idle_time_of_clean_steps_by_reason(
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


def test_waits_for_data_are_counted_per_rank() -> None:
    trace = data_parallel(steps=4)
    trace.batches.rank[1::2] = 1
    for rank in (0, 1):
        waits = data_waits(trace, rank)
        assert waits.start_ns.tolist() == (trace.steps.start_ns[rank::2] + US).tolist() and waits.total_ns == 2 * 2 * US
