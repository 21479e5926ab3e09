"""Tests which steps of two traces are compared with each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.traces.handmade import US, training
from traces.combining.merge import merge_ranks
from traces.comparison.compare import compare
from traces.comparison.compared_steps import steps_of_verdict, steps_to_compare
from traces.comparison.comparison_figures import Both
from traces.figures.measure import launch_steps, step_windows
from traces.model.run import RECORDER, REPLAY, CompiledCode, LibrarySteps, ProfilerUse, ReplayNotes, Run
from traces.model.trace import NONE, STEP_MARKS, DeviceKind, HostKind, MemoryEvents, Origin, StepKind, Trace
from traces.model.workload import Sameness
from tui.text.diff import diff_text


def test_a_replay_is_compared_with_the_recorded_steps_it_replayed() -> None:
    # GIVEN a recording whose steps are fast and slow in turn WHEN a replay repeats only slow steps after a warm-up step
    recorded = training(steps=4, jitter_us=(0, 50))
    replay = training(steps=4, jitter_us=(500, 50, 50, 50))
    replay.steps.recorded_step[:] = [0, 1, 3, 3]
    replay.steps.kind[0] = StepKind.WARMUP
    result = compare(recorded, replay)
    # THEN the replayed steps are compared with slow steps, and the warm-up step is not compared
    assert result.steps_compared == Both(3, 3)
    assert result.steps.error == 0.0 and result.phases["optimizer"].error == 0.0
    # WHEN all replayed steps are warm-up steps THEN all of them are compared
    replay.steps.kind[:] = StepKind.WARMUP
    assert compare(recorded, replay).steps_compared == Both(4, 4)
    # WHEN a replayed step refers to a row that the recording does not have THEN this step is not compared
    replay.steps.recorded_step[:] = [99, 1, NONE, 1]
    assert compare(recorded, replay).steps_compared == Both(2, 2)


def test_evaluation_steps_that_compile_code_are_not_compared() -> None:
    """GIVEN four recorded evaluation steps, and a replay that repeats all four steps WHEN only the second step compiles code
    THEN the other three steps are compared. WHEN all four steps compile code THEN all four steps are compared."""
    recorded, replay = training(steps=4), training(steps=4)
    recorded.steps.kind[:] = replay.steps.kind[:] = StepKind.EVALUATION
    replay.steps.recorded_step[:] = range(4)
    for compiling, compared in (((1,), [0, 2, 3]), ((0, 1, 2, 3), [0, 1, 2, 3])):
        numbers = tuple(recorded.steps.number[list(compiling)].tolist())
        recorded.runs[0] = replace(recorded.runs[0], compiled=CompiledCode(regions=1, compiling_evaluations=numbers))
        assert [rows.tolist() for rows in steps_to_compare(recorded, replay)] == [compared, compared]


def test_steps_of_several_ranks_are_compared_with_steps_of_the_same_rank() -> None:
    """GIVEN two profiled steps of rank 0 and one of rank 1 WHEN a replay has three steps per rank THEN each recorded step is
    compared with the replayed step of the same rank and number."""
    recorded, replay = (merge_ranks([training(steps=3), training(steps=3)]) for _ in range(2))
    replay.runs = {0: Run(REPLAY, replay=ReplayNotes(recording="main.msgpack", recording_source=RECORDER))}
    steps = recorded.steps
    profiled = np.flatnonzero((steps.number == 6) | ((steps.number == 7) & (steps.rank == 0)))
    ours, theirs = steps_of_verdict(recorded, profiled, replay, np.arange(6))
    assert ours.tolist() == profiled.tolist() and theirs.tolist() == profiled.tolist()


def test_two_replays_of_one_recording_are_compared_step_by_step() -> None:
    # GIVEN two replays whose warm-up step takes 600 us and whose other steps take 100 us
    first, second = (training(steps=4, jitter_us=(500, 0, 0, 0)) for _ in range(2))
    for replay in (first, second):
        replay.steps.kind[0], replay.steps.recorded_step[:] = StepKind.WARMUP, 0
        replay.runs = {0: Run(REPLAY, replay=ReplayNotes(recording="main.msgpack", recording_source=REPLAY))}
    # THEN the warm-up steps are not compared, because the second replay does not repeat the first replay
    result = compare(first, second)
    assert (result.replay, result.steps_compared) == (False, Both(3, 3))
    assert (result.steps.recorded_median_ns, result.steps.error) == (100 * US, 0.0)
    # WHEN the second replay repeats the first replay as its recording THEN its steps are compared with the repeated step
    first.runs = {0: Run(REPLAY, replay=ReplayNotes(recording="v100.msgpack", recording_source=RECORDER))}
    repeated = compare(first, second)
    assert (repeated.replay, repeated.steps.recorded_median_ns) == (True, 600 * US)
    # A replay of library times repeats no step of a recording.
    first.runs, notes = {0: Run(RECORDER)}, ReplayNotes(recording="v100.msgpack", cells=(LibrarySteps(4, {}, ()),))
    second.runs = {0: Run(REPLAY, replay=notes)}
    assert compare(first, second).steps.recorded_median_ns == 100 * US


def test_step_times_come_from_unprofiled_steps_and_kernels_from_profiled_steps() -> None:
    # GIVEN a recording whose clean steps are 30 us shorter than its profiled steps, and a replay of a profiled step
    recorded = training(steps=6, jitter_us=(0, 0, 0, 30, 30, 30))
    recorded.steps.kind[3:] = StepKind.PROFILED
    clean = recorded.device.start_ns < recorded.steps.start_ns[3]
    recorded.device.kind[clean] = DeviceKind.ANNOTATION  # kernels of clean steps are not recorded
    replay = training(steps=3)
    replay.steps.recorded_step[:] = [3, 4, 3]
    result = compare(recorded, replay)
    # THEN the step times are compared with the clean steps, and the kernels with the profiled steps
    assert result.steps_compared == Both(3, 3)
    assert (result.steps.recorded_median_ns, result.steps.error) == (100 * US, 0.0)
    assert result.phases["optimizer"].error == 0.0
    assert result.gpu_busy.error == 0.0 and result.gpu_busy.recorded_median_ns == 50 * US
    assert result.verdict.same is True
    assert not result.changes.kernels.added
    # Two recordings are compared in the same way.
    assert compare(recorded, training(steps=2)).steps.error == 0.0
    # WHEN there are no clean steps THEN the profiled steps are compared
    recorded.steps.kind[:3] = StepKind.WARMUP
    assert compare(recorded, replay).steps.recorded_median_ns == 130 * US


def test_the_busy_share_is_the_busy_time_divided_by_the_unprofiled_step_time() -> None:
    """GIVEN clean steps of 100 us WHEN the replay repeats profiled steps with kernels of 50 us per step THEN the GPU is busy
    for 50 % of a clean step. The last profiled step, which is one second longer, does not count."""
    recorded, replay = training(steps=6, jitter_us=(0, 0, 0, 30, 30, 1_000_000)), training(steps=3)
    recorded.steps.kind[3:] = StepKind.PROFILED
    recorded.device.kind[recorded.device.start_ns < recorded.steps.start_ns[3]] = DeviceKind.ANNOTATION
    replay.steps.recorded_step[:] = [3, 4, 3]
    (stream,) = compare(recorded, replay).streams
    assert stream.recorded_busy == pytest.approx(0.5)


def _with_peaks(steps: int, peaks: dict[int, int]) -> Trace:
    """Return a trace in which each given step allocates and frees a block of the given size."""
    trace = training(steps=steps)
    rows = [(step, sign * size) for step, size in peaks.items() for sign in (1, -1)]
    at_ns = [int(trace.steps.start_ns[step]) + (10 if size > 0 else 20) for step, size in rows]
    allocated = [max(size, 0) for _, size in rows]
    numbers = {"thread": [0] * len(rows), "device": [0] * len(rows), "address": [64] * len(rows)}
    sizes = {"bytes": [size for _, size in rows], "allocated_bytes": allocated, "reserved_bytes": [NONE] * len(rows)}
    return replace(trace, memory=MemoryEvents.of(time_ns=at_ns, **numbers, **sizes))


def test_memory_peaks_are_compared_without_the_first_step_and_without_compiling_steps() -> None:
    """GIVEN a recording whose fourth step compiles code and takes 900 bytes WHEN the first step of the replay takes 700 bytes
    THEN neither step counts. Only the 300 bytes of later steps without compilation are compared. The recording has no memory
    events before its third step."""
    recorded, replay = _with_peaks(5, {2: 300, 3: 900, 4: 300}), _with_peaks(5, {0: 700, 2: 300, 3: 300})
    recorded.host.name[np.searchsorted(recorded.host.start_ns, recorded.steps.start_ns[3])] = recorded.strings.add(
        "compile_inner (dynamo_timed)"
    )
    replay.steps.recorded_step[:] = [2, 2, 2, 4, 4]
    assert compare(recorded, replay).memory["cuda:0"].compared_bytes == (300, 300)
    # WHEN the replay has memory events only in its first step THEN the peak of this step is compared
    early = replace(replay, memory=replay.memory.take(np.arange(2)))
    assert compare(recorded, early).memory["cuda:0"].compared_bytes == (300, 700)


def test_a_larger_batch_after_the_profiled_steps_does_not_change_the_compared_memory_peak() -> None:
    """GIVEN a recording with memory events only in steps 1 and 2 WHEN a larger batch in step 3 of the replay takes 900 bytes
    THEN the peaks of steps 1 and 2 are compared, 300 bytes. If B is another recording, all its steps are compared, 900 bytes.
    If a replay ends before the steps with memory events, its steps without compilation are compared, 700 bytes."""
    recorded, other = _with_peaks(4, {1: 300, 2: 200}), _with_peaks(4, {0: 200, 1: 300, 2: 200, 3: 900})
    assert compare(recorded, other).memory["cuda:0"].compared_bytes == (300, 900)
    other.steps.recorded_step[:] = [1, 1, 2, 1]
    memory = compare(recorded, other).memory["cuda:0"]
    assert (memory.compared_bytes, memory.replayed_run_peak_bytes) == ((300, 300), 900)
    late, short = _with_peaks(4, {2: 300}), _with_peaks(2, {0: 900, 1: 700})
    short.steps.recorded_step[:] = [2, 2]
    short.host.name[0] = short.strings.add("compile_inner (dynamo_timed)")
    assert compare(late, short).memory["cuda:0"].compared_bytes == (300, 700)


def test_memory_peaks_are_compared_only_in_steps_with_memory_events_in_both_traces() -> None:
    """GIVEN a recording with memory events only in training steps WHEN the replay also has memory events in evaluation steps
    THEN the peaks of training steps are compared. Without a common kind of step, the peaks of the whole traces are compared."""
    recorded, replay = _with_peaks(3, {0: 300}), _with_peaks(3, {0: 300, 2: 900})
    for trace in (recorded, replay):
        trace.steps.kind[2] = StepKind.EVALUATION
    memory = compare(recorded, replay).memory["cuda:0"]
    assert (memory.compared_bytes, memory.replayed_run_peak_bytes) == ((300, 300), 900)
    assert compare(replay, recorded).memory["cuda:0"].compared_bytes == (300, 300)
    assert compare(replay, replay).memory["cuda:0"].compared_bytes == (900, 900)
    evaluation = replace(replay, memory=replay.memory.take(np.arange(2, 4)))
    assert compare(recorded, evaluation).memory["cuda:0"].compared_bytes == (300, 900)


def test_gpu_time_is_compared_only_in_steps_without_estimated_times() -> None:
    """GIVEN a replay of 6 steps WHEN the kernel times of 4 steps are estimates THEN only the GPU time of the other 2 steps is
    compared. WHEN all times are estimates THEN all steps are compared."""
    recorded, replay = training(steps=2), training(steps=6)
    replay.steps.recorded_step[:] = [0, 1] * 3
    late = replay.device.start_ns >= replay.steps.start_ns[2]
    replay.device.duration_ns[late] //= 2
    replay.device.origin[:] = Origin.EXACT
    whole = compare(recorded, replay).gpu_busy
    assert (whole.replayed_ns, whole.error) == (25 * US, -0.5)
    replay.device.origin[late] = Origin.SCALED
    assert compare(recorded, replay).gpu_busy.error == 0.0
    assert compare(recorded, replay).steps_compared == Both(6, 6) and compare(recorded, replay).gpu_time_steps == 2
    assert "GPU time is compared in 2 of 6 steps" in diff_text(compare(recorded, replay), "a", "b", details=False)
    assert compare(replace(recorded, grain="phase"), replay).gpu_time_steps is None
    other = replace(replay, host=replace(replay.host, name=np.roll(replay.host.name, 3)))
    assert compare(recorded, other).verdict.same is False and compare(recorded, other).gpu_time_steps is None
    replay.device.origin[:] = Origin.SCALED
    assert compare(recorded, replay).gpu_busy == whole


@pytest.mark.parametrize(("estimated_ns", "compared"), [(2000, 2), (2001, 1)])
def test_gpu_time_is_compared_in_steps_with_at_least_nine_tenths_recorded_times(estimated_ns: int, compared: int) -> None:
    """GIVEN a replay of two steps with 20 us of GPU work each WHEN at most 2 us of a step are estimated THEN the GPU time of
    this step is compared."""
    recorded, replay = training(steps=2), training(steps=2)
    replay.steps.recorded_step[:] = [0, 1]
    replay.device.duration_ns[:] = [4000] * 9 + [estimated_ns]
    replay.device.duration_ns[5] = 20_000 - 12_000 - estimated_ns
    replay.device.origin[:] = [Origin.EXACT] * 9 + [Origin.SCALED]
    assert compare(recorded, replay).gpu_time_steps == (compared if compared < 2 else None)


def test_steps_with_different_kernels_are_compared_by_step_number() -> None:
    """GIVEN two recorded and six replayed steps WHEN only step 1 of each trace has an extra kernel THEN the steps 0 and 1 are
    compared. Without the extra kernel, all six replayed steps are compared."""
    recorded, replay = training(steps=2), training(steps=6)
    replay.steps.recorded_step[:] = [0, 1] * 3
    for trace, with_kernel in ((recorded, 1), (replay, 1)):
        step = launch_steps(trace)
        last = [int(np.flatnonzero(step == row)[-1]) for row in range(len(trace.steps)) if row != with_kernel]
        trace.device.kind[last] = DeviceKind.ANNOTATION
    found = compare(recorded, replay)
    assert found.verdict.same and (found.gpu_busy.error, found.gpu_time_steps) == (0.0, 2)
    recorded.device.kind[:] = replay.device.kind[:] = DeviceKind.KERNEL
    assert compare(recorded, replay).gpu_time_steps is None


def test_replayed_steps_are_compared_with_profiled_steps_of_the_same_number() -> None:
    # GIVEN a recording with a profile of its steps 4 and 5 WHEN all replayed steps except 4 and 5 have other ops
    recorded, replay = training(steps=6), training(steps=8)
    recorded.steps.kind[:4], recorded.steps.kind[4:] = StepKind.STEADY, StepKind.PROFILED
    replay.steps.recorded_step[:] = [4, 5] * 4
    replay.runs = {0: Run(REPLAY)}
    others = ~np.isin(replay.steps.number, recorded.steps.number[4:])
    inside = np.isin(step_windows(replay).holding(replay.host.start_ns, np.zeros(len(replay.host))), np.flatnonzero(others))
    replay.host.name[inside & (replay.host.kind == HostKind.OP)] = replay.strings.add("aten::metric")
    # THEN the replay is the same program. WHEN these two steps have other numbers THEN the replay is another program.
    assert compare(recorded, replay).verdict.sameness is Sameness.SAME_PROGRAM
    replay.steps.number += 2
    assert compare(recorded, replay).verdict.sameness is Sameness.OTHER_PROGRAM


def _in_turns(steps: int, first: int = 0) -> Trace:
    """Return steps that alternate between one backward pass and two.

    In the longer steps, the second backward pass replaces the optimizer.
    """
    trace = training(steps=steps, jitter_us=(0, 200) if not first else (200, 0))
    optimizer = trace.phases.name == trace.strings.find("optimizer")
    trace.phases.name[optimizer & (trace.phases.step % 2 != first)] = trace.strings.find("backward")
    return trace


def test_each_step_is_compared_with_a_step_of_the_same_kind() -> None:
    # GIVEN two recordings of two trainers in turn, of which the second recording begins with the other trainer
    one, other = _in_turns(5), _in_turns(6, first=1)
    result = compare(one, other)
    # THEN equally many steps of each kind are compared, so the medians are the same
    assert result.verdict.same and result.steps.error == 0.0 and result.gpu_busy.error == 0.0
    # GIVEN clean and profiled steps WHEN a replay repeats two long profiled steps and one short profiled step
    recorded = _in_turns(8)
    recorded.steps.kind[5:] = StepKind.PROFILED
    replay = _in_turns(3, first=1)
    replay.steps.recorded_step[:] = [5, 6, 7]
    result = compare(recorded, replay)
    assert result.steps.error == 0.0 and result.steps_compared == Both(3, 3)


def test_evaluation_steps_of_different_length_are_compared_by_step_number() -> None:
    """GIVEN a recording in which every third generated token takes 400 us longer WHEN a replay repeats a profile of two short
    tokens THEN steps with the same number are compared. The profiler starts in the fifth step, which is left out."""
    recorded = training(steps=7, jitter_us=(0, 0, 400, 0, 0, 0, 0))
    recorded.runs = {0: Run("hand", "unix", profiler=ProfilerUse(steps=(10, 11)))}  # the step numbers of the last two steps
    replay = training(steps=9, jitter_us=(0, 0, 400, 0, 0, 400, 400, 400, 400))
    replay.steps.recorded_step[:] = [5, 6, 5, 6, 5, 6, 5, 6, 5]
    for trace in (recorded, replay):
        trace.steps.kind[:] = StepKind.EVALUATION
    result = compare(recorded, replay)
    assert (result.steps_compared, result.steps.error) == (Both(4, 4), 0.0)
    assert result.evaluation is not None and result.evaluation.steps_compared == Both(4, 4)


def test_a_recording_without_step_marks_is_compared_with_all_steps_of_another_recording() -> None:
    """GIVEN a recording of four steps of 50 us of GPU time WHEN another recording of the same work has no step marks THEN the
    whole recordings are compared. A recording of a single step is compared with this one step."""
    marked, unmarked = training(steps=4), training(steps=4)
    lasted_ns = int(unmarked.steps.end_ns[-1] - unmarked.steps.start_ns[0])
    unmarked.steps = unmarked.steps.take(np.array([0]))
    unmarked.steps.duration_ns[:], unmarked.phases.step[:] = lasted_ns, 0
    unmarked.lacks = [STEP_MARKS]
    for first, second in ((marked, unmarked), (unmarked, marked)):
        result = compare(first, second)
        assert (result.steps.recorded_ns, result.steps_compared) == (None, Both(0, 0))
        assert (result.gpu_busy.recorded_ns, result.gpu_busy.error) == (200 * US, 0.0)
    single = compare(training(steps=1), unmarked)
    assert single.steps_compared == Both(1, 1) and single.gpu_busy.error == 3.0
