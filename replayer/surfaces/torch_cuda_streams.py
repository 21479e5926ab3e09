"""Emulates the streams and events of torch.cuda, and their synchronization.

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = f(x)                                        # y's kernels are timed on `side`
    torch.cuda.current_stream().wait_stream(side)

Note [Streams come from a pool]
    PyTorch creates at most 32 CUDA streams per device and priority. The 33rd call of `torch.cuda.Stream()` returns the first
    stream again.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType, TracebackType
from typing import Self

import torch

from replayer.cuda_error import CudaError
from replayer.errors import require
from replayer.gpu.virtual_gpu import VirtualGpu
from replayer.state import before_sync, gpu
from replayer.surfaces.patching import generic, refusal
from replayer.tensor.device_args import checked_index, current_index
from replayer.timing.stream import VirtualEvent, VirtualStream
from replayer.torch_types import TorchAny
from traces.script.patching import patch

POOL_STREAMS = 32
_CUDA = 1
_HIGHEST, _LOWEST = -3, 0  # see c10/cuda/CUDAStream.h
_HANDLE = 0x5555_1000_0000  # the made-up values of cudaStream_t and cudaEvent_t begin here

BaseStream: TorchAny = torch.Stream
BaseEvent: TorchAny = torch.Event


class StreamPool:
    def __init__(self, owner: VirtualGpu) -> None:
        self.owner = owner
        self._by_id = {(d.index, 0): d.default_stream for d in owner.devices}
        self.ids = {d.default_stream: 0 for d in owner.devices}
        self._next: dict[tuple[int, int], int] = {}

    def by_id(self, device: int, stream_id: int) -> VirtualStream:
        return self._by_id[checked_index(device), stream_id]

    def __contains__(self, place: tuple[int, float]) -> bool:
        return place in self._by_id

    def next_id(self, device: int, priority: int) -> int:
        turn = self._next.get((device, priority), 0)
        self._next[device, priority] = (turn + 1) % POOL_STREAMS
        stream_id = turn << 5 | (1 - priority) << 1 | 1
        if (device, stream_id) not in self._by_id:
            stream = self.owner.streams.new(device, priority)
            self._by_id[device, stream_id] = stream
            self.ids[stream] = stream_id
        return stream_id


class _CudaStreamBase(BaseStream):  # type: ignore[misc]
    """Replaces torch._C._CudaStreamBase. Two stream objects are equal if they stand for the same CUDA stream."""

    pool: Callable[[], StreamPool]
    virtual: VirtualStream
    _before: list[VirtualStream]

    def __new__(cls, device: TorchAny = None, priority: int = 0, **known: TorchAny) -> Self:
        if "stream_ptr" in known:
            refusal("torch.cuda.ExternalStream", "streams of other libraries do nothing here; use torch.cuda.Stream")()
        if unknown := known.keys() - {"stream_id", "device_index", "device_type"}:
            raise TypeError(f"'{min(unknown)}' is an invalid keyword argument for this function")
        if "stream_id" in known:
            index, stream_id = known["device_index"], known["stream_id"]
        else:
            index = _index(device)
            stream_id = cls.pool().next_id(index, max(_HIGHEST, min(_LOWEST, operator.index(priority))))
        self: Self = BaseStream.__new__(cls, stream_id=stream_id, device_index=index, device_type=_CUDA)
        self.virtual = cls.pool().by_id(index, stream_id)
        self._before = []
        return self

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.device_index)  # see replayer/backend.py

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return _LOWEST, _HIGHEST

    @property
    def priority(self) -> int:
        return self.virtual.priority

    @property
    def cuda_stream(self) -> int:
        return _HANDLE + (self.device_index << 20) + (self.stream_id << 4) if self.stream_id else 0

    native_handle = cuda_stream

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def wait_event(self, event: TorchAny) -> None:
        event.wait(self)

    def wait_stream(self, stream: TorchAny) -> None:
        if not isinstance(stream, _CudaStreamBase):
            self.wait_event(stream.record_event())  # raises an AttributeError, as PyTorch's wait_stream does
            return
        _require_same_capture(self.virtual, stream.virtual)
        gpu().streams.wait_stream(self.virtual, stream.virtual)

    def record_event(self, event: TorchAny = None) -> TorchAny:
        event = event if event is not None else Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return gpu().streams.query(self.virtual)

    def synchronize(self) -> None:
        before_sync(self)
        gpu().streams.synchronize(self.virtual)

    def is_capturing(self) -> bool:
        return gpu().launches.is_capturing(self.virtual)

    def __enter__(self) -> Self:
        self._before += [gpu().current.stream(gpu().current.device()), gpu().current.stream(self.device_index)]
        gpu().current.set_stream(self.virtual)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        gpu().current.set_stream(self._before.pop())
        gpu().current.set_stream(self._before.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CudaStreamBase) and self.virtual is other.virtual

    def __hash__(self) -> int:
        return hash((self.cuda_stream, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Stream(_CudaStreamBase):
    """Replaces torch.cuda.Stream."""


class ExternalStream(Stream):
    """Raises NotEmulated for real CUDA streams."""

    def __new__(cls, stream_ptr: int | None, device: TorchAny = None, **known: TorchAny) -> Self:
        index = _index(device)
        require(isinstance(stream_ptr, int | None), f"stream_ptr must be an int or None, got {type(stream_ptr).__name__}")
        stream_id = (stream_ptr - _HANDLE - (index << 20)) / 16 if stream_ptr else 0
        if (index, stream_id) not in cls.pool():
            refusal("torch.cuda.ExternalStream", "streams of other libraries do nothing here; use torch.cuda.Stream")()
        return super().__new__(cls, device_index=index, stream_id=int(stream_id), device_type=_CUDA)


class _CudaEventBase(BaseEvent):  # type: ignore[misc]
    """Replaces torch._C._CudaEventBase. The argument `blocking` has no effect."""

    virtual: VirtualEvent
    enable_timing: bool
    interprocess: bool
    device_index: int | None

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> Self:
        flags = [bool(operator.index(flag)) for flag in (enable_timing, blocking, interprocess, external)]
        self: Self = BaseEvent.__new__(cls, device="cpu")
        self.enable_timing, _, self.interprocess, is_external = flags
        self.virtual = VirtualEvent(external=is_external)
        self.device_index = None
        return self

    @property
    def device(self) -> torch.device | None:
        return None if self.device_index is None else torch.device("cuda", self.device_index)

    @property
    def cuda_event(self) -> int:
        """Return a placeholder for the CUDA handle (cudaEvent_t), or 0 for an unrecorded event."""
        return 0 if self.device_index is None else _HANDLE + (id(self) & 0xFFFF_FFF0)

    event_id = cuda_event

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_event)

    def record(self, stream: TorchAny = None) -> None:
        virtual = _stream_of(stream)
        if self.device_index is not None and self.device_index != virtual.device:
            raise RuntimeError(f"Event device {self.device_index} does not match recording stream's device {virtual.device}.")
        if self.interprocess and self.enable_timing:  # `cudaEventInterprocess` needs `cudaEventDisableTiming`
            raise CudaError.INVALID_VALUE.to_torch()
        self.device_index = virtual.device
        gpu().streams.record_event(self.virtual, virtual)

    def wait(self, stream: TorchAny = None) -> None:
        virtual = _stream_of(stream)
        _require_same_capture(virtual, self.virtual)
        gpu().streams.wait_event(virtual, self.virtual)

    def query(self) -> bool:
        _require_not_captured(self.virtual)
        return gpu().streams.query_event(self.virtual)

    def synchronize(self) -> None:
        _require_not_captured(self.virtual)
        gpu().streams.synchronize_event(self.virtual)

    def elapsed_time(self, end_event: TorchAny) -> float:
        """Return the time until `end_event` in milliseconds. As on a real GPU, it is an error if an event was not recorded, or
        if the events belong to different GPUs."""
        require(isinstance(end_event, _CudaEventBase), "expected other to be a torch.cuda.Event object")
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.virtual.time_ns is None or end_event.virtual.time_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        require(self.query() and end_event.query(), "Both events must be completed before calculating elapsed time.")
        if self.device_index != end_event.device_index:
            raise CudaError.INVALID_HANDLE.to_torch()
        return gpu().streams.elapsed_ms(self.virtual, end_event.virtual)

    ipc_handle = refusal("torch.cuda.Event.ipc_handle", "synchronise processes with torch.distributed")
    from_ipc_handle = staticmethod(refusal("torch.cuda.Event.from_ipc_handle", "synchronise with torch.distributed"))

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self.cuda_event:#x}>" if self.cuda_event else "<torch.cuda.Event uninitialized>"


def _require_same_capture(stream: VirtualStream, awaited: VirtualStream | VirtualEvent) -> None:
    """Raise the same errors as cudaStreamWaitEvent during the capture of a CUDA graph."""
    launches = gpu().launches
    capture, own = launches.capture_of(awaited), launches.capture_of(stream)
    if capture is not None:
        if stream.number == 0:
            raise capture.break_off(CudaError.CAPTURE_IMPLICIT.to_torch())
        if own is not None and own is not capture:
            raise own.break_off(capture.break_off(CudaError.CAPTURE_MERGE.to_torch()))
        return
    if isinstance(awaited, VirtualEvent):
        _require_not_captured(awaited)
        if awaited.external or awaited.time_ns is None:
            return
    if own is not None:
        raise own.break_off(CudaError.CAPTURE_ISOLATION.to_torch())


def _require_not_captured(event: VirtualEvent) -> None:
    if event.captured and gpu().launches.capture_of(event) is None:
        raise CudaError.CAPTURED_EVENT.to_torch()


class Event(_CudaEventBase):
    """Replaces torch.cuda.Event."""


def _stream_of(stream: TorchAny) -> VirtualStream:
    if stream is None:
        return gpu().current.stream(current_index())
    if not isinstance(stream, _CudaStreamBase):
        raise RuntimeError("expected stream to be a torch.Stream or torch.cuda.Stream object")
    return stream.virtual


def stream_index(index: int) -> int:
    count = len(gpu().devices)
    require(0 <= index < count, f"Device index value {index} is out of index range [0, {count})")
    return index


def _index(device: TorchAny) -> int:
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    index = device.index if isinstance(device, torch.device) else getattr(device, "idx", device)
    return current_index() if index is None or index < 0 else checked_index(index)


def is_cuda(device: TorchAny) -> bool:
    """Return True for CUDA devices, and for None (the current CUDA device)."""
    return device is None or isinstance(device, int) or torch.device(device).type == "cuda"


def _any_stream(device: TorchAny = None, **options: TorchAny) -> TorchAny:
    if "stream_id" in options:
        return Stream(**options) if options.get("device_type") == _CUDA else BaseStream(**options)
    return Stream(device, **options) if is_cuda(device) else BaseStream(device, **options)


def _any_event(device: TorchAny = None, **options: TorchAny) -> TorchAny:
    return Event(**options) if is_cuda(device) else BaseEvent(device, **options)


def install(torch_module: ModuleType) -> None:
    kept = lru_cache(maxsize=1)(StreamPool)

    def pool() -> StreamPool:
        return kept(gpu())

    _CudaStreamBase.pool = staticmethod(pool)

    def named(stream: VirtualStream) -> tuple[int, int, int]:
        return pool().ids[stream], stream.device, _CUDA

    def current_raw_stream(device_index: int) -> int:
        stream_id, index, kind = named(gpu().current.stream(stream_index(device_index)))
        return Stream(stream_id=stream_id, device_index=index, device_type=kind).cuda_stream

    cuda: TorchAny = torch_module.cuda
    patch(
        torch_module._C,
        _cuda_getCurrentStream=lambda index: named(gpu().current.stream(stream_index(index))),
        _cuda_getDefaultStream=lambda index: named(gpu().devices[stream_index(index)].default_stream),
        _cuda_getCurrentRawStream=current_raw_stream,
        _cuda_setStream=lambda stream_id, device_index, device_type: gpu().current.set_stream(
            pool().by_id(device_index, stream_id)
        ),
        _CudaStreamBase=_CudaStreamBase,
        _CudaEventBase=_CudaEventBase,
    )
    patch(cuda, Stream=Stream, ExternalStream=ExternalStream, Event=Event)
    patch(cuda.streams, Stream=Stream, ExternalStream=ExternalStream, Event=Event)
    patch(torch_module, Stream=generic("Stream", BaseStream, _any_stream), Event=generic("Event", BaseEvent, _any_event))
    for cls in (Stream, ExternalStream, Event):
        patch(cls, __module__="torch.cuda.streams", __qualname__=cls.__name__)
    patch(_CudaStreamBase, __module__="torch._C")
    patch(_CudaEventBase, __module__="torch._C")
