"""cuBLAS's workspaces: memory that PyTorch takes at the first matrix product of a thread on a stream, and keeps.

    workspaces = BlasWorkspaces(trace.machine_of(0), [8])        # devices of compute capability 8.x
    workspaces.use(gpu.devices[0], stream=0)                # 8.125 MiB the first time, nothing from then on
    workspaces.clear()                                      # torch._C._cuda_clearCublasWorkspaces

They count in `memory_allocated`: 16.25 MiB for a model that trains, since autograd's thread has a handle of its own.
Reference: aten/src/ATen/cuda/CublasHandlePool.cpp and detail/DeviceThreadHandles.h.

Note [Whose workspaces are known]
    From PyTorch 2.10 to 2.13 cuBLAS and cuBLASLt share one kept workspace of known size per handle and stream. Before,
    cuBLASLt had others; later releases take a workspace for each product and give it back, which a recording's memory events
    show (workspaces.py). So they are kept here only where a recording says that its PyTorch was one of these, built for
    CUDA; what an imported recording tells of its release is too vague. No recording brings a baseline of allocated memory
    into a replay, so nothing is counted twice.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from replayer.memory.caching_allocator import OutOfMemory
from replayer.memory.deferred import AllocationHandle
from replayer.tensor.allocation import out_of_memory
from traces.machine import Machine

if TYPE_CHECKING:
    from replayer.gpu import VirtualDevice

_KEPT_SINCE, _KEPT_BEFORE = (2, 10), (2, 14)
_USUAL_BYTES = (2 * 4096 + 8 * 16) << 10
_LARGE_BYTES = 32 << 20  # Hopper, and from 2.12 on Blackwell
_in_backward = torch._C._current_graph_task_id

Handle = tuple[str, int]  # whose it is, and which of theirs


class _Tenancy:
    """A thread's hold on its handles, one per device; kept by the thread alone, so they go back to the pool with it."""

    def __init__(self, idle: dict[int, list[Handle]]) -> None:
        self._idle = idle
        self.handles: dict[int, Handle] = {}

    def __del__(self) -> None:
        for device, handle in self.handles.items():
            self._idle.setdefault(device, []).append(handle)


class BlasWorkspaces:
    """Those of one process. `machine` is what was recorded; `majors` are the devices' compute capabilities."""

    def __init__(self, machine: Machine, majors: Sequence[int]) -> None:
        release = machine.release if machine.cuda else None
        self.kept = release is not None and _KEPT_SINCE <= release < _KEPT_BEFORE
        self._usual_bytes = [_LARGE_BYTES if _is_large(major, release) else _USUAL_BYTES for major in majors]
        self._chosen_bytes: int | None = None  # what the script has set
        self._held: dict[tuple[Handle, int, int], AllocationHandle] = {}  # by handle, device and stream
        self._idle: dict[int, list[Handle]] = {}
        self._made = 0
        self._local = threading.local()
        self._lock = threading.Lock()

    def size_bytes(self, device: int) -> int:
        """Of a workspace taken now: what the script has set, else CUBLAS_WORKSPACE_CONFIG, else the device's usual size."""
        if self._chosen_bytes is None:
            return _configured_bytes(os.environ.get("CUBLAS_WORKSPACE_CONFIG"), self._usual_bytes[device])
        return self._chosen_bytes

    def choose(self, size_bytes: int | None) -> None:
        """Workspaces are of this size from their next use on, unless they are larger already; None: as usual."""
        self._chosen_bytes = size_bytes

    def use(self, device: VirtualDevice, stream: int) -> None:
        """The calling thread multiplies matrices on this stream. Raises torch.OutOfMemoryError."""
        key = self._handle(device.index), device.index, stream
        held = self._held.get(key)
        if held is not None and self._chosen_bytes is None:
            return
        size_bytes = self.size_bytes(device.index)
        if not size_bytes or (held is not None and held.size_bytes >= size_bytes):
            return
        try:
            handle = device.allocator.malloc(size_bytes, stream)
        except OutOfMemory as full:
            raise out_of_memory(full) from None
        assert handle is not None
        self._held[key] = handle
        if held is not None:
            held.deferred.free(held)

    def clear(self) -> None:
        """Give all of them back; the next product takes a new one."""
        held, self._held = self._held, {}
        for handle in held.values():
            handle.deferred.free(handle)

    def _handle(self, device: int) -> Handle:
        """Autograd has a thread for each device; any other thread has the first handle that no living one holds."""
        if _in_backward() >= 0:
            return "autograd", device
        try:
            return self._local.tenancy.handles[device]  # type: ignore[no-any-return]
        except (AttributeError, KeyError):
            return self._new_handle(device)

    def _new_handle(self, device: int) -> Handle:
        tenancy: _Tenancy | None = getattr(self._local, "tenancy", None)
        if tenancy is None:
            tenancy = self._local.tenancy = _Tenancy(self._idle)
        with self._lock:
            idle = self._idle.get(device)
            if idle:
                handle = idle.pop()
            else:
                self._made += 1
                handle = "thread", self._made
        tenancy.handles[device] = handle
        return handle


def _is_large(major: int, release: tuple[int, int] | None) -> bool:
    return major == 9 or (major in (10, 11, 12) and (release is None or release >= (2, 12)))


def _configured_bytes(text: str | None, usual_bytes: int) -> int:
    """":4096:2:16:8" is two pieces of 4096 KiB and eight of 16."""
    if text is None:
        return usual_bytes
    pieces = re.findall(r":([0-9]+):([0-9]+)", text)
    if not pieces:
        warnings.warn(f"CUBLAS_WORKSPACE_CONFIG={text} is none; write :SIZE_KIB:COUNT", stacklevel=2)
        return usual_bytes
    return sum((int(size) << 10) * int(count) for size, count in pieces)
