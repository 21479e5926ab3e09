"""Exchanges messages between the ranks of a group through the group's store. Each rank posts one message per operation.

    exchange = StoreExchange(store, rank=0, size=2, timeout_s=600, clock=clock)
    pending = exchange.post("all/cuda", (0, 1), RankMessage(arrived_ns, "all_reduce", 21288, "float32"))
    messages = pending.messages()   # waits for missing ranks; [RankMessage, RankMessage], times on this rank's clock

Posting a message never waits, just as launching a collective does not wait. Reading the messages waits for the slowest rank. If
a rank does not post within the group's timeout, an error names this rank. If a rank has posted that it ended, the error comes
at once.

Note [Clocks of several processes]
    Ranks exchange times on the clock of the group's first rank, in nanoseconds. At the first operation, each rank reads its
    clock and the machine's monotonic clock together and posts both. Ranks on one machine (same boot id) convert times exactly.
    For other ranks, and for stopped clocks, all clocks are assumed to be read at the same moment, after every rank had arrived.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns, sleep

import torch
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistError

from replayer.timing.clock import Clock
from replayer.torch_types import TorchAny

LIVENESS_CHECK_AFTER_S = 1.0  # missing ranks are checked after this wait
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.000_05, 0.002
_FULL_RATE_RANKS = 8  # above this number of ranks, each rank polls less often
_LONGEST_VALUE = 4 << 20  # bytes; a TCPStore rejects messages over 8 MiB
_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"  # torchrun's variable for the number of restarts
SHUTDOWN_GRACE_NS = 10_000_000_000  # longest time that rank 0 waits at exit for other ranks


@dataclass
class RankMessage:
    """A rank's message for one operation. The message says when the rank's data was ready and which operation was called."""

    arrived_ns: int
    operation: str
    size_bytes: int
    dtype: str
    payload: bytes | None = None
    uniform: float | int | bool | None = None
    sends: list[int] | None = None
    wants: list[int] | None = None
    detail: str = ""
    read_count: int = 0

    @property
    def count(self) -> int:
        """The number of elements."""
        return self.size_bytes // getattr(torch, self.dtype).itemsize if self.dtype else 0

    def __str__(self) -> str:
        of = f" of {self.count} {self.dtype} elements" if self.dtype else ""
        return f"{self.operation}{of}{f' ({self.detail})' if self.detail else ''}"

    def pack(self) -> list[bytes]:
        """Serialize the message. A long payload is split into several pieces that fit the store."""
        head = asdict(self)
        payload = head.pop("payload")
        starts = range(0, len(payload or b""), _LONGEST_VALUE)
        pieces = [payload[start : start + _LONGEST_VALUE] for start in starts] or [b""]
        first = json.dumps(head | {"has": payload is not None, "more": len(pieces) - 1}).encode() + b"\n" + pieces[0]
        return [first, *pieces[1:]]

    @classmethod
    def unpack(cls, first: bytes, piece: Callable[[int], bytes]) -> RankMessage:
        """Parse a message. `piece(n)` returns the n-th further piece of the payload, counted from 1."""
        head, _, payload = first.partition(b"\n")
        fields = json.loads(head)
        has_payload = fields.pop("has")
        payload = b"".join([payload, *map(piece, range(1, fields.pop("more") + 1))])
        return cls(**fields, payload=payload if has_payload else None)


class PendingExchange:
    """An operation for which this rank has posted its message."""

    def __init__(self, exchange: StoreExchange, channel: str, number: int, members: Sequence[int], operation: str) -> None:
        self._exchange = exchange
        self._channel, self._number, self._members, self._operation = channel, number, members, operation
        self._messages: list[RankMessage] | None = None

    def is_complete(self) -> bool:
        """Return whether all members have posted, without waiting."""
        return self._messages is not None or self._exchange.all_posted(self._channel, self._number, self._members)

    def messages(self) -> list[RankMessage]:
        """Wait for all members and return their messages in order, with times on this rank's clock.

        Raises RuntimeError with the number of a rank that ended, timed out or called another operation.
        """
        if self._messages is None:
            self._messages = self._exchange.read(self._channel, self._number, self._members, self._operation)
        return self._messages


class StoreExchange:
    """One rank's side of the exchange. A channel is a sequence of operations between the same ranks."""

    def __init__(self, store: TorchAny, rank: int, size: int, timeout_s: float, clock: Clock) -> None:
        # torchrun restarts workers with the same store, which still contains old messages
        self._store: TorchAny = PrefixStore(f"attempt/{os.environ.get(_ATTEMPT, '0')}", store)
        self.rank, self.size = rank, size
        self.timeout_s = timeout_s
        self._clock = clock
        self._offset_ns: int | None = None
        self._numbers: dict[str, int] = {}
        self._read: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        self._pieces: dict[str, int] = {}
        self._left = self._broken = False
        self._longest_pause_s = _LONGEST_PAUSE_S * max(size / _FULL_RATE_RANKS, 1.0)

    def post(self, channel: str, members: Sequence[int], message: RankMessage) -> PendingExchange:
        """Post this rank's message for the channel's next operation. `members` are the participating ranks."""
        number = self._numbers.get(channel, 0)
        self._numbers[channel] = number + 1
        arrived_ns = message.arrived_ns - self._aligned_ns()
        message = replace(message, arrived_ns=arrived_ns, read_count=self._read.get(channel, 0))
        pending = PendingExchange(self, channel, number, members, message.operation)
        if len(members) == 1:
            pending._messages = [replace(message, arrived_ns=message.arrived_ns + self._aligned_ns())]
            return pending
        key = f"{channel}/{number}/{self.rank}"
        first, *more = message.pack()
        for place, piece in enumerate(more, 1):
            self._store.set(_piece_key(key, place), piece)
        if more:
            self._pieces[key] = len(more)
        self._store.set(key, first)  # set last, so that readers find all pieces
        return pending

    def all_posted(self, channel: str, number: int, members: Sequence[int]) -> bool:
        try:
            return bool(self._store.check([f"{channel}/{number}/{member}" for member in members]))
        except DistError:
            return False

    def read(self, channel: str, number: int, members: Sequence[int], operation: str) -> list[RankMessage]:
        keys = [f"{channel}/{number}/{member}" for member in members]
        self._await(keys, members, operation)
        firsts = zip(keys, self._store.multi_get(keys), strict=True)
        messages = [RankMessage.unpack(first, partial(self._piece, key)) for key, first in firsts]
        mine = messages[list(members).index(self.rank)]
        for place, message in enumerate(messages):
            conflict = conflict_of(messages, list(members).index(self.rank), place)
            if conflict:
                raise RuntimeError(
                    f"rank {members[place]} of the group called {message} where rank {self.rank} called {mine}: {conflict};"
                    " NCCL would hang or corrupt data here"
                )
        self._read[channel] = number + 1
        self._delete_read(channel, min(message.read_count for message in messages))
        offset_ns = self._aligned_ns()
        return [replace(message, arrived_ns=message.arrived_ns + offset_ns) for message in messages]

    def leave(self, failed: bool) -> None:
        """Post that this rank ends, so that waiting ranks fail at once.

        The store may run in the first rank's process. The first rank therefore waits until all other ranks have left, unless it
        has failed.
        """
        if self._left:
            return
        self._left = True
        try:
            self._store.set(f"ended/{self.rank}", b"1")
            everyone = [f"ended/{member}" for member in range(self.size)]
            deadline_ns = perf_counter_ns() + (SHUTDOWN_GRACE_NS if self.rank == 0 and not failed and not self._broken else 0)
            while perf_counter_ns() < deadline_ns and not self._store.check(everyone):
                sleep(self._longest_pause_s)
        except DistError:
            return

    def _piece(self, key: str, place: int) -> bytes:
        piece: bytes = self._store.get(_piece_key(key, place))
        return piece

    def _delete_read(self, channel: str, read_count: int) -> None:
        """Delete this rank's messages that all members have read."""
        for number in range(self._deleted.get(channel, 0), read_count):
            key = f"{channel}/{number}/{self.rank}"
            self._store.delete_key(key)
            for place in range(1, self._pieces.pop(key, 0) + 1):
                self._store.delete_key(_piece_key(key, place))
        self._deleted[channel] = max(self._deleted.get(channel, 0), read_count)

    def _await(self, keys: Sequence[str], members: Sequence[int], operation: str) -> None:
        """Wait until all keys exist. The method polls, because the store's own wait logs every timeout."""
        began_ns, pause_s = perf_counter_ns(), _FIRST_PAUSE_S
        try:
            while not self._store.check(list(keys)):
                waited_s = (perf_counter_ns() - began_ns) * 1e-9
                if waited_s > LIVENESS_CHECK_AFTER_S:
                    self._require_alive(keys, members, operation, waited_s)
                sleep(pause_s)
                pause_s = min(2 * pause_s, self._longest_pause_s)
        except DistError as error:
            raise RuntimeError(
                f"the group's store is gone while this rank waits for {operation}: the process that hosted it (rank 0 or"
                " torchrun's agent) has ended"
            ) from error

    def _require_alive(self, keys: Sequence[str], members: Sequence[int], operation: str, waited_s: float) -> None:
        missing = [member for key, member in zip(keys, members, strict=True) if not self._store.check([key])]
        gone = [member for member in missing if self._store.check([f"ended/{member}"])]
        self._broken = bool(gone) or waited_s >= self.timeout_s
        if gone:
            raise RuntimeError(f"{_ranks(gone)} of the group ended without calling {operation}, which other ranks wait for")
        if missing and waited_s >= self.timeout_s:
            raise RuntimeError(
                f"{_ranks(missing)} of the group did not call {operation} within {self.timeout_s:g} s: it ended,"
                " hangs or is busy; set the limit with init_process_group's timeout"
            )

    def _aligned_ns(self) -> int:
        """Return this rank's clock minus the first rank's clock. See Note [Clocks of several processes]."""
        if self._offset_ns is None:
            self._offset_ns = 0
            if self.size > 1:
                self._offset_ns = self._align()
        return self._offset_ns

    def _align(self) -> int:
        members = list(range(self.size))
        names = [f"arrived/{member}" for member in members]
        self._store.set(names[self.rank], b"1")
        self._await(names, members, "the first operation")
        machine_ns, own_ns = perf_counter_ns(), self._clock.now_ns()
        self._store.set(f"clock/{self.rank}", json.dumps([own_ns, machine_ns, _boot_id()]).encode())
        self._await(["clock/0"], [0], "the first operation")
        first_ns, first_machine_ns, boot = json.loads(self._store.get("clock/0"))
        passed_ns = machine_ns - first_machine_ns if self._clock.flows and boot == _boot_id() and boot else 0
        return int(own_ns - first_ns - passed_ns * self._clock.speed)


def conflict_of(messages: Sequence[RankMessage], own: int, other: int) -> str:
    """Return what two ranks disagree about, or "". `own` and `other` are places among the participating ranks."""
    mine, theirs = messages[own], messages[other]
    names = {mine.operation, theirs.operation}
    if len(names) > 1 and names != {"send", "recv"}:
        return "all ranks must call the same operations in the same order"
    if mine.detail != theirs.detail:
        return "all ranks must pass the same arguments"
    if mine.dtype != theirs.dtype:
        return "the dtypes must be equal"
    if (mine.sends or mine.wants) is None:
        return "the numbers of elements must be equal" if mine.count != theirs.count else ""
    for sender, to, receiver in ((mine, other, theirs), (theirs, own, mine)):
        of = own if sender is mine else other
        if sender.sends is not None and receiver.wants is not None and sender.sends[to] != receiver.wants[of]:
            return f"the sender has {sender.sends[to]} elements for the receiver, which expects {receiver.wants[of]}"
    return ""


def _piece_key(key: str, place: int) -> str:
    return f"{key}/{place}"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
