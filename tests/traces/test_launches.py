"""When work had been launched, and why some launches take long. Times are in microseconds."""

from __future__ import annotations

import numpy as np

from tests.traces.handmade import US
from tests.traces.test_waits import Call, Work, recorded
from traces.idle import idle_times
from traces.launches import FULL, LOADED, NOT_VISIBLE, WAITED, launch_delay_ns, launched_ns, long_launches
from traces.model import Steps

COPY = "Memcpy DtoH (Device -> Pageable)"


def test_work_is_launched_when_its_call_returns_or_when_it_begins() -> None:
    calls: list[Call] = [("cudaLaunchKernel", 0, 5), ("cudaLaunchKernel", 10, 900), ("cudaMemcpyAsync", 1000, 1220)]
    work: list[Work] = [(0, 7, "a", 3, 8, 0), (0, 7, "b", 930, 1200, 1), (0, 7, COPY, 1202, 1210, 2)]
    found = launched_ns(recorded(calls, work), np.arange(3)) // US
    # The first began before its call returned, the second after; the copy was launched, and then waited for.
    assert found.tolist() == [3, 900, 1000]
    # A launch's delay counts from the end of the call; 0 if the work began before.
    assert (launch_delay_ns(recorded(calls, work), np.arange(3)) // US).tolist() == [0, 30, 0]


def test_a_long_launch_call_is_host_time() -> None:
    """A call of 404 ms loads kernels; its kernel begins 20 us after its return."""
    trace = recorded([("cudaLaunchKernel", 0, 404_000)], [(0, 7, "gemm", 404_020, 405_000, 0)])
    trace.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[405_000 * US])
    of = idle_times(trace)["cuda:0"]
    assert of.by_reason["host"] == 404_000 * US and of.by_reason["launch"] == 20 * US


def test_why_launches_take_long() -> None:
    def reasons(calls: list[Call], work: list[Work]) -> list[tuple[str, str, int, int]]:
        return [(of.call, of.reason, of.count, of.host_ns // US) for of in long_launches(recorded(calls, work))]

    # GIVEN the first launch of a kernel, then a second one THEN only the first can have loaded it
    calls: list[Call] = [("cudaLaunchKernel", 0, 500), ("cudaLaunchKernel", 600, 800)]
    assert reasons(calls, [(0, 7, "a", 510, 520, 0), (0, 7, "a", 810, 820, 1)]) == [
        ("cudaLaunchKernel", LOADED, 1, 500),
        ("cudaLaunchKernel", NOT_VISIBLE, 1, 200),
    ]
    # GIVEN a copy that waited for 1190 us
    waited: list[Work] = [(0, 7, "a", 10, 1200, 0), (0, 7, COPY, 1202, 1210, 1)]
    assert reasons([("cudaLaunchKernel", 0, 5), ("cudaMemcpyAsync", 20, 1220)], waited) == [
        ("cudaMemcpyAsync", WAITED, 1, 1200)
    ]
    # GIVEN 1000 launches of 1 us each, while the first kernel still runs, and then one of 400 us
    many: list[Call] = [("cudaLaunchKernel", at, at + 1) for at in range(1000)]
    queued: list[Work] = [(0, 7, "a", 2000 + 10 * at, 2010 + 10 * at, at) for at in range(1001)]
    assert reasons([*many, ("cudaLaunchKernel", 1000, 1400)], queued) == [("cudaLaunchKernel", FULL, 1, 400)]
    assert reasons([*many[1:], ("cudaLaunchKernel", 1000, 1400)], queued[:1000]) == [("cudaLaunchKernel", NOT_VISIBLE, 1, 400)]


def test_work_that_an_op_launches_by_itself() -> None:
    """In a replay there are no launching calls: the first op ends before its kernel begins, the second one after."""
    calls: list[Call] = [("aten::mm", 0, 50), ("aten::mm", 60, 300)]
    found = launched_ns(recorded(calls, [(0, 7, "a", 80, 90, 0), (0, 7, "b", 200, 400, 1)]), np.arange(2)) // US
    assert found.tolist() == [50, 200]
