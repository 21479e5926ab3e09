"""Writes the norm of each parameter after the first optimizer steps of any program that has this folder on PYTHONPATH.

Each rank appends one JSON line per step to the file `RANK.jsonl` in the folder that PARAMETER_NORMS names. With SAME_START=1,
the initial values of matrices do not depend on the device.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import Any

STEPS = 5


class Finder:
    """Call `then` with the module `name` after the import of the module."""

    def __init__(self, name: str, then: Callable[[Any], object]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)  # found by other finders, such as the finder of a replay
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_call(module: Any) -> None:
            execute(module)
            self._then(module)

        loader.exec_module = execute_and_call
        return spec


done = 0


def record(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    global done
    if done == STEPS:
        return
    done += 1
    import torch

    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if grouped else int(os.environ.get("RANK", "0"))
    with torch.no_grad(), open(os.path.join(os.environ["PARAMETER_NORMS"], f"{rank}.jsonl"), "a") as file:
        norms = [norm_of(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        file.write(json.dumps(norms) + "\n")


def norm_of(parameter: Any) -> float:
    own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return float(own.detach().double().norm().cpu())


def on_host(torch: Any, draw: Callable[..., Any]) -> Callable[..., Any]:
    """Draw random numbers for a GPU on the CPU, because GPUs and CPUs use different random generators."""

    @wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda" or {"generator", "out", "requires_grad"} & kwargs.keys():
            return draw(*args, **kwargs)
        return draw(*args, **{**kwargs, "device": "cpu"}).to(device)

    return drawn


def dropout_of(torch: Any) -> Callable[..., Any]:
    def dropout(given: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or not p:
            return given
        kept = (torch.rand(given.shape, device="cpu") >= p).to(given.device, given.dtype) / (1 - p)
        return given.mul_(kept) if inplace else given * kept

    return dropout


def start(module: Any, _args: Any) -> None:
    """Give all matrices new values before the first forward pass, because DTensor draws other numbers on GPUs than on CPUs."""
    import torch

    if torch.compiler.is_compiling():  # the first forward pass of the whole model has already set all values
        return
    with torch._C.DisableTorchFunction():  # hides this operation from the program's function modes, which might reject it
        for number, parameter in enumerate(module.parameters()):
            if parameter.dim() > 1 and not hasattr(parameter, "has_same_start"):
                own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                drawn = torch.randn(own.shape, generator=torch.Generator().manual_seed(number), device="cpu")
                own.detach().copy_(drawn * 0.02)
                parameter.has_same_start = True


def begin(torch: Any) -> None:
    """Make programs that set no seed repeatable. If the environment variable CUDA_IS_CPU is set, programs for GPUs run on the
    CPU."""
    random.seed(0)
    torch.manual_seed(0)
    for name in ("rand", "randn", "randint"):
        setattr(torch, name, on_host(torch, getattr(torch, name)))
    torch.nn.functional.dropout = dropout_of(torch)
    if os.environ.get("SAME_START"):
        torch.nn.modules.module.register_module_forward_pre_hook(start)
    if os.environ.get("CUDA_IS_CPU"):
        importlib.import_module("cuda_is_cpu").install()


if os.environ.get("PARAMETER_NORMS"):
    sys.meta_path.insert(0, Finder("torch.optim.optimizer", lambda module: module.register_optimizer_step_post_hook(record)))
    sys.meta_path.insert(0, Finder("torch", begin))
