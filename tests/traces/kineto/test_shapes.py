"""Tests which shapes and dtypes of op arguments an import keeps. Shapes of results are left out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from traces.kineto import read_kineto_bytes
from traces.kineto.spans.out_variants import results_among
from traces.kineto.spans.shapes import layouts_of
from traces.model.trace import NONE, UNKNOWN_LIST, Trace, parse_shapes

torch = pytest.importorskip("torch")


def recorded(name: str, dims: list[Any], types: list[Any]) -> Trace:
    args = {"Input Dims": dims, "Input type": types}
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 5, "dur": 1, "args": args}
    return read_kineto_bytes(orjson.dumps({"traceEvents": [event]}))


def inputs(name: str, dims: list[Any], types: list[Any]) -> tuple[str, str]:
    trace = recorded(name, dims, types)
    return trace.strings[int(trace.host.shapes[0])], trace.strings[int(trace.host.dtypes[0])]


MATRIX = [[4, 3], [3, 5], [4, 5]]


@pytest.mark.parametrize(
    ("name", "dims", "types", "expected"),
    [
        ("aten::mm", MATRIX, ["float"] * 3, ("4,3;3,5", "float32;float32")),  # compiled graphs call mm with an out argument
        ("aten::mm.out", MATRIX, ["float"] * 3, ("4,3;3,5", "float32;float32")),
        ("aten::mm", MATRIX[:2], ["float"] * 2, ("4,3;3,5", "float32;float32")),
        ("aten::addmm", [[5], *MATRIX[:2], [], []], ["float"] * 3 + ["Scalar"] * 2, ("5;4,3;3,5", "float32;float32;float32")),
        ("aten::addmm", [[5], *MATRIX[:2], [], [], [4, 5]], [*["float"] * 3, "Scalar", "Scalar", "float"],
         ("5;4,3;3,5", "float32;float32;float32")),
        ("aten::cat", [[[2, 3], [4, 3]], [], [6, 3]], ["TensorList", "Scalar", "float"], ("2,3;4,3", ";")),
        ("aten::max", [[4, 3], [], [], [4], [4]], ["float", "Scalar", "Scalar", "float", "long int"], ("4,3", "float32")),
        ("aten::max", [[4, 3], [], []], ["float", "Scalar", "Scalar"], ("4,3", "float32")),
        ("aten::max", [[4, 3], [3], [4, 3]], ["float"] * 3, ("4,3;3", "float32;float32")),
        # No out variant has so many arguments, the op is not from ATen, or the types are unknown.
        ("aten::mm", [*MATRIX, [2], [6]], ["float"] * 5, ("4,3;3,5;4,5;2;6", ";".join(["float32"] * 5))),
        ("mine::mm", MATRIX, ["float"] * 3, ("4,3;3,5;4,5", "float32;float32;float32")),
        ("aten::mm", MATRIX, [], ("4,3;3,5;4,5", "")),
    ],
)  # fmt: skip
def test_output_arguments_are_not_recorded_as_inputs(
    name: str, dims: list[Any], types: list[Any], expected: tuple[str, str]
) -> None:
    assert inputs(name, dims, types) == expected


def test_calls_of_different_ops_with_equal_shapes_stay_separate() -> None:
    args = {"Input Dims": MATRIX, "Input type": ["float"] * 3}
    names = ["aten::mm", "aten::addcmul_", "aten::mm", "aten::bmm"]
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 5 + at, "dur": 1, "args": args}
        for at, name in enumerate(names)
    ]
    trace = read_kineto_bytes(orjson.dumps({"traceEvents": events}))
    assert [trace.strings[i] for i in trace.host.shapes] == ["4,3;3,5", "4,3;3,5;4,5", "4,3;3,5", "4,3;3,5"]


def test_the_shape_of_a_tensor_list_that_the_profiler_omitted_is_unknown() -> None:
    trace = recorded("aten::_foreach_add_", [[], [2, 3], []], ["TensorList", "float", "Scalar"])
    text = trace.strings[int(trace.host.shapes[0])]
    assert text == f"{UNKNOWN_LIST};2,3" and trace.strings[int(trace.host.dtypes[0])] == ";float32"
    assert parse_shapes(text) == ((2, 3),)
    assert trace.host.shapes[0] != NONE


def test_ops_with_output_arguments_are_recognized_from_torchs_schemas() -> None:
    """GIVEN every op of the installed PyTorch WHEN it is called with tensors for all its tensor arguments THEN outputs are
    found only for out variants, unless another overload has the same arguments."""
    wrong, right, outs = [], 0, 0
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            types = ["float" if "Tensor" in str(argument.type) else "Scalar" for argument in schema.arguments]
            results = sum(argument.is_out for argument in schema.arguments)
            found = results_among(schema.name, types)
            outs, right = outs + bool(results), right + (found == results > 0)
            if found and not results:
                wrong.append(str(schema))
    assert not wrong
    assert right > 0.98 * outs


def test_the_memory_layout_is_read_from_a_separate_field_if_strides_are_missing() -> None:
    """GIVEN a file in which some ops have no strides, or strides that are not a list THEN the memory layout comes from a
    separate field."""
    last, image, strides = "channels_last", [[8, 3, 4, 5]], [[60, 1, 15, 3]]
    args: list[dict[str, Any]] = [
        {"Input Dims": image, "Input Strides": strides},
        {"Input Dims": image, "Memory layout": last},
        {"Input Strides": strides},
        {"Input Dims": image, "Input Strides": "none", "Memory layout": last},
        {"Input Dims": 4, "Input Strides": strides},
        {"Input Dims": image, "Input Strides": [[60, 20, 5, 1]]},
    ]
    assert layouts_of(args) == [last, last, "", last, "", "contiguous"]
    assert layouts_of([args[1], {"Memory layout": "no layout"}]) == [last, ""]
