"""Emulates cuBLAS workspaces. PyTorch allocates a workspace when a thread computes its first matrix product on a CUDA stream.

    workspaces = BlasWorkspaces(trace.machine_of(0), [8])   # devices of compute capability 8.x
    workspaces.use(allocator, stream)       # the first call on a stream allocates 8.125 MiB, later calls nothing
    workspaces.clear()                                      # torch._C._cuda_clearCublasWorkspaces

This module reimplements PyTorch's aten/src/ATen/cuda/CublasHandlePool.cpp and detail/DeviceThreadHandles.h.

Note [Releases that keep workspaces]
    PyTorch 2.0 to 2.14 keeps one cuBLAS workspace per handle and stream. In PyTorch 2.11, cuBLASLt keeps an additional
    workspace of 1 MiB per handle and stream. Since PyTorch 2.15, each matrix product allocates a workspace and frees it again.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Protocol

import torch

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.tensor_allocator import TensorAllocator
from traces.model.machine import Machine
from traces.names.cublas_workspace import configured_bytes, keeps_workspaces, lt_workspace_bytes, workspace_bytes

_in_backward = torch._C._current_graph_task_id


class NumberedStream(Protocol):
    device: int
    number: int
    own_number: int


Handle = tuple[str, int]  # a cuBLAS handle: the kind of thread, and the handle's number


class _ThreadHandles:
    def __init__(self, idle: dict[int, list[Handle]]) -> None:
        self._idle = idle
        self.handles: dict[int, Handle] = {}

    def __del__(self) -> None:
        for device, handle in self.handles.items():
            self._idle.setdefault(device, []).append(handle)


class BlasWorkspaces:
    def __init__(self, machine: Machine, majors: Sequence[int], architectures: Sequence[str | None] = ()) -> None:
        release = machine.release if machine.cuda or machine.hip else None
        self.kept = keeps_workspaces(release, is_amd=not machine.cuda)
        of_amd = [*architectures, *[None] * (len(majors) - len(architectures))]
        self.default_bytes = [workspace_bytes(major, amd, release) for major, amd in zip(majors, of_amd, strict=True)]
        self._chosen_bytes: int | None = None
        self.lt_bytes = lt_workspace_bytes(release, is_amd=not machine.cuda)
        self._held: dict[tuple[Handle, int, int], AllocationHandle] = {}
        self._held_lt: dict[tuple[Handle, int, int], AllocationHandle] = {}
        self._idle: dict[int, list[Handle]] = {}
        self._made = 0
        self._local = threading.local()
        self._lock = threading.Lock()

    def size_bytes(self, device: int) -> int:
        if self._chosen_bytes is None:
            return _configured_bytes(os.environ.get("CUBLAS_WORKSPACE_CONFIG"), self.default_bytes[device])
        return self._chosen_bytes

    def kept_bytes(self, device: int) -> tuple[int, ...]:
        """Return the sizes of the workspaces that PyTorch keeps on a device."""
        return (self.size_bytes(device), self.lt_bytes) if self.kept else ()

    def choose(self, size_bytes: int | None) -> None:
        """Set the size of new cuBLAS workspaces. None restores the default."""
        self._chosen_bytes = size_bytes

    def use(self, allocator: TensorAllocator, stream: NumberedStream) -> None:
        """Allocate a cuBLAS workspace for the thread's first matrix product on a CUDA stream. Raises torch.OutOfMemoryError."""
        device = stream.device
        key = self._handle(device), device, stream.own_number
        held = self._held.get(key)
        if held is not None and self._chosen_bytes is None:
            return
        size_bytes = self.size_bytes(device)
        if not size_bytes or (held is not None and held.size_bytes >= size_bytes):
            return
        handle = _allocate(allocator, size_bytes, stream)
        if handle is None:
            return
        self._held[key] = handle
        if held is not None:
            allocator.free(held)

    def use_lt(self, allocator: TensorAllocator, stream: NumberedStream) -> None:
        key = self._handle(stream.device), stream.device, stream.own_number
        if self.lt_bytes and key not in self._held_lt and (handle := _allocate(allocator, self.lt_bytes, stream)) is not None:
            self._held_lt[key] = handle

    def clear(self) -> None:
        held = [*self._held.values(), *self._held_lt.values()]
        self._held, self._held_lt = {}, {}
        for handle in held:
            handle.allocator.free(handle)

    def _handle(self, device: int) -> Handle:
        """All autograd threads share one cuBLAS handle per GPU, as in PyTorch."""
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        if _in_backward() >= 0 and not getattr(compiled, "in_compiled_autograd_region", False):
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


def _allocate(allocator: TensorAllocator, size_bytes: int, stream: NumberedStream) -> AllocationHandle | None:
    try:
        handle = allocator.malloc_kept(size_bytes, stream.number)
    except OutOfMemory as full:
        raise full.to_torch() from None
    assert handle is not None
    return handle if handle.allocator is allocator else None  # during the capture of a CUDA graph, the graph owns the workspace


def _configured_bytes(text: str | None, default_bytes: int) -> int:
    if text is None:
        return default_bytes
    own_bytes = configured_bytes(text)
    if own_bytes is None:
        warnings.warn(f"CUBLAS_WORKSPACE_CONFIG={text} is invalid; write :SIZE_KIB:COUNT", stacklevel=2)
        return default_bytes
    return own_bytes
