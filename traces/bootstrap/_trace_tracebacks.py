"""Removes the frames of this tool from the traceback of a script that fails.

    File "train.py", line 38, in <module>
      loss.item()
    torch.AcceleratorError: CUDA error: ...     # without the frame of the function that replaces `Tensor.item`

If the environment variable TRACE_DEBUG is 1, tracebacks contain all frames.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType


def install(prefix: str) -> None:
    """Patch `sys.excepthook`. The argument `prefix` is the beginning of the names of this tool's modules."""
    if os.environ.get("TRACE_DEBUG") == "1":
        return
    before = sys.excepthook

    def after_shortening(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        shorten(error, prefix)
        before(kind, error, error.__traceback__)

    sys.excepthook = after_shortening


def shorten(error: BaseException, prefix: str) -> None:
    """Remove the frames of modules that begin with `prefix` from an exception, its causes and the exceptions of a group."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _without(one.__traceback__, prefix)
            waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _without(frames: TracebackType | None, prefix: str) -> TracebackType | None:
    """Return the traceback without this tool's frames. A traceback without other frames is returned unchanged."""
    kept, each = [], frames
    while each is not None:
        if not str(each.tb_frame.f_globals.get("__name__")).startswith(prefix):
            kept.append(each)
        each = each.tb_next
    rest = None
    for each in reversed(kept):
        rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest or frames
