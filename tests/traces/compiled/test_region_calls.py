"""Tests that calls of compiled regions are found in profiles of different PyTorch releases."""

from __future__ import annotations

from tests.replayer.compiled.handmade_recording import Events, recording
from traces.compiled.regions import RegionCall, region_calls
from traces.figures.measure import op_of
from traces.model.trace import Trace


def told(trace: Trace) -> list[tuple[str, bool, list[str]]]:
    return [(call.region, call.is_backward, launching(trace, call)) for call in region_calls(trace)]


def launching(trace: Trace, call: RegionCall) -> list[str]:
    return [trace.strings[trace.host.name[row]] for row in call.launching]


def test_a_compiled_backward_belongs_to_the_forward_with_its_sequence_number() -> None:
    """GIVEN two compiled forward passes WHEN their backward passes run in reverse order THEN each backward pass has the region
    and inputs of its forward pass."""
    events = Events()
    for number, at in ((0, 0), (1, 100)):
        events.op(f"Torch-Compiled Region: {number}/0", at, 50, [])
        events.op("CompiledFunction", at + 10, 30, [[4, 8 + number]], **{"Sequence number": number})
        events.launch("cuLaunchKernel", at + 20, ("triton_poi_fused_0", 5))
    for number, at in ((0, 200), (1, 300)):
        events.op("CompiledFunctionBackward", at, 50, [[4]], thread=2, **{"Sequence number": number, "Fwd thread id": 1})
        events.launch("cuLaunchKernel", at + 20, ("triton_poi_fused_1", 5), thread=2)
    calls = region_calls(events.trace())
    assert [(call.region, call.is_backward, call.inputs) for call in calls] == [
        ("0/0", False, "4,8"), ("1/0", False, "4,9"), ("0/0", True, "4,8"), ("1/0", True, "4,9"),
    ]  # fmt: skip


def test_compiled_backward_passes_without_sequence_numbers_are_matched_in_reverse_order() -> None:
    """GIVEN a profile from a release that records neither regions nor sequence numbers THEN graphs are numbered within the
    step."""
    events = Events()
    events.host("user_annotation", "ProfilerStep#1", 0, 500)
    for at in (0, 100):
        events.op("CompiledFunction", at, 50, [[4, 8]])
        events.op("aten::mm", at + 10, 10, [[4, 8], [8, 8]])
        events.launch("cudaLaunchKernel", at + 12, ("gemm", 3))
    for at in (200, 300):
        events.op("CompiledFunctionBackward", at, 50, [[4]], thread=2)
        events.launch("cuLaunchKernel", at + 20, ("triton_0", 5), thread=2)
    assert told(events.trace()) == [
        ("graph 0", False, ["aten::mm"]),
        ("graph 1", False, ["aten::mm"]),
        ("graph 1", True, ["CompiledFunctionBackward"]),
        ("graph 0", True, ["CompiledFunctionBackward"]),
    ]


def test_an_unnumbered_compiled_backward_pass_belongs_to_the_last_forward_pass_of_its_region() -> None:
    """GIVEN two regions WHEN the backward passes run in the order of the forward passes THEN each backward pass belongs to its
    region."""
    events = Events()
    for number, at in ((0, 0), (1, 100)):
        events.op(f"Torch-Compiled Region: {number}/0", at, 50, [])
        events.op("CompiledFunction", at + 10, 30, [[4, 8 + number]])
        events.launch("cuLaunchKernel", at + 20, ("triton_poi_fused_0", 5))
    for number, at in ((0, 200), (1, 300)):
        events.op(f"Torch-Compiled Region: {number}/0", at, 60, [], thread=2)
        events.op("CompiledFunctionBackward", at + 5, 50, [[4]], thread=2)
        events.launch("cuLaunchKernel", at + 20, ("triton_poi_fused_1", 5), thread=2)
    assert [(call.region, call.is_backward, call.inputs) for call in region_calls(events.trace())] == [
        ("0/0", False, "4,8"), ("1/0", False, "4,9"), ("0/0", True, "4,8"), ("1/0", True, "4,9"),
    ]  # fmt: skip


def test_autotuning_kernels_do_not_belong_to_the_compiled_call() -> None:
    """GIVEN a compiled call in which Inductor measures two versions of a kernel THEN only the kernel after the measurement
    counts."""
    events = Events()
    events.op("Torch-Compiled Region: 0/0", 0, 200, [])
    events.host("user_annotation", "## Call CompiledFxGraph fa ##", 10, 150)
    events.op("CachingAutotuner.benchmark_all_configs", 15, 100, [])
    events.launch("cuLaunchKernel", 20, ("triton_poi_fused_sin_0", 3))
    events.launch("cuLaunchKernel", 40, ("triton_poi_fused_sin_0", 2))
    events.op("triton_poi_fused_sin_0", 120, 10, [[8]])
    events.launch("cuLaunchKernel", 122, ("triton_poi_fused_sin_0", 2))
    (call,) = region_calls(events.trace())
    assert (launching(events.trace(), call), len(call.work)) == (["triton_poi_fused_sin_0"], 1)


