# mypy: allow-untyped-calls
"""A virtual NCCL: torch.distributed's process group whose ranks really meet and whose transfers take recorded time.

    group = VirtualNccl(store, rank, size, VirtualNccl.Options())
    work = group.allreduce([gradients])     # returns at once, as a launch does
    work.wait()                             # later work on the current stream starts when the operation has ended

An operation starts when its data is ready on every rank, after the one before it on the group's own stream, and takes
what `collectives.py` says. When that is shows when the others' words are read, in `wait` or when the host waits for the
device; until then the rank goes on. So a rank that is early computes on, and on the device waits for the slowest one.

Note [The map of used parameters]
    With `find_unused_parameters` the Reducer sums over the ranks a map of small integers, which it copies to the device from
    pinned memory that C++ allocates by itself, and that a device registered from Python cannot give. So the Reducer gets
    the map's device side on the host (`factories.stand_in`): its values are exact, and its transfer is timed as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from replayer.cost_model.collectives import Call, Times, kernel_label
from replayer.distributed import collective_values as values
from replayer.distributed.process_group_base import ProcessGroupBase
from replayer.distributed.store_exchange import RankMessage, StoreExchange
from replayer.distributed.work import Lane, VirtualWork, WorkGroup
from replayer.state import gpu
from replayer.tensor.tensor import VirtualTensor
from traces.model import NONE

Tensors = Sequence[Any]


def _by_device(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation whose tensors may lie on the host, if the group has a backend for those."""

    @wraps(operation)
    def routed(self: VirtualNccl, *args: Any, **kwargs: Any) -> Any:
        if self.on_cpu is not None and _lies_on_host(args):
            return getattr(self.on_cpu, operation.__name__)(*args, **kwargs)
        return operation(self, *args, **kwargs)

    return routed


def _lies_on_host(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_lies_on_host, value))
    return isinstance(value, torch.Tensor) and not isinstance(value, VirtualTensor) and not hasattr(value, "stands_on")


