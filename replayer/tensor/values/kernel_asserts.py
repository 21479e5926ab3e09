"""Finds invalid arguments of CUDA kernels, such as an index out of range.

    failed_assert(torch.ops.aten.index_select.default, (x, 0, index), host_values)
    # "aten/src/ATen/native/cuda/Indexing.cu: indexSelectSmallIndex: ... Assertion `srcIndex < srcSelectDimSize` failed."
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from replayer.torch_types import TorchAny

HostValues = Callable[[TorchAny], torch.Tensor | None]
_Check = Callable[[Sequence[TorchAny], HostValues], "tuple[int, str] | None"]
_NATIVE = "aten/src/ATen/native/cuda"


def _outside(values: torch.Tensor | None, low: int, high: int, ignored: int | None = None) -> int | None:
    if values is None or not values.numel() or values.is_complex():
        return None
    wrong = (values < low) | (values >= high)
    if ignored is not None:
        wrong &= values != ignored
    return int(wrong.flatten().nonzero()[0]) if bool(wrong.any()) else None


def _line(place: int, file: str, kernel: str, condition: str) -> str:
    block, thread = divmod(place, 128)
    return f"{_NATIVE}/{file}: {kernel}: block: [{block},0,0], thread: [{thread},0,0] Assertion `{condition}` failed."


def _along_dim(kernel: str, file: str, condition: str) -> _Check:
    def check(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
        tensor = args[0]
        size = tensor.size(args[1]) if tensor.dim() else 1
        place = _outside(host(args[2]), 0, size)
        return None if place is None else (2, _line(place, file, kernel, condition))

    return check


def _index(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
    tensor, dim = args[0], 0
    for index in args[1]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            dim += index.dim()
            continue
        size = tensor.size(dim)
        place = None if index is None else _outside(host(index), -size, size)
        if place is not None:
            condition = '-sizes[i] <= index && index < sizes[i] && "index out of bounds"'
            return 1, _line(place, "IndexKernel.cu", "operator()", condition)
        dim += 1
    return None


def _embedding(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
    if args[0].dim() != 2:
        return None  # PyTorch rejects the call
    place = _outside(host(args[1]), 0, args[0].size(0))
    condition = "srcIndex < srcSelectDimSize"
    return None if place is None else (1, _line(place, "Indexing.cu", "indexSelectSmallIndex", condition))


def _take(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
    count = args[0].numel()
    place = _outside(host(args[1]), -count, count)
    return (
        None
        if place is None
        else (1, _line(place, "TensorCompare.cu", "take_put_kernel", 'idx < numel && "index out of bounds"'))
    )


def _labels(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
    scores, ignored = args[0], args[4] if len(args) > 4 else -100
    classes = scores.size(1 if scores.dim() > 1 else 0)
    place = _outside(host(args[1]), 0, classes, ignored)
    kernel, condition = "nll_loss_forward_reduce_cuda_kernel_2d", "t >= 0 && t < n_classes"
    return None if place is None else (1, _line(place, "Loss.cu", kernel, condition))


def _probabilities(at: int, kernel: str, file: str, condition: str) -> _Check:
    def check(args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
        values = host(args[at]) if len(args) > at and isinstance(args[at], torch.Tensor) else None
        if values is None or not values.numel() or bool(((values >= 0) & (values <= 1)).all()):
            return None
        return at, _line(0, file, kernel, condition)

    return check


_SCATTER = 'idx_dim >= 0 && idx_dim < index_size && "index out of bounds"'
_COPIED = 'idx >= 0 && idx < self_dim_size && "index_copy_(): index out of bounds"'
_FILLED = 'idx >= -self_dim_size && idx < self_dim_size && "index out of bounds"'
_SCATTERED = _along_dim("operator()", "ScatterGatherKernel.cu", _SCATTER)
_ALONG_DIM = {
    "index_select": _along_dim("indexSelectSmallIndex", "Indexing.cu", "srcIndex < srcSelectDimSize"),
    "index_add": _along_dim("indexFuncSmallIndex", "Indexing.cu", "dstIndex < dstAddDimSize"),
    "index_copy": _along_dim("index_copy_kernel", "IndexKernel.cu", _COPIED),
    "index_fill": _along_dim("index_fill_kernel", "IndexKernel.cu", _FILLED),
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), _SCATTERED),
}
_BERNOULLI = ("operator()", "DistributionTemplates.h", "0 <= p1 && p1 <= 1")
_CHECKS: dict[str, _Check] = {
    **_ALONG_DIM,
    **{f"{name}_": check for name, check in _ALONG_DIM.items()},
    **dict.fromkeys(("index", "index_put_", "_index_put_impl_", "_unsafe_index"), _index),
    "embedding": _embedding,
    **dict.fromkeys(("take", "put_"), _take),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _labels),
    "binary_cross_entropy": _probabilities(
        0, "binary_cross_entropy_forward_kernel", "Loss.cu", "input_val >= zero && input_val <= one"
    ),
    "bernoulli": _probabilities(0, *_BERNOULLI),
    "bernoulli_": _probabilities(1, *_BERNOULLI),
}


def can_fail(func: torch._ops.OpOverload) -> bool:
    return func._schema.name.removeprefix("aten::") in _CHECKS


def failed_assert(func: torch._ops.OpOverload, args: Sequence[TorchAny], host: HostValues) -> tuple[int, str] | None:
    """Return the position and the error message of an argument for which a CUDA assertion fails."""
    return _CHECKS[func._schema.name.removeprefix("aten::")](args, host)
