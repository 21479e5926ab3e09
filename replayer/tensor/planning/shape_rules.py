"""Computes result shapes of ops without a usable meta kernel.

RULES[torch.ops.aten._thnn_fused_gru_cell.default](input_gates, hidden_gates, hx)   # (hy, workspace), on "meta"
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch._prims_common import suggest_memory_format

from replayer.torch_types import TorchAny

aten = torch.ops.aten


def _gru_cell(input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, *biases: TorchAny) -> TorchAny:
    return torch.empty_like(hx), hx.new_empty((hx.size(0), hx.size(1) * 5))


def _gru_cell_backward(grad: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> TorchAny:
    gates = grad.new_empty((grad.size(0), grad.size(1) * 3))
    bias = grad.new_empty((grad.size(1) * 3,)) if has_bias else None
    return gates, torch.empty_like(gates), torch.empty_like(grad), bias, None if bias is None else torch.empty_like(bias)


def _lstm_cell(input_gates: torch.Tensor, hidden_gates: torch.Tensor, cx: torch.Tensor, *biases: TorchAny) -> TorchAny:
    return torch.empty_like(cx), torch.empty_like(cx), torch.empty_like(input_gates)


def _lstm_cell_backward(
    grad_hy: TorchAny, grad_cy: TorchAny, cx: torch.Tensor, cy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> TorchAny:
    gates = torch.empty_like(workspace)
    return gates, torch.empty_like(cx), gates.new_empty((gates.size(1),)) if has_bias else None


def _conv_format(data: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """See cudnn_conv_suggest_memory_format in PyTorch."""
    if data.dtype is not torch.float64:
        for tensor in (data, weight):
            suggested = suggest_memory_format(tensor)
            if tensor.dim() in (4, 5) and suggested is not torch.contiguous_format:
                return suggested
    return torch.contiguous_format


def _convolution(data: torch.Tensor, weight: torch.Tensor, *rest: TorchAny) -> TorchAny:
    out = aten.convolution.default(data, weight, *rest)
    return out.contiguous(memory_format=_conv_format(data, weight))


def _convolution_backward(grad: torch.Tensor, data: torch.Tensor, weight: torch.Tensor, *rest: TorchAny) -> TorchAny:
    layout = _conv_format(data, weight)
    of_data, of_weight, of_bias = aten.convolution_backward.default(grad, data, weight, *rest)
    of_data, of_weight = (x if x is None else x.contiguous(memory_format=layout) for x in (of_data, of_weight))
    return of_data, of_weight, of_bias


def _cudnn_convolution(
    data: torch.Tensor, weight: torch.Tensor, padding: TorchAny, stride: TorchAny, dilation: TorchAny, groups: int,
    *flags: bool, bias: torch.Tensor | None = None,
) -> TorchAny:  # fmt: skip
    return _convolution(data, weight, bias, stride, padding, dilation, False, [0] * len(padding), groups)


def _cudnn_convolution_transpose(
    data: torch.Tensor, weight: torch.Tensor, padding: TorchAny, output_padding: TorchAny, stride: TorchAny, dilation: TorchAny,
    groups: int, *flags: bool,
) -> TorchAny:  # fmt: skip
    return _convolution(data, weight, None, stride, padding, dilation, True, output_padding, groups)


def _cudnn_convolution_add_relu(
    data: torch.Tensor, weight: torch.Tensor, other: TorchAny, alpha: TorchAny, bias: TorchAny, stride: TorchAny,
    padding: TorchAny, *options: TorchAny,
) -> TorchAny:  # fmt: skip
    out = _cudnn_convolution(data, weight, padding, stride, *options, bias=bias)
    return (out + other * (1 if alpha is None else alpha)).relu()


def _cudnn_batch_norm_backward(
    data: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, *saved: TorchAny, reserveSpace: TorchAny = None
) -> TorchAny:
    running_mean, running_var, mean, invstd, epsilon = saved[:5]
    mask = [True, True, True]
    return aten.native_batch_norm_backward(grad, data, weight, running_mean, running_var, mean, invstd, True, epsilon, mask)


def _cudnn_rnn(
    data: torch.Tensor, weights: list[torch.Tensor], per_layer: int, buffer: torch.Tensor, hx: torch.Tensor,
    cx: torch.Tensor | None, mode: int, size: int,
    projected: int, layers: int,
    batch_first: bool, dropout: float, train: bool, bidirectional: bool, batch_sizes: TorchAny, state: TorchAny
) -> TorchAny:  # fmt: skip
    """cuDNN does not document the size of the reserve space."""
    directions = 2 if bidirectional else 1
    batch = batch_sizes[0] if batch_sizes else data.size(0 if batch_first else 1)
    out = _steps_first(data, batch_first, (*data.shape[:-1], (projected or size) * directions))
    hy = hx.new_empty((layers * directions, batch, projected or size))
    cy = hx.new_empty((0,)) if cx is None else cx.new_empty((layers * directions, batch, size))
    gates = (1, 1, 4, 3)[mode]
    kept = gates + 1 + (cx is not None)
    rows = data.numel() // data.size(-1)
    reserve_bytes = rows * layers * directions * size * kept * data.element_size() if train else 0
    reserve = data.new_empty((reserve_bytes,), dtype=torch.uint8)
    if buffer is None:
        buffer = weights[0].new_empty((sum(weight.numel() for weight in weights),))
    return out, hy, cy, reserve, buffer


def _steps_first(data: torch.Tensor, batch_first: bool, shape: TorchAny) -> torch.Tensor:
    """In memory, the first dimension is time."""
    if not batch_first:
        return data.new_empty(shape)
    return data.new_empty((shape[1], shape[0], *shape[2:])).transpose(0, 1)


def require_training(train: bool) -> None:
    if not train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")


def _cudnn_rnn_backward(
    data: torch.Tensor,
    weights: list[torch.Tensor],
    per_layer: int,
    buffer: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    *rest: TorchAny,
) -> TorchAny:
    require_training(rest[10])
    batch_first, output_mask = rest[8], rest[-1]
    return (
        _steps_first(data, batch_first, data.shape),
        torch.empty_like(hx, memory_format=torch.contiguous_format),
        None if cx is None else torch.empty_like(cx, memory_format=torch.contiguous_format),
        [torch.empty_like(buffer)] if output_mask[3] else [],
    )


def _ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor, *rest: TorchAny, **options: TorchAny) -> TorchAny:
    batch = log_probs.size(1) if log_probs.dim() == 3 else 1
    longest = targets.size(1) if targets.dim() == 2 else targets.size(0)
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, log_probs.size(0), 2 * longest + 1))


def _loss(first: TorchAny, target: torch.Tensor, *rest: TorchAny, reduction: int = 1) -> TorchAny:
    return first.new_empty(first.shape[:-1] if reduction == 0 else ())


def _multilabel_margin(x: torch.Tensor, target: torch.Tensor, reduction: int) -> TorchAny:
    return _loss(x, target, reduction=reduction), torch.empty_like(target, dtype=x.dtype)


def _lstsq(a: torch.Tensor, b: torch.Tensor, rcond: TorchAny = None, *, driver: TorchAny = None) -> TorchAny:
    over = a.size(-2) > a.size(-1)
    solution = b.new_empty((*b.shape[:-2], a.size(-1), b.size(-1)))
    residuals = b.new_empty((*b.shape[:-2], b.size(-1)) if over else (0,))
    return solution, residuals, a.new_empty((0,), dtype=torch.int64), a.new_empty((0,))


def svd(data: torch.Tensor, full: bool = False, vectors: bool = True, *, driver: str | None = None) -> TorchAny:
    """Only CUDA supports the argument `driver`."""
    return aten._linalg_svd.default(data, full, vectors)


def _second(grad: torch.Tensor, x: torch.Tensor, *rest: TorchAny, **options: TorchAny) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _channel_stats(data: torch.Tensor, *rest: TorchAny) -> TorchAny:
    dtype = torch.float64 if data.dtype is torch.float64 else torch.float32
    return tuple(data.new_empty((data.size(1),), dtype=dtype) for _ in range(2))


def _batch_norm_backward_reduce(
    grad: torch.Tensor, data: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: torch.Tensor | None, *wanted: bool
) -> TorchAny:
    sums = [torch.empty_like(mean) if wanted[0] else None for _ in range(2)]
    like = mean if weight is None else weight
    return *sums, *(torch.empty_like(like) if want else None for want in wanted[1:])


def _like_data(grad: torch.Tensor, data: torch.Tensor, *rest: TorchAny, **options: TorchAny) -> torch.Tensor:
    return torch.empty_like(data)


_REDUCED_IN_PLACE = frozenset({
    aten.mse_loss.default, aten.smooth_l1_loss.default, aten.soft_margin_loss.default, aten.binary_cross_entropy.default,
})  # fmt: skip


def whole_loss(func: torch._ops.OpOverload, result: TorchAny, args: tuple[TorchAny, ...]) -> TorchAny:
    """Give a scalar loss as much memory as one loss per element needs. PyTorch stores the mean or sum in the memory of the
    individual losses (aten/src/ATen/native/Loss.cpp)."""
    if func not in _REDUCED_IN_PLACE or result.dim():
        return result
    return result.new_empty(np.broadcast_shapes(args[0].shape, args[1].shape)).resize_(())


# cuDNN's ops in terms of other ops.
CUDNN: dict[TorchAny, Callable[..., TorchAny]] = {
    aten.cudnn_convolution.default: _cudnn_convolution,
    aten.cudnn_convolution_transpose.default: _cudnn_convolution_transpose,
    aten.cudnn_convolution_relu.default: lambda data, weight, *rest: _cudnn_convolution_add_relu(data, weight, 0, None, *rest),
    aten.cudnn_convolution_add_relu.default: _cudnn_convolution_add_relu,
    aten.cudnn_batch_norm.default: lambda data, *options: (
        *aten.native_batch_norm(data, *options),
        data.new_empty((0,), dtype=torch.uint8),
    ),
    aten.cudnn_batch_norm_backward.default: _cudnn_batch_norm_backward,
    aten.cudnn_grid_sampler.default: lambda data, grid: aten.grid_sampler_2d(data, grid, 0, 0, True),
    aten.cudnn_grid_sampler_backward.default: lambda data, grid, grad: aten.grid_sampler_2d_backward(
        grad, data, grid, 0, 0, True, [True, True]
    ),
    aten.cudnn_affine_grid_generator.default: lambda theta, *sizes: aten.affine_grid_generator(theta, sizes, True),
    aten.cudnn_affine_grid_generator_backward.default: lambda grad, *sizes: aten.affine_grid_generator_backward(
        grad, sizes, True
    ),
}

_HAS_BADDBMM = hasattr(aten.baddbmm, "dtype")
RULES: dict[TorchAny, Callable[..., TorchAny]] = {
    **CUDNN,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._cudnn_rnn.default: _cudnn_rnn,
    aten._cudnn_rnn_backward.default: _cudnn_rnn_backward,
    **dict.fromkeys((aten._ctc_loss.default, aten._ctc_loss.Tensor), _ctc_loss),
    **dict.fromkeys((aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor), _like_data),
    aten.multi_margin_loss.default: lambda x, target, p=1, margin=1, weight=None, reduction=1: _loss(
        x, target, reduction=reduction
    ),
    aten.multi_margin_loss_backward.default: _second,
    aten.multilabel_margin_loss_forward.default: _multilabel_margin,
    aten.multilabel_margin_loss_backward.default: _second,
    aten.linalg_lstsq.default: _lstsq,
    aten._linalg_svd.default: svd,
    aten.poisson.default: lambda data, *rest: torch.empty_like(data, memory_format=torch.contiguous_format),
    aten.batch_norm_stats.default: _channel_stats,
    aten.batch_norm_update_stats.default: _channel_stats,
    aten.batch_norm_gather_stats.default: _channel_stats,
    aten.batch_norm_gather_stats_with_counts.default: _channel_stats,
    aten.batch_norm_elemt.default: lambda data, *rest: torch.empty_like(data),
    aten.batch_norm_backward_reduce.default: _batch_norm_backward_reduce,
    aten.batch_norm_backward_elemt.default: _like_data,
    **({aten.baddbmm.dtype: lambda _, one, other, dtype, **scalars: aten.bmm.dtype(one, other, dtype)} if _HAS_BADDBMM else {}),
    aten.segment_reduce.default: lambda data, *rest, lengths=None, **options: data.new_empty(
        (lengths.size(0), *data.shape[1:])
    ),
}
