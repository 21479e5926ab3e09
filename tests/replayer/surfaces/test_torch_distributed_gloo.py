"""Tests gloo's operations on virtual clocks. Gloo itself does not know these clocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from replayer.distributed.rank_message import RankMessage
from replayer.surfaces import torch_distributed_gloo
from replayer.surfaces.torch_distributed_gloo import (
    CALLS,
    GlooCalls,
    _call,
    _integers,
    _message,
    _monitored_barrier,
    _refuse_device_memory,
)
from traces.script.patching import temporarily_set

MS = 1_000_000
OFFSETS_MS = [0, 50, -20, 7, 90]  # offsets of the clocks of the ranks


def message(name: str, count: int = 0, detail: str = "") -> RankMessage:
    return RankMessage(0, name, 4 * count, "float32" if count else "", detail=detail)


class Ranks:
    """The ranks of a gloo group in one process. Each rank has a separate clock, and times are on the clock of the first
    rank."""

    def __init__(self, size: int, timeout_s: float = 100, skips_waits: bool = True, speed: float = 1.0) -> None:
        store = HashStore()
        self.calls = [GlooCalls(store, rank, size, timedelta(seconds=timeout_s)) for rank in range(size)]
        self.ends_ms: list[float] = [-1.0] * size
        self.deadlocks: SimpleNamespace | None = None
        self._clock = {"skips_waits": skips_waits, "speed": speed}

    @contextmanager
    def at(self, rank: int, time_ms: float) -> Iterator[GlooCalls]:
        offset_ns = OFFSETS_MS[rank] * MS

        def block(thread: object, end_ns: int) -> None:
            self.ends_ms[rank] = (end_ns - offset_ns) / MS

        here = SimpleNamespace(
            ranks=SimpleNamespace(read_clock_offset=lambda: offset_ns, deadlocks=self.deadlocks),
            streams=SimpleNamespace(host_now_ns=lambda: int(time_ms * MS) + offset_ns),
            clock=SimpleNamespace(has_reached=(int(time_ms * MS) + offset_ns).__ge__, **self._clock),
            simulator=SimpleNamespace(scheduler=SimpleNamespace(block=block)),
            current=SimpleNamespace(thread=lambda: None),
        )
        with temporarily_set(torch_distributed_gloo, gpu=lambda: here, started=lambda: here):
            yield self.calls[rank]

    def run(self, name: str, times_ms: list[float], *root: int) -> list[float]:
        """Return the end time of each rank's call of an operation. The ranks make the call at the given times."""
        called = []
        for rank, time_ms in enumerate(times_ms):
            with self.at(rank, time_ms) as calls:
                called.append(calls.call(message(name), *root))
        for rank, (time_ms, call) in enumerate(zip(times_ms, called, strict=True)):
            with self.at(rank, time_ms):
                assert call is not None
                call.finish()
        return self.ends_ms


def test_all_ranks_wait_for_the_last_one() -> None:
    assert Ranks(3).run("all_reduce", [100.0, 300.0, 200.0]) == [300.0] * 3


@pytest.mark.parametrize(
    ("late", "waiting"),
    # Rank 2 is the root of five ranks. It sends to 3, then 2 sends to 4 and 3 sends to 0, then 2 sends to 1. Senders wait for
    # receivers.
    [(2, [0, 1, 2, 3, 4]), (3, [0, 2, 3]), (4, [2, 4]), (0, [0, 3]), (1, [1, 2])],
)
def test_ranks_of_a_broadcast_wait_for_their_neighbours_in_the_tree(late: int, waiting: list[int]) -> None:
    times_ms = [1000.0 if rank == late else 0.0 for rank in range(5)]
    assert [rank for rank, end_ms in enumerate(Ranks(5).run("broadcast", times_ms, 2)) if end_ms == 1000.0] == waiting


