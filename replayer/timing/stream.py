"""Streams and events as arithmetic on times. The module stream.py does not sleep, execute work or use torch.

A stream stores the time at which its last work ends. Work starts when it has been launched, the stream is free, and every event
that the stream waits for has passed:

    stream = VirtualStream(device=0, number=0)
    end_ns = stream.push(launched_ns=100, latency_ns=5, gap_ns=1, duration_ns=50)   # 155
    stream.push(launched_ns=110, latency_ns=5, gap_ns=1, duration_ns=50)            # 206: queued behind the first

Note [A full launch queue]
    A launch returns at once unless the stream's queue is full. If the queue is full, the launch returns when the oldest launch
    has ended. CUDA does not document the depth or the rule. In a recording of a Tesla V100 with a fast host
    (`v100_absolute_ns`), at most 1022 kernels, copies and memsets of a stream were pending when a launch returned. Exactly 1022
    were pending in a quarter of 6095 launches, and each of these launches took as long as a kernel. Other recordings never
    reach 1022. Each stream has its own queue: "CUDA stream are blocked when luanch lots of kernels (>1000)",
    forums.developer.nvidia.com, 2019. Other drivers let the host run further ahead (an AMD MI300X: 1840 pending). The replay's
    depth is therefore the largest number seen pending in the recording, and at least 1022 (`RecordingIndexer`).

Note [Waits on unrecorded events]
    In CUDA, waiting for an event that was never recorded has no effect: "If cudaEventRecord() has not been called on event,
    this call acts as if the record has already completed" (cudaStreamWaitEvent). Queues never wait for the host. Waits for
    other processes (events between processes, external streams) raise NotEmulated. So every wait in this module ends at a known
    time and cannot deadlock. A wait for an event that is never recorded probably does not give the order that the script
    intended. Such events are counted and reported at the end.
"""

from __future__ import annotations

from collections import deque

from replayer.cost_model.constants import LAUNCH_QUEUE_DEPTH
from replayer.timing.timing_rules import kernel_end


class VirtualStream:
    """Represents one stream of one device. `own_number` counts the device's streams, and stream 0 is the default stream.

    `number` is the same number, except while a CUDA graph is captured. See Note [Streams of a graph] in cuda_graph.py.
    """

    __slots__ = ("depth", "device", "number", "own_number", "pending", "priority", "ready_ns")

    def __init__(self, device: int, number: int, priority: int = 0, depth: int = LAUNCH_QUEUE_DEPTH) -> None:
        self.device = device
        self.number = self.own_number = number
        self.priority = priority
        self.depth = depth
        self.ready_ns = 0
        self.pending: deque[int] = deque(maxlen=depth)

    def push(self, launched_ns: int, latency_ns: int, gap_ns: int, duration_ns: int) -> int:
        """Queue work, and return when the work ends.

        `latency_ns` is the time from the launch to the start on an idle stream. `gap_ns` is the time from the end of the
        previous work to the start of work that was queued behind it.
        """
        end_ns = self.ready_ns = kernel_end(launched_ns, latency_ns, self.ready_ns, gap_ns, duration_ns)
        self.pending.append(end_ns)
        return end_ns

    def push_all(self, ends_ns: list[int]) -> None:
        """Queue work whose end times were computed by `queue_ends`."""
        self.ready_ns = ends_ns[-1]
        self.pending.extend(ends_ns)

    def room_at_ns(self) -> int:
        """Return the earliest time at which the queue has room for one more launch. Returns 0 if the queue has room now."""
        return self.pending[0] if len(self.pending) == self.depth else 0

    def wait(self, time_ns: int) -> None:
        """Make later work start no earlier than `time_ns`."""
        if time_ns > self.ready_ns:
            self.ready_ns = time_ns

    def __repr__(self) -> str:
        return f"VirtualStream(device={self.device}, number={self.number})"


class VirtualEvent:
    """Represents a CUDA event, which stores when the earlier work on its stream has ended.

    Recording the event again replaces the time. As in CUDA, a stream that already waits keeps the old time.
    """

    __slots__ = ("awaited", "device", "time_ns")

    def __init__(self) -> None:
        self.time_ns: int | None = None
        self.awaited = False  # awaited before it was recorded, see Note [Waits on unrecorded events]
        self.device: int | None = None
