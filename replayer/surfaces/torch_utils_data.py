"""Patches torch.utils.data to measure how long a script waits for batches.

    for batch in DataLoader(dataset, num_workers=4, pin_memory=True):   # each `next` is timed
        ...
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from copy import copy
from itertools import islice
from types import ModuleType
from weakref import WeakKeyDictionary

import torch.utils.data.dataloader

from replayer.state import STATE, script_steps
from replayer.torch_types import TorchAny
from traces.script.patching import patch, patch_around
from traces.script.script_hooks import ScriptHooks


def install(torch_module: ModuleType) -> None:
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    patch(base, __next__=ScriptHooks(torch_module, script_steps, STATE.optimizers).loading(base.__next__))


def repeat_first_batch(torch_module: ModuleType, at_most: int) -> None:
    loader_class = torch_module.utils.data.DataLoader
    hooks = ScriptHooks(torch_module, script_steps, STATE.optimizers)
    firsts: WeakKeyDictionary[TorchAny, tuple[TorchAny, ...]] = WeakKeyDictionary()

    class Repeated:
        def __init__(self, loader: TorchAny) -> None:
            if loader not in firsts:
                firsts[loader] = tuple(islice(_real(loader), 1))
            self._first = firsts[loader]
            self._left = _length(loader, at_most) if self._first else 0

        def __len__(self) -> int:
            return self._left

        def __iter__(self) -> Iterator[TorchAny]:
            return self

        def _next(self) -> TorchAny:
            if not self._left:
                raise StopIteration
            self._left -= 1
            return _own_containers(self._first[0])

        __next__ = hooks.loading(_next)

    iterate = loader_class.__iter__

    def _real(loader: TorchAny) -> Iterator[TorchAny]:
        batches: Iterator[TorchAny] = iterate(loader)
        if getattr(loader, "_iterator", None) is batches:
            loader._iterator = None
        return batches

    patch_around(loader_class, __iter__=lambda _iterate, loader: Repeated(loader))


def _length(loader: TorchAny, without: int) -> int:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return without


def _own_containers(batch: TorchAny) -> TorchAny:
    """Copy the lists and dicts of a batch, because the script may change them. Tensors are not copied."""
    if type(batch) is dict:
        return {name: _own_containers(value) for name, value in batch.items()}
    if type(batch) is list:
        return list(map(_own_containers, batch))
    return copy(batch) if isinstance(batch, MutableMapping) else batch
