# mypy: allow-untyped-calls
"""Tests which tensors are pinned, for how long they are pinned, and how long pinning takes. Each test runs in a fork of an
interpreter that has imported torch (warm.py)."""

from __future__ import annotations

import copy
import io
import os
import pickle
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, _utils

from replayer.errors import NotEmulated
from replayer.surfaces.torch_pin_memory import EMPTY, FILLED, NEW_EMPTY, NEW_FILLED
from tests.replayer.fake_gpu import use


def _stat(name: str) -> int:
    torch.cuda.init()
    value: int = torch.cuda.host_memory_stats()[name]
    return value


def _vm_locked_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmLck")).split()[1]) << 10


def test_a_pinned_copy_has_the_values_and_layout_of_its_source() -> None:
    use()
    x = torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned() and pinned.pin_memory() is pinned
    assert torch.equal(pinned, x) and pinned.stride() == x.stride() and pinned.dtype is x.dtype
    assert type(torch.nn.Parameter(torch.ones(2)).pin_memory()) is torch.Tensor
    assert not torch.ones(0).pin_memory().is_pinned()  # an empty tensor has no memory to pin
    assert torch.ones(3, dtype=torch.bool).pin_memory().tolist() == [True] * 3
    assert torch.ones(3, dtype=torch.complex64).pin_memory().dtype is torch.complex64


def test_gradients_pass_through_pinned_copies() -> None:
    use()
    x = torch.ones(2, requires_grad=True)
    (x.pin_memory() * 3).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]
    with torch.no_grad():
        assert not x.pin_memory().requires_grad


def test_using_the_argument_device_gives_a_deprecation_warning() -> None:
    use()
    host: Any = torch.ones(3)
    with pytest.warns(DeprecationWarning) as seen:
        assert host.pin_memory("cuda").is_pinned()
    deprecated = "The argument 'device' of Tensor.{}() is deprecated. Please do not pass this argument."
    assert [str(warning.message) for warning in seen] == [deprecated.format(name) for name in ("pin_memory", "is_pinned")]
    with pytest.warns(DeprecationWarning, match=r"Tensor.is_pinned\(\) is deprecated"):
        assert not host.is_pinned("cuda")
    with pytest.warns(DeprecationWarning), pytest.raises(RuntimeError, match="CPU device type not an accelerator"):
        host.pin_memory("cpu")


def test_the_system_locks_the_pages_of_pinned_memory() -> None:
    use()
    before = _vm_locked_bytes()
    x = torch.empty(3 << 18, pin_memory=True)  # the tensor takes 3 MiB
    if not _stat("allocated_bytes.current") or _vm_locked_bytes() == before:
        pytest.skip("this system does not let us lock 4 MiB")
    assert _vm_locked_bytes() - before == _stat("allocated_bytes.current") == 4 << 20
    del x
    assert (_stat("active_bytes.current"), _vm_locked_bytes() - before) == (0, 4 << 20)
    torch._C._host_emptyCache()  # since PyTorch 2.12, this is torch.accelerator.memory.empty_host_cache
    assert _vm_locked_bytes() == before


_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "empty_like": (torch.ones(2, 3),),
    "empty_strided": ((2, 3), (1, 2)),
    "empty_permuted": ((2, 3), (1, 0)),
    "zeros_like": (torch.ones(2, 3),),
    "ones_like": (torch.ones(2, 3),),
    "full": ((2, 3), 5),
    "full_like": (torch.ones(2, 3), 5),
    "rand_like": (torch.ones(2, 3),),
    "randn_like": (torch.ones(2, 3),),
    "randint": (0, 9, (2, 3)),
    "randint_like": (torch.ones(2, 3), 9),
    "normal": (0.0, 1.0, (2, 3)),
    "linspace": (0, 1, 5),
    "logspace": (0, 1, 5),
    "scalar_tensor": (4.0,),
    "tensor": ([1.0, 2.0],),
    "tril_indices": (3, 3),
    "triu_indices": (3, 3),
    "new_full": ((2, 3), 5),
    "new_empty_strided": ((2, 3), (1, 2)),
}


