"""How far apart two traces are: a recording and its replay, or two recordings. What `trace diff` and replays end with.

    comparison = compare(load("v100.msgpack"), load("replay.msgpack"))
    comparison.same_program, comparison.reason
    comparison.steps.error            # 0.004: the replay's median step is 0.4 % longer
    comparison.to_json()              # the keys that scripts rely on

Which steps are compared. A replayed step names the recorded step that drove it, so a replay is compared with exactly
those recorded steps, each as often as it was replayed; two recordings are compared over all their steps. Warm-up steps
are left out, unless there are no others. `error` is replayed / recorded - 1, or null where the recorded figure is 0.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from traces.changes import changes
from traces.measure import (
    busy_by_device,
    busy_by_stream,
    busy_in_steps,
    busy_ns,
    compute_side_ns,
    device_time_by_origin,
    memory_peaks,
    phase_times,
    steady_steps,
)
from traces.model import NONE, PHASES, Column, Origin, StepKind, Trace
from traces.program import same_program

VERSION = 1
DEFAULT_TOLERANCE = 0.05
_MIN_STEPS_FOR_NOISE = 4
_COVERAGE = ("exact", "equivalent", "scaled", "phase", "roofline", "uncharged")


@dataclass(frozen=True)
class Spread:
    """One figure per step, summed up. `noise_floor` is the recording's own spread: half the distance between its
    quartiles over its median, None below four steps. An error below it says nothing."""

    recorded_median_ns: int | None
    replayed_median_ns: int | None
    error: float | None
    noise_floor: float | None
    recorded_p5_ns: int | None
    recorded_p95_ns: int | None
    replayed_p5_ns: int | None
    replayed_p95_ns: int | None


@dataclass(frozen=True)
class PhaseError:
    """A phase's median time on the host, where the phases add up to the step, and beside it between two CUDA events."""

    recorded_median_ns: int
    replayed_median_ns: int
    error: float | None
    device_recorded_median_ns: int | None
    device_replayed_median_ns: int | None
    device_error: float | None


@dataclass(frozen=True)
class StreamShare:
    """The share of the steps' time for which a stream is busy. None: the trace has no such stream."""

    device: str
    recorded_stream: int | None
    replayed_stream: int | None
    recorded_busy: float | None
    replayed_busy: float | None


@dataclass(frozen=True)
class Comparison:
    """See the module. `judged` names the figure whose error decides about `within_tolerance`."""

    same_program: bool | None
    reason: str
    replay: bool  # the second trace is a replay, not a second recording
    steps_compared: dict[str, int]
    steps: Spread
    compute_side: Spread
    gpu_busy: Spread
    phases: dict[str, PhaseError]
    streams: list[StreamShare]
    coverage: dict[str, float] | None
    host: dict[str, float | None]
    values: dict[str, int | None]  # of a replay: how many host reads the recording does not answer
    memory: dict[str, dict[str, Any]]
    missing: list[dict[str, Any]]
    changes: dict[str, dict[str, list[Any]]]
    tolerance: float
    judged: str
    within_tolerance: bool
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        """The dict that `trace diff --json` and `trace replay --report` print; keys are added to it, never renamed."""
        return asdict(self)


_NOTHING = Spread(None, None, None, None, None, None, None, None)


