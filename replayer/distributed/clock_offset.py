# mypy: allow-untyped-calls
"""Measures the difference between a rank's clock and the first rank's clock.

    offset = ClockOffset(store, rank, clock, timeout_s=600)     # reads the clock; the first rank also posts the reading
    offset.ns()                                                 # waits for the first rank's reading

Note [Clocks of several processes]
    The ranks of a group exchange times in nanoseconds on the first rank's clock. Each rank reads its clock when it joins the
    default group. Ranks on one machine (with the same boot id) also read the machine's monotonic clock at that moment. Their
    times can therefore be converted exactly. Ranks on different machines compare the time of day, which must be synchronized.
"""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter_ns, sleep

from replayer.timing.clock import Clock, machine_unix_ns
from replayer.torch_types import TorchAny

_KEY = "clock of the first rank"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.000_05, 0.1


class FirstRankMissing(RuntimeError):
    """Raised if the first rank of a process group has ended or does not answer."""


class ClockOffset:
    def __init__(self, store: TorchAny, rank: int, clock: Clock, timeout_s: float) -> None:
        self._store, self._clock, self._timeout_s = store, clock, timeout_s
        self._own_ns, self._machine_ns, self._unix_ns = clock.now_ns(), perf_counter_ns(), machine_unix_ns()
        self._offset_ns: int | None = None
        if rank == 0:
            self._offset_ns = 0
            store.set(_KEY, json.dumps([self._own_ns, self._machine_ns, self._unix_ns, boot_id()]).encode())

    def ns(self) -> int:
        """Return by how many nanoseconds this rank's clock is ahead of the first rank's clock. Raises FirstRankMissing."""
        if self._offset_ns is None:
            self._await_first_rank()
            first_ns, machine_ns, unix_ns, boot = json.loads(self._store.get(_KEY))
            here = bool(boot) and boot == boot_id()
            passed_ns = self._machine_ns - machine_ns if here else self._unix_ns - unix_ns
            self._offset_ns = int(self._own_ns - first_ns - (passed_ns * self._clock.speed if self._clock.flows else 0))
        return self._offset_ns

    def _await_first_rank(self) -> None:
        began_ns, pause_s = perf_counter_ns(), _FIRST_PAUSE_S
        while not self._store.check([_KEY]):
            if self._store.check([ended_key(0)]):
                raise FirstRankMissing("rank 0 ended before it used the process group, so its clock is unknown")
            if (perf_counter_ns() - began_ns) * 1e-9 >= self._timeout_s:
                raise FirstRankMissing(
                    f"rank 0 did not join the process group within {self._timeout_s:g} s, because it ended, hangs or is busy;"
                    " to wait longer, pass a longer timeout to init_process_group"
                )
            sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def ended_key(rank: int) -> str:
    return f"ended/{rank}"


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
