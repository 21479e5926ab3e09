"""The device guard: how C++ asks which device type this is, also while it unwinds from an error.

Note [Errors inside backward]
When an op raises inside backward, C++ unwinds with Python's error still set, and on the way asks the guard for its type.
A call that returns normally while an error is set is itself an error to Python, and one inside that unwinding ends
the process. So before an error leaves an op inside backward, `expect_unwinding` puts an answer in place that takes
the pending error out of Python's hands; `raising_what_was_lost`, around the engine, raises it again in the end.

    raising_what_was_lost(engine.run_backward, ...)    # torch.OutOfMemoryError arrives as such
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from itertools import repeat
from typing import Any

import torch

_NOTHING: frozenset[None] = frozenset()  # not a tuple: for those the interpreter has a short cut that notices nothing
_TYPE = torch._C._autograd.DeviceType.PrivateUse1


class _Lost(threading.local):
    """The error that this thread's unwinding took out of Python's hands."""

    error: BaseException | None = None


class Guard(torch._C._acc.DeviceGuard):
    """Only its type is asked; current devices and streams are the virtual GPU's."""

    # C++ asks some 1 700 times per training step of a ResNet-50: a callable made in C answers faster than a function.
    type_: Any = repeat(_TYPE).__next__
    lost = _Lost()


def _type_while_unwinding(self: Guard) -> object:
    try:
        for _ in _NOTHING:  # the end of a loop is where the interpreter notices an error that was set before
            pass
    except BaseException as error:
        if Guard.lost.error is None:
            Guard.lost.error = error
    return _TYPE


def expect_unwinding() -> None:
    """An error is about to leave an op. Outside backward this needs nothing; once inside, the slower answer stays."""
    if torch._C._current_graph_task_id() >= 0:
        Guard.type_ = _type_while_unwinding


def raising(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that C++ calls directly, made safe to raise from."""

    @wraps(kernel)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except BaseException:
            expect_unwinding()
            raise

    return called


def raising_what_was_lost(engine: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run autograd's engine; if an error was lost on the way, raise it instead of what the engine makes of its absence."""
    try:
        return engine(*args, **kwargs)
    except BaseException:
        error, Guard.lost.error = Guard.lost.error, None
        if error is None:
            raise
    try:
        raise error
    finally:
        del error  # else error and frame keep each other alive, and with them the tensors that were too many
