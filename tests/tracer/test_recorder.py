"""Tests how the recorder turns the calls of a script into steps, phases and values. The clock is a fake."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.tracer.fakes import Bench, FakeClock, FakeFlightRecorder, FakeStream
from tracer.device.device_access import PATIENCE_NS
from tracer.recording_writer import FIGURES_NS
from tracer.schedule import Schedule
from tracer.writing.collectives import CollectiveCall, PendingCollective
from tracer.writing.flight_recorder import FlightRecord
from tracer.writing.output import FLUSH_NS
from traces.figures.measure import clean_evaluations
from traces.format.trace_file import TraceStream, load
from traces.model.trace import NONE, BatchKind, Ending, StepKind, Trace, Untimed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def recorded(bench: Bench) -> Trace:
    bench.recorder.close()
    return load(bench.path)


def phases_of(trace: Trace, step: int) -> list[tuple[str, int]]:
    rows = np.flatnonzero(trace.phases.step == step)
    return [(trace.strings[int(trace.phases.name[row])], int(trace.phases.duration_ns[row])) for row in rows]


def test_a_plain_training_loop_is_recorded_as_steps_with_phases(bench: Bench) -> None:
    for _ in range(3):
        bench.train_step()
    trace = recorded(bench)
    assert trace.steps.number.tolist() == [0, 1, 2]
    assert trace.steps.kind.tolist() == [StepKind.WARMUP, StepKind.STEADY, StepKind.STEADY]
    assert phases_of(trace, 1) == [("loader", 10), ("forward", 100), ("loss", 10), ("backward", 200), ("optimizer", 30)]


def test_steps_begin_at_unix_time_for_any_start_of_the_monotonic_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts_ns = []
    for offset_ns in (0, 7_000):
        monkeypatch.setattr(FakeClock, "offset_ns", offset_ns)
        bench = Bench(tmp_path)
        for _ in range(6):
            bench.train_step()
        starts_ns.append(recorded(bench).steps.start_ns)
    assert (starts_ns[1] - starts_ns[0]).tolist() == [7_000] * 6


def test_the_reported_overhead_is_zero_if_recorder_calls_take_no_time(bench: Bench) -> None:
    for _ in range(12):
        bench.train_step()
        bench.evaluate_batch()
    cost = bench.recorder.cost
    assert cost.calls >= 12 * 8 and (cost.spent_ns, cost.per_step_ns, cost.set_up_ns) == (0, 0, 0)


def test_step_overhead_and_one_time_overhead_add_up_to_all_recorder_time(bench: Bench) -> None:
    """The clock advances by 1 ns per reading. Every 20th step waits until the next write to the file is due."""
    bench.clock.reading_ns = 1
    cost, steps = bench.recorder.cost, 80
    for step in range(1, steps + 1):
        if step % 20 == 0:
            bench.run(FLUSH_NS)
        bench.train_step()
    assert 8 < cost.per_step_ns < 200 and cost.set_up_ns < 400
    assert (cost.spent_ns - cost.set_up_ns) / cost.per_step_ns == pytest.approx(steps, rel=0.1)


def test_phases_fill_their_steps_without_gaps(bench: Bench) -> None:
    for _ in range(4):
        bench.train_step()
        bench.run(7)  # the time between two steps belongs to the next step
    trace = recorded(bench)
    for row in range(len(trace.steps)):
        own = trace.phases.take(trace.phases.step == row)
        assert own.start_ns[0] == trace.steps.start_ns[row]
        assert own.end_ns[-1] == trace.steps.end_ns[row]
        assert (own.start_ns[1:] == own.end_ns[:-1]).all()
    assert (trace.steps.start_ns[1:] == trace.steps.end_ns[:-1]).all()


def test_preprocessing_before_the_copy_is_recorded_as_phase_other(bench: Bench) -> None:
    """A script without a loader prepares a batch for 200 ns, copies it for 10 ns and trains for 50 ns."""
    for _ in range(4):
        bench.run(200)
        bench.recorder.enter_phase("h2d")
        bench.run(10, 10)
        bench.recorder.leave_phase("h2d")
        bench.recorder.module_called(id(bench.model), True)
        bench.run(50, 500)
        bench.recorder.module_returned()
        bench.recorder.enter_phase("optimizer")
        bench.recorder.leave_phase("optimizer")
        bench.recorder.optimizer_stepped(True)
    bench.run(10_000)
    trace = recorded(bench)
    assert phases_of(trace, 0)[:2] == [("h2d", 10), ("forward", 50)]
    assert phases_of(trace, 3)[:3] == [("other", 200), ("h2d", 10), ("forward", 50)]
    lasted_ns = (trace.phases.device_end_ns - trace.phases.device_start_ns)[trace.phases.step == 1]
    assert lasted_ns[:3].tolist() == [0, 10, 500]  # while the host prepares the batch, the GPU still works on the first step


def test_gpu_times_come_from_the_cuda_events(bench: Bench) -> None:
    bench.train_step()
    bench.run(10_000)  # the GPU has caught up
    bench.train_step()
    trace = recorded(bench)
    own = trace.phases.take(trace.phases.step == 1)
    names = [trace.strings[int(i)] for i in own.name]
    device_ns = dict(zip(names, (own.device_end_ns - own.device_start_ns).tolist(), strict=True))
    # The forward pass was launched while the GPU was idle. The other phases wait in the queue.
    assert (device_ns["forward"], device_ns["loss"], device_ns["backward"], device_ns["optimizer"]) == (1000, 50, 2000, 100)


def test_pending_cuda_events_never_block_the_host(bench: Bench) -> None:
    bench.train_step()
    at_ns = bench.clock.ns
    assert len(bench.recorder._writer.pending) == 1  # the GPU is still working on this step
    bench.run(FLUSH_NS)
    bench.train_step()
    assert bench.clock.ns == at_ns + FLUSH_NS + 350
    assert len(bench.recorder._writer.pending) == 1


def test_setup_before_the_first_batch_is_not_part_of_the_first_step(bench: Bench) -> None:
    bench.recorder.module_called(id(bench.model), True)  # this is a dry run, in which the script looks at shapes
    bench.run(5_000_000)
    bench.train_step()
    trace = recorded(bench)
    assert trace.steps.duration_ns[0] == 350


def test_gradient_accumulation_is_one_step(bench: Bench) -> None:
    bench.train_step(accumulate=3)
    trace = recorded(bench)
    assert len(trace.steps) == 1
    assert [name for name, _ in phases_of(trace, 0)].count("backward") == 3


def test_the_second_optimizer_does_not_end_the_step(bench: Bench) -> None:
    bench.train_step()
    bench.recorder.enter_phase("optimizer")
    bench.recorder.leave_phase("optimizer")
    bench.recorder.optimizer_stepped(False)
    bench.train_step()
    assert len(recorded(bench).steps) == 2


def test_validation_batches_between_epochs_are_separate_steps(bench: Bench) -> None:
    for _ in range(2):
        bench.train_step()
        bench.train_step()
        bench.evaluate_batch()
        bench.evaluate_batch()
    trace = recorded(bench)
    steady, evaluation = StepKind.STEADY, StepKind.EVALUATION
    assert trace.steps.kind.tolist() == [StepKind.WARMUP, steady, *[evaluation] * 2, *[steady] * 2, *[evaluation] * 2]
    steady = trace.steps.duration_ns[trace.steps.kind == StepKind.STEADY]
    assert set(steady.tolist()) == {350}  # these steps contain no validation
    assert phases_of(trace, 2) == [("loader", 10), ("forward", 100)]


def test_inference_is_recorded_as_evaluation_steps(bench: Bench) -> None:
    for _ in range(5):
        bench.evaluate_batch()
    trace = recorded(bench)
    assert trace.steps.kind.tolist() == [StepKind.EVALUATION] * 5


def test_each_model_call_is_a_step_in_inference_without_a_loader(bench: Bench) -> None:
    for _ in range(4):
        bench.recorder.module_called(id(bench.model), False)
        bench.run(100, 100)
    assert len(recorded(bench).steps) == 4


def test_a_recorded_value_belongs_to_the_current_step(bench: Bench) -> None:
    bench.train_step()
    # A value that is read after a step belongs to the next step.
    bench.recorder.read("aten::_local_scalar_dense", "float32", [0.5])
    bench.train_step()
    bench.recorder.read("aten::copy_", "int64", [1, 2])
    trace = recorded(bench)
    assert trace.values.step.tolist() == [1, NONE, NONE]
    assert trace.values.read.tolist() == [0, 1, 1]
    assert trace.values.value.tolist() == [0.5, 1.0, 2.0]


def test_a_recorded_output_size_belongs_to_the_current_step(bench: Bench) -> None:
    bench.train_step()
    bench.recorder.add_result_size("aten::nonzero", (10, 4), 7)  # a size that is found after a step belongs to the next step
    bench.train_step()
    bench.recorder.add_result_size("aten::_unique2", (), 1)
    trace = recorded(bench)
    assert trace.sizes.step.tolist() == [1, NONE]
    assert trace.sizes.size.tolist() == [7, 1]
    assert [trace.strings[int(text)] for text in trace.sizes.op] == ["aten::nonzero", "aten::_unique2"]
    assert [trace.strings[int(text)] for text in trace.sizes.shapes] == ["10,4", ""]


def test_batch_waits_and_pins_are_recorded(bench: Bench) -> None:
    bench.train_step()
    bench.recorder.batch(BatchKind.WAIT, 0, 5, 15, 4096)
    bench.recorder.batch(BatchKind.PIN, 0, 1, 3, 4096)
    trace = recorded(bench)
    assert trace.batches.kind.tolist() == [0, 1]
    assert trace.batches.duration_ns.tolist() == [10, 2]
    assert trace.batches.bytes.tolist() == [4096, 4096]


def test_stages_are_recorded_inside_their_phase(bench: Bench) -> None:
    recorder = bench.recorder
    bench.load(10)
    recorder.module_called(id(bench.model), True)
    begun = recorder.steps.begin_stage()
    bench.run(40, 500)
    recorder.steps.end_stage("scatter", begun)
    bench.run(60)
    recorder.enter_phase("backward")
    recorder.leave_phase("backward")
    recorder.enter_phase("optimizer")
    recorder.leave_phase("optimizer")
    recorder.optimizer_stepped(True)
    trace = recorded(bench)
    assert [trace.strings[int(i)] for i in trace.parts.name] == ["scatter"]
    assert trace.strings[int(trace.phases.name[trace.parts.phase[0]])] == "forward"
    assert trace.parts.device_end_ns[0] - trace.parts.device_start_ns[0] == 500


def call_at(bench: Bench, name: str = "all_reduce") -> CollectiveCall:
    return CollectiveCall(name, "float32", "0", 2, "nccl", 400, bench.clock.ns, bench.clock.ns)


def test_a_blocking_collective_is_timed_with_two_cuda_events(bench: Bench) -> None:
    stream = FakeStream(0)
    bench.train_step()
    bench.run(10_000)  # the GPU has caught up
    bench.cuda.launch(300)  # this work precedes the collective on the stream
    called_ns = bench.clock.ns
    begin = bench.recorder.communication.event_on(stream)
    bench.cuda.launch(5_000)
    bench.recorder.communication.communicated(call_at(bench), begin, stream)
    bench.recorder.communication.communicated(call_at(bench, "barrier"))  # a barrier on the host has no events
    bench.run(20_000)
    bench.train_step()
    trace = recorded(bench)
    calls = trace.collectives
    found = zip(calls.name.tolist(), calls.start_ns.tolist(), calls.duration_ns.tolist(), calls.device.tolist(), strict=True)
    assert {(trace.strings[name], *row) for name, *row in found} == {
        ("all_reduce", called_ns, 5_000, 0), ("barrier", called_ns, 0, NONE),
    }  # fmt: skip


def test_a_collective_outside_of_steps_is_written_when_it_completes(bench: Bench) -> None:
    stream = FakeStream(0)
    for done in range(5):
        begin = bench.recorder.communication.event_on(stream)
        bench.cuda.launch(700)
        bench.recorder.communication.communicated(call_at(bench), begin, stream)
        assert bench.output.count("collectives") == done
        bench.run(1_000)
    # WHEN the last collective never ends THEN the end of the recording does not wait for it
    begin = bench.recorder.communication.event_on(stream)
    bench.cuda.launch(10**18)
    bench.recorder.communication.communicated(call_at(bench), begin, stream)
    assert recorded(bench).collectives.duration_ns.tolist() == [700] * 5


def let_go(bench: Bench, duration_ns: int, works: int = 1) -> PendingCollective:
    """Start an operation on a separate stream, in parallel with the script's stream."""
    begin = bench.recorder.communication.event_on(FakeStream(0))
    assert begin is not None
    bench.operation_ends_ns = max(bench.cuda.busy_until_ns.get(0, 0), bench.clock.ns) + duration_ns
    return bench.recorder.communication.communicates(call_at(bench), begin, works)


