"""Runs PyTorch's meta kernels to find out which tensors an op returns and changes.

    infer(metas, torch.ops.aten.t.default, (x,), {}, 0).outcome    # View(meta, (0, -1))

Note [Aliasing is observed]
    Each virtual argument is passed to the op as a meta tensor with its own storage. A result with the same storage is a view of
    the argument. If an argument's shape has changed, the op resized it (`resize_`, `out=`). If an argument's storage has
    changed, the op has replaced the argument's memory (`set_`).
"""

from __future__ import annotations

import re

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from replayer.errors import DataDependentShape, NotEmulated, warn_at_script
from replayer.tensor.device_args import index_of
from replayer.tensor.generators import PhiloxState, host_numbers, one_thread, without_warnings
from replayer.tensor.plan import Constant, New, Outcome, Plan, Reshaped, Same, Several, View, Where
from replayer.tensor.planning.assumed_sizes import asks_for_sizes, run_shape_rule
from replayer.tensor.planning.call_arguments import CallArguments
from replayer.tensor.planning.cuda_dtypes import HALVES, compares_dtypes, refusal_like, tensors_of
from replayer.tensor.planning.deterministic import without_alerts
from replayer.tensor.planning.mixed_devices import mixed_call, on_host
from replayer.tensor.planning.shape_rules import RULES, whole_loss
from replayer.tensor.tensor_meta import LACKS_KERNEL, TensorMeta, TensorMetaTable, is_mask, on_one_device
from replayer.torch_types import Args, Kwargs, Op, TorchAny

aten = torch.ops.aten


def infer(metas: TensorMetaTable, func: Op, args: Args, kwargs: Kwargs, current: int) -> Plan:
    _refuse_unknown_shape(func, args)
    arguments = _MetaArguments(metas.tensor_class)
    meta_args = tuple([arguments.of(value, (i, -1)) for i, value in enumerate(args)])
    meta_kwargs = arguments.named(func, kwargs)
    device = arguments.device(current)
    if "device" in kwargs:
        device = on_device(kwargs["device"], device)
    with without_alerts():
        results, kept = _run(func, meta_args, meta_kwargs), True
    if results is _ASKS_FOR_SIZES:
        results, kept = run_shape_rule(func, meta_args, meta_kwargs), False
    outcome = _outcome(metas, whole_loss(func, results, meta_args), arguments, device)
    if func._schema.name in _SEEDS_ON_HOST and isinstance(outcome, Several):
        seeds = [isinstance(part, New) and part.tensor_meta.shape == () for part in outcome.parts]
        parts = zip(outcome.parts, seeds, strict=True)
        outcome = Several(tuple([New(part.tensor_meta, 0) if seed else part for part, seed in parts]))
    reshaped = tuple(_reshaped(metas, arguments))
    for change in reshaped:
        _warn_of_resizing(change, kwargs.get(str(change.of[0])))
    writes = tuple(writes_of(func, args, kwargs))
    outputs = tuple(_new_shapes(outcome))
    does_something = bool(writes or outputs) or _writes_undeclared(func)
    signature = arguments.signature(func._schema.name, outputs, launches(func, does_something))
    plan = Plan(signature, device, outcome, writes, reshaped)
    plan.kept = kept
    return plan


# Ops that return their random seed in CPU memory (PyTorch's Note [Seed and Offset Device] in attention.cu)
_SEEDS_ON_HOST = ("aten::_scaled_dot_product_efficient_attention", "aten::_efficient_attention_forward")


def run_elsewhere(tensor_class: type, func: Op, args: Args, kwargs: Kwargs) -> TorchAny:
    """Run an op with a CPU tensor as its result, such as `zeros_like(x, device="cpu")`."""
    if func._schema.name in ("aten::linspace", "aten::logspace"):
        return on_host(func, args, kwargs)
    if "sparse" in func._schema.name:
        mixed_call(func, args, kwargs)
    return func(*map(_MetaArguments(tensor_class).of, args), **kwargs)


def writes_of(func: Op, args: Args, kwargs: Kwargs) -> list[tuple[int | str, bool]]:
    found: list[tuple[int | str, bool]] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            listed = "List" in str(argument.type)
            if i < len(args) and args[i] is not None:
                found.append((i, listed))
            elif kwargs.get(argument.name) is not None:
                found.append((argument.name, listed))
    return found


