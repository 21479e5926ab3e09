"""Tests how idle time, modules, stragglers and rates are written as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traces.analyses.analyse import Analyses
from traces.analyses.communication import Communication
from traces.analyses.critical_path import PathSums
from traces.analyses.idle import IdleReason, IdleTime
from traces.analyses.launches import StreamLaunches
from traces.analyses.modules import ModuleTime
from traces.comparison.comparison_figures import StreamShare
from traces.rates.achieved_rates import OpRates
from tui.formatting import FigureTable
from tui.text.analyses import (
    ANALYSES,
    Sides,
    analysis_tables,
    exposure_sentence,
    idle_per_step,
    idle_sentence,
    per_step_words,
)

MS = 1_000_000


def idle(steps: int, window_ms: int, **by_reason: int) -> IdleTime:
    reasons = {reason.name.lower(): by_reason.get(reason.name.lower(), 0) * MS for reason in IdleReason}
    return IdleTime(window_ms * MS, window_ms * MS - sum(reasons.values()), reasons, steps)


ONE = {"cuda:0": idle(4, 200, data=40, host=20)}
TWO = {"cuda:0": idle(4, 200, data=40, host=20), "cuda:1": idle(2, 200, data=60)}


def test_idle_time_per_step_is_the_mean_over_all_gpus() -> None:
    """On average, the two GPUs wait 10 and 30 ms for data, and 5 and 0 ms for the host."""
    found = {words: ns for words, ns in idle_per_step(TWO).items() if ns}
    assert found == {"waiting for data": 20 * MS, "host-bound": 2.5 * MS}
    assert set(idle_per_step({}).values()) == {0}
    assert idle_per_step({"cuda:0": idle(0, 200, data=40)})["waiting for data"] == 40 * MS


def table_named(title: str, *sides: Analyses) -> FigureTable:
    return next(of for of in analysis_tables(sides, ["A", "B"][: len(sides)]) if of.title.startswith(title))


def test_idle_time_is_also_shown_as_a_share_of_the_mean_step_time() -> None:
    """GIVEN two GPUs with steps of 50 and 100 ms, so 75 ms on average, THEN idle times of 20 and 2.5 ms are 27 % and 3 % of the
    average step time. If a GPU has no steps, its whole time counts as one step."""
    for of, shares in ((TWO, [20 / 75, 2.5 / 75]), ({"cuda:0": idle(0, 200, data=40)}, [0.2]), ({}, [])):
        table = ANALYSES["idle"].table(Sides([with_modules(idle=of)], ["A"]))
        assert [row[2] for row in table.rows] == pytest.approx(shares)


def test_the_idle_time_table_has_a_row_for_each_reason() -> None:
    table = table_named("GPU idle", with_modules(idle=TWO))
    assert table.cells() == [["waiting for data", "10.0 ms", "30.0 ms"], ["host-bound", "5.0 ms", "0 ns"]]
    both = table_named("GPU idle", with_modules(idle=TWO), with_modules(idle=ONE))
    assert both.cells() == [
        ["waiting for data", "-10.0 ms", "20.0 ms", "10.0 ms"], ["host-bound", "+2.5 ms", "2.5 ms", "5.0 ms"]
    ]  # fmt: skip
    assert table_named("GPU idle", with_modules()).rows == []


@pytest.mark.parametrize(
    ("of", "together", "words"),
    [
        (ONE, True, ", per step"),
        (TWO, True, ", per step and GPU"),
        (TWO, False, ", per step"),
        ({"cuda:0": idle(1, 200)}, True, ""),
        ({"cuda:0": idle(1, 200), "cuda:1": idle(2, 200)}, True, ", per step and GPU"),
    ],
)
def test_figures_of_one_step_are_shown_without_the_words_per_step(of: dict[str, IdleTime], together: bool, words: str) -> None:
    assert per_step_words(of, together=together) == words


def test_info_names_the_three_largest_reasons_for_idle_time() -> None:
    assert idle_sentence({}) == ""
    assert idle_sentence({"cuda:0": idle(4, 200)}) == "0.0 %"
    assert idle_sentence(ONE) == "30.0 %; on average per step: waiting for data 10.0 ms, host-bound 5.0 ms"
    several = {"cuda:0": idle(1, 200, data=10, host=40, launch=30, unknown=20)}
    assert idle_sentence(several).count(" ms") == 3 and "10.0 ms" not in idle_sentence(several)


def test_the_table_of_rates_is_left_out_if_no_rate_is_known() -> None:
    def rates(op: str, size: int | None) -> OpRates:
        return OpRates(op, "", "", 1, MS, None, size, None, None, None, None, False)

    def rows(*achieved: OpRates) -> int:
        found = Analyses({}, [], [], [], [], list(achieved), [], [], [], None)
        return len(table_named("Achieved rates by kind of op", found).rows)

    assert rows(rates("a", None), rates("b", None)) == 0 and rows(rates("a", None), rates("b", 8)) == 2


def test_the_table_of_rates_says_for_how_much_gpu_time_rates_are_known() -> None:
    """GIVEN ops that take 5 ms in total WHEN a rate is known for 2 ms THEN the title says that rates are known for 40 % of the
    time."""
    unknown = OpRates("foo", "", "", 1, MS, None, None, None, None, None, None, False)
    partly = OpRates("add", "", "", 2, 4 * MS, None, 8, None, None, 4.0, None, False, bytes_ns=2 * MS)
    table = table_named("Achieved rates", with_modules(rates=(partly, unknown)))
    assert table.title == "Achieved rates by kind of op (known for 40.0 % of GPU time)"


@pytest.mark.parametrize(
    ("slowed", "title"),
    [
        ([False], "Critical path of step 7, 3.0 ms"),
        ([True], "Critical path of profiled step 7, 3.0 ms"),
        ([False, False], "Critical path of a step, 3.0 ms -> 3.0 ms"),
        ([True, False], "Critical path of a step, 3.0 ms (profiled) -> 3.0 ms"),
        ([False, True], "Critical path of a step, 3.0 ms -> 3.0 ms (profiled)"),
        ([True, True], "Critical path of a profiled step, 3.0 ms -> 3.0 ms"),
    ],
)
def test_the_title_of_a_critical_path_says_which_steps_were_profiled(slowed: list[bool], title: str) -> None:
    paths = [PathSums(7, 0, 3 * MS, {"kernel": 3 * MS}, {"mm": 3 * MS}, is_slowed) for is_slowed in slowed]
    assert table_named("Critical path", *(replace(with_modules(), critical_path=path) for path in paths)).title == title


def with_modules(*modules: ModuleTime, idle: dict[str, IdleTime] | None = None, rates: tuple[OpRates, ...] = ()) -> Analyses:
    return Analyses(idle or {}, [], [], [], [], list(rates), [], list(modules), [], None)


def module(path: str, forward_ms: int, backward_ms: int, host_ms: int | None) -> ModuleTime:
    return ModuleTime(path, 1.0, forward_ms * MS, backward_ms * MS, 0, None if host_ms is None else host_ms * MS)


def test_the_gpu_time_of_a_module_contains_its_backward_pass() -> None:
    first = with_modules(module("net", 1, 0, 9), module("net/a/b", 10, 20, 9), module("only here", 5, 5, 9))
    second = with_modules(module("net", 1, 0, 9), module("net/a/b", 30, 30, 9))
    assert table_named("Modules, per step", first, second).cells() == [
        ["net", "0", "1.0 ms", "1.0 ms", "9.0 ms", "9.0 ms"],
        ["net/a/b", "+30.0 ms", "30.0 ms", "60.0 ms", "9.0 ms", "9.0 ms"],
        ["only here", "-10.0 ms", "10.0 ms", "-", "9.0 ms", "-"],
    ]


def test_a_trace_without_modules_does_not_count_as_faster() -> None:
    """GIVEN a module that only one trace has THEN no change is shown. Compiled recordings have no modules."""
    assert table_named("Modules, per step", with_modules(module("net", 1, 0, 9)), with_modules()).cells() == [
        ["net", "-", "1.0 ms", "-", "9.0 ms", "-"]
    ]


def test_the_rate_of_an_op_in_only_one_trace_has_no_change() -> None:
    def rates(*ops: str) -> Analyses:
        return with_modules(rates=tuple(OpRates(op, "", "", 1, MS, None, 8, 2.0, 0.5, 8.0, 0.5, False) for op in ops))

    changes = {row[0]: row[1] for row in table_named("Achieved rates", rates("add", "mm"), rates("mm")).cells()}
    assert changes == {"add": "-", "mm": "0.0"}


def test_host_times_of_modules_are_compared_even_without_gpu_times() -> None:
    first, second = (with_modules(module("net", 0, 0, host_ms)) for host_ms in (7, None))
    assert table_named("Modules, per step", first, second).cells() == [["net", "0", "0 ns", "0 ns", "7.0 ms", "-"]]


def test_the_modules_that_take_the_longest_are_compared_in_the_order_of_their_calls() -> None:
    """GIVEN 17 modules THEN the table shows the 16 modules that take the longest in either trace, in the order of their
    calls."""
    modules = [module(f"m{place}", 5, 0, 0) for place in range(15)]
    first = with_modules(*modules, module("late", 6, 0, 0), module("short", 4, 0, 0))
    second = with_modules(*modules, module("late", 90, 0, 0), module("short", 4, 0, 0))
    shown = [row[0] for row in table_named("Modules, per step", first, second).rows]
    assert shown == [*(f"m{place}" for place in range(15)), "late"]


@pytest.mark.parametrize(("gpus", "heads"), [(1, ["time"]), (4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]), (5, ["time"])])
def test_info_shows_idle_time_of_up_to_four_gpus_in_separate_columns(gpus: int, heads: list[str]) -> None:
    found = with_modules(idle={f"cuda:{place}": idle(4, 200, data=40) for place in range(gpus)})
    assert [head.name for head in table_named("GPU idle", found).heads] == ["", *heads]


@pytest.mark.parametrize(("share", "note"), [(0.5, ""), (1.0, ""), (1.5, "from the cache")])
def test_only_ops_faster_than_the_memory_bandwidth_are_marked_from_the_cache(share: float, note: str) -> None:
    rate = OpRates("add", "", "", 1, MS, None, 8, None, None, 8.0, share, False, cached="from the cache")
    assert ANALYSES["rates"].table(Sides([with_modules(rates=(rate,))], [""])).rows[0][-1] == note
    assert (table_named("Achieved rates", with_modules(rates=(rate,))).heads[-1].name == "note") == bool(note)
    bounded = replace(rate, flops_bounded=True, bytes_share=0.5)
    assert table_named("Achieved rates", with_modules(rates=(bounded,))).cells()[0][-1] == "≤"


def test_exposed_communication_of_one_step_is_shown_without_the_words_per_step() -> None:
    several = Communication((), 4 * MS, 12 * MS, steps=2, exposed_per_step_ns=2 * MS, hidden_per_step_ns=6 * MS)
    said = "exposed 2.0 ms, hidden behind computation 6.0 ms (75.0 %)"
    assert exposure_sentence(several) == f"{said} per step"
    assert exposure_sentence(replace(several, steps=1)) == said and exposure_sentence(None) == ""


def test_the_app_shows_all_figures_of_an_analysis_but_text_shows_the_important_ones() -> None:
    rate = OpRates("mm", "", "", 4, 8 * MS, 10, 8, 1.5, 0.25, 80.0, 0.5, False)
    of = with_modules(rates=(rate,))
    assert ANALYSES["rates"].table(Sides([of], [""])).rows == [("mm", 8 * MS, 2 * MS, 4, 1.5, 0.25, 80.0, 0.5, "")]
    assert table_named("Achieved rates", of).rows == [("mm", 8 * MS, 1.5, 0.25, 80.0, 0.5)]
    slower = with_modules(rates=(replace(rate, device_ns=12 * MS, tflops=1.0, gbps=None),))
    assert table_named("Achieved rates", of, slower).rows == [("mm", -0.5, 1.5, 1.0, 80.0, None)]


def test_the_comparison_pairs_the_streams_of_two_traces() -> None:
    """GIVEN stream 7 of A, which matches stream 20 of B, and stream 9, which only A has THEN the table has two rows. Stream 5
    has no recorded launches."""
    sides = [
        Analyses({}, [], [StreamLaunches("cuda:0", number, 5, 1_000 * number, 2, 0.5, 3) for number in numbers], [], [], [], [],
                 [], [], None)
        for numbers in ((7, 9), (20,))
    ]  # fmt: skip
    streams = [StreamShare("cuda:0", 7, 20, 0.5, 0.5), StreamShare("cuda:0", 9, None, 0.1, None)]
    streams.append(StreamShare("cuda:0", 5, 5, 0.1, 0.1))
    rows = ANALYSES["launches"].table(Sides(sides, ["A", "B"], streams)).rows
    assert [row[:4] for row in rows] == [
        ("cuda:0 stream 7/20", 13_000, 7_000, 20_000), ("cuda:0 stream 9", -9_000, 9_000, None)
    ]  # fmt: skip
