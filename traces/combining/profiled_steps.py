"""Counts the events that the profiler recorded in each phase of a profiled step.

    steps = ProfiledSteps(trace, rank=0, events=HostEvents.of(trace, rank=0))
    steps.counts[0]     # numbers of events in the phase steps.rows[0], in the order of the fields of ProfilerCost
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from traces.analyses.modules import PREFIX
from traces.combining.phase_labels import LOADER, PhaseLabels
from traces.comparison.thresholds import EVENT_COSTS
from traces.compiled.regions import RANGES, is_triton_call
from traces.figures.measure import work_rows
from traces.model.intervals import Intervals
from traces.model.trace import NONE, WITHOUT_PROFILER, Column, HostKind, StepKind, Trace

# kinds of events, in the order of the fields of ProfilerCost
OP, PLAIN_OP, RANGE, MODULE, RUNTIME, LAUNCH, MEMORY, COMPILED_RANGE, TRITON_KERNEL = range(9)


class HostEvents(NamedTuple):
    time_ns: Column
    kind: Column  # NONE marks the end of an event
    name: Column  # a number for each name of an op or a launch, and another number for its end; NONE for other events
    thread: Column  # row of `Trace.threads`

    @classmethod
    def of(cls, trace: Trace, rank: int) -> HostEvents:
        host, memory = trace.host, trace.memory
        launches = trace.device.launch[work_rows(trace)]
        launches = launches[launches != NONE]
        launching = set(np.unique(host.thread[launches]).tolist())
        own = [row for row, thread in enumerate(trace.threads) if thread.rank == rank]
        chosen = [row for row in own if row in launching or trace.threads[row].role == "main"]
        kind = np.where(host.shapes != NONE, OP, PLAIN_OP)
        kind[host.kind == HostKind.ANNOTATION] = RANGE
        kind[trace.strings.matching(host.name, lambda text: text.startswith(PREFIX))] = MODULE
        kind[trace.strings.matching(host.name, lambda text: text.startswith(RANGES))] = COMPILED_RANGE
        kind[is_triton_call(trace)] = TRITON_KERNEL
        kind[host.kind == HostKind.RUNTIME] = RUNTIME
        kind[launches[host.kind[launches] == HostKind.RUNTIME]] = LAUNCH
        is_event = np.isin(host.kind, (HostKind.OP, HostKind.ANNOTATION, HostKind.RUNTIME))
        rows = np.flatnonzero(np.isin(host.thread, chosen) & is_event)
        requests = np.flatnonzero(np.isin(memory.thread, chosen))
        times = np.concatenate((host.start_ns[rows], memory.time_ns[requests], host.end_ns[rows]))
        kinds = np.concatenate((kind[rows], np.full(len(requests), MEMORY), np.full(len(rows), NONE)))
        names = np.where(np.isin(kind[rows], (OP, PLAIN_OP, LAUNCH)), 2 * host.name[rows].astype(np.int64), NONE)
        names = np.concatenate((names, np.full(len(requests), NONE), np.where(names != NONE, names + 1, NONE)))
        threads = np.concatenate((host.thread[rows], memory.thread[requests], host.thread[rows]))
        order = np.argsort(times, kind="stable")
        return cls(times[order], kinds[order], names[order], threads[order])

    def counts(self, start_ns: Column, end_ns: Column) -> Column:
        started = np.cumsum(self.kind[:, None] == np.arange(len(EVENT_COSTS)), axis=0)
        started = np.concatenate((np.zeros((1, len(EVENT_COSTS)), dtype=np.int64), started))
        return np.asarray(started[self.time_ns.searchsorted(end_ns)] - started[self.time_ns.searchsorted(start_ns)])


class ProfiledSteps:
    def __init__(self, trace: Trace, rank: int, events: HostEvents) -> None:
        phases, self.rank = trace.phases, rank
        mine = np.append(trace.steps.rank == rank, False)[phases.step]
        order = np.argsort(phases.start_ns, kind="stable")
        without = np.isin(trace.steps.kind, WITHOUT_PROFILER)
        is_clean = np.isin(phases.step, np.flatnonzero(without))
        clean = order[(mine & is_clean)[order]]
        mine &= ~is_clean
        rows = order[mine[order]]
        counts = events.counts(phases.start_ns[rows], phases.end_ns[rows])
        seen = np.isin(phases.step[rows], phases.step[rows][counts.any(axis=1)])
        seen |= trace.steps.kind[phases.step[rows]] == StepKind.PROFILED
        self.rows, self.counts = rows[seen], counts[seen]
        self.steps = np.unique(phases.step[self.rows])
        self.of = phases.step[self.rows]
        # see Note [The wait for a batch] in clean_pace.py
        before = clean[before_loader(trace, clean)]
        names, steps = np.unique(np.unique((phases.name[before], phases.step[before]), axis=1)[0], return_counts=True)
        known = names[2 * steps >= len(np.unique(phases.step[clean]))]
        self.unseen = before_loader(trace, self.rows) & ~np.isin(phases.name[self.rows], known)

    def texts(self, labels: PhaseLabels) -> list[str]:
        return [labels.texts[row] for row in np.unique(labels.of[self.rows]).tolist()]

    def rows_by_step(self, labels: PhaseLabels, texts: Sequence[str], steps: Column | None = None) -> list[Column]:
        """For each step, return the indices of the phases with the given names."""
        named = np.isin(labels.of[self.rows], [labels.ids[text] for text in texts])
        if steps is not None:
            named &= ~self.unseen
        found = [np.flatnonzero(named & (self.of == step)) for step in (self.steps if steps is None else steps).tolist()]
        return [indices for indices in found if len(indices)]


def before_loader(trace: Trace, rows: Column) -> Column:
    is_loader = trace.phases.name[rows] == trace.strings.find(LOADER)
    of = trace.phases.step[rows]
    return np.asarray(np.append(is_loader[1:] & (of[1:] == of[:-1]), False)[: len(rows)])


def active_ns(times_ns: Column, waits: Intervals) -> Column:
    return np.asarray(times_ns - waits.before(times_ns))


def median_or_zero(values: Sequence[float] | Column) -> float:
    return float(np.median(values)) if len(values) else 0.0
