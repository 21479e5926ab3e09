"""Tests which recorded step is used for each step of the script: training, evaluation, warm-up, profiled and clean steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from replayer.gpu.virtual_gpu import VirtualGpu
from replayer.op_signature import OpSignature
from replayer.timing.steps import step_tracker
from tests.replayer.recordings import (
    US,
    FakeClock,
    Log,
    Op,
    RecordedPhases,
    Stage,
    make_recording,
    phase_recording,
    recording_of,
)
from traces.model.run import Run
from traces.model.trace import NONE, Batches, BatchKind, Origin, StepKind, Trace, Values
from traces.model.workload import InputTensor, WorkloadSignature
from traces.script.step_rule import Optimizers
from traces.script.workload_observer import WorkloadObserver

TRAIN_PHASES = [("loader", 0, 100), ("h2d", 100, 120), ("forward", 120, 200), ("backward", 200, 400), ("optimizer", 400, 450)]
TRAIN_OPS = [
    Op("aten::copy_", 102, 10, kernel=(106, 8)),
    Op("aten::mm", 130, 20, kernel=(138, 50)),
    Op("aten::relu", 160, 10, kernel=(189, 30)),
    Op("aten::mm_backward", 220, 20, kernel=(228, 100)),
    Op("aten::add_", 410, 5, kernel=(418, 10)),
]
EVALUATION_PHASES = [("loader", 0, 50), ("h2d", 50, 60), ("forward", 60, 110)]
EVALUATION_OPS = [
    Op("aten::copy_", 51, 5, kernel=(55, 4)),
    Op("aten::mm", 70, 10, kernel=(75, 20)),
    Op("aten::relu", 85, 10, kernel=(96, 9)),
]
TRAIN = (StepKind.STEADY, TRAIN_PHASES, TRAIN_OPS)
EVALUATION = (StepKind.EVALUATION, EVALUATION_PHASES, EVALUATION_OPS)


def train(stage: Stage, load_us: int = 100) -> None:
    stage.within("loader", wait_us=load_us)
    train_on_batch(stage)


def train_on_batch(stage: Stage, fills_gradients: bool = False) -> None:
    stage.within("h2d", "aten::copy_")
    stage.module()
    stage.op("aten::mm")
    stage.op("aten::relu")
    if fills_gradients:
        stage.within("zero_grad", "aten::zero_")
    stage.within("backward", "aten::mm_backward")
    stage.within("optimizer", "aten::add_")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)


def evaluate(stage: Stage, *, loader: bool = True, grad: bool = False) -> None:
    if loader:
        stage.within("loader", wait_us=50)
    stage.within("h2d", "aten::copy_")
    stage.module(grad=grad)
    stage.op("aten::mm")
    stage.op("aten::relu")


def exhaust(stage: Stage) -> None:
    stage.simulator.tracker.enter(stage.thread, "loader")
    stage.simulator.tracker.leave(stage.thread, "loader", failed=True)
    stage.simulator.tracker.script.loader_exhausted(stage.thread)


def phase_grained(trace: Trace) -> Trace:
    """Return a recording that has only the times of the phases on the device."""
    phases = trace.phases
    with_device = phases.name != trace.strings.find("loader")
    phases.device_start_ns[with_device] = phases.start_ns[with_device]
    phases.device_end_ns[with_device] = phases.end_ns[with_device]
    return Trace("phase", trace.strings, trace.devices, trace.threads, steps=trace.steps, phases=phases)


def durations_us(stage: Stage) -> list[float]:
    return [(end - start) / US for start, end, _ in stage.log.steps]


def kinds(stage: Stage) -> str:
    return "".join("STEADY WARMUP EVALUATION PROFILED".split()[kind][0] for kind in stage.log.kinds)


def test_validation_replays_recorded_validation_steps_and_repeats_them() -> None:
    # GIVEN two epochs of two training batches, each followed by two validation batches
    recorded = [TRAIN, TRAIN, EVALUATION, EVALUATION] * 2
    stage = Stage(recording_of(recorded))
    # WHEN the recorded script is replayed
    for _ in range(2):
        for _ in range(2):
            train(stage)
        exhaust(stage)
        for _ in range(2):
            evaluate(stage)
        exhaust(stage)
    # THEN each step takes the time of its own recorded step, and all kernels are the recorded ones
    assert kinds(stage) == "WSEE" + "SSEE"
    assert [row for _, _, row in stage.log.steps] == list(range(8))
    assert durations_us(stage) == [450, 450, 110, 110] * 2
    charged = stage.simulator.stats.charged_ns
    assert charged[Origin.EXACT] == sum(charged.values())
    assert stage.simulator.stats.uncharged_ns == 0
    played = [row["duration_ns"] / US for row in stage.log.device]
    training, evaluation = [50, 30, 100, 10], [20, 9]
    assert played[:16] == [8, *training, 8, *training, 4, *evaluation, 4, *evaluation]
    assert played[16:] == played[:16]


def test_steps_with_a_compilation_are_warm_up_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    compilations = [90]
    monkeypatch.setattr(step_tracker, "COMPILE_NS", compilations)
    stage = Stage(recording_of([TRAIN] * 3))
    for number in range(5):
        if number in (1, 3):
            compilations.append(90)
        train(stage)
    assert kinds(stage) == "WWSWS"


@pytest.mark.parametrize("loads_under_no_grad", [True, False])
def test_copies_of_a_batch_take_other_times_in_training_than_in_validation(loads_under_no_grad: bool) -> None:
    """GIVEN two epochs of training and validation WHEN validation calls the model under no_grad THEN each copy takes 8 us in
    training and 4 us in validation, as recorded. Validation may load its batches with or without no_grad."""
    stage = Stage(recording_of([TRAIN, TRAIN, EVALUATION, EVALUATION] * 2))
    grads = True
    stage.simulator.tracker.grads_enabled = lambda: grads
    for _ in range(2):
        for evaluation in (False, False, True, True):
            grads = not (evaluation and loads_under_no_grad)
            evaluate(stage) if evaluation else train(stage)
        grads = True
        exhaust(stage)
    assert kinds(stage) == "WSEE" + "SSEE"
    copies = [row["duration_ns"] / US for row in stage.log.device if row["duration_ns"] < 9 * US]
    assert copies == [8, 8, 4, 4] * 2
    assert durations_us(stage) == [450, 450, 110, 110] * 2


@pytest.mark.parametrize("grain", ["kernel", "phase"])
def test_no_wait_for_a_batch_is_replayed_when_the_training_data_ends(grain: str) -> None:
    """GIVEN recorded waits of 100 us for training batches and 50 us for validation batches WHEN a replay with recorded waits
    asks for a training batch, but no training batch is left THEN the next validation step takes 110 us, as in the recording."""
    trace = recording_of([TRAIN, TRAIN, EVALUATION, TRAIN, EVALUATION])
    stage = Stage(phase_grained(trace) if grain == "phase" else trace, pad_loader=True)
    grads = True
    stage.simulator.tracker.grads_enabled = lambda: grads
    for trains in (True, True, False, True, False):
        grads = trains
        if trains:
            stage.within("loader")
            train_on_batch(stage)
        else:
            grads = True
            exhaust(stage)
            grads = False
            stage.within("loader")
            evaluate(stage, loader=False)
            exhaust(stage)
    assert kinds(stage) == "WSESE"
    assert durations_us(stage) == [450, 450, 110, 450, 110]


def test_additional_evaluation_steps_repeat_the_recorded_ones_in_order() -> None:
    slow = (StepKind.EVALUATION, [("forward", 0, 300)], [Op("aten::mm", 10, 10, kernel=(15, 200))])
    stage = Stage(phase_grained(recording_of([TRAIN, EVALUATION, slow])))
    train(stage)
    exhaust(stage)
    for _ in range(5):
        evaluate(stage)
    exhaust(stage)
    assert [row for _, _, row in stage.log.steps] == [0, 1, 2, 1, 2, 1]
    forward = [end - start for name, start, end, _, _ in stage.log.phases if name == "forward"]
    assert [ns // US for ns in forward] == [80, 50, 300, 50, 300, 50]


@pytest.mark.parametrize("grain", ["kernel", "phase"])
def test_unrecorded_evaluation_steps_take_training_times_up_to_the_loss(grain: str) -> None:
    trace = recording_of([TRAIN] * 3)
    stage = Stage(phase_grained(trace) if grain == "phase" else trace)
    train(stage)
    exhaust(stage)
    for _ in range(4):
        evaluate(stage)
    exhaust(stage)
    train(stage)
    assert kinds(stage) == "WEEEES"
    assert durations_us(stage) == [450, *[50 + 20 + 80] * 4, 450]
    busy_us = 198 if grain == "kernel" else 350
    evaluated_us = 88 if grain == "kernel" else 100
    assert sum(stage.simulator.stats.charged_ns.values()) / US == 2 * busy_us + 4 * evaluated_us
    assert stage.simulator.stats.uncharged_ns == 0


def test_an_evaluation_step_takes_no_time_for_missing_forward_passes() -> None:
    # GIVEN a recording that accumulates the gradients of two batches in each step
    twice = [("forward", 0, 100), ("backward", 100, 200), ("forward", 200, 300), ("backward", 300, 400)]
    phases = [*twice, ("optimizer", 400, 450)]
    stage = Stage(phase_grained(make_recording(phases, [], steps=2)))
    for _ in range(2):
        stage.module()
        stage.op("aten::mm")
        stage.within("backward")
    stage.within("optimizer")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    for _ in range(3):
        stage.module(grad=False)
        stage.op("aten::mm")
    stage.module()
    assert durations_us(stage) == [450, 100, 100, 100]


@pytest.mark.parametrize("grain", ["kernel", "phase"])
@pytest.mark.parametrize("loader", [True, False])
def test_an_inference_loop_takes_the_time_of_one_forward_pass_per_batch(grain: str, loader: bool) -> None:
    trace = recording_of([(StepKind.WARMUP, [("h2d", 0, 900), ("forward", 900, 1_000)], []), TRAIN, TRAIN])
    stage = Stage(phase_grained(trace) if grain == "phase" else trace)
    for _ in range(10):
        evaluate(stage, loader=loader)
    if loader:
        exhaust(stage)
    else:
        stage.simulator.tracker.stop(stage.thread)
    assert kinds(stage) == "E" * 10
    forward = [end - start for name, start, end, _, _ in stage.log.phases if name == "forward"]
    assert [ns // US for ns in forward] == [80] * 10
    assert len([row for row in stage.log.device if row["duration_ns"] >= 30 * US]) == (20 if grain == "kernel" else 10)


def test_inference_with_gradients_enabled_takes_one_forward_pass_per_batch() -> None:
    stage = Stage(phase_grained(recording_of([TRAIN, TRAIN])))
    for _ in range(5):
        evaluate(stage, grad=True)
    exhaust(stage)
    assert kinds(stage) == "E" * 5
    # THEN all copies count except the second one. This copy came before the first step was known to have only one copy
    assert stage.simulator.stats.charged_ns[Origin.PHASE] == (5 * 80 + 4 * 20) * US


def test_an_inference_recording_can_be_replayed_by_inference_and_by_training() -> None:
    stage = Stage(recording_of([EVALUATION] * 2))
    for _ in range(3):
        evaluate(stage)
    exhaust(stage)
    assert [row for _, _, row in stage.log.steps] == [0, 1, 0]
    train(stage)
    assert kinds(stage) == "EEEW"


def test_ops_before_the_first_module_call_take_times_of_the_right_step_kind() -> None:
    """GIVEN alternating training and evaluation steps, as in reinforcement learning WHEN an op runs before the model call THEN
    this op takes the time of a recorded step of the same kind."""
    passes = [("forward", 0, 60), ("backward", 60, 90), ("optimizer", 90, 100)]
    recorded = [
        (StepKind.STEADY, passes, [Op("aten::sub", 2, 4, kernel=(6, 7)), Op("aten::mm", 20, 5, kernel=(25, 9))]),
        (StepKind.EVALUATION, passes[:1], [Op("aten::sub", 2, 4, kernel=(6, 5)), Op("aten::mm", 20, 5, kernel=(25, 8))]),
    ]
    stage = Stage(recording_of(recorded * 3))
    for number in range(6):
        stage.op("aten::sub")
        stage.module(grad=number % 2 == 0)
        stage.op("aten::mm")
        if number % 2 == 0:
            stage.within("backward")
            stage.within("optimizer")
            stage.simulator.tracker.optimizer_stepped(stage.thread, True)
        else:
            stage.module()  # This call ends the evaluation.
    assert [row["duration_ns"] // US for row in stage.log.device] == [7, 9, 5, 8] * 3


def test_a_training_step_can_turn_back_into_a_recorded_evaluation_step() -> None:
    """GIVEN a recording with one evaluation step WHEN a step looks like training at first, and later like evaluation THEN its
    ops take the times of the evaluation."""
    passes = [("forward", 0, 60), ("backward", 60, 90), ("optimizer", 90, 100)]
    trained = (StepKind.STEADY, passes, [Op("aten::mm", 2, 4, kernel=(6, 7))])
    evaluated = (StepKind.EVALUATION, passes[:1], [Op("aten::mm", 2, 4, kernel=(6, 5))])
    stage = Stage(recording_of([trained, evaluated, trained]))
    stage.module()
    stage.op("aten::mm")
    for phase in ("backward", "optimizer"):
        stage.within(phase)
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    for is_evaluation in (False, True):
        stage.simulator.tracker.step_evaluates(is_evaluation)
    stage.module(grad=False)
    stage.op("aten::mm")
    assert stage.log.device[-1]["duration_ns"] == 5 * US


def test_a_module_called_without_gradients_in_a_training_step_takes_training_times() -> None:
    """GIVEN a recording with an evaluation step WHEN a training step calls a teacher without gradients THEN the ops of the
    teacher take training times."""
    passes = [("forward", 0, 60), ("backward", 60, 90), ("optimizer", 90, 100)]
    trained = [Op("aten::mm", 2, 4, kernel=(6, 7)), Op("aten::addmm", 20, 5, kernel=(25, 9))]
    evaluated = (StepKind.EVALUATION, passes[:1], [Op("aten::addmm", 2, 4, kernel=(6, 5))])
    stage = Stage(recording_of([*[(StepKind.STEADY, passes, trained)] * 3, evaluated]))
    for _ in range(3):
        stage.module(grad=False)
        stage.op("aten::mm")
        stage.module()
        stage.op("aten::addmm")
        for phase in ("backward", "optimizer"):
            stage.within(phase)
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    # The first step may be an evaluation step, so only the next two count.
    assert [row["duration_ns"] // US for row in stage.log.device[-4:]] == [7, 9] * 2


def test_ops_at_the_start_of_an_evaluation_step_take_their_time_once() -> None:
    # GIVEN a script that normalizes each batch before it calls the model, like the recorded steps WHEN the script begins with
    # training, although the recording begins with validation
    normalise = Op("aten::sub", 62, 4, kernel=(66, 5))
    trained = [*TRAIN_OPS[:1], Op("aten::sub", 121, 4, kernel=(126, 6)), *TRAIN_OPS[1:]]
    evaluated = [*EVALUATION_OPS[:1], normalise, *EVALUATION_OPS[1:]]
    recorded = [(StepKind.EVALUATION, EVALUATION_PHASES, evaluated), (StepKind.STEADY, TRAIN_PHASES, trained)]
    stage = Stage(recording_of(recorded))
    train(stage)
    exhaust(stage)
    before = len(stage.log.device)
    # WHEN the first validation batch looks like a training batch until the model is called
    stage.within("loader", wait_us=50)
    stage.within("h2d", "aten::copy_")
    stage.op("aten::sub")
    stage.module(grad=False)
    stage.op("aten::mm")
    stage.op("aten::relu")
    exhaust(stage)
    # THEN ops before that keep their training times, later ops take validation times, and each op is charged once
    assert [row["duration_ns"] // US for row in stage.log.device[before:]] == [8, 6, 20, 9]
    assert stage.log.steps[1][2] == 0
    assert stage.simulator.stats.missing == {}


@pytest.mark.parametrize(("sleeps_us", "takes_us"), [(0, 450), (15, 450), (70, 502)])
def test_a_sleep_between_two_phases_counts_once(sleeps_us: int, takes_us: int) -> None:
    """GIVEN a recorded copy that ends after 112 us, and a forward pass whose first op begins after 130 us WHEN the script
    sleeps between them THEN the op begins at the recorded time, or when the sleep ends."""
    stage = Stage(recording_of([TRAIN] * 2))
    for _ in range(3):
        stage.within("loader", wait_us=100)
        stage.within("h2d", "aten::copy_")
        stage.clock.slept_ns += sleeps_us * US
        stage.clock.time_ns = stage.thread.host_ns + sleeps_us * US
        stage.module()
        stage.op("aten::mm")
        stage.op("aten::relu")
        stage.within("backward", "aten::mm_backward")
        stage.within("optimizer", "aten::add_")
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert durations_us(stage)[1:] == [takes_us, takes_us]


def test_metrics_recorded_at_the_end_of_a_step_do_not_begin_a_forward_pass() -> None:
    """GIVEN steps that end with an argmax, as if marks had ended them WHEN the script calls argmax after the optimizer THEN the
    replayed steps begin with the phase "other"."""
    metrics = Op("aten::argmax", 455, 6, kernel=(459, 5))
    recorded = (StepKind.STEADY, [*TRAIN_PHASES, ("other", 450, 480)], [*TRAIN_OPS, metrics])
    stage = Stage(recording_of([recorded] * 2))
    train(stage)
    for _ in range(2):
        stage.op("aten::argmax")
        train(stage)
    assert [name for name, *_ in stage.log.phases][-6:] == ["other", "loader", "h2d", "forward", "backward", "optimizer"]
    assert stage.simulator.stats.missing == {}


@pytest.mark.parametrize("before", [["other"], ["other", "forward"]])
def test_metrics_before_the_next_batch_belong_to_the_recorded_phase(before: list[str]) -> None:
    """GIVEN steps that begin with an argmax, and recorded it in "other" (or in "forward", as old recordings did) THEN the
    replayed argmax belongs to the same phase, and the wait for data takes its recorded time."""
    leading = [("other", 0, 10), ("forward", 10, 30)] if "forward" in before else [("other", 0, 30)]
    phases = [*leading, *((name, start + 30, end + 30) for name, start, end in TRAIN_PHASES)]
    metrics = Op("aten::argmax", 12, 6, kernel=(16, 5))
    moved = [replace(op, start_us=op.start_us + 30, kernel=(op.kernel[0] + 30, op.kernel[1])) for op in TRAIN_OPS if op.kernel]
    stage = Stage(recording_of([(StepKind.STEADY, phases, [metrics, *moved])] * 2))
    train(stage)
    for _ in range(2):
        stage.op("aten::argmax")
        train(stage)
    names = [name for name, *_ in stage.log.phases]
    per_step = [*before, "loader", "h2d", "forward", "backward", "optimizer"]
    assert names[-len(per_step) :] == per_step
    waits_us = [(end - start) // US for name, start, end, *_ in stage.log.phases if name == "loader"]
    assert waits_us[1:] == [100, 100] and stage.simulator.stats.missing == {}
    assert durations_us(stage)[2] == 480


def test_a_step_that_looked_like_evaluation_can_become_a_training_step() -> None:
    stage = Stage(recording_of([TRAIN, EVALUATION, EVALUATION, TRAIN]))
    train(stage)
    evaluate(stage)
    exhaust(stage)
    before = len(stage.log.device)
    train(stage)
    assert [row for _, _, row in stage.log.steps] == [0, 1, 3]
    assert [row["duration_ns"] // US for row in stage.log.device[before:]] == [4, 50, 30, 100, 10]


def test_steps_with_accumulated_gradients_and_two_optimizers_match_recorded_steps() -> None:
    # GIVEN a recording and a script with two optimizers, the second of which steps at the start of the next step
    phases: RecordedPhases = [("optimizer", 0, 20), ("forward", 20, 100), ("backward", 100, 200), ("optimizer", 200, 250)]
    stage = Stage(phase_grained(make_recording(phases, [], steps=3)))
    tracker = stage.simulator.tracker
    for _ in range(3):
        for batch in range(2):  # Each step has two batches.
            stage.module()
            stage.op("aten::mm")
            if not batch:
                stage.within("zero_grad")
            stage.within("backward")
        stage.within("optimizer")
        tracker.optimizer_stepped(stage.thread, True)
        stage.within("optimizer")  # The second optimizer's step ends no step.
    assert kinds(stage) == "WSS"


def test_a_step_with_fewer_backward_passes_takes_no_time_for_the_missing_ones() -> None:
    # GIVEN recorded steps of two batches, and a script whose steps have one batch
    batch: RecordedPhases = [("forward", 0, 100), ("backward", 100, 300)]
    phases = [*batch, *((name, start + 300, end + 300) for name, start, end in batch), ("optimizer", 600, 650)]
    stage = Stage(phase_grained(make_recording(phases, [], steps=2)))
    for _ in range(2):
        stage.module()
        stage.op("aten::mm")
        stage.within("backward", "aten::mm_backward")
        stage.within("optimizer", "aten::add_")
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert [(name, (end - start) // US) for name, start, end, *_ in stage.log.phases] == [
        ("forward", 100), ("backward", 200), ("optimizer", 50)
    ] * 2  # fmt: skip
    assert stage.simulator.stats.uncharged_ns == 2 * 300 * US


@pytest.mark.parametrize(("grain", "uncharged_us"), [("phase", 200), ("kernel", 0)])
def test_time_of_phases_that_a_script_never_enters_is_reported_only_without_kernels(grain: str, uncharged_us: int) -> None:
    """GIVEN phases without kernels WHEN a script enters no loader and no backward pass THEN the backward pass is reported.

    In a recording with kernels, the time of such a phase is not GPU time.
    """
    trace = phase_grained(make_recording([("loader", 0, 50), ("forward", 50, 100), ("backward", 100, 300)], []))
    trace.grain = grain
    stage = Stage(trace)
    stage.module()
    stage.op("aten::mm")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert stage.simulator.stats.uncharged_ns == uncharged_us * US


def test_loaders_and_modules_in_other_threads_do_not_end_a_step() -> None:
    stage = Stage(recording_of([TRAIN, EVALUATION]))
    other = type(stage.thread)(1, stage.clock.now_ns())
    tracker = stage.simulator.tracker
    for _ in range(3):
        stage.module(grad=False)
        stage.op("aten::mm")
        for replica in (5, 5, 6):
            tracker.module_called(other, replica, False)
        tracker.enter(other, "loader")
        tracker.leave(other, "loader")
    assert kinds(stage) == "EE"


def test_module_calls_in_a_backward_pass_or_a_data_loader_end_no_step() -> None:
    stage = Stage(recording_of([TRAIN]))
    for phase in ("backward", "optimizer", "loader"):
        stage.simulator.tracker.enter(stage.thread, phase)
        for _ in range(3):
            stage.module(grad=False)
        stage.simulator.tracker.leave(stage.thread, phase)
    assert stage.log.steps == []


@pytest.mark.parametrize(("of_graph", "took_us"), [(True, 50), (False, 20)])
def test_a_training_step_can_launch_a_graph_captured_without_gradients(of_graph: bool, took_us: int) -> None:
    """GIVEN recorded training and evaluation WHEN a module is called without gradients THEN its ops take evaluation times. If
    a CUDA graph repeats the call while gradients are enabled, the ops take training times."""
    stage = Stage(recording_of([EVALUATION, TRAIN, TRAIN]))
    tracker = stage.simulator.tracker
    tracker.grads_enabled = lambda: True
    train(stage)
    tracker.launches_graph = OpSignature("cudaGraphLaunch", (), ()) if of_graph else None
    stage.within("loader")
    stage.module(grad=False)
    stage.op("aten::mm")
    assert stage.log.device[-1]["duration_ns"] == took_us * US


def test_a_step_is_an_evaluation_step_if_only_recorded_evaluation_steps_launch_its_graph() -> None:
    """GIVEN a recorded evaluation that launches a CUDA graph WHEN the script launches the graph while gradients are enabled
    THEN the step takes the times of the evaluation."""
    evaluation = [Op("cudaGraphLaunch", 70, 10, kernel=(75, 20), shapes=())]
    trace = recording_of([TRAIN, (StepKind.EVALUATION, EVALUATION_PHASES, evaluation), TRAIN])
    trace.host.dtypes[trace.host.name == trace.strings.find("cudaGraphLaunch")] = NONE
    stage = Stage(trace)
    tracker = stage.simulator.tracker
    tracker.grads_enabled = lambda: True
    train(stage)
    tracker.launches_graph = OpSignature("cudaGraphLaunch", (), (), direction="0")
    stage.within("loader")
    stage.module(grad=False)
    assert tracker.step.step.kind == StepKind.EVALUATION


# --- recordings with profiled and clean steps

PROFILED = (StepKind.PROFILED, TRAIN_PHASES, TRAIN_OPS)
CLEAN_PHASES = [("loader", 0, 100), ("h2d", 100, 120), ("forward", 120, 160), ("backward", 160, 340), ("optimizer", 340, 390)]
CLEAN: tuple[StepKind, RecordedPhases, list[Op]] = (StepKind.STEADY, CLEAN_PHASES, [])


def with_marks(trace: Trace) -> Trace:
    """Return the trace with device times for the phases of steps without the profiler. The recorder writes these times."""
    phases = trace.phases
    clean = trace.steps.kind[phases.step] != StepKind.PROFILED
    clean &= phases.name != trace.strings.find("loader")
    phases.device_start_ns[clean] = phases.start_ns[clean]
    phases.device_end_ns[clean] = phases.end_ns[clean]
    return trace


def test_replayed_steps_take_the_profiled_steps_in_turn() -> None:
    other = [*TRAIN_OPS[:1], Op("aten::mm", 130, 20, kernel=(138, 45)), *TRAIN_OPS[2:]]
    stage = Stage(with_marks(recording_of([CLEAN, CLEAN, PROFILED, (StepKind.PROFILED, TRAIN_PHASES, other), CLEAN])))
    for _ in range(5):
        train(stage)
    assert [row for _, _, row in stage.log.steps] == [2, 3, 2, 3, 2]
    charged = stage.simulator.stats.charged_ns
    assert charged[Origin.EXACT] == sum(charged.values()) == (198 * 3 + 193 * 2) * US


def train_with(stage: Stage, shape: tuple[int, int], copied: tuple[int, int]) -> None:
    tracker = stage.simulator.tracker
    tracker.enter(stage.thread, "h2d")
    stage.op("aten::copy_", copied)
    tracker.leave(stage.thread, "h2d")
    stage.module()
    stage.op("aten::mm", shape)
    stage.op("aten::relu", shape)
    tracker.enter(stage.thread, "backward")
    stage.op("aten::mm_backward", shape)
    tracker.leave(stage.thread, "backward")
    tracker.enter(stage.thread, "optimizer")
    stage.op("aten::add_")
    tracker.leave(stage.thread, "optimizer")
    tracker.optimizer_stepped(stage.thread, True)


@pytest.mark.parametrize("first_differs", ["h2d", "forward"])
def test_a_step_takes_the_times_of_the_recorded_step_with_the_same_shapes(first_differs: str) -> None:
    """GIVEN a recorded step with batch 4 and another with batch 8 WHEN the script has a batch of one of these sizes THEN the
    step takes the times of the recorded step with this size. A batch of 16 takes scaled times."""
    copied = (8, 4) if first_differs == "h2d" else (4, 4)
    large = [
        Op("aten::copy_", 102, 10, kernel=(106, 8), shapes=(copied,)),
        Op("aten::mm", 130, 20, kernel=(138, 70), shapes=((8, 4),)),
        Op("aten::relu", 160, 10, kernel=(209, 50), shapes=((8, 4),)),
        Op("aten::mm_backward", 220, 20, kernel=(260, 120), shapes=((8, 4),)),
        TRAIN_OPS[-1],
    ]
    phases = TRAIN_PHASES[1:]
    stage = Stage(recording_of([(StepKind.PROFILED, phases, TRAIN_OPS), (StepKind.PROFILED, phases, large)]))
    for batch in (8, 4, 4, 8):
        train_with(stage, (batch, 4), copied if batch == 8 else (4, 4))
    assert [row for _, _, row in stage.log.steps] == [1, 0, 0, 1]
    small_us, large_us = 8 + 50 + 30 + 100 + 10, 8 + 70 + 50 + 120 + 10
    charged = stage.simulator.stats.charged_ns
    assert charged[Origin.EXACT] == sum(charged.values()) == 2 * (small_us + large_us) * US
    train_with(stage, (16, 4), (16, 4))
    assert charged[Origin.SCALED] > 0


def test_a_step_replays_a_recorded_step_that_has_the_same_phases() -> None:
    """GIVEN two recorded steps, of which only the second clears gradients WHEN each step of the script clears gradients THEN
    all steps take the second recorded step. No op is estimated."""
    filling = [*TRAIN_PHASES[1:3], ("zero_grad", 200, 220), ("backward", 220, 400), TRAIN_PHASES[-1]]
    ops = [*TRAIN_OPS[:3], Op("aten::zero_", 202, 10, kernel=(219, 7)), *TRAIN_OPS[3:]]
    stage = Stage(recording_of([(StepKind.PROFILED, TRAIN_PHASES[1:], TRAIN_OPS), (StepKind.PROFILED, filling, ops)]))
    for _ in range(3):
        train_on_batch(stage, fills_gradients=True)
    assert [row for _, _, row in stage.log.steps] == [1, 1, 1]
    charged = stage.simulator.stats.charged_ns
    assert charged[Origin.EXACT] == sum(charged.values()) == 3 * (198 + 7) * US


def test_a_step_with_new_shapes_takes_the_recorded_step_with_the_most_similar_shapes() -> None:
    """GIVEN recorded steps with batch 4 and batch 16 WHEN the script has batches of 14 and 5 THEN they take the times of batch
    16 and batch 4."""
    large = [*(replace(op, shapes=((16, 4),)) for op in TRAIN_OPS[:-1]), TRAIN_OPS[-1]]
    phases = TRAIN_PHASES[1:]
    stage = Stage(recording_of([(StepKind.PROFILED, phases, TRAIN_OPS), (StepKind.PROFILED, phases, large)]))
    for batch in (14, 5, 5, 14):
        train_with(stage, (batch, 4), (batch, 4))
    assert [row for _, _, row in stage.log.steps] == [1, 0, 0, 1]


def test_profiled_host_times_are_scaled_to_clean_steps_but_device_times_are_not() -> None:
    trace = with_marks(recording_of([CLEAN, PROFILED]))
    trace.runs = {0: Run(host_scale={"forward": 0.5, "backward": 0.9})}
    stage = Stage(trace)
    train(stage)
    assert [(name, (end - start) / US) for name, start, end, _, _ in stage.log.phases] == [
        ("loader", 100), ("h2d", 20), ("forward", 40), ("backward", 180), ("optimizer", 50)
    ]  # fmt: skip
    assert durations_us(stage) == [390]
    start_ns = stage.log.steps[0][0]
    rows = stage.log.device
    assert [row["duration_ns"] // US for row in rows] == [8, 50, 30, 100, 10]
    # The launch of mm ends 12 us after the start of the profiled forward pass. Its kernel starts 6 us later.
    assert rows[1]["start_ns"] - start_ns == pytest.approx((120 + 6 + 6) * US, abs=1)
    assert rows[3]["start_ns"] - start_ns == pytest.approx((160 + 0.9 * 21 + 7) * US, abs=29 * US)


def test_merged_ranks_keep_separate_host_scales() -> None:
    trace = with_marks(recording_of([CLEAN, PROFILED]))
    trace.runs = {0: Run(host_scale={"forward": 0.5}), 1: Run(host_scale={"forward": 0.1})}
    assert Stage(trace).recording.steps[1].segments["forward", 0].host_ns == 40 * US
    # WHEN a file has impossible scales THEN times are not scaled
    for scale in (float("nan"), -1.0, 0.0):
        trace.runs = {0: Run(host_scale={"forward": scale})}
        assert Stage(trace).recording.steps[1].segments["forward", 0].host_ns == 80 * US


def test_a_warm_up_step_takes_its_recorded_time_and_profiled_kernels() -> None:
    slow = [("loader", 0, 900), ("h2d", 900, 1_000), ("forward", 1_000, 5_000), ("backward", 5_000, 7_000)]
    slow.append(("optimizer", 7_000, 7_100))
    trace = with_marks(recording_of([(StepKind.WARMUP, slow, []), CLEAN, PROFILED]))
    stage = Stage(trace, pad_loader=True)
    for _ in range(3):
        train(stage, load_us=3)
    assert kinds(stage) == "WSS"
    assert [row for _, _, row in stage.log.steps] == [0, 2, 2]
    assert durations_us(stage) == [7_100, 450, 450]
    assert [(name, (end - start) / US) for name, start, end, _, _ in stage.log.phases[:5]] == [
        (name, end - start) for name, start, end in slow
    ]
    assert stage.simulator.stats.charged_ns[Origin.EXACT] == 3 * 198 * US


def test_a_recorded_wait_for_data_is_not_replayed_as_gpu_time() -> None:
    stage = Stage(phase_recording({"loader": 500, "h2d": 10, "forward": 40, "backward": 180, "optimizer": 50}, steps=3))
    for _ in range(3):
        train(stage, load_us=3_000)
    assert durations_us(stage) == [283_000] * 3


def test_a_phase_without_recorded_device_time_gets_none_in_a_replay() -> None:
    """GIVEN a CUDA graph in the forward pass that also did the work of the backward pass WHEN a script calls an op in the
    backward pass THEN the op is not estimated. The device works only for the 10 ms of the forward pass."""
    trace = phase_recording({"forward": 10, "backward": 2}, steps=2)
    of_backward = trace.phases.name == trace.strings.find("backward")
    trace.phases.device_start_ns[of_backward] = trace.phases.device_end_ns[of_backward]
    stage = Stage(trace)
    stage.module()
    stage.op("aten::mm")
    stage.within("backward", "aten::mm_backward")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert [row["duration_ns"] / US for row in stage.log.device] == [10_000]
    assert durations_us(stage) == [12_000]


@pytest.mark.parametrize(("since_us", "lasts_us"), [(7, 100), (40, 120)])
def test_with_recorded_waits_each_batch_wait_lasts_as_long_as_recorded(since_us: int, lasts_us: int) -> None:
    # GIVEN a recorded loader phase of 100 us that got its batch after 80 us
    trace = recording_of([TRAIN] * 2)
    trace.batches = Batches.of(
        rank=[0, 0], loader=[0, 0], kind=[BatchKind.WAIT] * 2, start_ns=trace.steps.start_ns, duration_ns=[80 * US] * 2
    )
    stage = Stage(trace, pad_loader=True)
    # WHEN this machine has the batch after 3 us, and the script then needs some time until its copy
    began_ns = stage.clock.time_ns
    stage.within("loader", wait_us=3)
    assert stage.clock.time_ns - began_ns == 80 * US
    stage.clock.time_ns += since_us * US
    stage.within("h2d", "aten::copy_")
    stage.module()
    stage.op("aten::mm")
    stage.within("backward", "aten::mm_backward")
    stage.within("optimizer", "aten::add_")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    # THEN the phase is as long as recorded, or longer if the script needed longer
    name, start_ns, end_ns, _, _ = stage.log.phases[0]
    assert (name, (end_ns - start_ns) / US) == ("loader", lasts_us)


@pytest.mark.parametrize("grain", ["phase", "kernel"])
@pytest.mark.parametrize("counted", ["other", "h2d"])
def test_preparing_a_batch_before_the_copy_takes_its_time_once(counted: str, grain: str) -> None:
    """GIVEN recorded steps of 212 ms, of which 200 ms prepare the batch WHEN the script also prepares each batch for 200 ms
    THEN its steps take 212 ms. Older recordings count the preparation in the phase h2d, and newer ones in the phase "other"."""
    phases_ms = {"other": 200, "h2d": 1, "forward": 10} if counted == "other" else {"h2d": 201, "forward": 10}
    trace = phase_recording({**phases_ms, "optimizer": 1}, steps=3)
    if grain == "kernel":
        trace.grain = "kernel"
    stage = Stage(trace)
    for _ in range(3):
        stage.clock.time_ns += 200_000 * US
        stage.within("h2d", "copy_")
        stage.module()
        stage.op("mm")
        stage.within("optimizer", "mul_")
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    (start_ns, end_ns, _), names = stage.log.steps[2], [phase[0] for phase in stage.log.phases[-4:]]
    assert (end_ns - start_ns) // (1000 * US) == 212
    assert names == (["other"] if counted == "other" else ["optimizer"]) + ["h2d", "forward", "optimizer"]


def test_the_warm_up_step_of_the_profiler_is_not_replayed() -> None:
    warmup: tuple[StepKind, RecordedPhases, list[Op]] = (StepKind.WARMUP, [("forward", 0, 5_000)], [])
    stage = Stage(with_marks(recording_of([warmup, CLEAN, warmup, PROFILED])))
    for _ in range(4):
        train(stage)
    assert [row for _, _, row in stage.log.steps] == [0, 3, 3, 3]


def test_a_replay_of_phase_times_uses_the_times_of_clean_steps() -> None:
    # GIVEN a recording whose profiled step has no kernels
    stage = Stage(phase_grained(recording_of([(StepKind.WARMUP, TRAIN_PHASES, []), CLEAN, PROFILED, CLEAN])))
    for _ in range(4):
        train(stage)
    assert [row for _, _, row in stage.log.steps] == [0, 1, 3, 3]
    assert durations_us(stage) == [450, 390, 390, 390]


def test_unprofiled_evaluation_steps_are_replayed_with_their_phase_times() -> None:
    trace = with_marks(recording_of([CLEAN, *[(StepKind.EVALUATION, EVALUATION_PHASES, [])] * 3, PROFILED]))
    stage = Stage(trace)
    train(stage)
    exhaust(stage)
    for _ in range(3):
        evaluate(stage)
    exhaust(stage)
    assert [row for _, _, row in stage.log.steps] == [4, 1, 2, 3]
    assert durations_us(stage)[1:] == [110, 110, 110]
    assert stage.simulator.stats.charged_ns[Origin.PHASE] == (50 * 3 + 10 * 3) * US


# --- values


def reading(trace: Trace) -> tuple[VirtualGpu, FakeClock]:
    clock = FakeClock()
    return VirtualGpu(trace, 0, clock, Log()), clock  # type: ignore[arg-type]


def test_values_come_from_the_recorded_step_at_the_same_position() -> None:
    # GIVEN two epochs, each with a clean, a profiled and a validation step. Each step has read a value
    trace = with_marks(recording_of([CLEAN, PROFILED, EVALUATION] * 2))
    trace.values = Values.of(
        rank=[0] * 6, step=range(6), read=range(6), op=[0] * 6, dtype=[0] * 6, value=[9.0, 8.0, 0.5, 7.0, 6.0, 0.25]
    )
    gpu, _ = reading(trace)
    item = OpSignature("aten::_local_scalar_dense", ((),), ("float32",))
    seen = []
    for _ in range(2):
        for _ in range(2):
            gpu.steps.module_called(id(trace), True)
            gpu.steps.enter_phase("backward")
            gpu.steps.leave_phase("backward")
            seen.append(gpu.values.read(item, 0, 1))
            gpu.steps.optimizer_stepped(True)
        gpu.steps.enter_phase("loader")
        gpu.steps.leave_phase("loader")
        gpu.steps.module_called(id(trace), False)
        seen.append(gpu.values.read(item, 0, 1))
        gpu.steps.enter_phase("loader")
        gpu.steps.leave_phase("loader")
        gpu.steps.loader_exhausted()
    assert seen == [[9.0], [8.0], [0.5], [7.0], [6.0], [0.25]]
    # AND steps beyond the recording read the values of the recorded steps that they repeat
    gpu.steps.enter_phase("backward")
    assert gpu.values.read(item, 0, 1) == [6.0]


def test_a_read_before_the_step_kind_is_known_gets_a_recorded_value() -> None:
    trace = recording_of([TRAIN, EVALUATION, TRAIN])
    trace.values = Values.of(rank=[0] * 3, step=range(3), read=range(3), op=[0] * 3, dtype=[0] * 3, value=[1.0, 2.0, 3.0])
    gpu, _ = reading(trace)
    item = OpSignature("aten::_local_scalar_dense", ((),), ("float32",))
    gpu.steps.optimizer_stepped(True)
    # This value is the loss of the previous step, which the script prints after the step.
    assert gpu.values.read(item, 0, 1) == [2.0]
    gpu.steps.module_called(id(trace), False)
    assert gpu.values.read(item, 0, 1) is None
    assert gpu.simulator.tracker.row_of_values != NONE


def test_a_script_without_gpu_work_takes_no_recorded_gpu_time() -> None:
    stage = Stage(phase_grained(recording_of([TRAIN, TRAIN])))
    for _ in range(3):
        for phase in ("zero_grad", "backward", "optimizer"):
            stage.within(phase)
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert not any(stage.simulator.stats.charged_ns.values())


def test_a_different_model_gets_estimated_times_instead_of_recorded_phase_times() -> None:
    """GIVEN a recording of phases that contains the size of its model WHEN the script trains another model THEN all times are
    estimated."""
    trace = phase_grained(recording_of([TRAIN, TRAIN]))
    trace.workload = WorkloadSignature(parameters=11_689_512, inputs=(InputTensor((128, 3, 224, 224), "float32"),))
    for parameters, phase_share in ((11_689_512, 1.0), (72, 0.0)):
        stage = Stage(trace)
        workload = stage.simulator.tracker.script.workload
        workload.signature = WorkloadSignature(parameters=parameters, inputs=trace.workload.inputs)
        train(stage)
        charged = stage.simulator.stats.charged_ns
        assert charged[Origin.PHASE] == phase_share * (sum(charged.values()))
        assert sum(charged.values()) > 0
    # WHEN the other model is detected within a phase, at the model call THEN this phase takes no recorded time either
    stage = Stage(trace)
    stage.simulator.tracker.enter(stage.thread, "backward")
    stage.op("aten::mm")
    stage.simulator.tracker.script.workload.signature = WorkloadSignature(parameters=72, inputs=trace.workload.inputs)
    stage.simulator.tracker.leave(stage.thread, "backward")
    assert not stage.simulator.stats.charged_ns[Origin.PHASE]


def charged(stage: Stage) -> dict[int, int]:
    return {origin: ns for origin, ns in stage.simulator.stats.charged_ns.items() if ns}


def _pass(start_us: int) -> list[Op]:
    """Return the ops of one pass of a model with two ops. The batch is copied before them."""
    return [
        Op("aten::copy_", start_us, 5, kernel=(start_us + 4, 4)),
        Op("aten::mm", start_us + 20, 10, kernel=(start_us + 25, 20)),
        Op("aten::relu", start_us + 35, 10, kernel=(start_us + 46, 9)),
    ]


def _infer(stage: Stage, *, grad: bool) -> None:
    stage.within("h2d", "aten::copy_")
    stage.module(grad=grad)
    stage.op("aten::mm")
    stage.op("aten::relu")
    stage.simulator.tracker.script.module_returned()


@pytest.mark.parametrize("grad", [False, True])
def test_each_inference_pass_is_a_step_that_begins_with_its_copy(grad: bool) -> None:
    # GIVEN a recording whose steps are single passes WHEN a script without loader and optimizer is replayed
    one = (StepKind.EVALUATION, [("h2d", 0, 10), ("forward", 10, 60)], _pass(0))
    stage = Stage(recording_of([one] * 3), optimizers=Optimizers())
    for _ in range(4):
        _infer(stage, grad=grad)
    stage.simulator.tracker.stop(stage.thread)
    # THEN each pass is a separate step with its own copy
    assert kinds(stage) == "EEEE"
    assert [end - start for start, end, _ in stage.log.steps] == [60 * US] * 4
    assert charged(stage) == {Origin.EXACT: 4 * 33 * US}


def test_a_replayed_inference_step_has_as_many_forward_passes_as_the_recorded_one() -> None:
    # GIVEN recorded steps that generate text with three forward passes each
    ops = [op for start in (0, 60, 120) for op in _pass(start)]
    whole = (StepKind.EVALUATION, [("h2d", 0, 10), ("forward", 10, 180)], ops)
    stage = Stage(recording_of([whole, whole]), optimizers=Optimizers())
    # WHEN the script makes six passes THEN the passes form two steps, and each pass takes the time of one recorded pass
    for _ in range(6):
        _infer(stage, grad=False)
    stage.simulator.tracker.stop(stage.thread)
    assert kinds(stage) == "EE"
    assert charged(stage) == {Origin.EXACT: 6 * 33 * US}


def test_each_forward_pass_of_an_unrecorded_model_is_a_step() -> None:
    whole = (StepKind.EVALUATION, [("forward", 0, 180)], [op for start in (0, 60, 120) for op in _pass(start)])
    stage = Stage(recording_of([whole]), optimizers=Optimizers())
    for _ in range(3):
        stage.module(grad=False)
        for _ in range(4):
            stage.op("aten::mm", (5, 5), (5, 5))
    stage.simulator.tracker.stop(stage.thread)
    assert kinds(stage) == "EEE"


def test_a_script_that_stops_within_its_first_step_waits_for_the_gpu() -> None:
    stage = Stage(recording_of([TRAIN]))
    stage.within("h2d", "aten::copy_")
    stage.module()
    stage.op("aten::mm")  # The kernel of 50 µs ends after its call of 20 µs.
    ended_ns = stage.simulator.scheduler.work_end_ns(0)
    assert stage.thread.host_ns < ended_ns
    stage.simulator.tracker.stop(stage.thread)
    assert stage.thread.host_ns >= ended_ns


def test_an_op_before_the_batch_is_copied_does_not_begin_a_recorded_phase() -> None:
    """GIVEN recorded phases of 10, 40 and 5 ms WHEN the script runs an op before it copies the batch THEN each step still has
    all three phases, and takes 55 ms."""
    stage = Stage(phase_recording({"h2d": 10, "forward": 40, "optimizer": 5}, steps=3))
    for _ in range(3):
        stage.op("aten::index_put_")
        stage.within("h2d", "aten::copy_")
        stage.module()
        stage.op("aten::mm")
        stage.within("optimizer", "aten::add_")
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    names = [name for name, *_ in stage.log.phases]
    assert [name for name in names if name != "other"] == ["h2d", "forward", "optimizer"] * 3
    assert [(end - start) // (1000 * US) for start, end, _ in stage.log.steps] == [55] * 3


def test_later_batches_of_inference_may_have_other_sizes_than_the_first() -> None:
    """GIVEN a recorded inference program whose first input is 1x16 WHEN the first input of a script is 1x16 THEN the script is
    the recorded program, even if its second input is 1x17. WHEN the first input is 1x17 THEN the script is another program."""
    model = torch.nn.Linear(2, 2)

    def is_same(*lengths: int) -> list[bool]:
        observer = WorkloadObserver()
        observer.module_called(model, [((1, 16), "int64")])
        observer.step_ended(is_evaluation=True)
        script, found = WorkloadObserver(), list[bool]()
        check = step_tracker.WorkloadCheck(observer.signature, script, trains=False)
        for length in lengths:
            script.module_called(model, [((1, length), "int64")])
            found.append(check.is_same(evaluates=True))
            script.step_ended(is_evaluation=True)
        return found

    assert is_same(16, 17) == [True, True]
    assert is_same(17, 16) == [False, False]


@pytest.mark.parametrize(("trained", "is_same"), [(32, True), (16, False)])
def test_validation_before_training_may_have_another_batch_size_than_training(trained: int, is_same: bool) -> None:
    """GIVEN a recorded program that trains with batches of 32 WHEN a script validates with a batch of 128, and then trains
    with batches of 32 THEN the script is the recorded program. During validation, only the models are compared."""
    model, observer, script = torch.nn.Linear(2, 2), WorkloadObserver(), WorkloadObserver()
    observer.module_called(model, [((32, 2), "float32")])
    observer.step_ended(is_evaluation=False)
    check = step_tracker.WorkloadCheck(observer.signature, script, trains=True)
    for validated, is_recorded in ((model, True), (torch.nn.Linear(2, 3), False)):
        script.module_called(validated, [((128, 2), "float32")])
        assert check.is_same(evaluates=True) is is_recorded
        script.step_ended(is_evaluation=True)
    assert check.is_same(evaluates=False)  # The first training batch is being loaded.
    script.module_called(model, [((trained, 2), "float32")])
    assert check.is_same(evaluates=False) is is_same
    script.step_ended(is_evaluation=False)
    assert check.is_same(evaluates=True) is is_same
