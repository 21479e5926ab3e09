# mypy: allow-untyped-calls
"""Emulates NCCL process groups.

    group = VirtualNccl(store, rank, size, VirtualNccl.Options())
    work = group.allreduce([gradients])     # returns at once, like a kernel launch
    work.wait()                             # later work on the current stream starts after the operation

A collective starts after its data is ready on all ranks, and after the group's previous collective. Collectives with
`async_op=False` run on the current CUDA stream (since PyTorch 2.8). All other collectives, sends and receives run on NCCL's
own streams.

Note [The map of used parameters]
    With `find_unused_parameters`, the Reducer of DistributedDataParallel sums one integer per parameter over the ranks. The
    Reducer's C++ code copies these integers from pinned memory to the GPU. Such a copy is impossible for a device that is
    registered from Python. The Reducer therefore gets a CPU tensor in place of the GPU tensor (`factories.reducer_map`). The
    values are exact, and the time of the copy is simulated as usual.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import wraps
from typing import NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.utils._pytree import tree_leaves

from replayer.distributed import collective_values as values
from replayer.distributed.group_call import GroupCall
from replayer.distributed.group_operations import GroupOperations
from replayer.distributed.reductions import Reduction
from replayer.distributed.work import GatheredWork, VirtualWork
from replayer.errors import NotEmulated, require
from replayer.state import gpu
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny, TorchFunction

Tensors = Sequence[TorchAny]


def _by_device(operation: TorchFunction) -> TorchFunction:
    @wraps(operation)
    def routed(self: VirtualNccl, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        if self.on_cpu is not None and any(map(_lies_on_host, tree_leaves(args))):
            return getattr(self.on_cpu, operation.__name__)(*args, **kwargs)
        return operation(self, *args, **kwargs)

    return routed


def _coalesced(operation: TorchFunction) -> TorchFunction:
    def of_all(self: VirtualNccl, outputs: Tensors, inputs: Tensors, opts: TorchAny = None) -> TorchAny:
        with self.coalescing() as works:
            for output, source in zip(outputs, inputs, strict=True):
                operation(self, output, source, opts)
        return works[0]

    of_all.__name__ = f"{operation.__name__}_coalesced"
    return _by_device(of_all)


def _lies_on_host(value: TorchAny) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, VirtualTensor) and not hasattr(value, "reducer_device")


class NcclConfig:
    """Replaces ProcessGroupNCCL.NCCLConfig. The options have no effect."""

    UNDEFINED = -(2**31)

    def __init__(self) -> None:
        self.blocking = 1
        self.net_name = ""
        for name in "cga_cluster_size min_ctas max_ctas split_share shrink_share traffic_class collnet_enable".split():
            setattr(self, name, self.UNDEFINED)


class Options:
    """Replaces ProcessGroupNCCL.Options. Only the timeout has an effect."""

    backend = "nccl"

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = timedelta(minutes=10)
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self.config = NcclConfig()


# PyTorch's type stubs lack some methods of ProcessGroup.
_ProcessGroup: TorchAny = dist.ProcessGroup


class _NcclGroup(_ProcessGroup):  # type: ignore[misc]
    def __init__(self, store: TorchAny, rank: int, size: int, options: Options) -> None:
        super().__init__(rank, size)
        self.options = options
        self._rank, self._size, self._store = rank, size, store
        self.on_cpu: TorchAny = None  # backend for CPU tensors, e.g. gloo in "cpu:gloo,cuda:nccl"
        named = options.group_name, options.global_ranks_in_group
        self.operations = GroupOperations(store, rank, size, options._timeout.total_seconds(), *named)
        gpu().ranks.join(self.operations)
        atexit.register(lambda: self.operations.leave(failed=hasattr(sys, "last_value")))

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "nccl"

    def _set_group_name(self, name: str) -> None:
        self.operations.group_name = name

    def getGroupName(self) -> str:
        return str(self.operations.group_name)

    group_name = property(getGroupName)
    group_desc = ""

    def _set_group_desc(self, description: str) -> None:
        self.group_desc = description

    getRank, getSize, getBackendName, _get_backend_name, setGroupName = rank, size, name, name, _set_group_name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda")] + ([torch.device("cpu")] if self.on_cpu is not None else [])

    def get_group_store(self) -> TorchAny:
        return self._store

    def _get_backend(self, device: TorchAny) -> TorchAny:
        return self.on_cpu if torch.device(device).type == "cpu" and self.on_cpu is not None else self

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing, because GroupOperations numbers the collectives."""

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.operations.set_timeout(timeout.total_seconds())

    set_timeout = _set_default_timeout

    def shutdown(self) -> None:
        self.operations.finish()
        self.operations.leave()
        self.operations.is_destroyed = True

    def abort(self) -> None:
        self.operations.drop()
        self.operations.is_destroyed = True


