"""Detects training steps that repeat the memory requests of earlier steps.

    cycle = detector.end_step(memory, events)           # an AllocationCycle, or None if the steps do not repeat
    frees, size_bytes, stream, handle = cycle.requests[at]  # the expected frees, and the request after them
    cycle.events_so_far(at, freed)       # the number of events so far, or None if the frees differ from the cycle
    cycle.catch_up(memory, done)                        # execute the first `done` events

Note [Allocation cycles]
    Most training steps request and free the same memory. The allocator does not execute the requests of a repeated step, but
    returns the addresses of an earlier step. At the first different request, it executes all requests that it has skipped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.caching_allocator import DeviceMemory, Layout
from traces.model.trace import Column

_MAX_STEPS = 4

# An event contains: handle, bytes of the block (negative if freed), address, reserved bytes after the event, and the number of
# the next op in the step
Event = tuple[AllocationHandle, int, int, int, int]

# An entry contains: handles that are freed before the request, and the request's bytes, stream and handle. The last entry
# contains only freed handles.
Expected = tuple[list[AllocationHandle], int, int, AllocationHandle | None]
NO_REQUEST = -1  # no request has this size


def memory_rows(events: list[Event], device: int, before_bytes: int) -> Column:
    rows = np.zeros((len(events), 6), np.int64)
    rows[:, 0] = device
    if events:
        rows[:, [2, 3, 5]] = [event[1:4] for event in events]
        rows[:, 4] = before_bytes + np.cumsum(rows[:, 2])
    return rows


class AllocationCycle:
    def __init__(self, steps: list[list[Event]], device: int, before_bytes: int, totals: list[int]) -> None:
        events = [event for step in steps for event in step]
        self._step_ends = {int(end) for end in np.cumsum([len(step) for step in steps])}
        self._rows = memory_rows(events, device, before_bytes)
        self._ops = np.array([event[4] for event in events], np.int64)
        self._totals = totals
        self._repetitions = 0
        self._rows_taken = 0
        # A training step may free memory of the previous step.
        left = {}
        own = set()
        for handle, size_bytes, address, _, _ in events:
            if size_bytes > 0:
                left[address] = handle
                own.add(id(handle))
            else:
                left.pop(address, None)
        self._handles = [handle if id(handle) in own else left[address] for handle, _, address, _, _ in events]
        self.requests: list[Expected] = []
        self.begins = [0]  # index of the first event of each entry in `requests`
        frees: list[AllocationHandle] = []
        for at, (handle, event) in enumerate(zip(self._handles, events, strict=True)):
            if event[1] < 0:
                frees.append(handle)
            else:
                self.requests.append((frees, handle.size_bytes, handle.stream, handle))
                self.begins.append(at + 1)
                frees = []
        self.requests.append((frees, NO_REQUEST, 0, None))

    def events_so_far(self, at: int, freed: list[AllocationHandle]) -> int | None:
        queued = freed[:]  # copy `freed`, because a finalizer may append to the list at any time
        return self.begins[at] + len(queued) if queued == self.requests[at][0][: len(queued)] else None

    def take_rows(self, done: int) -> tuple[Column, Column]:
        taken = slice(self._rows_taken, done)
        self._rows_taken = done
        return self._rows[taken], self._ops[taken]

    def frees_taken(self, at: int) -> int:
        return max(self._rows_taken - self.begins[at], 0)

    def is_step_end(self) -> bool:
        return self._rows_taken in self._step_ends

    def repeat(self) -> bool:
        if self._rows_taken < len(self._rows):
            return False
        self._repetitions += 1
        self._rows_taken = 0
        return True

    def catch_up(self, memory: DeviceMemory, done: int) -> None:
        memory.counts.raise_totals([self._repetitions * total for total in self._totals])
        for handle, size_bytes in zip(self._handles[:done], self._rows[:done, 2].tolist(), strict=True):
            if size_bytes < 0:
                memory.free(handle.block)
            else:
                block = memory.malloc(handle.size_bytes, handle.stream)
                assert block is not None and block.address == handle.address
                handle.block = block


@dataclass(slots=True)
class _Step:
    events: list[Event]
    allocated_bytes: int
    layout: Layout | None = None  # set only if the step may be the last step of a cycle
    totals: list[int] | None = None


class CycleDetector:
    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=_MAX_STEPS)
        self._driver_calls = -1

    def clear(self) -> None:
        self._steps.clear()

    def end_step(self, memory: DeviceMemory, events: list[Event] | None) -> AllocationCycle | None:
        if memory.usage.driver_calls != self._driver_calls or events is None:
            self._steps.clear()
        self._driver_calls = memory.usage.driver_calls
        if events is None:
            return None
        step = _Step(events, memory.usage.allocated_bytes)
        if any(len(other.events) == len(events) and other.allocated_bytes == step.allocated_bytes for other in self._steps):
            step.layout, step.totals = memory.layout(), memory.counts.totals()
        steps = [step]
        for other in reversed(self._steps):
            if step.layout is not None and step.layout == other.layout:
                assert step.totals is not None and other.totals is not None
                raised = [after - before for after, before in zip(step.totals, other.totals, strict=True)]
                events_of_steps = [each.events for each in reversed(steps)]
                return AllocationCycle(events_of_steps, memory.device, other.allocated_bytes, raised)
            steps.append(other)
        self._steps.append(step)
        return None
