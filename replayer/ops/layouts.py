# mypy: allow-untyped-calls
"""Sparse tensors (COO, CSR and its kin) on the virtual GPU: a tensor of that layout on the host, with memory on the device.

Where the results of an op depend on how many elements there are, and few ops have a shape rule, the CPU runs the op: on the
real indices, since adjacency and positions mostly come from the host, and on zeros for what is not known.

    a = torch.sparse_coo_tensor(indices, values, (3, 3)).cuda()
    a @ x       # the CPU tells the shape, the recording the time; with --values compute the numbers are real too

Note [Parts of a sparse tensor]
    Indices and values have an allocation each, found by their storage on the host, so `values()` is a view of the tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from replayer.errors import NotEmulated
from replayer.op_signature import OpSignature
from replayer.state import computing, gpu
from replayer.tensor.allocation import Allocation, allocate, make
from replayer.tensor.known_values import known_values, payload_of, set_known_values
from replayer.tensor.plan_cache import PlanCache
from replayer.tensor.shape_inference import writes_of
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.tensor_meta import BACKEND, OURS

aten, prim = torch.ops.aten, torch.ops.prim
_wrap: Any = torch.Tensor._make_wrapper_subclass


class SparseVirtualTensor(VirtualTensor):  # type: ignore[metaclass]
    """`host` is the tensor on the host, `parts` has the allocations of its parts by their storages."""

    host: torch.Tensor
    index: int  # type: ignore[assignment]
    parts: dict[int, Allocation]

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

    def new(self, indices: Any, values: Any, size: Any) -> Any:  # type: ignore[override]
        """The legacy constructor, by which optimizers make what is shaped as a sparse gradient."""
        return torch.sparse_coo_tensor(indices, values, size)

    def untyped_storage(self) -> Any:
        raise NotImplementedError("Cannot access storage of SparseTensorImpl")

    def data_ptr(self) -> int:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.host).replace("size=", f"device='{self.device}', size=", 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return memo.setdefault(id(self), self.detach().clone().requires_grad_(self.requires_grad))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch.Tensor._reduce_ex_internal(self, protocol)


SparseVirtualTensor.__module__, SparseVirtualTensor.__name__, SparseVirtualTensor.__qualname__ = "torch", "Tensor", "Tensor"


class Layouts:
    """The `__torch_dispatch__` of sparse tensors, and what makes them of strided ones."""

    def __init__(self, plans: PlanCache) -> None:
        self._plans = plans

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is prim.layout.default:
            return args[0].host.layout
        if func is prim.device.default:
            return torch.device(BACKEND, args[0].index)
        composite = self._plans.composite(func)
        if composite is not None:
            return composite(*args, **(kwargs or {}))
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an op that takes or makes a tensor that is not strided."""
        call = _HostCall(self._plans)
        writes = writes_of(func, args, kwargs)
        written = args[0] if args and writes == [(0, False)] else None
        if type(written) is VirtualTensor and not computing():  # `parameter.add_(sparse_gradient)`
            written.allocation.known = None
            result = written
            call.note((args, kwargs))
        else:
            try:
                host = func(*call.of(args), **call.of(kwargs))
            except NotImplementedError as missing:
                advice = "its CPU form is missing in PyTorch; use dense tensors"
                raise NotEmulated(f"{func._schema.name} of a sparse tensor", advice) from missing
            if self._plans.leaves_device(kwargs):
                return _to_host(args[0], host)
            result = call.back(host)
        shapes, dtypes = tuple(shape for shape, _ in call.seen), tuple(dtype for _, dtype in call.seen)
        launches = bool(call.outputs or writes)
        gpu().launch(OpSignature(func._schema.name, shapes, dtypes, tuple(call.outputs), launches), call.index)
        return result

    def wrapped(self, host: torch.Tensor, index: int, parts: dict[int, Allocation], *, known: bool) -> SparseVirtualTensor:
        """A sparse tensor of the host on device `index`; parts that have no memory there get some.

        `known`: its numbers are those of the script."""
        coo = host.layout is torch.sparse_coo
        layout = host.layout if coo else torch.strided
        place = torch.device(BACKEND, index)
        made: Any = _wrap(SparseVirtualTensor, host.shape, None, None, None, host.dtype, layout, place, dispatch_layout=not coo)
        made.host, made.index, made.parts = host, index, {}
        for part in _parts(host):
            storage = part.untyped_storage()
            allocation = parts.get(storage._cdata)
            if allocation is None:
                allocation = allocate(gpu(), index, storage.nbytes())
                allocation.known = torch.empty(0, dtype=torch.uint8).set_(storage) if known else None
            made.parts[storage._cdata] = allocation
        return made  # type: ignore[no-any-return]


