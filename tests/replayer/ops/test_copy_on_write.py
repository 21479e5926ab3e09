# mypy: allow-untyped-calls
"""Tests the memory that a tensor shares with its lazy clones, as PyTorch tests `_lazy_clone` (test/test_torch.py)."""

from __future__ import annotations

import torch

from replayer import state
from tests.replayer.fake_gpu import use


def test_a_tensor_and_its_lazy_clone_share_memory_until_one_is_written() -> None:
    gpu = use()
    allocator = state.gpu().devices[0].allocator
    x = torch.tensor([1.0, 2.0], device="cuda")
    before, address = gpu.launched_ops[:], x.data_ptr()
    clone: torch.Tensor = x._lazy_clone()
    view = x.view(2, 1)
    addresses = torch._C._data_address  # type: ignore[attr-defined]
    is_shared = torch._C._is_cow_tensor  # type: ignore[attr-defined]
    assert gpu.launched_ops == before
    assert addresses(clone) == addresses(x) == address and is_shared(x) and is_shared(clone)
    assert (x + clone).tolist() == [2.0, 4.0] and is_shared(x)
    view += 1
    assert not is_shared(x) and is_shared(clone)
    assert addresses(x) == addresses(view) != address and x.tolist() == [2.0, 3.0]
    clone.zero_()  # the last tensor with this memory keeps it
    assert not is_shared(clone) and addresses(clone) == address and clone.tolist() == [0.0, 0.0]
    allocated = allocator.flush().usage.allocated_bytes
    del clone
    assert allocator.flush().usage.allocated_bytes == allocated - 512
