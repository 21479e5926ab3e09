# mypy: allow-untyped-calls
"""Tests which dtypes and arguments CUDA kernels reject, and how tensors are printed. Each test runs in a fork of an interpreter
that has imported torch (warm.py)."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from math import inf
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from replayer.ops.cpu.cpu_kernels import FORMS
from replayer.tensor.planning.mixed_dtypes import batch_norm_by_cudnn
from replayer.tensor.planning.shape_inference import _smaller_sizes
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
    assert by_cudnn(4, 3, 8, running=False, training=True)  # training without running statistics uses those of the batch
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


def test_cudnn_has_a_limit_on_the_batch_size() -> None:
    use()
    assert by_cudnn(65_535, 3, 1, training=False) and not by_cudnn(65_536, 3, 1, training=False)
    assert by_cudnn(880_801, 3, 1, training=True) and not by_cudnn(880_802, 3, 1, training=True)


def test_an_op_with_a_number_supports_the_same_dtypes_as_with_two_tensors() -> None:
    use()
    half = torch.ones(3, dtype=HALF, device="cuda")
    for func, kernel in ((torch.special.zeta, "zeta"), (torch.special.hermite_polynomial_h, "hermite_polynomial_h")):
        for arguments in ((half, 2), (2, half)):
            with pytest.raises(RuntimeError, match=f"\"{kernel}_cuda\" not implemented for 'Half'"):
                func(*arguments)
    unsigned = half.to(torch.uint16)
    for call in (lambda: torch.bitwise_and(1, unsigned), lambda: 2**unsigned, lambda: unsigned.scatter(0, ints(1), 1)):
        with pytest.raises(RuntimeError, match=r"_(cuda|fill_base_kernel_func). not implemented for 'UInt16'"):
            call()
    assert torch.special.xlog1py(half, 2).dtype is HALF  # only CUDA's kernel supports float16


def test_labels_of_wrong_shapes_raise_the_errors_of_the_cuda_kernels() -> None:
    """The error messages are from NLLLoss2d.cu and LossNLL.cpp. PyTorch's meta kernel raises an AssertionError for 1-D
    labels."""
    use()
    for shape, data, text in (
        ((2, 2, 3), (2, 3, 2, 2), "sizes don't match: target [2, 2, 3], input [2, 3, 2, 2]"),
        ((2, 1, 2, 2), (2, 3, 2, 2), "(3D tensors) but got targets of size: : [2, 1, 2, 2]"),
        ((2, 1), (2, 3), "0D or 1D target tensor expected, multi-target not supported"),
    ):
        with pytest.raises(RuntimeError, match=re.escape(text)):
            F.cross_entropy(torch.ones(data, device="cuda"), ints(*shape))


@pytest.mark.parametrize(
    ("inputs", "lengths", "says"),
    [
        ([5, 5], [3, 0], None),
        ([0, 5], [1, 2], None),
        ([5, 6], [3, 1], "Expected input_lengths to have value at most 5, but got value 6"),
        ([5, 5], [1, 4], "Expected tensor to have size at least 4 at dimension 1, but got size 3"),
        ([5, 5], [1, -1], "Expected target_lengths to have value at least 0, but got value -1"),
        ([-2, 5], [1, 1], "Expected input_lengths to have value at least 0, but got value -2"),
    ],
)
def test_ctc_loss_rejects_the_lengths_that_cuda_rejects(inputs: list[int], lengths: list[int], says: str | None) -> None:
    use()
    scores, targets = torch.zeros(5, 2, 4, device="cuda"), ints(2, 3)
    with pytest.raises(RuntimeError, match=says) if says else nullcontext():
        torch.ops.aten._ctc_loss(scores, targets, inputs, lengths)


def test_an_embedding_names_the_type_of_wrong_indices() -> None:
    """`checkScalarTypes` in ATen/TensorUtils.cpp names the type of a CUDA tensor. PyTorch changes only the names of common
    types."""
    use()
    table = torch.zeros(4, 2, device="cuda")
    for dtype, name in ((torch.bool, "CUDABoolType"), (torch.float32, "torch.cuda.FloatTensor")):
        with pytest.raises(RuntimeError, match=rf"Long, Int; but got {name} .*arguments for embedding\)"):
            F.embedding(torch.zeros(3, dtype=dtype, device="cuda"), table)
    with pytest.raises(RuntimeError, match="'weight' must be 2-D"):
        F.embedding(ints(3), table[0])


def test_convolutions_check_strides_channels_and_the_size_of_the_bias() -> None:
    """PyTorch raises these errors in `check_shape_forward` (Convolution.cpp)."""
    use()
    data, weight, bias = (torch.ones(shape, device="cuda") for shape in ((1, 3, 8, 8), (4, 3, 3, 3), (3,)))
    to_3 = "Given transposed=1, weight of size [4, 3, 3, 3], expected input[1, 3, 8, 8] to have 4 channels, but got 3 channels"
    of_4 = "[4, 3, 3, 3], expected bias to be 1-dimensional with 4 elements, but got bias of size [3] instead"
    of_6 = "Given transposed=1, weight of size [3, 6, 1, 1], expected bias to be 1-dimensional with 6 elements, but got bias"
    upsampling = torch.ones(3, 6, 1, 1, device="cuda")
    for call, text in (
        (lambda: F.conv2d(data, weight, stride=0), "non-positive stride is not supported"),
        (lambda: F.conv2d(data, weight, bias), of_4),
        (lambda: F.conv_transpose2d(data, weight), to_3),
        (lambda: F.conv_transpose2d(data, upsampling, bias), of_6),
    ):
        with pytest.raises(RuntimeError, match=re.escape(text)):
            call()
    assert F.conv_transpose2d(data, upsampling[:, :3], bias).shape == data.shape


def test_shapes_that_only_meta_kernels_accept_raise_errors() -> None:
    """PyTorch 2.14 raises these errors on a CUDA device."""
    use()
    many = torch.ones(20, 30, 300, device="cuda")
    row = torch.ones(2, device="cuda")
    square, labels = torch.ones(4, 5, device="cuda"), torch.zeros(4, 5, dtype=torch.long, device="cuda")
    mask = square > 0
    for call, text in (
        (lambda: row[:0].max(), "max(): Expected reduction dim to be specified for input.numel() == 0"),
        (lambda: row[:0].min(), "min(): Expected reduction dim to be specified for input.numel() == 0"),
        (lambda: F.multi_margin_loss(square, labels[:3, 0]), "Expected target size [4], but got [3]"),
        (lambda: F.multilabel_margin_loss(square, labels[:3]), "inconsistent target size: [3, 5] for input of size: [4, 5]"),
        (lambda: F.conv2d(square[None, None], square[None, None, :2, :2], dilation=0), "dilation should be greater than zero"),
        (lambda: square.sort(dim=2), "Dimension out of range (expected to be in range of [-2, 1], but got 2)"),
        (lambda: square[:0].median(dim=0), "median(): Expected reduction dim 0 to have non-zero size."),
        (lambda: square.put_(labels[:2], square), "source.numel() = 20, index.numel() = 10"),
        (lambda: square.__setitem__(labels[:2, 0], square[:3]), "value tensor of shape [3, 5] cannot be broadcast"),
        (
            lambda: square.__setitem__(mask, square),
            "value tensor of shape [4, 5] cannot be broadcast to indexing result of shape",
        ),
        (lambda: square.__setitem__(mask[:, 0], square[:, :3]), "value tensor of shape [4, 3] cannot be broadcast to indexing"),
        (lambda: square.__setitem__(mask[:3], 0), "The shape of the mask [3, 5] at index 0 does not match"),
        (lambda: square[:, mask[:, 0]], "mask [4] at index 0 does not match the shape of the indexed tensor [4, 5] at index 1"),
        (lambda: torch.bucketize(row, square), "boundaries tensor must be 1 dimension, but got dim(2)"),
        (lambda: torch.linalg.lstsq(square, square[:3]), "input.size(-2) should match other.size(-2)"),
        (lambda: square.masked_scatter(mask[0, :4], square), "The size of tensor a (4) must match the size of tensor b (5)"),
        (lambda: square - True, "Subtraction, the `-` operator, with a bool tensor is not supported."),
        (lambda: square[:1].masked_scatter_(mask, square), "Target sizes: [1, 5].  Tensor sizes: [4, 5]"),
        (lambda: square[0].masked_scatter_(mask, square), "expand(CUDABoolType{[4, 5]}, size=[5]): the number of sizes"),
        (lambda: square.masked_fill_(mask[0, :4], 0), "The expanded size of the tensor (5) must match the existing size (4)"),
        (lambda: square[0].masked_fill_(mask, 0), "expand(CUDABoolType{[4, 5]}, size=[5]): the number of sizes"),
        (lambda: square.masked_fill(mask[0, :4], 0), "The size of tensor a (4) must match the size of tensor b (5)"),
        (lambda: many[0].masked_scatter_(many > 0, many), "expand(CUDABoolType{[20, 30, 300]}, size=[30, 300])"),
    ):
        with pytest.raises((RuntimeError, IndexError), match=re.escape(text)):
            call()
    square[torch.rand(4, 5, device="cuda") > 0] = torch.ones(3, device="cuda")  # three elements of this mask may be true
    assert row.max().shape == () and square[:1].masked_scatter(mask, square).shape == (4, 5)
    assert F.multi_margin_loss(square[:, :1], labels[:, 0]).shape == ()  # there is only one class
    # Without a batch dimension, there is one loss, although PyTorch's meta kernels return a tensor of shape (1,).
    assert F.multi_margin_loss(square[0], labels[0, 0], reduction="none").shape == ()
    assert F.multilabel_margin_loss(square[0], labels[0], reduction="none").shape == ()


def test_a_check_that_finds_no_error_keeps_no_memory() -> None:
    """After the index is checked, the result and the selected row are freed without garbage collection."""
    use()
    index = torch.zeros(1, dtype=torch.long, device="cuda")
    before = torch.cuda.memory_allocated()
    gc.disable()
    torch.ones(1, 2, device="cuda").index_select(0, index)
    after = torch.cuda.memory_allocated()
    gc.enable()
    assert after == before


INTEGERS: dict[str, Callable[[Any], Any]] = {  # the kernel in PyTorch 2.14's error on the simulated device
    "upsample_bilinear2d_out_frame": lambda x: F.interpolate(x, size=(2, 2), mode="bicubic", antialias=True),
    "batch_norm_stats_cuda": lambda x: torch.batch_norm_stats(x, 1e-5),
    "embedding_renorm_cuda_": lambda x: torch.embedding_renorm_(x[0, 0], torch.tensor([0], device="cuda"), 1, 2),
    "weight_norm_fwd_first_dim_kernel": lambda x: torch.ops.aten._weight_norm_interface(x[0, 0], x[0, 0, :, :1]),
    "nll_loss2d_forward_kernel": lambda x: F.nll_loss(x, torch.zeros(1, 4, 4, dtype=torch.int64, device="cuda")),
    "gamma_cuda": lambda x: torch._sample_dirichlet(x),
}


@pytest.mark.parametrize("kernel", INTEGERS)
def test_kernels_that_the_operator_database_lacks_also_reject_integers(kernel: str) -> None:
    use()
    with pytest.raises(NotImplementedError, match=f"\"{kernel}\" not implemented for 'Byte'"):
        INTEGERS[kernel](torch.ones(1, 2, 4, 4, dtype=torch.uint8, device="cuda"))


def test_large_tensors_of_wrong_shapes_are_rejected() -> None:
    """The error messages are the same as in PyTorch's CUDA build."""
    use()
    empty: Any = partial(torch.empty, device="cuda")
    square, rows, labels = empty(1000, 1000), empty(500, 1000), torch.zeros(500, dtype=torch.int64, device="cuda")
    images, kernels = empty(32, 64, 56, 56), empty(64, 64, 3, 3)
    for call, text in (
        (lambda: F.conv2d(images, empty(61, 32, 3, 3), groups=2), "Given groups=2, expected weight to be divisible by 2"),
        (lambda: F.conv2d(images, kernels, padding=-1), "negative padding is not supported"),
        (lambda: F.conv_transpose2d(images, kernels, stride=2, output_padding=2), "output padding must be smaller than either"),
        (lambda: F.linear(square, empty(7, 999)), "mat1 and mat2 shapes cannot be multiplied (1000x1000 and 999x7)"),
        (lambda: F.multi_margin_loss(square, labels), "Expected target size [1000], but got [500]"),
        (lambda: F.smooth_l1_loss(square, square, beta=-1.0), "smooth_l1_loss does not support negative values for beta."),
        (lambda: F.softmax(square, 2), "Dimension out of range (expected to be in range of [-2, 1], but got 2)"),
        (lambda: square.index_add_(0, labels, rows[:, :999]), "self.shape = [1000, 1000] source.shape = [500, 999]"),
        (lambda: square.__setitem__(labels, rows[:499]), "shape [499, 1000] cannot be broadcast to indexing result of shape"),
        (lambda: torch.multinomial(square, 1001), "cannot sample n_sample > prob_dist.size(-1) samples without replacement"),
        (lambda: F.layer_norm(square, (999,)), "expected input with shape [*, 999], but got input of size[1000, 1000]"),
    ):
        with pytest.raises((RuntimeError, IndexError), match=re.escape(text)):
            call()
    assert F.conv_transpose2d(images, kernels, stride=2, output_padding=1).shape == (32, 64, 114, 114)
    assert F.group_norm(images, 32).shape == F.conv2d(images, kernels[:, :1], padding=1, groups=64).shape == images.shape
    assert F.fold(F.unfold(images, 8, stride=8), (56, 56), 8, stride=8).shape == images.shape
    assert F.pixel_shuffle(images, 8).shape == (32, 1, 448, 448)


