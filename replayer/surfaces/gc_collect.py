"""Makes gc.collect free the objects that the replayer has excluded from garbage collection with `gc.freeze`.

    del model; gc.collect(); torch.cuda.empty_cache()   # frees the memory of a model that is in a reference cycle
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType

from replayer.state import started
from traces.script.patching import patch_around


def install(torch_module: ModuleType) -> None:
    def collect_all(collect: Callable[..., int], generation: int = 2) -> int:
        if generation != 2 or (gpu := started()) is None:
            return collect(generation)
        with gpu.steps.gc_unfrozen():
            return collect()

    patch_around(gc, collect=collect_all)
