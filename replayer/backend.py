"""Registers the virtual GPU with PyTorch. No GPU driver is needed.

    backend.register()
    state.start(virtual_gpu)
    torch.zeros(3, device="cuda")
"""

from __future__ import annotations

import gc
from functools import partial
from typing import NoReturn

import torch
from torch.optim.optimizer import _foreach_supported_types
from torch.utils.backend_registration import _DummyDeviceGuard

from replayer import state
from replayer.ops import autocast, factories, gemm
from replayer.ops import layouts as other_layouts
from replayer.ops.composite import cuda_decompositions, rnn
from replayer.ops.copies import Copies
from replayer.ops.copy_on_write import lazy_clone
from replayer.ops.cpu.cpu_compute import CpuCompute
from replayer.ops.data_dependent import DataDependentOps
from replayer.ops.host_reads import HostReads
from replayer.ops.known_contents import KnownContents
from replayer.ops.layouts import Layouts, SparseVirtualTensor
from replayer.tensor.dispatch import dispatcher
from replayer.tensor.planning.mixed_devices import checked
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.tensor import ACTUAL_CLASS, VirtualTensor, alias, view_as_dtype
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import PATCHES, insert_first, patch_around

# PyTorch rejects "cuda" as the name of a new device type, but accepts "CUDA" and converts it to lower case.
_NAME = "CUDA"


_aten = torch.ops.aten
_WITH_SEVERAL_TENSORS = (
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten.masked_select.default,
    _aten.bincount.default,
    _aten.equal.default,
    _aten.allclose.default,
    _aten._pack_padded_sequence.default,
)


class _Hook(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return registered()

    def has_primary_context(self, device: int) -> bool:
        return False

    def is_built(self) -> bool:
        return registered()


def _key_for_device(key_for_device: TorchFunction, device: str) -> str:
    """Return the same keys as PyTorch with CUDA, because the messages of ops from `torch.library.custom_op` contain keys."""
    return "CUDA" if device == "cuda" else str(key_for_device(device))


def registered() -> bool:
    return "plan_cache" in vars(VirtualTensor)


def register(*, compute: bool = False) -> None:
    """Register the virtual device with PyTorch. With `compute`, tensors have real values."""
    if registered():
        return
    # A process can rename PyTorch's custom device type only once.
    if torch._C._get_privateuse1_backend_name() != _NAME.lower():
        torch._C._rename_privateuse1_backend(_NAME)
        torch._C._acc.register_python_privateuseone_hook(_Hook())
        torch._C._acc.register_python_privateuseone_device_guard(_DummyDeviceGuard())
    # Without this patch, a script's loop over all device types would visit "cuda" twice.
    PATCHES.set(torch._C, "_get_privateuse1_backend_name", lambda: "privateuseone")
    patch_around(torch._C, _dispatch_key_for_device=_key_for_device)
    plans = PlanCache(VirtualTensor)
    dispatch, run = dispatcher(plans)
    reads = HostReads(plans)
    copies = Copies(plans, reads)
    contents = KnownContents(plans, run)
    by_value = DataDependentOps(plans, contents.index)
    for handlers in (copies.handlers(), contents.handlers(), by_value.handlers(), rnn.handlers(run), gemm.handlers(plans, run)):
        plans.specials |= handlers
    plans.specials |= reads.fill_handlers(run)
    for op in _WITH_SEVERAL_TENSORS:
        plans.specials[op] = checked(op, plans.specials[op])
    plans.specials[torch.ops.aten.alias.default] = alias
    plans.specials[torch.ops.aten.view.dtype] = partial(view_as_dtype, run)
    plans.specials[torch.ops.aten._lazy_clone.default] = lazy_clone
    # Return False, so that nn.TransformerEncoder uses ordinary tensors instead of nested tensors.
    plans.specials[torch.ops.aten._nested_tensor_from_mask_left_aligned.default] = lambda *_: False
    if compute:
        computing = CpuCompute(plans)
        dispatch, copies = computing.dispatch, computing.copies
        state.STATE.computing = True
    layouts = Layouts(plans)
    plans.run_other_layout, plans.wrap_other_layout = layouts.run, layouts.wrapped
    PATCHES.set(SparseVirtualTensor, "__torch_dispatch__", staticmethod(layouts.dispatch))
    PATCHES.set(VirtualTensor, "__torch_dispatch__", staticmethod(dispatch))
    factories.register(plans, copies, dispatch)
    other_layouts.register()
    cuda_decompositions.register(plans)
    rnn.register(plans)
    autocast.register(plans)
    # PyTorch's optimizers use kernels for lists of tensors only for the types in `_foreach_supported_types`.
    insert_first(_foreach_supported_types, VirtualTensor)
    PATCHES.set(VirtualTensor, "plan_cache", plans)


def unregister() -> None:
    _stop_tensors()
    for library in state.STATE.kept:
        library._destroy()  # type: ignore[no-untyped-call]


class StoppedTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None) -> NoReturn:
        raise _stopped()

    @classmethod  # PyTorch's C++ code calls this function
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None
    ) -> NoReturn:
        raise _stopped()

    def __repr__(self, *, tensor_contents: TorchAny = None) -> str:  # type: ignore[override]
        return "<tensor of a stopped virtual GPU>"


def _stopped() -> RuntimeError:
    return RuntimeError(
        "this tensor was on a virtual GPU that was stopped. Copy tensors with .cpu() before the virtual GPU is stopped."
    )


def _stop_tensors() -> None:
    # `isinstance` prints warnings for some torch objects.
    tensors: list[TorchAny] = [thing for thing in gc.get_objects() if issubclass(type(thing), VirtualTensor)]
    for tensor in tensors:
        ACTUAL_CLASS.__set__(tensor, StoppedTensor)
