"""Runs the operations of one process group. Each operation is posted to the other ranks and put on the group's streams.

operations = GroupOperations(store, rank=0, size=2, timeout_s=600, group_name="0")
work = operations.run(GroupCall("all_reduce", inputs, outputs, combine))
operations.finish()     # determines when all operations so far end on the device
"""

from __future__ import annotations

from replayer.cost_model.collective_costs import GroupOperation, Times, kernel_label
from replayer.distributed import collective_values as values
from replayer.distributed.group_call import GroupCall
from replayer.distributed.rank_message import RankMessage
from replayer.distributed.store_exchange import StoreExchange
from replayer.distributed.watchdog import Watchdog
from replayer.distributed.work import Called, CommStream, VirtualWork
from replayer.state import gpu
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny
from traces.model.trace import NONE


class GroupOperations:
    def __init__(self, store: TorchAny, rank: int, size: int, timeout_s: float, group_name: str) -> None:
        self.group_name = group_name
        self.coalesced: list[VirtualWork] | None = None
        self.carries_objects = 0  # object collectives in progress, which may use CPU tensors
        self._store = store
        self._rank, self._size = rank, size
        self._timeout_s = timeout_s
        self._exchange: StoreExchange | None = None
        self._watchdog = Watchdog(rank, timeout_s)
        self._comm_streams: dict[tuple[str, int], CommStream] = {}

    def set_timeout(self, timeout_s: float) -> None:
        self._timeout_s = self._watchdog.timeout_s = timeout_s
        if self._exchange is not None:
            self._exchange.timeout_s = timeout_s

    def compare_clocks(self) -> None:
        """Use this group's clocks for this process's groups. All ranks of the process belong to this group."""
        gpu().ranks.clock_offset_ns = None
        gpu().ranks.clock_offset_ns = self._store_exchange().offset_ns

    def finish(self, wait: bool = True) -> None:
        """Determine when the operations in flight end.

        At process exit, `wait=False` skips operations that some rank has not called.
        """
        for comm_stream in self._comm_streams.values():
            comm_stream.finish_until(None, wait=wait)

    def leave(self, failed: bool = False) -> None:
        """Report that this rank leaves the group, because the group is destroyed or the process ends.

        `failed` means that the process ends with an error.
        """
        if self._exchange is not None and self._size > 1:
            self._exchange.leave(failed)

    def drop(self) -> None:
        for comm_stream in self._comm_streams.values():
            comm_stream.in_flight.clear()

    def run(self, call: GroupCall, kind: type[VirtualWork] = VirtualWork) -> VirtualWork:
        tensors = call.tensors
        virtual = [tensor for tensor in tensors if isinstance(tensor, VirtualTensor)]
        here, device = gpu(), call.device
        if virtual:
            device = virtual[0].meta.index
        elif tensors:
            device = getattr(tensors[0], "reducer_device", NONE)
        if tensors and (device == NONE or (virtual and len(virtual) < len(tensors))):
            self._require_objects(tensors)
        members = range(self._size) if call.pair is None else sorted(set(call.pair))
        channel = "all" if call.pair is None else f"{call.pair[0]}-{call.pair[1]}"
        comm_stream = self._comm_streams.get((channel, device))
        if comm_stream is None:
            comm_stream = self._comm_streams[channel, device] = CommStream(device)
        call_ns = here.streams.host_now_ns()
        row, arrived_ns = (NONE, call_ns) if device == NONE else here.ranks.launch(device, call_ns)
        message = values.message_of(call, arrived_ns)
        pending = self._store_exchange().post(f"{channel}/{'cpu' if device == NONE else 'cuda'}", list(members), message)
        tracker = here.simulator.tracker
        steps = tracker.number, here.recording.number_of(tracker.step.step)
        position = here.ranks.costs.position(call.name, message.size_bytes, self._size, *steps)
        called = Called(call_ns, row, message, position)
        work = kind(self._play, self._watchdog, comm_stream, called, pending, call)
        values.clear_known_values(call.outputs)
        comm_stream.in_flight.append(work)
        if self.coalesced is not None:
            self.coalesced.append(work)
        return work

    def _require_objects(self, tensors: list[TorchAny]) -> None:
        if not self.carries_objects:
            kinds = {tensor.device.type for tensor in tensors}
            raise RuntimeError(f"No backend type associated with device type {'cpu' if 'cpu' in kinds else kinds.pop()}")

    def _store_exchange(self) -> StoreExchange:
        if self._exchange is None:
            here = gpu()
            offset_ns = here.ranks.clock_offset_ns
            self._exchange = StoreExchange(self._store, self._rank, self._size, self._timeout_s, here.clock, offset_ns)
        return self._exchange

    def _play(self, called: Called, messages: list[RankMessage], comm_stream: CommStream) -> int:
        """Put the operation on its stream, from this rank's arrival to the end of the transfer. Returns the end in ns."""
        here, message = gpu(), called.message
        size_bytes = max(other.size_bytes for other in messages) if message.operation == "recv" else message.size_bytes
        all_arrived_ns = max(other.arrived_ns for other in messages)
        stream = comm_stream.stream
        if stream is None:
            return all_arrived_ns
        self._watchdog.check(message, all_arrived_ns)
        transfer = here.ranks.costs.next(message.operation, size_bytes, self._size, called.position)
        end_ns = max(all_arrived_ns, stream.ready_ns) + transfer.duration_ns
        call = GroupOperation(message.operation, message.dtype, str(self.group_name), self._size, "nccl", size_bytes)
        times_ns = Times(called.call_ns, message.arrived_ns, end_ns)
        here.ranks.communicate(stream, call, transfer, kernel_label(message.operation), times_ns, called.row)
        return end_ns
