"""Measure communication between ranks: the bytes of each operation, and how much of the time overlaps with other GPU work.

    of = communication(trace)
    of.operations[0]    # Operation("all_reduce", phase="backward", count=40, bytes=187032, duration_ns=...)
    of.exposed_ns       # time in which the device only communicated (or waited for another rank to)
    of.hidden_ns        # time in which it also computed
    of.exposed_per_step_ns      # mean over the steps with kernels, of communication launched in these steps

A communication kernel starts when its rank is ready, and ends when the data of the slowest rank has arrived. Communication time
that overlaps with no other work ("exposed") therefore includes waits for slower ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traces.figures.measure import launch_steps, phase_windows, profiled_steps
from traces.model.intervals import Intervals
from traces.model.row_order import by_value, grouped
from traces.model.trace import NONE, Column, DeviceKind, Ending, Trace

_KERNEL = re.compile(r"(?:nccl|rccl|msccl)", re.IGNORECASE)
_OF_DATA_PARALLEL = re.compile(r"(?:nccl|rccl)\w*_(Broadcast|Reduce)(?:_|$)")


def communication_kernels(trace: Trace) -> Column:
    """Return, for each kernel or copy of the trace, whether it is a kernel of NCCL or a similar library.

    If the trace has no collectives, the result is False for all kernels, because NCCL kernels then come from nn.DataParallel,
    which copies parameters with NCCL. NCCL kernels of nn.DataParallel are counted as work of the ops that launch them.
    """
    if not len(trace.collectives):
        return np.zeros(len(trace.device), dtype=bool)
    return np.asarray((trace.device.kind == DeviceKind.KERNEL) & trace.strings.matching(trace.device.name, _KERNEL.search))


def data_parallel_kernels(trace: Trace) -> dict[int, str]:
    """Return the kernels with which nn.DataParallel sends parameters ("broadcast") and sums gradients ("reduce").

    Each key of the returned dict is the index of a kernel name in the trace's string table. The returned dict is empty if the
    trace has collectives, because the NCCL kernels of such a trace belong to the collectives.
    """
    if len(trace.collectives):
        return {}
    names = np.unique(trace.device.name[trace.device.kind == DeviceKind.KERNEL]).tolist()
    matches = {name: _OF_DATA_PARALLEL.match(trace.strings[name]) for name in names}
    return {name: match[1].lower() for name, match in matches.items() if match is not None}


@dataclass(frozen=True, slots=True)
class Operation:
    """Sums up all calls of one collective operation in one phase over all ranks.

    `bytes` is the total size of the inputs on all ranks, or None if sizes were not recorded. `duration_ns` leaves out calls
    whose end was not recorded. If only an upper bound of a collective's duration is known, `duration_ns` includes the upper
    bound.
    """

    name: str
    phase: str
    count: int
    bytes: int | None
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Communication:
    """Communication of all ranks. `exposed_ns` is the time in which a device only communicates, and `hidden_ns` is
    the time in which other work runs at the same time. `exposed_ns` and `hidden_ns` are sums over all devices and the whole
    trace.

    `steps` is the number of steps with recorded kernels, summed over ranks. Times per step are means over the steps with
    recorded kernels, and include only communication that was launched in the steps. If the trace has no steps, the times per
    step are the times of the whole trace.
    """

    operations: tuple[Operation, ...]  # most bytes first
    exposed_ns: int
    hidden_ns: int
    steps: int
    exposed_per_step_ns: int
    hidden_per_step_ns: int


def communication(trace: Trace) -> Communication:
    """Return the calls of each collective operation, and how much communication time overlaps with other work on the same
    device."""
    kernels, rows = communication_kernels(trace), profiled_steps(trace)
    exposed_ns, hidden_ns = _overlap(trace, kernels, kernels)
    of_steps = np.isin(launch_steps(trace), rows) if len(rows) else True
    per_step = (time_ns // max(len(rows), 1) for time_ns in _overlap(trace, kernels & of_steps, kernels))
    return Communication(_operations(trace), exposed_ns, hidden_ns, len(rows), *per_step)


def _overlap(trace: Trace, counted: Column, kernels: Column) -> tuple[int, int]:
    """Return how long the `counted` communication kernels ran alone on their devices, and how long they ran together with other
    work."""
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
