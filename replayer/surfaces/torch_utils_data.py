"""torch.utils.data: waiting for a batch is the script's "loader" phase. The loading itself is real.

    for batch in DataLoader(dataset, num_workers=4, pin_memory=True):   # each `next` is timed
        ...

Both iterators (with and without workers) inherit `__next__`, so one wrapper serves them. Pinning needs nothing here:
the loader asks torch.accelerator for a device and `Tensor.pin_memory` for the pages, both surfaces of their own.

Asking for a batch is also what ends an evaluation step (traces/steps.py), at the end of the data too.
"""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

import torch.utils.data.dataloader

from replayer.state import started
from traces.patching import PhaseScope, patch


def install(torch_module: ModuleType) -> None:
    """Wrap `__next__`; an end of the data (StopIteration) leaves the phase as well."""
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    waiting = PhaseScope("loader", started).around(base.__next__)

    @wraps(base.__next__)
    def next_batch(self: Any) -> Any:
        try:
            return waiting(self)
        except StopIteration:
            if (gpu := started()) is not None:
                gpu.loader_exhausted()
            raise

    patch(base, __next__=next_batch)
