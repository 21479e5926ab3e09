# mypy: allow-untyped-calls
"""Tests that ops on virtual tensors and on the CPU give the same shapes, strides, dtypes, aliasing and gradients."""

from __future__ import annotations

import itertools
import re
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from replayer.errors import DataDependentShape, NotEmulated
from replayer.tensor.planning.cuda_dtypes import tensors_of
from replayer.tensor.tensor import VirtualTensor
from tests.replayer.fake_gpu import use

Op = Callable[..., Any]

a, b, v, m3, img = (4, 6), (4, 6), (6,), (2, 4, 6), (2, 4, 8, 8)

# Each name has an op and the shapes of its float arguments.
OPS: dict[str, tuple[Op, tuple[tuple[int, ...], ...]]] = {
    "add": (lambda x, y: x + y, (a, v)),
    "add scalar": (lambda x: x + 2, (a,)),
    "rsub": (lambda x: 1.5 - x, (a,)),
    "mul": (lambda x, y: x * y, (a, (4, 1))),
    "div": (lambda x, y: x / y, (a, b)),
    "floor divide": (lambda x: x.detach() // 2, (a,)),
    "pow": (lambda x: x.abs() ** 2.5, (a,)),
    "compare": (lambda x, y: (x > y) & (x != y), (a, b)),
    "where": (lambda x, y: torch.where(x > 0, x, y), (a, b)),
    "clamp": (lambda x: x.clamp(0, 1), (a,)),
    "exp log sqrt": (lambda x: x.exp().log().abs().sqrt(), (a,)),
    "sum": (lambda x: x.sum(), (a,)),
    "sum dims": (lambda x: x.sum((0, 2), keepdim=True), (m3,)),
    "mean": (lambda x: x.mean(1), (a,)),
    "var": (lambda x: x.var(1), (a,)),
    "std": (lambda x: x.std(), (a,)),
    "norm": (lambda x: x.norm(), (a,)),
    "norm dim": (lambda x: x.norm(dim=1, keepdim=True), (a,)),
    "max": (lambda x: x.max(), (a,)),
    "max dim": (lambda x: x.max(1).values, (a,)),
    "min dim": (lambda x: x.min(0)[0], (a,)),
    "amax": (lambda x: x.amax(1), (a,)),
    "prod": (lambda x: x.prod(1), (a,)),
    "cumsum": (lambda x: x.cumsum(1), (a,)),
    "logsumexp": (lambda x: x.logsumexp(1), (a,)),
    "argmax": (lambda x: x.argmax(1), (a,)),
    "any all": (lambda x: ((x > 0).any(), (x > 0).all(1)), (a,)),
    "sort": (lambda x: x.sort(1)[0], (a,)),
    "topk": (lambda x: x.topk(3, 1)[0], (a,)),
    "argsort": (lambda x: x.argsort(1), (a,)),
    "matmul": (lambda x, y: x @ y, (a, (6, 3))),
    "matmul batched": (lambda x, y: x @ y, (m3, (2, 6, 3))),
    "matmul vector": (lambda x, y: x @ y, (a, v)),
    "dot": (lambda x, y: x @ y, (v, v)),
    "addmm": (lambda x, y, z: torch.addmm(x, y, z), ((3,), a, (6, 3))),
    "baddbmm": (lambda x, y, z: torch.baddbmm(x, y, z), ((2, 4, 3), m3, (2, 6, 3))),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (m3, (2, 5, 6))),
    "outer": (lambda x, y: torch.outer(x, y), (v, v)),
    "linear": (lambda x, w, c: F.linear(x, w, c), (m3, (3, 6), (3,))),
    "bilinear": (lambda x, y, w: F.bilinear(x, y, w), ((4, 3), (4, 5), (2, 3, 5))),
    "view": (lambda x: x.view(2, 12), (a,)),
    "reshape copy": (lambda x: x.t().reshape(-1), (a,)),
    "transpose": (lambda x: x.transpose(0, 1), (a,)),
    "permute contiguous": (lambda x: x.permute(2, 0, 1).contiguous(), (m3,)),
    "slice": (lambda x: x[1:3, ::2], (a,)),
    "select": (lambda x: x[1], (a,)),
    "ellipsis none": (lambda x: x[..., None, 1:], (m3,)),
    "index": (lambda x: x[[0, 2]], (a,)),
    "split": (lambda x: x.split(2, 1), (a,)),
    "chunk": (lambda x: torch.cat(x.chunk(3, 1)[:2]), (a,)),
    "unbind": (lambda x: x.unbind(0), (a,)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (a, (4, 2))),
    "stack": (lambda x, y: torch.stack([x, y], 1), (a, b)),
    "expand": (lambda x: x.expand(4, 6), ((1, 6),)),
    "repeat": (lambda x: x.repeat(2, 3), (a,)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 0), (a,)),
    "flip roll": (lambda x: x.flip(0).roll(1, 1), (a,)),
    "tril triu": (lambda x: x.tril() + x.triu(1), (a,)),
    "diag": (lambda x: x.diagonal(), (a,)),
    "pad": (lambda x: F.pad(x, (1, 2)), (a,)),
    "pad reflect": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), (img,)),
    "squeeze": (lambda x: x.unsqueeze(0).squeeze(0), (a,)),
    "flatten": (lambda x: x.flatten(1), (m3,)),
    "unfold": (lambda x: x.unfold(1, 3, 1), (a,)),
    "gather": (lambda x: x.gather(1, x.argsort(1)), (a,)),
    "scatter_add": (lambda x: torch.zeros_like(x).scatter_add(1, x.argsort(1), x), (a,)),
    "scatter": (lambda x, y: x.scatter(0, x.argsort(0), y), (a, b)),
    "index_select": (lambda x: x.index_select(0, x.argmax(0)[:2] * 0), (a,)),
    "index_add": (lambda x, y: x.index_add(0, y.argmax(0) * 0, y[:1].expand(6, 6)), (a, b)),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 0.0), (a,)),
    "take_along_dim": (lambda x: x.take_along_dim(x.argmax(1, keepdim=True), 1), (a,)),
    "relu": (lambda x: F.relu(x), (a,)),
    "gelu": (lambda x: F.gelu(x, approximate="tanh"), (a,)),
    "silu": (lambda x: F.silu(x), (a,)),
    "leaky_relu": (lambda x: F.leaky_relu(x), (a,)),
    "elu hardtanh": (lambda x: F.hardtanh(F.elu(x)), (a,)),
    "sigmoid tanh": (lambda x: x.sigmoid() * x.tanh(), (a,)),
    "softplus": (lambda x: F.softplus(x), (a,)),
    "hardswish": (lambda x: F.hardswish(x), (a,)),
    "prelu": (lambda x, w: F.prelu(x, w), (img, (4,))),
    "glu": (lambda x: F.glu(x), (a,)),
    "softmax": (lambda x: x.softmax(-1), (m3,)),
    "log_softmax": (lambda x: x.log_softmax(-1), (m3,)),
    "layer_norm": (lambda x, w, c: F.layer_norm(x, (6,), w, c), (m3, v, v)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (6,), w), (m3, v)),
    "group_norm": (lambda x, w, c: F.group_norm(x, 2, w, c), (img, (4,), (4,))),
    "instance_norm": (lambda x: F.instance_norm(x), (img,)),
    "batch_norm": (lambda x, w, c: F.batch_norm(x, None, None, w, c, training=True), (img, (4,), (4,))),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), (m3, (3, 4, 3))),
    "conv2d": (lambda x, w, c: F.conv2d(x, w, c, stride=2, padding=1), (img, (6, 4, 3, 3), (6,))),
    "conv2d grouped": (lambda x, w: F.conv2d(x, w, groups=4), (img, (4, 1, 3, 3))),
    "conv3d": (lambda x, w: F.conv3d(x[:, None], w), (img, (2, 1, 3, 3, 3))),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1), (img, (4, 3, 3, 3))),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (img,)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), (img,)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 1), (img,)),
    "adaptive_avg_pool2d 3": (lambda x: F.adaptive_avg_pool2d(x, 3), (img,)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 3), (img,)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), (m3,)),
    "interpolate nearest": (lambda x: F.interpolate(x, scale_factor=2), (img,)),
    "interpolate bilinear": (lambda x: F.interpolate(x, size=(5, 5), mode="bilinear", align_corners=False), (img,)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (img,)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), (img, (2, 3, 3, 2))),
    "im2col": (lambda x: F.unfold(x, 3), (img,)),
    "mse": (lambda x, y: F.mse_loss(x, y), (a, b)),
    "l1": (lambda x, y: F.l1_loss(x, y), (a, b)),
    "smooth l1": (lambda x, y: F.smooth_l1_loss(x, y), (a, b)),
    "huber": (lambda x, y: F.huber_loss(x, y), (a, b)),
    "cross entropy": (lambda x: F.cross_entropy(x, x.argmax(1)), (a,)),
    "cross entropy smoothed": (lambda x: F.cross_entropy(x, x.argmax(1), label_smoothing=0.1), (a,)),
    "cross entropy soft": (lambda x, y: F.cross_entropy(x, y.softmax(1)), (a, b)),
    "cross entropy image": (lambda x: F.cross_entropy(x, x.argmax(1)), (img,)),
    "bce": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), (a, b)),
    "bce logits": (lambda x, y: F.binary_cross_entropy_with_logits(x, y), (a, b)),
    "kl_div": (lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), (a, b)),
    "cosine similarity": (lambda x, y: F.cosine_similarity(x, y), (a, b)),
    "triplet": (lambda x, y, z: F.triplet_margin_loss(x, y, z), (a, b, a)),
    "normalize": (lambda x: F.normalize(x), (a,)),
    "cdist": (lambda x, y: torch.cdist(x, y), (a, (3, 6))),
    "embedding": (lambda w: F.embedding(w.argmax(0), w), (a,)),
    "one_hot": (lambda x: F.one_hot(x.argmax(1), 6), (a,)),
    "sdpa": (lambda q, k, u: F.scaled_dot_product_attention(q, k, u), ((2, 2, 4, 8),) * 3),
    "addcmul addcdiv": (lambda x, y: x.addcmul(x, y).addcdiv(x, y), (a, b)),
    "lerp": (lambda x, y: x.lerp(y, 0.3), (a, b)),
    "in place": (lambda x: x.clone().add_(1).mul_(2).relu_(), (a,)),
    "in place on view": (lambda x: _set_slice(x.clone()), (a,)),
    "to half": (lambda x: x.half().float(), (a,)),
    "double": (lambda x: x.double() * 2, (a,)),
    "complex": (lambda x: torch.view_as_real(torch.fft.fft(x)), (a,)),
    "meshgrid": (lambda x: torch.meshgrid(x, x, indexing="ij"), (v,)),
    "bucketize": (lambda x, y: torch.bucketize(x, y.sort()[0]), (a, v)),
    "searchsorted": (lambda x, y: torch.searchsorted(x.sort()[0], y), (v, v)),
    "linalg norm": (lambda x: torch.linalg.vector_norm(x, 2, 1), (a,)),
    "linalg inverse": (lambda x: torch.linalg.inv(x @ x.t() + torch.eye(4, device=x.device)), (a,)),
    "linalg cholesky": (lambda x: torch.linalg.cholesky(x @ x.t() + torch.eye(4, device=x.device)), (a,)),
    "like": (lambda x: (torch.zeros_like(x.t()), torch.empty_like(x), x.new_full((2,), 3), x.new_empty(2)), (a,)),
    "nan_to_num": (lambda x: x.nan_to_num().isnan(), (a,)),
    "frac round": (lambda x: x.round() + x.floor() + x.trunc(), (a,)),
    "bitwise": (lambda x: (x.long() & 3) << 1, (a,)),
    "tensor_split": (lambda x: x.tensor_split(4, 1), (a,)),
    "movedim": (lambda x: x.movedim(0, -1), (m3,)),
    "diff": (lambda x: x.diff(dim=1), (a,)),
    "histc": (lambda x: x.detach().histc(4), (a,)),
    "median": (lambda x: x.median(1)[0], (a,)),
    "kthvalue": (lambda x: x.kthvalue(2, 1)[0], (a,)),
    "multi_head": (lambda x: nn.functional.softmax(x @ x.transpose(1, 2), -1) @ x, (m3,)),
}

