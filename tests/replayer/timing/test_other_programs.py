"""Tests the replay of a program that differs from the recorded one. Recorded work that the script does not do takes no time."""

from __future__ import annotations

import numpy as np
import pytest

from tests.replayer.recordings import US, Op, Stage, make_recording
from traces.comparison.program.same_program import same_program
from traces.model.trace import NONE, Origin
from traces.model.workload import Sameness

PHASES = [("forward", 0, 400), ("backward", 400, 800), ("optimizer", 800, 1_000)]


def recorded() -> Stage:
    """Return a stage with a recording of ten products in each pass, with pauses of 20 us between calls, and two updates. Each
    product takes 30 us on the GPU."""
    forward = [Op("aten::mm", 10 + 30 * i, 10, kernel=(15 + 30 * i, 30)) for i in range(10)]
    backward = [Op("aten::mm", 410 + 30 * i, 10, kernel=(415 + 30 * i, 30), shapes=((8, 8),)) for i in range(10)]
    updates = [Op("aten::add_", 810 + 50 * i, 10, kernel=(820 + 50 * i, 40), shapes=((9, 9),)) for i in range(2)]
    return Stage(make_recording(PHASES, [*forward, *backward, *updates], steps=2))


def step(stage: Stage, calls: int, name: str = "aten::mm", settle: bool = False) -> int:
    """Run one step with the given number of calls in each pass, and return the host time of the step."""
    tracker, thread = stage.simulator.tracker, stage.thread
    before_ns = thread.host_ns
    stage.within("zero_grad")
    for _ in range(calls):
        stage.op(name)
        if settle:
            tracker.add_gpu_work_so_far(thread)
    tracker.enter(thread, "backward")
    for _ in range(calls):
        stage.op(name, (8, 8))
    tracker.leave(thread, "backward")
    stage.within("optimizer", "aten::_foreach_add_")
    tracker.optimizer_stepped(thread, True)
    return thread.host_ns - before_ns


@pytest.mark.parametrize("calls", [3, 13])
@pytest.mark.parametrize("settle", [False, True])
def test_a_script_that_calls_an_op_more_or_less_often_is_a_different_program(calls: int, settle: bool) -> None:
    """After its first forward pass, the script takes no time for recorded ops that it did not call."""
    stage = recorded()
    step(stage, calls, settle=settle)
    charged = stage.simulator.stats.charged_ns
    # Before the end of the first forward pass, it is unknown whether the script is the recorded program.
    assert charged[Origin.PHASE] == 0 or settle
    before = dict(charged)
    took_ns = step(stage, calls, settle=settle)
    assert charged[Origin.PHASE] == before[Origin.PHASE]
    assert charged[Origin.EXACT] - before[Origin.EXACT] == 2 * min(calls, 10) * 30 * US
    # In the recording, the host takes 30 us from one op to the next, in the median.
    assert took_ns == (2 * calls + 1) * 30 * US


def test_unrecorded_ops_of_a_different_program_are_estimated_when_they_are_called() -> None:
    stage = recorded()
    step(stage, 3)
    stage.within("zero_grad")
    stage.simulator.tracker.enter(stage.thread, "optimizer")
    ready_ns, charged_ns = stage.stream.ready_ns, stage.simulator.stats.charged_ns
    estimated = (Origin.ROOFLINE, Origin.CURVE, Origin.PUBLISHED)
    before_ns = sum(charged_ns[origin] for origin in estimated)
    stage.op("aten::_foreach_mul_")
    assert stage.stream.ready_ns > ready_ns
    assert sum(charged_ns[origin] for origin in estimated) > before_ns


def test_gpu_work_estimated_at_the_end_of_a_phase_belongs_to_its_op() -> None:
    """GIVEN unrecorded ops WHEN their phase ends and they match none of its remaining kernels THEN each op has its own
    estimated work."""
    stage = recorded()
    stage.within("zero_grad")
    for _ in range(9):
        stage.op("aten::mm")
    for _ in range(4):
        stage.op("aten::tanh", (64, 64))
    stage.within("backward")
    estimated = [row for row in stage.log.device if row["origin"] not in (Origin.EXACT, Origin.PHASE)]
    names = [stage.log.strings[stage.log.host[row["launch"]][2]] for row in estimated if row["launch"] != NONE]
    assert names == ["aten::tanh"] * 4


def test_a_forward_pass_in_which_every_op_name_differs_is_a_different_program() -> None:
    stage = recorded()
    for _ in range(2):
        step(stage, 10, "aten::matmul_of_another_release")
    assert stage.simulator.stats.charged_ns[Origin.PHASE] == 0


def test_a_program_with_a_few_renamed_ops_is_the_recorded_program() -> None:
    """GIVEN ten recorded calls WHEN one call has another name THEN this call gets the recorded kernel."""
    stage = recorded()
    stage.within("zero_grad")
    for i in range(10):
        stage.op("aten::mm" if i else "aten::matmul_of_another_release")
    stage.within("backward")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    charged = stage.simulator.stats.charged_ns
    assert charged[Origin.EXACT] == 9 * 30 * US
    # The script launches no op in the backward pass, so the whole recorded backward pass counts as well.
    assert charged[Origin.PHASE] == (30 + 10 * 30) * US


