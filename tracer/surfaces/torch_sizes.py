# mypy: allow-untyped-calls
"""torch's functions with data-dependent result sizes: the sizes are recorded, in order.

    kept = boxes[scores > 0.5]          # noted: a replay, which has no scores, makes as many rows
    labels = labels.unique()

Nothing more is computed or waited for: the size is read off the result. A function that calls another one of these is
noted once.
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
from tracer.surfaces.torch_tensor import counting
from traces.model.layouts import Shape
from traces.model.trace import NONE
from traces.script.patching import patch, replaced

NONZERO = "aten::nonzero"  # of all searches for what is not zero: that is what they come down to on a GPU


class Found(NamedTuple):
    """One search: the op under which a replay asks, the shape of the tensor that was searched, and how much was found."""

    op: str
    searched: Shape
    size: int


_AS_SEQUENCE, _ITEM = 13, 3  # places of tp_as_sequence in a type, and of sq_item in what that points to, in words

Seen = Callable[..., Iterator[Found]]  # of a call's result and arguments


class _Within(threading.local):
    another = False


_WITHIN = _Within()  # of this thread; the surfaces are global, and so are threads


def install(torch_module: ModuleType) -> None:
    """Wrap them as functions of torch and as methods of torch.Tensor, and of its subclasses that have their own."""
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
        patch(torch, **{name: _noting(getattr(torch, name), see, counts)})
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
    """Make C's PySequence_Check say no of these objects again, as of torch's tensors.

    A class with a `__getitem__` of Python's has one in C for sequences too, and `torch.Tensor([[x]])` then asks an `x` of no
    dimensions for its length. The layout is that of PyTypeObject and PySequenceMethods (CPython's Include/cpython/object.h).
    """
    word = ctypes.sizeof(ctypes.c_void_p)
    if sys.implementation.name != "cpython" or word != 8 or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return
    methods = ctypes.c_void_p.from_address(id(cls) + _AS_SEQUENCE * word).value
    if methods:
        ctypes.c_void_p.from_address(methods + _ITEM * word).value = None


def _noting(call: Callable[..., Any], see: Seen, counts: Callable[[Any], bool]) -> Callable[..., Any]:
    @wraps(call)
    def noted(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else kwargs.get("input", kwargs.get("condition"))
        if _WITHIN.another or not hasattr(first, "is_cuda") or not counts(first):
            return call(*args, **kwargs)
        with replaced(_WITHIN, another=True):
            result = call(*args, **kwargs)
        if (to := recorder()) is not None:
            for found in see(result, *args, **kwargs):
                to.found(*found)
        return result

    return noted


def _noting_index(call: Callable[..., Any], see: Seen, counts: Callable[[Any], bool]) -> Callable[..., Any]:
    """`x[index]` is common, and masks in it are not: the rest goes through as it is."""
    noting = _noting(call, see, counts)

    @wraps(call)
    def noted(self: Any, index: Any) -> Any:
        if _masks(index):
            return noting(self, index)
        return call(self, index)

    return noted


def _masks(index: Any) -> list[Any]:
    """The masks on the device, or on the host where there is no device, among the parts of an index."""
    if isinstance(index, tuple):
        return [mask for part in index for mask in _masks(part)]
    return [index] if _is_mask(index) else []


def _is_mask(part: Any) -> bool:
    return hasattr(part, "is_cuda") and part.dtype in (torch.bool, torch.uint8)


def _nonzero(result: Any, searched: Any, **kwargs: Any) -> Iterator[Found]:
    columns = result if isinstance(result, tuple) else (result,)
    yield Found(NONZERO, tuple(searched.shape), columns[0].shape[0])


def _where(result: Any, condition: Any, *args: Any, **kwargs: Any) -> Iterator[Found]:
    if not args and not kwargs:  # with values to choose from it searches nothing
        yield from _nonzero(result, condition)


def _masked_select(result: Any, source: Any, mask: Any, **kwargs: Any) -> Iterator[Found]:
    yield Found(NONZERO, tuple(torch.broadcast_shapes(source.shape, mask.shape)), result.shape[0])


def _getitem(result: Any, source: Any, index: Any) -> Iterator[Found]:
    for mask in _masks(index):
        if mask.is_cuda is source.is_cuda:  # the host searches its own itself
            yield Found(NONZERO, tuple(mask.shape), _length_found(result, source, index))


def _length_found(result: Any, source: Any, index: Any) -> int:
    """How many elements the masks of an index chose: the length of the result where they stand.

    NONE where the other parts make this hard to work out: lists, and tensors of more dimensions.
    """
    parts = index if isinstance(index, tuple) else (index,)
    tensors = [part for part in parts if hasattr(part, "dim")]
    if any(isinstance(part, (bool, list)) for part in parts) or any(t.dim() > 1 and not _is_mask(t) for t in tensors):
        return NONE
    chosen = [i for i, part in enumerate(parts) if hasattr(part, "dim")]
    if chosen[-1] - chosen[0] >= len(chosen) and any(not isinstance(part, int) for part in _between(parts, chosen)):
        return int(result.shape[0])  # apart from each other, they come first in the result
    taken = sum(_dimensions(part) for part in parts)
    place = 0
    for part in parts[: chosen[0]]:
        place += source.dim() - taken if part is Ellipsis else not isinstance(part, int)
    return int(result.shape[place])


def _between(parts: Any, chosen: list[int]) -> list[Any]:
    return [part for i, part in enumerate(parts) if chosen[0] < i < chosen[-1] and i not in chosen]


def _dimensions(part: Any) -> int:
    """How many of the source's dimensions a part of an index takes."""
    if _is_mask(part):
        return int(part.dim())
    return 0 if part is None or part is Ellipsis else 1


def _distinct(op: str, op_of_slices: str, place: int, result: Any, source: Any, *args: Any, **kwargs: Any) -> Iterator[Found]:
    """Of `unique` and `unique_consecutive`, whose argument `dim` is the one at this `place` after the source."""
    dim = args[place] if len(args) > place else kwargs.get("dim")
    yield Found(op if dim is None else op_of_slices, tuple(source.shape), _length(result, dim))


def _repeat_interleave(
    result: Any, source: Any, repeats: Any = None, dim: Any = None, *, output_size: Any = None
) -> Iterator[Found]:
    if output_size is not None or isinstance(repeats, int):
        return  # known from the shapes
    if repeats is None:
        yield Found("aten::repeat_interleave", tuple(source.shape), result.shape[0])
    else:  # one number for all is spread over them first
        length = source.numel() if dim is None else source.shape[dim]
        yield Found("aten::repeat_interleave", (length,), _length(result, dim))


def _bincount(result: Any, source: Any, *args: Any, **kwargs: Any) -> Iterator[Found]:
    yield Found("aten::bincount", tuple(source.shape), result.shape[0])


def _length(result: Any, dim: int | None) -> int:
    first = result[0] if isinstance(result, tuple) else result
    return int(first.shape[0 if dim is None else dim])
