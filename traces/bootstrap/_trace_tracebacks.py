"""Hides this tool's own functions in the tracebacks and warnings of a script.

    File "train.py", line 38, in <module>
      loss.item()
    torch.AcceleratorError: CUDA error: ...     # without the frame of the function that replaces `Tensor.item`

    train.py:38: UserWarning: ...               # not the file of the function that replaces `Tensor.item`

Set the environment variable TRACE_DEBUG to 1 to see this tool's functions, too.
"""

from __future__ import annotations

import os
import sys
from types import FrameType, TracebackType

# The module `typing` is not imported, because a script may have a module of this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from threading import ExceptHookArgs
    from typing import Any
    from warnings import WarningMessage


def install(prefix: str) -> None:
    """Patch the functions that show uncaught exceptions and warnings, and the module `traceback`. `prefix` is the first part of
    the names of this tool's modules."""
    if os.environ.get("TRACE_DEBUG") == "1":
        return
    before = sys.excepthook

    def after_shortening(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        shorten(error, prefix)
        before(kind, error, error.__traceback__)

    sys.excepthook = after_shortening
    if "traceback" in sys.modules and "threading" in sys.modules:  # PyTorch imports both modules
        _shorten_in_threads(sys.modules["threading"], prefix)
        _filter_stacks(sys.modules["traceback"], prefix)
    warnings: Any = sys.modules["warnings"]
    show = warnings._showwarnmsg  # CPython 3.6 to 3.14

    def show_at_own_place(message: WarningMessage) -> None:
        move_warning(message, sys._getframe(1), prefix)
        show(message)

    warnings._showwarnmsg = show_at_own_place


def _shorten_in_threads(threading: Any, prefix: str) -> None:
    before = threading.excepthook

    def after_shortening(args: ExceptHookArgs) -> None:
        if args.exc_value is not None:
            shorten(args.exc_value, prefix)
        before(args)

    threading.excepthook = after_shortening


def _filter_stacks(traceback: Any, prefix: str) -> None:
    extract = traceback.StackSummary._extract_from_extended_frame_gen  # CPython 3.11 to 3.14

    def extract_others(cls: Any, frames: Iterable[tuple[FrameType, Any]], /, **options: Any) -> Any:
        every = list(frames)  # called here, because `traceback.walk_stack` counts its callers
        others = [frame for frame in every if not _is_own(frame[0], prefix)]
        return extract.__func__(cls, iter(others or every), **options)

    traceback.StackSummary._extract_from_extended_frame_gen = classmethod(extract_others)


def move_warning(message: WarningMessage, caller: FrameType | None, prefix: str) -> None:
    """Make a warning show a line of the script instead of a line of this tool. `caller` is the frame that called
    `warnings.warn`."""
    frames = []
    while caller is not None:
        frames.append((caller.f_code.co_filename, caller.f_lineno, _is_own(caller, prefix)))
        caller = caller.f_back
    level = next((i for i, frame in enumerate(frames) if frame[:2] == (message.filename, message.lineno)), None)
    if level is None or not any(is_own for _, _, is_own in frames[: level + 1]):
        return
    # Warnings from C functions show the line of the caller. Warnings from Python functions show the line that `stacklevel`
    # selects.
    start = level if frames[0][2] else 0
    others = [frame for frame in frames[start:] if not frame[2]]
    if level - start < len(others):
        message.filename, message.lineno, _ = others[level - start]


def _is_own(frame: FrameType, prefix: str) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(prefix)


def shorten(error: BaseException, prefix: str) -> None:
    """Remove this tool's functions (modules that begin with `prefix`) from the tracebacks of an exception and its causes."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _without(one.__traceback__, prefix)
            waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _without(frames: TracebackType | None, prefix: str) -> TracebackType | None:
    """Return the traceback without this tool's frames. If all frames of a traceback belong to this tool, the traceback is not
    changed."""
    kept, each = [], frames
    while each is not None:
        if not _is_own(each.tb_frame, prefix):
            kept.append(each)
        each = each.tb_next
    rest = None
    for each in reversed(kept):
        rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest or frames
