"""Creates tensor storages on the virtual GPU, and moves storages from the host to the virtual GPU.

    torch.UntypedStorage(24, device="cuda")     # a VirtualStorage of 24 bytes
    torch.cuda.FloatStorage(6)                  # a typed storage of 6 floats
    torch.FloatStorage([1, 2]).cuda()
"""

from __future__ import annotations

from types import ModuleType
from typing import NoReturn

import torch

from replayer.ops.copy_on_write import memory_shared_by
from replayer.state import gpu
from replayer.tensor.allocation import allocate
from replayer.tensor.device_args import checked_index, index_of
from replayer.tensor.storage import LARGEST, VirtualStorage, other_device
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.tensor_meta import errors_of_cuda
from replayer.torch_types import TorchAny
from traces.script.patching import patch, patch_around


def install(torch_module: ModuleType) -> None:
    untyped: TorchAny = torch_module.UntypedStorage
    typed: TorchAny = torch_module.TypedStorage
    make: TorchAny = torch._C.StorageBase.__new__

    def new(cls: TorchAny, *args: TorchAny, device: TorchAny = None, **options: TorchAny) -> TorchAny:
        there = None if device is None else torch.device(device)
        if there is None:
            return make(cls, *args, **options)
        if there.type != "cuda":
            return make(untyped if issubclass(cls, VirtualStorage) else cls, *args, device=there, **options)
        index = checked_index(index_of(there))
        values = args[0] if args else 0
        if isinstance(values, int) and len(args) < 2:
            return VirtualStorage.over(allocate(gpu(), index, values & LARGEST), index)
        return VirtualStorage.made_of(make(untyped, *args, device=torch.device("cpu")), index)

    def new_tensor(of_host: TorchAny, self: TorchAny, *args: TorchAny, **options: TorchAny) -> TorchAny:
        storage = args[0]._untyped_storage if args and isinstance(args[0], typed) else args[0] if args else None
        if isinstance(storage, VirtualStorage if self.is_cpu else untyped):
            return torch.empty(0, dtype=self.dtype, device=self.device).set_(args[0])
        with errors_of_cuda():
            return of_host(self, *args, **options)

    def set_(of_host: TorchAny, self: TorchAny, *args: TorchAny, **options: TorchAny) -> TorchAny:
        source = args[0] if args else options.get("source")
        storage = getattr(source, "_untyped_storage", source)
        if isinstance(storage, VirtualStorage) and not isinstance(self, VirtualTensor):
            raise other_device(self, storage)
        return of_host(self, *args, **options)

    patch_around(
        torch_module.Tensor,
        untyped_storage=lambda of_host, self: self.untyped_storage() if isinstance(self, VirtualTensor) else of_host(self),
        new=new_tensor,
        set_=set_,
    )

    def to(to_device: TorchAny, self: TorchAny, *, device: TorchAny, non_blocking: bool = False) -> TorchAny:
        there = torch.device(device)
        if there.type != "cuda":
            return to_device(self, device=device, non_blocking=non_blocking)
        return VirtualStorage.made_of(self, index_of(there))

    def copy_(copy: TorchAny, self: TorchAny, source: TorchAny, non_blocking: bool | None = None) -> TorchAny:
        return copy(self, source.cpu() if isinstance(source, VirtualStorage) else source, non_blocking)

    def share_cuda(*_: TorchAny) -> NoReturn:
        raise RuntimeError("_share_cuda_: only available on CUDA")

    def with_dtype(wrapped_storage: TorchAny, self: TorchAny, storage: TorchAny) -> TorchAny:
        if isinstance(storage, VirtualStorage):
            return typed(wrap_storage=storage, dtype=self.dtype, _internal=True)
        return wrapped_storage(self, storage)

    def is_cow_tensor(of_host: TorchAny, tensor: TorchAny) -> bool:
        if isinstance(tensor, VirtualTensor):
            return memory_shared_by(tensor.allocation) is not None
        return bool(of_host(tensor))

    patch_around(
        torch_module._C,
        _is_cow_tensor=is_cow_tensor,
        _storage_address=lambda of_host, t: t.untyped_storage()._cdata if isinstance(t, VirtualTensor) else of_host(t),
        _data_address=lambda of_host, t: t.allocation.address if isinstance(t, VirtualTensor) else of_host(t),
    )
    patch_around(torch_module, is_storage=lambda is_storage, obj: isinstance(obj, VirtualStorage) or is_storage(obj))
    patch(untyped, __new__=new)
    patch_around(untyped, to=to, copy_=copy_, _share_cuda_=share_cuda)
    patch_around(typed, _new_wrapped_storage=with_dtype)
