"""Tests the clocks: how they meet deadlines, use the CPU while waiting, skip waits, and replay recorded time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.timing import clock as clocks
from replayer.timing.clock import POLL_NS, RecordedClock, ScaledClock, VirtualClock, WallClock
from tests.replayer.recordings import FakeClock

MS = 1_000_000
HOUR = 3_600_000 * MS


class Machine:
    """Fakes the clock of a machine. Each reading takes `read_ns`, and each sleep ends `late_ns` too late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, read_ns: int = 0, late_ns: int = 0) -> None:
        self.now_ns = 5 * HOUR
        self.slept_ns = 0
        self.read_ns, self.late_ns = read_ns, late_ns
        monkeypatch.setattr(clocks, "perf_counter_ns", self.read)
        monkeypatch.setattr(clocks, "sleep", self.sleep)

    def read(self) -> int:
        self.now_ns += self.read_ns
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        duration_ns = round(seconds * 1e9) + self.late_ns
        self.now_ns += duration_ns
        self.slept_ns += duration_ns


@pytest.mark.real_time
def test_a_wait_ends_at_its_deadline_and_a_past_deadline_does_not_wait() -> None:
    clock = WallClock()
    deadline_ns = clock.now_ns() + 3_000_000
    clock.wait_until(deadline_ns)
    late_ns = clock.now_ns() - deadline_ns
    assert late_ns >= 0
    clock.wait_until(deadline_ns - 1_000_000_000)
    assert clock.now_ns() - deadline_ns < 1_000_000_000


@pytest.mark.parametrize("clock", [WallClock(), VirtualClock()])
def test_wall_clock_and_virtual_clock_return_nanoseconds_since_1970(clock: WallClock | VirtualClock) -> None:
    assert abs(clock.now_ns() - time.time_ns()) < 60_000 * MS


@pytest.mark.parametrize("step_us", [200, 1_000, 3_000, 100_000])
def test_late_wake_ups_do_not_add_up_and_busy_waiting_is_limited(
    monkeypatch: pytest.MonkeyPatch, step_us: int
) -> None:
    machine = Machine(monkeypatch, read_ns=100, late_ns=60_000)
    clock = WallClock()
    begin_ns = clock.now_ns()
    late_ns = []
    for step in range(1, 1_001):
        deadline_ns = begin_ns + step * step_us * 1000
        clock.wait_until(deadline_ns)
        late_ns.append(clock.now_ns() - deadline_ns)
    assert min(late_ns) >= 0
    assert max(late_ns) <= 60_000 + 1_000  # No wait ends later than one sleep does.
    if step_us >= 3_000:
        assert max(late_ns) <= 1_000
    passed_ns = clock.now_ns() - begin_ns
    spun_ns = passed_ns - machine.slept_ns
    looking_ns = 1_000 * 1_000  # Each wait reads the clock for about a microsecond.
    assert spun_ns <= 0.05 * passed_ns + clocks._SPIN_SAVED_NS + looking_ns


