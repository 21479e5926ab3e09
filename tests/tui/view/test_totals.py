"""Tests that calls and times of ops and kernels are added by name."""

from __future__ import annotations

import numpy as np
import pytest

from tests.traces.handmade import Call, training
from traces.model.trace import NONE
from tui.view.scene.totals import Totals, kernel_totals, op_totals, totals_by_name

NAMES = ["mm", "mm.out", "relu"]


@pytest.mark.parametrize(
    ("of_out_ns", "total"),
    [
        (49, Totals("mm", 4, 99, 10, 49)),
        (50, Totals("mm", 4, 100, 10, 50)),  # both names have the same time, so the first name is used
        (51, Totals("mm.out", 4, 101, 10, 51)),
    ],
)
def test_totals_of_similar_names_are_added_under_the_name_with_the_most_time(of_out_ns: int, total: Totals) -> None:
    """GIVEN calls of mm that take 50 ns in total, and one call of mm.out THEN the sum has the name that takes more time."""
    names, weights = np.array([0, 2, 1, 0]), np.array([1, 3, 1, 2])
    found = totals_by_name(
        NAMES.__getitem__, names, weights, np.array([10, 5, of_out_ns, 20]), lambda text: text.partition(".")[0]
    )
    assert found == {"mm": total, "relu": Totals("relu", 3, 15, 5, 5)}


def test_kernels_without_a_known_launch_do_not_count_for_ops() -> None:
    """GIVEN four steps with two ops, whose kernels take 10 us each WHEN the launches of one kernel are not known THEN only the
    other kernel counts in the times of ops. Both kernels count in the times of kernels."""
    trace = training(made=[Call("aten::mm", "4,4;4,4", 31, "gemm"), Call("aten::relu", "4,4", 41, "clamp")])
    trace.device.launch[trace.device.name == trace.strings.find("clamp")] = NONE
    once = np.ones(len(trace.device), np.int64)
    assert {name: of.total_ns for name, of in op_totals(trace, once).items()} == {"mm": 40_000}
    assert {name: of.total_ns for name, of in kernel_totals(trace, once).items()} == {"gemm": 40_000, "clamp": 40_000}
