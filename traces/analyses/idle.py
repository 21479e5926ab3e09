"""Finds the reasons why a GPU or a single CUDA stream was idle.

    spans = idle_spans(trace)               # one entry per stretch of idle time with one reason
    idle_times(trace)["cuda:0"]             # IdleTime(window_ns=..., busy_ns=..., by_reason={"data": 68_000_000, ...})
    idle_calls(trace)[0]                    # IdleCall("hipFree", count=816, idle_ns=2_830_000_000, share=0.98)
    idle_spans(trace, by_stream=True)       # for each stream, where work on other streams is also a reason

If a GPU is idle and its next kernel has not been launched yet, the host is the reason. The reasons are:

    data                before the launch: the host waited for a batch
    collective          before the launch: the host itself ran a collective (gloo);
                        after the launch: a communication kernel on another stream ended in the gap
    other_gpu           before the launch: the host waited for another GPU of the process;
                        after the launch: work on another GPU of the process ended in the gap, at most 10 us before its end
    synchronization     before the launch: the host had waited for the device up to the gap (`traces.analyses.waits`: .item(),
                        pageable copies); the rest of the gap is the host's way to the next launch
    host                before the launch: the host was busy elsewhere (Python, the framework), so the step is host-bound. This
                        includes long launching calls; `traces.analyses.launches.long_launches` has their reasons
    stream              after the launch: work on another stream of the device ended in the gap, at most 10 us before its end
    launch              after the launch, without any visible wait: launch latency, or profiler overhead
    unknown             the launch was not recorded; or the work is the device's first, and started more than LATE_START_NS
                        after its launch. Unrecorded work from before the recording may have kept the device busy

Note [Idle time of clean steps]
    The profiler slows the host, so a GPU is idle longer in profiled steps than in steps without the profiler. The result of
    `idle_times` is therefore an estimate for steps without the profiler. The estimate assumes that the GPU works as long as in
    profiled steps, and that the rest of the step time is idle time. If the pace has a mean step (Note [What limits the pace] in
    `traces.figures.pace`), the time of the mean step is used. `idle_spans` lists the measured idle time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from traces.analyses.communication import communication_kernels
from traces.analyses.launches import launched_ns
from traces.analyses.waits import calls_by_rank, host_waits
from traces.comparison.thresholds import EDGE_NS, LATE_START_NS
from traces.figures.measure import busy_by_device, device_ranks, profiled_steps, steady_steps, work_rows
from traces.figures.pace import StepPace, counted_steps, device_windows, pace, step_times
from traces.model.intervals import Intervals, containing
from traces.model.result_cache import cached_result
from traces.model.row_order import by_value, differs, grouped
from traces.model.trace import I4, I8, I8_OR_NONE, NONE, U1, BatchKind, Column, Table, Trace

_BEFORE_ALL = np.iinfo(np.int64).min
_ON_HOST = ("synchronization", "host")  # reasons for idle time that take longer when the profiler is on
# how reports name the reasons for idle time
REASONS = {
    "data": "waiting for data",
    "host": "host-bound",
    "synchronization": "after a host wait for the GPU",
    "collective": "waiting for other ranks",
    "stream": "waiting for another stream",
    "other_gpu": "waiting for another GPU of the process",
    "launch": "launched but not started",
    "unknown": "for an unrecorded reason",
}


class IdleReason(IntEnum):
    DATA = 0
    COLLECTIVE = 1
    SYNCHRONIZATION = 2
    HOST = 3
    STREAM = 4
    OTHER_GPU = 5
    LAUNCH = 6
    UNKNOWN = 7


class IdleSpans(Table):
    device: I4
    stream: I8_OR_NONE  # stream number; NONE for a whole device
    start_ns: I8
    end_ns: I8
    reason: U1
    ended_by: I8  # row of `trace.device` with the work that ends the gap; NONE after the last work


@dataclass(frozen=True, slots=True)
class Gaps:
    """Stores the periods in which a GPU or a stream was idle, in time order. An unknown time is NONE."""

    device: int
    stream: int
    start_ns: Column
    end_ns: Column
    ended_by: Column  # rows of `trace.device` with the work that ends each gap; NONE after the last work
    launch_ns: Column  # launch time of the next work
    begin_ns: int
    finish_ns: int
    first: int  # row of `trace.device` with the first work; the next field is its launch time
    first_launch_ns: int


@dataclass(frozen=True, slots=True)
class BusyTime:
    windows: Intervals
    busy_ns: int
    steps: int
    clean: StepPace | None  # step times without the profiler, if the profiler was on in other steps

    @property
    def window_ns(self) -> int:
        # see Note [Idle time of clean steps]
        measured_ns = self.windows.total_ns
        return measured_ns if self.clean is None else max((self.clean.mean or self.clean).pace_ns * self.steps, self.busy_ns)


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Contains one GPU's idle time for each reason, such as "data" or "host"."""

    window_ns: int  # time in which busy and idle time were measured
    busy_ns: int  # time in which the GPU worked
    by_reason: dict[str, int]  # idle time by reason
    steps: int  # number of counted steps

    @property
    def idle_ns(self) -> int:
        return sum(self.by_reason.values())


