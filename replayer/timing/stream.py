"""Computes the end times of kernels and copies on CUDA streams, and the times of CUDA events.

    stream = VirtualStream(device=0, number=0)
    end_ns = stream.push(launched_ns=100, latency_ns=5, gap_ns=1, duration_ns=50)   # 155
    stream.push(launched_ns=110, latency_ns=5, gap_ns=1, duration_ns=50)            # 206: starts after the first kernel

Note [A full launch queue]
    A kernel launch returns at once unless the launch queue of the CUDA stream is full. CUDA does not document the maximum
    length of the queue. In a recording of a Tesla V100, at most 1022 kernels, copies and memsets of a stream were pending. A
    replay uses the largest number of pending launches in the recording, but at least 1022.

Note [Waits on unrecorded events]
    In CUDA, waiting for an event that was never recorded has no effect (cudaStreamWaitEvent). The replay counts such waits and
    reports their number at the end, because the script probably contains an error.
"""

from __future__ import annotations

from collections import deque

from replayer.cost_model.constants import LAUNCH_QUEUE_DEPTH
from replayer.timing.timing_rules import kernel_end


class VirtualStream:
    """Represents a CUDA stream. Number 0 is the default stream of a GPU."""

    # see Note [Stream numbers during a capture] in cuda_graph.py

    __slots__ = ("depth", "device", "number", "own_number", "pending", "priority", "ready_ns")

    def __init__(self, device: int, number: int, priority: int = 0, depth: int = LAUNCH_QUEUE_DEPTH) -> None:
        self.device = device
        self.number = self.own_number = number
        self.priority = priority
        self.depth = depth
        self.ready_ns = 0
        self.pending: deque[int] = deque(maxlen=depth)

    def push(self, launched_ns: int, latency_ns: int, gap_ns: int, duration_ns: int) -> int:
        """Add a kernel or copy to the stream, and return its end time. On an idle stream, a kernel starts `latency_ns` after
        its launch. On a busy stream, a kernel starts `gap_ns` after the end of the previous kernel."""
        end_ns = self.ready_ns = kernel_end(launched_ns, latency_ns, self.ready_ns, gap_ns, duration_ns)
        self.pending.append(end_ns)
        return end_ns

    def push_all(self, ends_ns: list[int]) -> None:
        self.ready_ns = ends_ns[-1]
        self.pending.extend(ends_ns)

    def room_at_ns(self) -> int:
        return self.pending[0] if len(self.pending) == self.depth else 0

    def wait(self, time_ns: int) -> None:
        if time_ns > self.ready_ns:
            self.ready_ns = time_ns

    def __repr__(self) -> str:
        return f"VirtualStream(device={self.device}, number={self.number})"


class VirtualEvent:
    """Stores when a CUDA event completes. Events with `external=True` can be used inside and outside of a CUDA graph."""

    __slots__ = ("awaited", "captured", "device", "external", "time_ns")

    def __init__(self, *, external: bool = False) -> None:
        self.external = external
        # True if the event was last recorded during a capture; only the captured graph can use such an event
        self.captured = False
        self.time_ns: int | None = None
        # True if the script waited for the event before recording it, see Note [Waits on unrecorded events]
        self.awaited = False
        self.device: int | None = None
