"""torch.nn.Module: moving one keeps the identity of its parameters; outermost calls are reported, to find evaluation steps.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.cuda()    # optimizer still updates model's parameters
    model(x)        # an outermost module is called, with gradient or without: see traces/script_hooks.py

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

from replayer import torch_shortcuts
from replayer.errors import NotEmulated
from replayer.state import optimizers, started
from replayer.tensor.tensor import VirtualTensor
from traces.patching import PhaseScope
from traces.script_hooks import ModuleCalls, ScriptHooks


def install(torch: ModuleType) -> None:
    """Patch torch.nn.Module."""
    in_one_frame = torch_shortcuts.enabled("module_call")
    ScriptHooks(torch, started, optimizers()).module_calls(ModuleCalls(), in_one_frame=in_one_frame)
    _install_moves(torch)


def _install_moves(torch: ModuleType) -> None:
    module_class = torch.nn.Module
    apply = module_class._apply
    set_up = PhaseScope("other", started)  # its copies are no batches on their way to the device

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
