"""Defines the metadata of virtual tensors, such as shape, strides and dtype.

    metas = TensorMetaTable(VirtualTensor)
    meta = metas.of((2, 3), (3, 1), 0, torch.float32, 0)
    meta is metas.of((2, 3), (3, 1), 0, torch.float32, 0)  # True
    meta.extent_bytes  # 24

Tensors with equal metadata share one metadata object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from replayer.torch_types import TorchAny
from traces.model.layouts import Shape

# PyTorch's C++ code sees the device type "lazy" where scripts see "cuda".
BACKEND = "lazy"
OURS = ("cuda", BACKEND)

# see `processErrorMsg` in PyTorch
_TYPE_NAME = re.compile(rf"\b{BACKEND.capitalize()}(Byte|Char|Double|Float|Half|Int|Long|Short)Type\b(?!\{{\d)")
_OTHER_TYPE = re.compile(rf"\b{BACKEND.capitalize()}(\w+Type)\b")
# PyTorch also raises NotImplementedError for other reasons.
LACKS_KERNEL = re.compile(
    r"Could not run|not implemented for (?!complex tensors)|MKL FFT doesn't support|Meta tensors|meta kernel", re.IGNORECASE
)
_CPU_TYPE = re.compile(r"\btorch\.([A-Z]\w+Tensor)\b")
_DEVICE_NAME = re.compile(rf"\b{BACKEND}(?=:\d| DeviceType|\.\w+Tensor|'| and | but |, |!|$)")
_MOST_BYTES = (1 << 63) - 1
_keys_of: TorchAny = torch._C._dispatch_keys
_COUNTS_CHANGES = torch._C.DispatchKey.ADInplaceOrView
LIMIT = 200_000  # a table with this number of entries is cleared


def is_inference(tensor: torch.Tensor) -> bool:
    """Return `tensor.is_inference()` without calling the `__torch_function__` of a script's class."""
    return not _keys_of(tensor).has(_COUNTS_CHANGES)


def words_of_cuda(text: str) -> str:
    text = _OTHER_TYPE.sub(r"CUDA\1", _TYPE_NAME.sub(r"torch.cuda.\1Tensor", text))
    text = _DEVICE_NAME.sub("cuda", text)
    return text.replace(f"'{BACKEND.capitalize()}' backend", "'CUDA' backend")


def in_words_of_cuda(error: Exception) -> Exception:
    text = words_of_cuda(str(error))
    return error if text == str(error) else type(error)(text)


@contextmanager
def errors_of_cuda() -> Iterator[None]:
    """Replace the device name "lazy" by "cuda" in the errors that PyTorch raises in the `with` block."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        raise in_words_of_cuda(error) from None


# error messages of CPU kernels -> CUDA kernels
_TEXTS = (
    (_CPU_TYPE, r"torch.cuda.\1"),
    (re.compile(r"(?<=arguments from the ')(\w*)CPU(?=' backend)"), r"\1CUDA"),
    (re.compile(r"\bCPU(?=\w+Type\b)"), "CUDA"),
    (re.compile(r"^Argument #4: (?=Padding size should be less)"), ""),
    (re.compile(r"(?<= to be) same as that of the input tensor \((.+)\) but got indices .*: "), r": \1 but got: "),
    (re.compile(r"^trace: (expected a matrix), but got .*"), r"\1"),
    (re.compile(r"^torch\.histogram\(\): (bins must be > 0), but got .*"), r"\1"),
    (re.compile(r"^torch\.histc: (?=max must be larger than min)"), ""),
    (re.compile(r"(?<=checking arguments for ctc_loss_)allocate_outputs"), "gpu"),
)


def on_one_device(error: Exception) -> Exception:
    text = str(error)
    for pattern, replacement in _TEXTS:
        text = pattern.sub(replacement, text)
    return error if text == str(error) else type(error)(text)


def is_virtual(value: object, tensor_class: TorchAny) -> bool:
    """Return True for virtual tensors and parameters, but not for objects of their subclasses."""
    kind = type(value)
    return kind is tensor_class or kind is tensor_class.parameter_class


def is_mask(index: TorchAny) -> bool:
    """Return True if `index` is a mask (bool or uint8) and not a tensor of positions. `index` may also be None."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def contiguous_stride(shape: Shape) -> Shape:
    stride = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


# shape, stride, offset, dtype, index of the GPU, is_conj, is_neg; see `TensorMeta`
Layout = tuple[Shape, Shape, int, torch.dtype, int, bool, bool]


