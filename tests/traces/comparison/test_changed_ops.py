"""Tests how two traces are compared op by op, and kernel by kernel within ops. Renamed, fused or split ops are neither new nor
gone."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.traces.comparison.program.verdicts import verdict_of
from tests.traces.handmade import Call, training
from tests.traces.kineto import test_eras as eras
from traces.comparison.changed_ops import (
    ChangeLists,
    Changes,
    Replacement,
    changes,
    kernel_key,
    missing_in,
    named_ops,
    ops_in_name,
)
from traces.comparison.program.same_program import same_program
from traces.figures.measure import launch_steps
from traces.kineto import read_kineto, read_kineto_bytes
from traces.model.run import MissingOp
from traces.model.trace import Origin, Thread, Trace
from traces.model.workload import Sameness
from traces.names.equivalent_ops import canonical_op
from traces.rates.achieved_rates import achieved

Op = tuple[Any, ...]  # the name of an op, then the ops (tuples) and kernels (strings) within the op


def recording(*ops: Op, graph: tuple[str, ...] = ()) -> Trace:
    """Return a trace of one step with the given ops, in which every kernel takes 10 µs. A single graph launch at the end runs
    the kernels in `graph`."""
    events: list[dict[str, Any]] = []
    ids = count(1)

    def host(category: str, name: str, start: int, end: int, **args: Any) -> None:
        events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": end - start, "args": args}
        )

    def launch(call: str, start: int, kernels: tuple[str, ...]) -> None:
        number = next(ids)
        host("cuda_runtime", call, start, start + 1, correlation=number)
        for place, kernel in enumerate(kernels):
            args = {"device": 0, "stream": 7, "correlation": number}
            at = {"ts": 20 * (start + place), "dur": 10}
            events.append({"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, **at, "args": args})

    def add(op: Op, start: int) -> int:
        at = start + 1
        for inside in op[1:]:
            if isinstance(inside, str):
                launch("cudaLaunchKernel", at, (inside,))
                at += 2
            else:
                at = add(inside, at)
        is_range = op[0].startswith("Optimizer.step#")
        host("user_annotation" if is_range else "cpu_op", op[0], start, at, **{"External id": next(ids)})
        return at + 1

    at = 1
    for op in ops:
        at = add(op, at)
    if graph:
        launch("cudaGraphLaunch", at, graph)
    host("user_annotation", "ProfilerStep#1", 0, at + 10)
    return read_kineto_bytes(json.dumps({"traceEvents": events}).encode())


def between(first: Trace, second: Trace) -> Changes:
    return changes(first, second, np.arange(1), np.arange(1))



@pytest.mark.parametrize(
    ("graph", "other_op", "sameness"),
    [
        (("gemm",) * 19, "aten::neg", Sameness.CANNOT_BE_TOLD),  # 95 % of the kernel time is in the graph
        (("gemm",) * 18, "aten::neg", Sameness.OTHER_PROGRAM),
        (("Cijk",) * 10 + ("gemm",) * 9, "aten::neg", Sameness.OTHER_PROGRAM),  # most graph kernels have the same name
        (("Cijk",) * 17 + ("gemm",) * 2, "aten::abs", Sameness.CANNOT_BE_TOLD),
        (("Cijk",) * 19, "aten::abs", Sameness.SAME_PROGRAM),
    ],
)
def test_different_ops_outside_a_cuda_graph_matter_only_if_kernels_are_comparable(
    graph: tuple[str, ...], other_op: str, sameness: Sameness
) -> None:
    """GIVEN a CUDA graph of 19 kernels and one op outside the graph WHEN the op differs THEN the programs differ only if enough
    kernels of the graphs can be compared."""
    first = recording(("aten::abs", "abs"), graph=("Cijk",) * 19)
    second = recording((other_op, "abs"), graph=graph)
    assert same_program(first, second, np.arange(1), np.arange(1)).sameness is sameness


def nothing_is_new_or_gone(found: Changes) -> bool:
    return not any((found.ops.added, found.ops.gone, found.kernels.added, found.kernels.gone))


def test_a_kernel_name_that_two_ops_launch_is_compared_for_each_op() -> None:
    # GIVEN a GPU on which mm and addmm run the same kernel, and a GPU on which each op runs a different kernel
    before = recording(("aten::mm", "tile_a"), ("aten::addmm", "tile_a", "tile_a"))
    after = recording(("aten::mm", "tile_b"), ("aten::addmm", "tile_b", "tile_c"))
    # THEN the kernel has 10 µs in mm and 20 µs in addmm, which are the times of these ops
    found = between(before, after)
    assert nothing_is_new_or_gone(found)
    assert {of.op: (of.recorded_ns, of.replayed_ns) for of in found.kernels.replaced} == {
        "mm": (10_000, 10_000),
        "addmm": (20_000, 20_000),
    }


def test_rows_of_one_kernel_and_one_size_are_sorted_by_op() -> None:
    # GIVEN nine new ops that launch the same new kernel THEN the rows are sorted by op, independent of the hashes of names
    ops = [f"aten::new_{number}" for number in range(9)]
    relu: Op = ("aten::relu", "relu")
    found = between(recording(relu), recording(relu, *((op, "tile") for op in reversed(ops))))
    assert [row.op for row in found.kernels.added] == [op.removeprefix("aten::") for op in ops]


def test_two_ops_count_as_one_call_if_a_later_release_merges_them() -> None:
    # GIVEN the backward pass of a convolution in PyTorch 1.9, which has two ops, and in a later release, which has one
    halves: Op = ("aten::cudnn_convolution_backward_input", "dgrad"), ("aten::cudnn_convolution_backward_weight", "wgrad")
    before = recording(("aten::cudnn_convolution_backward", *halves), ("aten::relu", "relu"))
    now = recording(("aten::convolution_backward", "dgrad", "wgrad", "reduce"), ("aten::relu", "relu"))
    # THEN one call of 20 µs is compared with one call of 30 µs
    found = between(before, now)
    (longer,) = found.ops.longer
    assert (longer.recorded_count, longer.replayed_count) == (1, 1)
    assert (longer.recorded_ns, longer.replayed_ns) == (20_000, 30_000)
    assert not found.ops.added and not found.ops.gone
    assert [row.name for row in found.kernels.added] == ["reduce"]  # a kernel is new if it replaces no other kernel


def test_achieved_rates_count_the_same_calls_for_old_and_new_pytorch_releases() -> None:
    halves: Op = ("aten::cudnn_convolution_backward_input", "dgrad"), ("aten::cudnn_convolution_backward_weight", "wgrad")
    for whole in (("aten::cudnn_convolution_backward", *halves), ("aten::convolution_backward", "dgrad", "wgrad")):
        (row,) = achieved(recording(whole, whole))
        assert (row.op, row.calls, row.device_ns) == ("convolution_backward", 2, 40_000)


def test_an_op_is_not_called_new_if_another_release_splits_it_into_two() -> None:
    before = recording(("aten::linear", ("aten::addmm", "sgemm_bias")), ("aten::relu", "relu"))
    now = recording(("aten::linear", ("aten::mm", "sgemm"), ("aten::add_", "add")), ("aten::relu", "relu"))
    found = between(before, now)
    assert nothing_is_new_or_gone(found)
    assert found.ops.replaced == [Replacement(("aten::addmm",), ("aten::add_", "aten::mm"), 1, 2, 10_000, 20_000)]
    (kernels,) = found.kernels.replaced
    assert (kernels.recorded_names, kernels.replayed_names) == (("sgemm_bias",), ("add", "sgemm"))


def test_a_renamed_kernel_is_neither_new_nor_gone() -> None:
    before = recording(("aten::mm", "volta_sgemm_128x64_nn"), ("aten::relu", "relu"))
    now = recording(("aten::mm", "Cijk_Ailk_Bljk_S_B"), ("aten::relu", "relu"))
    found = between(before, now)
    assert nothing_is_new_or_gone(found) and not found.ops.replaced
    assert found.kernels.replaced == [
        Replacement(("volta_sgemm_128x64_nn",), ("Cijk_Ailk_Bljk_S_B",), 1, 1, 10_000, 10_000, "mm")
    ]


def test_a_different_matrix_product_op_replaces_the_recorded_one() -> None:
    before = recording(("aten::mm", "Cijk", "transpose"), ("aten::relu", "relu"))
    found = between(before, recording(("aten::addmm", "xmma"), ("aten::relu", "relu")))
    assert nothing_is_new_or_gone(found)
    assert found.ops.replaced == [Replacement(("aten::mm",), ("aten::addmm",), 1, 1, 20_000, 10_000)]


def test_a_kernel_is_new_if_only_one_trace_has_its_op() -> None:
    found = between(recording(("aten::relu", "relu")), recording(("aten::relu", "relu"), ("aten::tanh", "tanh")))
    assert [row.name for row in found.ops.added] == ["aten::tanh"]
    assert [(row.name, row.op) for row in found.kernels.added] == [("tanh", "tanh")]


def test_fused_kernels_replace_the_ops_in_their_names() -> None:
    eager = recording(("aten::add", "add"), ("aten::relu", "relu"), ("aten::native_layer_norm", "norm"), ("aten::mm", "sgemm"))
    fused = [(name, name) for name in ("triton_poi_fused_add_relu_0", "triton_per_fused_native_layer_norm_view_1")]
    found = between(eager, recording(*fused, ("aten::mm", "sgemm")))
    assert nothing_is_new_or_gone(found)
    # One fused kernel replaces add and relu, and another replaces the layer norm.
    assert sorted(found.ops.replaced, key=lambda row: row.recorded_count) == [
        Replacement(("aten::native_layer_norm",), ("triton_per_fused_native_layer_norm_view_1",), 1, 1, 10_000, 10_000),
        Replacement(("aten::add", "aten::relu"), ("triton_poi_fused_add_relu_0",), 2, 1, 20_000, 10_000),
    ]
    assert between(eager, eager) == between(recording(*fused), recording(*fused))


@pytest.mark.parametrize("phases", ["forward backward", "backward"])
def test_a_fused_kernel_replaces_ops_of_its_own_phase_if_there_are_any(phases: str) -> None:
    """GIVEN a fused kernel in the forward pass of the second trace THEN it replaces the addition in the forward pass of the
    first trace. WHEN only the backward pass has an addition THEN the fused kernel replaces this addition."""
    begins_us = {"forward": 35, "backward": 65}
    made = [Call("aten::add", "4,4", begins_us[phase], "add") for phase in phases.split()]
    fused = Call("triton_poi_fused_add_0", "4,4", 35, "triton_poi_fused_add_0")
    found = between(training(steps=1, made=made), training(steps=1, made=[fused]))
    assert found.ops.replaced == [Replacement(("aten::add",), (fused.op,), 1, 1, 10_000, 10_000)]
    assert [row.name for row in found.ops.gone] == ["aten::add"] * (len(made) - 1) and not found.ops.added


def test_a_fused_backward_kernel_does_not_replace_the_forward_op() -> None:
    eager = recording(("aten::gelu", "gelu"), ("aten::gelu_backward", "gelu_backward"))
    found = between(eager, recording(("aten::gelu", "gelu"), ("t", "triton_poi_fused_gelu_backward_3")))
    (row,) = found.ops.replaced
    assert (row.recorded_names, row.replayed_names) == (("aten::gelu_backward",), ("triton_poi_fused_gelu_backward_3",))


def test_inductor_kernels_are_matched_without_their_numbers_and_kinds() -> None:
    """Inductor numbers kernels anew in each version of a program. Depending on the size, a reduction kernel is called "per" or
    "red"."""
    first = recording(("a", "triton_per_fused_add_sum_0"), ("b", "triton_poi_fused_mul_1"))
    second = recording(("b", "triton_poi_fused_mul_0"), ("a", "triton_red_fused_add_sum_1"))
    found = between(first, second)
    assert nothing_is_new_or_gone(found) and not found.ops.replaced
    assert [row.recorded_names for row in found.kernels.replaced] == [("triton_per_fused_add_sum_0",)]


def test_foreach_and_fused_optimizers_are_compared_with_optimizers_that_use_loops() -> None:
    loop = [("aten::mul_", "mul"), ("aten::add_", "add")] * 3
    name = "Optimizer.step#SGD.step"
    loops = recording(("aten::relu", "relu"), (name, *loop))
    foreach = recording(
        ("aten::relu", "relu"), (name, ("aten::_foreach_mul_", "multi_mul"), ("aten::_foreach_add_", "multi_add"))
    )
    fused = recording(("aten::relu", "relu"), (name, ("aten::_fused_sgd_", "fused_sgd")))
    for now, names in ((foreach, {"aten::_foreach_add_", "aten::_foreach_mul_"}), (fused, {"aten::_fused_sgd_"})):
        found = between(loops, now)
        assert nothing_is_new_or_gone(found)
        (row,) = found.ops.replaced
        assert set(row.recorded_names) == {"aten::mul_", "aten::add_"} and set(row.replayed_names) == names
        assert (row.recorded_count, row.recorded_ns) == (6, 60_000)


@pytest.mark.parametrize(("second", "sameness"), [("gemm_bf16", Sameness.SAME_PROGRAM), ("gemm_int8", Sameness.CANNOT_BE_TOLD)])
def test_cuda_graphs_with_different_kernels_may_still_be_the_same_program(second: str, sameness: Sameness) -> None:
    """GIVEN two traces with the same ops outside CUDA graphs WHEN one of two kernels in the graph has another name THEN the
    verdict on the program is unknown."""
    traces = [recording(("aten::copy_", "copy"), graph=("flash_fwd", name)) for name in ("gemm_bf16", second)]
    # Identical traces would be the same program without a comparison, so one kernel is 1 ns longer.
    traces[1].device.duration_ns[0] += 1
    verdict = same_program(traces[0], traces[1], np.arange(1), np.arange(1))
    assert verdict.sameness is sameness
    assert ("only 50 % of their kernels have the same names" in verdict.reason) == (second == "gemm_int8")


def test_kernels_of_cuda_graphs_may_differ_only_in_their_numbers() -> None:
    traces = [recording(("aten::copy_", "copy"), graph=("flash_fwd", *["softmax"] * count)) for count in (1, 10)]
    verdict = same_program(traces[0], traces[1], np.arange(1), np.arange(1))
    assert verdict.sameness is Sameness.CANNOT_BE_TOLD
    numbers = "e.g. softmax, per step once in the first trace and 10 times in the second"
    assert verdict.reason.endswith(f"kernels run a different number of times: {numbers}")


@pytest.mark.parametrize(("graph", "sameness"), [("relu", Sameness.SAME_PROGRAM), ("silu", Sameness.CANNOT_BE_TOLD)])
def test_kernels_in_a_cuda_graph_are_compared_with_kernels_launched_by_ops(graph: str, sameness: Sameness) -> None:
    """GIVEN a trace that runs two kernels in ops WHEN another trace runs both kernels in a CUDA graph THEN the kernels are
    compared by name."""
    traces = [recording(("aten::mm", "gemm"), ("aten::relu", "relu")), recording(graph=("gemm", graph))]
    for recorded, other in (traces, traces[::-1]):
        assert same_program(recorded, other, np.arange(1), np.arange(1)).sameness is sameness


def test_kernels_of_two_inference_servers_are_matched_by_kind_of_computation() -> None:
    """The names of kernels can mislead. FlashInfer's normalization is not attention, and vLLM's "reshape_and_cache_flash" fills
    the KV cache."""
    nvidia = ("flashinfernormkernelsfused_add_rmsnorm", "fused_rope_kernel<true>", "ns::act_and_mul_kernel<half>")
    amd = ("_ZN5aiter24add_rmsnorm_quant_kernelE", "rotary_embedding_kernel<half>", "_ZN7sgl_hip18act_and_mul_kernelE")
    caches = ("store_kvcache<2048>", "vllm::reshape_and_cache_flash_kernel<half>")
    attention = ("fmhaSm100fKernel", "paged_attention_reduce_kernel")
    found = between(recording(graph=(*nvidia, caches[0], attention[0])), recording(graph=(*amd, caches[1], attention[1])))
    assert {row.recorded_names: row.replayed_names for row in found.kernels.replaced} == {
        (one,): (other,) for one, other in [*zip(nvidia, amd, strict=True), caches, attention]
    }
    assert not found.kernels.gone and not found.kernels.added


@pytest.mark.parametrize(
    ("fused", "parts"),
    [
        ("aten::_flash_attention_forward", ("aten::bmm", "aten::div", "aten::_softmax", "aten::bmm")),
        ("aten::_scaled_dot_product_cudnn_attention", ("aten::baddbmm", "aten::masked_fill_", "aten::_softmax", "aten::bmm")),
        ("aten::_efficient_attention_backward", ("aten::bmm", "aten::_softmax_backward_data", "aten::mul", "aten::bmm")),
        ("aten::native_layer_norm", ("aten::mean", "aten::sub", "aten::pow", "aten::rsqrt", "aten::mul")),
        ("vllm::rms_norm", ("aten::pow", "aten::mean", "aten::rsqrt", "aten::mul")),
    ],
)
def test_a_fused_op_replaces_the_ops_that_compute_the_same(fused: str, parts: tuple[str, ...]) -> None:
    """GIVEN a fused op in one trace WHEN the other trace calls the separate ops THEN no op is new or gone, whichever trace
    is first. Without the main op, such as the softmax of attention, the ops are not the parts of the fused op."""
    one = recording(("aten::relu", "relu"), (fused, "fused_kernel"))
    apart = [(op, f"{op[6:]}_kernel") for op in parts]
    other = recording(("aten::relu", "relu"), *apart)
    for pair, counts in (((one, other), (1, len(parts))), ((other, one), (len(parts), 1))):
        ops = between(*pair).ops
        assert [(row.recorded_count, row.replayed_count) for row in ops.replaced] == [counts]
        assert not ops.gone and not ops.added
    main = {"aten::_softmax", "aten::_softmax_backward_data", "aten::mean"}
    without = recording(("aten::relu", "relu"), *[op for op in apart if op[0] not in main])
    assert len(between(one, without).ops.gone) == 1


def test_kernels_at_the_position_of_an_attention_kernel_count_as_attention() -> None:
    """GIVEN a kernel "sage_fwd", whose name does not show what it computes WHEN the first trace has an attention kernel between
    the same neighbours THEN "sage_fwd" replaces the attention kernel. A kernel is new if the first trace has no kernel at the
    same position."""
    fmha = recording(graph=("gemm", "fmha_fwd", "relu", "gemm", "add"))
    sage = recording(graph=("gemm", "sage_quant", "sage_fwd", "relu", "gemm", "extra", "add"))
    found = between(fmha, sage)
    (replaced,) = found.kernels.replaced
    assert (replaced.recorded_names, set(replaced.replayed_names)) == (("fmha_fwd",), {"sage_quant", "sage_fwd"})
    assert [change.name for change in found.kernels.added] == ["extra"]
    assert not found.kernels.gone and not found.ops.gone


def test_kernels_in_a_cuda_graph_are_matched_to_eager_ops_with_the_same_kernels() -> None:
    eager = recording(("aten::addmm", "ampere_sgemm_nn"), ("aten::_scaled_dot_product_flash_attention", "flash_fwd"))
    graph = recording(("aten::relu", "relu"), graph=("cutlass_gemm_64x64", "flash_fwd", "triton_poi_fused_relu_0"))
    found = between(eager, graph)
    products = [row for row in found.ops.replaced if row.recorded_names == ("aten::addmm",)]
    assert [row.replayed_names for row in products] == [("matrix product kernels",)]
    assert not found.ops.gone  # the attention kernel has the same name in both traces
    assert {row.recorded_names[0]: row.replayed_names[0] for row in found.kernels.replaced} == {
        "ampere_sgemm_nn": "cutlass_gemm_64x64"
    }


def test_a_matrix_product_that_computes_an_activation_is_a_matrix_product() -> None:
    """TensorRT-LLM's kernels for experts are called bmm. One of these kernels also applies SwiGLU to its result."""
    experts = recording(graph=("bmm_Bfloat16_t128x8_swiGlu_sm100f", "bmm_Bfloat16_t128x8_sm100f"))
    found = between(experts, recording(graph=("ck::kernel_moe_gemm<0>", "ck::kernel_moe_gemm<1>")))
    (replaced,) = found.kernels.replaced
    assert (len(replaced.recorded_names), replaced.recorded_count, replaced.replayed_count) == (2, 2, 2)
    assert not found.ops.gone and not found.kernels.gone


