"""Ops whose result has as many elements as a mask has set: boolean indexing, `nonzero`, `masked_select`.

    x[torch.tensor([True, False, True])]    # two elements: the host knows the mask
    x[x > 0]                                # as many as the recorded program found here, else DataDependentShape

In all of them the host waits for the device before the result is made, as CUDA does, to learn how large it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from replayer.allocations import allocate
from replayer.dispatch import make
from replayer.errors import DataDependentShape
from replayer.folding import known_values
from replayer.plans import Plans
from replayer.sites import Site
from replayer.specs import Spec
from replayer.state import gpu

aten = torch.ops.aten

_MASKS = (torch.bool, torch.uint8)


class Masks:
    """The handlers, bound to one plan cache. `index` indexes by integers."""

    def __init__(self, plans: Plans, tensor_class: Any, index: Callable[[Any, Any], Any]) -> None:
        self._plans = plans
        self._tensor_class = tensor_class
        self._index = index

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
                found = self._found("aten::index", index, index.spec.shape)
                looks += [torch.empty(found, dtype=torch.int64, device="meta")] * index.dim()
            else:
                looks.append(torch.empty(index.shape, dtype=index.dtype, device="meta"))
        spec: Spec = source.spec
        look = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")
        return self._result("aten::index", tensors, self._plans.specs.like(aten.index.Tensor(look, looks), spec.index))

    def nonzero(self, source: Any) -> Any:
        """The result is a transposed one, as CUDA makes it."""
        spec: Spec = source.spec
        found = self._found("aten::nonzero", source, spec.shape)
        shape, stride = (found, len(spec.shape)), (1, max(found, 1))
        return self._result("aten::nonzero", [source], self._plans.specs.of(shape, stride, 0, torch.int64, spec.index))

    def masked_select(self, source: Any, mask: Any) -> Any:
        if not (type(source) is type(mask) is self._tensor_class):
            raise RuntimeError("masked_select: expected self and mask to be on the same device, but found a CPU tensor")
        spec: Spec = source.spec
        searched = tuple(torch.broadcast_shapes(spec.shape, mask.shape))  # type: ignore[no-untyped-call]
        found = self._found("aten::masked_select", mask, searched)
        look = self._plans.specs.contiguous((found,), spec.dtype, spec.index)
        return self._result("aten::masked_select", [source, mask], look)

    def _is_mask(self, index: Any) -> bool:
        return type(index) is self._tensor_class and index.dtype in _MASKS

    def _without_host_mask(self, index: Any) -> list[Any]:
        """A mask on the host becomes the integers that it means there, as in CUDA."""
        if isinstance(index, torch.Tensor) and type(index) is not self._tensor_class and index.dtype in _MASKS:
            return list(index.nonzero().unbind(1))
        return [index]

    def _found(self, op: str, mask: Any, searched: tuple[int, ...]) -> int:
        """How much is set: what the host knows, else what was recorded. Raises DataDependentShape if neither tells."""
        here = gpu()
        here.synchronize_stream(here.current_stream(here.current_device()))
        recorded = here.found(searched)
        known = known_values(mask) if type(mask) is self._tensor_class else mask
        if known is not None:
            return int((torch.as_tensor(known) != 0).expand(searched).sum())
        if recorded is None:
            raise DataDependentShape(op)
        return recorded

    def _result(self, op: str, tensors: list[Any], look: Spec) -> Any:
        made = make(look, allocate(gpu(), look.index, look.extent_bytes))
        key = (op, look, *[tensor.spec for tensor in tensors])
        site = self._plans.sites.get(key)
        if site is None:
            specs = [tensor.spec for tensor in tensors]
            shapes, names = tuple(spec.shape for spec in specs), tuple(spec.dtype_name for spec in specs)
            site = self._plans.keep_site(key, Site(op, shapes, names, (look.shape,)))
        gpu().launch(site, look.index)
        return made
