"""The one place of module-level state: torch's patched functions are global, so the virtual GPU behind them is too.

start(lambda: VirtualGpu(...))     # once per process, when torch is imported
gpu()                              # made at the first use of CUDA, as a CUDA context is
host_memory()                      # its pinned memory, made at the first use too

What is kept here lies below (the GPU, pinned memory, the rank); what lies above (tensors, ops, surfaces) reads it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from replayer.memory.page_locks import PageLocks
from replayer.memory.pinned import HostMemory
from replayer.recording.rank import Rank
from traces.steps import Optimizers

if TYPE_CHECKING:
    from replayer.gpu import VirtualGpu


class _ReplayerState:
    """What this process has: how to make the GPU, and the GPU once made."""

    def __init__(self) -> None:
        self.make: Callable[[], VirtualGpu] | None = None
        self.gpu: VirtualGpu | None = None
        self.forked_in_use = False  # forked from a process that had used the GPU: CUDA does not survive that
        self.lock = threading.RLock()
        self.host_memory: HostMemory | None = None  # pinned memory
        self.run_folder: Path | None = None  # shared by all processes of a replay
        self.computing = False  # tensors have payloads
        self.rank: Rank | None = None  # where it is not what the environment says
        self.view = threading.local()
        self.inference_mode_used = False  # by the script, in any thread
        self.kept: list[object] = []
        self.optimizers = Optimizers()
        self.capturing = False  # a CUDA graph
        self.masks_are_full = False  # see surfaces/torch_nn_sync_batch_norm.py
        self.makes_reducer = False  # see Note [The map of used parameters] in distributed/process_group.py

    def after_fork(self) -> None:
        """Registered to run in a forked child: comparing process ids at every op would cost a system call each."""
        self.forked_in_use = self.forked_in_use or self.gpu is not None
        self.gpu = None
        self.host_memory = None  # locks are not inherited, and the parent's blocks are the parent's
        self.lock = threading.RLock()


_STATE = _ReplayerState()
os.register_at_fork(after_in_child=_STATE.after_fork)


def start(make: Callable[[], VirtualGpu], run_folder: Path | None = None) -> None:
    """Set how the virtual GPU of this process is made, and drop one that was made before.

    The processes of one replay share `run_folder`: each writes there how much memory it has pinned.
    """
    _STATE.make, _STATE.gpu, _STATE.forked_in_use, _STATE.run_folder = make, None, False, run_folder


def started() -> VirtualGpu | None:
    """The virtual GPU if the script has used it in this process, else None."""
    return _STATE.gpu


def in_bad_fork() -> bool:
    """Whether this process was forked from one that had already used the GPU."""
    return _STATE.forked_in_use


def gpu() -> VirtualGpu:
    """The virtual GPU of this process, made at the first call.

    Raises RuntimeError in a forked child of a process that used the GPU, with CUDA's own text; and if `start` was not called,
    which is a mistake of ours, not of the script.
    """
    made = _STATE.gpu
    if made is not None:
        return made
    if _STATE.forked_in_use:
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
    if _STATE.forked_in_use:
        gpu()
    with _STATE.lock:
        if _STATE.host_memory is None:
            _STATE.host_memory = HostMemory(
                PageLocks(_STATE.run_folder),
                has_passed=lambda time_ns: _STATE.gpu is None or _STATE.gpu.has_passed(time_ns),
            )
        return _STATE.host_memory


def is_pinned_address(address: int) -> bool:
    """Whether this host address lies in pinned memory; asked for every tensor that is copied, and never makes any."""
    return _STATE.host_memory is not None and _STATE.host_memory.holds(address)


def set_computing() -> None:
    """From now on tensors of this process have payloads: `--values compute`."""
    _STATE.computing = True


def computing() -> bool:
    """Whether tensors have payloads."""
    return _STATE.computing


def set_makes_reducer(now: bool) -> None:
    """Say whether DistributedDataParallel's Reducer is being made."""
    _STATE.makes_reducer = now


def makes_reducer() -> bool:
    """Whether a Reducer is being made. See Note [The map of used parameters] in distributed/process_group.py."""
    return _STATE.makes_reducer


def note_inference_mode() -> None:
    """The script has entered inference mode. See Note [Views in inference mode] in tensor/allocation.py."""
    _STATE.inference_mode_used = True


@contextmanager
def viewed_as(cls: type) -> Iterator[None]:
    """The next alias of a virtual tensor that this thread makes is of this class."""
    _STATE.view.cls = cls
    try:
        yield
    finally:
        _STATE.view.cls = None


def class_of_view() -> type | None:
    """The class that was asked for, or None."""
    return getattr(_STATE.view, "cls", None)


def rank() -> Rank:
    """Which rank this process is, as far as it is known by now."""
    return _STATE.rank or Rank.of(os.environ)


def set_rank(rank: Rank) -> None:
    """This process is `rank`, whatever its environment says."""
    _STATE.rank = rank


def keep(library: object) -> None:
    """Keep a torch.library.Library alive for as long as the process: torch drops its kernels with the object."""
    _STATE.kept.append(library)


def optimizers() -> Optimizers:
    """The optimizers that the script has made in this process."""
    return _STATE.optimizers


def masks_are_full() -> bool:
    """Whether every element of a mask is set of which nobody knows more."""
    return _STATE.masks_are_full


def set_masks_are_full(now: bool) -> None:
    _STATE.masks_are_full = now


def set_capturing(now: bool) -> None:
    """Say whether a CUDA graph is being captured: what an op gives now, it need not give at a replay."""
    _STATE.capturing = now
