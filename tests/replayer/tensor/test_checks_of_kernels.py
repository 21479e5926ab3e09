"""Tests the checks that CUDA kernels make of their arguments, at the limits of each check. Each test runs in a fork of an
interpreter that has imported torch (warm.py)."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from replayer.tensor.planning import mixed_dtypes
from replayer.tensor.tensor_meta import TensorMeta
from tests.replayer.fake_gpu import use


@pytest.mark.parametrize("name", ["int8", "float64"])
def test_the_virtual_gpu_rejects_the_same_overlapping_slices_as_torch(name: str) -> None:
    """GIVEN two slices of one tensor WHEN one is added to the other THEN the virtual GPU rejects the call if the CPU does. All
    pairs of slices with equal lengths are tested."""
    data = torch.ones(7, dtype=getattr(torch, name))

    def meta(begin: int, *shape: int, stride: tuple[int, ...] = (1,)) -> TensorMeta:
        return TensorMeta((shape, stride, begin, data.dtype, 0, False, False), torch.Tensor)

    for length in (1, 2, 3):
        for one, other in itertools.product(range(8 - length), repeat=2):
            if one == other:
                continue  # torch allows a complete overlap
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
    use()
    with pytest.raises(RuntimeError, match=says) if says else nullcontext():
        torch._int_mm(on_gpu(rows, inner, dtype=torch.int8), on_gpu(inner, columns, dtype=torch.int8))


@pytest.mark.parametrize(("capability", "is_refused"), [((8, 6), True), ((8, 9), False), ((9, 0), False)])
def test_scaled_products_need_compute_capability_8_9(capability: Any, is_refused: bool) -> None:
    use()
    one, other, scale = on_gpu(16, 16).to(torch.float8_e4m3fn), on_gpu(16, 16).to(torch.float8_e5m2), on_gpu(1)
    with patch.object(torch.cuda, "get_device_capability", lambda device: tuple(capability)):
        with pytest.raises(RuntimeError, match=r"compute capability >= 9\.0 or 8\.9") if is_refused else nullcontext():
            torch._scaled_mm(one, other.t(), scale, scale, out_dtype=torch.float16)
        with pytest.raises(RuntimeError, match="compute capability" if is_refused else "of two Float8_e5m2 matrices is not"):
            torch._scaled_mm(other, other.t(), scale, scale, out_dtype=torch.float16)


@pytest.mark.parametrize(
    ("channels", "last", "kernel"), [(4, True, "nhwc_out_frame"), (3, True, "out_frame"), (4, False, "out_frame")]
)
def test_nearest_upsampling_rejects_integers(channels: int, last: bool, kernel: str) -> None:
    use()
    data = on_gpu(2, channels, 3, 3, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=f"upsample_nearest2d_{kernel}.*'Int'"):
        F.interpolate(data.to(memory_format=torch.channels_last) if last else data, scale_factor=2)
    for dtype in (torch.uint8, torch.float16, torch.float64):
        assert F.interpolate(data.to(dtype), scale_factor=2).dtype is dtype
    with pytest.raises(RuntimeError, match="'Float8_e5m2'"):
        F.interpolate(data.to(torch.float8_e5m2), scale_factor=2)


def test_results_that_share_memory_with_an_input_are_rejected_as_on_a_gpu() -> None:
    """PyTorch makes these checks with `assert_no_overlap` and `assert_no_partial_overlap` in ATen/native."""
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


nn: Any = F
MANY = (1 << 28) + 1  # tensors of this size are too large for a trial call on the CPU


def on_gpu(*shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="cuda")


def wrong_calls(n: int, device: str) -> list[Callable[[], Any]]:
    """Return calls for which PyTorch's CPU and CUDA kernels raise the same error."""

    def f(*shape: int, dtype: Any = torch.float32) -> torch.Tensor:
        return torch.ones(shape, dtype=dtype, device=device)

    i, half, mask = partial(f, dtype=torch.int64), partial(f, dtype=torch.float16), partial(f, dtype=torch.bool)
    return [
        # These calls have wrong masks, conditions or indices.
        lambda: torch.where(half(n), 1.0, 0.0),
        lambda: torch.where(i(n), f(n), f(n)),
        lambda: f(1, n).masked_scatter_(mask(2, n), f(n)),
        lambda: f(n).masked_scatter(mask(3), f(n)),
        lambda: f(n).index_put_((i(3),), half(3)),
        lambda: f(n).__setitem__(i(3), f(4)),
        lambda: f(n).gather(0, i(n, 1)),
        lambda: f(n, 2).gather(1, i(n + 1, 2)),
        lambda: half(n).scatter_(0, i(n), f(n)),
        lambda: half(n, 2).scatter_(1, i(n, 2), half(n, 1)),
        lambda: half(n).scatter_add_(0, i(n), f(n)),
        lambda: f(n).index_add_(0, i(3), half(3)),
        lambda: f(n).index_add_(0, i(3), f(4)),
        lambda: f(n).index_copy_(0, i(3), half(3)),
        lambda: f(n).put_(f(2), f(2)),
        lambda: f(n).put_(i(2), half(2)),
        lambda: f(n).take(f(3)),
        lambda: f(n).repeat_interleave(i(n - 1)),
        lambda: F.one_hot(f(n)),
        lambda: torch.bucketize(f(n), f(2, 2)),
        lambda: torch.searchsorted(f(2, 3), f(3, n)),
        lambda: F.embedding(i(n), f(3)),
        # These indices and labels have a wrong dtype, which the error names.
        lambda: f(n).gather(0, f(3)),
        lambda: f(n).index_add_(0, f(3), f(3)),
        lambda: f(n).index_fill_(0, f(3), 1.0),
        lambda: f(n)[f(3)],
        lambda: F.nll_loss(f(n, 3), f(n)),
        lambda: F.max_unpool1d(f(1, 1, n), f(1, 1, n), [2]),
        # These calls have wrong numbers.
        lambda: half(n).fill_(1e5),
        lambda: f(n, dtype=torch.uint8).fill_(256),
        lambda: f(n).fill_(1j),
        lambda: nn.threshold_(half(n), 0.0, 1e6),
        lambda: torch.add(f(n), f(n), alpha=True),
        lambda: torch.sub(f(n), 1, alpha=True),
        lambda: torch.add(i(n), 1, alpha=2.5),
        lambda: i(n).pow_(-1),
        lambda: f(n, 2).renorm(2, 0, -1.0),
        lambda: f(n).geometric_(1.5),
        lambda: f(n).uniform_(1, 0),
        lambda: f(n).cauchy_(0, -1),
        lambda: f(n, dtype=torch.uint8).random_(0, 257),
        lambda: torch.multinomial(f(n, 2), 3),
        lambda: f(n).topk(n + 1),
        lambda: F.smooth_l1_loss(f(n), f(n), beta=-1.0),
        # These calls have wrong dtypes.
        lambda: mask(n) - mask(n),
        lambda: i(n).add_(0.5),
        lambda: i(n).div_(2),
        lambda: f(n, dtype=torch.complex64).clamp(0),
        lambda: torch.view_as_complex(f(n, 2, dtype=torch.bfloat16)),
        lambda: torch.aminmax(f(n), dim=0, out=(half(1), f(1))),
        lambda: torch.randint_like(half(n), torch.ones(2, dtype=torch.int64, device="cpu")),
        lambda: torch.dot(half(n), half(n).float()),
        lambda: torch.lerp(f(n), half(n), 0.5),
        lambda: torch.complex(f(n), half(n)),
        lambda: F.binary_cross_entropy(half(n), f(n)),
        lambda: torch.addmm(half(3), half(n, 3), f(3, 3)),
        lambda: torch.quantile(i(n), 0.5),
        # These calls have wrong shapes.
        lambda: f(n) + f(3),
        lambda: f(1, n).add_(f(2, n)),
        lambda: half(n, 3) @ half(4, 2),
        lambda: half(n, 3).mm(half(3)),
        lambda: half(n, 3).mv(half(4)),
        lambda: half(2, n, 3).bmm(half(2, 4, 3)),
        lambda: f(n).dot(f(n + 1)),
        lambda: F.linear(half(n, 3), half(2, 4)),
        lambda: torch.cat([half(n, 2), half(n, 3)]),
        lambda: torch.cat([f(n, 2), f(n)]),
        lambda: torch.stack([f(n), f(n + 1)]),
        lambda: f(n).softmax(2),
        lambda: f(n).sort(1),
        lambda: f(n).cumsum(1),
        lambda: f(n, 0).max(),
        lambda: f(n, 0).argmax(1),
        lambda: f(n).flip((0, 0)),
        lambda: torch.linalg.cross(f(n, 2), f(n, 2)),
        lambda: torch.linalg.cholesky(f(n, 2)),
        lambda: torch.linalg.lstsq(f(n, 2), f(n + 1, 2)),
        lambda: torch.linalg.inv(half(n, 2, 3).float()),
        lambda: torch.cdist(half(n, 2), half(2, 3)),
        # These calls of layers have wrong arguments.
        lambda: F.nll_loss(half(1, 3, n, 1), i(1, n, 1), half(2)),
        lambda: F.nll_loss(half(n, 3), i(n), half(2)),
        lambda: F.nll_loss(half(n, 3), i(n, 1)),
        lambda: F.conv1d(f(1, 2, n), f(4, 2, 3), f(3)),
        lambda: F.conv1d(f(1, 2, n), f(4, 2, 3), stride=0),
        lambda: F.conv1d(f(1, 2, n), f(4, 2, 3), padding=-1),
        lambda: F.conv1d(f(1, 2, n), f(4, 3, 3)),
        lambda: F.conv1d(f(1, 2, n), f(5, 1, 3), groups=2),
        lambda: F.conv2d(half(1, 2, n, 2), half(5, 2, 3, 3)),
        lambda: F.conv_transpose1d(f(1, 2, n), f(3, 4, 3)),
        lambda: F.conv_transpose1d(f(1, 2, n), f(2, 3, 3), f(2), groups=2),
        lambda: F.max_pool1d(half(1, n, 3), 2, padding=2),
        lambda: F.interpolate(f(1, 1, n), size=0),
        lambda: F.pixel_shuffle(half(3, n, 1), 2),
        lambda: F.layer_norm(half(n, 3), (2,)),
        lambda: F.layer_norm(half(n, 3), (3,), half(2)),
        lambda: F.group_norm(half(n, 3), 2),
        lambda: F.batch_norm(half(n, 3), half(2), half(2)),
        lambda: F.glu(half(n, 3)),
        lambda: F.prelu(half(n, 3), half(2)),
    ]