@dataclass(frozen=True, slots=True)
class IdleCall:
    """Contains the GPU idle time during the calls of one CUDA runtime function."""

    call: str  # name of the function
    count: int  # number of calls
    idle_ns: int  # GPU idle time during the calls
    share: float  # fraction of all idle time caused by the host


def gaps(trace: Trace, *, by_stream: bool = False) -> Iterator[Gaps]:
    rows = work_rows(trace)
    rows = rows[np.lexsort((trace.device.end_ns[rows], trace.device.start_ns[rows]))]
    device, start_ns, end_ns = trace.device.device[rows], trace.device.start_ns[rows], trace.device.end_ns[rows]
    known_ns = launched_ns(trace, rows)
    streams = trace.device.stream[rows] if by_stream else np.full(len(rows), NONE)
    for own in grouped(device, streams):
        busy = Intervals(start_ns[own], end_ns[own])
        first = own[np.searchsorted(start_ns[own], busy.start_ns)]
        yield Gaps(
            int(device[own[0]]),
            int(streams[own[0]]),
            busy.end_ns[:-1],
            busy.start_ns[1:],
            rows[first[1:]],
            known_ns[first[1:]],
            begin_ns=int(busy.start_ns[0]),
            finish_ns=int(busy.end_ns[-1]),
            first=int(rows[first[0]]),
            first_launch_ns=int(known_ns[first[0]]),
        )


@cached_result
def idle_spans(trace: Trace, *, by_stream: bool = False) -> IdleSpans:
    found = [_explained(trace, _to_the_ends_of_steps(trace, of)) for of in gaps(trace, by_stream=by_stream)]
    return IdleSpans.concatenated([spans for spans in found if len(spans)]) if any(map(len, found)) else IdleSpans.empty()


@cached_result
def busy_times(trace: Trace) -> dict[int, BusyTime]:
    steps, busy_of = counted_steps(trace), busy_by_device(trace)
    found = {}
    for device, windows in sorted(device_windows(trace).items()):
        if device not in busy_of:  # these steps were timed only with CUDA events
            continue
        busy_ns = int(busy_of[device].within(windows.start_ns, windows.end_ns).sum())
        rank = trace.devices[device].rank
        mine = int((trace.steps.rank[steps] == rank).sum())
        found[device] = BusyTime(windows, busy_ns, mine, _clean_pace(trace, rank))
    return found


@cached_result
def idle_times(trace: Trace) -> dict[str, IdleTime]:
    spans = idle_spans(trace)
    rows_of = by_value(spans.device)
    found = {}
    for device, busy in busy_times(trace).items():
        of = spans.take(rows_of.get(device, np.zeros(0, "i8")))
        lasted_ns = busy.windows.within(of.start_ns, of.end_ns)
        sums = np.bincount(of.reason, weights=lasted_ns, minlength=len(IdleReason))
        by_reason = {reason.name.lower(): int(sums[reason]) for reason in IdleReason}
        found[trace.device_label(device)] = _of_clean_steps(busy, by_reason)
    return found


def _clean_pace(trace: Trace, rank: int) -> StepPace | None:
    clean, profiled = (rows[trace.steps.rank[rows] == rank] for rows in (steady_steps(trace), profiled_steps(trace)))
    return None if np.isin(profiled, clean).any() else pace(trace, clean, with_kernels=profiled)


