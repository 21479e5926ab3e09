"""Simulates compiled flex_attention as one kernel in the forward pass and one kernel in the backward pass."""

from __future__ import annotations

import copy
from functools import lru_cache, partial

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from replayer.op_signature import OpSignature
from replayer.ops.cpu.cpu_compute import now_or_at_replays
from replayer.state import computing, gpu
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.values.known_values import payload_of
from replayer.torch_types import TorchAny, TorchFunction
from traces.model.layouts import Shape


def fuse_attention(graph: TorchAny) -> None:
    operators = torch.ops.higher_order
    # for each operator, the positions of the arguments that are in a recording; the gradient comes first
    for operator, positions in ((operators.flex_attention, (0, 1, 2)), (operators.flex_attention_backward, (5, 0, 1, 2))):
        for node in graph.find_nodes(op="call_function", target=operator):
            node.target = _one_kernel(operator, positions)


def _one_kernel(operator: TorchAny, positions: tuple[int, ...]) -> TorchFunction:
    def attention(*args: TorchAny) -> TorchAny:
        from torch._higher_order_ops.utils import registered_hop_fake_fns

        inputs = [args[position] for position in positions]
        results = registered_hop_fake_fns[operator](*tree_map_only(torch.Tensor, partial(_like, device="meta"), args))
        made = tree_map_only(torch.Tensor, partial(_like, device=inputs[-1].device), results)
        shapes, dtypes = zip(*((tuple(one.shape), str(one.dtype).removeprefix("torch.")) for one in inputs), strict=True)
        outputs = tuple(tuple(one.shape) for one in made if isinstance(one, torch.Tensor))
        index = inputs[-1].tensor_meta.index
        gpu().launches.launch(_signature(operator.name(), shapes, dtypes, outputs), index)
        if computing():
            payloads = tree_map_only(VirtualTensor, payload_of, made)
            written = [one for one in tree_leaves(payloads) if isinstance(one, torch.Tensor)]
            now_or_at_replays(partial(_compute, operator, args, payloads), written, index)
        return made

    return attention


def _compute(operator: TorchAny, args: tuple[TorchAny, ...], payloads: TorchAny) -> None:
    results = operator(*tree_map_only(VirtualTensor, payload_of, tree_map_only(torch.fx.GraphModule, _on_host, args)))
    for into, value in zip(tree_leaves(payloads), tree_leaves(results), strict=True):
        if isinstance(value, torch.Tensor):  # a gradient is None if it is not needed
            into.copy_(value)


@lru_cache
def _on_host(function: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a copy of a function such as `score_mod` that makes its constants on the CPU."""
    copied = copy.deepcopy(function)
    for node in copied.graph.nodes:
        if "device" in node.kwargs:
            node.update_kwarg("device", torch.device("cpu"))
    copied.recompile()
    return copied


def _like(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


@lru_cache
def _signature(op: str, shapes: tuple[Shape, ...], dtypes: tuple[str, ...], outputs: tuple[Shape, ...]) -> OpSignature:
    return OpSignature(op, shapes, dtypes, outputs)
