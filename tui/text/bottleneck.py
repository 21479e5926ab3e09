"""Formats the bottleneck of a trace (the device, the host, data or other ranks) and the possible speedup.

limit_sentence(summary.pace, summary.bottleneck)
# "data (the GPU waits for it); a step could be up to 57.1 ms shorter (32.2 %)"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.formatting import share_text, time_text

if TYPE_CHECKING:
    from traces.figures.bottleneck import PaceLimit
    from traces.figures.pace import StepPace

_SUBJECTS = {
    "data": "data (the GPU waits for it)",
    "host": "the host (the GPU waits for it)",
    "other ranks": "other ranks (communication not hidden by computation, and waits for it)",
}


def limit_sentence(pace: StepPace | None, of: PaceLimit | None) -> str:
    """Describes the bottleneck without a full stop. Returns "" if the bottleneck is unknown."""
    if pace is None or of is None:
        return ""
    if of.limit == "unknown":
        return f"unknown ({of.reason})"
    gained = ""
    if of.gain_ns is not None and of.share is not None:
        gained = f"a step could be up to {time_text(of.gain_ns)} shorter ({share_text(of.share)})"
    if of.limit == "device":
        ahead = f"the GPU (the host needs {time_text(pace.host_ns)} per step and runs ahead)"
        busy = f"the GPU (busy {share_text(min(pace.busy_share or 0, 1))} of a step)"
        busy = ahead if pace.host_runs_ahead else busy
        return f"{busy}; without its idle time {gained}" if of.gain_ns else busy
    if pace.device_ns is None:
        return "the host (no GPU work was recorded)"
    return f"{_SUBJECTS[of.limit]}; {gained}" if gained else _SUBJECTS[of.limit]


def limit_text(pace: StepPace | None, of: PaceLimit | None) -> str:
    """Describes the bottleneck briefly, such as "data (up to 33.0 % to gain)". Returns "" if the bottleneck is unknown."""
    if pace is None or of is None or of.limit == "unknown":
        return ""
    name = {"device": "the GPU", "host": "the host"}.get(of.limit, of.limit)
    if of.limit == "device":
        return (
            f"{name} (the host runs ahead)"
            if pace.host_runs_ahead
            else f"{name} ({share_text(min(pace.busy_share or 0, 1))} busy)"
        )
    return name if of.share is None else f"{name} (up to {share_text(of.share)} to gain)"


def lag_sentence(pace: StepPace | None, which: str = "The GPU") -> str:
    """Returns a sentence if the device falls further behind the host in each step. Otherwise returns ""."""
    if pace is None or not pace.falls_behind_ns:
        return ""
    return f"{which} falls {time_text(pace.falls_behind_ns)} further behind the host in each step."
