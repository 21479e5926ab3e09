"""Removes events that occur twice in a file, for example because overlapping recordings were joined.

    host, device, comms = each_event_once(host, device, comms, problems)
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from traces.kineto.spans.launches import DeviceColumns, HostColumns
from traces.model.trace import Column, HostKind
from traces.names.profiler_json import ProfilerJson


def each_event_once(
    host: HostColumns, device: DeviceColumns, comms: dict[int, ProfilerJson], problems: Counter[str]
) -> tuple[HostColumns, DeviceColumns, dict[int, ProfilerJson]]:
    """Return the columns without duplicate events. One CUDA graph may launch the same kernel twice. A repeated kernel is
    therefore removed only if its launch call is also a duplicate."""
    spans = host.spans
    calls = np.flatnonzero((spans.kind == HostKind.RUNTIME) & (host.correlation > 0))
    again = calls[_repeated([host.correlation[calls], spans.start_ns[calls], spans.duration_ns[calls], spans.name[calls]])]
    if not len(again):
        return host, device, comms
    ids = np.unique(host.correlation[again])
    host_again = _repeated(
        [spans.start_ns, spans.duration_ns, spans.thread, spans.kind, spans.name, host.op, host.named, host.correlation]
    )
    work = device.spans
    without_call = ~np.isin(device.correlation, host.correlation)
    device_again = (np.isin(device.correlation, ids) | without_call) & _repeated(
        [device.correlation, work.start_ns, work.duration_ns, work.device, work.stream, work.name, work.graph_node]
    )
    problems["repeated-event"] += int(host_again.sum() + device_again.sum())
    kept, kept_work = ~host_again, ~device_again
    row_of = np.cumsum(kept) - 1
    return (
        HostColumns(spans.take(kept), host.op[kept], host.named[kept], host.correlation[kept]),
        DeviceColumns(work.take(kept_work), device.named[kept_work], device.correlation[kept_work]),
        {int(row_of[row]): args for row, args in comms.items() if kept[row]},
    )


def _repeated(columns: list[Column]) -> Column:
    order = np.lexsort(columns[::-1])
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in columns:
        same &= column[order][1:] == column[order][:-1]
    found = np.zeros(len(order), bool)
    found[order[1:][same]] = True
    return found