# These ops return a different memory layout on CUDA than on the CPU.
OTHER_STRIDES = {"linalg inverse", "linalg cholesky", "sdpa"}


def _set_slice(x: torch.Tensor) -> torch.Tensor:
    x[1:3] = 0.5
    x[:, 0] *= 2
    return x


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result for tensor in _tensors(part)]


def _compare(name: str, op: Op, shapes: tuple[tuple[int, ...], ...]) -> None:
    host = [torch.rand(shape).requires_grad_() for shape in shapes]
    device: list[Any] = [torch.rand(shape, device="cuda").requires_grad_() for shape in shapes]
    expected, found = _tensors(op(*host)), _tensors(op(*device))
    assert len(expected) == len(found)
    for want, have in zip(expected, found, strict=True):
        assert type(have) is VirtualTensor, type(have)
        assert have.device == torch.device("cuda", 0)
        assert (have.shape, have.dtype, have.requires_grad) == (want.shape, want.dtype, want.requires_grad)
        if name not in OTHER_STRIDES:
            assert have.stride() == want.stride(), (have.stride(), want.stride())
            assert have.storage_offset() == want.storage_offset()
        assert have.tensor_meta.shape == tuple(have.shape) and have.tensor_meta.stride == have.stride()
        shares_host = [want.untyped_storage()._cdata == x.untyped_storage()._cdata for x in host]
        shares_device = [have.allocation is x.allocation for x in device]
        assert shares_host == shares_device, "views of other arguments"
    total_host = sum(x.sum() for x in expected if x.requires_grad)
    total_device = sum(x.sum() for x in found if x.requires_grad)
    if isinstance(total_host, torch.Tensor):
        total_host.backward()
        assert isinstance(total_device, torch.Tensor)
        total_device.backward()
    for want, have in zip(host, device, strict=True):
        assert (have.grad is None) == (want.grad is None)
        if have.grad is not None and want.grad is not None:
            assert type(have.grad) is VirtualTensor
            assert have.grad.shape == want.grad.shape and have.grad.dtype == want.grad.dtype


