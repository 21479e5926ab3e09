"""Counts the floating-point operations and the input bytes of an op, from its input shapes.

    flops("mm", ((1024, 512), (512, 256)))                  # 268435456
    size_bytes(((1024, 512), (512, 256)), "float32")        # 2621440
    compute_unit("convolution", "float32", TorchSettings())      # "tf32"

Op names are canonical names such as "mm" (`traces.names.equivalent_ops`). Profilers do not record the shapes of outputs.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import takewhile
from math import prod

from traces.model.layouts import Shape
from traces.model.machine import DEFAULT_SETTINGS, TorchSettings

_BITS = re.compile(r"\d+")
_UNITS = {"float64": "fp64", "complex128": "fp64", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8"}

MATMULS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addbmm", "_addmm_activation"})

# quantized matrix products: the first two inputs are the matrices, and the others scale them
SCALED_PRODUCTS = frozenset({"_scaled_mm", "_int_mm"})


# matrix products per weight of a recurrent layer, in the forward and in the backward pass
RNN_PASSES = {"rnn": 1, "rnn_backward": 2}


def rnn_weights(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    found = tuple(takewhile(lambda shape: len(shape) <= 2, shapes[1:]))
    total = sum(prod(shape) for shape in found if len(shape) == 2)
    return tuple(shape for shape in found if shape and not (len(shape) == 1 and shape[0] >= total))


def flops(op: str, shapes: tuple[Shape, ...]) -> int:
    """Return the FLOPs of an op. Convolutions are assumed to have stride 1."""
    wide = [shape for shape in shapes if len(shape) > 1]
    if op.startswith("convolution") and len(wide) >= 2:
        weight, image = wide[-1], wide[-2] if op == "convolution" else max(wide[:-1], key=prod)
        each = 2 * image[0] * prod(image[2:]) * prod(weight)
        return each if op == "convolution" else 2 * each
    if op in RNN_PASSES and shapes:
        return RNN_PASSES[op] * 2 * prod(shapes[0][:-1]) * sum(prod(shape) for shape in rnn_weights(shapes) if len(shape) == 2)
    if op in MATMULS and len(wide) >= 2:
        left, right = wide[-2], wide[-1]
        return 2 * prod(left) * (right[0] if op == "linear" else right[-1])
    if op.startswith("attention") and len(wide) >= 3 and len(wide[0]) == 4:
        query, key = wide[0], wide[1]
        return (4 if op == "attention" else 10) * prod(query) * max(key[1:3])
    return 0


# orders of dimensions in attention ops: batch (b), heads (h), tokens (s) and channels (d); concatenated sequences have no batch
# dimension
_HEADS_FIRST, _TOKENS_FIRST = "bhsd", "bshd"
ATTENTION_LAYOUTS = {
    **dict.fromkeys(("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
                     "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
                     "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward",
                     "_cudnn_attention_forward", "_cudnn_attention_backward"), _HEADS_FIRST),
    **dict.fromkeys(("scaled_dot_product_attention", "_scaled_dot_product_fused_attention_overrideable",
                     "_scaled_dot_product_fused_attention_overrideable_backward", "flex_attention",
                     "flex_attention_backward"), _HEADS_FIRST),
    **dict.fromkeys(("_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward",
                     "_efficient_attention_backward", "_flash_attn_forward", "_flash_attn_backward",
                     "_flash_attn_varlen_forward", "_flash_attn_varlen_backward", "efficient_attention_forward_cutlass",
                     "mha_fwd", "mha_bwd", "fmha_v3_fwd", "fmha_v3_bwd", "mha_varlen_fwd", "mha_varlen_bwd",
                     "fmha_v3_varlen_fwd", "fmha_v3_varlen_bwd", "varlen_fwd", "flash_attn_varlen_func", "flash_attn_func"),
                    _TOKENS_FIRST),
}  # fmt: skip


def is_attention_backward(name: str) -> bool:
    return name.endswith(("_backward", "_bwd"))


def attention_flops(name: str, shapes: tuple[Shape, ...]) -> tuple[int, bool]:
    """Return the FLOPs of an attention op, and whether they are an upper bound. Attention computes two matrix products in the
    forward pass, and five in the backward pass."""
    backward = is_attention_backward(name)
    wide = [shape for shape in shapes if len(shape) > 2][1 if backward else 0 :]
    if len(wide) < 3 or len({len(shape) for shape in wide[:3]}) > 1:
        return 0, False
    query, key, value = wide[:3]
    if len(query) == 3:
        bounds = [shape for shape in shapes if len(shape) == 1]
        if not bounds or bounds[0] != (2,):
            return 0, False
        query, key, value = (1, *query), (1, *key), (1, *value)
    if len(query) != 4 or query[-1] != key[-1]:
        return 0, False
    tokens_first = ATTENTION_LAYOUTS[name] == _TOKENS_FIRST
    batch, heads, tokens, channels = (query[0], query[2], query[1], query[3]) if tokens_first else query
    keys = key[1] if tokens_first else key[2]
    each = 3 * channels + 2 * value[-1] if backward else channels + value[-1]
    return 2 * batch * heads * tokens * keys * each, tokens > 1


@cache
def itemsize(dtype: str) -> int:
    """Return the bytes per element of a PyTorch dtype, such as "float8_e4m3fn", or 4 for an unknown dtype."""
    bits = _BITS.search(dtype)
    return max(int(bits[0]) // 8, 1) if bits else 1 if dtype == "bool" else 4


def size_bytes(shapes: tuple[Shape, ...], dtype: str) -> int:
    return sum(map(prod, shapes)) * itemsize(dtype)


def compute_unit(op: str, dtype: str, settings: TorchSettings = DEFAULT_SETTINGS) -> str:
    """Return the precision in which the GPU computes a matrix product or convolution, such as "tf32". Since PyTorch 1.12, TF32
    is allowed by default in cuDNN's convolutions and recurrent layers, but not in matrix products."""
    unit = _UNITS.get(dtype, "fp8" if dtype.startswith("float8") else "fp32")
    if unit == "fp32":
        is_cudnn = op.startswith(("convolution", "_cudnn")) or op in RNN_PASSES
        allows_tf32 = settings.tf32_cudnn if is_cudnn else settings.tf32_matmul
        unit = "tf32" if (is_cudnn if allows_tf32 is None else allows_tf32) else "fp32"
    return unit
