"""What a script reads from `torch.cuda.get_device_properties`: recorded where the trace knows it, else the chip's.

    properties = DeviceProperties.of("Tesla V100-SXM2-16GB", 16_945_512_448, trace.devices[0].properties)
    properties.multi_processor_count   # 80, recorded
    properties.L2_cache_size           # 6 MiB, from the table of chips

Three sources, in this order: the recording (`traces.model.Device.properties`); the chip that
the device's name tells (figures of NVIDIA's tuning guides and datasheets); and, for a name nobody knows, a chip of the
smallest kind that today's PyTorch supports, so that scripts which ask for a capability take no path that the device may
lack.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from traces.machine import DeviceProperties as RecordedProperties

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB


class Chip(NamedTuple):
    """What all boards of one chip have in common. Shared memory: per multiprocessor and per block."""

    major: int
    minor: int
    multi_processors: int
    l2_bytes: int
    threads_per_multi_processor: int
    shared_bytes: int
    shared_optin_bytes: int
    memory_bytes: int  # of the usual board; what a recording says goes first


# A part of the device's name -> its chip. The first match counts, so longer names stand first.
CHIPS: dict[str, Chip] = {
    "K80": Chip(3, 7, 13, 1536 * _KIB, 2048, 112 * _KIB, 48 * _KIB, 11_996_954_624),
    "M40": Chip(5, 2, 24, 3 * _MIB, 2048, 96 * _KIB, 48 * _KIB, 11_996_954_624),
    "P100": Chip(6, 0, 56, 4 * _MIB, 2048, 64 * _KIB, 48 * _KIB, 17_071_734_784),
    "V100": Chip(7, 0, 80, 6 * _MIB, 2048, 96 * _KIB, 96 * _KIB, 16_945_512_448),
    "RTX 6000 Ada": Chip(8, 9, 142, 96 * _MIB, 1536, 100 * _KIB, 99 * _KIB, 51_038_978_048),
    "RTX 6000": Chip(7, 5, 72, 6 * _MIB, 1024, 64 * _KIB, 64 * _KIB, 25_386_352_640),
    "RTX 2080 Ti": Chip(7, 5, 68, 5632 * _KIB, 1024, 64 * _KIB, 64 * _KIB, 11_554_717_696),
    "T4": Chip(7, 5, 40, 4 * _MIB, 1024, 64 * _KIB, 64 * _KIB, 15_843_721_216),
    "A100-SXM4-80GB": Chip(8, 0, 108, 40 * _MIB, 2048, 164 * _KIB, 163 * _KIB, 85_100_068_864),
    "A100": Chip(8, 0, 108, 40 * _MIB, 2048, 164 * _KIB, 163 * _KIB, 42_314_694_656),
    "A10G": Chip(8, 6, 80, 6 * _MIB, 1536, 100 * _KIB, 99 * _KIB, 23_836_819_456),
    "RTX 3090": Chip(8, 6, 82, 6 * _MIB, 1536, 100 * _KIB, 99 * _KIB, 25_447_170_048),
    "RTX 4090": Chip(8, 9, 128, 72 * _MIB, 1536, 100 * _KIB, 99 * _KIB, 25_393_692_672),
    "L4": Chip(8, 9, 58, 48 * _MIB, 1536, 100 * _KIB, 99 * _KIB, 23_580_639_232),
    "H100": Chip(9, 0, 132, 50 * _MIB, 2048, 228 * _KIB, 227 * _KIB, 85_029_158_912),
    "H200": Chip(9, 0, 132, 50 * _MIB, 2048, 228 * _KIB, 227 * _KIB, 150_110_011_392),
    "B200": Chip(10, 0, 148, 126 * _MIB, 2048, 228 * _KIB, 227 * _KIB, 191_514_411_008),
}
UNKNOWN_CHIP = Chip(7, 5, 40, 4 * _MIB, 1024, 64 * _KIB, 64 * _KIB, 16 * _GIB)


def chip_of(name: str) -> Chip:
    """The chip that a device's name tells, or UNKNOWN_CHIP."""
    return next((chip for part, chip in CHIPS.items() if part in name), UNKNOWN_CHIP)


@dataclass(frozen=True, repr=False)
class DeviceProperties:
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
    def of(cls, name: str, total_memory_bytes: int, recorded: RecordedProperties, index: int = 0) -> DeviceProperties:
        """The properties of device `index`; `total_memory_bytes` is not positive where nobody recorded it."""
        chip = chip_of(name)
        typical = RecordedProperties(
            major=chip.major,
            minor=chip.minor,
            multi_processor_count=chip.multi_processors,
            warp_size=32,
            max_threads_per_block=1024,
            max_threads_per_multi_processor=chip.threads_per_multi_processor,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=48 * _KIB,
            shared_memory_per_block_optin=chip.shared_optin_bytes,
            shared_memory_per_multiprocessor=chip.shared_bytes,
            L2_cache_size=chip.l2_bytes,
        )
        known = recorded.completed_by(typical).known()
        known.setdefault("gcnArchName", "" if "AMD" not in name else f"gfx{known['major']}{known['minor']}")
        return cls(
            name=name,
            total_memory=total_memory_bytes if total_memory_bytes > 0 else chip.memory_bytes,
            uuid=uuid.uuid5(uuid.NAMESPACE_OID, f"{name}/{index}"),
            pci_bus_id=index + 1,
            **known,
        )

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // _MIB}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // _MIB}MB)"
        )
