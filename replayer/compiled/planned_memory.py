"""Estimates the memory use of a compiled graph if no memory events were recorded.

    requests = planned_requests(graph, ops=12, sizes=(64,))     # BlockRequests in order, or None if a size is unknown

Note [Blocks of a compiled graph]
    An external op, such as a matrix product, is a call of a library. Inductor allocates a memory block for each argument and
    each result of an external op, and for the results of the graph. Inductor compiles the ops between two external ops to a few
    fused kernels. Values that only these ops use stay in registers. A fused kernel may write its result to the memory block of
    an earlier value. This requires the same size and dtype, and that no later op reads the earlier value. A block is freed
    after the last op that uses it (torch/_inductor/codegen/wrapper.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import torch
from torch.utils._pytree import tree_leaves

from replayer.memory.device.settings import BLOCK_BYTES
from replayer.memory.region_memory import BlockRequest
from replayer.torch_types import TorchAny

_EXTERNAL = (
    "mm", "addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm", "_grouped_mm", "convolution", "_scaled_dot_product_", "_flash_",
    "_efficient_attention_", "_cudnn_", "_fft_", "_cdist_",
)  # fmt: skip

Sizes = tuple[int | None, ...]


class _Value:
    """Describes one value of the graph."""

    def __init__(self, tensor: torch.Tensor, size_bytes: int, kernel: int, *, is_constant: bool) -> None:
        self.bytes = -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
        self.key = self.bytes, tensor.dtype
        self.kernel = self.last = kernel
        self.is_constant = is_constant
        self.is_kept = kernel < 0
        self.is_result = False
        self.block: int | None = None


def symbolic_inputs(graph: TorchAny) -> dict[int, TorchAny]:
    """Return the inputs of the graph that are or have symbolic sizes, by their positions."""
    inputs = enumerate(node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder"))
    return {at: value for at, value in inputs if any(isinstance(size, torch.SymInt) for size in _sizes_of(value))}


def sizes_in(inputs: Iterable[TorchAny]) -> Sizes:
    # the variable length of a nested tensor is a SymInt without a value
    return tuple(size if isinstance(size, int) else None for value in inputs for size in _sizes_of(value))


def _sizes_of(value: TorchAny) -> Sequence[TorchAny]:
    return value.shape if isinstance(value, torch.Tensor) else (value,)


def size_in_call(graph: TorchAny, sizes: Sizes) -> Callable[[TorchAny], int | None]:
    """Return a function that computes the value of a symbolic size in one call of the graph. `sizes` contains the sizes of the
    call's symbolic inputs. For a size that depends on the values of a tensor, the returned function returns None."""
    traced = [size for value in symbolic_inputs(graph).values() for size in _sizes_of(value)]
    values = ((one, size) for one, size in zip(traced, sizes, strict=False) if isinstance(one, torch.SymInt))
    known = {one.node.expr: size for one, size in values if size is not None}

    @cache
    def with_known_sizes(expression: TorchAny) -> TorchAny:
        return expression.xreplace(known)  # a number, or an expression with unknown symbols

    def size_of(size: TorchAny) -> int | None:
        if isinstance(size, int):
            return size
        exact = with_known_sizes(size.node.expr)
        found = size.node.hint if getattr(exact, "free_symbols", None) else exact
        return None if found is None else int(found)

    return size_of


def planned_requests(graph: TorchAny, ops: int, sizes: Sizes) -> tuple[BlockRequest, ...] | None:
    found = _values(graph, size_in_call(graph, sizes))
    if found is None:
        return None
    values, is_external = found
    outlives: list[bool] = []
    requests: list[BlockRequest] = []
    kept = [value for value in values if value.is_kept]
    for kernel, alone in enumerate(is_external):
        op = kernel * ops // len(is_external)
        ending = [one for one in kept if one.last == kernel and not one.is_result]
        for value in (one for one in kept if one.kernel == kernel):
            reusable = (one for one in ending if one.key == value.key and 0 <= one.kernel < kernel)
            taken = None if alone else next(reusable, None)
            if taken is not None and taken.block is not None:
                ending.remove(taken)
                value.block = taken.block
                outlives[taken.block] = value.is_result
            else:
                value.block = len(outlives)
                outlives.append(value.is_result)
                requests.append(BlockRequest(value.bytes, value.block, False, op))
        requests += [BlockRequest(-value.bytes, value.block, False, op) for value in ending]
    return tuple(
        one._replace(outlives=outlives[one.block]) if one.size_bytes > 0 and one.block is not None else one for one in requests
    )


def _values(graph: TorchAny, size_of: Callable[[TorchAny], int | None]) -> tuple[list[_Value], list[bool]] | None:
    found: dict[int, _Value] = {}
    kernels: list[bool] = []
    for node in graph.graph.nodes:
        tensors = list(_tensors([node]))
        bytes_of = {_storage(tensor): size_of(tensor.untyped_storage().nbytes()) for tensor in tensors}
        if None in bytes_of.values():
            return None
        used = [found[key] for tensor in _tensors(node.all_input_nodes) if (key := _storage(tensor)) in found]
        if node.op == "output":
            for value in used:
                value.is_result = value.is_kept = True
            continue
        made = [tensor for tensor in tensors if _storage(tensor) not in found]
        kernel = -1
        if node.op == "call_function":
            if not made and not (isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable):
                continue  # a view needs no kernel
            alone = _is_external(node.target)
            if alone or not kernels or kernels[-1]:
                kernels.append(alone)
            kernel = len(kernels) - 1
            for value in used:
                value.is_kept |= alone or (value.kernel != kernel and not value.is_constant)
                value.last = kernel
        for tensor in made:
            found[_storage(tensor)] = value = _Value(tensor, bytes_of[_storage(tensor)] or 0, kernel, is_constant=not used)
            value.is_kept |= kernel >= 0 and kernels[kernel]
    return list(found.values()), kernels


def _tensors(nodes: list[TorchAny]) -> Iterator[torch.Tensor]:
    for value in tree_leaves([node.meta.get("val") for node in nodes]):
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            yield value


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_external(target: TorchAny) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return True  # an operator with functions as arguments, such as flex_attention
    return target.namespace not in ("aten", "prims") or target._schema.name.partition("::")[2].startswith(_EXTERNAL)
