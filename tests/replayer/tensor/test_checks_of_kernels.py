"""Checks of arguments that CUDA kernels make, at their bounds. Runs in the warm interpreter."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from replayer.tensor.planning import mixed_dtypes
from replayer.tensor.tensor_meta import TensorMeta
from tests.replayer.fake_gpu import use


@pytest.mark.parametrize("name", ["int8", "float64"])
def test_overlapping_slices_are_rejected_as_by_torch(name: str) -> None:
    """GIVEN all pairs of slices with the same length WHEN one is added to the other on the CPU THEN torch refuses the pairs
    that the virtual GPU refuses."""
    data = torch.ones(7, dtype=getattr(torch, name))

    def meta(begin: int, *shape: int, stride: tuple[int, ...] = (1,)) -> TensorMeta:
        return TensorMeta(shape, stride, begin, data.dtype, 0, False, False, torch.Tensor)

    for length in (1, 2, 3):
        for one, other in itertools.product(range(8 - length), repeat=2):
            if one == other:
                continue  # the whole slice overlaps
            try:
                data[one : one + length].add_(data[other : other + length])
                is_refused = False
            except RuntimeError:
                is_refused = True
            assert mixed_dtypes.overlap_in_part(meta(one, length), meta(other, length)) == is_refused
    assert not mixed_dtypes.overlap_in_part(meta(2, 2), meta(2, 2))
    assert mixed_dtypes.overlap_in_part(meta(2, 2, 2, stride=(2, 1)), meta(2, 2, 2, stride=(1, 2)))


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "says"),
    [
        (17, 8, 8, None),
        (16, 8, 8, r"self.size\(0\) needs to be greater than 16, but got 16"),
        (17, 0, 8, r"self.size\(1\) needs to be greater than 0 and a multiple of 8, but got 0"),
        (17, 12, 8, r"self.size\(1\) needs to be greater than 0 and a multiple of 8, but got 12"),
        (17, 8, 0, r"mat2.size\(1\) needs to be greater than 0 and a multiple of 8, but got 0"),
        (17, 8, 12, r"mat2.size\(1\) needs to be greater than 0 and a multiple of 8, but got 12"),
    ],
)
def test_matrix_products_of_int8_reject_the_sizes_that_cuda_rejects(
    rows: int, inner: int, columns: int, says: str | None
) -> None:
    one, other = torch.zeros(rows, inner, dtype=torch.int8), torch.zeros(inner, columns, dtype=torch.int8)
    if says is None:
        mixed_dtypes._int_mm(one, other)
    else:
        with pytest.raises(RuntimeError, match=says):
            mixed_dtypes._int_mm(one, other)


@pytest.mark.parametrize(("capability", "is_refused"), [((8, 6), True), ((8, 9), False), ((9, 0), False)])
def test_scaled_products_need_compute_capability_8_9(capability: Any, is_refused: bool) -> None:
    on_gpu: Any = SimpleNamespace(is_cuda=True, get_device=lambda: 0, dtype=torch.float8_e4m3fn)
    other: Any = SimpleNamespace(is_cuda=False, dtype=torch.float8_e5m2)
    with patch.object(torch.cuda, "get_device_capability", lambda device: tuple(capability)):
        mixed_dtypes._scaled_mm(torch.zeros(2), other)  # on the CPU
        if not is_refused:
            mixed_dtypes._scaled_mm(on_gpu, other)
            with pytest.raises(RuntimeError, match="Multiplication of two Float8_e5m2 matrices is not supported"):
                mixed_dtypes._scaled_mm(other, other)
            return
        with pytest.raises(RuntimeError, match=r"compute capability >= 9\.0 or 8\.9"):
            mixed_dtypes._scaled_mm(on_gpu, other)


def test_weights_per_sample_have_the_dtype_of_the_table() -> None:
    table, indices = torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64)
    options = (indices, False, 0, False)
    mixed_dtypes._embedding_bag(table, indices, *options)
    mixed_dtypes._embedding_bag(table, indices, *options, torch.zeros(3))
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        mixed_dtypes._embedding_bag(table, indices, *options, torch.zeros(3, dtype=torch.float16))


@pytest.mark.parametrize(
    ("channels", "last", "kernel"), [(4, True, "nhwc_out_frame"), (3, True, "out_frame"), (4, False, "out_frame")]
)
def test_nearest_upsampling_rejects_integers(channels: int, last: bool, kernel: str) -> None:
    data = torch.zeros(2, channels, 3, 3, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=f"upsample_nearest2d_{kernel}.*'Int'"):
        mixed_dtypes._nearest(data.contiguous(memory_format=torch.channels_last) if last else data)
    for dtype in (torch.uint8, torch.float16, torch.float64):
        mixed_dtypes._nearest(data.to(dtype))
    with pytest.raises(RuntimeError, match="'Float8_e5m2'"):
        mixed_dtypes._nearest(data.to(torch.float8_e5m2))


def test_fused_optimizers_need_floats_of_two_or_more_bytes() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        mixed_dtypes._require_floats("fused_adam_kernel_cuda", [torch.zeros(2, dtype=dtype)])
    for wrong in (torch.int32, torch.float8_e5m2):
        with pytest.raises(RuntimeError, match="fused_adam_kernel_cuda"):
            mixed_dtypes._require_floats("fused_adam_kernel_cuda", [torch.zeros(2).to(wrong)])
    mixed_dtypes._require_floats("fused_adam_kernel_cuda", [])


def test_results_that_share_memory_with_an_input_are_rejected_as_on_a_gpu() -> None:
    """The calls of `assert_no_overlap` and `assert_no_partial_overlap` in ATen/native."""
    use()
    at, calls = torch.tensor([0, 1], device="cuda"), dict[str, list[Any]]()
    calls["refused"] = [
        lambda x: x[:2].copy_(x[1:]),
        lambda x: torch.gather(x, 0, at, out=x[1:]),
        lambda x: torch.gather(x[:2], 0, at, out=x[:2]),
        lambda x: torch.index_select(x, 0, at, out=x[1:]),
        lambda x: x.index_copy_(0, at, x[1:]),
        lambda x: x.index_put_((at,), x[1:]),
        lambda x: x[:2].scatter_(0, at, x[:2]),
        lambda x: torch.stack([x[0], x[1]], out=x[1:]),
        lambda x: torch.sort(x[:2], out=(x[1:], at)),
        lambda x: torch.cat([x[:1], x[1:2]], out=x[:2]),
        lambda x: torch.kthvalue(x, 1, 0, True, out=(x[:1], at[:1])),
    ]
    calls["accepted"] = [
        lambda x: x[:2].copy_(x[:2]),
        lambda x: torch.sort(x[:2], out=(x[:2], at)),
        lambda x: torch.cumsum(x[:2], 0, out=x[1:]),
        lambda x: torch.topk(x, 2, out=(x[1:], at)),
        lambda x: torch.cat([x[:1], x[:1]], out=x[1:]),
        lambda x: torch.full((3, 3), 1.0, out=x.expand(3, 3)),
    ]
    for call in calls["refused"]:
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            call(torch.ones(3, device="cuda"))
    for call in calls["accepted"]:
        call(torch.ones(3, device="cuda"))


_HALF, _INTEGERS = torch.zeros(1, dtype=torch.float16), torch.zeros(1, dtype=torch.int64)
_CHECKED: list[tuple[Callable[[], None], str]] = [
    (lambda: mixed_dtypes._require_scalars_fit(_HALF, 65504.0), ""),  # the largest number
    (lambda: mixed_dtypes._require_scalars_fit(_HALF, 1.0, 1e30), "type c10::Half without overflow"),
    (lambda: mixed_dtypes._require_scalars_fit(_HALF, float("inf")), ""),
    (lambda: mixed_dtypes._require_scalars_fit(_INTEGERS.to(torch.uint8), 300), "type uint8_t without overflow"),
    (lambda: mixed_dtypes._alpha(_HALF, _HALF, alpha=True), "Boolean alpha only supported for Boolean results"),
    (lambda: mixed_dtypes._alpha(_HALF, 2, alpha=1), ""),
    (lambda: mixed_dtypes._alpha(_HALF.bool(), _HALF.bool(), alpha=True), ""),
    (lambda: mixed_dtypes._require_scalars_fit(_HALF.float(), 1j), "type float without overflow"),
    (lambda: mixed_dtypes._require_scalars_fit(_HALF.to(torch.complex64), 1j), ""),
    (lambda: mixed_dtypes._nonzero(_HALF, out=_INTEGERS.int()), "Expected object of scalar type Long as out, but got int"),
    (lambda: mixed_dtypes._nonzero(_HALF, out=_INTEGERS), ""),
]


@pytest.mark.parametrize("row", range(len(_CHECKED)))
def test_scalars_and_results_are_checked_as_by_cuda_kernels(row: int) -> None:
    call, says = _CHECKED[row]
    with pytest.raises(RuntimeError, match=says) if says else nullcontext():
        call()


def test_short_time_fourier_transforms_accept_half_precision() -> None:
    use()
    warnings.simplefilter("ignore")  # complex half precision is experimental
    signal, window = torch.ones(64, device="cuda").half(), torch.ones(16, device="cuda").half()
    spectrum = torch.stft(signal, 16, window=window, return_complex=True)
    assert (spectrum.dtype, spectrum.shape) == (torch.complex32, (9, 17))
    assert torch.istft(spectrum, 16, window=window).dtype is torch.float16
    with pytest.raises(RuntimeError, match="sizes are powers of two"):
        torch.stft(signal, 12, return_complex=True)


@pytest.mark.parametrize("columns", [[0, 1], [0, 7]])
def test_indices_of_a_sparse_tensor_are_checked_if_the_script_asks_for_it(columns: list[int]) -> None:
    use()
    warnings.simplefilter("ignore")  # sparse CSR tensors are in beta state
    rows, values = torch.tensor([0, 1, 2]).cuda(), torch.ones(2).cuda()
    expected: Any = nullcontext()
    if columns[1] > 1:
        expected = pytest.raises(RuntimeError, match="`0 <= col_indices < ncols` is not satisfied")
    with expected:
        sparse = torch.sparse_csr_tensor(rows, torch.tensor(columns).cuda(), values, (2, 2), check_invariants=True)
        assert sparse.is_cuda and sparse.shape == (2, 2)
