"""Patches torch.nn.parallel to tell the virtual GPU when nn.DataParallel's stages begin and end.

nn.DataParallel's own Python code runs. This code scatters the batch, replicates the module, calls each replica in its own
thread and gathers the results. In backward, autograd scatters the gradients and adds up the gradients of all replicas. A replay
has the same six stages as a recording:

    loss = criterion(model(batch), target)  # scatter, replicate, parallel_apply for each replica, gather
    loss.backward()                         # gather_backward, broadcast_backward

Note [Threads of replicas]
    parallel_apply starts a thread per replica and waits for all. Each thread starts at the virtual time of the thread that
    created it. The creating thread continues at the latest virtual time of all replica threads.
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
    return None if started() is None else _on_device(name, device)


@contextmanager
def _on_device(name: str, device: int | None) -> Iterator[None]:
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
    """Run `parallel_apply` with each replica's call as a stage. See Note [Threads of replicas]."""
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
        if threading.current_thread() is not maker:
            gpu().current.begin_thread(f"replica {number}", since_ns)
        try:
            with _on_device("parallel_apply", None):
                return module(*args, **kwargs)
        finally:
            ends_ns[number] = gpu().streams.present_ns()

    return apply


def install(torch: ModuleType) -> None:
    DataParallelHooks(torch, _stage).install()
    parallel_apply = torch.nn.parallel.parallel_apply
    patch_everywhere(parallel_apply, around(parallel_apply, _replicas))
    functions: TorchAny = sys.modules["torch.nn.parallel._functions"]
    get_stream = functions._get_stream
    # torch passes torch.device(0), which has the device type of virtual tensors.
    patch(functions, _get_stream=lambda device: get_stream(torch.device("cuda", device.index)))
