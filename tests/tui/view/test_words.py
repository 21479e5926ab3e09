"""Tests the texts of the app: headline, status, details, ruler, tables and search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.replayer.compiled.handmade_recording import recording
from tests.traces.comparison.test_fused_ops import fusing
from tests.traces.handmade import MS, US, phase_grained, replay_of, training
from tests.tui.view.scenes import crowd, lone_scene, one_event, pair_scene, side_tables, whole
from traces.analyses.communication import communication
from traces.comparison.compare import compare
from traces.figures.summary import summarize
from traces.model.trace import NONE, Collectives, Ending, Origin, StepKind, Trace
from traces.names.equivalent_ops import canonical_op
from tui.formatting import Unit
from tui.view.differences import differences
from tui.view.range_sums import range_sums
from tui.view.scene.alignment import Alignment
from tui.view.scene.scene import Scene
from tui.view.scene.short_names import short_name
from tui.view.search import search
from tui.view.tables.parts import csv_text
from tui.view.tables.rows import TABS, table_of
from tui.view.timeline.details import details
from tui.view.timeline.headline import headline
from tui.view.timeline.ruler import round_ns, step_positions, steps_line, tick_text, time_in_step
from tui.view.timeline.spans import Span, counterpart, find_span, name_of, span_at_cursor, step_of
from tui.view.timeline.window import Window


def span(scene: Scene, side: int, table: str, number: int) -> Span:
    found = find_span(scene, side, table, number)
    assert found is not None
    return found


# --- headline ---


def test_the_headline_of_two_traces_agrees_with_diff() -> None:
    recorded = training()
    replayed = replay_of(recorded, stretch=1.1, uncharged_ns=0)
    lines = headline(whole(("a", recorded), ("b", replayed)), 300)
    facts = compare(recorded, replayed)
    differs = "FAIL: step time (excluding data loading) differs by +10.0 %, GPU time by +10.0 %"
    assert lines[0].tone == "bad" and lines[0].text.startswith(f"Same program, {differs}")
    assert lines[0].text.endswith(f" · {facts.verdict.reason}")
    text = " ".join(line.text for line in lines[1:])
    assert f"step 100.0 µs → 91.0 µs ({facts.steps.error:+.1%})".replace("%)", " %)") in text
    for words in (
        "without loading 80.0 µs → 88.0 µs (+10.0 %)",
        "busy 50.0 % → 60.4 %",
        "memory 3.0 MiB → 3.0 MiB",
        "matched exact",
    ):
        assert words in text


def test_a_predicted_trace_is_marked_in_every_headline() -> None:
    predicted = training()
    predicted.runs = {rank: replace(predicted.run_of(rank), predicted=True) for rank in predicted.ranks}
    alone, beside, recorded = (
        " ".join(line.text for line in headline(whole(*shown), 300))
        for shown in ([("p", predicted)], [("a", training()), ("p", predicted)], [("a", training())])
    )
    assert "ESTIMATE by trace predict" in alone and "B is an ESTIMATE" in beside and "ESTIMATE" not in recorded


def test_the_headline_shows_a_different_program_first_and_in_red() -> None:
    lines = headline(whole(("a", training()), ("b", training(batch=8))), 80)
    assert [line.tone for line in lines[:2]] == ["bad", "bad"]
    assert lines[0].text == "NOT the same program: same ops, another batch size: 32 in the first trace, 8 in"
    assert lines[1].text == "the second"


def test_the_headline_shows_the_gain_of_compilation_before_the_verdict() -> None:
    first, second, *_ = headline(whole(("a", fusing(compiled=False)), ("b", fusing(compiled=True))), 80)
    assert first.tone == "plain" and first.text.startswith("B is compiled and A is eager: a step takes")
    assert second.tone == "bad" and second.text.startswith("Same program, FAIL: GPU time differs by -40.9 %")


@pytest.mark.parametrize("width", [20, 79, 80, 130])
def test_a_headline_fits_the_width(width: int) -> None:
    for scene in (lone_scene(), pair_scene(), whole(("a", phase_grained()), ("b", training())), whole(("t", Trace()))):
        assert all(len(line.text) <= width for line in headline(scene, width))


def test_the_headline_counts_problems_that_change_figures() -> None:
    """GIVEN two warnings, and five notes that are only information THEN the headline counts two problems."""
    trace = training()
    trace.problems = {"event-without-name": 2, "byte-order-mark": 5}
    text = " ".join(line.text for line in headline(whole(("t", trace)), 300))
    assert "2 problems in the recording (see trace info)" in text


def test_the_headline_says_that_figures_are_being_computed() -> None:
    assert headline(Scene.of(("a", training()), ("b", training())), 80)[1].text == "computing the figures ..."


def test_the_headline_of_a_single_trace_shows_its_gpu_and_step_time() -> None:
    lines = headline(lone_scene(), 130)
    assert lines[0].text == "recorded.msgpack: Tesla V100-DGXS-32GB"
    assert lines[1].text.startswith("3 steps · median 100.0 µs · busy ")
    assert headline(whole(("t", crowd())), 130)[0].text == "t: 4 x NVIDIA A100"


def test_a_headline_for_many_devices_shows_the_least_busy_and_the_busiest_device() -> None:
    text = " ".join(line.text for line in headline(whole(("t", crowd(devices=6))), 80))
    assert text.count("cuda:") == 2 and " to " in text


def test_times_of_other_ranks_are_shown_with_the_rank_number() -> None:
    # GIVEN two ranks, of which the second begins its step earlier. The ruler shows the steps of the first rank
    trace = crowd(devices=2)
    trace.steps.start_ns[trace.steps.rank == 1] -= 4 * US
    scene = whole(("t", trace))
    ours, theirs = (int(np.flatnonzero(trace.steps.rank == rank)[0]) for rank in (0, 1))
    assert time_in_step(scene, 0, 5 * US, ours) == "+5.0 µs in step 0"
    assert time_in_step(scene, 0, 5 * US, theirs) == "+9.0 µs in step 0 of rank 1"
    assert time_in_step(scene, 0, -2 * US, NONE) == "-2.0 µs from the first step"


# --- ruler ---


@pytest.mark.parametrize(
    ("at_ns", "every_ns", "text"),
    [
        (0, 50 * MS, "0 ms"),
        (150 * MS, 50 * MS, "150 ms"),
        (1_020 * MS, 20 * MS, "1.02 s"),
        (2_500, 500, "2.5 µs"),
        (-5, 5, "-5 ns"),
    ],
)
def test_the_text_of_a_ruler_tick_depends_on_the_tick_interval(at_ns: int, every_ns: int, text: str) -> None:
    assert tick_text(at_ns, every_ns) == text


def test_ruler_intervals_are_rounded_up_to_round_numbers_such_as_20() -> None:
    assert [round_ns(least) for least in (0.5, 1, 1.1, 3, 7, 11, 499)] == [1, 1, 2, 5, 10, 20, 500]


def test_step_labels_are_thinned_out_if_there_are_many() -> None:
    window = Window(whole(("t", training(steps=40))), 60, 10)
    line = steps_line(window, step_positions(window.scene, window.alignment))
    assert len(line) == 60 and 8 <= line.count("│") <= 20 and "step 5" not in line
    assert all(text.strip().isdecimal() for text in line.split("│")[1:])  # each mark has a step number


def test_a_step_label_is_written_in_full_if_there_is_space() -> None:
    """GIVEN columns of 1 ns, and a mark after every seven columns THEN only the step's number is shown. The text "step 1" and
    the mark need more space."""
    window = Window(whole(("t", training())), 20, 10)
    window.start_ns, window.ns_per_column = 0.0, 1.0
    marks = [(0, "1", 0), (7, "2", 1), (15, "3", 2)]
    assert steps_line(window, marks) == "│1     │step 2 │3   "
    window.start_ns = 4.0  # the first mark is left of the window
    assert steps_line(window, marks) == "   │step 2 │step 3  "


# --- spans and their counterparts ---


def test_the_counterpart_of_a_kernel_belongs_to_the_same_call_and_step() -> None:
    scene = pair_scene(steps=2)
    recorded, replayed = scene.traces
    kernels = [row for row in range(len(replayed.device)) if name_of(scene, span(scene, 1, "device", row)) == "softmax"]
    for pair, row in enumerate(kernels):
        here = span(scene, 1, "device", row)
        at = scene.axis(Alignment.STEP).sides[1].position(int(replayed.device.start_ns[row]))
        other = counterpart(scene, here, Alignment.STEP, at or 0)
        assert other is not None and other.side == 0
        assert recorded.device.start_ns[other.number] // (100 * US) == recorded.steps.start_ns[pair // 2] // (100 * US)
        back = counterpart(scene, other, Alignment.STEP, at or 0)
        assert back == here


def test_matching_ops_in_two_traces_are_found_by_canonical_name() -> None:
    scene = pair_scene()
    replayed = scene.traces[1]
    row = next(n for n in range(len(replayed.host)) if replayed.strings[int(replayed.host.name[n])] == "aten::convolution")
    other = counterpart(scene, span(scene, 1, "host", row), Alignment.STEP, 0)
    assert other is not None and name_of(scene, other) == "aten::conv2d"


def test_nested_ops_with_the_same_canonical_name_match_the_same_op() -> None:
    recorded = training()
    scene = whole(("a", recorded), ("b", replay_of(recorded)))
    for name in ("aten::conv2d", "aten::cudnn_convolution"):
        rows = [n for n in range(len(recorded.host)) if recorded.strings[int(recorded.host.name[n])] == name]
        other = counterpart(scene, span(scene, 0, "host", rows[1]), Alignment.STEP, 250 * US)
        assert other is not None and name_of(scene, other) == "aten::convolution"
        assert step_of(scene, other) == 2


def test_an_event_in_only_one_trace_has_no_counterpart() -> None:
    recorded = training()
    recorded.host.name[0] = recorded.strings.add("my own range")
    scene = whole(("a", recorded), ("b", replay_of(training())))
    call = 0
    lone = span(scene, 0, "host", call)
    assert counterpart(scene, lone, Alignment.STEP, 0) is None
    assert "No counterpart in b." in details(scene, lone, Alignment.STEP, 0)
    assert counterpart(lone_scene(), span(lone_scene(), 0, "device", 0), Alignment.STEP, 0) is None


@pytest.mark.parametrize(
    ("table", "number", "lines"),
    [
        ("device", 0, ["copy on cuda:0 stream 7", "bytes       4.0 KiB, 0.4 GB/s", "launched by aten::copy_, 5.0 µs before"]),
        ("host", 0, ["op on the main thread (main)", "shapes      32x3x8x8", "GPU work    10.0 µs in 1 kernels and copies"]),
        ("phases", 2, ["phase", "on the GPU  27.0 µs"]),
        ("batches", 0, ["input pipeline", "bytes       4.0 MiB"]),
        ("collectives", 0, ["collective", "dtype       float32", "group       group 0", "bytes       1.0 MiB"]),
        ("parts", 0, ["part of a phase"]),
    ],
)  # fmt: skip
def test_the_app_shows_details_for_every_kind_of_event(table: str, number: int, lines: list[str]) -> None:
    scene = whole(("t", side_tables()))
    found = details(scene, span(scene, 0, table, number), Alignment.STEP, 0)
    assert not [line for line in lines if line not in found], found
    assert any(line.startswith("begins      ") and "in step 5" in line for line in found)
    assert sum("GB/s" in line for line in found) <= 1  # a copy shows its own rate, and not the average of its op


@pytest.mark.parametrize("ending", list(Ending))
def test_details_say_whether_the_end_of_a_collective_was_seen(ending: Ending) -> None:
    trace = side_tables()
    trace.collectives.ending[:] = ending
    scene = whole(("t", trace))
    found = [line for line in details(scene, span(scene, 0, "collectives", 0), Alignment.STEP, 0) if line.startswith("its end")]
    assert len(found) == (ending != Ending.SEEN)
    assert all(("only the wait" in line) == (ending == Ending.BY) for line in found)


@pytest.mark.parametrize("origin", list(Origin))
def test_details_say_whether_a_time_is_measured_or_estimated(origin: Origin) -> None:
    trace = one_event()
    trace.device.origin[:] = origin
    found = details(whole(("t", trace)), Span(0, 0, 0, "device", 0), Alignment.STEP, 0)
    (line,) = [line for line in found if line.startswith("origin")]
    assert ("estimated" in line) == (origin in (Origin.SCALED, Origin.ROOFLINE, Origin.CURVE))
    assert "launched by unknown: not recorded" in found and "begins      +0 ns from the beginning" in found


def test_details_of_a_kernel_name_its_region_and_its_graph() -> None:
    """GIVEN the second kernel of CUDA graph 6, which belongs to the backward pass THEN the details name region 0/0 and the
    graph."""
    trace = recording(graphs=True)
    device = trace.device
    kernel = int(np.flatnonzero((device.graph == 6) & (device.graph_node == 1))[0])
    found = details(whole(("t", trace)), Span(0, 0, 0, "device", kernel), Alignment.STEP, 0)
    assert "region      0/0, backward" in found and "CUDA graph  6, node 1" in found


def test_the_span_under_the_cursor_is_found() -> None:
    window = Window(lone_scene(), 100, 40)
    window.fit(0, 100 * US)
    line = next(n for n, line in enumerate(window.rows.lines) if window.scene.rows[line.row].label.startswith("cuda:0 stream"))
    window.line = line
    lane = window.scene.rows[window.rows.lines[line].row].lane(0)
    assert lane is not None
    for position in (0, 1, 2):
        window.cursor_ns = int((lane.start_ns[position] + lane.end_ns[position]) // 2 - window.axis.sides[0].start_ns[0])
        found = span_at_cursor(window)
        assert found is not None and found.position == position
    window.cursor_ns = 2 * US  # no event runs at this time
    assert span_at_cursor(window) is None


# --- differences ---


def pair_of(second: Trace) -> Scene:
    return whole(("a", training(steps=3)), ("b", second))


def test_a_kernel_that_takes_longer_is_reported_with_its_times() -> None:
    # GIVEN two equal recordings, except that one kernel takes 4 µs longer in the second step of the second one
    second = training(steps=3)
    second.device.duration_ns[6] += 4 * US
    (one,) = [one for one in differences(pair_of(second)) if one.what == "longer"]
    assert (one.count, one.steps, one.total_ns, one.rows) == (1, 1, 4 * US, (6, 6))
    assert "is longer: 10.0 µs → 14.0 µs" in one.sentence


def test_equal_differences_are_merged_across_steps_and_sorted_by_size() -> None:
    second = training(steps=3)
    second.device.duration_ns[[1, 6]] += 3 * US  # one kernel in each of two steps
    second.device.duration_ns[2] -= 2 * US
    found = [one for one in differences(pair_of(second)) if one.what in ("longer", "shorter")]
    result = [(one.what, one.count, one.steps, one.total_ns) for one in found]
    assert result == [("longer", 2, 2, 6 * US), ("shorter", 1, 1, -2 * US)]
    assert found[0].sentence.startswith("+6.0 µs, 2 times in 2 steps: ")


def test_a_replaced_kernel_and_a_missing_kernel_are_listed_as_differences() -> None:
    second = training(steps=3)
    second.device.name[1] = second.strings.add("another_sgemm")
    second.device = second.device.take(np.delete(np.arange(len(second.device)), 7))
    found = {one.what: one for one in differences(pair_of(second))}
    assert "became another_sgemm" in found["another kernel"].sentence
    assert found["gone"].rows[1] == NONE and "is gone" in found["gone"].sentence


def test_idle_time_and_host_phases_are_listed_as_differences() -> None:
    # GIVEN a second trace with a pause of 30 µs before its third kernel, and with a longer phase on the host
    first, second = training(steps=1), training(steps=1)
    second.device.start_ns[2:] += 30 * US
    second.phases.duration_ns[2] += 40 * US
    found = {one.what: one for one in differences(whole(("a", first), ("b", second)))}
    wait = found["waits longer"]
    assert wait.rows == (2, 2) and wait.times_ns[1] - wait.times_ns[0] == 30 * US
    assert "idle for a longer time before" in wait.sentence
    assert found["phase longer"].name == "forward" and found["phase longer"].total_ns == 40 * US


def test_waits_for_data_and_warm_up_steps_are_listed_only_on_request() -> None:
    first, second = training(steps=3), training(steps=3)
    second.steps.kind[0] = StepKind.WARMUP
    second.device.duration_ns[1] += 9 * US  # a kernel of the warm-up step
    loader = second.phases.name == second.strings.find("loader")
    second.phases.duration_ns[loader] += 50 * US
    scene = whole(("a", first), ("b", second))
    assert not [one for one in differences(scene) if one.table == "phases" or one.what == "longer"]
    assert {"longer", "phase longer"} <= {one.what for one in differences(scene, everything=True)}


def test_two_equal_traces_have_no_differences() -> None:
    assert differences(pair_of(training(steps=3))) == () and differences(lone_scene()) == ()


# --- search and tables ---


def test_a_search_ignores_case_and_counts_matches() -> None:
    hits = search(pair_scene(steps=2), "CONV")
    assert [(hit.what, hit.side, hit.name, hit.count) for hit in hits] == [
        ("op", 0, "aten::conv2d", 2),
        ("op", 0, "aten::cudnn_convolution", 2),
        ("op", 0, "ConvolutionBackward0", 2),
        ("op", 1, "aten::convolution", 4),
        ("op", 1, "ConvolutionBackward0", 4),
    ]
    assert search(pair_scene(), "  ") == [] and search(whole(("t", Trace())), "x") == []


def test_the_table_of_a_range_requires_a_selected_range() -> None:
    scene = lone_scene()
    axis = Window(scene).axis
    for one_axis, range_ns in ((None, None), (axis, None), (None, (0, 10))):
        assert table_of(scene, "range", (), one_axis, range_ns).note.startswith("no range selected")
    assert not table_of(scene, "range", (), axis, (100_000, 0)).note.startswith("no range selected")


def test_tables_of_the_app_agree_with_diff() -> None:
    scene = pair_scene(stretch=1.3)
    comparison = scene.comparison
    assert comparison is not None
    for tab in ("kernels", "ops"):
        table = table_of(scene, tab)
        assert [head.name for head in table.columns][1:5] == ["change", "recorded", "replayed", "%"]
        of_name = {row.name: row for row in table.rows}
        changes = getattr(comparison.changes, tab)
        for change in (*changes.longer, *changes.shorter, *changes.added, *changes.gone):
            values = of_name[change.name].values
            found = [round(float(values[at] or 0)) for at in (2, 3)]
            assert found == pytest.approx([change.recorded_ns, change.replayed_ns], abs=1), change
            counts = [float(values[at] or 0) for at in (5, 6)]
            assert counts == pytest.approx([change.recorded_count, change.replayed_count], abs=0.001)
    assert [row.values[0] for row in table_of(scene, "phases").rows] == list(comparison.phases)
    steps = table_of(scene, "steps").rows
    assert [row.values[0] for row in steps] == ["5", "5/6", "6/7", "6/8", "7/9", "7/10"]


def test_each_table_of_a_single_trace_has_the_expected_columns() -> None:
    scene = lone_scene()
    heads = [head.name for head in table_of(scene, "kernels").columns]
    assert heads == ["kernel", "GPU time", "%", "calls", "mean", "min", "max"]
    assert [row.name for row in table_of(scene, "phases").rows][:2] == ["loader", "h2d"]
    assert [row.step for row in table_of(scene, "steps").rows] == [0, 1, 2]
    assert table_of(Scene.of(("t", training())), "ops").rows == []
    assert all(row.step == NONE for row in table_of(scene, "ops").rows)
    assert table_of(scene, "differences").note and table_of(scene, "collectives").note and table_of(scene, "range").note


def test_collectives_are_listed_by_name_and_size() -> None:
    (row,) = table_of(whole(("t", side_tables())), "collectives").rows
    assert row.values == ("all_reduce", "", 1 << 20, 2, 15 * US, 1, 15 * US, 15 * US, 15 * US)


def test_the_table_of_a_time_range_adds_up_its_events() -> None:
    # GIVEN the first step, which takes 100 µs and has known kernels
    scene = lone_scene()
    trace, axis = scene.traces[0], scene.axis(Alignment.STEP)
    begin = axis.sides[0].position(int(trace.steps.start_ns[0])) or 0
    (sums,) = range_sums(scene, axis, begin, begin + 100 * US)
    inside = (trace.device.start_ns >= trace.steps.start_ns[0]) & (trace.device.end_ns <= trace.steps.end_ns[0])
    assert sums.length_ns == 100 * US and sums.busy_ns + sums.idle_ns == 100 * US
    assert sum(of.calls for of in sums.kernels.values()) == int(inside.sum())
    assert sum(of.total_ns for of in sums.kinds.values()) == int(trace.device.duration_ns[inside].sum())
    # Of an event at the edge of the range, only the part inside the range counts.
    start = axis.sides[0].position(int(trace.device.start_ns[1])) or 0
    (part,) = range_sums(scene, axis, start, start + 4 * US)
    assert [(name, of.calls, of.total_ns) for name, of in part.kernels.items()] == [("volta_sgemm_nn", 1, 4 * US)]
    assert part.busy_ns == 4 * US
    rows = {row.values[1]: row.values for row in table_of(scene, "range", (), axis, (start, start + 4 * US)).rows}
    assert rows["GPU busy"][2] == 4 * US and rows["GPU idle"][2] == 0 and rows["volta_sgemm_nn"][4] == 1


def test_analyses_in_the_app_agree_with_info_and_diff() -> None:
    lone, pair = lone_scene(), pair_scene()
    assert pair.comparison is not None
    analyses = summarize(lone.traces[0]).analyses
    both = pair.comparison.analyses
    idle = [row.values for row in table_of(pair, "idle").rows]
    for side, of in enumerate((both.recorded, both.replayed)):
        per_step = sum(of.idle["cuda:0"].by_reason.values()) / of.idle["cuda:0"].steps
        assert sum(float(values[2 + side] or 0) for values in idle) == pytest.approx(per_step)
    launches = [row.values for row in table_of(pair, "launches").rows]
    assert [values[2:4] + values[8:10] for values in launches] == [
        (ours.delay_median_ns, theirs.delay_median_ns, ours.delay_p95_ns, theirs.delay_p95_ns)
        for ours, theirs in zip(both.recorded.launches, both.replayed.launches, strict=True)
    ]
    kinds = {row.op: (row.device_ns, row.device_ns / row.calls, row.calls, row.tflops) for row in analyses.achieved}
    assert {row.values[0]: row.values[1:5] for row in table_of(lone, "rates").rows} == kinds
    shapes = table_of(lone, "shapes").rows
    assert [row.values[1] for row in shapes] == [row.device_ns for row in analyses.op_shapes if row.shapes]
    for tab in TABS:
        for scene in (lone, pair, whole(("t", side_tables())), whole(("t", Trace())), whole(("a", Trace()), ("b", training()))):
            table = table_of(scene, tab, scene.differences)
            assert table.rows or table.note or tab in ("steps", "phases", "kernels", "ops"), tab
            assert all(len(row.values) == len(table.columns) for row in table.rows), tab


def test_launches_of_matching_streams_share_a_row() -> None:
    recorded = training(steps=3)
    replayed = replay_of(recorded)
    replayed.device.stream[:] = 0
    rows = table_of(whole(("a", recorded), ("b", replayed)), "launches").rows
    assert [row.values[0] for row in rows] == ["cuda:0 stream 7/0"] and None not in rows[0].values


def test_the_communication_table_has_a_row_for_each_rank() -> None:
    trace = crowd(devices=2)
    name = [trace.strings.add("all_reduce")]
    trace.collectives = Collectives.of(
        rank=[0], name=name, dtype=name, group=name, group_size=[2], backend=name, bytes=[8], start_ns=[0], duration_ns=[US]
    )
    of = communication(trace)
    rows = table_of(whole(("t", trace)), "overlap").rows
    assert [row.values[1] for row in rows] == [of.exposed_per_step_ns, of.hidden_per_step_ns] and of.exposed_per_step_ns


def test_a_csv_table_has_full_names_and_units() -> None:
    lines = csv_text(table_of(pair_scene(), "kernels")).splitlines()
    assert lines[0].startswith("kernel,change (ns),recorded (ns),replayed (ns),% (share),calls,calls replayed,mean (ns)")
    assert len(lines) == 6 and lines[1].count(",") == lines[0].count(",")
    assert Unit.CHANGE.text(0) == "0" and Unit.TIME.text(None) == "-" and Unit.COUNT.text(4.5) == "4.5"


def test_a_module_call_is_shown_with_the_short_name_of_its_module() -> None:
    assert short_name("nn.Module: Linear_0") == "Linear_0"


def test_a_wrapper_kernel_is_shortened_to_the_name_of_the_inner_kernel() -> None:
    assert short_name("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16>(T1::Params)") == (
        "cutlass_80_tensorop_f16_s16816gemm_relu_f16"
    )
    assert short_name("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int>>(X)") == "GemmUniversal"


def test_a_table_without_rows_says_what_was_not_recorded() -> None:
    bare = whole(("phases", phase_grained()))
    assert {tab: table_of(bare, tab).note for tab in ("kernels", "ops", "collectives")} == {
        tab: f"no {tab} are recorded" for tab in ("kernels", "ops", "collectives")
    }
    empty = whole(("empty", Trace()))
    assert all(table_of(empty, tab).note for tab in TABS)
    assert table_of(lone_scene(), "kernels").note == ""


def test_a_long_event_name_does_not_hide_other_details() -> None:
    trace = one_event()
    long = f"kernel_{'x' * 3000}"
    trace.device.name[:] = trace.strings.add(long)
    found = details(whole(("t", trace)), Span(0, 0, 0, "device", 0), Alignment.STEP, 0)
    assert len(found[0]) <= 280 and found[2].startswith("begins") and found[-1] == long


def test_op_details_show_the_achieved_rate_for_any_order_of_shapes() -> None:
    trace = training()
    scene = whole(("t", trace))
    rows = {row.op for row in summarize(trace).analyses.op_shapes if row.gbps}
    found = set()
    for number in np.flatnonzero(trace.host.shapes != NONE).tolist():
        op = canonical_op(trace.strings[int(trace.host.name[number])])
        if any("GB/s" in line for line in details(scene, Span(0, 0, 0, "host", number), Alignment.STEP, 0)):
            found.add(op)
    assert "log_softmax" in rows and rows <= found
