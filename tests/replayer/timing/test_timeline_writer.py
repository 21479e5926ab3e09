"""Rows of the timeline keep their order, however they come: one by one or as tables."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.timing.timeline.timeline_writer import BufferedRows, DeferredRows, TimelineWriter, put_together
from traces.format.trace_file import TraceStream
from traces.model.trace import Column, Trace

# What is done to the rows: a single one (True), a table of that many (to be made later, if negative), or all are taken (None).
_DONE = st.lists(st.one_of(st.just(True), st.integers(-4, 4), st.none()))


@given(_DONE)
def test_buffered_rows_keep_their_order(done: list[bool | int | None]) -> None:
    rows, number, left = BufferedRows(2), 0, 0
    tables: list[Column | DeferredRows] = [np.empty((0, 2), np.int64)]
    for what in done:
        if what is None:
            tables += rows.pop()
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
    assert put_together([*tables, *rows.pop()]).tolist() == [[i, -i] for i in range(number)]


def test_a_disk_that_never_answers_ends_the_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a writing thread that hangs in the first write
    monkeypatch.setattr("replayer.timing.timeline.timeline_writer._WRITES_WITHIN_S", 0.05)
    answers = threading.Event()
    stream = TraceStream(tmp_path / "replay.msgpack")
    monkeypatch.setattr(stream, "add_strings", lambda texts: answers.wait())
    timeline = TimelineWriter(stream, Trace())
    timeline.strings.add("relu")
    # THEN flushing and closing end with an error that names the file
    for end in (timeline.flush, timeline.close):
        with pytest.raises(TimeoutError, match=r"replay\.msgpack: the last rows were not written within 0\.05 s"):
            end(Trace())
    answers.set()