def wait_for(bench: Bench, pending: PendingCollective, host_ns: int = 2_000) -> None:
    """Make the stream wait for the operation, as NCCL's work objects do. This call takes `host_ns` on the host."""
    before = bench.recorder.communication.event_on(FakeStream(0))
    bench.clock.ns += host_ns
    bench.cuda.busy_until_ns[0] = max(bench.cuda.busy_until_ns.get(0, 0), bench.operation_ends_ns)
    bench.recorder.communication.waited_for(pending, before, FakeStream(0))


@pytest.mark.parametrize(
    ("busy_ns", "host_ns", "duration_ns", "ending"),
    [
        (0, 2_000, 90_000, Ending.SEEN),  # the stream has no other work, so the end of the operation is seen
        (60_000, 2_000, 90_000, Ending.SEEN),  # the operation ends after the other work of the stream
        (200_000, 2_000, 200_000, Ending.BY),  # the stream has other work when the operation ends
        (0, 100_000, 100_000, Ending.BY),  # the operation ends between two events, so only a latest end is known
    ],
)
def test_an_asynchronous_collective_ends_when_a_stream_waits_for_it(
    bench: Bench, busy_ns: int, host_ns: int, duration_ns: int, ending: Ending
) -> None:
    bench.train_step()
    bench.run(10_000)  # the GPU has caught up
    pending = let_go(bench, 90_000)
    bench.cuda.launch(busy_ns)
    wait_for(bench, pending, host_ns)
    bench.run(400_000)
    bench.train_step()
    calls = recorded(bench).collectives
    assert (calls.duration_ns.tolist(), calls.ending.tolist(), calls.device.tolist()) == ([duration_ns], [ending], [0])


