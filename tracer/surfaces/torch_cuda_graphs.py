"""Wraps torch.cuda.CUDAGraph. Calls in a CUDA graph are reported to the recorder at each launch of the graph.

    with torch.cuda.graph(g := torch.cuda.CUDAGraph()):     # captures.add(g); calls are noted
        y = model(static_x)
    g.replay()                                              # a forward pass
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tracer.state import CAPTURES, recorder, started, started_lock
from tracer.surfaces.torch_nn_module import in_module
from traces.script.patching import patch_around


def install(torch: ModuleType) -> None:
    """Patch the methods of torch.cuda.CUDAGraph. CPU builds of PyTorch lack these methods."""
    cls: Any = torch.cuda.CUDAGraph
    if not hasattr(cls, "capture_begin"):
        return

    def begin(begin: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        # wait for the recorder's other threads, because their CUDA calls must end before the capture begins
        with started_lock():
            CAPTURES.add(self)
        try:
            begun = begin(self, *args, **kwargs)
        except BaseException:
            CAPTURES.discard(self)
            raise
        if (to := recorder()) is not None:
            to.capture_begins(self)
        return begun

    def end(end: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if (to := started()) is not None:
            to.capture_ends()
        try:
            return end(self, *args, **kwargs)
        finally:
            CAPTURES.discard(self)

    def replay(replay: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        to = started()
        if to is None or to.phase or in_module():
            return replay(self, *args, **kwargs)
        to.replay_begins(self)
        replayed = replay(self, *args, **kwargs)
        to.replay_ends(self)
        return replayed

    patch_around(cls, capture_begin=begin, capture_end=end, replay=replay)
