"""Simulates compiled flex_attention as one kernel in the forward pass and one kernel in the backward pass."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch.utils._pytree import tree_map_only

from replayer.op_signature import OpSignature
from replayer.state import gpu
from replayer.torch_types import TorchAny, TorchFunction
from traces.model.layouts import Shape


def fuse_attention(graph: TorchAny) -> None:
    operators = torch.ops.higher_order
    # by operator: the positions of the arguments that a recording shows; the gradient comes first
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
        gpu().launches.launch(_signature(operator.name(), shapes, dtypes, outputs), inputs[-1].tensor_meta.index)
        return made

    return attention


def _like(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


@lru_cache
def _signature(op: str, shapes: tuple[Shape, ...], dtypes: tuple[str, ...], outputs: tuple[Shape, ...]) -> OpSignature:
    return OpSignature(op, shapes, dtypes, outputs)
