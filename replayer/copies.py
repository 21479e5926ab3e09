"""Copies between host and device, and reads of values: where the host meets the virtual device, and mostly waits for it.

What is copied how follows ATen/native/cuda/Copy.cu: a copy to the device converts on the host, a blocking copy from it
converts on the host too and a non-blocking one on the device; whatever is not contiguous goes through a temporary.

    x = torch.ones(3).cuda()   # aten::copy_, h2d, 12 bytes, blocking
    x.sum().item()             # aten::_local_scalar_dense: the recorded value, else what is known, else 1.0

Note [What the host waits for]
    Without `non_blocking`, PyTorch waits for the stream after each copy between host and device. With it, the host waits
    as cudaMemcpyAsync does ("API synchronization behavior" of the CUDA runtime): not for pinned memory; from pageable memory
    until it is staged, which for up to 64 KiB is at once and for more as good as the end of the copy, for the staging
    buffers are far smaller than it; and to pageable memory until the copy is over. `to("cpu", non_blocking=True)` makes its
    result in pinned memory.

Note [Where values come from]
In this order: what the recording holds for this read (`VirtualGpu.read`); what the host knows the memory to contain
(`Allocation.known`, after `zeros`, `fill_` or a small copy to the device); a fixed placeholder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from replayer.allocations import KNOWN_LIMIT, Uniform, allocate, placeholder
from replayer.dispatch import make
from replayer.folding import WHOLE, known_values, note
from replayer.inference import on_device
from replayer.pinned_tensors import is_pinned, pinned_empty
from replayer.plans import Plans
from replayer.sites import Site
from replayer.specs import OURS, Spec
from replayer.state import gpu, host_memory

# From pageable memory, up to this size: staged at once. See Note [What the host waits for].
STAGED_AT_ONCE_BYTES = 64 << 10

aten = torch.ops.aten


class Copies:
    """The handlers of ops that copy or read, bound to one plan cache."""

    def __init__(self, plans: Plans, tensor_class: Any) -> None:
        self._plans = plans
        self._tensor_class = tensor_class

    def handlers(self) -> dict[Any, Callable[..., Any]]:
        return {
            aten.copy_.default: self.copy_,
            aten._to_copy.default: self.to_copy,
            aten._local_scalar_dense.default: self.scalar,
            aten.equal.default: self.equal,
            aten.allclose.default: self.allclose,
        }

    # -- copies ----------------------------------------------------------------------------------------------------

    def copy_(self, target: Any, source: Any, non_blocking: bool = False) -> Any:
        if type(target) is not self._tensor_class:
            self._to_host(target, source, non_blocking)
        elif type(source) is self._tensor_class:
            self._on_device(target, source)
        else:
            self._to_device(target, source, non_blocking)
        return target

    def to_copy(
        self,
        source: Any,
        *,
        dtype: torch.dtype | None = None,
        layout: Any = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format | None = None,
    ) -> Any:
        """`Tensor.to`, when something changes: an empty tensor of the new kind and a copy into it."""
        options: dict[str, Any] = {"dtype": dtype or source.dtype, "memory_format": memory_format or torch.preserve_format}
        if device is not None and device.type not in OURS:
            look = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
            look = torch.empty_like(look, **options)
            if device.type != "cpu":
                return torch.empty_strided(look.shape, look.stride(), dtype=look.dtype, device=device)
            make = pinned_empty if non_blocking else torch.empty_strided
            host = make(tuple(look.shape), look.stride(), dtype=look.dtype)
            self._to_host(host, source, non_blocking)
            return host
        index = source.spec.index if device is None else on_device(device, gpu().current_device())
        target = self._empty_like(source, index, options)
        return self.copy_(target, source, non_blocking)

    def _empty_like(self, source: Any, index: int, options: dict[str, Any]) -> Any:
        key = ("empty_like", source.spec, index, options["dtype"], options["memory_format"])
        spec = self._plans.looks.get(key)
        if spec is None:
            look = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
            spec = self._plans.looks[key] = self._plans.specs.like(torch.empty_like(look, **options), index)
        return make(spec, allocate(gpu(), index, spec.extent_bytes))

    def _on_device(self, target: Any, source: Any) -> None:
        here, there = target.spec, source.spec
        known = source.allocation.known  # a GradScaler copies its found_inf to each device
        whole = here.dense and here.extent_bytes == target.allocation.size_bytes
        keeps = whole and isinstance(known, Uniform) and known.dtype is here.dtype is there.dtype
        if known is None or keeps or not whole or here.dtype not in WHOLE or here.numel > KNOWN_LIMIT:
            target.allocation.known = known if keeps else None
        else:
            note(target, known_values(source))
        if not here.numel:
            return
        if here.index == there.index:
            site = self._site(here, there)
            if target.allocation is not source.allocation or here is not there:
                gpu().launch(site, here.index)
            return
        gpu().copy_to_peer(self._site(here, there, "p2p"), here.size_bytes, there.index, here.index)

    def _to_device(self, target: Any, source: torch.Tensor, non_blocking: bool) -> None:
        spec = target.spec
        allocation = target.allocation
        if not spec.numel:
            return
        _check_broadcast(spec.shape, tuple(source.shape))
        plain = spec.dense
        temporary = None if plain else allocate(gpu(), spec.index, spec.size_bytes)
        pinned = is_pinned(source)
        site = self._site(spec, self._look(source, spec.index), "h2d")
        waits = not non_blocking or not (pinned or spec.size_bytes <= STAGED_AT_ONCE_BYTES)
        gpu().copy(site, "h2d", spec.size_bytes, spec.index, waits, pinned)
        if pinned and non_blocking:
            host_memory().use(source.data_ptr(), gpu().current_stream(spec.index))
        allocation.known = None
        if temporary is not None:
            gpu().launch(self._site(spec, self._plans.specs.contiguous(spec.shape, spec.dtype, spec.index)), spec.index)
        elif spec.numel <= KNOWN_LIMIT and spec.extent_bytes == allocation.size_bytes and type(source) is torch.Tensor:
            known = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)
            allocation.known = known.copy_(source.detach())

    def _to_host(self, target: torch.Tensor, source: Any, non_blocking: bool) -> None:
        spec: Spec = source.spec
        if not spec.numel:
            return
        _check_broadcast(tuple(target.shape), spec.shape)
        look = self._look(target, spec.index)
        temporary = None
        converted = non_blocking and look.dtype is not spec.dtype
        if converted or not spec.dense:
            dtype = look.dtype if converted else spec.dtype
            packed = self._plans.specs.contiguous(spec.shape, dtype, spec.index)
            temporary = allocate(gpu(), spec.index, packed.size_bytes)
            gpu().launch(self._site(packed, spec), spec.index)
        moved = spec.numel * (look.itemsize if converted else spec.itemsize)
        site = self._site(look, spec, "d2h")
        pinned = is_pinned(target)
        waits = not (non_blocking and pinned)
        if waits and spec.numel <= KNOWN_LIMIT:
            values = self._values(source, site)  # a read is its own copy, and waits
        else:
            gpu().copy(site, "d2h", moved, spec.index, waits, pinned)
            if not waits:
                host_memory().use(target.data_ptr(), gpu().current_stream(spec.index))
            values = _known_or_placeholder(source)
        del temporary
        with torch.no_grad():
            if isinstance(values, torch.Tensor):
                target.copy_(values)
            else:
                target.fill_(values)

    def _values(self, source: Any, site: Site) -> torch.Tensor | float | int | bool:
        """See Note [Where values come from]."""
        spec: Spec = source.spec
        recorded = gpu().read(site, spec.index, spec.dtype_name, spec.numel)
        if recorded is not None:
            return torch.tensor(recorded, dtype=spec.dtype).reshape(spec.shape)
        return _known_or_placeholder(source)

    # -- reads -----------------------------------------------------------------------------------------------------

    def scalar(self, source: Any) -> Any:
        """`item()`."""
        spec: Spec = source.spec
        site = self._read_site("aten::_local_scalar_dense", spec)
        values = self._values(source, site)
        return values.item() if isinstance(values, torch.Tensor) else values

    def equal(self, one: Any, other: Any) -> bool:
        """`torch.equal`: a comparison on the device whose answer the host waits for."""
        return tuple(one.shape) == tuple(other.shape) and self._same("aten::equal", one, other)

    def allclose(self, one: Any, other: Any, *_tolerances: Any, **_options: Any) -> bool:
        """`torch.allclose`; values that the host knows count as close if they are equal."""
        return self._same("aten::allclose", one, other)

    def _same(self, op: str, one: Any, other: Any) -> bool:
        spec = one.spec if type(one) is self._tensor_class else other.spec
        site = self._read_site(op, spec)
        gpu().launch(site, spec.index)
        recorded = gpu().read(site, spec.index, "bool", 1)
        if recorded is not None:
            return bool(recorded[0])
        if type(one) is not self._tensor_class or type(other) is not self._tensor_class:
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!")
        if one.spec is other.spec and one.allocation is other.allocation:
            return True
        mine, theirs = known_values(one), known_values(other)
        return mine is not None and theirs is not None and bool((torch.as_tensor(mine) == torch.as_tensor(theirs)).all())

    # -- sites -------------------------------------------------------------------------------------------------------

    def _look(self, tensor: torch.Tensor, index: int) -> Spec:
        return self._plans.specs.like(tensor, index)

    def _site(self, target: Spec, source: Spec, direction: str = "") -> Site:
        """A copy, as profilers record it: aten::copy_ with [target, source]."""
        key = ("copy", target, source, direction)
        site = self._plans.sites.get(key)
        if site is None:
            shapes, names = (target.shape, source.shape), (target.dtype_name, source.dtype_name)
            site = self._plans.keep_site(key, Site("aten::copy_", shapes, names, direction=direction))
        return site

    def _read_site(self, op: str, spec: Spec) -> Site:
        key = (op, spec)
        site = self._plans.sites.get(key)
        if site is None:
            site = self._plans.keep_site(key, Site(op, (spec.shape,), (spec.dtype_name,)))
        return site


def _known_or_placeholder(tensor: Any) -> torch.Tensor | float | int | bool:
    known = known_values(tensor)
    return placeholder(tensor.spec.dtype) if known is None else known


def _check_broadcast(target: tuple[int, ...], source: tuple[int, ...]) -> None:
    if target == source:
        return
    if len(source) > len(target) or any(b not in (a, 1) for a, b in zip(reversed(target), reversed(source), strict=False)):
        raise RuntimeError(f"output with shape {list(target)} doesn't match the broadcast shape {list(source)}")
