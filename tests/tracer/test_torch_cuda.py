"""Tests that times between CUDA events come from CUDA's runtime library or from PyTorch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from tracer.device.torch_cuda import CudaCallError, TorchCuda


@dataclass
class Event:
    cuda_event: int  # the handle of the event is also its time in ms

    def elapsed_time(self, end: Event) -> float:
        return float(end.cuda_event - self.cuda_event) + 0.5


class Elapsed:
    argtypes: list[object]

    def __init__(self, *codes: int) -> None:
        self.codes = iter(codes)

    def __call__(self, place: int, begin: int, end: int) -> int:
        ctypes.c_float.from_address(place).value = end - begin
        return next(self.codes)


CALLS = dict.fromkeys(("current_stream", "device_count", "is_initialized", "synchronize", "memory_reserved"))
EVENTS = [Event(2), Event(5), Event(12)]


def cuda(monkeypatch: pytest.MonkeyPatch, **runtime: object) -> TorchCuda:
    """Return CUDA with GPU 1 as the current device, and with these functions of the runtime library."""
    monkeypatch.setattr(ctypes, "PyDLL", lambda name: SimpleNamespace(**runtime))
    return TorchCuda(SimpleNamespace(_C=SimpleNamespace(_cuda_getDevice=lambda: 1), cuda=SimpleNamespace(**CALLS)))


def test_times_between_cuda_events_are_read_with_the_cuda_runtime_library(monkeypatch: pytest.MonkeyPatch) -> None:
    elapsed, cleared = Elapsed(0, 0), list[int]()
    of = cuda(monkeypatch, cudaEventElapsedTime=elapsed, cudaGetLastError=lambda: cleared.append(1))
    assert elapsed.argtypes == [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    assert of.elapsed_ms(EVENTS, 1) == [3.0, 7.0] and cleared == []
    # WHEN the events belong to another device THEN PyTorch is called, because it switches to this device
    assert of.elapsed_ms(EVENTS, 0) == [3.5, 7.5]


@pytest.mark.parametrize("missing", ["cudaEventElapsedTime", "cudaGetLastError"])
def test_pytorch_is_called_if_the_cuda_runtime_library_lacks_a_function(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {"cudaEventElapsedTime": Elapsed(0, 0), "cudaGetLastError": lambda: 0}
    del functions[missing]
    assert cuda(monkeypatch, **functions).elapsed_ms(EVENTS, 1) == [3.5, 7.5]


@pytest.mark.parametrize("codes", [(700, 0), (0, 700)])
def test_a_cuda_error_of_any_event_is_raised_and_cleared(codes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[int] = []
    of = cuda(monkeypatch, cudaEventElapsedTime=Elapsed(*codes), cudaGetLastError=lambda: cleared.append(1))
    with pytest.raises(CudaCallError, match="CUDA error: 700"):
        of.elapsed_ms(EVENTS, 1)
    assert cleared == [1]


def _no_statistics(device: int) -> int:
    raise RuntimeError("a pluggable allocator has no getDeviceStats")


@pytest.mark.parametrize(("active", "memory_bytes"), [(True, _no_statistics), (False, lambda device: 2 << 20)])
def test_allocated_memory_or_an_active_context_means_that_a_device_has_a_context(active: bool, memory_bytes: object) -> None:
    assert with_memory(active, memory_bytes).has_context(0)


@pytest.mark.parametrize("memory_bytes", [_no_statistics, lambda device: 0])
def test_without_memory_and_an_active_context_a_device_has_no_context(memory_bytes: object) -> None:
    assert not with_memory(False, memory_bytes).has_context(0)


def with_memory(active: bool, memory_bytes: object) -> TorchCuda:
    bindings = SimpleNamespace(_cuda_hasPrimaryContext=lambda device: active)
    return TorchCuda(SimpleNamespace(_C=bindings, cuda=SimpleNamespace(**CALLS | {"memory_reserved": memory_bytes})))
