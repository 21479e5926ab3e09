"""Runs an op on the CPU instead of the virtual GPU.

    call = HostCall(plans)
    made = call.back(func(*[call.of(value) for value in args]), index)
    gpu().launches.launch(call.signature(func._schema.name, tuple(call.outputs), launches=True), index)
"""

from __future__ import annotations

import torch

from replayer.errors import NotEmulated
from replayer.state import computing, gpu
from replayer.tensor.allocation import Allocation, allocate, make, make_view
from replayer.tensor.plan import Where
from replayer.tensor.planning.call_arguments import CallArguments, shape_of
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.planning.shape_inference import QUANTISED
from replayer.tensor.values.known_values import bytes_of, known_values, payload_of, set_known_values
from replayer.torch_types import TorchAny


class HostCall(CallArguments):
    """Runs an op with CPU tensors. Unknown values are replaced by zeros."""

    def __init__(self, plans: PlanCache) -> None:
        super().__init__(plans.tensor_class)
        self.plans = plans
        self.outputs: list[tuple[int, ...]] = []
        self.given: list[tuple[TorchAny, torch.Tensor]] = []
        self.allocations: dict[int, Allocation] = {}
        self.known = True

    def virtual(self, value: TorchAny, where: Where) -> torch.Tensor:
        known = payload_of(value) if computing() else known_values(value)
        if isinstance(known, torch.Tensor):
            host = known
            self.allocations[host.untyped_storage()._cdata] = value.allocation
        else:
            self.known &= known is not None
            host = torch.full(value.shape, known or 0, dtype=value.dtype, device="cpu")
        self.given.append((value, host))
        return host

    def back(self, value: TorchAny, index: int) -> TorchAny:
        if isinstance(value, (list, tuple)):
            return [self.back(item, index) for item in value]
        if not isinstance(value, torch.Tensor):
            return value
        for tensor, host in self.given:
            if value is host:
                return tensor
        if value.is_quantized:
            raise NotEmulated(*QUANTISED)
        if value.layout is not torch.strided or value.is_nested:
            made = self.plans.wrap_other_layout(value, index, self.allocations, known=self.known)
            self.outputs += [shape_of(value)] if made.parts.keys() - self.allocations.keys() else []
            return made
        storage = value.untyped_storage()
        allocation = self.allocations.get(storage._cdata)
        if allocation is None:
            allocation = self.allocations[storage._cdata] = self.holding(storage, index)
            self.outputs.append(tuple(value.shape))
        meta = self.plans.metas.like(value, index)
        source = next((tensor for tensor, _ in self.given if getattr(tensor, "allocation", None) is allocation), None)
        result = make(meta, allocation) if source is None else make_view(meta, source)
        if allocation.known is None and self.known:
            set_known_values(result, value)
        return result

    def holding(self, storage: torch.UntypedStorage, index: int) -> Allocation:
        made = allocate(gpu(), index, storage.nbytes())
        if computing():
            made.known = bytes_of(storage)
        return made
