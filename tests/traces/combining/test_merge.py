"""Tests that ranks are merged into one trace, and that a profile is merged into a recording."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.handmade import START_NS, US, data_parallel, training
from tests.traces.sound_traces import differences, small_trace, traces
from traces.combining.merge import NO_KERNELS, merge_ranks, with_profile
from traces.figures.measure import busy_ns, launch_phases, phase_times, work_rows
from traces.figures.summary import summarize
from traces.format.trace_file import load, save
from traces.kineto import read_kineto
from traces.model.invariants import REFERENCES, column_at, fault
from traces.model.machine import DeviceProperties
from traces.model.run import RECORDER, Distributed, LoaderSettings, Run
from traces.model.trace import (
    NONE,
    TABLES,
    Batches,
    Collectives,
    Device,
    DeviceSpans,
    HostKind,
    HostSpans,
    Origin,
    Parts,
    Phases,
    StepKind,
    Steps,
    Thread,
    Trace,
    Values,
)


def said(trace: Trace, table: str, row: int) -> dict[str, Any]:
    """Return a row with the referenced values instead of their numbers, so that rows of two traces can be compared."""
    told: dict[str, Any] = {}
    for column in TABLES[table].DTYPES:
        where, value = f"{table}.{column}", getattr(getattr(trace, table), column)[row]
        target = REFERENCES.get(where)
        if target is None:
            told[column] = repr(value)
        elif value == NONE:
            told[column] = None
        elif target == "strings":
            told[column] = trace.strings[int(value)]
        elif target in ("threads", "devices"):
            told[column] = getattr(trace, target)[int(value)]
        elif target != "host" or table != "host":  # a parent may be any row, also a later row
            told[column] = said(trace, target, int(value))
    return told


@given(recordings=st.lists(traces(), min_size=1, max_size=3))
def test_a_merged_trace_contains_all_rows_of_all_ranks_unchanged(recordings: list[Trace]) -> None:
    ranks = list(range(3, 3 + len(recordings)))
    merged = merge_ranks(recordings, ranks)
    assert fault(merged) is None and {device.rank for device in merged.devices} == set(ranks)
    for table in TABLES:
        expected = []
        for rank, recording in zip(ranks, recordings, strict=True):
            alone = merge_ranks([recording], [rank])
            expected += [said(alone, table, row) for row in range(len(getattr(alone, table)))]
        found = [said(merged, table, row) for row in range(len(getattr(merged, table)))]
        for rows in (expected, found):
            for row in rows:
                row.pop("read", None)  # reads are numbered across all ranks
        assert sorted(map(repr, found)) == sorted(map(repr, expected)), table


def test_merging_keeps_provenance_per_rank_unless_it_is_equal_for_all_ranks(tmp_path: Path) -> None:
    # GIVEN the recordings of two processes, which have different strings, threads and reads
    first, second = small_trace(), small_trace()
    second.strings = type(second.strings)(["x", *second.strings.texts])
    for where, target in REFERENCES.items():
        if target == "strings":
            column = column_at(second, where)
            column[column != NONE] += 1
    first.runs = {0: Run(loaders=(LoaderSettings(workers=2),))}
    second.runs = {1: Run(loaders=(LoaderSettings(workers=4),), host_scale={"forward": 0.5})}
    first.provenance["launch"] = "python"
    second.provenance |= {"launch": "torchrun", "master": True}
    second.lacks = ["values"]

    merged = merge_ranks([second, first])

    assert merged.ranks == [0, 1] and merged.steps.rank.tolist() == [0, 1, 0, 1]
    assert merged.provenance["ranks"] == {
        "0": {},
        "1": {"launch": "torchrun", "master": True},
    }
    assert merged.runs == first.runs | second.runs
    assert merged.problems == {"clipped-spans": 4} and merged.lacks == ["memory addresses", "values"]
    assert merged.strings.texts == [*first.strings.texts, "x"] and len(set(merged.values.read.tolist())) == 2
    assert [merged.strings[i] for i in merged.phases.name] == ["forward"] * 4
    assert (np.diff(merged.steps.start_ns) >= 0).all() and (np.diff(merged.phases.step) >= 0).all()
    save(merged, tmp_path / "t.msgpack")
    assert differences(load(tmp_path / "t.msgpack"), merged) == []


@pytest.mark.parametrize(
    ("told", "numbers", "twice"),
    [([1, 0], [0, 1], 0), ([None, None], [0, 1], 0), ([0, 0], [0, 1], 1), ([1, None], [0, 1], 0), ([7, 1 << 40], [0, 7], 0)],
)
def test_merging_gives_free_numbers_to_recordings_with_unknown_or_duplicate_ranks(
    told: list[Any], numbers: list[int], twice: int
) -> None:
    recordings = [replace(small_trace(), runs={} if rank is None else {rank: Run()}) for rank in told]
    merged = merge_ranks(recordings)
    assert merged.ranks == numbers and merged.problems.get("rank-told-twice", 0) == twice
    assert len(merged.steps) == 4


def test_merging_an_empty_list_of_recordings_raises_an_error() -> None:
    with pytest.raises(ValueError, match="no recordings to merge"):
        merge_ranks([])


def made(starts_ns: list[int], durations_ns: list[int], kinds: list[StepKind], first: int = 0, **shares: float) -> Trace:
    """Return a trace as the recorder writes it without a profiler.

    A step consists half of a forward pass and half of a backward pass, unless `shares` contains other phases.
    """
    shares = shares or {"forward": 0.5, "backward": 0.5}
    trace = Trace(
        grain="phase",
        devices=[Device(0, 0, "", 32 << 30, DeviceProperties(major=7))],
        threads=[Thread(0, 1, "python", "main")],
        runs={0: Run(RECORDER, "unix")},
        provenance={"argv": ["train.py"]},
        lacks=["kernels", "host ops"],
    )
    rows = range(len(starts_ns))
    trace.steps = Steps.of(
        rank=[0] * len(rows), number=[first + row for row in rows], start_ns=starts_ns, duration_ns=durations_ns, kind=kinds
    )
    table: dict[str, list[int]] = {"step": [], "name": [], "start_ns": [], "duration_ns": []}
    for row in rows:
        at_ns = starts_ns[row]
        for name, share in shares.items():
            told = (row, trace.strings.add(name), at_ns, round(durations_ns[row] * share))
            for column, value in zip(table, told, strict=True):
                table[column].append(value)
            at_ns += table["duration_ns"][-1]
    trace.phases = Phases.of(**table, origin=[Origin.MEASURED] * len(table["step"]))
    op, dtype = trace.strings.add("aten::item"), trace.strings.add("float32")
    trace.values = Values.of(
        rank=[0] * len(rows), step=rows, read=rows, op=[op] * len(rows), dtype=[dtype] * len(rows), value=list(rows)
    )
    return trace


def profile_of(recording: Trace, rows: list[int]) -> Trace:
    """Return a profile of the given steps, with the phases of the recorder."""
    phases = recording.phases.take(np.isin(recording.phases.step, rows))
    phases.step = np.searchsorted(rows, phases.step).astype("i4")
    return Trace(steps=recording.steps.take(rows), phases=phases, strings=recording.strings, runs={0: Run(clock="recording")})


def events_on_main(trace: Trace, name: str, starts_ns: list[int]) -> HostSpans:
    kind = HostKind.RUNTIME if name.startswith("cuda") else HostKind.OP
    each = {"name": trace.strings.add(name), "duration_ns": 5, "thread": 0, "kind": kind}
    return HostSpans.of(start_ns=starts_ns, **{column: [value] * len(starts_ns) for column, value in each.items()})


def around(profile: Trace, before: int = 3, after: int = 2, slower: float = 1.25) -> tuple[Trace, list[int]]:
    """Return a recording whose middle steps are those of `profile`, and whose other steps are faster by the factor `slower`."""
    theirs = profile.steps
    usual = round(float(np.median(theirs.duration_ns)) / slower)
    starts = [int(theirs.start_ns[0]) - usual * (before - row) for row in range(before)] + theirs.start_ns.tolist()
    starts += [int(theirs.end_ns[-1]) + usual * row for row in range(after)]
    durations = [usual] * before + theirs.duration_ns.tolist() + [usual] * after
    kinds = [StepKind.WARMUP] + [StepKind.STEADY] * (before - 1) + [StepKind.PROFILED] * len(theirs) + [StepKind.STEADY] * after
    recording = made(starts, durations, kinds, first=100)
    return recording, list(range(100 + before, 100 + before + len(theirs)))


def test_merging_a_profile_replaces_the_profiled_steps_of_the_recording(shared_traces: Path, tmp_path: Path) -> None:
    profile = read_kineto(shared_traces / "v100_resnet50_workers0.json.gz")
    recording, numbers = around(profile)

    trace = with_profile(recording, profile, numbers)

    # Two clean steps ran before the profile, and two ran after it.
    assert fault(trace) is None and trace.grain == "kernel"
    assert trace.problems == {**profile.problems, "clean-steps-after-profile": 2}
    assert trace.steps.number.tolist() == list(range(100, 111))
    assert trace.steps.kind.tolist() == recording.steps.kind.tolist()
    rows = np.flatnonzero(trace.steps.kind == StepKind.PROFILED)
    assert trace.steps.start_ns[rows].tolist() == profile.steps.start_ns.tolist()
    assert [value for value in trace.values.value] == [float(row) for row in trace.values.step]
    # The GPU work, its launches and its phases come from the profile.
    assert busy_ns(trace) == busy_ns(profile) and len(trace.memory) == len(profile.memory)
    assert summarize(trace).ops == summarize(profile).ops
    assert summarize(trace).kernels == summarize(profile).kernels
    for name, times in phase_times(profile).items():
        assert phase_times(trace)[name].host_ns[rows].tolist() == times.host_ns.tolist()
    theirs, ours = launch_phases(profile), launch_phases(trace)
    work = work_rows(profile)
    assert [profile.strings[profile.phases.name[i]] for i in theirs[work]] == [
        trace.strings[trace.phases.name[i]] for i in ours[work]
    ]
    # Recording and profile have one device and one main thread in common.
    assert [device.name for device in trace.devices][:1] == ["Tesla V100-DGXS-32GB"]
    assert trace.devices[0].properties.major == 7 and trace.devices[0].properties.multi_processor_count == 80
    assert [thread.role for thread in trace.threads].count("main") == 1 and len(trace.threads) == len(profile.threads)
    assert trace.provenance["argv"] == ["train.py"] and trace.provenance["profile"]["era"] == "E1"
    clean = trace.run_of(0).clean
    assert clean is not None and clean.steps == 4 and clean.slowdown == pytest.approx(1.25)
    # Recorder and profile name different phases. The phases before the backward pass therefore have one common factor, and
    # the later phases have another. The earlier phases waited for the GPU, but never for all of its work.
    scale = trace.run_of(0).host_scale
    assert set(scale) == set(phase_times(profile)) - {"loader"}
    assert scale["forward"] == scale["h2d"] == scale["loss"] == scale["zero_grad"] == pytest.approx(1.4179, abs=1e-4)
    assert scale["backward"] == scale["optimizer"] == pytest.approx(1.3125, abs=1e-4)
    assert "kernels" not in trace.lacks and "values" not in trace.lacks and "call stacks" not in trace.lacks
    save(trace, tmp_path / "t.msgpack")
    assert differences(load(tmp_path / "t.msgpack"), trace) == []


def test_a_profile_with_another_clock_is_aligned_at_the_starts_of_its_steps() -> None:
    profile = training(steps=3)
    recording, numbers = around(profile)
    for name, kind in TABLES.items():
        for column in {"start_ns", "time_ns", "device_start_ns", "device_end_ns"} & kind.DTYPES.keys():
            times = getattr(getattr(profile, name), column)
            times[times != NONE] -= START_NS - 7
    profile.runs = {0: Run(clock="recording")}

    trace = with_profile(recording, profile, numbers)

    expected = with_profile(recording, training(steps=3), numbers)
    for table in ("steps", "phases", "host", "device", "memory"):
        assert getattr(trace, table).columns().keys() == getattr(expected, table).columns().keys()
        for column, values in getattr(trace, table).columns().items():
            assert values.tolist() == getattr(getattr(expected, table), column).tolist(), (table, column)


def test_an_unfinished_step_at_the_end_of_the_profile_is_not_reported_as_a_problem() -> None:
    """GIVEN a profile of four steps WHEN the script did not finish the last step THEN three steps have kernels, and no problem
    is reported."""
    recording, numbers = around(training(steps=3))
    trace = with_profile(recording, training(steps=4), numbers)
    assert "profile-steps-missing-or-extra" not in trace.problems and (trace.steps.kind == StepKind.PROFILED).sum() == 3


def test_steps_that_are_missing_from_the_profile_keep_their_recorded_times() -> None:
    whole = training(steps=4)
    recording, numbers = around(whole)
    cut = training(steps=4)
    cut.steps = cut.steps.take([1, 2, 3])
    cut.phases = cut.phases.take(cut.phases.step > 0)
    cut.phases.step -= 1

    trace = with_profile(recording, cut, numbers)

    assert fault(trace) is None and trace.problems["profile-steps-missing-or-extra"] == 1
    per_step = [int((trace.phases.step == row).sum()) for row in range(len(trace.steps))]
    assert per_step == [2, 2, 2, 2, 6, 6, 6, 2, 2]


def test_merging_a_profile_without_gpu_work_leaves_a_recording_of_phase_times() -> None:
    profile = training(steps=2)
    profile.device = DeviceSpans.empty()
    profile.runs = {0: Run(distributed=Distributed(world_size=2))}
    profile.lacks = ["GPU work", "values", "device properties", "1 of 2 ranks"]
    recording, numbers = around(profile)

    trace = with_profile(recording, profile, numbers)

    assert trace.grain == "phase" and trace.lacks == [NO_KERNELS] and len(trace.host) == len(profile.host)


@pytest.mark.parametrize("numbers", [[103, 104], [900], []])
def test_a_profile_that_contains_no_recorded_step_is_ignored_and_counted(numbers: list[int]) -> None:
    recording, _ = around(training(steps=2))
    empty = Trace() if numbers != [900] else training(steps=2)

    trace = with_profile(recording, empty, numbers)

    assert trace.problems == {"profile-without-steps": 1} and recording.problems == {}
    assert differences(replace(trace, problems={}), recording) == []


def test_a_profile_truncated_at_any_byte_can_be_merged(shared_traces: Path) -> None:
    for path in sorted((shared_traces / "broken").iterdir()):
        try:
            profile = read_kineto(path)
        except Exception as error:
            assert type(error).__name__ == "TraceImportError"
            continue
        kinds = [StepKind.STEADY, StepKind.PROFILED, StepKind.PROFILED, StepKind.STEADY]
        recording = made([0, 100, 200, 300], [100] * 4, kinds)
        trace = with_profile(recording, profile, [1, 2])
        assert fault(trace) is None and sorted(trace.steps.number.tolist()) == [0, 1, 2, 3]
        assert sorted(trace.values.value) == [0, 1, 2, 3]


def test_merging_a_profile_does_not_duplicate_stages_and_collectives() -> None:
    # GIVEN a recording with parts and collectives in every step
    recording = data_parallel(steps=6)
    numbers = recording.steps.number[[2, 5]].tolist()
    profile = training(steps=6)
    profile.steps, kept = profile.steps.take([2, 5]), np.isin(profile.phases.step, [2, 5])
    profile.phases = profile.phases.take(kept)
    profile.phases.step = np.where(profile.phases.step == 2, 0, 1).astype("i4")
    before = with_profile(recording, profile, numbers)

    # THEN all parts and collectives stay if the profile has none, and each part is in the phase around it
    assert len(before.parts) == len(recording.parts) and len(before.collectives) == 6
    assert {before.strings[before.phases.name[phase]] for phase in before.parts.phase} == {"forward"}
    of_step = before.phases.step[before.parts.phase]
    assert of_step.tolist() == [step for step in range(6) for _ in range(5)]

    # WHEN the profile has a part and a collective in its second step
    name = profile.strings.add("gather")
    start_ns = int(profile.steps.start_ns[1]) + 47 * US
    row = int(np.flatnonzero((profile.phases.step == 1) & (profile.phases.start_ns <= start_ns))[-1])
    profile.parts = Parts.of(phase=[min(row, 8)], name=[name], start_ns=[start_ns], duration_ns=[US], device=[0])
    profile.collectives = Collectives.of(rank=[0], name=[name], bytes=[64], start_ns=[start_ns], duration_ns=[3 * US])

    after = with_profile(recording, profile, numbers)

    # THEN the parts of this step and the collectives of both profiled steps come from the profile
    assert np.bincount(after.phases.step[after.parts.phase]).tolist() == [5, 5, 5, 5, 5, 1]
    assert len(after.collectives) == 5 and fault(after) is None

    # WHEN the profiler did not record the size of a collective THEN the row of the recorder stays
    start_ns = int(recording.collectives.start_ns[5])
    profile.collectives = Collectives.of(rank=[0, 0], name=[name] * 2, start_ns=[start_ns, 1], duration_ns=[3 * US] * 2)
    again = with_profile(recording, profile, numbers)
    assert len(again.collectives) == 6 + 1 and start_ns in again.collectives.start_ns[again.collectives.bytes > 0].tolist()


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=6),
    st.lists(st.integers(1, 10**9), min_size=1, max_size=6).filter(lambda slow: len(slow) % 2),
)
def test_the_host_scale_is_the_ratio_of_unprofiled_to_profiled_median_times(clean: list[int], slow: list[int]) -> None:
    durations = [2 * d for d in clean + slow]
    starts = [int(t) for t in np.cumsum([0, *durations[:-1]])]
    kinds = [StepKind.STEADY] * len(clean) + [StepKind.PROFILED] * len(slow)
    recording = made(starts, durations, kinds)
    profiled = list(range(len(clean), len(durations)))
    trace = with_profile(recording, profile_of(recording, profiled), profiled)
    ratio = float(np.median(clean) / np.median(slow))
    compared = trace.run_of(0).clean
    rounding = 1 / float(np.median(slow))  # the start and the end of a phase are whole nanoseconds
    assert trace.run_of(0).host_scale["forward"] == pytest.approx(ratio, rel=1e-6 + rounding)
    assert compared is not None and compared.slowdown == pytest.approx(1 / ratio)


def test_the_profiler_slowdown_compares_steps_with_equally_many_optimizer_steps() -> None:
    """GIVEN alternating long and short steps of two trainers WHEN the profile contains more long steps THEN the host does not
    count as slowed down."""
    long = [1, 0, 1, 0, 1]
    recording = made([0, 300, 400, 700, 800], [300, 100, 300, 100, 300], [StepKind.STEADY] * 2 + [StepKind.PROFILED] * 3)
    steps, backward = recording.phases.step, recording.phases.name == recording.strings.find("backward")
    recording.phases.name[~backward & np.isin(steps, np.flatnonzero(long))] = recording.strings.add("optimizer")
    run = with_profile(recording, profile_of(recording, [2, 3, 4]), [2, 3, 4]).run_of(0)
    assert run.host_scale == {"backward": 1.0, "optimizer": 1.0} and run.clean is not None
    assert (run.clean.steps, run.clean.step_median_ns, run.clean.slowdown) == (2, 300, 1.0)


def test_profiler_overhead_does_not_scale_the_loader_phase() -> None:
    names = ("loader", *(name for name in ("h2d", "forward", "loss", "zero_grad", "backward", "optimizer", "other")))
    shares = {name: 1 / len(names) for name in names}
    recording = made([0, 1000], [800, 1600], [StepKind.STEADY, StepKind.PROFILED], 0, **shares)
    scale = with_profile(recording, profile_of(recording, [1]), [1]).run_of(0).host_scale
    assert scale == pytest.approx(dict.fromkeys(names[1:], 0.5))


@pytest.mark.parametrize(
    ("seen", "scale"),
    [
        (0.1, {"other": 0.5, "forward": 0.5}), (0.44, {"other": 0.5, "forward": 0.5}),
        (0.45, {"other": 2.75, "forward": 0.25}), (0.6, {"other": 2.0, "forward": 1 / 3}),
    ],
)  # fmt: skip
def test_a_phase_that_begins_earlier_in_the_profile_is_scaled_with_the_previous_phase(
    seen: float, scale: dict[str, float]
) -> None:
    """GIVEN a forward pass that takes nine tenths of a profiled step WHEN the recorder saw only its last tenth, because no
    module was called THEN both phases have the factor 0.5. The profiled step takes twice as long as a clean step."""
    kinds = [StepKind.STEADY, StepKind.PROFILED]
    recording = made([0, 1000], [800, 1600], kinds, 0, other=1 - seen, forward=seen)
    profile = made([1000], [1600], [StepKind.STEADY], 0, other=0.1, forward=0.9)
    assert with_profile(recording, profile, [1]).run_of(0).host_scale == pytest.approx(scale)


def test_a_profiled_forward_pass_is_compared_with_the_phase_that_the_recorder_recorded() -> None:
    """GIVEN a forward pass that the recorder recorded as the phase "other" WHEN the profile contains a short phase "other"
    before `zero_grad` THEN all phases have the factor 0.5. The profiled step takes twice as long as a clean step."""
    recording = made(
        [0, 1000], [800, 1600], [StepKind.STEADY, StepKind.PROFILED], 0, zero_grad=0.1, other=0.7, forward=0.1, backward=0.1
    )
    profile = made([1000], [1600], [StepKind.STEADY], 0, other=0.1, zero_grad=0.1, forward=0.7, backward=0.1)
    scale = with_profile(recording, profile, [1]).run_of(0).host_scale
    assert scale == pytest.approx(dict.fromkeys(("other", "zero_grad", "forward", "backward"), 0.5))


def test_a_phase_is_compared_separately_if_it_does_not_contain_the_missing_time() -> None:
    """GIVEN a forward pass that the recorder saw as a part of `h2d` WHEN `zero_grad` is longer in the recording, but by less
    than the missing time THEN the 680 ns of `h2d` in clean steps are compared with its 800 ns in the profile."""
    shares = {"h2d": 0.85, "zero_grad": 0.0375, "forward": 0.0125, "backward": 0.1}
    recording = made([0, 1000], [800, 1600], [StepKind.STEADY, StepKind.PROFILED], 0, **shares)
    profile = made([1000], [1600], [StepKind.STEADY], 0, h2d=0.5, zero_grad=0.00625, forward=0.39375, backward=0.1)
    assert with_profile(recording, profile, [1]).run_of(0).host_scale["h2d"] == pytest.approx(0.85)


def test_evaluation_steps_do_not_affect_which_training_phases_are_scaled_together() -> None:
    """GIVEN a long evaluation step with the same phases in recording and profile WHEN the forward pass of a training step
    begins earlier in the profile THEN the phases of the training step are scaled together."""
    kinds = [StepKind.STEADY, StepKind.PROFILED, StepKind.EVALUATION]
    recording, profile = (made([0, 1000, 2600], [800, 1600, 160_000], kinds, 0, other=0.7, forward=0.3) for _ in range(2))
    lasts_ns = profile.phases.duration_ns
    lasts_ns[[2, 3]] = 160, 1440
    profile.phases.start_ns[3] = 1160
    scale = with_profile(recording, profile_of(profile, [1, 2]), [1, 2]).run_of(0).host_scale
    assert scale == pytest.approx({"other": 0.5, "forward": 0.5})


def test_a_profiled_evaluation_step_stays_an_evaluation_step() -> None:
    """A replay of profiled inference uses its steps as evaluation steps, not as training steps."""
    recording = made([0, 1000], [800, 900], [StepKind.EVALUATION, StepKind.EVALUATION], 0)
    profile = made([1000], [900], [StepKind.STEADY], 0)
    merged = with_profile(recording, profile, [1])
    assert merged.steps.kind.tolist() == [StepKind.EVALUATION] * 2


def test_a_profiled_warm_up_step_stays_a_warm_up_step() -> None:
    """GIVEN a profile of an evaluation that ends with the first training step, which is slow THEN this step stays a warm-up
    step."""
    recording = made([0, 1000], [800, 900], [StepKind.EVALUATION, StepKind.WARMUP], 0)
    profile = made([0, 1000], [800, 900], [StepKind.STEADY] * 2, 0)
    merged = with_profile(recording, profile, [0, 1])
    assert merged.steps.kind.tolist() == [StepKind.EVALUATION, StepKind.WARMUP]


def test_the_profiler_slowdown_comes_from_training_steps_if_there_are_any() -> None:
    evaluated, trained, clean = StepKind.EVALUATION, StepKind.PROFILED, StepKind.STEADY
    recording = made([0, 100, 300, 600, 1600], [100, 200, 300, 1000, 2000], [evaluated, evaluated, evaluated, clean, trained])
    both = with_profile(recording, profile_of(recording, [2, 4]), [2, 4]).run_of(0).clean
    assert both is not None and (both.steps, both.step_median_ns, both.profiled_step_median_ns) == (1, 1000, 2000)
    inference = with_profile(recording, profile_of(recording, [2]), [2]).run_of(0)
    assert inference.clean is not None and inference.host_scale["forward"] == 0.5
    assert (inference.clean.steps, inference.clean.step_median_ns, inference.clean.profiled_step_median_ns) == (2, 150, 300)


def test_ops_before_a_wait_for_data_do_not_count_as_data_loading() -> None:
    """GIVEN a profile with ops before the loader, such as an average of the weights WHEN the recorder counted these ops as
    loading THEN the merged clean steps show them before the loader, too."""
    kinds = [StepKind.STEADY, StepKind.STEADY, StepKind.PROFILED, StepKind.STEADY, StepKind.EVALUATION]
    recording = made([0, 1000, 2000, 3000, 4000], [1000] * 5, kinds, 0, loader=0.5, backward=0.5)
    recording.phases.device_start_ns = recording.phases.start_ns + 10
    recording.phases.device_end_ns = recording.phases.end_ns + 10
    starts_ns = [100, 1000, 2200, 3999, 4100]  # the wait of the fourth step is in another phase
    zeros = [0] * len(starts_ns)
    recording.batches = Batches.of(rank=zeros, loader=zeros, kind=zeros, start_ns=starts_ns, duration_ns=[50] * len(starts_ns))
    profile = made([2000], [1000], [StepKind.STEADY], 0, forward=0.15, other=0.05, loader=0.3, backward=0.5)
    profile.phases.device_end_ns = profile.phases.end_ns + 20
    profile.phases.device_end_ns[1] = NONE

    trace = with_profile(recording, profile, [2])

    told = [
        [
            (trace.strings[name], start_ns, took_ns)
            for name, start_ns, took_ns in np.stack([of.name, of.start_ns, of.duration_ns], axis=1).tolist()
        ]
        for of in (trace.phases.take(trace.phases.step == step) for step in range(5))
    ]
    assert told[0] == [("forward", 0, 75), ("other", 75, 25), ("loader", 100, 400), ("backward", 500, 500)]
    assert told[1] == [("loader", 1000, 500), ("backward", 1500, 500)]
    assert [name for name, *_ in told[2]] == ["forward", "other", "loader", "backward"]
    assert [[name for name, *_ in of] for of in told[3:]] == [["loader", "backward"]] * 2
    assert trace.phases.device_start_ns[:4].tolist() == [10, 95, NONE, 510]
    assert trace.phases.device_end_ns[:4].tolist() == [95, NONE, 510, 1010]
    assert fault(trace) is None and phase_times(trace)["loader"].host_ns.tolist() == [400, 500, 300, 500, 500]
    for step in range(5):
        assert sum(took_ns for *_, took_ns in told[step]) == 1000


def test_merging_ranks_keeps_reads_of_tensor_values_separate() -> None:
    one, two = made([0], [800], [StepKind.STEADY]), made([0], [800], [StepKind.STEADY])
    one.values = Values.of(step=[0] * 3, read=[0, 0, 4], value=[1, 2, 3])
    two.values = Values.of(step=[0] * 3, read=[1, 2, 2], value=[4, 5, 6])
    assert merge_ranks([one, two]).values.read.tolist() == [0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("recorded", "profiled", "merged"),
    [
        (Thread(0, 2, "", "other"), Thread(0, 2, "autograd", "backward"), Thread(0, 2, "autograd", "backward")),
        (Thread(0, 2, "mine", "other"), Thread(0, 2, "autograd", "backward"), Thread(0, 2, "mine", "backward")),
        (Thread(0, 2, "mine", "backward"), Thread(0, 2, "autograd", "other"), Thread(0, 2, "mine", "backward")),
    ],
)
def test_a_profile_names_threads_that_the_recorder_does_not_know(recorded: Thread, profiled: Thread, merged: Thread) -> None:
    recording = made([0, 1000], [800, 900], [StepKind.STEADY, StepKind.PROFILED])
    profile = profile_of(recording, [1])
    recording.threads = [*recording.threads, recorded]
    profile.threads = [Thread(0, 77, "python", "main"), profiled, Thread(0, 3, "new", "other")]
    found = with_profile(recording, profile, [1]).threads
    assert found == [Thread(0, 1, "python", "main"), merged, Thread(0, 3, "new", "other")]


def test_a_step_with_a_captured_cuda_graph_keeps_the_phases_of_the_recorder() -> None:
    """GIVEN a profile WHEN its second step launches a CUDA graph outside an op THEN only this step keeps the phases of the
    recorder."""
    profile = training(steps=3)
    host, strings = profile.host, profile.strings
    (launch, *_) = np.flatnonzero((host.name == strings.find("cudaLaunchKernel")) & (host.start_ns > profile.steps.start_ns[1]))
    host.name[launch], host.parent[launch] = strings.add("cudaGraphLaunch"), NONE
    recording, numbers = around(profile)

    trace = with_profile(recording, profile, numbers)

    assert fault(trace) is None
    rows = [np.flatnonzero(trace.phases.step == number - 100) for number in numbers]
    names = [[trace.strings[name] for name in trace.phases.name[of]] for of in rows]
    assert names[1] == ["forward", "backward"] and names[0] == names[2] and len(names[0]) == 6
    assert trace.phases.duration_ns[rows[1]].sum() == trace.steps.duration_ns[numbers[1] - 100]


def test_a_step_without_a_profiled_forward_pass_keeps_the_recorded_phases() -> None:
    """GIVEN a recorder that saw a forward pass in the second step WHEN the profile of this step shows no forward pass THEN only
    this step keeps the phases of the recorder."""
    profile = training(steps=3)
    phases, strings = profile.phases, profile.strings
    phases.name[(phases.step == 1) & (phases.name == strings.find("forward"))] = strings.add("other")
    recording, numbers = around(profile)

    trace = with_profile(recording, profile, numbers)

    assert fault(trace) is None
    names = [[trace.strings[name] for name in trace.phases.name[trace.phases.step == number - 100]] for number in numbers]
    assert names[1] == ["forward", "backward"] and names[0] == names[2] and len(names[0]) == 6


def test_phases_are_scaled_separately_in_steps_that_keep_the_recorders_phases() -> None:
    """GIVEN a profiled step that launches a CUDA graph and therefore keeps the recorder's phases WHEN the profile alone would
    show a longer forward pass THEN each phase has a separate factor: 400 / 600 and 400 / 200."""
    recording = made([0, 1000], [800, 800], [StepKind.STEADY, StepKind.PROFILED], 0, other=0.5, forward=0.5)
    recording.phases.duration_ns[[2, 3]] = 600, 200
    recording.phases.start_ns[3] = 1600
    profile = made([1000], [800], [StepKind.STEADY], 0, other=0.1, forward=0.9)
    profile.host = events_on_main(profile, "cudaGraphLaunch", [1500])

    scale = with_profile(recording, profile, [1]).run_of(0).host_scale

    assert scale == pytest.approx({"other": 2 / 3, "forward": 2.0})


@pytest.mark.parametrize(("event_ns", "lasts_ns"), [(1850, [800, 200]), (1600, [500, 500])])
def test_a_profiled_backward_pass_ends_when_backward_returns(event_ns: int, lasts_ns: list[int]) -> None:
    """GIVEN a profiled step of 1000 ns in which the last autograd event ends after 500 ns WHEN `backward` returns after 800 ns
    THEN the backward pass takes 800 ns, unless the script's thread runs another op between 500 and 800 ns."""
    recording = made([0, 1000], [1000, 1000], [StepKind.STEADY, StepKind.PROFILED], 0, backward=0.8, optimizer=0.2)
    profile = made([1000], [1000], [StepKind.STEADY], 0, backward=0.5, optimizer=0.5)
    profile.host = events_on_main(profile, "aten::add_", [1200, event_ns])

    trace = with_profile(recording, profile, [1])

    assert fault(trace) is None
    assert trace.phases.duration_ns[trace.phases.step == 1].tolist() == lasts_ns
    assert [trace.strings[name] for name in trace.phases.name[trace.phases.step == 1]] == ["backward", "optimizer"]
