"""Finds out when the host waited for a GPU, and which kernel or copy it waited for.

    waits = host_waits(trace, rank=0)           # one entry per wait, in order of their ends
    waits.start_ns, waits.end_ns                # when the host was blocked
    waits.work                                  # the index in `trace.device` of the kernel or copy that it waited for

Note [A wait is what happened]
    A runtime call was a wait if two conditions are met: the GPU had work when the call began, and the call returned just after
    the end of this work. The call must return at most RETURN_NS after the last earlier kernel of its stream, or after the copy
    that it made. A call must also last at least LEAST_WAIT_NS, except if CUDA documents that it waits (`_SYNCHRONOUS`). The
    clocks of GPU and host differ by microseconds (CLOCK_NS), so a kernel may seem to end after the call.

    call                                        documented                                          source
    *Synchronize, urQueueFinish, urEventWait    waits                                               [1] [3]
    cudaMemcpy, cuMemcpyDtoH..., hipMemcpy      waits, except from device to device                 [1]
    copies of pageable memory, Async or not     to the host: waits for the copy;
                                                to the device: waits for the stream, then stages    [1]
    hipMemcpyWithStream                         waits: a copy, then hipStreamSynchronize            [2]
    cudaFree, cuMemFree, hipFree                waits for all work of the device                    [4] [2]
    launches, *Async, cudaEventRecord,
    cudaEventQuery, cudaStreamWaitEvent         does not wait                                       [1]

    [1] CUDA Runtime API, "API synchronization behavior" and the calls' own pages  [2] HIP API, "Memory management" [3] oneAPI
    Unified Runtime specification  [4] CUDA C++ Programming Guide, "Stream Ordered Memory Allocator"

Note [A loop of queries]
    A script may wait by asking again and again whether an event is complete. Consecutive queries without an op or launch in
    between count as one wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from traces.comparison.thresholds import CLOCK_NS, LAST_PART_OF_A_WAIT, LEAST_WAIT_NS, RETURN_NS
from traces.figures.measure import backlog, device_ranks, host_ranks, launch_time_ns, work_rows
from traces.model.intervals import Intervals
from traces.model.result_cache import cached_result, result_cache
from traces.model.row_order import by_value, grouped
from traces.model.trace import HOST_SPAN_OR_NONE, I4, I8, NONE, Column, DeviceKind, HostKind, Table, Trace
from traces.names.device_names import copy_direction

_SYNCHRONOUS = ("Synchronize", "urQueueFinish", "urEventWait", "MemcpyWithStream", "cudaFree", "hipFree", "cuMemFree")
_QUERIES = ("EventQuery", "StreamQuery")


class HostWaits(Table):
    start_ns: I8
    end_ns: I8
    call: HOST_SPAN_OR_NONE  # the call, or the last query in a loop of queries
    thread: I4
    work: I8

    @property
    def intervals(self) -> Intervals:
        return Intervals(self.start_ns, self.end_ns)


@dataclass(frozen=True, slots=True)
class _PossibleWaits:
    row: Column
    start_ns: Column
    end_ns: Column
    checked_ns: Column  # the host did not wait for work that ended before this time
    is_synchronous: Column  # True if the call is documented to wait
    is_loop: Column

    @property
    def tolerance_ns(self) -> Column:
        return np.asarray(np.minimum((self.end_ns - self.start_ns) // LAST_PART_OF_A_WAIT, RETURN_NS))


def host_waits(trace: Trace, rank: int) -> HostWaits:
    # see Note [A wait is what happened]
    return waits_by_rank(trace).get(rank, HostWaits.empty())


@cached_result
def waits_by_rank(trace: Trace) -> dict[int, HostWaits]:
    launched_ns = np.where(backlog(trace), np.iinfo(np.int64).min, launch_time_ns(trace))
    if len(trace.ranks) == 1:
        return {rank: _host_waits(trace, rank, launched_ns) for rank in trace.ranks}
    ranks, host, device = host_ranks(trace), trace.host, trace.device
    of_rank = by_value(ranks)
    work_ranks = device_ranks(trace)
    within = np.full(len(host) + 1, NONE)  # each row's place among its rank's rows; the last is for unknown launches
    for rows in of_rank.values():
        within[rows] = np.arange(len(rows))
    is_own = np.append(ranks, NONE)[device.launch] == work_ranks
    launch = np.where(is_own, within[device.launch], NONE)
    found = {}
    for rank, spans in by_value(work_ranks).items():
        if rank not in of_rank:
            continue
        rows = of_rank[rank]
        part = replace(trace, host=host.taken_later(rows), device=device.taken_later(spans))
        part.device.launch = launch[spans]
        with result_cache(fresh=True):
            waits = _host_waits(part, rank, launched_ns[spans])
        found[rank] = replace(waits, call=rows[waits.call], work=spans[waits.work])
    return found


def _host_waits(trace: Trace, rank: int, launched_ns: Column) -> HostWaits:
    calls, device = _calls(trace, rank), trace.device
    rows = work_rows(trace)
    rows = rows[device_ranks(trace)[rows] == rank]
    if not len(calls.row) or not len(rows):
        return HostWaits.empty()
    own = _own_work(trace, rows)[calls.row]
    end_ns, work = np.full(len(own), NONE, "i8"), np.full(len(own), NONE, "i8")
    behind = np.zeros(len(own), dtype=bool)  # True if the work that a call launched was queued behind other work
    returned_ns = calls.end_ns + np.where(calls.is_loop, 0, CLOCK_NS)
    for on in grouped(device.device[rows], device.stream[rows]):
        stream = rows[on][np.lexsort((device.end_ns[rows[on]], launched_ns[rows[on]]))]
        ended_ns = np.maximum.accumulate(device.end_ns[stream])
        mine = (device.device[own] == device.device[stream[0]]) & (device.stream[own] == device.stream[stream[0]])
        mine &= own != NONE
        # A wait for a CUDA event does not include kernels that were launched after the event. A copy waits only for earlier
        # work on the same stream.
        any_work = calls.is_loop | (calls.is_synchronous & (mine | (own == NONE)))
        queued = np.searchsorted(launched_ns[stream], calls.start_ns, side="left") - 1  # the last work launched before the call
        ended = np.searchsorted(ended_ns, returned_ns, side="right") - 1  # the last work that ended before the call returned
        idle = (queued >= 0) & (ended_ns[queued] <= calls.end_ns + CLOCK_NS)  # the stream had no unfinished work
        last = np.where(any_work & ~idle, np.minimum(queued, ended), queued)
        last_ns = np.where((last >= 0) & (idle | any_work), ended_ns[last], NONE)
        waited = (last_ns > calls.checked_ns) & (any_work | (last_ns >= calls.end_ns - calls.tolerance_ns))
        later = waited & (last_ns > end_ns)
        end_ns[later] = last_ns[later]
        work[later] = stream[np.searchsorted(ended_ns, last_ns[later], side="left")]
        behind |= mine & (queued >= 0) & (ended_ns[queued] > calls.start_ns)
    start_ns = calls.start_ns
    waits_for_own = _waits_for_own(trace, calls, own)
    start_ns = np.where(waits_for_own & ~behind & (work == NONE), np.maximum(device.start_ns[own], start_ns), start_ns)
    end_ns = np.minimum(np.where(waits_for_own, device.end_ns[own], end_ns), calls.end_ns)
    work = np.where(waits_for_own, own, work)
    found = np.flatnonzero((work != NONE) & (end_ns > start_ns) & (calls.is_synchronous | (end_ns - start_ns >= LEAST_WAIT_NS)))
    found = found[np.argsort(end_ns[found], kind="stable")]
    return HostWaits.of(
        start_ns=start_ns[found],
        end_ns=end_ns[found],
        call=calls.row[found],
        thread=trace.host.thread[calls.row[found]],
        work=work[found],
    )


def _own_work(trace: Trace, rows: Column) -> Column:
    own = np.full(len(trace.host) + 1, NONE, "i8")  # the last is for unknown launches
    own[trace.device.launch[rows]] = rows
    return own[:-1]


def _waits_for_own(trace: Trace, calls: _PossibleWaits, own: Column) -> Column:
    """Mark the CUDA calls that waited for the copy or kernel that they launched."""
    device = trace.device
    is_copy = device.kind[own] == DeviceKind.MEMCPY
    ended = device.end_ns[own] <= calls.end_ns + CLOCK_NS
    by_times = ended & (device.end_ns[own] >= calls.end_ns - calls.tolerance_ns) & (device.duration_ns[own] >= LEAST_WAIT_NS)
    documented = is_copy & ended & calls.is_synchronous
    is_staged = is_copy & trace.strings.matching(device.name[own], lambda text: "Pageable" in text)
    began = (device.start_ns[own] < calls.end_ns) & (device.end_ns[own] > calls.start_ns)
    return np.asarray((own != NONE) & began & (by_times | documented | is_staged) & ~calls.is_loop)


def _calls(trace: Trace, rank: int) -> _PossibleWaits:
    host = trace.host
    launch = trace.device.launch[trace.device.launch != NONE]
    active = np.unique(np.append(host.thread[host.kind == HostKind.OP], host.thread[launch]))
    rows = np.flatnonzero((host.kind == HostKind.RUNTIME) & np.isin(host.thread, active) & (host_ranks(trace) == rank))
    synchronous = np.isin(rows, synchronous_calls(trace, rank))
    query = trace.strings.matching(host.name[rows], lambda text: text.endswith(_QUERIES))
    alone = ~query & (synchronous | (host.duration_ns[rows] >= LEAST_WAIT_NS))
    first, before_last, last = _loops(trace, rows[query])
    every = np.concatenate([rows[alone], last])
    return _PossibleWaits(
        row=every,
        start_ns=np.concatenate([host.start_ns[rows[alone]], host.start_ns[first]]),
        end_ns=host.end_ns[every],
        checked_ns=np.concatenate([host.start_ns[rows[alone]], host.start_ns[before_last]]),
        is_synchronous=np.append(synchronous[alone], np.zeros(len(last), dtype=bool)),
        is_loop=np.append(np.zeros(int(alone.sum()), dtype=bool), np.ones(len(last), dtype=bool)),
    )


def calls_by_rank(trace: Trace) -> dict[int, Column]:
    rows = np.flatnonzero(trace.host.kind == HostKind.RUNTIME)
    return {rank: rows[of] for rank, of in by_value(host_ranks(trace)[rows]).items()}


def synchronous_calls(trace: Trace, rank: int) -> Column:
    host, device, matching = trace.host, trace.device, trace.strings.matching
    rows = np.flatnonzero((host.kind == HostKind.RUNTIME) & (host_ranks(trace) == rank))
    copies = matching(host.name[rows], lambda text: "emcpy" in text and "Async" not in text)
    between_devices = matching(device.name, lambda text: copy_direction(text) in ("d2d", "p2p"))
    found = matching(host.name[rows], _waits_always) | (copies & ~np.isin(rows, device.launch[between_devices]))
    return rows[found | np.isin(rows, device.launch[matching(device.name, lambda text: "Pageable" in text)])]


def _waits_always(call: str) -> bool:
    return any(mark in call for mark in _SYNCHRONOUS) and "Async" not in call


def _loops(trace: Trace, queries: Column) -> tuple[Column, Column, Column]:
    # see Note [A loop of queries]
    host = trace.host
    breaks = np.append(host.kind == HostKind.OP, False)  # the last is for unknown launches
    breaks[trace.device.launch] = True
    broken = np.cumsum(breaks)
    if not len(queries):
        return queries[:0], queries[:0], queries[:0]
    same = (host.thread[queries[1:]] == host.thread[queries[:-1]]) & (broken[queries[1:]] == broken[queries[:-1]])
    begins, ends = np.append(True, ~same), np.append(~same, True)
    several = ~(begins[ends.nonzero()[0]])
    first, last = queries[begins][several], np.flatnonzero(ends)[several]
    return first, queries[last - 1], queries[last]
