"""Tests when a replay simulates the launches of a script, and what the replay simulates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replayer.gpu.launches import turn_order
from replayer.gpu.shared_results import SharedResults
from replayer.gpu.virtual_gpu import ScriptLinks, VirtualGpu
from replayer.memory.scratch_memory import winograd_workspaces
from replayer.op_signature import OpSignature
from replayer.timing.host_threads import HostThread
from replayer.timing.stream import VirtualEvent
from replayer.timing.timeline.timeline_writer import TimelineWriter
from tests.replayer.gpu.test_virtual_gpu import COPY, MM, one_kernel, started
from tests.replayer.recordings import US, FakeClock, Log
from traces.format.trace_file import TraceStream, load
from traces.model.trace import NONE, Origin, Trace
from traces.script.configuration import ReplayConfig


class Refused(Exception):
    pass


def op(name: str) -> OpSignature:
    return OpSignature(name, ((4, 4),), ("float32",))


def gpu_of(config: ReplayConfig | None = None, links: ScriptLinks | None = None) -> tuple[VirtualGpu, Log]:
    log = Log()
    return VirtualGpu(one_kernel(), 0, FakeClock(), log, config, links), log  # type: ignore[arg-type]


def names(log: Log) -> list[str]:
    return [log.strings[row[2]] for row in log.host]


def test_unrecorded_copies_take_twice_as_long_on_a_rank_that_is_twice_as_slow() -> None:
    usual, slow = (gpu_of(links=ScriptLinks(slowdown=slowdown))[0].launches.transfers for slowdown in (1, 2))
    for kind in ("h2d", "d2h", "d2d", "p2p"):
        assert slow.copy(kind, False, 4 << 20).duration_ns == 2 * usual.copy(kind, False, 4 << 20).duration_ns


def test_launches_are_simulated_in_batches_of_256() -> None:
    gpu, _, log = started()
    for _ in range(255):
        gpu.launches.launch(MM, 0)
    assert (log.device, gpu.launches.calls()) == ([], 255)
    gpu.launches.launch(MM, 0)
    assert (len(log.host), gpu.launches.calls()) == (256, 256)


def test_strict_mode_simulates_each_launch_immediately() -> None:
    gpu, log = gpu_of(ReplayConfig(strict=True))
    gpu.launches.launch(MM, 0)
    assert names(log) == ["aten::mm"]


def test_ops_of_several_threads_are_ordered_by_their_number_within_the_thread() -> None:
    assert turn_order([1, 1, 0, 0, 0]) == [2, 0, 3, 1, 4]


def test_ops_of_two_threads_on_one_stream_alternate() -> None:
    """GIVEN two replicas, the first of which launches all its ops before the second WHEN the replay alternates between the
    replicas THEN the second op in the timeline is the first op of the second replica. Each op keeps its autograd number."""
    gpu, _, log = started()
    stream, main = gpu.current.stream(0), gpu.current.thread()
    gpu.launches.launch(op("aten::before"), 0)
    numbers = iter([(10, 1), (11, 1), (NONE, 0), (21, 2), (22, 2)])
    gpu.launches.number_nodes(numbers.__next__)
    replicas = [HostThread(row, main.host_ns) for row in (1, 2)]
    with gpu.launches.in_turns(replicas):
        for replica, name in ((0, "a0"), (0, "a1"), (1, "b0"), (1, "b1"), (1, "b2")):
            gpu.launches.launch_by(replicas[replica].call_on(stream), op(name))
        assert not gpu.launches.takes_turns
        gpu.launches.flush()  # This thread does not take turns, so `flush` simulates nothing here.
        assert names(log) == ["aten::before"]
    gpu.launches.stop_numbering()
    gpu.launches.launch(op("after"), 0)
    gpu.launches.flush()
    assert names(log) == ["aten::before", "a0", "b0", "a1", "b1", "b2", "after"]
    assert log.nodes.tolist() == [1, 10, 1, 3, 11, 1, 4, 21, 2, 5, 22, 2]


def test_a_thread_that_takes_turns_with_other_threads_executes_all_its_ops() -> None:
    gpu, _, log = started()
    with gpu.launches.in_turns([gpu.current.thread()]):
        assert gpu.launches.takes_turns
        gpu.launches.launch(MM, 0)
        gpu.launches.flush()
        assert names(log) == ["aten::mm"]
    assert not gpu.launches.takes_turns


def test_ops_of_threads_on_different_streams_are_not_reordered() -> None:
    gpu, _, log = started()
    main, streams = gpu.current.thread(), [gpu.current.stream(0), gpu.streams.new(0)]
    replicas = [HostThread(row, main.host_ns) for row in (1, 2)]
    with gpu.launches.in_turns(replicas):
        for replica, name in ((1, "b0"), (1, "b1"), (0, "a0")):
            gpu.launches.launch_by(replicas[replica].call_on(streams[replica]), op(name))
    gpu.launches.flush()
    assert names(log) == ["b0", "b1", "a0"]


def test_only_the_first_three_training_steps_have_autograd_sequence_numbers() -> None:
    asked: list[int] = []
    ended: list[tuple[int, int]] = []

    def number() -> tuple[int, int]:
        asked.append(len(ended))
        return 7, 0

    gpu, _ = gpu_of(links=ScriptLinks(node_number=number, step_ended=lambda *done: ended.append(done)))
    gpu.simulator.tracker.grads_enabled = None
    for _ in range(5):
        gpu.steps.enter_phase("backward")
        gpu.launches.launch(MM, 0)
        gpu.steps.leave_phase("backward")
        gpu.steps.optimizer_stepped(True)
    assert asked == [0, 1, 2]
    assert ended == [(number, number) for number in range(1, 6)]
    gpu.steps.stop()


# --- copies


@pytest.mark.parametrize(("kind", "blocking", "waits"), [("d2h", True, True), ("d2h", False, False), ("d2d", False, False)])
def test_a_blocking_copy_to_the_host_also_waits_for_earlier_work(kind: str, blocking: bool, waits: bool) -> None:
    gpu, clock, _ = started()
    begun_ns, stream = clock.now_ns(), gpu.current.stream(0)
    stream.wait(begun_ns + 9_000 * US)
    gpu.launches.copy(COPY, kind, 4 << 20, 0, blocking=blocking)
    assert (clock.now_ns() == stream.ready_ns > begun_ns + 9_000 * US) is waits


@pytest.mark.parametrize("kind", ["h2d", "d2h", "d2d"])
def test_only_copies_to_the_gpu_begin_the_phase_h2d(kind: str) -> None:
    gpu, _, log = started()
    gpu.steps.enter_phase("backward")
    gpu.steps.leave_phase("backward")
    gpu.launches.copy(COPY, kind, 4 << 20, 0, blocking=True, moves_tensor=True)
    gpu.launches.launch(MM, 0)
    gpu.steps.optimizer_stepped(True)
    assert ("h2d" in [name for name, *_ in log.phases]) is (kind == "h2d")


@pytest.mark.parametrize(("kind", "pinned", "known"), [("h2d", False, True), ("h2d", True, False), ("d2h", False, False)])
def test_the_library_determines_the_time_of_pageable_copies_to_the_gpu(kind: str, pinned: bool, known: bool) -> None:
    gpu, clock, log = started()
    library: Any = SimpleNamespace(copy_ns=lambda size_bytes: 777 * size_bytes)
    gpu.recording.library_pace = library
    gpu.launches.copy(COPY, kind, 1_000, 0, blocking=False, pinned=pinned)
    (row,) = log.device
    assert ((row["duration_ns"], row["origin"]) == (777_000, Origin.PUBLISHED)) is known
    with gpu.launches.copying():
        assert clock.paused
    assert not clock.paused


# --- CUDA graphs


def test_captured_work_runs_when_the_graph_is_launched() -> None:
    gpu, clock, log = started()
    stream, side = gpu.current.stream(0), gpu.streams.new(0)
    capture = gpu.launches.begin_capture(0, mode="global", refuse=Refused)
    assert gpu.launches.is_capturing(stream) and not gpu.launches.is_capturing(side)
    gpu.launches.launch(MM, 0)
    gpu.launches.copy(COPY, "h2d", 4 << 20, 0, blocking=False, pinned=True)
    gpu.launches.spin(1_000, 0)
    for blocks in (
        lambda: gpu.launches.copy(COPY, "h2d", 4 << 20, 0, blocking=True),
        lambda: gpu.streams.synchronize(stream),
        lambda: gpu.streams.query(stream),
    ):
        with pytest.raises(Refused):
            blocks()
    gpu.launches.flush()
    assert log.device == []
    graph = gpu.launches.end_capture(capture)
    assert not gpu.launches.is_capturing(stream)
    for launches in (1, 2):
        gpu.launches.replay_graph(graph)
        assert len(log.device) == 3 * launches
        assert names(log) == ["cudaGraphLaunch"] * launches
    assert clock.now_ns() < stream.ready_ns


def test_a_graph_capture_ignores_work_on_other_streams() -> None:
    gpu, _, log = started()
    side = gpu.streams.new(0)
    capture = gpu.launches.begin_capture(0, mode="thread_local", refuse=Refused)
    gpu.launches.launch(MM, 0)
    origin = gpu.current.stream(0)
    gpu.current.set_stream(side)
    gpu.launches.launch(MM, 0)
    gpu.launches.copy(COPY, "h2d", 4 << 20, 0, blocking=False, pinned=True)
    assert [row["stream"] for row in log.device] == [side.number] * 2
    gpu.current.set_stream(origin)
    assert len(gpu.launches.end_capture(capture).calls) == 1


def test_a_graph_capture_forbids_waiting_for_events_that_were_recorded() -> None:
    gpu, _, _ = started()
    before, within, stream = VirtualEvent(), VirtualEvent(), gpu.current.stream(0)
    gpu.streams.record_event(before, stream)
    gpu.launches.begin_capture(0, mode="global", refuse=Refused)
    gpu.streams.synchronize_event(VirtualEvent())
    gpu.streams.record_event(within, stream)
    for event in (before, within):
        with pytest.raises(Refused):
            gpu.streams.synchronize_event(event)
        with pytest.raises(Refused):
            gpu.streams.query_event(event)


# --- events and times


def test_elapsed_time_needs_two_recorded_events() -> None:
    gpu, _, _ = started()
    recorded = VirtualEvent()
    gpu.streams.record_event(recorded, gpu.current.stream(0))
    for start, end in ((recorded, VirtualEvent()), (VirtualEvent(), recorded)):
        with pytest.raises(ValueError, match="both events must be recorded"):
            gpu.streams.elapsed_ms(start, end)
    assert gpu.streams.elapsed_ms(recorded, recorded) == 0


def test_the_current_time_is_the_thread_time_or_the_clock_if_later() -> None:
    gpu, clock, _ = started()
    now_ns, thread = clock.now_ns(), gpu.current.thread()
    assert gpu.streams.has_passed(now_ns) and not gpu.streams.has_passed(now_ns + 1)
    for host_us, present_us in ((-5, 0), (5, 5)):
        thread.host_ns = now_ns + host_us * US
        assert gpu.streams.host_now_ns() == now_ns + present_us * US


# --- options


@pytest.mark.parametrize(("improving", "strict"), [(True, True), (True, False), (False, True), (False, False)])
def test_unknown_output_sizes_are_assumed_unless_an_option_forbids_this(improving: bool, strict: bool) -> None:
    gpu, _ = gpu_of(ReplayConfig(values="recorded" if improving else "constant", strict=strict))
    assert gpu.values.assumes_sizes is (improving and not strict)


@pytest.mark.parametrize("keep_requests", [True, False])
def test_workspaces_are_estimated_only_if_memory_requests_are_logged(keep_requests: bool) -> None:
    convolution = OpSignature("aten::convolution", ((8, 512, 14, 14), (512, 512, 3, 3)), ("float32",) * 2, ((8, 512, 14, 14),))
    estimated = winograd_workspaces(convolution)
    gpu, _ = gpu_of(ReplayConfig(steps=int(keep_requests)))
    assert estimated and gpu.workspaces_of(convolution) == (estimated if keep_requests else ())


@pytest.mark.parametrize(("most_bytes", "fits"), [(31, False), (32, True)])
def test_storing_a_shared_result_leaves_space_for_the_next_header(most_bytes: int, fits: bool) -> None:
    """A value of 10 bytes has a header of 8 bytes and a digest of 16 bytes. After the value, 8 bytes must remain for the next
    header."""
    results = SharedResults(10 + most_bytes)
    results.add(b"key", bytes(10))
    assert results.find(b"key") == (bytes(10) if fits else None)


# --- ranges


@pytest.fixture
def written(tmp_path: Path) -> Iterator[tuple[VirtualGpu, Any]]:
    """Return a GPU that writes its timeline to a file, and a function that reads the file."""
    recorded = one_kernel()
    timeline = TimelineWriter(TraceStream(tmp_path / "replay.msgpack"), recorded)
    gpu = VirtualGpu(recorded, 0, FakeClock(), timeline)

    def read() -> Trace:
        gpu.launches.flush()
        timeline.close(Trace(devices=recorded.devices, threads=gpu.current.threads))
        return load(tmp_path / "replay.msgpack")

    yield gpu, read


def test_profiler_ranges_of_the_script_enclose_the_ops_launched_inside(written: tuple[VirtualGpu, Any]) -> None:
    gpu, read = written
    gpu.launches.launch(op("before"), 0)
    with gpu.steps.open_ranges("epoch", "batch"):
        gpu.launches.launch(MM, 0)
        with gpu.steps.open_ranges("inner"):
            gpu.launches.launch(op("inside"), 0)
    gpu.launches.launch(op("after"), 0)
    trace = read()
    texts = [*(trace.strings[name] for name in trace.host.name.tolist()), ""]  # The last text stands for an op without parent.
    assert dict(zip(texts, (texts[parent] for parent in trace.host.parent.tolist()), strict=False)) == {
        "before": "", "epoch": "", "batch": "epoch", "aten::mm": "batch", "inner": "batch", "inside": "inner", "after": "",
    }  # fmt: skip
    assert gpu.timeline.ranges.under_way == 0


def test_a_range_does_not_enclose_ops_of_another_thread(written: tuple[VirtualGpu, Any]) -> None:
    gpu, read = written
    with gpu.steps.open_ranges("main"):
        other = threading.Thread(target=lambda: gpu.launches.launch(op("other"), 0))
        other.start()
        other.join()
        gpu.launches.launch(MM, 0)
    trace = read()
    texts = [trace.strings[name] for name in trace.host.name.tolist()]
    parents = dict(zip(texts, trace.host.parent.tolist(), strict=True))
    assert parents["other"] == NONE and texts[parents["aten::mm"]] == "main"
