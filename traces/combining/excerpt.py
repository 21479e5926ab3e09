"""Extracts a time range from a trace.

    excerpt = excerpt_between(trace, start_ns, end_ns)      # everything active in that time, as whole spans
    export_chrome(excerpt, Path("range.json.gz"))
"""

from __future__ import annotations

import numpy as np

from traces.model.row_order import with_rows
from traces.model.trace import NONE, TABLES, Column, Table, Trace

_TIMELESS = ("values", "sizes")


def excerpt_between(trace: Trace, start_ns: int, end_ns: int) -> Trace:
    rows = {name: _touching(getattr(trace, name), start_ns, end_ns) for name in TABLES if name not in _TIMELESS}
    launches = trace.device.launch[rows["device"]]
    rows["host"] = np.union1d(rows["host"], launches[launches != NONE])
    for name in _TIMELESS:
        rows[name] = np.flatnonzero(np.isin(getattr(trace, name).step, rows["steps"]))
    return with_rows(trace, rows)


def _touching(table: Table, start_ns: int, end_ns: int) -> Column:
    columns = table.columns()
    begin = columns["start_ns"] if "start_ns" in columns else columns["time_ns"]
    end = begin + columns.get("duration_ns", 0)
    return np.flatnonzero((begin < end_ns) & ((end > start_ns) | ((end == begin) & (begin >= start_ns))))
