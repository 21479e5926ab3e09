"""Running out of device memory, in PyTorch's words.

    raise OutOfMemory(Figures(device=0, asked_bytes=20 << 20, capacity_bytes=16 << 30, free_bytes=0, ...), TODAY)
    # CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 16.00 GiB of which 0 bytes is ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replayer.memory.oom_text import Figures, fill

OomObserver = Callable[[int, int, int, int], None]  # device, bytes asked for, allowed or all, free


class OutOfMemory(MemoryError):
    """The device is full. `figures` are those at that moment; `template` is the recorded machine's own message, or today's.

    Whoever passes it on to the script tells the `observers` first, as PyTorch does: outside of the allocator.
    """

    def __init__(self, figures: Figures, template: str, observers: Sequence[OomObserver] = ()) -> None:
        self.figures = figures
        self._observers = observers
        super().__init__(fill(template, figures))

    def tell(self) -> None:
        """Tell the observers."""
        now = self.figures
        most_bytes = now.capacity_bytes if now.allowed_bytes is None else now.allowed_bytes
        for observer in self._observers:
            observer(now.device, now.asked_bytes, most_bytes, now.free_bytes)