def _allocation_on(part: Any, device: torch.device) -> Allocation:
    allocation: Allocation = part.to(device).allocation
    return allocation


def _to_host(source: SparseVirtualTensor, host: torch.Tensor) -> torch.Tensor:
    """`source.cpu()`: its parts are copied one by one."""
    for allocation in source.parts.values():
        size_bytes = allocation.size_bytes
        if size_bytes:
            signature = OpSignature("aten::copy_", ((size_bytes,),) * 2, ("uint8",) * 2, direction="d2h")
            gpu().copy(signature, "d2h", size_bytes, source.index, True)
    return host.clone() if host is source.host else host


def moved(host: torch.Tensor, device: Any, wrap: Any) -> Any:
    """A compressed sparse tensor of the host on a device; its parts are copied one by one. (COO comes apart in PyTorch.)"""
    there = {part.untyped_storage()._cdata: _allocation_on(part, device) for part in _parts(host)}
    return wrap(host.clone(), device.index or 0, there, known=True)


def _parts(host: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The strided tensors that a sparse one is made of."""
    if host.layout is torch.sparse_coo:
        return aten._indices(host), aten._values(host)
    if host.layout in (torch.sparse_csr, torch.sparse_bsr):
        return aten.crow_indices(host), aten.col_indices(host), aten.values(host)
    if host.layout in (torch.sparse_csc, torch.sparse_bsc):
        return aten.ccol_indices(host), aten.row_indices(host), aten.values(host)
    raise NotEmulated(f"a tensor of layout {host.layout}", "use a strided or sparse one")


class _HostCall:
    """One call's arguments on the host, and its results as virtual tensors."""

    def __init__(self, plans: PlanCache) -> None:
        self._plans = plans
        self._given: list[tuple[Any, torch.Tensor]] = []
        self._parts: dict[int, Allocation] = {}
        self._known = True
        self.index = gpu().current_device()
        self.seen: list[tuple[tuple[int, ...], str]] = []
        self.outputs: list[tuple[int, ...]] = []

    def note(self, value: Any) -> None:
        """See an argument that is not run on."""
        if isinstance(value, torch.Tensor):
            self.seen.append((tuple(value.shape), str(value.dtype).removeprefix("torch.")))
            self.index = value.get_device() if value.is_cuda else self.index
        elif isinstance(value, dict):
            self.note(list(value.values()))
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.note(item)

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self.note(value)
            host = self._on_host(value)
            self._given.append((value, host))
            return host
        if isinstance(value, dict):
            return {name: self.of(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.of(item) for item in value]
        return torch.device("cpu") if isinstance(value, torch.device) and value.type in OURS else value

    def _on_host(self, value: Any) -> torch.Tensor:
        if isinstance(value, SparseVirtualTensor):
            self._parts |= value.parts
            self._known &= all(part.known is not None or not part.size_bytes for part in value.parts.values())
            return value.host
        if not isinstance(value, VirtualTensor):
            return value  # type: ignore[no-any-return]
        known = payload_of(value) if computing() else known_values(value)
        if isinstance(known, torch.Tensor):
            self._parts[known.untyped_storage()._cdata] = value.allocation
            return known
        self._known &= known is not None
        return torch.full(value.shape, known or 0, dtype=value.dtype, device="cpu")

    def back(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self.back(item) for item in value]
        if not isinstance(value, torch.Tensor):
            return value
        for given, host in self._given:
            if host is value:
                return given
        layouts = Layouts(self._plans)
        if value.layout is not torch.strided:
            made = layouts.wrapped(value, self.index, self._parts, known=self._known)
            new = made.parts.keys() - self._parts.keys()
            self.outputs += [tuple(value.shape)] if new else []
            return made
        meta = self._plans.metas.like(value, self.index)
        allocation = self._parts.get(value.untyped_storage()._cdata)
        if allocation is None:
            allocation = allocate(gpu(), self.index, value.untyped_storage().nbytes())
            if computing():
                allocation.known = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
            self.outputs.append(tuple(value.shape))
        result = make(meta, allocation)
        if allocation.known is None and self._known:
            set_known_values(result, value)
        return result