def test_the_root_of_a_gather_waits_for_all_ranks_and_other_ranks_wait_for_the_root() -> None:
    for name in ("gather", "scatter"):
        assert Ranks(3).run(name, [0.0, 200.0, 300.0], 1) == [200.0, 300.0, 300.0]
    assert Ranks(3).run("reduce", [0.0, 200.0, 300.0], 1) == [0.0, 300.0, 300.0]


def test_sends_and_receives_are_numbered_by_pair_and_tag() -> None:
    ranks, ends_ms = Ranks(2), []
    with ranks.at(0, 100.0) as sender:
        sender.call(message("send"), 1, 5)
        sender.call(message("all_reduce"))
    with ranks.at(0, 400.0) as sender:
        sender.call(message("send"), 1, 6)
    for tag in (6, 5):
        with ranks.at(1, 50.0) as receiver:
            call = receiver.call(message("recv"), 0, tag)
            assert call is not None
            call.finish()
            ends_ms.append(ranks.ends_ms[1])
    assert ends_ms == [400.0, 100.0]


def test_old_messages_in_a_channel_are_not_mistaken_for_new_ones() -> None:
    ranks = Ranks(2)
    with ranks.at(0, 900.0) as sender, temporarily_set(torch_distributed_gloo, _CALLS_KEPT=2):
        for _ in range(3):  # the third call overwrites the first one
            sender.call(message("send"), 1)
        with ranks.at(1, 0.0) as receiver:
            first = receiver.call(message("recv"), 0)
            second = receiver.call(message("recv"), 0)
            assert first is not None and second is not None
            assert not first.posts([0]) and second.posts([0])[0].arrived_ns == (900 + 50) * MS


def test_other_ranks_stop_waiting_if_a_rank_arrives_after_the_timeout() -> None:
    ranks = Ranks(2, timeout_s=2)
    assert ranks.run("barrier", [100.0, 2_100.0]) == [2_100.0] * 2
    late = r"rank 1 called barrier 2\.001 s after rank 0: Timed out waiting 2000ms for recv operation to complete"
    with pytest.raises(RuntimeError, match=late):
        ranks.run("barrier", [100.0, 2_101.0])
    assert ranks.ends_ms[0] == 2_100.0
    # The error names the latest rank.
    with pytest.raises(RuntimeError, match=r"rank 2 called barrier 2\.201 s after rank 0: Timed out"):
        Ranks(3, timeout_s=2).run("barrier", [100.0, 2_150.0, 2_301.0])
    # With a clock of half speed, the script's 2 s take 1 s.
    with pytest.raises(RuntimeError, match="Timed out"):
        Ranks(2, timeout_s=2, speed=0.5).run("barrier", [0.0, 1_001.0])


def test_gloo_waits_in_real_time_on_the_wall_clock_or_with_one_rank() -> None:
    for ranks in (Ranks(2, skips_waits=False), Ranks(1)):
        with ranks.at(0, 100.0) as calls:
            assert calls.call(message("barrier")) is None


def test_a_gloo_work_object_waits_when_the_script_waits() -> None:
    ranks = Ranks(2)
    group, work = HashStore(), Store()  # any objects that can have weak references
    CALLS[group] = ranks.calls[0]
    with ranks.at(1, 500.0) as late:
        late.call(message("all_reduce", 1, "SUM"))
    with ranks.at(0, 100.0):
        assert _call("allreduce", lambda *args: work, group, [torch.ones(1)], dist.AllreduceOptions()) is work
        assert ranks.ends_ms[0] == -1.0
        torch_distributed_gloo._wait(lambda self, *timeout: True, work)
        assert ranks.ends_ms[0] == 500.0


def test_a_gloo_work_object_is_completed_when_the_last_rank_makes_its_call() -> None:
    ranks, group, work = Ranks(2), HashStore(), Store()
    CALLS[group] = ranks.calls[0]
    with ranks.at(1, 500.0) as late:
        late.call(message("all_reduce", 1, "SUM"))
    polls: list[bool] = []
    for time_ms in (100.0, 499.0, 500.0):
        with ranks.at(0, time_ms):
            if not polls:
                _call("allreduce", lambda *args: work, group, [torch.ones(1)], dist.AllreduceOptions())
            polls.append(torch_distributed_gloo._is_completed(lambda self: True, work))
            assert not torch_distributed_gloo._is_completed(lambda self: False, work)
    assert polls == [False, False, True]


