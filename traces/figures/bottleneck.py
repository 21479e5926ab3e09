"""Finds what limits a recording's speed, and how much shorter a step could be without that limit.

    bottleneck(pace(trace), idle_times(trace), None)    # PaceLimit("data", gain_ns=58_517_000, share=0.33)

The GPU waits for data, for the host, for other ranks (communication that does not overlap with compute), or for unknown causes.
The cause of the longest waits is the limit. There is an exception if a device is hardly ever idle, or if the host runs ahead of
it (Note [What limits the pace] in `traces.figures.pace`). The device is the limit if its compute time exceeds the waits for
each cause. Idle time is the step time minus the GPU time, so it does not include the overhead of the profiler. Steps that ran
under the profiler only determine the shares of the causes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traces.analyses.communication import Communication
from traces.analyses.idle import IdleTime
from traces.comparison.thresholds import MUCH_DATA
from traces.figures.measure import device_time_by_origin
from traces.figures.pace import DEVICE, HOST, StepPace
from traces.figures.problems import hides_work
from traces.model.trace import Origin, Trace
from traces.rates.estimate_errors import ESTIMATED

DATA, OTHER_RANKS, UNKNOWN = "data", "other ranks", "unknown"


@dataclass(frozen=True, slots=True)
class PaceLimit:
    """Names the limit of a recording's speed: "device", "host", "data", "other ranks" or "unknown".

    Without the limit, a step would be shorter by at most `gain_ns`. `share` is the gain divided by the step time. If the device
    is the limit, the gain is the time in which the device is idle or only communicates with other devices. A gain of None is
    unknown. `reason` says why the limit is unknown. `exposed_ns` is the time per step in which the device communicates without
    computing.
    """

    limit: str
    gain_ns: int | None
    share: float | None
    reason: str = ""
    exposed_ns: int = 0


def why_idle_is_unknown(trace: Trace) -> str:
    """Return why the trace does not show how long its devices are idle, or ""."""
    if reason := hides_work(trace):
        return reason
    notes = trace.run_of(trace.ranks[0]).replay if trace.ranks else None
    if notes is not None and notes.config.clock == "recorded":
        origins = device_time_by_origin(trace).keys()
        if origins <= set(ESTIMATED) and origins != {Origin.PUBLISHED}:  # A published phase time includes host time.
            return "the times are estimates of GPU time, and an estimate has no recorded host pace"
    return ""


def bottleneck(
    pace: StepPace | None, idle: Mapping[str, IdleTime], between_ranks: Communication | None, why_unknown: str = ""
) -> PaceLimit | None:
    """Return what limits the speed of a trace, or None if the trace has no steps. `idle` has the idle times by device.

    `why_unknown` is the reason why the idle time of the trace is unknown, if it is unknown (see `why_idle_is_unknown`).
    """
    if pace is None or not pace.pace_ns:
        return None
    if why_unknown:
        return PaceLimit(UNKNOWN, None, None, why_unknown)
    data_ns = pace.pace_ns - pace.without_data_ns
    if pace.busy_share is None:
        return _without_kernels(pace, data_ns)
    busy_ns = min(round(pace.busy_share * pace.pace_ns), pace.pace_ns)
    exposed_ns = 0 if between_ranks is None else min(between_ranks.exposed_per_step_ns, busy_ns)
    idle_ns = pace.pace_ns - busy_ns
    rest_ns = max(idle_ns - data_ns, 0)
    lost_ns = {
        DATA: min(data_ns, idle_ns),
        OTHER_RANKS: exposed_ns + round(rest_ns * _share_of(idle, "collective")),
        UNKNOWN: round(rest_ns * _share_of(idle, "launch", "stream", "unknown")),
    }
    lost_ns[HOST] = idle_ns + exposed_ns - sum(lost_ns.values())
    limit = max(lost_ns, key=lambda name: lost_ns[name])
    if pace.limit == DEVICE and busy_ns - exposed_ns >= lost_ns[limit]:
        gain_ns = idle_ns + exposed_ns - round(rest_ns * _share_of(idle, "unknown"))
        return _bottleneck(DEVICE, gain_ns, pace, exposed_ns=exposed_ns)
    return _bottleneck(limit, lost_ns[limit], pace, "the GPU is idle without a visible reason" * (limit == UNKNOWN), exposed_ns)


def _bottleneck(limit: str, gain_ns: int, pace: StepPace, reason: str = "", exposed_ns: int = 0) -> PaceLimit:
    return PaceLimit(limit, gain_ns, gain_ns / pace.pace_ns, reason, exposed_ns)


def _without_kernels(pace: StepPace, data_ns: int) -> PaceLimit:
    if pace.host_runs_ahead:
        return PaceLimit(DEVICE, None, None)
    if data_ns >= MUCH_DATA * pace.pace_ns:
        return _bottleneck(DATA, data_ns, pace)
    if pace.device_ns is None:
        return PaceLimit(HOST, None, None)
    return PaceLimit(UNKNOWN, None, None, "the recording has no kernels, and host and GPU take the same time")


def _share_of(idle: Mapping[str, IdleTime], *reasons: str) -> float:
    others_ns = sum(of.idle_ns - of.by_reason.get("data", 0) for of in idle.values())
    return sum(of.by_reason.get(reason, 0) for of in idle.values() for reason in reasons) / others_ns if others_ns else 0.0
