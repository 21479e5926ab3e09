"""Stores the recorder of this process. The wrappers of PyTorch functions call `recorder()` to get the recorder.

    start(lambda: Recorder(...))    # once per process, when torch is imported
    recorder()                      # the recorder, created on the first call
    started()                       # the recorder, or None if no recorder exists yet
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import ref

from tracer.writing.output import say
from traces.script.script_hooks import ScriptCalls
from traces.script.step_rule import Optimizers

if TYPE_CHECKING:
    from tracer.recorder import Recorder


class LivingObjects(dict[int, ref[Any]]):
    """Stores a set of weak references, and compares the objects by identity."""

    def add(self, item: object) -> None:
        number = id(item)
        self[number] = ref(item, lambda _: self.pop(number, None))

    def discard(self, item: object) -> None:
        self.pop(id(item), None)


class Profiles(LivingObjects):
    has_attached = False


class _RecorderState(dict[str, Any]):
    # The recorder is created when a wrapper first needs it. Reading an item of a dict is faster than reading an attribute.

    def __init__(self) -> None:
        super().__init__()
        self.make: Callable[[], Recorder | None] | None = None
        self._lock = RLock()

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        # The package cloudpickle pickles optimizer classes of the main script together with our wrappers. After unpickling, a
        # wrapper finds no recorder and behaves like the original function.
        return dict, ({"recorder": None},)

    def __missing__(self, name: str) -> Recorder | None:
        if self.make is None:
            raise RuntimeError("no recorder was started in this process")
        with self._lock:
            made = self.get(name) or self._made()  # another thread may have made the recorder
            if made is not None:
                self[name] = made
        return made

    def _made(self) -> Recorder | None:
        try:
            return None if self.make is None else self.make()
        except Exception as error:
            self.make = lambda: None
            say(f"nothing is recorded, the script continues: {error!r}")
            return None

    def forget_recorder(self) -> None:
        self.clear()
        self._lock = RLock()  # in a forked process, a thread that does not exist in this process may hold the lock


OPTIMIZERS = Optimizers()
CALLS = ScriptCalls()  # separate from the calls that a replay sees, because `trace record --on` records a replay
CAPTURES = LivingObjects()  # CUDA graphs that the script captures now
SCRIPT_PROFILES = Profiles()  # profiles that the script makes now
_STATE = _RecorderState()
os.register_at_fork(after_in_child=_STATE.forget_recorder)

# returns the recorder, or None in a process that is not recorded, such as a DataLoader worker; raises RuntimeError before
# `start`; a partial object, because calling it is faster than calling a Python function
recorder: Callable[[], Recorder | None] = partial(_STATE.__getitem__, "recorder")
# returns the recorder, or None if it does not exist yet
started: Callable[[], Recorder | None] = partial(_STATE.get, "recorder")


def start(make: Callable[[], Recorder | None]) -> None:
    """Set the function that creates the recorder. In DataLoader workers and other unrecorded processes, the function `make`
    returns None."""
    _STATE.make = make
    _STATE.forget_recorder()


def started_lock() -> AbstractContextManager[Any]:
    """Return the recorder's lock. If there is no recorder, return a context manager that does nothing."""
    return nullcontext() if (to := started()) is None else to.cost.lock
