"""torch.cuda.nvtx: ranges for NVIDIA's profilers. What listens here is torch.profiler, if the script has started it.

with torch.cuda.nvtx.range("forward"): ...      # a range of the profile; without one every call is accepted and costs nothing
"""

from __future__ import annotations

import threading
from types import ModuleType, SimpleNamespace
from typing import Any

from replayer.surfaces.patching import ignore
from traces.patching import patch

_NO_TOOL = -2  # NVTX_NO_PUSH_POP_TRACKING: what NVTX returns where no tool is attached

IGNORED: dict[str, tuple[object, str]] = {
    "rangeStartA": (0, "no tool is attached, so no range needs an id"),
    "rangeEnd": (None, "no tool is attached"),
    "markA": (None, "no tool is attached"),
    "deviceRangeStart": (0, "no tool is attached, so no range needs an id"),
    "deviceRangeEnd": (None, "no tool is attached"),
}


def install(torch_module: ModuleType) -> None:
    """Patch the C module below torch.cuda.nvtx, and the profiler that sends ranges there for each op."""
    nvtx = SimpleNamespace()
    ignore(nvtx, IGNORED)
    open_ranges = threading.local()

    def push(message: str) -> int:
        ranges = open_ranges.__dict__.setdefault("stack", [])
        range_ = record_function(message) if profiler_enabled() else None
        if range_ is not None:
            range_.__enter__()
        ranges.append(range_)
        return _NO_TOOL if range_ is None else len(ranges) - 1

    def pop() -> int:
        ranges = open_ranges.__dict__.setdefault("stack", [])
        if not ranges:
            return _NO_TOOL
        range_ = ranges.pop()
        if range_ is None:
            return _NO_TOOL
        range_.__exit__(None, None, None)
        return len(ranges)

    record_function = torch_module.autograd.profiler.record_function
    profiler_enabled = torch_module.autograd._profiler_enabled
    patch(nvtx, rangePushA=push, rangePop=pop)
    cuda: Any = torch_module.cuda
    patch(cuda.nvtx, _nvtx=nvtx)
    profiler: Any = torch_module.autograd.profiler
    patch(profiler.emit_nvtx, __enter__=lambda self: self, __exit__=lambda self, *error: None)
