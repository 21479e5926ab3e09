# mypy: allow-untyped-calls
"""An operation between ranks that is under way, and the stream of the device on which it goes.

    work = VirtualWork(group, lane, ticket, outputs, combine)
    work.wait()         # later work on the current stream starts when the operation has ended

Note [Waiting at the end of backward]
    DistributedDataParallel's Reducer takes a work's future and waits for it in C++, when its own callback runs at the end of
    the backward pass. A future of ours is complete from the start (what it holds are the tensors that will be written), so
    that nobody waits for another rank within C++; the stream's wait is a callback of ours that the engine calls before the
    Reducer's, as callbacks run in the order in which they were queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from replayer.distributed import collective_values as values
from replayer.distributed.store_exchange import PendingExchange, RankMessage
from replayer.state import gpu
from replayer.timing.stream import VirtualStream
from traces.model import NONE

if TYPE_CHECKING:
    from replayer.distributed.process_group import VirtualNccl

# torch's stubs know one spelling of each method; torch itself calls several.
_Work: Any = dist.Work


class VirtualWork(_Work):  # type: ignore[misc]
    """One operation under way. `end_ns` is None until the others' words have been read."""

    def __init__(
        self, group: VirtualNccl, lane: Lane, ticket: PendingExchange, outputs: Sequence[Any], combine: values.Combine | None
    ) -> None:
        super().__init__()
        self._group, self._lane, self._ticket = group, lane, ticket
        self._outputs, self._combine = list(outputs), combine
        self.call_ns = self.arrived_ns = 0
        self.word: RankMessage | None = None
        self.end_ns: int | None = None
        self.blocks_host = False

    def settle(self) -> int:
        """Read the others' words, if that is not done yet; returns when the operation ends on the device."""
        if self.end_ns is None:
            self._lane.settle_until(self)
        if self.end_ns is None:
            raise RuntimeError("an operation of this group before this one failed, so this one cannot end either")
        return self.end_ns

    def is_met(self) -> bool:
        """Whether all ranks have come; never waits."""
        return self._ticket.is_complete()

    def conclude(self) -> None:
        """All before it on its stream are settled: find out when it ends and what it gave."""
        clock = gpu().clock
        clock.pause()  # a clock that can: what another process really needs is no time of this rank's
        try:
            words = self._ticket.words()
        finally:
            clock.resume()
        self.end_ns = self._group.play(self, words, self._lane)
        if self._combine is not None:
            values.assign(self._outputs, self._combine([values.told(word) for word in words]))
        self._combine = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        end_ns = self.settle()
        here = gpu()
        device = self._lane.device
        if device != NONE:
            here.current_stream(device).wait(end_ns)
        if device == NONE or self.blocks_host:
            here.simulator.scheduler.block(here.thread(), end_ns)
        self._outputs = []  # the stream's order protects their memory from here on
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if self.end_ns is None and not self.is_met():
            return False
        return self.settle() <= gpu().clock.now_ns()

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        return None

    def result(self) -> list[Any]:
        return self._outputs

    def get_future(self) -> Any:
        """See Note [Waiting at the end of backward]."""
        future: Any = torch.futures.Future()
        future.set_result(list(self._outputs))
        if torch._C._current_graph_task_id() >= 0:
            Variable._execution_engine.queue_callback(self.synchronize)
        return future


class WorkGroup(_Work):  # type: ignore[misc]
    """Operations that were begun between `_start_coalescing` and `_end_coalescing`."""

    def __init__(self, works: list[VirtualWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all([work.wait() for work in self._works])

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return self.is_completed()

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result([output for work in self._works for output in work.result()])
        if torch._C._current_graph_task_id() >= 0:
            Variable._execution_engine.queue_callback(self.synchronize)
        return future


class Lane:
    """A stream of one device for a sequence of operations, as NCCL has one per communicator, and one per pair for sends."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.stream: VirtualStream | None = gpu().new_stream(device) if device != NONE else None
        self.open: list[VirtualWork] = []

    def settle_until(self, last: VirtualWork | None, *, wait: bool = True) -> None:
        """Settle the open operations in order, up to `last` or all; without waiting only those that all have come to."""
        while self.open:
            work = self.open[0]
            if not wait and not work.is_met():
                return
            try:
                work.conclude()
            except BaseException:
                self.open.clear()  # nothing after it can be known either
                raise
            del self.open[0]
            if work is last:
                return
