"""Tests the text of `trace info`."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.traces.handmade import MS, Call, data_parallel, phase_grained, replay_of, training
from tests.tui.goldens import assert_golden
from traces.analyses.communication import Communication
from traces.analyses.idle import IdleCall
from traces.analyses.launches import LOADED, LongLaunches
from traces.analyses.stragglers import RankLateness, similar_ranks
from traces.compiled.region_figures import CompiledFigures
from traces.figures.bottleneck import PaceLimit
from traces.figures.measure import launch_steps
from traces.figures.pace import MeanStep
from traces.figures.summary import summarize
from traces.model.machine import Machine
from traces.model.run import CleanSteps, Run
from traces.model.trace import HostKind, StepKind, Trace
from tui.text.analyses import analysis_tables
from tui.text.bottleneck import bottleneck_text
from tui.text.info import info_text, note_sentences


def test_info_shows_the_expected_lines_for_a_recording_with_kernels() -> None:
    trace = training(steps=10, jitter_us=(0, 3))
    trace.steps.kind[0] = StepKind.WARMUP
    trace.lacks = ["call stacks"]
    trace.problems = {"kernel-without-launch": 12}
    trace.machines = {0: Machine(torch="2.13.0")}
    trace.provenance |= {"argv": ["train.py", "--lr", "0.1"], "flags": {"tf32": False, "note": ""}}
    trace.memory.allocated_bytes[:] = -1
    assert_golden("info_kernel", info_text(summarize(trace), "v100.msgpack"))


def test_suggested_commands_quote_file_names() -> None:
    said = info_text(summarize(training(steps=2)), "my run.msgpack", details=False)
    assert said.count("'my run.msgpack'") == 3 and said.count("trace replay YOUR_SCRIPT.py --trace 'my run.msgpack'") == 1


@pytest.mark.parametrize(
    ("inner", "gpu"),
    [("aten::cudnn_convolution", "not recorded, although aten::cudnn_convolution runs only on a GPU"), ("aten::mm", "none")],
)
def test_info_says_that_gpu_work_was_not_recorded_if_ops_need_a_gpu(inner: str, gpu: str) -> None:
    trace = training(steps=2, made=[Call("aten::conv2d", "8,3,8,8", 31, "volta_sgemm_nn", inner=inner)])
    trace.device, trace.devices = trace.device.take([]), []
    trace.memory = trace.memory.take([])
    assert f"  GPU       {gpu}\n" in info_text(summarize(trace), "v100.msgpack", details=False)


def test_info_shows_the_expected_lines_for_a_recording_with_phase_times_only() -> None:
    assert_golden("info_phase", info_text(summarize(phase_grained()), "p100-no-cudnn"))


def test_info_on_a_data_parallel_recording_lists_stages_and_collectives() -> None:
    trace = data_parallel()
    scale = {"forward": 0.8, "backward": 0.75, "optimizer": 1.0}
    trace.runs[0] = replace(trace.runs[0], clean=CleanSteps(3, 100_000, 125_000, 1.25), host_scale=scale)
    assert_golden("info_data_parallel", info_text(summarize(trace), "dp.msgpack"))


def test_the_line_of_exposed_communication_is_cut_only_if_it_is_too_long() -> None:
    communication = Communication((), 4 * MS, 12 * MS, steps=2, exposed_per_step_ns=2 * MS, hidden_per_step_ns=6 * MS)
    summary = replace(summarize(data_parallel()), communication=communication)

    def line(width: int) -> str:
        return next(of for of in info_text(summary, "t", width=width).splitlines() if of.startswith("  exposed"))

    whole = line(200)
    assert len(whole) < 200 and "…" not in whole and line(len(whole)) == whole
    assert line(len(whole) - 1) == whole[:-2] + "…"


def test_info_ignores_header_fields_with_unexpected_types() -> None:
    trace = training()
    told = {"loaders": "four", "recorder": "me", "clean": {"slowdown": None}, "host_scale": {"x": "y"}}
    trace.provenance, trace.runs = told, {0: Run(clean=CleanSteps())}
    text = info_text(summarize(trace), "odd.msgpack")
    assert "Input pipeline" not in text and "Recording overhead" not in text and "Kinds of steps" in text


def test_info_says_that_a_trace_without_gpu_work_cannot_be_replayed() -> None:
    text = info_text(summarize(Trace()), "empty.msgpack")
    assert "nothing to replay, because no step of the script ended. Record again." in text
    on_cpu = replace(phase_grained(), lacks=["device time: no GPU", "shapes"])
    on_cpu.phases.device_start_ns[:] = on_cpu.phases.device_end_ns[:] = -1
    text = info_text(summarize(on_cpu), "cpu.msgpack", details=False)
    assert "nothing to replay" in text and "missing: device time: no GPU; shapes\n" in text


def test_info_says_how_much_of_a_step_is_overhead_of_the_replaying_host() -> None:
    replays = (replay_of(training(), lag_ns_per_step=ns) for ns in (40_000, 8_300, 8_299))
    slow, usual, quick = (info_text(summarize(replay), "t", details=False) for replay in replays)
    assert "  40.0 µs per step (48.2 %) is overhead of the replay (see --clock recorded)\n" in slow
    assert "  8.3 µs per step (10.0 %) is overhead of the replay" in usual and "overhead of" not in quick


def test_info_counts_facts_that_do_not_fit_into_the_list() -> None:
    trace, ends = training(), []
    for facts in range(10, 40):
        trace.provenance = {f"fact {number}": "x" for number in range(facts)}
        ends += re.findall(r"and (\d+) more \(--json", info_text(summarize(trace), "t"))
    assert ends[:3] == ["1", "2", "3"]


def test_long_provenance_is_truncated() -> None:
    trace = training()
    trace.provenance = {f"fact {i}": "x" * 200 for i in range(40)}
    text = info_text(summarize(trace), "v100.msgpack")
    assert "and 18 more (--json shows all)" in text and "fact 23" not in text


def test_colour_changes_only_colour_codes_and_text_fits_narrow_terminals() -> None:
    trace = training()
    trace.strings.texts[trace.strings.find("volta_sgemm_nn")] = "void " + "very_long_kernel_name<" * 20
    summary = summarize(trace)
    for width in (60, 80, 100):
        assert max(map(len, info_text(summary, "v100.msgpack", width=width).splitlines())) <= width
    coloured = info_text(summary, "v100.msgpack", colour=True)
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == info_text(summary, "v100.msgpack")


def test_info_reports_gpu_work_outside_the_steps() -> None:
    # GIVEN four batches, of which one is marked as a step THEN 75 % of the work is outside of the steps
    trace = training(steps=4)
    trace.steps, trace.phases = trace.steps.take([0]), trace.phases.take(trace.phases.step == 0)
    assert any(said.startswith("75.0 % of the GPU's work was launched outside") for said in note_sentences(summarize(trace)))
    # WHEN the GPU begins the work after the host has ended the step THEN the work still belongs to the step
    late = training(steps=1)
    late.device.start_ns += int(late.steps.duration_ns[0]) * 3
    assert not any("launched outside" in said for said in note_sentences(summarize(late)))
    assert not any("launched outside" in said for said in note_sentences(summarize(training())))


def test_info_says_that_a_host_only_recording_has_no_kernels() -> None:
    trace = training()
    trace.device, trace.memory = Trace().device, Trace().memory
    text = info_text(summarize(trace), "t", details=False)
    assert "of the host only" in text and "every kernel" not in text and "Record on a machine with a GPU" in text
    # WHEN the profiler lost all kernels THEN the text says that the launched kernels are missing
    trace.problems = {"lost-kernel": 8}
    assert "the recording has none of the launched kernels" in info_text(summarize(trace), "t", details=False)
    # WHEN kernels are missing because the file is incomplete THEN the text does not say that no GPU work was recorded
    trace.problems = {"truncated-file": 1}
    text = info_text(summarize(trace), "t", details=False)
    assert "incomplete recording" in text and "Copy the file again" in text and "no GPU work was recorded" not in text


def test_info_shows_only_problems_that_are_warnings_or_worse() -> None:
    trace = training()
    trace.problems = {"event-without-duration": 2}
    assert "Events without a duration count as 0 ns long (count: 2)." in note_sentences(summarize(trace))


def test_info_counts_process_groups_and_uses_the_singular_for_one_kernel() -> None:
    trace = training(steps=1, made=[Call("aten::mm", "8,8;8,8", 31, "gemm")])
    trace.provenance["distributed"] = {"pg_config": [{"pg_name": str(number), "ranks": [0, 1]} for number in range(7)]}
    said = info_text(summarize(trace), "t")
    assert "distributed.pg_config" in said and "7 (--json shows them)" in said and "pg_name" not in said
    assert "1 kernel, 0 copies and memsets" in said


@pytest.mark.parametrize("width", [60, 70])
def test_the_lines_about_data_loading_fit_into_the_terminal(width: int) -> None:
    lines = info_text(summarize(data_parallel(steps=6)), "t", width=width).splitlines()
    (loader,) = [line for line in lines if line.startswith("  loader 0: ")]
    assert len(loader) == width and loader.endswith("…") and max(map(len, lines)) == width


def test_step_kinds_are_shown_only_if_there_are_several() -> None:
    trace = training(steps=2)
    trace.steps.kind[:] = StepKind.EVALUATION
    assert "evaluation" not in info_text(summarize(trace), "t")
    trace.steps.kind[0] = StepKind.STEADY
    assert "step 6 (evaluation)" in info_text(summarize(trace), "t")


def test_info_says_that_median_step_times_exclude_steps_after_a_profile() -> None:
    """GIVEN a clean step of 100 us, and a slower step after the profile THEN the shown step time is that of the clean step."""
    trace = training(steps=3)
    trace.steps.kind[:] = StepKind.STEADY, StepKind.PROFILED, StepKind.AFTER_PROFILE
    summary = summarize(trace)
    assert summary.step_kinds["after_profile"].count == 1
    said = info_text(summary, "t")
    assert "after a profile" in said and "medians leave out steps after a profile" in said
    trace.steps.kind[2] = StepKind.STEADY
    assert "after a profile" not in info_text(summarize(trace), "t")


def test_info_says_that_no_steps_were_found() -> None:
    trace = training(steps=1)
    trace.provenance["steps_from"] = "whole"
    said = " ".join(info_text(summarize(trace), "t", details=False, width=200).split())
    assert "The recording of 100.0 µs could be" in said and "no steps were found; all ops and GPU work take 100.0 µs" in said


def test_info_names_the_runtime_call_during_which_the_gpu_is_idle() -> None:
    summary = summarize(training(steps=4))
    limit = PaceLimit("host", 30_000, 0.3)
    for share, named in ((0.92, True), (0.25, True), (0.249, False)):
        analyses = replace(summary.analyses, idle_calls=[IdleCall("hipFree", 1360, 9, share)])
        text = bottleneck_text(replace(summary, bottleneck=limit, analyses=analyses))
        assert text.startswith("The GPU waits for the host. A step of 100.0 µs could be up to 30.0 µs shorter (30.0 %).")
        assert (f"The host spends {100 * share:.1f} % of that time in hipFree (1,360 calls)." in text) is named


def test_info_reports_idle_time_without_a_visible_reason() -> None:
    limit = PaceLimit("unknown", 40_000, 0.4, "the GPU is idle without a visible reason")
    assert bottleneck_text(replace(summarize(training(steps=4)), bottleneck=limit)).startswith(
        "A step takes 100.0 µs. For 40.0 µs of it (40.0 %), the GPU is idle, and the recording does not show why"
    )


def test_info_notes_a_large_variation_between_steps() -> None:
    """Steps of 100 to 400 us have quartiles at 175 and 325 us. Half of the interquartile range is 30 % of the median of 250
    us."""
    trace = training(steps=4)
    trace.steps.duration_ns[:] = [100_000, 200_000, 300_000, 400_000]
    trace.steps.start_ns[1:] = trace.steps.start_ns[0] + trace.steps.duration_ns.cumsum()[:-1]
    assert "The steps vary by ±30.0 %: their median says little about a single step" in note_sentences(summarize(trace))
    assert not any("vary" in said for said in note_sentences(summarize(training(steps=4))))
    # Quartiles of 85 and 115 us are a variation of 15 % of the median.
    at_limit = summarize(training(steps=5, jitter_us=(-15, -15, 0, 15, 15)))
    assert "The steps vary by ±15.0 %: their median says little about a single step" in note_sentences(at_limit)


def with_a_pause(trace: Trace, pause_ns: int, row: int = 3) -> Trace:
    """Return the trace with a pause of the host before the end of a step, by default the fourth step."""
    for table in (trace.steps, trace.phases, trace.host, trace.device):
        table.start_ns[table.start_ns >= trace.steps.end_ns[row]] += pause_ns
    trace.steps.duration_ns[row] += pause_ns
    return trace


def test_info_notes_a_step_that_takes_ten_times_as_long_as_others() -> None:
    """GIVEN six steps of about 101 us WHEN the host pauses for 1,000 us in one step THEN info names this step."""
    trace = with_a_pause(training(steps=6), 1_000_000)
    (said,) = [said for said in note_sentences(summarize(trace)) if "times the median step time" in said]
    assert said == "Step 8 took 11 times the median step time (1.1 ms)"
    assert not any("times the median step time" in said for said in note_sentences(summarize(training(steps=6))))
    (at_limit,) = [said for said in note_sentences(summarize(with_a_pause(training(200), 900_000))) if "step time" in said]
    assert at_limit == "Step 8 took 10 times the median step time (1.0 ms)"
    assert not any("step time" in said for said in note_sentences(summarize(with_a_pause(training(200), 899_000))))
    trace.steps.kind[:] = StepKind.EVALUATION
    assert said in note_sentences(summarize(trace))
    trace.steps.kind[:3] = StepKind.STEADY
    assert said not in note_sentences(summarize(trace))


def test_info_names_the_longest_of_several_slow_steps() -> None:
    """GIVEN twenty steps of 100 us WHEN the host pauses for 1,000, 1,900 and 900 us in three of them THEN info names the
    second of them and counts the others."""
    trace = training(steps=20)
    for row, pause_ns in ((3, 1_000_000), (7, 1_900_000), (11, 900_000)):
        with_a_pause(trace, pause_ns, row)
    (said,) = [said for said in note_sentences(summarize(trace)) if "times the median step time" in said]
    assert said == "Step 12 and 2 other steps took up to 20 times the median step time (up to 2.0 ms)"


def test_info_names_a_step_that_lengthens_the_mean_step() -> None:
    """GIVEN ten steps of 100 us WHEN the host pauses for 400 us in the fourth step THEN info names this step. The mean is 40 %
    longer than the median."""
    trace = with_a_pause(training(steps=10), 400_000)
    (said,) = [said for said in note_sentences(summarize(trace)) if "times the median step time" in said]
    assert said == "Step 8 took 5 times the median step time (500.0 µs)"
    # AND the line about steps shows the mean, like the first sentence
    text = info_text(summarize(trace), "t", details=False, width=160)
    assert "An average step of 140.0 µs" in text
    assert "140.0 µs, 120.0 µs without data loading (mean of 10 steps; median 100.0 µs, ±0.0 %)" in text


def test_info_says_how_many_steps_its_figures_describe() -> None:
    one, eight, nine = (info_text(summarize(training(steps)), "t") for steps in (1, 8, 9))
    assert "(1 step)" in one and "median of 8 steps" in eight
    assert "more" not in eight and "  and 1 more" in nine


def test_info_says_that_kernels_are_loaded_only_once() -> None:
    """GIVEN one step that waits for the host WHEN loading kernels takes more than 25 % of this time THEN the report mentions
    the loading."""
    summary = summarize(training(steps=1, loader_us=1))
    assert summary.bottleneck is not None and summary.bottleneck.limit == "host" and summary.bottleneck.gain_ns is not None
    much_ns = summary.bottleneck.gain_ns // 4 + 1
    for loaded_ns, is_said in ((much_ns, True), (much_ns - 2, False)):
        calls = [LongLaunches("cudaLaunchKernel", LOADED, 1, loaded_ns, loaded_ns)]
        text = bottleneck_text(replace(summary, analyses=replace(summary.analyses, long_launches=calls)))
        assert ("to load kernels at first use" in text) == is_said


def test_info_says_that_a_later_step_does_not_compile() -> None:
    """GIVEN a step that waits for the host WHEN compiling takes more than half of the possible gain THEN the report mentions
    the compiling."""
    summary = summarize(training(steps=1, loader_us=1))
    assert summary.bottleneck is not None and summary.bottleneck.gain_ns is not None
    half_ns = summary.bottleneck.gain_ns // 2 + 1
    for compiling_ns, is_said in ((half_ns, True), (half_ns - 2, False)):
        compiled = CompiledFigures(compiling_ns=compiling_ns)
        text = bottleneck_text(replace(summary, analyses=replace(summary.analyses, compiled=compiled)))
        assert ("On average, compiling takes" in text) == ("Later steps do not need" in text) == is_said
    whole = replace(summary, provenance={"steps_from": "whole"})
    compiled = CompiledFigures(compiling_ns=half_ns)
    text = bottleneck_text(replace(whole, analyses=replace(summary.analyses, compiled=compiled)))
    assert f"Compiling takes {half_ns / 1000:.1f} µs. Later calls do not need this time." in text


def test_info_names_the_rank_that_the_others_wait_for() -> None:
    """Two ranks run two steps. Rank 1 is late by 60 us in total, which is 30 us per step."""
    summary = summarize(training(steps=4))
    late = [RankLateness(1, 8, 6, 0, 60_000, 30_000), RankLateness(0, 8, 0, 60_000, 0)]
    two = replace(summary, ranks=[0, 1], analyses=replace(summary.analyses, stragglers=late))
    assert "in each step, rank 1 is 30.0 µs late at collectives" in info_text(two, "t", details=False)
    # A step takes 100 us. WHEN a rank is late by less than 2 % of a step THEN info does not mention the rank.
    hardly = replace(two, analyses=replace(two.analyses, stragglers=[replace(late[0], late_per_step_ns=1_900), late[1]]))
    assert "late at collectives" not in info_text(hardly, "t", details=False)


@pytest.mark.parametrize(
    ("late", "on_time", "rows", "last"),
    [
        (10, 0, 10, "rank 9"),
        (11, 0, 1, "11 similar ranks, mean"),
        (9, 12, 10, "12 similar ranks, mean"),
        (10, 12, 10, "rank 9"),
    ],
)
def test_info_shows_at_most_ten_rows_of_slow_ranks(late: int, on_time: int, rows: int, last: str) -> None:
    """GIVEN ranks that were equally late THEN at most ten rows are shown. With more than ten rows, similar ranks share a
    row."""
    found = [RankLateness(rank, 8, 6, 0, 100_000) for rank in range(late)]
    found += [RankLateness(late + rank, 8, 0, 90_000, 0) for rank in range(on_time)]
    analyses = replace(summarize(training()).analyses, stragglers=found)
    (cells,) = (of.cells() for of in analysis_tables([analyses], [""]) if of.title.startswith("Stragglers"))
    assert (len(cells), cells[-1][0]) == (rows, last)


def test_info_shows_similar_ranks_as_one_row_below_the_slow_ranks() -> None:
    """Rank 7 is late by 100 us, and rank 2 by 10 us, a tenth of that. The other ten ranks are never late."""
    late = [RankLateness(7, 8, 6, 2_000, 100_000), RankLateness(2, 8, 2, 30_000, 10_000)]
    late += [RankLateness(rank, 8, 0, 11_000, 0) for rank in range(12) if rank not in (2, 7)]
    assert similar_ranks(late) == [0, 1, 3, 4, 5, 6, 8, 9, 10, 11]
    analyses = replace(summarize(training()).analyses, stragglers=late)
    (cells,) = (of.cells() for of in analysis_tables([analyses], [""]) if of.title.startswith("Stragglers"))
    assert cells == [
        ["rank 7", "6", "8", "100.0 µs", "2.0 µs"],
        ["rank 2", "2", "8", "10.0 µs", "30.0 µs"],
        ["10 similar ranks, mean", "0", "8", "0 ns", "11.0 µs"],
    ]


def test_info_calls_a_replay_a_replay_and_does_not_count_phases_as_kernels() -> None:
    for made, said in ((training(), "a replay of every op and every kernel"), (phase_grained(), "a replay of phase times")):
        replay = replace(replay_of(made), grain=made.grain)
        text = info_text(summarize(replay), "t", details=False)
        assert said in text and "a recording of" not in text and "without kernels" not in text
        assert ("kernels  " in text) is (made.grain == "kernel")


def test_info_keeps_similar_kernel_names_different_when_shortening_them() -> None:
    """GIVEN two kernels whose names differ only at the end WHEN the names are shortened THEN the ends are still shown."""
    trace = training()
    names = [f"multi_tensor_apply_kernel<{'long' * 40}, {operator}>" for operator in ("Sqrt", "Lerp")]
    trace.device.name = np.array([trace.strings.add(name) for name in names], dtype=trace.device.name.dtype)[
        np.arange(len(trace.device)) % 2
    ]
    lines = [line for line in info_text(summarize(trace), "t", details=False).splitlines() if "multi_tensor" in line]
    assert len(lines) == 2 and all(len(line) <= 80 for line in lines)
    assert {line[-6:] for line in lines} == {" Sqrt>", " Lerp>"}


def test_info_says_that_a_recording_has_no_ops() -> None:
    trace = training()
    trace.host.kind = np.full(len(trace.host), HostKind.RUNTIME, dtype=trace.host.kind.dtype)
    assert "  a recording of every kernel, without ops" in info_text(summarize(trace), "t", details=False)


def test_info_shows_the_mean_step_time_if_step_times_vary() -> None:
    summary = summarize(training(steps=4))
    assert summary.pace is not None
    mean = MeanStep(400_000_000, 300_000_000)
    found = replace(summary, pace=replace(summary.pace, mean=mean), bottleneck=PaceLimit("data", 100_000_000, 0.25))
    text = "The GPU waits for data. An average step of 400.0 ms could be up to 100.0 ms shorter (25.0 %)."
    assert bottleneck_text(found) == text
    limit = PaceLimit("device", 4_000_000, 0.01, busy_share=0.99)
    found = replace(summary, pace=replace(summary.pace, mean=mean), bottleneck=limit)
    assert "the GPU is busy 99.0 % of an average step of 400.0 ms." in bottleneck_text(found)


@pytest.mark.parametrize(("warm", "is_elsewhere"), [(3, True), (2, False)])
def test_info_lists_only_kernels_inside_steps_if_most_work_is_outside(warm: int, is_elsewhere: bool) -> None:
    """GIVEN three warm-up steps with a kernel of another name, and one counted step THEN the kernels of the counted step are
    shown. The counted step launched a fourth of the work."""
    trace = training(steps=4)
    trace.steps.kind[:warm] = StepKind.WARMUP
    of_warm = (launch_steps(trace) < warm) & (trace.device.name == trace.strings.find("softmax"))
    trace.device.name[of_warm] = trace.strings.add("autotune")
    summary = summarize(trace)
    noted = any(said.startswith("75.0 % of the GPU's work was launched outside") for said in note_sentences(summary))
    shown = [row.name for row in summary.step_kernels or summary.kernels]
    assert (noted, "softmax" in shown, "autotune" in shown) == (is_elsewhere, True, not is_elsewhere)
    assert ("20.0 % softmax" in info_text(summary, "t", details=False)) == is_elsewhere


def test_info_says_that_the_gpu_waits_for_copies() -> None:
    summary = summarize(training(steps=4))
    found = replace(summary, bottleneck=PaceLimit("copies", 50_000, 0.5, copies_ns=50_000))
    assert bottleneck_text(found).startswith("The GPU waits for copies from and to the host. A step of 100.0 µs could be up to")
    found = replace(summary, bottleneck=PaceLimit("device", 20_000, 0.2, copies_ns=10_000))
    assert "Without idle time and copies that do not overlap with compute, a step could be" in bottleneck_text(found)
    found = replace(summary, bottleneck=PaceLimit("device", 20_000, 0.2, exposed_ns=5_000, copies_ns=10_000))
    assert "Without idle time, copies and communication that do not overlap with compute" in bottleneck_text(found)


def test_info_calls_a_prediction_an_estimate() -> None:
    trace = training()
    trace.runs[0] = replace(trace.runs[0], predicted=True)
    said = info_text(summarize(trace), "t", details=False)
    assert "a prediction from a recording of every op and every kernel\n  ESTIMATE by trace predict" in said


def test_info_reports_gpu_time_from_before_the_recording() -> None:
    summary = summarize(training(steps=4))
    sentence = "30.0 µs of the counted step's GPU work was launched before the recording began"
    assert sentence not in note_sentences(summary)
    assert sentence in note_sentences(replace(summary, earlier_work_ns=30_000))
