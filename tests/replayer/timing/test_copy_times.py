"""Tests the times of copies. A copy of a recorded kind and size takes its recorded time. The times of other copies follow from
the bandwidth."""

from __future__ import annotations

import numpy as np
import pytest

from replayer.cost_model.copy_costs import Copy
from replayer.gpu.virtual_gpu import VirtualGpu
from replayer.op_signature import OpSignature
from tests.replayer.recordings import US, FakeClock, Log, Op, Stage, make_recording
from traces.model.trace import NONE, Column, DeviceKind, HostKind, HostSpans, Origin, Trace

SHAPE = (32, 3, 224, 224)
SIZE_BYTES = 32 * 3 * 224 * 224 * 4
PINNED, PAGEABLE = "Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pageable -> Device)"
MM = OpSignature("aten::mm", ((4, 4),), ("float32",))


def _site(batch: int = 32, direction: str = "h2d") -> OpSignature:
    shape = (batch, *SHAPE[1:])
    return OpSignature("aten::copy_", (shape, shape), ("float32", "float32"), direction=direction)


def _trace(name: str = PAGEABLE, *, stream: int = 7, duration_us: int = 2_000) -> Trace:
    """Return two steps with a host-to-device copy and a product of 10 ms."""
    copy = Op("aten::copy_", 0, 20, kernel=(15, duration_us), shapes=(SHAPE, SHAPE), stream=stream)
    product = Op("aten::mm", 30, 5, kernel=(3_000, 10_000))
    trace = make_recording([("h2d", 0, 25), ("forward", 25, 100)], [copy, product], steps=2)
    trace.host.dtypes[:] = trace.strings.add("float32;float32")
    of_copy: Column = np.isin(trace.device.duration_ns, [duration_us * US])
    trace.device.kind[of_copy] = DeviceKind.MEMCPY
    trace.device.name[of_copy] = trace.strings.add(name)
    trace.device.bytes[of_copy] = SIZE_BYTES
    return trace


def _started(trace: Trace) -> tuple[VirtualGpu, FakeClock, Log]:
    clock, log = FakeClock(), Log()
    log.strings = trace.strings  # The timeline's own strings begin like the strings of the recording.
    return VirtualGpu(trace, 0, clock, log), clock, log  # type: ignore[arg-type]


