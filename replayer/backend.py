"""Makes torch know the virtual device: the one call that everything else of the replayer relies on.

    backend.register()
    state.start(virtual_gpu)
    torch.zeros(3, device="cuda")

Nothing here touches a driver, and a process that never asks for "cuda" pays nothing but this registration.
"""

from __future__ import annotations

import torch
from torch.optim.optimizer import _foreach_supported_types
from torch.utils import backend_registration

from replayer import state
from replayer.ops import autocast, cuda_decompositions, factories, rnn
from replayer.ops.copies import Copies
from replayer.ops.cpu_compute import CpuCompute
from replayer.ops.data_dependent import DataDependentOps
from replayer.ops.gemm import MatrixProducts
from replayer.ops.known_contents import KnownContents
from replayer.ops.layouts import Layouts, SparseVirtualTensor
from replayer.tensor.dispatch import dispatcher
from replayer.tensor.plan_cache import PlanCache
from replayer.tensor.tensor import VirtualTensor, alias
from replayer.tensor.tensor_meta import ACCELERATOR


class _Module:
    """The module `torch.vcuda` that torch expects of a registered backend. Scripts see `torch.cuda` instead."""

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
    backend_registration._setup_privateuseone_for_python_backend(rename=ACCELERATOR, backend_module=_Module(), hook=_Hook())
    plans = PlanCache(VirtualTensor)
    dispatch, run = dispatcher(plans)
    copies = Copies(plans, VirtualTensor)
    contents = KnownContents(plans, VirtualTensor, run)
    by_value = DataDependentOps(plans, VirtualTensor, contents.index)
    for ops in (copies, contents, by_value, rnn.CudnnRnnOps(plans, run), MatrixProducts(plans, run)):
        plans.specials |= ops.handlers()
    plans.specials[torch.ops.aten.alias.default] = alias
    plans.specials[torch.ops.aten._nested_tensor_from_mask_left_aligned.default] = lambda *_: False  # so nobody nests
    if compute:
        computing = CpuCompute(plans, VirtualTensor)
        dispatch, copies = computing.dispatch, computing.copies
        state.set_computing()
    layouts = Layouts(plans)
    plans.run_other_layout, plans.wrap_other_layout = layouts.run, layouts.wrapped
    SparseVirtualTensor.__torch_dispatch__ = staticmethod(layouts.dispatch)
    VirtualTensor.__torch_dispatch__ = staticmethod(dispatch)
    factories.register(plans, copies, dispatch)
    cuda_decompositions.register(plans)
    rnn.register(plans)
    autocast.register()
    # Without this, optimizers take the per-tensor path that no GPU would take.
    _foreach_supported_types.append(VirtualTensor)
    VirtualTensor.plan_cache = plans