def compare(recorded: Trace, other: Trace, tolerance: float = DEFAULT_TOLERANCE) -> Comparison:
    """Compare `other`, a replay of `recorded` or another recording, with it."""
    ours, theirs = _steps_to_compare(recorded, other)
    verdict = same_program(recorded, other, ours, theirs)
    replay = _replay(other)
    steps = _spread(recorded, ours, recorded.steps.duration_ns, theirs, other.steps.duration_ns)
    compute_side = _spread(recorded, ours, compute_side_ns(recorded), theirs, compute_side_ns(other))
    # A phase-grained trace does not tell when within a phase the device was busy.
    gpu_busy = _NOTHING if "phase" in (recorded.grain, other.grain) else _busy_spread(recorded, ours, other, theirs)
    # Data loading in a replay is this machine's own, unless it was padded to the recorded one: not the replay's error.
    whole = replay is None or replay.get("loader") == "recorded"
    judged, error = ("steps", steps.error) if whole else ("compute_side", compute_side.error)
    if error is None:
        judged, error = "gpu_busy", gpu_busy.error
    return Comparison(
        same_program=verdict.same,
        reason=verdict.reason,
        replay=replay is not None,
        steps_compared={"recorded": len(ours), "replayed": len(theirs)},
        steps=steps,
        compute_side=compute_side,
        gpu_busy=gpu_busy,
        phases=_phases(recorded, ours, other, theirs),
        streams=_streams(recorded, ours, other, theirs),
        coverage=_coverage(other, replay),
        host={key: (replay or {}).get(key) for key in ("lag_ns_per_step", "us_per_op", "ops_per_step")},
        values={"unrecorded_reads": (replay or {}).get("reads_unrecorded")},
        memory=_memory(recorded, other),
        missing=list((replay or {}).get("missing", [])),
        changes=changes(recorded, other, ours, theirs, tolerance),
        tolerance=tolerance,
        judged=judged,
        within_tolerance=verdict.same is not False and error is not None and abs(error) <= tolerance,
    )


def device_label(trace: Trace, row: int) -> str:
    """ "cuda:0", and "rank 1 cuda:0" where there are several ranks."""
    device = trace.devices[row]
    return f"cuda:{device.index}" if len(trace.ranks) == 1 else f"rank {device.rank} cuda:{device.index}"


def _replay(trace: Trace) -> dict[str, Any] | None:
    """What the replayer noted about its run, {} for a replay without notes, None for a recording."""
    notes = trace.provenance.get("replay")
    if isinstance(notes, dict):
        return notes
    return {} if (trace.steps.recorded_step != NONE).any() else None


def _steps_to_compare(recorded: Trace, other: Trace) -> tuple[Column, Column]:
    """Rows of both traces' steps; empty for both where one has none, which means: compare the traces as wholes."""
    if not len(recorded.steps) or not len(other.steps):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    source = other.steps.recorded_step
    driven = (source >= 0) & (source < len(recorded.steps))
    if not driven.any():
        return steady_steps(recorded), steady_steps(other)
    steady = driven & (other.steps.kind != StepKind.WARMUP)
    rows = np.flatnonzero(steady if steady.any() else driven)
    return source[rows].astype(np.int64), rows


def _spread(recorded: Trace, ours: Column, our_ns: Column, theirs: Column, their_ns: Column) -> Spread:
    if not len(ours):
        return _NOTHING
    own = our_ns[steady_steps(recorded)]
    a, b = (np.percentile(ns, (5, 50, 95)).round().astype(int).tolist() for ns in (our_ns[ours], their_ns[theirs]))
    return Spread(a[1], b[1], _error(a[1], b[1]), _noise_floor(own), a[0], a[2], b[0], b[2])


def _noise_floor(values: Column) -> float | None:
    lower, median, upper = np.percentile(values, (25, 50, 75))
    return float((upper - lower) / 2 / median) if len(values) >= _MIN_STEPS_FOR_NOISE and median else None


def _error(recorded: float, replayed: float) -> float | None:
    return replayed / recorded - 1 if recorded else None


