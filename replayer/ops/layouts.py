# mypy: allow-untyped-calls
"""Stores sparse tensors (COO, CSR and others) and nested tensors of the virtual GPU in CPU memory.

    a = torch.sparse_coo_tensor(indices, values, (3, 3)).cuda()
    a @ x       # computed on the CPU, with the recorded time; with --values compute, the values are correct too

Sparse ops run on the CPU, because the shapes of their results depend on values.

Note [Nested tensors]
    The dispatch keys of `NestedVirtualTensor` make PyTorch choose the kernels and gradients of nested tensors. C++ code reads
    sizes with `sym_size`, which returns -1 if a size differs between entries. The sizes, strides and offsets of the entries are
    CPU tensors, as on a GPU.

Note [Parts of a sparse tensor]
    The indices and the values of a sparse tensor have separate memory on the virtual GPU. Therefore, `values()` is a view of
    the sparse tensor. The dictionary `parts` maps each CPU storage to this memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch.utils._pytree import tree_leaves

from replayer.errors import NotEmulated
from replayer.op_signature import OpSignature
from replayer.ops import kept_library, without_override_warnings
from replayer.ops.cpu.wider_dtypes import in_wider_dtypes, may_be_wider
from replayer.ops.host_call import HostCall
from replayer.state import computing, gpu
from replayer.tensor.allocation import Allocation, allocate
from replayer.tensor.planning import mixed_devices
from replayer.tensor.planning.cuda_dtypes import require_sparse_kernel
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.planning.shape_inference import launches, on_device, writes_of
from replayer.tensor.tensor import VirtualTensor, printed_as
from replayer.tensor.tensor_meta import BACKEND, is_virtual, on_one_device
from replayer.tensor.values.known_values import bytes_of
from replayer.torch_types import TorchAny, TorchFunction

aten, prim = torch.ops.aten, torch.ops.prim
_wrap: TorchAny = torch.Tensor._make_wrapper_subclass
_set_data: TorchAny = torch._C.TensorBase.data.__set__  # type: ignore[attr-defined]


class SparseVirtualTensor(VirtualTensor):  # type: ignore[metaclass]
    host: torch.Tensor
    index: int  # type: ignore[assignment]
    parts: dict[int, Allocation]  # host storage -> device memory

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.index)

    def get_device(self) -> int:
        return self.index

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        return self.host.layout

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        return self.host.layout is torch.sparse_csr

    def on_same_memory(self) -> VirtualTensor:
        return self

    def new(self, indices: torch.Tensor, values: TorchAny, size: TorchAny) -> torch.Tensor:  # type: ignore[override]
        """PyTorch's optimizers call this method."""
        return torch.sparse_coo_tensor(indices, values, size)

    def untyped_storage(self) -> TorchAny:
        raise NotImplementedError("Cannot access storage of SparseTensorImpl")

    def data_ptr(self) -> int:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    def __repr__(self, *, tensor_contents: TorchAny = None) -> str:  # type: ignore[override]
        return printed_as(self, self.host, tensor_contents)

    def __deepcopy__(self, memo: dict[int, TorchAny]) -> TorchAny:
        return memo.setdefault(id(self), self.detach().clone().requires_grad_(self.requires_grad))

    def __reduce_ex__(self, protocol: TorchAny) -> TorchAny:
        return torch.Tensor._reduce_ex_internal(self, protocol)


SparseVirtualTensor.__module__, SparseVirtualTensor.__name__, SparseVirtualTensor.__qualname__ = "torch", "Tensor", "Tensor"


class NestedVirtualTensor(SparseVirtualTensor):
    """Represents a nested tensor on the virtual GPU. See Note [Nested tensors]."""

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return self.host.shape

    def size(self, dim: int | None = None) -> TorchAny:
        return self.host.size() if dim is None else self.host.size(dim)

    def __repr__(self, *, tensor_contents: TorchAny = None) -> str:  # type: ignore[override]
        shown = ",\n".join("  " + repr(entry).replace("\n", "\n  ") for entry in self.detach().unbind())
        suffix = f", grad_fn=<{type(self.grad_fn).__name__}>" if self.grad_fn is not None else ""
        return f"nested_tensor([\n{shown}\n]{suffix or (', requires_grad=True' if self.requires_grad else '')})"


