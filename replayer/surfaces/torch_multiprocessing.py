"""Patches torch.multiprocessing so that processes can send each other tensors on the virtual GPU.

    torch.multiprocessing.spawn(train, nprocs=2)    # train(0), train(1): each with a virtual GPU, at its own recorded pace
    queue.put(torch.ones(3, device="cuda"))         # another process gets a tensor that uses the same memory

Note [Memory of another process]
    As with CUDA, a received tensor uses the memory of the sending process, which must not end. Known values are sent, too.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from weakref import WeakValueDictionary

import torch

from replayer.cuda_error import CudaError
from replayer.recording.rank import Rank
from replayer.state import STATE, computing
from replayer.tensor.allocation import Allocation, Doubt, Uniform, make
from replayer.tensor.device_args import checked_index
from replayer.tensor.storage import VirtualStorage
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.values.known_values import bytes_of, payload
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import patch, patch_around, patch_item


def install(torch_module: ModuleType) -> None:
    module: TorchAny = importlib.import_module(f"{torch_module.__name__}.multiprocessing.spawn")
    patch_around(module, _wrap=_numbered)
    sharing = _Sharing()
    reductions: TorchAny = importlib.import_module(f"{torch_module.__name__}.multiprocessing.reductions")
    # `pickle` imports a function's module in the receiving process. The replayer starts when a process imports torch, so
    # the functions below get the name of a module of torch.
    for rebuild in (sharing.rebuild, sharing.rebuild_storage):
        rebuild.__module__, rebuild.__qualname__ = reductions.__name__, rebuild.__name__
        patch(reductions, **{rebuild.__name__: rebuild})
    others = reductions.reduce_tensor

    def reduce_tensor(tensor: TorchAny) -> TorchAny:
        # PyTorch sends a sparse or nested tensor as several dense tensors.
        is_dense = isinstance(tensor, VirtualTensor) and tensor.layout is torch.strided and not tensor.is_nested
        return sharing.reduce(tensor) if is_dense else others(tensor)

    patch(reductions, reduce_tensor=reduce_tensor)
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for cls in (torch_module.Tensor, torch_module.nn.Parameter):
        patch_item(reducers, cls, reduce_tensor)
    patch_item(reducers, VirtualStorage, sharing.reduce_storage)
    patch_item(reducers, torch_module.cuda.Event, torch_module.cuda.Event.ipc_handle)  # `ipc_handle` raises NotEmulated


def _numbered(call: TorchFunction, fn: TorchAny, i: int, *args: TorchAny) -> TorchAny:
    if "RANK" not in os.environ:
        STATE.rank = Rank(number=i)
    return call(fn, i, *args)


class _Mapped:
    def __init__(self, address: int, size_bytes: int) -> None:
        self.address, self.size_bytes = address, size_bytes
        self.allocator = self
        self.stream = 0

    def free(self, *_block_and_stream: TorchAny) -> None:
        """Do nothing: the sender frees the memory."""

    record_stream = free


def _ipc_handle(allocation: Allocation) -> tuple[TorchAny, ...]:
    known: TorchAny = allocation.known
    if computing() and allocation.size_bytes:
        storage = payload(allocation)
        if not storage.is_shared():
            storage.share_memory_()
        known = bytes_of(storage)
    known = tuple(known) if type(known) is Uniform else known
    return os.getpid(), allocation.address, allocation.size_bytes, known, allocation.doubt


class _Sharing:
    def __init__(self) -> None:
        self._mapped: WeakValueDictionary[tuple[int, int], Allocation] = WeakValueDictionary()

        def rebuild_virtual_tensor(handle: TorchAny, form: TorchAny, requires_grad: bool, is_param: bool) -> torch.Tensor:
            shape, stride, offset, dtype, index = form
            meta = VirtualTensor.plan_cache.metas.of(shape, stride, offset, dtype, checked_index(index))
            made = make(meta, self._allocation(*handle))
            return torch.nn.Parameter(made, requires_grad) if is_param else made.requires_grad_(requires_grad)

        def rebuild_virtual_storage(handle: TorchAny, index: int) -> VirtualStorage:
            return VirtualStorage.over(self._allocation(*handle), checked_index(index))

        self.rebuild, self.rebuild_storage = rebuild_virtual_tensor, rebuild_virtual_storage

    def reduce(self, tensor: TorchAny) -> tuple[TorchFunction, tuple[TorchAny, ...]]:
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError(
                "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support crossing"
                " process boundaries.  If you just want to transfer the data, call detach() on the tensor before serializing"
                " (e.g., putting it on the queue)."
            )
        meta = tensor.tensor_meta
        form = (meta.shape, meta.stride, meta.offset, meta.dtype, meta.index)
        is_param = isinstance(tensor, torch.nn.Parameter)
        return self.rebuild, (_ipc_handle(tensor.allocation), form, tensor.requires_grad, is_param)

    def reduce_storage(self, storage: VirtualStorage) -> tuple[TorchFunction, tuple[TorchAny, ...]]:
        return self.rebuild_storage, (_ipc_handle(storage.allocation), storage.get_device())

    def _allocation(self, process: int, address: int, size_bytes: int, known: TorchAny, doubt: Doubt) -> Allocation:
        # see Note [Memory of another process]
        allocation = self._mapped.get((process, address)) if size_bytes else None
        if allocation is None:
            try:
                with suppress(PermissionError):  # the process may belong to another user
                    os.kill(process, 0)  # this call checks whether the sender still runs
            except ProcessLookupError:
                raise CudaError.INVALID_VALUE.to_torch() from None
            allocation = Allocation()
            block: TorchAny = _Mapped(address, size_bytes) if size_bytes else None
            allocation.block = block
            self._mapped[process, address] = allocation
            allocation.known = Uniform(*known) if type(known) is tuple else known
            allocation.mark(doubt)
        return allocation
