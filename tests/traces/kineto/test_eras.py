"""Tests how differences between releases of the profiler are handled, on small handmade recordings.

The releases differ in clocks, ids, categories, threads, shapes and phases.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from traces.figures.measure import launch_phase_names
from traces.kineto import read_kineto, read_kineto_bytes
from traces.kineto.reading.eras import TsUnit, era, external_ids_are_ops
from traces.kineto.reading.groups import Groups
from traces.kineto.structure.annotations import phase_of_annotation
from traces.kineto.structure.step_events import _recorded_by_autograd
from traces.model.machine import DeviceProperties
from traces.model.run import Distributed
from traces.model.trace import NONE, DeviceKind, HostKind, HostSpans, StepKind, Trace, TraceImportError
from traces.script.step_rule import RECORDERS_MARK

Event = dict[str, Any]
T0 = 1_600_000_000_000_000  # in microseconds since 1970


NO_EVENTS = Groups.of([], Counter())


def op(name: str, start: float, dur: float, tid: Any = 7, cat: Any = "cpu_op", **args: Any) -> Event:
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": T0 + start, "dur": dur, "args": named}


def call(correlation: int, start: float, dur: float = 2, cat: Any = "cuda_runtime", **args: Any) -> Event:
    return op("cudaLaunchKernel", start, dur, cat=cat, correlation=correlation, **args)


def kernel(correlation: int, start: float, dur: Any = 5, cat: Any = "kernel", **args: Any) -> Event:
    told = {"device": 0, "stream": 7, "correlation": correlation, **args}
    return {"ph": "X", "cat": cat, "name": "k", "pid": 0, "tid": 7, "ts": T0 + start, "dur": dur, "args": told}


def imported(events: list[Event], **header: Any) -> Trace:
    return read_kineto_bytes(orjson.dumps({**header, "traceEvents": events}))


def launcher_of(trace: Trace, row: int = 0) -> str:
    return trace.strings[trace.host.name[trace.device.launch[row]]] if trace.device.launch[row] != NONE else ""


# --- clocks


def test_timestamps_relative_to_a_base_time_keep_every_nanosecond() -> None:
    event = op("aten::add", 0, 0.307) | {"ts": 4203669604595.407}
    trace = imported([event], baseTimeNanoseconds=1735632360000000000)
    assert trace.host.start_ns.tolist() == [1735632360000000000 + 4203669604595407]
    assert trace.host.duration_ns.tolist() == [307]
    assert (trace.provenance["era"], trace.run_of(0).clock) == ("E6", "unix")


def test_timestamps_relative_to_the_start_of_the_recording_are_marked_as_such() -> None:
    trace = imported([op("aten::add", 0, 5) | {"ts": 0}, op("aten::mul", 0, 5) | {"ts": 9}])
    assert trace.host.start_ns.tolist() == [0, 9000]
    assert trace.run_of(0).clock == "recording"
    assert trace.problems == {}


def absolute(*pairs: tuple[str, str]) -> Trace:
    events = ",".join(
        f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{ts},"dur":{dur},"args":{{}}}}' for ts, dur in pairs
    )
    return read_kineto_bytes(f'{{"traceEvents":[{events}]}}'.encode())


def test_timestamps_with_three_decimals_keep_every_nanosecond() -> None:
    trace = absolute(("1712195495519689.047", "63.813"), ("1712195495519690.001", "1.000"))
    assert trace.host.start_ns.tolist() == [1712195495519689047, 1712195495519690001]
    assert trace.host.duration_ns.tolist() == [63813, 1000]
    assert trace.provenance["era"] == "E5"


def test_timestamps_of_march_2024_without_leading_zeros_are_read_correctly() -> None:
    trace = absolute(("1712195495519689.7", "63.5"), ("1712195495519690.123", "1.40"))
    assert trace.host.start_ns.tolist() == [1712195495519689007, 1712195495519690123]
    assert trace.host.duration_ns.tolist() == [63005, 1040]


def test_timestamps_rounded_to_float64_are_read_as_decimal_fractions() -> None:
    trace = absolute(("1712195495519689.5", "63.5"), ("1712195495519690.2", "1.0"))
    assert trace.host.start_ns.tolist() == [1712195495519689500, 1712195495519690200]
    assert trace.host.duration_ns.tolist() == [63500, 1000]


@pytest.mark.parametrize("base", [0, 1712195495000000000])
def test_unix_times_in_nanoseconds_have_durations_in_nanoseconds(base: int) -> None:
    thread = {"pid": 1, "tid": 1, "cat": "cpu_op", "name": "a"}
    whole = {"ph": "X", "ts": 1712195495519689047, "dur": 63813, **thread}
    begin, end = ({"ph": ph, "ts": 1712195495519689047 + after, **thread} for ph, after in (("B", 100_000), ("E", 100_500)))
    trace = imported([whole, begin, end], baseTimeNanoseconds=base)
    assert trace.host.start_ns.tolist() == [1712195495519689047, 1712195495519789047]
    assert trace.host.duration_ns.tolist() == [63813, 500]
    assert trace.problems == {"nanoseconds nanoseconds": 1}


@pytest.mark.parametrize(("first", "per_us"), [(0, 1000), (1712195495519689000, 1000), (1712195495519689000, 1)])
def test_durations_show_the_unit_of_times_without_decimals(first: int, per_us: int) -> None:
    """GIVEN stamps in nanoseconds from 0 or from a Unix time, ops of 20 us, calls of 6 us and kernels of 12 us THEN durations
    in nanoseconds and, beside Unix times, durations in microseconds give the same trace."""
    made = [event for at in (0, 50, 100) for event in (op("aten::add", at, 20), call(at + 1, at + 5), kernel(at + 1, at + 30))]
    lengths = {"cpu_op": 20, "cuda_runtime": 6, "kernel": 12}
    trace = imported([one | {"ts": first + 1000 * (one["ts"] - T0), "dur": per_us * lengths[one["cat"]]} for one in made])
    assert trace.device.start_ns.tolist() == [first + 30_000, first + 80_000, first + 130_000]
    assert trace.device.duration_ns.tolist() == [12_000] * 3
    assert sorted(trace.host.duration_ns.tolist()) == [6_000] * 3 + [20_000] * 3
    assert trace.problems == {f"nanoseconds {'nanoseconds' if per_us == 1000 else 'microseconds'}": 1}


@pytest.mark.parametrize(
    ("called", "op_us", "call_us", "kernel_us"),
    [
        pytest.param("cudaGraphLaunch", 3, 2, 5, id="calls outside of ops"),
        pytest.param("cudaLaunchKernel", 400, 300, 800, id="long calls and kernels"),
    ],
)
def test_times_from_0_without_decimals_are_in_microseconds(called: str, op_us: int, call_us: int, kernel_us: int) -> None:
    """GIVEN whole numbers as times, from 0 WHEN calls of CUDA begin after the ops, or take up to 0.3 ms THEN all times are in
    microseconds, and no warning is shown."""
    made: list[Event] = []
    for at in (1, 1001, 2001):
        launch, work = call(at, at + 20) | {"name": called, "dur": call_us}, kernel(at, at + 40) | {"dur": kernel_us}
        made += [op("aten::empty", at, op_us), launch, work]
    trace = imported([event | {"ts": event["ts"] - T0} for event in made])
    assert trace.device.duration_ns.tolist() == [1000 * kernel_us] * 3 and trace.problems == {}


def test_long_kernels_beside_short_calls_have_durations_in_microseconds() -> None:
    made = [op("aten::mm", 0, 20), call(1, 5), kernel(1, 30) | {"dur": 40_000}]
    assert imported(made).device.duration_ns.tolist() == [40_000_000]


# --- links between ops, calls and kernels


def test_an_external_id_that_equals_the_correlation_id_is_ignored() -> None:
    # GIVEN a profile of torch 1.12 to 2.3 WHEN the id of a launch is by chance the id of an op that launched nothing
    events = [
        op("aten::empty", 0, 5, External_id=12),
        op("aten::add", 10, 20, External_id=13),
        call(11, 12, External_id=11),
        kernel(11, 20, **{"External id": 11}),
        kernel(12, 30, **{"External id": 12}),
        kernel(99, 40, **{"External id": 99}),
    ]
    trace = imported(events)
    # THEN only correlation ids are used, and a kernel without a matching correlation id has no launch
    assert [launcher_of(trace, row) for row in range(3)] == ["cudaLaunchKernel", "", ""]
    assert trace.problems == {"kernel-without-launch": 2}
    assert trace.strings[trace.host.name[trace.host.parent[trace.device.launch[0]]]] == "aten::add"


@pytest.mark.parametrize(("correlation", "are_ops"), [([1, 2, 3, 4], False), ([1, 2, 9, 9], False), ([1, 9, 9, 9], True)])
def test_external_ids_count_as_op_ids_if_most_differ_from_the_correlation_id(
    correlation: list[int], are_ops: bool
) -> None:
    """GIVEN four kernels with external ids WHEN fewer than half of them equal the correlation ids THEN the external ids are ids
    of ops. A kernel without an external id does not count."""
    assert external_ids_are_ops(np.array([1, 2, 3, 4, 0]), np.array([*correlation, 0])) == are_ops


@pytest.mark.parametrize("key", ["External id", "external id"])
def test_a_kernel_without_a_launch_call_belongs_to_the_op_with_its_external_id(key: str) -> None:
    events = [
        op("aten::add", 10, 20, External_id=13),
        op("aten::late", 900, 20, External_id=14),
        kernel(11, 20, **{key: 13}),
        kernel(12, 40, **{key: 14}),  # the op with this id began after the kernel, so the ids are equal by chance
        kernel(15, 60, **{key: 0}),
    ]
    trace = imported(events)
    assert [launcher_of(trace, row) for row in range(3)] == ["aten::add", "", ""]
    assert trace.problems == {"kernel-without-launch": 2}


def test_a_cuda_graph_launch_is_matched_to_all_of_its_kernels() -> None:
    trace = imported([op("replay", 0, 50), call(5, 1), *(kernel(5, 10 + 6 * i) for i in range(100))])
    assert set(trace.device.launch.tolist()) == {1}


def test_flow_events_are_ignored() -> None:
    flow = {"id": 5, "pid": 7, "tid": 7, "ts": T0 + 1, "cat": "ac2g", "name": "ac2g"}
    trace = imported([call(5, 1), kernel(6, 9), {"ph": "s", **flow}, {"ph": "f", "bp": "e", **flow}])
    assert launcher_of(trace) == ""
    assert trace.problems == {"kernel-without-launch": 1, "lost-kernel": 1}


# --- categories and threads


def test_files_from_2020_with_textual_thread_ids_can_be_imported() -> None:
    # GIVEN a file in which device indices are also process ids, thread ids are text, and memory events have numeric thread ids
    events = [
        op("aten::add", 0, 20, tid="3340707648", cat="Operator", External_id=3),
        op("ProfilerStep#4", 0, 90, tid="3340707648", cat="Operator"),
        op("cudaLaunchKernel", 5, 2, tid="3340707648", cat="Runtime", correlation=8),
        {**kernel(8, 30, cat="Kernel"), "tid": "stream 7", "args": {"correlation": 8, "external id": 3}},
        {"ph": "X", "cat": "Memcpy", "name": "Memcpy DtoH", "pid": 0, "tid": "stream 9", "ts": T0 + 50, "dur": 1},
        {"ph": "i", "name": "[memory]", "pid": 7, "tid": 3340707648, "ts": T0 + 1, "args": {"Bytes": 64}},
    ]
    trace = read_kineto_bytes(orjson.dumps(events))
    assert trace.provenance["era"] == "E0"
    assert [(thread.tid, thread.role) for thread in trace.threads] == [(3340707648, "main")]
    assert trace.device.stream.tolist() == [7, 9]
    assert trace.device.device.tolist() == [0, 0]
    assert launcher_of(trace) == "cudaLaunchKernel"
    assert trace.host.kind.tolist() == [HostKind.ANNOTATION, HostKind.OP, HostKind.RUNTIME]
    assert trace.steps.number.tolist() == [4]
    assert trace.memory.thread.tolist() == [0]


@pytest.mark.parametrize("pid", ["python", None, [1], 3.0, True])
def test_process_ids_of_any_type_are_accepted(pid: Any) -> None:
    trace = imported([op("aten::add", 0, 20) | {"pid": pid}, op("aten::mul", 2, 3) | {"pid": pid, "tid": "worker"}])
    assert len(trace.host) == 2
    assert len(trace.threads) == 2


def test_device_events_that_are_not_gpu_work_are_recognized() -> None:
    events = [
        op("cudaStreamSynchronize", 0, 9, cat="cuda_runtime", correlation=3),
        kernel(3, 1, 7, cat="cuda_sync"),
        kernel(0, 1, 7, cat="gpu_user_annotation"),
        op("PyTorch Profiler (0)", 0, 99, cat="Trace"),
        op("Buffer Flush", 0, 9, cat="overhead", tid=0),
        op("train.py(3): main", 0, 99, cat="python_function"),
    ]
    trace = imported(events)
    assert sorted(trace.device.kind.tolist()) == [DeviceKind.SYNC, DeviceKind.ANNOTATION]
    assert sorted(trace.host.kind.tolist()) == [HostKind.RUNTIME, HostKind.PYTHON, HostKind.OTHER]
    assert "GPU work" in trace.lacks
    assert trace.problems == {}


def test_imported_threads_get_a_role_and_a_name() -> None:
    def named(tid: int, name: str) -> Event:
        args = {"name": f"thread {tid} ({name})"}
        return {"ph": "M", "name": "thread_name", "pid": 7, "tid": tid, "args": args}

    events = [
        op("autograd::engine::evaluate_function: AddBackward0", 30, 5, tid=8, Fwd_thread_id=1, Sequence_number=4),
        op("aten::pin_memory", 0, 5, tid=9),
        op("ncclKernel", 0, 5, tid=10),
        op("aten::add", 0, 9, Sequence_number=4, Fwd_thread_id=0),
        named(8, "python"),
        named(8, "pt_autograd_0"),
        named(9, "pt_data_pin"),
    ]
    trace = imported(events)
    assert [(t.tid, t.name, t.role) for t in trace.threads] == [
        (7, "", "main"),
        (8, "pt_autograd_0", "backward"),
        (9, "pt_data_pin", "loader"),
        (10, "", "other"),
    ]
    assert trace.host.sequence.tolist() == [4, 4, NONE, NONE]
    assert trace.host.forward_thread.tolist() == [NONE, 1, NONE, NONE]


@pytest.mark.parametrize(("engine", "between"), [(8, [("loss", 29, 40)]), (7, [])])
def test_ops_of_the_main_thread_are_not_part_of_another_threads_backward_pass(
    engine: int, between: list[tuple[str, int, int]]
) -> None:
    """GIVEN two batches before one optimizer step WHEN no op has an autograd number THEN the second loss begins where the first
    backward pass ends. If autograd runs on the main thread, autograd may have called the op, so no second loss phase begins."""
    node = "autograd::engine::evaluate_function: MseLossBackward0"
    batches = [
        event
        for at in (0, 30)
        for event in (
            op("aten::mse_loss", at, 9),
            call(at + 1, at + 1),
            kernel(at + 1, at + 2, 3),
            op(node, at + 10, 19, tid=engine),
            call(at + 2, at + 11) | {"tid": engine},
            kernel(at + 2, at + 12, 3),
        )
    ]
    ranges = [op("Optimizer.step#SGD.step", 60, 10, cat="user_annotation"), op("ProfilerStep#1", 0, 71, cat="user_annotation")]
    trace = imported([*batches, *ranges])
    phases = [
        (trace.strings[name], (start_ns - trace.steps.start_ns[0]) // 1000, (end_ns - trace.steps.start_ns[0]) // 1000)
        for name, start_ns, end_ns in zip(trace.phases.name, trace.phases.start_ns, trace.phases.end_ns, strict=True)
    ]
    assert [phase for phase in phases if phase[0] == "loss"] == [("loss", 0, 10), *between]


def test_used_gpus_are_listed_and_visible_gpus_are_counted() -> None:
    properties = [{"id": i, "name": f"GPU {i}", "totalGlobalMem": 10 + i, "numSms": 80} for i in range(4)]
    trace = imported([kernel(1, 0, device=2)], deviceProperties=properties)
    assert [(d.index, d.name, d.total_memory_bytes) for d in trace.devices] == [(2, "GPU 2", 12)]
    assert trace.devices[0].properties == DeviceProperties(multi_processor_count=80)
    assert trace.provenance["visible_devices"] == 4
    assert len(imported([op("aten::add", 0, 1)], deviceProperties=properties).devices) == 4


# --- shapes


def test_imported_shapes_keep_their_dimensions_and_nested_lists_are_flattened() -> None:
    events = [
        op("a", 0, 1, Input_Dims=[[2, 3], [], [4]], Input_type=["float", "Scalar", "long int"]),
        op("b", 2, 1, Input_Dims=[[[1, 2], [3], []], [5]], Input_type=["TensorList", "c10::BFloat16"]),
        op("c", 4, 1, Input_Dims=[], Input_type=[]),
        op("d", 6, 1),
        op("e", 8, 1, Input_Dims=[["|"], [1]], Input_type=[["x", "|"], ["|"]]),
    ]
    trace = imported(events)
    text = trace.strings
    assert [text[i] for i in trace.host.shapes] == ["2,3;4", "1,2;3;5", "", "", "1"]
    assert [text[i] for i in trace.host.dtypes] == ["float32;int64", ";;bfloat16", "", "", ""]
    assert (trace.host.shapes == NONE).tolist() == [False, False, False, True, False]


# --- steps and phases


def training_step(start: float, backward_tid: int = 8) -> list[Event]:
    copy = {**kernel(int(start) + 1, start + 22, 3, cat="gpu_memcpy"), "name": "Memcpy HtoD (Pinned -> Device)"}
    return [
        op("enumerate(DataLoader)#_Iter.__next__", start + 1, 15, cat="user_annotation"),
        op("aten::empty", start + 3, 2),
        op("aten::to", start + 20, 9),
        call(int(start) + 1, start + 21),
        copy,
        op("aten::conv2d", start + 30, 8, Sequence_number=1),
        call(int(start) + 2, start + 32),
        kernel(int(start) + 2, start + 35, 60),
        op("aten::nll_loss", start + 40, 4, Sequence_number=2),
        op("aten::zeros", start + 45, 1),
        op("Optimizer.zero_grad#SGD.zero_grad", start + 47, 3, cat="user_annotation"),
        op("aten::ones_like", start + 51, 1),
        op("NllLossBackward0", start + 53, 4, tid=backward_tid, Fwd_thread_id=1),
        op("aten::add", start + 58, 2, tid=backward_tid),
        op("ConvolutionBackward0", start + 60, 8, tid=backward_tid, Fwd_thread_id=1),
        op("Optimizer.step#SGD.step", start + 70, 10, cat="user_annotation"),
    ]


EXPECTED = [  # the name, start and end of each phase in a step from 0 to 100 us
    ("loader", 0, 16),
    ("h2d", 16, 29),
    ("forward", 29, 40),
    ("loss", 40, 47),
    ("zero_grad", 47, 50),
    ("backward", 50, 68),
    ("optimizer", 68, 100),
]


@pytest.mark.parametrize("backward_tid", [7, 8], ids=["engine on the main thread", "engine on its own thread"])
def test_a_plain_step_is_divided_into_phases(backward_tid: int) -> None:
    mark = op("ProfilerStep#5", 0, 100, cat="user_annotation")
    trace = imported([mark, *training_step(0, backward_tid)])
    phases = trace.phases
    found = [
        (trace.strings[name], (start - T0 * 1000) // 1000, (end - T0 * 1000) // 1000)
        for name, start, end in zip(phases.name, phases.start_ns.tolist(), phases.end_ns.tolist(), strict=True)
    ]
    assert found == EXPECTED
    assert (trace.steps.number.tolist(), trace.steps.kind.tolist()) == ([5], [StepKind.STEADY])


def phases_of(*events: Event) -> list[tuple[str, int]]:
    """Return the phases of a step from 0 to 100 us, and their ends."""
    trace = imported([op("ProfilerStep#5", 0, 100, cat="user_annotation"), *events])
    ends = ((trace.phases.end_ns - T0 * 1000) // 1000).tolist()
    return list(zip((trace.strings[i] for i in trace.phases.name), ends, strict=True))


@pytest.mark.parametrize("on_gpu", [True, False])
def test_creating_a_tensor_just_before_a_module_belongs_to_the_phase_other(on_gpu: bool) -> None:
    """GIVEN a batch that a script creates on the GPU between `zero_grad` and the range of a module THEN this time counts as
    "other", as in a replay. A tensor on the CPU is ignored, because old profilers create such a tensor for each range."""
    zero_grad = op("Optimizer.zero_grad#SGD.zero_grad", 10, 5, cat="user_annotation")
    zeros = [op("aten::zeros", 20, 6), *([call(1, 22), kernel(1, 24, 5)] if on_gpu else [])]
    forward = [op("nn.Module: Net_0", 30, 20, cat="user_annotation"), op("aten::mm", 35, 8), call(2, 36), kernel(2, 38, 5)]
    expected = [("other", 10), ("zero_grad", 15), *([("other", 35)] if on_gpu else []), ("forward", 100)]
    assert phases_of(zero_grad, *zeros, *forward) == expected


METRICS = [op("aten::argmax", 2, 5), call(5, 3), kernel(5, 5, 1)]
LOADER = op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 12, 8, cat="user_annotation")
COPY = [op("aten::to", 20, 9), call(1, 21), {**kernel(1, 24, 3, cat="gpu_memcpy"), "name": "Memcpy HtoD (Pageable -> Device)"}]
ADD = [op("aten::add", 35, 4), call(6, 36), kernel(6, 38, 1)]
MM = [op("aten::mm", 45, 8), call(2, 46), kernel(2, 48, 5)]
MODULE = [op("nn.Module: Net_0", 40, 20, cat="user_annotation"), *MM]
ZERO_GRAD = op("Optimizer.zero_grad#SGD.zero_grad", 30, 2, cat="user_annotation")
STEP = op("Optimizer.step#SGD.step", 80, 10, cat="user_annotation")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([*METRICS, LOADER, *MM, STEP], [("other", 12), ("loader", 20), ("forward", 80), ("optimizer", 100)]),
        ([*METRICS, *COPY, *MODULE, STEP], [("other", 20), ("h2d", 29), ("forward", 80), ("optimizer", 100)]),
        ([*METRICS, *MODULE, STEP], [("other", 45), ("forward", 80), ("optimizer", 100)]),
        # marks may end a step after its metrics
        ([*MODULE, STEP, op("aten::argmax", 92, 5), call(5, 93), kernel(5, 95, 1)],
         [("other", 45), ("forward", 80), ("optimizer", 90), ("other", 100)]),
        # after zero_grad, the recorder lets the forward pass begin at the end of zero_grad
        ([ZERO_GRAD, *ADD, *MODULE, STEP], [("other", 30), ("zero_grad", 32), ("forward", 80), ("optimizer", 100)]),
        # without modules, the first op may be part of the model
        ([*METRICS, *COPY, *MM, STEP], [("other", 2), ("forward", 80), ("optimizer", 100)]),
        ([*METRICS, *MM, STEP, op("enumerate(DataLoader)#_X.__next__", 92, 4, cat="user_annotation")],
         [("other", 2), ("forward", 80), ("optimizer", 90), ("loader", 100)]),
        # a script without an optimizer computes no training metrics
        ([*METRICS, *COPY, *MODULE], [("other", 2), ("forward", 100)]),
    ],
)  # fmt: skip
def test_metrics_after_the_optimizer_do_not_begin_a_forward_pass(events: list[Event], expected: list[tuple[str, int]]) -> None:
    """GIVEN an op between an optimizer's step and the next batch THEN the op belongs to "other"."""
    assert phases_of(*events) == expected


