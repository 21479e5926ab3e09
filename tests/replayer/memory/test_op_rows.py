"""Tests that memory events refer to the right rows of ops, even while ops wait to be simulated."""

from __future__ import annotations

import numpy as np
import pytest

from replayer.memory.op_rows import OpRows, host_rows


def _rows(row: int, next_row: int) -> OpRows:
    """Return op rows: ops 0 to 4 were simulated first, then ops 5 to 8 from `row` on. Ops 9 to 12 still wait."""
    rows = OpRows([0] * 3 * 4)  # Each op has three entries.
    rows.played(5, 0, 1_000)
    rows.played(4, row, next_row)
    return rows


@pytest.mark.parametrize(
    ("op", "row"),
    [(2, 1_000), (5, 1_000), (8, 1_003), (9, 2_000), (11, 2_002), (12, 2_003), (13, 2_004), (30, 2_004)],
)
def test_waiting_ops_get_the_rows_after_the_last_played_ops(op: int, row: int) -> None:
    """An op from an earlier batch gets the first row of the last batch. An op after the waiting ops gets the row after them."""
    rows = _rows(1_000, 2_000)
    assert rows.launched_count() == 13
    one, counted_from_2, two = (
        rows.with_offset(np.array(ops), first) for ops, first in (([op], 0), ([op - 2], 2), ([op, 8], 0))
    )
    assert host_rows([one]).tolist() == [row]
    assert host_rows([one, counted_from_2, two]).tolist() == [row, row, row, 1_003]


def test_row_numbers_of_played_ops_never_exceed_the_next_row() -> None:
    ops = _rows(1_000, 1_001).with_offset(np.array([5, 6, 8, 9]))
    assert host_rows([ops]).tolist() == [1_000, 1_001, 1_001, 1_001]
