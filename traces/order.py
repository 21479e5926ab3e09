"""Brings a trace's rows into the order that the model promises, and mends the row numbers that point at moved rows.

Writers that follow several threads or streams at once append rows as they come; `in_order` is for what they wrote.

    trace = in_order(load("replay-4711.msgpack"))
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traces.model import Column, Trace


def in_order(trace: Trace) -> Trace:
    """The same trace with host spans by (thread, start, longest first) and device spans by (device, stream, start)."""
    host, device = trace.host, trace.device
    host_order = np.lexsort((-host.duration_ns, host.start_ns, host.thread))
    device_order = np.lexsort((device.start_ns, device.stream, device.device))
    host, device = host.take(host_order), device.take(device_order)
    host.parent = _moved(host.parent, host_order)
    device.launch = _moved(device.launch, host_order)
    return replace(trace, host=host, device=device, memory=trace.memory.take(np.argsort(trace.memory.time_ns, kind="stable")))


def _moved(rows: Column, order: Column) -> Column:
    """Row numbers after the rows were taken in `order`; NONE stays NONE."""
    place = np.empty(len(order) + 1, dtype=rows.dtype)
    place[order] = np.arange(len(order), dtype=rows.dtype)
    place[-1] = -1
    return np.asarray(place[rows])
