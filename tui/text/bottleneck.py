"""Describes the bottleneck of a training run, such as the GPU, the host or data loading.

    bottleneck_text(summary)     # "The GPU waits for data. A step of 177.4 ms could be up to 57.1 ms shorter (32.2 %)."
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
WHOLE = "whole"  # the source of the single step of a recording in which no steps were found
_WAITS_FOR = {
    "data": "data",
    "host": "the host",
    "copies": "copies from and to the host",
    "other ranks": "communication with other ranks",
}


class _Words(NamedTuple):
    """Parts of sentences about a step: its length, and how much shorter it could be."""

    step: str  # "step", or "recording" if no steps were found
    takes: str  # "A step takes 10 ms"
    whole: str  # "A step of 10 ms"
    of_step: str  # "a 10 ms step"
    shorter: str  # "2 ms shorter (20 %)", or empty if this is not known

    @staticmethod
    def of(summary: Summary, pace: StepPace, limit: PaceLimit) -> _Words:
        lasts = time_text((pace.mean or pace).pace_ns)
        step = "recording" if summary.provenance.get("steps_from") == WHOLE else "step"
        name = "The recording" if step == "recording" else "An average step" if pace.mean else "A step"
        of_step = f"an average step of {lasts}" if pace.mean else f"a {lasts} {step}"
        is_known = limit.gain_ns is not None and limit.share is not None
        shorter = f"{time_text(limit.gain_ns)} shorter ({share_text(limit.share)})" if is_known else ""
        return _Words(step, f"{name} takes {lasts}", f"{name} of {lasts}", of_step, shorter)


def bottleneck_text(summary: Summary) -> str:
    pace, limit = summary.pace, summary.bottleneck
    if pace is None or limit is None:
        return ""
    words = _Words.of(summary, pace, limit)
    if limit.late_rank is not None:
        return _late_rank_text(summary, limit, words)
    if limit.limit == "unknown" and limit.gain_ns is not None:
        return (
            f"{words.takes}. For {time_text(limit.gain_ns)} of it ({share_text(limit.share)}), the GPU is idle, and the"
            " recording does not show why: the reason may be launch latency, the profiler, or work that was not recorded."
        )
    if limit.limit == "unknown":
        takes = words.takes.replace(" takes ", " takes at least ") if is_lower_bound(summary) else words.takes
        return f"{takes}; its bottleneck is unknown ({limit.reason})."
    if limit.limit == "device":
        return _device_text(summary, pace, limit, words)
    if limit.limit == "other GPUs":
        gpu = max(summary.busy_shares, key=lambda label: summary.busy_shares[label])
        works = f"Even {gpu}, the busiest one, works only {share_text(summary.busy_shares[gpu])} of the time."
        return f"The GPUs of the process wait for each other. {works} {words.whole} could be up to {words.shorter}."
    if pace.device_ns is None:
        return f"{words.takes}; no GPU work was recorded."
    return _waiting_text(summary, pace, limit, words)


def _late_rank_text(summary: Summary, limit: PaceLimit, words: _Words) -> str:
    own_shares = [share for name, share in summary.busy_shares.items() if name.startswith(f"rank {limit.late_rank} ")]
    waits = f" and {limit.reason}" if limit.reason else ""
    if limit.limit == "unknown":
        waits = "; the recording does not show why it is idle"
    elif limit.limit in _WAITS_FOR:
        waits = f" and waits for {_WAITS_FOR[limit.limit]}"
    own = f"Its GPU is busy {share_text(max(own_shares, default=0.0))} of the time{waits}."
    late = f"Rank {limit.late_rank} limits the speed: the other ranks wait for it."
    return f"{late} {own} {words.whole} could be up to {words.shorter}."


def _device_text(summary: Summary, pace: StepPace, limit: PaceLimit, words: _Words) -> str:
    needs = time_text(pace.host_ns)
    needs = share_text(pace.host_ns / pace.pace_ns) if needs == time_text(pace.pace_ns) else needs
    why = f"the host needs {needs} of {words.of_step} and runs ahead"
    if pace.steps == 1 and not pace.mean and pace.host_runs_ahead:
        why = f"the host ends {words.of_step} {time_text(pace.pace_ns - pace.host_ns)} before the GPU"
    if not pace.host_runs_ahead:
        why = f"the GPU is busy {share_text(limit.busy_share)} of {words.of_step}"
    without = "idle time and communication that does not overlap with compute" if limit.exposed_ns else "the GPU's idle time"
    if limit.copies_ns:
        copies = ", copies and communication" if limit.exposed_ns else " and copies"
        without = f"idle time{copies} that do not overlap with compute"
    the = "the" if words.step == "recording" else "a"
    gains = limit.gain_ns and share_text(limit.share) != _NOTHING
    idle = f" Without {without}, {the} {words.step} could be up to {words.shorter}." if gains else ""
    mean_ns = (pace.mean or pace).pace_ns
    return f"The GPU limits the speed: {why}.{idle}{_lost_lead(summary, mean_ns)}{_unexplained(summary, mean_ns)}"


def _waiting_text(summary: Summary, pace: StepPace, limit: PaceLimit, words: _Words) -> str:
    gained = f" {words.whole} could be up to {words.shorter}." if words.shorter else ""
    if limit.behind_ns is not None:
        behind = time_text(limit.behind_ns)
        gained = f" {words.takes}, and the GPU finishes the {limit.caught_up_in} pass {behind} after the host has launched it."
    call = next(iter(summary.analyses.idle_calls), None)
    later = "calls" if words.step == "recording" else "steps"
    if loaded_ns := _loading_ns(pace, limit, summary.analyses):
        loading = f"Launch calls take {time_text(loaded_ns)} to load kernels at first use"
        gained += f" {loading}. Later {later} do not need this time."
    elif limit.limit == "host" and call is not None and call.share >= MUCH_IN_ONE_CALL:
        calls = f"{share_text(call.share)} of that time in {call.call} ({counted(call.count, 'call')})"
        gained += f" The host spends {calls}."
    compiled = summary.analyses.compiled
    if limit.limit == "host" and limit.gain_ns and compiled is not None and compiled.compiling_ns >= limit.gain_ns / 2:
        took = time_text(compiled.compiling_ns)
        is_whole = words.step == "recording"
        compiling = f"Compiling takes {took}." if is_whole else f"On average, compiling takes {took} of a step."
        gained += f" {compiling} Later {later} do not need this time."
    busy = limit.busy_share or 0.0
    waits_for = _WAITS_FOR[limit.limit]
    if limit.limit in ("host", "data") and busy > MOSTLY_BUSY:
        return f"The GPU is busy {share_text(busy)} of the time; otherwise, it mostly waits for {waits_for}.{gained}"
    return f"The GPU waits for {waits_for}.{gained}"


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
    busy = of.busy_share or 0.0
    notes = [f"the GPU is busy {share_text(busy)}"] if of.limit in ("host", "data") and busy > MOSTLY_BUSY else []
    notes += [f"up to {saved} can be saved"] if (saved := share_text(of.share or 0)) != _NOTHING else []
    return f"{name} ({'; '.join(notes)})" if notes else name


def lag_sentence(pace: StepPace | None, of: PaceLimit | None, which: str = "The GPU") -> str:
    if pace is None or not pace.falls_behind_ns or (of is not None and of.limit == "unknown"):
        return ""
    return f"{which} falls {time_text(pace.falls_behind_ns)} further behind the host in each step."
