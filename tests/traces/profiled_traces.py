"""Builds small traces with clean and profiled steps."""

from __future__ import annotations

import numpy as np

from traces.combining.clean_pace import CleanPace
from traces.model.intervals import Intervals
from traces.model.run import Run
from traces.model.trace import NONE, Device, HostKind, HostSpans, Parts, Phases, StepKind, Steps, Thread, Trace

UNIX_NS = 1_700_000_000 * 10**9
NO_WAITS = Intervals([], [])

Step = tuple[StepKind, list[tuple[str, int]]]  # the phases of a step in order, each with its time in ns


def recorded(steps: list[Step], start_ns: int = UNIX_NS) -> Trace:
    """Return a trace of consecutive steps on one rank with one GPU, without host spans."""
    trace = Trace(devices=[Device(0, 0, "GPU")], threads=[Thread(0, 1, "python", "main")], runs={0: Run(clock="unix")})
    phases: dict[str, list[int]] = {"step": [], "name": [], "start_ns": [], "duration_ns": []}
    begins, at_ns = [], start_ns
    for row, (_, parts) in enumerate(steps):
        begins.append(at_ns)
        for name, took_ns in parts:
            for column, value in zip(phases, (row, trace.strings.add(name), at_ns, took_ns), strict=True):
                phases[column].append(value)
            at_ns += took_ns
    durations = np.diff([*begins, at_ns])
    numbers = range(len(steps))
    kinds = [kind for kind, _ in steps]
    trace.steps = Steps.of(rank=[0] * len(steps), number=numbers, start_ns=begins, duration_ns=durations, kind=kinds)
    trace.phases = Phases.of(**phases)
    return trace


def add_ops(trace: Trace, spans: list[tuple[int, int]], kind: HostKind = HostKind.OP, name: str = "aten::add") -> None:
    """Add host spans with shapes on the main thread. A span is (start, duration) in ns, counted from the first step of the
    trace."""
    zero_ns = int(trace.steps.start_ns[0])
    shapes = trace.strings.add("2,2") if kind == HostKind.OP else NONE
    rows = HostSpans.of(
        thread=[0] * len(spans),
        kind=[kind] * len(spans),
        name=[trace.strings.add(name)] * len(spans),
        start_ns=[zero_ns + start for start, _ in spans],
        duration_ns=[took for _, took in spans],
        shapes=[shapes] * len(spans),
    )
    trace.host = HostSpans.concatenated([trace.host, rows])


def clean_phases(trace: Trace, step: int, waits: Intervals = NO_WAITS) -> dict[str, float]:
    """Return the host time of each phase of a step, without waits and without the profiler's overhead."""
    pace, phases = CleanPace(trace, 0, waits), trace.phases
    rows = np.flatnonzero(phases.step == step)
    own_ns = (pace.own_ns(phases.end_ns[rows]) - pace.own_ns(phases.start_ns[rows])) * pace.scale[rows]
    return dict(zip([trace.strings[name] for name in phases.name[rows].tolist()], own_ns.tolist(), strict=True))


def slowed(
    op_ns: int, ops: dict[str, int], clean: dict[str, int], steps: int = 4, longer_ns: dict[str, int] | None = None
) -> Trace:
    """Return a trace with clean steps, followed by profiled steps in which each op takes `op_ns` longer. `ops` contains the
    number of ops in each phase.

    The profiled phases in `longer_ns` are longer by the given times.
    """
    profiled = [(name, took_ns + op_ns * ops[name] + (longer_ns or {}).get(name, 0)) for name, took_ns in clean.items()]
    trace = recorded([(StepKind.STEADY, list(clean.items()))] * steps + [(StepKind.PROFILED, profiled)] * steps)
    spans = []
    for step in range(steps, 2 * steps):
        for phase in np.flatnonzero(trace.phases.step == step).tolist():
            begin_ns = int(trace.phases.start_ns[phase]) - UNIX_NS
            count = ops[trace.strings[int(trace.phases.name[phase])]]
            spans += [(begin_ns + (2_500 + op_ns) * n + op_ns + 500, 2_000) for n in range(count)]
    add_ops(trace, spans)
    return trace


def add_stages(trace: Trace, step: int, spans: list[tuple[str, int, int]]) -> None:
    """Add stages of nn.DataParallel to the first phase of a step. A stage is (name, start, end), counted from the start of the
    phase."""
    phase = int(np.flatnonzero(trace.phases.step == step)[0])
    begin_ns = int(trace.phases.start_ns[phase])
    rows = Parts.of(
        phase=[phase] * len(spans),
        name=[trace.strings.add(name) for name, _, _ in spans],
        thread=[0] * len(spans),
        start_ns=[begin_ns + start for _, start, _ in spans],
        duration_ns=[end - start for _, start, end in spans],
    )
    trace.parts = Parts.concatenated([trace.parts, rows])