def test_ops_agree_with_the_cpu() -> None:
    use()
    failures = []
    for name, (op, shapes) in OPS.items():
        for _ in range(2):  # the second call uses the cached plan
            try:
                _compare(name, op, shapes)
            except Exception:
                failures.append(f"--- {name}\n{traceback.format_exc(limit=-3)}")
                break
    assert not failures, f"{len(failures)} of {len(OPS)}\n" + "\n".join(failures)


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=0, max_size=4),
    ones=st.lists(st.booleans(), min_size=4, max_size=4),
    dropped=st.integers(0, 4),
    dtypes=st.tuples(*[st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool, torch.float64])] * 2),
    op=st.sampled_from([torch.add, torch.mul, torch.eq, torch.maximum, torch.true_divide]),
)
def _broadcast(shape: list[int], ones: list[bool], dropped: int, dtypes: tuple[torch.dtype, torch.dtype], op: Op) -> None:
    other = [1 if one else size for size, one in zip(shape, ones, strict=False)][min(dropped, len(shape)) :]
    want = op(torch.ones(shape).to(dtypes[0]), torch.ones(other).to(dtypes[1]))
    have = op(torch.ones(shape, device="cuda").to(dtypes[0]), torch.ones(other, device="cuda").to(dtypes[1]))
    assert (have.shape, have.dtype, have.stride()) == (want.shape, want.dtype, want.stride())


def test_broadcasting_and_type_promotion_agree_with_torch() -> None:
    use()
    _broadcast()


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    dims=st.sets(st.integers(0, 3)),
    keep=st.booleans(),
    flipped=st.booleans(),
    op=st.sampled_from([torch.sum, torch.mean, torch.amax, torch.amin, torch.logsumexp]),
)
def _reduce(shape: list[int], dims: set[int], keep: bool, flipped: bool, op: Op) -> None:
    chosen = sorted({dim % len(shape) for dim in dims}) or [0]
    host, device = torch.rand(shape), torch.rand(shape, device="cuda")
    if flipped:
        host, device = host.transpose(0, -1), device.transpose(0, -1)
    want, have = op(host, dim=chosen, keepdim=keep), op(device, dim=chosen, keepdim=keep)
    assert (have.shape, have.dtype, have.stride()) == (want.shape, want.dtype, want.stride())


def test_reductions_have_the_shapes_dtypes_and_strides_of_torch() -> None:
    use()
    _reduce()


