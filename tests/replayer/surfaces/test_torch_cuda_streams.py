# mypy: allow-untyped-calls
"""Tests streams and events of torch.cuda and torch. Each test runs in a fork of an interpreter that has imported torch
(warm.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from replayer.errors import NotEmulated
from tests.replayer.fake_gpu import use

MS = 1_000_000
torch_any: Any = torch  # torch declares no types for most of these names
cuda: Any = torch.cuda


def test_the_current_stream_is_the_default_stream_at_first() -> None:
    use()
    assert cuda.current_stream() == cuda.default_stream()
    assert cuda.current_stream().cuda_stream == 0
    assert cuda.current_stream("cuda").device == torch.device("cuda", 0)


def test_wrong_arguments_have_the_error_messages_of_pytorch() -> None:
    use()
    with pytest.raises(TypeError, match="'name' is an invalid keyword argument for this function"):
        cuda.Stream(other=1, name="copies")
    with pytest.raises(RuntimeError, match="stream_ptr must be an int or None, got str"):
        cuda.ExternalStream("a")
    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        cuda.Event(enable_timing="yes")
    with pytest.warns(UserWarning, match="prototype"), pytest.raises(RuntimeError, match="expected one of 0,1,2"):
        cuda.set_sync_debug_mode(3)


def test_flags_of_events_may_be_integers() -> None:
    use()
    event = cuda.Event(1, 0, 1)
    assert (event.enable_timing, event.interprocess) == (True, True)
    assert cuda.ExternalStream(None) == cuda.default_stream()


def test_a_stream_of_a_wrong_device_type_is_rejected_with_the_message_of_pytorch() -> None:
    use()
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        cuda.Stream(device="cpu")


@pytest.mark.parametrize("find", ["cuda.current_stream", "cuda.default_stream", "accelerator.current_stream"])
def test_streams_of_missing_gpus_raise_an_error_that_only_streams_raise(find: str) -> None:
    use()
    module, _, name = find.partition(".")
    with pytest.raises(RuntimeError, match=r"Device index value 5 is out of index range \[0, 1\)"):
        getattr(getattr(torch, module), name)(5)


def test_a_new_stream_of_a_missing_gpu_raises_the_cuda_error() -> None:
    use()
    with pytest.raises(torch_any.AcceleratorError, match="invalid device ordinal"):
        cuda.Stream(stream_id=3, device_index=5, device_type=1)


def test_streams_compare_and_hash_by_their_identity() -> None:
    use(devices=2)
    side, other = cuda.Stream(), cuda.Stream(device="cuda:1")
    again = cuda.Stream(stream_id=side.stream_id, device_index=0, device_type=side.device_type)
    assert side == again and hash(side) == hash(again) and side is not again
    assert side != other and side != cuda.current_stream() and side != "a stream"
    assert side.cuda_stream not in (0, other.cuda_stream)
    assert isinstance(side, cuda.Stream) and isinstance(side, torch.Stream)
    assert not isinstance(side, cuda.Event)
    assert repr(other).startswith("<torch.cuda.Stream device=cuda:1 cuda_stream=0x")


def test_streams_and_events_reject_other_objects_as_in_cuda() -> None:
    use()
    event: Any = cuda.Event(enable_timing=True)
    for call in (event.record, event.wait):
        with pytest.raises(RuntimeError, match=r"expected stream to be a torch\.Stream or torch\.cuda\.Stream object"):
            call(torch.cpu.Stream())
    with pytest.raises(RuntimeError, match=r"expected other to be a torch\.cuda\.Event object"):
        event.elapsed_time(3)
    with pytest.raises(RuntimeError, match="unknown parameter type"):
        torch.ones(1, device="cuda").record_stream(torch.cpu.Stream())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        cuda.Stream(priority="high")


def test_streams_and_events_have_the_base_classes_of_pytorch() -> None:
    for kind in (cuda.Stream, cuda.Event):
        name = kind.__name__
        assert [base.__name__ for base in kind.__mro__] == [name, f"_Cuda{name}Base", name, "object"]


def test_new_streams_cycle_through_a_pool_of_32() -> None:
    gpu = use()
    streams = [cuda.Stream() for _ in range(33)]
    assert streams[32] == streams[0]
    assert len(set(streams)) == 32 == len(gpu.made_streams)
    assert cuda.Stream(priority=-1) not in streams


def test_priorities_are_clamped_to_the_range_of_the_device() -> None:
    use()
    assert cuda.Stream(priority=-1).priority == -1
    assert cuda.Stream(priority=7).priority == 0
    assert cuda.Stream(priority=-99).priority == -3
    assert cuda.Stream.priority_range() == (0, -3)


@pytest.mark.parametrize("spelling", ["torch.cuda.stream", "with stream"])
def test_a_stream_context_changes_stream_and_device_and_restores_both(spelling: str) -> None:
    use(devices=2)
    outer, inner = cuda.Stream(device=0), cuda.Stream(device=1)

    def within(stream: Any) -> Any:
        return cuda.stream(stream) if spelling == "torch.cuda.stream" else stream

    with within(outer):
        with within(inner):
            assert cuda.current_device() == 1
            assert cuda.current_stream() == inner
            assert cuda.current_stream(0) == outer
        assert cuda.current_device() == 0
        assert cuda.current_stream() == outer
        assert cuda.current_stream(1) == cuda.default_stream(1)
    assert cuda.current_stream() == cuda.default_stream()


def test_a_stream_context_with_none_keeps_the_current_stream() -> None:
    use()
    with cuda.stream(None):
        assert cuda.current_stream() == cuda.default_stream()


def test_a_stream_can_wait_for_another_stream_and_for_an_event() -> None:
    gpu = use()
    main, side, third = cuda.current_stream(), cuda.Stream(), cuda.Stream()
    gpu.work(side.virtual, 5 * MS)
    event = side.record_event()
    gpu.work(side.virtual, 2 * MS)
    main.wait_stream(side)
    third.wait_event(event)
    assert main.virtual.ready_ns == 7 * MS
    assert third.virtual.ready_ns == 5 * MS
    assert not main.query() and not event.query()
    third.synchronize()
    assert gpu.now_ns == 5 * MS and event.query()
    cuda.synchronize()
    assert gpu.now_ns == 7 * MS and main.query()


def test_elapsed_time_is_the_gpu_time_between_two_events() -> None:
    gpu = use()
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    gpu.work(cuda.current_stream().virtual, 3 * MS)
    end.record(cuda.current_stream())
    end.synchronize()
    assert start.elapsed_time(end) == 3.0


def test_elapsed_time_raises_the_errors_of_cuda() -> None:
    gpu = use()
    plain, start, end = cuda.Event(), *(cuda.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(ValueError, match="must be created with argument 'enable_timing=True'"):
        start.elapsed_time(plain)
    with pytest.raises(ValueError, match="must be recorded before calculating elapsed time"):
        start.elapsed_time(end)
    start.record()
    gpu.work(cuda.current_stream().virtual, MS)
    end.record()
    with pytest.raises(RuntimeError, match="must be completed before calculating elapsed time"):
        start.elapsed_time(end)


def test_an_unrecorded_event_is_complete_and_causes_no_wait() -> None:
    gpu = use()
    event = cuda.Event()
    assert event.query() and event.device is None and event.cuda_event == 0
    event.synchronize()
    event.wait()
    assert gpu.now_ns == 0
    assert repr(event) == "<torch.cuda.Event uninitialized>"


def test_an_event_stays_on_the_device_where_it_was_first_recorded() -> None:
    use(devices=2)
    event = cuda.Event()
    event.record(cuda.current_stream(1))
    assert event.device == torch.device("cuda", 1)
    with pytest.raises(RuntimeError, match="Event device 1 does not match recording stream's device 0"):
        event.record(cuda.current_stream(0))


def test_an_external_stream_with_a_known_handle_is_the_existing_stream() -> None:
    """GIVEN the handle of a virtual stream WHEN a library creates an external stream from it THEN both have the same queue."""
    use(devices=2)
    side = cuda.Stream(1, priority=-1)
    again = cuda.ExternalStream(side.cuda_stream, device=1)
    assert again == side and again.virtual is side.virtual and isinstance(again, cuda.Stream)
    assert cuda.ExternalStream(0) == cuda.default_stream()
    for wrong in (side.cuda_stream + 1, side.cuda_stream + 64):
        with pytest.raises(NotEmulated, match="ExternalStream"):
            cuda.ExternalStream(wrong, device=1)


def test_an_interprocess_event_that_measures_times_raises_an_error() -> None:
    # CUDA's documentation of cudaEventCreateWithFlags: `cudaEventInterprocess` must be combined with `cudaEventDisableTiming`
    use()
    event = cuda.Event(enable_timing=True, interprocess=True)
    with pytest.raises(torch.AcceleratorError, match="invalid argument"):
        event.record()


def test_reading_handles_of_events_and_foreign_streams_raises_not_emulated() -> None:
    use()
    event = cuda.Event(interprocess=True)
    event.record()
    event.synchronize()
    assert event.query()
    with pytest.raises(NotEmulated, match="ipc_handle"):
        event.ipc_handle()
    with pytest.raises(NotEmulated, match="from_ipc_handle"):
        cuda.Event.from_ipc_handle(torch.device("cuda"), b"")
    with pytest.raises(NotEmulated, match="ExternalStream"):
        cuda.ExternalStream(1234)
    with pytest.raises(NotEmulated, match="get_stream_from_external"):
        cuda.get_stream_from_external(1234)


def test_torch_stream_and_torch_event_create_cuda_streams_and_events() -> None:
    use(devices=2)
    assert isinstance(torch_any.Stream(), cuda.Stream)
    assert torch_any.Stream(1).device == torch.device("cuda", 1)
    assert isinstance(torch_any.Stream(device="cuda:1", priority=-1), cuda.Stream)
    event = torch_any.Event("cuda", enable_timing=True)
    assert isinstance(event, cuda.Event) and isinstance(event, torch.Event)
    torch_any.Stream().record_event(event)
    assert event.query()
    assert torch_any.Event("cpu").device == torch.device("cpu")
    assert issubclass(cuda.Stream, torch.Stream)


def test_elapsed_time_between_two_devices_raises_the_cuda_error() -> None:
    use(devices=2)
    event: Any = torch.cuda.Event
    start, end = (event(enable_timing=True) for _ in range(2))
    start.record()
    with torch.cuda.device(1):
        end.record()
    with pytest.raises(torch.AcceleratorError, match="CUDA error: invalid resource handle"):
        start.elapsed_time(end)


class _Scale(torch.autograd.Function):
    """Multiplies its input by 2, and logs the current stream of the forward and the backward pass."""

    seen: list[Any]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        _Scale.seen = [cuda.current_stream()]
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        _Scale.seen.append(cuda.current_stream())
        return gradient * 2


def test_the_caller_of_a_backward_pass_waits_for_the_streams_of_the_forward_ops() -> None:
    """GIVEN a forward op on a side stream WHEN the backward pass runs THEN the gradient is computed on the side stream. The
    stream that called the backward pass waits for it."""
    use()
    forward, other = cuda.Stream(), cuda.Stream()
    x = torch.rand(4, device="cuda", requires_grad=True)
    with cuda.stream(forward):
        y = _Scale.apply(x)
    with cuda.stream(other):
        (y * 3).sum().backward()
        assert cuda.current_stream() == other
    assert _Scale.seen == [forward, forward]
    assert other.virtual.ready_ns >= forward.virtual.ready_ns
    assert cuda.current_stream() == cuda.default_stream()


def test_a_parameter_gradient_is_summed_on_the_stream_where_the_parameter_was_first_used() -> None:
    use()
    first, second, seen = cuda.Stream(), cuda.Stream(), list[Any]()
    x = torch.rand(4, device="cuda", requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda _: seen.append(cuda.current_stream()))
    with cuda.stream(first):
        y = x * 2
    with cuda.stream(second):
        z = x * 3
    (y + z).sum().backward()
    assert seen == [first]


def test_a_backward_pass_is_patched_only_if_it_runs_on_a_different_stream_than_its_forward_pass() -> None:
    gpu: Any = use()
    side = cuda.Stream()
    x = torch.rand(4, device="cuda", requires_grad=True)
    x.sum().backward()
    with cuda.stream(side):
        (x * 2).sum()
        assert gpu.current.nodes.of_backward(side.virtual) is None
    with cuda.stream(side):
        (x * 2).sum()
    assert gpu.current.nodes.of_backward(cuda.default_stream().virtual) is not None
