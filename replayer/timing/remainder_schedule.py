"""What no op has claimed of a phase's recorded kernels, as columns: the same hundreds in every step, laid out once.

    leftover = RemainderSchedule.of(columns, chosen)     # None if some of them wait for kernels on other streams
    ends_ns = leftover.play(stream, began_ns)
    leftover.rows(stream, ends_ns)              # of the timeline's device table

Note [Left in order]
    With c the running sum of gaps and durations, the end of kernel i less c[i] is the greater of that of kernel i-1 and of what
    its own launch alone would give: a running maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replayer.recording.recorded_step import KernelColumns
from replayer.timing.stream import VirtualStream
from replayer.timing.timeline_writer import WORK_COLUMNS, DeferredRows
from traces.model import NONE, Column, Origin

_DEVICE, _STREAM, _START = (WORK_COLUMNS.index(name) for name in ("device", "stream", "start_ns"))


@dataclass(slots=True, eq=False)
class RemainderSchedule:
    """Kernels in launch order, all on their step's main stream."""

    alone_ns: Column  # the end that its own launch alone would give, from the segment's start on, less the running sum
    sums_ns: Column  # of gaps and durations, this kernel included
    duration_ns: Column
    table: Column  # their rows, but for device, stream and start
    work_ns: int

    @classmethod
    def of(cls, columns: KernelColumns, chosen: list[int]) -> RemainderSchedule | None:
        """`chosen` are indices of a step's kernels."""
        at = np.array(chosen)
        if (columns.stream[at] != NONE).any() or (columns.edge >= 0).any():
            return None
        duration_ns = columns.duration_ns[at]
        sums_ns = np.cumsum(columns.gap_ns[at] + duration_ns)
        table = np.full((len(at), len(WORK_COLUMNS)), NONE, order="F")  # of which whole columns are written again
        known = {"kind": columns.kind[at], "name": columns.name[at], "bytes": columns.size_bytes[at]}
        for name, values in {**known, "duration_ns": duration_ns, "origin": int(Origin.PHASE)}.items():
            table[:, WORK_COLUMNS.index(name)] = values
        alone_ns = columns.launch_ns[at] + columns.latency_ns[at] + duration_ns - sums_ns
        return cls(alone_ns, sums_ns, duration_ns, table, int(duration_ns.sum()))

    def play(self, stream: VirtualStream, began_ns: int) -> Column:
        """Put them on `stream`; returns when each ends. `began_ns` is the host time that stands for the segment's start."""
        ends_ns: Column = self.sums_ns + np.maximum(np.maximum.accumulate(began_ns + self.alone_ns), stream.ready_ns)
        stream.push_all(ends_ns.tolist())
        return ends_ns

    def rows(self, stream: VirtualStream, ends_ns: Column) -> DeferredRows:
        """Their rows of the timeline."""
        starts_ns = ends_ns - self.duration_ns
        return DeferredRows.of(self.table, {_DEVICE: stream.device, _STREAM: stream.number, _START: starts_ns})
