"""Creates counters for a Chrome trace: the allocated GPU memory and the number of queued kernel launches.

    for counter in counters(trace): print(counter.name, counter.device, counter.time_ns, counter.value)

Timeline viewers draw counters as curves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traces.analyses.launches import launched_rows, queue_length
from traces.figures.measure import memory_curves
from traces.model.trace import Column, Trace

_MOST = 20_000  # most points per curve; a longer curve keeps the highest value of each stretch


@dataclass(frozen=True, slots=True)
class Counter:
    name: str
    unit: str
    device: int  # row of `trace.devices`
    time_ns: Column
    value: Column


def counters(trace: Trace) -> Iterator[Counter]:
    for device, curve in memory_curves(trace).items():
        yield _thinned(Counter("memory allocated", "bytes", device, curve.time_ns, curve.allocated_bytes))
    spans = trace.device.take(launched_rows(trace))
    for device, stream in sorted(set(zip(spans.device.tolist(), spans.stream.tolist(), strict=True))):
        queue = queue_length(trace, device, stream)
        yield _thinned(Counter(f"launch queue, stream {stream}", "launches", device, queue.time_ns, queue.length))


def _thinned(of: Counter) -> Counter:
    if len(of.time_ns) <= _MOST:
        return of
    first = np.linspace(0, len(of.time_ns), _MOST, endpoint=False).astype(np.int64)
    return Counter(of.name, of.unit, of.device, of.time_ns[first], np.maximum.reduceat(of.value, first))