def _busy_spread(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> Spread:
    """GPU busy time within each step, all devices of its rank together; without steps, of the whole trace."""
    if not len(ours):
        a, b = busy_ns(recorded), busy_ns(other)
        return Spread(a, b, _error(a, b), None, None, None, None, None)
    return _spread(recorded, ours, _busy_per_step(recorded), theirs, _busy_per_step(other))


def _busy_per_step(trace: Trace) -> Column:
    total = np.zeros(len(trace.steps), dtype=np.int64)
    for device, busy in busy_by_device(trace).items():
        total += busy_in_steps(trace, busy, device)
    return total


def _phases(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> dict[str, PhaseError]:
    if not len(ours):
        return {}
    a, b = phase_times(recorded), phase_times(other)
    found = {}
    for name in sorted(a.keys() | b.keys(), key=lambda n: (PHASES.index(n) if n in PHASES else len(PHASES), n)):
        host = [_median(times[name].host_ns[rows]) if name in times else 0 for times, rows in ((a, ours), (b, theirs))]
        device = [
            _median(device_ns[rows]) if name in times and (device_ns := times[name].device_ns) is not None else None
            for times, rows in ((a, ours), (b, theirs))
        ]
        device_error = None if device[0] is None or device[1] is None else _error(device[0], device[1])
        found[name] = PhaseError(host[0], host[1], _error(host[0], host[1]), device[0], device[1], device_error)
    return found


def _median(values: Column) -> int:
    return round(float(np.median(values)))


def _streams(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> list[StreamShare]:
    """Streams of one device are paired by number; where numbers differ, the busiest with the busiest."""
    a, b = _stream_shares(recorded, ours), _stream_shares(other, theirs)
    rows = []
    for device in sorted(a.keys() | b.keys()):
        left, right = a.get(device, {}), b.get(device, {})
        pairs: list[tuple[int | None, int | None]] = [(number, number) for number in sorted(left.keys() & right.keys())]
        only_left = sorted(left.keys() - right.keys(), key=lambda number: -left[number])
        only_right = sorted(right.keys() - left.keys(), key=lambda number: -right[number])
        pairs += itertools.zip_longest(only_left, only_right)
        rows += [
            StreamShare(device, p, q, None if p is None else left[p], None if q is None else right[q]) for p, q in pairs
        ]
    return rows


def _stream_shares(trace: Trace, steps: Column) -> dict[str, dict[int, float]]:
    """Per device label and stream: the busy share of the chosen steps of its rank, of the whole trace without steps."""
    shares: dict[str, dict[int, float]] = {}
    whole = {device: busy.end_ns[-1] - busy.start_ns[0] for device, busy in busy_by_device(trace).items()}
    for (device, stream), busy in busy_by_stream(trace).items():
        if len(steps):
            mine = steps[trace.steps.rank[steps] == trace.devices[device].rank]
            busy_ns_, time_ns = busy_in_steps(trace, busy, device)[mine].sum(), trace.steps.duration_ns[mine].sum()
        else:
            busy_ns_, time_ns = busy.total_ns, whole[device]
        shares.setdefault(device_label(trace, device), {})[stream] = float(busy_ns_ / time_ns) if time_ns else 0.0
    return shares


def _coverage(other: Trace, replay: dict[str, Any] | None) -> dict[str, float] | None:
    """Where the times of the replayed device work come from, as shares that add up to 1; None for a recording."""
    if replay is None:
        return None
    times = {origin.name.lower(): ns for origin, ns in device_time_by_origin(other).items()}
    times["phase"] = times.get("phase", 0) + times.get(Origin.PUBLISHED.name.lower(), 0)
    times["uncharged"] = int(replay.get("uncharged_ns") or 0)
    total = sum(times.get(kind, 0) for kind in _COVERAGE)
    return {kind: times.get(kind, 0) / total for kind in _COVERAGE} if total else None


def _memory(recorded: Trace, other: Trace) -> dict[str, dict[str, Any]]:
    a, b = ({device_label(t, row): peak for row, peak in memory_peaks(t).items()} for t in (recorded, other))
    return {
        device: {
            "recorded_peak_bytes": a[device].allocated_bytes if device in a else None,
            "replayed_peak_bytes": b[device].allocated_bytes if device in b else None,
            "recorded_source": a[device].source if device in a else None,
            "replayed_source": b[device].source if device in b else None,
        }
        for device in sorted(a.keys() | b.keys())
    }
