"""Whether cuBLAS kept a workspace in the recorded program.

Our recorder measures what the handles held when the script had ended; where the recording has products, that tells. A
profiler's file does not name its release of PyTorch exactly, and what is kept was mostly allocated before the recording began.
But its products tell: a release that allocates a workspace for each product does so within it, and frees it there.

    keeps_workspaces(trace, rank, frozenset({8_519_680}))    # True, False, or None where the recording does not tell

Nor is one kept where less than that is allocated after a product, whatever the release: so it is in a process that has set
CUBLAS_WORKSPACE_CONFIG.

From PyTorch 2.0 on, a cuBLAS handle keeps one (CUBLAS_WORKSPACE_CONFIG, ATen/cuda/CublasHandlePool.cpp), and AMD's handles
likewise, beside what cuBLASLt and hipBLASLt take for each product. memory/cublas_workspaces.py tells how large it is.
"""

from __future__ import annotations

import numpy as np

from traces.model.run import KINETO
from traces.model.trace import HostKind, Trace

_PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm"))


def keeps_workspaces(trace: Trace, rank: int, sizes_bytes: frozenset[int]) -> bool | None:
    """Whether kept ones are to be expected; `sizes_bytes` are those that a handle of the recorded device may have.

    None where only the release could tell: without memory events that have totals (PyTorch 1.9), without a product among them,
    or of an unknown release.
    """
    host, memory, held_bytes = trace.host, trace.memory, trace.machine_of(rank).cublas_bytes
    if held_bytes:
        return True
    names = [i for i, text in enumerate(trace.strings.texts) if text in _PRODUCTS]
    of_rank = [row for row, thread in enumerate(trace.threads) if thread.rank == rank]
    products = np.flatnonzero((host.kind == HostKind.OP) & np.isin(host.name, names) & np.isin(host.thread, of_rank))
    events = memory.take((memory.device >= 0) & (memory.allocated_bytes >= 0) & np.isin(memory.thread, of_rank))
    if held_bytes == 0 and len(products):
        return False
    if not len(products) or not len(events):
        return None
    after = events.time_ns > host.end_ns[products].min()
    if len(np.unique(events.device)) == 1 and (events.allocated_bytes[after] < min(sizes_bytes)).any():
        return False
    told = (trace.machine_of(rank).torch or "").partition(" ")[0]
    if trace.run_of(rank).source != KINETO or told not in ("1.13", "2.4"):
        return None
    taken = events.take(np.isin(events.bytes, [-size for size in sizes_bytes]))  # and given back
    for thread in np.unique(taken.thread):
        here = products[host.thread[products] == thread]
        times_ns = taken.time_ns[taken.thread == thread]
        within = np.searchsorted(host.start_ns[here], times_ns, side="right") - 1
        if len(here) and ((within >= 0) & (times_ns <= host.end_ns[here][np.maximum(within, 0)])).any():
            return False
    return True
