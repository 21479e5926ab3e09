"""Tests which calls of the host count as waits for the GPU.

Times are in microseconds. The usual kernel runs from 10 to 5000.
"""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tests.traces.handmade import US
from traces.analyses.waits import HostWaits, host_waits
from traces.figures import measure
from traces.model.trace import Device, DeviceKind, DeviceSpans, HostKind, HostSpans, Thread, Trace

KERNEL = (0, 7, "gemm", 10, 5000, 0)  # device, stream, name, start, end, row of the launch call

Call = tuple[str, float, float]
Work = tuple[int, int, str, float, float, int]


def recorded(calls: list[Call], work: list[Work]) -> Trace:
    """Return a trace of one thread with the given calls (name, start, end) and GPU work. Names of ops begin with "aten"."""
    trace = Trace(devices=[Device(0, 0, "GPU"), Device(0, 1, "GPU")], threads=[Thread(0, 1, "main", "main")])
    add = trace.strings.add
    starts, ends = [round(start * US) for _, start, _ in calls], [round(end * US) for _, _, end in calls]
    trace.host = HostSpans.of(
        thread=[0] * len(calls),
        kind=[HostKind.OP if name.startswith("aten") else HostKind.RUNTIME for name, _, _ in calls],
        name=[add(name) for name, _, _ in calls],
        start_ns=starts,
        duration_ns=[end - start for start, end in zip(starts, ends, strict=True)],
    )
    trace.device = DeviceSpans.of(
        device=[of[0] for of in work],
        stream=[of[1] for of in work],
        kind=[DeviceKind.MEMCPY if of[2].startswith("Memcpy") else DeviceKind.KERNEL for of in work],
        name=[add(of[2]) for of in work],
        start_ns=[round(of[3] * US) for of in work],
        duration_ns=[round((of[4] - of[3]) * US) for of in work],
        launch=[of[5] for of in work],
    )
    return trace


def told(waits: HostWaits) -> list[tuple[float, float, int, int]]:
    """Return the start, the end, the row of the call and the row of the work for each wait."""
    times = zip((waits.start_ns / US).tolist(), (waits.end_ns / US).tolist(), strict=True)
    return [(*of, call, work) for of, call, work in zip(times, waits.call.tolist(), waits.work.tolist(), strict=True)]


LAUNCH = ("cudaLaunchKernel", 0, 5)


@pytest.mark.parametrize(
    "name", ["cudaDeviceSynchronize", "cudaMalloc", "hipFree", "someCallNobodyKnows", "cudaLaunchKernel", "cuModuleLoadData"]
)
def test_a_call_that_returns_when_gpu_work_ends_counts_as_a_wait(name: str) -> None:
    trace = recorded([LAUNCH, (name, 20, 5010)], [KERNEL])
    assert told(host_waits(trace, 0)) == [(20, 5000, 1, 0)]


@pytest.mark.parametrize(
    "call",
    [
        ("cudaMalloc", 20, 5600),  # the call returned long after the work had ended
        ("cudaMalloc", 20, 4000),  # the call returned while the work was still running
        ("cudaMalloc", 5001, 5400),  # the work had ended before the call began
        ("cudaLaunchKernel", 4980, 5002),  # a call this short may return just after a kernel by chance
        ("cudaDeviceSynchronize", 5001, 5004),
    ],
)
def test_a_call_is_not_a_wait_if_no_gpu_work_ends_when_it_returns(call: Call) -> None:
    assert not len(host_waits(recorded([LAUNCH, call], [KERNEL]), 0))


def test_a_synchronization_call_is_a_wait_even_if_it_returns_late() -> None:
    trace = recorded([LAUNCH, ("cudaStreamSynchronize", 20, 5600)], [KERNEL])
    assert told(host_waits(trace, 0)) == [(20, 5000, 1, 0)]


def test_an_event_synchronization_counts_as_a_wait_even_if_later_work_still_runs() -> None:
    trace = recorded(
        [LAUNCH, ("cudaLaunchKernel", 6, 8), ("cudaEventSynchronize", 20, 5010)], [KERNEL, (0, 7, "b", 5001, 9000, 1)]
    )
    assert told(host_waits(trace, 0)) == [(20, 5000, 2, 0)]


@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "hipMemcpyWithStream", "cudaMemcpy", "cuMemcpyDtoHAsync_v2"])
def test_a_pageable_copy_to_the_host_returns_after_earlier_work_and_the_copy_end(call: str) -> None:
    copy = (0, 7, "Memcpy DtoH (Device -> Pageable)", 5005, 5008, 1)
    assert told(host_waits(recorded([LAUNCH, (call, 20, 5018)], [KERNEL, copy]), 0)) == [(20, 5008, 1, 1)]
    # WHEN no earlier work is queued THEN the call waits only for its own copy
    alone = recorded([(call, 20, 60)], [(0, 7, "Memcpy DtoH (Device -> Pageable)", 40, 55, 0)])
    assert told(host_waits(alone, 0)) == [(40, 55, 0, 0)]


