# mypy: allow-untyped-calls
"""Tests ops whose CPU kernels lack a dtype. They are computed in a wider dtype, and the results have the dtypes of a GPU."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import pytest
import torch

from replayer.errors import NotEmulated
from replayer.ops.cpu.cpu_kernels import FORMS
from replayer.ops.cpu.wider_dtypes import in_wider_dtypes, may_be_wider

aten = torch.ops.aten
_FLIPPED_BY_NEWER_TORCH = (torch.uint16, torch.uint64)


def computed(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of an op that is computed in wider dtypes."""
    if func is aten.flip.default and args[0].dtype in _FLIPPED_BY_NEWER_TORCH:
        with suppress(NotImplementedError, RuntimeError):
            return func(*args)
    with pytest.raises((NotImplementedError, RuntimeError)) as refused:
        func(*args, **kwargs)
    assert may_be_wider(func, list(args), kwargs, refused.value)
    return in_wider_dtypes(func, func, list(args), kwargs)


def test_unsigned_and_float8_tensors_can_be_moved() -> None:
    """GIVEN a dtype for which only CUDA has a kernel WHEN elements are moved THEN values and dtype are kept."""
    flipped = computed(aten.flip.default, torch.tensor([1, 2, 65535], dtype=torch.uint16), [0])
    assert (flipped.tolist(), flipped.dtype) == ([65535, 2, 1], torch.uint16)
    half = torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn)
    flipped = computed(aten.flip.default, half, [0])
    assert (flipped.float().tolist(), flipped.dtype) == ([448.0, 0.5], torch.float8_e4m3fn)


def test_inverse_fourier_transforms_are_computed_in_a_wider_dtype() -> None:
    """GIVEN a complex32 spectrum, which the CPU cannot transform THEN the transform is computed in complex64 and returned in
    float16."""
    warnings.simplefilter("ignore")  # PyTorch warns that complex half precision is experimental
    signal = computed(aten._fft_c2r.default, torch.ones(3, dtype=torch.complex32), [0], 2, 4)
    assert (signal.tolist(), signal.dtype) == ([1.0, 0.0, 0.0, 0.0], torch.float16)


def test_results_computed_in_a_wider_dtype_have_the_dtype_of_the_op() -> None:
    """GIVEN uint32 values WHEN nonzero values are counted or a trace is summed THEN the result is int64, as on a GPU."""
    count = computed(aten.count_nonzero.default, torch.tensor([0, 7, 9], dtype=torch.uint32))
    assert (count.item(), count.dtype) == (2, torch.int64)
    trace = computed(aten.trace.default, torch.tensor([[True, True], [True, True]]))
    assert (trace.item(), trace.dtype) == (2, torch.int64)


def test_an_output_argument_is_resized_to_the_result() -> None:
    """GIVEN an empty uint16 tensor as `out` WHEN the identity matrix is written THEN the tensor gets its shape and values."""
    out = torch.empty(0, dtype=torch.uint16)
    with torch.inference_mode():  # as inside `__torch_dispatch__`, PyTorch does not count the versions of tensors
        assert computed(aten.eye.m_out, 2, 2, out=out) is out
    assert (out.tolist(), out.dtype) == ([[1, 0], [0, 1]], torch.uint16)


def test_large_uint64_values_are_rejected() -> None:
    values = torch.tensor([1, 2**63 - 1], dtype=torch.uint64)
    assert computed(aten.flip.default, values, [0]).tolist() == [2**63 - 1, 1]
    values = torch.tensor([-1], dtype=torch.int64).view(torch.uint64)
    with pytest.raises(NotEmulated, match=r"aten::flip of uint64 values from 2\*\*63"):
        in_wider_dtypes(aten.flip.default, aten.flip.default, [values, [0]], {})