NestedVirtualTensor.__module__, NestedVirtualTensor.__name__, NestedVirtualTensor.__qualname__ = "torch", "Tensor", "Tensor"


class _SplitNested(torch.autograd.Function):
    @staticmethod
    def forward(ctx: TorchAny, op: TorchAny, nested: torch.Tensor, *arguments: TorchAny) -> TorchAny:
        with torch._C._AutoDispatchBelowAutograd():
            parts = tuple(op(nested, *arguments))
        ctx.set_materialize_grads(False)
        ctx.dim = arguments[1] if parts and parts[0].is_nested else None
        ctx.shapes = [part.host._nested_tensor_size().tolist() if part.is_nested else [part.shape] for part in parts]
        ctx.options = {"dtype": nested.dtype, "device": nested.device}
        return parts

    @staticmethod
    def backward(ctx: TorchAny, *gradients: TorchAny) -> TorchAny:
        entries: TorchAny = [
            [torch.zeros(shape, **ctx.options) for shape in shapes]
            if gradient is None
            else gradient.unbind()
            if gradient.is_nested
            else [gradient]
            for gradient, shapes in zip(gradients, ctx.shapes, strict=True)
        ]
        if ctx.dim is not None:
            entries = [[torch.cat(row, ctx.dim - (ctx.dim > 0))] for row in zip(*entries, strict=True)]
        made = torch.nested.as_nested_tensor([entry for of_part in entries for entry in of_part])
        return None, made, *[None] * (len(ctx.needs_input_grad) - 2)


_OF_ENTRIES = frozenset((
    aten._nested_tensor_size.default, aten._nested_tensor_strides.default, aten._nested_tensor_storage_offsets.default,
))  # fmt: skip
_READ_BY_CPP: dict[TorchAny, Callable[[torch.Tensor], TorchAny]] = {
    prim.layout.default: lambda host: host.layout,
    aten.dim.default: torch.Tensor.dim,
    aten.sym_numel.default: torch.Tensor.numel,
    aten.is_contiguous.default: torch.Tensor.is_contiguous,
}


def _sizes(nested: torch.Tensor) -> list[int]:
    columns = nested._nested_tensor_size().t().tolist()
    return [nested.size(0), *(column[0] if len(set(column)) == 1 else -1 for column in columns)]


# ops that have a CUDA kernel for sparse or nested tensors, but no CPU kernel
_ONLY_ON_CUDA = frozenset((
    aten.bmm.default, aten.bmm.out, aten.baddbmm.default, aten.baddbmm.out, aten._spsolve.default,
    aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
))  # fmt: skip
_WITH_DENSE = (aten.add.Tensor, aten.mul.Tensor)


def _nested_and_dense(func: TorchAny, nested: torch.Tensor, dense: TorchAny, *_: TorchAny) -> torch.Tensor | None:
    """Add a dense tensor to a nested tensor, or multiply the two tensors, like PyTorch's `NestedTensor_elementwise_Tensor`
    (ATen/native/nested/NestedTensorBinaryOps.cpp)."""
    is_dense = isinstance(dense, torch.Tensor) and not dense.is_nested
    if not (is_dense and nested.is_nested and nested.dtype is dense.dtype):
        return None
    sizes, shape = _sizes(nested), list(dense.shape)
    of_rows = len(sizes) in (2, 3) and shape == [sizes[0], 1, *sizes[2:]]
    of_channels = len(sizes) == 4 and shape == [sizes[1], 1, 1]
    if not (of_rows or of_channels):
        return None
    others = dense.unbind() if of_rows else [dense] * sizes[0]
    return torch.nested.as_nested_tensor([func(one, other) for one, other in zip(nested.unbind(), others, strict=True)])


