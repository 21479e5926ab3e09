"""Tests that the indexer finds out why a recorded kernel started when it did, and when the recorded host was blocked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replayer.recording.indexer import RecordingIndexer
from replayer.recording.match_keys import RecordedKeys
from replayer.recording.recorded_run import RecordedRun
from replayer.recording.recorded_step import Kernel, KernelColumns, RecordedSegment, RecordedStep
from tests.goldens import assert_golden, in_short
from tests.replayer.recordings import US, Op, Stage, make_recording, recording_of
from tests.traces.crowded import crowded
from tests.traces.handmade import data_parallel, phase_grained, training
from traces.figures.measure import launch_steps
from traces.kineto import read_kineto
from traces.model.layouts import CHANNELS_LAST
from traces.model.trace import (
    NONE,
    UNKNOWN_LIST,
    Collectives,
    DeviceKind,
    DeviceSpans,
    HostKind,
    HostSpans,
    Phases,
    StepKind,
    Strings,
    Trace,
)


def _with_all_reduce(*, synchronizes: bool) -> Trace:
    """Return a kernel, an all-reduce of 5 ms on a separate stream, and an optimizer's kernel that waits for the all-reduce."""
    ops = [
        Op("aten::mm", 110, 10, kernel=(118, 50)),
        Op("nccl:all_reduce", 130, 10, kernel=(170, 5_000), stream=20),
        Op("aten::add_", 150 if not synchronizes else 5_200, 10, kernel=(5_175 if not synchronizes else 5_208, 10)),
    ]
    trace = make_recording([("backward", 100, 140), ("optimizer", 140, 5_300)], ops)
    kernel = trace.strings.add("ncclDevKernel_AllReduce_Sum_f32")
    trace.device.name[trace.device.stream == 20] = kernel
    trace.collectives = Collectives.of(
        rank=[0], name=[trace.strings.add("all_reduce")], bytes=[64], start_ns=[10_170 * US], duration_ns=[5_000 * US]
    )
    if synchronizes:
        columns = {name: [*column, column[-1]] for name, column in trace.host.columns().items()}
        columns["kind"][-1], columns["name"][-1] = 1, trace.strings.add("cudaDeviceSynchronize")
        columns["start_ns"][-1], columns["duration_ns"][-1], columns["parent"][-1] = 10_160 * US, 5_015 * US, -1
        trace.host = HostSpans.of(**columns)
    return trace


def _kernels(trace: Trace) -> dict[str, Kernel]:
    (step,) = RecordedRun(trace).steps
    return {trace.strings[kernel.name]: kernel for kernel in step.kernels}


def test_an_overlapping_kernel_counts_from_the_end_of_the_earlier_kernel() -> None:
    """GIVEN two kernels of 30 us on one stream, which overlap by 10 us THEN they count 30 us and 20 us, without a gap."""
    ops = [Op("aten::mm", 110, 5, kernel=(120, 30)), Op("aten::add_", 116, 5, kernel=(140, 30))]
    kernels = _kernels(make_recording([("forward", 100, 200)], ops))
    assert [kernel.duration_ns for kernel in kernels.values()] == [30 * US, 20 * US]
    assert kernels["kernel of aten::add_"].gap_ns == 0


def test_kernels_of_two_devices_may_overlap() -> None:
    ops = [Op("aten::mm", 110, 5, kernel=(120, 30)), Op("aten::add_", 116, 5, kernel=(140, 30), stream=1)]
    trace = make_recording([("forward", 100, 200)], ops)
    trace.devices.append(replace(trace.devices[0], index=1))
    trace.device.device[1] = 1
    assert [kernel.duration_ns for kernel in _kernels(trace).values()] == [30 * US, 30 * US]


