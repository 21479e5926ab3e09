# mypy: allow-untyped-calls
"""Tests that composite ops launch the same kernels as on CUDA. Each test runs in a fork of an interpreter that has imported
torch (warm.py)."""

from __future__ import annotations

import re
import warnings
from itertools import permutations
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from replayer.ops.composite import cuda_decompositions
from replayer.ops.composite.cuda_decompositions import CUDNN, EFFICIENT, FLASH, MATH, attention_kernel
from tests.replayer.fake_gpu import use
from traces.model.machine import Machine


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("half", [True, False])
def test_softmax_of_half_precision_can_return_float32_without_a_cast_op(name: str, half: bool) -> None:
    gpu = use()
    dtype = torch.float16 if half else torch.bfloat16
    x = torch.empty(4, 8, device="cuda", dtype=dtype, requires_grad=True)
    before = len(gpu.launched_ops)
    result = getattr(F, name)(x, dim=-1, dtype=torch.float32)
    copies = [] if half else ["aten::copy_"]
    assert [launch.op for launch, _ in gpu.launched_ops[before:]] == [*copies, f"aten::_{name}"]
    assert result.dtype is torch.float32
    result.backward(torch.empty(4, 8, device="cuda"))
    assert x.grad is not None and x.grad.dtype is dtype


def test_other_softmax_calls_have_the_usual_result_dtypes() -> None:
    use()
    x = torch.empty(4, 8, device="cuda")
    assert x.softmax(0).dtype is torch.float32 and x.softmax(0, dtype=torch.float64).dtype is torch.float64
    assert x.half().softmax(1).dtype is torch.float16


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="PyTorch before 2.9")
def test_rms_norm_and_its_gradient_each_launch_one_kernel() -> None:
    gpu = use()
    x = torch.empty(4, 8, device="cuda", requires_grad=True)
    weight = torch.empty(8, device="cuda", requires_grad=True)
    before = len(gpu.launched_ops)
    result = F.rms_norm(x, (8,), weight)
    result.backward(torch.empty(4, 8, device="cuda"))
    assert [launch.op for launch, _ in gpu.launched_ops[before:]] == ["aten::_fused_rms_norm", "aten::_fused_rms_norm_backward"]
    assert x.grad is not None and x.grad.shape == (4, 8) and weight.grad is not None and weight.grad.shape == (8,)
    with torch.inference_mode():
        before = len(gpu.launched_ops)
        assert F.rms_norm(x.half(), (8,)).dtype is torch.float16
    assert [launch.op for launch, _ in gpu.launched_ops[before:]][-1] == "aten::_fused_rms_norm"


@pytest.mark.parametrize("name", ["silu", "mish"])
def test_an_activation_gradient_launches_exactly_one_kernel(name: str) -> None:
    gpu = use()
    x = torch.empty(4, 8, device="cuda", requires_grad=True)
    result = getattr(F, name)(x)
    before = len(gpu.launched_ops)
    result.backward(torch.empty(4, 8, device="cuda"))
    assert [launch.op for launch, _ in gpu.launched_ops[before:]] == [f"aten::{name}_backward"]
    assert x.grad is not None and x.grad.shape == (4, 8)


