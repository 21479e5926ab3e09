"""Idle time, modules, stragglers and rates as text."""

from __future__ import annotations

import pytest

from traces.analyses.analyse import Analyses
from traces.analyses.idle import IdleReason, IdleTime
from traces.analyses.modules import ModuleTime
from traces.comparison.comparison_figures import Both
from traces.rates.achieved_rates import OpRates
from tui.text.analyses import analysis_rows, both_sections, idle_per_step, idle_rows, idle_sentence, per_step_words

MS = 1_000_000


def idle(steps: int, window_ms: int, **by_reason: int) -> IdleTime:
    reasons = {reason.name.lower(): by_reason.get(reason.name.lower(), 0) * MS for reason in IdleReason}
    return IdleTime(window_ms * MS, window_ms * MS - sum(reasons.values()), reasons, steps)


ONE = {"cuda:0": idle(4, 200, data=40, host=20)}
TWO = {"cuda:0": idle(4, 200, data=40, host=20), "cuda:1": idle(2, 200, data=60)}


def test_idle_time_per_step_is_the_mean_over_all_gpus() -> None:
    """10 and 30 ms of data, 5 and 0 ms of the host."""
    found = {words: ns for words, ns in idle_per_step(TWO).items() if ns}
    assert found == {"waiting for data": 20 * MS, "host-bound": 2.5 * MS}
    assert set(idle_per_step({}).values()) == {0}
    assert idle_per_step({"cuda:0": idle(0, 200, data=40)})["waiting for data"] == 40 * MS


def test_the_idle_time_table_has_a_row_for_each_reason() -> None:
    assert idle_rows(TWO, together=False) == [["waiting for data", "10.0 ms", "30.0 ms"], ["host-bound", "5.0 ms", "0 ns"]]
    assert idle_rows(TWO, together=True) == [["waiting for data", "20.0 ms"], ["host-bound", "2.5 ms"]]
    assert idle_rows({}, together=True) == []


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
def test_figures_of_a_single_step_are_not_called_per_step(of: dict[str, IdleTime], together: bool, words: str) -> None:
    assert per_step_words(of, together=together) == words


def test_info_names_the_three_largest_reasons_for_idle_time() -> None:
    assert idle_sentence({}) == ""
    assert idle_sentence({"cuda:0": idle(4, 200)}) == "0.0 %"
    assert idle_sentence(ONE) == "30.0 %; on average per step: waiting for data 10.0 ms, host-bound 5.0 ms"
    several = {"cuda:0": idle(1, 200, data=10, host=40, launch=30, unknown=20)}
    assert idle_sentence(several).count(" ms") == 3 and "10.0 ms" not in idle_sentence(several)


def test_the_table_of_rates_is_left_out_if_no_rate_is_known() -> None:
    def rates(size: int | None) -> OpRates:
        return OpRates("add", "", "", 1, MS, None, size, None, None, None, None, False)

    def rows(*achieved: OpRates) -> int:
        found = Analyses({}, [], [], [], [], list(achieved), [], [], [], None)
        return next(len(cells) for title, _, cells in analysis_rows(found) if title.startswith("Achieved rates by kind of op"))

    assert rows(rates(None), rates(None)) == 0 and rows(rates(None), rates(8)) == 2


def test_the_table_of_rates_says_for_how_much_gpu_time_rates_are_known() -> None:
    """GIVEN an op of 1 ms without a rate, and an op of 4 ms with known bytes for 2 ms THEN 40 % of the time has a rate."""
    unknown = OpRates("foo", "", "", 1, MS, None, None, None, None, None, None, False)
    partly = OpRates("add", "", "", 2, 4 * MS, None, 8, None, None, 4.0, None, False, bytes_ns=2 * MS)
    titles = [title for title, _, _ in analysis_rows(Analyses({}, [], [], [], [], [partly, unknown], [], [], [], None))]
    assert "Achieved rates by kind of op (known for 40.0 % of GPU time)" in titles


def with_modules(*modules: ModuleTime, idle: dict[str, IdleTime] | None = None, rates: tuple[OpRates, ...] = ()) -> Analyses:
    return Analyses(idle or {}, [], [], [], [], list(rates), [], list(modules), [], None)


def module(path: str, forward_ms: int, backward_ms: int, host_ms: int | None) -> ModuleTime:
    return ModuleTime(path, 1.0, forward_ms * MS, backward_ms * MS, 0, None if host_ms is None else host_ms * MS)


def module_rows(*pair: Analyses) -> tuple[str, list[list[str]]]:
    found = both_sections(Both(*pair), [])
    return next((title, rows) for title, rows in found if "time of modules" in title)


def test_the_gpu_time_of_a_module_contains_its_backward_pass() -> None:
    first = with_modules(module("net", 1, 0, 9), module("net/a/b", 10, 20, 9), module("only here", 5, 5, 9))
    second = with_modules(module("net", 1, 0, 9), module("net/a/b", 30, 30, 9))
    rows = [["net", "1.0 ms", "1.0 ms"], ["    b", "30.0 ms", "60.0 ms"]]
    assert module_rows(first, second) == ("GPU time of modules, per step", rows)


def test_without_gpu_times_the_host_times_of_modules_are_compared() -> None:
    first, second = (with_modules(module("net", 0, 0, host_ms)) for host_ms in (7, None))
    assert module_rows(first, second) == ("Host time of modules, per step", [["net", "7.0 ms", "0 ns"]])


def test_the_ten_modules_that_take_the_longest_in_either_trace_are_compared() -> None:
    """GIVEN ten modules of 5 ms and one that takes 1 ms in A and 90 ms in B, and one of 4 ms."""
    modules = [module(f"m{place}", 5, 0, 0) for place in range(9)]
    first = with_modules(*modules, module("late", 1, 0, 0), module("short", 4, 0, 0))
    second = with_modules(*modules, module("late", 90, 0, 0), module("short", 4, 0, 0))
    assert [row[0] for row in module_rows(first, second)[1]] == [*(f"m{place}" for place in range(9)), "late"]


@pytest.mark.parametrize(("gpus", "heads"), [(4, ["", "cuda:0", "cuda:1", "cuda:2", "cuda:3"]), (5, ["", "mean of all"])])
def test_up_to_four_gpus_have_separate_columns_for_idle_time(gpus: int, heads: list[str]) -> None:
    found = with_modules(idle={f"cuda:{place}": idle(4, 200, data=40) for place in range(gpus)})
    assert next(iter(analysis_rows(found)))[1] == heads


@pytest.mark.parametrize(("share", "shown"), [(0.5, "50.0 %"), (1.0, "100.0 %"), (1.5, "150.0 %, from the cache")])
def test_only_ops_faster_than_the_memory_bandwidth_are_marked_from_the_cache(share: float, shown: str) -> None:
    rate = OpRates("add", "", "", 1, MS, None, 8, None, None, 8.0, share, False, cached="from the cache")
    cells = next(cells for title, _, cells in analysis_rows(with_modules(rates=(rate,))) if title.startswith("Achieved rates"))
    assert cells[0][-1] == shown
