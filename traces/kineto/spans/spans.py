"""Builds the tables of CPU events, GPU events and memory events of one rank.

    tables = read_tables(groups, clock, strings, problems)
    tables.device.launch  # indices of tables.host
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from traces.chrome.export_notes import ExportNotes
from traces.comparison.thresholds import CLOCKS_APART_NS
from traces.kineto.reading import event_columns as cols
from traces.kineto.reading.eras import (
    ANNOTATION_NAME,
    DEVICE_CATEGORIES,
    HOST_CATEGORIES,
    MODULE_NAME,
    MTIA_KINDS,
    WINDOW_CATEGORY,
    TsUnit,
    external_ids_are_ops,
)
from traces.kineto.reading.event_rows import ABSENT, COMMS, CONFIG, LAYOUT, SHAPES, Values, as_list
from traces.kineto.reading.groups import Groups
from traces.kineto.spans.external_ids import CallOwners
from traces.kineto.spans.impossible import (
    durations_ns,
    ends_after_wait,
    launches_on_idle_devices,
    longer_than,
    without_duration,
)
from traces.kineto.spans.launches import (
    DeviceColumns,
    HostColumns,
    Launches,
    WithoutWork,
    correlate_by_external_ids,
    correlate_in_order,
    without_work,
)
from traces.kineto.spans.nesting import nesting_order, parents
from traces.kineto.spans.repeated_events import each_event_once
from traces.kineto.spans.shapes import Shapes
from traces.kineto.spans.thread_roles import roles_of
from traces.model.trace import NONE, Column, DeviceKind, DeviceSpans, HostKind, HostSpans, MemoryEvents, Strings, Thread
from traces.names.device_names import GRAPH_LAUNCHES, WAITS_FOR_ALL
from traces.names.launch_configs import config_text
from traces.names.profiler_json import ProfilerJson

_COPY_TO_PAGEABLE = re.compile(r"Memcpy DtoH \(Device -> Pageable\)")  # the call of such a copy waits for the copy
_OUTER = {HostKind.PYTHON: 0, HostKind.ANNOTATION: 1, HostKind.OP: 2, HostKind.RUNTIME: 3, HostKind.OTHER: 4}
_OTHER_STREAMS = ("xpu_", "mtia_", "privateuse1_")
_NO_DURATION = {"event-without-duration", "negative-duration", "duration-overflow"}  # problems of events that count as 0 ns
_LONGEST_WINDOW_US = 10**12
_SYNC_ROWS = 1_000_000  # added to a stream's number for the separate row of its synchronization events
_DIGITS = re.compile(r"-?\d+")
# the beginning of a path that is not shown: up to site-packages or Python's standard library; in other paths, all folders
_FOLDERS = re.compile(
    r"\A(?:.*[/\\](?:(?:site|dist)-packages|python\d[\d.]*)[/\\]|(?:/|[A-Za-z]:[/\\]).*[/\\](?=[^/\\]*\(\d+\)))"
)


@dataclass
class RankTables:
    threads: list[Thread]
    host: HostSpans
    device: DeviceSpans
    memory: MemoryEvents
    comms: dict[int, ProfilerJson]
    unfinished: Column  # launch calls that the GPU had not run when the recording ended
    correlations: tuple[int, int] | None  # the smallest and the largest correlation id of a call


def read_tables(
    groups: Groups,
    clock: TsUnit,
    strings: Strings,
    problems: Counter[str],
    notes: ExportNotes | None = None,
    *,
    dependent_launch: bool = True,
) -> RankTables:
    names, threads = cols.Names(strings), cols.Threads()
    host, comms = _read_host(groups, clock, names, threads, problems, notes)
    ids = host.correlation[host.correlation > 0]
    correlations = (int(ids.min()), int(ids.max())) if len(ids) else None
    device = _read_device(groups, clock, names, problems, notes)
    memory = _read_memory(groups.memory, clock, threads, problems)
    if not notes:
        with_ops = np.unique(host.spans.thread[host.spans.kind == HostKind.OP]).tolist()
        if len(processes := {threads.keys[row][0] for row in with_ops}) > 1:
            problems["several-processes"] += len(processes)
        host, device, comms = each_event_once(host, device, comms, problems)
        correlate_by_external_ids(host, device)
        if matched := correlate_in_order(host, device, strings):
            problems["launches-in-order"] += matched
        _exclude_impossible(groups, host.spans, device, dependent_launch, problems)
    owners = CallOwners.of(host.spans, host.op, _ids_from_kernels(host, device))
    if notes:
        renumber, rows = _as_noted(threads, host.spans, notes), notes.threads
    else:
        filed = np.union1d(host.spans.thread, memory.thread)
        owners.move_to_threads(host.spans)
        left = np.setdiff1d(filed, np.union1d(host.spans.thread, memory.thread))
        renumber, rows = roles_of(threads, groups.thread_names(), host.spans, strings, left)
    host.spans.thread = renumber[host.spans.thread]
    memory.thread = renumber[memory.thread]
    host, comms = _nested(host, owners, comms, problems)
    if notes:  # an export of this tool: External ids are ids of ops, and problems were counted in the first import
        spans, missing = _with_launches(host, device, True, strings, Counter())
    else:
        spans, missing = _with_launches(host, device, owners.names_ops, strings, problems)
    return RankTables(rows, host.spans, spans, memory, comms, missing.unfinished, correlations)


def _exclude_impossible(
    groups: Groups, host: HostSpans, device: DeviceColumns, dependent_launch: bool, problems: Counter[str]
) -> None:
    if not problems.keys() & _NO_DURATION:
        _count(problems, "kernel-without-duration", without_duration(device.spans))
    window_ns = _window_ns(groups)
    too_long = longer_than(device.spans, window_ns)
    _count(problems, "duration-beyond-window", too_long)
    device.spans.duration_ns[too_long] = 0
    still_open = longer_than(host, window_ns)
    _count(problems, "open-at-the-end", still_open)
    last_ns = host.end_ns[~still_open].max(initial=0)
    host.duration_ns[still_open] = np.maximum(last_ns - host.start_ns[still_open], 0)
    if not any(category.startswith(_OTHER_STREAMS) for category in groups.complete):
        possible_ns = durations_ns(device, dependent_launch)
        _count(problems, "impossible-overlap", possible_ns != device.spans.duration_ns)
        device.spans.duration_ns = possible_ns


def _window_ns(groups: Groups) -> int:
    if WINDOW_CATEGORY not in groups.complete:
        return 0
    rows = groups.complete[WINDOW_CATEGORY]
    lasted = [took for took in as_list(rows.column("dur")) if type(took) in (int, float) and 0 < took < _LONGEST_WINDOW_US]
    return int(1000 * sum(lasted))


def _ids_from_kernels(host: HostColumns, device: DeviceColumns) -> Column:
    lacking = np.flatnonzero((host.named <= 0) & (host.correlation > 0))
    telling = (device.named > 0) & (device.correlation > 0)
    if not len(lacking) or not telling.any():
        return host.named
    named = host.named.copy()
    ids, first = np.unique(device.correlation[telling], return_index=True)
    place = np.minimum(np.searchsorted(ids, host.correlation[lacking]), len(ids) - 1)
    launched = ids[place] == host.correlation[lacking]
    named[lacking[launched]] = device.named[telling][first[place[launched]]]
    return named


def _as_noted(threads: cols.Threads, spans: HostSpans, notes: ExportNotes) -> Column:
    row_of = {track: row for row, track in enumerate(notes.tracks)}
    used = np.bincount(spans.thread, minlength=len(threads))
    for row, (_, tid) in enumerate(threads.keys):
        if tid not in row_of and used[row]:
            row_of[tid] = len(notes.threads)
            notes.threads.append(Thread(0, tid))
    return np.array([row_of.get(tid, NONE) for _, tid in threads.keys] or [NONE], "i4")


def _read_host(
    groups: Groups,
    clock: TsUnit,
    names: cols.Names,
    threads: cols.Threads,
    problems: Counter[str],
    notes: ExportNotes | None,
) -> tuple[HostColumns, dict[int, ProfilerJson]]:
    shapes = Shapes(names.strings, only_inputs=notes is not None)
    parts: list[HostColumns] = []
    comms: dict[int, ProfilerJson] = {}
    first = 0
    for category, events in groups.complete.items():
        if category in DEVICE_CATEGORIES or category == WINDOW_CATEGORY:
            continue
        kind = HOST_CATEGORIES.get(category, HostKind.OTHER)
        read = cols.complete_columns(events, clock, names, problems)
        spans = HostSpans.of(
            name=read.names,
            thread=threads.rows(read.pids, read.tids),
            kind=np.full(len(read), kind),
            start_ns=read.start_ns,
            duration_ns=read.duration_ns,
        )
        recorded = slice(None)
        if notes:
            recorded, spans.start_ns, spans.duration_ns = notes.corrected(category, spans.start_ns, spans.duration_ns)
        op = named = correlation = np.full(len(read), NONE)
        if kind in (HostKind.OP, HostKind.ANNOTATION):
            spans.shapes, spans.dtypes = shapes.ids(read.names, as_list(read.args[SHAPES]))
            spans.stack = _stacks(as_list(read.args["Call stack"]), names.strings)
            spans.layout = np.array([names.strings.add(text) if text else NONE for text in read.args[LAYOUT]], "i4")
            spans.sequence = read.numbers("Sequence number")
            forward = read.numbers("Fwd thread id")
            spans.forward_thread = np.where((forward > 0) & (forward < 1 << 31), forward, NONE).astype("i4")
        if kind == HostKind.OP:
            op = read.ids("External id")
            for pattern in (MODULE_NAME, ANNOTATION_NAME) if category == "Operator" else (MODULE_NAME,):
                spans.kind[names.strings.matching(read.names, pattern.match)] = HostKind.ANNOTATION
        elif kind == HostKind.RUNTIME:
            correlation, named = read.ids("correlation"), _external_ids(read)
        of_comms = list(read.args.get(COMMS, ()))[recorded]
        comms.update((first + row, args) for row, args in enumerate(of_comms) if args is not None)
        spans = spans.take(recorded) if notes else spans
        parts.append(HostColumns(spans, op[recorded], named[recorded], correlation[recorded]))
        first += len(parts[-1].spans)
    none = np.empty(0, "i8")
    columns = HostColumns(
        HostSpans.concatenated([p.spans for p in parts]),
        np.concatenate([p.op for p in parts] or [none]),
        np.concatenate([p.named for p in parts] or [none]),
        np.concatenate([p.correlation for p in parts] or [none]),
    )
    return columns, comms


def _nested(
    host: HostColumns, owners: CallOwners, comms: dict[int, ProfilerJson], problems: Counter[str]
) -> tuple[HostColumns, dict[int, ProfilerJson]]:
    spans = host.spans
    outer = np.array([_OUTER[kind] for kind in HostKind])[spans.kind]
    order = nesting_order(spans.thread, spans.start_ns, spans.duration_ns, outer, host.op)
    spans = spans.take(order)
    is_frame, is_call = (spans.kind == kind for kind in (HostKind.PYTHON, HostKind.RUNTIME))
    spans.parent, overlaps, end_ns = parents(spans.thread, spans.start_ns, spans.end_ns, is_frame, is_call)
    spans.duration_ns = end_ns - spans.start_ns
    if overlaps:
        problems["partial-overlap"] += overlaps
    nested = HostColumns(spans, host.op[order], host.named[order], host.correlation[order])
    owners.in_order(order).set_parents(spans, nested.op)
    comms = dict(zip(np.argsort(order)[list(comms)].tolist(), comms.values(), strict=True)) if comms else {}
    return nested, comms


def _read_device(
    groups: Groups,
    clock: TsUnit,
    names: cols.Names,
    problems: Counter[str],
    notes: ExportNotes | None,
) -> DeviceColumns:
    parts: list[DeviceSpans] = []
    externals: list[Column] = [np.empty(0, "i8")]
    correlations: list[Column] = [np.empty(0, "i8")]
    contexts: list[Column] = [np.empty(0, "i8")]
    for category, events in groups.complete.items():
        if category not in DEVICE_CATEGORIES:
            continue
        read = cols.complete_columns(events, clock, names, problems)
        kind = DEVICE_CATEGORIES[category]
        size = NONE if kind in (DeviceKind.MEMCPY, DeviceKind.MEMSET) else 0
        parts.append(
            DeviceSpans.of(
                name=read.names,
                device=_with_fallback(read.numbers("device"), read.pids),
                stream=_streams(read, kind),
                kind=np.full(len(read), kind),
                start_ns=read.start_ns,
                duration_ns=read.duration_ns,
                bytes=read.numbers("bytes") if size else np.full(len(read), NONE),
                config=_configs(as_list(read.args[CONFIG]), names.strings),
                graph=_id(read.numbers("graph id")),
                graph_node=_id(read.numbers("graph node id")),
            )
        )
        for pattern, other in MTIA_KINDS if category == "mtia_ccp_events" else ():
            rows = names.strings.matching(read.names, pattern.match)
            parts[-1].kind[rows], parts[-1].bytes[rows] = other, NONE
        if notes:
            _, parts[-1].start_ns, parts[-1].duration_ns = notes.corrected(category, read.start_ns, read.duration_ns)
            parts[-1].origin = notes.origins(category, len(read))
        contexts.append(read.numbers("context"))
        externals.append(_external_ids(read))
        is_annotation = kind == DeviceKind.ANNOTATION
        correlations.append(np.zeros(len(read), "i8") if is_annotation else read.ids("correlation"))
    spans = DeviceSpans.concatenated(parts)
    _set_devices_of_syncs(spans, np.concatenate(contexts))
    return DeviceColumns(spans, np.concatenate(externals), np.concatenate(correlations))


def _set_devices_of_syncs(spans: DeviceSpans, context: Column) -> None:
    works, syncs = spans.is_work & (context != ABSENT), spans.kind == DeviceKind.SYNC
    # a file has millions of rows, but few contexts
    contexts, last = np.unique(context[works][::-1], return_index=True)
    devices = spans.device[works][::-1][last]
    for own, device in zip(contexts.tolist(), devices.tolist(), strict=True):
        spans.device[syncs & (context == own)] = device


def _external_ids(read: cols.EventColumns) -> Column:
    """Return the External id of each event. Profiles from before 2022 contain the key "external id" instead of "External
    id"."""
    external = read.ids("External id")
    return external if (external > 0).any() else read.ids("external id")


