"""Tests what reports and comparisons say about compiled code and CUDA graphs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.replayer.compiled.handmade_recording import Events, recording
from tests.traces.comparison.test_fused_ops import FUSED, fusing
from tests.traces.compiled.test_region_figures import regions
from tests.traces.handmade import replay_of, training
from traces.comparison.compare import compare
from traces.comparison.explain import explain
from traces.compiled.compilations import Compilation
from traces.compiled.graph_breaks import GraphBreak
from traces.compiled.region_figures import FusedKernel, compiled_figures
from traces.figures.spread import NOTHING
from traces.format.trace_file import save
from traces.model.run import CompiledCode, EagerRegion
from traces.model.trace import Trace
from tui.commands import diff
from tui.formatting import Unit
from tui.text.compiled import (
    compilation_difference,
    compilation_notes,
    compiled_line,
    compiled_tables,
    compiling_sentences,
    graphs_line,
)
from tui.text.diff import diff_text


def test_lines_about_compiled_code_and_graphs_show_their_shares_of_gpu_work() -> None:
    """A step has 51 us of kernels. The region, or the two graphs, take 40 us of it. Fused kernels take 16 us."""
    figures = compiled_figures(recording())
    assert compiled_line(figures) == "1 region with 78.4 % of the GPU's work (31.4 % in fused kernels)"
    assert graphs_line(compiled_figures(recording(graphs=True))) == "2 CUDA graphs with 78.4 % of the GPU's work"
    assert (compiled_line(None), graphs_line(figures)) == ("", "")


def test_the_table_of_compilations_has_separate_rows_for_forward_and_backward_code() -> None:
    figures = compiled_figures(recording())
    assert figures is not None
    compiled = (Compilation("0/1", False, 7, 90_000), Compilation("0/1", True, 7, 40_000))
    rows = compiled_tables([replace(figures, compilations=compiled)], [""])[3].rows
    assert rows == [("0/1", 90_000, 1, 7), ("0/1, backward", 40_000, 1, 7)]


def test_the_graph_breaks_of_a_replay_are_reported() -> None:
    eager = [{"region": "4/0", "reason": "TypeError: no"}]
    told = {"regions": 3, "graph_breaks": 2, "recompiles": 1, "compile_ns": 1_500_000_000, "eager": eager}
    comparison = compare(recording(), replay_of(recording(), compiled=told))
    assert compilation_notes(comparison) == [
        "Compiled code of the replay: 2 graph breaks, 1 recompilation. 1 function could not be traced and ran eagerly:"
        " 4/0 (TypeError: no). Compiling took 1.500 s on this host."
    ]


def test_breaks_recompilations_and_compile_time_of_a_recording_are_reported() -> None:
    reasons = {"print() is not traced (model.py:7)": 2}
    code = CompiledCode(2, 2, 1, 3_000_000_000, (EagerRegion("2/0 h", "no"),), reasons, {"0/1": "x has another size"})
    trace = recording()
    trace.runs[0] = replace(trace.run_of(0), compiled=code)
    counts = ", 2 graph breaks, 1 recompilation, 1 function that Dynamo could not trace; compiling took 3.000 s"
    assert compiled_line(compiled_figures(trace)).endswith(counts)
    assert compiled_tables([compiled_figures(trace)], [""])[-1].rows == [
        ("graph break: print() is not traced (model.py:7)", 2),
        ("recompilation 0/1: x has another size", 1),
        ("runs eagerly: 2/0 h, no", 1),
    ]
    counts = "2 graph breaks (print() is not traced (model.py:7)), 1 recompilation"
    eager = "1 function could not be traced and ran eagerly: 2/0 h (no)"
    took = "Compiling took 3.000 s in"
    assert compilation_notes(compare(recording(), trace)) == [f"Compiled code of B: {counts}. {eager}. {took} B."]
    assert compilation_notes(compare(trace, trace)) == [
        f"Compiled code of A and B: {counts}. {eager}. {took} A and 3.000 s in B."
    ]
    # A table of counts shows changes without a unit of time.
    assert compiled_tables([compiled_figures(recording()), compiled_figures(trace)], ("A", "B"))[-1].cells()[0][1:] == [
        "2", "-", "2",
    ]  # fmt: skip


@pytest.mark.parametrize(("after_ns", "is_said"), [(220, True), (221, False)])
def test_compilation_is_mentioned_if_it_explains_half_of_the_difference(after_ns: int, is_said: bool) -> None:
    """GIVEN a step of 100 ns in A WHEN compiling takes 60 ns of a longer step in B THEN a sentence mentions this. The step of B
    may be at most 120 ns longer."""
    comparison = compare(recording(), recording())
    assert comparison.compiled is not None
    compiled = replace(comparison.compiled, replayed=replace(comparison.compiled.replayed, compiling_ns=60))
    steps = replace(comparison.steps, recorded_median_ns=100, replayed_median_ns=after_ns)
    said = ["In B, compiling takes 60 ns of the average step. Later steps do not need this time."]
    assert compiling_sentences(replace(comparison, compiled=compiled, steps=steps)) == (said if is_said else [])


def compiling(functions: int, trace: Trace) -> Trace:
    trace.runs[0] = replace(trace.run_of(0), compiled=CompiledCode(functions))
    return trace


def graph_of(*kernels: str) -> Trace:
    """Return a trace of one step that launches a CUDA graph with these kernels, without compiled regions."""
    events = Events()
    events.host("user_annotation", "ProfilerStep#1", 0, 1000)
    events.op("aten::copy_", 0, 20, [[8]])
    events.launch("cudaGraphLaunch", 100, *((kernel, 5) for kernel in kernels))
    return events.trace()


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (graph_of("sgemm", "triton_poi_fused_sin_0"), graph_of("sgemm", "triton_poi_fused_sin_0"), ""),
        (
            graph_of("sgemm", "triton_poi_fused_sin_0"),
            graph_of("sgemm", "relu"),
            "A is compiled and B is eager: a step takes 1.0 ms instead of 1.0 ms (0.0 %), and its GPU time is 10.0 µs instead"
            " of 10.0 µs (0.0 %).",
        ),
        (
            fusing(compiled=False),
            fusing(compiled=True),
            "B is compiled and A is eager: a step takes 1.0 ms instead of 1.0 ms (0.0 %), and its GPU time is 26.0 µs instead"
            " of 44.0 µs (-40.9 %). In a step, 3 fused kernels (6.0 µs) replace 5 eager ops (24.0 µs). Largest gain on the GPU:"
            " triton_poi_fused_add_relu_0 runs add, relu in 3.0 µs instead of 9.0 µs.",
        ),
        (
            fusing(compiled=False),
            fusing(compiled=True, slowdown=5),
            "B is compiled and A is eager: a step takes 1.0 ms instead of 1.0 ms (0.0 %), and its GPU time is 50.0 µs instead"
            " of 44.0 µs (+13.6 %). In a step, 3 fused kernels (30.0 µs) replace 5 eager ops (24.0 µs). Largest loss on the"
            " GPU: triton_poi_fused_add_relu_0 runs add, relu in 15.0 µs instead of 9.0 µs.",
        ),
        (
            fusing(compiled=False),
            fusing(compiled=True, slowdown=2.9),
            "B is compiled and A is eager: a step takes 1.0 ms instead of 1.0 ms (0.0 %), and its GPU time is 37.4 µs instead"
            " of 44.0 µs (-15.0 %). In a step, 3 fused kernels (17.4 µs) replace 5 eager ops (24.0 µs).",
        ),
        (regions("0/0", "1/0"), regions("0/0"), "B compiles into 1 region, A into 2."),
        (compiling(2, regions("0/0", "1/0")), compiling(2, regions("0/0")), ""),  # B calls one of its two functions
        (compiling(2, regions("0/0", "1/0")), compiling(1, regions("0/0")), "B compiles into 1 region, A into 2."),
        (regions("0/0"), regions("0/0"), ""),
        (training(), training(), ""),
        (graph_of("a"), graph_of("a"), ""),
        (
            regions("0/0"),
            training(),
            "A is compiled and B is eager: a fused kernel runs several ops, so names and counts of ops differ.",
        ),
        (
            training(),
            regions("0/0"),
            "B is compiled and A is eager: a fused kernel runs several ops, so names and counts of ops differ.",
        ),
    ],
)
def test_diff_says_that_only_one_trace_is_compiled(first: Trace, second: Trace, said: str) -> None:
    assert compilation_difference(compare(first, second)) == said


def breaking_twice(*, compiled: bool) -> Trace:
    """Return a trace of one step that runs mm, relu, exp and mm twice. In the compiled trace, exp breaks the graph for 30 us
    and for 20 us."""
    events = Events()
    events.host("user_annotation", "ProfilerStep#1", 0, 1000)
    for at, pause in ((0, 30), (400, 20)):
        relu = "triton_poi_fused_relu_0" if compiled else "aten::relu"
        if compiled:
            events.op("Torch-Compiled Region: 0/0", at + 5, 250, [])
            events.host("user_annotation", "## Call CompiledFxGraph fa ##", at + 10, 30)
            events.op("Torch-Compiled Region: 1/0", at + 55, 150, [])
            events.host("user_annotation", "## Call CompiledFxGraph fb ##", at + 40 + pause, 30)
        for name, start in (("aten::mm", 12), (relu, 25), ("aten::exp", 45), ("aten::mm", 45 + pause)):
            events.op(name, at + start, 8, [[8, 8]])
            events.launch("cuLaunchKernel" if name == relu and compiled else "cudaLaunchKernel", at + start + 2, (name, 4))
    return events.trace()


def test_the_times_of_all_graph_breaks_are_added_up() -> None:
    eager, compiled = breaking_twice(compiled=False), breaking_twice(compiled=True)
    for pair in ((eager, compiled), (compiled, eager)):
        assert compilation_difference(compare(*pair)).endswith("Graph breaks take 50.0 µs of a step on the host.")
    functions = {"0/0": "forward (model.py:3)", "1/0": "torch_dynamo_resume_in_forward_at_5 (model.py:5)"}
    told = {"regions": 2, "graph_breaks": 1, "functions": functions}
    named = replace(compiled, runs=replay_of(compiled, compiled=told).runs)
    said = "Graph breaks take 50.0 µs of a step on the host (longest at model.py:5)."
    assert compilation_difference(compare(named, eager)).endswith(said)
    texts = [reason.text for reason in explain(compare(eager, named)).reasons]
    assert [text.partition(" is new")[0] for text in texts if "graph break" in text] == [
        "graph break at model.py:5 between regions 0/0 and 1/0"
    ]
    assert compilation_difference(compare(compiled, compiled)) == ""


def test_diff_fails_if_compilation_changes_times_by_more_than_the_tolerance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GIVEN an eager trace with 44 us of GPU time, and a compiled trace with 26 us THEN the comparison fails with a tolerance
    of 5 %. With a tolerance of 50 %, the comparison passes."""
    for name, is_compiled in (("a", False), ("b", True)):
        save(fusing(compiled=is_compiled), tmp_path / name)
    files, budgets = (str(tmp_path / "a"), str(tmp_path / "b")), tmp_path / "budgets.toml"
    assert diff.run(*files, json=False, tolerance=0.05) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("B is compiled and A is eager: a step takes")
    assert "FAIL: GPU time differs by -40.9 %, step time by 0.0 %; limit 5.0 %." in text
    assert "limit 5.0 %. Same program, compiled differently: 100 % of the matrix products" in text
    assert diff.run(*files, json=True, tolerance=0.05) == 1
    found = json.loads(capsys.readouterr().out)
    facts = found["verdict"], found["same_program"], found["within_tolerance"]
    assert facts == ("same program, compiled differently", True, False)
    assert diff.run(*files, json=False, tolerance=0.5) == 0
    assert "PASS: step time differs by 0.0 %, GPU time by -40.9 %; limit 50.0 %." in " ".join(capsys.readouterr().out.split())
    assert diff.run(*files, json=False, tolerance=0.05, markdown=True) == 1
    heading, sentence = capsys.readouterr().out.split("\n\n")[:2]
    assert heading.startswith("### FAIL: GPU time differs") and sentence.startswith("B is compiled and A is eager: a step")
    budgets.write_text('[budget]\nsame_program = true\ngpu_busy_change = "0 %"\n', encoding="utf-8")
    assert diff.run(*files, json=False, tolerance=0.05, gate=budgets) == 0