def test_ops_that_create_a_batch_do_not_form_a_phase() -> None:
    copy = {**kernel(1, 24, 3, cat="gpu_memcpy"), "name": "Memcpy HtoD (Pageable -> Device)"}
    copying = [op("aten::to", 20, 9), call(1, 21), copy]
    forward = [op("aten::mm", 35, 8), call(2, 36), kernel(2, 38, 5)]
    expected = [("other", 20), ("h2d", 29), ("forward", 100)]
    assert phases_of(op("aten::randn", 2, 5), op("aten::div", 8, 5), *copying, *forward) == expected
    on_gpu = [op("aten::randn", 2, 5), call(3, 3), kernel(3, 5, 2)]
    assert phases_of(*on_gpu, *copying, *forward) == expected  # the recorder does not see these ops either
    # A module call that raises an exception launches nothing, but begins the forward pass in a running script.
    failed = [op("nn.Module: Linear_0", 2, 12, cat="user_annotation"), op("aten::linear", 8, 5)]
    assert phases_of(*failed, *copying, *forward) == [("other", 8), ("forward", 100)]


def test_a_function_that_draws_numbers_on_the_cpu_does_not_begin_the_forward_pass() -> None:
    """GIVEN a script that calls `Beta(0.2, 0.2).sample()` on the CPU and then computes a random permutation on the GPU, as for
    mixup THEN the permutation begins the phase "other", as in a replay. If the function that draws the numbers launches a
    kernel, the function begins the forward pass."""
    zero_grad = op("Optimizer.zero_grad#SGD.zero_grad", 10, 5, cat="user_annotation")
    function = [op("_Dirichlet", 20, 8, Sequence_number=5), op("aten::_sample_dirichlet", 22, 4)]
    function.append(op("aten::select", 29, 1, Sequence_number=6))
    permutation = [op("aten::randperm", 30, 8), call(1, 32), kernel(1, 34, 5)]
    module = [op("nn.Module: Net_0", 50, 40, cat="user_annotation")]
    forward = [*module, *(part for at in (51, 61) for part in (op("aten::mm", at, 8), call(at, at + 1), kernel(at, at + 3, 5)))]
    expected = [("other", 10), ("zero_grad", 15), ("other", 51), ("forward", 100)]
    assert phases_of(zero_grad, *function, *permutation, *forward) == expected
    expected = [("other", 10), ("zero_grad", 15), ("forward", 100)]
    assert phases_of(zero_grad, *function, call(2, 23), kernel(2, 25, 3), *permutation, *forward) == expected


