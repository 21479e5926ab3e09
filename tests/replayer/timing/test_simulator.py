"""Tests when the simulator runs work, and how it charges the time of the work. The simulator has a fake clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.errors import NotExact
from replayer.timing.host_threads import HostThread
from replayer.timing.matcher import StepMatcher
from replayer.timing.timeline.timeline_writer import LoaderWait
from tests.replayer.recordings import US, Op, Stage, make_recording, phase_recording, recording_of
from traces.model.run import Run
from traces.model.trace import Origin, StepKind, Trace

MS = 1_000 * US
PHASES = [("loader", 0, 100), ("forward", 100, 200), ("backward", 200, 400), ("optimizer", 400, 450)]
OPS = [
    Op("aten::mm", 110, 20, kernel=(118, 50)),
    Op("aten::relu", 140, 10, kernel=(169, 30)),
    Op("aten::mm", 220, 20, kernel=(228, 100), shapes=((8, 8), (8, 8))),
    Op("aten::threshold_backward", 260, 10, kernel=(329, 60)),
    Op("aten::add_", 410, 5, kernel=(418, 10)),
    Op("aten::add_", 420, 5, kernel=(429, 10)),
]


def play_step(stage: Stage) -> None:
    stage.within("loader", wait_us=100)
    stage.op("aten::mm")
    stage.op("aten::relu")
    stage.simulator.tracker.enter(stage.thread, "backward")
    stage.op("aten::mm", (8, 8), (8, 8))
    stage.op("aten::threshold_backward")
    stage.simulator.tracker.leave(stage.thread, "backward")
    stage.within("optimizer", "aten::add_", "aten::add_")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)


def test_replaying_the_recorded_program_reproduces_every_start_and_duration() -> None:
    trace = make_recording(PHASES, OPS, steps=3)
    stage = Stage(trace)
    for _ in range(5):
        play_step(stage)
    step_starts = [start for start, _, _ in stage.log.steps]
    for i, step_start in enumerate(step_starts):
        rows = stage.log.device[i * 6 : i * 6 + 6]
        assert [(row["start_ns"] - step_start, row["duration_ns"]) for row in rows] == [
            (start * US, duration * US) for start, duration in (op.kernel for op in OPS if op.kernel)
        ]
    assert [end - start for start, end, _ in stage.log.steps] == [450 * US] * 5
    assert [recorded for _, _, recorded in stage.log.steps] == [0, 1, 2, 0, 1]
    assert stage.simulator.stats.charged_ns[Origin.EXACT] == 5 * 260 * US
    assert list(stage.simulator.stats.step_lag_ns) == [0] * 4


def test_phases_fill_the_step_with_their_recorded_host_times() -> None:
    stage = Stage(make_recording(PHASES, OPS))
    play_step(stage)
    (start, end, _) = stage.log.steps[0]
    assert [(name, a - start, b - start) for name, a, b, _, _ in stage.log.phases] == [
        (name, a * US, b * US) for name, a, b in PHASES
    ]
    assert end - start == 450 * US


def test_a_phase_with_other_op_names_keeps_its_recorded_times() -> None:
    stage = Stage(make_recording(PHASES, OPS))
    stage.within("loader", wait_us=100)
    stage.op("aten::mm")
    stage.op("aten::relu")
    stage.within("backward")
    stage.within("optimizer", "aten::_foreach_add_")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert stage.log.steps[0][1] - stage.log.steps[0][0] == 450 * US
    charged = stage.simulator.stats.charged_ns
    assert charged[Origin.EXACT] == 80 * US
    assert charged[Origin.PHASE] == 180 * US
    assert stage.simulator.stats.missing == {("aten::_foreach_add_", ((4, 4),)): 1}


@pytest.mark.parametrize(("kernels", "charged_us"), [(6, 6_000), (7, 0)])
def test_an_unrecorded_op_on_three_tensors_accounts_for_at_most_six_recorded_kernels(kernels: int, charged_us: int) -> None:
    """GIVEN an optimizer phase with six or seven kernels of 1,000 us WHEN the script calls one op on three tensors instead THEN
    the recorded kernels run if there are at most two for each tensor."""
    updates = [Op("aten::add_", 410 + 10 * i, 5, kernel=(418 + 1_000 * i, 1_000)) for i in range(kernels)]
    stage = Stage(make_recording([*PHASES[:3], ("optimizer", 400, 500)], [*OPS[:4], *updates]))
    tracker, thread = stage.simulator.tracker, stage.thread
    stage.within("loader", wait_us=100)
    stage.op("aten::mm")
    stage.op("aten::relu")
    tracker.enter(thread, "backward")
    stage.op("aten::mm", (8, 8), (8, 8))
    stage.op("aten::threshold_backward")
    tracker.leave(thread, "backward")
    tracker.enter(thread, "optimizer")
    stage.op("aten::_foreach_add_", (4, 4), (4, 4), (4, 4))
    tracker.leave(thread, "optimizer")
    tracker.optimizer_stepped(thread, True)
    assert stage.simulator.stats.charged_ns[Origin.PHASE] == charged_us * US


def test_a_recorded_op_used_for_scaling_is_not_replayed_a_second_time() -> None:
    stage = Stage(make_recording(PHASES, OPS))
    stage.within("loader", wait_us=100)
    stage.op("aten::mm", (8, 4), (4, 4))
    stage.op("aten::relu", (8, 4))
    stage.simulator.tracker.enter(stage.thread, "backward")
    charged = stage.simulator.stats.charged_ns
    assert charged[Origin.SCALED] > 0
    assert charged[Origin.PHASE] == charged[Origin.EXACT] == 0


def test_an_op_matches_the_equivalent_op_name_of_another_release() -> None:
    bn = Op("aten::cudnn_batch_norm", 110, 20, kernel=(118, 50), shapes=((4, 8, 2, 2), (8,), (8,)))
    stage = Stage(make_recording([("forward", 100, 200)], [bn]))
    stage.op("aten::native_batch_norm", (4, 8, 2, 2), (8,), (8,), (8,), (8,))
    assert stage.simulator.stats.charged_ns[Origin.EQUIVALENT] == 50 * US


def test_an_op_called_later_than_recorded_takes_no_additional_host_time() -> None:
    """GIVEN a recorded mm that ends before a recorded relu begins WHEN the script calls relu first THEN the mm takes no more
    host time. Its kernel starts after its recorded latency of 3 us."""
    mm = Op("aten::mm", 10, 100, kernel=(104, 5), launch_us=90)
    stage = Stage(make_recording([("forward", 0, 200)], [mm, Op("aten::relu", 120, 10, kernel=(125, 2))]))
    stage.op("aten::relu")
    stage.op("aten::mm")
    relu, mm_kernel = stage.log.device
    assert mm_kernel["start_ns"] - relu["start_ns"] == (130 + 3 - 125) * US


def test_a_slow_launch_call_counts_as_host_time_and_not_as_latency() -> None:
    """GIVEN a launch call from 11 to 51 us whose kernel starts at 54 us WHEN the host is twice as fast in steps without
    profiler THEN the call ends at 25.5 us. The kernel still starts 3 us after the call."""
    mm = Op("aten::mm", 10, 60, kernel=(54, 5), launch_host_us=40)
    trace = recording_of([(StepKind.PROFILED, [("forward", 0, 100)], [mm])])
    trace.runs = {0: Run(host_scale={"forward": 0.5})}
    stage = Stage(trace)
    begin_ns = stage.clock.time_ns
    stage.op("aten::mm")
    assert stage.log.device[0]["start_ns"] - begin_ns == 28_500


def test_delays_of_a_slow_host_carry_over_to_later_work() -> None:
    stage = Stage(make_recording(PHASES, OPS))
    stage.within("loader", wait_us=100)
    stage.op("aten::mm")
    stage.clock.time_ns += 1_000 * US  # The script takes a millisecond between its ops.
    stage.op("aten::relu")
    relu = stage.log.device[-1]
    assert relu["start_ns"] >= stage.clock.time_ns
    assert stage.simulator.stats.lag_ns > 900 * US


def test_host_time_of_an_unrecorded_phase_counts_as_lag() -> None:
    stage = Stage(make_recording([("forward", 100, 200)], [Op("aten::mm", 110, 20, kernel=(118, 50))]))
    stage.op("aten::mm")
    before_ns = stage.simulator.stats.lag_ns
    stage.simulator.tracker.enter(stage.thread, "backward")
    stage.clock.time_ns += 1_000 * US
    stage.op("aten::threshold_backward")
    # The host was already ahead by the time of its op, so the lag is a little shorter than 1 ms.
    assert 800 * US < stage.simulator.stats.lag_ns - before_ns <= 1_000 * US


def test_the_host_does_not_sleep_while_it_is_slightly_ahead() -> None:
    stage = Stage(make_recording(PHASES, OPS))
    stage.within("loader", wait_us=100)
    before = len(stage.clock.waits)
    stage.op("aten::mm")
    stage.op("aten::relu")
    assert len(stage.clock.waits) - before <= 1  # The host may wait at the begin of the phase, but not at its ops.


def test_recorded_waits_for_the_gpu_are_not_replayed_twice() -> None:
    # GIVEN a recorded read: the host blocks in cudaStreamSynchronize from 130 to 300 us, until the kernel ends
    item = Op("aten::_local_scalar_dense", 125, 180, kernel=(290, 10), shapes=())
    ops = [Op("aten::mm", 110, 10, kernel=(118, 170)), item]
    trace = make_recording([("forward", 100, 320)], ops)
    sync = trace.strings.add("cudaStreamSynchronize")
    host = trace.host
    columns = host.columns()
    extra = {name: [*column, column[-1]] for name, column in columns.items()}
    extra["kind"][-1], extra["name"][-1] = 1, sync
    extra["start_ns"][-1], extra["duration_ns"][-1] = 10_130 * US, 170 * US
    trace.host = type(host).of(**extra)
    stage = Stage(trace)
    # WHEN the script makes the same calls, and the host waits for the virtual device
    start = stage.thread.host_ns
    stage.op("aten::mm")
    site_end = stage.op("aten::_local_scalar_dense", ())
    stage.simulator.scheduler.block(stage.thread, site_end)
    # THEN the read ends when the device ends, as in the recording, and the timeline has the wait separate from the host's work
    assert stage.thread.host_ns - start == pytest.approx(200 * US, abs=12 * US)
    ((thread, since_ns, until_ns),) = stage.log.waits
    assert (thread, until_ns) == (0, stage.thread.host_ns) and until_ns - since_ns == pytest.approx(170 * US, abs=12 * US)


def test_a_synchronization_during_a_phase_waits_for_the_kernels_launched_so_far() -> None:
    ops = [
        *(Op("aten::mm", 110 + 2 * i, 2, kernel=(118 + 50 * i, 50)) for i in range(10)),
        Op("aten::old", 140, 10, kernel=(719, 30)),
        Op("aten::relu", 160, 10, kernel=(750, 10)),
        Op("aten::late", 180, 10, kernel=(761, 10)),
    ]
    stage = Stage(make_recording([("forward", 100, 300)], ops))
    for steps in range(2):
        for _ in range(10):
            stage.op("aten::mm")
        stage.op("aten::old_by_another_name")
        stage.op("aten::relu")
        before_ns = stage.simulator.stats.charged_ns[Origin.PHASE]
        stage.simulator.tracker.add_gpu_work_so_far(stage.thread)
        # THEN the remaining kernel runs only after a forward pass has shown that the script is the recorded program
        assert stage.simulator.stats.charged_ns[Origin.PHASE] - before_ns == (30 * US if steps else 0)
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
        assert stage.simulator.stats.charged_ns[Origin.PHASE] - before_ns == 40 * US


def test_recorded_phases_that_the_script_never_enters_are_reported() -> None:
    stage = Stage(make_recording(PHASES, OPS))
    stage.within("loader", wait_us=100)
    stage.op("aten::mm")
    stage.op("aten::relu")
    stage.within("optimizer", "aten::add_", "aten::add_")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert stage.simulator.stats.uncharged_ns == 160 * US


def test_strict_mode_rejects_and_names_an_inexact_match() -> None:
    stage = Stage(make_recording(PHASES, OPS), strict=True)
    stage.within("loader", wait_us=100)
    stage.op("aten::mm")
    with pytest.raises(NotExact, match="aten::gelu"):
        stage.op("aten::gelu")


def test_a_full_launch_queue_blocks_the_host() -> None:
    stage = Stage(make_recording([("forward", 0, 10)], [Op("aten::mm", 0, 1, kernel=(5, 1_000))]))
    stage.op("aten::mm")
    first_end = stage.stream.ready_ns
    for _ in range(2_000):
        stage.op("aten::new", (4, 4))
    assert stage.thread.host_ns >= first_end


def test_recorded_waits_for_a_full_launch_queue_are_not_replayed_twice() -> None:
    # GIVEN a host that launches a kernel of 10 us every 2 us, until 1022 launches are pending and each launch has to wait
    ops, at_us = [], 0
    for i in range(1_400):
        room_us = 10 * (i - 1_021) + 2  # At this time, the kernel launched 1022 launches earlier has ended.
        host_us = max(2, room_us - at_us)
        ops.append(Op("aten::mm", at_us, host_us, kernel=(10 * i + 2, 10), launch_us=0, launch_host_us=host_us))
        at_us += host_us
    recording = make_recording([("forward", 0, at_us)], ops)
    stage = Stage(recording)
    begin_ns = stage.thread.host_ns
    # THEN the recorded host time does not include the waits
    host_ns = stage.simulator.recording.choice.training(0).segments["forward", 0].host_ns
    assert host_ns <= 1_400 * 2 * US + 1_000
    # AND a replay waits for the launch queue as the recorded host did
    for _ in ops:
        stage.op("aten::mm")
    assert abs(stage.thread.host_ns - begin_ns - at_us * US) <= 20 * US


def test_without_recorded_shapes_an_op_in_a_different_phase_takes_its_typical_time() -> None:
    ops = [Op("aten::mm", 110 + 20 * i, 10, kernel=(118 + 20 * i, 9 + i), shapes=()) for i in range(3)]
    stage = Stage(make_recording([("forward", 100, 200)], ops))
    stage.simulator.tracker.enter(stage.thread, "optimizer")
    stage.op("aten::mm", (4_096, 4_096), (4_096, 4_096))
    assert stage.simulator.stats.charged_ns[Origin.SCALED] == 10 * US


def test_setup_before_the_first_batch_is_not_part_of_the_first_step() -> None:
    stage = Stage(make_recording(PHASES, OPS))
    stage.within("h2d", "aten::copy_")
    stage.clock.time_ns += 5_000 * US
    play_step(stage)
    assert stage.log.steps[0][1] - stage.log.steps[0][0] == 450 * US
    assert stage.log.phases[0][0] == "loader"


def test_an_op_outside_recorded_phases_starts_when_it_is_called() -> None:
    stage = Stage(make_recording(PHASES, OPS))
    stage.clock.time_ns += 5_000 * US
    called_ns = stage.clock.time_ns
    stage.within("h2d", "aten::copy_")
    assert [row[3:5] for row in stage.log.host] == [(called_ns, 0)]  # The columns are start and duration.
    assert stage.log.device[0]["start_ns"] >= called_ns


def test_another_thread_takes_the_host_time_of_its_ops_and_begins_no_phase() -> None:
    """GIVEN a second thread that copies batches WHEN it calls the recorded relu THEN it takes the recorded host time of relu,
    10 us."""
    stage = Stage(make_recording(PHASES, OPS))
    play_step(stage)
    script, end_ns = stage.thread, stage.thread.host_ns
    stage.thread = beside = HostThread(1, end_ns - MS)
    stage.clock.time_ns = end_ns - MS
    stage.op("aten::zero_")
    assert stage.simulator.tracker.segment is not None and beside.host_ns < end_ns
    stage.thread = script
    stage.within("loader")
    stage.op("aten::mm")
    stage.thread, before_ns = beside, beside.host_ns
    stage.clock.time_ns = before_ns
    stage.op("aten::relu")
    assert beside.host_ns - before_ns == 10 * US
    # AND its second op takes 60 us on the GPU, as recorded in the backward pass
    before_ns = stage.simulator.stats.charged_ns[Origin.EXACT]
    stage.op("aten::threshold_backward")
    assert stage.simulator.stats.charged_ns[Origin.EXACT] - before_ns == 60 * US
    stage.simulator.tracker.optimizer_stepped(script, True)
    assert [row[1] for row in stage.log.phases if row[0] == "other"] == [end_ns]


def test_with_recorded_waits_for_data_steps_have_their_recorded_length() -> None:
    stage = Stage(make_recording(PHASES, OPS), pad_loader=True)
    for _ in range(2):
        stage.within("loader", wait_us=3)
        stage.op("aten::mm")
        stage.op("aten::relu")
        stage.within("backward")
        stage.within("optimizer")
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert [end - start for start, end, _ in stage.log.steps] == [450 * US] * 2


def phase_grained(steps: int = 2) -> Trace:
    """Return a published table as a recording. Its phases have equal host and device times and no ops. Its first step is a
    slow warm-up step."""
    phases = [("h2d", 0, 10), ("forward", 10, 100), ("backward", 100, 300), ("optimizer", 300, 310)]
    trace = make_recording(phases, [], steps=steps)
    trace.grain = "phase"
    trace.steps.kind[0] = StepKind.WARMUP
    trace.phases.device_start_ns = trace.phases.start_ns.copy()
    trace.phases.device_end_ns = trace.phases.end_ns
    return trace


def test_phase_times_alone_determine_the_pace_of_host_and_device() -> None:
    stage = Stage(phase_grained())
    for _ in range(3):
        stage.within("h2d", "aten::copy_")
        stage.op("aten::convolution")
        stage.op("aten::relu")
        stage.within("backward", "aten::convolution_backward")
        stage.within("optimizer", "aten::_foreach_add_")
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert [end - start for start, end, _ in stage.log.steps] == [310 * US] * 3
    assert [recorded for _, _, recorded in stage.log.steps] == [0, 1, 1]
    assert [row["duration_ns"] for row in stage.log.device[:4]] == [10 * US, 90 * US, 200 * US, 10 * US]
    assert stage.simulator.stats.charged_ns[Origin.PHASE] == 3 * 310 * US
    assert stage.simulator.stats.missing == {}


def test_a_phase_that_overlaps_an_earlier_phase_gets_only_the_remaining_time() -> None:
    """GIVEN a copy on a second stream that overlaps the forward pass and 50 us of the backward pass WHEN the phases are
    replayed THEN the forward pass takes no time. The backward pass takes 150 us. The times between events are as recorded."""
    trace = phase_grained()
    trace.phases.device = trace.phases.device * 0
    copies = trace.phases.name == trace.strings.find("h2d")
    trace.phases.device_end_ns = np.where(copies, trace.phases.device_start_ns + 150 * US, trace.phases.end_ns)
    stage = Stage(trace)
    for _ in range(2):
        stage.within("h2d", "aten::copy_")
        stage.op("aten::convolution")
        stage.within("backward", "aten::convolution_backward")
        stage.within("optimizer", "aten::_foreach_add_")
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert [row["duration_ns"] for row in stage.log.device[-3:]] == [150 * US, 150 * US, 10 * US]
    between_events = {name: end_ns - start_ns for name, _, _, start_ns, end_ns in stage.log.phases[-4:]}
    assert between_events == {"h2d": 150 * US, "forward": 90 * US, "backward": 200 * US, "optimizer": 10 * US}


def test_the_time_of_an_event_during_a_phase_follows_from_the_share_of_earlier_ops() -> None:
    stage = Stage(phase_grained())
    marks = []
    for _ in range(2):
        stage.within("h2d", "aten::copy_")
        begun_ns = stage.thread.host_ns
        for _ in range(4):
            stage.op("aten::convolution")
            stage.simulator.tracker.add_gpu_work_so_far(stage.thread)
            marks.append(stage.stream.ready_ns - begun_ns)
        stage.within("backward")
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    # THEN, in the first step, an event takes the whole phase, because the number of ops is unknown. In the second step, each
    # of the four ops takes a quarter of the phase, after the copy's 10 us.
    assert marks == [100 * US] * 4 + [32_500, 55 * US, 77_500, 100 * US]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(1, 40)), min_size=1, max_size=12),
    st.integers(0, 500),
)
def test_remaining_kernels_of_a_phase_run_at_the_same_times_if_batched(
    kernels: list[tuple[int, int, int]], busy_us: int
) -> None:
    ops, launch_us, free_us = [], 10, 0
    for wait_us, latency_us, duration_us in kernels:
        launch_us += wait_us
        start_us = max(launch_us + 1 + latency_us, free_us + 1)
        free_us = start_us + duration_us
        ops.append(Op("aten::old", launch_us, 1, kernel=(start_us, duration_us)))
    trace = make_recording([("forward", 0, launch_us + 10)], ops)
    rows = []
    for at_once in (True, False):
        stage = Stage(trace)
        stage.stream.wait(stage.thread.host_ns + busy_us * US)
        matches = StepMatcher(stage.recording.choice.training(0), stage.recording.keys, {})
        chosen = matches.segment("forward").unmatched()
        if at_once:
            stage.simulator.scheduler.put_remainder(matches, chosen, stage.stream, stage.thread.host_ns)
        else:
            stage.simulator.scheduler.schedule(matches, chosen, stage.stream, stage.thread.host_ns, 1.0, -1, Origin.PHASE)
        rows.append((stage.log.device, stage.stream.ready_ns, list(stage.stream.pending)))
    assert rows[0] == rows[1]


def test_a_wait_during_a_phase_without_kernels_is_not_replayed_twice() -> None:
    stage = Stage(phase_grained())
    for _ in range(3):
        stage.within("h2d", "aten::copy_")
        for _ in range(4):
            stage.op("aten::convolution")
            stage.simulator.tracker.add_gpu_work_so_far(stage.thread)
            stage.simulator.scheduler.block(stage.thread, stage.stream.ready_ns)
        stage.within("backward")
        stage.within("optimizer")
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
    assert [end - start for start, end, _ in stage.log.steps] == [310 * US] * 3


@pytest.mark.parametrize("after", ["backward", "optimizer"])
def test_a_script_waits_in_the_phase_in_which_the_recording_waited(after: str) -> None:
    """GIVEN a recorded wait in the phase after `after` WHEN the script waits in this phase THEN the step takes exactly this
    wait."""
    lengths_ms = {"zero_grad": 10, "forward": 100, "backward": 50, "optimizer": 40}
    lengths_ms[{"backward": "optimizer", "optimizer": "zero_grad"}[after]] += 300
    trace = phase_recording(lengths_ms)
    late = trace.phases.name == trace.strings.find(after)
    trace.phases.device_end_ns = np.where(late, trace.phases.end_ns + 300 * MS, trace.phases.start_ns + MS)
    stage = Stage(trace)
    for _ in range(3):
        for name in ("zero_grad", "forward", "backward", "optimizer"):
            if name == "forward":
                stage.op("aten::mm")
                continue
            stage.within(name, *(() if name == "zero_grad" else ("aten::mm",)))
            if name == after == "backward":
                stage.simulator.scheduler.block(stage.thread, stage.simulator.scheduler.work_end_ns(stage.thread.host_ns))
        stage.simulator.tracker.optimizer_stepped(stage.thread, True)
        if after == "optimizer":
            stage.simulator.scheduler.block(stage.thread, stage.simulator.scheduler.work_end_ns(stage.thread.host_ns))
    assert {(end - start) // MS for start, end, _ in stage.log.steps[1:]} == {500}


def test_a_loop_without_steps_repeats_the_recorded_times() -> None:
    ops = [*OPS[:2], Op("aten::never_called", 160, 10, kernel=(210, 5))]
    stage = Stage(make_recording([("forward", 100, 300)], ops))
    for _ in range(100):
        stage.op("aten::mm")
        stage.op("aten::relu")
    charged = stage.simulator.stats.charged_ns
    assert charged[Origin.EXACT] == 80 * US
    # THEN the next 32 rounds count as the rest of the phase. All later rounds take the recorded times of the same ops
    assert charged[Origin.EQUIVALENT] == pytest.approx((99 - 32) * 80 * US, rel=0.01) and charged[Origin.SCALED] == 0


def test_an_additional_phase_takes_the_times_of_a_recorded_phase_with_its_name() -> None:
    """GIVEN a recorded step with one forward and one backward pass WHEN a step has two of each THEN the second passes also
    take the recorded times of their ops."""
    phases = [("forward", 100, 300), ("backward", 300, 400)]
    stage = Stage(make_recording(phases, [*OPS[:2], Op("aten::mm_backward", 310, 20, kernel=(330, 40))]))
    for _ in range(2):
        stage.within("forward", "aten::mm", "aten::relu")
        stage.within("backward", "aten::mm_backward")
    charged = stage.simulator.stats.charged_ns
    assert charged[Origin.EXACT] == 120 * US and charged[Origin.EQUIVALENT] == 120 * US


@pytest.mark.parametrize("pad_loader", [False, True])
def test_with_recorded_waits_the_clock_pauses_while_this_machine_loads_data(pad_loader: bool) -> None:
    stage = Stage(make_recording([("loader", 0, 400), ("forward", 400, 500)], []), pad_loader=pad_loader)
    stage.simulator.tracker.enter(stage.thread, "loader")
    assert stage.clock.paused is pad_loader
    stage.simulator.tracker.leave(stage.thread, "loader")
    assert not stage.clock.paused
    stage.simulator.tracker.enter(stage.thread, "loader")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)  # This optimizer runs within a dataset.
    stage.simulator.tracker.leave(stage.thread, "loader")
    assert not stage.clock.paused


def test_an_op_in_an_unrecorded_phase_starts_when_it_is_called() -> None:
    stage = Stage(make_recording([("loader", 0, 100)], []))
    stage.clock.time_ns += 7_000 * US  # On this machine's clock, the script calls its op late.
    called_ns = stage.clock.time_ns
    stage.op("aten::mm")
    assert stage.thread.host_ns == called_ns
    assert [(row[3], row[4]) for row in stage.log.host] == [(called_ns, 0)]
    assert all(row["start_ns"] > called_ns for row in stage.log.device)


@pytest.mark.parametrize(("flows", "apart_ns"), [(True, 0), (False, 1)])
def test_unrecorded_ops_keep_their_order_if_the_clock_does_not_advance(flows: bool, apart_ns: int) -> None:
    stage = Stage(make_recording([("loader", 0, 100)], []))
    stage.clock.flows = flows
    begun_ns = stage.clock.time_ns
    for _ in range(3):
        stage.op("aten::mm")
    assert [row[3] - begun_ns for row in stage.log.host] == [0, apart_ns, 2 * apart_ns]


@pytest.mark.parametrize(("ahead_ms", "until_ms"), [(19, []), (21, [6])])
@pytest.mark.parametrize("name", ["aten::mm", "aten::erfinv"])
def test_a_host_that_is_over_20_ms_ahead_waits_until_its_lead_is_15_ms(name: str, ahead_ms: int, until_ms: list[int]) -> None:
    stage = Stage(make_recording([("forward", 0, 50)], [Op("aten::mm", 0, 5, kernel=(8, 10))] * (1 + (name == "aten::mm"))))
    stage.op("aten::mm")
    begun_ns = stage.clock.now_ns()
    stage.thread.host_ns = begun_ns + ahead_ms * MS
    stage.op(name)
    assert [(waited_ns - begun_ns) / MS for waited_ns in stage.clock.waits] == pytest.approx(until_ms, abs=0.1)


@pytest.mark.parametrize(("until_us", "host_us"), [(80, 100), (95, 105), (100, 110)])
def test_host_work_after_the_wait_of_a_call_is_replayed_after_the_wait(until_us: int, host_us: int) -> None:
    """A recorded call ends at 100 us. Its last 10 us are host work after its wait."""
    stage = Stage(make_recording([("forward", 0, 50)], []))
    begun_ns = stage.thread.host_ns
    stage.thread.host_ns = begun_ns + 100 * US
    stage.simulator.scheduler.block(stage.thread, begun_ns + until_us * US, 10 * US)
    assert stage.thread.host_ns == begun_ns + host_us * US


@pytest.mark.parametrize(("ahead_us", "begin_us"), [(0, 0), (50, 50), (-50, 0)])
def test_waits_for_a_batch_have_the_recorded_times(ahead_us: int, begin_us: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(make_recording(PHASES, OPS))
    waits: list[LoaderWait] = []
    monkeypatch.setattr(stage.log, "loader_wait", waits.append)
    begun_ns = stage.clock.now_ns()
    stage.thread.host_ns += ahead_us * US
    stage.within("h2d")
    stage.within("loader", wait_us=100)
    ((own_start_ns, own_end_ns, start_ns, end_ns),) = waits
    assert own_start_ns <= own_end_ns and ((start_ns - begun_ns) // US, (end_ns - begun_ns) // US) == (begin_us, begin_us + 100)
    assert stage.thread.host_ns == end_ns
