# mypy: allow-untyped-calls
"""An operation between ranks in flight, and the stream of the device that it runs on.

    work = VirtualWork(play, comm_stream, called, pending, outputs, combine)
    work.wait()         # later work on the current stream starts when the operation has ended

Note [Waiting at the end of backward]
    DistributedDataParallel's Reducer takes a work's future and waits for it in C++, when its own callback runs at the end of
    the backward pass. A future of ours is complete from the start (what it holds are the tensors that will be written), so
    that nobody waits for another rank within C++; the stream's wait is a callback of ours that the engine calls before the
    Reducer's, as callbacks run in the order in which they were queued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.autograd import Variable

from replayer.cost_model.collectives import Place
from replayer.distributed import collective_values as values
from replayer.distributed.store_exchange import PendingExchange, RankMessage
from replayer.state import gpu
from replayer.timing.stream import VirtualStream
from replayer.torch_types import TorchAny
from traces.model.trace import NONE

# torch's stubs know one spelling of each method; torch itself calls several.
_Work: TorchAny = dist.Work


class _Awaited(_Work):  # type: ignore[misc]
    """What a script may ask of an operation beside `wait`, `is_completed` and `result`."""

    def synchronize(self) -> None:
        self.wait()

    def is_success(self) -> bool:
        return bool(self.is_completed())

    def get_future(self) -> TorchAny:
        """See Note [Waiting at the end of backward]."""
        future: TorchAny = torch.futures.Future()
        future.set_result(list(self.result()))
        if torch._C._current_graph_task_id() >= 0:
            Variable._execution_engine.queue_callback(self.synchronize)
        return future


class Called(NamedTuple):
    """How this rank called an operation: when, what it posted, and the recorded operation at its place."""

    call_ns: int
    message: RankMessage
    place: Place


class VirtualWork(_Awaited):
    """One operation in flight. `end_ns` is None until the other ranks' messages have been read."""

    def __init__(
        self,
        play: Play,
        comm_stream: CommStream,
        called: Called,
        pending: PendingExchange,
        outputs: Sequence[TorchAny],
        combine: values.Combine | None,
    ) -> None:
        super().__init__()
        self._play, self._comm_stream, self._pending = play, comm_stream, pending
        self._outputs, self._combine = list(outputs), combine
        self._called = called
        self.end_ns: int | None = None
        self.blocks_host = False

    def settle(self) -> int:
        """Read the other ranks' messages, if that is not done yet; returns when the operation ends on the device (ns)."""
        if self.end_ns is None:
            self._comm_stream.settle_until(self)
        if self.end_ns is None:
            raise RuntimeError("an operation of this group before this one failed, so this one cannot end either")
        return self.end_ns

    def all_arrived(self) -> bool:
        """Whether all ranks have called the operation; never waits."""
        return self._pending.is_complete()

    def finish(self) -> None:
        """Work out when it ends, and its results. All operations before it on its stream are settled."""
        clock = gpu().clock
        clock.pause()  # the wait for other processes is no time of this rank (virtual clock)
        try:
            messages = self._pending.messages()
        finally:
            clock.resume()
        self.end_ns = self._play(self._called, messages, self._comm_stream)
        if self._combine is not None:
            values.assign(self._outputs, self._combine([values.values_in(message) for message in messages]))
        self._combine = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        end_ns = self.settle()
        here = gpu()
        device = self._comm_stream.device
        if device != NONE:
            here.current.stream(device).wait(end_ns)
        if device == NONE or self.blocks_host:
            here.simulator.scheduler.block(here.current.thread(), end_ns)
        self._outputs = []  # the stream's order protects their memory from here on
        return True

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if self.end_ns is None and not self.all_arrived():
            return False
        return self.settle() <= gpu().clock.poll_ns()

    def exception(self) -> None:
        return None

    def result(self) -> list[TorchAny]:
        return self._outputs


class WorkGroup(_Awaited):
    """Operations that were begun between `_start_coalescing` and `_end_coalescing`."""

    def __init__(self, works: list[VirtualWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all([work.wait() for work in self._works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def result(self) -> list[TorchAny]:
        return [output for work in self._works for output in work.result()]


class CommStream:
    """A communicator's stream on one device: NCCL has one for collectives, and one for each pair of ranks that send."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.stream: VirtualStream | None = gpu().streams.new(device) if device != NONE else None
        self.in_flight: list[VirtualWork] = []

    def settle_until(self, last: VirtualWork | None, *, wait: bool = True) -> None:
        """Settle operations in flight in order, up to `last` or all; without `wait` only those that all ranks have called."""
        while self.in_flight:
            work = self.in_flight[0]
            if not wait and not work.all_arrived():
                return
            try:
                work.finish()
            except BaseException:
                self.in_flight.clear()  # the end of those after it cannot be known either
                raise
            del self.in_flight[0]
            if work is last:
                return


# Puts an operation on its stream once all ranks' messages are there; returns when it ends (ns).
Play = Callable[[Called, list[RankMessage], CommStream], int]
