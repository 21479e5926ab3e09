"""Makes torch know the virtual device: the one call that everything else of the replayer relies on.

    backend.register()
    state.start(virtual_gpu)
    torch.zeros(3, device="cuda")

Nothing here touches a driver, and a process that never asks for "cuda" pays nothing but this registration.
"""

from __future__ import annotations

import torch
from torch.optim.optimizer import _foreach_supported_types
from torch.utils.backend_registration import _DummyDeviceGuard

from replayer import state
from replayer.ops import autocast, factories, gemm
from replayer.ops.composite import cuda_decompositions, losses, rnn
from replayer.ops.copies import Copies
from replayer.ops.cpu.cpu_compute import CpuCompute
from replayer.ops.data_dependent import DataDependentOps
from replayer.ops.known_contents import KnownContents
from replayer.ops.layouts import Layouts, SparseVirtualTensor
from replayer.tensor.dispatch import dispatcher
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.tensor import VirtualTensor, alias

# PyTorch has a device type for other backends, refuses "cuda" for its name, and compares and prints names in lower case. So
# this one is "cuda" wherever that is read or printed: `torch.device("cuda:0")`, `torch.device(0)`, torch.autocast("cuda"); and
# the backend's module, which C++ asks for the current device, is torch.cuda.
_NAME = "CUDA"


class _Hook(torch._C._acc.PrivateUse1Hooks):
    """Answers C++'s questions about the accelerator. No tensor is on it, so there is nothing to wait for."""

    def is_available(self) -> bool:
        return True

    def has_primary_context(self, device: int) -> bool:
        return False

    def is_built(self) -> bool:
        return True


def registered() -> bool:
    """Whether `register` was called in this process."""
    return "plan_cache" in vars(VirtualTensor)


def register(*, compute: bool = False) -> None:
    """Register the device, its kernels and its place in autograd, autocast and the optimizers; once per process.

    `compute`: tensors carry their numbers, and ops compute them on the CPU.
    """
    if registered():
        return
    torch._C._rename_privateuse1_backend(_NAME)
    torch._C._acc.register_python_privateuseone_hook(_Hook())
    torch._C._acc.register_python_privateuseone_device_guard(_DummyDeviceGuard())
    plans = PlanCache(VirtualTensor)
    dispatch, run = dispatcher(plans)
    copies = Copies(plans)
    contents = KnownContents(plans, run)
    by_value = DataDependentOps(plans, contents.index)
    for handlers in (copies.handlers(), contents.handlers(), by_value.handlers(), rnn.handlers(run), gemm.handlers(plans, run)):
        plans.specials |= handlers
    plans.specials[torch.ops.aten.alias.default] = alias
    plans.specials[torch.ops.aten._nested_tensor_from_mask_left_aligned.default] = lambda *_: False  # so nobody nests
    if compute:
        computing = CpuCompute(plans)
        dispatch, copies = computing.dispatch, computing.copies
        state.STATE.computing = True
    layouts = Layouts(plans)
    plans.run_other_layout, plans.wrap_other_layout = layouts.run, layouts.wrapped
    SparseVirtualTensor.__torch_dispatch__ = staticmethod(layouts.dispatch)
    VirtualTensor.__torch_dispatch__ = staticmethod(dispatch)
    factories.register(plans, copies, dispatch)
    cuda_decompositions.register(plans)
    losses.register(plans)
    rnn.register(plans)
    autocast.register()
    # Without this, optimizers take the per-tensor path that no GPU would take.
    _foreach_supported_types.insert(0, VirtualTensor)  # found at once
    VirtualTensor.plan_cache = plans
