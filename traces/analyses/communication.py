"""Measure communication between ranks: bytes by operation, and the share of its time that overlaps with other GPU work.

    of = communication(trace)
    of.operations[0]    # Operation("all_reduce", phase="backward", count=40, bytes=187032, duration_ns=...)
    of.exposed_ns       # time in which the device only communicated (or waited for another rank to)
    of.hidden_ns        # time in which it also computed
    of.exposed_per_step_ns      # mean over the steps with kernels, of communication launched in these steps

A communication kernel runs from when its own rank is ready until the slowest rank's data has arrived. Exposed time therefore
includes waiting for slower ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traces.figures.measure import by_value, grouped, launch_steps, phase_windows, profiled_steps
from traces.model.intervals import Intervals
from traces.model.trace import NONE, Column, DeviceKind, Ending, Trace

_KERNEL = re.compile(r"(?:nccl|rccl|msccl)", re.IGNORECASE)
_OF_DATA_PARALLEL = re.compile(r"(?:nccl|rccl)\w*_(Broadcast|Reduce)(?:_|$)")


def communication_kernels(trace: Trace) -> Column:
    """Return a mask of the device spans that are kernels of NCCL or similar libraries.

    If no collective was recorded, the mask is all False. NCCL kernels then come from nn.DataParallel, which uses NCCL for its
    copies. These kernels belong to the ops that launch them.
    """
    if not len(trace.collectives):
        return np.zeros(len(trace.device), dtype=bool)
    return np.asarray((trace.device.kind == DeviceKind.KERNEL) & trace.strings.matching(trace.device.name, _KERNEL.search))


def data_parallel_kernels(trace: Trace) -> dict[int, str]:
    """Return the kernels with which nn.DataParallel sends parameters ("broadcast") and sums gradients ("reduce").

    The keys of the result are indices of kernel names in the string table. The result is empty if collectives were recorded,
    because NCCL's kernels then belong to the collectives.
    """
    if len(trace.collectives):
        return {}
    names = np.unique(trace.device.name[trace.device.kind == DeviceKind.KERNEL]).tolist()
    matches = {name: _OF_DATA_PARALLEL.match(trace.strings[name]) for name in names}
    return {name: match[1].lower() for name, match in matches.items() if match is not None}


@dataclass(frozen=True, slots=True)
class Operation:
    """Describes all calls of one operation in one phase, summed over ranks.

    `bytes` counts each rank's input, and is None if sizes were not recorded. `duration_ns` excludes calls whose end was not
    recorded. If a collective had already ended when the profiler checked its state, the longest possible duration is used.
    """

    name: str
    phase: str
    count: int
    bytes: int | None
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Communication:
    """Describes communication of all ranks. `exposed_ns` and `hidden_ns` cover the whole trace and are summed over devices.

    `steps` is the number of steps with kernels, summed over ranks. Times per step are means of the communication that was
    launched in these steps, or the times of the whole trace if it has no steps.
    """

    operations: tuple[Operation, ...]  # most bytes first
    exposed_ns: int
    hidden_ns: int
    steps: int
    exposed_per_step_ns: int
    hidden_per_step_ns: int


def communication(trace: Trace) -> Communication:
    """Return figures of all calls by operation, and how much communication time overlaps with other work on the same device."""
    kernels, rows = communication_kernels(trace), profiled_steps(trace)
    exposed_ns, hidden_ns = _overlap(trace, kernels, kernels)
    of_steps = np.isin(launch_steps(trace), rows) if len(rows) else True
    per_step = (time_ns // max(len(rows), 1) for time_ns in _overlap(trace, kernels & of_steps, kernels))
    return Communication(_operations(trace), exposed_ns, hidden_ns, len(rows), *per_step)


def _overlap(trace: Trace, counted: Column, kernels: Column) -> tuple[int, int]:
    """Return the exposed and the hidden time of the counted communication kernels."""
    total_ns = hidden_ns = 0
    communicates, computes = (_by_device(trace, mask) for mask in (counted, trace.device.is_work & ~kernels))
    for device, communicating in communicates.items():
        total_ns += communicating.total_ns
        if device in computes:
            hidden_ns += int(computes[device].within(communicating.start_ns, communicating.end_ns).sum())
    return total_ns - hidden_ns, hidden_ns


def _operations(trace: Trace) -> tuple[Operation, ...]:
    table = trace.collectives
    called_in = np.append(trace.phases.name, NONE)[phase_windows(trace).holding(table.call_ns, table.rank)]
    found = []
    for own in grouped(table.name, called_in):
        rows = table.take(own)
        known = bool((rows.bytes != NONE).all())
        found.append(
            Operation(
                trace.strings[rows.name[0]],
                trace.strings[called_in[own[0]]],
                count=len(rows),
                bytes=int(rows.bytes.sum()) if known else None,
                duration_ns=int(rows.duration_ns[rows.ending != Ending.UNSEEN].sum()),
            )
        )
    return tuple(sorted(found, key=lambda row: (-(row.bytes or 0), -row.count, row.name, row.phase)))


def _by_device(trace: Trace, mask: Column) -> dict[int, Intervals]:
    device, start_ns = trace.device.device[mask], trace.device.start_ns[mask]
    end_ns = start_ns + trace.device.duration_ns[mask]
    return {number: Intervals(start_ns[rows], end_ns[rows]) for number, rows in by_value(device).items()}