def test_a_copy_from_pageable_memory_waits_until_its_last_piece_is_buffered() -> None:
    copy = (0, 7, "Memcpy HtoD (Pageable -> Device)", 30, 2080, 0)
    assert told(host_waits(recorded([("cudaMemcpyAsync", 20, 2000)], [copy]), 0)) == [(30, 2000, 0, 0)]
    # WHEN the copy is small THEN its data is buffered immediately, and the copy runs after the earlier work of the stream
    behind = recorded(
        [LAUNCH, ("cudaMemcpyAsync", 20, 30)], [KERNEL, (0, 7, "Memcpy HtoD (Pageable -> Device)", 5001, 5003, 1)]
    )
    assert not len(host_waits(behind, 0))


def test_a_copy_of_pinned_memory_does_not_wait() -> None:
    copy = (0, 7, "Memcpy DtoH (Device -> Pinned)", 5005, 5008, 1)
    assert not len(host_waits(recorded([LAUNCH, ("cudaMemcpyAsync", 20, 30)], [KERNEL, copy]), 0))


def test_a_loop_that_queries_an_event_counts_as_one_wait() -> None:
    queries: list[Call] = [("cudaEventQuery", at, at + 2) for at in range(100, 5100, 100)]
    trace = recorded([LAUNCH, *queries], [KERNEL])
    # The query at 4900 us found the work running, and the query at 5000 us found it ended.
    assert told(host_waits(trace, 0)) == [(100, 5000, 50, 0)]
    # WHEN the loop continues after the work has ended THEN the loop did not wait for this work
    later: list[Call] = [*queries, ("cudaEventQuery", 5100, 5102)]
    assert not len(host_waits(recorded([LAUNCH, *later], [KERNEL]), 0))
    # WHEN an op runs between two queries THEN the queries are not one loop
    broken: list[Call] = [*queries[:-1], ("aten::add", 4950, 4960), queries[-1]]
    assert not len(host_waits(recorded([LAUNCH, *broken], [KERNEL]), 0))


def test_event_queries_of_a_thread_that_launches_nothing_are_ignored() -> None:
    """The watchdog thread of NCCL queries events and launches nothing."""
    queries: list[Call] = [("cudaEventQuery", at, at + 2) for at in range(100, 5100, 100)]
    trace = recorded([LAUNCH, *queries], [KERNEL])
    trace.threads.append(Thread(0, 2, "watchdog", "other"))
    trace.host.thread[1:] = 1
    assert not len(host_waits(trace, 0))


def test_a_call_may_wait_for_only_one_of_two_streams() -> None:
    other = (0, 8, "long", 10, 9000, 0)
    assert told(host_waits(recorded([LAUNCH, ("cudaMalloc", 20, 5010)], [KERNEL, other]), 0)) == [(20, 5000, 1, 0)]


def test_a_wait_is_found_if_the_clocks_differ_by_microseconds() -> None:
    trace = recorded([LAUNCH, ("hipDeviceSynchronize", 20, 4992)], [KERNEL])
    assert told(host_waits(trace, 0)) == [(20, 4992, 1, 0)]
    # The clocks may differ by at most 10 us.
    assert told(host_waits(recorded([LAUNCH, ("cudaMalloc", 20, 4990)], [KERNEL]), 0)) == [(20, 4990, 1, 0)]
    assert not len(host_waits(recorded([LAUNCH, ("cudaMalloc", 20, 4989.999)], [KERNEL]), 0))


def test_a_copy_does_not_wait_for_work_on_another_stream() -> None:
    # GIVEN a call of cudaMemcpy for a copy within the GPU, which returns when a kernel on another stream ends
    copy = (0, 8, "Memcpy DtoD (Device -> Device)", 30, 40, 1)
    assert not len(host_waits(recorded([LAUNCH, ("cudaMemcpy", 4990, 5004)], [KERNEL, copy]), 0))
    # WHEN the copy writes to pageable memory THEN its call waits only for the copy
    own = (0, 8, "Memcpy DtoH (Device -> Pageable)", 4996, 4999, 1)
    assert told(host_waits(recorded([LAUNCH, ("cudaMemcpyAsync", 4990, 5004)], [KERNEL, own]), 0)) == [(4996, 4999, 1, 1)]


def test_a_loop_of_event_queries_may_contain_calls_that_launch_nothing() -> None:
    calls: list[Call] = [LAUNCH]
    for at in range(100, 5100, 100):
        calls += [("cudaEventQuery", at, at + 2), ("cudaPeekAtLastError", at + 3, at + 4)]
    assert told(host_waits(recorded(calls, [KERNEL]), 0)) == [(100, 5000, 99, 0)]


