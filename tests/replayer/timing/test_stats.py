"""Tests the host times of a replay, per step and per op."""

from __future__ import annotations

import pytest

from replayer.timing.timeline.stats import ReplayStats


def ended(*steps: tuple[int, int, int, bool]) -> ReplayStats:
    """Return the statistics of steps. Each step has a number of ops, a lag, a host time, and whether the step is kept."""
    stats = ReplayStats()
    for stats.ops, stats.lag_ns, busy_ns, keep in steps:
        stats.end_step(busy_ns, keep=keep)
    return stats


@pytest.mark.parametrize(("speed", "us_per_op"), [(1.0, 3.0), (2.0, 1.5)])
def test_host_figures_are_medians_of_the_steps_that_count(speed: float, us_per_op: float) -> None:
    """Two kept steps have 2 us and 4 us per op. A third step is not kept."""
    figures = ended((4, 100, 8000, True), (9, 900, 9_000_000, False), (2, 300, 8000, True)).host_figures(speed)
    assert (figures.us_per_op, figures.ops_per_step) == (us_per_op, 3)
    assert (figures.lag_ns_per_step, figures.lag_ns_of_worst_step) == (200, 300)


def test_a_step_without_ops_counts_as_one_op() -> None:
    assert ended((0, 0, 5000, True)).host_figures(1.0).us_per_op == 5.0


def test_the_time_per_op_is_unknown_if_no_step_counts() -> None:
    assert ended((4, 100, 8000, False)).host_figures(1.0).us_per_op is None


def test_ops_that_were_not_recorded_are_counted_by_shape() -> None:
    stats = ReplayStats()
    for shapes in (((2,),), ((2,),), ((3,),)):
        stats.miss("aten::mm", shapes)
    assert stats.missing == {("aten::mm", ((2,),)): 2, ("aten::mm", ((3,),)): 1}
