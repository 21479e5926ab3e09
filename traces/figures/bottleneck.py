"""Finds what limits the training speed, and how much shorter a step could become.

    bottleneck(pace(trace), idle_times(trace))      # PaceLimit("data", gain_ns=58_517_000, share=0.33)

The bottleneck is what takes most of a GPU's time: computing, or waiting (for example for data or for the host). Communication
counts as waiting if the GPU does not compute at the same time. If there are several GPUs, the bottleneck is that of the
busiest GPU.

Note [Without kernels]
    A recording without kernels shows when the host launched the last kernel of each phase, and when the GPU finished the phase.
    If the GPU falls further behind the host during a phase, the GPU is the bottleneck of this phase. If the GPU finishes the
    forward or backward pass just after the host, the GPU has waited for launches, so the host is the bottleneck. If the host
    itself waits for the GPU, the bottleneck is unknown.

Note [A late rank]
    If one rank reaches collectives much later than the others (MUCH_LATE), the other ranks wait for this rank. The late rank's
    bottleneck is then the bottleneck of all ranks. There is one exception: the GPU of another rank waits longer for its own
    host or for data. A GPU may compute while it waits for a collective. The possible gain is therefore at most the time in
    which another rank's GPU does not compute. If the GPU of the late rank computes longer than other GPUs by at least half of
    the possible gain, this GPU is the bottleneck.

Note [Slower kernels]
    A GPU that reaches its power or temperature limit lowers its clock in the middle of a run. A median over all steps does not
    show the slowdown. `trace info` therefore names the first step with slower kernels. From this step on, the median kernel
    time must be larger by at least MUCH_SPREAD. Communication kernels do not count, because they include waits for other ranks.

Note [Steps with different kernels]
    An inference server runs other kernels when it reads a prompt (prefill) than when it generates a token (decode). The mean of
    such steps describes neither of them. Steps are of one kind if they run kernels with the same names. If the median times of
    two kinds differ by at least MUCH_SPREAD, `trace info` shows the time of each kind. `trace diff` compares the most frequent
    kind, and the kind that takes most of the other time. The noise of fewer than four steps is unknown. Such steps decide the
    verdict only if all steps of one trace take longer than all steps of the other trace, and the difference is larger than the
    noise floor of the steps of all kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from traces.analyses.analyse import Analyses
from traces.analyses.communication import communication_kernels, communication_per_step, copies_per_step
from traces.analyses.idle import IdleTime
from traces.analyses.stragglers import late_ranks
from traces.comparison import thresholds
from traces.figures import measure
from traces.figures.pace import DEVICE, HOST, MeanStep, StepPace, limit_of, pace_series, step_times
from traces.figures.pace import pace as pace_of_steps
from traces.figures.problems import why_work_is_hidden
from traces.figures.spread import median
from traces.model.intervals import Intervals
from traces.model.json_facts import OMITTED_IF_NONE
from traces.model.result_cache import cached_result
from traces.model.row_order import by_value, lists_by_key
from traces.model.trace import NONE, Column, DeviceKind, Origin, Trace
from traces.rates.estimate_errors import ESTIMATED

DATA, OTHER_RANKS, OTHER_GPUS, COPIES, UNKNOWN = "data", "other ranks", "other GPUs", "copies", "unknown"


# see Note [Slower kernels]
@dataclass(frozen=True, slots=True)
class Slowdown:
    """Describes when the kernels of a GPU became slower, and by how much."""

    step: int  # number of the first slower step
    before_ns: int  # kernel time of a step, without communication
    after_ns: int  # kernel time of a step from the first slower step on
    is_alike: bool  # True if most kernels became slower by about the same factor

    def sentence(self) -> str:
        share = f"{100 * (self.after_ns / self.before_ns - 1):.0f} %"
        alike = ", most by about the same factor, as if the GPU's clock had slowed down (power or temperature)" * self.is_alike
        return f"Starting with step {self.step}, the same kernels take {share} longer{alike}"


# see Note [Steps with different kernels]
@dataclass(frozen=True, slots=True)
class StepsOfKernels:
    """Describes a group of steps that run the same kernels."""

    steps: int  # number of steps
    first: int  # number of the first of these steps
    median_ns: int  # step time


@dataclass(frozen=True, slots=True)
class PaceLimit:
    """Says what limits the training speed: "device", "host", "data", "copies", "other ranks", "other GPUs" or "unknown"."""

    limit: str  # the bottleneck
    gain_ns: int | None  # the largest possible gain per step: the time that a step would save if the bottleneck were removed
    share: float | None  # the gain divided by the step time
    reason: str = ""  # why the limit is unknown, or why the GPU of a late rank is the limit
    exposed_ns: int = 0  # the time per step in which the GPU communicates without computing
    caught_up_in: str = ""  # in a trace without kernels: the phase that shows that the host is the limit
    behind_ns: int | None = None  # how much later the device finishes the phase `caught_up_in` than the host
    late_rank: int | None = None  # the rank that the other ranks wait for; `limit` is what limits this rank
    # the time per step that the host or other GPU work waits for copies from or to the host, if at least NOTICEABLE_WAIT
    copies_ns: int | None = field(default=None, metadata=OMITTED_IF_NONE)
    # busy share of the busiest GPU; `gain_ns` is computed from this share
    busy_share: float | None = field(default=None, compare=False, metadata=OMITTED_IF_NONE)


# see Note [Without kernels]
@dataclass(frozen=True, slots=True)
class CaughtUp:
    phase: str
    behind_ns: int


def caught_up(trace: Trace) -> CaughtUp | None:
    # see Note [Without kernels]
    steps, phases = measure.steady_steps(trace), trace.phases
    if len(trace.sizes) or len(np.unique(trace.values.read)) > len(trace.steps):
        return None
    timed = np.isin(phases.step, steps) & (phases.device_end_ns != NONE) & (phases.origin == Origin.MEASURED)
    found: dict[int, CaughtUp] = {}
    for name in ("forward", "backward"):
        rows = np.flatnonzero(timed & (phases.name == trace.strings.find(name)))
        if not len(rows):
            continue
        lasted_ns = int(np.median(phases.duration_ns[rows]))
        behind_ns = int(np.median(phases.device_end_ns[rows] - phases.end_ns[rows]))
        near_ns = max(thresholds.CAUGHT_UP_NS, thresholds.CAUGHT_UP_SHARE * lasted_ns)
        if lasted_ns >= 10 * thresholds.CAUGHT_UP_NS and behind_ns <= near_ns:
            found[lasted_ns] = CaughtUp(name, max(behind_ns, 0))
    return found[max(found)] if found else None


@cached_result
def why_idle_is_unknown(trace: Trace) -> str:
    if reason := why_work_is_hidden(trace):
        return reason
    lost_ns = trace.host.start_ns[measure.launches_without_work(trace)]
    steps = measure.steady_steps(trace)
    if len(steps) and (trace.steps.end_ns[steps] > lost_ns.min(initial=np.iinfo(np.int64).max)).all():
        return "the recording ends before the GPU has finished" + " any of the steps" * (len(trace.steps) > 1)
    if _works_after_the_steps(trace, steps):
        return "the calls that launched the GPU's work are missing, and the GPU works long after the last step"
    notes = trace.run_of(trace.ranks[0]).replay if trace.ranks else None
    if notes is not None and notes.config.clock == "recorded":
        origins = measure.device_time_by_origin(trace).keys()
        if origins <= set(ESTIMATED) and origins != {Origin.PUBLISHED}:  # A published phase time includes host time.
            return "the times are estimates of GPU time, and an estimate has no recorded host pace"
    return ""


def _works_after_the_steps(trace: Trace, steps: Column) -> bool:
    rows = measure.work_rows(trace)
    rows = rows[(trace.device.launch[rows] == NONE) & ~measure.backlog(trace)[rows]]
    rows = rows[trace.device.start_ns[rows] >= trace.steps.end_ns.max(initial=0)]
    if not len(steps) or not len(rows):
        return False
    return int(trace.device.duration_ns[rows].sum()) > int(np.median(trace.steps.duration_ns[steps]))


def bottleneck_of(trace: Trace, pace: StepPace | None, analyses: Analyses) -> PaceLimit | None:
    why_unknown, keeps_up = why_idle_is_unknown(trace), caught_up(trace)
    busiest = _busiest_gpus(trace, analyses.idle)
    idle = {label: analyses.idle[label] for label in busiest.values()}
    late = next(iter(late_ranks(analyses.stragglers)), None)
    others = {label: idle[label] for rank, label in busiest.items() if late is None or rank != late.rank} or idle
    gpu = max(others, key=lambda label: others[label].busy_ns / max(others[label].window_ns, 1), default=None)
    device = NONE if gpu is None else [trace.device_label(row) for row in range(len(trace.devices))].index(gpu)
    exposed_ns, _ = communication_per_step(trace).get(device, (0, 0))
    of = bottleneck(pace, idle, exposed_ns, why_unknown, keeps_up, copies_per_step(trace).get(device, (0, 0)))
    if pace is None or of is None or of.gain_ns is None or late is None:
        return of
    # see Note [A late rank]
    kinds = measure.steady_steps(trace), measure.profiled_steps(trace)
    mine, profiled = (found[trace.steps.rank[found] == late.rank] for found in kinds)
    step_ns = (pace.mean or pace).pace_ns
    waits_ns = step_ns if gpu is None else exposed_ns + others[gpu].idle_ns // max(others[gpu].steps, 1)
    late_ns = min(late.late_per_step_ns, waits_ns, step_ns)
    if late_ns < thresholds.MUCH_LATE * step_ns or (of.limit not in (OTHER_RANKS, DEVICE) and late_ns < of.gain_ns):
        return of
    own_idle = {label: idle[label] for rank, label in busiest.items() if rank == late.rank}
    own = bottleneck(pace_of_steps(trace, mine, with_kernels=profiled), own_idle)
    if own is not None and _longer_compute_ns(trace, late.rank) >= late.late_ns * late_ns / late.late_per_step_ns / 2:
        own = replace(own, limit=DEVICE, reason="computes longer than the GPUs of other ranks")
    return own and replace(own, gain_ns=late_ns, share=late_ns / step_ns, late_rank=late.rank)


def _longer_compute_ns(trace: Trace, rank: int) -> float:
    # see Note [A late rank]
    rows = measure.work_rows(trace)
    rows = rows[~communication_kernels(trace)[rows]]
    start_ns, end_ns, ranks = trace.device.start_ns[rows], trace.device.end_ns[rows], measure.device_ranks(trace)[rows]
    totals_ns = {of: Intervals(start_ns[on], end_ns[on]).total_ns for of, on in by_value(ranks).items()}
    own_ns = totals_ns.pop(rank, 0)
    return own_ns - float(np.median([*totals_ns.values()] or [own_ns]))


def _busiest_gpus(trace: Trace, idle: Mapping[str, IdleTime]) -> dict[int, str]:
    """For each rank, return the label of its busiest GPU."""
    ranks = {trace.device_label(row): measure.rank_of_device(trace, row) for row in range(len(trace.devices))}
    return {ranks[label]: label for label in sorted(idle, key=lambda label: idle[label].busy_ns)}


def bottleneck(
    pace: StepPace | None,
    idle: Mapping[str, IdleTime],
    exposed_ns: int = 0,
    why_unknown: str = "",
    keeps_up: CaughtUp | None = None,
    copies: tuple[int, int] = (0, 0),
) -> PaceLimit | None:
    if pace is None or not pace.pace_ns:
        return None
    if why_unknown:
        return PaceLimit(UNKNOWN, None, None, why_unknown)
    step = pace.mean or pace
    data_ns = step.pace_ns - step.without_data_ns
    if pace.busy_share is None:
        return _without_kernels(pace, step, data_ns, keeps_up)
    busy_share = max((of.busy_ns / of.window_ns for of in idle.values() if of.window_ns), default=pace.busy_share)
    busy_ns = min(round(busy_share * step.pace_ns), step.pace_ns)
    exposed_ns = min(exposed_ns, busy_ns)
    copies_ns, copied_ns = copies
    copies_ns = min(copies_ns, busy_ns - exposed_ns) if copies_ns >= thresholds.NOTICEABLE_WAIT * step.pace_ns else 0
    idle_ns = step.pace_ns - busy_ns
    waits_ns = idle_ns + exposed_ns + copies_ns
    rest_ns = max(idle_ns - data_ns, 0)
    lost_ns = {
        DATA: min(data_ns, idle_ns),
        COPIES: copies_ns,
        OTHER_RANKS: exposed_ns + round(rest_ns * _share_of(idle, "collective")),
        OTHER_GPUS: round(rest_ns * _share_of(idle, "other_gpu")),
        UNKNOWN: round(rest_ns * _share_of(idle, "launch", "stream", "unknown")),
    }
    lost_ns[HOST] = waits_ns - sum(lost_ns.values())
    limit = max(lost_ns, key=lambda name: lost_ns[name])
    gain_ns, reason = lost_ns[limit], "the GPU is idle without a visible reason" * (limit == UNKNOWN)
    take_turns = limit == OTHER_GPUS and busy_ns < thresholds.ALWAYS_BUSY * step.pace_ns
    # A step takes at least as long as its copies, even if kernels run at the same time.
    needed_ns = copied_ns if limit == COPIES else lost_ns[limit]
    if limit_of(pace.host_runs_ahead, busy_share) == DEVICE and step.pace_ns - waits_ns >= needed_ns and not take_turns:
        limit, gain_ns, reason = DEVICE, waits_ns - round(rest_ns * _share_of(idle, "unknown")), ""
    share = gain_ns / step.pace_ns
    return PaceLimit(limit, gain_ns, share, reason, exposed_ns, copies_ns=copies_ns or None, busy_share=busy_share)


def _without_kernels(pace: StepPace, step: StepPace | MeanStep, data_ns: int, keeps_up: CaughtUp | None) -> PaceLimit:
    if pace.host_runs_ahead:
        return PaceLimit(DEVICE, None, None)
    if data_ns >= thresholds.MUCH_DATA * step.pace_ns:
        return PaceLimit(DATA, data_ns, data_ns / step.pace_ns)
    if pace.device_ns is None:
        return PaceLimit(HOST, None, None)
    if keeps_up is not None:
        return PaceLimit(HOST, None, None, caught_up_in=keeps_up.phase, behind_ns=keeps_up.behind_ns)
    return PaceLimit(UNKNOWN, None, None, "the recording has no kernels, and host and GPU take the same time")


def _share_of(idle: Mapping[str, IdleTime], *reasons: str) -> float:
    others_ns = sum(of.idle_ns - of.by_reason.get("data", 0) for of in idle.values())
    return sum(of.by_reason.get(reason, 0) for of in idle.values() for reason in reasons) / others_ns if others_ns else 0.0


def slowdown_of(trace: Trace) -> Slowdown | None:
    # see Note [Slower kernels]
    steps = measure.profiled_steps(trace)
    steps = steps[trace.steps.rank[steps] == trace.ranks[0]] if trace.ranks else steps[:0]
    rows = measure.work_rows(trace)
    rows = rows[(trace.device.kind[rows] == DeviceKind.KERNEL) & ~communication_kernels(trace)[rows]]
    rows = rows[trace.device.origin[rows] != Origin.PHASE]
    of_step = measure.launch_steps(trace)[rows]
    rows, of_step = rows[np.isin(of_step, steps)], of_step[np.isin(of_step, steps)]
    if len(steps) < 2 * thresholds.STEPS_OF_A_LEVEL or not len(rows):
        return None
    place, name = np.searchsorted(steps, of_step), trace.device.name[rows]
    counts = np.bincount(place, minlength=len(steps))
    if (counts != counts[0]).any():
        return None
    order = np.lexsort((name, place))
    names = name[order].reshape(len(steps), -1)
    if (names != names[0]).any():
        return None
    durations_ns = trace.device.duration_ns[rows[order]].reshape(len(steps), -1)
    times_ns = np.add.reduceat(durations_ns, np.flatnonzero(np.diff(names[0], prepend=NONE - 1)), axis=1)  # by name
    sums_ns = times_ns.sum(axis=1)
    at = _change_of_level(sums_ns)
    before, after = (np.median(part, axis=0) for part in (times_ns[:at], times_ns[at:]))
    before_ns, after_ns = float(np.median(sums_ns[:at])), float(np.median(sums_ns[at:]))
    middle_ns = (before_ns + after_ns) / 2
    on_their_side = min((sums_ns[:at] < middle_ns).mean(), (sums_ns[at:] > middle_ns).mean())
    if after_ns < (1 + thresholds.MUCH_SPREAD) * before_ns or on_their_side < thresholds.STEPS_FALLING_BEHIND:
        return None
    is_alike = np.abs(after * before_ns - before * after_ns) <= thresholds.DEFAULT_TOLERANCE * before * after_ns
    alike = bool(before[is_alike].sum() >= thresholds.MOSTLY_MARKED * before.sum())
    return Slowdown(int(trace.steps.number[steps[at]]), round(before_ns), round(after_ns), alike)


def steps_by_kernels(trace: Trace) -> list[StepsOfKernels] | None:
    series, numbers = pace_series(step_times(trace), measure.steady_steps(trace)), trace.steps.number
    if series is None or not (kinds := kinds_of_steps(trace)):
        return None
    return [StepsOfKernels(len(of), int(numbers[of[0]]), median(series.interval_ns[of]) or 0) for of in kinds.values()]


@cached_result
def kinds_of_steps(trace: Trace) -> dict[tuple[str, ...], Column]:
    """Group the steps by the names of the kernels that they run. The largest group comes first. If the median step times of all
    groups are about the same, return an empty dict."""
    # see Note [Steps with different kernels]
    series, evaluations = pace_series(step_times(trace), measure.steady_steps(trace)), measure.evaluation_steps(trace)
    rows = series.rows if series is not None else evaluations[:0]
    if np.isin(rows, evaluations).all():  # the first step of inference may read the prompt
        profiled = measure.ran_under_profiler(trace)
        of_rank = np.isin(trace.steps.rank[evaluations], trace.steps.rank[rows])
        rows = evaluations[of_rank & (profiled[evaluations] == profiled[rows].any())]
    lasted_ns = series.interval_ns if series is not None else rows
    rows = rows[lasted_ns[rows] > 0]
    if not len(rows) or not _differ_much(lasted_ns[rows]):  # a quick test
        return {}
    work, of_work, count = measure.work_rows(trace), measure.launch_steps(trace), len(trace.strings)
    work = work[(trace.device.kind[work] == DeviceKind.KERNEL) & np.isin(of_work[work], rows)]
    step, names = np.divmod(np.unique(of_work[work] * count + trace.device.name[work]), count)
    names_of = {of: tuple(names[own].tolist()) for of, own in by_value(step).items()}
    of_kind = lists_by_key((names_of[row], row) for row in rows.tolist() if row in names_of)
    found = {tuple(sorted(trace.strings[name] for name in kind)): np.array(rows) for kind, rows in of_kind.items()}
    if len(found) < 2 or not _differ_much(np.array([np.median(lasted_ns[own]) for own in found.values()])):
        return {}
    return dict(sorted(found.items(), key=lambda of: -len(of[1])))


def _differ_much(times_ns: Column) -> bool:
    return bool(times_ns.max() >= (1 + thresholds.MUCH_SPREAD) * times_ns.min())


def _change_of_level(values: Column) -> int:
    """Return the index at which the values change permanently, for example from about 5 to about 9."""
    in_order = np.sort(values)
    ranks = np.searchsorted(in_order, values, "left") + np.searchsorted(in_order, values, "right")
    drift = np.abs(np.cumsum(ranks - ranks.mean()))
    least = thresholds.STEPS_OF_A_LEVEL
    return least + int(drift[least - 1 : len(values) - least].argmax())
