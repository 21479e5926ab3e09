"""Tests that streams, events, copies and reads of the virtual GPU behave as CUDA defines them, with a fake clock."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from replayer.cost_model.constants import LAUNCH_QUEUE_DEPTH
from replayer.gpu.virtual_gpu import VirtualGpu
from replayer.op_signature import OpSignature
from replayer.timing.clock import ScaledClock
from replayer.timing.host_threads import HostThread
from replayer.timing.stream import VirtualEvent
from tests.replayer.recordings import US, FakeClock, Log, Op, make_recording
from traces.model.trace import Device, DeviceKind, Trace, Values
from traces.script.configuration import ReplayConfig

MM = OpSignature("aten::mm", ((4, 4),), ("float32",))
COPY = OpSignature("aten::copy_", ((1024, 1024), (1024, 1024)), ("float32", "float32"))
ITEM = OpSignature("aten::_local_scalar_dense", ((),), ("float32",))
VIEW = OpSignature("aten::view", ((4, 4),), ("float32",), launches=False)


def one_kernel(duration_us: int = 1_000) -> Trace:
    return make_recording([("forward", 0, 50)], [Op("aten::mm", 0, 5, kernel=(8, duration_us))])


def started(trace: Trace | None = None) -> tuple[VirtualGpu, FakeClock, Log]:
    clock, log = FakeClock(), Log()
    gpu = VirtualGpu(trace or one_kernel(), 0, clock, log)  # type: ignore[arg-type]
    return gpu, clock, log


def test_a_launch_returns_immediately_and_synchronize_waits_for_the_kernel() -> None:
    gpu, clock, _ = started()
    before_ns = clock.now_ns()
    gpu.launches.launch(MM, 0)
    assert clock.now_ns() == before_ns
    gpu.streams.synchronize_device(0)
    assert clock.now_ns() - before_ns == pytest.approx(1_008 * US, abs=US)


@pytest.mark.parametrize(("clock_khz", "cycles", "duration_us"), [(2_000_000, 3_000_000, 1_500), (None, 2_820_000, 2_000)])
def test_a_sleep_kernel_takes_its_cycles_at_the_clock_rate_of_the_gpu(
    clock_khz: int | None, cycles: int, duration_us: int
) -> None:
    """If the clock rate of the GPU is unknown, the kernel uses the 1.41 GHz of an A100."""
    gpu, clock, _ = started()
    gpu.devices[0].properties = replace(gpu.devices[0].properties, clock_rate=clock_khz)
    begin_ns = clock.now_ns()
    gpu.launches.spin(cycles, 0)
    gpu.streams.synchronize_device(0)
    assert clock.now_ns() - begin_ns == pytest.approx(duration_us * US, abs=30 * US)


def test_ops_without_device_work_cost_no_time() -> None:
    gpu, _, log = started()
    gpu.launches.launch(VIEW, 0)
    assert log.device == [] and gpu.simulator.stats.ops == 0


def test_events_measure_the_time_between_two_points_of_a_stream() -> None:
    gpu, _, _ = started()
    start, end = VirtualEvent(), VirtualEvent()
    stream = gpu.current.stream(0)
    gpu.streams.record_event(start, stream)
    gpu.launches.launch(MM, 0)
    gpu.streams.record_event(end, stream)
    assert not gpu.streams.query_event(end)
    gpu.streams.synchronize_event(end)
    assert gpu.streams.query_event(end) and gpu.streams.query(stream)
    assert gpu.streams.elapsed_ms(start, end) == pytest.approx(1.008, abs=0.001)


def test_recording_an_event_again_does_not_change_earlier_waits() -> None:
    gpu, _, _ = started()
    event, side = VirtualEvent(), gpu.streams.new(0)
    gpu.launches.launch(MM, 0)
    gpu.streams.record_event(event, gpu.current.stream(0))
    first_ns = event.time_ns
    gpu.streams.wait_event(side, event)
    gpu.launches.launch(MM, 0)
    gpu.streams.record_event(event, gpu.current.stream(0))
    assert side.ready_ns == first_ns
    assert event.time_ns is not None and first_ns is not None and event.time_ns > first_ns


def test_a_wait_for_an_unrecorded_event_takes_no_time() -> None:
    gpu, clock, _ = started()
    event, stream = VirtualEvent(), gpu.current.stream(0)
    gpu.streams.wait_event(stream, event)
    gpu.streams.synchronize_event(event)
    assert stream.ready_ns == 0 and clock.waits == [] and gpu.streams.query_event(event)
    assert gpu.simulator.stats.events_never_recorded == 1
    # A script with a ring of events does this: in the first round, it waits for unrecorded events.
    gpu.streams.record_event(event, stream)
    gpu.streams.synchronize_event(event)
    assert gpu.simulator.stats.events_never_recorded == 0


def test_elapsed_time_follows_the_clock_that_the_script_reads() -> None:
    clock, log = ScaledClock(FakeClock(), "4"), Log()
    gpu = VirtualGpu(one_kernel(), 0, clock, log)  # type: ignore[arg-type]
    start, end = VirtualEvent(), VirtualEvent()
    gpu.streams.record_event(start, gpu.current.stream(0))
    gpu.launches.launch(MM, 0)
    gpu.streams.record_event(end, gpu.current.stream(0))
    gpu.streams.synchronize_event(end)
    assert gpu.streams.query_event(end)
    assert gpu.streams.elapsed_ms(start, end) == pytest.approx(1.008 / 4, abs=0.001)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_full_launch_queue_blocks_the_host_until_the_oldest_launch_has_ended(recorded: bool) -> None:
    ops = [Op("aten::mm", 10 * i, 5, kernel=(18 + 1_000 * i, 1_000)) for i in range(1_300)]
    gpu, clock, log = started(make_recording([("forward", 0, 20_000)], ops if recorded else ops[:1]))
    begin_ns = clock.now_ns()
    other = gpu.streams.new(0)
    depth = gpu.recording.launch_queue_depth
    assert depth == (1_288 if recorded else LAUNCH_QUEUE_DEPTH)  # The script launched 1 300 kernels, of which 12 had ended.
    for _ in range(depth):
        gpu.launches.launch(MM, 0)
    gpu.launches.flush()
    assert clock.now_ns() - begin_ns < 30_000 * US  # A second of work is pending, but the host does not wait.
    gpu.current.set_stream(other)
    gpu.launches.launch(MM, 0)
    gpu.launches.flush()
    assert clock.now_ns() - begin_ns < 30_000 * US  # Each stream has a separate queue.
    gpu.current.set_stream(gpu.devices[0].default_stream)
    for _ in range(200):
        gpu.launches.launch(MM, 0)
    gpu.launches.flush()
    on_default = [row["start_ns"] + row["duration_ns"] for row in log.device if row["stream"] == 0]
    assert on_default[198] - 20_000 * US < clock.now_ns() < on_default[200]


def test_the_number_of_selected_elements_comes_from_the_replayed_step() -> None:
    search = Op("aten::nonzero", 0, 10, kernel=(4, 2), shapes=((10,),))
    gpu, _, _ = started(make_recording([("forward", 0, 50)], [search, Op("aten::select", 20, 5, shapes=((7, 1),))]))
    assert gpu.values.output_size("aten::nonzero", (10,)) == 7
    assert gpu.values.output_size("aten::nonzero", (10,)) is None and gpu.values.output_size("aten::nonzero", (11,)) is None


def test_work_on_two_streams_overlaps_unless_one_stream_waits_for_the_other() -> None:
    gpu, _, log = started()
    side = gpu.streams.new(0, priority=-1)
    gpu.launches.launch(MM, 0)
    default = gpu.current.stream(0)
    gpu.current.set_stream(side)
    assert gpu.current.stream(0) is side and gpu.current.device() == 0
    gpu.launches.launch(MM, 0)  # This op was not recorded, so its time on the side stream is estimated.
    gpu.launches.flush()
    assert log.device[1]["start_ns"] < default.ready_ns
    gpu.streams.wait_stream(side, default)
    gpu.launches.launch(MM, 0)
    gpu.launches.flush()
    assert log.device[2]["start_ns"] >= default.ready_ns


def test_a_pageable_copy_blocks_the_host_but_an_asynchronous_pinned_copy_does_not() -> None:
    for blocking in (True, False):
        gpu, clock, log = started()
        before_ns = clock.now_ns()
        gpu.launches.copy(COPY, "h2d", 4 << 20, 0, blocking=blocking, pinned=not blocking)
        (row,) = log.device
        assert row["kind"] == DeviceKind.MEMCPY
        end_ns = row["start_ns"] + row["duration_ns"]
        assert (clock.now_ns() >= end_ns) is blocking
        assert (clock.now_ns() > before_ns) is blocking
        expected_gbps = 4.4 if blocking else 12.1
        assert (4 << 20) / row["duration_ns"] == pytest.approx(expected_gbps, rel=0.01)


def test_a_read_waits_for_the_stream_and_returns_the_recorded_value() -> None:
    trace = one_kernel()
    trace.values = Values.of(rank=[0], step=[0], read=[0], op=[0], dtype=[0], value=[2.25])
    gpu, clock, _ = started(trace)
    gpu.launches.launch(MM, 0)
    assert gpu.values.read(ITEM, 0, 1) == [2.25]
    assert clock.now_ns() >= gpu.current.stream(0).ready_ns
    assert gpu.values.read(ITEM, 0, 1) is None
    assert gpu.simulator.stats.reads_unrecorded == 1


def test_each_host_thread_has_a_separate_time_and_device_and_stream() -> None:
    gpu, _, _ = started()
    gpu.current.set_stream(gpu.streams.new(0))
    seen = []

    def other() -> None:
        seen.append((gpu.current.stream(0), gpu.current.thread().row))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [(gpu.devices[0].default_stream, 1)]
    assert [t.role for t in gpu.current.threads] == ["main", "other"]


def test_ops_belong_to_the_phase_in_which_they_were_launched() -> None:
    gpu, _, log = started()
    gpu.steps.enter_phase("backward")
    gpu.launches.launch(MM, 0)
    gpu.steps.leave_phase("backward")
    gpu.steps.enter_phase("optimizer")
    gpu.steps.leave_phase("optimizer")
    gpu.steps.optimizer_stepped(True)
    assert [name for name, *_ in log.phases] == ["backward", "optimizer"]
    assert gpu.streams.host_now_ns() >= log.steps[0][1]


def test_a_watch_for_autograd_nodes_ends_before_the_next_launch() -> None:
    gpu, _, _ = started()
    launches, nodes, launched_before = gpu.launches, [7], []

    def found() -> None:
        launched_before.append(launches.calls())

    launches.watch_nodes(lambda: nodes[0], found)
    launches.launch(MM, 0)
    nodes[0] = 8
    other = threading.Thread(target=launches.launch, args=(MM, 0))  # The watch ignores ops of another thread.
    other.start()
    other.join()
    assert launched_before == []
    for _ in range(2):
        launches.launch(MM, 0)
        nodes[0] += 1
    assert (launched_before, launches.calls()) == ([2], 4)


def test_a_watch_for_autograd_nodes_ends_when_a_phase_begins() -> None:
    gpu, _, _ = started()
    gpu.launches.watch_nodes(iter(range(2)).__next__, pytest.fail)
    gpu.steps.enter_phase("optimizer")
    gpu.launches.launch(MM, 0)


def test_the_timeline_contains_each_allocation_and_free_and_the_resulting_totals() -> None:
    gpu, _, log = started()
    allocator = gpu.devices[0].allocator
    first, second = allocator.malloc(1_000, 0), allocator.malloc(3 << 20, 0)
    assert first is not None and second is not None
    allocator.free(first)
    assert gpu.devices[0].memory.usage.allocated_bytes == 3 << 20
    rows = [(size, allocated, reserved) for _, _, size, _, allocated, reserved in log.memory_rows]
    assert rows == [
        (1_024, 1_024, 2 << 20),
        (3 << 20, 1_024 + (3 << 20), 22 << 20),
        (-1_024, 3 << 20, 22 << 20),
    ]
    addresses = [row[3] for row in log.memory_rows]
    assert addresses[0] == addresses[2] != addresses[1] == second.address


@pytest.mark.parametrize(
    ("given", "sizes"),
    [((), [16 << 30, 4 << 30]), ((8 << 30,), [8 << 30, 8 << 30]), ((1 << 30, 2 << 30), [1 << 30, 2 << 30])],
)
def test_the_memory_size_of_a_device_can_be_recorded_or_given(given: tuple[int, ...], sizes: list[int]) -> None:
    trace = one_kernel()
    trace.devices.append(Device(0, 1, "Small GPU", 4 << 30, outside_bytes=300 << 20))
    gpu = VirtualGpu(trace, 0, FakeClock(), Log(), config=ReplayConfig(gpu_memory_bytes=given))  # type: ignore[arg-type]
    assert [device.memory.usage.capacity_bytes for device in gpu.devices] == sizes
    context_bytes = 224 << 20  # A P100 has 56 multiprocessors with 2048 threads x 2 KiB each.
    assert [device.memory.usage.free_bytes for device in gpu.devices] == [sizes[0] - context_bytes, sizes[1] - (300 << 20)]


def two_devices() -> tuple[VirtualGpu, FakeClock, Log]:
    trace = one_kernel()
    trace.devices = [trace.devices[0], replace(trace.devices[0], index=1)]
    return started(trace)


def test_a_copy_between_devices_waits_for_both_streams_and_delays_both() -> None:
    """The copy runs on the stream of the source device, between two barriers, as in copy_kernel_cuda of ATen's Copy.cu."""
    gpu, clock, log = two_devices()
    first, second = gpu.current.stream(0), gpu.current.stream(1)
    second.wait(clock.now_ns() + 5_000 * US)  # The target device is busy, so its memory may still be in use.
    gpu.launches.copy_to_peer(COPY, 4 << 20, 0, 1)
    [copy] = [row for row in log.device if row["kind"] == DeviceKind.MEMCPY]
    assert (copy["device"], copy["stream"], copy["bytes"]) == (0, 0, 4 << 20)
    assert copy["start_ns"] == clock.now_ns() + 5_000 * US  # The copy was launched long before its start.
    assert first.ready_ns == second.ready_ns == copy["start_ns"] + copy["duration_ns"]
    began_ns = clock.now_ns()
    gpu.streams.synchronize_device(1)
    assert clock.now_ns() == second.ready_ns > began_ns


