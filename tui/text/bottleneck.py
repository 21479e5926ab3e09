"""Describes the bottleneck of a training run, such as the GPU, the host or data loading.

    bottleneck_text(summary)     # "The GPU waits for data. A step of 177.4 ms could be up to 57.1 ms shorter (32.2 %)."
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traces.analyses.launches import LOADED
from traces.comparison.thresholds import DEFAULT_TOLERANCE, MOSTLY_BUSY, MUCH_IN_ONE_CALL
from tui.formatting import counted, share_text, time_text

if TYPE_CHECKING:
    from traces.analyses.analyse import Analyses
    from traces.comparison.comparison_figures import Comparison
    from traces.figures.bottleneck import PaceLimit
    from traces.figures.pace import StepPace
    from traces.figures.summary import Summary

_NOTHING = share_text(0)
WHOLE = "whole"  # the source of steps of a recording in which no steps were found
_WAITS_FOR = {
    "data": "data",
    "host": "the host",
    "copies": "copies from and to the host",
    "other ranks": "communication with other ranks",
}


def bottleneck_text(summary: Summary) -> str:
    pace, of = summary.pace, summary.bottleneck
    if pace is None or of is None:
        return ""
    mean = pace.mean or pace
    step = "recording" if summary.provenance.get("steps_from") == WHOLE else "step"
    lasts = time_text(mean.pace_ns)
    name = "The recording" if step == "recording" else "An average step" if pace.mean else "A step"
    takes, whole = f"{name} takes {lasts}", f"{name} of {lasts}"
    of_step = f"an average step of {lasts}" if pace.mean else f"a {lasts} {step}"
    if of.late_rank is not None:
        own_shares = [share for name, share in summary.busy_shares.items() if name.startswith(f"rank {of.late_rank} ")]
        waits = f" and {of.reason}" if of.reason else ""
        if of.limit == "unknown":
            waits = "; the recording does not show why it is idle"
        elif of.limit in _WAITS_FOR:
            waits = f" and waits for {_WAITS_FOR[of.limit]}"
        own = f"Its GPU is busy {share_text(max(own_shares, default=0.0))} of the time{waits}."
        shorter = f"{time_text(of.gain_ns)} shorter ({share_text(of.share)})"
        return f"Rank {of.late_rank} limits the speed: the other ranks wait for it. {own} {whole} could be up to {shorter}."
    if of.limit == "unknown" and of.gain_ns is not None:
        return (
            f"{takes}. For {time_text(of.gain_ns)} of it ({share_text(of.share)}), the GPU is idle, and the recording does not"
            " show why: the reason may be launch latency, the profiler, or work that was not recorded."
        )
    if of.limit == "unknown":
        takes = f"{name} takes at least {lasts}" if is_lower_bound(summary) else takes
        return f"{takes}; its bottleneck is unknown ({of.reason})."
    known = of.gain_ns is not None and of.share is not None
    shorter = f"{time_text(of.gain_ns)} shorter ({share_text(of.share)})" if known else ""
    if of.limit == "device":
        why = f"the host needs {time_text(pace.host_ns)} of {of_step} and runs ahead"
        if pace.steps == 1 and not pace.mean and pace.host_runs_ahead:
            why = f"the host ends {of_step} {time_text(pace.pace_ns - pace.host_ns)} before the GPU"
        if not pace.host_runs_ahead:
            why = f"the GPU is busy {share_text(max(summary.busy_shares.values(), default=0.0))} of {of_step}"
        without = "idle time and communication that does not overlap with compute" if of.exposed_ns else "the GPU's idle time"
        if of.copies_ns:
            copies = ", copies and communication" if of.exposed_ns else " and copies"
            without = f"idle time{copies} that do not overlap with compute"
        the = "the" if step == "recording" else "a"
        gains = of.gain_ns and share_text(of.share) != _NOTHING
        idle = f" Without {without}, {the} {step} could be up to {shorter}." if gains else ""
        lead = _lost_lead(summary, mean.pace_ns)
        return f"The GPU limits the speed: {why}.{idle}{lead}{_unexplained(summary, mean.pace_ns)}"
    if of.limit == "other GPUs":
        gpu = max(summary.busy_shares, key=lambda label: summary.busy_shares[label])
        works = f"Even {gpu}, the busiest one, works only {share_text(summary.busy_shares[gpu])} of the time."
        return f"The GPUs of the process wait for each other. {works} {whole} could be up to {shorter}."
    if pace.device_ns is None:
        return f"{takes}; no GPU work was recorded."
    gained = f" {whole} could be up to {shorter}." if shorter else ""
    if of.behind_ns is not None:
        behind = time_text(of.behind_ns)
        gained = f" {takes}, and the GPU finishes the {of.caught_up_in} pass {behind} after the host has launched it."
    call = next(iter(summary.analyses.idle_calls), None)
    later = "calls" if step == "recording" else "steps"
    if loaded_ns := _loading_ns(pace, of, summary.analyses):
        loading = f"Launch calls take {time_text(loaded_ns)} to load kernels at first use"
        gained += f" {loading}. Later {later} do not need this time."
    elif of.limit == "host" and call is not None and call.share >= MUCH_IN_ONE_CALL:
        calls = f"{share_text(call.share)} of that time in {call.call} ({counted(call.count, 'call')})"
        gained += f" The host spends {calls}."
    compiled = summary.analyses.compiled
    if of.limit == "host" and of.gain_ns and compiled is not None and compiled.compiling_ns >= of.gain_ns / 2:
        took = time_text(compiled.compiling_ns)
        compiling = f"Compiling takes {took}." if step == "recording" else f"On average, compiling takes {took} of a step."
        gained += f" {compiling} Later {later} do not need this time."
    busy = max(summary.busy_shares.values(), default=0.0)
    if of.limit in ("host", "data") and busy > MOSTLY_BUSY:
        return f"The GPU is busy {share_text(busy)} of the time; otherwise, it mostly waits for {_WAITS_FOR[of.limit]}.{gained}"
    return f"The GPU waits for {_WAITS_FOR[of.limit]}.{gained}"


def _loading_ns(pace: StepPace, of: PaceLimit, analyses: Analyses) -> int:
    loaded_ns = sum(calls.host_ns for calls in analyses.long_launches if calls.reason == LOADED)
    is_in_step_time = of.limit == "host" and of.gain_ns and (pace.steps == 1 or pace.mean)
    return loaded_ns if is_in_step_time and loaded_ns >= pace.steps * MUCH_IN_ONE_CALL * (of.gain_ns or 0) else 0


def loading_sentences(comparison: Comparison) -> list[str]:
    sides = zip("AB", comparison.paces, comparison.bottlenecks, comparison.analyses, strict=True)
    return [
        f"In {name}, launch calls take {time_text(loaded_ns)} to load kernels at first use. Later steps do not need this time."
        for name, pace, of, analyses in sides
        if pace is not None and of is not None and (loaded_ns := _loading_ns(pace, of, analyses))
    ]


def _lost_lead(summary: Summary, pace_ns: int) -> str:
    device_ns = summary.pace.device_ns if summary.pace is not None else None
    if not device_ns or pace_ns <= (1 + DEFAULT_TOLERANCE) * device_ns:
        return ""
    steps = [step for step in summary.steps if step.kind == "steady" and step.device_interval_ns is not None]
    if sum(step.host_interval_ns - (step.device_interval_ns or 0) for step in steps) <= DEFAULT_TOLERANCE * device_ns:
        return ""
    return f" The GPU needs {time_text(device_ns)} per step. The host takes longer, because its lead over the GPU shrinks."


def _unexplained(summary: Summary, pace_ns: int) -> str:
    idle = summary.analyses.idle.values()
    share = sum(of.by_reason.get("unknown", 0) for of in idle) / max(sum(of.window_ns for of in idle), 1)
    if share <= DEFAULT_TOLERANCE:
        return ""
    why = "why the GPU is idle" if len(idle) == 1 else "why a GPU is idle"
    return f" For {time_text(share * pace_ns)} of it ({share_text(share)}), the recording does not show {why}."


def is_lower_bound(summary: Summary) -> bool:
    """Return True if steps may take longer than the trace shows, because the trace lacks GPU work."""
    of = summary.bottleneck
    if summary.grain != "kernel" or summary.estimate_error is not None or summary.provenance.get("steps_from") == WHOLE:
        return False
    return of is not None and bool(of.reason) and of.gain_ns is None


def limit_text(pace: StepPace | None, of: PaceLimit | None) -> str:
    if pace is None or of is None:
        return ""
    if of.late_rank is not None:
        return f"rank {of.late_rank} (up to {share_text(of.share)} can be saved)"
    if of.limit == "unknown":
        return f"unknown ({of.reason})" if pace.busy_share is not None else ""
    name = {"device": "the GPU", "host": "the host"}.get(of.limit, of.limit)
    if of.limit == "device" and pace.host_runs_ahead:
        return f"{name} (the host runs ahead)"
    return name if of.share is None else f"{name} (up to {share_text(of.share)} can be saved)"


def lag_sentence(pace: StepPace | None, of: PaceLimit | None, which: str = "The GPU") -> str:
    if pace is None or not pace.falls_behind_ns or (of is not None and of.limit == "unknown"):
        return ""
    return f"{which} falls {time_text(pace.falls_behind_ns)} further behind the host in each step."
