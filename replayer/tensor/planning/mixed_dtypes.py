"""Raises the same errors as PyTorch's CUDA kernels for arguments with incompatible dtypes, and for overlapping views.

    require_dtypes(torch.ops.aten.mm.default, (matrix, matrix.half()))
    # RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::Half

The error messages are copied from aten/src/ATen (Blas.cpp, MemoryOverlap.cpp and others).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from typing import NoReturn

import torch

from replayer.errors import require
from replayer.state import computing
from replayer.tensor.plan import Where, argument_at
from replayer.tensor.planning.cuda_dtypes import HALVES, no_kernel, require_kernel, scalar_type
from replayer.torch_types import Kwargs, Op, TorchAny

_CPP_TYPES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16",
    torch.bool: "bool", torch.uint8: "unsigned char", torch.int8: "signed char", torch.int16: "short int",
    torch.int32: "int", torch.int64: "long int", torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}  # fmt: skip

_UNCOMMON = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2)
_IN_CUDNN = (torch.int8, torch.uint8, torch.int32)  # PyTorch passes only these integer dtypes on to cuDNN


def require_dtypes(func: Op, args: Sequence[TorchAny], kwargs: Kwargs) -> None:
    rule = _RULES.get(func)
    if rule is not None:
        rule(*args, **kwargs)
    require_kernel(func, args, kwargs)


def cpp_type(dtype: torch.dtype) -> str:
    return _CPP_TYPES.get(dtype, str(dtype))


def _same(first: int, second: int, text: str, name: Callable[[torch.dtype], str], *args: TorchAny, **_options: object) -> None:
    if args[first].dtype != args[second].dtype:
        raise RuntimeError(text.format(name(args[first].dtype), name(args[second].dtype)))


def _one_of(accepted: Sequence[torch.dtype], text: str, at: int, *args: TorchAny, **_options: object) -> None:
    if args[at].dtype not in accepted:
        raise RuntimeError(text.format(scalar_type(args[at].dtype)))


def _none_of(rejected: Sequence[torch.dtype], text: str, data: torch.Tensor, *_: object) -> None:
    require(data.dtype not in rejected, text)


def _type_name(tensor: torch.Tensor) -> str:
    if tensor.dtype in (torch.bool, torch.bfloat16) or tensor.is_complex():
        return f"{tensor.device.type.upper()}{scalar_type(tensor.dtype)}Type"
    return tensor.type()


def _int_mm(one: torch.Tensor, other: torch.Tensor, **_options: object) -> None:
    """See `_int_mm_out_cuda` in ATen/native/cuda/Blas.cpp."""
    for name, matrix in (("self", one), ("mat2", other)):
        require(matrix.dim() == 2, f"Expected {name} to be of dimension 2 but got {matrix.dim()}")
    rows, inner, columns = one.size(0), one.size(1), other.size(1)
    require(rows > 16, f"self.size(0) needs to be greater than 16, but got {rows}")
    require(inner and inner % 8 == 0, f"self.size(1) needs to be greater than 0 and a multiple of 8, but got {inner}")
    require(inner == other.size(0), f"self.size(1) needs to match mat2.size(0) but got {inner} and {other.size(0)}")
    require(columns and columns % 8 == 0, f"mat2.size(1) needs to be greater than 0 and a multiple of 8, but got {columns}")
    for at in range(2):
        _one_of((torch.int8,), "expected scalar type Char but found {}", at, one, other)


def _scaled_mm(one: torch.Tensor, other: torch.Tensor, *_: object, **_options: object) -> None:
    if one.is_cuda and torch.cuda.get_device_capability(one.get_device()) < (8, 9):
        raise RuntimeError(
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+"
        )
    require(not (one.dtype is other.dtype is torch.float8_e5m2), "Multiplication of two Float8_e5m2 matrices is not supported")


def _require_channels(data: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *options: TorchAny) -> None:
    """See `check_shape_forward` in ATen/native/Convolution.cpp."""
    stride, _padding, _dilation, is_transposed, _output_padding, groups = options
    require(all(step > 0 for step in stride), "non-positive stride is not supported")
    given = f"Given {'transposed=1, ' if is_transposed else ''}weight of size {[*weight.shape]}, expected"
    if is_transposed and data.dim() == weight.dim() and data.size(1) != weight.size(0):
        found = f"input{[*data.shape]} to have {weight.size(0)} channels, but got {data.size(1)} channels instead"
        raise RuntimeError(f"{given} {found}")
    channels = weight.size(1) * groups if is_transposed else weight.size(0)
    if bias is not None and [*bias.shape] != [channels]:
        found = f"1-dimensional with {channels} elements, but got bias of size {[*bias.shape]} instead"
        raise RuntimeError(f"{given} bias to be {found}")


def _convolution(data: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *options: TorchAny) -> None:
    _require_channels(data, weight, bias, *options)
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != data.dtype and tensor.device == data.device:
            raise RuntimeError(f"Input type ({_type_name(data)}) and {name} type ({_type_name(tensor)}) should be the same")
    if not data.is_complex() and (not data.is_floating_point() or data.element_size() == 1):
        *_, is_transposed, _output_padding, groups = options
        _refuse_convolution(data, max(data.dim() - 2, 2), transposed=is_transposed, depthwise=1 < groups == data.size(1))


def _refuse_convolution(data: torch.Tensor, dims: int, *, transposed: bool, depthwise: bool) -> None:
    if depthwise and not transposed:
        raise no_kernel("conv_depthwise3d" if dims == 3 else "conv_depthwise2d_forward_cuda", scalar_type(data.dtype))
    if not torch.backends.cudnn.enabled:
        plain = "slow_conv2d_cuda" if dims == 2 else "slow_conv_dilated<>"
        raise no_kernel(f"slow_conv_transpose{dims}d_out_cuda" if transposed else plain, scalar_type(data.dtype))
    _refuse_in_cudnn(data, "GET was unable to find an engine to execute this computation")


def _refuse_in_cudnn(data: torch.Tensor, text: str) -> NoReturn:
    unnamed = f"getCudnnDataTypeFromScalarType() not supported for {scalar_type(data.dtype)}"
    raise RuntimeError(text if data.dtype in _IN_CUDNN else unnamed)


def batch_norm_by_cudnn(
    data: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, statistics: object, training: bool
) -> bool:
    """See `_select_batch_norm_backend` in native/Normalization.cpp."""
    return (
        torch.backends.cudnn.enabled
        and data.is_cuda
        and weight is not None
        and bias is not None
        and torch.bfloat16 not in (data.dtype, weight.dtype)
        and (data.dtype is not torch.float16 or weight.dtype is torch.float32)
        and (statistics is not None or training)
        and data.dim() >= 3
        and data.size(0) <= (880_801 if training else 65_535)
    )


def _batch_norm(
    data: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: object, _variance: object,
    training: bool, *_: object,
) -> None:  # fmt: skip
    if not data.numel():
        return
    if not batch_norm_by_cudnn(data, weight, bias, mean, training):
        _native_batch_norm(data, weight, bias)
        return
    if data.dtype is not torch.float16 and weight is not None and weight.dtype is not data.dtype:
        raise RuntimeError(
            "Expected tensor for argument #1 'input' to have the same type as tensor for argument #2 'weight'; but type"
            f" {data.type()} does not equal {weight.type()} (while checking arguments for cudnn_batch_norm)"
        )
    if not data.dtype.is_floating_point or data.element_size() == 1:
        _refuse_in_cudnn(data, f"TensorDescriptor does not support {scalar_type(data.dtype)}")


def _native_batch_norm(data: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, *_: object) -> None:
    """See ATen/native/cuda/Normalization.cu."""
    _require_accumulate_type(data)
    accumulates = torch.float64 if data.dtype is torch.float64 else torch.float32
    for name, tensor in (("weight", weight), ("bias", bias)):
        if data.is_floating_point() and tensor is not None and tensor.dtype not in (data.dtype, accumulates):
            found = f"{scalar_type(accumulates)} but got {scalar_type(tensor.dtype)}"
            raise RuntimeError(f"Expected {name} to have type {found}")


def _logic(kernel: str, data: torch.Tensor, *_: object) -> None:
    """See ATen/native/cuda/ReduceLogicKernel.cu."""
    if data.dtype in _UNCOMMON and data.numel() > 1:
        raise no_kernel(kernel, scalar_type(data.dtype))


def _fourier(data: torch.Tensor, dims: Sequence[int], _normalization: int, last: int | bool = False) -> None:
    require(data.dtype is not torch.bfloat16, "cuFFT doesn't support tensor of type: BFloat16")
    sizes = [data.size(dim) for dim in dims]
    if last and not isinstance(last, bool):
        sizes[-1] = last
    if data.dtype in (torch.float16, torch.complex32):
        require_powers_of_two(sizes)


def _real_fourier(data: torch.Tensor, dims: Sequence[int], *options: TorchAny) -> None:
    _expected("self.is_floating_point()", not data.is_complex())
    _fourier(data, dims, *options)


def require_powers_of_two(sizes: Sequence[int]) -> None:
    if any(size & (size - 1) for size in sizes):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, but got a signal"
            f" size of{sizes}"
        )


def _require_accumulate_type(data: torch.Tensor) -> None:
    """See `toAccumulateType` in ATen/AccumulateType.cpp."""
    if data.dtype in (torch.uint16, torch.uint32, torch.uint64, torch.complex32):
        raise RuntimeError(
            'false INTERNAL ASSERT FAILED at "/pytorch/aten/src/ATen/AccumulateType.cpp":23, please report a bug to PyTorch.'
            f" Unrecognized ScalarType: {scalar_type(data.dtype)}"
        )


def _embedding_bag(weight: torch.Tensor, indices: torch.Tensor, *options: TorchAny) -> None:
    _require_indices("embedding_bag_cuda", indices)
    _require_dtype_of(weight, *options[4:5])


def _sampled_addmm(pattern: torch.Tensor, *_: object, **_options: object) -> None:
    """See ATen/native/sparse/cuda/SparseBlas.cpp."""
    if pattern.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise no_kernel("mul_cuda", scalar_type(pattern.dtype))
    if not pattern.is_floating_point() and not pattern.is_complex():
        raise RuntimeError(f"result type Float can't be cast to the desired output type {scalar_type(pattern.dtype)}")


def _layer_norm(data: torch.Tensor, _shape: object, weight: torch.Tensor | None, bias: torch.Tensor | None, *_: object) -> None:
    _require_accumulate_type(data)
    _require_dtype_of(data, weight, bias)


def _group_norm(data: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, *_: object) -> None:
    """See native/cuda/group_norm_kernel.cu."""
    first = next((tensor.dtype for tensor in (weight, bias) if tensor is not None), None)
    if data.dtype in HALVES and first in (data.dtype, torch.float32):
        _require_dtype_of(data, weight, bias)


def _require_dtype_of(data: torch.Tensor, *others: torch.Tensor | None) -> None:
    for tensor in others:
        if tensor is not None and tensor.dtype != data.dtype:
            raise RuntimeError(f"expected scalar type {scalar_type(data.dtype)} but found {scalar_type(tensor.dtype)}")


def _index_put(target: torch.Tensor, _indices: object, values: torch.Tensor, *_options: object) -> None:
    if not computing():  # the CPU kernel checks the dtypes itself
        _same(0, 1, _PUT, scalar_type, target, values)


def _require_indices(checks: str, indices: torch.Tensor) -> None:
    if indices.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got"
            f" {_type_name(indices)} instead (while checking arguments for {checks})"
        )


def _masked_scatter(target: torch.Tensor, mask: torch.Tensor, source: torch.Tensor, *, in_place: bool) -> None:
    """See `masked_scatter__cuda` in ATen/native/cuda/IndexKernel.cpp."""
    _same(0, 1, _SCATTERED, scalar_type, target, source)
    if mask.dtype is not torch.bool:
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {cpp_type(mask.dtype)}")
    broadcast: TorchAny = torch.broadcast_tensors
    if in_place:
        mask.expand(target.shape)
    else:
        broadcast(*[torch.empty(tensor.shape, device="meta") for tensor in (mask, target)])


def _masked_fill(target: torch.Tensor, mask: torch.Tensor, *_value: object) -> None:
    """See `masked_fill__cuda` in ATen/native/cuda/Indexing.cu."""
    _require_bool(target, mask)
    mask.expand(target.shape)


def _nll_loss2d(scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, *_options: object) -> None:
    """See `check_inputs_nll_loss2d` in ATen/native/cuda/NLLLoss2d.cu."""
    if labels.dim() != 3:
        raise RuntimeError(
            f"only batches of spatial targets supported (3D tensors) but got targets of size: : {[*labels.shape]}"
        )
    if scores.dim() != 4:
        raise RuntimeError(f"only batches of spatial inputs supported (4D tensors), but got input of size: {[*scores.shape]}")
    require(weight is None or weight.numel() == scores.size(1), "weight tensor should be defined either for all or no classes")
    if [scores.size(0), *scores.shape[2:]] != [*labels.shape]:
        found = f"target {[*labels.shape]}, input {[*scores.shape]}"
        raise RuntimeError(f"input and target batch or spatial sizes don't match: {found}")
    _one_of((torch.int64,), "expected scalar type Long but found {}", 1, scores, labels)


def _randint_like(_data: object, high: torch.Tensor, **_options: object) -> None:
    if high.numel() != 1 or high.dim() or not high.is_cpu:
        raise RuntimeError("high must be a scalar tensor and on CPU")  # native/TensorFactories.cpp


def _index_select(_data: object, _dim: int, index: torch.Tensor) -> None:
    require(index.dim() <= 1, "Index is supposed to be an empty tensor or a vector")
    if index.dtype not in (torch.int64, torch.int32):
        raise no_kernel("index_select_out_cuda_impl", scalar_type(index.dtype))


def _bernoulli(probabilities: torch.Tensor) -> None:
    if not probabilities.is_floating_point():
        raise RuntimeError(f"expected probabilities tensor to have floating type, got {scalar_type(probabilities.dtype)}")


def _nearest(data: torch.Tensor, *_: object) -> None:
    if data.dtype is torch.uint8 or (data.is_floating_point() and data.element_size() > 1):
        return
    last = data.dim() == 4 and data.size(1) >= 4 and data.is_contiguous(memory_format=torch.channels_last)
    raise no_kernel(f"upsample_nearest{data.dim() - 2}d_{'nhwc_' if last else ''}out_frame", scalar_type(data.dtype))


def _svd(_data: object, _full: bool = False, _vectors: bool = True, *, driver: str | None = None) -> None:
    if driver not in (None, "gesvd", "gesvdj", "gesvda"):
        raise RuntimeError(
            f"torch.linalg.svd: unknown svd driver {driver} in svd_cusolver computation. Check doc at"
            " https://pytorch.org/docs/stable/generated/torch.linalg.svd.html"
        )


def _lstsq(_left: object, _right: object, _rcond: object = None, *, driver: str | None = None) -> None:
    require(driver in (None, "gels"), "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")


def _as_strided(data: TorchAny, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> None:
    if not hasattr(data, "allocation") or 0 in size:
        return
    itemsize, start = data.element_size(), data.storage_offset() if offset is None else offset
    needed = (start + sum((count - 1) * step for count, step in zip(size, stride, strict=True)) + 1) * itemsize
    if needed > data.allocation.size_bytes:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {start}, and itemsize {itemsize} requiring"
            f" a storage size of {needed} are out of bounds for storage of size {data.allocation.size_bytes}"
        )


_ALL_TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float64, torch.float32, torch.float16)
_RANGE_TYPES = (*_ALL_TYPES, torch.bfloat16)
_SPACE_TYPES = (*_RANGE_TYPES, torch.complex64, torch.complex128)


def _space(kernel: str, _start: object, _end: object, steps: int, *_base: object, out: torch.Tensor) -> None:
    """See ATen/native/cuda/RangeFactories.cu."""
    if steps > 1 and out.dtype not in _SPACE_TYPES:
        raise no_kernel(kernel, scalar_type(out.dtype))


def _arange(*_limits: object, out: torch.Tensor) -> None:
    if out.dtype not in _RANGE_TYPES:
        raise no_kernel("arange_cuda", scalar_type(out.dtype))


def _randperm(count: int, *_options: object, out: torch.Tensor, **_generator: object) -> None:
    """See `randperm_out_cuda` in ATen/native/cuda/Randperm.cu and TensorFactories.cu."""
    _arange(out=out)
    if count and out.dtype not in _ALL_TYPES:
        raise no_kernel("randperm_out_cuda", scalar_type(out.dtype))


def _fused_adam(optimizer: str, *lists: Sequence[torch.Tensor], amsgrad: bool, **_options: object) -> None:
    """See ATen/native/cuda/FusedAdamKernel.cu. The states of fused Adam may have the dtype bfloat16 if the parameters have the
    dtype float32. PyTorch applies the rules for bfloat16 states if the first parameter and the first state in `exp_avgs` have
    different dtypes."""
    names = ("params", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")[: 5 if amsgrad else 4]
    parameters, gradients, means, squares, *greatest = lists[: len(names)]
    if not parameters or not means or means[0].dtype is parameters[0].dtype:
        _fused_optimizer("fused_adam_kernel_cuda", names, *lists)
        return
    _require_one_layout(names, lists, own_dtypes=True)
    states = [(torch.bfloat16, "optimizer states", means), (torch.bfloat16, "optimizer states", squares)]
    required = [(torch.float32, "params", parameters), (torch.float32, "grads", gradients), *states]
    for dtype, name, tensors in [*required, *[(torch.bfloat16, names[-1], tensors) for tensors in greatest]]:
        if tensors[0].dtype is not dtype:
            wanted = f"{str(dtype).removeprefix('torch.')} {name}"
            raise RuntimeError(f"Mixed-precision fused {optimizer} requires {wanted}, got {scalar_type(tensors[0].dtype)}")


def _fused_optimizer(kernel: str, names: Sequence[str], *lists: Sequence[torch.Tensor], **_options: object) -> None:
    _require_one_layout(names, lists)
    _require_floats(kernel, lists[0])


def _require_one_layout(names: Sequence[str], lists: Sequence[Sequence[torch.Tensor]], *, own_dtypes: bool = False) -> None:
    parameters, *others = lists[: len(names)]
    if parameters and not _have_one_layout(parameters, others, own_dtypes=own_dtypes):
        listed = f"{', '.join(names[:-1])}{',' if len(names) > 2 else ''} and {names[-1]}"
        raise RuntimeError(f"{listed} must have same dtype, device, and layout")


def _require_floats(kernel: str, tensors: Sequence[torch.Tensor]) -> None:
    if tensors and (not tensors[0].is_floating_point() or tensors[0].dtype.itemsize < 2):
        raise no_kernel(kernel, scalar_type(tensors[0].dtype))


def _have_one_layout(
    parameters: Sequence[torch.Tensor], others: Sequence[Sequence[torch.Tensor]], *, own_dtypes: bool = False
) -> bool:
    """See `check_fast_path_restrictions` in ATen/native/ForeachUtils.h. If `own_dtypes` is true, different lists may have
    different dtypes."""
    for tensors in (parameters, *others):
        if len(tensors) != len(parameters):
            return False
        dtype = (tensors if own_dtypes else parameters)[0].dtype
        for parameter, tensor in zip(parameters, tensors, strict=True):
            if tensor.dtype is not dtype or tensor.layout is not torch.strided:
                return False
            if tensor.shape != parameter.shape or tensor.stride() != parameter.stride():
                return False
            if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
                return False
    return True


def _fused_sgd(parameters: TorchAny, gradients: TorchAny, buffers: TorchAny, *, momentum: float, **_options: object) -> None:
    """See ATen/native/cuda/FusedSgdKernel.cu."""
    if (momentum <= 0) if buffers else momentum:
        raise RuntimeError(f"Check failed: momentum {'> 0' if buffers else '== 0'} ({momentum:g} vs. 0). ")
    if not _have_one_layout(parameters, [gradients, buffers] if buffers else [gradients]):
        lists = " {params, grads, momentum_buffer_list}" if buffers else "{params, grads}"
        _expected(f"at::native::check_fast_path_restrictions({lists})", False)
    _require_floats("fused_sgd_with_momentum_kernel_cuda" if buffers else "fused_sgd_kernel_cuda", parameters)


def _view_as_complex(data: torch.Tensor) -> None:
    if data.dtype == torch.bfloat16:
        # this CPU call raises the error of the installed PyTorch release
        torch.view_as_complex(torch.empty(2, dtype=data.dtype, device="cpu"))


def _histc(data: torch.Tensor, bins: int = 100, low: float = 0, high: float = 0) -> None:
    """See ATen/native/cuda/SummaryOps.cu."""
    _none_of((torch.float16,), "HalfTensor is not supported", data)
    require(bins <= 0 or (isfinite(low) and isfinite(high)), f"range of [{low:g}, {high:g}] is not finite")


def _flash_attention(_query: object, _key: object, _value: object, dropout: float = 0, *_: object, **_options: object) -> None:
    _expected("p_dropout < 1.f", dropout < 1)


def _efficient_attention(_query: object, key: torch.Tensor, value: torch.Tensor, *_: object, **_options: object) -> None:
    _expected("key.size(1) == value.size(1)", key.size(2) == value.size(2))


def _expected(condition: str, is_true: bool) -> None:
    advice = "(Could this error message be improved?  If so, please report an enhancement request to PyTorch.)"
    require(is_true, f"Expected {condition} to be true, but got false.  {advice}")


def _scalars_on_host(*args: TorchAny) -> None:
    """See `convert_tensor_to_scalar_list` in ATen/native/ForeachUtils.h."""
    scalars = args[3]
    require(scalars.is_cpu, f"Expected scalars to be on CPU, got {scalars.device} instead.")


def _require_scalars_fit(data: torch.Tensor, *scalars: TorchAny) -> None:
    for scalar in scalars:
        if isinstance(scalar, (int, float, complex)) and data.dtype in _CPP_TYPES:
            torch.empty(2, dtype=data.dtype, device="cpu").fill_(scalar)


def _alpha(data: TorchAny, other: TorchAny, *_: object, alpha: TorchAny = 1) -> None:
    if alpha is True and torch.result_type(data, other) is not torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")


def _nonzero(_data: object, *, out: torch.Tensor) -> None:
    require(out.dtype is torch.int64, f"Expected object of scalar type Long as out, but got {cpp_type(out.dtype)}")


def _aminmax(data: torch.Tensor, **options: TorchAny) -> None:
    for out in (options["min"], options["max"]):
        if out.dtype is not data.dtype:
            text = f"Expected out tensor to have dtype {cpp_type(data.dtype)}, but got {cpp_type(out.dtype)} instead"
            raise RuntimeError(text)


Overlap = tuple[Where, Where]  # an argument that the op writes, and an input that overlaps with it


def overlaps_of(func: Op, args: Sequence[TorchAny], kwargs: Kwargs, tensor_class: type) -> tuple[Overlap, ...]:
    """Return the arguments with a memory overlap that PyTorch forbids, such as `x[1:].add_(x[:-1])`."""
    apart = _APART.get(func._schema.name.removeprefix("aten::"), () if torch.Tag.pointwise in func.tags else None)
    if apart is None or not func._schema.is_mutable:
        return ()
    written: list[tuple[Where, TorchAny]] = []
    read: list[tuple[Where, TorchAny, bool]] = []
    for at, argument in enumerate(func._schema.arguments):
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        where = at if at < len(args) else argument.name
        writes = argument.alias_info is not None and argument.alias_info.is_write
        for index, tensor in enumerate(value) if isinstance(value, (list, tuple)) else [(-1, value)]:
            meta = getattr(tensor, "tensor_meta", None) if isinstance(tensor, tensor_class) else None
            if meta is None:  # sparse tensors have no `tensor_meta`
                continue
            if writes:
                written.append(((where, index), meta))
            else:
                read.append(((where, index), meta, argument.name in apart))
    return tuple(
        (one, other)
        for one, target in written
        for other, source, apart_from_it in read
        if (apart_from_it and target is source) or overlap_in_part(target, source)
    )


def overlap_in_part(one: TorchAny, other: TorchAny) -> bool:
    """See `get_overlap_status` in ATen/MemoryOverlap.cpp."""
    if one is other or not (one.dense and other.dense and one.numel and other.numel):
        return False
    if one.offset * one.itemsize == other.offset * other.itemsize and one.size_bytes == other.size_bytes:
        return bool(one.stride != other.stride)
    return bool(one.shares_bytes(other))


def require_apart(overlaps: Sequence[Overlap], args: TorchAny, kwargs: TorchAny) -> None:
    for one, other in overlaps:
        require(argument_at(one, args, kwargs).allocation is not argument_at(other, args, kwargs).allocation, OVERLAPPING)


OVERLAPPING = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location."
    " Please clone() the tensor before performing the operation."
)
# For each op, the inputs that must not share memory with the result (`assert_no_overlap` in ATen/native)
_APART: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gather", "kthvalue"), ("self",)),
    **dict.fromkeys(("index_select", "take"), ("self", "index")),
    **dict.fromkeys((f"scatter{kind}{place}" for kind in ("", "_add", "_reduce") for place in ("", "_")), ("index", "src")),
    **dict.fromkeys((f"index_{kind}{place}" for kind in ("add", "copy", "reduce") for place in ("", "_")), ("index", "source")),
    **dict.fromkeys(("index_put_", "_index_put_impl_"), ("indices", "values")),
    "put_": ("index", "source"),
    **dict.fromkeys(("cat", "stack"), ("tensors",)),
    "sort": (),
    "where": (),
}
_aten = torch.ops.aten
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
_PUT = "Index put requires the source and destination dtypes match, got {} for the destination and {} for the source."
_SCATTERED = "masked_scatter_: expected self and source to have same dtypes but got {} and {}"
_CHOSEN = "where expected condition to be a boolean tensor, but got a tensor with dtype {}"
_require_bool = partial(_one_of, (torch.bool,), "masked_fill only supports boolean masks, but got dtype {}", 1)
_LRS = ("default", "tensor_lr")  # two overloads: the learning rate is a number, or a tensor
_WITH_SCALARS = "addcmul addcmul_ addcdiv addcdiv_"
_ADAGRAD = "fused_adagrad_kernel_cuda"
_RULES: dict[Op, Callable[..., None]] = {
    **{getattr(_aten._fused_adam_, kind): partial(_fused_adam, "Adam") for kind in _LRS},
    **{getattr(_aten._fused_adamw_, kind): partial(_fused_adam, "AdamW") for kind in _LRS},
    _aten._fused_adagrad_.default: partial(_fused_optimizer, _ADAGRAD, ("params", "grads", "state_sums")),
    _aten._fused_adagrad_.tensor_lr: partial(_fused_optimizer, _ADAGRAD, ("params", "grads")),
    **{getattr(_aten, f"_foreach_{name}").Tensor: _scalars_on_host for name in _WITH_SCALARS.split()},
    **{getattr(_aten._fused_sgd_, kind): _fused_sgd for kind in _LRS},
    _aten.as_strided.default: _as_strided,
    _aten.mm.default: partial(_same, 0, 1, "expected mat1 and mat2 to have the same dtype, but got: {} != {}", cpp_type),
    _aten.convolution.default: _convolution,
    _aten.native_batch_norm.default: _batch_norm,
    _aten._batch_norm_with_update.default: lambda data, weight, bias, mean, *_: _batch_norm(
        data, weight, bias, mean, None, True
    ),
    _aten._native_batch_norm_legit.default: _native_batch_norm,
    _aten.sparse_sampled_addmm.default: _sampled_addmm,
    _aten.linalg_cross.default: partial(_same, 1, 0, "Found dtype {} but expected {}", scalar_type),
    _aten.masked_scatter.default: partial(_masked_scatter, in_place=False),
    _aten.masked_scatter_.default: partial(_masked_scatter, in_place=True),
    **dict.fromkeys((_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default), _embedding_bag),
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_group_norm.default: _group_norm,
    **dict.fromkeys((_aten.all.default, _aten.all.dim, _aten.all.dims), partial(_logic, "and_cuda")),
    **dict.fromkeys((_aten.any.default, _aten.any.dim, _aten.any.dims), partial(_logic, "or_cuda")),
    _aten.histc.default: _histc,
    _aten.fill_.Scalar: _require_scalars_fit,
    **dict.fromkeys((_aten.threshold.default, _aten.threshold_.default), _require_scalars_fit),
    **{getattr(op, kind): _alpha for op in (_aten.add, _aten.add_, _aten.sub, _aten.sub_) for kind in ("Tensor", "Scalar")},
    _aten.nonzero.out: _nonzero,
    _aten.aminmax.out: _aminmax,
    _aten._scaled_dot_product_flash_attention.default: _flash_attention,
    _aten._scaled_dot_product_efficient_attention.default: _efficient_attention,
    **dict.fromkeys(
        (_aten.median.default, _aten.nanmedian.default),
        partial(_none_of, _COMPLEX, " Sort does not support complex dtypes on CPU"),
    ),
    _aten._flash_attention_forward.default: partial(_one_of, HALVES, "FlashAttention only support fp16 and bf16 data type", 0),
    _aten._efficient_attention_forward.default: partial(
        _one_of, (torch.float32, *HALVES), "Only fp32, half & bf16 supported at the moment", 0
    ),
    _aten._fft_r2c.default: _real_fourier,
    **dict.fromkeys((_aten._fft_c2c.default, _aten._fft_c2r.default), _fourier),
    _aten.view_as_complex.default: _view_as_complex,
    _aten.nll_loss2d_forward.default: _nll_loss2d,
    _aten.linalg_lstsq.default: _lstsq,
    _aten._linalg_svd.default: _svd,
    _aten._int_mm.default: _int_mm,
    _aten._scaled_mm.default: _scaled_mm,
    _aten._scaled_mm_v2.default: _scaled_mm,
    _aten.embedding.default: lambda _weight, indices, *_: _require_indices("embedding", indices),
    _aten.embedding_dense_backward.default: lambda _grad, indices, *_: _require_indices("embedding_backward", indices),
    _aten.index_select.default: _index_select,
    **dict.fromkeys((_aten.masked_fill.Scalar, _aten.masked_fill.Tensor), _require_bool),
    **dict.fromkeys((_aten.masked_fill_.Scalar, _aten.masked_fill_.Tensor), _masked_fill),
    _aten.where.self: partial(_one_of, (torch.bool, torch.uint8), _CHOSEN, 0),
    _aten.randint_like.Tensor: _randint_like,
    _aten.bernoulli.default: lambda probabilities, **_: _bernoulli(probabilities),
    _aten.bernoulli_.Tensor: lambda _data, probabilities, **_: _bernoulli(probabilities),
    **{getattr(_aten, f"upsample_nearest{dims}d").default: _nearest for dims in (1, 2, 3)},
    **{getattr(_aten, f"_upsample_nearest_exact{dims}d").default: _nearest for dims in (1, 2, 3)},
    **dict.fromkeys((_aten.linspace.out, _aten.linspace.Tensor_Tensor_out), partial(_space, "linspace_cuda")),
    **dict.fromkeys((_aten.logspace.out, _aten.logspace.Tensor_Tensor_out), partial(_space, "logspace_cuda")),
    _aten.arange.start_out: _arange,
    **dict.fromkeys((_aten.randperm.out, _aten.randperm.generator_out), _randperm),
    **dict.fromkeys((_aten.index_put_.default, _aten._index_put_impl_.default), _index_put),
}
