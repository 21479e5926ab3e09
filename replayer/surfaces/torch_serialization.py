"""torch.save and torch.load: checkpoints of true size, readable anywhere, and read back onto the virtual device.

Saving needs no patch: a virtual tensor pickles as a plain CUDA tensor over a `VirtualStorage`, from which `torch.save` gets its
bytes. Loading asks a registry of locations; here is an entry for "cuda", which comes before PyTorch's own.

    torch.save(model.state_dict(), "model.pt")             # as large as on a GPU
    torch.load("model.pt", map_location="cuda")            # virtual tensors
    torch.load("model.pt", map_location="cpu")             # plain tensors, also without us
    torch.load("old.pth", map_location=lambda storage, location: storage.cuda(0))
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from replayer.state import gpu
from replayer.tensor.storage import VirtualStorage
from traces.patching import patch

_BEFORE_CUDA = 15  # the priority of PyTorch's own entry for "cuda" is 20


def install(torch: ModuleType) -> None:
    """Register the location "cuda", and make `torch.is_storage` know our storages."""

    def located(storage: Any) -> str | None:
        return f"cuda:{storage.get_device()}" if isinstance(storage, VirtualStorage) else None

    def restored(storage: Any, location: str) -> VirtualStorage | None:
        if not location.startswith("cuda"):
            return None
        index = torch.serialization._validate_device(location, "cuda").index
        return VirtualStorage.made_of(storage, gpu().current_device() if index is None else index)

    is_storage = torch.is_storage

    def is_any_storage(obj: Any, /) -> bool:
        """Not by PyTorch's set of storage classes: torch.load takes a dtype from each name in there."""
        return isinstance(obj, VirtualStorage) or is_storage(obj)

    to_device = torch.UntypedStorage.to

    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        """Of a storage on the host, as in `map_location=lambda storage, location: storage.cuda()`."""
        restored_there = restored(self, str(torch.device(device)))
        return to_device(self, device=device, non_blocking=non_blocking) if restored_there is None else restored_there

    torch.serialization.register_package(_BEFORE_CUDA, located, restored)
    patch(torch, is_storage=is_any_storage)
    patch(torch.UntypedStorage, to=to)
