"""Creates out-of-memory errors with the same text as PyTorch.

    oom_text("CUDA out of memory. Tried to allocate 9.00 GiB (GPU 0; 7.79 GiB total capacity; ...)", figures)
    # "CUDA out of memory. Tried to allocate 314.00 MiB (GPU 1; 7.79 GiB total capacity; ...)"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

# For requests of at least 1 EiB, PyTorch raises a shorter out-of-memory message.
EXABYTE = 1 << 60
OomObserver = Callable[[int, int, int, int], None]

# The text of PyTorch 2.10, with the original double spaces
DEFAULT_OOM_TEXT = (
    "CUDA out of memory. Tried to allocate 0 bytes. GPU 0 has a total capacity of 0 bytes of which 0 bytes is free. Including"
    " non-PyTorch memory, this process has 0 bytes memory in use. Of the allocated memory 0 bytes is allocated by PyTorch, and"
    " 0 bytes is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory"
    " Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)

# see pytorch/pytorch#172327
_ADVICE_OF_2_10 = DEFAULT_OOM_TEXT[DEFAULT_OOM_TEXT.index("PYTORCH_ALLOC_CONF") :]
_ADVICE_SINCE_2_11 = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
    "  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


def oom_text_of(torch_version: str) -> str:
    release = tuple(int(number) for number in re.findall(r"\d+", torch_version)[:2])
    return DEFAULT_OOM_TEXT.replace(_ADVICE_OF_2_10, _ADVICE_SINCE_2_11) if release >= (2, 11) else DEFAULT_OOM_TEXT


class Figures(NamedTuple):
    device: int
    asked_bytes: int
    capacity_bytes: int
    free_bytes: int
    process_bytes: int
    allowed_bytes: int | None
    allocated_bytes: int
    reserved_bytes: int


class OutOfMemory(MemoryError):
    def __init__(self, figures: Figures, template: str, observers: Sequence[OomObserver] = ()) -> None:
        self.figures = figures
        is_absurd = figures.asked_bytes >= EXABYTE
        self._observers = () if is_absurd else observers
        too_large = "CUDA out of memory. Tried to allocate more than 1EB memory."
        super().__init__(too_large if is_absurd else oom_text(template, figures))

    def to_torch(self) -> torch.OutOfMemoryError:
        import torch  # `trace fit` runs without torch

        figures = self.figures
        limit_bytes = figures.capacity_bytes if figures.allowed_bytes is None else figures.allowed_bytes
        for observer in self._observers:
            observer(figures.device, figures.asked_bytes, limit_bytes, figures.free_bytes)
        return torch.OutOfMemoryError(str(self))


_SIZE = r"\d+(?:\.\d+)? (?:bytes|[KMGTPE]iB)"

# The patterns match messages of PyTorch 1.0 to 2.0, and of PyTorch 2.1 and later
_PLACES: tuple[tuple[str, Callable[[Figures], int]], ...] = (
    (rf"(?<=Tried to allocate ){_SIZE}", lambda figures: figures.asked_bytes),
    (rf"{_SIZE}(?= total capacity)|(?<=total capacity of ){_SIZE}", lambda figures: figures.capacity_bytes),
    (rf"{_SIZE}(?= free\b)|(?<=of which ){_SIZE}(?= is free)", lambda figures: figures.free_bytes),
    (rf"(?<=this process has ){_SIZE}(?= memory in use)", lambda figures: figures.process_bytes),
    (rf"{_SIZE}(?= already allocated| is allocated by PyTorch)", lambda figures: figures.allocated_bytes),
    (rf"{_SIZE}(?= reserved in total by PyTorch| cached\))", lambda figures: figures.reserved_bytes),
    (
        rf"{_SIZE}(?= is reserved by PyTorch but unallocated)",
        lambda figures: figures.reserved_bytes - figures.allocated_bytes,
    ),
)

# parts of PyTorch's message that are wrong in a replay, such as the memory of other processes
_OPTIONAL_CLAUSES = (
    rf" Process \d+ has {_SIZE} memory in use\.",
    rf" with {_SIZE} allocated in private pools \(e\.g\., CUDA Graphs\),",
    rf"{_SIZE} allowed; ",
)
_BEFORE_ALLOWED = re.compile(r"(?: free; |memory in use\. )")


def oom_text(template: str, figures: Figures) -> str:
    """Replace the memory sizes in a recorded out-of-memory message by those of the replay."""
    if not re.search(rf"Tried to allocate {_SIZE}", template):
        template = DEFAULT_OOM_TEXT
    text = template
    for clause in _OPTIONAL_CLAUSES:
        text = re.sub(clause, "", text)
    if figures.allowed_bytes is not None and (place := _BEFORE_ALLOWED.search(text)):
        text = f"{text[: place.end()]}{size_text(figures.allowed_bytes)} allowed; {text[place.end() :]}"
    text = re.sub(r"\bGPU \d+", f"GPU {figures.device}", text, count=1)
    for pattern, value in _PLACES:
        text = re.sub(pattern, size_text(value(figures)), text, count=1)
    return text


def size_text(size_bytes: int) -> str:
    """Return a size as in PyTorch's error messages: "1024 bytes", "1.50 KiB", "20.00 MiB", "16.00 GiB"."""
    if size_bytes <= 1 << 10:
        return f"{size_bytes} bytes"
    for unit, shift in (("KiB", 10), ("MiB", 20)):
        if size_bytes <= 1 << shift + 10:
            return f"{size_bytes / (1 << shift):.2f} {unit}"
    return f"{size_bytes / (1 << 30):.2f} GiB"
