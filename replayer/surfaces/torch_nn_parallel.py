"""torch.nn.parallel: reports the beginning and end of nn.DataParallel's stages to the virtual GPU.

nn.DataParallel's own Python runs: it scatters the batch, replicates the module, calls each replica in a thread of its own
and gathers what they return; in backward autograd scatters the gradients and adds up those of the replicas. Its six stages
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
from types import ModuleType

from replayer.state import gpu, started
from replayer.torch_types import TorchAny
from traces.script.data_parallel_hooks import DataParallelHooks
from traces.script.patching import around, patch, patch_everywhere


def _stage(name: str, device: int | None) -> AbstractContextManager[None] | None:
    """None where the script has not used the GPU: then wrappers are as if they were not there."""
    return None if started() is None else _on_device(name, device)


@contextmanager
def _on_device(name: str, device: int | None) -> Iterator[None]:
    """A stage on a device; on the current one where none, or none of ours, was named."""
    here = gpu()
    tracker, looking = here.simulator.tracker, here.launches.looking
    if device is None or device >= len(here.devices):
        device = here.current.device()
    with looking as thread:
        stage = tracker.begin_stage(thread, name, device)
    try:
        yield
    finally:
        with looking as thread:
            tracker.stages.end(thread, stage)


def _replicas(call: Callable[..., TorchAny], modules: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    """`parallel_apply`, with the call of each replica as a stage; see Note [Threads of replicas]."""
    if started() is None:
        return call(modules, *args, **kwargs)
    since_ns, ends_ns = gpu().streams.present_ns(), [0] * len(modules)
    try:
        return call([_replica(i, m, since_ns, ends_ns) for i, m in enumerate(modules)], *args, **kwargs)
    finally:
        gpu().current.await_thread(max(ends_ns, default=0))


def _replica(number: int, module: Callable[..., TorchAny], since_ns: int, ends_ns: list[int]) -> Callable[..., TorchAny]:
    maker = threading.current_thread()

    def apply(*args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        if threading.current_thread() is not maker:  # a single replica is called without a thread
            gpu().current.begin_thread(f"replica {number}", since_ns)
        try:
            with _on_device("parallel_apply", None):
                return module(*args, **kwargs)
        finally:
            ends_ns[number] = gpu().streams.present_ns()

    return apply


def install(torch: ModuleType) -> None:
    """Wrap the stages wherever torch keeps them."""
    DataParallelHooks(torch, _stage).install()
    parallel_apply = torch.nn.parallel.parallel_apply
    patch_everywhere(parallel_apply, around(parallel_apply, _replicas))
    functions: TorchAny = sys.modules["torch.nn.parallel._functions"]
    get_stream = functions._get_stream
    # It is asked by torch.device(0), which in C++ is of the backend that virtual tensors are built on.
    patch(functions, _get_stream=lambda device: get_stream(torch.device("cuda", device.index)))