@pytest.mark.parametrize(
    ("call", "copy", "waits"),
    [
        # The name of this copy does not show whether the memory was pageable, so the times decide.
        (("hipMemcpyAsync", 20, 2018), ("Memcpy DtoH (Device -> Host)", 100, 2008), [(100, 2008)]),
        (("hipMemcpyAsync", 20, 2018), ("Memcpy DtoH (Device -> Host)", 100, 1500), []),
        # cudaMemcpy is documented to wait, even if the copy ended early or seems to end after the call.
        (("cudaMemcpy", 20, 80), ("Memcpy HtoD (Pinned -> Device)", 30, 40), [(30, 40)]),
        (("cudaMemcpy", 20, 60), ("Memcpy HtoD (Pinned -> Device)", 30, 65), [(30, 60)]),
        # A launch call that returned when its own short kernel ended did not wait for this kernel.
        (("cudaLaunchKernel", 20, 620), ("gemm", 610, 618), []),
        (("cudaMalloc", 20, 70), ("gemm", 1, 65), []),  # a call of less than 50 us may return with the kernel by chance
    ],
)  # fmt: skip
def test_single_calls_that_wait_for_their_own_work_are_recognized(
    call: Call, copy: tuple[str, float, float], waits: list[tuple[float, float]]
) -> None:
    trace = recorded([call], [(0, 7, *copy, 0)])
    assert [(start, end) for start, end, _, _ in told(host_waits(trace, 0))] == waits


def test_a_blocking_copy_waits_for_earlier_work_as_soon_as_it_is_called() -> None:
    # GIVEN a kernel that ends at 3000 us and a copy after it that ends at 5008 us THEN the wait begins with the copy call
    work: list[Work] = [(0, 7, "gemm", 10, 3000, 0), (0, 7, "Memcpy DtoH (Device -> Pageable)", 3001, 5008, 1)]
    assert told(host_waits(recorded([LAUNCH, ("cudaMemcpyAsync", 20, 5018)], work), 0)) == [(20, 5008, 1, 1)]
    by_times = (0, 7, "Memcpy DtoH (Device -> Host)", 3001, 5008, 1)
    assert told(host_waits(recorded([LAUNCH, ("hipMemcpyAsync", 20, 5018)], [work[0], by_times]), 0)) == [(20, 5008, 1, 1)]
    # WHEN the kernel runs on another stream or another GPU THEN the wait begins when the copy begins
    for elsewhere in ((0, 8), (1, 7)):
        other = (*elsewhere, "gemm", 10, 3000, 0)
        copy = (0, 7, "Memcpy DtoH (Device -> Pageable)", 40, 5008, 1)
        found = told(host_waits(recorded([LAUNCH, ("cudaMemcpyAsync", 20, 5018)], [other, copy]), 0))
        assert [(start, end) for start, end, _, _ in found] == [(40, 5008)]


def test_kernels_without_a_launch_call_do_not_affect_waits() -> None:
    unknown = (0, 7, "earlier", 1, 9, -1)
    queries: list[Call] = [("cudaEventQuery", at, at + 2) for at in range(100, 5100, 100)]
    trace = recorded([LAUNCH, *queries], [unknown, KERNEL])
    assert told(host_waits(trace, 0)) == [(100, 5000, 50, 1)]
    trace.threads.append(Thread(0, 2, "watchdog", "other"))
    trace.host.thread[1:] = 1
    assert not len(host_waits(trace, 0))


def test_a_wait_for_the_whole_device_ends_when_its_last_stream_ends() -> None:
    # GIVEN a call that waits for the whole GPU WHEN the second stream ends 1 us after the first
    work: list[Work] = [KERNEL, (0, 8, "b", 10, 5001, 0)]
    assert told(host_waits(recorded([LAUNCH, ("cudaMalloc", 20, 5010)], work), 0)) == [(20, 5001, 1, 1)]


def test_kernels_launched_before_the_recording_count_as_queued() -> None:
    """GIVEN two kernels launched before the recording WHEN the host synchronizes before the second kernel starts THEN the host
    waits for both kernels."""
    old = [(0, 7, "gemm", 5, 100, -1), (0, 7, "gemm", 100, 300, -1)]
    trace = recorded([("cudaDeviceSynchronize", 10, 310), ("cudaLaunchKernel", 320, 325)], [*old, (0, 7, "gemm", 330, 400, 1)])
    assert told(host_waits(trace, 0)) == [(10, 300, 0, 1)]


