"""Rows of the timeline keep their order, however they come: one by one or as tables."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replayer.timeline import Rows

# What is done to the rows: a single one (True), a table of that many, or all are taken (None).
_DONE = st.lists(st.one_of(st.just(True), st.integers(0, 4), st.none()))


@given(_DONE)
def test_rows_come_out_in_the_order_in_which_they_came(done: list[bool | int | None]) -> None:
    rows, number, taken = Rows(2), 0, []
    for what in done:
        if what is None:
            taken += rows.take()
            assert len(rows) == 0
        elif what is True:
            rows.loose.extend((number, -number))
            number += 1
        else:
            numbers = np.arange(number, number + what)
            rows.add(np.stack((numbers, -numbers), axis=1))
            number += what
        assert len(rows) == number - sum(map(len, taken))
    taken += rows.take()
    table = np.concatenate([np.empty((0, 2), np.int64), *taken])
    assert table.tolist() == [[i, -i] for i in range(number)]
