# mypy: allow-untyped-calls
"""Measures how far a rank's clock is ahead of the clock of the group's first rank.

    offset = ClockOffset(store, rank, clock)    # reads the clock, and posts the reading if this is the first rank
    offset.ns()                                 # waits for the first rank's reading

Note [Clocks of several processes]
    Ranks exchange times on the clock of the group's first rank, in nanoseconds. Each rank reads its clock when it joins the
    group, which is the end of `init_process_group` for the default group and its subgroups. Ranks on one machine (same boot id)
    whose clocks flow read the machine's monotonic clock at the same time, so they convert times exactly. Ranks on different
    machines compare the time of day, which must be synchronized. Clocks that stand still are assumed to be read at the same
    moment.
"""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter_ns

from replayer.timing.clock import Clock, machine_unix_ns
from replayer.torch_types import TorchAny


class ClockOffset:
    KEY = "clock of the first rank"

    def __init__(self, store: TorchAny, rank: int, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._own_ns, self._machine_ns, self._unix_ns = clock.now_ns(), perf_counter_ns(), machine_unix_ns()
        self._offset_ns: int | None = None
        if rank == 0:
            self._offset_ns = 0
            store.set(self.KEY, json.dumps([self._own_ns, self._machine_ns, self._unix_ns, _boot_id()]).encode())

    def ns(self) -> int:
        if self._offset_ns is None:
            first_ns, machine_ns, unix_ns, boot = json.loads(self._store.get(self.KEY))
            here = bool(boot) and boot == _boot_id()
            passed_ns = self._machine_ns - machine_ns if here else self._unix_ns - unix_ns
            self._offset_ns = int(self._own_ns - first_ns - (passed_ns * self._clock.speed if self._clock.flows else 0))
        return self._offset_ns


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
