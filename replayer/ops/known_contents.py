"""Runs ops that write known values, such as `torch.zeros`, and stores the values on the CPU.

    torch.zeros(3, device="cuda").tolist()    # [0.0, 0.0, 0.0], although nothing was computed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from replayer.ops.host_reads import reads_an_argument, wait_for_device
from replayer.tensor.allocation import KNOWN_BYTES, Uniform
from replayer.tensor.generators import one_thread
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.tensor_meta import TensorMeta, is_mask, is_virtual
from replayer.tensor.values import known_values
from replayer.torch_types import Op, TorchAny, TorchFunction

aten = torch.ops.aten


def selected_by(source: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Return `source[indices]` for meta tensors. Raise PyTorch's error if the indices cannot be broadcast."""
    try:
        return aten.index.Tensor(source, indices)  # type: ignore[no-any-return]
    except RuntimeError:
        shapes = ", ".join(str([*index.shape]) for index in indices if index is not None)
        raise IndexError(f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}") from None


def _refuse_values(target: torch.Tensor, indices: Sequence[TorchAny], values: torch.Tensor) -> None:
    """If the mask's values are known, raise PyTorch's error for `x[mask] = values` with a wrong number of values."""
    if not any(map(is_mask, indices)):
        return
    chosen: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or not is_mask(index):
            chosen.append(index)
            continue
        host = known_values.values_not_assumed(index)
        if host is None or index.shape != target.shape[len(chosen) :][: index.dim()]:
            return
        chosen += host.nonzero().unbind(1)
    on_meta = [None if index is None else torch.empty(index.shape, dtype=torch.int64, device="meta") for index in chosen]
    selected = selected_by(torch.empty(target.shape, device="meta"), on_meta).shape
    padded = [1] * (len(selected) - values.dim()) + [*values.shape]
    if len(padded) > len(selected) or any(size not in (1, given) for size, given in zip(padded, selected, strict=True)):
        text = f"shape mismatch: value tensor of shape {[*values.shape]} cannot be broadcast to indexing result of shape"
        raise RuntimeError(f"{text} {[*selected]}")


