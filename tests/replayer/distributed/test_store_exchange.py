"""Tests the messages between ranks, and the conversion of times between their clocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed import DistNetworkError

from replayer.distributed import store_exchange
from replayer.distributed.clock_offset import ClockOffset, FirstRankMissing
from replayer.distributed.rank_message import RankMessage, convert_each, pack, unpack
from replayer.distributed.store_exchange import DeadlockDetector, PendingExchange, StoreExchange, store_of_attempt
from replayer.timing.clock import Clock, RecordedClock

HOUR_NS = 3_600 * 10**9


def _offset(store: Any, rank: int, clock: Clock, timeout_s: float = 60) -> Callable[[], int]:
    return ClockOffset(store_of_attempt(store), rank, clock, timeout_s).ns


def test_recorded_clocks_of_ranks_are_aligned_when_ranks_first_communicate() -> None:
    # GIVEN two ranks whose waits have moved their clocks to different times
    store, clocks = HashStore(), [RecordedClock(), RecordedClock()]
    clocks[1].wait_until(clocks[0].now_ns() + HOUR_NS)
    seen: dict[int, list[int]] = {}

    def meet(rank: int) -> None:
        exchange = StoreExchange(store, rank, range(2), timeout_s=60, offset_ns=_offset(store, rank, clocks[rank]))
        message = RankMessage(clocks[rank].now_ns() + 1_000 * (rank + 1), "all_reduce", 8, "float32")
        seen[rank] = [other.arrived_ns - clocks[rank].now_ns() for other in exchange.post("all", [0, 1], message).messages()]

    ranks = [threading.Thread(target=meet, args=(rank,), daemon=True) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=60)
    # THEN each rank knows to the nanosecond when the data of both ranks was ready, counted from their first exchange
    assert seen == {0: [1_000, 2_000], 1: [1_000, 2_000]}


def test_restarted_workers_ignore_messages_from_before_the_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a store in which a rank has posted a message and its end, before torchrun restarted the workers
    store, message = HashStore(), RankMessage(0, "all_reduce", 8, "float32")
    before = StoreExchange(store, 1, range(2), timeout_s=60, offset_ns=int)
    before.post("all", [0, 1], message)
    before.leave(failed=True)
    # WHEN a restarted rank posts THEN its message is incomplete until the other restarted rank has posted, too
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    exchanges = [StoreExchange(store, rank, range(2), timeout_s=60, offset_ns=int) for rank in range(2)]
    pending = exchanges[0].post("all", [0, 1], message)
    assert not pending.is_complete()
    exchanges[1].post("all", [0, 1], message)
    assert [other.operation for other in pending.messages()] == ["all_reduce"] * 2


def test_an_error_says_that_the_first_rank_never_joined_the_group() -> None:
    # GIVEN a group that rank 1 has joined and rank 0 has not
    store, message = HashStore(), RankMessage(0, "all_reduce", 8, "float32")
    exchange = StoreExchange(store, 1, range(2), timeout_s=0.05, offset_ns=_offset(store, 1, RecordedClock(), 0.05))
    # WHEN rank 1 posts a message THEN it waits for the clock of rank 0 until the group's timeout
    with pytest.raises(FirstRankMissing, match=r"rank 0 did not join the process group within 0\.05 s, because it ended"):
        exchange.post("all", [0, 1], message)
    # WHEN rank 0 has ended THEN rank 1 does not wait
    StoreExchange(store, 0, range(2), timeout_s=60, offset_ns=int).leave(failed=True)
    with pytest.raises(FirstRankMissing, match="rank 0 ended before it used the process group"):
        StoreExchange(store, 1, range(2), 60, _offset(store, 1, RecordedClock())).post("all", [0, 1], message)


def _tcp_store() -> Any:
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))


@pytest.mark.parametrize("make_store", [HashStore, _tcp_store])
@pytest.mark.parametrize("size", [0, 100, 4 << 20, (20 << 20) + 1])
def test_a_message_of_any_size_is_deleted_after_all_ranks_read_it(make_store: Any, size: int) -> None:
    """A TCPStore rejects messages of more than 8 MiB, and DDP's buckets are larger."""
    store = make_store()
    exchanges = [StoreExchange(store, rank, range(2), timeout_s=60, offset_ns=int) for rank in range(2)]
    payloads = [bytes([rank + 1]) * size for rank in range(2)]
    keys_before = store.num_keys()
    for _ in range(3):
        pending = [
            exchange.post("all", [0, 1], RankMessage(1, "all_reduce", size, "uint8", payload))
            for exchange, payload in zip(exchanges, payloads, strict=True)
        ]
        keys_of_one = store.num_keys() - keys_before
        for each in pending:
            assert [message.payload for message in each.messages()] == payloads
    assert store.num_keys() - keys_before <= keys_of_one  # at most the keys of the last operation are left


