"""torch.optim: `step` and `zero_grad` are phases of the script, and the first optimizer's `step` ends a step.

    optimizer.zero_grad()       # phase "zero_grad"
    loss.backward()
    optimizer.step()            # phase "optimizer"; when it returns, the training step is over

Every optimizer class, also the user's, has its `step` wrapped by torch when its first instance is made
(`Optimizer.profile_hook_step`). We wrap there and not by torch's step hooks: hooks are not called when a step fails.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from replayer.state import started
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.tensor_meta import BACKEND
from replayer.torch_shortcuts import without_override_lookup
from traces.patching import PhaseScope, patch
from traces.steps import FirstOptimizer


def install(torch_module: ModuleType) -> None:
    """Wrap what wraps `step`, and `zero_grad` of the base class and of classes that have their own."""
    cls: Any = torch_module.optim.Optimizer
    wrap_step, patch_class = cls.profile_hook_step, cls._patch_step_function
    stepping, zeroing = PhaseScope("optimizer", started), PhaseScope("zero_grad", started)
    first = FirstOptimizer()

    def wrap_step_with_phase(step: Callable[..., Any]) -> Callable[..., Any]:
        if step.__module__.startswith("torch.optim."):
            step = without_override_lookup(step, VirtualTensor)
        hooked = wrap_step(step)

        @wraps(hooked)
        def step_as_phase(self: Any, *args: Any, **kwargs: Any) -> Any:
            ends_step = not stepping.inside and first.is_(self)
            with stepping:
                result = hooked(self, *args, **kwargs)
            if ends_step and (gpu := started()) is not None:
                gpu.end_step()
            return result

        return step_as_phase

    @wraps(patch_class)
    def patch_class_with_phase(self: Any) -> None:
        """Called by torch for each new optimizer."""
        patch_class(self)
        own = vars(type(self)).get("zero_grad")
        if own is not None and not hasattr(own, "is_phase"):
            patch(type(self), zero_grad=as_phase(own))

    def as_phase(zero_grad: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = zeroing.around(zero_grad)
        patch(wrapped, is_phase=True)
        return wrapped

    # Clipping gradients has lists of its own of what foreach kernels take, and asks C++ for the device.
    foreach: Any = torch_module.utils._foreach_utils
    foreach._foreach_supported_types.append(VirtualTensor)
    devices = foreach._get_foreach_kernels_supported_devices
    patch(foreach, _get_foreach_kernels_supported_devices=lambda: [*devices(), BACKEND])
    patch(
        cls,
        profile_hook_step=staticmethod(wrap_step_with_phase),
        _patch_step_function=patch_class_with_phase,
        zero_grad=as_phase(without_override_lookup(cls.zero_grad, VirtualTensor)),
    )
