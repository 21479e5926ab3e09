"""Patches torch.nn.parallel to detect the operations of nn.DataParallel, such as scatter and gather.

    loss = criterion(model(batch), target)  # scatter, replicate, parallel_apply for each replica, gather
    loss.backward()                         # gather_backward, broadcast_backward

Note [Threads of replicas]
    `parallel_apply` starts one thread per replica and waits for all of them. Each thread starts with the virtual time and the
    position in the recording of its parent. The parent continues with the latest time and position of all threads.

Note [Replicas take turns]
    If several replicas run on one GPU, Python's thread switches determine the order of their launches. With `--clock recorded`,
    the result must not depend on this order. The launches are therefore simulated after all replicas have returned. First comes
    the first op of each replica, then the second op of each replica, and so on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event
from types import ModuleType

from replayer.state import gpu, started
from replayer.timing.host_threads import HostThread
from replayer.timing.steps.data_parallel import OpenStage
from replayer.torch_types import TorchAny, TorchFunction
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


def _replicas(call: TorchFunction, modules: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    # see Note [Threads of replicas]
    if started() is None:
        return call(modules, *args, **kwargs)
    launches, threads = gpu().launches, list[HostThread]()
    with launches.looking as maker:
        take_turns = not launches.clock.flows and len(modules) > 1
    if take_turns:
        return _replicas_in_turns(call, modules, maker, *args, **kwargs)
    try:
        return call([_replica(number, module, maker, threads) for number, module in enumerate(modules)], *args, **kwargs)
    finally:
        with launches.looking:
            for thread in threads:
                maker.wait_for(thread)


def _replica(number: int, module: TorchFunction, maker: HostThread, threads: list[HostThread]) -> TorchFunction:
    def apply(*args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        current = gpu().current
        if current.known_thread() is not maker:
            threads.append(_begin_thread(number, maker))
        with _on_device("parallel_apply", None):
            return module(*args, **kwargs)

    return apply


def _begin_thread(number: int, maker: HostThread) -> HostThread:
    current = gpu().current
    current.begin_thread(f"replica {number}", maker)
    return current.thread()


class _ReplicasInTurns:
    """See Note [Replicas take turns]."""

    def __init__(self, maker: HostThread, count: int) -> None:
        self.threads: list[HostThread] = []
        self._maker = maker
        self._stages: list[OpenStage] = []
        self._has_begun = [Event() for _ in range(count)]

    def replica(self, number: int, module: TorchFunction) -> TorchFunction:
        def apply(*args: TorchAny, **kwargs: TorchAny) -> TorchAny:
            if number:
                self._has_begun[number - 1].wait()
            try:
                self._begin(number)
            finally:
                self._has_begun[number].set()
            return module(*args, **kwargs)

        return apply

    def _begin(self, number: int) -> None:
        here = gpu()
        with here.launches.lock:
            thread = _begin_thread(number, self._maker)
            self.threads.append(thread)
            self._stages.append(here.simulator.tracker.begin_stage(thread, "parallel_apply", thread.device))

    def end(self) -> None:
        here = gpu()
        with here.launches.looking:
            for thread, stage in zip(self.threads, self._stages, strict=False):
                here.simulator.tracker.stages.end(thread, stage)
                self._maker.wait_for(thread)


def _replicas_in_turns(
    call: TorchFunction, modules: TorchAny, maker: HostThread, *args: TorchAny, **kwargs: TorchAny
) -> TorchAny:
    replicas = _ReplicasInTurns(maker, len(modules))
    try:
        with gpu().launches.in_turns(replicas.threads):
            return call([replicas.replica(number, module) for number, module in enumerate(modules)], *args, **kwargs)
    finally:
        replicas.end()


def install(torch: ModuleType) -> None:
    DataParallelHooks(torch, _stage).install()
    parallel_apply = torch.nn.parallel.parallel_apply
    patch_everywhere(parallel_apply, around(parallel_apply, _replicas))
    functions: TorchAny = sys.modules["torch.nn.parallel._functions"]
    get_stream = functions._get_stream
    patch(functions, _get_stream=lambda device: get_stream(torch.device("cuda", device.index)))
