"""Implements the storage of virtual tensors, which has a size and an address but no contents.

    storage = x.untyped_storage()
    storage.nbytes(), storage.device     # 24, device(type='cuda', index=0)
    storage.cpu()                        # 24 bytes on the host, after a device-to-host copy
"""

from __future__ import annotations

from typing import Self

import torch

from replayer.errors import NotEmulated, require
from replayer.op_signature import OpSignature
from replayer.state import before_sync, computing, gpu
from replayer.tensor.allocation import KNOWN_BYTES, Allocation, Uniform, allocate
from replayer.tensor.device_args import index_of
from replayer.tensor.values.known_values import bytes_of
from replayer.torch_types import TorchAny

LARGEST = (1 << 64) - 1  # PyTorch's C++ code converts a negative size to an unsigned number
_new: TorchAny = torch._C.StorageBase.__new__


class VirtualStorage(torch.UntypedStorage):
    allocation: Allocation
    _index: int
    _new_shared = torch.UntypedStorage._new_shared  # this method may return a CPU storage

    @classmethod
    def over(cls, allocation: Allocation, index: int) -> Self:
        made: Self = _new(cls, 0, device="meta")  # PyTorch rejects a storage on another device
        made.allocation = allocation
        made._index = index
        return made

    @classmethod
    def made_of(cls, host: torch.UntypedStorage, index: int) -> Self:
        host = host.cpu()  # type: ignore[no-untyped-call]  # raises PyTorch's error for a meta storage
        made = cls.over(allocate(gpu(), index, host.nbytes()), index)
        made.receive(host)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self._index)

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def _cdata(self) -> int:
        return id(self.allocation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VirtualStorage) and other.allocation is self.allocation

    def __hash__(self) -> int:
        return id(self.allocation)

    def get_device(self) -> int:
        return self._index

    def nbytes(self) -> int:
        return self.allocation.size_bytes

    size = __len__ = nbytes

    def data_ptr(self) -> int:
        return self.allocation.address

    def is_pinned(self, device: TorchAny = None) -> bool:
        return False

    def is_shared(self) -> bool:
        return True

    def _share_cuda_(self, *args: TorchAny) -> TorchAny:
        raise NotEmulated("torch.UntypedStorage._share_cuda_", "send the tensor through a queue of torch.multiprocessing")

    def _share_fd_cpu_(self, *args: TorchAny) -> TorchAny:
        raise RuntimeError("_share_fd_: only available on CPU")

    def _share_filename_cpu_(self, *args: TorchAny) -> TorchAny:
        raise RuntimeError("_share_filename_: only available on CPU")

    def resize_(self, size_bytes: int) -> Self:
        require(isinstance(size_bytes, int), f"resize_ expects an int, but got {type_name(size_bytes)}")
        if size_bytes != self.allocation.size_bytes:
            resized = VirtualStorage.over(allocate(gpu(), self._index, size_bytes & LARGEST), self._index)
            kept = min(size_bytes, self.nbytes())
            if kept:
                resized.as_bytes()[:kept].copy_(self.as_bytes()[:kept])
            self.allocation.exchange(resized.allocation)
            self.allocation.known = resized.allocation.known
        return self

    def cpu(self) -> torch.UntypedStorage:
        size_bytes = self.allocation.size_bytes
        if size_bytes:
            before_sync()
            gpu().launches.copy(_copy_signature(size_bytes, "d2h"), "d2h", size_bytes, self._index, True)
        known = self.allocation.known
        if isinstance(known, Uniform) and known.value:
            return torch.full((size_bytes // known.dtype.itemsize,), known.value, dtype=known.dtype).untyped_storage()
        if isinstance(known, torch.Tensor) and known.untyped_storage().nbytes() == size_bytes:
            return known.clone().untyped_storage()
        return torch.zeros(size_bytes, dtype=torch.uint8).untyped_storage()

    def receive(self, host: torch.UntypedStorage) -> None:
        size_bytes = self.allocation.size_bytes
        if size_bytes:
            before_sync()
            gpu().launches.copy(_copy_signature(size_bytes, "h2d"), "h2d", size_bytes, self._index, True)
        if host.device.type == "cpu" and (size_bytes <= KNOWN_BYTES or computing()):
            self.allocation.known = bytes_of(host.clone())  # type: ignore[no-untyped-call]

    def as_bytes(self) -> torch.Tensor:
        made = torch.empty(0, dtype=torch.uint8, device=self.device)
        made.set_(self)
        return made

    def copy_(self, source: TorchAny, non_blocking: bool | None = None) -> TorchAny:
        is_storage: bool = torch.is_storage(source)
        if not is_storage:
            raise TypeError(f"copy_(): argument 'src' (position 1) must be torch.Storage, not {type_name(source)}")
        if source.nbytes() != self.nbytes():
            raise RuntimeError(f"size does not match, self was {self.nbytes()} bytes but src was {source.nbytes()} bytes")
        source_bytes = source.as_bytes() if isinstance(source, VirtualStorage) else bytes_of(source.cpu())
        self.as_bytes().copy_(source_bytes, non_blocking=bool(non_blocking))
        return self

    def fill_(self, value: int) -> Self:
        require(isinstance(value, int), f"fill_ expects int, but got {type_name(value)}")
        self.as_bytes().fill_(value & 0xFF)
        return self

    # see torch/csrc/StorageMethods.cpp
    def __getitem__(self, index: TorchAny) -> TorchAny:
        if isinstance(index, bool) or not isinstance(index, int):
            return self.cpu()[index]
        at = index + self.nbytes() * (index < 0)
        if not 0 <= at < self.nbytes():
            raise IndexError(f"index {at} out of range for storage of size {self.nbytes()}")
        return self.as_bytes()[at].item()

    def __setitem__(self, index: TorchAny, value: TorchAny) -> None:
        require(isinstance(value, int), f"can only set storage content with a int types, but got {type_name(value)} instead")
        if isinstance(index, slice):
            start, stop, step = index.indices(self.nbytes())
            require(step == 1, f"Trying to slice with a step of {step}, but only a step of 1 is supported")
            self.as_bytes()[start : max(start, stop)] = value & 0xFF
            return
        if isinstance(index, bool) or not isinstance(index, int):
            raise RuntimeError(f"can't index a torch.UntypedStorage with {type_name(index)}")
        require(-self.nbytes() <= index < self.nbytes(), "out of bounds")
        self.as_bytes()[index] = value & 0xFF

    def tolist(self) -> list[TorchAny]:
        return list(self.cpu())

    def to(self, *, device: TorchAny, non_blocking: bool = False) -> TorchAny:
        there = torch.device(device)
        if there.type != "cuda":
            return self.cpu()
        index = index_of(there)
        return self if index == self._index else self.made_of(self.cpu(), index)

    def _write_file(self, file: TorchAny, *options: TorchAny) -> None:
        host: TorchAny = self.cpu()
        host._write_file(file, *options)

    def _set_from_file(self, file: TorchAny, *options: TorchAny) -> None:
        host: TorchAny = torch.empty(self.nbytes(), dtype=torch.uint8).untyped_storage()
        host._set_from_file(file, *options)
        self.receive(host)

    def clone(self) -> VirtualStorage:
        size_bytes = self.allocation.size_bytes
        made = allocate(gpu(), self._index, size_bytes)
        known = self.allocation.known
        made.known = known.clone() if isinstance(known, torch.Tensor) else known
        if size_bytes:
            gpu().launches.launch(_copy_signature(size_bytes), self._index)
        return VirtualStorage.over(made, self._index)

    def __str__(self) -> str:
        shown = "\n ".join(map(str, self.tolist()))
        return f" {shown}\n[torch.storage.UntypedStorage(device={self.device}) of size {self.nbytes()}]"

    __repr__ = __str__


def other_device(tensor: torch.Tensor, source: torch.Tensor | torch.UntypedStorage) -> RuntimeError:
    return RuntimeError(
        f'Attempted to set the storage of a tensor on device "{tensor.device}" to a storage on different device'
        f' "{source.device}".  This is no longer allowed; the devices must match.'
    )


def type_name(value: object) -> str:
    """Return a type's name as PyTorch's C++ code writes it in error messages."""
    kind = type(value)
    plain = kind.__module__ == "builtins" or isinstance(value, torch.Tensor)
    return kind.__name__ if plain else f"{kind.__module__}.{kind.__name__}"


def _copy_signature(size_bytes: int, direction: str = "") -> OpSignature:
    return OpSignature("aten::copy_", ((size_bytes,), (size_bytes,)), ("uint8", "uint8"), direction=direction)


# This class has the name of PyTorch's class, because error messages contain the name.
VirtualStorage.__module__, VirtualStorage.__name__, VirtualStorage.__qualname__ = "torch.storage", *["UntypedStorage"] * 2
