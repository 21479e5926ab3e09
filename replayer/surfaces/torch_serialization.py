"""torch.save and torch.load: checkpoints of true size, readable anywhere, and read back onto the virtual device.

Saving needs no patch: a virtual tensor pickles as a plain CUDA tensor over a `VirtualStorage`, which `torch.save` asks for
its bytes. Loading asks a registry of locations; there "cuda" is answered here, before PyTorch's own answer.

    torch.save(model.state_dict(), "model.pt")             # as large as on a GPU
    torch.load("model.pt", map_location="cuda")            # virtual tensors
    torch.load("model.pt", map_location="cpu")             # plain tensors, also without us
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from replayer.allocations import KNOWN_LIMIT, allocate
from replayer.sites import Site
from replayer.state import gpu
from replayer.storage import VirtualStorage
from replayer.surfaces.seam import put

_BEFORE_CUDA = 15  # PyTorch's answer for "cuda" has priority 20


def install(torch: ModuleType) -> None:
    """Register the location "cuda", and make `torch.is_storage` know our storages."""

    def located(storage: Any) -> str | None:
        return f"cuda:{storage.get_device()}" if isinstance(storage, VirtualStorage) else None

    def restored(storage: Any, location: str) -> VirtualStorage | None:
        if not location.startswith("cuda"):
            return None
        index = torch.serialization._validate_device(location, "cuda").index
        return on_device(torch, storage, gpu().current_device() if index is None else index)

    is_storage = torch.is_storage

    def is_any_storage(obj: Any, /) -> bool:
        """Not by PyTorch's set of storage classes: torch.load takes a dtype from each name in there."""
        return isinstance(obj, VirtualStorage) or is_storage(obj)

    torch.serialization.register_package(_BEFORE_CUDA, located, restored)
    put(torch, is_storage=is_any_storage)


def on_device(torch: ModuleType, storage: Any, index: int) -> VirtualStorage:
    """A storage read from a file, copied to device `index`."""
    size_bytes = storage.nbytes()
    allocation = allocate(gpu(), index, size_bytes)
    if size_bytes:
        site = Site("aten::copy_", ((size_bytes,), (size_bytes,)), ("uint8", "uint8"))
        gpu().copy(site, "h2d", size_bytes, index, True)
    if storage.device.type == "cpu" and size_bytes <= KNOWN_LIMIT:
        allocation.known = torch.empty(0, dtype=torch.uint8).set_(storage)
    return VirtualStorage.over(allocation, index)
