"""When a module moves to the GPU, its parameters remain the same Python objects.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.cuda()    # optimizer still updates model's parameters
    model(x)        # reports the outermost call, with or without gradients: see traces/script/script_hooks.py
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from replayer.state import STATE, script_steps, started
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import PhaseScope, patch_around
from traces.script.script_hooks import ScriptHooks


def install(torch: ModuleType) -> None:
    ScriptHooks(torch, script_steps, STATE.optimizers).module_calls()
    set_up = PhaseScope("other", script_steps)
    future = torch.__future__

    def move(apply: TorchFunction, self: TorchAny, fn: Callable[[TorchAny], TorchAny], recurse: bool = True) -> TorchAny:
        before, tied = future.get_overwrite_module_params_on_conversion(), []
        if started() is None:
            first = next(self.parameters(), None)
            if first is not None and not torch.nn.parameter.is_lazy(first):
                fn(torch.empty(0, dtype=first.dtype, device=first.device))
        if isinstance(self, torch.jit.ScriptModule):
            future.set_overwrite_module_params_on_conversion(True)  # C++ code owns the parameters of this module
            tied = _with_several_names(self)
            for name, parameter in self._parameters.items():
                if not isinstance(parameter, torch.nn.Parameter):
                    self._parameters[name] = torch.nn.Parameter(parameter.detach(), parameter.requires_grad)
        try:
            with set_up:
                result = apply(self, fn, recurse)
        finally:
            future.set_overwrite_module_params_on_conversion(before)
        for (part, name), *others in tied:
            for other, other_name in others:
                other._parameters[other_name] = part._parameters[name]
        return result

    patch_around(torch.nn.Module, _apply=move)


def _with_several_names(module: TorchAny) -> list[list[tuple[TorchAny, str]]]:
    """Return the names of each parameter that has several names, such as a weight that an embedding and a linear layer
    share."""
    places: dict[TorchAny, list[tuple[TorchAny, str]]] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            places.setdefault(parameter, []).append((part, name))
    return [each for each in places.values() if len(each) > 1]