class OtherLayout(Exception):
    pass


QUANTISED = ("a quantised tensor", "use torch.fake_quantize_per_tensor_affine, or quantise a copy on the CPU")


def _outcome(metas: TensorMetaTable, result: TorchAny, arguments: _MetaArguments, device: int) -> Outcome:
    if isinstance(result, torch.Tensor):
        if str(result.dtype).startswith(("torch.q", "torch.quint")):
            raise NotEmulated(*QUANTISED)
        if result.layout is not torch.strided or result.is_nested:
            raise OtherLayout
        where = arguments.objects.get(id(result))
        if where is not None:
            return Same(where)
        meta = metas.like(result, device)
        owner = arguments.storages.get(result.untyped_storage()._cdata)
        return View(meta, owner) if owner is not None else New(meta, result.untyped_storage().nbytes())
    if isinstance(result, (list, tuple)):
        return Several(tuple([_outcome(metas, part, arguments, device) for part in result]))
    return Constant(result)


def _reshaped(metas: TensorMetaTable, arguments: _MetaArguments) -> list[Reshaped]:
    changed = []
    for where, before, meta_tensor, storage, size_bytes in arguments.made:
        now = metas.like(meta_tensor, before.index)
        owner = meta_tensor.untyped_storage()._cdata
        rebound = arguments.storages.get(owner) if owner != storage else None
        new_bytes = meta_tensor.untyped_storage().nbytes()
        if now is not before or rebound is not None or new_bytes > size_bytes or owner != storage:
            changed.append(Reshaped(where, now, new_bytes, rebound))
    return changed


def _has_out(func: Op) -> bool:
    return any(argument.is_out for argument in func._schema.arguments)


def _warn_of_resizing(change: Reshaped, out: TorchAny) -> None:
    """See `resize_output_check` in ATen/native/Resize.cpp."""
    out = out[change.of[1]] if isinstance(out, (list, tuple)) else out
    if out is not None and out.numel() and out.shape != change.tensor_meta.shape:
        warn_at_script(
            f"An output with one or more elements was resized since it had shape {[*out.shape]}, which does not match the"
            f" required output shape {[*change.tensor_meta.shape]}. This behavior is deprecated, and in a future PyTorch"
            f" release outputs will not be resized unless they have zero elements. {_HOW_TO_RESIZE}"
        )


_HOW_TO_RESIZE = "You can explicitly reuse an out tensor t by resizing it, inplace, to zero elements with t.resize_(0)."