def test_the_report_starts_by_saying_that_only_the_replay_is_compiled() -> None:
    """GIVEN an eager recording WHEN the replay has compiled regions THEN the report explains this first."""
    replayed = replay_of(regions("0/0"), compiled={"regions": 1})
    comparison = replace(compare(training(), replayed), replay=True)
    text = diff_text(comparison, "a", "b", width=200)
    assert text.startswith(
        "The script is compiled and the recording is eager: compiled code takes the times of the recorded eager ops.\n"
    )


def test_a_recording_without_kernels_is_not_called_eager() -> None:
    """GIVEN a recording that has only phase times WHEN the script is compiled THEN the report does not call the recording
    eager."""
    comparison = compare(training(), replay_of(regions("0/0"), compiled={"regions": 1}))
    assert compilation_difference(comparison)
    assert compilation_difference(replace(comparison, gpu_busy=NOTHING)) == ""


def test_the_tables_of_compiled_code_have_the_expected_rows() -> None:
    """The region takes 40 us on the GPU and 320 us on the host, and has one forward call, one backward call and four
    kernels."""
    (regions, kernels, *others) = compiled_tables([compiled_figures(recording())], [""])
    label = "0/0: 2 fused kernels (triton_poi_fused_1, relu), addmm, mm"
    assert regions.rows == [(label, 40_000, 320_000, 1.0, 16_000, 1.0, 4.0, 0)]
    assert kernels.rows == [
        ("0/0 triton_poi_fused_1", 9_000, 1.0, 9 / 40), ("0/0 triton_poi_fused_relu_0", 7_000, 1.0, 7 / 40)
    ]  # fmt: skip
    assert [table.rows for table in others] == [[], [], [], [], []]
    assert len(compiled_tables([compiled_figures(recording())], [""], most_kernels=1)[1].rows) == 1
    both = compiled_tables([compiled_figures(recording()), None], ("A", "B"))[0]
    assert both.cells() == [[both.rows[0][0], "-40.0 µs", "40.0 µs", "-", "320.0 µs", "-", "1", "-"]]
    assert both.heads[1].unit is Unit.CHANGE
    (whole, row, *_) = compiled_tables([None, None], ("A", "B"), FUSED)[5].cells()
    assert whole == ["all", "-18.0 µs", "24.0 µs", "6.0 µs", "5", "3"]
    assert row == ["mul -> no fused kernel", "-7.0 µs", "7.0 µs", "0 ns", "1", "0"]