def test_copies_are_compared_by_direction() -> None:
    assert kernel_key("Memcpy HtoD (Pageable -> Device)") == kernel_key("Memcpy HtoD (Host -> Device)")
    assert kernel_key("Memcpy HtoD (Pageable -> Device)") != kernel_key("Memcpy DtoH (Device -> Pageable)")
    assert ops_in_name("triton_poi_fused_add_relu_0") == "add_relu" and ops_in_name("volta_sgemm") == ""


def test_a_kernel_without_an_op_takes_the_op_of_the_matching_kernel() -> None:
    """A replay runs the remaining GPU time of a phase as kernels without ops."""
    whole = recording(("aten::mul", "mul"), ("aten::mul", "mul"), ("aten::add", "add"))
    rest = recording(("aten::mul", "mul"), ("aten::mul", "mul"), ("aten::add", "add"))
    rest.device.launch[1:] = -1  # the kernels of one mul and of add have no launch
    everything = np.zeros(0, dtype=np.int64)
    assert changes(whole, rest, everything, everything) == Changes(ChangeLists(), ChangeLists())


def test_ops_that_only_the_first_step_calls_are_not_reported_as_missing() -> None:
    trace = training(steps=2)
    first = int(np.flatnonzero(trace.host.start_ns < trace.steps.start_ns[1])[0])
    trace.host.name[first], trace.host.shapes[first] = trace.strings.add("aten::clone"), trace.strings.add("256")
    missing = [MissingOp("aten::clone", "256", 1), MissingOp("aten::add_", "4,3,3,3;4,3,3,3", 2), MissingOp("not found", "", 1)]
    assert missing_in(trace, np.array([1]), missing, profiled=1) == missing[1:]
    assert missing_in(trace, np.array([0]), missing, profiled=1) == missing


