"""cuBLAS workspaces: memory that PyTorch allocates at the first matrix product of a thread on a stream, and keeps.

    workspaces = BlasWorkspaces(trace.machine_of(0), [8])   # devices of compute capability 8.x
    workspaces.use(allocator, device=0, stream=0)           # allocates 8.125 MiB the first time, nothing from then on
    workspaces.clear()                                      # torch._C._cuda_clearCublasWorkspaces

They count in `memory_allocated`: 16.25 MiB for a model that trains, since autograd's thread has a handle of its own.
Reference: aten/src/ATen/cuda/CublasHandlePool.cpp and detail/DeviceThreadHandles.h.

Note [Releases that keep workspaces]
    In PyTorch 2.0 to 2.13, cuBLAS keeps one workspace of known size per handle and stream (with ROCm, hipBLAS since 2.6). Until
    2.9, cuBLASLt allocates additional memory, which it frees again. Later releases allocate and free a workspace per product.
    Workspaces that are freed again are in a recording's memory events (recording/workspaces.py). So this module keeps
    workspaces if the recording names one of these releases. Imported recordings do not name their exact release; for them the
    memory events decide (recording/kept_workspaces.py). A replay does not start with the recording's allocated memory, so
    nothing is counted twice. Recordings show the sizes: those of one model start with 96 MiB more on an MI300X than on an H100.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Sequence

import torch

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.tensor_allocator import TensorAllocator
from traces.model.machine import Machine
from traces.names.cublas_workspace import keeps_workspaces, workspace_bytes

_in_backward = torch._C._current_graph_task_id

Handle = tuple[str, int]  # a cuBLAS handle: kind of its thread, number


class _ThreadHandles:
    """The handles of a thread, one per device. Referenced by the thread only, so they return to the pool when it ends."""

    def __init__(self, idle: dict[int, list[Handle]]) -> None:
        self._idle = idle
        self.handles: dict[int, Handle] = {}

    def __del__(self) -> None:
        for device, handle in self.handles.items():
            self._idle.setdefault(device, []).append(handle)


class BlasWorkspaces:
    """The workspaces of one process. `machine` is the recorded one; `majors` are the devices' compute capabilities, and
    `architectures` what AMD's are called ("gfx942")."""

    def __init__(self, machine: Machine, majors: Sequence[int], architectures: Sequence[str | None] = ()) -> None:
        release = machine.release if machine.cuda or machine.hip else None
        self.kept = keeps_workspaces(release, is_amd=not machine.cuda)
        of_amd = [*architectures, *[None] * (len(majors) - len(architectures))]
        self._default_bytes = [workspace_bytes(major, amd, release) for major, amd in zip(majors, of_amd, strict=True)]
        self._chosen_bytes: int | None = None  # set by the script
        self._held: dict[tuple[Handle, int, int], AllocationHandle] = {}  # by handle, device and stream
        self._idle: dict[int, list[Handle]] = {}
        self._made = 0
        self._local = threading.local()
        self._lock = threading.Lock()

    def size_bytes(self, device: int) -> int:
        """The size of a new workspace: set by the script, else CUBLAS_WORKSPACE_CONFIG, else the device's default."""
        if self._chosen_bytes is None:
            return _configured_bytes(os.environ.get("CUBLAS_WORKSPACE_CONFIG"), self._default_bytes[device])
        return self._chosen_bytes

    @property
    def usual_bytes(self) -> frozenset[int]:
        """The sizes that the devices' workspaces have by default."""
        return frozenset(self._default_bytes)

    def choose(self, size_bytes: int | None) -> None:
        """Set the minimum size of workspaces from their next use on; None: the default size."""
        self._chosen_bytes = size_bytes

    def use(self, allocator: TensorAllocator, device: int, stream: int) -> None:
        """Allocate the calling thread's workspace for matrix products on this stream of `device`, if it has none yet.

        Raises torch.OutOfMemoryError.
        """
        key = self._handle(device), device, stream
        held = self._held.get(key)
        if held is not None and self._chosen_bytes is None:
            return
        size_bytes = self.size_bytes(device)
        if not size_bytes or (held is not None and held.size_bytes >= size_bytes):
            return
        try:
            handle = allocator.malloc(size_bytes, stream)
        except OutOfMemory as full:
            raise full.to_torch() from None
        assert handle is not None
        self._held[key] = handle
        if held is not None:
            allocator.free(held)

    def clear(self) -> None:
        """Free all workspaces; the next product allocates a new one."""
        held, self._held = self._held, {}
        for handle in held.values():
            handle.allocator.free(handle)

    def _handle(self, device: int) -> Handle:
        """Autograd has a thread for each device; any other thread gets a handle that no living thread has."""
        if _in_backward() >= 0:
            return "autograd", device
        try:
            return self._local.of_thread.handles[device]  # type: ignore[no-any-return]
        except (AttributeError, KeyError):
            return self._new_handle(device)

    def _new_handle(self, device: int) -> Handle:
        of_thread: _ThreadHandles | None = getattr(self._local, "of_thread", None)
        if of_thread is None:
            of_thread = self._local.of_thread = _ThreadHandles(self._idle)
        with self._lock:
            idle = self._idle.get(device)
            if idle:
                handle = idle.pop()
            else:
                self._made += 1
                handle = "thread", self._made
        of_thread.handles[device] = handle
        return handle


def _configured_bytes(text: str | None, default_bytes: int) -> int:
    """ ":4096:2:16:8" is two pieces of 4096 KiB and eight of 16."""
    if text is None:
        return default_bytes
    pieces = re.findall(r":([0-9]+):([0-9]+)", text)
    if not pieces:
        warnings.warn(f"CUBLAS_WORKSPACE_CONFIG={text} is none; write :SIZE_KIB:COUNT", stacklevel=2)
        return default_bytes
    return sum((int(size) << 10) * int(count) for size, count in pieces)
