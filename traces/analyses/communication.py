"""Communication between ranks: bytes by operation, and how much of its time the GPUs have nothing else to do.

    of = communication(trace)
    of.operations[0]    # Operation("all_reduce", phase="backward", count=40, bytes=187032, duration_ns=...)
    of.exposed_ns       # the device only communicated (or waited for another rank to)
    of.hidden_ns        # it computed meanwhile

A communication kernel runs from when its own rank is ready until the slowest one's data has arrived, so exposed time includes
waiting for slower ranks, as the kernels of a recording do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traces.figures.measure import grouped, phase_windows
from traces.model.intervals import Intervals
from traces.model.trace import NONE, Column, DeviceKind, Ending, Trace

_KERNEL = re.compile(r"(?:nccl|rccl|msccl)", re.IGNORECASE)
_OF_DATA_PARALLEL = re.compile(r"(?:nccl|rccl)\w*_(Broadcast|Reduce)(?:_|$)")


def communication_kernels(trace: Trace) -> Column:
    """A mask over the device table: kernels of NCCL and its kind. All false where no collective is recorded, for
    nn.DataParallel copies by NCCL's kernels too, and those belong to the ops that launch them."""
    if not len(trace.collectives):
        return np.zeros(len(trace.device), dtype=bool)
    names = [name for name in np.unique(trace.device.name).tolist() if _KERNEL.search(trace.strings[name])]
    return np.asarray((trace.device.kind == DeviceKind.KERNEL) & np.isin(trace.device.name, names))


def data_parallel_kernels(trace: Trace) -> dict[int, str]:
    """The kernels by which nn.DataParallel sends parameters ("broadcast") and sums gradients ("reduce").

    By their names, which are strings of the trace. Where collectives are recorded, NCCL's kernels are theirs.
    """
    if len(trace.collectives):
        return {}
    names = np.unique(trace.device.name[trace.device.kind == DeviceKind.KERNEL]).tolist()
    matches = {name: _OF_DATA_PARALLEL.match(trace.strings[name]) for name in names}
    return {name: match[1].lower() for name, match in matches.items() if match is not None}


@dataclass(frozen=True, slots=True)
class Operation:
    """All calls of one operation in one phase, summed over ranks.

    `bytes` are those of each rank's input, None where not recorded. Of calls whose end nobody saw no time is in
    `duration_ns`, and of those that had ended when somebody looked the most that it can have been.
    """

    name: str
    phase: str  # "" outside of steps
    count: int
    bytes: int | None
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Communication:
    """Times are summed over ranks and devices, and `steps` is the sum of the ranks' steps."""

    operations: tuple[Operation, ...]  # most bytes first
    exposed_ns: int
    hidden_ns: int
    steps: int


def communication(trace: Trace) -> Communication:
    """Calls by operation, and how much of the communication kernels' time other work on the same device covers."""
    kernels = communication_kernels(trace)
    total_ns = hidden_ns = 0
    work = trace.device.is_work
    for device in np.unique(trace.device.device[kernels]).tolist():
        on = trace.device.device == device
        communicating, computing = _intervals(trace, on & kernels), _intervals(trace, on & work & ~kernels)
        total_ns += communicating.total_ns
        hidden_ns += int(computing.within(communicating.start_ns, communicating.end_ns).sum())
    return Communication(_operations(trace), total_ns - hidden_ns, hidden_ns, len(trace.steps))


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


def _intervals(trace: Trace, mask: Column) -> Intervals:
    return Intervals(trace.device.start_ns[mask], trace.device.end_ns[mask])
