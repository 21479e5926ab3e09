"""The tables of a trace as pandas frames, where pandas is installed.

to_pandas(trace, "device").groupby("name").duration_ns.sum().nlargest(10)     # the kernels that took longest
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from traces.model.invariants import KINDS, REFERENCES, column_at
from traces.model.trace import NONE, TABLES, Trace, TraceError

if TYPE_CHECKING:
    import pandas


def to_pandas(trace: Trace, table: str) -> pandas.DataFrame:
    """One table of `trace` ("steps", "phases", "host", "device", "memory"...; see TABLES of the model) as a frame.

    Has the table's columns, row by row, so that a column that points into another table (`device.launch` into `host`) is that
    frame's index. Text stands in place of its index into the string table, a kind's or origin's name in lower case in place of
    its number; both are categories. `end_ns` follows `duration_ns`. What is absent (NONE in the table) is missing here (<NA>).

    Raises TraceError if there is no table of that name, or no pandas.
    """
    kind = TABLES.get(table)
    if kind is None:
        raise TraceError(f"{table}: no table of a trace, which has: {', '.join(TABLES)}")
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise TraceError(f"{table}: a frame needs pandas, which is not installed; pip install pandas") from error

    def categories(column: np.ndarray, texts: Sequence[str]) -> pandas.Categorical:
        used, codes = np.unique(column, return_inverse=True)
        absent = int(np.searchsorted(used, 0))  # NONE comes first
        return pandas.Categorical.from_codes(codes - absent, [texts[number] for number in used[absent:].tolist()])

    columns = {}
    for name, default in kind.DEFAULTS.items():
        where = f"{table}.{name}"
        column = column_at(trace, where)
        if REFERENCES.get(where) == "strings":
            columns[name] = categories(column, trace.strings.texts)
        elif where in KINDS:
            columns[name] = categories(column, [member.name.lower() for member in KINDS[where]])
        elif default == NONE:
            columns[name] = pandas.arrays.IntegerArray(column.copy(), column == NONE)
        else:
            columns[name] = column
        if name == "duration_ns":
            columns["end_ns"] = column_at(trace, f"{table}.end_ns")
    return pandas.DataFrame(columns, copy=False)
