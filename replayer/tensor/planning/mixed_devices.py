"""Raises PyTorch's error if an op does not accept tensors on several devices, such as CPU and GPU.

    mixed_call(torch.ops.aten.mm.default, (gpu_matrix, cpu_matrix), {})
    # RuntimeError: Expected all tensors to be on the same device, but got mat2 is on cpu, different from other tensors on
    # cuda:0 (when checking argument in method wrapper_CUDA_mm)

Note [Whose device rule]
    PyTorch generates the device check of each CUDA kernel from `native_functions.yaml` (in the package torchgen). Without
    `device_check: NoCheck`, the generated check compares the devices of all tensors, output arguments first. With `NoCheck`,
    the op's kernel checks the devices, usually with TensorIterator. `_RULES` lists the other kernels.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import NoReturn

import torch
from torch.utils._pytree import tree_map_only

from replayer.errors import require, warn_at_script
from replayer.state import STATE, computing
from replayer.tensor.generators import is_random, require_device
from replayer.tensor.planning.deterministic import alert_not_deterministic, filling
from replayer.tensor.planning.mixed_dtypes import batch_norm_by_cudnn, require_dtypes
from replayer.tensor.storage import other_device
from replayer.tensor.tensor_meta import in_words_of_cuda
from replayer.torch_types import Kwargs, Op, TorchAny, TorchFunction

# PyTorch also registers some CUDA kernels in Python, for example a kernel of `bmm` in PyTorch 2.14. The virtual GPU does not
# run PyTorch's Python kernels.
_OF_PYTORCH = frozenset(kernel for kernel in torch.library._impls if kernel.startswith("aten/"))
_EXPECTED = "Expected all tensors to be on the same device, but "


class Mixed(Enum):
    ON_DEVICE = "run the call on the virtual GPU"
    ON_HOST = "run the call on the host, with copies of the virtual tensors"
    DECOMPOSED = "run the ops that the op consists of"


@dataclass(frozen=True)
class _Entry:
    name: str
    overload: str
    keys: frozenset[str]  # dispatch keys for which the op has a kernel
    structured: bool
    checked: bool
    iterates: bool  # True if the kernel uses TensorIterator

    def wrapper(self, key: str, is_out: bool) -> str:
        name = f"{self.name}_out" if is_out else self.name
        if self.structured and key == "CUDA":
            return f"wrapper_CUDA_{name}_{self.overload}" if self.overload else f"wrapper_CUDA_{name}"
        return f"wrapper_{key}_{self.overload}_{name}"


def runner(func: Op, args: Sequence[TorchAny], kwargs: Kwargs) -> TorchFunction | None:
    if is_random(func):
        target = next(iter(_tensors(args)), None)
        require_device(args, kwargs, "cuda" if target is None else target.device.type)
    if func.namespace == "prims":
        return _put if func is torch.ops.prims.device_put.default else decomposed
    if func.namespace == "aten":
        _require_cuda_kernel(func, args)
    elif func.namespace in _LIBRARIES_OF_CPUS:
        _require_no_cpu_library(func)
    elif has_kernel_of_script(func, "CPU") and not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func._name, "CUDA"):
        raise _no_kernel(func, "CUDA", ["CPU"])
    if torch.are_deterministic_algorithms_enabled():
        alert_not_deterministic(func, args, kwargs)
        if (fill := filling(func)) is not None:
            return fill
    tensors = _tensors([*args, *kwargs.values()])
    if len({tensor.device for tensor in tensors}) < 2 and func not in _ALWAYS:
        require_dtypes(func, args, kwargs)
        require_no_internal_overlap(func, args, kwargs)
        return None
    if any(tensor.is_meta for tensor in tensors):
        return on_meta
    return {Mixed.ON_DEVICE: None, Mixed.ON_HOST: on_host, Mixed.DECOMPOSED: decomposed}[mixed_call(func, args, kwargs)]


_DEPRECATED = (
    "Use of masked_fill_ on expanded tensors is deprecated. Please clone() the tensor before performing this operation. This"
    " also applies to advanced indexing e.g. tensor[mask] = scalar"
)
_OVERLAPPING = "more than one element of the written-to tensor refers to a single memory location"


def require_no_internal_overlap(func: Op, args: Sequence[TorchAny], kwargs: Kwargs) -> None:
    """See ATen/MemoryOverlap.cpp."""
    name = func._schema.name.rpartition("::")[2]
    if not func._schema.is_mutable or torch.Tag.inplace_view in func.tags or name in _MAY_OVERLAP:
        return
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            for tensor in _tensors([value]):
                if tensor.is_nested:
                    continue
                steps = zip(tensor.shape, tensor.stride(), strict=True)
                if tensor.numel() and any(size > 1 and not step for size, step in steps):
                    if name == "masked_fill_":
                        if not computing():  # the CPU kernel prints this warning itself
                            warn_at_script(_DEPRECATED)
                        return
                    text = f"unsupported operation: {_OVERLAPPING}. Please clone() the tensor before performing the operation."
                    raise RuntimeError(text)


def read_tables() -> None:
    """Load the tables of supported ops. Forked ranks share tables that were loaded before the fork."""
    runner(torch.ops.aten.add.Tensor, (torch.ones(1), torch.ones(1)), {})


def checked(func: Op, handler: TorchFunction) -> TorchFunction:
    def call(*args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        run = runner(func, args, kwargs)
        return handler(*args, **kwargs) if run is None else run(func, args, kwargs)

    return call


def _require_cuda_kernel(func: Op, args: Sequence[TorchAny]) -> None:
    entry = _entry(func._schema.name.removeprefix("aten::"), func._schema.overload_name)
    if entry is None or "CUDA" in entry.keys or any("Composite" in key for key in entry.keys):
        return
    key = _dispatch_key(entry, args)
    if key not in entry.keys and key.replace("CUDA", "CPU") in entry.keys:
        raise _no_kernel(func, key, entry.keys)


_LIBRARIES_OF_CPUS = frozenset({"quantized", "_quantized", "mkldnn", "onednn", "mkl", "mkldnn_prepacked", "sparse"})
_ON_CUDA_TOO = re.compile(r"quantized::embedding_bag_(4bit|byte)_(unpack|rowwise_offsets)")


def _require_no_cpu_library(func: Op) -> None:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = {key for key in ("CPU", "QuantizedCPU", "MkldnnCPU") if has_kernel(func._name, key)}
    if keys and not _ON_CUDA_TOO.fullmatch(func._schema.name):
        raise _no_kernel(func, "CUDA", keys)


def has_kernel_of_script(func: Op, key: str) -> bool:
    """Return True if the script registered a Python kernel with `torch.library`. A compiled package may have CUDA kernels only
    in its GPU build. A script's Python kernels are the same on every machine."""
    kept = f"{func.namespace}/{func._name.partition('::')[2]}/{key}"
    # the namespace "prims" contains ops of PyTorch that are written in Python
    if func.namespace == "prims" or kept not in torch.library._impls or kept in _OF_PYTORCH:
        return False
    return not any(kept in library._op_impls for library in STATE.kept)