@pytest.mark.parametrize(("estimated", "is_missing"), [((0,), False), ((1,), False), ((1, 2), True), ((1, 2, 3), True)])
def test_an_op_is_missing_if_half_of_the_steps_lack_its_times(estimated: tuple[int, ...], is_missing: bool) -> None:
    """GIVEN a replay of four steps that call aten::add_, and a list of missing ops with only the first shape of aten::add_ WHEN
    the last three steps are compared THEN aten::add_ is missing if half of these steps lack its times."""
    trace = training(steps=4)
    missing = [MissingOp("aten::add_", "4,3,3,3;+1 more", 1)]
    trace.device.launch[:] = trace.host.parent[trace.device.launch]
    trace.device.origin[:] = Origin.EXACT
    is_add = trace.device.name == trace.strings.find("vectorized_add")
    trace.device.origin[is_add & np.isin(launch_steps(trace), estimated)] = Origin.ROOFLINE
    assert missing_in(trace, np.array([1, 2, 3]), missing, profiled=3) == missing * is_missing


def test_an_op_that_one_rank_calls_in_each_step_is_missing() -> None:
    """GIVEN a replay of two ranks with two steps each, and a recording with one profiled step per rank WHEN one rank calls
    aten::save in both steps THEN aten::save is missing from the recording."""
    trace = training(steps=4)
    is_second = trace.host.start_ns >= trace.steps.start_ns[2]
    trace.threads.append(Thread(1, 100, "main", "main"))
    trace.steps.rank[2:], trace.host.thread[is_second] = 1, 2
    is_save = is_second & (trace.host.name == trace.strings.find("aten::add_"))
    trace.host.name[is_save], trace.host.shapes[is_save] = trace.strings.add("aten::save"), trace.strings.add("2,2")
    missing = [MissingOp("aten::save", "2,2", 2)]
    assert missing_in(trace, np.arange(4), missing, profiled=1) == missing


