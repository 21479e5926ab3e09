"""Provides the clocks of a replay.

    clock = WallClock()                         # --clock wall: the machine's time, with real waits
    clock = VirtualClock()                      # --clock virtual: a wait only advances the clock
    clock = RecordedClock()                     # --clock recorded: only waits advance the clock
    clock = ScaledClock(WallClock(), "2")       # --speed 2: recorded time runs twice as fast as the script's
    clock.wait_until(clock.now_ns() + 2_000_000)

Note [Recorded time and the script's time]
    The replay computes with recorded durations, but the script reads its own time from Python's `time`. With `--speed 2`, a
    recorded wait of 100 ms takes 50 ms of the script's time. Python code and data loading take real time, so `--speed 2`
    reports them with twice their real duration.

Note [Virtual time]
    The virtual clock shows the machine's time plus all skipped waits. Other processes, such as DataLoader workers, make no
    progress during a skipped wait. The script's waits for data are therefore meaningless.

Note [Polls]
    A script may ask in a loop whether GPU work has ended, with `query` or `is_completed`. If the loop does not sleep and the
    clock skips waits, the loop would keep the CPU busy until the work has ended. Each further query for the same end therefore
    advances such a clock by 1/64 of the time since the first query.

Note [The recorded clock]
    The recorded clock ignores this machine's own time, so a replay gives the same times on an idle and on a busy machine. Each
    query advances the clock by `POLL_NS`, because a loop that polls the time must end. If a background thread sleeps, the sleep
    takes real time. The sleep advances the clock only if the main thread waits for a thread.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Mapping
from fractions import Fraction
from time import perf_counter_ns, sleep, time_ns  # bound here, because surfaces/time.py may patch the module
from typing import Protocol

from replayer.timing.main_thread import MainThreadWatch

# Each wait ends with a busy loop, because `sleep` returns 20 to 100 µs too late (benchmarks/clock.py). Busy loops take at most
# 5 % of the elapsed time.
_SPIN_NS = 120_000
_TIME_PER_SPIN = 20
_SPIN_SAVED_NS = 1_000_000  # unused busy-loop time is saved up to this limit, for waits in quick succession
_PR_SET_TIMERSLACK = 29  # from linux/prctl.h
_POLLS_PER_WAIT = 64  # see Note [Polls]
# Each query of a stopped clock advances the clock by this time. On real machines, a query takes 50 to 2 000 ns.
POLL_NS = 1_000


class Clock(Protocol):
    """Measures time in nanoseconds since the Unix epoch. The time never runs backwards."""

    ahead_ns: int | None = None  # offset from `perf_counter_ns` to `now_ns`, or None if the offset can change
    speed: Fraction = Fraction(1)  # nanoseconds of this clock per nanosecond of the script's time
    flows: bool = True  # False if only waits advance the clock; see Note [The recorded clock]
    skips_waits: bool = False  # True if waits take no real time
    slept_ns: int = 0  # total time of the script's calls of `time.sleep` on the main thread
    _polled_ns: Mapping[int, int] = {}  # for each end time of pending work, the time of the first query

    def now_ns(self) -> int: ...

    def poll_ns(self) -> int:
        """Return the current time for the script. Each call may advance the clock, because a loop that polls the time would
        otherwise hang."""
        # see Note [The recorded clock]
        return self.now_ns()

    def has_reached(self, end_ns: int) -> bool:
        """Return True if the clock has reached `end_ns`. Repeated queries may set a virtual clock forward."""
        # see Note [Polls]
        now_ns = self.poll_ns()
        if now_ns < end_ns and self.skips_waits:
            polled_ns = {end_ns: now_ns} | {end: first for end, first in self._polled_ns.items() if end > now_ns}
            self._polled_ns = polled_ns
            self.wait_until(min(end_ns, now_ns + (now_ns - polled_ns[end_ns]) // _POLLS_PER_WAIT))
        return now_ns >= end_ns

    def wait_until(self, deadline_ns: int) -> None:
        """Wait until `deadline_ns`."""

    def pause(self) -> None:
        """Stop the clock until `resume` is called. Calls of `pause` can be nested."""
        return None

    def resume(self) -> None:
        return None


class WallClock(Clock):
    """Follows the machine's monotonic clock. It starts with the current Unix time."""

    ahead_ns: int

    def __init__(self) -> None:
        self._waited_ns = perf_counter_ns()
        self.ahead_ns = time_ns() - self._waited_ns
        self._may_spin_ns = _SPIN_SAVED_NS

    def now_ns(self) -> int:
        return perf_counter_ns() + self.ahead_ns

    def wait_until(self, deadline_ns: int) -> None:
        deadline_ns -= self.ahead_ns
        earned_ns = max(deadline_ns - self._waited_ns, 0) // _TIME_PER_SPIN
        self._may_spin_ns = min(self._may_spin_ns + earned_ns, _SPIN_SAVED_NS)
        coarse_ns = deadline_ns - min(_SPIN_NS, self._may_spin_ns) - perf_counter_ns()
        if coarse_ns > 0:
            sleep(coarse_ns * 1e-9)
        woken_ns = now_ns = perf_counter_ns()
        while now_ns < deadline_ns:
            now_ns = perf_counter_ns()
        self._may_spin_ns -= min(now_ns - woken_ns, self._may_spin_ns)
        self._waited_ns = now_ns