def test_a_copy_that_overlaps_the_next_launch_through_rounding_ends_before_the_launch() -> None:
    """GIVEN a copy from 20 to 29 us WHEN a graph launch begins at 28 us, because times are rounded THEN the copy ends before
    the launch."""
    copy = {**kernel(1, 24, 3, cat="gpu_memcpy"), "name": "Memcpy HtoD (Pageable -> Device)"}
    graph = [call(2, 28, 10) | {"name": "cudaGraphLaunch"}, kernel(2, 40, 5)]
    mark = op("ProfilerStep#5", 0, 100, cat="user_annotation")
    trace = imported([mark, op("aten::copy_", 20, 9), call(1, 21), copy, *graph])
    assert launch_phase_names(trace).tolist() == ["h2d", "forward"]


def test_a_conversion_that_returns_its_input_does_not_begin_the_forward_pass() -> None:
    """GIVEN a step that begins with `aten::to` THEN the forward pass begins with this op only if it really casts its input."""
    zero_grad = op("Optimizer.zero_grad#SGD.zero_grad", 20, 5, cat="user_annotation")
    forward = [op("aten::mm", 35, 8), call(2, 36), kernel(2, 38, 5)]
    to = op("aten::to", 2, 9)
    expected = [("other", 20), ("zero_grad", 25), ("forward", 100)]
    assert phases_of(to, zero_grad, *forward) == expected
    assert phases_of(op("aten::type_as", 1, 12), to, zero_grad, *forward) == expected
    cast = [op("aten::_to_copy", 3, 7), call(1, 4), kernel(1, 6, 2)]
    assert phases_of(to, *cast, zero_grad, *forward) == [("other", 2), ("forward", 20), *expected[1:]]


def test_record_stream_on_a_batch_does_not_start_a_forward_pass() -> None:
    load = op("enumerate(DataLoader)#_Iter.__next__", 20, 10, cat="user_annotation")
    assert phases_of(op("aten::record_stream", 10, 2), load, op("aten::mm", 40, 5)) == [("loader", 30), ("forward", 100)]


