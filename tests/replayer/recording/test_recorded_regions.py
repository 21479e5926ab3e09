"""Tests which recorded call provides the kernels for a call of a compiled region."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from replayer.op_signature import KeptBySignature
from replayer.recording.match_keys import RecordedKeys
from replayer.recording.recorded_regions import INPUTS, RecordedRegions, Shapes, call_of, graph_ops_of
from tests.replayer.compiled.handmade_recording import STEP_US, Events
from traces.model.trace import Trace


def shapes_of_call(regions: RecordedRegions, *shapes: tuple[int, ...]) -> Shapes | None:
    """Return the shapes of the product in the recorded call that is used for a graph. The product of the graph has the shapes
    `shapes`."""
    calls = regions.calls("0/0", (), lambda: graph_ops_of([("aten::mm", shapes)]), is_backward=False)
    return calls[0].ops[0].shapes if calls else None


def test_compiled_inference_takes_the_recorded_call_with_the_same_sizes() -> None:
    """GIVEN a compiled function that was recorded with three batch sizes WHEN the function is called with one of these sizes
    THEN the replay takes the recorded call with this size. If the function is called with a new size, the replay takes the call
    with the most similar size, and the recorded matrix product gets the new size. The recording contains no shapes of
    inputs."""
    events = Events()
    for step, batch in enumerate((24, 64, 40)):
        at = events.step_with_region(step)
        events.op("aten::mm", at + 130, 20, [[batch, 8], [8, 4]])
        events.launch("cudaLaunchKernel", at + 140, ("sgemm", 11))
    trace = events.trace()
    keys = RecordedKeys(trace)
    regions = RecordedRegions.of(trace, 0, keys, KeptBySignature(keys.of_signature))
    for batch in (24, 64, 40):
        assert shapes_of_call(regions, (batch, 8), (8, 4)) == ((batch, 8), (8, 4))
    assert shapes_of_call(regions, (32, 8), (8, 4)) == ((32, 8), (8, 4))
    assert shapes_of_call(regions, (4, 32, 8), (4, 8, 4)) is None  # This matrix product has other dimensions.


def test_compiled_inference_keeps_recorded_sizes_that_occur_in_the_graph() -> None:
    """GIVEN a recorded decoding step with a matrix product of 16 rows and a cache of length 16 WHEN the cache has length 24 and
    the matrix product still has 16 rows THEN the attention and the fused kernel get length 24, but the matrix product keeps its
    16 rows. In a second graph, the matrix product also has 24 rows."""
    events = Events()
    at = events.step_with_region(0)
    attention = "aten::_scaled_dot_product_efficient_attention"
    query, kernel = [2, 4, 1, 32], "triton_poi_fused_cat_0"
    ops = {attention: [query, [2, 4, 16, 32]], "aten::mm": [[16, 8], [8, 4]], kernel: [[2, 16, 4]]}
    for i, (name, shapes) in enumerate(ops.items()):
        events.op(name, at + 130 + 20 * i, 15, shapes)
        events.launch("cudaLaunchKernel", at + 135 + 20 * i, ("kernel", 3))
    regions = _regions(events.trace())
    for rows in (16, 24):
        graph = graph_ops_of([
            (attention, ((2, 4, 1, 32), (2, 4, 24, 32))),
            ("aten::mm", ((rows, 8), (8, 4))),
            ("aten::cat", ((2, 23, 4), (2, 1, 4))),
        ])
        (call,) = regions.calls("0/0", (), partial(dict, graph), is_backward=False)
        by_op = {one.op: one.shapes for one in call.ops}
        assert by_op[attention] == ((2, 4, 1, 32), (2, 4, 24, 32))
        assert by_op["aten::mm"] == ((rows, 8), (8, 4))
        assert by_op[kernel] == ((2, 24, 4),)


def test_a_cuda_graph_matches_the_recorded_call_with_equal_input_sizes() -> None:
    """GIVEN CUDA graphs of a compiled function for three batch sizes WHEN the function is called with one of these sizes THEN
    the replay takes the recorded call that copies a batch of this size. Other sizes take the last recorded call."""
    events = Events()
    for step, batch in enumerate((24, 64, 40)):
        at = events.step_with_region(step)
        events.op("aten::_foreach_copy_", at + 130, 20, [[batch, 8], [batch, 8]])
        events.launch("cudaLaunchKernel", at + 140, ("copy_kernel", 2))
        events.launch("cudaGraphLaunch", at + 160, ("sgemm", 11), graph=step + 1)
    regions = _regions(events.trace())
    for batch, copied in ((24, 24), (64, 64), (40, 40), (32, 40)):
        graph = graph_ops_of([(INPUTS, ((8, 4),)), (INPUTS, ((batch, 8),)), ("aten::mm", ((batch, 8), (8, 4)))])
        (call,) = regions.calls("0/0", (), partial(dict, graph), is_backward=False)
        assert call.ops[0].shapes[0] == (copied, 8)


def test_graphs_of_a_compiled_function_with_the_same_kernels_are_one_graph() -> None:
    """GIVEN two CUDA graphs with the same kernels THEN they count as one graph only if a compiled function launches them."""
    events = Events()
    for at, graph in ((0, 5), (1_000, 6)):
        events.op("Torch-Compiled Region: 0/0", at + 100, 100, [])
        events.launch("cudaGraphLaunch", at + 150, ("sgemm", 11), ("triton_poi_fused_relu_0", 7), graph=graph)
        events.launch("cudaGraphLaunch", at + 500, ("sgemm", 11), ("relu", 7), graph=graph + 2)
    trace = events.trace()
    keys = RecordedKeys(trace)
    launches = np.flatnonzero(trace.strings.matching(trace.host.name, "cudaGraphLaunch".__eq__))
    inside, outside, later, later_outside = (keys.graph_of(row) for row in launches.tolist())
    assert inside == later and len({inside, outside, later_outside}) == 3


def regions_of(*functions: tuple[str, str, int, int], calls_of_steps: tuple[int, ...] = (1, 1)) -> RecordedRegions:
    """Return the regions of compiled functions, given as (number, op, batch size, width).

    In both steps, each forward pass runs the op and a product, and each backward pass runs only the op.
    """
    events = Events()
    for step, calls in enumerate(calls_of_steps):
        at = step * 100 * STEP_US
        events.host("user_annotation", f"ProfilerStep#{step + 1}", at, 100 * STEP_US - 10)
        passes = [(False, function) for function in functions for _ in range(calls)]
        passes += [(True, function) for _, function in reversed(passes)]
        for i, (is_backward, (number, op, batch, width)) in enumerate(passes):
            at += STEP_US
            forward = 2 * len(functions) * calls - 1 - i if is_backward else i
            told = {"Sequence number": 100 * step + forward, "Fwd thread id": int(is_backward)}
            name, thread = ("CompiledFunctionBackward", 2) if is_backward else ("CompiledFunction", 1)
            if not is_backward:
                events.op(f"Torch-Compiled Region: {number}", at, 500, [])
            events.op(name, at + 10, 400, [[batch, width]], thread=thread, **told)
            events.op(op, at + 30, 20, [[batch, width, i]], thread=thread)
            events.launch("cudaLaunchKernel", at + 40, ("kernel", 5), thread=thread)
            if not is_backward:
                events.op("aten::mm", at + 60, 20, [[batch, width], [width, 4]])
                events.launch("cudaLaunchKernel", at + 70, ("sgemm", 7))
    return _regions(events.trace())


def _regions(trace: Trace) -> RecordedRegions:
    keys = RecordedKeys(trace)
    return RecordedRegions.of(trace, 0, keys, KeptBySignature(keys.of_signature))


def found(regions: RecordedRegions, name: str, inputs: Shapes, *ops: str, number: int = 0, back: bool = False) -> str | None:
    """Return the first op and its shapes in the recorded call that is used for a function with these ops."""
    calls = regions.calls(name, inputs, lambda: graph_ops_of([(op, ()) for op in ops]), is_backward=back)
    call = call_of(calls, number)
    return None if call is None else f"{call.ops[0].op} {call.ops[0].shapes[0]}"


SIN, COS, TANH = "aten::sin", "aten::cos", "aten::tanh"


def test_the_recorded_call_of_a_compiled_function_is_found_by_number_and_shapes() -> None:
    regions = regions_of(("0/0", SIN, 16, 8), ("1/0", COS, 16, 8), calls_of_steps=(3, 3))
    assert len(regions) == 2
    # Calls beyond the recorded ones repeat the last recorded call.
    for number, call in ((0, 3), (1, 4), (2, 5), (3, 5), (9, 5)):
        assert found(regions, "1/0", ((16, 8),), number=number) == f"aten::cos (16, 8, {call})"
    assert [found(regions, "0/0", ((16, 8),), number=number, back=True) for number in (0, 2)] == [
        "aten::sin (16, 8, 9)", "aten::sin (16, 8, 11)",
    ]  # fmt: skip


@pytest.mark.parametrize("calls_of_steps", [(2, 1), (1, 2), (1, 2, 1)])
def test_additional_calls_repeat_the_recorded_step_that_has_the_most_calls(calls_of_steps: tuple[int, ...]) -> None:
    regions = regions_of(("0/0", SIN, 16, 8), calls_of_steps=calls_of_steps)
    assert [found(regions, "0/0", ((16, 8),), number=number) for number in (0, 1, 2)] == [
        f"aten::sin (16, 8, {call})" for call in (0, 1, 1)
    ]


def test_an_unrecorded_function_takes_the_recorded_function_with_the_most_similar_ops() -> None:
    regions = regions_of(("0/0", SIN, 16, 8), ("1/0", COS, 16, 8))
    assert found(regions, "5/0", ((16, 8),), COS, "aten::mm") == "aten::cos (16, 8, 1)"
    # The backward pass takes the same function as its forward pass.
    assert found(regions, "5/0", ((16, 8),), SIN, back=True) == "aten::cos (16, 8, 2)"
    # The function with cos is already used, so the function with sin remains.
    assert found(regions, "6/0", ((16, 8),), COS, "aten::mm") == "aten::sin (16, 8, 0)"
    assert found(regions, "7/0", ((16, 8),), COS, "aten::mm") is None
    assert found(regions, "8/0", ((16, 8),), COS, back=True) is None  # This backward pass has no forward pass.


def test_a_function_takes_its_own_call_even_if_another_has_the_same_ops() -> None:
    """GIVEN two recorded functions with the same input sizes WHEN the first function now runs the ops of the second function
    THEN the first function still takes its own recorded call."""
    regions = regions_of(("0/0", SIN, 16, 8), ("1/0", COS, 16, 8))
    assert found(regions, "0/0", ((16, 8),), COS) == "aten::sin (16, 8, 0)"


def test_a_function_with_other_input_sizes_takes_the_scaled_times_of_recorded_ops() -> None:
    regions = regions_of(("0/0", SIN, 16, 8), ("1/0", COS, 16, 8))
    for _ in range(2):
        assert found(regions, "0/0", ((32, 8),), SIN, "aten::mm") == "aten::sin (32, 8, 0)"
    assert found(regions, "1/0", ((32, 8),), TANH) is None  # The recorded function has no op of this function.
    assert found(regions, "1/0", ((32, 8, 1),), COS, "aten::mm") is None  # The input has another number of dimensions.
    assert found(regions, "1/0", ((32, 64),), COS, "aten::mm") == "aten::cos (32, 64, 1)"


def test_a_function_with_other_input_sizes_takes_the_most_similar_recorded_call() -> None:
    regions = regions_of(("0/0", SIN, 16, 8), ("0/0", SIN, 64, 8))
    assert found(regions, "0/0", ((60, 8),), SIN, "aten::mm") == "aten::sin (60, 8, 1)"
    assert found(regions, "0/0", ((20, 8),), SIN, "aten::mm") == "aten::sin (20, 8, 0)"


def test_a_recorded_call_matches_if_only_shapes_of_inputs_are_missing() -> None:
    """A recording has no shapes of nested tensors, but the compiled graph gets their values and offsets as inputs."""
    regions = regions_of(("0/0", SIN, 16, 8))
    for inputs in (((16, 8), (5, 2), (3,)), ((5, 2), (16, 8), (3,))):
        assert found(regions, "0/0", inputs, SIN, "aten::mm") == "aten::sin (16, 8, 0)"
        assert found(regions, "0/0", inputs, SIN, back=True) == "aten::sin (16, 8, 1)"
    assert found(regions, "0/0", ((5, 2), (3,)), SIN) is None


def test_a_recorded_call_of_another_compilation_matches_if_the_sizes_are_equal() -> None:
    """GIVEN two recorded compilations of a function WHEN the second one runs with the recorded sizes of the first THEN the
    replay takes the recorded call of the first. Another function with the same sizes has no effect."""
    regions = regions_of(("0/0", SIN, 16, 8), ("0/1", COS, 64, 8), ("1/0", TANH, 32, 8))
    assert found(regions, "0/1", ((16, 8),), COS, "aten::mm") == "aten::sin (16, 8, 0)"
    assert found(regions, "0/1", ((32, 8),), COS, "aten::mm") == "aten::cos (32, 8, 1)"


def test_a_recorded_call_is_not_rescaled_if_only_one_of_two_equal_sizes_would_change() -> None:
    """GIVEN recorded calls with batches of 16 and 128, and a product of width 16 WHEN the batch size is 32 THEN the replay
    rescales the call of 128. In the call of 16, batch and width are equal, so only one of two equal sizes would change."""
    regions = regions_of(("0/0", SIN, 16, 8), ("0/0", SIN, 128, 8))
    graph = graph_ops_of([(SIN, ()), ("aten::mm", ((32, 8), (8, 16)))])
    for region in regions._regions.values():
        for variants in region.forward.values():
            ops = [replace(op, shapes=(op.shapes[0], (8, 16))) if op.op == "aten::mm" else op for op in variants[0][0].ops]
            variants[0][0] = replace(variants[0][0], ops=tuple(ops))
    (call,) = regions.calls("0/0", ((32, 8),), lambda: graph, is_backward=False)
    assert call.ops[0].shapes[0] == (32, 8, 1)


def test_a_recorded_function_needs_at_least_a_quarter_of_the_ops() -> None:
    """GIVEN a recorded function of two ops WHEN one of them occurs in a graph of two or three ops THEN the similarity is 1/2 *
    1/2 or 1/2 * 1/3."""
    regions = regions_of(("0/0", SIN, 16, 8))
    assert found(regions, "1/0", ((32, 8),), SIN, COS) == "aten::sin (32, 8, 0)"
    assert found(regions, "2/0", ((32, 8),), SIN, COS, TANH) is None
    assert found(regions, "3/0", ((32, 8),)) is None


def test_equal_recorded_sizes_cannot_be_replaced_if_they_change_differently() -> None:
    """GIVEN a recorded input of 8 x 8 WHEN the input is 16 x 8 THEN it is unclear which recorded sizes of 8 become 16."""
    regions = regions_of(("0/0", SIN, 8, 8))
    assert found(regions, "0/0", ((16, 8),), SIN, "aten::mm") is None
    assert found(regions, "0/0", ((16, 16),), SIN, "aten::mm") == "aten::sin (16, 16, 0)"


def test_the_memory_blocks_of_a_call_come_from_its_memory_events() -> None:
    """GIVEN a call that allocates two blocks, and then frees the first block and an older block THEN these four memory events
    are found. Events outside the call or during a measurement of kernels do not count."""
    events = Events()
    events.host("user_annotation", "ProfilerStep#1", 0, 900)
    events.op("Torch-Compiled Region: 0/0", 100, 400, [])
    events.op("CompiledFunction", 110, 380, [[16, 8]], **{"Sequence number": 0, "Fwd thread id": 0})
    for at, size_bytes, address in ((90, 64, 1), (120, 512, 2), (160, 1024, 3), (170, -512, 2), (180, -64, 1), (600, 32, 4)):
        events.memory(at, size_bytes, address)
    events.op("CachingAutotuner.benchmark_all_configs", 300, 50, [])
    events.memory(310, 4096, 5)
    for at in (130, 190):
        events.op("aten::sin", at, 20, [[16, 8]])
        events.launch("cudaLaunchKernel", at + 5, ("kernel", 5))
    trace = events.trace()
    trace.memory.device[:] = 0
    (call,) = _regions(trace).calls("0/0", ((16, 8),), dict, is_backward=False)
    assert call.memory is not None
    assert [(of.size_bytes, of.block, of.outlives, of.op) for of in call.memory] == [
        (512, 0, False, 0), (1024, 1, True, 1), (-512, 0, False, 1), (-64, None, False, 1),
    ]  # fmt: skip
