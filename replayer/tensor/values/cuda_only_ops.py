# mypy: allow-untyped-calls
"""Replaces ops that exist only on CUDA, such as those of cuDNN and SyncBatchNorm, by ordinary ops.

    CUDA_ONLY[torch.ops.aten._thnn_fused_gru_cell.default](input_gates, hidden_gates, hx)   # (hy, workspace)
"""

from __future__ import annotations

import torch
from torch._decomp import decomposition_table
from torch._prims_common import suggest_memory_format

from replayer.torch_types import TorchAny, TorchFunction

aten = torch.ops.aten


def conv_format(data: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """See cudnn_conv_suggest_memory_format in PyTorch."""
    if data.dtype is not torch.float64:
        for tensor in (data, weight):
            suggested = suggest_memory_format(tensor)
            if tensor.dim() in (4, 5) and suggested is not torch.contiguous_format:
                return suggested
    return torch.contiguous_format


def convolution(data: torch.Tensor, weight: torch.Tensor, *rest: TorchAny) -> TorchAny:
    out = aten.convolution.default(data, weight, *rest)
    return out.contiguous(memory_format=conv_format(data, weight))


def _cudnn_convolution(
    data: torch.Tensor, weight: torch.Tensor, padding: TorchAny, stride: TorchAny, dilation: TorchAny, groups: int,
    *flags: bool, bias: torch.Tensor | None = None,
) -> TorchAny:  # fmt: skip
    return convolution(data, weight, bias, stride, padding, dilation, False, [0] * len(padding), groups)


def _cudnn_convolution_transpose(
    data: torch.Tensor, weight: torch.Tensor, padding: TorchAny, output_padding: TorchAny, stride: TorchAny, dilation: TorchAny,
    groups: int, *flags: bool,
) -> TorchAny:  # fmt: skip
    return convolution(data, weight, None, stride, padding, dilation, True, output_padding, groups)


def _cudnn_convolution_add_relu(
    data: torch.Tensor, weight: torch.Tensor, other: TorchAny, alpha: TorchAny, bias: TorchAny, stride: TorchAny,
    padding: TorchAny, *options: TorchAny,
) -> TorchAny:  # fmt: skip
    out = _cudnn_convolution(data, weight, padding, stride, *options, bias=bias)
    return (out + other * (1 if alpha is None else alpha)).relu()


def _gates(of_input: torch.Tensor, of_hidden: torch.Tensor | int, biases: TorchAny) -> TorchAny:
    for bias in biases:
        of_input = of_input if bias is None else of_input + bias
    return of_input + of_hidden


def _lstm_cell(of_input: torch.Tensor, of_hidden: torch.Tensor, cx: torch.Tensor, *biases: TorchAny) -> TorchAny:
    i, f, g, o = _gates(of_input, of_hidden, biases).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    grad_hy: TorchAny, grad_cy: TorchAny, cx: torch.Tensor, cy: torch.Tensor, gates: torch.Tensor, has_bias: bool
) -> TorchAny:
    i, f, g, o = gates.chunk(4, 1)
    known = cy.tanh()
    of_cell = torch.zeros_like(cy) if grad_cy is None else grad_cy
    of_o = torch.zeros_like(cy)
    if grad_hy is not None:
        of_cell = of_cell + grad_hy * o * (1 - known**2)
        of_o = grad_hy * known * o * (1 - o)
    of_gates = torch.cat([of_cell * g * i * (1 - i), of_cell * cx * f * (1 - f), of_cell * i * (1 - g**2), of_o], 1)
    return of_gates, of_cell * f, of_gates.sum(0) if has_bias else None


def _gru_cell(
    of_input: torch.Tensor, of_hidden: torch.Tensor, hx: torch.Tensor, of_ih: TorchAny = None, of_hh: TorchAny = None
) -> TorchAny:
    of_input, of_hidden = _gates(of_input, 0, (of_ih,)), _gates(of_hidden, 0, (of_hh,))
    (ir, iz, candidate), (hr, hz, hidden) = of_input.chunk(3, 1), of_hidden.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (candidate + r * hidden).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hidden], 1)