def test_a_collective_with_several_work_objects_ends_with_the_last_one(bench: Bench) -> None:
    pending = let_go(bench, 20_000, works=2)
    wait_for(bench, pending)
    bench.run(100_000)
    bench.operation_ends_ns = bench.clock.ns + 50_000
    assert bench.output.count("collectives") == 0
    wait_for(bench, pending)
    bench.run(100_000)
    calls = recorded(bench).collectives
    assert calls.ending.tolist() == [Ending.SEEN] and 150_000 <= calls.duration_ns[0] < 170_000


def test_a_collective_without_an_observed_wait_has_only_a_call_time(bench: Bench) -> None:
    """GIVEN a collective whose work object is gone, one that is waited for during a capture, and one without a wait."""
    forgotten, captured, left = (let_go(bench, 90_000) for _ in range(3))
    bench.recorder.communication.give_up_call(forgotten)
    bench.cuda.stream, bench.cuda.capturing = 7, True
    wait_for(bench, captured)
    assert left in bench.recorder._writer.collectives._open
    calls = recorded(bench).collectives
    assert calls.ending.tolist() == [Ending.UNSEEN] * 3
    assert calls.duration_ns.tolist() == [0] * 3 and calls.device.tolist() == [NONE] * 3


def test_collectives_of_the_flight_recorder_are_written_between_steps(tmp_path: Path) -> None:
    """Steps do not become longer, although reading the ring buffer takes longer than a step."""
    flight = FakeFlightRecorder()
    bench = Bench(tmp_path, flight=flight)
    bench.recorder.communication.joined_group(0)
    flight.clock, flight.look_ns = bench.clock, 5_000
    call = call_at(bench)
    for _ in range(4):
        timed_call = call._replace(name="broadcast", start_ns=bench.clock.ns + 1)
        flight.found = [FlightRecord(call, NONE), FlightRecord(timed_call, 700)]
        bench.train_step()
    bench.recorder.communication.group_ends(is_all=False)
    assert flight.reads == [False, False] and flight.spent_ns == 10_000
    bench.recorder.communication.group_ends(is_all=True)
    trace = recorded(bench)
    assert flight.reads == [False, False, True, True]
    assert set(trace.steps.duration_ns.tolist()) == {350}
    assert trace.steps.start_ns[2] == trace.steps.end_ns[1] + 5_000
    calls = trace.collectives
    timed = calls.take(calls.name == trace.strings.find("broadcast"))
    assert timed.duration_ns.tolist() == [700] * 2 and timed.device.tolist() == [0] * 2
    assert timed.ending.tolist() == [Ending.SEEN] * 2
    others = calls.take(calls.name == trace.strings.find("all_reduce"))
    assert others.duration_ns.tolist() == [0] * 2 and others.device.tolist() == [NONE] * 2
    assert others.ending.tolist() == [Ending.UNSEEN] * 2
    assert trace.lacks == ["some"] and trace.provenance["flight_recorder"] == {"looks": 4}


