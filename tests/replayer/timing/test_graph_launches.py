"""Tests launches of CUDA graphs. A launch is one call of the host, and its kernels run like the kernels of single calls.

The recording has a product of 1,000 us and a sum of 40 us, which starts 1 us after the product. A kernel starts 6 us after its
launch call has returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replayer.errors import NotExact
from replayer.gpu.virtual_gpu import VirtualGpu
from replayer.op_signature import OpSignature
from replayer.timing.cuda_graph import CapturedGraph
from replayer.timing.stream import VirtualEvent
from tests.replayer.recordings import US, FakeClock, Log, Op, RecordedPhases, make_recording
from traces.model.trace import NONE, Origin, Trace
from traces.script.configuration import ReplayConfig

OPS = [Op("aten::mm", 10, 5, kernel=(18, 1_000)), Op("aten::sum", 20, 5, kernel=(1_019, 40))]


def op(name: str, *shape: int) -> OpSignature:
    return OpSignature(f"aten::{name}", (shape or (4, 4),), ("float32",))


def graph_recording(phases: RecordedPhases, launches: list[Op]) -> Trace:
    trace = make_recording(phases, launches)
    trace.host.dtypes[:] = NONE  # Launches have no dtypes.
    return trace


class Graphs:
    def __init__(self, trace: Trace | None = None, *, strict: bool = False) -> None:
        self.clock, self.log = FakeClock(), Log()
        trace = trace or make_recording([("forward", 0, 100)], OPS)
        self.gpu = VirtualGpu(trace, 0, self.clock, self.log, ReplayConfig(strict=strict))  # type: ignore[arg-type]

    def captured(self, calls: Callable[[], None]) -> CapturedGraph:
        capture = self.gpu.launches.begin_capture(0, mode="global", refuse=AssertionError)
        calls()
        self.gpu.launches.flush()
        return self.gpu.launches.end_capture(capture)

    def captured_ops(self, *names: str) -> CapturedGraph:
        def calls() -> None:
            for name in names:
                self.gpu.launches.launch(op(name), 0)

        return self.captured(calls)

    def kernels(self) -> list[tuple[int, int, int]]:
        """Return the stream, the start and the duration of each kernel. Times are in us since the start of the replay."""
        return [
            (row["stream"], (row["start_ns"] - 1_000_000 * US) // US, row["duration_ns"] // US) for row in self.log.device
        ]


def test_all_kernels_of_a_graph_are_launched_by_one_call() -> None:
    run = Graphs()
    graph = run.captured_ops("mm", "sum")
    run.gpu.launches.replay_graph(graph)
    assert run.kernels() == [(0, 6, 1_000), (0, 1_007, 40)]
    assert [(run.log.strings[row[2]], row[3:5]) for row in run.log.host] == [("cudaGraphLaunch", (run.clock.now_ns(), 0))]
    assert [row["launch"] for row in run.log.device] == [0, 0]
    stats, stream = run.gpu.simulator.stats, run.gpu.current.stream(0)
    assert (stats.ops, stats.charged_ns[Origin.EXACT]) == (2, 1_040 * US)
    assert list(stream.pending) == [stream.ready_ns]  # A graph takes only one place in the launch queue.


def test_a_graph_is_launched_when_the_queue_has_room() -> None:
    run = Graphs()
    graph = run.captured_ops("mm")
    stream = run.gpu.current.stream(0)
    stream.push_all([run.clock.now_ns() + (30 + i) * US for i in range(stream.depth)])
    run.gpu.launches.replay_graph(graph)
    assert run.gpu.current.thread().host_ns == run.clock.now_ns() + 30 * US


def test_other_graph_streams_start_after_the_first_stream_and_later_work_waits_for_them() -> None:
    """GIVEN a graph whose product is on a second stream WHEN the first stream is busy for 50 us THEN the product waits for the
    first stream. Later work of the first stream waits for the product."""
    run = Graphs()
    origin, side = run.gpu.current.stream(0), run.gpu.streams.new(0)

    def calls() -> None:
        run.gpu.streams.wait_stream(side, origin)
        run.gpu.current.set_stream(side)
        run.gpu.launches.launch(op("mm"), 0)
        run.gpu.launches.flush()
        run.gpu.current.set_stream(origin)
        run.gpu.streams.wait_stream(origin, side)

    graph = run.captured(calls)
    origin.wait(run.clock.now_ns() + 50 * US)
    run.gpu.launches.replay_graph(graph)
    ((number, start_us, _),) = run.kernels()
    assert number == side.number and start_us >= 50 and origin.ready_ns == side.ready_ns


def test_ops_of_a_graph_are_estimated_if_all_recorded_work_is_used() -> None:
    run = Graphs()
    graph = run.captured_ops("erfinv")
    run.gpu.launches.replay_graph(graph)  # The op may be one of the recorded kernels that are not used yet, so it has no time.
    assert run.log.device == []
    for name in ("mm", "sum"):
        run.gpu.launches.launch(op(name), 0)
    run.gpu.launches.replay_graph(graph)
    assert [run.log.strings[row["name"]] for row in run.log.device[2:]] == ["aten::erfinv"]
    assert run.gpu.simulator.stats.missing == {("aten::erfinv", ((4, 4),)): 2}


def test_a_graph_op_with_a_different_shape_gets_a_scaled_time() -> None:
    run = Graphs()
    graph = run.captured(lambda: run.gpu.launches.launch(op("mm", 4_096, 4_096), 0))
    run.gpu.launches.replay_graph(graph)
    assert run.gpu.simulator.stats.charged_ns[Origin.SCALED] > 1_000 * US


@pytest.mark.parametrize(("shape", "found"), [((4, 4), None), ((8, 8), "scaled"), ((), "nothing recorded")])
def test_strict_mode_requires_exact_matches_for_ops_of_a_graph(shape: tuple[int, ...], found: str | None) -> None:
    run = Graphs(strict=True)
    graph = run.captured(lambda: run.gpu.launches.launch(op("mm", *shape) if shape else op("erfinv"), 0))
    if found is None:
        run.gpu.launches.replay_graph(graph)
        assert len(run.log.device) == 1
    else:
        with pytest.raises(NotExact, match=found):
            run.gpu.launches.replay_graph(graph)


@pytest.mark.parametrize("within", [True, False])
def test_a_captured_phase_counts_only_if_no_phase_is_open_at_the_graph_launch(within: bool) -> None:
    run = Graphs()
    steps = run.gpu.steps

    def calls() -> None:
        steps.enter_phase("backward")
        run.gpu.launches.launch(op("mm"), 0)
        run.gpu.launches.flush()
        steps.leave_phase("backward")

    graph = run.captured(calls)
    run.gpu.launches.launch(op("sum"), 0)
    run.gpu.launches.flush()
    if within:
        steps.enter_phase("optimizer")
    run.gpu.launches.replay_graph(graph)
    if within:
        steps.leave_phase("optimizer")
    steps.optimizer_stepped(True)
    assert [name for name, *_ in run.log.phases][:2] == ["forward", "optimizer" if within else "backward"]


def test_a_recorded_graph_launch_has_the_recorded_kernels() -> None:
    trace = graph_recording([("forward", 0, 100)], [Op("cudaGraphLaunch", 10, 5, kernel=(18, 300), shapes=())])
    run = Graphs(trace)
    graph = run.captured_ops("mm")
    run.gpu.launches.replay_graph(graph)
    assert run.kernels() == [(0, 18, 300)]


def test_recorded_graphs_are_distinguished_by_their_number_of_kernels() -> None:
    """GIVEN recorded graphs of one kernel and of three kernels WHEN the script launches a graph of three ops first THEN this
    graph takes the three recorded kernels."""
    kernels = [Op("", 51, 1, kernel=(60 + 20 * i, 10), shapes=()) for i in range(3)]
    one = Op("cudaGraphLaunch", 10, 5, kernel=(18, 30), shapes=())
    three = Op("cudaGraphLaunch", 50, 5, children=kernels, shapes=())
    run = Graphs(graph_recording([("forward", 0, 100)], [one, three]))

    graphs = run.captured_ops("mm", "mm", "mm"), run.captured_ops("mm")
    for graph in graphs:
        run.gpu.launches.replay_graph(graph)
    assert [duration_us for _, _, duration_us in run.kernels()] == [10, 10, 10, 30]


def test_two_graphs_with_the_same_number_of_kernels_take_separate_recorded_graphs() -> None:
    """GIVEN a recorded graph in the forward pass and another in the backward pass WHEN the script launches two graphs THEN the
    second graph takes the recorded graph of the backward pass."""
    ops = [Op("cudaGraphLaunch", at, 5, kernel=(at + 8, us), shapes=()) for at, us in ((10, 30), (60, 20))]
    trace = graph_recording([("forward", 0, 50), ("backward", 50, 100)], ops)
    trace.device.graph[:] = [1, 2]
    run = Graphs(trace)
    first, second = (run.captured_ops("mm") for _ in range(2))
    run.gpu.launches.replay_graph(first)
    run.gpu.launches.flush()
    run.gpu.steps.enter_phase("backward")
    run.gpu.launches.replay_graph(second)
    assert [duration_us for _, _, duration_us in run.kernels()] == [30, 20]


def test_graphs_of_one_phase_are_matched_in_order_of_their_kernel_counts() -> None:
    """GIVEN recorded graphs of nine and of four kernels in one phase WHEN a script launches graphs of three ops and of one op
    THEN the larger graph takes the nine kernels. On the recorded GPU, an op may launch several kernels, so the number nearest
    to three does not decide."""

    def recorded(at: int, count: int, us: int) -> Op:
        kernels = [Op("", at + 1, 1, kernel=(at + 8 + us * i, us), shapes=()) for i in range(count)]
        return Op("cudaGraphLaunch", at, 5, shapes=(), children=kernels)

    run = Graphs(graph_recording([("forward", 0, 100)], [recorded(10, 9, 2), recorded(60, 4, 3)]))

    graphs = run.captured_ops("mm", "mm", "mm"), run.captured_ops("mm")
    for _ in range(2):
        for graph in graphs:
            run.gpu.launches.replay_graph(graph)
        run.gpu.launches.flush()
        run.gpu.steps.optimizer_stepped(True)
    assert [duration_us for _, _, duration_us in run.kernels()][-13:] == [2] * 9 + [3] * 4


def test_host_time_after_a_graph_launch_equals_that_after_its_last_recorded_op() -> None:
    """In the recording, the product ends at 15 us and the sum begins at 20 us, so 5 us are between them."""
    run = Graphs()
    graph = run.captured_ops("mm")
    run.gpu.launches.replay_graph(graph)
    run.gpu.launches.launch(op("sum"), 0)
    run.gpu.launches.flush()
    launched, summed = (row[3] for row in run.log.host)
    assert summed - launched == 5 * US


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_loss_in_a_graph_begins_the_loss_phase(is_recorded: bool) -> None:
    launch = Op("cudaGraphLaunch", 10, 5, kernel=(18, 300), shapes=())
    run = Graphs(graph_recording([("forward", 0, 100), ("loss", 100, 110)], [launch]) if is_recorded else None)
    graph = run.captured_ops("mm", "nll_loss_forward")
    run.gpu.launches.replay_graph(graph)
    run.gpu.launches.flush()
    run.gpu.steps.optimizer_stepped(True)
    assert [name for name, *_ in run.log.phases] == ["forward", "loss"]


def test_launching_a_graph_without_ops_adds_no_launch() -> None:
    run, event = Graphs(), VirtualEvent()
    stream = run.gpu.current.stream(0)
    graph = run.captured(lambda: run.gpu.streams.record_event(event, stream))
    stream.wait(run.clock.now_ns() + 5 * US)
    run.gpu.launches.replay_graph(graph)
    assert run.log.host == [] and event.time_ns == run.clock.now_ns() + 5 * US


def test_devices_of_the_script_correspond_to_the_recorded_devices() -> None:
    scheduler: Any = Graphs().gpu.simulator.scheduler
    scheduler.recording.devices = scheduler.recording.devices * 3
    assert [scheduler.script_device(device) for device in range(3)] == [0, 1, 2]
    scheduler.home = 1  # The script used its second device first.
    assert [scheduler.script_device(device) for device in range(3)] == [1, 2, 0]
    assert [scheduler.recorded_device(device) for device in range(3)] == [2, 0, 1]
    scheduler.recording.devices = []
    assert scheduler.script_device(0) == scheduler.recorded_device(1) == 0
    assert scheduler.stream(2, 5) is scheduler.stream(2, 5) and NONE not in scheduler.streams
