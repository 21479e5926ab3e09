"""Finds where batches end in a recording that does not mark its training steps (traces.script.step_rule).

    batches = BatchEnds(host, events, strings)
    batches.between(begin_ns, end_ns)           # the ends of all batches except the last
    batches.of_recording(first_ns, last_ns)     # the ends of all batches, and the method, such as "optimizer"
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from operator import itemgetter

import numpy as np

from traces.comparison.thresholds import MOST_OPS_OF_A_BATCH
from traces.kineto.structure.boundary_markers import BEFORE_ALL_NS
from traces.kineto.structure.step_events import MODULE, StepEvent
from traces.model.intervals import outermost
from traces.model.trace import NONE, HostKind, HostSpans, Strings
from traces.script.phase_rule import PLAIN
from traces.script.step_rule import Optimizers, StepSplitter


class BatchEnds:
    def __init__(self, host: HostSpans, events: list[StepEvent], strings: Strings) -> None:
        self._events = events
        self._starts_ns = [event.start_ns for event in events]
        self._trains = any(event.name in ("engine", "optimizer") for event in events)
        self._with_gradient = self._trains and bool((host.sequence != NONE).any())
        self._trained = {event.like for event in events if not event.name and not event.quiet}
        # outermost module calls on the main thread
        rows = np.flatnonzero((host.thread == 0) & (host.kind == HostKind.PYTHON))
        rows = rows[strings.matching(host.name[rows], MODULE.match)]
        rows = rows[outermost(host.start_ns[rows], host.end_ns[rows])]
        self._modules = list(zip(host.start_ns[rows].tolist(), host.name[rows].tolist(), strict=True))
        calls_ns = [at_ns for at_ns, _ in self._modules] or [event.start_ns for event in events if not event.name]
        self._calls_ns = np.array(calls_ns, np.int64)
        numbered_ns = np.sort(host.start_ns[(host.thread == 0) & (host.sequence != NONE)])
        first, last = (numbered_ns.searchsorted(ns) for ns in (host.start_ns[rows], host.end_ns[rows]))
        self._calls_with_gradient = set(host.start_ns[rows[first < last]].tolist())

    def _of_model(self, event: StepEvent) -> bool:
        return not (self._trains and event.quiet) or event.like in self._trained

    def of_recording(self, first_ns: int, last_ns: int) -> tuple[list[int], str]:
        # see Note [Whose steps] in steps.py
        ends, splitter = self._cut(first_ns, last_ns, begins_before=True)
        if not self._are_alike([BEFORE_ALL_NS, *ends, last_ns]):
            return [last_ns], "whole"
        if any(event.leads for event in self._events):
            return ([*ends, last_ns] if splitter.at_stop else ends or [last_ns]), "optimizer"
        if self._trains:
            return [*self._forward_after_backward(), last_ns], "backward"
        return [*(ends if splitter.at_stop else ends[:-1]), last_ns], "inference" if ends else "whole"

    def between(self, begin_ns: int, end_ns: int) -> list[int]:
        ends, splitter = self._cut(begin_ns, end_ns)
        ends = ends if splitter.evaluating else ends[:-1]
        return ends if self._are_alike([begin_ns, *ends, end_ns]) else []

    def take_turns(self, marks: list[tuple[int, int]], ends_ns: list[list[int]]) -> bool:
        """Return True if a step trains several networks one after the other, as in a GAN."""
        ops_ns = np.array([event.start_ns for event in self._events if not event.name], np.int64)
        optimizers_ns = np.array([event.start_ns for event in self._events if event.leads], np.int64)
        sizes = []
        for (begin_ns, _), ends in zip(marks, ends_ns, strict=True):  # the last end is the end of the mark
            ops, steps = (np.diff(np.searchsorted(times, [begin_ns, *ends])) for times in (ops_ns, optimizers_ns))
            sizes.append(ops[steps > 0].tolist())
        if len(marks) == 1 or len({len(of) for of in sizes}) > 1 or not sizes[0]:
            return False
        counts = np.array(sizes)
        return bool(np.ptp(counts, axis=0).max() < np.ptp(np.median(counts, axis=0)))

    def _are_alike(self, edges_ns: list[int]) -> bool:
        if self._trains or len(edges_ns) <= 2:
            return True
        bounds = np.searchsorted(self._calls_ns, edges_ns).tolist()
        bounds = bounds[:-1] if bounds[-1] - bounds[-2] < bounds[1] - bounds[0] else bounds
        counts = np.diff(bounds)
        if not self._modules:
            return bool(counts.max() <= MOST_OPS_OF_A_BATCH * max(counts.min(), 1))
        parts = [[name for _, name in self._modules[first:last]] for first, last in pairwise(bounds)]
        return all(part == parts[0] for part in parts)

    def _cut(self, begin_ns: int, end_ns: int, begins_before: bool = False) -> tuple[list[int], StepSplitter]:
        first, last = (bisect_left(self._starts_ns, ns) for ns in (begin_ns, end_ns))
        inside = self._events[first:last]
        first, last = (bisect_left(self._modules, ns, key=itemgetter(0)) for ns in (begin_ns, end_ns))
        calls = self._modules[0 if begins_before else first : last]
        timed = [(event.start_ns, event, NONE) for event in inside] + [(start_ns, None, name) for start_ns, name in calls]
        timed.sort(key=lambda one: one[0])
        guesses = not self._modules
        has_batches = sum(event.name in ("loader", "h2d") for event in inside) >= max(sum(event.leads for event in inside), 1)
        optimizers = Optimizers()
        optimizers.add(self)
        splitter = StepSplitter(optimizers)
        splitter.trains_on_batches = has_batches and self._with_gradient
        ends: list[int] = []
        batch_ns = NONE  # start time of a new batch that no op has used yet
        for start_ns, event, module in timed:
            if event is None:
                with_gradient = self._with_gradient and (not begins_before or start_ns in self._calls_with_gradient)
                if splitter.module_called(module, with_gradient):
                    ends.append(start_ns)
            elif event.name == "loader":
                if splitter.loader_entered():
                    ends.append(start_ns)
                batch_ns = start_ns
            elif event.name == "h2d":
                if not event.creates_tensor:
                    if splitter.copied():
                        ends.append(start_ns)
                    batch_ns = start_ns if batch_ns == NONE else batch_ns
            elif event.name == "engine":
                splitter.backward()
            elif event.name == "optimizer" and not event.calls_closure:
                if splitter.optimizer_stepped(event.leads):
                    ends.append(min(event.end_ns, end_ns))
                    batch_ns = NONE
            elif guesses and batch_ns != NONE and not event.name and event.kind == PLAIN and self._of_model(event):
                if splitter.module_called(event.like, self._with_gradient and not event.quiet):
                    ends.append(start_ns if self._trains else batch_ns)
                batch_ns = NONE
        return ends, splitter

    def _forward_after_backward(self) -> list[int]:
        found = []
        after_backward = False
        for event in self._events:
            if event.name == "engine":
                after_backward = True
            elif after_backward and (event.name == "loader" or (not event.name and not event.quiet and event.kind == PLAIN)):
                found.append(event.start_ns)
                after_backward = False
        return found
