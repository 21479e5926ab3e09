"""Tests when work was launched, and why some launches take long. Times are in microseconds."""

from __future__ import annotations

import numpy as np

from tests.traces.analyses.test_waits import Call, Work, recorded
from tests.traces.handmade import US
from traces.analyses.idle import IdleCall, idle_calls, idle_times
from traces.analyses.launches import (
    FULL,
    LOADED,
    NOT_VISIBLE,
    WAITED,
    launch_delay_ns,
    launch_figures,
    launched_ns,
    long_launches,
    queue_length,
)
from traces.model.trace import Steps

COPY = "Memcpy DtoH (Device -> Pageable)"


def test_a_kernel_is_launched_when_its_call_returns_or_earlier_when_it_starts() -> None:
    calls: list[Call] = [("cudaLaunchKernel", 0, 5), ("cudaLaunchKernel", 10, 900), ("cudaMemcpyAsync", 1000, 1220)]
    work: list[Work] = [(0, 7, "a", 3, 8, 0), (0, 7, "b", 930, 1200, 1), (0, 7, COPY, 1202, 1210, 2)]
    found = launched_ns(recorded(calls, work), np.arange(3)) // US
    # The first kernel began before its launch call returned, the second after. The call of the copy also waited for the copy.
    assert found.tolist() == [3, 900, 1000]
    # The delay of a launch counts from the end of its call. The delay is 0 if the work began earlier.
    assert (launch_delay_ns(recorded(calls, work), np.arange(3)) // US).tolist() == [0, 30, 0]


def test_idle_time_during_a_long_launch_call_belongs_to_the_host() -> None:
    """GIVEN a launch call that takes 404 ms to load kernels WHEN its kernel begins 20 us after the call returns THEN 404 ms of
    idle time belong to the host."""
    trace = recorded([("cudaLaunchKernel", 0, 404_000)], [(0, 7, "gemm", 404_020, 405_000, 0)])
    trace.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[405_000 * US])
    of = idle_times(trace)["cuda:0"]
    assert of.by_reason["host"] == 404_000 * US and of.by_reason["launch"] == 20 * US


