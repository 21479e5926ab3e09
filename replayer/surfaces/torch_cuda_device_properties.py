"""What a script gets from `torch.cuda.get_device_properties`: the recorded properties, else those of the card.

    TorchDeviceProperties.of("Tesla T4", 16 << 30, known_properties(device)).L2_cache_size      # 4 MiB
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from traces.machine import DeviceProperties

_MIB = 1 << 20


@dataclass(frozen=True, repr=False)
class TorchDeviceProperties:
    """The attributes of torch's `_CudaDeviceProperties`, under the same names; bytes, kHz, 0 if unknown."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    warp_size: int
    max_threads_per_block: int
    max_threads_per_multi_processor: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    uuid: uuid.UUID
    pci_bus_id: int
    gcnArchName: str = ""
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    clock_rate: int = 0
    memory_clock_rate: int = 0
    memory_bus_width: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0

    @classmethod
    def of(cls, name: str, capacity_bytes: int, known: DeviceProperties, index: int = 0) -> TorchDeviceProperties:
        """The properties of device `index`. What names the very card is made up, and differs from device to device."""
        return cls(
            name=name,
            total_memory=capacity_bytes,
            uuid=uuid.uuid5(uuid.NAMESPACE_OID, f"{name}/{index}"),
            pci_bus_id=index + 1,
            **known.known(),
        )

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // _MIB}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // _MIB}MB)"
        )
