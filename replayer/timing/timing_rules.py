"""Computes the start time of an op on the CPU, and the end times of its kernels on the GPU.

    advance_ns, own_ns = host_times(position_ns=40, from_ns=100, to_ns=130)                     # 60, 30
    start_ns = call_start(host_ns=1_000, advance_ns=60, called_ns=1_010, room_ns=0)             # 1060
    kernel_end(launch_ns=1_070, latency_ns=5, ready_ns=1_100, gap_ns=1, duration_ns=50)         # 1151

- `call_start`: an op starts at the recorded pace, but not before the script calls the op, and not before the launch queue has
  room.
- `kernel_end`: a kernel starts when its launch has reached the GPU and earlier work on its stream has ended.
"""

from __future__ import annotations

import numpy as np

from traces.model.trace import Column


def host_times(position_ns: int, from_ns: int, to_ns: int) -> tuple[int, int]:
    """Return two recorded CPU times: the time between the previous op and this op, and the time of this op."""
    begin_ns = max(from_ns, position_ns)
    return begin_ns - position_ns, max(to_ns - begin_ns, 0)


def call_start(host_ns: int, advance_ns: int, called_ns: int, room_ns: int) -> int:
    return max(host_ns + advance_ns, called_ns, room_ns)


def kernel_end(launch_ns: int, latency_ns: int, ready_ns: int, gap_ns: int, duration_ns: int) -> int:
    return max(launch_ns + latency_ns, ready_ns + gap_ns) + duration_ns


def queue_ends(alone_ns: Column, spans_ns: Column, before_ns: int) -> Column:
    """Return the end times of kernels that run one after another on a CUDA stream.

    - `alone_ns[i]`: the end of kernel i on an idle stream
    - `spans_ns[i]`: the shortest time between the ends of kernel i - 1 and kernel i
    - `before_ns`: the end of the stream's earlier work
    """
    sums_ns = np.cumsum(spans_ns)
    ends_ns: Column = np.maximum(np.maximum.accumulate(alone_ns - sums_ns), before_ns) + sums_ns
    return ends_ns
