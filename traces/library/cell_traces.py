"""Cells as traces: the recording that a replay on a cell is driven by and compared with, and one batch size for `trace info`.

    trace_of(find_cell("v100/resnet50"), batch=32)      # one steady step: h2d, forward, backward
    blank_trace(gpu)                                    # the GPU alone, before it is known what a script trains
    driven_trace(gpu, rows, workload)                   # the steps that a replay has played

A cell tells times between synchronised points, so the host's phases are the device's. Where its "rest" is one figure,
`backward` holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traces.library.cells import Cell, Gpu
from traces.machine import Machine
from traces.model import Device, Origin, Phases, PhaseTiming, StepKind, Steps, Trace
from traces.old_headers import machine_in
from traces.workload import WorkloadSignature

# In the order of a training loop.
_ORDER = ("h2d", "forward", "loss", "zero_grad", "backward", "optimizer")
_LACKS = ["kernels", "host ops", "data-loading waits", "memory events", "recorded values", "first batches"]


def blank_trace(gpu: Gpu, provenance: Mapping[str, Any] | None = None) -> Trace:
    """A phase-grained trace of the card with one step without phases."""
    return _trace(gpu, [{}], provenance or {}, None)


def trace_of(cell: Cell, batch: int) -> Trace:
    """One steady step at this batch size. Raises NotMeasured."""
    times = cell.at(batch)
    phases = dict(times.phases_ns)
    if "rest" in phases:
        phases["backward"] = phases.pop("rest")
    origin = Origin.SCALED if times.is_scaled else Origin.PUBLISHED
    provenance = {**cell.provenance, "cell": cell.name, "batch": batch, "scaled": times.is_scaled}
    return _trace(cell.gpu, [phases], provenance, cell.workload_at(batch), origin)


def driven_trace(
    gpu: Gpu, steps: Sequence[Mapping[str, int]], provenance: Mapping[str, Any], workload: WorkloadSignature | None
) -> Trace:
    """One steady step for each of `steps`: nanoseconds by phase."""
    return _trace(gpu, steps or [{}], provenance, workload)


def _trace(
    gpu: Gpu,
    told: Sequence[Mapping[str, int]],
    provenance: Mapping[str, Any],
    workload: WorkloadSignature | None,
    origin: Origin = Origin.PUBLISHED,
) -> Trace:
    device = Device(rank=0, index=0, name=gpu.device, total_memory_bytes=gpu.memory_bytes)
    trace = Trace(grain="phase", devices=[device], provenance=dict(provenance), workload=workload, lacks=list(_LACKS))
    trace.phase_timing = PhaseTiming.SYNCHRONIZED
    if (machine := machine_in(provenance)) != Machine():
        trace.machines = {0: machine}
    steps: dict[str, list[int]] = {"start_ns": [], "duration_ns": []}
    phases: dict[str, list[int]] = {"step": [], "name": [], "start_ns": [], "duration_ns": []}
    now_ns = 0
    for number, durations in enumerate(told):
        steps["start_ns"].append(now_ns)
        for name in _ORDER:
            if name in durations:
                phases["step"].append(number)
                phases["name"].append(trace.strings.add(name))
                phases["start_ns"].append(now_ns)
                phases["duration_ns"].append(durations[name])
                now_ns += durations[name]
        steps["duration_ns"].append(now_ns - steps["start_ns"][-1])
    count = len(told)
    trace.steps = Steps.of(number=list(range(count)), kind=[StepKind.STEADY] * count, rank=[0] * count, **steps)
    rows = len(phases["step"])
    trace.phases = Phases.of(device=[0] * rows, origin=[origin] * rows, **phases)
    trace.phases.device_start_ns = trace.phases.start_ns.copy()
    trace.phases.device_end_ns = trace.phases.end_ns
    return trace
