# mypy: allow-untyped-calls
"""Registers the kernels that create tensors on the virtual GPU, such as `torch.empty(..., device="cuda")`.

    register(plans, copies, dispatch)
    torch.empty(2, 3, device="cuda")    # VirtualTensor
"""

from __future__ import annotations

from functools import partial

import torch

from replayer import state
from replayer.errors import NotEmulated, require
from replayer.ops import kept_library, op_named, without_override_warnings
from replayer.ops.copies import Copies
from replayer.tensor.allocation import KNOWN_BYTES, allocate, make
from replayer.tensor.device_args import index_of
from replayer.tensor.planning.cuda_dtypes import no_kernel, scalar_type
from replayer.tensor.planning.deterministic import fills_memory, value_of_filled
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.planning.shape_inference import QUANTISED
from replayer.tensor.tensor_meta import BACKEND
from replayer.tensor.values.known_values import set_known_values
from replayer.tensor.values.value_rules import EXACT_DTYPES, fill_with_zeros
from replayer.torch_types import Op, TorchAny, TorchFunction

KEYS = ("CUDA", "PrivateUse1", "Lazy")
QUANTISED_FACTORIES = "empty.memory_format empty_quantized _empty_affine_quantized".split()
SPARSE_FACTORIES = {"Sparse": ("empty.memory_format", "_sparse_coo_tensor_with_dims"), "SparseCsr": ("empty.memory_format",)}


class Factories:
    def __init__(self, plans: PlanCache, dispatch: TorchFunction) -> None:
        self._metas, self._dispatch = plans.metas, dispatch
        self._wrap_sparse = plans.wrap_other_layout

    def empty(
        self,
        size: TorchAny,
        dtype: torch.dtype | None = None,
        layout: TorchAny = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> TorchAny:
        require(not pin_memory, "Only dense CPU tensors can be pinned")
        shape = tuple(size)
        kind = dtype or torch.get_default_dtype()
        if kind is torch.int32 and state.STATE.makes_reducer:
            return reducer_map(shape, index_of(device))
        if memory_format in (None, torch.contiguous_format):
            meta = self._metas.contiguous(shape, kind, index_of(device))
        else:
            strided = torch.empty(shape, dtype=kind, device="meta", memory_format=memory_format)
            meta = self._metas.like(strided, index_of(device))
        made = make(meta, allocate(state.gpu(), meta.index, meta.extent_bytes))
        if kind in EXACT_DTYPES and meta.size_bytes <= KNOWN_BYTES:
            fill_with_zeros(made)
        return self._filled(made)

    def empty_strided(
        self,
        size: TorchAny,
        stride: TorchAny,
        dtype: torch.dtype | None = None,
        layout: TorchAny = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> TorchAny:
        require(not pin_memory, "Only dense CPU tensors can be pinned")
        sizes, strides = len(size), len(stride)
        require(sizes == strides, f"dimensionality of sizes ({sizes}) must match dimensionality of strides ({strides})")
        meta = self._metas.of(tuple(size), tuple(stride), 0, dtype or torch.get_default_dtype(), index_of(device))
        return self._filled(make(meta, allocate(state.gpu(), meta.index, meta.extent_bytes)))

    def _filled(self, made: TorchAny) -> TorchAny:
        if fills_memory():
            self._dispatch(torch.ops.aten.fill_.Scalar, (), (made, value_of_filled(made.dtype)), {})
        if made.dtype is torch.complex32:
            torch.empty(0, dtype=torch.complex32, device="meta")  # PyTorch warns once that this dtype is experimental
        return made

    def zeros(self, size: TorchAny, **options: TorchAny) -> TorchAny:
        made = self.empty(size, options.get("dtype"), device=options.get("device"))
        fill_with_zeros(made)
        return made

    def kaiser_window(self, length: int, *shape: TorchAny, **options: TorchAny) -> torch.Tensor:
        device = torch.device(BACKEND, index_of(options.pop("device", None)))
        return torch.kaiser_window(length, *shape, device="cpu", dtype=options.get("dtype")).to(device)

    def indices(
        self, op: TorchAny, row: int, col: int, offset: int = 0, dtype: torch.dtype | None = None, **options: TorchAny
    ) -> TorchAny:
        values = op(row, col, offset, device="cpu").to(dtype or torch.int64)
        if values.numel() and values.dtype not in (torch.int64, torch.int32):
            raise no_kernel(f"{op.__name__}_cuda", scalar_type(values.dtype))
        made = self.empty(values.shape, values.dtype, device=options.get("device"))
        set_known_values(made, values)
        return made

    def sparse(self, op: Op, *args: TorchAny, device: torch.device | None = None, **options: TorchAny) -> TorchAny:
        return self._wrap_sparse(op(*args, device=torch.device("cpu"), **options), index_of(device), {}, known=True)


def reducer_map(shape: tuple[int, ...], index: int) -> torch.Tensor:
    """Create the tensor in which DistributedDataParallel marks the parameters that were used in a step."""
    # see Note [The map of used parameters] in process_group.py
    made: TorchAny = torch.empty(shape, dtype=torch.int32, device="cpu")
    made.reducer_device = index
    return made  # type: ignore[no-any-return]


def _refuse_quantised(*_args: TorchAny, **_options: TorchAny) -> None:
    raise NotEmulated(*QUANTISED)


def register(plans: PlanCache, copies: Copies, fallback: TorchFunction) -> None:
    made = Factories(plans, fallback)

    def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        return copies.copy_(target, source, non_blocking)

    def resize_(tensor: torch.Tensor, size: TorchAny, memory_format: torch.memory_format | None = None) -> TorchAny:
        options = {} if memory_format is None else {"memory_format": memory_format}
        return fallback(torch.ops.aten.resize_.default, (), (tensor, list(size)), options)

    kernels: dict[str, TorchFunction] = {
        "empty.memory_format": made.empty,
        "empty_strided": made.empty_strided,
        "_copy_from": copy_from,
        "_copy_from_and_resize": copy_from,
        "_local_scalar_dense": copies.reads.item,
        "resize_": resize_,
        "_efficientzerotensor": made.zeros,
        "kaiser_window": made.kaiser_window,
        "kaiser_window.periodic": made.kaiser_window,
        "kaiser_window.beta": made.kaiser_window,
        "tril_indices": partial(made.indices, torch.tril_indices),
        "triu_indices": partial(made.indices, torch.triu_indices),
    }
    library = kept_library()
    with without_override_warnings():
        for key in KEYS:
            for name, kernel in kernels.items():
                if key != "Lazy" and not name.startswith(("empty", "tri", "_eff", "kaiser")):
                    continue  # other dispatch keys need kernels only for ops without a tensor argument
                library.impl(name, kernel, key)
        for name in QUANTISED_FACTORIES:
            library.impl(name, _refuse_quantised, "QuantizedPrivateUse1")
        for layout, names in SPARSE_FACTORIES.items():
            for name in names:
                kernel = partial(made.sparse, op_named(name))
                for backend in ("CUDA", "PrivateUse1"):
                    library.impl(name, kernel, layout + backend)
