"""Runs the graphs of compiled regions.

A graph runs op by op on virtual tensors. If the recording contains the region, the ops of the graph launch nothing. The replay
launches the recorded ops of the region's call instead: fused kernels, external kernels and launches of CUDA graphs, with the
recorded host time between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.fx.graph import _BoxedCodeGen
from torch.utils._pytree import tree_leaves

from replayer.compiled.fused_attention import fuse
from replayer.memory.graph_pool import GraphPool
from replayer.op_signature import OpSignature
from replayer.recording.recorded_regions import Shapes, graph_ops_of
from replayer.state import computing, gpu
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny
from traces.compiled.regions import BACKWARD, FORWARD, GRAPH_LAUNCHES, REGION
from traces.script.patching import replaced


class CompiledRegion:
    """One compilation of a function. `name` is torch's number of the compilation, such as "0/1" for the second compilation of
    the first function.

    Forward and backward share the shapes of the last forward's inputs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: Shapes = ()
        self._step = -1
        self._calls = {False: 0, True: 0}

    def call_number(self, *, is_backward: bool) -> int:
        """Return the position of the call that begins now among this step's calls."""
        step = gpu().simulator.tracker.number
        if step != self._step:
            self._step, self._calls = step, {False: 0, True: 0}
        number = self._calls[is_backward]
        self._calls[is_backward] += 1
        return number


class RegionGraph:
    """The graph of a region's forward or backward. AOTAutograd calls the graph with a list of its inputs."""

    def __init__(self, region: CompiledRegion, graph: TorchAny, *, is_backward: bool, trains: bool) -> None:
        self._boxed_call = True  # makes AOTAutograd pass the inputs as one list, which the graph may clear
        self._region = region
        # The compiled graph takes its inputs as one list, and frees each input after its last use.
        graph.graph.set_codegen(_BoxedCodeGen())
        if not computing():
            fuse(graph.graph)
        graph.recompile()
        self._run: Callable[[list[TorchAny]], TorchAny] = graph.forward
        self._is_backward = is_backward
        self._ops = graph_ops_of(_ops_of(graph))
        self._ranges = [f"{REGION}{region.name}"]
        if trains:
            self._ranges.append(BACKWARD if is_backward else FORWARD)
        self._trains = trains

    def __call__(self, inputs: list[TorchAny]) -> TorchAny:
        device = next((value.meta.index for value in inputs if isinstance(value, VirtualTensor)), None)
        if device is None:
            return self._run(inputs)
        if not self._is_backward:
            self._region.inputs = _shapes_of(inputs) if self._trains else ()
        recorded = self._recorded()
        with gpu().steps.within_ranges(*self._ranges):
            if recorded is None or computing():
                return self._run(inputs)
            launches = gpu().launches
            with launches.muted(), self._memory(device, recorded):
                results = self._run(inputs)
            for signature in recorded:
                launches.launch(signature, device)
            return results

    def _memory(self, device: int, recorded: tuple[OpSignature, ...]) -> AbstractContextManager[None]:
        """Return a context in which tensors come from a graph's pool, if the recorded call launched a CUDA graph."""
        if not any(signature.op in GRAPH_LAUNCHES for signature in recorded):
            return nullcontext()
        pool = GraphPool()
        return replaced(gpu().devices[device].allocator, malloc=pool.malloc, malloc_several=pool.malloc_several)

    def _recorded(self) -> tuple[OpSignature, ...] | None:
        regions = gpu().recording.regions
        if not len(regions):
            return None
        region = self._region
        number = region.call_number(is_backward=self._is_backward)
        return regions.ops(region.name, region.inputs, self._ops, number, is_backward=self._is_backward)


def _shapes_of(inputs: list[TorchAny]) -> Shapes:
    return tuple(tuple(value.shape) for value in inputs if isinstance(value, torch.Tensor) and value.dim())


def _ops_of(graph: TorchAny) -> Iterator[tuple[str, Shapes]]:
    for node in graph.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            inputs = [one for one in tree_leaves((node.args, node.kwargs)) if isinstance(one, torch.fx.Node)]
            values = [one.meta.get("val") for one in inputs]
            tensors = [value for value in values if isinstance(value, torch.Tensor) and value.dim()]
            yield node.target._schema.name, tuple(tuple(map(_hint, tensor.shape)) for tensor in tensors)


def _hint(size: TorchAny) -> int:
    """Return a size of a traced tensor as a number. A symbolic size has the value that it had when the graph was traced."""
    return size if isinstance(size, int) else int(size.node.hint or 0)