def test_mixed_dtypes_of_a_loss_are_not_computed_in_a_wider_dtype() -> None:
    """GIVEN float16 and float32 arguments of a loss WHEN the CPU rejects the mixture THEN nothing is computed in a wider
    dtype."""
    half = torch.ones(2, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="Found dtype Half but expected Float") as refused:
        aten.binary_cross_entropy.default(half.float(), half)
    assert not may_be_wider(aten.binary_cross_entropy.default, [half.float(), half], {}, refused.value)


def test_an_op_without_a_cuda_kernel_for_the_dtype_is_not_computed() -> None:
    """GIVEN a product of uint16 values, which CUDA also rejects THEN nothing is computed in a wider dtype."""
    values = torch.ones(2, 2, dtype=torch.uint16)
    with pytest.raises(NotImplementedError) as refused:
        aten.mm.default(values, values)
    assert not may_be_wider(aten.mm.default, [values, values], {}, refused.value)


def test_a_dtype_is_widened_only_if_the_cpu_has_no_kernel_for_it() -> None:
    """GIVEN uint16 values and a boolean mask THEN only the values are widened. If all arguments are boolean, they are widened.
    int64 is never widened."""
    given: list[list[torch.dtype]] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        given.append([arg.dtype for arg in args if isinstance(arg, torch.Tensor)])
        return args[0]

    select, mask = aten.masked_select.default, torch.tensor([True, False, True])
    values = torch.tensor([5, 6, 7], dtype=torch.uint16)
    chosen = in_wider_dtypes(select, select, [values, mask], {})
    assert (chosen.tolist(), chosen.dtype) == ([5, 7], torch.uint16)
    for args in ([values, mask], [mask], [torch.ones(3, dtype=torch.int64), mask]):
        in_wider_dtypes(aten.trace.default, run, args, {})
    assert given == [[torch.int32, torch.bool], [torch.int32], [torch.int64, torch.bool]]


def test_clamp_accepts_limits_outside_the_range_of_half_precision() -> None:
    half = torch.tensor([1.0, 3.0], dtype=torch.float16)
    limited = computed(aten.clamp.default, half, -1e30, 2.0)
    assert (limited.tolist(), limited.dtype) == ([1.0, 2.0], torch.float16)
    assert computed(aten.clamp_min.default, half, 1e30).tolist() == [float("inf")] * 2
    with pytest.raises(RuntimeError, match="without overflow") as refused:
        torch.full((2,), 1e30, dtype=torch.float16)
    assert not may_be_wider(aten.fill_.Scalar, [half, 1e30], {}, refused.value)


def test_a_number_outside_the_range_of_half_precision_is_rejected() -> None:
    """The wider dtype could hold the number, so the op itself would raise no error."""
    half = torch.ones(2, dtype=torch.float16)
    with pytest.raises(RuntimeError, match=r"lambda must be in range .* for input dtype Half, but found 65507") as refused:
        aten.softshrink.default(half, 65507.0)
    assert not may_be_wider(aten.softshrink.default, [half, 65507.0], {}, refused.value)


def test_fused_adam_with_states_in_bfloat16_is_computed_in_float32() -> None:
    """After the first step, the states are 0.1 * 2 and 0.001 * 2², rounded to bfloat16. The parameter changes by 0.5."""
    for op in (aten._fused_adam_.default, aten._fused_adamw_.default):
        parameter, gradient, steps = torch.ones(1), torch.full((1,), 2.0), torch.ones(1)
        mean, square = (torch.zeros(1, dtype=torch.bfloat16) for _ in range(2))
        options = {"lr": 0.5, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 0.0}
        FORMS[op]([parameter], [gradient], [mean], [square], [], [steps], **options, amsgrad=False, maximize=False)
        assert parameter.item() == pytest.approx(0.5) and parameter.dtype is torch.float32
        assert (mean.dtype, mean.item()) == (torch.bfloat16, 0.2001953125)
        assert (square.dtype, square.item()) == (torch.bfloat16, 0.003997802734375)
