"""Tests how the recorder measures its own overhead per step."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from tests.tracer.fakes import FakeClock
from tracer.device.clock import EpochClock
from tracer.own_cost import OwnCost, counted_as_cost
from traces.script.script_hooks import ScriptCalls


class Costly:
    """Provides methods that advance the clock by some nanoseconds, as calls of the recorder would."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.cost = OwnCost(clock)  # type: ignore[arg-type]

    @counted_as_cost
    def work(self, took_ns: int) -> None:
        self.clock.ns += took_ns

    @counted_as_cost
    def append(self, took_ns: int) -> None:
        self.clock.ns += took_ns
        self.cost.appended(took_ns)

    @counted_as_cost
    def read(self, took_ns: int, steps: int) -> None:
        self.clock.ns += took_ns
        self.cost.read_events(took_ns, steps)

    @counted_as_cost
    def work_twice(self, took_ns: int) -> None:
        self.work(took_ns)
        self.work(took_ns)


def test_time_of_nested_recorder_calls_counts_once() -> None:
    costly = Costly(FakeClock())
    costly.work_twice(30)
    assert (costly.cost.spent_ns, costly.cost.calls) == (60, 1)
    costly.work(5)
    assert (costly.cost.spent_ns, costly.cost.calls) == (65, 2)


def test_a_recorder_call_that_fails_is_timed_and_releases_its_lock() -> None:
    costly = Costly(FakeClock())
    with pytest.raises(TypeError):
        costly.work("a")  # type: ignore[arg-type]
    costly.work(7)
    assert (costly.cost.spent_ns, costly.cost.calls) == (7, 2)


def test_the_reported_overhead_is_a_median_without_the_first_steps() -> None:
    """GIVEN four groups of steps THEN a step costs the median of the last three groups, which is 20 ns."""
    costly = Costly(FakeClock())
    for number, took_ns in ((2, 1000), (4, 20), (8, 80), (9, 90)):
        costly.work(took_ns)
        costly.cost.steps_ended(number)
    assert costly.cost.per_step_ns == 20


def test_a_group_of_steps_counts_as_often_as_it_has_steps() -> None:
    """GIVEN a script that pauses, so that the first step after a pause takes 90 ns and nine other steps take 10 ns each THEN a
    step costs 10 ns, although most groups cost 90 ns per step."""
    costly, number = Costly(FakeClock()), 0
    for steps, took_ns in ((1, 1000), (1, 90), (9, 90), (1, 90), (9, 90), (1, 90)):
        number += steps
        costly.work(took_ns)
        costly.cost.steps_ended(number)
    assert costly.cost.per_step_ns == 10


def test_the_cost_of_writing_to_the_file_is_spread_over_the_steps() -> None:
    """A step takes 10 ns. Two appends of 400 and 200 ns count as two appends of 200 ns, which all steps share."""
    costly = Costly(FakeClock())
    for number, took_ns in ((2, 400), (10, 200)):
        costly.work((number - costly.cost._steps) * 10)
        costly.append(took_ns)
        costly.cost.steps_ended(number)
    assert costly.cost.per_step_ns == 10 + 2 * 200 // 10


def test_the_recording_overhead_includes_the_median_time_for_reading_cuda_events() -> None:
    """A step takes 10 ns. Reads took 2, 4 and 700 ns per step, and their median is added. The first read does not count, and
    neither does a read that finds no step."""
    costly = Costly(FakeClock())
    number = 0
    for steps, took_ns in ((2, 900), (4, 8), (5, 20), (1, 700), (0, 50)):
        number += steps
        costly.work(steps * 10)
        costly.cost.steps_ended(number)
        costly.read(took_ns, steps)
    assert costly.cost.per_step_ns == 10 + 4
    assert costly.cost.set_up_ns == 120 + 900 + 8 + 20 + 700 + 50 - 12 * 14


def test_all_recorder_time_before_the_end_of_the_first_step_counts_as_its_overhead() -> None:
    costly = Costly(FakeClock())
    costly.work(33)
    assert costly.cost.per_step_ns == 33


def test_the_recorder_overhead_includes_the_measured_cost_of_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by 1 ns per reading, so each measured call misses 1 ns. In two steps, 4 calls of 2 ns and 5 module
    calls of 3 ns take 11.5 ns per step."""
    clock = FakeClock()
    ticks = itertools.count()
    skipped = [0]

    def slow(call: Any) -> Any:
        def called(of: object) -> None:
            skipped[0] += 3
            call(of)

        return called

    monkeypatch.setattr(clock, "perf_ns", lambda: next(ticks) + skipped[0])
    monkeypatch.setattr(ScriptCalls, "within", [0])  # earlier tests may have called modules
    costly = Costly(clock)
    costly.cost.measure_wrappers(slow)
    assert (costly.cost.spent_ns, costly.cost.calls, ScriptCalls.within[0]) == (0, 0, 0)

    costly.cost.steps_ended(1)
    for _ in range(4):
        costly.work(0)  # this call takes 1 ns on the clock
    ScriptCalls.within[0] += 5
    costly.cost.steps_ended(3)
    assert costly.cost.per_step_ns == round((4 + 4 * 1 + 5 * 3) / 2)
    costly.cost.steps_ended(5)  # the recorder was not called in these two steps
    assert (costly.cost.per_step_ns, costly.cost.set_up_ns) == (0, 4 + 4 * 1 + 5 * 3)


def test_one_time_overhead_is_not_included_in_the_overhead_per_step() -> None:
    """A usual step costs 10 ns and 20 ns as its share of two appends, so 10 steps account for 300 ns. The other 1360 ns of the
    total occurred only once."""
    costly = Costly(FakeClock())
    for number, took_ns, append_ns in ((2, 1000, 400), (6, 120, 0), (10, 40, 100)):
        costly.work(took_ns)
        if append_ns:
            costly.append(append_ns)
        costly.cost.steps_ended(number)
    assert (costly.cost.per_step_ns, costly.cost.set_up_ns) == (30, 1360)


def test_a_single_write_of_rows_counts_as_one_time_overhead() -> None:
    costly = Costly(FakeClock())
    costly.append(400)
    costly.cost.steps_ended(1)
    for number in (3, 5, 7):
        costly.work(20)
        costly.cost.steps_ended(number)
    assert (costly.cost.per_step_ns, costly.cost.set_up_ns) == (10, 390)


def test_an_interruption_does_not_change_the_measured_cost_of_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by 1 ns per reading, except that 5 us pass between the first two readings."""
    clock = FakeClock()
    ticks = itertools.chain([0], itertools.count(5_000))
    monkeypatch.setattr(clock, "perf_ns", lambda: next(ticks))
    costly = Costly(clock)
    costly.cost.measure_wrappers(lambda call: call)
    costly.cost.steps_ended(1)
    for _ in range(100):
        costly.work(0)  # each call takes 1 ns on the clock, and 1 ns that the clock does not show
    costly.cost.steps_ended(2)
    assert costly.cost.per_step_ns == 200


def test_the_recorder_clock_shows_unix_time() -> None:
    clock = EpochClock()
    before_ns, shown_ns, after_ns = time.time_ns(), clock.now_ns(), time.time_ns()
    assert before_ns - 10**9 < shown_ns < after_ns + 10**9  # the operating system may correct its clock during the test
    assert clock.now_ns() >= shown_ns
