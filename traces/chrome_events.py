"""The events of one rank as Chrome's trace format has them, in the dialect of torch.profiler 2.4 and newer.

    for event in RankEvents(trace, rank=0): ...
    # {"ph": "X", "cat": "kernel", "name": "volta_sgemm_128x64_nn", "pid": 0, "tid": 7, "ts": 5123.25, "dur": 81,
    #  "args": {"device": 0, "stream": 7, "correlation": 91, "External id": 12}}

What the trace does not hold is not made up: no grid and block sizes, no registers. Correlation ids are numbered anew.
What is no thread's and no stream's has tracks of its own (chrome_tracks.py), and steps and parts without a range get one.
Spans may be clipped: see Note [Strict nesting] in chrome_nesting.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from traces.chrome_nesting import after_work, nested_ends
from traces.chrome_tracks import RANGE_OF_PARTS, TRACK_OF_PHASES, side_tracks
from traces.kineto.eras import DTYPES
from traces.measure import op_of
from traces.model import NONE, Column, DeviceKind, HostKind, HostSpans, Trace, parse_shapes

Event = dict[str, Any]

_HOST_PID = 10_000  # plus the rank; no device has such an index
_SYNC_TID = 1_000_000  # from a stream's track to that of its synchronisations

_HOST_CATEGORY = {
    HostKind.OP: "cpu_op",
    HostKind.RUNTIME: "cuda_runtime",
    HostKind.ANNOTATION: "user_annotation",
    HostKind.PYTHON: "python_function",
    HostKind.OTHER: "overhead",
}
_DEVICE_CATEGORY = {
    DeviceKind.KERNEL: "kernel",
    DeviceKind.MEMCPY: "gpu_memcpy",
    DeviceKind.MEMSET: "gpu_memset",
    DeviceKind.SYNC: "cuda_sync",
    DeviceKind.ANNOTATION: "gpu_user_annotation",
}
_SIDE_CATEGORY = "Trace"  # readers of Kineto's files leave it out of their sums
_CPP_DTYPES = {name: cpp for cpp, name in reversed(DTYPES.items())}
_CPU, _CUDA = 0, 1  # `Device Type` of memory events


class RankEvents:
    """Iterates over the events of one rank. `base_ns` is what the stamps count from."""

    def __init__(self, trace: Trace, rank: int) -> None:
        self.trace = trace
        self.rank = rank
        self._pid = _HOST_PID + rank
        thread_ranks = np.array([thread.rank for thread in trace.threads] or [0])
        device_ranks = np.array([device.rank for device in trace.devices] or [0])
        self._host_rows = np.flatnonzero(thread_ranks[trace.host.thread] == rank)
        self._device_rows = np.flatnonzero(device_ranks[trace.device.device] == rank)
        self._step_rows = np.flatnonzero(trace.steps.rank == rank)
        memory = trace.memory
        owner = np.where(memory.device >= 0, device_ranks[memory.device], thread_ranks[memory.thread])
        self._memory_rows = np.flatnonzero(owner == rank)
        tables: list[tuple[Any, Column]] = [(trace.host, self._host_rows), (trace.device, self._device_rows)]
        tables += [(table, np.flatnonzero(table.rank == rank)) for table in (trace.steps, trace.batches, trace.collectives)]
        first_ns = min((int(table.start_ns[rows].min()) for table, rows in tables if len(rows)), default=0)
        # Whole seconds keep stamps that were whole microseconds whole, and all of them exact in a float.
        self.base_ns = max(first_ns // 10**9 * 10**9, 0)
        self._tids = _unique_tids(trace)
        self._correlate()

    def __iter__(self) -> Iterator[Event]:
        yield from self._names()
        yield from self._side_tracks()
        yield from self._host()
        yield from self._memory()
        yield from self._device()

    def _correlate(self) -> None:
        """Number the launches.

        From beyond the ids of ops on, so that a correlation never looks like an op's id; and beyond 16 bits, for
        Holistic Trace Analysis stores rows of events in the narrow integers that hold the correlations.
        """
        device = self.trace.device
        launch = device.launch[self._device_rows].astype(np.int64)
        first_id = len(self.trace.host) + (1 << 16)
        launches, number = np.unique(launch, return_inverse=True)
        lone = launch < 0
        number[lone] = len(launches) + np.arange(int(lone.sum()))
        self._correlation = first_id + number
        self._op = op_of(self.trace)[self._device_rows]
        linked = np.flatnonzero(~lone)
        self._launch_ids = dict(zip(launch[linked].tolist(), self._correlation[linked].tolist(), strict=True))
        self._launch_ops = dict(zip(launch[linked].tolist(), self._op[linked].tolist(), strict=True))

    def _names(self) -> Iterator[Event]:
        yield from _process(self._pid, f"host, rank {self.rank}", "CPU", -1)
        for thread, tid in zip(self.trace.threads, self._tids, strict=True):
            if thread.rank == self.rank:
                yield _thread(self._pid, tid, thread.name or f"thread {tid} ({thread.role})")
        for device in self.trace.devices:
            if device.rank == self.rank:
                yield from _process(
                    device.index, f"GPU {device.index} {device.name}", f"GPU {device.index}", device.index
                )
        tracks = zip(*(column.tolist() for column in self._tracks()), strict=True)
        for row, stream, sync in sorted(set(tracks)):
            pid, tid = self.trace.devices[row].index, stream + sync * _SYNC_TID
            yield _thread(pid, tid, f"stream {stream} (sync)" if sync else f"stream {stream}")
            yield _thread_order(pid, tid, stream * 2 + sync)

    def _side_tracks(self) -> Iterator[Event]:
        for track in side_tracks(self.trace, self.rank):
            pid = self._pid if track.device == NONE else self.trace.devices[track.device].index
            yield _thread(pid, track.tid, track.name)
            yield _thread_order(pid, track.tid, track.order)
            for span in track.spans():
                event = self._slice(_SIDE_CATEGORY, span.name, pid, track.tid, span.start_ns, span.end_ns)
                yield event | {"args": span.args} if span.args else event

    def _host(self) -> Iterator[Event]:
        host, strings = self.trace.host, self.trace.strings
        table = host.take(self._host_rows)
        marks, texts = self._missing_ranges()
        ends = nested_ends(
            (np.concatenate([marks.thread, table.thread]),),
            np.concatenate([marks.start_ns, table.start_ns]),
            np.concatenate([marks.end_ns, table.end_ns]),
        )
        tids = [*self._tids, TRACK_OF_PHASES]
        for row, (text, end_ns) in enumerate(zip(texts, ends[: len(marks)].tolist(), strict=True)):
            yield self._slice("user_annotation", text, self._pid, tids[marks.thread[row]], marks.start_ns[row], end_ns)
        ends = ends[len(marks) :]
        dims: dict[int, list[list[int]]] = {}
        types: dict[int, list[str]] = {}
        columns = (self._host_rows, table.thread, table.kind, table.name, table.start_ns, ends)
        more = (table.shapes, table.dtypes, table.sequence, table.forward_thread)
        for row, thread, kind, name, start_ns, end_ns, shapes, dtypes, sequence, forward in zip(
            *(column.tolist() for column in columns + more), strict=True
        ):
            event = self._slice(_HOST_CATEGORY[kind], strings[name], self._pid, self._tids[thread], start_ns, end_ns)
            args = event["args"] = {}
            if kind == HostKind.OP:
                args["External id"] = row + 1
            elif kind == HostKind.RUNTIME and not strings[name].startswith(("cuda", "hip")):
                event["cat"] = "cuda_driver" if strings[name].startswith("cu") else "cuda_runtime"
            if sequence != NONE:
                args["Sequence number"] = sequence
                args["Fwd thread id"] = max(forward, 0)
            if shapes != NONE:
                if shapes not in dims:
                    dims[shapes] = [list(shape) for shape in parse_shapes(strings[shapes])]
                args["Input Dims"] = dims[shapes]
            if dtypes != NONE:
                if dtypes not in types:
                    types[dtypes] = [_CPP_DTYPES.get(dtype, dtype) for dtype in strings[dtypes].split(";")]
                args["Input type"] = types[dtypes]
            if (correlation := self._launch_ids.get(row)) is not None:
                args["correlation"] = correlation
                if (op := self._launch_ops[row]) != NONE:
                    args["External id"] = op + 1
                yield event
                flow = {"ph": "s", "id": correlation, "cat": "ac2g", "name": "ac2g"}
                yield {**flow, "pid": event["pid"], "tid": event["tid"], "ts": event["ts"]}
            else:
                yield event

    def _missing_ranges(self) -> tuple[HostSpans, list[str]]:
        """Ranges as torch.profiler and our recorder make them, where there is none, and their names: around each step, and
        around the parts of nn.DataParallel.

        Steps go on the main thread, for there readers look for what a step consists of; without threads, with the phases.
        """
        trace, steps = self.trace, self.trace.steps.take(self._step_rows)
        known = [trace.strings[name] for name in np.unique(trace.host.name[self._host_rows]).tolist()]
        found, texts = [HostSpans.empty()], []
        if not any(name.startswith("ProfilerStep#") for name in known):
            mine = [row for row, thread in enumerate(trace.threads) if thread.rank == self.rank]
            main = [row for row in mine if trace.threads[row].role == "main"]
            thread = np.full(len(steps), [*main, *mine, len(trace.threads)][0])
            found.append(HostSpans.of(thread=thread, start_ns=steps.start_ns, duration_ns=steps.duration_ns))
            texts += [f"ProfilerStep#{number}" for number in steps.number.tolist()]
        if not any(name.startswith(RANGE_OF_PARTS) for name in known):
            thread_ranks = np.array([*(thread.rank for thread in trace.threads), NONE])
            parts = trace.parts.take(thread_ranks[trace.parts.thread] == self.rank)
            found.append(HostSpans.of(thread=parts.thread, start_ns=parts.start_ns, duration_ns=parts.duration_ns))
            for name, device in zip(parts.name.tolist(), parts.device.tolist(), strict=True):
                of = f"#{trace.devices[device].index}" if device != NONE else ""
                texts.append(f"{RANGE_OF_PARTS}{trace.strings[name]}{of}")
        return HostSpans.concatenated(found), texts

    def _memory(self) -> Iterator[Event]:
        memory = self.trace.memory.take(self._memory_rows)
        for thread, device, time_ns, size, address, allocated, reserved in zip(
            *(column.tolist() for column in memory.columns().values()), strict=True
        ):
            args = {
                "Device Type": _CUDA if device >= 0 else _CPU,
                "Device Id": self.trace.devices[device].index if device >= 0 else -1,
                "Bytes": size,
            }
            if address:
                args["Addr"] = address
            if allocated != NONE:
                args["Total Allocated"] = allocated
            if reserved != NONE:
                args["Total Reserved"] = reserved
            tid = self._tids[thread] if thread >= 0 else 0
            event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": self._pid, "tid": tid}
            yield {**event, "ts": self._stamp(time_ns), "args": args}

    def _device(self) -> Iterator[Event]:
        strings, devices = self.trace.strings, self.trace.devices
        table = self.trace.device.take(self._device_rows)
        tracks = self._tracks()
        ranges = table.kind == DeviceKind.ANNOTATION
        starts = after_work(tracks, table.start_ns, table.end_ns, ranges)
        ends = nested_ends(tracks, starts, table.end_ns, keep_later=True)
        columns = (
            *tracks,
            table.kind,
            table.name,
            starts,
            ends,
            table.launch,
            table.bytes,
            self._correlation,
            self._op,
        )
        for row, stream, sync, kind, name, start_ns, end_ns, launch, size, correlation, op in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            pid, tid = devices[row].index, stream + sync * _SYNC_TID
            event = self._slice(_DEVICE_CATEGORY[kind], strings[name], pid, tid, start_ns, end_ns)
            if (
                kind == DeviceKind.ANNOTATION
            ):  # torch.profiler writes no stream here, and readers would take it for work
                yield event
                continue
            args = event["args"] = {"device": pid, "stream": stream, "correlation": correlation}
            if op != NONE:
                args["External id"] = op + 1
            if size != NONE:
                args["bytes"] = size
            yield event
            if launch != NONE:
                flow = {"ph": "f", "id": correlation, "cat": "ac2g", "name": "ac2g", "bp": "e"}
                yield {**flow, "pid": pid, "tid": tid, "ts": event["ts"]}

    def _tracks(self) -> tuple[Column, Column, Column]:
        """Device row, stream and whether it is on the track beside the stream's, of each device span."""
        table = self.trace.device.take(self._device_rows)
        return table.device, table.stream, table.kind == DeviceKind.SYNC

    def _slice(self, category: str, name: str, pid: int, tid: int, start_ns: int, end_ns: int) -> Event:
        stamp, duration = self._stamp(start_ns), _microseconds(int(end_ns - start_ns))
        return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": stamp, "dur": duration}

    def _stamp(self, time_ns: int) -> int | float:
        return _microseconds(int(time_ns - self.base_ns))


def _unique_tids(trace: Trace) -> list[int]:
    """The threads' ids by row; where two threads of one rank have the same, the second gets a free one."""
    taken: set[tuple[int, int]] = set()
    tids = []
    for thread in trace.threads:
        tid = thread.tid
        while (thread.rank, tid) in taken:
            tid += 1
        taken.add((thread.rank, tid))
        tids.append(tid)
    return tids


def _microseconds(time_ns: int) -> int | float:
    """Whole microseconds as integers, as short as can be; else with up to three decimals."""
    return time_ns // 1000 if time_ns % 1000 == 0 else time_ns / 1000


def _process(pid: int, name: str, label: str, order: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "ts": 0, "args": {"labels": label}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "ts": 0, "args": {"sort_index": order}}


def _thread(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _thread_order(pid: int, tid: int, order: int) -> Event:
    return {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "ts": 0, "args": {"sort_index": order}}