def test_a_nested_compiled_region_is_a_separate_call_without_surrounding_eager_ops() -> None:
    """GIVEN a region that calls a graph, an eager op and a nested region THEN the two regions are two calls. The eager op
    belongs to none."""
    events = Events()
    events.op("Torch-Compiled Region: 0/0", 0, 200, [])
    events.host("user_annotation", "## Call CompiledFxGraph fa ##", 10, 30)
    events.op("triton_poi_fused_sin_0", 15, 10, [[8]])
    events.launch("cuLaunchKernel", 17, ("triton_poi_fused_sin_0", 3))
    events.op("aten::exp", 60, 10, [[8]])
    events.launch("cudaLaunchKernel", 62, ("exp_kernel", 3))
    events.op("Torch-Compiled Region: 1/0", 100, 80, [])
    events.host("user_annotation", "## Call CompiledFxGraph fb ##", 110, 30)
    events.op("triton_poi_fused_cos_0", 115, 10, [[8]])
    events.launch("cuLaunchKernel", 117, ("triton_poi_fused_cos_0", 3))
    trace = events.trace()
    assert told(trace) == [("0/0", False, ["triton_poi_fused_sin_0"]), ("1/0", False, ["triton_poi_fused_cos_0"])]
    assert [call.graph for call in region_calls(trace)] == ["fa", "fb"]


def test_a_function_with_nothing_to_compile_is_not_a_compiled_region() -> None:
    """GIVEN two functions that Dynamo traced WHEN only the second function launches a kernel THEN only the second function is a
    region."""
    events = Events()
    events.op("Torch-Compiled Region: 0/0", 0, 20, [])
    events.op("Torch-Compiled Region: 1/0", 30, 20, [])
    events.op("aten::relu", 35, 10, [[8]])
    events.launch("cudaLaunchKernel", 38, ("relu_kernel", 3))
    assert told(events.trace()) == [("1/0", False, ["aten::relu"])]


def test_kernels_of_a_cuda_graph_belong_to_its_launch() -> None:
    """GIVEN CUDA graph launches within a region THEN each launch is the op of all its kernels."""
    trace = recording(graphs=True)
    names = [trace.strings[trace.host.name[row]] for row in op_of(trace, outermost=True)[trace.device.graph == 5].tolist()]
    assert names == ["cudaGraphLaunch"] * 6
    assert told(trace)[:2] == [("0/0", False, ["cudaGraphLaunch"]), ("0/0", True, ["cudaGraphLaunch"])]


def test_a_profile_without_compiled_code_has_no_regions() -> None:
    events = Events()
    events.op("aten::relu", 0, 10, [[8]])
    events.launch("cudaLaunchKernel", 2, ("relu_kernel", 3))
    assert region_calls(events.trace()) == []


def test_ops_before_and_after_inductor_code_do_not_belong_to_it() -> None:
    """GIVEN an op that AOTAutograd runs before Inductor's code THEN its GPU work belongs to the call, but the op does not."""
    events = Events()
    events.op("CompiledFunctionBackward", 0, 100, [[4]])
    events.op("aten::zeros", 5, 10, [[4]])
    events.launch("cudaLaunchKernel", 7, ("fill_kernel", 2))
    events.host("user_annotation", "## Call CompiledFxGraph fa ##", 20, 70)
    events.op("triton_poi_fused_0", 30, 10, [[4]])
    events.launch("cuLaunchKernel", 32, ("triton_poi_fused_0", 3))
    (call,) = region_calls(trace := events.trace())
    assert launching(trace, call) == ["triton_poi_fused_0"]
    assert len(call.work) == 2
    assert trace.strings[trace.host.name[call.code]].startswith("## Call")


def test_an_optimizer_range_within_a_region_is_an_optimizer_phase() -> None:
    """GIVEN a compiled function that calls an optimizer after the backward pass THEN the step has the phase "optimizer"."""
    events = Events()
    events.host("user_annotation", "ProfilerStep#1", 0, 500)
    events.op("aten::mm", 10, 10, [[4, 8], [8, 8]])
    events.launch("cudaLaunchKernel", 12, ("gemm", 3))
    events.op("autograd::engine::evaluate_function: MmBackward0", 50, 30, [[4, 8]], thread=2)
    events.op("Torch-Compiled Region: 1/0", 200, 100, [])
    events.host("user_annotation", "optimizer", 210, 80)
    events.op("triton_for_fused_0", 220, 10, [[8, 8]])
    events.launch("cuLaunchKernel", 222, ("triton_for_fused_0", 3))
    trace = events.trace()
    assert [trace.strings[name] for name in trace.phases.name] == ["other", "forward", "backward", "optimizer"]
