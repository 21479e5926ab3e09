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
    from typing import Any, TypeAlias
    from warnings import WarningMessage

    Place: TypeAlias = tuple[FrameType, int]  # a frame and a line number


def install(prefix: str) -> None:
    """Patch the functions that show uncaught exceptions and warnings, and the module `traceback`. `prefix` is the first part of
    the names of this tool's modules."""
    if os.environ.get("TRACE_DEBUG") == "1":
        return
    sys.excepthook = hiding_own_frames(sys.excepthook, prefix)
    if "traceback" in sys.modules and "threading" in sys.modules:  # PyTorch imports both modules
        _shorten_in_threads(sys.modules["threading"], prefix)
        _filter_stacks(sys.modules["traceback"], prefix)
    warnings: Any = sys.modules["warnings"]
    warnings._showwarnmsg = showing_own_place(warnings, prefix)


def hiding_own_frames(show: Any, prefix: str | tuple[str, ...]) -> Any:
    """Return a replacement for the hook `sys.excepthook`. The replacement removes this tool's functions from the traceback, and
    then calls the original hook `show`."""

    def after_shortening(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        shorten(error, prefix)
        show(kind, error, error.__traceback__)

    return after_shortening


def showing_own_place(warnings: Any, prefix: str | tuple[str, ...]) -> Any:
    """Return a replacement for `warnings._showwarnmsg`. If one of our wrappers calls a function and the function issues a
    warning, the warning shows the script's line."""
    show = warnings._showwarnmsg  # CPython 3.6 to 3.14

    def show_at_own_place(message: WarningMessage) -> None:
        caller = sys._getframe(1)
        is_repeated = caller.f_code is show_at_own_place.__code__
        places = None if is_repeated else _places(message, caller, prefix)
        if places is None:
            show(message)
            return
        # Issue the warning again at the script's line, so that the script's warning filters apply to it.
        (ours, _), (theirs, line) = places
        text, registry = str(message.message), ours.f_globals.get("__warningregistry__", {})
        for key in [key for key in registry if key[:2] == (text, message.category)]:
            del registry[key]
        shown = theirs.f_globals.setdefault("__warningregistry__", {})
        place = theirs.f_code.co_filename, line, theirs.f_globals.get("__name__"), shown
        warnings.warn_explicit(message.message, message.category, *place, source=message.source)

    return show_at_own_place


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
        every = list(frames)  # must be called in this function, because `traceback.walk_stack` skips a fixed number of callers
        others = [frame for frame in every if not _is_own(frame[0], prefix)]
        return extract.__func__(cls, iter(others or every), **options)

    traceback.StackSummary._extract_from_extended_frame_gen = classmethod(extract_others)


def _places(message: WarningMessage, caller: FrameType | None, prefix: str | tuple[str, ...]) -> tuple[Place, Place] | None:
    """Return two places: the line that a warning shows, and the line of the script to show instead. Return None if the warning
    already shows a line of the script. `caller` is the frame that called `warnings.warn`."""
    frames: list[Place] = []
    while caller is not None:
        frames.append((caller, caller.f_lineno))
        caller = caller.f_back
    place = message.filename, message.lineno
    level = next((i for i, (frame, line) in enumerate(frames) if (frame.f_code.co_filename, line) == place), None)
    if level is None or not any(_is_own(frame, prefix) for frame, _ in frames[: level + 1]):
        return None
    # Warnings from C functions show the line of the caller. Warnings from Python functions show the line that `stacklevel`
    # selects.
    start = level if _is_own(frames[0][0], prefix) else 0
    others = [one for one in frames[start:] if not _is_own(one[0], prefix)]
    return (frames[level], others[level - start]) if level - start < len(others) else None


def _is_own(frame: FrameType, prefix: str | tuple[str, ...]) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(prefix)


def shorten(error: BaseException, prefix: str | tuple[str, ...]) -> None:
    """Remove this tool's functions (modules that begin with `prefix`) from the tracebacks of an exception and its causes. Do
    nothing if TRACE_DEBUG is 1."""
    if os.environ.get("TRACE_DEBUG") == "1":
        return
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _without(one.__traceback__, prefix)
            waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _without(frames: TracebackType | None, prefix: str | tuple[str, ...]) -> TracebackType | None:
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
