"""Figures of compiled regions, and what a comparison says about compiled code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.replayer.compiled.handmade_recording import Events, recording
from tests.traces.handmade import replay_of, training
from traces.comparison.compare import compare
from traces.compiled.region_figures import compiled_figures
from traces.model.trace import Trace
from tui.text.compiled import compiled_sentence, compiled_sentences


def regions(*names: str) -> Trace:
    """One step that calls a region for each name."""
    events = Events()
    events.host("user_annotation", "ProfilerStep#1", 0, 1000)
    for number, name in enumerate(names):
        events.op(f"Torch-Compiled Region: {name}", 100 * number, 80, [])
        events.op("triton_poi_fused_sin_0", 100 * number + 10, 20, [[8]])
        events.launch("cuLaunchKernel", 100 * number + 15, ("triton_poi_fused_sin_0", 3))
    return events.trace()


def test_a_regions_time_is_that_of_its_kernels_per_step() -> None:
    """GIVEN kernels of 11 and 7 us in the forward and of 9 and 13 us in the backward of each of three steps."""
    (region,) = compiled_figures(recording()).regions
    assert (region.name, region.calls, region.backwards, region.gpu_ns, region.kernels) == ("0/0", 1, 1, 40_000, 4)
    assert region.fused == ("triton_poi_fused_relu_0", "triton_poi_fused_1")
    assert region.external == ("aten::addmm", "aten::mm")
    (of_graphs,) = compiled_figures(recording(graphs=True)).regions
    assert (of_graphs.graph_launches, of_graphs.gpu_ns, of_graphs.external) == (2, 40_000, ())


def test_a_further_compilation_of_a_function_is_a_recompilation() -> None:
    figures = compiled_figures(regions("0/0", "0/1", "1/0", "0/2"))
    assert (len(figures.regions), figures.recompiles, figures.graph_breaks) == (4, 2, None)


def test_a_replay_knows_its_graph_breaks() -> None:
    eager = [{"region": "4/0", "reason": "TypeError: no"}]
    told = {"regions": 3, "graph_breaks": 2, "recompiles": 1, "compile_ns": 1_500_000_000, "eager": eager}
    comparison = compare(recording(), replay_of(recording(), compiled=told))
    assert compiled_sentences(comparison) == [
        "Compiled code: 2 graph breaks, 1 recompilation; tracing took 1.500 s on this host, in the first steps.",
        "1 compiled region could not be traced and ran eagerly: 4/0 (TypeError: no).",
    ]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (regions("0/0", "1/0"), regions("0/0"), "B compiles into 1 region, A into 2."),
        (regions("0/0"), regions("0/0"), ""),
        (training(), training(), ""),
        (regions("0/0"), training(), "A is compiled and B is eager: fused kernels have no counterpart among the eager ops."),
        (training(), regions("0/0"), "B is compiled and A is eager: fused kernels have no counterpart among the eager ops."),
    ],
)
def test_a_comparison_says_if_only_one_trace_is_compiled(first: Trace, second: Trace, said: str) -> None:
    assert compiled_sentence(compare(first, second)) == said


def test_a_compiled_script_on_an_eager_recording_is_the_first_line() -> None:
    """GIVEN an eager recording WHEN a replay has compiled regions THEN the report begins with what this means."""
    from tui.text.diff import diff_text

    replayed = replay_of(regions("0/0"), compiled={"regions": 1})
    comparison = replace(compare(training(), replayed), replay=True)
    text = diff_text(comparison, "a", "b", width=200)
    assert text.startswith(
        "The script is compiled and the recording is eager: compiled code takes the times of the recorded eager ops.\n"
    )