def test_a_model_without_modules_still_has_a_forward_pass(bench: Bench) -> None:
    recorder = bench.recorder
    bench.load(10)
    recorder.enter_phase("h2d")
    recorder.leave_phase("h2d")
    bench.run(70)
    recorder.enter_phase("backward")
    bench.run(80)
    recorder.leave_phase("backward")
    recorder.enter_phase("optimizer")
    recorder.leave_phase("optimizer")
    recorder.optimizer_stepped(True)
    assert ("forward", 70) in phases_of(recorded(bench), 0)


def test_the_profiler_runs_in_the_scheduled_steps(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Schedule(warmup=1, clean=2, profiled=2))
    for _ in range(8):
        bench.train_step()
    trace = recorded(bench)
    assert bench.profiler.told == [("prepare", 3), ("record", 4), ("record", 5), ("stop", None)]
    kinds = StepKind
    assert trace.steps.kind.tolist() == [
        kinds.WARMUP, kinds.STEADY, kinds.STEADY, kinds.WARMUP, kinds.PROFILED, kinds.PROFILED, kinds.STEADY, kinds.STEADY,
    ]  # fmt: skip


def test_steps_with_larger_batches_are_profiled_too(tmp_path: Path) -> None:
    """GIVEN a model whose batches become larger after ten steps THEN the profiler also records steps with larger batches."""
    bench = Bench(tmp_path, Schedule(warmup=1, clean=2, profiled=2))
    for number in range(16):
        called = bench.recorder.workload.on_every_call
        assert called is not None
        inputs = (((32 if number < 10 else 64, 8), "float32"),)
        returned = called(bench.model, inputs, "off", True)
        assert returned is not None
        returned()
        bench.train_step()
    assert [number for action, number in bench.profiler.told if action == "record"] == [4, 5, 13, 14]


def test_the_recorder_does_not_inspect_inputs_if_it_records_only_phases(tmp_path: Path) -> None:
    assert Bench(tmp_path, Schedule(warmup=1, clean=2, profiled=0)).recorder.workload.on_every_call is None


@pytest.mark.parametrize(
    ("clean", "has_attached", "kind_after"),
    [(5, True, StepKind.AFTER_PROFILE), (4, True, StepKind.STEADY), (5, False, StepKind.STEADY)],
)
def test_steps_after_a_profile_are_not_used_if_enough_steps_ran_before_the_profile(
    tmp_path: Path, clean: int, has_attached: bool, kind_after: StepKind
) -> None:
    """The steps after a profile are used if only four clean steps ran before it, or if the profile had no device activities."""
    bench = Bench(tmp_path, Schedule(warmup=1, clean=clean, profiled=1))
    for number in range(clean + 9):
        bench.profiles.has_attached = has_attached and number > clean
        bench.train_step()
    kinds = [StepKind.WARMUP, *[StepKind.STEADY] * clean, StepKind.WARMUP, StepKind.PROFILED, *[kind_after] * 6]
    assert recorded(bench).steps.kind.tolist() == kinds


def test_evaluation_and_graph_capture_steps_keep_their_kind_after_a_profile(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Schedule(warmup=0, clean=50, profiled=0))
    for _ in range(6):
        bench.train_step()
    bench.profiles.has_attached = True  # a profile of the script has attached CUPTI
    bench.evaluate_batch()
    bench.train_step()
    bench.recorder.steps.is_unlike_others = True
    bench.train_step()
    kinds = [*[StepKind.STEADY] * 6, StepKind.EVALUATION, StepKind.AFTER_PROFILE, StepKind.WARMUP]
    assert recorded(bench).steps.kind.tolist() == kinds


def test_steps_that_compile_code_are_not_used_for_step_times(tmp_path: Path) -> None:
    """GIVEN 14 steps WHEN steps 2, 3 and 10 compile THEN they count as warm-up, like step 0. Step 10 repeats earlier steps."""
    bench = Bench(tmp_path, Schedule(warmup=1, clean=50, profiled=0))
    for number in range(14):
        if number in (2, 3, 10):
            bench.recorder.compilation_begins()
        bench.train_step()
    trace = recorded(bench)
    assert np.flatnonzero(trace.steps.kind == StepKind.WARMUP).tolist() == [0, 2, 3, 10]
    assert np.flatnonzero(trace.steps.kind == StepKind.STEADY).tolist() == [1, 4, 5, 6, 7, 8, 9, 11, 12, 13]


