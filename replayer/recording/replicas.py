"""Adds virtual GPUs to a recording of one GPU (`--gpus 2`).

    recording = RecordedRun(trace)
    add_devices(recording, gpus=2)
    recording.devices       # two copies of the recorded device, as cuda:0 and cuda:1
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from replayer.recording.recorded_step import RecordedSegment, RecordedStep
from traces.model.trace import NONE, Device, TraceError

if TYPE_CHECKING:
    from replayer.recording.recorded_run import RecordedRun

_REPEATED = frozenset({"forward", "loss", "backward", "other"})


def add_devices(recording: RecordedRun, gpus: int) -> None:
    """Extend the recording to `gpus` GPUs. Raises TraceError if replicas cannot be predicted."""
    recorded = len(recording.devices)
    require_recording_of_one_gpu(gpus, recorded, any(step.has_kernels for step in recording.steps))
    recording.devices = devices_for(recording.devices, gpus)
    if gpus <= recorded:
        return
    for step in recording.steps:
        for segment in step.segments.values():
            if segment.name in _REPEATED:
                for ordinal in range(1, gpus):
                    segment.lanes[ordinal] = _replica(step, segment, ordinal)
            elif segment.name == "h2d":
                segment.predicted = True  # the script may leave this copy to nn.DataParallel's scatter


def devices_for(recorded: list[Device], gpus: int) -> list[Device]:
    if not gpus:
        return recorded
    return [*recorded[:gpus], *(replace(recorded[0], index=index) for index in range(len(recorded), gpus))]


def require_recording_of_one_gpu(gpus: int, recorded: int, kernels: bool) -> None:
    if gpus > recorded and (recorded != 1 or not kernels):
        has = f"{recorded} GPUs" if recorded != 1 else "phases only"
        raise TraceError(f"--gpus {gpus} needs a recording with the kernels of one GPU, but this recording has {has}")


def _replica(step: RecordedStep, segment: RecordedSegment, ordinal: int) -> RecordedSegment:
    lists = (segment.exact, segment.equivalent, segment.named)
    under = {k for by_key in lists for instances in by_key.values() for one in instances for k in one.kernels}
    place = {k: len(step.kernels) + i for i, k in enumerate(sorted(under.union(segment.kernels)))}
    kernels = [step.kernels[k] for k in place]
    step.kernels += [kernel._replace(device=ordinal, edge=place.get(kernel.edge, NONE)) for kernel in kernels]
    lane = RecordedSegment(segment.name, work_ns=segment.work_ns, kernels=[place[k] for k in segment.kernels], predicted=True)
    lane.below_ops = {place[k] for k in segment.below_ops}
    for by_key, own in zip(lists, (lane.exact, lane.equivalent, lane.named), strict=True):
        for key, instances in by_key.items():
            own[key] = [one._replace(kernels=tuple(place[k] for k in one.kernels)) for one in instances]
    return lane
