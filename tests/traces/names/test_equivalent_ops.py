"""Tests that ops of different PyTorch releases get the same names and shapes, and that kernel names lose their parameters."""

from __future__ import annotations

import re

import pytest
import torch

from traces.names.equivalent_ops import (
    CANONICAL_OPS,
    canonical_op,
    canonical_shapes,
    distinct_shapes,
    kernel_text,
    shapes_of_canonical,
)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("aten::add_.Tensor", "add"),
        ("__", "__"),
        ("aten::_local_scalar_dense", "item"),
        ("relu_", "relu"),
        ("_chunk_cat", "chunk_cat"),
    ],
)
def test_canonical_names_have_no_namespace_and_overload_and_underscore(op: str, name: str) -> None:
    assert canonical_op(op) == name


def test_library_names_in_op_names_do_not_change_the_canonical_name() -> None:
    """GIVEN the names of all PyTorch ops WHEN a name begins with a library, such as "cudnn_batch_norm", with "native" or with
    "_" THEN the name without this prefix has the same canonical name."""
    ops = {name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name[:6] == "aten::"}
    for library in ("cudnn_", "miopen_", "native_", "slow_", "thnn_", ""):
        for op in sorted(ops):
            rest = re.sub(rf"^_?{library}|_(forward|with_indices|data|dense)(?=_backward|$)", "", op)
            if rest != op and canonical_op(rest) in CANONICAL_OPS:
                assert canonical_op(op) == canonical_op(rest)
    attention = re.compile("_(scaled_dot_product_)?(flash|efficient|cudnn)_attention(_forward)?(_backward)?")
    found = {op: "attention" + (match[4] or "") for op in ops if (match := attention.fullmatch(op))}
    assert {op: canonical_op(op) for op in found} == found and len(found) == 12


def test_shapes_other_than_matrices_are_compared_only_if_there_are_no_matrices() -> None:
    assert distinct_shapes(((4, 3), (4,), (2, 2), (4, 3))) == ((2, 2), (4, 3))
    assert distinct_shapes(((4,), (), (3,))) == ((3,), (4,))
    assert canonical_shapes("copy", ((4, 3), (4, 3))) == canonical_shapes("copy", ((4, 3),)) == ((4, 3),)
    shapes = ((8,), (2, 3), (4, 4), (3, 2))
    assert shapes_of_canonical("convolution", shapes) == ((4, 4), (2, 3), (3, 2))  # other ops also have this canonical name
    assert shapes_of_canonical("cumsum", shapes) == shapes
    assert shapes_of_canonical("convolution", ((8,),)) == ((8,),)


@pytest.mark.parametrize("op", ["_foreach_add", "_fused_adam", "cat", "stack", "mul", "rnn", "chunk_cat"])
def test_repeated_shapes_of_an_op_are_counted(op: str) -> None:
    buffers = () if op in ("rnn", "chunk_cat") else ((2,),)  # buffers of cuDNN are left out
    assert canonical_shapes(op, ((4, 3), (), (2,), (4, 3))) == (*buffers, (4, 3), (4, 3))
    assert canonical_shapes(op, ((4, 3),) * 28) != canonical_shapes(op, ((4, 3),) * 36)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        ("void gemm<int>(float*, int)", "gemm<int>"),
        ("softmax", "softmax"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("f(int (*)(int))", "f"),
        ("(anonymous)", "(anonymous)"),
        ("void (anonymous namespace)::k(int)", "(anonymous namespace)::k"),
        ("k)", "k)"),
    ],
)
def test_kernel_names_are_compared_without_parameters(kernel: str, text: str) -> None:
    assert kernel_text(kernel) == text


@pytest.mark.parametrize(
    ("mangled", "text"),
    [
        ("_ZN5aiter8rms_normILi4EEEvPT_", "aiter::rms_norm<Li4EEEvPT_>"),
        ("_ZN9something6kernelEPfi", "something::kernel"),  # the tool c++filt prints something::kernel(float*, int)
        ("_ZN2ck12_GLOBAL__N_14gemmILi1EEEvv", "ck::(anonymous namespace)::gemm<Li1EEEvv>"),
        ("_ZNSt6vectorE", "_ZNSt6vectorE"),  # names with abbreviations such as St are not changed
        ("_ZN99ab", "_ZN99ab"),
    ],
)
def test_mangled_kernel_names_are_shown_as_readable_function_names(mangled: str, text: str) -> None:
    assert kernel_text(mangled) == text