def test_an_op_that_half_of_the_steps_call_is_missing() -> None:
    trace = training(steps=4)
    missing = [MissingOp("aten::save", "2,2", 1)]
    for steps, is_missing in (((1,), False), ((1, 3), True)):
        for step in steps:
            op = int(np.flatnonzero(trace.host.start_ns > trace.steps.start_ns[step])[0])
            trace.host.name[op], trace.host.shapes[op] = trace.strings.add("aten::save"), trace.strings.add("2,2")
        assert missing_in(trace, np.arange(4), missing, profiled=1) == missing * is_missing


@pytest.mark.parametrize(("profiled", "is_missing"), [(1, False), (2, False), (4, True)])
def test_an_op_that_a_script_calls_too_rarely_to_be_profiled_is_not_missing(profiled: int, is_missing: bool) -> None:
    """GIVEN a replay that calls aten::save in one of four steps WHEN fewer than four steps were profiled THEN the recording may
    lack aten::save by chance."""
    trace = training(steps=4)
    op = int(np.flatnonzero(trace.host.start_ns > trace.steps.start_ns[1])[0])
    trace.host.name[op], trace.host.shapes[op] = trace.strings.add("aten::save"), trace.strings.add("2,2")
    missing = [MissingOp("aten::save", "2,2", 1)]
    assert missing_in(trace, np.arange(4), missing, profiled) == missing * is_missing


