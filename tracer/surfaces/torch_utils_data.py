"""Wraps torch.utils.data. The phase "loader" is the time in which the script waits for a batch.

    for batch in DataLoader(dataset, num_workers=4, pin_memory=True):   # each `next` is timed
        ...
"""

from __future__ import annotations

import operator
from types import ModuleType
from typing import Any

import torch.utils.data._utils.pin_memory
import torch.utils.data.dataloader
from torch.overrides import has_torch_function_unary

from tracer.state import CALLS, OPTIMIZERS, recorder
from tracer.surfaces.torch_tensor import WithoutReads
from traces.model.run import LoaderSettings
from traces.model.trace import NONE, BatchKind
from traces.script.patching import around, patch, patch_around, stands_for
from traces.script.script_hooks import ScriptHooks, bytes_in, length_of


def install(torch_module: ModuleType) -> None:
    iterator: Any = torch.utils.data.dataloader._BaseDataLoaderIter
    fetch = iterator.__next__
    load = ScriptHooks(torch_module, recorder, OPTIMIZERS, CALLS).loading(fetch)

    @stands_for(fetch)
    def fetch_as_phase(self: Any) -> Any:
        to = recorder()
        if to is None:
            return fetch(self)
        clock = to.clock
        start_ns = clock.perf_ns() + clock.offset_ns
        batch = load(self)
        known, number = self._recorded_number
        if known is not to:
            number = to.loader_of(self._recorded_loader, lambda: _describe(self._recorded_loader))
            self._recorded_number = to, number
        to.batch(BatchKind.WAIT, number, start_ns, clock.perf_ns() + clock.offset_ns, _size_of(batch))
        return batch

    def make_quietly(make: Any, self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        self._recorded_loader, self._recorded_number = loader, (None, 0)
        with WithoutReads():
            make(self, loader, *args, **kwargs)

    patch(iterator, __next__=fetch_as_phase)
    patch_around(iterator, __init__=make_quietly)
    pinning = torch.utils.data._utils.pin_memory
    patch_around(pinning, _pin_memory_loop=_recorded_loop(pinning))


def _recorded_loop(module: Any) -> Any:
    depth = [0]

    def pin_recorded(pin: Any, data: Any, device: Any = None) -> Any:
        to = recorder()
        if to is None:
            return pin(data, device)
        start_ns = to.clock.now_ns()
        depth[0] += 1
        try:
            pinned = pin(data, device)
        finally:
            depth[0] -= 1
        if not depth[0]:
            to.batch(BatchKind.PIN, 0, start_ns, to.clock.now_ns(), _size_of(pinned))
        return pinned

    recorded_pin = around(module.pin_memory, pin_recorded)

    def recorded_loop(loop: Any, *args: Any, **kwargs: Any) -> Any:
        module.pin_memory = recorded_pin
        return loop(*args, **kwargs)

    return recorded_loop


def _describe(loader: Any) -> LoaderSettings:
    return LoaderSettings(
        workers=_whole(loader.num_workers),
        batch_size=_whole(loader.batch_size),
        prefetch_factor=_whole(loader.prefetch_factor),
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        samples=length_of(loader.dataset),
    )


def _whole(count: Any) -> int | None:
    return operator.index(count) if hasattr(count, "__index__") else None


def _size_of(batch: Any) -> int:
    size = 0
    for part in batch if type(batch) in (list, tuple) else [batch]:
        # batches rarely contain other objects than dense tensors
        if type(part) is not torch.Tensor or has_torch_function_unary(part) or part.layout is not torch.strided:
            return NONE if (size_bytes := bytes_in(torch, batch)) is None else size_bytes
        size += part.nbytes
    return size