@pytest.mark.parametrize("chained", [False, True])
def test_a_future_of_a_gloo_work_object_waits_for_late_ranks(chained: bool) -> None:
    ranks = Ranks(2)
    group, work, made = HashStore(), Waitable(), [HashStore(), HashStore()]
    CALLS[group] = ranks.calls[0]
    with ranks.at(1, 500.0) as late:
        late.call(message("barrier"))
    with ranks.at(0, 100.0):
        _call("barrier", lambda *args: work, group)
        future = torch_distributed_gloo._get_future(lambda self: made[0], work)
        if chained:
            future = torch_distributed_gloo._then(lambda self, callback: made[1], future, print)
        assert ranks.ends_ms[0] == -1.0
        assert torch_distributed_gloo._wait_for_future(lambda self: "value", future) == "value"
        assert ranks.ends_ms[0] == 500.0


class Waitable:
    def wait(self) -> bool:
        return bool(torch_distributed_gloo._wait(lambda self, *timeout: True, self))


def failing(*timeout: timedelta) -> bool:
    raise RuntimeError("Operation timed out!" if timeout else "Connection closed by peer")


def test_the_error_names_ranks_that_call_another_gloo_operation() -> None:
    """GIVEN rank 1 broadcasts and rank 0 reduces THEN rank 0's wait raises an error before the timeout, even if gloo is
    waiting."""
    ranks = Ranks(2)
    with ranks.at(0, 0.0) as calls:
        call = calls.call(message("all_reduce", 3, "SUM"))
        assert call is not None
    with ranks.at(1, 0.0) as other, pytest.raises(RuntimeError, match=r"rank 0 of the group called all_reduce .*, but rank 1"):
        other.call(message("broadcast", 3, "from rank 0"), 0)
    with ranks.at(0, 0.0):
        for wait in (failing, lambda *timeout: True):
            found = r"rank 1 of the group called broadcast of 3 .*, but rank 0 called all_reduce of 3 float32 elements \(SUM\)"
            with pytest.raises(RuntimeError, match=found):
                call.wait(wait)
                call.finish()


@pytest.mark.parametrize("kept", [1, 1024])
def test_a_gloo_call_that_differs_from_the_first_rank_fails_before_gloo_starts(kept: int) -> None:
    """If the sizes differ, gloo itself would end the process with SIGABRT."""
    ranks, groups = Ranks(3), [HashStore() for _ in range(3)]
    called: list[int] = []

    def gather(rank: int, size: int) -> None:
        def call_gloo(*_: object) -> Store:
            called.append(rank)
            return Store()

        CALLS[groups[rank]] = ranks.calls[rank]
        with ranks.at(rank, 0.0), temporarily_set(torch_distributed_gloo, _CALLS_KEPT=kept):
            inputs = [torch.ones(size)]
            _call("allgather", call_gloo, groups[rank], [inputs * 3], inputs)

    for rank in (1, 2, 0):
        gather(rank, 4)  # if one call is kept, the next call overwrites the keys of this call
    gather(2, 4)
    found = "rank 2 of the group called all_gather of 4 float32 elements, but rank 0 called all_gather of 8 float32 elements: "
    with pytest.raises(RuntimeError, match=found):
        gather(0, 8)
    gather(1, 4)
    assert called == [1, 2, 0, 2, 1]


def test_the_description_of_a_call_names_the_reduction_and_the_root() -> None:
    options: Any = dist.ReduceOptions()
    options.rootRank, options.reduceOp = 1, dist.ReduceOp.MAX
    calls = GlooCalls(HashStore(), 0, 2, timedelta(seconds=1))
    calls.global_ranks = [4, 6]
    described = torch_distributed_gloo._message("reduce", [[torch.ones(3)], options], calls)
    assert str(described) == "reduce of 3 float32 elements (MAX, to rank 6)"


