# mypy: allow-untyped-calls
"""Tests that functions that create tensors do the same on the virtual GPU as on the CPU. Each test runs in a fork of an
interpreter that has imported torch (warm.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from replayer.errors import NotEmulated
from replayer.tensor.tensor import VirtualTensor
from tests.replayer.fake_gpu import use


def test_tensors_are_created_on_the_requested_gpu() -> None:
    use(devices=2)
    made = {
        "empty": torch.empty(2, 3, device="cuda"),
        "channels last": torch.empty(2, 3, 4, 5, device="cuda", memory_format=torch.channels_last),
        "zeros": torch.zeros(2, dtype=torch.int32, device="cuda:0"),
        "randn": torch.randn((2, 3), device=torch.device("cuda")),
        "rand generator": torch.rand(2, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1)),
        "randint": torch.randint(0, 9, (4,), device="cuda"),
        "randperm": torch.randperm(5, device="cuda"),
        "arange": torch.arange(1, 7, 2, device="cuda"),
        "linspace": torch.linspace(0, 1, 5, device="cuda"),
        "eye": torch.eye(3, device="cuda"),
        "full": torch.full((2, 2), 3, device="cuda"),
        "tensor": torch.tensor([[1, 2], [3, 4]], device="cuda"),
        "as_tensor": torch.as_tensor([1.0], device="cuda"),
        "tril_indices": torch.tril_indices(3, 3, device="cuda"),
        "normal": torch.normal(0.0, 1.0, (2, 3), device="cuda"),
        "hann_window": torch.hann_window(8, device="cuda"),
    }
    for name, tensor in made.items():
        assert type(tensor) is VirtualTensor and tensor.device == torch.device("cuda:0"), name
    assert made["channels last"].is_contiguous(memory_format=torch.channels_last)
    assert made["full"].dtype == made["tensor"].dtype == torch.int64
    assert tuple(made["tril_indices"].shape) == (2, 6)
    assert torch.zeros(2, device="cuda:1").get_device() == 1
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(2, device="cuda:2")


def test_factories_reject_a_device_that_does_not_exist() -> None:
    use()
    data = torch.ones(2, device="cuda")
    for make in (torch.empty_like, torch.zeros_like, lambda x, device: x.new_empty(3, device=device)):
        with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
            make(data, device="cuda:4")


def test_new_quantized_tensors_are_not_emulated() -> None:
    use()
    options: Any = {"dtype": torch.qint8, "device": "cuda"}
    for make in (torch.empty, partial(torch._empty_affine_quantized, scale=1, zero_point=0)):
        with pytest.raises(NotEmulated, match="a quantised tensor"):
            make([2], **options)


@pytest.mark.parametrize(("name", "number"), [("float32", "nan"), ("int8", "127"), ("complex64", "(nan+0j)"), ("bool", "True")])
def test_deterministic_algorithms_fill_new_memory(name: str, number: str) -> None:
    use()
    torch.use_deterministic_algorithms(True)
    try:
        made = torch.empty(2, device="cuda", dtype=getattr(torch, name))
    finally:
        torch.use_deterministic_algorithms(False)
    assert [str(value) for value in made.tolist()] == [number] * 2


def test_deterministic_algorithms_fill_the_memory_of_tensors_created_by_empty_like_functions() -> None:
    """PyTorch fills this memory in `fill_empty_deterministic_` and `fill_resize_deterministic_`."""
    use()
    x: Any = torch.zeros(2, 3, device="cuda")
    setting: Any = torch.utils.deterministic
    calls: list[Callable[[], torch.Tensor]] = [
        lambda: torch.empty_like(x),
        lambda: torch.empty_like(x, device="cpu"),
        lambda: x.new_empty(4),
        lambda: x.new_empty_strided((2, 2), (1, 2)),
        lambda: torch.empty_permuted((2, 1), (1, 0), device="cuda"),
        lambda: torch.zeros(0, device="cuda").resize_(3),
        lambda: torch.zeros(0, device="cuda").resize_as_(x),
    ]
    torch.use_deterministic_algorithms(True)
    try:
        filled = [call() for call in calls]
        before = x.data_ptr()
        assert x.resize_(3, 2).data_ptr() == before and x.stride() == (2, 1)
        setting.fill_uninitialized_memory = False
        unfilled = torch.empty_like(x)
    finally:
        setting.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)
    assert all(str(value) == "nan" for made in filled for value in made.flatten().tolist())
    assert filled[3].stride() == (1, 2) and filled[6].shape == (2, 3)
    assert "nan" not in str(unfilled.tolist())


@pytest.mark.parametrize("name", ["tril_indices", "triu_indices"])
def test_tril_and_triu_indices_are_those_of_the_cpu(name: str) -> None:
    """CUDA has these kernels only for integers of 32 and 64 bits (native/cuda/TensorFactories.cu). Empty results need no
    kernel."""
    use()
    make: Any = getattr(torch, name)
    for dtype in (None, torch.int64, torch.int32):
        assert torch.equal(make(3, 4, 1, dtype=dtype, device="cuda").cpu(), make(3, 4, 1, dtype=dtype or torch.int64))
    with pytest.raises(RuntimeError, match=f"{name}_cuda.* not implemented for 'Short'"):
        make(3, 4, dtype=torch.int16, device="cuda")
    assert make(0, 4, dtype=torch.int16, device="cuda").shape == (2, 0)


def test_a_sparse_tensor_is_created_from_indices_and_values() -> None:
    use()
    indices, values = torch.tensor([[0, 1], [2, 0]]), torch.tensor([3.0, 4.0])
    made = torch.sparse_coo_tensor(indices.cuda(), values.cuda(), (2, 3), check_invariants=True)
    assert made.device == torch.device("cuda:0") and made.to_dense().cpu().tolist() == [[0, 0, 3], [4, 0, 0]]
    of_size: Any = torch.sparse_coo_tensor
    empty = of_size(size=(2, 3), device="cuda", check_invariants=True)
    assert (empty.device.type, empty.shape, empty._nnz()) == ("cuda", (2, 3), 0)


def test_an_in_place_op_changes_the_sizes_and_the_memory_of_a_sparse_tensor() -> None:
    use()
    x = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2]] * 2), torch.ones(3), (3, 3), check_invariants=False).cuda()
    assert x.sparse_resize_((4, 5), 2, 0) is x
    assert (x.shape, x._nnz(), x.to_dense().shape) == ((4, 5), 3, (4, 5))
    assert (x @ torch.ones(5, 2, device="cuda")).shape == (4, 2)
    x.sparse_resize_and_clear_((2, 2), 2, 0)
    assert (x.shape, x._nnz(), len(x.parts)) == ((2, 2), 0, 2)  # type: ignore[attr-defined]
    one = torch.sparse_coo_tensor(torch.tensor([[0, 1]] * 2), torch.ones(2), (2, 2), check_invariants=False)
    assert x.add_(one.cuda())._nnz() == 2
    assert [part.size_bytes for part in x.parts.values()] == [32, 8]  # type: ignore[attr-defined]


def test_a_written_part_of_new_memory_has_known_values() -> None:
    """DeepSpeed's pipeline writes a tensor's shape to a part of a new buffer, and sends the buffer to the next stage."""
    use()
    source = torch.ones(8, device="cuda")
    for made in (torch.empty(8, dtype=torch.int32, device="cuda"), source.new_empty(8, dtype=torch.int64)):
        made[:3].copy_(torch.tensor([4, 5, 6]))
        made[4] = 7
        assert made[:3].tolist() == [4, 5, 6] and made[4].item() == 7
