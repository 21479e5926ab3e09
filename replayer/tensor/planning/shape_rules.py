"""Computes result shapes of ops without a usable meta kernel.

    RULES[torch.ops.aten.linalg_lstsq.default](a, b)[0].shape     # shape of the solution, for `a` and `b` on "meta"
"""

from __future__ import annotations

import numpy as np
import torch

from replayer.tensor.values.cuda_only_ops import CUDA_ONLY, conv_format, convolution
from replayer.torch_types import Args, Op, TorchAny, TorchFunction

aten = torch.ops.aten


def _convolution_backward(grad: torch.Tensor, data: torch.Tensor, weight: torch.Tensor, *rest: TorchAny) -> TorchAny:
    layout = conv_format(data, weight)
    of_data, of_weight, of_bias = aten.convolution_backward.default(grad, data, weight, *rest)
    of_data, of_weight = (x if x is None else x.contiguous(memory_format=layout) for x in (of_data, of_weight))
    return of_data, of_weight, of_bias


def _cudnn_rnn(
    data: torch.Tensor, weights: list[torch.Tensor], per_layer: int, buffer: torch.Tensor, hx: torch.Tensor,
    cx: torch.Tensor | None, mode: int, size: int,
    projected: int, layers: int,
    batch_first: bool, dropout: float, train: bool, bidirectional: bool, batch_sizes: TorchAny, state: TorchAny
) -> TorchAny:  # fmt: skip
    """cuDNN does not document the size of its `reserve` tensor, so the size is an estimate."""
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


def _lstsq(a: torch.Tensor, b: torch.Tensor, rcond: TorchAny = None, *, driver: TorchAny = None) -> TorchAny:
    over = a.size(-2) > a.size(-1)
    solution = b.new_empty((*b.shape[:-2], a.size(-1), b.size(-1)))
    residuals = b.new_empty((*b.shape[:-2], b.size(-1)) if over else (0,))
    return solution, residuals, a.new_empty((0,), dtype=torch.int64), a.new_empty((0,))


def _segment_reduce(
    data: torch.Tensor, *rest: TorchAny, lengths: TorchAny = None, offsets: TorchAny = None, **options: TorchAny
) -> torch.Tensor:
    given = offsets if lengths is None else lengths
    segments = given.size(-1) - (lengths is None)
    return data.new_empty((*data.shape[: given.dim() - 1], segments, *data.shape[given.dim() :]))


def _second(grad: torch.Tensor, x: torch.Tensor, *rest: TorchAny, **options: TorchAny) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_REDUCED_IN_PLACE = frozenset({
    aten.mse_loss.default, aten.smooth_l1_loss.default, aten.soft_margin_loss.default, aten.binary_cross_entropy.default,
})  # fmt: skip


def whole_loss(func: Op, result: TorchAny, args: Args) -> TorchAny:
    """Reserve memory for the losses of all elements, even if the result is their mean or sum. PyTorch allocates a tensor for
    all elements and then resizes it to a scalar, which frees no memory (ATen/native/Loss.cpp)."""
    if func not in _REDUCED_IN_PLACE or result.dim():
        return result
    return result.new_empty(np.broadcast_shapes(args[0].shape, args[1].shape)).resize_(())


def _with_scalars(name: str) -> dict[TorchAny, TorchFunction]:
    packet = getattr(aten, f"_foreach_{name}")
    return {packet.Tensor: lambda *lists: packet.ScalarList(*lists[:3], [1.0] * lists[3].numel())}


RULES: dict[TorchAny, TorchFunction] = {
    **CUDA_ONLY,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._cudnn_rnn.default: _cudnn_rnn,
    aten._cudnn_rnn_backward.default: _cudnn_rnn_backward,
    **dict.fromkeys((aten._ctc_loss.default, aten._ctc_loss.Tensor), _ctc_loss),
    **dict.fromkeys(
        (aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor), lambda grad, data, *rest, **_: torch.empty_like(data)
    ),
    aten.multi_margin_loss.default: lambda x, target, p=1, margin=1, weight=None, reduction=1: _loss(
        x, target, reduction=reduction
    ),
    aten.multi_margin_loss_backward.default: _second,
    aten.multilabel_margin_loss_forward.default: lambda x, target, reduction: (
        _loss(x, target, reduction=reduction), torch.empty_like(target, dtype=x.dtype)
    ),
    aten.multilabel_margin_loss_backward.default: _second,
    **_with_scalars("addcmul"), **_with_scalars("addcmul_"), **_with_scalars("addcdiv"), **_with_scalars("addcdiv_"),
    aten.linalg_lstsq.default: _lstsq,
    aten.poisson.default: lambda data, *rest: torch.empty_like(data, memory_format=torch.contiguous_format),
    aten.batch_norm_update_stats.default: lambda data, *rest: CUDA_ONLY[aten.batch_norm_stats.default](data, 0.0),
    aten.baddbmm.dtype: lambda _, one, other, dtype, **scalars: aten.bmm.dtype(one, other, dtype),
    aten.segment_reduce.default: _segment_reduce,
}