def _no_kernel(func: Op, key: str, keys: Iterable[str]) -> NotImplementedError:
    return NotImplementedError(
        f"Could not run '{func._name}' with arguments from the '{key}' backend. This could be because the operator doesn't"
        " exist for this backend, or was omitted during the selective/custom build process (if using custom build). If you are"
        " a Facebook employee using PyTorch on mobile, please visit https://fburl.com/ptmfixes for possible resolutions."
        f" '{func._name}' is only available for these backends: [{', '.join(sorted(keys))}]."
    )


def mixed_call(func: Op, args: Sequence[TorchAny], kwargs: Kwargs) -> Mixed:
    name = func._schema.name.removeprefix("aten::")
    name = _CALLS.get(name, name)
    if name == "sparse_compressed_tensor":
        _require_compressed(args[0], args[1], args[2], kwargs["layout"])
    entry = _entry(name, func._schema.overload_name)
    operands = _Operands.of(func, args, kwargs)
    key = "CUDA" if _RULES.get(name) is _of_self else _dispatch_key(entry, args)
    if func.namespace != "aten" or key != "CUDA":
        if entry is not None and entry.checked and key in entry.keys:
            _require_common_device(operands, entry.wrapper(key, bool(operands.out)))
        _compare(operands, cpu_scalars=99)
        return Mixed.ON_DEVICE
    rule = _RULES.get(name)
    if rule is not None:
        return rule(operands) or Mixed.ON_DEVICE
    explicit = _explicit_key(func) is not None
    if name.startswith("_foreach") and _is_uneven(operands):
        return Mixed.DECOMPOSED
    if entry is None or "CUDA" not in entry.keys:
        return Mixed.DECOMPOSED if explicit else Mixed.ON_DEVICE
    if entry.checked:
        _require_common_device(operands, entry.wrapper(key, bool(operands.out)))
    elif entry.structured and operands.out and not entry.iterates:
        _require_out_device(operands)
    elif name.startswith("_fused_") and func._schema.overload_name == "tensor_lr":  # native/cuda/FusedAdamKernel.cu
        _compare(operands, cpu_scalars=int(operands.values["lr"].is_cpu))
    elif not name.startswith("_foreach"):
        _compare(operands, cpu_scalars=int(len(operands.inputs) == 2 and name not in _NO_SCALARS))
    return Mixed.ON_DEVICE


