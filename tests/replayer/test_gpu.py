"""Streams, events, copies and reads of the virtual GPU, as CUDA defines them, on a fake clock."""

from __future__ import annotations

import threading

import pytest

from replayer.gpu import VirtualGpu
from replayer.sites import Site
from replayer.streams import VirtualEvent
from tests.replayer.recordings import US, FakeClock, Log, Op, recording
from traces.model import DeviceKind, Trace, Values

MM = Site("aten::mm", ((4, 4),), ("float32",))
COPY = Site("aten::copy_", ((1024, 1024), (1024, 1024)), ("float32", "float32"))
ITEM = Site("aten::_local_scalar_dense", ((),), ("float32",))
VIEW = Site("aten::view", ((4, 4),), ("float32",), launches=False)


def one_kernel(duration_us: int = 1_000) -> Trace:
    return recording([("forward", 0, 50)], [Op("aten::mm", 0, 5, kernel=(8, duration_us))])


def started(trace: Trace | None = None) -> tuple[VirtualGpu, FakeClock, Log]:
    clock, log = FakeClock(), Log()
    gpu = VirtualGpu(trace or one_kernel(), 0, clock, log, strict=False, pad_loader=False)  # type: ignore[arg-type]
    return gpu, clock, log


def test_a_launch_returns_at_once_and_synchronize_waits_for_its_end() -> None:
    gpu, clock, _ = started()
    before_ns = clock.now_ns()
    gpu.launch(MM, 0)
    assert clock.now_ns() == before_ns
    gpu.synchronize_device(0)
    assert clock.now_ns() - before_ns == pytest.approx(1_008 * US, abs=US)


def test_what_never_reaches_the_device_costs_nothing() -> None:
    gpu, _, log = started()
    gpu.launch(VIEW, 0)
    assert log.device == [] and gpu.player.tally.ops == 0


def test_events_take_the_time_between_two_points_of_the_stream() -> None:
    gpu, _, _ = started()
    start, end = VirtualEvent(), VirtualEvent()
    stream = gpu.current_stream(0)
    gpu.record_event(start, stream)
    gpu.launch(MM, 0)
    gpu.record_event(end, stream)
    assert not gpu.query_event(end)
    gpu.synchronize_event(end)
    assert gpu.query_event(end) and gpu.query_stream(stream)
    assert gpu.elapsed_ms(start, end) == pytest.approx(1.008, abs=0.001)


def test_a_recorded_event_keeps_its_moment_for_streams_that_waited_for_it() -> None:
    gpu, _, _ = started()
    event, side = VirtualEvent(), gpu.new_stream(0)
    gpu.launch(MM, 0)
    gpu.record_event(event, gpu.current_stream(0))
    first_ns = event.time_ns
    gpu.stream_wait_event(side, event)
    gpu.launch(MM, 0)
    gpu.record_event(event, gpu.current_stream(0))
    assert side.ready_ns == first_ns
    assert event.time_ns is not None and first_ns is not None and event.time_ns > first_ns


def test_waiting_for_an_event_that_was_never_recorded_is_no_wait() -> None:
    gpu, clock, _ = started()
    event, stream = VirtualEvent(), gpu.current_stream(0)
    gpu.stream_wait_event(stream, event)
    gpu.synchronize_event(event)
    assert stream.ready_ns == 0 and clock.waits == [] and gpu.query_event(event)


def test_work_on_two_streams_overlaps_and_wait_stream_orders_it() -> None:
    gpu, _, log = started()
    side = gpu.new_stream(0, priority=-1)
    gpu.launch(MM, 0)
    default = gpu.current_stream(0)
    gpu.set_stream(side)
    assert gpu.current_stream(0) is side and gpu.current_device() == 0
    gpu.launch(MM, 0)  # not recorded: estimated, on the side stream
    gpu.flush()
    assert log.device[1]["start_ns"] < default.ready_ns
    gpu.stream_wait_stream(side, default)
    gpu.launch(MM, 0)
    gpu.flush()
    assert log.device[2]["start_ns"] >= default.ready_ns


def test_a_pageable_copy_blocks_the_host_and_a_pinned_asynchronous_one_does_not() -> None:
    for blocking in (True, False):
        gpu, clock, log = started()
        before_ns = clock.now_ns()
        gpu.copy(COPY, "h2d", 4 << 20, 0, blocking=blocking, pinned=not blocking)
        (row,) = log.device
        assert row["kind"] == DeviceKind.MEMCPY
        end_ns = row["start_ns"] + row["duration_ns"]
        assert (clock.now_ns() >= end_ns) is blocking
        assert (clock.now_ns() > before_ns) is blocking
        expected_gbps = 4.4 if blocking else 12.1
        assert (4 << 20) / row["duration_ns"] == pytest.approx(expected_gbps, rel=0.01)


def test_a_read_waits_for_the_stream_and_answers_what_was_recorded() -> None:
    trace = one_kernel()
    trace.values = Values.of(rank=[0], step=[0], read=[0], op=[0], dtype=[0], value=[2.25])
    gpu, clock, _ = started(trace)
    gpu.launch(MM, 0)
    assert gpu.read(ITEM, 0, "float32", 1) == [2.25]
    assert clock.now_ns() >= gpu.current_stream(0).ready_ns
    assert gpu.read(ITEM, 0, "float32", 1) is None
    assert gpu.player.tally.reads_unrecorded == 1


def test_host_threads_have_their_own_present_device_and_streams() -> None:
    gpu, _, _ = started()
    gpu.set_stream(gpu.new_stream(0))
    seen = []

    def other() -> None:
        seen.append((gpu.current_stream(0), gpu.thread().row))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [(gpu.devices[0].default_stream, 1)]
    assert [t.role for t in gpu.threads] == ["main", "other"]


def test_a_phase_once_entered_holds_the_ops_within() -> None:
    gpu, _, log = started()
    gpu.enter_phase("backward")
    gpu.launch(MM, 0)
    gpu.leave_phase("backward")
    gpu.enter_phase("optimizer")
    gpu.leave_phase("optimizer")
    gpu.end_step()
    assert [name for name, *_ in log.phases] == ["backward", "optimizer"]
    assert gpu.host_now_ns() >= log.steps[0][1]


def test_every_allocation_and_free_is_on_the_timeline_with_the_totals_after_it() -> None:
    gpu, _, log = started()
    ledger = gpu.devices[0].ledger
    first, second = ledger.malloc(1_000, 0), ledger.malloc(3 << 20, 0)
    assert first is not None and second is not None
    ledger.free(first)
    assert gpu.devices[0].memory.allocated_bytes == 3 << 20
    rows = [(size, allocated, reserved) for _, _, size, _, allocated, reserved in log.memory_rows]
    assert rows == [
        (1_024, 1_024, 2 << 20),
        (3 << 20, 1_024 + (3 << 20), 22 << 20),
        (-1_024, 3 << 20, 22 << 20),
    ]
    addresses = [row[3] for row in log.memory_rows]
    assert addresses[0] == addresses[2] != addresses[1] == second.address
