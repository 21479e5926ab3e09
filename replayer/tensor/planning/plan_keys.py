"""Computes a cache key for each op call. Calls with equal keys return tensors of equal shapes and dtypes.

A Python function is generated for each op, for example:

    aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1), called with two arguments, becomes
    def key(a, k):
        a0, a1, = a
        return (2, a0.tensor_meta if type(a0) is V or type(a0) is P else key_of_tensor(a0), a1.tensor_meta if ...)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from math import inf, nextafter
from types import CodeType

import torch
from torch import finfo

from replayer import torch_shortcuts
from replayer.tensor.device_args import current_index
from replayer.tensor.generators import virtual_generator
from replayer.tensor.tensor_meta import OURS, TensorMeta, is_virtual
from replayer.torch_types import Args, Kwargs, Op, TorchAny

Key = tuple[TorchAny, ...]
Keyer = Callable[[tuple[TorchAny, ...], dict[str, TorchAny]], TorchAny]

_VALUE_SCALARS = frozenset({"arange", "range", "linspace", "logspace"})
_SCALAR = ("float", "Scalar", "number", "Optional[float]", "Optional[number]")

# Kernels may reject negative scalars, scalars above 1, and scalars that do not fit the dtype.
_LARGEST = (127, 255, 448, 32767, 57344, 65504, 2**31 - 1, 2**63 - 1, finfo(torch.bfloat16).max, finfo(torch.float32).max)
_BELOW = [nextafter(limit, -inf) for largest in _LARGEST for limit in (-largest, -largest - 1)]
_LIMITS = sorted({-inf, nextafter(0, -1), 0.0, nextafter(1, 0), 1.0, *_LARGEST, *_BELOW})


def scalar_range(value: TorchAny) -> int:
    """Return how many of the sorted numbers in `_LIMITS` are smaller than the scalar. Kernels reject scalars beyond a limit,
    such as 300 for an 8-bit integer. If two scalars are between the same limits, a kernel accepts both or rejects both."""
    return 0 if value is None or isinstance(value, complex) else bisect_left(_LIMITS, value)


KEYER_FILE = "<plan key>"  # file name of the generated functions in tracebacks and profiles


def key_function(func: Op, count: int, tensor_class: TorchAny, get: Callable[[Key], TorchAny] | None = None) -> Keyer:
    """Return a function that computes the cache key of an op call."""
    by_value = func._schema.name.rpartition("::")[2] in _VALUE_SCALARS
    if not torch_shortcuts.enabled("compiled_keys"):
        return _plain_keyer(func, count, tensor_class, by_value, get)
    parts = [_expression(str(argument.type), f"a{i}", by_value) for i, argument in enumerate(func._schema.arguments[:count])]

    def key_of(value: TorchAny) -> TorchAny:
        return key_part(value, tensor_class, by_value)

    def key_of_tensor(value: TorchAny) -> TorchAny:
        return key_of(value) if isinstance(value, torch.Tensor) else type(value)

    def options(kwargs: Kwargs) -> list[TorchAny]:
        return [(name, key_of(value)) for name, value in kwargs.items()]

    read = f"{count}, {''.join(part + ', ' for part in parts)}"
    unpack = "".join(f"a{i}, " for i in range(count)) + "= a" if count else ""
    source = f"def key(a, k):\n {unpack}\n return get(({read}*options(k)) if k else ({read}))"
    names: dict[str, TorchAny] = {"V": tensor_class, "P": tensor_class.parameter_class}
    names |= {"key_of": key_of, "key_of_tensor": key_of_tensor, "options": options, "get": get or tuple}
    names["scalar_range"] = scalar_range
    exec(_compiled(source), names)
    made: Keyer = names["key"]
    return made


@cache
def _compiled(source: str) -> CodeType:
    return compile(source, KEYER_FILE, "exec")


def _plain_keyer(func: Op, count: int, tensor_class: TorchAny, by_value: bool, get: Callable[[Key], TorchAny] | None) -> Keyer:
    kinds = [str(argument.type) for argument in func._schema.arguments]

    def key(args: Args, kwargs: Kwargs) -> TorchAny:
        parts: list[TorchAny] = [count]
        for kind, value in zip(kinds, args, strict=False):
            if kind in _SCALAR and not by_value:
                parts += [type(value), scalar_range(value)]
            elif kind == "List[number]" and not by_value:
                parts.append(tuple(map(type, value)))
            elif kind == "Tensor" and not isinstance(value, torch.Tensor):
                parts.append(type(value))
            else:
                parts.append(key_part(value, tensor_class, by_value))
        parts += [(name, key_part(value, tensor_class, by_value)) for name, value in kwargs.items()] if kwargs else []
        found = tuple(parts)
        return get(found) if get else found

    return key


def _tensor_expression(at: str, otherwise: str) -> str:
    return f"{at}.tensor_meta if type({at}) is V or type({at}) is P else {otherwise}({at})"


def _expression(kind: str, at: str, by_value: bool) -> str:
    if kind == "Tensor":
        return _tensor_expression(at, "key_of_tensor")
    if kind == "Optional[Tensor]":
        return f"None if {at} is None else {_tensor_expression(at, 'key_of_tensor')}"
    if kind == "List[Tensor]":
        return f"tuple([{_tensor_expression('t', 'key_of')} for t in {at}])"
    if kind in ("int", "SymInt", "bool", "str", "Optional[bool]", "Device", "Optional[str]"):
        return at
    if kind in ("List[int]", "List[bool]", "List[SymInt]"):
        return f"tuple({at})"
    if kind == "Optional[List[int]]":
        return f"None if {at} is None else tuple({at})"
    if kind in _SCALAR and not by_value:
        return f"type({at}), scalar_range({at})"
    if kind == "List[number]" and not by_value:
        return f"tuple(map(type, {at}))"
    return f"key_of({at})"


def key_part(value: TorchAny, tensor_class: TorchAny, by_value: bool = False) -> TorchAny:
    if isinstance(value, torch.Tensor):
        if is_virtual(value, tensor_class):
            return value.tensor_meta  # type: ignore[attr-defined]
        if not value.dim():
            return ("host", value.device, value.dtype, (), ())
        return ("host", value.device, value.dtype, tuple(value.shape), value.stride())
    if isinstance(value, (list, tuple)):
        return tuple([key_part(item, tensor_class, by_value) for item in value])
    if isinstance(value, (float, complex)):
        return (type(value), value) if by_value else type(value)
    if isinstance(value, torch.device) and value.index is None and value.type in OURS:
        return torch.device(value.type, current_index())
    if isinstance(value, torch.Generator):
        return virtual_generator(value) is None
    return (type(value), value)


def key_for_ranks(func: Op, key: Key) -> tuple[bytes, int] | None:
    if torch.are_deterministic_algorithms_enabled():
        return None  # do not share the result, because each rank may have to print a warning
    devices: set[int] = set()
    try:
        parts = _portable(key, devices)
    except TypeError:
        return None
    if len(devices) != 1:
        return None
    return repr((str(func), str(torch.get_default_dtype()), parts)).encode(), devices.pop()


def _portable(part: TorchAny, devices: set[int]) -> TorchAny:
    kind = type(part)
    if kind is TensorMeta:
        devices.add(part.index)
        return part.in_all_ranks
    if kind is tuple:
        return tuple([_portable(each, devices) for each in part])
    if kind is torch.device and part.type in OURS and part.index is not None:
        devices.add(part.index)
        return part.type
    if kind in _SAME_IN_ALL_RANKS or (kind is type and part in _SAME_IN_ALL_RANKS):
        return str(part) if kind.__module__ == "torch" else part
    raise TypeError(kind)


_SAME_IN_ALL_RANKS = {
    int, bool, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format
}  # fmt: skip