def test_mismatched_gloo_calls_fail_before_gloo_runs() -> None:
    """GIVEN a call of rank 0 WHEN rank 1 passes another size or dtype, or calls another operation THEN the error describes both
    calls."""
    ones, root = torch.ones, dist.GatherOptions()
    root.rootRank = 0
    cases: list[tuple[Any, Any, str]] = [
        (("send", [ones(3)], 1, 0), ("recv", [ones(2)], 0, 0), "send of 3 float32 .* called recv of 2 float32"),
        (("gather", [], [ones(4)], root), ("gather", [], [ones(5)], root), "gather of 4 .* called gather of 5"),
        (("scatter", [ones(4)], [], root), ("scatter", [ones(4).int()], [], root), "the dtypes must be equal"),
        (
            ("alltoall_base", ones(4), ones(4), [3, 1], [1, 3]),
            ("alltoall_base", ones(4), ones(4), [2, 2], [1, 3]),
            "rank 0 sends 3 elements to rank 1, which expects 2",
        ),
        (("alltoall_base", ones(2), ones(2), [], []), ("barrier",), "called all_to_all_single .* called barrier"),
    ]
    for first, second, text in cases:
        ranks = Ranks(2)
        with ranks.at(0, 0.0) as calls:
            calls.call(_message(first[0], first[1:], calls), *_integers(first[1:]))
        with ranks.at(1, 0.0) as calls, pytest.raises(RuntimeError, match=text):
            calls.call(_message(second[0], second[1:], calls), *_integers(second[1:]))


def test_gloo_can_receive_into_a_larger_tensor() -> None:
    ranks = Ranks(2)
    # The test tries both orders of the ranks.
    for rank, name, count in ((0, "send", 2), (1, "recv", 3), (1, "recv", 3), (0, "send", 2)):
        with ranks.at(rank, 0.0) as calls:
            assert calls.call(message(name, count), 1 - rank) is not None


def test_the_error_names_a_rank_that_did_not_call_a_gloo_operation() -> None:
    """GIVEN a group of three ranks WHEN rank 6 ends without calling the operation THEN the errors of the other ranks name rank
    6."""
    ranks = Ranks(3)
    for calls in ranks.calls:
        calls.global_ranks = [4, 6, 8]
    with ranks.at(2, 0.0) as last:
        last.call(message("barrier"))
    with ranks.at(0, 0.0) as first:
        call = first.call(message("barrier"))
        assert call is not None
        with pytest.raises(RuntimeError, match=r"^rank 6 of the group did not call barrier, but rank 4 waits for it: "):
            call.wait(lambda *timeout: failing())


def test_the_error_names_a_gloo_sender_that_never_sends() -> None:
    ranks = Ranks(3)
    with ranks.at(0, 0.0) as receiver:
        call = receiver.call(message("recv"), 1)
        assert call is not None
        with pytest.raises(RuntimeError, match=r"^rank 1 of the group did not call send, but rank 0 waits for it: "):
            call.wait(lambda *timeout: failing())
    with ranks.at(1, 0.0) as sender:
        sender.call(message("send"), 0)
    with ranks.at(0, 0.0), pytest.raises(RuntimeError, match=r"^Connection closed by peer$"):
        call.wait(lambda *timeout: failing())


def test_the_error_names_ranks_that_wait_for_each_other_in_gloo_and_nccl() -> None:
    """GIVEN rank 1 waits in NCCL WHEN rank 0 waits for rank 1 in gloo THEN the error says that they wait for each other."""
    ranks = Ranks(2)
    waits = {"barrier of gloo": "rank 0 waits"}
    ranks.deadlocks = SimpleNamespace(find_deadlock=lambda wait, missing: waits[wait] * (missing == [1]), end=lambda: None)
    with ranks.at(0, 0.0) as calls:
        call = calls.call(message("barrier"))
        assert call is not None
        with pytest.raises(RuntimeError, match="these ranks wait for each other: rank 0 waits; gloo would hang here"):
            call.wait(failing)


