"""Tests which op and which call a kernel belongs to.

The tests cover External ids, threads that reuse ids, duplicate correlation ids, and work launched before the recording.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.kineto import read_kineto_bytes
from traces.kineto.spans.external_ids import latest_by_id
from traces.model.invariants import fault
from traces.model.trace import NONE, HostKind, Trace

Event = dict[str, Any]
MAIN, REPLICA, NEXT_REPLICA = 100, 201, 202


def span(category: str, name: str, tid: int, start: float, dur: float, **args: Any) -> Event:
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": category, "name": name, "pid": 100, "tid": tid, "ts": start, "dur": dur, "args": named}


def op(name: str, tid: int, start: float, dur: float, external_id: int) -> Event:
    return span("cpu_op", name, tid, start, dur, External_id=external_id)


def call(tid: int, start: float, correlation: int, name: str = "cudaLaunchKernel", dur: float = 2, **args: Any) -> Event:
    return span("cuda_runtime", name, tid, start, dur, correlation=correlation, **args)


def kernel(name: str, start: float, correlation: int, stream: int = 7, dur: float = 5, **args: Any) -> Event:
    return span("kernel", name, stream, start, dur, device=0, stream=stream, correlation=correlation, **args) | {"pid": 0}


def imported(*events: Event) -> Trace:
    trace = read_kineto_bytes(orjson.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    assert fault(trace) is None
    return trace


def chain(trace: Trace, kernel_name: str) -> list[str]:
    """Return the names and threads of the call that launched a kernel and of all calls around it, innermost first."""
    device, host = trace.device, trace.host
    (row,) = [row for row in range(len(device)) if trace.strings[device.name[row]] == kernel_name]
    names, at = [], int(device.launch[row])
    while at != NONE:
        names.append(f"{trace.strings[host.name[at]]}@{trace.threads[host.thread[at]].tid}")
        at = int(host.parent[at])
    return names


# --- profiles without ids


@pytest.mark.parametrize(("stream", "start", "launched"), [(7, 22, True), (8, 22, False), (7, 9, False)])
def test_without_ids_kernels_of_a_single_stream_are_assigned_to_calls_in_order(
    stream: int, start: float, launched: bool
) -> None:
    """GIVEN two calls without ids WHEN their kernels run on one stream THEN the kernels are assigned to the calls in order.
    WHEN kernels run on several streams, or begin before their call THEN the calls are unknown."""
    events = [call(MAIN, 14, 0, "cudaMemcpyAsync"), call(MAIN, 10, 0), call(MAIN, 12, 0, "cudaStreamIsCapturing")]
    trace = imported(*events, kernel("second", start + 8, 0, stream), kernel("first", start, 0))
    device, host = trace.device, trace.host
    found = {trace.strings[name]: row for name, row in zip(device.name, device.launch, strict=True)}
    names = {name: trace.strings[host.name[row]] if row != NONE else "" for name, row in found.items()}
    expected = {"first": "cudaLaunchKernel", "second": "cudaMemcpyAsync"} if launched else {"first": "", "second": ""}
    assert names == expected


# --- External ids


def test_a_launch_call_in_the_wrong_thread_is_moved_to_the_thread_of_its_op() -> None:
    # GIVEN two steps whose replicas are different threads WHEN all calls were recorded in the first of these threads
    trace = imported(
        span("user_annotation", "ProfilerStep#1", MAIN, 0, 100),
        op("aten::addmm", REPLICA, 10, 20, 11),
        call(REPLICA, 15, 1, External_id=11),
        kernel("first", 40, 1, External_id=11),
        span("user_annotation", "ProfilerStep#2", MAIN, 100, 100),
        op("aten::linear", NEXT_REPLICA, 109, 22, 20),
        op("aten::addmm", NEXT_REPLICA, 110, 20, 21),
        call(REPLICA, 115, 2, External_id=21),
        kernel("second", 140, 2, External_id=21),
    )
    # THEN the call of the second step belongs to its op, to the thread of the op, and to the parents of the op
    assert chain(trace, "first") == ["cudaLaunchKernel@201", "aten::addmm@201"]
    assert chain(trace, "second") == ["cudaLaunchKernel@202", "aten::addmm@202", "aten::linear@202"]
    assert trace.problems == {}


def test_an_imported_thread_without_any_calls_is_removed() -> None:
    trace = imported(op("aten::mul", MAIN, 0, 20, 5), call(1065346752, 5, 1, External_id=5), kernel("k", 30, 1, External_id=5))
    assert chain(trace, "k") == ["cudaLaunchKernel@100", "aten::mul@100"]
    assert [thread.tid for thread in trace.threads] == [MAIN]


def test_a_launch_call_without_an_external_id_gets_the_id_of_its_kernel() -> None:
    trace = imported(
        op("aten::relu", REPLICA, 0, 20, 5),
        op("aten::other", MAIN, 0, 20, 6),
        call(MAIN, 5, 1),
        kernel("k", 30, 1, External_id=5),
        call(MAIN, 9, 2, External_id=6),
        kernel("other", 40, 2, External_id=6),
    )
    assert chain(trace, "k") == ["cudaLaunchKernel@201", "aten::relu@201"]
    assert chain(trace, "other") == ["cudaLaunchKernel@100", "aten::other@100"]


@pytest.mark.parametrize(("start", "end"), [(0, 20), (5, 20), (0, 7), (5, 7), (0, 6)])
def test_a_launch_call_belongs_to_an_op_that_begins_or_ends_with_it(start: float, end: float) -> None:
    """GIVEN a launch call that ends at 7 us WHEN its op ends up to 1 us earlier THEN the call still belongs to the op.
    Profilers that wrote whole microseconds caused such times."""
    trace = imported(
        op("aten::relu", REPLICA, start, end - start, 5), call(MAIN, 5, 1, External_id=5), kernel("k", 30, 1, External_id=5)
    )
    assert chain(trace, "k") == ["cudaLaunchKernel@201", "aten::relu@201"]


@pytest.mark.parametrize("told", [{}, {"External_id": 0}, {"External_id": 77}, {"External_id": 3}])
def test_the_enclosing_op_is_used_if_the_external_id_is_invalid(told: dict[str, Any]) -> None:
    """GIVEN a call whose External id belongs to no op, or to an op that ended before the call THEN the op around the call is
    used."""
    trace = imported(
        op("aten::early", REPLICA, 0, 4, 3),
        op("aten::add", MAIN, 10, 20, 4),
        call(MAIN, 12, 1, **told),
        kernel("k", 40, 1),
        call(MAIN, 16, 2, External_id=4),
        kernel("sure", 50, 2, External_id=4),
    )
    assert chain(trace, "k") == ["cudaLaunchKernel@100", "aten::add@100"]


def test_a_launch_call_outside_all_ops_stays_in_its_thread() -> None:
    trace = imported(
        span("user_annotation", "warm", MAIN, 0, 50, External_id=9),
        op("aten::add", MAIN, 60, 20, 4),
        call(MAIN, 12, 1, External_id=9),
        kernel("k", 40, 1, External_id=9),
        call(MAIN, 62, 2, External_id=4),
        kernel("sure", 90, 2, External_id=4),
    )
    assert chain(trace, "k") == ["cudaLaunchKernel@100", "warm@100"]


def test_a_kernel_belongs_to_the_op_with_its_external_id_rather_than_the_enclosing_op() -> None:
    trace = imported(
        op("aten::outer", MAIN, 0, 50, 1),
        op("aten::inner", MAIN, 10, 20, 2),
        call(MAIN, 12, 1, External_id=1),
        kernel("k", 40, 1, External_id=1),
    )
    assert chain(trace, "k") == ["cudaLaunchKernel@100", "aten::outer@100"]


def test_python_frames_between_an_op_and_its_launch_call_are_kept() -> None:
    trace = imported(
        op("custom::op", MAIN, 0, 50, 1),
        span("python_function", "kernel.py(3): run", MAIN, 10, 20),
        call(MAIN, 12, 1, External_id=1),
        kernel("k", 40, 1, External_id=1),
    )
    assert chain(trace, "k") == ["cudaLaunchKernel@100", "kernel.py(3): run@100", "custom::op@100"]


def test_external_ids_that_copy_the_correlation_ids_are_ignored() -> None:
    """From torch 1.12 to 2.3, External ids of launch calls are copies of the correlation ids. By chance, some ops have the same
    External ids."""
    trace = imported(
        op("aten::a", REPLICA, 0, 20, 1),
        op("aten::b", MAIN, 30, 20, 2),
        op("aten::c", MAIN, 60, 20, 3),
        call(MAIN, 32, 1, External_id=1),
        kernel("first", 100, 1, External_id=1),
        call(MAIN, 62, 2, External_id=2),
        kernel("second", 110, 2, External_id=2),
    )
    assert chain(trace, "first") == ["cudaLaunchKernel@100", "aten::b@100"]
    assert chain(trace, "second") == ["cudaLaunchKernel@100", "aten::c@100"]


def test_an_external_id_that_happens_to_equal_the_correlation_id_is_used() -> None:
    trace = imported(
        op("aten::a", REPLICA, 0, 20, 1),
        op("aten::b", REPLICA, 30, 20, 2),
        call(MAIN, 5, 1, External_id=1),
        kernel("first", 100, 1, External_id=1),
        call(MAIN, 32, 2, External_id=2),
        kernel("second", 110, 2, External_id=2),
    )
    assert chain(trace, "first") == ["cudaLaunchKernel@201", "aten::a@201"]
    assert chain(trace, "second") == ["cudaLaunchKernel@201", "aten::b@201"]


def test_if_two_ops_have_the_same_external_id_the_enclosing_op_is_used() -> None:
    trace = imported(
        op("aten::first", MAIN, 0, 20, 4),
        op("aten::second", MAIN, 30, 20, 4),
        call(REPLICA, 5, 1, External_id=4),
        kernel("first", 100, 1, External_id=4),
        call(REPLICA, 35, 2, External_id=4),
        kernel("second", 110, 2, External_id=4),
    )
    assert chain(trace, "first")[-1] == "aten::first@100"
    assert chain(trace, "second")[-1] == "aten::second@100"


# --- correlation ids


def test_external_ids_distinguish_two_calls_with_the_same_correlation_id() -> None:
    trace = imported(
        op("aten::mm", MAIN, 100, 60, 2),
        call(MAIN, 110, 7, External_id=2),
        kernel("gemm", 130, 7, External_id=2, dur=300),
        op("aten::relu", MAIN, 1000, 60, 3),
        call(MAIN, 1010, 7, External_id=3),
        kernel("relu", 1030, 7, External_id=3, dur=300),
    )
    assert chain(trace, "gemm") == ["cudaLaunchKernel@100", "aten::mm@100"]
    assert chain(trace, "relu") == ["cudaLaunchKernel@100", "aten::relu@100"]
    assert trace.problems == {"duplicate-correlation": 2}


def test_a_kernel_without_external_id_belongs_to_the_last_earlier_call() -> None:
    trace = imported(call(MAIN, 10, 7, "cudaA"), kernel("a", 20, 7), call(MAIN, 110, 7, "cudaB"), kernel("b", 120, 7))
    assert [chain(trace, name)[0] for name in ("a", "b")] == ["cudaA@100", "cudaB@100"]
    assert trace.problems == {"duplicate-correlation": 2}


def test_a_driver_call_within_a_runtime_call_is_not_a_second_launch() -> None:
    inner = call(MAIN, 11, 7, "cuLaunchKernel", dur=1) | {"cat": "cuda_driver"}
    trace = imported(call(MAIN, 10, 7, dur=4), inner, kernel("k", 20, 7))
    assert chain(trace, "k") == ["cudaLaunchKernel@100"]
    assert trace.problems == {}


# --- work launched before the recording


def test_kernels_before_the_first_kernel_with_a_launch_call_predate_the_recording() -> None:
    trace = imported(
        call(MAIN, 10, 50),
        kernel("old", 5, 40),
        kernel("old too", 15, 41),
        kernel("new", 30, 50),
        kernel("old elsewhere", 60, 42, stream=9),
    )
    assert trace.problems == {"backlog-at-start": 3}
    assert trace.device.launch.tolist().count(NONE) == 3


def test_a_kernel_after_launched_kernels_is_reported_if_its_launch_call_is_missing() -> None:
    trace = imported(
        call(MAIN, 10, 50),
        kernel("new", 30, 50),
        kernel("later on the stream", 60, 42),
        kernel("later id", 5, 51, stream=9),
    )
    assert trace.problems == {"kernel-without-launch": 2}


def test_launch_calls_moved_to_another_thread_stay_runtime_calls() -> None:
    trace = imported(op("aten::mul", MAIN, 0, 20, 5), call(REPLICA, 5, 1, External_id=5), kernel("k", 30, 1, External_id=5))
    assert trace.host.kind[trace.device.launch[0]] == HostKind.RUNTIME


def test_gpu_time_of_a_phase_excludes_work_launched_before_the_recording() -> None:
    """GIVEN a GPU that runs earlier work until 1300 us WHEN the kernel of the step runs from 1300 to 1340 us THEN the step has
    40 us of GPU time."""
    trace = imported(
        span("user_annotation", "ProfilerStep#1", MAIN, 1000, 100, External_id=1),
        op("aten::mm", MAIN, 1010, 20, 2),
        call(MAIN, 1015, 50, External_id=2),
        kernel("old", 900, 40, dur=400),
        kernel("new", 1300, 50, dur=40, External_id=2),
    )
    assert trace.problems == {"backlog-at-start": 1}
    assert trace.phases.device_start_ns.min() == 1_300_000 and trace.phases.device_end_ns.max() == 1_340_000


# --- ids of 0, and the latest event with an id


def test_an_id_of_0_does_not_match_a_kernel_to_a_launch_call() -> None:
    """GIVEN two calls and kernels on two streams WHEN all have the correlation id 0 and the External id 0 THEN the launches of
    the kernels are unknown. No launch is ambiguous, and no kernel counts as lost."""
    trace = imported(
        op("aten::relu", MAIN, 0, 30, 0),
        call(MAIN, 5, 0, External_id=0),
        call(MAIN, 10, 0, External_id=0),
        kernel("relu", 20, 0, External_id=0),
        kernel("relu", 26, 0, stream=9, External_id=0),
    )
    assert trace.device.launch.tolist() == [NONE, NONE]
    assert trace.problems == {"kernel-without-launch": 2}


def test_a_kernel_belongs_to_the_op_with_its_external_id_unless_this_op_begins_later() -> None:
    """GIVEN kernels without launch calls WHEN the op with the same External id begins together with its kernel THEN the op
    launched the kernel. WHEN the op begins later THEN the op did not launch the kernel."""
    trace = imported(
        op("aten::relu", MAIN, 20, 5, 11),
        op("aten::add", MAIN, 41, 5, 12),
        kernel("relu", 20, 0, External_id=11),
        kernel("add", 40, 0, External_id=12),
    )
    assert chain(trace, "relu") == ["aten::relu@100"] and chain(trace, "add") == []


IDS = st.integers(-1, 3)  # an id of 0 or less means that the event has none


@given(st.lists(st.tuples(IDS, st.integers(0, 9)), max_size=8), st.lists(st.tuples(IDS, st.integers(0, 9)), max_size=5))
def test_of_several_events_with_one_id_the_latest_is_found(
    events: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    """If all events with the id are later than the given time, the first of these events is found."""

    def latest(wanted_id: int, before_ns: int) -> int:
        rows = sorted((start_ns, row) for row, (event_id, start_ns) in enumerate(events) if event_id == wanted_id > 0)
        return max((of for of in rows if of[0] <= before_ns), default=min(rows, default=(0, NONE)))[1]

    ids, starts = (np.array([event[at] for event in events], np.int64) for at in (0, 1))
    asked, before = (np.array([each[at] for each in wanted], np.int64) for at in (0, 1))
    assert latest_by_id(ids, starts, asked, before).tolist() == [latest(*each) for each in wanted]
