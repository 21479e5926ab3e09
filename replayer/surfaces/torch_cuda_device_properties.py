"""Implements the class of device properties that `torch.cuda.get_device_properties` returns.

    TorchDeviceProperties.create("Tesla T4", 16 << 30, known_properties(device)).L2_cache_size      # 4 MiB
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Self

from replayer.torch_types import TorchAny
from traces.model.machine import DeviceProperties

_MIB = 1 << 20


@dataclass(frozen=True, repr=False)
class TorchDeviceProperties(DeviceProperties):
    """Replaces PyTorch's class `_CudaDeviceProperties`. Sizes are in bytes and frequencies in kHz. A value of 0 means unknown.
    """

    name: str = ""
    total_memory: int = 0
    uuid: uuid.UUID | None = None
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0

    @classmethod
    def create(cls, name: str, capacity_bytes: int, known: DeviceProperties, index: int = 0) -> Self:
        """Return the properties of device `index`. Identifiers that are unique to a card, such as the UUID, are invented."""
        unknown = dict.fromkeys(vars(known), 0) | {"gcnArchName": ""}
        card: dict[str, TorchAny] = {"uuid": uuid.uuid5(uuid.NAMESPACE_OID, f"{name}/{index}"), "pci_bus_id": index + 1}
        return cls(name=name, total_memory=capacity_bytes, **card, **unknown | known.known())

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name.startswith("_") or name in vars(self)]

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // _MIB}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={(self.L2_cache_size or 0) // _MIB}MB)"
        )