def _with_launches(
    host: HostColumns, device: DeviceColumns, names_ops: bool | None, strings: Strings, problems: Counter[str]
) -> tuple[DeviceSpans, WithoutWork]:
    if names_ops is None:
        names_ops = external_ids_are_ops(device.named, device.correlation)
    found = Launches.of(host, device, names_ops)
    spans = device.spans
    spans.launch = found.launch
    _count(problems, "duplicate-correlation", found.ambiguous)
    _count(problems, "backlog-at-start", found.backlog)
    _count(problems, "kernel-without-launch", spans.is_work & (spans.launch == NONE) & ~found.backlog)
    missing = without_work(host, spans, strings)
    if missing.lost_kernels:
        problems["lost-kernel"] += missing.lost_kernels
    if len(missing.unfinished):
        problems["unfinished-launch"] += len(missing.unfinished)
    if missing.captured > np.count_nonzero(spans.is_work):
        problems["mostly-captured"] += missing.captured
    if len(host.spans):
        early_ns = np.where(spans.launch == NONE, 0, host.spans.start_ns[spans.launch] - spans.start_ns)
        _count(problems, "clocks-apart", early_ns > CLOCKS_APART_NS)
        _count(problems, "kernel-before-launch", (early_ns > 0) & (early_ns <= CLOCKS_APART_NS))
        if late := launches_on_idle_devices(spans, host.spans.end_ns):
            problems["clocks-late"] += late
        waits = (host.spans.kind == HostKind.RUNTIME) & strings.matching(host.spans.name, WAITS_FOR_ALL.search)
        # A CUDA call that launches a graph does not wait for the copies in the graph.
        of_graph = strings.matching(host.spans.name[spans.launch], GRAPH_LAUNCHES.__contains__)
        copies = strings.matching(spans.name, _COPY_TO_PAGEABLE.match) & ~of_graph
        _count(problems, "work-after-synchronization", ends_after_wait(spans, host.spans, waits, copies))
    return spans.take(np.lexsort((spans.kind, spans.start_ns, spans.stream, spans.device))), missing