# Each name has a call on a GPU tensor, and the error that an NVIDIA H200 with PyTorch 2.11 raised.
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a text chooses the kernel": (
        lambda x: x.cfloat().scatter_reduce(0, torch.zeros(3, dtype=torch.int64, device="cuda"), x.cfloat(), "mean"),
        "\"cuda_scatter_gather_base_kernel_func\" not implemented for 'ComplexFloat'",
    ),
    "without the target": (
        lambda x: x.to(torch.uint16).scatter_reduce(
            0, torch.zeros(3, dtype=torch.int64, device="cuda"), x.to(torch.uint16), "sum", include_self=False
        ),
        "\"scatter_reduce_exclude_input_init\" not implemented for 'UInt16'",
    ),
    "an empty tensor": (
        lambda x: torch.vdot(x[:0].byte(), x[:0].byte()),
        "\"dot\" not implemented for 'Byte'",
    ),
    "a float argument is no operand": (
        lambda x: torch.ops.aten.native_dropout_backward(x > 0, x > 0, 2.0),
        "\"masked_scale\" not implemented for 'Bool'",
    ),
    "a sparse product": (
        lambda x: torch.sparse.mm(torch.eye(3).half().to_sparse().cuda(), x.half()),
        "\"addmm_sparse_cuda\" not implemented for 'Half'",
    ),
    "a sparse sum with a product": (
        lambda x: torch.addmm(x.long(), torch.eye(3).long().to_sparse().cuda(), x.long()),
        "\"addmm_sparse_cuda\" not implemented for 'Long'",
    ),
    "a sparse product with autocast": (
        lambda x: torch.autocast("cuda", torch.bfloat16)(torch.sparse.mm)(torch.eye(3).to_sparse().cuda(), x),
        "\"addmm_sparse_cuda\" not implemented for 'BFloat16'",
    ),
    "sparse products of a batch": (
        lambda x: torch.bmm(torch.eye(3).bfloat16().expand(2, 3, 3).to_sparse().cuda(), x.bfloat16().expand(2, 3, 3)),
        "\"bmm_sparse_cuda\" not implemented for 'BFloat16'",
    ),
    "no sparse kernel": (
        lambda x: torch.sparse.mm(_csr(x.diag()), x.diag(), "amax"),
        "Could not run 'aten::_sparse_mm_reduce_impl' with arguments from the 'SparseCsrCUDA' backend",
    ),
    "an op of a CPU library": (
        lambda x: torch.ops.mkldnn._linear_pointwise(torch.eye(3).cuda(), torch.eye(3).cuda(), None, "none", [], ""),
        "Could not run 'mkldnn::_linear_pointwise' with arguments from the 'CUDA' backend",
    ),
    "a sort of complex numbers": (lambda x: x.cfloat().median(), "Sort does not support complex dtypes"),
    "no type to accumulate in": (
        lambda x: torch.native_layer_norm(x.to(torch.uint16), (3,), None, None, 1e-5),
        "Unrecognized ScalarType: UInt16",
    ),
}


# Each name has a call on GPU tensors in float32 and in another dtype, and the error that PyTorch 2.11 raised for float64 on the
# simulated device.
MIXED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "binary_cross_entropy": (F.binary_cross_entropy, "Found dtype Double but expected Float"),
    "cross": (torch.linalg.cross, "Found dtype Double but expected Float"),
    "bmm": (lambda x, y: x[None] @ y[None], "expected scalar type Float but found Double"),
    "group_norm": (lambda x, y: F.group_norm(x, 3, y[0], y[0]), "expect parameter to have scalar type of Float"),
    "complex": (torch.complex, "Expected object of scalar type Float but got scalar type Double for second argument"),
    "masked_scatter": (
        lambda x, y: x.masked_scatter(x > 0, y),
        "masked_scatter_: expected self and source to have same dtypes but got Float and Double",
    ),
    "embedding_bag": (
        lambda x, y: F.embedding_bag(torch.zeros(3, 3, device="cuda").long(), x, per_sample_weights=y, mode="sum"),
        "expected scalar type Float but found Double",
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_ops_that_require_equal_dtypes_reject_tensors_of_two_dtypes(name: str) -> None:
    use()
    call, error = MIXED[name]
    x = torch.ones(3, 3, device="cuda")
    call(x, x)
    with pytest.raises(RuntimeError, match=re.escape(error)):
        call(x, x.double())


def test_the_result_dtype_of_mixed_dtypes_is_that_of_the_cuda_kernel() -> None:
    """GIVEN float32 predictions and float64 targets THEN the losses are float32, as on a GPU."""
    use()
    x = torch.ones(3, 3, device="cuda")
    assert F.huber_loss(x, x.double()).dtype == F.soft_margin_loss(x, x.double()).dtype == torch.float32
    assert F.binary_cross_entropy_with_logits(x, x.half()).dtype == torch.float16


def _csr(matrix: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that this layout is in beta state.
        return matrix.to_sparse_csr()


@pytest.mark.parametrize("name", REFUSED)
def test_ops_reject_the_dtypes_that_an_h200_rejects(name: str) -> None:
    use()
    call, error = REFUSED[name]
    with pytest.raises(RuntimeError, match=re.escape(error)):
        call(torch.ones(3, device="cuda"))


def test_ops_accept_a_dtype_even_if_the_cpu_kernel_does_not() -> None:
    """The results have the dtypes that they have on a GPU."""
    use()
    words = torch.ones(2, 2, device="cuda").to(torch.uint16)
    index = torch.zeros(2, 2, dtype=torch.int64, device="cuda")
    assert words.gather(0, index).dtype == words.flip(0).dtype == torch.uint16
    assert torch.count_nonzero(words).dtype == torch.int64


def test_wrong_devices_and_shapes_raise_the_errors_of_cuda() -> None:
    use(devices=2)
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cuda:1!"):
        x + torch.ones(3, device="cuda:1")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.__array__()
    with pytest.raises(NotImplementedError, match=r"Tensor.__dlpack__ is not emulated by the virtual GPU: .*x\.cpu\(\)"):
        x.__dlpack__()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.pin_memory()
    wrong = 'storage of a tensor on device "cpu" to a storage on different device "cuda:0"'
    with pytest.warns(UserWarning, match="TypedStorage is deprecated"):
        typed = x.storage()
    for storage in (x.untyped_storage(), typed):
        with pytest.raises(RuntimeError, match=wrong):
            torch.empty(0).set_(storage)
        with pytest.raises(RuntimeError, match=wrong):
            torch.empty(0).new(storage)
    with pytest.raises(TypeError, match=r"cannot pin 'torch.storage.UntypedStorage' only CPU memory can be pinned"):
        x.untyped_storage().pin_memory()
    with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
        torch.lcm(x > 0, x > 0)
    small = torch.zeros(3, dtype=torch.uint16, device="cuda")
    with pytest.raises(NotImplementedError, match=r'"mul_cuda" not implemented for .UInt16.'):
        small * small
    with pytest.raises(NotImplementedError, match=r'"bitwise_and_cuda" not implemented for .UInt16.'):
        small & small
    offsets, columns = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2])
    with pytest.raises(RuntimeError, match=r"Values and crow_indices need to be on the same device\."):
        torch.sparse_csr_tensor(offsets, columns, x, (3, 3))
    with pytest.raises(RuntimeError, match=r"Values and row_indices need to be on the same device\."):
        torch.sparse_csc_tensor(offsets.cuda(), columns, x, (3, 3))
    with pytest.raises(RuntimeError, match=r"Expected result and input tensors .* on cuda:0 and input on cpu"):
        torch.linalg.vecdot(x, x, out=torch.tensor(0.0))
    assert (x + torch.tensor(2.0)).shape == (3,)  # a scalar on the host is allowed


