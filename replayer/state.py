"""The one place of module-level state: torch's patched functions are global, so the virtual GPU behind them is too.

start(lambda: VirtualGpu(...))     # once per process, when torch is imported
gpu()                              # made at the first use of CUDA, as a CUDA context is
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replayer.gpu import VirtualGpu
    from replayer.plans import Plans


class _State:
    """What this process has: how to make the GPU, and the GPU once made."""

    def __init__(self) -> None:
        self.make: Callable[[], VirtualGpu] | None = None
        self.gpu: VirtualGpu | None = None
        self.lost = False  # forked from a process that had used the GPU: CUDA does not survive that
        self.lock = threading.RLock()
        self.plans: Plans | None = None  # once torch knows the device
        self.kept: list[object] = []

    def after_fork(self) -> None:
        """In a forked child. Told by the fork, for asking for the process's id at every op would be a system call each."""
        self.lost = self.lost or self.gpu is not None
        self.gpu = None
        self.lock = threading.RLock()


_STATE = _State()
os.register_at_fork(after_in_child=_STATE.after_fork)


def start(make: Callable[[], VirtualGpu]) -> None:
    """Tell how the virtual GPU of this process is made; forgets one made before."""
    _STATE.make, _STATE.gpu, _STATE.lost = make, None, False


def started() -> VirtualGpu | None:
    """The virtual GPU if the script has used it in this process, else None."""
    return _STATE.gpu


def in_bad_fork() -> bool:
    """Whether this process was forked from one that had already used the GPU."""
    return _STATE.lost


def gpu() -> VirtualGpu:
    """The virtual GPU of this process.

    Raises RuntimeError in a forked child of a process that used the GPU, with CUDA's own text; and if none was started, which
    is a mistake of ours, not of the script.
    """
    made = _STATE.gpu
    if made is not None:
        return made
    if _STATE.lost:
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn'"
            " start method"
        )
    with _STATE.lock:
        if _STATE.gpu is None:
            if _STATE.make is None:
                raise RuntimeError("no virtual GPU was started in this process")
            _STATE.gpu = _STATE.make()
        return _STATE.gpu


def set_plans(plans: Plans) -> None:
    """The plan cache belongs to the process, not to a virtual GPU: live tensors carry its interned specs."""
    _STATE.plans = plans


def plans() -> Plans:
    """The plan cache of this process. Raises RuntimeError before `backend.register`."""
    if _STATE.plans is None:
        raise RuntimeError("the virtual device was not registered with torch in this process")
    return _STATE.plans


def registered() -> bool:
    """Whether the virtual device is known to torch in this process."""
    return _STATE.plans is not None


def keep(thing: object) -> None:
    """Keep `thing` alive for as long as the process: torch's registries do not (torch.library.Library)."""
    _STATE.kept.append(thing)