@pytest.mark.parametrize(("members", "keys"), [([0], 0), ([0, 1], 1)])
def test_only_messages_for_other_ranks_are_stored(members: list[int], keys: int) -> None:
    store = HashStore()
    exchange = StoreExchange(store, 0, range(2), timeout_s=60, offset_ns=int)
    keys_before = store.num_keys()
    exchange.post("all", members, RankMessage(1, "all_reduce", 8, "float32"))
    assert store.num_keys() - keys_before == keys


def test_equal_messages_with_different_times_are_stored_once() -> None:
    """GIVEN three messages, and the first two are equal THEN only two messages are stored. The first one has the later time of
    the equal messages."""
    first = RankMessage(5, "all_reduce", 2, "uint8", b"ab", read_count=3)
    second = RankMessage(7, "all_reduce", 2, "uint8", b"ab")
    third = RankMessage(6, "all_reduce", 2, "uint8", b"cd")
    (stored,) = pack([first, second, third])
    assert stored.count(b"all_reduce") == 2
    latest = RankMessage(7, "all_reduce", 2, "uint8", b"ab", read_count=0)
    assert unpack(stored, lambda number: b"") == [latest, latest, third]


def test_a_message_of_several_ranks_is_converted_once() -> None:
    first, second = RankMessage(5, "all_reduce", 2, "uint8"), RankMessage(7, "all_reduce", 2, "uint8")
    converted: list[int] = []

    def arrived_ns(message: RankMessage) -> int:
        converted.append(message.arrived_ns)
        return message.arrived_ns

    assert convert_each([first, first, second, first], arrived_ns) == [5, 5, 7, 5]
    assert converted == [5, 7]


def test_ranks_of_a_large_group_poll_the_store_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks may poll at the full rate. With 64 ranks, the pauses are eight times as long."""
    store, members = HashStore(), list(range(64))
    exchanges = [StoreExchange(store, rank, range(64), timeout_s=60, offset_ns=int) for rank in members]
    message, pauses_us = RankMessage(0, "all_reduce", 8, "float32"), list[int]()
    pending = [each.post("all", members, message) for each in exchanges[:63]]

    def pause(seconds: float) -> None:
        pauses_us.append(round(seconds * 1e6))
        if len(pauses_us) == 3:
            exchanges[63].post("all", members, message)

    monkeypatch.setattr("replayer.distributed.store_exchange.sleep", pause)
    assert len(pending[0].messages()) == 64
    assert pauses_us == [400, 800, 1600]


def test_the_first_of_many_ranks_reads_the_messages_for_all() -> None:
    """GIVEN nine ranks THEN the store receives nine messages and one combined message, and each rank gets all nine messages."""
    store = HashStore()
    exchanges = [StoreExchange(store, rank, range(9), timeout_s=60, offset_ns=int) for rank in range(9)]
    members = list(range(9))
    pending = [each.post("all", members, RankMessage(each.rank, "all_reduce", 8, "float32")) for each in exchanges]
    before = store.num_keys()
    for each in pending:
        messages = each.messages()
        assert len(messages) == 9 and max(message.arrived_ns for message in messages) == 8  # this is the time of the last rank
    assert store.num_keys() == before + 1


def test_ranks_read_messages_themselves_after_the_first_rank_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayer.distributed.store_exchange.LIVENESS_CHECK_AFTER_S", 0.0)
    store = HashStore()
    exchanges = [StoreExchange(store, rank, range(9), timeout_s=60, offset_ns=int) for rank in range(9)]
    members = list(range(9))
    pending = [each.post("all", members, RankMessage(each.rank, "all_reduce", 8, "float32")) for each in exchanges]
    exchanges[0].leave(failed=True)
    assert [message.arrived_ns for message in pending[4].messages()] == members


def test_ranks_read_messages_themselves_if_the_first_rank_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN nine ranks that have posted messages WHEN the first rank does not read them THEN rank 4 reads all messages
    itself."""
    monkeypatch.setattr("replayer.distributed.store_exchange.LIVENESS_CHECK_AFTER_S", 0.0)
    store, members = HashStore(), list(range(9))
    exchanges = [StoreExchange(store, rank, range(9), timeout_s=60, offset_ns=int) for rank in members]
    pending = [each.post("all", members, RankMessage(each.rank, "all_reduce", 8, "float32")) for each in exchanges]
    assert [message.arrived_ns for message in pending[4].messages()] == members


