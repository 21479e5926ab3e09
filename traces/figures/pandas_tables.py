"""Converts the tables of a trace to pandas data frames, if pandas is installed.

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
    """Return one table of `trace`, such as "steps", as a data frame. Raises TraceError if pandas is not installed."""
    kind = TABLES.get(table)
    if kind is None:
        raise TraceError(f"{table} is not a table of a trace; choose one of: {', '.join(TABLES)}")
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise TraceError(f"{table}: pandas is not installed; run `pip install pandas`") from error

    def categories(column: np.ndarray, texts: Sequence[str]) -> pandas.Categorical:
        used, codes = np.unique(column, return_inverse=True)
        absent = int(np.searchsorted(used, 0))
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
