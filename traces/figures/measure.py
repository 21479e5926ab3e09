"""What can be read off a trace: busy time, steps, phases, the ops behind the kernels, memory.

Shared by info, diff and replay. Everything here is plain numpy over whole columns, and nothing here judges or prints.

    trace = load("v100.msgpack")
    busy_ns(trace)                          # 603557000: the union of all GPU work, per device, summed
    phase_times(trace)["forward"].host_ns   # one figure per step

Work on a device belongs to the step and phase in which the host *launched* it: the host runs ahead of the GPU by up to
a step and more, so start times would shift it to later steps. Only work without a known launch goes by its start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traces.model.intervals import Intervals
from traces.model.time_windows import TimeWindows
from traces.model.trace import NONE, Column, HostKind, HostSpans, Origin, StepKind, Trace


def work_rows(trace: Trace) -> Column:
    """The rows of `trace.device` during which a device is busy."""
    return np.flatnonzero(trace.device.is_work)


def grouped(*columns: Column) -> list[Column]:
    """The rows that have the same values in all these columns, group by group in the order of the values."""
    order = np.lexsort(columns[::-1])
    keys = np.stack([column[order] for column in columns])
    bounds = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
    return np.split(order, bounds) if len(order) else []


def busy_by_device(trace: Trace) -> dict[int, Intervals]:
    """The busy time of every device that did any work, by row of `trace.devices`."""
    spans = trace.device.take(work_rows(trace))
    return {int(spans.device[rows[0]]): Intervals(spans.start_ns[rows], spans.end_ns[rows]) for rows in grouped(spans.device)}


def busy_by_stream(trace: Trace) -> dict[tuple[int, int], Intervals]:
    """The busy time of every stream, by (row of `trace.devices`, number of the stream)."""
    spans = trace.device.take(work_rows(trace))
    streams = [spans.take(rows) for rows in grouped(spans.device, spans.stream)]
    return {(int(of.device[0]), int(of.stream[0])): Intervals(of.start_ns, of.end_ns) for of in streams}


def busy_ns(trace: Trace) -> int:
    """GPU busy time: the union of kernels, copies and memsets of each device, summed over devices."""
    return sum(busy.total_ns for busy in busy_by_device(trace).values())


def window_ns(trace: Trace) -> tuple[int, int]:
    """The first start and the last end of anything in the trace; (0, 0) for an empty one."""
    tables = [table for table in (trace.steps, trace.host, trace.device, trace.phases) if len(table)]
    if not tables:
        return 0, 0
    return min(int(t.start_ns.min()) for t in tables), max(int(t.end_ns.max()) for t in tables)


def steady_steps(trace: Trace) -> Column:
    """The rows of the steps whose times count: of the training steps those that are clean, else those that were profiled,
    else warm-up; evaluation steps where there is nothing else."""
    return _first_of(trace, StepKind.STEADY, StepKind.PROFILED, StepKind.WARMUP, StepKind.EVALUATION)


def profiled_steps(trace: Trace) -> Column:
    """The rows of the steps whose kernels count: the profiled ones where the recording says which those are, else
    `steady_steps`."""
    return _first_of(trace, StepKind.PROFILED, StepKind.STEADY, StepKind.WARMUP, StepKind.EVALUATION)


def evaluation_steps(trace: Trace) -> Column:
    """The rows of the batches that were evaluated without training."""
    return np.flatnonzero(trace.steps.kind == StepKind.EVALUATION)


def passes_of_steps(trace: Trace) -> Column:
    """Per step a number that steps share, also of two traces, which hold as many backward passes and steps of optimizers.

    A script with several trainers has steps of several kinds: of five of a critic the last may hold the generator's as well.
    """
    phases, steps = trace.phases, len(trace.steps)
    found = np.zeros(steps, "i8")
    for name in ("backward", "optimizer"):
        rows = phases.step[(phases.name == trace.strings.find(name)) & (phases.step >= 0) & (phases.step < steps)]
        found = (found << 32) + np.bincount(rows, minlength=steps)
    return found


def of_one_kind(trace: Trace, *rows: Column) -> list[Column]:
    """Of each of these rows of steps those of the most frequent kind (`passes_of_steps`) that all have, if there is one."""
    passes = passes_of_steps(trace)
    for kind, _ in Counter(passes[rows[0]].tolist()).most_common():
        if all((passes[own] == kind).any() for own in rows):
            return [own[passes[own] == kind] for own in rows]
    return list(rows)


def _first_of(trace: Trace, *kinds: StepKind) -> Column:
    """The rows of the first of these kinds that there is."""
    rows = (np.flatnonzero(trace.steps.kind == kind) for kind in kinds)
    return next((found for found in rows if len(found)), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """One phase over all steps: its time in each, 0 where a step went without it; phases of one name are summed.

    `host_ns` is the time between the phase's begin and end on the host; the phases of a step add up to the step.
    `device_ns` is what a pair of CUDA events at the same two points would read, waiting included, or None if no step has any.
    In the steps of the mask `is_untimed` some stretch of the phase has no such times, so the sum there is too small.
    """

    host_ns: Column
    device_ns: Column | None
    is_untimed: Column


def phase_times(trace: Trace) -> dict[str, PhaseTimes]:
    """The phases by name, in the order of their first occurrence."""
    phases, steps = trace.phases, len(trace.steps)
    inside = phases.take((phases.step >= 0) & (phases.step < steps))
    names, first = np.unique(inside.name, return_index=True)
    timed = (inside.device_start_ns != NONE) & (inside.device_end_ns != NONE)
    elapsed_ns = np.where(timed, inside.device_end_ns - inside.device_start_ns, 0)
    found = {}
    for name in names[np.argsort(first)]:
        rows = inside.name == name
        device_ns = _sum_by(inside.step[rows], elapsed_ns[rows], steps) if timed[rows].any() else None
        found[trace.strings[int(name)]] = PhaseTimes(
            host_ns=_sum_by(inside.step[rows], inside.duration_ns[rows], steps),
            device_ns=device_ns,
            is_untimed=_sum_by(inside.step[rows], np.where(timed[rows], 0, 1), steps) > 0,
        )
    return found


def phase_busy_ns(trace: Trace) -> dict[str, Column]:
    """How long the devices were busy with the work that each phase launched, summed over devices: by name, one figure per
    step. Empty without device work."""
    work = work_rows(trace)
    phase = launch_phases(trace)[work]
    work, phase = work[phase >= 0], phase[phase >= 0]
    spans = trace.device.take(work)
    if not len(work):
        return {}
    names = np.unique(trace.phases.name).tolist()
    found: dict[str, Column] = {trace.strings[name]: np.zeros(len(trace.steps), dtype=np.int64) for name in names}
    for rows in grouped(phase, spans.device):
        row = int(phase[rows[0]])
        busy = Intervals(spans.start_ns[rows], spans.end_ns[rows])
        found[trace.strings[int(trace.phases.name[row])]][trace.phases.step[row]] += busy.total_ns
    return found


def launch_time_ns(trace: Trace) -> Column:
    """When each device span was launched on the host; its own start where the launch is not known."""
    spans = trace.device
    if not len(trace.host):
        return np.asarray(spans.start_ns)
    return np.asarray(np.where(spans.launch >= 0, trace.host.start_ns[spans.launch], spans.start_ns))


def step_windows(trace: Trace) -> TimeWindows:
    """The steps of each rank, to be asked which of them holds a time on the host."""
    return TimeWindows(trace.steps.start_ns, trace.steps.end_ns, trace.steps.rank)


def backlog(trace: Trace) -> Column:
    """A mask of the device spans that were launched before the recording began.

    Their launch is not known, and they start on their stream before all spans with a known launch: a stream runs its work in
    the order of the launches.
    """
    spans = trace.device
    unknown = spans.launch == NONE
    found = np.zeros(len(spans), dtype=bool)
    if not unknown.any() or unknown.all():
        return found
    for rows in grouped(spans.device, spans.stream):
        known_ns = spans.start_ns[rows][~unknown[rows]]
        if len(known_ns):
            found[rows] = unknown[rows] & (spans.start_ns[rows] < known_ns.min())
    return found


def launch_steps(trace: Trace) -> Column:
    """The row of `trace.steps` in which each device span was launched, or NONE; the backlog belongs to no step.

    See Note [A step's time] in `traces.figures.pace`.
    """
    return np.where(backlog(trace), NONE, step_windows(trace).holding(launch_time_ns(trace), device_ranks(trace)))


def phase_windows(trace: Trace) -> TimeWindows:
    """The phases of each rank, to be asked which of them holds a time on the host."""
    phases = trace.phases
    ranks = np.where(phases.step >= 0, trace.steps.rank[phases.step], 0) if len(trace.steps) else np.zeros(len(phases))
    return TimeWindows(phases.start_ns, phases.end_ns, ranks)


def launch_phases(trace: Trace) -> Column:
    """The row of `trace.phases` in which each device span was launched, or NONE; the backlog belongs to no phase."""
    return np.where(backlog(trace), NONE, phase_windows(trace).holding(launch_time_ns(trace), device_ranks(trace)))


def launch_phase_names(trace: Trace) -> Column:
    """The name of the phase in which each device span was launched, "" outside of phases."""
    return phase_names(trace)[launch_phases(trace)]


def phase_names_at(trace: Trace, times_ns: Column) -> Column:
    """The name of the phase that is under way at each of these times, of whichever rank; "" outside of phases."""
    return phase_names(trace)[TimeWindows(trace.phases.start_ns, trace.phases.end_ns).holding(times_ns)]


def phase_names(trace: Trace) -> Column:
    """By row of `trace.phases`; the last one, "", answers for NONE."""
    return np.array([*(trace.strings[name] for name in trace.phases.name.tolist()), ""])


def op_of(trace: Trace, *, outermost: bool = False) -> Column:
    """The op span that launched each device span (the innermost around the launch, or the outermost), or NONE."""
    host = trace.host
    launch = np.where(trace.device.launch < len(host), trace.device.launch, NONE)
    if not len(host):
        return np.full(len(launch), NONE, dtype=np.int64)
    op = np.append(enclosing(host, host.kind == HostKind.OP), NONE)
    if outermost:
        above = np.append(op[np.append(host.parent, NONE)[op]][:-1], len(host))  # the last row answers for NONE, and is its own
        rows = np.arange(len(above))
        op = np.where(op == NONE, NONE, _last_of_chain(np.where(above == NONE, rows, above))[op])
    return np.asarray(np.where(launch >= 0, op[launch], NONE))


def enclosing(host: HostSpans, wanted: Column) -> Column:
    """For each host span the innermost around it, itself included, of those that the mask chooses; NONE where there is none."""
    # A parent stands before its children; what does not is ignored, so that the search ends on any input.
    parent = np.append(np.where(host.parent < np.arange(len(host)), host.parent, NONE), NONE)
    rows = np.arange(len(parent))
    found = _last_of_chain(np.where(np.append(wanted, True), rows, parent))[:-1]  # the last answers for NONE, and is its own
    return np.where(found < len(host), found, NONE)


def _last_of_chain(following: Column) -> Column:
    """Where each row gets to that goes on to the one that `following` names, until one names itself. Doubles the stride, so
    that a nest of any depth takes few rounds."""
    at = np.where(following < 0, len(following) - 1, following)
    while ((further := at[at]) != at).any():
        at = further
    return at


@dataclass(frozen=True, slots=True)
class WorkSum:
    """A row of a table of kernels or ops: `count` is how many kernels, or how many ops with device work."""

    name: str
    count: int
    device_ns: int


def kernel_table(trace: Trace) -> list[WorkSum]:
    """Kernels, copies and memsets by name, most device time first."""
    spans = trace.device.take(work_rows(trace))
    return _table(trace, spans.name, spans.duration_ns, np.ones(len(spans)))


def op_table(trace: Trace, *, outermost: bool = False) -> list[WorkSum]:
    """Ops by name with the device time of the work they launched, most first; work without an op is left out."""
    rows = work_rows(trace)
    op = op_of(trace, outermost=outermost)[rows]
    rows, op = rows[op >= 0], op[op >= 0]
    first_of_op = np.zeros(len(op))
    first_of_op[np.unique(op, return_index=True)[1]] = 1
    return _table(trace, trace.host.name[op], trace.device.duration_ns[rows], first_of_op)


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The most memory that a device held. `source` says how that is known:

    "recorded"  every event came with the device's total after it
    "summed"    allocations minus frees since the recording began: what was held before and never freed is not in it
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    source: str


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """What a device held after each of its memory events, in order of time; `source` as in `MemoryPeak`."""

    time_ns: Column
    allocated_bytes: Column
    before_bytes: int  # held before the first event, as far as that can be told
    source: str


def memory_curve(trace: Trace, device: int) -> MemoryCurve:
    """The memory of a device (a row of `trace.devices`) over time."""
    events = trace.memory
    here = events.take(events.device == device)
    here = here.take(np.argsort(here.time_ns, kind="stable"))
    known = here.allocated_bytes != NONE
    if known.any():
        return MemoryCurve(here.time_ns[known], here.allocated_bytes[known], 0, "recorded")
    # Frees of older memory drive the sum below zero; that much at least was held when the recording began.
    total = np.cumsum(here.bytes)
    before_bytes = -min(int(total.min(initial=0)), 0)
    return MemoryCurve(here.time_ns, total + before_bytes, before_bytes, "summed")


def memory_peaks(trace: Trace) -> dict[int, MemoryPeak]:
    """The memory peak of every device that has memory events, by row of `trace.devices`."""
    events = trace.memory
    peaks = {}
    for device in np.unique(events.device[events.device >= 0]).tolist():
        curve = memory_curve(trace, device)
        reserved = events.reserved_bytes[(events.device == device) & (events.reserved_bytes != NONE)]
        reserved_bytes = int(reserved.max()) if len(reserved) else None
        peaks[device] = MemoryPeak(max(int(curve.allocated_bytes.max()), curve.before_bytes), reserved_bytes, curve.source)
    return peaks


def device_time_by_origin(trace: Trace) -> dict[Origin, int]:
    """Nanoseconds of device work launched within steps, by where the times come from.

    Without any device spans (a phase-grained trace) the phases' times on the device stand in for them.
    """
    rows = work_rows(trace)
    if len(rows):
        if len(trace.steps):
            rows = rows[launch_steps(trace)[rows] >= 0]
        origin, duration_ns = trace.device.origin[rows], trace.device.duration_ns[rows]
    else:
        phases = trace.phases.take((trace.phases.device_start_ns != NONE) & (trace.phases.device_end_ns != NONE))
        origin, duration_ns = phases.origin, phases.device_end_ns - phases.device_start_ns
    sums = np.zeros(len(Origin), dtype=np.int64)
    np.add.at(sums, origin, duration_ns)
    return {kind: int(sums[kind]) for kind in Origin if sums[kind]}


def _sum_by(index: Column, values: Column, size: int) -> Column:
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, index, values)
    return sums


def _table(trace: Trace, name: Column, duration_ns: Column, counted: Column) -> list[WorkSum]:
    names, index = np.unique(name, return_inverse=True)
    times = _sum_by(index, duration_ns, len(names))
    counts = _sum_by(index, counted.astype(np.int64), len(names))
    columns = zip(names.tolist(), counts.tolist(), times.tolist(), strict=True)
    rows = [WorkSum(trace.strings[name], count, time_ns) for name, count, time_ns in columns]
    return sorted(rows, key=lambda row: (-row.device_ns, -row.count, row.name))


def work_of_steps(trace: Trace, steps: Column) -> tuple[Column, Column]:
    """Rows of the work that host spans launched in these steps (in all, where there are none), and the rows of those spans."""
    rows = work_rows(trace)
    rows = rows[np.isin(launch_steps(trace)[rows], steps)] if len(steps) else rows
    launch = trace.device.launch[rows]
    known = (launch >= 0) & (launch < len(trace.host))
    return rows[known], launch[known]


def runtime_calls(trace: Trace, rank: int, is_wanted: Callable[[str], bool]) -> Column:
    """Rows of the calls into the GPU's runtime by the rank's host, those with a name that is wanted."""
    host = trace.host
    calls = host.kind == HostKind.RUNTIME
    names = [name for name in np.unique(host.name[calls]).tolist() if is_wanted(trace.strings[name])]
    threads = [row for row, thread in enumerate(trace.threads) if thread.rank == rank]
    return np.flatnonzero(calls & np.isin(host.name, names) & np.isin(host.thread, threads))


def begin_in_steps(trace: Trace, rows: Column, steps: Column) -> Column:
    """Whether each of these host rows begins in one of these steps of its rank; all do where there are none."""
    if not len(steps):
        return np.ones(len(rows), dtype=bool)
    rank_of_thread = np.array([*(thread.rank for thread in trace.threads), NONE])
    ranks = rank_of_thread[trace.host.thread[rows]]
    return np.isin(step_windows(trace).holding(trace.host.start_ns[rows], ranks), steps)


def rank_of_device(trace: Trace, device: int) -> int:
    """The rank of a row of `trace.devices`; 0 for a device that the table lacks."""
    return trace.devices[device].rank if device < len(trace.devices) else 0


def device_ranks(trace: Trace) -> Column:
    """The rank of each device span."""
    ranks = np.array([device.rank for device in trace.devices] or [0], dtype=np.int64)
    return np.asarray(ranks[np.where(trace.device.device < len(ranks), trace.device.device, 0)])
