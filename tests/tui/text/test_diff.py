"""Tests the text of `trace diff`, which also ends a replay."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.traces.handmade import US, Call, calls, phase_grained, replay_of, training
from tests.tui.goldens import assert_golden
from traces.analyses.launches import LOADED, LongLaunches
from traces.comparison.changed_ops import NameChange
from traces.comparison.compare import compare
from traces.comparison.comparison_figures import Both, Comparison, Evaluation, ValueReads
from traces.compiled.region_figures import CompiledFigures
from traces.figures.bottleneck import PaceLimit
from traces.figures.spread import NOTHING
from traces.format.trace_file import load
from traces.library import find
from traces.model.trace import STEP_MARKS, StepKind, Trace
from tui.text.diff import _differences, diff_text, labels_of, verdict_sentences, warning_sentences


def _text(comparison: Comparison, **options: bool | int) -> str:
    return diff_text(comparison, "v100.msgpack", "other.msgpack", **options)  # type: ignore[arg-type]


def two_recordings() -> Comparison:
    recorded = training(jitter_us=(0, 10, 20, 30, 40), steps=5)
    other = training(loader_us=40, kernel_us=11, steps=7, made=[*calls(32)[:-1], Call("aten::mul", "2,2", 91, "mul_kernel")])
    return compare(recorded, other)


def a_replay() -> Comparison:
    recorded = training()
    missing = [{"op": f"aten::foo{i}", "shapes": "2,2", "count": 3} for i in range(10)]
    notes = {
        "lag_ns_per_step": 350 * US,
        "us_per_op": 12.5,
        "ops_per_step": 684,
        "uncharged_ns": 4 * US,
        "missing": missing,
    }
    replay = replay_of(recorded, 1.01, **notes)  # type: ignore[arg-type]
    replay.memory.allocated_bytes[0] += 512
    return compare(recorded, replay)


def test_the_text_of_diff_for_two_recordings_equals_the_golden_file() -> None:
    assert_golden("diff_recordings", _text(two_recordings()))


def test_diff_shows_the_expected_lines_for_a_recording_and_its_replay() -> None:
    assert_golden("diff_replay", _text(a_replay()))


@pytest.mark.parametrize(("loader_us", "shown"), [(0, False), (20, True)])
def test_the_step_time_without_data_loading_is_shown_if_a_step_waits_for_data(loader_us: int, shown: bool) -> None:
    compared = compare(training(loader_us=loader_us), training(loader_us=0, kernel_us=11))
    assert all(("without data loading" in _text(compared, details=details)) == shown for details in (False, True))
    assert ("without data loading" in repr(compared)) == shown


def test_a_replay_that_loads_data_on_this_machine_has_no_error_of_the_step_time_with_data_loading() -> None:
    """GIVEN a recorded step of 100 us with 20 us of data loading, and a replay of 83.8 us WHEN the step time without data
    loading is judged THEN the table shows the difference of 16.2 us, but no error in percent, which would only show how fast
    this machine loads data."""
    (row,) = [line for line in _text(a_replay()).splitlines() if line.startswith("step time with data loading")]
    assert row.split()[-3:] == ["-16.2", "µs", "-"]


def test_diff_brief_shows_verdict_four_figures_and_caveats() -> None:
    found = a_replay()
    text = diff_text(found, "v100.msgpack", "this replay", details=False, next_step="trace diff a b --details")
    assert_golden("diff_replay_brief", text)
    assert text.splitlines()[0].startswith("PASS: ") and text.endswith("trace diff a b --details")
    assert len(text.splitlines()) <= 24 < len(_text(found).splitlines())  # 24 is the number of lines of a small terminal


def test_a_memory_peak_beyond_the_tolerance_is_mentioned_beside_pass() -> None:
    """GIVEN a replay with the recorded step time and 90 % less memory THEN a sentence after PASS mentions the 90 %."""
    found = a_replay()
    assert not any("Memory is not judged" in sentence for sentence in warning_sentences(found))
    less = replace(found.memory["cuda:0"], recorded_peak_bytes=1000, replayed_peak_bytes=100)
    sentences = warning_sentences(replace(found, memory={"cuda:0": less}))
    assert "Memory is not judged, but differs by -90.0 %." in sentences


def test_diff_names_the_gpus_if_both_traces_used_different_gpus() -> None:
    trace = training(2)
    (gpu,) = trace.devices
    other = replace(trace, devices=[replace(gpu, name="Tesla T4")])
    lines = _text(compare(trace, other)).splitlines()
    assert [line.rpartition(", ")[2] for line in lines if line.startswith(("A  ", "B  "))] == [gpu.name, "Tesla T4"]
    assert gpu.name not in _text(compare(trace, trace))


def test_diff_says_first_that_the_programs_differ() -> None:
    for details in (False, True):
        text = _text(compare(training(batch=32), training(batch=64)), details=details)
        assert text.startswith("NOT the same program: same ops, another batch size: 32 in the first trace, 64 in\nthe second.")
        assert "compare different work: step time differs by 0.0 %, GPU time by 0.0 %" in " ".join(text.split())


def test_a_slow_host_is_named_as_the_reason() -> None:
    recorded = training()
    slow = replay_of(recorded, 1.5, lag_ns_per_step=40 * US)
    assert "This host is 40.0 µs per step slower than the recorded host." in _text(compare(recorded, slow), width=200)
    assert "40.0 µs per step (" in _text(compare(recorded, slow), width=200)
    assert "slower" not in _text(compare(recorded, replay_of(recorded, 1.5, lag_ns_per_step=1 * US)))
    assert "own time" not in _text(compare(recorded, replay_of(recorded, 1.5, lag_ns_per_step=1 * US)))


def test_diff_compares_whole_traces_if_there_are_no_steps() -> None:
    bare = training()
    bare.steps, bare.phases = Trace().steps, Trace().phases
    text = _text(compare(bare, bare))
    assert "per step" not in _text(compare(bare, training(kernel_us=20))) and "Kernels that take longer, in all" in _text(
        compare(bare, training(kernel_us=20))
    )
    assert "Whole traces" in text and "PASS: GPU time" in text


def test_diff_of_empty_traces_says_that_nothing_can_be_compared() -> None:
    text = _text(compare(Trace(), Trace()))
    assert "do not show" in text and "NOT JUDGED" in text


def test_diff_of_traces_with_only_phase_times_says_that_ops_are_unknown() -> None:
    text = _text(compare(phase_grained(), phase_grained(4)))
    assert "it is unknown which ops launched the GPU work" in " ".join(text.split())
    assert "Phases between CUDA events" in text and "GPU busy time, by" not in text


@pytest.mark.parametrize("comparison", [two_recordings(), a_replay()], ids=["recordings", "replay"])
def test_colour_changes_only_colour_codes_and_text_fits_narrow_terminals(comparison: Comparison) -> None:
    for width in (72, 80, 100):
        assert max(map(len, _text(comparison, width=width).splitlines())) <= width
    coloured = _text(comparison, colour=True)
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == _text(comparison)


def test_longer_times_are_red_and_shorter_times_are_blue() -> None:
    recorded = training()
    slower = _text(compare(recorded, training(stretch=1.5)), colour=True)
    assert "\x1b[31mstep time" in slower and "\x1b[34m" not in slower
    faster = _text(compare(recorded, training(stretch=0.5)), colour=True)
    assert "\x1b[34mstep time" in faster


def test_diff_reports_reads_of_values_that_were_not_recorded() -> None:
    comparison = a_replay()
    assert "The script read" not in _text(comparison)
    read = replace(comparison, values=ValueReads(unrecorded_reads=3, computed=False))
    assert "The script read 3 values that were not recorded" in _text(read)


def test_diff_says_that_a_replay_of_phase_times_has_no_kernels() -> None:
    """GIVEN a recording without kernels WHEN its replay took only phase times THEN the report does not mention matched ops."""
    comparison = a_replay()
    shares = dict.fromkeys(comparison.coverage or (), 0.0) | {"phase": 1.0}
    only_phases = replace(comparison, coverage=shares, gpu_busy=replace(comparison.gpu_busy, recorded_median_ns=None))
    said = warning_sentences(only_phases)
    assert any("only phase times, no kernels" in sentence for sentence in said)
    assert not any("matched" in sentence for sentence in said)
    # WHEN a tenth of the GPU time was estimated THEN the shares are listed
    a_tenth = warning_sentences(replace(only_phases, coverage={**shares, "phase": 0.9, "roofline": 0.1}))
    origin = "Origin of the GPU time: 90.0 % recorded time of phases (not of single ops), 10.0 % estimated by a roofline model."
    assert origin in a_tenth


@pytest.mark.parametrize(
    ("exact", "equivalent", "scaled", "said"),
    [
        (0.5, 0.5, 0.0, "100.0 % of the GPU time is matched op by op."),
        (0.4, 0.3, 0.3, "70.0 % of the GPU time is matched op by op; 30.0 % scaled from other shapes (mean error 4.8 %)."),
        (0.5, 0.499, 0.001, "99.9 % of the GPU time is matched op by op; 0.1 % scaled from other shapes (mean error 4.8 %)."),
        (0.999, 0.0, 0.0009, "99.9 % of the GPU time is matched op by op."),
    ],
)
def test_diff_says_how_much_of_the_gpu_time_was_matched(exact: float, equivalent: float, scaled: float, said: str) -> None:
    comparison = a_replay()
    shares = dict.fromkeys(comparison.coverage or (), 0.0) | {"exact": exact, "equivalent": equivalent, "scaled": scaled}
    assert said in warning_sentences(replace(comparison, coverage=shares))


@pytest.mark.parametrize("share", [0.0009, 0.001])
def test_diff_mentions_phases_that_the_script_did_not_run_from_a_share_of_0_1_percent(share: float) -> None:
    comparison = a_replay()
    shares = dict.fromkeys(comparison.coverage or (), 0.0) | {"exact": 1.0, "unmatched": share}
    said = "0.1 % of the GPU time is in recorded phases that the script did not run."
    assert (said in warning_sentences(replace(comparison, coverage=shares))) is (share == 0.001)


@pytest.mark.parametrize(("width", "shown"), [(80, "kernel_abcdefghijkabcdefghijkabcdefghij"), (60, "kernel_abcdefghi…ghij")])
def test_names_of_changed_kernels_use_the_width_that_counts_and_times_leave(width: int, shown: str) -> None:
    """GIVEN two new kernels whose names of 40 characters differ at the end WHEN the text has a width of 80 THEN the table has
    room for 42 characters of a name, because counts and times need 38. With a width of 60, there is room for 22 characters."""
    names = ["kernel_" + "abcdefghijk" * 2 + "abcdefghij" + end for end in "kz"]
    added = [Call("aten::mul", "2,2", 91 + 2 * place, name) for place, name in enumerate(names)]
    text = _text(compare(training(), training(made=[*calls(32), *added])), width=width)
    assert all(re.search(f"^{shown}{end} +0→1", text, re.MULTILINE) for end in "kz"), text


def test_diff_shows_data_parallel_stages_on_the_host_and_on_the_gpu() -> None:
    one, two = (load(find(name)) for name in ("p100-no-cudnn", "p100x2-no-cudnn"))
    host, device = (text.partition("\n\n")[0] for text in _text(compare(one, two)).split("Parts of nn.DataParallel ")[1:])
    for text, gather, replica in ((host, "8.5 ms", "247.3 ms"), (device, "300.0 µs", "255.5 ms")):
        shown = {line.partition("  ")[0]: line.split("  ") for line in text.splitlines()[1:]}
        assert list(shown)[:2] == ["scatter", "replicate"] and len(shown) == 7
        assert gather in map(str.strip, shown["gather"])
        assert replica in map(str.strip, shown["parallel_apply (cuda:1)"])
    assert "Parts of" not in _text(a_replay())


@pytest.mark.parametrize(
    ("evaluation_ns", "noise", "sentence"),
    [
        (106, 0.05, "Evaluation batches are not judged, but differ by +6.0 %."),
        (94, 0.061, "Evaluation batches are not judged, but differ by -6.0 %, which may be noise."),
        (104, 0.0, ""),
    ],
)
def test_evaluation_batches_are_named_if_they_differ_although_the_verdict_is_pass(
    evaluation_ns: int, noise: float, sentence: str
) -> None:
    found = compare(training(steps=5), training(steps=5))
    spread = replace(NOTHING, recorded_median_ns=100, replayed_median_ns=evaluation_ns, average_noise=noise)
    spread = replace(spread, error=evaluation_ns / 100 - 1)
    found = replace(found, evaluation=Evaluation(Both(4, 4), spread, spread))
    assert found.within_tolerance and found.tolerance == 0.05
    assert [of for of in warning_sentences(found) if "Evaluation" in of] == [sentence] * bool(sentence)
    assert not any("Evaluation" in of for of in warning_sentences(replace(found, within_tolerance=False)))


def test_diff_shows_no_evaluation_row_if_all_steps_are_inference_steps() -> None:
    infers = training(steps=1)
    infers.steps.kind[:] = StepKind.EVALUATION
    for other in (infers, training(steps=4)):
        assert "evaluation batch" not in diff_text(compare(infers, other), "a", "b")
    slow_start = training(steps=4, jitter_us=(90_000, 0, 0, 0))
    slow_start.steps.kind[:] = StepKind.EVALUATION
    assert "evaluation batch" not in diff_text(compare(slow_start, slow_start), "a", "b")
    without_steps = replace(infers, lacks=[STEP_MARKS])
    assert "evaluation batch" not in diff_text(compare(slow_start, without_steps), "a", "b")
    both = training(steps=4)
    both.steps.kind[2:] = StepKind.EVALUATION
    both.steps.duration_ns[2:] //= 2
    assert "evaluation batch" in diff_text(compare(both, both), "a", "b")


def test_diff_reports_unknown_gpu_time_if_kernels_are_missing() -> None:
    lost = training(steps=4)
    lost.problems = {"lost-kernel": 4}
    said = diff_text(compare(training(steps=4), lost), "a", "b", details=False, width=200)
    assert "GPU time   " not in said and "unknown (kernels are missing from the recording) in B" in said
    assert "GPU time is missing from at least one trace, so only step time is judged." in said


def test_diff_brief_shows_the_largest_reason_for_a_difference() -> None:
    """GIVEN a loader that takes 60 us longer in B THEN the largest reason is the wait for data."""
    slow = training(steps=4, loader_us=80)
    said = " ".join(diff_text(compare(training(steps=4), slow), "a", "b", details=False).split())
    assert "Largest reason: waiting for data (loader) takes 60.0 µs more: 20.0 µs -> 80.0 µs; on the host." in said
    same = diff_text(compare(training(steps=4), training(steps=4)), "a", "b", details=False)
    assert "Largest reason" not in same


def test_diff_labels_kernels_of_equal_name_with_their_ops() -> None:
    kernels = (("tile_a", "mm"), ("tile_a", "addmm"), ("tile_a", ""), ("relu", "relu"))
    changes = [NameChange(name, 1, 1, 10, 20, op) for name, op in kernels]
    assert labels_of(changes) == ["mm: tile_a", "addmm: tile_a", "tile_a", "relu"]


@pytest.mark.parametrize(("count", "rest"), [(8, ""), (9, "and 1 more")])
def test_at_most_eight_missing_ops_are_listed(count: int, rest: str) -> None:
    missing = [{"op": f"aten::foo{number}", "shapes": "2,2", "count": 3} for number in range(count)]
    recorded = training()
    text = _text(compare(recorded, replay_of(recorded, missing=missing)), details=True)
    assert text.count("aten::foo") == min(count, 8) and re.findall(r"and \d+ more", text) == [rest] * bool(rest)


@pytest.mark.parametrize(
    ("steps", "busy", "text"),
    [
        ((100, 110, 0.1), (50, 40, -0.2), "step time differs by +10.0 %, GPU time by -20.0 %"),
        ((100, 110, 0.1), (0, 40, None), "step time differs by +10.0 %, GPU time 40 ns instead of 0"),
        ((0, 110, None), (50, 40, -0.2), "step time is 110 ns instead of 0, GPU time by -20.0 %"),
        ((100, 110, 0.1), (0, 0, None), "step time differs by +10.0 %"),
        ((100, 110, 0.1), (None, 40, None), "step time differs by +10.0 %"),
    ],
)
def test_diff_shows_no_percentage_if_the_recorded_time_is_zero(
    steps: tuple[object, ...], busy: tuple[object, ...], text: str
) -> None:
    names = "recorded_ns", "replayed_ns", "error"
    of_steps, of_gpu = (SimpleNamespace(**dict(zip(names, values, strict=True))) for values in (steps, busy))
    figures = {"steps": of_steps, "gpu_busy": of_gpu}
    compared: Any = SimpleNamespace(judged_figures=("gpu_busy", "steps"), judged="steps", figures=figures)
    assert _differences(compared) == text


def test_diff_says_that_later_steps_load_no_kernels_and_do_not_compile() -> None:
    """GIVEN a step that waits for its host WHEN the host loads kernels and compiles THEN diff says that later steps do not need
    this time."""
    found = compare(training(steps=1, loader_us=1), training(steps=1, loader_us=1, jitter_us=(900,)))
    of = found.bottlenecks.replayed
    assert of is not None and of.limit == "host" and of.gain_ns is not None
    calls_of_b = [LongLaunches("cudaLaunchKernel", LOADED, 1, of.gain_ns // 2, of.gain_ns // 2)]
    analyses = replace(found.analyses, replayed=replace(found.analyses.replayed, long_launches=calls_of_b))
    compiled = Both(CompiledFigures(), CompiledFigures(compiling_ns=of.gain_ns // 2))
    sentences = warning_sentences(replace(found, analyses=analyses, compiled=compiled))
    loading, compiling = (sentence for sentence in sentences if sentence.startswith("In B, "))
    assert loading == "In B, launch calls take 459.0 µs to load kernels at first use. Later steps do not need this time."
    assert compiling == "In B, compiling takes 459.0 µs of the average step. Later steps do not need this time."


def test_the_largest_reason_is_an_op_rather_than_one_of_its_kernels() -> None:
    """GIVEN an op with one kernel that takes 25 us less, and another kernel that takes 5 us more THEN the largest reason is the
    op. The op takes 20 us less."""

    def work(kernels_us: tuple[int, int]) -> Trace:
        made = [Call("aten::mul", "2,2", 31 + 30 * place, f"kernel_{place}") for place in range(2)]
        trace = training(steps=4, made=made)
        for place, us in enumerate(kernels_us):
            trace.device.duration_ns[trace.device.name == trace.strings.find(f"kernel_{place}")] = us * US
        return trace

    text = _text(compare(work((29, 10)), work((4, 15))), details=False)
    assert "Largest reason: op aten::mul takes 20.0 µs less" in text


def test_the_largest_reason_names_an_additional_op_if_the_gpu_limits_the_script() -> None:
    """GIVEN a GPU that is busy almost all the time WHEN the forward pass has one more op in B THEN diff names this op. Both
    programs differ."""

    def work(ops: int) -> Trace:
        made = [Call("aten::mul", "2,2", 31, "multiply"), *[Call("aten::tanh", "2,2", 36, "tanh_kernel")] * (ops - 1)]
        trace = training(steps=6, made=made, loader_us=0, kernel_us=76)
        rows = np.arange(len(trace.device))
        trace.device.start_ns[:] = trace.steps.start_ns[0] + 76 * US * rows
        return trace

    text = _text(compare(work(1), work(2)), details=False)
    assert "NOT the same program" in text
    assert "Largest reason: op aten::tanh is new: 76.0 µs of a step; 0 -> 1 a step, on the GPU." in " ".join(text.split())


@pytest.mark.parametrize(
    ("error", "noise", "gain_ns", "why"),
    [
        (0.07, 0.08, 5, "but step time varies by ±10.0 % between steps."),
        (-0.07, 0.07, 5, "but step time varies by ±10.0 % between steps."),
        (0.07, 0.06, None, "but GPU time cannot be compared: kernels are missing (B)."),
        (0.03, 0.08, None, "but GPU time cannot be compared: kernels are missing (B)."),  # within the tolerance of 5 %
    ],
)
def test_diff_says_why_the_times_are_not_judged(error: float, noise: float, gain_ns: int | None, why: str) -> None:
    """GIVEN an undecided comparison WHEN the difference is beyond the tolerance, but may be noise THEN diff gives the noise.
    Otherwise, diff gives the reason why GPU time is unknown."""
    comparison = compare(training(), training())
    steps = replace(comparison.steps, error=error, noise_floor=0.1, average_noise=noise)
    known, unknown = PaceLimit("host", 5, 0.1, "not this"), PaceLimit("unknown", gain_ns, None, "kernels are missing")
    limits: Both[PaceLimit | None] = Both(known, unknown)
    undecided = replace(comparison, within_tolerance=None, judged="steps", steps=steps, bottlenecks=limits)
    text, _ = verdict_sentences(undecided)[0]
    assert text.startswith("NOT JUDGED: step time differs by") and text.endswith(why)


def test_diff_names_the_longest_phase_that_a_study_did_not_measure() -> None:
    comparison = compare(training(), replay_of(training(), 1.0))
    phases = {
        name: replace(of, recorded_median_ns=0, device_replayed_median_ns=time_ns)
        for (name, of), time_ns in zip(comparison.phases.items(), (3000, 9000, 6000), strict=False)
        if name != "loader"
    }
    undecided = replace(comparison, within_tolerance=None, phases=phases, host_phases_comparable=False)
    longest = max(phases, key=lambda name: phases[name].device_replayed_median_ns or 0)
    text, _ = verdict_sentences(undecided)[0]
    assert f"has no time for the phase {longest}, which takes 9.0 µs in the replay" in text
    hidden = replace(undecided, work_is_hidden=Both(True, False))
    assert "has no time for the phase" not in verdict_sentences(hidden)[0][0]
