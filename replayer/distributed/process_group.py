# mypy: allow-untyped-calls
"""A virtual NCCL: torch.distributed's process group whose ranks exchange messages and whose transfers take recorded time.

    group = VirtualNccl(store, rank, size, VirtualNccl.Options())
    work = group.allreduce([gradients])     # returns at once, as a launch does
    work.wait()                             # later work on the current stream starts when the operation has ended

An operation starts when its data is ready on every rank, after the one before it on the group's own stream, and takes
what cost_model/collectives.py says. That is known when the other ranks' messages are read, in `wait` or when the host waits
for the device; until then the rank goes on. So an early rank keeps computing, and its device waits for the slowest one.

Note [The map of used parameters]
    With `find_unused_parameters` the Reducer sums over the ranks a map of small integers, which it copies to the device from
    pinned memory that C++ allocates by itself, and that a device registered from Python cannot give. So the Reducer gets
    the map's device side on the host (`factories.reducer_map`): its values are exact, and its transfer is timed as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from replayer.cost_model.collectives import GroupOperation, Times, kernel_label
from replayer.distributed import collective_values as values
from replayer.distributed.store_exchange import RankMessage, StoreExchange
from replayer.distributed.work import Called, CommStream, VirtualWork, WorkGroup
from replayer.state import gpu
from replayer.tensor.tensor import VirtualTensor
from traces.model import NONE

Tensors = Sequence[Any]


def _by_device(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation whose tensors may lie on the host, if the group has a backend for those."""

    @wraps(operation)
    def routed(self: VirtualNccl, *args: Any, **kwargs: Any) -> Any:
        if self.on_cpu is not None and any(map(_lies_on_host, tree_leaves(args))):
            return getattr(self.on_cpu, operation.__name__)(*args, **kwargs)
        return operation(self, *args, **kwargs)

    return routed


def _lies_on_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, VirtualTensor) and not hasattr(value, "reducer_device")