def test_inner_ops_count_as_their_outer_op_if_the_other_trace_lacks_them() -> None:
    """GIVEN a recording with inner ops WHEN its replay has only the outer ops THEN no op differs. Casts by autocast still count
    as separate ops."""
    recorded = recording(
        ("aten::ones_like", ("aten::fill_", "fill")),
        ("aten::nll_loss_backward", ("aten::zero_", ("aten::fill_", "fill")), "backward"),
        ("aten::nll_loss_nd", ("aten::to", ("aten::copy_", "cast")), ("aten::nll_loss_forward", "loss")),
        ("aten::fill_", "fill"),
    )
    replayed = recording(
        ("aten::ones_like", "fill"),
        ("aten::nll_loss_backward", "fill", "backward"),
        ("aten::copy_", "cast"),
        ("aten::nll_loss_forward", "loss"),
        ("aten::fill_", "fill"),
    )
    assert between(recorded, replayed) == between(replayed, recorded) == Changes(ChangeLists(), ChangeLists())


def test_inner_ops_are_named_if_both_traces_have_them() -> None:
    inner = recording(("aten::zeros", ("aten::fill_", "fill")))
    found = between(inner, recording(("aten::zeros", ("aten::fill_", "fill")), ("aten::zeros", ("aten::fill_", "fill"))))
    assert [(row.name, row.recorded_count, row.replayed_count) for row in found.ops.longer] == [("aten::fill_", 1, 2)]