def test_data_dependent_shapes_raise_an_error_with_constant_values() -> None:
    use()
    x = torch.rand(3, device="cuda")
    for name, op in {
        "nonzero": lambda: x.nonzero(),
        "masked_select": lambda: x.masked_select(x > 0),
        "index": lambda: x[x > 0],
        "_unique2": lambda: x.unique(),
        "unique_dim": lambda: torch.unique(x.view(3, 1), dim=0),
        "unique_consecutive": lambda: x.unique_consecutive(),
        "bincount": lambda: x.long().bincount(),
        "repeat_interleave": lambda: x.repeat_interleave(x.long()),
    }.items():
        with pytest.raises(DataDependentShape, match=f"aten::{name}: .*replay with --values compute"):
            op()


def test_small_ops_without_a_shape_rule_get_their_shapes_from_the_cpu() -> None:
    use()
    qr, tau = torch.geqrf(torch.rand(4, 3, device="cuda"))
    assert (qr.shape, tau.shape, qr.device.type) == ((4, 3), (3,), "cuda")
    with pytest.raises(NotEmulated, match="aten::geqrf"):
        torch.geqrf(torch.ones(1025, 1025, device="cuda"))


def test_foreach_ops_increment_version_counters_as_on_cuda() -> None:
    """On the simulated device, a plain optimizer step between two backward passes raises an error, but a fused optimizer's step
    does not."""
    use()
    weight = torch.ones(2, device="cuda")
    calls: list[tuple[Callable[[], object], int]] = [
        (lambda: torch._foreach_add_([weight], 1.0), 1),
        (lambda: torch._foreach_copy_([weight], [weight.clone()]), 1),
        (lambda: torch._foreach_zero_([weight]), 0),
        (lambda: torch._foreach_lerp_([weight], [weight.clone()], 0.5), 0),
        (lambda: torch._foreach_add([weight], 1.0), 0),
    ]
    for call, added in calls:
        before = weight._version
        call()
        assert weight._version - before == added


def test_a_gradient_can_be_deleted() -> None:
    use()
    for weight in (torch.ones(2, requires_grad=True), torch.ones(2, device="cuda", requires_grad=True)):
        weight.sum().backward()
        del weight.grad
        assert weight.grad is None
        with pytest.raises(RuntimeError, match="Deleting tensor data is not allowed"):
            del weight.data


def test_a_cpu_tensor_made_from_a_storage_has_the_elements_of_the_storage() -> None:
    use()
    x = torch.tensor([1.5, 2.5, 3.5, 4.5], device="cuda")
    memory = x.untyped_storage()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that typed storages are deprecated
        found = [torch.tensor(x.storage()), torch.as_tensor(memory, dtype=torch.float32)]
    assert all(made.is_cpu and made.tolist() == [1.5, 2.5, 3.5, 4.5] for made in found)
    assert torch.tensor(memory, device="cuda").is_cuda
    assert torch.tensor(memory).shape == (2,)  # without a dtype, PyTorch reads int64


def test_a_storage_with_the_wrong_dtype_is_rejected() -> None:
    use()
    data = torch.ones(2, device="cuda")
    expected = r"Expected a Storage of type float or .* but got type Half"
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match=expected):
        warnings.simplefilter("ignore")  # PyTorch warns that typed storages are deprecated
        data.set_(data.half().storage())


def test_the_error_for_assigning_a_list_names_the_cuda_type() -> None:
    use()
    data: Any = torch.ones(2, device="cuda", dtype=torch.int64)
    with pytest.raises(TypeError, match=r"can't assign a list to a torch\.cuda\.LongTensor"):
        data[0] = []


def test_the_virtual_gpu_can_be_the_default_device() -> None:
    use()
    torch.set_default_device("cuda")
    assert all(x.is_cuda for x in (torch.ones(2), torch.tensor([1.0]), nn.Linear(2, 2).weight))
    torch.set_default_device(None)
    with torch.device("cuda"):
        assert torch.zeros(2).is_cuda
    assert not torch.ones(2).is_cuda and not torch.tensor(1.0).is_cuda