def test_roots_peers_and_tags_are_found_in_the_arguments() -> None:
    options = dist.BroadcastOptions()
    options.rootRank = 3
    assert _integers([[torch.ones(1)], options]) == [3]
    assert _integers([[torch.ones(1)], 2, 5, True]) == [2, 5]


def test_gloo_rejects_sends_and_receives_of_cuda_tensors() -> None:
    # The table of backends in PyTorch's documentation says that gloo does not support this. Gloo would read from the tensor's
    # address.
    with pytest.raises(RuntimeError, match="Bad address"):
        _refuse_device_memory()


def _after_barrier(
    arrived_ms: list[float],
    rank: int = 0,
    timeout: timedelta | None = None,
    speed: float = 1.0,
    wait_all_ranks: bool = False,
) -> tuple[float, str]:
    """Return the time in ms at which this rank leaves the barrier, and its error. The ranks call the barrier at the given
    times."""
    ranks, group, called = Ranks(len(arrived_ms), 7, speed=speed), HashStore(), []
    CALLS[group] = ranks.calls[rank]
    for other, time_ms in enumerate(arrived_ms):
        if other != rank:
            with ranks.at(other, time_ms) as calls:
                calls.call(message("barrier"))
    with ranks.at(rank, arrived_ms[rank]):
        try:
            _monitored_barrier(lambda *args: called.append(args[1:]), group, timeout, wait_all_ranks)
            error = ""
        except RuntimeError as raised:
            error = str(raised)
    assert called == [(timeout, wait_all_ranks)]
    return ranks.ends_ms[rank], error


def test_ranks_leave_a_monitored_barrier_when_the_last_arrives() -> None:
    for rank in range(3):
        assert _after_barrier([100.0, 300.0, 200.0], rank) == (300.0, "")
    assert _after_barrier([300.0, 100.0, 200.0], 1) == (300.0, "")
    assert _after_barrier([300.0]) == (-1.0, "")
    # The last rank arrives exactly at the timeout, which begins when rank 0 arrives.
    assert _after_barrier([100.0, 2_100.0], 0, timedelta(seconds=2)) == (2_100.0, "")


@pytest.mark.parametrize("limit_ms", [2_000, 500, 7_000])
def test_a_monitored_barrier_names_the_ranks_that_arrive_after_its_timeout(limit_ms: int) -> None:
    timeout = None if limit_ms == 7_000 else timedelta(milliseconds=limit_ms)  # None stands for the timeout of the group
    times = [100.0, 100.001 + limit_ms, 90.0, 200.0 + limit_ms]
    end_ms, failed = 100.0 + limit_ms, f"failed to pass monitoredBarrier in {limit_ms} ms"
    assert _after_barrier(times, 0, timeout) == (end_ms, f"[Rank 0]: Rank 1 {failed}")
    assert _after_barrier(times, 0, timeout, wait_all_ranks=True) == (end_ms, f"[Rank 0]: Ranks 1, 3 {failed}")
    blocked_ms, error = _after_barrier(times, 2, timeout)
    assert blocked_ms == end_ms and error.startswith("Rank 2 successfully reached monitoredBarrier, but received errors")
    # The clock of a late rank does not go back.
    assert _after_barrier(times, 3, timeout)[0] == 200.0 + limit_ms


def test_the_timeout_of_a_monitored_barrier_is_measured_on_the_clock_of_the_script() -> None:
    # With a clock of half speed, the script's 2 s take 1 s.
    assert _after_barrier([0.0, 1_000.0], 0, timedelta(seconds=2), speed=0.5) == (1_000.0, "")
    blocked_ms, error = _after_barrier([0.0, 1_001.0], 0, timedelta(seconds=2), speed=0.5)
    assert blocked_ms == 1_000.0 and error


def test_without_virtual_gpus_a_monitored_barrier_only_calls_gloo() -> None:
    called: list[object] = []
    _monitored_barrier(lambda *args: called.append(args[1:]), HashStore())
    assert called == [(None, False)]
