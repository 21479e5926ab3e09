# mypy: allow-untyped-calls
"""Records the result sizes of functions with data-dependent shapes, such as `nonzero` and `unique`.

    kept = boxes[scores > 0.5]          # a replay has no scores, so it returns the recorded number of rows
    labels = labels.unique()

The recorder reads the sizes from the shapes of the results. The recorder copies no data from the GPU. A copy would make the
script wait.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from functools import partial, wraps
from types import ModuleType
from typing import Any, NamedTuple

import torch

from tracer.state import recorder
from tracer.surfaces.torch_tensor import attribute, counting, overridable
from traces.model.layouts import Shape
from traces.model.trace import NONE
from traces.script.patching import patch, temporarily_set

NONZERO = "aten::nonzero"  # one name for all functions that search for nonzero elements, as on a GPU


class Found(NamedTuple):
    op: str
    searched: Shape
    size: int


_AS_SEQUENCE, _ITEM = 13, 3  # offsets in pointer-sized words: tp_as_sequence in a type, sq_item in PySequenceMethods

Seen = Callable[..., Iterator[Found]]  # arguments: result and arguments of a call


class _Within(threading.local):
    another = False


_WITHIN = _Within()  # each thread has a separate value


def install(torch_module: ModuleType) -> None:
    counts = counting(torch_module)
    seen: dict[str, Seen] = {
        "nonzero": _nonzero,
        "argwhere": _nonzero,
        "masked_select": _masked_select,
        "unique": partial(_distinct, "aten::_unique2", "aten::unique_dim", 3),
        "unique_consecutive": partial(_distinct, "aten::unique_consecutive", "aten::unique_consecutive", 2),
        "repeat_interleave": _repeat_interleave,
        "bincount": _bincount,
    }
    for name, see in (seen | {"where": _where}).items():
        patch(torch, **{name: overridable(_noting(getattr(torch, name), see, counts))})
    for cls in (torch.Tensor, *torch.Tensor.__subclasses__()):
        for name, see in (seen | {"__getitem__": _getitem}).items():
            if cls is torch.Tensor or name in vars(cls):
                wrap = _noting_index if name == "__getitem__" else _noting
                patch(cls, **{name: wrap(getattr(cls, name), see, counts)})
    for cls in _with_subclasses(torch.Tensor):
        _is_no_sequence(cls)


def _with_subclasses(cls: Any) -> Iterator[type]:
    yield cls
    for one in cls.__subclasses__():
        yield from _with_subclasses(one)


def _is_no_sequence(cls: type) -> None:
    """Let `torch.Tensor([[x]])` accept a scalar tensor `x`. Clear CPython's field `sq_item`, which marks a class as a sequence
    (Include/cpython/object.h)."""
    word = ctypes.sizeof(ctypes.c_void_p)
    if sys.implementation.name != "cpython" or word != 8 or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return
    methods = ctypes.c_void_p.from_address(id(cls) + _AS_SEQUENCE * word).value
    if methods:
        ctypes.c_void_p.from_address(methods + _ITEM * word).value = None


def _noting(call: Callable[..., Any], see: Seen, counts: Callable[[Any], bool]) -> Callable[..., Any]:
    @wraps(call)
    def noted(*args: Any, **kwargs: Any) -> Any:
        name = "condition" if "condition" in kwargs else "input"  # name of the function's first parameter
        first, *others = args or (kwargs.get(name),)
        if _WITHIN.another or not isinstance(first, torch.Tensor) or not counts(first):
            return call(*args, **kwargs)
        with temporarily_set(_WITHIN, another=True):
            result = call(*args, **kwargs)
        parts = result if isinstance(result, tuple) else (result,)
        if (to := recorder()) is not None and all(isinstance(part, torch.Tensor) for part in parts):
            named = kwargs if args else {key: value for key, value in kwargs.items() if key != name}
            with torch._C.DisableTorchFunction():  # see Note [Attributes of tensors] in torch_tensor.py
                found = list(see(result, first, *others, **named))
            for one in found:
                to.add_result_size(*one)
        return result

    return noted


def _noting_index(call: Callable[..., Any], see: Seen, counts: Callable[[Any], bool]) -> Callable[..., Any]:
    noting = _noting(call, see, counts)

    @wraps(call)
    def noted(self: Any, index: Any) -> Any:
        return noting(self, index) if _masks(index) else call(self, index)

    return noted


def _masks(index: Any) -> list[Any]:
    if isinstance(index, tuple):
        return [mask for part in index for mask in _masks(part)]
    return [index] if _is_mask(index) else []


def _is_mask(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and attribute(part, "dtype") in (torch.bool, torch.uint8)


def _nonzero(result: Any, searched: Any, **kwargs: Any) -> Iterator[Found]:
    columns = result if isinstance(result, tuple) else (result,)
    yield Found(NONZERO, tuple(searched.shape), columns[0].shape[0])


def _where(result: Any, condition: Any, *args: Any, **kwargs: Any) -> Iterator[Found]:
    if not args and not kwargs:  # `torch.where` with values to choose from has no data-dependent size
        yield from _nonzero(result, condition)


def _masked_select(result: Any, source: Any, mask: Any, **kwargs: Any) -> Iterator[Found]:
    yield Found(NONZERO, tuple(torch.broadcast_shapes(source.shape, mask.shape)), result.shape[0])


def _getitem(result: Any, source: Any, index: Any) -> Iterator[Found]:
    for mask in _masks(index):
        if mask.is_cuda is source.is_cuda:  # if the mask is on the host, the host searches the mask, not the GPU
            yield Found(NONZERO, tuple(mask.shape), _length_found(result, source, index))


def _length_found(result: Any, source: Any, index: Any) -> int:
    parts = index if isinstance(index, tuple) else (index,)
    tensors = [part for part in parts if hasattr(part, "dim")]
    if any(isinstance(part, (bool, list)) for part in parts) or any(t.dim() > 1 and not _is_mask(t) for t in tensors):
        return NONE
    chosen = [i for i, part in enumerate(parts) if hasattr(part, "dim")]
    between = [part for part in parts[chosen[0] : chosen[-1]] if not hasattr(part, "dim")]
    if any(not isinstance(part, int) for part in between):
        return int(result.shape[0])  # if the masks are not adjacent, the masked dimension is the first dimension of the result
    taken = sum(_dimensions(part) for part in parts)
    place = 0
    for part in parts[: chosen[0]]:
        place += source.dim() - taken if part is Ellipsis else not isinstance(part, int)
    return int(result.shape[place])


def _dimensions(part: Any) -> int:
    if _is_mask(part):
        return int(part.dim())
    return 0 if part is None or part is Ellipsis else 1


def _distinct(op: str, op_of_slices: str, place: int, result: Any, source: Any, *args: Any, **kwargs: Any) -> Iterator[Found]:
    dim = args[place] if len(args) > place else kwargs.get("dim")
    yield Found(op if dim is None else op_of_slices, tuple(source.shape), _length(result, dim))


def _repeat_interleave(
    result: Any, source: Any, repeats: Any = None, dim: Any = None, *, output_size: Any = None
) -> Iterator[Found]:
    if output_size is not None or isinstance(repeats, int):
        return  # the shapes determine the size, so the size need not be recorded
    if repeats is None:
        yield Found("aten::repeat_interleave", tuple(source.shape), result.shape[0])
    else:  # PyTorch first expands a single count
        length = source.numel() if dim is None else source.shape[dim]
        yield Found("aten::repeat_interleave", (length,), _length(result, dim))


def _bincount(result: Any, source: Any, *args: Any, **kwargs: Any) -> Iterator[Found]:
    yield Found("aten::bincount", tuple(source.shape), result.shape[0])


def _length(result: Any, dim: int | None) -> int:
    first = result[0] if isinstance(result, tuple) else result
    return int(first.shape[0 if dim is None else dim])