def test_kernels_of_a_cuda_graph_are_issued_together() -> None:
    """GIVEN a launch of a CUDA graph with three kernels and gaps of 1 us THEN all kernels have the host time of the first
    kernel. A slower host does not increase the gaps."""
    kernels = [Op("", 110, 60, kernel=(120 + 11 * i, 10), launch_us=0, launch_host_us=60, shapes=()) for i in range(3)]
    trace = make_recording([("forward", 100, 200)], [Op("cudaGraphLaunch", 110, 60, shapes=(), children=kernels)])
    trace.device.launch[:] = trace.device.launch[0]
    (step,) = RecordedRun(trace).steps
    assert [(kernel.launch_ns - step.kernels[0].launch_ns, kernel.gap_ns) for kernel in step.kernels[1:]] == [(0, 1 * US)] * 2


@pytest.mark.parametrize(("clean_us", "gap_ns"), [(60, 1000), (51, 500), (40, 0)])
def test_gaps_in_a_cuda_graph_are_no_longer_than_without_the_profiler(clean_us: int, gap_ns: int) -> None:
    """GIVEN a profiled phase whose three kernels have gaps of 1 us WHEN the phase without the profiler takes 51 us on the GPU
    THEN only 1 us is left for both gaps."""
    kernels = [Op("", 10, 60, kernel=(20 + 11 * i, 10), launch_us=0, launch_host_us=60, shapes=()) for i in range(3)]
    graph = Op("cudaGraphLaunch", 10, 60, shapes=(), children=kernels)
    phases = [("forward", 0, 100)]
    trace = recording_of([(StepKind.PROFILED, phases, [graph]), (StepKind.STEADY, phases, [])])
    trace.device.launch[:] = trace.device.launch[0]
    trace.phases.device_start_ns[:] = trace.phases.start_ns
    trace.phases.device_end_ns[:] = trace.phases.start_ns + np.array([90, clean_us]) * US
    step = RecordedRun(trace).steps[0]
    assert [kernel.gap_ns for kernel in step.kernels[1:]] == [gap_ns] * 2


def _levels(*beside: Op) -> dict[str, list[tuple[int, ...]]]:
    """Return the kernels of each call, by op, for an addmm with three levels of nested ops. The second level also calls
    `beside`."""
    innermost = Op("aten::addmm", 112, 4, kernel=(113, 5))
    ops = [Op("aten::addmm", 110, 40, children=[Op("aten::addmm", 111, 38, children=[innermost, *beside])])]
    (step,) = RecordedRun(make_recording([("forward", 100, 200)], ops)).steps
    named = step.segments["forward", 0].named
    return {key.partition("|")[0]: [one.kernels for one in instances] for key, instances in named.items()}


def test_a_recursive_op_owns_only_the_kernels_that_it_launches_itself() -> None:
    """GIVEN an addmm that calls itself, and two matrix products for its derivative THEN each call of addmm has one kernel. The
    products keep their kernels. Forward-mode autograd calls ops in this way."""
    products = [Op("aten::mm", 120, 4, kernel=(121, 6)), Op("aten::mm", 130, 4, kernel=(131, 7))]
    assert _levels(*products) == {"addmm": [(0,), (0,), (0,)], "mm": [(1,), (2,)]}


def test_an_op_that_fills_its_result_and_calls_itself_has_all_kernels_inside_it() -> None:
    fills = [Op("aten::zeros", 120, 4, kernel=(121, 6)), Op("aten::copy_", 130, 4, kernel=(131, 7))]
    assert _levels(*fills)["addmm"] == [(0, 1, 2), (0, 1, 2), (0,)]