class KnownContents:
    def __init__(self, plans: PlanCache, run: TorchFunction) -> None:
        self._tensor_class, self._run = plans.tensor_class, run

    def handlers(self) -> dict[TorchAny, TorchFunction]:
        filled = {
            aten.zeros_like.default: lambda args: 0,
            aten.ones_like.default: lambda args: 1,
            aten.full_like.default: lambda args: args[1],
            aten.new_zeros.default: lambda args: 0,
            aten.new_ones.default: lambda args: 1,
            aten.new_full.default: lambda args: args[2],
        }
        # the replay assumes that gradients are finite
        unchanged = {aten._amp_foreach_non_finite_check_and_unscale_.default: 1, aten._amp_update_scale_.default: 0}
        return {
            **{op: partial(self._filled, op, value) for op, value in filled.items()},
            **{op: partial(self._values_unchanged, op, at) for op, at in unchanged.items()},
            **{op: partial(self.index_put, op) for op in (aten.index_put_.default, aten._index_put_impl_.default)},
            aten.zero_.default: self.zero_,
            aten.fill_.Scalar: self.fill_,
            aten.arange.start_out: self.arange,
            aten.index_put.default: index_put_new,
        }

    def zero_(self, target: torch.Tensor) -> TorchAny:
        return self.fill_(target, 0, aten.zero_.default)

    def fill_(self, target: TorchAny, value: TorchAny, func: TorchAny = aten.fill_.Scalar) -> TorchAny:
        allocation = target.allocation
        known: TorchAny = allocation.known
        self._run(func, *((target,) if func is aten.zero_.default else (target, value)))
        meta: TensorMeta = target.tensor_meta
        uniform = Uniform(known_values.in_dtype(value, meta.dtype), meta.dtype)
        if known_values.fills_allocation(target) or (type(known) is Uniform and known == uniform):
            known = uniform
        elif known is not None:
            allocation.known = known
            view = known_values.writable_values(target)
            if view is not None:
                with one_thread():
                    view.fill_(value)
            known = allocation.known if view is not None else None
        allocation.known = known
        return target

    def arange(self, start: TorchAny, end: TorchAny, step: TorchAny = 1, *, out: TorchAny) -> TorchAny:
        self._run(aten.arange.start_out, start, end, step, out=out)
        meta: TensorMeta = out.tensor_meta
        if meta.size_bytes <= KNOWN_BYTES and known_values.fills_allocation(out):
            known_values.set_known_values(out, torch.arange(start, end, step, dtype=meta.dtype, device="cpu"))
        return out

    def _filled(self, op: Op, value: Callable[[TorchAny], TorchAny], *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        made = self._run(op, *args, **kwargs)
        if is_virtual(made, self._tensor_class):
            dtype = made.tensor_meta.dtype
            made.allocation.known = Uniform(known_values.in_dtype(value(args), dtype), dtype)
        return made

    def _values_unchanged(self, op: Op, at: int, *args: TorchAny) -> TorchAny:
        if not is_virtual(args[at], self._tensor_class):
            return self._run(op, *args)
        known = args[at].allocation.known
        result = self._run(op, *args)
        args[at].allocation.known = known
        return result

    # -- indices on the host -----------------------------------------------------------------------------------------

    def index(self, source: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> TorchAny:
        return self._run(aten.index.Tensor, source, indices_on_device(source, indices, self._tensor_class))

    def index_put(self, op: Op, target: TorchAny, indices: Sequence[TorchAny], *rest: TorchAny, **named: TorchAny) -> TorchAny:
        there = indices_on_device(target, indices, self._tensor_class)
        if rest and is_virtual(target, self._tensor_class):
            _refuse_values(target, there, rest[0])
        if reads_an_argument(op, (target, there, *rest), {}):
            wait_for_device(target.tensor_meta.index)
        return self._run(op, target, there, *rest, **named)


def require_mask_shape(source: torch.Tensor, mask: torch.Tensor, first: int) -> None:
    """See `expandTensors` in ATen/native/IndexingUtils.h."""
    for at, (size, indexed) in enumerate(zip(mask.shape, source.shape[first:], strict=False)):
        if size != indexed:
            raise IndexError(
                f"The shape of the mask {[*mask.shape]} at index {at} does not match the shape of the indexed tensor"
                f" {[*source.shape]} at index {first + at}"
            )


def indices_on_device(beside: TorchAny, indices: Sequence[TorchAny], tensor_class: type) -> list[torch.Tensor | None]:
    """Copy indices from the host to the GPU. A mask on the host is first converted to the positions of its True elements.

    As in PyTorch, the host does not wait until the positions of a mask are copied (ATen/native/IndexingUtils.h).
    """
    moved: list[torch.Tensor | None] = []
    for index in indices:
        if not isinstance(index, torch.Tensor) or is_virtual(index, tensor_class):
            moved.append(index)
            continue
        if not is_virtual(beside, tensor_class):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        device = beside.tensor_meta.backend_device
        if not is_mask(index):
            moved.append(index.to(device))
            continue
        require_mask_shape(beside, index, sum(1 if each is None or not is_mask(each) else each.dim() for each in moved))
        moved += index.nonzero().pin_memory().to(device, non_blocking=True).unbind(1)
    return moved


def index_put_new(
    target: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> TorchAny:
    node = None if torch.is_grad_enabled() else torch._C._current_autograd_node()  # type: ignore[attr-defined, unused-ignore]
    if node is not None and node.name().startswith("IndexBackward"):
        return aten._index_put_impl_.default(target, indices, values, accumulate, True)
    return aten.index_put_.default(aten.clone.default(target), indices, values, accumulate)
