"""Adds named ranges from torch.cuda.nvtx and `record_function` to the timeline.

with torch.cuda.nvtx.range("forward"): ...             # a range in the timeline, and in torch.profiler if it runs
with torch.profiler.record_function("forward"): ...    # the same; torch adds Optimizer.step and the DataLoader
torch.cuda.nvtx.mark("here")                           # a range without length
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from types import ModuleType, SimpleNamespace

from replayer.state import gpu, started
from replayer.surfaces.patching import ignore
from replayer.torch_types import TorchAny
from traces.script.patching import patch, patch_around

# NVTX_NO_PUSH_POP_TRACKING
_NO_TOOL = -2

IGNORED: dict[str, tuple[object, str]] = {
    "deviceRangeStart": (0, "only code on the GPU calls this function, and a replay runs no code on the GPU"),
    "deviceRangeEnd": (None, "only code on the GPU calls this function, and a replay runs no code on the GPU"),
}

_End = Callable[[str], None]


def begin_range() -> _End | None:
    return None if started() is None else gpu().profile.begin_range()


def _require_text(call: str, message: TorchAny) -> None:
    if message is not None and not isinstance(message, str):
        text = f"{call}(): incompatible function arguments. The following argument types are supported:"
        raise TypeError(f"{text}\n    1. (arg0: str) -> int")


def install(torch_module: ModuleType) -> None:
    nvtx = SimpleNamespace()
    ignore(nvtx, IGNORED)
    pushed = threading.local()
    open_by_id: dict[int, tuple[str, _End | None]] = {}
    ids = count(1)
    record_function = torch_module.autograd.profiler.record_function

    def enter_in_timeline(enter: TorchAny, self: TorchAny) -> TorchAny:
        self.ends_in_timeline = begin_range()
        return enter(self)

    def leave_in_timeline(leave: TorchAny, self: TorchAny, *error: TorchAny) -> TorchAny:
        end = self.__dict__.pop("ends_in_timeline", None)
        if end is not None:
            end(self.name)
        return leave(self, *error)

    def push(message: str) -> int:
        _require_text("rangePushA", message)
        stack = pushed.__dict__.setdefault("stack", [])
        stack.append(record_function(message))
        stack[-1].__enter__()
        return len(stack) - 1

    def pop() -> int:
        stack = pushed.__dict__.get("stack")
        if not stack:
            return _NO_TOOL
        stack.pop().__exit__(None, None, None)
        return len(stack)

    def range_start(message: str) -> int:
        _require_text("rangeStartA", message)
        open_by_id[number := next(ids)] = message, begin_range()
        return number

    def range_end(number: int) -> None:
        message, end = open_by_id.pop(number, ("", None))
        if end is not None:
            end(message)

    def mark(message: str) -> None:
        _require_text("markA", message)
        if (end := begin_range()) is not None:
            end(message)

    patch(nvtx, rangePushA=push, rangePop=pop, rangeStartA=range_start, rangeEnd=range_end, markA=mark)
    patch_around(record_function, __enter__=enter_in_timeline, __exit__=leave_in_timeline)
    cuda: TorchAny = torch_module.cuda
    patch(cuda.nvtx, _nvtx=nvtx)
    profiler: TorchAny = torch_module.autograd.profiler
    patch(profiler.emit_nvtx, __enter__=lambda self: self, __exit__=lambda self, *error: None)
