"""torch.cuda.nvtx: ranges for NVIDIA's profilers, which have nothing to listen to. Every call is accepted.

with torch.cuda.nvtx.range("forward"): ...
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from replayer.surfaces.patching import ignore
from traces.patching import patch

_NO_TOOL = -2  # NVTX_NO_PUSH_POP_TRACKING: what NVTX returns where no tool is attached

IGNORED: dict[str, tuple[object, str]] = {
    "rangePushA": (_NO_TOOL, "no tool is attached"),
    "rangePop": (_NO_TOOL, "no tool is attached"),
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
    cuda: Any = torch_module.cuda
    patch(cuda.nvtx, _nvtx=nvtx)
    profiler: Any = torch_module.autograd.profiler
    patch(profiler.emit_nvtx, __enter__=lambda self: self, __exit__=lambda self, *error: None)