class Layouts:
    def __init__(self, plans: PlanCache) -> None:
        self._plans = plans

    def dispatch(self, func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None) -> TorchAny:
        if func in _READ_BY_CPP:
            return _READ_BY_CPP[func](args[0].host)
        if func is aten.sym_size.default:
            return _sizes(args[0].host)
        if func is prim.device.default:
            return torch.device(BACKEND, args[0].index)
        composite = self._plans.composite(func)
        if composite is not None and not any(isinstance(leaf, NestedVirtualTensor) for leaf in tree_leaves((args, kwargs))):
            return composite(*args, **(kwargs or {}))
        return self.run(func, args, kwargs or {})

    def run(self, func: TorchAny, args: TorchAny, kwargs: TorchAny) -> TorchAny:
        run = mixed_devices.runner(func, args, kwargs)
        if run is not None:
            return run(func, args, kwargs)
        require_sparse_kernel(func, args)
        call = _SparseCall(self._plans)
        writes = writes_of(func, args, kwargs)
        written: TorchAny = args[0] if args and writes == [(0, False)] else None
        if is_virtual(written, VirtualTensor) and not computing():
            written.allocation.known = None
            result, index = written, written.tensor_meta.index
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, torch.Tensor):
                    call.add_operand(leaf)
        else:
            host_args, host_kwargs = list(map(call.of, args)), call.named(func, kwargs)
            try:
                host = _nested_and_dense(func, *host_args) if func in _WITH_DENSE else None
                if host is None:
                    host = func(*host_args, **host_kwargs)
            except RuntimeError as refused:
                if may_be_wider(func, host_args, host_kwargs, refused):
                    host = in_wider_dtypes(func, func, host_args, host_kwargs)
                elif func not in _ONLY_ON_CUDA:
                    raise on_one_device(refused) from None
                else:
                    advice = "PyTorch has no CPU version of this op; use dense tensors"
                    raise NotEmulated(f"{func._schema.name} of a sparse or nested tensor", advice) from refused
            if self._plans.leaves_device(kwargs):
                return _to_host(args[0], host)
            if func in _OF_ENTRIES:
                return host
            index = on_device(kwargs.get("device"), call.device(gpu().current.device()))
            # see Note [Views in inference mode] in tensor/allocation.py
            with torch.inference_mode(args[0].is_inference()) if func.is_view else nullcontext():
                result = call.back(host, index)
            if result is written and isinstance(written, SparseVirtualTensor):
                self._adopt_changes(written, call)
        does_something = bool(call.outputs or writes)
        gpu().launches.launch(call.signature(func._schema.name, tuple(call.outputs), launches(func, does_something)), index)
        return result

    def _adopt_changes(self, written: SparseVirtualTensor, call: HostCall) -> None:
        made = self.wrapped(written.host, written.index, call.allocations, known=call.known)
        if not written.host.is_nested and written.shape != made.shape:
            _set_data(written, made)
        written.parts = made.parts
        for part in _parts(written.host):
            storage = part.untyped_storage()
            allocation = made.parts[storage._cdata]
            if allocation.size_bytes != storage.nbytes():
                allocation.exchange(allocate(gpu(), written.index, storage.nbytes()))
                allocation.known = bytes_of(storage) if call.known else None

    def wrapped(self, host: torch.Tensor, index: int, parts: dict[int, Allocation], *, known: bool) -> SparseVirtualTensor:
        coo = host.layout is torch.sparse_coo
        layout = host.layout if coo else torch.strided
        place = torch.device(BACKEND, index)
        made: TorchAny
        if host.is_nested:
            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.NestedTensor).add(torch._C.DispatchKey.AutogradNestedTensor)
            how = None, host.dtype, torch.strided, place, False, False, "sizes", False, False, keys
            made = _wrap(NestedVirtualTensor, (0,), (0,), 0, *how)
        else:
            made = _wrap(SparseVirtualTensor, host.shape, None, None, None, host.dtype, layout, place, dispatch_layout=not coo)
        made.host, made.index, made.parts = host, index, {}
        for part in _parts(host):
            storage = part.untyped_storage()
            allocation = parts.get(storage._cdata)
            if allocation is None:
                allocation = allocate(gpu(), index, storage.nbytes())
                allocation.known = bytes_of(storage) if known else None
            made.parts[storage._cdata] = allocation
        return made  # type: ignore[no-any-return]


