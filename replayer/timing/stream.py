"""Streams and events as pure arithmetic on times: nothing here sleeps, computes or knows torch.

A stream is the moment at which its last work ends. A piece of work starts when it has been launched, when its stream is
free and when whatever it waits for has ended:

    stream = VirtualStream(device=0, number=0)
    end_ns = stream.push(launched_ns=100, latency_ns=5, gap_ns=1, duration_ns=50)   # 155
    stream.push(launched_ns=110, latency_ns=5, gap_ns=1, duration_ns=50)            # 206: queued behind the first

Note [A full launch queue]
    A launch returns at once unless the stream's queue is full; then it returns when the oldest launch has ended. CUDA
    documents neither depth nor rule. Measured: in a recording of a Tesla V100 whose host runs ahead of it (`v100_absolute_ns`)
    never more than 1022 kernels, copies and memsets of a stream were pending when a launch returned, exactly 1022 in a
    quarter of 6095 launches, and those took as long as a kernel; other recordings stay below. That each stream has a
    queue of its own: "CUDA stream are blocked when luanch lots of kernels (>1000)", forums.developer.nvidia.com, 2019.
    Another card's driver lets the host run further ahead (an AMD MI300X: 1840 pending), and the recording shows by how
    much: the depth is what was seen pending there, and at least 1022 (`RecordingIndexer`).
    The launch of a CUDA graph is one launch with many kernels; it is refused here.

Note [Waits on unrecorded events]
    A stream that waits for an event that nobody will record would be a deadlock if it waited; in CUDA it does not:
    "If cudaEventRecord() has not been called on event, this call acts as if the record has already completed"
    (cudaStreamWaitEvent). An event is recorded by the time that a wait can name its moment, queues never wait for the host, and
    what could wait for another process (events between processes, external streams) is refused by name. So every wait
    on this page ends at a known time, and none needs to be found hanging. Since the order that the script meant is
    not kept where it waited for an event that is never recorded, such events are counted and told at the end.
"""

from __future__ import annotations

from collections import deque

from replayer.cost_model.constants import LAUNCH_QUEUE_DEPTH
from replayer.timing.placement import kernel_end


class VirtualStream:
    """One stream of one device. `number` is the device's own count; 0 is the default stream."""

    __slots__ = ("depth", "device", "number", "pending", "priority", "ready_ns")

    def __init__(self, device: int, number: int, priority: int = 0, depth: int = LAUNCH_QUEUE_DEPTH) -> None:
        self.device = device
        self.number = number
        self.priority = priority
        self.depth = depth  # of its launch queue
        self.ready_ns = 0  # when all work given so far has ended
        self.pending: deque[int] = deque(maxlen=depth)  # ends of the latest launches, oldest first

    def push(self, launched_ns: int, latency_ns: int, gap_ns: int, duration_ns: int) -> int:
        """Queue work; returns when it ends.

        Args:
            launched_ns: when the host launched it.
            latency_ns: from the launch to the start on an idle stream.
            gap_ns: from the end of the work before it to its start, if it queued.
        """
        end_ns = self.ready_ns = kernel_end(launched_ns, latency_ns, self.ready_ns, gap_ns, duration_ns)
        self.pending.append(end_ns)
        return end_ns

    def push_all(self, ends_ns: list[int]) -> None:
        """Queue work whose ends have been worked out by `queue_ends`."""
        self.ready_ns = ends_ns[-1]
        self.pending.extend(ends_ns)

    def room_at_ns(self) -> int:
        """The earliest time at which one more launch fits into the queue, 0 if there is room now."""
        return self.pending[0] if len(self.pending) == self.depth else 0

    def wait(self, time_ns: int) -> None:
        """No later work starts before `time_ns`."""
        if time_ns > self.ready_ns:
            self.ready_ns = time_ns

    def __repr__(self) -> str:
        return f"VirtualStream(device={self.device}, number={self.number})"


class VirtualEvent:
    """A CUDA event: the moment at which the work recorded before it has ended.

    Recording again replaces the moment; a stream that waited for the old one keeps the old one, as in CUDA.
    """

    __slots__ = ("awaited", "device", "time_ns")

    def __init__(self) -> None:
        self.time_ns: int | None = None  # None until recorded
        self.awaited = False  # waited for before it was recorded: see Note [Waits on unrecorded events]
        self.device: int | None = None
