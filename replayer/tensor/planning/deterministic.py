"""Raises the errors of `torch.use_deterministic_algorithms` for ops without a deterministic CUDA kernel.

    torch.use_deterministic_algorithms(True)
    alert_not_deterministic(torch.ops.aten.nll_loss2d_forward.default, args)
    # RuntimeError: nll_loss2d_forward_out_cuda_template does not have a deterministic implementation, but you set ...

The error messages contain the kernel names of PyTorch 2.14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import nan

import torch

from replayer.errors import warn_at_script
from replayer.torch_types import Kwargs, Op, TorchAny, TorchFunction

aten = torch.ops.aten

_NAMED_CUDA = (
    "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward avg_pool3d_backward"
    " max_pool3d_with_indices_backward fractional_max_pool2d_backward fractional_max_pool3d_backward"
    " replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward grid_sampler_2d_backward"
    " grid_sampler_3d_backward index_reduce"
).split()
_NAMED_OUT_CUDA = (
    "reflection_pad1d_backward reflection_pad3d_backward upsample_linear1d_backward upsample_bilinear2d_backward"
    " upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward"
    " upsample_trilinear3d_backward"
).split()
_NAMES = {
    **{op: f"{op.removeprefix('_')}_cuda" for op in _NAMED_CUDA},
    **{op: f"{op.removeprefix('_')}_out_cuda" for op in _NAMED_OUT_CUDA},
    "max_unpool2d": "max_unpooling2d_forward_out",
    "max_unpool3d": "max_unpooling3d_forward_out",
    "_ctc_loss_backward": "ctc_loss_backward_gpu",
    "index_reduce_": "index_reduce_cuda",
    "put": "put_",
    "put_": "put_",
}
_ADVICE = " does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True{})'. "


def _median(_data: object, *dimension: object, **_: object) -> str:
    return "median CUDA with indices output" if dimension else ""


def _bincount(_data: object, weights: object = None, *_: object, **_options: object) -> str:
    return "" if weights is None else "_bincount_cuda"


def _histc(data: torch.Tensor, *_: object, **_options: object) -> str:
    return "_histc_cuda with floating point input" if data.is_floating_point() else ""


def _scatter_reduce(_data: object, _dim: object, _index: object, _source: object, reduce: str, **_: object) -> str:
    return "scatter_reduce_cuda_prod_" if reduce == "prod" else ""


def _scatter(_data: object, _dim: object, _index: object, source: object, reduce: str = "") -> str:
    return "scatter_reduce_cuda_kernel" if reduce == "multiply" and isinstance(source, torch.Tensor) else ""


def _nll_loss2d(_scores: object, _labels: object, _weight: object, reduction: int, *_: object) -> str:
    return "nll_loss2d_forward_out_cuda_template" if reduction else ""


def _embedding_bag_backward(mode: object) -> str:
    return "embedding_bag_backward_cuda_max" if mode == 2 else ""


_BY_ARGUMENTS: dict[str, Callable[..., str]] = {
    "median": _median,
    "nanmedian": _median,
    "bincount": _bincount,
    "histc": _histc,
    "_embedding_bag_backward": lambda *args: _embedding_bag_backward(args[8]),
    "_embedding_bag_dense_backward": lambda *args: _embedding_bag_backward(args[7]),
    "scatter": _scatter,
    "scatter_": _scatter,
    "scatter_reduce": _scatter_reduce,
    "scatter_reduce_": _scatter_reduce,
    "nll_loss2d_forward": _nll_loss2d,
}


def fills_memory() -> bool:
    return torch.are_deterministic_algorithms_enabled() and torch._C._get_deterministic_fill_uninitialized_memory()


def value_of_filled(dtype: torch.dtype) -> float:
    """See `fill_empty_deterministic_` in ATen/native/TensorFactories.h."""
    return nan if dtype.is_floating_point or dtype.is_complex else dtype is torch.bool or torch.iinfo(dtype).max


def _filled_like(data: torch.Tensor, *size: TorchAny, dtype: torch.dtype | None = None, **options: TorchAny) -> TorchAny:
    fill: TorchFunction = aten.new_full.default if size else aten.full_like.default
    return fill(data, *size, value_of_filled(dtype or data.dtype), dtype=dtype, **options)


def _filled_strided(data: torch.Tensor, *shape: TorchAny, **options: TorchAny) -> torch.Tensor:
    options = {name: options.get(name) or getattr(data, name) for name in ("dtype", "device")}
    return torch.empty_strided(*shape, **options)


def _resized(data: TorchAny, size: TorchAny, memory_format: torch.memory_format = torch.contiguous_format) -> TorchAny:
    if data.shape == torch.Size(size):
        return data
    resized = torch.empty(size, dtype=data.dtype, device="meta", memory_format=memory_format)
    storage, offset = data.untyped_storage(), data.storage_offset()
    before, needed = storage.nbytes(), (offset + resized.numel()) * data.itemsize
    if needed > before:
        storage.resize_(needed)
        new = data.new_empty(0).set_(storage, before // data.itemsize, ((needed - before) // data.itemsize,), (1,))
        new.fill_(value_of_filled(data.dtype))
    return data.set_(storage, offset, resized.shape, resized.stride())


_FILLED: dict[Op, TorchFunction] = {
    aten.empty_like.default: _filled_like,
    aten.new_empty.default: _filled_like,
    aten.new_empty_strided.default: _filled_strided,
    aten.resize_.default: _resized,
    aten.resize_as_.default: lambda data, of, **options: _resized(data, of.shape, **options),
}


def filling(func: Op) -> TorchFunction | None:
    """Return a function that runs `func` and fills uninitialized memory, or None if `func` leaves no memory uninitialized."""
    by = _FILLED.get(func)
    return None if by is None or not fills_memory() else lambda _, args, kwargs: by(*args, **kwargs)


def without_alerts() -> AbstractContextManager[None]:
    """Turn off deterministic mode, because CPU kernels would raise errors that CUDA does not raise."""
    return _without_alerts() if torch.are_deterministic_algorithms_enabled() else nullcontext()


@contextmanager
def _without_alerts() -> Iterator[None]:
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch._C._set_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(True, warn_only=warns_only)


def alert_not_deterministic(func: Op, args: Sequence[TorchAny], kwargs: Kwargs) -> None:
    op = func._schema.name.removeprefix("aten::")
    rule = _BY_ARGUMENTS.get(op)
    name = _NAMES.get(op, "") if rule is None else rule(*args, **kwargs)
    if not name:
        return
    if torch.is_deterministic_algorithms_warn_only_enabled():
        warn_at_script(
            f"{name}{_ADVICE.format(', warn_only=True')}You can file an issue at https://github.com/pytorch/pytorch/issues to"
            " help us prioritize adding deterministic support for this operation."
        )
        return
    raise RuntimeError(
        f"{name}{_ADVICE.format('')}You can turn off determinism just for this operation, or you can use the 'warn_only=True'"
        " option, if that's acceptable for your application. You can also file an issue at"
        " https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for this operation."
    )
