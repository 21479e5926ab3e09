"""torch.cuda.CUDAGraph: between the two ends of a capture the recorder leaves CUDA alone.

with torch.cuda.graph(g := torch.cuda.CUDAGraph()):     # captures.add(g)
    y = model(static_x)
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tracer.state import captures
from traces.patching import patch_around


def install(torch: ModuleType) -> None:
    """Wrap the beginning and the end of a capture. A build without CUDA has none."""
    cls: Any = torch.cuda.CUDAGraph
    if not hasattr(cls, "capture_begin"):
        return
    under_way = captures()

    def begin(begin: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        under_way.add(self)
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            under_way.discard(self)
            raise

    def end(end: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            under_way.discard(self)

    patch_around(cls, capture_begin=begin, capture_end=end)
