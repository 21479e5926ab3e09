"""Stores the global state of a replay: the virtual GPU, the pinned memory and the rank.

    start(lambda: VirtualGpu(...))     # once per process, when torch is imported
    gpu()                              # created at the first use of CUDA, like a CUDA context
    host_memory()                      # the pinned memory, also created at its first use
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from replayer.errors import warn_at_script
from replayer.memory.pinned.host_memory import HostMemory
from replayer.memory.pinned.page_locks import PageLocks
from replayer.recording.rank import Rank
from replayer.torch_types import TorchAny
from traces.script.step_rule import Optimizers

if TYPE_CHECKING:
    from torch.library import Library

    from replayer.gpu.steps import ScriptSteps
    from replayer.gpu.virtual_gpu import VirtualGpu


class _AskedClass(threading.local):
    cls: type | None = None  # the next view that this thread makes of a virtual tensor gets this class
    is_shared = False  # True while torch.from_dlpack makes a view
    # True if `__dict__` contains the replayer's attributes, see Note [Attributes of scripts] in tensor/tensor.py
    whole_attributes = False


class _Scope(threading.local):
    within = False  # True while this thread is inside a certain method


class ReplayerState:
    def __init__(self) -> None:
        self.make: Callable[[], VirtualGpu] | None = None
        self.gpu: VirtualGpu | None = None
        self.described: VirtualGpu | None = None  # a GPU for `describe_gpu`, used until the script uses the GPU
        self.finish: Callable[[], None] = lambda: None
        self.flush: Callable[[], None] = lambda: None  # this function writes the timeline so far
        # True if the parent process had used the GPU before the fork; CUDA does not work in such a process
        self.forked_in_use = False
        self.lock = threading.RLock()
        self.host_memory: HostMemory | None = None
        self.run_folder: Path | None = None  # all processes of a replay share this folder
        self.computing = False
        self.rank: Rank | None = None  # set only if it differs from the environment variables
        self.view = _AskedClass()
        self.moving = _Scope()  # inside Tensor.to, Tensor.cuda or Tensor.copy_
        self.reading = _Scope()  # inside a method of torch.Tensor such as `item`
        self.inference_mode_used = False  # see Note [Views in inference mode] in tensor/allocation.py
        # these libraries exist until the process ends, because a freed torch.library.Library unregisters its kernels
        self.kept: list[Library] = []
        self.optimizers = Optimizers()
        self.compiling = 0  # id of the thread in which AOTAutograd traces a graph, or 0
        # True during the capture of a CUDA graph, because launches of the graph may produce other values
        self.capturing = False
        self.graph_outputs: dict[int, TorchAny] = {}  # for each device, a compiled.graph_outputs.GraphOutputs
        # the replayer calls this function before each op
        self.check_inputs: Callable[[TorchAny, TorchAny, TorchAny], None] | None = None
        self.masks_are_full = False
        self.sync_debug_mode = 0  # set by torch.cuda.set_sync_debug_mode: 1 warns, 2 raises an error
        # the argument is a torch.cuda.Stream, or None for the current stream
        self.on_sync: Callable[[TorchAny], None] | None = None
        self.generators: WeakValueDictionary[int, TorchAny] = WeakValueDictionary()  # keys: addresses of C++ generators
        # True while DistributedDataParallel creates its Reducer, see Note [The map of used parameters] in
        # distributed/process_group.py
        self.makes_reducer = False
        # True while DistributedDataParallel's C++ code waits for all-reduces (Note [Futures in the backward pass] in
        # distributed/work_future.py)
        self.reducer_reads_now = False
        # futures that were created while the Reducer ran its own communication hook
        self.futures_of_hook: list[TorchAny] | None = None

    def after_fork(self) -> None:
        self.forked_in_use = self.forked_in_use or self.gpu is not None
        self.gpu = self.described = None
        self.host_memory = None  # a forked child must not use the parent's pinned blocks
        self.lock = threading.RLock()


STATE = ReplayerState()
os.register_at_fork(after_in_child=STATE.after_fork)


def start(make: Callable[[], VirtualGpu], run_folder: Path | None = None) -> None:
    STATE.make, STATE.gpu, STATE.described, STATE.forked_in_use, STATE.run_folder = make, None, None, False, run_folder


def reset() -> None:
    STATE.__init__()  # type: ignore[misc]


def started() -> VirtualGpu | None:
    return STATE.gpu


def script_steps() -> ScriptSteps | None:
    """Return the object that counts the script's steps. Return None before the script first uses the GPU, and while
    torch.compile traces a function."""
    made = STATE.gpu
    if made is None or (STATE.compiling and STATE.compiling == threading.get_ident()):
        return None
    return made.steps


def before_sync(stream: TorchAny = None) -> None:
    """Called before the script waits for the GPU. Depending on `torch.cuda.set_sync_debug_mode`, a wait shows a warning or
    raises RuntimeError."""
    if STATE.on_sync is not None:
        STATE.on_sync(stream)
    if STATE.sync_debug_mode == 1:
        warn_at_script("called a synchronizing CUDA operation")
    elif STATE.sync_debug_mode == 2:
        raise RuntimeError("called a synchronizing CUDA operation")


def in_bad_fork() -> bool:
    return STATE.forked_in_use


def gpu() -> VirtualGpu:
    """Return the virtual GPU of this process. As with CUDA, forked processes get an error if the parent process has used the
    GPU."""
    made = STATE.gpu
    if made is not None:
        return made
    if STATE.forked_in_use:
        # import it here, because it imports torch, and this module must not import torch at the top
        from replayer.cuda_error import CudaError

        raise CudaError.INITIALIZATION.to_torch()
    with STATE.lock:
        if STATE.gpu is None:
            STATE.gpu, STATE.described = describe_gpu(), None
        return STATE.gpu


def describe_gpu() -> VirtualGpu:
    with STATE.lock:
        found = STATE.gpu or STATE.described
        if found is None:
            if STATE.make is None:
                raise RuntimeError("this process has no virtual GPU: it was not started, or it was stopped")
            found = STATE.described = STATE.make()
        return found


def host_memory() -> HostMemory:
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
    return STATE.host_memory is not None and STATE.host_memory.holds(address)


def computing() -> bool:
    return STATE.computing


def rank() -> Rank:
    return STATE.rank or Rank.of(os.environ)
