"""Tests which eager ops each fused kernel of a compiled trace replaces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.replayer.compiled.handmade_recording import Events, running
from traces.comparison.compare import compare
from traces.comparison.explain import explain
from traces.comparison.fused_ops import FusedOps, fused_ops
from traces.model.trace import Trace


def fusing(*, compiled: bool, in_region: bool = False, slowdown: float = 1) -> Trace:
    """Return three steps with add, relu, a matrix product, gelu, another product, mul and relu. In compiled code, all ops
    except the products are fused.

    The kernels take 5, 4, 10, 6, 10, 7 and 2 us. The fused kernels take 3 us (add_relu), 2 us (gelu) and 1 us (relu). All times
    are multiplied by `slowdown`.
    """
    eager = (("add", 5), ("relu", 4), ("mm", 10), ("gelu", 6), ("mm", 10), ("mul", 7), ("relu", 2))
    fused = (
        ("triton_poi_fused_add_relu_0", 3),
        ("mm", 10),
        ("triton_poi_fused_gelu_1", 2),
        ("mm", 10),
        ("triton_poi_fused_relu_2", 1),
    )
    events = Events()
    for step in range(3):
        at = 1000 * step
        events.host("user_annotation", f"ProfilerStep#{step + 1}", at, 990)
        if compiled or in_region:
            events.op("Torch-Compiled Region: 0/0", at + 5, 900, [])
        for place, (name, length) in enumerate(fused if compiled else eager):
            start = at + 20 + 50 * place
            is_fused = name.startswith("triton")
            events.op(name if is_fused else f"aten::{name}", start, 20, [[8, 8]])
            time = slowdown * length if is_fused else length
            events.launch("cuLaunchKernel" if is_fused else "cudaLaunchKernel", start + 5, (name, time))
    return events.trace()


FUSED = (
    FusedOps((), 1, 0, {"mul": 1}, 7_000),
    FusedOps(("triton_poi_fused_add_relu_0",), 1, 3_000, {"add": 1, "relu": 1}, 9_000),
    FusedOps(("triton_poi_fused_gelu_1",), 1, 2_000, {"gelu": 1}, 6_000),
    FusedOps(("triton_poi_fused_relu_2",), 1, 1_000, {"relu": 1}, 2_000),
)


def test_an_eager_op_is_matched_to_the_fused_kernel_that_contains_its_name() -> None:
    """GIVEN two fused kernels with relu in their names THEN the relu before the products belongs to the first kernel.

    No fused kernel has mul in its name.
    """
    eager, compiled = fusing(compiled=False), fusing(compiled=True)
    assert compare(eager, compiled).fused == FUSED
    assert compare(compiled, eager).fused == FUSED
    assert compare(compiled, compiled).fused == ()


def test_of_two_traces_the_one_with_fused_kernels_is_compiled() -> None:
    """GIVEN two traces with compiled functions WHEN only one trace has fused kernels THEN the text says that this trace fused
    the ops."""
    plain, fused = fusing(compiled=False, in_region=True), fusing(compiled=True)
    less, more = "6.0 µs less: 9.0 µs -> 3.0 µs", "6.0 µs more: 3.0 µs -> 9.0 µs"
    for pair, trace, times in (((plain, fused), "B", less), ((fused, plain), "A", more)):
        texts = [reason.text for reason in explain(compare(*pair)).reasons]
        assert f"add, relu (in {trace} fused into triton_poi_fused_add_relu_0) takes {times}; on the GPU" in texts


def test_explain_names_fused_ops_for_an_eager_and_a_compiled_trace() -> None:
    explanation = explain(compare(fusing(compiled=False), fusing(compiled=True)))
    texts = [reason.text for reason in explanation.reasons]
    assert explanation.caution == ""
    said = "add, relu (in B fused into triton_poi_fused_add_relu_0) takes 6.0 µs less: 9.0 µs -> 3.0 µs; on the GPU"
    assert said in texts
    assert "mul (no fused kernel of B names it) is gone: 7.0 µs of a step; on the GPU" in texts
    assert not [text for text in texts if text.startswith(("op ", "kernel "))]


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("triton_poi_fused_add_0", "mul (no fused kernel of B names it) is gone: 30.0 µs of a step; on the GPU"),
        (
            "triton_poi_fused_add_mul_0",
            "mul, add (in B fused into triton_poi_fused_add_mul_0) takes 32.0 µs less: 35.0 µs -> 3.0 µs; on the GPU",
        ),
    ],
)
def test_an_op_that_compilation_removes_is_listed_once(kernel: str, said: str) -> None:
    """GIVEN two calls of mul in A and one in B THEN mul is mentioned only in the sentence about fused kernels."""
    compared = compare(running(("mul", 30), ("mul", 30), ("add", 5)), running(("mul", 30), (kernel, 3)))
    texts = [reason.text for reason in explain(compared).reasons]
    assert [text for text in texts if "mul" in text] == [said]


@pytest.mark.parametrize("is_eager_first", [True, False])
def test_an_unfused_op_that_only_the_compiled_trace_contains_is_listed_as_a_change(is_eager_first: bool) -> None:
    """GIVEN a compiled trace that also copies its inputs THEN the list of changes contains the copy, but no fused op."""
    eager = running(("mul", 30), ("add", 5))
    compiled = running(("mul", 30), ("triton_poi_fused_add_0", 3), ("_foreach_copy_", 16))
    pair = (eager, compiled) if is_eager_first else (compiled, eager)
    for changes in (compare(*pair).unfused_changes.ops, compare(*pair).unfused_changes.kernels):
        assert [name for change in changes.added + changes.gone for name in change.names if "copy" not in name] == []
        assert len(changes.added if is_eager_first else changes.gone) == 1
        assert changes.replaced == []


def test_an_op_that_launches_fewer_kernels_is_not_listed_as_gone() -> None:
    """GIVEN an attention op that launches a second small kernel only in the eager trace THEN no fused kernel replaces the
    op."""

    def attending(*kernels: str) -> Trace:
        events = Events()
        events.host("user_annotation", "ProfilerStep#1", 0, 900)
        events.op("aten::_flash_attention_forward", 20, 90, [[8, 8]])
        for place, kernel in enumerate(("flash_fwd_kernel", *kernels)):
            events.launch("cudaLaunchKernel", 30 + 20 * place, (kernel, 9 - place))
        is_compiled = not kernels
        name = "triton_poi_fused_add_0" if is_compiled else "aten::add"
        events.op(name, 200, 20, [[8, 8]])
        events.launch("cuLaunchKernel" if is_compiled else "cudaLaunchKernel", 205, (name, 2 if is_compiled else 5))
        return events.trace()

    (of,) = fused_ops(attending("reduce_kernel"), attending(), 0, 0)
    assert of == FusedOps(("triton_poi_fused_add_0",), 1, 2_000, {"add": 1}, 5_000)


def test_a_fused_op_is_matched_between_the_same_two_matrix_products() -> None:
    """GIVEN a relu before, between and after two products WHEN the compiled trace has a fused relu kernel in each place THEN
    each relu matches the kernel in its place.

    Without the first fused kernel, the first relu belongs to the second fused kernel, which is the nearest one.
    """
    eager = running(("relu", 9), ("mm", 10), ("relu", 5), ("relu", 4), ("bmm", 10), ("relu", 2))
    kernels = [(f"triton_poi_fused_relu_{number}", 1) for number in range(3)]
    fused = kernels[0], ("mm", 10), kernels[1], ("bmm", 10), kernels[2]
    found = {of.kernels[0][-1]: (of.ops["relu"], of.eager_ns) for of in fused_ops(eager, running(*fused), 0, 0)}
    assert found == {"0": (1, 9_000), "1": (2, 9_000), "2": (1, 2_000)}
    found = {of.kernels[0][-1]: (of.ops["relu"], of.eager_ns) for of in fused_ops(eager, running(*fused[1:]), 0, 0)}
    assert found == {"1": (3, 18_000), "2": (1, 2_000)}


def test_consecutive_fused_kernels_are_grouped_and_equal_groups_are_added() -> None:
    """GIVEN add and relu before and after a product WHEN each pair of ops is fused into two kernels THEN the two kernels are
    one group, and both groups are added up."""
    pair = ("triton_poi_fused_add_0", 2), ("triton_poi_fused_relu_1", 1)
    eager = running(("add", 5), ("relu", 4), ("mm", 10), ("add", 7), ("relu", 6))
    (of,) = fused_ops(eager, running(*pair, ("mm", 10), *pair), 0, 0)
    assert of == FusedOps(tuple(name for name, _ in pair), 2, 6_000, {"add": 2, "relu": 2}, 22_000)
    comparison = replace(compare(fusing(compiled=False), fusing(compiled=True)), fused=(of,))
    (reason,) = (one for one in explain(comparison).reasons if one.what.startswith("fused"))
    said = "2 x add, 2 x relu (in B fused into triton_poi_fused_add_0 + 1 more) takes 16.0 \N{MICRO SIGN}s less"
    assert reason.text.startswith(said) and reason.names == ("triton_poi_fused_add_0",)
