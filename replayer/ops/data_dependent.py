"""How large a result is that only values tell, and how it is made: for ops that search (masks.py) and that count (distinct.py).

    searches = DataDependentOps(plans, VirtualTensor)
    found = searches.set_in("aten::nonzero", mask, (10,))       # 7, as recorded or as the host knows; else DataDependentShape
    searches.result("aten::nonzero", [mask], look)              # a new tensor of that look, made by a launch

The host waits for the device first, as CUDA does, to learn how large the result is.
"""

from __future__ import annotations

from typing import Any

import torch

from replayer.errors import DataDependentShape
from replayer.op_signature import OpSignature
from replayer.recording.output_sizes import NONZERO
from replayer.state import gpu
from replayer.tensor.allocation import KNOWN_LIMIT, allocate
from replayer.tensor.dispatch import make
from replayer.tensor.known_values import known_values
from replayer.tensor.plan_cache import PlanCache
from replayer.tensor.tensor_meta import TensorMeta


class DataDependentOps:
    """Bound to one plan cache."""

    def __init__(self, plans: PlanCache, tensor_class: Any) -> None:
        self._plans = plans
        self._tensor_class = tensor_class

    def set_in(self, op: str, mask: Any, searched: tuple[int, ...]) -> int:
        """How much is set: what the host knows, else what was recorded. Raises DataDependentShape if neither tells."""
        recorded = self.recorded(NONZERO, searched)
        known = known_values(mask) if type(mask) is self._tensor_class else mask
        if known is not None:
            return int((torch.as_tensor(known) != 0).expand(searched).sum())
        if recorded is None:
            raise DataDependentShape(op)
        return recorded

    def recorded(self, op: str, searched: tuple[int, ...]) -> int | None:
        """What the recorded program found at this place, if that is known. The host waits for its stream."""
        here = gpu()
        here.synchronize_stream(here.current_stream(here.current_device()))
        return here.found(op, searched)

    def contents(self, tensor: Any) -> torch.Tensor | None:
        """What the host knows a small tensor to contain."""
        meta: TensorMeta = tensor.meta
        if meta.numel > KNOWN_LIMIT:
            return None
        known = known_values(tensor)
        if known is None or isinstance(known, torch.Tensor):
            return known
        return torch.full(meta.shape, known, dtype=meta.dtype, device="cpu")

    def result(self, op: str, tensors: list[Any], look: TensorMeta) -> Any:
        """The op's one result."""
        return self.results(op, tensors, [look])[0]

    def results(self, op: str, tensors: list[Any], looks: list[TensorMeta]) -> list[Any]:
        """The op's results, one for each look, all on the device of the first."""
        made = [make(look, allocate(gpu(), look.index, look.extent_bytes)) for look in looks]
        key = (op, *looks, *[tensor.meta for tensor in tensors])
        signature = self._plans.signatures.get(key)
        if signature is None:
            metas = [tensor.meta for tensor in tensors]
            shapes, names = tuple(meta.shape for meta in metas), tuple(meta.dtype_name for meta in metas)
            signature = self._plans.keep_site(key, OpSignature(op, shapes, names, tuple(look.shape for look in looks)))
        gpu().launch(signature, looks[0].index)
        return made
