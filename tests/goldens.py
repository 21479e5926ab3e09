"""Compares results with golden files, which people can read.

After an intended change, run TRACE_RENEW_GOLDENS=1 pytest TESTS to write the files again, and read the difference.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from traces.model.json_facts import as_json
from traces.model.trace import TABLES, Trace

_ROWS = 6
_ENTRIES = 12


def assert_golden(path: Path, text: str) -> None:
    """Check that the golden file contains `text`."""
    if os.environ.get("TRACE_RENEW_GOLDENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def in_short(value: Any) -> str:
    """Return a result as readable JSON. Each innermost list or object is on one line. Lists have at most twelve entries, and
    numbers have ten digits."""
    text = json.dumps(_cut(as_json(value)), indent=1)
    return re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda inner: re.sub(r"\s+", " ", inner[0]), text) + "\n"


def _cut(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _cut(of) for key, of in value.items()}
    value = sorted(value) if isinstance(value, frozenset | set) else value
    if isinstance(value, list | tuple | np.ndarray):
        return [*map(_cut, value[:_ENTRIES]), *([f"and {len(value) - _ENTRIES} more"] if len(value) > _ENTRIES else [])]
    value = value.item() if isinstance(value, np.generic) else value
    return float(f"{value:.10g}") if isinstance(value, float) else value


def tables_in_short(trace: Trace) -> str:
    """Return each table of a trace as text: column sums and the first rows. Times are relative to the first step or span."""
    begin_ns = min((int(of.start_ns.min()) for of in (trace.steps, trace.host, trace.device) if len(of)), default=0)
    lines = []
    for name in TABLES:
        table = getattr(trace, name)
        if not len(table):
            continue
        columns = {}
        for key, column in table.columns().items():
            is_time = key.endswith("start_ns") or key in ("time_ns", "device_end_ns")
            columns[key] = np.where(column > 10**15, column - begin_ns, column) if is_time else column
        lines.append(f"{name}: {len(table)} rows")
        for key, column in columns.items():
            first = ", ".join(map(str, column[:_ROWS].tolist()))
            lines.append(f"  {key}: sum {int(column.astype(np.float64).sum())}: {first}")
    return "\n".join(lines) + "\n"