def test_creating_a_view_of_a_tensor_does_not_start_a_forward_pass() -> None:
    """GIVEN views after a batch THEN the forward pass begins with the first op that is not a view. An op inside a reshape also
    begins the forward pass."""
    load = op("enumerate(DataLoader)#_Iter.__next__", 20, 10, cat="user_annotation")
    views = [op("aten::select", 32, 4), op("aten::as_strided", 33, 1), op("aten::detach", 37, 3), op("detach", 38, 1)]
    views += [op("aten::reshape", 40, 9)]
    zero_grad = op("Optimizer.zero_grad#SGD.zero_grad", 50, 5, cat="user_annotation")
    assert phases_of(load, *views, zero_grad, op("aten::mm", 60, 5)) == [("loader", 30), ("zero_grad", 55), ("forward", 100)]
    copying = [*views, op("aten::clone", 42, 6)]
    expected = [("loader", 30), ("forward", 50), ("zero_grad", 55), ("forward", 100)]
    assert phases_of(load, *copying, zero_grad, op("aten::mm", 60, 5)) == expected


@pytest.mark.parametrize("category", ["user_annotation", "python_function"])
def test_an_op_in_a_module_begins_the_forward_pass(category: str) -> None:
    """The forward pass of a GPT model begins with `torch.arange`. Outside of modules, `torch.arange` does not begin a forward
    pass."""
    module, forward = op("nn.Module: GPT_0", 30, 20, cat=category), op("aten::mm", 35, 8)
    copy = {**kernel(1, 24, 3, cat="gpu_memcpy"), "name": "Memcpy HtoD (Pageable -> Device)"}
    copying, positions = [op("aten::to", 20, 9), call(1, 21), copy], op("aten::arange", 31, 2)
    assert phases_of(*copying, module, positions, forward) == [("other", 20), ("h2d", 29), ("forward", 100)]
    assert phases_of(*copying, positions, forward) == [("other", 20), ("h2d", 29), ("other", 35), ("forward", 100)]


def test_a_collective_outside_of_modules_and_compiled_code_does_not_begin_a_forward_pass() -> None:
    """The forward pass begins with the first op of a module or of compiled code, and not with the all-reduce of a loss."""
    reduces, module = op("c10d::allreduce_", 20, 9), op("nn.Module: GPT_0", 40, 20)
    assert phases_of(reduces, module, op("aten::mm", 45, 8)) == [("other", 45), ("forward", 100)]
    region = op("Torch-Compiled Region: 0/0", 40, 20)
    assert phases_of(reduces, region, op("aten::mm", 45, 8)) == [("other", 45), ("forward", 100)]
    assert phases_of(reduces, op("aten::mm", 45, 8)) == [("other", 20), ("forward", 100)]


def numbered(name: str, start: float, number: int) -> Event:
    return op(name, start, 2, Sequence_number=number)


def test_an_op_with_gradients_between_backward_passes_begins_a_forward_pass() -> None:
    backward = op("MmBackward0", 30, 10, tid=8, Fwd_thread_id=1)
    first = [numbered("aten::mm", 10, 5), numbered("aten::sum", 20, 6), backward]
    # Gradient clipping records the number of the next autograd node, but creates no node.
    clipping = [op("aten::mul_", 45, 2), numbered("aten::norm", 50, 7), numbered("aten::div", 53, 7)]
    second = [numbered("aten::mm", 60, 7), numbered("aten::sum", 70, 8), {**backward, "ts": backward["ts"] + 50}]
    before = [("other", 10), ("forward", 30), ("backward", 40)]
    assert phases_of(*first, *clipping, *second) == [*before, ("other", 60), ("forward", 80), ("backward", 100)]
    assert phases_of(*first, *second) == [*before, ("forward", 80), ("backward", 100)]
    assert phases_of(*first, *second[:-1]) == [*before, ("other", 100)]  # no backward pass follows


def test_a_metric_between_two_backward_passes_does_not_begin_the_second_forward_pass() -> None:
    """GIVEN a metric after a backward pass, such as `output.mean().item()` in PyTorch's DCGAN example WHEN a module is called
    next THEN the second forward pass begins with the module, as in the recorder."""
    backward = op("MmBackward0", 30, 10, tid=8, Fwd_thread_id=1)
    first = [numbered("aten::mm", 10, 5), backward]
    metric, module = numbered("aten::mean", 45, 6), op("nn.Module: Net_0", 58, 10, cat="user_annotation")
    second = [numbered("aten::mm", 60, 7), {**backward, "ts": backward["ts"] + 50}]
    before = [("other", 10), ("forward", 30), ("backward", 40)]
    assert phases_of(*first, metric, module, *second) == [*before, ("other", 60), ("forward", 80), ("backward", 100)]
    assert phases_of(*first, metric, *second) == [*before, ("forward", 80), ("backward", 100)]  # no module is known


def test_after_a_backward_pass_that_builds_a_graph_the_next_op_begins_a_forward_pass() -> None:
    """GIVEN a file with a module WHEN two losses are added between two backward passes THEN the addition is in the phase
    "other", as in the recorder. WHEN autograd recorded an op in the first backward pass THEN this pass built a graph, so the
    addition is a forward pass."""
    module, backward = op("nn.Module: Net_0", 8, 12, cat="user_annotation"), op("MmBackward0", 30, 10, tid=8, Fwd_thread_id=1)
    first, second = [module, numbered("aten::mm", 10, 5), backward], [numbered("aten::add", 60, 7), {**backward}]
    second[1]["ts"] = backward["ts"] + 50
    events = first + second
    after = op("aten::mul", 95, 2, Sequence_number=8)
    before = [("other", 10), ("forward", 30), ("backward", 40)]
    last = [("backward", 90), ("other", 100)]
    assert phases_of(*events, after) == [*before, ("other", 80), *last]
    graph = op("aten::mm", 32, 2, tid=8, Sequence_number=6)
    assert phases_of(*events, graph, after) == [*before, ("forward", 80), *last]


def test_recomputing_a_checkpoint_during_a_backward_pass_builds_no_graph() -> None:
    """GIVEN a checkpoint, whose repeated op has a sequence number, while the node's own op has none WHEN a metric follows the
    backward pass THEN the metric belongs to the phase "other", as in the recorder. If both ops have a number, the backward pass
    built a graph, and the metric begins a forward pass."""
    module, backward = range_("nn.Module: Net_0", 8, 12), op("MmBackward0", 30, 10, tid=8, Fwd_thread_id=1)
    repeated, own = op("aten::mm", 31, 2, tid=8, Sequence_number=6), op("aten::mm", 35, 2, tid=8)
    metric, again, after = numbered("aten::mean", 45, 6), range_("nn.Module: Net_0", 58, 10), numbered("aten::mul", 95, 8)
    second = [again, numbered("aten::mm", 60, 7), {**backward, "ts": backward["ts"] + 50}, after]
    events = [module, numbered("aten::mm", 10, 5), backward, repeated, metric, *second]
    before, last = [("other", 10), ("forward", 30), ("backward", 40)], [("backward", 90), ("other", 100)]
    assert phases_of(*events, own) == [*before, ("other", 60), ("forward", 80), *last]
    own["args"]["Sequence number"] = 7
    assert phases_of(*events, own) == [*before, ("forward", 80), *last]


@pytest.mark.parametrize(("with_stack", "begins_us"), [(True, 50), (False, 51)])
def test_after_a_backward_pass_a_compiled_function_begins_the_next_forward_pass(with_stack: bool, begins_us: int) -> None:
    """GIVEN a compiled model and a loss that is a module WHEN the compiled model runs for the second time THEN the forward pass
    begins with the compiled region, as in the recorder. A region that autograd does not record belongs to the phase "other"."""
    python = [op("graph.py(1): call", 51, 10, cat="python_function")] if with_stack else []
    region, records = op("Torch-Compiled Region: 0/0", 50, 12), op("CompiledFunction", 51, 9, Sequence_number=7)
    module, loss = range_("nn.Module: MSELoss_0", 10, 12), numbered("aten::sub", 12, 5)
    backward, metric = op("MmBackward0", 30, 10, tid=8, Fwd_thread_id=1), numbered("aten::mean", 45, 6)
    again = [{**event, "ts": event["ts"] + 54} for event in (module, loss, backward)]
    again[1]["args"] = {"Sequence number": 8}
    events = [module, loss, backward, metric, region, *python, *again, op("aten::mul", 96, 2, Sequence_number=9)]
    before, last = [("other", 12), ("forward", 30), ("backward", 40)], [("backward", 94), ("other", 100)]
    assert phases_of(*events, records) == [*before, ("other", begins_us), ("forward", 84), *last]
    assert phases_of(*events) == [*before, ("other", 66), ("forward", 84), *last]


def test_the_search_for_unused_parameters_belongs_to_the_forward_pass() -> None:
    """With `find_unused_parameters=True`, DistributedDataParallel searches for unused parameters before the forward pass
    returns."""
    search = op("torch.distributed.ddp.reducer::search_unused_parameters", 16, 2)
    backward = op("MmBackward0", 30, 10, tid=8, Fwd_thread_id=1)
    forward = [numbered("aten::mm", 10, 5), search, numbered("_DDPSink", 20, 6)]
    assert phases_of(*forward, backward) == [("other", 10), ("forward", 30), ("backward", 100)]


