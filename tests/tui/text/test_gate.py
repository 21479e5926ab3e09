"""Tests the line of a build log that describes a budget."""

from __future__ import annotations

import pytest

from traces.comparison.gate import Check
from tui.text.gate import check_words


@pytest.mark.parametrize(
    ("name", "value", "budget", "passed", "words"),
    [
        ("step_time", 180e6, 200e6, True, "step_time 180.0 ms of 200.0 ms"),
        ("step_time", 210e6, 200e6, False, "step_time 210.0 ms over 200.0 ms"),
        ("step_time_change", 0.07, 0.05, False, "step_time_change +7.0 % over +5.0 %"),
        ("matched", 0.9, 0.99, False, "matched 90.0 % under 99.0 %"),
        ("matched", 1.0, 0.99, True, "matched 100.0 % of 99.0 %"),
        ("memory_peak", 3 << 30, 2 << 30, False, "memory_peak 3.0 GiB over 2.0 GiB"),
        ("missing_ops", 3, 0, False, "missing_ops 3 over 0"),
        ("graph_breaks", 0, 2, True, "graph_breaks 0 of 2"),
        ("recompiles", 1, 0, False, "recompiles 1 over 0"),
        ("step_time", None, 200e6, False, "step_time is unknown"),
        ("same_program", 1, 1, True, "same_program yes"),
        ("same_program", 0, 1, False, "same_program no"),
        ("same_program", None, 1, False, "same_program unknown"),
    ],
)
def test_a_budget_is_described_in_words(name: str, value: float | None, budget: float, passed: bool, words: str) -> None:
    assert check_words(Check(name, budget, value, passed)) == words