def test_a_timeout_names_all_missing_ranks_after_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayer.distributed.store_exchange.LIVENESS_CHECK_AFTER_S", 0.0)
    store, members = HashStore(), list(range(64))
    exchanges = [StoreExchange(store, rank, range(64), timeout_s=0.2, offset_ns=int) for rank in members]
    # GIVEN 64 ranks, and all ranks except 40 and 41 have posted
    message = RankMessage(0, "all_reduce", 8, "float32")
    pending = [each.post("all", members, message) for each in exchanges if each.rank not in (40, 41)]
    keys = {rank: f"all/0/{rank}" for rank in members}
    requests: list[list[str]] = []
    monkeypatch.setattr(exchanges[0], "_store", Counting(exchanges[0]._store, requests))
    # THEN a search by halves finds both ranks with 13 requests: 0-63, 0-31 (complete), 32-63, 32-47, 32-39 (complete), 40-47,
    # 40-43, 40-41, 40, 41, 42-43 (complete), 44-47 (complete) and 48-63 (complete)
    assert exchanges[0]._missing(keys, members, 8) == [40, 41] and len(requests) == 13
    assert exchanges[0]._missing(keys, members, 1) == [40]
    with pytest.raises(RuntimeError, match=r"ranks 40, 41 of the group did not call all_reduce within 0\.2 s"):
        pending[5].messages()


class Counting:
    """Counts the checks of keys in a store."""

    def __init__(self, store: Any, requests: list[list[str]]) -> None:
        self._store, self._requests = store, requests

    def check(self, keys: list[str]) -> bool:
        self._requests.append(keys)
        return bool(self._store.check(keys))


def test_a_rank_that_no_longer_waits_is_not_part_of_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayer.distributed.store_exchange._CIRCLE_LASTS_S", -1.0)
    store = HashStore()
    detectors = [DeadlockDetector(store, rank) for rank in range(3)]
    # GIVEN rank 0 waits for rank 1, rank 1 waits for rank 2, and rank 2 waits for rank 0
    assert detectors[0].find_deadlock("send", [1]) == "" and detectors[1].find_deadlock("recv", [2]) == ""
    expected = "rank 2 waits in all_reduce, rank 0 waits in send, rank 1 waits in recv"
    assert detectors[2].find_deadlock("all_reduce", [0]) == expected
    # WHEN rank 1 no longer waits THEN the other ranks find no circle
    detectors[1].end()
    assert detectors[2].find_deadlock("all_reduce", [0]) == "" and detectors[0].find_deadlock("send", [1]) == ""


