# mypy: allow-untyped-calls
"""Emulates torch.distributed with the backend "nccl". For the backend "gloo", see torch_distributed_gloo.py.

    dist.init_process_group("nccl")     # under torchrun: ranks exchange messages in torchrun's own store
    dist.all_reduce(gradient)           # starts on the device when all ranks have arrived, takes the recorded time

Note [Gloo's threads and the interpreter's lock]
    The destructor of DistributedDataParallel's Reducer waits for gloo's threads, and holds Python's global lock during this
    wait. Gloo's threads need this lock to free Python tensors. To avoid a deadlock, the replay keeps each process group until
    the process ends.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import NoReturn
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from replayer.distributed.process_group import VirtualNccl
from replayer.distributed.work_future import ScriptFuture, WorkFuture
from replayer.errors import NotEmulated
from replayer.state import STATE, gpu, rank, started
from replayer.surfaces.torch_distributed_gloo import CALLS
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import around, patch, patch_around, patch_everywhere, temporarily_set

_SYMMETRIC_MEMORY = "empty_strided_p2p get_mempool_allocator rendezvous set_backend".split()
_OBJECTS = "all_gather_object gather_object broadcast_object_list scatter_object_list send_object_list recv_object_list".split()


# for each Reducer, the collectives of the last forward pass
_AWAITED_WORKS: WeakKeyDictionary[TorchAny, TorchAny] = WeakKeyDictionary()


def install(torch_module: ModuleType) -> None:
    dist = torch_module.distributed
    if not dist.is_available():
        return
    c10d = dist.distributed_c10d
    # builds of PyTorch without NCCL lack these names
    patch(c10d, _NCCL_AVAILABLE=True, default_pg_nccl_timeout=timedelta(minutes=10))
    for module in (c10d, dist):
        patch(module, ProcessGroupNCCL=VirtualNccl, ProcessGroupNCCL2=VirtualNccl)
    patch_around(c10d, _new_process_group_helper=_new_group, _get_object_coll_device=_object_device)
    replaced: dict[str, TorchFunction] = {"init_process_group": _init_and_set_rank}
    replaced["batch_isend_irecv"] = _batch_in_one_work
    for name, by in {**replaced, **dict.fromkeys(_OBJECTS, _carry_objects)}.items():
        original = getattr(c10d, name)
        patch_everywhere(original, around(original, by))
    if hasattr(c10d, "_get_split_source"):
        patch_around(c10d, _get_split_source=_no_split_source)
    if hasattr(c10d, "_maybe_attach_flight_recorder"):  # this function exists since PyTorch 2.15
        patch_around(c10d, _maybe_attach_flight_recorder=_attach_flight_recorder)
    patch_around(dist, _verify_params_across_processes=_verify_parameters)
    patch_around(dist.Reducer, __init__=_make_reducer, _delay_all_reduce=_reduce_at_once, _run_allreduce_hook=_reduce_bucket)
    patch_around(dist.Reducer, _set_forward_pass_work_handle=_keep_work)
    patch_around(torch_module.nn.parallel.DistributedDataParallel, _register_builtin_comm_hook=_register_hook)
    patch_around(torch_module.futures.Future, __init__=ScriptFuture.init)
    for name in ("collect_all", "wait_all"):
        patch_around(torch_module.futures, **{name: _join_first})
    patch_around(dist.Logger, set_runtime_stats_and_log=_quiet_statistics)
    # this class exists since PyTorch 2.5
    symmetric_memory = getattr(torch_module._C._distributed_c10d, "_SymmetricMemory", None)
    for name in _SYMMETRIC_MEMORY:
        if hasattr(symmetric_memory, name):
            patch(symmetric_memory, **{name: partial(_refuse_symmetric_memory, name)})


def _refuse_symmetric_memory(name: str, *_args: TorchAny, **_kwargs: TorchAny) -> NoReturn:
    raise NotEmulated(f"torch.distributed._symmetric_memory ({name})", "use the collectives of torch.distributed")


def _object_device(object_device: TorchFunction, group: TorchAny = None) -> str:
    used = group or dist.distributed_c10d._get_default_group()
    return "cpu" if isinstance(used, VirtualNccl) else str(object_device(group))


def _make_reducer(init: Callable[..., None], self: TorchAny, parameters: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> None:
    with temporarily_set(STATE, makes_reducer=any(isinstance(parameter, VirtualTensor) for parameter in parameters)):
        init(self, parameters, *args, **kwargs)


def _reduce_at_once(reduce: Callable[..., None], self: TorchAny) -> None:
    with temporarily_set(STATE, reducer_reads_now=True):
        reduce(self)


def _reduce_bucket(run: TorchFunction, self: TorchAny, bucket: TorchAny) -> TorchAny:
    """Return a future that completes when the virtual collective ends. PyTorch's own future completes at once."""
    futures: list[TorchAny] = []
    with temporarily_set(STATE, futures_of_hook=futures):
        returned = run(self, bucket)
    return futures[-1] if futures else returned