def test_an_optimizer_closure_is_divided_into_forward_and_backward_phases() -> None:
    """GIVEN an optimizer that calls its closure twice THEN the forward and backward passes of the closure are phases. Ops
    without gradients belong to the optimizer."""
    step = op("Optimizer.step#LBFGS.step", 30, 50, cat="user_annotation")
    closure = [op("MmBackward0", 44, 4, tid=8, Fwd_thread_id=1), op("aten::neg", 50, 1), op("aten::add_", 53, 1)]
    again = [numbered("aten::mm", 56, 6), op("MmBackward0", 60, 10, tid=8, Fwd_thread_id=1), op("aten::dot", 74, 2)]
    first = [numbered("aten::mm", 40, 5), numbered("aten::cross_entropy_loss", 42, 5)]
    phases = [("forward", 42), ("loss", 44), ("backward", 48), ("optimizer", 56), ("forward", 60), ("backward", 70)]
    before = [("other", 10), ("forward", 30), ("optimizer", 40)]
    assert phases_of(op("aten::mm", 10, 5), step, *first, *closure, *again) == [*before, *phases, ("optimizer", 100)]


def test_the_optimizer_phase_begins_where_the_profiler_range_of_the_closure_ends() -> None:
    """GIVEN a closure that clips gradients after its backward pass THEN the optimizer phase begins where the closure's range
    ends."""
    step, closure = [
        op(name, start, length, cat="user_annotation")
        for name, start, length in [("Optimizer.step#Adam.step", 30, 50), ("Optimizer.closure", 32, 30)]
    ]
    zero_grad = op("Optimizer.zero_grad#Adam.zero_grad", 33, 4, cat="user_annotation")
    passes = [numbered("aten::mm", 40, 5), op("MmBackward0", 50, 5, tid=8, Fwd_thread_id=1), op("aten::norm", 57, 2)]
    phases = [("optimizer", 32), ("zero_grad", 37), ("forward", 50), ("backward", 55), ("other", 62), ("optimizer", 100)]
    assert phases_of(op("aten::mm", 10, 5), step, closure, zero_grad, *passes) == [("other", 10), ("forward", 30), *phases]


@pytest.mark.parametrize(("number", "phase"), [(7, "forward"), (None, "other")], ids=["with gradients", "without gradients"])
def test_after_a_backward_pass_a_module_call_begins_the_next_forward_pass(number: int | None, phase: str) -> None:
    """The first op of the module creates a tensor, and such an op never has an autograd number."""
    first = [numbered("aten::mm", 10, 5), op("MmBackward0", 30, 10, tid=8, Fwd_thread_id=1)]
    inner = op("aten::mm", 55, 2) if number is None else numbered("aten::mm", 55, number)
    module = [op("nn.Module: GPT_0", 45, 20, cat="python_function"), op("aten::arange", 46, 2), inner]
    assert phases_of(*first, *module) == [("other", 10), ("forward", 30), ("backward", 40), (phase, 100)]


@pytest.mark.parametrize(("dims", "backward_us"), [([[]], 25), ([[64, 1]], 30), (None, 25)])
def test_only_creating_a_scalar_gradient_begins_the_backward_phase(dims: list[Any] | None, backward_us: int) -> None:
    """The forward phase ends where the backward phase begins."""
    ones = op("aten::ones_like", 25, 2, **({} if dims is None else {"Input_Dims": dims}))
    forward, *_, backward = phases_of(op("aten::mm", 0, 2), ones, op("MmBackward0", 30, 10, tid=8, Fwd_thread_id=1))
    assert (forward, backward) == (("forward", backward_us), ("backward", 100))


def range_(name: str, start: float, dur: float) -> Event:
    return op(name, start, dur, cat="user_annotation")


def test_ranges_that_a_library_annotates_are_imported_as_phases() -> None:
    backward = op("NllLossBackward0", 60, 10, tid=8, Fwd_thread_id=1)
    torchrec = [
        range_("## wait_for_batch ##", 0, 10),
        range_("## copy_batch_to_gpu ##", 10, 10),
        range_("## forward ##", 20, 20),
        op("aten::mm", 21, 2, Sequence_number=1),
        op("aten::mse_loss", 30, 2, Sequence_number=2),
        op("aten::add", 33, 2, Sequence_number=3),
        op("aten::index_select", 45, 2),  # this op prepares the next batch
        backward,
        range_("## optimizer ##", 75, 20),
        op("aten::add_", 80, 2),
        op("aten::topk", 96, 2),  # this op computes a metric
    ]
    assert phases_of(*torchrec) == [
        ("loader", 10), ("h2d", 20), ("forward", 30), ("loss", 45), ("other", 60), ("backward", 70), ("optimizer", 95),
        ("other", 100),
    ]  # fmt: skip
    lightning = [
        range_("[pl][profile][_TrainingEpochLoop].train_dataloader_next", 0, 10),
        range_("[pl][profile][Strategy]SingleDeviceStrategy.batch_to_device", 10, 10),
        op("aten::mm", 21, 2, Sequence_number=1),
        backward,
        range_("[pl][module]torch.optim.optimizer_step", 75, 20),
    ]
    assert [name for name, _ in phases_of(*lightning)] == ["loader", "h2d", "forward", "backward", "optimizer"]
    # The ranges of PyTorch are more exact than the ranges of the library.
    within = [range_("## optimizer ##", 50, 40), range_("Optimizer.step#SGD.step", 60, 20), op("aten::mm", 1, 2)]
    assert phases_of(*within) == [("other", 1), ("forward", 60), ("optimizer", 100)]


COMPILED_BACKWARD_AND_OPTIMIZER = [
    op("Torch-Compiled Region: !0/1/0", 40, 20),
    op("aten::mm", 45, 5),
    range_("Optimizer.step#SGD.step", 75, 20),
]


@pytest.mark.parametrize("forward_us", [20, 55])  # 55 us: the backward pass runs within the region after a graph break
def test_a_backward_pass_compiled_by_compiled_autograd_is_the_backward_phase(forward_us: int) -> None:
    events = [
        op("Torch-Compiled Region: 0/0", 10, forward_us),
        op("CompiledFunction", 11, 18, Sequence_number=1),
        op("aten::addmm", 12, 5),
        op("aten::ones_like", 32, 2),
        op("TorchDynamo Cache Lookup", 36, 3),
        *COMPILED_BACKWARD_AND_OPTIMIZER,
    ]
    assert phases_of(*events) == [("other", 11), ("forward", 32), ("backward", 50), ("optimizer", 100)]


def test_empty_tensors_between_the_first_gradient_and_compiled_autograd_belong_to_the_backward_phase() -> None:
    events = [
        op("aten::mm", 10, 5, Sequence_number=1),
        op("aten::ones_like", 32, 2),
        op("aten::empty", 35, 1),
        op("aten::empty", 37, 1),
        *COMPILED_BACKWARD_AND_OPTIMIZER,
    ]
    assert phases_of(*events) == [("other", 10), ("forward", 32), ("backward", 50), ("optimizer", 100)]
    # If no backward pass follows, the ops belong to the forward pass.
    assert phases_of(*events[:4], events[-1]) == [("other", 10), ("forward", 75), ("optimizer", 100)]


@pytest.mark.parametrize("text", ["## forward:over_arch ##", "forward_hook", "## backward ##", "nccl:all_reduce", "", "[pl]"])
def test_unknown_annotations_are_not_phases(text: str) -> None:
    assert phase_of_annotation(text) == ""


def test_a_phase_ends_on_the_gpu_when_all_previously_launched_work_has_ended() -> None:
    trace = imported([op("ProfilerStep#5", 0, 100, cat="user_annotation"), *training_step(0)])
    ends = dict(zip((trace.strings[i] for i in trace.phases.name), trace.phases.device_end_ns.tolist(), strict=True))
    # The kernel of the convolution runs until 95 us, so no later phase ends before 95 us.
    assert {name: (ns - T0 * 1000) // 1000 for name, ns in ends.items()} == {
        "loader": 16,
        "h2d": 29,
        "forward": 95,
        "loss": 95,
        "zero_grad": 95,
        "backward": 95,
        "optimizer": 100,
    }


