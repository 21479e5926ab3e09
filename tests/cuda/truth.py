"""Compares a recording with the log of the simulated device.

    logs = read_logs(folder)                      # one DeviceLog per process
    found = agreement(traces.load(file), logs)    # Agreement(in_log=420, in_trace=420, correct=420, ...)
    found.faults                                  # [] or one line for each fault

Note [What must be in a recording]
    A window is the host time of consecutive profiled steps, from the start of the first step to the end of the last step. The
    steps may be training or evaluation steps. All work that the host launched in a window must be in the recording once, with
    its name, device, stream and graph, and with its start and end to within 2 us. Work in the recording that was launched
    before a window must be in the log too.

    For each piece of work, the log has the number that Kineto gave to the innermost op of the launching thread. Two pieces of
    work must have the same op in the recording if and only if they have the same number in the log. Work without a number has
    no op.

    The call that launched a piece of work must enclose the time at which the device received the work. This time determines the
    step and the phase of the work. If a program logged its phases (`programs/marks.py`), the recording must have the same
    phase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from traces.model.trace import NONE, HostKind, StepKind, Trace

CLOSE_NS = 2_000  # a recorded time may differ from the logged time by this much


@dataclass(frozen=True)
class Work:
    """A kernel, copy or memset in the log of a device. Times are nanoseconds since the Unix epoch."""

    kind: str  # one of "kernel", "memcpy" and "memset"
    device: int
    stream: int
    graph: int  # the number of the graph, or 0 if the work is not part of a graph
    start_ns: int
    end_ns: int
    bytes: int
    issued_ns: int
    thread: int
    op: int  # Kineto's number of the op that launched it, or 0
    name: str


@dataclass(frozen=True)
class DeviceLog:
    """The work of the devices for one process. Each of the `notes` describes a context or a capture as (kind, device, time,
    text)."""

    pid: int
    work: tuple[Work, ...]
    notes: tuple[tuple[str, int, int, str], ...]


@dataclass(frozen=True)
class Mark:
    """A phase that the program logged: its times, and the thread's processor time at the start."""

    pid: int
    name: str
    start_ns: int
    end_ns: int
    processor_ns: int


