"""Patches torch.load. Virtual tensors are saved as ordinary CUDA tensors, which can be loaded on any machine.

    torch.save(model.state_dict(), "model.pt")             # as large as on a GPU
    torch.load("model.pt", map_location="cuda")            # virtual tensors
    torch.load("model.pt", map_location="cpu")             # plain tensors, even without the replayer
    torch.load("old.pth", map_location=lambda storage, location: storage.cuda(0))
"""

from __future__ import annotations

from types import ModuleType

from replayer.tensor.device_args import index_of
from replayer.tensor.storage import VirtualStorage
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny
from traces.script.patching import PATCHES, patch_around

_BEFORE_CUDA = 15  # priority of the replayer's entry; PyTorch's own entry has priority 20


def install(torch: ModuleType) -> None:
    def located(storage: TorchAny) -> str | None:
        return f"cuda:{storage.get_device()}" if isinstance(storage, VirtualStorage) else None

    def restored(storage: TorchAny, location: str) -> VirtualStorage | None:
        if not location.startswith("cuda"):
            return None
        return VirtualStorage.made_of(storage, index_of(torch.serialization._validate_device(location, "cuda")))

    def with_bits(set_metadata: TorchAny, tensor: TorchAny, metadata: dict[str, bool]) -> None:
        set_metadata(tensor, metadata)
        if isinstance(tensor, VirtualTensor):
            tensor.tensor_meta = VirtualTensor.plan_cache.metas.like(tensor, tensor.get_device())

    patch_around(torch._utils, set_tensor_metadata=with_bits)
    torch.serialization.register_package(_BEFORE_CUDA, located, restored)
    registry = torch.serialization._package_registry
    PATCHES.on_undo(lambda: registry.remove((_BEFORE_CUDA, located, restored)))