def _dispatch_key(entry: _Entry | None, args: Sequence[TorchAny]) -> str:
    layouts = {tensor.layout for tensor in _tensors(args)} - {torch.strided}
    keys = frozenset() if entry is None else entry.keys
    makes_sparse = "SparseCUDA" in keys and all("Sparse" in key or key == "Meta" for key in keys)
    return "SparseCUDA" if torch.sparse_coo in layouts or makes_sparse else "SparseCsrCUDA" if layouts else "CUDA"


def _explicit_key(func: Op) -> TorchAny:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    return next((getattr(torch._C.DispatchKey, name) for name in names if has_kernel(str(func._name), name)), None)


def decomposed(func: Op, args: Sequence[TorchAny], kwargs: Kwargs, key: TorchAny = None) -> TorchAny:
    """Run an op by running the ops that it consists of in PyTorch. `key` is the dispatch key of this implementation."""
    try:
        return func._op_dk(_explicit_key(func) if key is None else key, *args, **kwargs)
    except RuntimeError as error:
        raise in_words_of_cuda(error) from None


def _put(_func: Op, args: Sequence[TorchAny], _kwargs: Kwargs) -> TorchAny:
    """Return the tensor itself if it is on the device, as PyTorch does."""
    source, device, *non_blocking = args
    return source.to(device, non_blocking=any(non_blocking))


