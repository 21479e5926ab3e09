"""Tests that collectives and the stages of nn.DataParallel are read from profiles of torch.profiler."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from traces.analyses.communication import communication
from traces.analyses.stragglers import stragglers
from traces.combining.merge import merge_ranks
from traces.kineto import read_kineto, read_kineto_bytes
from traces.model.invariants import fault
from traces.model.trace import NONE, Ending, Trace

ALL_REDUCES = {"all_reduce": 15, "broadcast": 6}


def rows(trace: Trace) -> list[dict[str, Any]]:
    table, texts = trace.collectives, trace.strings
    texts_of = ("name", "dtype", "group", "backend")
    return [
        {name: texts[int(column[row])] if name in texts_of else int(column[row]) for name, column in table.columns().items()}
        for row in range(len(table))
    ]


@pytest.mark.parametrize(
    ("name", "counts", "total_bytes"),
    [
        ("a100_nccl_args_rank0of2.json.gz", ALL_REDUCES, 307_323_096),  # with counts, dtypes and groups
        ("a100_ddp_diff_control.json.gz", {"all_to_all": 42, "all_reduce": 18}, None),  # the file has only shapes of ranges
        ("v100_ddp_memory_rank1of2.json.gz", {"all_reduce": 2020}, 0),  # the file has only names
        ("cpu_only_rank34of300.json.gz", {"all_reduce": 10}, None),
        ("a100_megatron_tp8", {"all_reduce": 8 * 85}, None),
        ("b200_eager_inference.json.gz", {"all_gather_into_tensor": 1}, 50_272),
        ("v100_resnet50_workers0.json.gz", {}, 0),
    ],
)
def test_collectives_of_real_recordings_have_the_expected_figures(
    shared_traces: Path, name: str, counts: dict[str, int], total_bytes: int | None
) -> None:
    trace = read_kineto(shared_traces / name)
    found = rows(trace)
    assert fault(trace) is None
    assert {name: sum(row["name"] == name for row in found) for name in counts} == counts and len(found) == sum(counts.values())
    if total_bytes is not None:
        assert sum(row["bytes"] for row in found if row["bytes"] != NONE) == total_bytes
    for before, after in pairwise(found):
        assert (before["rank"], before["start_ns"]) <= (after["rank"], after["start_ns"])


def test_a_collective_takes_as_long_as_its_kernels(shared_traces: Path) -> None:
    trace = read_kineto(shared_traces / "a100_nccl_args_rank0of2.json.gz")
    found = rows(trace)
    assert {row["backend"] for row in found} == {"nccl"} and {row["group_size"] for row in found} == {2}
    kernels = trace.device.take([trace.strings[i].startswith("ncclKernel") for i in trace.device.name])
    assert sorted(row["duration_ns"] for row in found) == sorted(kernels.duration_ns.tolist())
    # Gloo has no kernels, so the range on its own thread is the operation.
    gloo = rows(read_kineto(shared_traces / "cpu_only_rank34of300.json.gz"))[0]
    assert (gloo["backend"], gloo["dtype"], gloo["bytes"], gloo["duration_ns"]) == ("gloo", "float32", 321_271 * 4, 173_209_713)


def span(name: str, start: int, length: int, tid: int = 1, category: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": length, "args": args}


def launch(start: int, correlation: int, tid: int = 1) -> dict[str, Any]:
    return span("cudaLaunchKernel", start, 1, tid, "cuda_runtime", correlation=correlation)


def kernel(name: str, start: int, length: int, correlation: int, device: int = 0) -> dict[str, Any]:
    return span(name, start, length, 7, "kernel", correlation=correlation, device=device, stream=7) | {"pid": device}


def read(*events: dict[str, Any]) -> Trace:
    properties = [{"id": 0, "name": "GPU"}, {"id": 1, "name": "GPU"}]
    document = {"schemaVersion": 1, "deviceProperties": properties, "traceEvents": list(events)}
    trace = read_kineto_bytes(json.dumps(document).encode())
    assert fault(trace) is None
    return trace


TOLD: dict[str, Any] = {
    "Collective name": "allreduce",
    "In msg nelems": 8,
    "dtype": "Half",
    "Group size": 2,
    "Process Group Name": "dp",
}
WAIT: dict[str, Any] = {"Collective name": "wait", "In msg nelems": 0, "dtype": "Byte"}


def test_a_profiler_range_without_a_backend_name_is_a_collective_if_it_launched_kernels() -> None:
    """GIVEN a profile of torch 2.15 WHEN the range of an NCCL collective does not name the backend THEN the kernels of the
    range show that it is a collective."""
    gathers: dict[str, Any] = TOLD | {"Collective name": "allGatherSingleImpl"}
    trace = read(
        span("record_param_comms", 10, 70, **gathers),
        span("allGatherSingleImpl", 20, 50, category="user_annotation"),
        launch(30, 5),
        kernel("ncclDevKernel_AllGather_RING_LL", 100, 40, 5),
        span("record_param_comms", 85, 5, **WAIT),
        span("record_param_comms", 200, 70, **TOLD),  # this range is of a backend that launches no kernel
        span("c10d::allreduce_", 300, 90),
    )
    [found] = rows(trace)
    assert (found["backend"], found["name"]) == ("nccl", "all_gather_into_tensor")
    assert (found["dtype"], found["bytes"]) == ("float16", 16)
    assert (found["start_ns"] - found["called_ns"], found["duration_ns"], found["ending"]) == (90_000, 40_000, Ending.SEEN)


@pytest.mark.parametrize(
    ("told", "of_range", "expected"),
    [
        (TOLD, {}, ("float16", 16, "dp", 2)),
        (TOLD | {"Process Group Name": None, "Process Group ID": 3, "dtype": "Bool"}, {}, ("bool", 8, "", 2)),
        ({"Process Group ID": 3}, {"Input Dims": [[4, 2]], "Input type": ["float"]}, ("float32", 32, "3", NONE)),
        ({}, {"Input Dims": [[[4], [2, 3]]], "Input type": [["float", "double"]]}, ("float32", 64, "", NONE)),
        ({}, {"Input Dims": [[4], [2]], "Input type": ["float", "unheard of"]}, ("", NONE, "", NONE)),
        (TOLD | {"In msg nelems": "many", "Group size": -2}, {}, ("", NONE, "dp", NONE)),
        (TOLD | {"dtype": ["Half"]}, {"Input Dims": "x", "Input type": 3}, ("", NONE, "dp", 2)),
    ],
)
def test_collectives_are_read_from_the_event_arguments(
    told: dict[str, Any], of_range: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    trace = read(
        span("c10d::allreduce_", 0, 90),
        span("record_param_comms", 10, 70, 1, "cpu_op", **told),
        span("nccl:_all_gather_base", 20, 50, category="user_annotation", **of_range),
        launch(30, 5),
        kernel("ncclDevKernel_AllGather_RING_LL(x)", 200, 40, 5),
        launch(32, 6),
        kernel("ncclDevKernel_AllGather_RING_LL(x)", 260, 30, 6),
        launch(34, 7),
        kernel("copy", 400, 30, 7),
        span("record_param_comms", 100, 9, 1, "cpu_op", **WAIT),
    )
    (row,) = rows(trace)
    assert (row["dtype"], row["bytes"], row["group"], row["group_size"]) == expected
    assert (row["name"], row["backend"], row["start_ns"], row["duration_ns"]) == (
        "all_gather_into_tensor",
        "nccl",
        200_000,
        90_000,
    )
    assert trace.collectives.called_ns.tolist() == [10_000]


def test_profiler_ranges_of_data_parallel_are_imported_as_stages_with_gpu_times() -> None:
    # GIVEN a step with a scatter, two replicas on separate threads and a gather. An earlier kernel runs when scatter begins.
    trace = read(
        span("ProfilerStep#3", 0, 1000, category="user_annotation"),
        span("aten::conv2d", 5, 2),
        launch(6, 1),
        kernel("before", 10, 95, 1),
        span("DataParallel.scatter", 100, 20, category="user_annotation"),
        launch(102, 2),
        kernel("Memcpy", 110, 30, 2),
        launch(103, 3),
        kernel("Memcpy", 110, 50, 3, device=1),
        span("DataParallel.parallel_apply#0", 200, 50, 11, "user_annotation"),
        launch(210, 4, 11),
        kernel("conv", 230, 100, 4),
        span("DataParallel.parallel_apply#cuda:1", 205, 50, 12, "user_annotation"),
        launch(215, 5, 12),
        kernel("conv", 220, 10, 5, device=1),
        span("DataParallel.gather", 300, 20, category="user_annotation"),
        span("DataParallel.replicate_more", 330, 20, category="user_annotation"),
        span("DataParallel.gather_backward#7", 400, 20, category="user_annotation"),
    )
    parts, texts = trace.parts, trace.strings
    names = ["scatter", "parallel_apply", "parallel_apply", "gather", "gather_backward"]
    assert [texts[name] for name in parts.name] == names
    # Scatter kept device 1 busy longest. The last stage names a device that does not exist.
    assert parts.device.tolist() == [1, 0, 1, NONE, NONE]
    assert [trace.threads[row].tid for row in parts.thread] == [1, 11, 12, 1, 1]
    assert parts.device_start_ns.tolist() == [100_000, 200_000, 205_000, NONE, NONE]
    assert parts.device_end_ns.tolist() == [160_000, 330_000, 255_000, NONE, NONE]
    assert {texts[trace.phases.name[row]] for row in parts.phase} == {"forward"}


def test_an_nccl_collective_without_kernels_has_an_unknown_duration() -> None:
    """GIVEN an NCCL collective of 95 MiB without kernels WHEN its range lasts only 60 us, a rate of 1.6 TB/s THEN its duration
    is unknown. The range of a Gloo collective lasts as long as the operation."""
    found: dict[str, Any] = {"In msg nelems": 24_903_680, "dtype": "Float"}
    trace = read(span("record_param_comms", 10, 70, **found), span("nccl:all_reduce", 12, 60), span("gloo:all_reduce", 100, 60))
    assert trace.collectives.ending.tolist() == [Ending.UNSEEN, Ending.SEEN]
    assert trace.problems == {"collective-without-kernel": 1}
    by_bytes = {of.bytes: of.duration_ns for of in communication(trace).operations}
    assert by_bytes == {None: 60_000}  # one row for both, because Gloo's sizes were not recorded


@pytest.mark.parametrize(("size", "problems"), [(1, {}), (2, {"collective-without-kernel": 1})])
def test_a_collective_of_a_single_rank_may_have_no_kernel(size: int, problems: dict[str, int]) -> None:
    """NCCL launches no kernel for an in-place operation of a single rank, such as DDP with one process on an H200."""
    found: dict[str, Any] = {"In msg nelems": 1, "dtype": "Float", "Group size": size}
    trace = read(span("record_param_comms", 10, 70, **found), span("nccl:all_reduce", 12, 60))
    assert trace.collectives.group_size.tolist() == [size] and trace.problems == problems


def test_collectives_are_matched_by_communicator_and_sequence_number() -> None:
    """GIVEN a rank 1 that recorded one more all-reduce at its start THEN collectives are matched by their sequence numbers, not
    by their order."""

    def rank(number: int, first: int, lengths: list[int]) -> dict[str, Any]:
        events = []
        for place, length in enumerate(lengths):
            at = 100 * place
            ids: dict[str, Any] = {"Comms Id": 2**64 - 5, "Seq": first + place}
            events += [
                span("record_param_comms", at, 20, **ids),
                span("nccl:all_reduce", at + 1, 18),
                launch(at + 2, place + 1),
            ]
            events.append(kernel("ncclDevKernel_AllReduce", at + 30, length, place + 1))
        info = {"rank": number, "world_size": 2}
        return {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "distributedInfo": info, "traceEvents": events}

    traces = [read_kineto_bytes(json.dumps(of).encode()) for of in (rank(0, 8, [10, 30]), rank(1, 7, [5, 40, 30]))]
    trace = merge_ranks(traces, [0, 1])
    assert trace.collectives.sequence.tolist() == [8, 9, 7, 8, 9]
    assert {trace.strings[index] for index in trace.collectives.communicator} == {str(2**64 - 5)}
    found = {of.rank: of for of in stragglers(trace)}
    assert [(found[r].collectives, found[r].last, found[r].waited_ns) for r in (0, 1)] == [(2, 1, 0), (2, 0, 30_000)]