def test_a_wrong_call_raises_the_torch_error_for_small_and_large_tensors() -> None:
    use()

    def errors(n: int, device: str) -> list[str]:
        found = []
        for call in wrong_calls(n, device):
            try:
                call()
                found.append("accepted")
            except (RuntimeError, IndexError) as error:
                said = str(error).replace(str(n + 1), "n + 1").replace(str(n - 1), "n - 1").replace(str(n), "n")
                found.append(f"{type(error).__name__}: {said}")
        return found

    of_torch = errors(37, "cpu")
    assert "accepted" not in of_torch
    assert errors(37, "cuda") == of_torch
    assert errors(MANY, "cuda") == of_torch


def test_a_rejected_call_does_not_keep_its_tensors() -> None:
    """GIVEN Python without garbage collection WHEN a script catches the error of a call THEN the call has left no GPU memory
    allocated."""
    use()

    def kept_bytes(n: int) -> list[int]:
        found = []
        for call in wrong_calls(n, "cuda"):
            before = torch.cuda.memory_allocated()
            with suppress(RuntimeError, IndexError):
                call()
            found.append(torch.cuda.memory_allocated() - before)
        return found

    kept_bytes(37)  # in these first calls PyTorch imports modules, and that keeps frames alive
    gc.collect()
    gc.disable()
    assert set(kept_bytes(38)) == set(kept_bytes(MANY)) == {0}


