"""torch.nn.Module on its way to the device and back: `to`, `cuda`, `cpu` keep each parameter's identity, as on CUDA.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.cuda()    # optimizer still updates model's parameters

Note [Swapping parameters]
CUDA changes `parameter.data` in place; between a plain and a virtual tensor PyTorch cannot do that, but it can swap the two
objects (`torch.__future__.set_swap_module_params_on_conversion`). Swapping refuses weak references and poisons the
gradients of a graph that is still alive, so it is on only while a module crosses between host and device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from replayer.errors import NotEmulated
from replayer.surfaces.seam import Section
from replayer.tensor import VirtualTensor


def install(torch: ModuleType) -> None:
    """Patch torch.nn.Module."""
    module_class = torch.nn.Module
    apply = module_class._apply
    set_up = Section("other")  # its copies are no batches on their way to the device

    def crosses(module: Any, fn: Callable[[Any], Any]) -> bool:
        """Whether `fn` turns plain parameters into virtual ones or back, tried on an empty tensor of each kind."""
        kinds: dict[bool, Any] = {}
        for parameter in module.parameters():
            if torch.nn.parameter.is_lazy(parameter):
                call = "moving a lazy module before its first forward"
                raise NotEmulated(call, "run one batch through it on the CPU first, or give it its sizes")
            kinds.setdefault(type(parameter) is VirtualTensor, parameter)
        with torch.no_grad():
            return any(
                (type(fn(torch.empty(0, dtype=parameter.dtype, device=parameter.device))) is VirtualTensor) is not virtual
                for virtual, parameter in kinds.items()
            )

    @wraps(apply)
    def _apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        future = torch.__future__
        before = future.get_swap_module_params_on_conversion()
        if isinstance(self, torch.jit.ScriptModule):
            now = False  # keeps its parameters in C++, where another object can take a parameter's place
        elif before or not crosses(self, fn):
            return apply(self, fn, recurse)
        else:
            now = True
        future.set_swap_module_params_on_conversion(now)
        try:
            with set_up:
                return apply(self, fn, recurse)
        finally:
            future.set_swap_module_params_on_conversion(before)

    module_class._apply = _apply