def test_composite_ops_that_have_a_kernel_are_not_decomposed() -> None:
    """The virtual GPU has a kernel for every composite op for which PyTorch has a CPU kernel. Only `native_channel_shuffle` has
    no CUDA kernel."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::") and has(name, "CPU")]
    without = [name for name in names if has(name, "CompositeImplicitAutograd") and not has(name, "Lazy")]
    assert [name for name in without if name != "aten::native_channel_shuffle"] == []


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="PyTorch before 2.9")
def test_rms_norm_is_decomposed_if_its_weight_has_a_different_dtype() -> None:
    gpu = use()
    before = len(gpu.launched_ops)
    with pytest.warns(UserWarning, match="Mismatch dtype"):
        F.rms_norm(torch.empty(4, 8, device="cuda", dtype=torch.float16), (8,), torch.empty(8, device="cuda"))
    assert "aten::_fused_rms_norm" not in [launch.op for launch, _ in gpu.launched_ops[before:]]


def test_shapes_of_output_arguments_are_not_recorded() -> None:
    """An imported recording does not contain these shapes either (traces/kineto/spans/out_variants.py)."""
    gpu = use()
    a, b, out = (torch.empty(size, device="cuda") for size in ((2, 3), (3, 4), (2, 4)))
    before = len(gpu.launched_ops)
    torch.mm(a, b, out=out)
    torch.arange(5, device="cuda")
    assert [(launch.op, launch.shapes) for launch, _ in gpu.launched_ops[before:]] == [
        ("aten::mm", ((2, 3), (3, 4))),
        ("aten::arange", ()),
    ]


def _chosen(*, capability: tuple[int, int] = (9, 0), cudnn: int = 91900, heads: int = 4, **changes: Any) -> str:
    size, dtype, tokens = changes.pop("size", 64), changes.pop("dtype", torch.bfloat16), changes.pop("tokens", 16)
    trains, keys = changes.pop("trains", False), changes.pop("keys", tokens)
    query = torch.empty(2, 4, tokens, size, dtype=dtype, device="meta", requires_grad=trains)
    key = torch.empty(2, heads, keys, size, dtype=dtype, device="meta")
    given = changes.pop("dropout", 0.0), changes.pop("causal", False), changes.pop("grouped", False)
    params = torch.backends.cuda.SDPAParams(query, key, key, changes.pop("mask", None), *given)
    return attention_kernel(params, capability, cudnn=cudnn, **changes)


def test_a_hopper_gpu_with_a_new_cudnn_uses_cudnn_attention() -> None:
    """On an H200, torch 2.11 with cuDNN 9.19 called aten::_scaled_dot_product_cudnn_attention."""
    assert _chosen() == _chosen(mask=torch.empty(16, 16, device="meta")) == _chosen(capability=(10, 3)) == CUDNN
    assert _chosen(dropout=0.1, rounds_dropout=True) == _chosen(dropout=0.125) == CUDNN
    assert _chosen(heads=2, grouped=True) == CUDNN


def test_other_gpus_and_older_releases_use_flash_attention() -> None:
    assert _chosen(cudnn=91500) == _chosen(capability=(8, 0)) == _chosen(capability=(12, 0)) == FLASH
    assert _chosen(size=256) == _chosen(tokens=1) == _chosen(dropout=0.1) == FLASH
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.FLASH_ATTENTION]):
        assert _chosen() == FLASH
    assert _chosen(dtype=torch.float32) == EFFICIENT
    assert _chosen(capability=(8, 0), causal=True) == FLASH
    # Flash attention would align the causal mask differently.
    assert _chosen(capability=(8, 0), causal=True, keys=32) == EFFICIENT
    assert _chosen(capability=(8, 0), keys=0) == MATH
    assert _chosen(capability=(8, 6), size=208) == FLASH
    # The backward pass needs more shared memory than this GPU has.
    assert _chosen(capability=(8, 6), size=208, trains=True) == EFFICIENT
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.CUDNN_ATTENTION]):
        assert _chosen(capability=(8, 0)) == CUDNN
    needs_gradient = torch.empty(16, 16, dtype=torch.bfloat16, device="meta", requires_grad=True)
    assert _chosen(mask=needs_gradient) == EFFICIENT


@pytest.mark.parametrize(
    ("capability", "dtype", "chosen"),
    [
        # Flash attention supports head sizes up to 256 since compute capability 8.0.
        ((8, 0), "float16", [(8, FLASH), (256, FLASH), (264, EFFICIENT)]),
        ((7, 5), "float16", [(8, EFFICIENT)]),
        # Memory-efficient attention needs rows of 16 bytes since 8.0, and since 7.0 for half precision. Older GPUs accept any
        # rows.
        ((8, 0), "float32", [(2, MATH), (4, EFFICIENT), (6, MATH)]),
        ((7, 5), "float32", [(1, EFFICIENT), (6, EFFICIENT)]),
        ((7, 0), "float16", [(4, MATH), (8, EFFICIENT), (12, MATH)]),
        ((6, 1), "float16", [(1, EFFICIENT), (12, EFFICIENT)]),
        ((5, 0), "float32", [(6, EFFICIENT)]),
        ((3, 7), "float32", [(8, MATH)]),
        ((7, 5), "bfloat16", [(8, MATH)]),
        ((9, 0), "float64", [(8, MATH)]),
        # cuDNN's attention supports head sizes up to 128 that are multiples of 8.
        ((9, 0), "float16", [(128, CUDNN), (136, FLASH), (8, CUDNN), (12, FLASH)]),
    ],
)
def test_an_attention_kernel_is_chosen_only_if_its_limits_allow(
    capability: list[int], dtype: str, chosen: list[tuple[int, str]]
) -> None:
    """For each condition in sdp_utils.cpp, the test uses a head size or compute capability on both sides of the limit."""
    major, minor = capability
    for size, kernel in chosen:
        assert _chosen(capability=(major, minor), dtype=getattr(torch, dtype), size=size) == kernel, size


def test_fused_attention_requires_certain_heads_and_masks_and_layouts() -> None:
    mask = torch.empty(16, 16, device="meta")
    # 4 heads cannot be grouped by 3.
    assert _chosen(heads=2) == _chosen(heads=3, grouped=True) == _chosen(heads=0, grouped=True) == MATH
    assert _chosen(cudnn=91501) == CUDNN and _chosen(cudnn=91500, mask=mask) == EFFICIENT
    assert _chosen(tokens=2) == _chosen(tokens=2, dropout=0.5) == CUDNN
    query = torch.empty(2, 4, 16, 64, dtype=torch.bfloat16, device="meta")
    turned = torch.empty(2, 4, 64, 16, dtype=torch.bfloat16, device="meta").mT
    orders = permutations((query, query, turned), 3)
    plain: Any = [None, 0.0, False, False]
    params = torch.backends.cuda.SDPAParams
    assert {attention_kernel(params(*of, *plain), (9, 0), cudnn=91900) for of in orders} == {MATH}
    assert attention_kernel(params(query[0], query[0], query[0], *plain), (9, 0)) == MATH
    # For these float32 tensors, `can_use_efficient_attention` of torch 2.14 returned True, False, True, False and False.
    sizes = ((16, 16, 16), (16, 32, 32), (16, 16, 32), (0, 0, 16), (16, 16, 0))
    tensors: list[Any] = [[torch.empty(2, 2, 8, size, device="meta") for size in of] for of in sizes]
    assert [attention_kernel(params(*of, *plain), (8, 0)) == EFFICIENT for of in tensors] == [True, False, True, False, False]
    most, more = (torch.empty(count, 1, 2, 8, dtype=torch.half, device="meta") for count in (65535, 65536))
    assert [attention_kernel(params(of, of, of, *plain), (9, 0), cudnn=91900) for of in (most, more)] == [CUDNN, FLASH]


@pytest.mark.parametrize(
    ("shape", "dtype", "answers"),
    [
        ((1, 2, 3, 64), "float16", [True, True, True]),
        ((1, 2, 3, 36), "float16", [True, False, False]),
        ((1, 2, 3, 300), "float16", [False, False, False]),
        ((1, 2, 3, 4), "float32", [False, True, False]),
        ((2, 3, 64), "float16", [False, False, False]),
    ],
)
def test_functions_such_as_can_use_flash_attention_agree_with_cuda(
    shape: tuple[int, ...], dtype: str, answers: list[bool]
) -> None:
    """PyTorch 2.14 gave these answers on a simulated device with compute capability 8.0."""
    use()
    data: Any = torch.empty(shape, device="cuda", dtype=getattr(torch, dtype))
    cuda: Any = torch.backends.cuda
    params = SimpleNamespace(
        query=data, key=data, value=data, attn_mask=None, dropout=0.0, is_causal=False, enable_gqa=False
    )
    with patch.object(torch.cuda, "get_device_capability", lambda device=None: (8, 0)):
        asked = cuda.can_use_flash_attention, cuda.can_use_efficient_attention, cuda.can_use_cudnn_attention
        assert [can_use(params) for can_use in asked] == answers


def test_cudnn_attention_runs_forward_and_backward() -> None:
    """The logsumexp of cuDNN's attention has a fourth dimension of size 1."""
    gpu = use()
    gpu.machine = Machine(torch="2.11.0+cu130", cuda="13.0", cudnn=91900)
    with patch.object(torch.cuda, "get_device_capability", lambda device=None: (9, 0)):
        q = torch.empty(2, 4, 16, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        before = len(gpu.launched_ops)
        F.scaled_dot_product_attention(q, q, q, dropout_p=0.1, is_causal=True).sum().backward()
    ops = {launch.op: launch for launch, _ in gpu.launched_ops[before:]}
    assert "aten::_scaled_dot_product_cudnn_attention" in ops
    assert (2, 4, 16, 1) in ops["aten::_scaled_dot_product_cudnn_attention_backward"].shapes
    assert q.grad is not None and q.grad.shape == q.shape


@pytest.mark.parametrize("version", ["2.14.1+cu130", "2.11.0+cu130", "2.4 or newer"])
def test_attention_without_a_batch_dimension_is_fused_since_torch_2_14(version: str) -> None:
    """The expected ops are from profiles of torch 2.14.1 and 2.11.0."""
    gpu = use()
    gpu.machine = Machine(torch=version)
    query, key = torch.empty(4, 1, 32, device="cuda"), torch.empty(4, 9, 32, device="cuda")
    before = len(gpu.launched_ops)
    assert F.scaled_dot_product_attention(query, key, key).shape == (4, 1, 32)
    ops = [(launch.op, launch.shapes) for launch, _ in gpu.launched_ops[before:]]
    fused = ("aten::_scaled_dot_product_efficient_attention", ((1, 4, 1, 32), (1, 4, 9, 32), (1, 4, 9, 32)))
    assert (ops == [fused]) is (version == "2.14.1+cu130")


def test_memory_efficient_attention_keeps_no_seed_on_the_gpu() -> None:
    """The allocated memory is that of the output and the logsumexp. Two seeds on the GPU would take another 1024 bytes."""
    use()
    query = torch.empty(2, 4, 64, 32, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    result = torch.ops.aten._scaled_dot_product_efficient_attention(query, query, query, None, True)
    assert torch.cuda.memory_allocated() - before == 4 * (2 * 4 * 64 * 32 + 2 * 4 * 64)
    result[0].sum().backward()
    assert query.grad is not None


def test_memory_efficient_attention_accepts_grouped_heads_since_torch_2_14() -> None:
    assert _chosen(heads=2, grouped=True, dtype=torch.float32, groups_efficient=True) == EFFICIENT
    assert _chosen(heads=2, grouped=True, dtype=torch.float32) == MATH
    assert _chosen(heads=2, dtype=torch.float32, groups_efficient=True) == MATH


def test_ctc_loss_accepts_one_sequence_without_a_batch_dimension() -> None:
    use()
    targets, lengths = torch.ones(2, dtype=torch.int64, device="cuda"), torch.tensor(5, device="cuda")
    loss = F.ctc_loss(torch.empty(5, 4, device="cuda").log_softmax(1), targets, lengths, torch.tensor(2, device="cuda"))
    assert loss.shape == ()


@pytest.mark.parametrize(("release", "is_accepted"), [("2.13.0", False), ("2.14.0", True)])
def test_can_use_efficient_attention_accepts_grouped_heads_since_torch_2_14(release: str, is_accepted: bool) -> None:
    gpu = use()
    gpu.machine = Machine(torch=release)
    query, key = (torch.empty(1, heads, 3, 64, device="cuda") for heads in (4, 2))
    params: Any = SimpleNamespace(
        query=query, key=key, value=key, attn_mask=None, dropout=0.0, is_causal=False, enable_gqa=True
    )
    assert torch.backends.cuda.can_use_efficient_attention(params) is is_accepted


def test_attention_rejects_tensors_with_fewer_than_two_dimensions() -> None:
    use()
    row, vector = torch.empty(4, 8, device="cuda"), torch.empty(8, device="cuda")
    assert F.scaled_dot_product_attention(row, row, row).shape == (4, 8)
    for tensors in ((vector, row, row), (row, vector, row), (vector, vector, vector)):
        with pytest.raises(RuntimeError, match="to all be  at least 2 dimensional"):
            F.scaled_dot_product_attention(*tensors)


def test_one_hot_encoding_on_the_cpu_agrees_with_torch() -> None:
    labels = torch.tensor([[0, 3], [1, 0]])
    for classes in (-1, 4, 6):
        assert torch.equal(cuda_decompositions.one_hot(labels, classes), F.one_hot(labels, classes))
    empty = labels[:0]
    assert cuda_decompositions.one_hot(empty, 1).shape == (0, 2, 1)
    for wrong, classes, says in ((labels, 0, "num_classes should be positive"), (labels, -2, "num_classes should be positive"),
                                 (empty, -1, "Can not infer total number of classes from empty tensor."),
                                 (empty, 0, "Can not infer total number of classes from empty tensor.")):  # fmt: skip
        with pytest.raises(RuntimeError, match=says):
            cuda_decompositions.one_hot(wrong, classes)


@pytest.mark.parametrize(
    ("name", "shape", "arguments", "bad"),
    [
        ("fft_rfft", (8,), (), None),
        ("fft_rfft", (6,), (), [6]),
        ("fft_rfft", (6,), (8,), None),
        ("fft_rfft", (8,), (6,), [6]),
        ("fft_ihfft", (8,), (), None),
        ("fft_ihfft", (6,), (), [6]),
        ("fft_fft", (6, 4), (None, 1), None),
        ("fft_fft", (6, 4), (None, 0), [6]),
        ("fft_hfft", (5,), (), None),  # the signal has 8 elements
        ("fft_hfft", (4,), (), [6]),
        ("fft_irfft", (4,), (), [6]),
        ("fft_fft2", (3, 4, 8), (), None),
        ("fft_fft2", (4, 3, 8), (), [3, 8]),
        ("fft_rfft2", (4, 6), (), [4, 6]),
        ("fft_rfft2", (4, 6), ((4, 8),), None),
        ("fft_fftn", (3, 4), (), [3, 4]),
        ("fft_fftn", (3, 4), ((4,),), None),
        ("fft_fftn", (3, 4), (None, (1,)), None),
        ("fft_rfftn", (4, 4), ((4, 6), (0, 1)), [4, 6]),
    ],
)
def test_half_precision_transforms_need_sizes_that_are_powers_of_two(
    name: str, shape: tuple[int, ...], arguments: Any, bad: list[int] | None
) -> None:
    """The values are those of float32. cuFFT names the sizes of the signal, also where the result has another size."""
    op = getattr(torch.ops.aten, name).default
    data = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
    if bad is None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="ComplexHalf support is experimental")
            made, expected = cuda_decompositions._transform(op, data.half(), *arguments), op(data, *arguments)
        assert made.dtype is (torch.complex32 if expected.is_complex() else torch.float16)
        assert torch.allclose(made.to(expected.dtype), expected, rtol=1e-2, atol=1e-2)
    else:
        with pytest.raises(RuntimeError, match=f"powers of two .* signal size of{re.escape(str(bad))}"):
            cuda_decompositions._transform(op, data.half(), *arguments)


def test_an_observer_with_empty_buffers_gets_a_range_per_channel() -> None:
    """The first observed range is kept. Each further range moves it by the averaging constant of 0.5."""
    x, on = torch.tensor([[1.0, 2.0], [-3.0, 4.0]]), torch.ones(1, dtype=torch.int64)
    low, high, scale = (torch.empty(0) for _ in range(3))
    zero = torch.empty(0, dtype=torch.int32)
    for factor, lows, highs in ((1, [1.0, -3.0], [2.0, 4.0]), (3, [2.0, -6.0], [4.0, 8.0])):
        cuda_decompositions.observed_fake_quantization(x * factor, on, on, low, high, scale, zero, 0.5, 0, 255, 0, True, False)
        assert (low.tolist(), high.tolist(), len(scale), len(zero)) == (lows, highs, 2, 2)
    whole = torch.full((1,), 9.0), torch.full((1,), 9.0)
    args: Any = (*whole, torch.ones(1), torch.zeros(1, dtype=torch.int32), 0.5, 0, 255, 0, False, False)
    cuda_decompositions.observed_fake_quantization(x, on, on, *args)
    assert (whole[0].item(), whole[1].item()) == (3.0, 6.5)  # the values move halfway from 9 to -3, and from 9 to 4


def test_matrix_rank_writes_its_result_to_out() -> None:
    """If the matrix is an instance of a tensor subclass, PyTorch's C++ code writes the rank to a different tensor."""
    gpu = use()
    out = torch.empty((), dtype=torch.int64, device="cuda")
    assert torch.linalg.matrix_rank(torch.eye(3, device="cuda"), out=out) is out
    assert [launch.op for launch, _ in gpu.launched_ops[-2:]] == ["aten::sum", "aten::copy_"]
