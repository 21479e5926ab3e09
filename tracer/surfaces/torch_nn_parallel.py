"""torch.nn.parallel: the parts of nn.DataParallel, each timed on the host and on its own device.

    model = nn.DataParallel(net)                # or data_parallel(net, batch), or the four primitives called by hand
    loss = criterion(model(batch), target)      # parts: scatter, replicate, parallel_apply for each replica, gather
    loss.backward()                             # gather_backward, broadcast_backward

While the recorder's window of torch.profiler is open, each part is also a range in the profile ("DataParallel.gather", and
"DataParallel.parallel_apply#1" for the replica on cuda:1), from which an import makes the same parts.

Note [One part, one device]
    A part is timed on one device: a replica on its own, scatter and replicate on the first device that they give to, gather
    on the one that it collects on, and the backward pass on the one whose gradients autograd hands in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType, TracebackType
from typing import Any, Self

from tracer.state import recorder
from tracer.surfaces.torch_nn_module import in_module
from traces.patching import OutermostCalls, argument, patch, patch_everywhere


class _PartScope:
    """One part, as a context manager. `device` is an index, or None for the current device; `thread` is the thread's role."""

    def __init__(self, torch: Any, name: str, device: int | None = None, thread: str = "", label: str = "") -> None:
        self._torch, self._name, self._device, self._thread, self._label = torch, name, device, thread, label
        self._range: Any = None

    def __enter__(self) -> Self:
        to = self._recorder = recorder()
        if to is None:
            return self
        self._begun = to.begin_part(self._stream())
        if to.profiling:
            self._range = self._torch.autograd.profiler.record_function(f"DataParallel.{self._name}{self._label}")
            self._range.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._range is not None:
            self._range.__exit__(kind, error, trace)
        if self._recorder is not None:
            self._recorder.end_part(self._name, self._begun, self._stream(), self._thread)

    def _stream(self) -> Any:
        """The device's current stream for this thread, or None for that of the current device."""
        cuda = self._torch.cuda
        return cuda.current_stream(self._device) if self._device is not None and cuda.is_initialized() else None


class _PartScopes:
    """Makes the wrappers; knows which calls a thread is in."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._here = OutermostCalls()  # scatter_kwargs calls scatter

    def part(self, name: str, call: Callable[..., Any], devices: str) -> Callable[..., Any]:
        """`call` as a part on the device, or the first device of a list, that its argument `devices` names."""
        devices_of = argument(call, devices)
        return self._here.around(
            name, call, lambda args, kwargs: _PartScope(self._torch, name, self._index(devices_of(args, kwargs)))
        )

    def forward(self, call: Callable[..., Any], module: str) -> Callable[..., Any]:
        """`call` on a module, which is a forward pass of it unless it is a step within one."""
        module_of = argument(call, module)
        is_grad_enabled = self._torch.is_grad_enabled

        @wraps(call)
        def as_forward(*args: Any, **kwargs: Any) -> Any:
            if in_module() or "forward" in self._here.names:
                return call(*args, **kwargs)
            if (to := recorder()) is not None:
                to.module_called(module_of(args, kwargs), is_grad_enabled())
            with self._here.inside("forward"):
                return call(*args, **kwargs)

        return as_forward

    def replicas(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`parallel_apply`: it makes a thread per module, sets the device there and calls the module. That call is the part."""

        @wraps(call)
        def apply(modules: Any, *args: Any, **kwargs: Any) -> Any:
            return call([self._replica(number, module) for number, module in enumerate(modules)], *args, **kwargs)

        return apply

    def backward(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The backward pass of an autograd function, which autograd runs in a thread of the gradients' device."""

        @wraps(call)
        def as_part(context: Any, *gradients: Any) -> Any:
            device = next((self._index(gradient.device) for gradient in gradients if gradient is not None), None)
            with _PartScope(self._torch, name, device, "backward" if device is None else f"backward {device}"):
                return call(context, *gradients)

        return as_part

    def _replica(self, number: int, module: Any) -> Callable[..., Any]:
        cuda = self._torch.cuda

        def apply(*args: Any, **kwargs: Any) -> Any:
            label = f"#{cuda.current_device()}" if cuda.is_initialized() else ""
            with _PartScope(self._torch, "parallel_apply", thread=f"replica {number}", label=label):
                return module(*args, **kwargs)

        return apply

    def _index(self, devices: Any) -> int | None:
        """The index of the GPU, or of the first, that is named as DataParallel accepts it; None for the CPU."""
        device = devices[0] if isinstance(devices, list | tuple) and devices else devices
        if isinstance(device, str):
            device = self._torch.device(device)
        if isinstance(device, int):
            return device if device >= 0 else None
        return getattr(device, "index", None) if getattr(device, "type", "") == "cuda" else None


def install(torch: ModuleType) -> None:
    """Wrap the primitives wherever torch keeps them, and the backward passes of the two autograd functions below them."""
    make, parallel = _PartScopes(torch), torch.nn.parallel
    scatter_kwargs = parallel.scatter_gather.scatter_kwargs
    patch_everywhere(parallel.scatter, make.part("scatter", parallel.scatter, "target_gpus"))
    patch_everywhere(scatter_kwargs, make.part("scatter", scatter_kwargs, "target_gpus"))
    patch_everywhere(parallel.replicate, make.forward(make.part("replicate", parallel.replicate, "devices"), "network"))
    patch_everywhere(parallel.parallel_apply, make.replicas(parallel.parallel_apply))
    patch_everywhere(parallel.gather, make.part("gather", parallel.gather, "target_device"))
    patch_everywhere(parallel.data_parallel, make.forward(parallel.data_parallel, "module"))
    functions: Any = sys.modules["torch.nn.parallel._functions"]
    for function, name in ((functions.Gather, "gather_backward"), (functions.Broadcast, "broadcast_backward")):
        patch(function, backward=staticmethod(make.backward(name, function.backward)))
