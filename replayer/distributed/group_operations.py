"""Runs collectives, sends and receives of one process group.

    operations = GroupOperations(store, rank=0, size=2, timeout_s=600, group_name="0", global_ranks=[0, 1])
    work = operations.run(GroupCall("all_reduce", inputs, outputs, combine))
    operations.finish()     # determines when all operations so far end on the device
"""

from __future__ import annotations

import os
from functools import partial

import torch
from torch.distributed import DistBackendError

from replayer.cost_model.collective_costs import GroupOperation, Times, kernel_label
from replayer.distributed import collective_values as values
from replayer.distributed.clock_offset import ClockOffset, boot_id
from replayer.distributed.group_call import GroupCall
from replayer.distributed.rank_message import RankMessage, ranks_text
from replayer.distributed.reductions import require_dense
from replayer.distributed.store_exchange import DeadlockDetector, PendingExchange, StoreExchange, store_of_attempt
from replayer.distributed.watchdog import Watchdog, blocking_wait
from replayer.distributed.work import Called, CapturedWork, CommStream, VirtualWork
from replayer.state import computing, gpu
from replayer.tensor.tensor import VirtualTensor
from replayer.timing.stream import VirtualStream
from replayer.torch_types import TorchAny
from traces.model.trace import NONE


class GroupOperations:
    def __init__(
        self, store: TorchAny, rank: int, size: int, timeout_s: float, group_name: str, global_ranks: list[int]
    ) -> None:
        self.group_name = group_name
        self.coalesced: list[VirtualWork | CapturedWork] | None = None
        self.carries_objects = 0  # collectives of Python objects that are in progress; such collectives may use CPU tensors
        self._store = store
        self._rank, self._size, self.global_ranks = rank, size, global_ranks or list(range(size))
        self._timeout_s = timeout_s
        self._exchange: StoreExchange | None = None
        self.is_destroyed = self._is_default = False
        self._watchdog = Watchdog(self.global_ranks[rank], timeout_s)
        self._comm_streams: dict[tuple[str, int], CommStream] = {}

    def set_timeout(self, timeout_s: float) -> None:
        self._timeout_s = self._watchdog.timeout_s = timeout_s
        if self._exchange is not None:
            self._exchange.timeout_s = timeout_s

    def compare_clocks(self) -> None:
        """Compare the clocks of all ranks."""
        self._is_default, ranks = True, gpu().ranks
        ranks.read_clock_offset, ranks.deadlocks = None, DeadlockDetector(self._store, self._rank)
        ranks.read_clock_offset = self._store_exchange().offset_ns

    def finish(self, wait: bool = True) -> None:
        """Compute the end times of collectives. With `wait=False`, skip collectives with missing ranks."""
        for comm_stream in self._comm_streams.values():
            comm_stream.finish_until(None, wait=wait)

    def finish_writes_to(self, tensor: TorchAny) -> None:
        for comm_stream in self._comm_streams.values():
            comm_stream.finish_writes_to([tensor], wait=False)

    def leave(self, failed: bool = False) -> None:
        if self._size > 1:
            unused = self._exchange is None
            self._store_exchange().leave(failed or unused)

    def drop(self) -> None:
        for comm_stream in self._comm_streams.values():
            comm_stream.in_flight.clear()

    def run(self, call: GroupCall, opts: TorchAny = None, kind: type[VirtualWork] = VirtualWork) -> VirtualWork | CapturedWork:
        tensors = call.tensors
        virtual = [tensor for tensor in tensors if isinstance(tensor, VirtualTensor)]
        require_dense(virtual, point_to_point=call.pair is not None)
        here, device = gpu(), call.device
        if virtual:
            device = virtual[0].tensor_meta.index
        elif tensors:
            device = getattr(tensors[0], "reducer_device", NONE)
        if tensors and (device == NONE or (virtual and len(virtual) < len(tensors))):
            self._require_objects(tensors)
        comm_stream = self._comm_streams.get((call.channel, device))
        if comm_stream is None:
            comm_stream = self._comm_streams[call.channel, device] = CommStream(device)
        elif self.is_destroyed:  # a group that never communicated has no communicator to abort
            after = f"The script called {call.name} after it destroyed the group."
            raise DistBackendError(f"NCCL communicator was aborted on rank {self._rank}. {after}")
        stream = comm_stream.stream
        if stream is not None and not getattr(opts, "asyncOp", True):  # PyTorch passes no options for sends and receives
            stream = here.current.stream(device)
        work: VirtualWork | CapturedWork
        if stream is not None and here.launches.is_capturing(here.current.stream(device)):
            post = partial(self._post, call.without_values(), comm_stream, stream)
            work = CapturedWork(post, partial(self._exchange_values, call), stream, call)
        else:
            call_ns = here.streams.host_now_ns()
            row, arrived_ns = (NONE, call_ns) if device == NONE else here.ranks.launch(device, call_ns)
            work = self._post(call, comm_stream, stream, call_ns, row, arrived_ns, kind)
            if call.combine is not None:
                values.clear_known_values(call.outputs)
        work.blocks_host = blocking_wait() and stream is comm_stream.stream
        if self.coalesced is not None:
            self.coalesced.append(work)
        return work

    def _post(
        self,
        call: GroupCall,
        comm_stream: CommStream,
        stream: VirtualStream | None,
        call_ns: int,
        row: int,
        arrived_ns: int,
        kind: type[VirtualWork] = VirtualWork,
    ) -> VirtualWork:
        here = gpu()
        if computing():  # this operation reads its inputs after all earlier operations on the stream have ended
            comm_stream.finish_writes_to([tensor for tensor in call.inputs if isinstance(tensor, VirtualTensor)], wait=True)
        message = values.message_of(call, arrived_ns)
        place = "cpu" if comm_stream.device == NONE else "cuda"
        if place == "cuda" and call.tensors and not comm_stream.has_announced_gpu:
            message.gpu, message.group = _gpu_of_machine(comm_stream.device), ranks_text(self.global_ranks)
            comm_stream.has_announced_gpu = True
        members = call.members(self._size)
        pending = self._store_exchange().post(f"{call.channel}/{place}", members, message)
        tracker = here.simulator.tracker
        steps = tracker.number, here.recording.index_of(tracker.step.step)
        position = here.ranks.costs.position(call.name, message.size_bytes, self._size, *steps)
        called = Called(call_ns, row, message, position, stream, [self.global_ranks[member] for member in members])
        work = kind(self._play, self._watchdog, comm_stream, called, pending, call)
        comm_stream.in_flight.append(work)
        return work

    def _exchange_values(self, call: GroupCall) -> PendingExchange:
        message = values.message_of(call, 0)
        return self._store_exchange().post(f"{call.channel}/values", call.members(self._size), message)

    def _require_objects(self, tensors: list[TorchAny]) -> None:
        if not self.carries_objects:
            kinds = {tensor.device.type for tensor in tensors}
            raise RuntimeError(f"No backend type associated with device type {'cpu' if 'cpu' in kinds else kinds.pop()}")

    def _store_exchange(self) -> StoreExchange:
        if self._exchange is None:
            here = gpu()
            name = "" if self._is_default else self.group_name
            if (offset_ns := here.ranks.read_clock_offset) is None:
                offset_ns = ClockOffset(store_of_attempt(self._store), self._rank, here.clock, self._timeout_s).ns
            known = self._timeout_s, offset_ns, here.ranks.deadlocks, name
            self._exchange = StoreExchange(self._store, self._rank, self.global_ranks, *known)
        return self._exchange

    def _play(self, called: Called, messages: list[RankMessage], comm_stream: CommStream) -> int:
        here, message = gpu(), called.message
        size_bytes = max(other.size_bytes for other in messages) if message.operation == "recv" else message.size_bytes
        arrived_ns = [other.arrived_ns for other in messages]
        all_arrived_ns, stream = max(arrived_ns), called.stream
        # NCCL's watchdog ignores operations of a replayed CUDA graph. With blocking waits, only `wait` checks the timeout, and
        # PyTorch does not call `wait` for collectives with `async_op=False`.
        ignored = called.row == NONE or (blocking_wait() and stream is not comm_stream.stream)
        if stream is None or not ignored:
            self._watchdog.check(message, dict(zip(called.ranks, arrived_ns, strict=True)))
        if stream is None or comm_stream.stream is None:
            return all_arrived_ns
        stream.wait(comm_stream.stream.ready_ns)
        transfer = here.ranks.costs.next(message.operation, size_bytes, self._size, called.position)
        end_ns = max(all_arrived_ns, stream.ready_ns) + transfer.duration_ns
        call = GroupOperation(message.operation, message.dtype, str(self.group_name), self._size, "nccl", size_bytes)
        times_ns = Times(called.call_ns, message.arrived_ns, end_ns)
        here.ranks.communicate(stream, call, transfer, kernel_label(message.operation), times_ns, called.row)
        comm_stream.stream.wait(end_ns)
        return end_ns


def _gpu_of_machine(index: int) -> str:
    ranks = [os.environ.get(name, "0") for name in ("RANK", "LOCAL_RANK")]
    machine = int(ranks[0]) - int(ranks[1]) if all(map(str.isdigit, ranks)) else 0
    visible = torch.cuda._parse_visible_devices()
    return f"{boot_id()}/{machine}/{visible[index] if index < len(visible) else index}"