def test_a_new_tensor_has_the_numbers_of_a_storage_on_the_gpu() -> None:
    use()
    x: Any = torch.arange(3.0, device="cuda")
    for like in (torch.ones(1), x):
        made = like.new_tensor(x.untyped_storage())
        assert made.tolist() == [0.0, 1.0, 2.0]
        assert made.device == like.device and made.dtype is torch.float32
    with pytest.raises(RuntimeError, match="Attempted to set the storage of a tensor on device"):
        torch.Tensor(x.untyped_storage())


def test_a_device_context_accepts_an_output_on_the_gpu() -> None:
    use()
    x = torch.ones(2, device="cuda")
    with torch.device("cuda"):
        assert torch.zeros(2, out=x) is x is torch.rand(2, out=x)
        with pytest.raises(RuntimeError, match="device type cuda does not match device type of out parameter"):
            torch.zeros(2, out=torch.ones(2, device="cpu"))


def test_resized_tensors_and_output_arguments_get_the_expected_memory() -> None:
    use()
    x: Any = torch.ones(3, device="cuda")
    out = torch.empty(0, device="cuda")
    assert torch.add(x, 1, out=out) is out and tuple(out.shape) == (3,) and out.data_ptr() != 0
    before = x.data_ptr()
    assert x.resize_(2).data_ptr() == before
    assert x.resize_(4096).data_ptr() != before and x.tensor_meta.shape == (4096,)
    rows = torch.empty(1 << 18, device="cuda")
    allocated = torch.cuda.memory_allocated()
    rows.resize_(1 << 19)
    assert torch.cuda.memory_allocated() == allocated + (1 << 20)
    assert tuple(torch.ones(2, 3, device="cuda").t_().shape) == (3, 2)
    assert tuple(torch.ones(2, 3, device="cuda").unsqueeze_(0).shape) == (1, 2, 3)
    y = torch.ones(6, device="cuda")
    x.data = y
    assert x.data_ptr() == y.data_ptr() and x.shape == y.shape
    x.set_(y.untyped_storage(), 2, (2,), (1,))
    assert x.data_ptr() == y.data_ptr() + 8


def test_set_accepts_a_layout_and_enlarges_a_storage_that_is_too_small() -> None:
    use(devices=2)
    x: Any = torch.empty(0, device="cuda")
    y = torch.ones(6, device="cuda")
    x.set_(y, 1, (2, 2), (3, 1))
    assert (x.data_ptr(), x.shape, x.stride()) == (y.data_ptr() + 4, (2, 2), (3, 1))
    x.set_(y.untyped_storage(), 0, (10,))
    assert y.untyped_storage().nbytes() == 40 and x.data_ptr() == y.data_ptr()
    assert x.set_(torch.ones(2, 3, device="cuda").untyped_storage()).shape == (6,)


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ((-1, (2,), (1,)), "Tensor: invalid storage offset -1"),
        ((0, (2,), (1, 1)), r"unequal size length \(1\) and stride length \(2\)"),
        ((0, (2, 2), (1, -1)), r"Storage size calculation overflowed with sizes=\[2, 2\] and strides=\[1, -1\]"),
        ((0, (2,), (-1,)), r"Storage size calculation overflowed with sizes=\[2\] and strides=\[-1\]"),
    ],
)
def test_set_rejects_an_invalid_layout(layout: Any, text: str) -> None:
    use(devices=2)
    x: Any = torch.empty(0, device="cuda")
    y = torch.ones(6, device="cuda")
    for source in (y, y.untyped_storage()):
        with pytest.raises(RuntimeError, match=text):
            x.set_(source, *layout)
    with pytest.raises(RuntimeError, match='device "cuda:1" to a storage on different device "cuda:0"'):
        torch.empty(0, device="cuda:1").set_(y.untyped_storage())
    with pytest.raises(RuntimeError, match='device "cuda:0" to a storage on different device "cpu"'):
        x.new(torch.ones(2).untyped_storage())


def test_set_rejects_a_storage_for_a_leaf_that_requires_grad() -> None:
    use()
    leaf: Any = torch.ones(2, device="cuda", requires_grad=True)
    storage = torch.ones(3, device="cuda").untyped_storage()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        leaf.set_(storage)
    with torch.no_grad():
        assert leaf.set_(storage).shape == (3,)


class Named(torch.Tensor):
    pass


def test_the_repr_of_a_virtual_tensor_is_that_of_a_cuda_tensor() -> None:
    use()
    x = torch.ones(2, device="cuda")
    assert repr(x) == "tensor([1., 1.], device='cuda:0')"
    assert repr(x.half()) == "tensor([1., 1.], device='cuda:0', dtype=torch.float16)"
    assert repr(x.requires_grad_() * 2) == "tensor([2., 2.], device='cuda:0', grad_fn=<MulBackward0>)"
    assert repr(nn.Parameter(torch.zeros(1, device="cuda"))) == (
        "Parameter containing:\ntensor([0.], device='cuda:0', requires_grad=True)"
    )
    row = "1., " * 11 + "1."  # with the device, this line would have more than 80 characters
    assert repr(torch.ones(2, 12, device="cuda").half().long() * 1.0) == (
        f"tensor([[{row}],\n        [{row}]], device='cuda:0')"
    )
    assert repr(torch.arange(10, 24, device="cuda").int()) == (
        "tensor([10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23],\n       device='cuda:0', dtype=torch.int32)"
    )
    sparse = torch.ones(1, device="cuda").to_sparse().requires_grad_() * 2
    assert repr(sparse).endswith("device='cuda:0', size=(1,), nnz=1, layout=torch.sparse_coo,\n       grad_fn=<MulBackward0>)")
    assert repr(x.detach().as_subclass(Named)) == "Named([1., 1.], device='cuda:0')"
    assert repr(torch.UntypedStorage(2, device="cuda")) == (
        " 0\n 0\n[torch.storage.UntypedStorage(device=cuda:0) of size 2]"
    )
    assert (x.type(), x.long().type()) == ("torch.cuda.FloatTensor", "torch.cuda.LongTensor")
    assert (x.is_cuda, x.is_cpu, x.is_meta, x.device.type, x.get_device()) == (True, False, False, "cuda", 0)
    assert f"{x.sum():.3f}" == "2.000"


