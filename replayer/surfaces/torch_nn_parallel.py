"""Patches torch.nn.parallel, so that the replay knows when each stage of nn.DataParallel begins and ends.

    loss = criterion(model(batch), target)  # scatter, replicate, parallel_apply for each replica, gather
    loss.backward()                         # gather_backward, broadcast_backward

Note [Threads of replicas]
    `parallel_apply` starts one thread per replica and waits for all of them. Each replica thread starts with the virtual time
    and the position in the recording of the thread that creates it. The creating thread continues with the latest virtual time
    and position of all replica threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType

from replayer.state import gpu, started
from replayer.timing.host_threads import HostThread
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
    # see Note [Threads of replicas]
    if started() is None:
        return call(modules, *args, **kwargs)
    looking, threads = gpu().launches.looking, list[HostThread]()
    with looking as maker:
        replicas = [_replica(number, module, maker, threads) for number, module in enumerate(modules)]
    try:
        return call(replicas, *args, **kwargs)
    finally:
        with looking:
            for thread in threads:
                maker.wait_for(thread)


def _replica(
    number: int, module: Callable[..., TorchAny], maker: HostThread, threads: list[HostThread]
) -> Callable[..., TorchAny]:
    def apply(*args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        current = gpu().current
        if current.known_thread() is not maker:
            current.begin_thread(f"replica {number}", maker)
            threads.append(current.thread())
        with _on_device("parallel_apply", None):
            return module(*args, **kwargs)

    return apply


def install(torch: ModuleType) -> None:
    DataParallelHooks(torch, _stage).install()
    parallel_apply = torch.nn.parallel.parallel_apply
    patch_everywhere(parallel_apply, around(parallel_apply, _replicas))
    functions: TorchAny = sys.modules["torch.nn.parallel._functions"]
    get_stream = functions._get_stream
    # torch.nn.parallel passes `torch.device(0)`, which in a replay has the virtual GPU's internal device type instead of
    # "cuda".
    patch(functions, _get_stream=lambda device: get_stream(torch.device("cuda", device.index)))