class VirtualNccl(_NcclGroup):
    Options, NCCLConfig = Options, NcclConfig

    def __init__(
        self, store: TorchAny, rank: int, size: int, options: TorchAny = None, device: torch.device | None = None
    ) -> None:
        """The argument `device` is ignored. PyTorch passes `device` since release 2.15."""
        super().__init__(store, rank, size, options if options is not None else Options())
        self._splits = 0

    # -- communicators -----------------------------------------------------------------------------------------------------

    supports_splitting = True
    supports_time_estimate = False

    def comm_split_count(self) -> int:
        return self._splits

    def _do_nothing(self, *_args: TorchAny, **_options: TorchAny) -> None:
        """Replace methods that matter only for NCCL's communicators and memory."""

    perform_nocolor_split = _group_start = _group_end = register_mem_pool = deregister_mem_pool = _do_nothing

    def eager_connect_single_device(self, _device: TorchAny) -> None:
        self.operations.is_eager = True

    def split_group(
        self,
        ranks: list[int],
        timeout: timedelta | None = None,
        opts: TorchAny = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: TorchAny = None,
    ) -> VirtualNccl | None:
        self._splits += 1
        if self._rank not in ranks:
            return None
        options = opts or Options()
        options._timeout = timeout or options._timeout
        options.group_name = group_name or f"{self.group_name}:split:{self._splits}"
        all_ranks = options.global_ranks_in_group or range(self._size)
        options.global_ranks_in_group = [all_ranks[rank] for rank in ranks]
        # PyTorch's name for the group contains a hash, and can differ between the ranks
        store = PrefixStore(f"split/{self._splits}/{'_'.join(map(str, ranks))}/", self._store)
        group = VirtualNccl(store, ranks.index(self._rank), len(ranks), options)
        group.group_desc, group.operations.is_eager = group_desc or "", True
        if self.on_cpu is not None and "cpu" in map(str, device_types or ["cpu"]):
            gloo: TorchAny = dist.ProcessGroupGloo
            group.on_cpu = gloo(PrefixStore("cpu/", store), group._rank, group._size, options._timeout)
        return group

    @property
    def mem_allocator(self) -> NoReturn:
        raise NotEmulated("ProcessGroupNCCL.mem_allocator", "allocate the tensors with PyTorch's default allocator")

    # -- operations ----------------------------------------------------------------------------------------------------

    @_by_device
    def allreduce(self, tensors: TorchAny, opts: TorchAny = None) -> TorchAny:
        return self.operations.run(_all_reduce(_listed(tensors), _op_of(opts)), opts)

    def allreduce_coalesced(self, tensors: TorchAny, opts: TorchAny = None) -> TorchAny:
        return self.operations.run_coalesced([(_all_reduce([tensor], _op_of(opts)), opts) for tensor in tensors])

    @_by_device
    def broadcast(self, tensors: TorchAny, opts: TorchAny = None) -> TorchAny:
        tensors = _listed(tensors)
        root = opts.rootRank if isinstance(opts, dist.BroadcastOptions) else int(opts or 0)
        self._require_member("Broadcast", root)
        detail = f"from rank {self._global(root)}"
        sent, combine = (tensors, None) if root == self._rank else ((), values.of_rank(root))
        return self.operations.run(GroupCall("broadcast", sent, tensors, combine, like=tensors, detail=detail), opts)

    @_by_device
    def reduce(self, tensors: TorchAny, opts: TorchAny) -> TorchAny:
        self._require_member("Reduce", opts.rootRank)
        how, outputs = Reduction.of(opts.reduceOp, tensors), tensors if opts.rootRank == self._rank else []
        detail = f"{how.name} to rank {self._global(opts.rootRank)}"
        call = GroupCall("reduce", tensors, outputs, how.combine, detail=detail, factor=how.factor)
        return self.operations.run(call, opts)

    @_by_device
    def allgather(self, outputs: TorchAny, inputs: TorchAny, opts: TorchAny = None) -> TorchAny:
        inputs = _listed(inputs)
        self._require_one_per_rank("output", outputs[0])
        wants, sent = [output.numel() for output in outputs[0]], [inputs[0].numel()] * self._size
        call = GroupCall("all_gather", inputs, outputs[0], values.concatenated, sends=sent, wants=wants)
        return self.operations.run(call, opts, GatheredWork if len(set(wants)) == 1 else VirtualWork)

    @_by_device
    def all_gather_single(self, output: TorchAny, source: TorchAny, opts: TorchAny = None) -> TorchAny:
        if output.dtype != source.dtype:
            raise TypeError("output tensor must have the same type as input tensor")
        if output.numel() != source.numel() * self._size:
            raise ValueError("output tensor size must be equal to world_size times input tensor size")
        return self.operations.run(GroupCall("all_gather_into_tensor", [source], [output], values.concatenated), opts)

    @_by_device
    def reduce_scatter(self, outputs: TorchAny, inputs: TorchAny, opts: TorchAny = None) -> TorchAny:
        self._require_one_per_rank("input", inputs[0])
        sends, wants = [tensor.numel() for tensor in inputs[0]], [outputs[0].numel()] * self._size
        call = _reduce_scatter("reduce_scatter", inputs[0], outputs, self._rank, sends, opts)
        return self.operations.run(replace(call, sends=sends, wants=wants), opts)

    @_by_device
    def reduce_scatter_single(self, output: TorchAny, source: TorchAny, opts: TorchAny = None) -> TorchAny:
        if output.dtype != source.dtype:
            raise TypeError("input tensor must be the same type as the output tensor.")
        if source.numel() != output.numel() * self._size:
            raise ValueError("input tensor must be the same size as output size times world size")
        sizes = [output.numel()] * self._size
        call = _reduce_scatter("reduce_scatter_tensor", [source], [output], self._rank, sizes, opts)
        return self.operations.run(call, opts)

    @_by_device
    def all_to_all_single(
        self, output: TorchAny, source: TorchAny, output_sizes: TorchAny, input_sizes: TorchAny, opts: TorchAny = None
    ) -> TorchAny:
        sends, wants = elements_by_rank(source, input_sizes, self._size), elements_by_rank(output, output_sizes, self._size)
        combine = values.all_to_all_values(self._rank)
        call = GroupCall("all_to_all_single", [source], [output], combine, sends=sends, wants=wants)
        return self.operations.run(call, opts)

    @_by_device
    def alltoall(self, outputs: TorchAny, inputs: TorchAny, opts: TorchAny = None) -> TorchAny:
        self._require_one_per_rank("input", inputs)
        self._require_one_per_rank("output", outputs)
        sends, wants = ([tensor.numel() for tensor in tensors] for tensors in (inputs, outputs))
        combine = values.all_to_all_values(self._rank)
        return self.operations.run(GroupCall("all_to_all", inputs, outputs, combine, sends=sends, wants=wants), opts)

    @_by_device
    def gather(self, outputs: TorchAny, inputs: TorchAny, opts: TorchAny = None) -> TorchAny:
        self._require_member("Gather", opts.rootRank)
        onto = outputs[0] if outputs else []
        if opts.rootRank == self._rank:
            self._require_one_per_rank("output", onto)
        sent, wants = [inputs[0].numel()] * self._size, [tensor.numel() for tensor in onto] or None
        detail = f"to rank {self._global(opts.rootRank)}"
        call = GroupCall("gather", inputs, onto, values.concatenated, sends=sent, wants=wants, detail=detail)
        return self.operations.run(call, opts)

    @_by_device
    def gather_single(self, output: TorchAny, source: TorchAny, opts: TorchAny) -> TorchAny:
        """PyTorch has this method since release 2.14."""
        is_root = opts.rootRank == self._rank
        if is_root and output.numel() != source.numel() * self._size:
            raise ValueError("output tensor size must be equal to world_size times input tensor size")
        return self.gather([output.view(-1).split(source.numel()) if is_root else []], [source], opts)

    @_by_device
    def scatter(self, outputs: TorchAny, inputs: TorchAny, opts: TorchAny = None) -> TorchAny:
        self._require_member("Scatter", opts.rootRank)
        given, root = inputs[0] if inputs else [], opts.rootRank
        if root == self._rank:
            self._require_one_per_rank("input", given)
        combine = values.part_of_rank(values.of_rank(root), self._rank, [outputs[0].numel()] * self._size)
        sends = [tensor.numel() for tensor in given] if self._rank == root else None
        wants = [outputs[0].numel() if rank == root else 0 for rank in range(self._size)]
        detail = f"from rank {self._global(root)}"
        call = GroupCall("scatter", given, outputs, combine, like=outputs, sends=sends, wants=wants, detail=detail)
        return self.operations.run(call, opts)

    @_by_device
    def send(self, tensors: TorchAny, to: int, tag: int = 0) -> TorchAny:
        self._require_member("Send", to)
        return self.operations.run(GroupCall("send", tensors, [], None, pair=(self._rank, to)))

    @_by_device
    def recv(self, tensors: TorchAny, source: int, tag: int = 0) -> TorchAny:
        self._require_member("Recv", source)
        combine = values.of_rank(sorted({source, self._rank}).index(source))
        return self.operations.run(GroupCall("recv", [], tensors, combine, pair=(source, self._rank), like=tensors))

    def barrier(self, opts: TorchAny = None) -> TorchAny:
        work = self.operations.run(GroupCall("barrier", [], [], None, device=gpu().current.device()), opts)
        work.blocks_host = True
        return work

    def _global(self, rank: int) -> int:
        return self.operations.global_ranks[rank]

    def _require_member(self, operation: str, rank: int) -> None:
        if not 0 <= rank < self._size:
            raise dist.DistBackendError(
                "NCCL error: ncclInvalidArgument: Invalid value for an argument.\nLast error:\n"
                f"{operation} : invalid root {rank} (root should be in the 0..{self._size} range)"
            )

    def _require_one_per_rank(self, kind: str, tensors: Tensors) -> None:
        if len(tensors) != self._size:
            raise ValueError(
                f"Incorrect {kind} list size {len(tensors)}. {kind.title()} list size should be {self._size}, same as size of"
                " the process group."
            )

    all_gather_single_coalesced = _coalesced(all_gather_single)
    reduce_scatter_single_coalesced = _coalesced(reduce_scatter_single)

    # Before torch 2.13, these operations had the following names.
    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced
    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    @contextmanager
    def coalescing(self) -> Iterator[list[TorchAny]]:
        """Send the calls of the `with` block as one NCCL group. The work of this group is put into the returned list."""
        works: list[TorchAny] = []
        outer, self.operations.coalesced = self.operations.coalesced, []
        try:
            yield works
            calls = self.operations.coalesced
        finally:
            self.operations.coalesced = outer
        works.append(self.operations.run_coalesced(calls))

    def _start_coalescing(self, device: TorchAny) -> None:
        self.operations.coalesced = []

    def _end_coalescing(self, device: TorchAny) -> TorchAny:
        calls, self.operations.coalesced = self.operations.coalesced or [], None
        return self.operations.run_coalesced(calls)


