"""Compares measured figures with simple reference computations and with hand-made runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.handmade import START_NS, US, phase_grained, training
from traces.figures.measure import (
    WorkSum,
    backlog,
    busy_by_device,
    busy_by_stream,
    busy_ns,
    clean_evaluations,
    clean_steps,
    device_ranks,
    device_time_by_origin,
    evaluation_steps,
    gpu_names,
    gpus_per_rank,
    host_ranks,
    innermost_at,
    kernel_table,
    launch_phases,
    launch_steps,
    launch_time_ns,
    launches_without_work,
    memory_curve,
    memory_curves,
    memory_peaks,
    of_one_kind,
    op_of,
    op_table,
    own_graph_launches,
    passes_of_steps,
    phase_busy_ns,
    phase_times,
    profiled_steps,
    ran_under_profiler,
    steady_steps,
    window_ns,
    work_in_launch_order,
    work_of_steps,
)
from traces.figures.phase_medians import phase_medians
from traces.kineto import read_kineto
from traces.model.intervals import Intervals
from traces.model.result_cache import result_cache
from traces.model.row_order import by_value
from traces.model.run import ProfilerUse, Run
from traces.model.trace import (
    NONE,
    Column,
    Device,
    DeviceKind,
    DeviceSpans,
    HostKind,
    HostSpans,
    MemoryEvents,
    Origin,
    StepKind,
    Steps,
    Thread,
    Trace,
)

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


@given(spans, spans)
def test_busy_time_is_the_number_of_nanoseconds_covered_by_kernels(
    intervals: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    # GIVEN intervals in any order, some of which overlap, touch or are empty
    busy = Intervals([s for s, _ in intervals], [s + d for s, d in intervals])
    # WHEN the intervals are compared with the set of nanoseconds that they cover
    covered = {ns for start, duration in intervals for ns in range(start, start + duration)}
    # THEN the total and the time within each window agree with the set, and the merged intervals do not touch
    assert busy.total_ns == len(covered)
    expected = [len(covered & set(range(s, s + d))) for s, d in windows]
    assert busy.within([s for s, _ in windows], [s + d for s, d in windows]).tolist() == expected
    assert (busy.start_ns[1:] > busy.end_ns[:-1]).all()


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 30), st.integers(0, 9), st.integers(0, 4))))
def test_busy_time_counts_work_on_each_device_separately(rows: list[tuple[int, int, int, int, int]]) -> None:
    names = ("device", "stream", "start_ns", "duration_ns", "kind")
    trace = Trace(device=DeviceSpans.of(**{name: [row[i] for row in rows] for i, name in enumerate(names)}))
    covered = {
        (d, ns) for d, _, start, length, kind in rows if kind <= DeviceKind.MEMSET for ns in range(start, start + length)
    }
    assert busy_ns(trace) == len(covered)
    by_stream = {(d, s, ns) for d, s, start, n, kind in rows if kind <= DeviceKind.MEMSET for ns in range(start, start + n)}
    assert sum(busy.total_ns for busy in busy_by_stream(trace).values()) == len(by_stream)


def test_an_empty_trace_has_no_figures() -> None:
    trace = Trace()
    assert busy_ns(trace) == 0
    assert window_ns(trace) == (0, 0)
    assert not phase_times(trace) and not kernel_table(trace) and not op_table(trace) and not memory_peaks(trace)
    assert not len(op_of(trace)) and not len(launch_steps(trace))


def test_the_time_range_of_a_trace_covers_the_events_of_every_table() -> None:
    """GIVEN an op that begins before the step, and a kernel that ends after the step THEN the window includes both."""
    trace = training(steps=1)
    begin_ns, end_ns = int(trace.steps.start_ns[0]), int(trace.steps.end_ns[0])
    assert window_ns(trace) == (begin_ns, end_ns)
    trace.host.start_ns[0] = begin_ns - 7
    trace.device.duration_ns[-1] = end_ns + 5 - int(trace.device.start_ns[-1])
    assert window_ns(trace) == (begin_ns - 7, end_ns + 5)
    trace.steps, trace.phases = trace.steps.take([]), trace.phases.take([])
    assert window_ns(trace) == (begin_ns - 7, end_ns + 5)


def test_phases_fill_the_step() -> None:
    trace = training(steps=3, loader_us=50, jitter_us=(0, 4, 8))
    times = phase_times(trace)
    assert list(times) == ["loader", "h2d", "forward", "loss", "backward", "optimizer"]
    assert np.array_equal(sum(t.host_ns for t in times.values()), trace.steps.duration_ns)
    assert times["loader"].device_ns is None
    forward = times["forward"].device_ns
    assert forward is not None and forward.tolist() == [27 * US] * 3


def test_a_phase_without_cuda_events_has_an_unknown_gpu_time() -> None:
    """GIVEN four steps WHEN two of them have no CUDA events in the forward pass THEN the median GPU time of the forward pass is
    the median of the other two steps."""
    trace = training(steps=4)
    rows = np.flatnonzero(trace.phases.name == trace.strings.find("forward"))
    trace.phases.device_end_ns[rows[2:]] += 4 * US
    trace.phases.device_start_ns[rows[:2]] = trace.phases.device_end_ns[rows[:2]] = NONE
    steps = np.arange(4)
    assert phase_medians(trace, steps, steps)["forward"].device_median_ns == 31 * US
    assert phase_medians(trace, steps[:2], steps)["forward"].device_median_ns is None
    assert phase_medians(trace, steps[:2], steps)["backward"].device_median_ns is not None


def test_repeated_phases_of_a_step_are_summed_and_missing_ones_are_zero() -> None:
    # GIVEN two steps WHEN the first step has two loss phases and the second step has none
    trace = training(steps=2)
    loss, forward = trace.strings.find("loss"), trace.strings.find("forward")
    rows = np.flatnonzero(trace.phases.name == loss)
    trace.phases.name[rows[1]] = forward
    trace.phases.name[rows[0] - 1] = loss
    assert phase_times(trace)["loss"].host_ns.tolist() == [30 * US, 0]
    assert phase_times(trace)["forward"].host_ns.tolist() == [0, 30 * US]


@pytest.mark.parametrize(("second_gpu", "busy_us"), [(False, 10), (True, 20)])
def test_gpu_busy_time_of_a_phase_is_the_sum_over_gpus_without_overlaps(second_gpu: bool, busy_us: int) -> None:
    """GIVEN two steps with a kernel of 10 us in each phase WHEN the loss kernel of the first step runs in the forward pass, at
    the same time as the other kernel there THEN the forward pass is busy for 10 us, or for 20 us with two GPUs."""
    trace = training(steps=2)
    trace.devices.append(replace(trace.devices[0], index=1))
    kernels = (trace.strings.find(name) for name in ("volta_sgemm_nn", "softmax"))
    forward, loss = (int(np.flatnonzero(trace.device.name == kernel)[0]) for kernel in kernels)
    trace.device.device[loss] = second_gpu
    for column in (trace.device.start_ns, trace.device.launch):
        column[loss] = column[forward]
    found = {name: (busy_ns // US).tolist() for name, busy_ns in phase_busy_ns(trace).items()}
    usual = {name: [10, 10] for name in ("h2d", "backward", "optimizer")}
    assert found == usual | {"loader": [0, 0], "forward": [busy_us, 10], "loss": [0, 10]}


def test_gpu_work_belongs_to_the_step_and_phase_in_which_it_was_launched() -> None:
    # GIVEN kernels that all start one step later than they were launched
    trace = training(steps=3)
    trace.device.start_ns += 100 * US
    # THEN each kernel belongs to the step of its launch. A kernel without a launch belongs to the step of the nearest kernel.
    # A kernel that comes before all work with a known launch on its stream was launched before the recording: it has no step.
    assert launch_steps(trace).tolist() == [s for s in range(3) for _ in range(5)]
    names = [trace.strings[int(trace.phases.name[row])] for row in launch_phases(trace)[:5]]
    assert names == ["h2d", "forward", "loss", "backward", "optimizer"]
    trace.device.launch[[0, 2, 14]] = NONE
    assert launch_steps(trace)[[0, 2, 14]].tolist() == [NONE, 0, NONE]
    names = [trace.strings[int(trace.phases.name[row])] for row in launch_phases(trace)[[1, 2, 3]]]
    assert launch_phases(trace)[0] == NONE and names == ["forward", "backward", "backward"]


def test_gpu_work_without_a_launch_belongs_to_the_step_in_which_it_starts() -> None:
    """GIVEN kernels that start right after their launches WHEN the launch of the third kernel is unknown THEN the kernel
    belongs to the step and the phase in which it starts."""
    trace = training(steps=2)
    trace.device.launch[2] = NONE
    assert launch_time_ns(trace)[2] == trace.device.start_ns[2]
    names = [trace.strings[int(trace.phases.name[row])] for row in launch_phases(trace)[[1, 2, 3]]]
    assert launch_steps(trace)[2] == 0 and names == ["forward", "loss", "backward"]


@pytest.mark.parametrize(("share", "step"), [(0.4, 0), (0.6, 1)])
def test_late_gpu_work_without_a_launch_belongs_to_the_step_of_the_nearest_known_launch(share: float, step: int) -> None:
    """GIVEN kernels that start long after their launches WHEN the launch of the first kernel of the second step is unknown
    THEN the kernel belongs to the step of the previous or the next kernel, depending on which of the two starts nearer."""
    trace = training(steps=2)
    trace.device.start_ns += 1000 * US
    trace.device.launch[5] = NONE
    before_ns, after_ns = trace.device.start_ns[[4, 6]].tolist()
    trace.device.start_ns[5] = before_ns + (after_ns - before_ns) * share
    assert launch_steps(trace)[5] == step


@pytest.mark.parametrize("figure", [launch_time_ns, launch_steps, work_in_launch_order])
def test_figures_of_launches_are_computed_once_per_command(figure: Callable[[Trace], Column]) -> None:
    """Many other figures use these figures, so computing them again would make the commands slow."""
    trace = training(steps=2)
    trace.device.launch[2] = NONE
    with result_cache():
        assert figure(trace) is figure(trace)


def test_gpu_work_of_steps_has_a_known_launch() -> None:
    trace = training(steps=2)
    trace.device.launch[:3] = [NONE, 0, NONE]
    launch = trace.device.launch.tolist()
    for steps, rows in (([0], [1, 3, 4]), ([1], [5, 6, 7, 8, 9]), ([], [1, 3, 4, 5, 6, 7, 8, 9])):
        found, calls = work_of_steps(trace, np.array(steps, dtype=np.int64))
        assert (found.tolist(), calls.tolist()) == (rows, [launch[row] for row in rows])


def test_the_inner_and_outer_op_of_a_launch_are_found() -> None:
    trace = training(steps=2)
    inner = [trace.strings[int(trace.host.name[row])] for row in op_of(trace)[:5]]
    outer = [trace.strings[int(trace.host.name[row])] for row in op_of(trace, outermost=True)[:5]]
    assert inner == [
        "aten::copy_",
        "aten::cudnn_convolution",
        "aten::_log_softmax",
        "ConvolutionBackward0",
        "aten::add_",
    ]
    assert outer == ["aten::to", "aten::conv2d", "aten::cross_entropy_loss", "ConvolutionBackward0", "aten::add_"]
    # WHEN a span of a damaged table is its own ancestor THEN the search for the op ends
    trace.host.parent[:] = np.arange(len(trace.host))
    assert (op_of(trace) == NONE).all()


def test_kernel_and_op_tables_add_up_calls_and_times() -> None:
    trace = training(steps=3)
    trace.device.duration_ns[1::5] = 50 * US
    assert kernel_table(trace)[0] == WorkSum("volta_sgemm_nn", 3, 150 * US)
    # WHEN the convolution launches a second kernel THEN its call is still counted once
    trace.device.launch[2] = trace.device.launch[1]
    conv = {w.name: w for w in op_table(trace, outermost=True)}["aten::conv2d"]
    assert (conv.count, conv.device_ns) == (3, 160 * US)


def test_memory_peaks_are_computed_from_allocations_if_totals_are_missing() -> None:
    assert memory_peaks(training())[0].peak_allocated_bytes == 3 << 20
    assert memory_peaks(training())[0].source == "recorded"
    # GIVEN events without totals WHEN 300 bytes from before the recording are freed and later 100 + 200 bytes are allocated
    bare = Trace(memory=MemoryEvents.of(device=[0] * 4, time_ns=[4, 1, 2, 3], bytes=[200, -300, 100, -50]))
    peak = memory_peaks(bare)[0]
    assert (peak.peak_allocated_bytes, peak.peak_reserved_bytes, peak.source) == (300, None, "summed")


def test_the_memory_peak_of_chosen_steps_counts_only_totals_in_these_steps() -> None:
    """GIVEN device 0 with recorded totals in both steps WHEN the peak of the second step is computed THEN only totals of the
    second step count. For devices without totals in this step, all events of the device count."""
    start_ns = [1, 2, 11, 12, 1, 2, 21]
    trace = Trace(
        devices=[Device(0, 0, "GPU"), Device(1, 0, "GPU"), Device(2, 0, "GPU")],
        steps=Steps.of(rank=[0, 0], number=[5, 6], start_ns=[0, 10], duration_ns=[10, 10]),
        memory=MemoryEvents.of(
            device=[0, 0, 0, 0, 1, 1, 2], time_ns=start_ns, bytes=[70, 20, -60, 5, 30, -10, 8],
            allocated_bytes=[70, 90, 30, 35, NONE, NONE, 8], reserved_bytes=[100, 110, 120, 115, NONE, NONE, 64],
        ),
    )  # fmt: skip
    peaks = memory_peaks(trace, np.array([1]))
    found = {device: (of.peak_allocated_bytes, of.peak_reserved_bytes) for device, of in peaks.items()}
    assert found == {0: (35, 120), 1: (30, None), 2: (8, 64)}
    assert memory_peaks(trace)[0].peak_allocated_bytes == 90


def test_origins_of_times_are_weighted_by_gpu_time_if_kernels_were_recorded() -> None:
    trace = training(steps=2)
    trace.device.origin[:5] = Origin.EXACT
    trace.device.launch[9] = NONE
    trace.device.start_ns[9] = START_NS - 5
    assert device_time_by_origin(trace) == {Origin.EXACT: 50 * US, Origin.MEASURED: 40 * US}
    assert device_time_by_origin(phase_grained(1)) == {Origin.PUBLISHED: (17 + 27 + 17 + 27 + 27) * US}
    # Warm-up steps count only if there are no other steps. Each step of this trace has 50 us of GPU time.
    trace = training(steps=2)
    trace.steps.kind[0] = StepKind.WARMUP
    assert device_time_by_origin(trace) == {Origin.MEASURED: 50 * US}
    trace.steps.start_ns[:] = trace.steps.end_ns.max()  # all steps begin at the same time, after all work has ended
    assert sum(device_time_by_origin(trace).values()) == int(trace.device.duration_ns[trace.device.is_work].sum())
    trace.steps.kind[1] = StepKind.WARMUP
    assert device_time_by_origin(trace) == {Origin.MEASURED: 100 * US}
    # A phase without recorded kernels is one row, which includes idle time. It counts only if no kernels were recorded.
    trace.device.name[0], trace.device.launch[0], trace.device.origin[0] = trace.strings.add("forward"), NONE, Origin.PHASE
    assert device_time_by_origin(trace) == {Origin.MEASURED: 90 * US}
    trace.device = trace.device.take([0, 1])
    trace.device.origin[1] = Origin.ROOFLINE
    assert device_time_by_origin(trace) == {Origin.PHASE: 10 * US, Origin.ROOFLINE: 10 * US}


def test_warm_up_steps_are_ignored_unless_there_are_no_other_steps() -> None:
    trace = training(steps=3)
    trace.steps.kind[0] = StepKind.WARMUP
    assert steady_steps(trace).tolist() == [1, 2]
    trace.steps.kind[:] = StepKind.WARMUP
    assert steady_steps(trace).tolist() == [0, 1, 2]


def test_figures_use_unprofiled_training_steps_before_profiled_or_evaluation_steps() -> None:
    trace = training(steps=4)
    kinds = StepKind.EVALUATION, StepKind.WARMUP, StepKind.PROFILED, StepKind.STEADY
    expected = {0: ([0], [0]), 1: ([1], [1]), 2: ([2], [2]), 3: ([3], [2])}
    for last, rows in expected.items():
        trace.steps.kind[:] = [*kinds[: last + 1], *[StepKind.EVALUATION] * (3 - last)]
        found = steady_steps(trace).tolist(), profiled_steps(trace).tolist()
        assert found == (rows if last else ([0, 1, 2, 3], [0, 1, 2, 3]))
    assert evaluation_steps(trace).tolist() == [0]
    assert (clean_steps(trace, trains=True).tolist(), clean_steps(trace, trains=False).tolist()) == ([3], [0])
    assert len(steady_steps(Trace())) == 0


def test_unprofiled_evaluation_steps_are_preferred_to_profiled_ones() -> None:
    """GIVEN a recording of inference WHEN step 1 ran under the profiler THEN the other steps are preferred. WHEN all steps ran
    under the profiler THEN all steps are used."""
    trace = phase_grained(steps=3)
    trace.steps.kind[:] = StepKind.EVALUATION
    (rank,) = trace.ranks
    trace.steps.number[:] = 0, 1, 2
    trace.runs[rank] = Run(profiler=ProfilerUse((1,)))
    assert ran_under_profiler(trace).tolist() == [False, True, False]
    assert steady_steps(trace).tolist() == [2]  # the profiler starts in step 0
    assert profiled_steps(trace).tolist() == [1]  # only step 1 has kernels
    trace.runs[rank] = Run(profiler=ProfilerUse((0, 1, 2)))
    assert steady_steps(trace).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("evaluates", "clean"), [(True, [2, 3, 4, 5, 6, 7]), (False, [0, 1, 2, 3, 4, 5, 6])])
def test_inference_steps_after_the_slow_first_ones_are_clean(evaluates: bool, clean: list[int]) -> None:
    """GIVEN eight evaluation steps, of which the first two compile code and the fourth is slow by chance WHEN the trace has no
    training step THEN the first two steps are left out."""
    trace = training(steps=8, jitter_us=(90_000, 9_000, 0, 5_000, 0, 0, 0, 0))
    trace.steps.kind[:] = StepKind.EVALUATION
    if not evaluates:
        trace.steps.kind[7] = StepKind.WARMUP
    assert clean_evaluations(trace).tolist() == clean


def test_step_times_use_steps_after_a_profile_only_if_no_other_steps_exist() -> None:
    trace = training(steps=4)
    trace.steps.kind[:] = StepKind.WARMUP, StepKind.STEADY, StepKind.PROFILED, StepKind.AFTER_PROFILE
    assert steady_steps(trace).tolist() == [1] and profiled_steps(trace).tolist() == [2]
    trace.steps.kind[1] = StepKind.WARMUP
    assert steady_steps(trace).tolist() == [3]


@pytest.mark.parametrize(("before", "clean"), [(6, [0, 1, 2, 3, 4]), (5, [0, 1, 2, 3, 6, 7])])
def test_evaluation_steps_after_a_profile_count_only_if_too_few_ran_before(before: int, clean: list[int]) -> None:
    """GIVEN 8 batches of inference on a GPU, of which one is profiled WHEN 5 clean batches ran earlier THEN later batches do
    not count. WHEN only 4 clean batches ran earlier THEN later batches count too. The profiler starts in the batch before the
    profiled batch."""
    trace = training(steps=8)
    trace.steps.kind[:] = StepKind.EVALUATION
    trace.steps.number[:] = range(8)
    (rank,) = trace.ranks
    assert len(trace.devices) == 1
    trace.runs[rank] = Run(profiler=ProfilerUse((before,)))
    assert clean_evaluations(trace).tolist() == steady_steps(trace).tolist() == clean
    # A profile without a GPU does not slow down later steps.
    trace.devices = []
    assert clean_evaluations(trace).tolist() == [row for row in range(8) if row not in (before - 1, before)]


@pytest.mark.parametrize(
    ("name", "busy_ms", "loading_ms"),
    [
        ("v100_resnet50_workers0", [89.4, 99.5, 97.8, 107.3, 94.9, 98.8], [68.7, 68.8, 73.4, 71.4, 70.8, 62.6]),
        ("v100_resnet50_workers4", [102.8, 100.4, 101.8, 104.7, 102.5, 94.5], [4.3, 0.1, 0.1, 1.3, 1.4, 1.4]),
    ],
)
def test_busy_and_loading_times_of_the_main_recordings_match_the_index(
    shared_traces: Path, name: str, busy_ms: list[float], loading_ms: list[float]
) -> None:
    trace = read_kineto(shared_traces / f"{name}.json.gz")
    (busy,) = busy_by_device(trace).values()
    assert (busy.within(trace.steps.start_ns, trace.steps.end_ns) / 1e6).tolist() == pytest.approx(busy_ms, abs=0.051)
    assert (phase_times(trace)["loader"].host_ns / 1e6).tolist() == pytest.approx(loading_ms, abs=0.15)


def test_the_memory_curve_has_the_allocated_bytes_after_each_event() -> None:
    trace = training()
    trace.memory = MemoryEvents.of(device=[0, 0, NONE, 0], time_ns=[20, 10, 15, 30], bytes=[-4, 4, 99, -6])
    # GIVEN more bytes freed than allocated THEN the difference was allocated before the recording
    curve = memory_curve(trace, 0)
    assert (curve.time_ns.tolist(), curve.allocated_bytes.tolist()) == ([10, 20, 30], [10, 6, 0])
    assert (curve.before_bytes, curve.source) == (6, "summed")
    # WHEN the events contain recorded totals THEN the curve consists of these totals
    trace.memory.allocated_bytes[:] = [7, 3, NONE, 1]
    assert memory_curve(trace, 0).allocated_bytes.tolist() == [3, 7, 1]
    assert memory_peaks(trace)[0].peak_allocated_bytes == 7


@pytest.mark.parametrize("outermost", [False, True])
def test_a_simple_search_finds_the_same_op_for_each_launch(outermost: bool) -> None:
    """Compares `op_of`, which doubles its stride, with a search that goes from parent to parent."""
    random = np.random.default_rng(0)
    for _ in range(100):
        rows = int(random.integers(0, 30))
        trace = Trace()
        parents = [int(random.integers(NONE, max(row + (random.random() < 0.1), 0))) for row in range(rows)]
        trace.host = HostSpans.of(kind=random.integers(0, 4, rows), parent=parents, name=[NONE] * rows)
        trace.device = DeviceSpans.of(launch=random.integers(NONE, rows, 20))
        walked = []
        for launch in trace.device.launch.tolist():
            row, found = launch, NONE
            while row >= 0:
                if trace.host.kind[row] == HostKind.OP:
                    found = row
                    if not outermost:
                        break
                row = trace.host.parent[row] if trace.host.parent[row] < row else NONE
            walked.append(found)
        assert op_of(trace, outermost=outermost).tolist() == walked


def test_each_device_has_a_memory_curve_of_its_own_events() -> None:
    """Device 0 allocates 4 bytes and frees 1. Device 2 allocates 5 bytes between these events. Device 1 has no events."""
    trace = Trace()
    trace.memory = MemoryEvents.of(time_ns=[10, 20, 30], device=[0, 2, 0], bytes=[4, 5, -1])
    curves = memory_curves(trace)
    assert {device: curve.allocated_bytes.tolist() for device, curve in curves.items()} == {0: [4, 3], 2: [5]}
    assert {device: peak.peak_allocated_bytes for device, peak in memory_peaks(trace).items()} == {0: 4, 2: 5}
    assert {value: rows.tolist() for value, rows in by_value(trace.memory.device).items()} == {0: [0, 2], 2: [1]}


def test_the_innermost_call_at_a_time_includes_its_first_and_last_nanosecond() -> None:
    host = HostSpans.of(start_ns=[0, 10, 30], duration_ns=[100, 10, 10], parent=[NONE, 0, 0])
    times = {-5: NONE, 0: 0, 9: 0, 10: 1, 20: 1, 21: 0, 30: 2, 40: 2, 41: 0, 100: 0, 101: NONE}
    assert innermost_at(host, np.arange(3), np.array(list(times))).tolist() == list(times.values())


@pytest.mark.parametrize("problem", ["lost-kernel", "unfinished-launch", "truncated-file"])
def test_launches_without_kernels_count_as_lost_only_if_the_profile_lost_kernels(problem: str) -> None:
    """GIVEN a launch with a kernel, a launch without a kernel, and a nested launch THEN only the launch without a kernel is
    counted. Ops and copies do not count."""
    trace = Trace(problems={problem: 1})
    names = ["cudaLaunchKernel", "cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync"]
    kinds = [HostKind.RUNTIME] * 3 + [HostKind.OP, HostKind.RUNTIME]
    trace.host = HostSpans.of(
        kind=kinds, name=[trace.strings.add(name) for name in names], start_ns=[0, 10, 12, 30, 40], duration_ns=[5, 9, 2, 5, 5],
        parent=[NONE, NONE, 1, NONE, NONE],
    )  # fmt: skip
    trace.device = DeviceSpans.of(launch=[0], name=[0], kind=[DeviceKind.KERNEL])
    assert launches_without_work(trace).tolist() == ([] if problem == "truncated-file" else [1])


def test_a_kernel_of_zero_duration_before_launched_work_predates_the_recording() -> None:
    trace = training(steps=1)
    trace.device.launch[0] = NONE
    trace.device.start_ns[0], trace.device.duration_ns[0] = trace.device.start_ns[1], 0
    assert backlog(trace).tolist() == [True, False, False, False, False]


def test_gpus_are_counted_by_rank_and_named_once() -> None:
    assert [gpu_names(names) for names in (["B", "A", "B"], ["A", ""], [])] == ["A, B", "A, an unnamed GPU", "no GPU"]
    # GIVEN two ranks with two GPUs each THEN idle GPUs count only if all GPUs are idle
    trace = Trace(devices=[Device(rank, index, "A") for rank in (0, 1) for index in (0, 1)])
    counts = []
    for working in ([0, 1, 2, 3], [0, 1, 2], [0, 2], []):
        trace.device = DeviceSpans.of(device=working, duration_ns=[1] * len(working))
        counts.append(gpus_per_rank(replace(trace)))
    assert counts == [2, 1, 1, 2] and gpus_per_rank(Trace()) == 1


def test_rows_belong_to_the_rank_of_their_thread_and_device() -> None:
    trace = Trace(devices=[Device(rank, 0, "A") for rank in (3, 5)], threads=[Thread(rank, 1, "main") for rank in (3, 5)])
    trace.host, trace.device = HostSpans.of(thread=[0, 1, 1]), DeviceSpans.of(device=[1, 0])
    assert (host_ranks(trace).tolist(), device_ranks(trace).tolist()) == ([3, 5, 5], [5, 3])
    assert host_ranks(Trace()).tolist() == device_ranks(Trace()).tolist() == []


def test_steps_with_different_numbers_of_backward_passes_or_updates_have_different_numbers() -> None:
    """GIVEN four training steps WHEN the third step has a second backward pass and the last step has no update THEN the numbers
    are the backward passes times 2**32, plus the updates."""
    trace = training(steps=4)
    names = trace.phases.name.reshape(4, -1)
    phase = {name: trace.strings.find(name) for name in ("loader", "backward", "optimizer")}
    names[2][names[2] == phase["loader"]] = phase["backward"]
    names[3][names[3] == phase["optimizer"]] = phase["loader"]
    assert passes_of_steps(trace).tolist() == [2**32 + 1, 2**32 + 1, 2 * 2**32 + 1, 2**32]


def test_steps_of_the_most_common_kind_are_kept() -> None:
    """GIVEN five steps, of which the last two have no optimizer update THEN only steps with an update are kept. WHEN all chosen
    steps of one list are without an update THEN the other list also has only these steps."""
    trace = phase_grained(5)
    is_update = trace.phases.name == trace.strings.find("optimizer")
    trace.phases = trace.phases.take(np.flatnonzero(~(is_update & (trace.phases.step >= 3))))
    every, first, last = np.arange(5), np.arange(3), np.array([3, 4])
    assert [own.tolist() for own in of_one_kind(trace, every, every)] == [[0, 1, 2], [0, 1, 2]]
    assert [own.tolist() for own in of_one_kind(trace, every, last)] == [[3, 4], [3, 4]]
    assert [own.tolist() for own in of_one_kind(trace, first, last)] == [[0, 1, 2], [3, 4]]  # no kind is in both lists


def test_only_graph_launches_outside_of_ops_are_the_scripts_own() -> None:
    trace = Trace(threads=[Thread(0, 1, "main", "main")])
    names = ["cudaGraphLaunch", "aten::mm", "cudaGraphLaunch", "cudaLaunchKernel"]
    trace.host = HostSpans.of(
        thread=[0] * 4,
        name=[trace.strings.add(name) for name in names],
        kind=[HostKind.RUNTIME, HostKind.OP, HostKind.RUNTIME, HostKind.RUNTIME],
        start_ns=[0, 10, 12, 30],
        duration_ns=[5, 10, 5, 5],
        parent=[NONE, NONE, 1, NONE],
    )
    assert own_graph_launches(trace).tolist() == [0]
