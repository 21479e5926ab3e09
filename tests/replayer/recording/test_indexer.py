"""Why a recorded kernel started when it did, and when the recorded host was blocked."""

from __future__ import annotations

from replayer.recording.recorded_run import RecordedRun
from replayer.recording.recorded_step import Kernel
from tests.replayer.recordings import US, Op, Stage, make_recording
from traces.model.trace import Collectives, HostSpans, Trace


def _with_all_reduce(*, synchronizes: bool) -> Trace:
    """A kernel, an all-reduce of 5 ms on a stream of its own, and an optimizer's kernel that waits for it."""
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
    (step,) = RecordedRun.of(trace).steps
    return {trace.strings[kernel.name]: kernel for kernel in step.kernels}


def test_the_wait_for_a_collective_is_not_part_of_a_kernel_gap() -> None:
    kernels = _kernels(_with_all_reduce(synchronizes=False))
    assert list(kernels) == ["kernel of aten::mm", "kernel of aten::add_"]
    assert kernels["kernel of aten::add_"].gap_ns < 10 * US


def test_host_time_excludes_the_wait_for_a_collective() -> None:
    stage = Stage(_with_all_reduce(synchronizes=True))
    segment = stage.recording.steps[0].segments["optimizer", 0]
    assert 140 * US < segment.host_ns < 160 * US  # of 5 160 us recorded, 5 010 were waiting


def test_a_slow_rank_has_longer_gpu_work_but_unchanged_host_time() -> None:
    """Two kernels take 50 and 10 us, and other ranks determine an all-reduce. The rank is 1.2 times as slow."""
    trace = _with_all_reduce(synchronizes=False)
    usual, slow = (RecordedRun.of(trace, 0, slowdown) for slowdown in (1.0, 1.2))
    assert [kernel.duration_ns for kernel in slow.steps[0].kernels] == [60 * US, 12 * US]
    assert [(of.launch_ns, of.gap_ns) for of in slow.steps[0].kernels] == [
        (of.launch_ns, of.gap_ns) for of in usual.steps[0].kernels
    ]
    hosts = [[segment.host_ns for segment in run.steps[0].segments.values()] for run in (usual, slow)]
    assert hosts[0] == hosts[1]


def test_unrecorded_ops_are_slower_on_a_slow_rank() -> None:
    trace = _with_all_reduce(synchronizes=False)
    shapes = ((512, 512), (512, 512))
    usual, slow = (RecordedRun.of(trace, 0, slowdown).costs.estimate("mm", shapes, "float32") for slowdown in (1, 2))
    assert slow.ns == 2 * usual.ns
