"""Tests collectives in progress: their timeouts, groups of collectives, and the order in which a stream finishes
collectives."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from replayer.cost_model.collective_costs import PositionInStep
from replayer.distributed import collective_values
from replayer.distributed import work as module
from replayer.distributed.work import Called, CapturedWork, CommStream, Part, VirtualWork
from traces.model.trace import NONE

CALL_NS = 5_000_000


class _Refused(Exception):
    pass


class _Work:
    """Stands in for a collective. The test decides whether its messages have arrived."""

    device = NONE

    def __init__(self, end_ns: int, arrived: bool = True) -> None:
        self.end_ns, self.arrived, self.is_finished = end_ns, arrived, False

    def finished_ns(self) -> int:
        return self.end_ns

    def is_completed(self) -> bool:
        return self.arrived

    all_arrived = arrives_soon = is_completed

    def will_write_to(self, tensor: object) -> bool:
        return True

    def finish(self) -> None:
        self.is_finished = True


def _ended(monkeypatch: pytest.MonkeyPatch, end_ns: int | None, speed: int = 1) -> tuple[VirtualWork, list[int]]:
    """Return a collective on the CPU that was called at 5 ms, and a list that receives the times until which the host is
    blocked."""
    blocked: list[int] = []
    scheduler = SimpleNamespace(block=lambda thread, until_ns: blocked.append(until_ns))
    simulator, current = SimpleNamespace(scheduler=scheduler), SimpleNamespace(thread=lambda: None)
    clock = SimpleNamespace(pause=lambda: None, resume=lambda: None, speed=Fraction(speed))
    here = SimpleNamespace(simulator=simulator, current=current, clock=clock)
    monkeypatch.setattr(module, "gpu", lambda: here)

    def refuse(message: object, limit_ns: int) -> None:
        raise _Refused(limit_ns)

    pending: Any = SimpleNamespace()
    message: Any = None
    called = Called(CALL_NS, NONE, message, PositionInStep(0, 0), None, [Part(message, pending, [], None)])
    watchdog: Any = SimpleNamespace(refuse=refuse)
    work = VirtualWork(lambda *_: 0, watchdog, CommStream(NONE), called, [])
    work.end_ns = end_ns
    return work, blocked


@pytest.mark.parametrize("timeout_us", [1, 3_000])
def test_a_wait_with_a_timeout_fails_after_the_timeout_counted_from_the_call(
    timeout_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_ns = timeout_us * 1_000
    work, blocked = _ended(monkeypatch, CALL_NS + limit_ns)
    assert work.wait(timedelta(microseconds=timeout_us)) and blocked == [CALL_NS + limit_ns]
    work, blocked = _ended(monkeypatch, CALL_NS + limit_ns + 1)
    with pytest.raises(_Refused, match=f"^{limit_ns}$"):
        work.wait(timedelta(microseconds=timeout_us))
    assert blocked == [CALL_NS + limit_ns]
    assert work.wait() and blocked == [CALL_NS + limit_ns, CALL_NS + limit_ns + 1]


def test_a_wait_with_a_timeout_fails_before_the_watchdog_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a clock at double speed WHEN the other rank's call is just over 4 ms later THEN a wait of 2 ms fails. The watchdog
    does not check the timeout of the group."""
    work, blocked = _ended(monkeypatch, None, speed=2)
    here: Any = vars(module)["gpu"]()
    here.clock.skips_waits = True
    pending: Any = work._called.parts[0].pending
    pending.messages = lambda: [SimpleNamespace(arrived_ns=CALL_NS + apart) for apart in (0, 4_000_001)]
    work._play = lambda *_: pytest.fail("the watchdog of the group would end the process")
    work._comm_stream.in_flight.append(work)
    with pytest.raises(_Refused, match=r"^2000000$"):
        work.wait(timedelta(milliseconds=2))
    assert blocked == [CALL_NS + 4_000_000]


