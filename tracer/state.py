"""The one place of module-level state of the recorder: torch's patched functions are global, so their recorder is too.

start(lambda: Recorder(...))    # once per process, when torch is imported
recorder()                      # made at the first thing worth recording: a worker that trains nothing leaves no file
started()                       # the recorder if there is one already
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from traces.script.step_rule import Optimizers

if TYPE_CHECKING:
    from tracer.recorder import Recorder


class _RecorderState:
    def __init__(self) -> None:
        self.make: Callable[[], Recorder | None] | None = None
        self.recorder: Recorder | None = None
        self.optimizers = Optimizers()
        self.captures = WeakSet[Any]()
        self.profiles = WeakSet[Any]()

    def after_fork(self) -> None:
        """In a forked child: the file belongs to the parent. A child that trains gets a recorder and a file of its own."""
        self.recorder = None


_STATE = _RecorderState()
os.register_at_fork(after_in_child=_STATE.after_fork)


def start(make: Callable[[], Recorder | None]) -> None:
    """Set how this process's recorder is made; forgets one made before. Where `make` returns None nothing is recorded."""
    _STATE.make, _STATE.recorder = make, None


def started() -> Recorder | None:
    return _STATE.recorder


def recorder() -> Recorder | None:
    """This process's recorder; None in a process that is not recorded, as a DataLoader's workers are not.

    Raises RuntimeError if none was started, which is a mistake of ours, not of the script.
    """
    if _STATE.recorder is None:
        if _STATE.make is None:
            raise RuntimeError("no recorder was started in this process")
        _STATE.recorder = _STATE.make()
    return _STATE.recorder


def optimizers() -> Optimizers:
    """The optimizers that the script has made in this process."""
    return _STATE.optimizers


def captures() -> WeakSet[Any]:
    """The CUDA graphs that are being captured in this process."""
    return _STATE.captures


def profiles() -> WeakSet[Any]:
    """The profiles of the script's own that are under way."""
    return _STATE.profiles