def test_long_launch_calls_are_explained_by_a_wait_or_a_full_queue_or_loading() -> None:
    def reasons(calls: list[Call], work: list[Work]) -> list[tuple[str, str, int, int]]:
        return [(of.call, of.reason, of.count, of.host_ns // US) for of in long_launches(recorded(calls, work))]

    # GIVEN two launches of the same kernel THEN only the first launch can have loaded the kernel
    calls: list[Call] = [("cudaLaunchKernel", 0, 500), ("cudaLaunchKernel", 600, 800)]
    assert reasons(calls, [(0, 7, "a", 510, 520, 0), (0, 7, "a", 810, 820, 1)]) == [
        ("cudaLaunchKernel", LOADED, 1, 500),
        ("cudaLaunchKernel", NOT_VISIBLE, 1, 200),
    ]
    # GIVEN a long call of the first copy THEN loading a kernel does not explain it
    assert reasons([("cudaMemcpyAsync", 0, 500)], [(0, 7, COPY, 510, 520, 0)]) == [("cudaMemcpyAsync", NOT_VISIBLE, 1, 500)]
    # GIVEN a copy call that waited 1190 us for a kernel
    waited: list[Work] = [(0, 7, "a", 10, 1200, 0), (0, 7, COPY, 1202, 1210, 1)]
    assert reasons([("cudaLaunchKernel", 0, 5), ("cudaMemcpyAsync", 20, 1220)], waited) == [
        ("cudaMemcpyAsync", WAITED, 1, 1200)
    ]
    # GIVEN 1000 launch calls of 1 us while the first kernel still runs, and then a launch call of 400 us
    many: list[Call] = [("cudaLaunchKernel", at, at + 1) for at in range(1000)]
    queued: list[Work] = [(0, 7, "a", 2000 + 10 * at, 2010 + 10 * at, at) for at in range(1001)]
    assert reasons([*many, ("cudaLaunchKernel", 1000, 1400)], queued) == [("cudaLaunchKernel", FULL, 1, 400)]
    assert reasons([*many[1:], ("cudaLaunchKernel", 1000, 1400)], queued[:1000]) == [("cudaLaunchKernel", NOT_VISIBLE, 1, 400)]


def test_a_long_graph_launch_is_not_explained_by_kernel_loading() -> None:
    calls: list[Call] = [("hipGraphLaunch", 0, 500), ("cudaLaunchKernel", 600, 800)]
    trace = recorded(calls, [(0, 7, "a", 510, 520, 0), (0, 7, "b", 520, 530, 0), (0, 7, "c", 810, 820, 1)])
    assert {of.call: of.reason for of in long_launches(trace)} == {"hipGraphLaunch": NOT_VISIBLE, "cudaLaunchKernel": LOADED}


def test_the_launch_time_of_a_kernel_without_a_launch_call_is_its_start() -> None:
    """GIVEN a replay, which has no launch calls THEN a kernel is launched at the end of its op, or when the kernel starts if
    that is earlier."""
    calls: list[Call] = [("aten::mm", 0, 50), ("aten::mm", 60, 300)]
    found = launched_ns(recorded(calls, [(0, 7, "a", 80, 90, 0), (0, 7, "b", 200, 400, 1)]), np.arange(2)) // US
    assert found.tolist() == [50, 200]


def test_each_stream_has_a_separate_launch_queue() -> None:
    # GIVEN two launches on one stream, one launch on another stream, and one launch on another device
    calls: list[Call] = [("cudaLaunchKernel", at, at + 1) for at in (0, 10, 12, 14)]
    work: list[Work] = [(0, 7, "a", 20, 40, 0), (0, 7, "b", 40, 50, 1), (0, 8, "c", 15, 20, 2), (1, 7, "d", 16, 20, 3)]
    trace = recorded(calls, [*work, (0, 7, "earlier", 1, 2, -1)])
    queue = queue_length(trace, 0, 7)
    assert (queue.time_ns // US).tolist() == [0, 10, 20, 40] and queue.length.tolist() == [1, 2, 1, 0]
    assert queue.mean == (1 * 10 + 2 * 10 + 1 * 20) / 40
    found = {(of.device, of.stream): (of.count, of.delay_median_ns // US, of.queue_most) for of in launch_figures(trace)}
    # The launch delays on the first stream are 19 and 29 us.
    assert found == {("cuda:0", 7): (2, 24, 2), ("cuda:0", 8): (1, 2, 1), ("cuda:1", 7): (1, 1, 1)}


def test_a_long_launch_call_is_explained_by_loading_the_kernel() -> None:
    # GIVEN a second launch call of the same kernel that takes 200 us and contains a call that loads a module
    calls: list[Call] = [("cudaLaunchKernel", 0, 5), ("cudaLaunchKernel", 10, 210), ("cuModuleLoadData", 20, 200)]
    trace = recorded(calls, [(0, 7, "a", 6, 8, 0), (0, 7, "a", 220, 230, 1)])
    trace.host.parent[2] = 1
    assert [(of.call, of.reason) for of in long_launches(trace)] == [("cudaLaunchKernel", LOADED)]


def test_the_launch_queue_contains_only_launches_that_have_not_started() -> None:
    # GIVEN 1500 launches on one stream and 1000 on another WHEN 600 of the 1500 kernels have ended before a call of 100 us
    calls: list[Call] = [("cudaLaunchKernel", at, at + 1) for at in range(2500)]
    work: list[Work] = [(0, 7, "a", at + 1, at + 2 if at < 600 else 9000 + at, at) for at in range(1500)]
    work += [(0, 8, "a", 9000 + at, 9001 + at, at) for at in range(1500, 2500)]
    trace = recorded([*calls, ("cudaLaunchKernel", 3000, 3100)], [*work, (0, 7, "a", 20000, 20001, 2500)])
    assert [(of.reason, of.count) for of in long_launches(trace)] == [(NOT_VISIBLE, 1)]


def test_the_runtime_call_during_which_the_gpu_is_idle_longest_is_found() -> None:
    """GIVEN kernels from 10 to 20 us and from 100 to 110 us WHEN the host is in hipFree from 15 to 75 us THEN the GPU is idle
    for 55 us during hipFree. The host causes 65 us of idle time in total."""
    calls: list[Call] = [("hipLaunchKernel", 0, 5), ("hipFree", 15, 75), ("hipLaunchKernel", 75, 80)]
    trace = recorded(calls, [(0, 7, "a", 10, 20, 0), (0, 7, "b", 100, 110, 2)])
    trace.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[110 * US])
    assert idle_calls(trace) == [
        IdleCall("hipFree", 1, 55 * US, 55 / 65),
        IdleCall("hipLaunchKernel", 2, 10 * US, 10 / 65),
    ]


def test_idle_time_before_the_first_kernel_has_an_unknown_reason() -> None:
    """Work launched before the recording may have kept the GPU busy until the first recorded work."""
    calls: list[Call] = [("cudaLaunchKernel", 0, 5), ("cudaLaunchKernel", 10, 15)]
    trace = recorded(calls, [(0, 7, "a", 2_005, 3_000, 0), (0, 7, "b", 5_000, 5_100, 1)])
    trace.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[20 * US])
    reasons = idle_times(trace)["cuda:0"].by_reason
    assert {name: ns // US for name, ns in reasons.items() if ns} == {"host": 5, "unknown": 2_000, "launch": 2_000}
