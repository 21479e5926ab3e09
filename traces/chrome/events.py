"""Creates Chrome trace events in the format of torch.profiler 2.4.

    for event in RankEvents(trace, rank=0): ...
    # {"ph": "X", "cat": "kernel", "name": "volta_sgemm_128x64_nn", "pid": 0, "tid": 7, "ts": 5123.25, "dur": 81,
    #  "args": {"device": 0, "stream": 7, "correlation": 91, "External id": 12}}
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from math import prod

import numpy as np

from traces.chrome.counters import counters
from traces.chrome.export_notes import COUNTER, EventNotes, ExportNotes
from traces.chrome.strict_nesting import after_work, nested_ends
from traces.chrome.tracks import RANGE_OF_PARTS, TRACK_OF_PHASES, side_tracks
from traces.combining.merge import trace_of_ranks
from traces.figures.measure import op_of
from traces.kineto.reading.eras import DTYPES
from traces.model.layouts import LAYOUT_ARG
from traces.model.trace import NONE, UNKNOWN_LIST, Column, Device, DeviceKind, HostKind, HostSpans, Strings, Trace, parse_shapes
from traces.names.launch_configs import config_args
from traces.names.profiler_json import ProfilerJson

_HOST_PID = 10_000  # added to the rank; larger than any device index
_NO_THREAD = 1_000_000_009  # the track of events without a recorded thread
_SYNC_TID = 1_000_000  # added to a stream's track number for the track of its synchronizations

_RANGES = "user_annotation"
_HOST_CATEGORY = {
    HostKind.OP: "cpu_op",
    HostKind.RUNTIME: "cuda_runtime",
    HostKind.ANNOTATION: _RANGES,
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
_SIDE_CATEGORY = "Trace"  # readers of Kineto files ignore this category when they compute sums
_CPP_DTYPES = {name: cpp for cpp, name in reversed(DTYPES.items())}
_CPU, _CUDA = 0, 1  # values of `Device Type` in memory events


class RankEvents:
    """Iterates over the events of one rank. Time stamps are relative to `base_ns`."""

    def __init__(self, whole: Trace, rank: int) -> None:
        self.trace = trace = trace_of_ranks(whole, [rank])
        self.rank = rank
        self._whole = whole
        self._pid = _HOST_PID + rank
        tables = (trace.host, trace.device, trace.steps, trace.phases, trace.parts, trace.batches, trace.collectives)
        times_ns = [*(table.start_ns for table in tables), trace.memory.time_ns]
        first_ns = min((int(of.min()) for of in times_ns if len(of)), default=0)
        # Time stamps are not Unix times, because a float cannot store Unix times with nanosecond precision. Some viewers reject
        # the time stamp 0, so the first event begins at 1 µs or later.
        self.base_ns = max((first_ns - 1000) // 10**9 * 10**9, 0)
        self._tids = _unique_tids(trace)
        self._correlate()
        self._marks, self._mark_names = self._missing_ranges()
        self._nest()

    def _nest(self) -> None:
        # see Note [Strict nesting] in traces/chrome/strict_nesting.py
        host, device, marks = self.trace.host, self.trace.device, self._marks
        is_step_mark = self.trace.strings.matching(host.name, lambda text: text.startswith("ProfilerStep#"))
        uncut = np.concatenate(
            [
                np.array([text.startswith("ProfilerStep#") for text in self._mark_names], bool),
                (host.kind == HostKind.ANNOTATION) & is_step_mark,
            ]
        )
        ends = nested_ends(
            (np.concatenate([marks.thread, host.thread]),),
            np.concatenate([marks.start_ns, host.start_ns]),
            np.concatenate([marks.end_ns, host.end_ns]),
            uncut=uncut,
        )
        self._mark_ends, self._host_ends = ends[: len(marks)], ends[len(marks) :]
        self._device_starts = after_work(self._tracks(), device.start_ns, device.end_ns, device.kind == DeviceKind.ANNOTATION)
        self._device_ends = nested_ends(self._tracks(), self._device_starts, device.end_ns, keep_later=True)

    def notes(self) -> str:
        trace = self.trace
        of_host = np.array([*map(self._host_category, trace.host.kind.tolist(), trace.host.name.tolist())], object)
        of_device = np.array([_DEVICE_CATEGORY[kind] for kind in trace.device.kind.tolist()], object)
        events = {}
        for table, categories, starts, ends in (
            (trace.host, of_host, trace.host.start_ns, self._host_ends),
            (trace.device, of_device, self._device_starts, self._device_ends),
        ):
            for category in dict.fromkeys(categories.tolist()):
                rows = np.flatnonzero(categories == category)
                own = EventNotes(len(self._marks) if category == _RANGES else 0)
                moved = np.flatnonzero((starts[rows] != table.start_ns[rows]) | (ends[rows] != table.end_ns[rows]))
                times = (own.added + moved, table.start_ns[rows[moved]], table.duration_ns[rows[moved]])
                own.times = np.stack(times, axis=1).tolist()
                if table is trace.device and trace.device.origin[rows].any():
                    own.origins = trace.device.origin[rows].tolist()
                if own != EventNotes():
                    events[category] = own
        if len(self._marks):
            events.setdefault(_RANGES, EventNotes(len(self._marks)))
        return ExportNotes.of(trace, self._whole, self._tids, events).text(trace.strings)

    def __iter__(self) -> Iterator[ProfilerJson]:
        yield from self._names()
        yield from self._side_tracks()
        yield from self._host()
        yield from self._memory()
        yield from self._device()
        yield from self._counters()

    def _correlate(self) -> None:
        """Assign correlation ids to kernels and launches. Holistic Trace Analysis rejects small ids in long traces, so ids
        start at 2**16."""
        launch = self.trace.device.launch.astype(np.int64)
        first_id = len(self.trace.host) + (1 << 16)
        launches, number = np.unique(launch, return_inverse=True)
        lone = launch == NONE
        number[lone] = len(launches) + np.arange(int(lone.sum()))
        self._correlation = first_id + number
        self._op = op_of(self.trace)
        linked = np.flatnonzero(~lone)
        self._launch_ids = dict(zip(launch[linked].tolist(), self._correlation[linked].tolist(), strict=True))
        self._launch_ops = dict(zip(launch[linked].tolist(), self._op[linked].tolist(), strict=True))

    def _names(self) -> Iterator[ProfilerJson]:
        yield from _process(self._pid, f"host, rank {self.rank}", "CPU", -1)
        for thread, tid in zip(self.trace.threads, self._tids, strict=True):
            yield _metadata(self._pid, tid, "thread_name", name=thread.name or f"thread {tid} ({thread.role})")
        for device in self.trace.devices:
            yield from _process(device.index, f"GPU {device.index} {device.name}", f"GPU {device.index}", device.index)
        tracks = zip(*(column.tolist() for column in self._tracks()), strict=True)
        for row, stream, sync in sorted(set(tracks)):
            pid, tid = self.trace.devices[row].index, stream + sync * _SYNC_TID
            yield from _track(pid, tid, f"stream {stream} (sync)" if sync else f"stream {stream}", stream * 2 + sync)

    def _side_tracks(self) -> Iterator[ProfilerJson]:
        for track in side_tracks(self.trace):
            pid = self._pid if track.device == NONE else self.trace.devices[track.device].index
            yield from _track(pid, track.tid, track.name, track.order)
            for span in track.spans():
                event = self._slice(_SIDE_CATEGORY, span.name, pid, track.tid, span.start_ns, span.end_ns)
                yield event | {"args": span.args} if span.args else event

    def _host(self) -> Iterator[ProfilerJson]:
        table, strings = self.trace.host, self.trace.strings
        marks, tids = self._marks, [*self._tids, TRACK_OF_PHASES]
        for row, (text, end_ns) in enumerate(zip(self._mark_names, self._mark_ends.tolist(), strict=True)):
            yield self._slice(_RANGES, text, self._pid, tids[marks.thread[row]], marks.start_ns[row], end_ns)
        inputs = cache(partial(_inputs, strings))
        columns = (table.thread, table.kind, table.name, table.start_ns, self._host_ends)
        more = (table.shapes, table.dtypes, table.sequence, table.forward_thread, table.stack, table.layout)
        for row, (thread, kind, name, start_ns, end_ns, shapes, dtypes, sequence, forward, stack, layout) in enumerate(
            zip(*(column.tolist() for column in columns + more), strict=True)
        ):
            category = self._host_category(kind, name)
            event = self._slice(category, strings[name], self._pid, self._tids[thread], start_ns, end_ns)
            args = event["args"] = {}
            if kind == HostKind.OP:
                args["External id"] = row + 1
            if sequence != NONE:
                args["Sequence number"] = sequence
            if sequence != NONE or forward != NONE:
                args["Fwd thread id"] = max(forward, 0)
            args |= inputs(shapes, dtypes)
            if layout != NONE:
                args[LAYOUT_ARG] = strings[layout]
            if stack != NONE:
                args["Call stack"] = strings[stack]
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
        """Add events for steps and for stages of nn.DataParallel if the trace does not contain such events. Tools that read
        profiles expect a range named "ProfilerStep#" for each step."""
        trace, steps = self.trace, self.trace.steps
        known = [trace.strings[name] for name in np.unique(trace.host.name).tolist()]
        found, texts = [HostSpans.empty()], []
        if not any(name.startswith("ProfilerStep#") for name in known):
            main = [row for row, thread in enumerate(trace.threads) if thread.role == "main"]
            thread = np.full(len(steps), [*main, 0][0])
            found.append(HostSpans.of(thread=thread, start_ns=steps.start_ns, duration_ns=steps.duration_ns))
            texts += [f"ProfilerStep#{number}" for number in steps.number.tolist()]
        if not any(name.startswith(RANGE_OF_PARTS) for name in known):
            parts = trace.parts.take(trace.parts.thread != NONE)
            found.append(HostSpans.of(thread=parts.thread, start_ns=parts.start_ns, duration_ns=parts.duration_ns))
            for name, device in zip(parts.name.tolist(), parts.device.tolist(), strict=True):
                of = f"#{trace.devices[device].index}" if device != NONE else ""
                texts.append(f"{RANGE_OF_PARTS}{trace.strings[name]}{of}")
        return HostSpans.concatenated(found), texts

    def _host_category(self, kind: int, name: int) -> str:
        text = self.trace.strings[name]
        if kind == HostKind.RUNTIME and text.startswith("cu") and not text.startswith("cuda"):
            return "cuda_driver"
        return _HOST_CATEGORY[HostKind(kind)]

    def _memory(self) -> Iterator[ProfilerJson]:
        memory = self.trace.memory
        for thread, device, time_ns, size, address, allocated, reserved in zip(
            *(column.tolist() for column in memory.columns().values()), strict=True
        ):
            args = {
                "Device Type": _CUDA if device != NONE else _CPU,
                "Device Id": self.trace.devices[device].index if device != NONE else -1,
                "Bytes": size,
            }
            if address:
                args["Addr"] = address
            if allocated != NONE:
                args["Total Allocated"] = allocated
            if reserved != NONE:
                args["Total Reserved"] = reserved
            tid = self._tids[thread] if thread != NONE else _NO_THREAD
            event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": self._pid, "tid": tid}
            yield {**event, "ts": self._stamp(time_ns), "args": args}

    def _device(self) -> Iterator[ProfilerJson]:
        strings, devices = self.trace.strings, self.trace.devices
        table = self.trace.device
        per_device = [_units(device) for device in devices]
        columns = (*self._tracks(), table.kind, table.name, self._device_starts, self._device_ends, table.duration_ns)
        more = (table.launch, table.bytes, self._correlation, self._op, table.config, table.graph, table.graph_node)
        for row, stream, sync, kind, name, start_ns, end_ns, took_ns, launch, size, correlation, op, config, graph, node in zip(
            *(column.tolist() for column in columns + more), strict=True
        ):
            pid, tid = devices[row].index, stream + sync * _SYNC_TID
            event = self._slice(_DEVICE_CATEGORY[kind], strings[name], pid, tid, start_ns, end_ns)
            if kind == DeviceKind.ANNOTATION:  # like torch.profiler; readers count events with a stream as work
                yield event
                continue
            args = event["args"] = {"device": pid, "stream": stream, "correlation": correlation}
            if op != NONE:
                args["External id"] = op + 1
            if size != NONE:
                args["bytes"] = size
                if took_ns > 0 and kind != DeviceKind.KERNEL:
                    args["memory bandwidth (GB/s)"] = size / took_ns
            if config != NONE:
                args |= _config(strings[config], *per_device[row])
            if graph != NONE:
                args["graph id"] = graph
            if node != NONE:
                args["graph node id"] = node
            yield event
            if launch != NONE:
                flow = {"ph": "f", "id": correlation, "cat": "ac2g", "name": "ac2g", "bp": "e"}
                yield {**flow, "pid": pid, "tid": tid, "ts": event["ts"]}

    def _counters(self) -> Iterator[ProfilerJson]:
        phase, category = COUNTER
        for of in counters(self.trace):
            event = {"ph": phase, "cat": category, "name": of.name, "pid": self.trace.devices[of.device].index, "tid": 0}
            for time_ns, value in zip(of.time_ns.tolist(), of.value.tolist(), strict=True):
                yield {**event, "ts": self._stamp(time_ns), "args": {of.unit: value}}

    def _tracks(self) -> tuple[Column, Column, Column]:
        table = self.trace.device
        return table.device, table.stream, table.kind == DeviceKind.SYNC

    def _slice(self, category: str, name: str, pid: int, tid: int, start_ns: int, end_ns: int) -> ProfilerJson:
        stamp, duration = self._stamp(start_ns), _microseconds(int(end_ns - start_ns))
        return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": stamp, "dur": duration}

    def _stamp(self, time_ns: int) -> int | float:
        return _microseconds(int(time_ns - self.base_ns))


def _inputs(strings: Strings, shapes: int, dtypes: int) -> ProfilerJson:
    args: ProfilerJson = {}
    parts = strings[shapes].split(";") if strings[shapes] else []
    if shapes != NONE:
        args["Input Dims"] = [list(*parse_shapes(part)) for part in parts]
    if dtypes != NONE:
        types = [_CPP_DTYPES.get(dtype, dtype) for dtype in strings[dtypes].split(";")]
        args["Input type"] = [
            "TensorList" if place < len(parts) and parts[place] == UNKNOWN_LIST else recorded
            for place, recorded in enumerate(types)
        ]
    return args


def _units(device: Device) -> tuple[int, int]:
    return max(device.properties.multi_processor_count or 0, 0), max(device.properties.warp_size or 0, 0)


def _config(text: str, multiprocessors: int, warp: int) -> ProfilerJson:
    args: ProfilerJson = dict(config_args(text))
    if "grid" in args and "block" in args and multiprocessors and warp:
        args["blocks per SM"] = prod(args["grid"]) / multiprocessors
        args["warps per SM"] = args["blocks per SM"] * -(-prod(args["block"]) // warp)
    return args


def _unique_tids(trace: Trace) -> list[int]:
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
    return time_ns // 1000 if time_ns % 1000 == 0 else time_ns / 1000


def _metadata(pid: int, tid: int, event_name: str, **args: object) -> ProfilerJson:
    return {"ph": "M", "name": event_name, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _process(pid: int, name: str, label: str, order: int) -> Iterator[ProfilerJson]:
    yield _metadata(pid, 0, "process_name", name=name)
    yield _metadata(pid, 0, "process_labels", labels=label)
    yield _metadata(pid, 0, "process_sort_index", sort_index=order)


def _track(pid: int, tid: int, name: str, order: int) -> Iterator[ProfilerJson]:
    yield _metadata(pid, tid, "thread_name", name=name)
    yield _metadata(pid, tid, "thread_sort_index", sort_index=order)