class _MetaArguments(CallArguments):
    device_type = "meta"

    def __init__(self, tensor_class: type) -> None:
        super().__init__(tensor_class)
        self.objects: dict[int, Where] = {}
        self.storages: dict[int, Where] = {}
        self.made: list[tuple[Where, TensorMeta, torch.Tensor, int, int]] = []

    def of(self, value: TorchAny, where: Where = (0, -1)) -> TorchAny:
        return None if isinstance(value, torch.Generator) else super().of(value, where)

    def virtual(self, value: TorchAny, where: Where) -> torch.Tensor:
        meta: TensorMeta = value.tensor_meta
        size_bytes = max(value.allocation.size_bytes, meta.extent_bytes + meta.offset * meta.itemsize)
        base = torch.empty(-(-size_bytes // meta.itemsize), dtype=meta.dtype, device="meta")
        meta_tensor = meta.with_bits(base.as_strided(meta.shape, meta.stride, meta.offset))
        storage = meta_tensor.untyped_storage()
        self.objects[id(meta_tensor)] = where
        self.storages[storage._cdata] = where
        self.made.append((where, meta, meta_tensor, storage._cdata, storage.nbytes()))
        return meta_tensor

    def plain(self, value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device="meta")


def on_device(device: torch.device | None, otherwise: int) -> int:
    return otherwise if device is None else index_of(device)


def _refuse_unknown_shape(func: Op, args: Args) -> None:
    by_mask = func is not aten.index.Tensor or any(map(is_mask, args[1]))
    if torch.Tag.dynamic_output_shape in func.tags and func not in RULES and by_mask:
        raise DataDependentShape(func._schema.name)


_ASKS_FOR_SIZES = object()


def _run(func: Op, args: Args, kwargs: Kwargs) -> TorchAny:
    rule = RULES.get(func)
    if rule is not None:
        _refuse_shapes(func, args, kwargs)
        try:
            return rule(*args, **kwargs)
        except RuntimeError as refused:
            raise _answer_of_cpu(func, args, kwargs)[1] or refused from None
    # PyTorch's meta kernels for quantization return the wrong tensor class.
    if func._schema.name.startswith("aten::quantize_per"):
        raise NotEmulated(*QUANTISED)
    on_cpu = _refuse_missing_dtypes(func, args, kwargs)
    if on_cpu is None:  # otherwise, the CPU kernel has accepted the call
        _refuse_shapes(func, args, kwargs)
    try:
        result = without_warnings(lambda: func(*args, **kwargs)) if _has_out(func) else func(*args, **kwargs)
        # Some meta kernels return a different dtype than CPU and CUDA kernels.
        differs = all(isinstance(made, torch.Tensor) for made in (result, on_cpu)) and result.dtype is not on_cpu.dtype
        return result.to(on_cpu.dtype) if differs and not func._schema.is_mutable else result
    except NotImplementedError as missing:
        if not LACKS_KERNEL.search(str(missing)):
            raise
        if not func._schema.returns:
            return None
        try:
            return _shapes_on_cpu(func, args, kwargs)
        except NotEmulated:
            raise
        except (RuntimeError, NotImplementedError, OverflowError):
            advice = "PyTorch has no shape rule for this call; replay with --values compute, or call it on the CPU"
            raise NotEmulated(func._schema.name, advice) from missing
    except IndexError:
        _run_on_cpu(func, args, kwargs)  # this call raises PyTorch's error
        raise
    except (RuntimeError, AssertionError, ValueError) as refused:
        if asks_for_sizes(refused):
            return _ASKS_FOR_SIZES
        if "nested" in func._schema.name:
            raise OtherLayout from None
        accepted, of_cpu = _answer_of_cpu(func, args, kwargs)
        if accepted is not None:
            return accepted
        # Meta kernels raise several types of errors, but CUDA kernels raise only RuntimeError.
        error = of_cpu or RuntimeError(str(refused))
        if any(internal in str(error) for internal in _INTERNAL):
            advice = "PyTorch has no shape rule for this call; use other arguments, or call it on the CPU"
            raise NotEmulated(func._schema.name, advice) from None
        try:
            raise on_one_device(error) from None
        finally:
            del error, of_cpu  # the error's traceback refers to the call's tensors


_INTERNAL = ("INTERNAL ASSERT", "meta tensor", "Lazy", "lazy")


_TRIED_ELEMENTS = 1 << 20  # calls with more elements are not computed on the CPU
_REFUSED_ELEMENTS = 1 << 28  # limit in elements for calls that the CPU kernel probably rejects before it computes anything


def _shapes_on_cpu(func: Op, args: Args, kwargs: Kwargs) -> TorchAny:
    if _has_results_elsewhere(func):
        raise RuntimeError(func._schema.name)
    if _elements(args, kwargs) > _TRIED_ELEMENTS:
        raise OverflowError
    return tree_map_only(torch.Tensor, _on_meta, _run_on_cpu(func, args, kwargs))


def _has_results_elsewhere(func: Op) -> bool:
    return any(made.alias_info is not None for made in func._schema.returns) or torch.Tag.dynamic_output_shape in func.tags


def _on_meta(value: torch.Tensor) -> torch.Tensor:
    if value.layout is not torch.strided or value.is_nested:
        raise OtherLayout
    if value.is_quantized:
        raise NotEmulated(*QUANTISED)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


# switched off by `_run_on_cpu`, because these checks reject tensors of ones as indices
_SPARSE_CHECKS: TorchAny = torch.sparse.check_sparse_tensor_invariants


def _run_on_cpu(func: Op, args: Args, kwargs: Kwargs, value_of_integers: int = 1, trues: int | None = None) -> TorchAny:
    """Run an op on the CPU with tensors of ones. This shows the shapes of its results, or the error that it raises."""

    def on_host(value: TorchAny) -> TorchAny:
        if not isinstance(value, torch.Tensor):
            return torch.device("cpu") if isinstance(value, torch.device) else value
        number = 1 if value.is_floating_point() or value.is_complex() else value_of_integers
        if trues is not None and is_mask(value):
            return (torch.arange(value.numel(), device="cpu") < trues).to(value.dtype).view(value.shape)
        return torch.full(value.shape, number, dtype=value.dtype, device="cpu")

    args, kwargs = tree_map(on_host, (args, kwargs))
    try:
        with host_numbers(PhiloxState(), 0), one_thread(), _SPARSE_CHECKS(False):
            is_first = value_of_integers and trues is None and not _has_out(func)
            return func(*args, **kwargs) if is_first else without_warnings(lambda: func(*args, **kwargs))
    except RuntimeError as error:
        raise on_one_device(error) from None


def _answer_of_cpu(func: Op, args: Args, kwargs: Kwargs) -> tuple[TorchAny, Exception | None]:
    """If a meta kernel rejects a call, run the call on the CPU to find out whether it is valid."""
    if _elements(args, kwargs) > _REFUSED_ELEMENTS:
        few, named, originals = _with_smaller_sizes(func, args, kwargs)
        refused = _shape_error(func, few, named, 1)
        if refused is None or not _smaller_sizes_in(refused) <= originals.keys():
            return None, None
        return None, type(refused)(_NUMBER.sub(lambda number: str(originals.get(int(number[0]), number[0])), str(refused)))
    try:
        made = _run_on_cpu(func, args, kwargs)
    except RuntimeError as error:
        return None, error if type(error) is RuntimeError else refusal_like(func, args, kwargs, error)
    if func.namespace != "aten" or func._schema.name.removeprefix("aten::") in _VALUES_DECIDE:
        return None, None
    if writes_of(func, args, kwargs) == [(0, False)] and isinstance(made, torch.Tensor) and made.shape == args[0].shape:
        return args[0], None
    return (None if _has_results_elsewhere(func) else tree_map_only(torch.Tensor, _on_meta, made)), None


def _elements(args: Args, kwargs: Kwargs) -> int:
    return sum(map(torch.Tensor.numel, tensors_of((args, kwargs))))


def _are_plain(tensors: list[torch.Tensor]) -> bool:
    return not any(tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized for tensor in tensors)


# For these ops, the tensors' values decide whether a call is valid.
_VALUES_DECIDE = frozenset(
    "_unsafe_view native_dropout as_strided_ as_strided_copy as_strided_scatter set_ resize_ resize_as_ masked_scatter"
    " masked_scatter_ segment_reduce histc _scaled_mm _scaled_mm_v2 _scaled_grouped_mm _scaled_grouped_mm_v2 _grouped_mm"
    " _int_mm _weight_int4pack_mm _weight_int8pack_mm".split()
)
_OTHER_LAYOUT = re.compile(r"(?<!to_)sparse|nested")
_MASKED = frozenset({aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default})
_ON_CPU = re.compile(r"\bcpu\b|cuda|mkldnn|ZeroDivisionError", re.IGNORECASE)


def _refuse_shapes(func: Op, args: Args, kwargs: Kwargs) -> None:
    """Raise an error for invalid shapes that PyTorch's meta kernel accepts."""
    name = func._schema.name.partition("::")[2]
    is_view = any(made.alias_info is not None and not made.alias_info.is_write for made in func._schema.returns)
    tensors = tensors_of((args, kwargs))
    if func.namespace != "aten" or is_view or name in _VALUES_DECIDE or _OTHER_LAYOUT.search(name):
        return
    if not _are_plain(tensors):
        return
    elements = _elements(args, kwargs)
    if elements > _TRIED_FOR_DTYPES:
        few, named, _ = _with_smaller_sizes(func, args, kwargs)
        if "backward" in name or _elements(few, named) > _SMALLER_ELEMENTS or _shape_error(func, few, named, 1) is None:
            return
        if elements > _REFUSED_ELEMENTS:
            if any(isinstance(value, (list, tuple)) and len(value) > _KEPT_SIZES for value in args):
                return  # the length of a list may depend on a size
            args, kwargs = few, named
    if (error := _shape_error(func, args, kwargs, 1)) is None or _shape_error(func, args, kwargs, 0) is None:
        return
    if elements > _REFUSED_ELEMENTS and _smaller_sizes_in(error):
        return  # the original sizes may be valid
    by_mask = func in _MASKED and any(map(is_mask, tensors[1:]))
    try:
        if by_mask and not str(error).startswith("The shape of the mask"):
            counts = args[2].shape if len(args) > 2 else ()
            if not counts or any(_shape_error(func, args, kwargs, 1, count) is None for count in counts):
                return
        raise error
    finally:
        del error  # the error's traceback refers to the call's tensors


_VALUES = ("from", "to")  # these arguments are values, not sizes
_KEPT_SIZES = 8
_SMALLER_ELEMENTS = 1 << 18  # the CPU computes a call of this size in at most a millisecond


def _smaller_sizes(sizes: set[int], numbers: set[int], above: int = 0) -> dict[int, int]:
    """Choose smaller tensor sizes and integer arguments, so that a test run of the call is fast."""
    smaller: dict[int, int] = {0: 0}
    last = before = 0
    for number in sorted(sizes | numbers):
        divisors = [n for n in numbers if 1 < n < number]
        products = [smaller.get(n, n) * smaller.get(number // n, 0) for n in (2, 3, 4, *divisors) if number % n == 0]
        last = max(last, above)
        least = last + min(number - before, 2)
        fitting = (n for n in range(least, least + 256) if all((n % smaller[d] == 0) == (number % d == 0) for d in divisors))
        smaller[number] = number
        if number > _KEPT_SIZES:
            smaller[number] = next((product for product in products if product > last), None) or next(fitting, least)
        last, before = smaller[number], number
    return smaller


_NUMBER = re.compile(r"(?<![a-w\d])\d+")  # matches both numbers in "9x12", but not the number in "float32"


def _smaller_sizes_in(error: Exception) -> set[int]:
    return {number for number in map(int, _NUMBER.findall(str(error))) if number > _KEPT_SIZES}


def _with_smaller_sizes(func: Op, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs, dict[int, int]]:
    """Replace large tensors and integers by small ones. Also return the original size for each smaller size."""
    tensors = tensors_of((args, kwargs))
    named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    is_size = {a.name: "number" not in str(a.type) and a.name not in _VALUES for a in func._schema.arguments}
    integers = {leaf for leaf in tree_leaves({name: named[name] for name in named if is_size[name]}) if type(leaf) is int}
    # sizes above `_KEPT_SIZES`, so that a number in an error shows whether the error is about a replaced size
    above = _KEPT_SIZES if _elements(args, kwargs) > _REFUSED_ELEMENTS else 0
    smaller = _smaller_sizes({size for tensor in tensors for size in tensor.shape}, {n for n in integers if n > 0}, above)

    def convert(value: TorchAny) -> TorchAny:
        if isinstance(value, torch.Tensor):
            return torch.empty([smaller[size] for size in value.shape], dtype=value.dtype, device="meta")
        return smaller.get(value, value) if type(value) is int else value

    made = {name: tree_map(convert, value) if is_size[name] else value for name, value in named.items()}
    positional = tuple([made.pop(a.name) for a in func._schema.arguments[: len(args)]])
    return positional, made, {small: size for size, small in smaller.items()}


def _shape_error(func: Op, args: Args, kwargs: Kwargs, value: int, trues: int | None = None) -> Exception | None:
    try:
        _run_on_cpu(func, args, kwargs, value, trues)
    except (RuntimeError, IndexError) as error:
        text = str(error)
        if LACKS_KERNEL.search(text) and any(tensor.dtype in HALVES for tensor in tensors_of((args, kwargs))):
            in_float, options = tree_map_only(torch.Tensor, _in_float, (args, kwargs))
            return _shape_error(func, in_float, options, value, trues)
        patterns = () if _WANTS_INDICES.search(text) else (_NAMES_DTYPE, _ON_CPU, LACKS_KERNEL)
        is_other = (
            any(pattern.search(text) for pattern in patterns)
            or any(internal in text for internal in _INTERNAL)
            or fits_in_float(func, text)
        )
        error.__context__ = None  # the tracebacks of both errors would keep the script's tensors alive
        return error.with_traceback(None) if type(error) in (RuntimeError, IndexError) and not is_other else None
    except (TypeError, ValueError, OverflowError):
        pass
    return None


def _in_float(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in HALVES else tensor


# CUDA converts their scalars to float
_SCALARS_IN_FLOAT = frozenset(
    getattr(packet, overload)
    for name in "clamp clamp_min clamp_max hardtanh add sub rsub".split()
    for packet in (getattr(aten, name), getattr(aten, name + "_", None))
    for overload in (packet.overloads() if packet else ())
)


def fits_in_float(func: Op, of_cpu: str) -> bool:
    return func in _SCALARS_IN_FLOAT and re.search("c10::(Half|BFloat16) without overflow", of_cpu) is not None


_TRIED_FOR_DTYPES = 1 << 12  # elements
_LOW_PRECISION = re.compile(r"'(Half|BFloat16|ComplexHalf)'")  # some ops support these dtypes on CUDA, but not on the CPU
# "CPUBoolType{[4, 5]}" is part of an error about shapes
_NAMES_DTYPE = re.compile(r"dtype|scalar type|complex|[Bb]ool(?!Type\{)|floating")
# on all devices, the op requires indices of these dtypes
_WANTS_INDICES = re.compile(r"type (to be )?'?(long int|Long|int64|int32/int64)\b|dtype is wrong|used as indices")


def _refuse_missing_dtypes(func: Op, args: Args, kwargs: Kwargs) -> TorchAny:
    tensors = tensors_of((args, kwargs))
    scalars = zip(func._schema.arguments, args, strict=False)
    has_bool = any(type(value) is bool and str(argument.type) in ("number", "Tensor") for argument, value in scalars)
    floating = all(tensor.is_floating_point() for tensor in tensors) and not has_bool
    if floating and (func.namespace != "aten" or len({tensor.dtype for tensor in tensors}) < 2):
        return None
    large = _elements(args, kwargs) > (_TRIED_ELEMENTS if floating else _TRIED_FOR_DTYPES)
    name = func._schema.name
    # CUDA accepts more dtypes than the CPU
    if "layer_norm_backward" in name or "fused_adam" in name or ("batch_norm" in name and (large or "backward" in name)):
        return None
    if not _are_plain(tensors):
        return None
    if large:
        args, kwargs, _ = _with_smaller_sizes(func, args, kwargs)
    try:
        return _run_on_cpu(func, args, kwargs)
    except (RuntimeError, TypeError) as refused:
        text = str(refused)
        refusal = refusal_like(func, args, kwargs, refused)
        if refusal is not None and not _LOW_PRECISION.search(text):
            raise refusal from None
        if floating and not compares_dtypes(refused):
            return None
        only_cpu = LACKS_KERNEL.search(text) or " on CPU does" in text
        if (_NAMES_DTYPE.search(text) or compares_dtypes(refused)) and not only_cpu:
            raise on_one_device(refused) from None
    except (IndexError, ValueError, OverflowError):
        pass
    return None


IDLE = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided set_ resize_ resize_as_ detach_ squeeze_"
    " unsqueeze_ t_ transpose_ as_strided_ swapaxes_ swapdims_ record_stream is_same_size _has_same_storage_numel"
    " _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors".split()
)


def launches(func: Op, does_something: bool) -> bool:
    return does_something and func._schema.name.rpartition("::")[2] not in IDLE


_OF_TORCH = ("aten", "prims", "c10d", "_c10d_functional")


def _writes_undeclared(func: Op) -> bool:
    returns = func._schema.returns
    return func.namespace not in _OF_TORCH and bool(returns) and all(value.alias_info is None for value in returns)


def _new_shapes(outcome: Outcome) -> list[tuple[int, ...]]:
    if isinstance(outcome, New):
        return [outcome.tensor_meta.shape]
    if isinstance(outcome, Several):
        return [shape for part in outcome.parts for shape in _new_shapes(part)]
    return []
