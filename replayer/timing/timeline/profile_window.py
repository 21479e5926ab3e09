"""Adds the virtual GPU's kernels to a profile that the script records with torch.profiler.

    window, next_ops = timeline.watched()           # a Trace of the work since timeline.watch()
    with_virtual_gpu(kineto_json, window, shift_ns, ends, waits)  # Kineto's file plus the virtual GPU's events

Note [Ops with the same start time]
    With `--clock recorded` and `--clock virtual`, several ops can have the same start time. In the profile, each op lasts at
    least one nanosecond per kernel launch, because viewers assign launches to ops by time.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from replayer.timing.timeline.timeline_writer import LoaderWait
from replayer.timing.timing_rules import queue_ends
from traces.chrome.events import RankEvents
from traces.kineto.spans.nesting import nesting_order, parents
from traces.kineto.spans.python_calls import scripts_calls, with_ancestors
from traces.model.trace import NONE, Column, DeviceKind, DeviceSpans, HostKind, HostSpans, Trace
from traces.names.profiler_json import ProfilerJson

_CALLS = {
    DeviceKind.KERNEL: "cudaLaunchKernel",
    DeviceKind.MEMCPY: "cudaMemcpyAsync",
    DeviceKind.MEMSET: "cudaMemsetAsync",
}
# Kineto's profiles contain these names because of the dispatch of ops on virtual tensors
OUR_DISPATCH = ("PythonSubclass", "PythonDispatchMode", "prims::")
_OF_AUTOGRAD = ("Sequence number", "Fwd thread id")
_CALL, _ID, _CALLER = "python_function", "Python id", "Python parent id"
_NESTED = (_CALL, "user_annotation", "cpu_op", "cuda_runtime")  # if two events have the same times, the outer event comes first
_ON_HOST = ("cpu_op", "cuda_runtime", "cpu_instant_event")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_OF_LOADER = "enumerate(DataLoader)#"  # torch's name for the range in which a script waits for a batch
_BEYOND = 1 << 24  # first id of ops that are not in Kineto's file


def with_launches(trace: Trace) -> Trace:
    takes_ns = _with_separate_starts(trace)
    host, device = trace.host, trace.device
    linked = np.flatnonzero(np.append(host.kind == HostKind.OP, False)[device.launch])
    ops = device.launch[linked].astype(np.int64)
    _, first, of, counts = np.unique(ops, return_index=True, return_inverse=True, return_counts=True)
    turn = np.arange(len(ops)) - first[of]  # The kernels of an op are consecutive.
    share_ns = takes_ns[ops] // (counts[of] + 1)
    # a copy of pageable memory makes the host wait until the copy has ended
    pageable = np.array(["Pageable" in trace.strings[name] for name in device.name[linked].tolist()], bool)
    call_ns = np.where(pageable, np.minimum(share_ns, 1), share_ns)
    names = {int(kind): trace.strings.add(name) for kind, name in _CALLS.items()}
    calls = HostSpans.of(
        thread=host.thread[ops],
        kind=np.full(len(ops), HostKind.RUNTIME),
        name=np.array([names.get(kind, NONE) for kind in device.kind[linked].tolist()], np.int64),
        start_ns=host.start_ns[ops] + share_ns * (turn + 1) - call_ns,
        duration_ns=call_ns,
        parent=ops,
    )
    launch = device.launch.astype(np.int64)
    launch[linked] = len(host) + np.arange(len(linked))
    columns = device.columns() | {"launch": launch}
    trace.host, trace.device = HostSpans.concatenated([host, calls]), DeviceSpans.of(**columns)
    return trace


def _with_separate_starts(trace: Trace) -> Column:
    # see Note [Ops with the same start time]
    host = trace.host
    launches = np.bincount(trace.device.launch[trace.device.launch != NONE], minlength=len(host))
    takes_ns: Column = np.maximum(host.duration_ns, launches + 1)
    for thread in np.unique(host.thread):
        ops, waits = (np.flatnonzero((host.thread == thread) & (host.kind == kind)) for kind in (HostKind.OP, HostKind.RUNTIME))
        if not len(ops):
            continue
        starts_ns, lasts_ns = host.start_ns[ops], takes_ns[ops]
        of = np.searchsorted(starts_ns, host.start_ns[waits], "right") - 1
        held = (of >= 0) & (host.start_ns[waits] <= (starts_ns + lasts_ns)[of])
        waits, of = waits[held], of[held]
        begin_ns = np.maximum(host.start_ns[waits], (starts_ns + lasts_ns)[of])
        end_ns = np.maximum(host.start_ns[waits] + host.duration_ns[waits], begin_ns)
        np.maximum.at(lasts_ns, of, end_ns - starts_ns[of])
        later_ns = queue_ends(starts_ns + lasts_ns, lasts_ns, int(starts_ns[0])) - lasts_ns - starts_ns
        host.start_ns[ops], host.duration_ns[ops] = starts_ns + later_ns, lasts_ns
        host.start_ns[waits], host.duration_ns[waits] = begin_ns + later_ns[of], end_ns - begin_ns
    return takes_ns


class _Clocks:
    """Converts times (µs) from the machine's clock to the virtual clock."""

    def __init__(self, own_us: list[float], recorded_us: list[float]) -> None:
        self.tie(own_us, recorded_us)
        self._alone_us = np.zeros((0, 2))

    def tie(self, own_us: list[float], recorded_us: list[float]) -> None:
        order = np.argsort(own_us, kind="stable")
        self._own = np.array(own_us)[order]
        self._recorded = np.maximum.accumulate(np.array(recorded_us)[order])

    def tie_between(self, others: list[tuple[list[float], list[float]]]) -> None:
        own = np.array([time for times, _ in others for time in times])
        recorded = np.array([time for _, times in others for time in times])
        inside = (own > self._own[0]) & (own < self._own[-1])
        after = np.searchsorted(self._own, own[inside])
        kept = np.clip(recorded[inside], self._recorded[after - 1], self._recorded[after])
        self.tie([*self._own, *own[inside]], [*self._recorded, *kept])

    def pass_over(self, ops_us: list[tuple[float, float]]) -> None:
        self._alone_us = np.array(sorted(ops_us)).reshape(-1, 2)

    def recorded(self, own_us: float) -> float:
        at_us = self._between_ties(own_us)
        op = np.searchsorted(self._alone_us[:, 0], at_us, "left") - 1
        return at_us if op < 0 else max(at_us, float(self._alone_us[op, 1]))

    def _between_ties(self, own_us: float) -> float:
        if own_us <= self._own[0]:
            return float(self._recorded[0] - (self._own[0] - own_us))
        if own_us >= self._own[-1]:
            return float(self._recorded[-1] + (own_us - self._own[-1]))
        return float(np.interp(own_us, self._own, self._recorded))


