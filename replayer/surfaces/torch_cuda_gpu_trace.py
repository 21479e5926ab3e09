"""Reports GPU calls to PyTorch's CUDA sanitizer, which finds data races between streams.

    TORCH_CUDA_SANITIZER=1 trace replay train.py --trace TRACE      # or torch.cuda._sanitizer.enable_cuda_sanitizer()
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType

import torch

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.tensor_allocator import TensorAllocator
from replayer.state import STATE, gpu, started
from replayer.surfaces.torch_cuda_streams import StreamPool, _CudaEventBase, _CudaStreamBase
from replayer.torch_types import TorchAny
from traces.script.patching import patch, patch_around


def install(torch_module: ModuleType) -> None:
    watch = lru_cache(maxsize=1)(_watch)  # start only once, even if the script activates the sanitizer several times

    def activate(activated: Callable[[], None]) -> None:
        activated()
        watch()

    patch_around(torch_module._C, _activate_gpu_trace=activate)


def _watch() -> None:
    patch_around(_CudaEventBase, record=_record, wait=_wait, synchronize=_synchronize_event)
    patch(_CudaStreamBase, wait_stream=_wait_stream)
    patch_around(StreamPool, next_id=_next_id)
    patch_around(torch._C, _cuda_synchronize=_synchronize_device)
    patch_around(TensorAllocator, __init__=_make_allocator)
    STATE.on_sync = _synchronize_stream
    here = started()
    for device in here.devices if here is not None else ():
        _watch_allocator(device.allocator)


def _record(record: Callable[..., None], event: TorchAny, stream: TorchAny = None) -> None:
    is_new = not event.cuda_event
    record(event, stream)
    if is_new:  # PyTorch creates CUDA events when it first records them
        _fire("EventCreation", event.cuda_event)
        weakref.finalize(event, _fire, "EventDeletion", event.cuda_event).atexit = False
    _fire("EventRecord", event.cuda_event, _handle(stream))


def _wait(wait: Callable[..., None], event: TorchAny, stream: TorchAny = None) -> None:
    wait(event, stream)
    if event.cuda_event:
        _fire("EventWait", event.cuda_event, _handle(stream))


def _wait_stream(self: TorchAny, stream: TorchAny) -> None:
    self.wait_event(stream.record_event())


def _synchronize_event(synchronize: Callable[..., None], event: TorchAny) -> None:
    if event.cuda_event:
        _fire("EventSynchronization", event.cuda_event)
    synchronize(event)


def _synchronize_stream(stream: TorchAny) -> None:
    _fire("StreamSynchronization", _handle(stream))


def _synchronize_device(synchronize: Callable[[], None]) -> None:
    _fire("DeviceSynchronization")
    synchronize()


def _next_id(next_id: Callable[..., int], pool: StreamPool, device: int, priority: int) -> int:
    known = len(pool.ids)
    stream_id = next_id(pool, device, priority)
    if len(pool.ids) > known:
        stream = _CudaStreamBase(stream_id=stream_id, device_index=device, device_type=1)
        _fire("StreamCreation", stream.cuda_stream)
    return stream_id


def _make_allocator(make: Callable[..., None], allocator: TensorAllocator, *args: TorchAny, **options: TorchAny) -> None:
    make(allocator, *args, **options)
    _watch_allocator(allocator)


def _watch_allocator(allocator: TensorAllocator) -> None:
    malloc, free = allocator.malloc, allocator.free

    def watched_malloc(size_bytes: int, stream: int) -> AllocationHandle | None:
        handle = malloc(size_bytes, stream)
        if handle is not None:
            _fire("MemoryAllocation", handle.address)
        return handle

    def watched_free(handle: AllocationHandle) -> None:
        _fire("MemoryDeallocation", handle.address)
        free(handle)

    patch(allocator, malloc=watched_malloc, free=watched_free)


def _handle(stream: TorchAny) -> int:
    handle: int = torch._C._cuda_getCurrentRawStream(gpu().current.device()) if stream is None else stream.cuda_stream
    return handle


def _fire(what: str, *handles: int) -> None:
    getattr(importlib.import_module("torch.cuda._gpu_trace"), f"{what}Callbacks").fire_callbacks(*handles)