def test_a_profiled_step_that_compiles_is_replaced_by_a_later_step(tmp_path: Path) -> None:
    """GIVEN three steps to profile WHEN the second one compiles THEN another step is profiled. If every step compiles, at most
    three further steps are profiled."""
    kinds = {}
    for compiled in ((5,), range(20)):
        folder = tmp_path / str(len(compiled))
        folder.mkdir()
        bench = Bench(folder, Schedule(warmup=1, clean=2, profiled=3))
        for number in range(20):
            if number in compiled:
                bench.recorder.compilation_begins()
            bench.train_step()
        kinds[len(compiled)] = recorded(bench).steps.kind
    assert np.flatnonzero(kinds[1] == StepKind.PROFILED).tolist() == [4, 6, 7]
    assert np.flatnonzero(kinds[1] == StepKind.WARMUP).tolist() == [0, 3, 5]
    assert np.flatnonzero(kinds[20] == StepKind.PROFILED).tolist() == [7, 8, 9]


def test_compiling_after_an_evaluation_step_marks_only_the_next_training_step(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Schedule(warmup=1, clean=50, profiled=0))
    for number in range(4):
        bench.train_step()
        bench.evaluate_batch()
        if number == 1:
            bench.recorder.compilation_begins()
    kinds = recorded(bench).steps.kind
    assert kinds[::2].tolist() == [StepKind.WARMUP, StepKind.STEADY, StepKind.WARMUP, StepKind.STEADY]
    assert (kinds[1::2] == StepKind.EVALUATION).all()


def test_evaluation_steps_that_compile_code_are_not_used_for_step_times(tmp_path: Path) -> None:
    """GIVEN evaluation after each epoch WHEN the first evaluated batch compiles THEN the recording contains the number of this
    step."""
    bench = Bench(tmp_path, Schedule(warmup=1, clean=50, profiled=0))
    for epoch in range(2):
        bench.train_step()
        for number in range(4):
            bench.evaluate_batch()
            if not epoch and not number:
                bench.recorder.compilation_begins()
                bench.run(1000)
    trace = recorded(bench)
    compiled = trace.run_of(0).compiled
    assert compiled is not None and compiled.compiling_evaluations == (1,)
    assert (trace.steps.kind[1], 1 in clean_evaluations(trace)) == (StepKind.EVALUATION, False)
    assert 2 in clean_evaluations(trace)


def test_only_steps_that_the_profiler_recorded_are_profiled_steps(tmp_path: Path) -> None:
    """GIVEN two steps to profile WHEN the script profiles the first one itself THEN the recorder profiles two steps after
    that."""
    bench = Bench(tmp_path, Schedule(warmup=1, clean=1, profiled=2))
    for number in range(9):
        if number == 3:
            bench.recorder.make_way_for_profile()
            bench.profiles.add("the script's")
        bench.train_step()
        bench.profiles.clear()
    trace = recorded(bench)
    calls = [("prepare", 2), ("record", 3), ("make way", None), ("record", 4), ("prepare", 4), ("record", 5), ("record", 6)]
    assert bench.profiler.told == [*calls, ("stop", None)]
    kinds = StepKind
    assert trace.steps.kind.tolist() == [
        kinds.WARMUP, kinds.STEADY, kinds.WARMUP, kinds.WARMUP, kinds.WARMUP, kinds.PROFILED, kinds.PROFILED, kinds.STEADY,
        kinds.STEADY,
    ]  # fmt: skip


def test_a_failing_optimizer_ends_its_phase(bench: Bench) -> None:
    bench.train_step()
    bench.recorder.enter_phase("optimizer")
    bench.recorder.leave_phase("optimizer")  # the exception has ended the phase, but no step
    bench.train_step()
    trace = recorded(bench)
    assert len(trace.steps) == 2
    names = [name for name, _ in phases_of(trace, 1)]
    assert names == ["other", "optimizer", "loader", "forward", "loss", "backward", "optimizer"]


def test_during_a_graph_capture_the_recorder_makes_no_cuda_calls_and_measures_nothing(bench: Bench) -> None:
    """At the end of this step, rows are due to be written, but another stream captures a graph."""
    bench.train_step()
    bench.run(FLUSH_NS)
    calls = bench.cuda.calls
    bench.cuda.captures.add("graph")
    bench.train_step()
    assert bench.cuda.calls == calls
    bench.cuda.captures.clear()
    for _ in range(3):
        bench.train_step()
    bench.run(10_000)
    trace = recorded(bench)
    assert bench.cuda.destroyed_captures == 0
    untimed = Untimed
    assert trace.steps.untimed.tolist() == [untimed.NO, untimed.CAPTURE, untimed.NO, untimed.NO, untimed.NO]
    assert trace.steps.kind.tolist() == [StepKind.WARMUP, StepKind.WARMUP, *[StepKind.STEADY] * 3]
    inside = trace.phases.take(trace.phases.step == 1)
    assert (inside.device[1:] == NONE).all()
    assert (trace.phases.device[trace.phases.step == 3] == 0).all()


