# mypy: allow-untyped-calls
"""Computes ops in a wider dtype if the CPU kernels do not support the tensors' dtype.

    in_wider_dtypes(torch.ops.aten.flip.default, torch.ops.aten.flip.default, [x, [0]], {})     # x: uint16, computed in int32
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from replayer.errors import NotEmulated
from replayer.tensor.planning.cuda_dtypes import compares_dtypes, refusal_like, scalar_type, tensors_of
from replayer.tensor.planning.shape_inference import fits_in_float, writes_of
from replayer.torch_types import Kwargs, Op, TorchAny, TorchFunction

_LOW_PRECISION = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_WIDER = {
    **_LOW_PRECISION,
    **dict.fromkeys((torch.float8_e4m3fn, torch.float8_e5m2), torch.float32),
    **dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16), torch.int32),
    **dict.fromkeys((torch.uint32, torch.uint64), torch.int64),
}
# errors about a dtype's limits; a wider dtype has other limits
_OF_A_NUMBER = re.compile(r"must be in range|out of bounds|without overflow")


def may_be_wider(func: Op, args: list[TorchAny], kwargs: Kwargs, refused: Exception) -> bool:
    text, dtypes = str(refused), _dtypes(args, kwargs)
    if not isinstance(refused, NotImplementedError) and compares_dtypes(refused):
        return False  # A conversion to one wider dtype would hide the op's error about different dtypes.
    if fits_in_float(func, text) or (re.search("low precision|MKL FFT", text) and dtypes & _LOW_PRECISION.keys()):
        return True
    if _OF_A_NUMBER.search(text):
        return False
    named = {dtype for dtype in dtypes & _WIDER.keys() if _names(dtype).search(text)}
    if not named or named & _LOW_PRECISION.keys():
        return bool(named)
    return isinstance(refused, NotImplementedError) and refusal_like(func, args, kwargs, refused) is None


def _dtypes(args: list[TorchAny], kwargs: Kwargs) -> set[torch.dtype]:
    leaves = tree_leaves((args, kwargs))
    return {x.dtype if isinstance(x, torch.Tensor) else x for x in leaves if isinstance(x, (torch.Tensor, torch.dtype))}


def _names(dtype: torch.dtype) -> re.Pattern[str]:
    names = f"{scalar_type(dtype)}|{str(dtype).removeprefix('torch.')}"
    return re.compile(rf"(?:type:?|dtype|implemented for|complex tensor, but got) '?(?:torch\.|CPU)?(?:{names})\b")


def in_wider_dtypes(func: Op, run: TorchFunction, args: list[TorchAny], kwargs: Kwargs) -> TorchAny:
    widened: list[tuple[torch.Tensor, torch.Tensor]] = []
    tensors = tensors_of((args, kwargs))
    written = tree_leaves([args[at] if isinstance(at, int) else kwargs[at] for at, _ in writes_of(func, tuple(args), kwargs)])

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        wider = _WIDER.get(tensor.dtype)
        if wider is None or (tensor.dtype is torch.bool and _dtypes(args, kwargs) != {torch.bool}):
            return tensor
        wide = tensor.to(wider if tensor.numel() or wider.is_complex else torch.float32)
        if tensor.dtype is torch.uint64 and bool((wide < 0).any()):
            raise NotEmulated(f"{func._schema.name} of uint64 values from 2**63", "use smaller values")
        widened.append((tensor, wide))
        return wide

    def widen_dtype(dtype: torch.dtype) -> torch.dtype:
        return _WIDER.get(dtype, dtype) if tensors else torch.int64  # for ops without tensor arguments, such as `tril_indices`

    wide_args, wide_kwargs = tree_map_only(torch.Tensor, widen, (args, kwargs))
    wide_args, wide_kwargs = tree_map_only(torch.dtype, widen_dtype, (wide_args, wide_kwargs))
    result = run(*wide_args, **wide_kwargs)
    for tensor, wide in widened:
        if any(tensor is each for each in written):
            (tensor if tensor.is_sparse else tensor.resize_(wide.shape)).copy_(wide)
    leaves = tree_leaves(result)
    expected = _result_dtypes(func, args, kwargs)
    if expected is None or len(expected) != len(leaves):
        expected = [_narrowed(leaf, widened) for leaf in leaves]
    wanted = {id(leaf): dtype for leaf, dtype in zip(leaves, expected, strict=True)}

    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        given = next((before for before, wide in widened if wide is tensor), None)
        if given is not None:
            return given
        dtype = wanted[id(tensor)]
        return tensor if dtype is None else tensor.to(dtype)

    return tree_map_only(torch.Tensor, narrow, result)


# NotImplementedError is a RuntimeError.
_META_ERRORS = (AssertionError, IndexError, RuntimeError, TypeError, ValueError)


def _result_dtypes(func: Op, args: list[TorchAny], kwargs: Kwargs) -> list[torch.dtype | None] | None:
    with suppress(*_META_ERRORS):
        made = tree_leaves(on_meta(func, args, kwargs))
        return [leaf.dtype if isinstance(leaf, torch.Tensor) else None for leaf in made]
    return None


def on_meta(func: Op, args: Sequence[TorchAny], kwargs: Kwargs) -> TorchAny:
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "meta"}
    args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
    return func(*args, **kwargs)


def _narrowed(result: TorchAny, widened: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.dtype | None:
    if not isinstance(result, torch.Tensor):
        return None
    return next((before.dtype for before, wide in widened if wide.dtype is result.dtype), result.dtype)
