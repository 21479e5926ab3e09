"""Schedules recorded kernels that match no op of the script.

    schedule = RemainderSchedule.of(step.columns, [4, 7, 8])    # None if a kernel waits for another stream
    rows = schedule.play(stream, began_ns)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replayer.recording.recorded_step import KernelColumns
from replayer.timing.stream import VirtualStream
from replayer.timing.timeline.timeline_writer import WORK_COLUMNS, DeferredRows
from replayer.timing.timing_rules import queue_ends
from traces.model.trace import NONE, Column, Origin

WORK = {name: i for i, name in enumerate(WORK_COLUMNS)}


@dataclass(slots=True, eq=False)
class RemainderSchedule:
    alone_ns: Column
    gap_ns: Column
    duration_ns: Column
    work_rows: Column
    work_ns: int

    @classmethod
    def of(cls, columns: KernelColumns, chosen: list[int]) -> RemainderSchedule | None:
        at = np.array(chosen)
        if (columns.stream[at] != NONE).any() or (columns.edge != NONE).any():
            return None
        duration_ns = columns.duration_ns[at]
        work_rows = work_rows_of(columns, at, duration_ns)
        work_rows[:, WORK["origin"]] = int(Origin.PHASE)
        alone_ns = columns.launch_ns[at] + columns.latency_ns[at] + duration_ns
        return cls(alone_ns, columns.gap_ns[at], duration_ns, work_rows, int(duration_ns.sum()))

    def play(self, stream: VirtualStream, began_ns: int) -> DeferredRows:
        ends_ns = queue_ends(began_ns + self.alone_ns, self.gap_ns + self.duration_ns, stream.ready_ns)
        stream.push_all(ends_ns.tolist())
        starts_ns = ends_ns - self.duration_ns
        written: dict[int, Column | int] = {WORK["device"]: stream.device, WORK["stream"]: stream.number}
        return DeferredRows.of(self.work_rows, written | {WORK["start_ns"]: starts_ns})


def work_rows_of(columns: KernelColumns, at: Column, duration_ns: Column) -> Column:
    # stored by column, because whole columns are overwritten
    rows = np.full((len(at), len(WORK_COLUMNS)), NONE, order="F")
    for name, values in {"kind": columns.kind, "name": columns.name, "bytes": columns.size_bytes}.items():
        rows[:, WORK[name]] = values[at]
    rows[:, WORK["duration_ns"]] = duration_ns
    return rows