def register() -> None:
    library = kept_library()
    with without_override_warnings():
        for op in (aten.reshape.default, aten.reshape_as.default):
            library.impl(op.name(), partial(_reshape, op), "AutogradNestedTensor")
        for op, replacement in _REPLACEMENTS.items():
            kernel = torch.library.get_kernel(op, "AutogradNestedTensor")
            library.impl(op.name(), partial(_replaced, replacement, kernel), "AutogradNestedTensor", with_keyset=True)


def _replaced(
    replacement: TorchFunction, kernel: TorchAny, keys: TorchAny, nested: torch.Tensor, *args: TorchAny, **options: TorchAny
) -> TorchAny:
    result = replacement(nested, *args, **options)
    return kernel.call_boxed(keys, nested, *args, **options) if result is None else result


def _parts_of(op: TorchAny, nested: torch.Tensor, *arguments: TorchAny) -> TorchAny:
    return list(_SplitNested.apply(op, nested, *arguments)) if isinstance(nested, NestedVirtualTensor) else None


def _moved(
    nested: torch.Tensor, *, dtype: torch.dtype | None = None, device: torch.device | None = None, **options: TorchAny
) -> TorchAny:
    is_host = nested.layout is torch.strided and not isinstance(nested, NestedVirtualTensor)
    if not is_host or device is None or device.type != BACKEND:
        return None
    return torch.nested.as_nested_tensor([entry.to(device, dtype or nested.dtype) for entry in nested.unbind()])


_REPLACEMENTS: dict[TorchAny, TorchFunction] = {
    aten.unbind.int: partial(_parts_of, aten.unbind.int),
    aten.split_with_sizes.default: partial(_parts_of, aten.split_with_sizes.default),
    aten._to_copy.default: _moved,
}


def _reshape(op: torch._ops.OpOverload, source: torch.Tensor, shape: TorchAny) -> TorchAny:
    if not isinstance(source, NestedVirtualTensor):
        return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutogradNestedTensor, source, shape)
    view = torch.Tensor.view if op is aten.reshape.default else torch.Tensor.view_as
    try:
        return view(source if source.is_contiguous() else source.contiguous(), shape)
    except RuntimeError as error:
        raise RuntimeError(str(error).replace("view", "reshape")) from None


def _to_host(source: SparseVirtualTensor, host: torch.Tensor) -> torch.Tensor:
    for allocation in source.parts.values():
        size_bytes = allocation.size_bytes
        if size_bytes:
            signature = OpSignature("aten::copy_", ((size_bytes,),) * 2, ("uint8",) * 2, direction="d2h")
            gpu().launches.copy(signature, "d2h", size_bytes, source.index, True)
    return host.clone() if host is source.host else host


def moved_to(host: torch.Tensor, device: TorchAny, wrap: TorchAny) -> TorchAny:
    parts: TorchAny = _parts(host)
    there = {part.untyped_storage()._cdata: part.to(device).allocation for part in parts}
    return wrap(host.clone(), device.index or 0, there, known=True)


def _parts(host: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if host.is_nested:
        return (aten.values(host),)
    if host.layout is torch.sparse_coo:
        return aten._indices(host), aten._values(host)
    if host.layout in (torch.sparse_csr, torch.sparse_bsr):
        return aten.crow_indices(host), aten.col_indices(host), aten.values(host)
    if host.layout in (torch.sparse_csc, torch.sparse_bsc):
        return aten.ccol_indices(host), aten.row_indices(host), aten.values(host)
    raise NotEmulated(f"a tensor of layout {host.layout}", "use a strided or sparse one")


class _SparseCall(HostCall):
    def plain(self, value: TorchAny) -> torch.Tensor:
        host: torch.Tensor = value
        if isinstance(value, SparseVirtualTensor):
            host = value.host
            self.devices[value.index] = None
            self.allocations |= value.parts
            self.known &= all(part.known is not None or not part.size_bytes for part in value.parts.values())
        elif isinstance(value, VirtualTensor):
            return self.virtual(value, (0, -1))
        self.given.append((value, host))
        return host
