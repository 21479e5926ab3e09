"""Runs a program for GPUs natively on the CPU, by treating the device "cuda" as the CPU and the backend "nccl" as gloo."""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

import torch
from torch import distributed
from torch.distributed import device_mesh
from torch.overrides import TorchFunctionMode

dist: Any = distributed
accelerator: Any = torch.accelerator
COUNT = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
CPU = torch.device("cpu")


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


def install() -> None:
    for name in ("init_process_group", "new_group"):
        replace(dist, name, words)
    replace(device_mesh.DeviceMesh, "__init__", words)
    replace(device_mesh, "init_device_mesh", words)
    dist.init_device_mesh = device_mesh.init_device_mesh
    dist.get_default_backend_for_device = lambda device: "gloo"
    replace(torch.nn.Module, "to", without_numbers)
    for moved, name in ((torch.nn.Module, "cuda"), (torch.Tensor, "cuda"), (torch.Tensor, "pin_memory")):
        setattr(moved, name, lambda self, *_args, **_kwargs: self)
    replace(torch.nn.parallel.DistributedDataParallel, "__init__", words)
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all", "reset_peak_memory_stats"):
        setattr(torch.cuda, name, lambda *_args, **_kwargs: None)
    accelerator.current_device_index = lambda: 0
    accelerator.set_device_index = lambda *_args: None
    accelerator.device_index = lambda *_args: None
    torch.cuda.device_count = accelerator.device_count = lambda: COUNT
    accelerator.is_available = lambda: True
    accelerator.current_accelerator = lambda check_available=False: CPU
    mode: Any = OnCpu()
    mode.__enter__()
