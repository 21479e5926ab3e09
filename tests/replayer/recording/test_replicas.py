"""Tests that a recording of one GPU is extended to several GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replayer.recording.recorded_run import RecordedRun
from replayer.recording.replicas import add_devices, devices_for, require_recording_of_one_gpu
from tests.replayer.recordings import Op, make_recording, phase_recording
from traces.model.trace import NONE, TraceError

PHASES = [("h2d", 0, 20), ("forward", 20, 100), ("optimizer", 100, 150)]
OPS = [
    Op("aten::copy_", 0, 5, kernel=(3, 4)),
    Op("aten::mm", 20, 5, kernel=(23, 10)),
    Op("aten::mm", 30, 5, kernel=(34, 20)),
    Op("aten::add_", 100, 5, kernel=(104, 30)),
]


def test_an_additional_gpu_repeats_the_forward_pass_but_no_copies_and_no_optimizer() -> None:
    recording = RecordedRun(make_recording(PHASES, OPS))
    add_devices(recording, 3)
    assert [(device.index, device.name) for device in recording.devices] == [(i, "Tesla P100-PCIE-16GB") for i in range(3)]
    (step,) = recording.steps
    assert [(kernel.device, kernel.duration_ns // 1_000) for kernel in step.kernels[4:]] == [(1, 10), (1, 20), (2, 10), (2, 20)]
    segments = {name: segment for (name, _), segment in step.segments.items()}
    assert {name: (sorted(of.lanes), of.predicted) for name, of in segments.items()} == {
        "h2d": ([], True), "forward": ([1, 2], False), "optimizer": ([], False),
    }  # fmt: skip
    for ordinal, kernels in ((1, [4, 5]), (2, [6, 7])):
        lane = segments["forward"].lanes[ordinal]
        assert (lane.kernels, lane.below_ops, lane.work_ns, lane.predicted) == (kernels, set(kernels), 30_000, True)
        assert [one.kernels for of in (lane.exact, lane.equivalent, lane.named) for calls in of.values() for one in calls] == [
            (k,) for k in kernels
        ] * 3


def test_kernels_of_a_replica_wait_only_for_kernels_of_the_same_replica() -> None:
    recording = RecordedRun(make_recording(PHASES, OPS))
    kernels = recording.steps[0].kernels
    kernels[1], kernels[2] = kernels[1]._replace(edge=0), kernels[2]._replace(edge=1)
    add_devices(recording, 2)
    assert [kernel.edge for kernel in recording.steps[0].kernels] == [NONE, 0, 1, NONE, NONE, 4]


@pytest.mark.parametrize(("gpus", "indices"), [(0, [0, 1]), (1, [0]), (2, [0, 1])])
def test_a_recording_of_two_gpus_can_be_replayed_on_one_or_two_gpus(gpus: int, indices: list[int]) -> None:
    trace = phase_recording({"forward": 10})
    trace.devices = [trace.devices[0], replace(trace.devices[0], index=1)]
    recording = RecordedRun(trace)
    assert [device.index for device in devices_for(recording.devices, gpus)] == indices
    if gpus:
        add_devices(recording, gpus)
        assert [device.index for device in recording.devices] == indices
        assert not any(segment.lanes for step in recording.steps for segment in step.segments.values())


@pytest.mark.parametrize(("gpus", "kernels", "has"), [(3, True, "2 GPUs"), (3, False, "2 GPUs"), (2, False, "phases only")])
def test_only_a_recording_of_one_gpu_can_be_extended_to_more_gpus(gpus: int, kernels: bool, has: str) -> None:
    trace = make_recording(PHASES, OPS) if kernels else phase_recording({"forward": 10})
    if gpus == 3:
        trace.devices = [trace.devices[0], replace(trace.devices[0], index=1)]
    with pytest.raises(TraceError, match=f"--gpus {gpus} .* this recording has {has}"):
        add_devices(RecordedRun(trace), gpus)


@pytest.mark.parametrize(
    ("gpus", "recorded", "kernels", "reason"),
    [
        (2, 1, True, ""),
        (2, 1, False, "phases only"),
        (3, 2, True, "2 GPUs"),
        (3, 2, False, "2 GPUs"),
        (2, 2, False, ""),
        (1, 2, False, ""),
        (0, 0, False, ""),
    ],
)
def test_extending_a_recording_requires_the_kernels_of_one_gpu(gpus: int, recorded: int, kernels: bool, reason: str) -> None:
    if not reason:
        return require_recording_of_one_gpu(gpus, recorded, kernels)
    with pytest.raises(TraceError, match=f"--gpus {gpus} needs a recording with the kernels of one GPU, .* has {reason}$"):
        require_recording_of_one_gpu(gpus, recorded, kernels)