def _read_memory(events: list[ProfilerJson], clock: TsUnit, threads: cols.Threads, problems: Counter[str]) -> MemoryEvents:
    events, times = cols.instant_events(events, clock, problems)
    args = [event.get("args", {}) for event in events]
    kind = cols.numbers(args, "Device Type", 0)
    memory = MemoryEvents.of(
        time_ns=times,
        thread=threads.rows([e["pid"] for e in events], [e["tid"] for e in events]),
        device=np.where(kind == 0, NONE, cols.numbers(args, "Device Id", 0)),
        bytes=cols.numbers(args, "Bytes", 0),
        address=cols.numbers(args, "Addr", 0, "u8"),
        allocated_bytes=cols.numbers(args, "Total Allocated", NONE),
        reserved_bytes=cols.numbers(args, "Total Reserved", NONE),
    )
    return memory.take(np.argsort(memory.time_ns, kind="stable"))


def _stacks(texts: Sequence[Any], strings: Strings) -> Column:
    given = [text if isinstance(text, str) else "" for text in texts]
    ids = {text: strings.add(shortened(text)) if text else NONE for text in dict.fromkeys(given)}
    return np.fromiter(map(ids.__getitem__, given), "i4", len(texts))


def shortened(stack: str) -> str:
    """Remove the folders from a Python stack, because names of folders may contain user names."""
    return ";".join(_FOLDERS.sub("", frame) for frame in stack.split(";"))


