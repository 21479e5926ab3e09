"""Removes the frames of this tool from the traceback of a script that fails, and from the places that warnings show.

    File "train.py", line 38, in <module>
      loss.item()
    torch.AcceleratorError: CUDA error: ...     # without the frame of the function that replaces `Tensor.item`

    train.py:38: UserWarning: ...               # not the file of the function that replaces `Tensor.item`

If the environment variable TRACE_DEBUG is 1, tracebacks contain all frames, and warnings are unchanged.
"""

from __future__ import annotations

import os
import sys
from types import FrameType, TracebackType

# A script may contain a module with the same name as a standard module, so this file imports few modules.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from warnings import WarningMessage


def install(prefix: str) -> None:
    """Patch `sys.excepthook` and the function that shows warnings. The argument `prefix` is the beginning of the names of this
    tool's modules."""
    if os.environ.get("TRACE_DEBUG") == "1":
        return
    before = sys.excepthook

    def after_shortening(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        shorten(error, prefix)
        before(kind, error, error.__traceback__)

    sys.excepthook = after_shortening
    warnings: Any = sys.modules["warnings"]
    show = warnings._showwarnmsg  # CPython 3.6 to 3.14

    def show_at_own_place(message: WarningMessage) -> None:
        move_warning(message, sys._getframe(1), prefix)
        show(message)

    warnings._showwarnmsg = show_at_own_place


def move_warning(message: WarningMessage, caller: FrameType | None, prefix: str) -> None:
    """Replace the file and line of a warning by those that it would have without this tool's frames. `caller` is the frame that
    warned."""
    frames = []
    while caller is not None:
        frames.append((caller.f_code.co_filename, caller.f_lineno, _is_own(caller, prefix)))
        caller = caller.f_back
    level = next((i for i, frame in enumerate(frames) if frame[:2] == (message.filename, message.lineno)), None)
    if level is None or not any(is_own for _, _, is_own in frames[: level + 1]):
        return
    # Python code may warn at the line of a caller (`stacklevel`). A C function always warns at the line of its own caller.
    start = level if frames[0][2] else 0
    others = [frame for frame in frames[start:] if not frame[2]]
    if level - start < len(others):
        message.filename, message.lineno, _ = others[level - start]


def _is_own(frame: FrameType, prefix: str) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(prefix)


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
    """Return the traceback without this tool's frames. If all frames belong to this tool, return the traceback unchanged."""
    kept, each = [], frames
    while each is not None:
        if not _is_own(each.tb_frame, prefix):
            kept.append(each)
        each = each.tb_next
    rest = None
    for each in reversed(kept):
        rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest or frames