def _gru_cell_backward(grad: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> TorchAny:
    r, z, n, hx, hidden = workspace.chunk(5, 1)
    of_n = grad * (1 - z) * (1 - n**2)
    of_r, of_z = of_n * hidden * r * (1 - r), grad * (hx - n) * z * (1 - z)
    of_input, of_hidden = torch.cat([of_r, of_z, of_n], 1), torch.cat([of_r, of_z, of_n * r], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad * z, *biases


def _per_channel(values: TorchAny, data: torch.Tensor) -> TorchAny:
    return values.view(1, -1, *[1] * (data.dim() - 2))


def _but_channels(data: torch.Tensor) -> list[int]:
    return [dim for dim in range(data.dim()) if dim != 1]


def _widened(data: torch.Tensor) -> TorchAny:
    return data if data.dtype is torch.float64 else data.float()


def _batch_norm_stats(data: torch.Tensor, eps: float) -> TorchAny:
    variance, mean = torch.var_mean(_widened(data), _but_channels(data), correction=0)
    return mean, (variance + eps).rsqrt()


def _batch_norm_gather_stats(
    data: torch.Tensor,
    means: torch.Tensor,
    invstds: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor | float,
) -> TorchAny:
    counts = torch.as_tensor(counts, dtype=means.dtype, device=means.device).reshape(-1).expand(means.size(0))
    share = (counts / counts.sum()).view(-1, 1)
    mean = (means * share).sum(0)
    variance = ((invstds.pow(-2) - eps + (means - mean) ** 2) * share).sum(0)
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        unbiased = variance * counts.sum() / (counts.sum() - 1)
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return mean, (variance + eps).rsqrt()


def _batch_norm_elemt(
    data: TorchAny, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor, invstd: TorchAny, eps: float
) -> torch.Tensor:
    result = (_widened(data) - _per_channel(mean, data)) * _per_channel(invstd, data)
    if weight is not None:
        result = result * _per_channel(weight, data) + _per_channel(bias, data)
    return torch.empty_like(data).copy_(result)


def _batch_norm_backward_reduce(
    grad: torch.Tensor, data: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: torch.Tensor | None, *wanted: bool
) -> TorchAny:
    over, wide = _but_channels(data), _widened(grad)
    of_sum = wide.sum(over)
    of_product = (wide * (_widened(data) - _per_channel(mean, data))).sum(over)
    dtype = mean.dtype if weight is None else weight.dtype
    found = (of_sum, of_product, (of_product * invstd).to(dtype), of_sum.to(dtype))
    return tuple(x if want else None for x, want in zip(found, (wanted[0], *wanted), strict=True))


def _batch_norm_backward_elemt(
    grad: torch.Tensor,
    data: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    of_sum: torch.Tensor,
    of_product: torch.Tensor,
    counts: torch.Tensor,
) -> torch.Tensor:
    total = counts.sum()
    centred = (_widened(data) - _per_channel(mean, data)) * _per_channel(invstd**2 * of_product / total, data)
    scale = invstd if weight is None else invstd * weight
    result = (_widened(grad) - _per_channel(of_sum / total, data) - centred) * _per_channel(scale, data)
    return torch.empty_like(data).copy_(result)


CUDA_ONLY: dict[TorchAny, TorchFunction] = {
    aten.cudnn_convolution.default: _cudnn_convolution,
    aten.cudnn_convolution_transpose.default: _cudnn_convolution_transpose,
    aten.cudnn_convolution_relu.default: lambda data, weight, *rest: _cudnn_convolution_add_relu(data, weight, 0, None, *rest),
    aten.cudnn_convolution_add_relu.default: _cudnn_convolution_add_relu,
    **{op.default: decomposition_table[op.default] for op in (aten.cudnn_batch_norm, aten.cudnn_batch_norm_backward)},
    aten.cudnn_grid_sampler.default: lambda data, grid: aten.grid_sampler_2d(data, grid, 0, 0, True),
    aten.cudnn_grid_sampler_backward.default: lambda data, grid, grad: aten.grid_sampler_2d_backward(
        grad, data, grid, 0, 0, True, [True, True]
    ),
    aten.cudnn_affine_grid_generator.default: lambda theta, *sizes: aten.affine_grid_generator(theta, sizes, True),
    aten.cudnn_affine_grid_generator_backward.default: lambda grad, *sizes: aten.affine_grid_generator_backward(
        grad, sizes, True
    ),
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    aten.batch_norm_stats.default: _batch_norm_stats,
    aten.batch_norm_gather_stats.default: _batch_norm_gather_stats,
    aten.batch_norm_gather_stats_with_counts.default: _batch_norm_gather_stats,
    aten.batch_norm_elemt.default: _batch_norm_elemt,
    aten.batch_norm_backward_reduce.default: _batch_norm_backward_reduce,
    aten.batch_norm_backward_elemt.default: _batch_norm_backward_elemt,
}