def test_deadlocks_of_many_ranks_are_found_with_one_request_per_rank() -> None:
    """GIVEN 200 ranks that each wait for the next 8 ranks THEN the search finds the shortest circle of 25 ranks."""
    store = HashStore()
    detectors = [DeadlockDetector(store, rank) for rank in range(200)]
    for rank, detector in enumerate(detectors):
        detector._store.set(str(rank), json.dumps(["send", [(rank + more) % 200 for more in range(1, 9)]]).encode())
    assert detectors[0]._shortest_circle().count("waits") == 25


@pytest.mark.parametrize(("rank", "failed", "waits"), [(0, False, True), (0, True, False), (1, False, False), (1, True, False)])
def test_the_first_rank_waits_at_exit_for_the_others_unless_it_failed(
    rank: int, failed: bool, waits: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GIVEN two ranks WHEN one rank ends before the other THEN only rank 0 waits, because it may host the store."""
    monkeypatch.setattr(store_exchange, "SHUTDOWN_GRACE_S", 0.01)
    exchange = StoreExchange(HashStore(), rank, range(2), timeout_s=60, offset_ns=int)
    exchange.leave(failed=failed)
    exchange.leave(failed=failed)  # a second call of `leave` has no effect
    assert capsys.readouterr().err.count("trace: rank 0 ended before rank 1: these ranks did not end within 0.01 s\n") == waits


def test_the_last_rank_to_exit_waits_for_no_other_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store_exchange, "SHUTDOWN_GRACE_S", 0.0)
    store = HashStore()
    ranks = [StoreExchange(store, rank, range(3), timeout_s=60, offset_ns=int) for rank in range(3)]
    for exchange in reversed(ranks):
        exchange.leave(failed=False)
    assert capsys.readouterr().err == ""


def test_the_first_rank_polls_less_often_the_longer_it_waits_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN rank 1 ends 9 s after rank 0 THEN the pauses of rank 0 grow to 1/64 of the elapsed time. Rank 0 therefore polls
    only a few hundred times."""
    store, passed_s, pauses_s = HashStore(), [0.0], list[float]()
    first, second = (StoreExchange(store, rank, range(2), timeout_s=60, offset_ns=int) for rank in (0, 1))

    def pause(seconds: float) -> None:
        pauses_s.append(seconds)
        passed_s[0] += seconds
        if passed_s[0] >= 9:
            second.leave(failed=False)

    monkeypatch.setattr(store_exchange, "sleep", pause)
    monkeypatch.setattr(store_exchange, "perf_counter_ns", lambda: int(passed_s[0] * 1e9))
    first.leave(failed=False)
    assert len(pauses_s) < 1_000 and pauses_s == sorted(pauses_s) and 0.13 < pauses_s[-1] < 0.15


@pytest.mark.parametrize("call", ["check", "multi_get"])
def test_the_error_names_the_operation_if_the_process_with_the_store_ends(call: str) -> None:
    message = RankMessage(0, "all_reduce", 8, "float32")
    exchange = StoreExchange(HashStore(), 0, range(2), timeout_s=60, offset_ns=int)
    pending = exchange.post("all", [0, 1], message)
    exchange._store = Mock(**{f"{call}.side_effect": DistNetworkError("Connection reset by peer")})
    with pytest.raises(RuntimeError, match="waits for all_reduce, but the group's key-value store is gone"):
        pending.messages()


def test_the_error_names_the_late_rank_if_the_process_with_the_store_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN rank 1 waits for the late rank 2 WHEN rank 0 ends the store after its own timeout THEN the error of rank 1 names
    rank 2."""
    monkeypatch.setattr(store_exchange, "LIVENESS_CHECK_AFTER_S", 0.02)
    store, message = HashStore(), RankMessage(0, "all_reduce", 8, "float32")
    first, second = (StoreExchange(store, rank, [0, 4, 6], timeout_s=60, offset_ns=int) for rank in (0, 1))
    first.post("all", [0, 1, 2], message)
    pending = second.post("all", [0, 1, 2], message)
    assert not pending.arrives_within(0.1)
    second._store = Mock(**{"check.side_effect": DistNetworkError("Connection reset by peer")})
    with pytest.raises(RuntimeError, match=r"key-value store is gone: .* has ended; rank 6 had not called all_reduce$"):
        pending.messages()


def test_a_waiting_rank_rarely_checks_for_missing_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a rank that first checks for missing ranks after 20 ms THEN it checks every 20 ms, and not at each poll."""
    monkeypatch.setattr(store_exchange, "LIVENESS_CHECK_AFTER_S", 0.02)
    looks_s: list[float] = []

    def looks(self: StoreExchange, pending: Any, wait: Any, waited_s: float) -> list[int]:
        looks_s.append(waited_s)
        return [1] if len(looks_s) < 4 else []

    monkeypatch.setattr(StoreExchange, "_missing_members", looks)
    message = RankMessage(0, "all_reduce", 8, "float32")
    exchange = StoreExchange(HashStore(), 0, range(2), timeout_s=60, offset_ns=int)
    assert not exchange._await(["never"], PendingExchange(exchange, "all", 0, [0, 1], message))
    assert all(after - before >= 0.02 for before, after in pairwise([0.0, *looks_s]))


def test_a_poll_waits_for_the_messages_and_reports_missing_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a poll of rank 0 WHEN rank 1 posts THEN the poll ends. WHEN rank 1 has ended THEN the poll raises an error at the
    first check."""
    store, passed_s = HashStore(), [0.0]
    first, second = (StoreExchange(store, rank, range(2), timeout_s=60, offset_ns=int) for rank in (0, 1))
    message = RankMessage(0, "all_reduce", 8, "float32")

    def pause(seconds: float) -> None:
        before_s, passed_s[0] = passed_s[0], passed_s[0] + seconds
        if before_s < 2 <= passed_s[0]:
            second.post("all", [0, 1], message)

    monkeypatch.setattr(store_exchange, "sleep", pause)
    monkeypatch.setattr(store_exchange, "perf_counter_ns", lambda: int(passed_s[0] * 1e9))
    pending = first.post("all", [0, 1], message)
    assert not pending.arrives_within(0.0) and passed_s[0] == 0
    assert not pending.arrives_within(1.0) and passed_s[0] == pytest.approx(1.0, abs=0.1)
    assert pending.arrives_within(3.0) and passed_s[0] == pytest.approx(2.0, abs=0.1)
    pending = first.post("all", [0, 1], message)
    second.leave(failed=True)
    assert not pending.arrives_within(0.9)
    both = r"rank 1 of the group ended without calling all_reduce; rank 0 waits in all_reduce of 2 float32 elements"
    with pytest.raises(RuntimeError, match=both):
        pending.arrives_within(0.2)


def test_a_poll_ends_after_the_timeout_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a timeout of 10 s THEN a poll still waits after 9 s, and fails after 11 s."""
    passed_s = [0.0]
    exchange = StoreExchange(HashStore(), 0, range(2), timeout_s=10, offset_ns=int)
    monkeypatch.setattr(store_exchange, "perf_counter_ns", lambda: int(passed_s[0] * 1e9))
    pending = exchange.post("all", [0, 1], RankMessage(0, "all_reduce", 8, "float32"))
    for passed_s[0] in (0.0, 4.0, 9.0):
        assert not pending.arrives_within(0.0)
    passed_s[0] = 11.0
    with pytest.raises(store_exchange.NotCalledInTime, match="rank 1 of the group did not call all_reduce within 10 s"):
        pending.arrives_within(0.0)


@pytest.mark.parametrize(("busy_until_s", "ends_s"), [(0, 10), (9, 18), (1_000, 70)])
def test_the_timeout_excludes_time_in_which_the_missing_rank_is_busy(
    busy_until_s: int, ends_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a timeout of 10 s WHEN the missing rank is busy until 9 s THEN about 8 s do not count. At most 60 s do not count,
    so the wait for a rank in an endless loop ends, too."""
    passed_s, store = [0.0], HashStore()
    detectors = [DeadlockDetector(store, rank) for rank in (0, 1)]
    exchange = StoreExchange(store, 0, range(2), 10, offset_ns=int, deadlocks=detectors[0])
    monkeypatch.setattr(store_exchange, "perf_counter_ns", lambda: int(passed_s[0] * 1e9))
    monkeypatch.setattr(store_exchange, "_processor_ns", lambda _: int(min(passed_s[0], busy_until_s) * 1e9))
    pending = exchange.post("all", [0, 1], RankMessage(0, "all_reduce", 8, "float32"))
    for second in range(ends_s):
        passed_s[0] = float(second)
        assert not pending.arrives_within(0.0)
    passed_s[0] = ends_s + 5.0  # the time between checks grows
    with pytest.raises(store_exchange.NotCalledInTime, match="rank 1 of the group did not call all_reduce within 10 s"):
        pending.arrives_within(0.0)
        pending.arrives_within(0.0)


def test_a_process_that_computes_uses_the_processor() -> None:
    """GIVEN a store that knows the process of rank 0, but not the process of rank 1."""
    detector = DeadlockDetector(HashStore(), 0)
    before_ns = detector.processor_ns(0)
    while detector.processor_ns(0) == before_ns:
        pass
    assert detector.processor_ns(0) > before_ns > 0 == detector.processor_ns(1)


def test_errors_of_a_subgroup_name_the_ranks_of_the_default_group() -> None:
    """GIVEN a group of ranks 5 and 7 whose calls differ THEN the errors name ranks 5 and 7."""
    store = HashStore()
    fifth, seventh = (StoreExchange(store, rank, [5, 7], timeout_s=60, offset_ns=int) for rank in (0, 1))
    pending = fifth.post("all", [0, 1], RankMessage(0, "all_reduce", 8, "float32"))
    seventh.post("all", [0, 1], RankMessage(0, "all_reduce", 12, "float32"))
    with pytest.raises(RuntimeError, match=r"^rank 7 of the group called .* of 3 .*, but rank 5 called .* of 2 "):
        pending.messages()


def test_a_killed_rank_is_named_with_the_operation_of_the_waiting_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed rank cannot report its end, so its process is checked. Processes on other machines are not checked."""
    store, process = HashStore(), subprocess.Popen([sys.executable, "-c", ""])
    detectors = [DeadlockDetector(store, 0)]
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: process.pid)
        detectors.append(DeadlockDetector(store, 1))
    exchange = StoreExchange(store, 0, range(2), 60, offset_ns=int, deadlocks=detectors[0])
    assert detectors[0].ended([0]) == []
    process.wait()
    monkeypatch.setattr(store_exchange, "LIVENESS_CHECK_AFTER_S", 0.0)
    pending = exchange.post("all", [0, 1], RankMessage(0, "all_reduce", 8, "float32"))
    both = "rank 1 of the group ended without calling all_reduce; rank 0 waits in all_reduce of 2 float32 elements"
    with pytest.raises(RuntimeError, match=both):
        pending.messages()
    monkeypatch.setattr(store_exchange, "_processes_id", lambda: "another machine")
    assert DeadlockDetector(store, 0).ended([1]) == []


def test_an_error_names_the_ranks_that_create_different_groups_at_the_same_place() -> None:
    """GIVEN two pairs of ranks that each create only their own group THEN both groups have the same name and the same keys."""
    store = HashStore()
    first, second = (
        StoreExchange(store, place, ranks, 60, int, group_name="1") for place, ranks in ((0, [0, 1]), (1, [2, 3]))
    )
    pending = first.post("all", [0, 1], RankMessage(0, "all_reduce", 8, "float32", group="ranks 0, 1"))
    second.post("all", [0, 1], RankMessage(0, "all_reduce", 8, "float32", group="ranks 2, 3"))
    both = r"rank 0 called all_reduce of 2 .* of group 1 \(ranks 0, 1\), but another rank created this group for ranks 2, 3"
    with pytest.raises(RuntimeError, match=both):
        pending.messages()