def _keep_work(set_work: Callable[..., None], self: TorchAny, work: TorchAny, *args: TorchAny) -> None:
    """Keep a reference to the Python object, because DistributedDataParallel's C++ code keeps none."""
    _AWAITED_WORKS[self] = work
    set_work(self, work, *args)


def _register_hook(register: Callable[..., None], self: TorchAny, kind: TorchAny) -> None:
    """Use the Python version of DistributedDataParallel's fp16 hook, because C++ code cannot read virtual tensors."""
    if kind == torch._C._distributed_c10d.BuiltinCommHookType.FP16_COMPRESS and isinstance(self.process_group, VirtualNccl):
        hooks = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
        self.register_comm_hook(self.process_group, hooks.fp16_compress_hook)
    else:
        register(self, kind)


def _join_first(collect: TorchFunction, futures: list[TorchAny]) -> TorchAny:
    for future in futures:
        if isinstance(future, WorkFuture):
            future.join()
    return collect(futures)


def _quiet_statistics(collect: Callable[..., None], self: TorchAny) -> None:
    """Make DistributedDataParallel collect no time statistics, because PyTorch would warn about the virtual GPU's device
    type."""
    if started() is None:
        collect(self)


def _no_split_source(source: TorchFunction, group: TorchAny, *args: TorchAny) -> TorchAny:
    return None if isinstance(group, VirtualNccl) else source(group, *args)


def _attach_flight_recorder(attach: Callable[..., None], group: TorchAny, *args: TorchAny) -> None:
    if not isinstance(group, VirtualNccl):
        attach(group, *args)


def _init_and_set_rank(init: TorchFunction, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    result = init(*args, **kwargs)
    group = dist.distributed_c10d._get_default_group()
    STATE.rank = replace(rank(), number=dist.get_rank())
    if group in CALLS:
        gpu().ranks.read_clock_offset = CALLS[group].exchange_clocks()
    elif isinstance(group, VirtualNccl):
        group.operations.compare_clocks()
        STATE.flush()  # write the rank to the timeline now, in case the process is killed
    return result


def _new_group(make: TorchFunction, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    """Keep PyTorch from replacing gloo by NCCL."""
    c10d: TorchAny = dist.distributed_c10d
    gloo: list[TorchAny] = []

    class KeptGloo(c10d.ProcessGroupGloo):  # type: ignore[misc]
        def __init__(self, *options: TorchAny, **named: TorchAny) -> None:
            super().__init__(*options, **named)
            gloo.append(self)

    with temporarily_set(c10d, ProcessGroupGloo=KeptGloo):
        group, store = make(*args, **kwargs)
    if isinstance(group, VirtualNccl):
        for backend in gloo:
            group.on_cpu = backend
        group.bound_device_id = kwargs.get("device_id")
    else:
        for backend in gloo:
            CALLS[group] = CALLS[backend]
            CALLS[group].global_ranks = args[2] or CALLS[group].global_ranks
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # Note [Gloo's threads and the interpreter's lock]
    return group, store


def _carry_objects(call: TorchFunction, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    group = kwargs.get("group") or next((arg for arg in args if isinstance(arg, dist.ProcessGroup)), None)
    group = group or (dist.distributed_c10d._get_default_group() if dist.is_initialized() else None)
    if not isinstance(group, VirtualNccl):
        return call(*args, **kwargs)
    group.operations.carries_objects += 1
    try:
        return call(*args, **kwargs)
    finally:
        group.operations.carries_objects -= 1


def _batch_in_one_work(batch: TorchFunction, calls: list[TorchAny]) -> list[TorchAny]:
    """Return one work for all sends and receives of a batch, as with NCCL."""
    c10d: TorchAny = dist.distributed_c10d
    first = calls[0] if isinstance(calls, list) and calls else None
    group = (first.group or c10d._get_default_group()) if isinstance(first, c10d.P2POp) else None
    if first is None or not isinstance(group, VirtualNccl) or not isinstance(first.tensor, VirtualTensor):
        works: list[TorchAny] = batch(calls)
        return works
    with group.coalescing() as coalesced:
        batch(calls)
    return coalesced


def _verify_parameters(verify: Callable[..., None], group: TorchAny, tensors: TorchAny, logger: TorchAny = None) -> None:
    if not any(isinstance(tensor, VirtualTensor) for tensor in tensors):
        return verify(group, tensors, logger)
    own, rank = [list(tensor.shape) for tensor in tensors], group.rank()
    shapes: list[TorchAny] = [None] * group.size()
    dist.all_gather_object(shapes, own, group=group)
    for other, theirs in enumerate(shapes):
        if len(theirs) != len(own):
            raise RuntimeError(
                "DDP expects same model across all ranks, but Rank"
                f" {rank} has {len(own)} params, while rank {other} has inconsistent {len(theirs)} params."
            )
    for index, (mine, theirs) in enumerate(zip(own, shapes[0], strict=True)):
        if mine != theirs:
            raise RuntimeError(
                f"[{rank}]: params[{index}] in this process with sizes {mine} appears not to match sizes of the same"
                " param in process 0."
            )
