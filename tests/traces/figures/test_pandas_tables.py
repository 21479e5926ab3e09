"""Tests that each table of a trace can be converted to a pandas DataFrame."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import traces
from tests.traces.handmade import data_parallel, training


def test_a_pandas_frame_contains_the_rows_of_its_table_and_names_as_text() -> None:
    for trace in (data_parallel(), training()):
        for table in ("steps", "phases", "parts", "host", "device", "memory", "values", "batches", "collectives", "sizes"):
            columns, frame = getattr(trace, table).columns(), traces.to_pandas(trace, table)
            assert len(frame) == len(getattr(trace, table))
            assert [name for name in frame if name != "end_ns"] == list(columns)
    device = traces.to_pandas(trace, "device")
    names = [trace.strings[index] for index in trace.device.name]
    assert device.name.tolist() == names and set(device.kind) <= {"kernel", "memcpy", "memset", "sync", "annotation"}
    assert np.array_equal(device.end_ns, trace.device.end_ns)
    # THEN a column that refers to another table contains the index of that table's frame
    host = traces.to_pandas(trace, "host")
    launched = device.dropna(subset="launch").iloc[0]
    assert host.loc[launched.launch, "start_ns"] == trace.host.start_ns[launched.launch]
    # THEN absent values are missing values in pandas
    assert device.launch.isna().sum() == (trace.device.launch == traces.NONE).sum()
    assert device.bytes.isna().tolist() == (trace.device.bytes == traces.NONE).tolist()
    assert (device.dtypes["bytes"], device.dtypes["start_ns"]) == ("Int64", "int64")
    assert host.shapes.isna().sum() == (trace.host.shapes == traces.NONE).sum() < len(host)


def test_an_empty_pandas_frame_has_all_columns() -> None:
    frame = traces.to_pandas(traces.Trace(), "collectives")
    assert len(frame) == 0 and "dtype" in frame and "end_ns" in frame


def test_a_missing_pandas_or_an_unknown_table_raises_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(traces.TraceError, match=r"^kernels is not a table of a trace; choose one of: steps, phases, host, "):
        traces.to_pandas(traces.Trace(), "kernels")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(traces.TraceError, match=r"^host: pandas is not installed; run `pip install pandas`$"):
        traces.to_pandas(traces.Trace(), "host")
