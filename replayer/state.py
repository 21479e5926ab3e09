"""The one place of module-level state: torch's patched functions are global, so the virtual GPU behind them is too.

start(lambda: VirtualGpu(...))     # once per process, when torch is imported
gpu()                              # made at the first use of CUDA, as a CUDA context is
host_memory()                      # its pinned memory, made at the first use too
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from replayer.distributed.rank import Rank
from replayer.memory.page_locks import PageLocks
from replayer.memory.pinned import HostMemory

if TYPE_CHECKING:
    from replayer.gpu import VirtualGpu
    from replayer.tensor.plan_cache import Plans


class _State:
    """What this process has: how to make the GPU, and the GPU once made."""

    def __init__(self) -> None:
        self.make: Callable[[], VirtualGpu] | None = None
        self.gpu: VirtualGpu | None = None
        self.lost = False  # forked from a process that had used the GPU: CUDA does not survive that
        self.lock = threading.RLock()
        self.host: HostMemory | None = None  # pinned memory
        self.run_folder: Path | None = None  # shared by all processes of a replay
        self.plans: Plans | None = None  # once torch knows the device
        self.computing = False  # tensors have payloads
        self.rank: Rank | None = None  # if the process was told otherwise than by its environment
        self.kept: list[object] = []
        self.makes_reducer = False  # DistributedDataParallel's Reducer is being made: see Note [The map of used parameters]

    def after_fork(self) -> None:
        """Registered to run in a forked child: comparing process ids at every op would cost a system call each."""
        self.lost = self.lost or self.gpu is not None
        self.gpu = None
        self.host = None  # locks are not inherited, and the parent's blocks are the parent's
        self.lock = threading.RLock()


_STATE = _State()
os.register_at_fork(after_in_child=_STATE.after_fork)


def start(make: Callable[[], VirtualGpu], run_folder: Path | None = None) -> None:
    """Tell how the virtual GPU of this process is made; forgets one made before.

    `run_folder` is where the processes of one replay leave word for each other.
    """
    _STATE.make, _STATE.gpu, _STATE.lost, _STATE.run_folder = make, None, False, run_folder


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


def host_memory() -> HostMemory:
    """The pinned memory of this process. Raises as `gpu` does in a forked child of a process that used the GPU."""
    if _STATE.lost:
        gpu()
    with _STATE.lock:
        if _STATE.host is None:
            _STATE.host = HostMemory(
                PageLocks(_STATE.run_folder),
                is_done=lambda event: _STATE.gpu is None or _STATE.gpu.query_event(event),
            )
        return _STATE.host


def is_pinned_address(address: int) -> bool:
    """Whether this host address lies in pinned memory; asked for every tensor that is copied, and never makes any."""
    return _STATE.host is not None and _STATE.host.holds(address)


def set_plans(plans: Plans) -> None:
    """The plan cache belongs to the process, not to a virtual GPU: live tensors carry its interned specs."""
    _STATE.plans = plans


def plans() -> Plans:
    """The plan cache of this process. Raises RuntimeError before `backend.register`."""
    if _STATE.plans is None:
        raise RuntimeError("the virtual device was not registered with torch in this process")
    return _STATE.plans


def set_computing() -> None:
    """Tensors of this process carry their numbers: `--values compute`."""
    _STATE.computing = True


def computing() -> bool:
    """Whether tensors carry their numbers."""
    return _STATE.computing


def registered() -> bool:
    """Whether the virtual device is known to torch in this process."""
    return _STATE.plans is not None


def makes_reducer(now: bool | None = None) -> bool:
    """Whether a Reducer is being made; told by who makes it. See Note [The map of used parameters] in process_group.py."""
    if now is not None:
        _STATE.makes_reducer = now
    return _STATE.makes_reducer


def rank() -> Rank:
    """Which rank this process is, as far as it is known by now."""
    return _STATE.rank or Rank.of(os.environ)


def set_rank(rank: Rank) -> None:
    """It was told which rank it is."""
    _STATE.rank = rank


def keep(thing: object) -> None:
    """Keep `thing` alive for as long as the process: torch's registries do not (torch.library.Library)."""
    _STATE.kept.append(thing)