def test_cuda_and_hip_recordings_of_a_program_differ_only_in_their_kernels(shared_traces: Path) -> None:
    cuda, hip = (read_kineto(shared_traces / f"{card}_qwen05b_inference.json.gz") for card in ("h100", "mi300x"))
    found = changes(cuda, hip, np.arange(1), np.arange(1))
    # On ROCm, attention also launches a kernel that writes the random seed. Matrix products have other names.
    assert not found.ops.added and not found.ops.gone and not found.kernels.added and not found.kernels.gone
    seeded = next(row for row in found.kernels.replaced if row.op == "attention")
    assert seeded.replayed_count == 2 * seeded.recorded_count
    assert {"mm", "attention"} <= {row.op for row in found.kernels.replaced}
    assert all(row.recorded_count == row.replayed_count for row in [*found.ops.longer, *found.ops.shorter])


@pytest.mark.parametrize("other", ["v100_resnet50_workers0_rerun", "v100_resnet50_workers4"])
def test_two_recordings_of_the_same_program_have_no_changed_ops(shared_traces: Path, other: str) -> None:
    first, second = (read_kineto(shared_traces / f"{name}.json.gz") for name in ("v100_resnet50_workers0", other))
    found = changes(first, second, np.arange(6), np.arange(6))
    assert not found.ops.added and not found.ops.gone and not found.ops.replaced