@dataclass
class Agreement:
    """The result of comparing a recording with the log. `correct` counts the work for which every column is right."""

    in_log: int = 0
    in_trace: int = 0
    correct: int = 0
    ops_wrong: int = 0
    phases_wrong: int = 0
    steps_wrong: int = 0
    largest_time_error_ns: int = 0
    faults: list[str] = field(default_factory=list)

    def __iadd__(self, other: Agreement) -> Agreement:
        for name in ("in_log", "in_trace", "correct", "ops_wrong", "phases_wrong", "steps_wrong"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest_time_error_ns = max(self.largest_time_error_ns, other.largest_time_error_ns)
        self.faults += other.faults
        return self


def _demangle(name: str) -> str:
    import torch

    return str(torch._C._demangle(name)) if name.startswith("_Z") else name


def read_logs(folder: Path) -> list[DeviceLog]:
    """Return the log of each process that used a device."""
    logs = []
    for path in sorted(folder.glob("*.tsv")):
        work, notes = [], []
        names: dict[str, str] = {}
        for line in path.read_bytes().rstrip(b"\0").decode().splitlines():
            kind, device, stream, _correlation, graph, start, end, size, issued, thread, op, name = line.split("\t", 11)
            if kind in ("kernel", "memcpy", "memset"):
                name = names.setdefault(name, name if name in names else _demangle(name))
                work.append(
                    Work(
                        kind, int(device), int(stream), int(graph), int(start), int(end), int(size), int(issued), int(thread),
                        int(op), name,
                    )
                )  # fmt: skip
            else:
                notes.append((kind, int(device), int(start), name))
        logs.append(DeviceLog(int(path.stem), tuple(work), tuple(notes)))
    return logs


def read_marks(folder: Path) -> list[Mark]:
    """Return the logged phases of all programs, sorted by time."""
    marks = []
    for path in folder.glob("*.tsv"):
        for line in path.read_text().splitlines():
            name, *numbers = line.split("\t")
            marks.append(Mark(int(path.stem), name, *map(int, numbers)))
    return sorted(marks, key=lambda mark: mark.start_ns)


def windows(trace: Trace, rank: int) -> list[tuple[int, int]]:
    """Return the host times of each run of consecutive profiled steps of a rank."""
    steps = trace.steps
    found: list[tuple[int, int]] = []
    before = False
    is_evaluation = np.isin(steps.number, trace.run_of(rank).profiler.steps) & (steps.kind == StepKind.EVALUATION)
    for row in np.flatnonzero(steps.rank == rank).tolist():
        profiled = steps.kind[row] == StepKind.PROFILED or is_evaluation[row]
        start, end = int(steps.start_ns[row]), int(steps.start_ns[row] + steps.duration_ns[row])
        if profiled and before:
            found[-1] = (found[-1][0], end)
        elif profiled:
            found.append((start, end))
        before = bool(profiled)
    return found


def agreement(trace: Trace, logs: Sequence[DeviceLog], marks: Sequence[Mark] = ()) -> Agreement:
    """Compare a recording at kernel grain with the logs of its ranks. See Note [What must be in a recording]."""
    total = Agreement()
    for rank in sorted({device.rank for device in trace.devices}):
        total += _of_rank(trace, rank, logs, marks)
    return total


def _rows_of(trace: Trace, rank: int) -> list[int]:
    devices = np.array([device.rank == rank for device in trace.devices])
    return [int(row) for row in np.flatnonzero(trace.device.is_work & devices[trace.device.device])]


def _of_rank(trace: Trace, rank: int, logs: Sequence[DeviceLog], marks: Sequence[Mark]) -> Agreement:
    found = Agreement()
    rows = _rows_of(trace, rank)
    found.in_trace = len(rows)
    pairs, log = max(((_pairs(trace, rows, log), log) for log in logs), key=lambda pair: len(pair[0]), default=({}, None))
    if log is None:
        found.faults.append(f"rank {rank}: no log")
        return found
    spans = windows(trace, rank)
    expected = {number for number, work in enumerate(log.work) if any(start <= work.issued_ns < end for start, end in spans)}
    found.in_log = len(expected)
    for number in sorted(expected - set(pairs.values())):
        work = log.work[number]
        found.faults.append(f"rank {rank}: not in the recording: {work.name[:80]} at {work.start_ns} on stream {work.stream}")
    for row in rows:
        if row not in pairs:
            name = trace.strings[trace.device.name[row]]
            found.faults.append(f"rank {rank}: not in the log: {name[:80]} at {int(trace.device.start_ns[row])}")
    wrong = set()
    own_marks = [mark for mark in marks if mark.pid == log.pid]
    for row, fault in _wrong_columns(trace, rank, pairs, log, spans, own_marks, found):
        wrong.add(row)
        found.faults.append(f"rank {rank}: {fault}")
    found.correct = sum(1 for row, number in pairs.items() if number in expected and row not in wrong)
    return found


def _pairs(trace: Trace, rows: Sequence[int], log: DeviceLog) -> dict[int, int]:
    """Match rows of the recording with work in the log. A match has the same device, stream and name, and the nearest start
    within 2 us."""
    waiting: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for number, work in enumerate(log.work):
        waiting[work.device, work.stream, work.name].append(number)
    starts = {key: np.array([log.work[number].start_ns for number in numbers]) for key, numbers in waiting.items()}
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for row in rows:
        device = trace.devices[trace.device.device[row]].index
        key = (device, int(trace.device.stream[row]), trace.strings[trace.device.name[row]])
        if key not in waiting:
            continue
        start = int(trace.device.start_ns[row])
        at = int(np.searchsorted(starts[key], start))
        near = [at + step for step in (-1, 0) if 0 <= at + step < len(starts[key]) and waiting[key][at + step] not in taken]
        near = [place for place in near if abs(int(starts[key][place]) - start) <= CLOSE_NS]
        if near:
            best = waiting[key][min(near, key=lambda place: abs(int(starts[key][place]) - start))]
            pairs[row] = best
            taken.add(best)
    return pairs


def _op_of(trace: Trace, row: int) -> int:
    """Return the op that launched a row of device work, or NONE."""
    host = int(trace.device.launch[row])
    while host != NONE and trace.host.kind[host] != HostKind.OP:
        host = int(trace.host.parent[host])
    return host


def _is_in_module(trace: Trace, row: int) -> bool:
    while row != NONE and not trace.strings[trace.host.name[row]].startswith("nn.Module: "):
        row = int(trace.host.parent[row])
    return row != NONE


def _wrong_columns(
    trace: Trace,
    rank: int,
    pairs: dict[int, int],
    log: DeviceLog,
    spans: Sequence[tuple[int, int]],
    marks: Sequence[Mark],
    found: Agreement,
) -> Iterator[tuple[int, str]]:
    op_of_number: dict[tuple[int, int], int] = {}
    number_of_op: dict[int, tuple[int, int]] = {}
    for row, number in pairs.items():
        work = log.work[number]
        what = f"{work.name[:60]} at {work.start_ns}"
        start, end = int(trace.device.start_ns[row]), int(trace.device.start_ns[row] + trace.device.duration_ns[row])
        error = max(abs(start - work.start_ns), abs(end - work.end_ns))
        found.largest_time_error_ns = max(found.largest_time_error_ns, error)
        if error > CLOSE_NS:
            yield row, f"{what}: times differ by {error} ns"
        if max(int(trace.device.graph[row]), 0) != work.graph:
            yield row, f"{what}: graph {int(trace.device.graph[row])}, not {work.graph}"
        window = next((place for place, (first, last) in enumerate(spans) if first <= work.issued_ns < last), NONE)
        if window == NONE:
            continue  # the launch is unknown, because it happened before the window
        launch = int(trace.device.launch[row])
        if launch == NONE:
            found.steps_wrong += 1
            yield row, f"{what}: no launch"
            continue
        called, returned = int(trace.host.start_ns[launch]), int(trace.host.start_ns[launch] + trace.host.duration_ns[launch])
        if not called - CLOSE_NS <= work.issued_ns <= returned + CLOSE_NS:
            found.steps_wrong += 1
            yield row, f"{what}: launched at {work.issued_ns}, not in {called}..{returned}"
        op, key = _op_of(trace, row), (window, work.op)
        is_of_module = op == NONE and _is_in_module(trace, launch)  # the profiler gives numbers to module ranges, too
        one_to_one = op == NONE or (op_of_number.setdefault(key, op), number_of_op.setdefault(op, key)) == (op, key)
        if not is_of_module and ((op == NONE) != (work.op == 0) or not one_to_one):
            found.ops_wrong += 1
            name = trace.strings[trace.host.name[op]] if op != NONE else "no op"
            yield row, f"{what}: op {work.op} of the profiler is {name} here"
        phase = _phase_at(trace, rank, called)
        meant = {mark.name for mark in marks if mark.start_ns <= work.issued_ns < mark.end_ns}
        if meant and phase not in meant:
            found.phases_wrong += 1
            yield row, f"{what}: in phase {phase}, not {' or '.join(sorted(meant))}"


def _phase_at(trace: Trace, rank: int, time_ns: int) -> str:
    phases = trace.phases
    of_rank = trace.steps.rank[phases.step] == rank
    inside = np.flatnonzero(of_rank & (phases.start_ns <= time_ns) & (time_ns < phases.start_ns + phases.duration_ns))
    return trace.strings[phases.name[inside[0]]] if len(inside) else "none"
