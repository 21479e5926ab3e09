"""Builds recordings of programs for which only total times were published, using the ops of a replay.

    ops = ops_of(load("resnet18.msgpack"))                                  # one step of a replay of that network
    trace = training_recording(ops, "Tesla V100-PCIE-32GB", workload, (9.1e6, 28.1e6), (4.2e6, 8.5e6))

The ops, the shapes and the relative times of the ops come from the replay. The total time of each phase is the published time.
If a phase waits for the GPU, kernels are scaled to fill the phase, and if the host limits the phase, kernels keep their times.
The host launches ops at regular intervals of the given length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from replayer.prediction.scaling import calls_of
from traces.figures.measure import launch_steps, steady_steps
from traces.model.trace import Device, DeviceKind, DeviceSpans, HostKind, HostSpans, Phases, Steps, Thread, Trace, shapes_text
from traces.model.workload import WorkloadSignature

STEPS = 3
_LATENCY_NS = 5_000  # time between a launch and the start of its kernel
_HOST_BOUND = 1.2  # a part counts as host-bound up to this multiple of its host time, because times vary by this factor


@dataclass(frozen=True)
class RecordedOp:
    """Contains one op and the total time of its kernels."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    phase: str
    ns: int


def ops_of(trace: Trace) -> list[RecordedOp]:
    """Return the ops of the last complete step of a trace in launch order, without ops whose shapes were not recorded."""
    calls, steps = calls_of(trace), launch_steps(trace)
    device = trace.device
    rows = np.flatnonzero(device.is_work & (steps == steady_steps(trace)[-1]))
    found: dict[int, RecordedOp] = {}
    for row in sorted(rows.tolist(), key=lambda row: int(trace.host.start_ns[device.launch[row]])):
        call, launch, ns = calls[row], int(device.launch[row]), int(device.duration_ns[row])
        if call is None or device.kind[row] == DeviceKind.MEMCPY:
            continue
        phase = "optimizer" if call.op.startswith(("_foreach", "_fused")) else call.phase or "backward"
        before = found[launch].ns if launch in found else 0
        found[launch] = RecordedOp(call.op, call.shapes, call.dtype, phase, before + ns)
    return list(found.values())


def training_recording(
    ops: Sequence[RecordedOp],
    gpu: str,
    workload: WorkloadSignature | None,
    measured_ns: tuple[float, float],
    host_ns: tuple[float, float],
) -> Trace:
    """Build a recording of `STEPS` equal steps from the measured times and host times of the forward pass and of the rest."""
    trace = Trace(devices=[Device(0, 0, gpu)], threads=[Thread(0, 0, "main")], workload=workload)
    parts = [[op for op in ops if op.phase == "forward"], [op for op in ops if op.phase != "forward"]]
    rows: list[tuple[str, tuple[int, int], RecordedOp | None]] = []  # rows of the host table: name, (start, end), op
    kernels: list[tuple[int, int, int]] = []  # for each kernel: start, duration, host row of the launch
    phases: list[tuple[int, str, int, int]] = []
    begins, now_ns = [], 1_000_000
    for step in range(STEPS):
        begins.append(now_ns)
        for part, whole_ns, own_ns in zip(parts, measured_ns, host_ns, strict=True):
            ready_ns, pace_ns = now_ns, min(own_ns, whole_ns) / max(len(part), 1)
            durations = _durations(part, whole_ns, own_ns, pace_ns)
            begun_ns, end_ns = now_ns, now_ns + int(whole_ns)
            for i, (op, duration_ns) in enumerate(zip(part, durations, strict=True)):
                launch_ns = begun_ns + int(i * pace_ns)
                if not phases or phases[-1][:2] != (step, op.phase):
                    phases.append((step, op.phase, launch_ns, 0))
                start_ns = max(launch_ns + _LATENCY_NS, ready_ns)
                ready_ns = start_ns + duration_ns
                kernels.append((start_ns, duration_ns, len(rows)))
                rows.append((op.name, (launch_ns, int(pace_ns * 0.9)), op))
            last_ns = begun_ns + int(len(part) * pace_ns)
            now_ns = max(end_ns, ready_ns)
            rows.append(("cudaDeviceSynchronize", (min(last_ns, now_ns - 1), max(now_ns - last_ns, 1)), None))
    ends = [*begins[1:], now_ns]
    strings = trace.strings
    dtypes = {op.dtype: strings.add(op.dtype) for op in ops}
    shapes = {op.shapes: strings.add(shapes_text(op.shapes)) for op in ops}
    trace.host = HostSpans.of(
        thread=[0] * len(rows),
        kind=[HostKind.OP if op else HostKind.RUNTIME for _, _, op in rows],
        name=[strings.add(f"aten::{name}" if op else name) for name, _, op in rows],
        start_ns=[start_ns for _, (start_ns, _), _ in rows],
        duration_ns=[duration_ns for _, (_, duration_ns), _ in rows],
        shapes=[shapes[op.shapes] if op else -1 for _, _, op in rows],
        dtypes=[dtypes[op.dtype] if op else -1 for _, _, op in rows],
    )
    count = len(kernels)
    trace.device = DeviceSpans.of(
        device=[0] * count, stream=[7] * count, kind=[DeviceKind.KERNEL] * count, name=[strings.add("kernel")] * count,
        start_ns=[start_ns for start_ns, _, _ in kernels], duration_ns=[duration_ns for _, duration_ns, _ in kernels],
        launch=[row for _, _, row in kernels],
    )  # fmt: skip
    trace.steps = Steps.of(
        rank=[0] * STEPS, number=range(STEPS), start_ns=begins, kind=[0] * STEPS,
        duration_ns=[end - begin for begin, end in zip(begins, ends, strict=True)],
    )  # fmt: skip
    trace.phases = _phases(trace, phases, begins, ends)
    return trace


def _durations(part: Sequence[RecordedOp], whole_ns: float, own_ns: float, pace_ns: float) -> list[int]:
    """Scale the kernels so that this part of the step ends at the measured time. A kernel never starts before its launch."""
    took_ns = np.array([op.ns for op in part], dtype=np.float64)
    room_ns = whole_ns - _LATENCY_NS - pace_ns * np.arange(len(part))
    left_ns = took_ns[::-1].cumsum()[::-1]  # remaining time: the time of each kernel and of all later kernels
    if whole_ns <= _HOST_BOUND * own_ns:
        times = min(room_ns[0] / max(left_ns[0], 1), 1.0) if len(part) else 1.0
    else:
        times = (room_ns / np.maximum(left_ns, 1)).min(initial=np.inf)
    lasting: list[int] = np.maximum(took_ns * times, 1).astype(int).tolist()
    return lasting


def _phases(trace: Trace, found: Iterable[tuple[int, str, int, int]], begins: Sequence[int], ends: Sequence[int]) -> Phases:
    """Return the phases of a step, which leave no gaps."""
    rows = list(found)
    starts = [begins[step] if i == 0 or rows[i - 1][0] != step else start for i, (step, _, start, _) in enumerate(rows)]
    lasts = [
        starts[i + 1] if i + 1 < len(rows) and rows[i + 1][0] == step else ends[step] for i, (step, _, _, _) in enumerate(rows)
    ]
    return Phases.of(
        step=[step for step, _, _, _ in rows], name=[trace.strings.add(name) for _, name, _, _ in rows], start_ns=starts,
        duration_ns=[last - start for start, last in zip(starts, lasts, strict=True)], origin=[0] * len(rows),
    )  # fmt: skip
