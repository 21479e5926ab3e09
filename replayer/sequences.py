"""Ops of recurrent networks that no meta kernel tells: packed sequences, whose shape comes from lengths on the host, and
cuDNN's one buffer of all weights.

pack_padded_sequence(x, lengths=torch.tensor([5, 3]), batch_first=True)    # data of 8 rows, on the device
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from replayer.allocations import allocate
from replayer.dispatch import adopt, make
from replayer.plans import Plans
from replayer.sites import Site
from replayer.state import gpu

aten = torch.ops.aten


class Sequences:
    """The handlers, bound to one plan cache."""

    def __init__(self, plans: Plans, run: Callable[..., Any]) -> None:
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
        spec = padded.spec
        rows, batch_sizes = aten._pack_padded_sequence(torch.zeros(spec.shape[:2]).unsqueeze(-1), lengths, batch_first)
        packed = self._plans.specs.contiguous((rows.size(0), *spec.shape[2:]), spec.dtype, spec.index)
        made = make(packed, allocate(gpu(), spec.index, packed.extent_bytes))
        shapes = (spec.shape, tuple(lengths.shape))
        gpu().launch(Site("aten::_pack_padded_sequence", shapes, (spec.dtype_name, "int64"), (packed.shape,)), spec.index)
        return made, batch_sizes

    def flatten(self, weights: list[Any], *_rnn: Any) -> Any:
        """One buffer for all weights, which become views of it; what they lay in before is free."""
        first = weights[0].spec
        total = sum(weight.spec.numel for weight in weights)
        look = self._plans.specs.contiguous((total,), first.dtype, first.index)
        allocation = allocate(gpu(), first.index, look.extent_bytes)
        offset = 0
        for weight in weights:
            part = self._plans.specs.contiguous(weight.spec.shape, first.dtype, first.index)
            view = self._plans.specs.of(part.shape, part.stride, offset, first.dtype, first.index)
            site = Site("aten::copy_", (part.shape, part.shape), (first.dtype_name, first.dtype_name))
            gpu().launch(site, first.index)
            adopt(weight, make(view, allocation))
            offset += part.numel
        return make(look, allocation)

    def backward(self, *args: Any) -> Any:
        """The gradients of all weights are views of one buffer, as the weights are."""
        data, hx, cx, flat = self._run(self._plans.route(aten._cudnn_rnn_backward.default), args, {})
        gradients, offset = [], 0
        for weight in args[1] if flat else ():
            part = weight.spec
            look = self._plans.specs.contiguous(part.shape, part.dtype, part.index)
            look = self._plans.specs.of(look.shape, look.stride, offset, part.dtype, part.index)
            gradients.append(make(look, flat[0].allocation))
            offset += part.numel
        return data, hx, cx, gradients
