"""torch.optim: `step` and `zero_grad` are phases of the script, and the first optimizer's `step` ends a step.

    optimizer.zero_grad()       # phase "zero_grad"
    loss.backward()
    optimizer.step()            # phase "optimizer"; when it returns, the training step is over

Every optimizer class, also the user's, has its `step` wrapped by torch when its first instance is made
(`Optimizer.profile_hook_step`). We wrap there and not by torch's global step hooks: those are not called when a step
fails, and they run inside torch's own "Optimizer.step" range, in which a step of the profiler cannot end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from tracer.state import recorder
from traces.patching import PhaseScope, patch
from traces.steps import FirstOptimizer


def install(torch: ModuleType) -> None:
    """Wrap what wraps `step`, and `zero_grad` of the base class and of classes that have their own."""
    cls: Any = torch.optim.Optimizer
    wrap_step, patch_class = cls.profile_hook_step, cls._patch_step_function
    stepping, zeroing = PhaseScope("optimizer", recorder), PhaseScope("zero_grad", recorder)
    first = FirstOptimizer()

    def wrap_step_with_phase(step: Callable[..., Any]) -> Callable[..., Any]:
        hooked = wrap_step(stepping.around(step))

        @wraps(hooked)
        def step_as_phase(self: Any, *args: Any, **kwargs: Any) -> Any:
            nested = stepping.inside
            result = hooked(self, *args, **kwargs)
            if not nested:
                recorder().optimizer_stepped(first.is_(self))
            return result

        return step_as_phase

    @wraps(patch_class)
    def patch_class_with_phase(self: Any) -> None:
        """Called by torch for each new optimizer."""
        patch_class(self)
        own = vars(type(self)).get("zero_grad")
        if own is not None and not hasattr(own, "is_recorded"):
            patch(type(self), zero_grad=as_phase(own))

    def as_phase(zero_grad: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = zeroing.around(zero_grad)
        patch(wrapped, is_recorded=True)
        return wrapped

    patch(
        cls,
        profile_hook_step=staticmethod(wrap_step_with_phase),
        _patch_step_function=patch_class_with_phase,
        zero_grad=as_phase(cls.zero_grad),
    )
