"""Fakes a CUDA build of torch on a machine with GPUs, with the attributes and functions that the recorder reads.

    torch = FakeTorch(cards=[A6000])
    facts = ProcessFacts(torch, rank=0, config=RecordConfig())     # tracer/provenance.py
    facts.device_row(0)
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

OOM_TEXT = (
    "CUDA out of memory. Tried to allocate 1048576.00 GiB. GPU 0 has a total capacity of 47.40 GiB of which 46.00 GiB is free."
)

# The result of `torch.cuda.get_device_properties` on an RTX A6000 with PyTorch 2.13. The real C++ object also has methods.
A6000: dict[str, Any] = {
    "name": "NVIDIA RTX A6000",
    "major": 8,
    "minor": 6,
    "total_memory": 50_898_993_152,
    "multi_processor_count": 84,
    "warp_size": 32,
    "max_threads_per_block": 1024,
    "max_threads_per_multi_processor": 1536,
    "regs_per_multiprocessor": 65_536,
    "shared_memory_per_block": 49_152,
    "shared_memory_per_block_optin": 101_376,
    "shared_memory_per_multiprocessor": 102_400,
    "L2_cache_size": 6_291_456,
    "clock_rate": 1_800_000,
    "memory_clock_rate": 8_001_000,
    "memory_bus_width": 384,
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
    "gcnArchName": "NVIDIA RTX A6000",
    "uuid": SimpleNamespace(bytes=b"0123456789abcdef"),
    "pci_bus_id": 101,
    "pci_device_id": 0,
    "pci_domain_id": 0,
}
OUTSIDE_BYTES = 450 << 20
USUAL_WORKSPACE_BYTES = 8_519_680


class FakeTorch(SimpleNamespace):
    """Fakes the module torch. Tests may change its attributes. `allocated_bytes` is PyTorch's memory on each GPU, and
    `cublas_bytes` that of cuBLAS.

    The fake has no functions that allocate memory, free memory or make the host wait.
    """

    class OutOfMemoryError(RuntimeError):
        pass

    def __init__(
        self, cards: Sequence[dict[str, Any]] = (A6000,), allocated_bytes: int = 3 << 20, cublas_bytes: int = 0
    ) -> None:
        def mem_get_info(index: int) -> tuple[int, int]:
            total_bytes = cards[index]["total_memory"]
            return total_bytes - allocated_bytes - OUTSIDE_BYTES, total_bytes

        def memory_snapshot() -> list[dict[str, Any]]:
            tensor = {"state": "active_allocated", "requested_size": 1000, "size": 1024}
            kept = {"state": "active_allocated", "requested_size": cublas_bytes, "size": cublas_bytes}
            freed = {"state": "inactive", "requested_size": USUAL_WORKSPACE_BYTES, "size": USUAL_WORKSPACE_BYTES}
            return [{"device": 0, "blocks": [tensor, kept, freed] if cublas_bytes else [tensor, freed]}]

        super().__init__(
            __version__="2.13.0+cu126",
            version=SimpleNamespace(cuda="12.6", hip=None),
            uint8="uint8",
            cuda=SimpleNamespace(
                get_device_properties=lambda index: SimpleNamespace(**cards[index]),
                current_device=lambda: 0,
                mem_get_info=mem_get_info,
                memory_reserved=lambda index: allocated_bytes,
                max_memory_allocated=lambda index: allocated_bytes,
                memory_snapshot=memory_snapshot,
                is_initialized=lambda: True,
                is_current_stream_capturing=lambda: False,
                nccl=SimpleNamespace(version=lambda: (2, 27, 5)),
            ),
            backends=SimpleNamespace(
                cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True)),
                cudnn=SimpleNamespace(allow_tf32=True, benchmark=True, deterministic=False),
            ),
            are_deterministic_algorithms_enabled=lambda: False,
            _C=SimpleNamespace(_cuda_getDriverVersion=lambda: 12080, _cudnn=SimpleNamespace(getVersionInt=lambda: 91002)),
        )
