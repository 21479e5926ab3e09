"""Tests that each stage of nn.DataParallel takes its recorded time on its device in a replay, and is in the timeline."""

from __future__ import annotations

import numpy as np

from replayer.recording.recorded_run import RecordedRun
from replayer.timing.host_threads import HostThread
from replayer.timing.matcher import SegmentMatcher
from tests.replayer.published_stages import PUBLISHED_MS, stages_ns
from tests.replayer.recordings import US, Op, Stage, make_recording, phase_recording
from traces.format.trace_file import load
from traces.library import find
from traces.model.trace import NONE, Device, Origin, Parts, Trace

MS = 1_000 * US


class Script(Stage):
    """Runs a script with nn.DataParallel on two devices. The class makes the calls that the patched torch functions make."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.replicas = [HostThread(1 + i, self.clock.now_ns()) for i in (0, 1)]
        self.other = self.simulator.scheduler.stream(1, 0)

    def on(self, device: int, name: str) -> None:
        stream, main = self.stream, self.thread
        self.stream = self.other if device else stream
        self.op(name)
        self.stream, self.thread = stream, main

    def stage(self, name: str, *devices: int, device: int = 0) -> None:
        part = self.simulator.tracker.begin_stage(self.thread, name, device)
        for on in devices:
            self.on(on, f"aten::op of {name}")
        self.simulator.tracker.stages.end(self.thread, part)

    def forward(self) -> None:
        self.stage("scatter", 0, 1)
        self.stage("replicate", 0, 0)
        tracker, since_ns = self.simulator.tracker, self.thread.host_ns
        begun = []
        for device, thread in enumerate(self.replicas):
            thread.host_ns = since_ns
            begun.append(tracker.begin_stage(thread, "parallel_apply", device))
        for device in (1, 0, 1, 0):
            self.on(device, "aten::relu")
        for thread, part in zip(self.replicas, begun, strict=True):
            tracker.stages.end(thread, part)
        self.thread.host_ns = max(thread.host_ns for thread in self.replicas)
        self.stage("gather", 0)

    def backward(self) -> None:
        self.simulator.tracker.enter(self.thread, "backward")
        self.stage("gather_backward", 0)
        for device in (0, 1, 0, 1):
            self.on(device, "aten::relu_backward")
        self.stage("broadcast_backward", 1, 0)
        self.simulator.tracker.leave(self.thread, "backward")

    def step(self) -> None:
        self.within("h2d", "aten::copy_")
        self.forward()
        self.op("aten::nll_loss")
        self.backward()
        self.within("optimizer", "aten::add_")
        self.simulator.tracker.optimizer_stepped(self.thread, True)

    def parts(self, step: int) -> dict[tuple[str, int], tuple[int, int]]:
        return stages_ns(self.log, step)

    def phases(self, step: int) -> dict[str, int]:
        count = len(self.log.phases) // len(self.log.steps)
        return {name: end - start for name, start, end, _, _ in self.log.phases[step * count : (step + 1) * count]}


def test_two_gpus_take_the_published_time_for_each_stage() -> None:
    """GIVEN published recordings of one and two GPUs WHEN a script is replayed with each THEN each stage takes its published
    time."""
    one, two = Stage(load(find("p100-no-cudnn"))), Script(load(find("p100x2-no-cudnn")))
    for _ in range(3):
        one.within("h2d", "aten::copy_")
        one.op("aten::relu")
        one.op("aten::nll_loss")
        one.within("backward", "aten::relu_backward")
        one.within("optimizer", "aten::add_")
        one.simulator.tracker.optimizer_stepped(one.thread, True)
        two.step()

    lengths_ns = [[end - start for start, end, _ in stage.log.steps] for stage in (one, two)]
    assert [[ns / MS for ns in lengths] for lengths in lengths_ns] == [[1213.0, 759.7, 759.7], [3596.5, 776.0, 776.0]]
    compute_ms = [(lengths[1] - h2d_ns) / MS for lengths, h2d_ns in zip(lengths_ns, (6.5 * MS, 0.3 * MS), strict=True)]
    assert 0.9 * 23.4 <= compute_ms[1] - compute_ms[0] <= 1.1 * 23.4
    assert abs(2 * lengths_ns[0][1] / lengths_ns[1][1] / 1.956 - 1) < 0.01

    phases_ms = {name: ns / MS for name, ns in two.phases(2).items()}
    assert phases_ms == {"h2d": 0.3, "forward": 268.7, "loss": 0.5, "backward": 501.0, "optimizer": 5.5}
    assert {part: tuple(ns / MS for ns in times) for part, times in two.parts(2).items()} == PUBLISHED_MS


def test_gpus_are_busy_during_stages_and_between_them() -> None:
    script = Script(load(find("p100x2-no-cudnn")))
    script.step()
    script.log.device.clear()
    script.step()
    busy_ms: dict[tuple[int, str], float] = {}
    for row in script.log.device:
        key = row["device"], script.log.strings[row["name"]]
        busy_ms[key] = busy_ms.get(key, 0) + row["duration_ns"] / MS
        assert row["origin"] == Origin.PHASE
    on_first = {name: ms for (device, name), ms in busy_ms.items() if device == 0}
    parts = {"scatter": 6.7, "replicate": 6.2, "parallel_apply": 255.5, "gather": 0.3, "gather_backward": 2.2}
    assert {name: round(ms, 6) for name, ms in on_first.items()} == parts | {
        "h2d": 0.3,
        "loss": 0.5,
        "backward": 493.1,
        "broadcast_backward": 5.7,
        "optimizer": 5.5,
    }
    # The second device is busy in the stage `parallel_apply`. The copy of its data counts for the first device.
    assert round(busy_ms[1, "parallel_apply"], 6) == 255.5
    assert round(busy_ms[1, "backward"], 6) == 498.8 and (1, "optimizer") not in busy_ms and (1, "scatter") not in busy_ms


def test_the_time_of_a_replica_excludes_waits_for_replicas_on_other_gpus() -> None:
    """GIVEN two replicas of 100 ms on two GPUs, the second of which starts 50 ms after the end of the first THEN each replica
    takes 100 ms."""
    trace = load(find("p100x2-no-cudnn"))
    parts = trace.parts
    replicas = [np.flatnonzero((parts.name == trace.strings.find("parallel_apply")) & (parts.device == gpu)) for gpu in (0, 1)]
    for gpu, rows in enumerate(replicas):
        for starts_ns in (parts.start_ns, parts.device_start_ns):
            starts_ns[rows] = starts_ns[replicas[0]] + gpu * 150 * MS
        parts.duration_ns[rows], parts.device_end_ns[rows] = 100 * MS, parts.device_start_ns[rows] + 100 * MS
    script = Script(trace)
    for _ in range(2):
        script.step()
    on_gpu = script.parts(1)
    assert [on_gpu["parallel_apply", gpu][1] / MS for gpu in (0, 1)] == [100.0, 100.0]


def test_an_event_between_two_stages_has_the_start_time_of_the_second_stage() -> None:
    """GIVEN an event that a script records at the start of the last backward stage THEN the event has the time of this
    start."""
    script = Script(load(find("p100x2-no-cudnn")))
    for _ in range(2):
        script.step()
    tracker, scheduler = script.simulator.tracker, script.simulator.scheduler
    tracker.enter(script.thread, "backward")
    begun_ns = scheduler.work_end_ns(script.thread.host_ns)
    script.stage("gather_backward", 0)
    script.on(0, "aten::relu_backward")
    script.on(1, "aten::relu_backward")
    tracker.add_gpu_work_so_far(script.thread)
    assert round((scheduler.work_end_ns(script.thread.host_ns) - begun_ns) / MS, 6) == round(2.2 + 493.1 / 2, 6)
    script.on(0, "aten::relu_backward")
    script.on(1, "aten::relu_backward")
    tracker.add_gpu_work_so_far(script.thread)
    assert scheduler.work_end_ns(script.thread.host_ns) - begun_ns == 495.3 * MS


def test_the_time_of_an_event_inside_a_stage_follows_from_the_share_of_earlier_ops() -> None:
    script = Script(load(find("p100x2-no-cudnn")))
    for _ in range(2):
        script.step()
    script.within("h2d", "aten::copy_")
    tracker, scheduler = script.simulator.tracker, script.simulator.scheduler
    script.stage("scatter", 0, 1)
    script.stage("replicate", 0, 0)
    since_ns = scheduler.work_end_ns(script.thread.host_ns)
    part = tracker.begin_stage(script.replicas[1], "parallel_apply", 1)
    tracker.add_gpu_work_so_far(script.replicas[1])
    assert script.other.ready_ns <= since_ns  # No op of this stage was launched yet.
    script.on(1, "aten::relu")
    tracker.add_gpu_work_so_far(script.replicas[1])
    assert script.other.ready_ns - since_ns == 255.5 * MS / 2
    script.on(1, "aten::relu")
    tracker.add_gpu_work_so_far(script.replicas[1])
    assert script.other.ready_ns - since_ns == 255.5 * MS
    tracker.stages.end(script.replicas[1], part)
    assert script.other.ready_ns - since_ns == 255.5 * MS


def test_a_stage_that_was_not_recorded_takes_no_time() -> None:
    script = Script(load(find("p100-no-cudnn")))
    script.step()
    script.step()
    assert script.phases(1)["forward"] == 254.7 * MS
    assert script.parts(1)["scatter", 0] == (0, 0)
    assert {name for name, _ in script.parts(1)} == {
        "scatter", "replicate", "parallel_apply", "gather", "gather_backward", "broadcast_backward",
    }  # fmt: skip


def test_replayed_stages_take_the_times_of_their_ops_if_kernels_were_recorded() -> None:
    stage = Stage(make_recording([("forward", 0, 100)], [Op("aten::relu", 10, 20, kernel=(40, 500))]))
    part = stage.simulator.tracker.begin_stage(stage.thread, "scatter", 0)
    stage.op("aten::relu")
    stage.simulator.tracker.stages.end(stage.thread, part)
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    [(phase, name, thread, start, end, device, device_start, device_end, origin)] = stage.log.parts
    assert (phase, name, thread, device, origin) == (0, "scatter", 0, 0, Origin.EXACT)
    assert (start, end) == (device_start, stage.log.phases[0][1] + 30 * US) and device_end - device_start == 540 * US


def test_a_stage_that_ends_after_its_phase_adds_no_gpu_time() -> None:
    """For example, a loss within a replica begins a new phase."""
    script = Script(load(find("p100x2-no-cudnn")))
    script.within("h2d", "aten::copy_")
    part = script.simulator.tracker.begin_stage(script.thread, "scatter", 0)
    script.op("aten::nll_loss")
    before = [row["duration_ns"] for row in script.log.device]
    script.simulator.tracker.stages.end(script.thread, part)
    assert [row["duration_ns"] for row in script.log.device] == before
    assert isinstance(script.simulator.tracker.segment, SegmentMatcher)


def test_recorded_stages_without_a_device_are_not_replayed() -> None:
    trace = load(find("p100x2-no-cudnn"))
    trace.parts = Parts(**(trace.parts.columns() | {"device": trace.parts.device * 0 + NONE}))
    script = Script(trace)
    script.step()
    script.step()
    assert script.phases(1)["forward"] == 268.7 * MS and script.parts(1)["scatter", 0] == (0, 0)


def test_an_evaluation_batch_has_only_the_forward_stages() -> None:
    """GIVEN a script that has trained WHEN the script evaluates a batch THEN each forward stage takes its time in training."""
    script = Script(load(find("p100x2-no-cudnn")))
    for _ in range(2):
        script.step()
    script.within("loader")
    script.within("h2d", "aten::copy_")
    script.module(grad=False)
    script.forward()
    script.within("loader")
    rows = {(name, device): (end - start) / MS for _, name, _, start, end, device, *_ in script.log.parts[-5:]}
    assert rows == {
        ("scatter", 0): 6.7,
        ("replicate", 0): 6.2,
        ("parallel_apply", 0): 247.3,
        ("parallel_apply", 1): 247.3,
        ("gather", 0): 8.5,
    }


def on_devices(ops: list[Op], devices: list[int], parts: list[tuple[str, int, int, int]]) -> Trace:
    """Return a recorded forward pass of 100 us.

    `devices` contains the device of each op. A stage in `parts` has a name, a device, and a start and end in us.
    """
    trace = make_recording([("forward", 0, 100)], ops)
    trace.devices = [Device(0, index, "GPU") for index in range(max(devices) + 1)]
    trace.device.device = np.array(devices)
    begin_ns = int(trace.phases.start_ns[0])
    trace.phases.device_start_ns[:] = begin_ns
    count, starts_ns = len(parts), [begin_ns + start * US for _, _, start, _ in parts]
    trace.parts = Parts.of(
        phase=[0] * count,
        name=[trace.strings.add(name) for name, *_ in parts],
        thread=[0] * count,
        start_ns=starts_ns,
        duration_ns=[(end - start) * US for _, _, start, end in parts],
        device=[device for _, device, *_ in parts],
        device_start_ns=starts_ns,
        device_end_ns=starts_ns,
    )
    return trace


def test_a_replica_that_starts_late_on_its_device_takes_its_recorded_time() -> None:
    """GIVEN replicas that run from 25 to 60 us and from 50 to 90 us on their devices WHEN the phases are replayed THEN the
    replicas take 35 us and 40 us on their devices. On the host, the replicas begin earlier."""
    trace = on_devices(
        [Op("aten::relu", 0, 1, kernel=(1, 1))] * 2, [0, 1], [("parallel_apply", 0, 20, 40), ("parallel_apply", 1, 30, 45)]
    )
    begin_ns = int(trace.phases.start_ns[0])
    trace.grain = "phase"
    trace.phases.device_end_ns[:] = begin_ns + 100 * US
    trace.parts.device_start_ns, trace.parts.device_end_ns = begin_ns + np.array([[25, 50], [60, 90]]) * US
    stage = Stage(trace)
    tracker = stage.simulator.tracker
    stages = [tracker.begin_stage(stage.thread, "parallel_apply", device) for device in (0, 1)]
    for one in stages:
        tracker.stages.end(stage.thread, one)
    tracker.optimizer_stepped(stage.thread, True)
    assert [(row[5], (row[7] - row[6]) / US) for row in stage.log.parts] == [(0, 35), (1, 40)]


def played_us(stage: Stage) -> dict[str, tuple[float, float]]:
    """Return the host start and end of each op, in us since the start of the forward pass."""
    begin_ns = stage.log.phases[0][1]
    return {stage.log.strings[row[2]]: ((row[3] - begin_ns) / US, (row[3] + row[4] - begin_ns) / US) for row in stage.log.host}


def test_a_thread_that_launches_on_three_devices_takes_its_host_time_once() -> None:
    """GIVEN recorded calls of one thread for three devices WHEN one thread makes these calls THEN each call starts at its
    recorded time. The forward pass takes its recorded 100 us."""
    starts_us = {"aten::a": 10, "aten::b": 20, "aten::c": 30, "aten::d": 50}
    ops = [Op(name, start, 10, kernel=(start + 5, 2)) for name, start in starts_us.items()]
    stage = Stage(on_devices(ops, [0, 1, 2, 1], []))
    streams = [stage.simulator.scheduler.stream(device, 0) for device in range(3)]
    for name, device in zip(starts_us, (0, 1, 2, 1), strict=True):
        stage.stream = streams[device]
        stage.op(name)
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert played_us(stage) == {name: (start, start + 10) for name, start in starts_us.items()}
    assert [(end - start) / US for _, start, end, *_ in stage.log.phases] == [100]


def test_threaded_replicas_start_and_end_at_their_recorded_times() -> None:
    """GIVEN a recorded broadcast, two replicas and a gather WHEN the threads of the replicas begin after the broadcast THEN
    all calls and stages have their recorded times."""
    starts_us = {"aten::broadcast": 10, "aten::relu": 30, "aten::tanh": 40, "aten::gather": 70}
    ops = [Op(name, start, 20 if start in (30, 40) else 10, kernel=(start + 5, 2)) for name, start in starts_us.items()]
    stage = Stage(on_devices(ops, [0, 0, 1, 0], [("parallel_apply", 0, 25, 52), ("parallel_apply", 1, 35, 63)]))
    main, tracker = stage.thread, stage.simulator.tracker
    stage.op("aten::broadcast")
    replicas = [HostThread(1 + device, 0) for device in (0, 1)]
    for device, name in ((1, "aten::tanh"), (0, "aten::relu")):
        stage.thread, stage.stream = replicas[device], stage.simulator.scheduler.stream(device, 0)
        stage.thread.start_from(main)
        part = tracker.begin_stage(stage.thread, "parallel_apply", device)
        stage.op(name)
        tracker.stages.end(stage.thread, part)
    for thread in replicas:
        main.wait_for(thread)
    stage.thread = main
    stage.op("aten::gather")
    tracker.optimizer_stepped(main, True)
    begin_ns = stage.log.phases[0][1]
    parts_us = {device: ((start - begin_ns) / US, (end - begin_ns) / US) for _, _, _, start, end, device, *_ in stage.log.parts}
    assert parts_us == {0: (25, 52), 1: (35, 63)}
    assert played_us(stage) == {
        "aten::broadcast": (10, 20), "aten::tanh": (40, 60), "aten::relu": (30, 50), "aten::gather": (70, 80),
    }  # fmt: skip
    assert [(end - start) / US for _, start, end, *_ in stage.log.phases] == [100]


def test_an_op_with_kernels_on_two_devices_counts_on_both() -> None:
    copies = [Op("aten::copy_", 10, 10, kernel=(15, 2)), Op("aten::copy_", 20, 10, kernel=(25, 2))]
    scatter = Op("Scatter", 5, 40, children=copies)
    segment = RecordedRun(on_devices([scatter], [0, 1], []), 0).steps[0].segments["forward", 0]
    assert (segment.below_ops, segment.lanes[1].below_ops) == ({0}, {1})


def test_stages_with_the_same_name_take_recorded_times_in_order() -> None:
    """GIVEN a recorded forward pass with gathers of 10, 20 and 40 us WHEN a script gathers three times THEN its gathers take
    10, 20 and 40 us."""
    trace = phase_recording({"forward": 1, "backward": 1})
    forward = np.flatnonzero(trace.phases.name == trace.strings.find("forward")).repeat(3)
    starts_ns = trace.phases.start_ns[forward] + np.array([0, 40, 90] * len(trace.steps)) * US
    took_ns = np.array([10, 20, 40] * len(trace.steps)) * US
    trace.parts = Parts.of(
        phase=forward, name=[trace.strings.add("gather")] * len(forward), thread=[0] * len(forward), start_ns=starts_ns,
        duration_ns=took_ns, device=[0] * len(forward), device_start_ns=starts_ns, device_end_ns=starts_ns + took_ns,
    )  # fmt: skip
    stage = Stage(trace)
    stage.simulator.tracker.enter(stage.thread, "forward")
    for _ in range(3):
        part = stage.simulator.tracker.begin_stage(stage.thread, "gather", 0)
        stage.simulator.tracker.stages.end(stage.thread, part)
    stage.simulator.tracker.leave(stage.thread, "forward")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert [(end - start) // US for _, _, _, start, end, *_ in stage.log.parts] == [10, 20, 40]