def test_views_share_memory_with_the_correct_addresses() -> None:
    use()
    x: Any = torch.zeros(4, 6, device="cuda")
    assert x[1, 2].data_ptr() == x.data_ptr() + (6 + 2) * 4
    assert x[2:].allocation is x.allocation and x.detach().allocation is x.allocation
    assert x.clone().data_ptr() != x.data_ptr()
    assert x.untyped_storage().nbytes() == 96
    assert x.t().untyped_storage() == x.untyped_storage()


def test_a_custom_op_that_returns_its_argument_counts_as_a_kernel_launch() -> None:
    """An op launches no kernel only if its schema declares that it returns its argument."""
    gpu = use()
    library = torch.library.Library("unannounced", "DEF")
    library.define("fill_up(Tensor[] parts, Tensor whole) -> Tensor")
    library.define("look(Tensor(a) whole) -> Tensor(a)")
    library.impl("fill_up", lambda parts, whole: whole, "Meta")
    library.impl("look", lambda whole: whole.view(-1), "Meta")
    part, whole = torch.empty(4, device="cuda"), torch.empty(8, device="cuda")
    torch.ops.unannounced.look(whole)
    torch.ops.unannounced.fill_up([part, part], whole)
    assert gpu.launched == ["unannounced::fill_up"]


def test_assigning_one_element_and_copying_a_storage_wait_for_the_gpu() -> None:
    use()
    x = torch.zeros(4, device="cuda")
    with pytest.warns(UserWarning, match="prototype feature"):
        torch.cuda.set_sync_debug_mode("error")
    try:
        x[1:3] = 2.0  # a kernel fills this slice
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            x[0] = 1.0
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            x.untyped_storage().cpu()
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            x.untyped_storage().copy_(torch.zeros(4, device="cpu").untyped_storage())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    x[0] = 1
    x[torch.tensor([3], device="cuda")] = 5.0
    assert x.dtype == torch.float32


def test_conjugate_and_negative_views_share_memory_and_keep_their_bits() -> None:
    use()
    x = torch.tensor([1 + 2j, 3 + 4j], device="cuda", requires_grad=True)
    written = x.detach().clone()
    conj = written.conj()
    assert (conj.is_conj(), conj.imag.is_neg(), conj.conj().is_conj()) == (True, True, False)
    assert conj[1:].t().is_conj() and written[None].mH.is_conj()
    assert not any(made.is_conj() for made in (conj.resolve_conj(), conj * 1, conj.cpu()))
    assert conj.data_ptr() == written.data_ptr() != conj.resolve_conj().data_ptr()
    version = written._version
    conj[0] = torch.tensor(5 + 6j)
    conj.imag.mul_(2)
    assert written.tolist() == [5 - 12j, 3 + 8j] and conj.tolist() == [5 + 12j, 3 - 8j]
    assert written._version == conj._version > version
    with pytest.raises(RuntimeError, match="view_as_real doesn't work on unresolved conjugated tensors"):
        torch.view_as_real(conj)
    torch.vdot(x, x.conj()).real.backward()  # vdot(x, conj(x)) is the sum of conj(x) ** 2
    assert x.grad is not None and x.grad.tolist() == [2 - 4j, 6 - 8j]
    numbers = torch.full((2,), 3.0, device="cuda")
    negative = torch._neg_view(numbers)
    assert negative.is_neg() and negative.tolist() == negative.clone().tolist() == [-3.0, -3.0]
    negative[0] = 7.0
    assert numbers.tolist() == [-7.0, 3.0] and negative.resolve_neg().tolist() == [7.0, -3.0]


def test_assigning_data_also_assigns_the_conjugate_bit() -> None:
    use()
    x, y = (torch.tensor([value], device="cuda") for value in (1j, 2j))
    x.data = y.conj()
    assert x.is_conj() and (x * 1).tolist() == [-2j]
    x.data = y
    assert not x.is_conj() and (x * 1).tolist() == [2j]


def test_wrong_arguments_of_storages_have_the_error_messages_of_pytorch() -> None:
    use()
    storage: Any = torch.UntypedStorage([1, 2, 3, 255], device="cuda")
    on_host: Any = torch.UntypedStorage(4)
    wrong: list[Callable[[Any], Any]] = [
        lambda each: each[9],
        lambda each: each[-9],
        lambda each: each["a"],
        lambda each: each[True],
        lambda each: each[0:4:2],
        lambda each: each.__setitem__(0, "a"),
        lambda each: each.__setitem__(0, 1.5),
        lambda each: each.__setitem__(9, 1),
        lambda each: each.__setitem__("a", 1),
        lambda each: each.__setitem__(slice(0, 4, 2), 1),
        lambda each: each.__setitem__(slice(0, 2), on_host),
        lambda each: each.fill_("a"),
        lambda each: each.copy_(1),
        lambda each: each.copy_(torch.ones(4)),
        lambda each: each.copy_(torch.UntypedStorage(8)),
        lambda each: each.resize_("a"),
        lambda each: torch.UntypedStorage(4, 5, device=each.device),
    ]
    for call in wrong:
        with pytest.raises((IndexError, RuntimeError, TypeError)) as of_host:
            call(on_host)
        with pytest.raises(of_host.type) as of_device:
            call(storage)
        assert str(of_device.value) == str(of_host.value), call
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        torch.UntypedStorage(4, device="meta").to(device=storage.device)
    for too_large in (lambda: storage.resize_(-1), lambda: torch.UntypedStorage(-1, device="cuda")):
        with pytest.raises(torch.OutOfMemoryError, match="more than 1EB"):
            too_large()
    storage[-1], storage[0:2] = 300, -1
    assert (storage[-1], storage[1], storage[2]) == (44, 255, 3)


