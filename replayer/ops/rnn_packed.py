"""Ops of recurrent networks that no meta kernel tells: packed sequences, whose shape comes from lengths on the host, and
cuDNN's one buffer of all weights.

pack_padded_sequence(x, lengths=torch.tensor([5, 3]), batch_first=True)    # data of 8 rows, on the device
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from replayer.op_signature import OpSignature
from replayer.state import gpu
from replayer.tensor.allocation import allocate
from replayer.tensor.dispatch import adopt, make
from replayer.tensor.plan_cache import PlanCache

aten = torch.ops.aten


class PackedSequences:
    """The handlers, bound to one plan cache."""

    def __init__(self, plans: PlanCache, run: Callable[..., Any]) -> None:
        """`run` runs an op from its plan."""
        self._plans = plans
        self._run = run

    def handlers(self) -> dict[Any, Callable[..., Any]]:
        return {
            aten._pack_padded_sequence.default: self.pack,
            aten._cudnn_rnn_flatten_weight.default: self.flatten,
            aten._cudnn_rnn_backward.default: self.backward,
        }

    def pack(self, padded: Any, lengths: torch.Tensor, batch_first: bool) -> tuple[Any, torch.Tensor]:
        """The CPU's kernel says how many rows there are; `lengths` must lie on the host, as CUDA demands."""
        meta = padded.meta
        rows, batch_sizes = aten._pack_padded_sequence(torch.zeros(meta.shape[:2]).unsqueeze(-1), lengths, batch_first)
        packed = self._plans.metas.contiguous((rows.size(0), *meta.shape[2:]), meta.dtype, meta.index)
        made = make(packed, allocate(gpu(), meta.index, packed.extent_bytes))
        shapes = (meta.shape, tuple(lengths.shape))
        dtypes = (meta.dtype_name, "int64")
        gpu().launch(OpSignature("aten::_pack_padded_sequence", shapes, dtypes, (packed.shape,)), meta.index)
        return made, batch_sizes

    def flatten(self, weights: list[Any], *_rnn: Any) -> Any:
        """One buffer for all weights, which become views of it; what they lay in before is free."""
        first = weights[0].meta
        total = sum(weight.meta.numel for weight in weights)
        look = self._plans.metas.contiguous((total,), first.dtype, first.index)
        allocation = allocate(gpu(), first.index, look.extent_bytes)
        offset = 0
        for weight in weights:
            part = self._plans.metas.contiguous(weight.meta.shape, first.dtype, first.index)
            view = self._plans.metas.of(part.shape, part.stride, offset, first.dtype, first.index)
            signature = OpSignature("aten::copy_", (part.shape, part.shape), (first.dtype_name, first.dtype_name))
            gpu().launch(signature, first.index)
            adopt(weight, make(view, allocation))
            offset += part.numel
        return make(look, allocation)

    def backward(self, *args: Any) -> Any:
        """The gradients of all weights are views of one buffer, as the weights are."""
        data, hx, cx, flat = self._run(self._plans.route(aten._cudnn_rnn_backward.default), args, {})
        gradients, offset = [], 0
        for weight in args[1] if flat else ():
            part = weight.meta
            look = self._plans.metas.contiguous(part.shape, part.dtype, part.index)
            look = self._plans.metas.of(look.shape, look.stride, offset, part.dtype, part.index)
            gradients.append(make(look, flat[0].allocation))
            offset += part.numel
        return data, hx, cx, gradients
