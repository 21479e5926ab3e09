"""Running out of device memory, in PyTorch's words.

    raise OutOfMemory(device=0, asked_bytes=20 << 20, capacity_bytes=16 << 30, free_bytes=0, ...)
    # CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 16.00 GiB of which 0 bytes is ...

The wording is that of PyTorch 2.10 to 2.13, two double spaces included.
"""

from __future__ import annotations


class OutOfMemory(MemoryError):
    """The device is full, with all figures at that moment. `asked_bytes` is the segment's size, not the tensor's."""

    def __init__(
        self,
        *,
        device: int,
        asked_bytes: int,
        capacity_bytes: int,
        free_bytes: int,
        process_bytes: int,
        allowed_bytes: int | None,
        allocated_bytes: int,
        reserved_bytes: int,
    ) -> None:
        self.device = device
        self.asked_bytes = asked_bytes
        self.capacity_bytes = capacity_bytes
        self.free_bytes = free_bytes
        self.process_bytes = process_bytes  # all that this process holds on the device, PyTorch's and other memory
        self.allowed_bytes = allowed_bytes  # None unless a fraction was set
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        allowed = f"{size_text(allowed_bytes)} allowed; " if allowed_bytes is not None else ""
        super().__init__(
            f"CUDA out of memory. Tried to allocate {size_text(asked_bytes)}. GPU {device} has a total capacity of"
            f" {size_text(capacity_bytes)} of which {size_text(free_bytes)} is free. Including non-PyTorch memory, this"
            f" process has {size_text(process_bytes)} memory in use. {allowed}Of the allocated memory"
            f" {size_text(allocated_bytes)} is allocated by PyTorch, and {size_text(reserved_bytes - allocated_bytes)}"
            " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
            " PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory"
            " Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )


def size_text(size_bytes: int) -> str:
    """As CUDACachingAllocator's format_size: "1024 bytes", "1.50 KiB", "20.00 MiB", "16.00 GiB"."""
    if size_bytes <= 1 << 10:
        return f"{size_bytes} bytes"
    for unit, shift in (("KiB", 10), ("MiB", 20)):
        if size_bytes <= 1 << shift + 10:
            return f"{size_bytes / (1 << shift):.2f} {unit}"
    return f"{size_bytes / (1 << 30):.2f} GiB"