@pytest.mark.parametrize(
    ("kernel", "ops"),
    [
        ("triton_poi_fused_add_relu_0", ["add", "relu"]),
        ("triton_poi_fused_relu_threshold_backward_add_3", ["relu", "threshold_backward", "add"]),
        ("triton_poi_fused_relu_backward_add_3", ["add"]),  # the kernel's name does not contain the name of its backward op
    ],
)
def test_the_ops_of_an_inductor_kernel_are_read_from_its_name(kernel: str, ops: list[str]) -> None:
    known = {canonical_op(op) for op in ("add", "relu", "threshold_backward")}
    assert list(named_ops(kernel, known)) == [canonical_op(op) for op in ops]


def test_changes_of_kernel_times_above_a_microsecond_and_above_the_tolerance_are_listed() -> None:
    """GIVEN two kernels of 10 us WHEN they take 11 us and 11.001 us in the second trace THEN only the second kernel counts as
    longer."""
    first = recording(("aten::relu", "relu_kernel"), ("aten::mul", "mul_kernel"))
    second = recording(("aten::relu", "relu_kernel"), ("aten::mul", "mul_kernel"))
    second.device.duration_ns[:] = [11_000, 11_001]
    assert [one.name for one in between(first, second).kernels.longer] == ["mul_kernel"]
    second.device.duration_ns[:] = [15_000, 15_001]
    found = changes(first, second, np.arange(1), np.arange(1), tolerance=0.5)
    assert [one.name for one in found.kernels.longer] == ["mul_kernel"]


