# mypy: allow-untyped-calls
"""Simulates a recurrent network as one cuDNN call for all layers, directions and time steps.

    nn.LSTM(6, 4).cuda()(x)     # aten::_cudnn_rnn; its backward is aten::_cudnn_rnn_backward
    pack_padded_sequence(x, lengths=torch.tensor([5, 3]), batch_first=True)    # data of 8 rows, on the device

This module reimplements PyTorch's ATen/native/cudnn/RNN.cpp and ATen/cudnn/AutocastRNN.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from replayer.errors import warn_at_script
from replayer.op_signature import OpSignature
from replayer.ops import kept_library
from replayer.ops.composite import rnn_cells
from replayer.ops.composite.rnn_cells import LayerOptions
from replayer.state import gpu
from replayer.tensor.allocation import allocate, assign_data, make
from replayer.tensor.planning import mixed_devices
from replayer.tensor.planning.cuda_dtypes import scalar_type
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import Op, TorchAny, TorchFunction

aten = torch.ops.aten

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # values of cudnnRNNMode_t
_WITHOUT_FUSED_CELL = (MODES["rnn_relu"], MODES["rnn_tanh"])

# Autocast casts these dtypes to half for cuDNN's RNNs, even with `torch.autocast(dtype=torch.bfloat16)`
# (ATen/cudnn/AutocastRNN.cpp).
_CAST_TO_HALF = (torch.float32, torch.bfloat16)

# runs the op without cuDNN or fused cells; `op.decompose` would use PyTorch's rules for tracing
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

_NOT_ONE_BUFFER = (
    "RNN module weights are not part of single contiguous chunk of memory. This means they need to be compacted at every "
    "call, possibly greatly increasing memory usage. To compact weights again call flatten_parameters()."
)


def _cudnn_accepts(data: torch.Tensor) -> bool:
    if not torch._C._get_cudnn_enabled() or not data.numel():
        return False
    if data.dtype is torch.bfloat16:
        return torch.cuda.get_device_capability(data.get_device()) >= (8, 0)
    return data.dtype in (torch.float16, torch.float32, torch.float64)


def _weight_buffer(weights: list[TorchAny]) -> TorchAny:
    first = weights[0].tensor_meta
    at = first.offset
    for weight in weights:
        meta = weight.tensor_meta
        if weight.allocation is not weights[0].allocation or meta.offset != at or meta.dtype is not first.dtype:
            return None
        at += meta.numel
    meta = VirtualTensor.plan_cache.metas.of((at - first.offset,), (1,), first.offset, first.dtype, first.index)
    return make(meta, weights[0].allocation)


def _require_one_dtype(data: torch.Tensor, hidden: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
    """See `check_attributes` in ATen/native/RNN.h."""
    casts = dict.fromkeys(_CAST_TO_HALF if torch.is_autocast_enabled("cuda") else (), torch.float16)
    expected = casts.get(data.dtype, data.dtype)
    for name, tensors in (("hidden", hidden), ("parameter", weights)):
        for tensor in tensors:
            found = casts.get(tensor.dtype, tensor.dtype)
            if found != expected:
                raise RuntimeError(
                    f"Input and {name} tensors are not the same dtype, found input tensor with {scalar_type(expected)} and"
                    f" {name} tensor with {scalar_type(found)}"
                )


def _run(
    mode: int, data: torch.Tensor, sizes: list[int], hidden: list[torch.Tensor], weights: list[torch.Tensor],
    how: LayerOptions, batch_first: bool
) -> tuple[TorchAny, ...]:  # fmt: skip
    hx, cx = hidden[0], hidden[1] if len(hidden) > 1 else None
    _require_one_dtype(data, hidden, weights)
    size, projected = hx.size(2), 0
    if cx is not None and cx.size(2) != size:
        size, projected = cx.size(2), size
    buffer = _weight_buffer(weights)
    if buffer is None:
        warn_at_script(_NOT_ONE_BUFFER)
    per_layer = (4 if how.biases else 2) + bool(projected)
    options = (mode, size, projected, how.layers, batch_first, how.dropout, how.train, how.bidirectional, sizes, None)
    result: tuple[TorchAny, ...] = aten._cudnn_rnn(data, weights, per_layer, buffer, hx, cx, *options)
    return result[:3]


def _layer(op: Op, mode: int, packed: bool, data: torch.Tensor, *args: TorchAny) -> TorchAny:
    mixed_devices.runner(op, (data, *args), {})
    by_cudnn = _cudnn_accepts(data)
    if not by_cudnn and mode in _WITHOUT_FUSED_CELL:
        return op._op_dk(_COMPOSITE, data, *args)
    sizes, hx, weights, *options = (args[0].tolist(), *args[1:]) if packed else ([], *args)
    batch_first = not packed and bool(options.pop())
    hidden = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    how = LayerOptions(*options)
    if by_cudnn:
        out, *states = _run(mode, data, sizes, hidden, list(weights), how, batch_first)
        return out, *states[: len(hidden)]
    out, *states = rnn_cells.layers(data.transpose(0, 1) if batch_first else data, sizes, hidden, list(weights), how)
    return (out.transpose(0, 1) if batch_first else out, *states[: len(hidden)])


def _buffer_for(weights: Sequence[TorchAny], dtype: torch.dtype) -> TorchAny:
    index = weights[0].tensor_meta.index
    meta = VirtualTensor.plan_cache.metas.contiguous((sum(weight.tensor_meta.numel for weight in weights),), dtype, index)
    return make(meta, allocate(gpu(), index, meta.extent_bytes))


def _views(buffer: TorchAny, weights: Sequence[TorchAny]) -> Iterator[TorchAny]:
    metas, offset, dtype = VirtualTensor.plan_cache.metas, 0, buffer.tensor_meta.dtype
    for weight in weights:
        packed = metas.contiguous(weight.tensor_meta.shape, dtype, weight.tensor_meta.index)
        yield make(metas.of(packed.shape, packed.stride, offset, dtype, packed.index), buffer.allocation)
        offset += packed.numel


def _under_autocast(
    data: torch.Tensor,
    weights: TorchAny,
    per_layer: int,
    buffer: torch.Tensor,
    hx: torch.Tensor,
    cx: TorchAny,
    *rest: TorchAny,
) -> TorchAny:
    half = torch.float16
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):  # type: ignore[attr-defined]
        if weights[0].dtype in _CAST_TO_HALF:
            buffer = _buffer_for(weights, half)
            weights = [view.copy_(weight) for view, weight in zip(_views(buffer, weights), weights, strict=True)]
        data, hx, cx = (x.to(half) if x is not None and x.dtype in _CAST_TO_HALF else x for x in (data, hx, cx))
        return aten._cudnn_rnn(data, weights, per_layer, buffer, hx, cx, *rest)


def handlers(run: TorchFunction) -> dict[TorchAny, TorchFunction]:
    def backward(*args: TorchAny) -> TorchAny:
        data, hx, cx, flat = run(aten._cudnn_rnn_backward.default, *args)
        return data, hx, cx, list(_views(flat[0], args[1])) if flat else []

    return {
        aten._pack_padded_sequence.default: _pack,
        aten._cudnn_rnn_flatten_weight.default: _flatten,
        aten._cudnn_rnn_backward.default: backward,
    }


def _pack(padded: TorchAny, lengths: torch.Tensor, batch_first: bool) -> tuple[TorchAny, torch.Tensor]:
    meta = padded.tensor_meta
    rows, batch_sizes = aten._pack_padded_sequence(torch.zeros(meta.shape[:2]).unsqueeze(-1), lengths, batch_first)
    packed = VirtualTensor.plan_cache.metas.contiguous((rows.size(0), *meta.shape[2:]), meta.dtype, meta.index)
    made = make(packed, allocate(gpu(), meta.index, packed.extent_bytes))
    shapes, dtypes = (meta.shape, tuple(lengths.shape)), (meta.dtype_name, "int64")
    gpu().launches.launch(OpSignature("aten::_pack_padded_sequence", shapes, dtypes, (packed.shape,)), meta.index)
    return made, batch_sizes


def _flatten(weights: list[TorchAny], *_rnn: TorchAny) -> TorchAny:
    buffer = _buffer_for(weights, weights[0].tensor_meta.dtype)
    for weight, view in zip(weights, _views(buffer, weights), strict=True):
        shape, name = view.tensor_meta.shape, view.tensor_meta.dtype_name
        gpu().launches.launch(OpSignature("aten::copy_", (shape, shape), (name, name)), view.tensor_meta.index)
        assign_data(weight, view.tensor_meta, view.allocation)
    return buffer


def register(plans: PlanCache) -> None:
    library = kept_library()
    layers: dict[TorchAny, TorchAny] = {
        aten.lstm_cell.default: partial(rnn_cells.checked, rnn_cells.lstm_cell),
        aten.gru_cell.default: partial(rnn_cells.checked, rnn_cells.gru_cell),
    }
    for name, mode in MODES.items():
        packet = getattr(aten, name)
        layers |= {of: partial(_layer, of, mode, of is packet.data) for of in (packet.input, packet.data)}
    for op, layer in layers.items():
        library.impl(op, layer, "AutogradLazy")
        plans.composites[op] = layer
    library.impl("_cudnn_rnn", _under_autocast, "AutocastPrivateUse1")
