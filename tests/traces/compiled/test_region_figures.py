"""Tests the figures of compiled regions, graph breaks and CUDA graphs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.replayer.compiled.handmade_recording import Events, recording
from tests.traces.handmade import replay_of
from traces.comparison.compare import compare
from traces.comparison.explain import explain
from traces.comparison.gate import check
from traces.compiled.compilations import Compilation
from traces.compiled.cuda_graph_figures import CudaGraph
from traces.compiled.graph_breaks import GraphBreak
from traces.compiled.region_figures import FusedKernel, compiled_figures
from traces.kineto import read_kineto_bytes
from traces.model.trace import DeviceKind, Trace


def regions(*names: str) -> Trace:
    """Return a trace of one step that calls a region for each of the names."""
    events = Events()
    events.host("user_annotation", "ProfilerStep#1", 0, 1000)
    for number, name in enumerate(names):
        events.op(f"Torch-Compiled Region: {name}", 100 * number, 80, [])
        events.op("triton_poi_fused_sin_0", 100 * number + 10, 20, [[8]])
        events.launch("cuLaunchKernel", 100 * number + 15, ("triton_poi_fused_sin_0", 3))
    return events.trace()


def test_the_time_of_a_region_is_the_kernel_time_per_step() -> None:
    """GIVEN steps with forward kernels of 11 and 7 us, and backward kernels of 9 and 13 us THEN the region takes 40 us per
    step."""
    (region,) = compiled_figures(recording()).regions
    assert (region.name, region.calls, region.backwards, region.gpu_ns, region.kernels) == ("0/0", 1, 1, 40_000, 4)
    assert region.fused == (FusedKernel("triton_poi_fused_1", 1, 9_000), FusedKernel("triton_poi_fused_relu_0", 1, 7_000))
    assert region.fused_ns == 16_000
    assert region.external == ("aten::addmm", "aten::mm")
    (of_graphs,) = compiled_figures(recording(graphs=True)).regions
    assert (of_graphs.graph_launches, of_graphs.gpu_ns, of_graphs.external) == (2, 40_000, ())


def test_shares_of_compiled_code_are_fractions_of_all_gpu_work() -> None:
    """A step has 51 us of GPU work. The region takes 40 us of it, and fused kernels take 16 us."""
    figures = compiled_figures(recording())
    assert (figures.region_share, figures.fused_share, figures.graph_share) == pytest.approx((40 / 51, 16 / 51, 0))
    assert compiled_figures(recording(graphs=True)).graph_share == pytest.approx(40 / 51)


def test_the_figures_of_a_cuda_graph_include_its_kernels_and_idle_time() -> None:
    """GIVEN two CUDA graphs with two kernels each WHEN the device is idle for 1 us between the kernels THEN the figures contain
    this idle time."""
    assert compiled_figures(recording(graphs=True)).graphs == (
        CudaGraph("CUDA graph 1", 1, 2, 18_000, 1_000, 1_000, ("sgemm", "triton_poi_fused_relu_0")),
        CudaGraph("CUDA graph 2", 1, 2, 22_000, 1_000, 1_000, ("sgemm_t", "triton_poi_fused_1")),
    )


def test_graph_launches_without_an_id_are_grouped_by_their_kernels() -> None:
    events = Events()
    for at in (0, 100, 200):
        kernels = [("a", 5), ("b", 3)] if at < 200 else [("a", 5)]
        events.launch("cudaGraphLaunch", at, *kernels)
    comparison = compare(trace := events.trace(), trace)
    first, second = compiled_figures(trace).graphs
    assert [(of.launches, of.kernels, of.gpu_ns) for of in (first, second)] == [(2, 4, 16_000), (1, 1, 5_000)]
    assert check({"graph_breaks": 0}, comparison).checks[0].value == 0


def test_graph_launches_are_equal_even_if_the_kind_of_memset_memory_differs() -> None:
    """GIVEN two launches of a CUDA graph WHEN CUPTI reports the kind of memory only for one of them THEN both launches belong
    to the same graph."""
    events = Events()
    for at, memory in ((0, "Unknown"), (100, "Device")):
        events.launch("cudaGraphLaunch", at, ("a", 5), (f"Memset ({memory})", 1))
    trace = events.trace()
    memsets = [row for row, name in enumerate(trace.device.name) if trace.strings[name].startswith("Memset")]
    trace.device.kind[memsets] = DeviceKind.MEMSET
    (graph,) = compiled_figures(trace).graphs
    assert (graph.launches, graph.gpu_ns) == (2, 12_000)


def test_each_compilation_in_a_profile_is_assigned_to_its_region() -> None:
    """GIVEN a compilation of region 0/1 with an inner stage, and the compilation of its backward pass THEN the profile has two
    compilations."""
    events = Events()
    events.host("user_annotation", "ProfilerStep#7", 0, 500)
    events.op("entire_frame_compile", 10, 100, [])
    events.host("user_annotation", "entire_frame_compile_data: fn_name=_compile.compile_inner, compile_id=0/1", 12, 2)
    events.op("_compile.compile_inner (dynamo_timed)", 15, 90, [])
    events.op("build_guards (dynamo_timed)", 20, 30, [])
    events.op("CompiledFunctionBackward", 200, 100, [])
    events.host("user_annotation", "entire_backward_compile_data: fn_name=backward, compile_id=0/1", 205, 2)
    events.op("backward._backward_impl (dynamo_timed)", 210, 40, [])
    figures = compiled_figures(events.trace())
    assert figures.compilations == (Compilation("0/1", False, 7, 90_000), Compilation("0/1", True, 7, 40_000))
    assert figures.compiling_ns == 130_000
    assert compiled_figures(events.trace(), 0, np.array([], np.int64)).compiling_ns == 0


def test_a_further_compilation_of_a_function_is_a_recompilation() -> None:
    figures = compiled_figures(regions("0/0", "0/1", "1/0", "0/2"))
    assert (len(figures.regions), figures.recompiles, figures.graph_breaks) == (4, 2, None)
    assert [region.gpu_ns for region in figures.regions] == [3_000] * 4  # each region has one kernel


def broken(*, pause: int = 30, nested: bool = True, first: int = 30) -> Trace:
    """Return a trace of two steps with a graph break. In each step, region 0/0 calls a graph until 40 us, runs exp eagerly (a
    kernel of 3 us) and calls region 1/0.

    The graph of region 1/0 begins `pause` us after 40 us. The first graph lasts `first` us. Without `nested`, the regions are
    not nested, as in a replay.
    """
    events = Events()
    for step in range(2):
        at = 1000 * step
        events.host("user_annotation", f"ProfilerStep#{step + 1}", at, 990)
        events.op("Torch-Compiled Region: 0/0", at + 5, 200 if nested else 35, [])
        events.host("user_annotation", "## Call CompiledFxGraph fa ##", at + 10, first)
        events.op("triton_poi_fused_sin_0", at + 15, 10, [[8]])
        events.launch("cuLaunchKernel", at + 17, ("triton_poi_fused_sin_0", 3))
        events.op("aten::exp", at + 45, 5, [[8]])
        events.launch("cudaLaunchKernel", at + 47, ("exp_kernel", 3))
        events.op("Torch-Compiled Region: 1/0", at + 55, 100, [])
        events.host("user_annotation", "## Call CompiledFxGraph fb ##", at + 40 + pause, 30)
        events.op("triton_poi_fused_cos_0", at + 45 + pause, 10, [[8]])
        events.launch("cuLaunchKernel", at + 47 + pause, ("triton_poi_fused_cos_0", 3))
        events.launch("cuLaunchKernel", at + 60 + pause, ("triton_poi_fused_cos_1", 3))  # this kernel has no op
    return events.trace()


def test_the_time_of_a_graph_break_is_the_time_between_two_graphs() -> None:
    """GIVEN a graph that ends at 40 us, an eager op, and a graph that begins at 70 us THEN the graph break takes 30 us."""
    assert compiled_figures(broken()).breaks == (GraphBreak("0/0", "1/0", "", 1.0, 30_000, 3_000, ("aten::exp",)),)
    # WHEN the second graph begins at the end of the first one THEN the graph break takes no time
    assert [one.host_ns for one in compiled_figures(broken(first=60)).breaks] == [0]
    # WHEN the second graph is called within the first one THEN there is no graph break
    assert compiled_figures(broken(first=150)).breaks == ()
    comparison = compare(broken(), broken(pause=50))
    assert (
        "graph break between regions 0/0 and 1/0 takes 20.0 µs more: 30.0 µs -> 50.0 µs; on the host; aten::exp ran eagerly"
        in [reason.text for reason in explain(comparison).reasons]
    )


def calling_another_function(*, nested: bool) -> Trace:
    """Return a step with four graphs: 0/0 (10 to 20 us), 1/0 (40 to 50 us), 2/0 (70 to 80 us) and 3/0 (100 to 110 us). The
    regions are nested in a recording, and not nested in a replay."""
    events = Events()
    events.host("user_annotation", "ProfilerStep#1", 0, 990)
    for name, at, until in (("0/0", 10, 130), ("1/0", 40, 90), ("2/0", 70, 85), ("3/0", 100, 120)):
        events.op(f"Torch-Compiled Region: {name}", at - 2, (until if nested else at + 12) - at, [])
        events.host("user_annotation", f"## Call CompiledFxGraph f{name[0]} ##", at, 10)
        events.op("triton_poi_fused_sin_0", at + 2, 6, [[8]])
        events.launch("cuLaunchKernel", at + 4, ("triton_poi_fused_sin_0", 3))
    return events.trace()


def test_the_time_of_a_graph_break_excludes_graphs_and_breaks_of_called_functions() -> None:
    """GIVEN a graph break of 80 us WHEN a function with its own graph break is called in this time THEN the time of the
    function does not count."""
    expected = {("0/0", "3/0", 40_000), ("1/0", "2/0", 20_000)}
    functions = {
        "0/0": "forward (model.py:3)",
        "1/0": "forward (model.py:30)",
        "2/0": "torch_dynamo_resume_in_forward_at_35 (model.py:35)",
        "3/0": "torch_dynamo_resume_in_forward_at_5 (model.py:5)",
    }
    for nested in (True, False):
        trace = calling_another_function(nested=nested)
        named = replace(trace, runs=replay_of(trace, compiled={"regions": 4, "graph_breaks": 2, "functions": functions}).runs)
        assert {(one.after, one.before, one.host_ns) for one in compiled_figures(named).breaks} == expected
    found = compiled_figures(calling_another_function(nested=True)).breaks
    assert {(one.after, one.before, one.host_ns) for one in found} == expected
    # WHEN the regions belong to four different functions THEN there is no graph break
    others = {region: f"forward_{region[0]} (model.py:{region[0]})" for region in functions}
    named = replace(trace, runs=replay_of(trace, compiled={"regions": 4, "graph_breaks": 0, "functions": others}).runs)
    assert compiled_figures(named).breaks == ()


def test_a_graph_break_of_a_replay_is_recognized_by_the_function_name() -> None:
    """GIVEN regions that are not nested THEN a graph break is found only before a function that Dynamo resumed."""
    assert compiled_figures(broken(nested=False)).breaks == ()
    functions = {"0/0": "forward (model.py:3)", "1/0": "torch_dynamo_resume_in_forward_at_5 (model.py:5)"}
    told = {"graph_breaks": 1, "break_reasons": {"print() is not traced": 1}, "functions": functions}
    trace = broken(nested=False)
    figures = compiled_figures(replace(trace, runs=replay_of(trace, compiled=told).runs))
    assert [(one.after, one.before, one.place, one.host_ns) for one in figures.breaks] == [("0/0", "1/0", "model.py:5", 30_000)]
    assert [region.function for region in figures.regions] == list(functions.values())


@pytest.mark.parametrize(
    ("kernel", "compiled"),
    [
        ("triton_poi_fused_add_0", True),
        ("triton__0d1d2de", True),
        ("triton_", True),
        ("triton_scale_swizzle", False),
        ("triton__moe_0d1d", False),
    ],
)
def test_handwritten_triton_kernels_are_not_compiled_code(kernel: str, compiled: bool) -> None:
    events = Events()
    events.launch("cuLaunchKernel", 10, (kernel, 20))
    assert compiled_figures(read_kineto_bytes(json.dumps({"traceEvents": events.made}).encode())).is_compiled == compiled
