"""Rows of the timeline keep their order, however they come: one by one or as tables."""

from __future__ import annotations

from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replayer.timing.timeline.timeline_writer import BufferedRows, DeferredRows, put_together
from traces.model.trace import Column

# What is done to the rows: a single one (True), a table of that many (to be made later, if negative), or all are taken (None).
_DONE = st.lists(st.one_of(st.just(True), st.integers(-4, 4), st.none()))


@given(_DONE)
def test_buffered_rows_keep_their_order(done: list[bool | int | None]) -> None:
    rows, number, left = BufferedRows(2), 0, 0
    tables: list[Column | DeferredRows] = [np.empty((0, 2), np.int64)]
    for what in done:
        if what is None:
            tables += rows.take()
            left = number
            assert len(rows) == 0
        elif what is True:
            rows.loose.extend((number, -number))
            number += 1
        else:
            numbers = np.arange(number, number + abs(what))
            make = partial(np.stack, (numbers, -numbers), axis=1)
            assert rows.add(make() if what >= 0 else DeferredRows(-what, make)) == abs(what)
            number += abs(what)
        assert len(rows) == number - left
    assert put_together([*tables, *rows.take()]).tolist() == [[i, -i] for i in range(number)]
