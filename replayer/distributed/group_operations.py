"""Runs collectives, sends and receives of one process group.

    operations = GroupOperations(store, rank=0, size=2, timeout_s=600, group_name="0", global_ranks=[0, 1])
    work = operations.run(GroupCall("all_reduce", inputs, outputs, combine))
    operations.finish()     # determines when all operations so far end on the device
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import torch
from torch.distributed import DistBackendError

from replayer.cost_model.collective_costs import BATCH, GroupOperation, Times, kernel_label
from replayer.distributed import collective_values as values
from replayer.distributed.clock_offset import ClockOffset, boot_id
from replayer.distributed.group_call import GroupCall
from replayer.distributed.rank_message import ranks_text, require_match
from replayer.distributed.reductions import require_dense
from replayer.distributed.store_exchange import DeadlockDetector, PendingExchange, StoreExchange, store_of_attempt
from replayer.distributed.watchdog import Watchdog, blocking_wait
from replayer.distributed.work import Called, CallOfGroup, CapturedWork, CommStream, Part, VirtualWork
from replayer.state import computing, gpu
from replayer.tensor.tensor import VirtualTensor
from replayer.timing.stream import VirtualStream
from replayer.torch_types import TorchAny
from traces.model.trace import NONE

Work = VirtualWork | CapturedWork | CallOfGroup


class GroupOperations:
    def __init__(
        self, store: TorchAny, rank: int, size: int, timeout_s: float, group_name: str, global_ranks: list[int]
    ) -> None:
        self.group_name = group_name
        self.coalesced: list[tuple[GroupCall, TorchAny]] | None = None  # the calls of an NCCL group, with their options
        self.carries_objects = 0  # collectives of Python objects that are in progress; such collectives may use CPU tensors
        self._store = store
        self._rank, self._size, self.global_ranks = rank, size, global_ranks or list(range(size))
        self._timeout_s = timeout_s
        self._exchange: StoreExchange | None = None
        self.is_destroyed = self._is_default = False
        self.is_eager = False  # True if the script gave `device_id`; sends and receives then use the group's communicator
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

    def run(self, call: GroupCall, opts: TorchAny = None, kind: type[VirtualWork] = VirtualWork) -> Work:
        if self.coalesced is not None:
            self.coalesced.append((call, opts))
            return CallOfGroup()
        communicator = "all" if self.is_eager or call.pair is None else str(call.members(self._size))
        return self._begin(self._joined([call]), call.name, communicator, opts, kind)

    def run_coalesced(self, given: list[tuple[GroupCall, TorchAny]]) -> Work:
        """Run the calls of an NCCL group as one kernel. Each call is given with its options."""
        if self.coalesced is not None:  # NCCL groups can be nested
            self.coalesced += given
        if self.coalesced is not None or not given:
            return CallOfGroup()
        is_batch, calls = given[0][0].pair is not None, self._joined([call for call, _ in given])
        if is_batch and not self.is_eager:  # no call outside of a batch uses this communicator, and error messages say so
            calls = [replace(call, detail=BATCH) for call in calls]
        return self._begin(calls, BATCH if is_batch else calls[0].name, "all", given[-1][1])

    def _joined(self, calls: list[GroupCall]) -> list[GroupCall]:
        """Join each send from this rank to itself with its receive. NCCL needs both in the same group of calls."""
        own = [call for call in calls if call.pair == (self._rank, self._rank)]
        sends, receives = ([call for call in own if call.name == name] for name in ("send", "recv"))
        if len(sends) != len(receives):
            found, missing = ("send", "recv") if len(sends) > len(receives) else ("recv", "send")
            raise DistBackendError(
                "NCCL error: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
                f"Trying to {found} to self without a matching {missing}"
            )
        joined = [call for call in calls if call not in own]
        for sent, received in zip(sends, receives, strict=True):
            messages = [values.message_of(call, 0) for call in (sent, received)]
            require_match(messages, 1, 0, lambda _: f"rank {self.global_ranks[self._rank]}", "NCCL")
            joined.append(replace(sent, outputs=received.outputs, combine=values.of_rank(0)))
        return joined

    def _begin(
        self, calls: list[GroupCall], name: str, communicator: str, opts: TorchAny, kind: type[VirtualWork] = VirtualWork
    ) -> Work:
        call, tensors = calls[0], [tensor for call in calls for tensor in call.tensors]
        virtual = [tensor for tensor in tensors if isinstance(tensor, VirtualTensor)]
        require_dense(virtual, point_to_point=call.pair is not None)
        here, device = gpu(), call.device
        if virtual:
            device = virtual[0].tensor_meta.index
        elif tensors:
            device = getattr(tensors[0], "reducer_device", NONE)
        if tensors and (device == NONE or (virtual and len(virtual) < len(tensors))):
            self._require_objects(tensors)
        comm_stream = self._comm_streams.get((communicator, device))
        if comm_stream is None:
            comm_stream = self._comm_streams[communicator, device] = CommStream(device, communicator)
        elif self.is_destroyed:  # a group that never communicated has no communicator to abort
            after = f"The script called {name} after it destroyed the group."
            raise DistBackendError(f"NCCL communicator was aborted on rank {self._rank}. {after}")
        stream = comm_stream.stream
        if stream is not None and not getattr(opts, "asyncOp", True):  # PyTorch passes no options for sends and receives
            stream = here.current.stream(device)
        if stream is not None and here.launches.is_capturing(here.current.stream(device)):
            post = partial(self._post, [call.without_values() for call in calls], name, comm_stream, stream)
            work: Work = CapturedWork(post, self._exchange_values, stream, calls)
        else:
            call_ns = here.streams.host_now_ns()
            row, arrived_ns = (NONE, call_ns) if device == NONE else here.ranks.launch(device, call_ns)
            work = self._post(calls, name, comm_stream, stream, call_ns, row, arrived_ns, kind)
            values.clear_known_values(calls)
        work.blocks_host = blocking_wait() and stream is comm_stream.stream
        return work

    def _post(
        self, calls: list[GroupCall], name: str, comm_stream: CommStream, stream: VirtualStream | None, call_ns: int, row: int,
        arrived_ns: int, kind: type[VirtualWork] = VirtualWork,
    ) -> VirtualWork:  # fmt: skip
        here, inputs = gpu(), [tensor for call in calls for tensor in call.inputs]
        if computing():  # this operation reads its inputs after all earlier operations on the stream have ended
            comm_stream.finish_writes_to([tensor for tensor in inputs if isinstance(tensor, VirtualTensor)], wait=True)
        parts = [self._part(call, comm_stream, arrived_ns) for call in calls]
        comm_stream.has_announced_gpu |= any(call.tensors for call in calls)
        message = replace(parts[0].message, operation=name, size_bytes=sum(part.message.size_bytes for part in parts))
        steps = here.simulator.tracker.number, here.recording.index_of(here.simulator.tracker.step.step)
        position = here.ranks.costs.position(name, message.size_bytes, self._size, *steps)
        called = Called(call_ns, row, message, position, stream, parts)
        work = kind(self._play, self._watchdog, comm_stream, called, inputs)
        comm_stream.in_flight.append(work)
        return work

    def _part(self, call: GroupCall, comm_stream: CommStream, arrived_ns: int) -> Part:
        message = values.message_of(call, arrived_ns)
        place = "cpu" if comm_stream.device == NONE else "cuda"
        if place == "cuda" and call.tensors and not comm_stream.has_announced_gpu:
            message.gpu, message.group = _gpu_of_machine(comm_stream.device), ranks_text(self.global_ranks)
        pending = self._store_exchange().post(f"{comm_stream.name}/{call.pair}/{place}", call.members(self._size), message)
        return Part(message, pending, call.outputs, call.combine)

    def _exchange_values(self, call: GroupCall) -> PendingExchange:
        message = values.message_of(call, 0)
        return self._store_exchange().post(f"{call.pair}/values", call.members(self._size), message)

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

    def _play(self, called: Called, comm_stream: CommStream) -> int:
        here, message, stream = gpu(), called.message, called.stream
        # NCCL's watchdog ignores operations of a replayed CUDA graph. With blocking waits, only `wait` checks the timeout, and
        # PyTorch does not call `wait` for collectives with `async_op=False`.
        ignored = called.row == NONE or (blocking_wait() and stream is not comm_stream.stream)
        for part in called.parts if stream is None or not ignored else ():
            members, messages = part.pending.members, part.pending.messages()
            arrived_ns = {self.global_ranks[rank]: other.arrived_ns for rank, other in zip(members, messages, strict=True)}
            self._watchdog.check(part.message, arrived_ns)
        if stream is None or comm_stream.stream is None:
            return called.arrived_ns
        stream.wait(comm_stream.stream.ready_ns)
        parts = [part.message for part in called.parts]
        one_way_bytes = max(sum(part.size_bytes for part in parts if part.operation == way) for way in ("send", "recv"))
        transfer = here.ranks.costs.next(message.operation, message.size_bytes, self._size, called.position, one_way_bytes)
        end_ns = max(called.arrived_ns, stream.ready_ns) + transfer.duration_ns
        call = GroupOperation(message.operation, message.dtype, str(self.group_name), self._size, "nccl", message.size_bytes)
        times_ns = Times(called.call_ns, message.arrived_ns, end_ns)
        here.ranks.communicate(stream, call, transfer, kernel_label(message.operation), times_ns, called.row)
        comm_stream.stream.wait(end_ns)
        return end_ns


def _gpu_of_machine(index: int) -> str:
    ranks = [os.environ.get(name, "0") for name in ("RANK", "LOCAL_RANK")]
    machine = int(ranks[0]) - int(ranks[1]) if all(map(str.isdigit, ranks)) else 0
    visible = torch.cuda._parse_visible_devices()
    return f"{boot_id()}/{machine}/{visible[index] if index < len(visible) else index}"
