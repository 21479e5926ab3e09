"""Tests that repeated steps are recorded without being divided into phases again, and that the recording is the same."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.fakes import Bench, FakeEvent, FakeStream
from tracer.repeated_steps import (
    BEGINS,
    CONTINUES,
    ENDS,
    ENTER,
    LEAVE,
    LEAVES,
    MODULE,
    OP,
    STEPPED,
    Meaning,
    RepeatedSteps,
    StepPlan,
)
from tracer.step_recorder import is_own
from traces.format.trace_file import load
from traces.model.trace import NONE, Trace, Untimed
from traces.script.phase_rule import Segment
from traces.script.script_splitter import CutStep


def test_a_repeated_step_is_stored_as_an_earlier_step_at_a_new_time(tmp_path: Path) -> None:
    """GIVEN a step with a forward pass and an optimizer WHEN the next step makes the same reports later THEN it has the same
    phases. They begin at 9, when the step begins, and at 14."""
    steps = Bench(tmp_path).recorder.steps._repeated
    steps.add_call(Meaning(MODULE, (1, True), CONTINUES, NONE, ""), 0)
    steps.add_call(Meaning(ENTER, "optimizer", BEGINS, NONE, "optimizer"), 5)
    steps.add_call(Meaning(LEAVE, "optimizer", LEAVES, NONE, ""), 8)
    step = CutStep(False, [Segment("forward", 0, 5), Segment("optimizer", 5, 9)], 8, 9)
    steps.learn(Meaning(STEPPED, True, ENDS, NONE, ""), step, is_closed=True)
    assert len(steps.known) == 4
    steps.times_ns.extend([10, 14, 17])
    assert steps.plan is not None and (steps.plan.event_of_begin, steps.plan.event_of_end) == ([0, 1], [1, 2])
    times_ns = [9, *steps.ended(), 18]
    assert steps.plan.cut(times_ns) == CutStep(False, [Segment("forward", 9, 14), Segment("optimizer", 14, 18)], 17, 18)
    steps.times_ns.append(20)
    assert steps.differs() == [(Meaning(MODULE, (1, True), CONTINUES, NONE, ""), 20)] and steps.known == []


def test_a_repeated_step_keeps_the_time_before_its_first_module_call(tmp_path: Path) -> None:
    """GIVEN a step that begins with the phase "other" WHEN the next step also calls its module late THEN it begins with
    "other", too."""
    steps = Bench(tmp_path).recorder.steps._repeated
    steps.add_call(Meaning(MODULE, (1, True), BEGINS, NONE, ""), 4)
    steps.add_call(Meaning(LEAVE, "optimizer", LEAVES, NONE, ""), 8)
    step = CutStep(False, [Segment("other", 0, 4), Segment("forward", 4, 9)], 8, 9)
    steps.learn(Meaning(STEPPED, True, ENDS, NONE, ""), step, is_closed=True)
    steps.times_ns.extend([15, 17])
    assert steps.plan is not None and (steps.plan.event_of_begin, steps.plan.event_of_end) == ([0, 1], [1, 2])
    cut = CutStep(False, [Segment("other", 9, 15), Segment("forward", 15, 18)], 17, 18)
    assert steps.plan.cut([9, *steps.ended(), 18]) == cut


@pytest.mark.parametrize("why", ["given up", "not closed", "evaluation", "no such segments", "no phase was left"])
def test_a_step_is_recorded_in_full_if_the_fast_path_cannot_repeat_it(tmp_path: Path, why: str) -> None:
    steps = Bench(tmp_path).recorder.steps._repeated
    steps.add_call(Meaning(MODULE, (1, True), CONTINUES, NONE, ""), 0)
    steps.add_call(Meaning(LEAVE, "optimizer", LEAVES, NONE, ""), 5)
    if why == "given up":
        steps.give_up()
    ends_ns = 8 if why == "no such segments" else 9
    left_ns = None if why == "no phase was left" else 5
    step = CutStep(why == "evaluation", [Segment("forward", 0, ends_ns)], left_ns, 9)
    steps.learn(Meaning(STEPPED, True, ENDS, NONE, ""), step, is_closed=why != "not closed")
    assert steps.known == []


LEARN = RepeatedSteps.learn
KINDS = "train", "train", "accumulate", "evaluate", "second optimizer", "aside", "capture", "other stream", "no loader"


def _run(bench: Bench, kinds: list[str]) -> None:
    recorder = bench.recorder
    for kind in kinds:
        if kind == "evaluate":
            bench.evaluate_batch()
        elif kind == "aside":
            recorder.aside_called()
            bench.run(7, 30)
        elif kind == "second optimizer":
            recorder.optimizer_stepped(False)
        elif kind == "other stream":
            bench.load(5)
            bench.cuda.stream = 5
            recorder.enter_phase("h2d")
            bench.run(3, 40)
            recorder.leave_phase("h2d")
            bench.cuda.stream = 0
            bench.run(2)
            bench.train_step()
        elif kind == "no loader":
            bench.run(4)
            recorder.module_called(id(bench.model), True)
            bench.run(10, 20)
            recorder.module_returned()
            recorder.enter_phase("backward")
            bench.run(10, 20)
            recorder.leave_phase("backward")
            bench.run(1)
            recorder.enter_phase("optimizer")
            recorder.leave_phase("optimizer")
            recorder.optimizer_stepped(True)
        else:
            if kind == "capture":
                bench.cuda.captures.add("graph")
            bench.train_step(accumulate=2 if kind == "accumulate" else 1)
            bench.cuda.captures.clear()
        assert recorder.phase == ""
    bench.run(10**6)
    recorder.close()


def _never_learn(steps: RepeatedSteps, end: Meaning, step: CutStep, is_closed: bool) -> None:
    LEARN(steps, end, step, is_closed=False)


def _rows(trace: Trace) -> list[list[list[object]]]:
    """Return the steps and phases. GPU times are relative to the first GPU time, because the offset between the clocks depends
    on when events were read."""
    phases = trace.phases
    known = phases.device_start_ns != NONE
    first_ns = phases.device_start_ns[known].min(initial=2**62)
    for times_ns in (phases.device_start_ns, phases.device_end_ns):
        times_ns[known] -= first_ns
    return [[column.tolist() for column in table.columns().values()] for table in (trace.steps, phases)]


@given(st.lists(st.sampled_from(KINDS), max_size=30))
def test_the_fast_path_for_repeated_steps_records_the_same_trace_as_the_slow_path(kinds: list[str]) -> None:
    """Steps of all kinds follow one another, repeated or not. Their events are read for three steps at a time."""
    traces = []
    three = [patch.multiple(f"tracer.{name}", TOGETHER=3) for name in ("step_recorder", "recording_writer")]
    with three[0], three[1], tempfile.TemporaryDirectory() as folder:
        for learns in (True, False):
            here = Path(folder) / str(learns)
            here.mkdir()
            bench = Bench(here)
            bench.recorder.workload.is_open = False
            with nullcontext() if learns else patch.object(RepeatedSteps, "learn", _never_learn):
                _run(bench, kinds)
            traces.append(load(bench.path))
    learned, cut = traces
    assert _rows(learned) == _rows(cut)


def test_steps_of_a_training_loop_are_recognized_as_repeated(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.recorder.workload.is_open = False
    for _ in range(3):
        bench.train_step()
    kinds = [known.kind for known in bench.recorder.steps._repeated.known]
    assert kinds == [ENTER, LEAVE, MODULE, OP, ENTER, LEAVE, ENTER, LEAVE, STEPPED]


def _step_with_copies(bench: Bench, copies: int) -> None:
    """Run a step of copies, a forward pass and an optimizer step. A copy takes 5 ns on the GPU and 10 ns on the host."""
    recorder = bench.recorder
    for _ in range(copies):
        recorder.enter_phase("h2d")
        bench.run(10, 5)
        recorder.leave_phase("h2d")
    bench.run(1)
    recorder.module_called(id(bench.model), True)
    bench.run(30, 20)
    recorder.enter_phase("optimizer")
    recorder.leave_phase("optimizer")
    recorder.optimizer_stepped(True)


def test_entering_the_same_phase_twice_in_a_row_records_one_cuda_event(tmp_path: Path) -> None:
    """GIVEN repeated steps with two copies in a row THEN no event is recorded between the copies. In a step with only one copy,
    the event is recorded 1 ns later, when the model is called. The copy then takes 11 ns instead of 10."""
    bench = Bench(tmp_path)
    bench.recorder.workload.is_open = False
    events = []
    for copies in (2, 2, 2, 2, 1):
        before = bench.cuda.recorded
        _step_with_copies(bench, copies)
        events.append(bench.cuda.recorded - before)
    assert events == [5, 5, 5, 4, 4]
    bench.run(10**6)
    bench.recorder.close()
    phases = load(bench.path).phases
    device_ns = (phases.device_end_ns - phases.device_start_ns).tolist()
    assert (device_ns[-7:-4], device_ns[-3:]) == ([20, 31, 0], [11, 30, 0])


class _TimeIsUp(Exception):
    """The exception that a signal handler of the script raises."""


@pytest.mark.parametrize("at", range(1, 24))
def test_if_a_signal_handler_raises_during_recording_only_one_step_is_lost(tmp_path: Path, at: int) -> None:
    """GIVEN 8 steps WHEN a signal handler raises at any event THEN the exception reaches the script. Only the interrupted step
    is missing."""
    bench = Bench(tmp_path)
    bench.recorder.workload.is_open = False
    record, done, dropped = FakeEvent.record, 0, 0

    def interrupted(event: FakeEvent, stream: FakeStream) -> None:
        record(event, stream)
        if bench.cuda.recorded == at:
            raise _TimeIsUp

    with patch.object(FakeEvent, "record", interrupted):
        for _ in range(8):
            try:
                bench.train_step()
            except _TimeIsUp:
                dropped += 1
            else:
                done += 1
    bench.run(10**6)
    bench.recorder.close()
    trace = load(bench.path)
    assert (done, dropped) == (7, 1)
    names = [trace.strings[name] for name in trace.phases.name.tolist()]
    assert names == ["loader", "forward", "loss", "backward", "optimizer"] * 7
    assert trace.steps.number.tolist() == list(range(7)) and (trace.steps.untimed == Untimed.NO).all()


def test_an_error_of_the_recorder_does_not_reach_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GIVEN a recorder that fails in each step THEN the script continues, and one line names the error."""
    bench = Bench(tmp_path)
    with patch.object(RepeatedSteps, "learn", side_effect=KeyError(5)), patch("tracer.step_recorder.is_own", return_value=True):
        for _ in range(3):
            bench.train_step()
    bench.train_step()
    bench.run(10**6)
    bench.recorder.close()
    assert capsys.readouterr().err.splitlines() == ["trace: the recorder failed in step 1, the script continues: KeyError(5)"]
    assert len(load(bench.path).steps) == 4


