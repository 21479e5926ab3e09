"""Replays functions that the script compiles with torch.compile. If the recording contains the function, the replay uses the
recorded kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import cache, lru_cache, partial

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.graph import _BoxedCodeGen
from torch.utils._pytree import tree_leaves

from replayer.compiled.fused_attention import fuse_attention
from replayer.compiled.graph_outputs import graph_outputs
from replayer.compiled.planned_memory import Sizes, planned_requests, size_in_call, sizes_in, symbolic_inputs
from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.region_memory import RegionMemory
from replayer.op_signature import OpSignature
from replayer.recording.recorded_regions import INPUTS, RecordedCall, Shapes, call_of, graph_ops_of
from replayer.state import computing, gpu
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny, TorchFunction
from traces.compiled.regions import BACKWARD, FORWARD, REGION

_COPIES = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten._to_copy.default, torch.ops.prims.device_put.default)
_READS = frozenset({"aten::item", "aten::_local_scalar_dense"})


class CompiledRegion:
    """Represents one compilation of a function. The name "0/1" means compilation 1 of function 0, as in torch.compile."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Each forward pass has an entry until its backward pass runs. An entry contains the shapes of the inputs, and the
        # memory blocks that the backward pass may free.
        self.forwards: list[tuple[Shapes, list[AllocationHandle]]] = []
        self._step = -1
        self._calls = {False: 0, True: 0}

    def call_number(self, *, is_backward: bool) -> int:
        step = gpu().simulator.tracker.number
        if step != self._step:
            self._step, self._calls = step, {False: 0, True: 0}
            while self.forwards:
                _free(self.forwards.pop()[1])
        number = self._calls[is_backward]
        self._calls[is_backward] += 1
        return number


class RegionGraph:
    def __init__(self, region: CompiledRegion, graph: TorchAny, *, is_backward: bool, trains: bool) -> None:
        self._boxed_call = True  # AOTAutograd then passes the inputs as one list, and the graph may clear this list
        self._region = region
        # `_BoxedCodeGen` frees each input after its last use.
        graph.graph.set_codegen(_BoxedCodeGen())
        _fill_without_wait(graph.graph)
        fuse_attention(graph.graph)
        _keep_constants(graph.graph)
        graph.recompile()
        _LazyGraphModule.force_recompile(graph)  # otherwise, each run of the graph would also count as a call of a module
        _call_parts_directly(graph)
        self._run: Callable[[list[TorchAny]], TorchAny] = graph.forward
        self._is_backward = is_backward
        self._ranges = [f"{REGION}{region.name}"]
        if trains:
            self._ranges.append(BACKWARD if is_backward else FORWARD)
        self._trains = trains
        self._static_inputs = _static_inputs()
        self._symbolic = list(symbolic_inputs(graph))
        # Returns the ops of the graph. The argument contains the sizes that replace the symbolic sizes.
        self._ops_with = cache(lambda sizes: graph_ops_of(_ops_of(graph, sizes)))
        # keys: input shapes, and sizes that replace symbolic sizes
        self._recorded: dict[tuple[Shapes, Sizes], list[RecordedCall]] = {}
        self._planned = cache(partial(planned_requests, graph))  # arguments: number of recorded ops, and sizes

    def __call__(self, inputs: list[TorchAny]) -> TorchAny:
        device = next((value.tensor_meta.index for value in inputs if isinstance(value, VirtualTensor)), None)
        if device is None:
            return self._run(inputs)
        region, regions = self._region, gpu().recording.regions
        number = region.call_number(is_backward=self._is_backward)
        shapes, kept = _shapes_of(inputs) if self._trains else (), list[AllocationHandle]()
        if self._is_backward:
            shapes, kept = region.forwards.pop() if region.forwards else ((), kept)
        sizes = sizes_in(inputs[at] for at in self._symbolic)
        if (shapes, sizes) not in self._recorded:
            found = regions.calls(region.name, shapes, lambda: self._ops_with(sizes), is_backward=self._is_backward)
            self._recorded[shapes, sizes] = found
        recorded = call_of(self._recorded[shapes, sizes], number)
        outputs = graph_outputs(device) if recorded is not None and recorded.launches_graph else None
        if recorded is None:
            graph_outputs(device).continue_step()
        given = _memory_of(inputs if outputs else ())
        if outputs:
            outputs.begin_call((self, sizes), is_backward=self._is_backward)
            if outputs.launches_no_graph:
                gpu().blas.clear()
        with gpu().steps.open_ranges(*self._ranges):
            if computing() or not len(regions):
                results = self._run(inputs)
            else:
                results, kept = self._run_as_recorded(inputs, sizes, recorded, device, kept)
        if outputs:
            outputs.end_call(results, given, is_backward=self._is_backward, trains=self._trains)
        if len(regions) and self._trains and not self._is_backward:
            region.forwards.append((shapes, kept))
        else:
            _free(kept)
        return results

    def _run_as_recorded(
        self,
        inputs: list[TorchAny],
        sizes: Sizes,
        recorded: RecordedCall | None,
        device: int,
        kept: list[AllocationHandle],
    ) -> tuple[TorchAny, list[AllocationHandle]]:
        here = gpu()
        here.steps.region_called()
        launches = here.launches
        without_kernels = nullcontext() if recorded is None else launches.kernels_off()
        recorded = recorded or RecordedCall((), None)
        requested = recorded.memory
        if requested is None:
            requested = () if recorded.launches_graph else self._planned(len(recorded.ops), sizes)
        if requested is None:
            with without_kernels:
                results = self._run(inputs)
            for signature in recorded.ops:
                if not _crosses(signature):
                    launches.launch(signature, device)
            return results, kept
        stream, workspaces = here.current.stream(device).number, here.blas.kept_bytes(device)
        memory = RegionMemory(here.devices[device].allocator, stream, kept, workspaces)
        copied = self._copied_inputs(inputs) if recorded.launches_graph else frozenset()
        with without_kernels, memory.uncounted(workspaces=recorded.launches_graph):
            results = self._run(inputs)
            if copied:
                results = [_own_copy(result, copied) for result in results]
        requests = list(requested)
        try:
            for number, signature in enumerate(recorded.ops):
                while requests and requests[0].op <= number:
                    memory.play([requests.pop(0)])
                if not _crosses(signature):
                    launches.launch(signature, device)
            memory.play(requests)
        except OutOfMemory as full:
            raise full.to_torch() from None
        return results, memory.end()

    def _copied_inputs(self, inputs: list[TorchAny]) -> frozenset[int]:
        """Return the memory of the inputs that PyTorch copies to the CUDA graph before each launch, because they change."""
        if not self._trains or self._is_backward:
            return frozenset()
        return _memory_of(value for i, value in enumerate(inputs) if i not in self._static_inputs)


