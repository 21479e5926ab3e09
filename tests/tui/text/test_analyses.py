"""Idle time, modules, stragglers and rates as text."""

from __future__ import annotations

import pytest

from traces.analyses.analyse import Analyses
from traces.analyses.idle import IdleReason, IdleTime
from traces.rates.achieved_rates import OpRates
from tui.text.analyses import analysis_rows, idle_per_step, idle_rows, idle_sentence, per_step_words

MS = 1_000_000


def idle(steps: int, window_ms: int, **by_reason: int) -> IdleTime:
    reasons = {reason.name.lower(): by_reason.get(reason.name.lower(), 0) * MS for reason in IdleReason}
    return IdleTime(window_ms * MS, window_ms * MS - sum(reasons.values()), reasons, steps)


ONE = {"cuda:0": idle(4, 200, data=40, host=20)}
TWO = {"cuda:0": idle(4, 200, data=40, host=20), "cuda:1": idle(2, 200, data=60)}


def test_idle_time_per_step_is_the_mean_of_the_gpus() -> None:
    """10 and 30 ms of data, 5 and 0 ms of the host."""
    found = {words: ns for words, ns in idle_per_step(TWO).items() if ns}
    assert found == {"waiting for data": 20 * MS, "host-bound": 2.5 * MS}
    assert set(idle_per_step({}).values()) == {0}
    assert idle_per_step({"cuda:0": idle(0, 200, data=40)})["waiting for data"] == 40 * MS


def test_the_table_has_a_row_for_each_reason_of_idle_time() -> None:
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


def test_the_sentence_names_the_three_largest_reasons_of_idle_time() -> None:
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
        return next(len(cells) for title, _, cells in analysis_rows(found) if title == "Achieved rates by kind of op")

    assert rows(rates(None), rates(None)) == 0 and rows(rates(None), rates(8)) == 2
