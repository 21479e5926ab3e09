"""Tests which figures of two traces are compared, which differences are judged, and which keys the JSON of a comparison has."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.replayer.compiled.handmade_recording import recording as compiled_recording
from tests.traces.comparison.test_changed_ops import recording
from tests.traces.figures.test_pace import Work, a_trace, of_lengths, with_long_steps
from tests.traces.handmade import MS, US, Call, calls, phase_grained, replay_of, training
from traces.comparison.changed_ops import ChangeLists, Changes, changes
from traces.comparison.compare import compare, have_same_stream_numbers, pair_streams
from traces.comparison.comparison_figures import Both, Comparison
from traces.comparison.explain import explain, slow_steps_sentence
from traces.comparison.gate import check
from traces.figures.spread import Spread
from traces.kineto import read_kineto
from traces.library.cell_traces import blank_trace, trace_with_step_times
from traces.library.cells import Gpu
from traces.model.run import KINETO, QUEUES, RECORDER, REPLAY, STREAMS, CompiledCode, MemoryUse, ProfilerUse, ReplayNotes, Run
from traces.model.trace import Device, MemoryEvents, Origin, PhaseTiming, StepKind, Trace
from traces.model.workload import InputTensor, WorkloadSignature
from traces.names.equivalent_ops import canonical_op
from traces.script.configuration import ReplayConfig
from tui.text.diff import diff_text, verdict_sentences

_NOISY_US = (0, 30, 4, 12, 22, 7, 18, 1)  # these times are added to steps of 100 us


def test_a_trace_compared_with_itself_has_no_error() -> None:
    trace = training(jitter_us=(0, 3, 1, 2))
    same = compare(trace, trace)
    assert (same.verdict.same, same.steps.error, same.compute_side.error, same.gpu_busy.error) == (True, 0.0, 0.0, 0.0)
    assert {phase.error for phase in same.phases.values()} == {0.0}
    assert same.changes == Changes(ChangeLists(), ChangeLists())
    assert not same.replay and same.coverage is None and same.within_tolerance


def test_the_json_has_the_documented_keys() -> None:
    # GIVEN a replay with the notes that the replayer writes
    missing = [{"op": "aten::foo", "shapes": "2,2", "count": 3}]
    notes: dict[str, Any] = {
        "lag_ns_per_step": 7,
        "lag_ns_of_worst_step": 900,
        "us_per_op": 12.5,
        "ops_per_step": 5,
        "uncharged_ns": 100 * US,
        "missing": missing,
    }
    recorded = training(steps=2)
    report = json.loads(json.dumps(compare(recorded, replay_of(recorded, **notes)).to_json()))
    # THEN the report has every documented key, and the shares add up to 1
    spread = {"recorded_median_ns", "replayed_median_ns", "error", "noise_floor"}
    assert report["version"] == 1 and report["same_program"] is True and report["reason"]
    assert spread <= report["steps"].keys() and spread <= report["compute_side"].keys()
    assert all({"recorded_median_ns", "replayed_median_ns", "error"} <= p.keys() for p in report["phases"].values())
    # The replay has 20 spans of 10 us, of which 4 have scaled times. It did not charge 100 us.
    assert report["coverage"] == pytest.approx(
        {"exact": 16 / 30, "equivalent": 0, "scaled": 4 / 30, "phase": 0, "roofline": 0, "published": 0, "unmatched": 10 / 30}
    )
    host = {"lag_ns_per_step": 7, "lag_ns_of_worst_step": 900, "us_per_op": 12.5, "ops_per_step": 5}
    assert report["host"] == host
    memory = report["memory"]["cuda:0"]
    assert (memory["recorded_peak_bytes"], memory["replayed_peak_bytes"]) == (3 << 20, 3 << 20)
    assert report["missing"] == missing


def test_comparing_two_recordings_gives_no_coverage_and_no_host_figures() -> None:
    report = compare(training(), training()).to_json()
    assert report["coverage"] is None and report["missing"] == []
    assert set(report["host"]) >= {"lag_ns_per_step", "us_per_op", "ops_per_step"} and not any(report["host"].values())


def test_evaluation_steps_are_compared_separately_if_both_traces_have_them() -> None:
    recorded = training(steps=5, jitter_us=(0, 0, 10, 20, 0))
    assert "evaluation" not in compare(recorded, recorded).to_json()
    recorded.steps.kind[2:4] = StepKind.EVALUATION
    replay = training(steps=4, jitter_us=(0, 0, 20, 40))
    replay.steps.recorded_step[:] = [0, 1, 3, 3]
    replay.steps.kind[2:] = StepKind.EVALUATION
    result = compare(recorded, replay)
    assert result.steps_compared == Both(2, 2) and result.steps.error == 0.0
    facts = json.loads(json.dumps(result.to_json()))["evaluation"]
    assert facts["steps_compared"] == {"recorded": 2, "replayed": 2}
    assert (facts["steps"]["recorded_median_ns"], facts["steps"]["replayed_median_ns"]) == (120 * US, 130 * US)
    assert facts["compute_side"]["error"] == pytest.approx(110 / 100 - 1)
    # WHEN the recording has no evaluation THEN the replay used a training step instead, so there is nothing to compare
    alone = training(steps=2)
    replay.steps.recorded_step[:] = [0, 1, 1, 1]
    told = compare(alone, replay).evaluation
    assert told is not None and told.steps_compared == Both(0, 2)
    assert (told.steps.recorded_median_ns, told.steps.replayed_median_ns, told.steps.error) == (None, 130 * US, None)
    # WHEN a script only evaluates THEN its evaluation steps are compared, but not with training steps
    recorded.steps.kind[:] = replay.steps.kind[:] = StepKind.EVALUATION
    assert compare(recorded, replay).steps_compared == Both(4, 4)
    assert compare(alone, replay).steps == Spread(*[None] * 8)


@pytest.mark.parametrize(("long_us", "means"), [(240, None), (300, (100, 212.5)), (500, (100, 287.5))])
def test_mean_step_times_are_compared_if_long_steps_dominate_one_trace(
    long_us: int, means: tuple[float, float] | None
) -> None:
    """GIVEN a trace with steps of 100 us WHEN three of eight steps of the second trace are longer THEN the means are compared
    if the second mean is at least twice the second median."""
    found = compare(training(steps=8), training(steps=8, jitter_us=(0, 0, long_us, 0, long_us, long_us, 0, 0))).steps
    assert (found.recorded_median_ns, found.replayed_median_ns) == (100 * US, 100 * US)
    expected = (None, None) if means is None else tuple(round(of * US) for of in means)
    assert (found.recorded_mean_ns, found.replayed_mean_ns) == expected


def test_evaluation_times_are_compared_without_the_profilers_cost() -> None:
    """GIVEN evaluation steps of which the last two ran under the profiler WHEN the profiler starts in the step before them THEN
    only the three earlier steps are compared with the replay."""
    recorded = training(steps=7, jitter_us=(0, 0, 0, 0, 900, 40, 40))
    recorded.runs = {0: Run("hand", "unix", profiler=ProfilerUse(steps=(10, 11)))}  # the step numbers of the last two steps
    replay = training(steps=7)
    replay.steps.recorded_step[:] = [0, 5, 6, 5, 6, 5, 6]
    for trace in (recorded, replay):
        trace.steps.kind[1:] = StepKind.EVALUATION
    told = compare(recorded, replay).evaluation
    assert told is not None and told.steps_compared == Both(3, 3)
    assert (told.steps.recorded_median_ns, told.steps.replayed_median_ns) == (100 * US, 100 * US)


def test_step_times_exclude_data_loading_unless_recorded_waits_were_replayed() -> None:
    recorded = training()
    replay = replay_of(recorded)
    assert (compare(recorded, replay).judged, compare(recorded, replay).within_tolerance) == ("compute_side", True)
    notes = ReplayNotes(recording_source=recorded.run_of(0).source, config=ReplayConfig(loader="recorded"))
    replay.runs = {0: Run(REPLAY, replay=notes)}
    judged = compare(recorded, replay)
    assert judged.judged == "steps" and not judged.within_tolerance
    assert judged.steps.error == pytest.approx(83 / 100 - 1)
    assert compare(recorded, replay, tolerance=0.2).within_tolerance


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (_NOISY_US, [7 + us for us in _NOISY_US], "NOT JUDGED: step time differs by +6.4 %, GPU time by 0.0 %, but step time"),
        (_NOISY_US, [9 + us for us in _NOISY_US], "FAIL: step time differs by +8.2 %, GPU time by 0.0 %; limit 5.0 %."),
        ([4], _NOISY_US, "NOT JUDGED: step time differs by +5.3 %, GPU time by 0.0 %, but step time varies by ±7.2 %"),
    ],
)
def test_a_difference_within_the_noise_of_either_trace_is_not_judged(
    first: Sequence[int], second: Sequence[int], verdict: str
) -> None:
    """GIVEN a trace with steps of 100 to 130 us THEN its noise is 7.2 % of the median. The noise is half of the range between
    the quartiles."""
    ours, theirs = (training(steps=8, jitter_us=tuple(of)) for of in (first, second))
    result, is_noise = compare(ours, theirs), verdict.startswith("NOT JUDGED")
    assert result.within_tolerance is (None if is_noise else False)
    assert verdict_sentences(result)[0][0].startswith(verdict)
    assert ("not judged against 5.0% of steps" in repr(result)) is is_noise
    # WHEN kernels of the shorter trace are missing THEN the text still names noise as the reason why the times are not judged
    ours.problems = {"lost-kernel": 4}
    lost = verdict_sentences(compare(replace(ours), theirs))[0][0]
    assert ("between steps" in lost, "kernels are missing" in lost) == (is_noise, not is_noise)


def test_averaging_many_steps_reduces_the_noise() -> None:
    """GIVEN 112 steps that vary by 7 % WHEN the steps of another trace are 6 % longer THEN this difference is not noise. Two
    standard errors of 112 steps are sqrt(28 / 112) = 1/2 of the noise floor."""
    jitter = random.Random(0).choices(_NOISY_US, k=112)
    ours, theirs = (training(steps=112, jitter_us=tuple(late + us for us in jitter)) for late in (0, 7))
    result = compare(ours, theirs)
    steps = result.steps
    assert steps.noise_floor is not None and steps.error is not None and 0.05 < steps.error < steps.noise_floor
    assert steps.average_noise == pytest.approx(steps.noise_floor / 2)
    assert result.within_tolerance is False


def test_mean_step_times_are_compared_if_step_times_vary_a_lot() -> None:
    """GIVEN two traces whose steps vary a lot WHEN both mean steps take 140 us THEN all texts report equal step times, although
    the medians differ by 60 %."""
    result = compare(training(steps=5, jitter_us=(0, 0, 0, 100, 100)), training(steps=5, jitter_us=(0, 0, 60, 70, 70)))
    assert (result.steps.recorded_median_ns, result.steps.recorded_mean_ns) == (100 * US, 140 * US)
    assert result.steps.error == 0.0 and result.within_tolerance is True
    assert explain(result).delta_ns == 0
    assert result.problems == Both([], [])  # the means are compared, so their difference from the medians is no problem
    assert [of.value for of in check({"step_time_change": 0.0, "compute_time": 0.0}, result).checks] == [0.0, 120 * US]
    assert "step time (mean)" in diff_text(result, "a", "b", details=False)
    steps = result.to_json()["steps"]
    assert (steps["recorded_mean_ns"], steps["replayed_mean_ns"]) == (140 * US, 140 * US)
    assert "recorded_mean_ns" not in result.to_json()["gpu_busy"]


def test_the_noise_floor_is_half_the_interquartile_range_divided_by_the_median() -> None:
    trace = training(steps=5, jitter_us=(0, 10, 20, 30, 40))
    assert compare(trace, trace).steps.noise_floor == pytest.approx((30 - 10) / 2 / 120)
    assert compare(training(steps=3), trace).steps.noise_floor is None


def test_the_error_is_unknown_if_the_recorded_time_is_zero() -> None:
    # GIVEN a recording without a wait for data
    result = compare(training(loader_us=0), training(loader_us=20))
    assert result.phases["loader"].recorded_median_ns == 0
    assert result.phases["loader"].error is None


def test_phases_are_compared_by_host_time_and_by_gpu_time() -> None:
    recorded, other = training(), training(stretch=2)
    forward = compare(recorded, other).phases["forward"]
    assert (forward.recorded_median_ns, forward.replayed_median_ns, forward.error) == (20 * US, 40 * US, 1.0)
    assert (forward.device_recorded_median_ns, forward.device_replayed_median_ns) == (27 * US, 47 * US)
    assert compare(recorded, other).phases["loader"].device_error is None
    # The busy time of a phase contains the launched kernels, but not the waits of the GPU.
    assert (forward.busy_recorded_median_ns, forward.busy_replayed_median_ns, forward.busy_error) == (10 * US, 20 * US, 1.0)
    assert compare(recorded, phase_grained()).phases["forward"].busy_replayed_median_ns is None


def test_gpu_work_during_a_wait_for_data_counts_if_the_bottleneck_is_unknown() -> None:
    """GIVEN a replayed wait for data of 3 us, during which the GPU computes for 2 us WHEN the host limited the recorded pace
    THEN the whole wait is subtracted. WHEN the bottleneck of the recording is unknown THEN only 1 us is subtracted."""
    recorded, replay = training(), replay_of(training())
    last = replay.device.name == replay.strings.find("vectorized_add")
    replay.device.duration_ns[last] += 5 * US
    assert compare(recorded, replay).compute_side.replayed_median_ns == 80 * US
    recorded.phase_timing = PhaseTiming.SYNCHRONIZED
    assert compare(recorded, replay).compute_side.replayed_median_ns == 82 * US


def test_host_times_of_phases_are_not_compared_if_one_trace_synchronized_the_gpu() -> None:
    # GIVEN a published table of phase times, measured with a GPU synchronization at each boundary
    published, replay = phase_grained(), training(stretch=2)
    published.phase_timing = PhaseTiming.SYNCHRONIZED
    result = compare(published, replay)
    # THEN host times of phases are only shown, and times between CUDA events are compared
    assert not result.host_phases_comparable
    assert (result.phases["forward"].recorded_median_ns, result.phases["forward"].error) == (20 * US, None)
    assert result.phases["forward"].device_error == pytest.approx(47 / 27 - 1)
    assert compare(published, published).host_phases_comparable


def test_a_replay_of_a_study_is_not_judged_if_a_phase_was_not_measured() -> None:
    # GIVEN a study that measured steps of 70 us without h2d, and a replay that takes 87 us, of which h2d takes 17 us
    replay = phase_grained(3)
    replay.workload = WorkloadSignature(100, 400, {"Linear": 2}, (InputTensor((32, 8), "float32"),))
    replay.runs = {0: Run(REPLAY, replay=ReplayNotes())}
    gpu = Gpu("v100", "Tesla V100-DGXS-32GB", 32 << 30)

    def against(forward_us: int) -> Comparison:
        measured_ns = {"forward": forward_us * US, "loss": 10 * US, "backward": 20 * US, "optimizer": 10 * US}
        return compare(trace_with_step_times(blank_trace(gpu), [measured_ns] * 3, [], replay.workload), replay)

    # WHEN only h2d makes a step longer THEN the step time is not judged
    found = against(30)
    assert (found.compute_side.recorded_ns, found.compute_side.replayed_ns) == (70 * US, 87 * US)
    assert found.unmeasured_phases_ns == {"h2d": 17 * US} and found.within_tolerance is None
    assert verdict_sentences(found)[0][0] == (
        "NOT JUDGED: step time (excluding data loading) differs by +24.3 %, but the recording has no time for the phase h2d, "
        "which takes 17.0 µs in the replay."
    )
    # WHEN the replay lacks GPU work THEN the missing work is the reason
    assert "the phase h2d" not in verdict_sentences(replace(found, work_is_hidden=Both(False, True)))[0][0]
    # WHEN the other phases also take longer THEN the step time is outside the tolerance
    assert against(20).within_tolerance is False


def test_traces_without_steps_are_compared_as_wholes() -> None:
    recorded, other = training(), training(kernel_us=11)
    for trace in (recorded, other):
        trace.steps, trace.phases = Trace().steps, Trace().phases
    result = compare(recorded, other, tolerance=0.2)
    assert (result.judged, result.within_tolerance, result.verdict.same) == ("gpu_busy", True, True)
    assert result.gpu_busy.error == pytest.approx(0.06) and result.steps.recorded_median_ns is None
    assert not compare(recorded, Trace()).within_tolerance


def test_streams_of_two_traces_are_paired_by_number_or_by_busy_time() -> None:
    recorded, other = training(), training()
    recorded.device.stream[::5] = 20
    other.device.stream[:] = np.where(np.arange(len(other.device)) % 5 == 0, 9, 1)
    pairs = [(s.recorded_stream, s.replayed_stream) for s in compare(recorded, other).streams]
    assert pairs == [(7, 1), (20, 9)]
    other.device.stream[:] = 7
    rows = compare(recorded, other).streams
    assert [(s.recorded_stream, s.replayed_stream) for s in rows] == [(7, 7), (20, None)]
    # The window lasts from the start of the first step to the end of the last step.
    assert rows[0].replayed_busy == pytest.approx(4 * 50 / 400, abs=1e-6) and rows[1].replayed_busy is None


def test_amd_queues_are_paired_with_streams_of_similar_busy_time() -> None:
    """GIVEN an idle queue 0 and a busy stream 0 THEN the numbers of queues and streams do not match, so queues and streams are
    paired by busy time."""
    assert pair_streams({0: 1.0, 1: 9.0}, {0: 8.0, 1: 2.0}) == [(0, 0), (1, 1)]
    assert pair_streams({0: 1.0, 1: 9.0}, {0: 8.0, 1: 2.0}, same_numbers=False) == [(1, 0), (0, 1)]
    queues, streams = (Trace(runs={0: Run(stream_numbers=of)}) for of in (QUEUES, STREAMS))
    unknown = Trace()
    assert not have_same_stream_numbers(queues, streams)
    assert have_same_stream_numbers(queues, queues) and have_same_stream_numbers(queues, unknown)


def test_the_memory_of_each_rank_is_compared_separately() -> None:
    trace = training()
    trace.devices = [*trace.devices, Device(1, 0, "GPU")]
    trace.memory = MemoryEvents.of(device=[0, 1], time_ns=[0, 0], bytes=[5, 6])
    assert [m.recorded_peak_bytes for m in compare(trace, trace).memory.values()] == [5, 6]
    assert list(compare(trace, trace).memory) == ["rank 0 cuda:0", "rank 1 cuda:0"]


# --- changed kernels and ops


def test_changes_are_per_step_and_do_not_depend_on_the_length_of_a_trace() -> None:
    found = changes(training(steps=3), training(steps=7), np.arange(3), np.arange(7))
    assert found == Changes(ChangeLists(), ChangeLists())


def test_added_removed_longer_and_shorter_kernels_and_ops_are_listed() -> None:
    recorded = training(steps=2, made=[c for c in calls(32) if c.kernel != "softmax"])
    other = training(steps=4, made=[*calls(32)[1:], Call("aten::mul", "2,2", 91, "mul_kernel")])
    other.device.duration_ns[0::5] = 30 * US  # the convolution takes longer
    other.device.duration_ns[2::5] = 4 * US  # the backward pass is shorter
    found = changes(recorded, other, np.arange(2), np.arange(4)).kernels
    assert [c.name for c in found.added] == ["mul_kernel", "softmax"]
    assert [c.name for c in found.gone] == ["Memcpy HtoD (Pageable -> Device)"]
    assert [dataclasses.astuple(c) for c in found.longer] == [("volta_sgemm_nn", 1.0, 1.0, 10 * US, 30 * US, "convolution")]
    assert [c.name for c in found.shorter] == ["volta_sgemm_tn"]
    assert [c.name for c in changes(recorded, other, np.arange(2), np.arange(4)).ops.longer] == ["aten::cudnn_convolution"]
    assert not changes(recorded, other, np.arange(2), np.arange(4), tolerance=2.5).kernels.longer


def test_a_recorded_step_that_was_replayed_twice_counts_twice_in_the_mean() -> None:
    recorded = training(steps=2)
    recorded.device.duration_ns[:5] = 40 * US
    (longer, *_) = changes(recorded, training(steps=1, kernel_us=60), np.array([0, 0, 1]), np.array([0])).kernels.longer
    assert longer.recorded_ns == 30 * US


def test_different_names_of_an_op_in_two_releases_are_treated_as_equal() -> None:
    recorded = training()
    found = changes(recorded, replay_of(recorded), np.arange(4), np.arange(8)).ops
    assert not found.added and not found.gone


def test_memory_use_in_the_notes_of_a_replay_is_compared() -> None:
    """GIVEN replay notes about two devices WHEN the trace contains only the first device THEN the second device, which was
    never used, has no verdict."""
    used = MemoryUse(capacity_bytes=8 << 30, outside_bytes=1 << 20, most_reserved_bytes=6 << 20)
    for use, fits in ((used, True), (replace(used, ooms=1), False), (MemoryUse(ooms=2), False), (MemoryUse(), None)):
        replay = replay_of(training())
        replay.runs[0] = replace(replay.runs[0], replay=ReplayNotes(memory=(use, used)))
        comparison = compare(training(), replay)
        memory = comparison.memory["cuda:0"]
        assert list(comparison.memory) == ["cuda:0"] and memory.fits is fits
        assert memory.ooms == (use.ooms if fits is not None else None)
        assert comparison.without_an_end().memory["cuda:0"].fits is (False if fits is False else None)


def test_without_memory_events_the_peaks_of_the_whole_runs_are_compared() -> None:
    """GIVEN a recording without memory events WHEN it contains the peak that PyTorch counted THEN this peak is compared with
    the peak of the replay, 3 MiB."""
    recorded, replay = phase_grained(), replay_of(training())
    assert "recorded_peak_bytes=None" in repr(compare(recorded, replay).memory["cuda:0"])
    recorded.devices = [replace(recorded.devices[0], peak_bytes=5 << 20)]
    memory = compare(recorded, replay).memory["cuda:0"]
    assert (memory.recorded_peak_bytes, memory.replayed_peak_bytes) == (5 << 20, 3 << 20)
    assert (memory.recorded_source, memory.replayed_source) == ("run", "recorded")
    # WHEN the recorded run compiled code THEN the peak without compilation is unknown
    recorded.runs[0] = replace(recorded.runs[0], compiled=CompiledCode(regions=1))
    memory = compare(recorded, replay).memory["cuda:0"]
    assert (memory.recorded_source, memory.compared_bytes) == ("run", (None, 3 << 20))
    recorded.runs[0] = replace(recorded.runs[0], compiled=None)
    # GIVEN a second recording with memory events of only a few steps THEN the peak that PyTorch counted is compared
    second = training()
    second.devices = [replace(second.devices[0], peak_bytes=6 << 20)]
    assert compare(recorded, second).memory["cuda:0"].compared_bytes == (5 << 20, 6 << 20)
    assert compare(second, training()).memory["cuda:0"].compared_bytes == (3 << 20, 3 << 20)


def test_a_comparison_shows_only_times_that_both_traces_have() -> None:
    lines = repr(compare(training(), training(stretch=1.5))).splitlines()
    assert lines[1] == "  step 0.100 -> 0.140 ms (+40.0%)"
    assert lines[-1].startswith("  not within 5.0% of ")
    assert "step" not in repr(compare(Trace(), training())).partition(")")[2]


def test_ops_have_canonical_names() -> None:
    assert canonical_op("aten::cudnn_batch_norm") == canonical_op("aten::native_batch_norm") == "batch_norm"
    assert canonical_op("aten::add_") == canonical_op("aten::add.Tensor") == "add"
    assert canonical_op("aten::_log_softmax") == "log_softmax"


def test_gpu_time_in_a_replay_of_phase_times_comes_only_from_recorded_phases() -> None:
    recorded = phase_grained()
    replay = training(steps=3)
    replay.steps.recorded_step[:] = [0, 1, 2]
    replay.device.origin[:] = Origin.PHASE
    coverage = compare(recorded, replay).coverage
    assert coverage is not None and coverage["phase"] == 1.0


# --- real recordings


def test_comparing_two_real_recordings_gives_the_known_figures(shared_traces: Path) -> None:
    first, again, workers = (
        read_kineto(shared_traces / f"v100_resnet50_{name}.json.gz") for name in ("workers0", "workers0_rerun", "workers4")
    )
    rerun = compare(first, again)
    assert rerun.verdict.same
    # The GPU still has 13 ms of queued work when the host begins to wait for data. These 13 ms do not count as a wait.
    assert rerun.compute_side.error == pytest.approx(-0.0073, abs=0.0005)
    assert rerun.host_pace.recorded_median_ns == pytest.approx(176.3 * MS, rel=1e-3)
    assert rerun.steps.recorded_median_ns == pytest.approx(177.4 * MS, rel=1e-3)
    assert rerun.gpu_busy.error == pytest.approx(-0.0024, abs=0.0005)
    assert not rerun.changes.kernels.added and not rerun.changes.kernels.gone
    loading = compare(first, workers)
    assert loading.verdict.same and loading.phases["loader"].error == pytest.approx(-0.98, abs=0.01)
    assert {change.name for change in loading.changes.kernels.gone}


def test_comparing_profiled_steps_with_unprofiled_steps_gives_a_warning() -> None:
    """GIVEN a recording with clean steps WHEN it is compared with an imported profile THEN a sentence warns that the profiler
    slows the host."""
    ours, profile = training(), training(stretch=1.5)
    ours.runs, profile.runs = {0: Run(RECORDER, "unix")}, {0: Run(KINETO, "unix")}
    text = "All steps ran under torch.profiler, which slows the host. The steps of the other recording did not."
    assert compare(ours, profile).problems == Both([], [text]) and compare(profile, ours).problems == Both([text], [])
    assert f"In B: {text}" in explain(compare(ours, profile)).caution
    assert compare(profile, profile).problems == compare(ours, ours).problems == Both([], [])
    # A replay of the profile has the same host pace as the profile.
    replay = training(stretch=1.5)
    replay.runs = {0: Run(REPLAY, replay=ReplayNotes(recording_source=KINETO))}
    assert compare(replay, ours).problems == Both([text], []) and compare(profile, replay).problems == Both([], [])
    ours.steps.kind[:] = StepKind.PROFILED
    assert compare(ours, profile).problems == Both([], [])


# --- recordings without some or all GPU work


def test_equal_step_times_do_not_pass_if_kernels_are_missing() -> None:
    """GIVEN two recordings of one script WHEN one of them lost a part of the kernels THEN the program is the same, but the
    times are not judged. The launch calls of the lost kernels are recorded."""
    whole, trace = training(steps=4), training(steps=4)
    lost = np.flatnonzero(trace.device.is_work)[3::8]
    kept = np.setdiff1d(np.arange(len(trace.device)), lost)
    trace.device, trace.problems = trace.device.take(kept), {"lost-kernel": len(lost)}
    found = compare(whole, trace)
    assert (found.verdict.same, found.within_tolerance, found.gpu_busy.error) == (True, None, None)
    said = verdict_sentences(found)[0][0]
    assert said == (
        "NOT JUDGED: step time differs by 0.0 %, but GPU time cannot be compared: kernels are missing from the recording (B)."
    )


@pytest.mark.parametrize("stretch, within", [(0.5, None), (2.0, False)])
def test_if_kernels_are_missing_steps_may_be_longer_but_not_shorter(stretch: float, within: bool | None) -> None:
    """GIVEN a second trace that lost an eighth of its kernels WHEN its steps are shorter THEN the missing kernels may be the
    reason, so the times are not judged. WHEN the steps of the second trace are longer THEN the comparison fails."""
    whole, trace = training(steps=4), training(steps=4, stretch=stretch)
    lost = np.flatnonzero(trace.device.is_work)[3::8]
    kept = np.setdiff1d(np.arange(len(trace.device)), lost)
    trace.device, trace.problems = trace.device.take(kept), {"lost-kernel": len(lost)}
    found = compare(whole, trace)
    assert (found.verdict.same, found.within_tolerance) == (True, within)
    assert verdict_sentences(found)[0][0].startswith("NOT JUDGED" if within is None else "FAIL")
    assert compare(trace, whole).within_tolerance is within


def test_the_gpu_busy_time_is_the_time_of_the_rank_with_the_most_gpu_work() -> None:
    """GIVEN two ranks whose kernels take 2 ms and 5 ms in each step THEN the GPU busy time of a step is 5 ms."""
    steps = [(0, 10), (10, 20), (0, 10), (10, 20)]
    work = [Work(at + 1, at + 2, at + 2 + (2, 5)[rank], device=rank) for rank in (0, 1) for at in (0, 10)]
    trace = a_trace(steps, work, ranks=[0, 0, 1, 1], devices=[0, 1])
    assert compare(trace, trace).gpu_busy.recorded_median_ns == 5 * MS


def test_phases_are_compared_by_means_if_steps_are_compared_by_means() -> None:
    """GIVEN two traces whose waits for data vary a lot WHEN their step times are compared by means THEN phases are compared by
    means, too. The differences of the phases add up to the difference of the steps."""
    waits_us = [(0, 30, 200, 10, 90, 0, 150, 60, 20, 5), (400, 30, 0, 250, 10, 330, 0, 160, 20, 5)]
    first, second = (training(steps=10, jitter_us=jitter_us) for jitter_us in waits_us)
    result = compare(first, second)
    assert result.steps.has_means and result.steps.recorded_mean_ns is not None and result.steps.replayed_mean_ns is not None
    assert result.steps.replayed_mean_ns - result.steps.recorded_mean_ns == (1205 - 565) * 100
    phases = result.phases.values()
    assert sum(of.recorded_median_ns for of in phases) == pytest.approx(result.steps.recorded_mean_ns, abs=10)
    assert sum(of.replayed_median_ns for of in phases) == pytest.approx(result.steps.replayed_mean_ns, abs=10)


def test_communication_and_compiled_code_are_compared_if_only_one_trace_has_them() -> None:
    alone, communicating = training(), training()
    communicating.device.name[:5] = communicating.strings.add("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    for first, second in ((alone, communicating), (communicating, alone)):
        both = compare(first, second).communication
        assert both is not None and [of is not None for of in both] == [one is communicating for one in (first, second)]
    assert compare(alone, alone).communication is None and compare(alone, alone).compiled is None
    # One trace has compiled code without CUDA graphs, and the other has a CUDA graph of eager code.
    compiled = compiled_recording()
    assert compare(compiled, compiled).compiled is not None
    eager, graph = recording(("aten::relu", "relu_kernel")), recording(("aten::relu", "relu_kernel"), graph=("a", "b"))
    both_graphs = compare(eager, graph).compiled
    assert both_graphs is not None and [len(of.graphs) for of in both_graphs] == [0, 1]


def test_a_trace_without_phases_is_compared_by_its_ops() -> None:
    bare = training()
    bare.phases = bare.phases.take([])
    for result in (compare(training(), bare), compare(bare, training())):
        kernels, ops = result.changes.kernels, result.changes.ops
        assert result.verdict.same and not (kernels.added or kernels.gone or ops.added or ops.gone)


@pytest.mark.parametrize(
    ("long", "long_ms", "judged", "error"),
    [
        ([0, 4], 12, "rarer_steps", 0.2),
        ([0, 4], 10.4, "steps", 0.04),  # within the tolerance of 5 %
        ([4], 12, "steps", None),  # A single step is not compared.
    ],
)
def test_steps_with_different_kernels_are_compared_separately(
    long: list[int], long_ms: float, judged: str, error: float | None
) -> None:
    """GIVEN two traces whose median step takes 2 ms WHEN two steps of each call another kernel, and take 10 ms in one trace and
    12 ms in the other THEN the verdict is a difference of 20 %."""
    apart = compare(with_long_steps([0, 4], 10), with_long_steps(long, long_ms))
    assert apart.judged == judged and apart.steps.error == 0
    differ = "But the steps with other kernels differ: 10.0 ms -> 12.0 ms."
    warning = {0.2: differ, 0.04: ""}.get(error or 0, "But the average step")
    assert slow_steps_sentence(apart).startswith(warning) and bool(slow_steps_sentence(apart)) is bool(warning)
    assert (apart.rarer_steps and apart.rarer_steps.error) == (None if error is None else pytest.approx(error))


@pytest.mark.parametrize(
    ("ours_ms", "theirs_ms", "is_compared", "judged"),
    [
        ([2, 2.4], [2, 2.6], False, "steps"),  # The median times of both kinds differ by less than 15 % in the first trace.
        ([10, 14], [9, 12], True, "steps"),  # -12.5 %, but the step of 12 ms takes longer than the step of 10 ms
        ([10, 14], [15, 16], True, "rarer_steps"),
    ],
)
def test_a_few_different_steps_decide_the_verdict_only_if_all_are_slower(
    ours_ms: list[float], theirs_ms: list[float], is_compared: bool, judged: str
) -> None:
    """GIVEN seven steps of 2 ms and two steps with another kernel WHEN the times of these two steps overlap between two traces
    THEN these two steps do not decide the verdict."""
    ours, theirs = (of_lengths([first, 2, 2, 2, second, 2, 2, 2, 2], [0, 4]) for first, second in (ours_ms, theirs_ms))
    found = compare(ours, theirs)
    assert (found.rarer_steps is not None, found.judged) == (is_compared, judged)


@pytest.mark.parametrize(
    ("others_ms", "judged"), [((1.5, 2, 2, 3, 2, 2, 3), "rarer_steps"), ((1, 2, 3.5, 3, 1, 2, 4), "steps")]
)
def test_two_different_steps_decide_the_verdict_only_if_they_differ_more_than_the_noise(
    others_ms: tuple[float, ...], judged: str
) -> None:
    """GIVEN two steps with another kernel that take 29 % longer in one trace WHEN the noise floor of all steps is 25 % THEN the
    two steps decide the verdict. If the noise floor is 33 %, they do not decide it."""
    a, b, c, *rest = others_ms
    ours, theirs = (of_lengths([long, a, b, c, long, *rest], [0, 4]) for long in (12, 15.5))
    assert compare(ours, theirs).judged == judged
