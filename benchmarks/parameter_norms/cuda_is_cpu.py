"""Runs a program for GPUs natively on the CPU, by treating the device "cuda" as the CPU and the backend "nccl" as gloo."""

from __future__ import annotations

import importlib
import os
from collections import defaultdict
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed
from torch.distributed import device_mesh, fsdp
from torch.distributed import nn as distributed_nn
from torch.overrides import TorchFunctionMode

dist: Any = distributed
differentiable: Any = distributed_nn
accelerator: Any = torch.accelerator
COUNT = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
CPU = torch.device("cpu")
NO_OPERATIONS = "set_device synchronize empty_cache manual_seed manual_seed_all reset_peak_memory_stats _lazy_init".split()


def on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: on_cpu(value) for name, value in (kwargs or {}).items()}
        if func is torch.Tensor.to:
            args = (args[0], *(CPU if type(arg) is int else on_cpu(arg) for arg in args[1:]))
        return func(*args, **kwargs)


def replace(owner: Any, name: str, change: Any) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return original(*change(args), **change(kwargs))

    setattr(owner, name, changed)


def words(given: Any) -> Any:
    if isinstance(given, dict):
        dropped = {"device_id", "device_ids", "output_device"}
        return {name: words((value,))[0] for name, value in given.items() if name not in dropped}
    return tuple("gloo" if value == "nccl" else on_cpu(value) for value in given)


def without_numbers(given: Any) -> Any:
    return words(given) if isinstance(given, dict) else tuple(CPU if type(one) is int else on_cpu(one) for one in given)


def compile_except(*uncompiled: Any) -> Any:
    """Return a replacement for `torch.compile` that does not compile the functions in `uncompiled`."""
    compile_it: Any = torch.compile

    def compile_or_not(function: Any = None, **options: Any) -> Any:
        return function if function in uncompiled else compile_it(function, **options)

    return compile_or_not


class Event:
    """An event that is complete as soon as the script records it, because operations on the CPU are synchronous."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.record = self.wait = self.synchronize = lambda *_args: None
        self.query, self.elapsed_time = lambda: True, lambda _end: 1.0


def divide_before_sum(set_factor: Any) -> Any:
    """Make FSDP divide gradients itself, because gloo cannot multiply and sum them in one operation."""

    def set_both(module: Any, factor: float) -> None:
        set_factor(module, factor)
        module.set_force_sum_reduction_for_comms(True)

    return set_both


def normalize_over_ranks(norm: Any, given: Any) -> Any:
    """Do the computation of SyncBatchNorm, which PyTorch implements for GPUs only."""
    training = norm.training or norm.running_mean is None
    if not training:
        return torch.nn.functional.batch_norm(given, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    others = [at for at in range(given.dim()) if at != 1]
    count = torch.full((1,), given.numel() / given.shape[1])
    own = torch.cat([given.sum(others), (given * given).sum(others), count])
    sums = differentiable.all_reduce(own, group=norm.process_group)
    mean, squares = (sums[:-1] / sums[-1]).chunk(2)
    variance = squares - mean * mean
    if norm.running_mean is not None:
        with torch.no_grad():
            norm.num_batches_tracked += 1
            share = norm.momentum or 1 / float(norm.num_batches_tracked)
            norm.running_mean.lerp_(mean, share)
            norm.running_var.lerp_(variance * sums[-1] / (sums[-1] - 1), share)
    shape = [1, -1, *[1] * (given.dim() - 2)]
    normal = (given - mean.view(shape)) * torch.rsqrt(variance + norm.eps).view(shape)
    return normal if norm.weight is None else normal * norm.weight.view(shape) + norm.bias.view(shape)


def install() -> None:
    cuda: Any = torch.cuda
    parallel: Any = torch.nn.parallel.DistributedDataParallel
    for name in ("init_process_group", "new_group"):
        replace(dist, name, words)
    owners: list[Any] = [device_mesh.DeviceMesh, parallel, fsdp.FullyShardedDataParallel]
    for owner in (*owners, torch.autocast, torch.amp.GradScaler):
        replace(owner, "__init__", words)
    replace(torch, "load", words)
    replace(device_mesh, "init_device_mesh", words)
    sharded: Any = fsdp.FSDPModule
    sharded.set_gradient_divide_factor = divide_before_sum(sharded.set_gradient_divide_factor)
    dist.init_device_mesh = device_mesh.init_device_mesh
    dist.get_default_backend_for_device = lambda device: "gloo"
    replace(torch.nn.Module, "to", without_numbers)
    for moved, name in ((torch.nn.Module, "cuda"), (torch.Tensor, "cuda"), (torch.Tensor, "pin_memory")):
        setattr(moved, name, lambda self, *_args, **_kwargs: self)
    sync: Any = torch.nn.SyncBatchNorm
    sync.forward = normalize_over_ranks
    parallel._passing_sync_batchnorm_handle = lambda *_args: None
    for name in NO_OPERATIONS:
        setattr(cuda, name, lambda *_args, **_kwargs: None)
    cuda.is_available, cuda.current_device = lambda: True, lambda: 0
    cuda.is_bf16_supported = lambda *_args, **_kwargs: True
    cuda.is_current_stream_capturing = lambda: False
    cuda.get_device_name, cuda.get_device_capability = lambda *_args: "CPU", lambda *_args: (6, 0)
    card = SimpleNamespace(name="CPU", total_memory=2**34, major=6, minor=0, multi_processor_count=1)
    cuda.get_device_properties, cuda.memory_stats = lambda *_args: card, lambda *_args: defaultdict(int)
    cuda.get_rng_state = lambda *_args: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_args: torch.set_rng_state(state)
    cuda.Event, cuda.Stream, cuda.stream = Event, torch.cpu.Stream, torch.cpu.stream
    stream: Any = torch.cpu.Stream
    stream.synchronize, stream.device = lambda _self: None, CPU
    for module, name in ((cuda, "current_stream"), (cuda, "default_stream"), (accelerator, "current_stream")):
        setattr(module, name, lambda *_args: torch.cpu.current_stream())
    attention: Any = importlib.import_module("torch.nn.attention.flex_attention")
    attention._validate_device = lambda *_args: None  # PyTorch rejects gradients of FlexAttention on the CPU
    # Inductor has no gradients of FlexAttention on the CPU
    torch.compile = compile_except(attention.flex_attention, attention.create_block_mask)
    torch.backends.cuda.enable_flash_sdp(False)  # DTensor has no rule for the CPU's fused attention
    accelerator.current_device_index = lambda: 0
    accelerator.set_device_index = lambda *_args: None
    accelerator.device_index = lambda *_args: None
    torch.cuda.device_count = accelerator.device_count = lambda: COUNT
    accelerator.is_available = lambda: True
    optimizer: Any = torch.optim.Optimizer
    optimizer._accelerator_graph_capture_health_check = lambda _self: None
    accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    mode: Any = OnCpu()
    mode.__enter__()
