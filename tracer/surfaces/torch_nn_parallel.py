# mypy: allow-untyped-calls
"""Wraps torch.nn.parallel, to time the stages of nn.DataParallel, such as scatter and gather.

    model = nn.DataParallel(net)                # or data_parallel(net, batch), or the four primitives directly
    loss = criterion(model(batch), target)      # scatter, replicate, parallel_apply per replica, gather
    loss.backward()                             # gather_backward, broadcast_backward

Note [The first replicas]
    A new thread has no current CUDA context before its first CUDA call. If the first call is a call of cuBLAS, PyTorch prints a
    warning, once in each process (`getCurrentCUDABlasHandle`). An event of the recorder would set the context, and the warning
    would be missing. So the recorder records no event at the start of the first replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from types import ModuleType
from typing import Any

import torch

from tracer.state import recorder
from tracer.surfaces.torch_nn_module import in_module
from traces.script.data_parallel_hooks import DataParallelHooks
from traces.script.patching import OutermostCalls, argument, around, patch_everywhere


@contextmanager
def _stage_on(name: str, device: int | None, thread: str, label: str = "", takes_event: bool = True) -> Iterator[None]:
    to = recorder()
    if to is None:
        yield
        return
    begun, is_profiling = to.steps.begin_stage(_stream(device), takes_event), to.steps.profiler.active
    try:
        with torch.autograd.profiler.record_function(f"DataParallel.{name}{label}") if is_profiling else nullcontext():
            yield
    finally:
        to.steps.end_stage(name, begun, _stream(device), thread)


def _stream(device: int | None) -> Any:
    return torch.cuda.current_stream(device) if device is not None and torch.cuda.is_initialized() else None


def _stage(name: str, device: int | None) -> AbstractContextManager[None]:
    if not name.endswith("_backward"):
        return _stage_on(name, device, "")
    return _stage_on(name, device, "backward" if device is None else f"backward {device}")


def _forward(here: OutermostCalls, call: Callable[..., Any], module: str) -> Callable[..., Any]:
    module_of = argument(call, module)

    @wraps(call)
    def as_forward(*args: Any, **kwargs: Any) -> Any:
        if in_module() or "forward" in here.names:
            return call(*args, **kwargs)
        if (to := recorder()) is not None:
            to.module_called(id(module_of(args, kwargs)), torch.is_grad_enabled())
        with here.inside("forward"):
            return call(*args, **kwargs)

    return as_forward


def replicas(call: Callable[..., Any], modules: Any, *args: Any, **kwargs: Any) -> Any:
    to = recorder()
    takes_event = to is None or to.steps.has_run_replicas
    results = call([_replica(number, module, takes_event) for number, module in enumerate(modules)], *args, **kwargs)
    if to is not None:
        to.steps.has_run_replicas = True
    return results


def _replica(number: int, module: Any, takes_event: bool) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> Any:
        label = f"#{torch.cuda.current_device()}" if torch.cuda.is_initialized() else ""
        with _stage_on("parallel_apply", None, f"replica {number}", label, takes_event):
            return module(*args, **kwargs)

    return apply


def install(torch_module: ModuleType) -> None:
    hooks, parallel = DataParallelHooks(torch_module, _stage), torch_module.nn.parallel
    hooks.install()
    patch_everywhere(parallel.parallel_apply, around(parallel.parallel_apply, replicas))
    for call, module in ((parallel.replicate, "network"), (parallel.data_parallel, "module")):
        patch_everywhere(call, _forward(hooks.here, call, module))
