"""torch.utils.data: waiting for a batch is the script's "loader" phase. The loading itself is real.

    for batch in DataLoader(dataset, num_workers=4, pin_memory=True):   # each `next` is timed
        ...

Both iterators (with and without workers) inherit `__next__`, so one wrapper serves them. Pinning needs nothing here:
the loader asks torch.accelerator for a device and `Tensor.pin_memory` for the pages, both surfaces of their own.

Asking for a batch is also what ends an evaluation step (traces/steps.py), at the end of the data too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from types import ModuleType
from typing import Any

import torch.utils.data.dataloader

from replayer.state import optimizers, started
from traces.patching import patch
from traces.script_hooks import ScriptHooks


def install(torch_module: ModuleType) -> None:
    """Wrap `__next__`; an end of the data (StopIteration) leaves the phase as well."""
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    patch(base, __next__=ScriptHooks(torch_module, started, optimizers()).loading(base.__next__))


def repeat_first_batch(torch_module: ModuleType) -> None:
    """From now on every DataLoader gives its first batch as often as it has batches: data that is ready in memory."""
    loader_class = torch_module.utils.data.DataLoader
    hooks = ScriptHooks(torch_module, started, optimizers())
    iterate = loader_class.__iter__

    class Repeated:
        """In the place of a loader's iterator."""

        def __init__(self, loader: Any) -> None:
            self._left = len(loader)
            self._batch: Any = next(iterate(loader)) if self._left else None

        def __len__(self) -> int:
            return self._left

        def __iter__(self) -> Iterator[Any]:
            return self

        def _next(self) -> Any:
            if not self._left:
                raise StopIteration
            self._left -= 1
            return self._batch

        __next__ = hooks.loading(_next)

    @wraps(iterate)
    def repeated(loader: Any) -> Any:
        return Repeated(loader)

    patch(loader_class, __iter__=repeated)