def on_meta(func: Op, args: Sequence[TorchAny], kwargs: Kwargs) -> TorchAny:
    """Call the op's meta kernel, as PyTorch does if one of the tensors is a meta tensor. The kernel checks the devices."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(str(func._name), "Meta")
    key = None if has_kernel else _explicit_key(func)
    return func._op_dk(torch._C.DispatchKey.Meta if key is None else key, *args, **kwargs)


def on_host(func: Op, args: Sequence[TorchAny], kwargs: Kwargs) -> TorchAny:
    def copied(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu() if tensor.is_cuda else tensor

    return func(*tree_map_only(torch.Tensor, copied, tuple(args)), **tree_map_only(torch.Tensor, copied, kwargs))


@dataclass(frozen=True)
class _Operands:
    out: tuple[tuple[str, torch.Tensor], ...]
    inputs: tuple[tuple[str, torch.Tensor], ...]
    written: tuple[torch.Tensor, ...]
    values: dict[str, TorchAny]

    @classmethod
    def of(cls, func: Op, args: Sequence[TorchAny], kwargs: Kwargs) -> _Operands:
        out: list[tuple[str, torch.Tensor]] = []
        inputs: list[tuple[str, torch.Tensor]] = []
        written: list[torch.Tensor] = []
        values: dict[str, TorchAny] = {}
        for at, argument in enumerate(func._schema.arguments):
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            values[argument.name] = value
            named = [(argument.name, tensor) for tensor in _tensors([value])]
            (out if argument.is_out else inputs).extend(named)
            if argument.alias_info is not None and argument.alias_info.is_write and not argument.is_out:
                written += [tensor for _, tensor in named]
        return cls(tuple(out), tuple(inputs), tuple(written), values)


def _tensors(values: Sequence[TorchAny]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, torch.Tensor)]
    return found


@cache
def _yaml() -> str:
    spec = importlib.util.find_spec("torchgen")
    roots = [] if spec is None else spec.submodule_search_locations or []
    files = [Path(root) / "packaged/ATen/native/native_functions.yaml" for root in roots]
    return "".join(file.read_text(encoding="utf-8") for file in files if file.exists())


@cache
def _places() -> dict[str, int]:
    return {found[1]: found.start() for found in re.finditer(r"^- func: ([\w.]+)\(", _yaml(), re.MULTILINE)}


@cache
def _entry(name: str, overload: str) -> _Entry | None:
    place = _places().get(f"{name}.{overload}" if overload else name)
    if place is None:
        return None
    text = _yaml()[place : _yaml().find("\n- func: ", place)]
    keys = frozenset(re.findall(r"\w+", " ".join(re.findall(r"^    ([\w, ]+):", text, re.MULTILINE))))
    delegate = re.search(r"^  structured_delegate: (\S+)", text, re.MULTILINE)
    structured = delegate is not None or "\n  structured: True" in text
    if "\n  ufunc_inner_loop:" in text:
        keys |= {"CPU", "CUDA"}
    if delegate is not None:
        other = _entry(*(delegate[1].split(".") if "." in delegate[1] else (delegate[1], "")))
        keys |= frozenset() if other is None else other.keys
    iterates = "\n  structured_inherits: TensorIteratorBase" in text
    return _Entry(name, overload, keys, structured, "device_check: NoCheck" not in text, iterates)


# -- PyTorch's rules ---------------------------------------------------------------------------------------------------


def _require_common_device(operands: _Operands, wrapper: str) -> None:
    """See c10::impl::check_and_update_common_device."""
    common: torch.device | None = None
    for name, tensor in (*operands.out, *operands.inputs):
        if common is not None and tensor.device != common:
            raise RuntimeError(
                f"{_EXPECTED}got {name} is on {tensor.device}, different from other tensors on {common} (when checking argument"
                f" in method {wrapper})"
            )
        common = tensor.device


def _require_out_device(operands: _Operands) -> None:
    """See `set_output_raw_strided` in PyTorch's C++ code."""
    here = operands.inputs[0][1].device
    require(here.type != "cpu", "CUDAGuardImpl initialized with non-CUDA DeviceType: cpu")
    for _, out in operands.out:
        require(out.device == here, f"Expected out tensor to have device {here}, but got {out.device} instead")


def _compare(operands: _Operands, cpu_scalars: int) -> None:
    written = [*(tensor for _, tensor in operands.out), *operands.written]
    inputs = [tensor for _, tensor in operands.inputs if not any(tensor is each for each in written)]
    try:
        torch.broadcast_shapes(*(tuple(tensor.shape) for tensor in inputs))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return
    common = next((tensor.device for tensor in (*written, *inputs) if not tensor.is_cpu), torch.device("cpu"))
    scalars = 0
    for tensor in (*written, *inputs):
        if tensor.is_cpu and not tensor.dim() and cpu_scalars and not any(tensor is each for each in written):
            scalars += 1
            require(scalars <= cpu_scalars, "Trying to pass too many CPU scalars to non-CPU kernel!")
        elif tensor.device != common:
            _refuse_two(common, tensor.device)


def _refuse_two(*devices: torch.device) -> NoReturn:
    one, other = sorted(devices, key=lambda device: device.type == "cpu")
    raise RuntimeError(f"{_EXPECTED}found at least two devices, {one} and {other}!")


def _is_uneven(operands: _Operands) -> bool:
    listed = [tensor for name, tensor in operands.inputs if isinstance(operands.values[name], (list, tuple))]
    return len({tensor.device for tensor in listed}) > 1 or listed[0].is_cpu


