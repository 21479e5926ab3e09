"""torch.utils.data: waiting for a batch is the script's "loader" phase. The loading itself is real.

    for batch in DataLoader(dataset, num_workers=4, pin_memory=True):   # each `next` is timed
        ...

Both iterators (with and without workers) inherit `__next__`, so one wrapper serves them. Pinning needs nothing here:
the loader asks torch.accelerator for a device and `Tensor.pin_memory` for the pages, both surfaces of their own.
"""

from __future__ import annotations

from types import ModuleType

import torch.utils.data.dataloader

from replayer.surfaces.seam import Section, put


def install(torch_module: ModuleType) -> None:
    """Wrap `__next__`; an end of the data (StopIteration) leaves the phase as well."""
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    put(base, __next__=Section("loader").around(base.__next__))