def test_a_rejected_scalar_raises_an_error_although_an_earlier_scalar_was_accepted() -> None:
    """The error messages are the same as in PyTorch's CUDA build."""
    use()
    data = torch.ones(300, 400, device="cuda")
    mask, half, integers, small = data > 0, data.half(), data.long(), data.byte()
    calls: list[tuple[Callable[[Any], Any], Any, Any, str]] = [
        (lambda value: half.masked_fill_(mask, value), -1e4, -1e9, "value cannot be converted to type c10::Half"),
        (lambda value: small.fill_(value), 255, 256, "value cannot be converted to type uint8_t without overflow"),
        (lambda value: data.geometric_(value), 0.5, 1.5, "geometric_ expects p to be in (0, 1), but got p=1.5"),
        (lambda value: data.log_normal_(0, value), 1, -1, "log_normal_ expects std > 0.0, but found std=-1"),
        (lambda value: integers.pow_(value), 2, -1, "Integers to negative integer powers are not allowed."),
        (lambda value: data.renorm(2, 0, value), 1.0, -1.0, "renorm: expected maxnorm to be >= 0 but got -1"),
        (lambda value: torch.histc(data, 10, 0, value), 1, -1, "max must be larger than min"),
        (lambda value: torch.histc(data, 10, 0, value), 1, inf, "range of [0, inf] is not finite"),
        (lambda value: small.random_(0, value), 256, 257, "to - 1 is out of bounds for unsigned char"),
        (lambda value: torch.add(integers, 1, alpha=value), 2, 2.5, "argument alpha must not be a floating point number."),
    ]
    for call, accepted, rejected, text in calls:
        call(accepted)
        with pytest.raises(RuntimeError, match=re.escape(text)):
            call(rejected)