def _addcmul(operands: _Operands) -> None:
    for name in ("self", "tensor1"):
        if operands.values[name].is_cpu and not operands.values[name].dim() and not operands.values["tensor2"].is_cpu:
            advice = " However, CPU Scalar support for tensor2 is supported, please swap your tensor1 and tensor2 terms."
            text = f"CPU Scalar support for {name} argument is not supported when calling addcmul on CUDA tensors."
            raise RuntimeError(text if name == "self" else text + advice)
    _compare(operands, cpu_scalars=1)


def _lerp(operands: _Operands) -> None:
    _compare(operands, cpu_scalars=1)
    for at, name in enumerate(("self", "end"), 1):
        if operands.values[name].is_cpu:
            raise RuntimeError(
                f"iter.device(arg).is_cuda() INTERNAL ASSERT FAILED: argument {at}: expected a CUDA device but found cpu"
            )


def _masked_fill(operands: _Operands) -> None:
    tensor, mask = operands.values["self"], operands.values["mask"]
    if "value" in operands.values and isinstance(operands.values["value"], torch.Tensor) and tensor.is_cpu:
        raise RuntimeError("masked_fill_: Expected inputs to be on same device")
    if tensor.device != mask.device:
        raise RuntimeError(
            f"expected self and mask to be on the same device, but got mask on {mask.device} and self on {tensor.device}"
        )


def _index(operands: _Operands) -> None:
    here = operands.values["self"].device
    for index in _tensors([operands.values["indices"]]):
        if index.device not in (here, torch.device("cpu")):
            raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({here})")


def _index_put(operands: _Operands) -> Mixed:
    here, values = operands.values["self"].device, operands.values["values"]
    if values.device != here and values.dim():
        sorts = operands.values["accumulate"] or torch.are_deterministic_algorithms_enabled()
        require(not sorts or here.type != "cuda", f"expected device {here} but got device {values.device} for value tensor")
        _refuse_two(here, values.device)
    return Mixed.ON_HOST if here.type == "cpu" else Mixed.ON_DEVICE


def _index_fill(operands: _Operands) -> Mixed:
    here, there = operands.values["self"].device, operands.values["index"].device
    return _of_self(operands) if here == there else _refuse_two(here, there)


def _of_self(operands: _Operands) -> Mixed:
    return Mixed.ON_HOST if operands.inputs[0][1].is_cpu else Mixed.ON_DEVICE


def _searchsorted(operands: _Operands) -> NoReturn:
    """See native/BucketizationUtils.h."""
    overload = "Tensor" if isinstance(operands.values["self"], torch.Tensor) else "Scalar"
    wrapper = f"wrapper_CUDA_{overload}_out_searchsorted_out" if operands.out else f"wrapper_CUDA_{overload}_searchsorted"
    inputs = tuple((name, tensor) for name, tensor in operands.inputs if name != "sorter")
    _require_common_device(_Operands(operands.out, inputs, (), operands.values), wrapper)
    raise RuntimeError(
        "torch.searchsorted(): sorter and boundary tensors should have same device type, but got sorter tensor device type"
        f" {operands.values['sorter'].device} and input value tensor device type {operands.values['sorted_sequence'].device}"
    )


def _mode(operands: _Operands) -> Mixed:
    """See `mode_out` in ATen/native/Sorting.cpp."""
    here = operands.inputs[0][1].device
    if here.type == "cpu":
        return Mixed.DECOMPOSED
    for name, out in operands.out:
        require(out.device == here, f"expected device '{here}' but got '{out.device}' for {name} output")
    return Mixed.ON_DEVICE


def _set(operands: _Operands) -> None:
    raise other_device(operands.values["self"], operands.values["source"])


def _pack(operands: _Operands) -> None:
    lengths = operands.values["lengths"]
    if not lengths.is_cpu:
        kind = lengths.type().rpartition(".")[2].removesuffix("Tensor")
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D {lengths.device} {kind} tensor"
        )


def _rnn(operands: _Operands) -> None:
    data = operands.inputs[0][1]
    hidden = ("hx", "cx") if "cx" in operands.values else ("hx",)
    for kind, names in (("hidden", hidden), ("parameter", ("weight", "params"))):
        for other in _tensors([operands.values.get(name) for name in names]):
            if other.device != data.device:
                raise RuntimeError(
                    f"Input and {kind} tensors are not at the same device, found input tensor at {data.device} and {kind}"
                    f" tensor at {other.device}"
                )


