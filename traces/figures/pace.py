"""Computes the time of a training step on the host and on the devices.

    of = pace(load("async.msgpack"))
    of.pace_ns, of.limit            # 20_000_000, "device": the host needs 2 ms per step, the GPU 20 ms
    of.host_ns, of.device_ns        # 2_000_000, 20_000_000
    of.gpu_time_ns                  # 20_000_000: the GPU is busy for all of it

Note [A step's time]
    A kernel belongs to the step in which the host launched it, even if the GPU runs it after the end of the step. At the start
    of a recording, the GPU may still run kernels that were launched earlier. These kernels are called the backlog and belong to
    no step. If the launch of a kernel is unknown, the kernel belongs to the step in which it starts. But the GPU runs the
    kernels of a stream in launch order. If a later kernel of the stream was launched before this kernel starts, this kernel
    belongs to the step of the previous or the next kernel with a known launch, whichever starts nearer.

    If a trace contains only phase times, a kernel without a known launch belongs to the phase whose CUDA events enclose the
    kernel.

    completion of step s on device d    the latest end of all work on d that was launched in steps up to s
    device interval of s on d           completion(s) - completion(s - 1)
    host interval of s                  host end(s) - host end(s - 1)

    If the previous step is missing, or if the profiler started or stopped between the two steps, the host time of a step is its
    duration on the host. The device time of such a step begins when the step starts on the host, or when the device has
    finished all earlier steps.

    host pace       the median host interval of the steady steps, on the slowest rank (medians: see Note [Periodic steps] in
                    `traces.figures.spread`)
    device pace     the median device interval of the steady steps, on the slowest device that gets work in each of them
    pace            the larger of the two (but see Note [Steps of several kinds])
    GPU time        of a step: how long each device was busy (union) with the work launched in it, summed over devices
    busy share      of a device: how long it was busy, divided by the step time, both summed over all counted steps
    lag             completion(s) - host end(s), on the slowest device; if it grows, the device falls further behind

    Step times, busy times and idle times are measured in the same steps (`counted_steps`). For example, if every tenth step is
    long, a multiple of ten steps is counted.

    A step begins when the previous step ends, and ends when the host and the GPU have finished it. The GPU time is unknown in
    steps that were timed only by CUDA events.

Note [Steps of several kinds]
    A GAN trains two networks, so long and short steps alternate. The host's median step may then be a long step, and the GPU's
    median step a short one. Therefore, either the step times of the host or the step times of the GPU are used. If the GPU
    usually finishes a step later than the host (median lag above 0), the step times of the GPU are used.

Note [What limits the pace]
    If the host waits for the GPU in each step, the host and the GPU need the same time per step. The GPU falls behind the host
    if its pace is more than 2 % longer than the host's pace, and if it almost always has queued work. The limit is "device" if
    the GPU falls behind the host, or if the GPU works for at least 90 % of the step time. Otherwise the limit is "host".

    The median step may hide the limit. For example, 14 of 29 steps may wait long for data, and 15 steps may not wait. The GPU
    then limits the median step, but the waits for data take half of the time. The mean step (`StepPace.mean`) and the busy
    share therefore show the limit if step times vary by more than MUCH_SPREAD, or if the mean is more than DEFAULT_TOLERANCE
    above the median. If the mean is below the median, the mean step is used only if the difference is more than MUCH_SPREAD.
    The reason is that the first steps of a host that runs ahead are short.

Note [Waits for data]
    If a script waits for a batch while the GPU still has queued work, the wait costs no time. The step time "without data
    loading" therefore excludes only waits during which no GPU had queued work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from traces.comparison import thresholds
from traces.figures import measure
from traces.figures.spread import mean, means_of_periods, median_per_step, noise_floor, period_of, varies_much
from traces.model.intervals import Intervals, union_by_group
from traces.model.result_cache import cached_result
from traces.model.row_order import by_value, grouped
from traces.model.trace import NONE, Column, Trace

HOST, DEVICE = "host", "device"
_LONG_AGO = -(2**62)


# see Note [A step's time]
@dataclass(frozen=True)
class StepTimes:
    host_interval_ns: Column
    completion_ns: dict[int, Column]
    device_interval_ns: dict[int, Column]
    begin_ns: Column
    end_ns: Column
    gpu_ns: dict[int, Column]
    busy_ns: dict[int, Column]  # how long the device was busy between `begin_ns` and `end_ns`, with work of any step
    queued_ns: dict[int, Column]  # the part of `device_interval_ns` in which work was queued or running on the device
    has_others: dict[int, Column]  # whether work of no step, such as the backlog, ran between `begin_ns` and `end_ns`
    launches: dict[int, Column]  # whether the step launched work on the device or has CUDA events there
    data_wait_ns: Column  # see Note [Waits for data]
    loader_ns: Column  # total time of the loader phases in the step
    passes: Column  # equal for steps of the same kind (`passes_of_steps`)
    follows: Column
    host_end_ns: Column
    rank: Column
    device_ranks: dict[int, int] = field(default_factory=dict)

    @cached_property
    def slowest(self) -> dict[bytes, tuple[PaceSeries | None, PaceSeries | None]]:
        return {}

    def of_devices(self, rows: Column) -> dict[int, Column]:
        """For each GPU, return the steps in `rows` that ran on the GPU. GPUs without steps are left out."""
        of_rank = {rank: rows[own] for rank, own in by_value(self.rank[rows]).items()}
        return {device: of_rank[rank] for device, rank in self.device_ranks.items() if rank in of_rank}

    def comparable(self, rows: Column) -> Column:
        """Return the steps with comparable times."""
        # see Note [A step's time]
        kept = []
        for rank, own in by_value(self.rank[rows]).items():
            following = rows[own][self.follows[rows[own]]]
            waits = (_without_queue(self, device, following) for device, of in self.device_ranks.items() if of == rank)
            is_queued = any(waits_ns <= (1 - thresholds.ALWAYS_BUSY) * lasted_ns for waits_ns, lasted_ns in waits if lasted_ns)
            kept.append(following if is_queued else rows[own])
        return np.sort(np.concatenate(kept)) if kept else rows

    @cached_property
    def longest_device_ns(self) -> Column:
        """For each step, return the device span of the slowest GPU, or NONE if the step has no GPU work."""
        none = np.full(len(self.host_interval_ns), NONE, dtype=np.int64)
        return np.asarray(np.max([none, *self.device_interval_ns.values()], axis=0))

    @cached_property
    def gpu_time_ns(self) -> Column:
        return sum(self.gpu_ns.values(), np.zeros(len(self.host_interval_ns), dtype=np.int64))


@dataclass(frozen=True, slots=True)
class MeanStep:
    """Contains mean step times in nanoseconds. `StepPace` contains the medians."""

    pace_ns: int  # the step time
    without_data_ns: int  # step time without waits for data


# see Note [A step's time]
@dataclass(frozen=True, slots=True)
class StepPace:
    """Contains the median step times in nanoseconds."""

    steps: int  # number of steps in the set, of all ranks
    pace_ns: int  # the step time
    limit: str  # what limits the median step: "device" or "host"
    host_runs_ahead: bool  # True if the host launches work faster than the GPU completes it
    host_ns: int  # step time on the host
    device_ns: int | None  # step time on the slowest GPU; None without device work and CUDA events
    device: int  # index of the slowest GPU
    gpu_time_ns: int | None  # GPU busy time per step, summed over GPUs
    busy_share: float | None  # busy share of the busiest GPU, on average over the steps
    without_data_ns: int  # step time without waits for data
    period: int  # the intervals repeat after this number of steps, or 1 if they do not repeat
    noise: float | None  # half the interquartile range divided by the median; None below four steps
    falls_behind_ns: int  # growth of the lag per step; 0 if the lag does not grow steadily
    mean: MeanStep | None = None  # means, if the steps vary a lot


@dataclass(frozen=True, slots=True)
class PaceSeries:
    rows: Column
    interval_ns: Column
    without_data_ns: Column
    device: int  # row of the device with these intervals; NONE for host intervals


@cached_result
def step_times(trace: Trace) -> StepTimes:
    steps = trace.steps
    order = np.lexsort((steps.start_ns, steps.rank))
    before, follows = _predecessors(trace, order)
    step_of, work = measure.launch_steps(trace), measure.work_rows(trace)
    has_work = np.zeros(len(steps) + 1, dtype=bool)
    has_work[step_of[work]] = True
    has_work = has_work[:-1]
    by_events = _timed_by_events(trace, has_work)
    continues = follows & (steps.kind == np.append(steps.kind, NONE)[before])
    ends = _latest_ends(trace, work, step_of, by_events)
    gpu_ns = _gpu_ns(trace, work, step_of)
    outside = _by_device(trace, work[step_of[work] == NONE])
    completion_ns, interval_ns, launches, device_ranks = {}, {}, {}, {}
    end_ns = steps.end_ns.copy()
    for device, latest_ns in ends.items():
        rank = device_ranks[device] = measure.rank_of_device(trace, device)
        mine = order[steps.rank[order] == rank]
        done_ns = np.full(len(steps), _LONG_AGO, dtype=np.int64)
        done_ns[mine] = np.maximum.accumulate(latest_ns[mine])
        known = np.where(done_ns == _LONG_AGO, NONE, done_ns)
        last_ns = np.append(done_ns, _LONG_AGO)[before]
        earlier_ns = np.maximum(last_ns, _ends_outside_steps(trace, outside.get(device, work[:0])))
        since_ns = np.where(continues & (last_ns != _LONG_AGO), last_ns, np.maximum(steps.start_ns, earlier_ns))
        since_ns = np.minimum(since_ns, known)
        completion_ns[device] = known
        interval_ns[device] = np.where(known == NONE, NONE, known - since_ns)
        launches[device] = latest_ns != _LONG_AGO
        end_ns = np.where(launches[device] & (steps.rank == rank), np.maximum(end_ns, known), end_ns)
    begin_ns = np.where(follows, np.append(end_ns, NONE)[before], steps.start_ns)
    begin_ns = np.minimum(begin_ns, end_ns)
    no_ns = np.zeros(len(steps), dtype=np.int64)
    others_ns = _busy_within(trace, work[step_of[work] == NONE], begin_ns, end_ns)
    return StepTimes(
        host_interval_ns=np.where(follows, steps.end_ns - np.append(steps.end_ns, NONE)[before], steps.duration_ns),
        completion_ns=completion_ns,
        device_interval_ns=interval_ns,
        begin_ns=begin_ns,
        end_ns=end_ns,
        gpu_ns=gpu_ns,
        busy_ns=_busy_within(trace, work, begin_ns, end_ns),
        queued_ns=_queued_ns(trace, work, completion_ns, interval_ns),
        has_others={device: others_ns.get(device, no_ns) > 0 for device in gpu_ns},
        launches=launches,
        data_wait_ns=_data_waits(trace, work, by_events),
        loader_ns=_loader_ns(trace),
        passes=measure.passes_of_steps(trace),
        follows=follows,
        host_end_ns=steps.end_ns,
        rank=steps.rank,
        device_ranks=device_ranks,
    )


def host_series(times: StepTimes, rows: Column) -> PaceSeries | None:
    return _slowest(times, rows)[0]


def device_series(times: StepTimes, rows: Column) -> PaceSeries | None:
    return _slowest(times, rows)[1]


def _slowest(times: StepTimes, rows: Column) -> tuple[PaceSeries | None, PaceSeries | None]:
    key = rows.tobytes()
    if key not in times.slowest:
        times.slowest[key] = _slowest_host(times, times.comparable(rows)), _slowest_device(times, rows)
    return times.slowest[key]


def _slowest_host(times: StepTimes, rows: Column) -> PaceSeries | None:
    without_data_ns, of_ranks = times.host_interval_ns - times.data_wait_ns, by_value(times.rank[rows]).values()
    found = [PaceSeries(rows[own], times.host_interval_ns, without_data_ns, NONE) for own in of_ranks]
    return max(found, key=_median, default=None)


def _slowest_device(times: StepTimes, rows: Column) -> PaceSeries | None:
    steady: list[PaceSeries] = []
    some: list[PaceSeries] = []
    comparable = times.of_devices(times.comparable(rows))
    for device, mine in times.of_devices(rows).items():
        interval_ns, launches = times.device_interval_ns[device], times.launches[device][mine]
        if not launches.any():
            continue
        without_data_ns, mine = np.maximum(interval_ns - times.data_wait_ns, 0), comparable[device]
        one = PaceSeries(mine[interval_ns[mine] != NONE], interval_ns, without_data_ns, device)
        (steady if launches.all() else some).append(one)
    return max(steady or some, key=_median, default=None)


def pace_series(times: StepTimes, rows: Column) -> PaceSeries | None:
    """Return the step times of the host or of the slowest GPU, depending on which of the two limits the speed."""
    # see Note [Steps of several kinds]
    host, device = host_series(times, rows), device_series(times, rows)
    if host is None or device is None:
        return host
    if len(np.unique(times.passes[rows])) > 1:
        lag_ns = times.completion_ns[device.device] - times.host_end_ns
        return device if np.median(lag_ns[device.rows]) > 0 else host
    return max(host, device, key=_median)


def median_ns(times: StepTimes, rows: Column) -> int | None:
    chosen = pace_series(times, rows)
    return None if chosen is None else _median(chosen)


def pace(trace: Trace, rows: Column | None = None, *, with_kernels: Column | None = None) -> StepPace | None:
    """Return the median step times, or None if there are no steps. `rows` selects the steps (default: `steady_steps`)."""
    if rows is None:
        rows, with_kernels = measure.steady_steps(trace), measure.profiled_steps(trace)
    return pace_of(step_times(trace), rows, rows if with_kernels is None else with_kernels)


def pace_of(times: StepTimes, rows: Column, with_kernels: Column) -> StepPace | None:
    host, slowest, chosen = host_series(times, rows), device_series(times, rows), pace_series(times, rows)
    if host is None or chosen is None:
        return None
    host_ns, pace_ns = _median(host), _median(chosen)
    device_ns = None if slowest is None else _median(slowest)
    # If every second step is longer, use an even number of steps for the mean.
    whole = chosen.rows[len(chosen.rows) % period_of(chosen.interval_ns[chosen.rows]) :]
    mean_ns = mean(chosen.interval_ns[whole])
    differs = not (1 - thresholds.MUCH_SPREAD) * pace_ns <= mean_ns <= (1 + thresholds.DEFAULT_TOLERANCE) * pace_ns
    has_mean = differs or varies_much(chosen.interval_ns[chosen.rows])
    busy, median_busy = [], []
    of_all, comparable = np.array_equal(rows, with_kernels), times.comparable(with_kernels)
    lasted_of_step_ns = np.maximum(times.end_ns - times.begin_ns, 1)
    for device, mine in times.of_devices(comparable).items():
        own_ns = times.gpu_ns[device][mine] if device in times.gpu_ns else mine[:0]
        if pace_ns and own_ns.any():
            # GPU work of two steps may overlap.
            lasted_ns, measured = lasted_of_step_ns[mine], times.has_others[device][mine] | of_all
            busy_ns = np.where(measured, times.busy_ns[device][mine], own_ns)
            of_ns = np.where(measured, lasted_ns, mean_ns if has_mean else pace_ns)
            period = max(period_of(lasted_ns), period_of(busy_ns))
            counted = slice(len(mine) % period_of_steps(times, with_kernels), None)
            busy.append(float(busy_ns[counted].sum() / of_ns[counted].sum()))
            of_ns = np.where(measured, lasted_ns, pace_ns)
            median_busy.append(float(np.median(means_of_periods(busy_ns, period)) / np.median(means_of_periods(of_ns, period))))
    gpu_time_ns = median_per_step(times.gpu_time_ns[with_kernels]) if busy else None
    busy_share = max(busy, default=None)
    waits_ns, profiled_ns = (0, 0) if slowest is None else _without_queue(times, slowest.device, comparable)
    is_queued = device_ns is not None and waits_ns <= (1 - thresholds.ALWAYS_BUSY) * profiled_ns
    runs_ahead = is_queued and (device_ns or 0) - host_ns > max(thresholds.RUNS_AHEAD * host_ns, waits_ns)
    falls_behind_ns = _falls_behind(times, rows, slowest.device, pace_ns) if slowest is not None and is_queued else 0
    noise = noise_floor(chosen.interval_ns[chosen.rows])
    return StepPace(
        steps=len(rows),
        pace_ns=pace_ns,
        limit=limit_of(runs_ahead, max(median_busy, default=None)),
        host_runs_ahead=runs_ahead,
        host_ns=host_ns,
        device_ns=device_ns,
        device=NONE if slowest is None else slowest.device,
        gpu_time_ns=gpu_time_ns,
        busy_share=busy_share,
        without_data_ns=median_per_step(chosen.without_data_ns[chosen.rows]) or 0,
        period=period_of_steps(times, rows),
        noise=noise,
        falls_behind_ns=falls_behind_ns if falls_behind_ns > waits_ns else 0,
        mean=MeanStep(mean_ns, mean(chosen.without_data_ns[whole])) if has_mean else None,
    )


def _without_queue(times: StepTimes, device: int, rows: Column) -> tuple[int, int]:
    """Return two mean times per step: the time in which the GPU had no queued work, and the step time."""
    mine = rows[times.launches[device][rows]]
    if device not in times.queued_ns or not len(mine):  # without kernels, the launch queue is unknown
        return 0, 0
    interval_ns = times.device_interval_ns[device][mine]
    return mean(interval_ns - times.queued_ns[device][mine]), mean(interval_ns)


def limit_of(runs_ahead: bool, busy_share: float | None) -> str:
    return DEVICE if runs_ahead or (busy_share or 0) >= thresholds.ALWAYS_BUSY else HOST


def pace_intervals(trace: Trace) -> Column:
    times = step_times(trace)
    decides = pace_series(times, measure.steady_steps(trace))
    if decides is None or decides.device == NONE:
        return times.host_interval_ns
    return np.where(times.longest_device_ns == NONE, times.host_interval_ns, times.longest_device_ns)


@cached_result
def counted_steps(trace: Trace) -> Column:
    """Return the steps in which busy and idle time are measured."""
    times, profiled = step_times(trace), measure.profiled_steps(trace)
    kept = [profiled[:0]]
    for own in by_value(times.rank[profiled]).values():
        rows = times.comparable(profiled[own])
        kept.append(rows[len(rows) % period_of_steps(times, profiled[own]) :])
    return np.sort(np.concatenate(kept))


def period_of_steps(times: StepTimes, rows: Column) -> int:
    of = pace_series(times, rows)
    return 1 if of is None else period_of(of.interval_ns[of.rows])


def device_windows(trace: Trace, rows: Column | None = None) -> dict[int, Intervals]:
    # see Note [A step's time]
    rows = counted_steps(trace) if rows is None else rows
    if not len(rows):
        spans = trace.device.take(measure.work_rows(trace))
        own = by_value(spans.device)
        return {device: Intervals([spans.start_ns[of].min()], [spans.end_ns[of].max()]) for device, of in own.items()}
    times = step_times(trace)
    found = {}
    for device, mine in times.of_devices(rows).items():
        windows = Intervals(times.begin_ns[mine], times.end_ns[mine])  # adjacent windows merge
        if windows.total_ns and device in times.gpu_ns and times.launches[device][mine].any():
            found[device] = windows
    return found


def _median(of: PaceSeries) -> int:
    return median_per_step(of.interval_ns[of.rows]) or 0


def _falls_behind(times: StepTimes, rows: Column, device: int, pace_ns: int) -> int:
    rows = times.of_devices(rows)[device]
    # how long the GPU continues to compute after the host has finished the step
    lag_ns = np.maximum(times.completion_ns[device] - times.host_end_ns, 0)
    grown_ns = np.diff(lag_ns[rows])[times.follows[rows[1:]]]
    if len(grown_ns) < 2 or (grown_ns > thresholds.FALLS_BEHIND_SHARE * pace_ns).mean() < thresholds.STEPS_FALLING_BEHIND:
        return 0
    return median_per_step(grown_ns) or 0


def _predecessors(trace: Trace, order: Column) -> tuple[Column, Column]:
    steps = trace.steps
    before = np.full(len(steps), NONE, dtype=np.int64)
    follows = np.zeros(len(steps), dtype=bool)
    here, last = order[1:], order[:-1]
    same_rank = steps.rank[here] == steps.rank[last]
    before[here] = np.where(same_rank, last, NONE)
    profiled = measure.ran_under_profiler(trace)
    numbered = np.isin(steps.number[here] - steps.number[last], (0, 1))
    follows[here] = same_rank & numbered & (profiled[here] == profiled[last])
    return before, follows


def _timed_by_events(trace: Trace, has_work: Column) -> Column:
    profiled = measure.ran_under_profiler(trace)
    clean = ~profiled & profiled.any()
    return np.asarray(~has_work & (clean | (trace.grain == "phase") | (trace.steps.duration_ns == 0)))


def _latest_ends(trace: Trace, work: Column, step_of: Column, by_events: Column) -> dict[int, Column]:
    phases = trace.phases
    timed = np.flatnonzero((phases.device_end_ns != NONE) & (phases.device != NONE) & by_events[phases.step])
    owned = work[step_of[work] != NONE]
    device = np.concatenate([trace.device.device[owned], phases.device[timed]])
    step = np.concatenate([step_of[owned], phases.step[timed]])
    end_ns = np.concatenate([trace.device.end_ns[owned], phases.device_end_ns[timed]])
    found = {}
    for mine in grouped(device):
        latest = np.full(len(trace.steps), _LONG_AGO, dtype=np.int64)
        np.maximum.at(latest, step[mine], end_ns[mine])
        found[int(device[mine[0]])] = latest
    return found


def _ends_outside_steps(trace: Trace, rows: Column) -> Column:
    launched_ns = np.where(measure.backlog(trace)[rows], _LONG_AGO, measure.launch_time_ns(trace)[rows])
    order = np.argsort(launched_ns, kind="stable")
    rows = rows[order]
    ends_ns = np.append(_LONG_AGO, np.maximum.accumulate(trace.device.start_ns[rows] + trace.device.duration_ns[rows]))
    return np.asarray(ends_ns[np.searchsorted(launched_ns[order], trace.steps.start_ns)])


def _gpu_ns(trace: Trace, work: Column, step_of: Column) -> dict[int, Column]:
    start_ns, end_ns = trace.device.start_ns, trace.device.end_ns
    return {
        device: union_by_group(step_of[mine], start_ns[mine], end_ns[mine], len(trace.steps))
        for device, mine in _by_device(trace, work[step_of[work] != NONE]).items()
    }


def _by_device(trace: Trace, rows: Column) -> dict[int, Column]:
    return {device: rows[of] for device, of in by_value(trace.device.device[rows]).items()}


def _queued_since(trace: Trace) -> Column:
    launched_ns = np.where(measure.backlog(trace), trace.steps.start_ns.min(initial=0), measure.launch_time_ns(trace))
    return np.asarray(np.minimum(launched_ns, trace.device.start_ns))


def _queued_ns(
    trace: Trace, work: Column, completion_ns: dict[int, Column], interval_ns: dict[int, Column]
) -> dict[int, Column]:
    found, since_ns, work_end_ns = {}, _queued_since(trace), trace.device.end_ns
    for device, own in _by_device(trace, work).items():
        if device in completion_ns:
            end_ns = completion_ns[device]
            begin_ns = end_ns - np.maximum(interval_ns[device], 0)
            found[device] = Intervals(since_ns[own], work_end_ns[own]).within(begin_ns, end_ns)
    return found


def _busy_within(trace: Trace, rows: Column, begin_ns: Column, end_ns: Column) -> dict[int, Column]:
    found, start_ns, end_of_work_ns = {}, trace.device.start_ns, trace.device.end_ns
    for device, own in _by_device(trace, rows).items():
        mine = np.flatnonzero(trace.steps.rank == measure.rank_of_device(trace, device))
        within_ns = np.zeros(len(trace.steps), dtype=np.int64)
        within_ns[mine] = Intervals(start_ns[own], end_of_work_ns[own]).within(begin_ns[mine], end_ns[mine])
        found[device] = within_ns
    return found


def _data_waits(trace: Trace, work: Column, by_events: Column) -> Column:
    phases, steps = trace.phases, trace.steps
    found = np.zeros(len(steps), dtype=np.int64)
    loads = np.flatnonzero(phases.name == trace.strings.find("loader"))
    if not len(loads):
        return found
    exposed_ns = phases.duration_ns[loads].copy()
    ranks = measure.device_ranks(trace)[work]
    launched_ns = _queued_since(trace)[work]
    end_ns = trace.device.end_ns[work]
    for of in grouped(ranks):
        queued = Intervals(launched_ns[of], end_ns[of])
        mine = steps.rank[phases.step[loads]] == ranks[of[0]]
        exposed_ns[mine] -= queued.within(phases.start_ns[loads][mine], phases.end_ns[loads][mine])
    # Without kernel times, the GPU is assumed to be busy until it has finished all launched work.
    timed = by_events[phases.step[loads]]
    covered_ns = np.clip(_done_before(trace)[loads] - phases.start_ns[loads], 0, phases.duration_ns[loads])
    exposed_ns = np.where(timed, phases.duration_ns[loads] - covered_ns, exposed_ns)
    np.add.at(found, phases.step[loads], exposed_ns)
    return found


def _loader_ns(trace: Trace) -> Column:
    times = measure.phase_times(trace).get("loader")
    return np.zeros(len(trace.steps), dtype=np.int64) if times is None else times.host_ns


def _done_before(trace: Trace) -> Column:
    phases = trace.phases
    ranks = trace.steps.rank[phases.step]
    order = np.lexsort((phases.start_ns, ranks))
    done_ns = np.where(phases.device_start_ns != NONE, phases.device_start_ns, phases.start_ns)
    here, last = order[1:], order[:-1]
    taken = (phases.device_start_ns[here] == NONE) & (phases.device_end_ns[last] != NONE) & (ranks[here] == ranks[last])
    done_ns[here[taken]] = phases.device_end_ns[last[taken]]
    return done_ns