@pytest.mark.parametrize(
    ("names", "label"),
    [
        ((), "0/0: addmm, mm"),
        (("a", "b", "c"), "0/0: 3 fused kernels (a, b, c), addmm, mm"),
        (("a", "b", "c", "d"), "0/0: 4 fused kernels (a, b, c...), addmm, mm"),
        (("x" * 30,), f"0/0: 1 fused kernel ({'x' * 30}), addmm, mm"),
        (("x" * 31,), f"0/0: 1 fused kernel ({'x' * 30}...), addmm, mm"),
    ],
)
def test_a_compiled_region_is_named_after_three_of_its_fused_kernels(names: tuple[str, ...], label: str) -> None:
    figures = compiled_figures(recording())
    assert figures is not None
    region = replace(figures.regions[0], fused=tuple(FusedKernel(f"triton_poi_fused_{name}_0", 1.0, 5) for name in names))
    assert compiled_tables([replace(figures, regions=(region,))], [""])[0].rows[0][0] == label


def test_fused_kernels_are_sorted_by_their_longest_time_in_either_trace() -> None:
    """Kernel a takes at most 50 us, and kernel b takes at most 400 us, so kernel b comes first."""
    figures = compiled_figures(recording())
    assert figures is not None
    sides = []
    for times_ns in ((50_000, 20_000), (30_000, 400_000)):
        kernels = tuple(FusedKernel(name, 1.0, time_ns) for name, time_ns in zip("ab", times_ns, strict=True))
        sides.append(replace(figures, regions=(replace(figures.regions[0], fused=kernels),)))
    assert [row[0] for row in compiled_tables(sides, ("A", "B"))[1].rows] == ["0/0 b", "0/0 a"]


