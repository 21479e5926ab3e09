# mypy: allow-untyped-calls
"""Chooses CUDA's kernels for ops such as attention, softmax and CTC loss.

    F.scaled_dot_product_attention(q, k, v)    # half precision on an A100: aten::_scaled_dot_product_flash_attention

PyTorch cannot choose the kernels itself, because virtual tensors are not CUDA tensors in C++ code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from replayer import state
from replayer.errors import require
from replayer.ops import kept_library, op_named
from replayer.tensor.planning.cuda_dtypes import HALVES, scalar_type
from replayer.tensor.planning.mixed_devices import decomposed
from replayer.tensor.planning.mixed_dtypes import cpp_type, require_powers_of_two
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.torch_types import Op, TorchAny, TorchFunction
from traces.script.phase_rule import LOSS_OPS

aten = torch.ops.aten

_LOSSES_MADE_OF_LOSS_OPS = frozenset(("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "log_softmax", "ctc_loss"))
_COMPOSITE = "CompositeImplicitAutograd"

_MASK_STEP = 8  # a mask's strides must be multiples of this number of elements

_KEYS_OF_TRACING = ("AutogradLazy", "AutogradPrivateUse1", "AutogradCUDA")

CUDNN, FLASH, EFFICIENT, MATH = "cudnn", "flash", "efficient", "math"

# On H100 and B200 GPUs, PyTorch tries cuDNN's attention first (check_prefer_cudnn_attention in
# ATen/native/transformers/cuda/sdp_utils.cpp).
_CUDNN_FIRST_ON, _CUDNN_FIRST_AFTER = (9, 10), 91500
_CUDNN_HEAD_SIZE, _CUDNN_LARGEST_DIMENSION = 128, 65535
_SMALL_SHARED_MEMORY = ((8, 6), (8, 7), (8, 9), (12, 0))
_CUDNN_DROPOUT_STEPS = 16  # cuDNN supports multiples of 1/16 since PyTorch 2.12


def attention_kernel(
    params: TorchAny,
    capability: tuple[int, int],
    *,
    cudnn: int = 0,
    rounds_dropout: bool = False,
    groups_efficient: bool = False,
) -> str:
    """Return the attention kernel that CUDA uses (ATen/native/transformers/cuda/sdp_utils.cpp).

    Args:
        params: `torch.backends.cuda.SDPAParams`
        cudnn: the cuDNN version, such as 91900, or 0 without cuDNN's attention
        rounds_dropout: cuDNN's attention rounds the dropout probability, as in PyTorch 2.11 and earlier
        groups_efficient: memory-efficient attention supports `enable_gqa`, as in PyTorch 2.14 and later
    """
    if params.query.dim() != 4:
        return MATH
    comes_first = capability[0] in _CUDNN_FIRST_ON and cudnn > _CUDNN_FIRST_AFTER
    considered = comes_first or (capability >= (8, 0) and not torch.backends.cuda.math_sdp_enabled())
    keeps_dropout = rounds_dropout or (params.dropout * _CUDNN_DROPOUT_STEPS).is_integer()
    suits_cudnn = considered and keeps_dropout and _suits_cudnn(params)
    if comes_first and suits_cudnn:
        return CUDNN
    if _suits_flash(params, capability):
        return FLASH
    if _suits_efficient(params, capability, groups_efficient):
        return EFFICIENT
    return CUDNN if suits_cudnn else MATH


def can_use_attention(kernel: str, params: TorchAny, debug: bool = False) -> bool:
    if not params.query.dim() == params.key.dim() == params.value.dim() == 4:
        return False
    capability = torch.cuda.get_device_capability(params.query.get_device())
    if kernel == FLASH:
        return _suits_flash(params, capability)
    if kernel == EFFICIENT:
        return _suits_efficient(params, capability, not state.gpu().machine.is_before(2, 14))
    return capability >= (8, 0) and _suits_cudnn(params)


def _suits_all(params: TorchAny, grouped: bool) -> bool:
    tensors = params.query, params.key, params.value
    (batch, heads, tokens, _), (of_key, key_heads, keys, _), (of_value, value_heads, *_) = (of.shape for of in tensors)
    if not batch == of_key == of_value or not (tokens and keys) or key_heads != value_heads:
        return False
    if heads != key_heads and not (grouped and key_heads > 0 and heads % key_heads == 0):
        return False
    return all(tensor.stride(-1) == 1 or tensor.size(-1) == 1 for tensor in tensors)


def _suits_flash(params: TorchAny, capability: tuple[int, int]) -> bool:
    query, key, value = params.query, params.key, params.value
    size = query.size(-1)
    is_large = capability in _SMALL_SHARED_MEMORY and (192 < size <= 224 or (size > 224 and params.dropout))
    if is_large and any(tensor.requires_grad for tensor in (query, key, value)):
        return False
    # For unequal numbers of queries and keys, flash attention's causal mask differs from PyTorch's.
    if params.is_causal and query.size(2) != key.size(2):
        return False
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and query.dtype in HALVES
        and params.attn_mask is None
        and key.size(-1) == value.size(-1) == size
        and size <= 256
        and capability >= (8, 0)
        and _suits_all(params, params.enable_gqa)
    )


def _suits_efficient(params: TorchAny, capability: tuple[int, int], groups: bool) -> bool:
    query, key, value = params.query, params.key, params.value
    half = query.dtype in HALVES
    step = 16 // query.element_size() if capability >= (8, 0) or (half and capability >= (7, 0)) else 1
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and (half or query.dtype is torch.float32)
        and not (query.dtype is torch.bfloat16 and capability < (8, 0))
        and capability >= (5, 0)
        and _suits_all(params, params.enable_gqa and groups)
        and query.size(-1) == key.size(-1)
        and all(size > 0 and size % step == 0 for size in (query.size(-1), value.size(-1)))
    )


def _suits_cudnn(params: TorchAny) -> bool:
    """See can_use_cudnn_attention in sdp_utils.cpp."""
    query, key, value, mask = params.query, params.key, params.value, params.attn_mask
    return (
        torch.backends.cuda.cudnn_sdp_enabled()
        and query.dtype in HALVES
        and _suits_all(params, params.enable_gqa)
        and all(size <= _CUDNN_HEAD_SIZE and size % 8 == 0 for size in (query.size(-1), value.size(-1)))
        and key.size(-1) == query.size(-1)
        and max(query.shape[:2]) <= _CUDNN_LARGEST_DIMENSION
        and key.size(2) > 1
        and not (params.dropout and query.size(2) == 1)
        and not (mask is not None and mask.requires_grad)
        and (not torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled())
    )


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: TorchAny,
    value: TorchAny,
    attn_mask: TorchAny = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> TorchAny:
    _require_fitting(query, key, value, attn_mask, is_causal)
    if query.is_cpu:  # of the arguments, only the mask is on the GPU
        attend = aten._scaled_dot_product_flash_attention_for_cpu
        return attend(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    capability = torch.cuda.get_device_capability(query.get_device())
    machine = state.gpu().machine
    is_recent = "newer" not in (machine.torch or "newer") and not machine.is_before(2, 14)
    if is_recent and query.dim() == key.dim() == value.dim() == 3:  # torch 2.14 adds a batch dimension
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unsqueeze(0)
        q, k, v = (tensor.unsqueeze(0) for tensor in (query, key, value))
        made = scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return made.squeeze(0)
    params = torch.backends.cuda.SDPAParams(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    rounds_dropout, cudnn = machine.is_before(2, 12), machine.cudnn or 0
    chosen = attention_kernel(params, capability, cudnn=cudnn, rounds_dropout=rounds_dropout, groups_efficient=is_recent)
    saved = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    if chosen == CUDNN:
        bias = _as_bias(attn_mask, query)
        return aten._scaled_dot_product_cudnn_attention(query, key, value, bias, saved, dropout_p, is_causal, scale=scale)[0]
    if chosen == FLASH:
        size = query.size(-1)
        rest = -size % 8
        if rest:
            query, key, value = (torch.nn.functional.pad(tensor, (0, rest)) for tensor in (query, key, value))
            scale = size**-0.5 if scale is None else scale
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :size] if rest else out
    if chosen == EFFICIENT:
        if attn_mask is not None:
            attn_mask = _as_bias(attn_mask, query)
            require(attn_mask.dtype == query.dtype, "invalid dtype for bias - should match query's dtype")
            if attn_mask.stride(-1) != 1 or any(stride % _MASK_STEP for stride in attn_mask.stride()[:-1]):
                columns = attn_mask.size(-1)
                attn_mask = torch.nn.functional.pad(attn_mask, (0, _MASK_STEP - columns % _MASK_STEP))[..., :columns]
            attn_mask = attn_mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, saved, dropout_p, is_causal, scale=scale
        )[0]
    require(torch.backends.cuda.math_sdp_enabled(), "No available kernel. Aborting execution.")
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _require_fitting(query: torch.Tensor, key: TorchAny, value: TorchAny, attn_mask: TorchAny, is_causal: bool) -> None:
    if not query.dtype == key.dtype == value.dtype:
        names = [cpp_type(tensor.dtype) for tensor in (query, key, value)]
        raise RuntimeError(
            f"Expected query, key, and value to have the same dtype, but got query.dtype: {names[0]} key.dtype: {names[1]} and"
            f" value.dtype: {names[2]} instead."
        )
    if not query.device == key.device == value.device:
        raise RuntimeError(
            f"Expected query, key, and value to have the same device type, but got query.device: {query.device} key.device:"
            f" {key.device} and value.device: {value.device} instead."
        )
    if min(tensor.dim() for tensor in (query, key, value)) < 2:
        raise RuntimeError(
            f"Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: {query.dim()} key.dim:"
            f" {key.dim()} and value.dim: {value.dim()} instead."
        )
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype:"
            f" {cpp_type(attn_mask.dtype)} and  query.dtype: {cpp_type(query.dtype)} instead."
        )
    if attn_mask is not None and is_causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")


def _as_bias(mask: TorchAny, query: torch.Tensor) -> TorchAny:
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, 0.0, float("-inf")).to(query.dtype)


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> TorchAny:
    """On CUDA, softmax converts half precision to float32 without a separate kernel (ATen/native/SoftMax.cpp)."""
    return aten._softmax(*_to_softmax(input, dim, dtype))


def log_softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> TorchAny:
    return aten._log_softmax(*_to_softmax(input, dim, dtype))


def _to_softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None) -> tuple[TorchAny, int, bool]:
    half_to_float = input.dtype is torch.float16 and dtype is torch.float32
    return input if dtype is None or half_to_float else input.to(dtype), dim, half_to_float


def one_hot(labels: TorchAny, num_classes: int = -1) -> TorchAny:
    """On CUDA, only the `scatter` kernel checks the range of the labels (ATen/native/Onehot.cpp)."""
    require(labels.dtype is torch.int64, "one_hot is only applicable to index tensor of type LongTensor.")
    if num_classes < 1 and (num_classes != -1 or not labels.numel()):
        raise RuntimeError(
            "num_classes should be positive" if labels.numel() else "Can not infer total number of classes from empty tensor."
        )
    classes = max(int(labels.max()) + 1, 1) if num_classes == -1 else num_classes
    made = labels.new_zeros((*labels.shape, classes))
    return made.scatter_(-1, labels.unsqueeze(-1), 1) if labels.numel() else made


def ctc_loss(log_probs: TorchAny, targets: TorchAny, inputs: TorchAny, lengths: TorchAny, *options: TorchAny) -> TorchAny:
    # if the input has no batch dimension, each length is a tensor without dimensions
    sizes = inputs.flatten().tolist(), lengths.flatten().tolist()
    return aten.ctc_loss.IntList(log_probs, targets, *sizes, *options)


def observed_fake_quantization(x: torch.Tensor, observes: TorchAny, quantizes: TorchAny, *rest: TorchAny) -> TorchAny:
    """See native/quantized/cuda/FusedObsFakeQuant.cu."""
    low, high, scale, zero, *_, axis, per_channel, _symmetric = rest
    if per_channel and not low.numel():
        for buffer in (low, high, scale, zero):
            buffer.resize_(x.size(axis))
        low.fill_(float("inf"))
        high.fill_(float("-inf"))
    return aten._fused_moving_avg_obs_fq_helper(x, observes, quantizes, *rest)[0]


# Errors of these ops contain the device.
_NAMES_DEVICES = (
    "inner linalg_multi_dot chain_matmul take_along_dim tensor_split.tensor_indices_or_sections gradient.scalarint"
    " gradient.scalararray gradient.array gradient.scalarrayint gradient.scalarrayarray gradient.tensorarrayint"
    " gradient.tensorarray cosine_similarity stft stft.center istft linalg_matrix_rank.tol_tensor"
    " linalg_matrix_rank.atol_rtol_tensor"
)
_NAMES_DEVICES_OF_OUT = (
    "inner linalg_multi_dot take_along_dim tensordot diff special_ndtr nuclear_norm norm linalg_norm linalg_matrix_norm"
    " linalg_vecdot linalg_cond linalg_matrix_power linalg_matrix_rank linalg_tensorinv linalg_tensorsolve"
)


def _in_words_of_cuda(op: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    result = decomposed(op, args, kwargs, torch._C.DispatchKey.CompositeImplicitAutograd)
    out: TorchAny = kwargs.get("out", result)
    return out if result is out else out.copy_(result)  # for a tensor subclass, PyTorch's matrix_rank does not write to `out`


_TRANSFORMS = [f"fft_{kind}{dims}" for kind in "fft ifft rfft irfft hfft ihfft".split() for dims in ("", "2", "n")]
_WIDE = {torch.float16: torch.float32, torch.complex32: torch.complex64}
_HALF = {wide: half for half, wide in _WIDE.items()}


def _transform(op: TorchAny, data: torch.Tensor, n: TorchAny = None, *where: TorchAny, **options: TorchAny) -> torch.Tensor:
    if data.dtype not in _WIDE:
        made: torch.Tensor = _in_words_of_cuda(op, data, n, *where, **options)
        return made
    try:
        out = _in_words_of_cuda(op, data.to(_WIDE[data.dtype]), n, *where, **options)
    except RuntimeError as error:
        raise RuntimeError(str(error).replace(scalar_type(_WIDE[data.dtype]), scalar_type(data.dtype))) from None
    usual = next(argument.default_value for argument in op._schema.arguments if argument.name == "dim")
    dim = where[0] if where else options.get("dim", usual)
    given = [n] if isinstance(n, int) else n
    if dim is None:
        dim = range(-data.dim() if given is None else -len(given), 0)
    dims = [dim] if isinstance(dim, int) else list(dim)
    sizes = [out.size(each) for each in dims]
    # a real FFT's output has only half as many elements in the last dimension
    if "_rfft" in op._schema.name or "_ihfft" in op._schema.name:
        sizes[-1] = data.size(dims[-1]) if given is None else given[-1]
    require_powers_of_two(sizes)
    narrowed: torch.Tensor = out.to(_HALF[out.dtype])
    return narrowed


_WITH_CUDA_KERNEL = (aten._fused_rms_norm.default, aten.mish_backward.default, aten.silu_backward.default)


def _never_called(*args: TorchAny) -> TorchAny:
    raise AssertionError("__torch_dispatch__ handles all ops of virtual tensors")


def register(plans: PlanCache) -> None:
    library = kept_library()

    def replace(op: Op, replacement: TorchFunction, keys: Sequence[str] = ("AutogradLazy",)) -> None:
        for key in keys:
            library.impl(op, replacement, key)
        plans.composites[op] = replacement

    for name in sorted(LOSS_OPS - _LOSSES_MADE_OF_LOSS_OPS):
        op = op_named(name)
        if op is not None and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSITE):
            replace(op, partial(_call_loss, op))
    for op, choice in (
        (aten.ctc_loss.Tensor, ctc_loss),
        (aten.softmax.int, softmax),
        (aten.one_hot.default, one_hot),
        (aten.log_softmax.int, log_softmax),
        (aten.fused_moving_avg_obs_fake_quant.default, observed_fake_quantization),
        (aten.scaled_dot_product_attention.default, scaled_dot_product_attention),
    ):
        replace(op, choice, _KEYS_OF_TRACING)
    packets = [getattr(aten, name) for name in _NAMES_DEVICES_OF_OUT.split()]
    names = _NAMES_DEVICES.split()
    names += [f"{packet.__name__}.{overload}" for packet in packets for overload in packet.overloads() if "out" in overload]
    for name in names:
        op = op_named(name)
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSITE):
            replace(op, partial(_in_words_of_cuda, op))
    for op in map(op_named, _TRANSFORMS):
        replace(op, partial(_transform, op))
    for op in _WITH_CUDA_KERNEL:
        library.impl(op, _never_called, "Lazy")
        plans.with_kernel.add(op)


def _call_loss(op: Op, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    if (gpu := state.started()) is not None:
        gpu.steps.loss_called()
    return op.decompose(*args, **kwargs)
