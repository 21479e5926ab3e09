# mypy: allow-untyped-calls
"""Represents collectives that are in progress, and their CUDA streams.

    work = VirtualWork(play, watchdog, comm_stream, called, inputs)
    work.wait()         # later work on the current stream starts after the operation
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from replayer.cost_model.collective_costs import PositionInStep
from replayer.distributed import collective_values as values
from replayer.distributed.group_call import Combine, GroupCall
from replayer.distributed.rank_message import RankMessage
from replayer.distributed.store_exchange import NotCalledInTime, PendingExchange
from replayer.distributed.watchdog import Watchdog
from replayer.distributed.work_future import WorkFuture
from replayer.state import computing, gpu
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.tensor_meta import TensorMeta
from replayer.timing.host_threads import HostThread
from replayer.timing.stream import VirtualStream
from replayer.torch_types import TorchAny
from traces.model.trace import NONE

_Work: TorchAny = dist.Work

_LONGEST_POLL_S = 1.0


class _Awaited(_Work):  # type: ignore[misc]
    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize

    def exception(self) -> None:
        return None

    def is_success(self) -> bool:
        return bool(self.is_completed())

    def get_future(self) -> WorkFuture:
        return WorkFuture.of(list(self.result()), self.device, self.finished_ns, self.wait)

    def get_future_result(self) -> WorkFuture:
        """Return a future with the value 0 (PyTorch's WorkResult.SUCCESS)."""
        result = WorkFuture(NONE, self.finished_ns, self._block_host)
        result.set_result(0)
        return result

    def _block_host(self) -> None:
        here = gpu()
        here.simulator.scheduler.block(here.current.thread(), self.finished_ns())


class Part(NamedTuple):
    """Represents one collective, send or receive of an NCCL group, which runs as one kernel."""

    message: RankMessage
    pending: PendingExchange
    outputs: Sequence[TorchAny]
    combine: Combine | None


class Called(NamedTuple):
    call_ns: int
    row: int  # index of the launch in the timeline's host table, or NONE
    message: RankMessage  # describes all parts together
    position: PositionInStep
    stream: VirtualStream | None  # the CUDA stream that the collective runs on, or None on the CPU
    parts: list[Part]

    @property
    def arrived_ns(self) -> int:
        """Wait for all ranks, and return when the last one called the operation."""
        return max(message.arrived_ns for part in self.parts for message in part.pending.messages())


class VirtualWork(_Awaited):
    def __init__(
        self,
        play: Play,
        watchdog: Watchdog,
        comm_stream: CommStream,
        called: Called,
        inputs: Sequence[TorchAny],
    ) -> None:
        super().__init__()
        self._play, self._watchdog, self._comm_stream, self._called = play, watchdog, comm_stream, called
        self._inputs = inputs  # as in PyTorch, the memory of the inputs stays allocated until `wait`
        self.device = comm_stream.device
        self._limit_ns: int | None = None  # timeout of a `wait` in nanoseconds, or None
        self.end_ns: int | None = None
        self.blocks_host = False

    def finished_ns(self) -> int:
        if self.end_ns is None:
            self._comm_stream.finish_until(self)
        if self.end_ns is None:
            raise RuntimeError("this operation cannot complete, because an earlier operation of its process group failed")
        return self.end_ns

    def all_arrived(self) -> bool:
        return all(part.pending.is_complete() for part in self._called.parts)

    def finish(self) -> None:
        with self._waiting():
            self._refuse_after_limit(self._called.arrived_ns)
            self.end_ns = self._play(self._called, self._comm_stream)
            for part in self._called.parts:
                if part.combine is not None:
                    values.assign(part.outputs, part.combine, part.pending.messages())

    def will_write_to(self, tensor: TorchAny) -> bool:
        if self.end_ns is not None:
            return False
        written = [output for part in self._called.parts if part.combine is not None for output in part.outputs]
        outputs = [output for output in written if isinstance(output, VirtualTensor)]
        meta: TensorMeta = tensor.tensor_meta
        return any(output.allocation is tensor.allocation and output.tensor_meta.shares_bytes(meta) for output in outputs)

    def arrives_soon(self) -> bool:
        """Return True if all ranks have called the operation. If the replay uses a virtual clock, wait up to one second of real
        time for the other ranks."""
        with self._waiting():
            return self._arrives_within(_LONGEST_POLL_S if gpu().clock.skips_waits else 0.0)

    def _arrives_within(self, seconds: float) -> bool:
        return all(part.pending.arrives_within(seconds) for part in self._called.parts)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        clock = gpu().clock
        clock.pause()  # virtual time excludes waiting for other processes
        try:
            yield
        except NotCalledInTime as late:
            self._watchdog.end(self._called.message, str(late))
        finally:
            clock.resume()

    def _refuse_after_limit(self, until_ns: float) -> None:
        here = gpu()
        if self._limit_ns is not None and until_ns - self._called.call_ns > self._limit_ns:
            here.simulator.scheduler.block(here.current.thread(), self._called.call_ns + self._limit_ns)
            self._watchdog.refuse(self._called.message, int(self._limit_ns / here.clock.speed))

    def _arrives_before_limit(self) -> bool:
        clock = gpu().clock
        if self._limit_ns is None or self.end_ns is not None or clock.skips_waits:
            return True
        left_ns = self._called.call_ns + self._limit_ns - clock.now_ns()
        with self._waiting():
            return self._arrives_within(max(float(left_ns / clock.speed), 0.0) * 1e-9)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make the current stream wait for the collective. If a timeout is given, `wait` also blocks the CPU until the
        collective has ended, as in PyTorch."""
        here = gpu()
        self._limit_ns = int(timeout // timedelta(microseconds=1) * 1_000 * here.clock.speed) if timeout else None
        if not self._arrives_before_limit():
            self._refuse_after_limit(math.inf)
        end_ns = self.finished_ns()
        self._inputs = ()
        if self.device != NONE:
            here.current.stream(self.device).wait(end_ns)
        self._refuse_after_limit(end_ns)
        if self.device == NONE or self.blocks_host or timeout:
            self._block_host()
        return True

    def is_completed(self) -> bool:
        # Each poll advances a virtual clock. This rank waits a short time for the other ranks. Otherwise its clock would run
        # ahead of the other clocks.
        return (self.end_ns is not None or self.arrives_soon()) and gpu().clock.has_reached(self.finished_ns())

    def result(self) -> list[TorchAny]:
        return [output for part in self._called.parts for output in part.outputs]


class GatheredWork(VirtualWork):
    """Represents an all-gather. `get_future()` returns a future for one tensor that contains the data of all ranks."""

    def get_future(self) -> WorkFuture:
        return super().get_future().then(lambda gathered: [torch.stack(gathered.value())])


class CapturedWork(_Awaited):
    def __init__(self, post: Post, exchange_values: ExchangeValues, stream: VirtualStream, calls: list[GroupCall]) -> None:
        super().__init__()
        self._post, self._exchange_values, self._stream, self._calls = post, exchange_values, stream, calls
        self._replayed: VirtualWork | None = None
        self._values: list[PendingExchange] = []
        self.device = stream.device
        self.blocks_host = False
        self._capture(self._begin, self._send_values, waiting=stream, awaited=None)

    def _capture(
        self,
        play: Callable[[HostThread, VirtualStream], None],
        compute: Callable[[], None],
        waiting: VirtualStream | None,
        awaited: VirtualStream | None,
    ) -> None:
        here = gpu()
        current = here.current.stream(self.device)
        with here.launches.looking:
            capture = here.launches.capture_of(awaited or current)
            if capture is None:
                return
            capture.join(waiting or current, awaited or current)
            if waiting is not None:
                capture.begin_work(waiting)
            capture.add_call(play, current)
            capture.add_computation(compute)

    def _begin(self, thread: HostThread, stream: VirtualStream) -> None:
        call_ns = max(thread.host_ns, gpu().clock.now_ns())
        self._replayed = self._post(call_ns, NONE, max(call_ns, stream.ready_ns))

    def _end(self, _thread: HostThread, stream: VirtualStream) -> None:
        if self._replayed is not None:
            stream.wait(self._replayed.finished_ns())

    def _send_values(self) -> None:
        values.clear_known_values(self._calls)
        if computing():
            self._values = [self._exchange_values(call) for call in self._calls]

    def _receive_values(self) -> None:
        for call, pending in zip(self._calls, self._values, strict=False):
            if call.combine is not None:
                values.assign(call.outputs, call.combine, pending.messages())
        self._values = []

    def finished_ns(self) -> int:
        return 0

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self.blocks_host or timeout:
            gpu().launches.check_may_wait()
        self._capture(self._end, self._receive_values, waiting=None, awaited=self._stream)
        return True

    def is_completed(self) -> bool:
        gpu().launches.check_may_wait()
        return self._replayed is not None and self._replayed.is_completed()

    def result(self) -> list[TorchAny]:
        return [output for call in self._calls for output in call.outputs]


class CallOfGroup(_Awaited):
    """Represents a call inside an NCCL group. The call runs at the end of the group, which returns the work to wait for."""

    device = NONE

    def finished_ns(self) -> int:
        return 0

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    is_completed = wait

    def result(self) -> list[TorchAny]:
        return []


class CommStream:
    """Represents a CUDA stream of NCCL. NCCL uses one stream for collectives and batches, and another for each pair of ranks
    that send and receive without a batch."""

    def __init__(self, device: int, name: str = "all") -> None:
        self.device, self.name = device, name
        self.stream: VirtualStream | None = gpu().streams.new(device) if device != NONE else None
        self.in_flight: list[VirtualWork] = []
        self.has_announced_gpu = False  # True after this rank has told the other ranks which GPU it uses

    def finish_writes_to(self, tensors: Sequence[TorchAny], *, wait: bool) -> None:
        """Finish the operations in flight that write to the tensors. With `wait=False`, skip operations with missing ranks."""
        for work in reversed(self.in_flight):
            if any(map(work.will_write_to, tensors)) and (wait or work.arrives_soon()):
                self.finish_until(work)
                return

    def finish_until(self, last: VirtualWork | None, *, wait: bool = True) -> None:
        while self.in_flight:
            work = self.in_flight[0]
            if not wait and not work.all_arrived():
                return
            try:
                work.finish()
            except BaseException:
                self.in_flight.clear()
                raise
            del self.in_flight[0]
            if work is last:
                return


# Posts an operation: call_ns, row, arrived_ns
Post = Callable[[int, int, int], VirtualWork]
ExchangeValues = Callable[[GroupCall], PendingExchange]
# Runs an operation on its stream after the messages of all ranks have arrived, and returns its end in ns
Play = Callable[[Called, CommStream], int]
