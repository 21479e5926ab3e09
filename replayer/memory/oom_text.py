"""The text of an out-of-memory error, in the words of the PyTorch that was recorded.

The wording changes between releases, so a recorder provokes one absurd allocation and keeps the literal message. It serves as a
template: each figure is known by the words beside it and gets this moment's value. What no rule knows stays as it was.

    fill("CUDA out of memory. Tried to allocate 9.00 GiB (GPU 0; 7.79 GiB total capacity; ...)", figures)
    # "CUDA out of memory. Tried to allocate 314.00 MiB (GPU 1; 7.79 GiB total capacity; ...)"

Without a recorded message the one of PyTorch 2.10 to 2.13 is used, two double spaces included.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

TODAY = (
    "CUDA out of memory. Tried to allocate 0 bytes. GPU 0 has a total capacity of 0 bytes of which 0 bytes is free. Including"
    " non-PyTorch memory, this process has 0 bytes memory in use. Of the allocated memory 0 bytes is allocated by PyTorch, and"
    " 0 bytes is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory"
    " Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


class Figures(NamedTuple):
    """What there is to say when a device is full; bytes but for `device`."""

    device: int
    asked_bytes: int  # the segment's size, not the tensor's
    capacity_bytes: int
    free_bytes: int
    process_bytes: int  # all that this process holds on the device, PyTorch's and other memory
    allowed_bytes: int | None  # None unless a fraction was set
    allocated_bytes: int
    reserved_bytes: int


_SIZE = r"\d+(?:\.\d+)? (?:bytes|[KMGTPE]iB)"

# A figure -> the words around it: in the messages of PyTorch 1.0 to 2.0 ("cached" until 1.3), and in those from 2.1 on.
_PLACES: tuple[tuple[str, Callable[[Figures], int]], ...] = (
    (rf"(?<=Tried to allocate ){_SIZE}", lambda now: now.asked_bytes),
    (rf"{_SIZE}(?= total capacity)|(?<=total capacity of ){_SIZE}", lambda now: now.capacity_bytes),
    (rf"{_SIZE}(?= free\b)|(?<=of which ){_SIZE}(?= is free)", lambda now: now.free_bytes),
    (rf"(?<=this process has ){_SIZE}(?= memory in use)", lambda now: now.process_bytes),
    (rf"{_SIZE}(?= already allocated| is allocated by PyTorch)", lambda now: now.allocated_bytes),
    (rf"{_SIZE}(?= reserved in total by PyTorch| cached\))", lambda now: now.reserved_bytes),
    (rf"{_SIZE}(?= is reserved by PyTorch but unallocated)", lambda now: now.reserved_bytes - now.allocated_bytes),
)

# Said only when it holds: the replay has no other processes and no private pools; what is allowed is put in anew.
_SOMETIMES = (
    rf" Process \d+ has {_SIZE} memory in use\.",
    rf" with {_SIZE} allocated in private pools \(e\.g\., CUDA Graphs\),",
    rf"{_SIZE} allowed; ",
)
_BEFORE_ALLOWED = re.compile(r"(?: free; |memory in use\. )")


def fill(template: str, figures: Figures) -> str:
    """The message with these figures; a template that is no such message counts as none."""
    if not re.search(rf"Tried to allocate {_SIZE}", template):
        template = TODAY
    text = template
    for clause in _SOMETIMES:
        text = re.sub(clause, "", text)
    if figures.allowed_bytes is not None and (place := _BEFORE_ALLOWED.search(text)):
        text = f"{text[: place.end()]}{size_text(figures.allowed_bytes)} allowed; {text[place.end() :]}"
    text = re.sub(r"\bGPU \d+", f"GPU {figures.device}", text, count=1)
    for place_pattern, value in _PLACES:
        text = re.sub(place_pattern, size_text(value(figures)), text, count=1)
    return text


def size_text(size_bytes: int) -> str:
    """As CUDACachingAllocator's format_size: "1024 bytes", "1.50 KiB", "20.00 MiB", "16.00 GiB"."""
    if size_bytes <= 1 << 10:
        return f"{size_bytes} bytes"
    for unit, shift in (("KiB", 10), ("MiB", 20)):
        if size_bytes <= 1 << shift + 10:
            return f"{size_bytes / (1 << shift):.2f} {unit}"
    return f"{size_bytes / (1 << 30):.2f} GiB"