def test_without_profiler_marks_each_optimizer_step_ends_a_step() -> None:
    events = training_step(0) + training_step(100)
    # Some releases record the range of an optimizer twice, one within the other. A second optimizer runs after the first.
    events.append(op("Optimizer.step#SGD.step", 71, 8, cat="user_annotation"))
    events.append(op("Optimizer.step#Adam.step", 85, 8, cat="user_annotation"))
    trace = imported(events)
    assert trace.provenance["steps_from"] == "optimizer"
    assert ((trace.steps.start_ns - T0 * 1000) // 1000).tolist() == [1, 80]
    assert ((trace.steps.end_ns - T0 * 1000) // 1000).tolist() == [80, 180]
    assert trace.steps.number.tolist() == [0, 1]


def test_of_two_optimizers_with_closures_only_the_first_ends_steps() -> None:
    """GIVEN an LBFGS optimizer from 10 to 50 us and an Adam optimizer from 60 to 90 us, both with a closure THEN each step ends
    with LBFGS."""
    one = [numbered("aten::mm", 5, 4)]
    for name, at, length in (("LBFGS", 10, 40), ("Adam", 60, 30)):
        one.append(op(f"Optimizer.step#{name}.step", at, length, cat="user_annotation"))
        one += [numbered("aten::mm", at + 5, 5), op("MmBackward0", at + 10, 5, tid=8, Fwd_thread_id=1)]
        one.append(op("aten::mul_", at + 20, 2))
    steps_from, kinds, ends = seen([*one, *shifted(one, 100)])
    assert (steps_from, kinds, ends) == ("optimizer", ["STEADY"] * 2, [50, 150])


def test_of_two_optimizers_of_one_class_with_closures_only_the_first_ends_steps() -> None:
    """GIVEN two LBFGS optimizers in turn, whose parameters have the sizes 3 and 4 THEN each step ends with the first
    optimizer. The first step lacks the second optimizer."""
    one = [numbered("aten::mm", 5, 4)]
    for size, at in ((3, 10), (4, 60)):
        one.append(op("Optimizer.step#LBFGS.step", at, 30, cat="user_annotation"))
        one += [numbered("aten::mm", at + 5, 5), op("MmBackward0", at + 10, 5, tid=8, Fwd_thread_id=1)]
        one.append(op("aten::mul_", at + 20, 2, **{"Input Dims": [[size]]}))
    kinds = ["INCOMPLETE", "STEADY", "STEADY"]
    assert seen([*one, *shifted(one, 100), *shifted(one, 200)]) == ("optimizer", kinds, [40, 140, 240])


@pytest.mark.parametrize(("missing", "kind"), [(3, "STEADY"), (4, "INCOMPLETE")])
def test_the_first_step_is_incomplete_if_it_lacks_more_than_3_percent_of_the_calls(missing: int, kind: str) -> None:
    """GIVEN three steps, each with 98 ops, a backward pass and an optimizer step WHEN the first step lacks ops THEN it is
    incomplete if it lacks 4 of the 100 calls."""
    one = [op("aten::mm", at, 1) for at in range(0, 196, 2)]
    one.append(op("MmBackward0", 200, 2, tid=8, Fwd_thread_id=1))
    one.append(op("Optimizer.step#SGD.step", 210, 20, cat="user_annotation"))
    assert seen([*one[missing:], *shifted(one, 300), *shifted(one, 600)])[1] == [kind, "STEADY", "STEADY"]


@pytest.mark.parametrize(
    ("updates", "ends"),
    [
        pytest.param([(1, 1), (2, 2)] * 2, [40, 240], id="the optimizers of two networks take turns"),
        pytest.param([(1, 1), (1, 2)] * 2, [40, 140, 240, 340], id="an optimizer that does more in every second step"),
        pytest.param([(1, 1), (1, 1), (1, 2)] * 2, [40, 140, 240], id="an optimizer that does more in every third step"),
        pytest.param([(1, 2), (1, 1), (1, 1), (1, 1)], [40, 140, 240, 340], id="an optimizer that does more in its first step"),
    ],
)
def test_without_shapes_optimizers_of_one_class_are_distinguished_by_numbers_of_ops(
    updates: list[tuple[int, int]], ends: list[int]
) -> None:
    """Each update is a number of ops in the forward pass and a number of ops in the optimizer."""
    events = []
    for place, (forward, count) in enumerate(updates):
        events += [numbered("aten::mm", 100 * place + 2 * number, 1) for number in range(forward)]
        events += [op("MmBackward0", 100 * place + 5, 4, tid=8, Fwd_thread_id=1)]
        events.append(op("Optimizer.step#Adam.step", 100 * place + 10, 30, cat="user_annotation"))
        events += [op("aten::add_", 100 * place + 15 + 5 * number, 2) for number in range(count)]
    assert seen(events)[2][: len(ends)] == ends


def test_a_step_that_began_before_the_recording_is_incomplete() -> None:
    """Each step takes 100 us and ends with its optimizer. WHEN the recording begins in the backward pass of the first step THEN
    only the later steps count. WHEN the first step has the calls of the other steps THEN all steps count."""
    step = [
        numbered("aten::mm", 60, 4),
        op("MmBackward0", 70, 4, tid=8, Fwd_thread_id=1),
        op("Optimizer.step#Adam.step", 80, 20, cat="user_annotation"),
    ]
    later = [*shifted(step, 100), *shifted(step, 200), *shifted(step, 300)]
    ends = [100, 200, 300, 400]
    assert seen([*step[1:], *later]) == ("optimizer", ["INCOMPLETE", *["STEADY"] * 3], ends)
    assert seen([*step, *later]) == ("optimizer", ["STEADY"] * 4, ends)


def test_a_larger_sequence_number_shows_that_autograd_recorded_an_op() -> None:
    """GIVEN ops with the sequence numbers 5, 6, 6 and 7 THEN autograd recorded each op that is followed by a larger number. The
    order of rows in the table does not matter, and ranges do not count."""
    numbers, starts = [7, 5, NONE, 6, 6, 9], [40, 10, 15, 20, 30, 25]
    kinds = [*[HostKind.OP] * 5, HostKind.ANNOTATION]
    host = HostSpans.of(kind=kinds, start_ns=starts, sequence=numbers)
    # Number 5 comes before 6, and the second number 6 comes before 7.
    assert _recorded_by_autograd(host, np.arange(6)).tolist() == [1, 4]
    assert _recorded_by_autograd(host, np.array([1, 0])).tolist() == [1]
    assert _recorded_by_autograd(host, np.array([2])).tolist() == []


def seen(events: list[Event]) -> tuple[str, list[str], list[int]]:
    """Return where the steps come from, the kinds of the steps, and the ends of the steps in microseconds."""
    trace = imported(events)
    kinds = [StepKind(kind).name for kind in trace.steps.kind.tolist()]
    return trace.provenance["steps_from"], kinds, ((trace.steps.end_ns - T0 * 1000) // 1000).tolist()


def shifted(events: list[Event], us: int) -> list[Event]:
    return [{**event, "ts": event["ts"] + us} for event in events]


def test_a_recording_without_step_marks_or_training_is_one_inference_step() -> None:
    assert seen([op("aten::add", 0, 5), op("aten::mul", 7, 5)]) == ("whole", ["EVALUATION"], [12])
    assert "marks of steps" in imported([op("aten::add", 0, 5)]).lacks
    assert seen([kernel(1, 2)]) == ("whole", ["EVALUATION"], [7])  # the kernel runs from 2 to 7 us


def test_models_trained_alternately_with_separate_optimizers_form_steps() -> None:
    """GIVEN a recording without step marks WHEN three steps use SGD and the next three steps use Adam THEN all six are training
    steps."""
    of_sgd = [event for start in (0, 100, 200) for event in training_step(start)]
    of_adam = [
        {**event, "name": event["name"].replace("SGD", "Adam")} for start in (300, 400, 500) for event in training_step(start)
    ]
    assert imported([*of_sgd, *of_adam]).steps.kind.tolist() == [StepKind.STEADY] * 6


def test_inference_is_divided_into_batches() -> None:
    batch = [op("enumerate(DataLoader)#_Iter.__next__", 0, 5, cat="user_annotation"), op("aten::conv2d", 10, 8)]
    assert seen(batch + shifted(batch, 20) + shifted(batch[:1], 40)) == ("inference", ["EVALUATION"] * 2, [20, 45])
    mark = op("ProfilerStep#4", 0, 100, cat="user_annotation")
    assert seen([mark, *batch, *shifted(batch, 20)]) == ("batches", ["EVALUATION"] * 2, [20, 100])
    assert seen([mark, *batch]) == ("profiler", ["EVALUATION"], [100])
    module = [op("nn.Module: Net_0", 1, 15, cat="python_function"), op("nn.Module: Linear_1", 2, 5, cat="python_function")]
    calls = [*module, op("aten::mm", 3, 2), *shifted([*module, op("aten::mm", 3, 2)], 50)]
    assert seen(calls) == ("inference", ["EVALUATION"] * 2, [51, 55])
    # WHEN two calls without a new batch warm up the model THEN these calls are steps, too
    warm_up = [op("nn.Module: Net_0", 10, 8, cat="python_function"), op("aten::mm", 11, 2)]
    batches = [*shifted(batch[:1] + warm_up, 40), *shifted(batch[:1] + warm_up, 60)]
    assert seen([*warm_up, *shifted(warm_up, 20), *batches]) == ("inference", ["EVALUATION"] * 4, [30, 40, 60, 73])


def test_validation_with_data_on_the_gpu_ends_when_the_next_batch_is_copied() -> None:
    """GIVEN training steps with copied batches WHEN a model is called without gradients on data that is already on the GPU THEN
    this validation ends when the next batch is copied."""

    def copied(start: int) -> list[Event]:
        copy = {**kernel(start + 1, start + 3, 3, cat="gpu_memcpy"), "name": "Memcpy HtoD (Pageable -> Device)"}
        return [op("aten::to", start, 8), call(start + 1, start + 1), copy]

    module = [op("nn.Module: Net_0", 10, 8, cat="python_function"), op("aten::mm", 11, 2)]
    trained = [
        op("nn.Module: Net_0", 10, 8, cat="python_function"), op("aten::mm", 11, 2, Sequence_number=1),
        op("MmBackward0", 20, 5, tid=8), op("Optimizer.step#SGD.step", 26, 4, cat="user_annotation"),
    ]  # fmt: skip
    steps = [event for start in (0, 40, 80, 160) for event in (*copied(start), *shifted(trained, start))]
    kinds = ["STEADY", "STEADY", "STEADY", "EVALUATION", "STEADY"]
    assert seen([*steps, *shifted(module, 115)]) == ("optimizer", kinds, [30, 70, 110, 160, 190])


def test_models_called_without_gradients_after_training_are_evaluation_steps() -> None:
    """GIVEN two training steps and two evaluated batches of one model, without a DataLoader THEN the batches are evaluation
    steps. Autograd numbers only the ops of training. WHEN one step mark contains a training step and a batch without gradients
    THEN both are one step."""
    module = op("nn.Module: Net_0", 0, 8, cat="python_function")
    optimizer = op("Optimizer.step#SGD.step", 16, 4, cat="user_annotation")
    trained = [module, op("aten::mm", 1, 2, Sequence_number=1), op("MmBackward0", 10, 5, tid=8), optimizer]
    evaluated_once = [module, op("aten::mm", 1, 2)]
    events = [*trained, *shifted(trained, 30), *shifted(evaluated_once, 60), *shifted(evaluated_once, 80)]
    assert seen(events) == ("optimizer", ["STEADY"] * 2 + ["EVALUATION"] * 2, [20, 50, 80, 83])
    mark = op("ProfilerStep#4", 0, 50, cat="user_annotation")
    assert seen([mark, *trained, *shifted(evaluated_once, 30)]) == ("profiler", ["STEADY"], [50])
    # WHEN a DataLoader returns the batches THEN a call without gradients for the same batch is part of the training step
    loader = op("enumerate(DataLoader)#_Iter.__next__", 0, 5, cat="user_annotation")
    same = [loader, *shifted(trained, 10), *shifted(evaluated_once, 40)]
    assert seen([*same, *shifted(same, 60)])[:2] == ("optimizer", ["STEADY"] * 2)
    other = [*same[:-2], *shifted([loader, *evaluated_once], 40)]
    assert seen([*other, *shifted(other, 60)])[1] == ["STEADY", "EVALUATION"] * 2
    # WHEN a teacher model is called twice for each batch THEN its calls are part of the training step, too
    teacher = [{**evaluated_once[0], "name": "nn.Module: Teacher_0"}, evaluated_once[1]]
    taught = [loader, *shifted(teacher, 10), *shifted(teacher, 20), *shifted(trained, 30)]
    assert seen([*taught, *shifted(taught, 60)]) == ("optimizer", ["STEADY"] * 2, [50, 110])
    # WHEN all data is read before the first training step THEN later batches without gradients are evaluation steps
    assert seen([loader, *shifted(events, 10)]) == ("optimizer", ["STEADY"] * 2 + ["EVALUATION"] * 2, [30, 60, 90, 93])


@pytest.mark.parametrize(("generator_ops", "expected"), [(2, "profiler"), (1, "batches")])
def test_training_generator_and_discriminator_inside_one_step_mark_is_one_step(generator_ops: int, expected: str) -> None:
    """GIVEN step marks that each contain an optimizer step of a discriminator and one of a generator WHEN their forward passes
    have different numbers of ops THEN each mark is one step. WHEN both forward passes have one op THEN each optimizer step is a
    step."""
    optimizer = op("Optimizer.step#Adam.step", 20, 5, cat="user_annotation")
    network = [op("aten::mm", 2, 2), op("MmBackward0", 10, 5, tid=8), optimizer]
    generator = [*network, *shifted(network[:1], 3)][: 2 + generator_ops]
    marks = [op(f"ProfilerStep#{number}", 100 * number, 95, cat="user_annotation") for number in range(2)]
    events = [*network, *shifted(generator, 30)]
    assert seen([*marks, *events, *shifted(events, 100)])[0] == expected


@pytest.mark.parametrize(("ops", "steps_from"), [(2, "inference"), (3, "whole")])
def test_two_batches_are_separate_steps_if_one_has_at_most_twice_the_ops(ops: int, steps_from: str) -> None:
    """GIVEN a batch of one op WHEN the next batch has at most twice as many ops THEN both batches are steps."""
    loader = op("enumerate(DataLoader)#_Iter.__next__", 0, 5, cat="user_annotation")
    larger = [op("aten::conv2d", 10 + 2 * number, 1) for number in range(ops)]
    assert seen([loader, op("aten::conv2d", 10, 1), *shifted([loader, *larger], 20)])[0] == steps_from


def test_calling_several_models_in_a_pipeline_is_a_single_step() -> None:
    """GIVEN a text encoder that is called for two prompts WHEN a denoiser or other ops follow THEN all calls are one step."""

    def module(name: str, start: float) -> list[Event]:
        return [op(f"nn.Module: {name}", start, 8, cat="python_function"), op("aten::mm", start + 1, 2)]

    mark = op("ProfilerStep#4", 0, 100, cat="user_annotation")
    encoders = [*module("Encoder_0", 0), *module("Encoder_0", 10)]
    assert seen([mark, *encoders, *module("Denoiser_0", 20)])[0] == "profiler"
    assert seen([*encoders, *module("Denoiser_0", 20)])[0] == "whole"
    assert seen([mark, *encoders])[0] == "batches"
    # WHEN no modules were recorded THEN the numbers of ops decide whether the calls are one step
    first, second = evaluated(0, [], loader=True), evaluated(50, [], loader=True)
    assert seen([mark, *first, *second])[0] == "batches"
    assert seen([mark, *first, *second, *(op("aten::mm", 80 + i, 1) for i in range(9))])[0] == "profiler"


def evaluated(start: float, operands: list[list[int]], *, loader: bool) -> list[Event]:
    """Return the events of a batch that a model evaluates without gradients.

    The first op on the device only prepares the batch.
    """
    copy = {**kernel(int(start) + 1, start + 6, 3, cat="gpu_memcpy"), "name": "Memcpy HtoD (Pinned -> Device)"}
    dims = {"Input_Dims": operands}
    came = [op("enumerate(DataLoader)#_Iter.__next__", start, 2, cat="user_annotation")] if loader else []
    came += [op("aten::to", start + 4, 2), call(int(start) + 1, start + 5), copy]
    relu = [op("aten::relu", start + 14, 2, **dims), call(int(start) + 2, start + 15), kernel(int(start) + 2, start + 17)]
    return [*came, op("aten::div", start + 7, 1), op("aten::conv2d", start + 9, 4, **dims), *relu]


@pytest.mark.parametrize("loader", [True, False])
@pytest.mark.parametrize("shapes", [True, False])
def test_evaluated_batches_between_training_steps_are_separate_steps(loader: bool, shapes: bool) -> None:
    """GIVEN a training that evaluates two batches between training steps WHEN no modules were recorded THEN both batches are
    separate steps. The second evaluated batch is smaller than the first."""
    operands = [[[n, 3, 8, 8], [4, 3, 3, 3]] if shapes else [] for n in (32, 7)]

    def training(start: float) -> list[Event]:
        events = [event for event in training_step(start) if loader or "DataLoader" not in event["name"]]
        next(event for event in events if event["name"] == "aten::conv2d")["args"]["Input Dims"] = operands[0]
        return events

    between = evaluated(100, operands[0], loader=loader) + evaluated(120, operands[1], loader=loader)
    kinds = ["STEADY", "EVALUATION", "EVALUATION", "STEADY"]
    ends = [80, 120, 201, 280] if loader else [80, 129, 230, 280]
    assert seen([*training(0), *between, *training(200)]) == ("optimizer", kinds, ends)
    # WHEN the recording ends with the evaluated batches THEN both are still found
    assert seen([*training(0), *between])[1] == kinds[:3]
    # WHEN ops without gradients only prepare a batch THEN they are no evaluated batch
    assert seen([*training(0), *evaluated(100, operands[0], loader=loader)[:-4], *training(200)])[1] == ["STEADY"] * 2


def test_without_a_loader_each_copied_batch_begins_an_inference_step() -> None:
    first, second = (evaluated(start, [[n, 3, 8, 8], [4, 3, 3, 3]], loader=False) for start, n in ((0, 32), (50, 7)))
    assert seen(first + second) == ("inference", ["EVALUATION"] * 2, [54, 67])
    # WHEN torch.tensor makes the second copy, for example for the position of the next token THEN the copy is no batch
    mark, created = op("ProfilerStep#4", 0, 100, cat="user_annotation"), op("aten::lift_fresh", 56.5, 0.2)
    assert seen([mark, *first, *second])[0] == "batches"
    assert seen([mark, *first, *second, created]) == ("profiler", ["EVALUATION"], [100])
    # WHEN different ops follow a copy in the middle of a forward pass THEN the copy belongs to this pass
    copies = [event for event in shifted(first, 20) if event["name"] not in ("aten::div", "aten::conv2d")]
    assert seen(first + copies) == ("whole", ["EVALUATION"], [37])


def test_a_step_mark_around_several_optimizer_steps_is_divided_into_steps(tmp_path: Path) -> None:
    mark = op("ProfilerStep#4", 0, 300, cat="user_annotation")
    events = [mark, *training_step(0), *training_step(100), *training_step(200)]
    assert seen(events) == ("batches", ["STEADY"] * 3, [80, 180, 300])
    assert imported(events).steps.number.tolist() == [4, 5, 6]
    # WHEN the importer is told that marks are steps, as for two trainers with optimizers of one class THEN the mark is one step
    (tmp_path / "ours.json").write_bytes(orjson.dumps({"traceEvents": events}))
    assert read_kineto(tmp_path / "ours.json", marks_are_steps=True).steps.number.tolist() == [4]


def test_a_step_mark_that_contains_other_step_marks_is_not_a_step() -> None:
    """GIVEN two steps of 100 us in a mark of 205 us, as an outer profiler writes it THEN only the inner marks are steps. The
    two marks of step 5 are one step."""
    marks = [op(f"ProfilerStep#{n}", start, length, cat="user_annotation") for n, start, length in
             ((0, 0, 205), (4, 0, 100), (5, 100, 102), (5, 101, 99))]  # fmt: skip
    trace = imported([*marks, *training_step(0), *training_step(101)])
    assert (trace.steps.number.tolist(), (trace.steps.duration_ns // 1000).tolist()) == ([4, 5], [100, 99])


def test_step_marks_of_the_script_are_ignored_in_profiles_of_the_recorder(tmp_path: Path) -> None:
    """GIVEN a profile of the recorder with two steps WHEN the script's own profiler adds step marks that overlap them THEN the
    profile still has two steps. WHEN only the script's marks exist THEN these marks are the steps."""
    ours = [op(f"ProfilerStep#{n}{RECORDERS_MARK}", 100 * n, 100, cat="user_annotation") for n in range(2)]
    theirs = [op(f"ProfilerStep#{n + 7}", 100 * n + 95, 100, cat="user_annotation") for n in range(2)]
    events = [event for n in range(2) for event in training_step(100 * n)]
    for marks, numbers in ((ours + theirs, [0, 1]), (theirs, [7, 8])):
        (tmp_path / "ours.json").write_bytes(orjson.dumps({"traceEvents": [*marks, *events]}))
        assert read_kineto(tmp_path / "ours.json", marks_are_steps=True).steps.number.tolist() == numbers


def test_without_optimizer_ranges_a_step_begins_at_each_forward_pass() -> None:
    step = [event for event in training_step(0) if "Optimizer" not in event["name"] and "DataLoader" not in event["name"]]
    events = [*step, op("aten::add_", 75, 5), *shifted(step, 100), op("aten::add_", 175, 5)]
    assert seen(events) == ("backward", ["STEADY"] * 2, [130, 180])


def test_slow_first_steps_are_warm_up_steps_and_a_truncated_last_step_is_incomplete() -> None:
    marks = [op(f"ProfilerStep#{n}", 100 * n, 100, cat="user_annotation") for n in range(4)]
    events = [event for n in range(4) for event in training_step(100 * n)]
    tuning = shifted([op("ProfilerStep#0", 0, 500, cat="user_annotation"), *training_step(0)], -500)
    steady = ["STEADY"] * 4
    assert seen([*tuning, *marks, *events])[1] == ["WARMUP", *steady]
    waiting = op("enumerate(DataLoader)#_Iter.__next__", -499, 398, cat="user_annotation")
    assert seen([tuning[0], waiting, *shifted(training_step(0), -100), *marks, *events])[1] == ["STEADY", *steady]
    empty = op("ProfilerStep#4", 400, 3, cat="user_annotation")
    assert seen([*marks, *events, empty])[1] == [*steady, "INCOMPLETE"]
    begun = [op("ProfilerStep#4", 400, 50, cat="user_annotation"), op("aten::conv2d", 410, 5, Sequence_number=9)]
    assert seen([*marks, *events, *begun])[1] == [*steady, "INCOMPLETE"]
    validated = [begun[0], op("aten::conv2d", 410, 5)]
    assert seen([*marks, *events, *validated])[1] == [*steady, "EVALUATION"]


# --- memory


def test_memory_events_are_assigned_to_their_device_or_the_host() -> None:
    def event(start: int, kind: int, index: int, size: int, **more: int) -> Event:
        args = {"Device Type": kind, "Device Id": index, "Bytes": size, **more}
        return {"ph": "i", "s": "t", "name": "[memory]", "pid": 7, "tid": 7, "ts": T0 + start, "args": args}

    trace = imported(
        [event(5, 1, 1, -512, Addr=2**63 + 8), event(1, 0, -1, 64), event(3, 1, 1, 512, **{"Total Allocated": 512})]
    )
    assert trace.memory.bytes.tolist() == [64, 512, -512]
    assert trace.memory.device.tolist() == [NONE, 0, 0]
    assert trace.memory.address.tolist() == [0, 0, 2**63 + 8]
    assert trace.memory.allocated_bytes.tolist() == [NONE, 512, NONE]
    assert trace.devices[0].index == 1


# --- malformed events


def test_malformed_events_are_repaired_or_skipped_and_counted() -> None:
    good = op("aten::good", 0, 5)
    events: list[Any] = [
        good,
        {key: value for key, value in op("no dur", 10, 5).items() if key != "dur"},
        op("text", 20, 5) | {"ts": str(T0 + 20), "dur": "5.5"},
        op("no ts", 30, 5) | {"ts": None},
        op("late", 40, 5) | {"ts": 1e300},
        op("zero", 50, 5) | {"ts": 0},
        op("one microsecond", 50, 5) | {"ts": 1},
        op("dur of text", 60, 5) | {"dur": "long"},
        op("negative", 70, -1),
        op("", 80, 5) | {"name": None},
        op("args", 90, 5) | {"args": "none"},
        {"ph": "B", "name": "begin", "pid": 7, "tid": 7, "ts": T0},
        "no event",
        {},
    ]
    trace = imported(events)
    names = {trace.strings[i] for i in trace.host.name}
    assert names == {"aten::good", "no dur", "text", "one microsecond", "dur of text", "negative", "unknown", "args"}
    assert trace.problems == {
        "begin-without-end": 1,
        "event-without-duration": 1,
        "event-without-name": 1,
        "negative-duration": 1,
        "unreadable-duration": 1,
        "unreadable-event": 4,
        "zero-timestamp": 1,
    }
    text = trace.host.name == trace.strings.find("text")
    assert trace.host.duration_ns[text].tolist() == [5500]


def test_if_a_json_key_occurs_twice_the_last_value_is_used() -> None:
    text = b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","name":"b","pid":1,"tid":1,"ts":5,"dur":1,"args":{}}]}'
    trace = read_kineto_bytes(text)
    assert [trace.strings[i] for i in trace.host.name] == ["b"]


def test_incomplete_unicode_characters_are_replaced() -> None:
    event = orjson.dumps(op("NAME", 0, 1)).replace(b"NAME", b"x\\ud800y")
    trace = read_kineto_bytes(b'{"traceEvents":[' + event + b"]}")
    assert trace.strings.texts == ["x\ufffdy", "forward"]
    assert trace.problems == {"half-character": 1}


@pytest.mark.parametrize("text", ["", "  \n", "{}", "[", '"text"', "5", '{"traceEvents": 3}', '{"nodes": []}', "\x1f\x8b"])
def test_importing_text_that_is_not_a_recording_raises_a_one_line_error(text: str) -> None:
    with pytest.raises(TraceImportError, match=r"^x\.json:? [^\n]+$"):
        read_kineto_bytes(text.encode("latin-1"), "x.json")


def test_provenance_contains_no_folders_host_names_or_user_names() -> None:
    header = {
        "traceName": "/home/someone/x.json",
        "username": "someone",
        "host_name": "h",
        "cuda_runtime_version": 12040,
    }
    trace = imported([op("aten::add", 0, 1)], distributedInfo={"rank": 3, "world_size": 8}, **header)
    assert trace.ranks == [3] and "7 of 8 ranks" in trace.lacks
    assert trace.machine_of(3).cuda == "12.4"
    assert trace.provenance["ranks"] == {"3": {"file": "trace.json"}}
    assert trace.run_of(3).distributed == Distributed(world_size=8)
    assert b"someone" not in orjson.dumps(trace.provenance)
    assert np.dtype(trace.host.start_ns.dtype) == np.dtype("i8")


@pytest.mark.parametrize(
    ("header", "kinds", "bare", "fractional", "expected"),
    [
        ({}, {"Operator"}, True, False, "E0"),
        ({}, {"Operator"}, False, False, "E1"),
        ({}, {"Kernel"}, False, False, "E2"),
        ({}, {"cpu_op", "async_cpu_to_gpu"}, False, False, "E3"),
        ({}, {"cpu_op"}, True, False, "E4"),
        ({"baseTimeNanoseconds": 5}, {"cpu_op"}, False, False, "E6"),
        ({}, {"cpu_op"}, False, True, "E6"),
    ],
)
def test_the_format_version_of_a_file_is_recognized(
    header: Event, kinds: set[str], bare: bool, fractional: bool, expected: str
) -> None:
    assert era(bare, header, kinds, TsUnit.of(header, [1, 2], False, NO_EVENTS.spans), fractional) == expected


def test_a_backward_pass_that_the_compiler_runs_does_not_count() -> None:
    """GIVEN training steps without marks that begin with a compilation WHEN the compiler runs a backward pass to trace the
    network THEN this pass does not count as a backward pass of the script."""

    def step(start: float) -> list[Event]:
        compiling = op("_compile.compile_inner (dynamo_timed)", start + 10, 80, cat="user_annotation")
        tracing = op("aot_trace_joint_graph (dynamo_timed)", start + 20, 50, cat="user_annotation")
        traced = [op("aten::mm", start + 25, 5), op("aten::ones_like", start + 32, 2)]
        traced.append(op("autograd::engine::evaluate_function: MmBackward0", start + 40, 5))
        region = [op("CompiledFunction", start + 100, 20, Sequence_number=int(start)), call(int(start) + 1, start + 105)]
        backward = op("autograd::engine::evaluate_function: MmBackward0", start + 130, 30, tid=8, Fwd_thread_id=1)
        work = [kernel(int(start) + 1, start + 110), kernel(int(start) + 2, start + 145)]
        work.append(call(int(start) + 2, start + 140, tid=8))
        return [compiling, tracing, *traced, *region, op("aten::ones_like", start + 124, 2), backward, *work]

    trace = imported([*step(0), *step(200), *step(400)])
    ends = ((trace.phases.end_ns - T0 * 1000) // 1000).tolist()
    found = list(zip((trace.strings[name] for name in trace.phases.name), ends, strict=True))
    assert found[:5] == [("forward", 130), ("backward", 210), ("other", 300), ("forward", 330), ("backward", 410)]
