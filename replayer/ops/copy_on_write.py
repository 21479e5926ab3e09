# mypy: allow-untyped-calls
"""Makes a tensor and its lazy clone share memory until the script writes to one of them.

    clone = x._lazy_clone()     # no kernel, and no memory
    x += 1                      # allocates memory for x, copies, and adds

The rules follow c10/core/impl/COW.cpp.
"""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.blocks import UsedStream
from replayer.tensor.allocation import Allocation, allocation_of, make
from replayer.tensor.planning.shape_inference import writes_of
from replayer.tensor.storage import VirtualStorage
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny
from traces.script.patching import PATCHES, patch_around


class SharedMemory:
    """Counts the tensor storages that use a memory block, and frees the block when no storage uses it."""

    def __init__(self, handle: AllocationHandle) -> None:
        self._handle = handle
        self.storages = 0

    def shared(self) -> AllocationHandle:
        self.storages += 1
        handle = self._handle
        return AllocationHandle(self, handle.size_bytes, handle.stream, handle.block)

    def taken_by_last(self) -> AllocationHandle:
        self.storages = 0
        return self._handle

    def free(self, _shared: AllocationHandle) -> None:
        self.storages -= 1
        if not self.storages:
            self._handle.allocator.free(self._handle)

    def record_stream(self, _shared: AllocationHandle, stream: UsedStream) -> None:
        self._handle.allocator.record_stream(self._handle, stream)


def memory_shared_by(allocation: Allocation) -> SharedMemory | None:
    owner = None if allocation.block is None else allocation.block.allocator
    return owner if isinstance(owner, SharedMemory) else None


def lazy_clone(source: TorchAny) -> TorchAny:
    allocation: Allocation = source.allocation
    _look_for_writes()
    memory = memory_shared_by(allocation)
    if memory is None and allocation.block is not None:
        memory = SharedMemory(allocation.block)
        allocation.block = memory.shared()
    made = allocation_of(None if memory is None else memory.shared())
    known = allocation.known
    made.known = known._lazy_clone() if isinstance(known, torch.Tensor) else known
    return make(source.tensor_meta, made)


def own_memory(allocation: Allocation, device: int) -> None:
    memory = memory_shared_by(allocation)
    if memory is None:
        return
    if memory.storages == 1:
        allocation.block = memory.taken_by_last()
    else:
        copied = VirtualStorage.over(allocation, device).clone().allocation
        allocation.block, copied.block = copied.block, allocation.block


def _look_for_writes() -> None:
    dispatch: TorchAny = VirtualTensor.__torch_dispatch__
    if dispatch.__name__ == "owning_written_memory":
        return

    def owning_written_memory(func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None) -> TorchAny:
        for at, _ in writes_of(func, args, kwargs or {}):
            for written in tree_leaves(args[at] if isinstance(at, int) else kwargs[at]):
                if isinstance(written, VirtualTensor):
                    own_memory(written.allocation, written.tensor_meta.index)
        return dispatch(func, types, args, kwargs)

    def own_address(data_ptr: TorchAny, self: TorchAny) -> TorchAny:
        own_memory(self.allocation, self.tensor_meta.index)
        return data_ptr(self)

    PATCHES.set(VirtualTensor, "__torch_dispatch__", staticmethod(owning_written_memory))
    patch_around(VirtualTensor, data_ptr=own_address)