def test_busy_waiting_stops_when_its_budget_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of 100 us waits busily for 100 us, and adds 5 us to the budget. So a budget of 1 ms lasts for ten steps."""
    Machine(monkeypatch, read_ns=100, late_ns=60_000)
    clock = WallClock()
    begin_ns = clock.now_ns()
    late_ns = []
    for step in range(1, 21):
        clock.wait_until(begin_ns + step * 100_000)
        late_ns.append(clock.now_ns() - begin_ns - step * 100_000)
    assert max(late_ns[:9]) <= 500 and max(late_ns[10:]) > 5_000


def test_the_virtual_clock_adds_waits_to_real_time_without_sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    clock = VirtualClock()
    begin_ns = clock.now_ns()
    clock.wait_until(begin_ns + HOUR)
    assert clock.now_ns() == begin_ns + HOUR
    machine.now_ns += 7 * MS
    assert clock.now_ns() == begin_ns + HOUR + 7 * MS
    clock.wait_until(begin_ns + HOUR)  # This deadline is in the past.
    assert clock.now_ns() == begin_ns + HOUR + 7 * MS
    assert machine.slept_ns == 0


def test_a_paused_virtual_clock_advances_only_by_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    clock = VirtualClock()
    begin_ns = clock.now_ns()
    clock.pause()
    machine.now_ns += 40 * MS
    assert clock.now_ns() == begin_ns
    clock.pause()  # This pause is nested in the first pause.
    clock.wait_until(begin_ns + 3 * MS)
    machine.now_ns += 2 * MS
    assert clock.now_ns() == begin_ns + 3 * MS
    clock.resume()
    machine.now_ns += 5 * MS
    assert clock.now_ns() == begin_ns + 3 * MS  # The first pause still continues.
    clock.resume()
    clock.resume()  # An additional resume has no effect.
    machine.now_ns += MS
    assert clock.now_ns() == begin_ns + 4 * MS


def test_the_recorded_clock_advances_only_by_waits_and_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    clock = RecordedClock()
    begin_ns = clock.now_ns()
    machine.now_ns += 40 * MS
    clock.pause()
    clock.resume()
    machine.now_ns += 40 * MS
    assert clock.now_ns() == begin_ns
    clock.wait_until(begin_ns + 3 * MS)
    assert clock.now_ns() == begin_ns + 3 * MS
    assert clock.poll_ns() == clock.now_ns() == begin_ns + 3 * MS + POLL_NS
    assert ScaledClock(clock, "2").speed == 2 and machine.slept_ns == 0


def test_a_polling_loop_ends_on_a_recorded_clock_at_any_speed() -> None:
    clock = ScaledClock(RecordedClock(), "0.5")
    begin_ns, asked = clock.now_ns(), 0
    while clock.poll_ns() < begin_ns + MS:
        asked += 1
    assert asked == 2 * MS // POLL_NS - 1


def test_polling_until_long_work_ends_takes_about_a_thousand_polls() -> None:
    """GIVEN GPU work that ends in 10 s WHEN a script polls until its end THEN the clock ends exactly at the end of the work.
    If the work ends within a few polls, each poll advances the recorded clock by only POLL_NS."""
    for clock in (RecordedClock(), ScaledClock(RecordedClock(), "0.5")):
        end_ns, asked = clock.now_ns() + 10_000 * MS, 0
        while not clock.has_reached(end_ns):
            asked += 1
        assert 500 < asked < 2_000 and 0 <= clock.now_ns() - end_ns <= 2 * POLL_NS
        ends_ns, asked = [clock.now_ns() + seconds * 1_000 * MS for seconds in (10, 20)], 0
        while not all([clock.has_reached(end_ns) for end_ns in ends_ns]):  # The script polls both ends in turn.
            asked += 1
        assert 300 < asked < 2_000 and 0 <= clock.now_ns() - ends_ns[1] <= 3 * POLL_NS
        end_ns, asked = clock.now_ns() + 5 * POLL_NS, 0
        while not clock.has_reached(end_ns):
            asked += 1
        assert asked >= 4


def test_the_recorded_clock_of_a_forked_child_runs_in_real_time_before_gpu_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    clock = RecordedClock()
    begin_ns = clock.now_ns()
    machine.now_ns += 5 * MS
    clock.after_fork()
    machine.now_ns += 7 * MS
    assert clock.poll_ns() == begin_ns + 7 * MS
    clock.replays()
    machine.now_ns += MS
    assert clock.now_ns() == begin_ns + 7 * MS


def test_a_waiting_thread_advances_a_recorded_clock_if_no_other_thread_does() -> None:
    clock = RecordedClock()
    deadline_ns = clock.now_ns() + 2 * MS
    sleeper = threading.Thread(target=clock.stand_by, args=(deadline_ns,), daemon=True)
    sleeper.start()
    sleeper.join(timeout=30)
    assert not sleeper.is_alive() and clock.now_ns() == deadline_ns


def _compute(sleeper: threading.Thread) -> None:
    while sleeper.is_alive():
        sum(range(10_000))


def _run_a_process(sleeper: threading.Thread) -> None:
    while sleeper.is_alive():
        subprocess.run([sys.executable, "-c", "import threading; threading.Event().wait(0.2)"], check=True)


def _wait_with_timeouts(sleeper: threading.Thread) -> None:
    while sleeper.is_alive():
        sleeper.join(0.05)


@pytest.mark.parametrize(("in_main_thread", "moves"), [(_compute, False), (_run_a_process, False), (_wait_with_timeouts, True)])
def test_a_sleeping_background_thread_advances_the_recorded_clock_only_while_the_main_thread_waits(
    in_main_thread: Callable[[threading.Thread], None], moves: bool
) -> None:
    clock = RecordedClock()
    begin_ns = clock.now_ns()
    sleeper = threading.Thread(target=clock.stand_by, args=(begin_ns + 500 * MS,), daemon=True)
    sleeper.start()
    in_main_thread(sleeper)
    assert clock.now_ns() - begin_ns == (500 * MS if moves else 0)


def test_a_waiting_thread_continues_when_another_thread_has_moved_the_clock() -> None:
    clock = VirtualClock()
    deadline_ns = clock.now_ns() + HOUR
    seen_ns: list[int] = []

    def stand_by() -> None:
        clock.stand_by(deadline_ns)
        seen_ns.append(clock.now_ns())

    sleeper = threading.Thread(target=stand_by, daemon=True)
    sleeper.start()
    clock.wait_until(deadline_ns - HOUR // 2)
    assert not seen_ns
    clock.wait_until(deadline_ns)
    sleeper.join(timeout=30)
    assert seen_ns and seen_ns[0] >= deadline_ns


speeds = st.fractions(Fraction(1, 1000), 1000, max_denominator=1000)


@given(speeds, st.lists(st.integers(0, 10**12), max_size=20))
def test_a_wait_on_a_scaled_clock_ends_exactly_at_its_deadline(speed: Fraction, durations_ns: list[int]) -> None:
    inner = FakeClock(1_700_000_000 * 10**9)
    clock = ScaledClock(inner, speed)
    begin_ns = clock.now_ns()
    assert begin_ns == inner.now_ns()
    due_ns = begin_ns
    for duration_ns in durations_ns:
        due_ns += duration_ns
        clock.wait_until(due_ns)
        assert due_ns <= clock.now_ns() <= due_ns + speed  # The clock may be late by one nanosecond of the script's time.
    assert abs((inner.now_ns() - begin_ns) - (due_ns - begin_ns) / speed) <= 1


def test_pausing_a_scaled_clock_pauses_its_inner_clock() -> None:
    inner = FakeClock()
    clock = ScaledClock(inner, "2.5")
    assert clock.speed == Fraction(5, 2)
    clock.pause()
    assert inner.paused
    clock.resume()
    assert not inner.paused


@pytest.mark.parametrize("kind", [VirtualClock, RecordedClock])
def test_a_waiting_thread_sleeps_until_the_deadline(monkeypatch: pytest.MonkeyPatch, kind: type[VirtualClock]) -> None:
    machine = Machine(monkeypatch)
    waits_s: list[float] = []

    def wait(condition: threading.Condition, timeout: float) -> bool:
        waits_s.append(timeout)
        assert len(waits_s) < 9, "the thread waits repeatedly"
        machine.sleep(timeout)
        return False

    monkeypatch.setattr(threading.Condition, "wait", wait)
    clock = kind()
    deadline_ns = clock.now_ns() + 3 * MS
    clock.stand_by(deadline_ns)
    assert waits_s == [pytest.approx(0.003)] and clock.now_ns() == deadline_ns
    clock.stand_by(deadline_ns - 1)
    assert len(waits_s) == 1


@pytest.mark.parametrize("speed", ["2", "1/2", "3/7"])
def test_a_scaled_clock_runs_as_many_times_faster_as_requested(speed: str) -> None:
    base = FakeClock()
    scaled = ScaledClock(base, speed)
    begin_ns = scaled.now_ns()
    base.wait_until(base.now_ns() + 700)
    assert scaled.now_ns() - begin_ns == 700 * Fraction(speed)
