"""Finds durations that are impossible on a GPU, and corrects them.

    durations_ns(device, dependent_launch=True)   # possible durations of kernels
    longer_than(spans, window_ns)                 # a mask of spans longer than the recording
    without_duration(spans)                       # a mask of kernels of 0 ns
    ends_after_wait(spans, host, calls, copies)   # a mask of work that ends after the host has waited for it

Note [One after another]
    A stream runs its kernels one after another. Two kernels of a stream overlap only
    * by up to a microsecond, because times are rounded;
    * within one launch of a CUDA graph, because branches of a graph run concurrently;
    * on NVIDIA GPUs of compute capability 9.0 and newer, with programmatic dependent launch.
    If two kernels overlap for another reason, the importer ends the earlier kernel where the later kernel begins. In profiles
    of AMD GPUs, the end of a kernel may be microseconds to seconds too late.
"""

from __future__ import annotations

import numpy as np

from traces.comparison.thresholds import CLOCKS_APART_NS, LEAST_IDLE_LAUNCHES, ROUNDING_NS
from traces.kineto.spans.launches import DeviceColumns
from traces.model.trace import NONE, Column, DeviceKind, DeviceSpans, HostSpans
from traces.names.profiler_json import ProfilerJson

_DEPENDENT_LAUNCH_SINCE = 9


def has_dependent_launch(properties: list[ProfilerJson], is_amd: bool) -> bool:
    majors = [major for of in properties if type(major := of.get("computeMajor")) is int]
    return not is_amd and (not majors or max(majors) >= _DEPENDENT_LAUNCH_SINCE)


def durations_ns(device: DeviceColumns, dependent_launch: bool) -> Column:
    """Return the durations of all GPU events. If two kernels of one stream overlap, the first kernel is shortened.

    If a kernel seems to end after a later kernel of another launch, its duration is impossible and is set to 0.
    """
    # see Note [One after another]
    spans = device.spans
    kernels = np.flatnonzero(spans.kind == DeviceKind.KERNEL)
    kernels = kernels[np.lexsort((spans.start_ns[kernels], spans.stream[kernels], spans.device[kernels]))]
    found = spans.duration_ns.copy()
    bounds = np.flatnonzero((np.diff(spans.stream[kernels]) != 0) | (np.diff(spans.device[kernels]) != 0)) + 1
    for rows in np.split(kernels, bounds):
        starts, latest = spans.start_ns[rows], spans.end_ns[rows] - ROUNDING_NS
        launch = np.where(device.correlation[rows] > 0, device.correlation[rows], -1 - np.arange(len(rows)))
        after = np.searchsorted(starts, latest)  # the first kernel that begins after the end of this kernel
        for place in np.flatnonzero(after > np.arange(len(rows)) + 1).tolist():
            later = slice(place + 1, after[place])
            others, ends_first = launch[later] != launch[place], spans.end_ns[rows[later]] < latest[place]
            if (others & ends_first).any():
                found[rows[place]] = 0
            elif others.any() and not dependent_launch:
                found[rows[place]] = starts[later][others][0] - starts[place]
    return found


def without_duration(spans: DeviceSpans) -> Column:
    """Find kernels for which the file contains a duration of 0 ns, which is impossible. If the profiler rounds to microseconds,
    0 ns may be the rounded duration of a short kernel."""
    kernels = spans.kind == DeviceKind.KERNEL
    found = kernels & (spans.duration_ns == 0)
    is_rounded = not (spans.duration_ns[kernels] % 1000).any()
    is_majority = 2 * np.count_nonzero(found) > np.count_nonzero(kernels)
    return found if is_majority or not is_rounded else np.zeros_like(found)


def launches_on_idle_devices(spans: DeviceSpans, call_end_ns: Column) -> int:
    """Count the kernels and copies that started long after their launch although the GPU was idle."""
    rows = np.flatnonzero(spans.is_work & (spans.launch != NONE))
    rows = rows[np.lexsort((spans.start_ns[rows], spans.device[rows]))]
    device, launched_ns = spans.device[rows], call_end_ns[spans.launch[rows]]
    idle_launches = 0
    for own in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(device)) + 1):
        done_ns = np.maximum.accumulate(spans.end_ns[rows[own]])[:-1]
        idle_launches += int((done_ns <= launched_ns[own[1:]]).sum())
    if idle_launches < LEAST_IDLE_LAUNCHES or (spans.start_ns[rows] - launched_ns).min() <= CLOCKS_APART_NS:
        return 0
    return idle_launches


def ends_after_wait(spans: DeviceSpans, host: HostSpans, waits_for_all: Column, waited_for: Column) -> Column:
    """Find work with a wrong end time. The end time of GPU work is wrong if it is later than the return of a CUDA call that
    waited for the work. `waits_for_all` marks CUDA calls that wait for all work of the GPU. `waited_for` marks copies whose
    CUDA call returns only after the copy."""
    returned_ns = np.append(host.end_ns, np.iinfo(np.int64).max - CLOCKS_APART_NS)[spans.launch]
    found: Column = waited_for & (spans.end_ns > returned_ns + CLOCKS_APART_NS)
    rows = np.flatnonzero(spans.is_work & (spans.launch != NONE))
    calls = np.flatnonzero(waits_for_all)
    if not len(rows) or not len(calls) or len(np.unique(spans.device[rows])) > 1:
        return found
    for thread in np.unique(host.thread[calls]).tolist():
        own = calls[host.thread[calls] == thread]
        own = own[np.argsort(host.start_ns[own], kind="stable")]
        mine = rows[host.thread[spans.launch[rows]] == thread]
        after = np.searchsorted(host.start_ns[own], host.end_ns[spans.launch[mine]])  # the next call after the launch
        returned_ns = np.append(host.end_ns[own], np.iinfo(np.int64).max - CLOCKS_APART_NS)[after]
        found[mine] |= spans.end_ns[mine] > returned_ns + CLOCKS_APART_NS
    return found


def longer_than(spans: DeviceSpans | HostSpans, window_ns: int) -> Column:
    if not window_ns:
        return np.zeros(len(spans), bool)
    return np.asarray(spans.duration_ns > window_ns + ROUNDING_NS)
