# mypy: allow-untyped-calls
"""Tests gradients that a script assigns, and tensors that share memory through DLPack."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from replayer.errors import NotEmulated
from tests.replayer.fake_gpu import use

DLPACK: Any = torch.utils.dlpack


def test_a_gradient_is_on_the_same_device_type_as_its_tensor() -> None:
    use()
    on_device, on_host = torch.zeros(2, device="cuda"), torch.zeros(2)
    for x in (on_device, on_host):
        x.grad = torch.ones_like(x)
        assert x.grad is not None and x.grad.device == x.device
        x.grad = None
        assert x.grad is None
    with pytest.raises(RuntimeError, match="a gradient with device type 'cpu' to a tensor with device type 'cuda'"):
        on_device.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="a gradient with device type 'cuda' to a tensor with device type 'cpu'"):
        on_host.grad = torch.ones(2, device="cuda")


def test_asarray_without_a_copy_names_the_device_cuda_in_its_error() -> None:
    """GIVEN a tensor on the first GPU WHEN a script calls torch.asarray with copy=False and the second GPU THEN the error
    names both GPUs "cuda", as PyTorch does."""
    use(devices=2)
    x = torch.ones(3, device="cuda")
    with pytest.raises(ValueError, match=r"^can't alias tensor from device 'cuda:0' to 'cuda:1'\.$"):
        torch.asarray(x, copy=False, device="cuda:1")
    assert torch.asarray(x, copy=False, device="cuda:0").data_ptr() == x.data_ptr()


def test_only_torch_shares_the_memory_of_a_virtual_tensor() -> None:
    use()
    x = torch.ones(3, device="cuda")
    same = DLPACK.from_dlpack(x)
    assert same.is_cuda and same.data_ptr() == x.data_ptr()
    with pytest.raises(NotEmulated, match="a virtual tensor has no memory to share"):
        DLPACK.to_dlpack(x)
    host = torch.ones(3)
    assert DLPACK.from_dlpack(host).data_ptr() == host.data_ptr()
    assert DLPACK.from_dlpack(DLPACK.to_dlpack(host)).data_ptr() == host.data_ptr()