def _call_parts_directly(graph: TorchAny) -> None:
    """Make the parts of a graph, such as the body of a `while_loop`, run without counting as calls of the script's modules."""
    for part in graph.modules():
        if part is not graph and isinstance(part, torch.fx.GraphModule):
            _LazyGraphModule.force_recompile(part)  # a later compilation would replace `__call__` again
            own: TorchAny = type(part)  # each GraphModule has a class of its own
            own.__call__ = lambda self, *args: self.forward(*args)


def _keep_constants(graph: TorchAny) -> None:
    """Copy constants to the GPU only in the first call of a graph, because Inductor copies constants during compilation."""
    constants = set(graph.find_nodes(op="get_attr"))
    for node in graph.nodes:
        is_returned = any(user.op == "output" for user in node.users)
        if node.target in _COPIES and constants.issuperset(node.all_input_nodes) and not is_returned:
            node.target = _called_once(node.target)
            node.meta.pop("val", None)  # a plan contains no memory for constants
            constants.add(node)


def _fill_without_wait(graph: TorchAny) -> None:
    """Replace assignments of one value to a mask, such as `x[mask] = 0.0`. Inductor compiles such assignments to `where`, and
    `where` does not wait for the GPU (`index_put_impl_` in torch/_inductor/lowering.py)."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.index_put.default):
        _, indices, value, *_ = node.args
        if len(indices) == 1 and indices[0].meta["val"].dtype is torch.bool and value.meta["val"].numel() == 1:
            node.target = _fill


def _fill(target: torch.Tensor, masks: list[torch.Tensor], value: torch.Tensor, accumulate: bool = False) -> TorchAny:
    """Return a tensor with the strides of `target`, as `index_put` does."""
    mask = masks[0][(..., *[None] * (target.dim() - masks[0].dim()))]
    filled = target + value.reshape(()) if accumulate else value.reshape(())
    return torch.ops.aten.where.self_out(mask, filled, target, out=torch.empty_like(target))


def _called_once(op: TorchFunction) -> TorchFunction:
    @lru_cache(maxsize=1)
    # a Python function instead of an op, because torch.fx calls ops by their names
    def constant(*args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        return op(*args, **kwargs)

    return constant


def _static_inputs() -> frozenset[int]:
    """Return the indices of inputs that stay at the same memory address, such as parameters."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    known = context.fw_metadata if context is not None else None
    return frozenset(known.static_input_indices or () if known is not None else ())


def _memory_of(values: Iterable[TorchAny]) -> frozenset[int]:
    return frozenset(id(value.allocation) for value in values if isinstance(value, VirtualTensor))


def _own_copy(result: TorchAny, copied: frozenset[int]) -> TorchAny:
    is_copied = isinstance(result, VirtualTensor) and id(result.allocation) in copied
    return result.clone(memory_format=torch.preserve_format) if is_copied else result


def _crosses(signature: OpSignature) -> bool:
    """Return True for a copy between host and device. The replay skips recorded copies between host and device, because running
    the compiled graph makes the same copies again."""
    return signature.op in _READS or signature.direction in ("h2d", "d2h")


def _free(handles: list[AllocationHandle]) -> None:
    for handle in handles:
        handle.allocator.free(handle)


def _shapes_of(inputs: list[TorchAny]) -> Shapes:
    return tuple(tuple(value.shape) for value in inputs if isinstance(value, torch.Tensor) and value.dim())


def _ops_of(graph: TorchAny, sizes: Sizes) -> Iterator[tuple[str, Shapes]]:
    size_of = size_in_call(graph, sizes)
    for node in graph.graph.find_nodes(op="placeholder"):
        if isinstance(value := node.meta.get("val"), torch.Tensor):
            yield INPUTS, (tuple(size_of(size) or 0 for size in value.shape),)
    for node in graph.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and not node.target.is_view:
            arguments = [one for one in tree_leaves((node.args, node.kwargs)) if isinstance(one, torch.fx.Node)]
            values = [one.meta.get("val") for one in arguments]
            tensors = [value for value in values if isinstance(value, torch.Tensor) and value.dim()]
            if isinstance(original := node.meta.get("original_aten"), torch._ops.OpOverload):
                yield original._schema.name, ()  # Inductor names kernels after the ops before decomposition
            yield node.target._schema.name, tuple(tuple(size_of(size) or 0 for size in tensor.shape) for tensor in tensors)