def test_errors_of_the_recorder_and_of_the_script_are_distinguished() -> None:
    """Errors inside the recorder are its own. Errors of functions of the script are not. In this test, this file contains the
    script."""
    with pytest.raises(KeyError) as inside:
        StepPlan([], ["forward"], [7], NONE)
    with pytest.raises(_TimeIsUp) as outside:
        raise _TimeIsUp
    trace = inside.value.__traceback__
    assert trace is not None
    assert is_own(inside.value.with_traceback(trace.tb_next)) and not is_own(inside.value.with_traceback(trace))
    assert not is_own(outside.value) and not is_own(KeyboardInterrupt())


def test_a_signal_handler_may_call_torch_while_the_recorder_runs(tmp_path: Path) -> None:
    """GIVEN a signal handler that runs a backward pass during every event THEN the recording does not change."""
    bench = Bench(tmp_path)
    record = FakeEvent.record

    def interrupted(event: FakeEvent, stream: FakeStream) -> None:
        record(event, stream)
        bench.recorder.enter_phase("backward")
        bench.recorder.leave_phase("backward")

    with patch.object(FakeEvent, "record", interrupted):
        for _ in range(6):
            bench.train_step()
    bench.run(10**6)
    bench.recorder.close()
    trace = load(bench.path)
    names = [trace.strings[name] for name in trace.phases.name.tolist()]
    assert names == ["loader", "forward", "loss", "backward", "optimizer"] * 6
