"""Tests the timeouts of collectives with a late rank, and the offsets between the clocks of ranks."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from replayer.distributed import clock_offset, watchdog
from replayer.distributed.clock_offset import ClockOffset, FirstRankMissing
from replayer.distributed.rank_message import RankMessage
from replayer.distributed.watchdog import Watchdog

S = 1_000_000_000


@pytest.mark.parametrize(
    ("first_ns", "last_ns", "speed", "waits_until_ns", "says"),
    [
        (90 * S, 104 * S, 1, None, None),
        (96 * S, 110 * S, 1, None, None),
        (90 * S - 1, 104 * S, 1, 110 * S, "rank 0 called all_reduce 10 s before rank 3"),
        (96 * S, 112 * S, 1, 110 * S, "rank 5 called all_reduce 12 s after rank 3"),
        (80 * S, 120 * S, 2, None, None),  # on a clock at double speed, a timeout of 10 s is 20 s
        (70 * S, 100 * S, 2, 120 * S, "rank 0 called all_reduce 15 s before rank 3"),
        (100 * S, 130 * S, 2, 120 * S, "rank 5 called all_reduce 15 s after rank 3"),
    ],
)
def test_calls_of_a_collective_fail_if_they_are_further_apart_than_the_timeout(
    first_ns: int, last_ns: int, speed: int, waits_until_ns: int | None, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout is 10 s, and rank 3 makes its call at 100 s."""
    waited: list[int] = []
    clock = SimpleNamespace(speed=speed, wait_until=waited.append)
    monkeypatch.setattr(watchdog, "gpu", lambda: SimpleNamespace(clock=clock))
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    message: Any = RankMessage(100 * S, "all_reduce", 28, "float32")
    arrived_ns = {0: first_ns, 3: 100 * S, 5: last_ns}
    if says is None:
        Watchdog(3, 10.0).check(message, arrived_ns)
        assert not waited
        return
    with pytest.raises(dist.DistBackendError) as error:
        Watchdog(3, 10.0).check(message, arrived_ns)
    assert str(error.value).endswith(f"({says})") and "OpType=ALLREDUCE, NumelIn=7, Timeout(ms)=10000)" in str(error.value)
    assert waited == [waits_until_ns]


@pytest.mark.parametrize(
    ("environment", "operation", "waits_until_ns"),
    [
        ({"ASYNC_ERROR_HANDLING": "0"}, "all_reduce", None),
        ({"ASYNC_ERROR_HANDLING": "0"}, "barrier", None),
        ({"ASYNC_ERROR_HANDLING": "2"}, "all_reduce", 110 * S),
        ({"ASYNC_ERROR_HANDLING": "0", "BLOCKING_WAIT": "1"}, "all_reduce", 110 * S),
        ({"BLOCKING_WAIT": "True"}, "all_reduce", 110 * S),
    ],
)
def test_the_error_handling_mode_decides_what_happens_to_a_rank_that_is_late(
    environment: dict[str, str], operation: str, waits_until_ns: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout is 10 s, and a rank makes its call 20 s after the first rank."""
    waited: list[int] = []
    clock = SimpleNamespace(speed=1, wait_until=waited.append)
    monkeypatch.setattr(watchdog, "gpu", lambda: SimpleNamespace(clock=clock))
    for name, value in environment.items():
        monkeypatch.setenv(f"TORCH_NCCL_{name}", value)
    late = RankMessage(100 * S, operation, 4, "float32"), {0: 100 * S, 1: 120 * S}
    if waits_until_ns is None:
        Watchdog(0, 10.0).check(*late)
        return
    with pytest.raises(dist.DistBackendError, match=f"rank 1 called {operation} 20 s after rank 0"):
        Watchdog(0, 10.0).check(*late)
    assert waited == [waits_until_ns]


@pytest.mark.parametrize("handling", ["0", "3"])
def test_detailed_debugging_of_collectives_enables_error_handling(handling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", handling)
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    assert watchdog._error_handling() == "3"


def test_the_error_of_a_receiver_names_the_late_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "gpu", lambda: SimpleNamespace(clock=SimpleNamespace(speed=1, wait_until=lambda _: None)))
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    with pytest.raises(dist.DistBackendError, match="rank 1 called send 20 s after rank 0"):
        Watchdog(0, 10.0).check(RankMessage(100 * S, "recv", 4, "float32"), {0: 100 * S, 1: 120 * S})


def test_a_wait_with_its_own_timeout_names_the_timeout_in_milliseconds() -> None:
    message: Any = SimpleNamespace(operation="all_gather_into_tensor", count=2)
    with pytest.raises(dist.DistBackendError, match=r"OpType=_ALLGATHER_BASE.*Timeout\(ms\)=1500\) ran for 1500 milliseconds"):
        Watchdog(0, 10.0).refuse(message, 1_500_000_000)


class _Store(dict[str, bytes]):
    """Stands in for a store of torch.distributed."""

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    set = dict.__setitem__
    get = dict.__getitem__  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("flows", "boot", "ahead_ns"),
    [
        (False, "same", 700),  # the offset of clocks without real time is the difference of their times
        (True, "same", 700 - 2 * 40),  # 40 ns of real time passed between the two readings, which are 80 ns on this clock
        (True, "other", 700 - 2 * 90),  # two machines use the time of day to measure the time between the readings
    ],
)
def test_the_offset_of_a_clock_excludes_the_time_between_two_starts(
    flows: bool, boot: str, ahead_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock: Any = SimpleNamespace(now_ns=lambda: 1000, speed=2, flows=flows)
    monkeypatch.setattr(clock_offset, "perf_counter_ns", lambda: 5040)
    monkeypatch.setattr(clock_offset, "machine_unix_ns", lambda: 9090)
    monkeypatch.setattr(clock_offset, "boot_id", lambda: "same")
    store = _Store()
    assert ClockOffset(store, 0, clock, 1.0).ns() == 0
    assert json.loads(store[clock_offset._KEY]) == [1000, 5040, 9090, "same"]
    store[clock_offset._KEY] = json.dumps([300, 5000, 9000, boot]).encode()
    assert ClockOffset(store, 1, clock, 1.0).ns() == ahead_ns


def test_a_rank_stops_waiting_for_the_first_rank_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a clock that advances by half a second at each reading THEN a timeout of 2 s ends at the fourth reading."""
    looks = iter(range(10))
    clock: Any = SimpleNamespace(now_ns=lambda: 0, speed=1, flows=False)
    pauses_s: list[float] = []
    monkeypatch.setattr(clock_offset, "sleep", pauses_s.append)
    offset = ClockOffset(_Store(), 1, clock, 2.0)
    monkeypatch.setattr(clock_offset, "perf_counter_ns", lambda: next(looks) * S // 2)
    with pytest.raises(FirstRankMissing, match="rank 0 did not join the process group within 2 s"):
        offset.ns()
    assert len(pauses_s) == 3 and pauses_s == sorted(pauses_s)
