"""Streams and events as pure arithmetic on times: nothing here sleeps, computes or knows torch.

A stream is the moment at which its last work ends. A piece of work starts when it has been launched, when its stream is
free and when whatever it waits for has ended:

    stream = VirtualStream(device=0, number=0)
    end_ns = stream.push(launched_ns=100, latency_ns=5, gap_ns=1, duration_ns=50)   # 155
    stream.push(launched_ns=110, latency_ns=5, gap_ns=1, duration_ns=50)            # 206: queued behind the first
"""

from __future__ import annotations

from collections import deque

# A CUDA stream's launch queue: the host blocks in a launch when about a thousand launches are pending.
LAUNCH_QUEUE_DEPTH = 1024


class VirtualStream:
    """One stream of one device. `number` is the device's own count; 0 is the default stream."""

    __slots__ = ("device", "number", "pending", "priority", "ready_ns")

    def __init__(self, device: int, number: int, priority: int = 0) -> None:
        self.device = device
        self.number = number
        self.priority = priority
        self.ready_ns = 0  # when all work given so far has ended
        self.pending: deque[int] = deque(maxlen=LAUNCH_QUEUE_DEPTH)  # ends of the latest launches, oldest first

    def push(self, launched_ns: int, latency_ns: int, gap_ns: int, duration_ns: int) -> int:
        """Queue work; returns when it ends.

        Args:
            launched_ns: when the host launched it.
            latency_ns: from the launch to the start on an idle stream.
            gap_ns: from the end of the work before it to its start, if it queued.
        """
        start_ns = launched_ns + latency_ns
        queued_ns = self.ready_ns + gap_ns
        if queued_ns > start_ns:
            start_ns = queued_ns
        end_ns = self.ready_ns = start_ns + duration_ns
        self.pending.append(end_ns)
        return end_ns

    def push_all(self, ends_ns: list[int]) -> None:
        """Queue work whose ends have been worked out by the rule of `push`."""
        self.ready_ns = ends_ns[-1]
        self.pending.extend(ends_ns)

    def room_at_ns(self) -> int:
        """The earliest time at which one more launch fits into the queue, 0 if there is room now."""
        return self.pending[0] if len(self.pending) == LAUNCH_QUEUE_DEPTH else 0

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

    __slots__ = ("device", "time_ns")

    def __init__(self) -> None:
        self.time_ns: int | None = None  # None until recorded
        self.device: int | None = None
