# mypy: allow-untyped-calls
"""Implements CUDA-only ops, such as cuDNN's RNNs, on the CPU.

    FORMS[torch.ops.aten._scaled_dot_product_flash_attention.default](q, k, v, 0.1, True)

The backward pass of dropout uses the random numbers of the forward pass.
"""

from __future__ import annotations

from functools import partial

import torch
from torch._decomp import decomposition_table

from replayer.ops.cpu import attention
from replayer.ops.cpu.wider_dtypes import in_wider_dtypes, on_meta
from replayer.ops.data_dependent import repeated
from replayer.tensor.planning.shape_rules import RULES, require_training
from replayer.tensor.values.cuda_only_ops import CUDA_ONLY
from replayer.torch_types import TorchAny, TorchFunction

aten = torch.ops.aten


def _gradients(forward: TorchFunction, inputs: list[torch.Tensor], gradients: TorchAny) -> list[TorchAny]:
    keys, excluded = torch._C.DispatchKey, torch._C._dispatch_tls_local_exclude_set()
    for key in (keys.AutogradCPU, keys.ADInplaceOrView):
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded), torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs]
        pairs = [(y, g) for y, g in zip(forward(*leaves), gradients, strict=False) if g is not None]
        return list(
            torch.autograd.grad([y for y, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True, materialize_grads=True)
        )


_LAYERS = (aten.rnn_relu, aten.rnn_tanh, aten.lstm, aten.gru)  # as in cudnnRNNMode_t


def _layers(
    data: torch.Tensor, weights: TorchAny, per_layer: int, hx: torch.Tensor, cx: TorchAny, options: TorchAny
) -> tuple[TorchAny, ...]:
    mode, _, _, layers, batch_first, dropout, train, bidirectional, sizes, *_ = options
    hidden = hx if cx is None else [hx, cx]
    shared = (weights, per_layer >= 4, layers, dropout, train, bidirectional)
    if sizes:
        result = _LAYERS[mode].data(data, torch.tensor(sizes, device="cpu"), hidden, *shared)
    else:
        result = _LAYERS[mode].input(data, hidden, *shared, batch_first)
    made: tuple[TorchAny, ...] = result
    return made


def _cudnn_rnn(
    data: torch.Tensor,
    weights: list[torch.Tensor],
    per_layer: int,
    buffer: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    *options: TorchAny,
) -> TorchAny:
    reserve = torch.get_rng_state() if options[6] else data.new_empty((0,), dtype=torch.uint8)
    out, hy, *cy = _layers(data, weights, per_layer, hx, cx, options)
    if buffer is None:
        buffer = torch.cat([weight.reshape(-1) for weight in weights])
    return out, hy, cy[0] if cy else hx.new_empty((0,)), reserve, buffer


def _cudnn_rnn_backward(
    data: torch.Tensor, weights: list[torch.Tensor], per_layer: int, buffer: torch.Tensor, hx: torch.Tensor,
    cx: torch.Tensor | None, out: torch.Tensor,
    grad: torch.Tensor, grad_hy: TorchAny, grad_cy: TorchAny,
    *rest: TorchAny
) -> TorchAny:  # fmt: skip
    *options, reserve, mask = rest
    require_training(options[6])
    now = torch.get_rng_state()
    torch.set_rng_state(reserve.clone())
    states = [hx] if cx is None else [hx, cx]

    def forward(data: torch.Tensor, hx: torch.Tensor, *rest: TorchAny) -> TorchAny:
        cx, weights = (None, rest) if len(states) == 1 else (rest[0], rest[1:])
        return _layers(data, list(weights), per_layer, hx, cx, options)

    gradients = _gradients(forward, [data, *states, *weights], (grad, grad_hy, grad_cy))
    torch.set_rng_state(now)
    flat = torch.cat([g.reshape(-1) for g in gradients[1 + len(states) :]])
    of_weights = [part.view_as(w) for part, w in zip(flat.split([w.numel() for w in weights]), weights, strict=True)]
    return gradients[0], gradients[1], gradients[2] if cx is not None else None, of_weights if mask[3] else []


def _flatten(weights: TorchAny, *_rnn: TorchAny) -> TorchAny:
    flat = torch.cat([weight.reshape(-1) for weight in weights])
    at = 0
    for weight in weights:
        aten.set_.source_Tensor_storage_offset(weight, flat, at, weight.shape, list(weight.contiguous().stride()))
        at += weight.numel()
    return flat


def _softmax_of(call: TorchAny, data: torch.Tensor, dim: int, half_to_float: bool) -> TorchAny:
    return call(data.float() if half_to_float else data, dim)


def _softmax_backward_of(
    call: TorchAny, grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> TorchAny:
    return call(grad, output, dim, output.dtype).to(input_dtype)


def _histc(data: TorchAny, *bins: TorchAny) -> TorchAny:
    return aten.histc(data, *bins) if data.is_floating_point() else aten.histc(data.double(), *bins).to(data.dtype)


def _exponential(data: torch.Tensor, rate: float = 1.0, **options: TorchAny) -> torch.Tensor:
    """Draw random numbers above 0. As on CUDA, the smallest number is half the dtype's epsilon divided by `rate`. For half
    precision, CUDA uses the epsilon of float32."""
    drawn: torch.Tensor = aten.exponential_(data, rate, **options)
    return drawn.clamp_(torch.finfo(torch.promote_types(data.dtype, torch.float32)).eps / 2 / rate)


def _drawn(op: TorchAny, source: torch.Tensor, *rest: TorchAny, **options: TorchAny) -> TorchAny:
    """Draw random numbers, in float32 if the dtype is half precision. As on CUDA, random floats are never 0, and numbers of a
    Dirichlet distribution are never 1."""
    made = op(source.float() if source.dtype in (torch.float16, torch.bfloat16) else source, *rest, **options)
    if not made.is_floating_point():
        return made
    bounds = torch.finfo(source.dtype)
    return made.to(source.dtype).clamp_(bounds.tiny, 1 - bounds.eps if op is aten._sample_dirichlet.default else None)


def _divide(op: TorchAny, one: TorchAny, other: TorchAny, **options: TorchAny) -> TorchAny:
    """Divide integers by 1 instead of 0, and divide the smallest integer by 1 instead of -1. On the CPU, both divisions raise
    an error or end the process. On CUDA, both divisions have a result: the smallest integer divided by -1 is the smallest
    integer."""
    dtype = torch.result_type(one, other)
    if dtype in _INTEGERS and options.get("rounding_mode", "floor"):
        other = other if isinstance(other, torch.Tensor) else torch.full((), other, device="cpu").to(dtype)
        other = other.where((other != 0) & ((other != -1) | (one != torch.iinfo(dtype).min)), 1)
    return op.overloadpacket(one, other, **options)


def _embedding_bag(op: TorchAny, weight: TorchAny, indices: torch.Tensor, offsets: torch.Tensor, *rest: TorchAny) -> TorchAny:
    """Replace the first offset by 0. CUDA's embedding_bag accepts any number as the first offset, but the CPU kernel accepts
    only 0."""
    bounds = offsets.clone()
    bounds[:1] = 0
    if len(rest) > 4 and rest[4]:  # the offsets contain the end of the last bag
        bounds[1:][-1:] = indices.numel()
    return op(weight, indices, bounds, *rest)


def _fused_adam(op: TorchAny, *lists: TorchAny, **options: TorchAny) -> TorchAny:
    """Compute in float32 if the optimizer's states are in bfloat16 and the parameters are not, as CUDA's fused Adam kernel
    does."""
    dtypes = {tensor.dtype for tensors in lists[:5] for tensor in tensors}
    return op(*lists, **options) if len(dtypes) < 2 else in_wider_dtypes(op, op, list(lists), options)


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_PACKETS = [getattr(aten, name + end) for name in ("div", "remainder", "fmod", "floor_divide") for end in ("", "_")]
_DIVISIONS = [
    division
    for packet in _PACKETS
    for division in (getattr(packet, name) for name in packet.overloads() if "mode" in name or packet not in _PACKETS[:2])
    if str(division._schema.returns[0].type) == "Tensor"
]


def _product(op: TorchAny) -> TorchFunction:
    def product(*args: TorchAny, out: TorchAny = None, **scalars: TorchAny) -> TorchAny:
        *factors, out_dtype = args
        if out_dtype not in (factors[-1].dtype, torch.float32):
            raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
        result = op(*(factor.to(out_dtype) for factor in factors), **scalars)
        return result if out is None else out.resize_(result.shape).copy_(result)

    return product


_PRODUCTS = [packet for packet in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm) if "dtype" in packet.overloads()]


def _on_copy(op: TorchAny, data: torch.Tensor, *args: TorchAny, **options: TorchAny) -> TorchAny:
    """Run an op on a copy of its input. CPU kernels such as `cumsum` cannot write their output to their input's memory."""
    return op(data.clone(), *args, **options)


def _checked_on_meta(op: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    """Run an op on the CPU and on meta tensors. The meta kernel raises errors for some shapes that the CPU kernel accepts."""
    result = op(*args, **kwargs)
    on_meta(op, args, kwargs)
    return result


FORMS: dict[TorchAny, TorchFunction] = {
    **CUDA_ONLY,
    # On the CPU, some convolutions return another memory format than on CUDA, for example conv3d in float16.
    **{op.default: RULES[op.default] for op in (aten.convolution, aten.convolution_backward)},
    aten.histc.default: _histc,
    aten._scaled_mm.default: partial(_checked_on_meta, aten._scaled_mm.default),
    **{op: partial(_on_copy, op) for op in (aten.cumsum.out, aten.cumprod.out, aten.logcumsumexp.out, aten.topk.values)},
    aten._linalg_svd.default: lambda data, *options, driver=None: aten._linalg_svd.default(data, *options),
    aten.nansum.default: lambda x, *dims, **dtype: x.where(~x.isnan(), 0).sum(*dims, **dtype),
    aten.exponential_.default: _exponential,
    **{op.default: partial(_drawn, op.default) for op in (aten.multinomial, aten._standard_gamma, aten._sample_dirichlet)},
    **{division: partial(_divide, division) for division in _DIVISIONS},
    **{
        adam: partial(_fused_adam, adam)
        for packet in (aten._fused_adam_, aten._fused_adamw_)
        for adam in (packet.default, packet.tensor_lr)
    },
    **{bag: partial(_embedding_bag, bag) for bag in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)},
    aten.repeat_interleave.Tensor: lambda repeats, *, output_size=None: repeated(repeats, output_size),
    aten.abs.default: lambda x: x.clone() if x.dtype is torch.bool else aten.abs(x),
    **{form: _product(packet.default) for packet in _PRODUCTS for form in (packet.dtype, packet.dtype_out)},
    **attention.FORMS,
    aten._cudnn_rnn.default: _cudnn_rnn,
    aten._cudnn_rnn_backward.default: _cudnn_rnn_backward,
    aten._cudnn_rnn_flatten_weight.default: _flatten,
    aten._fused_rms_norm_backward.default: decomposition_table[aten._fused_rms_norm_backward.default],
    aten._softmax.default: partial(_softmax_of, torch.softmax),
    aten._log_softmax.default: partial(_softmax_of, torch.log_softmax),
    aten._softmax_backward_data.default: partial(_softmax_backward_of, aten._softmax_backward_data),
    aten._log_softmax_backward_data.default: partial(_softmax_backward_of, aten._log_softmax_backward_data),
}
