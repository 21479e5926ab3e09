"""Estimates when the GPU finished each training phase, because imported recordings contain no CUDA events.

    markers = Markers(tables.host, tables.device)
    markers.at(boundaries_ns)         # per boundary: the end of all work that was launched before it on the busiest GPU
"""

from __future__ import annotations

import numpy as np

from traces.kineto.spans.launches import before_launched_work
from traces.model.trace import NONE, Column, DeviceSpans, HostSpans

BEFORE_ALL_NS = -(1 << 62)


class Markers:
    def __init__(self, host: HostSpans, device: DeviceSpans, number: int = NONE) -> None:
        work = np.flatnonzero(device.is_work)
        if number != NONE:
            work = work[device.device[work] == number]
        self.device = NONE
        if not len(work):
            return
        numbers, which = np.unique(device.device[work], return_inverse=True)
        busiest = int(np.argmax(np.bincount(which, weights=device.duration_ns[work])))
        self.device = int(numbers[busiest])
        work = work[which == busiest]
        launch = device.launch[work]
        # If the launch of a kernel was not recorded, use the start of the kernel as its launch time. Kernels that were launched
        # before the recording get the earliest possible launch time.
        backlog = before_launched_work(device, device.launch)[work]
        unknown_ns = np.where(backlog, BEFORE_ALL_NS, device.start_ns[work])
        launched_ns = np.where(launch == NONE, unknown_ns, host.start_ns[launch])
        order = np.argsort(launched_ns, kind="stable")
        self._launched_ns = launched_ns[order]
        self._ended_ns = np.append(0, np.maximum.accumulate(device.end_ns[work][order]))  # index: number of launches so far

    def at(self, times_ns: Column) -> Column:
        if self.device == NONE:
            return np.full(len(times_ns), NONE)
        return np.asarray(np.maximum(times_ns, self._ended_ns[np.searchsorted(self._launched_ns, times_ns)]))
