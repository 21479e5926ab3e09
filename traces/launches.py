"""How far the host runs ahead of the GPU: the delay of launches, and how many of them wait in a stream's queue.

    launch_figures(trace)[0]        # StreamLaunches(device="cuda:0", stream=7, count=8772, delay_median_ns=..., ...)
    queue_length(trace, 0, 7)       # QueueLength(time_ns=array([...]), length=array([...])): a step function

Definitions are Holistic Trace Analysis's: a launch's delay is from the end of the call on the host until the work begins, and a
queue holds what has been launched and not begun. Work whose launch was not recorded is left out of both. A long queue with a
delay of milliseconds is a GPU-bound program; a queue near zero is a host-bound one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.measure import grouped, work_rows
from traces.model import Column, HostKind, Trace


@dataclass(frozen=True, slots=True)
class StreamLaunches:
    """One stream over the whole trace. The mean of the queue's length is over time, from its first launch to its last start."""

    device: str
    stream: int
    count: int
    delay_median_ns: int
    delay_p95_ns: int
    queue_mean: float
    queue_most: int


@dataclass(frozen=True, slots=True)
class QueueLength:
    """`length` holds from its time to the next."""

    time_ns: Column
    length: Column

    @property
    def mean(self) -> float:
        """Over time; 0 where there is none."""
        lasted_ns = np.diff(self.time_ns)
        return float((self.length[:-1] * lasted_ns).sum() / lasted_ns.sum()) if lasted_ns.sum() else 0.0


def launched_rows(trace: Trace) -> Column:
    """The rows of `trace.device` that are work and whose launching call was recorded."""
    rows = work_rows(trace)
    launch = trace.device.launch[rows]
    return rows[(launch >= 0) & (launch < len(trace.host))]


def launch_delay_ns(trace: Trace, rows: Column) -> Column:
    """From the end of the launching call until the work begins, for rows of `launched_rows`; 0 where it began before that."""
    host, launch = trace.host, trace.device.launch[rows]
    is_call = host.kind[launch] == HostKind.RUNTIME  # in a replay it is the whole op: that launches when it begins
    called_ns = np.where(is_call, host.end_ns[launch], host.start_ns[launch])
    return np.asarray(np.maximum(trace.device.start_ns[rows] - called_ns, 0))


def queue_length(trace: Trace, device: int, stream: int) -> QueueLength:
    """What a stream's queue holds over time; a start and a launch at one time change it at once."""
    rows = launched_rows(trace)
    rows = rows[(trace.device.device[rows] == device) & (trace.device.stream[rows] == stream)]
    times_ns = np.concatenate([trace.host.start_ns[trace.device.launch[rows]], trace.device.start_ns[rows]])
    changes = np.repeat([1, -1], len(rows))
    moments, place = np.unique(times_ns, return_inverse=True)
    return QueueLength(moments, np.cumsum(np.bincount(place, weights=changes, minlength=len(moments))).astype(np.int64))


def launch_figures(trace: Trace) -> list[StreamLaunches]:
    """By device and stream, most launches first."""
    rows = launched_rows(trace)
    spans = trace.device.take(rows)
    delay_ns = launch_delay_ns(trace, rows)
    found = []
    for mine in grouped(spans.device, spans.stream):
        device, stream = int(spans.device[mine[0]]), int(spans.stream[mine[0]])
        queue = queue_length(trace, device, stream)
        median_ns, p95_ns = (round(float(value)) for value in np.percentile(delay_ns[mine], (50, 95)))
        label = trace.device_label(device)
        longest = max(int(queue.length.max()), 0)
        found.append(StreamLaunches(label, stream, len(mine), median_ns, p95_ns, round(queue.mean, 2), longest))
    return sorted(found, key=lambda of: -of.count)
