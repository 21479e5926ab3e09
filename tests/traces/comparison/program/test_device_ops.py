"""Tests which op calls of two traces are compared."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.traces.comparison.program.verdicts import verdict_of
from tests.traces.handmade import BACKWARD, Call, training
from traces.comparison.compare import compare
from traces.comparison.program.device_ops import launching_ops
from traces.kineto import read_kineto_bytes
from traces.model.trace import NONE, Collectives, HostKind, Parts, Thread, Trace
from traces.model.workload import Sameness


def _launched(ops: list[tuple[str, int, int]], launches: list[tuple[int, str]]) -> Trace:
    """Import a trace from ops (name, start and duration in us) and from kernels or copies (launch time in us, name)."""
    host = {"ph": "X", "pid": 1, "tid": 1}
    args = {"Input Dims": [[4, 4]], "Input type": ["float"]}
    events = [host | {"cat": "cpu_op", "name": f"aten::{op}", "ts": at, "dur": dur, "args": args} for op, at, dur in ops]
    for at, name in launches:
        told = {"correlation": at, "device": 0, "stream": 7}
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        events.append(host | {"cat": "cuda_runtime", "name": "call", "ts": at, "dur": 1, "args": told})
        events.append({"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": 100 + at, "dur": 2, "args": told})
    return read_kineto_bytes(json.dumps({"deviceProperties": [{"id": 0}], "traceEvents": events}).encode())


def test_copies_made_by_a_hook_count_as_calls_of_the_script() -> None:
    """GIVEN a trace in which a hook copies a tensor to the host during a matrix product WHEN another trace has the copy before
    the product THEN both traces have the same calls. The hook of save_on_cpu makes such copies."""
    to_host = "Memcpy DtoH (Device -> Pinned)"
    nested = _launched(
        [("mm", 10, 50), ("copy_", 12, 30), ("copy_", 14, 6), ("copy_", 24, 6)], [(15, "gather"), (25, to_host), (50, "gemm")]
    )
    flat = _launched([("copy_", 10, 10), ("mm", 30, 20)], [(12, "gather"), (14, to_host), (35, "gemm")])
    for pair in ((nested, flat), (flat, nested)):
        found = compare(*pair).verdict
        assert found.sameness is Sameness.SAME_PROGRAM, found.reason


def test_an_op_that_vmap_replaces_is_compared_as_the_replacing_op() -> None:
    """GIVEN a trace in which vmap runs mm as bmm WHEN another trace calls bmm directly THEN both traces have the same
    program."""
    kernels = [(12, "gemm"), (32, "batched gemm")]
    vmapped = _launched([("mm", 10, 10), ("mm", 30, 10), ("bmm", 31, 8)], kernels)
    flat = _launched([("mm", 10, 10), ("bmm", 31, 8)], kernels)
    assert compare(vmapped, flat).verdict.sameness is Sameness.SAME_PROGRAM
    other = _launched([("mm", 10, 10), ("mm", 31, 8)], kernels)
    assert compare(other, flat).verdict.same is False


def test_an_outer_op_matches_the_inner_ops_of_the_other_trace() -> None:
    """GIVEN a recorded op that launched its kernels through inner ops WHEN the other trace has only the outer op THEN both
    traces have the same program."""

    def traced(*, with_inner: bool) -> Trace:
        trace = training(steps=1)
        host, name = trace.host, trace.strings.add("aten::_native_multi_head_attention")
        ops = np.flatnonzero(host.kind == HostKind.OP)
        top = ops[host.parent[ops] == NONE]
        host.name[top] = name
        if not with_inner:
            host.name[ops] = name
            for launch in np.flatnonzero(host.kind != HostKind.OP).tolist():
                while host.parent[launch] not in (NONE, *top):
                    host.parent[launch] = host.parent[host.parent[launch]]
        return trace

    assert verdict_of(traced(with_inner=True), traced(with_inner=False))[0] is True
    assert verdict_of(training(steps=1), traced(with_inner=False))[0] is False


def _calls(ops: list[tuple[str, int, int, list[list[int]]]], *launched_us: int) -> Trace:
    """Import nested ops (name, start and duration in us, input shapes) and kernels with these launch times."""
    host = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        host | {"cat": "cpu_op", "name": name, "ts": at, "dur": dur, "args": {"Input Dims": shapes}}
        for name, at, dur, shapes in ops
    ]
    for number, at in enumerate(launched_us, 1):
        told = {"correlation": number, "device": 0, "stream": 7}
        events.append(host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 1, "args": told})
        events.append({"ph": "X", "cat": "kernel", "name": "fmha", "pid": 0, "tid": 7, "ts": 100 + at, "dur": 1, "args": told})
    return read_kineto_bytes(json.dumps({"deviceProperties": [{"id": 0}], "traceEvents": events}).encode())


def test_attention_has_the_shapes_of_the_outermost_op() -> None:
    """GIVEN an attention op whose inner op has differently ordered shapes, 2x8x4x16 WHEN the other trace has only the outer op,
    with the shape 2x4x8x16 THEN the shapes count as equal."""
    outer = ("aten::_scaled_dot_product_flash_attention", 10, 40, [[2, 4, 8, 16]] * 3)
    nested = _calls([outer, ("aten::_flash_attention_forward", 20, 20, [[2, 8, 4, 16]] * 3)], 25)
    found = compare(nested, _calls([outer], 25)).verdict
    assert found.sameness is Sameness.SAME_PROGRAM, found.reason


def test_a_kernel_without_shapes_does_not_get_the_shapes_of_the_compiled_graph() -> None:
    """GIVEN two traces of one fused kernel without recorded shapes WHEN the inputs of their compiled graphs have different
    shapes THEN the traces still have the same program."""
    kernel, product = ("triton_poi_fused_0", 12, 8, list[list[int]]()), ("aten::mm", 30, 10, [[8, 4], [4, 8]])
    graphs = [("CompiledFunction", 10, 15, shapes) for shapes in ([[512, 128]], [[64]])]
    first, second = (_calls([graph, kernel, product], 15) for graph in graphs)
    found = compare(first, second).verdict
    assert found.sameness is Sameness.SAME_PROGRAM, found.reason


def test_an_op_with_scalar_inputs_does_not_inherit_outer_shapes() -> None:
    """GIVEN two scalars that an op multiplies in one trace WHEN the script multiplies them in the other trace THEN the program
    is the same."""
    ops: list[tuple[str, int, int, list[list[int]]]] = [
        ("aten::mul", 12, 5, [[], []]),
        ("aten::mul", 40, 5, [[64, 32], [64, 32]]),
        ("aten::mm", 50, 5, [[8, 4], [4, 8]]),
    ]
    nested, alone = (_calls([*outer, *ops], 14, 42, 52) for outer in ([("aten::renorm", 10, 25, [[64, 32]])], []))
    found = compare(nested, alone).verdict
    assert found.sameness is Sameness.SAME_PROGRAM, found.reason


@pytest.mark.parametrize("inner", ["aten::copy_", "aten::where"])
def test_ops_inside_another_op_do_not_count_as_additional_calls(inner: str) -> None:
    """GIVEN recorded convolutions that call a cast or another op inside WHEN a replay calls this op before the convolution THEN
    neither op counts as called more often."""

    operands = "32,3,8,8;4,3,3,3"
    made = [
        Call("aten::conv2d", operands, 31, "cast", inner=inner),
        Call("aten::conv2d", operands, 40, "volta_sgemm", inner="aten::cudnn_convolution"),
    ]
    recorded, replayed = training(made=made), training(made=made)
    strings, host = recorded.strings, recorded.host
    outer = np.flatnonzero(host.name == strings.find("aten::conv2d"))
    for first, second in zip(outer[::2].tolist(), outer[1::2].tolist(), strict=True):
        host.duration_ns[first] = host.end_ns[second] - host.start_ns[first]
        inner = host.parent == second
        host.parent[inner] = first
    replayed.host.name[replayed.host.name == replayed.strings.find("aten::conv2d")] = replayed.strings.add("aten::to")
    assert verdict_of(recorded, replayed)[0] is True


@pytest.mark.parametrize("others", [0, 12])
def test_adding_a_bias_inside_a_convolution_does_not_count_as_a_call(others: int) -> None:
    """GIVEN a recorded convolution that calls an op to add the bias WHEN the convolution of a replay launches both kernels
    without this op THEN all compared ops are the same. Outside the convolution, both traces call this op."""
    operands, alone = "32,3,8,8;4,3,3,3;4", [Call("aten::add_", "32,4,6,6;32,4,6,6", 50, "add")]
    alone += [Call("aten::relu", "32,4,6,6", 50 + number, "relu") for number in range(others)]

    def traced(*inner: str) -> Trace:
        times = zip((31, 40), inner, strict=True)
        trace = training(made=[*(Call("aten::convolution", operands, at, "kernel", inner=op) for at, op in times), *alone])
        host = trace.host
        outer = np.flatnonzero((host.name == trace.strings.find("aten::convolution")) & (host.parent == NONE))
        for first, second in zip(outer[::2].tolist(), outer[1::2].tolist(), strict=True):
            host.duration_ns[first] = host.end_ns[second] - host.start_ns[first]
            host.parent[host.parent == second] = first
        return trace

    recorded, replayed = traced("aten::cudnn_convolution", "aten::add_"), traced("", "")
    for pair in ((recorded, replayed), (replayed, recorded)):
        same, reason = verdict_of(*pair)
        assert same is True and reason.count("100 %") == 2


def test_a_cast_inside_a_convolution_counts_as_a_call_but_a_layout_copy_does_not() -> None:
    """GIVEN a recorded convolution that casts its input and copies it to channels_last WHEN a replay calls the cast before the
    convolution, and has no op for the copy THEN the program is the same."""
    operands, image = "32,3,8,8;4,3,3,3;4", "32,3,8,8;32,3,8,8"
    alone = [Call("aten::copy_", image, 52 + 9 * number, "cast") for number in range(2)]
    convolution = Call("aten::convolution", operands, 31, "sgemm", inner="aten::cudnn_convolution")
    of_copies = [("aten::to", 36, "cast"), ("aten::clone", 42, "copy")]
    parts = [Call(op, image, at, kernel, inner="aten::copy_") for op, at, kernel in of_copies]

    def nested(trace: Trace, outer: str, *inner: str) -> Trace:
        host, find = trace.host, trace.strings.find
        rows = np.flatnonzero((host.name == find(outer)) & (host.parent == NONE))
        for row, following in zip(rows.tolist(), [*rows[1:].tolist(), len(host)], strict=True):
            within = np.arange(row + 1, following)
            within = within[np.isin(host.name[within], [find(name) for name in inner]) & (host.parent[within] == NONE)]
            host.parent[within] = row
            host.duration_ns[row] = int(host.end_ns[within].max()) - int(host.start_ns[row])
        return trace

    recorded = nested(training(made=[convolution, *parts, *alone]), "aten::convolution", "aten::to", "aten::clone")
    kernels = [Call("aten::convolution", operands, 31, "sgemm"), Call("aten::clone", image, 36, "copy")]
    replayed = training(made=[*kernels, Call("aten::copy_", image, 42, "cast"), *alone])
    host, clone = nested(replayed, "aten::convolution", "aten::clone").host, replayed.strings.find("aten::clone")
    launches = np.flatnonzero(host.kind == HostKind.RUNTIME)
    launches = launches[host.name[host.parent[launches]] == clone]
    host.parent[launches] = host.parent[host.parent[launches]]  # the replay has no op inside the convolution
    assert verdict_of(recorded, replayed)[0] is True and verdict_of(replayed, recorded)[0] is True


def test_inner_ops_that_occur_in_only_one_trace_are_ignored() -> None:
    """GIVEN a recorded loss gradient that calls `fill_` and an op with its own name inside WHEN a replay has only the outer op
    with both kernels THEN the program is the same."""
    loss, operands = "aten::mse_loss_backward", "32,8;32,8"

    def traced(*inner: str) -> Trace:
        made = [Call(loss, operands, start, "kernel", inner=op) for start, op in zip((31, 40), inner, strict=True)]
        trace = training(made=made)
        host = trace.host
        outer = np.flatnonzero((host.name == trace.strings.find(loss)) & (host.parent == NONE))
        for first, second in zip(outer[::2].tolist(), outer[1::2].tolist(), strict=True):
            host.duration_ns[first] = host.end_ns[second] - host.start_ns[first]
            host.parent[host.parent == second] = first
        return trace

    recorded, replayed = traced("aten::fill_", loss), traced("", "")
    assert verdict_of(recorded, replayed)[0] is True and verdict_of(replayed, recorded)[0] is True
    alone = [Call(loss, operands, 31, "kernel"), Call("aten::fill_", operands, 40, "kernel")]
    assert verdict_of(recorded, training(made=[*alone, alone[1]]))[0] is False


def test_recorded_collectives_do_not_count_as_ops_missing_from_the_replay() -> None:
    """GIVEN a recording of a sharded model with an op for each all-gather WHEN its replay has rows of collectives instead of
    these ops THEN no op is missing from the replay."""
    own = [Call("aten::mm", "4,4", 31 + 3 * place, "gemm") for place in range(3)]

    def recording(kernel: str) -> Trace:
        gathers = [Call("record_param_comms", "4", 32 + 3 * place, kernel) for place in range(3)]
        return training(made=sorted([*own, *gathers], key=lambda call: call.start_us))

    replayed, recorded = training(made=own), recording("ncclDevKernel_AllGather_RING_LL")
    assert verdict_of(recording("gather_kernel"), replayed)[0] is False
    assert verdict_of(recorded, replayed)[0] is True
    recorded.collectives = Collectives.of(rank=[0], name=[recorded.strings.add("all_gather")], start_ns=[0], duration_ns=[1])
    assert verdict_of(recorded, replayed)[0] is True


def test_the_ops_of_lost_kernels_are_known_from_their_launches() -> None:
    """GIVEN a trace that lost a third of its kernels THEN the ops that launched work are the same as without the loss."""
    whole, trace = training(steps=3), training(steps=3)
    lost = np.flatnonzero(trace.device.is_work)[1::3]
    trace.device = trace.device.take(np.setdiff1d(np.arange(len(trace.device)), lost))
    trace.problems = {"lost-kernel": len(lost)}
    for steps in ([], [1]):
        ops = [[of.tolist() for of in launching_ops(one, np.array(steps, int), whole)] for one in (whole, trace)]
        assert ops[0] == ops[1] and len(ops[0][0]) == (2 if steps else 6)


def test_ops_of_a_thread_beside_the_training_loop_are_not_compared() -> None:
    """GIVEN a forward pass of three products WHEN another thread copies data during the forward pass of one trace and during
    the optimizer of the other trace THEN the program is the same. Copies by a replica of the model are compared."""
    products = [Call("aten::mm", "4,4", 31 + 3 * place, "gemm") for place in range(3)]

    def traced(copied_us: int) -> Trace:
        copies = [Call("aten::sub", "8,8", copied_us + 3 * place, "minus", thread=BACKWARD) for place in range(2)]
        trace = training(made=[*products, *copies])
        trace.threads[BACKWARD] = Thread(0, 200, "feeder", "other")
        return trace

    in_forward, in_optimizer = traced(32), traced(82)
    assert verdict_of(in_forward, in_optimizer)[0] is True
    assert verdict_of(in_optimizer, in_forward)[0] is True
    in_forward.parts = Parts.of(phase=[NONE], name=[in_forward.strings.add("parallel_apply")], thread=[BACKWARD], start_ns=[0])
    assert verdict_of(in_forward, in_optimizer)[0] is False