def test_errors_of_cpu_kernels_have_the_texts_of_cuda_kernels() -> None:
    use()
    images, column = torch.ones(1, 2, 4, 4, device="cuda"), torch.zeros(4, dtype=torch.int64, device="cuda")
    indices = torch.zeros(1, 2, 4, 3, dtype=torch.int64, device="cuda")
    heads = torch.ones(1, 1, 4, 8, device="cuda")
    for call, text in (
        (lambda: F.pad(images, (4, 0, 0, 0), mode="reflect"), "^Padding size should be less than the corresponding input"),
        (lambda: nn.max_unpool2d(images, indices, 2), r"^Expected shape of indices to be: \[1, 2, 4, 4\] but got: \[1"),
        (lambda: images[0].trace(), "^expected a matrix$"),
        (lambda: torch.histc(images, 0), "^bins must be > 0$"),
        (lambda: torch.bincount(column, images[0, 0, :2]), "^weights should be 1-d and have the same length as input$"),
        (lambda: torch.bincount(column[None]), "^bincount only supports 1-d non-negative integral inputs.$"),
        (lambda: images.masked_select(column[:3] > 0), r"^The size of tensor a \(3\) must match the size of tensor b \(4\)"),
        (lambda: F.scaled_dot_product_attention(heads, heads, heads[:, :, :3]), r"^Expected key.size\(1\) == value.size\(1\)"),
        (
            lambda: torch.stft(images.flatten(), 8, window=images[0, 0, 0], return_complex=True),
            r"window=torch.cuda.FloatTensor\{\[4\]\}",
        ),
        (lambda: images.masked_select(images), "^masked_select: expected BoolTensor for mask$"),
        (lambda: torch.multinomial(column, 1), "^multinomial only supports floating-point dtypes for input, got: Long$"),
        (lambda: torch.istft(heads[0, 0].to(torch.cfloat), 8), r"^istft\(CUDAComplexFloatType\[4, 8\]"),
    ):
        with pytest.raises(RuntimeError, match=text), warnings.catch_warnings(action="ignore"):
            call()


def test_checks_on_the_cpu_show_no_warnings() -> None:
    use()
    square = torch.ones(4, 5, device="cuda")
    with warnings.catch_warnings(action="error"):
        torch.bucketize(square, torch.ones(2, device="cuda"))  # the known values on the CPU are not contiguous
    with pytest.warns(UserWarning) as shown:
        torch.mm(square, square.t(), out=torch.ones(2, 2, device="cuda"))
    text = "it had shape [2, 2], which does not match the required output shape [4, 4]. This behavior is deprecated"
    assert [text in str(warning.message) for warning in shown] == [True]
    assert shown[0].filename == __file__