class Options:
    """Stands for ProcessGroupNCCL.Options; what is set on it is kept, and of it only the timeout matters here."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = timedelta(minutes=10)
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""


# torch's stubs know one spelling of each method; torch itself calls several.
_ProcessGroup: Any = dist.ProcessGroup


class VirtualNccl(_ProcessGroup):  # type: ignore[misc]
    """What `ProcessGroupNCCL` is to torch.distributed. CPU tensors pass in object collectives only, or to a second backend."""

    Options = Options

    def __init__(self, store: Any, rank: int, size: int, options: Any = None, device: torch.device | None = None) -> None:
        """`device` is what torch passes since 2.15; operations go by the device of their tensors."""
        super().__init__(rank, size)
        self.options = options if options is not None else Options()
        self._rank, self._size = rank, size
        self._group_name, self._description = self.options.group_name, ""
        self.on_cpu: Any = None  # the backend for CPU tensors, if the group has one
        self._store = store
        self._timeout_s = self.options._timeout.total_seconds()
        self._exchange: StoreExchange | None = None
        self._comm_streams: dict[tuple[str, int], CommStream] = {}
        self._coalesced: list[VirtualWork] | None = None
        self._carries_objects = 0

    # -- what torch.distributed asks of any group; C++ asks for some of it too, and looks for overrides by its own names ----

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "nccl"

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    @property
    def group_name(self) -> str:
        return str(self._group_name)

    def getGroupName(self) -> str:
        return self.group_name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def group_desc(self) -> str:
        return self._description

    # Under these names C++ looks for overrides.
    getRank, getSize, getBackendName, _get_backend_name, setGroupName = rank, size, name, name, _set_group_name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda")] + ([torch.device("cpu")] if self.on_cpu is not None else [])

    supports_splitting = False

    def _get_backend(self, device: Any) -> Any:
        return self.on_cpu if torch.device(device).type == "cpu" and self.on_cpu is not None else self

    def _set_sequence_number_for_group(self) -> None:
        """Operations are counted from zero by every rank."""

    def use_for_cpu(self, backend: Any) -> None:
        """CPU tensors go to `backend` (a real gloo), as in a group of "cpu:gloo,cuda:nccl"."""
        self.on_cpu = backend

    # -- life cycle ------------------------------------------------------------------------------------------------------

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()
        if self._exchange is not None:
            self._exchange.timeout_s = self._timeout_s

    set_timeout = _set_default_timeout

    def carrying_objects(self, step: int) -> None:
        """+1 on entering an object collective, -1 on leaving: their pickles, which are CPU tensors, pass through the store."""
        self._carries_objects += step

    def settle(self, wait: bool = True) -> None:
        """Settle all operations in flight; without `wait` (as this process ends) only those that all ranks have called."""
        for comm_stream in self._comm_streams.values():
            comm_stream.settle_until(None, wait=wait)

    def leave(self, failed: bool = False) -> None:
        """This rank has destroyed the group, or its process ends (`failed`: by an error)."""
        if self._exchange is not None and self._size > 1:
            self._exchange.leave(failed)

    def shutdown(self) -> None:
        self.settle()
        self.leave()

    def abort(self) -> None:
        for comm_stream in self._comm_streams.values():
            comm_stream.in_flight.clear()

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
        # Each rank posts how it splits its input; this one's output is known where all values are.
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
        work = self._run("barrier", [], [], None, device=gpu().current.device())
        work.blocks_host = True
        return work

    # The names of the same operations before torch 2.13.
    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced
    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _start_coalescing(self, device: Any) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any) -> Any:
        works, self._coalesced = self._coalesced or [], None
        return WorkGroup(works)

    # -- running them ----------------------------------------------------------------------------------------------------

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
        """Begin an operation; returns its work. `pair`: sender and receiver, of a point-to-point operation."""
        tensors = [*inputs, *outputs, *like]
        virtual = [tensor for tensor in tensors if isinstance(tensor, VirtualTensor)]
        here = gpu()
        if virtual:
            device = virtual[0].meta.index
        elif tensors:
            device = getattr(tensors[0], "reducer_device", NONE)
        if tensors and (device == NONE or (virtual and len(virtual) < len(tensors))):
            self._require_objects(tensors)
        members = range(self._size) if pair is None else sorted(set(pair))
        channel = "all" if pair is None else f"{pair[0]}-{pair[1]}"
        comm_stream = self._comm_streams.get((channel, device))
        if comm_stream is None:
            comm_stream = self._comm_streams[channel, device] = CommStream(device)
        call_ns = here.streams.host_now_ns()
        arrived_ns = call_ns if device == NONE else here.ranks.arrival_ns(device)
        message = values.message_of(name, arrived_ns, inputs, like, splits)
        pending = self._store_exchange().post(f"{channel}/{'cpu' if device == NONE else 'cuda'}", list(members), message)
        tracker = here.simulator.tracker
        steps = tracker.number, tracker.recorded_step_number
        place = here.ranks.costs.place(name, message.size_bytes, self._size, *steps)
        work = VirtualWork(self._play, comm_stream, Called(call_ns, message, place), pending, outputs, combine)
        values.clear_known_values(outputs)
        comm_stream.in_flight.append(work)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _require_objects(self, tensors: Tensors) -> None:
        if not self._carries_objects:
            kinds = {tensor.device.type for tensor in tensors}
            raise RuntimeError(f"No backend type associated with device type {'cpu' if 'cpu' in kinds else kinds.pop()}")

    def _store_exchange(self) -> StoreExchange:
        if self._exchange is None:
            self._exchange = StoreExchange(self._store, self._rank, self._size, self._timeout_s, gpu().clock)
        return self._exchange

    def _play(self, called: Called, messages: list[RankMessage], comm_stream: CommStream) -> int:
        """Put the operation on its stream, from when this rank was ready until the data has come. Returns its end (ns)."""
        here, message = gpu(), called.message
        size_bytes = max(other.size_bytes for other in messages) if message.operation == "recv" else message.size_bytes
        all_arrived_ns = max(other.arrived_ns for other in messages)
        stream = comm_stream.stream
        if stream is None:
            return all_arrived_ns
        transfer = here.ranks.costs.next(message.operation, size_bytes, self._size, called.place)
        end_ns = max(all_arrived_ns, stream.ready_ns) + transfer.duration_ns
        call = GroupOperation(message.operation, message.dtype, str(self.group_name), self._size, "nccl", size_bytes)
        times_ns = Times(called.call_ns, message.arrived_ns, end_ns)
        here.ranks.communicate(stream, call, transfer, kernel_label(message.operation), times_ns)
        return end_ns


def _listed(tensors: Any) -> list[Any]:
    return list(tensors) if isinstance(tensors, list | tuple) else [tensors]