def test_unmatched_kernels_are_not_replayed_if_a_phase_has_fewer_ops() -> None:
    """GIVEN the recorded forward pass WHEN the script calls only half of the backward ops THEN the other half takes no time.
    Frozen layers have this effect."""
    stage = recorded()
    stage.within("zero_grad")
    for _ in range(10):
        stage.op("aten::mm")
    tracker, thread = stage.simulator.tracker, stage.thread
    tracker.enter(thread, "backward")
    for _ in range(5):
        stage.op("aten::mm", (8, 8))
    tracker.leave(thread, "backward")
    stage.within("optimizer")
    assert stage.simulator.stats.charged_ns[Origin.EXACT] == 15 * 30 * US
    assert stage.simulator.stats.charged_ns[Origin.PHASE] == 0


def test_the_recorded_script_is_recognized_again_after_a_different_step() -> None:
    stage = recorded()
    for calls in (10, 3, 10):
        before_ns = stage.simulator.stats.charged_ns[Origin.PHASE]
        step(stage, calls)
    # The script calls the two updates under another name.
    assert stage.simulator.stats.charged_ns[Origin.PHASE] - before_ns == 2 * 40 * US


def test_ops_of_a_different_program_are_estimated_if_shapes_were_not_recorded() -> None:
    """GIVEN a recording without shapes WHEN a script with fewer ops has finished its first forward pass THEN no op gets a
    recorded time only because of its name."""
    trace = recorded().recording.trace
    trace.host.shapes[:] = NONE
    stage = Stage(trace)
    step(stage, 3)
    charged = stage.simulator.stats.charged_ns
    by_name = (Origin.EXACT, Origin.EQUIVALENT, Origin.SCALED)
    before_ns = sum(charged[origin] for origin in by_name)
    step(stage, 3)
    step(stage, 3)
    assert sum(charged[origin] for origin in by_name) == before_ns
    step(stage, 10)  # From this step on, the script calls the recorded ops.
    step(stage, 10)
    assert sum(charged[origin] for origin in by_name) > before_ns


def test_a_different_program_does_not_repeat_the_recorded_one_time_setup() -> None:
    """GIVEN a recorded first product that initialized its library for 5 ms WHEN a different program is replayed THEN its host
    does not spend these 5 ms."""
    forward = [Op("aten::mm", 10, 5_000, kernel=(5_005, 30), launch_us=4_990)]
    forward += [Op("aten::mm", 5_010 + 30 * i, 10, kernel=(5_015 + 30 * i, 30)) for i in range(1, 10)]
    stage = Stage(make_recording([("forward", 0, 5_400), ("optimizer", 5_400, 5_600)], forward))
    step(stage, 3)
    for _ in range(2):  # The first step simulates the calls one by one, and the second step simulates them as a batch.
        begun_ns = stage.thread.host_ns
        step(stage, 3)
        assert stage.thread.host_ns - begun_ns == 7 * 30 * US
        assert stage.stream.ready_ns < begun_ns + 1_000 * US


def test_a_model_with_one_layer_less_gets_no_time_for_the_missing_layer() -> None:
    ops = [Op("aten::mm", 10 * i, 5, kernel=(10 * i + 2, 5)) for i in range(8)]
    stage = Stage(make_recording([("forward", 0, 100), ("backward", 100, 200), ("optimizer", 200, 210)], ops, steps=2))
    for _ in range(2):
        stage.module()
        for _ in range(7):
            stage.op("aten::mm")
        stage.within("backward")
        stage.within("optimizer")
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert stage.simulator.stats.charged_ns[Origin.PHASE] == 0


@pytest.mark.parametrize(("count", "sameness"), [(7, Sameness.OTHER_PROGRAM), (8, Sameness.SAME_PROGRAM)])
def test_a_model_with_a_different_number_of_layers_is_a_different_program(count: int, sameness: Sameness) -> None:
    ops = [Op("aten::mm", 10 * i, 5, kernel=(10 * i + 2, 5 + count)) for i in range(8)]
    recorded, other = (make_recording([("forward", 0, 100)], ops[:n], steps=2) for n in (8, count))
    other.device.duration_ns += 1  # This makes the traces different runs.
    rows = np.arange(2)
    verdict = same_program(recorded, other, rows, rows)
    assert verdict.sameness is sameness, verdict.reason


def test_ops_without_recorded_calls_get_their_time_when_the_host_waits() -> None:
    """GIVEN ops without recorded calls in the first forward pass WHEN the host waits for the device THEN these ops are
    estimated. The estimate does not wait for the end of the phase, because the phase may never end."""
    stage = recorded()
    stage.within("zero_grad")
    for _ in range(4):
        stage.op("aten::tanh", (512, 512))
    charged = stage.simulator.stats.charged_ns
    assert not any(charged.values())
    stage.simulator.tracker.add_gpu_work_so_far(stage.thread)
    estimated = dict(charged)
    assert sum(estimated.values()) > 0 and estimated[Origin.PHASE] == 0
    stage.simulator.tracker.add_gpu_work_so_far(stage.thread)
    assert charged == estimated
