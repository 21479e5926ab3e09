"""What is in a trace, as plain JSON values: what `trace info` prints.

summarize(load("v100.msgpack"))["counts"]
# {"kernels": 8772, "copies": 324, "host_ops": 32124, "memory_events": 12838, "steps": 6}
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.communication import communication
from traces.measure import (
    Work,
    busy_by_device,
    busy_by_stream,
    busy_ns,
    compute_side_ns,
    kernel_table,
    memory_peaks,
    op_table,
    phase_times,
    steady_steps,
    window_ns,
)
from traces.model import DeviceKind, HostKind, StepKind, Trace
from traces.pipeline import collectives, input_pipeline, parallel_parts, step_kinds, told
from traces.spread import median

VERSION = 1
TOP = 10  # rows of the tables of kernels and ops


def summarize(trace: Trace) -> dict[str, Any]:
    """Everything that `trace info --json` prints; keys are added to it, never renamed.

    `copies` counts memcpys and memsets. `phases` are medians over the steps that are not warm-up. `ops` are the
    innermost ones around a launch, `calls` the outermost; both with the device time of what they launched. `idle_share`
    is the part of a device's time between the first start and the last end of its own work in which it did nothing.
    """
    start_ns, end_ns = window_ns(trace)
    compute_ns = compute_side_ns(trace)
    steps = trace.steps
    return {
        "version": VERSION,
        "grain": trace.grain,
        "ranks": trace.ranks,
        "devices": [
            {"name": d.name, "total_memory_bytes": d.total_memory_bytes, "rank": d.rank, "index": d.index}
            for d in trace.devices
        ],
        "counts": {
            "kernels": int((trace.device.kind == DeviceKind.KERNEL).sum()),
            "copies": int(np.isin(trace.device.kind, (DeviceKind.MEMCPY, DeviceKind.MEMSET)).sum()),
            "host_ops": int((trace.host.kind == HostKind.OP).sum()),
            "memory_events": len(trace.memory),
            "steps": len(steps),
        },
        "window_ns": end_ns - start_ns,
        "gpu_busy_ns": busy_ns(trace),
        "gpus": _gpus(trace),
        "steps": [
            {
                "start_ns": int(steps.start_ns[row]),
                "duration_ns": int(steps.duration_ns[row]),
                "number": int(steps.number[row]),
                "rank": int(steps.rank[row]),
                "kind": StepKind(int(steps.kind[row])).name.lower(),
                "compute_side_ns": int(compute_ns[row]),
            }
            for row in range(len(steps))
        ],
        "step_median_ns": median(steps.duration_ns[steady_steps(trace)]),
        "compute_side_median_ns": median(compute_ns[steady_steps(trace)]),
        "step_kinds": step_kinds(trace),
        "clean": told(trace, "clean"),
        "host_scale": told(trace, "host_scale"),
        "recorder": told(trace, "recorder"),
        "phases": _phases(trace),
        "parts": parallel_parts(trace),
        "input_pipeline": input_pipeline(trace),
        "collectives": collectives(trace),
        "communication": communication(trace) if len(trace.collectives) else None,
        "kernels": _rows(kernel_table(trace)),
        "ops": _rows(op_table(trace)),
        "calls": _rows(op_table(trace, outermost=True)),
        "memory": {
            trace.device_label(row): {
                "peak_allocated_bytes": peak.allocated_bytes,
                "peak_reserved_bytes": peak.reserved_bytes,
                "source": peak.source,
            }
            for row, peak in memory_peaks(trace).items()
        },
        "lacks": list(trace.lacks),
        "problems": dict(trace.problems),
        "provenance": dict(trace.provenance),
    }


def _gpus(trace: Trace) -> dict[str, dict[str, Any]]:
    """Busy time, idle share and streams of every device that did any work."""
    streams = busy_by_stream(trace)
    found = {}
    for device, busy in busy_by_device(trace).items():
        span_ns = int(busy.end_ns[-1] - busy.start_ns[0])
        found[trace.device_label(device)] = {
            "name": trace.devices[device].name,
            "busy_ns": busy.total_ns,
            "idle_share": 1 - busy.total_ns / span_ns if span_ns else 0.0,
            "streams": {str(stream): own.total_ns for (of, stream), own in streams.items() if of == device},
        }
    return found


def _phases(trace: Trace) -> dict[str, dict[str, int | None]]:
    rows = steady_steps(trace)
    return {
        name: {
            "median_ns": median(times.host_ns[rows]),
            "device_median_ns": None if times.device_ns is None else median(times.device_ns[rows]),
        }
        for name, times in phase_times(trace).items()
    }


def _rows(table: list[Work]) -> list[dict[str, Any]]:
    return [{"name": work.name, "count": work.count, "device_ns": work.device_ns} for work in table[:TOP]]
