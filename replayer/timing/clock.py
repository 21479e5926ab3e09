"""The clocks that everything waits by. One object, injected, so that tests never sleep.

    clock = WallClock()                         # --clock wall: the machine's time, and really waiting
    clock = VirtualClock()                      # --clock virtual: a wait only moves the clock
    clock = RecordedClock()                     # --clock recorded: nothing but waits moves the clock
    clock = ScaledClock(WallClock(), "2")       # --speed 2: recorded time, which flows twice as fast as the script's
    clock.wait_until(clock.now_ns() + 2_000_000)

Deadlines are absolute, so errors of single waits never add up.

Note [Recorded time and the script's time]
    Everything in the replay is reckoned in *recorded time*: durations as they were recorded, and a timeline that is compared
    with the recording as it is. `--speed` changes nothing but how fast recorded time flows against the *script's time*, which
    is what the script reads from Python's `time`. So a wait of 100 recorded milliseconds takes 50 of the script's at
    `--speed 2`, and what this machine does itself (Python, loading data) counts double in the replay's figures. What the
    replay tells the script (`Event.elapsed_time`) is in the script's time.

Note [Virtual time]
    The virtual clock is the machine's clock plus all the waits that were skipped. So work that the script really does takes
    the time it takes, a loop that polls the clock or an event ends, and only waiting costs nothing. Time jumps for all
    threads of the process at once. Other processes, a loader's workers above all, go at the machine's pace: within a wait of
    100 ms that took none they have done nothing, so waiting for data tells nothing about the recorded machine or this one.

Note [A clock that stands still]
    On the recorded clock this machine's own time does not count at all: what passes is the recorded host's pace, the recorded
    waits for data, and the GPU's time, so a replay is the same on an idle machine and on a busy one. A loop that asks for the
    time, or whether an event has happened, until it has, must end nevertheless: every such question moves the clock by
    `POLL_NS`. A thread beside the main one that sleeps takes its time for real and then moves the clock to its deadline.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from fractions import Fraction
from time import perf_counter_ns, sleep, time_ns  # by name, for what the module holds may be patched: surfaces/time.py
from typing import Protocol

# A sleep overshoots by some 20 to 100 us (timer slack at its minimum; benchmarks/clock.py), so the last stretch is spun, but no
# more than 5 % of the time: waits of a millisecond and less are met a little less well.
_SPIN_NS = 120_000
_TIME_PER_SPIN = 20
_SPIN_SAVED_NS = 1_000_000  # what may be saved up for waits in quick succession
_PR_SET_TIMERSLACK = 29  # linux/prctl.h
POLL_NS = 1_000  # what a question to a clock that stands still takes; on real machines some 50 to 2 000 ns


class Clock(Protocol):
    """Time in integer nanoseconds since the Unix epoch, never running backwards."""

    ahead_ns: int | None = None  # of `perf_counter_ns`, while that is all there is to `now_ns`
    speed: Fraction = Fraction(1)  # its nanoseconds per nanosecond of the script's time
    flows: bool = True  # whether the machine's time moves it. See Note [A clock that stands still]

    def now_ns(self) -> int: ...

    def poll_ns(self) -> int:
        """`now_ns`, for a script that may ask until something has happened. See Note [A clock that stands still]."""
        return self.now_ns()

    def wait_until(self, deadline_ns: int) -> None:
        """Return at `deadline_ns`, or at once if that is past."""

    def pause(self) -> None:
        """Until as many `resume` the machine's own time does not count, but waits do. Without effect on a clock of the
        machine's."""
        return None

    def resume(self) -> None:
        """One `pause` ends."""
        return None


class WallClock(Clock):
    """The machine's monotonic clock, shifted once so that it reads as time since the epoch."""

    ahead_ns: int

    def __init__(self) -> None:
        self._waited_ns = perf_counter_ns()  # when the wait before this one ended
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
    """The machine's clock plus all waits that were skipped. See Note [Virtual time]."""

    def __init__(self) -> None:
        self._set(None, time_ns() - perf_counter_ns())
        self._pauses = 0  # that have not ended
        self._new_lock()

    def _new_lock(self) -> None:
        self._lock = threading.RLock()  # of `_jumped`; `with` this one is a call of C
        self._jumped = threading.Condition(self._lock)

    def _set(self, paused_ns: int | None, ahead_ns: int) -> None:
        """When it was paused by the machine's clock (None: it runs), and how far it is ahead of that clock.

        One tuple, so that a reader in another thread never sees half a change.
        """
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
        """Return when it is `deadline_ns`, because other threads' waits have moved the clock there or by real waiting."""
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
        """In a forked child: a thread that is not there any more may have held the lock, or paused the clock."""
        self._new_lock()
        self._pauses = 0
        self.resume()

    def replays(self) -> None:
        """This process, maybe forked from another that does, plays a recording from here on."""


class RecordedClock(VirtualClock):
    """Moved by waits only; in a forked child that does not use the GPU, a virtual clock. Note [A clock that stands still]."""

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
        with self._jumped:
            while self.now_ns() < deadline_ns and (left_ns := give_up_ns - perf_counter_ns()) > 0:
                self._jumped.wait(min(left_ns * 1e-9, threading.TIMEOUT_MAX))
        self.wait_until(deadline_ns)  # nobody has moved it there: the main thread may be waiting for this one

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
    """Recorded time for a script that runs on `clock`. See Note [Recorded time and the script's time].

    Whole numbers and fractions only: what has been waited for has passed, to the nanosecond. Its seconds are not the
    machine's, so nothing is known of `ahead_ns`.
    """

    def __init__(self, clock: Clock, speed: str | Fraction) -> None:
        self._clock = clock
        self.speed = Fraction(speed)
        self.flows = clock.flows
        self._begin_ns = clock.now_ns()

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
    """This machine's own time, also where the script's is patched."""
    return time_ns()


def lower_timer_slack() -> bool:
    """Ask Linux to wake this thread's sleeps within a nanosecond instead of 50 us. Returns whether it did; elsewhere it
    is not needed for correctness, only for precision."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0) == 0)