def _of_clean_steps(measured: BusyTime, by_reason: dict[str, int]) -> IdleTime:
    # see Note [Idle time of clean steps]
    window_ns = measured.window_ns
    if measured.clean is None:
        return IdleTime(window_ns, measured.busy_ns, by_reason, measured.steps)
    of = measured.clean.mean or measured.clean
    data_ns = min((of.pace_ns - of.without_data_ns) * measured.steps, window_ns - measured.busy_ns)
    rest_ns = window_ns - measured.busy_ns - data_ns
    kept = {reason: of_ns for reason, of_ns in by_reason.items() if reason not in ("data", *_ON_HOST)}
    most_ns = max(sum(kept.values()), rest_ns, 1)
    kept = {reason: of_ns * rest_ns // most_ns for reason, of_ns in kept.items()}
    synchronized_ns, host_ns = (by_reason[reason] for reason in _ON_HOST)
    host_rest_ns = rest_ns - sum(kept.values())
    synchronized_ns = host_rest_ns * synchronized_ns // max(synchronized_ns + host_ns, 1)
    own = {"data": data_ns, "synchronization": synchronized_ns, "host": host_rest_ns - synchronized_ns, **kept}
    return IdleTime(window_ns, measured.busy_ns, {reason: own[reason] for reason in by_reason}, measured.steps)


def idle_calls(trace: Trace) -> list[IdleCall]:
    host, spans = trace.host, idle_spans(trace)
    spans = spans.take(np.isin(spans.reason, (IdleReason.HOST, IdleReason.SYNCHRONIZATION)))
    calls_of = calls_by_rank(trace)
    idle_ns, counts, total_ns = Counter[int](), Counter[int](), 0
    rows_of = by_value(spans.device)
    for device, windows in device_windows(trace).items():
        own = spans.take(rows_of.get(device, np.zeros(0, "i8")))
        edges = list(zip(windows.start_ns.tolist(), windows.end_ns.tolist(), strict=True))
        parts = [(np.clip(own.start_ns, *edge), np.clip(own.end_ns, *edge)) for edge in edges]
        idle = Intervals(*map(np.concatenate, zip(*parts, strict=True)))
        total_ns += idle.total_ns
        calls = host.take(calls_of.get(trace.devices[device].rank, np.zeros(0, "i8")))
        calls = calls.take(idle.within(calls.start_ns, calls.end_ns) > 0)
        for of in grouped(calls.name):
            name, during = int(calls.name[of[0]]), Intervals(calls.start_ns[of], calls.end_ns[of])
            counts[name] += len(of)
            idle_ns[name] += int(during.within(idle.start_ns, idle.end_ns).sum())
    return [IdleCall(trace.strings[name], counts[name], time_ns, time_ns / total_ns) for name, time_ns in idle_ns.most_common()]


def _to_the_ends_of_steps(trace: Trace, of: Gaps) -> Gaps:
    mine = trace.steps.rank == trace.devices[of.device].rank
    if not mine.any():
        return of
    first_ns, last_ns = int(trace.steps.start_ns[mine].min()), int(trace.steps.end_ns[mine].max())
    # each row contains the start and end of a gap, the work that ends the gap, and the time of the launch
    before = [(first_ns, of.begin_ns, of.first, of.first_launch_ns)]
    # One GPU may be idle while another GPU of the same process works.
    after = [(of.finish_ns, last_ns, NONE, last_ns)]
    after.append((max(of.finish_ns, last_ns), int(step_times(trace).end_ns[mine].max()), NONE, NONE))
    first, last = (np.array([row for row in rows if row[0] < row[1]], "i8").reshape(-1, 4).T for rows in (before, after))
    found = map(np.concatenate, zip(first, (of.start_ns, of.end_ns, of.ended_by, of.launch_ns), last, strict=True))
    start_ns, end_ns, ended_by, launch_ns = found
    return replace(of, start_ns=start_ns, end_ns=end_ns, ended_by=ended_by, launch_ns=launch_ns)


def _explained(trace: Trace, of: Gaps) -> IdleSpans:
    if not len(of.start_ns):
        return IdleSpans.empty()
    rank = trace.devices[of.device].rank
    data, calls = data_waits(trace, rank), _host_collectives(trace, rank)
    waits = host_waits(trace, rank)
    elsewhere = waits.take(trace.device.device[waits.work] != of.device).intervals
    awaited_ns, awaited = _awaited_work(trace, of)
    within = np.clip(of.launch_ns, of.start_ns, of.end_ns)
    edges = np.concatenate([of.start_ns, of.end_ns, within, awaited_ns])
    for on in (data, calls, elsewhere):
        edges = np.concatenate([edges, on.start_ns, on.end_ns])
    cuts = np.sort(edges[(edges >= of.start_ns[0]) & (edges <= of.end_ns[-1])])
    cuts = cuts[differs(cuts)]  # np.unique would use hashing, which is ten times slower
    middle = (cuts[:-1] + cuts[1:]) // 2
    gap = containing(of.start_ns, of.end_ns, cuts[:-1])
    inside = gap != NONE
    cuts, ends, middle, gap = cuts[:-1][inside], cuts[1:][inside], middle[inside], gap[inside]
    on_host = cuts < of.launch_ns[gap]
    late = (of.ended_by == of.first) & (of.end_ns - of.launch_ns > LATE_START_NS)
    without_wait = np.where(late | (of.launch_ns == NONE), IdleReason.UNKNOWN, IdleReason.LAUNCH)
    on_device = np.where(middle < awaited_ns[gap], awaited[gap], without_wait[gap])
    waited = waits.intervals.holds(of.start_ns - 1)
    on_the_way = np.where(waited[gap], IdleReason.SYNCHRONIZATION, IdleReason.HOST)
    on_the_way = np.where(elsewhere.holds(middle), IdleReason.OTHER_GPU, on_the_way)
    on_the_way = np.where(calls.holds(middle), IdleReason.COLLECTIVE, on_the_way)
    on_the_way = np.where(data.holds(middle), IdleReason.DATA, on_the_way)
    reason = np.where(on_host, on_the_way, on_device)
    # join adjacent pieces of a gap that have the same reason
    first = differs(gap, reason)
    last = np.append(first[1:], True)
    rows = gap[first]
    return IdleSpans.of(
        device=np.full(len(rows), of.device),
        stream=np.full(len(rows), of.stream),
        start_ns=cuts[first],
        end_ns=ends[last],
        reason=reason[first],
        ended_by=of.ended_by[rows],
    )


def data_waits(trace: Trace, rank: int) -> Intervals:
    waits = trace.batches.take((trace.batches.rank == rank) & (trace.batches.kind == BatchKind.WAIT))
    if len(waits):
        return Intervals(waits.start_ns, waits.end_ns)
    phases = trace.phases
    loads = phases.name == trace.strings.find("loader")
    mine = trace.steps.rank[phases.step] == rank if len(trace.steps) else np.ones(len(phases), dtype=bool)
    return Intervals(phases.start_ns[loads & mine], phases.end_ns[loads & mine])


def _host_collectives(trace: Trace, rank: int) -> Intervals:
    table = trace.collectives.take((trace.collectives.rank == rank) & (trace.collectives.device == NONE))
    return Intervals(table.start_ns, table.end_ns)


def _awaited_work(trace: Trace, of: Gaps) -> tuple[Column, Column]:
    table, ends_ns = trace.device, np.full(len(of.start_ns), _BEFORE_ALL)
    reasons = np.full(len(ends_ns), IdleReason.UNKNOWN)
    known = (of.launch_ns != NONE) | (of.ended_by == NONE)
    rows = _work_by_rank(trace)[trace.devices[of.device].rank]
    is_own_gpu = table.device[rows] == of.device
    other_gpus = rows[~is_own_gpu]
    other_streams = rows[is_own_gpu & (table.stream[rows] != of.stream)] if of.stream != NONE else rows[:0]
    for others in (other_gpus, other_streams):
        if not len(others):
            continue
        ends = table.start_ns[others] + table.duration_ns[others]
        place = np.searchsorted(ends, of.end_ns, side="right") - 1
        latest, ended_ns = others[place], ends[place]
        waited = known & (ended_ns > of.start_ns) & (ended_ns <= of.end_ns) & (ended_ns >= of.end_ns - EDGE_NS)
        ends_ns = np.where(waited, ended_ns, ends_ns)
        own = np.where(communication_kernels(trace)[latest], IdleReason.COLLECTIVE, IdleReason.STREAM)
        reasons = np.where(waited, np.where(table.device[latest] == of.device, own, IdleReason.OTHER_GPU), reasons)
    return ends_ns, reasons


@cached_result
def _work_by_rank(trace: Trace) -> dict[int, Column]:
    rows = work_rows(trace)
    rows = rows[np.argsort(trace.device.end_ns[rows], kind="stable")]
    return {rank: rows[of] for rank, of in by_value(device_ranks(trace)[rows]).items()}