def test_each_launch_of_a_cuda_graph_that_contains_a_whole_step_is_a_step(bench: Bench) -> None:
    """GIVEN a graph of forward, backward and optimizer THEN each replay is a step, and the capture is not. The GPU time of a
    replay belongs to the forward pass."""
    recorder = bench.recorder
    for _ in range(2):
        bench.train_step()
    graph = CudaGraph()
    bench.cuda.captures.add("graph")
    recorder.capture_begins(graph)
    recorder.module_called(id(bench.model), True)
    recorder.module_returned()
    recorder.loss_called()
    recorder.enter_phase("backward")
    recorder.leave_phase("backward")
    recorder.enter_phase("optimizer")
    recorder.leave_phase("optimizer")
    recorder.optimizer_stepped(True)
    recorder.capture_ends()
    bench.cuda.captures.clear()
    bench.run(500)
    for _ in range(3):
        bench.load(10)
        recorder.replay_begins(graph)
        bench.run(20, 5_000)
        recorder.replay_ends(graph)
        bench.run(10_000)
    trace = recorded(bench)
    assert trace.steps.kind.tolist() == [StepKind.WARMUP, StepKind.STEADY, StepKind.WARMUP, *[StepKind.STEADY] * 2]
    assert (trace.steps.untimed == Untimed.NO).all() and bench.cuda.destroyed_captures == 0
    own = trace.phases.take(trace.phases.step == 4)
    names = [trace.strings[int(i)] for i in own.name]
    assert names == ["loader", "forward", "loss", "backward", "optimizer"]
    device_ns = (own.device_end_ns - own.device_start_ns).tolist()
    assert device_ns[1:] == [5_000, 0, 0, 0] and own.duration_ns[1] == 20


class CudaGraph:
    """Stands in for torch.cuda.CUDAGraph."""


def test_calls_in_other_threads_are_recorded_immediately_during_a_graph_capture(bench: Bench) -> None:
    graph = CudaGraph()
    bench.recorder.capture_begins(graph)
    thread = threading.Thread(target=lambda: bench.recorder.enter_phase("loader"))
    thread.start()
    thread.join()
    assert bench.recorder.phase == "loader"
    assert bench.recorder._reports_of(graph) == []


def test_no_cuda_events_are_recorded_while_the_script_profiles_itself(bench: Bench) -> None:
    bench.train_step()
    calls, asked = bench.cuda.calls, bench.cuda.asked
    bench.profiles.add("its own")
    bench.run(FLUSH_NS)
    bench.train_step()
    assert (bench.cuda.calls, bench.cuda.asked) == (calls, asked)
    bench.profiles.clear()
    bench.train_step()
    bench.run(10_000)
    trace = recorded(bench)
    assert trace.steps.untimed.tolist()[1] == Untimed.PROFILE
    assert trace.steps.kind.tolist() == [StepKind.WARMUP, StepKind.WARMUP, StepKind.STEADY]


def test_steps_before_a_device_error_keep_their_times(bench: Bench) -> None:
    for _ in range(3):
        bench.train_step()
        bench.run(FLUSH_NS)
    bench.train_step()  # this call writes the three earlier steps
    bench.cuda.error = "CUDA error: device-side assert triggered\nmore"
    bench.train_step()
    trace = recorded(bench)
    assert trace.steps.untimed.tolist() == [Untimed.NO] * 3 + [Untimed.DEVICE_LOST] * 2
    assert (trace.phases.device[trace.phases.step < 3] == 0).all()
    run = trace.run_of(0)
    assert run.recorder is not None and run.recorder.device_lost == "CUDA error: device-side assert triggered"


def test_if_the_gpu_hangs_the_recording_ends_after_the_timeout(bench: Bench) -> None:
    for _ in range(3):
        bench.train_step()
        bench.run(FLUSH_NS)
    bench.cuda.hangs = True
    for _ in range(2):
        bench.train_step()
    ended_ns = bench.clock.ns
    trace = recorded(bench)
    assert PATIENCE_NS <= bench.clock.ns - ended_ns < PATIENCE_NS + 10_000_000
    assert trace.steps.untimed.tolist() == [Untimed.NO] * 2 + [Untimed.DEVICE_LOST] * 3
    assert trace.problems == {}


def test_finished_steps_are_written_even_if_no_later_step_ends(bench: Bench) -> None:
    """GIVEN three steps in half a second WHEN the script then does something else THEN the steps are soon in the file."""
    for _ in range(3):
        bench.train_step()
    bench.run(FLUSH_NS)
    bench.recorder.write_regularly()
    patience = time.monotonic() + 10
    while len(load(bench.path).steps) < 3 and time.monotonic() < patience:
        time.sleep(0.02)
    written = load(bench.path)
    assert written.steps.number.tolist() == [0, 1, 2] and "truncated-file" in written.problems
    assert (written.phases.device == 0).all()
    bench.recorder.close()


