"""Determines whether cuBLAS kept its workspace allocated.

    keeps_workspaces(trace, rank, frozenset({8_519_680}))    # True, False, or None if the recording does not show it

PyTorch's ATen/cuda/CublasHandlePool.cpp has the rules for workspaces.
"""

from __future__ import annotations

import numpy as np

from traces.model.run import KINETO
from traces.model.trace import HostKind, Trace

_PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm"))


def keeps_workspaces(trace: Trace, rank: int, sizes_bytes: frozenset[int]) -> bool | None:
    """Return True if cuBLAS kept its workspaces allocated, or None if unknown. `sizes_bytes` has a workspace's possible
    sizes."""
    host, memory, held_bytes = trace.host, trace.memory, trace.machine_of(rank).cublas_bytes
    if held_bytes:
        return True
    is_product = trace.strings.matching(host.name, _PRODUCTS.__contains__)
    of_rank = [row for row, thread in enumerate(trace.threads) if thread.rank == rank]
    products = np.flatnonzero((host.kind == HostKind.OP) & is_product & np.isin(host.thread, of_rank))
    events = memory.take((memory.device >= 0) & (memory.allocated_bytes >= 0) & np.isin(memory.thread, of_rank))
    if held_bytes == 0 and len(products):
        return False
    if not len(events):
        return None
    after = events.time_ns > host.end_ns[products].min() if len(products) else slice(None)
    if len(np.unique(events.device)) == 1 and (events.allocated_bytes[after] < min(sizes_bytes)).any():
        return False
    if not len(products):
        return None
    version = (trace.machine_of(rank).torch or "").partition(" ")[0]
    if trace.run_of(rank).source != KINETO or version not in ("1.13", "2.4"):
        return None
    taken = events.take(np.isin(events.bytes, [-size for size in sizes_bytes]))
    for thread in np.unique(taken.thread):
        here = products[host.thread[products] == thread]
        times_ns = taken.time_ns[taken.thread == thread]
        within = np.searchsorted(host.start_ns[here], times_ns, side="right") - 1
        if len(here) and ((within >= 0) & (times_ns <= host.end_ns[here][np.maximum(within, 0)])).any():
            return False
    return True
