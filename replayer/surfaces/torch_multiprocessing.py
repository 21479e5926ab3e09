"""Patches torch.multiprocessing. The number of a spawned process is its rank, and processes can share device tensors.

    torch.multiprocessing.spawn(train, nprocs=2)    # train(0), train(1): each with a virtual GPU, at its own recorded pace
    queue.put(torch.ones(3, device="cuda"))         # another process gets a tensor over the same memory

A spawned process has no RANK in its environment and uses its GPU (`torch.cuda.set_device`) before it joins a group.

Note [Memory of another process]
    CUDA maps the sender's memory into the receiver, and the receiver's allocator does not know about the mapped memory. The
    virtual GPU does the same. Values that the host knows are sent along. With computed values, both processes share one payload
    in shared memory.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from weakref import WeakValueDictionary

import torch

from replayer.recording.rank import Rank
from replayer.state import STATE, computing
from replayer.tensor.allocation import Allocation, Uniform, make
from replayer.tensor.device_args import checked_index
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.values.known_values import bytes_of, payload
from replayer.torch_types import TorchAny
from traces.script.patching import patch, patch_around, patch_item


def install(torch_module: ModuleType) -> None:
    module: TorchAny = importlib.import_module(f"{torch_module.__name__}.multiprocessing.spawn")
    patch_around(module, _wrap=_numbered)
    sharing = _Sharing()
    reductions: TorchAny = importlib.import_module(f"{torch_module.__name__}.multiprocessing.reductions")
    # The function is pickled under one of torch's names. Unpickling a tensor therefore imports torch, which starts the
    # replayer.
    rebuild = sharing.rebuild
    rebuild.__module__, rebuild.__qualname__ = reductions.__name__, "rebuild_virtual_tensor"
    patch(reductions, rebuild_virtual_tensor=rebuild)
    others = reductions.reduce_tensor

    def reduce_tensor(tensor: TorchAny) -> TorchAny:
        return sharing.reduce(tensor) if isinstance(tensor, VirtualTensor) else others(tensor)

    patch_item(ForkingPickler._extra_reducers, torch_module.Tensor, reduce_tensor)  # type: ignore[attr-defined]


def _numbered(call: Callable[..., TorchAny], fn: TorchAny, i: int, *args: TorchAny) -> TorchAny:
    if "RANK" not in os.environ:
        STATE.rank = Rank(number=i, local=i)
    return call(fn, i, *args)


class _Mapped:
    """The sender's memory block in the receiving process.

    The block has an address and a size, and freeing the block does nothing.
    """

    def __init__(self, address: int, size_bytes: int) -> None:
        self.address, self.size_bytes = address, size_bytes
        self.allocator = self
        self.stream = 0

    def free(self, block: TorchAny) -> None:
        """Do nothing, because the sending process frees the block."""

    def record_stream(self, block: TorchAny, stream: TorchAny) -> None:
        """Do nothing, because the sending process waits for streams."""


class _Sharing:
    def __init__(self) -> None:
        self._mapped: WeakValueDictionary[tuple[int, int], Allocation] = WeakValueDictionary()

        def rebuild_virtual_tensor(whole: TorchAny, form: TorchAny, requires_grad: bool, is_param: bool) -> torch.Tensor:
            shape, stride, offset, dtype, index = form
            meta = VirtualTensor.plan_cache.metas.of(shape, stride, offset, dtype, checked_index(index))
            made = make(meta, self._allocation(*whole))
            return torch.nn.Parameter(made, requires_grad) if is_param else made.requires_grad_(requires_grad)

        self.rebuild = rebuild_virtual_tensor

    def reduce(self, tensor: TorchAny) -> tuple[Callable[..., TorchAny], tuple[TorchAny, ...]]:
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError(
                "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support crossing"
                " process boundaries.  If you just want to transfer the data, call detach() on the tensor before serializing"
                " (e.g., putting it on the queue)."
            )
        meta, allocation = tensor.meta, tensor.allocation
        known: TorchAny = allocation.known
        if computing() and allocation.size_bytes:
            storage = payload(allocation)
            if not storage.is_shared():
                storage.share_memory_()
            known = bytes_of(storage)
        whole = (os.getpid(), allocation.address, allocation.size_bytes, tuple(known) if type(known) is Uniform else known)
        form = (meta.shape, meta.stride, meta.offset, meta.dtype, meta.index)
        return self.rebuild, (whole, form, tensor.requires_grad, bool(getattr(tensor, "_is_param", False)))

    def _allocation(self, process: int, address: int, size_bytes: int, known: TorchAny) -> Allocation:
        """Return the allocation for another process's memory.

        Each address has one allocation. See Note [Memory of another process].
        """
        allocation = self._mapped.get((process, address)) if size_bytes else None
        if allocation is None:
            allocation = Allocation()
            block: TorchAny = _Mapped(address, size_bytes) if size_bytes else None
            allocation.block = block
            self._mapped[process, address] = allocation
            allocation.known = Uniform(*known) if type(known) is tuple else known
        return allocation
