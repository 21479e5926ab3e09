"""Exchanges messages between the ranks of a process group through the group's key-value store.

    exchange = StoreExchange(store, 0, global_ranks=[0, 1], timeout_s=600, offset_ns=ClockOffset(...).ns)
    pending = exchange.post("all/cuda", (0, 1), RankMessage(arrived_ns, "all_reduce", 21288, "float32"))
    messages = pending.messages()   # waits for missing ranks; [RankMessage, RankMessage], times on this rank's clock

Note [One rank reads for all]
    If each of n ranks read the messages of all ranks, the store would get n * n requests. In groups of more than
    `_ALL_READ_UP_TO` ranks, the first rank therefore reads all messages and posts them as one message. If the first rank has
    ended or waits for another operation, another rank reads all messages itself.

Note [Waits between ranks]
    A waiting rank asks the store again after a pause. The store's own wait function would log every timeout, and block the
    other threads of the process. Pauses grow with the time waited, up to `_LONGEST_OF_ALL_PAUSES_S`. After
    `LIVENESS_CHECK_AFTER_S`, the rank checks whether the missing ranks have ended, and whether ranks wait for each other. In
    larger groups, pauses are longer and checks are rarer, to limit the number of requests to the store. The timeout is meant
    for ranks that hang. A missing rank that uses the CPU or waits for a free CPU does not hang. This time therefore does not
    count, up to `_BUSY_AT_MOST_S`.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns, sleep

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistBackendError, DistError

from replayer.distributed.clock_offset import boot_id, ended_key
from replayer.distributed.rank_message import RankMessage, convert_each, pack, ranks_text, require_match, shared_gpu, unpack
from replayer.torch_types import TorchAny

LIVENESS_CHECK_AFTER_S = 1.0  # after this time, a waiting rank checks whether the missing ranks still run
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LONGEST_OF_ALL_PAUSES_S = 0.000_05, 0.002, 0.25
# A waiting rank checks for messages at longer and longer intervals, to save CPU time.
_PAUSES_PER_WAIT, _LOOKS_PER_WAIT = 64, 16
_ALL_READ_UP_TO, _ALL_CHECK_UP_TO = 8, 64  # ranks
_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"  # torchrun sets this variable to the number of restarts
_CIRCLE_LASTS_S = 4.0
_MISSING_FOLLOWED = 8  # ranks
_BUSY_AT_MOST_S = 60.0
SHUTDOWN_GRACE_S = 10.0  # at its exit, rank 0 stops waiting if no other rank ends within this time


class NotCalledInTime(RuntimeError):
    """Raised if a rank does not call a collective within the process group's timeout."""


class PendingExchange:
    def __init__(self, exchange: StoreExchange, channel: str, number: int, members: Sequence[int], own: RankMessage) -> None:
        self._exchange = exchange
        self.channel, self.number, self.members, self.own = channel, number, members, own
        self.keys, self.key_for_all = [f"{channel}/{number}/{member}" for member in members], _for_all(channel, number)
        self._messages = [own] if len(members) == 1 else None
        self.polled: Wait | None = None  # the wait that all calls of `arrives_within` share
        self.missing: list[int] = []  # members that had not called the operation at the last check

    def is_complete(self) -> bool:
        return self._messages is not None or self._exchange.all_posted(self)

    def arrives_within(self, seconds: float) -> bool:
        """Wait up to `seconds` for the messages of all ranks, and return True if all have arrived."""
        return self._messages is not None or self._exchange.poll(self, seconds)

    def messages(self) -> list[RankMessage]:
        """Return the messages of all ranks, with times converted to the clock of this rank. Raise RuntimeError if a rank has
        ended, called a different operation, or is too late."""
        if self._messages is None:
            self._messages = self._exchange.read(self)
        return self._messages