@pytest.mark.parametrize(("now_ns", "seconds"), [(CALL_NS + 1_000_000, 1.5e-3), (CALL_NS + 9_000_000, 0.0)])
def test_a_wait_with_a_timeout_ends_in_real_time_on_the_wall_clock(
    now_ns: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN another rank that never makes its call THEN a wait with a timeout of 2 ms fails 2 ms after this rank's call. The
    clock runs at double speed."""
    work, blocked = _ended(monkeypatch, None, speed=2)
    here: Any = vars(module)["gpu"]()
    here.clock.skips_waits, here.clock.now_ns = False, lambda: now_ns
    waits_s: list[float] = []
    pending: Any = work._called.parts[0].pending
    pending.arrives_within = waits_s.append
    with pytest.raises(_Refused, match=r"^2000000$"):
        work.wait(timedelta(milliseconds=2))
    assert waits_s == [pytest.approx(seconds)] and blocked == [CALL_NS + 4_000_000]


def test_the_host_waits_for_the_result_of_a_work_object(monkeypatch: pytest.MonkeyPatch) -> None:
    work, blocked = _ended(monkeypatch, CALL_NS + 7)
    assert work.get_future_result().wait() == int(torch._C._distributed_c10d.WorkResult.SUCCESS)  # type: ignore[attr-defined]
    assert blocked == [CALL_NS + 7]


@pytest.mark.parametrize(("skips_waits", "seconds"), [(True, module._LONGEST_POLL_S), (False, 0.0)])
def test_a_poll_waits_for_other_ranks_only_on_a_clock_that_skips_waits(
    skips_waits: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, _ = _ended(monkeypatch, None)
    here: Any = vars(module)["gpu"]()
    here.clock.skips_waits = skips_waits
    waits_s: list[float] = []
    pending: Any = work._called.parts[0].pending
    pending.arrives_within = waits_s.append
    assert not work.is_completed() and waits_s == [seconds]


@pytest.mark.parametrize(("now_ns", "completed"), [(CALL_NS - 1, False), (CALL_NS, True)])
def test_a_collective_is_completed_when_its_end_time_is_reached(
    now_ns: int, completed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, _ = _ended(monkeypatch, CALL_NS)
    monkeypatch.setattr(module, "gpu", lambda: SimpleNamespace(clock=SimpleNamespace(has_reached=now_ns.__ge__)))
    assert work.is_completed() is completed


def test_reading_a_tensor_finishes_the_last_collective_that_all_ranks_have_called() -> None:
    """GIVEN three collectives that write to one tensor WHEN a rank has not called the third one THEN a read finishes only the
    first two."""
    stream, works = CommStream(NONE), [_Work(1), _Work(2), _Work(3, arrived=False)]
    stream.in_flight.extend(works)  # type: ignore[arg-type]
    stream.finish_writes_to([torch.ones(1)], wait=False)
    assert [work.is_finished for work in works] == [True, True, False]


def test_a_poll_finishes_collectives_up_to_the_first_one_that_lacks_messages() -> None:
    stream = CommStream(NONE)
    works: list[Any] = [_Work(1), _Work(2), _Work(3, arrived=False), _Work(4)]
    stream.in_flight = list(works)
    stream.finish_until(None, wait=False)
    assert [work.is_finished for work in works] == [True, True, False, False] and stream.in_flight == works[2:]
    stream.finish_until(works[2])
    assert [work.is_finished for work in works] == [True, True, True, False] and stream.in_flight == works[3:]


@pytest.mark.parametrize(("replayed", "completed"), [(None, False), (_Work(1, arrived=False), False), (_Work(1), True)])
def test_a_captured_collective_is_complete_once_its_graph_was_replayed(
    replayed: Any, completed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "gpu", lambda: SimpleNamespace(launches=SimpleNamespace(check_may_wait=lambda: None)))
    work = CapturedWork.__new__(CapturedWork)
    work._replayed = replayed
    assert work.is_completed() is completed


def test_a_captured_collective_combines_only_values_that_the_ranks_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    assigned: list[Any] = []
    monkeypatch.setattr(collective_values, "assign", lambda outputs, combine, messages: assigned.append(combine(messages)))
    sent: Any = SimpleNamespace(messages=lambda: [1, 2])
    for pending, combine in (([], sum), ([sent], None), ([sent], sum)):
        work = CapturedWork.__new__(CapturedWork)
        call: Any = SimpleNamespace(outputs=[], combine=combine)
        work._values, work._calls = pending, [call]
        work._receive_values()
        assert work._values == []
    assert assigned == [3]
