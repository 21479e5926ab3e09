"""Emulates CUDA graphs (torch.cuda.graphs).

    with torch.cuda.graph(g := torch.cuda.CUDAGraph()):
        y = model(static_x)     # takes no device time
    g.replay()                  # the kernels of `model`, and one cudaGraphLaunch
"""

from __future__ import annotations

import importlib
import warnings
import weakref
from types import ModuleType
from typing import Self

import torch

from replayer.cuda_error import SINCE_2_14, CudaError
from replayer.errors import require
from replayer.state import STATE, gpu, started
from replayer.surfaces.patching import refuse
from replayer.surfaces.torch_cuda_mem_pool import PoolHandle, PrivatePools, VirtualMemPool
from replayer.tensor.allocation import Allocation
from replayer.tensor.generators import Generator, PhiloxState, allocate_seed_and_offset
from replayer.tensor.tensor import VirtualTensor
from replayer.timing.cuda_graph import CapturedGraph, GraphCapture
from replayer.torch_types import TorchAny
from traces.script.patching import PATCHES, patch, patch_around, when_imported

_NODES = "the graph has no CUDA nodes; look at the replay's timeline"

REFUSED = dict.fromkeys(("export_dot", "export_graph_data"), _NODES)

_READERS = ("debug_dump", "get_graph_data")

_EMPTY = "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream."


_NO_GRAPH = (
    "No cudaGraph_t is available: either capture_end() has not been called, or the underlying cudaGraph_t was destroyed"
    " (keep_graph=false, and capture has been finalized)."
)
_NOT_KEPT = "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with keep_graph=true"
_NOT_ENDED = "You cannot access the raw cudaGraph_t instance until capture_end() has been called"
_NO_EXECUTABLE = "You cannot access the raw cudaGraphExec_t instance until instantiate() has been called"


def _forbid_reserving() -> None:
    """Raise CUDA's error if a thread allocates memory while another thread captures a CUDA graph."""
    launches = gpu().launches
    for capture in launches.captures:
        if capture.forbids_allocation(launches.current.thread()):
            raise capture.break_off(CudaError.CAPTURE_UNSUPPORTED.to_torch())