@dataclass
class Wait:
    began_ns: int
    look_s: float  # the next check for missing ranks, in seconds after the beginning
    looked_s: float = 0.0
    used_ns: dict[int, int] = field(default_factory=dict)  # CPU time of the missing ranks at the last check
    busy_s: float = 0.0

    def add_busy(self, waited_s: float, used_ns: dict[int, int]) -> None:
        """Extend the timeout by the CPU time that other ranks have used since the last check. A rank that uses the CPU is not
        hanging."""
        longest_ns = max((now_ns - self.used_ns.get(rank, now_ns) for rank, now_ns in used_ns.items()), default=0)
        busy_s = min(max(longest_ns, 0) * 1e-9, waited_s - self.looked_s)
        self.busy_s = min(self.busy_s + busy_s, _BUSY_AT_MOST_S)
        self.looked_s, self.used_ns = waited_s, used_ns


class DeadlockDetector:
    """Finds ranks that have waited for each other for several seconds."""

    def __init__(self, store: TorchAny, rank: int) -> None:
        self._of_group: TorchAny = store_of_attempt(store)
        self._store: TorchAny = PrefixStore("waits", self._of_group)
        self._rank = rank
        self._own = b""
        self._circle: tuple[str, float] | None = None  # the deadlock, and the time at which it was first seen
        self._processes: dict[int, Path | None] = {}  # each rank's folder in /proc, or None for a rank on another machine
        self._of_group.set(_process_key(rank), json.dumps([_processes_id(), os.getpid()]).encode())

    def processor_ns(self, rank: int) -> int:
        """Return how long a rank has used the CPU or waited for a free core. For a rank on another machine, return 0 ns."""
        process = self._process(rank)
        return _processor_ns(process) if process else 0

    def find_deadlock(self, operation: str, missing: list[int]) -> str:
        own = json.dumps([operation, missing[:_MISSING_FOLLOWED]]).encode()
        if own != self._own:
            self._own = own
            self._store.set(str(self._rank), own)
        circle = self._shortest_circle()
        if self._circle is None or self._circle[0] != circle:
            self._circle = circle, perf_counter_ns() * 1e-9
        return circle if perf_counter_ns() * 1e-9 - self._circle[1] > _CIRCLE_LASTS_S else ""

    def ended(self, ranks: list[int]) -> list[int]:
        some_left = self._of_group.add("ended", 0) > 0
        return [rank for rank in ranks if (some_left and self._of_group.check([ended_key(rank)])) or self._was_killed(rank)]

    def end(self) -> None:
        if self._own:
            self._store.set(str(self._rank), b"")
        self._own, self._circle = b"", None

    def _process(self, rank: int) -> Path | None:
        if rank not in self._processes and self._of_group.check([_process_key(rank)]):
            where, pid = json.loads(self._of_group.get(_process_key(rank)))
            self._processes[rank] = Path(f"/proc/{pid}") if where == _processes_id() else None
        return self._processes.get(rank)

    def _was_killed(self, rank: int) -> bool:
        process = self._process(rank)
        return process is not None and not process.exists()

    def _shortest_circle(self) -> str:
        seen, paths = {self._rank}, deque([(self._rank, "")])
        while paths:
            rank, path = paths.popleft()
            wait = self._wait_of(rank)
            if wait is None:
                continue
            operation, missing = wait
            path = f"{path}{', ' if path else ''}rank {rank} waits in {operation}"
            if self._rank in missing:
                return path
            paths.extend((other, path) for other in missing if other not in seen)
            seen.update(missing)
        return ""

    def _wait_of(self, rank: int) -> tuple[str, list[int]] | None:
        if not self._store.check([str(rank)]):
            return None
        operation, missing = json.loads(self._store.get(str(rank)) or b"[null, []]")
        return None if operation is None else (operation, missing)


