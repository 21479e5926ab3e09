"""Defines the errors that the virtual GPU raises.

    NotImplementedError
    +-- NotEmulated              a call or setting that the virtual GPU does not support; the message names it
    +-- DataDependentShape       an op whose result shape depends on values (nonzero, masked_select)

    RuntimeError
    +-- NotExact                 under --strict: an op without an exact match in the recording

    MemoryError
    +-- oom.OutOfMemory          the virtual GPU's memory is full; scripts get torch.OutOfMemoryError

    ValueError
    +-- settings.SettingsError   an allocator setting that PyTorch also rejects

    SystemExit
    +-- NotInLibrary             the library has no times for the script's model; the message is already printed

    UserWarning
    +-- NotEmulatedWarning       a setting that is accepted but has no effect

    raise NotEmulated("torch.cuda.memory.CUDAPluggableAllocator", "use torch's own allocator, which is emulated")
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import FrameType

from traces.model.layouts import Shape

_FOLDER = str(Path(__file__).parent)


def _is_internal(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_FOLDER) or frame.f_globals.get("__name__") == "torch._ops"


def warn_at_script(text: str) -> None:
    """Show a warning that points to a line of the script, not to the replayer's code."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame):
        frame = frame.f_back
    shown = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno, registry=shown)


_WARNED: set[str] = set()


def warn_once_at_script(text: str) -> None:
    """See TORCH_WARN_ONCE in c10/util/Exception.h."""
    # `trace fit` imports this module without torch
    if text not in _WARNED or sys.modules["torch"].is_warn_always_enabled():
        _WARNED.add(text)
        warn_at_script(text)


def require(is_met: object, text: str, kind: type[Exception] = RuntimeError) -> None:
    """Raise an error if a condition is not met. See TORCH_CHECK in c10/util/Exception.h."""
    if not is_met:
        raise kind(text)


class NotEmulated(NotImplementedError):
    """Raised if a script calls a function that the virtual GPU does not support."""

    def __init__(self, call: str, advice: str) -> None:
        super().__init__(f"{call} is not emulated by the virtual GPU: {advice}")
        self.call = call
        self.advice = advice


class NotExact(RuntimeError):
    """A replay with `--strict` raises this error for an op call whose input shapes were not recorded for this op."""

    def __init__(self, op: str, shapes: tuple[Shape, ...], found: str) -> None:
        sizes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
        super().__init__(f"--strict: {op} ({sizes}) has no exact match in the recording ({found}); remove --strict to continue")


class NotInLibrary(SystemExit):
    """Ends the script if trace-replay contains no measurement for the script's model and batch size."""

    def __init__(self) -> None:
        super().__init__(2)


class DataDependentShape(NotImplementedError):
    def __init__(self, op: str) -> None:
        super().__init__(
            f"{op}: the shape of the result depends on tensor values, which are neither recorded nor computed in this replay;"
            " replay with --values compute, or use an operation with a fixed shape (torch.where, multiplication by a mask)"
        )
        self.op = op


class NotEmulatedWarning(UserWarning):
    """Warns that a setting in the script has no effect on the virtual GPU."""