def _all_reduce(tensors: Tensors, op: TorchAny) -> GroupCall:
    how = Reduction.of(op, tensors)
    return GroupCall("all_reduce", tensors, tensors, how.combine, detail=how.name, factor=how.factor)


def _reduce_scatter(name: str, inputs: Tensors, outputs: Tensors, rank: int, sizes: list[int], opts: TorchAny) -> GroupCall:
    how = Reduction.of(_op_of(opts), inputs)
    combine = values.part_of_rank(how.combine, rank, sizes)
    return GroupCall(name, inputs, outputs, combine, detail=how.name, factor=how.factor)


def _op_of(opts: TorchAny) -> TorchAny:
    return getattr(opts, "reduceOp", opts)


def elements_by_rank(tensor: TorchAny, rows: TorchAny, size: int) -> list[int]:
    counts = list(rows) or [tensor.shape[0] // size] * size
    require(len(counts) == size, "Number of tensor splits not equal to group size")
    if sum(counts) != tensor.shape[0]:
        raise RuntimeError(
            "Split sizes doesn't match total dim 0 size"
            if rows
            else "Tensor's dim 0 does not divide equally across group size"
        )
    each = tensor[0].numel() if tensor.dim() > 1 and tensor.shape[0] else 1
    return [count * each for count in counts]


def _listed(tensors: TorchAny) -> list[TorchAny]:
    return list(tensors) if isinstance(tensors, list | tuple) else [tensors]