def test_large_calls_with_interdependent_sizes_are_accepted() -> None:
    """In these calls, smaller sizes would break a relation between sizes, such as the number of blocks in an image."""
    use()
    half = partial(on_gpu, dtype=torch.float16)
    images, labels = half(128, 64, 190, 190), on_gpu(128, 100, dtype=torch.int64)
    assert F.group_norm(half(128, 96, 224, 112), 24).shape == (128, 96, 224, 112)
    assert F.pixel_shuffle(half(128, 48, 210, 210), 4).shape == (128, 3, 840, 840)
    assert F.unfold(half(64, 64, 256, 272), 16, stride=16).shape == (64, 64 * 256, 16 * 17)
    assert F.fold(half(128, 64 * 9, 4096), (66, 66), 3).shape == (128, 64, 66, 66)
    assert F.conv2d(images, half(9, 64, 11, 11), padding=50, dilation=12, stride=16).shape == (128, 9, 11, 11)
    assert F.max_pool2d(images, 31, 17, 15).shape == (128, 64, 12, 12)
    assert F.interpolate(half(64, 64, 280, 280), size=(250, 333)).shape == (64, 64, 250, 333)
    assert F.ctc_loss(on_gpu(2000, 128, 1100), labels, torch.full((128,), 1900), torch.full((128,), 90)).dim() == 0


