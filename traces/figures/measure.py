"""Computes statistics of a trace, such as busy time, phase times and memory peaks.

    trace = load("v100.msgpack")
    busy_ns(trace)                          # 603557000: the union of all GPU work, per device, summed
    phase_times(trace)["forward"].host_ns   # one value per step

A kernel belongs to the step and phase that launched it.

Note [Backward passes in a row]
    A script may call `torch.autograd.grad` several times in a row. The profiler shows the ops between these backward passes as
    a phase "other". Without the profiler, the recorder does not see these ops, so it records one long backward pass. Two phases
    with the same name therefore count as one phase if only a phase "other" is between them.

Note [Hooks of saved tensors]
    With `torch.autograd.graph.save_on_cpu`, an op calls a hook that copies tensors to the host. In a replay, the script's own
    hook makes this copy, so the op is stored without the copy. Without hooks, only conversions such as `aten::to` copy tensors
    to the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from traces.comparison.thresholds import FEWEST_CLEAN_STEPS
from traces.compiled.regions import is_graph_launch, is_region_range
from traces.figures.spread import slow_starts
from traces.model.intervals import Intervals, TimeWindows, union_by_group
from traces.model.result_cache import cached_result
from traces.model.row_order import by_value, differs, distinct, grouped, sum_by
from traces.model.trace import NONE, PHASES, Column, DeviceKind, HostKind, HostSpans, MemoryEvents, Origin, StepKind, Trace
from traces.names.device_names import LAUNCH_CALL, copy_direction

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Counts:
    kernels: int  # number of kernels
    copies: int  # number of copies and memsets
    host_ops: int  # number of ops on the host
    memory_events: int  # number of allocations and frees
    steps: int  # number of steps


def counts_of(trace: Trace) -> Counts:
    return Counts(
        kernels=int((trace.device.kind == DeviceKind.KERNEL).sum()),
        copies=int(np.isin(trace.device.kind, (DeviceKind.MEMCPY, DeviceKind.MEMSET)).sum()),
        host_ops=sum(int((piece.kind == HostKind.OP).sum()) for piece in trace.host.pieces()),
        memory_events=len(trace.memory),
        steps=len(trace.steps),
    )


def gpu_names(names: Iterable[str]) -> str:
    return ", ".join(sorted({name or "an unnamed GPU" for name in names})) or "no GPU"


@cached_result
def work_rows(trace: Trace) -> Column:
    return np.flatnonzero(trace.device.is_work)


def gpus_per_rank(trace: Trace) -> int:
    """Return how many GPUs each rank uses."""
    working = np.unique(trace.device.device[work_rows(trace)])
    return max((len(working) or len(trace.devices)) // max(len(trace.ranks), 1), 1)


@cached_result
def busy_by_device(trace: Trace) -> dict[int, Intervals]:
    return intervals_by_device(trace, work_rows(trace))


def intervals_by_device(trace: Trace, rows: Column) -> dict[int, Intervals]:
    """`rows` selects rows of `trace.device` by index or by mask."""
    device, start_ns, end_ns = trace.device.device[rows], trace.device.start_ns[rows], trace.device.end_ns[rows]
    return {number: Intervals(start_ns[own], end_ns[own]) for number, own in by_value(device).items()}


@cached_result
def busy_by_stream(trace: Trace) -> dict[tuple[int, int], Intervals]:
    work = work_rows(trace)
    device, stream = trace.device.device[work], trace.device.stream[work]
    start_ns, end_ns = trace.device.start_ns[work], trace.device.end_ns[work]
    streams = grouped(device, stream)
    return {(int(device[of[0]]), int(stream[of[0]])): Intervals(start_ns[of], end_ns[of]) for of in streams}


def busy_ns(trace: Trace) -> int:
    """Return the time in which GPUs run kernels, copies or memsets, summed over all GPUs."""
    return sum(busy.total_ns for busy in busy_by_device(trace).values())


def window_ns(trace: Trace) -> tuple[int, int]:
    tables = [table for table in (trace.steps, trace.host, trace.device, trace.phases) if len(table)]
    if not tables:
        return 0, 0
    return min(int(t.start_ns.min()) for t in tables), max(int(t.end_ns.max()) for t in tables)


def steady_steps(trace: Trace) -> Column:
    """Return the training steps during which the profiler was off, excluding the warm-up. If the profiler was on in all
    training steps after the warm-up, return the profiled steps."""
    rows = _first_of(trace, StepKind.STEADY, StepKind.AFTER_PROFILE, StepKind.PROFILED, StepKind.WARMUP)
    if len(rows):
        return rows
    clean = clean_evaluations(trace)
    return clean if len(clean) else evaluation_steps(trace)


def clean_steps(trace: Trace, *, trains: bool) -> Column:
    return np.flatnonzero(trace.steps.kind == StepKind.STEADY) if trains else clean_evaluations(trace)


def clean_evaluations(trace: Trace) -> Column:
    """Return the evaluation steps that compile no code and ran without the profiler. The step before a profiled step is left
    out, because the profiler starts in it. If at least `FEWEST_CLEAN_STEPS` clean steps ran before the first profiled step,
    return only these clean steps, because profiling slows all later steps."""
    steps = trace.steps
    clean: Column = (steps.kind == StepKind.EVALUATION) & ~ran_under_profiler(trace) & ~compiles_in_evaluation(trace)
    if (steps.kind == StepKind.EVALUATION).all():
        for rank in trace.ranks:
            rows = np.flatnonzero(clean & (steps.rank == rank))
            clean[rows[: slow_starts(steps.duration_ns[rows])]] = False
    before = np.ones(len(steps), dtype=bool)
    for rank in trace.ranks:
        profiled = trace.run_of(rank).profiler.steps
        clean[(steps.rank == rank) & np.isin(steps.number + 1, profiled)] = False
        if profiled and any(device.rank == rank for device in trace.devices):
            before &= (steps.rank != rank) | (steps.number < min(profiled))
    before &= clean
    return np.flatnonzero(before if before.sum() >= FEWEST_CLEAN_STEPS else clean)


def ran_under_profiler(trace: Trace) -> Column:
    steps = trace.steps
    profiled: Column = steps.kind == StepKind.PROFILED
    evaluated = steps.kind == StepKind.EVALUATION
    for rank in np.unique(steps.rank[evaluated]).tolist():
        profiled |= evaluated & (steps.rank == rank) & np.isin(steps.number, trace.run_of(rank).profiler.steps)
    return profiled


def compiles_in_evaluation(trace: Trace) -> Column:
    steps = trace.steps
    found: Column = np.zeros(len(steps), dtype=bool)
    for rank in trace.ranks:
        compiled = trace.run_of(rank).compiled
        if compiled is not None:
            found |= (steps.rank == rank) & np.isin(steps.number, compiled.compiling_evaluations)
    return found


def profiled_steps(trace: Trace) -> Column:
    """Return the profiled steps. If the profiler never ran, return the steps after the warm-up."""
    rows = _first_of(trace, StepKind.PROFILED, StepKind.STEADY, StepKind.AFTER_PROFILE, StepKind.WARMUP)
    if len(rows):
        return rows
    profiled = np.flatnonzero(ran_under_profiler(trace))
    return profiled if len(profiled) else steady_steps(trace)


def evaluation_steps(trace: Trace) -> Column:
    return np.flatnonzero(trace.steps.kind == StepKind.EVALUATION)


def passes_of_steps(trace: Trace) -> Column:
    """Return one integer per step: the number of backward passes times 2**32, plus the number of optimizer updates."""
    return (phases_per_step(trace, "backward") << 32) + phases_per_step(trace, "optimizer")


def phases_per_step(trace: Trace, name: str) -> Column:
    """Return how many phases of this name each step has. Two phases with only a phase "other" between them count as one."""
    names, begins = joined_phases(trace)
    counted = begins & (names == trace.strings.find(name)) & (trace.phases.step != NONE)
    return np.bincount(trace.phases.step[counted], minlength=len(trace.steps))


@cached_result
def joined_phases(trace: Trace) -> tuple[Column, Column]:
    """Return the name of each phase, and mark each phase with a different name than the previous phase. If a phase "other" is
    between two phases with the same name (except "loader"), this name is used for all three."""
    # see Note [Backward passes in a row]
    phases = trace.phases
    order = np.lexsort((phases.start_ns, phases.step))
    step, name, rows = phases.step[order], phases.name[order], np.arange(len(order))
    is_other = name == trace.strings.find("other")
    before = np.maximum.accumulate(np.where(is_other, 0, rows))
    after = np.minimum.accumulate(np.where(is_other, len(rows) - 1, rows)[::-1])[::-1]
    is_between = (name[before] == name[after]) & (step[before] == step[after]) & (step[before] == step)
    is_between &= name[before] != trace.strings.find("loader")  # waits for data are compared separately
    joined, begins = np.where(is_between, name[before], name), np.zeros(len(order), bool)
    begins[order] = differs(step, joined)
    return joined[np.argsort(order)], begins


def of_one_kind(trace: Trace, *rows: Column) -> list[Column]:
    """Keep only the steps of the most common kind. Steps of one kind have the same numbers of backward passes and optimizer
    updates."""
    passes = passes_of_steps(trace)
    for kind, _ in Counter(passes[rows[0]].tolist()).most_common():
        if all((passes[own] == kind).any() for own in rows):
            return [own[passes[own] == kind] for own in rows]
    return list(rows)


def _first_of(trace: Trace, *kinds: StepKind) -> Column:
    rows = (np.flatnonzero(trace.steps.kind == kind) for kind in kinds)
    return next((found for found in rows if len(found)), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    host_ns: Column
    device_ns: Column | None  # measured between two CUDA events
    is_untimed: Column  # marks the steps in which CUDA events are missing


@cached_result
def phase_times(trace: Trace) -> dict[str, PhaseTimes]:
    phases, steps = trace.phases, len(trace.steps)
    names, first = np.unique(phases.name, return_index=True)
    timed = phases.is_timed
    elapsed_ns = np.where(timed, phases.device_end_ns - phases.device_start_ns, 0)
    found = {}
    for name in names[np.argsort(first)]:
        rows = phases.name == name
        device_ns = sum_by(phases.step[rows], elapsed_ns[rows], steps) if timed[rows].any() else None
        found[trace.strings[int(name)]] = PhaseTimes(
            host_ns=sum_by(phases.step[rows], phases.duration_ns[rows], steps),
            device_ns=device_ns,
            is_untimed=sum_by(phases.step[rows], np.where(timed[rows], 0, 1), steps) > 0,
        )
    return found


def phase_busy_ns(trace: Trace) -> dict[str, Column]:
    work = work_rows(trace)
    phase = launch_phases(trace)[work]
    work, phase = work[phase != NONE], phase[phase != NONE]
    spans = trace.device.take(work)
    if not len(work):
        return {}
    names = np.unique(trace.phases.name).tolist()
    found: dict[str, Column] = {trace.strings[name]: np.zeros(len(trace.steps), dtype=np.int64) for name in names}
    owners, _, owner = distinct(phase * np.int64(len(trace.devices) + 1) + spans.device)
    busy_ns = union_by_group(owner, spans.start_ns, spans.end_ns, len(owners))
    owners //= len(trace.devices) + 1
    names_of, steps = trace.phases.name[owners], trace.phases.step[owners]
    for name in names:
        own = names_of == name
        np.add.at(found[trace.strings[name]], steps[own], busy_ns[own])
    return found


@cached_result
def work_in_launch_order(trace: Trace) -> Column:
    rows = work_rows(trace)
    return np.asarray(rows[np.lexsort((trace.device.start_ns[rows], launch_time_ns(trace)[rows]))])


@cached_result
def launch_time_ns(trace: Trace) -> Column:
    """Return the launch time of each kernel. Unknown launch times are estimated, for example from the launches of other
    kernels."""
    # see Note [A step's time] in traces/figures/pace.py
    spans = trace.device
    known = spans.launch != NONE
    guess_ns = spans.start_ns
    if (phase := _phases_of_times(trace)) is not None:
        guess_ns = np.where(phase == NONE, guess_ns, np.append(trace.phases.start_ns, NONE)[phase])
    if not len(trace.host):
        return np.asarray(guess_ns)
    launched_ns = np.where(known, trace.host.start_ns[spans.launch], guess_ns)
    work = work_rows(trace)
    if known[work].all():
        return launched_ns
    for rows in _streams_in_order(trace):
        places = np.flatnonzero(known[rows])
        unknown = np.flatnonzero(~known[rows])
        after = np.searchsorted(places, unknown)  # the index in `places` of the next work with a known launch
        between = (after > 0) & (after < len(places))
        unknown, after = unknown[between], after[between]
        own, before, after = rows[unknown], rows[places[after - 1]], rows[places[after]]
        near_before = 2 * spans.start_ns[own] <= spans.start_ns[before] + spans.start_ns[after]
        late = launched_ns[after] < spans.start_ns[own]
        launched_ns[own[late]] = np.where(near_before, launched_ns[before], launched_ns[after])[late]
    return launched_ns


@cached_result
def _phases_of_times(trace: Trace) -> Column | None:
    """Find the phase of GPU work without a recorded launch by the time at which the work ran on the GPU. Only traces that
    contain phase times instead of kernels have GPU work without a launch."""
    # see Note [A step's time] in traces/figures/pace.py
    if trace.grain != "phase" or (trace.device.launch != NONE).all():
        return None
    found, spans, phases = np.full(len(trace.device), NONE, dtype=np.int64), trace.device, trace.phases
    timed = np.flatnonzero((phases.device != NONE) & phases.is_timed)
    own, end_ns = by_value(spans.device), spans.end_ns
    for device, on in by_value(phases.device[timed]).items():
        rows = timed[on][np.argsort(phases.start_ns[timed[on]], kind="stable")]
        work = own.get(device, np.zeros(0, dtype=np.int64))
        completed_ns = np.maximum.accumulate(phases.device_end_ns[rows])
        at = np.searchsorted(completed_ns, end_ns[work])
        work, at = work[at < len(rows)], at[at < len(rows)]
        phase = rows[at]
        found[work] = np.where(phases.device_start_ns[phase] <= spans.start_ns[work], phase, NONE)
    return np.where(spans.launch == NONE, found, NONE)


def _streams_in_order(trace: Trace) -> Iterator[Column]:
    spans, work, end_ns = trace.device, work_rows(trace), trace.device.end_ns
    for on in grouped(spans.device[work], spans.stream[work]):
        rows = work[on]
        yield rows[np.lexsort((end_ns[rows], spans.start_ns[rows]))]  # an empty kernel precedes work that begins where it ends


def step_windows(trace: Trace) -> TimeWindows:
    return TimeWindows(trace.steps.start_ns, trace.steps.end_ns, trace.steps.rank)


@cached_result
def backlog(trace: Trace) -> Column:
    spans, work = trace.device, work_rows(trace)
    is_known = spans.launch[work] != NONE
    found = np.zeros(len(spans), dtype=bool)
    if is_known.all():
        return found
    for rows in _streams_in_order(trace):
        launched = np.flatnonzero(spans.launch[rows] != NONE)
        if len(launched):
            found[rows[: launched[0]]] = True
    return found


@cached_result
def launch_steps(trace: Trace) -> Column:
    # see Note [A step's time] in traces/figures/pace.py
    found = np.where(backlog(trace), NONE, step_windows(trace).holding(launch_time_ns(trace), device_ranks(trace)))
    phase = _phases_of_times(trace)
    return found if phase is None else np.where(phase == NONE, found, np.append(trace.phases.step, NONE)[phase])


def phase_windows(trace: Trace) -> TimeWindows:
    phases = trace.phases
    return TimeWindows(phases.start_ns, phases.end_ns, trace.steps.rank[phases.step])


def launch_phases(trace: Trace) -> Column:
    found = np.where(backlog(trace), NONE, phase_windows(trace).holding(launch_time_ns(trace), device_ranks(trace)))
    phase = _phases_of_times(trace)
    return found if phase is None else np.where(phase == NONE, found, phase)


def launch_phase_names(trace: Trace) -> Column:
    return phase_names(trace)[launch_phases(trace)]


def phase_names_at(trace: Trace, times_ns: Column) -> Column:
    return phase_names(trace)[TimeWindows(trace.phases.start_ns, trace.phases.end_ns).holding(times_ns)]


def phase_names(trace: Trace) -> Column:
    return np.array([*(trace.strings[name] for name in trace.phases.name.tolist()), ""])


@cached_result
def op_of(trace: Trace, *, outermost: bool = False) -> Column:
    host = trace.host
    op = np.append(enclosing(host, (host.kind == HostKind.OP) | is_graph_launch(trace)), NONE)
    if outermost:
        above = np.append(op[np.append(host.parent, NONE)[op]][:-1], len(host))
        above[np.append(is_region_range(trace), False)[above]] = NONE
        rows = np.arange(len(above))
        op = np.where(op == NONE, NONE, _last_of_chain(np.where(above == NONE, rows, above))[op])
    return np.asarray(op[trace.device.launch])


@cached_result
def copies_of_hooks(trace: Trace) -> Column:
    """Mark the copies to CPU memory that were made by the script's hooks for saved tensors
    (`torch.autograd.graph.saved_tensors_hooks`)."""
    # see Note [Hooks of saved tensors]
    host, strings = trace.host, trace.strings
    is_op = host.kind == HostKind.OP
    is_copy = is_op & np.isin(host.name, [strings.find(f"aten::{name}") for name in ("copy_", "to", "_to_copy")])
    around = np.append(enclosing(host, is_op), NONE)[host.earlier_parent]
    is_inside = (around != NONE) & ~np.append(is_copy, False)[around]
    found = np.zeros(len(host), bool)
    to_host = strings.matching(trace.device.name, lambda name: copy_direction(name) == "d2h") & trace.device.is_work
    op = op_of(trace)[to_host]
    op = op[np.append(is_copy, False)[op]]
    found[enclosing(host, is_copy & (is_inside | (around == NONE)))[op]] = True
    return np.asarray(found & is_inside)


def launches_without_work(trace: Trace) -> Column:
    if not trace.problems.keys() & {"lost-kernel", "unfinished-launch"}:
        return np.zeros(0, dtype=np.int64)
    host = trace.host
    waiting = np.append((host.kind == HostKind.RUNTIME) & trace.strings.matching(host.name, LAUNCH_CALL.match), False)
    is_call = waiting.copy()
    waiting[trace.device.launch] = False
    rows = np.flatnonzero(waiting)
    return np.asarray(rows[~is_call[host.parent[rows]]])


def innermost_at(host: HostSpans, rows: Column, times_ns: Column) -> Column:
    place = np.searchsorted(host.start_ns[rows], times_ns, side="right") - 1
    found = np.append(rows, NONE)[place]
    end_ns = np.append(host.end_ns, np.iinfo(np.int64).max)
    while (ended := end_ns[found] < times_ns).any():
        found = np.where(ended, host.parent[found], found)
    return np.asarray(found)


def own_graph_launches(trace: Trace) -> Column:
    """Return the rows of `trace.host` in which the script launches a CUDA graph that it captured itself."""
    in_op = enclosing(trace.host, trace.host.kind == HostKind.OP)
    return np.flatnonzero(is_graph_launch(trace) & (in_op == NONE))


def enclosing(host: HostSpans, wanted: Column) -> Column:
    """For each CPU event, return the nearest enclosing event that the mask `wanted` selects, or NONE (-1). A selected event
    encloses itself."""
    return first_marked(host.earlier_parent, wanted)


def first_marked(above: Column, marked: Column) -> Column:
    """For each row of a tree, return the nearest ancestor that the mask `marked` selects, or NONE. `above` contains the parent
    of each row. A marked row returns itself."""
    found = _last_of_chain(np.append(np.where(marked, np.arange(len(above)), above), NONE))[:-1]
    return np.where(found < len(above), found, NONE)


def _last_of_chain(following: Column) -> Column:
    at = np.where(following < 0, len(following) - 1, following)
    while ((further := at[at]) != at).any():
        at = further
    return at


@dataclass(frozen=True, slots=True)
class WorkSum:
    """Counts the kernels or ops with one name, and sums up their GPU times."""

    name: str  # name of the kernel or op
    count: int  # number of calls
    device_ns: int  # total GPU time


def kernel_table(trace: Trace, steps: Column | None = None) -> list[WorkSum]:
    rows = work_rows(trace)
    spans = trace.device.take(rows if steps is None else rows[np.isin(launch_steps(trace)[rows], steps)])
    return _table(trace, spans.name, spans.duration_ns, np.ones(len(spans)))


def op_table(trace: Trace, *, outermost: bool = False) -> list[WorkSum]:
    rows = work_rows(trace)
    op = op_of(trace, outermost=outermost)[rows]
    rows, op = rows[op != NONE], op[op != NONE]
    first_of_op = np.zeros(len(op))
    first_of_op[distinct(op)[1]] = 1
    return _table(trace, trace.host.name[op], trace.device.duration_ns[rows], first_of_op)


@dataclass(frozen=True, slots=True)
class HostOpSum:
    """Contains the number of calls of an op, and their total host time without inner ops."""

    name: str  # name of the op
    count: int  # number of calls
    self_ns: int  # host time without inner ops


def host_op_table(trace: Trace) -> list[HostOpSum]:
    host = trace.host
    is_op = host.kind == HostKind.OP
    inner = np.flatnonzero(is_op & (host.earlier_parent != NONE))
    own_ns = host.duration_ns - sum_by(host.parent[inner], host.duration_ns[inner], len(host))
    rows = _table(trace, host.name[is_op], np.maximum(own_ns[is_op], 0), np.ones(int(is_op.sum())))
    return [HostOpSum(row.name, row.count, row.device_ns) for row in rows]


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """Stores the peak memory of one device."""

    peak_allocated_bytes: int  # peak of the memory in tensors
    peak_reserved_bytes: int | None  # peak of the memory that the allocator reserved
    # "recorded" if memory events contain the device's total memory; "summed" if the peak is the sum of allocations minus frees
    # since the recording began, without earlier memory that was never freed; "run" if there are no memory events and the peak
    # is that of the whole run
    source: str


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    time_ns: Column
    allocated_bytes: Column
    before_bytes: int
    source: str


def memory_curve(trace: Trace, device: int) -> MemoryCurve:
    return _curve(trace.memory, np.flatnonzero(trace.memory.device == device))


def memory_curves(trace: Trace) -> dict[int, MemoryCurve]:
    return {device: _curve(trace.memory, rows) for device, rows in by_value(trace.memory.device).items() if device != NONE}


def _curve(events: MemoryEvents, rows: Column) -> MemoryCurve:
    rows = rows[np.argsort(events.time_ns[rows], kind="stable")]
    time_ns, allocated_bytes = events.time_ns[rows], events.allocated_bytes[rows]
    known = allocated_bytes != NONE
    if known.any():
        return MemoryCurve(time_ns[known], allocated_bytes[known], 0, "recorded")
    # The script may free memory that it allocated before the recording began.
    total = np.cumsum(events.bytes[rows])
    before_bytes = -min(int(total.min(initial=0)), 0)
    return MemoryCurve(time_ns, total + before_bytes, before_bytes, "summed")


def by_label(trace: Trace, of_rows: Mapping[int, T]) -> dict[str, T]:
    return {trace.device_label(row): of for row, of in of_rows.items()}


def run_peaks(trace: Trace) -> dict[int, MemoryPeak]:
    return {row: MemoryPeak(of.peak_bytes, None, "run") for row, of in enumerate(trace.devices) if of.peak_bytes}


def memory_peaks(trace: Trace, steps: Column | None = None) -> dict[int, MemoryPeak]:
    """Return the peak memory of each device in the given steps. If the trace has no memory events, return the peak that PyTorch
    reported for the whole run."""
    events = trace.memory
    if steps is not None:
        ranks = np.array([*(device.rank for device in trace.devices), NONE], dtype=np.int64)[events.device]
        inside = np.isin(step_windows(trace).holding(events.time_ns, ranks), steps) & (events.allocated_bytes != NONE)
        events = events.take(inside | ~np.isin(events.device, events.device[inside]))
    peaks = run_peaks(trace)
    for device, rows in by_value(events.device).items():
        if device == NONE:
            continue
        allocated_bytes, reserved_bytes = (int(of[rows].max()) for of in (events.allocated_bytes, events.reserved_bytes))
        source = "recorded"
        if allocated_bytes == NONE:
            curve = _curve(events, rows)
            allocated_bytes, source = max(int(curve.allocated_bytes.max()), curve.before_bytes), curve.source
        peaks[device] = MemoryPeak(allocated_bytes, None if reserved_bytes == NONE else reserved_bytes, source)
    return peaks


def device_time_by_origin(trace: Trace) -> dict[Origin, int]:
    """Return the total GPU time in ns by origin, such as measured or estimated."""
    rows, steps = work_rows(trace), np.flatnonzero(trace.steps.kind != StepKind.WARMUP)
    is_whole_phase = (trace.device.launch[rows] == NONE) & trace.strings.matching(trace.device.name[rows], PHASES.__contains__)
    is_recorded = ~is_whole_phase & np.isin(trace.device.origin[rows], (Origin.MEASURED, Origin.EXACT, Origin.EQUIVALENT))
    rows = rows[~is_whole_phase] if is_recorded.any() else rows
    steps = steps if len(steps) else np.arange(len(trace.steps))
    if len(rows):
        in_steps = np.isin(launch_steps(trace)[rows], steps)
        if in_steps.any():  # False for replays with a clock that never advances
            rows = rows[in_steps]
        origin, duration_ns = trace.device.origin[rows], trace.device.duration_ns[rows]
    else:
        phases = trace.phases.take(trace.phases.is_timed & np.isin(trace.phases.step, steps))
        origin, duration_ns = phases.origin, phases.device_end_ns - phases.device_start_ns
    sums = sum_by(origin, duration_ns, len(Origin))
    return {kind: int(sums[kind]) for kind in Origin if sums[kind]}


def _table(trace: Trace, name: Column, duration_ns: Column, counted: Column) -> list[WorkSum]:
    times_ns = sum_by(name, duration_ns, len(trace.strings))
    counts = np.bincount(name, weights=counted, minlength=len(trace.strings)).astype(np.int64)
    names = np.flatnonzero(np.bincount(name, minlength=len(trace.strings)))
    rows = [WorkSum(trace.strings[name], int(counts[name]), int(times_ns[name])) for name in names.tolist()]
    return sorted(rows, key=lambda row: (-row.device_ns, -row.count, row.name))


def work_of_steps(trace: Trace, steps: Column) -> tuple[Column, Column]:
    rows = work_rows(trace)
    rows = rows[np.isin(launch_steps(trace)[rows], steps)] if len(steps) else rows
    launch = trace.device.launch[rows]
    known = launch != NONE
    return rows[known], launch[known]


def begin_in_steps(trace: Trace, rows: Column, steps: Column) -> Column:
    if not len(steps):
        return np.ones(len(rows), dtype=bool)
    return np.isin(step_windows(trace).holding(trace.host.start_ns[rows], host_ranks(trace)[rows]), steps)


def rank_of_device(trace: Trace, device: int) -> int:
    return trace.devices[device].rank if device < len(trace.devices) else 0


@cached_result
def host_ranks(trace: Trace) -> Column:
    return np.array([thread.rank for thread in trace.threads] or [0])[trace.host.thread]


@cached_result
def device_ranks(trace: Trace) -> Column:
    ranks = np.array([device.rank for device in trace.devices] or [0], dtype=np.int64)
    return np.asarray(ranks[np.where(trace.device.device < len(ranks), trace.device.device, 0)])