class StoreExchange:
    """Exchanges messages through channels. A channel is a sequence of operations between the same ranks."""

    def __init__(
        self, store: TorchAny, rank: int, global_ranks: Sequence[int], timeout_s: float, offset_ns: Callable[[], int],
        deadlocks: DeadlockDetector | None = None, group_name: str = "",
    ) -> None:  # fmt: skip
        self._store: TorchAny = store_of_attempt(store)
        self.rank, self.size, self._global_ranks = rank, len(global_ranks), global_ranks
        self.timeout_s, self.offset_ns = timeout_s, offset_ns  # see Note [Clocks of several processes] in clock_offset.py
        self._numbers: dict[str, int] = {}
        self._read: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        self._pieces: dict[str, int] = {}
        self._left = self._broken = False
        self._deadlocks = deadlocks
        self._of_group = f" of group {group_name} ({self._ranks(range(self.size))})" if group_name else ""
        self._is_recorded = False  # True if this wait is among the waits of `deadlocks`
        larger = max(self.size / _ALL_READ_UP_TO, 1.0)
        self._first_pause_s, self._longest_pause_s = _FIRST_PAUSE_S * larger, _LONGEST_PAUSE_S * larger
        self._check_after_s = LIVENESS_CHECK_AFTER_S * max(self.size / _ALL_CHECK_UP_TO, 1.0)

    def post(self, channel: str, members: Sequence[int], message: RankMessage) -> PendingExchange:
        number = self._numbers.get(channel, 0)
        self._numbers[channel] = number + 1
        pending = PendingExchange(self, channel, number, members, message)
        if len(members) > 1:
            arrived_ns = message.arrived_ns - self.offset_ns()
            message = replace(message, arrived_ns=arrived_ns, read_count=self._read.get(channel, 0))
            self._set(f"{channel}/{number}/{self.rank}", [message])
        return pending

    def all_posted(self, pending: PendingExchange) -> bool:
        try:
            return bool(self._store.check([pending.key_for_all]) or self._store.check(pending.keys))
        except DistError:
            return False

    def poll(self, pending: PendingExchange, longest_s: float) -> bool:
        with self._waiting(pending):
            return self._await(pending.keys, pending, longest_s)

    def read(self, pending: PendingExchange) -> list[RankMessage]:
        with self._waiting(pending):
            messages = self._messages(pending)
            self._read[pending.channel] = pending.number + 1
            self._delete_read(pending.channel, min(message.read_count for message in messages))
            offset_ns = self.offset_ns()
        self._require_same_group(messages, pending.own)
        self._require_agreement(messages, pending.members, list(pending.members).index(self.rank))
        return convert_each(messages, lambda message: replace(message, arrived_ns=message.arrived_ns + offset_ns))

    def leave(self, failed: bool) -> None:
        """Announce that this rank ends. Rank 0 waits until all other ranks have ended, because its process may host the
        key-value store."""
        if self._left:
            return
        self._left = True
        try:
            self._store.set(ended_key(self.rank), b"1")
            ended = self._store.add("ended", 1)
            if self.rank == 0 and not failed and not self._broken:
                self._await_ends(ended)
        except DistError:
            return

    def _await_ends(self, ended: int) -> None:
        pause_s, changed_ns = self._first_pause_s, perf_counter_ns()
        while ended < self.size:
            sleep(pause_s)
            now, waited_s = self._store.add("ended", 0), (perf_counter_ns() - changed_ns) * 1e-9
            pause_s = self._next_pause_s(pause_s, waited_s)
            if now > ended:
                ended, changed_ns = now, perf_counter_ns()
            elif waited_s > SHUTDOWN_GRACE_S:
                running = [rank for rank in range(self.size) if not self._store.check([ended_key(rank)])]
                sys.stderr.write(
                    f"trace: {self._ranks([0])} ended before {self._ranks(running)}{self._of_group}: these ranks did not end"
                    f" within {SHUTDOWN_GRACE_S:g} s\n"
                )
                return

    def _messages(self, pending: PendingExchange) -> list[RankMessage]:
        # see Note [One rank reads for all]
        keys, for_all = pending.keys, pending.key_for_all
        shared, is_first = len(keys) > _ALL_READ_UP_TO, self.rank == pending.members[0]
        if shared and not is_first and self._await([for_all], pending):
            return unpack(self._store.get(for_all), partial(self._piece, for_all))
        self._await(keys, pending)
        found = zip(keys, self._store.multi_get(keys), strict=True)
        messages = [message for key, first in found for message in unpack(first, partial(self._piece, key))]
        if shared and is_first:
            self._set(for_all, messages)
        return messages

    def _require_same_group(self, messages: list[RankMessage], own: RankMessage) -> None:
        other = next((message.group for message in messages if message.group and own.group and message.group != own.group), "")
        if other:
            raise RuntimeError(
                f"{self._ranks([self.rank])} called {own}{self._of_group}, but another rank created this group for {other}: all"
                " ranks must call new_group for the same groups in the same order; NCCL would hang or corrupt data"
            )

    def _require_agreement(self, messages: list[RankMessage], members: Sequence[int], own: int) -> None:
        if shared := shared_gpu(messages):
            later, first = (members[place] for place in shared)
            device = messages[shared[0]].gpu.rpartition("/")[2]
            raise DistBackendError(
                "NCCL error: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
                f"Duplicate GPU detected : rank {later} and rank {first} both on CUDA device {device}"
            )
        for place, message in enumerate(messages):
            if place and message is messages[place - 1] and message.sends is None and message.wants is None:
                continue
            require_match(messages, own, place, lambda of: self._ranks([members[of]]), "NCCL")

    def _set(self, key: str, messages: list[RankMessage]) -> None:
        first, *more = pack(messages)
        for place, piece in enumerate(more, 1):
            self._store.set(_piece_key(key, place), piece)
        if more:
            self._pieces[key] = len(more)
        self._store.set(key, first)  # set the first piece last, so that readers find all pieces

    def _piece(self, key: str, place: int) -> bytes:
        piece: bytes = self._store.get(_piece_key(key, place))
        return piece

    def _delete_read(self, channel: str, read_count: int) -> None:
        for number in range(self._deleted.get(channel, 0), read_count):
            keys = [f"{channel}/{number}/{self.rank}"]
            if self.rank == 0 and self.size > _ALL_READ_UP_TO:
                keys.append(_for_all(channel, number))
            for key in keys:
                self._store.delete_key(key)
                for place in range(1, self._pieces.pop(key, 0) + 1):
                    self._store.delete_key(_piece_key(key, place))
        self._deleted[channel] = max(self._deleted.get(channel, 0), read_count)

    def _await(self, awaited: Sequence[str], pending: PendingExchange, longest_s: float = math.inf) -> bool:
        # see Note [Waits between ranks]
        began_ns, pause_s, polls = perf_counter_ns(), self._first_pause_s, longest_s < math.inf
        wait = (pending.polled if polls else None) or Wait(began_ns, self._check_after_s)
        pending.polled = wait if polls else pending.polled
        while not self._store.check(awaited):
            now_ns = perf_counter_ns()
            waited_s = (now_ns - wait.began_ns) * 1e-9
            if waited_s >= min(wait.look_s, self.timeout_s + wait.busy_s):
                missing = pending.missing = self._missing_members(pending, wait, waited_s)
                if not missing:
                    return bool(self._store.check(awaited))
                if not polls:
                    self._require_no_deadlock(missing, pending.own)
                wait.look_s = waited_s + max(self._check_after_s, waited_s / _LOOKS_PER_WAIT)
            if (now_ns - began_ns) * 1e-9 >= longest_s:
                return False
            sleep(pause_s)
            pause_s = self._next_pause_s(pause_s, waited_s)
        return True

    def _next_pause_s(self, pause_s: float, waited_s: float) -> float:
        most_s = min(max(self._longest_pause_s, waited_s / _PAUSES_PER_WAIT), _LONGEST_OF_ALL_PAUSES_S)
        return min(2 * pause_s, most_s)

    def _missing_members(self, pending: PendingExchange, wait: Wait, waited_s: float) -> list[int]:
        key_of, own = dict(zip(pending.members, pending.keys, strict=True)), pending.own
        is_late = waited_s >= self.timeout_s + wait.busy_s
        # error messages list all missing ranks
        name_all = is_late or self._store.add("ended", 0) > 0
        missing = self._missing(key_of, list(key_of), len(key_of) if name_all else _MISSING_FOLLOWED)
        left: list[int] = []
        if self._deadlocks is not None:
            ranks = [self._global_ranks[member] for member in missing]
            left = self._deadlocks.ended(ranks)
            wait.add_busy(waited_s, {rank: self._deadlocks.processor_ns(rank) for rank in ranks[:_MISSING_FOLLOWED]})
            is_late = waited_s >= self.timeout_s + wait.busy_s
        gone = [
            member
            for member in missing
            if self._global_ranks[member] in left or (name_all and self._store.check([ended_key(member)]))
        ]
        # the rank may have called the operation before it ended
        gone = [member for member in gone if not self._store.check([key_of[member]])]
        self._broken = bool(gone or (missing and is_late))
        waits = f"{self._ranks([self.rank])} waits in {own}{self._of_group}"
        if gone:
            raise RuntimeError(f"{self._ranks(gone)} of the group ended without calling {own.counterpart}; {waits}")
        if missing and is_late:
            raise NotCalledInTime(
                f"{self._ranks(missing)} of the group did not call {own.counterpart} within {self.timeout_s:g} s, because it"
                f" ended, hangs or is busy; {waits}; to wait longer, pass a longer timeout to init_process_group"
            )
        return missing

    def _require_no_deadlock(self, missing: Sequence[int], own: RankMessage) -> None:
        if self._deadlocks is not None:
            self._is_recorded = True
            circle = self._deadlocks.find_deadlock(f"{own}{self._of_group}", [self._global_ranks[member] for member in missing])
            if circle:
                raise RuntimeError(f"these ranks wait for each other: {circle}; NCCL would hang here")

    def _missing(self, key_of: dict[int, str], members: list[int], most: int) -> list[int]:
        if self._store.check([key_of[member] for member in members]):
            return []
        if len(members) == 1:
            return members
        half = len(members) // 2
        missing = self._missing(key_of, members[:half], most)
        if len(missing) < most:
            missing += self._missing(key_of, members[half:], most - len(missing))
        return missing

    def _ranks(self, members: Sequence[int]) -> str:
        return ranks_text([self._global_ranks[member] for member in members])

    @contextmanager
    def _waiting(self, pending: PendingExchange) -> Iterator[None]:
        try:
            yield
        except DistError as error:
            late = f"; {self._ranks(pending.missing)} had not called {pending.own.counterpart}" if pending.missing else ""
            raise RuntimeError(
                f"this rank waits for {pending.own.operation}, but the group's key-value store is gone: the process that hosted"
                f" it (rank 0 or torchrun's agent) has ended{late}"
            ) from error
        finally:
            if self._deadlocks is not None and self._is_recorded:
                self._is_recorded = False
                with suppress(DistError):
                    self._deadlocks.end()


def store_of_attempt(store: TorchAny) -> TorchAny:
    return PrefixStore(f"attempt/{os.environ.get(_ATTEMPT, '0')}", store)


def _process_key(rank: int) -> str:
    return f"process/{rank}"


def _processes_id() -> str:
    """Return an identifier of this process's Linux PID namespace. Processes in one namespace can see each other in /proc."""
    with suppress(OSError):
        return f"{boot_id()}/{os.readlink('/proc/self/ns/pid')}"
    return f"process {os.getpid()}"


def _processor_ns(process: Path) -> int:
    try:
        times = [path.read_text(encoding="ascii").split() for path in process.glob("task/*/schedstat")]
    except OSError:
        return 0
    return sum(int(used_ns) + int(waited_ns) for used_ns, waited_ns, _ in times)


def _for_all(channel: str, number: int) -> str:
    return f"{channel}/{number}/for all"


def _piece_key(key: str, place: int) -> str:
    return f"{key}/{place}"