def test_shrunken_sizes_keep_their_order_and_divisors_and_differences_of_one() -> None:
    assert _smaller_sizes({64, 56, 3, 1}, {1, 2, 57}) == {0: 0, 1: 1, 2: 2, 3: 3, 56: 6, 57: 7, 64: 10}
    # The smaller sizes keep that 512 is twice 256, and that 320 is a multiple of 32.
    assert _smaller_sizes({256, 512, 320}, {32}) == {0: 0, 32: 2, 256: 4, 320: 6, 512: 8}


def test_masked_scatter_accepts_only_boolean_masks() -> None:
    use()
    data = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="only supports boolean masks, but got mask with dtype unsigned char"):
        data.masked_scatter(torch.ones(3, dtype=torch.uint8, device="cuda"), data)


def test_randint_rejects_a_limit_that_is_not_a_scalar_on_the_cpu() -> None:
    use()
    data = torch.ones(3, device="cuda")
    for high in (torch.tensor(4, device="cuda"), torch.tensor([4])):
        with pytest.raises(RuntimeError, match="high must be a scalar tensor and on CPU"):
            torch.randint_like(data, high)


def ints(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int64, device="cuda")


CONVOLUTIONS: dict[str, tuple[Callable[[], Any], str, str]] = {
    # (call, the kernel that is missing with cuDNN, the kernel that is missing without cuDNN)
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
def test_integer_convolutions_are_rejected_with_the_errors_of_cuda(name: str) -> None:
    use()
    call, with_cudnn, without = CONVOLUTIONS[name]
    with pytest.raises(RuntimeError, match=re.escape(with_cudnn)):
        call()
    with torch.backends.cudnn.flags(enabled=False), pytest.raises(RuntimeError, match=re.escape(without or with_cudnn)):
        call()


def test_cudnn_has_no_convolution_for_32_bit_integers() -> None:
    use()
    with pytest.raises(RuntimeError, match="GET was unable to find an engine"):
        nn.conv2d(ints(1, 2, 8, 8).int(), ints(4, 2, 3, 3).int())


def test_only_cudnn_rejects_an_integer_batch_norm() -> None:
    use()
    weights = [torch.ones(3, device="cuda") for _ in range(4)]
    with pytest.raises(RuntimeError, match="getCudnnDataTypeFromScalarType"):
        nn.batch_norm(ints(4, 3, 8), *[weight.long() for weight in weights], training=True)
    with pytest.raises(RuntimeError, match="TensorDescriptor does not support Int"):
        nn.batch_norm(ints(4, 3, 8).int(), *[weight.int() for weight in weights], training=True)
    nn.batch_norm(torch.ones(4, 3, 8, device="cuda"), *weights, training=True)


def test_half_precision_fourier_transforms_need_sizes_that_are_powers_of_two() -> None:
    use()
    warnings.filterwarnings("ignore", "ComplexHalf")  # PyTorch warns that complex half precision is experimental
    half = torch.ones(4, 6, dtype=HALF, device="cuda")
    assert torch.fft.rfft(half, dim=0).shape == (3, 6)
    for rfft in (torch.fft.rfft, torch._refs.fft.rfft):
        with pytest.raises(RuntimeError, match="powers of two"):
            rfft(half, dim=1)
    with pytest.raises(RuntimeError, match=r"a signal size of\[4, 6\]"):
        torch.fft.fft2(half)
    with pytest.raises(RuntimeError, match="BFloat16"):
        torch.fft.rfft(torch.ones(4, dtype=BFLOAT, device="cuda"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int32", "bool", "complex64", "uint8"])
@pytest.mark.parametrize("shape", [(), (2,), (2, 2), (0,), (0, 3), (2, 0)])
def test_a_printed_gpu_tensor_differs_from_a_cpu_tensor_only_in_the_device(dtype: str, shape: tuple[int, ...]) -> None:
    use()
    host = torch.zeros(shape, dtype=getattr(torch, dtype))
    shown = repr(host.cuda()).replace("device='cuda:0', ", "").replace(", device='cuda:0'", "")
    assert " ".join(shown.split()) == " ".join(repr(host).split())


def test_a_printed_dual_tensor_shows_the_device_of_tensor_and_tangent() -> None:
    use()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning), forward_ad.dual_level():
        shown = repr(forward_ad.make_dual(torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")))
        plain = repr(torch.zeros(1, device="cuda"))
    assert plain == "tensor([0.], device='cuda:0')"
    assert shown == "tensor([0.], device='cuda:0', tangent=tensor([0.], device='cuda:0'))"


def test_only_scalar_tensors_are_formatted_as_numbers() -> None:
    use()
    scalar, vector = torch.zeros((), device="cuda"), torch.zeros(2, device="cuda")
    assert f"{scalar:.2f}" == "0.00"
    assert f"{vector}" == repr(vector)
    with pytest.raises(TypeError):
        f"{vector:.2f}"
    assert f"{torch.nn.Parameter(scalar)}".startswith("Parameter containing:")


def on_gpu(*shape: int, dtype: Any = FLOAT) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda")


INT8, INT64 = torch.int8, torch.int64
# (call, the error of PyTorch 2.14 on the simulated device)
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "int8 product of few rows": (
        lambda: torch._int_mm(on_gpu(16, 8, dtype=INT8), on_gpu(8, 8, dtype=INT8)),
        "self.size(0) needs to be greater than 16, but got 16",
    ),
    "int8 product of few columns": (
        lambda: torch._int_mm(on_gpu(32, 8, dtype=INT8), on_gpu(8, 4, dtype=INT8)),
        "mat2.size(1) needs to be greater than 0 and a multiple of 8, but got 4",
    ),
    "int8 product of floats": (lambda: torch._int_mm(on_gpu(32, 8), on_gpu(8, 8)), "expected scalar type Char but found Float"),
    "float8 product on a V100": (
        lambda: torch._scaled_mm(
            on_gpu(16, 16).to(torch.float8_e4m3fn), on_gpu(16, 16).to(torch.float8_e4m3fn).t(), on_gpu(1), on_gpu(1)
        ),
        "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+",
    ),
    "mask of integers": (
        lambda: nn.scaled_dot_product_attention(*[on_gpu(1, 1, 4, 8)] * 3, attn_mask=on_gpu(4, 4, dtype=INT64)),
        "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: long int and "
        " query.dtype: float instead.",
    ),
    "wider mask": (
        lambda: nn.scaled_dot_product_attention(*[on_gpu(1, 1, 4, 8, dtype=HALF)] * 3, attn_mask=on_gpu(4, 4)),
        "invalid dtype for bias - should match query's dtype",
    ),
    "attention of vectors": (
        lambda: nn.scaled_dot_product_attention(*[on_gpu(8)] * 3),
        "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: 1 key.dim: 1 and value.dim: 1"
        " instead.",
    ),
    "eigenvalues in half precision": (
        lambda: torch.linalg.eigvalsh(on_gpu(3, 3, dtype=HALF)),
        "\"linalg_eigh_cuda\" not implemented for 'Half'",
    ),
    "svd by an unknown driver": (
        lambda: torch.linalg.svd(on_gpu(3, 2), driver="fast"),
        "torch.linalg.svd: unknown svd driver fast in svd_cusolver computation. Check doc at"
        " https://pytorch.org/docs/stable/generated/torch.linalg.svd.html",
    ),
    "embedding of bfloat16": (
        lambda: nn.embedding(on_gpu(2, dtype=BFLOAT), on_gpu(3, 3)),
        "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got"
        " CUDABFloat16Type instead (while checking arguments for embedding)",
    ),
    "selection by floats": (
        lambda: on_gpu(3).index_select(0, on_gpu(1)),
        "\"index_select_out_cuda_impl\" not implemented for 'Float'",
    ),
    "selection by a matrix": (
        lambda: on_gpu(3).index_select(0, on_gpu(1, 1, dtype=INT64)),
        "Index is supposed to be an empty tensor or a vector",
    ),
    "index of complex numbers": (
        lambda: on_gpu(3)[on_gpu(1, dtype=torch.complex64)],
        "tensors used as indices must be long, int, byte or bool tensors",
    ),
    "mask of bytes": (
        lambda: on_gpu(3).masked_fill(on_gpu(3, dtype=torch.uint8), 0),
        "masked_fill only supports boolean masks, but got dtype Byte",
    ),
    "condition in half precision": (
        lambda: torch.where(on_gpu(3, dtype=HALF), 1.0, 0.0),
        "where expected condition to be a boolean tensor, but got a tensor with dtype Half",
    ),
    "probabilities that are integers": (
        lambda: torch.bernoulli(on_gpu(3, dtype=INT64)),
        "expected probabilities tensor to have floating type, got Long",
    ),
    "nearest pixels of integers": (
        lambda: nn.interpolate(on_gpu(1, 3, 4, 4, 4, dtype=INT64), scale_factor=2),
        "\"upsample_nearest3d_out_frame\" not implemented for 'Long'",
    ),
    "nearest pixels, channels last": (
        lambda: nn.interpolate(on_gpu(1, 8, 4, 4, dtype=INT64).to(memory_format=torch.channels_last), scale_factor=2),
        "\"upsample_nearest2d_nhwc_out_frame\" not implemented for 'Long'",
    ),
    "dropout of complex numbers": (
        lambda: torch.native_dropout(on_gpu(2, dtype=torch.complex64), 0.5, True),
        "\"fused_dropout\" not implemented for 'ComplexFloat'",
    ),
    "repeats in int8": (
        lambda: on_gpu(2).repeat_interleave(on_gpu(2, dtype=INT8)),
        "\"repeat_interleave_cuda\" not implemented for 'Char'",
    ),
    "labels of pixels in int32": (
        lambda: nn.nll_loss(on_gpu(1, 3, 2, 2), on_gpu(1, 2, 2, dtype=torch.int32)),
        "expected scalar type Long but found Int",
    ),
    "product of short integers and floats": (
        lambda: on_gpu(2, 2) @ on_gpu(2, 2, dtype=torch.int16),
        "expected mat1 and mat2 to have the same dtype, but got: float != short int",
    ),
    "convolution with complex weights": (
        lambda: nn.conv2d(on_gpu(1, 1, 4, 4), on_gpu(1, 1, 2, 2, dtype=torch.complex64)),
        "Input type (torch.cuda.FloatTensor) and weight type (CUDAComplexFloatType) should be the same",
    ),
    "CTC inputs that are too long": (
        lambda: nn.ctc_loss(on_gpu(5, 1, 4).log_softmax(2), on_gpu(1, 2, dtype=INT64), torch.tensor([6]), torch.tensor([2])),
        "Expected input_lengths to have value at most 5, but got value 6 (while checking arguments for ctc_loss_gpu)",
    ),
    "one of two CTC inputs that is too long": (
        lambda: nn.ctc_loss(
            on_gpu(5, 2, 4).log_softmax(2), on_gpu(2, 2, dtype=INT64), torch.tensor([3, 6]), torch.tensor([2, 2])
        ),
        "Expected input_lengths to have value at most 5, but got value 6 (while checking arguments for ctc_loss_gpu)",
    ),
    "CTC targets that are too short": (
        lambda: nn.ctc_loss(on_gpu(5, 1, 4).log_softmax(2), on_gpu(1, 2, dtype=INT64), torch.tensor([5]), torch.tensor([3])),
        "Expected tensor to have size at least 3 at dimension 1, but got size 2 for argument #2 'targets' (while checking"
        " arguments for ctc_loss_gpu)",
    ),
    "embedding without rows": (
        lambda: nn.embedding(torch.zeros(2, dtype=INT64, device="cuda"), torch.tensor(1.0, device="cuda")),
        "'weight' must be 2-D",
    ),
    "random numbers like floats, as integers": (
        lambda: torch.randn_like(on_gpu(2), dtype=torch.int32),
        "\"normal_kernel_cuda\" not implemented for 'Int'",
    ),
    "group norm of half precision with float32 weights": (
        lambda: nn.group_norm(on_gpu(2, 4, 3, dtype=torch.float16), 2, on_gpu(4), on_gpu(4)),
        "expected scalar type Half but found Float",
    ),
    "group norm with one float32 parameter": (
        lambda: nn.group_norm(on_gpu(2, 4, 3, dtype=torch.bfloat16), 2, on_gpu(4, dtype=torch.bfloat16), on_gpu(4)),
        "expected scalar type BFloat16 but found Float",
    ),
    "batch norm of float32 with half-precision weights": (
        lambda: nn.batch_norm(on_gpu(2, 4, 3), None, None, *[on_gpu(4, dtype=torch.float16)] * 2, training=True),
        "Expected tensor for argument #1 'input' to have the same type as tensor for argument #2 'weight'; but type"
        " torch.cuda.FloatTensor does not equal torch.cuda.HalfTensor (while checking arguments for cudnn_batch_norm)",
    ),
    "cuda() to the CPU": (lambda: torch.ones(2).cuda("cpu"), "Invalid device, must be cuda device"),
    "module.cuda() to the CPU": (
        lambda: torch.nn.Linear(2, 2).cuda(torch.device("cpu")),
        "Invalid device, must be cuda device",
    ),
    "cuda() with a fraction": (
        lambda: torch.ones(2).cuda(1.5),  # type: ignore[arg-type]
        "cuda(): argument 'device' (position 1) must be torch.device, not float",
    ),
    "binary cross-entropy of many elements in two precisions": (
        lambda: nn.binary_cross_entropy(on_gpu((1 << 20) + 1), on_gpu((1 << 20) + 1, dtype=torch.float16)),
        "Found dtype Half but expected Float",
    ),
    "lerp of many elements in two precisions": (
        lambda: torch.lerp(on_gpu((1 << 20) + 1), on_gpu((1 << 20) + 1, dtype=torch.float16), 0.5),
        "expected dtype float for `end` but got dtype c10::Half",
    ),
    "put of another precision into many elements": (
        lambda: on_gpu(1 << 13).put_(on_gpu(2, dtype=INT64), on_gpu(2, dtype=torch.float16)),
        "put_(): self and source expected to have the same dtype, but got self.dtype = Float and source.dtype = Half",
    ),
    "LSTM with a hidden state in another precision": (
        lambda: torch.nn.LSTM(2, 2).cuda()(on_gpu(3, 1, 2), (on_gpu(1, 1, 2, dtype=torch.float16), on_gpu(1, 1, 2))),
        "Input and hidden tensors are not the same dtype, found input tensor with Float and hidden tensor with Half",
    ),
    "linspace of booleans": (
        lambda: torch.linspace(0, 1, 2, dtype=torch.bool, device="cuda"),
        "\"linspace_cuda\" not implemented for 'Bool'",
    ),
    "logspace of booleans": (
        lambda: torch.logspace(0, 1, 2, dtype=torch.bool, device="cuda"),
        "\"logspace_cuda\" not implemented for 'Bool'",
    ),
    "permutation in bfloat16": (
        lambda: torch.randperm(2, dtype=torch.bfloat16, device="cuda"),
        "\"randperm_out_cuda\" not implemented for 'BFloat16'",
    ),
    "permutation in bool": (
        lambda: torch.randperm(2, dtype=torch.bool, device="cuda"),
        "\"arange_cuda\" not implemented for 'Bool'",
    ),
    "range in float8": (
        lambda: torch.arange(2, dtype=torch.float8_e4m3fn, device="cuda"),
        "\"arange_cuda\" not implemented for 'Float8_e4m3fn'",
    ),
    "indices of a triangle in half precision": (
        lambda: torch.tril_indices(2, 2, dtype=torch.float16, device="cuda"),
        "\"tril_indices_cuda\" not implemented for 'Half'",
    ),
    "median of float8": (
        lambda: torch.median(on_gpu(3).to(torch.float8_e4m3fn)),
        "\"sortKeyValueInplace\" not implemented for 'Float8_e4m3fn'",
    ),
    "distances in float8": (
        lambda: torch.pdist(on_gpu(3, 2).to(torch.float8_e5m2)),
        "\"pdist_cuda\" not implemented for 'Float8_e5m2'",
    ),
    "lists of float8": (
        lambda: torch._foreach_abs([on_gpu(2, dtype=torch.float8_e5m2)]),
        "\"foreach_unary_op_cuda\" not implemented for 'Float8_e5m2'",
    ),
    "inverse in half precision, without elements": (
        lambda: torch.cholesky_inverse(on_gpu(0, 0, dtype=HALF)),
        "\"cholesky_cuda_potri\" not implemented for 'Half'",
    ),
    "an exponential in overlapping memory": (
        lambda: on_gpu(1, 3).expand(3, 3).exp_(),
        "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please"
        " clone() the tensor before performing the operation.",
    ),
    "unknown type": (lambda: on_gpu(2).type("torch.cuda.Other"), "invalid type: 'torch.cuda.Other'"),
    "copy of a tensor of oneDNN": (
        lambda: torch.ones(2).to_mkldnn().cuda(),
        "Unsupported device type for mkldnn layout: cuda",
    ),
    "new tensor on the CPU": (
        lambda: on_gpu(2).new(3, device="cpu"),
        "legacy constructor expects device type: cuda but device type: cpu was passed",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_rejected_calls_have_the_error_messages_of_cuda(name: str) -> None:
    use()
    call, text = CALLS[name]
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError), match=f"^{re.escape(text)}$"):
        call()


def test_tril_and_ops_on_empty_tensors_accept_overlapping_memory() -> None:
    use()
    on_gpu(1, 3).expand(3, 3).tril_()
    out = torch.empty(1, 1, device="cuda").expand(0, 3)
    assert torch.exp(on_gpu(0, 3), out=out) is out


def test_svd_accepts_the_drivers_of_cusolver() -> None:
    use()
    left, values, _ = torch.linalg.svd(on_gpu(3, 2), driver="gesvdj")
    assert left.shape == (3, 3) and values.shape == (2,)
    _, values, _ = FORMS[torch.ops.aten._linalg_svd.default](torch.ones(3, 2), driver="gesvd")
    assert values[0].item() == pytest.approx(6**0.5)


def test_put_raises_an_error_in_deterministic_mode_with_and_without_accumulation() -> None:
    use()
    torch.use_deterministic_algorithms(True)
    for accumulate in (True, False):
        with pytest.raises(RuntimeError, match=r"^put_ does not have a deterministic implementation"):
            on_gpu(3).put_(on_gpu(1, dtype=INT64), on_gpu(1), accumulate=accumulate)


def test_a_range_that_calls_no_kernel_can_have_any_dtype() -> None:
    """PyTorch calls no kernel for a range with no element or one element."""
    for count in (0, 1):
        assert torch.linspace(0, 1, count, dtype=torch.bool, device="cuda").numel() == count
    assert torch.randperm(0, dtype=torch.bfloat16, device="cuda").numel() == 0
    assert torch.tril_indices(0, 2, dtype=torch.float16, device="cuda").shape == (2, 0)


def test_a_large_batch_norm_may_have_statistics_in_half_precision() -> None:
    data, half = on_gpu(1 << 10, (1 << 10) + 1), on_gpu((1 << 10) + 1, dtype=torch.float16)
    assert nn.batch_norm(data, half, half).dtype == torch.float32
    weights = half.float()
    assert nn.batch_norm(data.half(), half, half, weights, weights).dtype == torch.float16


def test_a_small_batch_norm_in_half_precision_has_a_backward_pass() -> None:
    """On CUDA, the saved mean and variance of a bfloat16 batch norm are float32. The CPU kernel rejects such statistics."""
    norm = torch.nn.BatchNorm2d(4).to("cuda", torch.bfloat16)
    x = torch.ones(2, 4, 3, 3, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    norm(x).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.bfloat16


def test_randn_like_accepts_an_integer_tensor_if_the_dtype_is_floating() -> None:
    use()
    assert torch.randn_like(ints(2), dtype=torch.float16).dtype is torch.float16


def fused_adam(name: str = "_fused_adam_", amsgrad: bool = False, **changed: torch.Tensor) -> None:
    names = ("self", "grads", "exp_avgs", "exp_avg_sqs", *(["max_exp_avg_sqs"] if amsgrad else []))
    lists = {"max_exp_avg_sqs": [], **{each: [changed.get(each, torch.zeros(3, 4, device="cuda"))] for each in names}}
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}
    getattr(torch, name)(**lists, state_steps=[torch.ones((), device="cuda")], amsgrad=amsgrad, **options)


@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
@pytest.mark.parametrize("wrong", ["grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"])
def test_a_fused_optimizer_requires_equal_layouts_of_parameters_gradients_and_states(name: str, wrong: str) -> None:
    """GIVEN a state or gradient whose shape, layout or dtype differs from the parameter's THEN a fused optimizer raises CUDA's
    error."""
    use()
    amsgrad = wrong == "max_exp_avg_sqs"
    fused_adam(name, amsgrad)
    lists = "exp_avgs, exp_avg_sqs, and max_exp_avg_sqs" if amsgrad else "exp_avgs, and exp_avg_sqs"
    message = re.escape(f"params, grads, {lists} must have same dtype, device, and layout")
    for tensor in (torch.zeros(4), torch.zeros(4, 3).t(), torch.zeros(3, 8)[:, :4]):
        with pytest.raises(RuntimeError, match=message):
            fused_adam(name, amsgrad, **{wrong: tensor.cuda() if tensor.is_contiguous() else _strided_on_gpu(tensor)})
    if wrong == "exp_avgs":
        message = "^Mixed-precision fused AdamW? requires bfloat16 optimizer states, got Double$"
    with pytest.raises(RuntimeError, match=message):
        fused_adam(name, amsgrad, **{wrong: torch.zeros(3, 4, dtype=torch.float64, device="cuda")})


def _strided_on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), device="cuda")


@pytest.mark.parametrize(("name", "optimizer"), [("_fused_adam_", "Adam"), ("_fused_adamw_", "AdamW")])
def test_fused_adam_accepts_states_in_bfloat16_only_for_parameters_in_float32(name: str, optimizer: str) -> None:
    """The expected messages are copied from PyTorch 2.14.1 with CUDA."""
    use()

    def zeros(dtype: torch.dtype, *names: str) -> dict[str, torch.Tensor]:
        return {each: torch.zeros(3, 4, device="cuda", dtype=dtype) for each in names}

    states = zeros(torch.bfloat16, "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")
    fused_adam(name, amsgrad=True, **states)
    half = torch.float16
    for changed, message in (
        (zeros(half, "self", "grads"), "float32 params, got Half"),
        (zeros(torch.bfloat16, "grads"), "float32 grads, got BFloat16"),
        (zeros(half, "exp_avgs"), "bfloat16 optimizer states, got Half"),
        (zeros(torch.float32, "exp_avg_sqs"), "bfloat16 optimizer states, got Float"),
        (zeros(torch.float32, "max_exp_avg_sqs"), "bfloat16 max_exp_avg_sqs, got Float"),
    ):
        with pytest.raises(RuntimeError, match=f"^Mixed-precision fused {optimizer} requires {message}$"):
            fused_adam(name, amsgrad=True, **{**states, **changed})
    with pytest.raises(RuntimeError, match="must have same dtype"):
        fused_adam(name, amsgrad=False, **zeros(torch.bfloat16, "exp_avg_sqs"))


def test_fused_sgd_and_adagrad_require_equal_layouts() -> None:
    use()
    fused: Any = torch
    x, other = torch.zeros(3, 4, device="cuda"), torch.zeros(4, device="cuda")

    def sgd(gradient: torch.Tensor, *buffers: torch.Tensor, momentum: float) -> None:
        options = {"dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": False}
        fused._fused_sgd_([x], [gradient], [*buffers], weight_decay=0.0, momentum=momentum, lr=0.1, **options)

    sgd(x, x, momentum=0.9)
    for buffer in (other, x.bfloat16()):
        with pytest.raises(RuntimeError, match=r"check_fast_path_restrictions\( \{params, grads, momentum_buffer_list\}\)"):
            sgd(x, buffer, momentum=0.9)
    with pytest.raises(RuntimeError, match=r"check_fast_path_restrictions\(\{params, grads\}\)"):
        sgd(other, momentum=0.0)
    step = torch.ones((), device="cuda")
    options = {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}
    for state in (other, x.bfloat16()):
        with pytest.raises(RuntimeError, match="params, grads, and state_sums must have same dtype, device, and layout"):
            fused._fused_adagrad_([x], [x], [state], [step], **options)


def test_fused_optimizers_require_floats_and_fused_sgd_requires_a_momentum_if_it_has_buffers() -> None:
    use()
    with pytest.raises(NotImplementedError, match="\"fused_adam_kernel_cuda\" not implemented for 'Long'"):
        integers = torch.zeros(3, 4, dtype=torch.int64, device="cuda")
        fused_adam(self=integers, grads=integers, exp_avgs=integers, exp_avg_sqs=integers)
    options = {"lr": 0.1, "weight_decay": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": False}
    x = torch.zeros(3, device="cuda")
    fused: Any = torch
    for buffers, momentum, relation in (([x], 0.0, "> 0"), ([], 0.9, "== 0")):
        with pytest.raises(RuntimeError, match=f"Check failed: momentum {relation}"):
            fused._fused_sgd_([x], [x], buffers, momentum=momentum, **options)
    with pytest.raises(NotImplementedError, match="\"fused_sgd_kernel_cuda\" not implemented for 'Bool'"):
        fused._fused_sgd_([x > 0], [x > 0], [], momentum=0.0, **options)


def test_a_tensor_used_as_a_list_of_scalars_must_be_on_the_host() -> None:
    use()
    listed, foreach = [torch.ones(3, device="cuda")], torch._foreach_addcmul
    assert foreach(listed, listed, listed, torch.ones(1))[0].shape == (3,)
    torch._foreach_addcdiv_(listed, listed, listed, torch.ones(1))
    with pytest.raises(RuntimeError, match="Expected scalars to be on CPU, got cuda:0 instead"):
        foreach(listed, listed, listed, torch.ones(1, device="cuda"))


@pytest.mark.parametrize(
    ("data", "weight", "text"),
    [
        ("float", "half", "Float but got Half"),
        ("half", "bfloat16", "Float but got BFloat16"),
        ("double", "float", "Double but got Float"),
    ],
)
def test_batch_norm_without_cudnn_accepts_weights_in_the_input_or_accumulation_dtype(data: str, weight: str, text: str) -> None:
    use()
    rows = torch.ones(4, 3, dtype=getattr(torch, data), device="cuda")
    weights = torch.ones(3, dtype=getattr(torch, weight), device="cuda")
    with pytest.raises(RuntimeError, match=f"^Expected weight to have type {text}$"):
        nn.batch_norm(rows, None, None, weights, weights, training=True)


_OF_FLOATS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: torch.median(x, 0, out=(x[:1], x[:1])), "'indices' to have scalar type Long; but got torch.cuda.FloatTensor"),
    (lambda x: torch.sort(x, out=(x.clone(), x.clone())), "Expected out tensor to have dtype long int, but got float"),
    (lambda x: x.index_add_(0, x, x), r"index_add_\(\): Expected dtype int32/int64 for index but got: Float"),
    (lambda x: torch.mode(x, out=(x[:1], x[:1])), "expected scalar type 'Long' but got 'Float' for indices output"),
    (lambda x: torch.kthvalue(x, 1, out=(x[:1], x[:1])), "output indices must be of scalar type Long"),
    (lambda x: x << 1.5, "\"lshift_cuda\" not implemented for 'Float'"),
    (lambda x: x.fill_(1j), "value cannot be converted to type float without overflow"),
    (lambda x: torch.empty_strided((2, 3), (1,), device="cuda"), r"sizes \(2\) must match dimensionality of strides \(1\)"),
]