def test_numbers_at_the_limits_of_a_dtype_are_accepted() -> None:
    use()
    half, mask = on_gpu(3, dtype=torch.float16), on_gpu(3, dtype=torch.bool)
    for value in (65504.0, float("inf")):
        half.fill_(value)
    on_gpu(3, dtype=torch.complex64).fill_(1j)
    assert torch.add(half, 2, alpha=1).dtype is torch.float16 and torch.add(mask, mask, alpha=True).dtype is torch.bool
    with pytest.raises(RuntimeError, match="Expected object of scalar type Long as out, but got int"):
        torch.nonzero(half, out=on_gpu(3, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        F.embedding_bag(mask.long()[None], on_gpu(4, 2), per_sample_weights=half[None], mode="sum")


def test_short_time_fourier_transforms_accept_half_precision() -> None:
    use()
    warnings.simplefilter("ignore")  # PyTorch warns that complex half precision is experimental
    signal, window = torch.ones(64, device="cuda").half(), torch.ones(16, device="cuda").half()
    spectrum = torch.stft(signal, 16, window=window, return_complex=True)
    assert (spectrum.dtype, spectrum.shape) == (torch.complex32, (9, 17))
    assert torch.istft(spectrum, 16, window=window).dtype is torch.float16
    with pytest.raises(RuntimeError, match="sizes are powers of two"):
        torch.stft(signal, 12, return_complex=True)


@pytest.mark.parametrize("columns", [[0, 1], [0, 7]])
def test_indices_of_a_sparse_tensor_are_checked_if_the_script_asks_for_it(columns: list[int]) -> None:
    use()
    warnings.simplefilter("ignore")  # PyTorch warns that sparse CSR tensors are in beta state
    rows, values = torch.tensor([0, 1, 2]).cuda(), torch.ones(2).cuda()
    expected: Any = nullcontext()
    if columns[1] > 1:
        expected = pytest.raises(RuntimeError, match="`0 <= col_indices < ncols` is not satisfied")
    with expected:
        sparse = torch.sparse_csr_tensor(rows, torch.tensor(columns).cuda(), values, (2, 2), check_invariants=True)
        assert sparse.is_cuda and sparse.shape == (2, 2)