def test_from_dlpack_makes_a_view_of_a_virtual_tensor() -> None:
    use(devices=2)
    module: Any = torch
    x: Any = torch.ones(2, 3, device="cuda")
    for from_dlpack in (module.from_dlpack, torch.utils.dlpack.from_dlpack):
        view = from_dlpack(x.t())
        assert (view.data_ptr(), view.shape, view.stride(), view.device) == (x.data_ptr(), (3, 2), (1, 3), x.device)
        assert from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
        assert from_dlpack(x, device="cpu").device.type == "cpu"
        assert from_dlpack(torch.ones(2)).device.type == "cpu"
    assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLCUDA, 0)
    with pytest.raises(BufferError, match="require gradient"):
        module.from_dlpack(x.requires_grad_())
    with pytest.raises(BufferError, match="different CUDA device index"):
        module.from_dlpack(torch.ones(2, device="cuda:1"))
    with pytest.raises(NotImplementedError, match=r"Tensor\.__dlpack__ is not emulated"):
        module.utils.dlpack.to_dlpack(x)
    shown = x.detach().t().__cuda_array_interface__
    assert (shown["typestr"], shown["shape"], shown["strides"]) == ("<f4", (3, 2), (4, 12))
    assert shown["data"] == (x.data_ptr(), False)
    with pytest.raises(RuntimeError, match="on Variable that requires grad"):
        x.__cuda_array_interface__  # noqa: B018


def test_segments_are_given_by_lengths_or_by_offsets() -> None:
    """Two segments along the last dimension are given by two lengths or by three offsets."""
    use()
    data, ends = torch.ones(4, 5, 6, device="cuda"), torch.tensor([[0, 2, 5]] * 4, device="cuda")
    assert torch.segment_reduce(data, "sum", lengths=ends[:, 1:] - ends[:, :-1], axis=1).shape == (4, 2, 6)
    assert torch.segment_reduce(data, "sum", offsets=ends, axis=1).shape == (4, 2, 6)
    assert torch.segment_reduce(data, "sum", offsets=torch.tensor([0, 1, 4], device="cuda")).shape == (2, 5, 6)


def _calls_with_shape_rules(device: str) -> list[Callable[[], Any]]:
    """Return calls for which planning/shape_rules.py, and not PyTorch, computes the shapes of the results."""

    def f(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device=device)

    def i(*values: int) -> torch.Tensor:
        return torch.tensor(values, device=device)

    def recurrent(layer: Any, batch_first: bool, bidirectional: bool) -> Any:
        module = layer(3, 4, num_layers=2, batch_first=batch_first, bidirectional=bidirectional).to(device)
        return module(f(5, 2, 3))

    layers = [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM, partial(torch.nn.LSTM, proj_size=2)]
    scores, lengths = f(5, 2, 4).log_softmax(2), torch.tensor([3, 2], device="cpu")
    return [
        *[partial(recurrent, *how) for how in itertools.product(layers, (True, False), (True, False))],
        lambda: [F.ctc_loss(scores, f(2, 3).long(), lengths, lengths, reduction=how) for how in ("none", "mean")],
        lambda: torch._ctc_loss(scores, f(2, 3).long(), [5, 5], [3, 2]),
        lambda: torch._ctc_loss(scores, i(1, 2, 3, 1, 2), [5, 5], [3, 2])[0],  # all targets are in one row
        lambda: [F.multi_margin_loss(f(5, 4), i(0, 1, 2, 3, 0), reduction=how) for how in ("none", "sum")],
        lambda: [F.multilabel_margin_loss(f(2, 3), f(2, 3).long(), reduction=how) for how in ("none", "mean")],
        lambda: torch._foreach_addcmul([f(2), f(3)], [f(2), f(3)], [f(2), f(3)], torch.ones(2, device="cpu")),
        lambda: torch.linalg.lstsq(f(3, 4, 3).tril(), f(3, 4, 2), driver="gels")[:2],
        lambda: torch.linalg.lstsq(f(3, 4).tril(), f(3, 2), driver="gels")[:2],
        lambda: torch.poisson(f(2, 3).t()),
        lambda: torch.segment_reduce(f(6, 2), "sum", lengths=i(2, 4), axis=0),
        lambda: torch.segment_reduce(f(6, 2), "max", offsets=i(0, 1, 3, 6), axis=0),
        lambda: torch.batch_norm_update_stats(f(2, 3, 4), None, None, 0.1),
        lambda: F.conv2d(f(2, 4, 9, 7), f(6, 2, 3, 2), f(6), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2),
        lambda: F.conv_transpose2d(f(2, 4, 5, 6), f(4, 3, 3, 2), f(6), (2, 3), (1, 0), (1, 2), 2, (2, 1)),
        lambda: [F.mse_loss(f(2, 3), f(2, 3), reduction=how) for how in ("none", "mean")],
    ]


def test_results_have_the_shapes_and_dtypes_that_torch_gives_them() -> None:
    use()
    warnings.simplefilter("ignore")  # PyTorch warns that oneDNN has no projections
    for call, of_cpu in zip(_calls_with_shape_rules("cuda"), _calls_with_shape_rules("cpu"), strict=True):
        found, expected = ([(part.shape, part.dtype) for part in tensors_of(made())] for made in (call, of_cpu))
        assert found == expected and expected


def test_a_script_can_replace_all_attributes_of_a_tensor() -> None:
    use()
    x: Any = torch.arange(3.0, device="cuda")
    x.note = "before"
    x.__dict__ = {"other": 2}
    assert (vars(x), x.tolist(), hasattr(x, "note")) == ({"other": 2}, [0.0, 1.0, 2.0], False)
