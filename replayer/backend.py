"""Makes torch know the virtual device: the one call that everything else of the replayer relies on.

    backend.register()
    state.start(virtual_gpu)
    torch.zeros(3, device="cuda")

Nothing here touches a driver, and a process that never asks for "cuda" pays nothing but this registration.
"""

from __future__ import annotations

from itertools import repeat

import torch
from torch.optim.optimizer import _foreach_supported_types
from torch.utils import backend_registration

from replayer import autocast, choices, factories, state
from replayer.copies import Copies
from replayer.dispatch import dispatcher
from replayer.plans import Plans
from replayer.specs import BACKEND
from replayer.tensor import VirtualTensor


class _Module:
    """What torch expects of `torch.vcuda`. Scripts never meet it; they see `torch.cuda`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return state.gpu().current_device()

    def set_device(self, index: int) -> None:
        state.gpu().set_device(index)

    def device_count(self) -> int:
        return state.gpu().device_count()

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Values are not computed, so there is nothing to seed."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]


class _Hook(torch._C._acc.PrivateUse1Hooks):  # type: ignore[misc]
    """Answers C++'s questions about the accelerator."""

    def is_available(self) -> bool:
        return True

    def has_primary_context(self, device: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):  # type: ignore[misc]
    """Only its type is asked; current devices and streams are the virtual GPU's."""

    # C++ asks some 1 700 times per training step of a ResNet-50: a callable made in C answers faster than a function.
    type_ = repeat(torch._C._autograd.DeviceType.PrivateUse1).__next__


def register() -> None:
    """Register the device, its kernels and its place in autograd, autocast and the optimizers; once per process."""
    if state.registered():
        return
    backend_registration._setup_privateuseone_for_python_backend(
        rename=BACKEND, backend_module=_Module(), hook=_Hook(), device_guard=_Guard()
    )
    plans = Plans(VirtualTensor)
    dispatch, run = dispatcher(plans, VirtualTensor)
    copies = Copies(plans, VirtualTensor, run)
    plans.specials.update(copies.handlers())
    VirtualTensor.__torch_dispatch__ = staticmethod(dispatch)  # type: ignore[assignment]
    factories.register(plans, VirtualTensor, copies, dispatch)
    choices.register()
    autocast.register()
    # Without this, optimizers take the per-tensor path that no GPU would take.
    _foreach_supported_types.append(VirtualTensor)
    state.set_plans(plans)