def test_a_copy_between_devices_uses_the_current_streams_of_both() -> None:
    gpu, _, log = two_devices()
    sides = [gpu.streams.new(device) for device in (0, 1)]
    for side in sides:
        gpu.current.set_stream(side)
    gpu.launches.copy_to_peer(COPY, 4 << 20, 1, 0)
    [copy] = [row for row in log.device if row["kind"] == DeviceKind.MEMCPY]
    assert (copy["device"], copy["stream"]) == (1, sides[1].number)
    assert sides[0].ready_ns == sides[1].ready_ns > 0 == gpu.devices[0].default_stream.ready_ns


def test_a_stream_can_wait_for_an_event_of_another_device() -> None:
    gpu, _, log = two_devices()
    gpu.launches.launch(MM, 0)
    event = VirtualEvent()
    gpu.streams.record_event(event, gpu.current.stream(0))
    gpu.streams.wait_event(gpu.current.stream(1), event)
    gpu.launches.launch(MM, 1)
    gpu.launches.flush()
    one, other = log.device
    assert (one["device"], other["device"]) == (0, 1)
    assert other["start_ns"] >= one["start_ns"] + one["duration_ns"] == event.time_ns


def test_a_recreated_thread_keeps_its_row_and_starts_at_the_current_time_of_its_creator() -> None:
    gpu, _, _ = two_devices()
    gpu.streams.synchronize_device(0)
    maker = gpu.current.thread()
    maker.segment, maker.position_ns = "forward", 50

    def replica(number: int, begun: list[HostThread]) -> None:
        gpu.current.begin_thread(f"replica {number}", maker)
        thread = gpu.current.thread()
        assert (thread.host_ns, thread.position_ns) == (maker.host_ns, maker.position_ns)
        thread.host_ns += (7 + number) * US
        thread.position_ns += 5 + number
        begun.append(thread)

    for step in range(5):
        since_ns, begun = gpu.streams.present_ns(), list[HostThread]()
        threads = [threading.Thread(target=replica, args=(i, begun)) for i in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for ended in begun:
            maker.wait_for(ended)
        assert gpu.streams.present_ns() == since_ns + 8 * US, step
        assert maker.position_ns == 50 + 6 * (step + 1)
    names = [thread.name for thread in gpu.current.threads]
    assert names.count("replica 0") == names.count("replica 1") == 1 and len(names) <= 5


def test_a_device_is_idle_when_its_last_stream_has_finished() -> None:
    gpu, clock, _ = started()
    side = gpu.streams.new(0)
    for ready_us in ((3_000, 2_000), (4_000, 6_000)):
        begin_ns = clock.now_ns()
        for stream, us in zip((gpu.current.stream(0), side), ready_us, strict=True):
            stream.wait(begin_ns + us * US)
            gpu.current.set_stream(stream)
            gpu.launches.spin(1, 0)
        gpu.current.set_stream(gpu.devices[0].default_stream)
        gpu.streams.synchronize_device(0)
        assert clock.now_ns() == max(gpu.current.stream(0).ready_ns, side.ready_ns) >= begin_ns + max(ready_us) * US


def test_a_read_copies_eight_bytes_per_value() -> None:
    gpu, _, log = started()
    gpu.values.read(ITEM, 0, 3)
    assert [row["bytes"] for row in log.device if row["kind"] == DeviceKind.MEMCPY] == [24]


def test_a_profiler_range_lasts_from_its_start_to_its_end() -> None:
    gpu, clock, log = started()
    thread = gpu.current.thread()
    begin_ns = clock.now_ns()
    end = gpu.profile.begin_range()
    clock.time_ns += 70 * US
    end("validation")
    thread.host_ns = clock.now_ns() + 30 * US  # The recorded time of the host is ahead of the clock.
    gpu.profile.begin_range()("empty")
    first_ns, second_ns = begin_ns + 70 * US, begin_ns + 100 * US
    assert log.named == [(0, "validation", begin_ns, first_ns), (0, "empty", second_ns, second_ns)]


def test_copies_between_devices_are_omitted_only_in_the_thread_that_requests_this() -> None:
    gpu, _, log = two_devices()

    def copy() -> None:
        gpu.launches.copy_to_peer(COPY, 4 << 20, 0, 1)

    with gpu.launches.without_copies_to_peers():
        copy()
        assert log.device == []
        other = threading.Thread(target=copy)
        other.start()
        other.join()
        assert len(log.device) == 1
    copy()
    assert len(log.device) == 2


def test_the_first_device_that_a_script_uses_becomes_its_main_device() -> None:
    gpu, _, _ = two_devices()
    for device in (1, 0):
        gpu.launches.launch(MM, device)
        gpu.launches.flush()
    assert gpu.simulator.scheduler.home == 1
