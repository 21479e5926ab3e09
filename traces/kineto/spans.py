"""Host, device and memory tables out of the events of one rank.

    tables = read_tables(groups, clock, strings, problems)
    tables.device.launch  # rows of tables.host

A device span points at the runtime call that launched it, by correlation; the op is that call's parent, by nesting.
Flow events are never asked: in newer files most of their ends have no start.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from traces.export_notes import ExportNotes
from traces.kineto import columns as cols
from traces.kineto.eras import (
    ANNOTATION_NAME,
    DEVICE_CATEGORIES,
    HOST_CATEGORIES,
    MODULE_NAME,
    WINDOW_CATEGORY,
    TsUnit,
    external_ids_are_ops,
)
from traces.kineto.groups import Groups
from traces.kineto.nesting import nesting_order, parents
from traces.kineto.roles import roles_of
from traces.kineto.rows import ABSENT, COMMS, CONFIG, LAYOUT, SHAPES, Event
from traces.kineto.shapes import Shapes
from traces.kineto.tables import matching
from traces.launch_configs import config_text
from traces.model import NONE, Column, DeviceKind, DeviceSpans, HostKind, HostSpans, MemoryEvents, Strings, Thread

_OUTER = {HostKind.PYTHON: 0, HostKind.ANNOTATION: 1, HostKind.OP: 2, HostKind.RUNTIME: 3, HostKind.OTHER: 4}
_DIGITS = re.compile(r"-?\d+")
# Of a frame's file: all up to the folder that packages or the standard library are in, else up to the last folder of a path
# that begins at a root.
_FOLDERS = re.compile(
    r"\A(?:.*[/\\](?:(?:site|dist)-packages|python\d[\d.]*)[/\\]|(?:/|[A-Za-z]:[/\\]).*[/\\](?=[^/\\]*\(\d+\)))"
)


@dataclass
class RankTables:
    """One rank's tables. The `device` columns hold the profiler's numbers still, and the threads have no rank yet."""

    threads: list[Thread]
    host: HostSpans
    device: DeviceSpans
    memory: MemoryEvents
    comms: dict[int, Event]  # the arguments of the host spans that are about collectives, by row


@dataclass
class _HostColumns:
    """Host spans before they are ordered, with what only the joins need."""

    spans: HostSpans
    external: Column
    correlation: Column
    comms: dict[int, Event]


def read_tables(
    groups: Groups, clock: TsUnit, strings: Strings, problems: Counter[str], notes: ExportNotes | None = None
) -> RankTables:
    """`notes` are those of a file that was exported from a trace."""
    names, threads = cols.Names(strings), cols.Threads()
    host = _read_host(groups, clock, names, threads, problems, notes)
    memory = _read_memory(groups.memory, clock, threads, problems)
    if notes:
        renumber, rows = _as_noted(threads, host.spans, notes), notes.threads
    else:
        renumber, rows = roles_of(threads, groups.thread_names(), host.spans, strings)
    host.spans.thread = renumber[host.spans.thread]
    memory.thread = renumber[memory.thread]
    host = _nested(host, problems)
    device = _read_device(groups, clock, names, host, problems, notes)
    return RankTables(rows, host.spans, device, memory, host.comms)


def _as_noted(threads: cols.Threads, spans: HostSpans, notes: ExportNotes) -> Column:
    """For each of `threads` its row in the notes. Those that are not there, and have host spans, are added to them."""
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
) -> _HostColumns:
    shapes = Shapes(names.strings, only_inputs=notes is not None)
    parts: list[_HostColumns] = []
    comms: dict[int, Event] = {}
    first = 0
    for category, events in groups.complete.items():
        if category in DEVICE_CATEGORIES or category == WINDOW_CATEGORY:
            continue
        kind = HOST_CATEGORIES.get(category, HostKind.OTHER)
        read = cols.read(events, clock, names, problems)
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
        external = correlation = np.full(len(read), NONE)
        if kind in (HostKind.OP, HostKind.ANNOTATION):
            spans.shapes, spans.dtypes = shapes.ids(read.names, read.args[SHAPES])
            spans.stack = _stacks(read.args["Call stack"], names.strings)
            spans.layout = np.array([names.strings.add(text) if text else NONE for text in read.args[LAYOUT]], "i4")
            spans.sequence = read.numbers("Sequence number")
            forward = read.numbers("Fwd thread id")
            spans.forward_thread = np.where((forward > 0) & (forward < 1 << 31), forward, NONE).astype("i4")
        if kind == HostKind.OP:
            external = read.numbers("External id")
            for pattern in (MODULE_NAME, ANNOTATION_NAME) if category == "Operator" else (MODULE_NAME,):
                spans.kind[matching(read.names, pattern, names.strings)] = HostKind.ANNOTATION
        elif kind == HostKind.RUNTIME:
            correlation = read.numbers("correlation")
        of_comms = list(read.args.get(COMMS, ()))[recorded]
        comms.update((first + row, args) for row, args in enumerate(of_comms) if args is not None)
        parts.append(_HostColumns(spans.take(recorded) if notes else spans, external[recorded], correlation[recorded], {}))
        first += len(parts[-1].spans)
    return _HostColumns(
        HostSpans.concatenated([p.spans for p in parts]),
        np.concatenate([p.external for p in parts] or [np.empty(0, "i8")]),
        np.concatenate([p.correlation for p in parts] or [np.empty(0, "i8")]),
        comms,
    )


def _nested(host: _HostColumns, problems: Counter[str]) -> _HostColumns:
    spans = host.spans
    outer = np.array([_OUTER[kind] for kind in HostKind])[spans.kind]
    order = nesting_order(spans.thread, spans.start_ns, spans.duration_ns, outer, host.external)
    spans = spans.take(order)
    spans.parent, overlaps = parents(spans.thread, spans.start_ns, spans.end_ns)
    if overlaps:
        problems["partial-overlap"] += overlaps
    comms = dict(zip(np.argsort(order)[list(host.comms)].tolist(), host.comms.values(), strict=True)) if host.comms else {}
    return _HostColumns(spans, host.external[order], host.correlation[order], comms)


def _read_device(
    groups: Groups,
    clock: TsUnit,
    names: cols.Names,
    host: _HostColumns,
    problems: Counter[str],
    notes: ExportNotes | None,
) -> DeviceSpans:
    parts: list[DeviceSpans] = []
    externals: list[Column] = [np.empty(0, "i8")]
    correlations: list[Column] = [np.empty(0, "i8")]
    for category, events in groups.complete.items():
        if category not in DEVICE_CATEGORIES:
            continue
        read = cols.read(events, clock, names, problems)
        kind = DEVICE_CATEGORIES[category]
        size = NONE if kind in (DeviceKind.MEMCPY, DeviceKind.MEMSET) else 0
        parts.append(
            DeviceSpans.of(
                name=read.names,
                device=_told(read.numbers("device"), read.pids),
                stream=_told(read.numbers("stream"), read.tids),
                kind=np.full(len(read), kind),
                start_ns=read.start_ns,
                duration_ns=read.duration_ns,
                bytes=read.numbers("bytes") if size else np.full(len(read), NONE),
                config=_configs(read.args[CONFIG], names.strings),
                graph=_id(read.numbers("graph id")),
                graph_node=_id(read.numbers("graph node id")),
            )
        )
        if notes:
            _, parts[-1].start_ns, parts[-1].duration_ns = notes.corrected(category, read.start_ns, read.duration_ns)
            parts[-1].origin = notes.origins(category, len(read))
        external = read.numbers("External id")
        externals.append(external if external.any() else read.numbers("external id"))
        is_annotation = kind == DeviceKind.ANNOTATION
        correlations.append(np.zeros(len(read), "i8") if is_annotation else read.numbers("correlation"))
    spans = DeviceSpans.concatenated(parts)
    external, correlation = np.concatenate(externals), np.concatenate(correlations)
    spans.launch = _launches(host, spans, external, correlation)
    work = spans.is_work
    _count(problems, "kernel-without-launch", work & (spans.launch == NONE))
    if len(host.spans):
        early = spans.start_ns < host.spans.start_ns[spans.launch]
        _count(problems, "kernel-before-launch", (spans.launch != NONE) & early)
    return spans.take(np.lexsort((spans.kind, spans.start_ns, spans.stream, spans.device)))


def _launches(host: _HostColumns, device: DeviceSpans, external: Column, correlation: Column) -> Column:
    """The host row that launched each device span: the runtime call with its correlation; where that is not recorded,
    the op whose id it carries, in the eras in which it does."""
    called = host.correlation > 0
    launch = _lookup(np.where(correlation > 0, correlation, ABSENT), host.correlation, called)
    missing = (launch == NONE) & (external > 0) & (device.kind != DeviceKind.ANNOTATION)
    if missing.any() and external_ids_are_ops(external, correlation):
        is_op = (host.external > 0) & (host.spans.kind == HostKind.OP)
        by_id = _lookup(np.where(missing, external, ABSENT), host.external, is_op)
        found = by_id != NONE
        found[found] &= host.spans.start_ns[by_id[found]] <= device.start_ns[found]
        launch[found] = by_id[found]
    return launch


def _lookup(wanted: Column, ids: Column, usable: Column) -> Column:
    """For each wanted id the first usable row that has it, or NONE."""
    rows = np.flatnonzero(usable)
    if not len(rows):
        return np.full(len(wanted), NONE, "i4")
    rows = rows[np.argsort(ids[rows], kind="stable")]
    sorted_ids = ids[rows]
    position = np.minimum(np.searchsorted(sorted_ids, wanted), len(rows) - 1)
    return np.where(sorted_ids[position] == wanted, rows[position], NONE).astype("i4")


def _read_memory(events: list[Event], clock: TsUnit, threads: cols.Threads, problems: Counter[str]) -> MemoryEvents:
    events, times = cols.instants(events, clock, problems)
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


def _stacks(texts: list[Any], strings: Strings) -> Column:
    """The string ids of call stacks, NONE where there is none."""
    given = [text if isinstance(text, str) else "" for text in texts]
    ids = {text: strings.add(shortened(text)) if text else NONE for text in dict.fromkeys(given)}
    return np.fromiter(map(ids.__getitem__, given), "i4", len(texts))


def shortened(stack: str) -> str:
    """The frames of a stack as python_function rows have them: files of libraries from their package on, others by name, so
    that no folder of a person's is kept."""
    return ";".join(_FOLDERS.sub("", frame) for frame in stack.split(";"))


def _configs(texts: list[bytes], strings: Strings) -> Column:
    """The string ids of launch configurations, NONE where there is none."""
    configs = {text: config_text(orjson.loads(b"[%b]" % text)) if text else "" for text in dict.fromkeys(texts)}
    ids = {text: strings.add(config) if config else NONE for text, config in configs.items()}
    return np.fromiter(map(ids.__getitem__, texts), "i4", len(texts))


def _id(numbers: Column) -> Column:
    """0 is no id: Kineto writes it for what is no part of a graph."""
    return np.where(numbers > 0, numbers, NONE)


def _told(told: Column, fallback: list[Any]) -> Column:
    """What each event's arguments tell, else the number in its pid or tid (5, "5" or "stream 5")."""
    for row in np.flatnonzero(told == ABSENT).tolist():
        digits = _DIGITS.search(str(fallback[row]))
        told[row] = int(digits[0]) if digits and len(digits[0]) < 10 else 0
    return told


def _count(problems: Counter[str], kind: str, wrong: Column) -> None:
    if wrong.any():
        problems[kind] += int(wrong.sum())