def test_the_script_thread_writes_the_file_if_no_thread_can_start(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a system that cannot start another thread THEN the recorder raises no error, and the file contains all steps."""
    monkeypatch.setattr("tracer.recorder.start_new_thread", Mock(side_effect=RuntimeError("can't start new thread")))
    bench.recorder.write_regularly()
    for _ in range(3):
        bench.train_step()
    bench.recorder.close()
    assert load(bench.path).steps.number.tolist() == [0, 1, 2]


def test_twice_a_second_the_script_thread_writes_at_the_end_of_a_step(bench: Bench) -> None:
    """GIVEN steps of 50 ms THEN the pauses between writes grow in the first second. After that, each pause is 0.45 s."""
    writes: list[int] = []
    flush = bench.output.flush

    def note(header: Any) -> None:
        writes.append(bench.clock.ns)
        flush(header)

    bench.output.flush = note  # type: ignore[method-assign]
    for _ in range(50):
        bench.run(50_000_000)
        bench.train_step()
    pauses_ms = [round((after - before) / 1e6) for before, after in pairwise(writes)]
    assert pauses_ms[:6] == [50, 50, 50, 50, 150, 300] and set(pauses_ms[6:]) == {450}


@pytest.mark.parametrize("repeats", [False, True])
def test_the_recorders_writing_thread_creates_no_cuda_context(bench: Bench, repeats: bool) -> None:
    """GIVEN a script that uses cuda:1 WHEN the writing thread starts with cuda:0 as its current device THEN this thread changes
    to cuda:1."""
    bench.cuda.device = 1
    for _ in range(8 if repeats else 1):
        bench.train_step()
    bench.cuda.device = 0
    bench.recorder._writer.flush_in_thread()
    assert bench.cuda.device == 1
    assert set(recorded(bench).phases.device) == {0}


@pytest.mark.parametrize("in_cuda", [True, False])
def test_recording_ends_while_another_thread_holds_the_lock(bench: Bench, in_cuda: bool) -> None:
    """GIVEN a thread that holds the lock in a CUDA call that never returns THEN the file is written. In any other call, the
    file is left unchanged."""
    bench.train_step()
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with bench.recorder.cost.lock:
            bench.access.is_calling = in_cuda
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    entered.wait(60)
    try:
        bench.recorder.close()
        assert bench.recorder.closed is in_cuda
    finally:
        leave.set()
        thread.join()
    if in_cuda:
        trace = load(bench.path)
        assert trace.steps.untimed.tolist() == [Untimed.DEVICE_LOST]
        assert bench.access.device_lost == "a call into CUDA did not return"


def test_a_phase_in_which_the_device_changes_has_no_gpu_time(bench: Bench) -> None:
    """GIVEN a script that changes the current device during the forward pass THEN the GPU time of this phase is unknown, and
    not 0."""
    bench.train_step()
    bench.recorder.module_called(id(bench.model), True)
    bench.run(100, 1000)
    bench.cuda.device = 1
    bench.end_step()
    bench.run(10_000)
    trace = recorded(bench)
    own = trace.phases.take(trace.phases.step == 1)
    names = [trace.strings[int(i)] for i in own.name]
    assert own.device[names.index("forward")] == NONE and own.device_end_ns[names.index("forward")] == NONE
    assert own.device[names.index("backward")] == 1


def test_a_copy_on_a_second_stream_does_not_change_the_forward_time(bench: Bench) -> None:
    """A phase has the time of the stream on which it began. The GPU work of the first step ends after 3 160 ns. The second
    step's loader ends after 10 360 ns, so its GPU time is 7 200 ns."""
    bench.train_step()
    bench.run(10_000)
    bench.load(10)
    bench.cuda.stream = 5
    bench.recorder.enter_phase("h2d")
    bench.run(40, 40)
    bench.recorder.leave_phase("h2d")
    bench.cuda.stream = 0
    bench.recorder.module_called(id(bench.model), True)
    bench.run(100, 1000)
    bench.recorder.loss_called()
    bench.run(10, 50)
    bench.end_step()
    bench.run(10_000)
    trace = recorded(bench)
    own = trace.phases.take(trace.phases.step == 1)
    names = [trace.strings[int(i)] for i in own.name]
    assert names == ["loader", "h2d", "forward", "loss", "backward", "optimizer"]
    assert (own.device == 0).all()
    assert (own.device_end_ns - own.device_start_ns).tolist() == [7_200, 40, 1000, 50, 0, 0]


def test_cuda_events_are_reused(bench: Bench) -> None:
    for _ in range(500):
        bench.train_step()
        bench.run(10_000)
    assert bench.cuda.made < 850  # about 3 500 events were recorded, but they are reused after 128 steps


def test_the_recording_overhead_is_relative_to_the_median_unprofiled_step(tmp_path: Path) -> None:
    """GIVEN a slow warm-up step, and clean steps of 350, 360 and 370 ns THEN the median step is 360 ns."""
    bench = Bench(tmp_path, Schedule(warmup=1, clean=100, profiled=0))
    for load_ns in (960, 10, 20, 30):
        bench.train_step(load_ns)
    cost = recorded(bench).run_of(0).recorder
    assert cost is not None and cost.overhead_ns_per_step == 360  # FakeFacts stores the median step in this field


def test_the_recorder_rewrites_the_header_regularly_and_after_changes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    whole = TraceStream.header

    def header(self: TraceStream, trace: Trace) -> None:
        written.append(bench.recorder._writer.number)
        whole(self, trace)

    monkeypatch.setattr(TraceStream, "header", header)
    for _ in range(4):
        bench.train_step()
        bench.run(FLUSH_NS)
    thread = threading.Thread(target=lambda: bench.recorder.steps.end_stage("replica", bench.recorder.steps.begin_stage()))
    thread.start()
    thread.join()
    bench.train_step()
    assert written == [1, 2, 5]  # the second header has the device on which the events of the first step were recorded
    assert len(load(bench.path).threads) == 2
    bench.run(FIGURES_NS)
    bench.train_step()
    assert written == [1, 2, 5, 6]
    bench.profiler.steps.append(6)  # an import needs the numbers of the profiled steps
    bench.run(FLUSH_NS)
    bench.train_step()
    assert written == [1, 2, 5, 6, 7]


@pytest.mark.parametrize("remainder", [0, *(pytest.param(more, marks=pytest.mark.program) for more in (1, 2, 3))])
def test_ctrl_c_at_any_line_of_the_recorder_leaves_a_complete_recording(tmp_path: Path, remainder: int) -> None:
    """Ctrl-C arrives at the n-th line that the recorder or the trace writer runs. The test tries many n."""
    interrupted = 0
    for line in range(remainder, 4000, 37):
        bench = Bench(tmp_path)
        done = 0
        with interrupting(line) as came, suppress(KeyboardInterrupt):
            for done in range(6):
                bench.recorder.read("aten::item", "float32", [float(done)])
                bench.train_step()
                if done % 2:
                    bench.run(FLUSH_NS)
            done = 6
        if not came:
            break
        interrupted += 1
        trace = recorded(bench)
        assert trace.problems == {}
        assert len(trace.steps) in (done, done + 1)
        assert trace.steps.number.tolist() == list(range(len(trace.steps)))
        assert np.unique(trace.values.value).size == len(trace.values) >= done
    assert interrupted > 20


def test_ctrl_c_during_a_write_takes_effect_after_the_write(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.train_step()
    bench.run(FLUSH_NS)
    whole = TraceStream.add_items

    def interrupted(self: TraceStream, *args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        whole(self, *args)

    monkeypatch.setattr(TraceStream, "add_items", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.train_step()
    assert len(load(bench.path).steps) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextmanager
def interrupting(line: int) -> Iterator[list[str]]:
    """Raise KeyboardInterrupt after the given number of lines of the packages `tracer` and `traces`. Yield a list that receives
    the interrupted line."""
    came: list[str] = []
    left = line

    def trace_line(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0 and not came:
                came.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                signal.raise_signal(signal.SIGINT)
        return trace_line

    def trace_call(frame: FrameType, event: str, arg: object) -> Any:
        ours = Path(frame.f_code.co_filename).parent in (ROOT / "tracer", ROOT / "traces")
        return trace_line if ours else None

    before = sys.gettrace()
    sys.settrace(trace_call)
    try:
        yield came
    finally:
        sys.settrace(before)


def test_the_recording_overhead_includes_the_time_for_recording_a_module_call(bench: Bench) -> None:
    bench.clock.reading_ns = 3
    before_ns = bench.recorder.cost.spent_ns
    bench.recorder.module_called(id(bench.model), True)
    assert bench.recorder.cost.spent_ns == before_ns + 3


def test_the_overhead_of_all_recorder_calls_is_estimated_from_a_timed_sample(bench: Bench) -> None:
    """GIVEN 100 steps of 9 reports THEN all reports are counted, except the report after which the steps repeat."""
    bench.recorder.workload.is_open = False
    for _ in range(100):
        bench.train_step()
        bench.run(5_000)
    assert bench.recorder.cost.calls == 899


def test_in_long_steps_every_recorder_call_counts_as_overhead(bench: Bench) -> None:
    """GIVEN long steps with 9 reports of 1000 ns each THEN the overhead of a step is at least 9000 ns."""
    bench.recorder.workload.is_open = False
    bench.clock.reading_ns = 1000
    for _ in range(40):
        bench.train_step()
        bench.run(100_000_000)
    assert 9_000 <= bench.recorder.cost.per_step_ns < 18_000


@pytest.mark.parametrize("does", ["module", "h2d", "loader"])
def test_other_threads_that_use_the_gpu_are_profiled(bench: Bench, does: str) -> None:
    bench.train_step()
    assert not bench.profiler.all_threads
    recorder = bench.recorder
    report = partial(recorder.module_called, object(), False) if does == "module" else partial(recorder.enter_phase, does)
    thread = threading.Thread(target=report)
    thread.start()
    thread.join()
    assert bench.profiler.all_threads == (does != "loader")


@pytest.mark.parametrize("does", ["module", "h2d"])
def test_autograd_threads_do_not_end_the_recording_of_memory_events(bench: Bench, does: str) -> None:
    """Checkpointing calls modules in a backward pass, and `save_on_cpu` copies saved tensors back to the GPU."""
    bench.train_step()
    recorder = bench.recorder
    recorder.enter_phase("backward")
    report = partial(recorder.module_called, object(), True) if does == "module" else partial(recorder.enter_phase, does)
    thread = threading.Thread(target=report)
    thread.start()
    thread.join()
    assert not bench.profiler.all_threads


def test_optimizer_steps_of_a_second_training_thread_are_reported(bench: Bench) -> None:
    """GIVEN three steps of the script's thread, and two of another thread THEN the recording has three steps and reports the
    other two."""
    bench.train_step()
    for _ in range(2):
        thread = threading.Thread(target=lambda: bench.recorder.optimizer_stepped(False))
        thread.start()
        thread.join()
        bench.train_step()
    bench.recorder.close()
    trace = load(bench.path)
    assert len(trace.steps) == 3 and trace.problems == {"threads-train": 2}


def test_an_optimizer_step_in_an_autograd_thread_does_not_end_a_step(bench: Bench) -> None:
    """GIVEN a hook that steps an optimizer in the backward pass THEN the step ends only when the script's thread steps its
    optimizer."""
    recorder = bench.recorder
    for _ in range(2):
        recorder.module_called(id(bench.model), True)
        bench.run(100, 200)
        recorder.enter_phase("backward")
        bench.run(100, 200)
        thread = threading.Thread(target=lambda: recorder.optimizer_stepped(False))
        thread.start()
        thread.join()
        assert recorder.phase == "backward"
        recorder.leave_phase("backward")
        recorder.optimizer_stepped(True)
    bench.run(1_000)
    assert recorded(bench).steps.kind.tolist() == [StepKind.WARMUP, StepKind.STEADY]


def test_repeated_steps_are_written_as_one_block(bench: Bench) -> None:
    """GIVEN a training loop whose steps repeat THEN the steps are collected until the file is written."""
    bench.recorder.workload.is_open = False
    bench.run(FLUSH_NS)
    for _ in range(200):
        bench.train_step()
        bench.run(5_000)
    writer = bench.recorder._writer._step_writer
    assert writer.has_steps and writer._alike is not None and writer._alike.steps >= 112
    bench.run(FLUSH_NS)
    bench.train_step()
    assert not writer.has_steps
    assert load(bench.path).steps.number.tolist() == list(range(200))
