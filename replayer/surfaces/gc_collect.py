"""gc.collect: finds what the script has dropped, also of what there was when the virtual GPU had settled in.

    del model; gc.collect(); torch.cuda.empty_cache()   # memory of a model that is in a reference cycle is free

After its first step a replay keeps all objects that there are out of collections (VirtualGpu, `_settle_in`), and among them may
be the script's own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType

from replayer.state import started
from traces.script.patching import patch_around


def install(torch_module: ModuleType) -> None:
    """Wrap it; a collection of young objects alone stays as it is."""

    def collect_all(collect: Callable[..., int], generation: int = 2) -> int:
        if generation != 2 or (gpu := started()) is None:
            return collect(generation)
        with gpu.steps.thawed():
            return collect()

    patch_around(gc, collect=collect_all)