class VirtualClock(Clock):
    """Skips waits: a wait sets the clock forward, and takes no real time."""

    # see Note [Virtual time]
    skips_waits = True

    def __init__(self) -> None:
        self._set(None, time_ns() - perf_counter_ns())
        self._pauses = 0
        self._new_lock()

    def _new_lock(self) -> None:
        self._lock = threading.RLock()  # an RLock, because entering an RLock is a single C call
        self._jumped = threading.Condition(self._lock)

    def _set(self, paused_ns: int | None, ahead_ns: int) -> None:
        # one tuple with two values, because other threads read both values without a lock
        self._state: tuple[int | None, int] = paused_ns, ahead_ns
        self.ahead_ns = ahead_ns if paused_ns is None else None

    def now_ns(self) -> int:
        paused_ns, ahead_ns = self._state
        return (perf_counter_ns() if paused_ns is None else paused_ns) + ahead_ns

    def wait_until(self, deadline_ns: int) -> None:
        with self._jumped:
            skipped_ns = deadline_ns - self.now_ns()
            if skipped_ns > 0:
                paused_ns, ahead_ns = self._state
                self._set(paused_ns, ahead_ns + skipped_ns)
                self._jumped.notify_all()

    def stand_by(self, deadline_ns: int) -> None:
        with self._jumped:
            while (short_ns := deadline_ns - self.now_ns()) > 0:
                self._jumped.wait(min(short_ns * 1e-9, threading.TIMEOUT_MAX))

    def pause(self) -> None:
        with self._lock:
            self._pauses += 1
            if self._pauses == 1:
                self._set(perf_counter_ns(), self._state[1])

    def resume(self) -> None:
        with self._lock:
            paused_ns, ahead_ns = self._state
            self._pauses = max(self._pauses - 1, 0)
            if paused_ns is not None and not self._pauses:
                self._set(None, ahead_ns - (perf_counter_ns() - paused_ns))

    def after_fork(self) -> None:
        self._new_lock()
        self._pauses = 0
        self.resume()

    def replays(self) -> None:
        """Prepare the clock for a replay in this process."""


class RecordedClock(VirtualClock):
    """Represents a clock that only waits advance."""

    # see Note [The recorded clock]

    def __init__(self) -> None:
        super().__init__()
        self.flows = False
        self.pause()

    def poll_ns(self) -> int:
        if not self.flows:
            self.wait_until(self.now_ns() + POLL_NS)
        return self.now_ns()

    def stand_by(self, deadline_ns: int) -> None:
        if self.flows:
            return super().stand_by(deadline_ns)
        give_up_ns = perf_counter_ns() + deadline_ns - self.now_ns()
        main_thread = MainThreadWatch()
        with self._jumped:
            while self.now_ns() < deadline_ns and (left_ns := give_up_ns - perf_counter_ns()) > 0:
                self._jumped.wait(min(left_ns * 1e-9, threading.TIMEOUT_MAX))
        if main_thread.waits_for_a_thread():
            self.wait_until(deadline_ns)

    def resume(self) -> None:
        if self.flows:
            super().resume()

    def after_fork(self) -> None:
        self.flows = True
        super().after_fork()

    def replays(self) -> None:
        self.flows = False
        self.pause()


class ScaledClock(Clock):
    # see Note [Recorded time and the script's time]

    def __init__(self, clock: Clock, speed: str | Fraction) -> None:
        self._clock = clock
        self.speed = Fraction(speed)
        self.flows, self.skips_waits = clock.flows, clock.skips_waits
        self._begin_ns = clock.now_ns()

    @property
    def slept_ns(self) -> int:  # type: ignore[override]
        return self._clock.slept_ns * self.speed.numerator // self.speed.denominator

    def now_ns(self) -> int:
        passed_ns = self._clock.now_ns() - self._begin_ns
        return self._begin_ns + passed_ns * self.speed.numerator // self.speed.denominator

    def poll_ns(self) -> int:
        self._clock.poll_ns()
        return self.now_ns()

    def wait_until(self, deadline_ns: int) -> None:
        due_ns = -(-(deadline_ns - self._begin_ns) * self.speed.denominator // self.speed.numerator)
        self._clock.wait_until(self._begin_ns + due_ns)

    def pause(self) -> None:
        self._clock.pause()

    def resume(self) -> None:
        self._clock.resume()


def machine_unix_ns() -> int:
    """Return the machine's real time."""
    return time_ns()


def lower_timer_slack() -> bool:
    """Reduce this thread's timer slack from 50 us to 1 ns, so that `sleep` is more precise. Return True on success (Linux
    only)."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0) == 0)
