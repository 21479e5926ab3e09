"""What limits a recording's pace, and how much shorter a step could be without that limit.

    bottleneck(pace(trace), idle_times(trace), None)    # PaceLimit("data", gain_ns=58_517_000, share=0.33)

Between two completions of a step the device is busy or idle. If it is hardly ever idle (Note [What limits the pace] in
`traces.figures.pace`), the device is the limit, or other ranks if most of its work is communication that no computing hides.
Otherwise the limit is what most of its idle time is due to: data, other ranks, or the host. What a profiler adds to the host's
time is no part of it: idle time is the pace without GPU time, and only its division among the reasons is taken from profiled
steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traces.analyses.communication import Communication
from traces.analyses.idle import IdleTime
from traces.figures.pace import DEVICE, HOST, StepPace

DATA, OTHER_RANKS, UNKNOWN = "data", "other ranks", "unknown"
_MUCH_DATA = 0.1  # of the pace: without kernels, a shorter wait for data is not called the limit


@dataclass(frozen=True, slots=True)
class PaceLimit:
    """`limit` is "device", "host", "data", "other ranks" or "unknown". `gain_ns` is the most by which a step would be shorter
    without it, and `share` the part of the pace that this is. For "device" that is the time in which it is idle or only
    communicates: more can be gained by less GPU work alone. None: not known."""

    limit: str
    gain_ns: int | None
    share: float | None


def bottleneck(pace: StepPace | None, idle: Mapping[str, IdleTime], between_ranks: Communication | None) -> PaceLimit | None:
    """Of a trace with this pace, idle times by device, and communication; None without steps."""
    if pace is None or not pace.pace_ns:
        return None
    data_ns = pace.pace_ns - pace.without_data_ns
    if pace.busy_share is None:
        return _without_kernels(pace, data_ns)
    busy_ns = min(round(pace.busy_share * pace.pace_ns), pace.pace_ns)
    exposed_ns = min(_exposed_ns(between_ranks), busy_ns)
    idle_ns = pace.pace_ns - busy_ns
    if pace.limit == DEVICE:
        if exposed_ns > busy_ns / 2:
            return _bottleneck(OTHER_RANKS, exposed_ns, pace)
        return _bottleneck(DEVICE, idle_ns + exposed_ns, pace)
    rest_ns = max(idle_ns - data_ns, 0)
    for_ranks_ns = exposed_ns + round(rest_ns * _share_of(idle, "collective"))
    found = {HOST: rest_ns - (for_ranks_ns - exposed_ns), DATA: min(data_ns, idle_ns), OTHER_RANKS: for_ranks_ns}
    limit = max(found, key=lambda name: found[name])
    return _bottleneck(limit, found[limit], pace)


def _bottleneck(limit: str, gain_ns: int, pace: StepPace) -> PaceLimit:
    return PaceLimit(limit, gain_ns, gain_ns / pace.pace_ns)


def _without_kernels(pace: StepPace, data_ns: int) -> PaceLimit:
    if pace.host_runs_ahead:
        return PaceLimit(DEVICE, None, None)
    if data_ns >= _MUCH_DATA * pace.pace_ns:
        return _bottleneck(DATA, data_ns, pace)
    return PaceLimit(HOST if pace.device_ns is None else UNKNOWN, None, None)


def _exposed_ns(between_ranks: Communication | None) -> int:
    """Per step of a rank: communication that no computing hides."""
    return 0 if between_ranks is None else between_ranks.exposed_ns // max(between_ranks.steps, 1)


def _share_of(idle: Mapping[str, IdleTime], reason: str) -> float:
    """Of the idle time of all devices, waits for data left out."""
    others_ns = sum(of.idle_ns - of.by_reason.get("data", 0) for of in idle.values())
    return sum(of.by_reason.get(reason, 0) for of in idle.values()) / others_ns if others_ns else 0.0
