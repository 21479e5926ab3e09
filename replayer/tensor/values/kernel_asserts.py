"""Finds invalid arguments of CUDA kernels, such as an index out of range.

    failed_assert(torch.ops.aten.index_select.default, (x, 0, index), host_values)
    # "aten/src/ATen/native/cuda/Indexing.cu: indexSelectSmallIndex: ... Assertion `srcIndex < srcSelectDimSize` failed."
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.utils._pytree import tree_map_only

from replayer.tensor.tensor_meta import is_mask
from replayer.torch_types import Op, TorchAny

HostValues = Callable[[TorchAny], torch.Tensor | None]
_Check = Callable[[Sequence[TorchAny], HostValues], "tuple[int, str] | None"]
_NATIVE = "aten/src/ATen/native/cuda"


_INDICES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def _distinct(values: torch.Tensor) -> torch.Tensor:
    """Return one element of a tensor of one repeated value, and other tensors unchanged. A repeated value takes no memory."""
    return values if any(values.stride()) else values[(slice(1),) * values.dim()]


def _outside(values: torch.Tensor | None, low: int, high: int, ignored: int | None = None) -> int | None:
    if values is None or not values.numel() or values.dtype not in _INDICES:
        return None
    values = _distinct(values)
    wrong = (values < low) | (values >= high)
    if ignored is not None:
        wrong &= values != ignored
    return int(wrong.flatten().nonzero()[0]) if bool(wrong.any()) else None


def _line(place: int, file: str, kernel: str, condition: str) -> str:
    block, thread = divmod(place, 128)
    return f"{_NATIVE}/{file}: {kernel}: block: [{block},0,0], thread: [{thread},0,0] Assertion `{condition}` failed."


def _limited(
    at: int, kernel: str, file: str, condition: str, limits: Callable[[Sequence[TorchAny]], tuple[int, int, int | None] | None]
) -> _Check:
    def check(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
        known = limits(args)
        place = None if known is None else _outside(host(args[at]), *known)
        return None if place is None else (at, _line(place, file, kernel, condition))

    return check


def _of_dim(args: Sequence[TorchAny]) -> tuple[int, int, None]:
    return 0, args[0].size(args[1]) if args[0].dim() else 1, None


def _of_last_dim(args: Sequence[TorchAny]) -> tuple[int, int, None]:
    return 0, args[0].size(-1) if args[0].dim() else 1, None


def _of_dim_or_negative(args: Sequence[TorchAny]) -> tuple[int, int, None]:
    _, size, _ = _of_dim(args)
    return -size, size, None


def _of_classes(args: Sequence[TorchAny]) -> tuple[int, int, int]:
    return 0, args[0].size(1 if args[0].dim() > 1 else 0), args[4] if len(args) > 4 else -100


def _index(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
    tensor, dim = args[0], 0
    for index in args[1]:
        if is_mask(index):
            dim += index.dim()
            continue
        if dim == tensor.dim():
            return None  # the call has too many indices
        size = tensor.size(dim)
        place = None if index is None else _outside(host(index), -size, size)
        if place is not None:
            condition = '-sizes[i] <= index && index < sizes[i] && "index out of bounds"'
            return 1, _line(place, "IndexKernel.cu", "operator()", condition)
        dim += 1
    return None


def _values(at: int, kernel: str, file: str, condition: str, are_valid: Callable[[torch.Tensor], torch.Tensor]) -> _Check:
    def check(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
        values = host(args[at]) if len(args) > at and isinstance(args[at], torch.Tensor) else None
        is_valid = values is None or bool(are_valid(_distinct(values)).all())
        return None if is_valid else (at, _line(0, file, kernel, condition))

    return check


def _from_0_to_1(values: torch.Tensor) -> torch.Tensor:
    return (values >= 0) & (values <= 1)


def _of_table(args: Sequence[TorchAny]) -> tuple[int, int, None] | None:
    return (0, args[0].size(0), None) if args[0].dim() == 2 else None  # PyTorch rejects tables that are not matrices


def _bags(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
    offsets = host(args[2])
    if offsets is not None and offsets.numel():
        with_last = len(args) > 7 and args[7]
        between = offsets[1 : offsets.numel() - with_last].tolist()
        bounds = [0, *between, args[1].numel()]
        if sorted(bounds) != bounds:
            kernel = f"EmbeddingBag_updateOutputKernel_{'max' if len(args) > 4 and args[4] == 2 else 'sum_mean'}"
            return 2, _line(0, "EmbeddingBag.cu", kernel, "end >= begin")
    return _IN_BAGS(args, host)


def _masked_scatter(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
    target, mask, source = args[:3]
    values = host(mask)
    if values is None or not values.numel() or target.numel() % values.numel():
        return None
    chosen = int(values.count_nonzero()) * (target.numel() // values.numel())
    condition = "totalElements <= srcSize"
    return (1, _line(0, "IndexKernel.cu", "masked_scatter_size_check", condition)) if chosen > source.numel() else None


def _multinomial(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
    """Check the probabilities of `torch.multinomial`. CUDA's kernel checks the probabilities only if the script draws several
    samples with replacement."""
    draws_with_replacement = len(args) > 2 and args[1] > 1 and args[2]
    return (_NOT_NEGATIVE(args, host) or _WITH_SUM(args, host)) if draws_with_replacement else None


def _binary_cross_entropy(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
    return _INPUTS(args, host) or _TARGETS(args, host)


def _assert_async(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
    values = host(args[0])
    if values is None or values.numel() != 1 or bool(values):
        return None
    condition = f"input[0] != 0{f' && {args[1]!r}' if len(args) > 1 else ''}"
    return 0, _line(0, "TensorCompare.cu", "_assert_async_cuda_kernel", condition)


def _unpooled(dims: int, name: str) -> _Check:
    condition = f"{name} >= 0 && {name} < outputImageSize"
    kernel = f"max_unpooling{dims}d_forward_kernel"
    return _limited(1, kernel, "MaxUnpooling.cu", condition, lambda args: (0, math.prod(args[2]), None))


_SCATTER = 'idx_dim >= 0 && idx_dim < index_size && "index out of bounds"'
_COPIED = 'idx >= 0 && idx < self_dim_size && "index_copy_(): index out of bounds"'
_FILLED = 'idx >= -self_dim_size && idx < self_dim_size && "index out of bounds"'
_SCATTERED = _limited(2, "operator()", "ScatterGatherKernel.cu", _SCATTER, _of_dim)
_SELECTED = ("indexSelectSmallIndex", "Indexing.cu", "srcIndex < srcSelectDimSize")
_BAGGED = ("EmbeddingBag_updateOutputKernel_sum_mean", "EmbeddingBag.cu", "input[emb] < numRows")
_IN_BAGS = _limited(1, *_BAGGED, _of_table)
_TAKEN = ("take_put_kernel", "TensorCompare.cu", 'idx < numel && "index out of bounds"')
_LABELS = ("nll_loss_forward_reduce_cuda_kernel_2d", "Loss.cu", "t >= 0 && t < n_classes")
_ALONG_DIM = {
    "index_select": _limited(2, *_SELECTED, _of_dim),
    "index_add": _limited(2, "indexFuncSmallIndex", "Indexing.cu", "dstIndex < dstAddDimSize", _of_dim),
    "index_reduce": _limited(2, "indexFuncSmallIndex", "Indexing.cu", "dstIndex < dstAddDimSize", _of_dim),
    "index_copy": _limited(2, "index_copy_kernel", "IndexKernel.cu", _COPIED, _of_dim),
    "index_fill": _limited(2, "index_fill_kernel", "IndexKernel.cu", _FILLED, _of_dim_or_negative),
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), _SCATTERED),
}
_BERNOULLI = ("operator()", "DistributionTemplates.h", "0 <= p1 && p1 <= 1", _from_0_to_1)
_POISSON = 'lambda >= 0 && "invalid Poisson rate, expected rate to be non-negative"'
_MARGIN = 'target_k >= 0 && target_k < dim && "target index is out of bounds"'
_BCE = ("binary_cross_entropy_forward_kernel", "Loss.cu")
_INPUTS = _values(0, *_BCE, "input_val >= zero && input_val <= one", _from_0_to_1)
_TARGETS = _values(1, *_BCE, "target_val >= zero && target_val <= one", _from_0_to_1)
_NOT_NEGATIVE = _values(0, "renormRowsL1", "MultinomialKernel.cu", "! (val < zero)", lambda values: ~(values < 0))
_SUM = ("binarySearchForMultinomial", "MultinomialKernel.cu", "cumdist[size - 1] > static_cast<scalar_t>(0)")
_WITH_SUM = _values(0, *_SUM, lambda values: (values.sum(-1) > 0) & values.isfinite().all(-1))
_CHECKS: dict[str, _Check] = {
    **_ALONG_DIM,
    **{f"{name}_": check for name, check in _ALONG_DIM.items()},
    **dict.fromkeys(("index", "index_put_", "_index_put_impl_", "_unsafe_index"), _index),
    **dict.fromkeys(("embedding", "embedding_renorm_"), _limited(1, *_SELECTED, _of_table)),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _bags),
    **dict.fromkeys(("masked_scatter", "masked_scatter_"), _masked_scatter),
    "max_unpool2d": _unpooled(2, "maxind"),
    "max_unpool3d": _unpooled(3, "index"),
    "multinomial": _multinomial,
    "poisson": _values(0, "poisson_cuda_kernel", "Distributions.cu", _POISSON, lambda rates: ~(rates < 0)),
    "_assert_async": _assert_async,
    **dict.fromkeys(("take", "put_"), _limited(1, *_TAKEN, lambda args: (-args[0].numel(), args[0].numel(), None))),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _limited(1, *_LABELS, _of_classes)),
    "multi_margin_loss": _limited(1, "MultiMarginLoss_forward_kernel", "MultiMarginLoss.cu", _MARGIN, _of_last_dim),
    "binary_cross_entropy": _binary_cross_entropy,
    "bernoulli": _values(0, *_BERNOULLI),
    "bernoulli_": _values(1, *_BERNOULLI),
}


def can_fail(func: Op) -> bool:
    return func._schema.name.removeprefix("aten::") in _CHECKS


def failed_assert(func: Op, args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
    """If an argument of the op is invalid, an assertion in the CUDA kernel fails. Return the argument's position and the
    assertion's message."""
    return _CHECKS[func._schema.name.removeprefix("aten::")](args, host)


def harmless(func: Op, argument: TorchAny) -> TorchAny:
    """Replace an argument that would make the CPU kernel raise an error."""
    fill = torch.ones_like if func._schema.name in ("aten::multinomial", "aten::_assert_async") else torch.zeros_like
    return tree_map_only(torch.Tensor, fill, argument)