@pytest.mark.parametrize("name", [*EMPTY, *FILLED, *NEW_EMPTY, *NEW_FILLED])
def test_every_factory_function_can_create_pinned_tensors(name: str) -> None:
    gpu = use()
    make: Callable[..., Any] = getattr(torch.ones(1) if name.startswith("new_") else torch, name)
    arguments = _ARGUMENTS.get(name, (6,))
    torch.manual_seed(3)
    plain = make(*arguments)
    torch.manual_seed(3)
    pinned = make(*arguments, pin_memory=True)
    assert pinned.is_pinned() and not plain.is_pinned() and not make(*arguments, pin_memory=False).is_pinned()
    assert (pinned.shape, pinned.stride(), pinned.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert "empty" in name or torch.equal(pinned, plain)
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        make(*arguments, pin_memory=True, device="cuda")
    assert gpu.copies == []


def test_pinned_factory_functions_respect_requires_grad_and_the_default_device() -> None:
    use()
    assert torch.zeros(3, pin_memory=True, requires_grad=True).requires_grad
    assert not torch.zeros(3, pin_memory=True).requires_grad
    with torch.device("cuda"):
        with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
            torch.zeros(3, pin_memory=True)
        assert torch.zeros(3, pin_memory=True, device="cpu").is_pinned()
        assert torch.ones(3, device="cpu").pin_memory().is_pinned()
        assert torch.tensor([1.0]).is_cuda and torch.get_default_device().type == "cuda"
    with pytest.raises(NotEmulated, match=r"pin_memory of a torch.sparse_coo tensor"):
        torch.eye(2).to_sparse().pin_memory()
    assert not torch.eye(2).to_sparse().is_pinned() and not torch.ones(2, device="meta").is_pinned()


def test_torch_tensor_pins_only_new_data_that_stays_on_the_cpu() -> None:
    # PyTorch's rules are in torch/csrc/utils/tensor_new.cpp.
    use()
    assert torch.tensor([1.0], pin_memory=True).is_pinned()
    assert torch.tensor([1.0], pin_memory=True, device="cuda").is_cuda
    with pytest.raises(RuntimeError, match=r"Can't pin tensor constructed from a variable"):
        torch.tensor(torch.ones(1), pin_memory=True)


def test_memory_stays_pinned_while_any_array_or_tensor_uses_it() -> None:
    use()
    array = torch.ones(64, 64).pin_memory()[3:, 1].numpy()
    assert _stat("active_requests.current") == 1
    again = torch.from_numpy(array)  # the first tensor is gone, but its memory still exists
    assert again.is_pinned() and again.untyped_storage().is_pinned()
    del array, again
    assert _stat("active_requests.current") == 0


def test_the_next_batch_reuses_the_pinned_memory_of_the_last() -> None:
    use()
    addresses = {torch.ones(100, 100).pin_memory().data_ptr() for _ in range(5)}
    assert len(addresses) == 1 and _stat("num_host_alloc") == 1


def test_a_batch_is_not_overwritten_during_its_asynchronous_copy() -> None:
    gpu = use()
    gpu.work(gpu.current.stream(0), 5_000_000)
    first = torch.ones(100, 100).pin_memory()
    address = first.data_ptr()
    first.to("cuda", non_blocking=True)
    del first
    second = torch.ones(100, 100).pin_memory()
    assert second.data_ptr() != address
    gpu.streams.synchronize_device(0)
    assert torch.ones(100, 100).pin_memory().data_ptr() == address
    blocking = torch.ones(50).pin_memory()
    address = blocking.data_ptr()
    blocking.to("cuda")
    del blocking
    assert torch.ones(50).pin_memory().data_ptr() == address


def test_memory_of_an_asynchronous_copy_to_the_host_is_not_reused() -> None:
    gpu = use()
    x = torch.ones(100, 100, device="cuda")
    gpu.work(gpu.current.stream(0), 1_000)
    host = x.to("cpu", non_blocking=True)
    address = host.data_ptr()
    del host
    assert x.to("cpu", non_blocking=True).data_ptr() != address


def test_a_copy_of_a_pinned_tensor_is_not_pinned() -> None:
    use()
    x = torch.arange(6.0).pin_memory()
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    for other in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), x.clone(), torch.load(file), x + 0, torch.empty_like(x)):
        assert not other.is_pinned()
    assert torch.equal(pickle.loads(pickle.dumps(x)), x)
    assert x.untyped_storage().pin_memory().is_pinned() and x.view(2, 3).is_pinned() and x.detach().is_pinned()
    assert x.share_memory_().is_shared() and not x.is_pinned()
    assert _stat("active_requests.current") == 0  # sharing moved the tensor to other memory