def _convolution(operands: _Operands) -> None:
    """See `_convolution` in ATen/native/Convolution.cpp."""
    data, weight = operands.values["input"], operands.values["weight"]
    on_meta = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), operands.values)
    torch.ops.aten.convolution.default(*on_meta.values())
    kernel = [*weight.shape[2:]]
    onednn = operands.values["groups"] > 1 or data.size(0) > 1 or data.numel() > 20_480 or all(size > 3 for size in kernel[-2:])
    if data.is_cpu and len(kernel) == 2 and not onednn and not operands.values["transposed"]:
        _require_common_device(operands, "wrapper_CUDA___slow_conv2d_forward")
    for name in ("weight", "bias"):
        other = operands.values[name]
        if other is not None and other.device != data.device:
            dense = f" or input should be a MKLDNN tensor and {name} is a dense tensor" if data.is_cpu else ""
            text = f"Input type ({data.type()}) and {name} type ({other.type()}) should be the same{dense}"
            raise RuntimeError(text)


def _batch_norm(operands: _Operands) -> None:
    data, training = operands.values["input"], operands.values["training"]
    affine = operands.values["weight"], operands.values["bias"]
    by_cudnn = batch_norm_by_cudnn(data, *affine, operands.values["running_mean"], training)
    _require_common_device(operands, f"wrapper_CUDA__{'cudnn' if by_cudnn else 'native'}_batch_norm")


def _require_compressed(compressed: torch.Tensor, plain: torch.Tensor, values: torch.Tensor, layout: torch.layout) -> None:
    """See ATen/native/sparse/SparseCsrTensor.cpp."""
    by_row = layout in (torch.sparse_csr, torch.sparse_bsr)
    names = ("crow_indices", "col_indices") if by_row else ("ccol_indices", "row_indices")
    for name, indices in zip(names, (compressed, plain), strict=True):
        require(indices.device == values.device, f"Values and {name} need to be on the same device.")


_CALLS = {"_sparse_addmm": "addmm"}
_NO_SCALARS = frozenset({"mse_loss", "smooth_l1_loss", "binomial", "binary_cross_entropy"})
_ANY_DEVICE = (
    "copy_ fill_ bernoulli_ _to_copy _copy_from is_same_size is_set_to is_pinned _nested_from_padded _nested_view_from_buffer"
).split()
_RULES: dict[str, Callable[[_Operands], Mixed | None]] = {  # None stands for ON_DEVICE
    **dict.fromkeys(_ANY_DEVICE, _of_self),
    **dict.fromkeys(("index", "_unsafe_index"), _index),
    **dict.fromkeys(("_index_put_impl_", "index_put_", "index_put", "_unsafe_index_put"), _index_put),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu", "_cudnn_rnn"), _rnn),
    "addcmul": _addcmul,
    "addcmul_": _addcmul,
    "lerp": _lerp,
    "where": partial(_compare, cpu_scalars=3),
    "masked_fill_": _masked_fill,
    "index_fill_": _index_fill,
    "mode": _mode,
    "searchsorted": _searchsorted,
    "set_": _set,
    "_pack_padded_sequence": _pack,
    "convolution": _convolution,
    "native_batch_norm": _batch_norm,
}
# Ops that accept output tensors with overlapping elements. The list was tested with PyTorch 2.11 on an NVIDIA H100, and with
# PyTorch 2.14 on the simulated device of tests/cuda. The list does not contain avg_pool2d and avg_pool3d, because CUDA's
# kernels would write beyond the memory of an output with overlapping elements.
_MAY_OVERLAP = frozenset(
    "fill_ full zero_ _foreach_zero_ zeros ones index_fill_ index_put_ _index_put_impl_ record_stream tril tril_ triu triu_"
    " eye multinomial _scaled_mm threshold_ sum amax linalg_vector_norm".split()
)
_ALWAYS = frozenset({torch.ops.aten._pack_padded_sequence.default})
