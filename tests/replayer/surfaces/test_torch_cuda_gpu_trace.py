# mypy: allow-untyped-calls
"""Tests the callbacks of torch.cuda._gpu_trace, and the CUDA sanitizer that uses them. Each test runs in a fork of an
interpreter that has imported torch (warm.py)."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch

from tests.replayer.fake_gpu import use


def test_the_cuda_sanitizer_of_torch_finds_a_write_without_a_stream_wait() -> None:
    from torch.cuda._sanitizer import CUDASanitizerErrors, enable_cuda_sanitizer

    use()
    enable_cuda_sanitizer()
    side, values = torch.cuda.Stream(), torch.ones(4, device="cuda")
    with torch.cuda.stream(side), contextlib.redirect_stderr(io.StringIO()) as said, pytest.raises(CUDASanitizerErrors):
        values.mul_(2)
    assert f"tensor with data pointer {values.data_ptr()}" in said.getvalue()
    # THEN there is no error if the script waits for the other stream or for the device
    for wait in (side.synchronize, torch.cuda.synchronize, lambda: torch.cuda.current_stream().wait_stream(side)):
        others = torch.ones(4, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            others.mul_(2)
        wait()
        others.add_(1)


def test_each_gpu_trace_callback_receives_the_handles_of_its_call() -> None:
    import torch.cuda._gpu_trace as callbacks

    use()
    torch.ones(1, device="cuda")
    torch._C._activate_gpu_trace()
    torch._C._activate_gpu_trace()  # a second call changes nothing
    seen: list[tuple[object, ...]] = []

    def noted(what: str) -> None:
        register = getattr(callbacks, f"register_callback_for_{what}")
        register(lambda *handles: seen.append((what, *handles)))

    for what in (
        "event_creation", "event_deletion", "event_record", "event_wait", "memory_allocation", "memory_deallocation",
        "stream_creation", "device_synchronization", "stream_synchronization", "event_synchronization",
    ):  # fmt: skip
        noted(what)
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    event.wait()
    event.synchronize()
    assert seen == [("stream_creation", side.cuda_stream)]  # PyTorch creates an event only when the script first records it
    seen.clear()
    event.record()
    event.record(side)
    side.wait_event(event)
    event.synchronize()
    side.synchronize()
    torch.cuda.synchronize()
    handle = event.cuda_event
    assert seen == [
        ("event_creation", handle),
        ("event_record", handle, 0),
        ("event_record", handle, side.cuda_stream),
        ("event_wait", handle, side.cuda_stream),
        ("event_synchronization", handle),
        ("stream_synchronization", side.cuda_stream),
        ("device_synchronization",),
    ]
    seen.clear()
    del event
    values = torch.ones(3, device="cuda")
    address = values.data_ptr()
    values.nonzero()
    assert seen[:2] == [("event_deletion", handle), ("memory_allocation", address)]
    assert ("stream_synchronization", 0) in seen  # `nonzero` reads the number of its results from the GPU
    del values
    assert seen[-1] == ("memory_deallocation", address)
    seen.clear()
    largest = torch.ones(2, 3, device="cuda").max(1)  # this op has two results
    allocated = [handles for what, *handles in seen if what == "memory_allocation"]
    assert allocated[-2:] == [[largest.values.data_ptr()], [largest.indices.data_ptr()]]