class TensorMeta:
    """Stores the shape, dtype, device and memory layout of a virtual tensor.

    Attributes:
        stride, offset: in elements
        extent_bytes: the distance in memory from the start of the first element to the end of the last
        dense: True if the elements, in any order, fill a memory range without gaps or overlaps
        is_conj, is_neg: True for lazily conjugated or negated tensors, such as `x.conj()`
    """

    __slots__ = (
        "backend_device dense device dtype dtype_name extent_bytes index is_conj is_neg itemsize numel offset shape size_bytes"
        " stride wrapping"
    ).split()

    def __init__(self, layout: Layout, tensor_class: type) -> None:
        shape, stride, offset, dtype, index, is_conj, is_neg = layout
        self.shape, self.stride, self.offset, self.dtype, self.index, self.is_conj, self.is_neg = layout
        self.device = torch.device("cuda", index)  # the device that scripts see
        self.backend_device = torch.device(BACKEND, index)  # the device that PyTorch's C++ code sees

        # Without strides, `_make_wrapper_subclass` is a third faster.
        packed = None if not offset and stride == contiguous_stride(shape) else stride
        self.wrapping: TorchAny = (tensor_class, shape, packed, offset or None, None, dtype, torch.strided, self.backend_device)
        if is_conj or is_neg:
            self.wrapping += (False, False, None, False, False, _keys_of_bits(is_conj, is_neg))
        self.dtype_name = str(dtype).removeprefix("torch.")
        self.itemsize = dtype.itemsize
        self.numel = 1
        last = 0
        repeats = False
        for size, step in zip(shape, stride, strict=True):
            if size < 0:
                raise RuntimeError(f"Trying to create tensor with negative dimension {size}: {list(shape)}")
            self.numel *= size
            last += (size - 1) * step
            repeats |= size > 1 and not step
        self.size_bytes = self.numel * self.itemsize
        if self.size_bytes > _MOST_BYTES:
            raise RuntimeError(f"Storage size calculation overflowed with sizes={list(shape)}")
        self.extent_bytes = (last + 1) * self.itemsize if self.numel else 0
        self.dense = self.extent_bytes == self.size_bytes and not repeats

    def __repr__(self) -> str:
        bits = ", conj" * self.is_conj + ", neg" * self.is_neg
        return f"TensorMeta({self.shape}, {self.stride}, {self.offset}, {self.dtype_name}, cuda:{self.index}{bits})"

    def shares_bytes(self, other: TensorMeta) -> bool:
        """Return True if two tensors in the same allocation overlap."""
        begin, other_begin = self.offset * self.itemsize, other.offset * other.itemsize
        return begin < other_begin + other.extent_bytes and other_begin < begin + self.extent_bytes

    @property
    def in_all_ranks(self) -> tuple[Shape, Shape, int, str, bool, bool]:
        """Return the properties that are equal on all ranks: all except the GPU's index."""
        return self.shape, self.stride, self.offset, self.dtype_name, self.is_conj, self.is_neg

    def with_bits(self, values: torch.Tensor) -> torch.Tensor:
        """Return a view of `values` that is conjugated or negated like this tensor. The caller must clone the view before an op
        uses the view. Most ops ignore the bits that mark a tensor as conjugated or negated."""
        if self.is_conj:
            values = values.conj()
        return torch._neg_view(values) if self.is_neg else values


def _keys_of_bits(is_conj: bool, is_neg: bool) -> TorchAny:
    """See ATen/native/MathBitsFallback.h."""
    key, keys = torch._C.DispatchKey, torch._C.DispatchKeySet
    conj, neg = keys(key.Conjugate), keys(key.Negative)
    return conj | neg if is_conj and is_neg else conj if is_conj else neg


def lazy_conjugation(args: list[TorchAny]) -> AbstractContextManager[object]:
    """Turn lazy conjugation on for kernels that use it, such as `linalg.pinv`. PyTorch turns it off in `__torch_dispatch__`."""
    if not any(isinstance(value, torch.Tensor) and value.is_complex() for value in args):
        return nullcontext()
    here = torch._C
    excluded = here._dispatch_tls_local_exclude_set() - _keys_of_bits(is_conj=True, is_neg=True)
    return here._ForceDispatchKeyGuard(here._dispatch_tls_local_include_set(), excluded)


class TensorMetaTable:
    def __init__(self, tensor_class: type) -> None:
        self.tensor_class = tensor_class
        self._known: dict[Layout, TensorMeta] = {}

    def of(
        self,
        shape: Shape,
        stride: Shape,
        offset: int,
        dtype: torch.dtype,
        index: int,
        is_conj: bool = False,
        is_neg: bool = False,
    ) -> TensorMeta:
        key = (shape, stride, offset, dtype, index, is_conj, is_neg)
        meta = self._known.get(key)
        if meta is None:
            if len(self._known) >= LIMIT:
                self._known.clear()
            meta = self._known.setdefault(key, TensorMeta(key, self.tensor_class))
        return meta

    def like(self, tensor: torch.Tensor, index: int) -> TensorMeta:
        layout = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
        return self.of(*layout, tensor.dtype, index, tensor.is_conj(), tensor.is_neg())

    def contiguous(self, shape: Shape, dtype: torch.dtype, index: int) -> TensorMeta:
        return self.of(tuple(shape), contiguous_stride(shape), 0, dtype, index)