def linears(direct: int) -> Trace:
    """Return a trace of 6 linear layers. The first `direct` layers launch their kernels without an inner `aten::addmm`."""
    events = [eras.op("ProfilerStep#1", 0, 700, cat="user_annotation")]
    for layer in range(6):
        at_us = 10 + 100 * layer
        events += [eras.op("aten::linear", at_us, 60), eras.call(layer + 1, at_us + 20), eras.kernel(layer + 1, at_us + 30, 20)]
        events += [eras.op("aten::addmm", at_us + 10, 40)] if layer >= direct else []
    return eras.imported(events)


@pytest.mark.parametrize(("ours", "theirs"), [(0, 1), (1, 0), (2, 1), (0, 6)])
def test_missing_inner_ops_do_not_make_the_ops_of_other_kernels_new(ours: int, theirs: int) -> None:
    """GIVEN two traces WHEN one of them lacks the inner ops of some layers THEN all kernels count as work of the outer op in
    both traces."""
    first, second = linears(ours), linears(theirs)
    ops = changes(first, second, np.arange(1), np.arange(1)).ops
    assert (ops.added, ops.gone, ops.replaced, ops.longer, ops.shorter) == ([], [], [], [], [])
    assert verdict_of(first, second)[0] is True


def test_an_op_whose_enclosing_op_replaces_nothing_is_added() -> None:
    """GIVEN an op in two enclosing ops, each of which contains another op in the second trace WHEN the op is replaced by the op
    in its nearest enclosing op THEN the other op replaces nothing, so it is added."""
    first = recording(("outer", ("inner", ("aten::sin", "sin"))))
    second = recording(("inner", ("aten::cos", "cos")), ("outer", ("aten::tan", "tan")))
    found = between(first, second).ops
    assert [(of.recorded_names, of.replayed_names) for of in found.replaced] == [(("aten::sin",), ("aten::cos",))]
    assert [of.name for of in found.added] == ["aten::tan"] and found.gone == []