def with_virtual_gpu(
    kineto: ProfilerJson, window: Trace, shift_ns: int, ends: list[tuple[int, int]], waits: Sequence[LoaderWait] = ()
) -> ProfilerJson:
    """Add the virtual GPU's events to a file of torch.profiler.

    - `shift_ns`: Unix time minus the virtual time of `window`
    - `ends`: the start and the end of the profile, each in Unix time and in virtual time (ns)
    """
    for table in (window.host, window.device, window.memory):
        start = "time_ns" if table is window.memory else "start_ns"
        setattr(table, start, getattr(table, start) + shift_ns)
    base_ns = int(kineto.get("baseTimeNanoseconds", 0))
    ours = RankEvents(with_launches(window), window.ranks[0])
    later_us = (ours.base_ns - base_ns) / 1000
    rows = [event for event in ours if _is_of_gpu(event)]
    rows_by_name = _by_name(rows)
    virtual, ours_alone = _virtual_and_ours(kineto["traceEvents"], {name for name, _ in rows_by_name})
    events, idle_calls = _scripts_calls([event for event in kineto["traceEvents"] if id(event) not in ours_alone])
    own = _by_name(events)
    taken: set[int] = set()
    ids: dict[Any, Any] = {}  # Kineto's ids; an outer op has a lower id than its inner ops
    pairs: dict[Any, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    alone: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    threads: dict[Any, Any] = {}
    for (name, thread), found in rows_by_name.items():
        there = own.get((name, thread)) or next((own[key] for key in own if key[0] == name), [])
        for event, row in _paired(there, found, virtual):
            taken.update((id(event), id(row)))
            args, new_args = row.setdefault("args", {}), event.get("args", {})
            ids[args.get("External id")] = new_args.get("External id")
            args |= {name: new_args[name] for name in _OF_AUTOGRAD if name in new_args}
            threads.setdefault(row["tid"], event["tid"])
            pairs[event["tid"]][0].extend((event["ts"], event["ts"] + event["dur"]))
            pairs[event["tid"]][1].extend((row["ts"] + later_us, row["ts"] + row["dur"] + later_us))
    for event, wait in _waits_paired(events, waits, base_ns):
        pairs[event["tid"]][0].extend((event["ts"], event["ts"] + event["dur"]))
        pairs[event["tid"]][1].extend((ns + shift_ns - base_ns) / 1000 for ns in (wait.start_ns, wait.end_ns))
    ends_own = [(own_ns - base_ns) / 1000 for own_ns, _ in ends]
    ends_recorded = [(recorded_ns + shift_ns - base_ns) / 1000 for _, recorded_ns in ends]
    for row in rows:
        if row.get("cat") == "cpu_op" and id(row) not in taken and row["tid"] in threads:
            alone[threads[row["tid"]]].append((row["ts"] + later_us, row["ts"] + row["dur"] + later_us))
    clocks = _clocks_of(ends_own, ends_recorded, pairs, alone)
    host = os.getpid()
    on_host = [row for row in rows if row.get("cat") in _ON_HOST or row.get("ph") == "s"]
    for tid in dict.fromkeys(row["tid"] for row in on_host):  # Kineto does not know threads that began during the profile
        threads.setdefault(tid, max((host, *threads.values())) + 1 if threads else host)
    for row in on_host:
        row["pid"], row["tid"] = host, threads[row["tid"]]
    result = [_moved(event, clocks[event.get("tid")]) for event in events if id(event) not in taken]
    result = [event for event in result if id(event) not in idle_calls or event["dur"]]  # Note [Ops with the same start time]
    for row in rows:
        if "ts" in row:
            row["ts"] = round(row["ts"] + later_us, 3)
        args = row.get("args")
        if isinstance(args, dict) and "External id" in args:
            kept = ids.get(args["External id"])
            args["External id"] = args["External id"] + _BEYOND if kept is None else kept
        result.append(row)
    result += _ranges_on_gpu(result)
    devices = [{"id": device.index, "name": device.name} for device in window.devices]
    return kineto | {"traceEvents": result, "deviceProperties": devices}


def _clocks_of(
    ends_own: list[float], ends_recorded: list[float], pairs: Mapping[Any, tuple[list[float], list[float]]],
    alone: Mapping[Any, list[tuple[float, float]]],
) -> defaultdict[Any, _Clocks]:  # fmt: skip
    """Return the clock of each thread. Each GPU call has a time on the machine's clock and a time on the virtual clock. Times
    between two GPU calls are interpolated."""
    of_other_threads = _Clocks(ends_own, ends_recorded)
    of_other_threads.tie_between(list(pairs.values()))
    clocks = defaultdict[Any, _Clocks](lambda: of_other_threads)
    for tid, (own_us, recorded_us) in pairs.items():
        clocks[tid] = _Clocks([*ends_own, *own_us], [*ends_recorded, *recorded_us])
        clocks[tid].pass_over(alone.get(tid, []))
        clocks[tid].tie_between([times for other, times in pairs.items() if other != tid])
    return clocks


def _ranges_on_gpu(events: list[ProfilerJson]) -> Iterator[ProfilerJson]:
    """Yield the GPU time range of each `record_function` block in the script."""
    work = {event["args"]["correlation"]: event for event in _spans(events, *_ON_GPU)}
    launches: dict[Any, list[tuple[float, ProfilerJson]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cuda_runtime" and (found := work.get(event.get("args", {}).get("correlation"))) is not None:
            launches[event["tid"]].append((event["ts"], found))
    for of_thread in launches.values():
        of_thread.sort(key=itemgetter(0))
    innermost: dict[int, tuple[ProfilerJson, ProfilerJson]] = {}
    for event in sorted(_spans(events, "user_annotation"), key=lambda event: (event["ts"], -event["dur"])):
        there = launches[event["tid"]]
        first, last = (bisect_left(there, at_us, key=itemgetter(0)) for at_us in (event["ts"], event["ts"] + event["dur"]))
        innermost |= {id(row): (event, row) for _, row in there[first:last]}
    rows_of: dict[tuple[int, Any, Any], list[tuple[ProfilerJson, ProfilerJson]]] = defaultdict(list)
    for event, row in innermost.values():
        rows_of[id(event), row["pid"], row["tid"]].append((event, row))
    for (_, device, stream), pairs in rows_of.items():
        event, begin_us = pairs[0][0], min(row["ts"] for _, row in pairs)
        took_us = round(max(row["ts"] + row["dur"] for _, row in pairs) - begin_us, 3)
        external_id = {name: value for name, value in event.get("args", {}).items() if name == "External id"}
        at = {"pid": device, "tid": stream, "ts": begin_us, "dur": took_us, "args": external_id}
        yield {"ph": "X", "cat": "gpu_user_annotation", "name": event["name"], **at}


class WindowOp(NamedTuple):
    """Describes an op in a profile."""

    thread: int
    name: str  # "" for kernels that no op launched
    start_ns: int
    kernels: list[tuple[str, int, int, int, int]]  # name, device, stream, start and duration (ns)
    allocated_bytes: int  # allocated minus freed in the op, with inner ops


def window_ops(window: Trace, next_ops: Column) -> Iterator[WindowOp]:
    strings, kernels = window.strings, defaultdict(list)
    device = window.device
    columns = ("launch", "name", "device", "stream", "start_ns", "duration_ns")
    for launch, name, row, *rest in zip(*(getattr(device, column).tolist() for column in columns), strict=True):
        kernels[launch].append((strings[name], window.devices[row].index, *rest))
    host = window.host
    ops = np.flatnonzero(host.kind == HostKind.OP).tolist()
    allocated = _allocated_bytes(window, next_ops)
    for op in ops:
        name = strings[host.name[op]]
        yield WindowOp(int(host.thread[op]), name, int(host.start_ns[op]), kernels.get(op, []), allocated[op])
    yield WindowOp(NONE, "", 0, kernels.get(NONE, []), allocated[NONE])


def _allocated_bytes(window: Trace, next_ops: Column) -> dict[int, int]:
    parent = window.host.parent.tolist()
    allocated: dict[int, int] = defaultdict(int)
    own: dict[int, int] = {}
    memory = window.memory
    for op, device, address, size_bytes in zip(
        next_ops.tolist(), memory.device.tolist(), memory.address.tolist(), memory.bytes.tolist(), strict=True
    ):
        if device == NONE:
            continue
        if size_bytes > 0:
            own[address] = op
        elif own.pop(address, NONE) != op:
            op = NONE
        allocated[op] += size_bytes
        while op != NONE and (op := parent[op]) != NONE:
            allocated[op] += size_bytes
    return allocated


def _is_of_gpu(event: ProfilerJson) -> bool:
    if event["ph"] == "M":
        return bool(str(event.get("args", {}).get("name", "")).startswith(("GPU", "stream")))
    return event.get("cat") not in ("Trace", "user_annotation")


def _is_our_dispatch(event: ProfilerJson) -> bool:
    return str(event.get("name", "")).startswith(OUR_DISPATCH)


def _spans(events: Iterable[ProfilerJson], *categories: str) -> list[ProfilerJson]:
    return [event for event in events if event.get("ph") == "X" and event.get("cat") in categories]


def _virtual_and_ours(events: list[ProfilerJson], names: set[str]) -> tuple[set[int], set[int]]:
    virtual, ours = set[int](), {id(event) for event in events if _is_our_dispatch(event)}
    ops, parent = _in_nesting_order(_spans(events, "cpu_op"))
    within = [False] * len(ops)
    for row, at in enumerate(parent):
        within[row] = at != NONE and (within[at] or ops[at]["name"] in names)
        if within[row]:
            ours.add(id(ops[row]))
        if _is_our_dispatch(ops[row]):
            while at != NONE and _is_our_dispatch(ops[at]):
                at = parent[at]
            virtual.update([id(ops[at])] if at != NONE else [])
    return virtual, ours


def _scripts_calls(events: list[ProfilerJson]) -> tuple[list[ProfilerJson], set[int]]:
    spans, above = _in_nesting_order(_spans(events, *_NESTED))
    is_call, parent = np.array([event["cat"] == _CALL for event in spans], bool), np.array(above, np.int64)
    if not is_call.any():
        return events, set()
    gone = np.flatnonzero(~scripts_calls(parent, is_call, [str(event["name"]) for event in spans])).tolist()
    idle = np.flatnonzero(~with_ancestors(parent, ~is_call)).tolist()
    callers = {spans[row]["args"].get(_ID): spans[row]["args"].get(_CALLER) for row in gone}
    for event in spans:
        while event["cat"] == _CALL and (caller := event["args"].get(_CALLER)) in callers:
            event["args"][_CALLER] = callers[caller]
    dropped = {id(spans[row]) for row in gone}
    return [event for event in events if id(event) not in dropped], {id(spans[row]) for row in idle}


def _in_nesting_order(spans: list[ProfilerJson]) -> tuple[list[ProfilerJson], list[int]]:
    start_ns, took_ns = (np.array([round(event[time] * 1000) for event in spans], np.int64) for time in ("ts", "dur"))
    outer = np.array([_NESTED.index(event["cat"]) for event in spans], np.int64)
    entry = np.array([event.get("args", {}).get("Ev Idx", 0) for event in spans], np.int64)
    order, parent = nesting_of([event["tid"] for event in spans], start_ns, took_ns, outer, entry)
    return [spans[place] for place in order.tolist()], parent.tolist()


def nesting_of(
    threads: Iterable[Any], start_ns: Column, took_ns: Column, outer: Column, entry: Column
) -> tuple[Column, Column]:
    """Return the indices that sort the events by time, and the parents of the sorted events. A parent is the index of the
    enclosing event among the sorted events."""
    numbers: dict[Any, int] = {}
    thread = np.array([numbers.setdefault(one, len(numbers)) for one in threads])
    order = nesting_order(thread, start_ns, took_ns, outer, entry)
    none = np.zeros(len(order), bool)
    parent, _, _ = parents(thread[order], start_ns[order], (start_ns + took_ns)[order], none, none)
    return order, parent


def _by_name(events: list[ProfilerJson]) -> dict[tuple[str, Any], list[ProfilerJson]]:
    found = defaultdict(list)
    for event in _spans(events, "cpu_op"):
        found[event["name"], event["tid"]].append(event)
    for of_name in found.values():
        of_name.sort(key=lambda event: event["ts"])
    return dict(found)


def _paired(
    there: list[ProfilerJson], found: list[ProfilerJson], virtual: set[int]
) -> Iterator[tuple[ProfilerJson, ProfilerJson]]:
    if len(there) == len(found):
        yield from zip(there, found, strict=True)
        return
    kinds: dict[str, tuple[list[ProfilerJson], list[ProfilerJson]]] = defaultdict(lambda: ([], []))
    for side, events in enumerate((there, found)):
        for event in events:
            args = event.get("args", {})
            shapes, dtypes = args.get("Input Dims", ()), args.get("Input type", ())
            kinds[repr([pair for pair in zip(shapes, dtypes, strict=False) if pair[0]])][side].append(event)
    left: tuple[list[ProfilerJson], list[ProfilerJson]] = [], []
    for alike, rows in kinds.values():
        if len(alike) == len(rows):
            yield from zip(alike, rows, strict=True)
        else:
            left[0].extend(event for event in alike if id(event) in virtual)
            left[1].extend(rows)
    if len(left[0]) == len(left[1]):
        yield from zip(*(sorted(events, key=lambda event: event["ts"]) for events in left), strict=True)


def _waits_paired(
    events: list[ProfilerJson], waits: Sequence[LoaderWait], base_ns: int
) -> Iterator[tuple[ProfilerJson, LoaderWait]]:
    for event in events:
        if event.get("ph") == "X" and str(event["name"]).startswith(_OF_LOADER):
            middle_ns = base_ns + round((event["ts"] + event["dur"] / 2) * 1000)
            wait = next((wait for wait in waits if wait.own_start_ns <= middle_ns <= wait.own_end_ns), None)
            if wait is not None:
                yield event, wait


def _moved(event: ProfilerJson, clocks: _Clocks) -> ProfilerJson:
    if "ts" in event and event.get("ph") != "M":
        start_ns = round(clocks.recorded(event["ts"]) * 1000)
        if "dur" in event:  # move both ends, so that adjacent events stay adjacent
            event["dur"] = max(round(clocks.recorded(event["ts"] + event["dur"]) * 1000) - start_ns, 0) / 1000
        event["ts"] = start_ns / 1000
    return event
