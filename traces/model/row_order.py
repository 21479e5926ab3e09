"""Sorts a trace's rows into the order that the model requires, and updates references to moved rows.

    trace = in_order(load("replay-4711.msgpack"))

Writers that follow several threads or streams at once append rows out of order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from traces.model.invariants import REFERENCES
from traces.model.trace import NONE, TABLES, Column, HostKind, Table, Trace


def in_order(trace: Trace) -> Trace:
    """Return the trace with sorted rows. The sort is stable.

    Steps are sorted by start, phases by (step, start), and host spans by (thread, start, longest first, ops last).
    Device spans are sorted by (device, stream, start), and memory events by time. Parts are sorted by (start, longest
    first), batches and collectives by (rank, start). The table of values keeps its order.
    """
    steps, phases, host, device = trace.steps, trace.phases, trace.host, trace.device
    parts, batches, collectives = trace.parts, trace.batches, trace.collectives
    step_order = np.argsort(steps.start_ns, kind="stable")
    orders = {
        "steps": step_order,
        "phases": np.lexsort((phases.start_ns, new_positions(step_order, len(steps))[phases.step])),
        "host": np.lexsort((host.kind == HostKind.OP, -host.duration_ns, host.start_ns, host.thread)),
        "device": np.lexsort((device.start_ns, device.stream, device.device)),
        "memory": np.argsort(trace.memory.time_ns, kind="stable"),
        "parts": np.lexsort((-parts.duration_ns, parts.start_ns)),
        "batches": np.lexsort((batches.start_ns, batches.rank)),
        "collectives": np.lexsort((collectives.start_ns, collectives.rank)),
    }
    return taken(trace, orders)


def taken(trace: Trace, rows: Mapping[str, Column]) -> Trace:
    """Return the trace with only the given rows of each named table, in the given order.

    References to kept rows are updated. References to dropped rows become NONE.
    """
    tables: dict[str, Any] = {name: getattr(trace, name).take(order) for name, order in rows.items()}
    places = {name: new_positions(order, len(getattr(trace, name))) for name, order in rows.items()}
    return repointed(replace(trace, **tables), places)


def repointed(trace: Trace, places: Mapping[str, Column]) -> Trace:
    """Return the trace with updated references.

    `places` maps each referenced table ("strings", "host"...) to an array of new row numbers, indexed by the old row number.
    Each array of row numbers ends with the element NONE.
    """
    tables: dict[str, Table] = {name: getattr(trace, name).take(slice(None)) for name in TABLES}
    for where, target in REFERENCES.items():
        if target in places:
            table, _, column = where.partition(".")
            rows = getattr(tables[table], column)
            setattr(tables[table], column, places[target][rows].astype(rows.dtype))
    changed: dict[str, Any] = tables
    return replace(trace, **changed)


def new_positions(order: Column | Sequence[int], rows: int) -> Column:
    """Return the new position of each old row after taking the rows `order`. Dropped rows get NONE. The last element is
    NONE.
    """
    place = np.full(rows + 1, NONE, dtype="i8")
    place[np.asarray(order, "i8")] = np.arange(len(order))
    return place
