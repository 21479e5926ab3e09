"""A stretch of a trace as a trace of its own.

excerpt = between(trace, start_ns, end_ns)      # all that was going on in that time, whole spans
export_chrome(excerpt, Path("range.json.gz"))
"""

from __future__ import annotations

import numpy as np

from traces.model.row_order import taken
from traces.model.trace import TABLES, Column, Table, Trace

_TIMELESS = ("values", "sizes")


def between(trace: Trace, start_ns: int, end_ns: int) -> Trace:
    """What touches the time from `start_ns` to before `end_ns`, and of device work also the calls that launched it.

    Spans are kept whole. What the host read and what was found have no time, so they go with their steps.
    """
    rows = {name: _touching(getattr(trace, name), start_ns, end_ns) for name in TABLES if name not in _TIMELESS}
    launches = trace.device.launch[rows["device"]]
    rows["host"] = np.union1d(rows["host"], launches[launches >= 0])
    for name in _TIMELESS:
        rows[name] = np.flatnonzero(np.isin(getattr(trace, name).step, rows["steps"]))
    return taken(trace, rows)


def _touching(table: Table, start_ns: int, end_ns: int) -> Column:
    columns = table.columns()
    begin = columns["start_ns"] if "start_ns" in columns else columns["time_ns"]
    end = begin + columns.get("duration_ns", 0)
    return np.flatnonzero((begin < end_ns) & ((end > start_ns) | ((end == begin) & (begin >= start_ns))))