def test_a_forked_worker_neither_locks_nor_frees_pinned_memory_of_its_parent() -> None:
    use()
    kept, freed = torch.ones(5_000).pin_memory(), torch.ones(50_000).pin_memory()
    del freed
    before = (_vm_locked_bytes(), _stat("allocated_bytes.current"))
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        facts: list[object] = [float(kept.sum()), kept.is_pinned(), _vm_locked_bytes()]
        kept.zero_()  # the child has a separate copy of this memory
        del kept
        try:
            torch.ones(3).pin_memory()
        except RuntimeError as error:
            facts.append(str(error)[:32])
        os.write(writer, repr(facts).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        assert said.read() == "[5000.0, False, 0, 'CUDA error: initialization error']"
    os.waitpid(child, 0)
    assert kept.is_pinned() and float(kept.sum()) == 5_000
    assert before == (_vm_locked_bytes(), _stat("allocated_bytes.current"))


def test_a_child_forked_before_gpu_use_can_pin_memory() -> None:
    use()
    child = os.fork()
    if not child:
        os._exit(0 if torch.ones(3).pin_memory().is_pinned() else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_the_pinning_thread_of_a_loader_copies_batches_into_locked_memory(workers: int) -> None:
    use()
    torch.cuda.init()
    data = TensorDataset(torch.arange(1 << 18, dtype=torch.float64).reshape(32, -1), torch.arange(32))
    seen, names = [], set()
    of_torch = _utils.pin_memory.pin_memory

    def noted(*args: Any) -> Any:
        names.add(threading.current_thread().name)
        return of_torch(*args)

    _utils.pin_memory.pin_memory = noted
    for images, labels in DataLoader(data, batch_size=1, num_workers=workers, pin_memory=True):
        assert images.is_pinned() and labels.is_pinned() and images.shape == (1, 1 << 13)
        seen += labels.tolist()
        assert float(images[0, 0]) == float(labels[0] * (1 << 13))
    assert seen == list(range(32))
    assert ("MainThread" in names) is (workers == 0)
    del images, labels
    assert _stat("active_requests.current") == 0
    assert _stat("active_requests.allocated") == 64
    assert 2 <= _stat("num_host_alloc") <= 2 * (2 * workers + 3)  # this counts images and labels of all batches in progress


def test_many_threads_can_pin_and_free_tensors_at_the_same_time() -> None:
    use()
    made: queue.Queue[torch.Tensor] = queue.Queue(maxsize=4)

    def pin() -> None:
        for i in range(50):
            made.put(torch.full((1_000 + i,), float(i)).pin_memory())

    threads = [threading.Thread(target=pin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        batch = made.get()
        assert batch.is_pinned() and float(batch.min()) == float(batch.max()) == len(batch) - 1_000
    for thread in threads:
        thread.join()
    del batch
    assert _stat("active_requests.current") == 0 and _stat("active_requests.allocated") == 200
    assert _stat("num_host_alloc") < 30


def test_memory_of_the_script_can_be_registered_as_pinned() -> None:
    gpu = use()
    torch.cuda.init()
    cudart: Any = torch.cuda.cudart()
    x = torch.ones(50_000)
    size_bytes = x.numel() * 4
    assert cudart.cudaHostRegister(x.data_ptr(), size_bytes, 0) == 0
    assert x.is_pinned() and x[100:].is_pinned()
    x.to("cuda", non_blocking=True)
    assert gpu.copies[-1][-1] is False  # this copy does not block
    assert cudart.cudaGetErrorString(cudart.cudaHostRegister(x.data_ptr(), 4, 0)).startswith("part or all of the requested")
    torch.cuda.check_error(cudart.cudaHostUnregister(x.data_ptr()))
    assert not x.is_pinned()
    with pytest.raises(torch.cuda.CudaError, match="does not correspond to a registered"):
        torch.cuda.check_error(cudart.cudaHostUnregister(x.data_ptr()))


def test_host_memory_stats_has_the_documented_keys() -> None:
    use()
    assert torch.cuda.host_memory_stats() == {}  # CUDA has not been started yet
    x = torch.ones(5_000, pin_memory=True)
    assert (_stat("active_bytes.current"), _stat("allocated_bytes.peak"), _stat("allocations.allocated")) == (32_768, 32_768, 1)
    del x
    documented = str(torch.cuda.host_memory_stats.__doc__)
    for name in torch.cuda.host_memory_stats_as_nested_dict():
        assert name in documented, name
    torch.cuda.reset_accumulated_host_memory_stats()
    torch.cuda.reset_peak_host_memory_stats()
    assert (_stat("allocations.allocated"), _stat("active_bytes.peak"), _stat("allocated_bytes.peak")) == (0, 0, 32_768)
