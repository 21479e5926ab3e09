"""Determines whether cuBLAS kept its workspace allocated in the recorded program.

After the script has ended, the recorder measures the workspaces of all cuBLAS handles. If a workspace still exists at the end,
cuBLAS kept its workspaces. If the script ran matrix products but no workspace exists at the end, cuBLAS kept no workspaces.
Profiles do not have a measurement of the workspaces. Profiles do not show the exact PyTorch release, nor workspaces that were
allocated before the profiler began. Some PyTorch releases allocate and free a workspace in each matrix product. The recorded
memory events show such workspaces.

    keeps_workspaces(trace, rank, frozenset({8_519_680}))    # True, False, or None if the recording does not show it

If the total allocated memory after a matrix product is smaller than a workspace, cuBLAS kept none, whatever the PyTorch
release. For example, cuBLAS keeps no workspace if CUBLAS_WORKSPACE_CONFIG is set, or if torch.compile captures all matrix
products.

Since PyTorch 2.0, a cuBLAS handle keeps a workspace (CUBLAS_WORKSPACE_CONFIG, ATen/cuda/CublasHandlePool.cpp). On AMD GPUs,
each hipBLAS handle keeps a workspace.
"""

from __future__ import annotations

import numpy as np

from traces.model.run import KINETO
from traces.model.trace import HostKind, Trace

_PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm"))


def keeps_workspaces(trace: Trace, rank: int, sizes_bytes: frozenset[int]) -> bool | None:
    """Return whether cuBLAS kept its workspaces. `sizes_bytes` has the possible sizes of a cuBLAS workspace on the recorded
    GPU.

    Returns None if the recording does not show whether workspaces were kept. For example, returns None for an unknown PyTorch
    release, or if memory events have no totals (PyTorch 1.9).
    """
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
    told = (trace.machine_of(rank).torch or "").partition(" ")[0]
    if trace.run_of(rank).source != KINETO or told not in ("1.13", "2.4"):
        return None
    taken = events.take(np.isin(events.bytes, [-size for size in sizes_bytes]))
    for thread in np.unique(taken.thread):
        here = products[host.thread[products] == thread]
        times_ns = taken.time_ns[taken.thread == thread]
        within = np.searchsorted(host.start_ns[here], times_ns, side="right") - 1
        if len(here) and ((within >= 0) & (times_ns <= host.end_ns[here][np.maximum(within, 0)])).any():
            return False
    return True
