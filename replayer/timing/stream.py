"""Computes the times of CUDA streams and events. The module stream.py does not sleep, execute work or use torch.

A virtual stream stores the time at which its last kernel or copy ends. Work on a stream starts when it has been launched, the
earlier work has ended, and all awaited events have passed:

    stream = VirtualStream(device=0, number=0)
    end_ns = stream.push(launched_ns=100, latency_ns=5, gap_ns=1, duration_ns=50)   # 155
    stream.push(launched_ns=110, latency_ns=5, gap_ns=1, duration_ns=50)            # 206: queued behind the first

Note [A full launch queue]
    A launch returns at once unless the stream's queue is full. If the queue is full, the launch returns when the oldest launch
    has ended. CUDA does not document the depth of the launch queue, or when a launch waits. In a recording of a Tesla V100 with
    a fast host (`v100_absolute_ns`), at most 1022 kernels, copies and memsets of a stream were pending when a launch returned.
    Exactly 1022 were pending in a quarter of 6095 launches, and each of these launches took as long as a kernel. Other
    recordings never reach 1022. Each stream has its own queue: "CUDA stream are blocked when luanch lots of kernels (>1000)",
    forums.developer.nvidia.com, 2019. Other drivers let the host run further ahead (an AMD MI300X: 1840 pending). A replay
    therefore uses the largest number of pending launches in the recording as the queue's depth, but at least 1022
    (`RecordingIndexer`).

Note [Waits on unrecorded events]
    In CUDA, waiting for an event that was never recorded has no effect: "If cudaEventRecord() has not been called on event,
    this call acts as if the record has already completed" (cudaStreamWaitEvent). Virtual streams never wait for the host, and
    waits for other processes (events between processes, external streams) raise NotEmulated. Every wait in this module thus
    ends at a known time and cannot deadlock. If a script waits for an event that it never records, its streams probably do not
    run in the intended order. The replay counts events that were awaited but never recorded, and reports the number at the end.
"""

from __future__ import annotations

from collections import deque

from replayer.cost_model.constants import LAUNCH_QUEUE_DEPTH
from replayer.timing.timing_rules import kernel_end


class VirtualStream:
    """One stream of one device. `own_number` is the index of the stream on its device, and index 0 is the default
    stream.

    `number` equals `own_number`, except while a CUDA graph is captured. See Note [Streams of a graph] in cuda_graph.py.
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
        """Add a kernel or copy to the stream, and return its end time.

        `latency_ns` is the delay between the launch of a kernel and its start if the stream is idle. `gap_ns` is the delay
        between two kernels on a stream if the second was launched before the first ended.
        """
        end_ns = self.ready_ns = kernel_end(launched_ns, latency_ns, self.ready_ns, gap_ns, duration_ns)
        self.pending.append(end_ns)
        return end_ns

    def push_all(self, ends_ns: list[int]) -> None:
        """Add several kernels or copies whose end times are known."""
        self.ready_ns = ends_ns[-1]
        self.pending.extend(ends_ns)

    def room_at_ns(self) -> int:
        """Return the earliest time at which the launch queue has room for one more launch, or 0 if the queue has room now."""
        return self.pending[0] if len(self.pending) == self.depth else 0

    def wait(self, time_ns: int) -> None:
        """Delay all later work on the stream until `time_ns`."""
        if time_ns > self.ready_ns:
            self.ready_ns = time_ns

    def __repr__(self) -> str:
        return f"VirtualStream(device={self.device}, number={self.number})"


class VirtualEvent:
    """A CUDA event, which stores the time at which the earlier work on its stream ends.

    Recording the event again replaces the time. As in CUDA, recording an event again does not affect streams that already wait
    for the event.
    """

    __slots__ = ("awaited", "device", "time_ns")

    def __init__(self) -> None:
        self.time_ns: int | None = None
        self.awaited = False  # awaited before it was recorded, see Note [Waits on unrecorded events]
        self.device: int | None = None
