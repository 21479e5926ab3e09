"""torch.autograd.profiler: a script that profiles itself finds the profiler free.

with torch.profiler.profile() as prof:      # ends the recorder's own window, if that is open
    ...
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tracer.state import started
from traces.patching import patch_around


def install(torch: ModuleType) -> None:
    """Wrap the two ways in which a profile begins."""
    cls: Any = torch.autograd.profiler.profile

    def make_way(begin: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if (recorder := started()) is not None:
            recorder.make_way_for_profile()
        return begin(self, *args, **kwargs)

    patch_around(cls, __enter__=make_way, _prepare_trace=make_way)
