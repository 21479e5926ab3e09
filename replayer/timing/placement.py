"""When an op starts on its host thread, and when its kernels end on their stream: the rules of a replay's time.

All times are integer nanoseconds of recorded time. Nothing here sleeps, keeps state or knows torch.

    advance_ns, own_ns = host_times(position_ns=40, from_ns=100, to_ns=130)                     # 60, 30
    start_ns = call_start(host_ns=1_000, advance_ns=60, called_ns=1_010, room_ns=0)             # 1060
    kernel_end(launch_ns=1_070, latency_ns=5, ready_ns=1_100, gap_ns=1, duration_ns=50)         # 1151

1. *Host pace* (`host_times`): the recorded host went from the op before to this one, and then spent its own time in it. A
   recorded call may overlap or enclose calls that were played before it, and the script may call in another order: only time
   beyond the position that the segment has reached counts, so a segment never costs more host time than was recorded.
2. *Call* (`call_start`): the host comes to the op at that pace, or when the script really calls it, or when the launch queue
   has room, whichever is last.
3. *Kernel* (`kernel_end`): it starts when its launch has reached the device and the work before it on the stream has ended,
   each with its own recorded delay (Note [Why a kernel started when it did], indexer.py).

Many ops at once are the same rules over arrays (`queue_ends`): calls that follow on one another on a host thread, and kernels
on a stream, both end at max(what they would come to alone, the end of the one before plus what they add to it).
"""

from __future__ import annotations

import numpy as np

from traces.model.trace import Column


def host_times(position_ns: int, from_ns: int, to_ns: int) -> tuple[int, int]:
    """Host time before an op and within it, for a script that has reached `position_ns` of the recorded segment.

    `from_ns` and `to_ns` are the recorded call's, from the segment's start on, with waiting for the device taken out.
    """
    begin_ns = max(from_ns, position_ns)
    return begin_ns - position_ns, max(to_ns - begin_ns, 0)


def call_start(host_ns: int, advance_ns: int, called_ns: int, room_ns: int) -> int:
    """When the host comes to an op: its thread was at `host_ns` after the one before, the script calls at `called_ns`."""
    return max(host_ns + advance_ns, called_ns, room_ns)


def kernel_end(launch_ns: int, latency_ns: int, ready_ns: int, gap_ns: int, duration_ns: int) -> int:
    """When a kernel ends whose stream has ended the work before it at `ready_ns`."""
    return max(launch_ns + latency_ns, ready_ns + gap_ns) + duration_ns


def queue_ends(alone_ns: Column, spans_ns: Column, before_ns: int) -> Column:
    """When each of several calls or kernels ends that follow on one another.

    Args:
        alone_ns: when each would end if nothing were before it.
        spans_ns: how long after the one before it each ends if it follows on that at once.
        before_ns: when the one before the first of them ended.

    The rule is end[i] = max(alone[i], end[i-1] + span[i]). With c the running sum of spans, end[i] - c[i] is the greater of
    end[i-1] - c[i-1] and alone[i] - c[i]: a running maximum.
    """
    sums_ns = np.cumsum(spans_ns)
    ends_ns: Column = np.maximum(np.maximum.accumulate(alone_ns - sums_ns), before_ns) + sums_ns
    return ends_ns
