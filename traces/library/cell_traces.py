"""Makes the trace of a training step from published times of its phases, for one network on one GPU.

    trace_of(find_cell("v100/resnet50"), batch=32)      # one steady step: h2d, forward, backward
    blank_trace(gpu)                                    # only the GPU, before it is known what the script trains
    trace_with_step_times(blank, rows, cells, workload)          # the steps that a replay has run

The published time of a phase is used for both the CPU and the GPU. If the time of the optimizer was not measured separately, it
is included in the phase `backward`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from traces.library.cells import CellSource, Gpu, LibraryCell
from traces.model.machine import Machine
from traces.model.trace import Device, Origin, Phases, PhaseTiming, StepKind, Steps, Strings, Trace
from traces.model.typed_json import to_json
from traces.model.workload import WorkloadSignature

# phases in the order of a training loop
_ORDER = ("h2d", "forward", "loss", "zero_grad", "backward", "optimizer")
_LACKS = ["kernels", "host ops", "data-loading waits", "memory events", "recorded values", "first batches"]


def blank_trace(gpu: Gpu, source: CellSource | None = None, provenance: Mapping[str, Any] | None = None) -> Trace:
    source = source or CellSource()
    device = Device(rank=0, index=0, name=gpu.device, total_memory_bytes=gpu.memory_bytes)
    whole = {**to_json(source), **(provenance or {})}
    timing = PhaseTiming.SYNCHRONIZED
    trace = Trace(grain="phase", devices=[device], provenance=whole, phase_timing=timing, lacks=list(_LACKS))
    if source.torch is not None:
        trace.machines = {0: Machine(torch=source.torch)}
    return _with_phases(trace, [{}])


def trace_of(cell: LibraryCell, batch: int) -> Trace:
    """Return a trace of one step, with the phase times that are published for `cell`. Raises NotMeasured outside the measured
    batch sizes."""
    times = cell.for_batch(batch)
    phases = dict(times.phases_ns)
    if "rest" in phases:
        phases["backward"] = phases.pop("rest")
    origin = Origin.SCALED if times.is_scaled else Origin.PUBLISHED
    provenance = {**cell.provenance, "cell": cell.name, "batch": batch, "scaled": times.is_scaled}
    blank = blank_trace(cell.gpu, cell.source, provenance)
    return _with_phases(replace(blank, workload=cell.workload.at_batch(batch, 1)), [phases], origin)


def trace_with_step_times(
    blank: Trace, steps: Sequence[Mapping[str, int]], cells: Sequence[str], workload: WorkloadSignature | None
) -> Trace:
    """Return the trace of a replay that used published step times. `steps` contains the phase times of each step in
    nanoseconds."""
    provenance = {**blank.provenance, "cells": list(cells)}
    return _with_phases(replace(blank, strings=Strings(), provenance=provenance, workload=workload), steps or [{}])


def _with_phases(trace: Trace, steps: Sequence[Mapping[str, int]], origin: Origin = Origin.PUBLISHED) -> Trace:
    add_steps(trace, [{name: durations[name] for name in _ORDER if name in durations} for durations in steps], origin)
    return trace


def add_steps(trace: Trace, steps: Sequence[Mapping[str, int]], origin: Origin, kind: StepKind = StepKind.STEADY) -> None:
    durations_ns = np.array([ns for phases in steps for ns in phases.values()], np.int64)
    of_step = np.repeat(np.arange(len(steps)), [len(phases) for phases in steps])
    ends_ns = np.cumsum(durations_ns)
    step_ns = np.bincount(of_step, durations_ns, len(steps)).astype(np.int64)
    kinds = [kind, *[StepKind.STEADY] * (len(steps) - 1)]
    trace.steps = Steps.of(number=np.arange(len(steps)), kind=kinds, start_ns=np.cumsum(step_ns) - step_ns, duration_ns=step_ns)
    trace.phases = Phases.of(
        step=of_step,
        name=[trace.strings.add(name) for phases in steps for name in phases],
        start_ns=ends_ns - durations_ns,
        duration_ns=durations_ns,
        device=np.zeros(len(of_step)),
        device_start_ns=ends_ns - durations_ns,
        device_end_ns=ends_ns,
        origin=np.full(len(of_step), origin),
    )
