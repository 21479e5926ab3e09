"""Compares merged, joined and cut traces with readable golden files, which contain the rows of each table and the sums of its
columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.goldens import assert_golden, in_short, tables_in_short
from tests.traces.crowded import GRID, crowded
from tests.traces.handmade import US, data_parallel, phase_grained, training
from traces.combining.excerpt import excerpt_between
from traces.combining.merge import merge_ranks, trace_of_ranks, with_profile
from traces.model.trace import Trace

GOLDEN = Path(__file__).with_name("golden")


def made() -> dict[str, Trace]:
    three = merge_ranks([training(3, kernel_us=12), data_parallel(4), phase_grained(2)], [2, 0, 1])
    whole = training(6, jitter_us=(0, 2))
    return {
        "three_ranks": three,
        "rank_two": trace_of_ranks(three, [2]),
        "profiled": with_profile(data_parallel(6), training(2), [7, 8]),
        "crowded": excerpt_between(many := crowded(seed=1), int(many.steps.start_ns[1]) + 7 * GRID, int(many.steps.end_ns[3])),
        "excerpt": excerpt_between(whole, int(whole.steps.start_ns[2]) + 25 * US, int(whole.steps.start_ns[4]) + 35 * US),
    }


@pytest.mark.parametrize("name", made())
def test_combined_traces_equal_their_golden_files(name: str) -> None:
    trace = made()[name]
    facts: dict[str, Any] = {"grain": trace.grain, "devices": trace.devices, "threads": trace.threads}
    facts |= {"lacks": trace.lacks, "problems": trace.problems}
    assert_golden(GOLDEN / f"{name}.txt", tables_in_short(trace) + in_short(facts))
