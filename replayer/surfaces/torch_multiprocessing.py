"""torch.multiprocessing.spawn: what it starts as number i is, until a process group says otherwise, rank i.

    torch.multiprocessing.spawn(train, nprocs=2)    # train(0), train(1): each with a virtual GPU, at its own recorded pace

Such a process has no RANK in its environment, and uses its GPU (`torch.cuda.set_device`) before it joins a group.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from replayer.recording.rank import Rank
from replayer.state import set_rank
from traces.patching import patch


def install(torch_module: ModuleType) -> None:
    """Listen where the started process calls the script's function."""
    module: Any = importlib.import_module(f"{torch_module.__name__}.multiprocessing.spawn")  # the function hides it
    patch(module, _wrap=_numbered(module._wrap))


def _numbered(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)  # the parent pickles it by its name
    def _wrap(fn: Any, i: int, *args: Any) -> Any:
        if "RANK" not in os.environ:
            set_rank(Rank(number=i, local=i))
        return call(fn, i, *args)

    return _wrap