class VirtualGraph:
    """Replaces `torch._C._CUDAGraph`."""

    _pools: PrivatePools
    _graph: CapturedGraph | None
    _pool: PoolHandle | None
    _drop_pool: weakref.finalize[TorchAny, TorchAny] | None
    _states: set[PhiloxState]
    _seeds_and_offsets: list[tuple[Allocation, Allocation]]
    _memory_pools: list[VirtualMemPool]
    _capture: GraphCapture | None
    _template: object  # stands for a cudaGraph_t
    _executable: object  # stands for a cudaGraphExec_t
    _keeps_graph: bool

    def __new__(cls, keep_graph: bool = False) -> Self:
        self = super().__new__(cls)
        self._graph = self._pool = self._drop_pool = self._capture = self._template = self._executable = None
        self._states, self._seeds_and_offsets, self._memory_pools = set(), [], []
        self._keeps_graph = keep_graph
        return self

    def __reduce__(self) -> str:
        raise TypeError("cannot pickle 'CUDAGraph' object")

    def register_generator_state(self, generator: Generator) -> None:
        if SINCE_2_14:
            return  # since PyTorch 2.14, `capture_end` does this
        state = generator.philox
        if state not in self._states:
            self._states.add(state)
            state.register_graph(generator.device.index)
            weakref.finalize(self, state.unregister_graph).atexit = False

    def capture_begin(self, pool: PoolHandle | None = None, capture_error_mode: str = "global") -> None:
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got " + capture_error_mode
            )
        here = gpu()
        stream = here.current.stream(here.current.device())
        if self._executable is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        if stream.number == 0:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on the"
                " default stream.)"
            )
        if here.launches.is_capturing(stream):
            raise CudaError.CAPTURE_UNSUPPORTED.to_torch()
        generators: TorchAny = torch.cuda.default_generators
        self.register_generator_state(generators[here.current.device()])
        self._pool = pool or self._pools.handle()
        self._pools.keep(self._pool)
        self._drop_pool = weakref.finalize(self, self._pools.drop, self._pool)
        self._drop_pool.atexit = False
        refuse = CudaError.CAPTURE_UNSUPPORTED.to_torch
        self._capture = here.launches.begin_capture(self._pool[1], mode=capture_error_mode, refuse=refuse)
        if not SINCE_2_14:
            self._capture.registered = frozenset(self._states)
        self._capture.graph = self
        for device in here.devices:
            device.memory.before_reserving = _forbid_reserving
        STATE.capturing = True

    def capture_end(self) -> None:
        here = gpu()
        capture = self._capture
        if capture is None or here.current.stream(here.current.device()) is not capture.origin:
            raise RuntimeError("Capture must end on the same stream it began on.")
        if SINCE_2_14:
            self._seeds_and_offsets = [allocate_seed_and_offset(capture.origin.device) for _ in capture.generators]
        STATE.capturing = len(here.launches.captures) > 1
        if not STATE.capturing:
            for device in here.devices:
                device.memory.before_reserving = None
        self._capture = None
        graph = here.launches.end_capture(capture)
        if capture.is_broken:
            raise CudaError.CAPTURE_INVALIDATED.to_torch()
        if not capture.is_joined:
            raise CudaError.CAPTURE_UNJOINED.to_torch()
        if capture.is_empty:
            warnings.warn(_EMPTY, stacklevel=2)
        self._graph, self._template = graph, object()
        if not SINCE_2_14 and not self._keeps_graph:  # PyTorch 2.14 calls both methods itself
            self.instantiate()
            self.capture_end_post()

    capture_end_pre = capture_end  # PyTorch 2.14 calls this method

    def capture_end_post(self) -> None:
        if not self._keeps_graph:
            self._template = None

    @classmethod
    def get_currently_capturing_graph(cls) -> TorchAny:
        here = gpu()
        capture = here.launches.capture_of(here.current.stream(here.current.device()))
        if capture is None:
            raise RuntimeError("The current stream is not currently capturing.")
        return capture.graph

    def instantiate(self) -> None:
        require(self._graph is not None, "capture_end() must have been called before calling instantiate")
        if self._executable is not None and not self._keeps_graph:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")
        self._executable = object()

    @property
    def _has_graph_exec(self) -> bool:
        return self._executable is not None

    def replay(self) -> None:
        if self._graph is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if self._executable is None:
            self.instantiate()
        gpu().launches.replay_graph(self._graph)

    def reset(self) -> None:
        self._graph = self._pool = self._template = self._executable = None
        self._seeds_and_offsets.clear()
        self._memory_pools.clear()
        if self._drop_pool is not None:
            self._drop_pool()

    def pool(self) -> PoolHandle:
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def pools(self) -> list[PoolHandle]:
        return [self.pool()]

    def enable_debug_mode(self) -> None:
        if SINCE_2_14:
            self._keeps_graph = True

    def raw_cuda_graph(self) -> int:
        require(self._template is not None, _NO_GRAPH if SINCE_2_14 else _NOT_ENDED if self._keeps_graph else _NOT_KEPT)
        return id(self._template)

    def raw_cuda_graph_exec(self) -> int:
        require(self._executable is not None, _NO_EXECUTABLE)
        return id(self._executable)

    def _retain_pool(self, pool: VirtualMemPool) -> None:
        self._memory_pools.append(pool)


def _watch_memory(watch_storage: TorchAny, self: TorchAny, tensor: torch.Tensor) -> None:
    watch_storage(self, tensor)
    if isinstance(tensor, VirtualTensor):  # the storage objects of a virtual tensor are temporary
        self.weakref = weakref.ref(tensor.allocation)


def _is_alive(storage_is_alive: TorchAny, self: TorchAny) -> bool:
    return isinstance(self.weakref(), Allocation) or bool(storage_is_alive(self))


def _check_inputs_by_memory(debug: TorchAny) -> None:
    patch_around(debug._TrackedTensorInfo, __init__=_watch_memory, is_alive=_is_alive)


def _restore_names(module: ModuleType, names: dict[str, TorchAny]) -> None:
    vars(module).clear()
    vars(module).update(names)


def _is_capturing() -> bool:
    here = started()
    return here is not None and here.launches.is_capturing(here.current.stream(here.current.device()))


def install(torch_module: ModuleType) -> None:
    VirtualGraph._pools = VirtualMemPool.pools
    patch(
        torch_module._C,
        _CUDAGraph=VirtualGraph,
        _graph_pool_handle=VirtualGraph._pools.handle,
        _cuda_isCurrentStreamCapturing=_is_capturing,
    )
    cuda: TorchAny = torch_module.cuda
    before = dict(vars(cuda.graphs))
    PATCHES.on_undo(lambda: _restore_names(cuda.graphs, before))
    module: TorchAny = importlib.reload(cuda.graphs)
    for name, value in vars(module).items():
        if not name.startswith("__") and vars(cuda).get(name) is before.get(name, module) and value is not before.get(name):
            patch(cuda, **{name: value})
    when_imported("torch.utils._cuda_debug", _check_inputs_by_memory)
    refuse(module.CUDAGraph, "torch.cuda.CUDAGraph", dict.fromkeys(_READERS, _NODES))
    for owner in (cuda, module):
        refuse(owner, "torch.cuda", REFUSED)
