"""gc.collect: finds what the script has dropped, also of what there was when the virtual GPU had settled in.

    del model; gc.collect(); torch.cuda.empty_cache()   # memory of a model that is in a reference cycle is free

After its first step a replay keeps all objects that there are out of collections (VirtualGpu, `_settle_in`), and among them may
be the script's own.
"""

from __future__ import annotations

import gc
from functools import wraps
from types import ModuleType

from replayer.state import started
from traces.patching import patch


def install(torch_module: ModuleType) -> None:
    """Wrap it; a collection of young objects alone stays as it is."""
    collect = gc.collect

    @wraps(collect)
    def collect_all(generation: int = 2) -> int:
        if generation != 2 or (gpu := started()) is None:
            return collect(generation)
        with gpu.thawed():
            return collect()

    patch(gc, collect=collect_all)
