# mypy: allow-untyped-calls
"""Dtypes that CUDA kernels refuse, and how tensors are printed. Runs in the warm interpreter."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from replayer.tensor.planning.mixed_dtypes import batch_norm_by_cudnn
from tests.replayer.fake_gpu import use

nn: Any = F
HALF, FLOAT, BFLOAT = torch.float16, torch.float32, torch.bfloat16


def by_cudnn(
    *shape: int, dtype: Any = FLOAT, weight: Any = FLOAT, bias: Any = FLOAT, running: bool = True, training: bool
) -> bool:
    def made(dtype: Any) -> Any:
        return None if dtype is None else torch.empty(3, dtype=dtype, device="cuda")

    data = torch.empty(shape, dtype=dtype, device="cuda")
    return batch_norm_by_cudnn(data, made(weight), made(bias), object() if running else None, training)


def test_cudnn_runs_a_batch_norm_of_three_or_more_dimensions_with_weights_and_statistics() -> None:
    use()
    assert by_cudnn(4, 3, 8, training=True) and by_cudnn(4, 3, 8, training=False)
    assert not by_cudnn(4, 3, training=True)
    assert not by_cudnn(4, 3, 8, weight=None, training=True) and not by_cudnn(4, 3, 8, bias=None, training=True)
    assert by_cudnn(4, 3, 8, running=False, training=True)  # statistics of the batch
    assert not by_cudnn(4, 3, 8, running=False, training=False)
    with torch.backends.cudnn.flags(enabled=False):
        assert not by_cudnn(4, 3, 8, training=True)
    assert not batch_norm_by_cudnn(torch.empty(4, 3, 8), torch.empty(3), torch.empty(3), None, True)


def test_cudnn_runs_a_batch_norm_of_half_precision_only_with_full_precision_weights() -> None:
    use()
    assert by_cudnn(4, 3, 8, dtype=HALF, training=True)
    assert not by_cudnn(4, 3, 8, dtype=HALF, weight=HALF, training=True)
    assert not by_cudnn(4, 3, 8, dtype=BFLOAT, training=True)
    assert not by_cudnn(4, 3, 8, weight=BFLOAT, training=True)


def test_cudnn_has_a_limit_of_the_batch_size() -> None:
    use()
    assert by_cudnn(65_535, 3, 1, training=False) and not by_cudnn(65_536, 3, 1, training=False)
    assert by_cudnn(880_801, 3, 1, training=True) and not by_cudnn(880_802, 3, 1, training=True)


def ints(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int64, device="cuda")


CONVOLUTIONS: dict[str, tuple[Callable[[], Any], str, str]] = {
    # what is called, and which kernel is missing with and without cuDNN
    "conv1d": (lambda: nn.conv1d(ints(1, 2, 8), ints(4, 2, 3)), "getCudnnDataTypeFromScalarType", '"slow_conv2d_cuda"'),
    "conv2d": (lambda: nn.conv2d(ints(1, 2, 8, 8), ints(4, 2, 3, 3)), "getCudnnDataTypeFromScalarType", '"slow_conv2d_cuda"'),
    "conv3d": (
        lambda: nn.conv3d(ints(1, 2, 8, 8, 8), ints(4, 2, 3, 3, 3)),
        "getCudnnDataTypeFromScalarType",
        '"slow_conv_dilated<>"',
    ),
    "transposed": (
        lambda: nn.conv_transpose3d(ints(1, 2, 4, 4, 4), ints(2, 4, 3, 3, 3)),
        "getCudnnDataTypeFromScalarType",
        '"slow_conv_transpose3d_out_cuda"',
    ),
    "depthwise": (lambda: nn.conv2d(ints(1, 2, 8, 8), ints(2, 1, 3, 3), groups=2), '"conv_depthwise2d_forward_cuda"', ""),
    "depthwise 3d": (lambda: nn.conv3d(ints(1, 2, 8, 8, 8), ints(2, 1, 3, 3, 3), groups=2), '"conv_depthwise3d"', ""),
    "groups": (
        lambda: nn.conv2d(ints(1, 4, 8, 8), ints(4, 2, 3, 3), groups=2),
        "getCudnnDataTypeFromScalarType",
        '"slow_conv2d_cuda"',
    ),
    "one channel": (
        lambda: nn.conv2d(ints(1, 1, 8, 8), ints(2, 1, 3, 3), groups=1),
        "getCudnnDataTypeFromScalarType",
        '"slow_conv2d_cuda"',
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_whole_numbers_are_refused_as_cuda_does(name: str) -> None:
    use()
    call, with_cudnn, without = CONVOLUTIONS[name]
    with pytest.raises(RuntimeError, match=re.escape(with_cudnn)):
        call()
    with torch.backends.cudnn.flags(enabled=False), pytest.raises(RuntimeError, match=re.escape(without or with_cudnn)):
        call()


def test_cudnn_knows_32_bit_integers_but_has_no_convolution_of_them() -> None:
    use()
    with pytest.raises(RuntimeError, match="GET was unable to find an engine"):
        nn.conv2d(ints(1, 2, 8, 8).int(), ints(4, 2, 3, 3).int())


def test_a_batch_norm_of_whole_numbers_is_refused_by_cudnn_alone() -> None:
    use()
    weights = [torch.ones(3, device="cuda") for _ in range(4)]
    with pytest.raises(RuntimeError, match="getCudnnDataTypeFromScalarType"):
        nn.batch_norm(ints(4, 3, 8), *weights, training=True)
    with pytest.raises(RuntimeError, match="TensorDescriptor does not support Int"):
        nn.batch_norm(ints(4, 3, 8).int(), *weights, training=True)
    nn.batch_norm(torch.ones(4, 3, 8, device="cuda"), *weights, training=True)


def test_fourier_transforms_of_half_precision_need_powers_of_two() -> None:
    use()
    warnings.filterwarnings("ignore", "ComplexHalf")  # PyTorch calls complex numbers of half precision experimental
    half = torch.ones(4, 6, dtype=HALF, device="cuda")
    assert torch.fft.rfft(half, dim=0).shape == (3, 6)
    with pytest.raises(RuntimeError, match="powers of two"):
        torch.fft.rfft(half, dim=1)
    with pytest.raises(RuntimeError, match="BFloat16"):
        torch.fft.rfft(torch.ones(4, dtype=BFLOAT, device="cuda"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int32", "bool", "complex64", "uint8"])
@pytest.mark.parametrize("shape", [(), (2,), (2, 2), (0,), (0, 3), (2, 0)])
def test_a_printed_tensor_looks_as_on_the_cpu_but_for_its_device(dtype: str, shape: tuple[int, ...]) -> None:
    use()
    host = torch.zeros(shape, dtype=getattr(torch, dtype))
    shown = repr(host.cuda()).replace("device='cuda:0', ", "").replace(", device='cuda:0'", "")
    assert " ".join(shown.split()) == " ".join(repr(host).split())


def test_only_scalars_are_formatted_as_numbers() -> None:
    use()
    scalar, vector = torch.zeros((), device="cuda"), torch.zeros(2, device="cuda")
    assert f"{scalar:.2f}" == "0.00"
    assert f"{vector}" == repr(vector)
    with pytest.raises(TypeError):
        f"{vector:.2f}"
    assert f"{torch.nn.Parameter(scalar)}".startswith("Parameter containing:")
