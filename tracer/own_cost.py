"""Measures the time that the recorder's methods take.

    @counted_as_cost
    def read(self, ...): ...    # a method of a class with `cost: OwnCost`, which holds the lock and counts the method's time

    cost.spent_ns               # total so far
    cost.steps_ended(16)        # distributes the time since the last call over the steps up to number 16
    cost.per_step_ns            # 60_000
    cost.set_up_ns              # 80_000_000: spent once, at the first steps and the first write

Note [What a step costs]
    The overhead per step is a median over groups of steps, so interruptions by other programs hardly change the value. A group
    counts as often as it has steps, because a single step after a pause is slow. The first group is left out, because the first
    group contains the recorder's set-up. Reading CUDA events and writing to the file
    are timed separately, and spread over the steps. If short steps repeat, a group has many steps. In this case, the reports of
    only one step in 16 are timed, and their time counts 16 times.

    The time of calling a wrapper is measured at the start with an empty function, and added for each call. Between two reports
    of a step, PyTorch replaces the contents of the processor's caches. A report's wrapper is therefore measured with caches
    that contain other data. Calls of nested modules follow each other closely, so their wrapper is measured in a loop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import wraps
from itertools import accumulate
from statistics import median
from typing import Any, Protocol, TypeVar

from tracer.device.clock import EpochClock
from traces.script.patching import PhaseScope
from traces.script.script_hooks import ScriptCalls

T = TypeVar("T", bound=Callable[..., Any])

SAMPLED = 16  # of 16 repeated steps, the reports of only one step are timed
SLOW_NS = 5_000_000  # after a step that took longer than this, all reports of the next step are timed
_GROUPS = 1024  # maximum number of stored groups of steps
_CALLS, _REPEATS = 50, 5  # number of calls and rounds of the measurement at the start
# number of calls with cold caches, and size of the data that fills the caches before each call
_COLD_CALLS, _CACHE_BYTES = 21, 1 << 21


class OwnCost:
    def __init__(self, clock: EpochClock) -> None:
        self.clock = clock
        self.perf_ns = clock.perf_ns
        self.spent_ns = 0
        self.excluded_ns = 0  # time of the current call that is not overhead of the current step
        self.calls = 0  # number of calls of counted methods from outside
        self.is_inside = False  # True while a counted method runs; guarded by the lock
        self.lock = threading.RLock()
        self._outside_ns = self._module_ns = 0.0  # cost per call of a counted method, and per call of a nested module
        self._steps = 0
        # overhead per step of each group, in ns, and the number of its steps
        self._groups: deque[tuple[float, int]] = deque(maxlen=_GROUPS)
        self._last = 0, 0, 0  # overhead, calls and module calls at the end of the last group
        # time per step of each read of CUDA events, in ns, and the number of steps
        self._reading: deque[tuple[float, int]] = deque(maxlen=_GROUPS)
        self._appending: deque[int] = deque(maxlen=_GROUPS)
        self._appended = self._separate_ns = 0

    def steps_ended(self, number: int) -> None:
        steps = number - self._steps
        if steps <= 0:
            return
        spent, calls, modules = now = self.spent_ns, self.calls, ScriptCalls.within[0]
        before = self._last
        self._last = now
        self._steps = number
        outside_ns = (calls - before[1]) * self._outside_ns + (modules - before[2]) * self._module_ns
        self._groups.append(((spent - before[0] + outside_ns) / steps, steps))

    def read_events(self, took_ns: int, steps: int) -> None:
        self.excluded_ns += took_ns
        self._separate_ns += took_ns
        if steps:
            self._reading.append((took_ns / steps, steps))

    def appended(self, took_ns: int) -> None:
        self.excluded_ns += took_ns
        self._separate_ns += took_ns
        self._appending.append(took_ns)
        self._appended += 1

    def call_ended(self, began_ns: int) -> None:
        self.calls += 1
        self.spent_ns += self.perf_ns() - began_ns - self.excluded_ns
        self.excluded_ns = 0

    @property
    def per_step_ns(self) -> int:
        """Return the recording overhead per training step in nanoseconds (median)."""
        # see Note [What a step costs]
        groups = list(self._groups)
        if not groups:
            return self.spent_ns
        usual_ns = _median_step(groups[1:] or groups)
        times = list(self._appending)[1:]  # leave out the first write, because it opens the file
        appending_ns = median(times) * self._appended if times else 0.0
        reading = list(self._reading)
        reading_ns = _median_step(reading[1:] or reading) if reading else 0.0
        return round(usual_ns + reading_ns + appending_ns / self._steps)

    @property
    def set_up_ns(self) -> int:
        spent, calls, modules = self._last
        total_ns = spent + calls * self._outside_ns + modules * self._module_ns + self._separate_ns
        return max(round(total_ns - self.per_step_ns * self._steps), 0)

    def measure_wrappers(self, as_nested_module: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
        probe = _Probe(self)
        in_scope = PhaseScope("other", lambda: probe).wrap(_nothing)
        nested = as_nested_module(_nothing)
        counted, modules = (self.spent_ns, self.calls), ScriptCalls.within[0]
        cold_ns = self._cold_ns(in_scope) - self._cold_ns(_nothing)
        self._outside_ns = max(cold_ns / 2, 0.0)  # a scope makes two reports
        self._module_ns = max(self._fastest_ns(nested) - self._fastest_ns(_nothing), 0.0)
        (self.spent_ns, self.calls), ScriptCalls.within[0] = counted, modules

    def _fastest_ns(self, call: Callable[..., None]) -> float:
        times = []
        for _ in range(_REPEATS):
            began_ns = self.clock.perf_ns()
            for _ in range(_CALLS):
                call(None)
            times.append(self.clock.perf_ns() - began_ns)
        return min(times) / _CALLS

    def _cold_ns(self, call: Callable[..., None]) -> float:
        other, times = bytearray(_CACHE_BYTES), []
        for _ in range(_COLD_CALLS):
            other[:] = bytes(_CACHE_BYTES)
            began_ns, spent_ns = self.clock.perf_ns(), self.spent_ns
            call(None)
            times.append(self.clock.perf_ns() - began_ns - (self.spent_ns - spent_ns))
        return median(times)


def _median_step(groups: list[tuple[float, int]]) -> float:
    """Return the median over all steps, from the value and the number of steps of each group. Of two middle values, return the
    lower one, because the other may contain a part of the set-up."""
    ordered = sorted(groups)
    totals = list(accumulate(steps for _, steps in ordered))
    return next(value for (value, _), total in zip(ordered, totals, strict=True) if 2 * total >= totals[-1])


def _nothing(_: object) -> None:
    """Do nothing."""


class _Costed(Protocol):
    cost: OwnCost


def counted_as_cost(method: T) -> T:
    """Wrap a method. Each call of the method holds the recorder's lock, and its duration counts as overhead of the recorder."""

    @wraps(method)
    def counted(self: _Costed, *args: Any, **kwargs: Any) -> Any:
        cost = self.cost
        perf_ns = cost.perf_ns
        began_ns = perf_ns()
        with cost.lock:
            if cost.is_inside:  # the calling method already counts this time
                return method(self, *args, **kwargs)
            cost.is_inside = True
            try:
                return method(self, *args, **kwargs)
            finally:
                cost.is_inside = False
                cost.call_ended(began_ns)

    return counted  # type: ignore[return-value]


class _Probe:
    def __init__(self, cost: OwnCost) -> None:
        self.cost = cost

    @counted_as_cost
    def enter_phase(self, name: str) -> None: ...

    @counted_as_cost
    def leave_phase(self, name: str, error: BaseException | None = None) -> None: ...
