"""torch.nn.Module: moving one keeps the identity of its parameters; outermost calls are reported, to find evaluation steps.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.cuda()    # optimizer still updates model's parameters
    model(x)        # an outermost module is called, with gradient or without: see traces/script/script_hooks.py

A parameter keeps its identity as in CUDA: `parameter.data` is changed in place (tensor/tensor.py, `move_to`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from replayer.state import STATE, script_steps, started
from replayer.torch_types import TorchAny
from traces.script.patching import PhaseScope, patch_around
from traces.script.script_hooks import ModuleCalls, ScriptHooks


def install(torch: ModuleType) -> None:
    """Patch torch.nn.Module."""
    ScriptHooks(torch, script_steps, STATE.optimizers).module_calls(ModuleCalls())
    set_up = PhaseScope("other", script_steps)  # its copies are no batches on their way to the device
    future = torch.__future__

    def move(
        apply: Callable[..., TorchAny], self: TorchAny, fn: Callable[[TorchAny], TorchAny], recurse: bool = True
    ) -> TorchAny:
        before = future.get_overwrite_module_params_on_conversion()
        if started() is None:  # what starts the GPU in the midst of it would be a batch on its way
            first = next(self.parameters(), None)
            if first is not None and not torch.nn.parameter.is_lazy(first):
                fn(torch.empty(0, dtype=first.dtype, device=first.device))
        if isinstance(self, torch.jit.ScriptModule):
            future.set_overwrite_module_params_on_conversion(True)  # keeps its parameters in C++, by object
            for name, parameter in self._parameters.items():
                if not isinstance(parameter, torch.nn.Parameter):  # loaded from a file
                    self._parameters[name] = torch.nn.Parameter(parameter.detach(), parameter.requires_grad)
        try:
            with set_up:
                return apply(self, fn, recurse)
        finally:
            future.set_overwrite_module_params_on_conversion(before)

    patch_around(torch.nn.Module, _apply=move)