def _configs(texts: Sequence[bytes], strings: Strings) -> Column:
    configs = {text: config_text(orjson.loads(b"[%b]" % text)) if text else "" for text in dict.fromkeys(texts)}
    ids = {text: strings.add(config) if config else NONE for text, config in configs.items()}
    return np.fromiter(map(ids.__getitem__, texts), "i4", len(texts))


def _id(numbers: Column) -> Column:
    """Return the id of a CUDA graph, or NONE. Kineto writes the id 0 for work that no CUDA graph launched."""
    return np.where(numbers > 0, numbers, NONE)


def _with_fallback(column: Column, fallback: Values) -> Column:
    for row in np.flatnonzero(column == ABSENT).tolist():
        digits = _DIGITS.search(str(fallback[row]))
        column[row] = int(digits[0]) if digits and len(digits[0]) < 10 else 0
    return column


def _streams(read: cols.EventColumns, kind: DeviceKind) -> Column:
    """Return the stream numbers of events. Since April 2026, Kineto adds 1,000,000 to the stream numbers of synchronization
    events."""
    streams = _with_fallback(read.numbers("stream"), read.tids)
    if kind == DeviceKind.SYNC:
        streams[streams >= _SYNC_ROWS] -= _SYNC_ROWS
    return streams


def _count(problems: Counter[str], kind: str, wrong: Column) -> None:
    if wrong.any():
        problems[kind] += int(wrong.sum())
