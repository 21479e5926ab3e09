"""Tests that host times, steps and bandwidths are read from a recording."""

from __future__ import annotations

import pytest
import torch

from replayer.recording.recorded_run import RecordedRun
from tests.replayer.recordings import Op, RecordedPhases, recording_of
from traces.model.trace import NONE, DeviceKind, StepKind
from tui.commands.replay_library import trace_of_card

FORWARD: RecordedPhases = [("forward", 0, 20)]
KERNEL = [Op("aten::mm", 2, 5, (10, 5))]


def test_without_training_steps_host_times_come_from_evaluation_steps_with_kernels() -> None:
    """GIVEN five evaluation steps, of which only two have kernels THEN the host time of their only op is known: 5 us."""
    steps = [(StepKind.EVALUATION, FORWARD, ops) for ops in ([], [], KERNEL, KERNEL, [])]
    recording = RecordedRun(recording_of(steps))
    assert recording.usual_host_ns == 5_000


def test_a_step_keeps_its_index_if_it_takes_the_kernels_of_another_step() -> None:
    recording = RecordedRun(recording_of([(StepKind.PROFILED, FORWARD, KERNEL)] * 5))
    assert [recording.index_of(step) for step in recording.steps] == [0, 1, 2, 3, 4]
    assert recording.index_of(recording.steps[3].as_slow_as(recording.steps[1])) == 1
    longer = RecordedRun(recording_of([(StepKind.PROFILED, FORWARD, KERNEL)] * 9))
    assert recording.index_of(longer.steps[8]) == NONE


def test_an_op_takes_the_host_time_until_the_next_op_starts() -> None:
    """GIVEN a layer that starts at 0 us, and a sum that starts at 30 us THEN the layer takes 30 us. Its inner ops last 6 and 4
    us, and share the 30 us in this ratio."""
    inner = [Op("aten::mm", 2, 6, kernel=(9, 1)), Op("aten::add", 10, 4, kernel=(12, 1))]
    ops = [Op("aten::linear", 0, 20, children=inner), Op("aten::sum", 30, 5, kernel=(33, 1))]
    recording = RecordedRun(recording_of([(StepKind.STEADY, [("forward", 0, 60)], ops)]))
    assert {name.partition("|")[0]: ns for name, ns in recording.host_ns.items()} == {
        "linear": 30_000, "mm": 18_000, "add": 12_000, "sum": 5_000,
    }  # fmt: skip
    assert recording.usual_host_ns == 15_000


@pytest.mark.parametrize(("kernel_us", "gbps"), [(40, 100), (21, 4000 / 21), (20, 0.8 * 549)])
def test_the_bandwidth_of_long_elementwise_ops_is_that_of_the_gpu(kernel_us: int, gbps: float) -> None:
    """GIVEN sums that take longer than 20 us THEN their bandwidth is the bandwidth of the GPU. Shorter sums do not count, and
    a replay then assumes four fifths of the P100's 549 GB/s. Matrix products do not count."""
    sums = [Op("aten::sum", 100 * i, 5, kernel=(100 * i + 9, kernel_us), shapes=((1_000_000,),)) for i in range(5)]
    products = [Op("aten::mm", 500 + 100 * i, 5, kernel=(509 + 100 * i, 90), shapes=((9, 9), (9, 9))) for i in range(90)]
    recording = RecordedRun(recording_of([(StepKind.STEADY, [("forward", 0, 20_000)], sums + products)]))
    assert recording.speed.bytes_per_ns == pytest.approx(gbps, rel=0.01)


def test_estimates_use_the_tf32_settings_of_the_script() -> None:
    """The script changes the TF32 settings after the recording was read."""
    recording = RecordedRun(trace_of_card("a100"))

    def estimated_ns(op: str, *shapes: tuple[int, ...]) -> float:
        recording.follow_settings_of_script()
        return recording.costs.estimate(op, shapes, "float32").ns

    product, convolution = ("mm", (4096, 4096), (4096, 4096)), ("convolution", (64, 256, 28, 28), (256, 256, 3, 3))
    default = [estimated_ns(*product), estimated_ns(*convolution)]
    try:
        torch.set_float32_matmul_precision("high")
        with torch.backends.cudnn.flags(allow_tf32=False):
            changed = [estimated_ns(*product), estimated_ns(*convolution)]
    finally:
        torch.set_float32_matmul_precision("highest")
    assert changed[0] < default[0] / 3 and changed[1] > 2 * default[1]


def test_an_estimate_is_never_shorter_than_the_shortest_kernel() -> None:
    ops = [Op("aten::mm" if n % 2 else "aten::copy_", 10 * n, 5, kernel=(10 * n + 2, 2 if n % 2 else 1)) for n in range(200)]
    trace = recording_of([(StepKind.STEADY, [("forward", 0, 2_000)], ops)])
    trace.device.kind[trace.device.duration_ns == 1_000] = DeviceKind.MEMCPY
    assert RecordedRun(trace).costs.floor_ns == 2_000
