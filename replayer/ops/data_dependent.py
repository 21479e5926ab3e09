"""Runs ops with data-dependent output shapes (torch.Tag.dynamic_output_shape).

    x[torch.tensor([True, False, True])]            # two elements: the values of the mask are known
    x[x > 0]                                        # the recorded number of elements, or an assumed share
    labels.unique(return_counts=True)               # also recorded or assumed
    torch.bincount(torch.tensor([0, 2, 2]).cuda())  # three elements: the values of the labels are known

As with CUDA, the host waits for the GPU until the size of the result is known. The size is computed, recorded or assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from replayer.errors import require
from replayer.op_signature import OpSignature
from replayer.ops.known_contents import indices_on_device, require_mask_shape, selected_by
from replayer.recording.values.output_sizes import NONZERO, REPEAT_INTERLEAVE
from replayer.state import STATE, before_sync, gpu
from replayer.tensor.allocation import KNOWN_BYTES, Doubt, allocate, make
from replayer.tensor.device_args import report_failed_assert
from replayer.tensor.generators import one_thread
from replayer.tensor.planning.assumed_sizes import assumed_size
from replayer.tensor.planning.cuda_dtypes import require_kernel
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.tensor_meta import TensorMeta, is_mask, is_virtual
from replayer.tensor.values.known_values import doubt_of, guess_mask, host_values, set_known_values, values_not_assumed
from replayer.torch_types import TorchAny, TorchFunction
from traces.model.layouts import Shape

aten = torch.ops.aten


def repeated(repeats: torch.Tensor, output_size: int | None) -> torch.Tensor:
    """Run `repeat_interleave` on the CPU. If CUDA's kernel rejects the output size, print the message of the failed
    assertion."""
    if output_size is None or (int(repeats.sum()) == output_size and not bool((repeats < 0).any())):
        return aten.repeat_interleave(repeats)  # type: ignore[no-any-return]
    place = "aten/src/ATen/native/cuda/Repeat.cu: compute_cuda_kernel: block: [0,0,0], thread: [0,0,0]"
    report_failed_assert(f"{place} Assertion `result_size == cumsum_ptr[size - 1]` failed.")
    return repeats.new_zeros(output_size)


class DataDependentOps:
    def __init__(self, plans: PlanCache, index: Callable[[TorchAny, TorchAny], TorchAny]) -> None:
        self._plans, self._tensor_class = plans, plans.tensor_class
        self._index = index

    def handlers(self) -> dict[TorchAny, TorchFunction]:
        return {
            aten.index.Tensor: self.index,
            aten.nonzero.default: self.nonzero,
            aten.masked_select.default: self.masked_select,
            aten._unique2.default: self.unique2,
            aten.unique_dim.default: self.unique_dim,
            aten.unique_consecutive.default: self.unique_consecutive,
            aten.repeat_interleave.Tensor: self.repeat_interleave,
            aten.bincount.default: self.bincount,
        }

    # -- by a mask -----------------------------------------------------------------------------------------------------

    def index(self, source: TorchAny, indices: TorchAny) -> TorchAny:
        indices = indices_on_device(source, indices, self._tensor_class)
        if not any(self._is_mask(index) for index in indices):
            return self._index(source, indices)
        if not is_virtual(source, self._tensor_class):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        meta_indices: list[TorchAny] = []
        tensors = [source]
        for index in indices:
            if index is None:
                meta_indices.append(None)
                continue
            tensors.append(index)
            if self._is_mask(index):
                require_mask_shape(source, index, len(meta_indices))
                count = self._count_set("aten::index", index, index.tensor_meta.shape)
                meta_indices += [torch.empty(count, dtype=torch.int64, device="meta")] * index.dim()
            else:
                meta_indices.append(torch.empty(index.shape, dtype=index.dtype, device="meta"))
        meta: TensorMeta = source.tensor_meta
        meta_source = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="meta")
        result = self._plans.metas.like(selected_by(meta_source, meta_indices), meta.index)
        hosts = [self._host(source), *[None if index is None else self._host(index) for index in indices]]
        values_known = hosts[0] is not None and all(h is not None or i is None for h, i in zip(hosts[1:], indices, strict=True))
        with one_thread():
            known = (aten.index.Tensor(hosts[0], hosts[1:]),) if values_known else None
        return self._with_values(self._results("aten::index", tensors, [result]), known, tensors)[0]

    def nonzero(self, source: TorchAny) -> TorchAny:
        """Run `nonzero`. CUDA's result has column-major strides."""
        meta: TensorMeta = source.tensor_meta
        count = self._count_set("aten::nonzero", source, meta.shape)
        shape, stride = (count, len(meta.shape)), (1, max(count, 1))
        results = self._results("aten::nonzero", [source], [self._plans.metas.of(shape, stride, 0, torch.int64, meta.index)])
        return self._with_values(results, self._compute(source, lambda host: (aten.nonzero(host),)), [source])[0]

    def masked_select(self, source: TorchAny, mask: TorchAny) -> TorchAny:
        if not (is_virtual(source, self._tensor_class) and is_virtual(mask, self._tensor_class)):
            raise RuntimeError("masked_select: expected self and mask to be on the same device, but found a CPU tensor")
        require(mask.dtype is torch.bool, "masked_select: expected BoolTensor for mask")
        meta: TensorMeta = source.tensor_meta
        shape = tuple(torch._C._infer_size(mask.shape, torch.Size(meta.shape)))
        count = self._count_set("aten::masked_select", mask, shape)
        results = self._results("aten::masked_select", [source, mask], [self._new((count,), meta.dtype, meta)])
        values, chosen = self._host(source), self._host(mask)
        with one_thread():
            known = None if values is None or chosen is None else (aten.masked_select(values, chosen),)
        return self._with_values(results, known, [source, mask])[0]

    def _is_mask(self, index: TorchAny) -> bool:
        return is_virtual(index, self._tensor_class) and is_mask(index)

    @one_thread()
    def _count_set(self, op: str, mask: torch.Tensor, shape: Shape) -> int:
        # see Note [Unknown sizes] in tensor/planning/assumed_sizes.py
        recorded = self._recorded_size(NONZERO, shape)
        if recorded is None and not STATE.masks_are_full and is_virtual(mask, self._tensor_class):
            guess_mask(mask)
        known = host_values(mask) if is_virtual(mask, self._tensor_class) else mask
        count = None if known is None else int(known.expand(shape).count_nonzero())
        if count is not None and doubt_of(mask) < Doubt.GUESSED:
            return count
        if recorded is not None:
            return recorded
        most = math.prod(shape)
        if STATE.masks_are_full and count is None:
            return most
        return assumed_size(op, lambda: gpu().values.assumed.count(most) if count is None else count)

    # -- by distinct values and sums -----------------------------------------------------------------------------------

    def unique2(
        self, source: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
    ) -> TorchAny:
        known = self._compute(source, lambda host: aten._unique2(host, True, return_inverse, return_counts))
        return self._unique("aten::_unique2", source, return_inverse, return_counts, known)

    def unique_dim(
        self, source: torch.Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
    ) -> TorchAny:
        known = self._compute(source, lambda host: aten.unique_dim(host, dim, True, return_inverse, return_counts))
        return self._unique("aten::unique_dim", source, return_inverse, return_counts, known, dim)

    def unique_consecutive(
        self, source: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
    ) -> TorchAny:
        known = self._compute(source, lambda host: aten.unique_consecutive(host, return_inverse, return_counts, dim))
        return self._unique("aten::unique_consecutive", source, return_inverse, return_counts, known, dim)

    def repeat_interleave(self, repeats: TorchAny, *, output_size: int | None = None) -> TorchAny:
        """Run `repeat_interleave`, which waits for the GPU if `output_size` is not given."""
        require_kernel(aten.repeat_interleave.Tensor, (repeats,), {})
        sized = None if values_not_assumed(repeats) is None else output_size
        known = self._compute(repeats, lambda host: (repeated(host, sized),))
        assume = repeats.tensor_meta.numel
        size = output_size if output_size is not None else self._size(REPEAT_INTERLEAVE, repeats, known, lambda: assume)
        result = self._new((size,), repeats.tensor_meta.dtype, repeats.tensor_meta)
        return self._with_values(self._results(REPEAT_INTERLEAVE, [repeats], [result]), known, [repeats])[0]

    def bincount(self, source: TorchAny, weights: TorchAny = None, minlength: int = 0) -> TorchAny:
        require(source.dim() == 1, "bincount only supports 1-d non-negative integral inputs.")
        require(weights is None or weights.shape == source.shape, "weights should be 1-d and have the same length as input")
        known = self._compute(source, lambda host: (aten.bincount(host, None, minlength),))
        size = self._size("aten::bincount", source, known, lambda: max(minlength, 1 if source.tensor_meta.numel else 0))
        dtype = torch.int64
        if weights is not None:
            dtype, known = torch.float32 if weights.dtype is torch.float32 else torch.float64, None
        tensors = [source] if weights is None else [source, weights]
        results = self._results("aten::bincount", tensors, [self._new((size,), dtype, source.tensor_meta)])
        if known is None and weights is None:
            self._assume_even_counts(results[0], source.tensor_meta.numel)
        return self._with_values(results, known, tensors)[0]

    def _unique(
        self, op: str, source: TorchAny, return_inverse: bool, return_counts: bool, known: TorchAny, dim: int | None = None
    ) -> tuple[TorchAny, ...]:
        meta: TensorMeta = source.tensor_meta
        compared = meta.numel if dim is None else source.size(dim)
        labels = dim is None and not meta.dtype.is_floating_point and not meta.dtype.is_complex
        size = self._size(op, source, known, lambda: min(compared, 2) if labels else gpu().values.assumed.count(compared), dim)
        values: Shape = (size,)
        inverse = meta.shape
        if dim is not None:
            at = dim % len(meta.shape)
            values, inverse = (*meta.shape[:at], size, *meta.shape[at + 1 :]), (meta.shape[at],)
        results = [
            self._new(values, meta.dtype, meta),
            self._new(inverse if return_inverse else (0,), torch.int64, meta),
            self._new((size,) if return_counts else (0,), torch.int64, meta),
        ]
        made = self._results(op, [source], results)
        self._assume_even_counts(made[2], compared)
        return tuple(self._with_values(made, known, [source]))

    @one_thread()
    def _compute(self, source: torch.Tensor, compute: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> TorchAny:
        known = self._host(source)
        return None if known is None else compute(known)

    def _host(self, tensor: TorchAny) -> torch.Tensor | None:
        if not is_virtual(tensor, self._tensor_class):
            return tensor if isinstance(tensor, torch.Tensor) else None
        return host_values(tensor) if tensor.tensor_meta.size_bytes <= KNOWN_BYTES else None

    def _size(self, op: str, source: TorchAny, known: TorchAny, assume: Callable[[], int], dim: int | None = None) -> int:
        recorded = self._recorded_size(op, source.tensor_meta.shape)
        size = None if known is None else int(known[0].shape[0 if dim is None else dim])
        if size is not None and doubt_of(source) < Doubt.GUESSED:
            return size
        return recorded if recorded is not None else assumed_size(op, lambda: assume() if size is None else size)

    def _with_values(self, results: list[TorchAny], known: TorchAny, sources: list[TorchAny]) -> list[TorchAny]:
        for result, values in zip(results, known or (), strict=False):
            meta: TensorMeta = result.tensor_meta
            if 0 < meta.size_bytes <= KNOWN_BYTES and meta.shape == tuple(values.shape):
                set_known_values(result, values, doubt=max(map(doubt_of, sources)))
        return results

    def _assume_even_counts(self, counts: TorchAny, total: int) -> None:
        size = counts.numel()
        if 0 < counts.tensor_meta.size_bytes <= KNOWN_BYTES:
            share, left = divmod(total, size)
            set_known_values(counts, share + (torch.arange(size, device="cpu") < left).to(torch.int64), doubt=Doubt.GUESSED)

    # -- shared helpers ------------------------------------------------------------------------------------------------

    def _recorded_size(self, op: str, shape: Shape) -> int | None:
        here = gpu()
        before_sync()
        here.streams.synchronize(here.current.stream(here.current.device()))
        return here.values.output_size(op, shape)

    def _new(self, shape: Shape, dtype: torch.dtype, beside: TensorMeta) -> TensorMeta:
        return self._plans.metas.contiguous(shape, dtype, beside.index)

    def _results(self, op: str, tensors: list[TorchAny], metas: list[TensorMeta]) -> list[TorchAny]:
        made = [make(meta, allocate(gpu(), meta.index, meta.extent_bytes)) for meta in metas]
        arguments: list[TensorMeta] = [tensor.tensor_meta for tensor in tensors]

        def signature() -> OpSignature:
            shapes, dtypes = tuple(meta.shape for meta in arguments), tuple(meta.dtype_name for meta in arguments)
            return OpSignature(op, shapes, dtypes, tuple(meta.shape for meta in metas))

        gpu().launches.launch(self._plans.signature_of((op, *metas, *arguments), signature), metas[0].index)
        return made
