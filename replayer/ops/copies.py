"""Copies tensors between host and device, and within a device.

    x = torch.ones(3).cuda()   # aten::copy_, h2d, 12 bytes, blocking
    x.cpu()                    # aten::_to_copy, d2h, 12 bytes, blocking; host_reads.py finds the values

The rules follow ATen/native/cuda/Copy.cu.

Note [What the host waits for]
    Without `non_blocking`, PyTorch waits for the stream after each copy between host and device. With `non_blocking`, the host
    waits only for copies of pageable memory ("API synchronization behavior" in the CUDA runtime manual). The host waits until a
    copy to pageable memory ends. For a copy of more than 64 KiB from pageable memory, the host waits during nearly the whole
    copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.parameter import is_lazy

from replayer.cost_model.constants import STAGED_AT_ONCE_BYTES
from replayer.op_signature import OpSignature
from replayer.ops.host_reads import HostReads, known_or_assumed
from replayer.ops.layouts import moved_to
from replayer.ops.pinned_tensors import is_pinned, pinned_empty
from replayer.state import STATE, before_sync, gpu, host_memory
from replayer.tensor.allocation import Content, Matches, Truth, Uniform, allocate, is_kept_on_host, make
from replayer.tensor.device_args import index_of
from replayer.tensor.generators import one_thread
from replayer.tensor.planning.mixed_dtypes import OVERLAPPING, overlap_in_part
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.planning.shape_inference import on_device
from replayer.tensor.tensor_meta import OURS, TensorMeta, is_virtual
from replayer.tensor.values.known_values import fills_allocation, host_values, known_values, set_known_values, writable_values
from replayer.torch_types import TorchAny, TorchFunction
from traces.model.layouts import memory_layout
from traces.model.trace import READ_LIMIT

aten = torch.ops.aten


class Copies:
    def __init__(self, plans: PlanCache, reads: HostReads) -> None:
        self._plans, self._tensor_class = plans, plans.tensor_class
        self.reads = reads

    def handlers(self) -> dict[TorchAny, TorchFunction]:
        return {aten.copy_.default: self.copy_, aten._to_copy.default: self.to_copy, **self.reads.handlers()}

    def copy_(self, target: torch.Tensor, source: torch.Tensor | complex, non_blocking: bool = False) -> torch.Tensor:
        if not isinstance(source, torch.Tensor):  # PyTorch makes a CPU tensor of the number in `x.copy_(1.0)`
            source = torch.tensor(source, dtype=torch.float64 if isinstance(source, float) else None, device="cpu")
        if is_virtual(target, self._tensor_class) and is_virtual(source, self._tensor_class):
            self._on_device(target, source)
            return target
        if not is_lazy(source):  # a parameter of a lazy module has no shape yet
            _require_broadcast(target.shape, source.shape)
        if not is_virtual(target, self._tensor_class):
            self._to_host(target, source, non_blocking)
        else:
            with gpu().launches.copying():
                self._to_device(target, source, non_blocking)
        return target

    def to_copy(
        self,
        source: TorchAny,
        *,
        dtype: torch.dtype | None = None,
        layout: TorchAny = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format | None = None,
    ) -> TorchAny:
        options: dict[str, TorchAny] = {"dtype": dtype or source.dtype, "memory_format": memory_format or torch.preserve_format}
        if device is not None and device.type not in OURS:
            there = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
            there = torch.empty_like(there, **options)
            if device.type != "cpu":
                return torch.empty_strided(there.shape, there.stride(), dtype=there.dtype, device=device)
            make = pinned_empty if non_blocking else torch.empty_strided
            host = make(tuple(there.shape), there.stride(), dtype=there.dtype)
            self._to_host(host, source, non_blocking)
            return host
        if source.layout is not torch.strided:
            return moved_to(source.to(dtype=options["dtype"]), device, self._plans.wrap_other_layout)
        if is_virtual(source, self._tensor_class):
            index = on_device(device, source.tensor_meta.index)
            return self.copy_(self._empty_like(source, index, options), source, non_blocking)
        with gpu().launches.copying():
            target = self._empty_like(source, index_of(device), options)
            self._to_device(target, source, non_blocking)
        return target

    def _empty_like(self, source: TorchAny, index: int, options: dict[str, TorchAny]) -> TorchAny:
        key = ("empty_like", source.tensor_meta, index, options["dtype"], options["memory_format"])
        meta = self._plans.copies.get(key)
        if meta is None:
            here = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
            meta = self._plans.copies[key] = self._plans.metas.like(torch.empty_like(here, **options), index)
        return make(meta, allocate(gpu(), index, meta.extent_bytes))

    def _on_device(self, target: TorchAny, source: TorchAny) -> None:
        here, there = target.tensor_meta, source.tensor_meta
        _require_broadcast(here.shape, there.shape)
        if target.allocation is source.allocation and overlap_in_part(here, there):
            raise RuntimeError(OVERLAPPING)
        if target.allocation is not source.allocation or here is not there:
            self._carry_values(target, source)
        if not here.numel:
            return
        if here.index == there.index:
            signature = self._signature(here, there)
            if target.allocation is not source.allocation or here is not there:
                gpu().launches.launch(signature, here.index)
            return
        gpu().launches.copy_to_peer(self._signature(here, there, "p2p"), here.size_bytes, there.index, here.index)

    def _carry_values(self, target: TorchAny, source: TorchAny) -> None:
        here, there = target.tensor_meta, source.tensor_meta
        known = source.allocation.known
        into, doubt = target.allocation, source.allocation.doubt
        is_kept = type(known) is Uniform or is_kept_on_host(here.shape, here.dtype)
        same_form = (here.dtype, here.is_conj, here.is_neg) == (there.dtype, there.is_conj, there.is_neg)
        if not fills_allocation(target):
            values = host_values(source)
            view = writable_values(target, doubt=doubt) if values is not None and is_kept else None
            if view is not None and values is not None:
                with one_thread():
                    view.copy_(values)
            elif not (type(known) is type(into.known) is Uniform and known == into.known and same_form):
                into.known = None
        elif known is None:
            if here is there and fills_allocation(source):
                source.allocation.known = into.known = Content()
            else:
                into.known = Truth.ZERO_OR_ONE if there.dtype is torch.bool else None
        elif isinstance(known, Uniform | torch.Tensor):
            set_known_values(target, known_values(source) if is_kept else None, doubt=doubt)
        elif isinstance(known, Truth | Matches) and here.is_neg == there.is_neg:
            into.known = known if type(known) is Matches else Truth.ZERO_OR_ONE
        else:
            into.known = known if here is there and fills_allocation(source) else None

    def _to_device(self, target: TorchAny, source: torch.Tensor, non_blocking: bool) -> None:
        meta = target.tensor_meta
        allocation = target.allocation
        if not meta.numel:
            return
        temporary = None if meta.dense else allocate(gpu(), meta.index, meta.size_bytes)
        pinned = _pinned_if_captured(source, meta.index)
        signature = self._signature(meta, self._plans.metas.like(source, meta.index), "h2d")
        if not non_blocking:
            before_sync()
        waits = not non_blocking or not (pinned or meta.size_bytes <= STAGED_AT_ONCE_BYTES)
        gpu().launches.copy(signature, "h2d", meta.size_bytes, meta.index, waits, pinned, STATE.moving.within)
        gpu().values.assumed.note_data()
        if pinned and non_blocking:
            host_memory().use(source.data_ptr(), gpu().current.stream(meta.index))
        if temporary is not None:
            packed = self._plans.metas.contiguous(meta.shape, meta.dtype, meta.index)
            gpu().launches.launch(self._signature(meta, packed), meta.index)
        kept = is_kept_on_host(meta.shape, meta.dtype) and type(source) in (torch.Tensor, torch.nn.Parameter)
        if kept and meta.numel == 1 and fills_allocation(target):
            set_known_values(target, source.detach())
            return
        values = writable_values(target, replaced=True) if kept else None
        if values is None:
            allocation.known = None
        else:
            with one_thread():
                values.copy_(source.detach())

    def _to_host(self, target: torch.Tensor, source: TorchAny, non_blocking: bool) -> None:
        meta: TensorMeta = source.tensor_meta
        if not meta.numel:
            return
        there = self._plans.metas.like(target, meta.index)
        temporary = None
        converted = non_blocking and there.dtype is not meta.dtype
        if converted or not meta.dense:
            dtype = there.dtype if converted else meta.dtype
            packed = self._plans.metas.contiguous(meta.shape, dtype, meta.index)
            temporary = allocate(gpu(), meta.index, packed.size_bytes)
            gpu().launches.launch(self._signature(packed, meta), meta.index)
        moved = meta.numel * (there.itemsize if converted else meta.itemsize)
        signature = self._signature(there, meta, "d2h")
        pinned = _pinned_if_captured(target, meta.index)
        if not non_blocking:
            before_sync()
        waits = not (non_blocking and pinned)
        if waits and meta.numel <= READ_LIMIT:
            values = self.reads.values_of(source, signature)
        else:
            gpu().launches.copy(signature, "d2h", moved, meta.index, waits, pinned)
            if not waits:
                host_memory().use(target.data_ptr(), gpu().current.stream(meta.index))
            values = known_or_assumed(source)
        del temporary
        with torch.no_grad():
            self._to_host_memory(target, values, meta.index)

    def _to_host_memory(self, target: torch.Tensor, values: torch.Tensor | float | int | bool, device: int) -> None:
        if isinstance(values, torch.Tensor):
            target.copy_(values)
        elif target.is_conj() or target.is_neg():
            target.copy_(torch.full((), values, dtype=target.dtype))
        else:
            target.fill_(values)

    def _signature(self, target: TensorMeta, source: TensorMeta, direction: str = "") -> OpSignature:
        def made() -> OpSignature:
            shapes, names = (target.shape, source.shape), (target.dtype_name, source.dtype_name)
            layout = memory_layout(((target.shape, target.stride), (source.shape, source.stride)))
            return OpSignature("aten::copy_", shapes, names, direction=direction, layout=layout)

        return self._plans.signature_of(("copy", target, source, direction), made)


def _pinned_if_captured(host: torch.Tensor, device: int) -> bool:
    pinned, here = is_pinned(host), gpu()
    if not pinned and here.launches.is_capturing(here.current.stream(device)):
        raise RuntimeError(
            "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. Please use"
            " tensor.pin_memory() or allocate the tensor with pin_memory=True."
        )
    return pinned


def _require_broadcast(target: Sequence[int], source: Sequence[int]) -> None:
    if target == source:
        return
    dims = max(len(target), len(source))
    ours, theirs = ((*(1,) * (dims - len(shape)), *shape) for shape in (target, source))
    for dim in reversed(range(dims)):
        a, b = ours[dim], theirs[dim]
        if a != b and 1 not in (a, b):
            sizes = f"The size of tensor a ({a}) must match the size of tensor b ({b})"
            raise RuntimeError(f"{sizes} at non-singleton dimension {dim}")
    whole = [b if a == 1 else a for a, b in zip(ours, theirs, strict=True)]
    if whole != [*target]:
        raise RuntimeError(f"output with shape {[*target]} doesn't match the broadcast shape {whole}")
