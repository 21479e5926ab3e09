"""torch.utils.data: waiting for a batch is the script's "loader" phase. The loading itself is real.

    for batch in DataLoader(dataset, num_workers=4, pin_memory=True):   # each `next` is timed
        ...

Both iterators (with and without workers) inherit `__next__`, so one wrapper serves them. Pinning needs nothing here:
the loader asks torch.accelerator for a device and `Tensor.pin_memory` for the pages, both surfaces of their own.

Asking for a batch is also what ends an evaluation step (traces/steps.py), at the end of the data too.
"""

from __future__ import annotations

from types import ModuleType

import torch.utils.data.dataloader

from replayer.state import optimizers, started
from traces.patching import patch
from traces.script_hooks import ScriptHooks


def install(torch_module: ModuleType) -> None:
    """Wrap `__next__`; an end of the data (StopIteration) leaves the phase as well."""
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    patch(base, __next__=ScriptHooks(torch_module, started, optimizers()).loading(base.__next__))
