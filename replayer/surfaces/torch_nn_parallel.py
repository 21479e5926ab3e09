"""torch.nn.parallel: reports the beginning and end of nn.DataParallel's parts to the virtual GPU.

nn.DataParallel's own Python runs: it scatters the batch, replicates the module, calls each replica in a thread of its own
and gathers what they return; in backward autograd scatters the gradients and adds up those of the replicas. Its six parts
are the same as in a recording:

    loss = criterion(model(batch), target)  # scatter, replicate, parallel_apply for each replica, gather
    loss.backward()                         # gather_backward, broadcast_backward

Note [Threads of replicas]
    parallel_apply makes a thread per replica and waits for all. Each begins at its maker's virtual present, and the maker goes
    on at the latest of theirs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from replayer.state import gpu, started
from traces.patching import OutermostCalls, argument, patch, patch_everywhere


class _PartWrappers:
    """Makes the wrappers. Where the script has not used the GPU, they are as if they were not there."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._here = OutermostCalls()  # scatter_kwargs calls scatter

    def part(self, name: str, call: Callable[..., Any], devices: str) -> Callable[..., Any]:
        """`call` as a part on the device, or the first device of a list, that its argument `devices` names."""
        devices_of = argument(call, devices)

        def scope(args: Any, kwargs: Any) -> AbstractContextManager[None] | None:
            return None if started() is None else self._in(name, devices_of(args, kwargs))

        return self._here.around(name, call, scope)

    def replicas(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`parallel_apply`, with the call of each replica as a part; see Note [Threads of replicas]."""

        @wraps(call)
        def apply(modules: Any, *args: Any, **kwargs: Any) -> Any:
            if started() is None:
                return call(modules, *args, **kwargs)
            since_ns, ends_ns = gpu().present_ns(), [0] * len(modules)
            try:
                return call([self._replica(i, m, since_ns, ends_ns) for i, m in enumerate(modules)], *args, **kwargs)
            finally:
                gpu().await_thread(max(ends_ns, default=0))

        return apply

    def backward(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The backward pass of an autograd function, on the device of the first gradient."""

        @wraps(call)
        def as_part(context: Any, *gradients: Any) -> Any:
            if started() is None:
                return call(context, *gradients)
            with self._in(name, next((gradient.device for gradient in gradients if gradient is not None), None)):
                return call(context, *gradients)

        return as_part

    def _replica(self, number: int, module: Callable[..., Any], since_ns: int, ends_ns: list[int]) -> Callable[..., Any]:
        maker = threading.current_thread()

        def apply(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not maker:  # a single replica is called without a thread
                gpu().begin_thread(f"replica {number}", since_ns)
            try:
                with self._in("parallel_apply", None):
                    return module(*args, **kwargs)
            finally:
                ends_ns[number] = gpu().present_ns()

        return apply

    @contextmanager
    def _in(self, name: str, devices: Any) -> Iterator[None]:
        part = gpu().begin_part(name, self._index(devices))
        try:
            yield
        finally:
            gpu().end_part(part)

    def _index(self, devices: Any) -> int:
        """The index of the GPU, or of the first, that is named as DataParallel accepts it; else the current one."""
        device = devices[0] if isinstance(devices, list | tuple) and devices else devices
        if isinstance(device, str):
            device = self._torch.device(device)
        if not isinstance(device, int):
            device = getattr(device, "index", None) if getattr(device, "type", "") == "cuda" else None
        count = gpu().device_count()
        return device if device is not None and 0 <= device < count else gpu().current_device()


def install(torch: ModuleType) -> None:
    """Wrap the primitives wherever torch keeps them, and the backward passes of the two autograd functions below them."""
    make, parallel = _PartWrappers(torch), torch.nn.parallel
    scatter_kwargs = parallel.scatter_gather.scatter_kwargs
    patch_everywhere(parallel.scatter, make.part("scatter", parallel.scatter, "target_gpus"))
    patch_everywhere(scatter_kwargs, make.part("scatter", scatter_kwargs, "target_gpus"))
    patch_everywhere(parallel.replicate, make.part("replicate", parallel.replicate, "devices"))
    patch_everywhere(parallel.parallel_apply, make.replicas(parallel.parallel_apply))
    patch_everywhere(parallel.gather, make.part("gather", parallel.gather, "target_device"))
    functions: Any = sys.modules["torch.nn.parallel._functions"]
    get_stream = functions._get_stream
    # It is asked by torch.device(0), which in C++ is of the backend that virtual tensors are built on.
    patch(functions, _get_stream=lambda device: get_stream(torch.device("cuda", device.index)))
    for function, name in ((functions.Gather, "gather_backward"), (functions.Broadcast, "broadcast_backward")):
        patch(function, backward=staticmethod(make.backward(name, function.backward)))