def test_a_copy_that_a_hook_makes_does_not_belong_to_the_surrounding_op() -> None:
    """GIVEN a hook that copies a tensor to the host inside an op THEN this copy does not belong to the op. A copy to the host
    by `aten::to` belongs to `aten::to`."""
    saved = Op("aten::copy_", 112, 5, kernel=(120, 10))
    moved = Op("aten::copy_", 152, 5, kernel=(160, 10))
    ops = [
        Op("aten::addmm", 110, 20, kernel=(130, 10), launch_us=10, children=[saved]),
        Op("aten::to", 150, 10, children=[moved]),
    ]
    trace = make_recording([("forward", 100, 200)], ops)
    copies = trace.device.name == trace.strings.find("kernel of aten::copy_")
    trace.device.kind[copies] = DeviceKind.MEMCPY
    trace.device.name[copies] = trace.strings.add("Memcpy DtoH (Device -> Pinned)")
    (step,) = RecordedRun(trace).steps
    segment = step.segments["forward", 0]
    kernels = {one.start_ns // US: list(one.kernels) for instances in segment.exact.values() for one in instances}
    assert kernels == {10: [1], 12: [0], 50: [2], 52: [2]}


def test_a_copy_that_also_converts_the_dtype_is_matched_by_its_direction() -> None:
    converted = Op("aten::copy_", 110, 20, kernel=(120, 5), children=[Op("aten::to", 112, 5, kernel=(130, 10))])
    trace = make_recording([("forward", 100, 200)], [converted])
    trace.device.kind[0], trace.device.name[0] = DeviceKind.MEMCPY, trace.strings.add("Memcpy HtoD (Pinned -> Device)")
    (step,) = RecordedRun(trace).steps
    assert "aten::copy_|4,4|float32|h2d" in step.segments["forward", 0].exact


def test_the_main_stream_has_the_kernels_of_the_most_ops() -> None:
    """GIVEN two ops on stream 7, and one op with four kernels on stream 20 THEN stream 7 is the main stream."""
    on_20 = [Op("aten::lstm", 130 + 10 * i, 5, kernel=(140 + 10 * i, 5), stream=20) for i in range(4)]
    ops = [Op("aten::mm", 110, 5, kernel=(120, 5)), *on_20, Op("aten::add_", 180, 5, kernel=(190, 5))]
    trace = make_recording([("forward", 100, 200)], ops)
    launches = trace.device.launch[trace.device.stream == 20]
    trace.host.parent[launches] = trace.host.parent[launches[0]]
    assert [kernel.stream for kernel in RecordedRun(trace).steps[0].kernels] == [NONE, 20, 20, 20, 20, NONE]


@pytest.mark.parametrize(
    ("wait_us", "edges"),
    [
        (None, [NONE, NONE, NONE, NONE]),  # Without a wait, each kernel begins when it is launched.
        (150, [NONE, NONE, 0, NONE]),  # Of the kernels launched before the wait, mm ends last.
        (112, [NONE, NONE, NONE, NONE]),  # No kernel was launched before the wait.
        (180, [NONE, NONE, NONE, NONE]),  # Stream 20 has no later kernel.
    ],
)
@pytest.mark.parametrize("mm_us", [9, 40])
def test_the_kernel_after_a_stream_wait_event_waits_for_the_other_stream(
    wait_us: int | None, edges: list[int], mm_us: int
) -> None:
    """The mm kernel takes 9 us or 40 us. The kernel of 40 us ends when the waiting kernel begins."""
    ops = [
        Op("aten::mm", 120, 5, kernel=(128, mm_us)),
        Op("aten::relu", 130, 5, kernel=(138, 4), stream=20),
        Op("aten::add", 160, 5, kernel=(168, 4), stream=20),
        Op("aten::mul", 190, 5, kernel=(198, 4)),
    ]
    trace = make_recording([("forward", 100, 210)], ops)
    if wait_us is not None:
        call = trace.strings.add("cudaStreamWaitEvent")
        at_ns = (10_000 + wait_us) * US
        row = HostSpans.of(thread=[0], kind=[HostKind.RUNTIME], name=[call], start_ns=[at_ns], duration_ns=[US], parent=[NONE])
        trace.host = HostSpans.concatenated([trace.host, row])
        name = trace.strings.add("Stream Wait Event")
        sync = DeviceSpans.of(
            device=[0], stream=[20], kind=[DeviceKind.SYNC], name=[name], start_ns=[at_ns], duration_ns=[500],
            launch=[len(trace.host) - 1],
        )  # fmt: skip
        trace.device = DeviceSpans.concatenated([trace.device, sync])
    kernels = RecordedRun(trace).steps[0].kernels
    assert [kernel.edge for kernel in kernels] == edges
    assert all(kernel.edge_gap_ns == kernel.gap_ns for kernel in kernels if kernel.edge != NONE)


@pytest.mark.parametrize(("begin_us", "edge"), [(420, 1), (445, 1), (446, NONE)])
def test_a_kernel_of_another_stream_explains_a_delay_of_at_most_25_us(begin_us: int, edge: int) -> None:
    """GIVEN a kernel that ends at 420 us on one stream WHEN a kernel on another stream, launched long before, starts up to 25
    us later THEN the second kernel waited for the first."""
    ops = [
        Op("aten::add", 110, 5, kernel=(112, 5), stream=20),
        Op("aten::mm", 118, 5, kernel=(120, 300)),
        Op("aten::mul", 130, 5, kernel=(begin_us, 5), stream=20),
    ]
    kernels = RecordedRun(make_recording([("forward", 100, 500)], ops)).steps[0].kernels
    assert [kernel.edge for kernel in kernels] == [NONE, NONE, edge]
    assert kernels[2].edge_gap_ns == (0 if edge == NONE else (begin_us - 420) * US)


@pytest.mark.parametrize(
    ("before_us", "begin_us", "edge"),
    [
        (117, 172, NONE), (117, 173, 1),  # The launch at 132 us explains a delay of up to 40 us.
        (280, 300, NONE), (279, 300, 1),  # The previous kernel on the same stream explains a delay of up to 20 us.
    ],
)  # fmt: skip
def test_a_delay_due_to_launch_or_queue_is_not_a_stream_wait(
    before_us: int, begin_us: int, edge: int
) -> None:
    """GIVEN a kernel of another stream that ends 1 us before a kernel starts WHEN the launch or the queue explains this start
    THEN the kernel did not wait for the other stream."""
    ops = [
        Op("aten::add", 110, 5, kernel=(112, before_us - 112), stream=20),
        Op("aten::mm", 118, 5, kernel=(120, begin_us - 121)),
        Op("aten::mul", 130, 5, kernel=(begin_us, 5), stream=20),
    ]
    kernels = RecordedRun(make_recording([("forward", 100, 500)], ops)).steps[0].kernels
    assert [kernel.edge for kernel in kernels] == [NONE, NONE, edge]


@pytest.mark.parametrize(("gaps", "usual_ns"), [(19, 1_000), (20, 0)])
def test_the_usual_kernel_gap_is_known_from_twenty_consecutive_kernels(gaps: int, usual_ns: int) -> None:
    """GIVEN twenty kernels without gaps between them WHEN the GPU is idle before another kernel THEN that kernel gets the same
    gap. With fewer kernels, the usual gap is 1 us."""
    queued = [Op("aten::add", 110 + number, 1, kernel=(120 + 10 * number, 10)) for number in range(gaps + 1)]
    ops = [*queued, Op("aten::mm", 600, 5, kernel=(605, 5))]
    kernels = RecordedRun(make_recording([("forward", 100, 700)], ops)).steps[0].kernels
    assert [kernel.gap_ns for kernel in kernels] == [usual_ns, *[0] * gaps, usual_ns]


@pytest.mark.parametrize(("launches", "is_usual"), [(19, False), (20, True)])
def test_the_usual_launch_latency_is_known_from_twenty_launches_on_an_idle_gpu(launches: int, is_usual: bool) -> None:
    ops = [Op("aten::mm", 100 + 20 * number, 5, kernel=(110 + 20 * number, 4)) for number in range(launches)]
    trace = make_recording([("forward", 100, 700)], ops)
    indexer = RecordingIndexer(trace, 0, RecordedKeys(trace))
    assert (indexer.latency_ns == 9 * US) is is_usual


def test_the_wait_for_a_collective_is_not_part_of_a_kernel_gap() -> None:
    kernels = _kernels(_with_all_reduce(synchronizes=False))
    assert list(kernels) == ["kernel of aten::mm", "kernel of aten::add_"]
    assert kernels["kernel of aten::add_"].gap_ns < 10 * US
    # The kernel has no recorded wait, because a replay computes when the collective ends.
    assert kernels["kernel of aten::add_"].edge == NONE


def test_the_wait_for_a_collective_on_the_same_stream_is_not_part_of_a_launch() -> None:
    """GIVEN a collective and other kernels on one stream WHEN the next kernel is launched during the collective THEN its
    recorded delay is not replayed. Replays compute when the collective ends."""
    trace = _with_all_reduce(synchronizes=False)
    trace.device.stream[:] = 7
    kernel = _kernels(trace)["kernel of aten::add_"]
    assert kernel.gap_ns < 10 * US and kernel.latency_ns < 20 * US


def test_host_time_excludes_the_wait_for_a_collective() -> None:
    stage = Stage(_with_all_reduce(synchronizes=True))
    segment = stage.recording.steps[0].segments["optimizer", 0]
    assert 140 * US < segment.host_ns < 160 * US  # Of the recorded 5 160 us, the host waited for 5 010 us.


def test_a_slow_rank_has_longer_gpu_work_but_unchanged_host_time() -> None:
    """The rank is 1.2 times as slow, so two kernels of 50 us and 10 us take longer. Other ranks determine the time of the
    all-reduce."""
    trace = _with_all_reduce(synchronizes=False)
    usual, slow = (RecordedRun(trace, 0, slowdown) for slowdown in (1.0, 1.2))
    assert [kernel.duration_ns for kernel in slow.steps[0].kernels] == [60 * US, 12 * US]
    assert [(of.launch_ns, of.gap_ns) for of in slow.steps[0].kernels] == [
        (of.launch_ns, of.gap_ns) for of in usual.steps[0].kernels
    ]
    hosts = [[segment.host_ns for segment in run.steps[0].segments.values()] for run in (usual, slow)]
    assert hosts[0] == hosts[1]


def test_unrecorded_ops_are_slower_on_a_slow_rank() -> None:
    trace = _with_all_reduce(synchronizes=False)
    shapes = ((512, 512), (512, 512))
    usual, slow = (RecordedRun(trace, 0, slowdown).costs.estimate("mm", shapes, "float32") for slowdown in (1, 2))
    assert slow.ns == 2 * usual.ns


def partly_profiled() -> Trace:
    """Return a recording whose phases have CUDA event times in every step. Only the second step and the last step have
    kernels."""
    trace = training(jitter_us=(0, 3))
    trace.steps.kind[[1, -1]] = StepKind.PROFILED
    for row in range(len(trace.phases)):
        trace.phases.device_start_ns[row] = trace.phases.start_ns[row] + 40_000
        trace.phases.device_end_ns[row] = trace.phases.end_ns[row] + 90_000
    kept = np.isin(launch_steps(trace), [1, len(trace.steps) - 1])
    trace.device = trace.device.take(kept)
    return trace


def without_steps() -> Trace:
    trace = training(jitter_us=(0, 3))
    trace.steps, trace.phases = trace.steps.take([]), trace.phases.take([])
    return trace


GOLDEN = Path(__file__).with_name("golden")
HANDMADE: dict[str, Callable[[], Trace]] = {
    "training": lambda: training(jitter_us=(0, 3)),
    "phase_grained": phase_grained,
    "data_parallel": data_parallel,
    "partly_profiled": partly_profiled,
    "without_steps": without_steps,
    "crowded": lambda: crowded(seed=1),
    "crowded_longer": lambda: crowded(seed=2, steps=12),
}


def indexed(trace: Trace) -> str:
    """Return each step with its sums and first kernels. Each op has its number of calls and the sums of their times and
    kernels."""
    indexer = RecordingIndexer(trace, 0, RecordedKeys(trace))
    steps = indexer.recorded_steps()
    found: dict[str, Any] = {"steps": len(steps), "launch queue": indexer.launch_queue_depth, "latency": indexer.latency_ns}
    found |= {f"step {number}": _step(step) for number, step in enumerate(steps[:3])}
    return in_short(found)


def _step(step: RecordedStep) -> dict[str, Any]:
    columns = KernelColumns.of(step.kernels)._asdict() if step.kernels else {}
    kernels = {name: [int(column.sum()), *column[:8].tolist()] for name, column in columns.items()}
    segments = {f"{name} {number}": _segment(segment) for (name, number), segment in step.segments.items()}
    return {"kind": step.kind, "row": step.row, "kernels": kernels, **segments}


def _segment(segment: RecordedSegment) -> dict[str, Any]:
    figures = {name: getattr(segment, name) for name in ("host_ns", "wait_ns", "device_ns", "beside_ns", "work_ns", "kernels")}
    ops = {
        key: [
            len(calls),
            *(sum(getattr(call, name) for call in calls) for name in ("start_ns", "end_ns", "after_wait_ns")),
            sum(sum(call.kernels) for call in calls),
        ]
        for key, calls in [*segment.exact.items()][:12]
    }
    others = {f"lane {ordinal}": _segment(lane) for ordinal, lane in segment.lanes.items()}
    named = {"stages": segment.stages, "below ops": segment.below_ops, "equivalent": list(segment.equivalent)}
    return figures | {name: value for name, value in named.items() if value} | ops | others


@pytest.mark.parametrize("name", HANDMADE)
def test_indexed_steps_of_handmade_recordings_equal_the_golden_files(name: str) -> None:
    assert_golden(GOLDEN / f"{name}.txt", indexed(HANDMADE[name]()))


@pytest.mark.parametrize(
    "name",
    [
        "a100_event_sync_multi_stream",
        "a100_particle_fwd_bs32",
        "gpu_graph_vllm_decode",
        "h100_transformer_toy",
        "mi250_minitoy",
    ],
)
def test_indexed_steps_of_real_recordings_equal_the_golden_files(name: str, shared_traces: Path) -> None:
    assert_golden(GOLDEN / f"{name}.txt", indexed(read_kineto(shared_traces / f"{name}.json.gz")))


Recorded = tuple[str, str | None, str | None, str | None]  # The name, shapes, dtypes and layout of an op.


def keys_of(*calls: Recorded) -> RecordedKeys:
    """Return the op signatures of a recording of these ops. The op's shapes, dtypes and layouts are the first texts of the
    recording."""
    strings = Strings()
    numbers = [
        [NONE if text is None else strings.add(text) for text in (shapes, dtypes, layout)]
        for _, shapes, dtypes, layout in calls
    ]
    shapes, dtypes, layouts = ([row[i] for row in numbers] for i in range(3))
    names = [strings.add(name) for name, *_ in calls]
    host = HostSpans.of(kind=[HostKind.OP] * len(calls), name=names, shapes=shapes, dtypes=dtypes, layout=layouts)
    return RecordedKeys(Trace(host=host, strings=strings))


SQUARE = ((4, 4),)


def test_indices_without_recorded_shapes_are_not_compared() -> None:
    """The recording has calls of index and index_put_, with or without the shapes of the indices."""
    for indices, index, put in (("", "20", "20;1"), (";16", "20;16", "20;16;1")):
        recorded = [("aten::index", f"20{indices}", "float32", None), ("aten::index_put_", f"20{indices};1", "float32", None)]
        keys = keys_of(*recorded)
        assert keys.of_op("aten::index", ((20,), (16,)), "float32").exact == f"aten::index|{index}|float32"
        assert keys.of_op("aten::index_put_", ((20,), (16,), (1,)), "float32").exact == f"aten::index_put_|{put}|float32"


@pytest.mark.parametrize(
    ("recorded", "exact"),
    [
        ([("aten::mm", "4,4", "float32", None)], "aten::mm|4,4|float32"),
        ([("aten::mm", "4,4", None, None)], "aten::mm|4,4|"),
        ([("aten::mm", None, "float32", None)], "aten::mm|?|float32"),
        # This mm was recorded without dtypes.
        ([("aten::add", "4,4", "float32", None), ("aten::mm", "4,4", None, None)], "aten::mm|4,4|"),
        ([("aten::add", "4,4", "float32", None), ("aten::mm", "4,4", ";int64", None)], "aten::mm|4,4|"),
        ([("aten::mm", "4,4", None, None), ("aten::add", "4,4", "float32", None)], "aten::mm|4,4|"),
        ([("aten::add", "4,4", "float32", None)], "aten::mm|4,4|float32"),  # The op mm was not recorded.
        ([("aten::add", "4,4", "float32", None), ("aten::mm", UNKNOWN_LIST, "float32", None)], "aten::mm|?|"),
    ],
)
def test_an_op_is_matched_by_the_properties_that_were_recorded(recorded: list[Recorded], exact: str) -> None:
    assert keys_of(*recorded).of_op("aten::mm", SQUARE, "float32").exact == exact


def test_an_addition_in_place_is_matched_like_any_addition() -> None:
    keys = keys_of(("aten::add_", "4,4", "float32", None))
    in_place, out_of_place = (keys.of_op(op, SQUARE, "float32") for op in ("aten::add_", "aten::add"))
    assert in_place == out_of_place


def test_a_list_of_tensors_without_shapes_is_matched_by_name() -> None:
    keys = keys_of(
        ("aten::mm", "4,4", "float32", None), ("aten::_foreach_add_", None, None, None), ("aten::empty", None, "", None)
    )
    assert keys.of_op("aten::_foreach_add_", SQUARE, "float32").exact == "aten::_foreach_add_|?|"
    # The op aten::empty takes no list of tensors.
    assert keys.of_op("aten::empty", SQUARE, "float32").exact == "aten::empty|4,4|float32"


@pytest.mark.parametrize(
    ("recorded", "layout", "exact"),
    [
        (CHANNELS_LAST, CHANNELS_LAST, "aten::mm|4,4|float32|" + CHANNELS_LAST),
        (CHANNELS_LAST, "", "aten::mm|4,4|float32"),
        (None, CHANNELS_LAST, "aten::mm|4,4|float32"),
    ],
)
def test_memory_layouts_are_compared_only_if_they_were_recorded(recorded: str | None, layout: str, exact: str) -> None:
    assert keys_of(("aten::mm", "4,4", "float32", recorded)).of_op("aten::mm", SQUARE, "float32", layout=layout).exact == exact


def test_copies_are_matched_by_direction_if_kernels_show_the_direction() -> None:
    keys = {direction: RecordedKeys(training()).of_op("aten::copy_", SQUARE, "float32", direction) for direction in ("", "h2d")}
    assert keys["h2d"].named == keys[""].named + "|h2d"
    plain = keys_of(("aten::copy_", "4,4", "float32", None))
    assert plain.of_op("aten::copy_", SQUARE, "float32", "h2d") == plain.of_op("aten::copy_", SQUARE, "float32")


@pytest.mark.parametrize(
    ("name", "gpus", "direction"),
    [
        ("Memcpy PtoP (Device -> Device)", 2, "|p2p"),
        ("Memcpy DtoD (Device -> Device)", 2, ""),
        ("CopyDeviceToDevice", 2, ""),
        ("Memcpy DtoD (Device -> Device)", 1, "|p2p"),  # Copies between GPUs were not recorded.
    ],
)
def test_copies_between_gpus_are_matched_even_if_named_like_copies_on_one_gpu(name: str, gpus: int, direction: str) -> None:
    trace = Trace()
    names = [trace.strings.add(text) for text in (name, "Memcpy HtoD (Pinned -> Device)")]
    trace.device = DeviceSpans.of(kind=[DeviceKind.MEMCPY] * 2, name=names, device=[0, gpus - 1])
    assert RecordedKeys(trace).of_op("aten::copy_", SQUARE, "", "p2p").named == "copy|" + direction


def test_the_common_time_of_overlapping_phases_counts_once() -> None:
    """GIVEN overlapping phases of one device THEN the time that two phases share counts only for the earlier phase. Phases of
    another device and phases without times change nothing."""
    trace = phase_grained(1)
    spans: list[tuple[int, int, int]] = [(0, 0, 50), (0, 10, 40), (1, 20, 60), (0, 45, 70), (2, NONE, NONE), (0, 90, 95)]
    trace.phases = Phases.of(
        step=[0] * 6,
        name=[trace.strings.add("forward")] * 6,
        start_ns=range(6),
        duration_ns=[1] * 6,
        device=[device for device, _, _ in spans],
        device_start_ns=[begin * US if begin != NONE else NONE for _, begin, _ in spans],
        device_end_ns=[end * US if end != NONE else NONE for _, _, end in spans],
    )
    indexer = RecordingIndexer(trace, 0, RecordedKeys(trace))
    own = [0, 1, 3, 5]
    assert (indexer.phase_device_ns[own] // US).tolist() == [50, 0, 20, 5]
    assert (indexer.phase_beside_ns[own] // US).tolist() == [0, 30, 5, 0]
    assert (indexer.phase_device_ns[[2, 4]]).tolist() == [40 * US, NONE]


@pytest.mark.parametrize(("without_launch", "are_from_before"), [(1, True), (2, False), (4, False)])
def test_missing_launches_were_made_before_the_recording_only_if_few_are_missing(
    without_launch: int, are_from_before: bool
) -> None:
    """A kernel without a recorded launch counts as launched 7 us before its start."""
    ops = [Op("aten::mm", 100 * number, 10, kernel=(100 * number + 50, 5)) for number in range(4)]
    trace = make_recording([("forward", 0, 500)], ops)
    trace.device.launch[:without_launch] = NONE
    indexer = RecordingIndexer(trace, 0, RecordedKeys(trace))
    assert int(indexer.launched_before.sum()) == (without_launch if are_from_before else 0)
    waited_ns = (trace.device.start_ns[indexer.work] - indexer.launched_ns).tolist()
    assert sorted(waited_ns) == [7 * US] * without_launch + [49 * US] * (4 - without_launch)


@pytest.mark.parametrize(("on_the_second", "first"), [(10, 0), (11, 1)])
def test_the_main_device_has_at_least_a_tenth_of_the_kernels(on_the_second: int, first: int) -> None:
    ops = [Op("aten::mm", 100 * number, 10, kernel=(100 * number + 50, 5)) for number in range(on_the_second + 1)]
    trace = make_recording([("forward", 0, 2_000)], ops)
    trace.devices = [trace.devices[0], replace(trace.devices[0], index=1)]
    trace.device.device[1:] = 1
    assert RecordingIndexer(trace, 0, RecordedKeys(trace)).first_ordinal == first


def test_phases_of_the_same_name_in_a_step_are_numbered_from_0() -> None:
    names = ("forward", "backward", "forward", "backward", "forward")
    phases = [(name, 100 + 10 * place, 110 + 10 * place) for place, name in enumerate(names)]
    (step,) = RecordedRun(make_recording(phases, [])).steps
    assert [*step.segments] == [("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1), ("forward", 2)]
