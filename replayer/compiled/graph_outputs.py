"""Raises PyTorch's error if a script uses an output of a CUDA graph that a later call has overwritten.

    outputs = graph_outputs(device=0)
    outputs.begin_call(key, is_backward=False)
    outputs.end_call(results, inputs, is_backward=False, trains=True)

Note [Overwritten outputs]
    With mode="reduce-overhead", PyTorch runs the first call of a compiled graph without a CUDA graph. In the second call,
    PyTorch captures a CUDA graph, and in later calls PyTorch launches this CUDA graph. The calls of one step of the script form
    a path. In some paths, a graph runs for the first or second time. If a new step begins after such a path, PyTorch marks the
    path's outputs that still exist. Using a marked output is an error. Later launches overwrite outputs without an error. After
    a graph that runs for the first time, PyTorch runs the rest of the path without CUDA graphs.

    A step begins with the outermost call of a compiled function if no backward pass is pending. A call of
    `torch.compiler.cudagraph_mark_step_begin` also begins a step (`CUDAGraphTreeManager` in
    torch/_inductor/cudagraph_trees.py).
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Hashable, Iterable
from importlib import import_module
from inspect import signature

from torch.utils._pytree import tree_leaves

from replayer.state import STATE
from replayer.tensor.allocation import Allocation
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import Args, Kwargs, Op, TorchAny

_TREES = "torch._inductor.cudagraph_trees"
_LAUNCHES = 2  # PyTorch launches a graph only after this number of calls
_READS_NO_VALUES = ("empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full")


class GraphOutputs:
    """Tracks the calls and the outputs of the compiled functions that use CUDA graphs on one GPU."""

    def __init__(self) -> None:
        self._calls: Counter[Hashable] = Counter()  # number of calls of each graph
        self._fewest_calls = _LAUNCHES  # the smallest number of earlier calls of any graph in the path; at most _LAUNCHES
        self._outputs: list[tuple[weakref.ref[Allocation], bool]] = []  # outputs of the path, and True for gradients
        self._step = 0
        self._awaits_backward = False

    @property
    def launches_no_graph(self) -> bool:
        """True while PyTorch runs a function without its CUDA graph, or captures the graph."""
        return self._fewest_calls < _LAUNCHES

    def begin_call(self, key: Hashable, *, is_backward: bool) -> None:
        """Mark overwritten outputs if a step begins. `key` identifies the called graph."""
        marked, step = _current_step()
        self._awaits_backward &= not is_backward
        alive = [(output, is_gradient) for output, is_gradient in self._outputs if output() is not None]
        begins = step != self._step and bool(marked or not self._awaits_backward)
        if begins or not alive:
            for output, is_gradient in alive if alive and _overwrites() else ():
                _mark(output, is_gradient)
            self._outputs, self._fewest_calls = [], _LAUNCHES
        self._step = step
        self._fewest_calls = min(self._fewest_calls, self._calls[key])
        self._calls[key] = max(self._calls[key], self._fewest_calls + 1)

    def continue_step(self) -> None:
        """Count a call of an unrecorded function as part of the current step if a backward pass is pending. If the unrecorded
        function uses a CUDA graph, the backward pass that called the function does not begin a new step."""
        if self._awaits_backward:
            self._step = _current_step()[1]

    def end_call(self, results: Iterable[TorchAny], inputs: frozenset[int], *, is_backward: bool, trains: bool) -> None:
        """Remember all outputs that use memory other than the inputs' memory. `inputs` contains the ids of the inputs'
        allocations."""
        if self.launches_no_graph:
            made = {one.allocation for one in results if isinstance(one, VirtualTensor) and id(one.allocation) not in inputs}
            self._outputs += [(weakref.ref(allocation), is_backward) for allocation in made]
        if trains:
            self._awaits_backward = not is_backward


_overwritten: dict[int, tuple[weakref.ref[Allocation], bool]] = {}  # each entry belongs to the allocation with this id


def graph_outputs(device: int) -> GraphOutputs:
    found: GraphOutputs = STATE.graph_outputs.setdefault(device, GraphOutputs())
    return found


def _current_step() -> tuple[int, int]:
    """Return PyTorch's counter of marked steps (`torch.compiler.cudagraph_mark_step_begin`), and the number of the current
    step."""
    from torch._dynamo.mutation_guard import GenerationTracker  # imported late, because only compiled code needs Dynamo

    marked: int = sys.modules[_TREES].MarkStepBox.mark_step_counter if _TREES in sys.modules else 0
    return marked, marked or GenerationTracker.generation


def _overwrites() -> bool:
    """Return True if Inductor's settings allow CUDA graphs to overwrite their earlier outputs."""
    settings: TorchAny = import_module("torch._inductor.config").triton
    clones = getattr(settings, "cudagraph_trees_generation_cloning", None)  # this setting exists since PyTorch 2.14
    return bool(settings.cudagraph_trees) and not clones


def _mark(output: weakref.ref[Allocation], is_gradient: bool) -> None:
    allocation = output()
    if allocation is not None:
        key = id(allocation)
        _overwritten[key] = weakref.ref(allocation, lambda _: _forget(key)), is_gradient
        STATE.check_inputs = _check_inputs


def _forget(key: int) -> None:
    del _overwritten[key]
    if not _overwritten:
        STATE.check_inputs = None


def _check_inputs(func: Op, args: Args, kwargs: Kwargs) -> None:
    """Raise RuntimeError if the op reads or writes an output that a CUDA graph has overwritten."""
    if getattr(func, "is_view", False) or func.__name__.startswith(_READS_NO_VALUES):
        return
    for value in tree_leaves((args, kwargs)):
        found = _overwritten.get(id(value.allocation)) if isinstance(value, VirtualTensor) else None
        if found is not None:
            from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

            message: TorchAny = CUDAGraphTreeManager.format_dealloc_msg
            names_gradients = "is_grad_output" in signature(message).parameters  # this parameter exists since PyTorch 2.13
            raise RuntimeError(message(None, is_grad_output=found[1]) if names_gradients else message(None))