@pytest.mark.parametrize("row", range(len(_OF_FLOATS)))
def test_wrong_calls_with_float_tensors_have_the_error_messages_of_cuda(row: int) -> None:
    use()
    call, says = _OF_FLOATS[row]
    with pytest.raises(RuntimeError, match=says):
        call(torch.ones(3, device="cuda"))


def test_calls_that_only_a_meta_kernel_in_python_rejects_are_accepted() -> None:
    use()
    scores, bytes_ = torch.ones(2, 3, device="cuda"), torch.ones(2, dtype=torch.uint8, device="cuda")
    assert F.nll_loss(scores, bytes_).shape == ()
    assert F.nll_loss(scores[0], bytes_[:1].long()).shape == ()
    index = torch.zeros(2, 3, dtype=torch.int64, device="cuda")
    assert torch.scatter_reduce(scores, 0, index, scores, "max").shape == (2, 3)
    assert scores.scatter_reduce_(0, index, scores.clone(), "max") is scores
    with pytest.raises(RuntimeError, match="reduce argument must be"):
        scores.scatter_reduce_(0, index, scores.clone(), "maximum")
    torch._foreach_zero_([scores[0].expand(2, 3)])


def test_a_dtype_that_only_the_cpu_rejects_is_accepted() -> None:
    use()
    assert torch.nansum(torch.ones(3, dtype=torch.complex64, device="cuda")).dtype is torch.complex64


@pytest.mark.parametrize("name", ["bfloat16", "int64"])
def test_a_gradient_scaler_rejects_gradients_in_bfloat16_and_integers(name: str) -> None:
    use()
    found, scale = torch.zeros((), device="cuda"), torch.ones((), device="cuda")
    torch._amp_foreach_non_finite_check_and_unscale_([torch.ones(3, dtype=HALF, device="cuda")], found, scale)
    gradient = torch.ones(3, dtype=getattr(torch, name), device="cuda")
    with pytest.raises(RuntimeError, match='"_amp_foreach_non_finite_check_and_unscale_cuda" not implemented for'):
        torch._amp_foreach_non_finite_check_and_unscale_([gradient], found, scale)
