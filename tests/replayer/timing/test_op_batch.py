"""Tests that a batch of repeated calls has the times that the calls would have one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.cost_model.constants import LAUNCH_QUEUE_DEPTH
from replayer.op_signature import OpSignature
from replayer.timing.host_threads import HostThread
from replayer.timing.op_batch import OpBatchSchedule
from replayer.timing.simulator import Simulator
from replayer.timing.stream import VirtualStream
from tests.replayer.recordings import US, Op, Stage, make_recording
from traces.model.trace import Origin, Trace

names = st.sampled_from(["aten::mm", "aten::relu", "aten::relu_", "aten::add", "aten::nothing"])
# (op, whether its shape differs from the recorded shape, microseconds that the script's clock advances before the call)
Call = tuple[str, bool, int]
calls = st.tuples(names, st.sampled_from([False] * 5 + [True]), st.sampled_from([0, 0, 0, 1, 7, 400, 30_000]))

# Calls of a program that differs from the recorded program in most ops.
other_names = st.sampled_from(["aten::mm", "aten::relu", "aten::sin", "aten::cos"])
other_calls = st.tuples(other_names, st.booleans(), st.sampled_from([0, 0, 1, 400]))


class Script:
    """Simulates a phase. The ops are collected first, and then simulated in batches or one by one."""

    def __init__(self, trace: Trace, *, at_once: bool) -> None:
        self.stage = Stage(trace)
        self._at_once = at_once
        self.callers = [self.stage.thread.call_on(self.stage.stream)]  # the calls go to these callers in turns
        self._noted: list[tuple[OpSignature, int]] = []
        self._signatures: dict[tuple[str, bool], OpSignature] = {}

    def call(self, name: str, other_shape: bool, later_us: int) -> None:
        stage = self.stage
        stage.clock.time_ns += later_us * US
        shape = (8, 4) if other_shape else (4, 4)
        signature = self._signatures.setdefault((name, other_shape), OpSignature(name, (shape,), ("float32",)))
        self._noted.append((signature, stage.clock.time_ns))

    def flush(self) -> None:
        noted, self._noted = self._noted, []
        callers = [self.callers[number % len(self.callers)] for number in range(len(noted))]
        if self._at_once and noted:
            signatures, called_ns = [signature for signature, _ in noted], [now_ns for _, now_ns in noted]
            self.stage.simulator.play_all(callers, signatures, called_ns)
        else:
            for caller, (signature, now_ns) in zip(callers, noted, strict=True):
                self.stage.simulator.play(caller.thread, caller.stream, signature, now_ns)

    def step(self, forward: list[Call], backward: list[Call], every: int, *, after: bool = False) -> None:
        """Run one step, and simulate the collected calls after each `every` calls. Backward calls run in the phase "backward".
        With `after`, they run after this phase."""
        tracker, thread = self.stage.simulator.tracker, self.stage.thread
        self.stage.within("zero_grad")
        for phase, played in (("forward", forward), ("backward", backward)):
            if phase == "backward":
                tracker.enter(thread, phase)
                if after:
                    tracker.leave(thread, phase)
            for i, call in enumerate(played, 1):
                self.call(*call)
                if i % every == 0:
                    self.flush()
            self.flush()
        tracker.leave(thread, "backward")
        tracker.optimizer_stepped(thread, True)

    def outcome(self) -> dict[str, object]:
        """Return the complete visible state of the replay."""
        stage = self.stage
        stats = stage.simulator.stats
        return {
            "device": stage.log.device,
            "host": stage.log.host,
            "phases": stage.log.phases,
            "steps": stage.log.steps,
            "host_ns": stage.thread.host_ns,
            "clock": stage.clock.time_ns,
            "pending": list(stage.stream.pending),
            "charged": stats.charged_ns,
            "lag": list(stats.step_lag_ns),
            "ops": list(stats.step_ops),
            "missing": stats.missing,
        }


def changed(called: list[Call], changes: list[tuple[int, Call]]) -> list[Call]:
    """Return the calls with some of them replaced."""
    made = list(called)
    for i, call in changes:
        made[i % len(made)] = call
    return made


def recorded(forward: list[str], backward: list[str]) -> Trace:
    """Return a recording whose kernels are sometimes longer and sometimes shorter than their calls. So the device falls behind
    the host and catches up again. Some calls take longer than usual for their op."""
    ops = []
    for begin, names in ((0, forward), (1_000, backward)):
        at = begin
        for i, name in enumerate(names):
            lasts = 6 + (i * 11) % 23
            ops.append(Op(name, at, lasts - 1, kernel=(at + 2 + (i * 7) % 31, 3 + (i * 13) % 29)))
            at += lasts
    return make_recording([("forward", 0, 900), ("backward", 1_000, 1_900)], ops)


@given(
    st.lists(calls, min_size=12, max_size=40),
    st.lists(st.tuples(st.integers(0, 39), calls), max_size=2),
    st.lists(st.tuples(st.integers(0, 39), calls), max_size=2),
    st.integers(9, 50),
)
def test_batched_ops_start_at_the_same_times_as_single_ops(
    called: list[Call], missing: list[tuple[int, Call]], changes: list[tuple[int, Call]], every: int
) -> None:
    # GIVEN a script with nearly the recorded calls, and two replays of it, one of which simulates its calls in batches
    names = [name for name, _, _ in changed(called, missing)]
    scripts = [Script(recorded(names, names[::-1]), at_once=at_once) for at_once in (True, False)]
    # WHEN the script repeats the recorded step several times, mostly with the same calls
    other = changed(called, changes)
    for forward in (called, called, called, other, other, called, called):
        for script in scripts:
            script.step(forward, called[::-1], every)
    # THEN both replays have the same results
    assert scripts[0].outcome() == scripts[1].outcome()


@given(st.lists(names, min_size=12, max_size=30), st.lists(other_calls, min_size=12, max_size=40), st.integers(9, 50))
def test_batched_ops_of_another_program_start_at_the_same_times_as_single_ops(
    names: list[str], called: list[Call], every: int
) -> None:
    scripts = [Script(recorded(names, names[::-1]), at_once=at_once) for at_once in (True, False)]
    for forward in (called, called, called, called[1:], called):
        for script in scripts:
            script.step(forward, called[::-1], every)
    assert scripts[0].outcome() == scripts[1].outcome()


def covered() -> Trace:
    """Return a recording that contains only the times of phases."""
    trace = make_recording([("forward", 0, 900), ("loss", 900, 950), ("backward", 1_000, 1_900)], [], steps=2)
    trace.grain = "phase"
    trace.phases.device_start_ns, trace.phases.device_end_ns = trace.phases.start_ns + 3 * US, trace.phases.end_ns + 5 * US
    return trace


turning = st.sampled_from(["aten::mm", "aten::relu", "aten::_log_softmax", "aten::nll_loss_forward", "aten::_foreach_norm"])


@given(
    st.lists(st.tuples(turning, st.just(False), st.sampled_from([0, 0, 1, 400])), min_size=12, max_size=60), st.integers(9, 50)
)
def test_batched_ops_without_kernels_start_at_the_same_times_as_single_ops(called: list[Call], every: int) -> None:
    scripts = [Script(covered(), at_once=at_once) for at_once in (True, False)]
    for forward, after in ((called, False), (called, False), (called, True), (called[::-1], False), (called[1:], True)):
        for script in scripts:
            script.step(forward, called, every, after=after)
            script.step(forward, called, every)
    assert scripts[0].outcome() == scripts[1].outcome()


def test_ops_are_batched_if_only_phase_times_were_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[OpSignature] = []
    play = Simulator.play

    def counted(self: Simulator, thread: HostThread, stream: VirtualStream, signature: OpSignature, now_ns: int) -> int:
        played.append(signature)
        return play(self, thread, stream, signature, now_ns)

    monkeypatch.setattr(Simulator, "play", counted)
    script = Script(covered(), at_once=True)
    for _ in range(3):
        script.step([("aten::mm", False, 0)] * 40, [("aten::mm", False, 0)] * 40, 64)
    assert len(played) == 3  # Only the first call of each forward pass is simulated alone, because it begins the phase.
    assert set(script.stage.simulator.stats.step_ops) == {80}


def test_a_phase_that_was_empty_in_earlier_steps_can_contain_calls_later() -> None:
    scripts = [Script(recorded(["aten::mm"] * 20, []), at_once=at_once) for at_once in (True, False)]
    for script in scripts:
        for count in (0, 0, 20, 20, 20):
            script.step([("aten::mm", False, 0)] * count, [], 64)
            script.stage.within("backward")
    assert scripts[0].outcome() == scripts[1].outcome()


def test_a_full_launch_queue_delays_batched_calls_as_much_as_single_calls() -> None:
    ops = [Op("aten::mm", 10 * i, 5, kernel=(10 * i + 2, 9_000)) for i in range(50)]
    scripts = [Script(make_recording([("forward", 0, 900)], ops), at_once=at_once) for at_once in (True, False)]
    for script in scripts:
        for _ in range(2 + LAUNCH_QUEUE_DEPTH // 50 * 2):
            script.step([("aten::mm", False, 0)] * 50, [], 64)
    assert len(scripts[0].stage.stream.pending) == LAUNCH_QUEUE_DEPTH
    assert scripts[0].outcome() == scripts[1].outcome()


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("calls_of_2_ms", "waits_ms"), [(12, [-15.0]), (10, [])])
def test_the_host_waits_in_calls_that_are_more_than_20_ms_ahead(
    at_once: bool, calls_of_2_ms: int, waits_ms: list[float]
) -> None:
    ops = [Op("aten::mm", 2_000 * i, 1_999, kernel=(2_000 * i + 5, 10)) for i in range(calls_of_2_ms)]
    end_us = 2_000 * calls_of_2_ms
    script = Script(make_recording([("forward", 0, end_us), ("backward", end_us, end_us + 100)], ops), at_once=at_once)
    for _ in range(3):
        before = len(script.stage.clock.waits)
        script.step([("aten::mm", False, 0)] * calls_of_2_ms, [], 50)
    last = script.stage.log.host[-1]
    # The last wait ends the step.
    waits = [(wait_ns - last[3] - last[4]) / 1e6 for wait_ns in script.stage.clock.waits[before:-1]]
    assert waits[-1:] == waits_ms


def test_the_calls_of_a_repeating_script_are_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []
    play = OpBatchSchedule.play

    def counted(self: OpBatchSchedule, begin: int, end: int, *arguments: object) -> object:
        played.append(end - begin)
        return play(self, begin, end, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OpBatchSchedule, "play", counted)
    script = Script(recorded(["aten::mm"] * 40, []), at_once=True)
    for _ in range(3):
        script.step([("aten::mm", False, 0)] * 40, [], 64)
    # The first step is simulated op by op. In later steps, only the first call of each segment is simulated alone.
    assert played == [39, 39]
    assert script.stage.simulator.stats.charged_ns[Origin.EXACT] > 0


def test_kernels_on_several_streams_are_not_batched() -> None:
    ops = [Op("aten::mm", 10 * i, 5, kernel=(10 * i + 2, 3), stream=7 + 7 * (i == 20)) for i in range(40)]
    scripts = [Script(make_recording([("forward", 0, 900)], ops), at_once=at_once) for at_once in (True, False)]
    for script in scripts:
        for _ in range(4):
            script.step([("aten::mm", False, 0)] * 40, [], 64)
    assert len({row["stream"] for row in scripts[0].stage.log.device}) == 2
    assert scripts[0].outcome() == scripts[1].outcome()


def test_calls_of_several_threads_are_not_batched() -> None:
    scripts = [Script(recorded(["aten::mm"] * 40, []), at_once=at_once) for at_once in (True, False)]
    for script in scripts:
        script.callers.append(HostThread(1, script.stage.clock.now_ns()).call_on(script.stage.stream))
        for _ in range(3):
            script.step([("aten::mm", False, 0)] * 40, [], 64)
    assert len({row[0] for row in scripts[0].stage.log.host}) == 2
    assert scripts[0].outcome() == scripts[1].outcome()


def test_a_batch_stores_the_recorded_times_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of 4 us have pauses of 6 us between them. Each call has a kernel of 2 us, which ends with the call."""
    made: list[OpBatchSchedule] = []
    of = OpBatchSchedule.of

    def kept(*arguments: Any) -> OpBatchSchedule:
        made.append(of(*arguments))
        return made[-1]

    monkeypatch.setattr(OpBatchSchedule, "of", kept)
    ops = [Op("aten::mm", 10 * i + 6, 4, kernel=(10 * i + 8, 2)) for i in range(12)]
    script = Script(make_recording([("forward", 0, 900)], ops), at_once=True)
    for _ in range(2):
        script.step([("aten::mm", False, 0)] * 12, [], 64)
    (batch,) = made
    assert (batch.position_ns[:3], batch.begins_ns[:3].tolist()) == ([0, 10 * US, 20 * US], [6 * US, 16 * US, 26 * US])
    assert (set(batch.advance_ns.tolist()), set(batch.own_ns.tolist())) == ({6 * US}, {4 * US})
    assert (set(batch.after_ns.tolist()), set(batch.duration_ns.tolist())) == ({4 * US}, {2 * US})
    assert (batch.first.tolist(), batch.stops) == (list(range(13)), [12] * 12)
    # A batch may begin where an earlier call has ended, or later. It may not begin after the recorded start of its first call.
    positions_us = (9, 10, 12, 16, 17)
    assert [batch.may_begin(1, at_us * US) for at_us in positions_us] == [True, True, True, True, False]
    # The launch queue must have room for one kernel more than the batch contains.
    signatures = batch.signatures[2:9]
    assert [batch.executable_until(2, signatures, 0, depth) for depth in (7, 8)] == [2, 9]
    assert batch.executable_until(2, [*signatures[:3], OpSignature("aten::sin", (), ())], 0, 99) == 2
    assert batch.executable_until(12, signatures, 0, 99) == 12
    assert batch.executable_until(4, signatures, 2, 99) == 9
