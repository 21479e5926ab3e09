"""Where the ranks of a group really meet: each leaves word in the group's store, and reads what the others left.

    meeting = StoreExchange(store, rank=0, size=2, timeout_s=600, clock=clock)
    ticket = meeting.arrive("all_reduce", (0, 1), RankMessage(arrived_ns, "all_reduce", 21288, "float32"), payload)
    words = ticket.words()      # waits for whoever is missing; [RankMessage, RankMessage] with times on this rank's clock

Leaving word never waits, as launching a collective does not; reading waits for the slowest rank. A rank that does not
come is named: after the group's timeout, or at once if it has left word that it ended.

Note [Clocks of several processes]
    Times are exchanged as nanoseconds of the group's first rank. At its first meeting each rank tells its clock and the
    machine's monotonic clock at one moment; ranks of one machine (by its boot id) reckon exactly, others take the moment at
    which all have come for the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter_ns, sleep  # by name, for what the module holds may be patched: surfaces/time.py
from typing import Any

from torch.distributed import DistError

from replayer.timing.clock import Clock

_PATIENCE_S = 1.0  # before anybody asks whether a missing rank has ended
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.000_05, 0.002  # between looks for a missing word
_FEW = 8  # ranks; where more wait they look as much less often, or looking is all that the machine does
_FAREWELL_NS = 10_000_000_000  # for which the first rank's end is put off until the others have read what it said


@dataclass
class RankMessage:
    """What a rank says of one operation: when its own data was ready, and what it takes part in."""

    arrived_ns: int
    operation: str
    size_bytes: int
    dtype: str
    payload: bytes | None = None  # the values, where they are small and known
    uniform: float | int | bool | None = None  # instead of a payload: one value for all elements
    splits: list[int] | None = None  # elements meant for each rank, where that is its own choice
    passed: int = 0  # how many operations of this lane the rank has read to the end

    def pack(self) -> bytes:
        head = asdict(self)
        payload = head.pop("payload")
        return json.dumps(head | {"has": payload is not None}).encode() + b"\n" + (payload or b"")

    @classmethod
    def unpack(cls, packed: bytes) -> RankMessage:
        head, _, payload = packed.partition(b"\n")
        told = json.loads(head)
        return cls(**{name: value for name, value in told.items() if name != "has"}, payload=payload if told["has"] else None)


class PendingExchange:
    """One operation that this rank has arrived at."""

    def __init__(self, meeting: StoreExchange, lane: str, number: int, members: Sequence[int], operation: str) -> None:
        self._meeting = meeting
        self._lane, self._number, self._members, self._operation = lane, number, members, operation
        self._words: list[RankMessage] | None = None

    def is_complete(self) -> bool:
        """Whether all members have arrived; never waits."""
        return self._words is not None or self._meeting.have_all(self._lane, self._number, self._members)

    def words(self) -> list[RankMessage]:
        """What the members said, in their order, once all have; times on this rank's clock.

        Raises RuntimeError naming a rank that does not come, or that came with another operation.
        """
        if self._words is None:
            self._words = self._meeting.read(self._lane, self._number, self._members, self._operation)
        return self._words


class StoreExchange:
    """The meetings of one rank with the others of its group. A lane is a sequence of operations that the same ranks share."""

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float, clock: Clock) -> None:
        self._store = store
        self.rank, self.size = rank, size
        self.timeout_s = timeout_s
        self._clock = clock
        self._offset_ns: int | None = None  # of this rank's clock to the first rank's
        self._numbers: dict[str, int] = {}  # operations arrived at, by lane
        self._passed: dict[str, int] = {}  # operations read, by lane
        self._cleared: dict[str, int] = {}
        self._left = self._broken = False
        self._longest_pause_s = _LONGEST_PAUSE_S * max(size / _FEW, 1.0)

    def arrive(self, lane: str, members: Sequence[int], word: RankMessage) -> PendingExchange:
        """Leave word for the lane's next operation."""
        number = self._numbers.get(lane, 0)
        self._numbers[lane] = number + 1
        arrived_ns = word.arrived_ns - self._aligned_ns()
        word = replace(word, arrived_ns=arrived_ns, passed=self._passed.get(lane, 0))
        if len(members) > 1:
            self._store.set(f"{lane}/{number}/{self.rank}", word.pack())
            return PendingExchange(self, lane, number, members, word.operation)
        ticket = PendingExchange(self, lane, number, members, word.operation)
        ticket._words = [replace(word, arrived_ns=word.arrived_ns + self._aligned_ns())]
        return ticket

    def have_all(self, lane: str, number: int, members: Sequence[int]) -> bool:
        try:
            return bool(self._store.check([f"{lane}/{number}/{member}" for member in members]))
        except DistError:
            return False  # the store has ended with its process

    def read(self, lane: str, number: int, members: Sequence[int], operation: str) -> list[RankMessage]:
        keys = [f"{lane}/{number}/{member}" for member in members]
        self._await(keys, members, operation)
        words = [RankMessage.unpack(packed) for packed in self._store.multi_get(keys)]
        mine = words[list(members).index(self.rank)]
        for member, word in zip(members, words, strict=True):
            if word.operation != mine.operation and {word.operation, mine.operation} != {"send", "recv"}:
                raise RuntimeError(
                    f"rank {member} of the group called {word.operation} where rank {self.rank} called {mine.operation};"
                    " NCCL would hang here: all ranks must call the same operations in the same order"
                )
        self._passed[lane] = number + 1
        self._forget(lane, min(word.passed for word in words))
        offset_ns = self._aligned_ns()
        return [replace(word, arrived_ns=word.arrived_ns + offset_ns) for word in words]

    def leave(self, failed: bool) -> None:
        """This rank will come to no more operations: whoever waits for it is told at once.

        The first rank, in whose process the store may live, stays until all have left, unless it has failed.
        """
        if self._left:
            return
        self._left = True
        try:
            self._store.set(f"ended/{self.rank}", b"1")
            everyone = [f"ended/{member}" for member in range(self.size)]
            deadline_ns = perf_counter_ns() + (_FAREWELL_NS if self.rank == 0 and not failed and not self._broken else 0)
            while perf_counter_ns() < deadline_ns and not self._store.check(everyone):
                sleep(self._longest_pause_s)
        except DistError:
            return  # the store's own process has ended, so that nobody is left to be told

    def _forget(self, lane: str, passed: int) -> None:
        """Take back this rank's words that everybody has read."""
        for number in range(self._cleared.get(lane, 0), passed):
            self._store.delete_key(f"{lane}/{number}/{self.rank}")
        self._cleared[lane] = max(self._cleared.get(lane, 0), passed)

    def _await(self, keys: Sequence[str], members: Sequence[int], operation: str) -> None:
        """Return when all keys are there. Asks again and again: a store that waits by itself complains of each time-out."""
        began_ns, pause_s = perf_counter_ns(), _FIRST_PAUSE_S
        try:
            while not self._store.check(list(keys)):
                waited_s = (perf_counter_ns() - began_ns) * 1e-9
                if waited_s > _PATIENCE_S:
                    self._require_alive(keys, members, operation, waited_s)
                sleep(pause_s)
                pause_s = min(2 * pause_s, self._longest_pause_s)
        except DistError as error:
            raise RuntimeError(
                f"the group's store is gone while this rank waits for {operation}: the process that kept it (rank 0, or"
                " torchrun's agent) has ended"
            ) from error

    def _require_alive(self, keys: Sequence[str], members: Sequence[int], operation: str, waited_s: float) -> None:
        missing = [member for key, member in zip(keys, members, strict=True) if not self._store.check([key])]
        gone = [member for member in missing if self._store.check([f"ended/{member}"])]
        self._broken = bool(gone) or waited_s >= self.timeout_s
        if gone:
            raise RuntimeError(f"{_ranks(gone)} of the group ended without {operation}, for which others wait")
        if missing and waited_s >= self.timeout_s:
            raise RuntimeError(
                f"{_ranks(missing)} of the group did not come to {operation} within {self.timeout_s:g} s: it ended,"
                " hangs, or does something else; the limit is init_process_group's timeout"
            )

    def _aligned_ns(self) -> int:
        """See Note [Clocks of several processes]."""
        if self._offset_ns is None:
            self._offset_ns = 0
            if self.size > 1:
                self._offset_ns = self._align()
        return self._offset_ns

    def _align(self) -> int:
        members = list(range(self.size))
        names = [f"came/{member}" for member in members]
        self._store.set(names[self.rank], b"1")
        self._await(names, members, "the first operation")
        machine_ns, own_ns = perf_counter_ns(), self._clock.now_ns()
        told = json.dumps([own_ns, machine_ns, _boot_id()]).encode()
        self._store.set(f"clock/{self.rank}", told)
        self._await(["clock/0"], [0], "the first operation")
        first_ns, first_machine_ns, boot = json.loads(self._store.get("clock/0"))
        passed_ns = machine_ns - first_machine_ns if boot == _boot_id() and boot else 0
        return int(own_ns - first_ns - passed_ns * self._clock.speed)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