def test_a_graph_break_has_one_row_although_op_names_differ_between_traces() -> None:
    """GIVEN a graph break at the op `item` in a recording WHEN this op is called `_local_scalar_dense` in the replay THEN one
    row shows both."""
    figures = [
        replace(compiled_figures(recording()), breaks=(GraphBreak("0/0", "1/0", "model.py:7", 1.0, time_ns, 0, (op,)),))
        for op, time_ns in (("aten::item", 5000), ("aten::_local_scalar_dense", 7000))
    ]
    label = "model.py:7, between 0/0 and 1/0: item"
    assert compiled_tables(figures, ("A", "B"))[2].rows == [(label, 2000, 5000, 7000, 0, 0, 1.0, 1.0)]


def test_a_table_with_one_row_of_fused_ops_has_no_sum() -> None:
    assert [row[0] for row in compiled_tables([None, None], ("A", "B"), FUSED[1:2])[5].rows] == ["add, relu -> add_relu"]


def test_equal_compilation_times_explain_no_difference() -> None:
    comparison = compare(recording(), recording())
    assert comparison.compiled is not None
    both = replace(comparison.compiled, **{
        side: replace(getattr(comparison.compiled, side), compiling_ns=60) for side in ("recorded", "replayed")
    })  # fmt: skip
    steps = replace(comparison.steps, recorded_median_ns=100, replayed_median_ns=110)
    assert compiling_sentences(replace(comparison, compiled=both, steps=steps)) == []
