"""The one place of module-level state: torch's patched functions are global, so the virtual GPU behind them is too.

start(lambda: VirtualGpu(...))     # once per process, when torch is imported
gpu()                              # made at the first use of CUDA, as a CUDA context is
host_memory()                      # its pinned memory, made at the first use too

What is kept here lies below (the GPU, pinned memory, the rank); what lies above (tensors, ops, surfaces) reads it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from replayer.memory.pinned.host_memory import HostMemory
from replayer.memory.pinned.page_locks import PageLocks
from replayer.recording.rank import Rank
from traces.script.step_rule import Optimizers

if TYPE_CHECKING:
    from replayer.gpu.steps import ScriptSteps
    from replayer.gpu.virtual_gpu import VirtualGpu


class _AskedClass(threading.local):
    cls: type | None = None  # of the next alias of a virtual tensor that this thread makes, where that was asked for


class ReplayerState:
    """What this process has: how to make the GPU, and the GPU once made."""

    def __init__(self) -> None:
        self.make: Callable[[], VirtualGpu] | None = None
        self.gpu: VirtualGpu | None = None
        self.finish: Callable[[], None] = lambda: None  # writes the end of the timeline, once
        self.forked_in_use = False  # forked from a process that had used the GPU: CUDA does not survive that
        self.lock = threading.RLock()
        self.host_memory: HostMemory | None = None  # pinned memory
        self.run_folder: Path | None = None  # shared by all processes of a replay
        self.computing = False  # tensors have payloads: `--values compute`
        self.rank: Rank | None = None  # where it is not what the environment says
        self.view = _AskedClass()
        self.inference_mode_used = False  # by any thread; see Note [Views in inference mode] in tensor/allocation.py
        self.kept: list[object] = []  # a torch.library.Library lives as long as the process: torch drops its kernels with it
        self.optimizers = Optimizers()  # that the script has made
        self.capturing = False  # a CUDA graph: what an op gives now, it need not give at a replay
        self.masks_are_full = False  # of which nobody knows more; see surfaces/torch_nn_sync_batch_norm.py
        # DistributedDataParallel makes its Reducer; see Note [The map of used parameters] in distributed/process_group.py
        self.makes_reducer = False

    def after_fork(self) -> None:
        """Registered to run in a forked child: comparing process ids at every op would cost a system call each."""
        self.forked_in_use = self.forked_in_use or self.gpu is not None
        self.gpu = None
        self.host_memory = None  # locks are not inherited, and the parent's blocks are the parent's
        self.lock = threading.RLock()


STATE = ReplayerState()
os.register_at_fork(after_in_child=STATE.after_fork)


def start(make: Callable[[], VirtualGpu], run_folder: Path | None = None) -> None:
    """Set how the virtual GPU of this process is made, and drop one that was made before.

    The processes of one replay share `run_folder`: each writes there how much memory it has pinned.
    """
    STATE.make, STATE.gpu, STATE.forked_in_use, STATE.run_folder = make, None, False, run_folder


def started() -> VirtualGpu | None:
    """The virtual GPU if the script has used it in this process, else None."""
    return STATE.gpu


def script_steps() -> ScriptSteps | None:
    """Where hooks report what the script does; None until the script uses the virtual GPU."""
    made = STATE.gpu
    return None if made is None else made.steps


def in_bad_fork() -> bool:
    """Whether this process was forked from one that had already used the GPU."""
    return STATE.forked_in_use


def gpu() -> VirtualGpu:
    """The virtual GPU of this process, made at the first call.

    Raises RuntimeError in a forked child of a process that used the GPU, with CUDA's own text; and if `start` was not called,
    which is a mistake of ours, not of the script.
    """
    made = STATE.gpu
    if made is not None:
        return made
    if STATE.forked_in_use:
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn'"
            " start method"
        )
    with STATE.lock:
        if STATE.gpu is None:
            if STATE.make is None:
                raise RuntimeError("no virtual GPU was started in this process")
            STATE.gpu = STATE.make()
        return STATE.gpu


def host_memory() -> HostMemory:
    """The pinned memory of this process. Raises as `gpu` does in a forked child of a process that used the GPU."""
    if STATE.forked_in_use:
        gpu()
    with STATE.lock:
        if STATE.host_memory is None:
            STATE.host_memory = HostMemory(
                PageLocks(STATE.run_folder),
                has_passed=lambda time_ns: STATE.gpu is None or STATE.gpu.streams.has_passed(time_ns),
            )
        return STATE.host_memory


def is_pinned_address(address: int) -> bool:
    """Whether this host address lies in pinned memory; asked for every tensor that is copied, and never makes any."""
    return STATE.host_memory is not None and STATE.host_memory.holds(address)


def computing() -> bool:
    """Whether tensors have payloads."""
    return STATE.computing


def rank() -> Rank:
    """Which rank this process is, as far as it is known by now."""
    return STATE.rank or Rank.of(os.environ)