@pytest.mark.parametrize(
    ("calls", "work", "waits"),
    [
        # A loop of queries has at least two queries.
        ([LAUNCH, ("cudaEventQuery", 4900, 4902), ("cudaEventQuery", 5000, 5002)], [KERNEL], [(4900, 5000, 2, 0)]),
        ([LAUNCH, ("cudaEventQuery", 4900, 5002)], [KERNEL], []),
        # The second-to-last query began when the work ended, so the loop did not wait for this work.
        ([LAUNCH, ("cudaEventQuery", 5000, 5001), ("cudaEventQuery", 5002, 5003)], [KERNEL], []),
        # If two streams end at the same time, the call waits for the kernel of the first stream.
        ([LAUNCH, ("cudaMalloc", 20, 5010)], [KERNEL, (0, 8, "b", 10, 5000, 0)], [(20, 5000, 1, 0)]),
        # The clocks of host and GPU may differ by at most 10 us. This limit also holds if the stream runs later work.
        (
            [LAUNCH, ("cudaLaunchKernel", 6, 8), ("cudaEventSynchronize", 20, 4990)],
            [KERNEL, (0, 7, "b", 5001, 9000, 1)],
            [(20, 4990, 2, 0)],
        ),
        (
            [LAUNCH, ("cudaLaunchKernel", 6, 8), ("cudaEventSynchronize", 20, 4989.9)],
            [KERNEL, (0, 7, "b", 5001, 9000, 1)],
            [],
        ),
        # A call that is not documented to wait counts only if it lasts at least 50 us.
        ([LAUNCH, ("cudaMalloc", 4950, 5000)], [KERNEL], [(4950, 5000, 1, 0)]),
        ([LAUNCH, ("cudaMalloc", 4950.1, 5000)], [KERNEL], []),
        # An undocumented wait returns at most 30 us after the work, and at most a tenth of its own duration after the work.
        ([LAUNCH, ("cudaMalloc", 4910, 5010)], [KERNEL], [(4910, 5000, 1, 0)]),
        ([LAUNCH, ("cudaMalloc", 4911, 5010)], [KERNEL], []),
        ([LAUNCH, ("cudaMalloc", 4000, 5030)], [KERNEL], [(4000, 5000, 1, 0)]),
        ([LAUNCH, ("cudaMalloc", 4000, 5030.1)], [KERNEL], []),
        # A call that is documented to wait may seem to return up to 10 us before its copy ends.
        ([("cudaMemcpy", 20, 60)], [(0, 7, "Memcpy HtoD (Pinned -> Device)", 30, 70, 0)], [(30, 60, 0, 0)]),
        ([("cudaMemcpy", 20, 60)], [(0, 7, "Memcpy HtoD (Pinned -> Device)", 30, 70.1, 0)], []),
        # The same limits apply to the work that a call launches itself.
        ([("hipMemcpyAsync", 20, 158)], [(0, 7, "Memcpy DtoH (Device -> Host)", 100, 150, 0)], [(100, 150, 0, 0)]),
        ([("hipMemcpyAsync", 20, 158)], [(0, 7, "Memcpy DtoH (Device -> Host)", 100.1, 150, 0)], []),
        ([("hipMemcpyAsync", 20, 2050)], [(0, 7, "Memcpy DtoH (Device -> Host)", 100, 2020, 0)], [(100, 2020, 0, 0)]),
        ([("hipMemcpyAsync", 20, 2050)], [(0, 7, "Memcpy DtoH (Device -> Host)", 100, 2019.9, 0)], []),
    ],
)
def test_calls_that_wait_for_the_gpu_are_found_with_their_waiting_time(
    calls: list[Call], work: list[Work], waits: list[tuple[float, float, int, int]]
) -> None:
    assert told(host_waits(recorded(calls, work), 0)) == waits


def test_ranks_wait_for_their_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN two ranks that each launch a kernel and wait for it WHEN the rows of the ranks alternate THEN each rank waits for
    its own GPU."""
    counted = Mock(wraps=measure.work_rows)
    monkeypatch.setattr(measure, "work_rows", counted)
    calls: list[Call] = [LAUNCH, ("cudaMalloc", 20, 5010), ("cudaLaunchKernel", 0, 5), ("cudaMalloc", 20, 3010)]
    trace = recorded(calls, [KERNEL, (1, 7, "gemm", 10, 3000, 2), (1, 7, "unknown", 1, 5, -1)])
    trace.devices = [Device(0, 0, "GPU"), Device(1, 0, "GPU")]
    trace.threads = [Thread(0, 1, "main", "main"), Thread(1, 1, "main", "main")]
    trace.host.thread[2:] = 1
    assert told(host_waits(trace, 0)) == [(20, 5000, 1, 0)] and told(host_waits(trace, 1)) == [(20, 3000, 3, 1)]
    assert {id(call.args[0]) for call in counted.call_args_list} == {id(trace)}  # The waits of all ranks are found in one pass.
