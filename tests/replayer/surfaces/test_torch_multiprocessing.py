# mypy: allow-untyped-calls
"""Tests tensors that are sent to another process with torch.multiprocessing or RPC. Each test runs in a fork of an interpreter
that has imported torch (warm.py)."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from multiprocessing.reduction import ForkingPickler
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.distributed import rpc

from replayer.errors import NotEmulated
from tests.replayer.fake_gpu import use


def sent(value: Any) -> Any:
    """Return the object that the receiver gets from the queue."""
    return ForkingPickler.loads(ForkingPickler.dumps(value))


def test_another_process_receives_tensors_that_share_memory() -> None:
    gpu = use()
    x, count = torch.ones(4, 4, device="cuda"), torch.tensor([3, 5], device="cuda")
    before = gpu.devices[0].memory.usage.allocated_bytes
    got, row, found = sent((x, x[1], count))
    assert got.device == x.device and got.shape == (4, 4) and row.stride() == (1,) and found.tolist() == [3, 5]
    assert got.data_ptr() == x.data_ptr() and row.data_ptr() == x[1].data_ptr()
    assert got.untyped_storage() == row.untyped_storage()
    del x, count
    # The sender has freed its memory, and the receiver has allocated none.
    assert gpu.devices[0].memory.usage.allocated_bytes < before


def test_another_process_knows_which_values_are_assumed() -> None:
    """GIVEN a recorded value of 7 WHEN another process reads a received number of correct predictions THEN it is 7, because the
    sender only assumed the number."""
    gpu = use()
    correct = (torch.rand(3, 7, device="cuda").argmax(1) == torch.tensor([3, 6, 0], device="cuda")).sum(0, keepdim=True)
    five = torch.tensor([5], device="cuda")
    received, exact = sent((torch.cat([correct, five]), torch.cat([five, five + 1])))
    with mock.patch.object(gpu.values, "read", return_value=[7.0]):
        assert (received[0].item(), exact[0].item()) == (7, 5)


def test_a_shared_model_trains_in_another_process() -> None:
    use()
    model = sent(nn.Linear(4, 2).cuda().share_memory())
    assert isinstance(model.weight, nn.Parameter) and model.weight.requires_grad
    model(torch.ones(3, 4, device="cuda")).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    with pytest.raises(RuntimeError, match="Cowardly refusing"):
        sent(model.weight * 2)


def test_sending_gpu_tensors_by_rpc_raises_not_emulated() -> None:
    use()
    with pytest.raises(NotEmulated, match="rpc with device maps"):
        rpc.TensorPipeRpcBackendOptions(device_maps={"other": {0: 0}})
    for call in (lambda of: of.set_device_map("other", {0: 0}), lambda of: of.set_devices([0])):
        with pytest.raises(NotEmulated, match="rpc with device maps"):
            call(rpc.TensorPipeRpcBackendOptions())
    with pytest.raises(NotEmulated, match="rpc with CUDA tensors"):
        rpc.api._invoke_rpc("other", torch.add, None, [{"x": torch.ones(2, device="cuda")}, 1])


def test_storages_and_sparse_tensors_are_shared_between_processes() -> None:
    use()
    x = torch.ones(4, device="cuda")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse invariant checks|TypedStorage is deprecated")
        storage, typed, sparse = sent((x.untyped_storage(), x.storage(), torch.eye(3, device="cuda").to_sparse()))
    assert storage.data_ptr() == x.data_ptr() and storage.nbytes() == 16
    assert (typed.dtype, typed._untyped_storage.nbytes()) == (torch.float32, 16)
    assert sparse.is_sparse and sparse.is_cuda and sparse.shape == (3, 3)
    with pytest.raises(NotEmulated, match="_share_cuda_"):
        storage._share_cuda_()
    with pytest.raises(NotEmulated, match="ipc_handle"):
        sent(torch.cuda.Event(interprocess=True))
    with warnings.catch_warnings(), pytest.raises(NotEmulated, match="_nested_view_from_buffer"):
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        sent(torch.nested.nested_tensor([x, x]))


def test_a_loader_worker_collates_tensors_into_shared_storage() -> None:
    """In a worker, torch.utils.data.default_collate stacks two tensors of three elements into shared memory."""
    use()
    x = torch.ones(3, device="cuda")
    out = x.new(x._typed_storage()._new_shared(6, device=x.device)).resize_(2, 3)
    assert torch.stack([x, x], 0, out=out).shape == (2, 3) and out.is_cuda


def test_the_memory_of_a_process_that_has_ended_cannot_be_used() -> None:
    use()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with mock.patch.object(os, "getpid", lambda: ended.pid):
        pickled = ForkingPickler.dumps(torch.ones(3, device="cuda"))
    with pytest.raises(torch.AcceleratorError, match="CUDA error: invalid argument"):
        ForkingPickler.loads(pickled)
