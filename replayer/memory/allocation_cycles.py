"""Detects steps that repeat the memory requests and frees of earlier steps, so that the allocator can skip them.

    cycle = detector.end_step(memory, events)           # None, or the steps so far if they repeat the allocator's state
    frees, size_bytes, stream, handle = cycle.requests[at]  # what comes next: these frees, then this request
    cycle.done(at, freed)       # the number of events, if all matched the cycle so far
    cycle.catch_up(memory, done)                        # execute the first `done` events after all

Note [Allocation cycles]
    In its steady state, a training script requests and frees the same memory in the same order in each step. After one or a
    few steps, the allocator is in the same state again: the same blocks, in use or free. (A loss that lives until the next
    one is computed alternates between two places, a cycle of two steps.) From the same state, the same requests get the same
    blocks. So once the state has repeated, requests and frees are only compared with those of the cycle and get the same
    handles and addresses. The allocator stays in the state at the cycle's beginning. At the first difference, or when its
    state is read, it catches up: complete repetitions are added to its totals, and the last partial one is executed. A test
    checks that the result is the same as without cycles.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.caching_allocator import DeviceMemory, Layout
from traces.model.trace import Column

_MAX_STEPS = 4  # of a cycle

# An executed request or free: handle, bytes of its block (negative for a free), address, reserved bytes afterwards, and the
# number of the next op in the step.
Event = tuple[AllocationHandle, int, int, int, int]

# The next events of a cycle: frees in this order, then a request (bytes, stream) and the handle that it gets. After
# its last request there are only frees.
Expected = tuple[list[AllocationHandle], int, int, AllocationHandle | None]
NO_REQUEST = -1  # a size that is never requested


def memory_rows(events: list[Event], device: int, before_bytes: int) -> Column:
    """The events as rows of a trace's memory table (device, 0, bytes, address, allocated, reserved).

    `before_bytes` were allocated before the first of them. Shape (len(events), 6), int64.
    """
    rows = np.zeros((len(events), 6), np.int64)
    rows[:, 0] = device
    if events:
        rows[:, [2, 3, 5]] = [event[1:4] for event in events]
        rows[:, 4] = before_bytes + np.cumsum(rows[:, 2])
    return rows


class AllocationCycle:
    """A sequence of requests and frees that leaves the allocator in the state in which it began.

    The allocator compares `requests` itself, because a call would cost as much as the comparison.

    Args:
        steps: the events of each step of the cycle.
        before_bytes: allocated when it began.
        totals: by how much it raises `MemoryStats.totals`.
    """

    def __init__(self, steps: list[list[Event]], device: int, before_bytes: int, totals: list[int]) -> None:
        events = [event for step in steps for event in step]
        self._step_ends = {int(end) for end in np.cumsum([len(step) for step in steps])}
        self._rows = memory_rows(events, device, before_bytes)
        self._ops = np.array([event[4] for event in events], np.int64)
        self._totals = totals
        self._repetitions = 0  # complete ones
        self._rows_taken = 0
        # The cycle frees what the repetition before it has left allocated. When recorded, these were other handles at the same
        # addresses; from now on they are those that the cycle itself leaves allocated at its end.
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
        self.begins = [0]  # of each entry of `requests` the index of its first event
        frees: list[AllocationHandle] = []
        for at, (handle, event) in enumerate(zip(self._handles, events, strict=True)):
            if event[1] < 0:
                frees.append(handle)
            else:
                self.requests.append((frees, handle.size_bytes, handle.stream, handle))
                self.begins.append(at + 1)
                frees = []
        self.requests.append((frees, NO_REQUEST, 0, None))

    def done(self, at: int, freed: list[AllocationHandle]) -> int | None:
        """The number of events until now, `at` requests and `freed` since the last of them; None if those are other frees."""
        queued = freed[:]  # a finalizer may append more at any time
        return self.begins[at] + len(queued) if queued == self.requests[at][0][: len(queued)] else None

    def take_rows(self, done: int) -> tuple[Column, Column]:
        """The memory table's rows of the events since the last call, and before which op of the step each came."""
        taken = slice(self._rows_taken, done)
        self._rows_taken = done
        return self._rows[taken], self._ops[taken]

    def frees_taken(self, at: int) -> int:
        """How many of the frees since the last request have been given as rows."""
        return max(self._rows_taken - self.begins[at], 0)

    def is_step_end(self) -> bool:
        """Whether a step of the cycle ends with the last row that was taken."""
        return self._rows_taken in self._step_ends

    def repeat(self) -> bool:
        """Restart the cycle if its last row has been taken; returns whether it has."""
        if self._rows_taken < len(self._rows):
            return False
        self._repetitions += 1
        self._rows_taken = 0
        return True

    def catch_up(self, memory: DeviceMemory, done: int) -> None:
        """Bring the allocator from the state at the cycle's beginning to the state after `done` events."""
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
    """An executed step: its events, and the allocator's state after it."""

    events: list[Event]
    allocated_bytes: int
    layout: Layout | None = None  # taken only if the step may end a cycle
    totals: list[int] | None = None


class CycleDetector:
    """Finds the cycles of one allocator."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=_MAX_STEPS)
        self._driver_calls = -1

    def clear(self) -> None:
        """Discard the steps so far, because other code has read or changed the allocator's state."""
        self._steps.clear()

    def end_step(self, memory: DeviceMemory, events: list[Event] | None) -> AllocationCycle | None:
        """The cycle that ends with this step, if any. `events` are all of the step's; None if they are not known."""
        if memory.usage.driver_calls != self._driver_calls or events is None:
            self._steps.clear()
        self._driver_calls = memory.usage.driver_calls
        if events is None:
            return None
        step = _Step(events, memory.usage.allocated_bytes)
        if any(self._alike(step, other) for other in self._steps):
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

    def _alike(self, step: _Step, other: _Step) -> bool:
        """Whether the steps look alike, so that comparing the whole state is worthwhile."""
        return step.allocated_bytes == other.allocated_bytes and len(step.events) == len(other.events)
