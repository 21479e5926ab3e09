"""Emulates the recorded memory use of a function compiled by torch.compile.

A replay runs single ops instead of fused kernels, but reports the memory use of the fused kernels.

    memory = RegionMemory(allocator, stream=0)
    with memory.uncounted():
        y = graph(x)
    memory.play(requests)               # memory_allocated() rises and falls as recorded
    memory.end()                        # y gets a memory block if the recorded call left one allocated
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import ClassVar, NamedTuple, TypeVar

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.blocks import UsedStream
from replayer.memory.device.caching_allocator import SMALL_BYTES
from replayer.memory.device.settings import BLOCK_BYTES
from replayer.memory.tensor_allocator import TensorAllocator
from traces.script.patching import temporarily_set

Handle = TypeVar("Handle", bound=AllocationHandle)
_LOCK = RLock()
_FIRST_ADDRESS = 0x7F_0000_0000_0000


class BlockRequest(NamedTuple):
    """Describes a recorded allocation. A negative size means that memory was freed."""

    size_bytes: int
    block: int | None  # None if the memory was allocated before the call of the compiled function
    outlives: bool  # True if the call does not free the memory
    op: int  # number of ops that the call ran before this request


class _RegionHandle(AllocationHandle):
    __slots__ = ("real",)

    def __init__(self, owner: RegionMemory, size_bytes: int, stream: int, address: int) -> None:
        self.allocator, self.size_bytes, self.stream, self.address = owner, size_bytes, stream, address
        self.real: AllocationHandle | None = None

    def take(self, real: AllocationHandle | None) -> None:
        if real is not None:
            self.real, self.address = real, real.address


class RegionMemory:
    _next: ClassVar[int] = _FIRST_ADDRESS

    def __init__(
        self, allocator: TensorAllocator, stream: int, kept: Sequence[AllocationHandle] = (), workspaces: Iterable[int] = ()
    ) -> None:
        """`workspaces` contains the sizes of cuBLAS workspaces, which the run allocates without this class."""
        self._workspaces = list(workspaces)
        self._allocator = allocator
        self._stream = stream
        self._alive: dict[int, _RegionHandle] = {}
        # memory that is freed during the run, such as the saved tensors of a backward pass
        self._freed: list[AllocationHandle] = []
        self._kept = list(kept)
        self._blocks: dict[int, AllocationHandle] = {}

    @contextmanager
    def uncounted(self, *, workspaces: bool) -> Iterator[None]:
        """In the `with` block, this thread's allocations do not count as memory of the device. Another thread waits until this
        block ends before it enters its own block."""
        own: dict[str, Callable[..., object]] = {"malloc_kept": self.malloc} if workspaces else {}
        own |= {"malloc": self.malloc, "free": self._free_later}
        with _LOCK:
            here = {name: _in_this_thread(call, getattr(self._allocator, name)) for name, call in own.items()}
            with temporarily_set(self._allocator, **here):
                yield

    def _free_later(self, handle: AllocationHandle) -> None:
        if handle.allocator is self._allocator:
            self._freed.append(handle)
        else:
            handle.allocator.free(handle)

    def malloc(self, size_bytes: int, stream: int) -> AllocationHandle | None:
        if not size_bytes:
            return None
        address = self._next
        RegionMemory._next += _rounded(size_bytes)
        self._alive[address] = made = _RegionHandle(self, size_bytes, stream, address)
        return made

    def free(self, handle: AllocationHandle) -> None:
        assert isinstance(handle, _RegionHandle)
        if handle.real is not None:
            self._allocator.free(handle.real)
        else:
            self._alive.pop(handle.address, None)

    def record_stream(self, handle: AllocationHandle, stream: UsedStream) -> None:
        if isinstance(handle, _RegionHandle) and handle.real is not None:
            self._allocator.record_stream(handle.real, stream)

    def play(self, requests: Iterable[BlockRequest]) -> None:
        """Allocate and free memory as a compiled function did in the recording. Raises OutOfMemory."""
        for size_bytes, block, outlives, _op in requests:
            if size_bytes > 0:
                taker = _best(self._alive.values(), size_bytes) if outlives else None
                if outlives and taker is None and self._is_workspace(size_bytes):
                    continue
                made = self._allocator.malloc(size_bytes if taker is None else taker.size_bytes, self._stream)
                assert made is not None
                if taker is not None:
                    del self._alive[taker.address]
                    taker.take(made)
                elif block is not None:
                    self._blocks[block] = made
                continue
            freed = self._blocks.pop(block, None) if block is not None else None
            for handles in (self._freed, self._kept):
                if freed is None and (freed := _best(handles, -size_bytes)) is not None:
                    handles.remove(freed)
            if freed is not None:
                self._allocator.free(freed)

    def _is_workspace(self, block_bytes: int) -> bool:
        """Return True for the first block that may be one of the workspaces. Each workspace is one block."""
        found = next((size_bytes for size_bytes in self._workspaces if _fits(size_bytes, block_bytes)), None)
        if found is not None:
            self._workspaces.remove(found)
        return found is not None

    def end(self) -> list[AllocationHandle]:
        for handle in list(self._alive.values()):
            reused = next((freed for freed in self._freed if _rounded(freed.size_bytes) == _rounded(handle.size_bytes)), None)
            if reused is not None:
                self._freed.remove(reused)
                del self._alive[handle.address]
                handle.take(reused)
        for left in (*self._freed, *self._kept):
            self._allocator.free(left)
        return list(self._blocks.values())


def _in_this_thread(call: Callable[..., object], otherwise: Callable[..., object]) -> Callable[..., object]:
    thread = get_ident()
    return lambda *args: call(*args) if get_ident() == thread else otherwise(*args)


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _best(handles: Iterable[Handle], block_bytes: int) -> Handle | None:
    fitting = (one for one in handles if _fits(one.size_bytes, block_bytes))
    return max(fitting, key=lambda one: one.size_bytes, default=None)


def _fits(size_bytes: int, block_bytes: int) -> bool:
    """Return True if PyTorch may use a block of the given size for a request. PyTorch leaves up to 1 MiB of a block unused."""
    smallest = block_bytes - (SMALL_BYTES if block_bytes > SMALL_BYTES else 0)
    return smallest <= _rounded(size_bytes) <= block_bytes