def _copied(
    trace: Trace, *, pinned: bool, batch: int = 32, direction: str = "h2d", blocking: bool = True
) -> tuple[float, Origin, str, int]:
    """Return the duration in us, the origin, the name and the bytes of the only device span that a copy creates."""
    gpu, _, log = _started(trace)
    gpu.launches.copy(_site(batch, direction), direction, SIZE_BYTES * batch // 32, 0, blocking, pinned)
    (row,) = (row for row in log.device if row["kind"] == DeviceKind.MEMCPY)
    return row["duration_ns"] / US, Origin(row["origin"]), trace.strings[row["name"]], row["bytes"]


def test_a_copy_that_was_recorded_takes_its_recorded_time() -> None:
    assert _copied(_trace(PAGEABLE), pinned=False) == (2_000, Origin.EXACT, PAGEABLE, SIZE_BYTES)
    assert _copied(_trace(PINNED), pinned=True) == (2_000, Origin.EXACT, PINNED, SIZE_BYTES)


@pytest.mark.parametrize(("batch", "origin"), [(32, Origin.EXACT), (64, Origin.SCALED)])
def test_a_copy_without_recorded_shapes_matches_exactly_if_its_size_is_equal(batch: int, origin: Origin) -> None:
    trace = _trace(PAGEABLE)
    trace.host.shapes[:] = NONE
    _, found, _, size_bytes = _copied(trace, pinned=False, batch=batch)
    assert (found, size_bytes) == (origin, SIZE_BYTES * batch // 32)


@pytest.mark.parametrize(
    ("call", "after_us"), [("cudaStreamSynchronize", 12), ("hipMemcpyWithStream", 19), ("cudaLaunchKernel", 0)]
)
def test_recorded_host_work_after_a_wait_is_replayed_after_the_wait(call: str, after_us: int) -> None:
    # GIVEN a recorded call of 20 us that starts a copy after 1 us. In the first case, the call waits for the copy after 8 us
    trace = _trace(PINNED)
    host = trace.host
    launches = np.flatnonzero(host.kind == HostKind.RUNTIME)
    host.name[launches] = trace.strings.add("hipMemcpyWithStream" if call == "hipMemcpyWithStream" else "cudaMemcpyAsync")
    if call == "cudaStreamSynchronize":
        columns = {name: [*column, *column[launches[::2]]] for name, column in host.columns().items()}
        columns["name"][-2:] = [trace.strings.add(call)] * 2
        columns["start_ns"][-2:] = host.start_ns[launches[::2]] + 7 * US
        trace.host = HostSpans.of(**columns)
    # WHEN the copy of the script blocks the host
    gpu, clock, log = _started(trace)
    gpu.launches.copy(_site(), "h2d", SIZE_BYTES, 0, True, pinned=True)
    (row,) = log.device
    assert clock.now_ns() - row["start_ns"] - row["duration_ns"] == pytest.approx(after_us * US, abs=US)


def test_a_pinned_copy_never_gets_the_time_of_a_pageable_copy() -> None:
    took_us, origin, name, size_bytes = _copied(_trace(PAGEABLE, duration_us=4_000), pinned=True)
    assert (origin, name, size_bytes) == (Origin.PUBLISHED, PINNED, SIZE_BYTES)
    assert SIZE_BYTES / took_us / 1e3 == pytest.approx(12.1, rel=0.01)
    took_us, origin, name, _ = _copied(_trace(PINNED), pinned=False)
    assert (origin, name) == (Origin.PUBLISHED, PAGEABLE)
    assert SIZE_BYTES / took_us / 1e3 == pytest.approx(4.4, rel=0.01)


def test_a_recorded_copy_of_a_different_kind_is_not_replayed_additionally() -> None:
    gpu, _, log = _started(_trace(PAGEABLE))
    gpu.launches.copy(_site(), "h2d", SIZE_BYTES, 0, True, pinned=True)
    gpu.launches.launch(MM, 0)
    gpu.steps.optimizer_stepped(True)
    assert [row["kind"] for row in log.device] == [DeviceKind.MEMCPY, DeviceKind.KERNEL]
    assert gpu.simulator.stats.charged_ns[Origin.PHASE] == 0


def test_a_copy_at_another_batch_size_uses_the_recorded_bandwidth() -> None:
    took_us, origin, name, size_bytes = _copied(_trace(PINNED), pinned=True, batch=64)
    assert (origin, name, size_bytes) == (Origin.SCALED, PINNED, 2 * SIZE_BYTES)
    assert took_us == pytest.approx(4_000, rel=0.001)


def test_a_copy_to_the_host_never_gets_a_host_to_device_time() -> None:
    took_us, origin, name, _ = _copied(_trace(PAGEABLE), pinned=False, direction="d2h")
    assert (origin, name) == (Origin.ROOFLINE, "Memcpy DtoH (Device -> Pageable)")
    assert SIZE_BYTES / took_us / 1e3 == pytest.approx(4.4, rel=0.01)


def test_a_copy_within_the_device_never_gets_a_host_to_device_time() -> None:
    gpu, _, log = _started(_trace(PAGEABLE))
    gpu.launches.launch(MM, 0)
    gpu.launches.launch(_site(direction=""), 0)
    gpu.launches.flush()
    _, row = log.device
    assert row["kind"] == DeviceKind.KERNEL and row["origin"] in (Origin.ROOFLINE, Origin.CURVE, Origin.PUBLISHED)
    assert row["duration_ns"] < 200 * US  # The copy moves 38.5 MB within a P100.


@pytest.mark.parametrize("recorded_stream", [7, 20])
def test_a_copy_on_a_side_stream_overlaps_with_compute(recorded_stream: int) -> None:
    gpu, clock, log = _started(_trace(PINNED, stream=recorded_stream))
    default, side = gpu.current.stream(0), gpu.streams.new(0)
    gpu.launches.launch(MM, 0)
    gpu.current.set_stream(side)
    before_ns = clock.now_ns()
    gpu.launches.copy(_site(), "h2d", SIZE_BYTES, 0, False, pinned=True)
    assert clock.now_ns() == before_ns  # The host does not wait for the copy.
    gpu.current.set_stream(default)
    product, copy = sorted(log.device, key=lambda row: row["kind"])
    assert copy["stream"] == side.number and product["stream"] == default.number
    assert copy["start_ns"] + copy["duration_ns"] < product["start_ns"] + product["duration_ns"]
    assert copy["start_ns"] < product["start_ns"] + product["duration_ns"] // 2
    assert side.ready_ns == copy["start_ns"] + copy["duration_ns"]
    gpu.streams.synchronize(side)
    assert side.ready_ns <= clock.now_ns() < default.ready_ns
    gpu.streams.wait_stream(default, side)
    gpu.launches.launch(MM, 0)
    gpu.streams.synchronize_device(0)
    assert clock.now_ns() >= default.ready_ns


@pytest.mark.parametrize(("on_side_stream", "stream_count"), [(True, 1), (False, 2)])
def test_an_op_recorded_on_a_side_stream_runs_on_the_current_side_stream(on_side_stream: bool, stream_count: int) -> None:
    """GIVEN a copy and a relu recorded on one side stream WHEN the script calls both on a side stream THEN the relu follows
    the copy on this stream. WHEN the script calls the relu on the default stream THEN the relu runs on a separate stream."""
    copy = Op("aten::copy_", 0, 20, kernel=(15, 2_000), shapes=(SHAPE, SHAPE), stream=20)
    relu = Op("aten::relu", 30, 5, kernel=(2_020, 50), stream=20)
    products = [Op("aten::mm", 40 + 10 * i, 5, kernel=(3_000 + 200 * i, 100)) for i in range(3)]
    trace = make_recording([("h2d", 0, 25), ("forward", 25, 100)], [copy, relu, *products], steps=2, period_us=5_000)
    gpu, _, log = _started(trace)
    default, side = gpu.current.stream(0), gpu.streams.new(0)
    gpu.current.set_stream(side)
    gpu.launches.copy(_site(), "h2d", SIZE_BYTES, 0, False, pinned=True)
    if not on_side_stream:
        gpu.current.set_stream(default)
    gpu.launches.launch(OpSignature("aten::relu", ((4, 4),), ("float32",)), 0)
    gpu.launches.flush()
    copied, relued = log.device
    assert (copied["stream"], copied["duration_ns"]) == (side.number, 2_000 * US)
    assert relued["duration_ns"] == 50 * US and len({copied["stream"], relued["stream"]}) == stream_count
    assert (relued["start_ns"] >= copied["start_ns"] + copied["duration_ns"]) is on_side_stream


def test_a_blocking_copy_waits_for_earlier_work_on_its_stream() -> None:
    gpu, clock, _ = _started(_trace(PAGEABLE))
    gpu.launches.launch(MM, 0)
    gpu.launches.copy(_site(), "h2d", SIZE_BYTES, 0, True, pinned=False)
    assert clock.now_ns() >= gpu.current.stream(0).ready_ns


@pytest.mark.parametrize("side", ["Pinned", "Pageable"])
def test_a_read_takes_its_recorded_time_for_pinned_and_pageable_memory(side: str) -> None:
    item = Op("aten::_local_scalar_dense", 30, 5, kernel=(40, 3), shapes=((),))
    trace = make_recording([("forward", 0, 60)], [Op("aten::mm", 0, 5, kernel=(8, 20)), item])
    trace.host.dtypes[2:] = trace.strings.add("")  # Profilers record no dtype for a scalar.
    trace.device.kind[1] = DeviceKind.MEMCPY
    trace.device.bytes[1] = 4
    trace.device.name[1] = trace.strings.add(f"Memcpy DtoH (Device -> {side})")
    gpu, _, log = _started(trace)
    gpu.launches.launch(MM, 0)
    gpu.values.read(OpSignature("aten::_local_scalar_dense", ((),), ("float32",)), 0, 1)
    _, row = log.device
    assert (row["duration_ns"], row["origin"]) == (3 * US, Origin.EXACT)


@pytest.mark.parametrize(("size_bytes", "duration_us", "origin"), [(1_000, 10, Origin.EXACT), (2_000, 777, Origin.CURVE)])
def test_without_recorded_shapes_a_copy_of_a_different_size_takes_its_estimated_time(
    size_bytes: int, duration_us: int, origin: Origin
) -> None:
    """In the recording, a copy of 1,000 bytes takes 10 us. The recording contains no shapes of tensors."""
    trace = make_recording([("forward", 0, 50)], [Op("aten::copy_", 0, 5, kernel=(8, 10), shapes=())])
    trace.host.shapes[:], trace.device.kind[:], trace.device.bytes[:] = NONE, DeviceKind.MEMCPY, 1_000
    stage = Stage(trace)
    copy = Copy("Memcpy HtoD", size_bytes, 777 * US, Origin.CURVE, frozenset(), DeviceKind.MEMCPY)
    signature = OpSignature("aten::copy_", ((500,), (500,)), ("float32", "float32"))
    stage.simulator.play(stage.thread, stage.stream, signature, stage.clock.now_ns(), copy)
    (row,) = stage.log.device
    assert (row["duration_ns"], row["bytes"], row["origin"]) == (duration_us * US, size_bytes, origin)


@pytest.mark.parametrize(("batch", "us"), [(32, 2_000), (64, 4_000), (128, 8_000)])
def test_the_time_of_a_copy_by_a_kernel_grows_with_the_batch_size(batch: int, us: int) -> None:
    """GIVEN a recorded kernel that copies data within the GPU THEN a copy with twice the batch size takes twice as long."""
    copy = Op("aten::copy_", 30, 20, kernel=(15, 2_000), shapes=(SHAPE, SHAPE))
    trace = make_recording([("h2d", 0, 25), ("forward", 25, 100)], [copy], steps=2)
    trace.host.dtypes[:] = trace.strings.add("float32;float32")
    gpu, _, log = _started(trace)
    gpu.launches.copy(_site(batch, "d2d"), "d2d", SIZE_BYTES * batch // 32, 0, False, False)
    (row,) = log.device
    assert row["kind"] == DeviceKind.KERNEL and row["duration_ns"] / US == pytest.approx(us, rel=0.01)
