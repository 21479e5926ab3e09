"""The timing rules of a replay: when an op starts on its host thread, and when its kernels end on their stream.

All times are integer nanoseconds of recorded time. This module does not sleep, keep state or use torch.

    advance_ns, own_ns = host_times(position_ns=40, from_ns=100, to_ns=130)                     # 60, 30
    start_ns = call_start(host_ns=1_000, advance_ns=60, called_ns=1_010, room_ns=0)             # 1060
    kernel_end(launch_ns=1_070, latency_ns=5, ready_ns=1_100, gap_ns=1, duration_ns=50)         # 1151

1. *Host pace* (`host_times`): host time from the previous op to this one, and host time in this op, as recorded. A recorded
   call may overlap or enclose calls that were already played, and the script may call in another order. So only time beyond
   the segment's current position counts, and a segment never takes more host time than was recorded.
2. *Call* (`call_start`): an op starts at the recorded pace, when the script really calls it, or when the launch queue has
   room, whichever is last.
3. *Kernel* (`kernel_end`): it starts when its launch has reached the device and the work before it on the stream has ended,
   each with its own recorded delay (Note [Why a kernel started when it did], indexer.py).

`queue_ends` applies the same rules to arrays. Consecutive calls on a host thread and consecutive kernels on a stream both end
at max(their end if alone, the end of the previous one plus their own span).
"""

from __future__ import annotations

import numpy as np

from traces.model.trace import Column


def host_times(position_ns: int, from_ns: int, to_ns: int) -> tuple[int, int]:
    """Host time before an op and in it, for a script that has reached `position_ns` of the recorded segment.

    `from_ns` and `to_ns` are the recorded call's, from the segment's start, without waits for the device.
    """
    begin_ns = max(from_ns, position_ns)
    return begin_ns - position_ns, max(to_ns - begin_ns, 0)


def call_start(host_ns: int, advance_ns: int, called_ns: int, room_ns: int) -> int:
    """When the host starts an op. Its thread was at `host_ns` after the previous op; the script called at `called_ns`."""
    return max(host_ns + advance_ns, called_ns, room_ns)


def kernel_end(launch_ns: int, latency_ns: int, ready_ns: int, gap_ns: int, duration_ns: int) -> int:
    """When a kernel ends; the previous work on its stream ended at `ready_ns`."""
    return max(launch_ns + latency_ns, ready_ns + gap_ns) + duration_ns


def queue_ends(alone_ns: Column, spans_ns: Column, before_ns: int) -> Column:
    """When each of several consecutive calls or kernels ends.

    Args:
        alone_ns: when each would end if there were nothing before it.
        spans_ns: time from the end of the previous one to its end, if it follows at once.
        before_ns: end of the one before the first.

    The rule is end[i] = max(alone[i], end[i-1] + span[i]). With c the running sum of spans, end[i] - c[i] is the greater of
    end[i-1] - c[i-1] and alone[i] - c[i]: a running maximum.
    """
    sums_ns = np.cumsum(spans_ns)
    ends_ns: Column = np.maximum(np.maximum.accumulate(alone_ns - sums_ns), before_ns) + sums_ns
    return ends_ns
