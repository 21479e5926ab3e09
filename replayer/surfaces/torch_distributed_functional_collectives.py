# mypy: allow-untyped-calls
"""Implements torch.distributed._functional_collectives, which DTensor uses.

    total = funcol.all_reduce(partial, "sum", mesh)     # a new tensor, complete when all ranks' parts have arrived

The module reimplements torch/csrc/distributed/c10d/Functional.cpp.

Note [Results wait at once]
    PyTorch returns a tensor that waits for the collective at its first use. This tensor has the C++ device type "cuda", with
    which autograd fails without a CUDA device. In a replay, the current stream therefore waits when the collective is called.

Note [Functional collectives of CPU tensors]
    PyTorch's C++ code calls gloo directly. The module torch_distributed_gloo.py would see neither the call nor the wait. The
    kernels for CPU tensors therefore call the Python methods of the process group.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from replayer.distributed.process_group import VirtualNccl
from replayer.ops import kept_library
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import patch_around


def install(torch_module: ModuleType) -> None:
    if not torch_module.distributed.is_available():
        return
    functional = _Functional()
    specials = VirtualTensor.plan_cache.specials
    for ops in (torch_module.ops._c10d_functional, torch_module.ops._dtensor):
        specials |= {getattr(ops, name).default: getattr(functional, name) for name in _TAKEN if hasattr(ops, name)}
    # see Note [Functional collectives of CPU tensors]
    library = kept_library("_c10d_functional")
    for name in _TAKEN:
        if hasattr(torch_module.ops._c10d_functional, name):
            library.impl(name, getattr(functional, name), "CPU")
    _wait_at_once(importlib.import_module("torch.distributed._functional_collectives"))


def _wait_at_once(funcol: TorchAny) -> None:
    # see Note [Results wait at once]

    def wait_for_one(wrap: TorchAny, tensor: torch.Tensor) -> TorchAny:
        return funcol.wait_tensor(tensor) if isinstance(tensor, VirtualTensor) else wrap(tensor)

    def wait_for_several(wrap: TorchAny, tensors: TorchAny) -> TorchAny:
        if any(isinstance(tensor, VirtualTensor) for tensor in tensors):
            return [funcol._maybe_wrap_tensor(tensor) for tensor in tensors]
        return wrap(tensors)

    patch_around(funcol, _maybe_wrap_tensor=wait_for_one)
    if hasattr(funcol, "_maybe_wrap_tensors"):
        patch_around(funcol, _maybe_wrap_tensors=wait_for_several)


def _for_each(one: TorchFunction) -> TorchFunction:
    return lambda self, tensors, *args: [one(self, tensor, *args) for tensor in tensors]


def _in_one_launch(one: TorchFunction) -> TorchFunction:
    def of_all(self: _Functional, tensors: list[torch.Tensor], *args: TorchAny) -> TorchAny:
        *options, group = args
        return self._coalesced(group, lambda of: [one(self, tensor, *options, of) for tensor in tensors])

    return of_all


class _Functional:
    def __init__(self) -> None:
        self._under_way: WeakKeyDictionary[TorchAny, TorchAny] = WeakKeyDictionary()  # keys: the memory of results

    def wait_tensor(self, tensor: torch.Tensor) -> TorchAny:
        work = self._under_way.pop(_memory(tensor), None)
        if work is not None:
            work.wait()
        return tensor

    def all_reduce(self, tensor: torch.Tensor, op: str, group: TorchAny) -> TorchAny:
        return self.all_reduce_(self._copy(tensor), op, group)

    def all_reduce_(self, tensor: torch.Tensor, op: str, group: TorchAny) -> TorchAny:
        options = dist.AllreduceOptions()
        options.reduceOp = self._reduction(op)
        return self._begun(tensor, self._group(group).allreduce([tensor], options))

    def broadcast(self, tensor: torch.Tensor, source: int, group: TorchAny) -> TorchAny:
        return self.broadcast_(self._copy(tensor), source, group)

    def broadcast_(self, tensor: torch.Tensor, source: int, group: TorchAny) -> TorchAny:
        options = dist.BroadcastOptions()
        options.rootRank = source
        return self._begun(tensor, self._group(group).broadcast([tensor], options))

    def all_gather_into_tensor(self, tensor: torch.Tensor, size: int, group: TorchAny) -> TorchAny:
        out = self._empty(tensor, tensor.shape[0] * size)
        return self.all_gather_into_tensor_out(tensor, size, group, out=out)

    def all_gather_into_tensor_out(self, tensor: torch.Tensor, size: int, group: TorchAny, *, out: torch.Tensor) -> TorchAny:
        gather = _named(self._group(group), "all_gather_single", "_allgather_base")
        return self._begun(out, gather(out, tensor.contiguous()))

    def reduce_scatter_tensor(self, tensor: torch.Tensor, op: str, size: int, group: TorchAny) -> TorchAny:
        out = self._empty(tensor, tensor.shape[0] // size)
        return self.reduce_scatter_tensor_out(tensor, op, size, group, out=out)

    def reduce_scatter_tensor_out(
        self, tensor: torch.Tensor, op: str, size: int, group: TorchAny, *, out: torch.Tensor
    ) -> TorchAny:
        options = dist.ReduceScatterOptions()
        options.reduceOp = self._reduction(op)
        scatter = _named(self._group(group), "reduce_scatter_single", "_reduce_scatter_base")
        return self._begun(out, scatter(out, tensor.contiguous(), options))

    def all_to_all_single(
        self, tensor: torch.Tensor, output_sizes: list[int], input_sizes: list[int], group: TorchAny
    ) -> TorchAny:
        out = self._empty(tensor, sum(output_sizes))
        exchange = _named(self._group(group), "all_to_all_single", "alltoall_base")
        return self._begun(out, exchange(out, tensor.contiguous(), output_sizes, input_sizes))

    def isend(self, tensor: torch.Tensor, to: int, tag: int, group: TorchAny) -> TorchAny:
        return self._begun(tensor, self._group(group).send([tensor], to, tag))

    def irecv(self, tensor: torch.Tensor, source: int, tag: int, group: TorchAny) -> TorchAny:
        return self._begun(tensor, self._group(group).recv([tensor], source, tag))

    def batch_p2p_ops(
        self, names: list[str], peers: list[int], tags: list[int], tensors: list[TorchAny], group: TorchAny
    ) -> list[TorchAny]:
        calls = zip(names, tensors, peers, tags, strict=True)
        return self._coalesced(group, lambda of: [getattr(self, name)(*args, of) for name, *args in calls])

    def shard_dim_alltoall(self, tensor: torch.Tensor, gather_dim: int, shard_dim: int, group: TorchAny) -> TorchAny:
        group = self._group(group)
        size = group.size()
        parts = tensor.unflatten(shard_dim, (size, tensor.shape[shard_dim] // size)).movedim(shard_dim, 0).contiguous()
        received = torch.empty_like(parts)
        _named(group, "all_to_all_single", "alltoall_base")(received, parts, [], []).wait()
        return received.movedim(0, gather_dim).flatten(gather_dim, gather_dim + 1)

    wait_tensors = _for_each(wait_tensor)
    all_reduce_coalesced = _in_one_launch(all_reduce)
    all_reduce_coalesced_ = _in_one_launch(all_reduce_)
    all_gather_into_tensor_coalesced = _in_one_launch(all_gather_into_tensor)
    reduce_scatter_tensor_coalesced = _in_one_launch(reduce_scatter_tensor)

    def _coalesced(self, group: TorchAny, begin: Callable[[TorchAny], list[TorchAny]]) -> list[TorchAny]:
        group = self._group(group)
        coalescing: TorchAny = group.coalescing() if isinstance(group, VirtualNccl) else nullcontext([])
        with coalescing as coalesced:
            results = begin(group)
        for work in coalesced:
            results = [self._begun(tensor, work) for tensor in results]
        return results

    def _begun(self, tensor: TorchAny, work: TorchAny) -> TorchAny:
        self._under_way[_memory(tensor)] = work
        return tensor

    def _group(self, group: TorchAny) -> TorchAny:
        c10d: TorchAny = dist.distributed_c10d
        return c10d._resolve_process_group(group) if isinstance(group, str) else group

    def _reduction(self, name: str) -> TorchAny:
        return getattr(dist.ReduceOp, name.upper())

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._empty(tensor, *tensor.shape[:1]).copy_(tensor)

    def _empty(self, like: TorchAny, *rows: int) -> torch.Tensor:
        return torch.empty((*rows, *like.shape[1:]), dtype=like.dtype, device=like.device)


_TAKEN = [name for name in vars(_Functional) if not name.startswith("_")]


def _memory(tensor: torch.Tensor) -> TorchAny:
    return tensor.allocation if isinstance(tensor, VirtualTensor) else tensor.untyped_storage()


def _named(group: TorchAny, name: str, before: str) -> TorchAny:
    return getattr(group, name, None) or getattr(group, before)
