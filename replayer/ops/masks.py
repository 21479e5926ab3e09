"""Ops whose result has as many elements as a mask has set: boolean indexing, `nonzero`, `masked_select`.

    x[torch.tensor([True, False, True])]    # two elements: the host knows the mask
    x[x > 0]                                # as many as the recorded program found here, else DataDependentShape

In all of them the host waits for the device before the result is made, as CUDA does, to learn its size (data_dependent.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from replayer.ops.data_dependent import DataDependentOps
from replayer.tensor.plan_cache import PlanCache
from replayer.tensor.tensor_meta import TensorMeta

aten = torch.ops.aten

_MASKS = (torch.bool, torch.uint8)


class Masks:
    """The handlers, bound to one plan cache. `index` indexes by integers."""

    def __init__(self, plans: PlanCache, tensor_class: Any, index: Callable[[Any, Any], Any]) -> None:
        self._plans = plans
        self._tensor_class = tensor_class
        self._index = index
        self._searches = DataDependentOps(plans, tensor_class)

    def handlers(self) -> dict[Any, Callable[..., Any]]:
        return {
            aten.index.Tensor: self.index,
            aten.nonzero.default: self.nonzero,
            aten.masked_select.default: self.masked_select,
        }

    def index(self, source: Any, indices: Any) -> Any:
        by_host = [part for index in indices for part in self._without_host_mask(index)]
        if not any(self._is_mask(index) for index in by_host):
            return self._index(source, by_host)
        if type(source) is not self._tensor_class:
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        looks: list[Any] = []
        tensors = [source]
        for index in by_host:
            if index is None:
                looks.append(None)
                continue
            tensors.append(index)
            if self._is_mask(index):
                found = self._searches.set_in("aten::index", index, index.meta.shape)
                looks += [torch.empty(found, dtype=torch.int64, device="meta")] * index.dim()
            else:
                looks.append(torch.empty(index.shape, dtype=index.dtype, device="meta"))
        meta: TensorMeta = source.meta
        look = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="meta")
        return self._searches.result("aten::index", tensors, self._plans.metas.like(aten.index.Tensor(look, looks), meta.index))

    def nonzero(self, source: Any) -> Any:
        """The result is a transposed one, as CUDA makes it."""
        meta: TensorMeta = source.meta
        found = self._searches.set_in("aten::nonzero", source, meta.shape)
        shape, stride = (found, len(meta.shape)), (1, max(found, 1))
        return self._searches.result("aten::nonzero", [source], self._plans.metas.of(shape, stride, 0, torch.int64, meta.index))

    def masked_select(self, source: Any, mask: Any) -> Any:
        if not (type(source) is type(mask) is self._tensor_class):
            raise RuntimeError("masked_select: expected self and mask to be on the same device, but found a CPU tensor")
        meta: TensorMeta = source.meta
        searched = tuple(torch.broadcast_shapes(meta.shape, mask.shape))  # type: ignore[no-untyped-call]
        found = self._searches.set_in("aten::masked_select", mask, searched)
        look = self._plans.metas.contiguous((found,), meta.dtype, meta.index)
        return self._searches.result("aten::masked_select", [source, mask], look)

    def _is_mask(self, index: Any) -> bool:
        return type(index) is self._tensor_class and index.dtype in _MASKS

    def _without_host_mask(self, index: Any) -> list[Any]:
        """A mask on the host becomes the integers that it means there, as in CUDA."""
        if isinstance(index, torch.Tensor) and type(index) is not self._tensor_class and index.dtype in _MASKS:
            return list(index.nonzero().unbind(1))
        return [index]