class VirtualNccl(ProcessGroupBase):
    """What `ProcessGroupNCCL` is to torch.distributed; of CPU tensors only those of object collectives pass."""

    def __init__(self, store: Any, rank: int, size: int, options: Any = None, device: torch.device | None = None) -> None:
        """`device`, which torch tells since 2.15, is the rank's own; tensors tell theirs."""
        super().__init__(rank, size, options)
        self._store = store
        self._timeout_s = self.options._timeout.total_seconds()
        self._meeting: StoreExchange | None = None
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._together: list[VirtualWork] | None = None
        self._carries_objects = 0

    # -- its life in this process ----------------------------------------------------------------------------------------

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()
        if self._meeting is not None:
            self._meeting.timeout_s = self._timeout_s

    set_timeout = _set_default_timeout

    def carrying_objects(self, step: int) -> None:
        """Object collectives come (1) and go (-1): their pickles travel as they are, through the store."""
        self._carries_objects += step

    def settle(self, wait: bool = True) -> None:
        """Settle all that is under way, as the host waits for the device; or, as this process ends, what can be at once."""
        for lane in self._lanes.values():
            lane.settle_until(None, wait=wait)

    def leave(self, failed: bool = False) -> None:
        """This rank needs the group no more, for it has destroyed it, or its process ends (well, or not)."""
        if self._meeting is not None and self._size > 1:
            self._meeting.leave(failed)

    def shutdown(self) -> None:
        self.settle()
        self.leave()

    def abort(self) -> None:
        for lane in self._lanes.values():
            lane.open.clear()

    # -- operations ----------------------------------------------------------------------------------------------------

    @_by_device
    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        tensors = _listed(tensors)
        combine = values.reduced(opts.reduceOp if isinstance(opts, dist.AllreduceOptions) else opts)
        return self._run("all_reduce", tensors, tensors, combine)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        combine = values.reduced(opts.reduceOp if opts is not None else None)
        return WorkGroup([self._run("all_reduce", [tensor], [tensor], combine) for tensor in tensors])

    @_by_device
    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        tensors = _listed(tensors)
        root = opts.rootRank if isinstance(opts, dist.BroadcastOptions) else int(opts or 0)
        return self._run("broadcast", tensors, tensors, values.of_rank(root))

    @_by_device
    def reduce(self, tensors: Any, opts: Any) -> Any:
        return self._run("reduce", tensors, tensors if opts.rootRank == self._rank else [], values.reduced(opts.reduceOp))

    @_by_device
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._run("all_gather", _listed(inputs), outputs[0], values.joined)

    @_by_device
    def all_gather_single(self, output: Any, source: Any, opts: Any = None) -> Any:
        return self._run("all_gather_into_tensor", [source], [output], values.joined)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return WorkGroup([self.all_gather_single(o, i) for o, i in zip(outputs, inputs, strict=True)])

    @_by_device
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        combine = values.scattered(values.reduced(opts.reduceOp if opts is not None else None), self._rank, self._size)
        return self._run("reduce_scatter", inputs[0], outputs, combine)

    @_by_device
    def reduce_scatter_single(self, output: Any, source: Any, opts: Any = None) -> Any:
        combine = values.scattered(values.reduced(opts.reduceOp if opts is not None else None), self._rank, self._size)
        return self._run("reduce_scatter_tensor", [source], [output], combine)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return WorkGroup([self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    @_by_device
    def all_to_all_single(self, output: Any, source: Any, output_sizes: Any, input_sizes: Any, opts: Any = None) -> Any:
        # Each rank says how it splits; what comes to this one is known where all values are.
        rows = list(input_sizes) if input_sizes else [source.shape[0] // self._size] * self._size
        each = source[0].numel() if source.dim() > 1 and source.shape[0] else 1
        splits = [size * each for size in rows]
        return self._run("all_to_all_single", [source], [output], values.exchanged(self._rank), splits)

    @_by_device
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        splits = [tensor.numel() for tensor in inputs]
        return self._run("all_to_all", inputs, outputs, values.exchanged(self._rank), splits)

    @_by_device
    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._run("gather", inputs, outputs[0] if outputs else [], values.joined)

    @_by_device
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        given = inputs[0] if inputs else []
        combine = values.scattered(values.of_rank(opts.rootRank), self._rank, self._size)
        return self._run("scatter", given, outputs, combine, like=outputs)

    @_by_device
    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        return self._run("send", tensors, [], None, pair=(self._rank, to))

    @_by_device
    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        combine = values.of_rank(sorted({source, self._rank}).index(source))
        return self._run("recv", [], tensors, combine, pair=(source, self._rank), like=tensors)

    def barrier(self, opts: Any = None) -> Any:
        work = self._run("barrier", [], [], None, device=gpu().current_device())
        work.blocks_host = True
        return work

    # The names of the same operations before torch 2.13.
    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced
    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _start_coalescing(self, device: Any) -> None:
        self._together = []

    def _end_coalescing(self, device: Any) -> Any:
        works, self._together = self._together or [], None
        return WorkGroup(works)

    # -- how they go -----------------------------------------------------------------------------------------------------

    def _run(
        self,
        name: str,
        inputs: Tensors,
        outputs: Tensors,
        combine: values.Combine | None,
        splits: list[int] | None = None,
        *,
        pair: tuple[int, int] | None = None,
        device: int = NONE,
        like: Tensors = (),
    ) -> Any:
        """Arrive at an operation. `pair` names the sender and receiver of one that only two ranks share."""
        tensors = [*inputs, *outputs, *like]
        virtual = [tensor for tensor in tensors if isinstance(tensor, VirtualTensor)]
        here = gpu()
        if virtual:
            device = virtual[0].meta.index
        elif tensors:
            device = getattr(tensors[0], "stands_on", NONE)
        if tensors and (device == NONE or (virtual and len(virtual) < len(tensors))):
            self._require_objects(tensors)
        members = range(self._size) if pair is None else sorted(set(pair))
        lane_name = "all" if pair is None else f"{pair[0]}-{pair[1]}"
        lane = self._lanes.get((lane_name, device))
        if lane is None:
            lane = self._lanes[lane_name, device] = Lane(device)
        call_ns = here.host_now_ns()
        arrived_ns = call_ns if device == NONE else here.arrival_ns(device)
        word = values.word(name, arrived_ns, inputs, like, splits)
        ticket = self._meet().arrive(f"{lane_name}/{'cpu' if device == NONE else 'cuda'}", list(members), word)
        work = VirtualWork(self, lane, ticket, outputs, combine)
        work.call_ns, work.arrived_ns, work.word = call_ns, arrived_ns, word
        values.forget(outputs)
        lane.open.append(work)
        if self._together is not None:
            self._together.append(work)
        return work

    def _require_objects(self, tensors: Tensors) -> None:
        if not self._carries_objects:
            kinds = {tensor.device.type for tensor in tensors}
            raise RuntimeError(f"No backend type associated with device type {'cpu' if 'cpu' in kinds else kinds.pop()}")

    def _meet(self) -> StoreExchange:
        if self._meeting is None:
            self._meeting = StoreExchange(self._store, self._rank, self._size, self._timeout_s, gpu().clock)
        return self._meeting

    def play(self, work: VirtualWork, words: list[RankMessage], lane: Lane) -> int:
        """Put the operation on the lane's stream, from when this rank was ready until all had come and the data has."""
        here, word = gpu(), work.word
        assert word is not None
        size_bytes = max(other.size_bytes for other in words) if word.operation == "recv" else word.size_bytes
        all_there_ns = max(other.arrived_ns for other in words)
        stream = lane.stream
        if stream is None:
            return all_there_ns
        transfer = here.collective_costs.next(word.operation, size_bytes, self._size)
        end_ns = max(all_there_ns, stream.ready_ns) + transfer.duration_ns
        call = Call(word.operation, word.dtype, str(self.group_name), self._size, "nccl", size_bytes)
        times_ns = Times(work.call_ns, work.arrived_ns, end_ns)
        here.communicate(stream, call, transfer, kernel_label(word.operation), times_ns)
        return end_ns


def _listed(tensors: Any) -> list[Any]:
    return list(tensors) if isinstance(tensors, list | tuple) else [tensors]
